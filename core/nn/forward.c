#include "nn/forward.h"

#include <string.h>

#include "base/mem.h"
#include "nn/hook.h"
#include "nn/net.h"
#include "nn/net_i.h"

/* The compute form cached in a model: rebuilt when the model changes, re-planned when a batch is
 * larger (or the thread count differs). */
typedef struct cache {
    sd_net *net;
    sd_net_ws *ws;
    sd_net_plan plan;
    bool busy; /* a pass is going on: hooks must not start another on the same buffers */
} cache;

static void cache_destroy(void *p) {
    cache *c = p;
    if (!c)
        return;
    sd_net_ws_free(c->ws);
    sd_net_free(c->net);
    sd_free(c);
}

/* Tokens a workspace is planned for; longer batches go in several runs. */
enum { RUN_TOKENS = 4096 };

static sd_status compute_form(sd_model *m, cache **out, sd_err *err) {
    uint64_t version = 0;
    cache *c = sd_model_cache(m, &version);
    if (c && c->busy)
        return sd_fail(err, SD_EINVAL, "%s is in the middle of a pass: a hook cannot run it again",
                       sd_model_name(m));
    if (!c || version != sd_model_version(m)) {
        cache *n = sd_alloc(1, sizeof *n, err);
        if (!n)
            return SD_ENOMEM;
        sd_status st = sd_net_new(m, SD_F32, &n->net, err);
        if (st != SD_OK) {
            cache_destroy(n);
            return st;
        }
        sd_model_set_cache(m, n, cache_destroy);
        sd_model_set_cache_bytes(m, sd_net_n_params(n->net) * sizeof(float));
        c = n;
    }
    *out = c;
    return SD_OK;
}

sd_status sd_forward_net(sd_model *m, const struct sd_net **out, sd_err *err) {
    cache *c = NULL;
    *out = NULL;
    SD_TRY(compute_form(m, &c, err));
    *out = c->net;
    return SD_OK;
}

static sd_status prepare(sd_model *m, int batch, int tokens, const sd_run *run, cache **out,
                         sd_err *err) {
    cache *c = NULL;
    SD_TRY(compute_form(m, &c, err));
    int threads = sd_run_threads(run);
    if (!c->ws || c->plan.tokens < tokens || c->plan.threads != threads ||
        (int64_t)c->plan.batch * c->plan.tokens < (int64_t)batch * tokens) {
        sd_net_ws_free(c->ws);
        c->ws = NULL;
        c->plan = (sd_net_plan){.batch = batch, .tokens = tokens, .threads = threads};
        SD_TRY(sd_net_ws_new(c->net, &c->plan, &c->ws, err));
        sd_net_ws_freeze(c->ws);
        sd_model_set_cache_bytes(m, sd_net_n_params(c->net) * sizeof(float) +
                                        sd_net_ws_bytes(c->net, &c->plan));
    }
    *out = c;
    return SD_OK;
}

/* Sequences of one run. */
static int per_run(int batch, int tokens, const sd_forward_opts *opts) {
    if (opts && (opts->capture || opts->n_hooks))
        return batch;
    int n = RUN_TOKENS / tokens;
    n = n < 1 ? 1 : n;
    return n < batch ? n : batch;
}

static sd_status check(const sd_model *m, int batch, int tokens, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    if (batch < 1 || tokens < 1 || (int64_t)batch * tokens > INT32_MAX)
        return sd_fail(err, SD_EINVAL, "forward of %d sequences of %d tokens", batch, tokens);
    if (c->pos == SD_POS_LEARNED && tokens > c->n_pos)
        return sd_fail(err, SD_EINVAL, "forward of %d tokens: the position table holds %d", tokens,
                       c->n_pos);
    return SD_OK;
}

