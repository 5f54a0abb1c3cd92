/* SHA-256 after FIPS 180-4. */
#include "base/hash.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int k) {
    return (x >> k) | (x << (32 - k));
}

static void compress(uint32_t h[8], const unsigned char *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | (uint32_t)p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
               (rotr(b, 17) ^ rotr(b, 19) ^ (b >> 10));
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25)) +
                      ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t t2 = (rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22)) +
                      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sd_sha256_init(sd_sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(s, 0, sizeof *s);
    memcpy(s->h, start, sizeof start);
}

void sd_sha256_add(sd_sha256 *s, const void *p, size_t n) {
    const unsigned char *q = p;
    size_t fill = (size_t)(s->bytes % 64);
    if (n == 0)
        return;
    s->bytes += n;
    if (fill) {
        size_t k = 64 - fill < n ? 64 - fill : n;
        memcpy(s->block + fill, q, k);
        q += k;
        n -= k;
        if (fill + k < 64)
            return;
        compress(s->h, s->block);
    }
    for (; n >= 64; q += 64, n -= 64)
        compress(s->h, q);
    if (n)
        memcpy(s->block, q, n);
}

void sd_sha256_hex(sd_sha256 *s, char out[65]) {
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = s->bytes * 8;
    unsigned char pad[72] = {0x80};
    size_t fill = (size_t)(s->bytes % 64), n = fill < 56 ? 56 - fill : 120 - fill;
    for (int i = 0; i < 8; i++)
        pad[n + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    sd_sha256_add(s, pad, n + 8);
    for (int i = 0; i < 64; i++)
        out[i] = digits[(s->h[i / 8] >> (28 - 4 * (i % 8))) & 15];
    out[64] = '\0';
}

uint64_t sd_hash64(const void *p, size_t n, uint64_t seed) {
    const unsigned char *q = p;
    uint64_t h = seed ^ (n * 0x9E3779B97F4A7C15u);
    for (; n >= 8; q += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, q, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    uint64_t w = 0;
    if (n)
        memcpy(&w, q, n);
    h = (h ^ w) * 0xC4CEB9FE1A85EC53u;
    h ^= h >> 29;
    h *= 0xFF51AFD7ED558CCDu;
    return h ^ (h >> 32);
}
