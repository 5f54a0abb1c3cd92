#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/container_impl.h"

/* GGUF v2 and v3, little-endian: header, key-values, tensor infos, padding, data. Everything but
 * the data is read here, through a window, so that opening costs the header's size only. */

enum { MAX_GGUF_DIMS = 4, MAX_ARRAY_DEPTH = 8, MAX_KEY = 65535, WINDOW = 65536 };
enum { DEFAULT_ALIGNMENT = 32 };

enum { /* value types of key-values */
       G_U8,
       G_I8,
       G_U16,
       G_I16,
       G_U32,
       G_I32,
       G_F32,
       G_BOOL,
       G_STRING,
       G_ARRAY,
       G_U64,
       G_I64,
       G_F64,
       G_COUNT
};
/* Least bytes a value takes in the file. */
static const unsigned char least_bytes[G_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

/* Tensor type numbers: ours, or the name and the size of a block (elements, bytes), so that a file
 * with types that are not decoded is checked all the same. A type of unknown size ends where the
 * next tensor begins. */
static const struct {
    const char *name;
    int dtype; /* -1: not decoded */
    int block, bytes;
} tensor_types[] = {
    [0] = {"F32", SD_F32, 0, 0},          [1] = {"F16", SD_F16, 0, 0},
    [2] = {"Q4_0", SD_Q4_0, 0, 0},        [3] = {"Q4_1", SD_Q4_1, 0, 0},
    [4] = {"Q4_2 (removed)", -1, 16, 10}, [5] = {"Q4_3 (removed)", -1, 16, 12},
    [6] = {"Q5_0", SD_Q5_0, 0, 0},        [7] = {"Q5_1", SD_Q5_1, 0, 0},
    [8] = {"Q8_0", SD_Q8_0, 0, 0},        [9] = {"Q8_1", -1, 32, 36},
    [10] = {"Q2_K", -1, 256, 84},         [11] = {"Q3_K", -1, 256, 110},
    [12] = {"Q4_K", SD_Q4_K, 0, 0},       [13] = {"Q5_K", SD_Q5_K, 0, 0},
    [14] = {"Q6_K", SD_Q6_K, 0, 0},       [15] = {"Q8_K", -1, 256, 292},
    [16] = {"IQ2_XXS", -1, 256, 66},      [17] = {"IQ2_XS", -1, 256, 74},
    [18] = {"IQ3_XXS", -1, 256, 98},      [19] = {"IQ1_S", -1, 256, 50},
    [20] = {"IQ4_NL", -1, 32, 18},        [21] = {"IQ3_S", -1, 256, 110},
    [22] = {"IQ2_S", -1, 256, 82},        [23] = {"IQ4_XS", -1, 256, 136},
    [24] = {"I8", SD_I8, 0, 0},           [25] = {"I16", SD_I16, 0, 0},
    [26] = {"I32", SD_I32, 0, 0},         [27] = {"I64", SD_I64, 0, 0},
    [28] = {"F64", SD_F64, 0, 0},         [29] = {"IQ1_M", -1, 256, 56},
    [30] = {"BF16", SD_BF16, 0, 0},       [34] = {"TQ1_0", -1, 256, 54},
    [35] = {"TQ2_0", -1, 256, 66},        [39] = {"MXFP4", -1, 32, 17},
};
enum { N_TYPES = sizeof tensor_types / sizeof *tensor_types };
#define UNKNOWN_SIZE UINT64_MAX

bool sd_gguf_probe(const unsigned char *head, size_t n) {
    return n >= 4 && memcmp(head, "GGUF", 4) == 0;
}

typedef struct cursor {
    sd_file *f;
    uint64_t pos, size;
    unsigned char *win; /* (WINDOW) bytes [win_pos, win_pos + win_n) of the file */
    uint64_t win_pos;
    size_t win_n;
    char *text; /* scratch for strings */
    size_t text_cap;
    char type[24];      /* "type 99" */
    json_t *small[384]; /* shared integers -128..255: flags and token types are arrays of them */
    json_t *last_real;  /* the last real made; scores are often all equal */
    uint64_t last_bits;
    sd_err *err;
} cursor;

static uint64_t left(const cursor *c) {
    return c->size - c->pos;
}

static sd_status get(cursor *c, void *dst, size_t n) {
    if (n > left(c)) {
        return sd_fail(c->err, SD_EFORMAT,
                       "file cut short: %zu bytes needed at offset %llu, %llu left", n,
                       (unsigned long long)c->pos, (unsigned long long)left(c));
    }
    char *to = dst;
    while (n > 0) {
        if (c->pos >= c->win_pos && c->pos < c->win_pos + c->win_n) {
            size_t o = (size_t)(c->pos - c->win_pos);
            size_t k = c->win_n - o < n ? c->win_n - o : n;
            memcpy(to, c->win + o, k);
            to += k;
            n -= k;
            c->pos += k;
        } else {
            c->win_n = 0;
            size_t k = left(c) < WINDOW ? (size_t)left(c) : WINDOW;
            SD_TRY(sd_check_cancel(c->err));
            SD_TRY(sd_file_pread(c->f, c->pos, c->win, k, c->err));
            c->win_pos = c->pos;
            c->win_n = k;
        }
    }
    return SD_OK;
}

/* A string into the scratch, NUL-terminated. */
static sd_status get_text(cursor *c, const char *what, uint64_t max, size_t *n) {
    uint64_t len;
    SD_TRY(get(c, &len, 8));
    if (len > left(c)) {
        return sd_fail(c->err, SD_EFORMAT, "%s of %llu bytes at offset %llu, %llu left", what,
                       (unsigned long long)len, (unsigned long long)c->pos,
                       (unsigned long long)left(c));
    }
    if (max && len > max) {
        return sd_fail(c->err, SD_EFORMAT, "%s of %llu bytes (limit %llu)", what,
                       (unsigned long long)len, (unsigned long long)max);
    }
    void *p = c->text;
    sd_status st = sd_grow(&p, &c->text_cap, (size_t)len + 1, 1, c->err);
    c->text = p;
    if (st != SD_OK) {
        return st;
    }
    SD_TRY(get(c, c->text, (size_t)len));
    c->text[len] = 0;
    *n = (size_t)len;
    return SD_OK;
}

static bool plain_text(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t k = sd_utf8_next(s + i, n - i, NULL);
        if (k == 0 || s[i] == 0) {
            return false;
        }
        i += k;
    }
    return true;
}

