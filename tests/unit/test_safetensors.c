#include "io_build.h"

#include <fcntl.h>
#include <math.h>
#include <time.h>

#define PI 3.14159265358979323846

#define DATA(n_) zeros, (n_)
static const unsigned char zeros[64];

static void test_lfs_pointer(void **state) { /* L01 */
    (void)state;
    static const char lfs[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345\n";
    uint64_t first;
    memcpy(&first, lfs, 8);
    assert_true(first == UINT64_C(2336927755350992246));
    const char *p = in_tmp("model.safetensors");
    write_bytes(p, lfs, sizeof lfs - 1);
    refused(p, SD_EFORMAT, "Git LFS pointer, weights not downloaded", "model.safetensors", NULL);
    unlink(p);
}

static void test_short_data(void **state) { /* L03 */
    (void)state;
    const char *h = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    refused(st_file("short.safetensors", h, DATA(12)), SD_EFORMAT, "short.safetensors", "tensor a",
            "needs 16 data bytes, has 12", NULL);

    const char *p = st_file("cut.safetensors", h, DATA(16));
    sd_container *c = opened(p);
    assert_int_equal(truncate(p, (off_t)(8 + strlen(h) + 7)), 0);
    sd_tensor *t = NULL;
    sd_err err = {0};
    assert_int_not_equal(sd_container_read(c, 0, &t, &err), SD_OK);
    assert_null(t);
    assert_non_null(strstr(err.text, "tensor a"));
    assert_int_not_equal(sd_container_read_as(c, 0, SD_F64, &t, &err), SD_OK);
    assert_null(t);
    char hex[65];
    assert_int_not_equal(sd_container_hash(c, NULL, hex, &err), SD_OK);
    sd_container_unref(c);
}

static void test_cover(void **state) { /* L04 */
    (void)state;
    refused(st_file("a.safetensors",
                    "{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                    DATA(8)),
            SD_EFORMAT, "overlap", "tensor k", "tensor v", NULL);
    refused(st_file("b.safetensors",
                    "{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                    "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}",
                    DATA(20)),
            SD_EFORMAT, "tensor v", "12", "8", "belong to no tensor", NULL);
    refused(st_file("begin.safetensors",
                    "{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", DATA(12)),
            SD_EFORMAT, "tensor k", "belong to no tensor", NULL);
    refused(st_file("d.safetensors",
                    "{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", DATA(11)),
            SD_EFORMAT, "3 trailing bytes", NULL);

    const float data[4] = {1, 2, 3, 4};
    sd_container *c =
        opened(st_file("c.safetensors",
                       "{\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
                       "\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                       data, sizeof data));
    assert_int_equal(sd_container_count(c), 2);
    assert_string_equal(sd_container_at(c, 0)->name, "v"); /* the header's order */
    sd_tensor *v = read_f64(c, "v"), *k = read_f64(c, "k");
    assert_true(((double *)v->data)[0] == 3 && ((double *)v->data)[1] == 4);
    assert_true(((double *)k->data)[0] == 1 && ((double *)k->data)[1] == 2);
    sd_tensor_free(v);
    sd_tensor_free(k);
    assert_int_equal(sd_container_find(c, "nothing"), -1);
    sd_container_unref(c);
}

static void test_empty(void **state) { /* L05 */
    (void)state;
    sd_container *c =
        opened(st_file("a.safetensors",
                       "{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                       "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                       "\"m\":{\"dtype\":\"F32\",\"shape\":[2,0,3],\"data_offsets\":[4,4]},"
                       "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                       "\"end\":{\"dtype\":\"F8_E4M3\",\"shape\":[0],\"data_offsets\":[8,8]}}",
                       DATA(8)));
    assert_int_equal(sd_container_count(c), 5);
    sd_tensor *e = read_f64(c, "e");
    sd_stats s;
    assert_int_equal(sd_tensor_numel(e), 0);
    assert_int_equal(sd_tensor_stats(e, &s, NULL), SD_OK);
    assert_int_equal(s.n, 0);
    assert_true(isnan(s.mean));
    sd_tensor_free(e);
    sd_tensor *x = read_f64(c, "s");
    assert_int_equal(x->ndim, 0);
    assert_int_equal(sd_tensor_numel(x), 1);
    sd_tensor_free(x);
    sd_container_unref(c);

    refused(st_file("b.safetensors",
                    "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,0]}}", DATA(0)),
            SD_EFORMAT, "tensor b", "4 bytes", "give 0", NULL);
    /* 2^63 does not fit the integers of JSON readers: refused without overflow */
    refused(st_file("d.safetensors",
                    "{\"d\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775808],"
                    "\"data_offsets\":[0,0]}}",
                    DATA(0)),
            SD_EFORMAT, "too big", NULL);
    c = opened(st_file("d2.safetensors",
                       "{\"d\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807,"
                       "9223372036854775807],\"data_offsets\":[0,0]}}",
                       DATA(0)));
    sd_tensor *t = NULL;
    if (sd_container_read(c, 0, &t, NULL) == SD_OK) {
        assert_int_equal(sd_tensor_numel(t), 0);
        sd_tensor_free(t);
    }
    sd_container_unref(c);
}

static void one(const char *shape, const char *offsets, size_t n, const char *says) {
    char h[256];
    snprintf(h, sizeof h, "{\"w\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":%s}}", shape,
             offsets);
    refused(st_file("one.safetensors", h, DATA(n)), SD_EFORMAT, "tensor w", says, NULL);
}

static void test_lying_shapes(void **state) { /* L06 */
    (void)state;
    one("[1000,1000]", "[0,4]", 4, "need 4000000 bytes, data_offsets [0,4] give 4");
    one("[1]", "[8,4]", 8, "[8,4]");
    one("[1]", "[0,4,8]", 8, "pair");
    one("[1]", "[0]", 8, "pair");
    one("[1]", "7", 8, "not an array");
    one("[1]", "[-4,0]", 8, "negative (-4)");
    one("[25]", "[0,1e2]", 60, "entry 1 is not an integer");
    one("[1e2]", "[0,4]", 4, "entry 0 is not an integer");
    one("[-1]", "[0,4]", 4, "negative (-1)");
    one("[\"1\"]", "[0,4]", 4, "not an integer");
    one("[true]", "[0,4]", 4, "not an integer");
    one("[4294967296,4294967296]", "[0,4]", 4, "overflow");
    one("[4611686018427387904]", "[0,4]", 4, "overflow"); /* 2^62 elements, 2^64 bytes */
    one("[1,1,1,1,1,1,1]", "[0,4]", 4, "7 dimensions");
    one("{}", "[0,4]", 4, "\"shape\" is not an array");
    refused(st_file("t.safetensors", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", DATA(4)),
            SD_EFORMAT, "\"shape\" is missing", NULL);
    refused(st_file("t.safetensors", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", DATA(4)),
            SD_EFORMAT, "\"dtype\" is missing", NULL);
    refused(st_file("t.safetensors", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", DATA(4)),
            SD_EFORMAT, "\"data_offsets\" is missing", NULL);
    refused(st_file("t.safetensors",
                    "{\"w\":{\"dtype\":\"F\\n4\",\"shape\":[2],\"data_offsets\":[0,1]}}", DATA(1)),
            SD_EFORMAT, "dtype \"F?4\" is no type's name", NULL);
    refused(st_file("t.safetensors", /* unknown type, but its bytes are still checked */
                    "{\"w\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,9]}}", DATA(1)),
            SD_EFORMAT, "pass the end of the file", NULL);
    refused(st_file("t.safetensors", "{\"w\":[]}", DATA(0)), SD_EFORMAT, "not an object", NULL);
    refused(st_file("t.safetensors",
                    "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                    "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                    DATA(2)),
            SD_EFORMAT, "duplicate", NULL);
}

static void test_lying_headers(void **state) {
    (void)state;
    const char *p = in_tmp("h.safetensors");
    write_bytes(p, "", 0);
    refused(p, SD_EFORMAT, "h.safetensors", "0 bytes", NULL);
    write_bytes(p, "\1\0\0\0\0\0\0", 7);
    refused(p, SD_EFORMAT, "7 bytes", NULL);
    write_bytes(p, "\0\0\0\0\0\0\0", 8);
    refused(p, SD_EFORMAT, "'{'", NULL);
    write_bytes(p, "\377\377\377\377\377\377\377\377{}", 10);
    refused(p, SD_EFORMAT, "18446744073709551615", "100000000", NULL);
    write_bytes(p, "\3\0\0\0\0\0\0\0{}", 10);
    refused(p, SD_EFORMAT, "needs 3 bytes, has 2", NULL);
    write_bytes(p, "\2\0\0\0\0\0\0\0[]", 10);
    refused(p, SD_EFORMAT, "'{'", NULL);
    write_bytes(p, "\2\0\0\0\0\0\0\0{}x", 11);
    refused(p, SD_EFORMAT, "1 trailing", NULL);
    write_bytes(p, "PK\3\4zipzipzip", 13);
    refused(p, SD_EFORMAT, "zip", NULL);
    /* a hostile name reaches the screen without its control bytes */
    refused(st_file("esc.safetensors", "{\"a\\u001b[2Jb\":3}", DATA(0)), SD_EFORMAT, "a?[2Jb",
            NULL);
    refused(in_tmp("absent.safetensors"), SD_EFILE, "absent.safetensors", NULL);
}

static void test_metadata(void **state) { /* L09 */
    (void)state;
    sd_container *c = opened(st_file("m.safetensors", "{\"__metadata__\":{}}", DATA(0)));
    assert_int_equal(sd_container_count(c), 0);
    assert_int_equal(json_object_size(sd_container_meta(c)), 0);
    sd_container_unref(c);
    c = opened(st_file("m.safetensors", "{\"__metadata__\":null}  ", DATA(0)));
    assert_int_equal(sd_container_count(c), 0);
    sd_container_unref(c);
    c = opened(st_file("m.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}}", DATA(0)));
    assert_string_equal(json_string_value(json_object_get(sd_container_meta(c), "format")), "pt");
    sd_container_unref(c);
    refused(st_file("m.safetensors", "{\"__metadata__\":{\"epoch\":0}}", DATA(0)), SD_EFORMAT,
            "\"epoch\"", "not a string", NULL);
    refused(st_file("m.safetensors", "{\"__metadata__\":[]}", DATA(0)), SD_EFORMAT,
            "__metadata__ is not an object", NULL);

    /* writing */
    sd_err err = {0};
    json_t *meta = json_pack("{s:s,s:s}", "epoch", "3", "quote\"\n", "\xc3\xa9\\");
    const char *p = in_tmp("w.safetensors");
    assert_int_equal(sd_safetensors_write(p, NULL, 0, meta, &err), SD_OK);
    c = opened(p);
    assert_int_equal(sd_container_count(c), 0);
    assert_true(json_equal(sd_container_meta(c), meta));
    sd_container_unref(c);
    json_object_set_new(meta, "n", json_integer(3));
    assert_int_equal(sd_safetensors_write(p, NULL, 0, meta, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "\"n\""));
    json_decref(meta);

    sd_tensor *t;
    assert_int_equal(sd_tensor_new(SD_F32, 1, (int64_t[]){2}, &t, NULL), SD_OK);
    assert_int_equal(sd_safetensors_write(p, (sd_named_tensor[]){{"__metadata__", t}}, 1, NULL,
                                          &err),
                     SD_EINVAL);
    assert_non_null(strstr(err.text, "reserved"));
    assert_int_equal(sd_safetensors_write(p, (sd_named_tensor[]){{"a", t}, {"b", t}, {"a", t}}, 3,
                                          NULL, &err),
                     SD_EINVAL);
    assert_non_null(strstr(err.text, "tensor a: named twice"));
    assert_int_equal(sd_safetensors_write(p, (sd_named_tensor[]){{"\xff", t}}, 1, NULL, &err),
                     SD_EINVAL);
    c = opened(p); /* the refusals left the old file */
    assert_string_equal(json_string_value(json_object_get(sd_container_meta(c), "epoch")), "3");
    sd_container_unref(c);
    assert_int_equal(sd_safetensors_write("/proc/none/x.safetensors", (sd_named_tensor[]){{"a", t}},
                                          1, NULL, &err),
                     SD_EWRITE);
    sd_tensor_free(t);
}

static void test_round_trip(void **state) {
    (void)state;
    sd_tensor *h, *f, *d, *v, *e, *s;
    sd_err err = {0};
    assert_int_equal(sd_tensor_new(SD_F16, 1, (int64_t[]){3}, &h, NULL), SD_OK);
    assert_int_equal(sd_tensor_new(SD_F32, 2, (int64_t[]){2, 3}, &f, NULL), SD_OK);
    assert_int_equal(sd_tensor_new(SD_F64, 0, NULL, &d, NULL), SD_OK);
    assert_int_equal(sd_tensor_new(SD_U8, 1, (int64_t[]){5}, &e, NULL), SD_OK);
    assert_int_equal(sd_tensor_new(SD_BF16, 2, (int64_t[]){0, 7}, &s, NULL), SD_OK);
    for (int i = 0; i < 6; i++) {
        ((float *)f->data)[i] = (float)i;
    }
    memcpy(h->data, "\1\0\377\173\0\200", 6);
    *(double *)d->data = PI;
    memcpy(e->data, "hello", 5);
    assert_int_equal(sd_tensor_transpose(f, 0, 1, &v, NULL), SD_OK); /* strided */
    const sd_named_tensor all[] = {
        {"z.half", h}, {"e", e}, {"a.view", v}, {"s", s}, {"pi \"\\\n\xe2\x82\xac", d}};
    const char *p = in_tmp("round.safetensors");
    assert_int_equal(sd_safetensors_write(p, all, 5, NULL, &err), SD_OK);

    sd_container *c = opened(p);
    assert_string_equal(sd_container_format(c), "safetensors");
    assert_int_equal(sd_container_n_files(c), 1);
    assert_int_equal(sd_container_count(c), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(sd_container_at(c, i)->name, all[i].name);
        sd_tensor *t = NULL;
        assert_int_equal(sd_container_read(c, i, &t, &err), SD_OK);
        assert_int_equal(t->dtype, all[i].tensor->dtype);
        assert_int_equal(t->ndim, all[i].tensor->ndim);
        for (int k = 0; k < t->ndim; k++) {
            assert_int_equal(t->shape[k], all[i].tensor->shape[k]);
        }
        if (i != 2) {
            assert_memory_equal(t->data, all[i].tensor->data, sd_tensor_nbytes(t));
        } else {
            const float want[6] = {0, 3, 1, 4, 2, 5};
            assert_memory_equal(t->data, want, sizeof want);
        }
        sd_tensor_free(t);
    }
    sd_container_unref(c);

    /* header length divides by 8; every tensor's data is aligned to its element */
    FILE *fp = fopen(p, "rb");
    uint64_t len;
    assert_int_equal(fread(&len, 8, 1, fp), 1);
    fclose(fp);
    assert_int_equal(len % 8, 0);
    char hex[65];
    c = opened(p);
    assert_int_equal(sd_container_hash(c, NULL, hex, &err), SD_OK);
    assert_int_equal(strlen(hex), 64);
    sd_cancel_flag = 1;
    assert_int_equal(sd_container_hash(c, NULL, hex, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    sd_container_unref(c);
    sd_tensor_free(h);
    sd_tensor_free(f);
    sd_tensor_free(d);
    sd_tensor_free(v);
    sd_tensor_free(e);
    sd_tensor_free(s);
}

static void test_small_floats(void **state) { /* L11 */
    (void)state;
    static const unsigned char data[] = {
        1,    0,    0xff, 0x7b, 0, 0x7c, 0, 0x80, /* F16 */
        0x80, 0x3f, 0x80, 0xff,                   /* BF16 */
        0x01, 0x7e, 0x7f, 0xff,                   /* F8_E4M3 */
        0x01, 0x7b, 0x7c, 0xfc,                   /* F8_E5M2 */
        0xff, 0,    1,                            /* I8, BOOL */
    };
    sd_container *c =
        opened(st_file("f.safetensors",
                       "{\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
                       "\"e4\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[12,16]},"
                       "\"e5\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[16,20]},"
                       "\"i\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[20,21]},"
                       "\"t\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[21,23]}}",
                       data, sizeof data));
    for (int pass = 0; pass < 2; pass++) {
        sd_dtype to = pass ? SD_F32 : SD_F64;
        sd_tensor *t[6];
        for (size_t i = 0; i < 6; i++) {
            assert_int_equal(sd_container_read_as(c, i, to, &t[i], NULL), SD_OK);
        }
#define AT(i_, k_) sd_tensor_at(t[i_], (int64_t[]){k_})
        assert_true(AT(0, 0) == 0x1p-24); /* 5.9604645e-8 */
        assert_true(AT(0, 1) == 65504);
        assert_true(AT(0, 2) == (double)INFINITY);
        assert_true(AT(0, 3) == 0 && signbit(AT(0, 3)));
        assert_true(AT(1, 0) == 1);
        assert_true(AT(1, 1) == -(double)INFINITY);
        assert_true(AT(2, 0) == 0.001953125);
        assert_true(AT(2, 1) == 448);
        assert_true(isnan(AT(2, 2)) && isnan(AT(2, 3)));
        assert_true(AT(3, 0) == 0x1p-16); /* 1.5258789e-5 */
        assert_true(AT(3, 1) == 57344);
        assert_true(AT(3, 2) == (double)INFINITY && AT(3, 3) == -(double)INFINITY);
        assert_true(AT(4, 0) == -1);
        assert_true(AT(5, 0) == 0 && AT(5, 1) == 1);
#undef AT
        for (size_t i = 0; i < 6; i++) {
            sd_tensor_free(t[i]);
        }
    }
    sd_tensor *t = NULL;
    sd_err err = {0};
    assert_int_equal(sd_container_read_as(c, 0, SD_BF16, &t, &err), SD_EINVAL);
    assert_int_equal(sd_container_read(c, 6, &t, &err), SD_EINVAL);
    unsigned char two[2];
    assert_int_equal(sd_container_read_bytes(c, 0, 6, two, 2, &err), SD_OK);
    assert_int_equal(two[1], 0x80);
    assert_int_equal(sd_container_read_bytes(c, 0, 7, two, 2, &err), SD_EINVAL);
    sd_container_unref(c);
}

/* Many conversion blocks with a rest. */
static void test_long_tensor(void **state) {
    (void)state;
    enum { N = 65536 * 2 + 77 };
    sd_tensor *h, *t;
    sd_err err = {0};
    assert_int_equal(sd_tensor_new(SD_BF16, 1, (int64_t[]){N}, &h, NULL), SD_OK);
    for (uint32_t i = 0; i < N; i++) {
        ((uint16_t *)h->data)[i] = (uint16_t)(0x3f80 + i % 4096);
    }
    const char *p = in_tmp("long.safetensors");
    assert_int_equal(sd_safetensors_write(p, (sd_named_tensor[]){{"w", h}}, 1, NULL, &err), SD_OK);
    sd_container *c = opened(p);
    assert_int_equal(sd_container_read_as(c, 0, SD_F32, &t, &err), SD_OK);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, (float *)t->data + i, 4);
        assert_int_equal(bits, (0x3f80 + i % 4096) << 16);
    }
    sd_tensor_free(t);
    sd_tensor_free(h);
    sd_container_unref(c);
}

static const char shard1[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                             "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
static const char shard2[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                             "\"__metadata__\":{\"format\":\"pt\"}}";

static void put_index(const char *map) {
    char text[512];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":12},\"weight_map\":%s}", map);
    write_bytes(in_tmp("model.safetensors.index.json"), text, strlen(text));
}

static void test_shards(void **state) { /* L12 */
    (void)state;
    const float d1[2] = {1, 24}, d2[1] = {2};
    const char *full = "{\"a\":\"s1.safetensors\",\"x\":\"s1.safetensors\","
                       "\"b\":\"s2.safetensors\"}";
    char old[64];
    strcpy(old, tmp_dir); /* its own folder */
    assert_int_equal(make_tmp(NULL), 0);
    st_file("s1.safetensors", shard1, d1, sizeof d1);
    st_file("s2.safetensors", shard2, d2, sizeof d2);
    put_index(full);
    warnings w = {0};
    sd_run run = {.log = keep_warning, .ctx = &w};
    sd_err err = {0};
    sd_container *c = NULL;
    assert_int_equal(sd_container_open(tmp_dir, &run, &c, &err), SD_OK);
    assert_int_equal(w.n, 0);
    assert_int_equal(sd_container_count(c), 3);
    assert_int_equal(sd_container_n_files(c), 2);
    sd_tensor *a = read_f64(c, "a"), *b = read_f64(c, "b"), *x = read_f64(c, "x");
    assert_true(*(double *)a->data == 1 && *(double *)b->data == 2 && *(double *)x->data == 24);
    assert_string_equal(json_string_value(json_object_get(sd_container_meta(c), "format")), "pt");
    sd_tensor_free(a);
    sd_tensor_free(b);
    sd_tensor_free(x);
    sd_container_unref(c);

    /* (b) entry without a tensor: warned */
    put_index("{\"a\":\"s1.safetensors\",\"x\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
              "\"ghost\":\"s2.safetensors\"}");
    assert_int_equal(sd_container_open(tmp_dir, &run, &c, &err), SD_OK);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "ghost"));
    assert_int_equal(sd_container_find(c, "ghost"), -1);
    sd_container_unref(c);

    /* (d) tensor that the index does not list: warned */
    put_index("{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}");
    w = (warnings){0};
    assert_int_equal(sd_container_open(tmp_dir, &run, &c, &err), SD_OK);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "first: x"));
    assert_true(sd_container_at(c, (size_t)sd_container_find(c, "x"))->unindexed);
    assert_false(sd_container_at(c, (size_t)sd_container_find(c, "a"))->unindexed);
    sd_container_unref(c);

    /* two shards hold the name: the index decides */
    st_file("s3.safetensors", shard1, (float[]){7, 8}, 8);
    put_index("{\"a\":\"s3.safetensors\",\"x\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}");
    w = (warnings){0};
    assert_int_equal(sd_container_open(tmp_dir, &run, &c, &err), SD_OK);
    a = read_f64(c, "a");
    x = read_f64(c, "x");
    assert_true(*(double *)a->data == 7 && *(double *)x->data == 24);
    assert_int_equal(sd_container_count(c), 3);
    sd_tensor_free(a);
    sd_tensor_free(x);
    sd_container_unref(c);

    /* (c) a single file beside them: taken, as stock code does, and said */
    put_index(full);
    st_file("model.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
            DATA(4));
    w = (warnings){0};
    assert_int_equal(sd_container_open(tmp_dir, &run, &c, &err), SD_OK);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "model.safetensors and also shards with an index"));
    assert_int_equal(sd_container_count(c), 1);
    assert_non_null(strstr(sd_container_path(c), "/model.safetensors"));
    assert_null(strstr(sd_container_path(c), "index"));
    sd_container_unref(c);
    assert_int_equal(sd_container_open(in_tmp("model.safetensors.index.json"), &run, &c, &err),
                     SD_OK);
    assert_int_equal(sd_container_count(c), 3); /* named, it is read */
    sd_container_unref(c);
    unlink(in_tmp("model.safetensors"));

    /* (a) shard absent */
    put_index(full);
    unlink(in_tmp("s2.safetensors"));
    refused(tmp_dir, SD_EFILE, "1 of 2 shards are missing", "s2.safetensors", NULL);

    put_index("{\"a\":\"../s1.safetensors\"}");
    refused(tmp_dir, SD_EFORMAT, "tensor a", "\"../s1.safetensors\"", "plain name", NULL);
    put_index(
        "{\"a\":\"x\\n\\u202e.safetensors\"}"); /* shown without what it would do to a screen */
    refused(tmp_dir, SD_EFORMAT, "\"x??.safetensors\"", NULL);
    put_index("{\"a\":\"\"}");
    refused(tmp_dir, SD_EFORMAT, "plain name", NULL);
    put_index("{\"a\":3}");
    refused(tmp_dir, SD_EFORMAT, "not a string", NULL);
    put_index("{}");
    refused(tmp_dir, SD_EFORMAT, "empty", NULL);
    put_index("[]");
    refused(tmp_dir, SD_EFORMAT, "weight_map", "not an object", NULL);
    assert_int_equal(remove_tmp(NULL), 0);
    strcpy(tmp_dir, old);
}

