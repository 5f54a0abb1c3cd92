/* core/num: storage types, tensors, decompositions. References: tests/ref/linalg.py.
 * SD_TEST_DUMP=FILE writes 1280-sized problems and results for `tests/ref/linalg.py FILE`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "num/blas.h"
#include "num/dtype.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "num/tensor.h"

static double *doubles(size_t n) {
    double *p = sd_alloc(n + 1, sizeof *p, NULL);
    assert_non_null(p);
    return p;
}

static double *gauss(size_t n, uint64_t seed) {
    double *p = doubles(n);
    sd_rng r;
    sd_rng_seed(&r, seed);
    sd_rng_fill_gauss(&r, p, n);
    return p;
}

/* ---- storage types -----------------------------------------------------------------------------
 */

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static void one(sd_dtype t, uint32_t pattern, double want) {
    float f;
    double d;
    sd_to_f32(t, &pattern, &f, 1);
    sd_to_f64(t, &pattern, &d, 1);
    if (isnan(want)) {
        assert_true(isnan(f) && isnan(d));
        return;
    }
    if (f != (float)want || d != want || !signbit(f) != !signbit(want) ||
        !signbit(d) != !signbit(want))
        fail_msg("%s 0x%x: %.9g, not %.9g", sd_dtype_get(t)->name, (unsigned)pattern, d, want);
}

/* The value of a small float by its definition. */
static double slow(unsigned p, int ebits, int mbits, bool fn) {
    int total = ebits + mbits, bias = (1 << (ebits - 1)) - 1, top = (1 << ebits) - 1;
    int e = (int)(p >> mbits) & top, m = (int)p & ((1 << mbits) - 1);
    double s = p >> total & 1 ? -1.0 : 1.0;
    if (fn ? e == top && m == (1 << mbits) - 1 : e == top && m)
        return NAN;
    if (!fn && e == top)
        return s * INFINITY;
    return s * (e ? ldexp(1 + ldexp(m, -mbits), e - bias) : ldexp(m, 1 - bias - mbits));
}

static void test_patterns(void **state) {
    (void)state;
    one(SD_F16, 0x0001, 5.9604644775390625e-8);
    one(SD_F16, 0x7BFF, 65504);
    one(SD_F16, 0x7C00, INFINITY);
    one(SD_F16, 0x8000, -0.0);
    one(SD_BF16, 0x3F80, 1);
    one(SD_BF16, 0xFF80, -INFINITY);
    one(SD_F8_E4M3, 0x01, 0.001953125);
    one(SD_F8_E4M3, 0x7E, 448);
    one(SD_F8_E4M3, 0x7F, NAN);
    one(SD_F8_E4M3, 0xFF, NAN);
    one(SD_F8_E5M2, 0x01, 1.52587890625e-5);
    one(SD_F8_E5M2, 0x7B, 57344);
    one(SD_F8_E5M2, 0x7C, INFINITY);
    one(SD_F8_E5M2, 0x7D, NAN);
    for (unsigned p = 0; p < 65536; p++) {
        one(SD_F16, p, slow(p, 5, 10, false));
        one(SD_BF16, p, slow(p, 8, 7, false));
        if (p < 256) {
            one(SD_F8_E4M3, p, slow(p, 4, 3, true));
            one(SD_F8_E5M2, p, slow(p, 5, 2, false));
        }
    }
    int64_t i = INT64_MIN;
    double d;
    float f;
    sd_to_f64(SD_I64, &i, &d, 1);
    assert_true(d == -0x1p63);
    uint64_t u = UINT64_MAX;
    sd_to_f64(SD_U64, &u, &d, 1);
    assert_true(d == 0x1p64);
    unsigned char b[9] = {9, 0xFE, 0xFF, 0xFF, 0xFF, 3, 0, 0, 0}; /* unaligned */
    float two[2];
    sd_to_f32(SD_I32, b + 1, two, 2);
    assert_true(two[0] == -2 && two[1] == 3);
    sd_to_f32(SD_BOOL, b, &f, 1);
    assert_true(f == 1);
}

/* Every small float, the midpoints between neighbours and their surroundings: nearest, ties to
 * even, overflow to infinity (NaN for E4M3). */
static void rounding(sd_dtype t, int ebits, int mbits, bool fn) {
    unsigned count = 1u << (ebits + mbits);
    unsigned last = fn ? count - 2 : (count - 1) & ~((1u << mbits) - 1);
    for (unsigned p = 0; p < last; p++) {
        double lo = slow(p, ebits, mbits, fn), hi = slow(p + 1, ebits, mbits, fn);
        if (isinf(hi)) /* what the next value would be */
            hi = lo + (lo - slow(p - 1, ebits, mbits, fn));
        float mid = (float)((lo + hi) / 2);
        float x[5] = {(float)lo, nextafterf(mid, 0), mid, nextafterf(mid, INFINITY), -mid};
        unsigned want[5] = {p, p, p & 1 ? p + 1 : p, p + 1, (p & 1 ? p + 1 : p) | count};
        if (mid == (float)lo || mid == (float)hi)
            continue; /* bf16 at the edge of f32's own range */
        for (int k = 0; k < 5; k++) {
            uint16_t out = 0;
            assert_int_equal(sd_from_f32(t, x + k, &out, 1, NULL), SD_OK);
            if (out != want[k])
                fail_msg("%s %.9g: 0x%x, not 0x%x", sd_dtype_get(t)->name, (double)x[k], out,
                         want[k]);
        }
    }
    float far[4] = {1e38f, -INFINITY, NAN, -0.0f};
    uint16_t out[4];
    for (int k = 0; k < 4; k++) {
        out[k] = 0;
        assert_int_equal(sd_from_f32(t, far + k, out + k, 1, NULL), SD_OK);
    }
    if (ebits < 8)
        assert_int_equal(out[0], fn ? count - 1 : last);
    assert_int_equal(out[1], (fn ? count - 1 : last) | count);
    assert_true(isnan(slow(out[2], ebits, mbits, fn)));
    assert_int_equal(out[3], count);
}

