/* api_table.c: the plugin table's group "table". */
#include <math.h>

#include "host/api.h"

static sd_htable *h_table_new(sd_call *c, const char *kind) {
    sd_table *t = sd_table_new(kind ? kind : "table", &c->err);
    sd_handle *h = t ? sd_api_new(c, H_TABLE) : NULL;
    if (!h) {
        sd_table_unref(t);
        return NULL;
    }
    h->u.table = t;
    return (sd_htable *)h;
}

static void h_table_release(sd_call *c, sd_htable *t) {
    sd_api_drop(c, t, H_TABLE);
}

static sd_table *table_of(sd_call *c, const sd_htable *t, bool write) {
    sd_handle *h = sd_api_check(c, t, H_TABLE);
    if (h && write && h->borrowed) {
        sd_api_fail(c, SD_EINVAL, "an argument table cannot be changed");
        return NULL;
    }
    return h ? h->u.table : NULL;
}

static int h_table_heading(sd_call *c, sd_htable *p, const char *text) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_heading(t, &c->err, "%s", text ? text : "") : (int)c->err.code;
}

static int h_table_note(sd_call *c, sd_htable *p, const char *text) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_note(t, &c->err, "%s", text ? text : "") : (int)c->err.code;
}

static int h_table_meta_num(sd_call *c, sd_htable *p, const char *name, double v) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_meta_num(t, name ? name : "", v, &c->err) : (int)c->err.code;
}

static int h_table_meta_str(sd_call *c, sd_htable *p, const char *name, const char *v) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_meta_str(t, name ? name : "", v ? v : "", &c->err) : (int)c->err.code;
}

static int h_table_column(sd_call *c, sd_htable *p, const char *name, int kind, const char *doc,
                          bool wide) {
    static const sd_col_kind kinds[] = {SD_COL_INT, SD_COL_NUM, SD_COL_STR, SD_COL_VEC};
    sd_table *t = table_of(c, p, true);
    if (!t)
        return c->err.code;
    if (!name || !name[0] || kind < 0 || kind > SD_TABLE_VEC)
        return sd_api_fail(c, SD_EINVAL, "table_column: name \"%.40s\", kind %d",
                           name ? name : "NULL", kind);
    if (sd_table_find_col(t, name) >= 0)
        return sd_api_fail(c, SD_EINVAL, "column %.40s exists already", name);
    return sd_table_add_column(t, name, kinds[kind], doc ? doc : "", wide, NULL, &c->err);
}

static int h_table_row(sd_call *c, sd_htable *p) {
    sd_table *t = table_of(c, p, true);
    int row = -1;
    return t && sd_table_add_row(t, &row, &c->err) == SD_OK ? row : -1;
}

/* The column's index when row and column exist (and the column has the kind), else -1. */
static int cell(sd_call *c, const sd_table *t, int32_t row, const char *col, int kind) {
    int k = col ? sd_table_find_col(t, col) : -1;
    if (k < 0 || row < 0 || row >= sd_table_rows(t)) {
        sd_api_fail(c, SD_EINVAL, "no cell at row %d, column %.40s", row, col ? col : "NULL");
        return -1;
    }
    if (kind >= 0 && (int)sd_table_col_kind(t, k) != kind) {
        sd_api_fail(c, SD_EINVAL, "column %.40s has another kind", col);
        return -1;
    }
    return k;
}

static int h_table_set_int(sd_call *c, sd_htable *p, int32_t row, const char *col, int64_t v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_INT) < 0)
        return c->err.code;
    sd_table_set_int(t, row, col, v);
    return 0;
}

static int h_table_set_num(sd_call *c, sd_htable *p, int32_t row, const char *col, double v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_NUM) < 0)
        return c->err.code;
    sd_table_set_num(t, row, col, v);
    return 0;
}

static int h_table_set_str(sd_call *c, sd_htable *p, int32_t row, const char *col, const char *v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_STR) < 0)
        return c->err.code;
    return sd_table_set_str(t, row, col, v ? v : "", &c->err);
}

static int h_table_set_vec(sd_call *c, sd_htable *p, int32_t row, const char *col, const double *v,
                           size_t n) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_VEC) < 0)
        return c->err.code;
    if (n && !v)
        return sd_api_fail(c, SD_EINVAL, "table_set_vec of NULL");
    return sd_table_set_vec(t, row, col, v, n, &c->err);
}

static int32_t h_table_n_rows(sd_call *c, sd_htable *p) {
    sd_table *t = table_of(c, p, false);
    return t ? sd_table_rows(t) : 0;
}

static bool h_table_has_column(sd_call *c, sd_htable *p, const char *col) {
    sd_table *t = table_of(c, p, false);
    return t && col && sd_table_find_col(t, col) >= 0;
}

static double h_table_get_num(sd_call *c, sd_htable *p, int32_t row, const char *col) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, -1) : -1;
    if (k < 0 || !sd_table_has(t, row, k))
        return NAN;
    sd_col_kind kind = sd_table_col_kind(t, k);
    if (kind == SD_COL_INT || kind == SD_COL_NUM)
        return sd_table_num(t, row, k);
    sd_api_fail(c, SD_EINVAL, "column %.40s holds no numbers", col);
    return NAN;
}

static const char *h_table_get_str(sd_call *c, sd_htable *p, int32_t row, const char *col) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, SD_COL_STR) : -1;
    return k >= 0 && sd_table_has(t, row, k) ? sd_table_str(t, row, k) : NULL;
}

static const double *h_table_get_vec(sd_call *c, sd_htable *p, int32_t row, const char *col,
                                     size_t *n) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, SD_COL_VEC) : -1;
    size_t have = 0;
    const double *v = k >= 0 && sd_table_has(t, row, k) ? sd_table_vec(t, row, k, &have) : NULL;
    if (n)
        *n = have;
    return v;
}

void sd_api_table(sd_host *t) {
    t->table_new = h_table_new;
    t->table_release = h_table_release;
    t->table_heading = h_table_heading;
    t->table_note = h_table_note;
    t->table_meta_num = h_table_meta_num;
    t->table_meta_str = h_table_meta_str;
    t->table_column = h_table_column;
    t->table_row = h_table_row;
    t->table_set_int = h_table_set_int;
    t->table_set_num = h_table_set_num;
    t->table_set_str = h_table_set_str;
    t->table_set_vec = h_table_set_vec;
    t->table_n_rows = h_table_n_rows;
    t->table_has_column = h_table_has_column;
    t->table_get_num = h_table_get_num;
    t->table_get_str = h_table_get_str;
    t->table_get_vec = h_table_get_vec;
}
