#include "num/tensor.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/run.h"
#include "base/table_ops.h"
#include "num/blas.h"

struct sd_storage {
    atomic_int refs;
    void *base;
    size_t bytes;
    void (*release)(void *ctx); /* NULL: base is ours */
    void *ctx;
};

static void storage_unref(sd_storage *s) {
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    if (s->release)
        s->release(s->ctx);
    else
        sd_free(s->base);
    sd_free(s);
}

static size_t elem(const sd_tensor *t) {
    return (size_t)sd_dtype_get(t->dtype)->bytes;
}

static void set_shape(sd_tensor *t, int ndim, const int64_t *shape) {
    int64_t s = 1;
    t->ndim = ndim;
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->stride[i] = s;
        s *= shape[i] > 0 ? shape[i] : 1;
    }
}

/* Elements and bytes of a shape; refuses negative dimensions and products beyond int64. */
static sd_status shape_bytes(sd_dtype t, int ndim, const int64_t *shape, uint64_t *bytes,
                             sd_err *err) {
    if (ndim < 0 || ndim > SD_MAX_DIMS)
        return sd_fail(err, SD_EINVAL, "%d dimensions: at most %d are supported", ndim,
                       SD_MAX_DIMS);
    uint64_t n = 1, all = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return sd_fail(err, SD_EINVAL, "dimension %d is negative (%lld)", i,
                           (long long)shape[i]);
        uint64_t d = (uint64_t)shape[i], dd = d ? d : 1;
        if (all > (uint64_t)INT64_MAX / 16 / dd)
            return sd_fail(err, SD_ENOMEM, "shape has too many elements");
        all *= dd; /* strides stay representable in an empty tensor as well */
        n *= d;
    }
    if (!sd_dtype_bytes(t, n, bytes) || *bytes > INT64_MAX / 2)
        return sd_fail(err, SD_EINVAL, "%llu elements do not fill blocks of %s",
                       (unsigned long long)n, sd_dtype_get(t)->name);
    return SD_OK;
}

static sd_status make(sd_dtype t, int ndim, const int64_t *shape, void *base, size_t bytes,
                      void (*release)(void *), void *ctx, sd_tensor **out, sd_err *err) {
    sd_tensor *x = sd_alloc(1, sizeof *x, err);
    sd_storage *s = sd_alloc(1, sizeof *s, err);
    if (!x || !s) {
        sd_free(x);
        sd_free(s);
        return SD_ENOMEM;
    }
    atomic_init(&s->refs, 1);
    s->base = base;
    s->bytes = bytes;
    s->release = release;
    s->ctx = ctx;
    x->storage = s;
    x->dtype = t;
    x->data = base;
    set_shape(x, ndim, shape);
    *out = x;
    return SD_OK;
}

/* As sd_tensor_new, but what it holds is anything: for results that are written whole. */
static sd_status new_raw(sd_dtype t, int ndim, const int64_t *shape, sd_tensor **out, sd_err *err) {
    *out = NULL;
    uint64_t bytes;
    SD_TRY(shape_bytes(t, ndim, shape, &bytes, err));
    void *p = sd_alloc_raw((size_t)bytes, 1, err);
    if (!p)
        return SD_ENOMEM;
    sd_status st = make(t, ndim, shape, p, (size_t)bytes, NULL, NULL, out, err);
    if (st != SD_OK)
        sd_free(p);
    return st;
}

sd_status sd_tensor_new(sd_dtype t, int ndim, const int64_t *shape, sd_tensor **out, sd_err *err) {
    const size_t step =
        64 << 20; /* fresh pages are slow: a look at the cancellation flag between */
    sd_tensor *x;
    *out = NULL;
    SD_TRY(new_raw(t, ndim, shape, &x, err));
    for (size_t at = 0, n = x->storage->bytes; at < n; at += step) {
        sd_status st = at ? sd_check_cancel(err) : SD_OK;
        if (st != SD_OK) {
            sd_tensor_free(x);
            return st;
        }
        memset((char *)x->data + at, 0, n - at < step ? n - at : step);
    }
    *out = x;
    return SD_OK;
}

sd_status sd_tensor_wrap(sd_dtype t, int ndim, const int64_t *shape, void *data,
                         void (*release)(void *ctx), void *ctx, sd_tensor **out, sd_err *err) {
    *out = NULL;
    uint64_t bytes;
    SD_TRY(shape_bytes(t, ndim, shape, &bytes, err));
    return make(t, ndim, shape, data, (size_t)bytes, release, ctx, out, err);
}

