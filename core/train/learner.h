/* learner.h: one model being trained: its net, the gradient, the optimizer, and what it learns
 * from: tokens, and optionally a teacher's logits. `train`, plugins and everything else that
 * updates weights do it through here, so that the same batches and options give the same bits.
 *
 * A step: sd_learner_zero, sd_learner_backward for each micro-batch, sd_learner_update. */
#ifndef SD_TRAIN_LEARNER_H
#define SD_TRAIN_LEARNER_H

#include "train/adamw.h"

typedef struct sd_learner sd_learner;

/* A copy of m's parameters in `type`, planned as `plan` says (backward is implied). */
sd_status sd_learner_new(sd_model *m, sd_dtype type, const sd_net_plan *plan,
                         SD_OWN sd_learner **out, sd_err *err);
void sd_learner_free(SD_OWN sd_learner *SD_NULLABLE l);
/* Its parts, borrowed. */
sd_net *sd_learner_net(sd_learner *l);
sd_net_ws *sd_learner_ws(sd_learner *l);
sd_optim *sd_learner_optim(sd_learner *l);
void *sd_learner_grad(sd_learner *l); // (sd_net_size)
/* Updates done; the next one's bias correction counts from it. */
int64_t sd_learner_steps(const sd_learner *l);
void sd_learner_set_steps(sd_learner *l, int64_t steps);

/* The slices that updates change (n_slices; NULL: all); the others are frozen: no update, no decay,
 * no part in the gradient's norm. Holds until the next call. */
void sd_learner_choose(sd_learner *l, const bool *SD_NULLABLE slices);

/* Distillation (METHOD §7.5): from now on the loss of a scored position is
 * (1 − weight)·NLL + weight·KL(teacher ‖ student), up to the teacher's entropy, which has no
 * gradient. NULL or weight 0: none. The teacher (referenced, read-only) must have the same
 * vocabulary; weight in [0, 1]. */
sd_status sd_learner_teach(sd_learner *l, sd_model *SD_NULLABLE teacher, double weight,
                           sd_err *err);

void sd_learner_zero(sd_learner *l);
/* grad += scale · ∂(sum of the loss over scored positions); for the mean over a step's
 * micro-batches scale = 1/(all scored positions of the step). nll_sum: without the teacher's term;
 * kl_sum (nullable): Σ KL(teacher ‖ student), 0 without a teacher. A non-finite loss is
 * SD_ENUMERIC, naming the first non-finite parameter. After an error the gradient is unusable. */
sd_status sd_learner_backward(sd_learner *l, const sd_net_batch *b, double scale,
                              const sd_run *SD_NULLABLE run, double *nll_sum, int64_t *count,
                              double *SD_NULLABLE kl_sum, sd_err *err);
/* One AdamW update of the chosen slices, with the gradient's norm limited to `clip` (<= 0: not).
 * norm (nullable): before the limit. A non-finite one is SD_ENUMERIC, naming the first non-finite
 * parameter or gradient, and nothing has changed. */
sd_status sd_learner_update(sd_learner *l, const sd_adamw *p, double lr, double clip,
                            double *SD_NULLABLE norm, sd_err *err);

#endif
