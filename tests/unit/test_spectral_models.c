/* Weight and token level of whole models: the bundled ones against an independent f64 forward pass
 * (tests/ref/spectral.py), every token-level column against dense N×N recomputation from the
 * program's own captured Q and K, nulls, options, marks of bad heads, stability. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/probe.h"

static sd_err err;
static json_t *ref;
static sd_model *sd_m, *gpt2_m;

static void ok(sd_status st) {
    if (st != SD_OK)
        fail_msg("status %d: %s", st, err.text);
}

static void rel(const char *what, double got, double want, double tol) {
    if (!(fabs(got - want) <= tol * fmax(1, fabs(want))))
        fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static int setup(void **state) {
    (void)state;
    ref = json_load_file("tests/ref/spectral_models.json", 0, NULL);
    if (!ref || sd_model_open("data/interim-sd", NULL, &sd_m, &err) != SD_OK ||
        sd_model_open("data/interim-gpt2", NULL, &gpt2_m, &err) != SD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    json_decref(ref);
    sd_model_unref(sd_m);
    sd_model_unref(gpt2_m);
    return 0;
}

static double cell(const sd_table *t, int row, const char *name) {
    double v;
    if (!sd_spectral_get(t, row, name, &v))
        fail_msg("row %d has no %s", row, name);
    return v;
}

static bool has(const sd_table *t, int row, const char *name) {
    double v;
    return sd_spectral_get(t, row, name, &v);
}

static size_t ids_of(const char *model, int32_t *ids) {
    json_t *a = json_object_get(json_object_get(ref, model), "ids");
    for (size_t i = 0; i < json_array_size(a); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return json_array_size(a);
}

static void check_row(const sd_table *t, json_t *e, double tol) {
    int layer = (int)json_integer_value(json_object_get(e, "layer"));
    int head = (int)json_integer_value(json_object_get(e, "head"));
    int row = sd_table_find_row(t, layer, head);
    assert_true(row >= 0);
    const char *in_file;
    json_t *v;
    json_object_foreach(json_object_get(e, "expect"), in_file, v) {
        const char *key = sd_column_renamed(in_file) ? sd_column_renamed(in_file) : in_file;
        if (json_is_array(v)) {
            size_t n;
            const double *x = sd_table_vec(t, row, sd_table_find_col(t, key), &n);
            assert_true(n >= json_array_size(v));
            for (size_t i = 0; i < json_array_size(v); i++)
                rel(key, x[i], json_number_value(json_array_get(v, i)), tol * fmax(1, fabs(x[0])));
        } else {
            // A count may step by a plane where the energy sits on the threshold.
            double slack = key[0] == 'n' || !strncmp(key, "f_n", 3) ? (tol > 1e-6 ? 2.01 : 0) : 0;
            double got = cell(t, row, key), want = json_number_value(v);
            if (!(fabs(got - want) <= tol * fmax(1, fabs(want)) + slack))
                fail_msg("layer %d head %d %s: got %.12g, want %.12g", layer, head, key, got, want);
        }
    }
}

static void weights_against_numpy(void **state) {
    (void)state;
    const char *names[] = {"interim-sd", "interim-gpt2"};
    sd_model *m[] = {sd_m, gpt2_m};
    for (int i = 0; i < 2; i++) {
        sd_table *t;
        sd_heads_opts o = {.null_draws = 20, .seed = 1};
        ok(sd_heads(m[i], &o, NULL, &t, &err));
        assert_int_equal(sd_table_rows(t), 24);
        json_t *a = json_object_get(json_object_get(ref, names[i]), "heads"), *e;
        size_t at;
        json_array_foreach(a, at, e) check_row(t, e, 1e-9);
        assert_true(at >= 6);
        // Nulls of D = 256, d = 64 beside every head; S–D budgets are no kernel's.
        double p = cell(t, 0, "pr_null");
        assert_true(p > 60 && p < 100 && cell(t, 0, "pr_null_sd") > 0);
        assert_true(cell(t, 0, "entropy_null") > p && cell(t, 0, "n90_null") > 60);
        assert_true(has(t, 0, "filtering") == (i == 1) && has(t, 0, "dir_frac") == (i == 1));
        assert_true(has(t, 0, "f_pr") == (i == 1) && has(t, 0, "max_re") == (i == 1));
        if (i == 1) {
            rel("dir_frac_null", cell(t, 0, "dir_frac_null"), sqrt(0.5), 0.01);
            assert_true(has(t, 0, "max_re_null"));
            rel("shares", cell(t, 3, "routing") + cell(t, 3, "filtering"), 1, 1e-12);
        }
        assert_true(sd_table_n_heading(t) > 0);
        assert_non_null(strstr(sd_table_heading_at(t, 0), "not folded")
                            ? ""
                            : strstr(sd_table_heading_at(t, 0), "no norm"));
        sd_table_unref(t);
    }
}

static void tokens_against_numpy(void **state) {
    (void)state;
    const char *names[] = {"interim-sd", "interim-gpt2"};
    sd_model *m[] = {sd_m, gpt2_m};
    for (int i = 0; i < 2; i++) {
        int32_t ids[512];
        size_t n = ids_of(names[i], ids);
        sd_table *t;
        sd_probe_opts o = {.ctx = (int)n, .null_draws = 20, .seed = 1};
        ok(sd_probe(m[i], ids, n, &o, NULL, &t, &err));
        assert_int_equal(sd_table_rows(t), 24);
        json_t *a = json_object_get(json_object_get(ref, names[i]), "tokens"), *e;
        size_t at;
        json_array_foreach(a, at, e) check_row(t, e, 1e-3);
        assert_int_equal(at, 24);
        sd_table *s;
        ok(sd_rank_summary(t, 3, &s, &err));
        assert_int_equal(sd_table_rows(s), 6);
        for (int l = 0; l < 6; l++) {
            // METHOD §5: the median stands below the random-weight null on the same activations.
            assert_true(cell(s, l, "pr") < cell(s, l, "pr_null"));
            double x[4], want;
            for (int h = 0; h < 4; h++)
                x[h] = cell(t, sd_table_find_row(t, l, h), "pr");
            want = sd_spectral_median(x, 4);
            rel("median", cell(s, l, "pr"), want, 1e-15);
            assert_int_equal((int)cell(s, l, "minimal"), want <= 3);
        }
        sd_table_unref(s);
        sd_table_unref(t);
    }
}

/* ---- dense recomputation from captured Q and K ------------------------------------------------
 */

