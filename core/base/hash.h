/* hash.h: SHA-256 (lineage, checkpoints, `info`) and a fast 64-bit hash for tables. */
#ifndef SD_BASE_HASH_H
#define SD_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct sd_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
} sd_sha256;

void sd_sha256_init(sd_sha256 *s);
void sd_sha256_add(sd_sha256 *s, const void *p, size_t n);
void sd_sha256_hex(sd_sha256 *s, char out[65]); /* finishes; lower-case hex, NUL-terminated */

uint64_t sd_hash64(const void *p, size_t n, uint64_t seed);

#endif
