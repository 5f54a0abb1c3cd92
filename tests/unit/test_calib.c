/* Calibration: streamed moments against sums over the captured rows, for every attention kind; what
 * a kind does not have is absent; how a text is cut. */
#include "model_help.h"

#include "nn/attn.h"
#include "nn/preset.h"
#include "spectral/calib.h"

enum { T = 9, SEQS = 3, MAX_ROWS = T * SEQS };

static sd_model *make(const char *first, const char *second) {
    sd_config c;
    sd_model *m = NULL;
    sd_preset p = *sd_preset_find("nano");
    p.n_layer = 2;
    memset(&c, 0, sizeof c);
    OK(sd_preset_config(&p, "sd", first, SD_NORM_LAYER, &c, &err));
    for (int l = 0; l < 2; l++) {
        sd_layer_cfg *lc = &c.layer[l];
        strcpy(lc->kind, l ? second : first);
        lc->d_qk = lc->d_v;
        sd_attn_least_options(sd_attn_of(lc), lc->options, sizeof lc->options);
        sd_attn_normalize(lc);
        lc->scale = 0.2;
    }
    OK(sd_config_check(&c, &err));
    OK(sd_model_new(&c, 3, &m, &err));
    sd_config_free(&c);
    return m;
}

static void text(int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * i * 7 + 3 * i) % 200);
}

/* Layer 0's rows, kept. */
typedef struct rows {
    size_t n, d_model, nh, nkv, d, dv;
    double *x, *q, *k, *diag, *o;
} rows;

static sd_status keep(void *ctx, const sd_capture *s, sd_err *e) {
    (void)e;
    rows *r = ctx;
    if (s->layer)
        return SD_OK;
    size_t n = (size_t)(s->batch * s->tokens);
    r->d_model = (size_t)s->d_model;
    r->nh = (size_t)s->n_head;
    r->nkv = (size_t)s->n_kv_head;
    r->d = (size_t)s->d_qk;
    r->dv = (size_t)s->d_v;
    const struct {
        double **to;
        const float *from;
        size_t w;
    } part[] = {{&r->x, s->x, r->d_model},
                {&r->q, s->q, r->nh * r->d},
                {&r->k, s->k, r->nkv * r->d},
                {&r->diag, s->d, r->nh},
                {&r->o, s->o, r->nh * r->dv}};
    for (int i = 0; i < 5; i++) {
        if (!part[i].from)
            continue;
        if (!*part[i].to)
            *part[i].to = malloc(MAX_ROWS * part[i].w * sizeof(double));
        for (size_t j = 0; j < n * part[i].w; j++)
            (*part[i].to)[r->n * part[i].w + j] = part[i].from[j];
    }
    r->n += n;
    return SD_OK;
}

static void near(const char *kind, const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s, %s: got %.17g, want %.17g", kind, what, got, want);
}

static void check_scores(const char *kind, const sd_calib_layer *y, const rows *r) {
    for (size_t h = 0; h < r->nh; h++) {
        size_t g = h / (r->nh / r->nkv), d = r->d;
        double qk = 0, q = 0, k = 0, dot = 0; /* of dimensions 1 and 2 */
        for (size_t i = 0; i < r->n; i++) {
            const double *qi = r->q + (i * r->nh + h) * d, *ki = r->k + (i * r->nkv + g) * d;
            qk += qi[1] * ki[2];
            q += qi[1];
            k += ki[2];
            for (size_t j = 0; j < d; j++)
                dot += qi[j] * ki[j];
        }
        double n = (double)r->n;
        near(kind, "qk", y->qk[h * 4 * d * d + 1 * 2 * d + d + 2], qk / n);
        near(kind, "qk mirrored", y->qk[h * 4 * d * d + (d + 2) * 2 * d + 1], qk / n);
        near(kind, "q_mean", y->q_mean[h * d + 1], q / n);
        near(kind, "k_mean", y->k_mean[h * d + 2], k / n);
        near(kind, "diag_mean", y->diag_mean[h], y->scale * dot / n);
    }
}

