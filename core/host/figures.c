/* figures.c: what the figures of routing analysis show: rank per layer, spectrum of a head, map of
 * heads, ranks over training. */
#include "host/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spectral/columns.h"

/* ---- shared ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sd_figure_median(double *v, size_t n) {
    if (n == 0)
        return NAN;
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

double sd_figure_cell(sd_chart *c, const sd_table *t, int row, int col) {
    if (col < 0)
        return NAN;
    if (!sd_table_has(t, row, col)) {
        if (c)
            c->absent++;
        return NAN;
    }
    double v = sd_table_num(t, row, col);
    if (c && !isfinite(v))
        c->nonfinite++;
    return isfinite(v) ? v : NAN;
}

static const char *meta_str(const sd_table *t, const char *name) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double x;
        if (strcmp(sd_table_meta_at(t, i, &s, &x), name) == 0 && s)
            return s;
    }
    return NULL;
}

static double meta_num(const sd_table *t, const char *name, double dflt) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double x = NAN;
        if (strcmp(sd_table_meta_at(t, i, &s, &x), name) == 0 && !s)
            return x;
    }
    return dflt;
}

static const char *column_at(const void *ctx, size_t i) {
    const sd_table *t = ctx;
    return i < (size_t)sd_table_cols(t) ? sd_table_col_name(t, (int)i) : NULL;
}

sd_status sd_figure_column(const sd_table *t, const char *name, int *col, sd_err *err) {
    *col = sd_table_find_col(t, name);
    sd_col_kind k = *col >= 0 ? sd_table_col_kind(t, *col) : SD_COL_STR;
    if (*col >= 0 && (k == SD_COL_NUM || k == SD_COL_INT))
        return SD_OK;
    if (*col >= 0)
        return sd_fail(err, SD_EINVAL, "column %.60s holds no numbers", name);
    const char *near = sd_suggest(name, column_at, t);
    return near ? sd_fail(err, SD_EINVAL, "this table (%s) has no column %.60s: did you mean %s?",
                          sd_table_kind(t), name, near)
                : sd_fail(err, SD_EINVAL, "this table (%s) has no column %.60s", sd_table_kind(t),
                          name);
}

sd_status sd_figure_titles(sd_chart *c, const sd_figure_args *a, const char *usual, sd_err *err) {
    const sd_table *t = a->table;
    const char *model = t ? meta_str(t, "model") : NULL;
    if (a->title)
        sd_buf_puts(&c->title, a->title);
    else
        sd_buf_printf(&c->title, "%s%s%s", usual, model ? ": " : "", model ? model : "");
    for (size_t i = 0; t && i < sd_table_n_heading(t) && c->sub.n < 60; i++) {
        const char *line = sd_table_heading_at(t, i);
        size_t k = model ? strlen(model) : 0; /* the title names the model already */
        if (k && strncmp(line, model, k) == 0 && strncmp(line + k, ": ", 2) == 0)
            line += k + 2;
        sd_buf_printf(&c->sub, "%s%s", c->sub.n ? "; " : "", line);
    }
    for (size_t i = 0; t && i < sd_table_n_notes(t); i++)
        SD_TRY(sd_chart_note(c, false, err, "%s", sd_table_note_at(t, i)));
    return SD_OK;
}

sd_status sd_figure_plot(sd_figure_fn make, const sd_figure_args *a, sd_plot **out, sd_err *err) {
    sd_chart c;
    *out = NULL;
    sd_chart_init(&c);
    sd_status st = make(a, &c, err);
    if (st == SD_OK)
        st = sd_chart_plot(&c, out, err);
    sd_chart_free(&c);
    return st;
}

static int companion(const sd_table *t, const char *prefix, const char *name, const char *suffix) {
    char full[128];
    snprintf(full, sizeof full, "%s%.80s%s", prefix, name, suffix);
    return sd_table_find_col(t, full);
}

static sd_status layers_of(const sd_table *t, int *layers, sd_err *err) {
    int cl;
    SD_TRY(sd_figure_column(t, "layer", &cl, err));
    *layers = 0;
    for (int r = 0; r < sd_table_rows(t); r++) {
        double l = sd_figure_cell(NULL, t, r, cl);
        if (l >= 0 && l < 1e6 && (int)l + 1 > *layers)
            *layers = (int)l + 1;
    }
    return *layers ? SD_OK : sd_fail(err, SD_EINVAL, "the table is empty");
}

