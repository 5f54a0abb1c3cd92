#include <stdlib.h>
#include <string.h>

#include "io/container_impl.h"
#include "io/json.h"

/* Format: u64 header length, JSON header, data. Every tensor has dtype, shape and data_offsets
 * relative to the data; together they must cover the data exactly once. */
enum { MAX_HEADER = 100000000 }; /* the reference reader's limit */
#define METADATA "__metadata__"

static sd_status read_shape(const json_t *v, sd_tensor_info *t, sd_err *err) {
    if (!json_is_array(v)) {
        return sd_fail(err, SD_EFORMAT, "field \"shape\" is %s", v ? "not an array" : "missing");
    }
    size_t n = json_array_size(v);
    if (n > SD_MAX_DIMS) {
        return sd_fail(err, SD_EFORMAT, "field \"shape\" has %zu dimensions (limit %d)", n,
                       SD_MAX_DIMS);
    }
    for (size_t d = 0; d < n; d++) {
        const json_t *x = json_array_get(v, d);
        if (!json_is_integer(x)) {
            return sd_fail(err, SD_EFORMAT, "field \"shape\": entry %zu is not an integer", d);
        }
        t->shape[d] = json_integer_value(x);
        if (t->shape[d] < 0) {
            return sd_fail(err, SD_EFORMAT, "field \"shape\": entry %zu is negative (%lld)", d,
                           (long long)t->shape[d]);
        }
    }
    t->ndim = (int)n;
    return SD_OK;
}

static sd_status read_entry(const json_t *v, uint64_t data_len, sd_tensor_info *t, uint64_t *begin,
                            sd_err *err) {
    if (!json_is_object(v)) {
        return sd_fail(err, SD_EFORMAT, "its header entry is not an object");
    }
    const char *dtype;
    SD_TRY(sd_json_str(v, "dtype", &dtype, NULL, err));
    if (!sd_dtype_find(dtype, &t->dtype) || sd_dtype_get(t->dtype)->is_quant) {
        size_t k = strspn(dtype, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        if (k == 0 || k > 32 || dtype[k]) {
            return sd_fail(err, SD_EFORMAT, "dtype \"%s\" is no type's name",
                           sd_show(dtype, strlen(dtype)).s);
        }
        t->dtype = SD_U8;
        t->unsupported = dtype; /* listed; its size is taken from the offsets */
    }
    SD_TRY(read_shape(json_object_get(v, "shape"), t, err));
    const json_t *o = json_object_get(v, "data_offsets");
    if (!json_is_array(o) || json_array_size(o) != 2) {
        return sd_fail(err, SD_EFORMAT, "field \"data_offsets\" is %s",
                       !o                 ? "missing"
                       : json_is_array(o) ? "not a pair of integers"
                                          : "not an array");
    }
    int64_t off[2];
    for (size_t k = 0; k < 2; k++) {
        const json_t *x = json_array_get(o, k);
        if (!json_is_integer(x)) {
            return sd_fail(err, SD_EFORMAT, "field \"data_offsets\": entry %zu is not an integer",
                           k);
        }
        off[k] = json_integer_value(x);
        if (off[k] < 0) {
            return sd_fail(err, SD_EFORMAT, "field \"data_offsets\": entry %zu is negative (%lld)",
                           k, (long long)off[k]);
        }
    }
    if (off[1] < off[0]) {
        return sd_fail(err, SD_EFORMAT, "data_offsets [%lld,%lld] end before they begin",
                       (long long)off[0], (long long)off[1]);
    }
    uint64_t n, bytes;
    if (!sd_shape_product(t->ndim, t->shape, &n) || !sd_dtype_bytes(t->dtype, n, &bytes)) {
        return sd_fail(err, SD_EFORMAT, "the shape's number of bytes overflows");
    }
    if (t->unsupported) {
        bytes = (uint64_t)(off[1] - off[0]);
    } else if ((uint64_t)(off[1] - off[0]) != bytes) {
        return sd_fail(err, SD_EFORMAT,
                       "dtype %s and shape need %llu bytes, data_offsets [%lld,%lld] give %llu",
                       dtype, (unsigned long long)bytes, (long long)off[0], (long long)off[1],
                       (unsigned long long)(off[1] - off[0]));
    }
    if ((uint64_t)off[1] > data_len) {
        return sd_fail(err, SD_EFORMAT,
                       "data_offsets [%lld,%lld] pass the end of the file: needs %lld data bytes, "
                       "has %llu",
                       (long long)off[0], (long long)off[1], (long long)off[1],
                       (unsigned long long)data_len);
    }
    t->bytes = bytes;
    *begin = (uint64_t)off[0];
    return SD_OK;
}

static sd_status read_metadata(sd_container *c, const json_t *v, sd_err *err) {
    if (json_is_null(v)) {
        return SD_OK;
    }
    if (!json_is_object(v)) {
        return sd_fail(err, SD_EFORMAT, METADATA " is not an object");
    }
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)v, key, val) {
        if (!json_is_string(val)) {
            return sd_fail(err, SD_EFORMAT, METADATA ": the value of \"%s\" is not a string",
                           sd_show(key, strlen(key)).s);
        }
        if (!json_object_get(c->meta, key) && json_object_set(c->meta, key, val) != 0) {
            return sd_fail(err, SD_ENOMEM, "out of memory");
        }
    }
    return SD_OK;
}

