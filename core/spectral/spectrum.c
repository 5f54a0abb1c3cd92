/* spectrum.c: the spectra of one interaction matrix through 2d×2d problems (METHOD §2, §3). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "spectral/internal.h"

static sd_status check_finite(const char *what, size_t n, size_t d, const double *x, sd_err *err) {
    size_t at = sd_first_nonfinite_f64(x, n * d);
    if (at < n * d)
        return sd_fail(err, SD_ENUMERIC, "non-finite value in %s at row %zu, column %zu", what,
                       at / d, at % d);
    return SD_OK;
}

sd_status sd_spectral_reduce_u(size_t n, size_t d, const double *u, reduced *r, sd_err *err) {
    size_t w = 2 * d;
    r->d = d;
    r->rows = n < w ? n : w;
    double qq = 0, kk = 0;
    r->r = sd_alloc(w * w, sizeof *r->r, err);
    if (!r->r)
        return SD_ENOMEM;
    sd_status st = n && d ? sd_qr_pivot(n, w, u, w, r->r, NULL, err) : SD_OK;
    if (st != SD_OK) {
        sd_free(r->r);
        r->r = NULL;
        return st;
    }
    // An orthogonal factor keeps the norms of both halves.
    for (size_t i = 0; i < r->rows; i++)
        for (size_t j = 0; j < d; j++) {
            qq += r->r[i * w + j] * r->r[i * w + j];
            kk += r->r[i * w + d + j] * r->r[i * w + d + j];
        }
    r->q_norm = sqrt(qq);
    r->k_norm = sqrt(kk);
    return SD_OK;
}

sd_status sd_spectral_reduce(size_t n, size_t d, const double *q, const double *k, reduced *r,
                             sd_err *err) {
    size_t w = 2 * d, cells;
    r->r = NULL;
    SD_TRY(check_finite("Q", n, d, q, err));
    SD_TRY(check_finite("K", n, d, k, err));
    if (!sd_mul_size(n, w, &cells))
        return sd_fail(err, SD_ENOMEM, "%zu x %zu values: the size overflows", n, w);
    double *u = sd_alloc_raw(cells, sizeof *u, err);
    if (!u)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        memcpy(u + i * w, q + i * d, d * sizeof *u);
        memcpy(u + i * w + d, k + i * d, d * sizeof *u);
    }
    sd_status st = sd_spectral_reduce_u(n, d, u, r, err);
    sd_free(u);
    return st;
}

static double chi(sd_rng *g, size_t k) {
    // χ of k degrees of freedom by squares: k is at most a few thousand, and exact is simplest.
    double s = 0;
    for (size_t i = 0; i < k; i++) {
        double x = sd_rng_gauss(g);
        s += x * x;
    }
    return sqrt(s);
}

void sd_spectral_reduced_gauss(size_t n, size_t d, sd_rng *g, reduced *r) {
    size_t w = 2 * d;
    r->d = d;
    r->rows = n < w ? n : w;
    memset(r->r, 0, w * w * sizeof *r->r);
    double qq = 0, kk = 0;
    for (size_t i = 0; i < r->rows; i++) {
        r->r[i * w + i] = chi(g, n - i);
        for (size_t j = i + 1; j < w; j++)
            r->r[i * w + j] = sd_rng_gauss(g);
        for (size_t j = i; j < w; j++)
            *(j < d ? &qq : &kk) += r->r[i * w + j] * r->r[i * w + j];
    }
    r->q_norm = sqrt(qq);
    r->k_norm = sqrt(kk);
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void zero_small(double *x, size_t n, double tol) {
    for (size_t i = 0; i < n; i++)
        if (fabs(x[i]) <= tol)
            x[i] = 0;
}

/* out (rows×d) = x (rows×d, ldx) · R_Δ, acting on the columns. */
static void rotate_columns(size_t rows, size_t d, const double *x, size_t ldx, const rotation *rot,
                           double *out) {
    for (size_t i = 0; i < rows; i++) {
        const double *src = x + i * ldx;
        double *dst = out + i * d;
        memcpy(dst, src, d * sizeof *dst);
        for (size_t t = 0; t < rot->n; t++) {
            double u = src[rot->a[t]], v = src[rot->b[t]];
            dst[rot->a[t]] = u * rot->cs[t] + v * rot->sn[t];
            dst[rot->b[t]] = v * rot->cs[t] - u * rot->sn[t];
        }
    }
}

