#include "io_build.h"

#include "io/json.h"

static void bad(const char *text, size_t n, const char *says) {
    json_t *j = NULL;
    sd_err err = {0};
    assert_int_equal(sd_json_parse(text, n, "x.json", &j, &err), SD_EFORMAT);
    assert_null(j);
    if (!strstr(err.text, says) || strncmp(err.text, "x.json", 6) != 0) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, says);
    }
}

static void test_refusals(void **state) {
    (void)state;
#define BAD(text_, says_) bad(text_, sizeof(text_) - 1, says_)
    BAD("", "line");
    BAD("[1,2", "line 1");
    BAD("{\"a\":1,\n\"a\":2}", "line 2");
    BAD("{\"a\":1} x", "line 1");
    BAD("[\"\\u0000\"]", "\\u0000");
    BAD("[\"a\0b\"]", "line 1");
    BAD("[\"\\ud800\"]", "line 1");
    BAD("[\"\\udc00\"]", "line 1");
    BAD("[\"\xff\"]", "line 1");
    BAD("[\"\xed\xa0\x80\"]", "line 1"); /* an encoded surrogate */
    BAD("[9223372036854775808]", "too big");
    BAD("[-9223372036854775809]", "too big");
    BAD("[1e400]", "overflow");
    BAD("[NaN]", "line 1");
    BAD("[Infinity]", "line 1");
    BAD("[01]", "line 1");
    BAD("3", "line 1");
#undef BAD
}

static void test_accepts(void **state) {
    (void)state;
    static const char text[] =
        "{\"n\":-9223372036854775808,\"e\":\"\\ud83d\\ude00\",\"x\":[1e400000000000e]}";
    static const char good[] = "{\"n\":-9223372036854775808,\"e\":\"\\ud83d\\ude00\"}";
    json_t *j;
    assert_int_equal(sd_json_parse(text, sizeof text - 1, "t", &j, NULL), SD_EFORMAT);
    assert_int_equal(sd_json_parse(good, sizeof good - 1, "t", &j, NULL), SD_OK);
    assert_true(json_integer_value(json_object_get(j, "n")) == INT64_MIN);
    assert_string_equal(json_string_value(json_object_get(j, "e")), "\xf0\x9f\x98\x80");
    json_decref(j);
}

static void test_bounds(void **state) {
    (void)state;
    sd_err err = {0};
    json_t *j = NULL;
    char deep[300];
    memset(deep, '[', 129);
    memset(deep + 129, ']', 129);
    assert_int_equal(sd_json_parse(deep, 258, "deep", &j, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "128"));
    assert_int_equal(sd_json_parse(deep + 1, 256, "deep", &j, &err), SD_OK);
    json_decref(j);

    /* 2 MB of empty containers would take 100-170 MB; brackets inside strings are only text */
    static const char *const unit[] = {"[],", "{},", "[{}],", "[[]],", "[[],[]],"};
    size_t n = 2000000;
    char *big = malloc(n + 16);
    for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
        size_t k = strlen(unit[u]), m = 1;
        big[0] = '[';
        while (m + k < n) {
            memcpy(big + m, unit[u], k);
            m += k;
        }
        memcpy(big + m, "0]", 2);
        assert_int_equal(sd_json_parse(big, m + 2, "dense", &j, &err), SD_EFORMAT);
        assert_non_null(strstr(err.text, "tiny values"));
    }
    memset(big, '[', n);
    memcpy(big, "[\"", 2);
    memcpy(big + n, "\"]", 2);
    assert_int_equal(sd_json_parse(big, n + 2, "string", &j, &err), SD_OK);
    json_decref(j);
    free(big);
}

/* The shape of a large tokenizer.json: 128k vocabulary entries and 280k merges as pairs. */
static void test_tokenizer_size(void **state) {
    (void)state;
    sd_buf b = {0};
    sd_buf_puts(&b, "{\"model\":{\"vocab\":{");
    for (int i = 0; i < 128000; i++) {
        sd_buf_printf(&b, "%s\n      \"\xc4\xa0tok%d\": %d", i ? "," : "", i, i);
    }
    sd_buf_puts(&b, "},\"merges\":[");
    for (int i = 0; i < 280000; i++) {
        sd_buf_printf(&b, "%s\n      [\n        \"\xc4\xa0t%d\",\n        \"ok%d\"\n      ]",
                      i ? "," : "", i, i);
    }
    sd_buf_puts(&b, "]}}");
    assert_true(b.n > 15000000);
    json_t *j = NULL;
    sd_err err = {0};
    double t0 = sd_now();
    assert_int_equal(sd_json_parse(b.p, b.n, "tokenizer.json", &j, &err), SD_OK);
    double t = sd_now() - t0;
    print_message("%.1f MB of tokenizer.json in %.2f s\n", (double)b.n / 1e6, t);
    assert_true(t < (getenv("SD_SANITIZED") ? 120 : 10)); /* usually 0.4 s */
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "model"), "merges")),
                     280000);
    json_decref(j);
    /* densest real spelling: one-letter pairs without spaces */
    sd_buf_clear(&b);
    sd_buf_puts(&b, "{\"merges\":[");
    for (int i = 0; i < 300000; i++) {
        sd_buf_puts(&b, i ? ",[\"a\",\"b\"]" : "[\"a\",\"b\"]");
    }
    sd_buf_puts(&b, "]}");
    assert_int_equal(sd_json_parse(b.p, b.n, "tokenizer.json", &j, &err), SD_OK);
    json_decref(j);
    sd_buf_free(&b);
}

