/* rope.h: inverse frequencies of rotary position embeddings. */
#ifndef SD_NN_ROPE_H
#define SD_NN_ROPE_H

#include "nn/config.h"

/* inv[i], i < dim/2: rotation angle of pair i per position, θ^(−2i/dim), changed by the scaling:
 * none; linear (all divided by factor: position interpolation); llama3 (wavelengths above
 * original_ctx/low_freq divided by factor, below original_ctx/high_freq kept, linear in between);
 * factors (each divided by its own). CASES M07. */
void sd_rope_inv_freq(const sd_rope_cfg *r, double *inv);

#endif
