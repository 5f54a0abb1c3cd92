/* api_text.c: the plugin table's groups "text", "calibrate" and "evaluate". */
#include <math.h>
#include <string.h>

#include "host/api.h"
#include "nn/forward.h"
#include "spectral/calib.h"
#include "spectral/spectral.h"

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

sd_status sd_call_ids(sd_call *c, const char *name, sd_model *m, const int32_t **ids, size_t *n) {
    return text_ids(c, sd_call_arg(c, name)->text, m, ids, n);
}

static int h_text_ids(sd_call *c, sd_htext *t, sd_hmodel *m, const int32_t **ids, size_t *n) {
    sd_handle *ht = sd_api_check(c, t, H_TEXT), *hm = ht ? sd_api_model_of(c, m) : NULL;
    const int32_t *p = NULL;
    size_t k = 0;
    if (!hm || text_ids(c, ht->u.text, hm->u.model, &p, &k) != SD_OK)
        return c->err.code;
    /* A copy: the text keeps one tokenizer's ids only. */
    int32_t *copy = sd_api_alloc(c, k ? k : 1, sizeof *copy);
    if (!copy)
        return SD_ENOMEM;
    if (k)
        memcpy(copy, p, k * sizeof *copy);
    *ids = copy;
    *n = k;
    return 0;
}

static const char *h_text_name(sd_call *c, sd_htext *t) {
    sd_handle *h = sd_api_check(c, t, H_TEXT);
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

static int h_capture(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                     int32_t max_seqs, sd_hcapture_fn fn, void *user) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    if (!fn)
        return sd_api_fail(c, SD_EINVAL, "capture without a callback");
    capture_ctx k = {c, fn, user};
    sd_err e = {SD_OK, ""}; /* not the call's: the callback's own failure is there */
    sd_status st =
        sd_calib_stream(h->u.model, ids, n, ctx, max_seqs, false, on_capture, &k, &c->s->run, &e);
    if (st != SD_OK)
        c->err = e;
    return st;
}

static sd_hcalib *h_calibrate(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                              int32_t max_seqs) {
    sd_handle *h = sd_api_model_of(c, m);
    sd_calib *k = NULL;
    if (!h ||
        sd_calib_new(h->u.model, ids, n, ctx, max_seqs, NULL, &c->s->run, &k, &c->err) != SD_OK)
        return NULL;
    sd_handle *out = sd_api_new(c, H_CALIB);
    if (!out) {
        sd_calib_free(k);
        return NULL;
    }
    out->u.calib = k;
    return (sd_hcalib *)out;
}

/* A copy of v as an array of the call. */
static int calib_copy(sd_call *c, const double *v, int ndim, const int64_t *shape, sd_harray *out) {
    size_t n = 1;
    memset(out, 0, sizeof *out);
    out->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        out->shape[i] = shape[i];
        n *= (size_t)shape[i];
    }
    out->data = sd_api_doubles(c, n);
    if (!out->data)
        return SD_ENOMEM;
    memcpy(out->data, v, n * sizeof *v);
    return 0;
}

static int h_calib_get(sd_call *c, sd_hcalib *p, int32_t layer, const char *what, sd_harray *out) {
    sd_handle *h = sd_api_check(c, p, H_CALIB);
    if (!h)
        return c->err.code;
    const sd_calib *k = h->u.calib;
    if (layer < 0 || layer >= sd_calib_n_layer(k) || !sd_calib_at(k, layer)->x2)
        return sd_api_fail(c, SD_EINVAL, "no calibration of layer %d", layer);
    const sd_calib_layer *y = sd_calib_at(k, layer);
    int64_t H = y->n_head, d = y->d_qk, d1 = y->d_model + 1, dv = y->d_v;
    const struct {
        const char *name;
        const double *v;
        int ndim;
        int64_t shape[3];
        const char *lacks;
    } held[] = {{"rows", &y->rows, 1, {1}, NULL},
                {"x2", y->x2, 2, {d1, d1}, NULL},
                {"qk", y->qk, 3, {H, 2 * d, 2 * d}, "queries and keys"},
                {"o2", y->o2, 3, {H, dv, dv}, NULL},
                {"q_mean", y->q_mean, 2, {H, d}, "queries and keys"},
                {"k_mean", y->k_mean, 2, {H, d}, "queries and keys"},
                {"diag_mean", y->diag_mean, 1, {H}, "queries and keys"},
                {"d_mean", y->d_mean, 1, {H}, "S-D diagonal"},
                {"d_sd", y->d_sd, 1, {H}, "S-D diagonal"}};
    for (size_t i = 0; what && i < sizeof held / sizeof *held; i++) {
        if (strcmp(what, held[i].name) != 0)
            continue;
        if (!held[i].v)
            return sd_api_fail(c, SD_EINVAL, "layer %d has no %s: its calibration holds no \"%s\"",
                               layer, held[i].lacks, what);
        return calib_copy(c, held[i].v, held[i].ndim, held[i].shape, out);
    }
    return sd_api_fail(c, SD_EINVAL, "calibration holds no \"%.40s\"", what ? what : "NULL");
}

