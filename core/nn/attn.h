/* attn.h: the attention kinds behind one descriptor. A kind is one file (attn_<name>_k.c, compiled
 * for f32 and f64) and one row of the table in attn.c.
 *
 * The net projects the sublayer's input with all of a kind's parts at once into `proj`, rows of
 * `ld` elements in which each slot (queries, keys, values, ...) is a run of columns, head after
 * head. A kind turns that into the heads' outputs, one call per (sequence, key/value head): the
 * query heads of the group are its business (GQA), so that calls never write the same memory. */
#ifndef SD_NN_ATTN_H
#define SD_NN_ATTN_H

#include "nn/model.h"

/* Columns of the projected input. */
typedef enum sd_slot {
    SD_SLOT_Q, /* (H, d_qk) after RoPE */
    SD_SLOT_K, /* (Hkv, d_qk) after RoPE */
    SD_SLOT_V, /* (Hkv, d_v) */
    SD_SLOT_U, /* (H) S–D diagonal before softplus */
    SD_SLOT_A,
    SD_SLOT_B, /* (H, planes) routing factors of the bilinear kind */
    SD_SLOT_F, /* (H, f_rank) its filtering factor */
    SD_SLOT_W, /* (H) key potential */
    SD_SLOT_COUNT
} sd_slot;

/* A projected part: weight and bias roles; an augmented weight (D+1, n) carries its bias as the
 * last row (bias = SD_ROLE_COUNT). Parts the model does not have (sd_role_shape) are skipped. */
typedef struct sd_attn_part {
    sd_slot slot;
    sd_role weight, bias;
    bool augmented;
} sd_attn_part;

enum { SD_ATTN_MAX_PARTS = 6 };

/* What a call works on. All data pointers are float or double, as the ops they go to. */
typedef struct sd_attn_args {
    int batch, tokens; /* B, T */
    int n_head, n_kv;  /* H, Hkv */
    int d_qk, d_v, planes, f_rank;
    int first; /* decode: the token that row 0 of o, dval and, for recurrent kinds, proj stands for */
    bool causal;
    double scale;
    const char *options;           /* sd_layer_cfg.options */
    size_t ld, off[SD_SLOT_COUNT]; /* row stride of proj; first column of each slot */
    bool has[SD_SLOT_COUNT];
    const void *proj; // (B·T, ld)
    const void *dval; // (B·T, H) positive S–D diagonal; NULL when there is none
    const void *diag; // (H) SD_ROLE_DIAG; NULL when there is none
    const void *fl;   // (H·f_rank) SD_ROLE_FL; NULL when there is none
    void *o;          // (B·T, H·d_v)
    void *lse;        // (B, H, T) log of the softmax denominators, or a kind's own row statistic
    /* backward */
    const void *d_o; // (B·T, H·d_v)
    void *dproj;     // (B·T, ld): every slot the kind has is overwritten
    void *ddiag;     // (B, H) ∂loss/∂diag of each sequence; overwritten
    void *dfl;       // (B, H·f_rank)
} sd_attn_args;

/* scratch: elements of work memory one forward/backward call needs.
 * forward/backward: sequence b, key/value head g; scratch is private to the call.
 * decode: token t of sequence b after tokens 0..t−1 have been decoded; writes row t − first of o.
 * Kinds with a cache find all proj rows 0..t of the sequence there; recurrent ones only the rows
 * from `first` on, and `state` (state_size elements a (b, g), zeroed before token 0) carries the
 * rest; scratch as for forward, planned for any number of tokens. */
typedef struct sd_attn_ops {
    size_t (*scratch)(const sd_attn_args *a, bool backward);
    void (*forward)(const sd_attn_args *a, int b, int g, void *scratch);
    void (*backward)(const sd_attn_args *a, int b, int g, void *scratch);
    size_t (*state_size)(const sd_attn_args *a);
    void (*decode)(const sd_attn_args *a, int b, int g, int t, void *state, void *scratch);
} sd_attn_ops;

typedef struct sd_attn_kind {
    const char *name, *summary;
    bool causal_only; /* refuses encoders */
    bool recurrent;   /* decodes with state of constant size */
    bool rope;        /* Q and K may be rotary */
    sd_attn_part part[SD_ATTN_MAX_PARTS];
    int n_part;
    bool needs_diag, needs_fl; /* uses SD_ROLE_DIAG / SD_ROLE_FL when the model has them */
    const sd_attn_ops *f32, *f64;
} sd_attn_kind;

const sd_attn_kind *sd_attn_find(const char *name); /* NULL when unknown */
const sd_attn_kind *sd_attn_at(size_t i);           /* NULL past the end */

#endif
