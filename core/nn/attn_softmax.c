/* Kind "softmax": standard attention (METHOD §1). */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_softmax);

static double flops(const sd_layer_cfg *lc, double keys) {
    return 2 * keys * lc->n_head * ((double)lc->d_qk + lc->d_v);
}

extern const sd_attn_kind sd_attn_kind_softmax;
const sd_attn_kind sd_attn_kind_softmax = {
    .name = "softmax",
    .summary = "softmax(c q·k), tiled: stores O(N·d) and one log-sum a row, never N×N",
    .rope = true,
    .part = {SD_PART_Q, SD_PART_K, SD_PART_V},
    .n_part = 3,
    .scale_width = 1,
    .routing = SD_TERM_QK(1),
    .filtering = SD_TERM_QK(1),
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_softmax),
};
