/* tokenizer.c: opening, the encode pipeline, added tokens, the public calls. */
#include <stdlib.h>
#include <string.h>

#include "io/container.h"
#include "io/json.h"
#include "io/tok.h"

void sd_ids_free(sd_ids *ids) {
    sd_free(ids->v);
    memset(ids, 0, sizeof *ids);
}

sd_status sd_tok_ids_put(sd_ids *ids, int32_t id, sd_err *err) {
    if (ids->n >= ids->cap)
        SD_TRY(sd_grow((void **)&ids->v, &ids->cap, ids->n + 1, sizeof *ids->v, err));
    ids->v[ids->n++] = id;
    return SD_OK;
}

/* ---- life
 * ------------------------------------------------------------------------------------------ */
sd_tokenizer *sd_tok_new(sd_err *err) {
    sd_tokenizer *t = sd_alloc(1, sizeof *t, err);
    if (!t)
        return NULL;
    t->refs = 1;
    t->unk = -1;
    for (int i = 0; i < TOK_ROLES; i++)
        t->role[i] = -1;
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = t->raw_trie.root[i] = t->norm_trie.root[i] = -1;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void destroy(sd_tokenizer *t) {
    sd_tok_vocab_free(&t->vocab);
    sd_free(t->merges.slot);
    sd_free(t->prefix);
    sd_free(t->suffix);
    for (size_t i = 0; i < t->n_norm; i++) {
        sd_tok_pattern_free(&t->norm[i].pat);
        sd_free(t->norm[i].content);
    }
    sd_free(t->norm);
    for (size_t i = 0; i < t->n_pre; i++) {
        sd_tok_pattern_free(&t->pre[i].pat);
        sd_free(t->pre[i].rep);
    }
    sd_free(t->pre);
    sd_free(t->cut);
    for (size_t i = 0; i < t->n_dec; i++) {
        sd_tok_pattern_free(&t->dec[i].pat);
        sd_free(t->dec[i].s);
    }
    sd_free(t->dec);
    sd_free(t->added);
    sd_free(t->raw_trie.node);
    sd_free(t->norm_trie.node);
    sd_free(t->added_of);
    sd_free(t->head);
    sd_free(t->tail);
    sd_tok_scratch_free(t->scratch);
    pthread_mutex_destroy(&t->lock);
    sd_free(t);
}

sd_tokenizer *sd_tokenizer_ref(sd_tokenizer *t) {
    __atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED);
    return t;
}

void sd_tokenizer_unref(sd_tokenizer *t) {
    if (t && __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL) == 0)
        destroy(t);
}

/* ---- added tokens ------------------------------------------------------------------------------
 */
static sd_status trie_add(tok_trie *t, tok_str s, int32_t token, sd_err *err) {
    int32_t *link = &t->root[(unsigned char)s.s[0]];
    for (uint32_t i = 0;; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (i > 0)
            while (*link >= 0 && t->node[*link].byte != c)
                link = &t->node[*link].next;
        if (*link < 0) {
            size_t old = (size_t)((char *)link - (char *)t->node);
            bool inside = i > 0; /* link points into the array that may move */
            SD_TRY(sd_grow((void **)&t->node, &t->cap, t->n + 1, sizeof *t->node, err));
            if (inside)
                link = (int32_t *)(void *)((char *)t->node + old);
            t->node[t->n] = (tok_node){-1, -1, -1, c};
            *link = (int32_t)t->n++;
        }
        tok_node *node = &t->node[*link];
        if (i + 1 == s.n) {
            if (node->token < 0)
                node->token = token;
            return SD_OK;
        }
        link = &node->child;
    }
}

/* Leftmost-longest match at or after `from`; -1 when none. */
static int32_t trie_find(const tok_trie *t, const char *s, size_t n, size_t from, size_t *ms,
                         size_t *me) {
    if (t->n == 0)
        return -1;
    for (; from < n; from++) {
        int32_t k = t->root[(unsigned char)s[from]], best = -1;
        for (size_t i = from + 1; k >= 0; i++) {
            if (t->node[k].token >= 0) {
                best = t->node[k].token;
                *ms = from;
                *me = i;
            }
            if (i >= n)
                break;
            int32_t c = t->node[k].child;
            while (c >= 0 && t->node[c].byte != (unsigned char)s[i])
                c = t->node[c].next;
            k = c;
        }
        if (best >= 0)
            return best;
    }
    return -1;
}

