/* Spectra, controls, nulls and truncation factors on matrices, against dense f64 references
 * (tests/ref/spectral.py) and by construction. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/probe.h"

static sd_err err;

static void ok(sd_status st) {
    if (st != SD_OK)
        fail_msg("status %d: %s", st, err.text);
}

static void rel(const char *what, double got, double want, double tol) {
    if (!(fabs(got - want) <= tol * fmax(1, fabs(want))))
        fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static json_t *ref;

static int load_ref(void **state) {
    (void)state;
    ref = json_load_file("tests/ref/spectral.json", 0, NULL);
    return ref ? 0 : -1;
}
static int drop_ref(void **state) {
    (void)state;
    json_decref(ref);
    return 0;
}

static double *numbers(json_t *a, size_t *n) {
    *n = json_array_size(a);
    double *x = malloc((*n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < *n; i++)
        x[i] = json_number_value(json_array_get(a, i));
    return x;
}

static double want(json_t *e, const char *key) {
    json_t *v = json_object_get(e, key);
    if (!v)
        fail_msg("reference has no %s", key);
    return json_number_value(v);
}

static void check_ranks(json_t *e, const char *prefix, const sd_ranks *r, double tol) {
    char key[32];
    for (size_t i = 0; i < SD_RANK_COUNT; i++) {
        snprintf(key, sizeof key, "%s%s", prefix, sd_rank_name(i));
        rel(key, r->v[i], want(e, key), tol);
    }
}

/* Non-zero entries of an ascending list match those of the reference (whose zero count differs:
 * N against 2d). */
static void check_values(const double *got, size_t n, const double *want_, size_t m, double tol) {
    double top = 0;
    for (size_t i = 0; i < m; i++)
        top = fmax(top, fabs(want_[i]));
    size_t i = 0, j = 0;
    while (i < n || j < m) {
        if (i < n && got[i] == 0)
            i++;
        else if (j < m && want_[j] == 0)
            j++;
        else {
            assert_true(i < n && j < m);
            if (fabs(got[i] - want_[j]) > tol * top)
                fail_msg("value %zu: got %.17g, want %.17g", i, got[i], want_[j]);
            i++;
            j++;
        }
    }
}

static void small_against_dense(void **state) {
    (void)state;
    json_t *cases = json_object_get(ref, "small"), *c;
    size_t at;
    json_array_foreach(cases, at, c) {
        size_t n = (size_t)json_integer_value(json_object_get(c, "n")), m;
        size_t d = (size_t)json_integer_value(json_object_get(c, "d"));
        const char *name = json_string_value(json_object_get(c, "name"));
        double *q = numbers(json_object_get(c, "q"), &m), *k = numbers(json_object_get(c, "k"), &m);
        json_t *e = json_object_get(c, "expect");
        sd_spectrum s;
        ok(sd_spectrum_of(n, d, q, k, SD_SPEC_ALL, &s, &err));
        assert_int_equal(s.d, d);
        assert_int_equal(s.n_planes, d < n / 2 ? d : n / 2);
        rel("fro2", s.fro2, want(e, "fro2"), 1e-12);
        rel("routing", s.routing, want(e, "routing"), 1e-12);
        rel("filtering", s.filtering, want(e, "filtering"), 1e-12);
        rel("dir_frac", s.dir_frac, want(e, "dir_frac"), 1e-12);
        check_ranks(e, "", &s.rank, 1e-11);
        check_ranks(e, "f_", &s.f_rank, 1e-11);
        double *p = numbers(json_object_get(e, "planes"), &m);
        check_values(s.sigma, s.n_planes, p, m, 1e-12);
        free(p);
        if (json_object_get(e, "f_lambda")) {
            p = numbers(json_object_get(e, "f_lambda"), &m);
            check_values(s.f_lambda, s.n_f, p, m, 1e-12);
            free(p);
        }
        // Column scales 1e±4 make M's eigenproblem ill-conditioned; rank one is defective.
        double tol = strcmp(name, "scales") && strcmp(name, "rank1") ? 1e-11 : 1e-7;
        rel("max_re", s.max_re, want(e, "max_re"), tol);
        rel("henrici", s.henrici, want(e, "henrici"), strcmp(name, "one") ? tol : 1e-7);
        if (json_object_get(e, "phi")) {
            double mean[32];
            double ww = sd_spectral_potential_norm(n, d, q, k, mean, mean + d);
            rel("phi", 2 * (double)n * ww / (s.fro2 * s.routing), want(e, "phi"), 1e-11);
            for (int enc = 0; enc < 2; enc++) {
                score_stats sc;
                score_factors sf = {
                    .n = n, .d = d, .q = q, .k = k, .product = true, .causal = !enc};
                ok(sd_spectral_score_stats(&sf, &sc, &err));
                rel("logit_sd", sc.logit_sd, want(e, enc ? "encoder_logit_sd" : "logit_sd"), 1e-11);
                rel("kl_uniform", sc.kl_uniform, want(e, enc ? "encoder_kl_uniform" : "kl_uniform"),
                    1e-11);
                rel("eff_ctx", sc.eff_ctx, want(e, enc ? "encoder_eff_ctx" : "eff_ctx"), 1e-11);
            }
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < d; j++) {
                    q[i * d + j] -= mean[j];
                    k[i * d + j] -= mean[d + j];
                }
            sd_spectrum cs;
            ok(sd_spectrum_of(n, d, q, k, SD_SPEC_R, &cs, &err));
            rel("pr_centred", cs.rank.pr, want(e, "pr_centred"), 1e-10);
            sd_spectrum_free(&cs);
        }
        sd_spectrum_free(&s);
        free(q);
        free(k);
    }
    assert_true(at >= 7);
}

