#include "num/blas.h"

#include <cblas.h>
#include <lapacke.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "num/blas_core.h"

/* Keeps the start-up choice of kernels in the link: a mere mention is optimised away. */
static const int *const core_linked __attribute__((used)) = &sd_blas_core_linked;

int sd_blas_threads(int n) {
    int old = openblas_get_num_threads();
    if (n >= 1 && n != old)
        openblas_set_num_threads(n);
    return old;
}

/* OpenBLAS's own allocator; weak: a library without it has another way. */
extern void *blas_memory_alloc(int pos) __attribute__((weak));
extern void blas_memory_free(void *p) __attribute__((weak));

int sd_blas_reserve(int n) {
    enum { MOST = 128, SLACK = 2 }; /* room for the data, in work spaces */
    const size_t space = ((size_t)128 << 20) + 4096;
    if (n > MOST)
        n = MOST;
    void *p[2 * MOST + SLACK];
    int want = 2 * n + SLACK, got = 0;
    while (got < want && (p[got] = sd_map_pages(space)) != NULL)
        got++;
    for (int i = 0; i < got; i++)
        sd_unmap_pages(p[i], space);
    if (got < want) /* n callers, n - 1 workers; one thread goes without the slack */
        n = got - SLACK >= 3 ? (got - SLACK + 1) / 2 : got > 0;
    if (!blas_memory_alloc || !blas_memory_free)
        return n;
    for (int i = 0; i < n; i++)
        p[i] = blas_memory_alloc(0);
    for (int i = 0; i < n; i++)
        if (p[i])
            blas_memory_free(p[i]);
    return n;
}

const char *sd_blas_config(void) {
    return openblas_get_config();
}

static int op(bool t) {
    return t ? CblasTrans : CblasNoTrans;
}

/* CBLAS refuses the leading dimension 0 of an empty factor, on stdout: a product over nothing is
 * done here. */
#define SCALE_ONLY(zero_)                                                           \
    do {                                                                            \
        for (size_t i = 0; i < m; i++)                                              \
            for (size_t j = 0; j < n; j++)                                          \
                c[i * ldc + j] = beta == (zero_) ? (zero_) : beta * c[i * ldc + j]; \
    } while (0)

