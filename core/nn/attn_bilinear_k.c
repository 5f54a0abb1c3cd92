/* Kind "bilinear": a standard head with its routing and filtering cut apart (METHOD §7.1):
 * s_ij = a_i·b_j − b_i·a_j + Σ_r λ_r f_ir f_jr + δ[i = j], a softmax over q' = [a, −b, λf] and
 * k' = [b, a, f]. The factors carry the scale and, in their last row, the biases. */
#include "nn/flash.h"

static size_t planes(const sd_attn_args *a) {
    return a->has[SD_SLOT_A] ? (size_t)a->planes : 0;
}

static size_t f_rank(const sd_attn_args *a) {
    return a->has[SD_SLOT_F] ? (size_t)a->f_rank : 0;
}

static size_t scratch(const sd_attn_args *a, bool backward) {
    size_t n = (size_t)a->tokens, w = 2 * planes(a) + f_rank(a);
    return SD_R(sd_flash_scratch)(n, w, (size_t)a->d_v, backward) + (backward ? 4 : 2) * n * w + n;
}

static const real *row_of(const sd_attn_args *a, size_t r, sd_slot s, size_t col) {
    return (const real *)a->proj + r * a->ld + a->off[s] + col;
}

static void build(const sd_attn_args *a, int b, int h, size_t end, real *q2, real *k2) {
    size_t p = planes(a), fr = f_rank(a), w = 2 * p + fr, r0 = (size_t)(b * a->tokens);
    const real *fl = a->fl ? (const real *)a->fl + (size_t)h * fr : NULL;
    for (size_t i = 0; i < end; i++) {
        real *q = q2 + i * w, *k = k2 + i * w;
        if (p) {
            const real *va = row_of(a, r0 + i, SD_SLOT_A, (size_t)h * p);
            const real *vb = row_of(a, r0 + i, SD_SLOT_B, (size_t)h * p);
            for (size_t j = 0; j < p; j++) {
                q[j] = va[j];
                q[p + j] = -vb[j];
                k[j] = vb[j];
                k[p + j] = va[j];
            }
        }
        if (fr) {
            const real *vf = row_of(a, r0 + i, SD_SLOT_F, (size_t)h * fr);
            for (size_t j = 0; j < fr; j++) {
                q[2 * p + j] = fl ? fl[j] * vf[j] : vf[j];
                k[2 * p + j] = vf[j];
            }
        }
    }
}

