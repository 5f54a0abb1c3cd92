/* ops_trace.c: operations that look into a pass, change it, and say what a part is worth. */
#include <math.h>
#include <string.h>

#include "host/args.h"
#include "host/host.h"
#include "nn/forward.h"
#include "nn/hook.h"
#include "spectral/ablate.h"
#include "spectral/calib.h"
#include "spectral/spectral.h"
#include "spectral/trace.h"

/* ---- capture -------------------------------------------------------------------------------- */

typedef struct grab {
    sd_tensor *out;
} grab;

/* One sequence: the dimension of sequences is dropped. */
static sd_status on_grab(void *ctx, sd_site *s, sd_err *err) {
    grab *g = ctx;
    SD_TRY(sd_tensor_new(SD_F32, s->ndim - 1, s->shape + 1, &g->out, err));
    memcpy(g->out->data, s->x, s->n * sizeof *s->x);
    return SD_OK;
}

/* Tokens [start, start + ctx) of a text: what the op is asked for, cut to what there is. */
static sd_status window_of(sd_call *c, const sd_host *host, sd_model *m, const int32_t **ids,
                           size_t *n) {
    size_t all = 0, start = (size_t)host->arg_int(c, "start"),
           ctx = (size_t)host->arg_int(c, "ctx");
    SD_TRY(sd_call_ids(c, "text", m, ids, &all));
    if (start >= all)
        return sd_fail(&c->err, SD_EINVAL, "start %zu: the text has %zu tokens, numbered from 0",
                       start, all);
    if (ctx == 0)
        ctx = (size_t)sd_calib_ctx(sd_model_config(m));
    *ids += start;
    *n = all - start < ctx ? all - start : ctx;
    return SD_OK;
}

static int op_capture(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    const char *what = host->arg_str(c, "what");
    sd_point p = strcmp(what, "x") == 0 ? SD_POINT_ATTN_IN : sd_point_find(what);
    int layer = (int)host->arg_int(c, "layer");
    if (p == SD_POINT_FINAL && layer == 0)
        layer = sd_model_config(m)->n_layer - 1;
    const int32_t *ids = NULL;
    size_t n = 0;
    grab g = {NULL};
    sd_hook h = {.point = p, .layer = layer, .fn = on_grab, .ctx = &g};
    sd_forward_opts o = {.run = &c->s->run,
                         .hooks = &h,
                         .n_hooks = 1,
                         .end_layer = p == SD_POINT_FINAL ? 0 : layer + 1};
    sd_status st = sd_point_check(sd_model_config(m), p, layer, &c->err);
    if (st == SD_OK)
        st = window_of(c, host, m, &ids, &n);
    if (st == SD_OK)
        st = sd_forward(m, ids, 1, (int)n, &o, NULL, NULL, &c->err);
    if (st != SD_OK) {
        sd_tensor_free(g.out);
        g.out = NULL;
    }
    return sd_call_return_tensor(c, st, g.out);
}

/* ---- token by token, layer by layer --------------------------------------------------------- */

