/* figures.c: rank per layer, spectrum of a head, map of heads. */
#include "host/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spectral/columns.h"

#define BLUE "#0072B2"
#define VERMILLION "#D55E00"
#define INK "#1a1a1a"
#define GREY "#666666"

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
    if (n == 0)
        return NAN;
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static double cell(const sd_table *t, int row, int col) {
    return col >= 0 && sd_table_has(t, row, col) ? sd_table_num(t, row, col) : NAN;
}

static const char *model_name(const sd_table *t) {
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double x;
        if (strcmp(sd_table_meta_at(t, i, &s, &x), "model") == 0 && s)
            return s;
    }
    return NULL;
}

static const char *column_at(const void *ctx, size_t i) {
    const sd_table *t = ctx;
    return i < (size_t)sd_table_cols(t) ? sd_table_col_name(t, (int)i) : NULL;
}

static sd_status need_column(const sd_table *t, const char *name, int *col, sd_err *err) {
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

/* Cut at a character boundary to at most n characters, "…" at the end when something was cut. */
static void shorten(sd_buf *out, const char *s, size_t n) {
    size_t chars = 0, i = 0, len = strlen(s);
    while (i < len && chars < n) {
        size_t k = sd_utf8_next(s + i, len - i, NULL);
        sd_buf_put(out, s + i, k ? k : 1);
        i += k ? k : 1;
        chars++;
    }
    if (i < len)
        sd_buf_puts(out, "…");
}

/* Title and subtitle, left-aligned over the graph; a plain title in the character terminal. */
static sd_status titles(sd_plot *p, const char *title, const char *sub, double left, sd_err *err) {
    sd_buf cut = {0}, q = {0}, qs = {0};
    shorten(&cut, title, 78);
    sd_plot_quote(&q, cut.p ? cut.p : "");
    sd_buf_clear(&cut);
    shorten(&cut, sub, 120);
    sd_plot_quote(&qs, cut.p ? cut.p : "");
    sd_status st = cut.failed || q.failed || qs.failed
                       ? sd_fail(err, SD_ENOMEM, "out of memory for a title")
                       : SD_OK;
    /* Only here does text of others enter a script: gnuplot reads braces and quotes inside a {
     * block } in its own way, so never there. */
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "sd_title = %s\nsd_sub = %s", q.p, qs.p);
    if (st == SD_OK)
        st =
            sd_plot_cmd(p, err,
                        "if (sd_dumb) { set label 1 sd_title at screen 0.5, screen 0.98 center } "
                        "else { set label 1 sd_title at screen %g, screen 0.945 left font ',15' tc "
                        "rgb '" INK "' front; set label 2 sd_sub at screen %g, screen 0.885 left "
                        "font ',9.5' tc rgb '" GREY "' front }",
                        left, left);
    sd_buf_free(&cut);
    sd_buf_free(&q);
    sd_buf_free(&qs);
    return st;
}

static sd_status axes(sd_plot *p, sd_err *err) {
    return sd_plot_cmd(p, err,
                       "set border 3 lc rgb '#555555' lw 0.6\n"
                       "set tics nomirror out scale 0.4 tc rgb '#333333'\n"
                       "set grid ytics lt 1 lc rgb '#e6e6e6' lw 0.5 back\n"
                       "if (sd_dumb) { unset grid; set border 3 lc black; set tics tc default }");
}

/* Round tick values of a logarithmic axis between lo and hi: 1, 1.5, 2, 3, 4, 6, 8, 12, ... */
static sd_status log_ticks(sd_plot *p, double lo, double hi, sd_err *err) {
    double first = exp2(floor(log2(lo)));
    double span = log2(hi / lo);
    sd_buf b = {0};
    for (double v = first; v <= hi * 1.0001; v *= 2) {
        if (span > 8 && fmod(round(log2(v)), 2) != 0)
            continue;
        if (v >= lo * 0.9999)
            sd_buf_printf(&b, "%s%.6g", b.n ? ", " : "", v);
        if (span < 4.5 && 1.5 * v >= lo && 1.5 * v <= hi)
            sd_buf_printf(&b, "%s%.6g", b.n ? ", " : "", 1.5 * v);
    }
    sd_status st = sd_buf_status(&b, err);
    if (st == SD_OK && b.n)
        st = sd_plot_cmd(p, err, "set ytics (%s)", b.p);
    sd_buf_free(&b);
    return st;
}

