/* Its second kind has a built-in name; the first must go with it. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_taken_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = KIND_OPS;
static const sd_kind_desc kinds[] = {{KIND("kind_taken_first", &f)}, {KIND("softmax", &f)}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_taken", ops), SD_PLUGIN_KINDS(kinds)};
