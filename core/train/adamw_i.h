/* adamw_i.h: the kernels of adamw_k.c, one set a floating type. Private to train/. */
#ifndef SD_TRAIN_ADAMW_I_H
#define SD_TRAIN_ADAMW_I_H

#include <stddef.h>

typedef struct sd_adamw_coef {
    double b1, b2, eps, lr, decay; /* decay = lr·weight_decay, 0 where none applies */
    double c1, c2;                 /* bias corrections 1/(1−β1^t), 1/(1−β2^t) */
    double scale;                  /* of the gradient */
} sd_adamw_coef;

void sd_adamw_update_f32(size_t n, void *x, const void *g, void *m, void *v,
                         const sd_adamw_coef *c);
void sd_adamw_update_f64(size_t n, void *x, const void *g, void *m, void *v,
                         const sd_adamw_coef *c);
double sd_adamw_sum_squares_f32(size_t n, const void *g);
double sd_adamw_sum_squares_f64(size_t n, const void *g);

#endif
