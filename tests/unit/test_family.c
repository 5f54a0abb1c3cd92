/* Layouts and configs of the families: CASES M01–M05, M08, G10, G11, and refusals by name. */
#include "model_help.h"

#include "nn/family.h"
#include "nn/forward.h"

enum { V = 48, T = 12 };

static void logits_of(sd_model *m, float *y) {
    int32_t ids[T];
    for (int t = 0; t < T; t++)
        ids[t] = (t * 11 + 5) % V;
    OK(sd_forward(m, ids, 1, T, NULL, NULL, y, &err));
}

static void hidden_of(sd_model *m, float *y) {
    int32_t ids[T];
    for (int t = 0; t < T; t++)
        ids[t] = (t * 11 + 5) % V;
    OK(sd_forward(m, ids, 1, T, NULL, y, NULL, &err));
}

static double distance(const float *a, const float *b, int n) {
    double w = 0;
    for (int i = 0; i < n; i++)
        w = fmax(w, fabs((double)a[i] - (double)b[i]));
    return w;
}

static double part_at(sd_model *m, int layer, sd_role r, int64_t i, int64_t j) {
    sd_tensor *t = NULL;
    OK(sd_model_get(m, layer, r, SD_F64, &t, &err));
    double v = ((double *)t->data)[t->ndim == 2 ? i * t->shape[1] + j : j];
    sd_tensor_free(t);
    return v;
}

/* M01: prefix or not, mask buffers or not; buffers are no parameters. */
static void test_m01(void **s) {
    (void)s;
    float want[T * V], got[T * V];
    int64_t params = 0;
    for (int k = 0; k < 4; k++) {
        pieces *p = take_apart(REF "gpt2");
        for (size_t i = 0; i < p->n; i++) {
            if (strncmp(p->name[i], "transformer.", 12) == 0)
                memmove(p->name[i], p->name[i] + 12, 116);
        }
        if (k & 2) {
            for (int l = 0; l < 2; l++) {
                char name[64];
                int64_t mask[4] = {1, 1, 24, 24}, one[1] = {1};
                snprintf(name, sizeof name, "h.%d.attn.bias", l);
                float *b = add_piece(p, name, 4, mask);
                for (int i = 0; i < 24 * 24; i++)
                    b[i] = i % 24 <= i / 24;
                snprintf(name, sizeof name, "h.%d.attn.masked_bias", l);
                *add_piece(p, name, 1, one) = -1e4f;
            }
        }
        if (k & 1)
            prefix_pieces(p, "transformer.");
        put_together(p, at("m01"));
        sd_model *m = open_model(at("m01"));
        logits_of(m, k ? got : want);
        if (k) {
            assert_memory_equal(got, want, sizeof got);
            assert_int_equal(sd_model_n_params(m), params);
        }
        params = sd_model_n_params(m);
        assert_string_equal(sd_model_tensor_name(m, 0), "wte.weight");
        sd_model_unref(m);
        free_pieces(p);
        remove_tree(at("m01"));
    }
    // V D + P D + L (12 D² + 13 D) + 2 D
    assert_int_equal(params, 48 * 16 + 24 * 16 + 2 * (12 * 256 + 13 * 16) + 32);
}

/* M02: y = x W + b; a square matrix read the wrong way round would pass every shape check. */
static void test_m02(void **s) {
    (void)s;
    pieces *p = take_apart(REF "gpt2");
    int i = piece(p, "transformer.h.0.attn.c_proj.weight");
    if (i < 0)
        i = piece(p, "h.0.attn.c_proj.weight");
    float *w = p->t[i]->data;
    for (int r = 0; r < 16; r++) {
        for (int c = 0; c < 16; c++)
            w[r * 16 + c] = c >= r;
    }
    put_together(p, at("m02"));
    sd_model *m = open_model(at("m02"));
    assert_true(part_at(m, 0, SD_ROLE_WO, 0, 15) == 1.0);
    assert_true(part_at(m, 0, SD_ROLE_WO, 15, 0) == 0.0);
    float want[T * V], got[T * V];
    logits_of(m, want);
    sd_model_unref(m);
    // the same model with every block matrix transposed, as nanoGPT's Linear has it
    for (size_t k = 0; k < p->n; k++) {
        if (!strstr(p->name[k], ".c_") || !strstr(p->name[k], ".weight"))
            continue;
        sd_tensor *t = NULL, *u = NULL;
        OK(sd_tensor_transpose(p->t[k], 0, 1, &t, &err));
        OK(sd_tensor_cast(t, SD_F32, &u, &err));
        sd_tensor_free(t);
        sd_tensor_free(p->t[k]);
        p->t[k] = u;
    }
    put_together(p, at("m02t"));
    m = open_model(at("m02t"));
    logits_of(m, got);
    assert_memory_equal(got, want, sizeof got);
    OK(sd_model_save(m, at("m02s"), NULL, &err)); // saved in Hugging Face's layout
    sd_model *again = open_model(at("m02s"));
    logits_of(again, got);
    assert_memory_equal(got, want, sizeof got);
    sd_model_unref(again);
    sd_model_unref(m);
    free_pieces(p);
}

