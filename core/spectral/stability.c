/* stability.c: what S–D promises about L = S − D, and controls that must fail (METHOD §6).
 *
 * (a) structural, exact at any N: L_ij + L_ji == 0 bit for bit off the diagonal and L_ii < 0. Every
 *     entry is computed on its own from q, k in f32, none is mirrored, so that the test can fail.
 * (b) spectral: max Re λ(L) <= −min d + tol and |Im λ| <= σ₁(S) + tol (Bendixson), tol = 64·u·‖L‖.
 * (c) controls: S + D, and the same projections as a plain head α·QKᵀ, put to the same tests. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/forward.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "spectral/internal.h"

enum { STABLE_TOKENS = 256, CONTROL_TOKENS = 128 };

typedef struct test_row {
    int layer, head, pass, expect; /* expect −1: either way */
    const char *test;
    double value, bound, min_d, sigma1, max_im;
    bool spectral;
} test_row;

enum { TESTS = 6 };

typedef struct stab_job {
    const sd_capture *c;
    const sd_run *run;
    test_row *row; // (H, TESTS)
    int *n_row;    // (H)
} stab_job;

static float dot_f32(size_t n, const float *a, const float *b) {
    float s = 0; // fixed order: dot(a, b) == dot(b, a) bit for bit
    for (size_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

/* One head's scores by factors in f32 (nn/attn.h), and what its row of the capture says. */
typedef struct factors {
    const sd_attn_kind *kind;
    size_t n, r, f; // tokens; widths of the terms
    float scale, f_scale;
    float *qr, *kr, *qf, *kf; // (N, r), (N, f)
    const float *delta;       // element i at delta[i * ldd]; NULL: 0
    size_t ldd;
} factors;

static void factors_free(factors *x) {
    sd_free(x->qr);
    sd_free(x->kr);
    sd_free(x->qf);
    sd_free(x->kf);
}

static sd_status term(const sd_capture *c, const sd_attn_term *t, int head, size_t w, float **q,
                      float **k, sd_err *err) {
    size_t n = c->slots.rows * w;
    *q = sd_alloc(n + 1, sizeof **q, err);
    *k = sd_alloc(n + 1, sizeof **k, err);
    double *x = sd_alloc(2 * n + 1, sizeof *x, err);
    if (!*q || !*k || !x) {
        sd_free(x);
        return SD_ENOMEM;
    }
    sd_attn_term_factors(c->cfg, t, &c->slots, head, x, x + n);
    for (size_t i = 0; i < n; i++) {
        (*q)[i] = (float)x[i];
        (*k)[i] = (float)x[n + i];
    }
    sd_free(x);
    return SD_OK;
}

static sd_status factors_of(const sd_capture *c, int head, factors *x, sd_err *err) {
    const sd_attn_kind *k = sd_attn_of(c->cfg);
    *x = (factors){.kind = k,
                   .n = (size_t)c->tokens,
                   .r = sd_attn_term_width(c->cfg, &k->routing),
                   .f = sd_attn_term_width(c->cfg, &k->filtering),
                   .scale = (float)sd_attn_term_scale(c->cfg, &k->routing),
                   .f_scale = (float)sd_attn_term_scale(c->cfg, &k->filtering),
                   .delta = c->delta ? c->delta + head : NULL,
                   .ldd = (size_t)c->n_head};
    SD_TRY(term(c, &k->routing, head, x->r, &x->qr, &x->kr, err));
    return term(c, &k->filtering, head, x->f, &x->qf, &x->kf, err);
}

/* l (n, n): the head's M with its diagonal times sign. A product is formed as one, so that it can
 * fail to be skew; the routing of the others term by term, none mirrored. */
static void scores(const factors *x, sd_attn_algebra algebra, size_t n, float sign, float *l) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            size_t r = x->r, f = x->f;
            float s = dot_f32(r, x->qr + i * r, x->kr + j * r);
            if (algebra == SD_SCORES_PRODUCT) {
                s *= x->scale;
            } else {
                s -= dot_f32(r, x->kr + i * r, x->qr + j * r);
                s *= 0.5f * x->scale;
                if (f)
                    s += 0.5f * x->f_scale *
                         (dot_f32(f, x->qf + i * f, x->kf + j * f) +
                          dot_f32(f, x->kf + i * f, x->qf + j * f));
            }
            float d = i == j && x->delta ? sign * x->delta[i * x->ldd] : 0;
            if (i == j && x->kind->diagonal != SD_SCORE_DIAG_PLAIN)
                s = x->kind->diagonal == SD_SCORE_DIAG_REPLACE ? d : s + d;
            l[i * n + j] = s;
        }
}