/* METHOD §2: the trace identities are a check that shares nothing with the reduction. */
static void trace_identities(void **state) {
    (void)state;
    enum { N = 50, D = 8 };
    static double q[N * D], k[N * D];
    sd_rng g;
    sd_rng_seed(&g, 3);
    sd_rng_fill_gauss(&g, q, N * D);
    sd_rng_fill_gauss(&g, k, N * D);
    double qq[D * D], kk[D * D], kq[D * D], fro2 = 0, t2 = 0, ss = 0, trace = 0, fsum = 0;
    sd_gram_f64(N, D, q, D, qq);
    sd_gram_f64(N, D, k, D, kk);
    sd_gemm_f64(true, false, D, D, N, 1, k, D, q, D, 0, kq, D);
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            fro2 += qq[i * D + j] * kk[i * D + j];
            t2 += kq[i * D + j] * kq[j * D + i];
        }
    sd_spectrum s;
    ok(sd_spectrum_of(N, D, q, k, SD_SPEC_ALL, &s, &err));
    rel("fro2", s.fro2, fro2, 1e-12);
    rel("routing", s.routing, 0.5 * (fro2 - t2) / fro2, 1e-12);
    for (size_t i = 0; i < s.n_planes; i++)
        ss += 2 * s.sigma[i] * s.sigma[i];
    rel("sum of squares", ss, s.routing * s.fro2, 1e-12);
    for (int i = 0; i < D; i++) {
        trace += kq[i * D + i];
        fsum -= s.lambda_re[i];
    }
    for (size_t i = 0; i < s.n_f; i++)
        trace -= s.f_lambda[i];
    rel("trace of F", trace, 0, 1e-11);
    for (size_t i = 0; i < s.n_f; i++)
        fsum += s.f_lambda[i];
    rel("trace of M", fsum, 0, 1e-11);
    sd_spectrum_free(&s);
}

