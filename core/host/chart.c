/* chart.c: the one style of all figures. */
#include "host/chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define INK "#1a1a1a"
enum {
    MAX_POINTS = 4000, /* a longer line is drawn as its envelope */
    KEY_BESIDE = 7,    /* more names than these stand beside the graph */
    KEY_MOST = 24,     /* of more series every n-th is named */
    NOTES_DRAWN = 3,   /* all are in the manifest */
    DUMB_COLS = 60,    /* cells of a map in the character terminal */
    DUMB_ROWS = 16,
    NUMBERED = 240 /* cells of a map that carry their numbers */
};

void sd_chart_init(sd_chart *c) {
    memset(c, 0, sizeof *c);
    c->n_panels = 1;
    c->width = 900;
    c->height = 560;
    for (int i = 0; i < 2; i++) {
        c->panel[i].line = NAN;
        c->panel[i].map.row_step = c->panel[i].map.col_step = 1;
    }
}

static void free_axis(sd_axis *a) {
    sd_free(a->label);
    for (size_t i = 0; i < a->n_names; i++)
        sd_free(a->names[i]);
    sd_free(a->names);
}

void sd_chart_free(sd_chart *c) {
    for (int k = 0; k < 2; k++) {
        sd_panel *p = &c->panel[k];
        for (size_t i = 0; i < p->n; i++) {
            sd_free(p->s[i].label);
            sd_free(p->s[i].v);
        }
        sd_free(p->s);
        sd_free(p->map.v);
        sd_free(p->map.label);
        sd_free(p->line_label);
        free_axis(&p->x);
        free_axis(&p->y);
    }
    for (size_t i = 0; i < c->n_notes; i++)
        sd_free(c->notes[i]);
    sd_free(c->notes);
    sd_free(c->warns);
    sd_buf_free(&c->title);
    sd_buf_free(&c->sub);
}

static double *nans(size_t n, size_t cols, sd_err *err) {
    double *v = sd_alloc(n ? n : 1, cols * sizeof *v, err);
    for (size_t i = 0; v && i < n * cols; i++)
        v[i] = NAN;
    return v;
}

sd_series *sd_chart_series(sd_chart *c, int panel, sd_draw draw, const char *label,
                           const char *colour, size_t n, sd_err *err) {
    sd_panel *p = &c->panel[panel];
    if (sd_grow((void **)&p->s, &p->cap, p->n + 1, sizeof *p->s, err) != SD_OK)
        return NULL;
    sd_series *s = &p->s[p->n];
    memset(s, 0, sizeof *s);
    s->draw = draw;
    s->n = n;
    s->cols = draw == SD_DRAW_BAND || draw == SD_DRAW_BARS ? 3 : 2;
    s->size = 1;
    s->label = label ? sd_strdup(label, err) : NULL;
    s->v = label && !s->label ? NULL : nans(n, s->cols, err);
    snprintf(s->colour, sizeof s->colour, "%s", colour);
    if (!s->v) {
        sd_free(s->label);
        return NULL;
    }
    p->n++;
    return s;
}

void sd_chart_colour(size_t i, size_t n, bool ordered, char out[8]) {
    static const char *const apart[] = {SD_BLUE,   SD_VERMILLION, "#009E73", "#CC79A7",
                                        "#E69F00", "#56B4E9",     "#000000"};
    /* viridis-like, readable in print and by every eye */
    static const int stop[5][3] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {233, 196, 30}};
    if (!ordered && n <= sizeof apart / sizeof *apart) {
        snprintf(out, 8, "%s", apart[i]);
        return;
    }
    double x = n > 1 ? 4.0 * (double)i / (double)(n - 1) : 0.0;
    int k = x >= 4.0 ? 3 : (int)x;
    int c[3];
    for (int j = 0; j < 3; j++)
        c[j] = (int)lround(stop[k][j] + (x - k) * (stop[k + 1][j] - stop[k][j]));
    snprintf(out, 8, "#%02x%02x%02x", c[0] & 255, c[1] & 255, c[2] & 255);
}

sd_status sd_chart_label(char **label, sd_err *err, const char *fmt, ...) {
    sd_buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    sd_buf_vprintf(&b, fmt, ap);
    va_end(ap);
    sd_status st = sd_buf_status(&b, err);
    if (st != SD_OK) {
        sd_buf_free(&b);
        return st;
    }
    sd_free(*label);
    *label = b.p;
    return SD_OK;
}

