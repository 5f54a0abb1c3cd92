/* Kind "uniform": the mean of the values seen (METHOD §7.3). */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_uniform);

static double flops(const sd_layer_cfg *lc, double keys) {
    (void)keys;
    return 2.0 * lc->n_head * lc->d_v;
}

extern const sd_attn_kind sd_attn_kind_uniform;
const sd_attn_kind sd_attn_kind_uniform = {
    .name = "uniform",
    .summary = "the mean of all values seen: no scores at all",
    .recurrent = true,
    .part = {SD_PART_V},
    .n_part = 1,
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_uniform),
};
