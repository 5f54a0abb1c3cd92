/* Its f64 functions are nowhere. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_wild_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = KIND_OPS;
static const sd_kind_desc kinds[] = {{.struct_size = sizeof(sd_kind_desc),
                                      .scores = SD_SCORES_ABSENT,
                                      .name = "wild",
                                      .summary = "a test",
                                      .flops = k_flops,
                                      .f32 = &f,
                                      .f64 = (const sd_kind_ops *)64}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_wild", ops), SD_PLUGIN_KINDS(kinds)};
