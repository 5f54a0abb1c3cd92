/* Element-wise and row-wise kernels, forward and backward (nn/kern.h). */
#include "nn/kern.h"

#include <float.h>

#define NORM_FWD SD_R(sd_k_norm_fwd)
SD_CLONES void NORM_FWD(sd_norm kind, size_t rows, size_t d, const real *x, const real *g,
                        const real *b, real eps, real *y, real *stat) {
    for (size_t r = 0; r < rows; r++) {
        const real *xr = x + r * d;
        real *yr = y + r * d;
        real mean = 0, ss = 0;
        if (kind == SD_NORM_LAYER) {
#pragma omp simd reduction(+ : mean)
            for (size_t j = 0; j < d; j++)
                mean += xr[j];
            mean /= (real)d;
        }
#pragma omp simd reduction(+ : ss)
        for (size_t j = 0; j < d; j++)
            ss += (xr[j] - mean) * (xr[j] - mean);
        real rs = 1 / (real)sqrt(ss / (real)d + eps);
        if (b) {
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                yr[j] = (xr[j] - mean) * rs * g[j] + b[j];
        } else {
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                yr[j] = (xr[j] - mean) * rs * g[j];
        }
        stat[2 * r] = mean;
        stat[2 * r + 1] = rs;
    }
}

#define NORM_BWD SD_R(sd_k_norm_bwd)
SD_CLONES void NORM_BWD(sd_norm kind, size_t rows, size_t d, const real *x, const real *stat,
                        const real *g, const real *dy, const real *base, real *dx, real *dg,
                        real *db) {
    for (size_t r = 0; r < rows; r++) {
        const real *xr = x + r * d, *dyr = dy + r * d;
        const real *br = base ? base + r * d : NULL;
        real *dxr = dx + r * d;
        real mean = stat[2 * r], rs = stat[2 * r + 1], s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s1, s2)
        for (size_t j = 0; j < d; j++) {
            real a = dyr[j] * g[j];
            s1 += a;
            s2 += a * (xr[j] - mean);
        }
        s1 = kind == SD_NORM_LAYER ? s1 / (real)d : 0;
        s2 = s2 * rs * rs / (real)d;
#pragma omp simd
        for (size_t j = 0; j < d; j++)
            dg[j] += dyr[j] * (xr[j] - mean) * rs;
        if (db) {
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                db[j] += dyr[j];
        }
        if (br) {
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                dxr[j] = br[j] + rs * (dyr[j] * g[j] - s1 - (xr[j] - mean) * s2);
        } else {
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                dxr[j] = rs * (dyr[j] * g[j] - s1 - (xr[j] - mean) * s2);
        }
    }
}

/* Value and derivative of each activation; unused results vanish after inlining. */
SD_INLINE void act_one(sd_act act, real h, real *y, real *dy) {
    switch (act) {
    case SD_ACT_GELU: {
        real c, p;
        r_normal(h, &c, &p);
        *y = h * c;
        *dy = c + h * p;
        break;
    }
    case SD_ACT_GELU_TANH: {
        const real k = (real)0.79788456080286535588; /* √(2/π) */
        real t = r_tanh(k * (h + (real)0.044715 * h * h * h));
        *y = (real)0.5 * h * (1 + t);
        *dy = (real)0.5 * (1 + t) +
              (real)0.5 * h * (1 - t * t) * k * (1 + 3 * (real)0.044715 * h * h);
        break;
    }
    case SD_ACT_RELU:
        *y = h < 0 ? 0 : h; /* NaN stays NaN */
        *dy = h > 0 ? 1 : 0;
        break;
    default: {
        real s = r_sigmoid(h);
        *y = h * s;
        *dy = s * (1 + h * (1 - s));
        break;
    }
    }
}

SD_INLINE void act_fwd_loop(sd_act act, size_t n, const real *h, const real *gate, real *y) {
    if (gate) {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            real v, d;
            act_one(act, h[i], &v, &d);
            y[i] = v * gate[i];
        }
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            real v, d;
            act_one(act, h[i], &v, &d);
            y[i] = v;
        }
    }
}

SD_INLINE void act_bwd_loop(sd_act act, size_t n, const real *h, const real *gate, const real *dy,
                            real *dh, real *dgate) {
    if (gate) {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            real v, d, g = dy[i];
            act_one(act, h[i], &v, &d);
            dh[i] = g * gate[i] * d;
            dgate[i] = g * v;
        }
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            real v, d;
            act_one(act, h[i], &v, &d);
            dh[i] = dy[i] * d;
        }
    }
}

