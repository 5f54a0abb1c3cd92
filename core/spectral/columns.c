/* columns.c: the declared columns: their list, help, and the tables made of them. */
#include "spectral/columns.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "spectral/internal.h"

#define HEADS SD_IN_HEADS
#define PROBE SD_IN_PROBE
#define SUMMARY SD_IN_SUMMARY
#define SWEEP SD_IN_SWEEP
#define CASCADE SD_IN_CASCADE

/* A row of SD_COLUMN_DEFS. Of the ranks of an object, in … null_ask are the headline's; the other
 * definitions are in the tables `rest`, narrow in rest_shown where the definition is. */
typedef struct column_decl {
    const char *name, *doc, *unit;
    unsigned in, narrow, null, null_narrow, ask, null_ask, when;
    unsigned rest, rest_shown, rest_null_ask;
    bool ranks;
} column_decl;

static const column_decl decls[] = {
#define S(name_, doc_, ...) [V_##name_] = {.name = #name_, .doc = doc_, __VA_ARGS__},
#define R(object_, prefix_, what_, ...) \
    [V_ranks_##                         \
        object_] = {.name = prefix_, .doc = what_, .unit = "rank", .ranks = true, __VA_ARGS__},
    SD_COLUMN_DEFS(S, R)
#undef S
#undef R
};

static const struct {
    const char *name, *doc;
    bool shown;
} ranks[] = {
#define X(name_, count_, shown_, doc_) {#name_, doc_, shown_},
    SD_RANK_DEFS(X)
#undef X
};

static const struct {
    const char *suffix, *doc;
} suffixes[] = {
    {"_null", " — its mean under the null"},
    {"_null_sd", " — standard deviation of one draw of the null"},
    {"_sd", " — standard deviation over sequences"},
};

/* The column at place i of the table order; *def is the rank's place, or -1. */
static const column_decl *decl_at(size_t i, int *def) {
    size_t at = i;
    while (!decls[at].name) // inside the block of an object's ranks
        at--;
    *def = decls[at].ranks ? (int)(i - at) : -1;
    return &decls[at];
}

static void name_of(size_t i, char out[24]) {
    int def;
    const column_decl *d = decl_at(i, &def);
    snprintf(out, 24, "%s%s", d->name, def < 0 ? "" : ranks[def].name);
}

bool sd_column_at(size_t i, sd_column *out) {
    int def;
    if (i >= V_COUNT)
        return false;
    const column_decl *d = decl_at(i, &def);
    *out = (sd_column){.unit = d->unit ? d->unit : "",
                       .in = d->in,
                       .narrow = d->narrow & d->in,
                       .null = d->null & d->in,
                       .ask = d->ask,
                       .null_ask = d->null_ask | d->ask,
                       .when = d->when,
                       .rank = d->ranks || (d->unit && !strcmp(d->unit, "rank"))};
    out->null_narrow = d->null_narrow & out->null;
    name_of(i, out->name);
    if (def < 0) {
        snprintf(out->doc, sizeof out->doc, "%s", d->doc);
        return true;
    }
    snprintf(out->doc, sizeof out->doc, "%s of %s", ranks[def].doc, d->doc);
    if (!d->name[0])
        snprintf(out->centred, sizeof out->centred, "%s%s", decls[V_ranks_c].name, ranks[def].name);
    if (def > 0) {
        out->in = d->rest;
        out->narrow = ranks[def].shown ? d->rest_shown : 0;
        out->null = d->null & d->rest;
        out->null_narrow = 0;
        out->null_ask = d->rest_null_ask | d->ask;
    }
    return true;
}

bool sd_column_find(const char *name, sd_column *out, const char **suffix) {
    for (int pass = 0; pass < 2; pass++) // a whole name first: d_sd is no d with a suffix
        for (size_t i = 0; sd_column_at(i, out); i++) {
            size_t n = strlen(out->name);
            if (strncmp(out->name, name, n) != 0)
                continue;
            bool is = name[n] == 0;
            for (size_t k = 0; pass && k < sizeof suffixes / sizeof *suffixes; k++)
                is |= !strcmp(suffixes[k].suffix, name + n);
            if (!is)
                continue;
            if (suffix)
                *suffix = name + n;
            return true;
        }
    return false;
}

bool sd_column_doc(const char *name, sd_buf *out) {
    sd_column c;
    const char *suffix;
    if (!sd_column_find(name, &c, &suffix))
        return false;
    sd_buf_puts(out, c.doc);
    for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++)
        if (!strcmp(suffixes[k].suffix, suffix))
            sd_buf_puts(out, suffixes[k].doc);
    return true;
}

