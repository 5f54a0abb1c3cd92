/* adamw_k.c: the optimizer's loops, compiled for f32 and f64. */
#include "nn/real.h"
#include "train/adamw_i.h"

SD_CLONES
void SD_R(sd_adamw_update)(size_t n, void *xp, const void *gp, void *mp, void *vp,
                           const sd_adamw_coef *c) {
    real *restrict x = xp, *restrict m = mp, *restrict v = vp;
    const real *restrict g = gp;
    const real b1 = (real)c->b1, b2 = (real)c->b2, a1 = (real)(1.0 - c->b1),
               a2 = (real)(1.0 - c->b2), eps = (real)c->eps, step = (real)(c->lr * c->c1),
               keep = (real)(1.0 - c->decay), c2 = (real)c->c2, s = (real)c->scale;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        real gi = g[i] * s;
        m[i] = b1 * m[i] + a1 * gi;
        v[i] = b2 * v[i] + a2 * gi * gi;
#if SD_REAL_BITS == 32
        real d = sqrtf(v[i] * c2) + eps;
#else
        real d = sqrt(v[i] * c2) + eps;
#endif
        x[i] = x[i] * keep - step * m[i] / d;
    }
}

SD_CLONES
double SD_R(sd_adamw_sum_squares)(size_t n, const void *gp) {
    const real *g = gp;
    double s = 0.0;
#pragma omp simd reduction(+ : s)
    for (size_t i = 0; i < n; i++)
        s += (double)g[i] * (double)g[i];
    return s;
}
