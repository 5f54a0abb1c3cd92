/* Hooks: every activation by name in every form of block and kind, what they change, where a pass
 * may begin, and what a failing one leaves. */
#include <math.h>

#include "net_help.h"
#include "nn/forward.h"
#include "nn/hook.h"

static sd_err err;
#define OK(expr_)                                                            \
    do {                                                                     \
        sd_err_clear(&err);                                                  \
        if ((expr_) != SD_OK)                                                \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #expr_, err.text); \
    } while (0)

enum { B = 2, T = 21 };

typedef struct keep { /* every activation of every layer, in order of the visits */
    struct {
        sd_point point;
        int layer, ndim;
        int64_t shape[4];
        size_t n;
        float *x;
    } v[200];
    int n;
    bool touch; /* say that it was changed, though it was not */
} keep;

static sd_status take(void *ctx, sd_site *s, sd_err *e) {
    (void)e;
    keep *k = ctx;
    assert_true(k->n < 200);
    size_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        n *= (size_t)s->shape[i];
    assert_int_equal(n, s->n);
    k->v[k->n].point = s->point;
    k->v[k->n].layer = s->layer;
    k->v[k->n].ndim = s->ndim;
    memcpy(k->v[k->n].shape, s->shape, sizeof s->shape);
    k->v[k->n].n = s->n;
    k->v[k->n].x = malloc(s->n * sizeof(float));
    memcpy(k->v[k->n++].x, s->x, s->n * sizeof(float));
    s->edited = k->touch;
    return SD_OK;
}

static const float *kept(const keep *k, sd_point p, int layer) {
    for (int i = 0; i < k->n; i++)
        if (k->v[i].point == p && k->v[i].layer == layer)
            return k->v[i].x;
    return NULL;
}

static void drop(keep *k) {
    for (int i = 0; i < k->n; i++)
        free(k->v[i].x);
    *k = (keep){0};
}

static int32_t *some_ids(int v) {
    int32_t *ids = malloc(B * T * sizeof *ids);
    uint64_t seed = 5;
    for (int i = 0; i < B * T; i++)
        ids[i] = (int32_t)((0.5 + 0.5 * test_uniform(&seed)) * v);
    return ids;
}

static void all_hooks(keep *k, sd_hook h[SD_POINT_COUNT]) {
    for (int i = 0; i < SD_POINT_COUNT; i++)
        h[i] = (sd_hook){.point = (sd_point)i, .layer = -1, .fn = take, .ctx = k};
}

static double farthest(const float *a, const float *b, size_t n) {
    double d = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - (double)b[i]) <= d))
            d = fabs((double)a[i] - (double)b[i]);
    }
    return d;
}

/* pattern · v = z; softmax of scores = pattern; rows of the pattern end at the query. */
static void check_attention(const char *what, const keep *k, const sd_config *c, int l) {
    const sd_layer_cfg *lc = &c->layer[l];
    const float *p = kept(k, SD_POINT_PATTERN, l), *s = kept(k, SD_POINT_SCORES, l);
    const float *v = kept(k, SD_POINT_V, l), *z = kept(k, SD_POINT_Z, l);
    int H = lc->n_head, G = lc->n_kv_head, dv = lc->d_v;
    char opt[16];
    bool raw = sd_layer_option(lc->options, "softmax", opt, sizeof opt);
    assert_non_null(p);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < T; i++) {
                const float *row = p + (((size_t)b * (size_t)H + (size_t)h) * T + (size_t)i) * T;
                double sum = 0, den = 0, mx = -1e30;
                for (int j = 0; j < T; j++) {
                    sum += (double)row[j];
                    if (c->causal && j > i)
                        assert_true(row[j] == 0);
                }
                if (!raw && !(fabs(sum - 1) < 1e-5))
                    fail_msg("%s: pattern row %d sums to %g", what, i, sum);
                for (int d = 0; d < dv; d++) {
                    double o = 0;
                    for (int j = 0; j < T; j++)
                        o += (double)row[j] * (double)v[((b * T + j) * G + h / (H / G)) * dv + d];
                    double got = (double)z[((b * T + i) * H + h) * dv + d];
                    if (!(fabs(o - got) < 1e-5))
                        fail_msg("%s: P·v %g, z %g", what, o, got);
                }
                if (!s)
                    continue;
                const float *sr = s + (row - p);
                size_t lo, hi;
                sd_attn_keys(lc, c->causal, (size_t)i, T, &lo, &hi);
                for (size_t j = lo; j < hi; j++)
                    mx = (double)sr[j] > mx ? (double)sr[j] : mx;
                for (size_t j = lo; j < hi; j++)
                    den += exp((double)sr[j] - mx);
                for (size_t j = lo; j < hi; j++) {
                    double want = raw ? (double)sr[j] : exp((double)sr[j] - mx) / den;
                    if (!(fabs(want - (double)row[j]) < 1e-5))
                        fail_msg("%s: head %d, pair %d %zu: softmax of the score %g, pattern %g",
                                 what, h, i, j, want, (double)row[j]);
                }
            }
}

