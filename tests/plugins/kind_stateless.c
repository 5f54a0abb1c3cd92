/* Its kind says that it is recurrent, and has no state. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_stateless_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = KIND_OPS;
static const sd_kind_desc kinds[] = {{KIND("stateless", &f), .flags = SD_KIND_RECURRENT}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_stateless", ops),
                                                   SD_PLUGIN_KINDS(kinds)};