/* The control: the routing's factors as a plain head, c·Q_R K_Rᵀ with half the factor. */
static void plain_scores(const factors *x, size_t n, float *l) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            l[i * n + j] = 0.5f * x->scale * dot_f32(x->r, x->qr + i * x->r, x->kr + j * x->r);
}

static void structural(size_t n, const float *l, test_row *r) {
    float worst = 0;
    bool pass = true;
    for (size_t i = 0; i < n; i++) {
        if (!(l[i * n + i] < 0))
            pass = false;
        for (size_t j = i + 1; j < n; j++) {
            float sum = l[i * n + j] + l[j * n + i];
            if (sum != 0) // a NaN is not zero either
                pass = false;
            if (fabsf(sum) > worst || isnan(sum))
                worst = fabsf(sum);
        }
    }
    r->pass = pass;
    r->value = worst;
    r->bound = 0;
}

/* min_d <= 0: a head without D, held to Re λ <= tol alone. */
static sd_status spectral(size_t n, const float *l, double min_d, test_row *r, sd_err *err) {
    double *a = sd_alloc_raw(n * n + 1, sizeof *a, err);
    double *re = sd_alloc(n + 1, sizeof *re, err), *im = sd_alloc(n + 1, sizeof *im, err);
    double *sigma = sd_alloc(n / 2 + 1, sizeof *sigma, err);
    sd_status st = SD_OK;
    if (!a || !re || !im || !sigma) {
        st = SD_ENOMEM;
        goto out;
    }
    for (size_t i = 0; i < n * n; i++)
        a[i] = l[i];
    double fro = sd_nrm2_f64(n * n, a), tol = 64 * SD_UNIT_ROUNDOFF * fro;
    SD_GO(st, out, sd_eig(n, a, re, im, NULL, err));
    double top = -HUGE_VAL, max_im = 0;
    for (size_t i = 0; i < n; i++) {
        top = fmax(top, re[i]);
        max_im = fmax(max_im, fabs(im[i]));
    }
    for (size_t i = 0; i < n; i++) // the skew part; of a plain head too
        for (size_t j = i + 1; j < n; j++)
            a[i * n + j] = 0.5 * ((double)l[i * n + j] - (double)l[j * n + i]);
    SD_GO(st, out, sd_skew_planes(n, a, sigma, NULL, NULL, err));
    r->spectral = true;
    r->sigma1 = n > 1 ? sigma[0] : 0;
    r->max_im = max_im;
    r->min_d = min_d;
    r->value = top;
    r->bound = (min_d > 0 ? -min_d : 0) + tol;
    r->pass = top <= r->bound && max_im <= r->sigma1 + tol;
out:
    sd_free(a);
    sd_free(re);
    sd_free(im);
    sd_free(sigma);
    return st;
}

/* S + D and the plain head, put to the same tests (METHOD §6c). */
static sd_status controls(const factors *x, sd_attn_algebra algebra, double min_d, float *l,
                          test_row *r, int *at, sd_err *err) {
    size_t m = x->n < CONTROL_TOKENS ? x->n : CONTROL_TOKENS;
    int i = *at;
    scores(x, algebra, m, -1, l);
    r[i].test = "control S+D structural";
    r[i].expect = 0;
    structural(m, l, &r[i++]);
    r[i].test = "control S+D spectral";
    r[i].expect = 0;
    SD_TRY(spectral(m, l, min_d, &r[i++], err));
    plain_scores(x, m, l);
    r[i].test = "control plain structural";
    r[i].expect = 0;
    structural(m, l, &r[i++]);
    r[i].test = "control plain spectral";
    SD_TRY(spectral(m, l, 0, &r[i], err));
    r[i].expect = r[i].value > r[i].bound ? 0 : -1;
    *at = i + 1;
    return SD_OK;
}

