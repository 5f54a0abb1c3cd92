#include "io/info.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "io/container.h"

enum { MAX_META_ROWS = 256, MAX_META_TEXT = 4096, DIFF_ELEMS = 65536 };

static void shape_text(const sd_tensor_info *t, char out[160]) {
    size_t k = 0;
    out[k++] = '(';
    for (int d = 0; d < t->ndim; d++) {
        k += (size_t)snprintf(out + k, 160 - k, "%s%" PRId64, d ? ", " : "", t->shape[d]);
    }
    snprintf(out + k, 160 - k, t->ndim == 1 ? ",)" : ")");
}

static uint64_t count(const sd_tensor_info *t) {
    uint64_t n = 1;
    for (int d = 0; d < t->ndim; d++) { /* the product was checked on opening */
        if (t->shape[d] == 0) {
            return 0;
        }
    }
    for (int d = 0; d < t->ndim; d++) {
        n *= (uint64_t)t->shape[d];
    }
    return n;
}

static bool is_param(const sd_tensor_info *t) {
    const sd_dtype_info *d = sd_dtype_get(t->dtype);
    return d->is_float || d->is_quant || t->unsupported; /* such are floats of some kind */
}

static sd_status meta_value(sd_table *t, const char *key, const json_t *v, sd_err *err) {
    if (json_is_number(v)) {
        return sd_table_meta_num(t, key, json_number_value(v), err);
    }
    sd_buf b = {0};
    if (json_is_array(v)) {
        sd_buf_printf(&b, "array of %zu", json_array_size(v));
    } else if (json_is_boolean(v)) {
        sd_buf_puts(&b, json_is_true(v) ? "true" : "false");
    } else if (json_is_string(v)) {
        size_t n = json_string_length(v), k = n;
        const char *s = json_string_value(v);
        if (k > MAX_META_TEXT) {
            k = MAX_META_TEXT;
            while (k > 0 && ((unsigned char)s[k] & 0xc0) == 0x80) { /* whole characters */
                k--;
            }
        }
        sd_buf_put(&b, s, k);
        if (k < n) {
            sd_buf_printf(&b, "... (%zu bytes)", n);
        }
    } else if (sd_meta_bytes(v, &b)) {
        size_t n = b.n;
        sd_buf_clear(&b);
        sd_buf_printf(&b, "%zu bytes, not text", n);
    } else {
        sd_buf_puts(&b, "an object");
    }
    sd_status st = sd_buf_status(&b, err);
    if (st == SD_OK) {
        st = sd_table_meta_str(t, key, b.p ? b.p : "", err);
    }
    sd_buf_free(&b);
    return st;
}

static sd_status put_metadata(sd_table *t, const sd_container *c, sd_err *err) {
    const char *key;
    json_t *v;
    int n = 0;
    json_object_foreach(sd_container_meta(c), key, v) {
        if (++n > MAX_META_ROWS) {
            return sd_table_note(t, err, "%zu metadata keys, the first %d are listed",
                                 json_object_size(sd_container_meta(c)), MAX_META_ROWS);
        }
        sd_buf name = {0};
        sd_buf_printf(&name, "metadata.%s", key);
        sd_status st = sd_buf_status(&name, err);
        if (st == SD_OK) {
            st = meta_value(t, name.p, v, err);
        }
        sd_buf_free(&name);
        SD_TRY(st);
    }
    return SD_OK;
}

