/* skew.h: the planes of a real skew-symmetric matrix (METHOD §3).
 *
 * B = −Bᵀ (n×n) has purely imaginary eigenvalues ±iσ; each pair owns a plane spanned by real
 * orthonormal x, y with Bx = σy, By = −σx. Householder tridiagonalisation keeps skewness exactly;
 * an odd/even permutation turns the tridiagonal into a bidiagonal of half the size, whose SVD gives
 * each plane once. No LAPACK routine of Debian's version does this. */
#ifndef SD_NUM_SKEW_H
#define SD_NUM_SKEW_H

#include <stddef.h>

#include "base/status.h"

/* Planes of B, row-major; only the strict upper triangle is read. sigma[0 .. n/2) descending, one a
 * plane (an odd n has one further zero eigenvalue). x, y (nullable together): (n/2)×n row-major,
 * row p the unit vectors of plane p. Non-finite input: SD_ENUMERIC with row and column. n = 0, 1:
 * no planes. */
sd_status sd_skew_planes(size_t n, const double *b, double *sigma, double *SD_NULLABLE x,
                         double *SD_NULLABLE y, sd_err *err);

#endif
