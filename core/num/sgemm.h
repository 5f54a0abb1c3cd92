/* sgemm.h: our own single-thread f32 product for AVX-512, for callers that use one right operand
 * against many left ones: it can be packed once. Elsewhere sd_sgemm is num/blas.h's product and
 * packing is not available. Row-major; results depend on the shapes only.
 *
 * Layout of a packed operand B (k × n): blocks of SD_SGEMM_KC rows; in each, strips of SD_SGEMM_NR
 * columns (the last filled up with zeros), row after row of SD_SGEMM_NR. */
#ifndef SD_NUM_SGEMM_H
#define SD_NUM_SGEMM_H

#include <stdbool.h>
#include <stddef.h>

enum { SD_SGEMM_MR = 8, SD_SGEMM_NR = 32, SD_SGEMM_KC = 256 };

/* Does this processor run the packed path? */
bool sd_sgemm_packs(void);

/* C = alpha · op(A) · op(B) + beta · C, like sd_gemm_f32. */
void sd_sgemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
              size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);

/* Elements of a packed k × n operand. */
size_t sd_sgemm_pack_size(size_t k, size_t n);
/* op(B) (k × n) into out, 64-byte aligned. Only when sd_sgemm_packs(). */
void sd_sgemm_pack(bool tb, size_t k, size_t n, const float *b, size_t ldb, float *out);
/* C = alpha · op(A) · B + beta · C, B the rows [row0, row0 + k) and columns [col0, col0 + n) of a
 * packed (k_packed × n_packed) operand; row0 a multiple of SD_SGEMM_KC, col0 of SD_SGEMM_NR. */
void sd_sgemm_packed(bool ta, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                     const float *packed, size_t k_packed, size_t n_packed, size_t row0,
                     size_t col0, float beta, float *c, size_t ldc);

#endif
