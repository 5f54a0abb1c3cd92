/* Loads and works: what the broken ones differ from. */
#include "gallery.h"

static int inits;

static int init(const sd_host *host, sd_call *call) {
    host->log(call, false, "good: init %d", ++inits);
    return 0;
}

static void fini(const sd_host *host) {
    (void)host;
}

static const sd_arg_desc args[] = {
    {.name = "x", .kind = SD_ARG_NUM, .flags = SD_ARG_REQUIRED, .doc = "a number"},
    {.name = "times", .kind = SD_ARG_INT, .dflt = "2", .min = 0, .max = 10, .doc = "a factor"},
    {.name = "mode",
     .kind = SD_ARG_CHOICE,
     .dflt = "mul",
     .choices = "mul|add",
     .doc = "what to do"},
};

static int work(const sd_host *host, sd_call *call) {
    double x = host->arg_num(call, "x"), k = (double)host->arg_int(call, "times");
    return host->return_num(call, host->arg_str(call, "mode")[0] == 'm' ? x * k : x + k);
}

static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_NUM,
                                  .name = "good_work",
                                  .summary = "multiplies or adds",
                                  .details = "A test.",
                                  .example = "assert(good_work(2) == 4)",
                                  .returns_doc = "a number",
                                  .args = args,
                                  .n_args = 3,
                                  .run = work},
                                 OP("good_answer", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("good", ops), .init = init, .fini = fini};
