/* ablate.c: ablate.h. */
#include "spectral/ablate.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "nn/forward.h"
#include "nn/hook.h"
#include "spectral/calib.h"
#include "spectral/internal.h"

enum { BATCH_TOKENS = 2048 };

static const char *const names[SD_ABLATE_WHAT_COUNT] = {"head", "routing", "filtering", "plane",
                                                        "attn", "mlp",     "layer"};

const char *sd_ablate_name(sd_ablate_what w) {
    return names[w];
}

static bool on_scores(sd_ablate_what w) {
    return w == SD_ABLATE_ROUTING || w == SD_ABLATE_FILTERING || w == SD_ABLATE_PLANE;
}

/* ---- what one ablation does to a pass
 * ------------------------------------------------------------ */

typedef struct job job;

typedef struct edit {
    const sd_ablate_target *t;
    const job *j;
    const float *q, *k; // plane: of this batch
    double sum, count;  /* squared change of the scores, and pairs */
} edit;

/* Means of one layer over the text, for mean ablation. */
typedef struct means {
    double *z, *attn, *mlp; // (H·d_v), (D), (D)
    double rows;
} means;

struct job {
    sd_model *m;
    const sd_config *cfg;
    const int32_t *ids;
    size_t n, n_win, ctx; /* tokens; windows; tokens a window */
    const sd_ablate_target *targets;
    size_t n_targets;
    const sd_run *run;
    bool mean, *layer;     // (L) layers in question
    means *means;          // (L)
    float **x;             // (L) inputs of the layers in question, one batch
    edit *edits;           // (n_targets)
    double *delta, *count; // (n_targets, n_win), (n_win)
    double base, scored;
    int32_t *targets_ids;
    double *nll0, *nll1;
    sd_hook *hooks;
    float *q, *k;
};

static const double *mean_of(const job *j, int layer, sd_point p) {
    const means *m = &j->means[layer];
    return !j->mean ? NULL : p == SD_POINT_Z ? m->z : p == SD_POINT_ATTN_OUT ? m->attn : m->mlp;
}

/* Rows of `width` become their mean, or zero; of heads only one when head >= 0. */
static sd_status edit_rows(void *ctx, sd_site *s, sd_err *err) {
    (void)err;
    const edit *e = ctx;
    size_t width = 1, from = 0, n;
    for (int i = 2; i < s->ndim; i++)
        width *= (size_t)s->shape[i];
    n = width;
    if (s->point == SD_POINT_Z && e->t->head >= 0) {
        n = (size_t)s->shape[3];
        from = (size_t)e->t->head * n;
    }
    const double *mean = mean_of(e->j, s->layer, s->point);
    for (size_t r = 0; r < s->n / width; r++)
        for (size_t c = from; c < from + n; c++)
            s->x[r * width + c] = mean ? (float)mean[c] : 0;
    s->edited = true;
    return SD_OK;
}

static sd_status edit_skip(void *ctx, sd_site *s, sd_err *err) {
    (void)err;
    const edit *e = ctx;
    memcpy(s->x, e->j->x[s->layer], s->n * sizeof *s->x);
    s->edited = true;
    return SD_OK;
}

static sd_status stash(void *ctx, sd_site *s, sd_err *err) {
    edit *e = ctx;
    float **to = s->point == SD_POINT_Q ? (float **)&e->q : (float **)&e->k;
    sd_free(*to);
    if (!(*to = sd_alloc_raw(s->n, sizeof **to, err)))
        return SD_ENOMEM;
    memcpy(*to, s->x, s->n * sizeof **to);
    return SD_OK;
}

