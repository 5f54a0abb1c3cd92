#include "base/table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/table_impl.h"

enum { DEFAULT_WIDTH = 80, DIGITS = 4, GAP = 2, CELL_MAX = 48 };

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

static void clear_cell(sd_col_kind kind, cell *c) {
    if (c->set && kind == SD_COL_STR)
        sd_free(c->u.s);
    if (c->set && kind == SD_COL_VEC)
        sd_free(c->u.v.p);
    c->set = false;
}

static void free_lines(lines *l) {
    for (size_t i = 0; i < l->n; i++)
        sd_free(l->p[i]);
    sd_free(l->p);
}

void sd_table_unref(sd_table *t) {
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    for (size_t c = 0; c < t->ncols; c++) {
        column *k = &t->cols[c];
        for (int r = 0; r < t->nrows; r++)
            clear_cell(k->kind, &k->cells[r]);
        sd_free(k->cells);
        sd_free(k->name);
        sd_free(k->doc);
    }
    for (size_t i = 0; i < t->nmeta; i++) {
        sd_free(t->meta[i].name);
        sd_free(t->meta[i].str);
    }
    free_lines(&t->heading);
    free_lines(&t->notes);
    sd_free(t->meta);
    sd_free(t->cols);
    sd_free(t->kind);
    sd_free(t);
}

