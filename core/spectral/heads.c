/* heads.c: weight level, one row a head: the kernel c·W_Q W_Kᵀ and its Gaussian null (METHOD
 * §1–§4).
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/internal.h"

/* ---- the Gaussian null ----------------------------------------------------------------------- */

typedef struct null_stats {
    size_t rows, d;
    bool product;
    moments v[V_COUNT];
} null_stats;

typedef struct null_job {
    size_t rows, d;
    const rotation *rot;
    unsigned what;
    uint64_t seed;
    double (*draw)[V_COUNT];
} null_job;

static double rope_imag(const double *q, const double *k, size_t rows, size_t ld,
                        const rotation *rot);

static sd_status null_draw(void *ctx, size_t i, int worker, sd_err *err) {
    (void)worker;
    null_job *j = ctx;
    reduced r = {.r = sd_alloc(4 * j->d * j->d + 1, sizeof(double), err)};
    if (!r.r)
        return SD_ENOMEM;
    sd_rng g;
    sd_rng_stream(&g, j->seed, ((uint64_t)j->rows << 20) ^ j->d, i);
    sd_spectral_reduced_gauss(j->rows, j->d, &g, &r);
    sd_spectrum s;
    double *o = j->draw[i];
    for (int c = 0; c < V_COUNT; c++)
        o[c] = NAN;
    // The triangle keeps every inner product of the columns, as far as there are rows.
    if (j->rot && j->rot->n)
        o[V_rope_imag] = rope_imag(r.r, r.r + j->d, 2 * j->d, 2 * j->d, j->rot);
    const rotation *rot = j->rot && j->rot->cs ? j->rot : NULL;
    sd_status st = sd_spectral_spectrum_reduced(&r, rot, j->what, &s, err);
    sd_free(r.r);
    if (st != SD_OK)
        return st;
    sd_spectral_put_spectrum(o, &s, j->what);
    sd_spectrum_free(&s);
    return SD_OK;
}

/* The spectra that a plan's columns need, of the heads or of their null. */
static unsigned spectra(const column_plan *p, bool null) {
    unsigned what = SD_SPEC_R;
    what |= !null || sd_spectral_wants(p, V_max_re, null) ? SD_SPEC_LAMBDA : 0;
    what |= !null || sd_spectral_wants_any(p, V_ranks_f, V_ranks_f_end, null) ? SD_SPEC_F : 0;
    return what | (sd_spectral_wants_any(p, V_ranks_m, V_ranks_m_end, null) ? SD_SPEC_M : 0);
}

static sd_status null_of(const column_plan *plan, const rotation *rot, int draws, uint64_t seed,
                         int threads, null_stats *out, sd_err *err) {
    null_job j = {.rows = out->rows, .d = out->d, .rot = rot, .seed = seed};
    j.what = out->product ? spectra(plan, true) : SD_SPEC_R;
    j.draw = sd_alloc((size_t)draws, sizeof *j.draw, err);
    if (!j.draw)
        return SD_ENOMEM;
    sd_status st = sd_parallel((size_t)draws, threads, null_draw, &j, err);
    for (int i = 0; st == SD_OK && i < draws; i++) // in order: the sum does not depend on threads
        sd_spectral_add_values(out->v, j.draw[i]);
    sd_free(j.draw);
    return st;
}

/* ---- one layer ------------------------------------------------------------------------------- */

typedef struct layer_job {
    int layer, n_head, n_kv;
    size_t rows, d; /* rows of W: D */
    double scale;   /* of the routing's Q side */
    bool skew;      /* the filtering is no kernel of the weights: routing only */
    const rotation *rot;
    const double *wq, *wk; // (D, H·d), (D, Hkv·d)
    const double *bq, *bk; // (H·d), (Hkv·d); NULL = none
    const sd_layer_cfg *cfg;
    const sd_attn_slots *slots; /* in place of wq … bk: factors, bias row last */
    bool bias_in;               /* the main columns have the bias row */
    unsigned what;              /* SD_SPEC_* of a product head */
    struct head_out *out;       // (H)
} layer_job;

typedef struct head_out {
    char status[96];
    bool ok;
    sd_spectrum s;
    double v[V_COUNT];
} head_out;

static double dot_strided(size_t n, const double *a, const double *b, size_t ld) {
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += a[i * ld] * b[i * ld];
    return s;
}

