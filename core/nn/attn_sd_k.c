/* Kind "sd": S–D attention (METHOD §6). L = S − D with s_ij = α(q_i·k_j − k_i·q_j), which is the
 * product of q' = [q, −k] and k' = [k, q]; its diagonal is replaced by −d_i (or by the head's
 * scalar SD_ROLE_DIAG), since in floating point q'_i·k'_i is not exactly 0. With d_qk = 0 there is
 * no routing: L = −D. Option softmax=none: the raw map, o_i = Σ_{j ≤ i} L_ij v_j.
 *
 * Backward: with G = ∂loss/∂L off the diagonal, dq' = αG k', dk' = αGᵀq', and dq = dq'₁ + dk'₂,
 * dk = dk'₁ − dq'₂, which together is METHOD's Ω = G − Gᵀ form; dd_i = −G_ii. */
#include "nn/flash.h"

static size_t width(const sd_attn_args *a) {
    return a->has[SD_SLOT_Q] ? 2 * (size_t)a->d_qk : 0;
}

static size_t scratch(const sd_attn_args *a, bool backward) {
    size_t n = (size_t)a->tokens, w = width(a);
    return SD_R(sd_flash_scratch)(n, w, (size_t)a->d_v, backward) + (backward ? 4 : 2) * n * w +
           3 * n;
}

static bool raw_map(const sd_attn_args *a) {
    char v[16];
    return sd_layer_option(a->options, "softmax", v, sizeof v) && strcmp(v, "none") == 0;
}

typedef struct parts {
    real *q2, *k2, *dq2, *dk2, *diag, *ddiag, *rest;
} parts;

static parts split(const sd_attn_args *a, bool backward, real *work) {
    size_t n = (size_t)a->tokens, w = n * width(a);
    parts p = {.q2 = work, .k2 = work + w};
    real *r = work + 2 * w;
    if (backward) {
        p.dq2 = r;
        p.dk2 = r + w;
        r += 2 * w;
    }
    p.diag = r;
    p.ddiag = r + n;
    p.rest = r + 2 * n;
    return p;
}

#define BUILD SD_R(sd_attn_sd_build)
SD_CLONES static void BUILD(const sd_attn_args *a, int b, int g, int h, size_t i0, size_t i1,
                            const parts *p) {
    size_t n = (size_t)a->tokens, d = (size_t)a->d_qk, r0 = (size_t)b * n;
    for (size_t i = i0; i < i1; i++) {
        if (a->has[SD_SLOT_Q]) {
            const real *row = (const real *)a->proj + (r0 + i) * a->ld;
            const real *q = row + a->off[SD_SLOT_Q] + (size_t)h * d;
            const real *k = row + a->off[SD_SLOT_K] + (size_t)g * d;
            real *q2 = p->q2 + i * 2 * d, *k2 = p->k2 + i * 2 * d;
#pragma omp simd
            for (size_t j = 0; j < d; j++) {
                q2[j] = q[j];
                q2[d + j] = -k[j];
                k2[j] = k[j];
                k2[d + j] = q[j];
            }
        }
        if (a->diag)
            p->diag[i] = ((const real *)a->diag)[h];
        else if (!a->dval)
            p->diag[i] = 0; /* pure routing, diag=none */
        else
            p->diag[i] = -((const real *)a->dval)[(r0 + i) * (size_t)a->n_head + (size_t)h];
    }
}

static flash_t head(const sd_attn_args *a, int b, int g, int h, const parts *p) {
    size_t n = (size_t)a->tokens, r0 = (size_t)b * n, w = width(a);
    size_t od = (size_t)a->n_head * (size_t)a->d_v, oh = r0 * od + (size_t)(h * a->d_v);
    flash_t f = {.n = n,
                 .dk = w,
                 .dv = (size_t)a->d_v,
                 .causal = a->causal,
                 .window = a->causal ? (size_t)a->window : 0,
                 .scale = (real)a->scale,
                 .q = p->q2,
                 .k = p->k2,
                 .v = (const real *)a->proj + r0 * a->ld + a->off[SD_SLOT_V] + g * a->d_v,
                 .ldq = w,
                 .ldk = w,
                 .ldv = a->ld,
                 .mode = SD_DIAG_REPLACE,
                 .diag = p->diag,
                 .ldd = 1,
                 .o = (real *)a->o + oh,
                 .ldo = od};
    if (a->lse)
        f.lse = (real *)a->lse + (size_t)(b * a->n_head + h) * n;
    return f;
}

