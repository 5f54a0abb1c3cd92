/* tables.h: result tables read back from the CSV and JSON that the program writes, and from
 * others'.
 *
 * With a header (sd_table_header_json: the first line `#sd {…}` of a CSV, the member "table" beside
 * "rows" in JSON) the table is as it was: kind, heading, notes, meta, types, docs. Without one,
 * types are the narrowest that hold every cell: int, num (nan and inf too), else strings; a quoted
 * CSV field is a string, an empty one that is not quoted is missing, as is null. Written by hand,
 * some 60 lines: the libraries at hand do not tell a quoted field from a bare one, on which the
 * types hang. */
#ifndef SD_IO_TABLES_H
#define SD_IO_TABLES_H

#include <jansson.h>

#include "base/table.h"

sd_status sd_table_from_csv(const char *text, size_t n, SD_OWN sd_table **out, sd_err *err);
/* An array of row objects, or {"table": header, "rows": [...]}. */
sd_status sd_table_from_json(const json_t *j, SD_OWN sd_table **out, sd_err *err);
/* By the file's first byte; errors name it. */
sd_status sd_table_read(const char *path, SD_OWN sd_table **out, sd_err *err);

#endif