static void h_calib_release(sd_call *c, sd_hcalib *h) {
    sd_api_drop(c, h, H_CALIB);
}

/* ---- evaluate ---- */

static int h_evaluate(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                      int32_t stride, sd_hscore *out) {
    sd_handle *h = sd_api_model_of(c, m);
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
    return sd_api_fill(c, out, &s, sizeof s);
}

static int h_logits(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, sd_harray *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    if (n == 0 || n > INT32_MAX)
        return sd_api_fail(c, SD_EINVAL, "logits of %zu tokens", n);
    size_t cells;
    if (!sd_mul_size(n, (size_t)g->vocab, &cells))
        return sd_api_fail(c, SD_ENOMEM, "logits of %zu tokens", n);
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
    out->data = sd_api_doubles(c, cells);
    for (size_t i = 0; out->data && i < cells; i++)
        out->data[i] = f[i];
    sd_free(f);
    return out->data ? 0 : SD_ENOMEM;
}

static double cell(const sd_table *t, const char *col) {
    return sd_table_num(t, 0, sd_table_find_col(t, col));
}

static int h_compare(sd_call *c, sd_hmodel *a, sd_hmodel *b, const int32_t *ids, size_t n,
                     int32_t ctx, int32_t stride, uint64_t seed, sd_hdelta *out) {
    sd_handle *ha = sd_api_model_of(c, a), *hb = ha ? sd_api_model_of(c, b) : NULL;
    if (!hb)
        return c->err.code;
    sd_eval_opts o = {.ctx = ctx, .stride = stride, .expect_tokens = -1};
    sd_table *t = NULL;
    if (sd_eval_compare(ha->u.model, hb->u.model, ids, n, &o, seed, &c->s->run, &t, &c->err) !=
        SD_OK)
        return c->err.code;
    sd_hdelta s = {.windows = (int32_t)cell(t, "windows"),
                   .tokens = (int64_t)cell(t, "tokens"),
                   .nll_a = log(cell(t, "ppl_a")),
                   .nll_b = log(cell(t, "ppl_b")),
                   .delta = cell(t, "delta"),
                   .lo = cell(t, "delta_lo"),
                   .hi = cell(t, "delta_hi")};
    sd_table_unref(t);
    return sd_api_fill(c, out, &s, sizeof s);
}

static int h_recall(sd_call *c, sd_hmodel *m, int32_t half, int32_t seqs, uint64_t seed,
                    sd_hrecall *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    sd_recall_opts o = {.half = half, .seqs = seqs, .seed = seed};
    sd_table *t = NULL;
    if (sd_eval_recall(h->u.model, &o, &c->s->run, &t, &c->err) != SD_OK)
        return c->err.code;
    sd_hrecall s = {.half = (int32_t)cell(t, "half"),
                    .seqs = (int32_t)cell(t, "seqs"),
                    .accuracy = cell(t, "accuracy"),
                    .nll = cell(t, "nll"),
                    .accuracy_first = cell(t, "accuracy_first"),
                    .nll_first = cell(t, "nll_first"),
                    .chance = cell(t, "chance")};
    sd_table_unref(t);
    return sd_api_fill(c, out, &s, sizeof s);
}

void sd_api_text(sd_host *t) {
    t->text_ids = h_text_ids;
    t->text_name = h_text_name;
    t->capture = h_capture;
    t->calibrate = h_calibrate;
    t->calib_get = h_calib_get;
    t->calib_release = h_calib_release;
    t->evaluate = h_evaluate;
    t->logits = h_logits;
    t->compare = h_compare;
    t->recall = h_recall;
}
