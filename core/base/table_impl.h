/* table_impl.h: the inside of a table, for table*.c only. */
#ifndef SD_BASE_TABLE_IMPL_H
#define SD_BASE_TABLE_IMPL_H

#include <stdatomic.h>

#include "base/table.h"

typedef struct cell {
    bool set;
    union {
        int64_t i;
        double d;
        char *s;
        struct {
            double *p;
            size_t n;
        } v;
    } u;
} cell;

typedef struct column {
    char *name, *doc;
    sd_col_kind kind;
    bool wide;
    cell *cells;
    size_t cap;
} column;

typedef struct meta {
    char *name, *str; /* str NULL: a number */
    double num;
} meta;

typedef struct lines {
    char **p;
    size_t n, cap;
} lines;

struct sd_table {
    atomic_int refs;
    char *kind;
    column *cols;
    size_t ncols, cap_cols;
    int nrows;
    lines heading, notes;
    meta *meta;
    size_t nmeta, cap_meta;
};

/* Sets *c to a copy of s, whose kind is the same. */
sd_status sd_table_copy_cell(sd_col_kind kind, cell *c, const cell *s, sd_err *err);

#endif
