/* Result tables: cells, printing by display width, CSV after RFC 4180, JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/table.h"

static sd_table *sample(void) {
    sd_err e;
    sd_table *t = sd_table_new("heads", &e);
    assert_non_null(t);
    int col = -1;
    assert_int_equal(sd_table_heading(t, &e, "LN folded, lag %d", 0), SD_OK);
    assert_int_equal(sd_table_add_column(t, "layer", SD_COL_INT, "layer", false, &col, &e), SD_OK);
    assert_int_equal(col, 0);
    assert_int_equal(sd_table_add_column(t, "head", SD_COL_INT, "head", false, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_column(t, "pr", SD_COL_NUM, "rank", false, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_column(t, "name", SD_COL_STR, "name", false, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_column(t, "sigma1", SD_COL_NUM, "σ", true, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_column(t, "planes", SD_COL_VEC, "all σ", false, &col, &e), SD_OK);
    assert_int_equal(col, 5);
    assert_int_equal(sd_table_add_column(t, "pr", SD_COL_NUM, "", false, NULL, &e), SD_EINVAL);
    assert_int_equal(sd_table_note(t, &e, "a note"), SD_OK);
    assert_int_equal(sd_table_meta_str(t, "model", "toy", &e), SD_OK);
    assert_int_equal(sd_table_meta_num(t, "N", 512, &e), SD_OK);
    for (int r = 0; r < 3; r++) {
        int row;
        assert_int_equal(sd_table_add_row(t, &row, &e), SD_OK);
        assert_int_equal(row, r);
        sd_table_set_int(t, row, "layer", r / 2);
        sd_table_set_int(t, row, "head", r % 2);
    }
    sd_table_set_num(t, 0, "pr", 2.829);
    sd_table_set_num(t, 1, "pr", NAN);
    assert_int_equal(sd_table_set_str(t, 0, "name", "é, \"x\"", &e), SD_OK);
    assert_int_equal(sd_table_set_str(t, 1, "name", "two\nlines", &e), SD_OK);
    assert_int_equal(sd_table_set_str(t, 1, "name", "two\nlines", &e), SD_OK); /* replaces */
    double v[3] = {3, 1.0 / 3, 0};
    assert_int_equal(sd_table_set_vec(t, 0, "planes", v, 3, &e), SD_OK);
    assert_int_equal(sd_table_set_vec(t, 1, "planes", NULL, 0, &e), SD_OK);
    sd_table_set_num(t, 2, "sigma1", 0.25);
    return t;
}

static void test_cells(void **state) {
    (void)state;
    sd_table *t = sample();
    assert_string_equal(sd_table_kind(t), "heads");
    assert_int_equal(sd_table_rows(t), 3);
    assert_int_equal(sd_table_cols(t), 6);
    int pr = sd_table_find_col(t, "pr"), pl = sd_table_find_col(t, "planes");
    assert_int_equal(sd_table_find_col(t, "nothing"), -1);
    assert_int_equal(sd_table_col_kind(t, pl), SD_COL_VEC);
    assert_string_equal(sd_table_col_name(t, pr), "pr");
    assert_string_equal(sd_table_col_doc(t, pr), "rank");
    assert_true(sd_table_col_wide(t, 4) && !sd_table_col_wide(t, 2));
    assert_true(sd_table_has(t, 1, pr) && isnan(sd_table_num(t, 1, pr)));
    assert_false(sd_table_has(t, 2, pr));
    assert_true(sd_table_num(t, 2, 0) == 1.0 && sd_table_int(t, 2, 0) == 1);
    assert_string_equal(sd_table_str(t, 1, 3), "two\nlines");
    size_t n;
    const double *v = sd_table_vec(t, 0, pl, &n);
    assert_int_equal(n, 3);
    assert_true(v[1] == 1.0 / 3);
    assert_non_null(sd_table_vec(t, 1, pl, &n));
    assert_int_equal(n, 0);
    assert_null(sd_table_vec(t, 2, pl, &n));
    assert_int_equal(sd_table_find_row(t, 0, 1), 1);
    assert_int_equal(sd_table_find_row(t, 1, -1), 2);
    assert_int_equal(sd_table_find_row(t, 1, 1), -1);
    /* A column added late is missing in the rows there are; a row added late has it. */
    sd_err e;
    assert_int_equal(sd_table_add_column(t, "late", SD_COL_NUM, "", false, NULL, &e), SD_OK);
    assert_false(sd_table_has(t, 0, 6));
    assert_int_equal(sd_table_add_row(t, NULL, &e), SD_OK);
    sd_table_set_num(t, 3, "late", 1);
    assert_true(sd_table_has(t, 3, 6));
    assert_int_equal(sd_table_n_heading(t), 1);
    assert_string_equal(sd_table_heading_at(t, 0), "LN folded, lag 0");
    assert_string_equal(sd_table_note_at(t, 0), "a note");
    const char *s;
    double x;
    assert_int_equal(sd_table_n_meta(t), 2);
    assert_string_equal(sd_table_meta_at(t, 0, &s, &x), "model");
    assert_string_equal(s, "toy");
    assert_string_equal(sd_table_meta_at(t, 1, &s, &x), "N");
    assert_true(s == NULL && x == 512);
    sd_table *again = sd_table_ref(t);
    sd_table_unref(t);
    assert_int_equal(sd_table_rows(again), 4);
    sd_table_unref(again);
    sd_table_unref(NULL);
}

