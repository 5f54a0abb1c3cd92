/* figures_any.c: figures of any table's columns and of any matrix. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "host/figures.h"

enum { MAX_GROUPS = 100, MAX_CELLS = 1000, MAX_NAME = 64 };

/* ---- groups: the values of a column, each once, numbers in order, names as they come ---- */

typedef struct groups {
    char (*name)[MAX_NAME];
    double *value; /* NaN for names */
    int *of;       // (rows) the group of each row, −1 for none
    size_t n;
    bool numbers;
} groups;

static void groups_free(groups *g) {
    sd_free(g->name);
    sd_free(g->value);
    sd_free(g->of);
}

static int group_of(const groups *g, const char *name, double v) {
    for (size_t i = 0; i < g->n; i++)
        if (g->numbers ? g->value[i] == v : strcmp(g->name[i], name) == 0)
            return (int)i;
    return -1;
}

/* What a cell is called: the string, cut, or the number. */
static bool cell_name(const sd_table *t, int r, int col, char name[MAX_NAME], double *v) {
    bool text = sd_table_col_kind(t, col) == SD_COL_STR;
    *v = NAN;
    name[0] = '\0';
    if (!sd_table_has(t, r, col))
        return false;
    if (text) {
        snprintf(name, MAX_NAME, "%s", sd_table_str(t, r, col));
        return true;
    }
    *v = sd_table_num(t, r, col);
    snprintf(name, MAX_NAME, "%.6g", *v);
    return isfinite(*v);
}

static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* col < 0: one group of all rows. */
static sd_status groups_make(const sd_table *t, int col, size_t most, groups *g, sd_err *err) {
    size_t rows = (size_t)sd_table_rows(t);
    memset(g, 0, sizeof *g);
    g->name = sd_alloc(most, sizeof *g->name, err);
    g->value = sd_alloc(most, sizeof *g->value, err);
    g->of = sd_alloc(rows + 1, sizeof *g->of, err);
    if (!g->name || !g->value || !g->of)
        return SD_ENOMEM;
    g->n = col < 0;
    if (col < 0)
        return SD_OK;
    char name[MAX_NAME];
    double v;
    g->numbers = sd_table_col_kind(t, col) != SD_COL_STR;
    for (size_t r = 0; r < rows; r++) {
        if (!cell_name(t, (int)r, col, name, &v) || group_of(g, name, v) >= 0)
            continue;
        if (g->n == most)
            return sd_fail(err, SD_EINVAL, "column %.60s has more than %zu different values",
                           sd_table_col_name(t, col), most);
        memcpy(g->name[g->n], name, MAX_NAME);
        g->value[g->n++] = v;
    }
    if (g->numbers) {
        qsort(g->value, g->n, sizeof *g->value, by_number);
        for (size_t i = 0; i < g->n; i++)
            snprintf(g->name[i], MAX_NAME, "%.6g", g->value[i]);
    }
    for (size_t r = 0; r < rows; r++)
        g->of[r] = cell_name(t, (int)r, col, name, &v) ? group_of(g, name, v) : -1;
    return SD_OK;
}

/* ---- options ---- */

static sd_status any_column(const sd_table *t, const char *name, const char *option, int *col,
                            sd_err *err) {
    *col = name ? sd_table_find_col(t, name) : -1;
    if (!name) {
        sd_buf b = {0};
        for (int i = 0; i < sd_table_cols(t) && b.n < 300; i++)
            if (sd_table_col_kind(t, i) != SD_COL_VEC)
                sd_buf_printf(&b, "%s%s", b.n ? " " : "", sd_table_col_name(t, i));
        sd_fail(err, SD_EINVAL, "%s= is needed; the columns are %s", option, b.p ? b.p : "none");
        sd_buf_free(&b);
        return SD_EINVAL;
    }
    if (*col >= 0 && sd_table_col_kind(t, *col) == SD_COL_STR)
        return SD_OK;
    return sd_figure_column(t, name, col, err);
}