sd_status sd_chart_note(sd_chart *c, bool warn, sd_err *err, const char *fmt, ...) {
    sd_buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    sd_buf_vprintf(&b, fmt, ap);
    va_end(ap);
    sd_status st = sd_buf_status(&b, err);
    if (st == SD_OK)
        st = sd_grow((void **)&c->notes, &c->cap_notes, c->n_notes + 1, sizeof *c->notes, err);
    if (st == SD_OK)
        st = sd_grow((void **)&c->warns, &c->cap_warns, c->n_notes + 1, sizeof *c->warns, err);
    if (st != SD_OK) {
        sd_buf_free(&b);
        return st;
    }
    c->notes[c->n_notes] = b.p;
    c->warns[c->n_notes++] = warn;
    return SD_OK;
}

sd_status sd_chart_map(sd_chart *c, int panel, size_t rows, size_t cols, sd_err *err) {
    sd_map *m = &c->panel[panel].map;
    size_t n;
    if (!sd_mul_size(rows, cols, &n))
        return sd_fail(err, SD_EINVAL, "a map of %zu by %zu", rows, cols);
    m->v = nans(n, 1, err);
    m->rows = rows;
    m->cols = cols;
    return m->v ? SD_OK : SD_ENOMEM;
}

/* ---- before drawing: what has no place, and the ranges ---- */

typedef struct range {
    double lo, hi;
} range;

static void widen(range *r, double v) {
    if (isfinite(v)) {
        r->lo = fmin(r->lo, v);
        r->hi = fmax(r->hi, v);
    }
}

/* Rows that cannot be drawn become gaps; returns how many had a value. */
static size_t drop(sd_series *s, const sd_axis *x, const sd_axis *y) {
    size_t dropped = 0;
    for (size_t i = 0; i < s->n; i++) {
        double *r = s->v + i * s->cols;
        bool whole = isfinite(r[0]) && isfinite(r[1]) && (s->cols < 3 || isfinite(r[2]));
        bool place = (!x->log || r[0] > 0) &&
                     (!y->log || (r[1] > 0 && (s->draw != SD_DRAW_BAND || r[2] > 0)));
        dropped += whole && !place;
        for (size_t k = 0; (!whole || !place) && k < s->cols; k++)
            r[k] = NAN;
    }
    return dropped;
}

static void pad(sd_axis *a, range r, bool from_zero) {
    if (a->lo < a->hi)
        return;
    if (a->n_names) {
        a->lo = -0.6;
        a->hi = (double)a->n_names - 0.4;
        return;
    }
    if (a->log) {
        double f = fmax(pow(r.hi / r.lo, 0.06), 1.1);
        a->lo = r.lo / f;
        a->hi = r.hi * f;
        return;
    }
    double d = 0.06 * (r.hi - r.lo);
    if (!(d > 0))
        d = r.lo != 0 ? 0.1 * fabs(r.lo) : 1;
    a->lo = from_zero && r.lo >= 0 ? 0 : r.lo - d;
    a->hi = from_zero && r.hi <= 0 ? 0 : r.hi + d;
}

static sd_status settle(sd_chart *c, sd_err *err) {
    size_t left = 0;
    for (int k = 0; k < c->n_panels; k++) {
        sd_panel *p = &c->panel[k];
        range x = {INFINITY, -INFINITY}, y = x;
        bool bars = false;
        for (size_t i = 0; i < p->n; i++) {
            sd_series *s = &p->s[i];
            left += drop(s, &p->x, &p->y);
            bars |= s->draw == SD_DRAW_BARS;
            for (size_t j = 0; j < s->n; j++) {
                const double *r = s->v + j * s->cols;
                double half = s->draw == SD_DRAW_BARS && !p->x.log ? r[2] / 2 : 0;
                widen(&x, r[0] - half);
                widen(&x, r[0] + half);
                widen(&y, r[1]);
                if (s->draw == SD_DRAW_BAND)
                    widen(&y, r[2]);
            }
        }
        if (p->map.v) {
            p->x.whole = p->y.whole = true;
            p->x.lo = p->y.lo = -0.5;
            p->x.hi = (double)p->map.cols * p->map.col_step - 0.5;
            p->y.hi = (double)p->map.rows * p->map.row_step - 0.5;
            continue;
        }
        if (!(x.lo <= x.hi) || !(y.lo <= y.hi))
            return sd_fail(err, SD_EINVAL, "column %s holds no %s value", c->what,
                           p->x.log || p->y.log ? "positive" : "finite");
        if (isfinite(p->line) && (!p->y.log || p->line > 0))
            widen(&y, p->line);
        pad(&p->x, x, false);
        pad(&p->y, y, bars);
    }
    if (c->absent)
        SD_TRY(sd_chart_note(c, true, err, "%zu row%s no %s", c->absent,
                             c->absent == 1 ? " has" : "s have", c->what));
    if (c->nonfinite)
        SD_TRY(sd_chart_note(c, true, err, "%zu value%s of %s not finite and left out",
                             c->nonfinite, c->nonfinite == 1 ? "" : "s", c->what));
    if (left)
        SD_TRY(sd_chart_note(c, true, err,
                             "%zu value%s not above zero: no place on a logarithmic axis", left,
                             left == 1 ? " is" : "s are"));
    return SD_OK;
}

