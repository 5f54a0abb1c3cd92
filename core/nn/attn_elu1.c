/* Kind "elu1": causal linear attention with features ELU+1 (METHOD §7.2). Its weights are products
 * of features, not the exponential of a score matrix: it has no scores to take apart. */
#include <string.h>

#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_elu1);

static const sd_attn_option options[] = {
    {.name = "features",
     .doc = "of q and k, or of [q, −k] and [k, q] (S–D heads)",
     .choices = "qk|skew"},
};

static double flops(const sd_layer_cfg *lc, double keys) {
    char v[8];
    (void)keys;
    bool skew = sd_layer_option(lc->options, "features", v, sizeof v) && strcmp(v, "skew") == 0;
    return 4.0 * lc->n_head * (skew ? 2 : 1) * lc->d_qk * (lc->d_v + 1.0);
}

extern const sd_attn_kind sd_attn_kind_elu1;
const sd_attn_kind sd_attn_kind_elu1 = {
    .name = "elu1",
    .summary = "causal linear attention with features ELU+1, chunked, O(1) state (METHOD 7.2)",
    .causal_only = true,
    .recurrent = true,
    .rope = true,
    .part = {SD_PART_Q, SD_PART_K, SD_PART_V},
    .n_part = 3,
    .option = options,
    .n_option = SD_COUNT(options),
    .scale_width = 1,
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_elu1),
};
