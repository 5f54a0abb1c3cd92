/* hostapi.c: the function table of sd_plugin.h over the library. Every handle of a call is kept in
 * a list and looked up before use, so a stale or foreign pointer is an error and not a crash. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/api.h"

#define BLOCK_MAGIC 0x5d5b10c4b10c5d5dULL
enum { BLOCK_HEAD = 64 };

static const char *const kind_names[H_COUNT] = {"model",       "text",    "table",
                                                "calibration", "trainer", "rng"};

/* ---- failing ---- */

static int vfail(sd_call *c, int code, const char *fmt, va_list ap) {
    char text[SD_ERR_TEXT];
    vsnprintf(text, sizeof text, fmt, ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 && *p != '\n')
            *p = ' ';
    if (code < SD_EINVAL || code > SD_EPLUGIN)
        code = SD_EPLUGIN;
    sd_fail(&c->err, (sd_status)code, "%s", text);
    return code;
}

int sd_api_fail(sd_call *c, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int rc = vfail(c, code, fmt, ap);
    va_end(ap);
    return rc;
}

static int h_failed(sd_call *c) {
    return (int)c->err.code;
}

static const char *h_fail_text(sd_call *c) {
    return c->err.code == SD_OK ? "" : c->err.text;
}

static void h_fail_clear(sd_call *c) {
    sd_err_clear(&c->err);
}

/* ---- memory and handles ---- */

void *sd_api_alloc(sd_call *c, size_t n, size_t size) {
    size_t bytes, all;
    if (!sd_mul_size(n, size, &bytes) || !sd_add_size(bytes, BLOCK_HEAD, &all)) {
        sd_api_fail(c, SD_ENOMEM, "a block of %zu x %zu bytes is too large", n, size);
        return NULL;
    }
    sd_block_hdr *b = sd_alloc(all, 1, &c->err);
    if (!b)
        return NULL;
    b->magic = BLOCK_MAGIC;
    b->next = c->blocks;
    if (c->blocks)
        c->blocks->prev = b;
    c->blocks = b;
    return (char *)b + BLOCK_HEAD;
}

static void h_release(sd_call *c, void *p) {
    if (!p)
        return;
    for (sd_block_hdr *b = c->blocks; b; b = b->next)
        if ((char *)b + BLOCK_HEAD == (char *)p) {
            if (b->prev)
                b->prev->next = b->next;
            else
                c->blocks = b->next;
            if (b->next)
                b->next->prev = b->prev;
            sd_free(b);
            return;
        }
    sd_api_fail(c, SD_EINVAL, "release: %p was not handed out by this call", p);
}

double *sd_api_doubles(sd_call *c, size_t n) {
    return sd_api_alloc(c, n ? n : 1, sizeof(double));
}

sd_handle *sd_api_new(sd_call *c, sd_handle_kind kind) {
    if (sd_grow((void **)&c->handles, &c->cap_handles, c->n_handles + 1, sizeof *c->handles,
                &c->err) != SD_OK)
        return NULL;
    sd_handle *h = sd_alloc(1, sizeof *h, &c->err);
    if (!h)
        return NULL;
    h->kind = kind;
    c->handles[c->n_handles++] = h;
    return h;
}

sd_handle *sd_api_check(sd_call *c, const void *p, sd_handle_kind kind) {
    for (size_t i = c->n_handles; i-- > 0;)
        if (c->handles[i] == p && c->handles[i]->kind == kind)
            return c->handles[i];
    sd_api_fail(c, SD_EINVAL, "%s is not a %s of this call", p ? "a handle" : "NULL",
                kind_names[kind]);
    return NULL;
}

static void free_handle(sd_handle *h) {
    switch (h->kind) {
    case H_MODEL:
        sd_model_unref(h->u.model);
        break;
    case H_TEXT:
        sd_text_unref(h->u.text);
        break;
    case H_TABLE:
        sd_table_unref(h->u.table);
        break;
    case H_CALIB:
        sd_calib_free(h->u.calib);
        break;
    case H_TRAIN:
        sd_api_trainer_free(h->u.train);
        break;
    case H_RNG:
    case H_COUNT:
        break;
    }
    sd_free(h);
}