static int op_tokens(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    sd_trace_opts o = {.ctx = (int)host->arg_int(c, "ctx"),
                       .max_seqs = (int)host->arg_int(c, "seqs")};
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_table *t = NULL;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st == SD_OK)
        st = sd_trace_tokens(m, ids, n, &o, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_lens(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    sd_trace_opts o = {.ctx = (int)host->arg_int(c, "ctx"), .at = (int)host->arg_int(c, "at")};
    const int32_t *ids = NULL;
    size_t n = 0, start = (size_t)host->arg_int(c, "start");
    sd_table *t = NULL;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st == SD_OK && start >= n)
        st = sd_fail(&c->err, SD_EINVAL, "start %zu: the text has %zu tokens, numbered from 0",
                     start, n);
    if (st == SD_OK)
        st = sd_trace_lens(m, ids + start, n - start, &o, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_recall(const sd_host *host, sd_call *c) {
    sd_recall_opts o = {.half = (int)host->arg_int(c, "half"),
                        .seqs = (int)host->arg_int(c, "seqs"),
                        .seed = sd_call_seed(c)};
    sd_table *t = NULL;
    sd_status st = sd_eval_recall(sd_call_arg(c, "model")->model, &o, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

/* ---- ablate ---------------------------------------------------------------------------------- */

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

#define START_ARG \
    INT_ARG("start", "0", 0, 9007199254740992.0, "where in the text the window begins, in tokens")
static const sd_arg_desc capture_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    INT_ARG("layer", "0", 0, 100000, "the layer, numbered from 0"),
    {.name = "what",
     .kind = SD_ARG_CHOICE,
     .dflt = "q",
     .choices = SD_POINT_CHOICES "|x",
     .doc = "which activation (x: the same as attn_in)"},
    CTX_ARG,
    START_ARG,
};
static const sd_arg_desc tokens_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    CTX_ARG,
    INT_ARG("seqs", "0", 0, 1048576, "windows to score; 0: the whole text"),
};
static const sd_arg_desc lens_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    CTX_ARG,
    START_ARG,
    INT_ARG("at", "-1", -1048576, 1048576,
            "position whose best guesses are shown; negative: from the end"),
};
static const sd_arg_desc recall_args[] = {
    MODEL_ARG,
    INT_ARG("half", "0", 0, 1048576,
            "random tokens before the repetition; 0: 64, or half the position table"),
    INT_ARG("seqs", "8", 1, 1048576, "sequences"),
    SEED_ARG("seed of the tokens"),
};
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
     .returns = SD_ARG_TENSOR,
     .name = "capture",
     .summary = "any activation of a layer on a text",
     .details =
         "In the order of a pass: resid_pre, the residual stream before the block (of layer 0: the "
         "embedding); attn_in, the input of the attention sublayer after its norm; q, k after "
         "rotation and v; d, the diagonal of S-D; scores of all pairs, unmasked, before the "
         "softmax; pattern, row = query; z, the outputs of the heads; attn_out, what attention "
         "gives to the residual stream; resid_mid between the sublayers; mlp_in; mlp_act, the "
         "hidden units; mlp_out; resid_post, the residual stream after the block; final, after the "
         "final norm.\n\n"
         "Only what is asked for is kept, and only the layers up to it are run. The text is one "
         "sequence of ctx tokens from `start`: a long text is looked at a window at a time. "
         "scale * q . k are the scores of a standard head.",
     .example = "q = capture(m, t, {layer=1, what='q', ctx=32})\n"
                "a = capture(m, t, {layer=1, what='pattern', ctx=32})\n"
                "assert(q.shape[1] == 32 and math.abs(a(0, 5):sum() - 1) < 1e-5)",
     .returns_doc = "an f32 tensor: (tokens, width), (tokens, heads, d) or (heads, tokens, tokens)",
     .args = capture_args,
     .n_args = N(capture_args),
     .run = op_capture},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "tokens",
     .summary = "loss, rank and entropy of every token of a text",
     .details =
         "One row a token, each scored once with up to ctx tokens before it, as in ppl: loss "
         "in nats, its rank among the vocabulary (1: the likeliest) and the entropy of the "
         "prediction. The first token has nothing to predict it.",
     .example = "a = tokens(m, 'The first of the three.')\n"
                "assert(a:row(0).position == 1 and math.abs(a.meta.nll - nll(m, 'The first of the "
                "three.')) < 1e-5)",
     .returns_doc = "a table, one row a token",
     .args = tokens_args,
     .n_args = N(tokens_args),
     .run = op_tokens},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "lens",
     .summary = "logit lens: what the residual stream of every layer would say",
     .details =
         "The stream in front of every layer goes through the final norm and the output head, "
         "as if the layers above were not there; the last row is the model itself. kl is the "
         "divergence of the model's prediction from the layer's. A post-norm stream, and that "
         "of a model without norm, is taken as it is.",
     .example = "a = lens(m, t, {ctx=32})\n"
                "assert(#a == m.config.n_layer + 1 and a:row(#a - 1).kl == 0)",
     .returns_doc = "a table, one row a layer and one of the model",
     .args = lens_args,
     .n_args = N(lens_args),
     .run = op_lens},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "recall",
     .summary = "induction: loss and hits on a repeated random sequence",
     .details =
         "Sequences of random tokens, repeated once. A model that looks up what followed last "
         "time predicts the second half; one without induction stays at the first half's "
         "loss.",
     .example = "r = recall(m, {half=16, seqs=2}):row(0)\nassert(r.accuracy <= 1 and r.nll > 0)",
     .returns_doc = "a table of one row",
     .args = recall_args,
     .n_args = N(recall_args),
     .run = op_recall},
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
                "assert(#a == m.config.n_head and a:row(0).delta and a:row(0).delta_lo)",
     .returns_doc = "a table, one row a head (or a layer), with 95% intervals over windows",
     .args = ablate_args,
     .n_args = N(ablate_args),
     .run = op_ablate},
};

sd_builtin_group sd_ops_trace(void) {
    return (sd_builtin_group){ops, N(ops)};
}
