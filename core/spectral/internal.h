/* internal.h: what the files of spectral/ share; not part of the library's contract. */
#ifndef SD_SPECTRAL_INTERNAL_H
#define SD_SPECTRAL_INTERNAL_H

#include "base/rng.h"
#include "nn/attn.h"
#include "spectral/spectral.h"

#define SD_UNIT_ROUNDOFF 1.1102230246251565e-16 /* 2^-53 */

/* The reduced form of U = [Q K]: r (W×W) = [R1 R2], W = 2d, with the norms of both factors. Where
 * the filtering has factors of its own (`apart`), U = [Q K Q_F K_F], W = 2(d + df), and δ stands on
 * the diagonal of F besides. */
typedef struct reduced {
    size_t n, d, df;
    size_t rows; /* min(N, W) rows of r can be non-zero; N limits the rank */
    double *r;   // (W, W)
    double q_norm, k_norm;
    bool apart;
    double delta;
} reduced;

/* Rotation of the head dimensions by a RoPE lag: y = R_Δ x on `dim` of d dimensions. */
typedef struct rotation {
    size_t n;         /* pairs */
    const size_t *a;  /* (n) first dimension of each pair */
    const size_t *b;  /* (n) second */
    const double *cs; /* (n) cos of the pair's angle */
    const double *sn; /* (n) sin */
} rotation;

/* Rotary pairs of a model and their angles at `count` positions from `first` on: row p of cs, sn
 * (count, n). */
typedef struct rotary {
    size_t n, count;
    size_t *a, *b;   // (n)
    double *cs, *sn; // (count, n)
} rotary;
sd_status sd_spectral_rotary(const sd_rope_cfg *r, int64_t first, size_t count, SD_OWN rotary *out,
                             sd_err *err);
void sd_spectral_rotary_free(rotary *r);
/* x (rows, ld), rows at positions 0 …: its columns from `off` on are rotated as RoPE does. */
void sd_spectral_rotate_rows(const rotary *rot, size_t rows, double *x, size_t ld, size_t off);

/* Checks both factors and reduces them; r->r is allocated (sd_free). */
sd_status sd_spectral_reduce(size_t n, size_t d, const double *q, const double *k, reduced *r,
                             sd_err *err);
/* The same from U = [Q K] (N×2d), checked by the decomposition. */
sd_status sd_spectral_reduce_u(size_t n, size_t d, const double *u, reduced *r, sd_err *err);
/* The same from U = [Q K Q_F K_F] (N × 2(d + df)): filtering by factors of its own, and δ. */
sd_status sd_spectral_reduce_apart(size_t n, size_t d, size_t df, const double *u, double delta,
                                   reduced *r, sd_err *err);
/* R with RᵀR = G for a positive semidefinite G (2d×2d) = UᵀU of n rows: by eigenvalues, negative
 * ones of rounding are 0. r->r is allocated. METHOD §3: nulls only. */
sd_status sd_spectral_reduce_gram(size_t n, size_t d, const double *g, reduced *r, sd_err *err);
/* A spectrum from the reduced form. rot != NULL: the kernel at a RoPE lag, where sigma holds the
 * 2d singular values of S(Δ), f_lambda those of F(Δ) (METHOD §1). */
sd_status sd_spectral_spectrum_reduced(const reduced *r, const rotation *rot, unsigned what,
                                       sd_spectrum *out, sd_err *err);
/* The reduced form of an N×2d standard Gaussian [Q K]: its triangular factor has independent
 * entries (Bartlett), so a draw costs O(d²) whatever N is. r->r holds (2d)² doubles. */
void sd_spectral_reduced_gauss(size_t n, size_t d, sd_rng *g, reduced *r);

/* Median of n values (reordered): the mean of the middle two when n is even. */
double sd_spectral_median(double *x, size_t n);

/* 95% percentile interval of Σdelta/Σcount by 10,000 paired draws over n windows (METHOD §9). */
sd_status sd_spectral_bootstrap(size_t n, const double *delta, const double *count, uint64_t seed,
                                double *lo, double *hi, sd_err *err);

/* Parsed `layers` option: mask (L) owned by the caller. */
sd_status sd_spectral_layers(const char *SD_NULLABLE text, int n_layer, SD_OWN bool **mask,
                             sd_err *err);

/* Streaming mean and standard deviation (n − 1); missing values are skipped. */
typedef struct moments {
    double n, mean, m2;
} moments;
void sd_spectral_moments_add(moments *m, double x);
double sd_spectral_moments_sd(const moments *m); /* 0 for n < 2 */