void sd_api_drop(sd_call *c, void *p, sd_handle_kind kind) {
    if (!p)
        return;
    sd_handle *h = sd_api_check(c, p, kind);
    if (!h)
        return;
    if (h->borrowed) {
        sd_api_fail(c, SD_EINVAL, "an argument is not released by the op");
        return;
    }
    for (size_t i = 0; i < c->n_handles; i++)
        if (c->handles[i] == h) {
            memmove(c->handles + i, c->handles + i + 1,
                    (c->n_handles - i - 1) * sizeof *c->handles);
            c->n_handles--;
            break;
        }
    free_handle(h);
}

void sd_call_finish(sd_call *c) {
    size_t leaked[sizeof kind_names / sizeof *kind_names] = {0}, total = 0;
    for (size_t i = 0; i < c->n_handles; i++) {
        if (!c->handles[i]->borrowed) {
            leaked[c->handles[i]->kind]++;
            total++;
        }
        free_handle(c->handles[i]);
    }
    sd_free(c->handles);
    for (sd_block_hdr *b = c->blocks, *next; b; b = next) {
        next = b->next;
        sd_free(b);
    }
    if (total) {
        sd_buf b = {0};
        for (size_t k = 0; k < sizeof leaked / sizeof *leaked; k++)
            if (leaked[k])
                sd_buf_printf(&b, "%s%zu %s handle%s", b.n ? ", " : "", leaked[k], kind_names[k],
                              leaked[k] == 1 ? "" : "s");
        sd_run_log(&c->s->run, SD_LOG_WARN, "plugin %s: %s leaked %s (freed)",
                   c->plugin ? c->plugin : "?", c->op ? c->op->desc->name : "init",
                   b.p ? b.p : "handles");
        sd_buf_free(&b);
    }
    c->handles = NULL;
    c->n_handles = 0;
    c->blocks = NULL;
}

/* ---- arguments ---- */

static sd_value *find_arg(sd_call *c, const char *name, uint32_t kinds) {
    int i = c->op && name ? sd_op_arg_index(c->op->desc, name) : -1;
    if (i < 0) {
        sd_api_fail(c, SD_EPLUGIN, "the op asks for argument %.60s, which it does not declare",
                    name ? name : "NULL");
        return NULL;
    }
    uint32_t kind = c->op->desc->args[i].kind;
    if (!(kinds >> kind & 1)) {
        sd_api_fail(c, SD_EPLUGIN,
                    "the op asks for argument %.60s, declared as %s, as another kind", name,
                    sd_op_kind_name(kind));
        return NULL;
    }
    return &c->args[i];
}

#define K(k_) (1u << SD_ARG_##k_)

sd_value *sd_call_arg(sd_call *c, const char *name) {
    return find_arg(c, name, ~0u);
}

static bool h_arg_given(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, ~0u);
    return v && v->kind != SD_ARG_NIL;
}

static bool h_arg_bool(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(BOOL));
    return v && v->b;
}

static int64_t h_arg_int(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(INT));
    return v ? v->i : 0;
}

static double h_arg_num(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(INT) | K(NUM));
    if (!v || v->kind == SD_ARG_NIL)
        return NAN;
    return v->kind == SD_ARG_INT ? (double)v->i : v->f;
}

static const char *h_arg_str(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(STR) | K(CHOICE) | K(PATH) | K(LAYERS));
    return v && v->kind != SD_ARG_NIL ? v->s : NULL;
}

static int h_arg_range(sd_call *c, const char *name, const char *what, int32_t count,
                       unsigned char *mask) {
    sd_value *v = find_arg(c, name, K(LAYERS) | K(STR));
    if (!v)
        return c->err.code;
    if (count < 0 || !mask)
        return sd_api_fail(c, SD_EINVAL, "arg_range: a count of %d", count);
    if (v->kind == SD_ARG_NIL) {
        memset(mask, 1, (size_t)count);
        return 0;
    }
    bool *m = sd_alloc((size_t)count, sizeof *m, &c->err);
    if (!m)
        return SD_ENOMEM;
    sd_status st = sd_parse_ranges(v->s, what ? what : name, count, m, &c->err);
    for (int32_t i = 0; st == SD_OK && i < count; i++)
        mask[i] = m[i];
    sd_free(m);
    return st;
}

