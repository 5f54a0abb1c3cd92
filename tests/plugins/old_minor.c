/* Built for ABI 1.0, whose descriptor ends before the attention kinds: it loads. */
/* What stands behind a 1.0 descriptor is none of the host's business: here nonsense. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("old_minor_op", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    .abi_major = SD_ABI_MAJOR,
    .abi_minor = 0,
    .struct_size = offsetof(sd_plugin_desc, kind_size),
    .op_size = sizeof(sd_op_desc),
    .arg_size = sizeof(sd_arg_desc),
    .n_ops = 1,
    .ops = ops,
    .name = "old_minor",
    .version = "1.0",
    .summary = "a test plugin",
    .kind_size = 77,
    .n_kinds = 1000000,
    .kinds = (const sd_kind_desc *)ops,
};