static void test_rounding(void **state) {
    (void)state;
    rounding(SD_F16, 5, 10, false);
    rounding(SD_BF16, 8, 7, false);
    rounding(SD_F8_E5M2, 5, 2, false);
    rounding(SD_F8_E4M3, 4, 3, true);
    float x[6] = {-129, 300, 2.5f, 3.5f, NAN, -0.4f};
    int8_t i[6];
    uint8_t u[6];
    assert_int_equal(sd_from_f32(SD_I8, x, i, 6, NULL), SD_OK);
    assert_int_equal(sd_from_f32(SD_U8, x, u, 6, NULL), SD_OK);
    int want_i[6] = {-128, 127, 2, 4, 0, 0}, want_u[6] = {0, 255, 2, 4, 0, 0};
    for (int k = 0; k < 6; k++) {
        assert_int_equal(i[k], want_i[k]);
        assert_int_equal(u[k], want_u[k]);
    }
    sd_err e;
    for (int t = SD_Q4_0; t <= SD_Q6_K; t++)
        assert_int_equal(sd_from_f32((sd_dtype)t, x, u, 0, &e), SD_EINVAL);
    /* Names there and back, sizes. */
    for (int t = 0; t < SD_DTYPE_COUNT; t++) {
        sd_dtype back;
        assert_true(sd_dtype_find(sd_dtype_get((sd_dtype)t)->name, &back) && (int)back == t);
    }
    sd_dtype t;
    assert_false(sd_dtype_find("F99", &t));
    uint64_t n = 7;
    assert_true(sd_dtype_bytes(SD_Q6_K, 512, &n) && n == 420);
    assert_false(sd_dtype_bytes(SD_Q6_K, 100, &n));
    assert_false(sd_dtype_bytes(SD_F64, UINT64_MAX / 4, &n));
    assert_int_equal(n, 420);
}

/* One element of a block, straight from the layout's definition, in f64. */
static double half(const uint8_t *p) {
    return slow((unsigned)(p[0] | p[1] << 8), 5, 10, false);
}

static void scale6(const uint8_t *q, int j, int *s, int *m) {
    if (j < 4) {
        *s = q[j] & 63;
        *m = q[j + 4] & 63;
    } else {
        *s = (q[j + 4] & 15) + 16 * (q[j - 4] / 64);
        *m = q[j + 4] / 16 + 16 * (q[j] / 64);
    }
}

