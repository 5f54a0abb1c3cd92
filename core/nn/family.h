/* family.h: what the family files share: a table of stored tensors that gives `locate` and
 * `tensor_at` for nothing, and readers of config.json. Internal to nn/. */
#ifndef SD_NN_FAMILY_H
#define SD_NN_FAMILY_H

#include <jansson.h>

#include "io/json.h"
#include "nn/model.h"

/* How a stored tensor holds its canonical part (nn/model.h). Fused layouts hold W_Q W_K W_V (or
 * their biases): the row's role is then SD_ROLE_WQ or SD_ROLE_BQ. */
typedef enum sd_layout {
    SD_LAY_AS_IS,        /* shape as the part: embeddings, Conv1D [in, out], vectors */
    SD_LAY_OUT_IN,       /* Linear: [out, in] */
    SD_LAY_QKV_IN_OUT,   /* [in, Q | K | V] (GPT-2); biases [Q | K | V] */
    SD_LAY_QKV_PER_HEAD, /* [head 0: q k v, head 1: q k v, ..., in] (GPT-NeoX); biases likewise */
} sd_layout;

typedef struct sd_family_row {
    const char *pattern; /* stored name; "{l}" = layer number */
    sd_layout layout;
    sd_role role;
} sd_family_row;

bool sd_family_rows_locate(const sd_family_row *rows, size_t n, const sd_config *cfg, int layer,
                           sd_role r, sd_locator *out);
bool sd_family_rows_at(const sd_family_row *rows, size_t n, const sd_config *cfg, size_t i,
                       char name[128], int *ndim, int64_t *shape);

/* Is the config's model_type `type`, or, without one, does architectures[0] begin with `arch`? */
bool sd_family_is(const json_t *config, const char *type, const char *arch);
/* An integer under the first of up to two spellings; the field keeps *out when absent and not
 * required. */
sd_status sd_family_int(const json_t *config, const char *key, const char *SD_NULLABLE alias,
                        int lo, int hi, bool required, int *out, sd_err *err);
sd_status sd_family_bool(const json_t *config, const char *key, bool dflt, bool *out, sd_err *err);
sd_status sd_family_real(const json_t *config, const char *key, const char *SD_NULLABLE alias,
                         double dflt, double *out, sd_err *err);
/* HF spellings of activations; unknown ones are refused by name. */
sd_status sd_family_act(const json_t *config, const char *key, const char *dflt, sd_act *out,
                        sd_err *err);
const char *sd_family_act_name(sd_act a);
/* bos_token_id and eos_token_id: an integer or a list (its first). */
sd_status sd_family_special(const json_t *config, sd_config *cfg, sd_err *err);
/* theta, scaling and partial rotary factor in the new (rope_parameters) and old (rope_theta or
 * theta_key, rope_scaling, partial_key) spellings. cfg->rope.dim = even part of head_dim·factor. */
sd_status sd_family_rope(const json_t *config, const char *theta_key, const char *partial_key,
                         double partial_default, int head_dim, sd_config *cfg, sd_err *err);
sd_status sd_family_rope_describe(const sd_config *cfg, int head_dim, json_t *config, sd_err *err);
/* cfg->tied, cfg->has_head from tie_word_embeddings (dflt when silent) and the tensors (CASES G11):
 * no head tensor: the embedding is used, and an explicit false refused; a head tensor that differs
 * from the embedding in spite of tie = true: warned about and followed. `heads`, `embeds`:
 * NULL-terminated possible names. */
sd_status sd_family_tie(const json_t *config, bool dflt, sd_container *SD_NULLABLE c,
                        const char *const *heads, const char *const *embeds,
                        const sd_run *SD_NULLABLE run, sd_config *cfg, sd_err *err);
/* A body saved without its head: no tensor `head`, and the embedding has the body's short name, a
 * head for another task is there, or architectures[0] says XModel. */
bool sd_family_bare(const json_t *config, const sd_container *SD_NULLABLE c, const char *head,
                    const char *short_embed);
/* Queries or keys of a layer whose attention kind has none, in a file written before kinds said so:
 * a tensor that holds nothing else. */
bool sd_family_idle(const sd_family *f, const sd_config *cfg, const char *name);
/* What a tensor is that belongs to a head for another task ("score.weight", "qa_outputs.bias",
 * "classifier.weight", "multiple_choice_head.…"), by the names stock code gives; else NULL. */
const char *sd_family_task_head(const char *name);
/* Was the file made for another task than language modelling: such a head, and no `heads`? */
bool sd_family_other_task(const sd_container *SD_NULLABLE c, const char *const *heads);
/* A buffer of a causal mask's name (".attn.bias") and of no vector's shape? */
bool sd_family_is_mask(const sd_container *c, const char *name, const char *tail);
bool sd_family_ends_with(const char *s, const char *end);
/* Do two tensors hold the same values? false also when one is missing or cannot be read. */
bool sd_family_same(const sd_container *c, const char *a, const char *b);
/* Reasons several families give for a tensor that is not read. */
#define SD_WHY_MASK "a causal mask: made here"
#define SD_WHY_TIED "equals the token embedding"
#define SD_WHY_FREQ "rotary frequencies: computed from config.json"
/* All layers alike. */
void sd_family_layers(sd_config *cfg, const char *kind, int n_head, int n_kv_head, int d_qk,
                      int d_v, double scale);
/* Does the container hold `name`? false for NULL containers. */
bool sd_family_has(const sd_container *SD_NULLABLE c, const char *name);
/* name without the prefix when it begins with it, else name. */
const char *sd_family_strip(const char *name, const char *prefix);
void sd_family_name(char out[128], const char *name); /* copies; "?" when longer than 127 */
/* "gpt2, sd, ...", for messages. */
void sd_family_list(sd_buf *out);
void sd_family_list_gguf(sd_buf *out); /* architectures read from GGUF files */
bool sd_family_reads_gguf(const sd_family *f, const char *arch);

extern const sd_family sd_family_gpt2, sd_family_sd, sd_family_bert, sd_family_gpt_neox,
    sd_family_llama;

#endif