/* METHOD §1: Σ‖Im‖/(Σ‖Re‖ + Σ‖Im‖) over rotary pairs, from inner products of columns. */
static double rope_imag(const double *q, const double *k, size_t rows, size_t ld,
                        const rotation *rot) {
    double re = 0, im = 0;
    for (size_t t = 0; t < rot->n; t++) {
        const double *a = q + rot->a[t], *c = q + rot->b[t], *b = k + rot->a[t], *e = k + rot->b[t];
        double aa = dot_strided(rows, a, a, ld), cc = dot_strided(rows, c, c, ld);
        double bb = dot_strided(rows, b, b, ld), ee = dot_strided(rows, e, e, ld);
        double cross = dot_strided(rows, a, c, ld) * dot_strided(rows, b, e, ld);
        re += sqrt(fmax(0, aa * bb + cc * ee + 2 * cross));
        im += sqrt(fmax(0, cc * bb + aa * ee - 2 * cross));
    }
    return re + im > 0 ? im / (re + im) : 0;
}

/* Copies a head's columns beside the other factor's, times s; false when a value is not finite.
 * A row's piece is short and each lies in another page, where the processor does not look ahead. */
static bool gather(const double *w, size_t rows, size_t ld, size_t d, double s, double *u) {
    enum { LANES = 8, AHEAD = 12 };
    typedef double lanes __attribute__((vector_size(64), aligned(8), may_alias));
    lanes bad = {0}; // 0 for every finite value, else NaN
    double rest = 0;
    for (size_t i = 0; i < rows; i++) {
        const double *src = w + i * ld, *next = src + (i + AHEAD < rows ? AHEAD * ld : 0);
        double *dst = u + i * 2 * d;
        size_t e = 0;
        for (; e + LANES <= d; e += LANES) {
            lanes x = *(const lanes *)(src + e);
            __builtin_prefetch(next + e);
            *(lanes *)(dst + e) = s * x;
            bad += x * 0;
        }
        for (; e < d; e++) {
            dst[e] = s * src[e];
            rest += src[e] * 0;
        }
    }
    for (size_t k = 0; k < LANES; k++)
        rest += bad[k];
    return rest == 0;
}

static void say_bad(head_out *o, const char *what, const double *w, size_t rows, size_t ld,
                    size_t d) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < d; c++)
            if (!isfinite(w[r * ld + c])) {
                snprintf(o->status, sizeof o->status, "non-finite %s row %zu col %zu", what, r, c);
                return;
            }
}

/* A numerical failure marks its head; the others go on. */
static sd_status settle(head_out *o, sd_status st, sd_err *err) {
    if (st == SD_ENUMERIC) {
        snprintf(o->status, sizeof o->status, "%.90s", err ? err->text : "numerical failure");
        sd_err_clear(err);
        return SD_OK;
    }
    o->ok = st == SD_OK;
    return st;
}

/* [Q K Q_F K_F] of a head whose scores have factors of their own, all D + 1 rows, and whether the
 * last is not zero. */
static sd_status factor_rows(const layer_job *j, size_t h, double **out, bool *biased,
                             sd_err *err) {
    const sd_attn_kind *kind = sd_attn_of(j->cfg);
    size_t n = j->rows + 1, d = j->d, df = sd_attn_term_width(j->cfg, &kind->filtering);
    size_t w = 2 * (d + df);
    double *u = sd_alloc_raw(n * w + 1, sizeof *u, err), *x = sd_alloc(n * w + 1, sizeof *x, err);
    if (!u || !x) {
        sd_free(u);
        sd_free(x);
        return SD_ENOMEM;
    }
    double *part[4] = {x, x + n * d, x + 2 * n * d, x + 2 * n * d + n * df};
    const size_t width[4] = {d, d, df, df};
    const double scale[4] = {j->scale, 1, sd_attn_term_scale(j->cfg, &kind->filtering), 1};
    sd_attn_term_factors(j->cfg, &kind->routing, j->slots, (int)h, part[0], part[1]);
    sd_attn_term_factors(j->cfg, &kind->filtering, j->slots, (int)h, part[2], part[3]);
    for (size_t i = 0; i < n; i++) {
        double *to = u + i * w;
        for (size_t p = 0; p < 4; p++)
            for (size_t c = 0; c < width[p]; c++)
                *to++ = scale[p] * part[p][i * width[p] + c];
    }
    *biased = false;
    for (size_t c = 0; c < w; c++)
        *biased |= u[(n - 1) * w + c] != 0;
    sd_free(x);
    *out = u;
    return SD_OK;
}

static sd_status factor_spectrum(const layer_job *j, size_t rows, const double *u, unsigned what,
                                 sd_spectrum *s, sd_err *err) {
    const sd_attn_kind *kind = sd_attn_of(j->cfg);
    reduced r;
    SD_TRY(sd_spectral_reduce_apart(rows, j->d, sd_attn_term_width(j->cfg, &kind->filtering), u, 0,
                                    &r, err));
    sd_status st = sd_spectral_spectrum_reduced(&r, NULL, what, s, err);
    sd_free(r.r);
    return st;
}

