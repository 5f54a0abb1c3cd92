/* hostapi.c: the function table of sd_plugin.h over the library. Every handle of a call is kept in
 * a list and looked up before use, so a stale or foreign pointer is an error and not a crash. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "host/host.h"
#include "nn/forward.h"
#include "nn/net.h"
#include "num/blas.h"
#include "num/linalg.h"
#include "num/skew.h"
#include "spectral/spectral.h"

#define BLOCK_MAGIC 0x5d5b10c4b10c5d5dULL
enum { BLOCK_HEAD = 64 };

typedef enum handle_kind { H_MODEL, H_TEXT, H_TABLE, H_CALIB, H_TRAIN, H_RNG } handle_kind;
static const char *const kind_names[] = {"model", "text", "table", "calibration", "trainer", "rng"};

typedef struct calib_layer {
    int n_head, d_qk, d_model;
    double scale;
    double *x2, *qk, *q_sum, *k_sum, *diag_sum, *d_sum, *d_sum2;
    bool has_d;
} calib_layer;

typedef struct calib {
    int n_layer;
    double rows;
    calib_layer *layer;
} calib;

typedef struct trainer {
    sd_net *net;
    sd_net_ws *ws;
    float *grad, *m1, *m2;
    int64_t steps;
    int batch, tokens;
} trainer;

struct sd_handle {
    handle_kind kind;
    bool borrowed; /* an argument: not released, not changed, not a leak */
    union {
        sd_model *model;
        sd_text *text;
        sd_table *table;
        calib *calib;
        trainer *train;
        sd_rng rng;
    } u;
};

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