/* Medians of a column by layer into the second place of a series' rows; tmp holds a row each. */
static void layer_medians(const sd_table *t, int col, int layers, double *tmp, sd_series *s) {
    int cl = sd_table_find_col(t, "layer");
    for (int l = 0; l < layers; l++) {
        size_t n = 0;
        for (int r = 0; r < sd_table_rows(t); r++) {
            double x = sd_figure_cell(NULL, t, r, col);
            if (isfinite(x) && (int)sd_table_num(t, r, cl) == l)
                tmp[n++] = x;
        }
        s->v[(size_t)l * s->cols] = l;
        s->v[(size_t)l * s->cols + 1] = sd_figure_median(tmp, n);
    }
}

static void set_axis_range(sd_axis *a, double lo, double hi) {
    a->lo = lo;
    a->hi = hi;
}

/* ---- rank per layer ---- */

/* A line of medians with its null: the null's line in the same colour, dotted, and a band of one
 * standard deviation where the table has it. */
static sd_status rank_curve(sd_chart *c, const sd_table *t, const char *name, int col,
                            const char *colour, bool first, int layers, double *tmp, sd_err *err) {
    int cn = companion(t, "", name, "_null"), cs = companion(t, "", name, "_null_sd");
    if (cn >= 0 && cs >= 0) {
        sd_series *band = sd_chart_series(c, 0, SD_DRAW_BAND, NULL, colour, (size_t)layers, err);
        double *sd = sd_alloc((size_t)layers, sizeof *sd, err);
        if (!band || !sd) {
            sd_free(sd);
            return SD_ENOMEM;
        }
        band->faint = true;
        layer_medians(t, cs, layers, tmp, band);
        for (int l = 0; l < layers; l++)
            sd[l] = band->v[3 * (size_t)l + 1];
        layer_medians(t, cn, layers, tmp, band);
        for (int l = 0; l < layers; l++) {
            double *row = band->v + 3 * (size_t)l, mean = row[1];
            row[1] = mean - sd[l] > 0 ? mean - sd[l] : mean;
            row[2] = mean + sd[l];
        }
        sd_free(sd);
    }
    if (cn >= 0) {
        sd_series *line = sd_chart_series(c, 0, SD_DRAW_LINE, NULL, colour, (size_t)layers, err);
        if (!line)
            return SD_ENOMEM;
        layer_medians(t, cn, layers, tmp, line);
        line->dotted = true;
        line->mark = first ? 'o' : 'n';
        SD_TRY(sd_chart_label(&line->label, err, "null of %s", name));
    }
    sd_series *s = sd_chart_series(c, 0, SD_DRAW_LINEPOINTS, NULL, colour, (size_t)layers, err);
    if (!s)
        return SD_ENOMEM;
    layer_medians(t, col, layers, tmp, s);
    s->mark = first ? '*' : 'c';
    s->hollow = !first;
    s->size = first ? 1.4 : 1.1;
    return sd_chart_label(&s->label, err, "%s", name);
}

/* Heads side by side in their layer, so that equal ones stay visible. */
static sd_status head_dots(sd_chart *c, const sd_table *t, int col, int layers, sd_err *err) {
    int rows = sd_table_rows(t), cl = sd_table_find_col(t, "layer");
    sd_series *s = sd_chart_series(c, 0, SD_DRAW_POINTS, "heads", SD_BLUE, (size_t)rows, err);
    int *seen = sd_alloc((size_t)layers, 2 * sizeof *seen, err);
    if (!s || !seen) {
        sd_free(seen);
        return SD_ENOMEM;
    }
    s->faint = true;
    for (int r = 0; r < rows; r++)
        seen[(int)sd_table_num(t, r, cl)]++;
    for (int r = 0; r < rows; r++) {
        int l = (int)sd_table_num(t, r, cl), k = seen[layers + l]++;
        double at = seen[l] > 1 ? (double)k / (double)(seen[l] - 1) : 0.5;
        s->v[2 * r] = l + 0.44 * (at - 0.5);
        s->v[2 * r + 1] = sd_figure_cell(c, t, r, col);
    }
    sd_free(seen);
    return SD_OK;
}

/* A rank spans a factor of more than three where it is worth a logarithmic axis. */
static bool spread(const sd_panel *p, double factor) {
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < p->n; i++)
        for (size_t j = 0; j < p->s[i].n; j++) {
            double v = p->s[i].v[j * p->s[i].cols + 1];
            lo = isfinite(v) ? fmin(lo, v) : lo;
            hi = isfinite(v) ? fmax(hi, v) : hi;
        }
    return lo > 0 && hi / lo > factor;
}