void sd_gemm_f32(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                 size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        SCALE_ONLY(0.0f);
        return;
    }
    cblas_sgemm(CblasRowMajor, op(ta), op(tb), (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

void sd_gemm_f64(bool ta, bool tb, size_t m, size_t n, size_t k, double alpha, const double *a,
                 size_t lda, const double *b, size_t ldb, double beta, double *c, size_t ldc) {
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        SCALE_ONLY(0.0);
        return;
    }
    cblas_dgemm(CblasRowMajor, op(ta), op(tb), (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

void sd_gemv_f64(bool ta, size_t m, size_t n, double alpha, const double *a, size_t lda,
                 const double *x, double beta, double *y) {
    if (m == 0 || n == 0) {
        /* CBLAS leaves y alone when either is 0; the product with nothing is beta·y. */
        for (size_t i = 0; i < (ta ? n : m); i++)
            y[i] = beta == 0.0 ? 0.0 : beta * y[i];
        return;
    }
    cblas_dgemv(CblasRowMajor, op(ta), (int)m, (int)n, alpha, a, (int)lda, x, 1, beta, y, 1);
}

void sd_gram_f64(size_t m, size_t n, const double *a, size_t lda, double *c) {
    if (n == 0)
        return;
    memset(c, 0, n * n * sizeof *c);
    if (m == 0)
        return;
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)n, (int)m, 1.0, a, (int)lda, 0.0, c,
                (int)n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            c[i * n + j] = c[j * n + i];
}

double sd_dot_f64(size_t n, const double *x, const double *y) {
    return n ? cblas_ddot((int)n, x, 1, y, 1) : 0.0;
}

double sd_nrm2_f64(size_t n, const double *x) {
    return n ? cblas_dnrm2((int)n, x, 1) : 0.0;
}

/* ---- LAPACK ---------------------------------------------------------------------------------- */

static sd_status check_dims(size_t m, size_t n, sd_err *err) {
    if (m > INT_MAX / 8 || n > INT_MAX / 8)
        return sd_fail(err, SD_EINVAL, "matrix of %zu x %zu is too large for LAPACK", m, n);
    return SD_OK;
}

static sd_status check_info(lapack_int info, const char *what, sd_err *err) {
    if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR)
        return sd_fail(err, SD_ENOMEM, "%s: out of memory", what);
    if (info > 0)
        return sd_fail(err, SD_ENUMERIC, "%s: no convergence (info %d)", what, (int)info);
    if (info < 0)
        return sd_fail(err, SD_EINVAL, "%s: argument %d is invalid", what, (int)-info);
    return SD_OK;
}

/* The _work forms are used throughout: the plain ones scan the matrix for NaN (the callers did) and
 * allocate behind our back. lwork is the answer of a query call. */
static sd_status work_of(double query, double **work, lapack_int *lwork, sd_err *err) {
    *lwork = query < 1.0 ? 1 : (lapack_int)query;
    *work = sd_alloc_raw((size_t)*lwork, sizeof **work, err);
    return *work ? SD_OK : SD_ENOMEM;
}

sd_status sd_lapack_geqp3(size_t m, size_t n, double *a, size_t lda, int *jpvt, double *tau,
                          sd_err *err) {
    SD_TRY(check_dims(m, n, err));
    if (m == 0 || n == 0)
        return SD_OK;
    double q, *work;
    lapack_int lwork;
    memset(jpvt, 0, n * sizeof *jpvt);
    LAPACKE_dgeqp3_work(LAPACK_COL_MAJOR, (int)m, (int)n, a, (int)lda, jpvt, tau, &q, -1);
    SD_TRY(work_of(q, &work, &lwork, err));
    lapack_int info =
        LAPACKE_dgeqp3_work(LAPACK_COL_MAJOR, (int)m, (int)n, a, (int)lda, jpvt, tau, work, lwork);
    sd_free(work);
    return check_info(info, "pivoted QR", err);
}

/* dgeqrt: its panels are recursive, level 3 throughout; three times dgeqrf on tall matrices. The
 * factors of the reflectors stand on the diagonals of its T blocks. */
sd_status sd_lapack_geqrf(size_t m, size_t n, double *a, size_t lda, double *tau, sd_err *err) {
    enum { NB = 32 };
    SD_TRY(check_dims(m, n, err));
    if (m == 0 || n == 0)
        return SD_OK;
    size_t k = m < n ? m : n, nb = k < NB ? k : NB;
    double *t = sd_alloc_raw(nb * (k + n), sizeof *t, err);
    if (!t)
        return SD_ENOMEM;
    lapack_int info = LAPACKE_dgeqrt_work(LAPACK_COL_MAJOR, (int)m, (int)n, (int)nb, a, (int)lda, t,
                                          (int)nb, t + nb * k);
    for (size_t j = 0; j < k; j++)
        tau[j] = t[j * nb + j % nb];
    sd_free(t);
    return check_info(info, "QR", err);
}

sd_status sd_lapack_orgqr(size_t m, size_t n, size_t k, double *a, size_t lda, const double *tau,
                          sd_err *err) {
    SD_TRY(check_dims(m, n, err));
    if (m == 0 || n == 0)
        return SD_OK;
    double q, *work;
    lapack_int lwork;
    LAPACKE_dorgqr_work(LAPACK_COL_MAJOR, (int)m, (int)n, (int)k, a, (int)lda, tau, &q, -1);
    SD_TRY(work_of(q, &work, &lwork, err));
    lapack_int info = LAPACKE_dorgqr_work(LAPACK_COL_MAJOR, (int)m, (int)n, (int)k, a, (int)lda,
                                          tau, work, lwork);
    sd_free(work);
    return check_info(info, "QR vectors", err);
}

sd_status sd_lapack_syevd(bool vectors, size_t n, double *a, size_t lda, double *w, sd_err *err) {
    SD_TRY(check_dims(n, n, err));
    if (n == 0)
        return SD_OK;
    double q, *work;
    lapack_int iq, lwork;
    char job = vectors ? 'V' : 'N';
    LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, job, 'L', (int)n, a, (int)lda, w, &q, -1, &iq, -1);
    SD_TRY(work_of(q, &work, &lwork, err));
    lapack_int *iwork = sd_alloc_raw((size_t)iq, sizeof *iwork, err);
    if (!iwork) {
        sd_free(work);
        return SD_ENOMEM;
    }
    lapack_int info = LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, job, 'L', (int)n, a, (int)lda, w, work,
                                          lwork, iwork, iq);
    sd_free(iwork);
    sd_free(work);
    return check_info(info, "symmetric eigenvalues", err);
}

