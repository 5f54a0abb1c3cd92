/* tok_wordpiece.c: WordPiece (BERT): the longest known piece first, from the left; a word with
 * any part unmatched, or longer than max_chars characters, is one unknown token. */
#include <string.h>

#include "io/tok.h"

sd_status sd_tok_wordpiece(tok_run *r, const char *s, size_t n, sd_err *err) {
    const sd_tokenizer *t = r->t;
    uint64_t hash;
    sd_status st;
    if (n == 0)
        return SD_OK;
    if (sd_tok_cache_get(r, s, n, &hash, &st, err))
        return st;
    if ((++r->polls & 0xfff) == 0)
        SD_TRY(sd_check_cancel(err));
    size_t first = r->ids->n, chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    bool bad = chars > t->max_chars;
    for (size_t from = 0; from < n && !bad;) {
        if ((++r->polls & 0xff) == 0) /* long words are quadratic */
            SD_TRY(sd_check_cancel(err));
        size_t room = t->vocab.longest; /* no spelling is longer */
        if (from > 0)
            room = room > t->nprefix ? room - t->nprefix : 0;
        size_t to = n - from > room ? from + room : n;
        int32_t id = -1;
        for (; to > from; to--) {
            if (to < n && ((unsigned char)s[to] & 0xc0) == 0x80)
                continue; /* inside a character */
            if (from == 0) {
                id = sd_tok_vocab_find(&t->vocab, s, to);
            } else {
                sd_buf *b = &r->s->chr;
                tok_reset(b);
                sd_buf_put(b, t->prefix, t->nprefix);
                sd_buf_put(b, s + from, to - from);
                SD_TRY(sd_buf_status(b, err));
                id = b->n ? sd_tok_vocab_find(&t->vocab, b->p, b->n) : -1;
            }
            if (id >= 0)
                break;
        }
        if (id < 0) {
            bad = true;
        } else {
            SD_TRY(sd_tok_ids_put(r->ids, id, err));
            from = to;
        }
    }
    if (bad) {
        r->ids->n = first;
        tok_lose(r, s, n);
        return sd_tok_ids_put(r->ids, t->unk, err);
    }
    sd_tok_cache_put(r, s, n, hash, first);
    return SD_OK;
}