typedef struct dense {
    sd_ranks r, f;
    double fro2, rr, ff, phi, c_pr, logit_sd, kl, eff, max_re, henrici;
    double sigma[4];
} dense;

/* Each pair of singular values of an N×N skew matrix as one plane. */
static void dense_routing(size_t n, const double *a, double tol, double *sigma, sd_ranks *r) {
    double *s = malloc(n * sizeof *s);
    ok(sd_svd(n, n, a, s, NULL, NULL, &err));
    for (size_t i = 0; i < n; i++)
        sigma[i] = s[i] <= tol ? 0 : s[i];
    for (size_t i = 0; 2 * i < n; i++)
        s[i] = sigma[2 * i];
    sd_ranks_of(s, n / 2, true, r);
    free(s);
}

static void dense_head(size_t n, size_t d, const double *q, const double *k, double scale,
                       const double *diag, dense *o) {
    double *m = calloc(n * n, sizeof *m), *r = calloc(n * n, sizeof *r),
           *f = calloc(n * n, sizeof *f);
    double *s = calloc(n, sizeof *s), *w = calloc(n, sizeof *w), *wi = calloc(n, sizeof *wi);
    bool sd = diag != NULL;
    double tol = 2 * (double)d * SD_UNIT_ROUNDOFF * sd_nrm2_f64(n * d, q) * sd_nrm2_f64(n * d, k) *
                 scale * (sd ? 2 : 1);
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double x = sd_dot_f64(d, q + i * d, k + j * d);
            if (sd)
                x -= sd_dot_f64(d, k + i * d, q + j * d);
            m[i * n + j] = scale * x;
            if (sd && i == j)
                m[i * n + j] = -diag[i];
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            r[i * n + j] = 0.5 * (m[i * n + j] - m[j * n + i]);
            f[i * n + j] = 0.5 * (m[i * n + j] + m[j * n + i]);
            o->rr += r[i * n + j] * r[i * n + j];
            o->ff += f[i * n + j] * f[i * n + j];
        }
    o->fro2 = o->rr + o->ff;
    dense_routing(n, r, tol, s, &o->r);
    for (int i = 0; i < 4; i++)
        o->sigma[i] = s[2 * i];
    ok(sd_eigh(n, f, s, NULL, &err));
    for (size_t i = 0; i < n; i++)
        if (!sd && fabs(s[i]) <= tol)
            s[i] = 0;
    sd_ranks_of(s, n, false, &o->f);
    ok(sd_eig(n, m, w, wi, NULL, &err)); // all N eigenvalues of M itself
    double top = -HUGE_VAL, rho = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        double a = hypot(w[i], wi[i]);
        rho = fmax(rho, a);
        top = fmax(top, w[i]);
        sum += a * a;
    }
    o->max_re = top / rho;
    o->henrici = sqrt(fmax(0, o->fro2 - sum) / o->fro2);
    double ww = 0;
    for (size_t i = 0; i < n; i++) {
        w[i] = 0;
        for (size_t j = 0; j < n; j++)
            w[i] += r[i * n + j] / (double)n;
        ww += w[i] * w[i];
    }
    o->phi = 2 * (double)n * ww / o->rr;
    for (size_t i = 0; i < n; i++) // HRH entry by entry: the grand mean of a skew matrix is 0
        for (size_t j = 0; j < n; j++)
            f[i * n + j] = r[i * n + j] - w[i] + w[j];
    sd_ranks c;
    dense_routing(n, f, tol, s, &c);
    o->c_pr = c.pr;
    double sum1 = 0, cnt = 0, var = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            sum1 += m[i * n + j];
            cnt++;
        }
    for (size_t i = 0; i < n; i++) {
        double z = 0, h = 0;
        for (size_t j = 0; j <= i; j++) {
            var += pow(m[i * n + j] - sum1 / cnt, 2);
            z += exp(m[i * n + j]);
        }
        for (size_t j = 0; j <= i; j++) {
            double p = exp(m[i * n + j]) / z;
            h -= p > 0 ? p * log(p) : 0;
        }
        o->kl += (log((double)i + 1) - h) / (double)n;
        o->eff += exp(h) / (double)n;
    }
    o->logit_sd = sqrt(var / cnt);
    free(m);
    free(r);
    free(f);
    free(s);
    free(w);
    free(wi);
}

