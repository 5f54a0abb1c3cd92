/* truncate.c: the factors that keep the strongest planes (METHOD §8.1, §8.2). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "spectral/internal.h"

/* dst (rows×cols) column c = s · Σ_j q[:, j] v[j]. */
static void project(size_t rows, size_t inner, const double *q, const double *v, double s,
                    double *dst, size_t ld) {
    for (size_t i = 0; i < rows; i++)
        dst[i * ld] = s * sd_dot_f64(inner, q + i * inner, v);
}

sd_status sd_kernel_planes(size_t d1, size_t d, const double *wq, const double *wk, size_t planes,
                           double *a, double *b, size_t f_rank, double *f, double *lambda,
                           sd_err *err) {
    sd_status st = SD_OK;
    size_t w = 2 * d, kept = d1 < w ? d1 : w;
    if (planes > d)
        return sd_fail(err, SD_EINVAL, "a head of dimension %zu has %zu planes, not %zu", d, d,
                       planes);
    if (f_rank > w)
        return sd_fail(err, SD_EINVAL, "filtering of a head of dimension %zu has rank %zu, not %zu",
                       d, w, f_rank);
    for (int which = 0; which < 2; which++) {
        const double *x = which ? wk : wq;
        size_t at = sd_first_nonfinite_f64(x, d1 * d);
        if (at < d1 * d)
            return sd_fail(err, SD_ENUMERIC, "non-finite value in %s at row %zu, column %zu",
                           which ? "W_K" : "W_Q", at / d, at % d);
    }
    double *u = sd_alloc_raw(d1 * w + 1, sizeof *u, err);
    double *q = sd_alloc_raw(d1 * kept + 1, sizeof *q, err);
    double *r = sd_alloc(w * w + 1, sizeof *r, err);
    double *p = sd_alloc(w * w + 1, sizeof *p, err);
    double *s = sd_alloc(w * w + 1, sizeof *s, err);
    double *sigma = sd_alloc(w + 1, sizeof *sigma, err);
    double *x = sd_alloc(d * w + 1, sizeof *x, err);
    double *y = sd_alloc(d * w + 1, sizeof *y, err);
    if (!u || !q || !r || !p || !s || !sigma || !x || !y) {
        st = SD_ENOMEM;
        goto out;
    }
    if (!d || !d1)
        goto out;
    for (size_t i = 0; i < d1; i++) {
        memcpy(u + i * w, wq + i * d, d * sizeof *u);
        memcpy(u + i * w + d, wk + i * d, d * sizeof *u);
    }
    SD_GO(st, out, sd_qr_pivot(d1, w, u, w, r, q, err));
    sd_gemm_f64(false, true, w, w, d, 1, r, w, r + d, w, 0, p, w);
    if (a && b && planes) {
        for (size_t i = 0; i < w; i++)
            for (size_t j = i + 1; j < w; j++) {
                s[i * w + j] = 0.5 * (p[i * w + j] - p[j * w + i]);
                s[j * w + i] = -s[i * w + j];
            }
        SD_GO(st, out, sd_skew_planes(w, s, sigma, x, y, err));
        // B x = σy, B y = −σx: B = Σ σ (y xᵀ − x yᵀ). Rows of r past min(D1, 2d) are zero.
        for (size_t c = 0; c < planes; c++) {
            project(d1, kept, q, y + c * w, sqrt(sigma[c]), a + c, planes);
            project(d1, kept, q, x + c * w, sqrt(sigma[c]), b + c, planes);
        }
    }
    if (f && lambda && f_rank) {
        for (size_t i = 0; i < w; i++)
            for (size_t j = i; j < w; j++)
                s[i * w + j] = s[j * w + i] = 0.5 * (p[i * w + j] + p[j * w + i]);
        SD_GO(st, out, sd_eigh(w, s, sigma, r, err));
        size_t lo = 0, hi = w; // ascending: the largest magnitude is at one of the ends
        for (size_t c = 0; c < f_rank; c++) {
            size_t pick = fabs(sigma[lo]) > fabs(sigma[hi - 1]) ? lo++ : --hi;
            lambda[c] = sigma[pick];
            for (size_t j = 0; j < w; j++)
                u[j] = r[j * w + pick];
            project(d1, kept, q, u, 1, f + c, f_rank);
        }
    }
out:
    sd_free(u);
    sd_free(q);
    sd_free(r);
    sd_free(p);
    sd_free(s);
    sd_free(sigma);
    sd_free(x);
    sd_free(y);
    return st;
}

