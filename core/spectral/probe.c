/* probe.c: token level, one row a head: interaction matrices of real text with their controls
 * (METHOD §1–§5). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/forward.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/calib.h"
#include "spectral/probe.h"

enum { LAMBDA_TOKENS = 256 }; // dense eigenvalues of L = S − D stop here

/* Per-sequence values of a head, averaged over sequences; one row is one column of the table. */
enum {
    V_FRO2,
    V_ROUTING,
    V_FILTERING,
    V_DIR,
    V_PR,
    V_ENTROPY,
    V_ENERGY,
    V_STABLE,
    V_N90,
    V_N95,
    V_N99,
    V_PHI,
    V_PR_CENTRED,
    V_PR_NOBIAS,
    V_MAX_RE,
    V_HENRICI,
    V_LOGIT_SD,
    V_KL,
    V_EFF,
    V_D_MEAN,
    V_D_SD,
    V_SIGMA1,
    V_F_PR = V_SIGMA1 + 4,
    V_COUNT = V_F_PR + 7
};
static const struct {
    const char *name;
    bool wide;
    int null; /* index of the null's value, -1 = none */
} values[V_COUNT] = {{"fro2", true, -1},
                     {"routing", false, -1},
                     {"filtering", false, -1},
                     {"dir_frac", true, NULL_DIR},
                     {"pr", false, NULL_PR},
                     {"entropy", true, -1},
                     {"energy", true, -1},
                     {"stable", true, -1},
                     {"n90", true, -1},
                     {"n95", true, -1},
                     {"n99", true, -1},
                     {"phi", false, NULL_PHI},
                     {"pr_centred", false, NULL_PR_CENTRED},
                     {"pr_nobias", true, -1},
                     {"max_re", true, NULL_MAX_RE},
                     {"henrici", true, -1},
                     {"logit_sd", false, -1},
                     {"kl_uniform", false, -1},
                     {"eff_ctx", false, -1},
                     {"d_mean", false, -1},
                     {"d_sd", true, -1},
                     {"sigma1", true, -1},
                     {"sigma2", true, -1},
                     {"sigma3", true, -1},
                     {"sigma4", true, -1},
                     {"f_pr", true, -1},
                     {"f_entropy", true, -1},
                     {"f_energy", true, -1},
                     {"f_stable", true, -1},
                     {"f_n90", true, -1},
                     {"f_n95", true, -1},
                     {"f_n99", true, -1}};

typedef struct head_acc {
    char status[96]; /* "" = fine */
    moments v[V_COUNT];
    double *planes;                           // (n_planes) sum over sequences
    double *f_lambda, *lambda_re, *lambda_im; // first sequence
    size_t n_planes, n_f, n_lambda, n_seqs;
    double *gram; // (2d, 2d) Σ UᵀU over sequences, unscaled
    double rows;
} head_acc;

typedef struct layer_acc {
    bool wanted, seen;
    char kind[24];
    int n_head, n_kv;
    size_t d;
    bool sd;
    double *bq, *bk; // (H, d), (Hkv, d): non-zero biases to take out, else NULL
    moments null[5];
    head_acc *head; // (H)
} layer_acc;

typedef struct probe_state {
    const sd_run *run;
    int n_layer, draws, threads, seq, n_seqs;
    uint64_t seed;
    bool causal;
    layer_acc *layer;
} probe_state;

static void head_free(head_acc *h) {
    sd_free(h->planes);
    sd_free(h->f_lambda);
    sd_free(h->lambda_re);
    sd_free(h->lambda_im);
    sd_free(h->gram);
}

static void layers_free(layer_acc *l, int n) {
    for (int i = 0; l && i < n; i++) {
        for (int h = 0; l[i].head && h < l[i].n_head; h++)
            head_free(&l[i].head[h]);
        sd_free(l[i].head);
        sd_free(l[i].bq);
        sd_free(l[i].bk);
    }
    sd_free(l);
}

/* ---- one head, one sequence ------------------------------------------------------------------ */

typedef struct capture_job {
    probe_state *p;
    layer_acc *l;
    const sd_capture *c;
    null_input null;
    double (*draw)[5]; // (draws)
} capture_job;

