/* decode.h: running a causal net token by token. What a layer must remember is its kind's business:
 * softmax-like kinds keep the projections of all tokens taken in (a row a token and key head),
 * recurrent ones a state of constant size, and the two mix freely in one net.
 *
 * The result of a token is that of a full forward pass over everything taken in so far, up to
 * rounding. Work on one token is reading the weights once: each product is split by columns over
 * the threads. The split does not change how an element is summed, so neither does the number of
 * threads change the result. */
#ifndef SD_NN_DECODE_H
#define SD_NN_DECODE_H

#include "base/rng.h"
#include "nn/net.h"

typedef struct sd_decoder sd_decoder;

typedef struct sd_decode_plan {
    int capacity; /* tokens it can take in altogether */
    int rows;     /* tokens taken in at a time (a longer feed goes in several turns); 0: capacity */
    int threads;  /* 0: one per available CPU */
} sd_decode_plan;

/* The net is borrowed and must not change while the decoder lives. Encoders and models without an
 * output head are refused, and a capacity beyond the position table with both numbers. */
sd_status sd_decoder_new(const sd_net *net, const sd_decode_plan *plan, SD_OWN sd_decoder **out,
                         sd_err *err);
void sd_decoder_free(SD_OWN sd_decoder *SD_NULLABLE d);
/* Takes ids (n) in; logits (V, of the net's type, nullable) of the last of them. After a failure
 * (SD_ECANCEL included) only sd_decoder_reset and sd_decoder_free may follow. */
sd_status sd_decoder_feed(sd_decoder *d, const int32_t *ids, int n, void *SD_NULLABLE logits,
                          sd_err *err);
void sd_decoder_reset(sd_decoder *d);
int sd_decoder_len(const sd_decoder *d); /* tokens taken in */
/* Bytes that grow with the capacity, and bytes of constant state. */
void sd_decoder_bytes(const sd_decoder *d, size_t *cache, size_t *state);

/* Choosing the next token from logits (V, f32). temperature 0: the largest, the lowest id of equal
 * ones. Else softmax(logits / temperature), cut to the top_k largest (0: all), of these to the
 * smallest set whose share is at least top_p (1: all), drawn with rng. work holds V entries. */
typedef struct sd_sampling {
    double temperature, top_p;
    int top_k;
} sd_sampling;
typedef struct sd_sample_item {
    float logit;
    int32_t id;
} sd_sample_item;
/* SD_ENUMERIC for a non-finite logit; SD_EINVAL for settings out of range. */
sd_status sd_sample(const sd_sampling *s, size_t v, const float *logits, sd_rng *rng,
                    sd_sample_item *work, int32_t *id, sd_err *err);

#endif
