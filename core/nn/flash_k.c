/* Tiled softmax attention of one head (nn/flash.h).
 *
 * A tile is BQ queries by BK keys. Forward keeps a running maximum and sum a row (Milakov and
 * Gimelshein 2018; Dao et al. 2022) and rescales the output when the maximum grows. Backward forms
 * P again from the stored log-sums: with G = P ∘ (dO Vᵀ − rowsum(dO ∘ O)), dV += PᵀdO, dQ += G K,
 * dK += GᵀQ. The replaced diagonal (S–D) takes its own gradient G_ii and is then struck out of G.
 */
#include "nn/flash.h"

#include "nn/kern.h"
#include "num/sgemm.h"

enum { BQ = 32, BK = 256 };

static size_t min_sz(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Where the processor allows it (f32), keys and values are packed once a head for all their tiles;
 * else every tile is a product of num/blas.h. */
#if SD_REAL_BITS == 32
#define packs() sd_sgemm_packs()
#else
#define packs() false
#endif

typedef struct packing {
    bool on;
    real *kt, *v, *vt, *k; /* Kᵀ (dk, N), V (N, dv); backward also Vᵀ (dv, N), K (N, dk) */
} packing;

size_t SD_R(sd_flash_scratch)(size_t n, size_t dk, size_t dv, bool backward) {
    size_t bk = min_sz((n + 15) / 16 * 16, BK), bq = min_sz(n, BQ);
    size_t tiles = (backward ? 2 : 1) * bq * bk + 4 * BQ;
    if (packs())
        tiles += sd_sgemm_pack_size(dk, n) + sd_sgemm_pack_size(n, dv) +
                 (backward ? sd_sgemm_pack_size(n, dk) + sd_sgemm_pack_size(dv, n) : 0);
    return tiles < SD_FLASH_ROW ? SD_FLASH_ROW : tiles; /* a row alone may be asked for */
}

static packing pack_head(const flash_t *f, bool backward, real *at) {
    packing p = {.on = packs()};
#if SD_REAL_BITS == 32
    if (p.on) {
        p.kt = at;
        at += sd_sgemm_pack_size(f->dk, f->n);
        if (f->dk)
            sd_sgemm_pack(true, f->dk, f->n, f->k, f->ldk, p.kt);
        if (!backward) {
            p.v = at;
            sd_sgemm_pack(false, f->n, f->dv, f->v, f->ldv, p.v);
        } else {
            p.vt = at;
            at += sd_sgemm_pack_size(f->dv, f->n);
            sd_sgemm_pack(true, f->dv, f->n, f->v, f->ldv, p.vt);
            p.k = at;
            if (f->dk)
                sd_sgemm_pack(false, f->n, f->dk, f->k, f->ldk, p.k);
        }
    }
#else
    (void)f, (void)backward, (void)at;
#endif
    return p;
}

/* out (nq, nk) = scale · a · bᵀ for the keys from j0; bt is b packed transposed. */
static void times_keys(const packing *p, const real *bt, size_t n, size_t d, size_t nq, size_t j0,
                       size_t nk, real scale, const real *a, size_t lda, const real *b, size_t ldb,
                       real *out, size_t ldo) {
#if SD_REAL_BITS == 32
    if (p->on) {
        sd_sgemm_packed(false, nq, nk, d, scale, a, lda, bt, d, n, 0, j0, 0, out, ldo);
        return;
    }
#else
    (void)p, (void)bt, (void)n;
#endif
    r_gemm(false, true, nq, nk, d, scale, a, lda, b + j0 * ldb, ldb, 0, out, ldo);
}

/* out (nq, d) = beta · out + scale · w · b for the keys from j0; bp is b packed. */
static void sum_keys(const packing *p, const real *bp, size_t n, size_t d, size_t nq, size_t j0,
                     size_t nk, real scale, const real *w, size_t ldw, const real *b, size_t ldb,
                     real beta, real *out, size_t ldo) {
#if SD_REAL_BITS == 32
    if (p->on) {
        sd_sgemm_packed(false, nq, d, nk, scale, w, ldw, bp, n, d, j0, 0, beta, out, ldo);
        return;
    }
#else
    (void)p, (void)bp, (void)n;
#endif
    r_gemm(false, false, nq, d, nk, scale, w, ldw, b + j0 * ldb, ldb, beta, out, ldo);
}

/* out (nk, d) += scale · wᵀ · b for a tile of queries. */
static void to_keys(const packing *p, size_t nk, size_t d, size_t nq, real scale, const real *w,
                    size_t ldw, const real *b, size_t ldb, real *out, size_t ldo) {
#if SD_REAL_BITS == 32
    if (p->on) {
        sd_sgemm(true, false, nk, d, nq, scale, w, ldw, b, ldb, 1, out, ldo);
        return;
    }
#else
    (void)p;
#endif
    r_gemm(true, false, nk, d, nq, scale, w, ldw, b, ldb, 1, out, ldo);
}

/* One row of a tile: scores → unnormalised probabilities, running maximum and sum. Returns the
 * factor by which what was accumulated before must be scaled. */
SD_INLINE real row_softmax(size_t n, real *s, real *m, real *l) {
    real mx = *m;
#pragma omp simd reduction(max : mx)
    for (size_t j = 0; j < n; j++)
        mx = s[j] > mx ? s[j] : mx;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < n; j++) {
        real e = r_exp(s[j] - mx);
        s[j] = e;
        sum += e;
    }
    real corr = r_exp(*m - mx);
    *l = *l * corr + sum;
    *m = mx;
    return corr;
}

