/* GPT-2 as Hugging Face stores it: pre-norm blocks, learned positions, Conv1D weights [in, out],
 * fused c_attn. Also files in which all weights are transposed ([out, in], nanoGPT's Linear), told
 * apart by c_attn's shape. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/family.h"

static const sd_family_row rows[] = {
    {"wte.weight", SD_LAY_AS_IS, SD_ROLE_TOK},
    {"wpe.weight", SD_LAY_AS_IS, SD_ROLE_POS},
    {"h.{l}.ln_1.weight", SD_LAY_AS_IS, SD_ROLE_NORM1_G},
    {"h.{l}.ln_1.bias", SD_LAY_AS_IS, SD_ROLE_NORM1_B},
    {"h.{l}.attn.c_attn.weight", SD_LAY_QKV_IN_OUT, SD_ROLE_WQ},
    {"h.{l}.attn.c_attn.bias", SD_LAY_QKV_IN_OUT, SD_ROLE_BQ},
    {"h.{l}.attn.c_proj.weight", SD_LAY_AS_IS, SD_ROLE_WO},
    {"h.{l}.attn.c_proj.bias", SD_LAY_AS_IS, SD_ROLE_BO},
    {"h.{l}.ln_2.weight", SD_LAY_AS_IS, SD_ROLE_NORM2_G},
    {"h.{l}.ln_2.bias", SD_LAY_AS_IS, SD_ROLE_NORM2_B},
    {"h.{l}.mlp.c_fc.weight", SD_LAY_AS_IS, SD_ROLE_W1},
    {"h.{l}.mlp.c_fc.bias", SD_LAY_AS_IS, SD_ROLE_B1},
    {"h.{l}.mlp.c_proj.weight", SD_LAY_AS_IS, SD_ROLE_W2},
    {"h.{l}.mlp.c_proj.bias", SD_LAY_AS_IS, SD_ROLE_B2},
    {"ln_f.weight", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_G},
    {"ln_f.bias", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_B},
    {"lm_head.weight", SD_LAY_OUT_IN, SD_ROLE_HEAD},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool matches(const json_t *config, bool gguf) {
    return !gguf && sd_family_is(config, "gpt2", "GPT2");
}

static double head_scale(int d, bool by_width, bool by_layer, int layer) {
    return (by_width ? 1.0 / sqrt((double)d) : 1.0) / (by_layer ? layer + 1.0 : 1.0);
}

static sd_status configure(const json_t *config, sd_container *c, sd_config *cfg, const sd_run *run,
                           sd_err *err) {
    int n_layer = 0, n_head = 0;
    SD_TRY(sd_family_int(config, "n_layer", "num_hidden_layers", 1, SD_MAX_LAYERS, true, &n_layer,
                         err));
    SD_TRY(sd_config_init(cfg, n_layer, err));
    SD_TRY(sd_family_int(config, "n_embd", "hidden_size", 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(sd_family_int(config, "n_head", "num_attention_heads", 1, 4096, true, &n_head, err));
    SD_TRY(sd_family_int(config, "n_positions", "max_position_embeddings", 1, 1 << 28, false,
                         &cfg->n_pos, err));
    if (cfg->n_pos == 0)
        SD_TRY(sd_family_int(config, "n_ctx", NULL, 1, 1 << 28, true, &cfg->n_pos, err));
    SD_TRY(sd_family_int(config, "vocab_size", NULL, 1, 1 << 24, true, &cfg->vocab, err));
    cfg->d_ff = 4 * cfg->d_model;
    SD_TRY(sd_family_int(config, "n_inner", NULL, 1, 1 << 20, false, &cfg->d_ff, err));
    SD_TRY(sd_family_act(config, "activation_function", "gelu_new", &cfg->act, err));
    SD_TRY(sd_family_real(config, "layer_norm_epsilon", NULL, 1e-5, &cfg->norm_eps, err));
    bool by_width, by_layer, cross;
    SD_TRY(sd_family_bool(config, "scale_attn_weights", true, &by_width, err));
    SD_TRY(sd_family_bool(config, "scale_attn_by_inverse_layer_idx", false, &by_layer, err));
    SD_TRY(sd_family_bool(config, "add_cross_attention", false, &cross, err));
    if (cross)
        return sd_fail(err, SD_EFORMAT, "add_cross_attention is not supported");
    if (cfg->d_model % n_head)
        return sd_fail(err, SD_EFORMAT, "n_embd %d is no multiple of n_head %d", cfg->d_model,
                       n_head);
    static const char *const heads[] = {"lm_head.weight", "_orig_mod.lm_head.weight", NULL};
    static const char *const embeds[] = {"transformer.wte.weight", "wte.weight",
                                         "_orig_mod.transformer.wte.weight", NULL};
    if (sd_family_other_task(c, heads))
        cfg->tied = true; // GPT2ForSequenceClassification and its like: no output
    else
        SD_TRY(sd_family_tie(config, true, c, heads, embeds, run, cfg, err));
    SD_TRY(sd_family_special(config, cfg, err));
    cfg->causal = true;
    cfg->norm = SD_NORM_LAYER;
    cfg->final_norm = true;
    cfg->block = SD_BLOCK_PRE;
    cfg->pos = SD_POS_LEARNED;
    cfg->qkv_bias = cfg->out_bias = cfg->mlp_bias = true;
    int d = cfg->d_model / n_head;
    sd_family_layers(cfg, "softmax", n_head, n_head, d, d, 1.0);
    for (int l = 0; l < n_layer; l++)
        cfg->layer[l].scale = head_scale(d, by_width, by_layer, l);
    return SD_OK;
}

static const char *rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                                 char out[128]) {
    const char *s = sd_family_strip(sd_family_strip(name, "_orig_mod."), "transformer.");
    out[0] = 0;
    // attn.bias and attn.masked_bias are causal masks, not biases (CASES M01)
    if (sd_family_is_mask(c, name, ".attn.bias") || sd_family_is_mask(c, name, ".attn.masked_bias"))
        return SD_WHY_MASK;
    if (strcmp(s, "lm_head.weight") == 0 && cfg->tied)
        return SD_WHY_TIED;
    sd_family_name(out, s);
    return NULL;
}

/* +1 when the file's tensor has the transpose of (in, out), -1 when it has that, 0 else. */
static int turned(const sd_container *c, const char *prefix, int layer, const char *tail,
                  int64_t in, int64_t out) {
    char name[128];
    snprintf(name, sizeof name, "%sh.%d.%s", prefix, layer, tail);
    int i = sd_container_find(c, name);
    const sd_tensor_info *t = i < 0 ? NULL : sd_container_at(c, (size_t)i);
    if (!t || t->ndim != 2 || in == out)
        return 0;
    return t->shape[0] == out && t->shape[1] == in   ? 1
           : t->shape[0] == in && t->shape[1] == out ? -1
                                                     : 0;
}