sd_status sd_safetensors_headers(sd_container *c, int file, const sd_run *run, sd_err *err) {
    (void)run;
    sd_file *f = c->files[file];
    uint64_t size = sd_file_size(f);
    unsigned char b[8];
    if (size < 8) {
        return sd_fail(err, SD_EFORMAT,
                       "not a safetensors or GGUF file: %llu bytes, a header needs 8",
                       (unsigned long long)size);
    }
    SD_TRY(sd_file_pread(f, 0, b, 8, err));
    uint64_t n;
    memcpy(&n, b, 8);
    if (n > MAX_HEADER) {
        return sd_fail(
            err, SD_EFORMAT,
            "not a safetensors or GGUF file: its first 8 bytes announce a header of %llu "
            "bytes (limit %d)",
            (unsigned long long)n, MAX_HEADER);
    }
    if (n > size - 8) {
        return sd_fail(err, SD_EFORMAT, "file cut short: the header needs %llu bytes, has %llu",
                       (unsigned long long)n, (unsigned long long)(size - 8));
    }
    char *text = sd_alloc_raw((size_t)n, 1, err);
    if (!text) {
        return SD_ENOMEM;
    }
    json_t *root = NULL;
    sd_status st;
    size_t from = c->n;
    uint64_t start = 8 + n;
    SD_GO(st, done, sd_file_pread(f, 8, text, (size_t)n, err));
    if (n == 0 || text[0] != '{') {
        st = sd_fail(err, SD_EFORMAT, "not a safetensors file: its header does not begin with '{'");
        goto done;
    }
    SD_GO(st, done, sd_json_parse(text, (size_t)n, "header", &root, err));
    const char *key;
    json_t *v;
    json_object_foreach(root, key, v) {
        if (strcmp(key, METADATA) == 0) {
            SD_GO(st, done, read_metadata(c, v, err));
            continue;
        }
        sd_tensor_info t = {.name = key, .shard = file};
        uint64_t begin = 0;
        st = read_entry(v, size - start, &t, &begin, err);
        if (st != SD_OK) {
            sd_err_context(err, "tensor %s", sd_show(key, strlen(key)).s);
            goto done;
        }
        SD_GO(st, done, sd_container_add(c, &t, strlen(key), start + begin, err));
    }
    st = sd_container_check_ranges(c, from, start, size - start, true, err);
done:
    json_decref(root);
    sd_free(text);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------
 */
typedef struct item {
    const sd_named_tensor *t;
    size_t index; /* in the caller's order */
    uint64_t begin, bytes;
} item;

static int by_name(const void *a, const void *b) {
    return strcmp(((const item *)a)->t->name, ((const item *)b)->t->name);
}

static int by_index(const void *a, const void *b) {
    const item *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_layout(const void *a, const void *b) {
    const item *x = a, *y = b;
    int p = sd_dtype_get(x->t->tensor->dtype)->bytes, q = sd_dtype_get(y->t->tensor->dtype)->bytes;
    return p != q ? q - p : by_index(a, b);
}

static bool valid_utf8(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t k = sd_utf8_next(s + i, n - i, NULL);
        if (k == 0) {
            return false;
        }
        i += k;
    }
    return true;
}

static sd_status check_items(item *it, size_t n, sd_err *err) {
    for (size_t i = 0; i < n; i++) {
        const char *name = it[i].t->name;
        const sd_dtype_info *d = sd_dtype_get(it[i].t->tensor->dtype);
        sd_shown s = sd_show(name, strlen(name));
        if (strcmp(name, METADATA) == 0) {
            return sd_fail(err, SD_EINVAL, "tensor name " METADATA " is reserved by the format");
        }
        if (!valid_utf8(name, strlen(name))) {
            return sd_fail(err, SD_EINVAL, "tensor name %s is not valid UTF-8", s.s);
        }
        if (d->is_quant) {
            return sd_fail(err, SD_EINVAL, "tensor %s: safetensors cannot hold type %s", s.s,
                           d->name);
        }
        it[i].bytes = sd_tensor_nbytes(it[i].t->tensor);
    }
    qsort(it, n, sizeof *it, by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(it[i - 1].t->name, it[i].t->name) == 0) {
            return sd_fail(err, SD_EINVAL, "tensor %s: named twice",
                           sd_show(it[i].t->name, strlen(it[i].t->name)).s);
        }
    }
    return SD_OK;
}

