#include "num/skew.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/linalg.h"

#if defined(__x86_64__) && defined(__linux__)
#define MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MULTIVERSION
#endif

/* One row of the trailing block, upper triangle: applies the pending update B += v pᵀ − p vᵀ of the
 * step before and multiplies the result with the new Householder vector u in the same pass over
 * memory: w_i += Σ_j B_ij u_j, w_j −= B_ij u_i. Returns the sum. */
MULTIVERSION
static double update_row(size_t n, double *restrict row, double vi, double pi,
                         const double *restrict v, const double *restrict p,
                         const double *restrict u, double ui, double *restrict w) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < n; j++) {
        double b = row[j] + (vi * p[j] - pi * v[j]);
        row[j] = b;
        sum += b * u[j];
        w[j] -= b * ui;
    }
    return sum;
}

/* Householder reduction to skew tridiagonal form, B = Q T Qᵀ with T[k+1][k] = e[k] = −T[k][k+1].
 * a: n×n row-major, strict upper triangle, overwritten: row k keeps the vector v of step k in
 * columns k+1 … n−1. tau (n). work: 3n. METHOD §3. */
static void tridiagonalise(size_t n, double *a, double *e, double *tau, double *work) {
    double *v = work, *p = work + n, *w = work + 2 * n;
    memset(work, 0, 3 * n * sizeof *work);
    for (size_t k = 0; k + 1 < n; k++) {
        double *row = a + k * n;
        size_t m = n - k - 1; /* length of the part below the diagonal */
        for (size_t j = k + 1; j < n; j++)
            row[j] += v[k] * p[j] - p[k] * v[j];
        /* x = column k below the diagonal = −row. */
        double alpha = -row[k + 1], tail = m > 1 ? sd_nrm2_f64(m - 1, row + k + 2) : 0.0;
        double *u = row + k + 1;
        if (tail == 0.0) {
            e[k] = alpha;
            tau[k] = 0.0;
            memset(u, 0, m * sizeof *u);
        } else {
            double beta = -copysign(hypot(alpha, tail), alpha);
            e[k] = beta;
            tau[k] = (beta - alpha) / beta;
            double scale = -1.0 / (alpha - beta);
            u[0] = 1.0;
            for (size_t j = 1; j < m; j++)
                u[j] *= scale;
        }
        memset(w + k + 1, 0, m * sizeof *w);
        for (size_t i = k + 1; i < n; i++) {
            size_t o = i + 1;
            w[i] += update_row(n - o, a + i * n + o, v[i], p[i], v + o, p + o, row + o, row[i],
                               w + o);
        }
        for (size_t j = k + 1; j < n; j++) {
            v[j] = row[j];
            p[j] = tau[k] * w[j];
        }
    }
}

/* x ← H_0 H_1 … x for the vectors of tridiagonalise. */
static void apply_q(size_t n, const double *a, const double *tau, double *x) {
    for (size_t k = n - 1; k-- > 0;) {
        if (tau[k] == 0.0)
            continue;
        const double *v = a + k * n + k + 1;
        double *y = x + k + 1;
        double s = tau[k] * sd_dot_f64(n - k - 1, v, y);
        for (size_t j = 0; j + k + 1 < n; j++)
            y[j] -= s * v[j];
    }
}

sd_status sd_skew_planes(size_t n, const double *b, double *sigma, double *x, double *y,
                         sd_err *err) {
    size_t m = n / 2, half = (n + 1) / 2;
    double top = 0.0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            double t = fabs(b[i * n + j]);
            if (!(t <= 1.7976931348623157e308))
                return sd_fail(err, SD_ENUMERIC, "non-finite value at row %zu, column %zu", i, j);
            if (t > top)
                top = t;
        }
    bool vectors = x && y;
    if (vectors) {
        memset(x, 0, m * n * sizeof *x);
        memset(y, 0, m * n * sizeof *y);
    }
    if (m == 0)
        return SD_OK;
    if (top == 0.0) {
        /* Every plane is one of the zero matrix: pair the axes. */
        for (size_t p = 0; p < m; p++) {
            sigma[p] = 0.0;
            if (vectors)
                x[p * n + 2 * p] = y[p * n + 2 * p + 1] = 1.0;
        }
        return SD_OK;
    }
    /* A power of two brings the largest entry near 1: no overflow or underflow in the products. */
    int ex;
    frexp(top, &ex);
    sd_status st = SD_ENOMEM;
    double *a = sd_alloc_raw(n * n, sizeof *a, err), *work = sd_alloc(7 * n + 4, sizeof *work, err);
    double *u = vectors ? sd_alloc_raw(half * half, sizeof *u, err) : NULL;
    double *vt = vectors ? sd_alloc_raw(half * half, sizeof *vt, err) : NULL;
    if (!a || !work || (vectors && (!u || !vt)))
        goto done;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            a[i * n + j] = ldexp(b[i * n + j], -ex);
    double *e = work, *tau = work + n, *d = work + 2 * n, *s = work + 3 * n;
    tridiagonalise(n, a, e, tau, work + 4 * n);
    /* T couples even indices with odd ones: T = [0 C; −Cᵀ 0] after the permutation, and Cᵀ is upper
     * bidiagonal with diagonal −e[0], −e[2], … and superdiagonal e[1], e[3], …. An odd n has a zero
     * last diagonal entry. */
    for (size_t i = 0; i < half; i++) {
        d[i] = 2 * i + 1 < n ? -e[2 * i] : 0.0;
        s[i] = 2 * i + 2 < n ? e[2 * i + 1] : 0.0;
    }
    SD_GO(st, done, sd_lapack_bdsdc(vectors, half, d, s, u, vt, err));
    for (size_t p = 0; p < m; p++) {
        sigma[p] = ldexp(d[p], ex);
        if (!vectors)
            continue;
        /* C u_p = σ v_p and Cᵀ v_p = σ u_p: x holds u_p at the odd places, y holds v_p at the even. */
        for (size_t i = 0; i < half; i++) {
            if (2 * i + 1 < n)
                x[p * n + 2 * i + 1] = u[p * half + i];
            y[p * n + 2 * i] = vt[i * half + p];
        }
        apply_q(n, a, tau, x + p * n);
        apply_q(n, a, tau, y + p * n);
    }
    st = SD_OK;
done:
    sd_free(a);
    sd_free(work);
    sd_free(u);
    sd_free(vt);
    return st;
}
