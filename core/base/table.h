/* table.h: the one result type that is shown, saved and handed to Lua and plugins.
 *
 * Columns are typed; a row may also carry named vectors (`planes`, `lambda_re`): they are not
 * printed or written to CSV, but reach Lua (t:row(i).planes) and, on request, JSON. Reference
 * counted; a table is built by one owner and read-only once shared.
 */
#ifndef SD_BASE_TABLE_H
#define SD_BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

typedef enum sd_col_kind { SD_COL_INT, SD_COL_NUM, SD_COL_STR, SD_COL_VEC } sd_col_kind;

typedef struct sd_table sd_table;

/* `kind` names what the rows are ("heads", "probe", "stability", "nll"); plots look at it. */
SD_OWN sd_table *sd_table_new(const char *kind, sd_err *err);
sd_table *sd_table_ref(sd_table *t);
void sd_table_unref(sd_table *SD_NULLABLE t);

/* Lines above (settings: "LN folded, biases out, lag 0") and below (caveats) the printed table. */
sd_status sd_table_heading(sd_table *t, sd_err *err, const char *fmt, ...) SD_PRINTF(3, 4);
sd_status sd_table_note(sd_table *t, sd_err *err, const char *fmt, ...) SD_PRINTF(3, 4);
/* Named scalar of the whole table (model name, N, seed ...), also in JSON/Lua as t.meta.name. */
sd_status sd_table_meta_str(sd_table *t, const char *name, const char *value, sd_err *err);
sd_status sd_table_meta_num(sd_table *t, const char *name, double value, sd_err *err);

/* Adds a column and returns its index in *col (nullable). `doc` is one line of help; `digits` the
 * significant digits in print (0: default 4). `wide` columns are hidden in print unless asked for
 * or the terminal has room. Unset cells are "missing": printed "–", empty in CSV, null in JSON, nil
 * in Lua; NaN is a value and prints "nan". */
sd_status sd_table_add_column(sd_table *t, const char *name, sd_col_kind kind, const char *doc,
                              bool wide, int *SD_NULLABLE col, sd_err *err);
sd_status sd_table_add_row(sd_table *t, int *SD_NULLABLE row, sd_err *err);
/* By column name; programmer error (assert) when it does not exist or has another kind. */
void sd_table_set_int(sd_table *t, int row, const char *col, int64_t v);
void sd_table_set_num(sd_table *t, int row, const char *col, double v);
sd_status sd_table_set_str(sd_table *t, int row, const char *col, const char *v, sd_err *err);
sd_status sd_table_set_vec(sd_table *t, int row, const char *col, const double *v, size_t n,
                           sd_err *err); /* copies */

const char *sd_table_kind(const sd_table *t);
int sd_table_rows(const sd_table *t);
int sd_table_cols(const sd_table *t);
int sd_table_find_col(const sd_table *t, const char *name); /* -1 when absent */
const char *sd_table_col_name(const sd_table *t, int col);
const char *sd_table_col_doc(const sd_table *t, int col);
sd_col_kind sd_table_col_kind(const sd_table *t, int col);
bool sd_table_col_wide(const sd_table *t, int col);
bool sd_table_has(const sd_table *t, int row, int col);
int64_t sd_table_int(const sd_table *t, int row, int col);
double sd_table_num(const sd_table *t, int row, int col); /* INT columns convert */
const char *sd_table_str(const sd_table *t, int row, int col);
const double *sd_table_vec(const sd_table *t, int row, int col, size_t *n);
/* First row whose INT columns `layer` (and `head` if >= 0) match, or -1. */
int sd_table_find_row(const sd_table *t, int layer, int head);
size_t sd_table_n_heading(const sd_table *t);
const char *sd_table_heading_at(const sd_table *t, size_t i);
size_t sd_table_n_notes(const sd_table *t);
const char *sd_table_note_at(const sd_table *t, size_t i);
size_t sd_table_n_meta(const sd_table *t);
/* *str is set for a string entry, else *num. */
const char *sd_table_meta_at(const sd_table *t, size_t i, const char **str, double *num);

/* Aligned text (without columns that have no value; "no rows" where there are none), at most
 * `width` columns wide (0: 80) and `max_rows` rows (0: all; cut in the middle with "… n more
 * rows"). Control bytes in strings are shown escaped. */
sd_status sd_table_print(const sd_table *t, int width, int max_rows, sd_buf *out, sd_err *err);
/* What the rows alone do not say, as one JSON object: kind, heading, notes, meta, and of every
 * column name, type ("int", "num", "str", "vec"), doc and wide. io/tables.h reads it back. */
sd_status sd_table_header_json(const sd_table *t, sd_buf *out, sd_err *err);
sd_status sd_table_csv(const sd_table *t, sd_buf *out, sd_err *err); /* RFC 4180, %.17g */
sd_status sd_table_json(const sd_table *t, bool vectors, sd_buf *out,
                        sd_err *err); /* array of rows */

#endif
