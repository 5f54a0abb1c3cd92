/* calib.h: what a model's attention sublayers see on a text, run in pieces, and its second moments
 * gathered on the way (METHOD §8.2).
 *
 * Memory is bounded by the model's size, not by the text's length: moments are streamed in f64, one
 * piece at a time. */
#ifndef SD_SPECTRAL_CALIB_H
#define SD_SPECTRAL_CALIB_H

#include "nn/forward.h"

/* Tokens of a piece when nobody asks: the position table, at most 512. */
int sd_calib_ctx(const sd_config *c);

/* The text (n ids) in consecutive pieces of ctx tokens (0: sd_calib_ctx; a text shorter than ctx is
 * one piece; a last short piece is dropped), of which at most max_seqs are run (0: all), each with
 * `fn` as the forward's capture, the heads' outputs in it if `outputs`. Progress and cancellation
 * between pieces. */
typedef sd_status (*sd_capture_fn)(void *ctx, const sd_capture *c, sd_err *err);
sd_status sd_calib_stream(sd_model *m, const int32_t *ids, size_t n, int ctx, int max_seqs,
                          bool outputs, sd_capture_fn fn, void *fn_ctx,
                          const sd_run *SD_NULLABLE run, sd_err *err);

/* Of one layer, over all its rows N. What a layer of its kind does not have is NULL: a kind without
 * queries and keys (uniform, potential, bilinear) has no qk, q_mean, k_mean and diag_mean, one
 * without the S–D diagonal no d_mean and d_sd. Layers that were not asked for have rows = 0 and
 * nothing else. */
typedef struct sd_calib_layer {
    int n_head, d_qk, d_v, d_model;
    double rows, scale;
    double *x2;        // (D+1, D+1) second moment of [x 1]
    double *qk;        // (H, 2d, 2d) second moment of [q k], uncentred, q unscaled; k of the group
    double *q_mean;    // (H, d)
    double *k_mean;    // (H, d)
    double *diag_mean; // (H) mean over tokens of scale·q_i·k_i
    double *o2;        // (H, d_v, d_v) second moment of the heads' outputs
    double *d_mean;    // (H) S–D diagonal (positive)
    double *d_sd;      // (H) its standard deviation
} sd_calib_layer;

typedef struct sd_calib sd_calib;

/* layers (L) nullable: all. */
sd_status sd_calib_new(sd_model *m, const int32_t *ids, size_t n, int ctx, int max_seqs,
                       const bool *SD_NULLABLE layers, const sd_run *SD_NULLABLE run,
                       SD_OWN sd_calib **out, sd_err *err);
void sd_calib_free(SD_OWN sd_calib *SD_NULLABLE k);
int sd_calib_n_layer(const sd_calib *k);
const sd_calib_layer *sd_calib_at(const sd_calib *k, int layer);

#endif