static size_t char_before(const char *s, size_t i, uint32_t *cp) {
    size_t k = i - 1;
    while (k > 0 && ((unsigned char)s[k] & 0xc0) == 0x80)
        k--;
    sd_utf8_next(s + k, i - k, cp);
    return k;
}

typedef struct cut { /* walks a text's added tokens and the stretches between them */
    const tok_trie *trie;
    const char *s;
    size_t n, at; /* at: everything before is delivered */
    size_t search;
    bool as_text;
    int32_t token; /* found, to be delivered after the stretch before it */
    size_t ms, me;
} cut;

/* Next stretch [*a, *b); *token is the added token it is, or -1 for text. False at the end. */
static bool cut_next(const sd_tokenizer *t, cut *c, size_t *a, size_t *b, int32_t *token) {
    if (c->token >= 0) {
        *a = c->ms;
        *b = c->me;
        *token = c->token;
        c->at = c->me;
        c->token = -1;
        return true;
    }
    size_t ms = 0, me = 0;
    int32_t k;
    while ((k = trie_find(c->trie, c->s, c->n, c->search, &ms, &me)) >= 0) {
        const tok_added *d = &t->added[k];
        uint32_t cp = 0;
        c->search = me;
        if (c->as_text && d->special)
            continue;
        if (d->single_word) {
            if (ms > 0 && (char_before(c->s, ms, &cp), sd_tok_is_word(cp)))
                continue;
            if (me < c->n && (sd_utf8_next(c->s + me, c->n - me, &cp), sd_tok_is_word(cp)))
                continue;
        }
        while (d->lstrip && ms > c->at) {
            size_t p = char_before(c->s, ms, &cp);
            if (!sd_tok_is_space(cp))
                break;
            ms = p;
        }
        while (d->rstrip && me < c->n) {
            size_t len = sd_utf8_next(c->s + me, c->n - me, &cp);
            if (len == 0 || !sd_tok_is_space(cp))
                break;
            me += len;
        }
        *a = c->at; /* ms < at: rstrip took this token's white space; it counts all the same */
        *b = ms;
        *token = -1;
        if (ms > c->at) {
            c->token = k;
            c->ms = ms;
            c->me = me;
            return true;
        }
        *a = ms;
        *b = me;
        *token = k;
        c->at = me;
        return true;
    }
    c->search = c->n;
    *a = c->at;
    *b = c->n;
    *token = -1;
    c->at = c->n;
    return *a < *b;
}

/* ---- encode
 * ------------------------------------------------------------------------------------------- */
/* A stretch of valid UTF-8 without added tokens that match raw text. */
static sd_status encode_text(tok_run *r, const char *s, size_t n, bool as_text, bool first,
                             bool after_raw, sd_err *err) {
    const sd_tokenizer *t = r->t;
    if (t->n_norm == 0 && t->norm_trie.n == 0)
        return sd_tok_pre_run(r, 0, s, n, first, err);
    sd_buf b = {0};
    sd_status st = SD_OK;
    if (t->n_norm > 0) {
        SD_GO(st, done, sd_tok_normalize(t, r->s, s, n, after_raw, &b, &r->budget, err));
        s = b.p ? b.p : "";
        n = b.n;
    }
    cut c = {.trie = &t->norm_trie, .s = s, .n = n, .as_text = as_text, .token = -1};
    size_t from, to;
    int32_t token;
    while (cut_next(t, &c, &from, &to, &token)) {
        if (token >= 0)
            SD_GO(st, done, sd_tok_ids_put(r->ids, t->added[token].id, err));
        else
            SD_GO(st, done, sd_tok_pre_run(r, 0, s + from, to - from, first && from == 0, err));
    }
done:
    sd_buf_free(&b);
    return st;
}

