/* model.h: a model = config + named tensors in the family's own layout + how it was made.
 *
 * The named tensors are the truth: they are what a checkpoint holds and what is saved. The
 * canonical parts that code works with ("W_Q of layer 3", in×out) are strided views of them, which
 * the family describes (sd_family.locate). Reading a part copies it out canonical; writing one goes
 * through the view (copy on write), so a fused tensor is never stale. Clones share unchanged
 * tensors. Tensors are loaded on demand from the container. */
#ifndef SD_NN_MODEL_H
#define SD_NN_MODEL_H

#include "base/run.h"
#include "io/container.h"
#include "io/tokenizer.h"
#include "nn/config.h"
#include "num/tensor.h"

/* Canonical parts. Weights are (in, out): y = x·W + b. Per-layer unless marked global. */
typedef enum sd_role {
    SD_ROLE_TOK,  /* global (V, D) */
    SD_ROLE_POS,  /* global (n_pos, D) */
    SD_ROLE_TYPE, /* global (n_type, D) */
    SD_ROLE_EMBED_NORM_G,
    SD_ROLE_EMBED_NORM_B, /* global (D) */
    SD_ROLE_NORM1_G,
    SD_ROLE_NORM1_B, /* (D): attention's norm */
    SD_ROLE_WQ,
    SD_ROLE_BQ, /* (D, H*d_qk), (H*d_qk) */
    SD_ROLE_WK,
    SD_ROLE_BK, /* (D, Hkv*d_qk) */
    SD_ROLE_WV,
    SD_ROLE_BV, /* (D, Hkv*d_v) */
    SD_ROLE_WO,
    SD_ROLE_BO, /* (H*d_v, D), (D) */
    SD_ROLE_WD,
    SD_ROLE_BD, /* S–D: (D, H), (H) */
    SD_ROLE_NORM2_G,
    SD_ROLE_NORM2_B,
    SD_ROLE_W1,
    SD_ROLE_B1, /* (D, d_ff) */
    SD_ROLE_W3, /* gate's other factor (D, d_ff) */
    SD_ROLE_W2,
    SD_ROLE_B2, /* (d_ff, D) */
    SD_ROLE_FINAL_NORM_G,
    SD_ROLE_FINAL_NORM_B, /* global */
    SD_ROLE_MLM_W,
    SD_ROLE_MLM_B,
    SD_ROLE_MLM_NORM_G,
    SD_ROLE_MLM_NORM_B, /* global */
    SD_ROLE_HEAD,
    SD_ROLE_HEAD_B, /* global (D, V), (V) */
    /* bilinear kind: s_ij = a_i·b_j − b_i·a_j + Σ λ f_i f_j + δ·[i = j], all D+1 rows (last = bias)
     */
    SD_ROLE_RA,
    SD_ROLE_RB, /* (D+1, H*planes) */
    SD_ROLE_F,
    SD_ROLE_FL,   /* (D+1, H*f_rank), (H*f_rank) */
    SD_ROLE_DIAG, /* (H): scalar filtering δ (bilinear), −d̄ (sd) */
    SD_ROLE_POT,  /* potential kind: per-head vector (D+1, H) */
    SD_ROLE_COUNT
} sd_role;

const char *sd_role_name(sd_role r);
bool sd_role_is_global(sd_role r);
/* Canonical shape of a part under cfg (2-D or 1-D); false when this model has no such part. */
bool sd_role_shape(const sd_config *cfg, int layer, sd_role r, int64_t shape[2], int *ndim);

/* Where a part lives: element (i, h, j) of the canonical (in, H, d) [2-D parts: one "head" h = 0]
 * is tensor[offset + i*stride[0] + h*stride[1] + j*stride[2]]. */
typedef struct sd_locator {
    char tensor[128];
    int64_t offset, shape[3], stride[3];
} sd_locator;

/* How a container's tensor must be re-ordered on loading to become the stored form. */
typedef struct sd_relayout {
    bool transpose; /* 2-D, [a, b] → [b, a] */
    int unpermute;  /* n > 0: rows are n heads whose rotary pairs stand interleaved (GGUF, "llama");
                       pair (2t, 2t+1) → rows (t, t + d/2) of the head */
} sd_relayout;

