/* A default outside its own range. */
#include "gallery.h"
static const sd_arg_desc args[] = {
    {.name = "k", .kind = SD_ARG_INT, .dflt = "12", .min = 0, .max = 10, .doc = "a number"}};
static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_NUM,
                                  .name = "bad_default",
                                  .summary = "a test",
                                  .details = "A test.",
                                  .example = "return 1",
                                  .returns_doc = "something",
                                  .args = args,
                                  .n_args = 1,
                                  .run = answer}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("bad_default", ops)};