/* ---- columns --------------------------------------------------------------------------------- */

/* The declarations behind columns.h: S(name, doc, fields of column_decl) one column,
 * R(object, prefix, what, fields) the ranks of one matrix. The place of a row is the place of the
 * column in every table and of its value in an array of V_COUNT. */
#define SD_COLUMN_DEFS(S, R)                                                                       \
    S(fro2, "squared Frobenius norm of the interaction matrix M", .in = HEADS | PROBE)             \
    S(routing, "share of ‖M‖² in the skew part R = (M − Mᵀ)/2", .unit = "share",                   \
      .in = HEADS | PROBE | SWEEP | CASCADE, .narrow = HEADS | PROBE | SWEEP,                      \
      .null = HEADS | PROBE, .when = SD_NOT_SD_WEIGHTS)                                            \
    S(filtering, "share of ‖M‖² in the symmetric part F = (M + Mᵀ)/2", .unit = "share",            \
      .in = HEADS | PROBE | SWEEP, .narrow = HEADS | PROBE | SWEEP, .null = HEADS | PROBE,         \
      .when = SD_NOT_SD_WEIGHTS)                                                                   \
    S(dir_frac, "‖R‖/‖M‖; random weights give 1/√2", .unit = "ratio", .in = HEADS | PROBE,         \
      .narrow = HEADS, .null = HEADS | PROBE, .null_narrow = HEADS, .when = SD_NOT_SD_WEIGHTS)     \
    R(r, "", "the routing R", .in = HEADS | PROBE | SUMMARY | SWEEP | CASCADE, .narrow = ~0u,      \
      .null = ~0u, .null_narrow = ~0u, .rest = HEADS | PROBE, .rest_shown = HEADS,                 \
      .rest_null_ask = PROBE)                                                                      \
    S(pr_bias, "pr with the biases in", .unit = "rank", .in = HEADS, .narrow = HEADS,              \
      .when = SD_WHEN_BIASED)                                                                      \
    S(dir_frac_bias, "dir_frac with the biases in", .unit = "ratio", .in = HEADS,                  \
      .when = SD_WHEN_BIASED | SD_NOT_SD_WEIGHTS)                                                  \
    S(pr_nobias, "pr without the query and key biases; its null is pr_null", .unit = "rank",       \
      .in = PROBE, .when = SD_WHEN_BIASED)                                                         \
    R(c, "c_", "the centred routing HRH (token means, which softmax cannot see, taken out)",       \
      .in = PROBE | SUMMARY | SWEEP | CASCADE, .narrow = ~0u, .null = ~0u, .null_narrow = ~0u,     \
      .rest = PROBE, .rest_null_ask = PROBE)                                                       \
    S(c_share, "‖HRH‖²/‖R‖²: share of the routing that centring over tokens leaves",               \
      .unit = "share", .in = PROBE, .null = PROBE)                                                 \
    S(phi, "share of the routing that is one potential plane (a per-key bias)", .unit = "share",   \
      .in = PROBE | SUMMARY | SWEEP | CASCADE, .narrow = ~0u, .null = ~0u,                         \
      .null_narrow = PROBE | SUMMARY)                                                              \
    S(max_re, "largest Re λ of M over its spectral radius", .unit = "ratio", .in = HEADS | PROBE,  \
      .narrow = HEADS, .null = HEADS | PROBE, .null_narrow = HEADS, .when = SD_NOT_SD_WEIGHTS)     \
    S(henrici, "departure from normality √(‖M‖² − Σ|λ|²)/‖M‖", .unit = "ratio",                    \
      .in = HEADS | PROBE, .narrow = HEADS, .null = HEADS | PROBE, .when = SD_NOT_SD_WEIGHTS)      \
    S(rope_imag, "share of the antisymmetric rotary coefficients; random weights give 0.5",        \
      .unit = "share", .in = HEADS, .narrow = HEADS, .null = HEADS, .when = SD_WHEN_ROTARY)        \
    S(logit_sd, "standard deviation of the scores that softmax sees", .in = PROBE,                 \
      .narrow = PROBE)                                                                             \
    S(kl_uniform, "nats between the attention and a uniform mean, averaged over queries",          \
      .unit = "nats", .in = PROBE, .narrow = PROBE)                                                \
    S(eff_ctx, "effective context: mean of exp(entropy of the attention)", .unit = "tokens",       \
      .in = PROBE, .narrow = PROBE)                                                                \
    S(d_mean, "mean of the S–D diagonal over tokens", .in = PROBE, .narrow = PROBE,                \
      .when = SD_WHEN_SD)                                                                          \
    S(d_sd, "standard deviation of the S–D diagonal over tokens", .in = PROBE, .when = SD_WHEN_SD) \
    S(sigma1, "strongest plane of the routing", .in = HEADS | PROBE)                               \
    S(sigma2, "second plane", .in = HEADS | PROBE)                                                 \
    S(sigma3, "third plane", .in = HEADS | PROBE)                                                  \
    S(sigma4, "fourth plane", .in = HEADS | PROBE)                                                 \
    R(f, "f_", "the filtering F", .in = HEADS | PROBE, .null = HEADS | PROBE,                      \
      .null_ask = HEADS | PROBE, .rest = HEADS | PROBE, .rest_null_ask = HEADS | PROBE,            \
      .when = SD_NOT_SD_WEIGHTS)                                                                   \
    R(m, "m_", "the interaction matrix M itself", .in = HEADS | PROBE, .ask = HEADS | PROBE,       \
      .null = HEADS | PROBE, .null_ask = HEADS | PROBE, .rest = HEADS | PROBE,                     \
      .rest_null_ask = HEADS | PROBE, .when = SD_NOT_SD_WEIGHTS)                                   \
    S(pr_pooled, "participation ratio of the whitened planes over all sequences together",         \
      .unit = "rank", .in = PROBE, .when = SD_POOLED)                                              \
    S(calib_rank, "rank of the second moment of [Q K] over all sequences", .unit = "dimensions",   \
      .in = PROBE, .when = SD_POOLED)

