/* attn_i.h: what the rows of the kinds (attn_<name>.c) share: the usual parts and options. */
#ifndef SD_NN_ATTN_I_H
#define SD_NN_ATTN_I_H

#include "nn/attn.h"

#define SD_PART_Q \
    { .slot = SD_SLOT_Q, .weight = SD_ROLE_WQ, .bias = SD_ROLE_BQ, .width = SD_WIDTH_QUERY }
#define SD_PART_K \
    { .slot = SD_SLOT_K, .weight = SD_ROLE_WK, .bias = SD_ROLE_BK, .width = SD_WIDTH_KEY }
#define SD_PART_V \
    { .slot = SD_SLOT_V, .weight = SD_ROLE_WV, .bias = SD_ROLE_BV, .width = SD_WIDTH_VALUE }
/* d(x) of S–D, when the layer's diagonal comes from the input */
#define SD_PART_U                                                                         \
    {                                                                                     \
        .slot = SD_SLOT_U, .weight = SD_ROLE_WD, .bias = SD_ROLE_BD, .bias_always = true, \
        .width = SD_WIDTH_HEADS, .diag = SD_DIAG_INPUT                                    \
    }
/* one number a head on the diagonal, when that is where it comes from */
#define SD_PART_DIAG                                                         \
    {                                                                        \
        .slot = SD_SLOT_NONE, .weight = SD_ROLE_DIAG, .bias = SD_ROLE_COUNT, \
        .width = SD_WIDTH_HEADS, .diag = SD_DIAG_SCALAR                      \
    }
#define SD_PART_AUGMENTED(slot_, role_, width_)                                       \
    {                                                                                 \
        .slot = (slot_), .weight = (role_), .bias = SD_ROLE_COUNT, .augmented = true, \
        .width = (width_)                                                             \
    }

#define SD_OPTION_WINDOW(required_)                                                            \
    {                                                                                          \
        .name = "window", .doc = "keys a row sees, itself included", .min = 1, .max = 1 << 28, \
        .required = (required_)                                                                \
    }
#define SD_OPTION_DIAG(choices_) \
    { .name = "diag", .doc = "where the diagonal comes from", .choices = (choices_) }

/* c·q·k in both terms. */
#define SD_TERM_QK(factor_) \
    { .q = SD_SLOT_Q, .k = SD_SLOT_K, .factor = (factor_), .scaled = true }

#define SD_ATTN_OPS(name_) extern const sd_attn_ops name_##_f32, name_##_f64
#define SD_ATTN_KERNELS(name_) .f32 = &name_##_f32, .f64 = &name_##_f64
#define SD_COUNT(a_) (int)(sizeof(a_) / sizeof *(a_))

#endif