void sd_tensor_free(sd_tensor *t) {
    if (!t)
        return;
    storage_unref(t->storage);
    sd_free(t);
}

/* ---- views ----------------------------------------------------------------------------------- */

static sd_tensor *share(const sd_tensor *t, sd_err *err) {
    sd_tensor *v = sd_alloc(1, sizeof *v, err);
    if (v) {
        *v = *t;
        atomic_fetch_add(&v->storage->refs, 1);
    }
    return v;
}

static sd_status plain_only(const sd_tensor *t, const char *what, sd_err *err) {
    if (sd_dtype_get(t->dtype)->is_quant)
        return sd_fail(err, SD_EINVAL, "%s of a %s tensor: cast it to F32 first", what,
                       sd_dtype_get(t->dtype)->name);
    return SD_OK;
}

static sd_status check_dim(const sd_tensor *t, int dim, sd_err *err) {
    if (dim < 0 || dim >= t->ndim)
        return sd_fail(err, SD_EINVAL, "expected dimension 0..%d, got %d", t->ndim - 1, dim);
    return SD_OK;
}

sd_status sd_tensor_view(const sd_tensor *t, int ndim, const int64_t *shape, const int64_t *stride,
                         int64_t offset, sd_tensor **out, sd_err *err) {
    *out = NULL;
    SD_TRY(plain_only(t, "view", err));
    uint64_t bytes;
    SD_TRY(shape_bytes(t->dtype, ndim, shape, &bytes, err));
    int64_t first = ((const char *)t->data - (const char *)t->storage->base) / (int64_t)elem(t);
    int64_t have = (int64_t)(t->storage->bytes / elem(t)), lo, hi;
    if (__builtin_add_overflow(first, offset, &lo))
        return sd_fail(err, SD_EINVAL, "view offset overflows");
    hi = lo;
    bool empty = bytes == 0;
    for (int i = 0; i < ndim; i++) {
        int64_t reach;
        if (shape[i] == 0)
            continue;
        if (__builtin_mul_overflow(shape[i] - 1, stride[i], &reach) ||
            __builtin_add_overflow(reach < 0 ? lo : hi, reach, reach < 0 ? &lo : &hi))
            return sd_fail(err, SD_EINVAL, "view stride overflows");
    }
    if (!empty && (lo < 0 || hi >= have))
        return sd_fail(err, SD_EINVAL,
                       "view reaches elements %lld..%lld of a storage of %lld elements",
                       (long long)lo, (long long)hi, (long long)have);
    sd_tensor *v = share(t, err);
    if (!v)
        return SD_ENOMEM;
    v->ndim = ndim;
    if (!empty)
        v->data = (char *)t->data + offset * (int64_t)elem(t);
    for (int i = 0; i < ndim; i++) {
        v->shape[i] = shape[i];
        v->stride[i] = stride[i];
    }
    *out = v;
    return SD_OK;
}

sd_status sd_tensor_slice(const sd_tensor *t, int dim, int64_t start, int64_t stop, sd_tensor **out,
                          sd_err *err) {
    *out = NULL;
    SD_TRY(plain_only(t, "slice", err));
    SD_TRY(check_dim(t, dim, err));
    if (start < 0 || stop < start || stop > t->shape[dim])
        return sd_fail(err, SD_EINVAL, "slice [%lld, %lld) of dimension %d: it has %lld",
                       (long long)start, (long long)stop, dim, (long long)t->shape[dim]);
    sd_tensor *v = share(t, err);
    if (!v)
        return SD_ENOMEM;
    v->shape[dim] = stop - start;
    if (sd_tensor_numel(v) > 0)
        v->data = (char *)t->data + start * t->stride[dim] * (int64_t)elem(t);
    *out = v;
    return SD_OK;
}

sd_status sd_tensor_select(const sd_tensor *t, int dim, int64_t index, sd_tensor **out,
                           sd_err *err) {
    *out = NULL;
    SD_TRY(check_dim(t, dim, err));
    if (index < 0 || index >= t->shape[dim])
        return sd_fail(err, SD_EINVAL, "expected index 0..%lld in dimension %d, got %lld",
                       (long long)t->shape[dim] - 1, dim, (long long)index);
    SD_TRY(sd_tensor_slice(t, dim, index, index + 1, out, err));
    sd_tensor *v = *out;
    for (int i = dim; i + 1 < v->ndim; i++) {
        v->shape[i] = v->shape[i + 1];
        v->stride[i] = v->stride[i + 1];
    }
    v->ndim--;
    return SD_OK;
}

