/* tok_vocab.c: hash tables of a tokenizer: spelling → id, pair of ids → merge. */
#include <string.h>

#include "base/hash.h"
#include "io/tok.h"

static uint64_t hash_str(const char *s, size_t n) {
    return sd_hash64(s, n, 0x5dull);
}

static sd_status rehash(tok_vocab *v, size_t slots, sd_err *err) {
    tok_slot *fresh = sd_alloc(slots, sizeof *fresh, err);
    if (!fresh)
        return SD_ENOMEM;
    for (size_t i = 0; v->slot && i <= v->mask; i++) {
        if (!v->slot[i].id1)
            continue;
        const tok_str *e = &v->at[v->slot[i].id1 - 1];
        size_t k = (size_t)hash_str(e->s, e->n) & (slots - 1);
        while (fresh[k].id1)
            k = (k + 1) & (slots - 1);
        fresh[k] = v->slot[i];
    }
    sd_free(v->slot);
    v->slot = fresh;
    v->mask = slots - 1;
    return SD_OK;
}

sd_status sd_tok_vocab_init(tok_vocab *v, size_t expected, sd_err *err) {
    memset(v, 0, sizeof *v);
    v->arena = sd_arena_new(err);
    if (!v->arena)
        return SD_ENOMEM;
    size_t slots = 64;
    while (slots < expected * 2)
        slots *= 2;
    return rehash(v, slots, err);
}

void sd_tok_vocab_free(tok_vocab *v) {
    sd_free(v->at);
    sd_free(v->slot);
    sd_arena_free(v->arena);
    memset(v, 0, sizeof *v);
}

int32_t sd_tok_vocab_find(const tok_vocab *v, const char *s, size_t n) {
    if (n > v->longest || !v->slot)
        return -1;
    uint64_t h = hash_str(s, n);
    size_t i = (size_t)h & v->mask;
    uint32_t tag = (uint32_t)(h >> 32);
    for (; v->slot[i].id1; i = (i + 1) & v->mask) {
        if (v->slot[i].tag != tag)
            continue;
        const tok_str *e = &v->at[v->slot[i].id1 - 1];
        if (e->n == n && memcmp(e->s, s, n) == 0)
            return v->slot[i].id1 - 1;
    }
    return -1;
}

sd_status sd_tok_vocab_add(tok_vocab *v, const char *s, size_t n, int64_t id, size_t expected,
                           bool twice_ok, sd_err *err) {
    if (id < 0 || (uint64_t)id > (uint64_t)expected * 2 + 65536 || id >= INT32_MAX - 1)
        return sd_fail(err, SD_EFORMAT, "token \"%.*s\" has id %lld: out of range for %zu tokens",
                       n > 60 ? 60 : (int)n, s, (long long)id, expected);
    if (n > TOK_MAX_TOKEN)
        return sd_fail(err, SD_EFORMAT, "token %lld has %zu bytes: more than %d", (long long)id, n,
                       TOK_MAX_TOKEN);
    size_t old = v->cap;
    if ((size_t)id >= v->cap) {
        SD_TRY(sd_grow((void **)&v->at, &v->cap, (size_t)id + 1, sizeof *v->at, err));
        memset(v->at + old, 0, (v->cap - old) * sizeof *v->at);
    }
    if (v->at[id].s)
        return sd_fail(err, SD_EFORMAT, "id %lld is given to \"%.*s\" and to \"%.*s\"",
                       (long long)id, v->at[id].n > 60 ? 60 : (int)v->at[id].n, v->at[id].s,
                       n > 60 ? 60 : (int)n, s);
    int32_t known = sd_tok_vocab_find(v, s, n);
    if (known >= 0 && !twice_ok)
        return sd_fail(err, SD_EFORMAT, "token \"%.*s\" has two ids, %d and %lld",
                       n > 60 ? 60 : (int)n, s, (int)known, (long long)id);
    char *copy = sd_arena_strndup(v->arena, s, n, err);
    if (!copy)
        return SD_ENOMEM;
    v->at[id] = (tok_str){copy, (uint32_t)n};
    if (id >= v->size)
        v->size = (int32_t)id + 1;
    if (n > v->longest)
        v->longest = (uint32_t)n;
    if (known >= 0)
        return SD_OK;
    if ((v->count + 1) * 2 > v->mask + 1)
        SD_TRY(rehash(v, (v->mask + 1) * 2, err));
    uint64_t h = hash_str(s, n);
    size_t i = (size_t)h & v->mask;
    while (v->slot[i].id1)
        i = (i + 1) & v->mask;
    v->slot[i] = (tok_slot){(uint32_t)(h >> 32), (int32_t)id + 1};
    v->count++;
    return SD_OK;
}

static void put_slot(tok_merges *m, tok_merge e) {
    size_t i = (size_t)tok_mix((uint64_t)(uint32_t)e.a << 32 | (uint32_t)e.b) & m->mask;
    while (m->slot[i].id >= 0 && (m->slot[i].a != e.a || m->slot[i].b != e.b))
        i = (i + 1) & m->mask;
    if (m->slot[i].id < 0)
        m->count++;
    m->slot[i] = e;
}

sd_status sd_tok_merges_put(tok_merges *m, int32_t a, int32_t b, uint32_t rank, int32_t id,
                            sd_err *err) {
    if (!m->slot || (m->count + 1) * 2 > m->mask + 1) {
        tok_merges bigger = {.mask = m->slot ? m->mask * 2 + 1 : 255};
        bigger.slot = sd_alloc(bigger.mask + 1, sizeof *bigger.slot, err);
        if (!bigger.slot)
            return SD_ENOMEM;
        for (size_t i = 0; i <= bigger.mask; i++)
            bigger.slot[i].id = -1;
        for (size_t i = 0; m->slot && i <= m->mask; i++)
            if (m->slot[i].id >= 0)
                put_slot(&bigger, m->slot[i]);
        sd_free(m->slot);
        *m = bigger;
    }
    put_slot(m, (tok_merge){a, b, rank, id});
    return SD_OK;
}
