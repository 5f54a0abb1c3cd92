#include "base/table_ops.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/run.h"
#include "base/table_impl.h"

/* ---- cells and columns -------------------------------------------------------------------------
 */
sd_status sd_table_copy_cell(sd_col_kind kind, cell *c, const cell *s, sd_err *err) {
    c->set = false;
    if (!s->set)
        return SD_OK;
    cell new = *s;
    if (kind == SD_COL_STR && !(new.u.s = sd_strdup(s->u.s, err)))
        return SD_ENOMEM;
    if (kind == SD_COL_VEC) {
        if (!(new.u.v.p = sd_alloc_raw(s->u.v.n, sizeof *new.u.v.p, err)))
            return SD_ENOMEM;
        if (s->u.v.n)
            memcpy(new.u.v.p, s->u.v.p, s->u.v.n * sizeof *new.u.v.p);
    }
    *c = new;
    return SD_OK;
}

static void clear_column(column *k, int rows) {
    for (int r = 0; r < rows; r++) {
        cell *c = &k->cells[r];
        if (c->set && k->kind == SD_COL_STR)
            sd_free(c->u.s);
        if (c->set && k->kind == SD_COL_VEC)
            sd_free(c->u.v.p);
        c->set = false;
    }
}

/* n rows, all missing, in a table that has none. */
static sd_status set_rows(sd_table *t, int n, sd_err *err) {
    for (size_t c = 0; c < t->ncols; c++) {
        void *p = t->cols[c].cells;
        SD_TRY(sd_grow(&p, &t->cols[c].cap, (size_t)n, sizeof(cell), err));
        t->cols[c].cells = p;
        for (int r = 0; r < n; r++)
            t->cols[c].cells[r].set = false;
    }
    t->nrows = n;
    return SD_OK;
}

static bool has_line(const lines *l, const char *s) {
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->p[i], s) == 0)
            return true;
    return false;
}

/* Heading, notes and meta of s that d has not yet; of two values of one name d's stays. */
static sd_status inherit(sd_table *d, const sd_table *s, sd_err *err) {
    for (size_t i = 0; i < s->heading.n; i++)
        if (!has_line(&d->heading, s->heading.p[i]))
            SD_TRY(sd_table_heading(d, err, "%s", s->heading.p[i]));
    for (size_t i = 0; i < s->notes.n; i++)
        if (!has_line(&d->notes, s->notes.p[i]))
            SD_TRY(sd_table_note(d, err, "%s", s->notes.p[i]));
    for (size_t i = 0; i < s->nmeta; i++) {
        const meta *m = &s->meta[i];
        bool there = false;
        for (size_t k = 0; k < d->nmeta; k++)
            there = there || strcmp(d->meta[k].name, m->name) == 0;
        if (!there)
            SD_TRY(m->str ? sd_table_meta_str(d, m->name, m->str, err)
                          : sd_table_meta_num(d, m->name, m->num, err));
    }
    return SD_OK;
}

/* A table like s, without columns and rows. */
static sd_status like(const sd_table *s, sd_table **out, sd_err *err) {
    *out = sd_table_new(s->kind, err);
    return *out ? inherit(*out, s, err) : SD_ENOMEM;
}

/* Hands over or frees. */
static sd_status give(sd_table *t, sd_status st, sd_table **out) {
    *out = NULL;
    if (st == SD_OK)
        *out = t;
    else
        sd_table_unref(t);
    return st;
}

/* Column `from` of s into column `to` of d, rows[i] (NULL: i; < 0: missing) to row at + i. */
static sd_status copy_rows(const sd_table *s, size_t from, const int *rows, int n, sd_table *d,
                           size_t to, int at, sd_err *err) {
    const column *k = &s->cols[from];
    column *o = &d->cols[to];
    for (int i = 0; i < n; i++) {
        int r = rows ? rows[i] : i;
        cell *c = &o->cells[at + i];
        if (r < 0 || !k->cells[r].set)
            continue;
        if (o->kind == SD_COL_NUM && k->kind == SD_COL_INT)
            *c = (cell){.set = true, .u.d = (double)k->cells[r].u.i};
        else
            SD_TRY(sd_table_copy_cell(k->kind, c, &k->cells[r], err));
        if ((i & 0xffff) == 0xffff)
            SD_TRY(sd_check_cancel(err));
    }
    return SD_OK;
}