static void moments(void **state) {
    (void)state;
    int32_t ids[MAX_ROWS + 4];
    text(ids, MAX_ROWS + 4);
    for (size_t i = 0; sd_attn_at(i); i++) {
        const char *kind = sd_attn_at(i)->name;
        sd_model *m = make(kind, "softmax");
        rows r = {0};
        sd_calib *k = NULL;
        OK(sd_calib_stream(m, ids, MAX_ROWS + 4, T, 0, true, keep, &r, NULL, &err));
        assert_int_equal(r.n, MAX_ROWS); /* a last short piece is dropped */
        OK(sd_calib_new(m, ids, MAX_ROWS + 4, T, 0, NULL, NULL, &k, &err));
        const sd_calib_layer *y = sd_calib_at(k, 0);
        assert_true(y->rows == MAX_ROWS && sd_calib_at(k, 1)->rows == MAX_ROWS);
        double xx = 0, x = 0;
        for (size_t t = 0; t < r.n; t++) {
            xx += r.x[t * r.d_model + 1] * r.x[t * r.d_model + 4];
            x += r.x[t * r.d_model + 4];
        }
        size_t d1 = r.d_model + 1;
        near(kind, "x2", y->x2[d1 + 4], xx / MAX_ROWS);
        near(kind, "mean of x", y->x2[(d1 - 1) * d1 + 4], x / MAX_ROWS);
        near(kind, "x2's corner", y->x2[d1 * d1 - 1], 1);
        assert_non_null(r.o);
        for (size_t h = 0; h < r.nh; h++) {
            double oo = 0;
            for (size_t t = 0; t < r.n; t++)
                oo += r.o[(t * r.nh + h) * r.dv] * r.o[(t * r.nh + h) * r.dv + 2] / MAX_ROWS;
            near(kind, "o2", y->o2[(h * r.dv) * r.dv + 2], oo);
        }
        bool scores = r.q != NULL;
        assert_true((y->qk != NULL) == scores && (y->q_mean != NULL) == scores);
        assert_true((y->k_mean != NULL) == scores && (y->diag_mean != NULL) == scores);
        if (scores)
            check_scores(kind, y, &r);
        assert_true((y->d_mean != NULL) == (r.diag != NULL));
        assert_true((y->d_sd != NULL) == (r.diag != NULL));
        for (size_t h = 0; r.diag && h < r.nh; h++) {
            double s = 0, s2 = 0;
            for (size_t t = 0; t < r.n; t++)
                s += r.diag[t * r.nh + h] / MAX_ROWS;
            for (size_t t = 0; t < r.n; t++)
                s2 += pow(r.diag[t * r.nh + h] - s, 2) / MAX_ROWS;
            near(kind, "d_mean", y->d_mean[h], s);
            assert_true(fabs(y->d_sd[h] - sqrt(s2)) < 1e-6);
        }
        sd_calib_free(k);
        sd_model_unref(m);
        free(r.x);
        free(r.o);
        free(r.q);
        free(r.k);
        free(r.diag);
    }
}

static void absent(void **state) {
    (void)state;
    int32_t ids[40];
    text(ids, 40);
    sd_model *m = make("uniform", "sd");
    sd_calib *k = NULL;
    OK(sd_calib_new(m, ids, 40, 8, 0, NULL, NULL, &k, &err));
    assert_non_null(sd_calib_at(k, 0)->x2);
    assert_null(sd_calib_at(k, 0)->qk);
    assert_null(sd_calib_at(k, 0)->d_mean);
    assert_non_null(sd_calib_at(k, 1)->qk);
    assert_non_null(sd_calib_at(k, 1)->d_mean);
    sd_calib_free(k);
    /* Layers that were not asked for cost nothing. */
    const bool only[2] = {false, true};
    OK(sd_calib_new(m, ids, 40, 8, 0, only, NULL, &k, &err));
    assert_null(sd_calib_at(k, 0)->x2);
    assert_true(sd_calib_at(k, 0)->rows == 0 && sd_calib_at(k, 1)->rows == 40);
    sd_calib_free(k);
    sd_model_unref(m);
}

static void cutting(void **state) {
    (void)state;
    int32_t ids[40];
    text(ids, 40);
    sd_model *m = make("softmax", "softmax");
    sd_calib *k = NULL;
    static const struct {
        size_t n;
        int ctx, max, rows;
    } row[] = {{40, 16, 0, 32}, {40, 16, 1, 16}, {40, 0, 0, 40}, {5, 16, 0, 5}, {40, 1, 0, 40}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        OK(sd_calib_new(m, ids, row[i].n, row[i].ctx, row[i].max, NULL, NULL, &k, &err));
        assert_true(sd_calib_at(k, 1)->rows == row[i].rows);
        sd_calib_free(k);
    }
    assert_int_equal(sd_calib_new(m, ids, 0, 8, 0, NULL, NULL, &k, &err), SD_EINVAL);
    HAS("a text without tokens");
    assert_null(k);
    assert_int_equal(sd_calib_new(m, ids, 40, -1, 0, NULL, NULL, &k, &err), SD_EINVAL);
    HAS("ctx -1");
    ids[3] = 1 << 20;
    assert_int_not_equal(sd_calib_new(m, ids, 40, 8, 0, NULL, NULL, &k, &err), SD_OK);
    assert_null(k);
    sd_config c = {.n_pos = 100};
    assert_int_equal(sd_calib_ctx(&c), 100);
    c.n_pos = 2048;
    assert_int_equal(sd_calib_ctx(&c), 512);
    c.n_pos = 0;
    assert_int_equal(sd_calib_ctx(&c), 512);
    sd_model_unref(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments),
        cmocka_unit_test(absent),
        cmocka_unit_test(cutting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
