/* real.h: the floating type of the kernel files (*_k.c), which are compiled twice. SD_R(name) gives
 * each its own symbol. */
#ifndef SD_NN_REAL_H
#define SD_NN_REAL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "num/blas.h"
#include "num/clones.h"

#if SD_REAL_BITS == 32
typedef float real;
#define SD_R(name_) name_##_f32
#define SD_REAL_MIN 1.17549435e-38f
#elif SD_REAL_BITS == 64
typedef double real;
#define SD_R(name_) name_##_f64
#define SD_REAL_MIN 2.2250738585072014e-308
#else
#error "real.h is for *_k.c files, compiled with -DSD_REAL_BITS=32 or 64"
#endif

#define r_gemm SD_R(sd_gemm)

#define SD_INLINE static inline __attribute__((always_inline, unused))

/* e^x for x ≤ 0 (clamped above 88). f32: Cody–Waite reduction and a degree-5 kernel (Cephes),
 * about 1e-7 relative; below −87.33, where the result is subnormal, 0; NaN stays NaN. No branches,
 * so that loops vectorise. f64: libm. */
SD_INLINE real r_exp(real x) {
#if SD_REAL_BITS == 32
    float c = x > 88.0f ? 88.0f : x;
    c = c < -87.33f ? -87.33f : c;
    const float magic = 12582912.0f; /* 1.5·2^23: rounds to an integer in the low mantissa bits */
    float t = c * 1.44269504f + magic;
    float n = t - magic;
    float r = c - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    union {
        float f;
        uint32_t u;
    } tb = {.f = t}, s;
    s.u = (tb.u + 127u) << 23; /* the magic's own bits are shifted out */
    float y = p * s.f;
    return x < -87.33f ? 0.0f : y;
#else
    return exp(x);
#endif
}

/* Φ(x) (normal distribution function) and φ(x)·1, from one exponential: Φ(−z) = e^{−z²/2}·P(t),
 * t = 1/(1 + 0.21 z), P a degree-9 fit (our own) with relative error 1.7e-8. */
SD_INLINE void r_normal(real x, real *cdf, real *pdf) {
    real e = r_exp((real)-0.5 * x * x);
#if SD_REAL_BITS == 32
    float z = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.21f * z);
    float p = -7.1662711684e-02f;
    p = p * t + 2.8362044036e-01f;
    p = p * t - 3.3032093406e-01f;
    p = p * t + 3.4948048322e-01f;
    p = p * t - 9.3981893452e-02f;
    p = p * t + 1.2489779274e-01f;
    p = p * t + 6.9185468227e-02f;
    p = p * t + 8.5069847863e-02f;
    p = p * t + 8.3711513826e-02f;
    float tail = e * p * t;
    *cdf = x < 0.0f ? tail : 1.0f - tail;
#else
    *cdf = 0.5 * erfc(-x * 0.70710678118654752440);
#endif
    *pdf = e * (real)0.39894228040143267794;
}

/* 1/(1 + e^{−x}), without overflow. */
SD_INLINE real r_sigmoid(real x) {
    real e = r_exp(x < 0 ? x : -x), s = 1 / (1 + e);
    return x < 0 ? e * s : s;
}

SD_INLINE real r_tanh(real x) {
    real a = x < 0 ? -x : x;
#if SD_REAL_BITS == 32
    float e = r_exp(-2.0f * a), y = (1.0f - e) / (1.0f + e);
    float s = a * (1.0f - a * a * 0.33333333f); /* the quotient cancels near 0 */
    y = a < 0.02f ? s : y;
#else
    real y = tanh(a);
#endif
    return x < 0 ? -y : y;
}

#endif