/* Component of every token on a plane's two axes: U·a, U·b of one head of sequence b. */
static void axes(const edit *e, const sd_site *s, size_t b, double *ua, double *ub) {
    const sd_layer_cfg *lc = &s->cfg->layer[s->layer];
    size_t d = (size_t)lc->d_qk, h = (size_t)lc->n_head, g = (size_t)lc->n_kv_head;
    size_t head = (size_t)e->t->head, t = (size_t)s->tokens;
    for (size_t i = 0; i < t; i++) {
        const float *q = e->q + ((b * t + i) * h + head) * d;
        const float *k = e->k + ((b * t + i) * g + head / (h / g)) * d;
        ua[i] = ub[i] = 0;
        for (size_t c = 0; c < d; c++) {
            ua[i] += (double)q[c] * e->t->a[c] + (double)k[c] * e->t->a[d + c];
            ub[i] += (double)q[c] * e->t->b[c] + (double)k[c] * e->t->b[d + c];
        }
    }
}

/* Scores of one head (T, T), unmasked. */
static void edit_head(edit *e, const sd_site *s, float *m, const double *ua, const double *ub) {
    const sd_layer_cfg *lc = &s->cfg->layer[s->layer];
    size_t t = (size_t)s->tokens, lo, hi;
    double f = lc->scale * (sd_attn_algebra_of(lc) == SD_SCORES_SKEW ? 1 : 0.5);
    for (size_t i = 0; i < t; i++) {
        sd_attn_keys(lc, true, i, t, &lo, &hi);
        for (size_t k = 0; k <= i; k++) {
            double x = (double)m[i * t + k], y = (double)m[k * t + i], nx, ny;
            if (e->t->what == SD_ABLATE_PLANE) {
                double r = f * (ua[i] * ub[k] - ub[i] * ua[k]);
                nx = x - r;
                ny = y + r;
            } else if (e->t->what == SD_ABLATE_ROUTING) {
                nx = ny = 0.5 * (x + y);
            } else {
                nx = 0.5 * (x - y);
                ny = -nx;
            }
            m[i * t + k] = (float)nx;
            m[k * t + i] = (float)ny;
            if (k >= lo && k < hi) {
                e->sum += (nx - x) * (nx - x);
                e->count += 1;
            }
        }
    }
}

static sd_status edit_scores(void *ctx, sd_site *s, sd_err *err) {
    edit *e = ctx;
    size_t t = (size_t)s->tokens, h = (size_t)s->shape[1];
    double *u = sd_alloc_raw(2 * t, sizeof *u, err);
    if (!u)
        return SD_ENOMEM;
    for (size_t b = 0; b < (size_t)s->batch; b++) {
        if (e->t->what == SD_ABLATE_PLANE)
            axes(e, s, b, u, u + t);
        for (size_t i = 0; i < h; i++)
            if (e->t->head < 0 || (size_t)e->t->head == i)
                edit_head(e, s, s->x + (b * h + i) * t * t, u, u + t);
    }
    sd_free(u);
    s->edited = true;
    return SD_OK;
}

/* Hooks of one ablation; how many. */
static size_t hooks_of(edit *e, sd_hook h[3]) {
    int l = e->t->layer;
    switch (e->t->what) {
    case SD_ABLATE_HEAD:
        h[0] = (sd_hook){SD_POINT_Z, l, edit_rows, e};
        return 1;
    case SD_ABLATE_ATTN:
        h[0] = (sd_hook){SD_POINT_ATTN_OUT, l, edit_rows, e};
        return 1;
    case SD_ABLATE_MLP:
        h[0] = (sd_hook){SD_POINT_MLP_OUT, l, edit_rows, e};
        return 1;
    case SD_ABLATE_LAYER:
        h[0] = (sd_hook){SD_POINT_RESID_POST, l, edit_skip, e};
        return 1;
    case SD_ABLATE_PLANE:
        h[0] = (sd_hook){SD_POINT_Q, l, stash, e};
        h[1] = (sd_hook){SD_POINT_K, l, stash, e};
        h[2] = (sd_hook){SD_POINT_SCORES, l, edit_scores, e};
        return 3;
    default:
        h[0] = (sd_hook){SD_POINT_SCORES, l, edit_scores, e};
        return 1;
    }
}

