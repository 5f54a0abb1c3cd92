/* api_linalg.c: the plugin table's group "linear algebra". */
#include "host/api.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "spectral/spectral.h"

static bool ptrs(sd_call *c, const char *what, const void *a, const void *b) {
    if (a && b)
        return true;
    sd_api_fail(c, SD_EINVAL, "%s: NULL matrix", what);
    return false;
}

static int h_matmul(sd_call *c, bool ta, bool tb, size_t m, size_t n, size_t k, double alpha,
                    const double *a, size_t lda, const double *b, size_t ldb, double beta,
                    double *out, size_t ldc) {
    if (m == 0 || n == 0)
        return 0;
    if (!ptrs(c, "matmul", a, b) || !ptrs(c, "matmul", out, out))
        return c->err.code;
    if (lda < (ta ? m : k) || ldb < (tb ? k : n) || ldc < n)
        return sd_api_fail(c, SD_EINVAL, "matmul (%zu, %zu, %zu): row lengths %zu, %zu, %zu", m, n,
                           k, lda, ldb, ldc);
    sd_gemm_f64(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, out, ldc);
    return 0;
}

static int h_eigh(sd_call *c, size_t n, const double *a, double *w, double *v) {
    return n == 0 || ptrs(c, "eigh", a, w) ? (int)sd_eigh(n, a, w, v, &c->err) : (int)c->err.code;
}

static int h_eig(sd_call *c, size_t n, const double *a, double *re, double *im) {
    return n == 0 || (ptrs(c, "eig", a, re) && ptrs(c, "eig", im, im))
               ? (int)sd_eig(n, a, re, im, NULL, &c->err)
               : (int)c->err.code;
}

static int h_svd(sd_call *c, size_t m, size_t n, const double *a, double *s, double *u,
                 double *vt) {
    if (!u != !vt)
        return sd_api_fail(c, SD_EINVAL, "svd: u and vt go together");
    return m == 0 || n == 0 || ptrs(c, "svd", a, s) ? (int)sd_svd(m, n, a, s, u, vt, &c->err)
                                                    : (int)c->err.code;
}

static int h_qr(sd_call *c, size_t m, size_t n, const double *a, double *q, double *r) {
    return m == 0 || n == 0 || (ptrs(c, "qr", a, q) && ptrs(c, "qr", r, r))
               ? (int)sd_qr(m, n, a, q, r, &c->err)
               : (int)c->err.code;
}

static int h_skew_planes(sd_call *c, size_t n, const double *b, double *sigma, double *x,
                         double *y) {
    if (!x != !y)
        return sd_api_fail(c, SD_EINVAL, "skew_planes: x and y go together");
    return n < 2 || ptrs(c, "skew_planes", b, sigma)
               ? (int)sd_skew_planes(n, b, sigma, x, y, &c->err)
               : (int)c->err.code;
}

static int h_kernel_planes(sd_call *c, size_t d1, size_t d, const double *wq, const double *wk,
                           size_t planes, double *a, double *b, size_t f_rank, double *f,
                           double *lambda) {
    if (!ptrs(c, "kernel_planes", wq, wk))
        return c->err.code;
    if (!a != !b || !f != !lambda)
        return sd_api_fail(c, SD_EINVAL, "kernel_planes: a and b, f and lambda go together");
    return sd_kernel_planes(d1, d, wq, wk, planes, a, b, f_rank, f, lambda, &c->err);
}

static int h_whitened_planes(sd_call *c, size_t d, const double *gram, size_t planes, double *sigma,
                             double *a, double *b, size_t *live) {
    if (!ptrs(c, "whitened_planes", gram, sigma))
        return c->err.code;
    if (!a != !b)
        return sd_api_fail(c, SD_EINVAL, "whitened_planes: a and b go together");
    return sd_whitened_planes(d, gram, 0, planes, sigma, a, b, live, &c->err);
}

static int h_whitened_product(sd_call *c, size_t d, const double *gq, const double *gk, size_t rank,
                              double *sigma, double *a, double *b) {
    if (!ptrs(c, "whitened_product", gq, gk) || !ptrs(c, "whitened_product", sigma, sigma))
        return c->err.code;
    if (!a != !b)
        return sd_api_fail(c, SD_EINVAL, "whitened_product: a and b go together");
    return sd_whitened_product(d, gq, gk, rank, sigma, a, b, &c->err);
}

void sd_api_linalg(sd_host *t) {
    t->matmul = h_matmul;
    t->eigh = h_eigh;
    t->eig = h_eig;
    t->svd = h_svd;
    t->qr = h_qr;
    t->skew_planes = h_skew_planes;
    t->kernel_planes = h_kernel_planes;
    t->whitened_planes = h_whitened_planes;
    t->whitened_product = h_whitened_product;
}
