/* tok_norm.c: normalisers and ByteLevel's byte table. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "io/tok.h"

/* ---- bounds ---- */
tok_budget sd_tok_budget_of(size_t n) {
    /* products that wrap would need a text of 2^57 bytes */
    size_t wide = n > SIZE_MAX / 128 ? SIZE_MAX / 2 : n * TOK_GROWTH + TOK_SLACK;
    size_t flat = n > SIZE_MAX / 128 ? SIZE_MAX / 2 : n * 4 + ((size_t)1 << 30);
    return (tok_budget){.given = n, .most = wide < flat ? wide : flat};
}

sd_status sd_tok_budget_check(const tok_budget *b, size_t pending, const char *what, sd_err *err) {
    if (pending <= b->most - b->made)
        return SD_OK;
    return sd_fail(err, SD_EFORMAT,
                   "the tokenizer's %s makes more than %zu bytes of %zu: refused, as a text grows "
                   "at most %d times",
                   what, b->most, b->given, TOK_GROWTH);
}

sd_status sd_tok_budget_take(tok_budget *b, size_t more, const char *what, sd_err *err) {
    SD_TRY(sd_tok_budget_check(b, more, what, err));
    b->made += more;
    return SD_OK;
}

/* ---- ByteLevel's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on ---
 */
