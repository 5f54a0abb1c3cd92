/* template.c: the smallest real plugin. Copy it, rename it, and change the parts marked 1-4.
 *
 * Build it against the one header:
 *     gcc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wl,-z,defs template.c -o template.so -lm
 * and load it at the prompt with `plugin.load "/path/to/template.so"`, or put it into a folder of
 * the search path (README.md).
 *
 * What it does: `scale_head(model, {layer=, head=, factor=})` multiplies the output of one head,
 * and returns the changed model. With factor 0 that is ablation: the loss it costs is the head's
 * worth.
 */
#include "sd_plugin.h"

/* 1. The operation. `host` is the table of functions, `call` owns everything made here. Arguments
 * have been checked against the descriptor below: they are there, of the right kind, in range. */
static int scale_head(const sd_host *host, sd_call *call) {
    int32_t layer = (int32_t)host->arg_int(call, "layer");
    int32_t head = (int32_t)host->arg_int(call, "head");
    double factor = host->arg_num(call, "factor");

    /* Arguments are read-only; a clone shares every tensor until it is changed. */
    sd_hmodel *m = host->model_clone(call, host->arg_model(call, "model"));
    if (!m)
        return host->failed(call); /* the host knows why */

    sd_hlayer_info info = {.struct_size = sizeof info};
    sd_harray wo = {0};
    if (host->model_layer(call, m, layer, &info) ||
        host->model_get_part(call, m, layer, "wo", &wo)) {
        host->model_release(call, m);
        return host->failed(call);
    }
    /* What only this op can check, it says in the same form: what was expected, what came. */
    if (head >= info.n_head) {
        int code =
            host->fail(call, SD_FAIL_INVALID,
                       "expected head 0..%d, got %d: %s has %d heads a layer, numbered from 0",
                       info.n_head - 1, head, host->model_name(call, m), info.n_head);
        host->model_release(call, m);
        return code;
    }
    /* wo is (heads * d_v, width), row-major: the rows of a head stand together. */
    int64_t first = (int64_t)head * info.d_v * wo.shape[1], n = (int64_t)info.d_v * wo.shape[1];
    for (int64_t i = first; i < first + n; i++)
        wo.data[i] *= factor;
    if (host->model_set_part(call, m, layer, "wo", &wo)) {
        host->model_release(call, m);
        return host->failed(call);
    }
    return host->return_model(call, m); /* the host takes the handle */
}

/* 2. Its arguments: the single source of checks, help, completion and the Lua binding. Required
 * ones come first and are positional; the others are options. min < max bounds a number. */
static const sd_arg_desc args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model"},
    {.name = "layer",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1000000,
     .doc = "the layer, numbered from 0"},
    {.name = "head",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1000000,
     .doc = "the head, numbered from 0"},
    {.name = "factor", .kind = SD_ARG_NUM, .dflt = "0", .doc = "what its output is multiplied by"},
};

/* 3. Its documentation. An op without summary, details and example does not load, and the example
 * is run by the tests. */
static const sd_op_desc ops[] = {{
    .struct_size = sizeof(sd_op_desc),
    .returns = SD_ARG_MODEL,
    .name = "scale_head",
    .summary = "multiplies the output of one head",
    .details = "With factor 0 the head is ablated: the rise of the loss is what it was worth. The "
               "input model is untouched.",
    .example = "x = scale_head(m, {layer=0, head=1, factor=0})\n"
               "assert(nll(x, t) ~= nll(m, t))",
    .returns_doc = "the changed model",
    .args = args,
    .n_args = sizeof args / sizeof *args,
    .run = scale_head,
}};

/* 4. The one exported symbol. */
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_HEADER(ops),
    .name = "template",
    .version = "1.0",
    .summary = "a documented example: scales or ablates one head",
};
