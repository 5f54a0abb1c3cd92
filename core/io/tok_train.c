/* tok_train.c: learns a byte-level BPE (Sennrich et al. 2016) from text files.
 *
 * Text is split as GPT-2 does and counted as words; then the most frequent pair of neighbours is
 * joined again and again. A pair keeps its exact count and the words it was seen in, so a step
 * costs what it changes; the heap is lazy: an entry whose count is out of date is put back. */
#include <string.h>

#include "base/hash.h"
#include "io/tok.h"

enum { CHUNK = 8 << 20, MAX_VOCAB = 1 << 20 };

typedef struct word {
    size_t at; /* into bytes, later into syms */
    uint32_t n;
    int64_t count;
} word;

typedef struct pair {
    int32_t a, b;
    int64_t count;
    uint32_t *in; /* words, ascending, may name words that no longer hold the pair */
    size_t n, cap;
    uint32_t raised; /* step in which the count last rose */
} pair;

typedef struct entry {
    int64_t count;
    uint32_t pair;
} entry;

typedef struct trainer {
    tok_pattern split;
    tok_scratch *s;
    const char *const *specials;
    size_t n_specials;
    sd_buf bytes;
    word *words;
    size_t n_words, cap_words;
    uint32_t *slot; /* words: index + 1 */
    size_t mask;
    int32_t *syms;
    pair *pairs;
    size_t n_pairs, cap_pairs;
    uint32_t *pslot;
    size_t pmask;
    entry *heap;
    size_t n_heap, cap_heap;
    uint32_t *raised; /* pairs whose count rose in this step */
    size_t n_raised, cap_raised;
    uint32_t step;
    const sd_run *run;
    sd_err *err;
} trainer;

/* ---- counting words ----------------------------------------------------------------------------
 */
static sd_status count_word(trainer *t, const char *s, size_t n) {
    if (n == 0)
        return SD_OK;
    if (n > UINT32_MAX)
        return sd_fail(t->err, SD_EINVAL, "a word longer than 4 GiB");
    uint64_t h = sd_hash64(s, n, 7);
    if (!t->slot || (t->n_words + 1) * 2 > t->mask + 1) {
        size_t mask = t->slot ? t->mask * 2 + 1 : (1u << 16) - 1;
        uint32_t *fresh = sd_alloc(mask + 1, sizeof *fresh, t->err);
        if (!fresh)
            return SD_ENOMEM;
        for (size_t i = 0; i < t->n_words; i++) {
            const word *w = &t->words[i];
            size_t k = (size_t)sd_hash64(t->bytes.p + w->at, w->n, 7) & mask;
            while (fresh[k])
                k = (k + 1) & mask;
            fresh[k] = (uint32_t)i + 1;
        }
        sd_free(t->slot);
        t->slot = fresh;
        t->mask = mask;
    }
    size_t i = (size_t)h & t->mask;
    for (; t->slot[i]; i = (i + 1) & t->mask) {
        word *w = &t->words[t->slot[i] - 1];
        if (w->n == n && memcmp(t->bytes.p + w->at, s, n) == 0) {
            w->count++;
            return SD_OK;
        }
    }
    if (t->n_words >= UINT32_MAX - 1)
        return sd_fail(t->err, SD_EINVAL, "more than 2^32 different words");
    SD_TRY(sd_grow((void **)&t->words, &t->cap_words, t->n_words + 1, sizeof *t->words, t->err));
    t->words[t->n_words++] = (word){t->bytes.n, (uint32_t)n, 1};
    t->slot[i] = (uint32_t)t->n_words;
    sd_buf_put(&t->bytes, s, n);
    return sd_buf_status(&t->bytes, t->err);
}

static sd_status count_valid(trainer *t, const char *s, size_t n) {
    for (size_t at = 0; at < n;) {
        bool found;
        size_t ms = n, me = n;
        if ((++t->step & 0x3fff) == 0)
            SD_TRY(sd_check_cancel(t->err));
        SD_TRY(sd_tok_find(&t->split, t->s, s, n, at, &found, &ms, &me, t->err));
        if (!found)
            ms = me = n;
        SD_TRY(count_word(t, s + at, ms - at));
        SD_TRY(count_word(t, s + ms, me - ms));
        at = me;
    }
    return SD_OK;
}

