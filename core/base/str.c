#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool reserve(sd_buf *b, size_t more) {
    size_t need;
    if (b->failed || !sd_add_size(b->n, more, &need) || !sd_add_size(need, 1, &need)) {
        b->failed = true;
        return false;
    }
    void *p = b->p;
    if (sd_grow(&p, &b->cap, need, 1, NULL) != SD_OK) {
        b->failed = true;
        return false;
    }
    b->p = p;
    return true;
}

void sd_buf_put(sd_buf *b, const void *bytes, size_t n) {
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = '\0';
}

void sd_buf_puts(sd_buf *b, const char *s) {
    sd_buf_put(b, s, strlen(s));
}

void sd_buf_putc(sd_buf *b, char c) {
    sd_buf_put(b, &c, 1);
}

void sd_buf_vprintf(sd_buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0 || !reserve(b, (size_t)n)) {
        b->failed = true;
    } else {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void sd_buf_printf(sd_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sd_buf_vprintf(b, fmt, ap);
    va_end(ap);
}

sd_status sd_buf_status(const sd_buf *b, sd_err *err) {
    return b->failed ? sd_fail(err, SD_ENOMEM, "out of memory for a text of %zu bytes", b->n)
                     : SD_OK;
}

void sd_buf_clear(sd_buf *b) {
    b->n = 0;
    if (b->p)
        b->p[0] = '\0';
}

void sd_buf_free(sd_buf *b) {
    sd_free(b->p);
    memset(b, 0, sizeof *b);
}

/* A number as printf writes it, with the locale's decimal point put back to '.'. */
static void put_number(sd_buf *b, const char *fmt, int digits, double x) {
    if (!isfinite(x)) {
        sd_buf_puts(b, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    size_t start = b->n;
    sd_buf_printf(b, fmt, digits, x);
    const char *dp = localeconv()->decimal_point;
    size_t dn = strlen(dp);
    if (b->failed || (dn == 1 && *dp == '.') || dn == 0)
        return;
    char *at = strstr(b->p + start, dp);
    if (at) {
        *at = '.';
        memmove(at + 1, at + dn, strlen(at + dn) + 1);
        b->n -= dn - 1;
    }
}

void sd_buf_double(sd_buf *b, double x, int digits) {
    put_number(b, "%.*g", digits, x);
}

void sd_buf_fixed(sd_buf *b, double x, int decimals) {
    put_number(b, "%.*f", decimals, x);
}

/* Characters that reorder or end the line they stand in: bidirectional controls and the Unicode
 * line and paragraph separators. A name that holds one reads as another on a terminal. */
static bool misleading(uint32_t cp) {
    return cp == 0x061C || cp == 0x200E || cp == 0x200F || (cp >= 0x2028 && cp <= 0x202E) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0xFEFF;
}

size_t sd_visible_next(const char *s, size_t n, bool keep_lines, char out[SD_VISIBLE_MAX]) {
    uint32_t cp = 0;
    size_t k = sd_utf8_next(s, n, &cp);
    unsigned char c = (unsigned char)*s;
    if (k && ((cp >= 0x20 && cp < 0x7F) || (cp >= 0xA0 && !misleading(cp)) ||
              (keep_lines && (c == '\n' || c == '\t')))) {
        memcpy(out, s, k);
        out[k] = '\0';
    } else if (k >= 2) { /* C1 controls and what misleads */
        snprintf(out, SD_VISIBLE_MAX, "\\u%04x", (unsigned)(cp & 0xFFFF));
    } else if (c == '\n' || c == '\t' || c == '\r') {
        snprintf(out, SD_VISIBLE_MAX, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    } else {
        snprintf(out, SD_VISIBLE_MAX, "\\x%02x", (unsigned)c);
    }
    return k ? k : 1;
}

void sd_buf_visible(sd_buf *b, const char *s, size_t n, bool keep_lines) {
    char one[SD_VISIBLE_MAX];
    for (size_t i = 0; i < n;) {
        i += sd_visible_next(s + i, n - i, keep_lines, one);
        sd_buf_puts(b, one);
    }
}

void sd_buf_lua_string(sd_buf *b, const char *s, size_t n) {
    sd_buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t k = sd_utf8_next(s + i, n - i, &cp);
        if (k == 1 && (s[i] == '"' || s[i] == '\\')) {
            sd_buf_putc(b, '\\');
            sd_buf_putc(b, s[i]);
        } else if (k == 1 && s[i] == '\n') {
            sd_buf_puts(b, "\\n");
        } else if (k == 1 && s[i] == '\t') {
            sd_buf_puts(b, "\\t");
        } else if (k == 0 || cp < 0x20 || cp == 0x7F) {
            sd_buf_printf(b, "\\x%02x", (unsigned)(unsigned char)s[i]);
        } else if (cp >= 0x80 && (cp < 0xA0 || misleading(cp))) {
            sd_buf_printf(b, "\\u{%x}", (unsigned)cp);
        } else {
            sd_buf_put(b, s + i, k);
        }
        i += k ? k : 1;
    }
    sd_buf_putc(b, '"');
}

/* The shortest of %.<from>g … %.<to>g that reads back equal, as a double or as a float. */
static void put_shortest(sd_buf *b, double x, int from, int to, bool single) {
    size_t start = b->n;
    for (int digits = from; digits <= to && !b->failed; digits++) {
        b->n = start;
        sd_buf_double(b, x, digits);
        double back;
        if (!b->failed && sd_parse_double(b->p + start, &back) &&
            (single ? (float)back == (float)x : back == x))
            break;
    }
}

void sd_buf_json_float(sd_buf *b, float x) {
    if (isfinite(x))
        put_shortest(b, (double)x, 6, 9, true);
    else
        sd_buf_puts(b, "null");
}

void sd_buf_json_double(sd_buf *b, double x) {
    if (isfinite(x))
        put_shortest(b, x, 15, 17, false);
    else
        sd_buf_puts(b, "null");
}

void sd_buf_json_string(sd_buf *b, const char *s, size_t n) {
    sd_buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t k = sd_utf8_next(s + i, n - i, NULL);
        if (k == 0) {
            sd_buf_puts(b, "\xEF\xBF\xBD");
            i++;
            continue;
        }
        if (c == '"' || c == '\\') {
            sd_buf_putc(b, '\\');
            sd_buf_putc(b, (char)c);
        } else if (c == '\n') {
            sd_buf_puts(b, "\\n");
        } else if (c == '\t') {
            sd_buf_puts(b, "\\t");
        } else if (c < 0x20 || c == 0x7F) {
            sd_buf_printf(b, "\\u%04x", c);
        } else {
            sd_buf_put(b, s + i, k);
        }
        i += k;
    }
    sd_buf_putc(b, '"');
}

size_t sd_utf8_next(const char *s, size_t n, uint32_t *cp) {
    if (n == 0)
        return 0;
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c = u[0];
    size_t k;
    if (c < 0x80) {
        k = 1;
    } else if (c >= 0xC2 && c < 0xE0) {
        k = 2;
        c &= 0x1F;
    } else if (c >= 0xE0 && c < 0xF0) {
        k = 3;
        c &= 0x0F;
    } else if (c >= 0xF0 && c < 0xF5) {
        k = 4;
        c &= 0x07;
    } else {
        return 0;
    }
    if (n < k)
        return 0;
    for (size_t i = 1; i < k; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (u[i] & 0x3F);
    }
    if ((k == 3 && c < 0x800) || (k == 4 && (c < 0x10000 || c > 0x10FFFF)) ||
        (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    if (cp)
        *cp = c;
    return k;
}

size_t sd_utf8_put(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool sd_parse_i64(const char *s, int64_t *out) {
    const char *p = s + (*s == '-' || *s == '+');
    if (!isdigit((unsigned char)*p))
        return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

bool sd_parse_double(const char *s, double *out) {
    /* strtod reads the locale's decimal point; the grammar is checked first and the point replaced,
     * so that the result is the C locale's whatever the process has set. */
    char buf[64], *heap = NULL, *w = buf;
    size_t n = strlen(s);
    const char *p = s + (*s == '-' || *s == '+');
    bool word = strcmp(p, "inf") == 0 || strcmp(p, "nan") == 0;
    bool digits = false;
    const char *point = NULL;
    if (!word) {
        for (; isdigit((unsigned char)*p); p++)
            digits = true;
        if (*p == '.') {
            point = p;
            for (p++; isdigit((unsigned char)*p); p++)
                digits = true;
        }
        if (!digits)
            return false;
        if (*p == 'e' || *p == 'E') {
            p++;
            p += *p == '-' || *p == '+';
            if (!isdigit((unsigned char)*p))
                return false;
            while (isdigit((unsigned char)*p))
                p++;
        }
        if (*p)
            return false;
    }
    const char *dp = localeconv()->decimal_point;
    size_t dn = strlen(dp);
    if (n + dn + 1 > sizeof buf) {
        heap = sd_alloc_raw(n + dn + 1, 1, NULL);
        if (!heap)
            return false;
        w = heap;
    }
    if (point) {
        size_t a = (size_t)(point - s);
        memcpy(w, s, a);
        memcpy(w + a, dp, dn);
        memcpy(w + a + dn, point + 1, n - a);
    } else {
        memcpy(w, s, n + 1);
    }
    char *end;
    double v = strtod(w, &end);
    bool ok = *end == '\0' && (word || isfinite(v));
    sd_free(heap);
    if (ok)
        *out = v;
    return ok;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

/* Levenshtein distance with adjacent transpositions, on names of up to 63 bytes. */
static size_t distance(const char *a, const char *b) {
    size_t row[3][65], m = strlen(a), n = strlen(b);
    if (m > 63 || n > 63)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *r = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        r[0] = i;
        for (size_t j = 1; j <= n; j++) {
            char x = (char)tolower((unsigned char)a[i - 1]),
                 y = (char)tolower((unsigned char)b[j - 1]);
            size_t d = up[j - 1] + (x != y);
            if (up[j] + 1 < d)
                d = up[j] + 1;
            if (r[j - 1] + 1 < d)
                d = r[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < d)
                d = up2[j - 2] + 1;
            r[j] = d;
        }
    }
    return row[m % 3][n];
}

const char *sd_suggest(const char *name, const char *(*get)(const void *ctx, size_t i),
                       const void *ctx) {
    size_t limit = strlen(name) / 3;
    if (limit < 2)
        limit = 2;
    const char *best = NULL, *c;
    size_t best_d = SIZE_MAX;
    for (size_t i = 0; (c = get(ctx, i)) != NULL; i++) {
        size_t d = distance(name, c);
        /* One name that begins with the other is near as well: "plane" and "planes_kept". */
        if (d > limit && strlen(name) >= 3 &&
            (strncmp(name, c, strlen(name)) == 0 || strncmp(name, c, strlen(c)) == 0))
            d = limit;
        if (d <= limit && d < strlen(name) && d < best_d) {
            best_d = d;
            best = c;
        }
    }
    return best;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static sd_status range_number(const char **p, const char *text, const char *what, int count,
                              int *out, sd_err *err) {
    const char *s = *p;
    if (!isdigit((unsigned char)*s))
        return sd_fail(err, SD_EINVAL, "%s range '%s': expected a number at '%s'", what, text, s);
    long v = 0;
    for (; isdigit((unsigned char)*s); s++)
        v = v > 100000000 ? v : v * 10 + (*s - '0');
    if (v >= count)
        return sd_fail(err, SD_EINVAL, "expected %s 0..%d, got %ld", what, count - 1, v);
    *out = (int)v;
    *p = s;
    return SD_OK;
}

sd_status sd_parse_ranges(const char *text, const char *what, int count, bool *mask, sd_err *err) {
    memset(mask, 0, (size_t)count * sizeof *mask);
    if (strcmp(text, "all") == 0) {
        for (int i = 0; i < count; i++)
            mask[i] = true;
        return SD_OK;
    }
    const char *p = text;
    for (;;) {
        while (*p == ' ')
            p++;
        int a, b;
        SD_TRY(range_number(&p, text, what, count, &a, err));
        b = a;
        while (*p == ' ')
            p++;
        if (*p == '-') {
            for (p++; *p == ' ';)
                p++;
            SD_TRY(range_number(&p, text, what, count, &b, err));
            while (*p == ' ')
                p++;
        }
        if (b < a)
            return sd_fail(err, SD_EINVAL, "%s range '%s': %d-%d runs backwards", what, text, a, b);
        for (int i = a; i <= b; i++)
            mask[i] = true;
        if (*p == '\0')
            return SD_OK;
        if (*p != ',')
            return sd_fail(err, SD_EINVAL, "%s range '%s': expected ',' or '-' at '%s'", what, text,
                           p);
        p++;
    }
}
