/* attn.h: the attention kinds behind one descriptor. A kind is its row (attn_<name>.c), its kernels
 * (attn_<name>_k.c, compiled for f32 and f64) and a line of the list in attn.c. Nothing else in the
 * program knows a kind by its name: which parts a layer has, their shapes, its options, the keys a
 * row sees, and what its scores are as a matrix are all asked of the row.
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
    SD_SLOT_COUNT,
    SD_SLOT_ONE = SD_SLOT_COUNT, /* in a term: the constant 1 */
    SD_SLOT_NONE                 /* in a part: not projected, handed over as it is */
} sd_slot;

/* Columns of a part. */
typedef enum sd_attn_width {
    SD_WIDTH_QUERY,  /* H·d_qk */
    SD_WIDTH_KEY,    /* Hkv·d_qk */
    SD_WIDTH_VALUE,  /* Hkv·d_v */
    SD_WIDTH_HEADS,  /* H */
    SD_WIDTH_PLANES, /* H·planes */
    SD_WIDTH_RANK    /* H·f_rank */
} sd_attn_width;

/* A part: weight (D, width) and its bias (width); augmented (D+1, width): the last row is the bias
 * (bias = SD_ROLE_COUNT); slot SD_SLOT_NONE: a vector (width). A part of width 0 is not there. */
typedef struct sd_attn_part {
    sd_slot slot;
    sd_role weight, bias;
    bool augmented;
    bool bias_always; /* whatever sd_config.qkv_bias says */
    sd_attn_width width;
    sd_diag diag; /* there only when the layer's diagonal is this one; SD_DIAG_NONE: always */
} sd_attn_part;

enum { SD_ATTN_MAX_PARTS = 10 };

/* An option "name=value" of sd_layer_cfg.options. */
typedef struct sd_attn_option {
    const char *name, *doc;
    const char *choices; /* "qk|skew"; NULL: an integer min..max */
    int min, max;
    const char *required; /* NULL, or: it must be given, for example with this value */
} sd_attn_option;

/* ---- scores as a matrix (METHOD §1, §2, §6, §7) ------------------------------------------------
 * M = R + F over all pairs of tokens, unmasked, before softmax:
 *   R = ½(Q_R K_Rᵀ − K_R Q_Rᵀ)    F = ½(Q_F K_Fᵀ + K_F Q_Fᵀ) and the diagonal δ
 * with each factor a slot times a number. At weight level the same columns are weights (rows D, or
 * D+1 with the bias row last). The algebras that follow from the terms: */
typedef enum sd_attn_algebra {
    SD_SCORES_NONE,    /* no scores at all (uniform), or not as a matrix before a softmax (elu1) */
    SD_SCORES_PRODUCT, /* M = c·QKᵀ: both terms are the same */
    SD_SCORES_SKEW,    /* R = α(QKᵀ − KQᵀ), no F but the diagonal −d */
    SD_SCORES_FACTORS, /* R = ABᵀ − BAᵀ, F = f diag(λ) fᵀ and δ added on the diagonal */
    SD_SCORES_KEY /* a key's potential: R = 1wᵀ − w1ᵀ (rank 2; the softmax does not see the
                     −w_i that makes it skew), no F but the diagonal −d */
} sd_attn_algebra;

typedef struct sd_attn_term {
    sd_slot q, k;
    double factor; /* 0: there is no such term. Q = factor · slot q ... */
    bool scaled;   /* ... · sd_layer_cfg.scale */
    bool weighted; /* ... column r · SD_ROLE_FL[r] */
} sd_attn_term;

typedef enum sd_score_diag {
    SD_SCORE_DIAG_PLAIN,   /* nothing happens on the diagonal */
    SD_SCORE_DIAG_ADD,     /* M_ii = the terms + δ_i */
    SD_SCORE_DIAG_REPLACE, /* M_ii = δ_i (S–D: −d_i; without a diagonal part: 0) */
} sd_score_diag;

/* What a call works on. All data pointers are float or double, as the ops they go to. */
typedef struct sd_attn_args {
    const struct sd_attn_kind *kind; /* a built-in kind's functions do not look at it */
    int batch, tokens;               /* B, T */
    int n_head, n_kv;                /* H, Hkv */
    int d_qk, d_v, planes, f_rank;
    int first; /* decode: the token that row 0 of o, dval and, for recurrent kinds, proj stands for
                */
    bool causal;
    int window; /* a causal row i sees keys i−window+1 .. i; 0: all before it */
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
    int n_part, n_option;
    sd_attn_part part[SD_ATTN_MAX_PARTS];
    const sd_attn_option *option; /* "window" and "diag" have a common meaning: see below */
    sd_diag diag;                 /* where the diagonal comes from, unless option "diag" says */
    double scale_width;           /* of a fresh layer: scale = 1/√(scale_width·d_qk) */
    sd_attn_term routing, filtering;
    sd_score_diag diagonal;
    /* FLOPs of one token between projections and output (all heads); keys: seen by a row on
     * average. */
    double (*flops)(const sd_layer_cfg *lc, double keys);
    const sd_attn_ops *f32, *f64;
    /* Kinds that are not in the library's list: where they come from ("linearize", "1.0"), what
     * their functions find through sd_attn_args.kind and sd_layer_cfg.foreign, and a check of a
     * layer that its options and dimensions have passed: NULL, or why it is refused. */
    const char *plugin, *version;
    const void *impl;
    const char *(*check)(const sd_layer_cfg *lc);
} sd_attn_kind;