/* First key row i sees. */
SD_INLINE size_t first_key(const flash_t *f, size_t i) {
    return f->window && i + 1 > f->window ? i + 1 - f->window : 0;
}

/* Row i's columns [*lo, *hi) of a key tile that starts at j0 and has nk keys. */
SD_INLINE void valid(const flash_t *f, size_t i, size_t j0, size_t nk, size_t *lo, size_t *hi) {
    *lo = 0;
    *hi = nk;
    if (!f->causal)
        return;
    *hi = i < j0 ? 0 : (i - j0 + 1 < nk ? i - j0 + 1 : nk);
    size_t first = first_key(f, i);
    *lo = first > j0 ? min_sz(first - j0, *hi) : 0;
}

static void scores(const flash_t *f, const packing *pk, size_t i0, size_t nq, size_t j0, size_t nk,
                   size_t lds, real *s) {
    if (f->dk == 0) {
        for (size_t r = 0; r < nq; r++)
            memset(s + r * lds, 0, nk * sizeof *s);
    } else {
        times_keys(pk, pk->kt, f->n, f->dk, nq, j0, nk, f->scale, f->q + i0 * f->ldq, f->ldq, f->k,
                   f->ldk, s, lds);
    }
    if (f->mode == SD_DIAG_PLAIN)
        return;
    for (size_t r = 0; r < nq; r++) {
        size_t i = i0 + r;
        if (i < j0 || i >= j0 + nk)
            continue;
        real d = f->diag[i * f->ldd], *p = s + r * lds + (i - j0);
        *p = f->mode == SD_DIAG_REPLACE ? d : *p + d;
    }
}

#define TILE_FWD SD_R(sd_flash_tile_fwd)
SD_CLONES static void TILE_FWD(const flash_t *f, size_t i0, size_t nq, size_t j0, size_t nk,
                               size_t lds, real *s, real *m, real *l, bool first) {
    for (size_t r = 0; r < nq; r++) {
        real *sr = s + r * lds;
        size_t lo, hi;
        valid(f, i0 + r, j0, nk, &lo, &hi);
        if (hi > lo) {
            real corr = row_softmax(hi - lo, sr + lo, &m[r], &l[r]);
            if (!first && corr != 1) {
                real *o = f->o + (i0 + r) * f->ldo;
#pragma omp simd
                for (size_t j = 0; j < f->dv; j++)
                    o[j] *= corr;
            }
        }
        for (size_t j = 0; j < lo; j++)
            sr[j] = 0;
        for (size_t j = hi; j < nk; j++)
            sr[j] = 0;
    }
}

#define FLASH_FWD SD_R(sd_flash_fwd)
void FLASH_FWD(const flash_t *f, real *scratch) {
    size_t n = f->n, lds = min_sz((n + 15) / 16 * 16, BK);
    real *s = scratch, *m = s + min_sz(n, BQ) * lds, *l = m + BQ;
    packing pk = pack_head(f, false, l + BQ);
    for (size_t i0 = 0; i0 < n; i0 += BQ) {
        size_t nq = min_sz(BQ, n - i0), end = f->causal ? i0 + nq : n;
        size_t start = first_key(f, i0) / BK * BK;
        for (size_t r = 0; r < nq; r++) {
            m[r] = -INFINITY;
            l[r] = 0;
        }
        for (size_t j0 = start; j0 < end; j0 += BK) {
            size_t nk = min_sz(BK, end - j0);
            scores(f, &pk, i0, nq, j0, nk, lds, s);
            TILE_FWD(f, i0, nq, j0, nk, lds, s, m, l, j0 == start);
            sum_keys(&pk, pk.v, n, f->dv, nq, j0, nk, 1, s, lds, f->v, f->ldv, j0 > start,
                     f->o + i0 * f->ldo, f->ldo);
        }
        for (size_t r = 0; r < nq; r++) {
            real *o = f->o + (i0 + r) * f->ldo, inv = 1 / l[r];
            for (size_t j = 0; j < f->dv; j++)
                o[j] *= inv;
            if (f->lse)
                f->lse[i0 + r] = m[r] + (real)log((double)l[r]);
        }
    }
}

