/* Planes of skew-symmetric matrices: known values, both cross-checks of METHOD §3 (eigenvalues of
 * the Hermitian iB; singular values of B), orthonormal bases with Bx = σy, By = −σx, at every size,
 * scale and degeneracy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"

static double *doubles(size_t n) {
    double *p = sd_alloc(n, sizeof *p, NULL);
    assert_non_null(p);
    return p;
}

static void mirror(size_t n, double *b) {
    for (size_t i = 0; i < n; i++) {
        b[i * n + i] = 0.0;
        for (size_t j = 0; j < i; j++)
            b[i * n + j] = -b[j * n + i];
    }
}

static double *random_skew(size_t n, uint64_t seed, double scale) {
    double *b = doubles(n * n);
    sd_rng r;
    sd_rng_seed(&r, seed);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            b[i * n + j] = scale * sd_rng_gauss(&r);
    mirror(n, b);
    return b;
}

/* Worst |X Xᵀ − I| of all plane vectors together, and worst |Bx − σy|, |By + σx| over σ₁. */
static void residuals(size_t n, const double *b, const double *sigma, const double *x,
                      const double *y, double *ortho, double *plane) {
    size_t m = n / 2;
    double *z = doubles(2 * m * n + 1), *g = doubles(4 * m * m + 1), *bz = doubles(2 * m * n + 1);
    memcpy(z, x, m * n * sizeof *z);
    memcpy(z + m * n, y, m * n * sizeof *z);
    sd_gemm_f64(false, true, 2 * m, 2 * m, n, 1, z, n, z, n, 0, g, 2 * m);
    *ortho = *plane = 0.0;
    for (size_t i = 0; i < 2 * m; i++)
        for (size_t j = 0; j < 2 * m; j++)
            *ortho = fmax(*ortho, fabs(g[i * 2 * m + j] - (i == j)));
    double top = m && sigma[0] > 0.0 ? sigma[0] : 1.0;
    double *c = doubles(n * n + 1); /* B/σ₁: extreme scales stay in range */
    for (size_t i = 0; i < n * n; i++)
        c[i] = b[i] / top;
    sd_gemm_f64(false, true, 2 * m, n, n, 1, z, n, c, n, 0, bz, n);
    for (size_t p = 0; p < m; p++)
        for (size_t j = 0; j < n; j++) {
            double s = sigma[p] / top;
            *plane = fmax(*plane, fabs(bz[p * n + j] - s * y[p * n + j]));
            *plane = fmax(*plane, fabs(bz[(m + p) * n + j] + s * x[p * n + j]));
        }
    sd_free(z);
    sd_free(g);
    sd_free(bz);
    sd_free(c);
}

static void check_matrix(size_t n, const double *b, double tol) {
    size_t m = n / 2;
    sd_err err;
    double *s = doubles(m + 1), *s0 = doubles(m + 1), *x = doubles(m * n + 1),
           *y = doubles(m * n + 1);
    double *upper = doubles(n * n + 1);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            upper[i * n + j] = j > i ? b[i * n + j] : NAN; /* never read */
    assert_int_equal(sd_skew_planes(n, upper, s0, NULL, NULL, &err), SD_OK);
    assert_int_equal(sd_skew_planes(n, upper, s, x, y, &err), SD_OK);
    for (size_t p = 0; p < m; p++) {
        assert_true(s[p] >= 0.0 && (p == 0 || s[p] <= s[p - 1]));
        if (!(fabs(s[p] - s0[p]) <= tol * s[0]))
            fail_msg("n %zu plane %zu: %.17g with vectors, %.17g without", n, p, s[p], s0[p]);
    }
    double *w = doubles(n + 1), *v = doubles(n + 1), top = m ? s[0] : 0.0;
    if (n) {
        assert_int_equal(sd_lapack_skew_heevd(n, b, w, &err), SD_OK); /* ascending, ±σ */
        assert_int_equal(sd_svd(n, n, b, v, NULL, NULL, &err), SD_OK);
        for (size_t p = 0; p < m; p++) {
            double h = w[n - 1 - p];
            if (!(fabs(s[p] - h) <= tol * top && fabs(w[p] + s[p]) <= tol * top))
                fail_msg("n %zu plane %zu: %.17g, Hermitian %.17g", n, p, s[p], h);
            if (!(fabs(s[p] - v[2 * p]) <= tol * top && fabs(s[p] - v[2 * p + 1]) <= tol * top))
                fail_msg("n %zu plane %zu: %.17g, SVD %.17g %.17g", n, p, s[p], v[2 * p],
                         v[2 * p + 1]);
        }
    }
    double ortho, plane;
    residuals(n, b, s, x, y, &ortho, &plane);
    if (!(ortho <= tol && plane <= tol))
        fail_msg("n %zu: orthonormal to %.3g, planes to %.3g", n, ortho, plane);
    sd_free(s);
    sd_free(s0);
    sd_free(x);
    sd_free(y);
    sd_free(upper);
    sd_free(w);
    sd_free(v);
}

