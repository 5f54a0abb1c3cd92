/* Kind "bilinear": routing and filtering of a standard head cut apart (METHOD §7.1). The factors
 * carry the scale. */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_bilinear);

static const sd_attn_option options[] = {SD_OPTION_WINDOW(NULL)};

static double flops(const sd_layer_cfg *lc, double keys) {
    return 2 * keys * lc->n_head * (2.0 * lc->planes + lc->f_rank + lc->d_v);
}

extern const sd_attn_kind sd_attn_kind_bilinear;
const sd_attn_kind sd_attn_kind_bilinear = {
    .name = "bilinear",
    .summary = "softmax of separate routing and filtering factors: truncated heads (METHOD 7.1)",
    .part = {SD_PART_AUGMENTED(SD_SLOT_A, SD_ROLE_RA, SD_WIDTH_PLANES),
             SD_PART_AUGMENTED(SD_SLOT_B, SD_ROLE_RB, SD_WIDTH_PLANES),
             SD_PART_AUGMENTED(SD_SLOT_F, SD_ROLE_F, SD_WIDTH_RANK),
             SD_PART_V,
             {.slot = SD_SLOT_NONE,
              .weight = SD_ROLE_FL,
              .bias = SD_ROLE_COUNT,
              .width = SD_WIDTH_RANK},
             SD_PART_DIAG},
    .n_part = 6,
    .option = options,
    .n_option = SD_COUNT(options),
    .diag = SD_DIAG_SCALAR,
    .routing = {.q = SD_SLOT_A, .k = SD_SLOT_B, .factor = 2}, /* ½(2ABᵀ − 2BAᵀ) */
    .filtering = {.q = SD_SLOT_F, .k = SD_SLOT_F, .factor = 1, .weighted = true},
    .diagonal = SD_SCORE_DIAG_ADD,
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_bilinear),
};
