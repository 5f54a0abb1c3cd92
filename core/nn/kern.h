/* kern.h: element-wise and row-wise kernels, forward and backward, over row blocks. Included by
 * *_k.c files only (real is float or double). */
#ifndef SD_NN_KERN_H
#define SD_NN_KERN_H

#include "nn/config.h"
#include "nn/real.h"

/* y = norm(x)·g (+ b for LayerNorm), rows × D; stat (rows, 2) gets mean (0 for RMS) and 1/sd. */
void SD_R(sd_k_norm_fwd)(sd_norm kind, size_t rows, size_t d, const real *x, const real *g,
                         const real *b, real eps, real *y, real *stat);
/* dx = base + ∂norm (base nullable, may be dx itself); dg, db (D) are accumulated (db nullable). */
void SD_R(sd_k_norm_bwd)(sd_norm kind, size_t rows, size_t d, const real *x, const real *stat,
                         const real *g, const real *dy, const real *base, real *dx, real *dg,
                         real *db);
/* y = act(h) (∘ gate when not NULL). */
void SD_R(sd_k_act_fwd)(sd_act act, size_t n, const real *h, const real *gate, real *y);
/* dh = dy·act'(h) (∘ gate), dgate = dy·act(h); dy and dh may be the same buffer. */
void SD_R(sd_k_act_bwd)(sd_act act, size_t n, const real *h, const real *gate, const real *dy,
                        real *dh, real *dgate);
/* y (rows, ld) += bias (n); y = base + bias (rows, n), either NULL = 0. */
void SD_R(sd_k_add_bias)(size_t rows, size_t n, size_t ld, const real *bias, real *y);
void SD_R(sd_k_base_bias)(size_t rows, size_t n, const real *base, const real *bias, real *y);
/* y[j] += Σ_rows x[r, j] for j < n. */
void SD_R(sd_k_colsum)(size_t rows, size_t n, size_t ld, const real *x, real *y);
void SD_R(sd_k_add)(size_t n, const real *x, real *y);           /* y += x */
void SD_R(sd_k_scale)(size_t n, real a, const real *x, real *y); /* y = a·x */
/* d = softplus(u) + floor over rows × H, u with row stride ldu. */
void SD_R(sd_k_softplus)(size_t rows, size_t h, size_t ldu, const real *u, real floor, real *d);
/* Rotates heads of x (n_head heads of width d from column 0, row stride ld); position of row r is
 * (r0 + r) % tokens; cs (tokens, dim): cos then sin, dim/2 each. sign −1 = backward. */
void SD_R(sd_k_rope)(size_t rows, size_t r0, size_t tokens, int n_head, int d, int dim,
                     sd_rope_style style, size_t ld, const real *cs, real sign, real *x);
/* One row of logits (V): returns −log softmax at target. With grad: logits ← scale·(p − onehot). */
double SD_R(sd_k_xent)(size_t v, real *logits, int target, bool grad, real scale);
/* Mixed loss of one row: (1−w)·NLL + w·cross-entropy to softmax(teacher). *nll without teacher. */
double SD_R(sd_k_xent_teacher)(size_t v, real *logits, const float *teacher, int target, double w,
                               bool grad, real scale, double *nll);
/* log Σ e^x over a row; *mx gets the maximum. */
double SD_R(sd_k_logsumexp)(size_t n, const real *x, real *mx);
/* Products of one row, which only read memory: y (n) += x (k) · W (k, n); y_j += c · (x · row j of
 * W), W (n, k). Each element sums in the same order whatever the split over columns or rows. */
void SD_R(sd_k_gemv)(size_t k, size_t n, const real *x, const real *w, size_t ldw, real *y);
void SD_R(sd_k_dots)(size_t n, size_t k, real c, const real *x, const real *w, size_t ldw, real *y);
void SD_R(sd_k_to_f32)(size_t rows, size_t n, size_t ld, const real *x, float *y);

#endif