static sd_status fill_info(sd_table *t, sd_container *c, bool hash, const sd_run *run,
                           sd_err *err) {
    size_t n = sd_container_count(c), files = sd_container_n_files(c);
    uint64_t params = 0, buffers = 0, bytes = 0;
    SD_TRY(sd_table_add_column(t, "name", SD_COL_STR, "tensor", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "dtype", SD_COL_STR, "storage type", false, NULL, err));
    SD_TRY(
        sd_table_add_column(t, "shape", SD_COL_STR, "outermost dimension first", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "params", SD_COL_INT, "elements", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "bytes", SD_COL_INT, "bytes in the file", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "shard", SD_COL_STR, "file that holds it", files < 2, NULL, err));
    for (size_t i = 0; i < n; i++) {
        const sd_tensor_info *e = sd_container_at(c, i);
        char shape[160];
        int row;
        uint64_t k = count(e);
        *(is_param(e) ? &params : &buffers) += k;
        bytes += e->bytes;
        shape_text(e, shape);
        SD_TRY(sd_table_add_row(t, &row, err));
        SD_TRY(sd_table_set_str(t, row, "name", e->name, err));
        SD_TRY(sd_table_set_str(t, row, "dtype", sd_tensor_type(e), err));
        SD_TRY(sd_table_set_str(t, row, "shape", shape, err));
        sd_table_set_int(t, row, "params", (int64_t)k);
        sd_table_set_int(t, row, "bytes", (int64_t)e->bytes);
        SD_TRY(sd_table_set_str(t, row, "shard",
                                sd_path_base(sd_container_file(c, (size_t)e->shard)), err));
    }
    SD_TRY(sd_table_meta_str(t, "path", sd_container_path(c), err));
    SD_TRY(sd_table_meta_str(t, "format", sd_container_format(c), err));
    SD_TRY(sd_table_meta_num(t, "tensors", (double)n, err));
    SD_TRY(sd_table_meta_num(t, "params", (double)params, err));
    SD_TRY(sd_table_meta_num(t, "buffers", (double)buffers, err));
    SD_TRY(sd_table_meta_num(t, "bytes", (double)bytes, err));
    SD_TRY(sd_table_meta_num(t, "files", (double)files, err));
    SD_TRY(sd_table_heading(
        t, err, "%s, %zu tensors, %" PRIu64 " parameters, %" PRIu64 " bytes in %zu file%s",
        sd_container_format(c), n, params, bytes, files, files == 1 ? "" : "s"));
    if (buffers) {
        SD_TRY(sd_table_note(t, err,
                             "%" PRIu64 " integer and bool elements are not counted as "
                             "parameters",
                             buffers));
    }
    if (hash) {
        char hex[65];
        SD_TRY(sd_container_hash(c, run, hex, err));
        SD_TRY(sd_table_meta_str(t, "sha256", hex, err));
        SD_TRY(sd_table_note(t, err, "sha256 %s", hex));
    }
    return put_metadata(t, c, err);
}

sd_status sd_info(const char *path, bool hash, const sd_run *run, sd_table **out, sd_err *err) {
    sd_container *c;
    *out = NULL;
    SD_TRY(sd_container_open(path, run, &c, err));
    sd_table *t = sd_table_new("info", err);
    sd_status st = t ? fill_info(t, c, hash, run, err) : SD_ENOMEM;
    sd_container_unref(c);
    if (st == SD_OK) {
        *out = t;
    } else {
        sd_table_unref(t);
    }
    return st;
}

/* ---- diff ---------------------------------------------------------------------------------------
 */
typedef struct pair {
    sd_container *a, *b;
    unsigned char *raw_a, *raw_b; /* a block of raw bytes each */
    double *x, *y;                /* (DIFF_ELEMS) each */
} pair;

static size_t chunk_bytes(sd_dtype t) {
    uint64_t n = 0;
    sd_dtype_bytes(t, DIFF_ELEMS, &n); /* a multiple of every block */
    return (size_t)n;
}

static sd_status bytes_equal(pair *p, size_t i, size_t j, bool *equal, sd_err *err) {
    const sd_tensor_info *t = sd_container_at(p->a, i);
    size_t step = chunk_bytes(t->dtype);
    *equal = true;
    for (uint64_t off = 0; off < t->bytes && *equal; off += step) {
        size_t k = t->bytes - off < step ? (size_t)(t->bytes - off) : step;
        SD_TRY(sd_container_read_bytes(p->a, i, off, p->raw_a, k, err));
        SD_TRY(sd_container_read_bytes(p->b, j, off, p->raw_b, k, err));
        *equal = memcmp(p->raw_a, p->raw_b, k) == 0;
    }
    return SD_OK;
}