static void test_fields(void **state) {
    (void)state;
    static const char text[] = "{\"i\":7,\"r\":1e2,\"s\":\"x\",\"b\":true,\"z\":null,\"a\":[],"
                               "\"theta\":1000000,\"big\":4294967296}";
    json_t *j;
    sd_err err;
    int64_t i = -1;
    double d = -1;
    bool b = false, found = true;
    const char *s = NULL;
    assert_int_equal(sd_json_parse(text, sizeof text - 1, "t", &j, NULL), SD_OK);

    assert_int_equal(sd_json_i64(j, "i", 0, 10, &i, NULL, &err), SD_OK);
    assert_int_equal(i, 7);
    assert_int_equal(sd_json_i64(j, "i", 8, 10, &i, NULL, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "\"i\""));
    assert_non_null(strstr(err.text, "8..10"));
    assert_non_null(strstr(err.text, "got 7"));
    assert_int_equal(sd_json_i64(j, "r", 0, 1000, &i, NULL, &err), SD_EFORMAT); /* 1e2 */
    assert_non_null(strstr(err.text, "\"r\": expected an integer, got the real number 100"));
    assert_int_equal(sd_json_i64(j, "s", 0, 1000, &i, NULL, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "a string"));
    assert_int_equal(sd_json_i64(j, "big", 0, INT32_MAX, &i, NULL, &err), SD_EFORMAT);
    assert_int_equal(sd_json_i64(j, "no", 0, 1, &i, NULL, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "\"no\" is missing"));
    assert_int_equal(sd_json_i64(j, "z", 0, 1, &i, NULL, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "\"z\" is null"));
    assert_int_equal(i, 7); /* untouched by the failures */
    assert_int_equal(sd_json_i64(j, "z", 0, 1, &i, &found, &err), SD_OK);
    assert_false(found);
    assert_int_equal(sd_json_i64(j, "i", 0, 9, &i, &found, &err), SD_OK);
    assert_true(found);

    assert_int_equal(sd_json_f64(j, "r", &d, NULL, &err), SD_OK);
    assert_true(d == 100);
    assert_int_equal(sd_json_f64(j, "theta", &d, NULL, &err), SD_OK);
    assert_true(d == 1e6);
    assert_int_equal(sd_json_f64(j, "b", &d, NULL, &err), SD_EFORMAT);
    assert_int_equal(sd_json_bool(j, "b", &b, NULL, &err), SD_OK);
    assert_true(b);
    assert_int_equal(sd_json_bool(j, "i", &b, NULL, &err), SD_EFORMAT);
    assert_int_equal(sd_json_str(j, "s", &s, NULL, &err), SD_OK);
    assert_string_equal(s, "x");
    assert_int_equal(sd_json_str(j, "a", &s, NULL, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "an array"));
    json_decref(j);
}

static void test_load(void **state) {
    (void)state;
    sd_err err = {0};
    json_t *j = NULL;
    const char *p = in_tmp("a.json");
    write_bytes(p, "\xef\xbb\xbf{\"a\":1}", 10);
    assert_int_equal(sd_json_load(p, 0, &j, &err), SD_OK);
    assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
    json_decref(j);
    assert_int_not_equal(sd_json_load(p, 9, &j, &err), SD_OK);
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    write_bytes(p, lfs, sizeof lfs - 1);
    assert_int_equal(sd_json_load(p, 0, &j, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "Git LFS pointer"));
    write_bytes(p, "[1,\n2,\n}", 8);
    assert_int_equal(sd_json_load(p, 0, &j, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "a.json: line 3"));
    assert_int_equal(sd_json_load(in_tmp("absent.json"), 0, &j, &err), SD_EFILE);
    assert_non_null(strstr(err.text, "absent.json"));
    assert_null(j);
}

/* Reals as they were written, in their order, and reals still. */
static void test_text(void **state) {
    (void)state;
    static const char text[] =
        "{\"b\":1e-05,\"a\":[0.1,1.0,-2.5e-300,0.30000000000000004,1e+22,7,true,null],"
        "\"s\":\"x\\ny\",\"e\":{},\"l\":[]}";
    json_t *j = NULL, *again = NULL;
    char *out = NULL;
    sd_err err;
    assert_int_equal(sd_json_parse(text, sizeof text - 1, "t", &j, &err), SD_OK);
    assert_int_equal(sd_json_text(j, 0, &out, &err), SD_OK);
    assert_string_equal(out, text);
    sd_free(out);
    assert_int_equal(sd_json_text(j, 2, &out, &err), SD_OK);
    assert_non_null(strstr(out, "{\n  \"b\": 1e-05,\n  \"a\": [\n    0.1,\n    1.0,\n"));
    assert_int_equal(sd_json_parse(out, strlen(out), "t", &again, &err), SD_OK);
    assert_true(json_equal(j, again));
    json_decref(j);
    json_decref(again);
    sd_free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_bounds),   cmocka_unit_test(test_tokenizer_size),
        cmocka_unit_test(test_fields),   cmocka_unit_test(test_load),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