static void check_net(const char *what, const sd_net *net) {
    const sd_config *c = sd_net_config(net);
    size_t v = (size_t)c->vocab, d = (size_t)c->d_model, n = B * T * v;
    int32_t *ids = some_ids(c->vocab);
    float *plain = malloc(n * sizeof *plain), *seen = malloc(n * sizeof *seen);
    sd_net_ws *ws = test_ws(net, B, T, false, NULL, 2);
    sd_net_batch b = {.batch = B, .tokens = T, .ids = ids};
    OK(sd_net_forward(net, ws, &b, NULL, NULL, plain, &err));
    keep k = {0};
    sd_hook h[SD_POINT_COUNT];
    all_hooks(&k, h);
    b.hooks = h;
    b.n_hooks = SD_POINT_COUNT;
    OK(sd_net_forward(net, ws, &b, NULL, NULL, seen, &err));
    if (!(farthest(plain, seen, n) < 2e-5))
        fail_msg("%s: looking on changes logits by %g", what, farthest(plain, seen, n));
    for (int l = 0; l < c->n_layer; l++) {
        for (int p = 0; p < SD_POINT_COUNT; p++) {
            bool has = sd_point_check(c, (sd_point)p, l, &err) == SD_OK;
            if (has != (kept(&k, (sd_point)p, l) != NULL))
                fail_msg("%s: %s of layer %d: %s", what, sd_point_name((sd_point)p), l, err.text);
        }
        check_attention(what, &k, c, l);
        const float *pre = kept(&k, SD_POINT_RESID_PRE, l),
                    *post = kept(&k, SD_POINT_RESID_POST, l);
        const float *mid = kept(&k, SD_POINT_RESID_MID, l);
        const float *a = kept(&k, SD_POINT_ATTN_OUT, l), *m = kept(&k, SD_POINT_MLP_OUT, l);
        if (l > 0)
            assert_memory_equal(pre, kept(&k, SD_POINT_RESID_POST, l - 1), B * T * d * sizeof *pre);
        for (size_t i = 0; c->block != SD_BLOCK_POST && i < B * T * d; i++) {
            assert_true(fabs((double)(post[i] - pre[i] - a[i] - m[i])) < 1e-5);
            if (mid)
                assert_true(fabs((double)(mid[i] - pre[i] - a[i])) < 1e-5);
        }
        /* a pass that begins in front of this layer: the same bits */
        sd_net_batch from = {.batch = B, .tokens = T, .ids = ids, .start = pre, .start_layer = l};
        OK(sd_net_forward(net, ws, &from, NULL, NULL, seen, &err));
        if (l == 0)
            assert_memory_equal(seen, plain, n * sizeof *seen);
        assert_true(farthest(plain, seen, n) < 2e-5);
    }
    /* what is put back as it was changes nothing */
    drop(&k);
    k.touch = true;
    OK(sd_net_forward(net, ws, &b, NULL, NULL, seen, &err));
    if (!(farthest(plain, seen, n) < 2e-5))
        fail_msg("%s: putting values back changes logits by %g", what, farthest(plain, seen, n));
    drop(&k);
    sd_net_ws_free(ws);
    free(ids);
    free(plain);
    free(seen);
}

