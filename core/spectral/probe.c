/* probe.c: token level, one row a head: interaction matrices of real text with their controls
 * (METHOD §1–§5). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/attn.h"
#include "nn/forward.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/calib.h"
#include "spectral/probe.h"

enum { LAMBDA_TOKENS = 256 }; // dense eigenvalues of L = S − D stop here

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
    bool wanted;
    int n_head, n_kv;
    const sd_layer_cfg *cfg;
    const sd_attn_kind *kind;
    sd_attn_algebra algebra;
    size_t d, df;    /* columns of the routing's and the filtering's own factors */
    bool qk;         /* the routing is of queries and keys */
    bool skew;       /* no filtering but the diagonal: S–D, potential */
    double *bq, *bk; // (H, d), (Hkv, d): non-zero biases to take out, else NULL
    moments null[V_COUNT];
    head_acc *head; // (H)
} layer_acc;

typedef struct probe_state {
    const sd_run *run;
    int n_layer, draws, threads, seq, n_seqs;
    uint64_t seed;
    bool causal;
    column_plan plan;
    unsigned what, null_what; /* SD_SPEC_* of the heads; of a null beyond the usual */
    rotary rot;               /* angles at every position of a sequence; empty: no rotation */
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
    double (*draw)[V_COUNT]; // (draws)
} capture_job;

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

/* Eigenvalues of L = S − D over the first tokens, dense (METHOD §6 promises Re λ < 0), and its
 * singular values when they are wanted. q carries 2α. */
static sd_status dense_lambda(unsigned what, size_t n, size_t d, const double *q, const double *k,
                              const double *delta, head_acc *a, double *v, sd_err *err) {
    double *s = sd_alloc_raw(n * n + n + 1, sizeof *s, err); // and n singular values
    a->lambda_re = sd_alloc(n + 1, sizeof *a->lambda_re, err);
    a->lambda_im = sd_alloc(n + 1, sizeof *a->lambda_im, err);
    if (!s || !a->lambda_re || !a->lambda_im) {
        sd_free(s);
        return SD_ENOMEM;
    }
    double fro2 = 0;
    for (size_t i = 0; i < n; i++) {
        s[i * n + i] = delta[i];
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
    if (st == SD_OK && (what & SD_SPEC_M)) {
        sd_ranks r;
        st = sd_svd(n, n, s, s + n * n, NULL, NULL, err);
        sd_ranks_of(s + n * n, st == SD_OK ? n : 0, false, &r);
        sd_spectral_put_ranks(v + V_ranks_m, &r);
    }
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
        v[V_max_re] = top / rho;
        v[V_henrici] = sqrt(fmax(0, fro2 - sum) / fro2);
    }
    return SD_OK;
}

/* One head of a capture in f64, and where its values go. */
typedef struct head_job {
    const capture_job *j;
    size_t h, g, n, d, df; /* head, its key head, tokens, widths */
    double *q, *k;         // (N, d)
    double *qf, *kf;       // (N, df)
    double *delta;         // (N)
    double scale;
    head_acc *a;
    double *v; // (V_COUNT)
} head_job;

static sd_status gather(head_job *x, sd_err *err) {
    const sd_capture *c = x->j->c;
    const layer_acc *l = x->j->l;
    size_t n = x->n;
    sd_attn_term_factors(c->cfg, &l->kind->routing, &c->slots, (int)x->h, x->q, x->k);
    if (x->df)
        sd_attn_term_factors(c->cfg, &l->kind->filtering, &c->slots, (int)x->h, x->qf, x->kf);
    for (size_t i = 0; c->delta && i < n; i++)
        x->delta[i] = c->delta[i * (size_t)l->n_head + x->h];
    const struct {
        const char *name;
        const double *p;
        size_t cols;
    } all[] = {{l->qk ? "q" : "a", x->q, x->d},
               {l->qk ? "k" : "b", x->k, x->d},
               {"f", x->qf, x->df},
               {"d", x->delta, 1}};
    for (size_t w = 0; w < 4; w++) {
        size_t at = sd_first_nonfinite_f64(all[w].p, n * all[w].cols);
        if (at < n * all[w].cols)
            return sd_fail(err, SD_ENUMERIC, "non-finite %s at token %zu, column %zu", all[w].name,
                           at / all[w].cols, at % all[w].cols);
    }
    return SD_OK;
}

