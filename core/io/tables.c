#include "io/tables.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/table_ops.h"
#include "io/json.h"

enum { MAX_BYTES = 1 << 30 };

static const char *const types[] = {"int", "num", "str", "vec"}; /* as sd_col_kind */

/* ---- header ------------------------------------------------------------------------------------
 */
static sd_status read_lines(const json_t *h, const char *key, sd_table *t,
                            sd_status (*add)(sd_table *, sd_err *, const char *, ...),
                            sd_err *err) {
    const json_t *list = json_object_get(h, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s)
            return sd_fail(err, SD_EFORMAT, "header: %s[%zu]: expected a string", key, i);
        SD_TRY(add(t, err, "%s", s));
    }
    return SD_OK;
}

static sd_status read_header(const json_t *h, sd_table **out, sd_err *err) {
    const char *kind = json_string_value(json_object_get(h, "kind"));
    if (!json_is_object(h) || !kind)
        return sd_fail(err, SD_EFORMAT, "header: expected an object with a \"kind\"");
    sd_table *t = *out = sd_table_new(kind, err);
    if (!t)
        return SD_ENOMEM;
    SD_TRY(read_lines(h, "heading", t, sd_table_heading, err));
    SD_TRY(read_lines(h, "notes", t, sd_table_note, err));
    const json_t *meta = json_object_get(h, "meta"), *cols = json_object_get(h, "columns");
    for (void *it = json_object_iter((json_t *)meta); it;
         it = json_object_iter_next((json_t *)meta, it)) {
        const json_t *v = json_object_iter_value(it);
        if (json_is_string(v))
            SD_TRY(sd_table_meta_str(t, json_object_iter_key(it), json_string_value(v), err));
        else
            SD_TRY(sd_table_meta_num(t, json_object_iter_key(it),
                                     json_is_number(v) ? json_number_value(v) : NAN, err));
    }
    for (size_t i = 0; i < json_array_size(cols); i++) {
        const json_t *c = json_array_get(cols, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        const char *type = json_string_value(json_object_get(c, "type"));
        const char *doc = json_string_value(json_object_get(c, "doc"));
        int k = 0;
        while (type && k < 4 && strcmp(types[k], type) != 0)
            k++;
        if (!name || !type || k == 4)
            return sd_fail(err, SD_EFORMAT,
                           "header: column %zu: expected name and type (known: "
                           "int num str vec)",
                           i);
        SD_TRY(sd_table_add_column(t, name, (sd_col_kind)k, doc,
                                   json_is_true(json_object_get(c, "wide")), NULL, err));
    }
    return SD_OK;
}

/* ---- CSV ---------------------------------------------------------------------------------------
 */
typedef struct csv {
    const char *p, *end;
    size_t line;
    sd_buf field;
    bool quoted; /* the field was */
    bool last;   /* ... and ended its record */
} csv;

static sd_status next_field(csv *c, sd_err *err) {
    sd_buf_clear(&c->field);
    c->quoted = c->p < c->end && *c->p == '"';
    if (c->quoted) {
        for (c->p++;; c->p++) {
            if (c->p == c->end)
                return sd_fail(err, SD_EFORMAT, "line %zu: a quoted field does not end", c->line);
            if (*c->p == '"' && !(c->p + 1 < c->end && c->p[1] == '"'))
                break;
            c->p += *c->p == '"';
            c->line += *c->p == '\n';
            sd_buf_putc(&c->field, *c->p);
        }
        c->p++;
    }
    while (c->p < c->end && *c->p != ',' && *c->p != '\n' && *c->p != '\r') {
        if (c->quoted)
            return sd_fail(err, SD_EFORMAT, "line %zu: text behind a quoted field", c->line);
        sd_buf_putc(&c->field, *c->p++);
    }
    c->last = c->p == c->end || *c->p != ',';
    if (c->p < c->end && *c->p == '\r')
        c->p++;
    if (c->p < c->end && (*c->p == '\n' || !c->last))
        c->p++;
    c->line += c->last;
    if (!c->field.n)
        sd_buf_put(&c->field, "", 0);
    return sd_buf_status(&c->field, err);
}

static const char *text_of(const csv *c) {
    return c->field.p ? c->field.p : "";
}

/* What the field could be: the narrowest kind; -1 when it is missing. */
static int kind_of(const csv *c) {
    int64_t i;
    double x;
    if (c->quoted)
        return SD_COL_STR;
    if (!c->field.n)
        return -1;
    return sd_parse_i64(text_of(c), &i)      ? SD_COL_INT
           : sd_parse_double(text_of(c), &x) ? SD_COL_NUM
                                             : SD_COL_STR;
}

static sd_status put_field(sd_table *t, int row, int col, const csv *c, sd_err *err) {
    int64_t i;
    double x;
    if (!c->quoted && !c->field.n)
        return SD_OK;
    const char *s = text_of(c);
    switch (sd_table_col_kind(t, col)) {
    case SD_COL_INT:
        if (!sd_parse_i64(s, &i))
            break;
        sd_table_put_int(t, row, col, i);
        return SD_OK;
    case SD_COL_NUM:
        if (!sd_parse_double(s, &x))
            break;
        sd_table_put_num(t, row, col, x);
        return SD_OK;
    default:
        return sd_table_put_str(t, row, col, s, err);
    }
    return sd_fail(err, SD_EFORMAT, "line %zu: column %s: \"%.40s\" is no %s", c->line,
                   sd_table_col_name(t, col), s,
                   sd_table_col_kind(t, col) == SD_COL_INT ? "integer" : "number");
}

/* Every record but the first through `each`; n: fields a record. */
static sd_status records(csv c, int n, int *kinds, sd_table *t, const int *cols, sd_err *err) {
    sd_status st = SD_OK;
    c.field = (sd_buf){0};
    while (st == SD_OK && c.p < c.end) {
        int row = 0, i = 0;
        if (*c.p == '\n' || *c.p == '\r') { /* an empty line */
            c.p++;
            continue;
        }
        if (t)
            st = sd_table_add_row(t, &row, err);
        do {
            if (st == SD_OK)
                st = next_field(&c, err);
            if (st == SD_OK && i >= n)
                st = sd_fail(err, SD_EFORMAT, "line %zu: more than %d fields", c.line, n);
            if (st != SD_OK)
                break;
            int k = kind_of(&c);
            if (t)
                st = put_field(t, row, cols[i], &c, err);
            else if (k > kinds[i])
                kinds[i] = k;
            i++;
        } while (st == SD_OK && !c.last);
        if (st == SD_OK && i < n)
            st = sd_fail(err, SD_EFORMAT, "line %zu: %d fields, expected %d", c.line - 1, i, n);
    }
    sd_buf_free(&c.field);
    return st;
}

typedef struct names {
    char **v;
    size_t n, cap;
} names;

static sd_status read_names(csv *c, names *v, sd_err *err) {
    do {
        SD_TRY(next_field(c, err));
        SD_TRY(sd_grow((void **)&v->v, &v->cap, v->n + 1, sizeof *v->v, err));
        if (!(v->v[v->n] = sd_strdup(text_of(c), err)))
            return SD_ENOMEM;
        if (!*v->v[v->n++])
            return sd_fail(err, SD_EFORMAT, "column %zu has no name", v->n - 1);
    } while (!c->last);
    return SD_OK;
}

static sd_status csv_columns(csv *c, const names *v, bool header, int *kinds, int *cols,
                             sd_table *t, sd_err *err) {
    for (size_t i = 0; i < v->n; i++)
        kinds[i] = -1;
    if (!header)
        SD_TRY(records(*c, (int)v->n, kinds, NULL, NULL, err));
    for (size_t i = 0; i < v->n; i++) {
        int k = kinds[i] < 0 ? SD_COL_NUM : kinds[i];
        if (!header)
            SD_TRY(sd_table_add_column(t, v->v[i], (sd_col_kind)k, "", false, NULL, err));
        cols[i] = sd_table_find_col(t, v->v[i]);
        if (cols[i] < 0 || sd_table_col_kind(t, cols[i]) == SD_COL_VEC)
            return sd_fail(err, SD_EFORMAT, "column %s is not in the header", v->v[i]);
    }
    return records(*c, (int)v->n, kinds, t, cols, err);
}

sd_status sd_table_from_csv(const char *text, size_t n, sd_table **out, sd_err *err) {
    csv c = {.p = text, .end = text + n, .line = 1};
    sd_table *t = NULL;
    names v = {0};
    int *kinds = NULL, *cols = NULL;
    json_t *h = NULL;
    sd_status st = SD_OK;
    *out = NULL;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        c.p += 3;
    if (c.end - c.p > 4 && memcmp(c.p, "#sd ", 4) == 0) {
        const char *e = memchr(c.p, '\n', (size_t)(c.end - c.p));
        e = e ? e : c.end;
        SD_GO(st, done, sd_json_parse(c.p + 4, (size_t)(e - c.p - 4), "header", &h, err));
        SD_GO(st, done, read_header(h, &t, err));
        c.p = e < c.end ? e + 1 : e;
        c.line++;
    } else if (!(t = sd_table_new("table", err))) {
        st = SD_ENOMEM;
        goto done;
    }
    if (c.p == c.end) {
        st = h ? SD_OK : sd_fail(err, SD_EFORMAT, "no line of column names");
        goto done;
    }
    SD_GO(st, done, read_names(&c, &v, err));
    kinds = sd_alloc(v.n, sizeof *kinds, err);
    cols = sd_alloc(v.n, sizeof *cols, err);
    st = kinds && cols ? csv_columns(&c, &v, h != NULL, kinds, cols, t, err) : SD_ENOMEM;
done:
    for (size_t i = 0; i < v.n; i++)
        sd_free(v.v[i]);
    sd_free(v.v);
    sd_free(kinds);
    sd_free(cols);
    sd_buf_free(&c.field);
    json_decref(h);
    if (st == SD_OK)
        *out = t;
    else
        sd_table_unref(t);
    return st;
}

/* ---- JSON --------------------------------------------------------------------------------------
 */
static int json_kind(const json_t *v) {
    return json_is_integer(v) ? SD_COL_INT
           : json_is_real(v)  ? SD_COL_NUM
           : json_is_array(v) ? SD_COL_VEC
                              : SD_COL_STR;
}

/* Columns in the order of their first rows. */
static sd_status json_columns(const json_t *rows, sd_table *t, sd_err *err) {
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *o = json_array_get(rows, r);
        for (void *it = json_object_iter((json_t *)o); it;
             it = json_object_iter_next((json_t *)o, it)) {
            const json_t *v = json_object_iter_value(it);
            const char *name = json_object_iter_key(it);
            int c = sd_table_find_col(t, name), k = json_kind(v);
            if (json_is_object(v))
                return sd_fail(err, SD_EFORMAT, "row %zu: %s is an object", r, name);
            if (json_is_null(v) && c >= 0)
                continue;
            if (c < 0 && !json_is_null(v)) {
                SD_TRY(sd_table_add_column(t, name, (sd_col_kind)k, "", false, NULL, err));
            } else if (c >= 0 && k != (int)sd_table_col_kind(t, c)) {
                int have = (int)sd_table_col_kind(t, c);
                if (k > SD_COL_NUM || have > SD_COL_NUM)
                    return sd_fail(err, SD_EFORMAT, "row %zu: %s is of another type than above", r,
                                   name);
                SD_TRY(sd_table_put_column(t, name, SD_COL_NUM, NULL, &c, err));
            }
        }
    }
    for (size_t r = 0; r < json_array_size(rows); r++) { /* columns without any value */
        const json_t *o = json_array_get(rows, r);
        for (void *it = json_object_iter((json_t *)o); it;
             it = json_object_iter_next((json_t *)o, it))
            if (sd_table_find_col(t, json_object_iter_key(it)) < 0)
                SD_TRY(sd_table_add_column(t, json_object_iter_key(it), SD_COL_NUM, "", false, NULL,
                                           err));
    }
    return SD_OK;
}