static const struct {
    const char *kind, *options;
} kinds[] = {{"softmax", ""},
             {"sd", ""},
             {"sd", "softmax=none"},
             {"sd", "diag=scalar"},
             {"elu1", "features=skew"},
             {"elu1", ""},
             {"bilinear", ""},
             {"uniform", ""},
             {"potential", ""},
             {"window", "window=6"},
             {"potential", "diag=input"}};

static void test_kinds(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        sd_config c;
        test_config(&c, "softmax");
        sd_layer_cfg *lc = &c.layer[1];
        strcpy(lc->kind, kinds[k].kind);
        strcpy(lc->options, kinds[k].options);
        lc->planes = lc->f_rank = 2;
        sd_attn_normalize(lc);
        sd_net *net = test_net(&c, SD_F32, 3, 0.5);
        char what[64];
        snprintf(what, sizeof what, "%s %s", kinds[k].kind, kinds[k].options);
        check_net(what, net);
        sd_net_free(net);
        sd_config_free(&c);
    }
}

static void test_blocks(void **state) {
    (void)state;
    for (int k = 0; k < 24; k++) {
        sd_config c;
        test_config(&c, k % 2 ? "softmax" : "sd");
        c.block = (sd_block)(k % 3);
        c.norm = k % 3 == SD_BLOCK_POST || k % 4 == 1 ? SD_NORM_LAYER
                 : k % 4 == 2                         ? SD_NORM_RMS
                                                      : SD_NORM_NONE;
        c.final_norm = c.norm != SD_NORM_NONE && k % 3 != SD_BLOCK_POST;
        c.gated_mlp = k % 5 < 2;
        c.mlp_bias = !c.gated_mlp;
        c.qkv_bias = c.out_bias = k % 7 < 3;
        c.causal = k % 2 == 0 || k % 4 == 1;
        for (int l = 0; l < 2; l++) {
            c.layer[l].n_head = 4;
            c.layer[l].n_kv_head = k % 4 == 0 ? 4 : 2;
        }
        sd_net *net = test_net(&c, SD_F32, 9, 0.4);
        char what[32];
        snprintf(what, sizeof what, "block form %d", k);
        check_net(what, net);
        sd_net_free(net);
        sd_config_free(&c);
    }
}

/* ---- changes that have an independent answer ---- */

static sd_status zero_head(void *ctx, sd_site *s, sd_err *e) {
    (void)e;
    size_t w = (size_t)s->shape[3], h = (size_t)s->shape[2];
    for (size_t r = 0; r < s->n / (h * w); r++)
        memset(s->x + (r * h + (size_t) * (int *)ctx) * w, 0, w * sizeof *s->x);
    s->edited = true;
    return SD_OK;
}

static sd_status shift_scores(void *ctx, sd_site *s, sd_err *e) {
    (void)ctx, (void)e;
    size_t t = (size_t)s->tokens;
    for (size_t r = 0; r < s->n / t; r++)
        for (size_t j = 0; j < t; j++)
            s->x[r * t + j] += (float)(r % 7); /* along a row: softmax does not see it */
    s->edited = true;
    return SD_OK;
}

static sd_status first_key(void *ctx, sd_site *s, sd_err *e) {
    (void)ctx, (void)e;
    size_t t = (size_t)s->tokens;
    memset(s->x, 0, s->n * sizeof *s->x);
    for (size_t r = 0; r < s->n / t; r++)
        s->x[r * t] = 1;
    s->edited = true;
    return SD_OK;
}

static sd_status to_zero(void *ctx, sd_site *s, sd_err *e) {
    (void)ctx, (void)e;
    memset(s->x, 0, s->n * sizeof *s->x);
    s->edited = true;
    return SD_OK;
}

