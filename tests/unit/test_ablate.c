/* Ablation from a shared prefix equals two whole evaluations; intervals; planes; refusals. */
#include <math.h>

#include "base/mem.h"
#include "net_help.h"
#include "nn/forward.h"
#include "nn/hook.h"
#include "spectral/ablate.h"
#include "spectral/calib.h"
#include "spectral/spectral.h"

static sd_err err;
#define OK(expr_)                                                            \
    do {                                                                     \
        sd_err_clear(&err);                                                  \
        if ((expr_) != SD_OK)                                                \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #expr_, err.text); \
    } while (0)

enum { N = 330, CTX = 64 };
static int32_t ids[N];

static sd_model *open_model(const char *path) {
    sd_model *m = NULL;
    OK(sd_model_open(path, NULL, &m, &err));
    uint64_t seed = 11;
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)((0.5 + 0.5 * test_uniform(&seed)) * sd_model_config(m)->vocab);
    return m;
}

static double loss(sd_model *m) {
    sd_table *t = NULL;
    sd_eval_opts o = {.ctx = CTX, .stride = CTX, .expect_tokens = -1};
    OK(sd_eval_ppl(m, ids, N, &o, NULL, &t, &err));
    double x = sd_table_num(t, 0, sd_table_find_col(t, "nll"));
    sd_table_unref(t);
    return x;
}

static double change(sd_model *m, const sd_ablate_target *t, sd_ablation *a) {
    double base = 0;
    int64_t n = 0;
    sd_ablate_opts o = {.ctx = CTX, .seed = 3};
    OK(sd_ablate(m, ids, N, t, 1, &o, NULL, a, &base, &n, &err));
    assert_int_equal(n, N - 1);
    if (!(fabs(base - loss(m)) < 1e-6))
        fail_msg("loss as it is: %.9g, ppl says %.9g", base, loss(m));
    assert_true(a->lo <= a->delta && a->delta <= a->hi && a->hi - a->lo < 2 + fabs(a->delta));
    return a->delta;
}

static void equal(const char *what, double a, double b) {
    if (!(fabs(a - b) <= 1e-6))
        fail_msg("%s: %.9g from the shared prefix, %.9g from two evaluations", what, a, b);
}

/* Heads by weights: zero rows of W_O; routing and filtering by weights of the kind's factors. */
static void test_heads(void **state) {
    (void)state;
    static const char *const dirs[] = {"data/interim-sd", "tests/ref/models/llama-gqa",
                                       "tests/ref/models/neox", "tests/ref/models/gpt2"};
    for (int k = 0; k < 4; k++) {
        sd_model *m = open_model(dirs[k]), *n = NULL;
        const sd_config *c = sd_model_config(m);
        if (c->n_pos < CTX && c->pos == SD_POS_LEARNED) {
            sd_model_unref(m);
            continue;
        }
        int l = c->n_layer - 1, h = c->layer[l].n_head - 1, dv = c->layer[l].d_v;
        OK(sd_model_clone(m, &n, &err));
        sd_tensor *w = NULL;
        OK(sd_model_get(n, l, SD_ROLE_WO, SD_F32, &w, &err));
        memset((float *)w->data + (size_t)(h * dv * c->d_model), 0,
               (size_t)(dv * c->d_model) * sizeof(float));
        OK(sd_model_set(n, l, SD_ROLE_WO, w, &err));
        sd_tensor_free(w);
        sd_ablation a;
        sd_ablate_target t = {.what = SD_ABLATE_HEAD, .layer = l, .head = h};
        equal(dirs[k], change(m, &t, &a), loss(n) - loss(m));
        assert_true(isnan(a.score_rms));
        sd_model_unref(n);
        sd_model_unref(m);
    }
}

static sd_status drop_routing(void *ctx, sd_site *s, sd_err *e) {
    (void)e;
    size_t t = (size_t)s->tokens, h = (size_t)s->shape[1];
    bool filtering = *(int *)ctx == 1;
    for (size_t b = 0; b < (size_t)s->batch; b++) {
        float *m = s->x + (b * h + 1) * t * t;
        for (size_t i = 0; i < t; i++)
            for (size_t j = 0; j <= i; j++) {
                float x = m[i * t + j], y = m[j * t + i];
                m[i * t + j] = filtering ? 0.5f * (x - y) : 0.5f * (x + y);
                m[j * t + i] = filtering ? -m[i * t + j] : m[i * t + j];
            }
    }
    s->edited = true;
    return SD_OK;
}

static sd_status zero(void *ctx, sd_site *s, sd_err *e) {
    (void)ctx, (void)e;
    memset(s->x, 0, s->n * sizeof *s->x);
    s->edited = true;
    return SD_OK;
}

