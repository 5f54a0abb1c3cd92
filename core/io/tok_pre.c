/* tok_pre.c: patterns and pre-tokenisers.
 *
 * Regular expressions are written for Oniguruma (Ruby syntax, UTF-8) or for the Rust regex crate;
 * they are rewritten to PCRE2 with Unicode properties. Where PCRE2's classes differ (\s holds
 * U+180E, \w lacks marks) the Unicode property is spelt out; constructs that mean something else
 * in PCRE2 (nested classes, intersections, possessive intervals) are refused. */
#include <string.h>

#include "io/tok.h"

const char sd_tok_gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- scratch -----------------------------------------------------------------------------------
 */
tok_scratch *sd_tok_scratch_new(sd_err *err) {
    tok_scratch *s = sd_alloc(1, sizeof *s, err);
    if (!s)
        return NULL;
    s->md = pcre2_match_data_create(1, NULL);
    s->mc = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(64 * 1024, 16 * 1024 * 1024, NULL);
    if (!s->md || !s->mc) {
        sd_tok_scratch_free(s);
        sd_fail(err, SD_ENOMEM, "out of memory for the regular expression engine");
        return NULL;
    }
    if (s->stack)
        pcre2_jit_stack_assign(s->mc, NULL, s->stack);
    pcre2_set_heap_limit(s->mc, 64 * 1024); /* KiB */
    return s;
}

void sd_tok_scratch_free(tok_scratch *s) {
    if (!s)
        return;
    pcre2_match_data_free(s->md);
    pcre2_match_context_free(s->mc);
    pcre2_jit_stack_free(s->stack);
    sd_free(s->cache.cell);
    sd_buf_free(&s->cache.keys);
    sd_free(s->cache.ids);
    sd_free(s->sym);
    sd_free(s->heap);
    sd_buf_free(&s->chr);
    sd_free(s);
}

/* ---- patterns ----------------------------------------------------------------------------------
 */