static json_t *text_value(const char *s, size_t n) {
    if (plain_text(s, n)) {
        return json_stringn_nocheck(s, n);
    }
    static const char digits[] = "0123456789abcdef";
    char *hex = sd_alloc_raw(2 * n, 1, NULL);
    if (!hex) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digits[(unsigned char)s[i] >> 4];
        hex[2 * i + 1] = digits[(unsigned char)s[i] & 15];
    }
    json_t *o = json_object();
    if (o && json_object_set_new_nocheck(o, "bytes", json_stringn_nocheck(hex, 2 * n)) != 0) {
        json_decref(o);
        o = NULL;
    }
    sd_free(hex);
    return o;
}

static json_t *int_value(cursor *c, int64_t x) {
    if (x < -128 || x > 255) {
        return json_integer(x);
    }
    json_t **s = &c->small[x + 128];
    if (!*s) {
        *s = json_integer(x);
    }
    return json_incref(*s);
}

static json_t *real_value(cursor *c, double x) {
    if (!isfinite(x)) {
        return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
    }
    uint64_t bits;
    memcpy(&bits, &x, 8);
    if (!c->last_real || bits != c->last_bits) {
        json_decref(c->last_real);
        c->last_real = json_real(x);
        c->last_bits = bits;
    }
    return json_incref(c->last_real);
}

static sd_status get_value(cursor *c, uint32_t type, int depth, json_t **out);

