/* Another plugin named like the good one. */
#include "gallery.h"
static const sd_op_desc ops[] = {OP("same_name_op", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("good", ops)};