sd_status sd_tensor_transpose(const sd_tensor *t, int d0, int d1, sd_tensor **out, sd_err *err) {
    *out = NULL;
    SD_TRY(plain_only(t, "transpose", err));
    SD_TRY(check_dim(t, d0, err));
    SD_TRY(check_dim(t, d1, err));
    sd_tensor *v = share(t, err);
    if (!v)
        return SD_ENOMEM;
    v->shape[d0] = t->shape[d1];
    v->stride[d0] = t->stride[d1];
    v->shape[d1] = t->shape[d0];
    v->stride[d1] = t->stride[d0];
    *out = v;
    return SD_OK;
}

sd_status sd_tensor_reshape(const sd_tensor *t, int ndim, const int64_t *shape, sd_tensor **out,
                            sd_err *err) {
    *out = NULL;
    int64_t full[SD_MAX_DIMS] = {0}, known = 1, n = sd_tensor_numel(t);
    int open = -1;
    if (ndim < 0 || ndim > SD_MAX_DIMS)
        return sd_fail(err, SD_EINVAL, "%d dimensions: at most %d are supported", ndim,
                       SD_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        full[i] = shape[i];
        if (shape[i] == -1 && open < 0)
            open = i;
        else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known))
            return sd_fail(err, SD_EINVAL, "reshape: dimension %d is invalid (%lld)", i,
                           (long long)shape[i]);
    }
    if (open >= 0)
        full[open] = known > 0 && n % known == 0 ? n / known : 0;
    if ((open >= 0 ? known * full[open] : known) != n)
        return sd_fail(err, SD_EINVAL, "reshape: %lld elements do not fit the new shape",
                       (long long)n);
    if (sd_tensor_is_contiguous(t)) {
        *out = share(t, err);
        if (!*out)
            return SD_ENOMEM;
    } else {
        SD_TRY(sd_tensor_cast(t, t->dtype, out, err));
    }
    set_shape(*out, ndim, full);
    return SD_OK;
}

/* ---- properties ------------------------------------------------------------------------------ */

int64_t sd_tensor_numel(const sd_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

size_t sd_tensor_nbytes(const sd_tensor *t) {
    uint64_t b = 0;
    sd_dtype_bytes(t->dtype, (uint64_t)sd_tensor_numel(t), &b);
    return (size_t)b;
}

size_t sd_tensor_storage_bytes(const sd_tensor *t) {
    return t->storage->bytes;
}

bool sd_tensor_is_contiguous(const sd_tensor *t) {
    int64_t s = 1;
    if (sd_tensor_numel(t) == 0)
        return true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != s)
            return false;
        s *= t->shape[i];
    }
    return true;
}

bool sd_tensor_shares(const sd_tensor *a, const sd_tensor *b) {
    return a->storage == b->storage;
}

/* ---- walking --------------------------------------------------------------------------------- */

/* Rows of a tensor: the innermost dimension is a strided run, the outer ones an odometer. */
typedef struct walk {
    const sd_tensor *t;
    int64_t index[SD_MAX_DIMS], left, run, step;
    char *p;
} walk;

static void walk_start(walk *w, const sd_tensor *t) {
    memset(w, 0, sizeof *w);
    w->t = t;
    w->p = t->data;
    w->run = t->ndim ? t->shape[t->ndim - 1] : 1;
    w->step = t->ndim ? t->stride[t->ndim - 1] : 1;
    w->left = w->run ? sd_tensor_numel(t) / w->run : 0;
}

static void walk_next(walk *w) {
    w->left--;
    for (int i = w->t->ndim - 2; i >= 0; i--) {
        int64_t s = w->t->stride[i] * (int64_t)elem(w->t);
        w->p += s;
        if (++w->index[i] < w->t->shape[i])
            return;
        w->p -= s * w->t->shape[i];
        w->index[i] = 0;
    }
}