static int h_fail(sd_call *c, int code, const char *fmt, ...) {
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

static void *h_alloc(sd_call *c, size_t n, size_t size) {
    size_t bytes, all;
    if (!sd_mul_size(n, size, &bytes) || !sd_add_size(bytes, BLOCK_HEAD, &all)) {
        h_fail(c, SD_ENOMEM, "a block of %zu x %zu bytes is too large", n, size);
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
    h_fail(c, SD_EINVAL, "release: %p was not handed out by this call", p);
}

static void *double_block(sd_call *c, size_t n) {
    return h_alloc(c, n ? n : 1, sizeof(double));
}

static sd_handle *new_handle(sd_call *c, handle_kind kind) {
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

static sd_handle *check_handle(sd_call *c, const void *p, handle_kind kind) {
    for (size_t i = c->n_handles; i-- > 0;)
        if (c->handles[i] == p && c->handles[i]->kind == kind)
            return c->handles[i];
    h_fail(c, SD_EINVAL, "%s is not a %s of this call", p ? "a handle" : "NULL", kind_names[kind]);
    return NULL;
}

static void calib_free(calib *k) {
    if (!k)
        return;
    for (int l = 0; k->layer && l < k->n_layer; l++) {
        calib_layer *y = &k->layer[l];
        double *all[] = {y->x2, y->qk, y->q_sum, y->k_sum, y->diag_sum, y->d_sum, y->d_sum2};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            sd_free(all[i]);
    }
    sd_free(k->layer);
    sd_free(k);
}

static void train_free(trainer *t) {
    if (!t)
        return;
    sd_net_ws_free(t->ws);
    sd_net_free(t->net);
    sd_free(t->grad);
    sd_free(t->m1);
    sd_free(t->m2);
    sd_free(t);
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
        calib_free(h->u.calib);
        break;
    case H_TRAIN:
        train_free(h->u.train);
        break;
    case H_RNG:
        break;
    }
    sd_free(h);
}

static void drop_handle(sd_call *c, void *p, handle_kind kind) {
    if (!p)
        return;
    sd_handle *h = check_handle(c, p, kind);
    if (!h)
        return;
    if (h->borrowed) {
        h_fail(c, SD_EINVAL, "an argument is not released by the op");
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
        h_fail(c, SD_EPLUGIN, "the op asks for argument %.60s, which it does not declare",
               name ? name : "NULL");
        return NULL;
    }
    uint32_t kind = c->op->desc->args[i].kind;
    if (!(kinds >> kind & 1)) {
        h_fail(c, SD_EPLUGIN, "the op asks for argument %.60s, declared as %s, as another kind",
               name, sd_op_kind_name(kind));
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
        return h_fail(c, SD_EINVAL, "arg_range: a count of %d", count);
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
static void *arg_handle(sd_call *c, handle_kind kind, void *obj) {
    for (size_t i = 0; i < c->n_handles; i++)
        if (c->handles[i]->kind == kind && c->handles[i]->borrowed &&
            (void *)c->handles[i]->u.model == obj)
            return c->handles[i];
    sd_handle *h = new_handle(c, kind);
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
static int array_out(sd_call *c, const sd_tensor *t, sd_harray *out) {
    sd_tensor *f = NULL;
    sd_status st = sd_tensor_cast(t, SD_F64, &f, &c->err);
    if (st != SD_OK)
        return st;
    memset(out, 0, sizeof *out);
    out->ndim = f->ndim;
    size_t n = (size_t)sd_tensor_numel(f);
    for (int i = 0; i < f->ndim; i++)
        out->shape[i] = f->shape[i];
    out->data = double_block(c, n);
    if (out->data && n)
        memcpy(out->data, f->data, n * sizeof(double));
    sd_tensor_free(f);
    return out->data ? 0 : SD_ENOMEM;
}

static int array_in(sd_call *c, const sd_harray *a, sd_tensor **out) {
    *out = NULL;
    if (!a || a->ndim < 0 || a->ndim > SD_MAX_DIMS)
        return h_fail(c, SD_EINVAL, "an array of %d dimensions", a ? a->ndim : -1);
    sd_status st = sd_tensor_new(SD_F64, a->ndim, a->shape, out, &c->err);
    if (st != SD_OK)
        return st;
    size_t n = (size_t)sd_tensor_numel(*out);
    if (n && !a->data) {
        sd_tensor_free(*out);
        *out = NULL;
        return h_fail(c, SD_EINVAL, "an array of %zu elements without data", n);
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
        return h_fail(c, SD_EINVAL, "%s was not given", name);
    return array_out(c, v->tensor, out);
}

/* ---- results ---- */

static sd_value *set_result(sd_call *c, sd_arg_kind kind) {
    if (!c->result) {
        h_fail(c, SD_EPLUGIN, "init cannot return a value");
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
        return h_fail(c, SD_EINVAL, "return_str of NULL");
    if (!sd_add_size(n, 1, &bytes))
        return h_fail(c, SD_ENOMEM, "a string of %zu bytes", n);
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
    sd_handle *h = check_handle(c, m, H_MODEL);
    sd_value *v = h ? set_result(c, SD_ARG_MODEL) : NULL;
    if (!v)
        return c->err.code;
    v->model = sd_model_ref(h->u.model);
    if (!h->borrowed)
        drop_handle(c, h, H_MODEL);
    return 0;
}

static int h_return_table(sd_call *c, sd_htable *t) {
    sd_handle *h = check_handle(c, t, H_TABLE);
    sd_value *v = h ? set_result(c, SD_ARG_TABLE) : NULL;
    if (!v)
        return c->err.code;
    v->table = sd_table_ref(h->u.table);
    if (!h->borrowed)
        drop_handle(c, h, H_TABLE);
    return 0;
}

static int h_return_array(sd_call *c, const sd_harray *a) {
    sd_tensor *t;
    int rc = array_in(c, a, &t);
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

/* ---- what built-ins use ---- */

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

/* ---- model ---- */

static sd_handle *model_of(sd_call *c, const sd_hmodel *m) {
    return check_handle(c, m, H_MODEL);
}

static sd_handle *writable(sd_call *c, const sd_hmodel *m) {
    sd_handle *h = model_of(c, m);
    if (h && h->borrowed) {
        h_fail(c, SD_EINVAL, "an argument model cannot be changed: clone it first");
        return NULL;
    }
    return h;
}

static bool layer_ok(sd_call *c, const sd_handle *h, int32_t layer, bool global) {
    int n = sd_model_config(h->u.model)->n_layer;
    if (layer >= (global ? -1 : 0) && layer < n)
        return true;
    h_fail(c, SD_EINVAL, "expected layer 0..%d, got %d: %s has %d layers, numbered from 0", n - 1,
           layer, sd_model_name(h->u.model), n);
    return false;
}

static sd_hmodel *h_model_clone(sd_call *c, sd_hmodel *m) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return NULL;
    sd_model *copy = NULL;
    if (sd_model_clone(h->u.model, &copy, &c->err) != SD_OK)
        return NULL;
    sd_handle *n = new_handle(c, H_MODEL);
    if (!n) {
        sd_model_unref(copy);
        return NULL;
    }
    n->u.model = copy;
    return (sd_hmodel *)n;
}

static void h_model_release(sd_call *c, sd_hmodel *m) {
    drop_handle(c, m, H_MODEL);
}

static const char *h_model_name(sd_call *c, sd_hmodel *m) {
    sd_handle *h = model_of(c, m);
    return h ? sd_model_name(h->u.model) : "";
}

/* Fills no more than the caller's struct_size, which is kept. */
static int fill(sd_call *c, void *out, const void *in, size_t size) {
    uint32_t have;
    if (!out)
        return h_fail(c, SD_EINVAL, "NULL as a result structure");
    memcpy(&have, out, sizeof have);
    if (have < sizeof have)
        return h_fail(c, SD_EINVAL, "struct_size is not set");
    memcpy((char *)out + sizeof have, (const char *)in + sizeof have,
           (have < size ? have : size) - sizeof have);
    return 0;
}

static int h_model_info(sd_call *c, sd_hmodel *m, sd_hmodel_info *out) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    sd_hmodel_info i = {.n_layer = g->n_layer,
                        .d_model = g->d_model,
                        .d_ff = g->d_ff,
                        .vocab = g->vocab,
                        .n_pos = g->n_pos,
                        .causal = g->causal,
                        .tied = g->tied,
                        .rope = g->pos == SD_POS_ROPE ? g->rope.dim : 0,
                        .qkv_bias = g->qkv_bias,
                        .norm = (int32_t)g->norm,
                        .embed_scale = g->embed_scale,
                        .d_floor = g->d_floor,
                        .n_params = sd_model_n_params(h->u.model)};
    snprintf(i.family, sizeof i.family, "%s", g->family);
    return fill(c, out, &i, sizeof i);
}

static int h_model_layer(sd_call *c, sd_hmodel *m, int32_t layer, sd_hlayer_info *out) {
    sd_handle *h = model_of(c, m);
    if (!h || !layer_ok(c, h, layer, false))
        return c->err.code;
    const sd_layer_cfg *g = &sd_model_config(h->u.model)->layer[layer];
    sd_hlayer_info i = {.n_head = g->n_head,
                        .n_kv_head = g->n_kv_head,
                        .d_qk = g->d_qk,
                        .d_v = g->d_v,
                        .planes = g->planes,
                        .f_rank = g->f_rank,
                        .scale = g->scale};
    snprintf(i.kind, sizeof i.kind, "%s", g->kind);
    snprintf(i.options, sizeof i.options, "%s", g->options);
    return fill(c, out, &i, sizeof i);
}

static int h_model_set_layer(sd_call *c, sd_hmodel *m, int32_t layer, const sd_hlayer_info *in) {
    sd_handle *h = writable(c, m);
    if (!h || !layer_ok(c, h, layer, false))
        return c->err.code;
    if (!in || in->struct_size < sizeof *in)
        return h_fail(c, SD_EINVAL, "model_set_layer: struct_size is not set");
    if (!memchr(in->kind, 0, sizeof in->kind) || !memchr(in->options, 0, sizeof in->options))
        return h_fail(c, SD_EINVAL, "model_set_layer: kind or options is not terminated");
    sd_layer_cfg g = sd_model_config(h->u.model)->layer[layer];
    g.n_head = in->n_head;
    g.n_kv_head = in->n_kv_head;
    g.d_qk = in->d_qk;
    g.d_v = in->d_v;
    g.planes = in->planes;
    g.f_rank = in->f_rank;
    g.scale = in->scale;
    snprintf(g.kind, sizeof g.kind, "%s", in->kind);
    snprintf(g.options, sizeof g.options, "%s", in->options);
    return sd_model_set_layer_cfg(h->u.model, layer, &g, &c->err);
}

static size_t h_model_n_tensors(sd_call *c, sd_hmodel *m) {
    sd_handle *h = model_of(c, m);
    return h ? sd_model_n_tensors(h->u.model) : 0;
}

static const char *h_model_tensor_name(sd_call *c, sd_hmodel *m, size_t i) {
    sd_handle *h = model_of(c, m);
    return h && i < sd_model_n_tensors(h->u.model) ? sd_model_tensor_name(h->u.model, i) : NULL;
}

static int h_model_get_tensor(sd_call *c, sd_hmodel *m, const char *name, sd_harray *out) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return c->err.code;
    sd_tensor *t = NULL;
    if (sd_model_tensor(h->u.model, name ? name : "", &t, &c->err) != SD_OK)
        return c->err.code;
    int rc = array_out(c, t, out);
    sd_tensor_free(t);
    return rc;
}

static int h_model_set_tensor(sd_call *c, sd_hmodel *m, const char *name, const sd_harray *in) {
    sd_handle *h = writable(c, m);
    sd_tensor *t = NULL;
    if (!h || array_in(c, in, &t))
        return c->err.code;
    int rc = sd_model_set_tensor(h->u.model, name ? name : "", t, &c->err);
    sd_tensor_free(t);
    return rc;
}

static bool find_role(sd_call *c, const char *name, sd_role *out) {
    *out = name ? sd_role_find(name) : SD_ROLE_COUNT;
    if (*out != SD_ROLE_COUNT)
        return true;
    h_fail(c, SD_EINVAL, "unknown part \"%.40s\"", name ? name : "NULL");
    return false;
}

static bool h_model_has_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role) {
    sd_handle *h = model_of(c, m);
    sd_role r;
    return h && find_role(c, role, &r) && layer_ok(c, h, layer, sd_role_is_global(r)) &&
           sd_model_has(h->u.model, layer, r);
}

static int h_model_get_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                            sd_harray *out) {
    sd_handle *h = model_of(c, m);
    sd_role r;
    if (!h || !find_role(c, role, &r) || !layer_ok(c, h, layer, sd_role_is_global(r)))
        return c->err.code;
    sd_tensor *t = NULL;
    if (sd_model_get(h->u.model, layer, r, SD_F64, &t, &c->err) != SD_OK)
        return c->err.code;
    int rc = array_out(c, t, out);
    sd_tensor_free(t);
    return rc;
}

static int h_model_set_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                            const sd_harray *in) {
    sd_handle *h = writable(c, m);
    sd_role r;
    sd_tensor *t = NULL;
    if (!h || !find_role(c, role, &r) || !layer_ok(c, h, layer, sd_role_is_global(r)) ||
        array_in(c, in, &t))
        return c->err.code;
    int rc = sd_model_set(h->u.model, layer, r, t, &c->err);
    sd_tensor_free(t);
    return rc;
}

/* ---- text ---- */

static sd_status text_ids(sd_call *c, sd_text *t, sd_model *m, const int32_t **ids, size_t *n) {
    SD_TRY(sd_text_ids(t, m, ids, n, &c->err));
    int first = -1;
    size_t lost = sd_text_lost(t, &first);
    if (lost)
        sd_run_log(&c->s->run, SD_LOG_WARN,
                   "%s: the tokenizer of %s cannot express %zu of its bytes (the first is 0x%02X); "
                   "they are lost",
                   sd_text_name(t), sd_model_name(m), lost, (unsigned)first & 0xFF);
    return SD_OK;
}

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

sd_status sd_call_ids(sd_call *c, const char *name, sd_model *m, const int32_t **ids, size_t *n) {
    return text_ids(c, sd_call_arg(c, name)->text, m, ids, n);
}

static int h_text_ids(sd_call *c, sd_htext *t, sd_hmodel *m, const int32_t **ids, size_t *n) {
    sd_handle *ht = check_handle(c, t, H_TEXT), *hm = ht ? model_of(c, m) : NULL;
    const int32_t *p = NULL;
    size_t k = 0;
    if (!hm || text_ids(c, ht->u.text, hm->u.model, &p, &k) != SD_OK)
        return c->err.code;
    /* A copy: the text keeps one tokenizer's ids only. */
    int32_t *copy = h_alloc(c, k ? k : 1, sizeof *copy);
    if (!copy)
        return SD_ENOMEM;
    if (k)
        memcpy(copy, p, k * sizeof *copy);
    *ids = copy;
    *n = k;
    return 0;
}

static const char *h_text_name(sd_call *c, sd_htext *t) {
    sd_handle *h = check_handle(c, t, H_TEXT);
    return h ? sd_text_name(h->u.text) : "";
}

/* ---- calibrate ---- */

typedef struct capture_ctx {
    sd_call *c;
    sd_hcapture_fn fn;
    void *user;
} capture_ctx;

static sd_status on_capture(void *ctx, const sd_capture *s, sd_err *err) {
    capture_ctx *k = ctx;
    sd_hcapture v = {.struct_size = sizeof v,
                     .layer = s->layer,
                     .batch = s->batch,
                     .tokens = s->tokens,
                     .n_head = s->n_head,
                     .n_kv_head = s->n_kv_head,
                     .d_qk = s->d_qk,
                     .d_v = s->d_v,
                     .d_model = s->d_model,
                     .scale = s->scale,
                     .x = s->x,
                     .q = s->q,
                     .k = s->k,
                     .v = s->v,
                     .d = s->d};
    int rc = k->fn(k->user, &v);
    if (rc == 0)
        return SD_OK;
    if (k->c->err.code != SD_OK)
        return sd_fail(err, k->c->err.code, "%s", k->c->err.text);
    return sd_fail(err, SD_EPLUGIN, "the capture callback returned %d", rc);
}

/* Sequences of ctx tokens through the model, one at a time, stopping after the last attention. */
static sd_status stream(sd_call *c, sd_model *m, const int32_t *ids, size_t n, int ctx, int max,
                        sd_status (*cb)(void *, const sd_capture *, sd_err *), void *user) {
    const sd_config *g = sd_model_config(m);
    if (n == 0 || !ids)
        return sd_fail(&c->err, SD_EINVAL, "a text without tokens");
    if (ctx < 0 || max < 0)
        return sd_fail(&c->err, SD_EINVAL, "ctx %d, max_seqs %d: below 0", ctx, max);
    if (ctx == 0)
        ctx = g->n_pos > 0 && g->n_pos < 512 ? g->n_pos : 512;
    if ((size_t)ctx > n)
        ctx = (int)n;
    size_t seqs = n / (size_t)ctx;
    if (max > 0 && seqs > (size_t)max)
        seqs = (size_t)max;
    sd_forward_opts o = {
        .run = &c->s->run, .capture = cb, .capture_ctx = user, .stop_after_capture = true};
    for (size_t s = 0; s < seqs; s++) {
        sd_run_progress(&c->s->run, "calibrating", (double)s, (double)seqs);
        sd_err e = {0};
        sd_status st = sd_check_cancel(&e);
        if (st == SD_OK)
            st = sd_forward(m, ids + s * (size_t)ctx, 1, ctx, &o, NULL, NULL, &e);
        if (st != SD_OK) {
            c->err = e;
            return st;
        }
    }
    sd_run_progress(&c->s->run, "calibrating", (double)seqs, (double)seqs);
    return SD_OK;
}

static int h_capture(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                     int32_t max_seqs, sd_hcapture_fn fn, void *user) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return c->err.code;
    if (!fn)
        return h_fail(c, SD_EINVAL, "capture without a callback");
    capture_ctx k = {c, fn, user};
    return stream(c, h->u.model, ids, n, ctx, max_seqs, on_capture, &k);
}

static sd_status calib_alloc(calib_layer *y, const sd_capture *s, sd_err *err) {
    size_t d2 = 2 * (size_t)s->d_qk, d1 = (size_t)s->d_model + 1, nh = (size_t)s->n_head;
    y->n_head = s->n_head;
    y->d_qk = s->d_qk;
    y->d_model = s->d_model;
    y->scale = s->scale;
    y->x2 = sd_alloc(d1 * d1, sizeof(double), err);
    y->qk = sd_alloc(nh * d2 * d2, sizeof(double), err);
    y->q_sum = sd_alloc(nh * d2 / 2, sizeof(double), err);
    y->k_sum = sd_alloc(nh * d2 / 2, sizeof(double), err);
    y->diag_sum = sd_alloc(nh, sizeof(double), err);
    y->d_sum = sd_alloc(nh, sizeof(double), err);
    y->d_sum2 = sd_alloc(nh, sizeof(double), err);
    return y->x2 && y->qk && y->q_sum && y->k_sum && y->diag_sum && y->d_sum && y->d_sum2
               ? SD_OK
               : SD_ENOMEM;
}

static sd_status calib_add(void *ctx, const sd_capture *s, sd_err *err) {
    calib *k = ctx;
    calib_layer *y = &k->layer[s->layer];
    if (!y->x2)
        SD_TRY(calib_alloc(y, s, err));
    size_t rows = (size_t)s->batch * (size_t)s->tokens, d = (size_t)s->d_qk, nh = (size_t)s->n_head;
    size_t nkv = (size_t)s->n_kv_head, dm = (size_t)s->d_model, d1 = dm + 1;
    if (s->layer == 0)
        k->rows += (double)rows;
    size_t wide = d1 > 2 * d ? d1 : 2 * d, cells;
    double *u = sd_mul_size(rows, wide, &cells) ? sd_alloc_raw(cells, sizeof *u, err) : NULL;
    if (!u)
        return sd_fail(err, SD_ENOMEM, "out of memory for calibration rows");
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < dm; j++)
            u[i * d1 + j] = s->x[i * dm + j];
        u[i * d1 + dm] = 1;
    }
    sd_gemm_f64(true, false, d1, d1, rows, 1, u, d1, u, d1, 1, y->x2, d1);
    for (size_t h = 0; h < nh; h++) { // u: (rows, 2d) = [q k]
        size_t g = h / (nh / nkv);
        for (size_t i = 0; i < rows; i++) {
            const float *q = s->q + (i * nh + h) * d, *kk = s->k + (i * nkv + g) * d;
            double dot = 0;
            for (size_t j = 0; j < d; j++) {
                u[i * 2 * d + j] = q[j];
                u[i * 2 * d + d + j] = kk[j];
                y->q_sum[h * d + j] += q[j];
                y->k_sum[h * d + j] += kk[j];
                dot += (double)q[j] * kk[j];
            }
            y->diag_sum[h] += s->scale * dot;
            if (s->d) {
                double v = s->d[i * nh + h];
                y->d_sum[h] += v;
                y->d_sum2[h] += v * v;
                y->has_d = true;
            }
        }
        double *g2 = y->qk + h * 4 * d * d;
        sd_gemm_f64(true, false, 2 * d, 2 * d, rows, 1, u, 2 * d, u, 2 * d, 1, g2, 2 * d);
    }
    sd_free(u);
    return SD_OK;
}

