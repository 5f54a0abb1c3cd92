/* Kind "softmax": standard attention, causal or full, grouped keys (METHOD §1). */
#include "nn/flash.h"

static size_t scratch(const sd_attn_args *a, bool backward) {
    return SD_R(sd_flash_scratch)((size_t)a->tokens, (size_t)a->d_qk, (size_t)a->d_v, backward);
}

static flash_t head(const sd_attn_args *a, int b, int g, int h) {
    size_t r0 = (size_t)b * (size_t)a->tokens, row = r0 * a->ld;
    const real *p = (const real *)a->proj + row;
    size_t od = (size_t)a->n_head * (size_t)a->d_v, oh = r0 * od + (size_t)(h * a->d_v);
    flash_t f = {.n = (size_t)a->tokens,
                 .dk = (size_t)a->d_qk,
                 .dv = (size_t)a->d_v,
                 .causal = a->causal,
                 .window = a->causal ? (size_t)a->window : 0,
                 .scale = (real)a->scale,
                 .q = p + a->off[SD_SLOT_Q] + h * a->d_qk,
                 .k = p + a->off[SD_SLOT_K] + g * a->d_qk,
                 .v = p + a->off[SD_SLOT_V] + g * a->d_v,
                 .ldq = a->ld,
                 .ldk = a->ld,
                 .ldv = a->ld,
                 .o = (real *)a->o + oh,
                 .ldo = od};
    if (a->lse)
        f.lse = (real *)a->lse + (size_t)(b * a->n_head + h) * f.n;
    if (a->d_o) {
        real *d = (real *)a->dproj + row;
        f.d_o = (const real *)a->d_o + oh;
        f.lddo = od;
        f.dq = d + a->off[SD_SLOT_Q] + h * a->d_qk;
        f.dk_ = d + a->off[SD_SLOT_K] + g * a->d_qk;
        f.dv_ = d + a->off[SD_SLOT_V] + g * a->d_v;
        f.lddq = f.lddk = f.lddv = a->ld;
    }
    return f;
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    for (int h = g * group; h < (g + 1) * group; h++) {
        flash_t f = head(a, b, g, h);
        SD_R(sd_flash_fwd)(&f, work);
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    for (int h = g * group; h < (g + 1) * group; h++) {
        flash_t f = head(a, b, g, h);
        if (h == g * group)
            for (size_t i = 0; i < f.n; i++) {
                memset(f.dk_ + i * f.lddk, 0, f.dk * sizeof(real));
                memset(f.dv_ + i * f.lddv, 0, f.dv * sizeof(real));
            }
        SD_R(sd_flash_bwd)(&f, work);
    }
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    (void)state;
    int group = a->n_head / a->n_kv;
    for (int h = g * group; h < (g + 1) * group; h++) {
        flash_t f = head(a, b, g, h);
        flash_row_t r = {.first = sd_flash_first(a, (size_t)t),
                         .n = (size_t)t + 1,
                         .ld = a->ld,
                         .dv = f.dv,
                         .n_term = 1,
                         .term = {{f.q + (size_t)t * a->ld, f.k, f.dk, f.scale}},
                         .v = f.v,
                         .o = f.o + (size_t)(t - a->first) * f.ldo};
        SD_R(sd_flash_row)(&r, work);
    }
}

extern const sd_attn_ops SD_R(sd_attn_softmax);
const sd_attn_ops SD_R(sd_attn_softmax) = {scratch, forward, backward, NULL, decode};