/* ---- windows
 * -------------------------------------------------------------------------------------- */

static size_t window_len(const job *j, size_t w) {
    size_t at = w * j->ctx, left = j->n - 1 - at;
    return left < j->ctx ? left : j->ctx;
}

/* Windows from w on that go together. */
static size_t batch_at(const job *j, size_t w) {
    size_t len = window_len(j, w), b = 1;
    while (w + b < j->n_win && (b + 1) * len <= BATCH_TOKENS && window_len(j, w + b) == len)
        b++;
    return b;
}

static sd_status keep_input(void *ctx, sd_site *s, sd_err *err) {
    (void)err;
    const job *j = ctx;
    memcpy(j->x[s->layer], s->x, s->n * sizeof *s->x);
    return SD_OK;
}

static sd_status base_pass(job *j, size_t w, size_t b, sd_err *err) {
    size_t n = 0, len = window_len(j, w);
    for (int l = 0; l < j->cfg->n_layer; l++)
        if (j->layer[l])
            j->hooks[n++] = (sd_hook){SD_POINT_RESID_PRE, l, keep_input, j};
    sd_forward_opts o = {.run = j->run, .hooks = j->hooks, .n_hooks = n};
    memcpy(j->targets_ids, j->ids + w * j->ctx + 1, b * len * sizeof *j->targets_ids);
    SD_TRY(sd_forward_nll(j->m, j->ids + w * j->ctx, j->targets_ids, (int)b, (int)len, &o, j->nll0,
                          err));
    for (size_t i = 0; i < b * len; i++) {
        if (!isfinite(j->nll0[i]))
            return sd_fail(err, SD_ENUMERIC, "non-finite loss in window %zu", w + i / len);
        j->base += j->nll0[i];
        j->count[w + i / len] += 1;
    }
    j->scored += (double)(b * len);
    return SD_OK;
}

static sd_status ablated_pass(job *j, size_t k, size_t w, size_t b, sd_err *err) {
    const sd_ablate_target *t = &j->targets[k];
    sd_hook h[3];
    size_t len = window_len(j, w), n = hooks_of(&j->edits[k], h);
    sd_forward_opts o = {
        .run = j->run, .hooks = h, .n_hooks = n, .start = j->x[t->layer], .start_layer = t->layer};
    SD_TRY(sd_forward_nll(j->m, j->ids + w * j->ctx, j->targets_ids, (int)b, (int)len, &o, j->nll1,
                          err));
    for (size_t i = 0; i < b * len; i++) {
        double d = j->nll1[i] - j->nll0[i];
        if (!isfinite(d))
            return sd_fail(err, SD_ENUMERIC, "layer %d without its %s: non-finite loss", t->layer,
                           names[t->what]);
        j->delta[k * j->n_win + w + i / len] += d;
    }
    return SD_OK;
}

/* ---- means over the text
 * -------------------------------------------------------------------------- */

static sd_status add_mean(void *ctx, sd_site *s, sd_err *err) {
    (void)err;
    job *j = ctx;
    means *m = &j->means[s->layer];
    size_t width = 1;
    for (int i = 2; i < s->ndim; i++)
        width *= (size_t)s->shape[i];
    double *to = s->point == SD_POINT_Z ? m->z : s->point == SD_POINT_ATTN_OUT ? m->attn : m->mlp;
    for (size_t r = 0; r < s->n / width; r++)
        for (size_t c = 0; c < width; c++)
            to[c] += (double)s->x[r * width + c];
    if (s->point == SD_POINT_Z)
        m->rows += (double)(s->n / width);
    return SD_OK;
}