static double element(sd_dtype t, const uint8_t *b, int i) {
    int s, m, k, v;
    switch (t) {
    case SD_Q4_0:
        return half(b) * ((i < 16 ? b[2 + i] % 16 : b[2 + i - 16] / 16) - 8);
    case SD_Q4_1:
        return half(b) * (i < 16 ? b[4 + i] % 16 : b[4 + i - 16] / 16) + half(b + 2);
    case SD_Q5_0:
    case SD_Q5_1:
        k = t == SD_Q5_0 ? 2 : 4;
        v = i < 16 ? b[k + 4 + i] % 16 : b[k + 4 + i - 16] / 16;
        v += 16 * (b[k + i / 8] >> i % 8 & 1);
        return t == SD_Q5_0 ? half(b) * (v - 16) : half(b) * v + half(b + 2);
    case SD_Q8_0:
        return half(b) * (b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
    case SD_Q4_K:
    case SD_Q5_K:
        scale6(b + 4, i / 32, &s, &m);
        k = t == SD_Q4_K ? 16 : 48;
        v = b[k + i / 64 * 32 + i % 32];
        v = i / 32 % 2 ? v / 16 : v % 16;
        if (t == SD_Q5_K)
            v += 16 * (b[16 + i % 32] >> i / 32 & 1);
        return half(b) * s * v - half(b + 2) * m;
    default: /* Q6_K */
        k = i % 128;
        v = b[i / 128 * 64 + k % 64];
        v = k < 64 ? v % 16 : v / 16;
        v += 16 * (b[128 + i / 128 * 32 + k % 32] >> k / 32 * 2 & 3);
        s = b[192 + i / 16] < 128 ? b[192 + i / 16] : b[192 + i / 16] - 256;
        return half(b + 208) * s * (v - 32);
    }
}

static void test_quants(void **state) {
    (void)state;
    sd_rng r;
    sd_rng_seed(&r, 3);
    for (int ti = SD_Q4_0; ti <= SD_Q6_K; ti++) {
        sd_dtype t = (sd_dtype)ti;
        const sd_dtype_info *di = sd_dtype_get(t);
        enum { BLOCKS = 5 };
        uint8_t raw[1 + BLOCKS * 210];
        for (size_t i = 0; i < sizeof raw; i++)
            raw[i] = (uint8_t)sd_rng_u64(&r);
        uint8_t *p = raw + 1; /* unaligned */
        for (int b = 0; b < BLOCKS; b++) {
            uint16_t d = sd_f32_to_f16(0.01f * (float)(b + 1)),
                     m = sd_f32_to_f16(-0.3f + 0.1f * (float)b);
            memcpy(p + b * di->bytes + (t == SD_Q6_K ? 208 : 0), &d, 2);
            if (t == SD_Q4_1 || t == SD_Q5_1 || t == SD_Q4_K || t == SD_Q5_K)
                memcpy(p + b * di->bytes + 2, &m, 2);
        }
        float f[BLOCKS * 256];
        double g[BLOCKS * 256];
        size_t n = (size_t)(BLOCKS * di->block);
        sd_to_f32(t, p, f, n);
        sd_to_f64(t, p, g, n);
        for (size_t i = 0; i < n; i++) {
            double w = element(t, p + i / (size_t)di->block * (size_t)di->bytes,
                               (int)(i % (size_t)di->block));
            if (!(fabs(f[i] - w) <= 1e-5 * (1 + fabs(w))) || g[i] != (double)f[i])
                fail_msg("%s element %zu: %.9g, not %.9g", di->name, i, (double)f[i], w);
        }
    }
    /* The gguf package's values, bit for bit. */
    sd_buf file = {0};
    assert_int_equal(sd_read_file("tests/ref/quants.bin", 0, &file, NULL), SD_OK);
    int types = 0;
    for (const char *q = file.p; q < file.p + file.n; types++) {
        char name[9] = "";
        uint64_t head[3];
        memcpy(name, q, 8);
        memcpy(head, q + 8, 24);
        q += 32;
        sd_dtype t;
        assert_true(sd_dtype_find(name, &t));
        float *f = sd_alloc(head[2], 4, NULL);
        sd_to_f32(t, q, f, head[2]);
        q += head[1];
        for (size_t i = 0; i < head[2]; i++) {
            float w;
            memcpy(&w, q + 4 * i, 4);
            if (bits(w) != bits(f[i]) && !(w == 0 && f[i] == 0))
                fail_msg("%s element %zu: %.9g, not %.9g", name, i, (double)f[i], (double)w);
        }
        q += 4 * head[2];
        sd_free(f);
    }
    assert_int_equal(types, 8);
    sd_buf_free(&file);
}

/* ---- tensors -----------------------------------------------------------------------------------
 */

static sd_tensor *range(sd_dtype t, int nd, const int64_t *shape) {
    sd_tensor *x, *y;
    assert_int_equal(sd_tensor_new(SD_F64, nd, shape, &x, NULL), SD_OK);
    for (int64_t i = 0; i < sd_tensor_numel(x); i++)
        ((double *)x->data)[i] = (double)i;
    assert_int_equal(sd_tensor_cast(x, t, &y, NULL), SD_OK);
    sd_tensor_free(x);
    return y;
}

static void count_release(void *ctx) {
    ++*(int *)ctx;
}

static void test_views(void **state) {
    (void)state;
    sd_err e;
    int64_t s3[3] = {2, 3, 4};
    sd_tensor *t = range(SD_F32, 3, s3), *a, *b, *c, *d;
    assert_int_equal(sd_tensor_numel(t), 24);
    assert_int_equal(sd_tensor_nbytes(t), 96);
    assert_int_equal(sd_tensor_transpose(t, 0, 2, &a, &e), SD_OK); /* (4, 3, 2) */
    assert_false(sd_tensor_is_contiguous(a));
    assert_true(sd_tensor_shares(a, t));
    int64_t at[3] = {3, 1, 1};
    assert_true(sd_tensor_at(a, at) == 1 * 12 + 1 * 4 + 3);
    assert_int_equal(sd_tensor_slice(a, 1, 1, 3, &b, &e), SD_OK); /* (4, 2, 2) */
    assert_int_equal(sd_tensor_select(b, 0, 2, &c, &e), SD_OK);   /* (2, 2) */
    int64_t at2[2] = {1, 1};
    assert_int_equal(c->ndim, 2);
    assert_true(sd_tensor_at(c, at2) == 12 + 8 + 2);
    int64_t flat[1] = {-1}, s24[2] = {6, -1};
    assert_int_equal(sd_tensor_reshape(a, 1, flat, &d, &e), SD_OK); /* a copy */
    assert_false(sd_tensor_shares(d, t));
    assert_true(((float *)d->data)[1] == 12 && ((float *)d->data)[2] == 4);
    sd_tensor_free(d);
    assert_int_equal(sd_tensor_reshape(t, 2, s24, &d, &e), SD_OK); /* a view */
    assert_true(sd_tensor_shares(d, t));
    assert_int_equal(d->shape[1], 4);
    sd_tensor_free(t); /* the views keep the storage */
    sd_tensor_free(a);
    sd_tensor_put(c, at2, -5);
    int64_t deep[3] = {2, 1, 1};
    assert_true(sd_tensor_at(b, deep) == -5);
    sd_tensor_free(b);
    sd_tensor_free(c);
    assert_true(((float *)d->data)[23] == 23);

    /* Bounds. */
    int64_t sh[2] = {2, 4}, st[2] = {20, 1}, neg[2] = {-1, 1}, huge[2] = {INT64_MAX / 4, 1},
            zero[2] = {0, 0};
    assert_int_equal(sd_tensor_view(d, 2, sh, st, 0, &a, &e), SD_OK);
    sd_tensor_free(a);
    assert_int_equal(sd_tensor_view(d, 2, sh, st, 1, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_view(d, 2, sh, neg, 0, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_view(d, 2, sh, neg, 1, &a, &e),
                     SD_OK); /* backwards is fine inside */
    int64_t i10[2] = {1, 0};
    assert_true(sd_tensor_at(a, i10) == 0);
    sd_tensor_free(a);
    assert_int_equal(sd_tensor_view(d, 2, sh, zero, 23, &a, &e), SD_OK);
    assert_true(sd_tensor_at(a, i10) == 23);
    sd_tensor_free(a);
    int64_t many[2] = {9, 1};
    assert_int_equal(sd_tensor_view(d, 2, many, huge, 0, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_view(d, 2, sh, st, INT64_MAX, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_view(d, 2, sh, st, INT64_MIN, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_slice(d, 0, 3, 7, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_slice(d, 2, 0, 1, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_slice(d, 0, 6, 6, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_numel(a), 0);
    sd_tensor_free(a);
    assert_int_equal(sd_tensor_select(d, 0, 6, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_select(d, 0, -1, &a, &e), SD_EINVAL);
    int64_t bad[2] = {5, -1}, two[2] = {-1, -1}, z[2] = {0, -1};
    assert_int_equal(sd_tensor_reshape(d, 2, bad, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_reshape(d, 2, two, &a, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_reshape(d, 2, z, &a, &e), SD_EINVAL);
    sd_tensor_free(d);
    sd_tensor_free(NULL);

    /* Overflowing shapes. */
    int64_t o1[2] = {INT64_C(4294967296), INT64_C(4294967296)}, o2[1] = {INT64_MAX}, o3[1] = {-1},
            o4[3] = {0, INT64_MAX, INT64_MAX},
            o5[6] = {1 << 11, 1 << 11, 1 << 11, 1 << 11, 1 << 11, 1 << 11};
    assert_int_not_equal(sd_tensor_new(SD_F32, 2, o1, &a, &e), SD_OK);
    assert_int_not_equal(sd_tensor_new(SD_F32, 1, o2, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_new(SD_F32, 1, o3, &a, &e), SD_EINVAL);
    assert_int_not_equal(sd_tensor_new(SD_F32, 6, o5, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_new(SD_F32, 7, o1, &a, &e), SD_EINVAL);
    if (sd_tensor_new(SD_F32, 3, o4, &a, &e) == SD_OK) {
        assert_int_equal(sd_tensor_numel(a), 0);
        sd_tensor_free(a);
    }
    int64_t q[2] = {2, 33};
    assert_int_equal(sd_tensor_new(SD_Q4_0, 2, q, &a, &e), SD_EINVAL);

    /* Foreign memory is released once, after the last view. */
    int released = 0;
    float mem[6] = {0, 1, 2, 3, 4, 5};
    int64_t s23[2] = {2, 3};
    assert_int_equal(sd_tensor_wrap(SD_F32, 2, s23, mem, count_release, &released, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_select(a, 0, 1, &b, &e), SD_OK);
    sd_tensor_free(a);
    assert_int_equal(released, 0);
    int64_t i2[1] = {2};
    assert_true(sd_tensor_at(b, i2) == 5);
    sd_tensor_free(b);
    assert_int_equal(released, 1);

    /* Copies between overlapping views: as if all were read first. */
    int64_t s4[2] = {4, 4};
    t = range(SD_F64, 2, s4);
    assert_int_equal(sd_tensor_transpose(t, 0, 1, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_copy_into(t, a, &e), SD_OK);
    int64_t i12[2] = {1, 2};
    assert_true(sd_tensor_at(t, i12) == 9);
    sd_tensor_free(a);
    sd_tensor_free(t);
    t = range(SD_F64, 2, s4);
    assert_int_equal(sd_tensor_slice(t, 0, 0, 3, &a, &e), SD_OK);
    assert_int_equal(sd_tensor_slice(t, 0, 1, 4, &b, &e), SD_OK);
    assert_int_equal(sd_tensor_copy_into(b, a, &e), SD_OK);
    int64_t i30[2] = {3, 0};
    assert_true(sd_tensor_at(t, i30) == 8);
    assert_int_equal(sd_tensor_copy_into(t, a, &e), SD_EINVAL);
    sd_tensor_free(a);
    sd_tensor_free(b);
    sd_tensor_free(t);
}

static void test_cast(void **state) {
    (void)state;
    sd_err e;
    int64_t s[2] = {3, 5};
    for (int from = 0; from <= SD_BOOL; from++)
        for (int to = 0; to <= SD_BOOL; to++) {
            if (from == SD_BOOL || to == SD_BOOL)
                continue;
            sd_tensor *a = range((sd_dtype)from, 2, s), *b, *c, *d;
            assert_int_equal(sd_tensor_cast(a, (sd_dtype)to, &b, &e), SD_OK);
            assert_int_equal(sd_tensor_transpose(a, 0, 1, &c, &e), SD_OK);
            assert_int_equal(sd_tensor_cast(c, (sd_dtype)to, &d, &e), SD_OK);
            for (int64_t i = 0; i < 3; i++)
                for (int64_t j = 0; j < 5; j++) {
                    int64_t ij[2] = {i, j}, ji[2] = {j, i};
                    double want = (double)(5 * i + j);
                    /* E5M2 has three significant bits: 9, 11, 13 are rounded to even. */
                    if ((from == SD_F8_E5M2 || to == SD_F8_E5M2) && want > 8)
                        want = want == 9 ? 8 : want == 11 ? 12 : want == 13 ? 12 : want;
                    assert_true(sd_tensor_at(b, ij) == want);
                    assert_true(sd_tensor_at(d, ji) == want);
                }
            sd_tensor_free(a);
            sd_tensor_free(b);
            sd_tensor_free(c);
            sd_tensor_free(d);
        }
    /* 64-bit integers survive where f64 would not hold them; no quantising. */
    int64_t n2[1] = {2};
    sd_tensor *a, *b;
    assert_int_equal(sd_tensor_new(SD_I64, 1, n2, &a, &e), SD_OK);
    ((int64_t *)a->data)[0] = INT64_MAX;
    ((int64_t *)a->data)[1] = INT64_MIN + 1;
    assert_int_equal(sd_tensor_cast(a, SD_I64, &b, &e), SD_OK);
    assert_memory_equal(b->data, a->data, 16);
    sd_tensor_free(b);
    assert_int_equal(sd_tensor_cast(a, SD_Q8_0, &b, &e), SD_EINVAL);
    sd_tensor_free(a);
}

static void test_stats(void **state) {
    (void)state;
    sd_err e;
    sd_stats st;
    int64_t n[1] = {2000};
    sd_tensor *t, *v;
    double *x;
    for (int k = 0; k < 3; k++) {
        double scale = k == 0 ? 1.0 : k == 1 ? 1e200 : 1e-200;
        assert_int_equal(sd_tensor_new(SD_F64, 1, n, &t, &e), SD_OK);
        x = t->data;
        double m = 0, ss = 0, q = 0;
        for (int i = 0; i < 2000; i++) {
            x[i] = (double)(i * 7919 % 2000) + 1e6;
            m += x[i] / 2000;
            q += x[i] * x[i];
        }
        for (int i = 0; i < 2000; i++)
            ss += (x[i] - m) * (x[i] - m);
        for (int i = 0; i < 2000; i++)
            x[i] *= scale;
        assert_int_equal(sd_tensor_stats(t, &st, &e), SD_OK);
        assert_true(st.n == 2000 && st.n_nan == 0 && st.n_inf == 0);
        assert_true(st.min == 1e6 * scale && st.max == (1e6 + 1999) * scale);
        assert_true(fabs(st.mean / scale / m - 1) < 1e-14);
        if (k == 0)
            assert_true(fabs(st.sd / sqrt(ss / 2000) - 1) < 1e-10);
        assert_true(fabs(st.norm / scale / sqrt(q) - 1) < 1e-13);
        sd_tensor_free(t);
    }
    int64_t s[2] = {3, 4};
    t = range(SD_F32, 2, s);
    ((float *)t->data)[5] = NAN;
    ((float *)t->data)[6] = -INFINITY;
    assert_int_equal(sd_tensor_transpose(t, 0, 1, &v, &e), SD_OK);
    assert_int_equal(sd_tensor_stats(v, &st, &e), SD_OK);
    assert_true(st.n == 12 && st.n_nan == 1 && st.n_inf == 1 && st.min == 0 && st.max == 11);
    assert_true(fabs(st.mean - 5.5) < 1e-15);
    sd_buf b = {0};
    assert_int_equal(sd_tensor_describe(t, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "f32 (3, 4)"));
    assert_non_null(strstr(b.p, "nan 1"));
    assert_non_null(strstr(b.p, "inf 1"));
    sd_buf_clear(&b);
    sd_tensor_free(v);
    sd_tensor_free(t);
    int64_t z[1] = {0};
    assert_int_equal(sd_tensor_new(SD_F32, 1, z, &t, &e), SD_OK);
    assert_int_equal(sd_tensor_stats(t, &st, &e), SD_OK);
    assert_true(st.n == 0 && isnan(st.min) && isnan(st.mean) && isnan(st.norm));
    assert_int_equal(sd_tensor_describe(t, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "empty"));
    sd_tensor_free(t);
    sd_buf_clear(&b);
    assert_int_equal(sd_tensor_new(SD_F64, 0, NULL, &t, &e), SD_OK); /* a scalar */
    sd_tensor_put(t, NULL, 2.5);
    assert_int_equal(sd_tensor_describe(t, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "2.5"));
    sd_tensor_free(t);
    sd_buf_free(&b);
}

static void test_arithmetic(void **state) {
    (void)state;
    sd_err e;
    int64_t s23[2] = {2, 3}, s3[1] = {3}, s21[2] = {2, 1}, s4[1] = {4}, s213[3] = {2, 1, 3};
    sd_tensor *a = range(SD_F32, 2, s23), *b = range(SD_F64, 1, s3), *c = range(SD_I32, 2, s21),
              *d = range(SD_F32, 1, s4), *f = range(SD_F32, 3, s213), *r, *t;
    assert_int_equal(sd_tensor_binary('+', a, b, &r, &e), SD_OK);
    assert_int_equal(r->dtype, SD_F64);
    assert_true(((double *)r->data)[4] == 4 + 1);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_binary('*', a, c, &r, &e), SD_OK);
    assert_int_equal(r->dtype, SD_F32);
    assert_true(((float *)r->data)[2] == 0 && ((float *)r->data)[5] == 5);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_binary('-', f, a, &r, &e), SD_OK); /* (2,1,3) − (2,3) = (2,2,3) */
    assert_int_equal(r->ndim, 3);
    assert_true(((float *)r->data)[3] == -3 && ((float *)r->data)[6] == 3);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_binary('/', a, a, &r, &e), SD_OK);
    assert_true(isnan(((float *)r->data)[0]) && ((float *)r->data)[1] == 1);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_binary('+', a, d, &r, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_binary('%', a, a, &r, &e), SD_EINVAL);

    assert_int_equal(sd_tensor_transpose(a, 0, 1, &t, &e), SD_OK);
    assert_int_equal(sd_tensor_matmul(a, t, &r, &e), SD_OK);
    float want[4] = {5, 14, 14, 50};
    assert_memory_equal(r->data, want, sizeof want);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_matmul(f, t, &r, &e), SD_OK); /* (2,1,3) × (3,2) */
    assert_true(r->ndim == 3 && r->shape[2] == 2 && ((float *)r->data)[3] == 50);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_matmul(a, a, &r, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_matmul(a, d, &r, &e), SD_EINVAL);
    int64_t s20[2] = {2, 0}, s03[2] = {0, 3};
    sd_tensor *x = range(SD_F32, 2, s20), *y = range(SD_F32, 2, s03);
    assert_int_equal(sd_tensor_matmul(x, y, &r, &e), SD_OK); /* inner size 0: zeros */
    assert_true(sd_tensor_numel(r) == 6 && ((float *)r->data)[5] == 0);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_reduce("sum", x, -1, &r, &e), SD_OK);
    assert_true(*(double *)r->data == 0);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_reduce("max", x, -1, &r, &e), SD_EINVAL);
    struct {
        const char *op;
        int dim;
        int64_t n;
        double first, last;
    } red[] = {{"sum", -1, 1, 15, 15},   {"sum", 0, 3, 3, 7}, {"sum", 1, 2, 3, 12},
               {"mean", 0, 3, 1.5, 3.5}, {"max", 1, 2, 2, 5}, {"min", 0, 3, 0, 2}};
    for (size_t i = 0; i < sizeof red / sizeof *red; i++) {
        assert_int_equal(sd_tensor_reduce(red[i].op, a, red[i].dim, &r, &e), SD_OK);
        assert_int_equal(sd_tensor_numel(r), red[i].n);
        assert_true(((double *)r->data)[0] == red[i].first);
        assert_true(((double *)r->data)[red[i].n - 1] == red[i].last);
        sd_tensor_free(r);
    }
    assert_int_equal(sd_tensor_reduce("median", a, -1, &r, &e), SD_EINVAL);
    assert_int_equal(sd_tensor_reduce("sum", a, 2, &r, &e), SD_EINVAL);
    ((float *)a->data)[4] = NAN; /* a NaN is never lost */
    assert_int_equal(sd_tensor_reduce("max", a, -1, &r, &e), SD_OK);
    assert_true(isnan(*(double *)r->data));
    sd_tensor_free(r);
    sd_tensor *all[] = {a, b, c, d, f, t, x, y};
    for (int i = 0; i < 8; i++)
        sd_tensor_free(all[i]);

    /* Quantised tensors take part through their values. */
    int64_t q[2] = {2, 32};
    sd_tensor *z;
    assert_int_equal(sd_tensor_new(SD_Q8_0, 2, q, &z, &e), SD_OK);
    uint8_t *p = z->data;
    for (int r2 = 0; r2 < 2; r2++) {
        uint16_t h = sd_f32_to_f16(0.5f * (float)(r2 + 1));
        memcpy(p + 34 * r2, &h, 2);
        for (int j = 0; j < 32; j++)
            p[34 * r2 + 2 + j] = (uint8_t)(j - 16);
    }
    int64_t i13[2] = {1, 3};
    assert_true(sd_tensor_at(z, i13) == -13);
    assert_int_equal(sd_tensor_binary('+', z, z, &r, &e), SD_OK);
    assert_true(sd_tensor_at(r, i13) == -26);
    sd_tensor_free(r);
    sd_stats st;
    assert_int_equal(sd_tensor_stats(z, &st, &e), SD_OK);
    assert_true(st.min == -16 && st.max == 15);
    assert_int_equal(sd_tensor_cast(z, SD_BF16, &r, &e), SD_OK);
    assert_true(sd_tensor_at(r, i13) == -13);
    sd_tensor_free(r);
    assert_int_equal(sd_tensor_transpose(z, 0, 1, &r, &e), SD_EINVAL);
    sd_tensor_free(z);
}

/* ---- decompositions ----------------------------------------------------------------------------
 */

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0] ? 1 : x[1] < y[1] ? -1 : x[1] > y[1];
}

static void close_to(const char *name, size_t k, const double *got, const double *want) {
    double top = 0;
    for (size_t i = 0; i < k; i++)
        top = fmax(top, fabs(want[i]));
    for (size_t i = 0; i < k; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12 * top))
            fail_msg("%s %zu: %.17g, not %.17g", name, i, got[i], want[i]);
}

static void test_reference(void **state) {
    (void)state;
    sd_buf file = {0};
    sd_err e;
    assert_int_equal(sd_read_file("tests/ref/linalg.bin", 0, &file, &e), SD_OK);
    int records = 0;
    for (const char *q = file.p; q < file.p + file.n; records++) {
        char name[9] = "";
        uint64_t h[3];
        memcpy(name, q, 8);
        memcpy(h, q + 8, 24);
        q += 32;
        size_t m = h[0], n = h[1], k = h[2], kk = m < n ? m : n;
        double *a = doubles(m * n), *want = doubles(k), *got = doubles(2 * k + n),
               *w = doubles(m * n + n * n);
        memcpy(a, q, m * n * 8);
        memcpy(want, q + m * n * 8, k * 8);
        q += (m * n + k) * 8;
        if (strcmp(name, "skew") == 0) {
            assert_int_equal(sd_skew_planes(n, a, got, NULL, NULL, &e), SD_OK);
        } else if (strcmp(name, "eigh") == 0) {
            assert_int_equal(sd_eigh(n, a, got, NULL, &e), SD_OK);
        } else if (strcmp(name, "eig") == 0) {
            assert_int_equal(sd_eig(n, a, w, w + n, NULL, &e), SD_OK);
            double pair[64];
            for (size_t i = 0; i < n; i++) {
                pair[2 * i] = w[i];
                pair[2 * i + 1] = w[n + i];
            }
            qsort(pair, n, 2 * sizeof *pair, by_size);
            for (size_t i = 0; i < n; i++) {
                got[i] = pair[2 * i];
                got[n + i] = pair[2 * i + 1];
            }
        } else if (strcmp(name, "svd") == 0) {
            assert_int_equal(sd_svd(m, n, a, got, NULL, NULL, &e), SD_OK);
        } else {
            assert_string_equal(name, "qr");
            assert_int_equal(sd_qr(m, n, a, w, got, &e), SD_OK);
            for (size_t i = 0; i < kk * n; i++)
                got[i] = fabs(got[i]);
        }
        close_to(name, k, got, want);
        sd_free(a);
        sd_free(want);
        sd_free(got);
        sd_free(w);
    }
    assert_int_equal(records, 28);
    sd_buf_free(&file);
}

/* max |X − Y| */
static double gap(size_t n, const double *x, const double *y) {
    double d = 0;
    for (size_t i = 0; i < n; i++)
        d = fmax(d, fabs(x[i] - y[i]));
    return d;
}

static void test_factors(void **state) {
    (void)state;
    sd_err e;
    size_t sizes[][2] = {{1, 1},   {2, 1},    {1, 2},   {5, 5},   {17, 6},  {6, 17},
                         {64, 33}, {200, 40}, {33, 64}, {40, 40}, {61, 40}, {300, 128}};
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        size_t m = sizes[c][0], n = sizes[c][1], k = m < n ? m : n;
        double *a = gauss(m * n, c), *q = doubles(m * k), *r = doubles(n * n), *p = doubles(m * n),
               *g = doubles(k * k), *s = doubles(k), *vt = doubles(k * n), *id = doubles(k * k),
               *r2 = doubles(n * n), *pad = doubles(m * (n + 3));
        for (size_t i = 0; i < k; i++)
            id[i * k + i] = 1;
        assert_int_equal(sd_qr(m, n, a, q, r, &e), SD_OK);
        sd_gemm_f64(false, false, m, n, k, 1, q, k, r, n, 0, p, n);
        assert_true(gap(m * n, p, a) < 1e-13);
        sd_gemm_f64(true, false, k, k, m, 1, q, k, q, k, 0, g, k);
        assert_true(gap(k * k, g, id) < 1e-13);
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < i; j++)
                assert_true(r[i * n + j] == 0.0);
        assert_int_equal(sd_qr_pivot(m, n, a, n, r, q, &e), SD_OK);
        sd_gemm_f64(false, false, m, n, k, 1, q, k, r, n, 0, p, n);
        assert_true(gap(m * n, p, a) < 1e-13);
        sd_gemm_f64(true, false, k, k, m, 1, q, k, q, k, 0, g, k);
        assert_true(gap(k * k, g, id) < 1e-13);
        for (size_t i = k * n; i < n * n; i++)
            assert_true(r[i] == 0.0); /* padding */
        /* Without Q and with a leading dimension: the same Gram. */
        for (size_t i = 0; i < m; i++)
            memcpy(pad + i * (n + 3), a + i * n, n * sizeof *a);
        assert_int_equal(sd_qr_pivot(m, n, pad, n + 3, r2, NULL, &e), SD_OK);
        double *g1 = doubles(n * n), *g2 = doubles(n * n);
        sd_gram_f64(n, n, r2, n, g1);
        sd_gram_f64(m, n, a, n, g2);
        assert_true(gap(n * n, g1, g2) < 1e-12 * (double)m);
        assert_int_equal(sd_svd(m, n, a, s, q, vt, &e), SD_OK);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < k; j++)
                q[i * k + j] *= s[j];
        sd_gemm_f64(false, false, m, n, k, 1, q, k, vt, n, 0, p, n);
        assert_true(gap(m * n, p, a) < 1e-13 * (double)(m + n));
        for (size_t i = 1; i < k; i++)
            assert_true(s[i] <= s[i - 1] && s[i] >= 0);
        if (m == n) {
            double *w = doubles(n), *v = doubles(n * n), *wi = doubles(n), *av = doubles(n * n);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < i; j++)
                    a[i * n + j] = 1e9; /* the lower triangle is not read */
            assert_int_equal(sd_eigh(n, a, w, v, &e), SD_OK);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < i; j++)
                    a[i * n + j] = a[j * n + i];
            sd_gemm_f64(false, false, n, n, n, 1, a, n, v, n, 0, av, n);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++)
                    assert_true(fabs(av[i * n + j] - w[j] * v[i * n + j]) <
                                1e-13 * (double)(n + 5));
            /* General: A v = λ v with the packed complex pairs. */
            double *b = gauss(n * n, c + 50);
            assert_int_equal(sd_eig(n, b, w, wi, v, &e), SD_OK);
            sd_gemm_f64(false, false, n, n, n, 1, b, n, v, n, 0, av, n);
            for (size_t j = 0; j < n; j++)
                for (size_t i = 0; i < n; i++) {
                    double re = v[i * n + j], want;
                    if (wi[j] == 0)
                        want = w[j] * re;
                    else if (wi[j] > 0)
                        want = w[j] * re - wi[j] * v[i * n + j + 1];
                    else
                        want = w[j] * re - wi[j] * v[i * n + j - 1];
                    assert_true(fabs(av[i * n + j] - want) < 1e-12 * (double)(n + 5));
                }
            sd_free(w);
            sd_free(v);
            sd_free(wi);
            sd_free(av);
            sd_free(b);
        }
        double *all[] = {a, q, r, p, g, s, vt, id, r2, pad, g1, g2};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            sd_free(all[i]);
    }
    /* Nothing. */
    double x[4] = {7, 7, 7, 7};
    assert_int_equal(sd_qr_pivot(0, 2, NULL, 2, x, NULL, &e), SD_OK);
    assert_true(x[0] == 0 && x[3] == 0);
    assert_int_equal(sd_qr_pivot(3, 0, NULL, 0, x, NULL, &e), SD_OK);
    assert_int_equal(sd_eigh(0, NULL, x, NULL, &e), SD_OK);
    assert_int_equal(sd_eig(0, NULL, x, x, NULL, &e), SD_OK);
    assert_int_equal(sd_svd(0, 3, NULL, x, NULL, NULL, &e), SD_OK);
}

/* R from dgeqp3 alone, columns un-permuted. */
static void direct(size_t m, size_t n, const double *a, double *r) {
    double *w = doubles(m * n), *tau = doubles(n);
    int *piv = sd_alloc(n, sizeof *piv, NULL);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            w[j * m + i] = a[i * n + j];
    assert_int_equal(sd_lapack_geqp3(m, n, w, m, piv, tau, NULL), SD_OK);
    memset(r, 0, n * n * sizeof *r);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i <= j; i++)
            r[i * n + (size_t)piv[j] - 1] = w[j * m + i];
    sd_free(w);
    sd_free(tau);
    sd_free(piv);
}