static void columns_from_own_capture(void **state) {
    (void)state;
    const char *names[] = {"interim-sd", "interim-gpt2"};
    sd_model *m[] = {sd_m, gpt2_m};
    enum { N = 80, LAYER = 2 };
    for (int i = 0; i < 2; i++) {
        int32_t ids[512];
        ids_of(names[i], ids);
        sd_captured c;
        ok(sd_probe_capture(m[i], ids, N, LAYER, NULL, NULL, &c, &err));
        assert_int_equal(c.q->shape[0], N);
        assert_int_equal(c.q->shape[1], 4);
        assert_int_equal(c.q->shape[2], 64);
        assert_int_equal(c.x->shape[1], 256);
        assert_true((c.d != NULL) == (i == 0));
        sd_table *t;
        sd_probe_opts o = {.layers = "2", .ctx = N, .max_seqs = 1, .null_draws = -1};
        ok(sd_probe(m[i], ids, N, &o, NULL, &t, &err));
        assert_int_equal(sd_table_rows(t), 4);
        for (int h = 0; h < 4; h++) {
            double *q = malloc(N * 64 * sizeof *q), *k = malloc(N * 64 * sizeof *k), d[N];
            for (size_t a = 0; a < N; a++) {
                for (size_t b = 0; b < 64; b++) {
                    q[a * 64 + b] = ((float *)c.q->data)[(a * 4 + (size_t)h) * 64 + b];
                    k[a * 64 + b] = ((float *)c.k->data)[(a * 4 + (size_t)h) * 64 + b];
                }
                d[a] = c.d ? ((float *)c.d->data)[a * 4 + (size_t)h] : 0;
            }
            dense e;
            dense_head(N, 64, q, k, c.scale, c.d ? d : NULL, &e);
            int r = sd_table_find_row(t, LAYER, h);
            rel("fro2", cell(t, r, "fro2") / e.fro2, 1, 1e-8);
            rel("routing", cell(t, r, "routing"), e.rr / e.fro2, 1e-8);
            rel("filtering", cell(t, r, "filtering"), e.ff / e.fro2, 1e-8);
            rel("dir_frac", cell(t, r, "dir_frac"), sqrt(e.rr / e.fro2), 1e-8);
            rel("pr", cell(t, r, "pr"), e.r.pr, 1e-8);
            rel("entropy", cell(t, r, "entropy"), e.r.entropy, 1e-8);
            rel("energy", cell(t, r, "energy"), e.r.energy, 1e-8);
            rel("stable", cell(t, r, "stable"), e.r.stable, 1e-8);
            rel("n90", cell(t, r, "n90"), e.r.n90, 0);
            rel("n99", cell(t, r, "n99"), e.r.n99, 0);
            rel("f_pr", cell(t, r, "f_pr"), e.f.pr, 1e-8);
            rel("f_entropy", cell(t, r, "f_entropy"), e.f.entropy, 1e-8);
            rel("f_n95", cell(t, r, "f_n95"), e.f.n95, 0);
            rel("sigma1", cell(t, r, "sigma1"), e.sigma[0], 1e-8);
            rel("sigma4", cell(t, r, "sigma4"), e.sigma[3], 1e-8);
            rel("max_re", cell(t, r, "max_re"), e.max_re, 1e-8);
            rel("henrici", cell(t, r, "henrici"), e.henrici, i ? 1e-8 : 1e-6);
            rel("phi", cell(t, r, "phi"), e.phi, 1e-8);
            rel("c_pr", cell(t, r, "c_pr"), e.c_pr, 1e-8);
            rel("logit_sd", cell(t, r, "logit_sd"), e.logit_sd, 1e-8);
            rel("kl_uniform", cell(t, r, "kl_uniform"), e.kl, 1e-8);
            rel("eff_ctx", cell(t, r, "eff_ctx"), e.eff, 1e-8);
            // One sequence: the pooled planes are the token-level ones (METHOD §8.2).
            rel("pr_pooled", cell(t, r, "pr_pooled"), e.r.pr, 1e-6);
            if (i == 0) {
                double s = 0;
                for (int a = 0; a < N; a++)
                    s += d[a] / N;
                rel("d_mean", cell(t, r, "d_mean"), s, 1e-8);
                assert_true(cell(t, r, "max_re") < 0);
            }
            free(q);
            free(k);
        }
        sd_table_unref(t);
        sd_captured_free(&c);
    }
    sd_captured c;
    int32_t one = 1;
    assert_int_equal(sd_probe_capture(sd_m, &one, 1, 6, NULL, NULL, &c, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "0..5"));
    assert_null(c.q);
}