static sd_status values_differ(pair *p, size_t i, size_t j, double *max_abs, double *rel,
                               sd_err *err) {
    const sd_tensor_info *ta = sd_container_at(p->a, i), *tb = sd_container_at(p->b, j);
    const sd_dtype_info *da = sd_dtype_get(ta->dtype), *db = sd_dtype_get(tb->dtype);
    uint64_t n = count(ta);
    double worst = 0, diff2 = 0, norm2 = 0;
    bool nan_seen = false;
    for (uint64_t at = 0; at < n; at += DIFF_ELEMS) {
        size_t k = n - at < DIFF_ELEMS ? (size_t)(n - at) : DIFF_ELEMS;
        uint64_t oa = at / (unsigned)da->block * (unsigned)da->bytes;
        uint64_t ob = at / (unsigned)db->block * (unsigned)db->bytes;
        uint64_t ka = 0, kb = 0;
        sd_dtype_bytes(ta->dtype, k, &ka);
        sd_dtype_bytes(tb->dtype, k, &kb);
        SD_TRY(sd_container_read_bytes(p->a, i, oa, p->raw_a, (size_t)ka, err));
        SD_TRY(sd_container_read_bytes(p->b, j, ob, p->raw_b, (size_t)kb, err));
        sd_to_f64(ta->dtype, p->raw_a, p->x, k);
        sd_to_f64(tb->dtype, p->raw_b, p->y, k);
        for (size_t e = 0; e < k; e++) {
            double x = p->x[e], y = p->y[e];
            if (isfinite(x)) {
                norm2 += x * x;
            }
            if (x == y || (isnan(x) && isnan(y))) { /* equal infinities too */
                continue;
            }
            double d = fabs(y - x);
            nan_seen = nan_seen || isnan(d);
            worst = d > worst ? d : worst;
            diff2 += d * d;
        }
    }
    *max_abs = nan_seen ? (double)NAN : worst;
    *rel = nan_seen ? (double)NAN : worst == 0 ? 0 : sqrt(diff2) / sqrt(norm2);
    return SD_OK;
}

typedef struct tally {
    int64_t same, retyped, changed, only_a, only_b;
    double max_abs;
} tally;

static sd_status diff_columns(sd_table *t, sd_err *err) {
    SD_TRY(sd_table_add_column(t, "name", SD_COL_STR, "tensor", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "status", SD_COL_STR,
                               "same, retyped (equal values), changed, only a, only b", false, NULL,
                               err));
    SD_TRY(sd_table_add_column(t, "max_abs", SD_COL_NUM, "largest |b - a|", false, NULL, err));
    SD_TRY(sd_table_add_column(t, "rel_norm", SD_COL_NUM, "norm of b - a over norm of a", false,
                               NULL, err));
    SD_TRY(sd_table_add_column(t, "dtype_a", SD_COL_STR, "storage type in a", true, NULL, err));
    SD_TRY(sd_table_add_column(t, "dtype_b", SD_COL_STR, "storage type in b", true, NULL, err));
    SD_TRY(sd_table_add_column(t, "shape_a", SD_COL_STR, "shape in a", true, NULL, err));
    return sd_table_add_column(t, "shape_b", SD_COL_STR, "shape in b", true, NULL, err);
}

static sd_status put_side(sd_table *t, int row, const sd_tensor_info *e, const char *dtype,
                          const char *shape, sd_err *err) {
    char s[160];
    shape_text(e, s);
    SD_TRY(sd_table_set_str(t, row, dtype, sd_tensor_type(e), err));
    return sd_table_set_str(t, row, shape, s, err);
}

static sd_status diff_row(sd_table *t, pair *p, int i, int j, tally *sum, sd_err *err) {
    const sd_tensor_info *a = i < 0 ? NULL : sd_container_at(p->a, (size_t)i);
    const sd_tensor_info *b = j < 0 ? NULL : sd_container_at(p->b, (size_t)j);
    const char *status;
    int row;
    SD_TRY(sd_table_add_row(t, &row, err));
    SD_TRY(sd_table_set_str(t, row, "name", a ? a->name : b->name, err));
    if (a) {
        SD_TRY(put_side(t, row, a, "dtype_a", "shape_a", err));
    }
    if (b) {
        SD_TRY(put_side(t, row, b, "dtype_b", "shape_b", err));
    }
    if (!a || !b) {
        status = a ? "only a" : "only b";
        ++*(a ? &sum->only_a : &sum->only_b);
    } else if (a->ndim != b->ndim ||
               memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0) {
        status = "changed";
        sum->changed++;
    } else {
        bool equal = false;
        double worst = 0, rel = 0;
        bool raw = a->unsupported || b->unsupported;
        if (a->bytes == b->bytes && strcmp(sd_tensor_type(a), sd_tensor_type(b)) == 0) {
            SD_TRY(bytes_equal(p, (size_t)i, (size_t)j, &equal, err));
        }
        if (!equal && !raw) {
            SD_TRY(values_differ(p, (size_t)i, (size_t)j, &worst, &rel, err));
        }
        bool retyped = !raw && a->dtype != b->dtype && worst == 0;
        status = equal ? "same" : retyped ? "retyped" : "changed";
        ++*(equal ? &sum->same : retyped ? &sum->retyped : &sum->changed);
        if (equal || !raw) { /* else: bytes differ, and what they mean is not known */
            sd_table_set_num(t, row, "max_abs", worst);
            sd_table_set_num(t, row, "rel_norm", rel);
        }
        if (isnan(worst) || worst > sum->max_abs) { /* a NaN stays */
            sum->max_abs = worst;
        }
    }
    return sd_table_set_str(t, row, "status", status, err);
}

