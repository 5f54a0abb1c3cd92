/* summary.c: a table of heads as one row a layer (METHOD §4, protocol). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "spectral/internal.h"

static bool row_ok(const sd_table *t, int row) {
    int col = sd_table_find_col(t, "status");
    if (col < 0 || !sd_table_has(t, row, col))
        return true;
    return !strcmp(sd_table_str(t, row, col), "ok");
}

static bool summarised(const sd_table *t, int col) {
    const char *name = sd_table_col_name(t, col);
    if (sd_table_col_kind(t, col) != SD_COL_NUM)
        return false;
    if (!strcmp(name, "layer") || !strcmp(name, "head") || !strcmp(name, "group"))
        return false;
    for (int r = 0; r < sd_table_rows(t); r++)
        if (sd_table_has(t, r, col) && row_ok(t, r))
            return true;
    return false;
}

/* The ranks and their controls first, then everything else in its own order. */
static sd_status add_columns(sd_table *t, const sd_table *src, sd_err *err) {
    static const char *const suffix[] = {"", "_null", "_null_sd"};
    SD_TRY(sd_table_add_column(t, "layer", SD_COL_INT, "layer, from 0", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "heads", SD_COL_INT, "heads with values", false, NULL, err));
    sd_column d;
    for (size_t i = 0; sd_column_at(i, &d); i++)
        for (size_t k = 0; k < 3 && (d.in & SD_IN_SUMMARY); k++) {
            char name[48];
            snprintf(name, sizeof name, "%s%s", d.name, suffix[k]);
            int c = sd_table_find_col(src, name);
            if (c >= 0 && summarised(src, c))
                SD_TRY(sd_table_add_column(t, name, SD_COL_NUM, sd_table_col_doc(src, c), k == 2,
                                           NULL, err));
        }
    SD_TRY(sd_table_add_column(t, "pr_min", SD_COL_NUM, "smallest pr of the layer's heads", true,
                               NULL, err));
    SD_TRY(sd_table_add_column(t, "pr_max", SD_COL_NUM, "largest pr of the layer's heads", true,
                               NULL, err));
    SD_TRY(sd_table_add_column(t, "minimal", SD_COL_INT,
                               "1: the layer's median pr is at most tau (minimal spectral rank)",
                               false, NULL, err));
    for (int c = 0; c < sd_table_cols(src); c++)
        if (summarised(src, c) && sd_table_find_col(t, sd_table_col_name(src, c)) < 0)
            SD_TRY(sd_table_add_column(t, sd_table_col_name(src, c), SD_COL_NUM,
                                       sd_table_col_doc(src, c), sd_table_col_wide(src, c), NULL,
                                       err));
    return SD_OK;
}

typedef struct tally {
    double tau, *buf; /* (rows of the source) */
    int layers, minimal;
} tally;

static sd_status add_layer(sd_table *t, const sd_table *src, int layer, tally *y, sd_err *err) {
    int rows = sd_table_rows(src), lcol = sd_table_find_col(src, "layer"), row = -1, heads = 0;
    for (int r = 0; r < rows; r++)
        if (sd_table_int(src, r, lcol) == layer) {
            if (row < 0)
                SD_TRY(sd_table_add_row(t, &row, err));
            heads += row_ok(src, r);
        }
    if (row < 0)
        return SD_OK;
    sd_table_set_int(t, row, "layer", layer);
    sd_table_set_int(t, row, "heads", heads);
    for (int c = 0; c < sd_table_cols(t); c++) {
        const char *name = sd_table_col_name(t, c);
        int from = sd_table_find_col(src, name);
        size_t n = 0;
        if (from < 0 || sd_table_col_kind(t, c) != SD_COL_NUM)
            continue;
        for (int r = 0; r < rows; r++)
            if (sd_table_int(src, r, lcol) == layer && row_ok(src, r) && sd_table_has(src, r, from))
                y->buf[n++] = sd_table_num(src, r, from);
        if (!n)
            continue;
        double med = sd_spectral_median(y->buf, n);
        sd_table_set_num(t, row, name, med);
        if (!strcmp(name, "pr")) {
            sd_table_set_num(t, row, "pr_min", y->buf[0]);
            sd_table_set_num(t, row, "pr_max", y->buf[n - 1]);
            sd_table_set_int(t, row, "minimal", med <= y->tau);
            y->layers++;
            y->minimal += med <= y->tau;
        }
    }
    return SD_OK;
}

/* What the source says about itself, and what the summary adds. */
static sd_status add_text(sd_table *t, const sd_table *src, const tally *y, sd_err *err) {
    for (size_t i = 0; i < sd_table_n_heading(src); i++)
        SD_TRY(sd_table_heading(t, err, "%s", sd_table_heading_at(src, i)));
    SD_TRY(sd_table_heading(
        t, err, "medians over heads; minimal: median pr (participation ratio) <= %g", y->tau));
    for (size_t i = 0; i < sd_table_n_meta(src); i++) {
        const char *str = NULL;
        double num = 0;
        const char *name = sd_table_meta_at(src, i, &str, &num);
        SD_TRY(str ? sd_table_meta_str(t, name, str, err) : sd_table_meta_num(t, name, num, err));
    }
    SD_TRY(sd_table_meta_num(t, "tau", y->tau, err));
    SD_TRY(sd_table_meta_num(t, "minimal_layers", y->minimal, err));
    SD_TRY(sd_table_meta_num(t, "layers", y->layers, err));
    if (y->layers)
        SD_TRY(sd_table_meta_num(t, "minimal_share", (double)y->minimal / y->layers, err));
    for (size_t i = 0; i < sd_table_n_notes(src); i++)
        SD_TRY(sd_table_note(t, err, "%s", sd_table_note_at(src, i)));
    SD_TRY(sd_table_note(t, err, "%d of %d layers at minimal spectral rank (median pr <= %g)",
                         y->minimal, y->layers, y->tau));
    int left_out = 0;
    for (int r = 0; r < sd_table_rows(src); r++)
        left_out += !row_ok(src, r);
    return left_out ? sd_table_note(t, err, "heads without values are not counted: %d", left_out)
                    : SD_OK;
}

sd_status sd_rank_summary(const sd_table *src, double tau, sd_table **out, sd_err *err) {
    sd_status st = SD_OK;
    *out = NULL;
    if (sd_table_find_col(src, "layer") < 0 || sd_table_find_col(src, "pr") < 0)
        return sd_fail(err, SD_EINVAL,
                       "a rank summary needs a table with the columns layer and pr (from heads or "
                       "probe)");
    int rows = sd_table_rows(src), lcol = sd_table_find_col(src, "layer"), top = -1;
    for (int r = 0; r < rows; r++)
        if ((int)sd_table_int(src, r, lcol) > top)
            top = (int)sd_table_int(src, r, lcol);
    tally y = {.tau = tau > 0 ? tau : 3, .buf = sd_alloc((size_t)rows + 1, sizeof *y.buf, err)};
    sd_table *t = y.buf ? sd_table_new("rank_summary", err) : NULL;
    if (!t)
        st = SD_ENOMEM;
    if (st == SD_OK)
        st = add_columns(t, src, err);
    for (int l = 0; st == SD_OK && l <= top; l++)
        st = add_layer(t, src, l, &y, err);
    if (st == SD_OK)
        st = add_text(t, src, &y, err);
    sd_free(y.buf);
    if (st != SD_OK)
        sd_table_unref(t);
    else
        *out = t;
    return st;
}
