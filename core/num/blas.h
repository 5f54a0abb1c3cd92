/* blas.h: the one door to OpenBLAS and LAPACKE. All matrices are row-major here unless a function
 * says column-major; arguments are validated before the call (CBLAS and LAPACKE print complaints
 * on stdout and go on), and every LAPACK info is checked.
 *
 * Threads: sd_blas_threads(n) sets the BLAS thread count and returns the old one. The policy
 * (SHELL §5): an outer loop over heads sets 1 inside; one big product uses all. */
#ifndef SD_NUM_BLAS_H
#define SD_NUM_BLAS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

int sd_blas_threads(int n);
/* How many of n threads may compute at once: OpenBLAS maps a work space of 128 MiB for each of its
 * workers and for each thread that calls it, and where the address space does not hold one (ulimit
 * -v, strict overcommit) it tries again for ever. Those that fit are mapped, and kept; 0: none. */
int sd_blas_reserve(int n);
const char *sd_blas_config(void); /* library, version, kernel: for --version and receipts */

/* C (m×n, ldc) = alpha · op(A) · op(B) + beta · C; op = transpose when the flag is set. */
void sd_gemm_f32(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                 size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);
void sd_gemm_f64(bool ta, bool tb, size_t m, size_t n, size_t k, double alpha, const double *a,
                 size_t lda, const double *b, size_t ldb, double beta, double *c, size_t ldc);
void sd_gemv_f64(bool ta, size_t m, size_t n, double alpha, const double *a, size_t lda,
                 const double *x, double beta, double *y);
/* Both triangles of C (n×n) = AᵀA for A (m×n). */
void sd_gram_f64(size_t m, size_t n, const double *a, size_t lda, double *c);
double sd_dot_f64(size_t n, const double *x, const double *y);
double sd_nrm2_f64(size_t n, const double *x);

/* LAPACK on column-major f64 (row-major storage of the transpose). Work memory is allocated
 * inside. SD_ENUMERIC "no convergence" when info > 0. */
sd_status sd_lapack_geqp3(size_t m, size_t n, double *a, size_t lda, int *jpvt, double *tau,
                          sd_err *err);
sd_status sd_lapack_geqrf(size_t m, size_t n, double *a, size_t lda, double *tau, sd_err *err);
sd_status sd_lapack_orgqr(size_t m, size_t n, size_t k, double *a, size_t lda, const double *tau,
                          sd_err *err);
sd_status sd_lapack_syevd(bool vectors, size_t n, double *a, size_t lda, double *w, sd_err *err);
sd_status sd_lapack_geev(size_t n, double *a, size_t lda, double *wr, double *wi,
                         double *SD_NULLABLE vr, sd_err *err);
sd_status sd_lapack_gesdd(bool vectors, size_t m, size_t n, double *a, size_t lda, double *s,
                          double *SD_NULLABLE u, double *SD_NULLABLE vt, sd_err *err);
/* SVD of an upper bidiagonal n×n (d, e): values in d descending; with vectors, vt (n×n) and u (n×n)
 * column-major, initialised to identity by the callee. */
sd_status sd_lapack_bdsdc(bool vectors, size_t n, double *d, double *e, double *SD_NULLABLE u,
                          double *SD_NULLABLE vt, sd_err *err);
/* Hermitian eigenvalues of i·B for a skew B (n×n): the independent cross-check of tests. */
sd_status sd_lapack_skew_heevd(size_t n, const double *b, double *w, sd_err *err);

#endif
