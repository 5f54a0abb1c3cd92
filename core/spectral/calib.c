#include "spectral/calib.h"

#include <math.h>

#include "base/mem.h"
#include "num/blas.h"

struct sd_calib {
    int n_layer;
    const bool *layers; /* during the run only */
    sd_calib_layer *layer;
};

int sd_calib_ctx(const sd_config *c) {
    enum { LONGEST = 512 };
    return c->n_pos > 0 && c->n_pos < LONGEST ? c->n_pos : LONGEST;
}

sd_status sd_calib_stream(sd_model *m, const int32_t *ids, size_t n, int ctx, int max_seqs,
                          bool outputs, sd_capture_fn fn, void *fn_ctx, const sd_run *run,
                          sd_err *err) {
    if (n == 0 || !ids)
        return sd_fail(err, SD_EINVAL, "a text without tokens");
    if (ctx < 0 || max_seqs < 0)
        return sd_fail(err, SD_EINVAL, "ctx %d, max_seqs %d: below 0", ctx, max_seqs);
    if (ctx == 0)
        ctx = sd_calib_ctx(sd_model_config(m));
    if ((size_t)ctx > n)
        ctx = (int)n;
    size_t seqs = n / (size_t)ctx;
    if (max_seqs > 0 && seqs > (size_t)max_seqs)
        seqs = (size_t)max_seqs;
    sd_forward_opts o = {.run = run,
                         .capture = fn,
                         .capture_ctx = fn_ctx,
                         .stop_after_capture = true,
                         .capture_output = outputs};
    for (size_t s = 0; s < seqs; s++) {
        sd_run_progress(run, "calibrating", (double)s, (double)seqs);
        SD_TRY(sd_check_cancel(err));
        SD_TRY(sd_forward(m, ids + s * (size_t)ctx, 1, ctx, &o, NULL, NULL, err));
    }
    sd_run_progress(run, "calibrating", (double)seqs, (double)seqs);
    return SD_OK;
}

/* a·b·c zeroed doubles. */
static sd_status doubles(size_t a, size_t b, size_t c, double **out, sd_err *err) {
    size_t n;
    if (!sd_mul_size(a, b, &n) || !sd_mul_size(n, c, &n))
        return sd_fail(err, SD_ENOMEM, "calibration of %zu x %zu x %zu numbers", a, b, c);
    return (*out = sd_alloc(n ? n : 1, sizeof **out, err)) ? SD_OK : SD_ENOMEM;
}

static sd_status begin(sd_calib_layer *y, const sd_capture *s, sd_err *err) {
    size_t d = (size_t)s->d_qk, d1 = (size_t)s->d_model + 1, nh = (size_t)s->n_head;
    y->n_head = s->n_head;
    y->d_qk = s->d_qk;
    y->d_v = s->d_v;
    y->d_model = s->d_model;
    y->scale = s->scale;
    SD_TRY(doubles(d1, d1, 1, &y->x2, err));
    SD_TRY(doubles(nh, (size_t)s->d_v, (size_t)s->d_v, &y->o2, err));
    if (s->q && s->k) {
        SD_TRY(doubles(nh, 2 * d, 2 * d, &y->qk, err));
        SD_TRY(doubles(nh, d, 1, &y->q_mean, err));
        SD_TRY(doubles(nh, d, 1, &y->k_mean, err));
        SD_TRY(doubles(nh, 1, 1, &y->diag_mean, err));
    }
    if (s->d) {
        SD_TRY(doubles(nh, 1, 1, &y->d_mean, err));
        SD_TRY(doubles(nh, 1, 1, &y->d_sd, err));
    }
    return SD_OK;
}

/* Sums of [x 1]ᵀ[x 1]. */
static void add_inputs(sd_calib_layer *y, const sd_capture *s, size_t rows, double *u) {
    size_t dm = (size_t)s->d_model, d1 = dm + 1;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < dm; j++)
            u[i * d1 + j] = s->x[i * dm + j];
        u[i * d1 + dm] = 1;
    }
    sd_gemm_f64(true, false, d1, d1, rows, 1, u, d1, u, d1, 1, y->x2, d1);
}

/* Sums of head h's [q k]ᵀ[q k], q, k and scale·q·k. */
static void add_head(sd_calib_layer *y, const sd_capture *s, size_t h, size_t rows, double *u) {
    size_t d = (size_t)s->d_qk, nh = (size_t)s->n_head, nkv = (size_t)s->n_kv_head;
    size_t g = h / (nh / nkv);
    for (size_t i = 0; i < rows; i++) {
        const float *q = s->q + (i * nh + h) * d, *k = s->k + (i * nkv + g) * d;
        double dot = 0;
        for (size_t j = 0; j < d; j++) {
            u[i * 2 * d + j] = q[j];
            u[i * 2 * d + d + j] = k[j];
            y->q_mean[h * d + j] += q[j];
            y->k_mean[h * d + j] += k[j];
            dot += (double)q[j] * k[j];
        }
        y->diag_mean[h] += s->scale * dot;
    }
    double *sum = y->qk + h * 4 * d * d;
    sd_gemm_f64(true, false, 2 * d, 2 * d, rows, 1, u, 2 * d, u, 2 * d, 1, sum, 2 * d);
}