/* B_S of METHOD §3 from R = [R₁ R₂], then its planes. */
static void routing(size_t n, const double *r, double *sigma) {
    size_t d = n / 2;
    double *b = doubles(n * n), *p = doubles(n * n);
    sd_gemm_f64(false, true, n, n, d, 0.5, r, n, r + d, n, 0, p, n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            b[i * n + j] = p[i * n + j] - p[j * n + i];
    assert_int_equal(sd_skew_planes(n, b, sigma, NULL, NULL, NULL), SD_OK);
    sd_free(b);
    sd_free(p);
}

/* Columns of very different scale: the two-step QR is as good column by column as dgeqp3 alone, and
 * small planes come out the same. */
static void test_graded_columns(void **state) {
    (void)state;
    for (int order = 0; order < 3; order++) {
        size_t m = 300, n = 64, d = 32;
        double *a = gauss(m * n, 77), *r = doubles(n * n), *r0 = doubles(n * n), norm[64];
        for (size_t j = 0; j < n; j++) {
            size_t k = order == 0 ? j % d : order == 1 ? d - 1 - j % d : j * 29 % d;
            norm[j] = 0;
            for (size_t i = 0; i < m; i++) {
                a[i * n + j] *= pow(10, -(double)k / 2.5); /* 1 … 1e-12 */
                norm[j] += a[i * n + j] * a[i * n + j];
            }
            norm[j] = sqrt(norm[j]);
        }
        assert_int_equal(sd_qr_pivot(m, n, a, n, r, NULL, NULL), SD_OK);
        direct(m, n, a, r0);
        double *g = doubles(n * n), *g0 = doubles(n * n), *ga = doubles(n * n), worst = 0,
               worst0 = 0;
        sd_gram_f64(n, n, r, n, g);
        sd_gram_f64(n, n, r0, n, g0);
        sd_gram_f64(m, n, a, n, ga);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                worst = fmax(worst, fabs(g[i * n + j] - ga[i * n + j]) / norm[i] / norm[j]);
                worst0 = fmax(worst0, fabs(g0[i * n + j] - ga[i * n + j]) / norm[i] / norm[j]);
            }
        if (!(worst < 1e-14 && worst0 < 1e-14))
            fail_msg("order %d: Gram to %.3g, dgeqp3 alone to %.3g", order, worst, worst0);
        double s[32], s0[32];
        routing(n, r, s);
        routing(n, r0, s0);
        for (size_t p = 0; p < d; p++)
            if (!(fabs(s[p] - s0[p]) <= 1e-9 * s0[p]))
                fail_msg("order %d plane %zu: %.9g, dgeqp3 alone %.9g", order, p, s[p], s0[p]);
        assert_true(s[d - 1] < 1e-18 * s[0]); /* far below u·σ₁: it is there at all */
        double *all[] = {a, r, r0, g, g0, ga};
        for (size_t i = 0; i < 6; i++)
            sd_free(all[i]);
    }
}

