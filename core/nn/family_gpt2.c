/* GPT-2 as Hugging Face stores it: pre-norm blocks, learned positions, Conv1D weights [in, out],
 * fused c_attn. Also files in which all weights are transposed ([out, in], nanoGPT's Linear), told
 * apart by c_attn's shape. */
#include <math.h>
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

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static void rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                          char out[128]) {
    (void)c;
    name = sd_family_strip(sd_family_strip(name, "_orig_mod."), "transformer.");
    // attn.bias and attn.masked_bias are causal masks, not biases (CASES M01)
    if (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
        (cfg->tied && strcmp(name, "lm_head.weight") == 0))
        out[0] = 0;
    else
        sd_family_name(out, name);
}

/* nanoGPT's Linear layout: c_attn stored [3D, D]. Square matrices cannot tell, so c_attn decides
 * for all four weights of a block (CASES M02). */
static bool is_transposed(const sd_container *c, int64_t d_model) {
    static const char *const names[] = {"h.0.attn.c_attn.weight",
                                        "transformer.h.0.attn.c_attn.weight",
                                        "_orig_mod.transformer.h.0.attn.c_attn.weight"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        int i = sd_container_find(c, names[k]);
        if (i >= 0) {
            const sd_tensor_info *t = sd_container_at(c, (size_t)i);
            return t->ndim == 2 && t->shape[0] == 3 * d_model && t->shape[1] == d_model;
        }
    }
    return false;
}

static sd_relayout relayout(const sd_config *cfg, const sd_container *c, const char *stored) {
    sd_relayout r = {0};
    r.transpose = ends_with(stored, ".weight") && strstr(stored, ".c_") != NULL &&
                  is_transposed(c, cfg->d_model);
    return r;
}

static bool locate(const sd_config *cfg, int layer, sd_role r, sd_locator *out) {
    return sd_family_rows_locate(rows, N_ROWS, cfg, layer, r, out);
}

static bool tensor_at(const sd_config *cfg, size_t i, char name[128], int *ndim, int64_t *shape) {
    return sd_family_rows_at(rows, N_ROWS, cfg, i, name, ndim, shape);
}

static const char *export_prefix(const sd_config *cfg, const char *stored) {
    // with a head of its own the file is a GPT2LMHeadModel, whose body is called transformer
    return !cfg->tied && strncmp(stored, "lm_head.", 8) != 0 && strncmp(stored, "sd.", 3) != 0
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
    json_t *o =
        json_pack("{s:s, s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b, s:b, s:b}",
                  "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "n_layer", cfg->n_layer,
                  "n_head", n_head, "n_embd", cfg->d_model, "n_positions", cfg->n_pos, "n_ctx",
                  cfg->n_pos, "vocab_size", cfg->vocab, "n_inner", cfg->d_ff, "activation_function",
                  sd_family_act_name(cfg->act), "layer_norm_epsilon", cfg->norm_eps,
                  "scale_attn_weights", by_width, "scale_attn_by_inverse_layer_idx", by_layer,
                  "tie_word_embeddings", cfg->tied);
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
    .locate = locate,
    .tensor_at = tensor_at,
    .export_prefix = export_prefix,
    .describe = describe,
};
