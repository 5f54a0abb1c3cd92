/* plot.h: the gnuplot driver. A figure is a bundle (fig.gp, data files, manifest.json) that redraws
 * from itself alone; gnuplot runs without a shell (`gnuplot -d fig.gp`), and success means status
 * 0, no warning outside an allow-list and a whole output file (magic and trailer). SHELL §4. User
 * text reaches gnuplot only through sd_plot_quote: single-quoted, control bytes and bad UTF-8
 * replaced; `noenhanced` unless the markup is ours. */
#ifndef SD_HOST_PLOT_H
#define SD_HOST_PLOT_H

#include "base/run.h"
#include "base/str.h"

typedef struct sd_plot sd_plot;
sd_status sd_plot_new(const char *title, SD_OWN sd_plot **out, sd_err *err);
void sd_plot_free(sd_plot *SD_NULLABLE p);
/* Size on screen in pixels (default 900 × 560): PNG is drawn at twice that, PDF at 100 to the inch.
 */
void sd_plot_size(sd_plot *p, int width, int height);
/* Appends a gnuplot command line of ours (never user text). The variable sd_dumb is 1 in
 * the character terminal and 0 elsewhere; sd_ascii too when it may not colour. */
sd_status sd_plot_cmd(sd_plot *p, sd_err *err, const char *fmt, ...) SD_PRINTF(3, 4);
/* gnuplot string expression of any bytes, single-quoted. Set a variable to it (`x = '…'`) and use
 * that: inside a { block } gnuplot reads quotes in its own way. */
void sd_plot_quote(sd_buf *out, const char *s);
/* Adds a data file to the bundle: text columns (row-major n×cols doubles, non-finite written as
 * "nan" and counted; a row of nothing but NaN is a gap, an empty line), or a binary f32 matrix for
 * `image`. Returns its quoted relative name. */
sd_status sd_plot_data(sd_plot *p, const double *v, size_t rows, size_t cols, char name[64],
                       sd_err *err);
sd_status sd_plot_matrix(sd_plot *p, const double *v, size_t rows, size_t cols, char name[64],
                         sd_err *err);
/* A long series as its envelope: xy (n, 2) in order of x; at most `buckets` buckets, of each the
 * lowest and the highest point in order. out holds 4*buckets doubles; returns points written. n <=
 * 2*buckets is copied (pngcairo is quadratic on noise: 100k points take most of a minute). */
size_t sd_plot_decimate(const double *xy, size_t n, size_t buckets, double *out);
size_t sd_plot_nonfinite(const sd_plot *p);
/* A line said with the figure: in the manifest, below the drawing as text, and logged as a warning
 * (values left out) when `warn`. */
sd_status sd_plot_note(sd_plot *p, bool warn, const char *text, sd_err *err);

/* Terminal by file extension: png svg pdf txt; the bundle is left beside the file ("x.png" →
 * "x.plot/"). Written aside, checked, renamed. SD_EMISSING when gnuplot is not installed (the
 * bundle stays), SD_EWRITE for a cut output. */
sd_status sd_plot_file(sd_plot *p, const char *path, const sd_run *run, sd_err *err);
/* The bundle's folder for a figure at `path`. */
sd_status sd_plot_bundle_dir(const char *path, sd_buf *out, sd_err *err);
/* Is this a whole file of the kind ("png" "svg" "pdf" "txt")? */
bool sd_plot_whole(const char *kind, const void *bytes, size_t n);
/* Drawn with the dumb terminal, cols × rows characters, form feed stripped; coloured when
 * stdout is a terminal and NO_COLOR is unset. */
sd_status sd_plot_text(sd_plot *p, int cols, int rows, const sd_run *run, sd_buf *out, sd_err *err);

#endif