static void test_non_finite(void **state) {
    (void)state;
    double start = sd_now(), inf = INFINITY, nan = NAN;
    double m1[9] = {inf, 1, 1, 1, 1, 1, 1, 1, 1}, m2[9] = {1, 0, nan, 0, 0, nan, 0, 0, nan},
           m3[4] = {0, nan, nan, inf};
    const double *ms[3] = {m1, m2, m3};
    size_t ns[3] = {3, 3, 2};
    const char *where[3] = {"row 0, column 0", "row 0, column 2", "row 0, column 1"};
    double w[9], v[9], u[9];
    for (int i = 0; i < 3; i++) {
        sd_err e[6];
        size_t n = ns[i];
        assert_int_equal(sd_eigh(n, ms[i], w, v, &e[0]), SD_ENUMERIC);
        assert_int_equal(sd_eig(n, ms[i], w, u, v, &e[1]), SD_ENUMERIC);
        assert_int_equal(sd_svd(n, n, ms[i], w, u, v, &e[2]), SD_ENUMERIC);
        assert_int_equal(sd_qr(n, n, ms[i], u, v, &e[3]), SD_ENUMERIC);
        assert_int_equal(sd_qr_pivot(n, n, ms[i], n, v, u, &e[4]), SD_ENUMERIC);
        assert_int_equal(sd_svd(n, n, ms[i], w, NULL, NULL, &e[5]), SD_ENUMERIC);
        for (int k = 0; k < 6; k++) {
            assert_non_null(strstr(e[k].text, "non-finite"));
            assert_non_null(strstr(e[k].text, where[i]));
        }
    }
    /* One bad value anywhere among many. */
    double *a = gauss(150 * 7, 1), r[49];
    for (size_t i = 0; i < 150 * 7; i += 11) {
        double keep = a[i];
        a[i] = i % 2 ? nan : -inf;
        assert_int_equal(sd_first_nonfinite_f64(a, 150 * 7), i);
        assert_int_equal(sd_qr_pivot(150, 7, a, 7, r, NULL, NULL), SD_ENUMERIC);
        a[i] = keep;
    }
    a[3] = 1.7976931348623157e308;
    assert_int_equal(sd_first_nonfinite_f64(a, 150 * 7), 150 * 7);
    float f[130] = {0};
    for (size_t i = 0; i < 130; i++) {
        f[i] = i % 2 ? NAN : INFINITY;
        assert_int_equal(sd_first_nonfinite_f32(f, 130), i);
        f[i] = 3.4028234e38f;
    }
    assert_int_equal(sd_first_nonfinite_f32(f, 130), 130);
    sd_free(a);
    assert_true(sd_now() - start < 2);
}