static void run_to_f64(const sd_tensor *t, const char *p, int64_t step, double *dst, int64_t n) {
    if (step == 1) {
        sd_to_f64(t->dtype, p, dst, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        sd_to_f64(t->dtype, p + i * step * (int64_t)elem(t), dst + i, 1);
}

static void store_f64(sd_dtype t, char *p, double v) {
    switch (t) {
    case SD_F64:
        memcpy(p, &v, sizeof v);
        return;
    case SD_I64: {
        int64_t x = isnan(v)      ? 0
                    : v >= 0x1p63 ? INT64_MAX
                    : v < -0x1p63 ? INT64_MIN
                                  : (int64_t)rint(v);
        memcpy(p, &x, sizeof x);
        return;
    }
    case SD_U64: {
        uint64_t x = !(v > 0) ? 0 : v >= 0x1p64 ? UINT64_MAX : (uint64_t)rint(v);
        memcpy(p, &x, sizeof x);
        return;
    }
    case SD_I32: {
        int32_t x = isnan(v)             ? 0
                    : v >= 2147483647.0  ? INT32_MAX
                    : v <= -2147483648.0 ? INT32_MIN
                                         : (int32_t)rint(v);
        memcpy(p, &x, sizeof x);
        return;
    }
    case SD_U32: {
        uint32_t x = !(v > 0) ? 0 : v >= 4294967295.0 ? UINT32_MAX : (uint32_t)rint(v);
        memcpy(p, &x, sizeof x);
        return;
    }
    default: {
        float f = (float)v;
        (void)sd_from_f32(t, &f, p, 1, NULL);
    }
    }
}

double sd_tensor_at(const sd_tensor *t, const int64_t *index) {
    int64_t o = 0;
    double v = NAN;
    if (sd_dtype_get(t->dtype)->is_quant) {
        int64_t block = sd_dtype_get(t->dtype)->block;
        for (int i = 0; i < t->ndim; i++)
            o = o * t->shape[i] + index[i];
        double y[256];
        sd_to_f64(t->dtype, (const char *)t->data + o / block * (int64_t)elem(t), y, (size_t)block);
        return y[o % block];
    }
    for (int i = 0; i < t->ndim; i++)
        o += index[i] * t->stride[i];
    sd_to_f64(t->dtype, (const char *)t->data + o * (int64_t)elem(t), &v, 1);
    return v;
}

void sd_tensor_put(sd_tensor *t, const int64_t *index, double v) {
    int64_t o = 0;
    for (int i = 0; i < t->ndim; i++)
        o += index[i] * t->stride[i];
    store_f64(t->dtype, (char *)t->data + o * (int64_t)elem(t), v);
}

/* ---- copies ---------------------------------------------------------------------------------- */

sd_status sd_tensor_cast(const sd_tensor *t, sd_dtype to, sd_tensor **out, sd_err *err) {
    *out = NULL;
    if (sd_dtype_get(to)->is_quant && to != t->dtype)
        return sd_fail(err, SD_EINVAL, "cannot convert %s to %s: quantising is not supported",
                       sd_dtype_get(t->dtype)->name, sd_dtype_get(to)->name);
    sd_tensor *x;
    SD_TRY(sd_tensor_new(to, t->ndim, t->shape, &x, err));
    sd_status st = SD_OK;
    size_t n = (size_t)sd_tensor_numel(t);
    if (n == 0) {
        *out = x;
        return SD_OK;
    }
    if (sd_tensor_is_contiguous(t) && to == t->dtype)
        memcpy(x->data, t->data, sd_tensor_nbytes(t));
    else if (sd_tensor_is_contiguous(t) && to == SD_F32)
        sd_to_f32(t->dtype, t->data, x->data, n);
    else if (sd_tensor_is_contiguous(t) && to == SD_F64)
        sd_to_f64(t->dtype, t->data, x->data, n);
    else if (sd_dtype_get(t->dtype)->is_quant) {
        sd_tensor *f;
        st = sd_tensor_cast(t, SD_F32, &f, err);
        if (st == SD_OK)
            st = sd_tensor_copy_into(x, f, err);
        if (st == SD_OK)
            sd_tensor_free(f);
    } else {
        st = sd_tensor_copy_into(x, t, err);
    }
    if (st != SD_OK) {
        sd_tensor_free(x);
        return st;
    }
    *out = x;
    return SD_OK;
}

/* Whether writing b from a could change what is still to be read. */
static bool overlaps(const sd_tensor *a, const sd_tensor *b) {
    return a->storage == b->storage &&
           (a->data != b->data || a->dtype != b->dtype ||
            memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof a->stride[0]) != 0);
}

sd_status sd_tensor_copy_into(sd_tensor *dst, const sd_tensor *src, sd_err *err) {
    if (dst->ndim != src->ndim || memcmp(dst->shape, src->shape, (size_t)src->ndim * 8) != 0)
        return sd_fail(err, SD_EINVAL, "shapes differ: cannot copy");
    SD_TRY(plain_only(dst, "copy into", err));
    SD_TRY(plain_only(src, "copy", err));
    sd_tensor *own = NULL;
    if (overlaps(dst, src)) {
        /* Views of one storage may overlap: read it all before writing. */
        sd_tensor *c;
        SD_TRY(sd_tensor_new(src->dtype, src->ndim, src->shape, &c, err));
        sd_status st = sd_tensor_copy_into(c, src, err);
        if (st != SD_OK) {
            sd_tensor_free(c);
            return st;
        }
        src = own = c;
    }
    walk a, b;
    walk_start(&a, dst);
    walk_start(&b, src);
    size_t es = elem(src), ed = elem(dst);
    bool same = src->dtype == dst->dtype;
    for (; a.left > 0; walk_next(&a), walk_next(&b)) {
        if (same && a.step == 1 && b.step == 1) {
            memcpy(a.p, b.p, (size_t)a.run * es);
            continue;
        }
        for (int64_t i = 0; i < a.run; i++) {
            char *pd = a.p + i * a.step * (int64_t)ed;
            const char *ps = b.p + i * b.step * (int64_t)es;
            if (same) {
                memcpy(pd, ps, es);
            } else if (dst->dtype == SD_F32 && src->dtype == SD_F64) {
                double v;
                memcpy(&v, ps, sizeof v);
                float f = (float)v;
                memcpy(pd, &f, sizeof f);
            } else {
                double v;
                sd_to_f64(src->dtype, ps, &v, 1);
                store_f64(dst->dtype, pd, v);
            }
        }
    }
    sd_tensor_free(own);
    return SD_OK;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Running mean and squared deviation (chunks joined as in Chan, Golub & LeVeque 1979) and a norm
 * with its scale taken out, as in BLAS: no overflow at 1e200. */
typedef struct moments {
    double n, mean, m2, scale, ssq;
} moments;

static void add_chunk(moments *a, const double *x, int64_t c, double top) {
    double mean = 0.0, m2 = 0.0, q = 0.0, k = (double)c;
    for (int64_t j = 0; j < c; j++)
        mean += x[j] / k;
    for (int64_t j = 0; j < c; j++)
        m2 += (x[j] - mean) * (x[j] - mean);
    double all = a->n + k, d = mean - a->mean;
    a->m2 += m2 + d * d * (a->n * k / all);
    a->mean += d * (k / all);
    a->n = all;
    if (top == 0.0)
        return;
    for (int64_t j = 0; j < c; j++)
        q += (x[j] / top) * (x[j] / top);
    if (top > a->scale) {
        double s = a->scale / top;
        a->ssq = a->ssq * s * s + q;
        a->scale = top;
    } else {
        double s = top / a->scale;
        a->ssq += q * s * s;
    }
}

sd_status sd_tensor_stats(const sd_tensor *t, sd_stats *out, sd_err *err) {
    enum { CHUNK = 512 };
    memset(out, 0, sizeof *out);
    out->min = out->max = out->mean = out->sd = out->norm = NAN;
    sd_tensor *own = NULL;
    if (sd_dtype_get(t->dtype)->is_quant) {
        SD_TRY(sd_tensor_cast(t, SD_F32, &own, err));
        t = own;
    }
    out->n = sd_tensor_numel(t);
    moments all = {0};
    double lo = INFINITY, hi = -INFINITY, x[CHUNK];
    int64_t fill = 0;
    walk w;
    for (walk_start(&w, t); w.left > 0; walk_next(&w))
        for (int64_t i = 0; i < w.run;) {
            /* Short rows share a chunk. */
            int64_t c = w.run - i < CHUNK - fill ? w.run - i : CHUNK - fill, k = fill;
            run_to_f64(t, w.p + i * w.step * (int64_t)elem(t), w.step, x + fill, c);
            i += c;
            for (int64_t j = fill; j < fill + c; j++) {
                if (isfinite(x[j]))
                    x[k++] = x[j];
                else if (isnan(x[j]))
                    out->n_nan++;
                else
                    out->n_inf++;
            }
            fill = k;
            bool last = w.left == 1 && i == w.run;
            if (fill == 0 || (fill < CHUNK && !last))
                continue;
            double top = 0.0;
            for (int64_t j = 0; j < fill; j++) {
                lo = x[j] < lo ? x[j] : lo;
                hi = x[j] > hi ? x[j] : hi;
                top = fabs(x[j]) > top ? fabs(x[j]) : top;
            }
            add_chunk(&all, x, fill, top);
            fill = 0;
        }
    if (all.n > 0) {
        out->min = lo;
        out->max = hi;
        out->mean = all.mean;
        out->sd = sqrt(all.m2 / all.n);
        out->norm = all.scale * sqrt(all.ssq);
    }
    sd_tensor_free(own);
    return SD_OK;
}

/* Work between two looks at the cancellation flag: some tens of milliseconds. */
enum { POLL_EVERY = 1 << 22 };

/* ---- arithmetic ------------------------------------------------------------------------------ */

static sd_dtype wider(const sd_tensor *a, const sd_tensor *b) {
    return a->dtype == SD_F64 || b->dtype == SD_F64 ? SD_F64 : SD_F32;
}

static bool holds(char op, double x, double y) {
    switch (op) {
    case '<':
        return x < y;
    case 'l':
        return x <= y;
    case '>':
        return x > y;
    case 'g':
        return x >= y;
    case '=':
        return x == y;
    case '!':
        return x != y;
    case '&':
        return x != 0 && y != 0;
    default:
        return x != 0 || y != 0;
    }
}

sd_status sd_tensor_binary(char op, const sd_tensor *a, const sd_tensor *b, sd_tensor **out,
                           sd_err *err) {
    *out = NULL;
    const bool test = op && strchr("<l>g=!&|", op) != NULL;
    if (!test && (!op || !strchr("+-*/", op)))
        return sd_fail(err, SD_EINVAL, "unknown operation '%c'", op);
    sd_tensor *qa = NULL, *qb = NULL, *r = NULL;
    sd_status st = SD_OK;
    if (sd_dtype_get(a->dtype)->is_quant) {
        SD_GO(st, done, sd_tensor_cast(a, SD_F32, &qa, err));
        a = qa;
    }
    if (sd_dtype_get(b->dtype)->is_quant) {
        SD_GO(st, done, sd_tensor_cast(b, SD_F32, &qb, err));
        b = qb;
    }
    int nd = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t shape[SD_MAX_DIMS], sa[SD_MAX_DIMS], sb[SD_MAX_DIMS];
    for (int i = 0; i < nd; i++) {
        int ia = i - (nd - a->ndim), ib = i - (nd - b->ndim);
        int64_t da = ia >= 0 ? a->shape[ia] : 1, db = ib >= 0 ? b->shape[ib] : 1;
        if (da != db && da != 1 && db != 1) {
            st = sd_fail(err, SD_EINVAL, "shapes do not broadcast: dimension %d is %lld and %lld",
                         i, (long long)da, (long long)db);
            goto done;
        }
        shape[i] = da == 1 ? db : da;
        sa[i] = da == 1 ? 0 : a->stride[ia];
        sb[i] = db == 1 ? 0 : b->stride[ib];
    }
    sd_dtype to = test ? SD_U8 : wider(a, b);
    SD_GO(st, done, new_raw(to, nd, shape, &r, err));
    sd_tensor va = *a, vb = *b; /* borrowed broadcast views, for the walk only */
    va.ndim = vb.ndim = nd;
    memcpy(va.shape, shape, sizeof shape);
    memcpy(vb.shape, shape, sizeof shape);
    memcpy(va.stride, sa, sizeof sa);
    memcpy(vb.stride, sb, sizeof sb);
    walk wa, wb;
    walk_start(&wa, &va);
    walk_start(&wb, &vb);
    double x[256], y[256];
    int64_t o = 0, looked = 0;
    for (; wa.left > 0; walk_next(&wa), walk_next(&wb))
        for (int64_t i = 0; i < wa.run; i += 256) {
            int64_t c = wa.run - i < 256 ? wa.run - i : 256;
            if (o - looked >= POLL_EVERY) {
                looked = o;
                SD_GO(st, done, sd_check_cancel(err));
            }
            run_to_f64(&va, wa.p + i * wa.step * (int64_t)elem(a), wa.step, x, c);
            run_to_f64(&vb, wb.p + i * wb.step * (int64_t)elem(b), wb.step, y, c);
            for (int64_t j = 0; test && j < c; j++)
                ((uint8_t *)r->data)[o++] = holds(op, x[j], y[j]);
            for (int64_t j = 0; !test && j < c; j++) {
                double v = op == '+'   ? x[j] + y[j]
                           : op == '-' ? x[j] - y[j]
                           : op == '*' ? x[j] * y[j]
                                       : x[j] / y[j];
                if (to == SD_F64)
                    ((double *)r->data)[o++] = v;
                else
                    ((float *)r->data)[o++] = (float)v;
            }
        }
    *out = r;
    r = NULL;
done:
    sd_tensor_free(qa);
    sd_tensor_free(qb);
    sd_tensor_free(r);
    return st;
}

/* r (m×n) = a (m×k) · b (k×n), by square tiles that one call of BLAS, which nothing can interrupt,
 * does within a fraction of a second. */
static sd_status product(sd_dtype to, size_t m, size_t n, size_t k, const void *a, const void *b,
                         void *r, sd_err *err) {
    const double most = 2e9; /* multiply-adds in one call */
    bool one = (double)m * (double)n * (double)k <= most;
    size_t side = (size_t)sqrt(most / (double)k), tile = side < 64 ? 64 : side;
    size_t rows = one ? m : tile, cols = one ? n : tile;
    for (size_t i = 0; i < m; i += rows)
        for (size_t j = 0; j < n; j += cols) {
            size_t p = m - i < rows ? m - i : rows, q = n - j < cols ? n - j : cols;
            SD_TRY(sd_check_cancel(err));
            if (to == SD_F64)
                sd_gemm_f64(false, false, p, q, k, 1.0, (const double *)a + i * k, k,
                            (const double *)b + j, n, 0.0, (double *)r + i * n + j, n);
            else
                sd_gemm_f32(false, false, p, q, k, 1.0f, (const float *)a + i * k, k,
                            (const float *)b + j, n, 0.0f, (float *)r + i * n + j, n);
        }
    return SD_OK;
}

sd_status sd_tensor_matmul(const sd_tensor *a, const sd_tensor *b, sd_tensor **out, sd_err *err) {
    *out = NULL;
    if (a->ndim < 1 || b->ndim != 2)
        return sd_fail(err, SD_EINVAL, "matmul: expected (…, m, k) x (k, n), got %d and %d dims",
                       a->ndim, b->ndim);
    int64_t k = a->shape[a->ndim - 1];
    if (k != b->shape[0])
        return sd_fail(err, SD_EINVAL, "matmul: inner dimensions differ: %lld and %lld",
                       (long long)k, (long long)b->shape[0]);
    int64_t shape[SD_MAX_DIMS], m = 1, n = b->shape[1];
    for (int i = 0; i + 1 < a->ndim; i++)
        m *= shape[i] = a->shape[i];
    shape[a->ndim - 1] = n;
    if (m > INT32_MAX / 2 || n > INT32_MAX / 2 || k > INT32_MAX / 2)
        return sd_fail(err, SD_EINVAL, "matmul: a dimension is too large");
    sd_dtype to = wider(a, b);
    sd_tensor *ca = NULL, *cb = NULL, *r = NULL;
    sd_status st;
    SD_GO(st, done, sd_tensor_cast(a, to, &ca, err));
    SD_GO(st, done, sd_tensor_cast(b, to, &cb, err));
    SD_GO(st, done, (k ? new_raw : sd_tensor_new)(to, a->ndim, shape, &r, err));
    if (k > 0)
        SD_GO(st, done,
              product(to, (size_t)m, (size_t)n, (size_t)k, ca->data, cb->data, r->data, err));
    *out = r;
    r = NULL;
done:
    sd_tensor_free(ca);
    sd_tensor_free(cb);
    sd_tensor_free(r);
    return st;
}

sd_status sd_tensor_reduce(const char *op, const sd_tensor *t, int dim, sd_tensor **out,
                           sd_err *err) {
    *out = NULL;
    bool sum = strcmp(op, "sum") == 0, mean = strcmp(op, "mean") == 0;
    bool min = strcmp(op, "min") == 0, max = strcmp(op, "max") == 0;
    if (!sum && !mean && !min && !max)
        return sd_fail(err, SD_EINVAL, "unknown reduction '%s': sum, mean, min or max", op);
    if (dim != -1)
        SD_TRY(check_dim(t, dim, err));
    sd_tensor *c = NULL, *r = NULL;
    SD_TRY(sd_tensor_cast(t, SD_F64, &c, err));
    int64_t shape[SD_MAX_DIMS] = {0}, outer = 1, inner = 1, n;
    int nd = 0;
    if (dim == -1) {
        n = sd_tensor_numel(t);
    } else {
        n = t->shape[dim];
        for (int i = 0; i < t->ndim; i++) {
            if (i != dim)
                shape[nd++] = t->shape[i];
            if (i < dim)
                outer *= t->shape[i];
            else if (i > dim)
                inner *= t->shape[i];
        }
    }
    sd_status st = SD_OK;
    if (n == 0 && !sum) {
        st = sd_fail(err, SD_EINVAL, "%s of an empty tensor", op);
        goto done;
    }
    SD_GO(st, done, new_raw(SD_F64, nd, shape, &r, err));
    const double *x = c->data;
    double *y = r->data;
    int64_t since = 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            double v = sum || mean ? 0.0 : x[o * n * inner + i];
            if ((since += n) >= POLL_EVERY) {
                since = 0;
                SD_GO(st, done, sd_check_cancel(err));
            }
            for (int64_t j = 0; j < n; j++) {
                double e = x[(o * n + j) * inner + i];
                if (sum || mean)
                    v += e;
                else if (isnan(e) || (min ? e < v : e > v))
                    v = e;
            }
            y[o * inner + i] = mean ? v / (double)n : v;
        }
    *out = r;
    r = NULL;
done:
    sd_tensor_free(c);
    sd_tensor_free(r);
    return st;
}

sd_status sd_tensor_quantile(const sd_tensor *t, double q, int dim, sd_tensor **out, sd_err *err) {
    *out = NULL;
    if (!(q >= 0 && q <= 1))
        return sd_fail(err, SD_EINVAL, "quantile %g: expected 0..1", q);
    if (dim != -1)
        SD_TRY(check_dim(t, dim, err));
    sd_tensor *c = NULL, *r = NULL;
    SD_TRY(sd_tensor_cast(t, SD_F64, &c, err));
    int64_t shape[SD_MAX_DIMS] = {0}, outer = 1, inner = 1;
    int64_t n = dim == -1 ? sd_tensor_numel(t) : t->shape[dim];
    int nd = 0;
    for (int i = 0; dim != -1 && i < t->ndim; i++) {
        if (i != dim)
            shape[nd++] = t->shape[i];
        if (i < dim)
            outer *= t->shape[i];
        else if (i > dim)
            inner *= t->shape[i];
    }
    sd_status st = SD_OK;
    double *x = sd_alloc_raw((size_t)(n > 0 ? n : 1), sizeof *x, err);
    if (!x || n == 0) {
        st = x ? sd_fail(err, SD_EINVAL, "quantile of an empty tensor") : SD_ENOMEM;
        goto done;
    }
    SD_GO(st, done, sd_tensor_new(SD_F64, nd, shape, &r, err));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            bool nan = false;
            for (int64_t j = 0; j < n; j++) {
                x[j] = ((const double *)c->data)[(o * n + j) * inner + i];
                nan = nan || isnan(x[j]);
            }
            ((double *)r->data)[o * inner + i] = nan ? NAN : sd_quantile(x, (size_t)n, q);
        }
    *out = r;
    r = NULL;
done:
    sd_free(x);
    sd_tensor_free(c);
    sd_tensor_free(r);
    return st;
}

