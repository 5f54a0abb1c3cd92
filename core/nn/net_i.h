/* net_i.h: the inside of a net and its workspace, shared by net.c (tables, planning) and net_k.c
 * (the passes, compiled for f32 and f64). */
#ifndef SD_NN_NET_I_H
#define SD_NN_NET_I_H

#include "nn/attn.h"
#include "nn/net.h"
#include "nn/pool.h"

enum { NET_NONE = -1 };

/* A projected part inside a layer's packed weight (D, np). */
typedef struct net_part {
    sd_slot slot;
    const sd_net_slice *weight, *bias; /* bias NULL: none, or the last row when augmented */
    bool augmented;
    size_t col, n; /* first column and width in proj */
} net_part;

typedef struct net_layer {
    const sd_attn_kind *kind;
    int n_part;
    net_part part[SD_ATTN_MAX_PARTS];
    size_t np, ld; /* projected columns; row stride of proj (np rounded up to 16) */
    size_t off[SD_SLOT_COUNT];
    bool has[SD_SLOT_COUNT];
    size_t pack;       /* offset of the packed weight (D, ld) and bias (ld) in ws->pack */
    size_t attn_width; /* H·d_v */
} net_layer;

struct sd_net {
    sd_config cfg;
    sd_dtype dtype;
    size_t es; /* bytes an element */
    sd_net_slice *slice;
    size_t n_slice;
    int *index; // (L+1, SD_ROLE_COUNT) slice of (layer, role), NET_NONE; row 0 = global
    void *params;
    size_t size, n_params;
    double *inv_freq; // (rope.dim/2) or NULL
    net_layer *layer; // (L)
    size_t pack_size;
};

/* What one layer's forward leaves for its backward; shared by all layers when nothing is kept. */
typedef struct net_lbuf {
    void *a;     // (BT, D) norm1's output
    void *stat1; // (BT, 2)
    void *proj;  // (BT, ld)
    void *dval;  // (BT, H)
    void *lse;   // (B, H, T)
    void *att;   // (BT, H·d_v)
    void *x2;    // (BT, D) middle of the block: after attention's residual (post: normed)
    void *s1;    // (BT, D) post: before norm1
    void *n2;    // (BT, D) norm2's output (pre, parallel)
    void *stat2; // (BT, 2)
    void *h1;    // (BT, d_ff) before the activation
    void *h3;    // (BT, d_ff) gate
    void *act;   // (BT, d_ff)
    void *s2;    // (BT, D) post: before norm2
} net_lbuf;

struct sd_net_ws {
    const sd_net *net;
    int batch_rows, tokens; /* planned B·T and T */
    bool backward;
    bool *recompute; // (L)
    sd_pool *pool;
    void *mem;
    size_t bytes;
    /* activations */
    void **x; // (L+1) pointers to (BT, D): inputs of the layers, last: output; two when not kept
    net_lbuf *lb; // (L)
    void *pack;   // packed projection weights and biases of all layers
    bool packed;  /* pack is up to date and parameters are promised not to change */
    bool frozen;
    void *rope;           // (T, dim) cos, sin
    void *emb, *emb_stat; // (BT, D), (BT, 2): before embed_norm
    void *hf, *hf_stat;   // (BT, D), (BT, 2): after the final norm
    /* loss: compact scored rows */
    size_t loss_rows;            /* rows of logits at a time */
    void *hc;                    // (BT, D)
    void *m1, *m2, *m3, *m_stat; // (BT, D) MLM head
    void *logits;                // (loss_rows, V)
    double *nll, *loss;          // (BT)
    size_t *row;                 // (BT)
    /* backward */
    void *da, *db, *dc; // (BT, D)
    void *dh1, *dh3;    // (BT, d_ff)
    void *datt, *dproj; // (BT, max H·d_v), (BT, max ld)
    void *ddiag, *dfl;  // (B, H), (B, H·f_rank)
    void *npart;        // (blocks, 2 norms, 2, D)
    void *scratch;      // (threads, scratch_size)
    size_t scratch_size;
    int threads;
};

enum { NET_MAX_BLOCKS = 256 };
/* Rows of a block and number of blocks for n rows: depends on n alone, so that results do not
 * depend on the number of threads. */
size_t sd_net_row_block(size_t n);

typedef struct net_ops {
    sd_status (*forward)(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b,
                         const sd_forward_opts *opts, void *hidden, void *logits, sd_err *err);
    sd_status (*loss)(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double scale,
                      void *grad, double *nll_sum, int64_t *count, double *nll, double *loss_sum,
                      sd_err *err);
    sd_status (*unembed)(const sd_net *net, sd_net_ws *ws, size_t n, const void *x, bool norm,
                         void *logits, sd_err *err);
} net_ops;
extern const net_ops sd_net_ops_f32, sd_net_ops_f64;

/* The parameters will not change again while ws lives (forward.c's cache): pack them once. */
void sd_net_ws_freeze(sd_net_ws *ws);

static inline const sd_net_slice *net_slice(const sd_net *net, int layer, sd_role r) {
    int i = net->index[(size_t)(layer + 1) * SD_ROLE_COUNT + (size_t)r];
    return i == NET_NONE ? NULL : &net->slice[i];
}

#endif