static sd_status find_means(job *j, sd_err *err) {
    size_t d = (size_t)j->cfg->d_model, n = 0;
    for (int l = 0; l < j->cfg->n_layer; l++) {
        const sd_layer_cfg *lc = &j->cfg->layer[l];
        means *m = &j->means[l];
        if (!j->layer[l])
            continue;
        m->z = sd_alloc((size_t)lc->n_head * (size_t)lc->d_v, sizeof *m->z, err);
        m->attn = sd_alloc(d, sizeof *m->attn, err);
        m->mlp = sd_alloc(d, sizeof *m->mlp, err);
        if (!m->z || !m->attn || !m->mlp)
            return SD_ENOMEM;
        j->hooks[n++] = (sd_hook){SD_POINT_Z, l, add_mean, j};
        j->hooks[n++] = (sd_hook){SD_POINT_ATTN_OUT, l, add_mean, j};
        j->hooks[n++] = (sd_hook){SD_POINT_MLP_OUT, l, add_mean, j};
    }
    for (size_t w = 0, b; w < j->n_win; w += b) {
        b = batch_at(j, w);
        sd_forward_opts o = {.run = j->run, .hooks = j->hooks, .n_hooks = n};
        SD_TRY(sd_check_cancel(err));
        SD_TRY(sd_forward(j->m, j->ids + w * j->ctx, (int)b, (int)window_len(j, w), &o, NULL, NULL,
                          err));
    }
    for (int l = 0; l < j->cfg->n_layer; l++) {
        means *m = &j->means[l];
        size_t hz = (size_t)j->cfg->layer[l].n_head * (size_t)j->cfg->layer[l].d_v;
        for (size_t c = 0; j->layer[l] && c < hz; c++)
            m->z[c] /= m->rows;
        for (size_t c = 0; j->layer[l] && c < d; c++) {
            m->attn[c] /= m->rows;
            m->mlp[c] /= m->rows;
        }
    }
    return SD_OK;
}

/* ---- the whole
 * ------------------------------------------------------------------------------------- */

static sd_status check_target(const sd_config *c, const sd_ablate_target *t, sd_err *err) {
    char why[64];
    if (t->layer < 0 || t->layer >= c->n_layer)
        return sd_fail(err, SD_EINVAL, "expected layer 0..%d, got %d", c->n_layer - 1, t->layer);
    const sd_layer_cfg *lc = &c->layer[t->layer];
    if (t->head >= lc->n_head)
        return sd_fail(err, SD_EINVAL, "expected head 0..%d, got %d: layer %d has %d heads",
                       lc->n_head - 1, t->head, t->layer, lc->n_head);
    if (!on_scores(t->what))
        return SD_OK;
    const char *no = sd_attn_no_scores(lc, why);
    if (no)
        return sd_fail(err, SD_EINVAL, "layer %d: no %s to take out: %s", t->layer, names[t->what],
                       no);
    sd_attn_algebra a = sd_attn_algebra_of(lc);
    if (t->what == SD_ABLATE_PLANE && a != SD_SCORES_SKEW && a != SD_SCORES_PRODUCT)
        return sd_fail(err, SD_EINVAL, "layer %d (%s): planes are those of queries and keys",
                       t->layer, lc->kind);
    if (t->what == SD_ABLATE_PLANE && (t->head < 0 || !t->a || !t->b))
        return sd_fail(err, SD_EINVAL, "layer %d: a plane belongs to one head", t->layer);
    return SD_OK;
}