sd_status sd_figure_rank(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_table *t = a->table;
    const char *name = a->column ? a->column : "pr";
    int col, layers;
    SD_TRY(sd_figure_column(t, name, &col, err));
    SD_TRY(layers_of(t, &layers, err));
    snprintf(c->what, sizeof c->what, "%.60s", name);
    double *tmp = sd_alloc((size_t)sd_table_rows(t), sizeof *tmp, err);
    if (!tmp)
        return SD_ENOMEM;
    sd_status st = rank_curve(c, t, name, col, SD_BLUE, true, layers, tmp, err);
    if (st == SD_OK && sd_table_find_col(t, "head") >= 0)
        st = head_dots(c, t, col, layers, err);
    sd_column about = {0};
    bool declared = sd_column_find(name, &about, NULL), rank = declared && about.rank;
    int cc = declared && about.centred[0] ? sd_table_find_col(t, about.centred) : -1;
    if (st == SD_OK && cc >= 0)
        st = rank_curve(c, t, about.centred, cc, SD_VERMILLION, false, layers, tmp, err);
    sd_free(tmp);
    SD_TRY(st);
    sd_panel *p = &c->panel[0];
    if (rank) { /* METHOD §4: minimal up to tau */
        p->line = meta_num(t, "tau", 3);
        SD_TRY(sd_chart_label(&p->line_label, err, "minimal rank: up to %g", p->line));
    }
    p->x.whole = true;
    set_axis_range(&p->x, -0.5, layers - 0.5);
    p->y.log = spread(p, 3);
    SD_TRY(sd_chart_label(&p->x.label, err, "layer"));
    const char *unit = rank ? "effective rank" : declared ? about.unit : "";
    SD_TRY(sd_chart_label(&p->y.label, err, "%s%s%s%s", name, unit[0] ? ", " : "", unit,
                          sd_table_find_col(t, "head") >= 0 ? ", median over heads" : ""));
    char usual[96];
    bool of_routing = rank && (about.centred[0] || strncmp(name, "c_", 2) == 0);
    snprintf(usual, sizeof usual, of_routing ? "Rank of routing per layer" : "%.60s per layer",
             name);
    return sd_figure_titles(c, a, usual, err);
}

/* ---- spectrum of a head ---- */

/* The eigenvalues of M in the complex plane over their spectral radius. */
static sd_status eigenvalues(sd_chart *c, const double *re, const double *im, size_t n, double rho,
                             sd_err *err) {
    enum { ARC = 121 };
    sd_series *s = sd_chart_series(c, 1, SD_DRAW_BAND, NULL, "#FBE9DD", 2, err);
    if (!s)
        return SD_ENOMEM;
    for (int i = 0; i < 2; i++) {
        s->v[3 * i] = 1.15 * i;
        s->v[3 * i + 1] = -1.15;
        s->v[3 * i + 2] = 1.15;
    }
    for (int k = 0; k < 2; k++) { /* the axes */
        s = sd_chart_series(c, 1, SD_DRAW_LINE, NULL, "#999999", 2, err);
        if (!s)
            return SD_ENOMEM;
        for (int i = 0; i < 2; i++) {
            s->v[2 * i + k] = 0;
            s->v[2 * i + 1 - k] = i ? 1.15 : -1.15;
        }
        s->size = 0.6;
    }
    s = sd_chart_series(c, 1, SD_DRAW_LINE, NULL, "#999999", ARC, err);
    if (!s)
        return SD_ENOMEM;
    for (int i = 0; i < ARC; i++) {
        s->v[2 * i] = cos(2 * acos(-1) * i / (ARC - 1));
        s->v[2 * i + 1] = sin(2 * acos(-1) * i / (ARC - 1));
    }
    s->dotted = true;
    s->size = 0.5;
    s = sd_chart_series(c, 1, SD_DRAW_POINTS, NULL, SD_VERMILLION, n, err);
    if (!s)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        s->v[2 * i] = re[i] / rho;
        s->v[2 * i + 1] = im[i] / rho;
    }
    s->mark = 'x';
    s->faint = true;
    set_axis_range(&c->panel[1].x, -1.15, 1.15);
    set_axis_range(&c->panel[1].y, -1.15, 1.15);
    SD_TRY(sd_chart_label(&c->panel[1].x.label, err, "Re λ / ρ (shaded: Re λ > 0)"));
    SD_TRY(sd_chart_label(&c->panel[1].y.label, err, "Im λ / ρ"));
    c->n_panels = 2;
    c->width = 960;
    c->height = 500;
    return SD_OK;
}