static sd_status get_array(cursor *c, int depth, json_t **out) {
    uint32_t type;
    uint64_t n;
    SD_TRY(get(c, &type, 4));
    SD_TRY(get(c, &n, 8));
    if (type >= G_COUNT) {
        return sd_fail(c->err, SD_EFORMAT, "array of unknown value type %u", (unsigned)type);
    }
    if (n > left(c) / least_bytes[type]) {
        return sd_fail(c->err, SD_EFORMAT, "array of %llu values of %u bytes, %llu bytes left",
                       (unsigned long long)n, (unsigned)least_bytes[type],
                       (unsigned long long)left(c));
    }
    if (depth >= MAX_ARRAY_DEPTH) {
        return sd_fail(c->err, SD_EFORMAT, "arrays nested deeper than %d levels", MAX_ARRAY_DEPTH);
    }
    json_t *a = json_array();
    if (!a) {
        return sd_fail(c->err, SD_ENOMEM, "out of memory");
    }
    for (uint64_t i = 0; i < n; i++) {
        json_t *v = NULL;
        sd_status st = get_value(c, type, depth + 1, &v);
        if (st == SD_OK && json_array_append_new(a, v) != 0) {
            st = sd_fail(c->err, SD_ENOMEM, "out of memory");
        }
        if (st != SD_OK) {
            json_decref(a);
            return st;
        }
    }
    *out = a;
    return SD_OK;
}

static sd_status get_value(cursor *c, uint32_t type, int depth, json_t **out) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } v;
    size_t n;
    json_t *j = NULL;
    if (type >= G_COUNT) {
        return sd_fail(c->err, SD_EFORMAT, "unknown value type %u", (unsigned)type);
    }
    if (type == G_ARRAY) {
        return get_array(c, depth, out);
    }
    if (type == G_STRING) {
        SD_TRY(get_text(c, "string", 0, &n));
        j = text_value(c->text, n);
    } else {
        SD_TRY(get(c, &v, least_bytes[type]));
        switch (type) {
        case G_U8:
            j = int_value(c, v.u8);
            break;
        case G_I8:
            j = int_value(c, v.i8);
            break;
        case G_U16:
            j = int_value(c, v.u16);
            break;
        case G_I16:
            j = int_value(c, v.i16);
            break;
        case G_U32:
            j = int_value(c, v.u32);
            break;
        case G_I32:
            j = int_value(c, v.i32);
            break;
        case G_I64:
            j = int_value(c, v.i64);
            break;
        case G_U64:
            if (v.u64 <= INT64_MAX) {
                j = int_value(c, (int64_t)v.u64);
            } else {
                j = json_sprintf("%llu", (unsigned long long)v.u64);
            }
            break;
        case G_F32:
            j = real_value(c, (double)v.f32);
            break;
        case G_F64:
            j = real_value(c, v.f64);
            break;
        default: /* G_BOOL */
            if (v.u8 > 1) {
                return sd_fail(c->err, SD_EFORMAT, "boolean with value %u", (unsigned)v.u8);
            }
            j = json_boolean(v.u8);
            break;
        }
    }
    if (!j) {
        return sd_fail(c->err, SD_ENOMEM, "out of memory");
    }
    *out = j;
    return SD_OK;
}

static sd_status get_pairs(cursor *c, json_t *meta, uint64_t n, uint64_t *alignment) {
    for (uint64_t i = 0; i < n; i++) {
        size_t len;
        uint32_t type;
        json_t *v = NULL;
        SD_TRY(get_text(c, "key", MAX_KEY, &len));
        if (!plain_text(c->text, len)) {
            return sd_fail(c->err, SD_EFORMAT, "key %llu is not plain UTF-8",
                           (unsigned long long)i);
        }
        char *key = sd_strndup(c->text, len, c->err);
        if (!key) {
            return SD_ENOMEM;
        }
        sd_status st = get(c, &type, 4);
        if (st == SD_OK && json_object_get(meta, key)) {
            st = sd_fail(c->err, SD_EFORMAT, "given twice");
        }
        if (st == SD_OK) {
            st = get_value(c, type, 0, &v);
        }
        if (st == SD_OK && strcmp(key, "general.alignment") == 0) {
            int64_t a = type == G_U32 ? json_integer_value(v) : 0;
            if (type != G_U32) {
                st = sd_fail(c->err, SD_EFORMAT, "value type %u, expected UINT32 (%d)",
                             (unsigned)type, G_U32);
            } else if (a == 0 || (a & (a - 1))) {
                st = sd_fail(c->err, SD_EFORMAT, "expected a power of two, got %lld", (long long)a);
            }
            *alignment = (uint64_t)a;
        }
        if (st == SD_OK && json_object_set_nocheck(meta, key, v) != 0) {
            st = sd_fail(c->err, SD_ENOMEM, "out of memory");
        }
        json_decref(v);
        if (st != SD_OK) {
            sd_err_context(c->err, "key %s", sd_show(key, len).s);
        }
        sd_free(key);
        if (st != SD_OK) {
            return st;
        }
    }
    return SD_OK;
}