static sd_status job_alloc(job *j, sd_err *err) {
    size_t L = (size_t)j->cfg->n_layer, rows = j->ctx > BATCH_TOKENS ? j->ctx : BATCH_TOKENS, cells;
    if (!sd_mul_size(j->n_targets, j->n_win, &cells))
        return sd_fail(err, SD_ENOMEM, "%zu ablations of %zu windows", j->n_targets, j->n_win);
    j->layer = sd_alloc(L, sizeof *j->layer, err);
    j->means = sd_alloc(L, sizeof *j->means, err);
    j->x = sd_alloc(L, sizeof *j->x, err);
    j->hooks = sd_alloc(3 * L, sizeof *j->hooks, err);
    j->edits = sd_alloc(j->n_targets, sizeof *j->edits, err);
    j->delta = sd_alloc(cells, sizeof *j->delta, err);
    j->count = sd_alloc(j->n_win, sizeof *j->count, err);
    j->targets_ids = sd_alloc(rows, sizeof *j->targets_ids, err);
    j->nll0 = sd_alloc(rows, sizeof *j->nll0, err);
    j->nll1 = sd_alloc(rows, sizeof *j->nll1, err);
    if (!j->layer || !j->means || !j->x || !j->hooks || !j->edits || !j->delta || !j->count ||
        !j->targets_ids || !j->nll0 || !j->nll1)
        return SD_ENOMEM;
    for (size_t k = 0; k < j->n_targets; k++) {
        j->edits[k] = (edit){.t = &j->targets[k], .j = j};
        j->layer[j->targets[k].layer] = true;
    }
    for (size_t l = 0; l < L; l++)
        if (j->layer[l] &&
            !(j->x[l] = sd_alloc_raw(rows * (size_t)j->cfg->d_model, sizeof **j->x, err)))
            return SD_ENOMEM;
    return SD_OK;
}

static void job_free(job *j) {
    for (int l = 0; l < j->cfg->n_layer; l++) {
        if (j->means) {
            sd_free(j->means[l].z);
            sd_free(j->means[l].attn);
            sd_free(j->means[l].mlp);
        }
        if (j->x)
            sd_free(j->x[l]);
    }
    for (size_t k = 0; j->edits && k < j->n_targets; k++) {
        sd_free((float *)j->edits[k].q);
        sd_free((float *)j->edits[k].k);
    }
    sd_free(j->layer);
    sd_free(j->means);
    sd_free(j->x);
    sd_free(j->hooks);
    sd_free(j->edits);
    sd_free(j->delta);
    sd_free(j->count);
    sd_free(j->targets_ids);
    sd_free(j->nll0);
    sd_free(j->nll1);
}

static sd_status job_run(job *j, sd_err *err) {
    if (j->mean)
        SD_TRY(find_means(j, err));
    double done = 0, all = (double)j->n_win * (double)j->n_targets;
    for (size_t w = 0, b; w < j->n_win; w += b) {
        b = batch_at(j, w);
        SD_TRY(base_pass(j, w, b, err));
        for (size_t k = 0; k < j->n_targets; k++, done += (double)b) {
            SD_TRY(sd_check_cancel(err));
            sd_run_progress(j->run, "ablate", done, all);
            SD_TRY(ablated_pass(j, k, w, b, err));
        }
    }
    sd_run_progress(j->run, "ablate", all, all);
    return SD_OK;
}

static sd_status summarise(const job *j, uint64_t seed, sd_ablation *out, sd_err *err) {
    for (size_t k = 0; k < j->n_targets; k++) {
        const edit *e = &j->edits[k];
        const double *d = j->delta + k * j->n_win;
        sd_ablation *o = &out[k];
        *o = (sd_ablation){.lo = NAN, .hi = NAN, .score_rms = NAN};
        for (size_t w = 0; w < j->n_win; w++)
            o->delta += d[w];
        o->delta /= j->scored;
        if (e->count > 0)
            o->score_rms = sqrt(e->sum / e->count);
        if (j->n_win > 1)
            SD_TRY(sd_spectral_bootstrap(j->n_win, d, j->count, seed, &o->lo, &o->hi, err));
    }
    return SD_OK;
}

