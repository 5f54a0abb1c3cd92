#include "io_build.h"

#include <math.h>

#define PI 3.14159265358979323846

enum { U8, I8, U16, I16, U32, I32, F32T, BOOLT, STR, ARR, U64, I64, F64T };

/* A file with one F32 tensor "w" of 4 elements 1..4 and the alignment key as given. */
static const char *aligned(uint32_t type, uint64_t value, size_t real) {
    sd_buf b = {0};
    put_head(&b, 3, 1, type == 99 ? 0 : 1);
    if (type == STR) {
        put_key(&b, "general.alignment", STR);
        put_str(&b, "32");
    } else if (type != 99) {
        put_key(&b, "general.alignment", type);
        sd_buf_put(&b, &value, type == U64 ? 8 : 4);
    }
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    put_pad(&b, real);
    sd_buf_put(&b, (float[]){1, 2, 3, 4}, 16);
    return flush_file("a.gguf", &b);
}

static void check_w(sd_container *c) {
    sd_tensor *t = read_f64(c, "w");
    for (int i = 0; i < 4; i++) {
        assert_true(((double *)t->data)[i] == i + 1);
    }
    sd_tensor_free(t);
    sd_container_unref(c);
}

static void test_alignment(void **state) { /* G01 */
    (void)state;
    check_w(opened(aligned(99, 0, 32)));
    check_w(opened(aligned(U32, 32, 32)));
    check_w(opened(aligned(U32, 64, 64)));
    check_w(opened(aligned(U32, 1, 1)));
    refused(aligned(U32, 0, 32), SD_EFORMAT, "general.alignment", "power of two", "got 0", NULL);
    refused(aligned(U32, 3, 32), SD_EFORMAT, "general.alignment", "got 3", NULL);
    refused(aligned(U32, 24, 32), SD_EFORMAT, "general.alignment", "got 24", NULL);
    refused(aligned(U32, UINT32_C(1) << 31, 32), SD_EFORMAT, "tensor w", "16 data bytes", NULL);
    refused(aligned(I32, 32, 32), SD_EFORMAT, "general.alignment", "UINT32", NULL);
    refused(aligned(U64, 32, 32), SD_EFORMAT, "general.alignment", "UINT32", NULL);
    refused(aligned(STR, 0, 32), SD_EFORMAT, "general.alignment", "UINT32", NULL);
}

static const char *shaped(uint32_t ndim, const uint64_t *ne, uint32_t type, uint64_t offset,
                          size_t data) {
    sd_buf b = {0};
    put_head(&b, 2, 1, 0);
    put_tensor(&b, "w", ndim, ne, type, offset);
    put_pad(&b, 32);
    for (size_t i = 0; i < data; i++) {
        sd_buf_putc(&b, 0);
    }
    return flush_file("s.gguf", &b);
}

static void test_lying_dims(void **state) { /* G02 */
    (void)state;
    refused(shaped(3, (uint64_t[]){4, 1073741823, 1073741825}, 0, 0, 320), SD_EFORMAT, "tensor w",
            "18446744073709551600", "320", NULL);
    refused(shaped(2, (uint64_t[]){(UINT64_C(1) << 42) + 1, UINT64_C(1) << 42}, 0, 0, 64),
            SD_EFORMAT, "overflow", NULL);
    refused(shaped(1, (uint64_t[]){(UINT64_C(1) << 42) + 1}, 0, 0, 64), SD_EFORMAT, "tensor w",
            "17592186044420", NULL);
    refused(shaped(1, (uint64_t[]){UINT64_MAX}, 0, 0, 64), SD_EFORMAT, "dimension 0", NULL);
    refused(shaped(1, (uint64_t[]){UINT64_C(1) << 62}, 0, 0, 64), SD_EFORMAT, "overflow", NULL);
    refused(shaped(4, (uint64_t[]){65536, 65536, 65536, 65536}, 0, 0, 64), SD_EFORMAT, "overflow",
            NULL);
    refused(shaped(5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0, 64), SD_EFORMAT, "5 dimensions", NULL);
    refused(shaped(1, (uint64_t[]){4}, 0, 16, 64), SD_EFORMAT, "offset 16", "alignment 32", NULL);
    refused(shaped(1, (uint64_t[]){4}, 0, UINT64_MAX - 31, 64), SD_EFORMAT, "tensor w", NULL);
    refused(shaped(1, (uint64_t[]){4}, 0, 64, 64), SD_EFORMAT, "needs 16 data bytes", NULL);
    refused(shaped(1, (uint64_t[]){4}, 0, 0, 15), SD_EFORMAT, "needs 16 data bytes",
            "the file has 15", NULL);
    refused(shaped(2, (uint64_t[]){48, 2}, 2, 0, 64), SD_EFORMAT, "rows of 48", "blocks of 32",
            NULL);
    sd_container *c = opened(shaped(2, (uint64_t[]){0, UINT64_C(1) << 62}, 0, 0, 0));
    assert_int_equal(sd_container_at(c, 0)->bytes, 0);
    sd_container_unref(c);
}

