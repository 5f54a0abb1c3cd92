/* tok_decode.c: ids → bytes. A decoder is a chain over the list of token spellings. Byte tokens
 * give their bytes as they are, valid UTF-8 or not, so that text survives encode and decode. */
#include <stdio.h>
#include <string.h>

#include "io/tok.h"

typedef struct part {
    size_t at, n;
    bool literal; /* an added token: its spelling is text, not ByteLevel characters */
} part;

typedef struct parts {
    part *v;
    size_t n, cap;
    sd_buf text;
} parts;

static sd_status begin(parts *p, bool literal, sd_err *err) {
    SD_TRY(sd_grow((void **)&p->v, &p->cap, p->n + 1, sizeof *p->v, err));
    p->v[p->n++] = (part){p->text.n, 0, literal};
    return SD_OK;
}

static void put(parts *p, const char *s, size_t n) {
    sd_buf_put(&p->text, s, n);
    p->v[p->n - 1].n += n;
}

static void unmap(const char *s, size_t n, sd_buf *out) {
    size_t start = out->n;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t len = sd_utf8_next(s + i, n - i, &c);
        int b = len ? sd_tok_char_byte(c) : -1;
        if (b < 0) { /* not a ByteLevel spelling: taken as it stands */
            if (!out->failed)
                out->n = start;
            sd_buf_put(out, s, n);
            return;
        }
        sd_buf_putc(out, (char)b);
        i += len;
    }
}

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static void replace_all(parts *o, const char *s, size_t n, const char *from, size_t nf,
                        const char *to, size_t nt) {
    size_t i = 0;
    while (i < n) {
        if (n - i >= nf && memcmp(s + i, from, nf) == 0) {
            put(o, to, nt);
            i += nf;
        } else {
            put(o, s + i, 1);
            i++;
        }
    }
}