/* One tensor info; the offset is relative to the data, whose place is not known yet. */
static sd_status get_tensor(cursor *c, sd_tensor_info *t, uint64_t *offset) {
    uint32_t ndim, type;
    uint64_t ne[MAX_GGUF_DIMS];
    SD_TRY(get(c, &ndim, 4));
    if (ndim > MAX_GGUF_DIMS) {
        return sd_fail(c->err, SD_EFORMAT, "%u dimensions (limit %d)", (unsigned)ndim,
                       MAX_GGUF_DIMS);
    }
    SD_TRY(get(c, ne, 8 * (size_t)ndim));
    SD_TRY(get(c, &type, 4));
    SD_TRY(get(c, offset, 8));
    t->ndim = (int)ndim;
    for (uint32_t d = 0; d < ndim; d++) {
        if (ne[d] > INT64_MAX) {
            return sd_fail(c->err, SD_EFORMAT, "dimension %u is %llu", (unsigned)d,
                           (unsigned long long)ne[d]);
        }
        t->shape[ndim - 1 - d] = (int64_t)ne[d]; /* ne[0] varies fastest */
    }
    const char *name = type < N_TYPES ? tensor_types[type].name : NULL;
    int block = 0, bytes = 0;
    if (name && tensor_types[type].dtype >= 0) {
        t->dtype = (sd_dtype)tensor_types[type].dtype;
        const sd_dtype_info *d = sd_dtype_get(t->dtype);
        name = d->name;
        block = d->block;
        bytes = d->bytes;
    } else {
        if (name) {
            block = tensor_types[type].block;
            bytes = tensor_types[type].bytes;
        } else {
            snprintf(c->type, sizeof c->type, "type %u", (unsigned)type);
            name = c->type;
        }
        t->dtype = SD_U8;
        t->unsupported = name;
    }
    uint64_t n;
    if (!sd_shape_product(t->ndim, t->shape, &n)) {
        return sd_fail(c->err, SD_EFORMAT, "the shape's number of bytes overflows");
    }
    if (block == 0) {
        t->bytes = UNKNOWN_SIZE;
        return SD_OK;
    }
    if (block > 1 && (ndim == 0 || ne[0] % (uint64_t)block)) {
        return sd_fail(c->err, SD_EFORMAT, "rows of %llu elements do not fill blocks of %d (%s)",
                       (unsigned long long)(ndim ? ne[0] : 1), block, name);
    }
    if (n / (uint64_t)block > (UINT64_MAX - 1) / (uint64_t)bytes) {
        return sd_fail(c->err, SD_EFORMAT, "the shape's number of bytes overflows");
    }
    t->bytes = n / (uint64_t)block * (uint64_t)bytes;
    return SD_OK;
}