/* Truncated heads and key potentials. δ of a truncated head is no kernel of the weights. */
static sd_status factor_job(void *ctx, size_t h, int worker, sd_err *err) {
    (void)worker;
    layer_job *j = ctx;
    head_out *o = &j->out[h];
    double *u = NULL;
    bool biased, key = sd_attn_algebra_of(j->cfg) == SD_SCORES_KEY;
    unsigned what = j->skew ? SD_SPEC_R : j->what;
    for (int c = 0; c < V_COUNT; c++)
        o->v[c] = NAN;
    SD_TRY(factor_rows(j, h, &u, &biased, err));
    // The 1 of a potential is in the bias row: without it there is no kernel.
    size_t rows = j->rows + (biased && (j->bias_in || key));
    sd_status st = factor_spectrum(j, rows, u, what, &o->s, err);
    if (st == SD_OK) {
        sd_spectral_put_spectrum(o->v, &o->s, what);
        if (j->skew)
            sd_spectral_routing_only(o->v, &o->s);
    }
    if (st == SD_OK && biased && rows == j->rows) {
        sd_spectrum with;
        st = factor_spectrum(j, rows + 1, u, SD_SPEC_R, &with, err);
        if (st == SD_OK) {
            o->v[V_pr_bias] = with.rank.pr > 0 ? with.rank.pr : NAN;
            o->v[V_dir_frac_bias] = j->skew ? NAN : with.dir_frac;
            sd_spectrum_free(&with);
        } else {
            sd_spectrum_free(&o->s);
        }
    }
    sd_free(u);
    return settle(o, st, err);
}

static sd_status head_job(void *ctx, size_t h, int worker, sd_err *err) {
    (void)worker;
    layer_job *j = ctx;
    head_out *o = &j->out[h];
    size_t d = j->d, g = h / (size_t)(j->n_head / j->n_kv), rows = j->rows, w = 2 * d;
    size_t ldq = (size_t)j->n_head * d, ldk = (size_t)j->n_kv * d;
    for (int c = 0; c < V_COUNT; c++)
        o->v[c] = NAN;
    const double *wq = j->wq + h * d, *wk = j->wk + g * d;
    double scale = j->scale;
    double *u = sd_alloc_raw((rows + 1) * w, sizeof *u, err); // [W_Q W_K], then the bias row
    if (!u)
        return SD_ENOMEM;
    if (!gather(wq, rows, ldq, d, scale, u)) {
        say_bad(o, "W_Q", wq, rows, ldq, d);
        sd_free(u);
        return SD_OK;
    }
    if (!gather(wk, rows, ldk, d, 1, u + d)) {
        say_bad(o, "W_K", wk, rows, ldk, d);
        sd_free(u);
        return SD_OK;
    }
    bool biased = false;
    if (j->bq && j->bk) {
        const double *bq = j->bq + h * d, *bk = j->bk + g * d;
        if (!gather(bq, 1, d, d, scale, u + rows * w) ||
            !gather(bk, 1, d, d, 1, u + rows * w + d)) {
            say_bad(o, "b_Q", bq, 1, d, d);
            say_bad(o, "b_K", bk, 1, d, d);
            sd_free(u);
            return SD_OK;
        }
        for (size_t e = 0; e < w; e++)
            biased |= u[rows * w + e] != 0;
    }
    reduced red;
    sd_spectrum with = {0};
    unsigned what = j->skew ? SD_SPEC_R : j->what;
    const rotation *rot = j->rot && j->rot->cs ? j->rot : NULL;
    sd_status st = sd_spectral_reduce_u(rows + (j->bias_in && biased), d, u, &red, err);
    if (st == SD_OK) {
        st = sd_spectral_spectrum_reduced(&red, rot, what, &o->s, err);
        sd_free(red.r);
    }
    if (st == SD_OK && biased && !j->bias_in) {
        st = sd_spectral_reduce_u(rows + 1, d, u, &red, err);
        if (st == SD_OK) {
            st = sd_spectral_spectrum_reduced(&red, rot, SD_SPEC_R, &with, err);
            sd_free(red.r);
        }
        if (st == SD_OK) {
            if (with.rank.pr > 0)
                o->v[V_pr_bias] = with.rank.pr;
            if (!j->skew)
                o->v[V_dir_frac_bias] = with.dir_frac;
            sd_spectrum_free(&with);
        } else {
            sd_spectrum_free(&o->s);
        }
    }
    if (st == SD_OK && j->rot)
        o->v[V_rope_imag] = rope_imag(u, u + d, rows, w, j->rot);
    if (st == SD_OK) {
        sd_spectral_put_spectrum(o->v, &o->s, what);
        if (j->skew) // −D is no kernel of the weights
            sd_spectral_routing_only(o->v, &o->s);
    }
    sd_free(u);
    return settle(o, st, err);
}

