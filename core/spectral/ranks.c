/* ranks.c: effective ranks of a list of singular values (METHOD §4). */
#include <math.h>

#include "spectral/internal.h"

/* Smallest r with Σ_{≤r} σ² ≥ share·total·(1 − 1e-12) for the three shares, without sorting or
 * memory: the values are met in descending order by repeated passes. */
static void energy_counts(const double *s, size_t n, double top, double total, sd_ranks *out) {
    const double share[3] = {0.90, 0.95, 0.99};
    int *dst[3] = {&out->n90, &out->n95, &out->n99};
    double acc = 0, bound = HUGE_VAL;
    size_t seen = 0;
    int which = 0;
    while (which < 3 && seen < n) {
        double next = -1;
        size_t times = 0;
        for (size_t i = 0; i < n; i++) {
            double v = fabs(s[i]);
            if (v >= bound)
                continue;
            if (v > next) {
                next = v;
                times = 1;
            } else if (v == next) {
                times++;
            }
        }
        if (next < 0)
            break;
        double e = (next / top) * (next / top);
        for (size_t j = 0; j < times; j++) {
            acc += e;
            seen++;
            while (which < 3 && acc >= share[which] * total * (1 - 1e-12))
                *dst[which++] = (int)seen;
        }
        bound = next;
    }
    while (which < 3) // rounding left the sum a hair short
        *dst[which++] = (int)seen;
}

void sd_ranks_of(const double *sigma, size_t n, bool paired, sd_ranks *out) {
    *out = (sd_ranks){0};
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs(sigma[i]));
    if (!(top > 0))
        return;
    // Relative to the largest value: squares of tiny or huge values neither vanish nor overflow.
    double s1 = 0, s2 = 0, s4 = 0;
    for (size_t i = 0; i < n; i++) {
        double v = fabs(sigma[i]) / top, e = v * v;
        s1 += v;
        s2 += e;
        s4 += e * e;
    }
    double h1 = 0, h2 = 0;
    for (size_t i = 0; i < n; i++) {
        double v = fabs(sigma[i]) / top, p = v / s1, e = v * v / s2;
        if (p > 0)
            h1 -= p * log(p);
        if (e > 0)
            h2 -= e * log(e);
    }
    // Doubling every value doubles every measure; the counts become even by themselves.
    double times = paired ? 2 : 1;
    out->pr = times * s2 * s2 / s4;
    out->entropy = times * exp(h1);
    out->energy = times * exp(h2);
    out->stable = times * s2;
    energy_counts(sigma, n, top, s2, out);
    if (paired) {
        out->n90 *= 2;
        out->n95 *= 2;
        out->n99 *= 2;
    }
}