sd_status sd_ablate(sd_model *m, const int32_t *ids, size_t n, const sd_ablate_target *targets,
                    size_t n_targets, const sd_ablate_opts *opts, const sd_run *run,
                    sd_ablation *out, double *base, int64_t *tokens, sd_err *err) {
    sd_ablate_opts o = opts ? *opts : (sd_ablate_opts){0};
    const sd_config *c = sd_model_config(m);
    if (!c->causal)
        return sd_fail(err, SD_EINVAL, "%s is an encoder: ablate needs a next-token loss",
                       sd_model_name(m));
    if (n < 2)
        return sd_fail(err, SD_EINVAL, "ablate needs at least 2 tokens, got %zu", n);
    for (size_t k = 0; k < n_targets; k++)
        SD_TRY(check_target(c, &targets[k], err));
    if (c->pos == SD_POS_LEARNED && o.ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "window of %d tokens: the position table of %s holds %d",
                       o.ctx, sd_model_name(m), c->n_pos);
    job j = {.m = m,
             .cfg = c,
             .ids = ids,
             .n = n,
             .ctx = (size_t)(o.ctx > 0 ? o.ctx : sd_calib_ctx(c)),
             .targets = targets,
             .n_targets = n_targets,
             .run = run,
             .mean = o.mean};
    j.n_win = (n - 1 + j.ctx - 1) / j.ctx;
    if (o.max_seqs > 0 && (size_t)o.max_seqs < j.n_win)
        j.n_win = (size_t)o.max_seqs;
    sd_status st = job_alloc(&j, err);
    if (st == SD_OK)
        st = job_run(&j, err);
    if (st == SD_OK)
        st = summarise(&j, o.seed, out, err);
    if (st == SD_OK && base)
        *base = j.base / j.scored;
    if (st == SD_OK && tokens)
        *tokens = (int64_t)j.scored;
    job_free(&j);
    return st;
}

/* ---- the table
 * -------------------------------------------------------------------------------------- */

static bool by_head(sd_ablate_what w) {
    return w == SD_ABLATE_HEAD || w == SD_ABLATE_ROUTING || w == SD_ABLATE_FILTERING;
}

static sd_status list_targets(const sd_config *c, sd_ablate_what what, const bool *layers,
                              const char *heads, sd_ablate_target *t, size_t *n, sd_err *err) {
    *n = 0;
    for (int l = 0; l < c->n_layer; l++) {
        int h = c->layer[l].n_head;
        bool *mask = NULL;
        if (!layers[l])
            continue;
        if (!by_head(what)) {
            t[(*n)++] = (sd_ablate_target){.what = what, .layer = l, .head = -1};
            continue;
        }
        if (!(mask = sd_alloc((size_t)h, sizeof *mask, err)))
            return SD_ENOMEM;
        sd_status st = sd_parse_ranges(heads ? heads : "all", "head", h, mask, err);
        for (int i = 0; st == SD_OK && i < h; i++)
            if (mask[i])
                t[(*n)++] = (sd_ablate_target){.what = what, .layer = l, .head = i};
        sd_free(mask);
        SD_TRY(st);
    }
    return SD_OK;
}