static void test_scales(void **state) {
    (void)state;
    double scale[2] = {1e160, 1e-160};
    size_t m = 90, n = 20;
    double *a = gauss(m * n, 4), *b = doubles(m * n), r[400], r1[400], s[20], s1[20], wr[20],
           wi[20], w1[20], x1[20];
    assert_int_equal(sd_qr_pivot(m, n, a, n, r1, NULL, NULL), SD_OK);
    assert_int_equal(sd_svd(m, n, a, s1, NULL, NULL, NULL), SD_OK);
    assert_int_equal(sd_eig(n, a, w1, x1, NULL, NULL), SD_OK);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < m * n; i++)
            b[i] = a[i] * scale[k];
        assert_int_equal(sd_qr_pivot(m, n, b, n, r, NULL, NULL), SD_OK);
        for (size_t i = 0; i < n * n; i++)
            assert_true(fabs(r[i] / scale[k] - r1[i]) < 1e-12);
        assert_int_equal(sd_svd(m, n, b, s, NULL, NULL, NULL), SD_OK);
        for (size_t i = 0; i < n; i++)
            assert_true(fabs(s[i] / scale[k] - s1[i]) < 1e-12);
        assert_int_equal(sd_eig(n, b, wr, wi, NULL, NULL), SD_OK);
        double top = 0, top1 = 0;
        for (size_t i = 0; i < n; i++) {
            top = fmax(top, hypot(wr[i] / scale[k], wi[i] / scale[k]));
            top1 = fmax(top1, hypot(w1[i], x1[i]));
        }
        assert_true(fabs(top - top1) < 1e-12);
    }
    sd_free(a);
    sd_free(b);
}

