/* xoshiro256** (Blackman & Vigna 2018), seeded by splitmix64; Gaussians by Marsaglia's polar
 * method. Only integer arithmetic, sqrt and log decide the stream. */
#include "base/rng.h"

#include <math.h>

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void sd_rng_seed(sd_rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix(&seed);
    r->spare = 0.0;
    r->has_spare = 0;
}

void sd_rng_stream(sd_rng *r, uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t x = seed;
    x = splitmix(&x) ^ (a * 0xD1B54A32D192ED03u);
    x = splitmix(&x) ^ (b * 0xABC98388FB8FAC03u);
    sd_rng_seed(r, splitmix(&x));
}

uint64_t sd_rng_u64(sd_rng *r) {
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double sd_rng_uniform(sd_rng *r) {
    return (double)(sd_rng_u64(r) >> 11) * 0x1.0p-53;
}

uint64_t sd_rng_below(sd_rng *r, uint64_t bound) {
    /* Rejects the short last interval, so that every value has the same number of sources. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
    do
        x = sd_rng_u64(r);
    while (x >= limit);
    return x % bound;
}

double sd_rng_gauss(sd_rng *r) {
    if (r->has_spare) {
        r->has_spare = 0;
        return r->spare;
    }
    double u, v, q;
    do {
        u = 2.0 * sd_rng_uniform(r) - 1.0;
        v = 2.0 * sd_rng_uniform(r) - 1.0;
        q = u * u + v * v;
    } while (q >= 1.0 || q == 0.0);
    double f = sqrt(-2.0 * log(q) / q);
    r->spare = v * f;
    r->has_spare = 1;
    return u * f;
}

void sd_rng_fill_gauss(sd_rng *r, double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = sd_rng_gauss(r);
}