#define ACT_FWD SD_R(sd_k_act_fwd)
SD_CLONES void ACT_FWD(sd_act act, size_t n, const real *h, const real *gate, real *y) {
    switch (act) {
    case SD_ACT_GELU:
        act_fwd_loop(SD_ACT_GELU, n, h, gate, y);
        break;
    case SD_ACT_GELU_TANH:
        act_fwd_loop(SD_ACT_GELU_TANH, n, h, gate, y);
        break;
    case SD_ACT_RELU:
        act_fwd_loop(SD_ACT_RELU, n, h, gate, y);
        break;
    default:
        act_fwd_loop(SD_ACT_SILU, n, h, gate, y);
    }
}

#define ACT_BWD SD_R(sd_k_act_bwd)
SD_CLONES void ACT_BWD(sd_act act, size_t n, const real *h, const real *gate, const real *dy,
                       real *dh, real *dgate) {
    switch (act) {
    case SD_ACT_GELU:
        act_bwd_loop(SD_ACT_GELU, n, h, gate, dy, dh, dgate);
        break;
    case SD_ACT_GELU_TANH:
        act_bwd_loop(SD_ACT_GELU_TANH, n, h, gate, dy, dh, dgate);
        break;
    case SD_ACT_RELU:
        act_bwd_loop(SD_ACT_RELU, n, h, gate, dy, dh, dgate);
        break;
    default:
        act_bwd_loop(SD_ACT_SILU, n, h, gate, dy, dh, dgate);
    }
}

#define ADD_BIAS SD_R(sd_k_add_bias)
SD_CLONES void ADD_BIAS(size_t rows, size_t n, size_t ld, const real *bias, real *y) {
    for (size_t r = 0; r < rows; r++) {
        real *yr = y + r * ld;
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            yr[j] += bias[j];
    }
}

#define BASE_BIAS SD_R(sd_k_base_bias)
SD_CLONES void BASE_BIAS(size_t rows, size_t n, const real *base, const real *bias, real *y) {
    for (size_t r = 0; r < rows; r++) {
        real *yr = y + r * n;
        if (base && bias) {
#pragma omp simd
            for (size_t j = 0; j < n; j++)
                yr[j] = base[r * n + j] + bias[j];
        } else if (base) {
            memcpy(yr, base + r * n, n * sizeof *yr);
        } else if (bias) {
            memcpy(yr, bias, n * sizeof *yr);
        } else {
            memset(yr, 0, n * sizeof *yr);
        }
    }
}

#define COLSUM SD_R(sd_k_colsum)
SD_CLONES void COLSUM(size_t rows, size_t n, size_t ld, const real *x, real *y) {
    for (size_t r = 0; r < rows; r++) {
        const real *xr = x + r * ld;
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            y[j] += xr[j];
    }
}

#define ADD SD_R(sd_k_add)
SD_CLONES void ADD(size_t n, const real *x, real *y) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

#define SCALE SD_R(sd_k_scale)
SD_CLONES void SCALE(size_t n, real a, const real *x, real *y) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = a * x[i];
}

void SD_R(sd_k_softplus)(size_t rows, size_t h, size_t ldu, const real *u, real floor, real *d) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < h; j++) {
            double x = (double)u[r * ldu + j];
            d[r * h + j] = (real)((x > 0 ? x : 0) + log1p(exp(-fabs(x)))) + floor;
        }
}

#define ROPE SD_R(sd_k_rope)
void ROPE(size_t rows, size_t r0, size_t tokens, int n_head, int d, int dim, sd_rope_style style,
          size_t ld, const real *cs, real sign, real *x) {
    int half = dim / 2, step = style == SD_ROPE_HALF ? 1 : 2;
    int mate = style == SD_ROPE_HALF ? half : 1;
    for (size_t r = 0; r < rows; r++) {
        const real *c = cs + ((r0 + r) % tokens) * (size_t)dim, *s = c + half;
        for (int h = 0; h < n_head; h++) {
            real *p = x + r * ld + (size_t)h * (size_t)d;
            for (int t = 0; t < half; t++) {
                real *u = p + t * step, *w = u + mate, a = *u, b = *w, sn = sign * s[t];
                *u = a * c[t] - b * sn;
                *w = b * c[t] + a * sn;
            }
        }
    }
}