/* Text without specials: valid runs are split, other bytes are words of their own. */
static sd_status count_text(trainer *t, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t e = i, k;
        while (e < n && (k = sd_utf8_next(s + e, n - e, NULL)) > 0)
            e += k;
        SD_TRY(count_valid(t, s + i, e - i));
        i = e;
        while (e < n && sd_utf8_next(s + e, n - e, NULL) == 0)
            e++;
        SD_TRY(count_word(t, s + i, e - i));
        i = e;
    }
    return SD_OK;
}

static sd_status count_chunk(trainer *t, const char *s, size_t n) {
    size_t from = 0;
    for (size_t i = 0; i < n && t->n_specials; i++) {
        size_t best = 0;
        for (size_t k = 0; k < t->n_specials; k++) {
            size_t len = strlen(t->specials[k]);
            if (s[i] == t->specials[k][0] && len > best && len <= n - i &&
                memcmp(s + i, t->specials[k], len) == 0)
                best = len;
        }
        if (!best)
            continue;
        SD_TRY(count_text(t, s + from, i - from));
        from = i + best;
        i = from - 1;
    }
    return count_text(t, s + from, n - from);
}

/* Where a chunk may end without changing any word: before a newline that follows a character that
 * is no white space. Falls back to a character's start. */
static size_t chunk_end(const char *s, size_t n) {
    for (size_t i = n; i-- > 1;)
        if (s[i] == '\n' && (unsigned char)s[i - 1] > ' ' && (unsigned char)s[i - 1] < 0x80)
            return i;
    size_t i = n;
    while (i > 1 && n - i < 4 && ((unsigned char)s[i - 1] & 0xc0) == 0x80)
        i--;
    return i > 1 && (unsigned char)s[i - 1] >= 0xc0 ? i - 1 : n;
}

static sd_status count_file(trainer *t, const char *path, double before, double total) {
    sd_file *f = NULL;
    SD_TRY(sd_file_open(path, &f, t->err));
    uint64_t size = sd_file_size(f), at = 0;
    size_t have = 0, cap = CHUNK;
    char *buf = sd_alloc_raw(cap, 1, t->err);
    sd_status st = buf ? SD_OK : SD_ENOMEM;
    while (st == SD_OK && (at < size || have > 0)) {
        size_t want = cap - have;
        if (want > size - at)
            want = (size_t)(size - at);
        SD_GO(st, done, sd_file_pread(f, at, buf + have, want, t->err));
        at += want;
        have += want;
        size_t end = at < size ? chunk_end(buf, have) : have;
        SD_GO(st, done, count_chunk(t, buf, end));
        memmove(buf, buf + end, have - end);
        have -= end;
        sd_run_progress(t->run, "counting words", before + (double)at, total);
    }
done:
    sd_free(buf);
    sd_file_close(f);
    return st;
}

/* ---- pairs
 * ----------------------------------------------------------------------------------------- */
static pair *find_pair(trainer *t, int32_t a, int32_t b) {
    uint64_t h = tok_mix((uint64_t)(uint32_t)a << 32 | (uint32_t)b);
    if (!t->pslot || (t->n_pairs + 1) * 2 > t->pmask + 1) {
        size_t mask = t->pslot ? t->pmask * 2 + 1 : (1u << 16) - 1;
        uint32_t *fresh = sd_alloc(mask + 1, sizeof *fresh, t->err);
        if (!fresh)
            return NULL;
        for (size_t i = 0; i < t->n_pairs; i++) {
            const pair *p = &t->pairs[i];
            size_t k = (size_t)tok_mix((uint64_t)(uint32_t)p->a << 32 | (uint32_t)p->b) & mask;
            while (fresh[k])
                k = (k + 1) & mask;
            fresh[k] = (uint32_t)i + 1;
        }
        sd_free(t->pslot);
        t->pslot = fresh;
        t->pmask = mask;
    }
    size_t i = (size_t)h & t->pmask;
    for (; t->pslot[i]; i = (i + 1) & t->pmask) {
        pair *p = &t->pairs[t->pslot[i] - 1];
        if (p->a == a && p->b == b)
            return p;
    }
    if (sd_grow((void **)&t->pairs, &t->cap_pairs, t->n_pairs + 1, sizeof *t->pairs, t->err) !=
        SD_OK)
        return NULL;
    pair *p = &t->pairs[t->n_pairs++];
    *p = (pair){.a = a, .b = b, .raised = UINT32_MAX};
    t->pslot[i] = (uint32_t)t->n_pairs;
    return p;
}

