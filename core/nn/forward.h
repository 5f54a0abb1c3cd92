/* forward.h: running a model. f32 arithmetic; the compute form (packed canonical weights) is built
 * on first use and cached in the model. */
#ifndef SD_NN_FORWARD_H
#define SD_NN_FORWARD_H

#include "nn/attn.h"

/* What one attention sublayer saw; every pointer is valid during the callback only. q, k, v, d are
 * what most callers want; a kind without them leaves them NULL (uniform has v alone). Everything
 * the kind projects, as its scores need it, is in `slots` (nn/attn.h). */
typedef struct sd_capture {
    int layer, batch, tokens;
    int n_head, n_kv_head, d_qk, d_v, d_model;
    double scale;
    const char *kind;
    const sd_layer_cfg *cfg; /* the layer's, for sd_attn_* */
    const float *x;          // (B, T, D) inputs, after the sublayer's norm if any
    const float *q;          // (B, T, H, d_qk) with bias, after RoPE; NULL: the kind has none
    const float *k;          // (B, T, Hkv, d_qk); NULL with q
    const float *v;          // (B, T, Hkv, d_v)
    const float *d;          // (B, T, H) S–D diagonal (positive), else NULL
    const float *delta;      // (B, T, H) δ of the scores' diagonal (S–D: −d); NULL: all 0
    const float *o;          // (B, T, H, d_v) the heads' outputs; NULL unless capture_output
    sd_attn_slots slots;     /* rows B·T */
} sd_capture;

typedef struct sd_forward_opts {
    const sd_run *run;                                                 /* nullable */
    sd_status (*capture)(void *ctx, const sd_capture *c, sd_err *err); /* nullable */
    void *capture_ctx;
    bool stop_after_capture;    /* do not run past the last layer's attention */
    bool capture_output;        /* the capture comes after the heads have run, with their outputs */
    const int32_t *token_types; // (B, T) BERT segment ids; nullable = 0
    bool last_logits;           /* logits of each sequence's last token only: (B, V) */
    /* nn/hook.h; after those the model carries. All sequences then go in one run. */
    const struct sd_hook *hooks;
    size_t n_hooks;
    /* Begins in front of layer start_layer with its input (B, T, D), as the point resid_pre gave
     * it; NULL: at the embedding. */
    const float *start;
    int start_layer;
    int end_layer; /* not past the layers before this one; 0: all (no hidden state, no logits) */
} sd_forward_opts;

/* ids (B, T), each checked against V; T against the position table ("forward of 9 tokens: the
 * position table holds 8"). hidden (B, T, D): output of the last block (after the final norm);
 * logits (B, T, V). Either may be NULL. */
sd_status sd_forward(sd_model *m, const int32_t *ids, int batch, int tokens,
                     const sd_forward_opts *SD_NULLABLE opts, float *SD_NULLABLE hidden,
                     float *SD_NULLABLE logits, sd_err *err);

/* Logits (n, V) of rows (n, D) of a residual stream (a logit lens): through the final norm
 * when `norm`, then the output head. */
sd_status sd_forward_unembed(sd_model *m, const float *x, int n, bool norm,
                             const sd_run *SD_NULLABLE run, float *logits, sd_err *err);

/* Negative log-likelihood (nats) of targets (B, T) under the model, f64 sums of f32 logits;
 * target −1 = not scored (nll 0). Logits are formed in row blocks, never all at once. */
sd_status sd_forward_nll(sd_model *m, const int32_t *ids, const int32_t *targets, int batch,
                         int tokens, const sd_forward_opts *SD_NULLABLE opts, double *nll,
                         sd_err *err);

/* The model's f32 compute form, for nn/decode.h: the model's, gone when the model changes. */
struct sd_net;
sd_status sd_forward_net(sd_model *m, const struct sd_net **out, sd_err *err);

#endif
