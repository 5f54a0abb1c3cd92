/* flash.h: one head of softmax attention over given queries and keys, tile by tile (*_k.c only).
 * Shared by the kinds that end in a softmax: they build queries and keys, and say what happens on
 * the diagonal. */
#ifndef SD_NN_FLASH_H
#define SD_NN_FLASH_H

#include "nn/attn.h"
#include "nn/real.h"

typedef enum sd_flash_diag {
    SD_DIAG_PLAIN,
    SD_DIAG_REPLACE, /* score (i, i) = diag_i; no gradient reaches q, k through it */
    SD_DIAG_ADD      /* score (i, i) += diag_i */
} sd_flash_diag;

#define flash_t SD_R(sd_flash)
typedef struct flash_t {
    size_t n, dk, dv; /* tokens; score width (0: all scores 0); value width */
    bool causal;
    size_t window; /* causal: row i sees keys i−window+1 .. i; 0: all before it */
    real scale;
    const real *q, *k, *v; // (N, dk), (N, dk), (N, dv) with row strides
    size_t ldq, ldk, ldv;
    sd_flash_diag mode;
    const real *diag; // element i at diag[i * ldd]; ldd = 0: one scalar
    size_t ldd;
    real *o; // (N, dv)
    size_t ldo;
    real *lse; // (N)
    /* backward: dq overwritten; dk, dv accumulated; ddiag (N) overwritten when not NULL */
    const real *d_o;
    size_t lddo;
    real *dq, *dk_, *dv_, *ddiag;
    size_t lddq, lddk, lddv;
} flash_t;

/* Elements of scratch. */
size_t SD_R(sd_flash_scratch)(size_t n, size_t dk, size_t dv, bool backward);
void SD_R(sd_flash_fwd)(const flash_t *f, real *scratch);
void SD_R(sd_flash_bwd)(const flash_t *f, real *scratch);
/* One row of scores and its output: the decode step. score_j = Σ over terms of c·(q · k_j), where
 * a kind takes q and the k_j straight from the projections it has kept. */
#define flash_term_t SD_R(sd_flash_term)
typedef struct flash_term_t {
    const real *q, *k; // (d), (n, d) with row stride of the keys
    size_t d;
    real c;
} flash_term_t;

#define flash_row_t SD_R(sd_flash_row_args)
typedef struct flash_row_t {
    size_t first, n; /* keys first..n−1; the last is the query's own token */
    size_t ld;       /* row stride of keys and values */
    size_t dv;
    int n_term;
    flash_term_t term[3];
    sd_flash_diag mode;
    real diag;
    bool raw; /* the scores themselves are the weights: no softmax */
    const real *v;
    real *o;   // (dv)
    real *lse; /* nullable */
} flash_row_t;

/* The first key that causal row t sees. */
SD_INLINE size_t sd_flash_first(const sd_attn_args *a, size_t t) {
    size_t w = a->causal ? (size_t)a->window : 0;
    return w && t + 1 > w ? t + 1 - w : 0;
}

/* scratch: SD_FLASH_ROW elements. */
enum { SD_FLASH_ROW = 256 };
void SD_R(sd_flash_row)(const flash_row_t *f, real *scratch);

#endif