/* Streaming second moment of [Q K] for the pooled rank (METHOD §8.2: the uncentred one). */
static sd_status pool(head_job *x, sd_err *err) {
    size_t n = x->n, d = x->d, w = 2 * d;
    head_acc *a = x->a;
    if (!a->gram && !(a->gram = sd_alloc(w * w + 1, sizeof *a->gram, err)))
        return SD_ENOMEM;
    sd_gemm_f64(true, false, d, d, n, 1, x->q, d, x->q, d, 1, a->gram, w);
    sd_gemm_f64(true, false, d, d, n, 1, x->q, d, x->k, d, 1, a->gram + d, w);
    sd_gemm_f64(true, false, d, d, n, 1, x->k, d, x->k, d, 1, a->gram + d * w + d, w);
    a->rows += (double)n;
    return SD_OK;
}

/* R = S, F = −D: the filtering and the eigenvalues are not those of the factors. s: the spectrum of
 * (2αQ, K). */
static sd_status diagonal_only(head_job *x, sd_spectrum *s, sd_err *err) {
    size_t n = x->n;
    double ff = 0, sum = 0, var = 0, rr = s->fro2 * s->routing, *v = x->v;
    head_acc *a = x->a;
    sd_ranks fr;
    for (size_t i = 0; i < n; i++) {
        ff += x->delta[i] * x->delta[i];
        sum -= x->delta[i];
    }
    for (size_t i = 0; i < n; i++)
        var += (-x->delta[i] - sum / (double)n) * (-x->delta[i] - sum / (double)n);
    v[V_d_mean] = x->j->c->delta ? sum / (double)n : NAN;
    v[V_d_sd] = x->j->c->delta ? sqrt(var / (double)n) : NAN;
    s->fro2 = v[V_fro2] = rr + ff;
    if (s->fro2 > 0) {
        s->routing = v[V_routing] = rr / s->fro2;
        v[V_filtering] = ff / s->fro2;
        v[V_dir_frac] = sqrt(rr / s->fro2);
    }
    sd_ranks_of(x->delta, n, false, &fr);
    sd_spectral_put_ranks(v + V_ranks_f, &fr);
    if (a->n_seqs)
        return SD_OK;
    if (!(a->f_lambda = copy(x->delta, n, err)))
        return SD_ENOMEM;
    qsort(a->f_lambda, n, sizeof(double), ascending);
    a->n_f = n;
    size_t m = n < LAMBDA_TOKENS ? n : LAMBDA_TOKENS;
    return dense_lambda(x->j->p->what, m, x->d, x->q, x->k, x->delta, a, v, err);
}

/* The spectra of a head whose filtering has factors of its own: a truncated one. */
static sd_status spectrum_apart(const head_job *x, unsigned what, sd_spectrum *s, sd_err *err) {
    size_t n = x->n, d = x->d, df = x->df, w = 2 * (d + df);
    for (size_t i = 1; i < n; i++)
        if (x->delta[i] != x->delta[0])
            return sd_fail(err, SD_ENUMERIC, "a diagonal for each token beside filtering factors");
    double *u = sd_alloc_raw(n * w + 1, sizeof *u, err);
    if (!u)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        memcpy(u + i * w, x->q + i * d, d * sizeof *u);
        memcpy(u + i * w + d, x->k + i * d, d * sizeof *u);
        memcpy(u + i * w + 2 * d, x->qf + i * df, df * sizeof *u);
        memcpy(u + i * w + 2 * d + df, x->kf + i * df, df * sizeof *u);
    }
    reduced r;
    sd_status st = sd_spectral_reduce_apart(n, d, df, u, x->delta[0], &r, err);
    sd_free(u);
    SD_TRY(st);
    st = sd_spectral_spectrum_reduced(&r, NULL, what, s, err);
    sd_free(r.r);
    return st;
}

