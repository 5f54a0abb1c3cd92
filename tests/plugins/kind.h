/* kind.h: a good attention kind, to break. */
#ifndef SD_TESTS_KIND_H
#define SD_TESTS_KIND_H

#include "gallery.h"

static inline size_t k_scratch(const sd_kind_args *a, int backward) {
    (void)a, (void)backward;
    return 0;
}
static inline void k_pass(const sd_kind_args *a, void *scratch) {
    (void)a, (void)scratch;
}
static inline void k_decode(const sd_kind_args *a, int32_t t, void *state, void *scratch) {
    (void)a, (void)t, (void)state, (void)scratch;
}
static inline double k_flops(const sd_hlayer_info *l, double keys) {
    return l->n_head * keys;
}

#define KIND_OPS \
    { .scratch = k_scratch, .forward = k_pass, .backward = k_pass, .decode = k_decode }
#define KIND(name_, ops_)                                                           \
    .struct_size = sizeof(sd_kind_desc), .scores = SD_SCORES_ABSENT, .name = name_, \
    .summary = "a test", .flops = k_flops, .f32 = (ops_), .f64 = (ops_)

#endif