static size_t first_key(const flash_t *f, size_t i) {
    return f->window && i + 1 > f->window ? i + 1 - f->window : 0;
}

/* L of one row block, lower triangle only, for the raw map. */
static void raw_forward(const flash_t *f, real *s) {
    for (size_t i = 0; i < f->n; i++) {
        size_t end = f->causal ? i + 1 : f->n;
        real *o = f->o + i * f->ldo;
        memset(o, 0, f->dv * sizeof *o);
        for (size_t j0 = first_key(f, i); j0 < end; j0 += 64) {
            size_t nk = end - j0 < 64 ? end - j0 : 64;
            if (f->dk)
                r_gemm(false, true, 1, nk, f->dk, f->scale, f->q + i * f->ldq, f->ldq,
                       f->k + j0 * f->ldk, f->ldk, 0, s, 64);
            else
                memset(s, 0, nk * sizeof *s);
            if (i >= j0 && i < j0 + nk)
                s[i - j0] = f->diag[i];
            r_gemm(false, false, 1, f->dv, nk, 1, s, 64, f->v + j0 * f->ldv, f->ldv, 1, o, f->ldo);
        }
    }
}

static void raw_backward(const flash_t *f, real *s) {
    for (size_t i = 0; i < f->n; i++) {
        size_t end = f->causal ? i + 1 : f->n;
        if (f->dk)
            memset(f->dq + i * f->lddq, 0, f->dk * sizeof *s);
        const real *g = f->d_o + i * f->lddo;
        for (size_t j = first_key(f, i); j < end; j++) {
            const real *q = f->q + i * f->ldq, *k = f->k + j * f->ldk, *v = f->v + j * f->ldv;
            real l = 0, dl = 0;
            for (size_t c = 0; c < f->dk; c++)
                l += q[c] * k[c];
            l = i == j ? f->diag[i] : l * f->scale;
            for (size_t c = 0; c < f->dv; c++) {
                dl += g[c] * v[c];
                f->dv_[j * f->lddv + c] += l * g[c];
            }
            if (i == j) {
                f->ddiag[i] = dl;
                continue;
            }
            dl *= f->scale;
            for (size_t c = 0; c < f->dk; c++) {
                f->dq[i * f->lddq + c] += dl * k[c];
                f->dk_[j * f->lddk + c] += dl * q[c];
            }
        }
    }
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    parts p = split(a, false, work);
    for (int h = g * group; h < (g + 1) * group; h++) {
        BUILD(a, b, g, h, 0, (size_t)a->tokens, &p);
        flash_t f = head(a, b, g, h, &p);
        if (raw_map(a))
            raw_forward(&f, p.rest);
        else
            SD_R(sd_flash_fwd)(&f, p.rest);
    }
}

