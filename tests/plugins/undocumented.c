/* An op without an example. */
#include "gallery.h"
static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_NUM,
                                  .name = "undocumented",
                                  .summary = "a test",
                                  .details = "A test.",
                                  .returns_doc = "something",
                                  .run = answer}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("undocumented", ops)};