static sd_status keep_spectra(head_job *x, const sd_spectrum *s, sd_err *err) {
    head_acc *a = x->a;
    if (!x->j->l->skew && !a->n_seqs) {
        a->f_lambda = copy(s->f_lambda, s->n_f, err);
        a->lambda_re = copy(s->lambda_re, s->n_lambda, err);
        a->lambda_im = copy(s->lambda_im, s->n_lambda, err);
        if (!a->f_lambda || !a->lambda_re || !a->lambda_im)
            return SD_ENOMEM;
        a->n_f = s->n_f;
        a->n_lambda = s->n_lambda;
    }
    if (!a->planes) {
        a->planes = sd_alloc(x->d + 1, sizeof *a->planes, err);
        a->n_planes = s->n_planes;
        if (!a->planes)
            return SD_ENOMEM;
    }
    for (size_t i = 0; i < s->n_planes; i++)
        a->planes[i] += s->sigma[i];
    return SD_OK;
}

/* The same head without its biases. */
static sd_status nobias(head_job *x, sd_err *err) {
    const layer_acc *l = x->j->l;
    size_t n = x->n, d = x->d;
    sd_spectrum s;
    double *q = copy(x->q, n * d, err), *k = copy(x->k, n * d, err);
    sd_status st = q && k ? SD_OK : SD_ENOMEM;
    for (size_t i = 0; st == SD_OK && i < n; i++)
        for (size_t e = 0; e < d; e++) {
            q[i * d + e] -= x->scale * l->bq[x->h * d + e];
            k[i * d + e] -= l->bk[x->g * d + e];
        }
    if (st == SD_OK)
        st = sd_spectrum_of(n, d, q, k, SD_SPEC_R, &s, err);
    sd_free(q);
    sd_free(k);
    if (st != SD_OK)
        return st;
    if (s.rank.pr > 0)
        x->v[V_pr_nobias] = s.rank.pr;
    sd_spectrum_free(&s);
    return SD_OK;
}

/* The potential plane, and the ranks after centring over tokens (METHOD §5.1, §5.2). Q and K are
 * centred in place. rr: ‖R‖². */
static sd_status centred(head_job *x, double rr, sd_err *err) {
    size_t n = x->n, d = x->d;
    sd_spectrum s;
    double *mean = sd_alloc(2 * d + 1, sizeof *mean, err);
    if (!mean)
        return SD_ENOMEM;
    double ww = sd_spectral_potential_norm(n, d, x->q, x->k, mean, mean + d);
    bool some = !isnan(x->v[V_ranks_r]);
    if (some)
        x->v[V_phi] = 2 * (double)n * ww / rr;
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < d; e++) {
            x->q[i * d + e] -= mean[e];
            x->k[i * d + e] -= mean[d + e];
        }
    sd_free(mean);
    SD_TRY(sd_spectrum_of(n, d, x->q, x->k, SD_SPEC_R, &s, err));
    sd_spectral_put_ranks(x->v + V_ranks_c, &s.rank);
    if (some)
        x->v[V_c_share] = s.fro2 * s.routing / rr;
    sd_spectrum_free(&s);
    return SD_OK;
}

static sd_status head_values(head_job *x, sd_err *err) {
    const layer_acc *l = x->j->l;
    size_t n = x->n, d = x->d;
    SD_TRY(gather(x, err));
    SD_TRY(pool(x, err));
    x->scale = sd_attn_term_scale(x->j->c->cfg, &l->kind->routing);
    for (size_t i = 0; i < n * d; i++)
        x->q[i] *= x->scale;
    double f_scale = sd_attn_term_scale(x->j->c->cfg, &l->kind->filtering);
    for (size_t i = 0; i < n * x->df; i++)
        x->qf[i] *= f_scale;
    sd_spectrum s;
    unsigned what = l->skew ? SD_SPEC_R : x->j->p->what;
    SD_TRY(l->algebra == SD_SCORES_FACTORS ? spectrum_apart(x, what, &s, err)
                                           : sd_spectrum_of(n, d, x->q, x->k, what, &s, err));
    double rr = s.fro2 * s.routing;
    sd_spectral_put_spectrum(x->v, &s, what);
    sd_status st = l->skew ? diagonal_only(x, &s, err) : SD_OK;
    if (st == SD_OK)
        st = keep_spectra(x, &s, err);
    sd_spectrum_free(&s);
    SD_TRY(st);
    score_stats sc;
    score_factors f = {.n = n,
                       .d = d,
                       .df = x->df,
                       .q = x->q,
                       .k = x->k,
                       .qf = x->qf,
                       .kf = x->kf,
                       .delta = x->delta,
                       .product = l->algebra == SD_SCORES_PRODUCT,
                       .replace = l->kind->diagonal == SD_SCORE_DIAG_REPLACE,
                       .causal = x->j->p->causal,
                       .cfg = x->j->c->cfg};
    SD_TRY(sd_spectral_score_stats(&f, &sc, err));
    x->v[V_logit_sd] = sc.logit_sd;
    x->v[V_kl_uniform] = sc.kl_uniform;
    x->v[V_eff_ctx] = sc.eff_ctx;
    if (l->bq)
        SD_TRY(nobias(x, err));
    return centred(x, rr, err);
}