/* ---- text ---- */

static size_t count_chars(const char *s) {
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* name = 'text', cut at a character boundary to at most `most` characters. Only here does text of
 * others enter a script: gnuplot reads braces and quotes inside a { block } in its own way, so
 * never there. */
static sd_status text_var(sd_plot *p, const char *name, const char *s, size_t most, sd_err *err) {
    sd_buf cut = {0}, q = {0};
    size_t chars = 0, i = 0, len = strlen(s);
    while (i < len && chars < most) {
        size_t k = sd_utf8_next(s + i, len - i, NULL);
        sd_buf_put(&cut, s + i, k ? k : 1);
        i += k ? k : 1;
        chars++;
    }
    if (i < len)
        sd_buf_puts(&cut, "…");
    sd_plot_quote(&q, cut.p ? cut.p : "");
    sd_status st = cut.failed || q.failed ? sd_fail(err, SD_ENOMEM, "out of memory for a label")
                                          : sd_plot_cmd(p, err, "%s = %s", name, q.p);
    sd_buf_free(&cut);
    sd_buf_free(&q);
    return st;
}

/* ---- axes ---- */

/* Round values of a logarithmic axis between lo and hi, at least three: 1, 1.5, 2, 3, 4, 6 … by
 * halves and wholes of powers of two, or by 1, 2, 5, or by decades, as the span asks. */
static void log_ticks(sd_buf *b, double lo, double hi) {
    double decades = log10(hi / lo);
    static const double fine[] = {1, 1.5, 2, 3, 4, 6, 8}, mid[] = {1, 2, 5}, one[] = {1};
    const double *m = decades < 1.4 ? fine : decades < 3 ? mid : one;
    size_t nm = decades < 1.4 ? 7 : decades < 3 ? 3 : 1, n = 0;
    int step = decades > 8 ? (int)ceil(decades / 8) : 1;
    for (int e = (int)floor(log10(lo)); e <= (int)ceil(log10(hi)); e++) {
        for (size_t i = 0; i < nm; i++) {
            double v = m[i] * pow(10, e);
            if (v < lo * 0.9999 || v > hi * 1.0001 || (step > 1 && e % step != 0))
                continue;
            sd_buf_printf(b, "%s%.6g", n++ ? ", " : "", v);
        }
    }
    if (n >= 3)
        return;
    sd_buf_clear(b); /* a narrow range: its ends and the middle */
    sd_buf_printf(b, "%.3g, %.3g, %.3g", lo, sqrt(lo * hi), hi);
}

static sd_status axis_cmd(sd_plot *p, const sd_axis *a, char which, bool flip, sd_err *err) {
    char name[16];
    snprintf(name, sizeof name, "sd_%clabel", which);
    /* of the panel before, and before the range: zero has no place on a logarithmic axis */
    SD_TRY(sd_plot_cmd(p, err, "unset logscale %c\nset format %c '%s'", which, which, "%g"));
    SD_TRY(text_var(p, name, a->label ? a->label : "", 90, err));
    SD_TRY(sd_plot_cmd(p, err,
                       "if (sd_dumb) { set %clabel %s tc default } else { set %clabel %s tc rgb "
                       "'#333333' offset %s }",
                       which, name, which, name, which == 'x' ? "0,0.3" : "0.6,0"));
    SD_TRY(sd_plot_cmd(
        p, err, flip ? "set %crange [%.12g:%.12g] noextend" : "set %crange [%.12g:%.12g] noextend",
        which, flip ? a->hi : a->lo, flip ? a->lo : a->hi));
    if (a->log) {
        sd_buf b = {0};
        log_ticks(&b, a->lo, a->hi);
        sd_status st = sd_buf_status(&b, err);
        if (st == SD_OK)
            st = sd_plot_cmd(p, err, "set logscale %c\nset %ctics (%s)", which, which, b.p);
        sd_buf_free(&b);
        return st;
    }
    if (a->n_names) { /* one by one: a name is text of anyone */
        size_t every = (a->n_names + 39) / 40, longest = 0;
        for (size_t i = 0; i < a->n_names; i++) {
            size_t k = count_chars(a->names[i]);
            longest = k > longest ? k : longest;
        }
        bool turn = which == 'x' && longest * a->n_names > 70;
        SD_TRY(sd_plot_cmd(p, err, "set %ctics () %s", which,
                           turn ? "rotate by (sd_dumb ? 0 : -35) left" : ""));
        for (size_t i = 0; i < a->n_names; i += every) {
            sd_buf b = {0}; /* a tick label is a format */
            for (const char *q = a->names[i]; *q; q++)
                sd_buf_printf(&b, *q == '%' ? "%%%%" : "%c", *q);
            sd_status st = sd_buf_status(&b, err);
            if (st == SD_OK)
                st = text_var(p, "sd_tick", b.p ? b.p : "", 28, err);
            sd_buf_free(&b);
            SD_TRY(st);
            SD_TRY(sd_plot_cmd(p, err, "set %ctics add (sd_tick %zu)", which, i));
        }
        return SD_OK;
    }
    double span = a->hi - a->lo;
    if (a->whole && span < 1e6) {
        double step = span < 24 ? 1 : pow(10, ceil(log10(span / 24)));
        step = step > 1 && span / step < 6 ? step / 2 : step;
        return sd_plot_cmd(p, err, "set %ctics %g", which, fmax(1, floor(step)));
    }
    return sd_plot_cmd(p, err, "set %ctics autofreq", which);
}

/* Character heights below the graph that rotated names need. */
static double names_height(const sd_axis *a) {
    size_t longest = 0;
    for (size_t i = 0; i < a->n_names; i++) {
        size_t k = count_chars(a->names[i]);
        longest = k > longest ? k : longest;
    }
    longest = longest > 28 ? 28 : longest;
    return longest * a->n_names > 70 ? 0.33 * (double)longest : 0;
}

/* ---- series ---- */

static const char *marker(const sd_series *s, size_t n) {
    return s->hollow ? "pt 6" : n > 3000 ? "pt 5" : "pt 7";
}

/* Its data file, a long line as its envelope. */
static sd_status series_data(sd_plot *p, const sd_series *s, char file[64], sd_err *err) {
    bool line = s->draw == SD_DRAW_LINE || s->draw == SD_DRAW_LINEPOINTS;
    for (size_t i = 1; line && i < s->n; i++)
        line = s->v[2 * i] >= s->v[2 * i - 2];
    if (!line || s->n <= MAX_POINTS)
        return sd_plot_data(p, s->v, s->n, s->cols, file, err);
    double *v = sd_alloc(MAX_POINTS, 2 * sizeof *v, err);
    if (!v)
        return SD_ENOMEM;
    size_t n = sd_plot_decimate(s->v, s->n, MAX_POINTS / 2, v);
    sd_status st = sd_plot_data(p, v, n, 2, file, err);
    sd_free(v);
    return st;
}

static void series_full(sd_buf *b, const sd_series *s, const char *file) {
    const char *a = s->faint ? "#80" : "#";
    sd_buf_printf(b, "%s%s u %s ", b->n ? ", " : "plot ", file, s->cols == 3 ? "1:2:3" : "1:2");
    switch (s->draw) {
    case SD_DRAW_BAND:
        sd_buf_printf(b, "w filledcurves fs transparent solid %g noborder lc rgb '%s'",
                      s->faint ? 0.22 : 1.0, s->colour);
        return;
    case SD_DRAW_BARS:
        sd_buf_printf(b, "w boxes fs solid 0.85 noborder lc rgb '%s'", s->colour);
        return;
    case SD_DRAW_IMPULSES:
        sd_buf_printf(b, "w impulses lw %g lc rgb '%s%s'", s->size, a, s->colour + 1);
        return;
    case SD_DRAW_POINTS:
        sd_buf_printf(b, "w points %s ps %g lc rgb '%s%s'", marker(s, s->n),
                      (s->n > 3000  ? 0.25
                       : s->n > 500 ? 0.4
                                    : 0.6) *
                          s->size,
                      a, s->colour + 1);
        return;
    case SD_DRAW_LINE:
        sd_buf_printf(b, "w lines %s lw %g lc rgb '%s%s'", s->dotted ? "dt 3" : "", 1.4 * s->size,
                      a, s->colour + 1);
        return;
    case SD_DRAW_LINEPOINTS:
        sd_buf_printf(b, "w linespoints %s lw %g %s ps %g lc rgb '%s%s'", s->dotted ? "dt 3" : "",
                      1.4 * s->size, marker(s, s->n), s->n > 100 ? 0.3 : 0.9 * s->size, a,
                      s->colour + 1);
    }
}

static void series_dumb(sd_buf *b, const sd_series *s, const char *file) {
    sd_buf_printf(b, "%s%s u %s ", b->n ? ", " : "plot ", file, s->cols == 3 ? "1:2:3" : "1:2");
    if (s->draw == SD_DRAW_BARS)
        sd_buf_printf(b, "w boxes lc rgb '%s'", s->colour);
    else if (s->draw == SD_DRAW_IMPULSES)
        sd_buf_printf(b, "w impulses lc rgb '%s'", s->colour);
    else
        sd_buf_printf(b, "w %s pt '%c' lc rgb '%s'",
                      s->draw == SD_DRAW_POINTS || s->n > 200 ? "points" : "linespoints", s->mark,
                      s->colour);
}

/* A series without a point (a null that was not asked for) is not drawn and not named. */
static bool drawable(const sd_series *s) {
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->v[i * s->cols]))
            return true;
    return false;
}

