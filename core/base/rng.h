/* rng.h: seeded random numbers, the same on every machine (xoshiro256**, seeded by splitmix64). */
#ifndef SD_BASE_RNG_H
#define SD_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct sd_rng {
    uint64_t s[4];
    double spare; /* second Gaussian of a pair */
    int has_spare;
} sd_rng;

void sd_rng_seed(sd_rng *r, uint64_t seed);
/* An independent stream of (seed, a, b): e.g. per layer and draw, whatever the thread order. */
void sd_rng_stream(sd_rng *r, uint64_t seed, uint64_t a, uint64_t b);
uint64_t sd_rng_u64(sd_rng *r);
double sd_rng_uniform(sd_rng *r);                 /* [0, 1), 53 bits */
uint64_t sd_rng_below(sd_rng *r, uint64_t bound); /* [0, bound), unbiased; bound >= 1 */
double sd_rng_gauss(sd_rng *r);                   /* mean 0, sd 1 (polar method) */
void sd_rng_fill_gauss(sd_rng *r, double *x, size_t n);

#endif
