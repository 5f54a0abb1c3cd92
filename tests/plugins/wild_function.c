/* An op's function is data. */
#include "gallery.h"
static const char not_code[16] = "not code";
static const sd_op_desc ops[] = {OP("wild_function", SD_ARG_NUM, (sd_op_fn)(const void *)not_code)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("wild_function", ops)};