const char *sd_column_renamed(const char *old) {
    static const char *const names[][2] = {{"pr_centred", "c_pr"},
                                           {"pr_centred_sd", "c_pr_sd"},
                                           {"pr_centred_null", "c_pr_null"},
                                           {"pr_centred_null_sd", "c_pr_null_sd"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], old))
            return names[i][1];
    return NULL;
}

/* ---- which columns a table gets -------------------------------------------------------------- */

/* Does an item of a list "pr,c_*,all" name this column? */
static bool named(const char *list, const char *name, const char *suffix) {
    char full[48];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ", "), k = n;
        if (n && p[n - 1] == '*')
            k--;
        if ((n == 3 && !strncmp(p, "all", 3)) ||
            (n && !strncmp(p, full, k) && (k < n || strlen(full) == n)))
            return true;
        p += n + strspn(p + n, ", ");
    }
    return false;
}

/* A null is asked for by its own name or its column's. */
static bool asked(const column_plan *p, const sd_column *c, bool null) {
    return named(p->columns, c->name, "") || (null && (named(p->columns, c->name, "_null") ||
                                                       named(p->columns, c->name, "_null_sd")));
}

bool sd_spectral_wants(const column_plan *p, size_t i, bool null) {
    sd_column c;
    const unsigned conditions = SD_WHEN_SD | SD_WHEN_BIASED | SD_WHEN_ROTARY;
    if (!sd_column_at(i, &c) || !(c.in & p->in) || (c.when & conditions & ~p->have))
        return false;
    if (null && (!p->nulls || !(c.null & p->in)))
        return false;
    if (null && p->hide_kernel && (c.when & SD_NOT_SD_WEIGHTS)) // a draw has no −D beside its S
        return false;
    bool free_ = !(c.ask & p->in) && !(null && (c.null_ask & p->in));
    return free_ || asked(p, &c, null);
}

bool sd_spectral_wants_any(const column_plan *p, size_t from, size_t to, bool null) {
    for (size_t i = from; i <= to; i++)
        if (sd_spectral_wants(p, i, null))
            return true;
    return false;
}

typedef struct name_list {
    char name[V_COUNT][24];
} name_list;

static const char *name_at(const void *ctx, size_t i) {
    return i < V_COUNT ? ((const name_list *)ctx)->name[i] : NULL;
}