static sd_hcalib *h_calibrate(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                              int32_t max_seqs) {
    sd_handle *h = model_of(c, m);
    calib *k = h ? sd_alloc(1, sizeof *k, &c->err) : NULL;
    if (!k)
        return NULL;
    k->n_layer = sd_model_config(h->u.model)->n_layer;
    k->layer = sd_alloc((size_t)k->n_layer, sizeof *k->layer, &c->err);
    if (!k->layer || stream(c, h->u.model, ids, n, ctx, max_seqs, calib_add, k) != SD_OK) {
        calib_free(k);
        return NULL;
    }
    sd_handle *out = new_handle(c, H_CALIB);
    if (!out) {
        calib_free(k);
        return NULL;
    }
    out->u.calib = k;
    return (sd_hcalib *)out;
}

static int calib_copy(sd_call *c, const double *src, double scale, int ndim, const int64_t *shape,
                      sd_harray *out) {
    size_t n = 1;
    memset(out, 0, sizeof *out);
    out->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        out->shape[i] = shape[i];
        n *= (size_t)shape[i];
    }
    out->data = double_block(c, n);
    if (!out->data)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        out->data[i] = src[i] * scale;
    return 0;
}

static int h_calib_get(sd_call *c, sd_hcalib *p, int32_t layer, const char *what, sd_harray *out) {
    sd_handle *h = check_handle(c, p, H_CALIB);
    if (!h)
        return c->err.code;
    const calib *k = h->u.calib;
    if (layer < 0 || layer >= k->n_layer || !k->layer[layer].x2)
        return h_fail(c, SD_EINVAL, "no calibration of layer %d", layer);
    const calib_layer *y = &k->layer[layer];
    double inv = 1.0 / k->rows;
    int64_t H = y->n_head, d = y->d_qk, d1 = y->d_model + 1;
    if (!what)
        what = "NULL";
    if (strcmp(what, "rows") == 0)
        return calib_copy(c, &k->rows, 1, 1, (int64_t[]){1}, out);
    if (strcmp(what, "x2") == 0)
        return calib_copy(c, y->x2, inv, 2, (int64_t[]){d1, d1}, out);
    if (strcmp(what, "qk") == 0)
        return calib_copy(c, y->qk, inv, 3, (int64_t[]){H, 2 * d, 2 * d}, out);
    if (strcmp(what, "q_mean") == 0)
        return calib_copy(c, y->q_sum, inv, 2, (int64_t[]){H, d}, out);
    if (strcmp(what, "k_mean") == 0)
        return calib_copy(c, y->k_sum, inv, 2, (int64_t[]){H, d}, out);
    if (strcmp(what, "diag_mean") == 0)
        return calib_copy(c, y->diag_sum, inv, 1, (int64_t[]){H}, out);
    bool sd = strcmp(what, "d_sd") == 0;
    if (sd || strcmp(what, "d_mean") == 0) {
        if (!y->has_d)
            return h_fail(c, SD_EINVAL, "layer %d has no S-D diagonal", layer);
        int rc = calib_copy(c, y->d_sum, inv, 1, (int64_t[]){H}, out);
        for (int64_t i = 0; rc == 0 && sd && i < H; i++) {
            double mean = out->data[i], var = y->d_sum2[i] * inv - mean * mean;
            out->data[i] = sqrt(var > 0 ? var : 0);
        }
        return rc;
    }
    return h_fail(c, SD_EINVAL, "calibration holds no \"%.40s\"", what);
}

