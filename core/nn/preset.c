#include "nn/preset.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "nn/attn.h"
#include "nn/family.h"

static const sd_preset presets[] = {
    {"nano", "2 layers of width 64, for tests", 2, 64, 2, 32, 256, 64},
    {"micro", "4 layers of width 128, minutes on a laptop", 4, 128, 4, 32, 4096, 128},
    {"mini", "6 layers of width 256, under an hour on a laptop", 6, 256, 4, 64, 8192, 256},
    {"7M", "4 layers of width 128, GPT-2's vocabulary", 4, 128, 2, 64, 50257, 1024},
    {"18M", "6 layers of width 256, GPT-2's vocabulary", 6, 256, 4, 64, 50257, 1024},
    {"30M", "6 layers of width 384, GPT-2's vocabulary", 6, 384, 6, 64, 50257, 1024},
    {"51M", "8 layers of width 512, GPT-2's vocabulary", 8, 512, 8, 64, 50257, 1024},
    {"125M", "12 layers of width 768, GPT-2's vocabulary", 12, 768, 12, 64, 50257, 1024},
    {"355M", "24 layers of width 1024, GPT-2's vocabulary", 24, 1024, 16, 64, 50257, 1024},
};

const sd_preset *sd_preset_at(size_t i) {
    return i < sizeof presets / sizeof presets[0] ? &presets[i] : NULL;
}

const sd_preset *sd_preset_find(const char *name) {
    for (size_t i = 0; sd_preset_at(i); i++) {
        if (strcasecmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

sd_status sd_preset_config(const sd_preset *p, const char *family, const char *kind, sd_norm norm,
                           sd_config *out, sd_err *err) {
    bool gpt2 = strcmp(family, "gpt2") == 0;
    memset(out, 0, sizeof *out);
    if (!gpt2 && strcmp(family, "sd") != 0)
        return sd_fail(err, SD_EINVAL, "presets make models of family sd or gpt2, not '%s'",
                       family);
    if (norm == SD_NORM_RMS || (gpt2 && norm != SD_NORM_LAYER))
        return sd_fail(err, SD_EINVAL, "family %s is made with %s", family,
                       gpt2 ? "layer norm" : "layer norm or none");
    SD_TRY(sd_config_init(out, p->n_layer, err));
    strcpy(out->family, gpt2 ? "gpt2" : "sd");
    out->d_model = p->d_model;
    out->d_ff = 4 * p->d_model;
    out->vocab = p->vocab;
    out->n_pos = p->n_pos;
    out->causal = true;
    out->norm = norm;
    out->norm_eps = 1e-5;
    out->final_norm = norm != SD_NORM_NONE;
    out->block = SD_BLOCK_PRE;
    out->act = SD_ACT_GELU;
    out->pos = SD_POS_LEARNED;
    out->tied = true;
    out->has_head = true;
    out->qkv_bias = out->out_bias = gpt2;
    out->mlp_bias = true;
    out->embed_scale = norm == SD_NORM_NONE ? sqrt((double)p->d_model) : 1.0;
    out->d_floor = 1e-4;
    sd_family_layers(out, kind, p->n_head, p->n_head, p->d_head, p->d_head, 1.0);
    for (int l = 0; l < out->n_layer; l++) {
        sd_layer_cfg *lc = &out->layer[l];
        if (sd_attn_of(lc))
            sd_attn_least_options(sd_attn_of(lc), lc->options, sizeof lc->options);
        sd_attn_normalize(lc);
        lc->scale = sd_attn_fresh_scale(lc);
    }
    sd_status st = sd_config_check(out, err);
    if (st != SD_OK)
        sd_config_free(out);
    return st;
}