static void n01_nonfinite(void **state) {
    (void)state;
    double q[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, k[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    const double bad[] = {INFINITY, -INFINITY, NAN};
    for (int b = 0; b < 3; b++)
        for (int which = 0; which < 2; which++) {
            double *x = which ? k : q, keep = x[5];
            x[5] = bad[b];
            sd_spectrum s;
            sd_err_clear(&err);
            assert_int_equal(sd_spectrum_of(3, 3, q, k, SD_SPEC_ALL, &s, &err), SD_ENUMERIC);
            assert_non_null(strstr(err.text, which ? "in K" : "in Q"));
            assert_non_null(strstr(err.text, "row 1, column 2"));
            assert_null(s.sigma);
            double a[3], c[3];
            assert_int_equal(sd_kernel_planes(3, 3, q, k, 1, a, c, 0, NULL, NULL, &err),
                             SD_ENUMERIC);
            x[5] = keep;
        }
    double g[4] = {1, NAN, NAN, 1}, sg[1];
    assert_int_equal(sd_whitened_planes(1, g, 0, 0, sg, NULL, NULL, NULL, &err), SD_ENUMERIC);
    sd_err_clear(&err);
}

/* M = B itself through Q = B, K = I: N < 2d, and the values of CASES N02. */
static void n02_small_skew(void **state) {
    (void)state;
    double zero[16] = {0}, eye[36] = {0}, b[36] = {0};
    sd_spectrum s;
    for (int i = 0; i < 6; i++)
        eye[i * 7] = 1;
    ok(sd_spectrum_of(4, 4, zero, zero, SD_SPEC_ALL, &s, &err));
    assert_true(s.rank.pr == 0 && s.f_rank.entropy == 0 && s.routing == 0 && s.dir_frac == 0);
    for (size_t i = 0; i < s.n_planes; i++)
        assert_true(s.sigma[i] == 0);
    sd_spectrum_free(&s);
    const double sub[5] = {1, 2, 3, 2, 1};
    for (int i = 0; i < 5; i++) {
        b[(i + 1) * 6 + i] = sub[i];
        b[i * 6 + i + 1] = -sub[i];
    }
    ok(sd_spectrum_of(6, 6, b, eye, SD_SPEC_ALL, &s, &err));
    assert_int_equal(s.n_planes, 3);
    rel("s1", s.sigma[0], 4.05137424173, 1e-11);
    rel("s2", s.sigma[1], 1.53407019672, 1e-11);
    rel("s3", s.sigma[2], 0.482695954992, 1e-11);
    rel("entropy", s.rank.entropy, 4.535251, 2e-7);
    rel("pr", s.rank.pr, 2.625455, 2e-7);
    rel("routing", s.routing, 1, 1e-15);
    rel("henrici", s.henrici, 0, 1e-7); // a skew matrix is normal
    sd_spectrum_free(&s);
    double one[1] = {2};
    ok(sd_spectrum_of(1, 1, one, one, SD_SPEC_ALL, &s, &err));
    assert_int_equal(s.n_planes, 0);
    rel("fro2", s.fro2, 16, 1e-15);
    rel("filtering", s.filtering, 1, 1e-15);
    sd_spectrum_free(&s);
    ok(sd_spectrum_of(0, 0, one, one, SD_SPEC_ALL, &s, &err));
    assert_int_equal(s.n_planes, 0);
    sd_spectrum_free(&s);
    ok(sd_spectrum_of(0, 2, one, one, SD_SPEC_ALL, &s, &err));
    assert_int_equal(s.n_planes, 0);
    assert_true(s.rank.pr == 0);
    sd_spectrum_free(&s);
    const double r2[4] = {0, -1, 1, 0}, i2[4] = {1, 0, 0, 1};
    ok(sd_spectrum_of(2, 2, r2, i2, SD_SPEC_ALL, &s, &err));
    assert_int_equal(s.n_planes, 1);
    rel("sigma", s.sigma[0], 1, 1e-15);
    rel("pr", s.rank.pr, 2, 1e-15);
    sd_spectrum_free(&s);
}

/* METHOD §4: Gaussian null at D = 768, d = 64. The mean of 40 draws is within 3 sd/√40 of the
 * table's (and its rounding). */
static void gaussian_null(void **state) {
    (void)state;
    enum { DRAWS = 40, D = 64 };
    reduced r = {.r = malloc(4 * D * D * sizeof(double))};
    moments m[7] = {{0}};
    for (int i = 0; i < DRAWS; i++) {
        sd_rng g;
        sd_rng_stream(&g, 11, 0, (uint64_t)i);
        sd_spectral_reduced_gauss(768, D, &g, &r);
        sd_spectrum s;
        ok(sd_spectral_spectrum_reduced(&r, NULL, SD_SPEC_R | SD_SPEC_LAMBDA, &s, &err));
        double im = 0, all = 0;
        for (int j = 0; j < D; j++) {
            im += fabs(s.lambda_im[j]);
            all += hypot(s.lambda_re[j], s.lambda_im[j]);
        }
        const double v[7] = {s.rank.entropy, s.rank.energy, s.rank.pr, s.rank.stable,
                             s.rank.n90,     s.dir_frac,    im / all};
        for (int j = 0; j < 7; j++)
            sd_spectral_moments_add(&m[j], v[j]);
        sd_spectrum_free(&s);
    }
    const double mean[7] = {122.5, 108.9, 96.1, 52.1, 96, .7066, .610};
    const double sd[7] = {.12, .4, .6, 1.4, 1, .0007, .018};
    const double half[7] = {.05, .05, .05, .05, .5, .00005, .0005}; // the table's own rounding
    for (int j = 0; j < 7; j++) {
        if (fabs(m[j].mean - mean[j]) > 3 * sd[j] / sqrt(DRAWS) + half[j])
            fail_msg("null %d: mean %g, expected %g", j, m[j].mean, mean[j]);
        if (j != 4 && (sd_spectral_moments_sd(&m[j]) > 2 * sd[j] ||
                       sd_spectral_moments_sd(&m[j]) < 0.5 * sd[j]))
            fail_msg("null %d: sd %g, expected %g", j, sd_spectral_moments_sd(&m[j]), sd[j]);
    }
    free(r.r);
}

/* The shortcut (Bartlett) has the distribution of real Gaussian factors. */
static void null_like_matrices(void **state) {
    (void)state;
    enum { N = 20, D = 4, DRAWS = 300 };
    double q[N * D], k[N * D];
    reduced r = {.r = malloc(4 * D * D * sizeof(double))};
    moments a[2] = {{0}}, b[2] = {{0}};
    sd_rng g;
    sd_rng_seed(&g, 5);
    for (int i = 0; i < DRAWS; i++) {
        sd_spectrum s;
        sd_rng_fill_gauss(&g, q, N * D);
        sd_rng_fill_gauss(&g, k, N * D);
        ok(sd_spectrum_of(N, D, q, k, SD_SPEC_R, &s, &err));
        sd_spectral_moments_add(&a[0], s.rank.pr);
        sd_spectral_moments_add(&a[1], s.fro2);
        sd_spectrum_free(&s);
        sd_spectral_reduced_gauss(N, D, &g, &r);
        ok(sd_spectral_spectrum_reduced(&r, NULL, SD_SPEC_R, &s, &err));
        sd_spectral_moments_add(&b[0], s.rank.pr);
        sd_spectral_moments_add(&b[1], s.fro2);
        sd_spectrum_free(&s);
    }
    for (int i = 0; i < 2; i++) {
        double se =
            hypot(sd_spectral_moments_sd(&a[i]), sd_spectral_moments_sd(&b[i])) / sqrt(DRAWS);
        if (fabs(a[i].mean - b[i].mean) > 4 * se)
            fail_msg("moment %d: %g against %g (se %g)", i, a[i].mean, b[i].mean, se);
        rel("sd", sd_spectral_moments_sd(&b[i]) / sd_spectral_moments_sd(&a[i]), 1, 0.2);
    }
    free(r.r);
}

enum { NULL_N = 30, NULL_DM = 12, NULL_D = 3 };

/* The token-level null of METHOD §5.3, dense: the draw's Q and K formed, rotated token by token
 * where `theta` > 0 (rotate-half on the first 2 dimensions), M = QKᵀ written out entry by entry. */
static void null_dense(const double *x, double theta, double v[V_COUNT]) {
    enum { N = NULL_N, DM = NULL_DM, D = NULL_D };
    double w[DM * 2 * D], u[N * 2 * D], m[N * N], r[N * N], f[N * N], sv[N], wi[N];
    sd_rng g;
    sd_rng_seed(&g, 99);
    sd_rng_fill_gauss(&g, w, DM * 2 * D);
    for (int c = 0; c < V_COUNT; c++)
        v[c] = NAN;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < 2 * D; j++) {
            u[i * 2 * D + j] = 0;
            for (int e = 0; e < DM; e++)
                u[i * 2 * D + j] += x[i * DM + e] * w[e * 2 * D + j];
        }
        for (int half = 0; theta > 0 && half < 2; half++) {
            double *p = u + i * 2 * D + half * D, a = p[0], b = p[1];
            p[0] = a * cos(i * theta) - b * sin(i * theta);
            p[1] = b * cos(i * theta) + a * sin(i * theta);
        }
    }
    double rr = 0, ff = 0, cc = 0, ww = 0, row[N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            m[i * N + j] = sd_dot_f64(D, u + i * 2 * D, u + j * 2 * D + D);
    for (int i = 0; i < N; i++) {
        row[i] = 0;
        for (int j = 0; j < N; j++) {
            r[i * N + j] = 0.5 * (m[i * N + j] - m[j * N + i]);
            f[i * N + j] = 0.5 * (m[i * N + j] + m[j * N + i]);
            rr += r[i * N + j] * r[i * N + j];
            ff += f[i * N + j] * f[i * N + j];
            row[i] += r[i * N + j] / N;
        }
        ww += row[i] * row[i];
    }
    sd_ranks k;
    ok(sd_svd(N, N, r, sv, NULL, NULL, &err));
    for (int i = 0; i < D; i++) // each plane's value is there twice
        sv[i] = sv[2 * i];
    sd_ranks_of(sv, D, true, &k);
    memcpy(v + V_ranks_r, k.v, sizeof k.v);
    v[V_routing] = rr / (rr + ff);
    v[V_dir_frac] = sqrt(rr / (rr + ff));
    v[V_phi] = 2 * N * ww / rr;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            r[i * N + j] += row[j] - row[i];
            cc += r[i * N + j] * r[i * N + j];
        }
    v[V_c_share] = cc / rr;
    ok(sd_svd(N, N, r, sv, NULL, NULL, &err));
    for (int i = 0; i < D; i++) // each plane's value is there twice
        sv[i] = sv[2 * i];
    sd_ranks_of(sv, D, true, &k);
    memcpy(v + V_ranks_c, k.v, sizeof k.v);
    ok(sd_svd(N, N, m, sv, NULL, NULL, &err));
    sd_ranks_of(sv, D, false, &k);
    memcpy(v + V_ranks_m, k.v, sizeof k.v);
    ok(sd_eigh(N, f, sv, NULL, &err));
    for (int i = 0; i < N; i++)
        sv[i] = fabs(sv[i]) < 1e-9 ? 0 : sv[i];
    sd_ranks_of(sv, N, false, &k);
    memcpy(v + V_ranks_f, k.v, sizeof k.v);
    ok(sd_eig(N, m, sv, wi, NULL, &err));
    double rho = 0, top = -HUGE_VAL, sum = 0;
    for (int i = 0; i < N; i++) {
        if (hypot(sv[i], wi[i]) < 1e-9) // M has D eigenvalues, the other N − D are zero
            continue;
        rho = fmax(rho, hypot(sv[i], wi[i]));
        sum += sv[i] * sv[i] + wi[i] * wi[i];
        top = fmax(top, sv[i]);
    }
    v[V_max_re] = top / rho;
    v[V_henrici] = sqrt(1 - sum / (rr + ff));
}