static sd_status encode_valid(tok_run *r, const char *s, size_t n, bool as_text, bool first,
                              bool after_raw, sd_err *err) {
    const sd_tokenizer *t = r->t;
    cut c = {.trie = &t->raw_trie, .s = s, .n = n, .as_text = as_text, .token = -1};
    size_t from, to;
    int32_t token;
    while (cut_next(t, &c, &from, &to, &token)) {
        if (token >= 0)
            SD_TRY(sd_tok_ids_put(r->ids, t->added[token].id, err));
        else
            SD_TRY(encode_text(r, s + from, to - from, as_text, first && from == 0,
                               after_raw && from == 0, err));
    }
    return SD_OK;
}

/* Length of the valid UTF-8 at s. */
static size_t valid_run(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        size_t k = sd_utf8_next(s + i, n - i, NULL);
        if (k == 0)
            break;
        i += k;
    }
    return i;
}

/* Bytes that are no UTF-8 text. */
static sd_status encode_raw(tok_run *r, const char *s, size_t n, sd_err *err) {
    const sd_tokenizer *t = r->t;
    if (t->byte_level)
        return sd_tok_bpe(r, s, n, true, err);
    for (size_t i = 0; i < n; i++) { /* byte fallback */
        int32_t id = t->byte_id[(unsigned char)s[i]];
        if (id < 0) {
            tok_lose(r, s + i, 1);
            id = t->unk;
        }
        if (id >= 0)
            SD_TRY(sd_tok_ids_put(r->ids, id, err));
    }
    return SD_OK;
}

static sd_status encode_bytes(tok_run *r, const char *s, size_t n, bool as_text, sd_err *err) {
    const sd_tokenizer *t = r->t;
    size_t k = valid_run(s, n);
    if (k == n)
        return encode_valid(r, s, n, as_text, true, false, err);
    if (!t->byte_level && !t->byte_fallback) {
        /* No way to write a byte: U+FFFD stands for each, and they are counted as lost. */
        sd_buf b = {0};
        for (size_t i = 0; i < n;) {
            k = valid_run(s + i, n - i);
            sd_buf_put(&b, s + i, k);
            i += k;
            if (i < n) {
                tok_lose(r, s + i, 1);
                sd_buf_puts(&b, "\xef\xbf\xbd");
                i++;
            }
        }
        sd_status st = sd_buf_status(&b, err);
        if (st == SD_OK)
            st = encode_valid(r, b.p, b.n, as_text, true, false, err);
        sd_buf_free(&b);
        return st;
    }
    for (size_t i = 0; i < n;) {
        if (k > 0)
            SD_TRY(encode_valid(r, s + i, k, as_text, i == 0, i > 0, err));
        i += k;
        size_t bad = i;
        while (bad < n && sd_utf8_next(s + bad, n - bad, NULL) == 0)
            bad++;
        if (bad > i)
            SD_TRY(encode_raw(r, s + i, bad - i, err));
        i = bad;
        k = valid_run(s + i, n - i);
    }
    return SD_OK;
}

sd_status sd_tokenizer_encode(const sd_tokenizer *t, const char *text, size_t n, unsigned flags,
                              sd_ids *ids, size_t *lost, int *first_lost, sd_err *err) {
    sd_tokenizer *own = (sd_tokenizer *)t; /* only the scratch, under its lock */
    tok_run r = {.t = t, .ids = ids, .first_lost = -1, .budget = sd_tok_budget_of(n)};
    size_t before = ids->n;
    sd_status st = SD_OK;
    bool locked = pthread_mutex_trylock(&own->lock) == 0;
    if (locked) {
        if (!own->scratch)
            own->scratch = sd_tok_scratch_new(err);
        r.s = own->scratch;
    } else { /* another thread is encoding */
        r.s = sd_tok_scratch_new(err);
    }
    if (!r.s) {
        st = SD_ENOMEM;
        goto done;
    }
    if (flags & SD_TOK_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_head; i++)
            SD_GO(st, done, sd_tok_ids_put(ids, t->head[i], err));
    SD_GO(st, done, sd_check_cancel(err));
    if (n)
        SD_GO(st, done, encode_bytes(&r, text, n, (flags & SD_TOK_SPECIAL_AS_TEXT) != 0, err));
    if (flags & SD_TOK_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_tail; i++)
            SD_GO(st, done, sd_tok_ids_put(ids, t->tail[i], err));
done:
    if (locked)
        pthread_mutex_unlock(&own->lock);
    else
        sd_tok_scratch_free(r.s);
    if (st != SD_OK)
        ids->n = before;
    if (lost)
        *lost = r.lost;
    if (first_lost)
        *first_lost = r.first_lost;
    return st;
}