static void test_changes(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    sd_net *net = test_net(&c, SD_F32, 9, 0.5), *cut = test_net(&c, SD_F32, 9, 0.5);
    int32_t *ids = some_ids(c.vocab);
    size_t n = (size_t)(B * T * c.vocab);
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *plain = malloc(n * sizeof *b);
    sd_net_ws *ws = test_ws(net, B, T, false, NULL, 2), *ws2 = test_ws(cut, B, T, false, NULL, 2);
    int head = 1;
    sd_hook h = {.point = SD_POINT_Z, .layer = 1, .fn = zero_head, .ctx = &head};
    sd_net_batch with = {.batch = B, .tokens = T, .ids = ids, .hooks = &h, .n_hooks = 1};
    sd_net_batch without = {.batch = B, .tokens = T, .ids = ids};
    OK(sd_net_forward(net, ws, &without, NULL, NULL, plain, &err));
    OK(sd_net_forward(net, ws, &with, NULL, NULL, a, &err));
    const sd_net_slice *wo = sd_net_find(cut, 1, SD_ROLE_WO);
    memset((float *)sd_net_params(cut) + wo->offset + (size_t)(6 * c.d_model), 0,
           (size_t)(6 * c.d_model) * sizeof(float));
    OK(sd_net_forward(cut, ws2, &without, NULL, NULL, b, &err));
    assert_true(farthest(a, b, n) < 1e-5);
    assert_true(farthest(a, plain, n) > 1e-3);
    h = (sd_hook){.point = SD_POINT_SCORES, .layer = -1, .fn = shift_scores};
    OK(sd_net_forward(net, ws, &with, NULL, NULL, a, &err));
    assert_true(farthest(a, plain, n) < 2e-5);
    /* everything on the first token: z is its value */
    keep k = {0};
    sd_hook two[3] = {{.point = SD_POINT_PATTERN, .layer = 0, .fn = first_key},
                      {.point = SD_POINT_Z, .layer = 0, .fn = take, .ctx = &k},
                      {.point = SD_POINT_V, .layer = 0, .fn = take, .ctx = &k}};
    with.hooks = two;
    with.n_hooks = 3;
    OK(sd_net_forward(net, ws, &with, NULL, NULL, a, &err));
    const float *z = kept(&k, SD_POINT_Z, 0), *v = kept(&k, SD_POINT_V, 0);
    for (int r = 0; r < B * T; r++)
        assert_memory_equal(z + r * 12, v + r / T * T * 12, 12 * sizeof(float));
    drop(&k);
    /* a block whose parts give nothing */
    sd_hook off[3] = {{.point = SD_POINT_ATTN_OUT, .layer = 1, .fn = to_zero},
                      {.point = SD_POINT_MLP_OUT, .layer = 1, .fn = to_zero},
                      {.point = SD_POINT_FINAL, .layer = -1, .fn = take, .ctx = &k}};
    sd_hook pre = {.point = SD_POINT_RESID_PRE, .layer = 1, .fn = take, .ctx = &k};
    sd_hook all[4] = {pre, off[0], off[1], off[2]};
    with.hooks = all;
    with.n_hooks = 4;
    OK(sd_net_forward(net, ws, &with, NULL, NULL, a, &err));
    assert_memory_equal(kept(&k, SD_POINT_RESID_PRE, 1), kept(&k, SD_POINT_FINAL, 1),
                        (size_t)(B * T * c.d_model) * sizeof(float));
    drop(&k);
    sd_net_ws_free(ws);
    sd_net_ws_free(ws2);
    sd_net_free(net);
    sd_net_free(cut);
    sd_config_free(&c);
    free(ids);
    free(a);
    free(b);
    free(plain);
}

/* ---- a model that carries hooks ---- */

static int destroyed;

static void count_destroy(void *ctx) {
    (void)ctx;
    destroyed++;
}

static sd_status refuse(void *ctx, sd_site *s, sd_err *e) {
    (void)s;
    if (*(int *)ctx)
        return sd_fail(e, SD_EINVAL, "it does not want to");
    return SD_OK;
}

