/* config.h: what a transformer is, in one structure that every family maps to and from.
 * Letters as in METHOD: L layers, H heads, d head dimension, D width, V vocabulary. */
#ifndef SD_NN_CONFIG_H
#define SD_NN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum sd_norm { SD_NORM_NONE, SD_NORM_LAYER, SD_NORM_RMS } sd_norm;
/* Where the norms stand: x + f(norm(x)); norm(x + f(x)) (BERT); x + attn(n1(x)) + mlp(n2(x)). */
typedef enum sd_block { SD_BLOCK_PRE, SD_BLOCK_POST, SD_BLOCK_PARALLEL } sd_block;
typedef enum sd_act { SD_ACT_GELU, SD_ACT_GELU_TANH, SD_ACT_RELU, SD_ACT_SILU } sd_act;
typedef enum sd_pos { SD_POS_LEARNED, SD_POS_ROPE, SD_POS_NONE } sd_pos;
typedef enum sd_rope_style { SD_ROPE_HALF, SD_ROPE_INTERLEAVED } sd_rope_style;

/* One attention sublayer. Head dimensions may differ by layer (METHOD §7.4). */
typedef struct sd_layer_cfg {
    char kind[24]; /* row of the attention-kind list (nn/attn.h): "softmax", "sd", "elu1", ... */
    /* NULL, or the row of a kind that is not in the library's list (a plugin's); it outlives every
     * config that points to it. Looked at only when its name is `kind`: sd_attn_of. */
    const struct sd_attn_kind *foreign;
    int n_head, n_kv_head;
    int d_qk, d_v; /* per head */
    double
        scale; /* c of METHOD §1 (softmax) or α of §6 (sd); an explicit number, never re-derived */
    /* bilinear (truncated standard heads): routing planes and filtering rank kept, per head */
    int planes, f_rank;
    char options[64]; /* "key=value ..." of the kind's own option table */
} sd_layer_cfg;
/* Its integers, for what reads, writes, compares or checks them all: X(name, least, most, may the
 * key be left out). Beside them stand kind, options and scale. */
#define SD_LAYER_INTS(X)         \
    X(n_head, 1, 4096, false)    \
    X(n_kv_head, 1, 4096, false) \
    X(d_qk, 0, 8192, false)      \
    X(d_v, 1, 8192, false)       \
    X(planes, 0, 8192, true)     \
    X(f_rank, 0, 16384, true)
/* Equal in every field; scales to a relative 1e-14 (they pass through text). */
bool sd_layer_same(const sd_layer_cfg *a, const sd_layer_cfg *b);

/* Which parts a layer has follows from its kind's row (sd_attn_role_shape): dimensions it has no
 * use for are 0. Where the diagonal of its scores comes from: */
typedef enum sd_diag { SD_DIAG_NONE, SD_DIAG_INPUT, SD_DIAG_SCALAR } sd_diag;
sd_diag sd_layer_diag(const sd_layer_cfg *lc);
/* Value of `key` in a layer's options ("features=skew window=64") into out (cut to n−1 bytes);
 * false when absent. */
bool sd_layer_option(const char *options, const char *key, char *out, size_t n);

enum { SD_MAX_ROPE = 512 };
typedef struct sd_rope_cfg {
    int dim; /* rotary dims of each head (<= d_qk) */
    sd_rope_style style;
    double theta;
    char scaling[16]; /* "none", "linear", "llama3", "factors" */
    double factor, low_freq, high_freq;
    int original_ctx;
    /* "factors": inverse frequency i is divided by freq_factor[i] (GGUF's rope_freqs.weight) */
    int n_factor;
    float freq_factor[SD_MAX_ROPE / 2];
} sd_rope_cfg;

typedef struct sd_config {
    char family[24]; /* row of the family table: "gpt2", "sd", "bert", "gpt_neox", "llama" */
    int n_layer, d_model, d_ff, vocab,
        n_pos; /* n_pos: position table (or trained context if RoPE) */
    bool causal;
    sd_norm norm;
    double norm_eps;
    bool final_norm, embed_norm;
    sd_block block;
    sd_act act;
    bool gated_mlp; /* w2(act(w1 x) ∘ w3 x) */
    sd_pos pos;
    sd_rope_cfg rope;
    int n_type;    /* BERT token types, 0 = none */
    bool tied;     /* output head = token embedding (METHOD: counted once) */
    bool has_head; /* false: encoder without MLM head */
    bool mlm_head; /* BERT: dense + act + norm before the decoder */
    bool qkv_bias, out_bias, mlp_bias;
    double embed_scale;  /* multiplies (token + position) embeddings on input only; 1 = off */
    double d_floor;      /* S–D: added to softplus */
    int bos, eos;        /* -1 = none */
    int sliding_window;  /* the family's own key, for saving; 0 = none. What counts is the layers'
                            kind */
    sd_layer_cfg *layer; /* (n_layer) owned */
} sd_config;

enum { SD_MAX_LAYERS = 1024 };
sd_status sd_config_init(sd_config *c, int n_layer, sd_err *err); /* zeroed, layers allocated */
/* The model's scalars in the same way, arrays of text and the rotary frequencies apart: X(name). */
#define SD_CONFIG_INTS(X)                                                                        \
    X(n_layer)                                                                                   \
    X(d_model)                                                                                   \
    X(d_ff) X(vocab) X(n_pos) X(causal) X(norm) X(final_norm) X(embed_norm) X(block) X(act)      \
        X(gated_mlp) X(pos) X(rope.dim) X(rope.style) X(rope.original_ctx) X(rope.n_factor)      \
            X(n_type) X(tied) X(has_head) X(mlm_head) X(qkv_bias) X(out_bias) X(mlp_bias) X(bos) \
                X(eos) X(sliding_window)
#define SD_CONFIG_REALS(X) \
    X(norm_eps)            \
    X(rope.theta) X(rope.factor) X(rope.low_freq) X(rope.high_freq) X(embed_scale) X(d_floor)
sd_status sd_config_copy(sd_config *dst, const sd_config *src, sd_err *err);
void sd_config_free(sd_config *c);
/* Consistency and sane limits (every product that sizes an allocation); names the field. */
sd_status sd_config_check(const sd_config *c, sd_err *err);

#endif