/* M03: scales are explicit numbers; n_inner null is 4 D. */
static void test_m03(void **s) {
    (void)s;
    static const struct { int by_width, by_layer; } k[4] = {{1, 0}, {0, 0}, {1, 1}, {0, 1}};
    for (int i = 0; i < 4; i++) {
        pieces *p = take_apart(REF "gpt2");
        set_key(p, "scale_attn_weights", json_boolean(k[i].by_width));
        set_key(p, "scale_attn_by_inverse_layer_idx", json_boolean(k[i].by_layer));
        set_key(p, "n_inner", json_null());
        set_key(p, "n_ctx", json_integer(7));
        set_key(p, "layer_norm_epsilon", json_real(1e-3));
        put_together(p, at("m03"));
        sd_model *m = open_model(at("m03"));
        const sd_config *c = sd_model_config(m);
        for (int l = 0; l < 2; l++) {
            double want = (k[i].by_width ? 1 / sqrt(8.0) : 1) / (k[i].by_layer ? l + 1 : 1);
            assert_true(fabs(c->layer[l].scale - want) < 1e-15);
        }
        assert_int_equal(c->d_ff, 64);
        assert_int_equal(c->act, SD_ACT_GELU_TANH);
        assert_true(c->norm_eps == 1e-3);
        // and the saved config says the same without any key of ours
        OK(sd_model_save(m, at("m03s"), NULL, &err));
        json_t *j = NULL;
        OK(sd_json_load(at("m03s/config.json"), 1 << 20, &j, &err));
        assert_null(json_object_get(j, "sd_layers"));
        assert_string_equal(json_string_value(json_object_get(j, "model_type")), "gpt2");
        json_decref(j);
        sd_model *again = open_model(at("m03s"));
        assert_true(sd_model_config(again)->layer[1].scale == c->layer[1].scale);
        sd_model_unref(again);
        sd_model_unref(m);
        free_pieces(p);
        remove_tree(at("m03s"));
    }
    pieces *p = take_apart(REF "gpt2");
    set_key(p, "activation_function", json_string("quick_gelu"));
    put_together(p, at("m03"));
    refused(at("m03"));
    HAS("quick_gelu");
    free_pieces(p);
}

/* M04: rows 0..11 filled with their number; 2 heads of 2. */
static void test_m04(void **s) {
    (void)s;
    pieces *p = take_apart(REF "neox");
    set_key(p, "hidden_size", json_integer(4));
    set_key(p, "intermediate_size", json_integer(8));
    set_key(p, "num_hidden_layers", json_integer(1));
    json_object_set_new(json_object_get(p->config, "rope_parameters"), "partial_rotary_factor",
                        json_real(1.0));
    while (p->n)
        drop_piece(p, p->name[0]);
    static const struct {
        const char *name;
        int nd;
        int64_t a, b;
    } t[] = {{"embed_in.weight", 2, 48, 4},
             {"layers.0.input_layernorm.weight", 1, 4, 0},
             {"layers.0.input_layernorm.bias", 1, 4, 0},
             {"layers.0.post_attention_layernorm.weight", 1, 4, 0},
             {"layers.0.post_attention_layernorm.bias", 1, 4, 0},
             {"layers.0.attention.query_key_value.weight", 2, 12, 4},
             {"layers.0.attention.query_key_value.bias", 1, 12, 0},
             {"layers.0.attention.dense.weight", 2, 4, 4},
             {"layers.0.attention.dense.bias", 1, 4, 0},
             {"layers.0.mlp.dense_h_to_4h.weight", 2, 8, 4},
             {"layers.0.mlp.dense_h_to_4h.bias", 1, 8, 0},
             {"layers.0.mlp.dense_4h_to_h.weight", 2, 4, 8},
             {"layers.0.mlp.dense_4h_to_h.bias", 1, 4, 0},
             {"final_layer_norm.weight", 1, 4, 0},
             {"final_layer_norm.bias", 1, 4, 0}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        int64_t shape[2] = {t[i].a, t[i].b};
        float *x = add_piece(p, t[i].name, t[i].nd, shape);
        if (strstr(t[i].name, "query_key_value")) {
            for (int r = 0; r < 12; r++) {
                for (int c = 0; c < (t[i].nd == 2 ? 4 : 1); c++)
                    x[r * (t[i].nd == 2 ? 4 : 1) + c] = (float)r;
            }
        }
    }
    put_together(p, at("m04"));
    sd_model *m = open_model(at("m04")); // names without prefix and no head: a bare GPTNeoXModel
    assert_false(sd_model_config(m)->has_head);
    static const sd_role w[3] = {SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_WV},
                         b[3] = {SD_ROLE_BQ, SD_ROLE_BK, SD_ROLE_BV};
    for (int part = 0; part < 3; part++) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 2; j++) {
                double want = 6 * h + 2 * part + j;
                for (int i = 0; i < 4; i++)
                    assert_true(part_at(m, 0, w[part], i, 2 * h + j) == want);
                assert_true(part_at(m, 0, b[part], 0, 2 * h + j) == want);
            }
        }
    }
    OK(sd_model_save(m, at("m04s"), NULL, &err));
    sd_model *again = open_model(at("m04s"));
    same_parts(m, again);
    sd_model_unref(again);
    sd_model_unref(m);
    free_pieces(p);
}