/* Foreign rows (sd_run.kinds). They outlive every model that is opened or made with them. */
typedef struct sd_attn_list {
    const sd_attn_kind **row;
    size_t n;
} sd_attn_list;

/* The built-in list. */
const sd_attn_kind *sd_attn_find(const char *name); /* NULL when unknown */
const sd_attn_kind *sd_attn_at(size_t i);           /* NULL past the end */
/* The same with the rows of run->kinds (nullable) after the built-in ones. */
const sd_attn_kind *sd_attn_find_in(const sd_run *SD_NULLABLE run, const char *name);
const sd_attn_kind *sd_attn_at_in(const sd_run *SD_NULLABLE run, size_t i);
/* Sets lc->foreign to the row of run->kinds that lc->kind names; NULL when none does. */
void sd_attn_bind(sd_layer_cfg *lc, const sd_run *SD_NULLABLE run);
/* A layer's row: a foreign one that the layer carries (sd_layer_cfg.foreign), else from the list;
 * NULL when unknown. */
const sd_attn_kind *sd_attn_of(const sd_layer_cfg *lc);
/* The options a layer of this kind cannot do without, with their examples: "window=64". */
void sd_attn_least_options(const sd_attn_kind *k, char *out, size_t n);
/* SD_EINVAL "attention kind 'x' is unknown (known: ...)". */
sd_status sd_attn_need(const sd_layer_cfg *lc, SD_BORROW const sd_attn_kind **out, sd_err *err);

/* ---- a layer under its kind -------------------------------------------------------------------
 * All of these take a layer whose kind is known. */
bool sd_attn_uses(const sd_layer_cfg *lc, sd_attn_width w); /* has it a part of this width? */
/* Dimensions the kind has no use for become 0: d_qk of uniform, planes of softmax. */
void sd_attn_normalize(sd_layer_cfg *lc);
/* Dimensions that are missing or useless, options that are unknown, doubled, missing or out of
 * range: SD_EFORMAT by name. */
sd_status sd_attn_check(const sd_layer_cfg *lc, sd_err *err);
/* c or α of a fresh layer of this kind; 1 without queries and keys. */
double sd_attn_fresh_scale(const sd_layer_cfg *lc);
/* Shape of a part of this layer; false when it has none such. */
bool sd_attn_role_shape(const sd_config *cfg, const sd_layer_cfg *lc, sd_role r, int64_t shape[2],
                        int *ndim);
/* The part behind a slot; NULL when the layer has none. */
const sd_attn_part *sd_attn_part_of(const sd_layer_cfg *lc, sd_slot s);
/* Option "window" where the kind has it: how many keys a causal row sees, itself included; 0: all.
 */
int sd_attn_window(const sd_layer_cfg *lc);
/* Row i of n sees keys [*lo, *hi). */
void sd_attn_keys(const sd_layer_cfg *lc, bool causal, size_t i, size_t n, size_t *lo, size_t *hi);
/* Mean number of keys a row of n sees. */
double sd_attn_mean_keys(const sd_layer_cfg *lc, bool causal, size_t n);

/* ---- its interaction matrix ------------------------------------------------------------------ */

sd_attn_algebra sd_attn_algebra_of(const sd_layer_cfg *lc);
/* M = S − D by construction: no filtering but a diagonal that replaces (METHOD §6's promises). */
bool sd_attn_is_skew(const sd_layer_cfg *lc);
/* Why there is nothing to analyse: "no scores (uniform)"; NULL when there is. */
const char *sd_attn_no_scores(const sd_layer_cfg *lc, char buf[64]);

/* Columns of one layer: tokens (capture), or rows of weights. Each slot given as f32 or f64, head
 * after head as the net has them. */
typedef struct sd_attn_slots {
    size_t rows;  /* N tokens; or D, or D+1 with the bias row last */
    bool weights; /* rows of weights: SD_SLOT_ONE is 0 but for 1 in row D (the bias row) */
    size_t d_model;
    struct {
        const float *f32;
        const double *f64;
        size_t ld;
    } at[SD_SLOT_COUNT];
    const double *fl; // (H·f_rank) nullable: ones
} sd_attn_slots;

/* Columns of the term's factors; 0: the term is zero. */
size_t sd_attn_term_width(const sd_layer_cfg *lc, const sd_attn_term *t);
/* factor (· scale): what the columns that sd_attn_term_factors gives still lack on the Q side. */
double sd_attn_term_scale(const sd_layer_cfg *lc, const sd_attn_term *t);
/* Unscaled factors of one head (FL weights are in q): q, k (rows, width), row-major. */
void sd_attn_term_factors(const sd_layer_cfg *lc, const sd_attn_term *t, const sd_attn_slots *x,
                          int head, double *q, double *k);

#endif