/* ---- rank per layer ---- */

static void widen(double v, double *lo, double *hi) {
    if (isfinite(v) && v > 0) {
        *lo = v < *lo ? v : *lo;
        *hi = v > *hi ? v : *hi;
    }
}

sd_status sd_figure_rank(const sd_table *t, const char *column, const char *title, sd_plot **out,
                         sd_err *err) {
    int cl, cv, rows = sd_table_rows(t);
    *out = NULL;
    column = column ? column : "pr";
    SD_TRY(need_column(t, "layer", &cl, err));
    SD_TRY(need_column(t, column, &cv, err));
    char name[96];
    snprintf(name, sizeof name, "%.60s_null", column);
    int cn = sd_table_find_col(t, name);
    snprintf(name, sizeof name, "%.60s_null_sd", column);
    int cs = sd_table_find_col(t, name);
    sd_column declared;
    int cc = sd_column_find(column, &declared, NULL) && declared.centred[0]
                 ? sd_table_find_col(t, declared.centred)
                 : -1;
    bool per_head = sd_table_find_col(t, "head") >= 0;
    if (rows == 0)
        return sd_fail(err, SD_EINVAL, "the table is empty");
    int top = 0;
    for (int r = 0; r < rows; r++)
        top = (int)cell(t, r, cl) > top ? (int)cell(t, r, cl) : top;
    size_t n_layers = (size_t)top + 1, n = 0, n_heads = 0;
    double *tmp = sd_alloc((size_t)rows, 4 * sizeof *tmp, err);
    double *dots = sd_alloc((size_t)rows, 2 * sizeof *dots, err);
    double *lines = sd_alloc(n_layers, 6 * sizeof *lines, err);
    sd_plot *p = NULL;
    sd_buf head = {0}, sub = {0};
    sd_status st = tmp && dots && lines ? SD_OK : SD_ENOMEM;
    double lo = INFINITY, hi = 0;
    bool has_null = false, has_sd = false, has_centred = false;
    for (int l = 0; st == SD_OK && l <= top; l++) {
        size_t k = 0, in_layer = 0;
        double *v[4] = {tmp, tmp + rows, tmp + 2 * rows, tmp + 3 * rows};
        size_t m[4] = {0};
        const int cols[4] = {cv, cn, cs, cc};
        for (int r = 0; r < rows; r++)
            in_layer += (int)cell(t, r, cl) == l;
        for (int r = 0; r < rows; r++) {
            if ((int)cell(t, r, cl) != l)
                continue;
            for (int c = 0; c < 4; c++) {
                double x = cell(t, r, cols[c]);
                if (isfinite(x))
                    v[c][m[c]++] = x;
            }
            double x = cell(t, r, cv);
            if (per_head && isfinite(x)) { /* heads side by side, so that equal ones stay visible */
                double width = 0.44, at = in_layer > 1 ? (double)k / (double)(in_layer - 1) : 0.5;
                dots[2 * n_heads] = l + width * (at - 0.5);
                dots[2 * n_heads + 1] = x;
                n_heads++;
                widen(x, &lo, &hi);
            }
            k++;
        }
        if (in_layer == 0)
            continue;
        double *row = lines + 6 * n++;
        row[0] = l;
        row[1] = median(v[0], m[0]);
        row[2] = median(v[1], m[1]);
        double sd = median(v[2], m[2]);
        row[3] = row[2] - (isfinite(sd) ? sd : 0);
        row[4] = row[2] + (isfinite(sd) ? sd : 0);
        row[5] = cc >= 0 ? median(v[3], m[3]) : 0; /* 0: not drawn */
        if (row[3] <= 0)
            row[3] = row[2];
        for (int c = 1; c < 6; c++)
            widen(row[c], &lo, &hi);
        has_null |= isfinite(row[2]);
        has_sd |= isfinite(row[2]) && isfinite(sd);
        has_centred |= cc >= 0 && isfinite(row[5]);
    }
    if (st == SD_OK && !(hi > 0))
        st = sd_fail(err, SD_EINVAL, "column %.60s holds no positive value", column);
    const char *model = model_name(t);
    if (title)
        sd_buf_puts(&head, title);
    else
        sd_buf_printf(&head, "Rank of routing per layer%s%s", model ? ": " : "",
                      model ? model : "");
    for (size_t i = 0; i < sd_table_n_heading(t) && sub.n < 60; i++) {
        const char *line = sd_table_heading_at(t, i);
        size_t k = model ? strlen(model) : 0; /* the title names the model already */
        if (k && strncmp(line, model, k) == 0 && strncmp(line + k, ": ", 2) == 0)
            line += k + 2;
        sd_buf_printf(&sub, "%s%s", i ? "; " : "", line);
    }
    if (st == SD_OK)
        st = sd_buf_status(&head, err);
    if (st == SD_OK)
        st = sd_buf_status(&sub, err);
    char fl[64] = "", fd[64] = "";
    if (st == SD_OK)
        st = sd_plot_new(head.p, &p, err);
    if (st == SD_OK)
        st = sd_plot_data(p, lines, n, 6, fl, err);
    if (st == SD_OK && n_heads)
        st = sd_plot_data(p, dots, n_heads, 2, fd, err);
    if (st == SD_OK)
        st = axes(p, err);
    if (st == SD_OK)
        st = titles(p, head.p, sub.p ? sub.p : "", 0.085, err);
    bool log_axis = hi / lo > 3;
    double ymin = log_axis ? fmin(lo, 2) / 1.15 : 0, ymax = log_axis ? hi * 1.2 : hi * 1.1;
    if (st == SD_OK)
        st = sd_plot_cmd(
            p, err,
            "if (sd_dumb) { set tmargin 3; set key tmargin center horizontal } else {\n"
            "set lmargin at screen 0.085; set rmargin at screen 0.975\n"
            "set tmargin at screen 0.835; set bmargin at screen 0.2\n"
            "set key at screen 0.53, screen 0.045 center bottom horizontal maxrows 1 Left reverse "
            "samplen 2.2 width -5 tc rgb '#333333' font ',10' }\n"
            "set xrange [-0.5:%g]\nset xtics %d\n"
            "set xlabel 'layer' tc rgb '#333333' offset 0,0.4\n"
            "set ylabel 'effective rank (%s)' tc rgb '#333333' offset 0.8,0\n"
            "if (sd_dumb) { set xlabel 'layer' tc default; set ylabel 'rank' tc default }\n"
            "set yrange [%g:%g] noextend\n"
            "if (!sd_dumb) { set label 3 'minimal rank: up to 3' at graph 0.995, first 3 right "
            "offset 0,0.5 font ',8' tc rgb '#999999' front }",
            top + 0.5,
            top < 20   ? 1
            : top < 50 ? 4
                       : 10,
            column, ymin, ymax);
    if (st == SD_OK && log_axis)
        st = sd_plot_cmd(p, err, "set logscale y 2");
    if (st == SD_OK && log_axis)
        st = log_ticks(p, ymin, ymax, err);
    /* Every series twice: as the character terminal can show it, and in full. */
    sd_buf dumb = {0}, full = {0};
    const char *sep = "plot ";
    if (has_sd) {
        sd_buf_printf(&full,
                      "%s%s u 1:4:5 w filledcurves fs solid 0.22 noborder lc rgb '#888888' t "
                      "'null ± sd'",
                      sep, fl);
        sep = ", ";
    }
    if (has_null) {
        sd_buf_printf(&full, "%s%s u 1:3 w lines dt 2 lw 1.2 lc rgb '" GREY "' t 'null'", sep, fl);
        sd_buf_printf(&dumb, "plot %s u 1:3 w linespoints pt 'o' lc rgb '#bbbbbb' t 'null '", fl);
        sep = ", ";
    }
    sd_buf_printf(&full, "%s3 w lines dt 3 lw 1 lc rgb '#999999' notitle", sep);
    sep = ", ";
    if (n_heads)
        sd_buf_printf(&full,
                      "%s%s u 1:2 w points pt 7 ps 0.6 lc rgb '#90"
                      "0072B2' t 'heads'",
                      sep, fd);
    if (has_centred) {
        sd_buf_printf(&full,
                      ", %s u 1:6 w linespoints pt 6 ps 1.1 lw 1.4 lc rgb '" VERMILLION
                      "' t 'centred'",
                      fl);
        sd_buf_printf(&dumb, "%s%s u 1:6 w linespoints pt 'c' lc rgb '" VERMILLION "' t 'centred '",
                      dumb.n ? ", " : "plot ", fl);
    }
    sd_buf_printf(&full, ", %s u 1:2 w linespoints pt 7 ps 1.2 lw 2 lc rgb '" BLUE "' t '%s'", fl,
                  per_head ? "median over heads" : "median");
    sd_buf_printf(&dumb, "%s%s u 1:2 w linespoints pt '*' lc rgb '#3399dd' t 'median '",
                  dumb.n ? ", " : "plot ", fl);
    if (st == SD_OK)
        st = dumb.failed || full.failed ? sd_fail(err, SD_ENOMEM, "out of memory for a figure")
                                        : SD_OK;
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "if (sd_dumb) { %s } else { %s }", dumb.p, full.p);
    sd_buf_free(&dumb);
    sd_buf_free(&full);
    sd_buf_free(&head);
    sd_buf_free(&sub);
    sd_free(tmp);
    sd_free(dots);
    sd_free(lines);
    if (st != SD_OK)
        sd_plot_free(p);
    else
        *out = p;
    return st;
}

