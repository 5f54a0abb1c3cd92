/* price.h: what a model costs to run, from its config alone: nothing is loaded or computed. */
#ifndef SD_NN_PRICE_H
#define SD_NN_PRICE_H

#include "nn/attn.h"

/* Model FLOPs of a token's forward pass count every multiply-add of the matrices and of the
 * attention (the mean over the rows of a text of T tokens) as 2. Bytes are those of an f32 decoder
 * (nn/decode.h) that has taken in T tokens: kinds with a cache keep what they project for every
 * token a later one can see, recurrent ones a state. */
typedef struct sd_price {
    double flops, attn_flops;        /* a token; of these: projections and attention sublayers */
    double cache_bytes, state_bytes; /* grows with T; constant */
    int64_t attn_params;             /* parameters of the attention sublayers, norms not counted */
    int recurrent;                   /* layers that decode with constant state */
} sd_price;

/* The whole model at a text of T tokens. */
void sd_price_of(const sd_config *cfg, int tokens, sd_price *out);
/* One attention sublayer alone; `flops` = attn_flops. */
void sd_price_layer(const sd_config *cfg, int layer, int tokens, sd_price *out);

#endif
