/* controls.c: what decides whether a rank means anything: one random-weight draw on given
 * activations, the potential plane, and the scores softmax sees (METHOD §5). */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/probe.h"

/* pr of R = ½ U J Uᵀ from G = UᵀU: the non-zero eigenvalues ±iσ of R are those of H = ½ J G, so
 * Σσ² = −tr H², Σσ⁴ = tr H⁴ over all 2d values; *rr = ‖R‖². h, h2: (2d, 2d) work. NaN for R = 0. */
static double pr_of_gram(size_t d, const double *g, double *h, double *h2, double *rr) {
    size_t w = 2 * d;
    for (size_t i = 0; i < w; i++) {
        const double *src = i < d ? g + (i + d) * w : g + (i - d) * w;
        double s = i < d ? 0.5 : -0.5;
        for (size_t j = 0; j < w; j++)
            h[i * w + j] = s * src[j];
    }
    sd_gemm_f64(false, false, w, w, w, 1, h, w, h, w, 0, h2, w);
    double t2 = 0, t4 = 0;
    for (size_t i = 0; i < w; i++) {
        t2 += h2[i * w + i];
        for (size_t j = 0; j < w; j++)
            t4 += h2[i * w + j] * h2[j * w + i];
    }
    *rr = fmax(0, -t2);
    return t4 > 0 ? t2 * t2 / t4 : NAN;
}

/* A draw's [Q K] as its Gram g (2d, 2d) and mean row (2d). wt: (D, 2d); u: (max(N, D), 2d). */
static void draw_gram(const null_input *in, size_t d, sd_rng *rng, double *wt, double *u, double *g,
                      double *mean) {
    size_t w = 2 * d, dm = in->d_model;
    sd_rng_fill_gauss(rng, wt, dm * w);
    if (in->gram && !in->rot) { // WᵀCW, whatever N is
        sd_gemm_f64(false, false, dm, w, dm, 1, in->gram, dm, wt, w, 0, u, w);
        sd_gemm_f64(true, false, w, w, dm, 1, wt, w, u, w, 0, g, w);
        sd_gemv_f64(true, dm, w, 1, wt, w, in->mean, 0, mean);
        return;
    }
    sd_gemm_f64(false, false, in->n, w, dm, 1, in->x, dm, wt, w, 0, u, w);
    if (in->rot) { // row by row, as the heads are
        sd_spectral_rotate_rows(in->rot, in->n, u, w, 0);
        sd_spectral_rotate_rows(in->rot, in->n, u, w, d);
        for (size_t i = 0; i < in->n; i++)
            for (size_t c = 0; c < w; c++)
                mean[c] += u[i * w + c];
        for (size_t c = 0; c < w; c++)
            mean[c] /= (double)in->n;
    } else {
        sd_gemv_f64(true, dm, w, 1, wt, w, in->mean, 0, mean);
    }
    sd_gram_f64(in->n, w, u, w, g);
}

/* max_re and henrici: eigenvalues of KᵀQ, in h (d×d); re, im: (d). */
static sd_status null_eigen(size_t d, double fro2, double *h, double *re, double *im, double *out,
                            sd_err *err) {
    SD_TRY(sd_eig(d, h, re, im, NULL, err));
    double top = -HUGE_VAL, rho = 0, sum = 0;
    for (size_t i = 0; i < d; i++) {
        double m = hypot(re[i], im[i]);
        rho = fmax(rho, m);
        sum += m * m;
        top = fmax(top, re[i]);
    }
    out[V_max_re] = rho > 0 ? top / rho : NAN;
    out[V_henrici] = sqrt(fmax(0, fro2 - sum) / fro2);
    return SD_OK;
}

/* Every rank from the spectra themselves: of the Gram, or (prefix c_) of the centred one. */
static sd_status null_ranks(const null_input *in, size_t d, const double *g, bool centred,
                            double *out, sd_err *err) {
    reduced r;
    sd_spectrum s;
    unsigned what = in->what & (centred || !in->product ? SD_SPEC_R : ~(unsigned)SD_SPEC_LAMBDA);
    if (!what)
        return SD_OK;
    SD_TRY(sd_spectral_reduce_gram(in->n, d, g, &r, err));
    sd_status st = sd_spectral_spectrum_reduced(&r, NULL, what, &s, err);
    sd_free(r.r);
    if (st != SD_OK)
        return st;
    if (what & SD_SPEC_R)
        sd_spectral_put_ranks(out + (centred ? V_ranks_c : V_ranks_r), &s.rank);
    if (what & SD_SPEC_F)
        sd_spectral_put_ranks(out + V_ranks_f, &s.f_rank);
    if (what & SD_SPEC_M)
        sd_spectral_put_ranks(out + V_ranks_m, &s.m_rank);
    sd_spectrum_free(&s);
    return SD_OK;
}