/* Every series twice: as the character terminal can show it, and in full. */
static sd_status series_cmd(sd_plot *p, const sd_panel *a, sd_err *err) {
    sd_buf full = {0}, dumb = {0};
    size_t named = 0, place = 0;
    sd_status st = SD_OK;
    for (size_t i = 0; i < a->n; i++)
        named += a->s[i].label != NULL && drawable(&a->s[i]);
    size_t every = (named + KEY_MOST - 1) / KEY_MOST;
    for (size_t i = 0; st == SD_OK && i < a->n; i++) {
        const sd_series *s = &a->s[i];
        char file[64], key[32] = "";
        if (!drawable(s))
            continue;
        st = series_data(p, s, file, err);
        if (st == SD_OK && s->label && place++ % every == 0) {
            snprintf(key, sizeof key, "sd_key%zu", i);
            st = text_var(p, key, s->label, 40, err);
        }
        series_full(&full, s, file);
        sd_buf_printf(&full, key[0] ? " t %s" : " notitle%s", key);
        if (!s->mark && s->draw != SD_DRAW_BARS)
            continue;
        series_dumb(&dumb, s, file);
        if (key[0])
            sd_buf_printf(&dumb, " t %s.' '", key);
        else
            sd_buf_puts(&dumb, " notitle");
    }
    if (st == SD_OK && (full.failed || dumb.failed))
        st = sd_fail(err, SD_ENOMEM, "out of memory for a figure");
    if (st == SD_OK && isfinite(a->line)) {
        sd_buf_printf(&full, ", %.12g w lines dt 3 lw 1 lc rgb '#999999' notitle", a->line);
        st = text_var(p, "sd_line", a->line_label ? a->line_label : "", 60, err);
        if (st == SD_OK)
            st = sd_plot_cmd(p, err,
                             "if (!sd_dumb) { set label 3 sd_line at graph 0.995, first %.12g "
                             "right offset 0,0.5 font ',8' tc rgb '#777777' front }",
                             a->line);
    }
    if (st == SD_OK)
        st = sd_plot_cmd(p, err,
                         named > KEY_BESIDE
                             ? "if (sd_dumb) { set key outside right top vertical Left reverse "
                               "samplen 1 } else { set key outside right top vertical Left "
                               "reverse samplen 1.6 tc rgb '#333333' font ',9' }"
                             : "if (sd_dumb) { set key tmargin center horizontal } else { set "
                               "key at graph 0, graph 1 left bottom horizontal maxrows 2 Left "
                               "reverse samplen 2 width 0 tc rgb '#333333' font ',10' }");
    if (st == SD_OK && named == 0)
        st = sd_plot_cmd(p, err, "unset key");
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "if (sd_dumb) { %s } else { %s }", dumb.n ? dumb.p : full.p,
                         full.p);
    sd_buf_free(&full);
    sd_buf_free(&dumb);
    return st;
}