/* The model's hooks, then the caller's; *out is owned. */
static sd_status all_hooks(const sd_model *m, const sd_forward_opts *o, sd_hook **out, size_t *n,
                           sd_err *err) {
    size_t mine = 0, theirs = o ? o->n_hooks : 0;
    const sd_hook *h = sd_model_hooks(m, &mine);
    *out = NULL;
    *n = mine + theirs;
    if (*n == 0)
        return SD_OK;
    if (!(*out = sd_alloc(*n, sizeof **out, err)))
        return SD_ENOMEM;
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = i < mine ? h[i] : o->hooks[i - mine];
    return SD_OK;
}

/* What a pass over some of the sequences is given, and what it gives. */
typedef struct job {
    sd_model *m;
    const int32_t *ids, *targets;
    int batch, tokens;
    const sd_forward_opts *opts;
    float *hidden, *logits;
    double *nll;
} job;

static sd_status run_all(const job *j, cache *c, int step, const sd_hook *hooks, size_t n_hooks,
                         sd_err *err) {
    const sd_forward_opts *o = j->opts;
    size_t d = (size_t)sd_net_config(c->net)->d_model, v = (size_t)sd_net_config(c->net)->vocab;
    for (int b0 = 0; b0 < j->batch; b0 += step) {
        size_t at = (size_t)b0 * (size_t)j->tokens;
        sd_net_batch b = {.batch = j->batch - b0 < step ? j->batch - b0 : step,
                          .tokens = j->tokens,
                          .ids = j->ids + at,
                          .targets = j->targets ? j->targets + at : NULL,
                          .types = o && o->token_types ? o->token_types + at : NULL,
                          .hooks = hooks,
                          .n_hooks = n_hooks,
                          .start = o && o->start ? o->start + at * d : NULL,
                          .start_layer = o ? o->start_layer : 0};
        if (j->nll) {
            double sum;
            int64_t count;
            SD_TRY(sd_net_loss(c->net, c->ws, &b, &sum, &count, j->nll + at, err));
        } else {
            size_t row = o && o->last_logits ? (size_t)b0 : at;
            float *logits = j->logits ? j->logits + row * v : NULL;
            SD_TRY(sd_net_forward(c->net, c->ws, &b, o, j->hidden ? j->hidden + at * d : NULL,
                                  logits, err));
        }
    }
    return SD_OK;
}

static sd_status go(const job *j, sd_err *err) {
    cache *c = NULL;
    sd_hook *hooks = NULL;
    size_t n = 0;
    SD_TRY(check(j->m, j->batch, j->tokens, err));
    int step = per_run(j->batch, j->tokens, j->opts);
    SD_TRY(prepare(j->m, step, j->tokens, j->opts ? j->opts->run : NULL, &c, err));
    SD_TRY(all_hooks(j->m, j->opts, &hooks, &n, err));
    c->busy = true;
    sd_status st = run_all(j, c, step, hooks, n, err);
    c->busy = false;
    sd_free(hooks);
    return st;
}

sd_status sd_forward(sd_model *m, const int32_t *ids, int batch, int tokens,
                     const sd_forward_opts *opts, float *hidden, float *logits, sd_err *err) {
    job j = {.m = m,
             .ids = ids,
             .batch = batch,
             .tokens = tokens,
             .opts = opts,
             .hidden = hidden,
             .logits = logits};
    return go(&j, err);
}

sd_status sd_forward_nll(sd_model *m, const int32_t *ids, const int32_t *targets, int batch,
                         int tokens, const sd_forward_opts *opts, double *nll, sd_err *err) {
    job j = {.m = m,
             .ids = ids,
             .targets = targets,
             .batch = batch,
             .tokens = tokens,
             .opts = opts,
             .nll = nll};
    return go(&j, err);
}

sd_status sd_forward_unembed(sd_model *m, const float *x, int n, bool norm, const sd_run *run,
                             float *logits, sd_err *err) {
    cache *c = NULL;
    if (n < 1)
        return sd_fail(err, SD_EINVAL, "logits of %d rows", n);
    SD_TRY(compute_form(m, &c, err));
    if (!c->ws || c->ws->batch_rows < n)
        SD_TRY(prepare(m, 1, n, run, &c, err));
    return sd_net_unembed(c->net, c->ws, (size_t)n, x, norm, logits, err);
}