/* nanoGPT's Linear layout: weights stored [out, in]. Square matrices cannot tell (CASES M02): the
 * others of a block decide for all four, the majority, so that a single one that is transposed is
 * the one reported. */
static bool is_transposed(const sd_config *cfg, const sd_container *c, int layer) {
    static const char *const prefixes[] = {"transformer.", "", "_orig_mod.transformer."};
    int64_t d = cfg->d_model, ff = cfg->d_ff;
    int votes = 0;
    for (size_t k = 0; k < sizeof prefixes / sizeof prefixes[0]; k++) {
        votes += turned(c, prefixes[k], layer, "attn.c_attn.weight", d, 3 * d);
        votes += turned(c, prefixes[k], layer, "mlp.c_fc.weight", d, ff);
        votes += turned(c, prefixes[k], layer, "mlp.c_proj.weight", ff, d);
    }
    return votes > 0;
}

static sd_relayout relayout(const sd_config *cfg, const sd_container *c, const char *stored) {
    sd_relayout r = {0};
    int layer = 0;
    if (sd_family_ends_with(stored, ".weight") && strstr(stored, ".c_") &&
        sscanf(stored, "h.%d.", &layer) == 1 && layer >= 0 && layer < cfg->n_layer)
        r.transpose = is_transposed(cfg, c, layer);
    return r;
}

static const char *unused(const sd_config *cfg, const char *stored) {
    (void)cfg;
    return sd_family_task_head(stored);
}

static bool locate(const sd_config *cfg, int layer, sd_role r, sd_locator *out) {
    return sd_family_rows_locate(rows, N_ROWS, cfg, layer, r, out);
}

static bool tensor_at(const sd_config *cfg, size_t i, char name[128], int *ndim, int64_t *shape) {
    return sd_family_rows_at(rows, N_ROWS, cfg, i, name, ndim, shape);
}

static const char *export_prefix(const sd_config *cfg, const char *stored) {
    // with a head of its own the file is a GPT2LMHeadModel, whose body is called transformer; so
    // is that of models for other tasks
    return (!cfg->tied || !cfg->has_head) && strncmp(stored, "lm_head.", 8) != 0 &&
                   strncmp(stored, "sd.", 3) != 0 && !sd_family_task_head(stored)
               ? "transformer."
               : "";
}

static sd_status describe(const sd_config *cfg, json_t **out, sd_err *err) {
    int n_head = cfg->layer[0].n_head;
    if (cfg->d_model % n_head)
        n_head = 1;
    int d = cfg->d_model / n_head;
    // which of the four scale settings do the layers agree with?
    bool by_width = true, by_layer = false;
    for (int k = 0; k < 4; k++) {
        bool w = !(k & 1), y = (k & 2) != 0, all = true;
        for (int l = 0; l < cfg->n_layer; l++) {
            double s = head_scale(d, w, y, l);
            all = all && fabs(cfg->layer[l].scale - s) <= 1e-12 * s;
        }
        if (all) {
            by_width = w, by_layer = y;
            break;
        }
    }
    json_t *o = json_pack(
        "{s:s, s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b, s:b, s:b}", "model_type",
        "gpt2", "architectures", cfg->has_head ? "GPT2LMHeadModel" : "GPT2Model", "n_layer",
        cfg->n_layer, "n_head", n_head, "n_embd", cfg->d_model, "n_positions", cfg->n_pos, "n_ctx",
        cfg->n_pos, "vocab_size", cfg->vocab, "n_inner", cfg->d_ff, "activation_function",
        sd_family_act_name(cfg->act), "layer_norm_epsilon", cfg->norm_eps, "scale_attn_weights",
        by_width, "scale_attn_by_inverse_layer_idx", by_layer, "tie_word_embeddings", cfg->tied);
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    *out = o;
    return SD_OK;
}

const sd_family sd_family_gpt2 = {
    .name = "gpt2",
    .summary = "GPT-2: pre-norm, learned positions, fused Conv1D projections",
    .matches = matches,
    .configure = configure,
    .rename = rename_tensor,
    .relayout = relayout,
    .unused = unused,
    .locate = locate,
    .tensor_at = tensor_at,
    .export_prefix = export_prefix,
    .describe = describe,
};