/* ---- map ---- */

/* Three significant digits, as short as they go. */
static void short_number(double v, char out[16]) {
    double a = fabs(v);
    if (v == 0)
        snprintf(out, 16, "0");
    else if (a >= 1e5 || a < 1e-3)
        snprintf(out, 16, "%.0e", v);
    else if (a >= 100)
        snprintf(out, 16, "%.0f", v);
    else if (a >= 10)
        snprintf(out, 16, "%.1f", v);
    else
        snprintf(out, 16, "%.2f", v);
}

/* Means over blocks, so that a map fits rows × cols cells. */
static void shrink(const sd_map *m, size_t rows, size_t cols, double *out) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            double sum = 0;
            size_t n = 0;
            for (size_t i = r * m->rows / rows; i < (r + 1) * m->rows / rows; i++)
                for (size_t j = c * m->cols / cols; j < (c + 1) * m->cols / cols; j++) {
                    double v = m->v[i * m->cols + j];
                    if (isfinite(v)) {
                        sum += v;
                        n++;
                    }
                }
            out[r * cols + c] = n ? sum / (double)n : NAN;
        }
}

typedef struct scale {
    double lo, hi;
    bool log;
} scale;

static double at_scale(const scale *k, double v) {
    return k->log ? log(v / k->lo) / log(k->hi / k->lo) : (v - k->lo) / (k->hi - k->lo);
}