static sd_status raise_pair(trainer *t, int32_t a, int32_t b, uint32_t w, int64_t count) {
    pair *p = find_pair(t, a, b);
    if (!p)
        return SD_ENOMEM;
    p->count += count;
    if (p->n == 0 || p->in[p->n - 1] != w) {
        SD_TRY(sd_grow((void **)&p->in, &p->cap, p->n + 1, sizeof *p->in, t->err));
        p->in[p->n++] = w;
    }
    if (p->raised != t->step) {
        p->raised = t->step;
        SD_TRY(sd_grow((void **)&t->raised, &t->cap_raised, t->n_raised + 1, sizeof *t->raised,
                       t->err));
        t->raised[t->n_raised++] = (uint32_t)(p - t->pairs);
    }
    return SD_OK;
}

/* Greater count first, then the smaller pair of ids. */
static bool above(const trainer *t, const entry *x, const entry *y) {
    if (x->count != y->count)
        return x->count > y->count;
    const pair *p = &t->pairs[x->pair], *q = &t->pairs[y->pair];
    return p->a != q->a ? p->a < q->a : p->b < q->b;
}

static sd_status push(trainer *t, entry e) {
    SD_TRY(sd_grow((void **)&t->heap, &t->cap_heap, t->n_heap + 1, sizeof *t->heap, t->err));
    size_t i = t->n_heap++;
    while (i > 0 && above(t, &e, &t->heap[(i - 1) / 2])) {
        t->heap[i] = t->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    t->heap[i] = e;
    return SD_OK;
}

static entry pop(trainer *t) {
    entry top = t->heap[0], x = t->heap[--t->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= t->n_heap)
            break;
        if (k + 1 < t->n_heap && above(t, &t->heap[k + 1], &t->heap[k]))
            k++;
        if (!above(t, &t->heap[k], &x))
            break;
        t->heap[i] = t->heap[k];
        i = k;
    }
    if (t->n_heap)
        t->heap[i] = x;
    return top;
}

static sd_status push_raised(trainer *t) {
    for (size_t i = 0; i < t->n_raised; i++) {
        const pair *p = &t->pairs[t->raised[i]];
        if (p->count > 0)
            SD_TRY(push(t, (entry){p->count, t->raised[i]}));
    }
    t->n_raised = 0;
    return SD_OK;
}

static sd_status merge_in_word(trainer *t, uint32_t wi, int32_t a, int32_t b, int32_t id) {
    word *w = &t->words[wi];
    int32_t *s = t->syms + w->at;
    uint32_t out = 0;
    for (uint32_t i = 0; i < w->n;) {
        if (i + 1 >= w->n || s[i] != a || s[i + 1] != b) {
            s[out++] = s[i++];
            continue;
        }
        pair *p = find_pair(t, a, b);
        if (!p)
            return SD_ENOMEM;
        p->count -= w->count;
        if (out > 0) {
            if (!(p = find_pair(t, s[out - 1], a)))
                return SD_ENOMEM;
            p->count -= w->count;
            SD_TRY(raise_pair(t, s[out - 1], id, wi, w->count));
        }
        if (i + 2 < w->n) {
            if (!(p = find_pair(t, b, s[i + 2])))
                return SD_ENOMEM;
            p->count -= w->count;
            SD_TRY(raise_pair(t, id, s[i + 2], wi, w->count));
        }
        s[out++] = id;
        i += 2;
    }
    w->n = out;
    return SD_OK;
}