sd_status sd_figure_spectrum(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_table *t = a->table;
    int cp = sd_table_find_col(t, "planes"), cr = sd_table_find_col(t, "lambda_re"),
        ci = sd_table_find_col(t, "lambda_im");
    if (cp < 0 || sd_table_col_kind(t, cp) != SD_COL_VEC)
        return sd_fail(err, SD_EINVAL,
                       "this table (%s) holds no spectra: give one of heads or probe",
                       sd_table_kind(t));
    int row = sd_table_find_row(t, a->layer, a->head);
    if (row < 0)
        return sd_fail(err, SD_EINVAL, "the table has no layer %d, head %d", a->layer, a->head);
    size_t n = 0, nr = 0, ni = 0;
    const double *sigma = sd_table_has(t, row, cp) ? sd_table_vec(t, row, cp, &n) : NULL;
    const double *re = cr >= 0 && sd_table_has(t, row, cr) ? sd_table_vec(t, row, cr, &nr) : NULL;
    const double *im = ci >= 0 && sd_table_has(t, row, ci) ? sd_table_vec(t, row, ci, &ni) : NULL;
    if (!sigma || n == 0 || !(sigma[0] > 0))
        return sd_fail(err, SD_EINVAL, "layer %d, head %d has no plane above zero", a->layer,
                       a->head);
    double rho = 0;
    for (size_t i = 0; re && im && nr == ni && i < nr; i++)
        rho = fmax(rho, hypot(re[i], im[i]));
    snprintf(c->what, sizeof c->what, "planes");
    for (int k = 0; k < 2; k++) {
        sd_series *s = sd_chart_series(c, 0, k ? SD_DRAW_POINTS : SD_DRAW_IMPULSES, NULL,
                                       k ? SD_BLUE : "#9cc7e0", n, err);
        if (!s)
            return SD_ENOMEM;
        s->mark = 'o';
        s->size = k ? 1.3 : 1;
        for (size_t i = 0; i < n; i++) {
            s->v[2 * i] = (double)i + 1;
            s->v[2 * i + 1] = sigma[i] / sigma[0] > 1e-16 ? sigma[i] / sigma[0] : 0;
        }
    }
    /* The stems stand on the frame: a zero has no stem, and is counted once, with the points. */
    for (size_t i = 0; i < n; i++)
        if (!(c->panel[0].s[0].v[2 * i + 1] > 0))
            c->panel[0].s[0].v[2 * i + 1] = NAN;
    c->panel[0].y.log = true;
    c->panel[0].x.whole = true;
    set_axis_range(&c->panel[0].x, 0, (double)n + 1);
    SD_TRY(sd_chart_label(&c->panel[0].x.label, err, "plane"));
    SD_TRY(sd_chart_label(&c->panel[0].y.label, err, "σ / σ₁"));
    if (rho > 0)
        SD_TRY(eigenvalues(c, re, im, nr, rho, err));
    double pr = sd_figure_cell(NULL, t, row, sd_table_find_col(t, "pr"));
    sd_buf_printf(&c->sub, "σ₁ = %.4g, %zu planes", sigma[0], n);
    if (isfinite(pr))
        sd_buf_printf(&c->sub, ", participation ratio %.2f", pr);
    if (rho > 0)
        sd_buf_printf(&c->sub, "; ρ = %.4g", rho);
    char usual[64];
    snprintf(usual, sizeof usual, "Layer %d, head %d", a->layer, a->head);
    return sd_figure_titles(c, a, usual, err);
}

/* ---- map of heads ---- */