static sd_status put_metadata(sd_buf *h, const json_t *metadata, sd_err *err) {
    const char *key;
    json_t *v;
    const char *sep = "";
    sd_buf_puts(h, "\"" METADATA "\":{");
    json_object_foreach((json_t *)metadata, key, v) {
        if (!json_is_string(v)) {
            return sd_fail(err, SD_EINVAL, "metadata: the value of \"%s\" is not a string",
                           sd_show(key, strlen(key)).s);
        }
        if (memchr(json_string_value(v), 0, json_string_length(v))) {
            return sd_fail(err, SD_EINVAL, "metadata: the value of \"%s\" holds a NUL byte",
                           sd_show(key, strlen(key)).s);
        }
        sd_buf_puts(h, sep);
        sd_buf_json_string(h, key, strlen(key));
        sd_buf_putc(h, ':');
        sd_buf_json_string(h, json_string_value(v), json_string_length(v));
        sep = ",";
    }
    sd_buf_putc(h, '}');
    return SD_OK;
}

static sd_status put_data(sd_writer *w, const sd_tensor *t, sd_err *err) {
    enum { STEP = 8 << 20 };
    sd_tensor *copy = NULL;
    sd_status st = SD_OK;
    if (!sd_tensor_is_contiguous(t)) {
        SD_TRY(sd_tensor_cast(t, t->dtype, &copy, err));
        t = copy;
    }
    size_t n = sd_tensor_nbytes(t);
    for (size_t off = 0; off < n; off += STEP) {
        SD_GO(st, done, sd_check_cancel(err));
        SD_GO(st, done,
              sd_writer_put(w, (const char *)t->data + off, n - off < STEP ? n - off : STEP, err));
    }
done:
    sd_tensor_free(copy);
    return st;
}

sd_status sd_safetensors_write(const char *path, const sd_named_tensor *t, size_t n,
                               const json_t *metadata, sd_err *err) {
    sd_status st;
    sd_buf h = {0};
    sd_writer *w = NULL;
    item *it = sd_alloc(n, sizeof *it, err);
    if (!it) {
        return SD_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        it[i] = (item){.t = &t[i], .index = i};
    }
    SD_GO(st, done, check_items(it, n, err));
    if (n > 0) {
        qsort(it, n, sizeof *it, by_layout);
    }
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        it[i].begin = at;
        at += it[i].bytes;
    }
    if (n > 0) {
        qsort(it, n, sizeof *it, by_index);
    }
    const char *sep = "";
    sd_buf_putc(&h, '{');
    if (metadata) {
        if (!json_is_object(metadata)) {
            st = sd_fail(err, SD_EINVAL, "metadata is not an object");
            goto done;
        }
        SD_GO(st, done, put_metadata(&h, metadata, err));
        sep = ",";
    }
    for (size_t i = 0; i < n; i++) {
        const sd_tensor *x = it[i].t->tensor;
        sd_buf_puts(&h, sep);
        sd_buf_json_string(&h, it[i].t->name, strlen(it[i].t->name));
        sd_buf_printf(&h, ":{\"dtype\":\"%s\",\"shape\":[", sd_dtype_get(x->dtype)->name);
        for (int d = 0; d < x->ndim; d++) {
            sd_buf_printf(&h, "%s%lld", d ? "," : "", (long long)x->shape[d]);
        }
        sd_buf_printf(&h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)it[i].begin,
                      (unsigned long long)(it[i].begin + it[i].bytes));
        sep = ",";
    }
    sd_buf_putc(&h, '}');
    while (h.n % 8 && !h.failed) {
        sd_buf_putc(&h, ' ');
    }
    SD_GO(st, done, sd_buf_status(&h, err));
    if (h.n > MAX_HEADER) {
        st = sd_fail(err, SD_EINVAL, "the header would take %zu bytes (limit %d)", h.n, MAX_HEADER);
        goto done;
    }
    uint64_t len = h.n;
    SD_GO(st, done, sd_writer_open(path, &w, err));
    SD_GO(st, done, sd_writer_put(w, &len, 8, err));
    SD_GO(st, done, sd_writer_put(w, h.p, h.n, err));
    if (n > 0) {
        qsort(it, n, sizeof *it, by_layout);
    }
    for (size_t i = 0; i < n; i++) {
        SD_GO(st, done, put_data(w, it[i].t->tensor, err));
    }
    sd_writer *commit = w;
    w = NULL;
    st = sd_writer_commit(commit, err);
done:
    sd_writer_abort(w);
    sd_buf_free(&h);
    sd_free(it);
    if (st == SD_EINVAL) {
        sd_err_context(err, "%s", path);
    }
    return st;
}