static void test_golden(void **state) {
    (void)state;
    /* Skew tridiagonal with subdiagonal (1,2,3,2,1). */
    double b[36] = {0}, sub[5] = {1, 2, 3, 2, 1}, s[3];
    for (size_t i = 0; i < 5; i++) {
        b[(i + 1) * 6 + i] = sub[i];
        b[i * 6 + i + 1] = -sub[i];
    }
    sd_err err;
    assert_int_equal(sd_skew_planes(6, b, s, NULL, NULL, &err), SD_OK);
    assert_true(fabs(s[0] - 4.05137424173) < 5e-12);
    assert_true(fabs(s[1] - 1.53407019672) < 5e-12);
    assert_true(fabs(s[2] - 0.482695954992) < 5e-13);
    check_matrix(6, b, 1e-13);
    double two[4] = {0, -1, 1, 0}, s1;
    assert_int_equal(sd_skew_planes(2, two, &s1, NULL, NULL, &err), SD_OK);
    assert_true(s1 == 1.0);
    check_matrix(2, two, 1e-15);
}

static void test_zero_and_small(void **state) {
    (void)state;
    sd_err err;
    double zero[49] = {0}, s[4], x[21], y[21];
    for (size_t n = 0; n <= 7; n++) {
        s[0] = s[1] = s[2] = 9;
        assert_int_equal(sd_skew_planes(n, zero, s, x, y, &err), SD_OK);
        for (size_t p = 0; p < n / 2; p++)
            assert_true(s[p] == 0.0);
        check_matrix(n, zero, 1e-15);
    }
    double one = 5.0; /* a diagonal is not read */
    assert_int_equal(sd_skew_planes(1, &one, s, NULL, NULL, &err), SD_OK);
    assert_int_equal(sd_skew_planes(0, NULL, s, NULL, NULL, &err), SD_OK);
}

static void test_sizes(void **state) {
    (void)state;
    for (size_t n = 2; n <= 41; n++) {
        double *b = random_skew(n, 100 + n, 1.0);
        check_matrix(n, b, 2e-14);
        sd_free(b);
    }
    size_t big[] = {63, 64, 65, 97, 127, 128, 129, 200, 257};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        double *b = random_skew(big[i], i, 1.0);
        check_matrix(big[i], b, 1e-13);
        sd_free(b);
    }
}

