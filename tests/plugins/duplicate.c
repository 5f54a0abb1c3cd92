/* One of its ops is named like a built-in one; the other must not stay behind. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("duplicate_first", SD_ARG_NUM, answer),
                                 OP("heads", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("duplicate", ops)};