static void put_ranks(double *v, const sd_ranks *r) {
    if (!(r->pr > 0))
        return;
    const double x[7] = {r->pr, r->entropy, r->energy, r->stable, r->n90, r->n95, r->n99};
    memcpy(v, x, sizeof x);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static SD_OWN double *copy(const double *x, size_t n, sd_err *err) {
    double *y = sd_alloc_raw(n + 1, sizeof *y, err);
    if (y && n)
        memcpy(y, x, n * sizeof *y);
    return y;
}

/* Eigenvalues of L = S − D over the first tokens, dense: METHOD §6 promises Re λ < 0. q carries 2α.
 */
static sd_status dense_lambda(size_t n, size_t d, const double *q, const double *k,
                              const double *diag, head_acc *a, double *v, sd_err *err) {
    double *s = sd_alloc_raw(n * n + 1, sizeof *s, err);
    a->lambda_re = sd_alloc(n + 1, sizeof *a->lambda_re, err);
    a->lambda_im = sd_alloc(n + 1, sizeof *a->lambda_im, err);
    if (!s || !a->lambda_re || !a->lambda_im) {
        sd_free(s);
        return SD_ENOMEM;
    }
    double fro2 = 0;
    for (size_t i = 0; i < n; i++) {
        s[i * n + i] = diag ? -diag[i] : 0;
        fro2 += s[i * n + i] * s[i * n + i];
        for (size_t j = i + 1; j < n; j++) {
            double x =
                0.5 * (sd_dot_f64(d, q + i * d, k + j * d) - sd_dot_f64(d, k + i * d, q + j * d));
            s[i * n + j] = x;
            s[j * n + i] = -x;
            fro2 += 2 * x * x;
        }
    }
    sd_status st = sd_eig(n, s, a->lambda_re, a->lambda_im, NULL, err);
    sd_free(s);
    if (st != SD_OK)
        return st;
    a->n_lambda = n;
    double top = -HUGE_VAL, rho = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        double m = hypot(a->lambda_re[i], a->lambda_im[i]);
        sum += m * m;
        rho = fmax(rho, m);
        top = fmax(top, a->lambda_re[i]);
    }
    if (rho > 0) {
        v[V_MAX_RE] = top / rho;
        v[V_HENRICI] = sqrt(fmax(0, fro2 - sum) / fro2);
    }
    return SD_OK;
}

static sd_status rank_of(size_t n, size_t d, const double *q, const double *k, double *pr,
                         sd_err *err) {
    sd_spectrum s;
    SD_TRY(sd_spectrum_of(n, d, q, k, SD_SPEC_R, &s, err));
    if (s.rank.pr > 0)
        *pr = s.rank.pr;
    sd_spectrum_free(&s);
    return SD_OK;
}

