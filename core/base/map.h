/* map.h: names to numbers. Open addressing, a power of two of slots at most half full; nothing is
 * ever removed but all. Own code, since C and POSIX offer only one global table (hcreate) or trees
 * that allocate a node a name (tsearch), and one more library would weigh more than these lines. */
#ifndef SD_BASE_MAP_H
#define SD_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct sd_map_slot sd_map_slot;
/* Starts zeroed. Keys are borrowed: they live as long as the map holds them. */
typedef struct sd_map {
    sd_map_slot *slot;
    size_t n, n_slot;
} sd_map;

/* Room for n names in all: the sd_map_put calls up to that number cannot fail. */
sd_status sd_map_reserve(sd_map *m, size_t n, sd_err *err);
/* The value of key, -1 when absent. */
int sd_map_get(const sd_map *m, const char *key);
/* key → value (>= 0) unless it is there already: its value is then returned, else -1. The room was
 * reserved. */
int sd_map_put(sd_map *m, const char *key, int value);
void sd_map_clear(sd_map *m); /* forgets all names, keeps the room */
void sd_map_free(sd_map *m);

#endif
