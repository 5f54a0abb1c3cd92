/* tok_bpe.c: byte-pair encoding of one piece (Sennrich et al. 2016): of all adjacent pairs the
 * one with the lowest merge rank is joined, the leftmost first among equals, until none is left.
 * Short pieces scan their ranks; long ones keep a heap, O(n log n). Whole pieces are cached. */
#include <string.h>

#include "base/hash.h"
#include "io/tok.h"

enum {
    SHORT = 48,            /* symbols up to which a scan beats the heap */
    CACHE_KEY = 64,        /* longest cached piece, bytes */
    CACHE_CELLS = 1 << 17, /* at most; the cache starts anew when it is half full */
    CACHE_FIRST = 1 << 10
};

/* ---- cache ----------------------------------------------------------------------------------- */
bool sd_tok_cache_get(tok_run *r, const char *s, size_t n, uint64_t *hash, sd_status *st,
                      sd_err *err) {
    tok_cache *c = &r->s->cache;
    *st = SD_OK;
    *hash = 0;
    if (n > CACHE_KEY)
        return false;
    uint64_t h = sd_hash64(s, n, 0xcac4e) | 1;
    *hash = h;
    if (!c->cell)
        return false;
    for (size_t i = (size_t)(h >> 1) & c->mask; c->cell[i].hash; i = (i + 1) & c->mask) {
        const tok_cell *e = &c->cell[i];
        if (e->hash != h || e->nkey != n || memcmp(c->keys.p + e->key, s, n) != 0)
            continue;
        sd_ids *ids = r->ids;
        if (ids->n + e->nids > ids->cap &&
            (*st = sd_grow((void **)&ids->v, &ids->cap, ids->n + e->nids, sizeof *ids->v, err)) !=
                SD_OK)
            return true;
        for (uint32_t k = 0; k < e->nids; k++)
            ids->v[ids->n + k] = c->ids[e->ids + k];
        ids->n += e->nids;
        return true;
    }
    return false;
}

/* Failing to remember is no error. */
void sd_tok_cache_put(tok_run *r, const char *s, size_t n, uint64_t hash, size_t first_id) {
    tok_cache *c = &r->s->cache;
    if (!hash)
        return;
    if (!c->cell || (c->count + 1) * 2 > c->mask + 1) {
        size_t cells = c->cell ? (c->mask + 1) * 4 : CACHE_FIRST;
        bool restart = cells > CACHE_CELLS;
        if (restart) {
            memset(c->cell, 0, (c->mask + 1) * sizeof *c->cell);
            c->count = c->nids = 0;
            tok_reset(&c->keys);
        } else {
            tok_cell *fresh = sd_alloc(cells, sizeof *fresh, NULL);
            if (!fresh)
                return;
            for (size_t i = 0; c->cell && i <= c->mask; i++) {
                if (!c->cell[i].hash)
                    continue;
                size_t k = (size_t)(c->cell[i].hash >> 1) & (cells - 1);
                while (fresh[k].hash)
                    k = (k + 1) & (cells - 1);
                fresh[k] = c->cell[i];
            }
            sd_free(c->cell);
            c->cell = fresh;
            c->mask = cells - 1;
        }
    }
    size_t nids = r->ids->n - first_id, key = c->keys.n;
    if (sd_grow((void **)&c->ids, &c->cap, c->nids + nids, sizeof *c->ids, NULL) != SD_OK)
        return;
    sd_buf_put(&c->keys, s, n);
    if (c->keys.failed) {
        c->keys.failed = false;
        return;
    }
    if (nids)
        memcpy(c->ids + c->nids, r->ids->v + first_id, nids * sizeof *c->ids);
    size_t i = (size_t)(hash >> 1) & c->mask;
    while (c->cell[i].hash)
        i = (i + 1) & c->mask;
    c->cell[i] = (tok_cell){hash, (uint32_t)key, (uint32_t)n, (uint32_t)c->nids, (uint32_t)nids};
    c->nids += nids;
    c->count++;
}

/* ---- symbols -----------------------------------------------------------------------------------
 */
static sd_status put_sym(tok_scratch *s, size_t *n, int32_t id, sd_err *err) {
    if (*n >= s->sym_cap) {
        if (*n >= INT32_MAX - 2)
            return sd_fail(err, SD_EINVAL, "a piece of text longer than %d symbols", INT32_MAX - 2);
        SD_TRY(sd_grow((void **)&s->sym, &s->sym_cap, *n + 1, sizeof *s->sym, err));
    }
    s->sym[(*n)++].id = id;
    return SD_OK;
}

