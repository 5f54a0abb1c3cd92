/* Kind "elu1": causal linear attention with φ = ELU+1 (METHOD §7.2; Katharopoulos et al. 2020):
 * o_i = φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j), with V' = [V 1] giving numerator
 * and denominator in one pass. In chunks of C tokens: the masked product inside a chunk, a running
 * state S = Σ φ(k) v'ᵀ across chunks. φ(q_i) is divided by its maximum, which o does not see.
 * Option features=skew (S–D heads): φ on [q, −k] and [k, q]; default qk. */
#include "nn/attn.h"
#include "nn/real.h"

enum { CHUNK = 64 };

static bool skew(const sd_attn_args *a) {
    char v[16];
    return sd_layer_option(a->options, "features", v, sizeof v) && strcmp(v, "skew") == 0;
}

static size_t feat(const sd_attn_args *a) {
    return (skew(a) ? 2 : 1) * (size_t)a->d_qk;
}

static size_t scratch(const sd_attn_args *a, bool backward) {
    size_t m = feat(a), w = (size_t)a->d_v + 1, c = CHUNK;
    size_t n = m * w + 2 * c * m + 2 * c * w + c * c + c; /* S, φq, φk, V', O', A, max */
    return backward ? n + 2 * c * m + c * w + c * c + m * w : n;
}

/* e^x for x ≤ 0, never expm1 + 1 (CASES S07). */
SD_INLINE real phi(real x) {
    real e = r_exp(x < 0 ? x : 0);
    return x > 0 ? x + 1 : e;
}

SD_INLINE real dphi(real x) {
    return x > 0 ? 1 : r_exp(x < 0 ? x : 0);
}

typedef struct lin {
    size_t m, w;
    real *s, *pq, *pk, *v1, *o1, *am, *mx, *rest;
} lin;

static lin split(const sd_attn_args *a, real *work) {
    lin l = {.m = feat(a), .w = (size_t)a->d_v + 1};
    l.s = work;
    l.pq = l.s + l.m * l.w;
    l.pk = l.pq + CHUNK * l.m;
    l.v1 = l.pk + CHUNK * l.m;
    l.o1 = l.v1 + CHUNK * l.w;
    l.am = l.o1 + CHUNK * l.w;
    l.mx = l.am + CHUNK * CHUNK;
    l.rest = l.mx + CHUNK;
    return l;
}

#define FEATURES SD_R(sd_attn_elu1_features)
SD_CLONES static void FEATURES(const sd_attn_args *a, int b, int g, int h, size_t i0, size_t n,
                               const lin *l) {
    size_t d = (size_t)a->d_qk, dv = (size_t)a->d_v, r0 = (size_t)b * (size_t)a->tokens + i0;
    bool sk = l->m == 2 * d;
    for (size_t i = 0; i < n; i++) {
        const real *row = (const real *)a->proj + (r0 + i) * a->ld;
        const real *q = row + a->off[SD_SLOT_Q] + (size_t)h * d;
        const real *k = row + a->off[SD_SLOT_K] + (size_t)g * d;
        const real *v = row + a->off[SD_SLOT_V] + (size_t)g * dv;
        real *pq = l->pq + i * l->m, *pk = l->pk + i * l->m, *v1 = l->v1 + i * l->w, mx = 0;
#pragma omp simd
        for (size_t j = 0; j < d; j++) {
            pq[j] = phi(q[j]);
            pk[j] = phi(k[j]);
        }
        if (sk) {
#pragma omp simd
            for (size_t j = 0; j < d; j++) {
                pq[d + j] = phi(-k[j]);
                pk[d + j] = phi(q[j]);
            }
        }
        for (size_t j = 0; j < l->m; j++)
            mx = pq[j] > mx ? pq[j] : mx;
        mx = mx > SD_REAL_MIN ? mx : 1;
        l->mx[i] = mx;
        for (size_t j = 0; j < l->m; j++)
            pq[j] /= mx;
        memcpy(v1, v, dv * sizeof *v1);
        v1[dv] = 1;
    }
}

static void mask_lower(size_t n, real *m) {
    for (size_t i = 0; i < n; i++)
        memset(m + i * CHUNK + i + 1, 0, (n - i - 1) * sizeof *m);
}

