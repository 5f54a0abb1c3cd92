/* dtype.h: storage types of tensors and checkpoints, and their conversion to f32/f64.
 * Block-quantised types follow ggml's layouts. */
#ifndef SD_NUM_DTYPE_H
#define SD_NUM_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum sd_dtype {
    SD_F32,
    SD_F64,
    SD_F16,
    SD_BF16,
    SD_F8_E4M3,
    SD_F8_E5M2,
    SD_I8,
    SD_I16,
    SD_I32,
    SD_I64,
    SD_U8,
    SD_U16,
    SD_U32,
    SD_U64,
    SD_BOOL,
    SD_Q4_0,
    SD_Q4_1,
    SD_Q5_0,
    SD_Q5_1,
    SD_Q8_0,
    SD_Q4_K,
    SD_Q5_K,
    SD_Q6_K,
    SD_DTYPE_COUNT
} sd_dtype;

typedef struct sd_dtype_info {
    const char *name; /* safetensors spelling for plain types ("F32"), ggml's for blocks ("Q4_1") */
    int block;        /* elements a block: 1 for plain types */
    int bytes;        /* bytes a block */
    bool is_float, is_quant;
} sd_dtype_info;

const sd_dtype_info *sd_dtype_get(sd_dtype t);
/* Looks a name of the table up, block types included; false when unknown. */
bool sd_dtype_find(const char *name, sd_dtype *out);
/* Bytes of n elements; false on overflow or n not a multiple of the block. */
bool sd_dtype_bytes(sd_dtype t, uint64_t n, uint64_t *out);

/* n elements of type t at src (any alignment) to f32 / f64. n is a multiple of the block. */
void sd_to_f32(sd_dtype t, const void *src, float *dst, size_t n);
void sd_to_f64(sd_dtype t, const void *src, double *dst, size_t n);
/* f32 to a plain type, round to nearest even; quantised types are an error (SD_EINVAL). */
sd_status sd_from_f32(sd_dtype t, const float *src, void *dst, size_t n, sd_err *err);
float sd_f16_to_f32(uint16_t h);
uint16_t sd_f32_to_f16(float x);
float sd_bf16_to_f32(uint16_t h);
uint16_t sd_f32_to_bf16(float x);

#endif