static void same_values(const char *what, const double *got, const double *want_, double tol) {
    sd_column c;
    char text[64];
    for (size_t i = 0; sd_column_at(i, &c); i++)
        if (!isnan(want_[i])) {
            snprintf(text, sizeof text, "%s %s", what, c.name);
            rel(text, got[i], want_[i], tol);
        }
}

static void null_draw_against_dense(void **state) {
    (void)state;
    enum { N = NULL_N, DM = NULL_DM, D = NULL_D };
    double x[N * DM], c[DM * DM], mean[DM] = {0}, want_[V_COUNT], got[V_COUNT];
    sd_rng g;
    sd_rng_seed(&g, 21);
    sd_rng_fill_gauss(&g, x, N * DM);
    for (int i = 0; i < N * DM; i++) {
        x[i] += i % DM == 0 ? 2 : 0.3; // a common mean, as real activations have
        mean[i % DM] += x[i] / N;
    }
    sd_gram_f64(N, DM, x, DM, c);
    sd_rope_cfg rope = {.dim = 2, .theta = 10000, .style = SD_ROPE_HALF};
    rotary rot;
    ok(sd_spectral_rotary(&rope, 0, N, &rot, &err));
    for (int rotated = 0; rotated < 2; rotated++)
        for (int gram = 0; gram < 2; gram++)
            for (int all = 0; all < 2; all++) {
                null_input in = {.n = N,
                                 .d_model = DM,
                                 .x = x,
                                 .gram = gram && !rotated ? c : NULL,
                                 .mean = mean,
                                 .rot = rotated ? &rot : NULL,
                                 .product = true,
                                 .what = all ? SD_SPEC_R | SD_SPEC_F | SD_SPEC_M : 0};
                null_dense(x, rotated ? 1 : 0, want_); // the first pair's angle is 1 a position
                for (int i = 0; !all && i < SD_RANK_COUNT; i++) {
                    if (i != SD_RANK_pr) // the Gram alone gives pr
                        want_[V_ranks_r + i] = want_[V_ranks_c + i] = NAN;
                    want_[V_ranks_f + i] = want_[V_ranks_m + i] = NAN;
                }
                sd_rng_seed(&g, 99);
                ok(sd_spectral_null_draw(&in, D, &g, got, &err));
                same_values(rotated ? "rotated" : "plain", got, want_, 1e-6);
                in.product = false; // S–D: the routing alone
                sd_rng_seed(&g, 99);
                ok(sd_spectral_null_draw(&in, D, &g, got, &err));
                assert_true(isnan(got[V_routing]) && isnan(got[V_ranks_f]));
                rel("pr", got[V_ranks_r], want_[V_ranks_r], 1e-6);
            }
    double plain[V_COUNT];
    null_dense(x, 0, plain);
    null_dense(x, 1, want_);
    assert_true(fabs(plain[V_ranks_r] - want_[V_ranks_r]) > 0.1); // rotating matters
    sd_spectral_rotary_free(&rot);
}

