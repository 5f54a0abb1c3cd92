#include "num/skew.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/clones.h"
#include "num/linalg.h"

/* Eight doubles, at any address; narrower machines split it. Explicit, because a sum may not be
 * reordered by the compiler. */
typedef double lanes __attribute__((vector_size(64), aligned(8), may_alias));
enum { LANES = 8 };
#define AT(p_) (*(lanes *)(p_))
#define ATC(p_) (*(const lanes *)(p_))

#define TOTAL(s_) \
    ((((s_)[0] + (s_)[1]) + ((s_)[2] + (s_)[3])) + (((s_)[4] + (s_)[5]) + ((s_)[6] + (s_)[7])))

/* Two rows of the trailing block, columns j0 … n−1 of its upper triangle: applies the pending
 * update B += v pᵀ − p vᵀ of the step before and multiplies the result with the new Householder
 * vector u in the same pass over memory: w_i += Σ_j B_ij u_j, w_j −= B_ij u_i. */
static inline __attribute__((always_inline)) void
two_rows(size_t n, size_t j0, size_t i, double *restrict a, const double *restrict v,
         const double *restrict p, const double *restrict u, double *restrict w) {
    double *restrict r0 = a + i * n, *restrict r1 = r0 + n;
    double v0 = v[i], v1 = v[i + 1], p0 = p[i], p1 = p[i + 1], u0 = u[i], u1 = u[i + 1];
    lanes s0 = {0}, s1 = {0};
    size_t j = j0;
    for (; j + LANES <= n; j += LANES) {
        lanes pj = ATC(p + j), vj = ATC(v + j), uj = ATC(u + j);
        lanes b0 = AT(r0 + j) + (v0 * pj - p0 * vj), b1 = AT(r1 + j) + (v1 * pj - p1 * vj);
        AT(r0 + j) = b0;
        AT(r1 + j) = b1;
        s0 += b0 * uj;
        s1 += b1 * uj;
        AT(w + j) = AT(w + j) - (b0 * u0 + b1 * u1);
    }
    double t0 = TOTAL(s0), t1 = TOTAL(s1);
    for (; j < n; j++) {
        r0[j] += v0 * p[j] - p0 * v[j];
        r1[j] += v1 * p[j] - p1 * v[j];
        t0 += r0[j] * u[j];
        t1 += r1[j] * u[j];
        w[j] -= r0[j] * u0 + r1[j] * u1;
    }
    w[i] += t0;
    w[i + 1] += t1;
}

/* Norm of x; entries are at most about 1 here, so only a tiny sum of squares needs care. */
static inline __attribute__((always_inline)) double norm_of(size_t n, const double *x) {
    lanes s = {0};
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        s += ATC(x + j) * ATC(x + j);
    double t = TOTAL(s);
    for (; j < n; j++)
        t += x[j] * x[j];
    return t > 1e-270 && t < 1e270 ? sqrt(t) : sd_nrm2_f64(n, x);
}

/* Householder reduction to skew tridiagonal form, B = Q T Qᵀ with T[k+1][k] = e[k] = −T[k][k+1] and
 * Q = H_0 H_1 …, H_k = I − tau_k u uᵀ. a: n×n row-major, strict upper triangle, overwritten: row k
 * keeps u of step k in columns k+1 … n−1. tau (n). work: 4n, zero. METHOD §3. */
