/* The compute form as a whole: gradients against PyTorch autograd (tests/ref/grads.txt, made by
 * grads.py), the same bits for any number of threads and with recomputation, token-weighted
 * accumulation, refusals, CASES P06 and P09. */
#include <math.h>

#include "base/mem.h"
#include "base/run.h"
#include "net_help.h"

static void configure(sd_config *c, const char *name, int *B, int *T, bool *holes) {
    bool sd = strncmp(name, "sd", 2) == 0;
    test_config(c, sd ? "sd" : strcmp(name, "elu1") == 0 ? "elu1" : "softmax");
    *B = 2, *T = 7, *holes = false;
    if (strcmp(name, "gpt2") == 0) {
        c->norm = SD_NORM_LAYER;
        c->final_norm = c->qkv_bias = c->out_bias = true;
        c->act = SD_ACT_GELU_TANH;
        c->embed_scale = 1;
        *B = 1, *T = 70;
    } else if (strcmp(name, "sd_norm") == 0) {
        c->norm = SD_NORM_LAYER;
        c->final_norm = *holes = true;
        *B = 1, *T = 67;
    } else if (strcmp(name, "elu1") == 0) {
        *B = 1, *T = 66;
    } else if (strcmp(name, "llama") == 0) {
        c->norm = SD_NORM_RMS;
        c->final_norm = c->gated_mlp = true;
        c->act = SD_ACT_SILU;
        c->pos = SD_POS_ROPE;
        c->rope.dim = 4;
        c->tied = c->mlp_bias = false;
        c->embed_scale = 1;
        for (int l = 0; l < 2; l++)
            c->layer[l].n_head = 4;
    } else if (strcmp(name, "neox") == 0) {
        c->norm = SD_NORM_LAYER;
        c->final_norm = c->qkv_bias = c->out_bias = true;
        c->block = SD_BLOCK_PARALLEL;
        c->pos = SD_POS_ROPE;
        c->rope.dim = 2;
        c->tied = false;
        c->embed_scale = 1;
    } else if (strcmp(name, "bert") == 0) {
        c->norm = SD_NORM_LAYER;
        c->block = SD_BLOCK_POST;
        c->causal = false;
        c->n_type = 2;
        c->embed_norm = c->mlm_head = c->qkv_bias = c->out_bias = *holes = true;
        c->embed_scale = 1;
    }
}

static void test_pytorch(void **state) {
    (void)state;
    FILE *f = fopen("tests/ref/grads.txt", "r");
    assert_non_null(f);
    char name[64];
    double loss;
    int n_slices, cases = 0;
    while (fscanf(f, " case %63s loss %lf slices %d", name, &loss, &n_slices) == 3) {
        sd_config c;
        int B, T;
        bool holes;
        configure(&c, name, &B, &T, &holes);
        size_t n = (size_t)(B * T);
        sd_net *net = test_net(&c, SD_F32, 11, 0.5);
        sd_net_ws *ws = test_ws(net, B, T, true, NULL, 2);
        int32_t ids[128], targets[128], types[128];
        test_ids(ids, n, c.vocab, 3);
        test_ids(targets, n, c.vocab, 4);
        test_ids(types, n, 2, 5);
        int64_t count = 0, scored = 0;
        for (size_t i = 0; i < n; i++) {
            if (holes && i % 3 == 0)
                targets[i] = -1;
            scored += targets[i] >= 0;
        }
        sd_net_batch b = {.batch = B, .tokens = T, .ids = ids, .targets = targets, .types = types};
        float *grad = calloc(sd_net_size(net), sizeof *grad);
        double nll;
        sd_err err = {0};
        if (sd_net_backward(net, ws, &b, 1.0 / (double)scored, grad, &nll, &count, NULL, &err))
            fail_msg("%s: %s", name, err.text);
        assert_int_equal(count, scored);
        if (!(fabs(nll / (double)count - loss) < 1e-5 * loss))
            fail_msg("%s: loss %.9g, PyTorch %.9g", name, nll / (double)count, loss);
        assert_int_equal(n_slices, sd_net_n_slices(net));
        double all = 0;
        for (size_t i = 0; i < sd_net_size(net); i++)
            all += (double)grad[i] * grad[i];
        for (int i = 0; i < n_slices; i++) {
            char slice[64], want[64];
            double norm, v[4], got = 0;
            assert_int_equal(
                fscanf(f, " %63s %lf %lf %lf %lf %lf", slice, &norm, v, v + 1, v + 2, v + 3), 6);
            const sd_net_slice *s = sd_net_slice_at(net, (size_t)i);
            snprintf(want, sizeof want, "%s", s->name);
            for (char *p = want; *p; p++)
                *p = *p == ' ' ? '.' : *p;
            assert_string_equal(slice, want);
            const float *g = grad + s->offset;
            for (size_t j = 0; j < s->n; j++)
                got += (double)g[j] * g[j];
            double tol = 1e-4 * norm + 1e-7 * sqrt(all);
            if (!(fabs(sqrt(got) - norm) <= tol))
                fail_msg("%s: %s: norm %.8g, PyTorch %.8g", name, slice, sqrt(got), norm);
            size_t at[4] = {0, s->n / 3, s->n / 2, s->n - 1};
            for (int k = 0; k < 4; k++)
                if (!(fabs(g[at[k]] - v[k]) <= tol))
                    fail_msg("%s: %s[%zu]: %.8g, PyTorch %.8g", name, slice, at[k], g[at[k]], v[k]);
        }
        free(grad);
        sd_net_ws_free(ws);
        sd_net_free(net);
        sd_config_free(&c);
        cases++;
    }
    fclose(f);
    assert_int_equal(cases, 8);
}