static sd_status head_values(capture_job *j, size_t h, double *q, double *k, double *diag,
                             double *v, sd_err *err) {
    const sd_capture *c = j->c;
    layer_acc *l = j->l;
    head_acc *a = &l->head[h];
    size_t n = (size_t)c->tokens, d = l->d, w = 2 * d;
    size_t g = h / (size_t)(l->n_head / l->n_kv);
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < d; e++) {
            q[i * d + e] = c->q[(i * (size_t)l->n_head + h) * d + e];
            k[i * d + e] = c->k[(i * (size_t)l->n_kv + g) * d + e];
        }
    if (l->sd && c->d)
        for (size_t i = 0; i < n; i++)
            diag[i] = c->d[i * (size_t)l->n_head + h];
    for (int which = 0; which < 3; which++) {
        const double *x = which == 0 ? q : which == 1 ? k : diag;
        size_t cols = which == 2 ? 1 : d, at = sd_first_nonfinite_f64(x, n * cols);
        if (at < n * cols)
            return sd_fail(err, SD_ENUMERIC, "non-finite %s at token %zu, column %zu",
                           which == 0   ? "q"
                           : which == 1 ? "k"
                                        : "d",
                           at / cols, at % cols);
    }
    // Streaming second moment of [Q K] for the pooled rank (METHOD §8.2: the uncentred one).
    if (!a->gram && !(a->gram = sd_alloc(w * w + 1, sizeof *a->gram, err)))
        return SD_ENOMEM;
    sd_gemm_f64(true, false, d, d, n, 1, q, d, q, d, 1, a->gram, w);
    sd_gemm_f64(true, false, d, d, n, 1, q, d, k, d, 1, a->gram + d, w);
    sd_gemm_f64(true, false, d, d, n, 1, k, d, k, d, 1, a->gram + d * w + d, w);
    a->rows += (double)n;

    double scale = l->sd ? 2 * c->scale : c->scale;
    for (size_t i = 0; i < n * d; i++)
        q[i] *= scale;
    sd_spectrum s;
    SD_TRY(sd_spectrum_of(n, d, q, k, l->sd ? SD_SPEC_R : SD_SPEC_ALL, &s, err));
    sd_status st = SD_OK;
    bool first = a->n_seqs == 0;
    double rr = s.fro2 * s.routing;
    if (l->sd) { // R = S, F = −D
        double ff = 0, sum = 0, var = 0;
        sd_ranks fr;
        for (size_t i = 0; i < n; i++) {
            ff += diag[i] * diag[i];
            sum += diag[i];
        }
        for (size_t i = 0; i < n; i++)
            var += (diag[i] - sum / (double)n) * (diag[i] - sum / (double)n);
        v[V_D_MEAN] = sum / (double)n;
        v[V_D_SD] = sqrt(var / (double)n);
        s.fro2 = rr + ff;
        if (s.fro2 > 0) {
            s.routing = rr / s.fro2;
            s.filtering = ff / s.fro2;
            s.dir_frac = sqrt(s.routing);
        }
        sd_ranks_of(diag, n, false, &fr);
        put_ranks(v + V_F_PR, &fr);
        if (first) {
            if (!(a->f_lambda = copy(diag, n, err))) {
                st = SD_ENOMEM;
                goto out;
            }
            for (size_t i = 0; i < n; i++)
                a->f_lambda[i] = -a->f_lambda[i];
            qsort(a->f_lambda, n, sizeof(double), ascending);
            a->n_f = n;
            size_t m = n < LAMBDA_TOKENS ? n : LAMBDA_TOKENS;
            SD_GO(st, out, dense_lambda(m, d, q, k, diag, a, v, err));
        }
    } else {
        if (s.fro2 > 0) {
            v[V_MAX_RE] = s.max_re;
            v[V_HENRICI] = s.henrici;
        }
        put_ranks(v + V_F_PR, &s.f_rank);
        if (first) {
            a->f_lambda = copy(s.f_lambda, s.n_f, err);
            a->lambda_re = copy(s.lambda_re, d, err);
            a->lambda_im = copy(s.lambda_im, d, err);
            if (!a->f_lambda || !a->lambda_re || !a->lambda_im) {
                st = SD_ENOMEM;
                goto out;
            }
            a->n_f = s.n_f;
            a->n_lambda = d;
        }
    }
    v[V_FRO2] = s.fro2;
    if (s.fro2 > 0) {
        v[V_ROUTING] = s.routing;
        v[V_FILTERING] = s.filtering;
        v[V_DIR] = s.dir_frac;
    }
    put_ranks(v + V_PR, &s.rank);
    for (size_t i = 0; i < 4 && i < s.n_planes; i++)
        v[V_SIGMA1 + i] = s.sigma[i];
    if (!a->planes) {
        a->planes = sd_alloc(d + 1, sizeof *a->planes, err);
        a->n_planes = s.n_planes;
        if (!a->planes) {
            st = SD_ENOMEM;
            goto out;
        }
    }
    for (size_t i = 0; i < s.n_planes; i++)
        a->planes[i] += s.sigma[i];
    score_stats sc;
    SD_GO(st, out,
          sd_spectral_score_stats(n, d, q, k, l->sd, l->sd && c->d ? diag : NULL, j->p->causal, &sc,
                                  err));
    v[V_LOGIT_SD] = sc.logit_sd;
    v[V_KL] = sc.kl_uniform;
    v[V_EFF] = sc.eff_ctx;
    if (l->bq) { // the same head without its biases
        double *q2 = copy(q, n * d, err), *k2 = copy(k, n * d, err);
        if (!q2 || !k2)
            st = SD_ENOMEM;
        for (size_t i = 0; st == SD_OK && i < n; i++)
            for (size_t e = 0; e < d; e++) {
                q2[i * d + e] -= scale * l->bq[h * d + e];
                k2[i * d + e] -= l->bk[g * d + e];
            }
        if (st == SD_OK)
            st = rank_of(n, d, q2, k2, &v[V_PR_NOBIAS], err);
        sd_free(q2);
        sd_free(k2);
        if (st != SD_OK)
            goto out;
    }
    double *mean = sd_alloc(w + 1, sizeof *mean, err);
    if (!mean) {
        st = SD_ENOMEM;
        goto out;
    }
    double ww = sd_spectral_potential_norm(n, d, q, k, mean, mean + d);
    if (s.rank.pr > 0)
        v[V_PHI] = 2 * (double)n * ww / rr;
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < d; e++) {
            q[i * d + e] -= mean[e];
            k[i * d + e] -= mean[d + e];
        }
    sd_free(mean);
    st = rank_of(n, d, q, k, &v[V_PR_CENTRED], err);
