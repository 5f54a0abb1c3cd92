/* template_kind.c: the smallest real attention kind. Copy it, rename it (its two includes too),
 * change the parts 1-4; build and load it like template.c. Its kind is one like the program's own:
 * `new{kind="decay"}`, train, generate, save. Files that hold it need this plugin to open.
 *
 * o_i is the mean of the values seen, one weighing r times what the next does: o_i = n_i/z_i, n_i =
 * r n_(i-1) + v_i, z_i = r z_(i-1) + 1, r = 1/(1 + e^-a), with one trainable a for each head. */
#ifndef REAL
#include <math.h>
#include <string.h>

#include "sd_plugin.h"

/* The functions are written once: this file includes itself for each type. */
#define REAL float
#define TYPED(name_) name_##_f32
#include "template_kind.c"
#undef REAL
#undef TYPED
#define REAL double
#define TYPED(name_) name_##_f64
#include "template_kind.c"

/* 1. What a token costs: multiply-adds count 2. */
static double flops(const sd_hlayer_info *l, double keys) {
    return 4.0 * l->n_head * l->d_v + 0 * keys;
}

/* 2. The description: its parts are the values and a number a head; scores it has none. */
static const sd_kind_desc kinds[] = {
    {.struct_size = sizeof(sd_kind_desc),
     .parts = SD_KIND_SCALAR,
     .flags = SD_KIND_CAUSAL | SD_KIND_RECURRENT,
     .scores = SD_SCORES_ABSENT,
     .name = "decay",
     .summary = "the mean of the values seen, older ones weighing less",
     .flops = flops,
     .f32 = &ops_f32,
     .f64 = &ops_f64}};

/* 3. The one exported symbol. This plugin has a kind and no operation. */
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_ABI, SD_PLUGIN_KINDS(kinds), .name = "template_kind", .version = "1.0",
    .summary = "a documented example: an attention kind that forgets"};

#else /* 4. The functions, on REAL. One call is one sequence and the heads of one key head. */

/* Sums are double whatever REAL is: n (d_v), then z; for backward also dn/dr and dz/dr. */
static size_t TYPED(scratch)(const sd_kind_args *a, int backward) {
    return (backward ? 2 : 1) * ((size_t)a->d_v + 1) * sizeof(double);
}

static double TYPED(rate)(const sd_kind_args *a, int h) {
    return 1 / (1 + exp(-(double)((const REAL *)a->diag)[h]));
}

/* Takes row i in: n and z become those of token i; o (nullable) is its output. */
static void TYPED(step)(const sd_kind_args *a, int i, int h, double *n, REAL *o) {
    const REAL *v = (const REAL *)a->v + (size_t)i * a->ld;
    double r = TYPED(rate)(a, h);
    for (int j = 0; j <= a->d_v; j++)
        n[j] = r * n[j] + (j < a->d_v ? (double)v[j] : 1);
    for (int j = 0; o && j < a->d_v; j++)
        o[j] = (REAL)(n[j] / n[a->d_v]);
}

static void TYPED(forward)(const sd_kind_args *a, void *scratch) {
    double *n = scratch; /* z behind it */
    for (int h = 0; h < a->heads; h++) {
        memset(n, 0, ((size_t)a->d_v + 1) * sizeof *n);
        for (int i = 0; i < a->tokens; i++) {
            TYPED(step)(a, i, h, n, (REAL *)a->o + (size_t)i * a->o_ld + h * a->d_v);
            if (a->lse) /* a number a row, kept for backward */
                ((REAL *)a->lse)[h * a->tokens + i] = (REAL)n[a->d_v];
        }
    }
}

/* do_i = dn_i / z_i - n_i dz_i / z_i^2: forwards in time for r, backwards for the values, which
 * have part r^(i-j) in n_i. Gradients are zero on entry and added to. */
static void TYPED(backward)(const sd_kind_args *a, void *scratch) {
    size_t w = (size_t)a->d_v + 1;
    double *n = scratch, *dn = n + w;
    for (int h = 0; h < a->heads; h++) {
        double r = TYPED(rate)(a, h), dr = 0;
        memset(n, 0, 2 * w * sizeof *n);
        for (int i = 0; i < a->tokens; i++) {
            const REAL *g = (const REAL *)a->d_o + (size_t)i * a->o_ld + (size_t)h * (w - 1);
            for (size_t j = 0; j < w; j++)
                dn[j] = n[j] + r * dn[j];
            TYPED(step)(a, i, h, n, NULL);
            for (size_t j = 0; j < w - 1; j++)
                dr += (double)g[j] * (dn[j] - n[j] / n[w - 1] * dn[w - 1]) / n[w - 1];
        }
        ((REAL *)a->ddiag)[h] += (REAL)(dr * r * (1 - r));
        memset(dn, 0, w * sizeof *dn);
        for (int i = a->tokens; i-- > 0;) {
            const REAL *g = (const REAL *)a->d_o + (size_t)i * a->o_ld + (size_t)h * (w - 1);
            REAL *dv = (REAL *)a->dv + (size_t)i * a->ld;
            double z = (double)((const REAL *)a->lse)[h * a->tokens + i];
            for (size_t j = 0; j < w - 1; j++)
                dv[j] += (REAL)(dn[j] = r * dn[j] + (double)g[j] / z);
        }
    }
}

/* The state of one key head: n and z of each of its heads. Decoding is one step of forward. */
static size_t TYPED(state_size)(const sd_kind_args *a) {
    return (size_t)a->heads * ((size_t)a->d_v + 1) * sizeof(double);
}

static void TYPED(decode)(const sd_kind_args *a, int32_t t, void *state, void *scratch) {
    (void)t, (void)scratch;
    for (int h = 0; h < a->heads; h++)
        TYPED(step)(a, 0, h, (double *)state + h * (a->d_v + 1), (REAL *)a->o + h * a->d_v);
}

static const sd_kind_ops TYPED(ops) = {TYPED(scratch), TYPED(forward), TYPED(backward),
                                       TYPED(state_size), TYPED(decode)};
#endif