sd_status sd_figure_heads(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_table *t = a->table;
    const char *name = a->column ? a->column : "pr";
    int cl, ch, cv, rows = sd_table_rows(t), layers = 0, heads = 0;
    SD_TRY(sd_figure_column(t, "layer", &cl, err));
    SD_TRY(sd_figure_column(t, "head", &ch, err));
    SD_TRY(sd_figure_column(t, name, &cv, err));
    snprintf(c->what, sizeof c->what, "%.60s", name);
    for (int r = 0; r < rows; r++) {
        layers = fmax(layers, sd_figure_cell(NULL, t, r, cl) + 1);
        heads = fmax(heads, sd_figure_cell(NULL, t, r, ch) + 1);
    }
    if (layers < 1 || heads < 1 || layers > 4096 || heads > 4096)
        return sd_fail(err, SD_EINVAL, "a map of %d layers and %d heads", layers, heads);
    SD_TRY(sd_chart_map(c, 0, (size_t)heads, (size_t)layers, err));
    sd_map *m = &c->panel[0].map;
    double lo = INFINITY, hi = -INFINITY;
    for (int r = 0; r < rows; r++) {
        double l = sd_figure_cell(NULL, t, r, cl), h = sd_figure_cell(NULL, t, r, ch);
        double x = sd_figure_cell(c, t, r, cv);
        if (!(l >= 0 && h >= 0))
            continue;
        m->v[(size_t)h * (size_t)layers + (size_t)l] = x;
        lo = isfinite(x) ? fmin(lo, x) : lo;
        hi = isfinite(x) ? fmax(hi, x) : hi;
    }
    if (!(lo <= hi))
        return sd_fail(err, SD_EINVAL, "column %.60s holds no finite value", name);
    m->log = lo > 0 && hi / lo > 20;
    SD_TRY(sd_chart_label(&m->label, err, "%s", name));
    SD_TRY(sd_chart_label(&c->panel[0].x.label, err, "layer"));
    SD_TRY(sd_chart_label(&c->panel[0].y.label, err, "head"));
    double px = 0.75 * heads * fmax(16, fmin(64, 700.0 / layers));
    c->height = px < 160 ? 350 : px > 900 ? 1090 : (int)px + 190;
    char usual[96];
    snprintf(usual, sizeof usual, "%.60s by layer and head", name);
    if (sd_table_col_doc(t, cv))
        sd_buf_puts(&c->sub, sd_table_col_doc(t, cv));
    return sd_figure_titles(c, a, usual, err);
}

/* ---- ranks over training ---- */

sd_status sd_figure_cascade(const sd_figure_args *a, sd_chart *c, sd_err *err) {
    const sd_table *t = a->table;
    const char *name = a->column;
    if (!name)
        name = "c_pr";
    int cl = sd_table_find_col(t, "layer"), cx = sd_table_find_col(t, "tokens"), cv, layers;
    if (cl < 0 || cx < 0)
        return sd_fail(err, SD_EINVAL,
                       "this table (%s) is not a cascade: give one of training(dir, "
                       "{which=\"cascade\"})",
                       sd_table_kind(t));
    SD_TRY(sd_figure_column(t, name, &cv, err));
    SD_TRY(layers_of(t, &layers, err));
    if (layers > 120)
        return sd_fail(err, SD_EINVAL, "a cascade of %d layers: at most 120 are drawn", layers);
    snprintf(c->what, sizeof c->what, "%.60s", name);
    int cn = companion(t, "", name, "_null"), rows = sd_table_rows(t);
    double most = 0;
    for (int r = 0; r < rows; r++)
        most = fmax(most, sd_table_num(t, r, cx));
    double unit = most >= 2e6 ? 1e6 : most >= 2e4 ? 1e3 : 1;
    const int cols[2] = {cv, cn};
    for (int l = 0; l < layers; l++)
        for (int k = 0; k < (cn >= 0 ? 2 : 1); k++) {
            size_t n = 0, at = 0;
            for (int r = 0; r < rows; r++)
                n += (int)sd_table_num(t, r, cl) == l;
            char colour[8], label[32];
            sd_chart_colour((size_t)l, (size_t)layers, true, colour);
            snprintf(label, sizeof label, "layer %d", l);
            sd_series *s = sd_chart_series(c, 0, k ? SD_DRAW_LINE : SD_DRAW_LINEPOINTS,
                                           k ? NULL : label, colour, n, err);
            if (!s)
                return SD_ENOMEM;
            s->dotted = k;
            s->size = k ? 0.7 : 1.2;
            s->mark = k ? 0 : "0123456789abcdef"[l % 16];
            for (int r = 0; r < rows; r++) {
                if ((int)sd_table_num(t, r, cl) != l)
                    continue;
                s->v[2 * at] = sd_table_num(t, r, cx) / unit;
                s->v[2 * at++ + 1] = sd_figure_cell(k ? NULL : c, t, r, cols[k]);
            }
        }
    sd_panel *p = &c->panel[0];
    p->y.log = spread(p, 3);
    SD_TRY(sd_chart_label(&p->x.label, err, "%s",
                          unit > 1e3 ? "million tokens"
                          : unit > 1 ? "thousand tokens"
                                     : "tokens"));
    SD_TRY(sd_chart_label(&p->y.label, err, cn >= 0 ? "%s (dotted: its null)" : "%s", name));
    return sd_figure_titles(c, a, "Rank of routing over training", err);
}