static void test_folders(void **state) {
    (void)state;
    char old[64];
    strcpy(old, tmp_dir);
    assert_int_equal(make_tmp(NULL), 0);
    refused(tmp_dir, SD_EFILE, "no .safetensors or .gguf", NULL);
    write_bytes(in_tmp("pytorch_model.bin"), "x", 1);
    refused(tmp_dir, SD_EFILE, "pickles", NULL);
    st_file("one.safetensors", shard2, DATA(4));
    sd_container *c = opened(tmp_dir);
    assert_non_null(strstr(sd_container_path(c), "one.safetensors"));
    sd_container_unref(c);
    st_file("two.safetensors", shard2, DATA(4));
    refused(tmp_dir, SD_EFILE, "2 weight files", "one.safetensors", "two.safetensors", NULL);
    st_file("model.safetensors", shard2, DATA(4));
    c = opened(tmp_dir);
    assert_non_null(strstr(sd_container_path(c), "model.safetensors"));
    sd_container_unref(c);
    assert_int_equal(remove_tmp(NULL), 0);
    strcpy(tmp_dir, old);
}

/* Types that are not decoded are listed; only reading them fails. */
static void test_undecoded_types(void **state) {
    (void)state;
    static const char *const types[] = {"F4", "F6_E2M3", "F8_E8M0", "F8_E4M3FNUZ", "C64", "Q4_1"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char h[256];
        snprintf(h, sizeof h,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[2,8],\"data_offsets\":[4,12]},"
                 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                 types[i]);
        warnings w = {0};
        sd_run run = {.log = keep_warning, .ctx = &w};
        sd_err err = {0};
        sd_container *c = NULL;
        sd_tensor *t = NULL;
        assert_int_equal(sd_container_open(st_file("u.safetensors", h, DATA(12)), &run, &c, &err),
                         SD_OK);
        assert_int_equal(w.n, 1);
        assert_non_null(strstr(w.text, "1 of 2 tensors"));
        assert_non_null(strstr(w.text, types[i]));
        size_t k = (size_t)sd_container_find(c, "w");
        assert_string_equal(sd_container_at(c, k)->unsupported, types[i]);
        assert_string_equal(sd_tensor_type(sd_container_at(c, k)), types[i]);
        assert_int_equal(sd_container_at(c, k)->bytes, 8);
        assert_int_equal(sd_container_read(c, k, &t, &err), SD_EFORMAT);
        assert_non_null(strstr(err.text, "tensor w"));
        assert_non_null(strstr(err.text, types[i]));
        assert_int_equal(sd_container_read_as(c, k, SD_F32, &t, &err), SD_EFORMAT);
        assert_null(t);
        sd_tensor_free(read_f64(c, "b"));
        sd_container_unref(c);
    }
}

