/* Kind "elu1": causal linear attention with φ = ELU+1 (METHOD §7.2; Katharopoulos et al. 2020):
 * o_i = φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j), with V' = [V 1] giving numerator
 * and denominator in one pass. In chunks of C tokens: the masked product inside a chunk, a running
 * state S = Σ φ(k) v'ᵀ across chunks. φ(q_i) is divided by its maximum, which o does not see,
 * before it can underflow. Heads with a key feature outside [e^−30, 1e13] go the careful way, which
 * is also the decode step: row by row in logarithms, with a running maximum M_c of log φ(k_jc) for
 * each feature c, S_c = Σ_j φ(k_jc) e^{−M_c} v'_j, and φ(q_ic) e^{M_c} divided by its maximum over
 * c; the denominator is then at least 1. Option features=skew (S–D heads): φ on [q, −k] and [k, q];
 * default qk. */
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
    /* S, φq, φk, V', O', A, max, shift */
    size_t n = m * w + 2 * c * m + 2 * c * w + c * c + 2 * c;
    n += 2 * 4 * m + w; /* the careful way, in f64: M, two rows of logs, weights; V' */
    return backward ? n + 2 * c * m + c * w + c * c + m * w + 2 * (size_t)a->tokens + 1 : n;
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
    real *s, *pq, *pk, *v1, *o1, *am, *mx, *sh; /* sh: subtracted from q before φ */
    double *top, *lq, *lk, *wt;                 /* the careful way: (m) each */
    real *row;                                  /* (w) */
    real *rest;
} lin;