/* ---- spectrum of a head ---- */

sd_status sd_figure_spectrum(const sd_table *t, int layer, int head, const char *title,
                             sd_plot **out, sd_err *err) {
    *out = NULL;
    int cp = sd_table_find_col(t, "planes"), cr = sd_table_find_col(t, "lambda_re"),
        ci = sd_table_find_col(t, "lambda_im");
    if (cp < 0 || sd_table_col_kind(t, cp) != SD_COL_VEC)
        return sd_fail(err, SD_EINVAL,
                       "this table (%s) holds no spectra: give one of heads or probe",
                       sd_table_kind(t));
    int row = sd_table_find_row(t, layer, head);
    if (row < 0)
        return sd_fail(err, SD_EINVAL, "the table has no layer %d, head %d", layer, head);
    size_t n = 0, nr = 0, ni = 0;
    const double *sigma = sd_table_has(t, row, cp) ? sd_table_vec(t, row, cp, &n) : NULL;
    const double *re = cr >= 0 && sd_table_has(t, row, cr) ? sd_table_vec(t, row, cr, &nr) : NULL;
    const double *im = ci >= 0 && sd_table_has(t, row, ci) ? sd_table_vec(t, row, ci, &ni) : NULL;
    if (!sigma || n == 0 || !(sigma[0] > 0))
        return sd_fail(err, SD_EINVAL, "layer %d, head %d has no plane above zero", layer, head);
    bool lambda = re && im && nr == ni && nr > 0;
    double rho = 0;
    for (size_t i = 0; lambda && i < nr; i++)
        rho = fmax(rho, hypot(re[i], im[i]));
    lambda = lambda && rho > 0;
    double *s = sd_alloc(n, 2 * sizeof *s, err), *z = sd_alloc(nr + 1, 2 * sizeof *z, err);
    sd_plot *p = NULL;
    sd_buf text = {0}, sub = {0};
    sd_status st = s && z ? SD_OK : SD_ENOMEM;
    size_t shown = 0;
    double floor_ = 1;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        double v = sigma[i] / sigma[0];
        if (!(v > 1e-16))
            continue; /* a zero has no place on a logarithmic axis */
        s[2 * shown] = (double)i + 1;
        s[2 * shown + 1] = v;
        floor_ = fmin(floor_, v);
        shown++;
    }
    for (size_t i = 0; st == SD_OK && lambda && i < nr; i++) {
        z[2 * i] = re[i] / rho;
        z[2 * i + 1] = im[i] / rho;
    }
    const char *model = model_name(t);
    if (title)
        sd_buf_puts(&text, title);
    else
        sd_buf_printf(&text, "Layer %d, head %d%s%s", layer, head, model ? ": " : "",
                      model ? model : "");
    double pr = cell(t, row, sd_table_find_col(t, "pr"));
    sd_buf_printf(&sub, "σ₁ = %.4g, %zu planes", sigma[0], n);
    if (isfinite(pr))
        sd_buf_printf(&sub, ", participation ratio %.2f", pr);
    if (lambda)
        sd_buf_printf(&sub, "; ρ = %.4g", rho);
    char fs[64], fz[64] = "";
    if (st == SD_OK)
        st = sd_buf_status(&text, err);
    if (st == SD_OK)
        st = sd_buf_status(&sub, err);
    if (st == SD_OK)
        st = sd_plot_new(text.p, &p, err);
    if (st == SD_OK)
        sd_plot_size(p, 960, 500);
    if (st == SD_OK)
        st = sd_plot_data(p, s, shown, 2, fs, err);
    if (st == SD_OK && lambda)
        st = sd_plot_data(p, z, nr, 2, fz, err);
    if (st == SD_OK)
        st = axes(p, err);
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "set multiplot\nunset key");
    if (st == SD_OK)
        st = titles(p, text.p, sub.p, 0.08, err);
    /* The right panel is square on the page: 0.354 of 960 by 0.68 of 500. */
    if (st == SD_OK)
        st = sd_plot_cmd(
            p, err,
            "if (sd_dumb) { set lmargin at screen 0.12; set rmargin at screen 0.46; set tmargin at "
            "screen 0.88; set bmargin at screen 0.18 } else { set lmargin at screen 0.08; set "
            "rmargin at screen %g; set tmargin at screen 0.82; set bmargin at screen 0.14 }\n"
            "set logscale y 10\nset format y '%s'\nset yrange [%g:1.6]\nset xrange [0:%zu]\n"
            "set xlabel 'plane' tc rgb '#333333' offset 0,0.4\n"
            "set ylabel 'σ / σ₁' tc rgb '#333333' offset 0.5,0\n"
            "if (sd_dumb) { set xlabel 'plane' tc default; set ylabel tc default }\n"
            "plot %s u 1:2 w impulses lw 1 lc rgb '#9cc7e0', '' u 1:2 w points pt sd_dumb ? 'o' : "
            "7 "
            "ps 0.75 lc rgb '" BLUE "'",
            lambda ? 0.535 : 0.975, "%g", floor_ > 0.09 ? 0.05 : pow(10, floor(log10(floor_))),
            n + 1, fs);
    if (st == SD_OK && lambda)
        st = sd_plot_cmd(
            p, err,
            "unset label\nunset logscale y\nset format y '%s'\n"
            "if (sd_dumb) { set lmargin at screen 0.62; set rmargin at screen 0.97 } else { set "
            "lmargin at screen 0.625; set rmargin at screen 0.979; set tmargin at screen 0.82; set "
            "bmargin at screen 0.14 }\n"
            "set xrange [-1.15:1.15]\nset yrange [-1.15:1.15]\n"
            "set xtics -1,0.5,1\nset ytics -1,0.5,1\n"
            "set grid xtics ytics lt 1 lc rgb '#e6e6e6' lw 0.5 back\n"
            "set xlabel 'Re λ / ρ' tc rgb '#333333' offset 0,0.4\n"
            "set ylabel 'Im λ / ρ' tc rgb '#333333' offset 0.8,0\n"
            "if (sd_dumb) { unset grid; set xlabel tc default; set ylabel tc default; set arrow 1 "
            "from 0,-1.15 to 0,1.15 nohead } else {\n"
            "set object 1 rectangle from 0,-1.15 to 1.15,1.15 fc rgb '#FBE9DD' fs solid noborder "
            "behind\n"
            "set label 3 'Re λ > 0' at 1.08,1.03 right font ',9' tc rgb '#B24A00' front\n"
            "set arrow 1 from 0,-1.15 to 0,1.15 nohead lw 0.8 lc rgb '#999999' back\n"
            "set arrow 2 from -1.15,0 to 1.15,0 nohead lw 0.8 lc rgb '#999999' back }\n"
            "set parametric\nset trange [0:2*pi]\nset samples 200\n"
            "if (sd_dumb) { plot %s u 1:2 w points pt 'x' lc rgb '" VERMILLION
            "' } else { plot cos(t), sin(t) w lines lw 0.7 dt 3 lc rgb '#999999', %s u 1:2 w "
            "points "
            "pt 7 ps 0.7 lc rgb '#40"
            "D55E00' }",
            "%g", fz, fz);
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "unset multiplot");
    sd_buf_free(&text);
    sd_buf_free(&sub);
    sd_free(s);
    sd_free(z);
    if (st != SD_OK)
        sd_plot_free(p);
    else
        *out = p;
    return st;
}