/* One borrowed handle per argument object and call. */
static void *arg_handle(sd_call *c, sd_handle_kind kind, void *obj) {
    for (size_t i = 0; i < c->n_handles; i++)
        if (c->handles[i]->kind == kind && c->handles[i]->borrowed &&
            (void *)c->handles[i]->u.model == obj)
            return c->handles[i];
    sd_handle *h = sd_api_new(c, kind);
    if (!h)
        return NULL;
    h->borrowed = true;
    if (kind == H_MODEL)
        h->u.model = sd_model_ref(obj);
    else if (kind == H_TEXT)
        h->u.text = sd_text_ref(obj);
    else
        h->u.table = sd_table_ref(obj);
    return h;
}

static sd_hmodel *h_arg_model(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(MODEL));
    return v && v->model ? arg_handle(c, H_MODEL, v->model) : NULL;
}

static sd_htext *h_arg_text(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(TEXT));
    return v && v->text ? arg_handle(c, H_TEXT, v->text) : NULL;
}

static sd_htable *h_arg_table(sd_call *c, const char *name) {
    sd_value *v = find_arg(c, name, K(TABLE));
    return v && v->table ? arg_handle(c, H_TABLE, v->table) : NULL;
}

/* A tensor's elements as an f64 array of the call. */
int sd_api_array_out(sd_call *c, const sd_tensor *t, sd_harray *out) {
    sd_tensor *f = NULL;
    sd_status st = sd_tensor_cast(t, SD_F64, &f, &c->err);
    if (st != SD_OK)
        return st;
    memset(out, 0, sizeof *out);
    out->ndim = f->ndim;
    size_t n = (size_t)sd_tensor_numel(f);
    for (int i = 0; i < f->ndim; i++)
        out->shape[i] = f->shape[i];
    out->data = sd_api_doubles(c, n);
    if (out->data && n)
        memcpy(out->data, f->data, n * sizeof(double));
    sd_tensor_free(f);
    return out->data ? 0 : SD_ENOMEM;
}

int sd_api_array_in(sd_call *c, const sd_harray *a, sd_tensor **out) {
    *out = NULL;
    if (!a || a->ndim < 0 || a->ndim > SD_MAX_DIMS)
        return sd_api_fail(c, SD_EINVAL, "an array of %d dimensions", a ? a->ndim : -1);
    sd_status st = sd_tensor_new(SD_F64, a->ndim, a->shape, out, &c->err);
    if (st != SD_OK)
        return st;
    size_t n = (size_t)sd_tensor_numel(*out);
    if (n && !a->data) {
        sd_tensor_free(*out);
        *out = NULL;
        return sd_api_fail(c, SD_EINVAL, "an array of %zu elements without data", n);
    }
    if (n)
        memcpy((*out)->data, a->data, n * sizeof(double));
    return 0;
}

static int h_arg_array(sd_call *c, const char *name, sd_harray *out) {
    sd_value *v = find_arg(c, name, K(TENSOR));
    if (!v)
        return c->err.code;
    if (!v->tensor)
        return sd_api_fail(c, SD_EINVAL, "%s was not given", name);
    return sd_api_array_out(c, v->tensor, out);
}

/* ---- results ---- */

static sd_value *set_result(sd_call *c, sd_arg_kind kind) {
    if (!c->result) {
        sd_api_fail(c, SD_EPLUGIN, "init cannot return a value");
        return NULL;
    }
    uint32_t want = c->op->desc->returns;
    bool text =
        (want == SD_ARG_STR || want == SD_ARG_PATH || want == SD_ARG_CHOICE) && kind == SD_ARG_STR;
    sd_value_clear(c->result);
    c->result->kind = text ? (sd_arg_kind)want : kind;
    c->has_result = true;
    return c->result;
}

static int h_return_bool(sd_call *c, bool b) {
    sd_value *v = set_result(c, SD_ARG_BOOL);
    if (v)
        v->b = b;
    return v ? 0 : (int)c->err.code;
}

static int h_return_int(sd_call *c, int64_t i) {
    sd_value *v = set_result(c, SD_ARG_INT);
    if (v) {
        v->i = i;
        v->f = (double)i;
    }
    return v ? 0 : (int)c->err.code;
}