static void test_overlap(void **state) {
    (void)state;
    sd_buf b = {0};
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&b, "v", 1, (uint64_t[]){16}, 0, 32);
    put_pad(&b, 32);
    for (int i = 0; i < 96; i++) {
        sd_buf_putc(&b, 0);
    }
    refused(flush_file("o.gguf", &b), SD_EFORMAT, "overlap", "tensor v", "tensor k", NULL);
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){8}, 0, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){8}, 0, 32);
    put_pad(&b, 32);
    for (int i = 0; i < 64; i++) {
        sd_buf_putc(&b, 0);
    }
    refused(flush_file("o.gguf", &b), SD_EFORMAT, "tensor k: named twice", NULL);
}

/* `value` is a typed value; a normal key and a tensor follow it. */
static const char *with_value(uint32_t type, const void *value, size_t n) {
    sd_buf b = {0};
    put_head(&b, 3, 1, 3);
    put_key(&b, "odd", type);
    sd_buf_put(&b, value, n);
    put_key(&b, "toy.block_count", U32); /* before general.architecture */
    put_u32(&b, 7);
    put_key(&b, "general.architecture", STR);
    put_str(&b, "toy");
    put_tensor(&b, "w", 1, (uint64_t[]){4}, 0, 0);
    put_pad(&b, 32);
    sd_buf_put(&b, (float[]){1, 2, 3, 4}, 16);
    return flush_file("v.gguf", &b);
}

static json_t *odd_of(sd_container *c) { /* after checking what follows it */
    json_t *m = sd_container_meta(c);
    assert_int_equal(json_integer_value(json_object_get(m, "toy.block_count")), 7);
    assert_string_equal(json_string_value(json_object_get(m, "general.architecture")), "toy");
    return json_object_get(m, "odd");
}

static void test_values(void **state) { /* G04 */
    (void)state;
    sd_container *c;
    json_t *v;
    const uint64_t big = UINT64_MAX, mid = INT64_MAX;
    const int64_t neg = INT64_MIN;
    const double pi = PI, inf = (double)INFINITY;
    const float half = 0.5f, nan_ = NAN;
#define VALUE(type_, x_) (c = opened(with_value(type_, &(x_), sizeof(x_))), v = odd_of(c))
#define DONE() check_w(c)
    VALUE(U64, big);
    assert_string_equal(json_string_value(v), "18446744073709551615");
    DONE();
    VALUE(U64, mid);
    assert_true(json_integer_value(v) == INT64_MAX);
    DONE();
    VALUE(I64, neg);
    assert_true(json_integer_value(v) == INT64_MIN);
    DONE();
    VALUE(F64T, pi);
    assert_true(json_real_value(v) == PI);
    DONE();
    VALUE(F64T, inf);
    assert_string_equal(json_string_value(v), "inf");
    DONE();
    VALUE(F32T, half);
    assert_true(json_real_value(v) == 0.5);
    DONE();
    VALUE(F32T, nan_);
    assert_string_equal(json_string_value(v), "nan");
    DONE();
    const int8_t i8 = -128;
    const uint8_t u8 = 255, yes = 1, odd_bool = 2;
    const int16_t i16 = -32768;
    const uint16_t u16 = 65535;
    const int32_t i32 = INT32_MIN;
    const uint32_t u32 = UINT32_MAX;
    VALUE(I8, i8);
    assert_int_equal(json_integer_value(v), -128);
    DONE();
    VALUE(U8, u8);
    assert_int_equal(json_integer_value(v), 255);
    DONE();
    VALUE(I16, i16);
    assert_int_equal(json_integer_value(v), -32768);
    DONE();
    VALUE(U16, u16);
    assert_int_equal(json_integer_value(v), 65535);
    DONE();
    VALUE(I32, i32);
    assert_true(json_integer_value(v) == INT32_MIN);
    DONE();
    VALUE(U32, u32);
    assert_true(json_integer_value(v) == UINT32_MAX);
    DONE();
    VALUE(BOOLT, yes);
    assert_true(json_is_true(v));
    DONE();
    refused(with_value(BOOLT, &odd_bool, 1), SD_EFORMAT, "key odd", "boolean", NULL);
    refused(with_value(13, &big, 8), SD_EFORMAT, "key odd", "unknown value type 13", NULL);
#undef VALUE
}