/* M05: old and new spellings give the same bits; partial rotary once; unknown types by name. */
static void test_m05(void **s) {
    (void)s;
    float want[T * V], got[T * V];
    pieces *p = take_apart(REF "neox");
    sd_model *m = open_model(REF "neox");
    logits_of(m, want);
    assert_int_equal(sd_model_config(m)->rope.dim, 2);
    sd_model_unref(m);
    json_object_del(p->config, "rope_parameters");
    set_key(p, "rotary_pct", json_real(0.25));
    set_key(p, "rotary_emb_base", json_integer(10000)); // an integer theta
    set_key(p, "rope_scaling", json_null());
    json_object_del(p->config, "dtype");
    set_key(p, "torch_dtype", json_string("float32"));
    put_together(p, at("m05"));
    m = open_model(at("m05"));
    logits_of(m, got);
    assert_memory_equal(got, want, sizeof got);
    sd_model_unref(m);
    set_key(p, "rope_scaling", json_pack("{s:s, s:f}", "type", "linear", "factor", 4.0));
    put_together(p, at("m05"));
    m = open_model(at("m05"));
    assert_string_equal(sd_model_config(m)->rope.scaling, "linear");
    assert_true(sd_model_config(m)->rope.factor == 4.0);
    assert_int_equal(sd_model_config(m)->rope.dim, 2);
    sd_model_unref(m);
    static const char *const bad[] = {"yarn", "dynamic", "longrope", "su"};
    for (size_t k = 0; k < 4; k++) {
        set_key(p, "rope_scaling", json_pack("{s:s, s:f}", "rope_type", bad[k], "factor", 4.0));
        put_together(p, at("m05"));
        refused(at("m05"));
        HAS(bad[k]);
    }
    set_key(p, "rope_scaling", json_null());
    set_key(p, "rope_parameters", json_pack("{s:{s:f}}", "full_attention", "rope_theta", 10000.0));
    put_together(p, at("m05"));
    refused(at("m05"));
    HAS("full_attention");
    free_pieces(p);

    p = take_apart(REF "llama-linear"); // llama: rope_theta and rope_scaling at the top
    m = open_model(REF "llama-linear");
    logits_of(m, want);
    sd_model_unref(m);
    json_object_del(p->config, "rope_parameters");
    set_key(p, "rope_theta", json_integer(10000));
    set_key(p, "rope_scaling", json_pack("{s:s, s:f}", "type", "linear", "factor", 4.0));
    put_together(p, at("m05"));
    m = open_model(at("m05"));
    logits_of(m, got);
    assert_memory_equal(got, want, sizeof got);
    sd_model_unref(m);
    free_pieces(p);
}

