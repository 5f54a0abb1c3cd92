#include "num/dtype.h"

#include <math.h>
#include <string.h>

static const sd_dtype_info info[SD_DTYPE_COUNT] = {
    [SD_F32] = {"F32", 1, 4, true, false},         [SD_F64] = {"F64", 1, 8, true, false},
    [SD_F16] = {"F16", 1, 2, true, false},         [SD_BF16] = {"BF16", 1, 2, true, false},
    [SD_F8_E4M3] = {"F8_E4M3", 1, 1, true, false}, [SD_F8_E5M2] = {"F8_E5M2", 1, 1, true, false},
    [SD_I8] = {"I8", 1, 1, false, false},          [SD_I16] = {"I16", 1, 2, false, false},
    [SD_I32] = {"I32", 1, 4, false, false},        [SD_I64] = {"I64", 1, 8, false, false},
    [SD_U8] = {"U8", 1, 1, false, false},          [SD_U16] = {"U16", 1, 2, false, false},
    [SD_U32] = {"U32", 1, 4, false, false},        [SD_U64] = {"U64", 1, 8, false, false},
    [SD_BOOL] = {"BOOL", 1, 1, false, false},      [SD_Q4_0] = {"Q4_0", 32, 18, true, true},
    [SD_Q4_1] = {"Q4_1", 32, 20, true, true},      [SD_Q5_0] = {"Q5_0", 32, 22, true, true},
    [SD_Q5_1] = {"Q5_1", 32, 24, true, true},      [SD_Q8_0] = {"Q8_0", 32, 34, true, true},
    [SD_Q4_K] = {"Q4_K", 256, 144, true, true},    [SD_Q5_K] = {"Q5_K", 256, 176, true, true},
    [SD_Q6_K] = {"Q6_K", 256, 210, true, true},
};

const sd_dtype_info *sd_dtype_get(sd_dtype t) {
    return &info[t];
}

bool sd_dtype_find(const char *name, sd_dtype *out) {
    for (int i = 0; i < SD_DTYPE_COUNT; i++)
        if (strcmp(info[i].name, name) == 0) {
            *out = (sd_dtype)i;
            return true;
        }
    return false;
}

bool sd_dtype_bytes(sd_dtype t, uint64_t n, uint64_t *out) {
    uint64_t block = (uint64_t)info[t].block, bytes = (uint64_t)info[t].bytes;
    if (n % block != 0 || n / block > UINT64_MAX / bytes)
        return false;
    *out = n / block * bytes;
    return true;
}

/* ---- small floats ---------------------------------------------------------------------------- */

static float bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float sd_f16_to_f32(uint16_t h) {
    /* Exponent and mantissa moved into place and scaled by 2^112; branch-free but for inf/nan. */
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, em = (uint32_t)(h & 0x7FFF) << 13;
    if (em >= 0x0F800000u)
        return bits_f32(sign | 0x7F800000u | (em & 0x7FFFFF));
    return bits_f32(sign | f32_bits(bits_f32(em) * 0x1p112f));
}

uint16_t sd_f32_to_f16(float x) {
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x1FF));
    if (a >= 0x477FF000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000u) { /* subnormal result: adding 0.5 aligns and rounds to nearest even */
        float r = bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - 0x3F000000u));
    }
    uint32_t r = a - 0x38000000u + 0xFFF + (a >> 13 & 1);
    return (uint16_t)(sign | r >> 13);
}

float sd_bf16_to_f32(uint16_t h) {
    return bits_f32((uint32_t)h << 16);
}