static void test_scales(void **state) {
    (void)state;
    double scales[] = {1e-160, 1e160, 1e-300, 1e300, 3e-308, 1.0 / 3};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        for (size_t n = 5; n <= 34; n += 29) {
            double *b = random_skew(n, 7, 1.0), *c = doubles(n * n);
            for (size_t k = 0; k < n * n; k++)
                c[k] = b[k] * scales[i];
            double s[17], t[17];
            sd_err err;
            assert_int_equal(sd_skew_planes(n, b, s, NULL, NULL, &err), SD_OK);
            assert_int_equal(sd_skew_planes(n, c, t, NULL, NULL, &err), SD_OK);
            for (size_t p = 0; p < n / 2; p++) /* subnormal entries lose digits on their own */
                assert_true(fabs(t[p] / scales[i] - s[p]) <= (i == 4 ? 1e-11 : 1e-14) * s[0]);
            double *x = doubles(n / 2 * n), *y = doubles(n / 2 * n), ortho, plane;
            assert_int_equal(sd_skew_planes(n, c, t, x, y, &err), SD_OK);
            residuals(n, c, t, x, y, &ortho, &plane);
            assert_true(ortho < 1e-14);
            assert_true(plane < 1e-14);
            sd_free(b);
            sd_free(c);
            sd_free(x);
            sd_free(y);
        }
    /* The smallest double. */
    double tiny[9] = {0, 5e-324, 0, -5e-324, 0, 0, 0, 0, 0}, s, x[3], y[3];
    sd_err err;
    assert_int_equal(sd_skew_planes(3, tiny, &s, x, y, &err), SD_OK);
    assert_true(s == 5e-324);
}

/* B = Z S Zᵀ with chosen σ in a random orthonormal basis. */
static double *with_planes(size_t n, size_t m, const double *sigma, uint64_t seed) {
    double *g = doubles(n * n), *q = doubles(n * n), *r = doubles(n * n), *b = doubles(n * n);
    sd_rng rng;
    sd_rng_seed(&rng, seed);
    sd_rng_fill_gauss(&rng, g, n * n);
    sd_err err;
    assert_int_equal(sd_qr(n, n, g, q, r, &err), SD_OK);
    for (size_t p = 0; p < m; p++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = i + 1; j < n; j++)
                b[i * n + j] += sigma[p] * (q[i * n + 2 * p + 1] * q[j * n + 2 * p] -
                                            q[i * n + 2 * p] * q[j * n + 2 * p + 1]);
    mirror(n, b);
    sd_free(g);
    sd_free(q);
    sd_free(r);
    return b;
}

static void test_degenerate(void **state) {
    (void)state;
    /* Equal σ, low rank, and odd sizes whose kernel is larger than one. */
    struct {
        size_t n, m;
        double s[8];
    } cases[] = {
        {16, 8, {1, 1, 1, 1, 1, 1, 1, 1}},
        {17, 8, {3, 3, 3, 3, 1, 1, 1, 1}},
        {9, 1, {2}},
        {15, 2, {1, 1}},
        {24, 3, {5, 1e-3, 1e-3}},
        {33, 4, {1, 1e-8, 1e-12, 1e-15}},
        {3, 1, {7}},
        {65, 1, {1}},
        {128, 2, {1, 1}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double *b = with_planes(cases[c].n, cases[c].m, cases[c].s, c);
        double s[64];
        sd_err err;
        assert_int_equal(sd_skew_planes(cases[c].n, b, s, NULL, NULL, &err), SD_OK);
        for (size_t p = 0; p < cases[c].n / 2; p++)
            assert_true(fabs(s[p] - (p < cases[c].m ? cases[c].s[p] : 0.0)) <= 1e-14 * s[0]);
        check_matrix(cases[c].n, b, 5e-14);
        sd_free(b);
    }
    /* Sparse: exact zeros meet rotations. A permuted direct sum of 2×2 blocks, and one entry. */
    double b[11 * 11] = {0};
    size_t at[5][2] = {{0, 7}, {3, 5}, {1, 10}, {2, 4}, {6, 9}};
    for (size_t p = 0; p < 5; p++)
        b[at[p][0] * 11 + at[p][1]] = p == 3 ? -2.0 : (double)(p + 1);
    mirror(11, b);
    check_matrix(11, b, 1e-14);
    for (size_t n = 3; n < 12; n++)
        for (size_t i = 0; i + 1 < n; i++) {
            double one[121] = {0};
            one[i * n + n - 1] = 1.5;
            mirror(n, one);
            check_matrix(n, one, 1e-15);
        }
    /* Tridiagonal with zeros on the subdiagonal, even and odd. */
    for (size_t n = 4; n < 14; n++)
        for (unsigned mask = 0; mask<1u << (n - 1); mask += n> 9 ? 37 : 1) {
            double t[169] = {0};
            for (size_t i = 0; i + 1 < n; i++)
                t[i * n + i + 1] = mask >> i & 1 ? 1.0 + (double)i : 0.0;
            mirror(n, t);
            check_matrix(n, t, 1e-14);
        }
}

/* Rows and columns scaled over 1e±12: σ to 1e-12 of the largest, bases still orthonormal. */
static void test_graded(void **state) {
    (void)state;
    for (int dir = 0; dir < 2; dir++) {
        size_t n = 60;
        double *b = random_skew(n, 3, 1.0);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                double e = (double)(dir ? i + j : 2 * (n - 1) - i - j);
                b[i * n + j] *= pow(10.0, -24.0 * e / (double)(2 * n));
            }
        check_matrix(n, b, 1e-14);
        sd_free(b);
    }
    /* A column far below the square root of the smallest double, beside entries near 1. */
    double c[25] = {0};
    c[1] = 1e-170, c[2] = 2e-170, c[3] = 1e-171, c[7] = 1, c[8] = 0.5, c[9] = -1, c[13] = 2;
    c[4] = 3e-170, c[14] = 0.25, c[19] = 1;
    mirror(5, c);
    check_matrix(5, c, 1e-14);
}

