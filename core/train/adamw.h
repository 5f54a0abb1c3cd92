/* adamw.h: the optimizer (AdamW, Loshchilov & Hutter 2019) over a net's flat buffers.
 * Decoupled weight decay acts on the slices marked for it (matrices and embeddings; not biases,
 * norms, scalars). Everything is split into fixed pieces, so that sums do not depend on the
 * threads. */
#ifndef SD_TRAIN_ADAMW_H
#define SD_TRAIN_ADAMW_H

#include "nn/net.h"

typedef struct sd_adamw {
    double beta1, beta2, eps, weight_decay;
} sd_adamw;
/* Betas in [0, 1), eps and decay finite and not negative; else SD_EINVAL with the values. */
sd_status sd_adamw_check(const sd_adamw *p, sd_err *err);

typedef struct sd_optim sd_optim; /* moments m and v, in the net's type and layout */

/* train (n_slices, nullable: all): slices that are updated; the others stay as they are. */
sd_status sd_optim_new(const sd_net *net, const sd_adamw *p, const bool *SD_NULLABLE train,
                       SD_OWN sd_optim **out, sd_err *err);
void sd_optim_free(sd_optim *SD_NULLABLE o);
/* Changes that choice, or the constants; the moments stay. */
void sd_optim_choose(sd_optim *o, const sd_net *net, const bool *SD_NULLABLE train);
void sd_optim_set(sd_optim *o, const sd_adamw *p);
void *sd_optim_m(sd_optim *o); // (sd_net_size) first moment
void *sd_optim_v(sd_optim *o); // (sd_net_size) second moment

/* Euclidean norm of the gradient over the updated slices, in f64; non-finite when any entry is. */
double sd_optim_grad_norm(sd_optim *o, sd_net_ws *ws, const void *grad);
/* One update with the gradient multiplied by grad_scale (clipping); t counts from 1. */
void sd_optim_step(sd_optim *o, sd_net *net, sd_net_ws *ws, const void *grad, double grad_scale,
                   double lr, int64_t t);
/* Name of the first slice of a flat buffer that holds a non-finite value, or NULL. */
const char *sd_optim_nonfinite(const sd_net *net, const void *flat);

#endif