static sd_status again(void *ctx, sd_site *s, sd_err *e) {
    int32_t id = 1;
    float h[400];
    (void)s;
    return sd_forward(ctx, &id, 1, 1, NULL, h, NULL, e);
}

static void test_model(void **state) {
    (void)state;
    sd_model *m = NULL, *n = NULL, *k = NULL;
    OK(sd_model_open("data/interim-sd", NULL, &m, &err));
    OK(sd_model_clone(m, &n, &err));
    size_t v = (size_t)sd_model_config(m)->vocab, hooks = 0;
    int32_t ids[9] = {5, 4, 3, 100, 7, 8, 9, 10, 11}, targets[9] = {4, 3, 100, 7, 8, 9, 10, 11, -1};
    float *a = malloc(9 * v * sizeof *a), *b = malloc(9 * v * sizeof *b);
    double na[9], nb[9];
    int no = 0, head = 2;
    destroyed = 0;
    OK(sd_forward(m, ids, 1, 9, NULL, NULL, a, &err));
    OK(sd_forward_nll(m, ids, targets, 1, 9, NULL, na, &err));
    OK(sd_model_add_hook(n,
                         &(sd_hook){.point = SD_POINT_Z, .layer = 3, .fn = zero_head, .ctx = &head},
                         count_destroy, &err));
    OK(sd_model_add_hook(
        n, &(sd_hook){.point = SD_POINT_RESID_POST, .layer = 3, .fn = refuse, .ctx = &no}, NULL,
        &err));
    OK(sd_model_clone(n, &k, &err));
    sd_model_hooks(k, &hooks);
    assert_int_equal(hooks, 2);
    sd_model_hooks(m, &hooks);
    assert_int_equal(hooks, 0);
    OK(sd_forward(k, ids, 1, 9, NULL, NULL, b, &err));
    assert_true(farthest(a, b, 9 * v) > 1e-2);
    OK(sd_forward_nll(k, ids, targets, 1, 9, NULL, nb, &err));
    assert_true(fabs(na[5] - nb[5]) > 1e-5);
    float *last = malloc(v * sizeof *last);
    OK(sd_forward(k, ids, 1, 9, &(sd_forward_opts){.last_logits = true}, NULL, last, &err));
    assert_true(farthest(last, b + 8 * v, v) < 1e-4);
    no = 1;
    assert_int_equal(sd_forward(k, ids, 1, 9, NULL, NULL, b, &err), SD_EINVAL);
    assert_string_equal(err.text, "resid_post of layer 3: it does not want to");
    no = 0;
    OK(sd_forward(k, ids, 1, 9, NULL, NULL, b, &err));
    assert_int_equal(sd_model_save(k, "/tmp/sd-hooked", NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "cannot be saved"));
    OK(sd_model_add_hook(
        k, &(sd_hook){.point = SD_POINT_MLP_OUT, .layer = 0, .fn = again, .ctx = k}, NULL, &err));
    assert_int_equal(sd_forward(k, ids, 1, 9, NULL, NULL, b, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "mlp_out of layer 0: "));
    assert_non_null(strstr(err.text, "in the middle of a pass"));
    sd_model_unref(n);
    assert_int_equal(destroyed, 0);
    sd_model_unref(k);
    assert_int_equal(destroyed, 1);
    OK(sd_forward(m, ids, 1, 9, NULL, NULL, b, &err));
    assert_memory_equal(a, b, 9 * v * sizeof *a);
    sd_model_unref(m);
    free(a);
    free(b);
    free(last);
}

static void test_names(void **state) {
    (void)state;
    char all[512] = "";
    for (int i = 0; i < SD_POINT_COUNT; i++) {
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? "|" : "",
                 sd_point_name((sd_point)i));
        assert_int_equal(sd_point_find(sd_point_name((sd_point)i)), i);
        assert_true(strlen(sd_point_doc((sd_point)i)) > 3);
    }
    assert_string_equal(all, SD_POINT_CHOICES);
    assert_int_equal(sd_point_find("residual"), SD_POINT_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),   cmocka_unit_test(test_kinds), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