/* Every rank definition over every object is a column with a doc and, declared for a table, a null;
 * names are unique. */
static void columns_are_declared_once(void **state) {
    (void)state;
    static const char *const prefix[] = {"", "f_", "c_", "m_"};
    sd_column c, d;
    const char *suffix;
    for (size_t p = 0; p < 4; p++)
        for (size_t i = 0; i < SD_RANK_COUNT; i++) {
            char name[40], null[48];
            snprintf(name, sizeof name, "%s%s", prefix[p], sd_rank_name(i));
            snprintf(null, sizeof null, "%s_null_sd", name);
            assert_true(sd_column_find(name, &c, &suffix) && !*suffix);
            assert_true(sd_column_find(null, &d, &suffix) && !strcmp(suffix, "_null_sd"));
            assert_true(!strcmp(c.name, d.name) && c.rank && !strcmp(c.unit, "rank"));
            assert_int_equal(c.null & (SD_IN_HEADS | SD_IN_PROBE),
                             c.in & (SD_IN_HEADS | SD_IN_PROBE));
            assert_true((c.in & SD_IN_PROBE) && ((c.in & SD_IN_HEADS) || p == 2));
        }
    for (size_t i = 0; sd_column_at(i, &c); i++) {
        assert_true(strlen(c.doc) > 8 && c.in);
        if (!strcmp(c.unit, "share"))
            assert_int_equal(c.null & (SD_IN_HEADS | SD_IN_PROBE),
                             c.in & (SD_IN_HEADS | SD_IN_PROBE));
        for (size_t j = 0; j < i; j++)
            assert_true(sd_column_at(j, &d) && strcmp(c.name, d.name) != 0);
    }
    assert_true(sd_column_find("d_sd", &c, &suffix) && !*suffix);
    assert_true(sd_column_find("d_sd_sd", &c, &suffix) && !strcmp(suffix, "_sd"));
    assert_false(sd_column_find("pr_centred", &c, &suffix) || sd_column_find("prx", &c, NULL));
    assert_string_equal(sd_column_renamed("pr_centred_null"), "c_pr_null");
}

static void rope_lag(void **state) {
    (void)state;
    json_t *cases = json_object_get(ref, "lag"), *c;
    size_t at;
    json_array_foreach(cases, at, c) {
        size_t dm = (size_t)json_integer_value(json_object_get(c, "d_model")), m;
        size_t d = (size_t)json_integer_value(json_object_get(c, "d"));
        bool half = !strcmp(json_string_value(json_object_get(c, "style")), "half");
        double lag = json_number_value(json_object_get(c, "lag"));
        double theta = json_number_value(json_object_get(c, "theta"));
        double *q = numbers(json_object_get(c, "wq"), &m),
               *k = numbers(json_object_get(c, "wk"), &m);
        json_t *e = json_object_get(c, "expect");
        size_t pa[2], pb[2];
        double cs[2], sn[2];
        for (size_t i = 0; i < 2; i++) {
            pa[i] = half ? i : 2 * i;
            pb[i] = half ? i + 2 : 2 * i + 1;
            cs[i] = cos(lag * pow(theta, -(double)i / 2));
            sn[i] = sin(lag * pow(theta, -(double)i / 2));
        }
        rotation rot = {2, pa, pb, cs, sn};
        reduced r;
        sd_spectrum s;
        ok(sd_spectral_reduce(dm, d, q, k, &r, &err));
        ok(sd_spectral_spectrum_reduced(&r, &rot, SD_SPEC_ALL, &s, &err));
        rel("fro2", s.fro2, want(e, "fro2"), 1e-12);
        rel("routing", s.routing, want(e, "routing"), 1e-12);
        rel("filtering", s.filtering, want(e, "filtering"), 1e-12);
        rel("max_re", s.max_re, want(e, "max_re"), 1e-10);
        check_ranks(e, "", &s.rank, 1e-10);
        check_ranks(e, "f_", &s.f_rank, 1e-10);
        double *p = numbers(json_object_get(e, "planes"), &m);
        for (size_t i = 0; i < m && i < s.n_planes; i++)
            rel("sigma", s.sigma[i], p[i], 1e-11);
        free(p);
        sd_spectrum_free(&s);
        free(r.r);
        free(q);
        free(k);
    }
    assert_int_equal(at, 2);
}