/* O' of one chunk from S, V', φ; then S takes the chunk in. */
static void chunk_forward(const lin *l, size_t n) {
    r_gemm(false, true, n, n, l->m, 1, l->pq, l->m, l->pk, l->m, 0, l->am, CHUNK);
    mask_lower(n, l->am);
    r_gemm(false, false, n, l->w, n, 1, l->am, CHUNK, l->v1, l->w, 0, l->o1, l->w);
    r_gemm(false, false, n, l->w, l->m, 1, l->pq, l->m, l->s, l->w, 1, l->o1, l->w);
}

static void absorb(const lin *l, size_t n) {
    r_gemm(true, false, l->m, l->w, n, 1, l->pk, l->m, l->v1, l->w, 1, l->s, l->w);
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    lin l = split(a, work);
    for (int h = g * group; h < (g + 1) * group; h++) {
        memset(l.s, 0, l.m * l.w * sizeof(real));
        for (size_t i0 = 0; i0 < t; i0 += CHUNK) {
            size_t n = t - i0 < CHUNK ? t - i0 : CHUNK;
            FEATURES(a, b, g, h, i0, n, &l);
            chunk_forward(&l, n);
            absorb(&l, n);
            for (size_t i = 0; i < n; i++) {
                real *o = (real *)a->o + ((size_t)b * t + i0 + i) * od + (size_t)h * dv;
                const real *p = l.o1 + i * l.w;
                for (size_t j = 0; j < dv; j++)
                    o[j] = p[j] / p[dv];
                if (a->lse)
                    ((real *)a->lse)[(size_t)(b * a->n_head + h) * t + i0 + i] = p[dv];
            }
        }
    }
}

/* dO' = [dO/z, −(dO·O)/z]: the gradient of numerator and denominator, z the stored denominator. */
static void d_out(const sd_attn_args *a, int b, int h, size_t i0, size_t n, size_t w, real *g1) {
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    for (size_t i = 0; i < n; i++) {
        size_t at = ((size_t)b * t + i0 + i) * od + (size_t)h * dv;
        const real *go = (const real *)a->d_o + at, *o = (const real *)a->o + at;
        real z = ((const real *)a->lse)[(size_t)(b * a->n_head + h) * t + i0 + i], dot = 0;
        for (size_t j = 0; j < dv; j++) {
            g1[i * w + j] = go[j] / z;
            dot += go[j] * o[j];
        }
        g1[i * w + dv] = -dot / z;
    }
}