sd_status sd_whitened_planes(size_t d, const double *gram, double cutoff, size_t planes,
                             double *sigma, double *a, double *b, size_t *rank, sd_err *err) {
    sd_status st = SD_OK;
    size_t w = 2 * d;
    if (planes > d)
        return sd_fail(err, SD_EINVAL, "a head of dimension %zu has %zu planes, not %zu", d, d,
                       planes);
    size_t at = sd_first_nonfinite_f64(gram, w * w);
    if (at < w * w)
        return sd_fail(err, SD_ENUMERIC, "non-finite second moment at row %zu, column %zu", at / w,
                       at % w);
    double *v = sd_alloc(w * w + 1, sizeof *v, err);
    double *r = sd_alloc(w * w + 1, sizeof *r, err);
    double *m = sd_alloc(w * w + 1, sizeof *m, err);
    double *lam = sd_alloc(w + 1, sizeof *lam, err);
    double *sig = sd_alloc(w + 1, sizeof *sig, err);
    double *x = sd_alloc(d * w + 1, sizeof *x, err);
    double *y = sd_alloc(d * w + 1, sizeof *y, err);
    if (!v || !r || !m || !lam || !sig || !x || !y) {
        st = SD_ENOMEM;
        goto out;
    }
    if (!d) {
        if (rank)
            *rank = 0;
        goto out;
    }
    SD_GO(st, out, sd_eigh(w, gram, lam, v, err));
    // R = Λ^½ Vᵀ; directions the data never visits (below the cut-off) are dropped, so that a
    // singular second moment needs no inverse and no ridge.
    double cut = (cutoff > 0 ? cutoff : (double)w * SD_UNIT_ROUNDOFF) * fmax(lam[w - 1], 0);
    size_t live = 0;
    for (size_t i = 0; i < w; i++) {
        bool keep = lam[i] > cut && lam[i] > 0;
        double root = keep ? sqrt(lam[i]) : 0;
        live += keep;
        for (size_t j = 0; j < w; j++)
            r[i * w + j] = root * v[j * w + i];
    }
    if (rank)
        *rank = live;
    // B = R J Rᵀ = R1 R2ᵀ − R2 R1ᵀ
    sd_gemm_f64(false, true, w, w, d, 1, r, w, r + d, w, 0, m, w);
    for (size_t i = 0; i < w; i++) {
        for (size_t j = i + 1; j < w; j++) {
            v[i * w + j] = m[i * w + j] - m[j * w + i];
            v[j * w + i] = -v[i * w + j];
        }
        v[i * w + i] = 0;
    }
    SD_GO(st, out, sd_skew_planes(w, v, sig, x, y, err));
    double tol = (double)w * SD_UNIT_ROUNDOFF * sd_dot_f64(w * w, r, r);
    for (size_t p = 0; p < d; p++)
        if (sig[p] <= tol)
            sig[p] = 0;
    memcpy(sigma, sig, d * sizeof *sigma);
    for (size_t p = 0; a && b && p < planes; p++) {
        // a = J Rᵀx/√σ, b = −J Rᵀy/√σ, so that A_k = (Ua)(Ub)ᵀ − (Ub)(Ua)ᵀ (J = [[0, I], [−I, 0]]).
        double c = sig[p] > 0 ? 1 / sqrt(sig[p]) : 0;
        for (size_t j = 0; j < w; j++) {
            double rx = 0, ry = 0;
            for (size_t i = 0; i < w; i++) {
                rx += r[i * w + j] * x[p * w + i];
                ry += r[i * w + j] * y[p * w + i];
            }
            // (J z)_top = z_bottom, (J z)_bottom = −z_top
            size_t to = j < d ? j + d : j - d;
            double sign = j < d ? -1 : 1;
            a[to * planes + p] = sign * c * rx;
            b[to * planes + p] = -sign * c * ry;
        }
    }
out:
    sd_free(v);
    sd_free(r);
    sd_free(m);
    sd_free(lam);
    sd_free(sig);
    sd_free(x);
    sd_free(y);
    return st;
}

/* R = Λ^½ Vᵀ with RᵀR = gram and its pseudo-inverse V Λ^-½ (both n×n); directions below the cut-off
 * are dropped from both. */
static sd_status root_of(size_t n, const double *gram, double *r, double *inv, sd_err *err) {
    double *v = sd_alloc_raw(n * n + 1, sizeof *v, err),
           *lam = sd_alloc_raw(n + 1, sizeof *lam, err);
    sd_status st = v && lam ? sd_eigh(n, gram, lam, v, err) : SD_ENOMEM;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        bool keep = lam[i] > 0 && lam[i] > (double)n * SD_UNIT_ROUNDOFF * lam[n - 1];
        double root = keep ? sqrt(lam[i]) : 0;
        for (size_t j = 0; j < n; j++) {
            r[i * n + j] = root * v[j * n + i];
            inv[j * n + i] = keep ? v[j * n + i] / root : 0;
        }
    }
    sd_free(v);
    sd_free(lam);
    return st;
}

sd_status sd_whitened_product(size_t d, const double *gq, const double *gk, size_t rank,
                              double *sigma, double *a, double *b, sd_err *err) {
    sd_status st = SD_OK;
    if (rank > d)
        return sd_fail(err, SD_EINVAL, "a product over %zu dimensions has rank %zu, not %zu", d, d,
                       rank);
    const double *in[2] = {gq, gk};
    for (int i = 0; i < 2; i++) {
        size_t at = sd_first_nonfinite_f64(in[i], d * d);
        if (at < d * d)
            return sd_fail(err, SD_ENUMERIC, "non-finite second moment at row %zu, column %zu",
                           at / d, at % d);
    }
    double *w = sd_alloc(7 * d * d + d + 1, sizeof *w, err);
    if (!w || !d)
        goto out;
    double *rq = w, *iq = rq + d * d, *rk = iq + d * d, *ik = rk + d * d, *m = ik + d * d,
           *u = m + d * d, *vt = u + d * d, *s = vt + d * d;
    SD_GO(st, out, root_of(d, gq, rq, iq, err));
    SD_GO(st, out, root_of(d, gk, rk, ik, err));
    sd_gemm_f64(false, true, d, d, d, 1, rq, d, rk, d, 0, m, d);
    SD_GO(st, out, sd_svd(d, d, m, s, u, vt, err));
    memcpy(sigma, s, d * sizeof *sigma);
    for (size_t r = 0; a && b && r < rank; r++) {
        double root = sqrt(s[r]);
        for (size_t i = 0; i < d; i++) {
            double x = 0, y = 0;
            for (size_t j = 0; j < d; j++) {
                x += iq[i * d + j] * u[j * d + r];
                y += ik[i * d + j] * vt[r * d + j];
            }
            a[i * rank + r] = root * x;
            b[i * rank + r] = root * y;
        }
    }
out:
    if (!w)
        st = SD_ENOMEM;
    sd_free(w);
    return st;
}
