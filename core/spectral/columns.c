/* columns.c: names and one-line help of the analysis columns, and the per-layer summary. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "spectral/internal.h"

static const struct {
    const char *name, *doc;
} docs[] = {
    {"fro2", "squared Frobenius norm of the interaction matrix M"},
    {"routing", "share of ‖M‖² in the skew part R = (M − Mᵀ)/2"},
    {"filtering", "share of ‖M‖² in the symmetric part F = (M + Mᵀ)/2"},
    {"dir_frac", "‖R‖/‖M‖; random weights give 1/√2"},
    {"pr", "participation ratio (Σσ²)²/Σσ⁴ of the routing (headline rank; a plane counts 2)"},
    {"entropy", "exp of the entropy of σ/Σσ of the routing"},
    {"energy", "exp of the entropy of σ²/Σσ² of the routing"},
    {"stable", "Σσ²/σ₁² of the routing"},
    {"n90", "values that hold 90% of the routing's energy"},
    {"n95", "values that hold 95% of the routing's energy"},
    {"n99", "values that hold 99% of the routing's energy"},
    {"f_pr", "participation ratio of the filtering"},
    {"f_entropy", "entropy rank of the filtering"},
    {"f_energy", "energy-entropy rank of the filtering"},
    {"f_stable", "stable rank of the filtering"},
    {"f_n90", "values that hold 90% of the filtering's energy"},
    {"f_n95", "values that hold 95% of the filtering's energy"},
    {"f_n99", "values that hold 99% of the filtering's energy"},
    {"sigma1", "strongest plane of the routing"},
    {"sigma2", "second plane"},
    {"sigma3", "third plane"},
    {"sigma4", "fourth plane"},
    {"max_re", "largest Re λ of M over its spectral radius"},
    {"henrici", "departure from normality √(‖M‖² − Σ|λ|²)/‖M‖"},
    {"rope_imag", "share of the antisymmetric rotary coefficients; random weights give 0.5"},
    {"phi", "share of the routing that is one potential plane (a per-key bias)"},
    {"pr_centred", "participation ratio after centring over tokens, which softmax cannot see"},
    {"pr_nobias", "participation ratio without the query and key biases"},
    {"logit_sd", "standard deviation of the scores that softmax sees"},
    {"kl_uniform", "nats between the attention and a uniform mean, averaged over queries"},
    {"eff_ctx", "effective context: mean of exp(entropy of the attention)"},
    {"d_mean", "mean of the S–D diagonal over tokens"},
    {"d_sd", "standard deviation of the S–D diagonal over tokens"},
    {"pr_pooled", "participation ratio of the whitened planes over all sequences together"},
    {"calib_rank", "rank of the second moment of [Q K] over all sequences"},
};

static const struct {
    const char *suffix, *doc;
} suffixes[] = {
    {"_null", " — its mean under the null"},
    {"_null_sd", " — standard deviation of one draw of the null"},
    {"_sd", " — standard deviation over sequences"},
    {"_bias", " — with the biases in"},
};

sd_status sd_spectral_add_num(sd_table *t, const char *name, const char *suffix, bool wide,
                              sd_err *err) {
    char full[64], text[200];
    const char *doc = "", *tail = "";
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++)
        if (!strcmp(docs[i].name, name))
            doc = docs[i].doc;
    for (size_t i = 0; suffix && i < sizeof suffixes / sizeof *suffixes; i++)
        if (!strcmp(suffixes[i].suffix, suffix))
            tail = suffixes[i].doc;
    snprintf(full, sizeof full, "%s%s", name, suffix ? suffix : "");
    snprintf(text, sizeof text, "%s%s", doc, tail);
    return sd_table_add_column(t, full, SD_COL_NUM, text, wide, NULL, err);
}

bool sd_column_doc(const char *name, sd_buf *out) {
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        size_t n = strlen(docs[i].name);
        if (strncmp(docs[i].name, name, n) != 0)
            continue;
        if (name[n] == 0) {
            sd_buf_puts(out, docs[i].doc);
            return true;
        }
        for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++)
            if (!strcmp(suffixes[k].suffix, name + n)) {
                sd_buf_printf(out, "%s%s", docs[i].doc, suffixes[k].doc);
                return true;
            }
    }
    return false;
}

void sd_spectral_set(sd_table *t, int row, const char *name, const char *suffix, double v) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, suffix ? suffix : "");
    if (sd_table_find_col(t, full) >= 0)
        sd_table_set_num(t, row, full, v);
}

sd_status sd_spectral_note_marked(sd_table *t, sd_err *err) {
    int marked = 0, first = -1, scol = sd_table_find_col(t, "status");
    for (int r = 0; r < sd_table_rows(t); r++)
        if (strcmp(sd_table_str(t, r, scol), "ok") != 0) {
            marked++;
            first = first < 0 ? r : first;
        }
    if (!marked)
        return SD_OK;
    return sd_table_note(t, err, "%d %s no values (column status); layer %.0f head %.0f: %s",
                         marked, marked == 1 ? "head has" : "heads have",
                         sd_table_num(t, first, sd_table_find_col(t, "layer")),
                         sd_table_num(t, first, sd_table_find_col(t, "head")),
                         sd_table_str(t, first, scol));
}

bool sd_spectral_get(const sd_table *t, int row, const char *name, double *v) {
    int col = sd_table_find_col(t, name);
    if (col < 0 || !sd_table_has(t, row, col))
        return false;
    *v = sd_table_num(t, row, col);
    return true;
}

sd_status sd_spectral_layers(const char *text, int n_layer, bool **mask, sd_err *err) {
    *mask = sd_alloc((size_t)n_layer + 1, sizeof **mask, err);
    if (!*mask)
        return SD_ENOMEM;
    sd_status st = sd_parse_ranges(text ? text : "all", "layer", n_layer, *mask, err);
    if (st != SD_OK) {
        sd_free(*mask);
        *mask = NULL;
    }
    return st;
}

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

sd_status sd_rank_summary(const sd_table *src, double tau, sd_table **out, sd_err *err) {
    sd_status st = SD_OK;
    if (!(tau > 0))
        tau = 3;
    *out = NULL;
    if (sd_table_find_col(src, "layer") < 0 || sd_table_find_col(src, "pr") < 0)
        return sd_fail(err, SD_EINVAL,
                       "a rank summary needs a table with the columns layer and pr (from heads or "
                       "probe)");
    int rows = sd_table_rows(src), lcol = sd_table_find_col(src, "layer");
    int top = -1;
    for (int r = 0; r < rows; r++)
        if ((int)sd_table_int(src, r, lcol) > top)
            top = (int)sd_table_int(src, r, lcol);
    double *buf = sd_alloc((size_t)rows + 1, sizeof *buf, err);
    sd_table *t = buf ? sd_table_new("rank_summary", err) : NULL;
    if (!t) {
        sd_free(buf);
        return SD_ENOMEM;
    }
    SD_GO(st, fail, sd_table_add_column(t, "layer", SD_COL_INT, "layer, from 0", false, NULL, err));
    SD_GO(st, fail,
          sd_table_add_column(t, "heads", SD_COL_INT, "heads with values", false, NULL, err));
    // The ranks and their controls first, then everything else in its own order.
    static const char *const first[] = {
        "pr", "pr_null", "pr_null_sd", "pr_centred", "pr_centred_null", "phi", "phi_null"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        int c = sd_table_find_col(src, first[i]);
        if (c >= 0 && summarised(src, c))
            SD_GO(st, fail,
                  sd_table_add_column(t, first[i], SD_COL_NUM, sd_table_col_doc(src, c), false,
                                      NULL, err));
    }
    SD_GO(st, fail,
          sd_table_add_column(t, "pr_min", SD_COL_NUM, "smallest pr of the layer's heads", true,
                              NULL, err));
    SD_GO(st, fail,
          sd_table_add_column(t, "pr_max", SD_COL_NUM, "largest pr of the layer's heads", true,
                              NULL, err));
    SD_GO(st, fail,
          sd_table_add_column(t, "minimal", SD_COL_INT,
                              "1: the layer's median pr is at most tau (minimal spectral rank)",
                              false, NULL, err));
    for (int c = 0; c < sd_table_cols(src); c++)
        if (summarised(src, c) && sd_table_find_col(t, sd_table_col_name(src, c)) < 0)
            SD_GO(st, fail,
                  sd_table_add_column(t, sd_table_col_name(src, c), SD_COL_NUM,
                                      sd_table_col_doc(src, c), sd_table_col_wide(src, c), NULL,
                                      err));
    int layers = 0, minimal = 0, left_out = 0;
    for (int r = 0; r < rows; r++)
        left_out += !row_ok(src, r);
    for (int l = 0; l <= top; l++) {
        int row = -1, heads = 0;
        for (int r = 0; r < rows; r++)
            if (sd_table_int(src, r, lcol) == l) {
                if (row < 0)
                    SD_GO(st, fail, sd_table_add_row(t, &row, err));
                heads += row_ok(src, r);
            }
        if (row < 0)
            continue;
        sd_table_set_int(t, row, "layer", l);
        sd_table_set_int(t, row, "heads", heads);
        for (int c = 0; c < sd_table_cols(t); c++) {
            const char *name = sd_table_col_name(t, c);
            int from = sd_table_find_col(src, name);
            if (from < 0 || sd_table_col_kind(t, c) != SD_COL_NUM)
                continue;
            size_t n = 0;
            for (int r = 0; r < rows; r++)
                if (sd_table_int(src, r, lcol) == l && row_ok(src, r) && sd_table_has(src, r, from))
                    buf[n++] = sd_table_num(src, r, from);
            if (!n)
                continue;
            double med = sd_spectral_median(buf, n);
            sd_table_set_num(t, row, name, med);
            if (!strcmp(name, "pr")) {
                sd_table_set_num(t, row, "pr_min", buf[0]);
                sd_table_set_num(t, row, "pr_max", buf[n - 1]);
                sd_table_set_int(t, row, "minimal", med <= tau);
                layers++;
                minimal += med <= tau;
            }
        }
    }
    for (size_t i = 0; i < sd_table_n_heading(src); i++)
        SD_GO(st, fail, sd_table_heading(t, err, "%s", sd_table_heading_at(src, i)));
    SD_GO(st, fail,
          sd_table_heading(t, err,
                           "medians over heads; minimal: median pr (participation ratio) "
                           "<= %g",
                           tau));
    for (size_t i = 0; i < sd_table_n_meta(src); i++) {
        const char *str = NULL;
        double num = 0;
        const char *name = sd_table_meta_at(src, i, &str, &num);
        SD_GO(st, fail,
              str ? sd_table_meta_str(t, name, str, err) : sd_table_meta_num(t, name, num, err));
    }
    SD_GO(st, fail, sd_table_meta_num(t, "tau", tau, err));
    SD_GO(st, fail, sd_table_meta_num(t, "minimal_layers", minimal, err));
    SD_GO(st, fail, sd_table_meta_num(t, "layers", layers, err));
    if (layers)
        SD_GO(st, fail, sd_table_meta_num(t, "minimal_share", (double)minimal / layers, err));
    for (size_t i = 0; i < sd_table_n_notes(src); i++)
        SD_GO(st, fail, sd_table_note(t, err, "%s", sd_table_note_at(src, i)));
    SD_GO(st, fail,
          sd_table_note(t, err, "%d of %d layers at minimal spectral rank (median pr <= %g)",
                        minimal, layers, tau));
    if (left_out)
        SD_GO(st, fail,
              sd_table_note(t, err, "heads without values are not counted: %d", left_out));
    sd_free(buf);
    *out = t;
    return SD_OK;
fail:
    sd_free(buf);
    sd_table_unref(t);
    return st;
}