/* What a failed download or an old tool leaves is named. */
static void test_foreign(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } f[] = {{"tjgg\1\0\0\0\0\0\0\0", 12, "ggjt"},
             {"lmgg\1\0\0\0\0\0\0\0", 12, "ggml"},
             {"fmgg\1\0\0\0\0\0\0\0", 12, "ggmf"},
             {"algg\1\0\0\0\0\0\0\0", 12, "ggla"},
             {"<!DOCTYPE html><html><head></head></html>", 41, "web page"},
             {"\xef\xbb\xbf\n <HTML><body>", 17, "web page"},
             {"<?xml version='1.0'?><Error/>", 29, "XML"},
             {"PK\3\4zipzipzip", 13, "zip archive"},
             {"\x80\2}q\0.......", 12, "pickle"},
             {"\x89HDF\r\n\x1a\n......", 14, "HDF5"}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        const char *p = in_tmp("foreign.safetensors");
        write_bytes(p, f[i].bytes, f[i].n);
        refused(p, SD_EFORMAT, "foreign.safetensors", f[i].says, NULL);
    }
}

/* Written to under an open container, with the size kept: an error and no garbage. Replaced under
 * its name: the open one keeps its bytes. */
static void test_changed(void **state) {
    (void)state;
    const char *h = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    const char *p = st_file("changed.safetensors", h, (float[]){1, 2}, 8);
    sd_container *c = opened(p);
    sd_tensor_free(read_f64(c, "w"));
    st_file("other.safetensors", h, (float[]){5, 6}, 8);
    assert_int_equal(rename(in_tmp("other.safetensors"), p), 0);
    sd_tensor *t = read_f64(c, "w");
    assert_true(*(double *)t->data == 1);
    sd_tensor_free(t);
    sd_container_unref(c);

    c = opened(p);
    nanosleep(&(struct timespec){.tv_nsec = 20000000},
              NULL); /* a tick of the file system's clock */
    int fd = open(p, O_WRONLY);
    assert_int_equal(pwrite(fd, (float[]){7}, 4, (off_t)(8 + strlen(h))), 4);
    assert_int_equal(close(fd), 0);
    sd_err err = {0};
    t = NULL;
    assert_int_equal(sd_container_read(c, 0, &t, &err), SD_EFILE);
    assert_null(t);
    assert_non_null(strstr(err.text, "tensor w"));
    assert_non_null(strstr(err.text, "changed since it was opened"));
    assert_int_equal(sd_container_read_as(c, 0, SD_F64, &t, &err), SD_EFILE);
    char hex[65];
    assert_int_equal(sd_container_hash(c, NULL, hex, &err), SD_EFILE);
    sd_container_unref(c);
}

