#include "io_build.h"

#include <math.h>

#include "base/table.h"
#include "io/info.h"

static double meta_num(const sd_table *t, const char *name) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double x = 0;
        if (strcmp(sd_table_meta_at(t, i, &s, &x), name) == 0) {
            assert_null(s);
            return x;
        }
    }
    fail_msg("no meta %s", name);
    return 0;
}

static const char *meta_str(const sd_table *t, const char *name) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double x = 0;
        if (strcmp(sd_table_meta_at(t, i, &s, &x), name) == 0) {
            return s;
        }
    }
    return NULL;
}

static const char *cell(const sd_table *t, int row, const char *col) {
    return sd_table_str(t, row, sd_table_find_col(t, col));
}

static const char *save(const char *name, const char *const *names, sd_tensor *const *tensors,
                        size_t n, const json_t *meta) {
    const char *p = in_tmp(name);
    sd_named_tensor t[8];
    sd_err err = {0};
    for (size_t i = 0; i < n; i++) {
        t[i] = (sd_named_tensor){names[i], tensors[i]};
    }
    if (sd_safetensors_write(p, t, n, meta, &err) != SD_OK) {
        fail_msg("%s", err.text);
    }
    return p;
}

static sd_tensor *filled(sd_dtype d, int64_t n, const double *x) {
    sd_tensor *t;
    assert_int_equal(sd_tensor_new(d, 1, &n, &t, NULL), SD_OK);
    for (int64_t i = 0; i < n; i++) {
        sd_tensor_put(t, &i, x[i]);
    }
    return t;
}

static void test_info(void **state) {
    (void)state;
    sd_tensor *w, *u = filled(SD_F16, 3, (double[]){1, 2, 3}),
                  *m = filled(SD_U8, 4, (double[]){1, 0, 1, 0});
    assert_int_equal(sd_tensor_new(SD_F32, 2, (int64_t[]){4, 256}, &w, NULL), SD_OK);
    json_t *meta = json_pack("{s:s}", "format", "pt");
    const char *p = save("i.safetensors", (const char *[]){"w", "u", "mask"},
                         (sd_tensor *[]){w, u, m}, 3, meta);
    json_decref(meta);
    sd_table *t = NULL;
    sd_err err = {0};
    assert_int_equal(sd_info(p, false, NULL, &t, &err), SD_OK);
    assert_string_equal(sd_table_kind(t), "info");
    assert_int_equal(sd_table_rows(t), 3);
    assert_string_equal(cell(t, 0, "name"), "w");
    assert_string_equal(cell(t, 0, "dtype"), "F32");
    assert_string_equal(cell(t, 0, "shape"), "(4, 256)");
    assert_string_equal(cell(t, 1, "shape"), "(3,)");
    assert_string_equal(cell(t, 1, "shard"), "i.safetensors");
    assert_int_equal(sd_table_int(t, 0, sd_table_find_col(t, "params")), 1024);
    assert_int_equal(sd_table_int(t, 0, sd_table_find_col(t, "bytes")), 4096);
    assert_true(meta_num(t, "params") == 1027);
    assert_true(meta_num(t, "buffers") == 4);
    assert_true(meta_num(t, "bytes") == 4096 + 6 + 4);
    assert_true(meta_num(t, "files") == 1);
    assert_true(meta_num(t, "tensors") == 3);
    assert_string_equal(meta_str(t, "format"), "safetensors");
    assert_string_equal(meta_str(t, "metadata.format"), "pt");
    assert_null(meta_str(t, "sha256"));
    sd_table_unref(t);

    /* the hash is the file's, as sha256sum prints it */
    const char *e = st_file("empty.safetensors", "{}      ", NULL, 0);
    assert_int_equal(sd_info(e, true, NULL, &t, &err), SD_OK);
    assert_string_equal(meta_str(t, "sha256"),
                        "9bbcbf73561f6bc5d0a17ea6a2081feed2d1304e87602d8c502d9a5c4bd85576");
    sd_table_unref(t);

    write_bytes(p, "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", 57);
    assert_int_equal(sd_info(p, false, NULL, &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "Git LFS pointer, weights not downloaded"));
    assert_null(t);
    sd_tensor_free(w);
    sd_tensor_free(u);
    sd_tensor_free(m);
}