static void gradient(const sd_config *c, int threads, const bool *recompute, float **out,
                     double *nll) {
    enum { B = 3, T = 50 };
    sd_net *net = test_net(c, SD_F32, 5, 0.3);
    sd_net_ws *ws = test_ws(net, B, T, true, recompute, threads);
    int32_t ids[B * T], targets[B * T];
    test_ids(ids, B * T, c->vocab, 1);
    test_ids(targets, B * T, c->vocab, 2);
    sd_net_batch b = {.batch = B, .tokens = T, .ids = ids, .targets = targets};
    int64_t count;
    sd_err err = {0};
    *out = calloc(sd_net_size(net), sizeof **out);
    assert_int_equal(sd_net_backward(net, ws, &b, 0.01, *out, nll, &count, NULL, &err), SD_OK);
    sd_net_ws_free(ws);
    sd_net_free(net);
}

static void test_same_bits(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    c.norm = SD_NORM_LAYER;
    c.final_norm = true;
    strcpy(c.layer[1].kind, "elu1");
    sd_net *net = test_net(&c, SD_F32, 5, 0.3);
    size_t bytes = sd_net_size(net) * sizeof(float);
    sd_net_free(net);
    static const bool all[2] = {true, true};
    float *g0, *g;
    double n0, n1;
    gradient(&c, 1, NULL, &g0, &n0);
    for (int k = 0; k < 3; k++) {
        gradient(&c, k == 0 ? 2 : k == 1 ? 3 : 1, k == 2 ? all : NULL, &g, &n1);
        assert_memory_equal(&n0, &n1, sizeof n0);
        assert_memory_equal(g0, g, bytes);
        free(g);
    }
    free(g0);
    sd_config_free(&c);
}

/* f32 against f64 over a sequence longer than a tile of keys and a block of packed operands, with
 * head widths that fill no strip; also wide heads (more than one packed block of rows). */
