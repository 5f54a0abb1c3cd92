#include "nn/price.h"

#include <string.h>

static double elements(const sd_config *cfg, int layer, sd_role r) {
    int64_t shape[2];
    int ndim;
    if (!sd_role_shape(cfg, layer, r, shape, &ndim))
        return 0;
    return (double)shape[0] * (ndim == 2 ? (double)shape[1] : 1);
}

/* Numbers the layer projects for one token: the width of its parts. */
static double projected(const sd_config *cfg, int layer) {
    const sd_attn_kind *k = sd_attn_of(&cfg->layer[layer]);
    double n = 0;
    for (int i = 0; i < k->n_part; i++) {
        const sd_attn_part *p = &k->part[i];
        int64_t shape[2];
        int ndim;
        if (p->slot != SD_SLOT_NONE && sd_role_shape(cfg, layer, p->weight, shape, &ndim))
            n += (double)shape[ndim - 1];
    }
    return n;
}

static double params(const sd_config *cfg, int layer) {
    const sd_attn_kind *k = sd_attn_of(&cfg->layer[layer]);
    double n = elements(cfg, layer, SD_ROLE_WO) + elements(cfg, layer, SD_ROLE_BO);
    for (int i = 0; i < k->n_part; i++) {
        n += elements(cfg, layer, k->part[i].weight);
        if (k->part[i].bias != SD_ROLE_COUNT)
            n += elements(cfg, layer, k->part[i].bias);
    }
    return n;
}

static size_t state_elements(const sd_config *cfg, int layer) {
    const sd_layer_cfg *lc = &cfg->layer[layer];
    const sd_attn_kind *k = sd_attn_of(lc);
    sd_attn_args a = {.kind = k,
                      .batch = 1,
                      .tokens = 1,
                      .n_head = lc->n_head / lc->n_kv_head,
                      .n_kv = 1,
                      .d_qk = lc->d_qk,
                      .d_v = lc->d_v,
                      .planes = lc->planes,
                      .f_rank = lc->f_rank,
                      .causal = true,
                      .window = sd_attn_window(lc),
                      .options = lc->options};
    for (int s = 0; s < SD_SLOT_COUNT; s++)
        a.has[s] = sd_attn_part_of(lc, (sd_slot)s) != NULL;
    return k->f32->state_size ? k->f32->state_size(&a) * (size_t)lc->n_kv_head : 0;
}

void sd_price_layer(const sd_config *cfg, int layer, int tokens, sd_price *out) {
    const sd_layer_cfg *lc = &cfg->layer[layer];
    const sd_attn_kind *k = sd_attn_of(lc);
    double width = projected(cfg, layer), d = cfg->d_model;
    *out = (sd_price){.attn_params = (int64_t)params(cfg, layer), .recurrent = k->recurrent};
    out->attn_flops = 2 * d * width + 2 * (double)lc->n_head * lc->d_v * d +
                      k->flops(lc, sd_attn_mean_keys(lc, cfg->causal, (size_t)tokens));
    out->flops = out->attn_flops;
    if (k->recurrent) {
        out->state_bytes = sizeof(float) * (double)state_elements(cfg, layer);
    } else {
        int window = sd_attn_window(lc);
        out->cache_bytes = sizeof(float) * width * (window && window < tokens ? window : tokens);
    }
}

void sd_price_of(const sd_config *cfg, int tokens, sd_price *out) {
    double d = cfg->d_model;
    *out = (sd_price){0};
    for (int l = 0; l < cfg->n_layer; l++) {
        sd_price y;
        sd_price_layer(cfg, l, tokens, &y);
        out->flops += y.flops + 2 * d * cfg->d_ff * (cfg->gated_mlp ? 3 : 2);
        out->attn_flops += y.attn_flops;
        out->cache_bytes += y.cache_bytes;
        out->state_bytes += y.state_bytes;
        out->attn_params += y.attn_params;
        out->recurrent += y.recurrent;
    }
    if (cfg->has_head)
        out->flops += 2 * d * cfg->vocab + (cfg->mlm_head ? 2 * d * d : 0);
}
