/* spectral.h: routing and filtering of attention, measured (METHOD §1–§6, §8, §9).
 * Results are sd_tables with the column names of ARCHITECTURE §4; per-row vectors: `planes` (σ of
 * R, descending, one a plane), `f_lambda` (eigenvalues of F), `lambda_re`, `lambda_im` (of M). */
#ifndef SD_SPECTRAL_SPECTRAL_H
#define SD_SPECTRAL_SPECTRAL_H

#include "base/table.h"
#include "nn/model.h"
#include "spectral/columns.h"

/* One interaction matrix given by factors: M = Q Kᵀ (Q, K: N×d row-major, scale already in Q).
 * Values ≤ 2d·u·‖Q‖‖K‖ are zeros. `what` chooses the spectra to compute; budgets are always there.
 * An S–D head's S is the routing of (2α·Q, K). Non-finite input: SD_ENUMERIC "non-finite value in Q
 * at row r, column c". */
typedef struct sd_spectrum {
    size_t d, n_planes, n_f; /* planes of R: min(d, N/2); eigenvalues of F: 2d, padded with zeros */
    size_t n_lambda;         /* d, or all that can differ from zero where M has no such factors */
    double fro2, routing, filtering, dir_frac, henrici, max_re; /* max Re λ / ρ */
    double *sigma;                                              /* (n_planes) descending */
    double *f_lambda;                                           /* (n_f) ascending */
    double *lambda_re, *lambda_im;                              /* (n_lambda) */
    sd_ranks rank, f_rank, m_rank;
} sd_spectrum;
enum { SD_SPEC_R = 1, SD_SPEC_F = 2, SD_SPEC_LAMBDA = 4, SD_SPEC_ALL = 7, SD_SPEC_M = 8 };
sd_status sd_spectrum_of(size_t n, size_t d, const double *q, const double *k, unsigned what,
                         sd_spectrum *out, sd_err *err);
void sd_spectrum_free(sd_spectrum *s);

typedef struct sd_heads_opts {
    const char *layers; /* NULL = all */
    bool fold_norm;     /* METHOD §1 LN folding */
    bool bias;          /* augment with biases */
    int64_t lag;        /* RoPE lag Δ; refused unless 0 for models without rotary positions */
    int null_draws;     /* Gaussian null, per shape; 0 = 20, negative = none */
    uint64_t seed;
    const char *columns; /* beyond the usual ones: names, "m_*", "all"; NULL = none */
} sd_heads_opts;
/* Weight level: one row a head, o nullable. Columns: those columns.h declares for `heads`, with the
 * null of each; layer head group (key head) · status ("ok", or why a row has no values); vectors
 * planes, f_lambda, lambda_re, lambda_im. A null is of the head's own shape, at the same lag. A
 * head with a non-finite weight is marked in `status` and does not stop the others. At weight level
 * the filtering of an S–D head (−D) is not a kernel: its budgets, f_* and eigenvalues are missing.
 * At lag ≠ 0 sigma and planes are singular values of S(Δ) and f_lambda those of F(Δ). */
sd_status sd_heads(sd_model *m, const sd_heads_opts *o, const sd_run *run, SD_OWN sd_table **out,
                   sd_err *err);

typedef struct sd_probe_opts {
    const char *layers;
    int ctx;        /* tokens a sequence (0: min(position table, 512)) */
    int max_seqs;   /* 0: all that fit the text, at most 8 */
    int null_draws; /* per layer and sequence; 0 = 20, negative = none */
    double tau;     /* minimal spectral rank; 0 = 3 */
    uint64_t seed;
    const char *columns; /* as in sd_heads_opts */
} sd_probe_opts;
/* Token level: one row a head, o nullable; means over sequences with *_sd, pooled values, controls
 * of METHOD §5. Columns: those columns.h declares for `probe`; pr_nobias where there are non-zero
 * biases and no rotary positions. Nulls are random weights on the same activations, rotated where
 * the layer rotates. Vector `planes` is the mean over sequences, f_lambda, lambda_re and lambda_im
 * are the first sequence's. An S–D head's eigenvalues (and m_*) are those of L over the first
 * min(N, 256) tokens of the first sequence, dense. Heads of one layer run in parallel; the result
 * does not depend on the thread count. */
sd_status sd_probe(sd_model *m, const int32_t *ids, size_t n, const sd_probe_opts *o,
                   const sd_run *run, SD_OWN sd_table **out, sd_err *err);

/* What one attention sublayer saw, for whoever wants to recompute: F32 tensors x (N, D), q (N, H,
 * d), k (N, Hkv, d), v (N, Hkv, d_v), d (N, H; NULL unless S–D). Members can be NULL where a kind
 * has no such thing; `what` lists those wanted ("qk"; NULL = all). */
typedef struct sd_captured {
    sd_tensor *x, *q, *k, *v, *d;
    double scale; /* c or α */
    char kind[24];
} sd_captured;
sd_status sd_probe_capture(sd_model *m, const int32_t *ids, size_t n, int layer,
                           const char *SD_NULLABLE what, const sd_run *SD_NULLABLE run,
                           sd_captured *out, sd_err *err);
void sd_captured_free(sd_captured *c);

/* Per-layer summary of a heads or probe table: medians over heads (even counts: the mean of the
 * middle two) of every numeric column that has values, heads, `minimal` (median pr <= tau; tau <= 0
 * = 3); meta minimal_share. Rows whose status is not "ok" are left out. */