static sd_status log_axes(const char *log, const char *allowed, bool *x, bool *y, sd_err *err) {
    *x = *y = false;
    for (const char *p = log ? log : ""; *p; p++) {
        if (!strchr(allowed, *p))
            return sd_fail(err, SD_EINVAL, "log: expected the axes among \"%s\", got \"%.20s\"",
                           allowed, log);
        *x |= *p == 'x';
        *y |= *p == 'y';
    }
    return SD_OK;
}

/* Names on the axis: the places are 0, 1, 2, … */
static sd_status name_places(sd_axis *a, const groups *g, sd_err *err) {
    a->names = sd_alloc(g->n ? g->n : 1, sizeof *a->names, err);
    if (!a->names)
        return SD_ENOMEM;
    for (; a->n_names < g->n; a->n_names++) {
        a->names[a->n_names] = sd_strdup(g->name[a->n_names], err);
        if (!a->names[a->n_names])
            return SD_ENOMEM;
    }
    return SD_OK;
}

/* ---- y over x ---- */

typedef struct xy_job {
    const sd_table *t;
    int cx;
    bool names; /* x is a column of names */
    groups x, by;
    const char *style;
} xy_job;

static int by_x(const void *a, const void *b) {
    return by_number(a, b);
}

static sd_status xy_series(sd_chart *c, const xy_job *j, int cy, size_t group, const char *label,
                           const char *colour, size_t place, sd_err *err) {
    size_t n = 0, rows = (size_t)sd_table_rows(j->t);
    for (size_t r = 0; r < rows; r++)
        n += j->by.of[r] == (int)group;
    sd_series *s = sd_chart_series(c, 0, SD_DRAW_POINTS, label, colour, n, err);
    if (!s)
        return SD_ENOMEM;
    n = 0;
    bool once = true;
    for (size_t r = 0; r < rows; r++) {
        if (j->by.of[r] != (int)group)
            continue;
        double x = j->names ? (j->x.of[r] < 0 ? NAN : j->x.of[r])
                            : sd_figure_cell(NULL, j->t, (int)r, j->cx);
        double y = sd_figure_cell(c, j->t, (int)r, cy);
        if (!isfinite(x))
            continue;
        s->v[2 * n] = x;
        s->v[2 * n++ + 1] = y;
    }
    c->absent += s->n - n;
    s->n = n;
    bool lines = j->style && strcmp(j->style, "points") != 0;
    bool automatic = !j->style || strcmp(j->style, "auto") == 0;
    if (lines || automatic) {
        double *sorted = s->v;
        if (!automatic)
            qsort(sorted, n, 2 * sizeof *sorted, by_x);
        for (size_t i = 1; i < n; i++)
            once = once && s->v[2 * i] > s->v[2 * i - 2];
    }
    if (automatic ? once && !j->names && n > 1 : lines)
        s->draw = n > 200 || (j->style && strcmp(j->style, "lines") == 0) ? SD_DRAW_LINE
                                                                          : SD_DRAW_LINEPOINTS;
    s->mark = "*o+x#%@&=~abcdefghijklmnpqrstuvwyz"[place % 34];
    return SD_OK;
}