static double sum_squares(const double *x, size_t n) {
    double nrm = sd_nrm2_f64(n, x);
    return nrm * nrm;
}

/* Eigenvalues of M: those of KᵀQ (d×d) = R2ᵀR1, at a lag R_Δᵀ… applied to Q's columns. */
static sd_status eigenvalues(const double *r1, size_t ld1, const double *r2, size_t ld2,
                             size_t rows, size_t d, double *work, sd_spectrum *s, sd_err *err) {
    sd_gemm_f64(true, false, d, d, rows, 1, r2, ld2, r1, ld1, 0, work, d);
    SD_TRY(sd_eig(d, work, s->lambda_re, s->lambda_im, NULL, err));
    double sum = 0, top = -HUGE_VAL, rho = 0;
    for (size_t i = 0; i < d; i++) {
        double m = hypot(s->lambda_re[i], s->lambda_im[i]);
        sum += m * m;
        rho = fmax(rho, m);
        top = fmax(top, s->lambda_re[i]);
    }
    if (s->fro2 > 0)
        s->henrici = sqrt(fmax(0, s->fro2 - sum)) / sqrt(s->fro2);
    s->max_re = rho > 0 ? top / rho : 0;
    return SD_OK;
}

sd_status sd_spectral_spectrum_reduced(const reduced *r, const rotation *rot, unsigned what,
                                       sd_spectrum *out, sd_err *err) {
    sd_status st = SD_OK;
    size_t d = r->d, w = 2 * d, rows = r->rows;
    memset(out, 0, sizeof *out);
    out->d = d;
    out->n_planes = rot ? w : (rows / 2 < d ? rows / 2 : d);
    out->n_f = w;
    double *p = sd_alloc_raw(w * w, sizeof *p, err);
    double *b = sd_alloc_raw(w * w, sizeof *b, err);
    double *qr = rot ? sd_alloc_raw(w * d, sizeof *qr, err) : NULL;
    out->sigma = sd_alloc(w, sizeof(double), err);
    out->f_lambda = sd_alloc(w, sizeof(double), err);
    out->lambda_re = sd_alloc(d, sizeof(double), err);
    out->lambda_im = sd_alloc(d, sizeof(double), err);
    if (!p || !b || (rot && !qr) || !out->sigma || !out->f_lambda || !out->lambda_re ||
        !out->lambda_im) {
        st = SD_ENOMEM;
        goto fail;
    }
    if (!d)
        goto done;
    const double *r1 = r->r, *r2 = r->r + d;
    size_t ld1 = w;
    if (rot) {
        rotate_columns(w, d, r->r, w, rot, qr);
        r1 = qr;
        ld1 = d;
    }
    sd_gemm_f64(false, true, w, w, d, 1, r1, ld1, r2, w, 0, p, w); // M(Δ), reduced
    double tol = 2 * (double)d * SD_UNIT_ROUNDOFF * r->q_norm * r->k_norm;
    double rr = 0, ff = 0;
    if (!rot) {
        // One triangle is computed and mirrored with its sign, so that B is exactly skew.
        for (size_t i = 0; i < w; i++) {
            b[i * w + i] = 0;
            for (size_t j = i + 1; j < w; j++) {
                double v = 0.5 * (p[i * w + j] - p[j * w + i]);
                b[i * w + j] = v;
                b[j * w + i] = -v;
                rr += 2 * v * v;
            }
        }
        if (what & SD_SPEC_R)
            SD_GO(st, fail, sd_skew_planes(w, b, out->sigma, NULL, NULL, err));
        for (size_t i = 0; i < w; i++) {
            ff += p[i * w + i] * p[i * w + i];
            for (size_t j = i + 1; j < w; j++) {
                double v = 0.5 * (p[i * w + j] + p[j * w + i]);
                p[i * w + j] = p[j * w + i] = v;
                ff += 2 * v * v;
            }
        }
        out->fro2 = rr + ff;
        if (what & SD_SPEC_F)
            SD_GO(st, fail, sd_eigh(w, p, out->f_lambda, NULL, err));
    } else {
        // M(−Δ)ᵀ = R2 R_Δ R1ᵀ; S(Δ) and F(Δ) are general matrices.
        out->fro2 = sum_squares(p, w * w);
        rotate_columns(w, d, r->r + d, w, rot, qr);
        sd_gemm_f64(false, true, w, w, d, 1, qr, d, r->r, w, 0, b, w);
        for (size_t i = 0; i < w * w; i++) {
            double m = p[i], n = b[i];
            p[i] = 0.5 * (m - n);
            b[i] = 0.5 * (m + n);
        }
        rr = sum_squares(p, w * w);
        ff = sum_squares(b, w * w);
        if (what & SD_SPEC_R)
            SD_GO(st, fail, sd_svd(w, w, p, out->sigma, NULL, NULL, err));
        if (what & SD_SPEC_F) {
            SD_GO(st, fail, sd_svd(w, w, b, out->f_lambda, NULL, NULL, err));
        }
        rotate_columns(w, d, r->r, w, rot, qr);
    }
    double total = rr + ff;
    if (total > 0) {
        out->routing = rr / total;
        out->filtering = ff / total;
        out->dir_frac = sqrt(rr / total);
    }
    zero_small(out->sigma, w, tol);
    zero_small(out->f_lambda, w, tol);
    if (!rot) // one plane a pair of values; sorted by the solver, but not after zeroing ties
        qsort(out->sigma, d, sizeof(double), descending);
    if (what & SD_SPEC_R)
        sd_ranks_of(out->sigma, out->n_planes, rot == NULL, &out->rank);
    if (what & SD_SPEC_F)
        sd_ranks_of(out->f_lambda, w, false, &out->f_rank);
    if (what & SD_SPEC_LAMBDA)
        SD_GO(st, fail, eigenvalues(r1, ld1, r2, w, w, d, b, out, err));
done:
    sd_free(p);
    sd_free(b);
    sd_free(qr);
    return SD_OK;
fail:
    sd_free(p);
    sd_free(b);
    sd_free(qr);
    sd_spectrum_free(out);
    return st;
}

sd_status sd_spectrum_of(size_t n, size_t d, const double *q, const double *k, unsigned what,
                         sd_spectrum *out, sd_err *err) {
    reduced r;
    memset(out, 0, sizeof *out);
    SD_TRY(sd_spectral_reduce(n, d, q, k, &r, err));
    sd_status st = sd_spectral_spectrum_reduced(&r, NULL, what, out, err);
    sd_free(r.r);
    return st;
}

void sd_spectrum_free(sd_spectrum *s) {
    sd_free(s->sigma);
    sd_free(s->f_lambda);
    sd_free(s->lambda_re);
    sd_free(s->lambda_im);
    memset(s, 0, sizeof *s);
}

void sd_spectral_moments_add(moments *m, double x) {
    m->n += 1;
    double delta = x - m->mean;
    m->mean += delta / m->n;
    m->m2 += delta * (x - m->mean);
}

double sd_spectral_moments_sd(const moments *m) {
    return m->n > 1 ? sqrt(m->m2 / (m->n - 1)) : 0;
}

static int ascending(const void *a, const void *b) {
    return -descending(a, b);
}

double sd_spectral_median(double *x, size_t n) {
    if (!n)
        return NAN;
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}
