/* Perplexity, comparison, masked pseudo-perplexity, recall: METHOD §9, CASES P03 P04 P06 P07 P09.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/rng.h"
#include "nn/forward.h"
#include "spectral/spectral.h"

static sd_err err;

static void ok(sd_status st) {
    if (st != SD_OK)
        fail_msg("status %d: %s", st, err.text);
}

static void rel(const char *what, double got, double want, double tol) {
    if (!(fabs(got - want) <= tol * fmax(1, fabs(want))))
        fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static double num(const sd_table *t, const char *col) {
    int c = sd_table_find_col(t, col);
    if (c < 0 || !sd_table_has(t, 0, c))
        fail_msg("no %s", col);
    return sd_table_num(t, 0, c);
}

/* GPT-2 layout, one layer; untied head. */
static sd_model *toy(int d, int vocab, int n_pos, bool tied) {
    sd_config c;
    sd_model *m;
    ok(sd_config_init(&c, 1, &err));
    strcpy(c.family, "gpt2");
    c.d_model = d;
    c.d_ff = d;
    c.vocab = vocab;
    c.n_pos = n_pos;
    c.causal = c.final_norm = c.has_head = true;
    c.tied = tied;
    c.norm = SD_NORM_LAYER;
    c.norm_eps = 1e-5;
    c.act = SD_ACT_GELU;
    c.pos = SD_POS_LEARNED;
    c.qkv_bias = c.out_bias = c.mlp_bias = true;
    c.embed_scale = 1;
    c.bos = 0;
    c.eos = -1;
    strcpy(c.layer[0].kind, "softmax");
    c.layer[0].n_head = c.layer[0].n_kv_head = 1;
    c.layer[0].d_qk = c.layer[0].d_v = d;
    c.layer[0].scale = 1 / sqrt(d);
    ok(sd_model_new(&c, 5, &m, &err));
    sd_config_free(&c);
    return m;
}

static void fill(sd_model *m, int layer, sd_role r, float (*f)(int64_t i, int64_t j)) {
    sd_tensor *t;
    ok(sd_model_get(m, layer, r, SD_F32, &t, &err));
    int64_t cols = t->ndim == 2 ? t->shape[1] : 1;
    for (int64_t i = 0; i < sd_tensor_numel(t); i++)
        ((float *)t->data)[i] = f(i / cols, i % cols);
    ok(sd_model_set(m, layer, r, t, &err));
    sd_tensor_free(t);
}

static float zero(int64_t i, int64_t j) {
    (void)i;
    (void)j;
    return 0;
}
static float eye(int64_t i, int64_t j) {
    return i == j ? 1 : 0;
}
static float strong(int64_t i, int64_t j) {
    return i == j ? 20 : 0;
}
static float next(int64_t i, int64_t j) {
    return (i + 1) % 16 == j ? 20 : 0;
}

/* The block does nothing: the residual is the token's one-hot row. */
static sd_model *one_hot(int n_pos, float (*head)(int64_t, int64_t)) {
    sd_model *m = toy(16, 16, n_pos, false);
    fill(m, -1, SD_ROLE_TOK, eye);
    fill(m, -1, SD_ROLE_POS, zero);
    fill(m, 0, SD_ROLE_WO, zero);
    fill(m, 0, SD_ROLE_BO, zero);
    fill(m, 0, SD_ROLE_W2, zero);
    fill(m, 0, SD_ROLE_B2, zero);
    fill(m, -1, SD_ROLE_HEAD, head);
    return m;
}

static double ppl(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *o,
                  double *tokens) {
    sd_table *t;
    ok(sd_eval_ppl(m, ids, n, o, NULL, &t, &err));
    double p = num(t, "ppl");
    if (tokens)
        *tokens = num(t, "tokens");
    sd_table_unref(t);
    return p;
}