sd_status sd_lapack_geev(size_t n, double *a, size_t lda, double *wr, double *wi, double *vr,
                         sd_err *err) {
    SD_TRY(check_dims(n, n, err));
    if (n == 0)
        return SD_OK;
    double q, *work;
    lapack_int lwork;
    char job = vr ? 'V' : 'N';
    LAPACKE_dgeev_work(LAPACK_COL_MAJOR, 'N', job, (int)n, a, (int)lda, wr, wi, NULL, 1, vr, (int)n,
                       &q, -1);
    SD_TRY(work_of(q, &work, &lwork, err));
    lapack_int info = LAPACKE_dgeev_work(LAPACK_COL_MAJOR, 'N', job, (int)n, a, (int)lda, wr, wi,
                                         NULL, 1, vr, (int)n, work, lwork);
    sd_free(work);
    return check_info(info, "eigenvalues", err);
}

sd_status sd_lapack_gesdd(bool vectors, size_t m, size_t n, double *a, size_t lda, double *s,
                          double *u, double *vt, sd_err *err) {
    SD_TRY(check_dims(m, n, err));
    if (m == 0 || n == 0)
        return SD_OK;
    size_t k = m < n ? m : n;
    double q, *work;
    lapack_int lwork;
    char job = vectors ? 'S' : 'N';
    lapack_int *iwork = sd_alloc_raw(8 * k, sizeof *iwork, err);
    if (!iwork)
        return SD_ENOMEM;
    LAPACKE_dgesdd_work(LAPACK_COL_MAJOR, job, (int)m, (int)n, a, (int)lda, s, u, (int)m, vt,
                        (int)k, &q, -1, iwork);
    sd_status st = work_of(q, &work, &lwork, err);
    if (st == SD_OK) {
        lapack_int info = LAPACKE_dgesdd_work(LAPACK_COL_MAJOR, job, (int)m, (int)n, a, (int)lda, s,
                                              u, (int)m, vt, (int)k, work, lwork, iwork);
        sd_free(work);
        st = check_info(info, "singular values", err);
    }
    sd_free(iwork);
    return st;
}

sd_status sd_lapack_bdsdc(bool vectors, size_t n, double *d, double *e, double *u, double *vt,
                          sd_err *err) {
    SD_TRY(check_dims(n, n, err));
    if (n == 0)
        return SD_OK;
    lapack_int *iwork = sd_alloc_raw(8 * n, sizeof *iwork, err);
    double *work = sd_alloc_raw(vectors ? 3 * n * n + 4 * n : 4 * n, sizeof *work, err);
    sd_status st = SD_ENOMEM;
    if (iwork && work) {
        lapack_int info = LAPACKE_dbdsdc_work(LAPACK_COL_MAJOR, 'U', vectors ? 'I' : 'N', (int)n, d,
                                              e, u, (int)n, vt, (int)n, NULL, NULL, work, iwork);
        st = check_info(info, "bidiagonal singular values", err);
    }
    sd_free(iwork);
    sd_free(work);
    return st;
}

sd_status sd_lapack_skew_heevd(size_t n, const double *b, double *w, sd_err *err) {
    SD_TRY(check_dims(n, n, err));
    if (n == 0)
        return SD_OK;
    lapack_complex_double *h = sd_alloc(n * n, sizeof *h, err);
    if (!h)
        return SD_ENOMEM;
    for (size_t i = 0; i < n * n; i++)
        ((double *)h)[2 * i + 1] = b[i];
    lapack_int info = LAPACKE_zheevd(LAPACK_COL_MAJOR, 'N', 'L', (int)n, h, (int)n, w);
    sd_free(h);
    return check_info(info, "Hermitian eigenvalues", err);
}