static void test_arrays(void **state) { /* G04 */
    (void)state;
    sd_buf b = {0};
    /* [[1, 2], ["x", ""], []] : arrays of different types inside an array */
    put_u32(&b, ARR);
    put_u64(&b, 3);
    put_u32(&b, U8);
    put_u64(&b, 2);
    sd_buf_put(&b, "\1\2", 2);
    put_u32(&b, STR);
    put_u64(&b, 2);
    put_str(&b, "x");
    put_str(&b, "");
    put_u32(&b, F64T);
    put_u64(&b, 0);
    sd_container *c = opened(with_value(ARR, b.p, b.n));
    json_t *want = json_pack("[[i,i],[s,s],[]]", 1, 2, "x", "");
    assert_true(json_equal(odd_of(c), want));
    json_decref(want);
    DONE();
    sd_buf_clear(&b);
    put_u32(&b, 77);
    put_u64(&b, 0);
    refused(with_value(ARR, b.p, b.n), SD_EFORMAT, "key odd", "unknown value type 77", NULL);
    sd_buf_clear(&b);
    put_u32(&b, U64);
    put_u64(&b, UINT64_C(1) << 61); /* × 8 = 2^64 */
    refused(with_value(ARR, b.p, b.n), SD_EFORMAT, "key odd", "2305843009213693952", NULL);
    sd_buf_clear(&b);
    put_u32(&b, STR);
    put_u64(&b, 1000000);
    refused(with_value(ARR, b.p, b.n), SD_EFORMAT, "key odd", "1000000", NULL);
    sd_buf_clear(&b);
    for (int i = 0; i < 9; i++) {
        put_u32(&b, ARR);
        put_u64(&b, 1);
    }
    put_u32(&b, U8);
    put_u64(&b, 0);
    refused(with_value(ARR, b.p, b.n), SD_EFORMAT, "nested", NULL);
    /* an unknown type deep inside is refused too */
    sd_buf_clear(&b);
    put_u32(&b, ARR);
    put_u64(&b, 1);
    put_u32(&b, 14);
    put_u64(&b, 0);
    refused(with_value(ARR, b.p, b.n), SD_EFORMAT, "unknown value type 14", NULL);
    sd_buf_free(&b);
}

static void test_odd_strings(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n;
        bool text;
    } in[] = {{"caf\xc3\xa9", 5, true}, {"\xff\xfe", 2, false},
              {"a\0b", 3, false},       {"", 0, true},
              {"\xe2\x82", 2, false},   {"\xed\xa0\x80", 3, false}};
    sd_buf b = {0};
    put_u32(&b, STR);
    put_u64(&b, 6);
    for (int i = 0; i < 6; i++) {
        put_u64(&b, in[i].n);
        sd_buf_put(&b, in[i].s, in[i].n);
    }
    sd_container *c = opened(with_value(ARR, b.p, b.n));
    json_t *v = odd_of(c);
    assert_string_equal(json_string_value(json_object_get(json_array_get(v, 1), "bytes")), "fffe");
    for (size_t i = 0; i < 6; i++) {
        json_t *e = json_array_get(v, i);
        assert_int_equal(json_is_string(e), in[i].text);
        sd_buf_clear(&b);
        assert_true(sd_meta_bytes(e, &b));
        assert_int_equal(b.n, in[i].n);
        if (b.n) {
            assert_memory_equal(b.p, in[i].s, b.n);
        }
    }
    sd_buf_clear(&b);
    json_t *no = json_pack("{s:s}", "bytes", "0g");
    assert_false(sd_meta_bytes(no, &b));
    assert_false(sd_meta_bytes(v, &b));
    assert_int_equal(b.n, 0);
    json_decref(no);
    DONE();
    sd_buf_free(&b);
}