/* M08: prefix × gamma/beta; the head tied, stored twice, or missing. */
static void test_m08(void **s) {
    (void)s;
    float want[T * V], got[T * V];
    sd_model *m = open_model(REF "bert-mlm");
    logits_of(m, want);
    sd_model_unref(m);
    for (int k = 0; k < 4; k++) {
        pieces *p = take_apart(REF "bert-mlm");
        for (size_t i = 0; i < p->n; i++) {
            char *n = p->name[i], *d;
            if ((k & 1) && strncmp(n, "bert.", 5) == 0)
                memmove(n, n + 5, 120);
            if ((k & 2) && (d = strstr(n, "LayerNorm.weight")))
                strcpy(d, "LayerNorm.gamma");
            if ((k & 2) && (d = strstr(n, "LayerNorm.bias")))
                strcpy(d, "LayerNorm.beta");
        }
        int64_t ids[2] = {1, 24};
        add_piece(p, (k & 1) ? "embeddings.position_ids" : "bert.embeddings.position_ids", 2, ids);
        put_together(p, at("m08"));
        m = open_model(at("m08"));
        assert_true(sd_model_config(m)->tied && sd_model_config(m)->mlm_head);
        logits_of(m, got);
        assert_memory_equal(got, want, sizeof got);
        sd_model_unref(m);
        // the tied matrix under its second name changes nothing
        int w = piece(p, (k & 1) ? "embeddings.word_embeddings.weight"
                                 : "bert.embeddings.word_embeddings.weight");
        float *dup = add_piece(p, "cls.predictions.decoder.weight", 2, p->t[w]->shape);
        memcpy(dup, p->t[w]->data, sd_tensor_nbytes(p->t[w]));
        put_together(p, at("m08"));
        m = open_model(at("m08"));
        assert_true(sd_model_config(m)->tied);
        logits_of(m, got);
        assert_memory_equal(got, want, sizeof got);
        sd_model_unref(m);
        free_pieces(p);
    }
    m = open_model(REF "bert");
    assert_false(sd_model_config(m)->has_head);
    assert_false(sd_model_has(m, 0, SD_ROLE_HEAD));
    float h[T * 16];
    hidden_of(m, h);
    assert_true(isfinite(h[0]));
    assert_int_equal(sd_model_config(m)->norm_eps * 1e12 + 0.5, 1);
    sd_model_unref(m);
    pieces *p = take_apart(REF "bert");
    set_key(p, "position_embedding_type", json_string("relative_key"));
    put_together(p, at("m08r"));
    refused(at("m08r"));
    HAS("relative_key");
    free_pieces(p);
}

/* G10: Q is un-permuted with its own head count, K with the key heads'. */
static void test_g10(void **s) {
    (void)s;
    sd_model *hf = open_model(REF "llama-g10"), *gg = open_model(REF "llama-g10-gguf/model.gguf");
    same_parts(hf, gg);
    sd_tensor *a = NULL, *b = NULL;
    OK(sd_model_tensor(hf, "model.layers.1.self_attn.k_proj.weight", &a, &err));
    OK(sd_model_tensor(gg, "model.layers.1.self_attn.k_proj.weight", &b, &err));
    assert_memory_equal(a->data, b->data, sd_tensor_nbytes(a));
    sd_tensor_free(a);
    sd_tensor_free(b);
    float x[T * V], y[T * V];
    logits_of(hf, x);
    logits_of(gg, y);
    assert_true(distance(x, y, T * V) <= 1e-5);
    // the container's own rows are in another order: the test can fail
    sd_container *c = NULL;
    OK(sd_container_open(REF "llama-g10-gguf/model.gguf", NULL, &c, &err));
    OK(sd_container_read(c, (size_t)sd_container_find(c, "blk.1.attn_k.weight"), &a, &err));
    OK(sd_model_tensor(hf, "model.layers.1.self_attn.k_proj.weight", &b, &err));
    assert_memory_not_equal(a->data, b->data, sd_tensor_nbytes(a));
    sd_tensor_free(a);
    sd_tensor_free(b);
    sd_container_unref(c);
    sd_model_unref(hf);
    sd_model_unref(gg);
    gg = open_model(REF "llama-llama3-gguf/model.gguf");
    assert_string_equal(sd_model_config(gg)->rope.scaling, "factors");
    assert_int_equal(sd_model_config(gg)->rope.n_factor, 4);
    sd_model_unref(gg);
}

static void g11(const char *model, const char *embed, const char *head) {
    char ref[96];
    snprintf(ref, sizeof ref, REF "%s", model);
    for (int tie = 0; tie < 3; tie++) { // false, true, absent
        pieces *p = take_apart(ref);
        if (piece(p, head) >= 0)
            drop_piece(p, head);
        if (tie == 2)
            json_object_del(p->config, "tie_word_embeddings");
        else
            set_key(p, "tie_word_embeddings", json_boolean(tie));
        put_together(p, at("g11"));
        if (tie == 0) {
            refused(at("g11"));
            HAS(head);
        } else {
            sd_model *m = open_model(at("g11"));
            assert_true(sd_model_config(m)->tied);
            assert_false(sd_model_has(m, 0, SD_ROLE_HEAD));
            sd_model_unref(m);
        }
        // present, and different
        int w = piece(p, embed);
        assert_true(w >= 0);
        float *h = add_piece(p, head, 2, p->t[w]->shape);
        memcpy(h, p->t[w]->data, sd_tensor_nbytes(p->t[w]));
        h[5] += 1.0f;
        put_together(p, at("g11"));
        warned got = {0};
        sd_run run = {.log = catch_log, .ctx = &got};
        sd_model *m = NULL;
        OK(sd_model_open(at("g11"), &run, &m, &err));
        assert_false(sd_model_config(m)->tied);
        double want = (double)((float *)p->t[w]->data)[5] + 1.0;
        assert_true(fabs(part_at(m, 0, SD_ROLE_HEAD, 5, 0) - want) < 1e-6);
        if (tie == 1) {
            assert_int_equal(got.n, 1);
            assert_non_null(strstr(got.text, head));
        }
        sd_model_unref(m);
        free_pieces(p);
    }
}