static sd_status first_pairs(trainer *t) {
    size_t n = t->bytes.n;
    t->syms = sd_alloc_raw(n, sizeof *t->syms, t->err);
    if (!t->syms)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        t->syms[i] = (unsigned char)t->bytes.p[i];
    t->step = 0;
    for (size_t i = 0; i < t->n_words; i++) {
        const word *w = &t->words[i];
        if ((i & 0xffff) == 0)
            SD_TRY(sd_check_cancel(t->err));
        for (uint32_t k = 0; k + 1 < w->n; k++)
            SD_TRY(
                raise_pair(t, t->syms[w->at + k], t->syms[w->at + k + 1], (uint32_t)i, w->count));
    }
    sd_buf_free(&t->bytes);
    sd_free(t->slot);
    t->slot = NULL;
    return push_raised(t);
}

/* ---- output
 * ---------------------------------------------------------------------------------------- */
static void write_json(const tok_vocab *v, int32_t learned, const sd_buf *merges,
                       const char *const *specials, size_t n_specials, sd_buf *j) {
    sd_buf_puts(j, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (size_t i = 0; i < n_specials; i++) {
        sd_buf_printf(j, "%s{\"id\":%d,\"content\":", i ? "," : "", (int)learned + (int)i);
        sd_buf_json_string(j, specials[i], strlen(specials[i]));
        sd_buf_puts(j, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                       "\"normalized\":false,\"special\":true}");
    }
    sd_buf_puts(j, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                   "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                   "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                   "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                   "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
                   "\"vocab\":{");
    for (int32_t i = 0; i < learned; i++) {
        if (i)
            sd_buf_putc(j, ',');
        sd_buf_json_string(j, v->at[i].s, v->at[i].n);
        sd_buf_printf(j, ":%d", (int)i);
    }
    for (size_t i = 0; i < n_specials; i++) {
        sd_buf_putc(j, ',');
        sd_buf_json_string(j, specials[i], strlen(specials[i]));
        sd_buf_printf(j, ":%d", (int)learned + (int)i);
    }
    sd_buf_puts(j, "},\"merges\":[");
    sd_buf_put(j, merges->p ? merges->p : "", merges->n);
    sd_buf_puts(j, "]}}\n");
}

static sd_status learn(trainer *t, tok_vocab *v, int32_t target, sd_buf *merges) {
    sd_buf text = {0};
    sd_status st = SD_OK;
    bool any = false;
    SD_GO(st, done, first_pairs(t));
    while (v->size < target && t->n_heap > 0) {
        entry e = pop(t);
        pair *p = &t->pairs[e.pair];
        if (p->count != e.count) {
            if (p->count > 0)
                SD_GO(st, done, push(t, (entry){p->count, e.pair}));
            continue;
        }
        if (e.count < 2)
            break;
        t->step++;
        if ((t->step & 15) == 0) {
            SD_GO(st, done, sd_check_cancel(t->err));
            sd_run_progress(t->run, "learning merges", v->size, target);
        }
        int32_t a = p->a, b = p->b;
        sd_buf_clear(&text);
        sd_buf_put(&text, v->at[a].s, v->at[a].n);
        sd_buf_put(&text, v->at[b].s, v->at[b].n);
        SD_GO(st, done, sd_buf_status(&text, t->err));
        int32_t id = sd_tok_vocab_find(v, text.p, text.n);
        if (id < 0) { /* the same spelling by other merges keeps its id */
            id = v->size;
            SD_GO(st, done, sd_tok_vocab_add(v, text.p, text.n, id, (size_t)target, false, t->err));
        }
        sd_buf_puts(merges, any ? ",[" : "[");
        any = true;
        sd_buf_json_string(merges, v->at[a].s, v->at[a].n);
        sd_buf_putc(merges, ',');
        sd_buf_json_string(merges, v->at[b].s, v->at[b].n);
        sd_buf_putc(merges, ']');
        uint32_t *in = p->in;
        size_t n = p->n;
        p->in = NULL;
        p->n = p->cap = 0;
        for (size_t i = 0; i < n && st == SD_OK; i++)
            st = merge_in_word(t, in[i], a, b, id);
        sd_free(in);
        if (st != SD_OK)
            goto done;
        SD_GO(st, done, push_raised(t));
    }
    if (!any)
        st = sd_fail(t->err, SD_EINVAL, "the text holds no pair of bytes that occurs twice");
    else
        st = sd_buf_status(merges, t->err);
done:
    sd_buf_free(&text);
    return st;
}

static sd_status check_specials(const char *const *s, size_t n, sd_err *err) {
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(s[i]);
        if (len < 2 || len > 256)
            return sd_fail(err, SD_EINVAL, "special token \"%.60s\": expected 2..256 bytes", s[i]);
        for (size_t k = 0, c; k < len; k += c)
            if ((c = sd_utf8_next(s[i] + k, len - k, NULL)) == 0)
                return sd_fail(err, SD_EINVAL, "special token %zu is not UTF-8", i);
        for (size_t k = 0; k < i; k++)
            if (strcmp(s[i], s[k]) == 0)
                return sd_fail(err, SD_EINVAL, "special token \"%.60s\" is given twice", s[i]);
    }
    return SD_OK;
}