/* Numbers in the cells of a small map, white where the colour is dark; in the character terminal
 * the numbers, or one character a cell from low '.' to high '@'. */
static sd_status map_cells(sd_plot *p, const sd_map *m, const scale *k, bool *dark, bool *light,
                           sd_err *err) {
    sd_buf text[3] = {{0}}; /* dark, light, dumb */
    sd_status st = SD_OK;
    bool numbered = m->rows * m->cols <= NUMBERED && m->cols <= 24;
    size_t rows = m->rows < DUMB_ROWS ? m->rows : DUMB_ROWS;
    size_t cols = m->cols < DUMB_COLS ? m->cols : DUMB_COLS;
    bool as_numbers = m->rows <= DUMB_ROWS && m->cols <= 12;
    double *small = sd_alloc(rows * cols, sizeof *small, err);
    if (!small)
        return SD_ENOMEM;
    shrink(m, rows, cols, small);
    for (size_t i = 0; numbered && i < m->rows * m->cols; i++) {
        if (!isfinite(m->v[i]))
            continue;
        char num[16];
        short_number(m->v[i], num);
        double u = at_scale(k, m->v[i]);
        bool on_dark = k->lo < 0 && k->hi > 0 ? fabs(u - 0.5) > 0.3 : u <= 0.6;
        sd_buf_printf(&text[!on_dark], "%zu %zu %s\n", i % m->cols, i / m->cols, num);
    }
    static const char ramp[] = ".:-=+*#%@";
    scale own = {INFINITY, -INFINITY, k->log}; /* means span less than their cells */
    for (size_t i = 0; i < rows * cols; i++)
        if (isfinite(small[i])) {
            own.lo = fmin(own.lo, small[i]);
            own.hi = fmax(own.hi, small[i]);
        }
    for (size_t i = 0; i < rows * cols; i++) {
        if (!isfinite(small[i]))
            continue;
        char num[16];
        short_number(small[i], num);
        double u = own.hi > own.lo ? at_scale(&own, small[i]) : 0.5;
        if (!as_numbers)
            snprintf(num, sizeof num, "%c", ramp[(int)fmax(0, fmin(8, floor(9 * u)))]);
        sd_buf_printf(
            &text[2], "%g %g %s\n",
            ((double)(i % cols) + 0.5) * (double)m->cols * m->col_step / (double)cols - 0.5,
            ((double)(i / cols) + 0.5) * (double)m->rows * m->row_step / (double)rows - 0.5, num);
    }
    if (!as_numbers) {
        char lo[16], hi[16];
        short_number(own.lo, lo);
        short_number(own.hi, hi);
        SD_GO(st, done,
              sd_plot_cmd(p, err,
                          "if (sd_dumb) { set xlabel sd_xlabel.'   (from . %s to "
                          "@ %s)' tc default }",
                          lo, hi));
    }
    *dark = text[0].n > 0;
    *light = text[1].n > 0;
    st = text[0].failed || text[1].failed || text[2].failed
             ? sd_fail(err, SD_ENOMEM, "out of memory for a figure")
             : sd_plot_cmd(p, err,
                           "$dark << EOD\n%sEOD\n$light << EOD\n%sEOD\n$all << "
                           "EOD\n%sEOD",
                           *dark ? text[0].p : "", *light ? text[1].p : "",
                           text[2].n ? text[2].p : "");
done:
    sd_free(small);
    for (int i = 0; i < 3; i++)
        sd_buf_free(&text[i]);
    return st;
}