/* WordPiece's clean-up of English, one replacement after the other. */
static sd_status tidy(sd_buf *b, sd_err *err) {
    static const char *const pair[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                          {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                          {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                          {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t k = 0; k < sizeof pair / sizeof *pair && b->n; k++) {
        size_t nf = strlen(pair[k][0]), nt = strlen(pair[k][1]), w = 0; /* nt <= nf */
        for (size_t i = 0; i < b->n;) {
            if (b->n - i >= nf && memcmp(b->p + i, pair[k][0], nf) == 0) {
                memcpy(b->p + w, pair[k][1], nt);
                w += nt;
                i += nf;
            } else {
                b->p[w++] = b->p[i++];
            }
        }
        b->n = w;
        b->p[w] = 0;
    }
    return sd_buf_status(b, err);
}

static sd_status one(const tok_dec *d, size_t i, size_t n, part in, const char *s, parts *o,
                     sd_err *err) {
    switch (d->kind) {
    case TOK_DEC_WORDPIECE: {
        sd_buf b = {0};
        if (i > 0 && in.n >= d->n && memcmp(s, d->s, d->n) == 0) {
            sd_buf_put(&b, s + d->n, in.n - d->n);
        } else {
            if (i > 0)
                sd_buf_putc(&b, ' ');
            sd_buf_put(&b, s, in.n);
        }
        sd_status st = d->cleanup ? tidy(&b, err) : sd_buf_status(&b, err);
        if (st == SD_OK && b.n)
            put(o, b.p, b.n);
        sd_buf_free(&b);
        return st;
    }
    case TOK_DEC_METASPACE:
        if (i == 0 && !d->keep_first)
            replace_all(o, s, in.n, d->s, d->n, "", 0);
        else
            replace_all(o, s, in.n, d->s, d->n, " ", 1);
        break;
    case TOK_DEC_BYTEFALLBACK:
        if (in.n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' && hex(s[3]) >= 0 &&
            hex(s[4]) >= 0) {
            char c = (char)(hex(s[3]) * 16 + hex(s[4]));
            put(o, &c, 1);
        } else {
            put(o, s, in.n);
        }
        break;
    case TOK_DEC_STRIP: {
        size_t a = 0, b = in.n;
        for (size_t k = 0; k < d->start && b - a >= d->n && memcmp(s + a, d->s, d->n) == 0; k++)
            a += d->n;
        for (size_t k = 0; k < d->stop && b - a >= d->n && memcmp(s + b - d->n, d->s, d->n) == 0;
             k++)
            b -= d->n;
        put(o, s + a, b - a);
        break;
    }
    case TOK_DEC_BPE:
        replace_all(o, s, in.n, d->s, d->n, i + 1 == n ? "" : " ", i + 1 == n ? 0 : 1);
        break;
    default:
        put(o, s, in.n);
    }
    return SD_OK;
}

static sd_status replace(const tok_dec *d, tok_scratch *sc, const char *s, size_t n, parts *o,
                         const tok_budget *room, sd_err *err) {
    size_t at = 0, ms = 0, me = 0;
    /* A regex needs valid UTF-8; spellings are, unless bytes were put in by ByteFallback. */
    for (size_t k = 0, len; d->pat.kind == TOK_PAT_REGEX && k < n; k += len)
        if ((len = sd_utf8_next(s + k, n - k, NULL)) == 0)
            return sd_fail(err, SD_EINVAL,
                           "decoder Replace with a regular expression on bytes that are not UTF-8");
    for (bool found = true;;) {
        SD_TRY(sd_tok_find(&d->pat, sc, s, n, at, &found, &ms, &me, err));
        if (!found)
            break;
        SD_TRY(sd_tok_budget_check(room, o->text.n + (ms - at) + d->n, "decoder Replace", err));
        put(o, s + at, ms - at);
        put(o, d->s, d->n);
        at = me;
    }
    put(o, s + at, n - at);
    return SD_OK;
}

static sd_status chain(const tok_dec *d, tok_scratch *sc, const parts *in, parts *o,
                       const tok_budget *room, sd_err *err) {
    const char *base = in->text.p ? in->text.p : "";
    if (d->kind == TOK_DEC_BYTELEVEL) { /* also joins */
        SD_TRY(begin(o, false, err));
        for (size_t i = 0; i < in->n; i++) {
            if (in->v[i].literal)
                sd_buf_put(&o->text, base + in->v[i].at, in->v[i].n);
            else
                unmap(base + in->v[i].at, in->v[i].n, &o->text);
        }
        o->v[0].n = o->text.n;
        return sd_buf_status(&o->text, err);
    }
    if (d->kind == TOK_DEC_FUSE) {
        SD_TRY(begin(o, false, err));
        put(o, base, in->text.n);
        return sd_buf_status(&o->text, err);
    }
    for (size_t i = 0; i < in->n; i++) {
        if ((i & 0xffff) == 0xffff)
            SD_TRY(sd_check_cancel(err));
        const char *s = base + in->v[i].at;
        SD_TRY(begin(o, in->v[i].literal, err));
        if (d->kind == TOK_DEC_REPLACE)
            SD_TRY(replace(d, sc, s, in->v[i].n, o, room, err));
        else
            SD_TRY(one(d, i, in->n, in->v[i], s, o, err));
    }
    return sd_buf_status(&o->text, err);
}

/* Spelling of an id: its token's, or a placeholder for a hole and for rows of a model beyond the
 * vocabulary. `own` holds the placeholder. */
enum { PLACEHOLDER = 24 };
static sd_status spelling(const sd_tokenizer *t, int32_t id, size_t i, int32_t rows,
                          char own[PLACEHOLDER], tok_str *out, sd_err *err) {
    const bool inside = id >= 0 && id < t->vocab.size;
    if (inside && t->vocab.at[id].s) {
        *out = t->vocab.at[id];
        return SD_OK;
    }
    if (id >= 0 && id < rows) {
        int n = snprintf(own, PLACEHOLDER, "<id %d>", (int)id);
        *out = (tok_str){own, (uint32_t)n};
        return SD_OK;
    }
    if (inside)
        return sd_fail(err, SD_EINVAL, "token id %d (position %zu) is not in the vocabulary",
                       (int)id, i);
    return sd_fail(err, SD_EINVAL, "token id %d (position %zu): expected 0..%d", (int)id, i,
                   (int)(rows > t->vocab.size ? rows : t->vocab.size) - 1);
}

/* The spellings one after the other: into `out` when the bytes are all there is to it, else into
 * parts for the chain. A file decides how long spellings are. */
static sd_status join(const sd_tokenizer *t, const int32_t *ids, size_t n, int32_t rows,
                      bool skip_special, bool direct, parts *a, sd_buf *out, sd_err *err) {
    size_t most, had = out->n;
    if (!sd_mul_size(n, 1024, &most) || !sd_add_size(most, 1 << 20, &most))
        most = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        char own[PLACEHOLDER];
        tok_str e = {0};
        SD_TRY(spelling(t, ids[i], i, rows, own, &e, err));
        int32_t k = ids[i] < t->vocab.size ? t->added_of[ids[i]] : -1;
        if (k >= 0 && skip_special && t->added[k].special)
            continue;
        if ((direct ? out->n - had : a->text.n) + e.n > most)
            return sd_fail(err, SD_EFORMAT, "the spellings of %zu ids take more than %zu bytes", n,
                           most);
        if (!direct)
            SD_TRY(begin(a, k >= 0 || e.s == own, err));
        if (!direct && t->no_decoder && a->n > 1)
            put(a, " ", 1);
        if (!direct)
            put(a, e.s, e.n);
        else if (k >= 0 || e.s == own)
            sd_buf_put(out, e.s, e.n);
        else
            unmap(e.s, e.n, out);
    }
    return sd_buf_status(direct ? out : &a->text, err);
}

sd_status sd_tokenizer_decode(const sd_tokenizer *t, const int32_t *ids, size_t n, int32_t rows,
                              bool skip_special, sd_buf *out, sd_err *err) {
    bool direct = t->n_dec == 1 && t->dec[0].kind == TOK_DEC_BYTELEVEL;
    parts a = {0}, b = {0};
    sd_status st = SD_OK;
    tok_scratch *sc = NULL;
    SD_GO(st, done, join(t, ids, n, rows, skip_special, direct, &a, out, err));
    if (direct)
        goto done;
    const tok_budget room = sd_tok_budget_of(a.text.n);
    for (size_t k = 0; k < t->n_dec; k++) {
        if (t->dec[k].kind == TOK_DEC_REPLACE && !sc && !(sc = sd_tok_scratch_new(err))) {
            st = SD_ENOMEM;
            goto done;
        }
        b.n = 0;
        sd_buf_clear(&b.text);
        SD_GO(st, done, chain(&t->dec[k], sc, &a, &b, &room, err));
        parts swap = a;
        a = b;
        b = swap;
    }
    sd_buf_put(out, a.text.p ? a.text.p : "", a.text.n);
    st = sd_buf_status(out, err);
done:
    sd_tok_scratch_free(sc);
    sd_free(a.v);
    sd_free(b.v);
    sd_buf_free(&a.text);
    sd_buf_free(&b.text);
    return st;
}
