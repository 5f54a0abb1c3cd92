/* preset.h: sizes by name: those of METHOD §6 (GPT-2's vocabulary, heads of 64) and small ones for
 * tests and first runs. A preset gives the size; attention kind, norm and family are choices. */
#ifndef SD_NN_PRESET_H
#define SD_NN_PRESET_H

#include "nn/config.h"

typedef struct sd_preset {
    const char *name; /* "7M" */
    const char *summary;
    int n_layer, d_model, n_head, d_head, vocab, n_pos;
} sd_preset;

const sd_preset *sd_preset_at(size_t i); /* NULL past the end */
const sd_preset *sd_preset_find(const char *name);

/* A config for sd_model_new. family "sd" (any kind, with or without norm) or "gpt2" (layer norm);
 * norm none or layer. Tied embeddings, learned positions, exact GELU, MLP
 * of 4D, the kind's own fresh scale. Without norm the embeddings are multiplied by √D on input, so
 * that the residual stream starts at unit size as layer norm would make it. */
sd_status sd_preset_config(const sd_preset *p, const char *family, const char *kind, sd_norm norm,
                           sd_config *out, sd_err *err);

#endif
