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

/* l (n, n): S − sign·D of an S–D head, or the plain head c·q_i·k_j (skew = false). */
static void scores(size_t n, size_t d, const float *q, size_t ldq, const float *k, size_t ldk,
                   float scale, bool skew, const float *diag, size_t ldd, float sign, float *l) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            float s = dot_f32(d, q + i * ldq, k + j * ldk);
            if (skew)
                s -= dot_f32(d, k + i * ldk, q + j * ldq);
            s *= scale;
            if (skew && i == j)
                s = diag ? -sign * diag[i * ldd] : 0;
            l[i * n + j] = s;
        }
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

static sd_status stab_head(void *ctx, size_t h, int worker, sd_err *err) {
    (void)worker;
    stab_job *j = ctx;
    const sd_capture *c = j->c;
    bool sd = !strcmp(c->kind, "sd");
    size_t n = (size_t)c->tokens, d = (size_t)c->d_qk;
    size_t ldq = (size_t)c->n_head * d, ldk = (size_t)c->n_kv_head * d;
    const float *q = c->q + h * d, *k = c->k + h / (size_t)(c->n_head / c->n_kv_head) * d;
    const float *diag = sd && c->d ? c->d + h : NULL;
    size_t ldd = (size_t)c->n_head;
    float scale = (float)c->scale;
    test_row *r = j->row + h * TESTS;
    double min_d = diag ? HUGE_VAL : 0;
    for (size_t i = 0; diag && i < n; i++)
        min_d = fmin(min_d, diag[i * ldd]);
    float *l = sd_alloc_raw(n * n + 1, sizeof *l, err);
    if (!l)
        return SD_ENOMEM;
    sd_status st = SD_OK;
    for (int t = 0; t < TESTS; t++)
        r[t] = (test_row){.layer = c->layer, .head = (int)h, .expect = -1};
    scores(n, d, q, ldq, k, ldk, scale, sd, diag, ldd, 1, l);
    size_t at = sd_first_nonfinite_f32(l, n * n);
    if (at < n * n) {
        r[0].test = "structural";
        r[0].expect = sd;
        r[0].value = NAN;
        j->n_row[h] = 1;
        goto out;
    }
    int i = 0;
    r[i].test = "structural";
    r[i].expect = sd;
    structural(n, l, &r[i++]);
    r[i].test = "spectral";
    r[i].expect = sd ? 1 : -1;
    SD_GO(st, out, spectral(n, l, min_d, &r[i], err));
    if (!sd) // whose max Re λ exceeds the tolerance must fail: said, and checked by `value`
        r[i].expect = !(r[i].value > r[i].bound) ? -1 : 0;
    i++;
    if (sd) {
        size_t m = n < CONTROL_TOKENS ? n : CONTROL_TOKENS;
        scores(m, d, q, ldq, k, ldk, scale, true, diag, ldd, -1, l);
        r[i].test = "control S+D structural";
        r[i].expect = 0;
        structural(m, l, &r[i++]);
        r[i].test = "control S+D spectral";
        r[i].expect = 0;
        SD_GO(st, out, spectral(m, l, min_d, &r[i++], err));
        scores(m, d, q, ldq, k, ldk, scale, false, NULL, 0, 0, l);
        r[i].test = "control plain structural";
        r[i].expect = 0;
        structural(m, l, &r[i++]);
        r[i].test = "control plain spectral";
        SD_GO(st, out, spectral(m, l, 0, &r[i], err));
        r[i].expect = r[i].value > r[i].bound ? 0 : -1;
        i++;
    }
    j->n_row[h] = i;
out:
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
    bool sd = !strcmp(c->kind, "sd");
    if ((!sd && strcmp(c->kind, "softmax") != 0) || !c->q || !c->k) {
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
        SD_GO(st, fail,
              sd_table_note(t, err, "%d layers of other attention kinds have no L to test",
                            s.skipped));
    SD_GO(st, fail,
          sd_table_note(t, err, "%s: %d of %d rows behave as they must", s.bad ? "NOT OK" : "ok",
                        s.rows - s.bad, s.rows));
    *out = t;
    return SD_OK;
fail:
    sd_table_unref(t);
    return st;
}