/* ---- truncation ------------------------------------------------------------------------------ */

static void kernel_planes(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{20, 4}, {5, 4}, {8, 4}};
    for (size_t t = 0; t < 3; t++) {
        enum { D = 4 };
        size_t n = shapes[t][0];
        double q[20 * D], k[20 * D], a[20 * D], b[20 * D], f[20 * 2 * D], lam[2 * D];
        sd_rng g;
        sd_rng_seed(&g, 40 + t);
        sd_rng_fill_gauss(&g, q, n * D);
        sd_rng_fill_gauss(&g, k, n * D);
        sd_spectrum s;
        ok(sd_spectrum_of(n, D, q, k, SD_SPEC_ALL, &s, &err));
        for (size_t planes = 1; planes <= D; planes++) {
            size_t fr = 2 * planes;
            ok(sd_kernel_planes(n, D, q, k, planes, a, b, fr, f, lam, &err));
            double er = 0, ef = 0, tail = 0, ftail = 0;
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++) {
                    double mij = sd_dot_f64(D, q + i * D, k + j * D);
                    double mji = sd_dot_f64(D, q + j * D, k + i * D), rk = 0, fk = 0;
                    for (size_t p = 0; p < planes; p++)
                        rk += a[i * planes + p] * b[j * planes + p] -
                              b[i * planes + p] * a[j * planes + p];
                    for (size_t p = 0; p < fr; p++)
                        fk += f[i * fr + p] * lam[p] * f[j * fr + p];
                    er += pow(0.5 * (mij - mji) - rk, 2);
                    ef += pow(0.5 * (mij + mji) - fk, 2);
                }
            for (size_t p = planes; p < s.n_planes; p++)
                tail += 2 * s.sigma[p] * s.sigma[p];
            // Best rank-r symmetric approximation: the largest |λ| stay.
            double l2[2 * D];
            for (size_t i = 0; i < 2 * D; i++)
                l2[i] = s.f_lambda[i] * s.f_lambda[i];
            for (size_t drop = fr; drop < 2 * D; drop++) {
                size_t low = 0;
                for (size_t i = 0; i < 2 * D; i++)
                    if (l2[i] >= 0 && (l2[low] < 0 || l2[i] < l2[low]))
                        low = i;
                ftail += l2[low];
                l2[low] = -1;
            }
            rel("routing error", sqrt(er), sqrt(tail), 1e-11); // METHOD §8.1
            rel("filtering error", sqrt(ef), sqrt(ftail), 1e-11);
        }
        assert_int_equal(sd_kernel_planes(n, D, q, k, D + 1, a, b, 0, NULL, NULL, &err), SD_EINVAL);
        sd_spectrum_free(&s);
    }
}

static void gram_of(size_t n, size_t w, const double *u, double *g) {
    sd_gram_f64(n, w, u, w, g);
    for (size_t i = 0; i < w * w; i++)
        g[i] /= (double)n;
}

/* The second moments of two sets of rows, and the product of low rank nearest to theirs. */
static void whitened_product(void **state) {
    (void)state;
    enum { N = 9, M = 11, D = 4 };
    double q[N * D], k[M * D], gq[D * D], gk[D * D], full[N * M], s[D], s2[D], u[N * M], vt[N * M];
    for (int i = 0; i < N * D; i++)
        q[i] = sin(1.0 + 3 * i) * (1 + i % D);
    for (int i = 0; i < M * D; i++)
        k[i] = i % D == 3 ? 0 : cos(2.0 + 5 * i); /* a dead dimension: gk is singular */
    sd_gemm_f64(true, false, D, D, N, 1.0 / N, q, D, q, D, 0, gq, D);
    sd_gemm_f64(true, false, D, D, M, 1.0 / M, k, D, k, D, 0, gk, D);
    sd_gemm_f64(false, true, N, M, D, 1, q, D, k, D, 0, full, M);
    double sv[N];
    ok(sd_svd(N, M, full, sv, u, vt, &err));
    for (size_t r = 0; r <= D; r++) {
        double a[D * D], b[D * D], qa[N * D], kb[M * D], e = 0, tail = 0;
        ok(sd_whitened_product(D, gq, gk, r, s, r ? a : NULL, r ? b : NULL, &err));
        for (int i = 0; i < D; i++)
            rel("sigma", s[i] + 1, sv[i] / sqrt((double)N * M) + 1, 1e-12);
        sd_gemm_f64(false, false, N, r, D, 1, q, D, a, r ? r : 1, 0, qa, r ? r : 1);
        sd_gemm_f64(false, false, M, r, D, 1, k, D, b, r ? r : 1, 0, kb, r ? r : 1);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < M; j++) {
                double cut = r ? sd_dot_f64(r, qa + (size_t)i * r, kb + (size_t)j * r) : 0;
                e += pow(full[i * M + j] - cut, 2) / (N * M);
            }
        for (size_t i = r; i < D; i++)
            tail += s[i] * s[i];
        assert_true(fabs(e - tail) <= 1e-12 * s[0] * s[0]);
    }
    assert_int_equal(sd_whitened_product(D, gq, gk, D + 1, s, NULL, NULL, &err), SD_EINVAL);
    gk[2] = NAN;
    assert_int_equal(sd_whitened_product(D, gq, gk, 1, s2, NULL, NULL, &err), SD_ENUMERIC);
}