/* The initial symbols of a piece. A character without an id becomes its bytes (byte fallback),
 * the unknown token, or is dropped and counted as lost. */
static sd_status symbols(tok_run *r, const char *text, size_t n, bool bytes, size_t *count,
                         sd_err *err) {
    const sd_tokenizer *t = r->t;
    tok_scratch *s = r->s;
    bool pending = false; /* an unknown token not yet written: neighbours may fuse with it */
    *count = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 1;
        int32_t id;
        if (bytes) {
            id = t->byte_id[(unsigned char)text[i]];
        } else {
            len = sd_utf8_next(text + i, n - i, NULL);
            if (len == 0)
                len = 1;
            bool before = t->prefix && i > 0, after = t->suffix && i + len == n;
            if (before || after) {
                tok_reset(&s->chr);
                if (before)
                    sd_buf_put(&s->chr, t->prefix, t->nprefix);
                sd_buf_put(&s->chr, text + i, len);
                if (after)
                    sd_buf_put(&s->chr, t->suffix, t->nsuffix);
                SD_TRY(sd_buf_status(&s->chr, err));
                id = sd_tok_vocab_find(&t->vocab, s->chr.p, s->chr.n);
            } else {
                id = sd_tok_vocab_find(&t->vocab, text + i, len);
            }
        }
        if (id >= 0) {
            if (pending)
                SD_TRY(put_sym(s, count, t->unk, err));
            pending = false;
            SD_TRY(put_sym(s, count, id, err));
        } else {
            bool all = !bytes && t->byte_fallback;
            for (size_t k = 0; all && k < len; k++)
                all = t->byte_id[(unsigned char)text[i + k]] >= 0;
            if (all) {
                for (size_t k = 0; k < len; k++)
                    SD_TRY(put_sym(s, count, t->byte_id[(unsigned char)text[i + k]], err));
            } else {
                if (bytes || !t->byte_level) {
                    tok_lose(r, text + i, len);
                } else { /* a mapped character stands for one byte */
                    uint32_t cp = 0;
                    sd_utf8_next(text + i, len, &cp);
                    char b = (char)sd_tok_char_byte(cp);
                    tok_lose(r, &b, 1);
                }
                if (t->unk >= 0) {
                    if (pending && !t->fuse_unk)
                        SD_TRY(put_sym(s, count, t->unk, err));
                    pending = true;
                }
            }
        }
        i += len;
    }
    if (pending)
        SD_TRY(put_sym(s, count, t->unk, err));
    return SD_OK;
}

/* ---- merging -----------------------------------------------------------------------------------
 */
static size_t merge_short(const tok_merges *m, tok_sym *sym, size_t n) {
    const tok_merge *pair[SHORT];
    int32_t id[SHORT] = {0};
    for (size_t i = 0; i < n; i++)
        id[i] = sym[i].id;
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = tok_merges_get(m, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = n;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++) {
            if (pair[i] && pair[i]->rank < rank) {
                rank = pair[i]->rank;
                best = i;
            }
        }
        if (best == n)
            break;
        id[best] = pair[best]->id;
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        if (best + 2 < n)
            memmove(pair + best, pair + best + 1, (n - best - 2) * sizeof *pair);
        n--;
        if (best > 0)
            pair[best - 1] = tok_merges_get(m, id[best - 1], id[best]);
        if (best + 1 < n)
            pair[best] = tok_merges_get(m, id[best], id[best + 1]);
    }
    for (size_t i = 0; i < n; i++)
        sym[i].id = id[i];
    return n;
}

static bool sooner(const tok_cand *x, const tok_cand *y) {
    return x->rank != y->rank ? x->rank < y->rank : x->pos < y->pos;
}

static void sift_down(tok_cand *h, size_t n, size_t i) {
    tok_cand x = h[i];
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n)
            break;
        if (k + 1 < n && sooner(&h[k + 1], &h[k]))
            k++;
        if (!sooner(&h[k], &x))
            break;
        h[i] = h[k];
        i = k;
    }
    h[i] = x;
}