SD_CLONES static void tridiagonalise(size_t n, double *restrict a, double *restrict e,
                                     double *restrict tau, double *restrict work) {
    double *v = work, *p = work + n, *w = work + 2 * n, *u = work + 3 * n;
    for (size_t k = 0; k + 1 < n; k++) {
        double *row = a + k * n;
        size_t m = n - k - 1; /* length of the part below the diagonal */
        /* x = column k below the diagonal = −row. */
        for (size_t j = k + 1; j < n; j++)
            row[j] += v[k] * p[j] - p[k] * v[j];
        double alpha = -row[k + 1], tail = m > 1 ? norm_of(m - 1, row + k + 2) : 0.0;
        if (tail == 0.0) {
            e[k] = alpha;
            tau[k] = 0.0;
            memset(row + k + 1, 0, m * sizeof *row);
        } else {
            double beta = -copysign(hypot(alpha, tail), alpha);
            e[k] = beta;
            tau[k] = (beta - alpha) / beta;
            row[k + 1] = 1.0;
            for (size_t j = k + 2; j < n; j++)
                row[j] /= beta - alpha; /* no reciprocal: it may overflow */
        }
        memcpy(u + k + 1, row + k + 1, m * sizeof *u);
        memset(w + k + 1, 0, m * sizeof *w);
        size_t i = k + 1;
        for (; i + 1 < n; i += 2) {
            double *r = a + i * n + i + 1; /* the element between the two rows */
            *r += v[i] * p[i + 1] - p[i] * v[i + 1];
            w[i] += *r * u[i + 1];
            w[i + 1] -= *r * u[i];
            two_rows(n, i + 2, i, a, v, p, u, w);
        }
        for (size_t j = k + 1; j < n; j++) {
            v[j] = u[j];
            p[j] = tau[k] * w[j];
        }
    }
}

enum { BLOCK = 32 };

/* Rows of x (rows×n) ← (Q xᵀ)ᵀ with Q = H_0 H_1 … of tridiagonalise. BLOCK reflectors at a time in
 * the compact form I − Uᵀ T U (U: their vectors as rows, T upper triangular; Schreiber & Van Loan
 * 1989), so that the work is matrix products. u: BLOCK·n, g: rows·BLOCK each of two. */
static void apply_q(size_t n, const double *a, const double *tau, size_t rows, double *x, double *u,
                    double *g, double *h) {
    double t[BLOCK * BLOCK], gram[BLOCK * BLOCK], z[BLOCK];
    size_t count = n - 1;
    for (size_t end = count; end > 0;) {
        size_t k0 = (end - 1) / BLOCK * BLOCK, nb = end - k0, c0 = k0 + 1, len = n - c0;
        for (size_t k = 0; k < nb; k++) {
            memset(u + k * len, 0, k * sizeof *u);
            memcpy(u + k * len + k, a + (k0 + k) * n + c0 + k, (len - k) * sizeof *u);
        }
        sd_gemm_f64(false, true, nb, nb, len, 1, u, len, u, len, 0, gram, nb);
        memset(t, 0, sizeof t);
        for (size_t k = 0; k < nb; k++) {
            /* T[0..k)[k] = −tau_k T[0..k)[0..k) (U u_k) */
            for (size_t i = 0; i < k; i++) {
                z[i] = 0.0;
                for (size_t j = i; j < k; j++)
                    z[i] += t[i * nb + j] * gram[j * nb + k];
            }
            for (size_t i = 0; i < k; i++)
                t[i * nb + k] = -tau[k0 + k] * z[i];
            t[k * nb + k] = tau[k0 + k];
        }
        sd_gemm_f64(false, true, rows, nb, len, 1, x + c0, n, u, len, 0, g, nb);
        sd_gemm_f64(false, true, rows, nb, nb, 1, g, nb, t, nb, 0, h, nb);
        sd_gemm_f64(false, false, rows, len, nb, -1, h, nb, u, len, 1, x + c0, n);
        end = k0;
    }
}

/* C = [diag(d) + superdiagonal s | s[m−1] e_m] (m × m+1, upper bidiagonal) to [C' 0] by rotations
 * of each column i with the last one; c, sn get their cosines and sines. */
static void drop_last_column(size_t m, double *d, double *s, double *c, double *sn) {
    double f = s[m - 1];
    for (size_t i = m; i-- > 0;) {
        double r = hypot(d[i], f);
        c[i] = r > 0.0 ? d[i] / r : 1.0;
        sn[i] = r > 0.0 ? f / r : 0.0;
        d[i] = r;
        if (i > 0) {
            f = -sn[i] * s[i - 1];
            s[i - 1] *= c[i];
        }
    }
}