static void p03_short_texts(void **state) {
    (void)state;
    sd_model *m = toy(8, 20, 8, true);
    int32_t ids[32];
    for (int i = 0; i < 32; i++)
        ids[i] = (i * 7 + 1) % 20;
    sd_table *t = NULL;
    for (size_t n = 0; n < 2; n++) {
        assert_int_equal(sd_eval_ppl(m, ids, n, NULL, NULL, &t, &err), SD_EINVAL);
        assert_non_null(strstr(err.text, "at least 2 tokens"));
    }
    sd_err_clear(&err);
    const size_t sizes[] = {2, 7, 8, 9, 10, 16, 17, 18};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bos = 0; bos < 2; bos++) {
            sd_eval_opts o = {.bos = bos};
            double tokens, p = ppl(m, ids, sizes[i], &o, &tokens);
            assert_true(isfinite(p) && p > 1);
            rel("tokens", tokens, (double)sizes[i] - 1 + bos, 0);
        }
    sd_eval_opts bos = {.bos = true};
    double tokens;
    assert_true(isfinite(ppl(m, ids, 1, &bos, &tokens)));
    rel("one token and BOS", tokens, 1, 0);
    /* A text that begins with the BOS gets no second one. */
    int32_t with[8] = {0};
    memcpy(with + 1, ids, 7 * sizeof *ids);
    double once = ppl(m, ids, 7, &bos, NULL);
    rel("BOS in the ids", ppl(m, with, 8, &bos, &tokens), once, 0);
    rel("its tokens", tokens, 7, 0);
    ok(sd_eval_ppl(m, with, 8, &bos, NULL, &t, &err));
    assert_non_null(strstr(sd_table_note_at(t, 0), "no second one"));
    sd_table_unref(t);
    sd_model_unref(m);
}

/* Every target once, in the first window that has it; summed by hand from logits. */
static void p04_windows_by_hand(void **state) {
    (void)state;
    enum { V = 24, N = 100 };
    sd_model *m = toy(12, V, 32, true);
    int32_t ids[N];
    sd_rng g;
    sd_rng_seed(&g, 1);
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)sd_rng_below(&g, V);
    fill(m, -1, SD_ROLE_TOK, zero);
    sd_tensor *e;
    ok(sd_model_get(m, -1, SD_ROLE_TOK, SD_F32, &e, &err));
    for (int64_t i = 0; i < sd_tensor_numel(e); i++)
        ((float *)e->data)[i] = (float)sd_rng_gauss(&g);
    ok(sd_model_set(m, -1, SD_ROLE_TOK, e, &err));
    sd_tensor_free(e);
    static const struct {
        int ctx, stride;
        bool hf;
    } c[] = {{32, 32, false}, {32, 16, false},    {32, 1, false}, {10, 7, false},
             {32, 32, true},  {33 - 1, 0, false}, {9, 9, true},   {11, 11, true}};
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        int ctx = c[k].ctx, stride = c[k].stride ? c[k].stride : ctx;
        double sum = 0, count = 0, windows = 0;
        bool seen[N] = {false};
        for (int s = 0; s < N; s += stride) {
            int len = N - 1 - s < ctx ? N - 1 - s : ctx;
            if (c[k].hf)
                len = (N - s < ctx ? N - s : ctx) - 1;
            if (len < 1 || (!c[k].hf && seen[N - 1]))
                break;
            float *lg = malloc((size_t)len * V * sizeof *lg);
            ok(sd_forward(m, ids + s, 1, len, NULL, NULL, lg, &err));
            windows++;
            for (int i = 0; i < len; i++) {
                int target = s + i + 1;
                if (seen[target])
                    continue;
                seen[target] = true;
                double z = 0;
                for (int v = 0; v < V; v++)
                    z += exp(lg[i * V + v]);
                sum += log(z) - lg[i * V + ids[target]];
                count++;
            }
            free(lg);
        }
        sd_eval_opts o = {.ctx = ctx, .stride = c[k].stride, .hf_convention = c[k].hf};
        sd_table *t;
        ok(sd_eval_ppl(m, ids, N, &o, NULL, &t, &err));
        rel("nll", num(t, "nll"), sum / count, 1e-6);
        rel("ppl", num(t, "ppl"), exp(sum / count), 1e-5);
        rel("tokens", num(t, "tokens"), count, 0);
        rel("windows", num(t, "windows"), windows, 0);
        if (!c[k].hf)
            rel("n - 1 tokens", count, N - 1, 0);
        size_t n, n2;
        const double *w = sd_table_vec(t, 0, sd_table_find_col(t, "nll_window"), &n);
        const double *cw = sd_table_vec(t, 0, sd_table_find_col(t, "count_window"), &n2);
        double a = 0, b = 0;
        for (size_t i = 0; i < n; i++) {
            a += w[i];
            b += cw[i];
        }
        // Long and short windows weigh by their tokens: exp(ΣNLL/Σcount).
        rel("from windows", exp(a / b), num(t, "ppl"), 1e-12);
        rel("counts", b, count, 0);
        assert_non_null(strstr(sd_table_heading_at(t, 0), "tokens scored"));
        sd_table_unref(t);
    }
    sd_model_unref(m);
}