static void h_calib_release(sd_call *c, sd_hcalib *h) {
    drop_handle(c, h, H_CALIB);
}

/* ---- evaluate ---- */

static int h_evaluate(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                      int32_t stride, sd_hscore *out) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return c->err.code;
    sd_eval_opts o = {.ctx = ctx, .stride = stride, .expect_tokens = -1};
    sd_table *t = NULL;
    if (sd_eval_ppl(h->u.model, ids, n, &o, &c->s->run, &t, &c->err) != SD_OK)
        return c->err.code;
    sd_hscore s = {.windows = (int32_t)sd_table_num(t, 0, sd_table_find_col(t, "windows")),
                   .tokens = (int64_t)sd_table_num(t, 0, sd_table_find_col(t, "tokens")),
                   .nll = sd_table_num(t, 0, sd_table_find_col(t, "nll")),
                   .ppl = sd_table_num(t, 0, sd_table_find_col(t, "ppl"))};
    sd_table_unref(t);
    return fill(c, out, &s, sizeof s);
}

static int h_logits(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, sd_harray *out) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    if (n == 0 || n > INT32_MAX)
        return h_fail(c, SD_EINVAL, "logits of %zu tokens", n);
    size_t cells;
    if (!sd_mul_size(n, (size_t)g->vocab, &cells))
        return h_fail(c, SD_ENOMEM, "logits of %zu tokens", n);
    float *f = sd_alloc_raw(cells, sizeof *f, &c->err);
    if (!f)
        return SD_ENOMEM;
    sd_forward_opts o = {.run = &c->s->run};
    if (sd_forward(h->u.model, ids, 1, (int)n, &o, NULL, f, &c->err) != SD_OK) {
        sd_free(f);
        return c->err.code;
    }
    memset(out, 0, sizeof *out);
    out->ndim = 2;
    out->shape[0] = (int64_t)n;
    out->shape[1] = g->vocab;
    out->data = double_block(c, cells);
    for (size_t i = 0; out->data && i < cells; i++)
        out->data[i] = f[i];
    sd_free(f);
    return out->data ? 0 : SD_ENOMEM;
}