static void test_lying_headers(void **state) {
    (void)state;
    sd_buf b = {0};
    put_head(&b, 3, 0, 0);
    sd_container *c = opened(flush_file("e.gguf", &b));
    assert_int_equal(sd_container_count(c), 0);
    assert_string_equal(sd_container_format(c), "gguf");
    sd_container_unref(c);
    put_head(&b, 1, 0, 0);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "version 1", NULL);
    put_head(&b, 4, 0, 0);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "version 4", NULL);
    put_head(&b, UINT32_C(3) << 24, 0, 0);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "big-endian", NULL);
    put_head(&b, 3, UINT64_MAX, 0);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "18446744073709551615 tensors", NULL);
    put_head(&b, 3, 0, UINT64_MAX);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "18446744073709551615 key-values", NULL);
    sd_buf_puts(&b, "GGUF");
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "cut short", NULL);
    put_head(&b, 3, 0, 1);
    put_u64(&b, UINT64_MAX); /* a key of that length */
    put_u64(&b, 0);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "18446744073709551615", NULL);
    put_head(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_key(&b, "twice", U32);
        put_u32(&b, 1);
    }
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "key twice", "given twice", NULL);
    put_head(&b, 3, 0, 1);
    put_key(&b, "\xff", U32);
    put_u32(&b, 1);
    refused(flush_file("e.gguf", &b), SD_EFORMAT, "key 0", NULL);
    /* cut at every byte: always an error, never a crash */
    put_head(&b, 3, 1, 2);
    put_key(&b, "general.name", STR);
    put_str(&b, "toy");
    put_key(&b, "list", ARR);
    put_u32(&b, I32);
    put_u64(&b, 3);
    sd_buf_put(&b, (int32_t[]){1, 2, 3}, 12);
    put_tensor(&b, "w", 2, (uint64_t[]){2, 2}, 0, 0);
    put_pad(&b, 32);
    sd_buf_put(&b, (float[]){1, 2, 3, 4}, 16);
    sd_buf cut = {0};
    for (size_t n = 0; n < b.n; n++) {
        sd_buf_put(&cut, b.p, n);
        refused(flush_file("cut.gguf", &cut), SD_EFORMAT, "cut.gguf", NULL);
    }
    check_w(opened(flush_file("whole.gguf", &b)));
    write_bytes(in_tmp("p.gguf"), "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", 57);
    refused(in_tmp("p.gguf"), SD_EFORMAT, "Git LFS pointer, weights not downloaded", NULL);
}

