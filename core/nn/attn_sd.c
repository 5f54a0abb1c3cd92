/* Kind "sd": S–D attention, L = S − D (METHOD §6). */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_sd);

static const sd_attn_option options[] = {
    SD_OPTION_DIAG("input|scalar|none"),
    SD_OPTION_WINDOW(NULL),
    {.name = "softmax", .doc = "none: the raw map L, without a softmax", .choices = "none"},
};

static double flops(const sd_layer_cfg *lc, double keys) {
    return 2 * keys * lc->n_head * (2.0 * lc->d_qk + lc->d_v);
}

extern const sd_attn_kind sd_attn_kind_sd;
const sd_attn_kind sd_attn_kind_sd = {
    .name = "sd",
    .summary = "S–D: softmax of skew routing minus a positive diagonal (METHOD 6)",
    .rope = true,
    .part = {SD_PART_Q, SD_PART_K, SD_PART_V, SD_PART_U, SD_PART_DIAG},
    .n_part = 5,
    .option = options,
    .n_option = SD_COUNT(options),
    .diag = SD_DIAG_INPUT,
    .scale_width = 2,
    .routing = SD_TERM_QK(2), /* ½(2αQKᵀ − 2αKQᵀ) */
    .diagonal = SD_SCORE_DIAG_REPLACE,
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_sd),
};