out:
    sd_spectrum_free(&s);
    return st;
}

static sd_status capture_item(void *ctx, size_t i, int worker, sd_err *err) {
    (void)worker;
    capture_job *j = ctx;
    layer_acc *l = j->l;
    if (i >= (size_t)l->n_head) { // a draw of the null
        size_t draw = i - (size_t)l->n_head;
        sd_rng g;
        sd_rng_stream(&g, j->p->seed, ((uint64_t)j->c->layer << 32) | (uint64_t)j->p->seq, draw);
        return sd_spectral_null_draw(&j->null, l->d, !l->sd, &g, j->draw[draw], err);
    }
    head_acc *a = &l->head[i];
    if (a->status[0])
        return SD_OK;
    size_t n = (size_t)j->c->tokens;
    double v[V_COUNT];
    for (int c = 0; c < V_COUNT; c++)
        v[c] = NAN;
    double *q = sd_alloc_raw(n * l->d + 1, sizeof *q, err);
    double *k = sd_alloc_raw(n * l->d + 1, sizeof *k, err);
    double *diag = sd_alloc(n + 1, sizeof *diag, err);
    sd_status st = q && k && diag ? head_values(j, i, q, k, diag, v, err) : SD_ENOMEM;
    sd_free(q);
    sd_free(k);
    sd_free(diag);
    if (st == SD_ENUMERIC) { // this head is marked, the others go on
        snprintf(a->status, sizeof a->status, "%.90s", err ? err->text : "numerical failure");
        sd_err_clear(err);
        return SD_OK;
    }
    if (st != SD_OK)
        return st;
    for (int c = 0; c < V_COUNT; c++)
        if (!isnan(v[c]))
            sd_spectral_moments_add(&a->v[c], v[c]);
    a->n_seqs++;
    return SD_OK;
}

static sd_status null_prepare(const sd_capture *c, null_input *in, double **mem, sd_err *err) {
    size_t n = (size_t)c->tokens, dm = (size_t)c->d_model;
    bool gram = n > dm;
    double *x = sd_alloc_raw(n * dm + 1, sizeof *x, err);
    double *mean = sd_alloc(dm + 1, sizeof *mean, err);
    double *g = gram ? sd_alloc_raw(dm * dm + 1, sizeof *g, err) : NULL;
    mem[0] = x;
    mem[1] = mean;
    mem[2] = g;
    if (!x || !mean || (gram && !g))
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < dm; e++) {
            x[i * dm + e] = c->x[i * dm + e];
            mean[e] += x[i * dm + e];
        }
    for (size_t e = 0; e < dm; e++)
        mean[e] /= (double)n;
    if (gram)
        sd_gram_f64(n, dm, x, dm, g);
    *in = (null_input){.n = n, .d_model = dm, .x = x, .gram = g, .mean = mean};
    return SD_OK;
}

