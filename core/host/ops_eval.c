/* ops_eval.c: operations that score models on text (METHOD §9). */
#include <math.h>
#include <string.h>

#include "host/args.h"
#include "host/host.h"
#include "nn/forward.h"
#include "spectral/spectral.h"

static sd_eval_opts eval_opts(const sd_host *host, sd_call *c) {
    sd_eval_opts o = {.ctx = (int)host->arg_int(c, "ctx"),
                      .stride = (int)host->arg_int(c, "stride"),
                      .hf_convention = strcmp(host->arg_str(c, "convention"), "hf") == 0,
                      .bos = host->arg_bool(c, "bos"),
                      .expect_tokens = -1};
    if (host->arg_given(c, "expect_tokens"))
        o.expect_tokens = host->arg_int(c, "expect_tokens");
    return o;
}

static sd_status run_ppl(const sd_host *host, sd_call *c, sd_table **t) {
    sd_model *m = sd_call_arg(c, "model")->model;
    sd_eval_opts o = eval_opts(host, c);
    const int32_t *ids = NULL;
    size_t n = 0;
    SD_TRY(sd_call_ids(c, "text", m, &ids, &n));
    return sd_eval_ppl(m, ids, n, &o, &c->s->run, t, &c->err);
}

static int op_ppl(const sd_host *host, sd_call *c) {
    sd_table *t = NULL;
    sd_status st = run_ppl(host, c, &t);
    return sd_call_return_table(c, st, t);
}

static int op_nll(const sd_host *host, sd_call *c) {
    sd_table *t = NULL;
    sd_status st = run_ppl(host, c, &t);
    double v = st == SD_OK ? sd_table_num(t, 0, sd_table_find_col(t, "nll")) : 0;
    sd_table_unref(t);
    return sd_call_return_num(c, st, v);
}

static int op_compare(const sd_host *host, sd_call *c) {
    sd_model *a = sd_call_arg(c, "model")->model, *b = sd_call_arg(c, "other")->model;
    sd_eval_opts o = eval_opts(host, c);
    const int32_t *ids = NULL, *ids_b = NULL;
    size_t n = 0, nb = 0;
    sd_status st = sd_call_ids(c, "text", a, &ids, &n);
    if (st != SD_OK)
        return st;
    /* The text keeps one tokenizer's ids: those of the first model are kept aside. */
    int32_t *copy = host->alloc(c, n ? n : 1, sizeof *copy);
    if (!copy)
        return SD_ENOMEM;
    memcpy(copy, ids, n * sizeof *copy);
    st = sd_call_ids(c, "text", b, &ids_b, &nb);
    if (st != SD_OK)
        return st;
    if (n != nb || memcmp(copy, ids_b, n * sizeof *copy) != 0)
        return host->fail(c, SD_EINVAL,
                          "%s and %s cut the text into different tokens (%zu and %zu): their "
                          "losses cannot be compared window by window",
                          sd_model_name(a), sd_model_name(b), n, nb);
    sd_table *t = NULL;
    st = sd_eval_compare(a, b, copy, n, &o, sd_call_seed(c), &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_logits(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st != SD_OK)
        return st;
    if (n == 0 || n > INT32_MAX)
        return host->fail(c, SD_EINVAL, "a text of %zu tokens", n);
    int64_t shape[2] = {(int64_t)n, sd_model_config(m)->vocab};
    sd_tensor *out = NULL;
    sd_forward_opts o = {.run = &c->s->run};
    st = sd_tensor_new(SD_F32, 2, shape, &out, &c->err);
    if (st == SD_OK)
        st = sd_forward(m, ids, 1, (int)n, &o, NULL, out->data, &c->err);
    return sd_call_return_tensor(c, st, out);
}

#define EVAL_ARGS                                                                             \
    {.name = "ctx",                                                                           \
     .kind = SD_ARG_INT,                                                                      \
     .dflt = "0",                                                                             \
     .min = 0,                                                                                \
     .max = 1048576,                                                                          \
     .doc = "tokens a window; 0: the position table (1024 for rotary models)"},               \
        {.name = "stride",                                                                    \
         .kind = SD_ARG_INT,                                                                  \
         .dflt = "0",                                                                         \
         .min = 0,                                                                            \
         .max = 1048576,                                                                      \
         .doc = "tokens from window to window; 0: ctx"},                                      \
        {.name = "convention",                                                                \
         .kind = SD_ARG_CHOICE,                                                               \
         .dflt = "sd",                                                                        \
         .choices = "sd|hf",                                                                  \
         .doc = "sd scores every target once; hf leaves each window's first token unscored"}, \
        {.name = "bos",                                                                       \
         .kind = SD_ARG_BOOL,                                                                 \
         .dflt = "false",                                                                     \
         .doc = "put the model's BOS before the text, which scores its first token"},         \
    {                                                                                         \
        .name = "expect_tokens", .kind = SD_ARG_INT, .min = 0, .max = 9007199254740992.0,     \
        .doc = "fail unless exactly so many tokens are scored"                                \
    }

static const sd_arg_desc ppl_args[] = {MODEL_ARG, TEXT_ARG, EVAL_ARGS};
static const sd_arg_desc compare_args[] = {
    MODEL_ARG,
    {.name = "other",
     .kind = SD_ARG_MODEL,
     .flags = SD_ARG_REQUIRED,
     .doc = "the model to compare with it"},
    TEXT_ARG,
    EVAL_ARGS,
    SEED_ARG("seed of the bootstrap"),
};
static const sd_arg_desc logits_args[] = {MODEL_ARG, TEXT_ARG};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "ppl",
     .summary = "perplexity of a model on a text, with a receipt of how it was counted",
     .details = "exp of the mean negative log-likelihood of the next token. Every target is scored "
                "in the first window that holds it, each once; the first token of the text is not "
                "scored unless there is a BOS. Perplexities are comparable only at equal tokens, "
                "ctx, stride and BOS, which the table shows.",
     .example = "r = ppl(m, t):row(0)\nassert(math.abs(math.log(r.ppl) - r.nll) < 1e-9)",
     .returns_doc = "a table of one row, with the windows' losses as vectors",
     .args = ppl_args,
     .n_args = N(ppl_args),
     .run = op_ppl},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_NUM,
     .name = "nll",
     .summary = "mean negative log-likelihood of a text, in nats a token",
     .details = "The logarithm of ppl, as a plain number.",
     .example = "assert(nll(m, t) > 0)",
     .returns_doc = "a number",
     .args = ppl_args,
     .n_args = N(ppl_args),
     .run = op_nll},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "compare",
     .summary = "loss of two models on the same windows, with a confidence interval",
     .details = "Both models score the same windows; the difference is resampled over windows "
                "(paired bootstrap, 10,000 draws) for its 95% interval.",
     .example = "c = compare(m, m, t)\nassert(#c >= 1)",
     .returns_doc = "a table",
     .args = compare_args,
     .n_args = N(compare_args),
     .run = op_compare},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TENSOR,
     .name = "logits",
     .summary = "next-token logits at every position of a text",
     .details = "The text is one sequence and must fit the position table.",
     .example = "x = logits(m, 'a few words')\nassert(x.shape[2] == m.config.vocab)",
     .returns_doc = "an f32 tensor (tokens, vocabulary)",
     .args = logits_args,
     .n_args = N(logits_args),
     .run = op_logits},
};

sd_builtin_group sd_ops_eval(void) {
    return (sd_builtin_group){ops, N(ops)};
}
