/* Decoding token by token: equal to full forward passes, for every family, kind and mixture of
 * kinds; memory; refusals; choosing tokens. */
#include <math.h>

#include "net_help.h"
#include "nn/decode.h"
#include "nn/forward.h"
#include "nn/price.h"

static sd_err err;
#define OK(expr_)                                                            \
    do {                                                                     \
        sd_err_clear(&err);                                                  \
        if ((expr_) != SD_OK)                                                \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #expr_, err.text); \
    } while (0)

/* Feeds `n` ids in pieces of the given sizes (the last repeats) and compares the logits after each
 * piece with the rows of a full pass. */
static void compare_net(const char *what, const sd_net *net, int n, const int *piece, double tol) {
    size_t v = (size_t)sd_net_config(net)->vocab;
    bool f64 = sd_net_dtype(net) == SD_F64;
    size_t es = f64 ? 8 : 4;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t seed = 5;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((0.5 + 0.5 * test_uniform(&seed)) * (double)v);
    void *full = malloc((size_t)n * v * es), *one = malloc(v * es);
    sd_net_ws *ws = test_ws(net, 1, n, false, NULL, 2);
    sd_net_batch b = {.batch = 1, .tokens = n, .ids = ids};
    OK(sd_net_forward(net, ws, &b, NULL, NULL, full, &err));
    for (int threads = 1; threads <= 2; threads++) {
        sd_decoder *d = NULL;
        sd_decode_plan plan = {.capacity = n, .rows = 50, .threads = threads};
        OK(sd_decoder_new(net, &plan, &d, &err));
        for (int again = threads; again < 3; again++, sd_decoder_reset(d))
            for (int at = 0, k = 0; at < n;) {
                int m = piece[k] < n - at ? piece[k] : n - at;
                k += piece[k + 1] > 0;
                OK(sd_decoder_feed(d, ids + at, m, one, &err));
                at += m;
                assert_int_equal(sd_decoder_len(d), at);
                for (size_t j = 0; j < v; j++) {
                    size_t i = (size_t)(at - 1) * v + j;
                    double x = f64 ? ((double *)full)[i] : (double)((float *)full)[i];
                    double y = f64 ? ((double *)one)[j] : (double)((float *)one)[j];
                    if (!(fabs(x - y) <= tol * (1 + fabs(x))))
                        fail_msg(
                            "%s, %d threads, token %d, logit %zu: %.12g at once, %.12g stepwise",
                            what, threads, at - 1, j, x, y);
                }
            }
        sd_decoder_free(d);
    }
    sd_net_ws_free(ws);
    free(ids);
    free(full);
    free(one);
}

static const int steps[] = {1, 0}, prompt[] = {23, 1, 7, 1, 0}, long_prompt[] = {60, 1, 0};