static void test_g11(void **s) {
    (void)s;
    g11("gpt2", "transformer.wte.weight", "lm_head.weight");
    g11("llama", "model.embed_tokens.weight", "lm_head.weight");
}

static void test_llama_kinds(void **s) {
    (void)s;
    sd_model *m = open_model(REF "qwen2");
    assert_true(sd_model_config(m)->qkv_bias && !sd_model_config(m)->out_bias);
    sd_model_unref(m);
    m = open_model(REF "llama-bias");
    assert_true(sd_model_config(m)->qkv_bias && sd_model_config(m)->out_bias);
    assert_int_equal(sd_model_config(m)->layer[0].n_kv_head, 2);
    sd_model_unref(m);
    // a sliding window is a kind of attention, and survives saving
    warned got = {0};
    sd_run run = {.log = catch_log, .ctx = &got};
    OK(sd_model_open(REF "mistral", &run, &m, &err));
    assert_int_equal(sd_model_config(m)->n_pos, 24);
    assert_int_equal(got.n, 0);
    assert_string_equal(sd_model_config(m)->layer[1].kind, "window");
    assert_string_equal(sd_model_config(m)->layer[1].options, "window=16");
    OK(sd_model_save(m, at("mistral-again"), NULL, &err));
    sd_model_unref(m);
    m = open_model(at("mistral-again"));
    assert_int_equal(sd_model_config(m)->sliding_window, 16);
    assert_string_equal(sd_model_config(m)->layer[0].options, "window=16");
    sd_model_unref(m);
    // the same structure under a name of its own
    pieces *p = take_apart(REF "llama");
    set_key(p, "model_type", json_string("somebody"));
    put_together(p, at("somebody"));
    got.n = 0;
    OK(sd_model_open(at("somebody"), &run, &m, &err));
    assert_string_equal(sd_model_family(m)->name, "llama");
    assert_int_equal(got.n, 1);
    assert_non_null(strstr(got.text, "somebody"));
    sd_model_unref(m);
    set_key(p, "embedding_multiplier", json_real(12.0));
    put_together(p, at("somebody"));
    refused(at("somebody"));
    HAS("embedding_multiplier");
    free_pieces(p);
    // query and key norms (qwen3) are refused by the tensor's name
    p = take_apart(REF "qwen2");
    int64_t four[1] = {4};
    add_piece(p, "model.layers.0.self_attn.q_norm.weight", 1, four);
    set_key(p, "model_type", json_string("qwen3"));
    set_key(p, "attention_bias", json_false());
    put_together(p, at("qwen3"));
    refused(at("qwen3"));
    HAS("model.layers.0.self_attn.q_norm.weight");
    free_pieces(p);
}