/* ---- train ---- */

static sd_htrain *h_train_new(sd_call *c, sd_hmodel *m, int32_t batch, int32_t tokens) {
    sd_handle *h = model_of(c, m);
    if (!h)
        return NULL;
    if (batch < 1 || tokens < 1) {
        h_fail(c, SD_EINVAL, "a batch of %d x %d tokens", batch, tokens);
        return NULL;
    }
    trainer *t = sd_alloc(1, sizeof *t, &c->err);
    if (!t)
        return NULL;
    t->batch = batch;
    t->tokens = tokens;
    sd_net_plan plan = {
        .batch = batch, .tokens = tokens, .threads = c->s->run.threads, .backward = true};
    sd_handle *out = NULL;
    if (sd_net_new(h->u.model, SD_F32, &t->net, &c->err) == SD_OK &&
        sd_net_ws_new(t->net, &plan, &t->ws, &c->err) == SD_OK &&
        (t->grad = sd_alloc(sd_net_size(t->net), sizeof(float), &c->err)) != NULL &&
        (out = new_handle(c, H_TRAIN)) != NULL) {
        out->u.train = t;
        return (sd_htrain *)out;
    }
    train_free(t);
    return NULL;
}

static trainer *train_of(sd_call *c, const sd_htrain *t) {
    sd_handle *h = check_handle(c, t, H_TRAIN);
    return h ? h->u.train : NULL;
}

static size_t h_train_size(sd_call *c, sd_htrain *p) {
    trainer *t = train_of(c, p);
    return t ? sd_net_size(t->net) : 0;
}

static float *h_train_params(sd_call *c, sd_htrain *p) {
    trainer *t = train_of(c, p);
    return t ? sd_net_params(t->net) : NULL;
}

static float *h_train_grad(sd_call *c, sd_htrain *p) {
    trainer *t = train_of(c, p);
    return t ? t->grad : NULL;
}

static size_t h_train_n_slices(sd_call *c, sd_htrain *p) {
    trainer *t = train_of(c, p);
    return t ? sd_net_n_slices(t->net) : 0;
}

static int h_train_slice(sd_call *c, sd_htrain *p, size_t i, sd_hslice *out) {
    trainer *t = train_of(c, p);
    if (!t)
        return c->err.code;
    if (i >= sd_net_n_slices(t->net))
        return h_fail(c, SD_EINVAL, "slice %zu of %zu", i, sd_net_n_slices(t->net));
    const sd_net_slice *s = sd_net_slice_at(t->net, i);
    sd_hslice v = {
        .layer = s->layer, .offset = (int64_t)s->offset, .n = (int64_t)s->n, .decay = s->decay};
    snprintf(v.role, sizeof v.role, "%s", sd_role_name(s->role));
    snprintf(v.name, sizeof v.name, "%s", s->name);
    return fill(c, out, &v, sizeof v);
}