static void test_info_gguf(void **state) {
    (void)state;
    sd_buf b = {0};
    put_head(&b, 3, 1, 4);
    put_key(&b, "general.name", 8);
    put_str(&b, "toy");
    put_key(&b, "toy.block_count", 4);
    put_u32(&b, 2);
    put_key(&b, "tokens", 9);
    put_u32(&b, 8);
    put_u64(&b, 2);
    put_str(&b, "a");
    put_str(&b, "b");
    put_key(&b, "raw", 8);
    put_str(&b, "\xff\xfe\xfd");
    put_tensor(&b, "q", 2, (uint64_t[]){64, 3}, 8, 0);
    put_pad(&b, 32);
    for (int i = 0; i < 6 * 34; i++) {
        sd_buf_putc(&b, 0);
    }
    sd_table *t = NULL;
    sd_err err = {0};
    assert_int_equal(sd_info(flush_file("t.gguf", &b), false, NULL, &t, &err), SD_OK);
    assert_string_equal(cell(t, 0, "dtype"), "Q8_0");
    assert_string_equal(cell(t, 0, "shape"), "(3, 64)");
    assert_true(meta_num(t, "params") == 192);
    assert_true(meta_num(t, "bytes") == 204);
    assert_true(meta_num(t, "metadata.toy.block_count") == 2);
    assert_string_equal(meta_str(t, "metadata.general.name"), "toy");
    assert_string_equal(meta_str(t, "metadata.tokens"), "array of 2");
    assert_string_equal(meta_str(t, "metadata.raw"), "3 bytes, not text");
    sd_table_unref(t);
}

