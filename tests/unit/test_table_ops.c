/* Tables from tables: quantiles, orders, groups, joins, reading back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/table_ops.h"
#include "io/tables.h"

static sd_err err;
static void ok(sd_status st) {
    if (st != SD_OK)
        fail_msg("%s", err.text);
}

/* layer, pr (row 2 nan, row 3 missing), name */
static sd_table *sample(void) {
    static const int layer[] = {1, 0, 1, 0, 1};
    sd_table *t = sd_table_new("heads", &err);
    int row;
    ok(sd_table_heading(t, &err, "settings"));
    ok(sd_table_meta_num(t, "N", 7, &err));
    ok(sd_table_add_column(t, "layer", SD_COL_INT, "the layer", false, NULL, &err));
    ok(sd_table_add_column(t, "pr", SD_COL_NUM, "rank", true, NULL, &err));
    ok(sd_table_add_column(t, "name", SD_COL_STR, "", false, NULL, &err));
    ok(sd_table_add_column(t, "planes", SD_COL_VEC, "", false, NULL, &err));
    for (int i = 0; i < 5; i++) {
        ok(sd_table_add_row(t, &row, &err));
        sd_table_set_int(t, row, "layer", layer[i]);
        if (i != 3)
            sd_table_set_num(t, row, "pr", i == 2 ? NAN : i + 1);
        ok(sd_table_set_str(t, row, "name", i % 2 ? "odd" : "", &err));
        ok(sd_table_set_vec(t, row, "planes", (double[]){i, 0.1}, 2, &err));
    }
    return t;
}

static void test_quantile(void **state) {
    (void)state;
    double x[] = {5, 1, 2, 3}, one[] = {7}, inf[] = {INFINITY, 1, INFINITY};
    assert_true(sd_quantile(x, 4, 0.5) == 2.5);
    assert_true(sd_quantile(x, 4, 0) == 1 && sd_quantile(x, 4, 1) == 5);
    assert_true(sd_quantile(x, 4, 1.0 / 3) == 2);
    assert_true(sd_quantile(one, 1, 0.3) == 7);
    assert_true(isinf(sd_quantile(inf, 3, 0.75))); /* not inf - inf */
}

static void test_take(void **state) {
    (void)state;
    sd_table *t = sample(), *d = NULL;
    const int rows[] = {4, 4, 0};
    ok(sd_table_take(t, rows, 3, NULL, &d, &err));
    sd_table_unref(t); /* shares nothing */
    assert_int_equal(sd_table_rows(d), 3);
    assert_int_equal(sd_table_cols(d), 4);
    assert_string_equal(sd_table_heading_at(d, 0), "settings");
    assert_string_equal(sd_table_col_doc(d, 1), "rank");
    assert_true(sd_table_col_wide(d, 1));
    size_t n;
    assert_true(sd_table_vec(d, 1, 3, &n)[0] == 4 && n == 2);
    assert_string_equal(sd_table_str(d, 2, 2), "");
    int c;
    assert_false(sd_table_shared(d));
    ok(sd_table_put_column(d, "name", SD_COL_INT, NULL, &c, &err)); /* strings are freed */
    assert_false(sd_table_has(d, 0, c));
    sd_table_put_int(d, 0, c, 9);
    sd_table_drop_column(d, sd_table_find_col(d, "planes"));
    assert_int_equal(sd_table_cols(d), 3);
    assert_int_equal(sd_table_int(d, 0, sd_table_find_col(d, "name")), 9);
    sd_table_unref(d);
}

