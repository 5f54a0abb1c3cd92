/* ranks.c: effective ranks of a list of singular values (METHOD §4). A definition is a row of
 * SD_RANK_DEFS and its formula here. */
#include <math.h>

#include "spectral/internal.h"

/* Values relative to the largest, so that squares of tiny or huge ones neither vanish nor overflow:
 * sums of their first, second and fourth powers. */
typedef struct values {
    const double *s;
    size_t n;
    double top, s1, s2, s4;
} values;

static double rank_pr(const values *v) {
    return v->s2 * v->s2 / v->s4;
}

static double rank_entropy(const values *v) {
    double h = 0;
    for (size_t i = 0; i < v->n; i++) {
        double x = fabs(v->s[i]) / v->top, p = x / v->s1;
        if (p > 0)
            h -= p * log(p);
    }
    return exp(h);
}

static double rank_energy(const values *v) {
    double h = 0;
    for (size_t i = 0; i < v->n; i++) {
        double x = fabs(v->s[i]) / v->top, e = x * x / v->s2;
        if (e > 0)
            h -= e * log(e);
    }
    return exp(h);
}

static double rank_stable(const values *v) {
    return v->s2;
}

/* Smallest r with Σ_{≤r} σ² ≥ share·total·(1 − 1e-12), without sorting or memory: the values are
 * met in descending order by repeated passes. */
static double holding(const values *v, double share) {
    double acc = 0, bound = HUGE_VAL, want = share * v->s2 * (1 - 1e-12);
    size_t seen = 0;
    while (seen < v->n) {
        double next = -1;
        size_t times = 0;
        for (size_t i = 0; i < v->n; i++) {
            double x = fabs(v->s[i]);
            if (x >= bound)
                continue;
            if (x > next) {
                next = x;
                times = 1;
            } else if (x == next) {
                times++;
            }
        }
        if (next < 0)
            break;
        double e = (next / v->top) * (next / v->top);
        for (size_t j = 0; j < times; j++) {
            acc += e;
            seen++;
            if (acc >= want)
                return (double)seen;
        }
        bound = next;
    }
    return (double)seen; // rounding left the sum a hair short
}

static double rank_n90(const values *v) {
    return holding(v, 0.90);
}

static double rank_n95(const values *v) {
    return holding(v, 0.95);
}

static double rank_n99(const values *v) {
    return holding(v, 0.99);
}

static const struct {
    const char *name;
    bool count;
    double (*of)(const values *v);
} defs[] = {
#define X(name_, count_, ...) {#name_, count_, rank_##name_},
    SD_RANK_DEFS(X)
#undef X
};

const char *sd_rank_name(size_t i) {
    return i < SD_RANK_COUNT ? defs[i].name : NULL;
}

bool sd_rank_is_count(size_t i) {
    return i < SD_RANK_COUNT && defs[i].count;
}

void sd_ranks_of(const double *sigma, size_t n, bool paired, sd_ranks *out) {
    *out = (sd_ranks){.v = {0}};
    values v = {.s = sigma, .n = n};
    for (size_t i = 0; i < n; i++)
        v.top = fmax(v.top, fabs(sigma[i]));
    if (!(v.top > 0))
        return;
    for (size_t i = 0; i < n; i++) {
        double x = fabs(sigma[i]) / v.top, e = x * x;
        v.s1 += x;
        v.s2 += e;
        v.s4 += e * e;
    }
    // Doubling every value doubles every measure; the counts become even by themselves.
    for (size_t i = 0; i < SD_RANK_COUNT; i++)
        out->v[i] = (paired ? 2 : 1) * defs[i].of(&v);
}
