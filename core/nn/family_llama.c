/* Llama and what is llama in all but name (Mistral, Qwen2, SmolLM): RMS norm, rotary positions,
 * grouped key heads, gated MLP; biases and tying as the tensors say. From Hugging Face folders and
 * from GGUF files, whose "llama" architecture stores each head's Q and K rows with the rotary pairs
 * interleaved (CASES G10). Layers with a sliding window are of kind "window": key j is seen where
 * i − j < sliding_window. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/attn.h"
#include "nn/family.h"

#define LAYER "model.layers.{l}."
static const sd_family_row rows[] = {
    {"model.embed_tokens.weight", SD_LAY_AS_IS, SD_ROLE_TOK},
    {LAYER "input_layernorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM1_G},
    {LAYER "self_attn.q_proj.weight", SD_LAY_OUT_IN, SD_ROLE_WQ},
    {LAYER "self_attn.q_proj.bias", SD_LAY_AS_IS, SD_ROLE_BQ},
    {LAYER "self_attn.k_proj.weight", SD_LAY_OUT_IN, SD_ROLE_WK},
    {LAYER "self_attn.k_proj.bias", SD_LAY_AS_IS, SD_ROLE_BK},
    {LAYER "self_attn.v_proj.weight", SD_LAY_OUT_IN, SD_ROLE_WV},
    {LAYER "self_attn.v_proj.bias", SD_LAY_AS_IS, SD_ROLE_BV},
    {LAYER "self_attn.o_proj.weight", SD_LAY_OUT_IN, SD_ROLE_WO},
    {LAYER "self_attn.o_proj.bias", SD_LAY_AS_IS, SD_ROLE_BO},
    {LAYER "post_attention_layernorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM2_G},
    {LAYER "mlp.gate_proj.weight", SD_LAY_OUT_IN, SD_ROLE_W1},
    {LAYER "mlp.up_proj.weight", SD_LAY_OUT_IN, SD_ROLE_W3},
    {LAYER "mlp.down_proj.weight", SD_LAY_OUT_IN, SD_ROLE_W2},
    {"model.norm.weight", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_G},
    {"lm_head.weight", SD_LAY_OUT_IN, SD_ROLE_HEAD},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static const char *gguf_arch(const json_t *meta) {
    const char *a = json_string_value(json_object_get(meta, "general.architecture"));
    return a ? a : "";
}

static bool is_named(const json_t *config) {
    return sd_family_is(config, "llama", "Llama") || sd_family_is(config, "mistral", "Mistral") ||
           sd_family_is(config, "qwen2", "Qwen2");
}

static bool matches(const json_t *config, bool gguf) {
    if (gguf)
        return sd_family_reads_gguf(&sd_family_llama, gguf_arch(config));
    if (is_named(config))
        return true;
    // another name for the same structure: accepted by its keys; its tensors must then match too
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    return json_object_get(config, "rms_norm_eps") && json_object_get(config, "hidden_size") &&
           json_object_get(config, "num_hidden_layers") &&
           json_object_get(config, "num_attention_heads") &&
           json_object_get(config, "intermediate_size") && act &&
           (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0);
}

/* Keys that change what is computed without showing in the tensors' names or shapes. */
static sd_status refuse_other_maths(const json_t *config, sd_err *err) {
    static const char *const keys[] = {
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "logit_scale",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "clip_qkv",
        "scale_emb",
        "scale_depth",
        "dim_model_base",
        "no_rope_layers",
        "no_rope_layer_interval",
        "attention_chunk_size",
        "use_qk_norm",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "parallel_residual",
        "alibi",
        "mup_scale",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *v = json_object_get(config, keys[i]);
        if (!v || json_is_null(v) || json_is_false(v))
            continue;
        return sd_fail(err, SD_EFORMAT, "'%s' is not supported: this is not a llama-type model",
                       keys[i]);
    }
    return SD_OK;
}