static sd_status colours(sd_plot *p, const sd_map *m, scale *k, sd_err *err) {
    char a[16], b[16];
    short_number(k->lo, a);
    short_number(k->hi, b);
    bool both = !k->log && k->lo < 0 && k->hi > 0;
    sd_buf label = {0};
    sd_buf_printf(&label, "%.60s, %s to %s%s", m->label ? m->label : "value", a, b,
                  k->log ? ", logarithmic" : "");
    sd_status st = sd_buf_status(&label, err);
    if (st == SD_OK)
        st = text_var(p, "sd_cblabel", label.p, 90, err);
    sd_buf_clear(&label);
    if (both) { /* zero is white, and both signs use one scale */
        k->hi = fmax(-k->lo, k->hi);
        k->lo = -k->hi;
    }
    if (k->lo == k->hi) {
        double d = k->lo != 0 ? 0.5 * fabs(k->lo) : 1; /* one value: in the middle of its scale */
        k->hi += d;
        k->lo -= k->log ? 0 : d;
    }
    if (st == SD_OK)
        st = sd_plot_cmd(p, err,
                         "set cblabel sd_cblabel tc rgb '#333333' offset 0.5,0\nset cbrange "
                         "[%.9g:%.9g]\nset colorbox vertical noborder\nset cbtics scale 0.4 "
                         "format '%s' tc rgb '#333333'",
                         k->lo, k->hi, "%g");
    if (st == SD_OK && k->log) {
        log_ticks(&label, k->lo, k->hi);
        st = sd_plot_cmd(p, err, "set logscale cb\nset cbtics (%s)", label.p ? label.p : "");
    }
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "%s",
                         both ? "set palette defined (0 '#0b3c6f', 1 '#2166ac', 2 '#92c5de', 3 "
                                "'#f7f7f7', 4 '#f4a582', 5 '#b2182b', 6 '#67001f')"
                              : "set palette defined (0 '#440154', 1 '#472c7a', 2 '#3b518b', 3 "
                                "'#2c718e', 4 '#21908d', 5 '#27ad81', 6 '#5cc863', 7 '#aadc32', "
                                "8 '#fde725')");
    sd_buf_free(&label);
    return st;
}

static sd_status map_cmd(sd_plot *p, sd_panel *a, sd_err *err) {
    sd_map *m = &a->map;
    scale k = {INFINITY, -INFINITY, m->log};
    for (size_t i = 0; i < m->rows * m->cols; i++) {
        double v = m->v[i];
        if (isfinite(v)) {
            k.lo = fmin(k.lo, v);
            k.hi = fmax(k.hi, v);
        }
    }
    SD_TRY(colours(p, m, &k, err));
    bool dark = false, light = false;
    SD_TRY(map_cells(p, m, &k, &dark, &light, err));
    /* `image` wants two cells each way: a single row or column is given twice, at half height. */
    size_t twice_r = m->rows == 1 ? 2 : 1, twice_c = m->cols == 1 ? 2 : 1;
    size_t rows = m->rows * twice_r, cols = m->cols * twice_c;
    double *v = sd_alloc(rows * cols, sizeof *v, err);
    if (!v)
        return SD_ENOMEM;
    for (size_t i = 0; i < rows * cols; i++)
        v[i] = m->v[(i / cols) / twice_r * m->cols + (i % cols) / twice_c];
    /* The first cell's middle stands so that its edge is at -0.5. */
    double dx = m->col_step / (double)twice_c, dy = m->row_step / (double)twice_r;
    char file[64];
    sd_status st = sd_plot_matrix(p, v, rows, cols, file, err);
    sd_free(v);
    SD_TRY(st);
    return sd_plot_cmd(
        p, err,
        "unset key\nset border 0\nset tics nomirror scale 0\n"
        "if (sd_dumb) { set border 3; plot $all u 1:2:3 w labels notitle } else { plot %s binary "
        "array=(%zu,%zu) dx=%g dy=%g origin=(%g,%g) format='%%float32' w image notitle%s%s }",
        file, cols, rows, dx, dy, 0.5 * (dx - 1), 0.5 * (dy - 1),
        dark ? ", $dark u 1:2:3 w labels tc rgb '#ffffff' notitle" : "",
        light ? ", $light u 1:2:3 w labels tc rgb '#1a1a1a' notitle" : "");
}

/* ---- the whole ---- */

