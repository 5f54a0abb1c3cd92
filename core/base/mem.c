#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, ARENA_BLOCK = 16 * 1024 };

bool sd_mul_size(size_t a, size_t b, size_t *out) {
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool sd_add_size(size_t a, size_t b, size_t *out) {
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

static void *alloc(size_t n, size_t size, bool zero, sd_err *err) {
    size_t bytes;
    if (!sd_mul_size(n, size, &bytes) || bytes > SIZE_MAX / 2) {
        sd_fail(err, SD_ENOMEM, "allocation of %zu x %zu bytes overflows", n, size);
        return NULL;
    }
    void *p = NULL;
    if (bytes < ALIGN) {
        p = zero ? calloc(1, bytes ? bytes : 1) : malloc(bytes ? bytes : 1);
    } else if (posix_memalign(&p, ALIGN, bytes) != 0) {
        p = NULL;
    } else if (zero) {
        memset(p, 0, bytes);
    }
    if (!p)
        sd_fail(err, SD_ENOMEM, "out of memory: %zu bytes", bytes);
    return p;
}

void *sd_alloc(size_t n, size_t size, sd_err *err) {
    return alloc(n, size, true, err);
}

void *sd_alloc_raw(size_t n, size_t size, sd_err *err) {
    return alloc(n, size, false, err);
}

sd_status sd_grow(void **p, size_t *cap, size_t need, size_t size, sd_err *err) {
    if (need <= *cap)
        return SD_OK;
    size_t c = *cap ? *cap : 8;
    while (c < need)
        c = c > SIZE_MAX / 2 ? need : 2 * c;
    size_t bytes;
    if (!sd_mul_size(c, size, &bytes) || bytes > SIZE_MAX / 2)
        return sd_fail(err, SD_ENOMEM, "allocation of %zu x %zu bytes overflows", c, size);
    void *q = realloc(*p, bytes);
    if (!q)
        return sd_fail(err, SD_ENOMEM, "out of memory: %zu bytes", bytes);
    *p = q;
    *cap = c;
    return SD_OK;
}

char *sd_strndup(const char *s, size_t n, sd_err *err) {
    char *d = sd_alloc_raw(n + 1, 1, err);
    if (d) {
        memcpy(d, s, n);
        d[n] = '\0';
    }
    return d;
}

char *sd_strdup(const char *s, sd_err *err) {
    return sd_strndup(s, strlen(s), err);
}

void sd_free(void *p) {
    free(p);
}

/* ---- arena ----------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
} block;

struct sd_arena {
    block *head;
};

sd_arena *sd_arena_new(sd_err *err) {
    return sd_alloc(1, sizeof(sd_arena), err);
}

void *sd_arena_alloc(sd_arena *a, size_t n, size_t size, sd_err *err) {
    size_t bytes;
    if (!sd_mul_size(n, size, &bytes) || bytes > SIZE_MAX / 4) {
        sd_fail(err, SD_ENOMEM, "allocation of %zu x %zu bytes overflows", n, size);
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->head || a->head->size - a->head->used < bytes) {
        size_t room = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
        block *b = malloc(sizeof *b + room);
        if (!b) {
            sd_fail(err, SD_ENOMEM, "out of memory: %zu bytes", room);
            return NULL;
        }
        b->next = a->head;
        b->used = 0;
        b->size = room;
        a->head = b;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += bytes;
    memset(p, 0, bytes);
    return p;
}

char *sd_arena_strndup(sd_arena *a, const char *s, size_t n, sd_err *err) {
    char *d = sd_arena_alloc(a, n + 1, 1, err);
    if (d)
        memcpy(d, s, n);
    return d;
}

void sd_arena_free(sd_arena *a) {
    if (!a)
        return;
    for (block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}