static sd_status take(const sd_table *t, const int *rows, int n, const bool *keep, sd_table **out,
                      sd_err *err) {
    SD_TRY(like(t, out, err));
    for (size_t c = 0; c < t->ncols; c++)
        if (!keep || keep[c])
            SD_TRY(sd_table_add_column(*out, t->cols[c].name, t->cols[c].kind, t->cols[c].doc,
                                       !keep && t->cols[c].wide, NULL, err));
    SD_TRY(set_rows(*out, n, err));
    size_t to = 0;
    for (size_t c = 0; c < t->ncols; c++)
        if (!keep || keep[c])
            SD_TRY(copy_rows(t, c, rows, n, *out, to++, 0, err));
    return SD_OK;
}

sd_status sd_table_take(const sd_table *t, const int *rows, int n, const bool *keep, sd_table **out,
                        sd_err *err) {
    sd_table *d = NULL;
    sd_status st = take(t, rows, rows ? n : t->nrows, keep, &d, err);
    return give(d, st, out);
}

bool sd_table_shared(const sd_table *t) {
    return atomic_load(&t->refs) > 1;
}

sd_status sd_table_put_column(sd_table *t, const char *name, sd_col_kind kind, const char *doc,
                              int *col, sd_err *err) {
    *col = sd_table_find_col(t, name);
    if (*col < 0)
        return sd_table_add_column(t, name, kind, doc, false, col, err);
    column *k = &t->cols[*col];
    if (doc) {
        char *s = sd_strdup(doc, err);
        if (!s)
            return SD_ENOMEM;
        sd_free(k->doc);
        k->doc = s;
    }
    clear_column(k, t->nrows);
    k->kind = kind;
    return SD_OK;
}

void sd_table_drop_column(sd_table *t, int col) {
    assert(col >= 0 && (size_t)col < t->ncols);
    column *k = &t->cols[col];
    clear_column(k, t->nrows);
    sd_free(k->cells);
    sd_free(k->name);
    sd_free(k->doc);
    memmove(k, k + 1, (t->ncols - (size_t)col - 1) * sizeof *k);
    t->ncols--;
}

static cell *place(sd_table *t, int row, int col, sd_col_kind kind) {
    assert(col >= 0 && (size_t)col < t->ncols && row >= 0 && row < t->nrows);
    assert(t->cols[col].kind == kind);
    (void)kind;
    return &t->cols[col].cells[row];
}

void sd_table_put_int(sd_table *t, int row, int col, int64_t v) {
    *place(t, row, col, SD_COL_INT) = (cell){.set = true, .u.i = v};
}

void sd_table_put_num(sd_table *t, int row, int col, double v) {
    *place(t, row, col, SD_COL_NUM) = (cell){.set = true, .u.d = v};
}

sd_status sd_table_put_str(sd_table *t, int row, int col, const char *v, sd_err *err) {
    (void)place(t, row, col, SD_COL_STR);
    return sd_table_set_str(t, row, t->cols[col].name, v, err);
}

sd_status sd_table_put_vec(sd_table *t, int row, int col, const double *v, size_t n, sd_err *err) {
    (void)place(t, row, col, SD_COL_VEC);
    return sd_table_set_vec(t, row, t->cols[col].name, v, n, err);
}

/* ---- order -------------------------------------------------------------------------------------
 */
typedef struct ref { /* one row, as qsort sees it */
    const column *const *cols;
    const bool *desc;
    int n, row;
} ref;

/* Missing last, nan before them, either way. */
static int compare_cells(const column *a, int i, const column *b, int j, bool desc) {
    const cell *x = &a->cells[i], *y = &b->cells[j];
    if (!x->set || !y->set)
        return (int)y->set - (int)x->set;
    int r;
    if (a->kind == SD_COL_STR) {
        r = strcmp(x->u.s, y->u.s);
    } else if (a->kind == SD_COL_INT && b->kind == SD_COL_INT) {
        r = (x->u.i > y->u.i) - (x->u.i < y->u.i);
    } else {
        double u = a->kind == SD_COL_INT ? (double)x->u.i : x->u.d;
        double v = b->kind == SD_COL_INT ? (double)y->u.i : y->u.d;
        if (isnan(u) || isnan(v))
            return (int)isnan(u) - (int)isnan(v) > 0   ? 1
                   : (int)isnan(u) - (int)isnan(v) < 0 ? -1
                                                       : 0;
        r = (u > v) - (u < v);
    }
    return desc ? -r : r;
}

static int by_keys(const void *pa, const void *pb) {
    const ref *a = pa, *b = pb;
    for (int k = 0; k < a->n; k++) {
        int r = compare_cells(a->cols[k], a->row, a->cols[k], b->row, a->desc[k]);
        if (r)
            return r;
    }
    return (a->row > b->row) - (a->row < b->row);
}

typedef struct sorter {
    const column **cols;
    bool *desc;
    ref *refs;
} sorter;

static void sorter_free(sorter *s) {
    sd_free(s->cols);
    sd_free(s->desc);
    sd_free(s->refs);
}

