/* linalg.c: decompositions of one matrix a user asks for. Small ones run here; one that may take
 * longer than a moment runs in a child process, so that Ctrl-C can end it (SHELL §2). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lua/bind.h"
#include "num/linalg.h"
#include "num/skew.h"

typedef enum { QR, SVD, EIGH, EIG, SKEW } which;
typedef struct job {
    which w;
    size_t m, n;
    const double *a;
    double *o[3]; /* nullable from the first NULL on */
} job;

static sd_status run(void *ctx, sd_err *err) {
    job *j = ctx;
    switch (j->w) {
    case QR:
        return sd_qr(j->m, j->n, j->a, j->o[0], j->o[1], err);
    case SVD:
        return sd_svd(j->m, j->n, j->a, j->o[0], j->o[1], j->o[2], err);
    case EIGH:
        return sd_eigh(j->n, j->a, j->o[0], j->o[1], err);
    case EIG:
        return sd_eig(j->n, j->a, j->o[0], j->o[1], j->o[2], err);
    default:
        return sd_skew_planes(j->n, j->a, j->o[0], j->o[1], j->o[2], err);
    }
}

/* Replaces slot 1 by a contiguous f64 matrix. */
static sd_tensor *matrix(lua_State *L, bool square) {
    sd_tensor *t = sd_lua_to_tensor(L, 1, SD_F64);
    if (t->ndim != 2)
        sd_lua_fail(L, SD_EINVAL, "a matrix expected, this tensor has %d dimensions", t->ndim);
    if (square && t->shape[0] != t->shape[1])
        sd_lua_fail(L, SD_EINVAL, "a square matrix expected, got %lld x %lld",
                    (long long)t->shape[0], (long long)t->shape[1]);
    sd_tensor **b = sd_lua_box_tensor(L);
    sd_err e = {0};
    if (sd_tensor_cast(t, SD_F64, b, &e) != SD_OK)
        sd_lua_raise(L, &e);
    sd_lua_boxed_tensor(L, b);
    lua_replace(L, 1);
    return *b;
}

static double *result(lua_State *L, int nd, int64_t r, int64_t c) {
    int64_t shape[2] = {r, c};
    sd_tensor **b = sd_lua_box_tensor(L);
    sd_err e = {0};
    if (sd_tensor_new(SD_F64, nd, shape, b, &e) != SD_OK)
        sd_lua_raise(L, &e);
    sd_lua_boxed_tensor(L, b);
    return (*b)->data;
}

static void go(lua_State *L, const char *name, job *j, const size_t *len) {
    sd_err e = {0};
    sd_job_out out[3];
    size_t n = 0;
    for (; n < 3 && j->o[n]; n++)
        out[n] = (sd_job_out){j->o[n], len[n]};
    double s = (double)(j->m < j->n ? j->m : j->n), work = (double)j->m * (double)j->n * s;
    sd_status st = work > 3e7 ? sd_lua_run_job(name, run, j, out, n, &e) : run(j, &e);
    if (st != SD_OK) {
        if (st != SD_ECANCEL)
            sd_err_context(&e, "%s", name);
        sd_lua_raise(L, &e);
    }
}

static const char *const vec_opts[] = {"vectors", NULL};

static int l_qr(lua_State *L) {
    sd_tensor *a = matrix(L, false);
    int64_t m = a->shape[0], n = a->shape[1], k = m < n ? m : n;
    job j = {QR, (size_t)m, (size_t)n, a->data, {result(L, 2, m, k), NULL, NULL}};
    j.o[1] = result(L, 2, k, n);
    go(L, "qr", &j, (size_t[]){(size_t)(m * k), (size_t)(k * n)});
    return 2;
}

static int l_svd(lua_State *L) {
    sd_tensor *a = matrix(L, false);
    sd_lua_check_options(L, 2, vec_opts);
    bool vec = sd_lua_opt_bool(L, 2, "vectors", true);
    int64_t m = a->shape[0], n = a->shape[1], k = m < n ? m : n;
    lua_settop(L, 1);
    job j = {SVD, (size_t)m, (size_t)n, a->data, {NULL, NULL, NULL}};
    if (vec)
        j.o[1] = result(L, 2, m, k);
    j.o[0] = result(L, 1, k, 0);
    if (vec)
        j.o[2] = result(L, 2, k, n);
    go(L, "svd", &j, (size_t[]){(size_t)k, (size_t)(m * k), (size_t)(k * n)});
    return vec ? 3 : 1;
}

