/* controls.c: what decides whether a rank means anything: one random-weight draw on given
 * activations, the potential plane, and the scores softmax sees (METHOD §5). */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "spectral/probe.h"

/* pr and ‖R‖² of R = ½ U J Uᵀ from G = UᵀU: the non-zero eigenvalues ±iσ of R are those of
 * H = ½ J G, so Σσ² = −tr H², Σσ⁴ = tr H⁴ over all 2d values. h, h2: (2d, 2d) work. */
static double pr_of_gram(size_t d, const double *g, double *h, double *h2) {
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
    return t4 > 0 ? t2 * t2 / t4 : 0;
}

sd_status sd_spectral_null_draw(const null_input *in, size_t d, bool eigen, sd_rng *rng,
                                double out[5], sd_err *err) {
    sd_status st = SD_OK;
    size_t w = 2 * d, dm = in->d_model, rows = in->gram ? dm : in->n;
    double *wt = sd_alloc_raw(dm * w + 1, sizeof *wt, err);
    double *u = sd_alloc_raw(rows * w + 1, sizeof *u, err);
    double *g = sd_alloc_raw(w * w + 1, sizeof *g, err);
    double *h = sd_alloc_raw(w * w + 1, sizeof *h, err);
    double *h2 = sd_alloc_raw(w * w + 1, sizeof *h2, err);
    double *mean = sd_alloc(2 * w + 1, sizeof *mean, err), *z = mean ? mean + w : NULL;
    for (int i = 0; i < 5; i++)
        out[i] = NAN;
    if (!wt || !u || !g || !h || !h2 || !mean) {
        st = SD_ENOMEM;
        goto out;
    }
    sd_rng_fill_gauss(rng, wt, dm * w);
    if (in->gram) { // WᵀCW, whatever N is
        sd_gemm_f64(false, false, dm, w, dm, 1, in->gram, dm, wt, w, 0, u, w);
        sd_gemm_f64(true, false, w, w, dm, 1, wt, w, u, w, 0, g, w);
    } else { // fewer tokens than dimensions: the same Gram, cheaper
        sd_gemm_f64(false, false, in->n, w, dm, 1, in->x, dm, wt, w, 0, u, w);
        sd_gram_f64(in->n, w, u, w, g);
    }
    sd_gemv_f64(true, dm, w, 1, wt, w, in->mean, 0, mean);
    double fro2 = 0, t2 = 0, ww = 0;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            fro2 += g[i * w + j] * g[(i + d) * w + j + d];
            t2 += g[(i + d) * w + j] * g[(j + d) * w + i];
            h[i * d + j] = g[(i + d) * w + j]; // KᵀQ
        }
    double rr = 0.5 * (fro2 - t2);
    if (!(rr > 0))
        goto out;
    if (eigen) {
        SD_GO(st, out, sd_eig(d, h, h2, h2 + d, NULL, err));
        double top = -HUGE_VAL, rho = 0;
        for (size_t i = 0; i < d; i++) {
            rho = fmax(rho, hypot(h2[i], h2[d + i]));
            top = fmax(top, h2[i]);
        }
        out[NULL_MAX_RE] = rho > 0 ? top / rho : NAN;
    }
    // w = R1/N = ½(Q k̄ − K q̄) = ½ U [k̄; −q̄]
    for (size_t i = 0; i < d; i++) {
        z[i] = mean[d + i];
        z[d + i] = -mean[i];
    }
    for (size_t i = 0; i < w; i++)
        ww += z[i] * sd_dot_f64(w, g + i * w, z);
    out[NULL_PHI] = 2 * (double)in->n * 0.25 * ww / rr;
    out[NULL_DIR] = sqrt(rr / fro2);
    out[NULL_PR] = pr_of_gram(d, g, h, h2);
    for (size_t i = 0; i < w; i++) // centring over tokens: G − N ū ūᵀ
        for (size_t j = 0; j < w; j++)
            g[i * w + j] -= (double)in->n * mean[i] * mean[j];
    out[NULL_PR_CENTRED] = pr_of_gram(d, g, h, h2);
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

sd_status sd_spectral_score_stats(size_t n, size_t d, const double *q, const double *k, bool skew,
                                  const double *diag, bool causal, score_stats *out, sd_err *err) {
    double *s = sd_alloc_raw(SCORE_ROWS * n + 1, sizeof *s, err);
    if (!s)
        return SD_ENOMEM;
    double first = 0, sum = 0, sq = 0, count = 0, kl = 0, eff = 0;
    for (size_t lo = 0; lo < n; lo += SCORE_ROWS) {
        size_t m = n - lo < SCORE_ROWS ? n - lo : SCORE_ROWS;
        size_t cols = causal ? lo + m : n;
        double c = skew ? 0.5 : 1;
        sd_gemm_f64(false, true, m, cols, d, c, q + lo * d, d, k, d, 0, s, n);
        if (skew)
            sd_gemm_f64(false, true, m, cols, d, -c, k + lo * d, d, q, d, 1, s, n);
        for (size_t r = 0; r < m; r++) {
            size_t i = lo + r, seen = causal ? i + 1 : n;
            double *row = s + r * n, top = -HUGE_VAL, z = 0, zs = 0;
            if (diag)
                row[i] = -diag[i];
            else if (skew)
                row[i] = 0;
            if (!i)
                first = row[0];
            for (size_t j = 0; j < seen; j++) {
                double v = row[j] - first; // shifted: no cancellation from a common level
                sum += v;
                sq += v * v;
                top = fmax(top, row[j]);
            }
            count += (double)seen;
            for (size_t j = 0; j < seen; j++) {
                double e = exp(row[j] - top);
                z += e;
                zs += e * (row[j] - top);
            }
            double entropy = log(z) - zs / z;
            kl += log((double)seen) - entropy;
            eff += exp(entropy);
        }
    }
    sd_free(s);
    out->logit_sd = sqrt(fmax(0, sq / count - (sum / count) * (sum / count)));
    out->kl_uniform = kl / (double)n;
    out->eff_ctx = eff / (double)n;
    return SD_OK;
}