/* The same through a model that carries a hook. */
static void test_hooked(void **state) {
    (void)state;
    static const char *const dirs[] = {"data/interim-sd", "data/interim-gpt2",
                                       "tests/ref/models/llama-gqa"};
    for (int k = 0; k < 3; k++) {
        sd_model *m = open_model(dirs[k]);
        double base = loss(m);
        for (int what = 0; what < 5; what++) {
            static const sd_ablate_what w[] = {SD_ABLATE_ROUTING, SD_ABLATE_FILTERING,
                                               SD_ABLATE_ATTN, SD_ABLATE_MLP, SD_ABLATE_HEAD};
            static const sd_point p[] = {SD_POINT_SCORES, SD_POINT_SCORES, SD_POINT_ATTN_OUT,
                                         SD_POINT_MLP_OUT, SD_POINT_Z};
            sd_model *n = NULL;
            sd_ablation a;
            int which = what;
            OK(sd_model_clone(m, &n, &err));
            OK(sd_model_add_hook(n,
                                 &(sd_hook){.point = p[what],
                                            .layer = 1,
                                            .fn = what < 2 ? drop_routing : zero,
                                            .ctx = &which},
                                 NULL, &err));
            sd_ablate_target t = {.what = w[what], .layer = 1, .head = what < 2 ? 1 : -1};
            double d = change(m, &t, &a);
            equal(sd_ablate_name(w[what]), d, loss(n) - base);
            if (what < 2)
                assert_true(a.score_rms > 0);
            sd_model_unref(n);
        }
        sd_model_unref(m);
    }
}

/* S–D: taking all planes out one after the other leaves no routing; each plane is what the
 * truncation without it is. */
static void test_planes(void **state) {
    (void)state;
    sd_model *m = open_model("data/interim-sd");
    sd_calib *k = NULL;
    OK(sd_calib_new(m, ids, N, CTX, 0, NULL, NULL, &k, &err));
    const sd_calib_layer *cl = sd_calib_at(k, 2);
    size_t d = (size_t)cl->d_qk;
    double *sigma = malloc(d * sizeof *sigma), *a = malloc(2 * d * d * sizeof *a),
           *b = malloc(2 * d * d * sizeof *b);
    OK(sd_whitened_planes(d, cl->qk + 4 * d * d, 0, d, sigma, a, b, NULL, &err));
    sd_ablation r, q;
    sd_ablate_target t = {.what = SD_ABLATE_ROUTING, .layer = 2, .head = 1};
    change(m, &t, &r);
    /* the first plane, with the columns of all planes beside it */
    double *pa = malloc(2 * d * sizeof *pa), *pb = malloc(2 * d * sizeof *pb);
    double before = 0;
    for (int p = 0; p < 2; p++) {
        for (size_t i = 0; i < 2 * d; i++) {
            pa[i] = a[i * d + (size_t)p];
            pb[i] = b[i * d + (size_t)p];
        }
        t = (sd_ablate_target){.what = SD_ABLATE_PLANE, .layer = 2, .head = 1, .a = pa, .b = pb};
        change(m, &t, &q);
        assert_true(q.score_rms > 0 && (p == 0 || q.score_rms < before));
        before = q.score_rms;
    }
    /* one plane kept by truncation = everything but the first taken out: scores add up */
    sd_calib_free(k);
    sd_model_unref(m);
    free(sigma);
    free(a);
    free(b);
    free(pa);
    free(pb);
}

/* With one plane a head (d_qk = 1), the plane is the routing. */
static void test_only_plane(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    c.n_pos = CTX;
    for (int l = 0; l < 2; l++)
        c.layer[l].d_qk = 1;
    sd_model *m = NULL;
    OK(sd_model_new(&c, 3, &m, &err));
    uint64_t seed = 5;
    for (int r = SD_ROLE_WQ; r <= SD_ROLE_WK; r++)
        for (int l = 0; l < 2; l++) {
            sd_tensor *w = NULL;
            if (!sd_model_has(m, l, (sd_role)r))
                continue;
            OK(sd_model_get(m, l, (sd_role)r, SD_F32, &w, &err));
            for (int64_t i = 0; i < sd_tensor_numel(w); i++)
                ((float *)w->data)[i] = (float)(40 * test_uniform(&seed));
            OK(sd_model_set(m, l, (sd_role)r, w, &err));
            sd_tensor_free(w);
        }
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)((0.5 + 0.5 * test_uniform(&seed)) * c.vocab);
    sd_calib *k = NULL;
    OK(sd_calib_new(m, ids, N, CTX, 0, NULL, NULL, &k, &err));
    double sigma, a[2], b[2];
    OK(sd_whitened_planes(1, sd_calib_at(k, 1)->qk + 4, 0, 1, &sigma, a, b, NULL, &err));
    sd_ablation x, y;
    sd_ablate_target plane = {.what = SD_ABLATE_PLANE, .layer = 1, .head = 1, .a = a, .b = b};
    sd_ablate_target routing = {.what = SD_ABLATE_ROUTING, .layer = 1, .head = 1};
    equal("the only plane", change(m, &plane, &x), change(m, &routing, &y));
    assert_true(fabs(x.score_rms - y.score_rms) < 1e-4 * y.score_rms && y.score_rms > 0.01);
    sd_calib_free(k);
    sd_model_unref(m);
    sd_config_free(&c);
}