enum {
#define S(name_, ...) V_##name_,
#define R(object_, ...) \
    V_ranks_##object_, V_ranks_##object_##_end = V_ranks_##object_ + SD_RANK_COUNT - 1,
    SD_COLUMN_DEFS(S, R)
#undef S
#undef R
        V_COUNT
};

/* Which columns a table gets. */
typedef struct column_plan {
    unsigned in;        /* SD_IN_HEADS or SD_IN_PROBE */
    unsigned have;      /* SD_WHEN_* that hold */
    bool nulls, spread; /* *_null; *_sd over sequences */
    bool hide_kernel;   /* only S–D heads: SD_NOT_SD_WEIGHTS has no null, nor values in `heads` */
    const char *columns; /* `columns=`: names, "c_*", "all"; NULL = the usual ones */
} column_plan;
/* Refuses an item of p->columns that names no column of that table. */
sd_status sd_spectral_plan_check(const column_plan *p, sd_err *err);
/* Is the i-th column's value (or its null) wanted? A value of [from, to]? */
bool sd_spectral_wants(const column_plan *p, size_t i, bool null);
bool sd_spectral_wants_any(const column_plan *p, size_t from, size_t to, bool null);
/* layer, head, group (grouped), every wanted column, status and the vectors. */
sd_status sd_spectral_add_columns(sd_table *t, const column_plan *p, bool grouped, sd_err *err);
/* Values (NaN = none) of a row; suffix NULL, "_null", ... Columns the table has not are skipped. */
void sd_spectral_set_values(sd_table *t, int row, const char *SD_NULLABLE suffix,
                            const double v[V_COUNT]);
/* What a spectrum says, into its places; `what` as it was computed. */
void sd_spectral_put_spectrum(double v[V_COUNT], const sd_spectrum *s, unsigned what);
/* Takes out what needs a filtering that the weights do not have (SD_NOT_SD_WEIGHTS); fro2 is ‖R‖².
 */
void sd_spectral_routing_only(double v[V_COUNT], const sd_spectrum *s);
/* One more draw or sequence into the moments; NaN is skipped. */
void sd_spectral_add_values(moments m[V_COUNT], const double v[V_COUNT]);
/* *_null and *_null_sd of every value that the row has. */
void sd_spectral_set_null(sd_table *t, int row, const double v[V_COUNT], const moments m[V_COUNT]);
/* The ranks of one object (V_ranks_r, ...) into their places; an all-zero matrix has none. */
void sd_spectral_put_ranks(double *v, const sd_ranks *r);

/* A note that counts the rows whose status is not "ok" and quotes the first of them; none when all
 * are. */
sd_status sd_spectral_note_marked(sd_table *t, sd_err *err);

/* Cell as a double; false when the column or cell is missing. */
bool sd_spectral_get(const sd_table *t, int row, const char *name, double *v);

#endif