static void test_types(void **state) { /* G06 */
    (void)state;
    /* not decoded: listed by name, with the size their blocks give (0: all there is) */
    static const struct {
        uint32_t type;
        const char *name;
        uint64_t bytes;
    } no[] = {{4, "Q4_2 (removed)", 160}, {9, "Q8_1", 288},       {10, "Q2_K", 84},
              {11, "Q3_K", 110},          {15, "Q8_K", 292},      {16, "IQ2_XXS", 66},
              {17, "IQ2_XS", 74},         {18, "IQ3_XXS", 98},    {19, "IQ1_S", 50},
              {20, "IQ4_NL", 144},        {21, "IQ3_S", 110},     {22, "IQ2_S", 82},
              {23, "IQ4_XS", 136},        {29, "IQ1_M", 56},      {31, "type 31", 2048},
              {34, "TQ1_0", 54},          {35, "TQ2_0", 66},      {39, "MXFP4", 136},
              {40, "type 40", 2048},      {255, "type 255", 2048}};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        sd_container *c = opened(shaped(1, (uint64_t[]){256}, no[i].type, 0, 2048));
        const sd_tensor_info *w = sd_container_at(c, 0);
        assert_string_equal(w->unsupported, no[i].name);
        assert_int_equal(w->bytes, no[i].bytes);
        sd_tensor *t = NULL;
        sd_err err = {0};
        assert_int_equal(sd_container_read_as(c, 0, SD_F32, &t, &err), SD_EFORMAT);
        assert_non_null(strstr(err.text, no[i].name));
        assert_int_equal(sd_container_read(c, 0, &t, &err), SD_EFORMAT);
        assert_null(t);
        sd_container_unref(c);
    }
    refused(shaped(1, (uint64_t[]){256}, 10, 0, 83), SD_EFORMAT, "needs 84 data bytes", NULL);
    refused(shaped(1, (uint64_t[]){255}, 10, 0, 84), SD_EFORMAT, "blocks of 256 (Q2_K)", NULL);
    /* one of unknown size ends where the next begins, wherever that stands in the list */
    sd_buf b = {0};
    put_head(&b, 3, 3, 0);
    put_tensor(&b, "c", 1, (uint64_t[]){8}, 0, 96);
    put_tensor(&b, "a", 1, (uint64_t[]){64}, 77, 0);
    put_tensor(&b, "z", 1, (uint64_t[]){64}, 77, 128);
    put_pad(&b, 32);
    for (int i = 0; i < 160; i++) {
        sd_buf_putc(&b, 0);
    }
    sd_container *u = opened(flush_file("u.gguf", &b));
    assert_int_equal(sd_container_at(u, 1)->bytes, 96);
    assert_int_equal(sd_container_at(u, 2)->bytes, 32);
    sd_container_unref(u);
    static const struct {
        uint32_t type;
        sd_dtype dtype;
    } yes[] = {{0, SD_F32},   {1, SD_F16},   {2, SD_Q4_0}, {3, SD_Q4_1},
               {6, SD_Q5_0},  {7, SD_Q5_1},  {8, SD_Q8_0}, {12, SD_Q4_K},
               {13, SD_Q5_K}, {14, SD_Q6_K}, {24, SD_I8},  {25, SD_I16},
               {26, SD_I32},  {27, SD_I64},  {28, SD_F64}, {30, SD_BF16}};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        sd_container *c = opened(shaped(1, (uint64_t[]){256}, yes[i].type, 0, 2048));
        assert_int_equal(sd_container_at(c, 0)->dtype, yes[i].dtype);
        sd_container_unref(c);
    }
}

/* ---- a slow reference of each block type: element e of the block at p -------------------------
 */
static double f16_at(const unsigned char *p) {
    unsigned h = p[0] | (unsigned)p[1] << 8;
    int e = (int)(h >> 10 & 31);
    double m = (double)(h & 1023);
    double x = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -x : x;
}

static unsigned nibble(const unsigned char *qs, int e) { /* 32 elements in 16 bytes */
    return e < 16 ? qs[e] & 15u : qs[e - 16] >> 4;
}

static unsigned bit(const unsigned char *qh, int e) {
    return qh[e / 8] >> (e % 8) & 1u;
}