static void test_print(void **state) {
    (void)state;
    sd_table *t = sample();
    sd_err e;
    sd_buf b = {0};
    assert_int_equal(sd_table_print(t, 0, 0, &b, &e), SD_OK);
    assert_string_equal(b.p, "LN folded, lag 0\n"
                             "layer  head     pr  name        sigma1\n"
                             "    0     0  2.829  é, \"x\"           –\n"
                             "    0     1    nan  two\\nlines       –\n"
                             "    1     0      –  –           0.2500\n"
                             "a note\n");
    /* No room for the wide column; then for none but the first. */
    sd_buf_clear(&b);
    assert_int_equal(sd_table_print(t, 37, 0, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "layer  head     pr  name\n"));
    assert_non_null(strstr(b.p, "\n… 1 more column: sigma1\na note\n"));
    sd_buf_clear(&b);
    assert_int_equal(sd_table_print(t, 8, 0, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "\nlayer\n    0\n    0\n    1\n"));
    /* Rows cut in the middle. */
    for (int r = 3; r < 20; r++) {
        assert_int_equal(sd_table_add_row(t, NULL, &e), SD_OK);
        sd_table_set_int(t, r, "layer", r);
    }
    sd_buf_clear(&b);
    assert_int_equal(sd_table_print(t, 80, 5, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "\n… 15 more rows\n"));
    int lines = 0;
    for (const char *p = b.p; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 1 + 1 + 5 + 1 + 1);
    assert_non_null(strstr(b.p, "\n   18  "));
    assert_non_null(strstr(b.p, "\n   19  "));
    assert_null(strstr(b.p, "\n   17  "));
    sd_buf_clear(&b);
    assert_int_equal(sd_table_print(t, 80, 1, &b, &e), SD_OK);
    assert_non_null(strstr(b.p, "… 19 more rows"));
    sd_buf_free(&b);
    sd_table_unref(t);

    /* Columns line up whatever the script; control bytes and broken UTF-8 cannot reach a terminal.
     */
    t = sd_table_new("x", &e);
    assert_int_equal(sd_table_add_column(t, "s", SD_COL_STR, "", false, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_column(t, "v", SD_COL_INT, "", false, NULL, &e), SD_OK);
    const char *texts[] = {"abcdef", "日本語", "e\xCC\x81tat", "\x1b[31m", "\xff\xfe", "\xC2\x9Bq"};
    for (int r = 0; r < 6; r++) {
        assert_int_equal(sd_table_add_row(t, NULL, &e), SD_OK);
        assert_int_equal(sd_table_set_str(t, r, "s", texts[r], &e), SD_OK);
        sd_table_set_int(t, r, "v", r);
    }
    assert_int_equal(sd_table_print(t, 80, 0, &b, &e), SD_OK);
    assert_string_equal(b.p, "s         v\n"
                             "abcdef    0\n"
                             "日本語    1\n"
                             "e\xCC\x81tat      2\n"
                             "\\x1b[31m  3\n"
                             "\\xff\\xfe  4\n"
                             "\\u009bq   5\n");
    sd_buf_free(&b);
    sd_table_unref(t);

    /* Long strings are cut with an ellipsis; long headings wrap. */
    t = sd_table_new("x", &e);
    assert_int_equal(sd_table_heading(t, &e, "%s", "one two three four five six seven eight"),
                     SD_OK);
    assert_int_equal(sd_table_add_column(t, "s", SD_COL_STR, "", false, NULL, &e), SD_OK);
    assert_int_equal(sd_table_add_row(t, NULL, &e), SD_OK);
    assert_int_equal(sd_table_set_str(t, 0, "s",
                                      "äääääääääääääääääääääääääääääääääääääääääääääääääääääääääää",
                                      &e),
                     SD_OK);
    assert_int_equal(sd_table_print(t, 20, 0, &b, &e), SD_OK);
    assert_string_equal(b.p, "one two three four\nfive six seven eight\ns\näääääääääääääääääää…\n");
    sd_buf_free(&b);
    sd_table_unref(t);
    t = sd_table_new("empty", &e);
    assert_int_equal(sd_table_print(t, 80, 0, &b, &e), SD_OK);
    sd_buf_free(&b);
    sd_table_unref(t);
}

static void test_numbers(void **state) {
    (void)state;
    struct {
        double v[4];
        const char *text[4];
    } c[] = {
        {{1.5, 100.25, 0.5, 0}, {"1.5", "100.2", "0.5", "0.0"}},
        {{1, 2, 30, -4}, {"1", "2", "30", "-4"}},
        {{0.12345, 0.5, 1e-7, -0.25}, {"0.1235", "0.5000", "1e-07", "-0.2500"}},
        {{1e12, 1, 2.5, INFINITY}, {"1e+12", "1", "2.5", "inf"}},
        {{2e-5, 1e-6, -INFINITY, 0}, {"2e-05", "1e-06", "-inf", "0"}},
        {{12345.6, 0.5, 7, 8}, {"12346", "0.5", "7", "8"}},
    };
    sd_err e;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        sd_table *t = sd_table_new("x", &e);
        assert_int_equal(sd_table_add_column(t, "v", SD_COL_NUM, "", false, NULL, &e), SD_OK);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(sd_table_add_row(t, NULL, &e), SD_OK);
            sd_table_set_num(t, r, "v", c[i].v[r]);
        }
        sd_buf b = {0};
        assert_int_equal(sd_table_print(t, 80, 0, &b, &e), SD_OK);
        char *save, *line = strtok_r(b.p, "\n", &save);
        for (int r = 0; r < 4; r++) {
            line = strtok_r(NULL, "\n", &save);
            assert_non_null(line);
            assert_string_equal(line + strspn(line, " "), c[i].text[r]);
        }
        sd_buf_free(&b);
        sd_table_unref(t);
    }
}

