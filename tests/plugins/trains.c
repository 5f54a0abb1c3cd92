/* Loads; its op trains by hand, through the table, what `train` trains with a constant rate. */
#include "gallery.h"

static int run(const sd_host *host, sd_call *call) {
    enum { B = 2, T = 16 };
    const int32_t *ids;
    size_t n;
    int32_t in[B * T], out[B * T];
    sd_hmodel *m = host->model_clone(call, host->arg_model(call, "model"));
    if (!m || host->text_ids(call, host->arg_text(call, "text"), m, &ids, &n))
        return host->failed(call);
    sd_htrain *t = host->train_new(call, m, B, T);
    sd_hadamw o = {.struct_size = sizeof o,
                   .lr = 1e-3,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .eps = 1e-8,
                   .weight_decay = 0.1,
                   .clip = 1};
    for (size_t s = 0; t && s < (size_t)host->arg_int(call, "steps"); s++) {
        if ((s + 1) * B * T + 1 > n)
            return host->fail(call, SD_FAIL_INVALID, "the text is too short");
        for (size_t i = 0; i < B * T; i++) {
            in[i] = ids[s * B * T + i];
            out[i] = ids[s * B * T + i + 1];
        }
        host->train_zero(call, t);
        if (host->train_backward(call, t, in, out, B, T, 1, NULL) ||
            host->train_step(call, t, &o, NULL))
            return host->failed(call);
    }
    if (!t || host->train_store(call, t, m))
        return host->failed(call);
    host->train_release(call, t);
    return host->return_model(call, m);
}

static const sd_arg_desc args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "a model"},
    {.name = "text", .kind = SD_ARG_TEXT, .flags = SD_ARG_REQUIRED, .doc = "a text"},
    {.name = "steps", .kind = SD_ARG_INT, .dflt = "4", .max = 100, .doc = "steps"},
};
static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_MODEL,
                                  .name = "train_by_hand",
                                  .summary = "a test",
                                  .details = "A test.",
                                  .example = "return 1",
                                  .returns_doc = "a model",
                                  .args = args,
                                  .n_args = 3,
                                  .run = run}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("trains", ops)};