static sd_status read_hf(const json_t *config, int *n_layer, int *n_head, int *n_kv, int *d,
                         sd_config *cfg, sd_err *err) {
    SD_TRY(refuse_other_maths(config, err));
    SD_TRY(sd_family_int(config, "num_hidden_layers", NULL, 1, SD_MAX_LAYERS, true, n_layer, err));
    SD_TRY(sd_config_init(cfg, *n_layer, err));
    SD_TRY(sd_family_int(config, "hidden_size", NULL, 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(sd_family_int(config, "num_attention_heads", NULL, 1, 4096, true, n_head, err));
    *n_kv = *n_head;
    SD_TRY(sd_family_int(config, "num_key_value_heads", NULL, 1, 4096, false, n_kv, err));
    SD_TRY(sd_family_int(config, "head_dim", NULL, 1, 8192, false, d, err));
    if (*d == 0) {
        if (cfg->d_model % *n_head)
            return sd_fail(err, SD_EFORMAT,
                           "hidden_size %d is no multiple of num_attention_heads %d", cfg->d_model,
                           *n_head);
        *d = cfg->d_model / *n_head;
    }
    SD_TRY(sd_family_int(config, "intermediate_size", NULL, 1, 1 << 20, true, &cfg->d_ff, err));
    SD_TRY(sd_family_int(config, "vocab_size", NULL, 1, 1 << 24, true, &cfg->vocab, err));
    cfg->n_pos = 2048;
    SD_TRY(sd_family_int(config, "max_position_embeddings", NULL, 1, 1 << 28, false, &cfg->n_pos,
                         err));
    SD_TRY(sd_family_act(config, "hidden_act", "silu", &cfg->act, err));
    SD_TRY(sd_family_real(config, "rms_norm_eps", NULL, 1e-6, &cfg->norm_eps, err));
    SD_TRY(sd_family_rope(config, "rope_theta", "partial_rotary_factor", 1.0, *d, cfg, err));
    bool bias, mlp_bias;
    // Qwen2 has biases on q, k and v whatever its config says
    const char *type = json_string_value(json_object_get(config, "model_type"));
    SD_TRY(sd_family_bool(config, "attention_bias", false, &bias, err));
    cfg->qkv_bias = bias || (type && strcmp(type, "qwen2") == 0);
    cfg->out_bias = bias;
    SD_TRY(sd_family_bool(config, "mlp_bias", false, &mlp_bias, err));
    if (mlp_bias)
        return sd_fail(err, SD_EFORMAT, "mlp_bias is not supported");
    if (cfg->rope.dim != *d / 2 * 2)
        return sd_fail(
            err, SD_EFORMAT,
            "partial_rotary_factor is not supported: stock code for this model type does "
            "not follow it, so what the weights were trained with is not known");
    return sd_family_special(config, cfg, err);
}

/* ---- GGUF ---------------------------------------------------------------------------------- */

static sd_status gguf_int(const json_t *meta, const char *key, int lo, int hi, bool required,
                          int *out, sd_err *err) {
    char full[96];
    snprintf(full, sizeof full, "%.40s.%s", gguf_arch(meta), key);
    return sd_family_int(meta, full, NULL, lo, hi, required, out, err);
}

static sd_status gguf_real(const json_t *meta, const char *key, double dflt, double *out,
                           sd_err *err) {
    char full[96];
    snprintf(full, sizeof full, "%.40s.%s", gguf_arch(meta), key);
    return sd_family_real(meta, full, NULL, dflt, out, err);
}

static sd_status gguf_rope(const json_t *meta, sd_container *c, int d, sd_config *cfg,
                           sd_err *err) {
    sd_rope_cfg *r = &cfg->rope;
    cfg->pos = SD_POS_ROPE;
    r->style = SD_ROPE_HALF;
    r->dim = d;
    SD_TRY(gguf_int(meta, "rope.dimension_count", 2, SD_MAX_ROPE, false, &r->dim, err));
    SD_TRY(gguf_real(meta, "rope.freq_base", 10000.0, &r->theta, err));
    char key[96];
    const char *type = "none";
    bool found;
    snprintf(key, sizeof key, "%.40s.rope.scaling.type", gguf_arch(meta));
    SD_TRY(sd_json_str(meta, key, &type, &found, err));
    if (found && strcmp(type, "linear") == 0) {
        strcpy(r->scaling, "linear");
        SD_TRY(gguf_real(meta, "rope.scaling.factor", 1.0, &r->factor, err));
    } else if (found && strcmp(type, "none") != 0) {
        return sd_fail(err, SD_EFORMAT,
                       "rope scaling '%.64s' is not supported (known: none, linear)", type);
    } else if (!found) {
        double old = 0.0; // files from before scaling had types
        SD_TRY(gguf_real(meta, "rope.scale_linear", 0.0, &old, err));
        if (old > 0.0 && old != 1.0) {
            strcpy(r->scaling, "linear");
            r->factor = old;
        }
    }
    int i = sd_container_find(c, "rope_freqs.weight");
    if (i < 0)
        return SD_OK;
    const sd_tensor_info *t = sd_container_at(c, (size_t)i);
    if (t->ndim != 1 || t->shape[0] != r->dim / 2 || t->shape[0] > SD_MAX_ROPE / 2)
        return sd_fail(err, SD_EFORMAT, "tensor rope_freqs.weight holds %lld factors for %d pairs",
                       t->ndim == 1 ? (long long)t->shape[0] : 0LL, r->dim / 2);
    if (strcmp(r->scaling, "none") != 0)
        return sd_fail(err, SD_EFORMAT, "rope_freqs.weight together with rope scaling '%s'",
                       r->scaling);
    sd_tensor *f = NULL;
    SD_TRY(sd_container_read_as(c, (size_t)i, SD_F32, &f, err));
    strcpy(r->scaling, "factors");
    r->n_factor = r->dim / 2;
    memcpy(r->freq_factor, f->data, (size_t)r->n_factor * sizeof(float));
    sd_tensor_free(f);
    return SD_OK;
}

static sd_status read_gguf(const json_t *meta, sd_container *c, int *n_layer, int *n_head,
                           int *n_kv, int *d, sd_config *cfg, sd_err *err) {
    SD_TRY(gguf_int(meta, "block_count", 1, SD_MAX_LAYERS, true, n_layer, err));
    SD_TRY(sd_config_init(cfg, *n_layer, err));
    SD_TRY(gguf_int(meta, "embedding_length", 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(gguf_int(meta, "feed_forward_length", 1, 1 << 20, true, &cfg->d_ff, err));
    SD_TRY(gguf_int(meta, "attention.head_count", 1, 4096, true, n_head, err));
    *n_kv = *n_head;
    SD_TRY(gguf_int(meta, "attention.head_count_kv", 1, 4096, false, n_kv, err));
    SD_TRY(gguf_int(meta, "attention.key_length", 1, 8192, false, d, err));
    if (*d == 0) {
        if (cfg->d_model % *n_head)
            return sd_fail(err, SD_EFORMAT, "embedding_length %d is no multiple of head_count %d",
                           cfg->d_model, *n_head);
        *d = cfg->d_model / *n_head;
    }
    int d_v = *d, experts = 0;
    SD_TRY(gguf_int(meta, "attention.value_length", 1, 8192, false, &d_v, err));
    if (d_v != *d)
        return sd_fail(err, SD_EFORMAT, "value_length %d differs from key_length %d", d_v, *d);
    SD_TRY(gguf_int(meta, "expert_count", 0, 1 << 20, false, &experts, err));
    if (experts > 0)
        return sd_fail(err, SD_EFORMAT, "mixtures of experts (expert_count %d) are not supported",
                       experts);
    cfg->n_pos = 2048;
    SD_TRY(gguf_int(meta, "context_length", 1, 1 << 28, false, &cfg->n_pos, err));
    SD_TRY(
        gguf_int(meta, "attention.sliding_window", 0, 1 << 28, false, &cfg->sliding_window, err));
    SD_TRY(gguf_real(meta, "attention.layer_norm_rms_epsilon", 1e-6, &cfg->norm_eps, err));
    int i = sd_container_find(c, "token_embd.weight");
    if (i < 0)
        return sd_fail(err, SD_EFORMAT, "tensor token_embd.weight is missing");
    const sd_tensor_info *t = sd_container_at(c, (size_t)i);
    if (t->ndim != 2 || t->shape[0] < 1 || t->shape[0] > 1 << 24)
        return sd_fail(err, SD_EFORMAT,
                       "tensor token_embd.weight is no (vocabulary, width) matrix");
    cfg->vocab = (int)t->shape[0];
    cfg->act = SD_ACT_SILU;
    SD_TRY(gguf_rope(meta, c, *d, cfg, err));
    SD_TRY(sd_family_int(meta, "tokenizer.ggml.bos_token_id", NULL, 0, 0x7fffffff, false, &cfg->bos,
                         err));
    SD_TRY(sd_family_int(meta, "tokenizer.ggml.eos_token_id", NULL, 0, 0x7fffffff, false, &cfg->eos,
                         err));
    if (cfg->bos >= cfg->vocab)
        cfg->bos = -1;
    if (cfg->eos >= cfg->vocab)
        cfg->eos = -1;
    return SD_OK;
}

static bool is_gguf(const sd_container *c) {
    return c && strcmp(sd_container_format(c), "gguf") == 0;
}

/* A tensor of the body under one of the names bodies have. */
static bool has_any(const sd_container *c, const char *name) {
    static const char *const bodies[] = {"model.", "", "transformer."};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", bodies[i], name);
        if (sd_family_has(c, full))
            return true;
    }
    return false;
}

/* sliding_window, and which layers it is for, as stock code reads them: Llama ignores the key;
 * Mistral has it in every layer; Qwen2 in none unless use_sliding_window says so, and then in those
 * from max_window_layers on; "layer_types" overrides. Unknown names go by the keys. */
static sd_status read_window(const json_t *config, bool gguf, const sd_run *run, sd_config *cfg,
                             sd_err *err) {
    bool qwen = !gguf && sd_family_is(config, "qwen2", "Qwen2"), on = !qwen;
    int from = 0;
    if (!gguf) {
        int window = 0;
        SD_TRY(sd_family_int(config, "sliding_window", NULL, 1, 1 << 28, false, &window, err));
        if (window && sd_family_is(config, "llama", "Llama")) {
            sd_run_log(run, SD_LOG_WARN, "sliding_window %d: ignored, as stock Llama code does",
                       window);
            return SD_OK;
        }
        SD_TRY(sd_family_bool(config, "use_sliding_window", on, &on, err));
        if (qwen) {
            from = 28;
            SD_TRY(sd_family_int(config, "max_window_layers", NULL, 0, 1 << 20, false, &from, err));
        }
        cfg->sliding_window = on ? window : 0;
    }
    const json_t *types = gguf ? NULL : json_object_get(config, "layer_types");
    if (types && !json_is_null(types) &&
        (!json_is_array(types) || json_array_size(types) != (size_t)cfg->n_layer))
        return sd_fail(err, SD_EFORMAT, "'layer_types' must list %d layers", cfg->n_layer);
    for (int l = 0; l < cfg->n_layer; l++) {
        const char *t = json_string_value(json_array_get(types, (size_t)l));
        bool sliding = t ? strcmp(t, "sliding_attention") == 0 : l >= from;
        if (t && !sliding && strcmp(t, "full_attention") != 0)
            return sd_fail(err, SD_EFORMAT,
                           "layer type '%.40s' is not supported (known: full_attention, "
                           "sliding_attention)",
                           t);
        if (t && sliding && !cfg->sliding_window)
            return sd_fail(err, SD_EFORMAT, "layer %d slides, but there is no sliding_window", l);
        if (!sliding || !cfg->sliding_window || cfg->sliding_window >= cfg->n_pos)
            continue; // as wide as the context: full
        sd_layer_cfg *lc = &cfg->layer[l];
        strcpy(lc->kind, "window");
        snprintf(lc->options, sizeof lc->options, "window=%d", cfg->sliding_window);
    }
    return SD_OK;
}

static sd_status configure(const json_t *config, sd_container *c, sd_config *cfg, const sd_run *run,
                           sd_err *err) {
    int n_layer = 0, n_head = 0, n_kv = 0, d = 0;
    bool gguf = is_gguf(c);
    if (gguf) {
        SD_TRY(read_gguf(config, c, &n_layer, &n_head, &n_kv, &d, cfg, err));
        // no flag says so: a file without its own head is tied
        cfg->has_head = true;
        cfg->tied = !sd_family_has(c, "output.weight");
        cfg->qkv_bias = sd_family_has(c, "blk.0.attn_q.bias");
        cfg->out_bias = sd_family_has(c, "blk.0.attn_output.bias");
    } else {
        SD_TRY(read_hf(config, &n_layer, &n_head, &n_kv, &d, cfg, err));
        const char *type = json_string_value(json_object_get(config, "model_type"));
        if (c && !is_named(config))
            sd_run_log(run, SD_LOG_WARN,
                       "model_type '%.40s' is read as llama, whose keys and tensors it has; what "
                       "neither shows (such as interleaved rotary pairs) cannot be checked",
                       type ? type : "");
        if (sd_family_bare(config, c, "lm_head.weight", "embed_tokens.weight")) {
            cfg->has_head = false; // LlamaModel
            cfg->tied = true;
        } else {
            static const char *const heads[] = {"lm_head.weight", NULL};
            static const char *const embeds[] = {"model.embed_tokens.weight", "embed_tokens.weight",
                                                 NULL};
            SD_TRY(sd_family_tie(config, false, c, heads, embeds, run, cfg, err));
        }
        if (c) { // the tensors say which biases there are
            cfg->qkv_bias = cfg->qkv_bias || has_any(c, "layers.0.self_attn.q_proj.bias");
            cfg->out_bias = cfg->out_bias || has_any(c, "layers.0.self_attn.o_proj.bias");
        }
    }
    cfg->causal = true;
    cfg->norm = SD_NORM_RMS;
    cfg->final_norm = true;
    cfg->block = SD_BLOCK_PRE;
    cfg->gated_mlp = true;
    sd_family_layers(cfg, "softmax", n_head, n_kv, d, d, 1.0 / sqrt((double)d));
    return read_window(config, gguf, run, cfg, err);
}

static const struct {
    const char *gguf, *hf;
} names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

static void rename_gguf(const char *name, char out[128]) {
    if (strcmp(name, "rope_freqs.weight") == 0) {
        out[0] = 0; // read by configure
        return;
    }
    if (strcmp(name, "token_embd.weight") == 0) {
        strcpy(out, "model.embed_tokens.weight");
        return;
    }
    if (strcmp(name, "output_norm.weight") == 0) {
        strcpy(out, "model.norm.weight");
        return;
    }
    if (strcmp(name, "output.weight") == 0) {
        strcpy(out, "lm_head.weight");
        return;
    }
    if (strncmp(name, "blk.", 4) == 0) {
        size_t digits = strspn(name + 4, "0123456789");
        if (digits >= 1 && digits <= 6 && name[4 + digits] == '.') {
            for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
                if (strcmp(names[i].gguf, name + 5 + digits) == 0) {
                    snprintf(out, 128, "model.layers.%.*s.%s", (int)digits, name + 4, names[i].hf);
                    return;
                }
            }
        }
    }
    sd_family_name(out, name); // unexpected: refused by this name
}

static const char *rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                                 char out[128]) {
    if (is_gguf(c)) {
        rename_gguf(name, out);
        return NULL;
    }
    out[0] = 0;
    if (sd_family_ends_with(name, ".rotary_emb.inv_freq"))
        return SD_WHY_FREQ;
    if (cfg->tied && strcmp(name, "lm_head.weight") == 0)
        return SD_WHY_TIED;
    // LlamaForQuestionAnswering calls its body transformer
    name = sd_family_strip(name, "transformer.");
    size_t n = strlen(name);
    bool bare = strncmp(name, "layers.", 7) == 0 || strncmp(name, "embed_tokens.", 13) == 0 ||
                strcmp(name, "norm.weight") == 0;
    if (bare && n < 110) {
        strcpy(out, "model.");
        strcat(out, name);
    } else {
        sd_family_name(out, name);
    }
    return NULL;
}

static sd_relayout relayout(const sd_config *cfg, const sd_container *c, const char *stored) {
    sd_relayout r = {0};
    // llama.cpp's "llama" rotates neighbouring pairs, so its converter interleaves the rows; the
    // "qwen2" architecture rotates halves and keeps them
    if (is_gguf(c) && strcmp(gguf_arch(sd_container_meta((sd_container *)c)), "qwen2") != 0) {
        if (strstr(stored, ".self_attn.q_proj."))
            r.unpermute = cfg->layer[0].n_head;
        else if (strstr(stored, ".self_attn.k_proj."))
            r.unpermute = cfg->layer[0].n_kv_head;
    }
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

static sd_status describe(const sd_config *cfg, json_t **out, sd_err *err) {
    const sd_layer_cfg *lc = &cfg->layer[0];
    int d = lc->d_qk ? lc->d_qk : lc->d_v;
    // biases on q, k, v alone are what Hugging Face calls qwen2, a sliding window mistral
    bool qwen = cfg->qkv_bias && !cfg->out_bias;
    const char *type = qwen ? "qwen2" : cfg->sliding_window > 0 ? "mistral" : "llama";
    const char *arch = qwen                      ? "Qwen2ForCausalLM"
                       : cfg->sliding_window > 0 ? "MistralForCausalLM"
                                                 : "LlamaForCausalLM";
    if (!cfg->has_head)
        arch = qwen ? "Qwen2Model" : cfg->sliding_window > 0 ? "MistralModel" : "LlamaModel";
    json_t *o =
        json_pack("{s:s, s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b, s:b, s:b}",
                  "model_type", type, "architectures", arch, "num_hidden_layers", cfg->n_layer,
                  "hidden_size", cfg->d_model, "num_attention_heads", lc->n_head,
                  "num_key_value_heads", lc->n_kv_head, "head_dim", d, "intermediate_size",
                  cfg->d_ff, "max_position_embeddings", cfg->n_pos, "vocab_size", cfg->vocab,
                  "hidden_act", sd_family_act_name(cfg->act), "rms_norm_eps", cfg->norm_eps,
                  "attention_bias", cfg->qkv_bias && cfg->out_bias, "mlp_bias", 0,
                  "tie_word_embeddings", cfg->tied);
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    sd_status st = sd_family_rope_describe(cfg, d, o, err);
    if (st == SD_OK && cfg->sliding_window > 0) {
        // Mistral has no layer_types: layers that differ go under sd_layers
        json_t *types = json_array();
        for (int l = 0; types && l < cfg->n_layer; l++)
            json_array_append_new(types,
                                  json_string(sd_attn_window(&cfg->layer[l]) ? "sliding_attention"
                                                                             : "full_attention"));
        if (json_object_set_new(o, "sliding_window", json_integer(cfg->sliding_window)) ||
            json_object_set_new(o, "use_sliding_window", json_true()) ||
            (qwen && json_object_set(o, "layer_types", types)))
            st = sd_fail(err, SD_ENOMEM, "out of memory");
        json_decref(types);
    }
    if (st != SD_OK) {
        json_decref(o);
        return st;
    }
    *out = o;
    return SD_OK;
}

static const char *const gguf_archs[] = {"llama", "qwen2", "mistral", NULL};

const sd_family sd_family_llama = {
    .gguf = gguf_archs,
    .name = "llama",
    .summary = "Llama, Mistral, Qwen2, SmolLM: RMS norm, rotary positions, grouped key heads",
    .matches = matches,
    .configure = configure,
    .rename = rename_tensor,
    .relayout = relayout,
    .unused = unused,
    .locate = locate,
    .tensor_at = tensor_at,
    .describe = describe,
};