static sd_status fill_diff(sd_table *t, pair *p, const sd_run *run, sd_err *err) {
    tally s = {0};
    SD_TRY(diff_columns(t, err));
    size_t na = sd_container_count(p->a), nb = sd_container_count(p->b);
    for (size_t i = 0; i < na; i++) {
        SD_TRY(sd_check_cancel(err));
        sd_run_progress(run, "diff", (double)i, (double)na);
        int j = sd_container_find(p->b, sd_container_at(p->a, i)->name);
        SD_TRY(diff_row(t, p, (int)i, j, &s, err));
    }
    for (size_t j = 0; j < nb; j++) {
        if (sd_container_find(p->a, sd_container_at(p->b, j)->name) < 0) {
            SD_TRY(diff_row(t, p, -1, (int)j, &s, err));
        }
    }
    sd_run_progress(run, "diff", (double)na, (double)na);
    SD_TRY(sd_table_meta_str(t, "path_a", sd_container_path(p->a), err));
    SD_TRY(sd_table_meta_str(t, "path_b", sd_container_path(p->b), err));
    SD_TRY(sd_table_meta_num(t, "same", (double)s.same, err));
    SD_TRY(sd_table_meta_num(t, "retyped", (double)s.retyped, err));
    SD_TRY(sd_table_meta_num(t, "changed", (double)s.changed, err));
    SD_TRY(sd_table_meta_num(t, "only_a", (double)s.only_a, err));
    SD_TRY(sd_table_meta_num(t, "only_b", (double)s.only_b, err));
    SD_TRY(sd_table_meta_num(t, "max_abs", s.max_abs, err));
    bool identical = s.retyped + s.changed + s.only_a + s.only_b == 0;
    SD_TRY(sd_table_meta_num(t, "identical", identical ? 1 : 0, err));
    SD_TRY(sd_table_heading(t, err, "a: %s", sd_container_path(p->a)));
    SD_TRY(sd_table_heading(t, err, "b: %s", sd_container_path(p->b)));
    return sd_table_note(t, err,
                         "%" PRId64 " same, %" PRId64 " retyped, %" PRId64 " changed, %" PRId64
                         " only in a, %" PRId64 " only in b%s",
                         s.same, s.retyped, s.changed, s.only_a, s.only_b,
                         identical ? ": every tensor is byte-identical" : "");
}

sd_status sd_diff(const char *path_a, const char *path_b, const sd_run *run, sd_table **out,
                  sd_err *err) {
    pair p = {0};
    sd_table *t = NULL;
    sd_status st;
    *out = NULL;
    SD_GO(st, done, sd_container_open(path_a, run, &p.a, err));
    SD_GO(st, done, sd_container_open(path_b, run, &p.b, err));
    p.raw_a = sd_alloc_raw(DIFF_ELEMS, sizeof(double), err);
    p.raw_b = sd_alloc_raw(DIFF_ELEMS, sizeof(double), err);
    p.x = sd_alloc_raw(DIFF_ELEMS, sizeof(double), err);
    p.y = sd_alloc_raw(DIFF_ELEMS, sizeof(double), err);
    t = sd_table_new("diff", err);
    if (!p.raw_a || !p.raw_b || !p.x || !p.y || !t) {
        st = SD_ENOMEM;
        goto done;
    }
    st = fill_diff(t, &p, run, err);
done:
    if (st == SD_OK) {
        *out = t;
    } else {
        sd_table_unref(t);
    }
    sd_free(p.raw_a);
    sd_free(p.raw_b);
    sd_free(p.x);
    sd_free(p.y);
    sd_container_unref(p.a);
    sd_container_unref(p.b);
    return st;
}