static void k_scale(const unsigned char *s, int j, int *sc, int *mn) {
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *mn = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static double slow(sd_dtype t, const unsigned char *p, int e) {
    int sc, mn, j = e / 32, half = e / 128, l = e % 32, quarter = e % 128 / 32;
    unsigned q;
    switch (t) {
    case SD_Q4_0:
        return f16_at(p) * ((int)nibble(p + 2, e) - 8);
    case SD_Q4_1:
        return f16_at(p) * nibble(p + 4, e) + f16_at(p + 2);
    case SD_Q5_0:
        return f16_at(p) * ((int)(nibble(p + 6, e) | bit(p + 2, e) << 4) - 16);
    case SD_Q5_1:
        return f16_at(p) * (nibble(p + 8, e) | bit(p + 4, e) << 4) + f16_at(p + 2);
    case SD_Q8_0:
        return f16_at(p) * (signed char)p[2 + e];
    case SD_Q4_K:
        k_scale(p + 4, j, &sc, &mn);
        q = p[16 + j / 2 * 32 + l];
        return f16_at(p) * sc * (j % 2 ? q >> 4 : q & 15) - f16_at(p + 2) * mn;
    case SD_Q5_K:
        k_scale(p + 4, j, &sc, &mn);
        q = p[48 + j / 2 * 32 + l];
        q = (j % 2 ? q >> 4 : q & 15) | (p[16 + l] >> j & 1u) << 4;
        return f16_at(p) * sc * q - f16_at(p + 2) * mn;
    case SD_Q6_K:
        q = p[64 * half + l + (quarter % 2 ? 32 : 0)];
        q = (quarter < 2 ? q & 15 : q >> 4) | (p[128 + 32 * half + l] >> (2 * quarter) & 3u) << 4;
        sc = (signed char)p[192 + 8 * half + l / 16 + 2 * quarter];
        return f16_at(p + 208) * sc * ((int)q - 32);
    default:
        return NAN;
    }
}

static void test_blocks(void **state) { /* G07 */
    (void)state;
    static const struct {
        uint32_t type;
        sd_dtype dtype;
        int d[2]; /* where the block's f16 scales are */
    } kinds[] = {{2, SD_Q4_0, {0, -1}}, {3, SD_Q4_1, {0, 2}},    {6, SD_Q5_0, {0, -1}},
                 {7, SD_Q5_1, {0, 2}},  {8, SD_Q8_0, {0, -1}},   {12, SD_Q4_K, {0, 2}},
                 {13, SD_Q5_K, {0, 2}}, {14, SD_Q6_K, {208, -1}}};
    enum { ROWS = 5, PER_ROW = 3 };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const sd_dtype_info *d = sd_dtype_get(kinds[k].dtype);
        unsigned char data[ROWS * PER_ROW * 256];
        uint32_t seed = 12345u + (uint32_t)k;
        size_t bytes = (size_t)d->bytes * ROWS * PER_ROW;
        assert_true(bytes <= sizeof data);
        for (size_t i = 0; i < bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = (unsigned char)(seed >> 24);
        }
        for (int b = 0; b < ROWS * PER_ROW; b++) {
            for (int s = 0; s < 2; s++) {
                if (kinds[k].d[s] >= 0) { /* distinct, finite, both signs */
                    unsigned h = (b % 2 ? 0x8000u : 0) | (0x2800u + 37u * (unsigned)b + 5u);
                    unsigned char *at = data + b * d->bytes + kinds[k].d[s];
                    at[0] = (unsigned char)h;
                    at[1] = (unsigned char)(h >> 8);
                }
            }
        }
        sd_buf f = {0};
        put_head(&f, k % 2 ? 2 : 3, 1, 0);
        put_tensor(&f, "q", 2, (uint64_t[]){(uint64_t)d->block * PER_ROW, ROWS}, kinds[k].type, 0);
        put_pad(&f, 32);
        sd_buf_put(&f, data, bytes);
        sd_container *c = opened(flush_file("q.gguf", &f));
        const sd_tensor_info *t = sd_container_at(c, 0);
        assert_int_equal(t->ndim, 2);
        assert_int_equal(t->shape[0], ROWS);
        assert_int_equal(t->shape[1], d->block * PER_ROW);
        assert_int_equal(t->bytes, bytes);
        sd_tensor *x, *y = read_f64(c, "q"), *raw;
        sd_err err = {0};
        assert_int_equal(sd_container_read_as(c, 0, SD_F32, &x, &err), SD_OK);
        assert_int_equal(sd_container_read(c, 0, &raw, &err), SD_OK);
        assert_memory_equal(raw->data, data, bytes);
        for (int i = 0; i < ROWS * PER_ROW * d->block; i++) {
            double want = slow(kinds[k].dtype, data + i / d->block * d->bytes, i % d->block);
            double f32 = (double)((float *)x->data)[i], f64 = ((double *)y->data)[i];
            if (f32 != (double)(float)want || fabs(f64 - want) > 1e-7 * fabs(want)) {
                fail_msg("%s element %d: %.9g and %.17g, expected %.17g", d->name, i, f32, f64,
                         want);
            }
        }
        sd_tensor_free(x);
        sd_tensor_free(y);
        sd_tensor_free(raw);
        sd_container_unref(c);
    }
}