static void test_refusals(void **s) {
    (void)s;
    pieces *p = take_apart(REF "gpt2");
    char *first = NULL;
    for (size_t i = 0; i < p->n; i++) {
        if (strstr(p->name[i], "h.1.attn.c_attn.weight"))
            first = p->name[i];
    }
    assert_non_null(first);
    char name[128];
    strcpy(name, first);
    // unknown families: by name, with the list of the known
    set_key(p, "model_type", json_string("mamba"));
    put_together(p, at("no"));
    refused(at("no"));
    HAS("mamba");
    HAS("gpt2, sd, bert, gpt_neox, llama");
    set_key(p, "model_type", json_string("gpt2"));
    // a config that disagrees with the tensors: name and both shapes
    set_key(p, "vocab_size", json_integer(49));
    put_together(p, at("no"));
    refused(at("no"));
    HAS("wte.weight");
    HAS("[48, 16]");
    HAS("[49, 16]");
    set_key(p, "vocab_size", json_integer(48));
    // one layer more than there is: the first tensor that is missing
    set_key(p, "n_layer", json_integer(1000));
    put_together(p, at("no"));
    refused(at("no"));
    HAS("h.2.");
    HAS("missing");
    set_key(p, "n_layer", json_integer(1));
    put_together(p, at("no"));
    refused(at("no"));
    HAS("unexpected");
    HAS("h.1.");
    static const struct {
        const char *key, *json, *says;
    } bad[] = {
        {"n_layer", "0", "n_layer"},
        {"n_layer", "-1", "n_layer"},
        {"n_layer", "1e9", "n_layer"},
        {"n_layer", "\"2\"", "n_layer"},
        {"n_layer", "2.5", "n_layer"},
        {"n_layer", "999999999999", "n_layer"},
        {"n_embd", "2000000000", "n_embd"},
        {"n_head", "3", "n_head"},
        {"n_head", "0", "n_head"},
        {"vocab_size", "null", "vocab_size"},
        {"layer_norm_epsilon", "\"small\"", "layer_norm_epsilon"},
        {"layer_norm_epsilon", "-1", "norm_eps"},
        {"scale_attn_weights", "1", "scale_attn_weights"},
        {"sd_layers", "[null]", "sd_layers"},
        {"sd_layers", "[null, {\"kind\": 3}]", "kind"},
        {"sd_lineage", "7", "sd_lineage"},
#define HASH "sha256:0000000000000000000000000000000000000000000000000000000000000000"
#define STEP(op_, version_, args_, hash_)                                 \
    "[{\"op\":\"" op_ "\",\"version\":\"" version_ "\",\"args\":\"" args_ \
    "\",\"input_hash\":\"" hash_ "\"}]"
        {"sd_lineage", STEP("cut", "1\\nos.exit()", "{}", HASH), "version of 'cut'"},
        {"sd_lineage", STEP("cut", "1", "{}", "x\\nos.exit()"), "input_hash of 'cut'"},
        {"sd_lineage", STEP("cut", "1", "{}", "sha256:00"), "input_hash of 'cut'"},
        {"sd_lineage", STEP("cut\\u202e", "1", "{}", HASH), "op is no operation's name"},
        {"sd_lineage", STEP("", "1", "{}", HASH), "op is no operation's name"},
        {"sd_lineage", STEP("cut", "1", "[]", HASH), "no JSON object"},
        {"sd_lineage", STEP("cut", "1", "{\\n}", HASH), "control character"},
        {"sd_lineage", STEP("cut", "1", "{", HASH), "args"},
        {"sd_lineage", "[{\"op\":\"cut\",\"version\":1,\"args\":\"{}\",\"input_hash\":\"\"}]",
         "version"},
        {"add_cross_attention", "true", "add_cross_attention"},
        {"bos_token_id", "\"x\"", "bos_token_id"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        pieces *q = take_apart(REF "gpt2");
        set_key(q, bad[i].key, json_loads(bad[i].json, JSON_DECODE_ANY, NULL));
        put_together(q, at("no"));
        refused(at("no"));
        HAS(bad[i].says);
        HAS("config.json");
        free_pieces(q);
    }
    // the same tensor under two names
    set_key(p, "n_layer", json_integer(2));
    int64_t sh[2] = {48, 16};
    add_piece(p, piece(p, "wte.weight") >= 0 ? "transformer.wte.weight" : "wte.weight", 2, sh);
    put_together(p, at("no"));
    refused(at("no"));
    HAS("are both 'wte.weight'");
    free_pieces(p);
    // no config at all, no folder at all
    remove(at("no/config.json"));
    refused(at("no"));
    HAS("config.json");
    refused(at("nowhere"));
    OK(sd_write_file(at("no/config.json"), "[1, 2]", 6, &err));
    refused(at("no"));
}

static const char *why_unused(const sd_model *m, const char *name) {
    for (size_t i = 0; i < sd_model_n_unused(m); i++) {
        if (strcmp(sd_model_unused(m, i).name, name) == 0)
            return sd_model_unused(m, i).why;
    }
    return "";
}

/* Two output biases that differ: the decoder's is what counts (transformers 5 leaves them untied),
 * told by the logits: they move by exactly the difference. */
static void test_bert_biases(void **s) {
    (void)s;
    float want[T * V], got[T * V];
    sd_model *m = open_model(REF "bert-mlm");
    logits_of(m, want);
    sd_model_unref(m);
    pieces *p = take_apart(REF "bert-mlm");
    int b = piece(p, "cls.predictions.bias");
    assert_true(b >= 0);
    float *d = add_piece(p, "cls.predictions.decoder.bias", 1, p->t[b]->shape);
    memcpy(d, p->t[b]->data, sd_tensor_nbytes(p->t[b]));
    put_together(p, at("bias")); // equal: nothing changes, nothing is said
    warned w = {0};
    sd_run run = {.log = catch_log, .ctx = &w};
    OK(sd_model_open(at("bias"), &run, &m, &err));
    assert_int_equal(w.n, 0);
    assert_string_equal(why_unused(m, "cls.predictions.decoder.bias"),
                        "equals cls.predictions.bias");
    logits_of(m, got);
    assert_memory_equal(got, want, sizeof got);
    sd_model_unref(m);
    for (int v = 0; v < V; v++)
        d[v] += 0.25f * (float)(v % 7);
    put_together(p, at("bias"));
    OK(sd_model_open(at("bias"), &run, &m, &err));
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "cls.predictions.decoder.bias differs"));
    assert_non_null(strstr(why_unused(m, "cls.predictions.bias"), "decoder.bias differs"));
    logits_of(m, got);
    for (int i = 0; i < T * V; i++)
        assert_true(fabsf(got[i] - want[i] - 0.25f * (float)(i % V % 7)) < 1e-5f);
    sd_model_unref(m);
    drop_piece(p, "cls.predictions.bias"); // alone under its newer name
    put_together(p, at("bias"));
    float alone[T * V];
    m = open_model(at("bias"));
    logits_of(m, alone);
    assert_memory_equal(alone, got, sizeof got);
    sd_model_unref(m);
    free_pieces(p);
}