static sd_status sort_rows(const sd_table *t, const sd_key *keys, int n, sorter *s, sd_err *err) {
    memset(s, 0, sizeof *s);
    s->cols = sd_alloc((size_t)n, sizeof *s->cols, err);
    s->desc = sd_alloc((size_t)n, sizeof *s->desc, err);
    s->refs = sd_alloc((size_t)t->nrows, sizeof *s->refs, err);
    if (!s->cols || !s->desc || !s->refs)
        return SD_ENOMEM;
    for (int k = 0; k < n; k++) {
        s->cols[k] = &t->cols[keys[k].col];
        s->desc[k] = keys[k].desc;
        if (s->cols[k]->kind == SD_COL_VEC)
            return sd_fail(err, SD_EINVAL, "column %s holds vectors: they have no order",
                           s->cols[k]->name);
    }
    for (int r = 0; r < t->nrows; r++)
        s->refs[r] = (ref){s->cols, s->desc, n, r};
    qsort(s->refs, (size_t)t->nrows, sizeof *s->refs, by_keys);
    return SD_OK;
}

sd_status sd_table_order(const sd_table *t, const sd_key *keys, int n, int *order, sd_err *err) {
    sorter s;
    sd_status st = sort_rows(t, keys, n, &s, err);
    for (int r = 0; st == SD_OK && r < t->nrows; r++)
        order[r] = s.refs[r].row;
    sorter_free(&s);
    return st;
}

