/* internal.h: what the files of spectral/ share; not part of the library's contract. */
#ifndef SD_SPECTRAL_INTERNAL_H
#define SD_SPECTRAL_INTERNAL_H

#include "base/rng.h"
#include "spectral/spectral.h"

#define SD_UNIT_ROUNDOFF 1.1102230246251565e-16 /* 2^-53 */

/* The reduced form of U = [Q K]: r (2d×2d) = [R1 R2], with the norms of both factors. */
typedef struct reduced {
    size_t d;
    size_t rows; /* min(N, 2d) rows of r can be non-zero; N limits the rank */
    double *r;   // (2d, 2d)
    double q_norm, k_norm;
} reduced;

/* Rotation of the head dimensions by a RoPE lag: y = R_Δ x on `dim` of d dimensions. */
typedef struct rotation {
    size_t n;         /* pairs */
    const size_t *a;  /* (n) first dimension of each pair */
    const size_t *b;  /* (n) second */
    const double *cs; /* (n) cos of the pair's angle */
    const double *sn; /* (n) sin */
} rotation;

/* Checks both factors and reduces them; r->r is allocated (sd_free). */
sd_status sd_spectral_reduce(size_t n, size_t d, const double *q, const double *k, reduced *r,
                             sd_err *err);
/* The same from U = [Q K] (N×2d), checked by the decomposition. */
sd_status sd_spectral_reduce_u(size_t n, size_t d, const double *u, reduced *r, sd_err *err);
/* A spectrum from the reduced form. rot != NULL: the kernel at a RoPE lag, where sigma holds the
 * 2d singular values of S(Δ), f_lambda those of F(Δ) (METHOD §1). */
sd_status sd_spectral_spectrum_reduced(const reduced *r, const rotation *rot, unsigned what,
                                       sd_spectrum *out, sd_err *err);
/* The reduced form of an N×2d standard Gaussian [Q K]: its triangular factor has independent
 * entries (Bartlett), so a draw costs O(d²) whatever N is. r->r holds (2d)² doubles. */
void sd_spectral_reduced_gauss(size_t n, size_t d, sd_rng *g, reduced *r);

/* Streaming mean and standard deviation (n − 1); missing values are skipped. */
typedef struct moments {
    double n, mean, m2;
} moments;
void sd_spectral_moments_add(moments *m, double x);
double sd_spectral_moments_sd(const moments *m); /* 0 for n < 2 */

/* Median of n values (reordered): the mean of the middle two when n is even. */
double sd_spectral_median(double *x, size_t n);

/* 95% percentile interval of Σdelta/Σcount by 10,000 paired draws over n windows (METHOD §9). */
sd_status sd_spectral_bootstrap(size_t n, const double *delta, const double *count, uint64_t seed,
                                double *lo, double *hi, sd_err *err);

/* Parsed `layers` option: mask (L) owned by the caller. */
sd_status sd_spectral_layers(const char *SD_NULLABLE text, int n_layer, SD_OWN bool **mask,
                             sd_err *err);

/* Columns: documentation in one place (columns.c). `suffix` NULL or "_null", "_null_sd", "_sd",
 * "_bias". */
sd_status sd_spectral_add_num(sd_table *t, const char *name, const char *SD_NULLABLE suffix,
                              bool wide, sd_err *err);

/* A note that counts the rows whose status is not "ok" and quotes the first of them; none when all
 * are. */
sd_status sd_spectral_note_marked(sd_table *t, sd_err *err);

void sd_spectral_set(sd_table *t, int row, const char *name, const char *SD_NULLABLE suffix,
                     double v);
/* Cell as a double; false when the column or cell is missing. */
bool sd_spectral_get(const sd_table *t, int row, const char *name, double *v);

#endif