/* Models made for other tasks open for analysis; the head is listed, kept when saved, and logits
 * are refused, not made up from the embedding. */
static void test_task_heads(void **s) {
    (void)s;
    static const struct {
        const char *model, *heads, *tensor, *bias, *why; // heads: what makes it a language model
    } k[] = {
        {"gpt2", "lm_head.weight", "score.weight", NULL, "classification"},
        {"gpt2", "lm_head.weight", "classifier.weight", "classifier.bias", "classification"},
        {"gpt2", "lm_head.weight", "qa_outputs.weight", "qa_outputs.bias", "question answering"},
        {"bert", "", "classifier.weight", "classifier.bias", "classification"},
        {"bert", "", "qa_outputs.weight", "qa_outputs.bias", "question answering"},
        {"llama", "lm_head.weight", "score.weight", NULL, "classification"},
        {"llama", "lm_head.weight", "score.weight", "score.bias", "classification"},
        {"llama", "lm_head.weight", "qa_outputs.weight", "qa_outputs.bias", "question answering"},
        {"neox", "embed_out.weight", "score.weight", NULL, "classification"},
        {"neox", "embed_out.weight", "classifier.weight", "classifier.bias", "classification"},
    };
    for (size_t i = 0; i < sizeof k / sizeof k[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, REF "%s", k[i].model);
        pieces *p = take_apart(path);
        if (piece(p, k[i].heads) >= 0)
            drop_piece(p, k[i].heads);
        bool qa = strncmp(k[i].tensor, "qa", 2) == 0 && strcmp(k[i].model, "llama") == 0;
        for (size_t n = 0; qa && n < p->n; n++) // LlamaForQuestionAnswering's body
            if (strncmp(p->name[n], "model.", 6) == 0) {
                char rest[128];
                strcpy(rest, p->name[n] + 6);
                snprintf(p->name[n], 128, "transformer.%.100s", rest);
            }
        add_piece(p, k[i].tensor, 2, (int64_t[]){3, 16})[5] = 2.5f;
        if (k[i].bias)
            add_piece(p, k[i].bias, 1, (int64_t[]){3});
        put_together(p, at("task"));
        warned w = {0};
        sd_run run = {.log = catch_log, .ctx = &w};
        sd_model *m = NULL;
        OK(sd_model_open(at("task"), &run, &m, &err));
        assert_true(w.n >= 1);
        if (strcmp(k[i].model, "bert") != 0) // whose pooler is named first
            assert_non_null(strstr(w.text, k[i].why));
        assert_non_null(strstr(why_unused(m, k[i].tensor), k[i].why));
        if (k[i].bias)
            assert_non_null(strstr(why_unused(m, k[i].bias), "task head"));
        assert_false(sd_model_config(m)->has_head);
        assert_false(sd_model_has(m, 0, SD_ROLE_HEAD));
        float h[T * 16], h2[T * 16], y[T * V];
        hidden_of(m, h);
        int32_t ids[T] = {0};
        assert_int_equal(sd_forward(m, ids, 1, T, NULL, NULL, y, &err), SD_EINVAL);
        HAS("no language-model head");
        OK(sd_model_save(m, at("task2"), NULL, &err));
        sd_model *again = open_model(at("task2"));
        hidden_of(again, h2);
        assert_memory_equal(h, h2, sizeof h);
        assert_false(sd_model_config(again)->has_head);
        sd_tensor *t = NULL;
        OK(sd_model_tensor(again, k[i].tensor, &t, &err));
        assert_true(((float *)t->data)[5] == 2.5f);
        sd_tensor_free(t);
        sd_model_unref(again);
        sd_model_unref(m);
        free_pieces(p);
        remove_tree(at("task"));
        remove_tree(at("task2"));
    }
    // a second head beside the language-model head (GPT2DoubleHeadsModel) takes nothing away
    pieces *p = take_apart(REF "gpt2");
    add_piece(p, "multiple_choice_head.summary.weight", 2, (int64_t[]){1, 16});
    put_together(p, at("double"));
    sd_model *m = open_model(at("double"));
    assert_true(sd_model_config(m)->has_head);
    assert_non_null(
        strstr(why_unused(m, "multiple_choice_head.summary.weight"), "multiple choice"));
    sd_model_unref(m);
    // a vector is no causal mask, whatever its name
    add_piece(p, "h.0.attn.bias", 1, (int64_t[]){48});
    put_together(p, at("double"));
    refused(at("double"));
    HAS("unexpected tensor h.0.attn.bias [48]");
    free_pieces(p);
}