static sd_status put_vector(sd_table *t, int row, int col, const json_t *v, sd_err *err) {
    size_t n = json_array_size(v);
    double *x = sd_alloc(n, sizeof *x, err);
    if (!x)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(v, i);
        x[i] = json_is_number(e) ? json_number_value(e) : NAN;
    }
    sd_status st = sd_table_put_vec(t, row, col, x, n, err);
    sd_free(x);
    return st;
}

static sd_status put_value(sd_table *t, int row, const char *name, const json_t *v, sd_err *err) {
    int c = sd_table_find_col(t, name);
    if (c < 0)
        return sd_fail(err, SD_EFORMAT, "row %d: column %s is not in the header", row, name);
    sd_col_kind k = sd_table_col_kind(t, c);
    if (json_is_null(v))
        return SD_OK;
    if (k == SD_COL_INT && json_is_integer(v))
        sd_table_put_int(t, row, c, json_integer_value(v));
    else if (k == SD_COL_NUM && json_is_number(v))
        sd_table_put_num(t, row, c, json_number_value(v));
    else if (k == SD_COL_STR && json_is_string(v))
        return sd_table_put_str(t, row, c, json_string_value(v), err);
    else if (k == SD_COL_STR && json_is_boolean(v))
        return sd_table_put_str(t, row, c, json_is_true(v) ? "true" : "false", err);
    else if (k == SD_COL_VEC && json_is_array(v))
        return put_vector(t, row, c, v, err);
    else
        return sd_fail(err, SD_EFORMAT, "row %d: column %s is not of type %s", row, name, types[k]);
    return SD_OK;
}

