/* Needs a host newer than this one. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("newer", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {.abi_major = SD_ABI_MAJOR,
                                                   .abi_minor = SD_ABI_MINOR + 1,
                                                   .struct_size = sizeof(sd_plugin_desc),
                                                   .op_size = sizeof(sd_op_desc),
                                                   .arg_size = sizeof(sd_arg_desc),
                                                   .n_ops = 1,
                                                   .ops = ops,
                                                   .name = "newer",
                                                   .version = "1.0",
                                                   .summary = "a test plugin"};