static void sequences_are_averaged(void **state) {
    (void)state;
    int32_t ids[512];
    ids_of("interim-sd", ids);
    sd_table *both, *one[2];
    sd_probe_opts o = {.layers = "1", .ctx = 40, .max_seqs = 2, .null_draws = 3, .seed = 9};
    ok(sd_probe(sd_m, ids, 100, &o, NULL, &both, &err)); // 100 tokens: two whole sequences
    o.max_seqs = 1;
    ok(sd_probe(sd_m, ids, 40, &o, NULL, &one[0], &err));
    ok(sd_probe(sd_m, ids + 40, 40, &o, NULL, &one[1], &err));
    const char *names[] = {"pr", "routing", "phi", "c_pr", "kl_uniform", "sigma1", "f_pr"};
    for (int h = 0; h < 4; h++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            double a = cell(one[0], h, names[i]), b = cell(one[1], h, names[i]);
            char sd[40];
            snprintf(sd, sizeof sd, "%s_sd", names[i]);
            rel(names[i], cell(both, h, names[i]), (a + b) / 2, 1e-12);
            rel(sd, cell(both, h, sd), fabs(a - b) / sqrt(2), 1e-9);
            assert_true(sd_table_find_col(one[0], sd) < 0);
        }
    assert_true(sd_table_n_notes(both) > 0); // 40 tokens < 4d
    sd_table_unref(both);
    sd_table_unref(one[0]);
    sd_table_unref(one[1]);
}

static void assert_same(const sd_table *a, const sd_table *b) {
    assert_int_equal(sd_table_rows(a), sd_table_rows(b));
    assert_int_equal(sd_table_cols(a), sd_table_cols(b));
    for (int r = 0; r < sd_table_rows(a); r++)
        for (int c = 0; c < sd_table_cols(a); c++) {
            assert_int_equal(sd_table_has(a, r, c), sd_table_has(b, r, c));
            if (!sd_table_has(a, r, c))
                continue;
            if (sd_table_col_kind(a, c) == SD_COL_NUM) {
                double x = sd_table_num(a, r, c), y = sd_table_num(b, r, c);
                if (memcmp(&x, &y, sizeof x))
                    fail_msg("%s row %d: %.17g, %.17g", sd_table_col_name(a, c), r, x, y);
            } else if (sd_table_col_kind(a, c) == SD_COL_VEC) {
                size_t n, m;
                const double *x = sd_table_vec(a, r, c, &n), *y = sd_table_vec(b, r, c, &m);
                assert_int_equal(n, m);
                assert_memory_equal(x, y, n * sizeof *x);
            }
        }
}

static void same_for_any_thread_count(void **state) {
    (void)state;
    int32_t ids[512];
    ids_of("interim-gpt2", ids);
    sd_table *t[2], *p[2];
    for (int i = 0; i < 2; i++) {
        sd_run run = {.threads = 1 + i};
        sd_heads_opts o = {.layers = "0-1", .null_draws = 4, .seed = 5};
        sd_probe_opts po = {.layers = "0-1", .ctx = 32, .max_seqs = 1, .null_draws = 4, .seed = 5};
        ok(sd_heads(gpt2_m, &o, &run, &t[i], &err));
        ok(sd_probe(gpt2_m, ids, 32, &po, &run, &p[i], &err));
    }
    assert_same(t[0], t[1]);
    assert_same(p[0], p[1]);
    for (int i = 0; i < 2; i++) {
        sd_table_unref(t[i]);
        sd_table_unref(p[i]);
    }
}

/* ---- options --------------------------------------------------------------------------------- */

static const double *part(sd_model *m, int layer, sd_role r, sd_tensor **t) {
    ok(sd_model_get(m, layer, r, SD_F64, t, &err));
    return (*t)->data;
}