void SD_R(sd_flash_row)(const flash_row_t *f, real *s) {
    real m = -INFINITY, l = 0, *o = f->o;
    for (size_t j0 = f->first; j0 < f->n; j0 += SD_FLASH_ROW) {
        size_t nk = min_sz(SD_FLASH_ROW, f->n - j0);
        memset(s, 0, nk * sizeof *s);
        for (int i = 0; i < f->n_term; i++) {
            const flash_term_t *t = &f->term[i];
            SD_R(sd_k_dots)(nk, t->d, t->c, t->q, t->k + j0 * f->ld, f->ld, s);
        }
        if (j0 + nk == f->n && f->mode != SD_DIAG_PLAIN)
            s[nk - 1] = f->mode == SD_DIAG_REPLACE ? f->diag : s[nk - 1] + f->diag;
        real corr = f->raw ? 1 : row_softmax(nk, s, &m, &l);
        for (size_t j = 0; j < f->dv; j++)
            o[j] = j0 > f->first ? o[j] * corr : 0;
        SD_R(sd_k_gemv)(nk, f->dv, s, f->v + j0 * f->ld, f->ld, o);
    }
    for (size_t j = 0; j < f->dv && !f->raw; j++)
        o[j] /= l;
    if (f->lse)
        *f->lse = m + (real)log((double)l);
}

/* s: scores → P; dp: dO Vᵀ → G. */
#define TILE_BWD SD_R(sd_flash_tile_bwd)
SD_CLONES static void TILE_BWD(const flash_t *f, size_t i0, size_t nq, size_t j0, size_t nk,
                               size_t lds, real *s, real *dp, const real *delta) {
    for (size_t r = 0; r < nq; r++) {
        real *sr = s + r * lds, *gr = dp + r * lds, lse = f->lse[i0 + r], dl = delta[r];
        size_t i = i0 + r, lo, hi;
        valid(f, i, j0, nk, &lo, &hi);
        for (size_t j = 0; j < lo; j++)
            sr[j] = gr[j] = 0;
#pragma omp simd
        for (size_t j = lo; j < hi; j++) {
            real p = r_exp(sr[j] - lse);
            sr[j] = p;
            gr[j] = p * (gr[j] - dl);
        }
        for (size_t j = hi; j < nk; j++)
            sr[j] = gr[j] = 0;
        if (f->mode != SD_DIAG_PLAIN && i >= j0 && i < j0 + nk) {
            if (f->ddiag)
                f->ddiag[i] = gr[i - j0];
            if (f->mode == SD_DIAG_REPLACE)
                gr[i - j0] = 0;
        }
    }
}

#define FLASH_BWD SD_R(sd_flash_bwd)
void FLASH_BWD(const flash_t *f, real *scratch) {
    size_t n = f->n, lds = min_sz((n + 15) / 16 * 16, BK);
    real *s = scratch, *dp = s + min_sz(n, BQ) * lds, *delta = dp + min_sz(n, BQ) * lds;
    packing pk = pack_head(f, true, delta + BQ);
    for (size_t i0 = 0; i0 < n; i0 += BQ) {
        size_t nq = min_sz(BQ, n - i0), end = f->causal ? i0 + nq : n;
        for (size_t r = 0; r < nq; r++) {
            const real *o = f->o + (i0 + r) * f->ldo, *g = f->d_o + (i0 + r) * f->lddo;
            real sum = 0;
#pragma omp simd reduction(+ : sum)
            for (size_t j = 0; j < f->dv; j++)
                sum += o[j] * g[j];
            delta[r] = sum;
        }
        size_t start = first_key(f, i0) / BK * BK;
        for (size_t j0 = start; j0 < end; j0 += BK) {
            size_t nk = min_sz(BK, end - j0);
            scores(f, &pk, i0, nq, j0, nk, lds, s);
            times_keys(&pk, pk.vt, n, f->dv, nq, j0, nk, 1, f->d_o + i0 * f->lddo, f->lddo, f->v,
                       f->ldv, dp, lds);
            TILE_BWD(f, i0, nq, j0, nk, lds, s, dp, delta);
            to_keys(&pk, nk, f->dv, nq, 1, s, lds, f->d_o + i0 * f->lddo, f->lddo,
                    f->dv_ + j0 * f->lddv, f->lddv);
            if (f->dk == 0)
                continue;
            sum_keys(&pk, pk.k, n, f->dk, nq, j0, nk, f->scale, dp, lds, f->k, f->ldk, j0 > start,
                     f->dq + i0 * f->lddq, f->lddq);
            to_keys(&pk, nk, f->dk, nq, f->scale, dp, lds, f->q + i0 * f->ldq, f->ldq,
                    f->dk_ + j0 * f->lddk, f->lddk);
        }
    }
}