sd_status sd_tokenizer_train(const char *const *paths, size_t n_paths, int32_t vocab_size,
                             const char *const *specials, size_t n_specials, const sd_run *run,
                             sd_buf *json, sd_err *err) {
    if (n_paths == 0)
        return sd_fail(err, SD_EINVAL, "no text to train a tokenizer on");
    if (n_specials > 1000)
        return sd_fail(err, SD_EINVAL, "%zu special tokens: expected at most 1000", n_specials);
    SD_TRY(check_specials(specials, n_specials, err));
    int32_t least = 257 + (int32_t)n_specials;
    if (vocab_size < least || vocab_size > MAX_VOCAB)
        return sd_fail(err, SD_EINVAL, "vocabulary size %d: expected %d..%d", (int)vocab_size,
                       (int)least, MAX_VOCAB);
    trainer t = {.specials = specials, .n_specials = n_specials, .run = run, .err = err};
    tok_vocab v = {0};
    sd_buf merges = {0};
    sd_status st;
    double total = 0, before = 0;
    SD_GO(st, done, sd_tok_regex(sd_tok_gpt2_regex, strlen(sd_tok_gpt2_regex), &t.split, err));
    if (!(t.s = sd_tok_scratch_new(err))) {
        st = SD_ENOMEM;
        goto done;
    }
    SD_GO(st, done, sd_tok_vocab_init(&v, (size_t)vocab_size, err));
    for (int b = 0; b < 256; b++) { /* ids 0..255 are the bytes */
        char u[4];
        size_t n = sd_utf8_put(sd_tok_byte_char((unsigned char)b), u);
        SD_GO(st, done, sd_tok_vocab_add(&v, u, n, b, (size_t)vocab_size, false, err));
    }
    for (size_t i = 0; i < n_paths; i++) {
        sd_file *f = NULL;
        SD_GO(st, done, sd_file_open(paths[i], &f, err));
        total += (double)sd_file_size(f);
        sd_file_close(f);
    }
    for (size_t i = 0; i < n_paths; i++) {
        sd_file *f = NULL;
        SD_GO(st, done, count_file(&t, paths[i], before, total));
        SD_GO(st, done, sd_file_open(paths[i], &f, err));
        before += (double)sd_file_size(f);
        sd_file_close(f);
    }
    SD_GO(st, done, learn(&t, &v, vocab_size - (int32_t)n_specials, &merges));
    for (size_t i = 0; i < n_specials; i++)
        if (sd_tok_vocab_find(&v, specials[i], strlen(specials[i])) >= 0) {
            st = sd_fail(err, SD_EINVAL, "special token \"%.60s\" is also an ordinary token",
                         specials[i]);
            goto done;
        }
    if (v.size + (int32_t)n_specials < vocab_size)
        sd_run_log(run, SD_LOG_WARN, "the text supports a vocabulary of %d only, %d were asked for",
                   (int)v.size + (int)n_specials, (int)vocab_size);
    write_json(&v, v.size, &merges, specials, n_specials, json);
    st = sd_buf_status(json, err);
done:
    sd_tok_pattern_free(&t.split);
    sd_tok_scratch_free(t.s);
    sd_tok_vocab_free(&v);
    sd_buf_free(&t.bytes);
    sd_buf_free(&merges);
    sd_free(t.words);
    sd_free(t.slot);
    sd_free(t.syms);
    for (size_t i = 0; i < t.n_pairs; i++)
        sd_free(t.pairs[i].in);
    sd_free(t.pairs);
    sd_free(t.pslot);
    sd_free(t.heap);
    sd_free(t.raised);
    return st;
}
