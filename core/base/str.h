/* str.h: growable byte strings, UTF-8 checks, nearest-name suggestions, layer ranges. */
#ifndef SD_BASE_STR_H
#define SD_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Growable byte buffer, always NUL-terminated after the first append. An allocation failure is
 * sticky (`failed`): further appends do nothing, check once at the end with sd_buf_status. */
typedef struct sd_buf {
    char *p; /* NULL while empty */
    size_t n, cap;
    bool failed;
} sd_buf;

void sd_buf_put(sd_buf *b, const void *bytes, size_t n);
void sd_buf_puts(sd_buf *b, const char *s);
void sd_buf_putc(sd_buf *b, char c);
void sd_buf_printf(sd_buf *b, const char *fmt, ...) SD_PRINTF(2, 3);
void sd_buf_vprintf(sd_buf *b, const char *fmt, va_list ap);
sd_status sd_buf_status(const sd_buf *b, sd_err *SD_NULLABLE err);
void sd_buf_clear(sd_buf *b); /* keeps the memory */
void sd_buf_free(sd_buf *b);

/* %.<digits>g and %.<decimals>f with a decimal point whatever the locale; nan, inf, -inf. */
void sd_buf_double(sd_buf *b, double x, int digits);
void sd_buf_fixed(sd_buf *b, double x, int decimals);

/* JSON text of a number: the shortest that reads back as the same double (the same float), null for
 * non-finite values; of a string: quoted, escaped, invalid UTF-8 replaced by U+FFFD. */
void sd_buf_json_double(sd_buf *b, double x);
void sd_buf_json_float(sd_buf *b, float x);
void sd_buf_json_string(sd_buf *b, const char *s, size_t n);

/* Text of strangers (names in files, paths) passes one function for each language it enters: this
 * one for messages and the terminal, sd_buf_lua_string for Lua, sd_buf_json_string for JSON,
 * sd_plot_quote (host/plot.h) for gnuplot.
 *
 * Made safe to print: control bytes, invalid UTF-8, bidirectional controls and line separators are
 * escaped as \n, \x1b, \u009b, \u202e; with keep_lines newlines and tabs stay. Escaped text passes
 * unchanged. */
void sd_buf_visible(sd_buf *b, const char *s, size_t n, bool keep_lines);
/* The same for the one character at s (n >= 1), NUL-terminated; returns the bytes it took. */
enum { SD_VISIBLE_MAX = 8 };
size_t sd_visible_next(const char *s, size_t n, bool keep_lines, char out[SD_VISIBLE_MAX]);
/* A Lua string literal of any bytes, on one line: "…", reads back as the same bytes, and shows what
 * is in it (controls, invalid UTF-8 and bidirectional controls as \xNN, \u{NNNN}). */
void sd_buf_lua_string(sd_buf *b, const char *s, size_t n);

/* Length in bytes of the valid UTF-8 character at s (1..4), or 0 when invalid/truncated; *cp
 * (nullable) gets the code point. Surrogates and values above U+10FFFF are invalid. */
size_t sd_utf8_next(const char *s, size_t n, uint32_t *SD_NULLABLE cp);
/* Writes cp as UTF-8 to out[4]; returns the length. */
size_t sd_utf8_put(uint32_t cp, char out[4]);

/* Strict parsers of a whole string: false when anything is left over or out of range.
 * sd_parse_double is locale-independent. */
bool sd_parse_i64(const char *s, int64_t *out);
bool sd_parse_double(const char *s, double *out);

/* The candidate nearest to `name` by edit distance, or NULL when nothing is near (distance > 1/3
 * of the length, at least 2). `get(ctx, i)` returns the i-th candidate, NULL at the end. */
const char *sd_suggest(const char *name, const char *(*get)(const void *ctx, size_t i),
                       const void *ctx);

/* Parses an inclusive range list such as "0-3,7" or "all" into mask[0..count), which the call
 * zeroes first. `what` names the thing in errors ("layer"). Every bound is checked against count:
 * "expected layer 0..11, got 12". */
sd_status sd_parse_ranges(const char *text, const char *what, int count, bool *mask,
                          sd_err *SD_NULLABLE err);

#endif