static void test_blas(void **state) {
    (void)state;
    /* Products of nothing are zero, and beta still applies. */
    double c[4] = {1, 2, 3, 4}, y[2] = {1, 2}, g[4] = {9, 9, 9, 9};
    float cf[4] = {1, 2, 3, 4};
    sd_gemm_f64(false, false, 2, 2, 0, 1, NULL, 0, NULL, 0, 0.5, c, 2);
    assert_true(c[0] == 0.5 && c[3] == 2);
    sd_gemm_f32(false, true, 2, 2, 0, 1, NULL, 0, NULL, 0, 0, cf, 2);
    assert_true(cf[0] == 0 && cf[3] == 0);
    sd_gemv_f64(false, 2, 0, 1, NULL, 0, NULL, 3, y);
    assert_true(y[0] == 3 && y[1] == 6);
    sd_gram_f64(0, 2, NULL, 2, g);
    assert_true(g[0] == 0 && g[3] == 0);
    assert_true(sd_dot_f64(0, NULL, NULL) == 0 && sd_nrm2_f64(0, NULL) == 0);
    double a[6] = {1, 2, 3, 4, 5, 6}, x[3] = {1, 0, -1};
    sd_gemv_f64(false, 2, 3, 1, a, 3, x, 0, y);
    assert_true(y[0] == -2 && y[1] == -2);
    double gram[9];
    sd_gram_f64(2, 3, a, 3, gram);
    assert_true(gram[0] == 17 && gram[1] == 22 && gram[3] == 22 && gram[8] == 45);
    int old = sd_blas_threads(1);
    assert_int_equal(sd_blas_threads(old), 1);
    assert_non_null(strstr(sd_blas_config(), "OpenBLAS"));
}