static flash_t head(const sd_attn_args *a, int b, int g, int h, const real *q2, const real *k2) {
    size_t n = (size_t)a->tokens, r0 = (size_t)b * n, w = 2 * planes(a) + f_rank(a);
    size_t od = (size_t)a->n_head * (size_t)a->d_v;
    flash_t f = {.n = n,
                 .dk = w,
                 .dv = (size_t)a->d_v,
                 .causal = a->causal,
                 .window = a->causal ? (size_t)a->window : 0,
                 .scale = 1,
                 .q = q2,
                 .k = k2,
                 .v = row_of(a, r0, SD_SLOT_V, (size_t)(g * a->d_v)),
                 .ldq = w,
                 .ldk = w,
                 .ldv = a->ld,
                 .mode = a->diag ? SD_DIAG_ADD : SD_DIAG_PLAIN,
                 .diag = a->diag ? (const real *)a->diag + h : NULL,
                 .ldd = 0,
                 .o = (real *)a->o + r0 * od + (size_t)(h * a->d_v),
                 .ldo = od};
    if (a->lse)
        f.lse = (real *)a->lse + (size_t)(b * a->n_head + h) * n;
    return f;
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t n = (size_t)a->tokens, w = 2 * planes(a) + f_rank(a);
    real *q2 = work, *k2 = q2 + n * w;
    for (int h = g * group; h < (g + 1) * group; h++) {
        build(a, b, h, n, q2, k2);
        flash_t f = head(a, b, g, h, q2, k2);
        SD_R(sd_flash_fwd)(&f, k2 + n * w);
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t n = (size_t)a->tokens, p = planes(a), fr = f_rank(a), w = 2 * p + fr;
    size_t r0 = (size_t)b * n;
    real *q2 = work, *k2 = q2 + n * w, *dq2 = k2 + n * w, *dk2 = dq2 + n * w, *dd = dk2 + n * w;
    real *dproj = (real *)a->dproj + r0 * a->ld;
    for (size_t i = 0; i < n; i++)
        memset(dproj + i * a->ld + a->off[SD_SLOT_V] + g * a->d_v, 0,
               (size_t)a->d_v * sizeof(real));
    for (int h = g * group; h < (g + 1) * group; h++) {
        build(a, b, h, n, q2, k2);
        memset(dk2, 0, n * w * sizeof(real));
        flash_t f = head(a, b, g, h, q2, k2);
        f.lddo = f.ldo;
        f.d_o = (const real *)a->d_o + r0 * f.lddo + (size_t)(h * a->d_v);
        f.dq = dq2;
        f.dk_ = dk2;
        f.lddq = f.lddk = w;
        f.dv_ = dproj + a->off[SD_SLOT_V] + g * a->d_v;
        f.lddv = a->ld;
        f.ddiag = dd;
        SD_R(sd_flash_bwd)(&f, dd + n);
        const real *fl = a->fl ? (const real *)a->fl + (size_t)h * fr : NULL;
        real *dfl =
            a->dfl ? (real *)a->dfl + ((size_t)b * (size_t)a->n_head + (size_t)h) * fr : NULL;
        if (dfl)
            memset(dfl, 0, fr * sizeof *dfl);
        for (size_t i = 0; i < n; i++) {
            const real *dq = dq2 + i * w, *dk = dk2 + i * w, *fv = k2 + i * w + 2 * p;
            real *row = dproj + i * a->ld;
            for (size_t j = 0; j < p; j++) {
                row[a->off[SD_SLOT_A] + (size_t)h * p + j] = dq[j] + dk[p + j];
                row[a->off[SD_SLOT_B] + (size_t)h * p + j] = dk[j] - dq[p + j];
            }
            for (size_t j = 0; j < fr; j++) {
                row[a->off[SD_SLOT_F] + (size_t)h * fr + j] =
                    (fl ? fl[j] : 1) * dq[2 * p + j] + dk[2 * p + j];
                if (dfl)
                    dfl[j] += dq[2 * p + j] * fv[j];
            }
        }
        if (a->diag) {
            real sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += dd[i];
            ((real *)a->ddiag)[(size_t)b * (size_t)a->n_head + (size_t)h] = sum;
        }
    }
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    (void)state;
    int group = a->n_head / a->n_kv;
    size_t p = planes(a), fr = f_rank(a), r0 = (size_t)b * (size_t)a->tokens, rt = r0 + (size_t)t;
    size_t dv = (size_t)a->d_v, od = (size_t)a->n_head * dv, at = r0 + (size_t)(t - a->first);
    real *qf = work;
    for (int h = g * group; h < (g + 1) * group; h++) {
        flash_row_t r = {.first = sd_flash_first(a, (size_t)t),
                         .n = (size_t)t + 1,
                         .ld = a->ld,
                         .dv = dv,
                         .mode = a->diag ? SD_DIAG_ADD : SD_DIAG_PLAIN,
                         .diag = a->diag ? ((const real *)a->diag)[h] : 0,
                         .v = row_of(a, r0, SD_SLOT_V, (size_t)g * dv),
                         .o = (real *)a->o + at * od + (size_t)h * dv};
        if (p) {
            size_t col = (size_t)h * p;
            r.term[r.n_term++] =
                (flash_term_t){row_of(a, rt, SD_SLOT_A, col), row_of(a, r0, SD_SLOT_B, col), p, 1};
            r.term[r.n_term++] =
                (flash_term_t){row_of(a, rt, SD_SLOT_B, col), row_of(a, r0, SD_SLOT_A, col), p, -1};
        }
        if (fr) {
            const real *fl = a->fl ? (const real *)a->fl + (size_t)h * fr : NULL;
            const real *vf = row_of(a, rt, SD_SLOT_F, (size_t)h * fr);
            for (size_t j = 0; j < fr; j++)
                qf[j] = fl ? fl[j] * vf[j] : vf[j];
            r.term[r.n_term++] =
                (flash_term_t){qf, row_of(a, r0, SD_SLOT_F, (size_t)h * fr), fr, 1};
        }
        SD_R(sd_flash_row)(&r, qf + fr);
    }
}

extern const sd_attn_ops SD_R(sd_attn_bilinear);
const sd_attn_ops SD_R(sd_attn_bilinear) = {scratch, forward, backward, NULL, decode};