/* METHOD §1: with the norm folded, e·K·fᵀ over normalised tokens is the score itself. */
static void folding_gives_the_scores(void **state) {
    (void)state;
    enum { L = 1, D = 256, HD = 64, N = 150 };
    sd_tensor *t[6];
    const double *wq = part(gpt2_m, L, SD_ROLE_WQ, &t[0]), *wk = part(gpt2_m, L, SD_ROLE_WK, &t[1]);
    const double *g = part(gpt2_m, L, SD_ROLE_NORM1_G, &t[2]);
    const double *be = part(gpt2_m, L, SD_ROLE_NORM1_B, &t[3]);
    const double *bq = part(gpt2_m, L, SD_ROLE_BQ, &t[4]), *bk = part(gpt2_m, L, SD_ROLE_BK, &t[5]);
    // The kernel of head 0 with the bias row, by its action on the augmented, centred basis:
    // columns of diag(γ)(I − 11ᵀ/D)… applied to the left of W, and (b + βW) as the last row.
    double *q = calloc((D + 1) * HD, sizeof *q), *k = calloc((D + 1) * HD, sizeof *k);
    for (int w = 0; w < 2; w++) {
        const double *x = w ? wk : wq, *b = w ? bk : bq;
        double *o = w ? k : q, scale = w ? 1 : 1.0 / 8;
        for (int c = 0; c < HD; c++) {
            double mean = 0, beta = b[c];
            for (int i = 0; i < D; i++) {
                mean += g[i] * x[i * D + c] / D;
                beta += be[i] * x[i * D + c];
            }
            for (int i = 0; i < D; i++)
                o[i * HD + c] = scale * (g[i] * x[i * D + c] - mean);
            o[D * HD + c] = scale * beta;
        }
    }
    sd_spectrum with, without;
    ok(sd_spectrum_of(D + 1, HD, q, k, SD_SPEC_ALL, &with, &err));
    ok(sd_spectrum_of(D, HD, q, k, SD_SPEC_ALL, &without, &err));
    sd_table *a, *b;
    sd_heads_opts o = {.layers = "1", .fold_norm = true, .null_draws = -1};
    ok(sd_heads(gpt2_m, &o, NULL, &a, &err));
    o.bias = true;
    ok(sd_heads(gpt2_m, &o, NULL, &b, &err));
    rel("pr", cell(a, 0, "pr"), without.rank.pr, 1e-10);
    rel("pr_bias", cell(a, 0, "pr_bias"), with.rank.pr, 1e-10);
    rel("dir_bias", cell(a, 0, "dir_frac_bias"), with.dir_frac, 1e-10);
    rel("pr", cell(b, 0, "pr"), with.rank.pr, 1e-10);
    rel("f_pr", cell(b, 0, "f_pr"), with.f_rank.pr, 1e-10);
    rel("fro2", cell(b, 0, "fro2"), with.fro2, 1e-10);
    assert_true(fabs(with.rank.pr - without.rank.pr) > 1e-6);
    assert_true(sd_table_find_col(b, "pr_bias") < 0);
    assert_non_null(strstr(sd_table_heading_at(a, 0), "folded and centred"));
    assert_non_null(strstr(sd_table_heading_at(b, 0), "biases in"));
    // The same from the forward pass: q of a token is [x̂ 1]·W' with x̂ the normalised residual;
    // the captured x = γx̂ + β gives γ-unfolded products, so compare scores.
    int32_t ids[512];
    ids_of("interim-gpt2", ids);
    sd_captured c;
    ok(sd_probe_capture(gpt2_m, ids, 16, L, NULL, NULL, &c, &err));
    const float *x = c.x->data, *cq = c.q->data, *ck = c.k->data;
    for (int i = 0; i < 16; i += 5)
        for (int j = 0; j < 16; j += 3) {
            double u[HD] = {0}, v[HD] = {0}, s = 0, direct = 0;
            for (int e = 0; e < D; e++) {
                double xi = (x[i * D + e] - be[e]) / g[e], xj = (x[j * D + e] - be[e]) / g[e];
                for (int h = 0; h < HD; h++) {
                    u[h] += xi * q[e * HD + h];
                    v[h] += xj * k[e * HD + h];
                }
            }
            for (int h = 0; h < HD; h++) {
                s += (u[h] + q[D * HD + h]) * (v[h] + k[D * HD + h]);
                direct += cq[i * D + h] * ck[j * D + h] / 8;
            }
            rel("score", s, direct, 2e-4);
        }
    sd_captured_free(&c);
    sd_table_unref(a);
    sd_table_unref(b);
    sd_spectrum_free(&with);
    sd_spectrum_free(&without);
    free(q);
    free(k);
    for (int i = 0; i < 6; i++)
        sd_tensor_free(t[i]);
}