static sd_status head(sd_plot *p, const sd_chart *c, sd_err *err) {
    SD_TRY(text_var(p, "sd_title", c->title.p ? c->title.p : "", 78, err));
    SD_TRY(text_var(p, "sd_sub", c->sub.p ? c->sub.p : "", 118, err));
    SD_TRY(sd_plot_cmd(
        p, err,
        "set border 3 lc rgb '#555555' lw 0.6\n"
        "set tics nomirror out scale 0.4 tc rgb '#333333'\n"
        "set grid ytics lt 1 lc rgb '#e6e6e6' lw 0.5 back\n"
        "if (sd_dumb) { unset grid; set border 3 lc black; set tics tc default; set label 1 "
        "sd_title at screen 0.5, screen 0.98 center } else {\n"
        "set label 1 sd_title at screen 0.02, screen 1 offset 0,-1.5 left font ',15' tc rgb '" INK
        "' front\n"
        "set label 2 sd_sub at screen 0.02, screen 1 offset 0,-2.9 left font ',9.5' tc rgb "
        "'" SD_GREY "' front }"));
    size_t n = c->n_notes < NOTES_DRAWN ? c->n_notes : NOTES_DRAWN;
    for (size_t i = 0; i < n; i++) {
        SD_TRY(text_var(p, "sd_note", c->notes[i], 130, err));
        SD_TRY(sd_plot_cmd(p, err,
                           "if (!sd_dumb) { set label %zu sd_note at screen 0.02, screen 0 "
                           "offset 0,%g left font ',8' tc rgb '#777777' }",
                           20 + i, 0.6 + 1.05 * (double)(n - 1 - i)));
    }
    return SD_OK;
}

/* Margins in characters; left and right are gnuplot's, which knows how long the tick labels are.
 * Two panels stand at fixed places, the right one square on the page. */
static sd_status margins(sd_plot *p, const sd_chart *c, int k, sd_err *err) {
    const sd_panel *a = &c->panel[k];
    size_t notes = c->n_notes < NOTES_DRAWN ? c->n_notes : NOTES_DRAWN, named = 0;
    for (size_t i = 0; i < a->n; i++)
        named += a->s[i].label != NULL;
    bool above = named > 0 && named <= KEY_BESIDE;
    SD_TRY(sd_plot_cmd(p, err,
                       "if (sd_dumb) { set tmargin %d } else { set tmargin %g; set bmargin %g }",
                       c->n_panels == 1 && above ? 3 : 2, above ? 5.6 : 4.3,
                       3.2 + names_height(&a->x) + 1.05 * (double)notes + (notes ? 0.4 : 0)));
    if (c->n_panels == 1)
        return SD_OK;
    return sd_plot_cmd(p, err,
                       k == 0 ? "if (sd_dumb) { set lmargin at screen 0.12; set rmargin at screen "
                                "0.46 } else { set lmargin at screen 0.08; set rmargin at screen "
                                "0.535 }"
                              : "unset label 1; unset label 2; if (sd_dumb) { set lmargin at "
                                "screen 0.62; set rmargin at screen 0.97 } else { set lmargin at "
                                "screen 0.63; set rmargin at screen 0.979 }");
}

sd_status sd_chart_plot(sd_chart *c, sd_plot **out, sd_err *err) {
    *out = NULL;
    SD_TRY(sd_buf_status(&c->title, err));
    SD_TRY(sd_buf_status(&c->sub, err));
    SD_TRY(settle(c, err));
    sd_plot *p = NULL;
    SD_TRY(sd_plot_new(c->title.p, &p, err));
    sd_plot_size(p, c->width, c->height);
    sd_status st = head(p, c, err);
    for (size_t i = 0; st == SD_OK && i < c->n_notes; i++)
        st = sd_plot_note(p, c->warns[i], c->notes[i], err);
    if (st == SD_OK && c->n_panels > 1)
        st = sd_plot_cmd(p, err, "set multiplot");
    for (int k = 0; st == SD_OK && k < c->n_panels; k++) {
        sd_panel *a = &c->panel[k];
        st = margins(p, c, k, err);
        if (st == SD_OK)
            st = axis_cmd(p, &a->x, 'x', false, err);
        if (st == SD_OK)
            st = axis_cmd(p, &a->y, 'y', a->map.v != NULL, err);
        if (st == SD_OK)
            st = a->map.v ? map_cmd(p, a, err) : series_cmd(p, a, err);
    }
    if (st == SD_OK && c->n_panels > 1)
        st = sd_plot_cmd(p, err, "unset multiplot");
    if (st != SD_OK)
        sd_plot_free(p);
    else
        *out = p;
    return st;
}