sd_status sd_spectral_plan_check(const column_plan *p, sd_err *err) {
    for (const char *s = p->columns; s && *s;) {
        char item[48];
        size_t n = strcspn(s, ", ");
        snprintf(item, sizeof item, "%.*s", (int)(n < 47 ? n : 47), s);
        bool found = !n;
        sd_column c;
        for (size_t i = 0; !found && sd_column_at(i, &c); i++)
            found = (c.in & p->in) && asked(&(column_plan){.columns = item}, &c, true);
        if (!found) {
            name_list all;
            for (size_t i = 0; i < V_COUNT; i++)
                name_of(i, all.name[i]);
            const char *near = sd_suggest(item, name_at, &all);
            return sd_fail(err, SD_EINVAL, "columns: no column %s%s%s%s", item,
                           near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
        }
        s += n + strspn(s + n, ", ");
    }
    return SD_OK;
}

static sd_status add(sd_table *t, const sd_column *c, const char *suffix, bool wide, sd_err *err) {
    char name[48];
    sd_buf doc = {0};
    snprintf(name, sizeof name, "%s%s", c->name, suffix);
    sd_column_doc(name, &doc);
    sd_status st = sd_buf_status(&doc, err);
    if (st == SD_OK)
        st = sd_table_add_column(t, name, SD_COL_NUM, doc.p, wide, NULL, err);
    sd_buf_free(&doc);
    return st;
}

sd_status sd_spectral_add_columns(sd_table *t, const column_plan *p, bool grouped, sd_err *err) {
    static const struct {
        const char *name, *doc, *tokens;
    } vectors[] = {{"planes", "σ of every plane of R, descending", ", mean over sequences"},
                   {"f_lambda", "eigenvalues of F, ascending", " (first sequence)"},
                   {"lambda_re", "eigenvalues of M, real part", " (first sequence)"},
                   {"lambda_im", "eigenvalues of M, imaginary part", " (first sequence)"}};
    SD_TRY(sd_table_add_column(t, "layer", SD_COL_INT, "layer, from 0", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "head", SD_COL_INT, "head, from 0", false, NULL, err));
    if (grouped)
        SD_TRY(sd_table_add_column(t, "group", SD_COL_INT,
                                   "key head this query head shares; heads of a group are not "
                                   "independent samples",
                                   false, NULL, err));
    sd_column c;
    for (size_t i = 0; sd_column_at(i, &c); i++) {
        if (!sd_spectral_wants(p, i, false))
            continue;
        bool hidden = p->hide_kernel && p->in == SD_IN_HEADS && (c.when & SD_NOT_SD_WEIGHTS);
        bool name = p->columns && strcmp(p->columns, "all") != 0 && asked(p, &c, false);
        SD_TRY(add(t, &c, "", !name && (hidden || !(c.narrow & p->in)), err));
        if (p->spread && !(c.when & SD_POOLED))
            SD_TRY(add(t, &c, "_sd", i != V_ranks_r, err));
        if (sd_spectral_wants(p, i, true)) {
            SD_TRY(add(t, &c, "_null", !name && (hidden || !(c.null_narrow & p->in)), err));
            SD_TRY(add(t, &c, "_null_sd", true, err));
        }
    }
    SD_TRY(sd_table_add_column(t, "status", SD_COL_STR, "ok, or why the row has no values", true,
                               NULL, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        char doc[96];
        snprintf(doc, sizeof doc, "%s%s", vectors[i].doc,
                 p->in == SD_IN_PROBE ? vectors[i].tokens : "");
        SD_TRY(sd_table_add_column(t, vectors[i].name, SD_COL_VEC, doc, true, NULL, err));
    }
    return SD_OK;
}

void sd_spectral_set_values(sd_table *t, int row, const char *suffix, const double v[V_COUNT]) {
    char base[24], name[48];
    for (size_t i = 0; i < V_COUNT; i++) {
        if (isnan(v[i]))
            continue;
        name_of(i, base);
        snprintf(name, sizeof name, "%s%s", base, suffix ? suffix : "");
        if (sd_table_find_col(t, name) >= 0)
            sd_table_set_num(t, row, name, v[i]);
    }
}

void sd_spectral_routing_only(double v[V_COUNT], const sd_spectrum *s) {
    sd_column c;
    for (size_t i = 0; sd_column_at(i, &c); i++)
        if (c.when & SD_NOT_SD_WEIGHTS)
            v[i] = NAN;
    v[V_fro2] = s->fro2 * s->routing;
}

void sd_spectral_add_values(moments m[V_COUNT], const double v[V_COUNT]) {
    for (size_t i = 0; i < V_COUNT; i++)
        if (!isnan(v[i]))
            sd_spectral_moments_add(&m[i], v[i]);
}

void sd_spectral_set_null(sd_table *t, int row, const double v[V_COUNT], const moments m[V_COUNT]) {
    double mean[V_COUNT], sd[V_COUNT];
    for (size_t i = 0; i < V_COUNT; i++) {
        bool there = m[i].n > 0 && !isnan(v[i]);
        mean[i] = there ? m[i].mean : NAN;
        sd[i] = there ? sd_spectral_moments_sd(&m[i]) : NAN;
    }
    sd_spectral_set_values(t, row, "_null", mean);
    sd_spectral_set_values(t, row, "_null_sd", sd);
}

void sd_spectral_put_ranks(double *v, const sd_ranks *r) {
    if (r->pr > 0)
        memcpy(v, r->v, sizeof r->v);
}

/* ---- tables made of others ------------------------------------------------------------------- */

static const char *const with_null[] = {"", "_null", "_null_sd"};

sd_status sd_columns_add(sd_table *t, unsigned in, sd_err *err) {
    sd_column c;
    for (size_t i = 0; sd_column_at(i, &c); i++)
        for (size_t k = 0; k < (c.null & in ? 3 : 1); k++)
            if (c.in & in)
                SD_TRY(add(t, &c, with_null[k],
                           k == 0   ? !(c.narrow & in)
                           : k == 1 ? !(c.null_narrow & in)
                                    : true,
                           err));
    return SD_OK;
}

void sd_columns_copy(sd_table *t, int row, unsigned in, const sd_table *src, int src_row) {
    sd_column c;
    char name[48];
    for (size_t i = 0; sd_column_at(i, &c); i++)
        for (size_t k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%s%s", c.name, with_null[k]);
            double v;
            if ((c.in & in) && sd_table_find_col(t, name) >= 0 &&
                sd_spectral_get(src, src_row, name, &v))
                sd_table_set_num(t, row, name, v);
        }
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