static void whitened_planes(void **state) {
    (void)state;
    json_t *c = json_object_get(ref, "whitened");
    size_t m, d = 4, w = 8;
    double *u = numbers(json_object_get(c, "u"), &m);
    size_t n = m / w, rank = 0, ns;
    double *sig = numbers(json_object_get(c, "sigma"), &ns);
    double g[64], s[4], a[32], b[32];
    gram_of(n, w, u, g);
    for (size_t planes = 1; planes <= d; planes++) {
        ok(sd_whitened_planes(d, g, 0, planes, s, a, b, &rank, &err));
        assert_int_equal(rank, 8);
        for (size_t p = 0; p < d; p++)
            rel("sigma", s[p], sig[p], 1e-10);
        // The mean over all N² ordered pairs, i = j included, is 2Σσ² of what is left out.
        double e = 0, tail = 0;
        double *qa = malloc(n * planes * sizeof *qa), *kb = malloc(n * planes * sizeof *kb);
        sd_gemm_f64(false, false, n, planes, w, 1, u, w, a, planes, 0, qa, planes);
        sd_gemm_f64(false, false, n, planes, w, 1, u, w, b, planes, 0, kb, planes);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                const double *ui = u + i * w, *uj = u + j * w;
                double full = sd_dot_f64(d, ui, uj + d) - sd_dot_f64(d, ui + d, uj);
                double cut = sd_dot_f64(planes, qa + i * planes, kb + j * planes) -
                             sd_dot_f64(planes, kb + i * planes, qa + j * planes);
                e += (full - cut) * (full - cut) / ((double)n * (double)n);
            }
        for (size_t p = planes; p < d; p++)
            tail += 2 * s[p] * s[p];
        rel("error", sqrt(e), sqrt(tail), 1e-9);
        free(qa);
        free(kb);
    }
    free(u);
    free(sig);
}

/* CASES N09: fewer rows than dimensions, a dead feature, two equal ones. */
static void n09_singular(void **state) {
    (void)state;
    enum { D = 4, W = 8, N = 40 };
    for (int kind = 0; kind < 4; kind++) {
        size_t n = kind == 0 ? 5 : N, rank;
        double u[N * W], g[W * W], s[D], s2[D], a[W * D], b[W * D];
        sd_rng r;
        sd_rng_seed(&r, 60 + (uint64_t)kind);
        sd_rng_fill_gauss(&r, u, n * W);
        for (size_t i = 0; i < n; i++) {
            if (kind == 1)
                u[i * W + 2] = 0; // dead feature
            if (kind == 2)
                u[i * W + 5] = u[i * W + 1]; // equal features
            if (kind == 3)
                memset(u + i * W, 0, W * sizeof *u); // nothing at all
        }
        gram_of(n, W, u, g);
        ok(sd_whitened_planes(D, g, 0, D, s, a, b, &rank, &err));
        assert_int_equal(rank, kind == 0 ? 5 : kind == 3 ? 0 : 7);
        double e = 0, scale = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                const double *ui = u + i * W, *uj = u + j * W;
                double full = sd_dot_f64(D, ui, uj + D) - sd_dot_f64(D, ui + D, uj), cut = 0;
                for (int p = 0; p < D; p++) {
                    double ya = 0, xb = 0, yb = 0, xa = 0;
                    for (int c = 0; c < W; c++) {
                        ya += ui[c] * a[c * D + p];
                        xb += uj[c] * b[c * D + p];
                        yb += ui[c] * b[c * D + p];
                        xa += uj[c] * a[c * D + p];
                    }
                    cut += ya * xb - yb * xa;
                }
                assert_true(isfinite(cut));
                e = fmax(e, fabs(full - cut));
                scale = fmax(scale, fabs(full));
            }
        rel("all planes kept change nothing on the data", e, 0, 1e-10 * fmax(1, scale));
        for (int i = 0; i < W; i++) // a tiny ridge changes nothing
            g[i * W + i] += 1e-13;
        ok(sd_whitened_planes(D, g, 1e-10, 0, s2, NULL, NULL, NULL, &err));
        for (int p = 0; p < D && kind != 3; p++)
            rel("ridge", s2[p], s[p], 1e-6);
    }
}