static sd_status put_row(sd_table *t, const layer_job *j, int h, const null_stats *nul,
                         sd_err *err) {
    head_out *o = &j->out[h];
    int row;
    SD_TRY(sd_table_add_row(t, &row, err));
    sd_table_set_int(t, row, "layer", j->layer);
    sd_table_set_int(t, row, "head", h);
    if (sd_table_find_col(t, "group") >= 0)
        sd_table_set_int(t, row, "group", h / (j->n_head / j->n_kv));
    SD_TRY(sd_table_set_str(t, row, "status", o->ok ? "ok" : o->status, err));
    if (!o->ok)
        return SD_OK;
    sd_spectrum *s = &o->s;
    sd_spectral_set_values(t, row, NULL, o->v);
    if (nul)
        sd_spectral_set_null(t, row, o->v, nul->v);
    SD_TRY(sd_table_set_vec(t, row, "planes", s->sigma, s->n_planes, err));
    if (j->skew)
        return SD_OK;
    SD_TRY(sd_table_set_vec(t, row, "f_lambda", s->f_lambda, s->n_f, err));
    SD_TRY(sd_table_set_vec(t, row, "lambda_re", s->lambda_re, s->n_lambda, err));
    return sd_table_set_vec(t, row, "lambda_im", s->lambda_im, s->n_lambda, err);
}

/* Appends the rows of one layer. */
static sd_status run_layer(sd_table *t, layer_job *j, const null_stats *nul, int threads,
                           sd_err *err) {
    j->out = sd_alloc((size_t)j->n_head, sizeof *j->out, err);
    if (!j->out)
        return SD_ENOMEM;
    int blas = sd_blas_threads(1); // the loop over heads has the cores
    sd_status st =
        sd_parallel((size_t)j->n_head, threads, j->slots ? factor_job : head_job, j, err);
    sd_blas_threads(blas);
    for (int h = 0; st == SD_OK && h < j->n_head; h++)
        st = put_row(t, j, h, nul, err);
    for (int h = 0; h < j->n_head; h++)
        sd_spectrum_free(&j->out[h].s);
    sd_free(j->out);
    j->out = NULL;
    return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static sd_status make_table(const column_plan *p, bool grouped, sd_table **out, sd_err *err) {
    *out = sd_table_new("heads", err);
    sd_status st = *out ? sd_spectral_add_columns(*out, p, grouped, err) : SD_ENOMEM;
    if (st != SD_OK) {
        sd_table_unref(*out);
        *out = NULL;
    }
    return st;
}

sd_status sd_heads_table(sd_table **out, sd_err *err) {
    return make_table(&(column_plan){.in = SD_IN_HEADS}, true, out, err);
}

sd_status sd_heads_layer(sd_table *t, int layer, size_t d_model, int n_head, int n_kv_head,
                         size_t d, const double *wq, const double *wk, double scale,
                         const sd_run *run, sd_err *err) {
    if (n_head < 1 || n_kv_head < 1 || n_head % n_kv_head)
        return sd_fail(err, SD_EINVAL, "%d query heads cannot share %d key heads", n_head,
                       n_kv_head);
    layer_job j = {.layer = layer,
                   .n_head = n_head,
                   .n_kv = n_kv_head,
                   .rows = d_model,
                   .d = d,
                   .scale = scale,
                   .what = SD_SPEC_ALL,
                   .wq = wq,
                   .wk = wk};
    return run_layer(t, &j, NULL, sd_run_threads(run), err);
}

/* ---- a model --------------------------------------------------------------------------------- */

typedef struct weights {
    sd_tensor *wq, *wk, *bq, *bk;
    sd_tensor *part[SD_SLOT_COUNT], *fl; // (D+1, n) augmented factors
    sd_attn_slots slots;
} weights;

static void weights_free(weights *w) {
    sd_tensor_free(w->wq);
    sd_tensor_free(w->wk);
    sd_tensor_free(w->bq);
    sd_tensor_free(w->bk);
    for (int i = 0; i < SD_SLOT_COUNT; i++)
        sd_tensor_free(w->part[i]);
    sd_tensor_free(w->fl);
    *w = (weights){0};
}

static sd_status get_if(sd_model *m, int layer, sd_role r, sd_tensor **out, sd_err *err) {
    *out = NULL;
    return sd_model_has(m, layer, r) ? sd_model_get(m, layer, r, SD_F64, out, err) : SD_OK;
}

/* The norm whose output this layer's attention reads: its own, or (post-norm) the preceding one. */
static void norm_roles(const sd_config *c, int layer, int *at, sd_role *g, sd_role *b) {
    *at = layer;
    *g = SD_ROLE_NORM1_G;
    *b = SD_ROLE_NORM1_B;
    if (c->block == SD_BLOCK_POST) {
        *at = layer - 1;
        *g = layer ? SD_ROLE_NORM2_G : SD_ROLE_EMBED_NORM_G;
        *b = layer ? SD_ROLE_NORM2_B : SD_ROLE_EMBED_NORM_B;
        if (!layer)
            *at = 0;
    }
}

/* x (rows, cols) ← diag(γ)x, centred for LayerNorm; b (cols, NULL without β) ← b + βx (METHOD §1).
 */
static sd_status fold_rows(size_t rows, size_t cols, double *x, double *b, const double *gamma,
                           const double *beta, bool centre, sd_err *err) {
    for (size_t i = 0; b && beta && i < rows; i++)
        for (size_t c = 0; c < cols; c++)
            b[c] += beta[i] * x[i * cols + c];
    for (size_t i = 0; gamma && i < rows; i++)
        for (size_t c = 0; c < cols; c++)
            x[i * cols + c] *= gamma[i];
    if (!centre)
        return SD_OK;
    double *mean = sd_alloc(cols + 1, sizeof *mean, err);
    if (!mean)
        return SD_ENOMEM;
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < cols; c++)
            mean[c] += x[i * cols + c];
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < cols; c++)
            x[i * cols + c] -= mean[c] / (double)rows;
    sd_free(mean);
    return SD_OK;
}

