/* Kind "uniform": o_i = mean of the values seen (all of them in an encoder). METHOD §7.3. */
#include "nn/attn.h"
#include "nn/real.h"

static size_t scratch(const sd_attn_args *a, bool backward) {
    (void)backward;
    return 2 * (size_t)a->d_v; /* f64 sums, also in f32 */
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    size_t n = (size_t)a->tokens, d = (size_t)a->d_v, r0 = (size_t)b * n;
    size_t od = (size_t)a->n_head * d;
    int group = a->n_head / a->n_kv;
    const real *v = (const real *)a->proj + r0 * a->ld + a->off[SD_SLOT_V] + (size_t)g * d;
    real *o = (real *)a->o + r0 * od;
    double *sum = work;
    memset(sum, 0, d * sizeof *sum);
    if (!a->causal)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < d; j++)
                sum[j] += (double)v[i * a->ld + j];
    for (size_t i = 0; i < n; i++) {
        double inv = 1.0 / (double)(a->causal ? i + 1 : n);
        for (size_t j = 0; j < d; j++) {
            if (a->causal)
                sum[j] += (double)v[i * a->ld + j];
            for (int h = g * group; h < (g + 1) * group; h++)
                o[i * od + (size_t)h * d + j] = (real)(sum[j] * inv);
        }
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    size_t n = (size_t)a->tokens, d = (size_t)a->d_v, r0 = (size_t)b * n;
    size_t od = (size_t)a->n_head * d;
    int group = a->n_head / a->n_kv;
    real *dv = (real *)a->dproj + r0 * a->ld + a->off[SD_SLOT_V] + (size_t)g * d;
    const real *go = (const real *)a->d_o + r0 * od;
    double *sum = work;
    memset(sum, 0, d * sizeof *sum);
    for (size_t i = n; i-- > 0;) {
        double inv = 1.0 / (double)(a->causal ? i + 1 : n);
        for (int h = g * group; h < (g + 1) * group; h++)
            for (size_t j = 0; j < d; j++)
                sum[j] += inv * (double)go[i * od + (size_t)h * d + j];
        if (a->causal)
            for (size_t j = 0; j < d; j++)
                dv[i * a->ld + j] = (real)sum[j];
    }
    if (!a->causal)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < d; j++)
                dv[i * a->ld + j] = (real)sum[j];
}

static size_t state_size(const sd_attn_args *a) {
    return 2 * (size_t)a->d_v; /* f64 sums, also in f32 */
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    (void)work;
    size_t d = (size_t)a->d_v, r = (size_t)(b * a->tokens + t - a->first);
    int group = a->n_head / a->n_kv;
    const real *v = (const real *)a->proj + r * a->ld + a->off[SD_SLOT_V] + (size_t)g * d;
    real *o = (real *)a->o + r * (size_t)a->n_head * d;
    double *sum = state, inv = 1.0 / (t + 1);
    for (size_t j = 0; j < d; j++) {
        sum[j] += (double)v[j];
        for (int h = g * group; h < (g + 1) * group; h++)
            o[(size_t)h * d + j] = (real)(sum[j] * inv);
    }
}

extern const sd_attn_ops SD_R(sd_attn_uniform);
const sd_attn_ops SD_R(sd_attn_uniform) = {scratch, forward, backward, state_size, decode};