/* ---- text ------------------------------------------------------------------------------------ */

sd_status sd_tensor_describe(const sd_tensor *t, sd_buf *out, sd_err *err) {
    const char *name = sd_dtype_get(t->dtype)->name;
    for (const char *p = name; *p; p++)
        sd_buf_putc(out, *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p);
    sd_buf_puts(out, " (");
    for (int i = 0; i < t->ndim; i++)
        sd_buf_printf(out, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    sd_buf_putc(out, ')');
    if (sd_tensor_numel(t) == 0) {
        sd_buf_puts(out, " empty");
        return sd_buf_status(out, err);
    }
    sd_stats s;
    SD_TRY(sd_tensor_stats(t, &s, err));
    sd_buf_printf(out, "  min %.4g  max %.4g  mean %.4g  norm %.4g", s.min, s.max, s.mean, s.norm);
    if (s.n_nan)
        sd_buf_printf(out, "  nan %lld", (long long)s.n_nan);
    if (s.n_inf)
        sd_buf_printf(out, "  inf %lld", (long long)s.n_inf);
    /* A corner: the first rows and columns of the last two dimensions. */
    enum { ROWS = 6, COLS = 6 };
    int64_t index[SD_MAX_DIMS] = {0};
    int64_t rows = t->ndim >= 2 ? t->shape[t->ndim - 2] : 1;
    int64_t cols = t->ndim >= 1 ? t->shape[t->ndim - 1] : 1;
    for (int64_t i = 0; i < rows && i < ROWS; i++) {
        sd_buf_putc(out, '\n');
        for (int64_t j = 0; j < cols && j < COLS; j++) {
            if (t->ndim >= 2)
                index[t->ndim - 2] = i;
            if (t->ndim >= 1)
                index[t->ndim - 1] = j;
            double v = sd_tensor_at(t, index);
            if (isnan(v))
                sd_buf_printf(out, "%11s", "nan");
            else
                sd_buf_printf(out, "%11.4g", v);
        }
        if (cols > COLS)
            sd_buf_puts(out, "  …");
    }
    if (rows > ROWS)
        sd_buf_puts(out, "\n          …");
    return sd_buf_status(out, err);
}
