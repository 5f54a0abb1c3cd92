/* sgemm.h. A tile of C is MR × NR = 8 × 32: 16 accumulators of 16 floats, two loads of B and eight
 * broadcasts of A for 16 fused multiply-adds. A strip of packed B (KC × 32, 32 KB) stays in the
 * first-level cache while the rows of A pass by; A is read in place (rows), or packed when
 * transposed. */
#include "num/sgemm.h"

#include "num/blas.h"

#if SD_REAL_BITS == 32

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_TILES 1
#include <immintrin.h>
#include <string.h>
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define AVX512_INLINE \
    static inline __attribute__((always_inline, target("avx512f,avx512dq,avx512bw,avx512vl")))
#endif

enum { MR = SD_SGEMM_MR, NR = SD_SGEMM_NR, KC = SD_SGEMM_KC, NC = 256, MC = 512 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t sd_sgemm_pack_size(size_t k, size_t n) {
    return (n + NR - 1) / NR * NR * k;
}

#ifdef HAVE_TILES

bool sd_sgemm_packs(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

/* mr is a constant after inlining; element (i, p) of A at a[i*rs + p*cs]. */
AVX512_INLINE void tile(int mr, size_t k, const float *a, size_t rs, size_t cs, const float *b,
                        float alpha, float beta, float *c, size_t ldc, size_t nr) {
    __m512 acc[MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (size_t p = 0; p < k; p++) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        b += NR;
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            __m512 x = _mm512_set1_ps(a[(size_t)i * rs]);
            acc[i][0] = _mm512_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, b1, acc[i][1]);
        }
        a += cs;
    }
    __mmask16 m0 = nr >= 16 ? 0xffff : (__mmask16)((1u << nr) - 1);
    __mmask16 m1 = nr >= 32 ? 0xffff : nr <= 16 ? 0 : (__mmask16)((1u << (nr - 16)) - 1);
    __m512 va = _mm512_set1_ps(alpha), vb = _mm512_set1_ps(beta);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        float *r = c + (size_t)i * ldc;
        __m512 x0 = _mm512_mul_ps(va, acc[i][0]), x1 = _mm512_mul_ps(va, acc[i][1]);
        if (beta != 0) {
            x0 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m0, r), x0);
            x1 = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(m1, r + 16), x1);
        }
        _mm512_mask_storeu_ps(r, m0, x0);
        _mm512_mask_storeu_ps(r + 16, m1, x1);
    }
}

#define TILE_CASE(n_)                                       \
    case n_:                                                \
        tile(n_, k, a, lda, 1, b, alpha, beta, c, ldc, nr); \
        break
#define TILE_CASE_P(n_)                                    \
    case n_:                                               \
        tile(n_, k, a, 1, MR, b, alpha, beta, c, ldc, nr); \
        break

AVX512 static void tile_rows(size_t mr, size_t k, const float *a, size_t lda, const float *b,
                             float alpha, float beta, float *c, size_t ldc, size_t nr) {
    switch (mr) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
        TILE_CASE(7);
        TILE_CASE(8);
    }
}

AVX512 static void tile_packed(size_t mr, size_t k, const float *a, const float *b, float alpha,
                               float beta, float *c, size_t ldc, size_t nr) {
    switch (mr) {
        TILE_CASE_P(1);
        TILE_CASE_P(2);
        TILE_CASE_P(3);
        TILE_CASE_P(4);
        TILE_CASE_P(5);
        TILE_CASE_P(6);
        TILE_CASE_P(7);
        TILE_CASE_P(8);
    }
}

/* 16 × 16: out[j*NR + i] = in[i*ld + j]. */
AVX512 static void transpose16(const float *in, size_t ld, float *out) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_ps(in + (size_t)i * ld);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512d a0 = _mm512_castps_pd(t[i]), a1 = _mm512_castps_pd(t[i + 1]);
        __m512d a2 = _mm512_castps_pd(t[i + 2]), a3 = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a0, a2));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a0, a2));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(a1, a3));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(a1, a3));
    }
    /* r[4g + c]: in each 128-bit lane l, column 4l + c of rows 4g .. 4g+3 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 x = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
        __m512 y = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        __m512 z = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        __m512 w = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_storeu_ps(out + (size_t)c * NR, _mm512_shuffle_f32x4(x, z, 0x88));
        _mm512_storeu_ps(out + (size_t)(8 + c) * NR, _mm512_shuffle_f32x4(x, z, 0xdd));
        _mm512_storeu_ps(out + (size_t)(4 + c) * NR, _mm512_shuffle_f32x4(y, w, 0x88));
        _mm512_storeu_ps(out + (size_t)(12 + c) * NR, _mm512_shuffle_f32x4(y, w, 0xdd));
    }
}

/* One strip: k rows, nr <= NR columns. */
AVX512 static void pack_strip(bool tb, size_t k, size_t nr, const float *b, size_t ldb,
                              float *out) {
    if (!tb) {
        if (nr == NR) {
            for (size_t p = 0; p < k; p++, b += ldb, out += NR) {
                _mm512_storeu_ps(out, _mm512_loadu_ps(b));
                _mm512_storeu_ps(out + 16, _mm512_loadu_ps(b + 16));
            }
            return;
        }
        for (size_t p = 0; p < k; p++, b += ldb, out += NR) {
            memcpy(out, b, nr * sizeof *out);
            memset(out + nr, 0, (NR - nr) * sizeof *out);
        }
        return;
    }
    if (nr < NR)
        memset(out, 0, k * NR * sizeof *out);
    size_t full = nr / 16 * 16, k16 = k / 16 * 16;
    for (size_t j = 0; j < full; j += 16)
        for (size_t p = 0; p < k16; p += 16)
            transpose16(b + j * ldb + p, ldb, out + p * NR + j);
    for (size_t j = 0; j < nr; j++)
        for (size_t p = j < full ? k16 : 0; p < k; p++)
            out[p * NR + j] = b[j * ldb + p];
}