static int by_int(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

sd_status sd_table_groups(const sd_table *t, const int *keys, int n, int *order, int *start,
                          int *n_groups, sd_err *err) {
    sd_status st = SD_ENOMEM;
    sorter s = {0};
    /* first[g]: the first row of sorted group g, which begins at from[row] of the sorted rows */
    sd_key *k = sd_alloc((size_t)n, sizeof *k, err);
    int *first = sd_alloc((size_t)t->nrows, sizeof *first, err);
    int *from = sd_alloc((size_t)t->nrows + 1, sizeof *from, err);
    if (!k || !first || !from)
        goto done;
    for (int i = 0; i < n; i++)
        k[i] = (sd_key){keys[i], false};
    SD_GO(st, done, sort_rows(t, k, n, &s, err));
    int g = 0;
    for (int r = 0; r < t->nrows; r++) {
        bool same = r > 0;
        for (int i = 0; i < n && same; i++)
            same =
                compare_cells(s.cols[i], s.refs[r - 1].row, s.cols[i], s.refs[r].row, false) == 0;
        if (!same) {
            first[g++] = s.refs[r].row; /* the order is stable: it is the least */
            from[s.refs[r].row] = r;
        }
    }
    qsort(first, (size_t)g, sizeof *first, by_int);
    int at = 0;
    for (int i = 0; i < g; i++) {
        start[i] = at;
        int r = from[first[i]];
        do {
            order[at++] = s.refs[r++].row;
            bool same = r < t->nrows;
            for (int c = 0; c < n && same; c++)
                same = compare_cells(s.cols[c], s.refs[r - 1].row, s.cols[c], s.refs[r].row,
                                     false) == 0;
            if (!same)
                break;
        } while (true);
    }
    start[g] = at;
    *n_groups = g;
done:
    sorter_free(&s);
    sd_free(k);
    sd_free(first);
    sd_free(from);
    return st;
}

/* ---- aggregates --------------------------------------------------------------------------------
 */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sd_quantile(double *x, size_t n, double q) {
    qsort(x, n, sizeof *x, by_value);
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n || at == (double)i)
        return x[i];
    return x[i] == x[i + 1] ? x[i] : x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

static double agg_mean(double *x, size_t n, double q) {
    (void)q;
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (x[i] - s) / (double)(i + 1);
    return s;
}
static double agg_sum(double *x, size_t n, double q) {
    (void)q;
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i];
    return s;
}
static double agg_sd(double *x, size_t n, double q) { /* of the values, as t:sd() */
    double m = agg_mean(x, n, q), s = 0;
    for (size_t i = 0; i < n; i++)
        s += (x[i] - m) * (x[i] - m);
    return sqrt(s / (double)n);
}
static double agg_median(double *x, size_t n, double q) {
    (void)q;
    return sd_quantile(x, n, 0.5);
}
static double agg_min(double *x, size_t n, double q) {
    (void)q;
    double m = x[0];
    for (size_t i = 1; i < n; i++)
        m = x[i] < m ? x[i] : m;
    return m;
}
static double agg_max(double *x, size_t n, double q) {
    (void)q;
    double m = x[0];
    for (size_t i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

static const struct agg_row {
    const char *name, *doc;
    double (*fn)(double *x, size_t n, double q); /* NULL: takes cells as they are */
    bool keeps_int;
} agg_rows[] = {
    {"mean", "mean", agg_mean, false},
    {"median", "median", agg_median, false},
    {"min", "least", agg_min, true},
    {"max", "greatest", agg_max, true},
    {"sum", "sum", agg_sum, false},
    {"sd", "standard deviation", agg_sd, false},
    {"quantile", "quantile", sd_quantile, false},
    {"count", "cells that have a value", NULL, false},
    {"first", "first value", NULL, true},
    {"last", "last value", NULL, true},
};
enum { N_AGGS = sizeof agg_rows / sizeof *agg_rows };

const char *sd_agg_name(size_t i) {
    return i < N_AGGS ? agg_rows[i].name : NULL;
}

static const char *agg_name_at(const void *ctx, size_t i) {
    (void)ctx;
    return sd_agg_name(i);
}

static sd_status find_agg(const char *how, const struct agg_row **out, sd_err *err) {
    for (size_t i = 0; i < N_AGGS; i++)
        if (strcmp(agg_rows[i].name, how) == 0) {
            *out = &agg_rows[i];
            return SD_OK;
        }
    const char *near = sd_suggest(how, agg_name_at, NULL);
    sd_buf b = {0};
    for (size_t i = 0; i < N_AGGS; i++)
        sd_buf_printf(&b, " %s", agg_rows[i].name);
    sd_status st = sd_fail(err, SD_EINVAL, "no aggregate \"%s\"%s%s (known:%s)", how,
                           near ? ": did you mean " : "", near ? near : "", b.p ? b.p : "");
    sd_buf_free(&b);
    return st;
}

static double number(const column *k, int r) {
    return k->kind == SD_COL_INT ? (double)k->cells[r].u.i : k->cells[r].u.d;
}

/* One aggregate of the rows of one group. x: room for their values. */
static sd_status aggregate(const column *k, const struct agg_row *a, double q, const int *rows,
                           int n, double *x, column *o, cell *to, sd_err *err) {
    if (strcmp(a->name, "count") == 0) {
        int64_t have = 0;
        for (int i = 0; i < n; i++)
            have += k->cells[rows[i]].set;
        *to = (cell){.set = true, .u.i = have};
        return SD_OK;
    }
    if (!a->fn) {
        bool last = strcmp(a->name, "last") == 0;
        for (int i = 0; i < n; i++) {
            const cell *c = &k->cells[rows[last ? n - 1 - i : i]];
            if (c->set)
                return sd_table_copy_cell(k->kind, to, c, err);
        }
        return SD_OK;
    }
    size_t m = 0;
    for (int i = 0; i < n; i++)
        if (k->cells[rows[i]].set && !isnan(number(k, rows[i])))
            x[m++] = number(k, rows[i]);
    if (m == 0)
        return SD_OK;
    double v = a->fn(x, m, q);
    *to = o->kind == SD_COL_INT ? (cell){.set = true, .u.i = (int64_t)v}
                                : (cell){.set = true, .u.d = v};
    return SD_OK;
}

/* The column an aggregate fills, added to d. */
static sd_status agg_column(const sd_table *t, const sd_agg *a, sd_table *d,
                            const struct agg_row **row, sd_err *err) {
    const column *k = &t->cols[a->col];
    SD_TRY(find_agg(a->how, row, err));
    if ((*row)->fn && k->kind != SD_COL_INT && k->kind != SD_COL_NUM)
        return sd_fail(err, SD_EINVAL, "%s of %s: it holds %s; count, first and last take them",
                       a->how, k->name, k->kind == SD_COL_STR ? "strings" : "vectors");
    if (strcmp(a->how, "quantile") == 0 && !(a->q >= 0 && a->q <= 1))
        return sd_fail(err, SD_EINVAL, "quantile %g of %s: expected 0..1", a->q, k->name);
    sd_col_kind kind = strcmp(a->how, "count") == 0 ? SD_COL_INT
                       : !(*row)->fn                ? k->kind
                       : (*row)->keeps_int          ? k->kind
                                                    : SD_COL_NUM;
    sd_buf doc = {0};
    sd_buf_puts(&doc, (*row)->doc);
    if (strcmp(a->how, "quantile") == 0)
        sd_buf_printf(&doc, " %g", a->q);
    sd_buf_printf(&doc, " of the group: %s", *k->doc ? k->doc : k->name);
    sd_status st = sd_buf_status(&doc, err);
    if (st == SD_OK)
        st = sd_table_add_column(d, a->as, kind, doc.p, false, NULL, err);
    sd_buf_free(&doc);
    return st;
}

static sd_status group(const sd_table *t, const int *keys, int n, const sd_agg *aggs, int n_aggs,
                       const int *order, const int *start, int groups, double *x, sd_table **out,
                       sd_err *err) {
    SD_TRY(like(t, out, err));
    sd_table *d = *out;
    const struct agg_row *row = NULL;
    sd_buf by = {0};
    for (int i = 0; i < n; i++) {
        const column *k = &t->cols[keys[i]];
        SD_TRY(sd_table_add_column(d, k->name, k->kind, k->doc, false, NULL, err));
        sd_buf_printf(&by, "%s%s", i ? ", " : "", k->name);
    }
    sd_status st = sd_table_heading(d, err, "grouped by %s: %d group%s of %d rows",
                                    by.p ? by.p : "", groups, groups == 1 ? "" : "s", t->nrows);
    sd_buf_free(&by);
    SD_TRY(st);
    for (int a = 0; a < n_aggs; a++)
        SD_TRY(agg_column(t, &aggs[a], d, &row, err));
    if (n_aggs == 0)
        SD_TRY(sd_table_add_column(d, "n", SD_COL_INT, "rows of the group", false, NULL, err));
    SD_TRY(set_rows(d, groups, err));
    for (int g = 0; g < groups; g++) {
        const int *rows = order + start[g], m = start[g + 1] - start[g];
        for (int i = 0; i < n; i++)
            SD_TRY(sd_table_copy_cell(d->cols[i].kind, &d->cols[i].cells[g],
                                      &t->cols[keys[i]].cells[rows[0]], err));
        if (n_aggs == 0)
            d->cols[n].cells[g] = (cell){.set = true, .u.i = m};
        for (int a = 0; a < n_aggs; a++) {
            column *o = &d->cols[n + a];
            SD_TRY(find_agg(aggs[a].how, &row, err));
            SD_TRY(
                aggregate(&t->cols[aggs[a].col], row, aggs[a].q, rows, m, x, o, &o->cells[g], err));
        }
        if ((g & 0xfff) == 0xfff)
            SD_TRY(sd_check_cancel(err));
    }
    return SD_OK;
}

sd_status sd_table_group(const sd_table *t, const int *keys, int n, const sd_agg *aggs, int n_aggs,
                         sd_table **out, sd_err *err) {
    sd_table *d = NULL;
    int groups = 0;
    int *order = sd_alloc((size_t)t->nrows, sizeof *order, err);
    int *start = sd_alloc((size_t)t->nrows + 1, sizeof *start, err);
    double *x = sd_alloc((size_t)t->nrows, sizeof *x, err);
    sd_status st = order && start && x ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        st = sd_table_groups(t, keys, n, order, start, &groups, err);
    if (st == SD_OK)
        st = group(t, keys, n, aggs, n_aggs, order, start, groups, x, &d, err);
    sd_free(order);
    sd_free(start);
    sd_free(x);
    return give(d, st, out);
}

/* ---- join --------------------------------------------------------------------------------------
 */
typedef struct pairs { /* row of a beside row of b, -1 = none */
    int *a, *b;
    size_t n, cap_a, cap_b;
} pairs;

static sd_status pair(pairs *p, int a, int b, sd_err *err) {
    if (p->n == INT32_MAX)
        return sd_fail(err, SD_EINVAL, "join: more than %d rows: the keys match too often",
                       INT32_MAX);
    SD_TRY(sd_grow((void **)&p->a, &p->cap_a, p->n + 1, sizeof *p->a, err));
    SD_TRY(sd_grow((void **)&p->b, &p->cap_b, p->n + 1, sizeof *p->b, err));
    p->a[p->n] = a;
    p->b[p->n++] = b;
    return (p->n & 0xffff) == 0 ? sd_check_cancel(err) : SD_OK;
}

static bool complete(const column *const *cols, int n, int row) {
    for (int i = 0; i < n; i++)
        if (!cols[i]->cells[row].set)
            return false;
    return true;
}

static int compare_rows(const column *const *ka, int i, const column *const *kb, int j, int n) {
    for (int k = 0; k < n; k++) {
        int r = compare_cells(ka[k], i, kb[k], j, false);
        if (r)
            return r;
    }
    return 0;
}

/* Pairs with equal keys; unmatched rows where `how` keeps them. */
static sd_status match(const sd_table *a, const sd_table *b, const column *const *ka, sorter *s,
                       int n, sd_join how, pairs *p, int lone[2], sd_err *err) {
    bool *used = sd_alloc((size_t)b->nrows, sizeof *used, err);
    sd_status st = used ? SD_OK : SD_ENOMEM;
    for (int i = 0; st == SD_OK && i < a->nrows; i++) {
        int lo = 0, hi = b->nrows, found = 0;
        while (lo < hi) {
            int mid = lo + (hi - lo) / 2;
            if (compare_rows(ka, i, s->cols, s->refs[mid].row, n) > 0)
                lo = mid + 1;
            else
                hi = mid;
        }
        for (; st == SD_OK && complete(ka, n, i) && lo < b->nrows &&
               compare_rows(ka, i, s->cols, s->refs[lo].row, n) == 0;
             lo++, found++) {
            used[s->refs[lo].row] = true;
            st = pair(p, i, s->refs[lo].row, err);
        }
        lone[0] += !found;
        if (!found && how != SD_JOIN_INNER && st == SD_OK)
            st = pair(p, i, -1, err);
    }
    for (int j = 0; st == SD_OK && j < b->nrows; j++) {
        lone[1] += !used[j];
        if (!used[j] && how == SD_JOIN_OUTER)
            st = pair(p, -1, j, err);
    }
    sd_free(used);
    return st;
}

static bool is_number(const column *k) {
    return k->kind == SD_COL_INT || k->kind == SD_COL_NUM;
}

static sd_status join_keys(const sd_table *a, const sd_table *b, const char *const *keys, int n,
                           const column **ka, sd_key *kb, sd_err *err) {
    for (int i = 0; i < n; i++) {
        int ca = sd_table_find_col(a, keys[i]), cb = sd_table_find_col(b, keys[i]);
        if (ca < 0 || cb < 0)
            return sd_fail(err, SD_EINVAL, "join: the %s table has no column %s",
                           ca < 0 ? "first" : "second", keys[i]);
        ka[i] = &a->cols[ca];
        kb[i] = (sd_key){cb, false};
        const column *y = &b->cols[cb];
        if (ka[i]->kind == SD_COL_VEC || (is_number(ka[i]) != is_number(y)))
            return sd_fail(err, SD_EINVAL, "join: %s holds %s in one table, %s in the other",
                           keys[i], is_number(ka[i]) ? "numbers" : "strings",
                           is_number(y) ? "numbers" : "strings");
    }
    return SD_OK;
}

/* Key cells of rows that only b has come from b. */
static sd_status fill(const sd_table *a, const sd_table *b, const sd_key *kb,
                      const column *const *ka, int n, const char *suffix, const pairs *p,
                      sd_table *d, sd_err *err) {
    for (size_t c = 0; c < a->ncols; c++)
        SD_TRY(sd_table_add_column(d, a->cols[c].name, a->cols[c].kind, a->cols[c].doc,
                                   a->cols[c].wide, NULL, err));
    for (size_t c = 0; c < b->ncols; c++) {
        bool key = false;
        for (int i = 0; i < n; i++)
            key = key || kb[i].col == (int)c;
        if (key)
            continue;
        sd_buf name = {0};
        sd_buf_printf(&name, "%s%s", b->cols[c].name,
                      sd_table_find_col(a, b->cols[c].name) >= 0 ? suffix : "");
        sd_status st = sd_buf_status(&name, err);
        if (st == SD_OK && sd_table_find_col(d, name.p) >= 0)
            st = sd_fail(err, SD_EINVAL,
                         "join: two columns would be called %s: choose suffix=", name.p);
        if (st == SD_OK)
            st = sd_table_add_column(d, name.p, b->cols[c].kind, b->cols[c].doc, b->cols[c].wide,
                                     NULL, err);
        sd_buf_free(&name);
        SD_TRY(st);
    }
    SD_TRY(set_rows(d, (int)p->n, err));
    size_t to = 0;
    for (size_t c = 0; c < a->ncols; c++, to++) {
        SD_TRY(copy_rows(a, c, p->a, (int)p->n, d, to, 0, err));
        for (int i = 0; i < n; i++) {
            if (ka[i] != &a->cols[c])
                continue;
            const column *y = &b->cols[kb[i].col];
            for (size_t r = 0; r < p->n; r++) {
                if (p->a[r] >= 0)
                    continue;
                cell *x = &d->cols[to].cells[r];
                SD_TRY(sd_table_copy_cell(y->kind, x, &y->cells[p->b[r]], err));
                if (x->set && y->kind != d->cols[to].kind) { /* int and num */
                    if (y->kind == SD_COL_INT)
                        x->u.d = (double)x->u.i;
                    else
                        x->u.i = (int64_t)x->u.d;
                }
            }
        }
    }
    for (size_t c = 0; c < b->ncols; c++) {
        bool key = false;
        for (int i = 0; i < n; i++)
            key = key || kb[i].col == (int)c;
        if (!key)
            SD_TRY(copy_rows(b, c, p->b, (int)p->n, d, to++, 0, err));
    }
    return SD_OK;
}

sd_status sd_table_join(const sd_table *a, const sd_table *b, const char *const *keys, int n,
                        sd_join how, const char *suffix, sd_table **out, sd_err *err) {
    sd_table *d = NULL;
    sorter s = {0};
    pairs p = {0};
    int lone[2] = {0, 0};
    const column **ka = sd_alloc((size_t)n, sizeof *ka, err);
    sd_key *kb = sd_alloc((size_t)n, sizeof *kb, err);
    sd_status st = ka && kb ? SD_OK : SD_ENOMEM;
    if (st != SD_OK)
        goto done;
    SD_GO(st, done, join_keys(a, b, keys, n, ka, kb, err));
    SD_GO(st, done, sort_rows(b, kb, n, &s, err));
    SD_GO(st, done, match(a, b, ka, &s, n, how, &p, lone, err));
    SD_GO(st, done, like(a, &d, err));
    SD_GO(st, done, inherit(d, b, err));
    SD_GO(st, done, fill(a, b, kb, ka, n, suffix, &p, d, err));
    if (lone[0] + lone[1])
        st = sd_table_note(d, err,
                           "join: %d of %d rows of the first table and %d of %d of the "
                           "second have no partner%s",
                           lone[0], a->nrows, lone[1], b->nrows,
                           how == SD_JOIN_OUTER  ? " and stand alone"
                           : how == SD_JOIN_LEFT ? "; those of the first stand alone"
                                                 : " and are left out");
done:
    sorter_free(&s);
    sd_free(p.a);
    sd_free(p.b);
    sd_free(ka);
    sd_free(kb);
    return give(d, st, out);
}

/* ---- concat ------------------------------------------------------------------------------------
 */
/* A column that d has already may widen from int to num. */
static sd_status merge_column(sd_table *d, const column *k, sd_err *err) {
    int c = sd_table_find_col(d, k->name);
    if (c < 0)
        return sd_table_add_column(d, k->name, k->kind, k->doc, k->wide, NULL, err);
    column *o = &d->cols[c];
    if (o->kind == k->kind)
        return SD_OK;
    if (!is_number(o) || !is_number(k))
        return sd_fail(err, SD_EINVAL,
                       "concat: column %s holds numbers in one table, %s in another", k->name,
                       o->kind == SD_COL_VEC || k->kind == SD_COL_VEC ? "vectors" : "strings");
    o->kind = SD_COL_NUM; /* no cells yet */
    return SD_OK;
}

/* Column 0 names the table each row came from. */
static sd_status put_origin(const sd_table *s, const char *by, int which, sd_table *d, int at,
                            sd_err *err) {
    sd_buf name = {0};
    for (size_t i = 0; i < s->nmeta && !name.n; i++) {
        if (strcmp(s->meta[i].name, by) != 0)
            continue;
        if (s->meta[i].str)
            sd_buf_puts(&name, s->meta[i].str);
        else
            sd_buf_double(&name, s->meta[i].num, 17);
    }
    if (!name.n)
        sd_buf_printf(&name, "%d", which);
    sd_status st = sd_buf_status(&name, err);
    for (int r = 0; st == SD_OK && r < s->nrows; r++)
        st = sd_table_put_str(d, at + r, 0, name.p, err);
    sd_buf_free(&name);
    return st;
}

static sd_status concat(const sd_table *const *t, int n, const char *by, sd_table **out,
                        sd_err *err) {
    size_t rows = 0;
    SD_TRY(like(t[0], out, err));
    sd_table *d = *out;
    for (int i = 0; i < n; i++) {
        rows += (size_t)t[i]->nrows;
        SD_TRY(inherit(d, t[i], err));
        if (by && sd_table_find_col(t[i], by) >= 0)
            return sd_fail(err, SD_EINVAL, "concat: column %s is there already: another by=", by);
    }
    if (rows > INT32_MAX)
        return sd_fail(err, SD_EINVAL, "concat: %zu rows: at most %d", rows, INT32_MAX);
    if (by)
        SD_TRY(sd_table_add_column(d, by, SD_COL_STR, "the table the row came from", false, NULL,
                                   err));
    for (int i = 0; i < n; i++)
        for (size_t c = 0; c < t[i]->ncols; c++)
            SD_TRY(merge_column(d, &t[i]->cols[c], err));
    SD_TRY(set_rows(d, (int)rows, err));
    int at = 0;
    for (int i = 0; i < n; i++) {
        if (by)
            SD_TRY(put_origin(t[i], by, i, d, at, err));
        for (size_t c = 0; c < t[i]->ncols; c++)
            SD_TRY(copy_rows(t[i], c, NULL, t[i]->nrows, d,
                             (size_t)sd_table_find_col(d, t[i]->cols[c].name), at, err));
        at += t[i]->nrows;
    }
    return SD_OK;
}

sd_status sd_table_concat(const sd_table *const *t, int n, const char *by, sd_table **out,
                          sd_err *err) {
    sd_table *d = NULL;
    sd_status st = concat(t, n, by, &d, err);
    return give(d, st, out);
}

/* ---- describe ----------------------------------------------------------------------------------
 */
static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sd_status distinct(const column *k, int rows, int64_t *out, sd_err *err) {
    const char **s = sd_alloc((size_t)rows, sizeof *s, err);
    size_t n = 0;
    if (!s)
        return SD_ENOMEM;
    for (int r = 0; r < rows; r++)
        if (k->cells[r].set)
            s[n++] = k->cells[r].u.s;
    qsort(s, n, sizeof *s, by_text);
    *out = n > 0;
    for (size_t i = 1; i < n; i++)
        *out += strcmp(s[i], s[i - 1]) != 0;
    sd_free(s);
    return SD_OK;
}

static sd_status describe_column(const column *k, int rows, double *x, sd_table *d, int row,
                                 sd_err *err) {
    static const char *const types[] = {"int", "num", "str", "vec"};
    int64_t have = 0, different = 0;
    size_t m = 0;
    for (int r = 0; r < rows; r++) {
        have += k->cells[r].set;
        if (is_number(k) && k->cells[r].set && !isnan(number(k, r)))
            x[m++] = number(k, r);
    }
    SD_TRY(sd_table_set_str(d, row, "column", k->name, err));
    SD_TRY(sd_table_set_str(d, row, "type", types[k->kind], err));
    SD_TRY(sd_table_set_str(d, row, "doc", k->doc, err));
    sd_table_set_int(d, row, "n", have);
    sd_table_set_int(d, row, "missing", rows - have);
    if (k->kind == SD_COL_STR) {
        SD_TRY(distinct(k, rows, &different, err));
        sd_table_set_int(d, row, "distinct", different);
    }
    if (is_number(k))
        sd_table_set_int(d, row, "nan", have - (int64_t)m);
    if (m == 0)
        return SD_OK;
    sd_table_set_num(d, row, "mean", agg_mean(x, m, 0));
    sd_table_set_num(d, row, "sd", agg_sd(x, m, 0));
    sd_table_set_num(d, row, "median", sd_quantile(x, m, 0.5)); /* sorts */
    sd_table_set_num(d, row, "q25", sd_quantile(x, m, 0.25));
    sd_table_set_num(d, row, "q75", sd_quantile(x, m, 0.75));
    sd_table_set_num(d, row, "min", x[0]);
    sd_table_set_num(d, row, "max", x[m - 1]);
    return SD_OK;
}

static sd_status summarise(const sd_table *t, double *x, sd_table **out, sd_err *err) {
    static const struct {
        const char *name, *doc;
        sd_col_kind kind;
        bool wide;
    } cols[] = {{"column", "the column", SD_COL_STR, false},
                {"type", "int, num, str or vec", SD_COL_STR, false},
                {"n", "cells that have a value", SD_COL_INT, false},
                {"missing", "cells without one", SD_COL_INT, false},
                {"mean", "mean", SD_COL_NUM, false},
                {"sd", "standard deviation", SD_COL_NUM, false},
                {"min", "least", SD_COL_NUM, false},
                {"q25", "first quartile", SD_COL_NUM, false},
                {"median", "median", SD_COL_NUM, false},
                {"q75", "third quartile", SD_COL_NUM, false},
                {"max", "greatest", SD_COL_NUM, false},
                {"nan", "values that are not numbers", SD_COL_INT, true},
                {"distinct", "different strings", SD_COL_INT, true},
                {"doc", "what the column means", SD_COL_STR, true}};
    SD_TRY(like(t, out, err));
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        SD_TRY(sd_table_add_column(*out, cols[i].name, cols[i].kind, cols[i].doc, cols[i].wide,
                                   NULL, err));
    SD_TRY(sd_table_heading(*out, err, "%d row%s described", t->nrows, t->nrows == 1 ? "" : "s"));
    for (size_t c = 0; c < t->ncols; c++) {
        int row;
        SD_TRY(sd_table_add_row(*out, &row, err));
        SD_TRY(describe_column(&t->cols[c], t->nrows, x, *out, row, err));
    }
    return SD_OK;
}

sd_status sd_table_summarise(const sd_table *t, sd_table **out, sd_err *err) {
    sd_table *d = NULL;
    double *x = sd_alloc((size_t)t->nrows, sizeof *x, err);
    sd_status st = x ? summarise(t, x, &d, err) : SD_ENOMEM;
    sd_free(x);
    return give(d, st, out);
}
