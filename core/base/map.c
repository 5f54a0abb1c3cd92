#include "base/map.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

struct sd_map_slot {
    const char *key; // NULL: free
    uint32_t hash;   // so that most other names are told apart without being read
    int32_t value;
};

/* Where key is, or the free slot it would take. */
static sd_map_slot *look(const sd_map *m, const char *key, uint32_t hash) {
    size_t mask = m->n_slot - 1;
    size_t i = hash & mask;
    while (m->slot[i].key && (m->slot[i].hash != hash || strcmp(m->slot[i].key, key) != 0))
        i = (i + 1) & mask;
    return &m->slot[i];
}

static uint32_t hash_of(const char *key) {
    return (uint32_t)(sd_hash64(key, strlen(key), 0) >> 32);
}

sd_status sd_map_reserve(sd_map *m, size_t n, sd_err *err) {
    size_t want = m->n_slot ? m->n_slot : 16;
    if (n > INT32_MAX)
        return sd_fail(err, SD_EFORMAT, "%zu names (limit %d)", n, INT32_MAX);
    while (want < 2 * n)
        want *= 2;
    if (want == m->n_slot)
        return SD_OK;
    sd_map bigger = {.n = m->n, .n_slot = want};
    bigger.slot = sd_alloc(want, sizeof *bigger.slot, err);
    if (!bigger.slot)
        return SD_ENOMEM;
    for (size_t i = 0; i < m->n_slot; i++) {
        if (m->slot[i].key)
            *look(&bigger, m->slot[i].key, m->slot[i].hash) = m->slot[i];
    }
    sd_free(m->slot);
    *m = bigger;
    return SD_OK;
}

int sd_map_get(const sd_map *m, const char *key) {
    if (m->n == 0)
        return -1;
    const sd_map_slot *s = look(m, key, hash_of(key));
    return s->key ? s->value : -1;
}

int sd_map_put(sd_map *m, const char *key, int value) {
    assert(value >= 0 && 2 * (m->n + 1) <= m->n_slot);
    uint32_t h = hash_of(key);
    sd_map_slot *s = look(m, key, h);
    if (s->key)
        return s->value;
    *s = (sd_map_slot){key, h, value};
    m->n++;
    return -1;
}

void sd_map_clear(sd_map *m) {
    if (m->n)
        memset(m->slot, 0, m->n_slot * sizeof *m->slot);
    m->n = 0;
}

void sd_map_free(sd_map *m) {
    sd_free(m->slot);
    *m = (sd_map){0};
}
