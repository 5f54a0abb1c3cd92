/* An option of its kind has no range. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_option_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = KIND_OPS;
static const sd_kind_option options[] = {{.name = "size", .doc = "a size", .min = 4, .max = 3}};
static const sd_kind_desc kinds[] = {{KIND("optioned", &f), .options = options, .n_options = 1}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_option", ops),
                                                   SD_PLUGIN_KINDS(kinds)};
