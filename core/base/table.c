#include "base/table.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

typedef struct cell {
    bool set;
    union {
        int64_t i;
        double f;
        char *s;
        struct {
            double *v;
            size_t n;
        } vec;
    } u;
} cell;

typedef struct column {
    char *name, *doc;
    sd_col_kind kind;
    bool wide;
} column;

typedef struct entry {
    char *name, *str; /* str NULL: a number */
    double num;
} entry;

typedef struct lines {
    char **v;
    size_t n, cap;
} lines;

struct sd_table {
    atomic_int refs;
    char *kind;
    column *cols;
    size_t n_cols, cap_cols;
    cell **rows; /* each of n_cols cells at the time of adding; columns come before rows */
    size_t n_rows, cap_rows;
    lines heading, notes;
    entry *meta;
    size_t n_meta, cap_meta;
};

sd_table *sd_table_new(const char *kind, sd_err *err) {
    sd_table *t = sd_alloc(1, sizeof *t, err);
    if (!t)
        return NULL;
    atomic_init(&t->refs, 1);
    t->kind = sd_strdup(kind, err);
    if (!t->kind) {
        sd_free(t);
        return NULL;
    }
    return t;
}

sd_table *sd_table_ref(sd_table *t) {
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void sd_table_unref(sd_table *t) {
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    for (size_t r = 0; r < t->n_rows; r++) {
        for (size_t c = 0; c < t->n_cols; c++) {
            if (t->cols[c].kind == SD_COL_STR)
                sd_free(t->rows[r][c].u.s);
            else if (t->cols[c].kind == SD_COL_VEC)
                sd_free(t->rows[r][c].u.vec.v);
        }
        sd_free(t->rows[r]);
    }
    sd_free(t->rows);
    for (size_t c = 0; c < t->n_cols; c++) {
        sd_free(t->cols[c].name);
        sd_free(t->cols[c].doc);
    }
    sd_free(t->cols);
    for (size_t i = 0; i < t->heading.n; i++)
        sd_free(t->heading.v[i]);
    for (size_t i = 0; i < t->notes.n; i++)
        sd_free(t->notes.v[i]);
    sd_free(t->heading.v);
    sd_free(t->notes.v);
    for (size_t i = 0; i < t->n_meta; i++) {
        sd_free(t->meta[i].name);
        sd_free(t->meta[i].str);
    }
    sd_free(t->meta);
    sd_free(t->kind);
    sd_free(t);
}

static sd_status add_line(lines *l, sd_err *err, const char *fmt, va_list ap) {
    sd_buf b = {0};
    sd_buf_vprintf(&b, fmt, ap);
    sd_status st = sd_buf_status(&b, err);
    void *v = l->v;
    if (st == SD_OK)
        st = sd_grow(&v, &l->cap, l->n + 1, sizeof(char *), err);
    l->v = v;
    if (st != SD_OK) {
        sd_buf_free(&b);
        return st;
    }
    l->v[l->n++] = b.p;
    return SD_OK;
}

sd_status sd_table_heading(sd_table *t, sd_err *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sd_status st = add_line(&t->heading, err, fmt, ap);
    va_end(ap);
    return st;
}

sd_status sd_table_note(sd_table *t, sd_err *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sd_status st = add_line(&t->notes, err, fmt, ap);
    va_end(ap);
    return st;
}

static sd_status add_meta(sd_table *t, const char *name, const char *str, double num, sd_err *err) {
    void *v = t->meta;
    SD_TRY(sd_grow(&v, &t->cap_meta, t->n_meta + 1, sizeof(entry), err));
    t->meta = v;
    entry e = {sd_strdup(name, err), str ? sd_strdup(str, err) : NULL, num};
    if (!e.name || (str && !e.str)) {
        sd_free(e.name);
        sd_free(e.str);
        return SD_ENOMEM;
    }
    t->meta[t->n_meta++] = e;
    return SD_OK;
}

sd_status sd_table_meta_str(sd_table *t, const char *name, const char *value, sd_err *err) {
    return add_meta(t, name, value, 0.0, err);
}

sd_status sd_table_meta_num(sd_table *t, const char *name, double value, sd_err *err) {
    return add_meta(t, name, NULL, value, err);
}

sd_status sd_table_add_column(sd_table *t, const char *name, sd_col_kind kind, const char *doc,
                              bool wide, int *col, sd_err *err) {
    assert(sd_table_find_col(t, name) < 0);
    void *v = t->cols;
    SD_TRY(sd_grow(&v, &t->cap_cols, t->n_cols + 1, sizeof(column), err));
    t->cols = v;
    /* Rows made before get the new column's empty cell. */
    for (size_t r = 0; r < t->n_rows; r++) {
        cell *c = sd_alloc(t->n_cols + 1, sizeof *c, err);
        if (!c)
            return SD_ENOMEM;
        memcpy(c, t->rows[r], t->n_cols * sizeof *c);
        sd_free(t->rows[r]);
        t->rows[r] = c;
    }
    column c = {sd_strdup(name, err), sd_strdup(doc ? doc : "", err), kind, wide};
    if (!c.name || !c.doc) {
        sd_free(c.name);
        sd_free(c.doc);
        return SD_ENOMEM;
    }
    if (col)
        *col = (int)t->n_cols;
    t->cols[t->n_cols++] = c;
    return SD_OK;
}

sd_status sd_table_add_row(sd_table *t, int *row, sd_err *err) {
    void *v = t->rows;
    SD_TRY(sd_grow(&v, &t->cap_rows, t->n_rows + 1, sizeof(cell *), err));
    t->rows = v;
    cell *c = sd_alloc(t->n_cols ? t->n_cols : 1, sizeof *c, err);
    if (!c)
        return SD_ENOMEM;
    if (row)
        *row = (int)t->n_rows;
    t->rows[t->n_rows++] = c;
    return SD_OK;
}

static cell *at(const sd_table *t, int row, const char *col, sd_col_kind kind) {
    int c = sd_table_find_col(t, col);
    assert(c >= 0 && t->cols[c].kind == kind && row >= 0 && (size_t)row < t->n_rows);
    (void)kind;
    return &t->rows[row][c];
}

void sd_table_set_int(sd_table *t, int row, const char *col, int64_t v) {
    cell *c = at(t, row, col, SD_COL_INT);
    c->set = true;
    c->u.i = v;
}

void sd_table_set_num(sd_table *t, int row, const char *col, double v) {
    cell *c = at(t, row, col, SD_COL_NUM);
    c->set = true;
    c->u.f = v;
}

sd_status sd_table_set_str(sd_table *t, int row, const char *col, const char *v, sd_err *err) {
    cell *c = at(t, row, col, SD_COL_STR);
    char *s = sd_strdup(v, err);
    if (!s)
        return SD_ENOMEM;
    sd_free(c->u.s);
    c->u.s = s;
    c->set = true;
    return SD_OK;
}

sd_status sd_table_set_vec(sd_table *t, int row, const char *col, const double *v, size_t n,
                           sd_err *err) {
    cell *c = at(t, row, col, SD_COL_VEC);
    double *d = sd_alloc_raw(n, sizeof *d, err);
    if (!d)
        return SD_ENOMEM;
    if (n)
        memcpy(d, v, n * sizeof *d);
    sd_free(c->u.vec.v);
    c->u.vec.v = d;
    c->u.vec.n = n;
    c->set = true;
    return SD_OK;
}

const char *sd_table_kind(const sd_table *t) { return t->kind; }
int sd_table_rows(const sd_table *t) { return (int)t->n_rows; }
int sd_table_cols(const sd_table *t) { return (int)t->n_cols; }

int sd_table_find_col(const sd_table *t, const char *name) {
    for (size_t i = 0; i < t->n_cols; i++)
        if (strcmp(t->cols[i].name, name) == 0)
            return (int)i;
    return -1;
}

const char *sd_table_col_name(const sd_table *t, int col) { return t->cols[col].name; }
const char *sd_table_col_doc(const sd_table *t, int col) { return t->cols[col].doc; }
sd_col_kind sd_table_col_kind(const sd_table *t, int col) { return t->cols[col].kind; }
bool sd_table_col_wide(const sd_table *t, int col) { return t->cols[col].wide; }
bool sd_table_has(const sd_table *t, int row, int col) { return t->rows[row][col].set; }
int64_t sd_table_int(const sd_table *t, int row, int col) { return t->rows[row][col].u.i; }

double sd_table_num(const sd_table *t, int row, int col) {
    const cell *c = &t->rows[row][col];
    return t->cols[col].kind == SD_COL_INT ? (double)c->u.i : c->u.f;
}

const char *sd_table_str(const sd_table *t, int row, int col) {
    const char *s = t->rows[row][col].u.s;
    return s ? s : "";
}

const double *sd_table_vec(const sd_table *t, int row, int col, size_t *n) {
    *n = t->rows[row][col].u.vec.n;
    return t->rows[row][col].u.vec.v;
}

int sd_table_find_row(const sd_table *t, int layer, int head) {
    int lc = sd_table_find_col(t, "layer"), hc = sd_table_find_col(t, "head");
    if (lc < 0 || (head >= 0 && hc < 0))
        return -1;
    for (int r = 0; r < (int)t->n_rows; r++)
        if (sd_table_int(t, r, lc) == layer && (head < 0 || sd_table_int(t, r, hc) == head))
            return r;
    return -1;
}

size_t sd_table_n_heading(const sd_table *t) { return t->heading.n; }
const char *sd_table_heading_at(const sd_table *t, size_t i) { return t->heading.v[i]; }
size_t sd_table_n_notes(const sd_table *t) { return t->notes.n; }
const char *sd_table_note_at(const sd_table *t, size_t i) { return t->notes.v[i]; }
size_t sd_table_n_meta(const sd_table *t) { return t->n_meta; }

const char *sd_table_meta_at(const sd_table *t, size_t i, const char **str, double *num) {
    *str = t->meta[i].str;
    *num = t->meta[i].num;
    return t->meta[i].name;
}

/* ---- printing --------------------------------------------------------------------------------- */

/* Columns on a terminal: one a code point, none for combining marks and joiners, two for the wide
 * East Asian blocks. Enough for names in tables. */
static size_t display_width(const char *s) {
    size_t w = 0;
    for (size_t n = strlen(s), k; n; s += k, n -= k) {
        uint32_t c;
        k = sd_utf8_next(s, n, &c);
        if (k == 0) {
            k = 1;
            w++;
        } else if ((c >= 0x300 && c < 0x370) || (c >= 0x200B && c < 0x2010) ||
                   (c >= 0xFE00 && c < 0xFE10)) {
            continue;
        } else {
            w += (c >= 0x1100 && c < 0x1160) || (c >= 0x2E80 && c < 0xA4D0) ||
                         (c >= 0xAC00 && c < 0xD7A4) || (c >= 0xF900 && c < 0xFB00) ||
                         (c >= 0xFE30 && c < 0xFE70) || (c >= 0xFF00 && c < 0xFF61) ||
                         (c >= 0x1F300 && c < 0x1FA00)
                     ? 2
                     : 1;
        }
    }
    return w;
}

/* Text safe for a terminal: control bytes and invalid UTF-8 as \xNN. */
static void put_safe(sd_buf *b, const char *s) {
    for (size_t n = strlen(s), k; n; s += k, n -= k) {
        uint32_t c = 0;
        k = sd_utf8_next(s, n, &c);
        if (k == 0 || c < 0x20 || (c >= 0x7F && c < 0xA0)) {
            for (size_t i = 0; i < (k ? k : 1); i++)
                sd_buf_printf(b, "\\x%02X", (unsigned char)s[i]);
            k = k ? k : 1;
        } else {
            sd_buf_put(b, s, k);
        }
    }
}

static void put_num(sd_buf *b, double x) {
    char t[40];
    double a = fabs(x);
    if (isnan(x))
        snprintf(t, sizeof t, "nan");
    else if (isinf(x))
        snprintf(t, sizeof t, x < 0 ? "-inf" : "inf");
    else if (x == rint(x) && a < 1e6)
        snprintf(t, sizeof t, "%.0f", x == 0.0 ? 0.0 : x);
    else if (a >= 1e5 || a < 1e-3)
        snprintf(t, sizeof t, "%.3g", x);
    else if (a >= 100)
        snprintf(t, sizeof t, "%.1f", x);
    else if (a >= 10)
        snprintf(t, sizeof t, "%.2f", x);
    else
        snprintf(t, sizeof t, "%.3f", x);
    sd_buf_puts(b, t);
}

static void put_cell(sd_buf *b, const sd_table *t, size_t r, size_t c) {
    const cell *x = &t->rows[r][c];
    if (!x->set) {
        sd_buf_puts(b, "–");
        return;
    }
    switch (t->cols[c].kind) {
    case SD_COL_INT: sd_buf_printf(b, "%lld", (long long)x->u.i); break;
    case SD_COL_NUM: put_num(b, x->u.f); break;
    case SD_COL_STR: put_safe(b, x->u.s); break;
    case SD_COL_VEC: sd_buf_printf(b, "[%zu]", x->u.vec.n); break;
    }
}

static void pad(sd_buf *b, size_t n) {
    while (n--)
        sd_buf_putc(b, ' ');
}

sd_status sd_table_print(const sd_table *t, int width, int max_rows, sd_buf *out, sd_err *err) {
    size_t room = width > 0 ? (size_t)width : 80, used = 0, hidden = 0;
    sd_buf tmp = {0};
    size_t *w = sd_alloc(t->n_cols + 1, sizeof *w, err);
    bool *show = sd_alloc(t->n_cols + 1, sizeof *show, err);
    if (!w || !show) {
        sd_free(w);
        sd_free(show);
        return SD_ENOMEM;
    }
    size_t head = t->n_rows, tail = 0;
    if (max_rows > 0 && t->n_rows > (size_t)max_rows) {
        head = (size_t)(max_rows + 1) / 2;
        tail = (size_t)max_rows - head;
    }
    for (size_t c = 0; c < t->n_cols; c++) {
        w[c] = display_width(t->cols[c].name);
        for (size_t r = 0; r < t->n_rows; r++) {
            if (r >= head && r < t->n_rows - tail)
                continue;
            sd_buf_clear(&tmp);
            put_cell(&tmp, t, r, c);
            size_t k = tmp.p ? display_width(tmp.p) : 0;
            if (k > w[c])
                w[c] = k;
        }
    }
    /* Narrow columns first, in order; then wide ones while there is room. The first column always
     * shows, however narrow the terminal. */
    for (int pass = 0; pass < 2; pass++)
        for (size_t c = 0; c < t->n_cols; c++) {
            if (t->cols[c].kind == SD_COL_VEC || show[c] || t->cols[c].wide != (pass == 1))
                continue;
            size_t need = w[c] + (used ? 2 : 0);
            if (used && used + need > room)
                continue;
            show[c] = true;
            used += need;
        }
    for (size_t c = 0; c < t->n_cols; c++)
        hidden += !show[c] && t->cols[c].kind != SD_COL_VEC;
    for (size_t i = 0; i < t->heading.n; i++) {
        put_safe(out, t->heading.v[i]);
        sd_buf_putc(out, '\n');
    }
    for (int row = -1; row < (int)t->n_rows; row++) {
        size_t r = (size_t)row;
        if (row >= 0 && r >= head && r < t->n_rows - tail) {
            sd_buf_printf(out, "… %zu more rows\n", t->n_rows - tail - head);
            row = (int)(t->n_rows - tail) - 1;
            continue;
        }
        bool first = true;
        size_t owed = 0; /* trailing blanks are not written */
        for (size_t c = 0; c < t->n_cols; c++) {
            if (!show[c])
                continue;
            sd_buf_clear(&tmp);
            if (row < 0)
                sd_buf_puts(&tmp, t->cols[c].name);
            else
                put_cell(&tmp, t, r, c);
            size_t k = tmp.p ? display_width(tmp.p) : 0;
            bool left = t->cols[c].kind == SD_COL_STR;
            pad(out, owed + (first ? 0 : 2) + (left ? 0 : w[c] - k));
            sd_buf_put(out, tmp.p ? tmp.p : "", tmp.n);
            owed = left ? w[c] - k : 0;
            first = false;
        }
        sd_buf_putc(out, '\n');
    }
    if (hidden) {
        sd_buf_puts(out, "not shown:");
        size_t line = 10;
        for (size_t c = 0; c < t->n_cols; c++) {
            if (show[c] || t->cols[c].kind == SD_COL_VEC)
                continue;
            size_t k = display_width(t->cols[c].name) + 1;
            if (line + k > room) {
                sd_buf_puts(out, "\n ");
                line = 1;
            }
            sd_buf_printf(out, " %s", t->cols[c].name);
            line += k;
        }
        sd_buf_putc(out, '\n');
    }
    for (size_t i = 0; i < t->notes.n; i++) {
        put_safe(out, t->notes.v[i]);
        sd_buf_putc(out, '\n');
    }
    sd_status st = sd_buf_status(&tmp, err);
    sd_buf_free(&tmp);
    sd_free(w);
    sd_free(show);
    return st == SD_OK ? sd_buf_status(out, err) : st;
}

/* ---- machine forms ------------------------------------------------------------------------------ */

static void csv_string(sd_buf *b, const char *s) {
    if (!strpbrk(s, ",\"\r\n")) {
        sd_buf_puts(b, s);
        return;
    }
    sd_buf_putc(b, '"');
    for (; *s; s++) {
        if (*s == '"')
            sd_buf_putc(b, '"');
        sd_buf_putc(b, *s);
    }
    sd_buf_putc(b, '"');
}

sd_status sd_table_csv(const sd_table *t, sd_buf *out, sd_err *err) {
    for (int row = -1; row < (int)t->n_rows; row++) {
        bool first = true;
        for (size_t c = 0; c < t->n_cols; c++) {
            if (t->cols[c].kind == SD_COL_VEC)
                continue;
            if (!first)
                sd_buf_putc(out, ',');
            first = false;
            if (row < 0) {
                csv_string(out, t->cols[c].name);
                continue;
            }
            const cell *x = &t->rows[row][c];
            if (!x->set)
                continue;
            if (t->cols[c].kind == SD_COL_INT)
                sd_buf_printf(out, "%lld", (long long)x->u.i);
            else if (t->cols[c].kind == SD_COL_STR)
                csv_string(out, x->u.s);
            else if (isfinite(x->u.f))
                sd_buf_json_double(out, x->u.f);
            else
                sd_buf_puts(out, isnan(x->u.f) ? "nan" : x->u.f < 0 ? "-inf" : "inf");
        }
        sd_buf_puts(out, "\r\n");
    }
    return sd_buf_status(out, err);
}

sd_status sd_table_json(const sd_table *t, bool vectors, sd_buf *out, sd_err *err) {
    sd_buf_putc(out, '[');
    for (size_t r = 0; r < t->n_rows; r++) {
        sd_buf_puts(out, r ? ",\n {" : "{");
        bool first = true;
        for (size_t c = 0; c < t->n_cols; c++) {
            const cell *x = &t->rows[r][c];
            if (t->cols[c].kind == SD_COL_VEC && !vectors)
                continue;
            if (!first)
                sd_buf_putc(out, ',');
            first = false;
            sd_buf_json_string(out, t->cols[c].name, strlen(t->cols[c].name));
            sd_buf_putc(out, ':');
            if (!x->set) {
                sd_buf_puts(out, "null");
                continue;
            }
            switch (t->cols[c].kind) {
            case SD_COL_INT: sd_buf_printf(out, "%lld", (long long)x->u.i); break;
            case SD_COL_NUM: sd_buf_json_double(out, x->u.f); break;
            case SD_COL_STR: sd_buf_json_string(out, x->u.s, strlen(x->u.s)); break;
            case SD_COL_VEC:
                sd_buf_putc(out, '[');
                for (size_t i = 0; i < x->u.vec.n; i++) {
                    if (i)
                        sd_buf_putc(out, ',');
                    sd_buf_json_double(out, x->u.vec.v[i]);
                }
                sd_buf_putc(out, ']');
                break;
            }
        }
        sd_buf_putc(out, '}');
    }
    sd_buf_puts(out, "]");
    return sd_buf_status(out, err);
}
