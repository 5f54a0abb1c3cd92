/* net.h: a model's compute form, in f32 or f64: packed canonical parameters in one flat buffer, and
 * forward, loss and backward over them.
 *
 * The parameters of a net are the canonical parts of nn/model.h laid out one after the other; a
 * gradient buffer (and an optimizer's moments) have the same layout, described by one table of
 * slices. A net is a copy: sd_net_load reads it from a model, sd_net_store writes it back. The
 * attention kinds stand behind one table (nn/attn.h).
 *
 * Work is split over a pool of threads owned by the workspace; the split does not depend on who
 * runs a piece, so results are bit-identical from run to run (at equal binary and processor kind).
 * BLAS is used with one thread a call inside. The cancellation flag is polled between pieces.
 */
#ifndef SD_NN_NET_H
#define SD_NN_NET_H

#include "nn/forward.h"
#include "nn/hook.h"
#include "nn/model.h"

typedef struct sd_net sd_net;
typedef struct sd_net_ws sd_net_ws;

/* One canonical part inside the flat buffer: contiguous, row-major. */
typedef struct sd_net_slice {
    char name[48]; /* "tok", "layer 3 wq": for messages and logs */
    sd_role role;
    int layer;     /* -1: global */
    size_t offset; /* in elements; a multiple of 16 */
    size_t n;      /* elements */
    int ndim;
    int64_t shape[2];
    bool decay; /* weight decay applies: matrices; not biases, norms, scalars */
} sd_net_slice;

/* Builds a net from m's config and copies the parameters. real: SD_F32 or SD_F64. */
sd_status sd_net_new(sd_model *m, sd_dtype real, SD_OWN sd_net **out, sd_err *err);
/* A net of the given config (copied) with all parameters zero. */
sd_status sd_net_build(const sd_config *cfg, sd_dtype real, SD_OWN sd_net **out, sd_err *err);
/* Re-reads all parameters (same shapes); writes them back through sd_model_set. */
sd_status sd_net_load(sd_net *net, sd_model *m, sd_err *err);
sd_status sd_net_store(const sd_net *net, sd_model *m, sd_err *err);
void sd_net_free(SD_OWN sd_net *SD_NULLABLE net);

const sd_config *sd_net_config(const sd_net *net);
sd_dtype sd_net_dtype(const sd_net *net);
/* Flat buffer: float or double, sd_net_size elements (gaps between slices are zero, and stay zero
 * in gradients); 64-byte aligned. sd_net_n_params counts the true parameters (tied once). */
void *sd_net_params(sd_net *net);
size_t sd_net_size(const sd_net *net);
size_t sd_net_n_params(const sd_net *net);
size_t sd_net_n_slices(const sd_net *net);
const sd_net_slice *sd_net_slice_at(const sd_net *net, size_t i);
/* NULL when this net has no such part. Tied output heads have no SD_ROLE_HEAD slice: the token
 * embedding's gradient is the sum of both uses (CASES C06). */
const sd_net_slice *sd_net_find(const sd_net *net, int layer, sd_role r);

/* Activation memory is planned once for the largest batch and then reused. */
typedef struct sd_net_plan {
    int batch, tokens;     /* the largest B·T and T to come */
    int threads;           /* 0: one per available CPU */
    bool backward;         /* keep what backward needs */
    const bool *recompute; /* (L) nullable: these layers keep only their input and run their forward
                              again in backward (same bits, less memory) */
} sd_net_plan;
/* Bytes a workspace would take; SIZE_MAX when that overflows. */
size_t sd_net_ws_bytes(const sd_net *net, const sd_net_plan *plan);
sd_status sd_net_ws_new(const sd_net *net, const sd_net_plan *plan, SD_OWN sd_net_ws **out,
                        sd_err *err);
void sd_net_ws_free(SD_OWN sd_net_ws *SD_NULLABLE ws);

typedef struct sd_net_batch {
    int batch, tokens;      /* B, T */
    const int32_t *ids;     // (B, T) each in [0, V)
    const int32_t *targets; // (B, T) −1 = not scored; nullable for sd_net_forward
    const int32_t *types;   // (B, T) token types; nullable = 0
    /* Distillation (METHOD §7.5): with weight w > 0 the loss of a scored position is
     * (1−w)·NLL + w·cross-entropy to softmax(teacher row). */
    const float *teacher; // (B, T, V) logits; nullable
    double teacher_weight;
    /* Looking into a pass and changing it (nn/hook.h): f32 nets, forward only. Called in order. */
    const sd_hook *hooks;
    size_t n_hooks;
    /* A pass that begins in front of a layer: its input (B, T, D), of the net's type; NULL: the
     * ids' embedding, start_layer 0. */
    const void *start;
    int start_layer;
} sd_net_batch;

/* Hidden states and logits in the net's own type; either may be NULL. capture as in forward.h
 * (buffers converted to f32). opts nullable; opts->run is ignored (the plan has the threads). */
sd_status sd_net_forward(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b,
                         const sd_forward_opts *SD_NULLABLE opts, void *SD_NULLABLE hidden,
                         void *SD_NULLABLE logits, sd_err *err);

/* Logits (n, V) of rows x (n, D) of a residual stream: through the final norm when `norm` (and the
 * net has one), then the output head. n up to the planned B·T. */
sd_status sd_net_unembed(const sd_net *net, sd_net_ws *ws, size_t n, const void *x, bool norm,
                         void *logits, sd_err *err);

/* nll_sum: Σ NLL over scored targets (f64, without any teacher term); count: how many. nll
 * (B, T) nullable: each position's (0 where not scored). */
sd_status sd_net_loss(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double *nll_sum,
                      int64_t *count, double *SD_NULLABLE nll, sd_err *err);

/* Forward, loss and backward: grad (sd_net_size elements of the net's type) += scale · ∂loss/∂θ,
 * loss the sum over scored positions (of the distillation mix if there is a teacher; `loss_sum`
 * then differs from nll_sum). For a token-weighted mean over accumulated micro-batches pass scale =
 * 1/(all scored tokens of the step). A non-finite loss is reported in nll_sum (the gradient is then
 * unusable), not as an error. After SD_ECANCEL grad holds a partial sum: discard it. */
sd_status sd_net_backward(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double scale,
                          void *grad, double *nll_sum, int64_t *count, double *SD_NULLABLE loss_sum,
                          sd_err *err);

/* Model FLOPs a token at sequence length T: every multiply-add of the matrices and of the attention
 * (causal half) counts 2; training = 3 × forward. Recomputation does not count. */
double sd_net_flops(const sd_net *net, int tokens, bool training);

/* Parallel loop on the workspace's threads, for an optimizer over the flat buffers: fn(ctx, i, w)
 * for i in [0, n), worker w. Pieces must be independent. */
void sd_net_parallel(sd_net_ws *ws, size_t n, void (*fn)(void *ctx, size_t i, int worker),
                     void *ctx);

#endif