/* ---- decompositions inside sd_parallel, one BLAS thread each
 * ------------------------------------- */

static sd_status head(void *ctx, size_t i, int worker, sd_err *err) {
    (void)worker;
    double *out = ctx, *a = gauss(200 * 32, i), r[32 * 32], s[16];
    sd_status st = sd_qr_pivot(200, 32, a, 32, r, NULL, err);
    if (st == SD_OK) {
        routing(32, r, s);
        out[i] = s[0];
    }
    sd_free(a);
    return st;
}

static void test_parallel(void **state) {
    (void)state;
    double one_thread[64], many[64];
    int old = sd_blas_threads(1);
    assert_int_equal(sd_parallel(64, 1, head, one_thread, NULL), SD_OK);
    assert_int_equal(sd_parallel(64, 4, head, many, NULL), SD_OK);
    sd_blas_threads(old);
    assert_memory_equal(one_thread, many, sizeof many); /* bit for bit */
}

static void dump(FILE *f, const char *name, size_t n, const double *a, size_t k, const double *r) {
    char tag[8] = "";
    memcpy(tag, name, strlen(name));
    uint64_t h[3] = {n, n, k};
    fwrite(tag, 1, 8, f);
    fwrite(h, 8, 3, f);
    fwrite(a, 8, n * n, f);
    fwrite(r, 8, k, f);
}

static void test_dump(void **state) {
    (void)state;
    const char *path = getenv("SD_TEST_DUMP");
    if (!path || !*path)
        skip();
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    size_t n = 1280;
    double *g = gauss(n * n, 1), *b = doubles(n * n), *w = doubles(2 * n);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                b[i * n + j] = g[i * n + j] + sign * g[j * n + i];
        if (sign < 0)
            assert_int_equal(sd_skew_planes(n, b, w, NULL, NULL, NULL), SD_OK);
        else
            assert_int_equal(sd_eigh(n, b, w, NULL, NULL), SD_OK);
        dump(f, sign < 0 ? "skew" : "eigh", n, b, sign < 0 ? n / 2 : n, w);
    }
    assert_int_equal(sd_svd(n, n, g, w, NULL, NULL, NULL), SD_OK);
    dump(f, "svd", n, g, n, w);
    assert_int_equal(sd_eig(n, g, w, w + n, NULL, NULL), SD_OK);
    dump(f, "eig", n, g, 2 * n, w);
    fclose(f);
    sd_free(g);
    sd_free(b);
    sd_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),   cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_quants),     cmocka_unit_test(test_views),
        cmocka_unit_test(test_cast),       cmocka_unit_test(test_stats),
        cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_factors),    cmocka_unit_test(test_graded_columns),
        cmocka_unit_test(test_non_finite), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_blas),       cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_dump),
    };
    return cmocka_run_group_tests_name("num", tests, NULL, NULL);
}