static int h_return_num(sd_call *c, double f) {
    sd_value *v = set_result(c, SD_ARG_NUM);
    if (v)
        v->f = f;
    return v ? 0 : (int)c->err.code;
}

static int h_return_str(sd_call *c, const char *s, size_t n) {
    size_t bytes;
    if (!s && n)
        return sd_api_fail(c, SD_EINVAL, "return_str of NULL");
    if (!sd_add_size(n, 1, &bytes))
        return sd_api_fail(c, SD_ENOMEM, "a string of %zu bytes", n);
    char *p = sd_alloc_raw(bytes, 1, &c->err);
    if (!p)
        return SD_ENOMEM;
    if (n)
        memcpy(p, s, n);
    p[n] = 0;
    sd_value *v = set_result(c, SD_ARG_STR);
    if (!v) {
        sd_free(p);
        return c->err.code;
    }
    v->s = p;
    v->s_len = n;
    return 0;
}

static int h_return_model(sd_call *c, sd_hmodel *m) {
    sd_handle *h = sd_api_check(c, m, H_MODEL);
    sd_value *v = h ? set_result(c, SD_ARG_MODEL) : NULL;
    if (!v)
        return c->err.code;
    v->model = sd_model_ref(h->u.model);
    if (!h->borrowed)
        sd_api_drop(c, h, H_MODEL);
    return 0;
}

static int h_return_table(sd_call *c, sd_htable *t) {
    sd_handle *h = sd_api_check(c, t, H_TABLE);
    sd_value *v = h ? set_result(c, SD_ARG_TABLE) : NULL;
    if (!v)
        return c->err.code;
    v->table = sd_table_ref(h->u.table);
    if (!h->borrowed)
        sd_api_drop(c, h, H_TABLE);
    return 0;
}

static int h_return_array(sd_call *c, const sd_harray *a) {
    sd_tensor *t;
    int rc = sd_api_array_in(c, a, &t);
    if (rc)
        return rc;
    sd_value *v = set_result(c, SD_ARG_TENSOR);
    if (!v) {
        sd_tensor_free(t);
        return c->err.code;
    }
    v->tensor = t;
    return 0;
}

/* ---- what the groups share ---- */

sd_handle *sd_api_model_of(sd_call *c, const sd_hmodel *m) {
    return sd_api_check(c, m, H_MODEL);
}

sd_handle *sd_api_writable(sd_call *c, const sd_hmodel *m) {
    sd_handle *h = sd_api_model_of(c, m);
    if (h && h->borrowed) {
        sd_api_fail(c, SD_EINVAL, "an argument model cannot be changed: clone it first");
        return NULL;
    }
    return h;
}

int sd_api_fill(sd_call *c, void *out, const void *in, size_t size) {
    uint32_t have;
    if (!out)
        return sd_api_fail(c, SD_EINVAL, "NULL as a result structure");
    memcpy(&have, out, sizeof have);
    if (have < sizeof have)
        return sd_api_fail(c, SD_EINVAL, "struct_size is not set");
    memcpy((char *)out + sizeof have, (const char *)in + sizeof have,
           (have < size ? have : size) - sizeof have);
    return 0;
}

/* ---- what built-ins use ---- */

uint64_t sd_call_seed(sd_call *c) {
    sd_value *v = sd_call_arg(c, "seed");
    if (v->kind == SD_ARG_NIL) {
        v->kind = SD_ARG_INT;
        v->i = (int64_t)c->s->run.seed;
    }
    return (uint64_t)v->i;
}

int sd_call_draws(sd_call *c) {
    int64_t n = sd_call_arg(c, "draws")->i;
    return n ? (int)n : -1;
}

int sd_call_return_table(sd_call *c, sd_status st, sd_table *t) {
    sd_value *v = st == SD_OK ? set_result(c, SD_ARG_TABLE) : NULL;
    if (!v) {
        sd_table_unref(t);
        return st != SD_OK ? (int)st : (int)c->err.code;
    }
    v->table = t;
    return 0;
}

int sd_call_return_model(sd_call *c, sd_status st, sd_model *m) {
    sd_value *v = st == SD_OK ? set_result(c, SD_ARG_MODEL) : NULL;
    if (!v) {
        sd_model_unref(m);
        return st != SD_OK ? (int)st : (int)c->err.code;
    }
    v->model = m;
    return 0;
}

