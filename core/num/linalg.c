#include "num/linalg.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/clones.h"

/* Eight doubles, at any address; narrower machines split it. */
typedef double lanes __attribute__((vector_size(64), aligned(8), may_alias));
enum { LANES = 8 };
#define AT(p_) (*(lanes *)(p_))
#define ATC(p_) (*(const lanes *)(p_))

/* How many of the first n elements, by whole blocks, are sure to be finite. */
SD_CLONES static size_t finite_blocks(const double *x, size_t n) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        lanes s = {0};
        for (size_t j = 0; j < 64; j += LANES)
            s += ATC(x + i + j) * 0.0; /* 0 for every finite value, else NaN */
        if (isnan(s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]))
            break;
    }
    return i;
}

size_t sd_first_nonfinite_f64(const double *x, size_t n) {
    size_t i = finite_blocks(x, n);
    for (; i < n; i++)
        if (!isfinite(x[i]))
            return i;
    return n;
}

size_t sd_first_nonfinite_f32(const float *x, size_t n) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        float s = 0.0f;
        for (size_t j = 0; j < 64; j++)
            s += x[i + j] * 0.0f;
        if (s != 0.0f || isnan(s))
            break;
    }
    for (; i < n; i++)
        if (!isfinite(x[i]))
            return i;
    return n;
}

static sd_status check_finite(const double *a, size_t m, size_t n, size_t lda, sd_err *err) {
    for (size_t i = 0; i < m; i++) {
        size_t j = sd_first_nonfinite_f64(a + i * lda, n);
        if (j < n)
            return sd_fail(err, SD_ENUMERIC, "non-finite value at row %zu, column %zu", i, j);
    }
    return SD_OK;
}

/* Rows a, b, … of a square of lanes to its columns, one doubling of the distance at a time. */
#define SWAP1(a_, b_)                                                          \
    do {                                                                       \
        lanes t_ = __builtin_shufflevector(a_, b_, 0, 8, 2, 10, 4, 12, 6, 14); \
        b_ = __builtin_shufflevector(a_, b_, 1, 9, 3, 11, 5, 13, 7, 15);       \
        a_ = t_;                                                               \
    } while (0)
#define SWAP2(a_, b_)                                                         \
    do {                                                                      \
        lanes t_ = __builtin_shufflevector(a_, b_, 0, 1, 8, 9, 4, 5, 12, 13); \
        b_ = __builtin_shufflevector(a_, b_, 2, 3, 10, 11, 6, 7, 14, 15);     \
        a_ = t_;                                                              \
    } while (0)
#define SWAP4(a_, b_)                                                         \
    do {                                                                      \
        lanes t_ = __builtin_shufflevector(a_, b_, 0, 1, 2, 3, 8, 9, 10, 11); \
        b_ = __builtin_shufflevector(a_, b_, 4, 5, 6, 7, 12, 13, 14, 15);     \
        a_ = t_;                                                              \
    } while (0)

/* dst (n×m) = transpose of src (m×n, ld), in squares of eight. */
SD_CLONES static void transpose(size_t m, size_t n, const double *src, size_t ld, double *dst) {
    size_t i = 0;
    for (; i + LANES <= m; i += LANES) {
        size_t j = 0;
        for (; j + LANES <= n; j += LANES) {
            const double *p = src + i * ld + j;
            double *o = dst + j * m + i;
            lanes r0 = ATC(p), r1 = ATC(p + ld), r2 = ATC(p + 2 * ld), r3 = ATC(p + 3 * ld),
                  r4 = ATC(p + 4 * ld), r5 = ATC(p + 5 * ld), r6 = ATC(p + 6 * ld),
                  r7 = ATC(p + 7 * ld);
            SWAP1(r0, r1);
            SWAP1(r2, r3);
            SWAP1(r4, r5);
            SWAP1(r6, r7);
            SWAP2(r0, r2);
            SWAP2(r1, r3);
            SWAP2(r4, r6);
            SWAP2(r5, r7);
            SWAP4(r0, r4);
            SWAP4(r1, r5);
            SWAP4(r2, r6);
            SWAP4(r3, r7);
            AT(o) = r0;
            AT(o + m) = r1;
            AT(o + 2 * m) = r2;
            AT(o + 3 * m) = r3;
            AT(o + 4 * m) = r4;
            AT(o + 5 * m) = r5;
            AT(o + 6 * m) = r6;
            AT(o + 7 * m) = r7;
        }
        for (; j < n; j++)
            for (size_t k = i; k < i + LANES; k++)
                dst[j * m + k] = src[k * ld + j];
    }
    for (; i < m; i++)
        for (size_t j = 0; j < n; j++)
            dst[j * m + i] = src[i * ld + j];
}

/* When the matrix is tall, a blocked unpivoted QR first (level 3), then the pivoted one on its n×n
 * triangle. Householder QR is backward stable column by column, so columns of very different scale
 * survive the first step, and the second grades them; dgeqp3 alone spends half its work in level 2
 * over the tall matrix. */