SD_INLINE real row_max(size_t n, const real *x) {
    real m = x[0];
#pragma omp simd reduction(max : m)
    for (size_t j = 0; j < n; j++)
        m = x[j] > m ? x[j] : m;
    return m;
}

/* Blocks of 512 are summed in real and added up in f64: fast, and good to 1e-7 for any V. */
SD_INLINE double sum_exp(size_t n, const real *x, real m) {
    double sum = 0;
    for (size_t j0 = 0; j0 < n; j0 += 512) {
        size_t j1 = j0 + 512 < n ? j0 + 512 : n;
        real s = 0;
#pragma omp simd reduction(+ : s)
        for (size_t j = j0; j < j1; j++)
            s += r_exp(x[j] - m);
        sum += (double)s;
    }
    return sum;
}

#define LSE SD_R(sd_k_logsumexp)
SD_CLONES double LSE(size_t n, const real *x, real *mx) {
    real m = row_max(n, x);
    *mx = m;
    return (double)m + log(sum_exp(n, x, m));
}

#define XENT SD_R(sd_k_xent)
SD_CLONES double XENT(size_t v, real *logits, int target, bool grad, real scale) {
    real m = row_max(v, logits), xt = logits[target];
    double sum = 0;
    if (!grad) {
        sum = sum_exp(v, logits, m);
        return log(sum) - (double)(xt - m);
    }
    for (size_t j0 = 0; j0 < v; j0 += 512) {
        size_t j1 = j0 + 512 < v ? j0 + 512 : v;
        real s = 0;
#pragma omp simd reduction(+ : s)
        for (size_t j = j0; j < j1; j++) {
            real e = r_exp(logits[j] - m);
            logits[j] = e;
            s += e;
        }
        sum += (double)s;
    }
    real k = (real)((double)scale / sum);
#pragma omp simd
    for (size_t j = 0; j < v; j++)
        logits[j] *= k;
    logits[target] -= scale;
    return log(sum) - (double)(xt - m);
}

double SD_R(sd_k_xent_teacher)(size_t v, real *logits, const float *teacher, int target, double w,
                               bool grad, real scale, double *nll) {
    real m = logits[0];
    float tm = teacher[0];
    for (size_t j = 1; j < v; j++) {
        m = logits[j] > m ? logits[j] : m;
        tm = teacher[j] > tm ? teacher[j] : tm;
    }
    double s = 0, ts = 0, cross = 0;
    for (size_t j = 0; j < v; j++) {
        double e = exp((double)teacher[j] - (double)tm);
        s += exp((double)logits[j] - (double)m);
        ts += e;
        cross += e * (double)logits[j];
    }
    // cppcheck-suppress invalidFunctionArg ; v >= 1, so the largest logit adds exp(0)
    double lse = (double)m + log(s);
    *nll = lse - (double)logits[target];
    double loss = (1 - w) * *nll + w * (lse - cross / ts);
    if (grad) {
        for (size_t j = 0; j < v; j++) {
            double p = exp((double)logits[j] - lse);
            double t = exp((double)teacher[j] - (double)tm) / ts;
            double one = (int)j == target ? 1 - w : 0;
            logits[j] = (real)((double)scale * (p - w * t - one));
        }
    }
    return loss;
}

void SD_R(sd_k_to_f32)(size_t rows, size_t n, size_t ld, const real *x, float *y) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++)
            y[r * n + j] = (float)x[r * ld + j];
}

#define GEMV SD_R(sd_k_gemv)
SD_CLONES void GEMV(size_t k, size_t n, const real *x, const real *w, size_t ldw, real *y) {
    size_t i = 0;
    for (; i + 4 <= k; i += 4) {
        const real *a = w + i * ldw, *b = a + ldw, *c = b + ldw, *d = c + ldw;
        real xa = x[i], xb = x[i + 1], xc = x[i + 2], xd = x[i + 3];
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            y[j] += (xa * a[j] + xb * b[j]) + (xc * c[j] + xd * d[j]);
    }
    for (; i < k; i++) {
        const real *a = w + i * ldw;
        real xa = x[i];
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            y[j] += xa * a[j];
    }
}

#define DOTS SD_R(sd_k_dots)
SD_CLONES void DOTS(size_t n, size_t k, real c, const real *x, const real *w, size_t ldw, real *y) {
    for (size_t j = 0; j < n; j++) {
        const real *a = w + j * ldw;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < k; i++)
            sum += x[i] * a[i];
        y[j] += c * sum;
    }
}