static sd_status push(tok_scratch *s, size_t *n, tok_cand c, sd_err *err) {
    if (*n >= s->heap_cap)
        SD_TRY(sd_grow((void **)&s->heap, &s->heap_cap, *n + 1, sizeof *s->heap, err));
    size_t i = (*n)++;
    while (i > 0 && sooner(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
    return SD_OK;
}

/* Heap of candidate pairs over a linked list of symbols. An entry is stale when either of its
 * symbols has changed since it was queued. */
static sd_status merge_long(tok_run *r, size_t *count, sd_err *err) {
    const tok_merges *m = &r->t->merges;
    tok_scratch *s = r->s;
    size_t n = *count, heap = 0;
    tok_sym *sym = s->sym;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = (int32_t)i - 1;
        sym[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        const tok_merge *p = tok_merges_get(m, sym[i].id, sym[i + 1].id);
        if (!p)
            continue;
        if (heap >= s->heap_cap)
            SD_TRY(sd_grow((void **)&s->heap, &s->heap_cap, heap + 1, sizeof *s->heap, err));
        s->heap[heap++] = (tok_cand){p->rank, (int32_t)i, (int32_t)i + 1, sym[i].id, sym[i + 1].id};
    }
    for (size_t i = heap / 2; i-- > 0;)
        sift_down(s->heap, heap, i);
    while (heap > 0) {
        if ((++r->polls & 0xffff) == 0)
            SD_TRY(sd_check_cancel(err));
        tok_cand c = s->heap[0];
        s->heap[0] = s->heap[--heap];
        if (heap > 1)
            sift_down(s->heap, heap, 0);
        tok_sym *a = &sym[c.pos];
        if (a->id != c.ida || a->next != c.b || sym[c.b].id != c.idb)
            continue;
        const tok_merge *p = tok_merges_get(m, c.ida, c.idb);
        a->id = p->id;
        sym[c.b].id = -1;
        a->next = sym[c.b].next;
        if (a->next >= 0) {
            sym[a->next].prev = c.pos;
            const tok_merge *q = tok_merges_get(m, a->id, sym[a->next].id);
            if (q)
                SD_TRY(push(s, &heap, (tok_cand){q->rank, c.pos, a->next, a->id, sym[a->next].id},
                            err));
        }
        if (a->prev >= 0) {
            const tok_merge *q = tok_merges_get(m, sym[a->prev].id, a->id);
            if (q)
                SD_TRY(push(s, &heap, (tok_cand){q->rank, a->prev, c.pos, sym[a->prev].id, a->id},
                            err));
        }
    }
    size_t k = 0;
    for (int32_t i = 0; i >= 0; i = sym[i].next)
        sym[k++].id = sym[i].id; /* k <= i */
    *count = k;
    return SD_OK;
}

sd_status sd_tok_bpe(tok_run *r, const char *text, size_t n, bool bytes, sd_err *err) {
    const sd_tokenizer *t = r->t;
    uint64_t hash = 0;
    sd_status st = SD_OK;
    bool cached = bytes == t->leaf_bytes; /* one key space a tokenizer */
    if (n == 0)
        return SD_OK;
    if (cached && sd_tok_cache_get(r, text, n, &hash, &st, err))
        return st;
    if ((++r->polls & 0xfff) == 0)
        SD_TRY(sd_check_cancel(err));
    size_t first = r->ids->n, lost = r->lost, count = 0;
    if (t->ignore_merges) {
        int32_t id;
        if (bytes) {
            tok_reset(&r->s->chr);
            if (n <= t->vocab.longest)
                sd_tok_map_bytes(text, n, &r->s->chr);
            SD_TRY(sd_buf_status(&r->s->chr, err));
            id = r->s->chr.n ? sd_tok_vocab_find(&t->vocab, r->s->chr.p, r->s->chr.n) : -1;
        } else {
            id = sd_tok_vocab_find(&t->vocab, text, n);
        }
        if (id >= 0) {
            SD_TRY(sd_tok_ids_put(r->ids, id, err));
            sd_tok_cache_put(r, text, n, hash, first);
            return SD_OK;
        }
    }
    SD_TRY(symbols(r, text, n, bytes, &count, err));
    if (count > SHORT)
        SD_TRY(merge_long(r, &count, err));
    else if (count > 1)
        count = merge_short(&t->merges, r->s->sym, count);
    if (r->ids->n + count > r->ids->cap)
        SD_TRY(
            sd_grow((void **)&r->ids->v, &r->ids->cap, r->ids->n + count, sizeof *r->ids->v, err));
    for (size_t i = 0; i < count; i++)
        r->ids->v[r->ids->n++] = r->s->sym[i].id;
    if (r->lost == lost) /* a piece that loses bytes must say so each time */
        sd_tok_cache_put(r, text, n, hash, first);
    return SD_OK;
}