#define SPREAD SD_R(sd_attn_sd_spread)
SD_CLONES static void SPREAD(const sd_attn_args *a, int b, int g, int h, const parts *p) {
    size_t n = (size_t)a->tokens, d = (size_t)a->d_qk, r0 = (size_t)b * n;
    for (size_t i = 0; i < n; i++) {
        real *row = (real *)a->dproj + (r0 + i) * a->ld;
        if (a->has[SD_SLOT_Q]) {
            real *dq = row + a->off[SD_SLOT_Q] + (size_t)h * d;
            real *dk = row + a->off[SD_SLOT_K] + (size_t)g * d;
            const real *dq2 = p->dq2 + i * 2 * d, *dk2 = p->dk2 + i * 2 * d;
#pragma omp simd
            for (size_t j = 0; j < d; j++) {
                dq[j] = dq2[j] + dk2[d + j];
                dk[j] += dk2[j] - dq2[d + j];
            }
        }
        if (a->has[SD_SLOT_U] && a->dval) {
            real u = ((const real *)a->proj)[(r0 + i) * a->ld + a->off[SD_SLOT_U] + (size_t)h];
            row[a->off[SD_SLOT_U] + (size_t)h] = -p->ddiag[i] * r_sigmoid(u);
        }
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t n = (size_t)a->tokens, r0 = (size_t)b * n, w = width(a);
    parts p = split(a, true, work);
    real *dv = (real *)a->dproj + r0 * a->ld + a->off[SD_SLOT_V] + g * a->d_v;
    for (size_t i = 0; i < n; i++) {
        memset(dv + i * a->ld, 0, (size_t)a->d_v * sizeof(real));
        if (a->has[SD_SLOT_K])
            memset((real *)a->dproj + (r0 + i) * a->ld + a->off[SD_SLOT_K] + g * a->d_qk, 0,
                   (size_t)a->d_qk * sizeof(real));
    }
    for (int h = g * group; h < (g + 1) * group; h++) {
        BUILD(a, b, g, h, 0, n, &p);
        memset(p.dk2, 0, n * w * sizeof(real));
        flash_t f = head(a, b, g, h, &p);
        f.lddo = (size_t)a->n_head * (size_t)a->d_v;
        f.d_o = (const real *)a->d_o + r0 * f.lddo + (size_t)(h * a->d_v);
        f.dq = p.dq2;
        f.dk_ = p.dk2;
        f.lddq = f.lddk = w;
        f.dv_ = dv;
        f.lddv = a->ld;
        f.ddiag = p.ddiag;
        if (raw_map(a))
            raw_backward(&f, p.rest);
        else
            SD_R(sd_flash_bwd)(&f, p.rest);
        SPREAD(a, b, g, h, &p);
        if (a->diag) {
            real sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += p.ddiag[i];
            ((real *)a->ddiag)[(size_t)b * (size_t)a->n_head + (size_t)h] = sum;
        }
    }
}

/* s_tj = α(q_t·k_j − k_t·q_j), straight from the projections kept. */
static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    (void)state;
    int group = a->n_head / a->n_kv;
    size_t r0 = (size_t)b * (size_t)a->tokens, d = (size_t)a->d_qk, dv = (size_t)a->d_v;
    size_t od = (size_t)a->n_head * dv, now = (size_t)t * a->ld, at = r0 + (size_t)(t - a->first);
    const real *p = (const real *)a->proj + r0 * a->ld;
    for (int h = g * group; h < (g + 1) * group; h++) {
        const real *q = p + a->off[SD_SLOT_Q] + (size_t)h * d;
        const real *k = p + a->off[SD_SLOT_K] + (size_t)g * d;
        real al = (real)a->scale, diag = 0;
        if (a->diag)
            diag = ((const real *)a->diag)[h];
        else if (a->dval)
            diag = -((const real *)a->dval)[at * (size_t)a->n_head + (size_t)h];
        flash_row_t r = {.first = sd_flash_first(a, (size_t)t),
                         .n = (size_t)t + 1,
                         .ld = a->ld,
                         .dv = dv,
                         .n_term = a->has[SD_SLOT_Q] ? 2 : 0,
                         .term = {{q + now, k, d, al}, {k + now, q, d, -al}},
                         .mode = SD_DIAG_REPLACE,
                         .diag = diag,
                         .raw = raw_map(a),
                         .v = p + a->off[SD_SLOT_V] + (size_t)g * dv,
                         .o = (real *)a->o + at * od + (size_t)h * dv};
        SD_R(sd_flash_row)(&r, work);
    }
}

extern const sd_attn_ops SD_R(sd_attn_sd);
const sd_attn_ops SD_R(sd_attn_sd) = {scratch, forward, backward, NULL, decode};
