/* Kind "potential": routing that is a pure potential, an O(N) recurrence (METHOD §7.3). The softmax
 * sees w_j (and −d_i on the diagonal); subtracting w_i, which it does not see, from row i makes the
 * scores what they stand for: R = 1wᵀ − w1ᵀ, one plane. */
#include "nn/attn_i.h"

SD_ATTN_OPS(sd_attn_potential);

static const sd_attn_option options[] = {SD_OPTION_DIAG("input|none")};

static double flops(const sd_layer_cfg *lc, double keys) {
    (void)keys;
    return 2.0 * lc->n_head * lc->d_v;
}

extern const sd_attn_kind sd_attn_kind_potential;
const sd_attn_kind sd_attn_kind_potential = {
    .name = "potential",
    .summary = "per-key bias w_j, and −d_i on the diagonal for S–D: O(N) recurrence (METHOD 7.3)",
    .causal_only = true,
    .recurrent = true,
    .part = {SD_PART_AUGMENTED(SD_SLOT_W, SD_ROLE_POT, SD_WIDTH_HEADS), SD_PART_V, SD_PART_U},
    .n_part = 3,
    .option = options,
    .n_option = SD_COUNT(options),
    .routing = {.q = SD_SLOT_ONE, .k = SD_SLOT_W, .factor = 2},
    .diagonal = SD_SCORE_DIAG_REPLACE,
    .flops = flops,
    SD_ATTN_KERNELS(sd_attn_potential),
};
