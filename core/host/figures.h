/* figures.h: what each figure shows, from a result table or a tensor. A figure is one function here
 * and one row of its descriptor in ops_figures.c; how it is drawn is chart.c's. */
#ifndef SD_HOST_FIGURES_H
#define SD_HOST_FIGURES_H

#include "base/table.h"
#include "host/chart.h"
#include "num/tensor.h"

/* What a figure may be asked for; a figure reads what its descriptor declares. Strings borrowed,
 * NULL: absent. */
typedef struct sd_figure_args {
    const sd_table *table;
    const sd_tensor *tensor;
    const char *column, *title, *x, *y, *by, *log, *style;
    int layer, head, bins; /* bins 0: chosen */
} sd_figure_args;

typedef sd_status (*sd_figure_fn)(const sd_figure_args *a, sd_chart *c, sd_err *err);

/* Rank per layer: `column` (default pr) as median over heads with every head beside it, its null ±
 * one standard deviation; the centred rank over its own null; for a rank the line of the table's
 * tau (METHOD §4, §5). */
sd_status sd_figure_rank(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* One head: σ of every plane on a logarithmic scale, and the eigenvalues of M over their spectral
 * radius, the half plane Re λ > 0 shaded. */
sd_status sd_figure_spectrum(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* Any numeric column as a map of layers and heads. */
sd_status sd_figure_heads(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* training(dir, {which="cascade"}): `column` (default c_pr) of every layer over the tokens
 * trained on, its null dotted. */
sd_status sd_figure_cascade(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* Columns of any table: y (or several, "pr,pr_null") over x, one series for each value of `by`. */
sd_status sd_figure_xy(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* The median of y for each value of x, side by side for each value of `by`. */
sd_status sd_figure_bars(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* How often a column takes which values. */
sd_status sd_figure_hist(const sd_figure_args *a, sd_chart *c, sd_err *err);
/* A matrix in colours, the first row on top: an attention map, a weight. */
sd_status sd_figure_map(const sd_figure_args *a, sd_chart *c, sd_err *err);

/* The figure as a plot to draw. */
sd_status sd_figure_plot(sd_figure_fn make, const sd_figure_args *a, SD_OWN sd_plot **out,
                         sd_err *err);

/* ---- what the figures share ---- */

/* A column of numbers; the error suggests the nearest name. */
sd_status sd_figure_column(const sd_table *t, const char *name, int *col, sd_err *err);
/* The number of a cell, NaN when there is none; counted in c when c is not NULL. */
double sd_figure_cell(sd_chart *SD_NULLABLE c, const sd_table *t, int row, int col);
double sd_figure_median(double *v, size_t n); /* reorders v; NaN for none */
/* Title (the given one, or "<usual>: <model>"), the table's heading below it, its notes. */
sd_status sd_figure_titles(sd_chart *c, const sd_figure_args *a, const char *usual, sd_err *err);

#endif
