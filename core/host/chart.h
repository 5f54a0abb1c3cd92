/* chart.h: what a figure shows, apart from how it is drawn. A figure (figures.h) fills a chart:
 * panels with axes, series and maps; chart.c has the one style and turns it into gnuplot commands
 * for every terminal. Labels are text of anyone: they reach gnuplot through sd_plot_quote. */
#ifndef SD_HOST_CHART_H
#define SD_HOST_CHART_H

#include "host/plot.h"

/* Colours of Okabe and Ito, told apart by every kind of colour vision. */
#define SD_BLUE "#0072B2"
#define SD_VERMILLION "#D55E00"
#define SD_GREY "#666666"

typedef enum sd_draw {
    SD_DRAW_LINE,
    SD_DRAW_LINEPOINTS,
    SD_DRAW_POINTS,
    SD_DRAW_IMPULSES,
    SD_DRAW_BAND, // (x, low, high)
    SD_DRAW_BARS, // (x, height, width)
} sd_draw;

typedef struct sd_series {
    sd_draw draw;
    char *label;    /* in the key; NULL: not there */
    double *v;      // (n, cols), at first all NaN; a row that is not finite is a gap
    size_t n, cols; /* cols 2, of BAND and BARS 3 */
    char colour[8]; /* "#rrggbb" */
    double size;    /* points and line width, about 1 */
    bool dotted, hollow, faint;
    char mark; /* in the character terminal; 0: not drawn there */
} sd_series;

typedef struct sd_axis {
    char *label;
    bool log, whole; /* whole: ticks at whole numbers only */
    double lo, hi;   /* lo < hi: the range; else what the series need */
    char **names;    /* of the places 0, 1, 2, …, instead of numbers */
    size_t n_names;
} sd_axis;

/* A matrix in colours, row 0 on top; NaN: left blank. */
typedef struct sd_map {
    double *v; // (rows, cols); NULL: none
    size_t rows, cols;
    char *label; /* of the colours */
    bool log;
    double row_step, col_step; /* of the axes' numbers, 1 unless blocks are drawn as means */
} sd_map;

typedef struct sd_panel {
    sd_axis x, y;
    sd_series *s;
    size_t n, cap;
    sd_map map;
    double line; /* a horizontal line with its name; NaN: none */
    char *line_label;
} sd_panel;

typedef struct sd_chart {
    sd_buf title, sub;
    char **notes; /* drawn below */
    bool *warns;  /* (n_notes) also logged */
    size_t n_notes, cap_notes, cap_warns;
    sd_panel panel[2];
    int n_panels, width, height;
    char what[64];            /* the column drawn, for the two counts */
    size_t nonfinite, absent; /* values that are not finite, rows that have none */
} sd_chart;

void sd_chart_init(sd_chart *c);
void sd_chart_free(sd_chart *c);
/* A new series of n rows in a panel, borrowed until the next one; NULL and err when out of memory.
 * label nullable. */
sd_series *sd_chart_series(sd_chart *c, int panel, sd_draw draw, const char *SD_NULLABLE label,
                           const char *colour, size_t n, sd_err *err);
/* The i-th of n colours: told apart one by one, or a ramp from dark to light where they have an
 * order. */
void sd_chart_colour(size_t i, size_t n, bool ordered, char out[8]);
sd_status sd_chart_label(char **label, sd_err *err, const char *fmt, ...) SD_PRINTF(3, 4);
sd_status sd_chart_note(sd_chart *c, bool warn, sd_err *err, const char *fmt, ...) SD_PRINTF(4, 5);
/* An empty map of a panel, NaN throughout. */
sd_status sd_chart_map(sd_chart *c, int panel, size_t rows, size_t cols, sd_err *err);
/* The chart as a plot to draw. Values with no place on a logarithmic axis become gaps; they, the
 * missing and the non-finite ones are counted in notes. SD_EINVAL when nothing is left to draw. */
sd_status sd_chart_plot(sd_chart *c, SD_OWN sd_plot **out, sd_err *err);

#endif
