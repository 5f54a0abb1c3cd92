/* decode_i.h: the inside of a decoder, shared by decode.c (planning) and decode_k.c (the passes).
 */
#ifndef SD_NN_DECODE_I_H
#define SD_NN_DECODE_I_H

#include "nn/decode.h"
#include "nn/net_i.h"

/* What one layer remembers. Heads of one key/value head are a block of their own, so that a head's
 * keys and values are read in one sweep. */
typedef struct dec_layer {
    size_t w;                  /* columns of a block's row */
    size_t off[SD_SLOT_COUNT]; /* of each slot in it */
    void *cache;               // (Hkv, capacity, w) unless the kind is recurrent
    void *state;               // (Hkv, state_size)
    size_t state_size;         /* 0: the kind keeps a cache */
} dec_layer;

struct sd_decoder {
    const sd_net *net;
    sd_pool *pool;
    int capacity, rows, threads, len;
    size_t cache_bytes, state_bytes;
    dec_layer *layer; // (L)
    void *mem;
    /* for `rows` tokens */
    void *x, *y, *mid, *norm, *stat; // (rows, D); stat (rows, 2)
    void *proj;                      // (rows, max ld)
    void *block;                     // (max Hkv·rows·w) projections of recurrent kinds, by block
    void *dval, *dblock;             // (rows, H) and the same by block
    void *oblock, *att;              // (Hkv, rows, group·d_v), (rows, H·d_v)
    void *h1, *h3, *act;             // (rows, d_ff)
    void *rope;                      // (rows, rope.dim)
    void *scratch;                   // (threads, scratch_size)
    size_t scratch_size;
};

typedef struct dec_ops {
    /* n <= rows tokens; logits nullable. d->len is the caller's to raise. */
    sd_status (*feed)(sd_decoder *d, const int32_t *ids, size_t n, void *logits, sd_err *err);
} dec_ops;
extern const dec_ops sd_decode_ops_f32, sd_decode_ops_f64;

#endif