static void test_non_finite(void **state) {
    (void)state;
    double bad[] = {NAN, INFINITY, -INFINITY};
    double start = sd_now();
    for (size_t k = 0; k < 3; k++)
        for (size_t n = 2; n < 140; n += 23) {
            double *b = random_skew(n, n, 1.0);
            double s[70];
            sd_err err;
            b[(n - 2) * n + n - 1] = bad[k];
            assert_int_equal(sd_skew_planes(n, b, s, NULL, NULL, &err), SD_ENUMERIC);
            char want[64];
            snprintf(want, sizeof want, "row %zu, column %zu", n - 2, n - 1);
            assert_non_null(strstr(err.text, "non-finite"));
            assert_non_null(strstr(err.text, want));
            sd_free(b);
        }
    assert_true(sd_now() - start < 2.0);
}

/* n = 1280, the aim of 1e-12 relative to the largest σ. */
static void test_big(void **state) {
    (void)state;
    size_t n = getenv("SD_SANITIZED") ? 320 : 640;
    const char *full = getenv("SD_TEST_FULL"); /* the whole size by hand: zheevd takes its time */
    if (full && *full)
        n = 1280;
    double *b = random_skew(n, 1, 1.0), *s = doubles(n), *w = doubles(n), *x = doubles(n * n / 2),
           *y = doubles(n * n / 2), ortho, plane, worst = 0;
    sd_err err;
    assert_int_equal(sd_skew_planes(n, b, s, x, y, &err), SD_OK);
    residuals(n, b, s, x, y, &ortho, &plane);
    assert_true(ortho < 1e-12);
    assert_true(plane < 1e-12);
    assert_int_equal(sd_lapack_skew_heevd(n, b, w, &err), SD_OK);
    for (size_t p = 0; p < n / 2; p++)
        worst = fmax(worst, fabs(s[p] - w[n - 1 - p]) / s[0]);
    if (full && *full)
        printf("n %zu: sigma %.3g, orthonormal %.3g, planes %.3g\n", n, worst, ortho, plane);
    assert_true(worst < 1e-12);
    sd_free(b);
    sd_free(s);
    sd_free(w);
    sd_free(x);
    sd_free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),     cmocka_unit_test(test_zero_and_small),
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_scales),
        cmocka_unit_test(test_degenerate), cmocka_unit_test(test_graded),
        cmocka_unit_test(test_non_finite), cmocka_unit_test(test_big),
    };
    return cmocka_run_group_tests_name("skew", tests, NULL, NULL);
}