static bool train_batch(sd_call *c, const trainer *t, const int32_t *ids, const int32_t *targets,
                        int32_t batch, int32_t tokens, sd_net_batch *out) {
    int vocab = sd_net_config(t->net)->vocab;
    if (!ids || !targets || batch < 1 || tokens < 1 || batch > t->batch || tokens > t->tokens) {
        h_fail(c, SD_EINVAL, "a batch of %d x %d tokens; the trainer was made for %d x %d", batch,
               tokens, t->batch, t->tokens);
        return false;
    }
    for (size_t i = 0; i < (size_t)batch * (size_t)tokens; i++)
        if (ids[i] < 0 || ids[i] >= vocab || targets[i] < -1 || targets[i] >= vocab) {
            h_fail(c, SD_EINVAL, "token or target %zu is outside 0..%d", i, vocab - 1);
            return false;
        }
    *out = (sd_net_batch){.batch = batch, .tokens = tokens, .ids = ids, .targets = targets};
    return true;
}

static int train_result(sd_call *c, double sum, int64_t count, double *loss) {
    if (count == 0)
        return h_fail(c, SD_EINVAL, "a batch without scored targets");
    double v = sum / (double)count;
    if (loss)
        *loss = v;
    return isfinite(v) ? 0 : h_fail(c, SD_ENUMERIC, "the loss is not finite");
}

static int h_train_loss(sd_call *c, sd_htrain *p, const int32_t *ids, const int32_t *targets,
                        int32_t batch, int32_t tokens, double *loss) {
    trainer *t = train_of(c, p);
    sd_net_batch b;
    double sum = 0;
    int64_t count = 0;
    if (!t || !train_batch(c, t, ids, targets, batch, tokens, &b) ||
        sd_net_loss(t->net, t->ws, &b, &sum, &count, NULL, &c->err) != SD_OK)
        return c->err.code;
    return train_result(c, sum, count, loss);
}

static void h_train_zero(sd_call *c, sd_htrain *p) {
    trainer *t = train_of(c, p);
    if (t)
        memset(t->grad, 0, sd_net_size(t->net) * sizeof *t->grad);
}

static int h_train_backward(sd_call *c, sd_htrain *p, const int32_t *ids, const int32_t *targets,
                            int32_t batch, int32_t tokens, double scale, double *loss) {
    trainer *t = train_of(c, p);
    sd_net_batch b;
    double sum = 0;
    int64_t count = 0, scored = 0;
    if (!t || !train_batch(c, t, ids, targets, batch, tokens, &b))
        return c->err.code;
    for (size_t i = 0; i < (size_t)batch * (size_t)tokens; i++)
        scored += targets[i] >= 0;
    if (scored == 0)
        return train_result(c, 0, 0, loss);
    if (sd_net_backward(t->net, t->ws, &b, scale / (double)scored, t->grad, &sum, &count, NULL,
                        &c->err) != SD_OK)
        return c->err.code;
    return train_result(c, sum, count, loss);
}

static int h_train_step(sd_call *c, sd_htrain *p, const sd_hadamw *o, const unsigned char *mask) {
    trainer *t = train_of(c, p);
    if (!t)
        return c->err.code;
    if (!o || o->struct_size < sizeof *o)
        return h_fail(c, SD_EINVAL, "train_step: struct_size is not set");
    if (!(isfinite(o->lr) && o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 &&
          o->eps > 0 && isfinite(o->weight_decay)))
        return h_fail(c, SD_EINVAL, "train_step: lr %g, betas %g %g, eps %g, decay %g", o->lr,
                      o->beta1, o->beta2, o->eps, o->weight_decay);
    size_t size = sd_net_size(t->net), n = sd_net_n_slices(t->net);
    if (!t->m1)
        t->m1 = sd_alloc(size, sizeof(float), &c->err);
    if (!t->m2)
        t->m2 = sd_alloc(size, sizeof(float), &c->err);
    if (!t->m1 || !t->m2)
        return SD_ENOMEM;
    double norm2 = 0;
    for (size_t s = 0; s < n; s++) {
        const sd_net_slice *y = sd_net_slice_at(t->net, s);
        if (mask && !mask[s])
            continue;
        double part = 0;
        for (size_t i = 0; i < y->n; i++)
            part += (double)t->grad[y->offset + i] * t->grad[y->offset + i];
        if (!isfinite(part))
            return h_fail(c, SD_ENUMERIC, "the gradient of %s is not finite", y->name);
        norm2 += part;
    }
    double norm = sqrt(norm2), gs = o->clip > 0 && norm > o->clip ? o->clip / norm : 1;
    t->steps++;
    double c1 = 1 - pow(o->beta1, (double)t->steps), c2 = 1 - pow(o->beta2, (double)t->steps);
    float *w = sd_net_params(t->net);
    for (size_t s = 0; s < n; s++) {
        const sd_net_slice *y = sd_net_slice_at(t->net, s);
        if (mask && !mask[s])
            continue;
        double wd = y->decay ? o->lr * o->weight_decay : 0;
        for (size_t i = y->offset; i < y->offset + y->n; i++) {
            double g = gs * t->grad[i];
            double a = o->beta1 * t->m1[i] + (1 - o->beta1) * g;
            double b = o->beta2 * t->m2[i] + (1 - o->beta2) * g * g;
            t->m1[i] = (float)a;
            t->m2[i] = (float)b;
            w[i] = (float)(w[i] - wd * w[i] - o->lr * (a / c1) / (sqrt(b / c2) + o->eps));
        }
    }
    return 0;
}

static int h_train_store(sd_call *c, sd_htrain *p, sd_hmodel *m) {
    trainer *t = train_of(c, p);
    sd_handle *h = t ? writable(c, m) : NULL;
    return h ? (int)sd_net_store(t->net, h->u.model, &c->err) : (int)c->err.code;
}

static void h_train_release(sd_call *c, sd_htrain *t) {
    drop_handle(c, t, H_TRAIN);
}

/* ---- linear algebra ---- */

static bool ptrs(sd_call *c, const char *what, const void *a, const void *b) {
    if (a && b)
        return true;
    h_fail(c, SD_EINVAL, "%s: NULL matrix", what);
    return false;
}

static int h_matmul(sd_call *c, bool ta, bool tb, size_t m, size_t n, size_t k, double alpha,
                    const double *a, size_t lda, const double *b, size_t ldb, double beta,
                    double *out, size_t ldc) {
    if (m == 0 || n == 0)
        return 0;
    if (!ptrs(c, "matmul", a, b) || !ptrs(c, "matmul", out, out))
        return c->err.code;
    if (lda < (ta ? m : k) || ldb < (tb ? k : n) || ldc < n)
        return h_fail(c, SD_EINVAL, "matmul (%zu, %zu, %zu): row lengths %zu, %zu, %zu", m, n, k,
                      lda, ldb, ldc);
    sd_gemm_f64(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, out, ldc);
    return 0;
}