static sd_status new_table(sd_model *m, sd_ablate_what what, const sd_ablate_opts *o, double base,
                           int64_t tokens, sd_table **out, sd_err *err) {
    static const struct {
        const char *name, *doc;
        sd_col_kind kind;
    } cols[] = {{"layer", "layer, from 0", SD_COL_INT},
                {"head", "head, from 0", SD_COL_INT},
                {"delta", "loss without the part minus the loss as it is, nats a token",
                 SD_COL_NUM},
                {"delta_lo", "lower end of its 95% interval over windows", SD_COL_NUM},
                {"delta_hi", "upper end of its 95% interval over windows", SD_COL_NUM},
                {"score_rms", "root mean square of the change of the scores", SD_COL_NUM},
                {"status", "ok, or why there is no value", SD_COL_STR}};
    sd_table *t = sd_table_new("ablate", err);
    sd_status st = t ? SD_OK : SD_ENOMEM;
    *out = t;
    for (size_t i = 0; st == SD_OK && i < sizeof cols / sizeof *cols; i++)
        if ((i != 1 || by_head(what)) && (i != 5 || on_scores(what)))
            st = sd_table_add_column(t, cols[i].name, cols[i].kind, cols[i].doc, i == 6, NULL, err);
    SD_TRY(st);
    SD_TRY(sd_table_heading(t, err,
                            "%s: %s taken out%s, %lld tokens scored; loss as it is %.4f nats",
                            sd_model_name(m), names[what],
                            on_scores(what) || what == SD_ABLATE_LAYER ? ""
                            : o->mean ? " (its mean over the text instead)"
                                      : " (zero instead)",
                            (long long)tokens, base));
    SD_TRY(sd_table_heading(t, err,
                            "95%% interval by 10000 bootstrap draws over windows, seed %llu",
                            (unsigned long long)o->seed));
    SD_TRY(sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_TRY(sd_table_meta_str(t, "what", names[what], err));
    SD_TRY(sd_table_meta_num(t, "nll", base, err));
    return sd_table_meta_num(t, "tokens", (double)tokens, err);
}

static sd_status add_row(sd_table *t, const sd_ablate_target *g, const sd_ablation *a,
                         const char *status, sd_err *err) {
    int row;
    SD_TRY(sd_table_add_row(t, &row, err));
    sd_table_set_int(t, row, "layer", g->layer);
    if (by_head(g->what))
        sd_table_set_int(t, row, "head", g->head);
    SD_TRY(sd_table_set_str(t, row, "status", status ? status : "ok", err));
    if (!a)
        return SD_OK;
    sd_table_set_num(t, row, "delta", a->delta);
    if (!isnan(a->lo)) {
        sd_table_set_num(t, row, "delta_lo", a->lo);
        sd_table_set_num(t, row, "delta_hi", a->hi);
    }
    if (on_scores(g->what) && !isnan(a->score_rms))
        sd_table_set_num(t, row, "score_rms", a->score_rms);
    return SD_OK;
}

sd_status sd_ablate_table(sd_model *m, const int32_t *ids, size_t n, sd_ablate_what what,
                          const char *layers, const char *heads, const sd_ablate_opts *opts,
                          const sd_run *run, sd_table **out, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    sd_ablate_opts o = opts ? *opts : (sd_ablate_opts){0};
    bool *mask = NULL;
    size_t cap = 0, all = 0, good = 0;
    double base = 0;
    int64_t tokens = 0;
    sd_table *t = NULL;
    *out = NULL;
    if (what == SD_ABLATE_PLANE)
        return sd_fail(err, SD_EINVAL,
                       "a plane belongs to one head: plane(m, text, layer, head, i)");
    for (int l = 0; l < c->n_layer; l++)
        cap += (size_t)c->layer[l].n_head;
    SD_TRY(sd_spectral_layers(layers, c->n_layer, &mask, err));
    sd_ablate_target *g = sd_alloc(cap, sizeof *g, err), *ok = sd_alloc(cap, sizeof *ok, err);
    sd_ablation *a = sd_alloc(cap, sizeof *a, err);
    sd_status st = g && ok && a ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        st = list_targets(c, what, mask, heads, g, &all, err);
    for (size_t i = 0; i < all && st == SD_OK; i++) {
        char why[64];
        if (!on_scores(what) || !sd_attn_no_scores(&c->layer[g[i].layer], why))
            ok[good++] = g[i];
    }
    if (st == SD_OK && !good)
        st = all ? check_target(c, &g[0], err)
                 : sd_fail(err, SD_EINVAL, "no layer or head is asked for");
    if (st == SD_OK)
        st = sd_ablate(m, ids, n, ok, good, &o, run, a, &base, &tokens, err);
    if (st == SD_OK)
        st = new_table(m, what, &o, base, tokens, &t, err);
    for (size_t i = 0, k = 0; i < all && st == SD_OK; i++) {
        char why[64];
        const char *no = on_scores(what) ? sd_attn_no_scores(&c->layer[g[i].layer], why) : NULL;
        st = add_row(t, &g[i], no ? NULL : &a[k], no, err);
        k += !no;
    }
    if (st == SD_OK)
        *out = t;
    else
        sd_table_unref(t);
    sd_free(mask);
    sd_free(g);
    sd_free(ok);
    sd_free(a);
    return st;
}
