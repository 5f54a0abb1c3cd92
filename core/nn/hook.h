/* hook.h: the activations of a forward pass by name, and functions that see or change them there.
 * Names are those the field has settled on (residual stream before, in and after a block; z: what
 * the heads give before the output projection). */
#ifndef SD_NN_HOOK_H
#define SD_NN_HOOK_H

#include "base/run.h"
#include "nn/attn.h"

/* In the order of a pass. B sequences, T tokens, D width, H heads. */
typedef enum sd_point {
    SD_POINT_RESID_PRE,  // (B, T, D) input of a block; of layer 0: the embedding
    SD_POINT_ATTN_IN,    // (B, T, D) input of the attention sublayer, after its norm if any
    SD_POINT_Q,          // (B, T, H, d_qk) after rotation
    SD_POINT_K,          // (B, T, Hkv, d_qk) after rotation
    SD_POINT_V,          // (B, T, Hkv, d_v)
    SD_POINT_D,          // (B, T, H) S–D's positive diagonal
    SD_POINT_SCORES,     // (B, H, T, T) unmasked, before the softmax
    SD_POINT_PATTERN,    // (B, H, T, T) weight of key j in the output of query i
    SD_POINT_Z,          // (B, T, H, d_v) outputs of the heads
    SD_POINT_ATTN_OUT,   // (B, T, D) what attention gives to the residual stream
    SD_POINT_RESID_MID,  // (B, T, D) after attention's residual (and norm, if it stands there)
    SD_POINT_MLP_IN,     // (B, T, D) input of the MLP, after its norm if any
    SD_POINT_MLP_ACT,    // (B, T, d_ff) its hidden units
    SD_POINT_MLP_OUT,    // (B, T, D) what the MLP gives to the residual stream
    SD_POINT_RESID_POST, // (B, T, D) output of the block
    SD_POINT_FINAL,      // (B, T, D) after the final norm; layer L−1
    SD_POINT_COUNT
} sd_point;

const char *sd_point_name(sd_point p); /* "resid_pre" */
const char *sd_point_doc(sd_point p);
sd_point sd_point_find(const char *name); /* SD_POINT_COUNT when unknown */
/* "resid_pre|attn_in|…": an op's choices. */
#define SD_POINT_CHOICES                                                                    \
    "resid_pre|attn_in|q|k|v|d|scores|pattern|z|attn_out|resid_mid|mlp_in|mlp_act|mlp_out|" \
    "resid_post|final"
/* Has this layer such an activation? SD_EINVAL naming point, layer and kind when not. */
sd_status sd_point_check(const sd_config *cfg, sd_point p, int layer, sd_err *err);

/* One activation of one layer, dense, row-major; valid during the call. A function that changes x
 * says so with `edited`. The change counts for everything after it: scores for the pattern, the
 * pattern for z, and so on. */
typedef struct sd_site {
    sd_point point;
    int layer, batch, tokens;
    const sd_config *cfg;
    int ndim;
    int64_t shape[4];
    size_t n; /* elements */
    float *x;
    bool edited;
} sd_site;

/* Called from the thread that runs the pass, between its parallel sections. A failure ends the pass
 * and is reported as "resid_post of layer 3: …". */
typedef sd_status (*sd_hook_fn)(void *ctx, sd_site *s, sd_err *err);

typedef struct sd_hook {
    sd_point point;
    int layer; /* −1: every layer that has it */
    sd_hook_fn fn;
    void *ctx;
} sd_hook;

/* Hooks a model carries through every pass (not through training): shared by its clones, called
 * after one another in the order they were added, in front of a caller's own. Such a model cannot
 * be saved. destroy (nullable) gets ctx when the last model that shares the hook is gone. On
 * failure ctx stays the caller's. The model's tensors and version are untouched. */
sd_status sd_model_add_hook(sd_model *m, const sd_hook *h, void (*destroy)(void *ctx), sd_err *err);
const sd_hook *sd_model_hooks(const sd_model *m, size_t *n);

#endif
