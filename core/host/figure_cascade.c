/* figure_cascade.c: the ranks of every layer over training. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "host/figures.h"

/* A viridis-like ramp from the first layer to the last, readable in print and by every eye. */
static void layer_colour(size_t i, size_t n, char out[8]) {
    static const int stop[5][3] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {233, 196, 30}};
    double x = n > 1 ? 4.0 * (double)i / (double)(n - 1) : 0.0;
    int k = x >= 4.0 ? 3 : (int)x;
    double f = x - k;
    int c[3];
    for (int j = 0; j < 3; j++)
        c[j] = (int)lround(stop[k][j] + f * (stop[k + 1][j] - stop[k][j]));
    snprintf(out, 8, "#%02x%02x%02x", c[0] & 255, c[1] & 255, c[2] & 255);
}

sd_status sd_figure_cascade(const sd_table *t, const char *column, const char *title, sd_plot **out,
                            sd_err *err) {
    *out = NULL;
    column = column ? column : "c_pr";
    int cl = sd_table_find_col(t, "layer"), cv = sd_table_find_col(t, column),
        cx = sd_table_find_col(t, "tokens");
    if (cl < 0 || cx < 0)
        return sd_fail(err, SD_EINVAL,
                       "this table (%s) is not a cascade: give one of training(dir, "
                       "{which=\"cascade\"})",
                       sd_table_kind(t));
    if (cv < 0 || sd_table_col_kind(t, cv) != SD_COL_NUM)
        return sd_fail(err, SD_EINVAL, "the cascade has no numeric column %.60s", column);
    int rows = sd_table_rows(t), layers = 0;
    for (int r = 0; r < rows; r++)
        if (sd_table_int(t, r, cl) + 1 > layers)
            layers = (int)sd_table_int(t, r, cl) + 1;
    if (rows == 0 || layers > 1000)
        return sd_fail(err, SD_EINVAL, "the cascade has %d rows and %d layers", rows, layers);
    char null_name[80];
    snprintf(null_name, sizeof null_name, "%.60s_null", column);
    int cn = sd_table_find_col(t, null_name);
    double most = 0;
    for (int r = 0; r < rows; r++)
        most = sd_table_num(t, r, cx) > most ? sd_table_num(t, r, cx) : most;
    double unit = most >= 2e6 ? 1e6 : most >= 2e4 ? 1e3 : 1;
    const char *unit_name = unit > 1e3 ? "million tokens" : unit > 1 ? "thousand tokens" : "tokens";
    sd_plot *p = NULL;
    sd_buf plot = {0}, dumb = {0}, text = {0};
    double *xy = sd_alloc((size_t)rows, 3 * sizeof *xy, err), hi = 0.0, lo = INFINITY;
    sd_status st = xy ? SD_OK : SD_ENOMEM;
    const char *model = NULL;
    for (size_t i = 0; i < sd_table_n_meta(t); i++) {
        const char *s = NULL;
        double v;
        if (strcmp(sd_table_meta_at(t, i, &s, &v), "model") == 0 && s)
            model = s;
    }
    if (title)
        sd_buf_puts(&text, title);
    else
        sd_buf_printf(&text, "Rank of routing over training%s%s", model ? ": " : "",
                      model ? model : "");
    if (st == SD_OK)
        st = sd_buf_status(&text, err);
    if (st == SD_OK)
        st = sd_plot_new(text.p, &p, err);
    for (int l = 0; st == SD_OK && l < layers; l++) {
        size_t n = 0;
        for (int r = 0; r < rows; r++) {
            if (sd_table_int(t, r, cl) != l || !sd_table_has(t, r, cv))
                continue;
            double v = sd_table_num(t, r, cv);
            xy[3 * n] = sd_table_num(t, r, cx) / unit;
            xy[3 * n + 1] = v;
            xy[3 * n + 2] = cn >= 0 && sd_table_has(t, r, cn) ? sd_table_num(t, r, cn) : NAN;
            if (isfinite(v) && v > 0) {
                hi = v > hi ? v : hi;
                lo = v < lo ? v : lo;
            }
            n++;
        }
        if (n == 0)
            continue;
        char file[64], colour[8];
        layer_colour((size_t)l, (size_t)layers, colour);
        st = sd_plot_data(p, xy, n, 3, file, err);
        if (st != SD_OK)
            break;
        sd_buf_printf(&plot,
                      "%s%s u 1:2 w linespoints pt 7 ps 0.45 lw 2 lc rgb '%s' t 'layer %d'%s",
                      plot.n ? ", " : "plot ", file, colour, l, "");
        if (cn >= 0)
            sd_buf_printf(&plot, ", %s u 1:3 w lines dt 3 lw 1 lc rgb '%s' notitle", file, colour);
        sd_buf_printf(&dumb, "%s%s u 1:2 w linespoints pt '%c' t 'layer %d '",
                      dumb.n ? ", " : "plot ", file, "0123456789abcdef"[l % 16], l);
    }
    if (st == SD_OK && !(hi > 0))
        st = sd_fail(err, SD_EINVAL, "column %.60s holds no positive value", column);
    if (st == SD_OK)
        st = plot.failed || dumb.failed ? sd_fail(err, SD_ENOMEM, "out of memory for a figure")
                                        : SD_OK;
    sd_buf q = {0};
    sd_plot_quote(&q, text.p ? text.p : "");
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "set title %s noenhanced", q.p);
    if (st == SD_OK)
        st = sd_plot_cmd(
            p, err,
            "set border 3 lc rgb '#555555' lw 0.6\n"
            "set tics nomirror out scale 0.4 tc rgb '#333333'\n"
            "set grid ytics lt 1 lc rgb '#e6e6e6' lw 0.5 back\n"
            "set key outside right top vertical Left reverse samplen 1.8 tc rgb '#333333'\n"
            "if (sd_dumb) { unset grid; set border 3 lc black; set tics tc default; "
            "set key tmargin center horizontal tc default }\n"
            "set autoscale xfix\nset xlabel '%s'\n"
            "set ylabel 'effective rank (%s), dotted: null'\n"
            "if (sd_dumb) { set ylabel 'rank' }\n"
            "set logscale y 2\nset yrange [%g:*]",
            unit_name, column, lo > 2 ? lo / 1.2 : 1.8);
    if (st == SD_OK)
        st = sd_plot_cmd(p, err, "if (sd_dumb) { %s } else { %s }", dumb.p, plot.p);
    sd_buf_free(&q);
    sd_buf_free(&plot);
    sd_buf_free(&dumb);
    sd_buf_free(&text);
    sd_free(xy);
    if (st != SD_OK)
        sd_plot_free(p);
    else
        *out = p;
    return st;
}
