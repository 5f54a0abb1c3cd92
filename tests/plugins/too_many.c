/* Announces more ops than can be. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("too_many", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {.abi_major = SD_ABI_MAJOR,
                                                   .abi_minor = SD_ABI_MINOR,
                                                   .struct_size = sizeof(sd_plugin_desc),
                                                   .op_size = sizeof(sd_op_desc),
                                                   .arg_size = sizeof(sd_arg_desc),
                                                   .n_ops = 100000,
                                                   .ops = ops,
                                                   .name = "too_many",
                                                   .version = "1.0",
                                                   .summary = "a test plugin"};