static sd_status xy_draw(const sd_figure_args *a, sd_chart *c, xy_job *j, sd_err *err) {
    int cb = -1;
    if (a->by)
        SD_TRY(any_column(j->t, a->by, "by", &cb, err));
    SD_TRY(any_column(j->t, a->x, "x", &j->cx, err));
    j->names = sd_table_col_kind(j->t, j->cx) == SD_COL_STR;
    if (j->names)
        SD_TRY(groups_make(j->t, j->cx, MAX_CELLS, &j->x, err));
    SD_TRY(groups_make(j->t, cb, MAX_GROUPS, &j->by, err));
    size_t ys = 1;
    for (const char *p = a->y; *p; p++)
        ys += *p == ',';
    if (ys > 1 && a->by)
        return sd_fail(err, SD_EINVAL, "by= goes with one y, got y=\"%.100s\"", a->y);
    const char *p = a->y;
    for (size_t k = 0; k < ys; k++) {
        char name[MAX_NAME];
        size_t n = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)(n < MAX_NAME ? n : MAX_NAME - 1), p);
        p += n + (p[n] == ',');
        int cy;
        SD_TRY(sd_figure_column(j->t, name, &cy, err));
        for (size_t g = 0; g < j->by.n; g++) {
            char label[2 * MAX_NAME + 4], colour[8];
            snprintf(label, sizeof label, "%.60s %s", a->by ? a->by : "", j->by.name[g]);
            size_t place = ys > 1 ? k : g, many = ys > 1 ? ys : j->by.n;
            sd_chart_colour(place, many, ys == 1 && j->by.numbers && many > 7, colour);
            SD_TRY(xy_series(c, j, cy, g,
                             ys > 1  ? name
                             : a->by ? label
                                     : NULL,
                             colour, place, err));
        }
    }
    if (j->names)
        SD_TRY(name_places(&c->panel[0].x, &j->x, err));
    return SD_OK;
}

sd_status sd_figure_xy(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    xy_job j = {.t = a->table, .style = a->style};
    int cy;
    if (!a->y)
        return any_column(j.t, NULL, "y", &cy, err);
    sd_panel *p = &c->panel[0];
    SD_TRY(log_axes(a->log, "xy", &p->x.log, &p->y.log, err));
    snprintf(c->what, sizeof c->what, "%.60s", a->y);
    sd_status st = xy_draw(a, c, &j, err);
    p->x.whole = st == SD_OK && !j.names && sd_table_col_kind(j.t, j.cx) == SD_COL_INT;
    if (j.names)
        p->x.log = false;
    groups_free(&j.x);
    groups_free(&j.by);
    SD_TRY(st);
    SD_TRY(sd_chart_label(&p->x.label, err, "%s", a->x));
    SD_TRY(sd_chart_label(&p->y.label, err, "%s", a->y));
    char usual[160];
    snprintf(usual, sizeof usual, "%.60s by %.60s", a->y, a->x);
    return sd_figure_titles(c, a, usual, err);
}

/* ---- bars ---- */

static sd_status bars_draw(const sd_figure_args *a, sd_chart *c, groups *gx, groups *gb,
                           size_t *most, sd_err *err) {
    const sd_table *t = a->table;
    int cx, cy, cb = -1, rows = sd_table_rows(t);
    SD_TRY(any_column(t, a->x, "x", &cx, err));
    SD_TRY(sd_figure_column(t, a->y, &cy, err));
    if (a->by)
        SD_TRY(any_column(t, a->by, "by", &cb, err));
    SD_TRY(groups_make(t, cx, 200, gx, err));
    SD_TRY(groups_make(t, cb, 24, gb, err));
    double *tmp = sd_alloc((size_t)rows + 1, sizeof *tmp, err);
    sd_status st = tmp ? SD_OK : SD_ENOMEM;
    for (size_t b = 0; st == SD_OK && b < gb->n; b++) {
        char label[2 * MAX_NAME + 4], colour[8];
        snprintf(label, sizeof label, "%.60s %s", a->by ? a->by : "", gb->name[b]);
        sd_chart_colour(b, gb->n, gb->numbers && gb->n > 7, colour);
        sd_series *s =
            sd_chart_series(c, 0, SD_DRAW_BARS, a->by ? label : NULL, colour, gx->n, err);
        st = s ? SD_OK : SD_ENOMEM;
        for (size_t i = 0; s && i < gx->n; i++) {
            size_t n = 0;
            for (int r = 0; r < rows; r++) {
                if (gx->of[r] != (int)i || gb->of[r] != (int)b)
                    continue;
                double v = sd_figure_cell(c, t, r, cy);
                if (isfinite(v))
                    tmp[n++] = v;
            }
            *most = n > *most ? n : *most;
            double width = 0.8 / (double)gb->n;
            s->v[3 * i] = (double)i + width * ((double)b - 0.5 * (double)(gb->n - 1));
            s->v[3 * i + 1] = sd_figure_median(tmp, n);
            s->v[3 * i + 2] = width * 0.94;
        }
    }
    sd_free(tmp);
    SD_TRY(st);
    return name_places(&c->panel[0].x, gx, err);
}