static bool printable(unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t sd_tok_byte_char(unsigned char b) {
    if (printable(b))
        return b;
    uint32_t k = 0x100;
    if (b <= 32)
        return k + b;
    if (b <= 160) /* 127..160 follow 0..32 */
        return k + 33 + (b - 127u);
    return k + 67; /* 0xad */
}

int sd_tok_char_byte(uint32_t c) {
    if (c < 0x100)
        return printable(c) ? (int)c : -1;
    c -= 0x100;
    if (c <= 32)
        return (int)c;
    if (c < 67)
        return (int)c - 33 + 127;
    return c == 67 ? 0xad : -1;
}

void sd_tok_map_bytes(const char *s, size_t n, sd_buf *out) {
    for (size_t i = 0; i < n; i++) {
        char u[4];
        size_t k = sd_utf8_put(sd_tok_byte_char((unsigned char)s[i]), u);
        sd_buf_put(out, u, k);
    }
}

/* ---- Unicode normal forms -------------------------------------------------------------------- */
typedef struct cps {
    int32_t *v;
    size_t n, cap;
} cps;

static int by_class(const void *x, const void *y) {
    /* (class, position): the order must be stable */
    const int64_t *a = x, *b = y;
    return a[0] != b[0] ? (a[0] < b[0] ? -1 : 1) : (a[1] < b[1] ? -1 : a[1] > b[1]);
}

static int combining_class(int32_t c) {
    return sd_tok_combining_class((uint32_t)c);
}

/* Canonical ordering: runs of characters of non-zero class are sorted by class, stably. Insertion
 * for the usual short runs, a sort for long ones: a megabyte of marks must not be quadratic. */
static sd_status reorder(int32_t *v, size_t n, sd_err *err) {
    for (size_t i = 0; i < n;) {
        if (combining_class(v[i]) == 0) {
            i++;
            continue;
        }
        size_t e = i;
        while (e < n && combining_class(v[e]) != 0)
            e++;
        if (e - i <= 32) {
            for (size_t k = i + 1; k < e; k++) {
                int32_t x = v[k];
                int cx = combining_class(x);
                size_t j = k;
                for (; j > i && combining_class(v[j - 1]) > cx; j--)
                    v[j] = v[j - 1];
                v[j] = x;
            }
        } else {
            int64_t *key = sd_alloc_raw(e - i, 3 * sizeof *key, err);
            if (!key)
                return SD_ENOMEM;
            for (size_t k = i; k < e; k++) {
                key[3 * (k - i)] = combining_class(v[k]);
                key[3 * (k - i) + 1] = (int64_t)k;
                key[3 * (k - i) + 2] = v[k];
            }
            qsort(key, e - i, 3 * sizeof *key, by_class);
            for (size_t k = i; k < e; k++)
                v[k] = (int32_t)key[3 * (k - i) + 2];
            sd_free(key);
        }
        i = e;
    }
    return SD_OK;
}

static sd_status unicode_form(const char *s, size_t n, bool compose, bool compat, sd_buf *out,
                              sd_err *err) {
    size_t plain = 0;
    while (plain < n && (unsigned char)s[plain] < 0x80)
        plain++;
    if (plain == n) { /* ASCII is normal in every form */
        sd_buf_put(out, s, n);
        return sd_buf_status(out, err);
    }
    if (plain > 0)
        plain--; /* the last ASCII character may compose with a mark that follows */
    sd_buf_put(out, s, plain);
    int options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    cps c = {0};
    sd_status st = SD_OK;
    for (size_t i = plain; i < n;) {
        uint32_t cp = 0;
        size_t len = sd_utf8_next(s + i, n - i, &cp);
        i += len ? len : 1;
        if (c.n + 32 > c.cap)
            SD_GO(st, done, sd_grow((void **)&c.v, &c.cap, c.n + 32, sizeof *c.v, err));
        utf8proc_ssize_t k = -1;
        if (sd_tok_decomposes(cp, compat))
            k = utf8proc_decompose_char((utf8proc_int32_t)cp, c.v + c.n, 32, options, NULL);
        if (k < 0 || k > 32) {
            c.v[c.n] = (int32_t)cp;
            k = 1;
        }
        c.n += (size_t)k;
    }
    SD_GO(st, done, reorder(c.v, c.n, err));
    if (compose && c.n) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(c.v, (utf8proc_ssize_t)c.n,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (k < 0) {
            st = sd_fail(err, SD_EINVAL, "normalisation: %s", utf8proc_errmsg(k));
            goto done;
        }
        c.n = (size_t)k;
    }
    for (size_t i = 0; i < c.n; i++) {
        char u[4];
        sd_buf_put(out, u, sd_utf8_put((uint32_t)c.v[i], u));
    }
    st = sd_buf_status(out, err);
done:
    sd_free(c.v);
    return st;
}

/* ---- the steps ---------------------------------------------------------------------------------
 */
static void put_lower(sd_buf *out, uint32_t c) {
    char u[4];
    if (c == 0x130) { /* the only lower-case mapping of two characters */
        sd_buf_puts(out, "i\xcc\x87");
        return;
    }
    sd_buf_put(out, u, sd_utf8_put(sd_tok_lower1(c), u));
}

static void lower(const char *s, size_t n, sd_buf *out) {
    for (size_t i = 0; i < n;) {
        size_t e = i;
        while (e < n && (unsigned char)s[e] < 0x80)
            e++;
        if (e > i) { /* a run of ASCII at once */
            size_t at = out->n;
            sd_buf_put(out, s + i, e - i);
            for (; at < out->n; at++)
                if (out->p[at] >= 'A' && out->p[at] <= 'Z')
                    out->p[at] += 32;
            i = e;
            continue;
        }
        uint32_t cp = 0;
        size_t len = sd_utf8_next(s + i, n - i, &cp);
        put_lower(out, cp);
        i += len ? len : 1;
    }
}

static void drop_marks(const char *s, size_t n, bool nonspacing_only, sd_buf *out) {
    for (size_t i = 0; i < n;) {
        size_t e = i;
        while (e < n && (unsigned char)s[e] < 0xcc) /* below U+0300 */
            e++;
        if (e > i) {
            sd_buf_put(out, s + i, e - i);
            i = e;
            continue;
        }
        uint32_t cp = (unsigned char)s[i];
        size_t len = cp < 0x80 ? 1 : sd_utf8_next(s + i, n - i, &cp);
        if (len == 0)
            len = 1;
        if (!(nonspacing_only ? sd_tok_is_nonspacing(cp) : sd_tok_is_mark(cp)))
            sd_buf_put(out, s + i, len);
        i += len;
    }
}

static void bert_clean(const char *s, size_t n, bool clean, bool chinese, sd_buf *out) {
    for (size_t i = 0; i < n;) {
        size_t e = i;
        while (e < n && s[e] >= ' ' && s[e] < 127)
            e++;
        if (e > i) { /* printable ASCII stays */
            sd_buf_put(out, s + i, e - i);
            i = e;
            continue;
        }
        uint32_t cp = (unsigned char)s[i];
        size_t len = cp < 0x80 ? 1 : sd_utf8_next(s + i, n - i, &cp);
        if (len == 0)
            len = 1;
        if (clean && (cp == '\t' || cp == '\n' || cp == '\r' || sd_tok_is_space(cp))) {
            /* the other control characters that are white space are dropped with the controls */
            if (cp == '\t' || cp == '\n' || cp == '\r' || !sd_tok_is_other(cp))
                sd_buf_putc(out, ' ');
        } else if (clean && (cp == 0 || cp == 0xfffd || sd_tok_is_other(cp))) {
            ;
        } else if (chinese && sd_tok_is_cjk(cp)) {
            sd_buf_putc(out, ' ');
            sd_buf_put(out, s + i, len);
            sd_buf_putc(out, ' ');
        } else {
            sd_buf_put(out, s + i, len);
        }
        i += len;
    }
}

static void strip(const char *s, size_t n, bool left, bool right, sd_buf *out) {
    size_t a = 0, b = n;
    uint32_t cp = 0;
    while (left && a < b) {
        size_t len = sd_utf8_next(s + a, b - a, &cp);
        if (len == 0 || !sd_tok_is_space(cp))
            break;
        a += len;
    }
    while (right && b > a) {
        size_t k = b - 1;
        while (k > a && ((unsigned char)s[k] & 0xc0) == 0x80)
            k--;
        if (sd_utf8_next(s + k, b - k, &cp) == 0 || !sd_tok_is_space(cp))
            break;
        b = k;
    }
    sd_buf_put(out, s + a, b - a);
}

/* The two steps whose output the file decides; the others grow a text by a fixed factor. */
static sd_status replace(const tok_norm *m, tok_scratch *sc, const char *s, size_t n, sd_buf *out,
                         const tok_budget *room, sd_err *err) {
    size_t at = 0;
    for (;;) {
        bool found = false;
        size_t ms = 0, me = 0;
        SD_TRY(sd_tok_find(&m->pat, sc, s, n, at, &found, &ms, &me, err));
        if (!found)
            break;
        SD_TRY(sd_tok_budget_check(room, out->n + (ms - at) + m->n, "normalizer Replace", err));
        sd_buf_put(out, s + at, ms - at);
        sd_buf_put(out, m->content, m->n);
        at = me;
    }
    sd_buf_put(out, s + at, n - at);
    return SD_OK;
}

static sd_status bert(const tok_norm *m, const char *s, size_t n, sd_buf *out, sd_err *err) {
    sd_buf a = {0}, b = {0};
    sd_status st = SD_OK;
    bert_clean(s, n, m->clean, m->chinese, &a);
    SD_GO(st, done, sd_buf_status(&a, err));
    if (m->accents) {
        SD_GO(st, done, unicode_form(a.p ? a.p : "", a.n, false, false, &b, err));
        sd_buf_clear(&a);
        drop_marks(b.p ? b.p : "", b.n, true, &a);
    }
    if (m->lower)
        lower(a.p ? a.p : "", a.n, out);
    else
        sd_buf_put(out, a.p ? a.p : "", a.n);
    st = sd_buf_status(&a, err);
done:
    sd_buf_free(&a);
    sd_buf_free(&b);
    return st;
}

static sd_status step(const tok_norm *m, tok_scratch *sc, const char *s, size_t n, bool after_raw,
                      sd_buf *out, const tok_budget *room, sd_err *err) {
    switch (m->kind) {
    case TOK_NFC:
    case TOK_NFD:
    case TOK_NFKC:
    case TOK_NFKD:
        return unicode_form(s, n, m->kind == TOK_NFC || m->kind == TOK_NFKC,
                            m->kind == TOK_NFKC || m->kind == TOK_NFKD, out, err);
    case TOK_LOWER:
        lower(s, n, out);
        break;
    case TOK_STRIP_ACCENTS:
        drop_marks(s, n, false, out);
        break;
    case TOK_REPLACE:
        SD_TRY(replace(m, sc, s, n, out, room, err));
        break;
    case TOK_PREPEND:
        SD_TRY(sd_tok_budget_check(room, n + m->n, "normalizer Prepend", err));
        if (n && !after_raw)
            sd_buf_put(out, m->content, m->n);
        sd_buf_put(out, s, n);
        break;
    case TOK_STRIP:
        strip(s, n, m->left, m->right, out);
        break;
    case TOK_BERT:
        SD_TRY(bert(m, s, n, out, err));
        break;
    case TOK_NORM_MAP:
        sd_tok_map_bytes(s, n, out);
        break;
    }
    return sd_buf_status(out, err);
}

sd_status sd_tok_normalize(const sd_tokenizer *t, tok_scratch *sc, const char *text, size_t n,
                           bool after_raw, sd_buf *out, tok_budget *budget, sd_err *err) {
    if (t->n_norm == 0) {
        sd_buf_put(out, text, n);
        return sd_buf_status(out, err);
    }
    sd_buf in = {0};
    sd_status st = SD_OK;
    for (size_t i = 0; i < t->n_norm; i++) {
        SD_GO(st, done, sd_check_cancel(err));
        sd_buf_clear(out);
        SD_GO(st, done, step(&t->norm[i], sc, text, n, after_raw, out, budget, err));
        SD_GO(st, done, sd_tok_budget_check(budget, out->n, "normalizer", err));
        if (i + 1 < t->n_norm) {
            sd_buf swap = in;
            in = *out;
            *out = swap;
            text = in.p ? in.p : "";
            n = in.n;
        }
    }
    st = sd_tok_budget_take(budget, out->n, "normalizer", err);
done:
    sd_buf_free(&in);
    return st;
}
