/* trace.h: what a model says token by token, and layer by layer (METHOD §9). */
#ifndef SD_SPECTRAL_TRACE_H
#define SD_SPECTRAL_TRACE_H

#include "base/table.h"
#include "nn/model.h"

typedef struct sd_trace_opts {
    int ctx;      /* tokens a window; 0: the position table, at most 512 */
    int max_seqs; /* windows; 0: all */
    int at;       /* lens: the position whose best guess is shown; negative: from the end */
} sd_trace_opts;

/* A token as tables and figures show it: its text, spaces at its ends as "·", control bytes
 * escaped; "#17" without a tokenizer. Appended. */
void sd_trace_spell(const sd_model *m, int32_t id, sd_buf *out);

/* One row a scored token, in windows as sd_ablate's: position, id, token, loss (nats), rank (1: the
 * likeliest; equal logits do not count), entropy (nats) of the prediction. Meta nll, tokens. */
sd_status sd_trace_tokens(sd_model *m, const int32_t *ids, size_t n,
                          const sd_trace_opts *SD_NULLABLE o, const sd_run *SD_NULLABLE run,
                          SD_OWN sd_table **out, sd_err *err);

/* Logit lens on the first window: the residual stream in front of every layer, and what the model
 * says (row L), through final norm and output head. One row each: layer, nll, accuracy (argmax is
 * the next token), agree (argmax is the model's), entropy, kl (from the model's prediction to this
 * one, nats), top (best guess at position `at`). */
sd_status sd_trace_lens(sd_model *m, const int32_t *ids, size_t n,
                        const sd_trace_opts *SD_NULLABLE o, const sd_run *SD_NULLABLE run,
                        SD_OWN sd_table **out, sd_err *err);

#endif
