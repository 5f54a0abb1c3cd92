/* An argument's doc points nowhere. */
#include "gallery.h"
static const sd_arg_desc args[] = {{.name = "x", .kind = SD_ARG_NUM, .doc = (const char *)0x10}};
static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_NUM,
                                  .name = "wild",
                                  .summary = "a test",
                                  .details = "A test.",
                                  .example = "return 1",
                                  .returns_doc = "something",
                                  .args = args,
                                  .n_args = 1,
                                  .run = answer}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("wild", ops)};