static lin split(const sd_attn_args *a, real *work) {
    lin l = {.m = feat(a), .w = (size_t)a->d_v + 1};
    l.top = (double *)work; /* aligned as the scratch is */
    l.lq = l.top + l.m;
    l.lk = l.lq + l.m;
    l.wt = l.lk + l.m;
    l.s = work + 4 * l.m * (sizeof(double) / sizeof(real));
    l.pq = l.s + l.m * l.w;
    l.pk = l.pq + CHUNK * l.m;
    l.v1 = l.pk + CHUNK * l.m;
    l.o1 = l.v1 + CHUNK * l.w;
    l.am = l.o1 + CHUNK * l.w;
    l.mx = l.am + CHUNK * CHUNK;
    l.sh = l.mx + CHUNK;
    l.row = l.sh + CHUNK;
    l.rest = l.row + l.w;
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
        real sh = -INFINITY;
        for (size_t j = 0; j < d; j++)
            sh = q[j] > sh ? q[j] : sh;
        for (size_t j = 0; sk && j < d; j++)
            sh = -k[j] > sh ? -k[j] : sh;
        l->sh[i] = sh = sh < -30 ? sh : 0; /* all of φ(q_i) would be tiny: e^(q − max q) */
#pragma omp simd
        for (size_t j = 0; j < d; j++) {
            pq[j] = phi(q[j] - sh);
            pk[j] = phi(k[j]);
        }
        if (sk) {
#pragma omp simd
            for (size_t j = 0; j < d; j++) {
                pq[d + j] = phi(-k[j] - sh);
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

/* ---- the careful way ------------------------------------------------------------------------ */

/* Is some φ of a key so small or so large that sums of φ(q)φ(k) may vanish or overflow? */
static bool careful(const sd_attn_args *a, int b, int g, int h) {
    size_t d = (size_t)a->d_qk, t = (size_t)a->tokens;
    bool bad = false, sk = skew(a);
    for (size_t i = 0; i < t && !bad; i++) {
        const real *row = (const real *)a->proj + ((size_t)b * t + i) * a->ld;
        const real *k = row + a->off[SD_SLOT_K] + (size_t)g * d;
        const real *q = row + a->off[SD_SLOT_Q] + (size_t)h * d;
        real lo = 0, hi = 0;
        for (size_t j = 0; j < d; j++) {
            lo = k[j] < lo ? k[j] : lo;
            hi = k[j] > hi ? k[j] : hi;
        }
        for (size_t j = 0; sk && j < d; j++) {
            lo = q[j] < lo ? q[j] : lo;
            hi = q[j] > hi ? q[j] : hi;
        }
        bad = lo < -30 || hi > (real)1e13;
    }
    return bad;
}

SD_INLINE double log_phi(real x) {
    return x > 0 ? log1p((double)x) : (double)x;
}

/* d log φ / dx */
SD_INLINE real dlog_phi(real x) {
    return x > 0 ? 1 / (1 + x) : 1;
}

/* Of the query up to a constant: its largest is 0, so that nothing is lost beside a huge one. */
static void logs(const sd_attn_args *a, size_t r, int g, int h, const lin *l) {
    size_t d = (size_t)a->d_qk, dv = (size_t)a->d_v;
    const real *row = (const real *)a->proj + r * a->ld;
    const real *q = row + a->off[SD_SLOT_Q] + (size_t)h * d;
    const real *k = row + a->off[SD_SLOT_K] + (size_t)g * d;
    for (size_t j = 0; j < d; j++) {
        l->lq[j] = log_phi(q[j]);
        l->lk[j] = log_phi(k[j]);
        if (l->m == 2 * d) {
            l->lq[d + j] = log_phi(-k[j]);
            l->lk[d + j] = log_phi(q[j]);
        }
    }
    double mx = -INFINITY;
    for (size_t c = 0; c < l->m; c++)
        mx = l->lq[c] > mx ? l->lq[c] : mx;
    for (size_t c = 0; c < l->m; c++)
        l->lq[c] -= mx;
    memcpy(l->row, row + a->off[SD_SLOT_V] + (size_t)g * dv, dv * sizeof(real));
    l->row[dv] = 1;
}

static void take_begin(const lin *l) {
    memset(l->s, 0, l->m * l->w * sizeof(real));
    for (size_t c = 0; c < l->m; c++)
        l->top[c] = -INFINITY;
}

/* Takes the row of `logs` in; wt: φ(q_c) e^{M_c} over its maximum, whose logarithm is returned. */
static double take(const lin *l) {
    double mx = -INFINITY;
    for (size_t c = 0; c < l->m; c++) {
        real *s = l->s + c * l->w, e = 1;
        if (l->lk[c] > l->top[c]) {
            real f = r_exp((real)(l->top[c] - l->lk[c]));
            for (size_t j = 0; j < l->w; j++)
                s[j] *= f;
            l->top[c] = l->lk[c];
        } else {
            e = r_exp((real)(l->lk[c] - l->top[c]));
        }
        for (size_t j = 0; j < l->w; j++)
            s[j] += e * l->row[j];
        l->wt[c] = l->lq[c] + l->top[c];
        mx = l->wt[c] > mx ? l->wt[c] : mx;
    }
    for (size_t c = 0; c < l->m; c++)
        l->wt[c] = (double)r_exp((real)(l->wt[c] - mx));
    return mx;
}

/* o (dv) of the row just taken in; returns the denominator. */
static real give(const lin *l, real *o) {
    size_t dv = l->w - 1;
    real z = 0;
    memset(o, 0, dv * sizeof *o);
    for (size_t c = 0; c < l->m; c++) {
        const real *s = l->s + c * l->w, wt = (real)l->wt[c];
        for (size_t j = 0; j < dv; j++)
            o[j] += wt * s[j];
        z += wt * s[dv];
    }
    for (size_t j = 0; j < dv; j++)
        o[j] /= z;
    return z;
}

static void careful_forward(const sd_attn_args *a, int b, int g, int h, const lin *l) {
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    take_begin(l);
    for (size_t i = 0; i < t; i++) {
        size_t r = (size_t)b * t + i;
        logs(a, r, g, h, l);
        take(l);
        real z = give(l, (real *)a->o + r * od + (size_t)h * dv);
        if (a->lse)
            ((real *)a->lse)[(size_t)(b * a->n_head + h) * t + i] = z;
    }
}

/* Adds d log φ times the gradients of the logs: those of the query features, or of the keys'. */
static void d_logs(const sd_attn_args *a, size_t r, int g, int h, const lin *l, const real *dl,
                   bool of_query) {
    size_t d = (size_t)a->d_qk, oq = a->off[SD_SLOT_Q] + (size_t)h * d;
    size_t ok = a->off[SD_SLOT_K] + (size_t)g * d, o1 = of_query ? oq : ok, o2 = of_query ? ok : oq;
    const real *row = (const real *)a->proj + r * a->ld;
    real *drow = (real *)a->dproj + r * a->ld, s2 = of_query ? -1 : 1;
    for (size_t j = 0; j < d; j++) {
        drow[o1 + j] += dlog_phi(row[o1 + j]) * dl[j];
        if (l->m == 2 * d)
            drow[o2 + j] += s2 * dlog_phi(s2 * row[o2 + j]) * dl[d + j];
    }
}

/* With g'_i = [dO_i, −dO_i·O_i]/z_i and x_i the logarithm that `take` divided by:
 * d log φ(q_ic) = wt_ic S_c·g'_i, and, T_c = Σ_{i ≥ j} φ(q_ic) e^{−x_i} g'_i kept with its own
 * running maximum from the right, d log φ(k_jc) = φ(k_jc) T_c·v'_j, dv_j = Σ_c φ(k_jc) T_c. */
static void careful_backward(const sd_attn_args *a, int b, int g, int h, const lin *l, real *g1,
                             real *dl, double *x) {
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv, w = l->w;
    take_begin(l);
    for (int back = 0; back < 2; back++) {
        if (back)
            take_begin(l); /* now s is T, top its maximum */
        for (size_t n = 0; n < t; n++) {
            size_t i = back ? t - 1 - n : n, r = (size_t)b * t + i, at = r * od + (size_t)h * dv;
            const real *go = (const real *)a->d_o + at, *o = (const real *)a->o + at;
            real z = ((const real *)a->lse)[(size_t)(b * a->n_head + h) * t + i], dot = 0;
            for (size_t j = 0; j < dv; j++) {
                g1[j] = go[j] / z;
                dot += go[j] * o[j];
            }
            g1[dv] = -dot / z;
            logs(a, r, g, h, l);
            if (!back)
                x[i] = take(l);
            real *dvr = (real *)a->dproj + r * a->ld + a->off[SD_SLOT_V] + (size_t)g * dv;
            for (size_t c = 0; c < l->m; c++) {
                real *s = l->s + c * w, sum = 0, e = (real)l->wt[c];
                if (back) {
                    double lq = l->lq[c] - x[i];
                    real f = 1;
                    e = 1;
                    if (lq > l->top[c]) {
                        f = r_exp((real)(l->top[c] - lq));
                        l->top[c] = lq;
                    } else {
                        e = r_exp((real)(lq - l->top[c]));
                    }
                    for (size_t j = 0; j < w; j++)
                        s[j] = f * s[j] + e * g1[j];
                    e = r_exp((real)(l->lk[c] + l->top[c]));
                    for (size_t j = 0; j < w; j++)
                        sum += s[j] * l->row[j];
                    for (size_t j = 0; j < dv; j++)
                        dvr[j] += e * s[j];
                } else {
                    for (size_t j = 0; j < w; j++)
                        sum += s[j] * g1[j];
                }
                dl[c] = e * sum;
            }
            d_logs(a, r, g, h, l, dl, !back);
        }
    }
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    lin l = split(a, work);
    for (int h = g * group; h < (g + 1) * group; h++) {
        if (careful(a, b, g, h)) {
            careful_forward(a, b, g, h, &l);
            continue;
        }
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
        real sh = of_query ? l->sh[i] : 0;
        for (size_t j = 0; j < d; j++) {
            drow[o1 + j] += dphi(row[o1 + j] - sh) * inv * df[i * l->m + j];
            if (sk)
                drow[o2 + j] += s2 * dphi(s2 * row[o2 + j] - sh) * inv * df[i * l->m + d + j];
        }
    }
}

static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, dq = (size_t)a->d_qk;
    lin l = split(a, work);
    real *dpq = l.rest, *dpk = dpq + CHUNK * l.m, *g1 = dpk + CHUNK * l.m;
    real *da = g1 + CHUNK * l.w, *ds = da + CHUNK * CHUNK;
    real *tail = ds + l.m * l.w;
    tail += (tail - (real *)work) % 2; /* doubles stand there */
    size_t nc = (t + CHUNK - 1) / CHUNK;
    for (size_t i = 0; i < t; i++) {
        real *row = (real *)a->dproj + ((size_t)b * t + i) * a->ld;
        memset(row + a->off[SD_SLOT_K] + (size_t)g * dq, 0, dq * sizeof(real));
        memset(row + a->off[SD_SLOT_V] + (size_t)g * dv, 0, dv * sizeof(real));
        memset(row + a->off[SD_SLOT_Q] + (size_t)(g * group) * dq, 0,
               (size_t)group * dq * sizeof(real));
    }
    for (int h = g * group; h < (g + 1) * group; h++) {
        if (careful(a, b, g, h)) {
            careful_backward(a, b, g, h, &l, g1, dpq, (double *)tail);
            continue;
        }
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

/* M (f64) and S of one head, in whole doubles. */
static size_t head_state(const sd_attn_args *a) {
    size_t m = feat(a), n = m * ((size_t)a->d_v + 1) + m * (sizeof(double) / sizeof(real));
    return (n + 1) / 2 * 2;
}

static size_t state_size(const sd_attn_args *a) {
    return (size_t)(a->n_head / a->n_kv) * head_state(a);
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    int group = a->n_head / a->n_kv;
    size_t dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    size_t row = (size_t)b * (size_t)a->tokens + (size_t)(t - a->first);
    lin l = split(a, work);
    for (int h = g * group; h < (g + 1) * group; h++) {
        real *own = (real *)state + (size_t)(h - g * group) * head_state(a);
        l.top = (double *)own;
        l.s = own + l.m * (sizeof(double) / sizeof(real));
        if (t == 0)
            take_begin(&l);
        logs(a, row, g, h, &l);
        take(&l);
        give(&l, (real *)a->o + row * od + (size_t)h * dv);
    }
}

extern const sd_attn_ops SD_R(sd_attn_elu1);
const sd_attn_ops SD_R(sd_attn_elu1) = {scratch, forward, backward, state_size, decode};
