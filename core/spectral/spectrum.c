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
    *r = (reduced){.n = n, .d = d};
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

sd_status sd_spectral_reduce_apart(size_t n, size_t d, size_t df, const double *u, double delta,
                                   reduced *r, sd_err *err) {
    size_t w = 2 * (d + df);
    SD_TRY(sd_spectral_reduce_u(n, d + df, u, r, err));
    *r = (reduced){
        .n = n, .d = d, .df = df, .rows = r->rows, .r = r->r, .apart = true, .delta = delta};
    double left = 0, right = 0; // the norms of [Q Q_F] and [K K_F]
    for (size_t i = 0; i < r->rows; i++)
        for (size_t j = 0; j < w; j++) {
            bool first = j < 2 * d ? j < d : j < 2 * d + df;
            *(first ? &left : &right) += r->r[i * w + j] * r->r[i * w + j];
        }
    r->q_norm = sqrt(left);
    r->k_norm = sqrt(right);
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

sd_status sd_spectral_reduce_gram(size_t n, size_t d, const double *g, reduced *r, sd_err *err) {
    size_t w = 2 * d;
    *r = (reduced){.n = n, .d = d, .rows = n < w ? n : w};
    r->r = sd_alloc_raw(w * w + 1, sizeof *r->r, err);
    double *v = sd_alloc_raw(w * w + w + 1, sizeof *v, err), *l = v ? v + w * w : NULL;
    sd_status st = r->r && v ? sd_eigh(w, g, l, v, err) : SD_ENOMEM;
    double qq = 0, kk = 0;
    for (size_t i = 0; st == SD_OK && i < w; i++) {
        double s = sqrt(fmax(0, l[w - 1 - i])); // the largest first
        for (size_t j = 0; j < w; j++)
            r->r[i * w + j] = s * v[j * w + w - 1 - i];
        qq += i < d ? g[i * w + i] : 0;
        kk += i < d ? 0 : g[i * w + i];
    }
    r->q_norm = sqrt(fmax(0, qq));
    r->k_norm = sqrt(fmax(0, kk));
    sd_free(v);
    if (st != SD_OK) {
        sd_free(r->r);
        r->r = NULL;
    }
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
    *r = (reduced){.n = n, .d = d, .rows = n < w ? n : w, .r = r->r};
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

static int ascending(const void *a, const void *b) {
    return -descending(a, b);
}

static int by_magnitude(const void *a, const void *b) {
    double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
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

/* Eigenvalues of the matrix in `a` (n×n, overwritten), each moved by δ: METHOD §3. */
static sd_status eigenvalues(size_t n, double *a, double delta, sd_spectrum *s, sd_err *err) {
    SD_TRY(sd_eig(n, a, s->lambda_re, s->lambda_im, NULL, err));
    double sum = 0, top = -HUGE_VAL, rho = 0;
    s->n_lambda = n;
    for (size_t i = 0; i < n; i++) {
        s->lambda_re[i] += delta;
        double m = hypot(s->lambda_re[i], s->lambda_im[i]);
        sum += m * m;
        rho = fmax(rho, m);
        top = fmax(top, s->lambda_re[i]);
    }
    s->max_re = rho > 0 ? top / rho : 0;
    if (s->fro2 > 0)
        s->henrici = sqrt(fmax(0, s->fro2 - sum)) / sqrt(s->fro2);
    return SD_OK;
}

/* Singular values of M = X Yᵀ (X, Y: rows×d) through the triangles of both: d×d. */
static sd_status m_ranks(size_t rows, size_t d, const double *x, size_t ldx, const double *y,
                         size_t ldy, double tol, sd_spectrum *s, sd_err *err) {
    double *t = sd_alloc_raw(3 * d * d + d + 1, sizeof *t, err);
    if (!t)
        return SD_ENOMEM;
    double *u = t + d * d, *m = u + d * d, *sigma = m + d * d;
    sd_status st = sd_qr_pivot(rows, d, x, ldx, t, NULL, err);
    if (st == SD_OK)
        st = sd_qr_pivot(rows, d, y, ldy, u, NULL, err);
    if (st == SD_OK) {
        sd_gemm_f64(false, true, d, d, d, 1, t, d, u, d, 0, m, d);
        st = sd_svd(d, d, m, sigma, NULL, NULL, err);
    }
    if (st == SD_OK) {
        zero_small(sigma, d, tol);
        sd_ranks_of(sigma, d, false, &s->m_rank);
    }
    sd_free(t);
    return st;
}

static void budgets(double rr, double ff, sd_spectrum *s) {
    double total = rr + ff;
    s->routing = total > 0 ? rr / total : 0;
    s->filtering = total > 0 ? ff / total : 0;
    s->dir_frac = total > 0 ? sqrt(rr / total) : 0;
}

/* b = ½(p − pᵀ): one triangle is computed and mirrored with its sign, so that it is exactly skew.
 * Returns ‖b‖². */
static double skew_part(size_t w, const double *p, double *b) {
    double rr = 0;
    for (size_t i = 0; i < w; i++) {
        b[i * w + i] = 0;
        for (size_t j = i + 1; j < w; j++) {
            double v = 0.5 * (p[i * w + j] - p[j * w + i]);
            b[i * w + j] = v;
            b[j * w + i] = -v;
            rr += 2 * v * v;
        }
    }
    return rr;
}

/* p ← ½(p + pᵀ). Returns its ‖·‖². */
static double symmetric_part(size_t w, double *p) {
    double ff = 0;
    for (size_t i = 0; i < w; i++) {
        ff += p[i * w + i] * p[i * w + i];
        for (size_t j = i + 1; j < w; j++) {
            double v = 0.5 * (p[i * w + j] + p[j * w + i]);
            p[i * w + j] = p[j * w + i] = v;
            ff += 2 * v * v;
        }
    }
    return ff;
}

static sd_status planes_of(size_t w, const double *b, double tol, sd_spectrum *s, sd_err *err) {
    SD_TRY(sd_skew_planes(w, b, s->sigma, NULL, NULL, err));
    zero_small(s->sigma, w / 2, tol);
    // one plane a pair of values; sorted by the solver, but not after zeroing ties
    qsort(s->sigma, w / 2, sizeof(double), descending);
    sd_ranks_of(s->sigma, s->n_planes, true, &s->rank);
    return SD_OK;
}

static sd_status filter_of(size_t w, const double *f, double tol, sd_spectrum *s, sd_err *err) {
    SD_TRY(sd_eigh(w, f, s->f_lambda, NULL, err));
    zero_small(s->f_lambda, w, tol);
    sd_ranks_of(s->f_lambda, w, false, &s->f_rank);
    return SD_OK;
}

/* M = Q Kᵀ. p, b: (W, W) work. */
static sd_status product(const reduced *r, unsigned what, double tol, double *p, double *b,
                         sd_spectrum *s, sd_err *err) {
    size_t d = r->d, w = 2 * d;
    const double *r1 = r->r, *r2 = r->r + d;
    sd_gemm_f64(false, true, w, w, d, 1, r1, w, r2, w, 0, p, w);
    double rr = skew_part(w, p, b);
    if (what & SD_SPEC_R)
        SD_TRY(planes_of(w, b, tol, s, err));
    double ff = symmetric_part(w, p);
    s->fro2 = rr + ff;
    budgets(rr, ff, s);
    if (what & SD_SPEC_F)
        SD_TRY(filter_of(w, p, tol, s, err));
    if (what & SD_SPEC_LAMBDA) { // those of KᵀQ = R2ᵀR1 (d×d)
        sd_gemm_f64(true, false, d, d, w, 1, r2, w, r1, w, 0, b, d);
        SD_TRY(eigenvalues(d, b, 0, s, err));
    }
    return what & SD_SPEC_M ? m_ranks(w, d, r1, w, r2, w, tol, s, err) : SD_OK;
}

/* Routing and filtering with factors of their own, and δ on the diagonal: on the space of U, M is
 * B_R + B_F + δ, and δ on the N − W dimensions beside it. */
static sd_status apart(const reduced *r, unsigned what, double tol, double *p, double *b,
                       sd_spectrum *s, sd_err *err) {
    size_t d = r->d, df = r->df, w = 2 * (d + df), rest = r->n > w ? r->n - w : 0;
    const double *r3 = r->r + 2 * d;
    double delta = r->delta;
    sd_gemm_f64(false, true, w, w, d, 1, r->r, w, r->r + d, w, 0, p, w);
    double rr = skew_part(w, p, b), trace = 0;
    if (what & SD_SPEC_R)
        SD_TRY(planes_of(w, b, tol, s, err));
    sd_gemm_f64(false, true, w, w, df, 1, r3, w, r3 + df, w, 0, p, w);
    double ff = symmetric_part(w, p);
    for (size_t i = 0; i < w; i++)
        trace += p[i * w + i];
    ff += 2 * delta * trace + (double)r->n * delta * delta;
    s->fro2 = rr + fmax(0, ff);
    budgets(rr, fmax(0, ff), s);
    if (what & SD_SPEC_F) {
        SD_TRY(sd_eigh(w, p, s->f_lambda, NULL, err));
        zero_small(s->f_lambda, w, tol);
        if (delta != 0) { // of the W values at most N are there; every other one of F's N is δ
            qsort(s->f_lambda, w, sizeof(double), by_magnitude);
            for (size_t i = 0; i < r->n; i++)
                s->f_lambda[i] = (i < w ? s->f_lambda[i] : 0) + delta;
            s->n_f = r->n;
            qsort(s->f_lambda, s->n_f, sizeof(double), ascending);
        }
        sd_ranks_of(s->f_lambda, s->n_f, false, &s->f_rank);
    }
    for (size_t i = 0; i < w * w; i++)
        b[i] += p[i];
    if (what & SD_SPEC_M) {
        double *sigma = sd_alloc_raw(w + rest + 1, sizeof *sigma, err);
        if (!sigma)
            return SD_ENOMEM;
        memcpy(p, b, w * w * sizeof *p);
        for (size_t i = 0; i < w; i++)
            p[i * w + i] += delta;
        sd_status st = sd_svd(w, w, p, sigma, NULL, NULL, err);
        for (size_t i = 0; i < rest; i++)
            sigma[w + i] = fabs(delta);
        zero_small(sigma, w + rest, tol);
        sd_ranks_of(sigma, w + rest, false, &s->m_rank);
        sd_free(sigma);
        SD_TRY(st);
    }
    if (what & SD_SPEC_LAMBDA) {
        SD_TRY(eigenvalues(w, b, delta, s, err));
        double sum = s->fro2 * (1 - s->henrici * s->henrici) + (double)rest * delta * delta;
        s->henrici = s->fro2 > 0 ? sqrt(fmax(0, s->fro2 - sum) / s->fro2) : 0;
    }
    return SD_OK;
}

/* M(Δ) = R1 R_Δ R2ᵀ and M(−Δ)ᵀ = R2 R_Δ R1ᵀ: S(Δ) and F(Δ) are general matrices (METHOD §1). qr:
 * (W, d) work. */
static sd_status at_lag(const reduced *r, const rotation *rot, unsigned what, double tol, double *p,
                        double *b, double *qr, sd_spectrum *s, sd_err *err) {
    size_t d = r->d, w = 2 * d;
    const double *r2 = r->r + d;
    rotate_columns(w, d, r2, w, rot, qr);
    sd_gemm_f64(false, true, w, w, d, 1, qr, d, r->r, w, 0, b, w);
    rotate_columns(w, d, r->r, w, rot, qr);
    sd_gemm_f64(false, true, w, w, d, 1, qr, d, r2, w, 0, p, w);
    s->fro2 = sum_squares(p, w * w);
    for (size_t i = 0; i < w * w; i++) {
        double m = p[i], n = b[i];
        p[i] = 0.5 * (m - n);
        b[i] = 0.5 * (m + n);
    }
    budgets(sum_squares(p, w * w), sum_squares(b, w * w), s);
    if (what & SD_SPEC_R) {
        SD_TRY(sd_svd(w, w, p, s->sigma, NULL, NULL, err));
        zero_small(s->sigma, w, tol);
        sd_ranks_of(s->sigma, s->n_planes, false, &s->rank);
    }
    if (what & SD_SPEC_F) {
        SD_TRY(sd_svd(w, w, b, s->f_lambda, NULL, NULL, err));
        zero_small(s->f_lambda, w, tol);
        sd_ranks_of(s->f_lambda, w, false, &s->f_rank);
    }
    if (what & SD_SPEC_LAMBDA) {
        sd_gemm_f64(true, false, d, d, w, 1, r2, w, qr, d, 0, b, d);
        SD_TRY(eigenvalues(d, b, 0, s, err));
    }
    return what & SD_SPEC_M ? m_ranks(w, d, qr, d, r2, w, tol, s, err) : SD_OK;
}

sd_status sd_spectral_spectrum_reduced(const reduced *r, const rotation *rot, unsigned what,
                                       sd_spectrum *out, sd_err *err) {
    sd_status st = SD_OK;
    size_t d = r->d, w = 2 * (d + (r->apart ? r->df : 0));
    size_t cells = r->apart && r->delta != 0 && r->n > w ? r->n : w;
    memset(out, 0, sizeof *out);
    out->d = d;
    out->n_planes = rot ? w : (r->rows / 2 < d ? r->rows / 2 : d);
    out->n_f = w;
    out->n_lambda = r->apart ? w : d;
    double *p = sd_alloc_raw(w * w + 1, sizeof *p, err);
    double *b = sd_alloc_raw(w * w + 1, sizeof *b, err);
    double *qr = rot ? sd_alloc_raw(w * d + 1, sizeof *qr, err) : NULL;
    out->sigma = sd_alloc(w, sizeof(double), err);
    out->f_lambda = sd_alloc(cells, sizeof(double), err);
    out->lambda_re = sd_alloc(out->n_lambda, sizeof(double), err);
    out->lambda_im = sd_alloc(out->n_lambda, sizeof(double), err);
    if (!p || !b || (rot && !qr) || !out->sigma || !out->f_lambda || !out->lambda_re ||
        !out->lambda_im)
        st = SD_ENOMEM;
    double tol = (double)w * SD_UNIT_ROUNDOFF * r->q_norm * r->k_norm;
    if (st == SD_OK && w)
        st = rot        ? at_lag(r, rot, what, tol, p, b, qr, out, err)
             : r->apart ? apart(r, what, tol, p, b, out, err)
                        : product(r, what, tol, p, b, out, err);
    sd_free(p);
    sd_free(b);
    sd_free(qr);
    if (st != SD_OK)
        sd_spectrum_free(out);
    return st;
}

void sd_spectral_put_spectrum(double v[V_COUNT], const sd_spectrum *s, unsigned what) {
    v[V_fro2] = s->fro2;
    if (s->fro2 > 0) {
        v[V_routing] = s->routing;
        v[V_filtering] = s->filtering;
        v[V_dir_frac] = s->dir_frac;
        if (what & SD_SPEC_LAMBDA) {
            v[V_max_re] = s->max_re;
            v[V_henrici] = s->henrici;
        }
    }
    if (what & SD_SPEC_R) {
        sd_spectral_put_ranks(v + V_ranks_r, &s->rank);
        for (size_t i = 0; i < 4 && i < s->n_planes; i++)
            v[V_sigma1 + i] = s->sigma[i];
    }
    if (what & SD_SPEC_F)
        sd_spectral_put_ranks(v + V_ranks_f, &s->f_rank);
    if (what & SD_SPEC_M)
        sd_spectral_put_ranks(v + V_ranks_m, &s->m_rank);
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

double sd_spectral_median(double *x, size_t n) {
    if (!n)
        return NAN;
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}
