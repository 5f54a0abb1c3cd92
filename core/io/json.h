/* json.h: jansson with our limits: strict UTF-8, duplicate keys refused, depth and density bounded
 * (so that a hostile file cannot allocate more than a small multiple of its size), errors that name
 * file, line and field. */
#ifndef SD_IO_JSON_H
#define SD_IO_JSON_H

#include <jansson.h>

#include "base/os.h"

/* `what` (a path, "config.json") opens every error text. Refused: syntax errors, trailing text,
 * duplicate keys, invalid UTF-8, NUL bytes and "\u0000", lone surrogates, integers beyond int64,
 * reals beyond double, NaN and Infinity, nesting beyond 128 levels, and text so dense in tiny
 * values that it would take more than 40 bytes of memory per byte (1 MiB is always allowed). The
 * top value is an object or an array. sd_json_load skips a UTF-8 byte-order mark and names Git LFS
 * pointers; max_bytes 0 = no limit. */
sd_status sd_json_parse(const char *text, size_t n, const char *what, SD_OWN json_t **out,
                        sd_err *err);
sd_status sd_json_load(const char *path, uint64_t max_bytes, SD_OWN json_t **out, sd_err *err);

/* Typed look-up in an object. *found (nullable) = whether the key is there and not null; without
 * `found` the key is required. A wrong type is an error naming key, expected and found type.
 * Integers given as reals without fraction ("1e6" as theta) are accepted for doubles, never the
 * other way. */
sd_status sd_json_i64(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                      bool *SD_NULLABLE found, sd_err *err);
sd_status sd_json_f64(const json_t *obj, const char *key, double *out, bool *SD_NULLABLE found,
                      sd_err *err);
sd_status sd_json_bool(const json_t *obj, const char *key, bool *out, bool *SD_NULLABLE found,
                       sd_err *err);
sd_status sd_json_str(const json_t *obj, const char *key, const char **out, bool *SD_NULLABLE found,
                      sd_err *err); /* borrowed */
/* obj[key] = v, which is taken in any case; a NULL v (of a failed constructor) is SD_ENOMEM. */
sd_status sd_json_set(json_t *obj, const char *key, SD_OWN json_t *SD_NULLABLE v, sd_err *err);

/* A value as text: members in their order, reals as the shortest text that reads back the same and
 * stays a real ("1e-05", "1.0"); indent 0 = one line. *out is freed with sd_free. */
sd_status sd_json_text(const json_t *j, int indent, SD_OWN char **out, sd_err *err);

#endif
