/* table_ops.h: tables from tables: rows and columns taken, sorted, grouped, joined, put under each
 * other, described; columns replaced. Heading, notes, meta, column docs and kinds come along.
 *
 * METHOD: keys compare numbers by value (int and num alike), strings by bytes; a missing key equals
 * a missing key when grouping and matches nothing when joining. Orders are stable; missing cells
 * come last, nan before them. Aggregates leave out missing and nan cells; a group without a value
 * gives a missing one. Quantiles interpolate linearly between the order statistics at q(n − 1). */
#ifndef SD_BASE_TABLE_OPS_H
#define SD_BASE_TABLE_OPS_H

#include "base/table.h"

/* q-quantile of x (n >= 1, no nan), which is reordered; q in [0, 1]. */
double sd_quantile(double *x, size_t n, double q);

/* Rows rows[0..n) (NULL: all) and columns with keep[c] (NULL: all; kept ones are shown) of t. */
sd_status sd_table_take(const sd_table *t, const int *SD_NULLABLE rows, int n,
                        const bool *SD_NULLABLE keep, SD_OWN sd_table **out, sd_err *err);

bool sd_table_shared(const sd_table *t); /* others hold references: copy before changing */
/* Column `name` with every cell missing and the given kind and doc (NULL: as before, or none); one
 * that is there keeps its place. */
sd_status sd_table_put_column(sd_table *t, const char *name, sd_col_kind kind,
                              const char *SD_NULLABLE doc, int *col, sd_err *err);
void sd_table_drop_column(sd_table *t, int col);
/* By place; the column's kind must be the one named. */
void sd_table_put_int(sd_table *t, int row, int col, int64_t v);
void sd_table_put_num(sd_table *t, int row, int col, double v);
sd_status sd_table_put_str(sd_table *t, int row, int col, const char *v, sd_err *err);
sd_status sd_table_put_vec(sd_table *t, int row, int col, const double *v, size_t n, sd_err *err);

typedef struct sd_key {
    int col;
    bool desc;
} sd_key;
/* order[0..rows): the rows in the order of the keys, the first counting most. SD_EINVAL for
 * vectors. */
sd_status sd_table_order(const sd_table *t, const sd_key *keys, int n, int *order, sd_err *err);

/* Rows of equal keys: order[] holds them group by group, start[g] .. start[g + 1] is group g;
 * groups in the order of their first rows. order has room for rows, start for rows + 1. */
sd_status sd_table_groups(const sd_table *t, const int *keys, int n, int *order, int *start,
                          int *n_groups, sd_err *err);

typedef struct sd_agg {
    int col;
    const char *how; /* mean median min max sum sd count first last quantile */
    double q;        /* of quantile */
    const char *as;  /* the new column's name */
} sd_agg;
/* One row a group: the keys, then the aggregates; without aggregates `n`, the rows of each. */
sd_status sd_table_group(const sd_table *t, const int *keys, int n, const sd_agg *aggs, int n_aggs,
                         SD_OWN sd_table **out, sd_err *err);
/* Names of the aggregates, for messages and completion; NULL at the end. */
const char *sd_agg_name(size_t i);

typedef enum sd_join { SD_JOIN_INNER, SD_JOIN_LEFT, SD_JOIN_OUTER } sd_join;
/* Rows of a beside the rows of b with the same keys (columns of both, by name); every pair where
 * several match. Other columns of b whose names a has get `suffix`. A note tells how many rows of
 * either found none. */
sd_status sd_table_join(const sd_table *a, const sd_table *b, const char *const *keys, int n,
                        sd_join how, const char *suffix, SD_OWN sd_table **out, sd_err *err);
/* The rows of all tables; columns by name, missing where a table has none. by (nullable): a first
 * column of that name, with each table's meta entry of that name, or its place. */
sd_status sd_table_concat(const sd_table *const *t, int n, const char *SD_NULLABLE by,
                          SD_OWN sd_table **out, sd_err *err);
/* One row a column: what it holds. */
sd_status sd_table_summarise(const sd_table *t, SD_OWN sd_table **out, sd_err *err);

#endif