static sd_status on_capture(void *ctx, const sd_capture *c, sd_err *err) {
    probe_state *p = ctx;
    layer_acc *l = &p->layer[c->layer];
    sd_run_progress(p->run, "probe", (double)p->seq * p->n_layer + c->layer,
                    (double)p->n_seqs * p->n_layer);
    SD_TRY(sd_check_cancel(err));
    if (!l->wanted)
        return SD_OK;
    if (!l->seen) {
        l->seen = true;
        snprintf(l->kind, sizeof l->kind, "%s", c->kind);
        l->d = (size_t)c->d_qk;
        l->n_kv = c->n_kv_head > 0 ? c->n_kv_head : 1;
        l->sd = !strcmp(c->kind, "sd");
    }
    if (!c->q || !c->k || !c->d_qk) {
        for (int h = 0; h < l->n_head; h++)
            snprintf(l->head[h].status, sizeof l->head[h].status, "no q·k (%s)", c->kind);
        return SD_OK;
    }
    sd_status st = SD_OK;
    double *mem[3] = {0};
    capture_job j = {.p = p, .l = l, .c = c};
    int blas = sd_blas_threads(1); // the loop over heads and draws has the cores
    int draws = p->draws;
    for (size_t i = 0; c->x && draws && i < (size_t)c->tokens * (size_t)c->d_model; i++)
        if (!isfinite(c->x[i]))
            draws = 0; // the heads say so in their status
    if (!c->x)
        draws = 0;
    if (draws) {
        j.draw = sd_alloc((size_t)draws, sizeof *j.draw, err);
        st = j.draw ? null_prepare(c, &j.null, mem, err) : SD_ENOMEM;
    }
    if (st == SD_OK)
        st = sd_parallel((size_t)l->n_head + (size_t)draws, p->threads, capture_item, &j, err);
    sd_blas_threads(blas);
    for (int i = 0; st == SD_OK && i < draws; i++) // in order: sums do not depend on threads
        for (int k = 0; k < 5; k++)
            if (!isnan(j.draw[i][k]))
                sd_spectral_moments_add(&l->null[k], j.draw[i][k]);
    for (int i = 0; i < 3; i++)
        sd_free(mem[i]);
    sd_free(j.draw);
    return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static sd_status columns(sd_table *t, const probe_state *p, bool grouped, bool sd, bool biased,
                         sd_err *err) {
    SD_TRY(sd_table_add_column(t, "layer", SD_COL_INT, "layer, from 0", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "head", SD_COL_INT, "head, from 0", false, NULL, err));
    if (grouped)
        SD_TRY(sd_table_add_column(t, "group", SD_COL_INT,
                                   "key head this query head shares; heads of a group are not "
                                   "independent samples",
                                   false, NULL, err));
    for (int c = 0; c < V_COUNT; c++) {
        if (((c == V_D_MEAN || c == V_D_SD) && !sd) || (c == V_PR_NOBIAS && !biased))
            continue;
        SD_TRY(sd_spectral_add_num(t, values[c].name, NULL, values[c].wide, err));
        if (p->n_seqs > 1)
            SD_TRY(sd_spectral_add_num(t, values[c].name, "_sd", c != V_PR, err));
        if (p->draws && values[c].null >= 0) {
            SD_TRY(sd_spectral_add_num(t, values[c].name, "_null", values[c].wide, err));
            SD_TRY(sd_spectral_add_num(t, values[c].name, "_null_sd", true, err));
        }
    }
    SD_TRY(sd_spectral_add_num(t, "pr_pooled", NULL, true, err));
    SD_TRY(sd_spectral_add_num(t, "calib_rank", NULL, true, err));
    SD_TRY(sd_table_add_column(t, "status", SD_COL_STR, "ok, or why the row has no values", true,
                               NULL, err));
    SD_TRY(sd_table_add_column(t, "planes", SD_COL_VEC,
                               "σ of every plane of R, descending, mean over sequences", true, NULL,
                               err));
    SD_TRY(sd_table_add_column(t, "f_lambda", SD_COL_VEC,
                               "eigenvalues of F, ascending (first sequence)", true, NULL, err));
    SD_TRY(sd_table_add_column(t, "lambda_re", SD_COL_VEC,
                               "eigenvalues of M, real part (first sequence)", true, NULL, err));
    return sd_table_add_column(t, "lambda_im", SD_COL_VEC,
                               "eigenvalues of M, imaginary part (first sequence)", true, NULL,
                               err);
}

static sd_status pooled(sd_table *t, int row, layer_acc *l, head_acc *a, sd_err *err) {
    size_t d = l->d, w = 2 * d, rank = 0;
    double *sigma = sd_alloc(d + 1, sizeof *sigma, err);
    if (!sigma)
        return SD_ENOMEM;
    for (size_t i = 0; i < w; i++)
        for (size_t c = i; c < w; c++)
            a->gram[i * w + c] /= a->rows;
    for (size_t i = 0; i < w; i++)
        for (size_t c = 0; c < i; c++)
            a->gram[i * w + c] = a->gram[c * w + i];
    sd_ranks r = {0};
    sd_status st = sd_whitened_planes(d, a->gram, 0, 0, sigma, NULL, NULL, &rank, err);
    if (st == SD_OK) {
        sd_ranks_of(sigma, d, true, &r);
        if (r.pr > 0)
            sd_spectral_set(t, row, "pr_pooled", NULL, r.pr);
        sd_spectral_set(t, row, "calib_rank", NULL, (double)rank);
    }
    sd_free(sigma);
    return st;
}

static sd_status put_rows(sd_table *t, const probe_state *p, int layer, sd_err *err) {
    layer_acc *l = &p->layer[layer];
    for (int h = 0; h < l->n_head; h++) {
        head_acc *a = &l->head[h];
        int row;
        SD_TRY(sd_table_add_row(t, &row, err));
        sd_table_set_int(t, row, "layer", layer);
        sd_table_set_int(t, row, "head", h);
        if (sd_table_find_col(t, "group") >= 0 && l->n_kv)
            sd_table_set_int(t, row, "group", h / (l->n_head / l->n_kv));
        SD_TRY(sd_table_set_str(t, row, "status", a->status[0] ? a->status : "ok", err));
        if (a->status[0] || !a->n_seqs)
            continue;
        for (int c = 0; c < V_COUNT; c++) {
            if (a->v[c].n > 0) {
                sd_spectral_set(t, row, values[c].name, NULL, a->v[c].mean);
                if (a->v[c].n > 1)
                    sd_spectral_set(t, row, values[c].name, "_sd",
                                    sd_spectral_moments_sd(&a->v[c]));
            }
            const moments *m = values[c].null >= 0 ? &l->null[values[c].null] : NULL;
            // An S–D head's budget against −D has no scale-free null.
            if (m && m->n > 0 && !(l->sd && c == V_DIR)) {
                sd_spectral_set(t, row, values[c].name, "_null", m->mean);
                sd_spectral_set(t, row, values[c].name, "_null_sd", sd_spectral_moments_sd(m));
            }
        }
        for (size_t i = 0; i < a->n_planes; i++)
            a->planes[i] /= (double)a->n_seqs;
        SD_TRY(sd_table_set_vec(t, row, "planes", a->planes, a->n_planes, err));
        SD_TRY(sd_table_set_vec(t, row, "f_lambda", a->f_lambda, a->n_f, err));
        SD_TRY(sd_table_set_vec(t, row, "lambda_re", a->lambda_re, a->n_lambda, err));
        SD_TRY(sd_table_set_vec(t, row, "lambda_im", a->lambda_im, a->n_lambda, err));
        SD_TRY(pooled(t, row, l, a, err));
    }
    return SD_OK;
}

/* Biases of a layer that can be taken out of q and k; with rotary positions they cannot, and count.
 */
static sd_status load_bias(sd_model *m, int layer, sd_role role, double **out, sd_err *err) {
    sd_tensor *t = NULL;
    *out = NULL;
    if (!sd_model_has(m, layer, role))
        return SD_OK;
    SD_TRY(sd_model_get(m, layer, role, SD_F64, &t, err));
    *out = copy(t->data, (size_t)t->shape[0], err);
    sd_tensor_free(t);
    return *out ? SD_OK : SD_ENOMEM;
}

static sd_status biases(sd_model *m, int layer, layer_acc *l, bool *any, sd_err *err) {
    const sd_layer_cfg *lc = &sd_model_config(m)->layer[layer];
    if (sd_model_config(m)->pos == SD_POS_ROPE)
        return SD_OK;
    size_t nq = (size_t)lc->n_head * (size_t)lc->d_qk,
           nk = (size_t)lc->n_kv_head * (size_t)lc->d_qk;
    SD_TRY(load_bias(m, layer, SD_ROLE_BQ, &l->bq, err));
    SD_TRY(load_bias(m, layer, SD_ROLE_BK, &l->bk, err));
    bool used = false;
    for (size_t i = 0; l->bq && i < nq; i++)
        used |= l->bq[i] != 0;
    for (size_t i = 0; l->bk && i < nk; i++)
        used |= l->bk[i] != 0;
    if (!used) {
        sd_free(l->bq);
        sd_free(l->bk);
        l->bq = l->bk = NULL;
        return SD_OK;
    }
    *any = true;
    if (!l->bq && !(l->bq = sd_alloc(nq + 1, sizeof *l->bq, err)))
        return SD_ENOMEM;
    if (!l->bk && !(l->bk = sd_alloc(nk + 1, sizeof *l->bk, err)))
        return SD_ENOMEM;
    return SD_OK;
}

static sd_status headings(sd_table *t, sd_model *m, const probe_state *p, size_t ctx, size_t n,
                          bool grouped, bool sd, bool other, size_t d_max, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    bool only_sd = sd;
    for (int l = 0; l < c->n_layer; l++)
        only_sd &= !p->layer[l].wanted || !strcmp(c->layer[l].kind, "sd");
    SD_TRY(sd_table_heading(t, err,
                            "%s: token level, %d sequences of %zu tokens (%zu given); M = %s%s, "
                            "unmasked, before softmax; %s",
                            sd_model_name(m), p->n_seqs, ctx, n, only_sd ? "L = S − D" : "c·QKᵀ",
                            c->pos == SD_POS_ROPE ? " after rotation, biases in" : ", biases in",
                            c->causal ? "causal controls (j <= i)" : "encoder controls (all j)"));
    char null[128] = "no null";
    if (p->draws)
        snprintf(null, sizeof null,
                 "null: random weights on the same activations, %d draws a layer and sequence, "
                 "seed %" PRIu64,
                 p->draws, p->seed);
    SD_TRY(sd_table_heading(t, err,
                            "ranks of the routing R; pr = participation ratio (Σσ²)²/Σσ⁴, a plane "
                            "counts 2; %s",
                            null));
    if (grouped)
        SD_TRY(sd_table_heading(t, err,
                                "grouped queries: %d query heads share %d key heads; heads of a "
                                "group are not independent samples",
                                c->layer[0].n_head, c->layer[0].n_kv_head));
    if (sd)
        SD_TRY(sd_table_heading(t, err,
                                "S–D heads: R = S, F = −D; eigenvalues of L = S − D over the first "
                                "%d tokens of the first sequence at most",
                                LAMBDA_TOKENS));
    if (other)
        SD_TRY(sd_table_heading(t, err,
                                "layers of another attention kind are analysed by their q·k, "
                                "whether or not they use it so"));
    if (ctx < 4 * d_max) {
        SD_TRY(sd_table_note(t, err,
                             "sequences of %zu tokens are shorter than 4d = %zu: the rank is "
                             "limited by the text, not only by the head",
                             ctx, 4 * d_max));
        sd_run_log(p->run, SD_LOG_WARN,
                   "probe: sequences of %zu tokens are shorter than 4d = %zu; ranks are limited by "
                   "the text",
                   ctx, 4 * d_max);
    }
    return SD_OK;
}

sd_status sd_probe(sd_model *m, const int32_t *ids, size_t n, const sd_probe_opts *opts,
                   const sd_run *run, sd_table **out, sd_err *err) {
    sd_probe_opts o = opts ? *opts : (sd_probe_opts){0};
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    bool *mask = NULL, grouped = false, sd = false, other = false, biased = false;
    sd_table *t = NULL;
    size_t d_max = 0;
    probe_state p = {.run = run,
                     .n_layer = c->n_layer,
                     .draws = o.null_draws == 0  ? 20
                              : o.null_draws < 0 ? 0
                                                 : o.null_draws,
                     .threads = sd_run_threads(run),
                     .seed = o.seed,
                     .causal = c->causal};
    *out = NULL;
    if (n < 2)
        return sd_fail(err, SD_EINVAL, "probe needs at least 2 tokens, got %zu", n);
    if (o.ctx < 0 || o.max_seqs < 0)
        return sd_fail(err, SD_EINVAL, "ctx and max_seqs cannot be negative");
    if (c->pos == SD_POS_LEARNED && o.ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "ctx %d: the position table of %s holds %d", o.ctx,
                       sd_model_name(m), c->n_pos);
    if (c->pos == SD_POS_ROPE && o.ctx > c->n_pos && c->n_pos > 0)
        sd_run_log(run, SD_LOG_WARN, "probe: ctx %d is beyond the trained context of %d", o.ctx,
                   c->n_pos);
    size_t ctx = (size_t)(o.ctx ? o.ctx : sd_calib_ctx(c));
    if (ctx > n)
        ctx = n;
    if (ctx < 2)
        return sd_fail(err, SD_EINVAL, "ctx %zu: a sequence needs at least 2 tokens", ctx);
    size_t fit = n / ctx, limit = o.max_seqs ? (size_t)o.max_seqs : 8;
    p.n_seqs = (int)(fit < limit ? fit : limit);
    SD_GO(st, out, sd_spectral_layers(o.layers, c->n_layer, &mask, err));
    p.layer = sd_alloc((size_t)c->n_layer, sizeof *p.layer, err);
    if (!p.layer) {
        st = SD_ENOMEM;
        goto out;
    }
    for (int i = 0; i < c->n_layer; i++) {
        layer_acc *l = &p.layer[i];
        const sd_layer_cfg *lc = &c->layer[i];
        l->wanted = mask[i];
        l->n_head = lc->n_head;
        if (!mask[i])
            continue;
        l->n_kv = lc->n_kv_head;
        l->head = sd_alloc((size_t)lc->n_head, sizeof *l->head, err);
        if (!l->head) {
            st = SD_ENOMEM;
            goto out;
        }
        SD_GO(st, out, biases(m, i, l, &biased, err));
        grouped |= lc->n_kv_head != lc->n_head;
        sd |= !strcmp(lc->kind, "sd");
        other |= strcmp(lc->kind, "sd") != 0 && strcmp(lc->kind, "softmax") != 0;
        d_max = (size_t)lc->d_qk > d_max ? (size_t)lc->d_qk : d_max;
    }
    sd_forward_opts fo = {
        .run = run, .capture = on_capture, .capture_ctx = &p, .stop_after_capture = true};
    for (p.seq = 0; p.seq < p.n_seqs; p.seq++)
        SD_GO(st, out, sd_forward(m, ids + (size_t)p.seq * ctx, 1, (int)ctx, &fo, NULL, NULL, err));
    sd_run_progress(run, "probe", 1, 1);
    t = sd_table_new("probe", err);
    if (!t) {
        st = SD_ENOMEM;
        goto out;
    }
    SD_GO(st, out, columns(t, &p, grouped, sd, biased, err));
    SD_GO(st, out, headings(t, m, &p, ctx, n, grouped, sd, other, d_max, err));
    SD_GO(st, out, sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_GO(st, out, sd_table_meta_str(t, "level", "tokens", err));
    SD_GO(st, out, sd_table_meta_num(t, "ctx", (double)ctx, err));
    SD_GO(st, out, sd_table_meta_num(t, "sequences", p.n_seqs, err));
    SD_GO(st, out, sd_table_meta_num(t, "tokens", (double)ctx * p.n_seqs, err));
    SD_GO(st, out, sd_table_meta_num(t, "null_draws", p.draws, err));
    SD_GO(st, out, sd_table_meta_num(t, "seed", (double)o.seed, err));
    int blas = sd_blas_threads(1);
    for (int i = 0; st == SD_OK && i < c->n_layer; i++) {
        if (!mask[i])
            continue;
        st = put_rows(t, &p, i, err);
    }
    sd_blas_threads(blas);
    if (st != SD_OK)
        goto out;
    SD_GO(st, out, sd_spectral_note_marked(t, err));
    *out = t;
    t = NULL;
out:
    layers_free(p.layer, c->n_layer);
    sd_free(mask);
    sd_table_unref(t);
    return st;
}

/* ---- capture for verification ---------------------------------------------------------------- */

typedef struct keep {
    int layer;
    sd_captured *out;
    bool found;
} keep;

static sd_status tensor_of(const float *src, int n, int a, int b, sd_tensor **out, sd_err *err) {
    int64_t shape[3] = {n, a, b};
    if (!src || a < 1 || b < 0)
        return SD_OK;
    SD_TRY(sd_tensor_new(SD_F32, b ? 3 : 2, shape, out, err));
    memcpy((*out)->data, src, sd_tensor_nbytes(*out));
    return SD_OK;
}

static sd_status on_keep(void *ctx, const sd_capture *c, sd_err *err) {
    keep *k = ctx;
    if (c->layer != k->layer)
        return SD_OK;
    sd_captured *o = k->out;
    k->found = true;
    o->scale = c->scale;
    snprintf(o->kind, sizeof o->kind, "%s", c->kind);
    SD_TRY(tensor_of(c->x, c->tokens, c->d_model, 0, &o->x, err));
    SD_TRY(tensor_of(c->q, c->tokens, c->n_head, c->d_qk, &o->q, err));
    SD_TRY(tensor_of(c->k, c->tokens, c->n_kv_head, c->d_qk, &o->k, err));
    SD_TRY(tensor_of(c->v, c->tokens, c->n_kv_head, c->d_v, &o->v, err));
    return tensor_of(c->d, c->tokens, c->n_head, 0, &o->d, err);
}

sd_status sd_probe_capture(sd_model *m, const int32_t *ids, size_t n, int layer, const sd_run *run,
                           sd_captured *out, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    memset(out, 0, sizeof *out);
    if (layer < 0 || layer >= c->n_layer)
        return sd_fail(err, SD_EINVAL, "expected layer 0..%d, got %d", c->n_layer - 1, layer);
    if (n < 1 || n > INT32_MAX)
        return sd_fail(err, SD_EINVAL, "capture needs 1 token or more, got %zu", n);
    keep k = {.layer = layer, .out = out};
    sd_forward_opts fo = {
        .run = run, .capture = on_keep, .capture_ctx = &k, .stop_after_capture = true};
    sd_status st = sd_forward(m, ids, 1, (int)n, &fo, NULL, NULL, err);
    if (st == SD_OK && !k.found)
        st = sd_fail(err, SD_EINVAL, "layer %d shows nothing to capture", layer);
    if (st != SD_OK)
        sd_captured_free(out);
    return st;
}

void sd_captured_free(sd_captured *c) {
    sd_tensor_free(c->x);
    sd_tensor_free(c->q);
    sd_tensor_free(c->k);
    sd_tensor_free(c->v);
    sd_tensor_free(c->d);
    memset(c, 0, sizeof *c);
}
