/* S–D attention, and its standard twin in the same layout (METHOD §6): tensors [out, in],
 * x = embed_scale·(token + position), x += attn(n(x)), x += W2 gelu(W1 n(x) + b1) + b2, with or
 * without layer norm; tied output unscaled. Attention kind, head dimensions and scale may be one
 * value or a list, one entry a layer (hybrids, cascade-allocated models: METHOD §7.4). */
#include <stdio.h>
#include <string.h>

#include "nn/attn.h"
#include "nn/family.h"

static const sd_family_row rows[] = {
    {"embed.tokens", SD_LAY_AS_IS, SD_ROLE_TOK},
    {"embed.positions", SD_LAY_AS_IS, SD_ROLE_POS},
    {"layers.{l}.norm1.weight", SD_LAY_AS_IS, SD_ROLE_NORM1_G},
    {"layers.{l}.norm1.bias", SD_LAY_AS_IS, SD_ROLE_NORM1_B},
    {"layers.{l}.attn.wq", SD_LAY_OUT_IN, SD_ROLE_WQ},
    {"layers.{l}.attn.bq", SD_LAY_AS_IS, SD_ROLE_BQ},
    {"layers.{l}.attn.wk", SD_LAY_OUT_IN, SD_ROLE_WK},
    {"layers.{l}.attn.bk", SD_LAY_AS_IS, SD_ROLE_BK},
    {"layers.{l}.attn.wv", SD_LAY_OUT_IN, SD_ROLE_WV},
    {"layers.{l}.attn.bv", SD_LAY_AS_IS, SD_ROLE_BV},
    {"layers.{l}.attn.wo", SD_LAY_OUT_IN, SD_ROLE_WO},
    {"layers.{l}.attn.bo", SD_LAY_AS_IS, SD_ROLE_BO},
    {"layers.{l}.attn.wd", SD_LAY_OUT_IN, SD_ROLE_WD},
    {"layers.{l}.attn.bd", SD_LAY_AS_IS, SD_ROLE_BD},
    {"layers.{l}.norm2.weight", SD_LAY_AS_IS, SD_ROLE_NORM2_G},
    {"layers.{l}.norm2.bias", SD_LAY_AS_IS, SD_ROLE_NORM2_B},
    {"layers.{l}.mlp.w1", SD_LAY_OUT_IN, SD_ROLE_W1},
    {"layers.{l}.mlp.b1", SD_LAY_AS_IS, SD_ROLE_B1},
    {"layers.{l}.mlp.w2", SD_LAY_OUT_IN, SD_ROLE_W2},
    {"layers.{l}.mlp.b2", SD_LAY_AS_IS, SD_ROLE_B2},
    {"norm.weight", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_G},
    {"norm.bias", SD_LAY_AS_IS, SD_ROLE_FINAL_NORM_B},
    {"head.weight", SD_LAY_OUT_IN, SD_ROLE_HEAD},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool matches(const json_t *config, bool gguf) {
    return !gguf && sd_family_is(config, "sd", "sd");
}

/* config[key], or its entry `layer` when it is a list (which must have one entry a layer). */
static sd_status per_layer(const json_t *config, const char *key, int layer, int n_layer,
                           const json_t **out, sd_err *err) {
    const json_t *v = json_object_get(config, key);
    *out = NULL;
    if (!v || json_is_null(v))
        return SD_OK;
    if (json_is_array(v)) {
        if (json_array_size(v) != (size_t)n_layer)
            return sd_fail(err, SD_EFORMAT, "'%s' lists %zu values for %d layers", key,
                           json_array_size(v), n_layer);
        v = json_array_get(v, (size_t)layer);
    }
    *out = v;
    return SD_OK;
}

static sd_status layer_int(const json_t *config, const char *key, int layer, int n_layer, int lo,
                           int hi, int *out, sd_err *err) {
    const json_t *v;
    SD_TRY(per_layer(config, key, layer, n_layer, &v, err));
    if (!v)
        return SD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return sd_fail(err, SD_EFORMAT, "'%s' of layer %d must be an integer %d..%d", key, layer,
                       lo, hi);
    *out = (int)json_integer_value(v);
    return SD_OK;
}

static sd_status configure(const json_t *config, sd_container *c, sd_config *cfg, const sd_run *run,
                           sd_err *err) {
    int n_layer = 0;
    SD_TRY(sd_family_int(config, "n_layer", NULL, 1, SD_MAX_LAYERS, true, &n_layer, err));
    SD_TRY(sd_config_init(cfg, n_layer, err));
    SD_TRY(sd_family_int(config, "d_model", NULL, 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(sd_family_int(config, "n_positions", NULL, 1, 1 << 28, true, &cfg->n_pos, err));
    SD_TRY(sd_family_int(config, "vocab_size", NULL, 1, 1 << 24, true, &cfg->vocab, err));
    cfg->d_ff = 4 * cfg->d_model;
    int i = c ? sd_container_find(c, "layers.0.mlp.w1") : -1;
    if (i >= 0 && sd_container_at(c, (size_t)i)->ndim == 2) {
        int64_t width = sd_container_at(c, (size_t)i)->shape[0];
        if (width >= 1 && width <= 1 << 20)
            cfg->d_ff = (int)width;
    }
    SD_TRY(sd_family_int(config, "d_ff", NULL, 1, 1 << 20, false, &cfg->d_ff, err));
    SD_TRY(sd_family_act(config, "activation", "gelu", &cfg->act, err));
    SD_TRY(sd_family_real(config, "embed_scale", NULL, 1.0, &cfg->embed_scale, err));
    SD_TRY(sd_family_real(config, "d_floor", NULL, 1e-4, &cfg->d_floor, err));
    SD_TRY(sd_family_real(config, "norm_eps", NULL, 1e-5, &cfg->norm_eps, err));
    const char *norm = "none";
    bool found;
    SD_TRY(sd_json_str(config, "norm", &norm, &found, err));
    if (!found || strcmp(norm, "none") == 0)
        cfg->norm = SD_NORM_NONE;
    else if (strcmp(norm, "layernorm") == 0)
        cfg->norm = SD_NORM_LAYER;
    else
        return sd_fail(err, SD_EFORMAT, "norm '%.40s' is not supported (known: none, layernorm)",
                       norm);
    cfg->final_norm = cfg->norm != SD_NORM_NONE;
    SD_TRY(sd_family_bool(config, "qkv_bias", false, &cfg->qkv_bias, err));
    SD_TRY(sd_family_bool(config, "out_bias", false, &cfg->out_bias, err));
    SD_TRY(sd_family_bool(config, "mlp_bias", true, &cfg->mlp_bias, err));
    static const char *const heads[] = {"head.weight", NULL};
    static const char *const embeds[] = {"embed.tokens", NULL};
    SD_TRY(sd_family_tie(config, true, c, heads, embeds, run, cfg, err));
    SD_TRY(sd_family_special(config, cfg, err));
    cfg->causal = true;
    cfg->block = SD_BLOCK_PRE;
    cfg->pos = SD_POS_LEARNED;
    for (int l = 0; l < n_layer; l++) {
        sd_layer_cfg *lc = &cfg->layer[l];
        const json_t *v;
        SD_TRY(layer_int(config, "n_head", l, n_layer, 1, 4096, &lc->n_head, err));
        if (lc->n_head == 0)
            return sd_fail(err, SD_EFORMAT, "'n_head' is missing");
        lc->n_kv_head = lc->n_head;
        lc->d_qk = cfg->d_model / lc->n_head;
        SD_TRY(layer_int(config, "d_head", l, n_layer, 1, 8192, &lc->d_qk, err));
        lc->d_v = lc->d_qk;
        SD_TRY(layer_int(config, "d_value", l, n_layer, 1, 8192, &lc->d_v, err));
        SD_TRY(per_layer(config, "attention", l, n_layer, &v, err));
        const char *kind = v ? json_string_value(v) : "sd";
        if (!kind || !kind[0] || strlen(kind) >= sizeof lc->kind)
            return sd_fail(err, SD_EFORMAT, "'attention' of layer %d must name a kind", l);
        strcpy(lc->kind, kind);
        sd_attn_bind(lc, run);
        sd_attn_normalize(lc);
        lc->scale = sd_attn_fresh_scale(lc);
        SD_TRY(per_layer(config, "alpha", l, n_layer, &v, err));
        if (v && !json_is_number(v))
            return sd_fail(err, SD_EFORMAT, "'alpha' of layer %d must be a number", l);
        if (v)
            lc->scale = json_number_value(v);
    }
    return SD_OK;
}

static const char *rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                                 char out[128]) {
    (void)c;
    if (cfg->tied && strcmp(name, "head.weight") == 0) {
        out[0] = 0;
        return SD_WHY_TIED;
    }
    sd_family_name(out, name);
    return NULL;
}

static bool locate(const sd_config *cfg, int layer, sd_role r, sd_locator *out) {
    return sd_family_rows_locate(rows, N_ROWS, cfg, layer, r, out);
}

static bool tensor_at(const sd_config *cfg, size_t i, char name[128], int *ndim, int64_t *shape) {
    return sd_family_rows_at(rows, N_ROWS, cfg, i, name, ndim, shape);
}

/* One value when all layers agree, else a list. get gives layer l's value. */
static sd_status put_layers(json_t *o, const char *key, const sd_config *cfg,
                            json_t *(*get)(const sd_layer_cfg *), sd_err *err) {
    bool same = true;
    json_t *list = json_array();
    for (int l = 0; list && l < cfg->n_layer; l++) {
        json_t *v = get(&cfg->layer[l]);
        if (!v || json_array_append_new(list, v) != 0) {
            json_decref(list);
            list = NULL;
            break;
        }
        same = same && json_equal(v, json_array_get(list, 0));
    }
    int bad = -1;
    if (list && same)
        bad = json_object_set(o, key, json_array_get(list, 0));
    else if (list)
        bad = json_object_set(o, key, list);
    json_decref(list);
    return bad ? sd_fail(err, SD_ENOMEM, "out of memory") : SD_OK;
}

static json_t *get_kind(const sd_layer_cfg *lc) {
    return json_string(lc->kind);
}
static json_t *get_heads(const sd_layer_cfg *lc) {
    return json_integer(lc->n_head);
}
static json_t *get_d(const sd_layer_cfg *lc) {
    return json_integer(lc->d_qk ? lc->d_qk : lc->d_v); // no queries: the values'
}
static json_t *get_dv(const sd_layer_cfg *lc) {
    return json_integer(lc->d_v);
}
static json_t *get_scale(const sd_layer_cfg *lc) {
    return json_real(lc->scale);
}

static sd_status describe(const sd_config *cfg, json_t **out, sd_err *err) {
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:b, s:b, s:b, s:b}",
                  "model_type", "sd", "norm", cfg->norm == SD_NORM_LAYER ? "layernorm" : "none",
                  "n_layer", cfg->n_layer, "d_model", cfg->d_model, "d_ff", cfg->d_ff,
                  "n_positions", cfg->n_pos, "vocab_size", cfg->vocab, "activation",
                  sd_family_act_name(cfg->act), "norm_eps", cfg->norm_eps, "embed_scale",
                  cfg->embed_scale, "d_floor", cfg->d_floor, "qkv_bias", cfg->qkv_bias, "out_bias",
                  cfg->out_bias, "mlp_bias", cfg->mlp_bias, "tie_word_embeddings", cfg->tied);
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    bool same_v = true;
    for (int l = 0; l < cfg->n_layer; l++)
        same_v = same_v && (!cfg->layer[l].d_qk || cfg->layer[l].d_v == cfg->layer[l].d_qk);
    sd_status st = put_layers(o, "attention", cfg, get_kind, err);
    if (st == SD_OK)
        st = put_layers(o, "n_head", cfg, get_heads, err);
    if (st == SD_OK)
        st = put_layers(o, "d_head", cfg, get_d, err);
    if (st == SD_OK && !same_v)
        st = put_layers(o, "d_value", cfg, get_dv, err);
    if (st == SD_OK)
        st = put_layers(o, "alpha", cfg, get_scale, err);
    if (st != SD_OK) {
        json_decref(o);
        return st;
    }
    *out = o;
    return SD_OK;
}

const sd_family sd_family_sd = {
    .name = "sd",
    .summary = "S-D attention (or its standard twin), with or without layer norm",
    .matches = matches,
    .configure = configure,
    .rename = rename_tensor,
    .locate = locate,
    .tensor_at = tensor_at,
    .describe = describe,
};