/* A family: one file, one row in family.c. `c` is NULL when a model is not read from a file. */
typedef struct sd_family {
    const char *name; /* "gpt2" */
    const char *summary;
    const char *const *SD_NULLABLE gguf; /* general.architecture values read; NULL-terminated */
    /* Does this config.json (HF spelling) or GGUF metadata describe this family? */
    bool (*matches)(const json_t *config, bool gguf);
    /* Fills cfg from config and, where the config is silent, from the tensors' names and shapes. */
    sd_status (*configure)(const json_t *config, sd_container *SD_NULLABLE c, sd_config *cfg,
                           const sd_run *SD_NULLABLE run, sd_err *err);
    /* Container name → our stored name (at most 127 bytes); or "" and why nothing is lost by not
     * reading it (mask buffers, a tied matrix under its second name); or "" and NULL when configure
     * has read it. */
    const char *(*rename)(const sd_config *cfg, const sd_container *c, const char *name,
                          char out[128]);
    /* nullable: what must be done to a tensor of the container on loading. */
    sd_relayout (*relayout)(const sd_config *cfg, const sd_container *c, const char *stored_name);
    bool (*locate)(const sd_config *cfg, int layer, sd_role r, sd_locator *out);
    /* Every stored tensor of a model under cfg: name and shape by index; false at the end. */
    bool (*tensor_at)(const sd_config *cfg, size_t i, char name[128], int *ndim, int64_t *shape);
    /* nullable: what a known tensor is that no part lives in ("pooler", "task head: …"): such are
     * kept, never required; NULL for unknown ones. */
    const char *(*unused)(const sd_config *cfg, const char *stored_name);
    /* nullable: prefix of stored names in a saved file ("" = none), so that others can read it. */
    const char *(*export_prefix)(const sd_config *cfg, const char *stored_name);
    /* config.json of the family for saving. */
    sd_status (*describe)(const sd_config *cfg, SD_OWN json_t **out, sd_err *err);
} sd_family;

const sd_family *sd_family_find(const char *name);
const sd_family *sd_family_at(size_t i); /* NULL past the end */

typedef struct sd_model sd_model;

/* A HF folder, a .safetensors/.gguf file (config.json beside it), or an sd checkpoint folder. */
sd_status sd_model_open(const char *path, const sd_run *SD_NULLABLE run, SD_OWN sd_model **out,
                        sd_err *err);
/* A fresh model from cfg (copied), initialised from seed (N(0, 0.02), residual projections scaled
 * by 1/√(2L), norms 1/0, b_d 0.5413). */
sd_status sd_model_new(const sd_config *cfg, uint64_t seed, SD_OWN sd_model **out, sd_err *err);
/* Shares every tensor; edits of either do not show in the other. */
sd_status sd_model_clone(const sd_model *m, SD_OWN sd_model **out, sd_err *err);
sd_model *sd_model_ref(sd_model *m);
void sd_model_unref(sd_model *SD_NULLABLE m);
/* HF-style folder: config.json, model.safetensors, the tokenizer's files if known. Tensors that
 * were not edited keep their type and bytes (block-quantised ones become F32), edited ones are F32.
 * A new folder appears whole or not at all. In an existing one model.safetensors is replaced in one
 * step and carries its own copy of the config, so that no crash leaves a mixture that opens.
 * Layers that surgery changed are described under "sd_layers", the steps under "sd_lineage"; the
 * model_type then reads "sd:gpt2", so that other programs refuse rather than misread it. */
sd_status sd_model_save(sd_model *m, const char *dir, const sd_run *SD_NULLABLE run, sd_err *err);

const sd_config *sd_model_config(const sd_model *m);
/* Replaces a layer's attention config (surgery). Parts that keep their shape keep their values;
 * those that are new or change shape become zeros and must be set before use. */
