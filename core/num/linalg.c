#include "num/linalg.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"

size_t sd_first_nonfinite_f64(const double *x, size_t n) {
    /* Blocks are summed first: x·0 is 0 for every finite x and NaN otherwise. */
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        double s = 0.0;
        for (size_t j = 0; j < 64; j++)
            s += x[i + j] * 0.0;
        if (s != 0.0 || isnan(s))
            break;
    }
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

/* dst (n×m) = transpose of src (m×n, ld): in tiles, so that both sides stay in cache. */
static void transpose(size_t m, size_t n, const double *src, size_t ld, double *dst) {
    enum { T = 16 };
    for (size_t i0 = 0; i0 < m; i0 += T)
        for (size_t j0 = 0; j0 < n; j0 += T)
            for (size_t j = j0; j < n && j < j0 + T; j++)
                for (size_t i = i0; i < m && i < i0 + T; i++)
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