static void p06_shifts(void **state) {
    (void)state;
    int32_t ids[64];
    for (int i = 0; i < 64; i++)
        ids[i] = i % 16;
    sd_model *copy = one_hot(64, strong), *count = one_hot(64, next);
    assert_true(ppl(copy, ids, 64, NULL, NULL) > 1e6);
    rel("counting", ppl(count, ids, 64, NULL, NULL), 1, 1e-6);
    // Window edges and batches do not leak: several equal windows.
    sd_eval_opts o = {.ctx = 7};
    rel("counting in windows", ppl(count, ids, 64, &o, NULL), 1, 1e-6);
    int32_t same[64] = {0};
    rel("copying one letter", ppl(copy, same, 64, NULL, NULL), 1, 1e-6);
    sd_model_unref(copy);
    sd_model_unref(count);
    const int v[] = {50257, 50304};
    const double want[] = {10.824905, 10.825840};
    for (int i = 0; i < 2; i++) {
        sd_model *m = toy(2, v[i], 16, true);
        fill(m, -1, SD_ROLE_TOK, zero);
        sd_table *t;
        ok(sd_eval_ppl(m, ids, 20, NULL, NULL, &t, &err));
        rel("ln V", num(t, "nll"), want[i], 5e-8);
        rel("ln V", num(t, "nll"), log(v[i]), 1e-7);
        sd_table_unref(t);
        sd_model_unref(m);
    }
}

static void p07_expected_tokens(void **state) {
    (void)state;
    sd_model *m = one_hot(16, next);
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = i % 16;
    sd_eval_opts o = {.expect_tokens = 39};
    ppl(m, ids, 40, &o, NULL);
    o.expect_tokens = 40;
    sd_table *t = NULL;
    assert_int_equal(sd_eval_ppl(m, ids, 40, &o, NULL, &t, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "40"));
    assert_non_null(strstr(err.text, "39"));
    assert_null(t);
    sd_err_clear(&err);
    sd_model_unref(m);
}

static void p09_position_table(void **state) {
    (void)state;
    sd_model *m = one_hot(8, next);
    int32_t ids[1000];
    float hidden[8 * 16];
    for (int i = 0; i < 1000; i++)
        ids[i] = i % 16;
    ok(sd_forward(m, ids, 1, 8, NULL, hidden, NULL, &err));
    const int too_long[] = {9, 1000};
    for (int i = 0; i < 2; i++) {
        char both[8];
        snprintf(both, sizeof both, "%d", too_long[i]);
        assert_int_equal(sd_forward(m, ids, 1, too_long[i], NULL, hidden, NULL, &err), SD_EINVAL);
        assert_non_null(strstr(err.text, both));
        assert_non_null(strstr(err.text, "8"));
    }
    sd_table *t = NULL;
    ok(sd_eval_ppl(m, ids, 1000, NULL, NULL, &t, &err));
    rel("ctx", num(t, "ctx"), 8, 0);
    rel("tokens", num(t, "tokens"), 999, 0);
    sd_table_unref(t);
    sd_eval_opts o = {.ctx = 9};
    assert_int_equal(sd_eval_ppl(m, ids, 100, &o, NULL, &t, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "9"));
    assert_non_null(strstr(err.text, "8"));
    o = (sd_eval_opts){.ctx = 4, .stride = 5};
    assert_int_equal(sd_eval_ppl(m, ids, 100, &o, NULL, &t, &err), SD_EINVAL);
    o = (sd_eval_opts){.ctx = 4, .stride = 2, .hf_convention = true};
    assert_int_equal(sd_eval_ppl(m, ids, 100, &o, NULL, &t, &err), SD_EINVAL);
    ids[3] = 16; // outside the vocabulary
    assert_int_equal(sd_eval_ppl(m, ids, 100, NULL, NULL, &t, &err), SD_EINVAL);
    sd_err_clear(&err);
    sd_model_unref(m);
}

