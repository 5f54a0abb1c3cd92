/* hook.c: names of activations, and which layers have them (nn/hook.h). */
#include "nn/hook.h"

#include <string.h>

static const struct {
    const char *name, *doc;
} points[SD_POINT_COUNT] = {
    [SD_POINT_RESID_PRE] = {"resid_pre", "residual stream before the block (layer 0: embedding)"},
    [SD_POINT_ATTN_IN] = {"attn_in", "input of the attention sublayer, after its norm"},
    [SD_POINT_Q] = {"q", "queries after rotation"},
    [SD_POINT_K] = {"k", "keys after rotation"},
    [SD_POINT_V] = {"v", "values"},
    [SD_POINT_D] = {"d", "the positive diagonal of S–D"},
    [SD_POINT_SCORES] = {"scores", "scores of all pairs, unmasked, before the softmax"},
    [SD_POINT_PATTERN] = {"pattern", "attention pattern: row = query, column = key"},
    [SD_POINT_Z] = {"z", "outputs of the heads, before the output projection"},
    [SD_POINT_ATTN_OUT] = {"attn_out", "what attention gives to the residual stream"},
    [SD_POINT_RESID_MID] = {"resid_mid", "residual stream between attention and MLP"},
    [SD_POINT_MLP_IN] = {"mlp_in", "input of the MLP, after its norm"},
    [SD_POINT_MLP_ACT] = {"mlp_act", "hidden units of the MLP"},
    [SD_POINT_MLP_OUT] = {"mlp_out", "what the MLP gives to the residual stream"},
    [SD_POINT_RESID_POST] = {"resid_post", "residual stream after the block"},
    [SD_POINT_FINAL] = {"final", "after the final norm: what meets the output head"},
};

const char *sd_point_name(sd_point p) {
    return points[p].name;
}

const char *sd_point_doc(sd_point p) {
    return points[p].doc;
}

sd_point sd_point_find(const char *name) {
    for (int i = 0; i < SD_POINT_COUNT; i++)
        if (strcmp(points[i].name, name) == 0)
            return (sd_point)i;
    return SD_POINT_COUNT;
}

sd_status sd_point_check(const sd_config *cfg, sd_point p, int layer, sd_err *err) {
    if (layer < 0 || layer >= cfg->n_layer)
        return sd_fail(err, SD_EINVAL, "expected layer 0..%d, got %d", cfg->n_layer - 1, layer);
    const sd_layer_cfg *lc = &cfg->layer[layer];
    char why[64];
    bool has = true;
    switch (p) {
    case SD_POINT_Q:
    case SD_POINT_K:
        has = sd_attn_part_of(lc, p == SD_POINT_Q ? SD_SLOT_Q : SD_SLOT_K) != NULL;
        break;
    case SD_POINT_D:
        has = sd_attn_part_of(lc, SD_SLOT_U) != NULL;
        break;
    case SD_POINT_SCORES:
        has = sd_attn_no_scores(lc, why) == NULL;
        break;
    case SD_POINT_RESID_MID:
        has = cfg->block != SD_BLOCK_PARALLEL;
        break;
    case SD_POINT_FINAL:
        if (layer != cfg->n_layer - 1)
            return sd_fail(err, SD_EINVAL, "final belongs to the last layer, %d, not to layer %d",
                           cfg->n_layer - 1, layer);
        break;
    default:
        break;
    }
    if (has)
        return SD_OK;
    if (p == SD_POINT_RESID_MID)
        return sd_fail(err, SD_EINVAL,
                       "layer %d has no resid_mid: attention and MLP of this family stand side by "
                       "side",
                       layer);
    return sd_fail(err, SD_EINVAL, "layer %d (%s) has no %s", layer, lc->kind, points[p].name);
}