static void test_long(void **state) {
    (void)state;
    enum { T = 300 };
    static const char *kinds[] = {"sd", "softmax", "elu1"};
    for (int k = 0; k < 4; k++) {
        sd_config c;
        test_config(&c, kinds[k % 3]);
        c.n_pos = T;
        c.causal = k != 1;
        for (int l = 0; l < 2; l++) {
            c.layer[l].d_qk = k == 3 ? 150 : 19 + l;
            c.layer[l].scale = 0.1;
            c.layer[l].d_v = k == 3 ? 270 : 33;
        }
        sd_net *a = test_net(&c, SD_F32, 5, 0.2), *b = test_net(&c, SD_F64, 5, 0.2);
        for (size_t i = 0; i < sd_net_size(a); i++)
            ((double *)sd_net_params(b))[i] = ((float *)sd_net_params(a))[i];
        sd_net_ws *wa = test_ws(a, 1, T, true, NULL, 2), *wb = test_ws(b, 1, T, true, NULL, 2);
        int32_t ids[T], targets[T];
        test_ids(ids, T, c.vocab, 1);
        test_ids(targets, T, c.vocab, 2);
        sd_net_batch x = {.batch = 1, .tokens = T, .ids = ids, .targets = targets};
        float *ga = calloc(sd_net_size(a), sizeof *ga);
        double *gb = calloc(sd_net_size(b), sizeof *gb), na, nb, all = 0;
        int64_t count;
        sd_err err = {0};
        assert_int_equal(sd_net_backward(a, wa, &x, 1.0 / T, ga, &na, &count, NULL, &err), SD_OK);
        assert_int_equal(sd_net_backward(b, wb, &x, 1.0 / T, gb, &nb, &count, NULL, &err), SD_OK);
        assert_true(fabs(na - nb) < 1e-5 * nb);
        for (size_t i = 0; i < sd_net_size(b); i++)
            all += gb[i] * gb[i];
        for (size_t i = 0; i < sd_net_n_slices(b); i++) {
            const sd_net_slice *s = sd_net_slice_at(b, i);
            double norm = 0, diff = 0;
            for (size_t j = 0; j < s->n; j++) {
                double d = ga[s->offset + j] - gb[s->offset + j];
                norm += gb[s->offset + j] * gb[s->offset + j];
                diff += d * d;
            }
            if (!(sqrt(diff) <= 1e-4 * sqrt(norm) + 1e-6 * sqrt(all)))
                fail_msg("%s %d: %s: f32 differs by %.3g of %.3g", kinds[k % 3], k, s->name,
                         sqrt(diff), sqrt(norm));
        }
        free(ga);
        free(gb);
        sd_net_ws_free(wa);
        sd_net_ws_free(wb);
        sd_net_free(a);
        sd_net_free(b);
        sd_config_free(&c);
    }
}

/* Two sequences at once = one after the other with the same scale. */
static void test_accumulate(void **state) {
    (void)state;
    enum { T = 9 };
    sd_config c;
    test_config(&c, "sd");
    sd_net *net = test_net(&c, SD_F64, 5, 0.4);
    sd_net_ws *ws = test_ws(net, 2, T, true, NULL, 2);
    int32_t ids[2 * T], targets[2 * T];
    test_ids(ids, 2 * T, c.vocab, 1);
    test_ids(targets, 2 * T, c.vocab, 2);
    targets[3] = targets[4] = -1;
    double *a = calloc(sd_net_size(net), sizeof *a), *b = calloc(sd_net_size(net), sizeof *b);
    double nll, part, sum = 0;
    int64_t count;
    sd_err err = {0};
    sd_net_batch both = {.batch = 2, .tokens = T, .ids = ids, .targets = targets};
    assert_int_equal(sd_net_backward(net, ws, &both, 1.0 / 16, a, &nll, &count, NULL, &err), 0);
    assert_int_equal(count, 16);
    for (int k = 0; k < 2; k++) {
        sd_net_batch one = {
            .batch = 1, .tokens = T, .ids = ids + k * T, .targets = targets + k * T};
        assert_int_equal(sd_net_backward(net, ws, &one, 1.0 / 16, b, &part, &count, NULL, &err), 0);
        sum += part;
    }
    assert_true(fabs(sum - nll) < 1e-11);
    for (size_t i = 0; i < sd_net_size(net); i++)
        assert_true(fabs(a[i] - b[i]) < 1e-12);
    free(a);
    free(b);
    sd_net_ws_free(ws);
    sd_net_free(net);
    sd_config_free(&c);
}