static sd_status read_rows(const json_t *rows, sd_table *t, sd_err *err) {
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *o = json_array_get(rows, r);
        int row;
        if (!json_is_object(o))
            return sd_fail(err, SD_EFORMAT, "row %zu: expected an object", r);
        SD_TRY(sd_table_add_row(t, &row, err));
        for (void *it = json_object_iter((json_t *)o); it;
             it = json_object_iter_next((json_t *)o, it))
            SD_TRY(put_value(t, row, json_object_iter_key(it), json_object_iter_value(it), err));
    }
    return SD_OK;
}

sd_status sd_table_from_json(const json_t *j, sd_table **out, sd_err *err) {
    const json_t *h = json_object_get(j, "table"), *rows = h ? json_object_get(j, "rows") : j;
    sd_table *t = NULL;
    *out = NULL;
    if (!json_is_array(rows))
        return sd_fail(err, SD_EFORMAT,
                       "expected an array of rows, or an object with \"table\" and "
                       "\"rows\"");
    sd_status st = SD_OK;
    if (h)
        st = read_header(h, &t, err);
    else if (!(t = sd_table_new("table", err)))
        st = SD_ENOMEM;
    else
        st = json_columns(rows, t, err);
    if (st == SD_OK)
        st = read_rows(rows, t, err);
    if (st == SD_OK)
        *out = t;
    else
        sd_table_unref(t);
    return st;
}

sd_status sd_table_read(const char *path, sd_table **out, sd_err *err) {
    sd_buf b = {0};
    json_t *j = NULL;
    *out = NULL;
    SD_TRY(sd_read_file(path, MAX_BYTES, &b, err));
    size_t i = 0;
    while (i < b.n && strchr(" \t\r\n", b.p[i]))
        i++;
    sd_status st;
    if (i < b.n && (b.p[i] == '[' || b.p[i] == '{')) {
        st = sd_json_parse(b.p, b.n, path, &j, err);
        if (st == SD_OK && (st = sd_table_from_json(j, out, err)) != SD_OK)
            sd_err_context(err, "%s", path);
    } else if ((st = sd_table_from_csv(b.p ? b.p : "", b.n, out, err)) != SD_OK) {
        sd_err_context(err, "%s", path);
    }
    json_decref(j);
    sd_buf_free(&b);
    return st;
}