sd_status sd_figure_bars(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    int cy;
    bool unused;
    if (!a->y)
        return any_column(a->table, NULL, "y", &cy, err);
    sd_panel *p = &c->panel[0];
    SD_TRY(log_axes(a->log, "y", &unused, &p->y.log, err));
    snprintf(c->what, sizeof c->what, "%.60s", a->y);
    groups gx = {0}, gb = {0};
    size_t most = 0;
    sd_status st = bars_draw(a, c, &gx, &gb, &most, err);
    groups_free(&gx);
    groups_free(&gb);
    SD_TRY(st);
    SD_TRY(sd_chart_label(&p->x.label, err, "%s", a->x));
    SD_TRY(sd_chart_label(&p->y.label, err, "%s%s", a->y, most > 1 ? ", median" : ""));
    if (most > 1)
        SD_TRY(sd_chart_note(c, false, err, "each bar is the median of up to %zu rows", most));
    char usual[160];
    snprintf(usual, sizeof usual, "%.60s by %.60s", a->y, a->x);
    return sd_figure_titles(c, a, usual, err);
}

/* ---- histogram ---- */

sd_status sd_figure_hist(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_table *t = a->table;
    int cv;
    bool log_x, log_y;
    if (!a->column)
        return any_column(t, NULL, "column", &cv, err);
    SD_TRY(sd_figure_column(t, a->column, &cv, err));
    SD_TRY(log_axes(a->log, "xy", &log_x, &log_y, err));
    snprintf(c->what, sizeof c->what, "%.60s", a->column);
    size_t rows = (size_t)sd_table_rows(t), n = 0, lost = 0;
    double *v = sd_alloc(rows + 1, sizeof *v, err);
    if (!v)
        return SD_ENOMEM;
    for (size_t r = 0; r < rows; r++) {
        double x = sd_figure_cell(c, t, (int)r, cv);
        if (log_x && x <= 0)
            lost++;
        else if (isfinite(x))
            v[n++] = log_x ? log10(x) : x;
    }
    qsort(v, n, sizeof *v, by_number);
    /* Freedman and Diaconis: twice the interquartile range over the cube root of n. */
    double span = n ? v[n - 1] - v[0] : 0, iqr = n ? v[3 * (n - 1) / 4] - v[(n - 1) / 4] : 0;
    double want = iqr > 0 ? span / (2 * iqr / cbrt((double)n)) : sqrt((double)n);
    size_t bins = a->bins > 0 ? (size_t)a->bins : (size_t)fmax(1, fmin(200, ceil(want)));
    sd_status st = n ? SD_OK
                     : sd_fail(err, SD_EINVAL, "column %.60s holds no %s value", a->column,
                               log_x ? "positive" : "finite");
    if (!(span > 0)) {
        span = 1;
        bins = 1;
    }
    sd_series *s =
        st == SD_OK ? sd_chart_series(c, 0, SD_DRAW_BARS, NULL, SD_BLUE, bins, err) : NULL;
    if (st == SD_OK && !s)
        st = SD_ENOMEM;
    double start = n ? (v[0] == v[n - 1] ? v[0] - 0.5 : v[0]) : 0, width = span / (double)bins;
    for (size_t i = 0; s && i < bins; i++) {
        double lo = start + width * (double)i, hi = lo + width;
        s->v[3 * i] = log_x ? pow(10, 0.5 * (lo + hi)) : 0.5 * (lo + hi);
        s->v[3 * i + 1] = 0;
        s->v[3 * i + 2] = (log_x ? pow(10, hi) - pow(10, lo) : width) * 0.97;
    }
    for (size_t i = 0; s && i < n; i++) {
        size_t b = (size_t)fmax(0, floor((v[i] - start) / width));
        s->v[3 * (b < bins ? b : bins - 1) + 1]++;
    }
    for (size_t i = 0; s && log_y && i < bins; i++) /* an empty bin is no value that is left out */
        if (s->v[3 * i + 1] == 0)
            s->v[3 * i + 1] = NAN;
    sd_free(v);
    SD_TRY(st);
    sd_panel *p = &c->panel[0];
    p->x.log = log_x;
    p->y.log = log_y;
    if (lost)
        SD_TRY(sd_chart_note(c, true, err,
                             "%zu values of %s are not above zero: no place on a "
                             "logarithmic axis",
                             lost, c->what));
    SD_TRY(sd_chart_label(&p->x.label, err, "%s", a->column));
    SD_TRY(sd_chart_label(&p->y.label, err, "rows, of %zu", n));
    char usual[96];
    snprintf(usual, sizeof usual, "%.60s of %zu rows", a->column, n);
    return sd_figure_titles(c, a, usual, err);
}