sd_status sd_skew_planes(size_t n, const double *b, double *sigma, double *x, double *y,
                         sd_err *err) {
    size_t m = n / 2;
    double top = 0.0;
    for (size_t i = 0; i < n; i++) {
        size_t o = i + 1, k = sd_first_nonfinite_f64(b + i * n + o, n - o);
        if (k < n - o)
            return sd_fail(err, SD_ENUMERIC, "non-finite value at row %zu, column %zu", i, o + k);
        for (size_t j = o; j < n; j++)
            top = fabs(b[i * n + j]) > top ? fabs(b[i * n + j]) : top;
    }
    bool vectors = x && y;
    if (m == 0)
        return SD_OK;
    if (vectors) {
        memset(x, 0, m * n * sizeof *x);
        memset(y, 0, m * n * sizeof *y);
    }
    if (top == 0.0) {
        /* Every plane is one of the zero matrix: pair the axes. */
        for (size_t p = 0; p < m; p++) {
            sigma[p] = 0.0;
            if (vectors)
                x[p * n + 2 * p] = y[p * n + 2 * p + 1] = 1.0;
        }
        return SD_OK;
    }
    size_t cells;
    if (!sd_mul_size(n, n, &cells))
        return sd_fail(err, SD_ENOMEM, "matrix of %zu x %zu is too large", n, n);
    /* A power of two brings the largest entry near 1: no overflow or underflow in the products. */
    int ex;
    frexp(top, &ex);
    if (ex < -1000)
        ex = -1000; /* the factor itself must not overflow */
    double factor = ldexp(1.0, -ex);
    sd_status st = SD_ENOMEM;
    double *a = sd_alloc_raw(cells, sizeof *a, err), *work = sd_alloc(10, n * sizeof *work, err);
    double *u = NULL, *vt = NULL, *block = NULL, *g = NULL;
    if (!a || !work)
        goto done;
    if (vectors) {
        u = sd_alloc_raw(m * m, sizeof *u, err);
        vt = sd_alloc_raw(m * m, sizeof *vt, err);
        block = sd_alloc_raw(n, BLOCK * sizeof *block, err);
        g = sd_alloc_raw(m, 2 * BLOCK * sizeof *g, err);
        if (!u || !vt || !block || !g)
            goto done;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            a[i * n + j] = factor * b[i * n + j];
    double *e = work, *tau = work + n, *d = work + 2 * n, *s = work + 3 * n, *c = work + 4 * n,
           *sn = work + 5 * n;
    tridiagonalise(n, a, e, tau, work + 6 * n);
    /* T couples even places with odd ones: T = [0 −Cᵀ; C 0] after the permutation (even first), C
     * (m × n−m) upper bidiagonal with diagonal e[0], e[2], … and superdiagonal −e[1], −e[3], …. */
    for (size_t i = 0; i < m; i++) {
        d[i] = e[2 * i];
        s[i] = 2 * i + 2 < n ? -e[2 * i + 1] : 0.0;
    }
    if (n % 2)
        drop_last_column(m, d, s, c, sn);
    SD_GO(st, done, sd_lapack_bdsdc(vectors, m, d, s, u, vt, err));
    for (size_t p = 0; p < m; p++)
        sigma[p] = ldexp(d[p], ex);
    if (!vectors)
        goto done;
    /* C v = σ u and Cᵀ u = σ v: with x = v at the even places and y = u at the odd ones, T x = σ y
     * and T y = −σ x. */
    for (size_t p = 0; p < m; p++) {
        double *xp = x + p * n, *yp = y + p * n;
        for (size_t i = 0; i < m; i++) {
            yp[2 * i + 1] = u[p * m + i];
            xp[2 * i] = vt[i * m + p];
        }
        if (n % 2)
            for (size_t i = 0; i < m; i++) {
                double z = xp[2 * i], l = xp[n - 1];
                xp[2 * i] = c[i] * z - sn[i] * l;
                xp[n - 1] = sn[i] * z + c[i] * l;
            }
    }
    apply_q(n, a, tau, m, x, block, g, g + m * BLOCK);
    apply_q(n, a, tau, m, y, block, g, g + m * BLOCK);
done:
    sd_free(a);
    sd_free(work);
    sd_free(u);
    sd_free(vt);
    sd_free(block);
    sd_free(g);
    return st;
}