static sd_status stab_head(void *ctx, size_t h, int worker, sd_err *err) {
    (void)worker;
    stab_job *j = ctx;
    const sd_capture *c = j->c;
    bool sd = sd_attn_is_skew(c->cfg);
    sd_attn_algebra algebra = sd_attn_algebra_of(c->cfg);
    size_t n = (size_t)c->tokens;
    test_row *r = j->row + h * TESTS;
    factors x;
    sd_status st = factors_of(c, (int)h, &x, err);
    float *l = NULL;
    if (st != SD_OK)
        goto out;
    bool has_d = false;
    double min_d = sd && x.delta ? HUGE_VAL : 0;
    for (size_t i = 0; sd && x.delta && i < n; i++) {
        min_d = fmin(min_d, -x.delta[i * x.ldd]);
        has_d |= x.delta[i * x.ldd] != 0;
    }
    if (!(l = sd_alloc_raw(n * n + 1, sizeof *l, err))) {
        st = SD_ENOMEM;
        goto out;
    }
    for (int t = 0; t < TESTS; t++)
        r[t] = (test_row){.layer = c->layer, .head = (int)h, .expect = -1};
    scores(&x, algebra, n, 1, l);
    size_t at = sd_first_nonfinite_f32(l, n * n);
    int i = 0;
    r[i].test = "structural";
    r[i].expect = sd && !has_d ? -1 : sd; // without D there is no L_ii < 0 to promise
    if (at < n * n) {
        r[0].value = NAN;
        j->n_row[h] = 1;
        goto out;
    }
    structural(n, l, &r[i++]);
    r[i].test = "spectral";
    r[i].expect = sd ? 1 : -1;
    SD_GO(st, out, spectral(n, l, min_d, &r[i], err));
    if (!sd) // whose max Re λ exceeds the tolerance must fail: said, and checked by `value`
        r[i].expect = !(r[i].value > r[i].bound) ? -1 : 0;
    i++;
    if (has_d)
        SD_GO(st, out, controls(&x, algebra, min_d, l, r, &i, err));
    j->n_row[h] = i;
out:
    factors_free(&x);
    sd_free(l);
    return st;
}

typedef struct stab_state {
    const sd_run *run;
    sd_table *t;
    int n_layer, bad, rows, skipped;
    bool sd_seen, plain_seen;
} stab_state;

static sd_status put(stab_state *s, const test_row *r, sd_err *err) {
    int row;
    sd_table *t = s->t;
    SD_TRY(sd_table_add_row(t, &row, err));
    sd_table_set_int(t, row, "layer", r->layer);
    sd_table_set_int(t, row, "head", r->head);
    SD_TRY(sd_table_set_str(t, row, "test", r->test, err));
    bool ok = r->expect < 0 || r->pass == r->expect;
    sd_table_set_int(t, row, "pass", r->pass);
    sd_table_set_int(t, row, "expect", r->expect);
    sd_table_set_int(t, row, "ok", ok);
    sd_table_set_num(t, row, "value", r->value);
    sd_table_set_num(t, row, "bound", r->bound);
    if (r->spectral) {
        sd_table_set_num(t, row, "sigma1", r->sigma1);
        sd_table_set_num(t, row, "max_im", r->max_im);
        if (r->min_d > 0)
            sd_table_set_num(t, row, "min_d", r->min_d);
    }
    s->rows++;
    s->bad += !ok;
    return SD_OK;
}

static sd_status on_capture(void *ctx, const sd_capture *c, sd_err *err) {
    stab_state *s = ctx;
    sd_run_progress(s->run, "stability", c->layer, s->n_layer);
    SD_TRY(sd_check_cancel(err));
    bool sd = sd_attn_is_skew(c->cfg);
    if (sd_attn_algebra_of(c->cfg) == SD_SCORES_NONE) {
        s->skipped++;
        return SD_OK;
    }
    s->sd_seen |= sd;
    s->plain_seen |= !sd;
    size_t heads = (size_t)c->n_head;
    stab_job j = {.c = c, .run = s->run};
    j.row = sd_alloc(heads * TESTS, sizeof *j.row, err);
    j.n_row = sd_alloc(heads, sizeof *j.n_row, err);
    sd_status st = j.row && j.n_row ? SD_OK : SD_ENOMEM;
    int blas = sd_blas_threads(1);
    if (st == SD_OK)
        st = sd_parallel(heads, sd_run_threads(s->run), stab_head, &j, err);
    sd_blas_threads(blas);
    for (size_t h = 0; st == SD_OK && h < heads; h++)
        for (int i = 0; st == SD_OK && i < j.n_row[h]; i++)
            st = put(s, &j.row[h * TESTS + (size_t)i], err);
    sd_free(j.row);
    sd_free(j.n_row);
    return st;
}