static sd_status add_line(lines *l, sd_err *err, const char *fmt, va_list ap) {
    sd_buf b = {0};
    sd_buf_vprintf(&b, fmt, ap);
    sd_status st = sd_buf_status(&b, err);
    void *p = l->p;
    if (st == SD_OK)
        st = sd_grow(&p, &l->cap, l->n + 1, sizeof *l->p, err);
    if (st != SD_OK) {
        sd_buf_free(&b);
        return st;
    }
    l->p = p;
    l->p[l->n++] = b.p;
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

/* A name given again replaces the entry. */
static sd_status set_meta(sd_table *t, const char *name, const char *str, double num, sd_err *err) {
    char *s = NULL;
    if (str && !(s = sd_strdup(str, err)))
        return SD_ENOMEM;
    for (size_t i = 0; i < t->nmeta; i++)
        if (strcmp(t->meta[i].name, name) == 0) {
            sd_free(t->meta[i].str);
            t->meta[i].str = s;
            t->meta[i].num = num;
            return SD_OK;
        }
    char *key = sd_strdup(name, err);
    void *p = t->meta;
    if (!key || sd_grow(&p, &t->cap_meta, t->nmeta + 1, sizeof *t->meta, err) != SD_OK) {
        sd_free(key);
        sd_free(s);
        return SD_ENOMEM;
    }
    t->meta = p;
    t->meta[t->nmeta++] = (meta){key, s, num};
    return SD_OK;
}

sd_status sd_table_meta_str(sd_table *t, const char *name, const char *value, sd_err *err) {
    return set_meta(t, name, value, 0, err);
}

sd_status sd_table_meta_num(sd_table *t, const char *name, double value, sd_err *err) {
    return set_meta(t, name, NULL, value, err);
}

static sd_status grow_cells(column *k, int rows, sd_err *err) {
    void *p = k->cells;
    SD_TRY(sd_grow(&p, &k->cap, (size_t)rows, sizeof(cell), err));
    k->cells = p;
    return SD_OK;
}

sd_status sd_table_add_column(sd_table *t, const char *name, sd_col_kind kind, const char *doc,
                              bool wide, int *col, sd_err *err) {
    if (sd_table_find_col(t, name) >= 0)
        return sd_fail(err, SD_EINVAL, "column %s is there already", name);
    void *p = t->cols;
    SD_TRY(sd_grow(&p, &t->cap_cols, t->ncols + 1, sizeof *t->cols, err));
    t->cols = p;
    column k = {.kind = kind, .wide = wide};
    k.name = sd_strdup(name, err);
    k.doc = sd_strdup(doc ? doc : "", err);
    if (!k.name || !k.doc || (t->nrows > 0 && grow_cells(&k, t->nrows, err) != SD_OK)) {
        sd_free(k.name);
        sd_free(k.doc);
        return SD_ENOMEM;
    }
    for (int r = 0; r < t->nrows; r++)
        k.cells[r].set = false;
    if (col)
        *col = (int)t->ncols;
    t->cols[t->ncols++] = k;
    return SD_OK;
}

sd_status sd_table_add_row(sd_table *t, int *row, sd_err *err) {
    if (t->nrows == INT32_MAX)
        return sd_fail(err, SD_EINVAL, "too many rows");
    for (size_t c = 0; c < t->ncols; c++)
        SD_TRY(grow_cells(&t->cols[c], t->nrows + 1, err));
    for (size_t c = 0; c < t->ncols; c++)
        t->cols[c].cells[t->nrows].set = false;
    if (row)
        *row = t->nrows;
    t->nrows++;
    return SD_OK;
}

static cell *cell_of(sd_table *t, int row, const char *col, sd_col_kind kind) {
    int c = sd_table_find_col(t, col);
    assert(c >= 0 && t->cols[c].kind == kind && row >= 0 && row < t->nrows);
    (void)kind;
    return &t->cols[c].cells[row];
}

void sd_table_set_int(sd_table *t, int row, const char *col, int64_t v) {
    *cell_of(t, row, col, SD_COL_INT) = (cell){.set = true, .u.i = v};
}

void sd_table_set_num(sd_table *t, int row, const char *col, double v) {
    *cell_of(t, row, col, SD_COL_NUM) = (cell){.set = true, .u.d = v};
}

sd_status sd_table_set_str(sd_table *t, int row, const char *col, const char *v, sd_err *err) {
    cell *c = cell_of(t, row, col, SD_COL_STR);
    char *s = sd_strdup(v, err);
    if (!s)
        return SD_ENOMEM;
    clear_cell(SD_COL_STR, c);
    *c = (cell){.set = true, .u.s = s};
    return SD_OK;
}

sd_status sd_table_set_vec(sd_table *t, int row, const char *col, const double *v, size_t n,
                           sd_err *err) {
    cell *c = cell_of(t, row, col, SD_COL_VEC);
    double *p = sd_alloc_raw(n, sizeof *p, err);
    if (!p)
        return SD_ENOMEM;
    if (n)
        memcpy(p, v, n * sizeof *p);
    clear_cell(SD_COL_VEC, c);
    *c = (cell){.set = true, .u.v = {p, n}};
    return SD_OK;
}

const char *sd_table_kind(const sd_table *t) {
    return t->kind;
}

int sd_table_rows(const sd_table *t) {
    return t->nrows;
}

int sd_table_cols(const sd_table *t) {
    return (int)t->ncols;
}

int sd_table_find_col(const sd_table *t, const char *name) {
    for (size_t c = 0; c < t->ncols; c++)
        if (strcmp(t->cols[c].name, name) == 0)
            return (int)c;
    return -1;
}

static const column *col_at(const sd_table *t, int col) {
    assert(col >= 0 && (size_t)col < t->ncols);
    return &t->cols[col];
}

const char *sd_table_col_name(const sd_table *t, int col) {
    return col_at(t, col)->name;
}

const char *sd_table_col_doc(const sd_table *t, int col) {
    return col_at(t, col)->doc;
}

sd_col_kind sd_table_col_kind(const sd_table *t, int col) {
    return col_at(t, col)->kind;
}

bool sd_table_col_wide(const sd_table *t, int col) {
    return col_at(t, col)->wide;
}

bool sd_table_has(const sd_table *t, int row, int col) {
    assert(row >= 0 && row < t->nrows);
    return col_at(t, col)->cells[row].set;
}

int64_t sd_table_int(const sd_table *t, int row, int col) {
    assert(col_at(t, col)->kind == SD_COL_INT);
    return sd_table_has(t, row, col) ? t->cols[col].cells[row].u.i : 0;
}

double sd_table_num(const sd_table *t, int row, int col) {
    const column *k = col_at(t, col);
    assert(k->kind == SD_COL_INT || k->kind == SD_COL_NUM);
    if (!sd_table_has(t, row, col))
        return NAN;
    return k->kind == SD_COL_INT ? (double)k->cells[row].u.i : k->cells[row].u.d;
}

const char *sd_table_str(const sd_table *t, int row, int col) {
    assert(col_at(t, col)->kind == SD_COL_STR);
    return sd_table_has(t, row, col) ? t->cols[col].cells[row].u.s : NULL;
}

const double *sd_table_vec(const sd_table *t, int row, int col, size_t *n) {
    assert(col_at(t, col)->kind == SD_COL_VEC);
    bool has = sd_table_has(t, row, col);
    *n = has ? t->cols[col].cells[row].u.v.n : 0;
    return has ? t->cols[col].cells[row].u.v.p : NULL;
}

int sd_table_find_row(const sd_table *t, int layer, int head) {
    int cl = sd_table_find_col(t, "layer"), ch = sd_table_find_col(t, "head");
    if (cl < 0 || t->cols[cl].kind != SD_COL_INT ||
        (head >= 0 && (ch < 0 || t->cols[ch].kind != SD_COL_INT)))
        return -1;
    for (int r = 0; r < t->nrows; r++) {
        const cell *l = &t->cols[cl].cells[r];
        if (!l->set || l->u.i != layer)
            continue;
        if (head < 0 || (t->cols[ch].cells[r].set && t->cols[ch].cells[r].u.i == head))
            return r;
    }
    return -1;
}

size_t sd_table_n_heading(const sd_table *t) {
    return t->heading.n;
}

const char *sd_table_heading_at(const sd_table *t, size_t i) {
    return t->heading.p[i];
}

size_t sd_table_n_notes(const sd_table *t) {
    return t->notes.n;
}

const char *sd_table_note_at(const sd_table *t, size_t i) {
    return t->notes.p[i];
}

size_t sd_table_n_meta(const sd_table *t) {
    return t->nmeta;
}

const char *sd_table_meta_at(const sd_table *t, size_t i, const char **str, double *num) {
    *str = t->meta[i].str;
    *num = t->meta[i].num;
    return t->meta[i].name;
}

/* ---- print ----------------------------------------------------------------------------------- */

/* Columns a code point takes on a terminal: 0 for combining marks, 2 for East Asian wide ones. */
static int cp_width(uint32_t c) {
    static const uint32_t zero[][2] = {
        {0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
    static const uint32_t two[][2] = {{0x1100, 0x115F},   {0x2E80, 0x303E},  {0x3041, 0xA4CF},
                                      {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},  {0xFE30, 0xFE6F},
                                      {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},  {0x1F300, 0x1F64F},
                                      {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        if (c >= zero[i][0] && c <= zero[i][1])
            return 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (c >= two[i][0] && c <= two[i][1])
            return 2;
    return 1;
}

/* Appends s with control bytes and invalid UTF-8 escaped, cut to `max` columns with "…" when it is
 * longer. Returns the columns used; out may be NULL to measure. */
static int put_text(sd_buf *out, const char *s, int max) {
    size_t n = strlen(s);
    for (int pass = 0;; pass++) {
        int room = pass == 0 ? max : max - 1, used = 0;
        size_t start = out ? out->n : 0, i = 0;
        while (i < n) {
            char esc[8];
            uint32_t cp;
            size_t k = sd_utf8_next(s + i, n - i, &cp);
            const char *piece = s + i;
            size_t len = k;
            int w;
            if (k == 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) {
                unsigned char c = (unsigned char)s[i];
                if (k == 2) /* C1 controls */
                    snprintf(esc, sizeof esc, "\\u%04x", (unsigned)cp);
                else if (c == '\n' || c == '\t' || c == '\r')
                    snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
                else
                    snprintf(esc, sizeof esc, "\\x%02x", (unsigned)c);
                piece = esc;
                len = strlen(esc);
                w = (int)len;
                k = k ? k : 1;
            } else {
                w = cp_width(cp);
            }
            if (used + w > room)
                break;
            if (out)
                sd_buf_put(out, piece, len);
            used += w;
            i += k;
        }
        if (i == n)
            return used;
        if (pass == 1) {
            if (out && max > 0)
                sd_buf_puts(out, "…");
            return max > 0 ? used + 1 : 0;
        }
        if (out && !out->failed) {
            out->n = start;
            if (out->p)
                out->p[start] = '\0';
        }
    }
}

static void pad(sd_buf *out, int n) {
    while (n-- > 0)
        sd_buf_putc(out, ' ');
}

/* Decimals of a number column, so that its largest value shows DIGITS significant digits and all
 * points stand under each other; -1: %g for each (huge, tiny or whole numbers). */
static int column_decimals(const sd_table *t, const column *k) {
    double top = 0;
    bool whole = true;
    for (int r = 0; r < t->nrows; r++) {
        const cell *c = &k->cells[r];
        if (!c->set || !isfinite(c->u.d))
            continue;
        top = fmax(top, fabs(c->u.d));
        whole = whole && c->u.d == floor(c->u.d);
    }
    if (top == 0 || top >= 1e7 || top < 1e-3)
        return -1;
    if (whole)
        return 0;
    int d = DIGITS - 1 - (int)floor(log10(top));
    return d < 0 ? 0 : d;
}

static void cell_text(const column *k, const cell *c, int decimals, sd_buf *b) {
    if (!c->set) {
        sd_buf_puts(b, "–");
    } else if (k->kind == SD_COL_INT) {
        sd_buf_printf(b, "%" PRId64, c->u.i);
    } else if (k->kind == SD_COL_STR) {
        put_text(b, c->u.s, CELL_MAX);
    } else if (!isfinite(c->u.d) || decimals < 0) {
        sd_buf_double(b, c->u.d, DIGITS);
    } else if (c->u.d != 0 && fabs(c->u.d) < pow(10, -decimals)) {
        sd_buf_double(b, c->u.d, 2); /* would vanish among its column's decimals */
    } else {
        sd_buf_fixed(b, c->u.d, decimals);
    }
}

/* A line of prose, broken at spaces to `width` columns. */
static void put_wrapped(sd_buf *out, const char *s, int width) {
    sd_buf line = {0}, word = {0};
    int used = 0;
    while (*s) {
        const char *e = s + strcspn(s, " \n");
        sd_buf_clear(&word);
        sd_buf_put(&word, s, (size_t)(e - s));
        int w = word.p ? put_text(NULL, word.p, INT32_MAX) : 0;
        if (used > 0 && used + w > width) {
            while (line.n > 0 && line.p[line.n - 1] == ' ')
                line.p[--line.n] = '\0';
            sd_buf_put(out, line.p, line.n);
            sd_buf_putc(out, '\n');
            sd_buf_clear(&line);
            used = 0;
        }
        if (word.p)
            used += put_text(&line, word.p, INT32_MAX);
        s = e;
        if (*s == ' ') {
            sd_buf_putc(&line, ' ');
            used++;
            s++;
        } else if (*s == '\n') {
            sd_buf_put(out, line.p, line.n);
            sd_buf_putc(out, '\n');
            sd_buf_clear(&line);
            used = 0;
            s++;
        }
    }
    sd_buf_put(out, line.p, line.n);
    sd_buf_putc(out, '\n');
    out->failed = out->failed || line.failed || word.failed;
    sd_buf_free(&line);
    sd_buf_free(&word);
}

/* The rows left out when only max_rows are shown: [*from, *to). */
static void cut_rows(int rows, int max_rows, int *from, int *to) {
    *from = *to = rows;
    if (max_rows > 0 && rows > max_rows) {
        *from = (max_rows + 1) / 2;
        *to = rows - max_rows / 2;
    }
}

static void print_row(const sd_table *t, int row, int width, const int *w, const bool *show,
                      const int *decimals, sd_buf *text, sd_buf *out) {
    bool first = true;
    size_t last = t->ncols;
    while (last > 0 && !show[last - 1])
        last--;
    for (size_t c = 0; c < last; c++) {
        const column *k = &t->cols[c];
        if (!show[c])
            continue;
        if (!first)
            pad(out, GAP);
        first = false;
        sd_buf_clear(text);
        if (row < 0)
            sd_buf_puts(text, k->name);
        else
            cell_text(k, &k->cells[row], decimals[c], text);
        const char *s = text->p ? text->p : "";
        int cw = w[c] < width ? w[c] : width;
        int used = put_text(NULL, s, cw);
        if (k->kind != SD_COL_STR)
            pad(out, cw - used);
        put_text(out, s, cw);
        if (k->kind == SD_COL_STR && c + 1 < last)
            pad(out, cw - used);
    }
    sd_buf_putc(out, '\n');
}

/* A column without any value is not shown: it says nothing (w.columns lists it). */
static bool empty_column(const sd_table *t, size_t c) {
    for (int r = 0; r < t->nrows; r++)
        if (t->cols[c].cells[r].set)
            return false;
    return t->nrows > 0;
}

sd_status sd_table_print(const sd_table *t, int width, int max_rows, sd_buf *out, sd_err *err) {
    if (width <= 0)
        width = DEFAULT_WIDTH;
    size_t n = t->ncols;
    int *w = sd_alloc(2 * n, sizeof *w, err);
    bool *show = sd_alloc(n, sizeof *show, err);
    if (!w || !show) {
        sd_free(w);
        sd_free(show);
        return SD_ENOMEM;
    }
    int *decimals = w + n;
    sd_buf text = {0};
    int from, to;
    cut_rows(t->nrows, max_rows, &from, &to);
    for (size_t c = 0; c < n; c++) {
        const column *k = &t->cols[c];
        if (k->kind == SD_COL_VEC)
            continue;
        decimals[c] = k->kind == SD_COL_NUM ? column_decimals(t, k) : 0;
        w[c] = put_text(NULL, k->name, INT32_MAX);
        for (int r = 0; r < t->nrows; r++) {
            if (r >= from && r < to)
                continue;
            sd_buf_clear(&text);
            cell_text(k, &k->cells[r], decimals[c], &text);
            int cw = text.p ? put_text(NULL, text.p, INT32_MAX) : 0;
            w[c] = cw > w[c] ? cw : w[c];
        }
    }
    /* Plain columns first, in order; wide ones where there is room left. */
    int used = 0, hidden = 0;
    for (int wide = 0; wide < 2; wide++) {
        bool full = false;
        for (size_t c = 0; c < n; c++) {
            if (t->cols[c].kind == SD_COL_VEC || t->cols[c].wide != (wide == 1) ||
                empty_column(t, c))
                continue;
            int more = w[c] + (used ? GAP : 0);
            if (full || (used && used + more > width)) {
                full = true;
                hidden++;
                continue;
            }
            show[c] = true;
            used += more;
        }
    }
    for (size_t i = 0; i < t->heading.n; i++)
        put_wrapped(out, t->heading.p[i], width);
    if (used)
        print_row(t, -1, width, w, show, decimals, &text, out);
    for (int r = 0; r < t->nrows && used; r++) {
        if (r == from) {
            sd_buf_printf(out, "… %d more row%s\n", to - from, to - from == 1 ? "" : "s");
            r = to;
            if (r >= t->nrows)
                break;
        }
        print_row(t, r, width, w, show, decimals, &text, out);
    }
    if (used && t->nrows == 0)
        sd_buf_puts(out, "no rows\n");
    if (hidden) {
        sd_buf_clear(&text);
        sd_buf_printf(&text, "… %d more column%s:", hidden, hidden == 1 ? "" : "s");
        for (size_t c = 0; c < n; c++)
            if (t->cols[c].kind != SD_COL_VEC && !show[c] && !empty_column(t, c))
                sd_buf_printf(&text, " %s", t->cols[c].name);
        if (text.p)
            put_wrapped(out, text.p, width);
    }
    for (size_t i = 0; i < t->notes.n; i++)
        put_wrapped(out, t->notes.p[i], width);
    out->failed = out->failed || text.failed;
    sd_buf_free(&text);
    sd_free(w);
    sd_free(show);
    return sd_buf_status(out, err);
}

/* ---- CSV and JSON ---------------------------------------------------------------------------- */

/* Quoted where the text would end the field, or be read back as a number, as missing or as a
 * header. */
static void csv_text(sd_buf *out, const char *s) {
    double x;
    if (*s && *s != '#' && !strpbrk(s, ",\"\r\n") && !sd_parse_double(s, &x) &&
        strcmp(s, "nan") != 0 && strcmp(s, "inf") != 0 && strcmp(s, "-inf") != 0) {
        sd_buf_puts(out, s);
        return;
    }
    sd_buf_putc(out, '"');
    for (; *s; s++) {
        if (*s == '"')
            sd_buf_putc(out, '"');
        sd_buf_putc(out, *s);
    }
    sd_buf_putc(out, '"');
}

sd_status sd_table_csv(const sd_table *t, sd_buf *out, sd_err *err) {
    for (int r = -1; r < t->nrows; r++) {
        bool first = true;
        for (size_t c = 0; c < t->ncols; c++) {
            const column *k = &t->cols[c];
            if (k->kind == SD_COL_VEC)
                continue;
            if (!first)
                sd_buf_putc(out, ',');
            first = false;
            if (r < 0) {
                csv_text(out, k->name);
                continue;
            }
            const cell *x = &k->cells[r];
            if (!x->set)
                continue;
            if (k->kind == SD_COL_INT)
                sd_buf_printf(out, "%" PRId64, x->u.i);
            else if (k->kind == SD_COL_NUM)
                sd_buf_double(out, x->u.d, 17);
            else
                csv_text(out, x->u.s); /* an empty string is not a missing one */
        }
        sd_buf_puts(out, "\r\n");
    }
    return sd_buf_status(out, err);
}

sd_status sd_table_json(const sd_table *t, bool vectors, sd_buf *out, sd_err *err) {
    sd_buf_putc(out, '[');
    for (int r = 0; r < t->nrows; r++) {
        sd_buf_puts(out, r ? ",\n {" : "{");
        bool first = true;
        for (size_t c = 0; c < t->ncols; c++) {
            const column *k = &t->cols[c];
            if (k->kind == SD_COL_VEC && !vectors)
                continue;
            if (!first)
                sd_buf_puts(out, ", ");
            first = false;
            sd_buf_json_string(out, k->name, strlen(k->name));
            sd_buf_puts(out, ": ");
            const cell *x = &k->cells[r];
            if (!x->set) {
                sd_buf_puts(out, "null");
            } else if (k->kind == SD_COL_INT) {
                sd_buf_printf(out, "%" PRId64, x->u.i);
            } else if (k->kind == SD_COL_NUM) {
                sd_buf_json_double(out, x->u.d);
            } else if (k->kind == SD_COL_STR) {
                sd_buf_json_string(out, x->u.s, strlen(x->u.s));
            } else {
                sd_buf_putc(out, '[');
                for (size_t i = 0; i < x->u.v.n; i++) {
                    if (i)
                        sd_buf_puts(out, ", ");
                    sd_buf_json_double(out, x->u.v.p[i]);
                }
                sd_buf_putc(out, ']');
            }
        }
        sd_buf_putc(out, '}');
    }
    sd_buf_puts(out, "]\n");
    return sd_buf_status(out, err);
}

static void put_lines(sd_buf *out, const char *name, const lines *l) {
    sd_buf_printf(out, ", \"%s\": [", name);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sd_buf_puts(out, ", ");
        sd_buf_json_string(out, l->p[i], strlen(l->p[i]));
    }
    sd_buf_putc(out, ']');
}

sd_status sd_table_header_json(const sd_table *t, sd_buf *out, sd_err *err) {
    static const char *const types[] = {"int", "num", "str", "vec"};
    sd_buf_puts(out, "{\"kind\": ");
    sd_buf_json_string(out, t->kind, strlen(t->kind));
    put_lines(out, "heading", &t->heading);
    put_lines(out, "notes", &t->notes);
    sd_buf_puts(out, ", \"meta\": {");
    for (size_t i = 0; i < t->nmeta; i++) {
        if (i)
            sd_buf_puts(out, ", ");
        sd_buf_json_string(out, t->meta[i].name, strlen(t->meta[i].name));
        sd_buf_puts(out, ": ");
        if (t->meta[i].str)
            sd_buf_json_string(out, t->meta[i].str, strlen(t->meta[i].str));
        else
            sd_buf_json_double(out, t->meta[i].num);
    }
    sd_buf_puts(out, "}, \"columns\": [");
    for (size_t c = 0; c < t->ncols; c++) {
        const column *k = &t->cols[c];
        sd_buf_puts(out, c ? ", {\"name\": " : "{\"name\": ");
        sd_buf_json_string(out, k->name, strlen(k->name));
        sd_buf_printf(out, ", \"type\": \"%s\", \"wide\": %s, \"doc\": ", types[k->kind],
                      k->wide ? "true" : "false");
        sd_buf_json_string(out, k->doc, strlen(k->doc));
        sd_buf_putc(out, '}');
    }
    sd_buf_puts(out, "]}");
    return sd_buf_status(out, err);
}