static int h_eigh(sd_call *c, size_t n, const double *a, double *w, double *v) {
    return n == 0 || ptrs(c, "eigh", a, w) ? (int)sd_eigh(n, a, w, v, &c->err) : (int)c->err.code;
}

static int h_eig(sd_call *c, size_t n, const double *a, double *re, double *im) {
    return n == 0 || (ptrs(c, "eig", a, re) && ptrs(c, "eig", im, im))
               ? (int)sd_eig(n, a, re, im, NULL, &c->err)
               : (int)c->err.code;
}

static int h_svd(sd_call *c, size_t m, size_t n, const double *a, double *s, double *u,
                 double *vt) {
    if (!u != !vt)
        return h_fail(c, SD_EINVAL, "svd: u and vt go together");
    return m == 0 || n == 0 || ptrs(c, "svd", a, s) ? (int)sd_svd(m, n, a, s, u, vt, &c->err)
                                                    : (int)c->err.code;
}

static int h_qr(sd_call *c, size_t m, size_t n, const double *a, double *q, double *r) {
    return m == 0 || n == 0 || (ptrs(c, "qr", a, q) && ptrs(c, "qr", r, r))
               ? (int)sd_qr(m, n, a, q, r, &c->err)
               : (int)c->err.code;
}

static int h_skew_planes(sd_call *c, size_t n, const double *b, double *sigma, double *x,
                         double *y) {
    if (!x != !y)
        return h_fail(c, SD_EINVAL, "skew_planes: x and y go together");
    return n < 2 || ptrs(c, "skew_planes", b, sigma)
               ? (int)sd_skew_planes(n, b, sigma, x, y, &c->err)
               : (int)c->err.code;
}

static int h_kernel_planes(sd_call *c, size_t d1, size_t d, const double *wq, const double *wk,
                           size_t planes, double *a, double *b, size_t f_rank, double *f,
                           double *lambda) {
    if (!ptrs(c, "kernel_planes", wq, wk))
        return c->err.code;
    if (!a != !b || !f != !lambda)
        return h_fail(c, SD_EINVAL, "kernel_planes: a and b, f and lambda go together");
    return sd_kernel_planes(d1, d, wq, wk, planes, a, b, f_rank, f, lambda, &c->err);
}

/* ---- tables ---- */

static sd_htable *h_table_new(sd_call *c, const char *kind) {
    sd_table *t = sd_table_new(kind ? kind : "table", &c->err);
    sd_handle *h = t ? new_handle(c, H_TABLE) : NULL;
    if (!h) {
        sd_table_unref(t);
        return NULL;
    }
    h->u.table = t;
    return (sd_htable *)h;
}

static void h_table_release(sd_call *c, sd_htable *t) {
    drop_handle(c, t, H_TABLE);
}

static sd_table *table_of(sd_call *c, const sd_htable *t, bool write) {
    sd_handle *h = check_handle(c, t, H_TABLE);
    if (h && write && h->borrowed) {
        h_fail(c, SD_EINVAL, "an argument table cannot be changed");
        return NULL;
    }
    return h ? h->u.table : NULL;
}

static int h_table_heading(sd_call *c, sd_htable *p, const char *text) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_heading(t, &c->err, "%s", text ? text : "") : (int)c->err.code;
}

static int h_table_note(sd_call *c, sd_htable *p, const char *text) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_note(t, &c->err, "%s", text ? text : "") : (int)c->err.code;
}

static int h_table_meta_num(sd_call *c, sd_htable *p, const char *name, double v) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_meta_num(t, name ? name : "", v, &c->err) : (int)c->err.code;
}

static int h_table_meta_str(sd_call *c, sd_htable *p, const char *name, const char *v) {
    sd_table *t = table_of(c, p, true);
    return t ? (int)sd_table_meta_str(t, name ? name : "", v ? v : "", &c->err) : (int)c->err.code;
}

static int h_table_column(sd_call *c, sd_htable *p, const char *name, int kind, const char *doc,
                          bool wide) {
    static const sd_col_kind kinds[] = {SD_COL_INT, SD_COL_NUM, SD_COL_STR, SD_COL_VEC};
    sd_table *t = table_of(c, p, true);
    if (!t)
        return c->err.code;
    if (!name || !name[0] || kind < 0 || kind > SD_TABLE_VEC)
        return h_fail(c, SD_EINVAL, "table_column: name \"%.40s\", kind %d", name ? name : "NULL",
                      kind);
    if (sd_table_find_col(t, name) >= 0)
        return h_fail(c, SD_EINVAL, "column %.40s exists already", name);
    return sd_table_add_column(t, name, kinds[kind], doc ? doc : "", wide, NULL, &c->err);
}

static int h_table_row(sd_call *c, sd_htable *p) {
    sd_table *t = table_of(c, p, true);
    int row = -1;
    return t && sd_table_add_row(t, &row, &c->err) == SD_OK ? row : -1;
}

/* The column's index when row and column exist (and the column has the kind), else -1. */
static int cell(sd_call *c, const sd_table *t, int32_t row, const char *col, int kind) {
    int k = col ? sd_table_find_col(t, col) : -1;
    if (k < 0 || row < 0 || row >= sd_table_rows(t)) {
        h_fail(c, SD_EINVAL, "no cell at row %d, column %.40s", row, col ? col : "NULL");
        return -1;
    }
    if (kind >= 0 && (int)sd_table_col_kind(t, k) != kind) {
        h_fail(c, SD_EINVAL, "column %.40s has another kind", col);
        return -1;
    }
    return k;
}

static int h_table_set_int(sd_call *c, sd_htable *p, int32_t row, const char *col, int64_t v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_INT) < 0)
        return c->err.code;
    sd_table_set_int(t, row, col, v);
    return 0;
}

static int h_table_set_num(sd_call *c, sd_htable *p, int32_t row, const char *col, double v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_NUM) < 0)
        return c->err.code;
    sd_table_set_num(t, row, col, v);
    return 0;
}

static int h_table_set_str(sd_call *c, sd_htable *p, int32_t row, const char *col, const char *v) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_STR) < 0)
        return c->err.code;
    return sd_table_set_str(t, row, col, v ? v : "", &c->err);
}

static int h_table_set_vec(sd_call *c, sd_htable *p, int32_t row, const char *col, const double *v,
                           size_t n) {
    sd_table *t = table_of(c, p, true);
    if (!t || cell(c, t, row, col, SD_COL_VEC) < 0)
        return c->err.code;
    if (n && !v)
        return h_fail(c, SD_EINVAL, "table_set_vec of NULL");
    return sd_table_set_vec(t, row, col, v, n, &c->err);
}

