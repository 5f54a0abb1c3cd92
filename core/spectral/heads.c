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
    double scale;
    bool sd; /* S–D: routing only, twice the scale */
    const rotation *rot;
    const double *wq, *wk; // (D, H·d), (D, Hkv·d)
    const double *bq, *bk; // (H·d), (Hkv·d); NULL = none
    bool bias_in;          /* the main columns have the bias row */
    unsigned what;         /* SD_SPEC_* of a product head */
    struct head_out *out;  // (H)
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

static sd_status head_job(void *ctx, size_t h, int worker, sd_err *err) {
    (void)worker;
    layer_job *j = ctx;
    head_out *o = &j->out[h];
    size_t d = j->d, g = h / (size_t)(j->n_head / j->n_kv), rows = j->rows, w = 2 * d;
    size_t ldq = (size_t)j->n_head * d, ldk = (size_t)j->n_kv * d;
    for (int c = 0; c < V_COUNT; c++)
        o->v[c] = NAN;
    const double *wq = j->wq + h * d, *wk = j->wk + g * d;
    double scale = j->sd ? 2 * j->scale : j->scale;
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
    unsigned what = j->sd ? SD_SPEC_R : j->what;
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
            if (!j->sd)
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
        if (j->sd) // −D is no kernel of the weights
            sd_spectral_routing_only(o->v, &o->s);
    }
    sd_free(u);
    if (st == SD_ENUMERIC) { // this head is marked; the others go on
        snprintf(o->status, sizeof o->status, "%.90s", err ? err->text : "numerical failure");
        sd_err_clear(err);
        return SD_OK;
    }
    o->ok = st == SD_OK;
    return st;
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
    if (j->sd)
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
    sd_status st = sd_parallel((size_t)j->n_head, threads, head_job, j, err);
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
} weights;

static void weights_free(weights *w) {
    sd_tensor_free(w->wq);
    sd_tensor_free(w->wk);
    sd_tensor_free(w->bq);
    sd_tensor_free(w->bk);
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

/* W ← diag(γ)W, centred for LayerNorm; *b (created when β adds one) ← b + βW (METHOD §1). */
static sd_status fold(sd_tensor *w, sd_tensor **b, const sd_tensor *gamma, const sd_tensor *beta,
                      bool centre, sd_err *err) {
    size_t rows = (size_t)w->shape[0], cols = (size_t)w->shape[1];
    double *x = w->data;
    if (beta) {
        if (!*b)
            SD_TRY(sd_tensor_new(SD_F64, 1, &w->shape[1], b, err));
        const double *bt = beta->data;
        double *y = (*b)->data;
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < cols; c++)
                y[c] += bt[i] * x[i * cols + c];
    }
    if (gamma) {
        const double *g = gamma->data;
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < cols; c++)
                x[i * cols + c] *= g[i];
    }
    if (centre) {
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
    }
    return SD_OK;
}