/* A weight with its bias beside it; *b is created when β adds one. */
static sd_status fold(sd_tensor *w, sd_tensor **b, const sd_tensor *gamma, const sd_tensor *beta,
                      bool centre, sd_err *err) {
    if (beta && !*b)
        SD_TRY(sd_tensor_new(SD_F64, 1, &w->shape[1], b, err));
    return fold_rows((size_t)w->shape[0], (size_t)w->shape[1], w->data, *b ? (*b)->data : NULL,
                     gamma ? gamma->data : NULL, beta ? beta->data : NULL, centre, err);
}

/* Are the scores of queries and keys, not of factors of their own? */
static bool by_queries(const sd_layer_cfg *lc) {
    const sd_attn_kind *k = sd_attn_of(lc);
    return k && k->routing.q == SD_SLOT_Q && k->routing.k == SD_SLOT_K;
}

/* The augmented weights behind the slots of both terms. */
static sd_status load_factors(sd_model *m, int layer, const sd_tensor *gamma, const sd_tensor *beta,
                              bool centre, weights *w, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    const sd_layer_cfg *lc = &c->layer[layer];
    const sd_attn_kind *k = sd_attn_of(lc);
    size_t dm = (size_t)c->d_model;
    w->slots = (sd_attn_slots){.rows = dm + 1, .weights = true, .d_model = dm};
    const sd_slot slots[4] = {k->routing.q, k->routing.k, k->filtering.q, k->filtering.k};
    for (int i = 0; i < 4; i++) {
        const sd_attn_part *p = slots[i] < SD_SLOT_COUNT ? sd_attn_part_of(lc, slots[i]) : NULL;
        if (!p || !p->augmented || w->part[slots[i]])
            continue;
        sd_tensor **t = &w->part[slots[i]];
        SD_TRY(sd_model_get(m, layer, p->weight, SD_F64, t, err));
        size_t cols = (size_t)(*t)->shape[1];
        double *x = (*t)->data;
        if (gamma || beta || centre)
            SD_TRY(fold_rows(dm, cols, x, x + dm * cols, gamma ? gamma->data : NULL,
                             beta ? beta->data : NULL, centre, err));
        w->slots.at[slots[i]].f64 = x;
        w->slots.at[slots[i]].ld = cols;
    }
    SD_TRY(get_if(m, layer, SD_ROLE_FL, &w->fl, err));
    w->slots.fl = w->fl ? w->fl->data : NULL;
    return SD_OK;
}

