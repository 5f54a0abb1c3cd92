/* mem.h: checked allocation and arenas. All sizes pass overflow-checked products. */
#ifndef SD_BASE_MEM_H
#define SD_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* n*size bytes, zeroed, 64-byte aligned when n*size >= 64. NULL with SD_ENOMEM in err on failure
 * or overflow; n*size == 0 gives a valid pointer to free. Release with sd_free. */
SD_OWN void *sd_alloc(size_t n, size_t size, sd_err *SD_NULLABLE err) SD_WARN_UNUSED;

/* Same without zeroing: for big buffers that are written in full at once. */
SD_OWN void *sd_alloc_raw(size_t n, size_t size, sd_err *SD_NULLABLE err) SD_WARN_UNUSED;

/* Grows *p (from sd_alloc family or NULL) so that *cap >= need elements; doubles. New space is
 * not zeroed. *p is untouched on failure. */
sd_status sd_grow(void **p, size_t *cap, size_t need, size_t size, sd_err *SD_NULLABLE err);

SD_OWN char *sd_strdup(const char *s, sd_err *SD_NULLABLE err);
SD_OWN char *sd_strndup(const char *s, size_t n, sd_err *SD_NULLABLE err);
void sd_free(void *SD_NULLABLE p);

/* Overflow-checked arithmetic: false on overflow, *out untouched. */
bool sd_mul_size(size_t a, size_t b, size_t *out);
bool sd_add_size(size_t a, size_t b, size_t *out);

/* Arena: many small objects, one release. Memory is zeroed, 16-byte aligned. */
typedef struct sd_arena sd_arena;
SD_OWN sd_arena *sd_arena_new(sd_err *SD_NULLABLE err);
void *sd_arena_alloc(sd_arena *a, size_t n, size_t size, sd_err *SD_NULLABLE err);
char *sd_arena_strndup(sd_arena *a, const char *s, size_t n, sd_err *SD_NULLABLE err);
void sd_arena_free(sd_arena *SD_NULLABLE a);

#endif
