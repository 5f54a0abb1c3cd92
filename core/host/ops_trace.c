/* ops_trace.c: operations that look into a pass, change it, and say what a part is worth. */
#include <math.h>
#include <string.h>

#include "host/args.h"
#include "host/host.h"
#include "spectral/ablate.h"

static int op_ablate(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    const sd_value *heads = sd_call_arg(c, "heads"), *layers = sd_call_arg(c, "layers");
    sd_ablate_opts o = {.ctx = (int)host->arg_int(c, "ctx"),
                        .max_seqs = (int)host->arg_int(c, "seqs"),
                        .mean = strcmp(host->arg_str(c, "value"), "mean") == 0,
                        .seed = sd_call_seed(c)};
    const char *what = host->arg_str(c, "what");
    int w = 0;
    while (strcmp(sd_ablate_name((sd_ablate_what)w), what) != 0)
        w++;
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_table *t = NULL;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st == SD_OK)
        st = sd_ablate_table(m, ids, n, (sd_ablate_what)w,
                             layers->kind == SD_ARG_NIL ? NULL : layers->s,
                             heads->kind == SD_ARG_NIL ? NULL : heads->s, &o, &c->s->run, &t,
                             &c->err);
    return sd_call_return_table(c, st, t);
}

static const sd_arg_desc ablate_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    {.name = "what",
     .kind = SD_ARG_CHOICE,
     .dflt = "head",
     .choices = "head|routing|filtering|attn|mlp|layer",
     .doc = "what is taken out, one at a time"},
    {.name = "layers",
     .kind = SD_ARG_LAYERS,
     .doc = "layers to try, as \"0-3,7\", numbered from 0; all when absent"},
    {.name = "heads", .kind = SD_ARG_LAYERS, .doc = "heads to try in each; all when absent"},
    {.name = "value",
     .kind = SD_ARG_CHOICE,
     .dflt = "zero",
     .choices = "zero|mean",
     .doc = "what stands in for head, attn or mlp: zero, or its mean over the text"},
    CTX_ARG,
    INT_ARG("seqs", "0", 0, 1048576, "windows to score; 0: the whole text"),
    SEED_ARG("seed of the bootstrap"),
};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "ablate",
     .summary = "what every head, its routing or its filtering, or every layer is worth on a text",
     .details =
         "The change of the loss when one part is taken out, everything else as it is: the output "
         "of a head; its routing (the scores become their symmetric part) or its filtering (their "
         "skew part); an attention sublayer, an MLP, a whole block. The layers below run once for "
         "all; the numbers are those of two whole evaluations on the same windows."
         "\n\nscore_rms is how much the scores changed (root mean square over the pairs that the "
         "softmax sees): delta / score_rms is a head's sensitivity.",
     .example = "a = ablate(m, t, {layers='1', ctx=32, seqs=4})\n"
                "assert(#a == m.config.layers[2].n_head and a:row(0).delta)",
     .returns_doc = "a table, one row a head (or a layer), with 95% intervals over windows",
     .args = ablate_args,
     .n_args = N(ablate_args),
     .run = op_ablate},
};

sd_builtin_group sd_ops_trace(void) {
    return (sd_builtin_group){ops, N(ops)};
}