static int by_offset(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Tensors of unknown size end where the next one begins, or the data (of `data` bytes). */
static sd_status bound_unknown(sd_container *c, size_t from, uint64_t data, sd_err *err) {
    size_t n = c->n - from, unknown = 0;
    for (size_t i = from; i < c->n; i++) {
        unknown += c->entries[i].info.bytes == UNKNOWN_SIZE;
    }
    if (unknown == 0) {
        return SD_OK;
    }
    uint64_t *at = sd_alloc(n, sizeof *at, err);
    if (!at) {
        return SD_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        at[i] = c->entries[from + i].offset;
    }
    qsort(at, n, sizeof *at, by_offset);
    for (size_t i = from; i < c->n; i++) {
        sd_entry *e = &c->entries[i];
        if (e->info.bytes != UNKNOWN_SIZE) {
            continue;
        }
        size_t lo = 0, hi = n; /* first offset behind e's own */
        while (lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (at[mid] <= e->offset) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        uint64_t end = lo < n ? at[lo] : data;
        e->info.bytes = end > e->offset ? end - e->offset : 0;
    }
    sd_free(at);
    return SD_OK;
}

static sd_status place_tensors(sd_container *c, size_t from, uint64_t pos, uint64_t size,
                               uint64_t alignment, sd_err *err) {
    uint64_t start = size, data = 0;
    uint64_t pad = (alignment - pos % alignment) % alignment;
    if (pad <= size - pos) { /* a file without tensors may end before the padding */
        start = pos + pad;
        data = size - start;
    }
    SD_TRY(bound_unknown(c, from, data, err));
    for (size_t i = from; i < c->n; i++) {
        sd_entry *e = &c->entries[i];
        sd_shown s = sd_show(e->info.name, strlen(e->info.name));
        if (e->offset % alignment) {
            return sd_fail(err, SD_EFORMAT,
                           "tensor %s: offset %llu is not a multiple of the alignment %llu", s.s,
                           (unsigned long long)e->offset, (unsigned long long)alignment);
        }
        if (e->offset > data || e->info.bytes > data - e->offset) {
            return sd_fail(err, SD_EFORMAT,
                           "tensor %s: needs %llu data bytes from offset %llu, the file has %llu",
                           s.s, (unsigned long long)e->info.bytes, (unsigned long long)e->offset,
                           (unsigned long long)data);
        }
        e->offset += start;
    }
    return sd_container_check_ranges(c, from, start, data, false, err);
}

sd_status sd_gguf_headers(sd_container *c, int file, const sd_run *run, sd_err *err) {
    cursor cur = {.f = c->files[file], .size = sd_file_size(c->files[file]), .err = err};
    uint32_t version;
    uint64_t n_tensors, n_pairs, alignment = DEFAULT_ALIGNMENT;
    size_t from = c->n;
    sd_status st;
    cur.win = sd_alloc_raw(WINDOW, 1, err);
    if (!cur.win) {
        return SD_ENOMEM;
    }
    char magic[4];
    SD_GO(st, done, get(&cur, magic, 4));
    SD_GO(st, done, get(&cur, &version, 4));
    if (version != 2 && version != 3) {
        st = sd_fail(err, SD_EFORMAT, "GGUF version %u%s (2 and 3 are read)", (unsigned)version,
                     version && (version & 0xffff) == 0 ? ": a big-endian file" : "");
        goto done;
    }
    SD_GO(st, done, get(&cur, &n_tensors, 8));
    SD_GO(st, done, get(&cur, &n_pairs, 8));
    if (n_pairs > left(&cur) / 13 || n_tensors > left(&cur) / 24) { /* least bytes of each */
        st = sd_fail(err, SD_EFORMAT, "%llu tensors and %llu key-values announced, %llu bytes left",
                     (unsigned long long)n_tensors, (unsigned long long)n_pairs,
                     (unsigned long long)left(&cur));
        goto done;
    }
    SD_GO(st, done, get_pairs(&cur, c->meta, n_pairs, &alignment));
    for (uint64_t i = 0; i < n_tensors; i++) {
        size_t len;
        uint64_t offset = 0;
        sd_tensor_info t = {.shard = file};
        SD_GO(st, done, get_text(&cur, "tensor name", MAX_KEY, &len));
        if (!plain_text(cur.text, len)) {
            st = sd_fail(err, SD_EFORMAT, "tensor name %llu is not plain UTF-8",
                         (unsigned long long)i);
            goto done;
        }
        st = get_tensor(&cur, &t, &offset);
        if (st != SD_OK) {
            sd_err_context(err, "tensor %s", sd_show(cur.text, len).s);
            goto done;
        }
        t.name = cur.text;
        SD_GO(st, done, sd_container_add(c, &t, len, offset, err));
    }
    SD_GO(st, done, place_tensors(c, from, cur.pos, cur.size, alignment, err));
    int64_t parts = json_integer_value(json_object_get(c->meta, "split.count"));
    if (parts > 1) {
        sd_run_log(run, SD_LOG_WARN,
                   "%s: one of %lld parts of a split GGUF; the others are not read (merge them "
                   "first)",
                   c->path, (long long)parts);
    }
done:
    for (size_t i = 0; i < sizeof cur.small / sizeof *cur.small; i++) {
        json_decref(cur.small[i]);
    }
    json_decref(cur.last_real);
    sd_free(cur.win);
    sd_free(cur.text);
    return st;
}