static sd_status load(sd_model *m, int layer, bool folded, weights *w, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    sd_tensor *gamma = NULL, *beta = NULL;
    *w = (weights){0};
    bool centre = folded && c->norm == SD_NORM_LAYER;
    if (folded && c->norm != SD_NORM_NONE) {
        int at;
        sd_role g, b;
        norm_roles(c, layer, &at, &g, &b);
        SD_GO(st, out, get_if(m, at, g, &gamma, err));
        SD_GO(st, out, get_if(m, at, b, &beta, err));
    }
    if (!by_queries(&c->layer[layer])) {
        st = load_factors(m, layer, gamma, beta, centre, w, err);
        goto out;
    }
    SD_GO(st, out, sd_model_get(m, layer, SD_ROLE_WQ, SD_F64, &w->wq, err));
    SD_GO(st, out, sd_model_get(m, layer, SD_ROLE_WK, SD_F64, &w->wk, err));
    SD_GO(st, out, get_if(m, layer, SD_ROLE_BQ, &w->bq, err));
    SD_GO(st, out, get_if(m, layer, SD_ROLE_BK, &w->bk, err));
    if (folded && c->norm != SD_NORM_NONE) {
        SD_GO(st, out, fold(w->wq, &w->bq, gamma, beta, centre, err));
        SD_GO(st, out, fold(w->wk, &w->bk, gamma, beta, centre, err));
    }
    // One of the two biases alone still makes the kernel's bias row.
    if (w->bq && !w->bk)
        st = sd_tensor_new(SD_F64, 1, &w->wk->shape[1], &w->bk, err);
    else if (w->bk && !w->bq)
        st = sd_tensor_new(SD_F64, 1, &w->wq->shape[1], &w->bq, err);
out:
    sd_tensor_free(gamma);
    sd_tensor_free(beta);
    if (st != SD_OK)
        weights_free(w);
    return st;
}

static bool nonzero(const sd_tensor *t) {
    const double *x = t ? t->data : NULL;
    for (int64_t i = 0; t && i < t->shape[0]; i++)
        if (x[i] != 0)
            return true;
    return false;
}

/* Does any analysed layer have a bias row (own, or by folding β)? Decides the columns. */
static sd_status any_bias(sd_model *m, const bool *mask, bool folded, bool *out, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    *out = false;
    for (int l = 0; l < c->n_layer && !*out; l++) {
        if (!mask[l])
            continue;
        const sd_layer_cfg *lc = &c->layer[l];
        for (int s = 0; s < SD_SLOT_COUNT && !*out && !by_queries(lc); s++) {
            const sd_attn_part *p = sd_attn_part_of(lc, (sd_slot)s);
            bool factor = s == SD_SLOT_A || s == SD_SLOT_B || s == SD_SLOT_F;
            sd_tensor *t = NULL;
            if (!factor || !p || !p->augmented)
                continue;
            SD_TRY(sd_model_get(m, l, p->weight, SD_F64, &t, err));
            const double *x = t->data;
            int64_t cols = t->shape[1];
            for (int64_t i = 0; i < cols; i++)
                *out |= x[(int64_t)c->d_model * cols + i] != 0;
            sd_tensor_free(t);
        }
        sd_role r[3] = {SD_ROLE_BQ, SD_ROLE_BK, SD_ROLE_NORM1_B}, g;
        int at[3] = {l, l, l};
        norm_roles(c, l, &at[2], &g, &r[2]);
        int n = folded && c->norm == SD_NORM_LAYER ? 3 : 2;
        for (int i = 0; i < n && !*out; i++) {
            sd_tensor *t = NULL;
            SD_TRY(get_if(m, at[i], r[i], &t, err));
            *out = nonzero(t);
            sd_tensor_free(t);
        }
    }
    return SD_OK;
}

static sd_status headings(sd_table *t, sd_model *m, const sd_heads_opts *o, int draws, bool biased,
                          bool grouped, bool only_sd, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    const char *norm = "no norm to fold";
    if (c->norm != SD_NORM_NONE)
        norm = !o->fold_norm              ? "norm not folded"
               : c->norm == SD_NORM_LAYER ? "layer norm folded and centred"
                                          : "RMS norm folded (never centred)";
    const char *bias = !biased   ? "no biases"
                       : o->bias ? "biases in"
                                 : "biases out (beside: *_bias)";
    char lag[48] = "", null[80] = "no null";
    if (c->pos == SD_POS_ROPE)
        snprintf(lag, sizeof lag, "; rotary lag %" PRId64, o->lag);
    if (draws)
        snprintf(null, sizeof null, "Gaussian null of %d draws, seed %" PRIu64, draws, o->seed);
    SD_TRY(sd_table_heading(t, err, "%s: weight level, kernel %s; %s; %s%s; %s", sd_model_name(m),
                            only_sd ? "α(W_Q W_Kᵀ − W_K W_Qᵀ)" : "c·W_Q W_Kᵀ", norm, bias, lag,
                            null));
    SD_TRY(sd_table_heading(t, err,
                            "ranks of the routing R; pr = participation ratio (Σσ²)²/Σσ⁴, "
                            "a plane counts 2"));
    if (grouped)
        SD_TRY(sd_table_heading(t, err,
                                "grouped queries: %d query heads share %d key heads; heads "
                                "of a group are not independent samples",
                                c->layer[0].n_head, c->layer[0].n_kv_head));
    if (o->lag)
        SD_TRY(sd_table_note(t, err,
                             "at a lag S is not skew: sigma are singular values of S(Δ), "
                             "f_lambda those of F(Δ); budgets are shares of ‖S‖² + ‖F‖²"));
    if (c->pos == SD_POS_ROPE && o->lag == 0)
        SD_TRY(sd_table_note(t, err,
                             "rotary model: the kernel is that of two equal positions; "
                             "lag= chooses another distance"));
    return SD_OK;
}