/* Sums of head h's oᵀo. */
static void add_output(sd_calib_layer *y, const sd_capture *s, size_t h, size_t rows, double *u) {
    size_t d = (size_t)s->d_v, nh = (size_t)s->n_head;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < d; j++)
            u[i * d + j] = s->o[(i * nh + h) * d + j];
    sd_gemm_f64(true, false, d, d, rows, 1, u, d, u, d, 1, y->o2 + h * d * d, d);
}

static sd_status add(void *ctx, const sd_capture *s, sd_err *err) {
    sd_calib *k = ctx;
    sd_calib_layer *y = &k->layer[s->layer];
    if (k->layers && !k->layers[s->layer])
        return SD_OK;
    if (!y->x2)
        SD_TRY(begin(y, s, err));
    size_t rows = (size_t)s->batch * (size_t)s->tokens, nh = (size_t)s->n_head;
    size_t d1 = (size_t)s->d_model + 1, d2 = 2 * (size_t)s->d_qk, wide = d1 > d2 ? d1 : d2;
    double *u;
    SD_TRY(doubles(rows, wide > (size_t)s->d_v ? wide : (size_t)s->d_v, 1, &u, err));
    y->rows += (double)rows;
    add_inputs(y, s, rows, u);
    for (size_t h = 0; y->qk && h < nh; h++)
        add_head(y, s, h, rows, u);
    for (size_t h = 0; h < nh; h++)
        add_output(y, s, h, rows, u);
    for (size_t i = 0; y->d_mean && i < rows * nh; i++) {
        double v = s->d[i];
        y->d_mean[i % nh] += v;
        y->d_sd[i % nh] += v * v;
    }
    sd_free(u);
    return SD_OK;
}

static void scale(double *v, size_t n, double by) {
    for (size_t i = 0; v && i < n; i++)
        v[i] *= by;
}

/* Sums to means. */
static void finish(sd_calib_layer *y) {
    if (!y->x2)
        return;
    size_t d = (size_t)y->d_qk, d1 = (size_t)y->d_model + 1, nh = (size_t)y->n_head;
    double inv = 1.0 / y->rows;
    scale(y->x2, d1 * d1, inv);
    scale(y->qk, nh * 4 * d * d, inv);
    scale(y->o2, nh * (size_t)y->d_v * (size_t)y->d_v, inv);
    scale(y->q_mean, nh * d, inv);
    scale(y->k_mean, nh * d, inv);
    scale(y->diag_mean, nh, inv);
    scale(y->d_mean, nh, inv);
    for (size_t h = 0; y->d_sd && h < nh; h++) {
        double var = y->d_sd[h] * inv - y->d_mean[h] * y->d_mean[h];
        y->d_sd[h] = sqrt(var > 0 ? var : 0);
    }
}

sd_status sd_calib_new(sd_model *m, const int32_t *ids, size_t n, int ctx, int max_seqs,
                       const bool *layers, const sd_run *run, sd_calib **out, sd_err *err) {
    *out = NULL;
    sd_calib *k = sd_alloc(1, sizeof *k, err);
    if (!k)
        return SD_ENOMEM;
    k->n_layer = sd_model_config(m)->n_layer;
    k->layers = layers;
    k->layer = sd_alloc((size_t)k->n_layer, sizeof *k->layer, err);
    sd_status st =
        k->layer ? sd_calib_stream(m, ids, n, ctx, max_seqs, true, add, k, run, err) : SD_ENOMEM;
    if (st != SD_OK) {
        sd_calib_free(k);
        return st;
    }
    for (int l = 0; l < k->n_layer; l++)
        finish(&k->layer[l]);
    k->layers = NULL;
    *out = k;
    return SD_OK;
}

void sd_calib_free(sd_calib *k) {
    if (!k)
        return;
    for (int l = 0; k->layer && l < k->n_layer; l++) {
        sd_calib_layer *y = &k->layer[l];
        double *all[] = {y->x2,     y->qk,        y->o2,     y->q_mean,
                         y->k_mean, y->diag_mean, y->d_mean, y->d_sd};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            sd_free(all[i]);
    }
    sd_free(k->layer);
    sd_free(k);
}

int sd_calib_n_layer(const sd_calib *k) {
    return k->n_layer;
}

const sd_calib_layer *sd_calib_at(const sd_calib *k, int layer) {
    return &k->layer[layer];
}