/* ---- any matrix ---- */

sd_status sd_figure_map(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_tensor *t = a->tensor;
    bool log = a->log && a->log[0];
    if (t->ndim < 1 || t->ndim > 2 || sd_tensor_numel(t) == 0)
        return sd_fail(err, SD_EINVAL,
                       "a map needs one or two dimensions with values in them, this tensor has %d: "
                       "pick one, a[0]",
                       t->ndim);
    size_t rows = t->ndim == 2 ? (size_t)t->shape[0] : 1;
    size_t cols = (size_t)t->shape[t->ndim - 1];
    size_t br = (rows + MAX_CELLS - 1) / MAX_CELLS, bc = (cols + MAX_CELLS - 1) / MAX_CELLS;
    size_t mr = (rows + br - 1) / br, mc = (cols + bc - 1) / bc, below = 0;
    snprintf(c->what, sizeof c->what, "the tensor");
    SD_TRY(sd_chart_map(c, 0, mr, mc, err));
    sd_map *m = &c->panel[0].map;
    size_t seen = 0;
    for (size_t r = 0; r < mr; r++)
        for (size_t q = 0; q < mc; q++) {
            double sum = 0;
            size_t n = 0;
            for (size_t i = r * br; i < rows && i < (r + 1) * br; i++)
                for (size_t k = q * bc; k < cols && k < (q + 1) * bc; k++) {
                    const int64_t ix[2] = {(int64_t)(t->ndim == 2 ? i : k), (int64_t)k};
                    double v = sd_tensor_at(t, ix);
                    c->nonfinite += !isfinite(v);
                    if (isfinite(v)) {
                        sum += v;
                        n++;
                    }
                }
            double v = n ? sum / (double)n : NAN;
            bool lost = log && v <= 0;
            below += lost;
            m->v[r * mc + q] = lost ? NAN : v;
            seen += isfinite(m->v[r * mc + q]);
        }
    if (!seen)
        return sd_fail(err, SD_EINVAL, "the tensor holds no %s value", log ? "positive" : "finite");
    m->log = log;
    m->row_step = (double)br;
    m->col_step = (double)bc;
    SD_TRY(sd_chart_label(&m->label, err, "%s", "value"));
    SD_TRY(sd_chart_label(&c->panel[0].x.label, err, "%s%s", a->x ? a->x : "column", ""));
    SD_TRY(sd_chart_label(&c->panel[0].y.label, err, "%s", a->y ? a->y : "row"));
    if (br > 1 || bc > 1)
        SD_TRY(sd_chart_note(c, false, err,
                             "drawn as means over blocks of %zu rows and %zu columns", br, bc));
    if (below)
        SD_TRY(sd_chart_note(c, true, err,
                             "%zu cells are not above zero: left blank on a logarithmic scale",
                             below));
    sd_buf_printf(&c->sub, "%zu row%s, %zu column%s", rows, rows == 1 ? "" : "s", cols,
                  cols == 1 ? "" : "s");
    double px = 700.0 * (double)rows / (double)cols;
    c->height = (int)fmax(330, fmin(900, px + 190));
    return sd_figure_titles(c, a, "Map of a tensor", err);
}