static sd_status capture_item(void *ctx, size_t i, int worker, sd_err *err) {
    (void)worker;
    capture_job *j = ctx;
    layer_acc *l = j->l;
    if (i >= (size_t)l->n_head) { // a draw of the null
        size_t draw = i - (size_t)l->n_head;
        sd_rng g;
        sd_rng_stream(&g, j->p->seed, ((uint64_t)j->c->layer << 32) | (uint64_t)j->p->seq, draw);
        return sd_spectral_null_draw(&j->null, l->d, &g, j->draw[draw], err);
    }
    head_acc *a = &l->head[i];
    if (a->status[0])
        return SD_OK;
    size_t n = (size_t)j->c->tokens;
    double v[V_COUNT];
    for (int c = 0; c < V_COUNT; c++)
        v[c] = NAN;
    head_job x = {.j = j,
                  .h = i,
                  .g = i / (size_t)(l->n_head / l->n_kv),
                  .n = n,
                  .d = l->d,
                  .df = l->df,
                  .a = a,
                  .v = v};
    x.q = sd_alloc_raw(n * l->d + 1, sizeof *x.q, err);
    x.k = sd_alloc_raw(n * l->d + 1, sizeof *x.k, err);
    x.qf = sd_alloc_raw(n * l->df + 1, sizeof *x.qf, err);
    x.kf = sd_alloc_raw(n * l->df + 1, sizeof *x.kf, err);
    x.delta = sd_alloc(n + 1, sizeof *x.delta, err);
    sd_status st = x.q && x.k && x.qf && x.kf && x.delta ? head_values(&x, err) : SD_ENOMEM;
    sd_free(x.q);
    sd_free(x.k);
    sd_free(x.qf);
    sd_free(x.kf);
    sd_free(x.delta);
    if (st == SD_ENUMERIC) { // this head is marked, the others go on
        snprintf(a->status, sizeof a->status, "%.90s", err ? err->text : "numerical failure");
        sd_err_clear(err);
        return SD_OK;
    }
    if (st != SD_OK)
        return st;
    sd_spectral_add_values(a->v, v);
    a->n_seqs++;
    return SD_OK;
}

/* Do queries and keys of this layer pass RoPE? Then so do the draws. */
static bool rotates(const capture_job *j) {
    return j->p->rot.n && j->l->kind->rope && j->l->qk;
}