/* Adds φ' times the feature gradients into the projections' gradient (dq: the query features'). */
static void d_features(const sd_attn_args *a, int b, int g, int h, size_t i0, size_t n,
                       const lin *l, const real *df, bool of_query) {
    size_t d = (size_t)a->d_qk, r0 = (size_t)b * (size_t)a->tokens + i0;
    bool sk = l->m == 2 * d;
    for (size_t i = 0; i < n; i++) {
        const real *row = (const real *)a->proj + (r0 + i) * a->ld;
        real *drow = (real *)a->dproj + (r0 + i) * a->ld;
        size_t oq = a->off[SD_SLOT_Q] + (size_t)h * d, ok = a->off[SD_SLOT_K] + (size_t)g * d;
        size_t o1 = of_query ? oq : ok, o2 = of_query ? ok : oq;
        real s2 = of_query ? -1 : 1, inv = of_query ? 1 / l->mx[i] : 1;
        for (size_t j = 0; j < d; j++) {
            drow[o1 + j] += dphi(row[o1 + j]) * inv * df[i * l->m + j];
            if (sk)
                drow[o2 + j] += s2 * dphi(s2 * row[o2 + j]) * inv * df[i * l->m + d + j];
        }
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, dq = (size_t)a->d_qk;
    lin l = split(a, work);
    real *dpq = l.rest, *dpk = dpq + CHUNK * l.m, *g1 = dpk + CHUNK * l.m;
    real *da = g1 + CHUNK * l.w, *ds = da + CHUNK * CHUNK;
    size_t nc = (t + CHUNK - 1) / CHUNK;
    for (size_t i = 0; i < t; i++) {
        real *row = (real *)a->dproj + ((size_t)b * t + i) * a->ld;
        memset(row + a->off[SD_SLOT_K] + (size_t)g * dq, 0, dq * sizeof(real));
        memset(row + a->off[SD_SLOT_V] + (size_t)g * dv, 0, dv * sizeof(real));
        memset(row + a->off[SD_SLOT_Q] + (size_t)(g * group) * dq, 0,
               (size_t)group * dq * sizeof(real));
    }
    for (int h = g * group; h < (g + 1) * group; h++) {
        /* forwards in time: what S the queries saw */
        memset(l.s, 0, l.m * l.w * sizeof(real));
        for (size_t c = 0; c < nc; c++) {
            size_t i0 = c * CHUNK, n = t - i0 < CHUNK ? t - i0 : CHUNK;
            FEATURES(a, b, g, h, i0, n, &l);
            d_out(a, b, h, i0, n, l.w, g1);
            r_gemm(false, true, n, n, l.w, 1, g1, l.w, l.v1, l.w, 0, da, CHUNK);
            mask_lower(n, da);
            r_gemm(false, false, n, l.m, n, 1, da, CHUNK, l.pk, l.m, 0, dpq, l.m);
            r_gemm(false, true, n, l.m, l.w, 1, g1, l.w, l.s, l.w, 1, dpq, l.m);
            d_features(a, b, g, h, i0, n, &l, dpq, true);
            absorb(&l, n);
        }
        /* backwards in time: ds = Σ over later queries of φ(q) dO'ᵀ */
        memset(ds, 0, l.m * l.w * sizeof(real));
        for (size_t c = nc; c-- > 0;) {
            size_t i0 = c * CHUNK, n = t - i0 < CHUNK ? t - i0 : CHUNK;
            FEATURES(a, b, g, h, i0, n, &l);
            d_out(a, b, h, i0, n, l.w, g1);
            r_gemm(false, true, n, n, l.m, 1, l.pq, l.m, l.pk, l.m, 0, l.am, CHUNK);
            mask_lower(n, l.am);
            r_gemm(false, true, n, n, l.w, 1, g1, l.w, l.v1, l.w, 0, da, CHUNK);
            mask_lower(n, da);
            r_gemm(true, false, n, l.m, n, 1, da, CHUNK, l.pq, l.m, 0, dpk, l.m);
            r_gemm(false, true, n, l.m, l.w, 1, l.v1, l.w, ds, l.w, 1, dpk, l.m);
            d_features(a, b, g, h, i0, n, &l, dpk, false);
            r_gemm(true, false, n, l.w, n, 1, l.am, CHUNK, g1, l.w, 0, l.o1, l.w);
            r_gemm(false, false, n, l.w, l.m, 1, l.pk, l.m, ds, l.w, 1, l.o1, l.w);
            for (size_t i = 0; i < n; i++) {
                real *p = (real *)a->dproj + ((size_t)b * t + i0 + i) * a->ld + a->off[SD_SLOT_V] +
                          (size_t)g * dv;
                for (size_t j = 0; j < dv; j++)
                    p[j] += l.o1[i * l.w + j];
            }
            r_gemm(true, false, l.m, l.w, n, 1, l.pq, l.m, g1, l.w, 1, ds, l.w);
        }
    }
}

static size_t state_size(const sd_attn_args *a) {
    return (size_t)(a->n_head / a->n_kv) * feat(a) * ((size_t)a->d_v + 1);
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    int group = a->n_head / a->n_kv;
    size_t dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    size_t row = (size_t)b * (size_t)a->tokens + (size_t)(t - a->first);
    sd_attn_args one = *a; /* that row as a sequence of its own */
    one.tokens = 1;
    lin l = split(a, work);
    for (int h = g * group; h < (g + 1) * group; h++) {
        l.s = (real *)state + (size_t)(h - g * group) * l.m * l.w;
        FEATURES(&one, (int)row, g, h, 0, 1, &l);
        absorb(&l, 1);
        r_gemm(false, false, 1, l.w, l.m, 1, l.pq, l.m, l.s, l.w, 0, l.o1, l.w);
        real *o = (real *)a->o + row * od + (size_t)h * dv;
        for (size_t j = 0; j < dv; j++)
            o[j] = l.o1[j] / l.o1[dv];
    }
}

extern const sd_attn_ops SD_R(sd_attn_elu1);
const sd_attn_ops SD_R(sd_attn_elu1) = {scratch, forward, backward, state_size, decode};