/* One transposed matrix among others that are not: it is the one that is reported. */
static void test_one_transposed(void **s) {
    (void)s;
    static const char *const names[] = {"h.0.attn.c_attn.weight", "h.1.mlp.c_fc.weight"};
    for (int k = 0; k < 2; k++) {
        pieces *p = take_apart(REF "gpt2");
        for (size_t i = 0; i < p->n; i++) {
            if (!sd_family_ends_with(p->name[i], names[k]))
                continue;
            sd_tensor *t = NULL, *u = NULL;
            OK(sd_tensor_transpose(p->t[i], 0, 1, &t, &err));
            OK(sd_tensor_cast(t, SD_F32, &u, &err));
            sd_tensor_free(t);
            sd_tensor_free(p->t[i]);
            p->t[i] = u;
        }
        put_together(p, at("turn"));
        refused(at("turn"));
        HAS(names[k]);
        HAS("transposed");
        HAS(k ? "[64, 16], config.json asks for [16, 64]"
              : "[48, 16], config.json asks for [16, 48]");
        free_pieces(p);
    }
}

/* A model with a tensor whose type is not decoded opens, lists it, and refuses to read it. */
static void test_undecoded(void **s) {
    (void)s;
    pieces *p = take_apart(REF "gpt2");
    put_together(p, at("odd"));
    sd_buf b = {0};
    OK(sd_read_file(at("odd/model.safetensors"), 0, &b, &err));
    // h.1.mlp.c_fc.weight (F32) is called a type of the same width
    char *e = strstr(b.p + 8, "h.1.mlp.c_fc.weight");
    e = strstr(e, "\"F32\"");
    memcpy(e, "\"X32\"", 5);
    OK(sd_write_file(at("odd/model.safetensors"), b.p, b.n, &err));
    sd_buf_free(&b);
    warned w = {0};
    sd_run run = {.log = catch_log, .ctx = &w};
    sd_model *m = NULL, *n = NULL;
    OK(sd_model_open(at("odd"), &run, &m, &err));
    assert_non_null(strstr(w.text, "X32"));
    sd_tensor *t = NULL;
    OK(sd_model_get(m, 0, SD_ROLE_W1, SD_F32, &t, &err));
    sd_tensor_free(t);
    t = NULL;
    assert_int_equal(sd_model_get(m, 1, SD_ROLE_W1, SD_F32, &t, &err), SD_EFORMAT);
    HAS("c_fc.weight: type X32 is not decoded");
    OK(sd_model_clone(m, &n, &err));
    assert_int_equal(sd_model_save(n, at("odd2"), NULL, &err), SD_EFORMAT);
    HAS("X32");
    assert_false(sd_path_exists(at("odd2")));
    sd_tensor *x = NULL; // a new value makes it readable
    OK(sd_tensor_new(SD_F32, 2, (int64_t[]){16, 64}, &x, &err));
    assert_int_equal(sd_model_set(n, 1, SD_ROLE_W1, x, &err), SD_EFORMAT);
    OK(sd_model_set_tensor(n, "h.1.mlp.c_fc.weight", x, &err));
    OK(sd_model_get(n, 1, SD_ROLE_W1, SD_F32, &t, &err));
    sd_tensor_free(t);
    sd_tensor_free(x);
    sd_model_unref(n);
    sd_model_unref(m);
    free_pieces(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_m01),
        cmocka_unit_test(test_m02),
        cmocka_unit_test(test_m03),
        cmocka_unit_test(test_m04),
        cmocka_unit_test(test_m05),
        cmocka_unit_test(test_m08),
        cmocka_unit_test(test_g10),
        cmocka_unit_test(test_g11),
        cmocka_unit_test(test_llama_kinds),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bert_biases),
        cmocka_unit_test(test_task_heads),
        cmocka_unit_test(test_one_transposed),
        cmocka_unit_test(test_undecoded),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