static void bad_weight_is_marked(void **state) {
    (void)state;
    sd_model *m;
    sd_tensor *w;
    ok(sd_model_clone(gpt2_m, &m, &err));
    ok(sd_model_get(m, 1, SD_ROLE_WK, SD_F32, &w, &err));
    ((float *)w->data)[7 * 256 + 2 * 64 + 5] = NAN; // head 2, row 7, column 5
    ok(sd_model_set(m, 1, SD_ROLE_WK, w, &err));
    sd_tensor_free(w);
    sd_table *t, *s;
    sd_heads_opts o = {.layers = "1", .null_draws = -1};
    ok(sd_heads(m, &o, NULL, &t, &err));
    assert_int_equal(sd_table_rows(t), 4);
    int sc = sd_table_find_col(t, "status");
    for (int h = 0; h < 4; h++) {
        assert_int_equal(has(t, h, "pr"), h != 2);
        if (h == 2)
            assert_string_equal(sd_table_str(t, h, sc), "non-finite W_K row 7 col 5");
        else
            assert_string_equal(sd_table_str(t, h, sc), "ok");
    }
    ok(sd_rank_summary(t, 3, &s, &err));
    assert_int_equal(sd_table_rows(s), 1);
    rel("heads", cell(s, 0, "heads"), 3, 0);
    double x[3] = {cell(t, 0, "pr"), cell(t, 1, "pr"), cell(t, 3, "pr")};
    rel("median without it", cell(s, 0, "pr"), sd_spectral_median(x, 3), 1e-15);
    sd_table_unref(s);
    sd_table_unref(t);
    int32_t ids[512];
    ids_of("interim-gpt2", ids);
    sd_probe_opts po = {.layers = "1", .ctx = 16, .null_draws = 2};
    ok(sd_probe(m, ids, 16, &po, NULL, &t, &err));
    for (int h = 0; h < 4; h++)
        assert_int_equal(has(t, h, "pr"), h != 2);
    assert_non_null(strstr(sd_table_str(t, 2, sd_table_find_col(t, "status")), "non-finite k"));
    sd_table_unref(t);
    sd_model_unref(m);
}

/* CASES N08 through a model: a big key bias leaves GPT-2's attention alone, and the columns say so.
 */
static void n08_in_a_model(void **state) {
    (void)state;
    int32_t ids[512];
    ids_of("interim-gpt2", ids);
    sd_model *m;
    sd_tensor *b;
    ok(sd_model_clone(gpt2_m, &m, &err));
    ok(sd_model_get(m, 0, SD_ROLE_BK, SD_F32, &b, &err));
    sd_rng g;
    sd_rng_seed(&g, 8);
    for (int i = 0; i < 256; i++)
        ((float *)b->data)[i] += (float)(10 * sd_rng_gauss(&g));
    ok(sd_model_set(m, 0, SD_ROLE_BK, b, &err));
    sd_tensor_free(b);
    sd_table *t[2];
    sd_probe_opts o = {.layers = "0-1", .ctx = 64, .max_seqs = 1, .null_draws = -1};
    ok(sd_probe(gpt2_m, ids, 64, &o, NULL, &t[0], &err));
    ok(sd_probe(m, ids, 64, &o, NULL, &t[1], &err));
    bool moved = false;
    for (int h = 0; h < 4; h++) {
        moved |= fabs(cell(t[0], h, "pr") - cell(t[1], h, "pr")) > 0.5;
        rel("centred", cell(t[1], h, "c_pr"), cell(t[0], h, "c_pr"), 1e-3);
        rel("bias out", cell(t[1], h, "pr_nobias"), cell(t[0], h, "pr"), 1e-3);
        rel("attention", cell(t[1], h, "kl_uniform"), cell(t[0], h, "kl_uniform"), 1e-3);
        // The next layer sees the same activations.
        rel("layer 1", cell(t[1], 4 + h, "pr"), cell(t[0], 4 + h, "pr"), 1e-3);
    }
    assert_true(moved);
    sd_table_unref(t[0]);
    sd_table_unref(t[1]);
    sd_model_unref(m);
}

static void bad_arguments(void **state) {
    (void)state;
    sd_table *t = NULL;
    int32_t ids[300] = {1, 2, 3};
    sd_heads_opts o = {.lag = 3};
    assert_int_equal(sd_heads(gpt2_m, &o, NULL, &t, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "rotary"));
    o = (sd_heads_opts){.layers = "0-6"};
    assert_int_equal(sd_heads(gpt2_m, &o, NULL, &t, &err), SD_EINVAL);
    sd_probe_opts p = {.ctx = 257};
    assert_int_equal(sd_probe(gpt2_m, ids, 300, &p, NULL, &t, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "257"));
    assert_non_null(strstr(err.text, "256"));
    assert_int_equal(sd_probe(gpt2_m, ids, 1, NULL, NULL, &t, &err), SD_EINVAL);
    assert_int_equal(sd_stability(gpt2_m, ids, 1, NULL, &t, &err), SD_EINVAL);
    assert_null(t);
    sd_err_clear(&err);
}