/* Is there no filtering among the weights? */
static bool skew_only(const sd_layer_cfg *lc) {
    const sd_attn_kind *k = sd_attn_of(lc);
    return k && sd_attn_algebra_of(lc) != SD_SCORES_NONE && !sd_attn_term_width(lc, &k->filtering);
}

typedef struct null_list {
    null_stats *v;
    size_t n, cap;
} null_list;

/* The null of a shape, drawn once. */
static sd_status null_for(null_list *l, const column_plan *plan, const layer_job *j, size_t rows,
                          bool product, int draws, uint64_t seed, int threads,
                          const null_stats **out, sd_err *err) {
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].rows == rows && l->v[i].d == j->d && l->v[i].product == product) {
            *out = &l->v[i];
            return SD_OK;
        }
    void *v = l->v;
    SD_TRY(sd_grow(&v, &l->cap, l->n + 1, sizeof *l->v, err));
    l->v = v;
    null_stats *s = &l->v[l->n];
    *s = (null_stats){.rows = rows, .d = j->d, .product = product};
    SD_TRY(null_of(plan, j->rot, draws, seed, threads, s, err));
    l->n++;
    *out = s;
    return SD_OK;
}

typedef struct seen {
    bool sd, factors, key;
} seen;

static sd_status no_scores(sd_table *t, const sd_layer_cfg *lc, int layer, sd_err *err) {
    char text[64];
    const char *why = sd_attn_no_scores(lc, text);
    for (int h = 0; h < lc->n_head; h++) {
        int row;
        SD_TRY(sd_table_add_row(t, &row, err));
        sd_table_set_int(t, row, "layer", layer);
        sd_table_set_int(t, row, "head", h);
        SD_TRY(sd_table_set_str(t, row, "status", why, err));
    }
    return SD_OK;
}

static sd_status model_layer(sd_model *m, int layer, const sd_heads_opts *o, int draws,
                             const column_plan *plan, const rotation *rot, int threads,
                             null_list *nulls, seen *what, sd_table *t, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    const sd_layer_cfg *lc = &c->layer[layer];
    const sd_attn_kind *kind = sd_attn_of(lc);
    sd_attn_algebra algebra = sd_attn_algebra_of(lc);
    if (algebra == SD_SCORES_NONE)
        return no_scores(t, lc, layer, err);
    bool queries = by_queries(lc);
    weights w;
    SD_TRY(load(m, layer, o->fold_norm, &w, err));
    layer_job j = {.layer = layer,
                   .n_head = lc->n_head,
                   .n_kv = queries ? lc->n_kv_head : lc->n_head,
                   .rows = (size_t)c->d_model,
                   .d = sd_attn_term_width(lc, &kind->routing),
                   .scale = sd_attn_term_scale(lc, &kind->routing),
                   .skew = skew_only(lc),
                   .rot = queries && kind->rope ? rot : NULL,
                   .wq = w.wq ? w.wq->data : NULL,
                   .wk = w.wk ? w.wk->data : NULL,
                   .bq = w.bq ? w.bq->data : NULL,
                   .bk = w.bk ? w.bk->data : NULL,
                   .cfg = lc,
                   .slots = queries ? NULL : &w.slots,
                   .bias_in = o->bias,
                   .what = spectra(plan, false)};
    what->sd |= algebra == SD_SCORES_SKEW;
    what->factors |= algebra == SD_SCORES_FACTORS;
    what->key |= algebra == SD_SCORES_KEY;
    // Centring takes one dimension away: the null lives in the same space.
    size_t rows = j.rows - (o->fold_norm && c->norm == SD_NORM_LAYER && j.rows > 1);
    const null_stats *nul = NULL;
    sd_status st = SD_OK;
    if (draws && algebra != SD_SCORES_KEY)
        st = null_for(nulls, plan, &j, rows, algebra == SD_SCORES_PRODUCT, draws, o->seed, threads,
                      &nul, err);
    if (st == SD_OK)
        st = run_layer(t, &j, nul, threads, err);
    weights_free(&w);
    return st;
}

