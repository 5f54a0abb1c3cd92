/* figures.h: the figures of routing analysis, from result tables. Each returns a plot to draw with
 * sd_plot_file or sd_plot_text. Colours: Okabe and Ito's set and viridis, told apart by every kind
 * of colour vision. Titles, names and settings are drawn as typed (plot.h). */
#ifndef SD_HOST_FIGURES_H
#define SD_HOST_FIGURES_H

#include "base/table.h"
#include "host/plot.h"

/* Rank per layer from a table of heads, probe or summary: `column` (nullable: "pr") as median over
 * heads with every head beside it, its null ± one standard deviation, the centred rank, and the
 * line of minimal rank (METHOD §4, §5). */
sd_status sd_figure_rank(const sd_table *t, const char *SD_NULLABLE column,
                         const char *SD_NULLABLE title, SD_OWN sd_plot **out, sd_err *err);
/* One head of a heads or probe table: σ of every plane on a logarithmic scale, and the eigenvalues
 * of M in the complex plane over their spectral radius, the half plane Re λ > 0 shaded. */
sd_status sd_figure_spectrum(const sd_table *t, int layer, int head, const char *SD_NULLABLE title,
                             SD_OWN sd_plot **out, sd_err *err);
/* Any numeric column as a map of layers and heads. */
sd_status sd_figure_heads(const sd_table *t, const char *column, const char *SD_NULLABLE title,
                          SD_OWN sd_plot **out, sd_err *err);
/* A table of training(dir, {which="cascade"}): `column` (nullable: "c_pr") of every layer
 * over the tokens trained on, its null dotted. */
sd_status sd_figure_cascade(const sd_table *t, const char *SD_NULLABLE column,
                            const char *SD_NULLABLE title, SD_OWN sd_plot **out, sd_err *err);

#endif
