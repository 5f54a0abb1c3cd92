/* ops_spectral.c: operations that measure routing and filtering. */
#include <math.h>
#include <string.h>

#include "host/args.h"
#include "host/host.h"
#include "spectral/calib.h"
#include "spectral/spectral.h"

static const char *layers_of(sd_call *c) {
    const sd_value *v = sd_call_arg(c, "layers");
    return v->kind == SD_ARG_NIL ? NULL : v->s;
}

static int op_heads(const sd_host *host, sd_call *c) {
    sd_heads_opts o = {.layers = layers_of(c),
                       .fold_norm = host->arg_bool(c, "fold"),
                       .bias = host->arg_bool(c, "bias"),
                       .lag = host->arg_int(c, "lag"),
                       .null_draws = sd_call_draws(c),
                       .seed = sd_call_seed(c),
                       .columns = host->arg_str(c, "columns")};
    sd_table *t = NULL;
    sd_status st = sd_heads(sd_call_arg(c, "model")->model, &o, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_probe(const sd_host *host, sd_call *c) {
    sd_model *m = sd_call_arg(c, "model")->model;
    sd_probe_opts o = {.layers = layers_of(c),
                       .ctx = (int)host->arg_int(c, "ctx"),
                       .max_seqs = (int)host->arg_int(c, "seqs"),
                       .null_draws = sd_call_draws(c),
                       .tau = host->arg_num(c, "tau"),
                       .seed = sd_call_seed(c),
                       .columns = host->arg_str(c, "columns")};
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_table *t = NULL;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st == SD_OK)
        st = sd_probe(m, ids, n, &o, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_summary(const sd_host *host, sd_call *c) {
    sd_table *t = NULL;
    sd_status st =
        sd_rank_summary(sd_call_arg(c, "table")->table, host->arg_num(c, "tau"), &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_stability(const sd_host *host, sd_call *c) {
    (void)host;
    sd_model *m = sd_call_arg(c, "model")->model;
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_table *t = NULL;
    sd_status st = sd_call_ids(c, "text", m, &ids, &n);
    if (st == SD_OK)
        st = sd_stability(m, ids, n, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

#define LAYERS_ARG                                                                 \
    {                                                                              \
        .name = "layers", .kind = SD_ARG_LAYERS,                                   \
        .doc = "layers to look at, as \"0-3,7\", numbered from 0; all when absent" \
    }
#define COLUMNS_ARG                                                                               \
    {                                                                                             \
        .name = "columns", .kind = SD_ARG_STR,                                                    \
        .doc = "columns beyond the usual ones: names, \"c_*,m_pr\", or \"all\"; with their nulls" \
    }
#define TAU_ARG                                                               \
    {                                                                         \
        .name = "tau", .kind = SD_ARG_NUM, .dflt = "3", .min = 0, .max = 1e6, \
        .doc = "a rank up to this counts as minimal"                          \
    }

static const sd_arg_desc heads_args[] = {
    MODEL_ARG,
    LAYERS_ARG,
    {.name = "fold",
     .kind = SD_ARG_BOOL,
     .dflt = "false",
     .doc = "fold the norm before the attention into the weights"},
    {.name = "bias",
     .kind = SD_ARG_BOOL,
     .dflt = "false",
     .doc = "count the biases of queries and keys (as one more row of the weights)"},
    {.name = "lag",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .min = -1000000,
     .max = 1000000,
     .doc = "rotary models: distance j - i at which the kernel is taken"},
    DRAWS_ARG("draws of the Gaussian null per head shape; 0: no null"),
    SEED_ARG("seed of the random draws"),
    COLUMNS_ARG,
};
static const sd_arg_desc probe_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    CTX_ARG,
    {.name = "seqs",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .min = 0,
     .max = 1000000,
     .doc = "sequences to measure; 0: what the text holds, at most 8"},
    LAYERS_ARG,
    DRAWS_ARG("draws of the random-weight null per layer and sequence; 0: no null"),
    TAU_ARG,
    SEED_ARG("seed of the random draws"),
    COLUMNS_ARG,
};
static const sd_arg_desc summary_args[] = {
    {.name = "table",
     .kind = SD_ARG_TABLE,
     .flags = SD_ARG_REQUIRED,
     .doc = "a table of heads or probe"},
    TAU_ARG,
};
static const sd_arg_desc stability_args[] = {MODEL_ARG, TEXT_ARG};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "heads",
     .summary = "weight-level routing and filtering of every head, beside its Gaussian null",
     .details =
         "A head's kernel is M = c W_Q W_K' (S-D heads: S without its diagonal). Its skew part "
         "routes, its symmetric part filters; the two budgets add up to 1. One row a head: "
         "budgets, "
         "effective ranks of both parts, the largest plane, max Re lambda / rho, and the same for "
         "random Gaussian weights of that shape.\n\n"
         "Columns have help of their own: help \"pr\". Those of M's singular values (m_*) and the "
         "nulls of f_* and m_* are computed when columns= names them.",
     .example = "w = heads(m)\n"
                "assert(#w == m.config.n_layer * m.config.n_head)\n"
                "r = heads(g):row(0) -- on an S-D model only R is a kernel of the weights\n"
                "assert(math.abs(r.routing + r.filtering - 1) < 1e-9)",
     .returns_doc = "a table, one row a head, with the planes of each head as a vector",
     .args = heads_args,
     .n_args = N(heads_args),
     .run = op_heads},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "probe",
     .summary = "token-level routing and filtering on real text, with all controls",
     .details =
         "Runs the text through the model and analyses the interaction matrix of every head "
         "(unmasked, before softmax): ranks, budgets, potential share phi, centred rank, logit "
         "scale and effective context, means over sequences with their spread (*_sd). Beside them "
         "stands the same analysis with random weights on the same activations: a low rank that "
         "random weights show as well is no finding.\n\n"
         "Every rank of R, F and the centred routing (c_*) is there; those of M (m_*), and the "
         "nulls "
         "of ranks other than pr and c_pr, are computed when columns= names them.\n\n"
         "A rank is at most min(N, 2d), so give sequences of at least 4d tokens where the model "
         "allows it.",
     .example = "p = probe(m, t, {ctx=128, seqs=1, draws=2})\n"
                "assert(#p == m.config.n_layer * m.config.n_head)\n"
                "assert(p:head(0, 0).pr >= 1.99)",
     .returns_doc = "a table, one row a head",
     .args = probe_args,
     .n_args = N(probe_args),
     .run = op_probe},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "summary",
     .summary = "rank per layer: medians over heads, share of minimal-rank layers",
     .details = "A head is at minimal spectral rank when its rank is at most tau, a layer when the "
                "median over its heads is.",
     .example = "s = summary(probe(m, t, {ctx=128, seqs=1, draws=2}))\n"
                "assert(#s == m.config.n_layer)",
     .returns_doc = "a table, one row a layer",
     .args = summary_args,
     .n_args = N(summary_args),
     .run = op_summary},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "stability",
     .summary = "is L = S - D stable? Structure, spectrum and negative controls",
     .details =
         "Checks every head on the text: (a) structure: L + L' is zero bit for bit off the "
         "diagonal and the diagonal is negative, which proves Re lambda <= -min d at any length; "
         "(b) spectrum: the eigenvalues themselves, up to 256 tokens; (c) negative controls that "
         "must fail. It speaks of the unmasked map before softmax.",
     .example = "s = stability(m, t)\nassert(#s > 0)",
     .returns_doc = "a table, one row a head and test",
     .args = stability_args,
     .n_args = N(stability_args),
     .run = op_stability},
};

sd_builtin_group sd_ops_spectral(void) {
    return (sd_builtin_group){ops, N(ops)};
}
