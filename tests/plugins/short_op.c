/* Its op descriptors are larger than the ABI's. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("short_op", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {.abi_major = SD_ABI_MAJOR,
                                                   .abi_minor = SD_ABI_MINOR,
                                                   .struct_size = sizeof(sd_plugin_desc),
                                                   .op_size = sizeof(sd_op_desc) + 16,
                                                   .arg_size = sizeof(sd_arg_desc),
                                                   .n_ops = 1,
                                                   .ops = ops,
                                                   .name = "short_op",
                                                   .version = "1.0",
                                                   .summary = "a test plugin"};