static void test_csv(void **state) {
    (void)state;
    sd_table *t = sample();
    sd_err e;
    sd_table_set_num(t, 2, "pr", 0.1);
    assert_int_equal(sd_table_set_str(t, 2, "name", "", &e), SD_OK);
    sd_buf b = {0};
    assert_int_equal(sd_table_csv(t, &b, &e), SD_OK);
    assert_string_equal(b.p, "layer,head,pr,name,sigma1\r\n"
                             "0,0,2.8290000000000002,\"é, \"\"x\"\"\",\r\n"
                             "0,1,nan,\"two\nlines\",\r\n"
                             "1,0,0.10000000000000001,\"\",0.25\r\n");
    sd_buf_free(&b);
    sd_table_unref(t);
}

static void test_json(void **state) {
    (void)state;
    sd_table *t = sample();
    sd_err e;
    for (int vectors = 0; vectors < 2; vectors++) {
        sd_buf b = {0};
        assert_int_equal(sd_table_json(t, vectors, &b, &e), SD_OK);
        json_error_t je;
        json_t *j = json_loadb(b.p, b.n, 0, &je);
        assert_non_null(j);
        assert_int_equal(json_array_size(j), 3);
        json_t *r = json_array_get(j, 0);
        assert_int_equal(json_object_size(r), vectors ? 6 : 5);
        assert_int_equal(json_integer_value(json_object_get(r, "layer")), 0);
        assert_true(json_real_value(json_object_get(r, "pr")) == 2.829);
        assert_string_equal(json_string_value(json_object_get(r, "name")), "é, \"x\"");
        assert_true(json_is_null(json_object_get(r, "sigma1")));
        if (vectors) {
            json_t *v = json_object_get(r, "planes");
            assert_int_equal(json_array_size(v), 3);
            assert_true(json_number_value(json_array_get(v, 1)) == 1.0 / 3);
            assert_int_equal(json_array_size(json_object_get(json_array_get(j, 1), "planes")), 0);
            assert_true(json_is_null(json_object_get(json_array_get(j, 2), "planes")));
        }
        r = json_array_get(j, 1);
        assert_true(json_is_null(json_object_get(r, "pr")));
        assert_string_equal(json_string_value(json_object_get(r, "name")), "two\nlines");
        json_decref(j);
        sd_buf_free(&b);
    }
    sd_table_unref(t);
    t = sd_table_new("none", &e);
    sd_buf b = {0};
    assert_int_equal(sd_table_json(t, true, &b, &e), SD_OK);
    assert_string_equal(b.p, "[]\n");
    sd_buf_free(&b);
    sd_table_unref(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells), cmocka_unit_test(test_print), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_csv),   cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