sd_status sd_rank_summary(const sd_table *t, double tau, SD_OWN sd_table **out, sd_err *err);

/* METHOD §6 on the first min(n, 256) tokens; one row a head and test: layer, head, test
 * ("structural", "spectral", "control S+D structural", "control S+D spectral", "control plain
 * structural", "control plain spectral"), pass, expect (-1: either), ok, value (max |L_ij + L_ji|
 * or max Re λ), bound, min_d, sigma1, max_im. Meta `ok` = every row behaves as it must. */
sd_status sd_stability(sd_model *m, const int32_t *ids, size_t n, const sd_run *run,
                       SD_OWN sd_table **out, sd_err *err);

/* METHOD §9. */
typedef struct sd_eval_opts {
    int ctx, stride; /* 0: position table (or 1024 for RoPE); stride = ctx */
    bool hf_convention, bos;
    int64_t expect_tokens; /* scored tokens; <= 0 = not checked */
} sd_eval_opts;
/* One-row table: ppl, nll, tokens, windows, ctx, stride, bos; vector `nll_window`, `count_window`.
 */
sd_status sd_eval_ppl(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *o,
                      const sd_run *run, SD_OWN sd_table **out, sd_err *err);
/* Two models on the same windows; paired bootstrap over windows (10,000 seeded draws). One row:
 * ppl_a ppl_b change (ppl_b/ppl_a − 1) delta (mean NLL of b − a) delta_lo delta_hi tokens windows.
 */
sd_status sd_eval_compare(sd_model *a, sd_model *b, const int32_t *ids, size_t n,
                          const sd_eval_opts *o, uint64_t seed, const sd_run *run,
                          SD_OWN sd_table **out, sd_err *err);
/* Induction: `seqs` sequences of `half` random tokens repeated once; one row: half seqs accuracy
 * nll (second half, from its second token on), accuracy_first nll_first (first half), chance. */
typedef struct sd_recall_opts {
    int half, seqs; /* 0: min(64, n_pos/2), 8 */
    uint64_t seed;
} sd_recall_opts;
sd_status sd_eval_recall(sd_model *m, const sd_recall_opts *SD_NULLABLE o, const sd_run *run,
                         SD_OWN sd_table **out, sd_err *err);

/* The same tokens-by-heads analysis without a model: weights of one layer, f64, row-major, for
 * callers that have them already (benchmarks, tools). wq (D, H·d), wk (D, Hkv·d); scale c, applied
 * here. Appends rows of `layer` to a table made by sd_heads_table. */
sd_status sd_heads_table(SD_OWN sd_table **out, sd_err *err);
sd_status sd_heads_layer(sd_table *t, int layer, size_t d_model, int n_head, int n_kv_head,
                         size_t d, const double *wq, const double *wk, double scale,
                         const sd_run *SD_NULLABLE run, sd_err *err);

/* Truncation factors of one head at weight level (METHOD §7.1, §8.1): the kernel M = Wq Wkᵀ with
 * wq, wk (D1×d row-major, scale already in wq, bias row included when there is one).
 * Routing: a, b (D1×planes) with R_k = Σ (a bᵀ − b aᵀ); filtering: f (D1×f_rank), lambda (f_rank)
 * with F = f diag(λ) fᵀ. Any of the pairs may be NULL. */
sd_status sd_kernel_planes(size_t d1, size_t d, const double *wq, const double *wk, size_t planes,
                           double *SD_NULLABLE a, double *SD_NULLABLE b, size_t f_rank,
                           double *SD_NULLABLE f, double *SD_NULLABLE lambda, sd_err *err);

/* Calibrated (whitened) planes of one head (METHOD §8.2) from the second moment G = UᵀU/N (2d×2d)
 * of U = [Q K], unscaled, over all calibration rows. A = QKᵀ − KQᵀ; sigma (d) descending are the
 * symplectic eigenvalues of G: the token-level ones of A divided by N. a, b (2d×planes, nullable
 * together) fold: Q' = U·a, K' = U·b give Q'K'ᵀ − K'Q'ᵀ = A cut to `planes` planes, so W_Q' =
 * [W_Q W_K]·a (bias rows included) and S = α(Q'K'ᵀ − K'Q'ᵀ) with the original α. Eigenvalues of G
 * below cutoff·λmax (0: 2d·u) are dropped: a singular G is no failure; *rank (nullable) says how
 * many stayed. The mean of (A − A_k)² over all N² ordered pairs of the rows is 2Σ_{p>k}σ_p². */
sd_status sd_whitened_planes(size_t d, const double *gram, double cutoff, size_t planes,
                             double *sigma, double *SD_NULLABLE a, double *SD_NULLABLE b,
                             size_t *SD_NULLABLE rank, sd_err *err);

/* The best rank-`rank` product in place of Q Kᵀ (METHOD §7.4), from the second moments gq = QᵀQ/N
 * and gk = KᵀK/N' (d×d) of the rows of Q (N×d) and K (N'×d): a, b (d×rank, nullable together) with
 * (Q·a)(K·b)ᵀ nearest to Q Kᵀ over all N·N' pairs of rows; the mean of the squared error is
 * Σ_{r≥rank} sigma². sigma (d) descending. Eigenvalues below d·u·λmax are dropped, as above. */
sd_status sd_whitened_product(size_t d, const double *gq, const double *gk, size_t rank,
                              double *sigma, double *SD_NULLABLE a, double *SD_NULLABLE b,
                              sd_err *err);

#endif
