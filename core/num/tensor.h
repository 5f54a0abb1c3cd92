/* tensor.h: n-dimensional arrays with shared, reference-counted storage and strided views. */
#ifndef SD_NUM_TENSOR_H
#define SD_NUM_TENSOR_H

#include "base/str.h"
#include "num/dtype.h"

enum { SD_MAX_DIMS = 6 };

typedef struct sd_storage sd_storage; /* counted bytes: owned heap memory or a foreign region */

typedef struct sd_tensor {
    sd_storage *storage;
    sd_dtype dtype;
    int ndim; /* 0 = scalar */
    int64_t shape[SD_MAX_DIMS];
    int64_t stride[SD_MAX_DIMS]; /* in elements; quantised tensors are always contiguous */
    void *data;                  /* first element; inside storage */
} sd_tensor;

/* Zeroed contiguous row-major tensor. Shape products are overflow-checked. */
sd_status sd_tensor_new(sd_dtype t, int ndim, const int64_t *shape, SD_OWN sd_tensor **out,
                        sd_err *err);
/* Contiguous tensor over foreign memory; release(ctx) runs when the last view is gone. */
sd_status sd_tensor_wrap(sd_dtype t, int ndim, const int64_t *shape, void *data,
                         void (*release)(void *ctx), void *ctx, SD_OWN sd_tensor **out,
                         sd_err *err);
void sd_tensor_free(SD_OWN sd_tensor *SD_NULLABLE t); /* this view; storage when it is the last */

/* Views: share storage, keep it alive. */
sd_status sd_tensor_view(const sd_tensor *t, int ndim, const int64_t *shape, const int64_t *stride,
                         int64_t offset, SD_OWN sd_tensor **out, sd_err *err); /* bounds-checked */
sd_status sd_tensor_slice(const sd_tensor *t, int dim, int64_t start, int64_t stop,
                          SD_OWN sd_tensor **out, sd_err *err); /* [start, stop) */
sd_status sd_tensor_select(const sd_tensor *t, int dim, int64_t index, SD_OWN sd_tensor **out,
                           sd_err *err); /* drops dim */
sd_status sd_tensor_transpose(const sd_tensor *t, int d0, int d1, SD_OWN sd_tensor **out,
                              sd_err *err);
/* Same elements, new shape: a view when contiguous, else a copy. One entry may be -1. */
sd_status sd_tensor_reshape(const sd_tensor *t, int ndim, const int64_t *shape,
                            SD_OWN sd_tensor **out, sd_err *err);

/* Contiguous copy in another dtype (quantised → float allowed; float → quantised refused). */
sd_status sd_tensor_cast(const sd_tensor *t, sd_dtype to, SD_OWN sd_tensor **out, sd_err *err);
/* Copies src into dst (same shape, any strides and plain dtypes). */
sd_status sd_tensor_copy_into(sd_tensor *dst, const sd_tensor *src, sd_err *err);

int64_t sd_tensor_numel(const sd_tensor *t);
size_t sd_tensor_nbytes(const sd_tensor *t); /* numel × element size */
size_t sd_tensor_storage_bytes(const sd_tensor *t);
bool sd_tensor_is_contiguous(const sd_tensor *t);
bool sd_tensor_shares(const sd_tensor *a, const sd_tensor *b);
/* Element by multi-index as double (bounds are the caller's). */
double sd_tensor_at(const sd_tensor *t, const int64_t *index);
void sd_tensor_put(sd_tensor *t, const int64_t *index, double v);

typedef struct sd_stats {
    int64_t n, n_nan, n_inf;
    double min, max, mean, sd, norm; /* over finite values; NaN when none */
} sd_stats;
sd_status sd_tensor_stats(const sd_tensor *t, sd_stats *out, sd_err *err);

/* Element-wise with NumPy broadcasting, result in f64 if either is f64, else f32.
 * op: '+', '-', '*', '/'. The tests '<', 'l' (<=), '>', 'g' (>=), '=', '!' and, of elements that
 * are not 0, '&' and '|' give a mask: u8, 1 where it holds; nan equals nothing. */
sd_status sd_tensor_binary(char op, const sd_tensor *a, const sd_tensor *b, SD_OWN sd_tensor **out,
                           sd_err *err);
/* (…, m, k) × (k, n) or 2-D × 2-D; f64 if either is f64, else f32. */
sd_status sd_tensor_matmul(const sd_tensor *a, const sd_tensor *b, SD_OWN sd_tensor **out,
                           sd_err *err);
/* Sum/mean/min/max over one dim (dim = -1: all, giving a scalar), f64 result. */
sd_status sd_tensor_reduce(const char *op, const sd_tensor *t, int dim, SD_OWN sd_tensor **out,
                           sd_err *err);
/* q-quantile (0.5: the median) over one dim or all, as reduce; nan where there is a nan. */
sd_status sd_tensor_quantile(const sd_tensor *t, double q, int dim, SD_OWN sd_tensor **out,
                             sd_err *err);
/* "f32 (4, 256)" into out; the text of a value printed at the prompt: shape, dtype, statistics and
 * a corner. */
sd_status sd_tensor_describe(const sd_tensor *t, sd_buf *out, sd_err *err);

#endif