/* ---- map of heads ---- */

/* Three significant digits, as short as they go. */
static void short_number(double v, char out[16]) {
    double a = fabs(v);
    if (a != 0 && (a >= 1e5 || a < 1e-3))
        snprintf(out, 16, "%.0e", v);
    else if (a >= 100)
        snprintf(out, 16, "%.0f", v);
    else if (a >= 10)
        snprintf(out, 16, "%.1f", v);
    else
        snprintf(out, 16, "%.2f", v);
}

sd_status sd_figure_heads(const sd_table *t, const char *column, const char *title, sd_plot **out,
                          sd_err *err) {
    int cl, ch, cv;
    *out = NULL;
    SD_TRY(need_column(t, "layer", &cl, err));
    SD_TRY(need_column(t, "head", &ch, err));
    SD_TRY(need_column(t, column, &cv, err));
    int rows = sd_table_rows(t), layers = 0, heads = 0;
    for (int r = 0; r < rows; r++) {
        int l = (int)cell(t, r, cl) + 1, h = (int)cell(t, r, ch) + 1;
        layers = l > layers ? l : layers;
        heads = h > heads ? h : heads;
    }
    if (rows == 0 || layers > 4096 || heads > 4096)
        return sd_fail(err, SD_EINVAL, "a map of %d layers and %d heads", layers, heads);
    size_t n = (size_t)layers * (size_t)heads;
    double *v = sd_alloc(n, sizeof *v, err); // (heads, layers)
    if (!v)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        v[i] = NAN;
    double lo = INFINITY, hi = -INFINITY;
    for (int r = 0; r < rows; r++) {
        double x = cell(t, r, cv);
        v[(int)cell(t, r, ch) * layers + (int)cell(t, r, cl)] = x;
        if (isfinite(x)) {
            lo = fmin(lo, x);
            hi = fmax(hi, x);
        }
    }
    sd_plot *p = NULL;
    sd_buf text = {0}, sub = {0}, dark = {0}, light = {0}, all = {0};
    sd_status st =
        lo <= hi ? SD_OK : sd_fail(err, SD_EINVAL, "column %.60s holds no finite value", column);
    bool log_axis = lo > 0 && hi / lo > 20;
    if (lo == hi)
        hi = lo + (lo != 0 ? 1e-6 * fabs(lo) : 1e-6);
    const char *model = model_name(t);
    if (title)
        sd_buf_puts(&text, title);
    else
        sd_buf_printf(&text, "%s by layer and head%s%s", column, model ? ": " : "",
                      model ? model : "");
    sd_buf_puts(&sub, sd_table_col_doc(t, cv) ? sd_table_col_doc(t, cv) : "");
    bool numbers = n <= 240 && layers <= 24;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i]))
            continue;
        char num[16];
        short_number(v[i], num);
        double u = log_axis ? log(v[i] / lo) / log(hi / lo) : (v[i] - lo) / (hi - lo);
        sd_buf_printf(&all, "%d %d %s\n", (int)(i % (size_t)layers), (int)(i / (size_t)layers),
                      num);
        sd_buf_printf(u > 0.6 ? &light : &dark, "%d %d %s\n", (int)(i % (size_t)layers),
                      (int)(i / (size_t)layers), num);
    }
    char fm[64];
    if (st == SD_OK)
        st = text.failed || sub.failed || dark.failed || light.failed || all.failed
                 ? sd_fail(err, SD_ENOMEM, "out of memory for a figure")
                 : SD_OK;
    if (st == SD_OK)
        st = sd_plot_new(text.p, &p, err);
    double cell_px = fmax(16, fmin(64, 700.0 / layers));
    if (st == SD_OK) {
        int h = (int)(heads * cell_px * 0.75);
        sd_plot_size(p, 900, h < 160 ? 330 : h > 900 ? 1070 : h + 170);
    }
    if (st == SD_OK)
        st = sd_plot_matrix(p, v, (size_t)heads, (size_t)layers, fm, err);
    if (st == SD_OK)
        st = titles(p, text.p, sub.p ? sub.p : "", 0.085, err);
    if (st == SD_OK)
        st = sd_plot_cmd(
            p, err,
            "set border 0\nset tics nomirror scale 0 tc rgb '#333333'\nunset key\n"
            "if (sd_dumb) { set tics tc default; set border 3; set tmargin 2 } else {\n"
            "set lmargin at screen 0.085; set rmargin at screen 0.875\n"
            "set tmargin at screen 0.82; set bmargin at screen 0.17 }\n"
            "set xrange [-0.5:%g] noextend\nset yrange [%g:-0.5] noextend\n"
            "set xtics %d\nset ytics %d\n"
            "set xlabel 'layer' tc rgb '#333333' offset 0,0.4\n"
            "set ylabel 'head' tc rgb '#333333' offset 0.8,0\n"
            "if (sd_dumb) { set xlabel tc default; set ylabel tc default }\n"
            "set cbrange [%.9g:%.9g]\n%s"
            "set colorbox vertical user origin screen 0.9, screen 0.17 size screen 0.018, screen "
            "0.65 noborder\n"
            "set palette defined (0 '#440154', 1 '#472c7a', 2 '#3b518b', 3 '#2c718e', 4 '#21908d', "
            "5 '#27ad81', 6 '#5cc863', 7 '#aadc32', 8 '#fde725')",
            layers - 0.5, heads - 0.5,
            layers <= 24   ? 1
            : layers <= 60 ? 4
                           : 10,
            heads <= 24   ? 1
            : heads <= 60 ? 4
                          : 10,
            lo, hi, log_axis ? "set logscale cb\n" : "");
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "$all << EOD\n%sEOD\n$dark << EOD\n%sEOD\n$light << EOD\n%sEOD",
                         all.p ? all.p : "", dark.p && numbers ? dark.p : "",
                         light.p && numbers ? light.p : "");
    if (st == SD_OK)
        st = sd_plot_cmd(
            p, err,
            "if (sd_dumb) { plot $all u 1:2:3 w labels } else { plot %s binary array=(%d,%d) "
            "format='%%float32' w image%s%s }",
            fm, layers, heads, numbers && dark.n ? ", $dark u 1:2:3 w labels tc rgb '#ffffff'" : "",
            numbers && light.n ? ", $light u 1:2:3 w labels tc rgb '#1a1a1a'" : "");
    sd_buf_free(&text);
    sd_buf_free(&sub);
    sd_buf_free(&dark);
    sd_buf_free(&light);
    sd_buf_free(&all);
    sd_free(v);
    if (st != SD_OK)
        sd_plot_free(p);
    else
        *out = p;
    return st;
}