static void cancelled(void **state) {
    (void)state;
    sd_table *t = NULL;
    int32_t ids[64] = {1, 2, 3};
    sd_cancel_flag = 1;
    sd_status a = sd_heads(gpt2_m, NULL, NULL, &t, &err);
    sd_status b = sd_probe(gpt2_m, ids, 64, NULL, NULL, &t, &err);
    sd_status c = sd_stability(gpt2_m, ids, 64, NULL, &t, &err);
    sd_cancel_flag = 0;
    assert_int_equal(a, SD_ECANCEL);
    assert_int_equal(b, SD_ECANCEL);
    assert_int_equal(c, SD_ECANCEL);
    assert_null(t);
    sd_err_clear(&err);
}

/* Grouped queries, rotary positions, RMS norm: a small llama. */
static void grouped_and_rotary(void **state) {
    (void)state;
    sd_config c;
    sd_model *m;
    if (!sd_family_find("llama"))
        skip();
    ok(sd_config_init(&c, 2, &err));
    strcpy(c.family, "llama");
    c.d_model = 32;
    c.d_ff = 48;
    c.vocab = 50;
    c.n_pos = 64;
    c.causal = c.final_norm = c.gated_mlp = c.has_head = c.tied = true;
    c.norm = SD_NORM_RMS;
    c.norm_eps = 1e-5;
    c.act = SD_ACT_SILU;
    c.pos = SD_POS_ROPE;
    c.rope = (sd_rope_cfg){.dim = 8, .style = SD_ROPE_HALF, .theta = 10000, .scaling = "none"};
    c.embed_scale = 1;
    c.bos = c.eos = -1;
    for (int l = 0; l < 2; l++) {
        strcpy(c.layer[l].kind, "softmax");
        c.layer[l].n_head = 4;
        c.layer[l].n_kv_head = 2;
        c.layer[l].d_qk = c.layer[l].d_v = 8;
        c.layer[l].scale = 1 / sqrt(8);
    }
    ok(sd_model_new(&c, 3, &m, &err));
    sd_table *t, *u, *p;
    sd_heads_opts o = {.null_draws = 20};
    ok(sd_heads(m, &o, NULL, &t, &err));
    o.lag = 5;
    ok(sd_heads(m, &o, NULL, &u, &err));
    for (int h = 0; h < 4; h++) {
        rel("group", cell(t, h, "group"), h / 2, 0);
        assert_true(fabs(cell(t, h, "rope_imag") - 0.5) < 0.2); // random weights
        rel("imag at any lag", cell(u, h, "rope_imag"), cell(t, h, "rope_imag"), 1e-12);
        rel("shares", cell(u, h, "routing") + cell(u, h, "filtering"), 1, 1e-12);
        assert_true(fabs(cell(u, h, "pr") - cell(t, h, "pr")) > 1e-6);
        // The null is at the lag of the heads, and random heads are draws of it.
        assert_true(fabs(cell(u, h, "pr_null") - cell(t, h, "pr_null")) > 1e-6);
        rel("null at a lag", cell(u, h, "pr"), cell(u, h, "pr_null"),
            4 * cell(u, h, "pr_null_sd") / cell(u, h, "pr_null"));
        rel("imag null", cell(u, h, "rope_imag_null"), 0.5, 0.1);
        size_t n;
        sd_table_vec(u, h, sd_table_find_col(u, "planes"), &n);
        assert_int_equal(n, 16);
    }
    // Head 1 uses key head 0: recompute it by hand.
    sd_tensor *tq, *tk;
    const double *wq = part(m, 0, SD_ROLE_WQ, &tq), *wk = part(m, 0, SD_ROLE_WK, &tk);
    double q[32 * 8], k[32 * 8];
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 8; j++) {
            q[i * 8 + j] = wq[i * 32 + 8 + j] / sqrt(8);
            k[i * 8 + j] = wk[i * 16 + j];
        }
    sd_spectrum s;
    ok(sd_spectrum_of(32, 8, q, k, SD_SPEC_ALL, &s, &err));
    rel("pr", cell(t, 1, "pr"), s.rank.pr, 1e-12);
    rel("fro2", cell(t, 1, "fro2") / s.fro2, 1, 1e-12);
    sd_spectrum_free(&s);
    sd_tensor_free(tq);
    sd_tensor_free(tk);
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = (i * 7 + 3) % 50;
    sd_probe_opts po = {.ctx = 40, .null_draws = 5};
    ok(sd_probe(m, ids, 40, &po, NULL, &p, &err));
    assert_int_equal(sd_table_rows(p), 8);
    assert_true(sd_table_find_col(p, "pr_nobias") < 0 && has(p, 5, "c_pr_null"));
    sd_captured cap;
    ok(sd_probe_capture(m, ids, 40, 1, NULL, NULL, &cap, &err));
    double cq[40 * 8], ck[40 * 8];
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < 8; j++) {
            cq[i * 8 + j] = ((float *)cap.q->data)[(i * 4 + 3) * 8 + j];
            ck[i * 8 + j] = ((float *)cap.k->data)[(i * 2 + 1) * 8 + j];
        }
    dense e;
    dense_head(40, 8, cq, ck, cap.scale, NULL, &e);
    int r = sd_table_find_row(p, 1, 3);
    rel("pr", cell(p, r, "pr"), e.r.pr, 1e-8);
    rel("kl", cell(p, r, "kl_uniform"), e.kl, 1e-8);
    rel("phi", cell(p, r, "phi"), e.phi, 1e-8);
    sd_captured_free(&cap);
    sd_table_unref(p);
    // One token forty times: without rotation every score is the same and R = 0. What the heads of
    // this random model show is the rotation's doing, and the null shows it too.
    for (int i = 0; i < 40; i++)
        ids[i] = 7;
    po = (sd_probe_opts){.layers = "0", .ctx = 40, .null_draws = 40};
    ok(sd_probe(m, ids, 40, &po, NULL, &p, &err));
    for (int h = 0; h < 4; h++) {
        assert_true(cell(p, h, "pr_null") > 2.1 && cell(p, h, "pr_null_sd") > 0.1);
        rel("rotated null", cell(p, h, "pr"), cell(p, h, "pr_null"),
            4 * cell(p, h, "pr_null_sd") / cell(p, h, "pr_null"));
    }
    sd_table_unref(t);
    sd_table_unref(u);
    sd_table_unref(p);
    sd_model_unref(m);
    sd_config_free(&c);
}