static const struct {
    const char *kind, *options;
} kinds[] = {{"softmax", ""},           {"sd", ""},
             {"sd", "softmax=none"},    {"sd", "diag=scalar"},
             {"elu1", "features=skew"}, {"elu1", ""},
             {"bilinear", ""},          {"uniform", ""},
             {"potential", ""},         {"potential", "diag=input"},
             {"window", "window=9"},    {"sd", "window=33"}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void set_kind(sd_layer_cfg *lc, int k) {
    strcpy(lc->kind, kinds[k].kind);
    strcpy(lc->options, kinds[k].options);
    lc->d_qk = 4;
    lc->planes = 3;
    lc->f_rank = 2;
    sd_attn_normalize(lc);
}

/* Every kind beside every other, in f64. */
static void test_kinds(void **state) {
    (void)state;
    for (int a = 0; a < N_KINDS; a++)
        for (int b = 0; b < N_KINDS; b++) {
            sd_config c;
            test_config(&c, "sd");
            set_kind(&c.layer[0], a);
            set_kind(&c.layer[1], b);
            sd_net *net = test_net(&c, SD_F64, 3, 0.6);
            char what[128];
            snprintf(what, sizeof what, "%s %s + %s %s", kinds[a].kind, kinds[a].options,
                     kinds[b].kind, kinds[b].options);
            compare_net(what, net, a == b ? 140 : 70,
                        (a + b) % 3 == 0   ? steps
                        : (a + b) % 3 == 1 ? prompt
                                           : long_prompt,
                        1e-9);
            sd_net_free(net);
            sd_config_free(&c);
        }
}

/* Grouped keys, rotary positions in both styles, every block form, norms, gates, embedding norm. */
static void test_blocks(void **state) {
    (void)state;
    for (int k = 0; k < 48; k++) {
        sd_config c;
        test_config(&c, k % 2 ? "softmax" : "elu1");
        c.block = (sd_block)(k % 3);
        c.norm = k % 3 == SD_BLOCK_POST || k % 4 == 1 ? SD_NORM_LAYER
                 : k % 4 == 2                         ? SD_NORM_RMS
                                                      : SD_NORM_NONE;
        c.final_norm = c.norm != SD_NORM_NONE && k % 3 != SD_BLOCK_POST;
        c.embed_norm = c.norm != SD_NORM_NONE && k % 5 == 0;
        c.gated_mlp = k % 5 < 2;
        c.mlp_bias = !c.gated_mlp;
        c.qkv_bias = k % 7 < 3;
        c.tied = k % 4 < 2;
        if (k % 8 >= 3) {
            c.pos = SD_POS_ROPE;
            c.rope = (sd_rope_cfg){.dim = k % 3 ? 4 : 2,
                                   .style = k % 2 ? SD_ROPE_HALF : SD_ROPE_INTERLEAVED,
                                   .theta = 10000,
                                   .scaling = "none"};
        }
        for (int l = 0; l < 2; l++) {
            c.layer[l].n_head = 4;
            c.layer[l].n_kv_head = k % 4 == 0 ? 4 : k % 4 == 1 ? 2 : 1;
        }
        sd_net *net = test_net(&c, SD_F64, 9, 0.5);
        char what[32];
        snprintf(what, sizeof what, "block form %d", k);
        compare_net(what, net, 70, k % 2 ? prompt : steps, 1e-9);
        sd_net_free(net);
        sd_config_free(&c);
    }
}

/* Greedy text of a model on disk: equal to repeated full passes, token for token. */
static void greedy(const char *path, int n_prompt, int n) {
    sd_model *m = NULL;
    OK(sd_model_open(path, NULL, &m, &err));
    const sd_config *c = sd_model_config(m);
    size_t v = (size_t)c->vocab;
    if (c->n_pos > 0 && n > c->n_pos)
        n = c->n_pos;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t seed = 17;
    for (int i = 0; i < n_prompt; i++)
        ids[i] = (int32_t)((0.5 + 0.5 * test_uniform(&seed)) * (double)v);
    float *logits = malloc(v * sizeof *logits), *full = malloc((size_t)n * v * sizeof *full);
    const sd_net *net = NULL;
    OK(sd_forward_net(m, &net, &err));
    sd_decoder *d = NULL;
    sd_decode_plan plan = {.capacity = n, .rows = n_prompt, .threads = 2};
    OK(sd_decoder_new(net, &plan, &d, &err));
    OK(sd_decoder_feed(d, ids, n_prompt, logits, &err));
    for (int t = n_prompt; t < n; t++) {
        OK(sd_sample(&(sd_sampling){.top_p = 1}, v, logits, NULL, NULL, &ids[t], &err));
        OK(sd_forward(m, ids, 1, t, NULL, NULL, full, &err));
        const float *row = full + (size_t)(t - 1) * v;
        size_t best = 0;
        for (size_t j = 1; j < v; j++)
            if (row[j] > row[best])
                best = j;
        if ((int32_t)best != ids[t])
            fail_msg("%s: token %d is %d stepwise, %zu by a full pass (logits %.9g, %.9g)", path, t,
                     ids[t], best, (double)row[ids[t]], (double)row[best]);
        if (t + 1 < n)
            OK(sd_decoder_feed(d, &ids[t], 1, logits, &err));
    }
    sd_decoder_free(d);
    sd_model_unref(m);
    free(ids);
    free(logits);
    free(full);
}

static void test_families(void **state) {
    (void)state;
#define R "tests/ref/models/"
    static const char *const paths[] = {
        R "gpt2",      R "gpt2-bylayer", R "gpt2-unscaled", R "gpt2-untied",
        R "llama",     R "llama-bias",   R "llama-g10",     R "llama-g10-gguf/model.gguf",
        R "llama-gqa", R "llama-linear", R "llama-llama3",  R "llama-llama3-gguf/model.gguf",
        R "mistral",   R "neox",         R "neox-serial",   R "qwen2"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        greedy(paths[i], 5, 40);
    greedy("data/interim-sd", 40, 72);
    greedy("data/interim-gpt2", 40, 72);
}

/* Memory: the cache grows with the capacity, the state does not. */
static void test_memory(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "elu1");
    c.pos = SD_POS_NONE;
    sd_net *net = test_net(&c, SD_F32, 3, 0.5);
    size_t cache[2], st[2];
    for (int i = 0; i < 2; i++) {
        sd_decoder *d = NULL;
        OK(sd_decoder_new(net,
                          &(sd_decode_plan){.capacity = i ? 1000000 : 10, .rows = 1, .threads = 1},
                          &d, &err));
        sd_decoder_bytes(d, &cache[i], &st[i]);
        sd_decoder_free(d);
    }
    assert_int_equal(cache[1], 0);
    assert_int_equal(st[0], st[1]);
    assert_true(st[0] > 0);
    sd_net_free(net);
    sd_config_free(&c);
}

/* The price of a config is what a decoder of it takes. */
static void test_price(void **state) {
    (void)state;
    enum { N = 64 };
    for (int i = 0; i < N_KINDS; i++) {
        sd_config c;
        test_config(&c, kinds[i].kind);
        for (int l = 0; l < c.n_layer; l++)
            set_kind(&c.layer[l], i);
        sd_net *net = test_net(&c, SD_F32, 3, 0.5);
        sd_decoder *d = NULL;
        size_t cache, st;
        OK(sd_decoder_new(net, &(sd_decode_plan){.capacity = N, .rows = 1, .threads = 1}, &d,
                          &err));
        sd_decoder_bytes(d, &cache, &st);
        sd_price p;
        sd_price_of(&c, N, &p);
        assert_int_equal(p.recurrent, sd_attn_of(&c.layer[0])->recurrent ? c.n_layer : 0);
        bool window = sd_attn_window(&c.layer[0]) > 0;
        /* each block of the decoder is rounded up to 64 bytes, each head's state to 8 numbers */
        double slack = 64.0 * c.n_layer * c.layer[0].n_kv_head;
        assert_true(p.cache_bytes <= (double)cache);
        assert_true(window || (double)cache <= p.cache_bytes + slack);
        assert_true(p.state_bytes <= (double)st && (double)st <= p.state_bytes + slack);
        assert_true(p.flops == sd_net_flops(net, N, false) && p.attn_flops < p.flops);
        int64_t shape[2], attn = 0;
        int ndim;
        for (int l = 0; l < c.n_layer; l++)
            for (int r = 0; r < SD_ROLE_COUNT; r++) {
                bool mlp = (r >= SD_ROLE_NORM2_G && r <= SD_ROLE_B2) || r == SD_ROLE_NORM1_G ||
                           r == SD_ROLE_NORM1_B || sd_role_is_global((sd_role)r);
                if (!mlp && sd_role_shape(&c, l, (sd_role)r, shape, &ndim))
                    attn += shape[0] * (ndim == 2 ? shape[1] : 1);
            }
        assert_int_equal(p.attn_params, attn);
        sd_decoder_free(d);
        sd_net_free(net);
        sd_config_free(&c);
    }
}

static void test_refusals(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "softmax");
    sd_net *net = test_net(&c, SD_F32, 3, 0.5);
    sd_decoder *d = NULL;
    assert_int_equal(sd_decoder_new(net, &(sd_decode_plan){.capacity = 161}, &d, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "161 tokens: the position table holds 160"));
    OK(sd_decoder_new(net, &(sd_decode_plan){.capacity = 3, .threads = 1}, &d, &err));
    int32_t ids[4] = {1, 2, 3, 17};
    assert_int_equal(sd_decoder_feed(d, ids + 3, 1, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "token id 17 at position 0: the vocabulary has 17"));
    OK(sd_decoder_feed(d, ids, 3, NULL, &err));
    assert_int_equal(sd_decoder_feed(d, ids, 1, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "1 tokens after 3: the decoder was planned for 3"));
    sd_decoder_free(d);
    sd_net_free(net);
    c.causal = false;
    net = test_net(&c, SD_F32, 3, 0.5);
    assert_int_equal(sd_decoder_new(net, &(sd_decode_plan){.capacity = 3}, &d, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "encoder"));
    sd_net_free(net);
    sd_config_free(&c);
}