static void comparing(void **state) {
    (void)state;
    sd_model *a, *b;
    ok(sd_model_open("data/interim-gpt2", NULL, &a, &err));
    ok(sd_model_clone(a, &b, &err));
    int32_t ids[400];
    json_t *ref = json_load_file("tests/ref/spectral_models.json", 0, NULL);
    json_t *list = json_object_get(json_object_get(ref, "interim-gpt2"), "ids");
    for (int i = 0; i < 400; i++)
        ids[i] =
            (int32_t)json_integer_value(json_array_get(list, (size_t)i % json_array_size(list)));
    json_decref(ref);
    sd_eval_opts o = {.ctx = 32};
    sd_table *t, *u, *p;
    ok(sd_eval_compare(a, b, ids, 400, &o, 1, NULL, &t, &err));
    rel("same model", num(t, "delta"), 0, 0);
    rel("same model", num(t, "delta_lo"), 0, 0);
    sd_table_unref(t);
    sd_tensor *w; // hurt one layer
    ok(sd_model_get(b, 2, SD_ROLE_W2, SD_F32, &w, &err));
    memset(w->data, 0, sd_tensor_nbytes(w));
    ok(sd_model_set(b, 2, SD_ROLE_W2, w, &err));
    sd_tensor_free(w);
    ok(sd_eval_compare(a, b, ids, 400, &o, 1, NULL, &t, &err));
    ok(sd_eval_compare(a, b, ids, 400, &o, 1, NULL, &u, &err));
    ok(sd_eval_ppl(a, ids, 400, &o, NULL, &p, &err));
    rel("a", num(t, "ppl_a"), num(p, "ppl"), 1e-12);
    rel("delta", num(t, "delta"), log(num(t, "ppl_b") / num(t, "ppl_a")), 1e-12);
    rel("change", num(t, "change"), num(t, "ppl_b") / num(t, "ppl_a") - 1, 1e-12);
    if (!(num(t, "delta") > 0.02))
        fail_msg("delta %g", num(t, "delta"));
    assert_true(num(t, "delta_lo") < num(t, "delta") && num(t, "delta") < num(t, "delta_hi"));
    rel("seeded", num(t, "delta_lo"), num(u, "delta_lo"), 0);
    rel("windows", num(t, "windows"), 13, 0);
    sd_table_unref(t);
    sd_table_unref(u);
    sd_table_unref(p);
    sd_model *other = toy(4, 30, 64, true);
    assert_int_equal(sd_eval_compare(a, other, ids, 400, &o, 1, NULL, &t, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "4096"));
    sd_err_clear(&err);
    sd_model_unref(other);
    sd_model_unref(a);
    sd_model_unref(b);
}

static void recall(void **state) {
    (void)state;
    sd_model *m = toy(2, 100, 64, true);
    fill(m, -1, SD_ROLE_TOK, zero);
    sd_table *t;
    sd_recall_opts o = {.half = 20, .seqs = 3};
    ok(sd_eval_recall(m, &o, NULL, &t, &err)); // knows nothing
    rel("nll", num(t, "nll"), log(100), 1e-6);
    rel("nll_first", num(t, "nll_first"), log(100), 1e-6);
    rel("chance", num(t, "chance"), log(100), 1e-12);
    assert_true(num(t, "accuracy") < 0.3);
    sd_table_unref(t);
    o.half = 33;
    assert_int_equal(sd_eval_recall(m, &o, NULL, &t, &err), SD_EINVAL);
    o.half = 1;
    assert_int_equal(sd_eval_recall(m, &o, NULL, &t, &err), SD_EINVAL);
    sd_model_unref(m);
    // A model that copies its input scores by coincidence only; V = 16.
    m = one_hot(64, strong);
    o = (sd_recall_opts){.half = 30, .seqs = 4, .seed = 2};
    ok(sd_eval_recall(m, &o, NULL, &t, &err));
    assert_true(num(t, "nll") > 5 && num(t, "accuracy") < 0.3);
    rel("both halves see the same pairs", num(t, "accuracy"), num(t, "accuracy_first"), 1e-12);
    rel("both halves see the same pairs", num(t, "nll"), num(t, "nll_first"), 1e-6);
    sd_table_unref(t);
    sd_model_unref(m);
    sd_err_clear(&err);
}

static void cancelled(void **state) {
    (void)state;
    sd_model *m = one_hot(16, next);
    int32_t ids[40] = {0};
    sd_table *t = NULL;
    sd_cancel_flag = 1;
    sd_status a = sd_eval_ppl(m, ids, 40, NULL, NULL, &t, &err);
    sd_status b = sd_eval_recall(m, NULL, NULL, &t, &err);
    sd_cancel_flag = 0;
    assert_int_equal(a, SD_ECANCEL);
    assert_int_equal(b, SD_ECANCEL);
    assert_null(t);
    sd_err_clear(&err);
    sd_model_unref(m);
}

/* An encoder whose every score is uniform, and one that reads the masked token's neighbours not at
 * all: the pseudo-perplexity of a copy model tells that the token itself was masked. */