/* ---- stability ------------------------------------------------------------------------------- */

static double meta_num(const sd_table *t, const char *name) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double v = 0;
        if (!strcmp(sd_table_meta_at(t, i, &s, &v), name))
            return v;
    }
    fail_msg("no meta %s", name);
    return 0;
}

static void stability(void **state) {
    (void)state;
    int32_t ids[512];
    ids_of("interim-sd", ids);
    sd_table *t;
    ok(sd_stability(sd_m, ids, 96, NULL, &t, &err));
    assert_int_equal(sd_table_rows(t), 24 * 6);
    rel("ok", meta_num(t, "ok"), 1, 0);
    int tc = sd_table_find_col(t, "test");
    int plain_failed = 0;
    for (int r = 0; r < sd_table_rows(t); r++) {
        const char *test = sd_table_str(t, r, tc);
        int pass = (int)cell(t, r, "pass");
        if (!strcmp(test, "structural")) {
            assert_int_equal(pass, 1);
            assert_true(cell(t, r, "value") == 0);
        } else if (!strcmp(test, "spectral")) {
            assert_int_equal(pass, 1);
            assert_true(cell(t, r, "value") < 0 && cell(t, r, "min_d") > 0);
            assert_true(cell(t, r, "max_im") <= cell(t, r, "sigma1") * (1 + 1e-12));
        } else if (!strncmp(test, "control S+D", 11) || strstr(test, "plain structural")) {
            assert_int_equal(pass, 0);
        } else {
            plain_failed += !pass;
        }
    }
    assert_int_equal(plain_failed, 24); // every plain head has Re λ > 0 here
    sd_table_unref(t);
    ids_of("interim-gpt2", ids);
    ok(sd_stability(gpt2_m, ids, 64, NULL, &t, &err));
    assert_int_equal(sd_table_rows(t), 24 * 2);
    rel("ok", meta_num(t, "ok"), 1, 0);
    for (int r = 0; r < sd_table_rows(t); r++) {
        bool spectral = !strcmp(sd_table_str(t, r, tc), "spectral");
        if (!spectral || cell(t, r, "value") > cell(t, r, "bound"))
            assert_int_equal((int)cell(t, r, "pass"), 0);
    }
    sd_table_unref(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_against_numpy),
        cmocka_unit_test(tokens_against_numpy),
        cmocka_unit_test(columns_from_own_capture),
        cmocka_unit_test(sequences_are_averaged),
        cmocka_unit_test(same_for_any_thread_count),
        cmocka_unit_test(folding_gives_the_scores),
        cmocka_unit_test(bad_weight_is_marked),
        cmocka_unit_test(n08_in_a_model),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(grouped_and_rotary),
        cmocka_unit_test(stability),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