static const char word_class[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

typedef struct rewriter { /* a pattern being rewritten, at byte i */
    const char *p;
    size_t n, i;
    bool in_class;
    size_t class_at; /* where the class's first member would stand */
    sd_buf *out;
} rewriter;

static sd_status unsupported(const rewriter *w, const char *what, sd_err *err) {
    return sd_fail(err, SD_EFORMAT, "regular expression \"%.*s\": %s is not supported",
                   w->n > 200 ? 200 : (int)w->n, w->p, what);
}

static bool at(const rewriter *w, size_t ahead, char c) {
    return w->i + ahead < w->n && w->p[w->i + ahead] == c;
}

/* Back-slash and what follows; i is left on the last byte taken. */
static sd_status rewrite_escape(rewriter *w, sd_err *err) {
    /* \h is a hexadecimal digit in Oniguruma and horizontal space in PCRE2, and so on */
    static const char differs[] = "hHRXKGCQEgkyYON";
    const char e = w->p[++w->i];
    char what[8] = {'\\', e, 0};
    if (e && strchr(differs, e))
        return unsupported(w, what, err);
    switch (e) {
    case 's':
        sd_buf_puts(w->out, "\\p{White_Space}");
        return SD_OK;
    case 'S':
        sd_buf_puts(w->out, "\\P{White_Space}");
        return SD_OK;
    case 'w':
        sd_buf_printf(w->out, w->in_class ? "%s" : "[%s]", word_class);
        return SD_OK;
    case 'W':
        if (w->in_class)
            return unsupported(w, "\\W inside a class", err);
        sd_buf_printf(w->out, "[^%s]", word_class);
        return SD_OK;
    case 'u': /* \uHHHH */
        if (w->i + 4 >= w->n)
            return unsupported(w, "an unfinished \\u", err);
        sd_buf_printf(w->out, "\\x{%.4s}", w->p + w->i + 1);
        w->i += 4;
        return SD_OK;
    default:
        sd_buf_put(w->out, what, 2);
        if ((e == 'p' || e == 'P' || e == 'x') && at(w, 1, '{'))
            while (w->i + 1 < w->n && w->p[w->i] != '}')
                sd_buf_putc(w->out, w->p[++w->i]);
        return SD_OK;
    }
}

/* One byte inside [ ]. */
static sd_status rewrite_member(rewriter *w, sd_err *err) {
    const char c = w->p[w->i];
    if (c == '[' && at(w, 1, ':')) { /* [:alpha:] */
        size_t k = w->i + 2;
        while (k + 1 < w->n && !(w->p[k] == ':' && w->p[k + 1] == ']'))
            k++;
        if (k + 1 >= w->n)
            return unsupported(w, "an unfinished class", err);
        sd_buf_put(w->out, w->p + w->i, k + 2 - w->i);
        w->i = k + 1;
        return SD_OK;
    }
    if (c == '[')
        return unsupported(w, "a class inside a class", err);
    if (c == '&' && at(w, 1, '&'))
        return unsupported(w, "&& in a class", err);
    if (c == ']' && w->i > w->class_at)
        w->in_class = false;
    sd_buf_putc(w->out, c);
    return SD_OK;
}

/* One byte outside classes. */
static sd_status rewrite_plain(rewriter *w, sd_err *err) {
    static const char groups[] = "RC&P|(~{+0123456789";
    const char c = w->p[w->i];
    if (c == '}' && at(w, 1, '+'))
        return unsupported(w, "an interval followed by +", err);
    if (c == '(' && at(w, 1, '*'))
        return unsupported(w, "(*", err); /* PCRE2 verbs */
    if (c == '(' && at(w, 1, '?') && w->i + 2 < w->n && w->p[w->i + 2] &&
        strchr(groups, w->p[w->i + 2]))
        return unsupported(w, "this kind of group", err);
    sd_buf_putc(w->out, c);
    if (c == '[') {
        w->in_class = true;
        if (at(w, 1, '^'))
            sd_buf_putc(w->out, w->p[++w->i]);
        w->class_at = w->i + 1;
    }
    return SD_OK;
}

static sd_status translate(const char *p, size_t n, sd_buf *out, sd_err *err) {
    rewriter w = {.p = p, .n = n, .out = out};
    for (; w.i < n; w.i++) {
        if (p[w.i] == '\\' && w.i + 1 < n)
            SD_TRY(rewrite_escape(&w, err));
        else
            SD_TRY(w.in_class ? rewrite_member(&w, err) : rewrite_plain(&w, err));
    }
    return sd_buf_status(out, err);
}

sd_status sd_tok_regex(const char *pattern, size_t n, tok_pattern *out, sd_err *err) {
    memset(out, 0, sizeof *out);
    if (n == 0)
        return sd_fail(err, SD_EFORMAT, "an empty regular expression");
    sd_buf b = {0};
    sd_status st = translate(pattern, n, &b, err);
    if (st != SD_OK) {
        sd_buf_free(&b);
        return st;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    /* ^ and $ match at lines in Ruby's syntax. */
    out->re = pcre2_compile((PCRE2_SPTR)b.p, b.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                PCRE2_NO_AUTO_CAPTURE,
                            &code, &at, NULL);
    sd_buf_free(&b);
    if (!out->re) {
        PCRE2_UCHAR text[160];
        pcre2_get_error_message(code, text, sizeof text);
        return sd_fail(err, SD_EFORMAT, "regular expression \"%.*s\": %s (at %zu)",
                       n > 200 ? 200 : (int)n, pattern, (const char *)text, (size_t)at);
    }
    out->kind = TOK_PAT_REGEX;
    (void)pcre2_jit_compile(out->re, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    return SD_OK;
}

sd_status sd_tok_literal(const char *s, size_t n, tok_pattern *out, sd_err *err) {
    memset(out, 0, sizeof *out);
    out->kind = TOK_PAT_LITERAL;
    if (n == 0)
        return sd_fail(err, SD_EFORMAT, "an empty pattern");
    out->s = sd_strndup(s, n, err);
    out->n = n;
    return out->s ? SD_OK : SD_ENOMEM;
}

void sd_tok_pattern_free(tok_pattern *p) {
    sd_free(p->s);
    pcre2_code_free(p->re);
    memset(p, 0, sizeof *p);
}

static sd_status find_regex(const tok_pattern *p, tok_scratch *s, const char *text, size_t n,
                            size_t from, bool *found, size_t *ms, size_t *me, sd_err *err) {
    PCRE2_SIZE *ov = pcre2_get_ovector_pointer(s->md);
    while (from <= n) {
        int rc = pcre2_match(p->re, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->md, s->mc);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(p->re, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             s->md, s->mc);
        if (rc == PCRE2_ERROR_NOMATCH)
            return SD_OK;
        if (rc < 0) {
            PCRE2_UCHAR why[160];
            pcre2_get_error_message(rc, why, sizeof why);
            return sd_fail(err, SD_EINVAL, "pre-tokeniser's regular expression: %s",
                           (const char *)why);
        }
        if (ov[1] > ov[0] && ov[0] >= from) {
            *found = true;
            *ms = ov[0];
            *me = ov[1];
            return SD_OK;
        }
        from = ov[1] > from ? ov[1] : from; /* empty: one character on */
        size_t len = from < n ? sd_utf8_next(text + from, n - from, NULL) : 1;
        from += len ? len : 1;
    }
    return SD_OK;
}

sd_status sd_tok_find(const tok_pattern *p, tok_scratch *s, const char *text, size_t n, size_t from,
                      bool *found, size_t *ms, size_t *me, sd_err *err) {
    *found = false;
    if (from >= n)
        return SD_OK;
    if (p->kind == TOK_PAT_REGEX)
        return find_regex(p, s, text, n, from, found, ms, me, err);
    if (p->kind == TOK_PAT_LITERAL) {
        while (from + p->n <= n) {
            const char *q = memchr(text + from, p->s[0], n - from - p->n + 1);
            if (!q)
                return SD_OK;
            from = (size_t)(q - text);
            if (memcmp(q, p->s, p->n) == 0) {
                *found = true;
                *ms = from;
                *me = from + p->n;
                return SD_OK;
            }
            from++;
        }
        return SD_OK;
    }
    while (from < n) {
        uint32_t c = (unsigned char)text[from];
        size_t len = c < 0x80 ? 1 : sd_utf8_next(text + from, n - from, &c);
        if (len == 0)
            len = 1;
        if (p->kind == TOK_PAT_SPACE     ? sd_tok_is_space(c)
            : p->kind == TOK_PAT_NUMERIC ? sd_tok_is_numeric(c)
                                         : sd_tok_is_punct(c)) {
            *found = true;
            *ms = from;
            *me = from + len;
            return SD_OK;
        }
        from += len;
    }
    return SD_OK;
}

/* ---- steps -------------------------------------------------------------------------------------
 */
static sd_status leaf(tok_run *r, const char *s, size_t n, sd_err *err) {
    const sd_tokenizer *t = r->t;
    if (t->model == TOK_WORDPIECE)
        return sd_tok_wordpiece(r, s, n, err);
    if (!t->cut || t->leaf_bytes || n <= t->ncut)
        return sd_tok_bpe(r, s, n, t->leaf_bytes, err);
    /* No merge crosses from another character into `cut`: pieces are shorter, ids the same. */
    size_t from = 0;
    for (size_t i = 1; i + t->ncut <= n; i++) {
        if (s[i] != t->cut[0] || memcmp(s + i, t->cut, t->ncut) != 0)
            continue;
        if (i - from >= t->ncut && memcmp(s + i - t->ncut, t->cut, t->ncut) == 0)
            continue;
        SD_TRY(sd_tok_bpe(r, s + from, i - from, false, err));
        from = i;
    }
    return sd_tok_bpe(r, s + from, n - from, false, err);
}

static sd_status pass(tok_run *r, size_t step, const char *s, size_t a, size_t b, bool first,
                      sd_err *err) {
    if (a >= b)
        return SD_OK;
    if (step >= r->t->n_pre)
        return leaf(r, s + a, b - a, err);
    return sd_tok_pre_run(r, step, s + a, b - a, first && a == 0, err);
}

static sd_status split(tok_run *r, size_t step, const char *s, size_t n, bool first, sd_err *err) {
    const tok_pre *p = &r->t->pre[step];
    size_t at = 0;               /* start of what no event has covered */
    size_t held = 0, held_e = 0; /* a piece that a later event may still extend */
    bool have = false, held_match = false, prev = false;
    while (at < n) {
        bool found = false;
        size_t ms = n, me = n;
        SD_TRY(sd_tok_find(&p->pat, r->s, s, n, at, &found, &ms, &me, err));
        if (!found)
            ms = me = n;
        /* Two events: the gap [at, ms), then the match [ms, me). */
        for (int k = 0; k < 2; k++) {
            size_t a = k ? ms : at, b = k ? me : ms;
            if (a >= b)
                continue;
            bool match = (k == 1) != p->invert;
            switch (p->behavior) {
            case TOK_ISOLATED:
                SD_TRY(pass(r, step + 1, s, a, b, first, err));
                break;
            case TOK_REMOVED:
                if (!match)
                    SD_TRY(pass(r, step + 1, s, a, b, first, err));
                break;
            case TOK_CONTIGUOUS:
            case TOK_MERGED_PREVIOUS:
            case TOK_MERGED_NEXT: {
                bool join = have && (p->behavior == TOK_CONTIGUOUS        ? match == prev
                                     : p->behavior == TOK_MERGED_PREVIOUS ? match && !prev
                                                                          : held_match && !match);
                if (join) {
                    held_e = b;
                } else {
                    if (have)
                        SD_TRY(pass(r, step + 1, s, held, held_e, first, err));
                    held = a;
                    held_e = b;
                    have = true;
                }
                held_match = match;
                prev = match;
                break;
            }
            }
        }
        at = me;
    }
    if (have)
        SD_TRY(pass(r, step + 1, s, held, held_e, first, err));
    return SD_OK;
}

sd_status sd_tok_pre_run(tok_run *r, size_t step, const char *s, size_t n, bool first,
                         sd_err *err) {
    if (step >= r->t->n_pre)
        return n ? leaf(r, s, n, err) : SD_OK;
    const tok_pre *p = &r->t->pre[step];
    sd_buf b = {0};
    sd_status st = SD_OK;
    switch (p->kind) {
    case TOK_PRE_SPLIT:
        return split(r, step, s, n, first, err);
    case TOK_PRE_PREFIX_SPACE:
        if (n && s[0] == ' ')
            return sd_tok_pre_run(r, step + 1, s, n, first, err);
        sd_buf_putc(&b, ' ');
        sd_buf_put(&b, s, n);
        break;
    case TOK_PRE_MAP:
        sd_tok_map_bytes(s, n, &b);
        break;
    case TOK_PRE_META: {
        bool has = n >= p->nrep && memcmp(s, p->rep, p->nrep) == 0;
        if (n && s[0] == ' ')
            has = true;
        if (!has && (p->prepend == TOK_ALWAYS || (p->prepend == TOK_FIRST && first)))
            sd_buf_put(&b, p->rep, p->nrep);
        for (size_t i = 0; i < n; i++) {
            if (s[i] == ' ')
                sd_buf_put(&b, p->rep, p->nrep);
            else
                sd_buf_putc(&b, s[i]);
        }
        break;
    }
    }
    SD_GO(st, done, sd_buf_status(&b, err));
    SD_GO(st, done, sd_tok_budget_take(&r->budget, b.n, "pre_tokenizer", err));
    st = sd_tok_pre_run(r, step + 1, b.p, b.n, first, err);
done:
    sd_buf_free(&b);
    return st;
}
