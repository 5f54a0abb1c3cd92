/* net_pass.h: one pass through a net, as the files of passes share it (*_k.c only): net_k.c, and
 * net_hook_k.c for layers in which hooks look on. */
#ifndef SD_NN_NET_PASS_H
#define SD_NN_NET_PASS_H

#include "nn/kern.h"
#include "nn/net_i.h"

#define pass SD_R(net_pass)
typedef struct pass {
    const sd_net *net;
    sd_net_ws *ws;
    const sd_net_batch *b;
    const sd_config *c;
    size_t n, d, rb, blocks; /* rows B·T; D; rows a block; number of blocks */
    int l;
    const net_layer *nl;
    const sd_layer_cfg *lc;
    net_lbuf *lb;
    const real *x;
    real *y;
    sd_attn_args args;
    /* hooks: what stands in for the sublayers' inputs, and what they give; NULL: nothing */
    real *in1, *in2, *out1, *out2;
    const sd_forward_opts *opts;
    bool stop;
    /* loss */
    size_t scored, r0, nr; /* scored rows; the current block of them */
    const real *hl;        // (scored, D) what meets the decoder
    real *dhl;             // (scored, D) its gradient
    real scale;
    real *grad;
    real *logits_out;
    /* backward */
    real *dx, *g1, *g2, *dacc;
} pass;

SD_INLINE const real *par(const pass *p, int layer, sd_role r) {
    const sd_net_slice *s = net_slice(p->net, layer, r);
    return s ? (const real *)p->net->params + s->offset : NULL;
}

SD_INLINE void block_of(const pass *p, size_t i, size_t *r0, size_t *n) {
    *r0 = i * p->rb;
    *n = p->n - *r0 < p->rb ? p->n - *r0 : p->rb;
}

SD_INLINE sd_status run(pass *p, size_t n, sd_pool_fn fn, sd_err *err) {
    sd_pool_run(p->ws->pool, n, fn, p);
    return sd_check_cancel(err);
}

SD_INLINE const sd_attn_ops *attn_ops(const pass *p) {
#if SD_REAL_BITS == 32
    return p->nl->kind->f32;
#else
    return p->nl->kind->f64;
#endif
}

SD_INLINE real *scratch_of(const pass *p, int worker) {
    return (real *)p->ws->scratch + (size_t)worker * p->ws->scratch_size;
}

SD_INLINE bool has_norm(const pass *p) {
    return p->c->norm != SD_NORM_NONE;
}

SD_INLINE bool is_post(const pass *p) {
    return p->c->block == SD_BLOCK_POST;
}

/* What the projections and the MLP read. */
SD_INLINE const real *attn_in(const pass *p) {
    return has_norm(p) && !is_post(p) ? p->lb->a : p->x;
}

SD_INLINE const real *mlp_in(const pass *p) {
    if (p->in2)
        return p->in2;
    if (has_norm(p) && !is_post(p))
        return p->lb->n2;
    return p->c->block == SD_BLOCK_PARALLEL ? p->x : p->lb->x2;
}

/* Pieces of a layer, for sd_pool_run over blocks (heads: over B·Hkv). */
typedef struct pass_stages {
    sd_pool_fn norm1, project, heads, out;
    sd_status (*capture)(const pass *p, const sd_forward_opts *opts, sd_err *err);
} pass_stages;
extern const pass_stages SD_R(sd_pass_stages);

/* A layer in which hooks look on, stage by stage; set_layer has been done. p->stop: not past it. */
sd_status SD_R(sd_net_hooked_layer)(pass *p, sd_err *err);
bool SD_R(sd_net_hooked)(const pass *p, int layer);
/* Calls the hooks of the final point on (B, T, D). */
sd_status SD_R(sd_net_hooked_final)(pass *p, real *x, sd_err *err);

#endif