sd_status sd_stability(sd_model *m, const int32_t *ids, size_t n, const sd_run *run, sd_table **out,
                       sd_err *err) {
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    *out = NULL;
    if (n < 2)
        return sd_fail(err, SD_EINVAL, "stability needs at least 2 tokens, got %zu", n);
    size_t take = n < STABLE_TOKENS ? n : STABLE_TOKENS;
    if (c->pos == SD_POS_LEARNED && take > (size_t)c->n_pos)
        take = (size_t)c->n_pos;
    stab_state s = {.run = run, .n_layer = c->n_layer};
    sd_table *t = s.t = sd_table_new("stability", err);
    if (!t)
        return SD_ENOMEM;
    static const struct {
        const char *name;
        sd_col_kind kind;
        const char *doc;
        bool wide;
    } cols[] = {
        {"layer", SD_COL_INT, "layer, from 0", false},
        {"head", SD_COL_INT, "head, from 0", false},
        {"test", SD_COL_STR, "what was tested; control = must fail", false},
        {"pass", SD_COL_INT, "1: the test passed", false},
        {"expect", SD_COL_INT, "1: must pass, 0: must fail, -1: either", false},
        {"ok", SD_COL_INT, "1: as it must be", false},
        {"value", SD_COL_NUM, "structural: max |L_ij + L_ji|; spectral: max Re λ", false},
        {"bound", SD_COL_NUM, "structural: 0; spectral: −min d + 64·u·‖L‖ (no D: 64·u·‖L‖)", false},
        {"min_d", SD_COL_NUM, "smallest diagonal d", true},
        {"max_im", SD_COL_NUM, "max |Im λ|", true},
        {"sigma1", SD_COL_NUM, "strongest plane of S: bounds |Im λ|", true},
    };
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        SD_GO(st, fail,
              sd_table_add_column(t, cols[i].name, cols[i].kind, cols[i].doc, cols[i].wide, NULL,
                                  err));
    sd_forward_opts fo = {
        .run = run, .capture = on_capture, .capture_ctx = &s, .stop_after_capture = true};
    SD_GO(st, fail, sd_forward(m, ids, 1, (int)take, &fo, NULL, NULL, err));
    sd_run_progress(run, "stability", c->n_layer, c->n_layer);
    SD_GO(st, fail,
          sd_table_heading(t, err,
                           "%s: stability of the unmasked, pre-softmax L over %zu tokens; controls "
                           "over %d at most",
                           sd_model_name(m), take, CONTROL_TOKENS));
    SD_GO(st, fail,
          sd_table_heading(t, err,
                           "structural: L_ij + L_ji == 0 bit for bit, L_ii < 0; spectral: Re λ <= "
                           "−min d, |Im λ| <= σ₁(S), tolerance 64·u·‖L‖"));
    SD_GO(st, fail, sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_GO(st, fail, sd_table_meta_num(t, "tokens", (double)take, err));
    SD_GO(st, fail, sd_table_meta_num(t, "ok", s.bad == 0 && s.rows > 0, err));
    if (s.plain_seen)
        SD_GO(st, fail,
              sd_table_note(t, err,
                            "standard heads promise nothing: structural must fail, and spectral "
                            "wherever max Re λ exceeds the tolerance"));
    if (s.skipped)
        SD_GO(st, fail, sd_table_note(t, err, "%d layers have no scores: no L to test", s.skipped));
    SD_GO(st, fail,
          sd_table_note(t, err, "%s: %d of %d rows behave as they must", s.bad ? "NOT OK" : "ok",
                        s.rows - s.bad, s.rows));
    *out = t;
    return SD_OK;
fail:
    sd_table_unref(t);
    return st;
}