/* CASES N08: what softmax cannot see changes the raw rank and not the centred one. */
static void n08_key_bias(void **state) {
    (void)state;
    enum { N = 40, D = 4 };
    double q[N * D], k[N * D], mean[2 * D], pr[2][2], bias[D];
    score_stats sc[2];
    sd_rng g;
    sd_rng_seed(&g, 77);
    sd_rng_fill_gauss(&g, q, N * D);
    sd_rng_fill_gauss(&g, k, N * D);
    sd_rng_fill_gauss(&g, bias, D);
    for (int with = 0; with < 2; with++) {
        double a[N * D], b[N * D];
        memcpy(a, q, sizeof a);
        for (int i = 0; i < N * D; i++)
            b[i] = k[i] + (with ? 10 * bias[i % D] : 0);
        sd_spectrum s;
        ok(sd_spectrum_of(N, D, a, b, SD_SPEC_R, &s, &err));
        pr[with][0] = s.rank.pr;
        sd_spectrum_free(&s);
        score_factors sf = {.n = N, .d = D, .q = a, .k = b, .product = true, .causal = true};
        ok(sd_spectral_score_stats(&sf, &sc[with], &err));
        sd_spectral_potential_norm(N, D, a, b, mean, mean + D);
        for (int i = 0; i < N * D; i++) {
            a[i] -= mean[i % D];
            b[i] -= mean[D + i % D];
        }
        ok(sd_spectrum_of(N, D, a, b, SD_SPEC_R, &s, &err));
        pr[with][1] = s.rank.pr;
        sd_spectrum_free(&s);
    }
    assert_true(fabs(pr[0][0] - pr[1][0]) > 0.5); // raw: changed
    rel("centred", pr[0][1], pr[1][1], 1e-11);    // centred: not
    rel("attention", sc[0].kl_uniform, sc[1].kl_uniform, 1e-11);
}

/* S is invariant under Sp(2d) acting on [Q K] (METHOD §6): so are its planes. */
static void symplectic_invariance(void **state) {
    (void)state;
    enum { N = 24, D = 3 };
    double q[N * D], k[N * D], c[D * D], q2[N * D];
    sd_rng g;
    sd_rng_seed(&g, 13);
    sd_rng_fill_gauss(&g, q, N * D);
    sd_rng_fill_gauss(&g, k, N * D);
    sd_rng_fill_gauss(&g, c, D * D);
    sd_spectrum a, b;
    ok(sd_spectrum_of(N, D, q, k, SD_SPEC_R, &a, &err));
    for (int i = 0; i < D; i++) // shear: Q + K·C with C symmetric
        for (int j = 0; j < i; j++)
            c[i * D + j] = c[j * D + i];
    memcpy(q2, q, sizeof q);
    sd_gemm_f64(false, false, N, D, D, 1, k, D, c, D, 1, q2, D);
    ok(sd_spectrum_of(N, D, q2, k, SD_SPEC_R, &b, &err));
    for (int p = 0; p < D; p++)
        rel("plane", b.sigma[p], a.sigma[p], 1e-12);
    sd_spectrum_free(&b);
    for (int i = 0; i < N * D; i++) // rotation by J: (Q, K) → (K, −Q)
        q2[i] = -q[i];
    ok(sd_spectrum_of(N, D, k, q2, SD_SPEC_R, &b, &err));
    for (int p = 0; p < D; p++)
        rel("plane", b.sigma[p], a.sigma[p], 1e-12);
    sd_spectrum_free(&a);
    sd_spectrum_free(&b);
}

static void median_and_moments(void **state) {
    (void)state;
    double x[] = {3, 1, 2}, y[] = {4, 1, 3, 2}, z[] = {7};
    rel("odd", sd_spectral_median(x, 3), 2, 0);
    rel("even", sd_spectral_median(y, 4), 2.5, 0);
    rel("one", sd_spectral_median(z, 1), 7, 0);
    moments m = {0};
    for (int i = 0; i < 4; i++)
        sd_spectral_moments_add(&m, 1e9 + i);
    rel("mean", m.mean, 1e9 + 1.5, 1e-15);
    rel("sd", sd_spectral_moments_sd(&m), sqrt(5.0 / 3), 1e-9);
}

/* METHOD §9: the interval of the paired bootstrap, weighted by counts. */
static void bootstrap(void **state) {
    (void)state;
    enum { N = 400 };
    double d[N], c[N], lo, hi, lo2, hi2;
    sd_rng g;
    sd_rng_seed(&g, 4);
    for (int i = 0; i < N; i++) {
        c[i] = 10;
        d[i] = 10 * (0.5 + 0.2 * sd_rng_gauss(&g));
    }
    ok(sd_spectral_bootstrap(N, d, c, 1, &lo, &hi, &err));
    ok(sd_spectral_bootstrap(N, d, c, 1, &lo2, &hi2, &err));
    assert_true(lo == lo2 && hi == hi2);
    rel("centre", (lo + hi) / 2, 0.5, 0.03);
    rel("width", (hi - lo) / (2 * 1.96 * 0.2 / sqrt(N)), 1, 0.15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_against_dense),
        cmocka_unit_test(trace_identities),
        cmocka_unit_test(n01_nonfinite),
        cmocka_unit_test(n02_small_skew),
        cmocka_unit_test(gaussian_null),
        cmocka_unit_test(null_like_matrices),
        cmocka_unit_test(null_draw_against_dense),
        cmocka_unit_test(columns_are_declared_once),
        cmocka_unit_test(rope_lag),
        cmocka_unit_test(kernel_planes),
        cmocka_unit_test(whitened_planes),
        cmocka_unit_test(whitened_product),
        cmocka_unit_test(n09_singular),
        cmocka_unit_test(n08_key_bias),
        cmocka_unit_test(symplectic_invariance),
        cmocka_unit_test(median_and_moments),
        cmocka_unit_test(bootstrap),
    };
    return cmocka_run_group_tests(tests, load_ref, drop_ref);
}