static int l_eigh(lua_State *L) {
    sd_tensor *a = matrix(L, true);
    sd_lua_check_options(L, 2, vec_opts);
    bool vec = sd_lua_opt_bool(L, 2, "vectors", true);
    int64_t n = a->shape[0];
    const double *p = a->data;
    double worst = 0, top = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < i; k++) {
            worst = fmax(worst, fabs(p[i * n + k] - p[k * n + i]));
            top = fmax(top, fabs(p[i * n + k]));
        }
    if (worst > 1e-6 * top)
        return sd_lua_fail(L, SD_EINVAL,
                           "eigh: the matrix is not symmetric (largest difference %.3g); its "
                           "symmetric part is (a + a:T()) / 2",
                           worst);
    lua_settop(L, 1);
    job j = {EIGH, (size_t)n, (size_t)n, a->data, {result(L, 1, n, 0), NULL, NULL}};
    if (vec)
        j.o[1] = result(L, 2, n, n);
    go(L, "eigh", &j, (size_t[]){(size_t)n, (size_t)(n * n)});
    return vec ? 2 : 1;
}

static int l_eig(lua_State *L) {
    sd_tensor *a = matrix(L, true);
    int64_t n = a->shape[0];
    lua_settop(L, 1);
    job j = {EIG, (size_t)n, (size_t)n, a->data, {result(L, 1, n, 0), NULL, NULL}};
    j.o[1] = result(L, 1, n, 0);
    go(L, "eig", &j, (size_t[]){(size_t)n, (size_t)n});
    return 2;
}

static int l_skew(lua_State *L) {
    sd_tensor *a = matrix(L, true);
    sd_lua_check_options(L, 2, vec_opts);
    bool vec = sd_lua_opt_bool(L, 2, "vectors", true);
    int64_t n = a->shape[0], h = n / 2;
    const double *p = a->data;
    double worst = 0, top = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k <= i; k++) {
            worst = fmax(worst, fabs(p[i * n + k] + p[k * n + i]));
            top = fmax(top, fabs(p[i * n + k]));
        }
    if (worst > 1e-6 * top)
        return sd_lua_fail(L, SD_EINVAL,
                           "skew: the matrix is not skew-symmetric (largest a_ij + a_ji %.3g); its "
                           "skew part is (a - a:T()) / 2",
                           worst);
    lua_settop(L, 1);
    job j = {SKEW, (size_t)n, (size_t)n, a->data, {result(L, 1, h, 0), NULL, NULL}};
    if (vec) {
        j.o[1] = result(L, 2, h, n);
        j.o[2] = result(L, 2, h, n);
    }
    go(L, "skew", &j, (size_t[]){(size_t)h, (size_t)(h * n), (size_t)(h * n)});
    return vec ? 3 : 1;
}

static const sd_fn functions[] = {
    {"qr", l_qr, "q, r = qr(a)", "QR decomposition of a matrix.", NULL,
     "local q, r = qr(tensor{{1,2},{3,4}})\nassert(matmul(q, r):close_to{{1,2},{3,4}})", NULL},
    {"svd", l_svd, "u, s, vt = svd(a, {vectors=true})",
     "Singular value decomposition a = u diag(s) vt; with vectors=false only s.",
     "A large one runs in a child process: Ctrl-C stops it at once.",
     "local u, s, vt = svd(tensor{{3,0},{0,4}})\nassert(math.abs(s[0] - 4) < 1e-12)",
     "vectors=true|false"},
    {"eigh", l_eigh, "w, v = eigh(a, {vectors=true})",
     "Eigenvalues (ascending) and eigenvectors (columns) of a symmetric matrix.", NULL,
     "local w = eigh({{2,1},{1,2}}, {vectors=false})\nassert(math.abs(w[1] - 3) < 1e-12)",
     "vectors=true|false"},
    {"eig", l_eig, "re, im = eig(a)", "Eigenvalues of a square matrix: real and imaginary parts.",
     NULL, "local re, im = eig{{0,1},{-1,0}}\nassert(math.abs(math.abs(im[0]) - 1) < 1e-12)", NULL},
    {"skew", l_skew, "sigma, x, y = skew(b, {vectors=true})",
     "Planes of a skew-symmetric matrix: b x = sigma y, b y = -sigma x; rows of x and y.",
     "Each plane comes once, largest first. The routing part of m is (m - m:T()) / 2.",
     "local s = skew({{0,2},{-2,0}}, {vectors=false})\nassert(math.abs(s[0] - 2) < 1e-12)",
     "vectors=true|false"},
    {NULL}};

void sd_lua_open_linalg(lua_State *L) {
    sd_lua_register(L, functions, "");
}