static void test_diff(void **state) {
    (void)state;
    const double nan_ = (double)NAN, inf = (double)INFINITY;
    sd_tensor *x = filled(SD_F32, 4, (double[]){3, 4, 0, 0}),
              *y = filled(SD_F32, 4, (double[]){3, 4, 0, 0.5}),
              *h = filled(SD_F16, 4, (double[]){3, 4, 0, 0}),
              *s = filled(SD_F32, 3, (double[]){3, 4, 0}),
              *n = filled(SD_F32, 4, (double[]){3, nan_, 0, inf}),
              *z = filled(SD_F32, 4, (double[]){0, 0, 0, 0});
    char a[256], b[256];
    strcpy(a, save("a.safetensors",
                   (const char *[]){"same", "chg", "typ", "shp", "gone", "nan", "zero", "nn"},
                   (sd_tensor *[]){x, x, x, x, x, x, z, n}, 8, NULL));
    strcpy(b, save("b.safetensors",
                   (const char *[]){"new", "nn", "zero", "nan", "shp", "typ", "chg", "same"},
                   (sd_tensor *[]){x, n, y, n, s, h, y, x}, 8, NULL));
    sd_table *t = NULL;
    sd_err err = {0};
    assert_int_equal(sd_diff(a, b, NULL, &t, &err), SD_OK);
    static const struct {
        const char *name, *status;
        double max_abs, rel;
    } want[] = {{"same", "same", 0, 0},
                {"chg", "changed", 0.5, 0.1},
                {"typ", "retyped", 0, 0},
                {"shp", "changed", -1, -1},
                {"gone", "only a", -1, -1},
                {"nan", "changed", (double)NAN, (double)NAN},
                {"zero", "changed", 4, (double)INFINITY},
                {"nn", "same", 0, 0},
                {"new", "only b", -1, -1}};
    assert_int_equal(sd_table_rows(t), 9);
    int cm = sd_table_find_col(t, "max_abs"), cr = sd_table_find_col(t, "rel_norm");
    for (int i = 0; i < 9; i++) {
        assert_string_equal(cell(t, i, "name"), want[i].name);
        assert_string_equal(cell(t, i, "status"), want[i].status);
        assert_int_equal(sd_table_has(t, i, cm), want[i].max_abs != -1);
        if (isnan(want[i].max_abs)) {
            assert_true(isnan(sd_table_num(t, i, cm)) && isnan(sd_table_num(t, i, cr)));
        } else if (want[i].max_abs >= 0) {
            assert_true(sd_table_num(t, i, cm) == want[i].max_abs);
            assert_true(sd_table_num(t, i, cr) == want[i].rel ||
                        fabs(sd_table_num(t, i, cr) - want[i].rel) < 1e-15);
        }
    }
    assert_string_equal(cell(t, 2, "dtype_a"), "F32");
    assert_string_equal(cell(t, 2, "dtype_b"), "F16");
    assert_string_equal(cell(t, 3, "shape_a"), "(4,)");
    assert_string_equal(cell(t, 3, "shape_b"), "(3,)");
    assert_false(sd_table_has(t, 4, sd_table_find_col(t, "dtype_b")));
    assert_true(meta_num(t, "same") == 2 && meta_num(t, "changed") == 4);
    assert_true(meta_num(t, "retyped") == 1 && meta_num(t, "only_a") == 1);
    assert_true(meta_num(t, "only_b") == 1 && meta_num(t, "identical") == 0);
    sd_table_unref(t);

    assert_int_equal(sd_diff(a, a, NULL, &t, &err), SD_OK);
    assert_true(meta_num(t, "identical") == 1 && meta_num(t, "max_abs") == 0);
    sd_table_unref(t);

    sd_cancel_flag = 1;
    assert_int_equal(sd_diff(a, b, NULL, &t, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    assert_null(t);
    assert_int_equal(sd_diff(a, in_tmp("none"), NULL, &t, &err), SD_EFILE);
    sd_tensor_free(x);
    sd_tensor_free(y);
    sd_tensor_free(h);
    sd_tensor_free(s);
    sd_tensor_free(n);
    sd_tensor_free(z);
}

/* Longer than a block, and quantised against its own values: the block boundaries agree. */
static void test_diff_blocks(void **state) {
    (void)state;
    enum { BLOCKS = 3000 };
    static float f32[BLOCKS * 32];
    sd_buf b = {0};
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){BLOCKS * 32}, 8, 0);
    put_pad(&b, 32);
    for (int k = 0; k < BLOCKS; k++) {
        uint16_t d = sd_f32_to_f16(0.25f * (float)(1 + k % 7));
        sd_buf_put(&b, &d, 2);
        for (int e = 0; e < 32; e++) {
            int q = (k * 31 + e * 7) % 255 - 127;
            sd_buf_putc(&b, (char)q);
            f32[k * 32 + e] = 0.25f * (float)(1 + k % 7) * (float)q;
        }
    }
    char q[256];
    strcpy(q, flush_file("q.gguf", &b));
    sd_tensor *t;
    sd_table *r = NULL;
    sd_err err = {0};
    assert_int_equal(sd_tensor_new(SD_F32, 1, (int64_t[]){BLOCKS * 32}, &t, NULL), SD_OK);
    memcpy(t->data, f32, sizeof f32);
    const char *p = save("f.safetensors", (const char *[]){"w"}, &t, 1, NULL);
    assert_int_equal(sd_diff(q, p, NULL, &r, &err), SD_OK);
    assert_string_equal(cell(r, 0, "status"), "retyped");
    sd_table_unref(r);
    ((float *)t->data)[BLOCKS * 32 - 1] += 2;
    p = save("f.safetensors", (const char *[]){"w"}, &t, 1, NULL);
    assert_int_equal(sd_diff(q, p, NULL, &r, &err), SD_OK);
    assert_string_equal(cell(r, 0, "status"), "changed");
    assert_true(sd_table_num(r, 0, sd_table_find_col(r, "max_abs")) == 2);
    sd_table_unref(r);
    sd_tensor_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_info_gguf),
        cmocka_unit_test(test_diff),
        cmocka_unit_test(test_diff_blocks),
    };
    return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
