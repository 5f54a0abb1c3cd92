/* Kind "window": standard attention in which row i sees the last `window` keys, itself included:
 * key j where i − j < window. The kernels are softmax's. Its scores M are taken over all pairs. */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_softmax);

static const sd_attn_option options[] = {SD_OPTION_WINDOW("64")};

static double flops(const sd_layer_cfg *lc, double keys) {
    return 2 * keys * lc->n_head * ((double)lc->d_qk + lc->d_v);
}

extern const sd_attn_kind sd_attn_kind_window;
const sd_attn_kind sd_attn_kind_window = {
    .name = "window",
    .summary = "softmax(c q·k) over the last N tokens: option window=N",
    .causal_only = true,
    .rope = true,
    .part = {SD_PART_Q, SD_PART_K, SD_PART_V},
    .n_part = 3,
    .option = options,
    .n_option = SD_COUNT(options),
    .scale_width = 1,
    .routing = SD_TERM_QK(1),
    .filtering = SD_TERM_QK(1),
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_softmax),
};