static int32_t h_table_n_rows(sd_call *c, sd_htable *p) {
    sd_table *t = table_of(c, p, false);
    return t ? sd_table_rows(t) : 0;
}

static bool h_table_has_column(sd_call *c, sd_htable *p, const char *col) {
    sd_table *t = table_of(c, p, false);
    return t && col && sd_table_find_col(t, col) >= 0;
}

static double h_table_get_num(sd_call *c, sd_htable *p, int32_t row, const char *col) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, -1) : -1;
    if (k < 0 || !sd_table_has(t, row, k))
        return NAN;
    sd_col_kind kind = sd_table_col_kind(t, k);
    if (kind == SD_COL_INT || kind == SD_COL_NUM)
        return sd_table_num(t, row, k);
    h_fail(c, SD_EINVAL, "column %.40s holds no numbers", col);
    return NAN;
}

static const char *h_table_get_str(sd_call *c, sd_htable *p, int32_t row, const char *col) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, SD_COL_STR) : -1;
    return k >= 0 && sd_table_has(t, row, k) ? sd_table_str(t, row, k) : NULL;
}

static const double *h_table_get_vec(sd_call *c, sd_htable *p, int32_t row, const char *col,
                                     size_t *n) {
    sd_table *t = table_of(c, p, false);
    int k = t ? cell(c, t, row, col, SD_COL_VEC) : -1;
    size_t have = 0;
    const double *v = k >= 0 && sd_table_has(t, row, k) ? sd_table_vec(t, row, k, &have) : NULL;
    if (n)
        *n = have;
    return v;
}

/* ---- random numbers, progress, log ---- */

static uint64_t h_seed(sd_call *c) {
    return c->s->run.seed;
}

static sd_hrng *h_rng_new(sd_call *c, uint64_t seed, uint64_t number) {
    sd_handle *h = new_handle(c, H_RNG);
    if (h)
        sd_rng_stream(&h->u.rng, seed, number, 0);
    return (sd_hrng *)h;
}

static void h_rng_release(sd_call *c, sd_hrng *r) {
    drop_handle(c, r, H_RNG);
}

static double h_rng_uniform(sd_call *c, sd_hrng *r) {
    sd_handle *h = check_handle(c, r, H_RNG);
    return h ? sd_rng_uniform(&h->u.rng) : NAN;
}

static double h_rng_gauss(sd_call *c, sd_hrng *r) {
    sd_handle *h = check_handle(c, r, H_RNG);
    return h ? sd_rng_gauss(&h->u.rng) : NAN;
}

static uint64_t h_rng_below(sd_call *c, sd_hrng *r, uint64_t bound) {
    sd_handle *h = check_handle(c, r, H_RNG);
    if (h && bound == 0)
        h_fail(c, SD_EINVAL, "rng_below(0)");
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

const sd_host sd_host_table = {
    .abi_major = SD_ABI_MAJOR,
    .abi_minor = SD_ABI_MINOR,
    .struct_size = sizeof(sd_host),
    .arg_given = h_arg_given,
    .arg_bool = h_arg_bool,
    .arg_int = h_arg_int,
    .arg_num = h_arg_num,
    .arg_str = h_arg_str,
    .arg_range = h_arg_range,
    .arg_model = h_arg_model,
    .arg_text = h_arg_text,
    .arg_table = h_arg_table,
    .arg_array = h_arg_array,
    .fail = h_fail,
    .failed = h_failed,
    .fail_text = h_fail_text,
    .fail_clear = h_fail_clear,
    .return_bool = h_return_bool,
    .return_int = h_return_int,
    .return_num = h_return_num,
    .return_str = h_return_str,
    .return_model = h_return_model,
    .return_table = h_return_table,
    .return_array = h_return_array,
    .alloc = h_alloc,
    .release = h_release,
    .model_clone = h_model_clone,
    .model_release = h_model_release,
    .model_name = h_model_name,
    .model_info = h_model_info,
    .model_layer = h_model_layer,
    .model_set_layer = h_model_set_layer,
    .model_n_tensors = h_model_n_tensors,
    .model_tensor_name = h_model_tensor_name,
    .model_get_tensor = h_model_get_tensor,
    .model_set_tensor = h_model_set_tensor,
    .model_has_part = h_model_has_part,
    .model_get_part = h_model_get_part,
    .model_set_part = h_model_set_part,
    .text_ids = h_text_ids,
    .text_name = h_text_name,
    .capture = h_capture,
    .calibrate = h_calibrate,
    .calib_get = h_calib_get,
    .calib_release = h_calib_release,
    .evaluate = h_evaluate,
    .logits = h_logits,
    .train_new = h_train_new,
    .train_size = h_train_size,
    .train_params = h_train_params,
    .train_grad = h_train_grad,
    .train_n_slices = h_train_n_slices,
    .train_slice = h_train_slice,
    .train_loss = h_train_loss,
    .train_zero = h_train_zero,
    .train_backward = h_train_backward,
    .train_step = h_train_step,
    .train_store = h_train_store,
    .train_release = h_train_release,
    .matmul = h_matmul,
    .eigh = h_eigh,
    .eig = h_eig,
    .svd = h_svd,
    .qr = h_qr,
    .skew_planes = h_skew_planes,
    .kernel_planes = h_kernel_planes,
    .table_new = h_table_new,
    .table_release = h_table_release,
    .table_heading = h_table_heading,
    .table_note = h_table_note,
    .table_meta_num = h_table_meta_num,
    .table_meta_str = h_table_meta_str,
    .table_column = h_table_column,
    .table_row = h_table_row,
    .table_set_int = h_table_set_int,
    .table_set_num = h_table_set_num,
    .table_set_str = h_table_set_str,
    .table_set_vec = h_table_set_vec,
    .table_n_rows = h_table_n_rows,
    .table_has_column = h_table_has_column,
    .table_get_num = h_table_get_num,
    .table_get_str = h_table_get_str,
    .table_get_vec = h_table_get_vec,
    .seed = h_seed,
    .rng_new = h_rng_new,
    .rng_release = h_rng_release,
    .rng_uniform = h_rng_uniform,
    .rng_gauss = h_rng_gauss,
    .rng_below = h_rng_below,
    .progress = h_progress,
    .cancelled = h_cancelled,
    .log = h_log,
    .threads = h_threads,
};