sd_status sd_model_set_layer_cfg(sd_model *m, int layer, const sd_layer_cfg *lc, sd_err *err);
const sd_family *sd_model_family(const sd_model *m);
const char *sd_model_name(const sd_model *m); /* folder or file base name, for titles */
const char *sd_model_path(const sd_model *m); /* "" for fresh models */
/* Borrowed; opened on first use; NULL when there is none or it was refused:
 * sd_model_tokenizer_error then says why ("" = the model came without one). */
sd_tokenizer *sd_model_tokenizer(const sd_model *m);
const char *sd_model_tokenizer_error(const sd_model *m);
/* The same for callers that cannot do without: NULL is the error it stands for. */
sd_status sd_model_need_tokenizer(const sd_model *m, SD_BORROW sd_tokenizer **out, sd_err *err);
/* source (nullable): the file or folder that sd_model_save copies tokenizer files from. */
void sd_model_set_tokenizer(sd_model *m, sd_tokenizer *SD_NULLABLE t);
sd_status sd_model_set_tokenizer_source(sd_model *m, const char *SD_NULLABLE source, sd_err *err);
const sd_container *sd_model_container(const sd_model *m); /* NULL for fresh models */
int64_t sd_model_n_params(const sd_model *m);              /* tied counted once; buffers excluded */
size_t sd_model_loaded_bytes(const sd_model *m);

/* Names a model for titles; default: the base name of its path. */
sd_status sd_model_set_name(sd_model *m, const char *name, sd_err *err);

/* Named tensors as stored. sd_model_tensor gives a copy in the stored type (F32 for block-quantised
 * ones). Reading (…_tensor, …_get) is safe from several threads at once; changing is not. */
size_t sd_model_n_tensors(const sd_model *m);
const char *sd_model_tensor_name(const sd_model *m, size_t i);
const sd_tensor_info *sd_model_tensor_info(const sd_model *m, size_t i); /* without loading */
sd_status sd_model_tensor(sd_model *m, const char *name, SD_OWN sd_tensor **out, sd_err *err);
sd_status sd_model_set_tensor(sd_model *m, const char *name, const sd_tensor *t, sd_err *err);

/* Tensors of the file that nothing here computes with. Every tensor of a file is used, listed here,
 * or has it refused. The names are the file's. */
typedef struct sd_unused {
    const char *name, *why;
    bool kept; /* saved along (a pooler, a task head) */
} sd_unused;
size_t sd_model_n_unused(const sd_model *m);
sd_unused sd_model_unused(const sd_model *m, size_t i);

/* Canonical parts: contiguous F32 or F64 copy; SD_EINVAL naming role and layer when absent. */
bool sd_model_has(const sd_model *m, int layer, sd_role r);
sd_status sd_model_get(sd_model *m, int layer, sd_role r, sd_dtype as, SD_OWN sd_tensor **out,
                       sd_err *err);
sd_status sd_model_set(sd_model *m, int layer, sd_role r, const sd_tensor *t, sd_err *err);

/* sd_role from its name ("wq"); SD_ROLE_COUNT when unknown. */
sd_role sd_role_find(const char *name);

/* How the model was made: a list of steps, oldest first. `args` is JSON text. */
/* input_hash names what the step was applied to: "sha256:" of the files' bytes (up to 64 MB of
 * them), "header:" of names, types, shapes and sizes of bigger ones, "new:" of a fresh model's
 * config and seed; from the second step on "chain:" of everything recorded before. */
typedef struct sd_step {
    const char *op, *version, *args, *input_hash;
} sd_step;
sd_status sd_model_add_step(sd_model *m, const char *op, const char *version, const char *args,
                            sd_err *err);
size_t sd_model_n_steps(const sd_model *m);
sd_step sd_model_step(const sd_model *m, size_t i);

/* Changes whenever a tensor or the config does; caches (nn/net.h) compare it. */
uint64_t sd_model_version(const sd_model *m);
/* One cached compute object owned by the model, freed with it or when replaced. */
void *sd_model_cache(const sd_model *m, uint64_t *version);
void sd_model_set_cache(sd_model *m, void *cache, void (*destroy)(void *));
/* Bytes the cached object holds, for sd_model_loaded_bytes; 0 again when it is replaced. */
void sd_model_set_cache_bytes(sd_model *m, size_t bytes);

#endif
