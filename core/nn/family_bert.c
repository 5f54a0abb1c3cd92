/* BERT: an encoder without causal mask, norms after the residual sums, token types, with or without
 * the masked-language-model head. Reads LayerNorm.gamma/beta and .weight/.bias, names with and
 * without "bert." (CASES M08).
 *
 * What adding this family took: this file, one row of the table in family.c (&sd_family_bert) and
 * its name in family.h. Nothing else names it. */
#include <math.h>
#include <string.h>

#include "nn/family.h"

#define LAYER "encoder.layer.{l}."
static const sd_family_row rows[] = {
    {"embeddings.word_embeddings.weight", SD_LAY_AS_IS, SD_ROLE_TOK},
    {"embeddings.position_embeddings.weight", SD_LAY_AS_IS, SD_ROLE_POS},
    {"embeddings.token_type_embeddings.weight", SD_LAY_AS_IS, SD_ROLE_TYPE},
    {"embeddings.LayerNorm.weight", SD_LAY_AS_IS, SD_ROLE_EMBED_NORM_G},
    {"embeddings.LayerNorm.bias", SD_LAY_AS_IS, SD_ROLE_EMBED_NORM_B},
    {LAYER "attention.self.query.weight", SD_LAY_OUT_IN, SD_ROLE_WQ},
    {LAYER "attention.self.query.bias", SD_LAY_AS_IS, SD_ROLE_BQ},
    {LAYER "attention.self.key.weight", SD_LAY_OUT_IN, SD_ROLE_WK},
    {LAYER "attention.self.key.bias", SD_LAY_AS_IS, SD_ROLE_BK},
    {LAYER "attention.self.value.weight", SD_LAY_OUT_IN, SD_ROLE_WV},
    {LAYER "attention.self.value.bias", SD_LAY_AS_IS, SD_ROLE_BV},
    {LAYER "attention.output.dense.weight", SD_LAY_OUT_IN, SD_ROLE_WO},
    {LAYER "attention.output.dense.bias", SD_LAY_AS_IS, SD_ROLE_BO},
    {LAYER "attention.output.LayerNorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM1_G},
    {LAYER "attention.output.LayerNorm.bias", SD_LAY_AS_IS, SD_ROLE_NORM1_B},
    {LAYER "intermediate.dense.weight", SD_LAY_OUT_IN, SD_ROLE_W1},
    {LAYER "intermediate.dense.bias", SD_LAY_AS_IS, SD_ROLE_B1},
    {LAYER "output.dense.weight", SD_LAY_OUT_IN, SD_ROLE_W2},
    {LAYER "output.dense.bias", SD_LAY_AS_IS, SD_ROLE_B2},
    {LAYER "output.LayerNorm.weight", SD_LAY_AS_IS, SD_ROLE_NORM2_G},
    {LAYER "output.LayerNorm.bias", SD_LAY_AS_IS, SD_ROLE_NORM2_B},
    {"cls.predictions.transform.dense.weight", SD_LAY_OUT_IN, SD_ROLE_MLM_W},
    {"cls.predictions.transform.dense.bias", SD_LAY_AS_IS, SD_ROLE_MLM_B},
    {"cls.predictions.transform.LayerNorm.weight", SD_LAY_AS_IS, SD_ROLE_MLM_NORM_G},
    {"cls.predictions.transform.LayerNorm.bias", SD_LAY_AS_IS, SD_ROLE_MLM_NORM_B},
    {"cls.predictions.decoder.weight", SD_LAY_OUT_IN, SD_ROLE_HEAD},
    {"cls.predictions.bias", SD_LAY_AS_IS, SD_ROLE_HEAD_B},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static bool matches(const json_t *config, bool gguf) {
    return !gguf && sd_family_is(config, "bert", "Bert");
}

/* The output bias under its two names. Stock code ties them; where a file holds both and they
 * differ, it does not, and adds the decoder's. */
static const char old_bias[] = "cls.predictions.bias", new_bias[] = "cls.predictions.decoder.bias";

static bool two_biases(const sd_container *c) {
    return sd_family_has(c, old_bias) && sd_family_has(c, new_bias) &&
           !sd_family_same(c, old_bias, new_bias);
}

static sd_status configure(const json_t *config, sd_container *c, sd_config *cfg, const sd_run *run,
                           sd_err *err) {
    int n_layer = 0, n_head = 0;
    SD_TRY(sd_family_int(config, "num_hidden_layers", NULL, 1, SD_MAX_LAYERS, true, &n_layer, err));
    SD_TRY(sd_config_init(cfg, n_layer, err));
    SD_TRY(sd_family_int(config, "hidden_size", NULL, 1, 1 << 17, true, &cfg->d_model, err));
    SD_TRY(sd_family_int(config, "num_attention_heads", NULL, 1, 4096, true, &n_head, err));
    SD_TRY(sd_family_int(config, "intermediate_size", NULL, 1, 1 << 20, true, &cfg->d_ff, err));
    SD_TRY(
        sd_family_int(config, "max_position_embeddings", NULL, 1, 1 << 28, true, &cfg->n_pos, err));
    SD_TRY(sd_family_int(config, "vocab_size", NULL, 1, 1 << 24, true, &cfg->vocab, err));
    cfg->n_type = 2;
    SD_TRY(sd_family_int(config, "type_vocab_size", NULL, 0, 1 << 16, false, &cfg->n_type, err));
    SD_TRY(sd_family_act(config, "hidden_act", "gelu", &cfg->act, err));
    SD_TRY(sd_family_real(config, "layer_norm_eps", NULL, 1e-12, &cfg->norm_eps, err));
    const char *pos = "absolute";
    bool found, decoder;
    SD_TRY(sd_json_str(config, "position_embedding_type", &pos, &found, err));
    if (found && strcmp(pos, "absolute") != 0)
        return sd_fail(err, SD_EFORMAT,
                       "position_embedding_type '%.40s' is not supported (known: absolute)", pos);
    SD_TRY(sd_family_bool(config, "is_decoder", false, &decoder, err));
    if (decoder)
        return sd_fail(err, SD_EFORMAT, "is_decoder is not supported: BERT is read as an encoder");
    if (cfg->d_model % n_head)
        return sd_fail(err, SD_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d",
                       cfg->d_model, n_head);
    const char *arch =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    cfg->mlm_head = c ? sd_family_has(c, "cls.predictions.transform.dense.weight")
                      : arch && strcmp(arch, "BertForMaskedLM") == 0;
    if (cfg->mlm_head) {
        static const char *const heads[] = {"cls.predictions.decoder.weight", NULL};
        static const char *const embeds[] = {"bert.embeddings.word_embeddings.weight",
                                             "embeddings.word_embeddings.weight", NULL};
        SD_TRY(sd_family_tie(config, true, c, heads, embeds, run, cfg, err));
        if (c && two_biases(c))
            sd_run_log(run, SD_LOG_WARN,
                       "%s: %s differs from %s; the decoder's is used, as in stock "
                       "code",
                       sd_container_path(c), new_bias, old_bias);
    } else {
        cfg->has_head = false;
        cfg->tied = true;
    }
    SD_TRY(sd_family_special(config, cfg, err));
    cfg->causal = false;
    cfg->norm = SD_NORM_LAYER;
    cfg->embed_norm = true;
    cfg->block = SD_BLOCK_POST;
    cfg->pos = SD_POS_LEARNED;
    cfg->qkv_bias = cfg->out_bias = cfg->mlp_bias = true;
    int d = cfg->d_model / n_head;
    sd_family_layers(cfg, "softmax", n_head, n_head, d, d, 1.0 / sqrt((double)d));
    return SD_OK;
}

static const char *rename_tensor(const sd_config *cfg, const sd_container *c, const char *name,
                                 char out[128]) {
    const char *s = sd_family_strip(name, "bert.");
    size_t n = strlen(s);
    out[0] = 0;
    if (strcmp(s, "embeddings.position_ids") == 0)
        return "position numbers: counted here";
    if (cfg->tied && strcmp(s, "cls.predictions.decoder.weight") == 0)
        return SD_WHY_TIED;
    if (strcmp(s, old_bias) == 0 && two_biases(c))
        return "not what is added: cls.predictions.decoder.bias differs from it";
    if (strcmp(s, new_bias) == 0) {
        if (sd_family_has(c, old_bias) && !two_biases(c))
            return "equals cls.predictions.bias";
        strcpy(out, old_bias);
        return NULL;
    }
    if (n < 110 && n > 6 && strcmp(s + n - 6, ".gamma") == 0) {
        memcpy(out, s, n - 6);
        strcpy(out + n - 6, ".weight");
    } else if (n < 110 && n > 5 && strcmp(s + n - 5, ".beta") == 0) {
        memcpy(out, s, n - 5);
        strcpy(out + n - 5, ".bias");
    } else {
        sd_family_name(out, s);
    }
    return NULL;
}

static bool locate(const sd_config *cfg, int layer, sd_role r, sd_locator *out) {
    return sd_family_rows_locate(rows, N_ROWS, cfg, layer, r, out);
}

static bool tensor_at(const sd_config *cfg, size_t i, char name[128], int *ndim, int64_t *shape) {
    return sd_family_rows_at(rows, N_ROWS, cfg, i, name, ndim, shape);
}

static const char *unused(const sd_config *cfg, const char *stored) {
    (void)cfg;
    if (strncmp(stored, "pooler.dense.", 13) == 0)
        return "pooler: behind the hidden states";
    if (strncmp(stored, "cls.seq_relationship.", 21) == 0)
        return "next-sentence head";
    return sd_family_task_head(stored);
}

static const char *export_prefix(const sd_config *cfg, const char *stored) {
    // a BertForMaskedLM's body is called bert
    return cfg->mlm_head && strncmp(stored, "cls.", 4) != 0 && strncmp(stored, "sd.", 3) != 0
               ? "bert."
               : "";
}

static sd_status describe(const sd_config *cfg, json_t **out, sd_err *err) {
    int n_head = cfg->layer[0].n_head;
    if (cfg->d_model % n_head)
        n_head = 1;
    json_t *o = json_pack("{s:s, s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:s, s:b}",
                          "model_type", "bert", "architectures",
                          cfg->mlm_head ? "BertForMaskedLM" : "BertModel", "num_hidden_layers",
                          cfg->n_layer, "hidden_size", cfg->d_model, "num_attention_heads", n_head,
                          "intermediate_size", cfg->d_ff, "max_position_embeddings", cfg->n_pos,
                          "vocab_size", cfg->vocab, "type_vocab_size", cfg->n_type, "hidden_act",
                          sd_family_act_name(cfg->act), "layer_norm_eps", cfg->norm_eps,
                          "position_embedding_type", "absolute", "tie_word_embeddings", cfg->tied);
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    *out = o;
    return SD_OK;
}

const sd_family sd_family_bert = {
    .name = "bert",
    .summary = "BERT: post-norm encoder with token types, masked-language-model head optional",
    .matches = matches,
    .configure = configure,
    .rename = rename_tensor,
    .unused = unused,
    .locate = locate,
    .tensor_at = tensor_at,
    .export_prefix = export_prefix,
    .describe = describe,
};