static void test_big_file_opens_at_once(void **state) {
    (void)state;
    const char *h = "{\"w\":{\"dtype\":\"F32\",\"shape\":[125000,1000],"
                    "\"data_offsets\":[0,500000000]}}";
    const char *p = st_file("big.safetensors", h, DATA(0));
    off_t whole = (off_t)(8 + strlen(h) + 500000000);
    assert_int_equal(truncate(p, whole - 1), 0); /* sparse */
    refused(p, SD_EFORMAT, "needs 500000000 data bytes, has 499999999", NULL);
    assert_int_equal(truncate(p, whole), 0);
    double t0 = sd_now();
    sd_container *c = opened(p);
    double t = sd_now() - t0;
    print_message("500 MB opened in %.2f ms\n", t * 1e3);
    assert_true(t < 0.1);
    assert_int_equal(sd_container_at(c, 0)->bytes, 500000000);
    sd_container_unref(c);
}

static void test_many_tensors(void **state) {
    (void)state;
    enum { N = 3000 };
    static char names[N][16];
    static sd_named_tensor all[N];
    sd_tensor *t;
    sd_err err = {0};
    assert_int_equal(sd_tensor_new(SD_F32, 1, (int64_t[]){1}, &t, NULL), SD_OK);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i * 7919 % N);
        all[i] = (sd_named_tensor){names[i], t};
    }
    const char *p = in_tmp("many.safetensors");
    assert_int_equal(sd_safetensors_write(p, all, N, NULL, &err), SD_OK);
    sd_container *c = opened(p), *again = sd_container_ref(c);
    for (int i = 0; i < N; i++) {
        assert_int_equal(sd_container_find(c, names[i]), i);
    }
    sd_container_unref(again);
    sd_container_unref(c);
    sd_tensor_free(t);
}

static void test_bundled(void **state) {
    (void)state;
    sd_container *c = opened("data/interim-gpt2");
    assert_true(sd_container_count(c) > 10);
    sd_container_unref(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lfs_pointer),     cmocka_unit_test(test_short_data),
        cmocka_unit_test(test_cover),           cmocka_unit_test(test_empty),
        cmocka_unit_test(test_lying_shapes),    cmocka_unit_test(test_lying_headers),
        cmocka_unit_test(test_metadata),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_small_floats),    cmocka_unit_test(test_long_tensor),
        cmocka_unit_test(test_shards),          cmocka_unit_test(test_folders),
        cmocka_unit_test(test_undecoded_types), cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_changed),         cmocka_unit_test(test_big_file_opens_at_once),
        cmocka_unit_test(test_many_tensors),    cmocka_unit_test(test_bundled),
    };
    return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