static sd_status null_prepare(const capture_job *j, null_input *in, double **mem, sd_err *err) {
    const sd_capture *c = j->c;
    size_t n = (size_t)c->tokens, dm = (size_t)c->d_model;
    bool gram = n > dm && !rotates(j);
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
    *in = (null_input){.n = n,
                       .d_model = dm,
                       .x = x,
                       .gram = g,
                       .mean = mean,
                       .rot = rotates(j) ? &j->p->rot : NULL,
                       .product = j->l->algebra == SD_SCORES_PRODUCT,
                       .what = j->p->null_what};
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
    if (l->algebra == SD_SCORES_NONE) {
        char text[64];
        for (int h = 0; h < l->n_head; h++)
            snprintf(l->head[h].status, sizeof l->head[h].status, "%s",
                     sd_attn_no_scores(c->cfg, text));
        return SD_OK;
    }
    sd_status st = SD_OK;
    double *mem[3] = {0};
    capture_job j = {.p = p, .l = l, .c = c};
    int blas = sd_blas_threads(1); // the loop over heads and draws has the cores
    int draws = p->draws;
    for (size_t i = 0; c->x && draws && i < (size_t)c->tokens * (size_t)c->d_model; i++)
        if (!isfinite(c->x[i]))
            draws = 0;                        // the heads say so in their status
    if (!c->x || l->algebra == SD_SCORES_KEY) // one plane whatever the weights: nothing to compare
        draws = 0;
    if (draws) {
        j.draw = sd_alloc((size_t)draws, sizeof *j.draw, err);
        st = j.draw ? null_prepare(&j, &j.null, mem, err) : SD_ENOMEM;
    }
    if (st == SD_OK)
        st = sd_parallel((size_t)l->n_head + (size_t)draws, p->threads, capture_item, &j, err);
    sd_blas_threads(blas);
    for (int i = 0; st == SD_OK && i < draws; i++) // in order: sums do not depend on threads
        sd_spectral_add_values(l->null, j.draw[i]);
    for (int i = 0; i < 3; i++)
        sd_free(mem[i]);
    sd_free(j.draw);
    return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static sd_status pooled(const layer_acc *l, head_acc *a, double v[V_COUNT], sd_err *err) {
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
            v[V_pr_pooled] = r.pr;
        v[V_calib_rank] = (double)rank;
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
        double v[V_COUNT], sd[V_COUNT];
        for (int c = 0; c < V_COUNT; c++) {
            v[c] = a->v[c].n > 0 ? a->v[c].mean : NAN;
            sd[c] = a->v[c].n > 1 ? sd_spectral_moments_sd(&a->v[c]) : NAN;
        }
        SD_TRY(pooled(l, a, v, err));
        sd_spectral_set_values(t, row, NULL, v);
        sd_spectral_set_values(t, row, "_sd", sd);
        sd_spectral_set_null(t, row, v, l->null);
        for (size_t i = 0; i < a->n_planes; i++)
            a->planes[i] /= (double)a->n_seqs;
        SD_TRY(sd_table_set_vec(t, row, "planes", a->planes, a->n_planes, err));
        SD_TRY(sd_table_set_vec(t, row, "f_lambda", a->f_lambda, a->n_f, err));
        SD_TRY(sd_table_set_vec(t, row, "lambda_re", a->lambda_re, a->n_lambda, err));
        SD_TRY(sd_table_set_vec(t, row, "lambda_im", a->lambda_im, a->n_lambda, err));
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
    if (sd_model_config(m)->pos == SD_POS_ROPE || !l->qk)
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

/* What the analysed layers have among them. */
typedef struct traits {
    bool grouped, sd, factors, product, biased;
    size_t d_max;
} traits;

static sd_status headings(sd_table *t, sd_model *m, const probe_state *p, size_t ctx, size_t n,
                          const traits *w, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    bool only_sd = w->sd;
    for (int l = 0; l < c->n_layer; l++)
        only_sd &= !p->layer[l].wanted || p->layer[l].skew;
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
    if (w->grouped)
        SD_TRY(sd_table_heading(t, err,
                                "grouped queries: %d query heads share %d key heads; heads of a "
                                "group are not independent samples",
                                c->layer[0].n_head, c->layer[0].n_kv_head));
    if (w->sd)
        SD_TRY(sd_table_heading(t, err,
                                "S–D heads: R = S, F = −D; eigenvalues of L = S − D over the first "
                                "%d tokens of the first sequence at most",
                                LAMBDA_TOKENS));
    if (w->factors)
        SD_TRY(
            sd_table_heading(t, err,
                             "truncated layers by their factors: R = ABᵀ − BAᵀ, F = f diag(λ) fᵀ "
                             "+ δ; the null is of R alone"));
    if (ctx < 4 * w->d_max) {
        SD_TRY(sd_table_note(t, err,
                             "sequences of %zu tokens are shorter than 4d = %zu: the rank is "
                             "limited by the text, not only by the head",
                             ctx, 4 * w->d_max));
        sd_run_log(p->run, SD_LOG_WARN,
                   "probe: sequences of %zu tokens are shorter than 4d = %zu; ranks are limited by "
                   "the text",
                   ctx, 4 * w->d_max);
    }
    return SD_OK;
}

/* The spectra that the wanted columns need. */
static sd_status plan_spectra(probe_state *p, sd_err *err) {
    const column_plan *l = &p->plan;
    SD_TRY(sd_spectral_plan_check(l, err));
    p->what = SD_SPEC_ALL;
    if (sd_spectral_wants_any(l, V_ranks_m, V_ranks_m_end, false))
        p->what |= SD_SPEC_M;
    if (sd_spectral_wants_any(l, V_ranks_r + 1, V_ranks_r_end, true) ||
        sd_spectral_wants_any(l, V_ranks_c + 1, V_ranks_c_end, true))
        p->null_what |= SD_SPEC_R;
    if (sd_spectral_wants_any(l, V_ranks_f, V_ranks_f_end, true))
        p->null_what |= SD_SPEC_F;
    if (sd_spectral_wants_any(l, V_ranks_m, V_ranks_m_end, true))
        p->null_what |= SD_SPEC_M;
    return SD_OK;
}

/* Tokens a sequence and their number. */
static sd_status sequences(sd_model *m, size_t n, const sd_probe_opts *o, const sd_run *run,
                           size_t *ctx, int *n_seqs, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    if (n < 2)
        return sd_fail(err, SD_EINVAL, "probe needs at least 2 tokens, got %zu", n);
    if (o->ctx < 0 || o->max_seqs < 0)
        return sd_fail(err, SD_EINVAL, "ctx and max_seqs cannot be negative");
    if (c->pos == SD_POS_LEARNED && o->ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "ctx %d: the position table of %s holds %d", o->ctx,
                       sd_model_name(m), c->n_pos);
    if (c->pos == SD_POS_ROPE && o->ctx > c->n_pos && c->n_pos > 0)
        sd_run_log(run, SD_LOG_WARN, "probe: ctx %d is beyond the trained context of %d", o->ctx,
                   c->n_pos);
    *ctx = (size_t)(o->ctx ? o->ctx : sd_calib_ctx(c));
    if (*ctx > n)
        *ctx = n;
    if (*ctx < 2)
        return sd_fail(err, SD_EINVAL, "ctx %zu: a sequence needs at least 2 tokens", *ctx);
    size_t fit = n / *ctx, limit = o->max_seqs ? (size_t)o->max_seqs : 8;
    *n_seqs = (int)(fit < limit ? fit : limit);
    return SD_OK;
}

static sd_status add_layer(sd_model *m, int i, layer_acc *l, traits *w, sd_err *err) {
    const sd_layer_cfg *lc = &sd_model_config(m)->layer[i];
    l->cfg = lc;
    l->kind = sd_attn_of(lc);
    l->algebra = sd_attn_algebra_of(lc);
    l->skew = l->algebra == SD_SCORES_SKEW || l->algebra == SD_SCORES_KEY;
    l->qk = l->kind && l->kind->routing.k == SD_SLOT_K;
    l->d = l->kind ? sd_attn_term_width(lc, &l->kind->routing) : 0;
    l->df = l->algebra == SD_SCORES_FACTORS ? sd_attn_term_width(lc, &l->kind->filtering) : 0;
    l->n_kv = l->qk ? lc->n_kv_head : lc->n_head;
    l->head = sd_alloc((size_t)lc->n_head, sizeof *l->head, err);
    if (!l->head)
        return SD_ENOMEM;
    SD_TRY(biases(m, i, l, &w->biased, err));
    w->grouped |= l->n_kv != lc->n_head;
    w->sd |= l->skew;
    w->factors |= l->algebra == SD_SCORES_FACTORS;
    w->product |= l->algebra == SD_SCORES_PRODUCT;
    w->d_max = l->d > w->d_max ? l->d : w->d_max;
    return SD_OK;
}

static sd_status fill_table(sd_table *t, sd_model *m, const probe_state *p, size_t ctx, size_t n,
                            const traits *w, sd_err *err) {
    SD_TRY(sd_spectral_add_columns(t, &p->plan, w->grouped, err));
    SD_TRY(headings(t, m, p, ctx, n, w, err));
    SD_TRY(sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_TRY(sd_table_meta_str(t, "level", "tokens", err));
    SD_TRY(sd_table_meta_num(t, "ctx", (double)ctx, err));
    SD_TRY(sd_table_meta_num(t, "sequences", p->n_seqs, err));
    SD_TRY(sd_table_meta_num(t, "tokens", (double)ctx * p->n_seqs, err));
    SD_TRY(sd_table_meta_num(t, "null_draws", p->draws, err));
    SD_TRY(sd_table_meta_num(t, "seed", (double)p->seed, err));
    int blas = sd_blas_threads(1);
    sd_status st = SD_OK;
    for (int i = 0; st == SD_OK && i < p->n_layer; i++)
        if (p->layer[i].wanted)
            st = put_rows(t, p, i, err);
    sd_blas_threads(blas);
    return st == SD_OK ? sd_spectral_note_marked(t, err) : st;
}

sd_status sd_probe(sd_model *m, const int32_t *ids, size_t n, const sd_probe_opts *opts,
                   const sd_run *run, sd_table **out, sd_err *err) {
    sd_probe_opts o = opts ? *opts : (sd_probe_opts){0};
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    bool *mask = NULL;
    sd_table *t = NULL;
    size_t ctx = 0;
    traits w = {0};
    int draws = o.null_draws == 0 ? 20 : o.null_draws < 0 ? 0 : o.null_draws;
    probe_state p = {.run = run,
                     .n_layer = c->n_layer,
                     .draws = draws,
                     .threads = sd_run_threads(run),
                     .seed = o.seed,
                     .causal = c->causal};
    *out = NULL;
    SD_TRY(sequences(m, n, &o, run, &ctx, &p.n_seqs, err));
    SD_GO(st, out, sd_spectral_layers(o.layers, c->n_layer, &mask, err));
    p.layer = sd_alloc((size_t)c->n_layer, sizeof *p.layer, err);
    if (!p.layer) {
        st = SD_ENOMEM;
        goto out;
    }
    for (int i = 0; i < c->n_layer; i++) {
        p.layer[i].wanted = mask[i];
        p.layer[i].n_head = c->layer[i].n_head;
        if (mask[i])
            SD_GO(st, out, add_layer(m, i, &p.layer[i], &w, err));
    }
    p.plan = (column_plan){.in = SD_IN_PROBE,
                           .have = (w.sd ? SD_WHEN_SD : 0u) | (w.biased ? SD_WHEN_BIASED : 0u),
                           .nulls = p.draws > 0,
                           .spread = p.n_seqs > 1,
                           .hide_kernel = w.sd && !w.product,
                           .columns = o.columns};
    SD_GO(st, out, plan_spectra(&p, err));
    if (c->pos == SD_POS_ROPE)
        SD_GO(st, out, sd_spectral_rotary(&c->rope, 0, ctx, &p.rot, err));
    sd_forward_opts fo = {
        .run = run, .capture = on_capture, .capture_ctx = &p, .stop_after_capture = true};
    for (p.seq = 0; p.seq < p.n_seqs; p.seq++)
        SD_GO(st, out, sd_forward(m, ids + (size_t)p.seq * ctx, 1, (int)ctx, &fo, NULL, NULL, err));
    sd_run_progress(run, "probe", 1, 1);
    t = sd_table_new("probe", err);
    st = t ? fill_table(t, m, &p, ctx, n, &w, err) : SD_ENOMEM;
    if (st == SD_OK) {
        *out = t;
        t = NULL;
    }
out:
    layers_free(p.layer, c->n_layer);
    sd_spectral_rotary_free(&p.rot);
    sd_free(mask);
    sd_table_unref(t);
    return st;
}

/* ---- capture as tensors ---------------------------------------------------------------------- */

typedef struct keep {
    int layer;
    const char *what;
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
    const struct {
        char name;
        const float *src;
        int a, b;
        sd_tensor **out;
    } all[] = {{'x', c->x, c->d_model, 0, &o->x},
               {'q', c->q, c->n_head, c->d_qk, &o->q},
               {'k', c->k, c->n_kv_head, c->d_qk, &o->k},
               {'v', c->v, c->n_kv_head, c->d_v, &o->v},
               {'d', c->d, c->n_head, 0, &o->d}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!k->what || strchr(k->what, all[i].name))
            SD_TRY(tensor_of(all[i].src, c->tokens, all[i].a, all[i].b, all[i].out, err));
    return SD_OK;
}

sd_status sd_probe_capture(sd_model *m, const int32_t *ids, size_t n, int layer, const char *what,
                           const sd_run *run, sd_captured *out, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    memset(out, 0, sizeof *out);
    if (layer < 0 || layer >= c->n_layer)
        return sd_fail(err, SD_EINVAL, "expected layer 0..%d, got %d", c->n_layer - 1, layer);
    if (n < 1 || n > INT32_MAX)
        return sd_fail(err, SD_EINVAL, "capture needs 1 token or more, got %zu", n);
    keep k = {.layer = layer, .what = what, .out = out};
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