/* CASES P06 (a): an all-zero model has NLL ln V exactly; also untied and for several V. */
static void test_uniform_loss(void **state) {
    (void)state;
    static const int vocab[] = {17, 50257, 50304};
    for (int k = 0; k < 3; k++) {
        sd_config c;
        test_config(&c, "sd");
        c.vocab = vocab[k];
        sd_net *net = test_net(&c, SD_F32, 1, 0);
        sd_net_ws *ws = test_ws(net, 1, 5, false, NULL, 2);
        int32_t ids[5] = {0, 1, 2, 3, 4}, targets[5] = {1, 2, -1, 4, 16};
        sd_net_batch b = {.batch = 1, .tokens = 5, .ids = ids, .targets = targets};
        double nll, each[5];
        int64_t count;
        sd_err err = {0};
        assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, each, &err), SD_OK);
        assert_int_equal(count, 4);
        assert_true(fabs(nll / 4 - log(vocab[k])) < 1e-6);
        assert_true(each[2] == 0 && fabs(each[0] - log(vocab[k])) < 1e-6);
        sd_net_ws_free(ws);
        sd_net_free(net);
        sd_config_free(&c);
    }
}

static void test_refusals(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    c.n_pos = 8;
    sd_net *net = test_net(&c, SD_F32, 1, 0.3);
    sd_net_ws *ws = test_ws(net, 1, 9, false, NULL, 1);
    int32_t ids[9] = {0}, targets[9] = {0};
    sd_net_batch b = {.batch = 1, .tokens = 9, .ids = ids, .targets = targets};
    double nll;
    int64_t count;
    float grad[1];
    sd_err err = {0};
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "9"));
    assert_non_null(strstr(err.text, "8"));
    b.tokens = 8;
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_OK);
    assert_int_equal(sd_net_backward(net, ws, &b, 1, grad, &nll, &count, NULL, &err), SD_EINVAL);
    ids[2] = c.vocab;
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_EINVAL);
    ids[2] = 0;
    targets[1] = -2;
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_EINVAL);
    targets[1] = 0;
    sd_cancel_flag = 1;
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    assert_int_equal(sd_net_loss(net, ws, &b, &nll, &count, NULL, &err), SD_OK);
    sd_net_ws_free(ws);
    sd_net_free(net);
    net = NULL;
    strcpy(c.layer[1].kind, "nonsense");
    assert_int_equal(sd_net_build(&c, SD_F32, &net, &err), SD_EINVAL);
    assert_null(net);
    assert_non_null(strstr(err.text, "nonsense"));
    strcpy(c.layer[1].kind, "elu1");
    c.causal = false;
    assert_int_equal(sd_net_build(&c, SD_F32, &net, &err), SD_EINVAL);
    sd_config_free(&c);
}

/* What the training issue asks of memory: the 125M preset at 1 × 1024, with parameters, gradient
 * and two moments, below 6 GB; recomputation takes less. */
static void test_memory(void **state) {
    (void)state;
    sd_config c;
    sd_err err = {0};
    assert_int_equal(sd_config_init(&c, 12, &err), SD_OK);
    c.d_model = 768;
    c.d_ff = 3072;
    c.vocab = 50257;
    c.n_pos = 1024;
    c.causal = c.tied = c.has_head = c.mlp_bias = true;
    for (int l = 0; l < 12; l++) {
        strcpy(c.layer[l].kind, "sd");
        c.layer[l].n_head = c.layer[l].n_kv_head = 12;
        c.layer[l].d_qk = c.layer[l].d_v = 64;
        c.layer[l].scale = 0.08838834764831845;
    }
    sd_net *net = NULL;
    assert_int_equal(sd_net_build(&c, SD_F32, &net, &err), SD_OK);
    bool all[12];
    memset(all, 1, sizeof all);
    sd_net_plan keep = {1, 1024, 2, true, NULL}, again = {1, 1024, 2, true, all};
    size_t a = sd_net_ws_bytes(net, &keep), b = sd_net_ws_bytes(net, &again);
    assert_true(a + 4 * sd_net_size(net) * sizeof(float) < (size_t)6e9);
    assert_true(b < a * 6 / 10);
    sd_net_plan huge = {INT32_MAX, INT32_MAX, 2, true, NULL};
    sd_net_ws *ws = NULL;
    assert_int_not_equal(sd_net_ws_new(net, &huge, &ws, &err), SD_OK);
    assert_null(ws);
    sd_net_free(net);
    sd_config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pytorch),    cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_accumulate), cmocka_unit_test(test_uniform_loss),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_memory),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