/* Several tensors, reversed dimensions, a grouped-query toy without an output head (G10, G11). */
static void test_toy_llama(void **state) {
    (void)state;
    sd_buf b = {0};
    put_head(&b, 3, 3, 1);
    put_key(&b, "general.architecture", STR);
    put_str(&b, "llama");
    put_tensor(&b, "token_embd.weight", 2, (uint64_t[]){16, 3}, 0, 0);
    put_tensor(&b, "blk.0.attn_q.weight", 2, (uint64_t[]){16, 16}, 1, 192);
    put_tensor(&b, "blk.0.attn_k.weight", 2, (uint64_t[]){16, 8}, 30, 704);
    put_pad(&b, 32);
    for (int i = 0; i < 48; i++) {
        float x = (float)i;
        sd_buf_put(&b, &x, 4);
    }
    for (int i = 0; i < 256; i++) {
        uint16_t x = sd_f32_to_f16((float)i);
        sd_buf_put(&b, &x, 2);
    }
    for (int i = 0; i < 128; i++) {
        uint16_t x = sd_f32_to_bf16((float)(i / 16));
        sd_buf_put(&b, &x, 2);
    }
    sd_container *c = opened(flush_file("llama.gguf", &b));
    assert_int_equal(sd_container_find(c, "output.weight"), -1);
    sd_tensor *e = read_f64(c, "token_embd.weight"), *q = read_f64(c, "blk.0.attn_q.weight"),
              *k = read_f64(c, "blk.0.attn_k.weight");
    assert_int_equal(e->shape[0], 3);
    assert_int_equal(e->shape[1], 16);
    assert_int_equal(k->shape[0], 8);
    assert_true(sd_tensor_at(e, (int64_t[]){2, 1}) == 33);
    assert_true(sd_tensor_at(q, (int64_t[]){3, 5}) == 53);
    assert_true(sd_tensor_at(k, (int64_t[]){7, 9}) == 7);
    sd_tensor_free(e);
    sd_tensor_free(q);
    sd_tensor_free(k);
    sd_container_unref(c);
}

static void test_split_warns(void **state) {
    (void)state;
    sd_buf b = {0};
    put_head(&b, 3, 0, 1);
    put_key(&b, "split.count", U16);
    sd_buf_put(&b, (uint16_t[]){3}, 2);
    warnings w = {0};
    sd_run run = {.log = keep_warning, .ctx = &w};
    sd_container *c = NULL;
    assert_int_equal(sd_container_open(flush_file("s.gguf", &b), &run, &c, NULL), SD_OK);
    assert_non_null(strstr(w.text, "one of 3 parts"));
    sd_container_unref(c);
}

/* 128k tokens with types and scores: the header stays affordable. */
static void test_big_vocabulary(void **state) {
    (void)state;
    enum { N = 128000 };
    sd_buf b = {0};
    put_head(&b, 3, 0, 3);
    put_key(&b, "tokenizer.ggml.tokens", ARR);
    put_u32(&b, STR);
    put_u64(&b, N);
    for (int i = 0; i < N; i++) {
        char s[16];
        snprintf(s, sizeof s, "tok%d", i);
        put_str(&b, s);
    }
    put_key(&b, "tokenizer.ggml.token_type", ARR);
    put_u32(&b, I32);
    put_u64(&b, N);
    for (int i = 0; i < N; i++) {
        put_u32(&b, 1);
    }
    put_key(&b, "tokenizer.ggml.scores", ARR);
    put_u32(&b, F32T);
    put_u64(&b, N);
    for (int i = 0; i < N; i++) {
        put_u32(&b, 0);
    }
    const char *p = flush_file("vocab.gguf", &b);
    double t0 = sd_now();
    sd_container *c = opened(p);
    double t = sd_now() - t0;
    print_message("128k tokens in %.0f ms\n", t * 1e3);
    assert_true(t < 2);
    json_t *v = json_object_get(sd_container_meta(c), "tokenizer.ggml.tokens");
    assert_int_equal(json_array_size(v), N);
    assert_string_equal(json_string_value(json_array_get(v, N - 1)), "tok127999");
    v = json_object_get(sd_container_meta(c), "tokenizer.ggml.token_type");
    assert_ptr_equal(json_array_get(v, 0), json_array_get(v, N - 1)); /* shared */
    sd_container_unref(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment),     cmocka_unit_test(test_lying_dims),
        cmocka_unit_test(test_overlap),       cmocka_unit_test(test_values),
        cmocka_unit_test(test_arrays),        cmocka_unit_test(test_odd_strings),
        cmocka_unit_test(test_lying_headers), cmocka_unit_test(test_types),
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_toy_llama),
        cmocka_unit_test(test_split_warns),   cmocka_unit_test(test_big_vocabulary),
    };
    return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
