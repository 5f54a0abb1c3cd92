/* spectral.h: routing and filtering of attention, measured (METHOD §1–§6, §8, §9).
 * Results are sd_tables with the column names of ARCHITECTURE §4; per-row vectors: `planes` (σ of
 * R, descending, one a plane), `f_lambda` (eigenvalues of F), `lambda_re`, `lambda_im` (of M). */
#ifndef SD_SPECTRAL_SPECTRAL_H
#define SD_SPECTRAL_SPECTRAL_H

#include "base/table.h"
#include "nn/model.h"

/* Effective ranks of METHOD §4 over the singular values of a matrix. NaN-free: all-zero → 0. */
typedef struct sd_ranks {
    double pr, entropy, energy, stable;
    int n90, n95, n99;
} sd_ranks;
/* sigma: n values, any order, >= 0; `paired` = each value counts twice (planes of a skew matrix).
 */
void sd_ranks_of(const double *sigma, size_t n, bool paired, sd_ranks *out);

/* One interaction matrix given by factors: M = Q Kᵀ (Q, K: N×d row-major, scale already in Q). */
typedef struct sd_spectrum {
    size_t d, n_planes;                                         /* planes of R: min(d, N/2) */
    double fro2, routing, filtering, dir_frac, henrici, max_re; /* max Re λ / ρ */
    double *sigma;                                              /* (n_planes) descending */
    double *f_lambda;                                           /* (2d) ascending */
    double *lambda_re, *lambda_im;                              /* (d) */
    sd_ranks rank, f_rank;
} sd_spectrum;
enum { SD_SPEC_R = 1, SD_SPEC_F = 2, SD_SPEC_LAMBDA = 4, SD_SPEC_ALL = 7 };
sd_status sd_spectrum_of(size_t n, size_t d, const double *q, const double *k, unsigned what,
                         sd_spectrum *out, sd_err *err);
void sd_spectrum_free(sd_spectrum *s);

typedef struct sd_heads_opts {
    const char *layers; /* NULL = all */
    bool fold_norm;     /* METHOD §1 LN folding */
    bool bias;          /* augment with biases */
    int64_t lag;        /* RoPE lag Δ */
    int null_draws;     /* Gaussian null, per shape; default 20 */
    uint64_t seed;
} sd_heads_opts;
/* Weight level: one row a head. */
sd_status sd_heads(sd_model *m, const sd_heads_opts *o, const sd_run *run, SD_OWN sd_table **out,
                   sd_err *err);

typedef struct sd_probe_opts {
    const char *layers;
    int ctx;        /* tokens a sequence (0: min(position table, 512)) */
    int max_seqs;   /* 0: all that fit the text, at most 8 */
    int null_draws; /* per layer and sequence; default 20 */
    double tau;     /* minimal spectral rank: 3 */
    uint64_t seed;
} sd_probe_opts;
/* Token level: one row a head; means over sequences with *_sd, pooled values, controls of §5. */
sd_status sd_probe(sd_model *m, const int32_t *ids, size_t n, const sd_probe_opts *o,
                   const sd_run *run, SD_OWN sd_table **out, sd_err *err);
/* Per-layer summary of a heads or probe table: medians over heads, share of minimal-rank layers. */
sd_status sd_rank_summary(const sd_table *t, double tau, SD_OWN sd_table **out, sd_err *err);

/* METHOD §6 (a) structural, (b) spectral, (c) negative controls; one row a head and test. */
sd_status sd_stability(sd_model *m, const int32_t *ids, size_t n, const sd_run *run,
                       SD_OWN sd_table **out, sd_err *err);

/* METHOD §9. */
typedef struct sd_eval_opts {
    int ctx, stride; /* 0: position table (or 1024 for RoPE); stride = ctx */
    bool hf_convention, bos;
    int64_t expect_tokens; /* -1 = not checked */
} sd_eval_opts;
/* One-row table: ppl, nll, tokens, windows, ctx, stride, bos; vector `nll_window`, `count_window`.
 */
sd_status sd_eval_ppl(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *o,
                      const sd_run *run, SD_OWN sd_table **out, sd_err *err);
/* Paired bootstrap over windows (10,000 draws). */
sd_status sd_eval_compare(sd_model *a, sd_model *b, const int32_t *ids, size_t n,
                          const sd_eval_opts *o, uint64_t seed, const sd_run *run,
                          SD_OWN sd_table **out, sd_err *err);

/* Truncation factors of one head at weight level (METHOD §7.1, §8.1): the kernel M = Wq Wkᵀ with
 * wq, wk (D1×d row-major, scale already in wq, bias row included when there is one).
 * Routing: a, b (D1×planes) with R_k = Σ (a bᵀ − b aᵀ); filtering: f (D1×f_rank), lambda (f_rank)
 * with F = f diag(λ) fᵀ. Any of the pairs may be NULL. */
sd_status sd_kernel_planes(size_t d1, size_t d, const double *wq, const double *wk, size_t planes,
                           double *SD_NULLABLE a, double *SD_NULLABLE b, size_t f_rank,
                           double *SD_NULLABLE f, double *SD_NULLABLE lambda, sd_err *err);

#endif