static void masked(void **state) {
    (void)state;
    if (!sd_family_find("bert"))
        skip();
    sd_config c;
    sd_model *m;
    ok(sd_config_init(&c, 1, &err));
    strcpy(c.family, "bert");
    c.d_model = 16;
    c.d_ff = 8;
    c.vocab = 16;
    c.n_pos = 12;
    c.n_type = 2;
    c.norm = SD_NORM_LAYER;
    c.norm_eps = 1e-12;
    c.embed_norm = true;
    c.block = SD_BLOCK_POST;
    c.act = SD_ACT_GELU;
    c.pos = SD_POS_LEARNED;
    c.tied = c.has_head = c.mlm_head = true;
    c.qkv_bias = c.out_bias = c.mlp_bias = true;
    c.embed_scale = 1;
    c.bos = c.eos = -1;
    strcpy(c.layer[0].kind, "softmax");
    c.layer[0].n_head = c.layer[0].n_kv_head = 2;
    c.layer[0].d_qk = c.layer[0].d_v = 8;
    c.layer[0].scale = 1 / sqrt(8);
    ok(sd_model_new(&c, 1, &m, &err));
    int32_t ids[30];
    for (int i = 0; i < 30; i++)
        ids[i] = 4 + i % 12;
    sd_table *t = NULL;
    assert_int_equal(sd_eval_ppl(m, ids, 30, NULL, NULL, &t, &err), SD_EINVAL); // no tokenizer
    assert_non_null(strstr(err.text, "mask"));
    json_error_t je;
    json_t *j = json_loads(
        "{\"version\":\"1.0\",\"added_tokens\":["
        "{\"id\":0,\"content\":\"[PAD]\",\"special\":true},{\"id\":1,\"content\":\"[CLS]\","
        "\"special\":true},{\"id\":2,\"content\":\"[SEP]\",\"special\":true},{\"id\":3,\"content\":"
        "\"[MASK]\",\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"BertPreTokenizer\"},\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":"
        "\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
        "\"max_input_chars_per_word\":100,\"vocab\":{\"[PAD]\":0,\"[CLS]\":1,\"[SEP]\":2,"
        "\"[MASK]\":3,\"[UNK]\":4,\"a\":5,\"b\":6,\"c\":7,\"d\":8,\"e\":9,\"f\":10,\"g\":11,\"h\":"
        "12,\"i\":13,\"j\":14,\"k\":15}}}",
        0, &je);
    assert_non_null(j);
    sd_tokenizer *tok;
    ok(sd_tokenizer_from_json(j, "test", &tok, &err));
    json_decref(j);
    sd_model_set_tokenizer(m, tok);
    // By hand: each token masked alone, [CLS] window [SEP], 10 content tokens a window.
    double sum = 0;
    for (int w = 0; w < 3; w++)
        for (int p = 0; p < 10; p++) {
            int32_t in[12], target[12];
            double nll[12];
            in[0] = 1;
            in[11] = 2;
            for (int i = 0; i < 10; i++)
                in[i + 1] = ids[w * 10 + i];
            for (int i = 0; i < 12; i++)
                target[i] = -1;
            target[p + 1] = in[p + 1];
            in[p + 1] = 3;
            ok(sd_forward_nll(m, in, target, 1, 12, NULL, nll, &err));
            sum += nll[p + 1];
        }
    ok(sd_eval_ppl(m, ids, 30, NULL, NULL, &t, &err));
    rel("nll", num(t, "nll"), sum / 30, 1e-6);
    rel("tokens", num(t, "tokens"), 30, 0);
    rel("windows", num(t, "windows"), 3, 0);
    sd_table_unref(t);
    // [CLS] and [SEP] in the ids are not scored twice.
    int32_t with[12] = {1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 2};
    ok(sd_eval_ppl(m, with, 12, NULL, NULL, &t, &err));
    rel("tokens", num(t, "tokens"), 10, 0);
    sd_table_unref(t);
    assert_int_equal(sd_eval_recall(m, NULL, NULL, &t, &err), SD_EINVAL);
    sd_err_clear(&err);
    sd_model_unref(m);
    sd_tokenizer_unref(tok);
    sd_config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(p03_short_texts),
        cmocka_unit_test(p04_windows_by_hand),
        cmocka_unit_test(p06_shifts),
        cmocka_unit_test(p07_expected_tokens),
        cmocka_unit_test(p09_position_table),
        cmocka_unit_test(comparing),
        cmocka_unit_test(recall),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(masked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