int sd_call_return_tensor(sd_call *c, sd_status st, sd_tensor *t) {
    sd_value *v = st == SD_OK ? set_result(c, SD_ARG_TENSOR) : NULL;
    if (!v) {
        sd_tensor_free(t);
        return st != SD_OK ? (int)st : (int)c->err.code;
    }
    v->tensor = t;
    return 0;
}

int sd_call_return_num(sd_call *c, sd_status st, double f) {
    return st != SD_OK ? (int)st : h_return_num(c, f);
}

/* ---- random numbers, progress, log ---- */

static uint64_t h_seed(sd_call *c) {
    return c->s->run.seed;
}

static sd_hrng *h_rng_new(sd_call *c, uint64_t seed, uint64_t number) {
    sd_handle *h = sd_api_new(c, H_RNG);
    if (h)
        sd_rng_stream(&h->u.rng, seed, number, 0);
    return (sd_hrng *)h;
}

static void h_rng_release(sd_call *c, sd_hrng *r) {
    sd_api_drop(c, r, H_RNG);
}

static double h_rng_uniform(sd_call *c, sd_hrng *r) {
    sd_handle *h = sd_api_check(c, r, H_RNG);
    return h ? sd_rng_uniform(&h->u.rng) : NAN;
}

static double h_rng_gauss(sd_call *c, sd_hrng *r) {
    sd_handle *h = sd_api_check(c, r, H_RNG);
    return h ? sd_rng_gauss(&h->u.rng) : NAN;
}

static uint64_t h_rng_below(sd_call *c, sd_hrng *r, uint64_t bound) {
    sd_handle *h = sd_api_check(c, r, H_RNG);
    if (h && bound == 0)
        sd_api_fail(c, SD_EINVAL, "rng_below(0)");
    return h && bound ? sd_rng_below(&h->u.rng, bound) : 0;
}

static void h_progress(sd_call *c, const char *what, double done, double total) {
    sd_run_progress(&c->s->run, what ? what : "", done, total);
}

static bool h_cancelled(sd_call *c) {
    return sd_check_cancel(&c->err) != SD_OK;
}

static void h_log(sd_call *c, bool warning, const char *fmt, ...) {
    char text[SD_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sd_run_log(&c->s->run, warning ? SD_LOG_WARN : SD_LOG_INFO, "%s", text);
}

static int32_t h_threads(sd_call *c) {
    return sd_run_threads(&c->s->run);
}

void sd_api_fill_table(sd_host *t) {
    memset(t, 0, sizeof *t);
    t->abi_major = SD_ABI_MAJOR;
    t->abi_minor = SD_ABI_MINOR;
    t->struct_size = sizeof *t;
    t->arg_given = h_arg_given;
    t->arg_bool = h_arg_bool;
    t->arg_int = h_arg_int;
    t->arg_num = h_arg_num;
    t->arg_str = h_arg_str;
    t->arg_range = h_arg_range;
    t->arg_model = h_arg_model;
    t->arg_text = h_arg_text;
    t->arg_table = h_arg_table;
    t->arg_array = h_arg_array;
    t->fail = sd_api_fail;
    t->failed = h_failed;
    t->fail_text = h_fail_text;
    t->fail_clear = h_fail_clear;
    t->return_bool = h_return_bool;
    t->return_int = h_return_int;
    t->return_num = h_return_num;
    t->return_str = h_return_str;
    t->return_model = h_return_model;
    t->return_table = h_return_table;
    t->return_array = h_return_array;
    t->alloc = sd_api_alloc;
    t->release = h_release;
    t->seed = h_seed;
    t->rng_new = h_rng_new;
    t->rng_release = h_rng_release;
    t->rng_uniform = h_rng_uniform;
    t->rng_gauss = h_rng_gauss;
    t->rng_below = h_rng_below;
    t->progress = h_progress;
    t->cancelled = h_cancelled;
    t->log = h_log;
    t->threads = h_threads;
    sd_api_model(t);
    sd_api_text(t);
    sd_api_train(t);
    sd_api_linalg(t);
    sd_api_table(t);
    sd_api_ops(t);
}