sd_status sd_qr_pivot(size_t m, size_t n, const double *a, size_t lda, double *r, double *q,
                      sd_err *err) {
    SD_TRY(check_finite(a, m, n, lda, err));
    memset(r, 0, n * n * sizeof *r);
    if (n == 0 || m == 0)
        return SD_OK;
    size_t k = m < n ? m : n;
    bool tall = !q && m > n + n / 2;
    sd_status st = SD_ENOMEM;
    double *w = sd_alloc_raw(m * n, sizeof *w, err);
    double *tri = tall ? sd_alloc(n * n, sizeof *tri, err) : NULL;
    double *tau = sd_alloc_raw(n, sizeof *tau, err);
    int *piv = sd_alloc(n, sizeof *piv, err);
    if (!w || !tau || !piv || (tall && !tri))
        goto done;
    transpose(m, n, a, lda, w); /* column-major m×n */
    double *f = w;
    size_t ld = m;
    if (tall) {
        SD_GO(st, done, sd_lapack_geqrf(m, n, w, m, tau, err));
        for (size_t j = 0; j < n; j++)
            memcpy(tri + j * n, w + j * m, (j + 1) * sizeof *tri);
        f = tri;
        ld = n;
    }
    SD_GO(st, done, sd_lapack_geqp3(tall ? n : m, n, f, ld, piv, tau, err));
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i <= j && i < k; i++)
            r[i * n + (size_t)piv[j] - 1] = f[j * ld + i];
    if (q) {
        SD_GO(st, done, sd_lapack_orgqr(m, k, k, w, m, tau, err));
        transpose(k, m, w, m, q);
    }
    st = SD_OK;
done:
    sd_free(w);
    sd_free(tri);
    sd_free(tau);
    sd_free(piv);
    return st;
}

sd_status sd_qr(size_t m, size_t n, const double *a, double *q, double *r, sd_err *err) {
    SD_TRY(check_finite(a, m, n, n, err));
    size_t k = m < n ? m : n;
    if (k == 0)
        return SD_OK;
    sd_status st = SD_ENOMEM;
    double *w = sd_alloc_raw(m * n, sizeof *w, err), *tau = sd_alloc_raw(k, sizeof *tau, err);
    if (!w || !tau)
        goto done;
    transpose(m, n, a, n, w);
    SD_GO(st, done, sd_lapack_geqrf(m, n, w, m, tau, err));
    memset(r, 0, k * n * sizeof *r);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i <= j && i < k; i++)
            r[i * n + j] = w[j * m + i];
    SD_GO(st, done, sd_lapack_orgqr(m, k, k, w, m, tau, err));
    transpose(k, m, w, m, q);
done:
    sd_free(w);
    sd_free(tau);
    return st;
}

sd_status sd_eigh(size_t n, const double *a, double *w, double *v, sd_err *err) {
    SD_TRY(check_finite(a, n, n, n, err));
    if (n == 0)
        return SD_OK;
    double *c = sd_alloc_raw(n * n, sizeof *c, err);
    if (!c)
        return SD_ENOMEM;
    memcpy(c, a, n * n * sizeof *c); /* row-major upper = column-major lower */
    sd_status st = sd_lapack_syevd(v != NULL, n, c, n, w, err);
    if (st == SD_OK && v)
        transpose(n, n, c, n, v);
    sd_free(c);
    return st;
}

sd_status sd_eig(size_t n, const double *a, double *wr, double *wi, double *vr, sd_err *err) {
    SD_TRY(check_finite(a, n, n, n, err));
    if (n == 0)
        return SD_OK;
    double *c = sd_alloc_raw(n * n, sizeof *c, err);
    double *v = vr ? sd_alloc_raw(n * n, sizeof *v, err) : NULL;
    sd_status st = SD_ENOMEM;
    if (c && (!vr || v)) {
        transpose(n, n, a, n, c);
        st = sd_lapack_geev(n, c, n, wr, wi, v, err);
        if (st == SD_OK && vr)
            transpose(n, n, v, n, vr);
    }
    sd_free(c);
    sd_free(v);
    return st;
}

sd_status sd_svd(size_t m, size_t n, const double *a, double *s, double *u, double *vt,
                 sd_err *err) {
    SD_TRY(check_finite(a, m, n, n, err));
    if (m == 0 || n == 0)
        return SD_OK;
    /* Row-major A is column-major Aᵀ = V S Uᵀ: its left vectors (n×k, column-major) are Vt
     * row-major, its right vectors (k×m, column-major) are U row-major. */
    double *c = sd_alloc_raw(m * n, sizeof *c, err);
    if (!c)
        return SD_ENOMEM;
    memcpy(c, a, m * n * sizeof *c);
    sd_status st = sd_lapack_gesdd(u && vt, n, m, c, n, s, vt, u, err);
    sd_free(c);
    return st;
}