sd_status sd_spectral_null_draw(const null_input *in, size_t d, sd_rng *rng, double out[V_COUNT],
                                sd_err *err) {
    sd_status st = SD_OK;
    size_t w = 2 * d, dm = in->d_model, rows = in->n > dm ? in->n : dm;
    double *wt = sd_alloc_raw(dm * w + 1, sizeof *wt, err);
    double *u = sd_alloc_raw(rows * w + 1, sizeof *u, err);
    double *g = sd_alloc_raw(w * w + 1, sizeof *g, err);
    double *h = sd_alloc_raw(w * w + 1, sizeof *h, err);
    double *h2 = sd_alloc_raw(w * w + 1, sizeof *h2, err);
    double *mean = sd_alloc(2 * w + 1, sizeof *mean, err), *z = mean ? mean + w : NULL;
    for (int i = 0; i < V_COUNT; i++)
        out[i] = NAN;
    if (!wt || !u || !g || !h || !h2 || !mean) {
        st = SD_ENOMEM;
        goto out;
    }
    draw_gram(in, d, rng, wt, u, g, mean);
    double fro2 = 0, t2 = 0, ww = 0, unused, cc;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            fro2 += g[i * w + j] * g[(i + d) * w + j + d];
            t2 += g[(i + d) * w + j] * g[(j + d) * w + i];
            h[i * d + j] = g[(i + d) * w + j]; // KᵀQ
        }
    double rr = 0.5 * (fro2 - t2);
    if (!(rr > 0))
        goto out;
    if (in->product) {
        SD_GO(st, out, null_eigen(d, fro2, h, h2, h2 + d, out, err));
        out[V_routing] = rr / fro2;
        out[V_filtering] = 1 - rr / fro2;
        out[V_dir_frac] = sqrt(rr / fro2);
    }
    // w = R1/N = ½(Q k̄ − K q̄) = ½ U [k̄; −q̄]
    for (size_t i = 0; i < d; i++) {
        z[i] = mean[d + i];
        z[d + i] = -mean[i];
    }
    for (size_t i = 0; i < w; i++)
        ww += z[i] * sd_dot_f64(w, g + i * w, z);
    out[V_phi] = 2 * (double)in->n * 0.25 * ww / rr;
    out[V_ranks_r] = pr_of_gram(d, g, h, h2, &unused);
    SD_GO(st, out, null_ranks(in, d, g, false, out, err));
    for (size_t i = 0; i < w; i++) // centring over tokens: G − N ū ūᵀ
        for (size_t j = 0; j < w; j++)
            g[i * w + j] -= (double)in->n * mean[i] * mean[j];
    out[V_ranks_c] = pr_of_gram(d, g, h, h2, &cc);
    out[V_c_share] = cc / rr;
    st = null_ranks(in, d, g, true, out, err);
out:
    sd_free(wt);
    sd_free(u);
    sd_free(g);
    sd_free(h);
    sd_free(h2);
    sd_free(mean);
    return st;
}

double sd_spectral_potential_norm(size_t n, size_t d, const double *q, const double *k,
                                  double *mean_q, double *mean_k) {
    memset(mean_q, 0, d * sizeof *mean_q);
    memset(mean_k, 0, d * sizeof *mean_k);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < d; c++) {
            mean_q[c] += q[i * d + c];
            mean_k[c] += k[i * d + c];
        }
    for (size_t c = 0; c < d; c++) {
        mean_q[c] /= (double)n;
        mean_k[c] /= (double)n;
    }
    double ww = 0;
    for (size_t i = 0; i < n; i++) {
        double w = 0.5 * (sd_dot_f64(d, q + i * d, mean_k) - sd_dot_f64(d, k + i * d, mean_q));
        ww += w * w;
    }
    return ww;
}

enum { SCORE_ROWS = 64 };

/* Rows lo … lo + m of the scores, `cols` of them; s: (m, n). */
static void score_rows(const score_factors *f, size_t lo, size_t m, size_t cols, double *s) {
    size_t n = f->n, d = f->d, df = f->qf ? f->df : 0;
    sd_gemm_f64(false, true, m, cols, d, f->product ? 1 : 0.5, f->q + lo * d, d, f->k, d, 0, s, n);
    if (!f->product)
        sd_gemm_f64(false, true, m, cols, d, -0.5, f->k + lo * d, d, f->q, d, 1, s, n);
    if (df) {
        sd_gemm_f64(false, true, m, cols, df, 0.5, f->qf + lo * df, df, f->kf, df, 1, s, n);
        sd_gemm_f64(false, true, m, cols, df, 0.5, f->kf + lo * df, df, f->qf, df, 1, s, n);
    }
    for (size_t r = 0; r < m && (f->replace || f->delta); r++) {
        double *x = s + r * n + lo + r, delta = f->delta ? f->delta[lo + r] : 0;
        *x = f->replace ? delta : *x + delta;
    }
}

sd_status sd_spectral_score_stats(const score_factors *f, score_stats *out, sd_err *err) {
    size_t n = f->n;
    double *s = sd_alloc_raw(SCORE_ROWS * n + 1, sizeof *s, err);
    if (!s)
        return SD_ENOMEM;
    double first = 0, sum = 0, sq = 0, count = 0, kl = 0, eff = 0;
    for (size_t lo = 0; lo < n; lo += SCORE_ROWS) {
        size_t m = n - lo < SCORE_ROWS ? n - lo : SCORE_ROWS;
        score_rows(f, lo, m, f->causal ? lo + m : n, s);
        for (size_t r = 0; r < m; r++) {
            size_t i = lo + r, from = 0, to = f->causal ? i + 1 : n;
            double *row = s + r * n, top = -HUGE_VAL, z = 0, zs = 0;
            if (f->cfg)
                sd_attn_keys(f->cfg, f->causal, i, n, &from, &to);
            if (!i)
                first = row[0];
            for (size_t j = from; j < to; j++) {
                double v = row[j] - first; // shifted: no cancellation from a common level
                sum += v;
                sq += v * v;
                top = fmax(top, row[j]);
            }
            count += (double)(to - from);
            for (size_t j = from; j < to; j++) {
                double e = exp(row[j] - top);
                z += e;
                zs += e * (row[j] - top);
            }
            double entropy = log(z) - zs / z;
            kl += log((double)(to - from)) - entropy;
            eff += exp(entropy);
        }
    }
    sd_free(s);
    out->logit_sd = sqrt(fmax(0, sq / count - (sum / count) * (sum / count)));
    out->kl_uniform = kl / (double)n;
    out->eff_ctx = eff / (double)n;
    return SD_OK;
}