uint16_t sd_f32_to_bf16(float x) {
    uint32_t u = f32_bits(x);
    if ((u & 0x7FFFFFFF) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* e: exponent bits, m: mantissa bits. E4M3 is the "fn" variant: no infinity, 0x7F is NaN. */
static float f8_to_f32(uint8_t b, int e, int m, bool fn) {
    int bias = (1 << (e - 1)) - 1, ex = b >> m & ((1 << e) - 1), man = b & ((1 << m) - 1);
    float s = b & 0x80 ? -1.0f : 1.0f;
    if (fn ? (b & 0x7F) == 0x7F : ex == (1 << e) - 1)
        return fn || man ? s * NAN : s * INFINITY;
    return s *
           (ex ? ldexpf((float)((1 << m) + man), ex - bias - m) : ldexpf((float)man, 1 - bias - m));
}

static uint8_t f32_to_f8(float x, int e, int m, bool fn) {
    uint8_t sign = signbit(x) ? 0x80 : 0;
    if (isnan(x))
        return (uint8_t)(sign | 0x7F);
    int bias = (1 << (e - 1)) - 1;
    float a = fabsf(x), top = fn ? 448.0f : 57344.0f;
    /* Halfway to the next value would round up to it: overflow. */
    float limit = fn ? 464.0f : 61440.0f;
    if (a > limit || (!fn && a == limit))
        return (uint8_t)(sign | (fn ? 0x7F : 0x7C));
    if (a > top)
        a = top;
    if (a == 0.0f)
        return sign;
    int ex;
    frexpf(a, &ex);
    ex -= 1;
    if (ex < 1 - bias)
        ex = 1 - bias;
    float q = rintf(ldexpf(a, m - ex)); /* nearest even */
    if (q >= (float)(2 << m)) {
        q *= 0.5f;
        ex++;
    }
    int man = (int)q;
    return (uint8_t)(sign | (man < 1 << m ? man : ((ex + bias) << m) + man - (1 << m)));
}

/* ---- quantised blocks (ggml's layouts) ------------------------------------------------------- */

static float half_at(const uint8_t *p) {
    return sd_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 32 weights: [d f16][m f16 if `min`][high bits u32 if `five`][16 bytes of nibbles]; the low
 * nibbles are weights 0..15, the high ones 16..31. */
static void block32(const uint8_t *b, float *y, bool min, bool five) {
    float d = half_at(b), m = min ? half_at(b + 2) : 0.0f;
    const uint8_t *p = b + (min ? 4 : 2);
    uint32_t high = 0;
    if (five) {
        high = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        p += 4;
    }
    int off = min ? 0 : five ? 16 : 8;
    for (int j = 0; j < 16; j++) {
        int lo = p[j] & 15, hi = p[j] >> 4;
        if (five) {
            lo |= (int)(high >> j & 1) << 4;
            hi |= (int)(high >> (j + 16) & 1) << 4;
        }
        y[j] = d * (float)(lo - off) + m;
        y[j + 16] = d * (float)(hi - off) + m;
    }
}

static void block_q8_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)b[2 + j];
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes. */
static void k_scale(const uint8_t *q, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(q[j] & 63);
        *min = (float)(q[j + 4] & 63);
    } else {
        *scale = (float)((q[j + 4] & 15) | (q[j - 4] >> 6) << 4);
        *min = (float)(q[j + 4] >> 4 | (q[j] >> 6) << 4);
    }
}

static void block_q45_k(const uint8_t *b, float *y, bool five) {
    float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *high = b + 16, *q = b + (five ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        float s, m;
        k_scale(b + 4, j, &s, &m);
        s *= d;
        m *= dmin;
        const uint8_t *p = q + j / 2 * 32;
        for (int l = 0; l < 32; l++) {
            int v = j % 2 ? p[l] >> 4 : p[l] & 15;
            if (five)
                v |= (high[l] >> j & 1) << 4;
            y[32 * j + l] = s * (float)v - m;
        }
    }
}

static void block_q6_k(const uint8_t *b, float *y) {
    float d = half_at(b + 208);
    for (int h = 0; h < 2; h++) {
        const uint8_t *lo = b + 64 * h, *hi = b + 128 + 32 * h;
        const int8_t *sc = (const int8_t *)(b + 192 + 8 * h);
        for (int k = 0; k < 4; k++)
            for (int l = 0; l < 32; l++) {
                int n = lo[l + 32 * (k & 1)];
                int v = (k < 2 ? n & 15 : n >> 4) | (hi[l] >> (2 * k) & 3) << 4;
                y[128 * h + 32 * k + l] = d * (float)sc[2 * k + l / 16] * (float)(v - 32);
            }
    }
}

static void block_to_f32(sd_dtype t, const uint8_t *b, float *y) {
    switch (t) {
    case SD_Q4_0:
        block32(b, y, false, false);
        break;
    case SD_Q4_1:
        block32(b, y, true, false);
        break;
    case SD_Q5_0:
        block32(b, y, false, true);
        break;
    case SD_Q5_1:
        block32(b, y, true, true);
        break;
    case SD_Q8_0:
        block_q8_0(b, y);
        break;
    case SD_Q4_K:
        block_q45_k(b, y, false);
        break;
    case SD_Q5_K:
        block_q45_k(b, y, true);
        break;
    case SD_Q6_K:
        block_q6_k(b, y);
        break;
    default:
        break;
    }
}

/* ---- conversions ----------------------------------------------------------------------------- */

/* One loop a type; memcpy because the source may be unaligned. */
#define EACH(ctype_, expr_)                     \
    for (size_t i = 0; i < n; i++) {            \
        ctype_ v;                               \
        memcpy(&v, p + i * sizeof v, sizeof v); \
        dst[i] = (expr_);                       \
    }                                           \
    return

#define PLAIN(real_)                                     \
    switch (t) {                                         \
    case SD_F32:                                         \
        EACH(float, (real_)v);                           \
    case SD_F64:                                         \
        EACH(double, (real_)v);                          \
    case SD_F16:                                         \
        EACH(uint16_t, (real_)sd_f16_to_f32(v));         \
    case SD_BF16:                                        \
        EACH(uint16_t, (real_)sd_bf16_to_f32(v));        \
    case SD_F8_E4M3:                                     \
        EACH(uint8_t, (real_)f8_to_f32(v, 4, 3, true));  \
    case SD_F8_E5M2:                                     \
        EACH(uint8_t, (real_)f8_to_f32(v, 5, 2, false)); \
    case SD_I8:                                          \
        EACH(int8_t, (real_)v);                          \
    case SD_I16:                                         \
        EACH(int16_t, (real_)v);                         \
    case SD_I32:                                         \
        EACH(int32_t, (real_)v);                         \
    case SD_I64:                                         \
        EACH(int64_t, (real_)v);                         \
    case SD_U8:                                          \
        EACH(uint8_t, (real_)v);                         \
    case SD_U16:                                         \
        EACH(uint16_t, (real_)v);                        \
    case SD_U32:                                         \
        EACH(uint32_t, (real_)v);                        \
    case SD_U64:                                         \
        EACH(uint64_t, (real_)v);                        \
    case SD_BOOL:                                        \
        EACH(uint8_t, (real_)(v != 0));                  \
    default:                                             \
        break;                                           \
    }

void sd_to_f32(sd_dtype t, const void *src, float *dst, size_t n) {
    const uint8_t *p = src;
    if (t == SD_F32) {
        if (n)
            memcpy(dst, src, n * sizeof *dst);
        return;
    }
    PLAIN(float)
    size_t block = (size_t)info[t].block, bytes = (size_t)info[t].bytes;
    for (size_t i = 0; i + block <= n; i += block, p += bytes)
        block_to_f32(t, p, dst + i);
}

void sd_to_f64(sd_dtype t, const void *src, double *dst, size_t n) {
    const uint8_t *p = src;
    PLAIN(double)
    size_t block = (size_t)info[t].block, bytes = (size_t)info[t].bytes;
    float y[256];
    for (size_t i = 0; i + block <= n; i += block, p += bytes) {
        block_to_f32(t, p, y);
        for (size_t j = 0; j < block; j++)
            dst[i + j] = (double)y[j];
    }
}

/* Saturating, rounding to nearest even; NaN becomes 0. The limits are exact in double. */
static double clamp_int(float x, double lo, double hi) {
    if (isnan(x))
        return 0.0;
    double r = rint((double)x);
    return r < lo ? lo : r > hi ? hi : r;
}

#define STORE(ctype_, expr_)                    \
    for (size_t i = 0; i < n; i++) {            \
        float x = src[i];                       \
        ctype_ v = (ctype_)(expr_);             \
        memcpy(p + i * sizeof v, &v, sizeof v); \
    }                                           \
    return SD_OK

sd_status sd_from_f32(sd_dtype t, const float *src, void *dst, size_t n, sd_err *err) {
    uint8_t *p = dst;
    switch (t) {
    case SD_F32:
        STORE(float, x);
    case SD_F64:
        STORE(double, x);
    case SD_F16:
        STORE(uint16_t, sd_f32_to_f16(x));
    case SD_BF16:
        STORE(uint16_t, sd_f32_to_bf16(x));
    case SD_F8_E4M3:
        STORE(uint8_t, f32_to_f8(x, 4, 3, true));
    case SD_F8_E5M2:
        STORE(uint8_t, f32_to_f8(x, 5, 2, false));
    case SD_I8:
        STORE(int8_t, clamp_int(x, -128, 127));
    case SD_I16:
        STORE(int16_t, clamp_int(x, -32768, 32767));
    case SD_I32:
        STORE(int32_t, clamp_int(x, -2147483648.0, 2147483647.0));
    case SD_I64:
        STORE(int64_t, clamp_int(x, -0x1p63, 0x1.fffffffffffffp62));
    case SD_U8:
        STORE(uint8_t, clamp_int(x, 0, 255));
    case SD_U16:
        STORE(uint16_t, clamp_int(x, 0, 65535));
    case SD_U32:
        STORE(uint32_t, clamp_int(x, 0, 4294967295.0));
    case SD_U64:
        STORE(uint64_t, clamp_int(x, 0, 0x1.fffffffffffffp63));
    case SD_BOOL:
        STORE(uint8_t, x != 0.0f);
    default:
        return sd_fail(err, SD_EINVAL, "cannot convert to %s", info[t].name);
    }
}