static void test_order_and_groups(void **state) {
    (void)state;
    sd_table *t = sample(), *d = NULL;
    int order[5], start[6], groups = 0;
    const sd_key keys[] = {{0, false}, {1, true}};
    ok(sd_table_order(t, keys, 2, order, &err));
    const int want[] = {1, 3, 4, 0, 2}; /* missing and nan last in their layer */
    for (int i = 0; i < 5; i++)
        assert_int_equal(order[i], want[i]);
    assert_int_equal(sd_table_order(t, &(sd_key){3, false}, 1, order, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "planes holds vectors"));
    const int by[] = {0};
    ok(sd_table_groups(t, by, 1, order, start, &groups, &err));
    assert_int_equal(groups, 2);
    assert_int_equal(start[1], 3);
    assert_int_equal(order[0], 0); /* layer 1 comes first */
    assert_int_equal(order[2], 4);
    const sd_agg aggs[] = {
        {1, "median", 0, "pr"}, {1, "count", 0, "n"}, {2, "last", 0, "name"}, {0, "max", 0, "top"}};
    ok(sd_table_group(t, by, 1, aggs, 4, &d, &err));
    assert_true(sd_table_num(d, 0, 1) == 3);    /* 1 and 5: the nan is left out */
    assert_int_equal(sd_table_int(d, 0, 2), 3); /* but counts as a value */
    assert_int_equal(sd_table_int(d, 1, 2), 1);
    assert_string_equal(sd_table_str(d, 1, 3), "odd");
    assert_int_equal(sd_table_col_kind(d, 4), SD_COL_INT);
    assert_string_equal(sd_table_col_doc(d, 1), "median of the group: rank");
    sd_table_unref(d);
    const sd_agg bad[] = {{2, "mean", 0, "x"}, {1, "middle", 0, "x"}, {1, "quantile", 1.5, "x"}};
    for (int i = 0; i < 3; i++)
        assert_int_equal(sd_table_group(t, by, 1, &bad[i], 1, &d, &err), SD_EINVAL);
    sd_table_unref(t);
}

static void test_join(void **state) {
    (void)state;
    sd_table *t = sample(), *v = sd_table_new("v", &err), *d = NULL;
    int row;
    ok(sd_table_add_column(v, "layer", SD_COL_NUM, "", false, NULL, &err)); /* num meets int */
    ok(sd_table_add_column(v, "pr", SD_COL_INT, "", false, NULL, &err));
    for (int i = 0; i < 3; i++) {
        ok(sd_table_add_row(v, &row, &err));
        if (i < 2)
            sd_table_set_num(v, row, "layer", 1 + 4 * i);
        sd_table_set_int(v, row, "pr", 10 + i);
    }
    const char *const keys[] = {"layer"};
    ok(sd_table_join(t, v, keys, 1, SD_JOIN_INNER, "_2", &d, &err));
    assert_int_equal(sd_table_rows(d), 3);
    assert_int_equal(sd_table_int(d, 2, sd_table_find_col(d, "pr_2")), 10);
    assert_non_null(strstr(sd_table_note_at(d, 0), "2 of 5 rows of the first table and 2 of 3"));
    sd_table_unref(d);
    ok(sd_table_join(t, v, keys, 1, SD_JOIN_OUTER, "_2", &d, &err));
    assert_int_equal(sd_table_rows(d), 7); /* a missing key has no partner */
    assert_int_equal(sd_table_int(d, 5, 0), 5);
    assert_false(sd_table_has(d, 6, 0));
    sd_table_unref(d);
    const sd_table *both[] = {t, v};
    ok(sd_table_concat(both, 2, "N", &d, &err));
    assert_int_equal(sd_table_rows(d), 8);
    assert_string_equal(sd_table_str(d, 0, 0), "7"); /* of the meta */
    assert_string_equal(sd_table_str(d, 5, 0), "1"); /* its place */
    assert_int_equal(sd_table_col_kind(d, 1), SD_COL_NUM);
    assert_true(sd_table_num(d, 0, 1) == 1 && sd_table_num(d, 5, 2) == 10);
    sd_table_unref(d);
    sd_table_unref(v);
    sd_table_unref(t);
}

static void test_read(void **state) {
    (void)state;
    sd_table *t = sample(), *d = NULL;
    sd_buf b = {0};
    sd_buf_puts(&b, "#sd ");
    ok(sd_table_header_json(t, &b, &err));
    sd_buf_puts(&b, "\n");
    ok(sd_table_csv(t, &b, &err));
    ok(sd_table_from_csv(b.p, b.n, &d, &err));
    assert_int_equal(sd_table_rows(d), 5);
    assert_true(isnan(sd_table_num(d, 2, 1)) && sd_table_has(d, 2, 1) && !sd_table_has(d, 3, 1));
    assert_int_equal(sd_table_col_kind(d, 1), SD_COL_NUM);
    assert_string_equal(sd_table_str(d, 0, 2), "");
    assert_string_equal(sd_table_heading_at(d, 0), "settings");
    sd_table_unref(d);
    /* Every prefix is read or refused with a reason. */
    for (size_t n = 0; n < b.n; n++) {
        sd_err e = {0};
        if (sd_table_from_csv(b.p, n, &d, &e) == SD_OK)
            sd_table_unref(d);
        else if (!e.text[0])
            fail_msg("prefix %zu: no reason", n);
    }
    sd_buf_free(&b);
    sd_table_unref(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantile),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_order_and_groups),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
