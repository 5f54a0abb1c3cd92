/* probe.h: pieces of the token-level analysis (controls.c), shared with probe.c and the tests. */
#ifndef SD_SPECTRAL_PROBE_H
#define SD_SPECTRAL_PROBE_H

#include "spectral/internal.h"

/* Activations of one layer and sequence, and what random heads go through on them. */
typedef struct null_input {
    size_t n, d_model;
    const double *x;                // (N, D); used when gram is NULL
    const double *SD_NULLABLE gram; // (D, D) C = XᵀX, for N > D where nothing is rotated
    const double *mean;             // (D) mean token
    const rotary *SD_NULLABLE rot;  // of at least N positions from 0: queries and keys are rotated
    bool product;                   // M = QKᵀ; else only its routing is the layer's
    unsigned what;                  // SD_SPEC_* beyond what the Gram gives: every rank of R, C (R),
                                    // of F (F), of M (M)
} null_input;
/* One draw of Gaussian W_Q, W_K (D×d) on the activations: values by their columns, NaN where there
 * is none (zero activations). From the Gram of the draw alone: pr, c_pr, shares, phi, and
 * eigenvalues of a product. METHOD §3, §5.3. */
sd_status sd_spectral_null_draw(const null_input *in, size_t d, sd_rng *rng, double out[V_COUNT],
                                sd_err *err);

/* ‖w‖² of the potential w = R1/N, R the routing of (Q, K); fills the means (d). METHOD §5.1. */
double sd_spectral_potential_norm(size_t n, size_t d, const double *q, const double *k,
                                  double *mean_q, double *mean_k);

typedef struct score_stats {
    double logit_sd, kl_uniform, eff_ctx;
} score_stats;
/* A head's scores by factors. Routing: Q Kᵀ whole (product), else ½(QKᵀ − KQᵀ); filtering factors
 * nullable; δ (N, nullable) replaces the diagonal or is added to it. */
typedef struct score_factors {
    size_t n, d, df;
    const double *q, *k;             // (N, d)
    const double *SD_NULLABLE qf;    // (N, df)
    const double *SD_NULLABLE kf;    // (N, df)
    const double *SD_NULLABLE delta; // (N)
    bool product, replace;
    bool causal;
    const sd_layer_cfg *SD_NULLABLE cfg; /* which keys a row sees; NULL: j ≤ i, or all */
} score_factors;
/* METHOD §5.4 over the keys that each row sees. logit_sd is the population value. */
sd_status sd_spectral_score_stats(const score_factors *f, score_stats *out, sd_err *err);

#endif
