/* GPT-NeoX (Pythia): attention and MLP in parallel or one after the other, rotary positions on a
 * part of each head, query_key_value interleaved per head (CASES M04, M05). */
#include <math.h>
#include <string.h>

#include "nn/family.h"

#define LAYER "gpt_neox.layers.{l}."
static const sd_family_row rows[] = {
    {"gpt_neox.embed_in.weight", SD_LAY_AS_IS, SD_ROLE_TOK},
    {LAYER "input_layernorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM1_G},
    {LAYER "input_layernorm.bias", SD_LAY_AS_IS, SD_ROLE_NORM1_B},
    {LAYER "attention.query_key_value.weight", SD_LAY_QKV_PER_HEAD, SD_ROLE_WQ},
    {LAYER "attention.query_key_value.bias", SD_LAY_QKV_PER_HEAD, SD_ROLE_BQ},
    {LAYER "attention.dense.weight", SD_LAY_OUT_IN, SD_ROLE_WO},
    {LAYER "attention.dense.bias", SD_LAY_AS_IS, SD_ROLE_BO},
    {LAYER "post_attention_layernorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM2_G},
    {LAYER "post_attention_layernorm.bias", SD_LAY_AS_IS, SD_ROLE_NORM2_B},
    {LAYER "mlp.dense_h_to_4h.weight", SD_LAY_OUT_IN, SD_ROLE_W1},
    {LAYER "mlp.dense_h_to_4h.bias", SD_LAY_AS_IS, SD_ROLE_B1},
    {LAYER "mlp.dense_4h_to_h.weight", SD_LAY_OUT_IN, SD_ROLE_W2},
    {LAYER "mlp.dense_4h_to_h.bias", SD_LAY_AS_IS, SD_ROLE_B2},
    {"gpt_neox.final_layer_norm.weight", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_G},
    {"gpt_neox.final_layer_norm.bias", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_B},
    {"embed_out.weight", SD_LAY_OUT_IN, SD_ROLE_HEAD},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool matches(const json_t *config, bool gguf) {
    return !gguf && sd_family_is(config, "gpt_neox", "GPTNeoX");
}

static sd_status configure(const json_t *config, sd_container *c, sd_config *cfg, const sd_run *run,
                           sd_err *err) {
    int n_layer = 0, n_head = 0;
    SD_TRY(sd_family_int(config, "num_hidden_layers", NULL, 1, SD_MAX_LAYERS, true, &n_layer, err));
    SD_TRY(sd_config_init(cfg, n_layer, err));
    SD_TRY(sd_family_int(config, "hidden_size", NULL, 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(sd_family_int(config, "num_attention_heads", NULL, 1, 4096, true, &n_head, err));
    cfg->d_ff = 4 * cfg->d_model;
    SD_TRY(sd_family_int(config, "intermediate_size", NULL, 1, 1 << 20, false, &cfg->d_ff, err));
    cfg->n_pos = 2048;
    SD_TRY(sd_family_int(config, "max_position_embeddings", NULL, 1, 1 << 28, false, &cfg->n_pos,
                         err));
    SD_TRY(sd_family_int(config, "vocab_size", NULL, 1, 1 << 24, true, &cfg->vocab, err));
    SD_TRY(sd_family_act(config, "hidden_act", "gelu", &cfg->act, err));
    SD_TRY(sd_family_real(config, "layer_norm_eps", NULL, 1e-5, &cfg->norm_eps, err));
    bool parallel, bias;
    SD_TRY(sd_family_bool(config, "use_parallel_residual", true, &parallel, err));
    SD_TRY(sd_family_bool(config, "attention_bias", true, &bias, err));
    if (cfg->d_model % n_head)
        return sd_fail(err, SD_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d",
                       cfg->d_model, n_head);
    int d = cfg->d_model / n_head;
    SD_TRY(sd_family_rope(config, "rotary_emb_base", "rotary_pct", 0.25, d, cfg, err));
    static const char *const heads[] = {"embed_out.weight", NULL};
    static const char *const embeds[] = {"gpt_neox.embed_in.weight", "embed_in.weight", NULL};
    if (sd_family_bare(config, c, heads[0], "embed_in.weight")) {
        cfg->has_head = false; // GPTNeoXModel
        cfg->tied = true;
    } else {
        SD_TRY(sd_family_tie(config, false, c, heads, embeds, run, cfg, err));
    }
    SD_TRY(sd_family_special(config, cfg, err));
    cfg->causal = true;
    cfg->norm = SD_NORM_LAYER;
    cfg->final_norm = true;
    cfg->block = parallel ? SD_BLOCK_PARALLEL : SD_BLOCK_PRE;
    cfg->qkv_bias = cfg->out_bias = bias;
    cfg->mlp_bias = true;
    sd_family_layers(cfg, "softmax", n_head, n_head, d, d, 1.0 / sqrt((double)d));
    return SD_OK;
}

static const char *rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                                 char out[128]) {
    out[0] = 0;
    if (sd_family_is_mask(c, name, ".attention.bias") ||
        sd_family_is_mask(c, name, ".attention.masked_bias"))
        return SD_WHY_MASK;
    if (sd_family_ends_with(name, ".rotary_emb.inv_freq"))
        return SD_WHY_FREQ;
    if (cfg->tied && strcmp(name, "embed_out.weight") == 0)
        return SD_WHY_TIED;
    bool bare = strncmp(name, "layers.", 7) == 0 || strncmp(name, "embed_in.", 9) == 0 ||
                strncmp(name, "final_layer_norm.", 17) == 0;
    if (bare && strlen(name) < 110) {
        strcpy(out, "gpt_neox.");
        strcat(out, name);
    } else {
        sd_family_name(out, name);
    }
    return NULL;
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

static sd_status describe(const sd_config *cfg, json_t **out, sd_err *err) {
    int n_head = cfg->layer[0].n_head;
    if (cfg->d_model % n_head)
        n_head = 1;
    int d = cfg->d_model / n_head;
    json_t *o = json_pack(
        "{s:s, s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b, s:b, s:b}", "model_type",
        "gpt_neox", "architectures", cfg->has_head ? "GPTNeoXForCausalLM" : "GPTNeoXModel",
        "num_hidden_layers", cfg->n_layer, "hidden_size", cfg->d_model, "num_attention_heads",
        n_head, "intermediate_size", cfg->d_ff, "max_position_embeddings", cfg->n_pos, "vocab_size",
        cfg->vocab, "hidden_act", sd_family_act_name(cfg->act), "layer_norm_eps", cfg->norm_eps,
        "use_parallel_residual", cfg->block == SD_BLOCK_PARALLEL, "attention_bias", cfg->qkv_bias,
        "tie_word_embeddings", cfg->tied && cfg->has_head);
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    sd_status st = sd_family_rope_describe(cfg, d, o, err);
    if (st == SD_OK &&
        (json_object_set_new(o, "rotary_pct", json_real((double)cfg->rope.dim / d)) ||
         json_object_set_new(o, "rotary_emb_base", json_real(cfg->rope.theta))))
        st = sd_fail(err, SD_ENOMEM, "out of memory");
    if (st != SD_OK) {
        json_decref(o);
        return st;
    }
    *out = o;
    return SD_OK;
}

const sd_family sd_family_gpt_neox = {
    .name = "gpt_neox",
    .summary = "GPT-NeoX (Pythia): parallel or serial blocks, partial rotary positions",
    .matches = matches,
    .configure = configure,
    .rename = rename_tensor,
    .unused = unused,
    .locate = locate,
    .tensor_at = tensor_at,
    .describe = describe,
};