static sd_status load(sd_model *m, int layer, bool folded, weights *w, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    sd_tensor *gamma = NULL, *beta = NULL;
    *w = (weights){0};
    SD_GO(st, out, sd_model_get(m, layer, SD_ROLE_WQ, SD_F64, &w->wq, err));
    SD_GO(st, out, sd_model_get(m, layer, SD_ROLE_WK, SD_F64, &w->wk, err));
    SD_GO(st, out, get_if(m, layer, SD_ROLE_BQ, &w->bq, err));
    SD_GO(st, out, get_if(m, layer, SD_ROLE_BK, &w->bk, err));
    if (folded && c->norm != SD_NORM_NONE) {
        int at;
        sd_role g, b;
        norm_roles(c, layer, &at, &g, &b);
        SD_GO(st, out, get_if(m, at, g, &gamma, err));
        SD_GO(st, out, get_if(m, at, b, &beta, err));
        bool centre = c->norm == SD_NORM_LAYER;
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

sd_status sd_heads(sd_model *m, const sd_heads_opts *opts, const sd_run *run, sd_table **out,
                   sd_err *err) {
    sd_heads_opts o = opts ? *opts : (sd_heads_opts){0};
    const sd_config *c = sd_model_config(m);
    int draws = o.null_draws == 0 ? 20 : o.null_draws < 0 ? 0 : o.null_draws;
    int threads = sd_run_threads(run);
    sd_status st = SD_OK;
    bool *mask = NULL, biased = false, grouped = false, sd_seen = false, other = false;
    sd_table *t = NULL;
    null_stats *nulls = NULL;
    size_t n_nulls = 0, cap_nulls = 0;
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
        only_sd &= !mask[l] || !strcmp(c->layer[l].kind, "sd");
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
        const sd_layer_cfg *lc = &c->layer[l];
        if (!sd_model_has(m, l, SD_ROLE_WQ) || !sd_model_has(m, l, SD_ROLE_WK)) {
            for (int h = 0; h < lc->n_head; h++) {
                int row;
                char text[64];
                snprintf(text, sizeof text, "no W_Q, W_K (%s)", lc->kind);
                SD_GO(st, fail, sd_table_add_row(t, &row, err));
                sd_table_set_int(t, row, "layer", l);
                sd_table_set_int(t, row, "head", h);
                SD_GO(st, fail, sd_table_set_str(t, row, "status", text, err));
            }
            continue;
        }
        weights w;
        SD_GO(st, fail, load(m, l, o.fold_norm, &w, err));
        layer_job j = {.layer = l,
                       .n_head = lc->n_head,
                       .n_kv = lc->n_kv_head,
                       .rows = (size_t)c->d_model,
                       .d = (size_t)lc->d_qk,
                       .scale = lc->scale,
                       .sd = !strcmp(lc->kind, "sd"),
                       .rot = rope ? &rot : NULL,
                       .wq = w.wq->data,
                       .wk = w.wk->data,
                       .what = spectra(&plan, false),
                       .bq = w.bq ? w.bq->data : NULL,
                       .bk = w.bk ? w.bk->data : NULL,
                       .bias_in = o.bias};
        sd_seen |= j.sd;
        other |= !j.sd && strcmp(lc->kind, "softmax") != 0;
        // Centring takes one dimension away: the null lives in the same space.
        size_t rows = j.rows - (o.fold_norm && c->norm == SD_NORM_LAYER && j.rows > 1);
        const null_stats *nul = NULL;
        for (size_t i = 0; i < n_nulls && !nul; i++)
            if (nulls[i].rows == rows && nulls[i].d == j.d && nulls[i].product == !j.sd)
                nul = &nulls[i];
        if (!nul && draws) {
            st = sd_grow((void **)&nulls, &cap_nulls, n_nulls + 1, sizeof *nulls, err);
            if (st == SD_OK) {
                nulls[n_nulls] = (null_stats){.rows = rows, .d = j.d, .product = !j.sd};
                st = null_of(&plan, j.rot, draws, o.seed, threads, &nulls[n_nulls], err);
            }
            if (st == SD_OK)
                nul = &nulls[n_nulls++];
        }
        if (st == SD_OK)
            st = run_layer(t, &j, nul, threads, err);
        weights_free(&w);
        if (st != SD_OK)
            goto fail;
    }
    sd_run_progress(run, "heads", c->n_layer, c->n_layer);
    if (sd_seen)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "S–D heads: R = S = α(W_Q W_Kᵀ − W_K W_Qᵀ); the filtering "
                            "−D is not a kernel of the weights: probe shows it"));
    if (other)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "layers of another attention kind are analysed by their "
                            "q·k, whether or not they use it so"));
    SD_GO(st, fail, sd_spectral_note_marked(t, err));
    *out = t;
    t = NULL;
fail:
    sd_blas_threads(blas);
    sd_free(mask);
    sd_free(nulls);
    sd_spectral_rotary_free(&lag);
    sd_table_unref(t);
    return st;
}