sd_status sd_heads(sd_model *m, const sd_heads_opts *opts, const sd_run *run, sd_table **out,
                   sd_err *err) {
    sd_heads_opts o = opts ? *opts : (sd_heads_opts){0};
    const sd_config *c = sd_model_config(m);
    int draws = o.null_draws == 0 ? 20 : o.null_draws < 0 ? 0 : o.null_draws;
    int threads = sd_run_threads(run);
    sd_status st = SD_OK;
    bool *mask = NULL, biased = false, grouped = false;
    sd_table *t = NULL;
    null_list nulls = {0};
    seen what = {0};
    rotary lag = {0};
    rotation rot = {0};
    column_plan plan;
    *out = NULL;
    if (o.lag && c->pos != SD_POS_ROPE)
        return sd_fail(err, SD_EINVAL,
                       "lag %" PRId64 ": %s has no rotary positions (lag must be 0)", o.lag,
                       sd_model_name(m));
    int blas = sd_blas_threads(1);
    SD_GO(st, fail, sd_spectral_layers(o.layers, c->n_layer, &mask, err));
    SD_GO(st, fail, any_bias(m, mask, o.fold_norm, &biased, err));
    bool only_sd = true;
    for (int l = 0; l < c->n_layer; l++) {
        grouped |= mask[l] && c->layer[l].n_kv_head != c->layer[l].n_head;
        only_sd &= !mask[l] || skew_only(&c->layer[l]);
    }
    bool rope = c->pos == SD_POS_ROPE;
    if (rope)
        SD_GO(st, fail, sd_spectral_rotary(&c->rope, o.lag, 1, &lag, err));
    // At lag 0 nothing is rotated; the pairs are still wanted for rope_imag.
    rot = (rotation){lag.n, lag.a, lag.b, o.lag ? lag.cs : NULL, o.lag ? lag.sn : NULL};
    plan = (column_plan){.in = SD_IN_HEADS,
                         .have = (biased && !o.bias ? SD_WHEN_BIASED : 0u) |
                                 (rope ? SD_WHEN_ROTARY : 0u),
                         .nulls = draws > 0,
                         .hide_kernel = only_sd,
                         .columns = o.columns};
    SD_GO(st, fail, sd_spectral_plan_check(&plan, err));
    SD_GO(st, fail, make_table(&plan, grouped, &t, err));
    SD_GO(st, fail, headings(t, m, &o, draws, biased, grouped, only_sd, err));
    SD_GO(st, fail, sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_GO(st, fail, sd_table_meta_str(t, "level", "weights", err));
    SD_GO(st, fail, sd_table_meta_num(t, "fold_norm", o.fold_norm, err));
    SD_GO(st, fail, sd_table_meta_num(t, "bias", o.bias, err));
    SD_GO(st, fail, sd_table_meta_num(t, "lag", (double)o.lag, err));
    SD_GO(st, fail, sd_table_meta_num(t, "null_draws", draws, err));
    SD_GO(st, fail, sd_table_meta_num(t, "seed", (double)o.seed, err));
    for (int l = 0; l < c->n_layer; l++) {
        if (!mask[l])
            continue;
        SD_GO(st, fail, sd_check_cancel(err));
        sd_run_progress(run, "heads", l, c->n_layer);
        SD_GO(st, fail,
              model_layer(m, l, &o, draws, &plan, rope ? &rot : NULL, threads, &nulls, &what, t,
                          err));
    }
    sd_run_progress(run, "heads", c->n_layer, c->n_layer);
    if (what.sd)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "S–D heads: R = S = α(W_Q W_Kᵀ − W_K W_Qᵀ); the filtering "
                            "−D is not a kernel of the weights: probe shows it"));
    if (what.factors)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "truncated layers by their factors: R = ABᵀ − BAᵀ, F = f diag(λ) fᵀ "
                            "without δ; the null is of R alone"));
    if (what.key)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "key potentials: R = 1wᵀ − w1ᵀ, one plane whatever w is: no null"));
    SD_GO(st, fail, sd_spectral_note_marked(t, err));
    *out = t;
    t = NULL;
fail:
    sd_blas_threads(blas);
    sd_free(mask);
    sd_free(nulls.v);
    sd_spectral_rotary_free(&lag);
    sd_table_unref(t);
    return st;
}
