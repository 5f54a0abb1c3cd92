/* Its kind has scores of queries and keys that it does not project. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_scores_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = KIND_OPS;
static const sd_kind_desc kinds[] = {{.struct_size = sizeof(sd_kind_desc),
                                      .scores = SD_SCORES_OF_QK,
                                      .name = "scored",
                                      .summary = "a test",
                                      .flops = k_flops,
                                      .f32 = &f,
                                      .f64 = &f}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_scores", ops),
                                                   SD_PLUGIN_KINDS(kinds)};
