/* linalg.h: f64 decompositions used by the analysis; row-major in and out.
 * Every function refuses non-finite input at once (SD_ENUMERIC, "non-finite value at row r, column
 * c") and n = 0 is fine. */
#ifndef SD_NUM_LINALG_H
#define SD_NUM_LINALG_H

#include <stddef.h>

#include "base/status.h"

/* Index of the first non-finite element, or n. */
size_t sd_first_nonfinite_f64(const double *x, size_t n);
size_t sd_first_nonfinite_f32(const float *x, size_t n);

/* Column-pivoted QR of A (m×n): A = P·R with the permutation undone. Writes R (n×n row-major, not
 * triangular after un-permuting, zero-padded when m < n) and, if q != NULL, Q (m×min(m,n)).
 * METHOD §3. `a` is not modified. */
sd_status sd_qr_pivot(size_t m, size_t n, const double *a, size_t lda, double *r,
                      double *SD_NULLABLE q, sd_err *err);
/* Plain QR for the Lua primitive: Q (m×k), R (k×n), k = min(m,n). */
sd_status sd_qr(size_t m, size_t n, const double *a, double *q, double *r, sd_err *err);
/* Symmetric: eigenvalues ascending in w; vectors (nullable) as columns of v (n×n). Reads the upper
 * triangle. */
sd_status sd_eigh(size_t n, const double *a, double *w, double *SD_NULLABLE v, sd_err *err);
/* General: eigenvalues wr + i·wi; right vectors (nullable) as LAPACK packs them. */
sd_status sd_eig(size_t n, const double *a, double *wr, double *wi, double *SD_NULLABLE vr,
                 sd_err *err);
/* A (m×n) = U diag(s) Vt, k = min(m,n): U (m×k), Vt (k×n), both nullable together; s descending. */
sd_status sd_svd(size_t m, size_t n, const double *a, double *s, double *SD_NULLABLE u,
                 double *SD_NULLABLE vt, sd_err *err);

#endif