/* ---- finishing a loaded tokenizer ---------------------------------------------------------------
 */
/* SentencePiece-type text is one long piece. Where no merge joins another character with a
 * following U+2581, cutting in front of it changes no id and lets whole words be cached. */
static sd_status find_cut(sd_tokenizer *t, sd_err *err) {
    static const char meta[] = "\xe2\x96\x81";
    if (t->model != TOK_BPE || t->byte_level || t->prefix || t->suffix || t->ignore_merges ||
        sd_tok_vocab_find(&t->vocab, meta, 3) < 0)
        return SD_OK;
    for (size_t i = 0; i <= t->merges.mask; i++) {
        const tok_merge *m = &t->merges.slot[i];
        if (m->id < 0)
            continue;
        const tok_str *a = &t->vocab.at[m->a], *b = &t->vocab.at[m->b];
        if (b->n >= 3 && memcmp(b->s, meta, 3) == 0 &&
            !(a->n >= 3 && memcmp(a->s + a->n - 3, meta, 3) == 0))
            return SD_OK;
    }
    t->cut = sd_strdup(meta, err);
    t->ncut = 3;
    return t->cut ? SD_OK : SD_ENOMEM;
}

static void default_roles(sd_tokenizer *t) {
    static const struct {
        int role;
        const char *spelling;
    } row[] = {{0, "<s>"},    {0, "<|begin_of_text|>"},
               {0, "<bos>"},  {0, "<|endoftext|>"},
               {1, "</s>"},   {1, "<|end_of_text|>"},
               {1, "<eos>"},  {1, "<|endoftext|>"},
               {2, "<unk>"},  {2, "[UNK]"},
               {3, "[CLS]"},  {4, "[SEP]"},
               {5, "[MASK]"}, {5, "<mask>"},
               {6, "[PAD]"},  {6, "<pad>"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (t->role[row[i].role] >= 0)
            continue;
        int32_t id = sd_tok_vocab_find(&t->vocab, row[i].spelling, strlen(row[i].spelling));
        if (id >= 0 && t->added_of[id] >= 0 && t->added[t->added_of[id]].special)
            t->role[row[i].role] = id;
    }
    if (t->role[2] < 0)
        t->role[2] = t->unk;
}

/* Ids of the single bytes: ByteLevel's characters, or <0xNN>. */
static void find_bytes(sd_tokenizer *t) {
    static const char digit[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; b++) {
        char s[8] = "<0x00>";
        size_t n = 6;
        if (t->byte_level)
            n = sd_utf8_put(sd_tok_byte_char((unsigned char)b), s);
        else if (t->byte_fallback) {
            s[3] = digit[b >> 4];
            s[4] = digit[b & 15];
        } else
            continue;
        t->byte_id[b] = sd_tok_vocab_find(&t->vocab, s, n);
    }
}

/* Added tokens into the tries that find them: their UTF-8, normalised where they say so. */
static sd_status index_added(sd_tokenizer *t, tok_scratch *sc, sd_err *err) {
    sd_buf b = {0};
    sd_status st = SD_OK;
    size_t given = 0, made = 0;
    for (size_t i = 0; i < t->n_added; i++) {
        tok_added *a = &t->added[i];
        a->matched = a->text;
        given += a->text.n;
        for (uint32_t k = 0; k < a->text.n;) { /* text is matched as UTF-8 */
            size_t len = sd_utf8_next(a->text.s + k, a->text.n - k, NULL);
            if (len == 0) {
                st = sd_fail(err, SD_EFORMAT, "added token %d is not UTF-8", (int)a->id);
                goto done;
            }
            k += (uint32_t)len;
        }
        if (a->normalized && t->n_norm) {
            sd_buf_clear(&b);
            tok_budget room = sd_tok_budget_of(given);
            room.made = made;
            SD_GO(st, done, sd_tok_normalize(t, sc, a->text.s, a->text.n, false, &b, &room, err));
            made = room.made;
            if (b.n == 0)
                continue;
            char *c = sd_arena_strndup(t->vocab.arena, b.p, b.n, err);
            if (!c) {
                st = SD_ENOMEM;
                goto done;
            }
            a->matched = (tok_str){c, (uint32_t)b.n};
        }
        SD_GO(st, done,
              trie_add(a->normalized ? &t->norm_trie : &t->raw_trie, a->matched, (int32_t)i, err));
    }
done:
    if (st != SD_OK && st != SD_ECANCEL)
        sd_err_context(err, "added tokens");
    sd_buf_free(&b);
    return st;
}

static sd_status check_template(const sd_tokenizer *t, sd_err *err) {
    for (size_t i = 0; i < t->n_head + t->n_tail; i++) {
        int32_t id = i < t->n_head ? t->head[i] : t->tail[i - t->n_head];
        if (id >= t->vocab.size || !t->vocab.at[id].s)
            return sd_fail(err, SD_EFORMAT, "post_processor: id %d is not in the vocabulary",
                           (int)id);
    }
    return SD_OK;
}

sd_status sd_tok_finish(sd_tokenizer *t, sd_err *err) {
    t->added_of = sd_alloc_raw((size_t)t->vocab.size, sizeof *t->added_of, err);
    if (!t->added_of)
        return SD_ENOMEM;
    for (int32_t i = 0; i < t->vocab.size; i++)
        t->added_of[i] = -1;
    for (size_t i = 0; i < t->n_added; i++)
        t->added_of[t->added[i].id] = (int32_t)i;
    find_bytes(t);
    if (t->byte_level && t->model != TOK_BPE)
        return sd_fail(err, SD_EFORMAT, "ByteLevel with a model other than BPE is not supported");
    if (t->byte_level && !t->prefix && !t->suffix && t->n_pre &&
        t->pre[t->n_pre - 1].kind == TOK_PRE_MAP) {
        t->n_pre--; /* holds no memory of its own */
        t->leaf_bytes = true;
    }
    SD_TRY(check_template(t, err));
    if (t->model == TOK_BPE)
        SD_TRY(find_cut(t, err));
    tok_scratch *sc = sd_tok_scratch_new(err);
    if (!sc)
        return SD_ENOMEM;
    sd_status st = index_added(t, sc, err);
    sd_tok_scratch_free(sc);
    default_roles(t);
    t->kind = t->model == TOK_WORDPIECE ? "WordPiece"
              : t->byte_level           ? "byte-level BPE"
              : t->byte_fallback        ? "BPE with byte fallback"
                                        : "BPE";
    return st;
}

/* ---- opening
 * -------------------------------------------------------------------------------------------- */
enum { MAX_FILE = 512 << 20 };

static sd_status conclude(sd_tokenizer *t, sd_status st, const char *what, sd_tokenizer **out,
                          sd_err *err) {
    if (st != SD_OK) {
        if (st != SD_ECANCEL)
            sd_err_context(err, "%s", what);
        sd_tokenizer_unref(t);
        return st;
    }
    *out = t;
    return SD_OK;
}

sd_status sd_tokenizer_from_json(const json_t *j, const char *what, sd_tokenizer **out,
                                 sd_err *err) {
    sd_tokenizer *t = sd_tok_new(err);
    return t ? conclude(t, sd_tok_load_json(t, j, err), what, out, err) : SD_ENOMEM;
}

sd_status sd_tokenizer_from_gguf(const json_t *meta, const char *what, sd_tokenizer **out,
                                 sd_err *err) {
    sd_tokenizer *t = sd_tok_new(err);
    return t ? conclude(t, sd_tok_load_gguf(t, meta, err), what, out, err) : SD_ENOMEM;
}

sd_status sd_tokenizer_from_files(const json_t *vocab, const char *text, size_t n,
                                  const json_t *config, const json_t *added, const char *what,
                                  sd_tokenizer **out, sd_err *err) {
    sd_tokenizer *t = sd_tok_new(err);
    if (!t)
        return SD_ENOMEM;
    sd_status st = vocab ? sd_tok_load_bpe_files(t, vocab, text, n, config, added, err)
                         : sd_tok_load_vocab_txt(t, text, n, config, err);
    return conclude(t, st, what, out, err);
}

/* `name` beside `path` (or inside, when path is a folder). */
static char *beside(const char *path, bool dir, const char *name, sd_err *err) {
    if (dir)
        return sd_path_join(path, name, err);
    size_t n = (size_t)(sd_path_base(path) - path);
    sd_buf b = {0};
    sd_buf_put(&b, path, n);
    sd_buf_puts(&b, name);
    if (sd_buf_status(&b, err) != SD_OK) {
        sd_buf_free(&b);
        return NULL;
    }
    return b.p;
}

/* The first of two names that exists beside path, or NULL without an error. */
static sd_status either(const char *path, bool dir, const char *x, const char *y, char **out,
                        sd_err *err) {
    const char *name[] = {x, y};
    *out = NULL;
    for (int i = 0; i < 2; i++) {
        char *p = beside(path, dir, name[i], err);
        if (!p)
            return SD_ENOMEM;
        if (sd_path_exists(p) && !sd_path_is_dir(p)) {
            *out = p;
            return SD_OK;
        }
        sd_free(p);
    }
    return SD_OK;
}

static sd_status optional_json(const char *path, bool dir, const char *name, json_t **out,
                               sd_err *err) {
    char *p;
    *out = NULL;
    SD_TRY(either(path, dir, name, name, &p, err));
    if (!p)
        return SD_OK;
    sd_status st = sd_json_load(p, MAX_FILE, out, err);
    sd_free(p);
    if (st == SD_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return sd_fail(err, SD_EFORMAT, "%s: expected an object", name);
    }
    return st;
}

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static sd_status open_gguf(const char *path, const sd_run *run, sd_tokenizer **out, sd_err *err) {
    sd_container *c = NULL;
    SD_TRY(sd_container_open(path, run, &c, err));
    sd_status st = sd_tokenizer_from_gguf(sd_container_meta(c), path, out, err);
    sd_container_unref(c);
    return st;
}

/* What surrounds a tokenizer file: its configurations, each NULL when absent. */
typedef struct folder {
    const char *path;
    bool dir;
    json_t *config, *special, *added;
} folder;

/* The file of a folder that says most. */
static sd_status choose_file(const folder *f, char **file, sd_err *err) {
    static const char *const name[][2] = {{"tokenizer.json", "tokenizer.json"},
                                          {"vocab.json", "encoder.json"},
                                          {"vocab.txt", "vocab.txt"}};
    *file = NULL;
    for (size_t i = 0; i < sizeof name / sizeof *name && !*file; i++)
        SD_TRY(either(f->path, true, name[i][0], name[i][1], file, err));
    if (*file)
        return SD_OK;
    char *model = NULL;
    SD_TRY(either(f->path, true, "tokenizer.model", "spiece.model", &model, err));
    sd_status st = sd_fail(err, SD_EFILE,
                           model ? "%s: a SentencePiece model file is not read; "
                                   "a tokenizer.json beside it would be"
                                 : "%s: no tokenizer.json, vocab.json + merges.txt or vocab.txt",
                           f->path);
    sd_free(model);
    return st;
}

/* merges.txt or vocab.bpe: the vocabulary beside it is the file to open. */
static sd_status vocab_of_merges(char **file, sd_err *err) {
    const char *base = sd_path_base(*file);
    if (strcmp(base, "merges.txt") != 0 && strcmp(base, "vocab.bpe") != 0)
        return SD_OK;
    char *vocab = NULL;
    SD_TRY(either(*file, false, "vocab.json", "encoder.json", &vocab, err));
    if (!vocab)
        return sd_fail(err, SD_EFILE, "%s: no vocab.json beside it", *file);
    sd_free(*file);
    *file = vocab;
    return SD_OK;
}

/* A tokenizer.json, or a vocab.json with its merges beside it. */
static sd_status open_json(folder *f, const char *file, sd_tokenizer **out, sd_err *err) {
    json_t *j = NULL;
    char *merges = NULL;
    sd_buf text = {0};
    sd_status st = SD_OK;
    SD_TRY(sd_json_load(file, MAX_FILE, &j, err));
    if (json_is_object(json_object_get(j, "model"))) {
        SD_GO(st, done, sd_tokenizer_from_json(j, file, out, err));
        if (f->special)
            sd_tok_roles_json(*out, f->special);
        if (f->config)
            sd_tok_roles_json(*out, f->config);
        goto done;
    }
    SD_GO(st, done, optional_json(f->path, f->dir, "added_tokens.json", &f->added, err));
    SD_GO(st, done, either(file, false, "merges.txt", "vocab.bpe", &merges, err));
    if (!merges) {
        st = sd_fail(err, SD_EFILE, "%s: no tokenizer.json, and no merges.txt beside it", file);
        goto done;
    }
    SD_GO(st, done, sd_read_file(merges, MAX_FILE, &text, err));
    SD_GO(st, done,
          sd_tokenizer_from_files(j, text.p ? text.p : "", text.n,
                                  f->config ? f->config : f->special, f->added, file, out, err));
    if (f->special)
        sd_tok_roles_json(*out, f->special);
done:
    json_decref(j);
    sd_buf_free(&text);
    sd_free(merges);
    return st;
}

static sd_status open_txt(const folder *f, const char *file, sd_tokenizer **out, sd_err *err) {
    sd_buf text = {0};
    SD_TRY(sd_read_file(file, MAX_FILE, &text, err));
    sd_status st = sd_tokenizer_from_files(NULL, text.p ? text.p : "", text.n, f->config, NULL,
                                           file, out, err);
    sd_buf_free(&text);
    return st;
}

sd_status sd_tokenizer_open(const char *path, const sd_run *run, sd_tokenizer **out, sd_err *err) {
    folder f = {.path = path, .dir = sd_path_is_dir(path)};
    char *file = NULL;
    sd_status st = SD_OK;
    *out = NULL;
    if (!f.dir && ends(path, ".gguf"))
        return open_gguf(path, run, out, err);
    SD_GO(st, done, optional_json(path, f.dir, "tokenizer_config.json", &f.config, err));
    SD_GO(st, done, optional_json(path, f.dir, "special_tokens_map.json", &f.special, err));
    if (f.dir) {
        SD_GO(st, done, choose_file(&f, &file, err));
    } else if (!(file = sd_strdup(path, err))) {
        st = SD_ENOMEM;
        goto done;
    }
    SD_GO(st, done, vocab_of_merges(&file, err));
    if (ends(file, ".json"))
        st = open_json(&f, file, out, err);
    else if (ends(file, ".txt"))
        st = open_txt(&f, file, out, err);
    else
        st = sd_fail(err, SD_EFORMAT,
                     "%s: not a tokenizer (known: tokenizer.json, vocab.json + merges.txt, "
                     "vocab.txt, *.gguf)",
                     file);
done:
    json_decref(f.config);
    json_decref(f.special);
    json_decref(f.added);
    sd_free(file);
    return st;
}

/* ---- looking
 * ------------------------------------------------------------------------------------------- */
int32_t sd_tokenizer_vocab_size(const sd_tokenizer *t) {
    return t->vocab.size;
}

const char *sd_tokenizer_kind(const sd_tokenizer *t) {
    return t->kind;
}

const char *sd_tokenizer_token(const sd_tokenizer *t, int32_t id, size_t *n) {
    if (id < 0 || id >= t->vocab.size || !t->vocab.at[id].s)
        return NULL;
    if (n)
        *n = t->vocab.at[id].n;
    return t->vocab.at[id].s;
}

bool sd_tokenizer_starts_twice(const sd_tokenizer *t, const int32_t *ids, size_t n) {
    return t->n_head && n > t->n_head && ids[t->n_head] == t->head[t->n_head - 1];
}

int32_t sd_tokenizer_find(const sd_tokenizer *t, const char *token) {
    return sd_tok_vocab_find(&t->vocab, token, strlen(token));
}

int32_t sd_tokenizer_special(const sd_tokenizer *t, const char *role) {
    static const char *const name[TOK_ROLES] = {"bos", "eos", "unk", "cls", "sep", "mask", "pad"};
    for (int i = 0; i < TOK_ROLES; i++)
        if (strcmp(role, name[i]) == 0)
            return t->role[i];
    return -1;
}