void sd_sgemm_pack(bool tb, size_t k, size_t n, const float *b, size_t ldb, float *out) {
    for (size_t p = 0; p < k; p += KC) {
        size_t kc = least(KC, k - p);
        for (size_t j = 0; j < n; j += NR, out += kc * NR)
            pack_strip(tb, kc, least(NR, n - j), tb ? b + j * ldb + p : b + p * ldb + j, ldb, out);
    }
}

/* Rows i.. of transposed A: strips of MR, each kc × MR. */
AVX512 static void pack_a(size_t m, size_t kc, const float *a, size_t lda, float *out) {
    for (size_t i = 0; i < m; i += MR, out += kc * MR) {
        size_t mr = least(MR, m - i);
        if (mr == MR) {
            for (size_t p = 0; p < kc; p++)
                _mm256_storeu_ps(out + p * MR, _mm256_loadu_ps(a + p * lda + i));
            continue;
        }
        for (size_t p = 0; p < kc; p++)
            for (size_t r = 0; r < MR; r++)
                out[p * MR + r] = r < mr ? a[p * lda + i + r] : 0;
    }
}

enum { MC_T = 256 }; /* rows of a packed piece of transposed A: 256 KB on the stack */

/* kc rows of a block of B (strips of `strip` rows at `b`) against all rows of op(A). */
static void block(bool ta, size_t m, size_t n, size_t kc, size_t strip, float alpha, const float *a,
                  size_t lda, const float *b, float beta, float *c, size_t ldc) {
    if (ta) {
        float pa[MC_T * KC] __attribute__((aligned(64)));
        for (size_t i0 = 0; i0 < m; i0 += MC_T) {
            size_t mc = least(MC_T, m - i0);
            pack_a(mc, kc, a + i0, lda, pa);
            for (size_t j = 0; j < n; j += NR)
                for (size_t i = 0; i < mc; i += MR)
                    tile_packed(least(MR, mc - i), kc, pa + i * kc, b + j * strip, alpha, beta,
                                c + (i0 + i) * ldc + j, ldc, least(NR, n - j));
        }
        return;
    }
    for (size_t i0 = 0; i0 < m; i0 += MC) {
        size_t mc = least(MC, m - i0);
        for (size_t j = 0; j < n; j += NR)
            for (size_t i = 0; i < mc; i += MR)
                tile_rows(least(MR, mc - i), kc, a + (i0 + i) * lda, lda, b + j * strip, alpha,
                          beta, c + (i0 + i) * ldc + j, ldc, least(NR, n - j));
    }
}

void sd_sgemm_packed(bool ta, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                     const float *packed, size_t k_packed, size_t n_packed, size_t row0,
                     size_t col0, float beta, float *c, size_t ldc) {
    size_t np = (n_packed + NR - 1) / NR * NR;
    for (size_t p = 0; p < k; p += KC) {
        size_t kc = least(KC, k - p), strip = least(KC, k_packed - row0 - p);
        block(ta, m, n, kc, strip, alpha, ta ? a + p * lda : a + p, lda,
              packed + (row0 + p) * np + col0 * strip, p == 0 ? beta : 1, c, ldc);
    }
}

static void packing(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                    size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    float pb[NC * KC] __attribute__((aligned(64)));
    for (size_t j = 0; j < n; j += NC)
        for (size_t p = 0; p < k; p += KC) {
            size_t nc = least(NC, n - j), kc = least(KC, k - p);
            sd_sgemm_pack(tb, kc, nc, tb ? b + j * ldb + p : b + p * ldb + j, ldb, pb);
            block(ta, m, nc, kc, kc, alpha, ta ? a + p * lda : a + p, lda, pb, p == 0 ? beta : 1,
                  c + j, ldc);
        }
}

void sd_sgemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
              size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    if (m < MR || k == 0 || !sd_sgemm_packs())
        sd_gemm_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else
        packing(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#else /* no tiles on this processor family */

bool sd_sgemm_packs(void) {
    return false;
}

void sd_sgemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
              size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    sd_gemm_f32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void sd_sgemm_pack(bool tb, size_t k, size_t n, const float *b, size_t ldb, float *out) {
    (void)tb, (void)k, (void)n, (void)b, (void)ldb, (void)out;
}

void sd_sgemm_packed(bool ta, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                     const float *packed, size_t k_packed, size_t n_packed, size_t row0,
                     size_t col0, float beta, float *c, size_t ldc) {
    (void)ta, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)packed;
    (void)k_packed, (void)n_packed, (void)row0, (void)col0, (void)beta, (void)c, (void)ldc;
}

#endif
#else
extern int sd_sgemm_f64_is_empty; /* an f64 object is built from every *_k.c */
#endif
