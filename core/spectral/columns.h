/* columns.h: what the analysis measures, declared once (METHOD §2, §4, §5). Name, unit, null, where
 * a column appears and where it is wide: tables, help, CSV, summary, sweep, cascade and figures
 * read it from here. Ranks are one list of definitions × one list of objects. */
#ifndef SD_SPECTRAL_COLUMNS_H
#define SD_SPECTRAL_COLUMNS_H

#include "base/table.h"

/* Effective ranks (METHOD §4), one row a definition:
 * X(name, count: whole numbers, shown: narrow in `heads` for R, doc). Its formula is the function
 * rank_NAME in ranks.c; nothing else knows the list. The first is the headline. */
#define SD_RANK_DEFS(X)                                                               \
    X(pr, false, true, "participation ratio (Σσ²)²/Σσ⁴ (headline; a plane counts 2)") \
    X(entropy, false, true, "exp of the entropy of σ/Σσ")                             \
    X(energy, false, false, "exp of the entropy of σ²/Σσ²")                           \
    X(stable, false, true, "stable rank Σσ²/σ₁²")                                     \
    X(n90, true, true, "values that hold 90% of the energy")                          \
    X(n95, true, false, "values that hold 95% of the energy")                         \
    X(n99, true, false, "values that hold 99% of the energy")

enum {
#define X(name_, ...) SD_RANK_##name_,
    SD_RANK_DEFS(X)
#undef X
        SD_RANK_COUNT
};

/* All of them for one matrix, by name or by place in the list. */
typedef union sd_ranks {
    struct {
#define X(name_, ...) double name_;
        SD_RANK_DEFS(X)
#undef X
    };
    double v[SD_RANK_COUNT];
} sd_ranks;

/* Effective ranks over the singular values of a matrix (magnitudes are taken). Zeros contribute
 * nothing; all-zero or empty → every rank 0.
 * sigma: n values, any order; `paired` = each value counts twice (planes of a skew matrix). */
void sd_ranks_of(const double *sigma, size_t n, bool paired, sd_ranks *out);
const char *sd_rank_name(size_t i); /* NULL past the end */
bool sd_rank_is_count(size_t i);

/* Tables a column can be in. */
enum {
    SD_IN_HEADS = 1,
    SD_IN_PROBE = 2,
    SD_IN_SUMMARY = 4, /* in front; a summary has every other column of its source as well */
    SD_IN_SWEEP = 8,
    SD_IN_CASCADE = 16,
};

/* Names are `name`, `name_sd` (over sequences), `name_null` and `name_null_sd` (one draw). All
 * masks are of SD_IN_*. */
typedef struct sd_column {
    char name[24], doc[160];
    const char *unit;    /* "rank", "share", "nats", …; "" = a pure number or units of M */
    char centred[24];    /* a rank of R: the same of HRH; else "" */
    bool rank;           /* an effective rank: figures draw it over its null, minimal at tau */
    unsigned in, narrow; /* where it is; where print shows it unasked */
    unsigned null, null_narrow;
    unsigned ask, null_ask; /* there (with the null there) only when `columns=` names it */
    unsigned when;          /* SD_WHEN_* */
} sd_column;
enum {
    SD_WHEN_SD = 1,     /* only where there are S–D heads */
    SD_WHEN_BIASED = 2, /* only with non-zero biases that can be taken out */
    SD_WHEN_ROTARY = 4,
    SD_NOT_SD_WEIGHTS = 8, /* an S–D head has none at weight level */
    SD_POOLED = 16,        /* of all sequences together: no *_sd */
};

/* The i-th column in table order; false past the end. */
bool sd_column_at(size_t i, sd_column *out);
/* By full name ("pr", "phi_null_sd"); *suffix (nullable) is what follows the declared name. */
bool sd_column_find(const char *name, sd_column *out, const char **suffix);
/* One line on a column, suffixes included, appended; false when there is none. */
bool sd_column_doc(const char *name, sd_buf *out);
/* The present name of a column that older tables and scripts call otherwise, or NULL. */
const char *sd_column_renamed(const char *old);

/* Adds the declared columns of one table (SD_IN_SWEEP, SD_IN_CASCADE), each with its null, in
 * order; sd_columns_copy fills their cells from a row of a table that has them. */
sd_status sd_columns_add(sd_table *t, unsigned in, sd_err *err);
void sd_columns_copy(sd_table *t, int row, unsigned in, const sd_table *src, int src_row);

#endif