/* Frequencies against the shares that the settings leave. */
static void draw(const sd_sampling *s, const float *logits, const double *want, int v) {
    enum { N = 40000, V = 8 };
    int count[V] = {0};
    sd_sample_item work[V];
    sd_rng rng;
    sd_rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        int32_t id = -1;
        OK(sd_sample(s, (size_t)v, logits, &rng, work, &id, &err));
        count[id]++;
    }
    for (int i = 0; i < v; i++)
        if (!(fabs((double)count[i] / N - want[i]) < 4 * sqrt(want[i] * (1 - want[i]) / N) + 1e-12))
            fail_msg("token %d drawn %d of %d times, its share is %g", i, count[i], N, want[i]);
}

static void test_sampling(void **state) {
    (void)state;
    const double p[8] = {0.05, 0.3, 0.1, 0.02, 0.25, 0.13, 0.08, 0.07};
    float x[8], hot[8];
    double half[8], sum = 0;
    for (int i = 0; i < 8; i++) {
        x[i] = (float)log(p[i]) + 3;
        hot[i] = (float)(0.5 * log(p[i]));
        sum += sqrt(p[i]);
    }
    for (int i = 0; i < 8; i++)
        half[i] = sqrt(p[i]) / sum;
    draw(&(sd_sampling){.temperature = 1, .top_p = 1}, x, p, 8);
    draw(&(sd_sampling){.temperature = 2, .top_p = 1}, x, half, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 1}, hot, half, 8);
    const double k3[8] = {0, 0.3 / 0.68, 0, 0, 0.25 / 0.68, 0.13 / 0.68, 0, 0};
    draw(&(sd_sampling){.temperature = 1, .top_p = 1, .top_k = 3}, x, k3, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 0.6}, x, k3, 8); /* .55 is not yet enough */
    const double two[8] = {0, 0.3 / 0.55, 0, 0, 0.25 / 0.55, 0, 0, 0};
    draw(&(sd_sampling){.temperature = 1, .top_p = 0.5}, x, two, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 0.8, .top_k = 3}, x, two, 8);
    const double one[8] = {0, 1};
    draw(&(sd_sampling){.temperature = 0, .top_p = 1}, x, one, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 1e-9}, x, one, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 1, .top_k = 1}, x, one, 8);
    draw(&(sd_sampling){.temperature = 1e-6, .top_p = 1}, x, one, 8);
    float same[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const double first[8] = {1}, pair[8] = {0.5, 0.5};
    draw(&(sd_sampling){.temperature = 0, .top_p = 1}, same, first, 8);
    draw(&(sd_sampling){.temperature = 1, .top_p = 1, .top_k = 2}, same, pair, 8);
    x[5] = NAN;
    int32_t id;
    assert_int_equal(sd_sample(&(sd_sampling){.top_p = 1}, 8, x, NULL, NULL, &id, &err),
                     SD_ENUMERIC);
    assert_non_null(strstr(err.text, "logit of token 5"));
}

/* The selection behind top_k, on many sizes, orders and ties. */
static void test_top_k(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int n = 1; n < 40; n++)
        for (int k = 1; k < n; k++) {
            float x[40];
            sd_sample_item work[40];
            sd_rng rng;
            sd_rng_seed(&rng, (uint64_t)(n * k));
            for (int i = 0; i < n; i++)
                x[i] = (float)(int)(6 * test_uniform(&seed));
            for (int draws = 0; draws < 20; draws++) {
                int32_t id = -1;
                int better = 0;
                OK(sd_sample(&(sd_sampling){.temperature = 50, .top_p = 1, .top_k = k}, (size_t)n,
                             x, &rng, work, &id, &err));
                for (int i = 0; i < n; i++)
                    better += x[i] > x[id] || (x[i] == x[id] && i < id);
                assert_true(better < k);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),    cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_families), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_price),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sampling), cmocka_unit_test(test_top_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