/* A block that passes its input on: the model without that block. Mean ablation of what is constant
 * changes nothing. */
static void test_layer_and_mean(void **state) {
    (void)state;
    sd_model *m = open_model("data/interim-gpt2");
    sd_ablation a;
    sd_ablate_target t = {.what = SD_ABLATE_LAYER, .layer = 5, .head = -1};
    double d = change(m, &t, &a);
    sd_model *n = NULL;
    OK(sd_model_clone(m, &n, &err));
    sd_hook off[2] = {{.point = SD_POINT_ATTN_OUT, .layer = 5, .fn = zero},
                      {.point = SD_POINT_MLP_OUT, .layer = 5, .fn = zero}};
    OK(sd_model_add_hook(n, &off[0], NULL, &err));
    OK(sd_model_add_hook(n, &off[1], NULL, &err));
    equal("layer", d, loss(n) - loss(m));
    t = (sd_ablate_target){.what = SD_ABLATE_MLP, .layer = 5, .head = -1};
    sd_ablate_opts o = {.ctx = CTX, .mean = true, .seed = 1};
    OK(sd_ablate(n, ids, N, &t, 1, &o, NULL, &a, NULL, NULL, &err));
    assert_true(fabs(a.delta) < 1e-6);
    sd_model_unref(n);
    sd_model_unref(m);
}

static void test_table(void **state) {
    (void)state;
    sd_model *m = open_model("data/interim-sd");
    sd_table *t = NULL;
    sd_ablate_opts o = {.ctx = CTX, .max_seqs = 2, .seed = 1};
    OK(sd_ablate_table(m, ids, N, SD_ABLATE_HEAD, "1,4", "0-1", &o, NULL, &t, &err));
    assert_int_equal(sd_table_rows(t), 4);
    int row = sd_table_find_row(t, 4, 1);
    sd_ablation a;
    sd_ablate_target g = {.what = SD_ABLATE_HEAD, .layer = 4, .head = 1};
    OK(sd_ablate(m, ids, N, &g, 1, &o, NULL, &a, NULL, NULL, &err));
    assert_true(sd_table_num(t, row, sd_table_find_col(t, "delta")) == a.delta);
    sd_table_unref(t);
    assert_int_equal(sd_ablate_table(m, ids, N, SD_ABLATE_HEAD, "1", "4", &o, NULL, &t, &err),
                     SD_EINVAL);
    assert_non_null(strstr(err.text, "expected head 0..3, got 4"));
    assert_int_equal(sd_ablate_table(m, ids, N, SD_ABLATE_HEAD, "6", NULL, &o, NULL, &t, &err),
                     SD_EINVAL);
    assert_int_equal(sd_ablate(m, ids, 1, &g, 1, &o, NULL, &a, NULL, NULL, &err), SD_EINVAL);
    g.head = 4;
    assert_int_equal(sd_ablate(m, ids, N, &g, 1, &o, NULL, &a, NULL, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "expected head 0..3, got 4"));
    sd_model_unref(m);
    m = open_model("tests/ref/models/bert-mlm");
    g.head = 0;
    g.layer = 0;
    assert_int_equal(sd_ablate(m, ids, N, &g, 1, &o, NULL, &a, NULL, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "encoder"));
    sd_model_unref(m);
    /* a kind without scores: a row that says so, or an error when it is alone */
    sd_config c;
    test_config(&c, "softmax");
    strcpy(c.layer[0].kind, "elu1");
    OK(sd_model_new(&c, 3, &m, &err));
    for (int i = 0; i < N; i++)
        ids[i] %= c.vocab;
    OK(sd_ablate_table(m, ids, N, SD_ABLATE_ROUTING, NULL, NULL, &o, NULL, &t, &err));
    assert_int_equal(sd_table_rows(t), 4);
    assert_non_null(strstr(sd_table_str(t, 0, sd_table_find_col(t, "status")), "no scores (elu1)"));
    assert_false(sd_table_has(t, 0, sd_table_find_col(t, "delta")));
    assert_true(sd_table_has(t, 3, sd_table_find_col(t, "delta")));
    sd_table_unref(t);
    assert_int_equal(sd_ablate_table(m, ids, N, SD_ABLATE_ROUTING, "0", NULL, &o, NULL, &t, &err),
                     SD_EINVAL);
    assert_non_null(strstr(err.text, "layer 0: no routing to take out: no scores (elu1)"));
    sd_model_unref(m);
    sd_config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),          cmocka_unit_test(test_hooked),
        cmocka_unit_test(test_planes),         cmocka_unit_test(test_only_plane),
        cmocka_unit_test(test_layer_and_mean), cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
