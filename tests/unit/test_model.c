/* Models as tensors: parts, copy on write, surgery, saving and reading again, lineage. */
#include "model_help.h"

#include "nn/preset.h"

#include <pthread.h>

static sd_tensor *get(sd_model *m, int l, sd_role r) {
    sd_tensor *t = NULL;
    OK(sd_model_get(m, l, r, SD_F32, &t, &err));
    return t;
}

static float first(sd_model *m, int l, sd_role r) {
    sd_tensor *t = get(m, l, r);
    float v = ((float *)t->data)[0];
    sd_tensor_free(t);
    return v;
}

static sd_model *nano(const char *family, const char *kind, sd_norm norm, uint64_t seed) {
    sd_config c;
    sd_model *m = NULL;
    OK(sd_preset_config(sd_preset_find("nano"), family, kind, norm, &c, &err));
    OK(sd_model_new(&c, seed, &m, &err));
    sd_config_free(&c);
    return m;
}

/* Every part of the bundled models against the raw stored tensors, element by element. */
static void test_bundled(void **s) {
    (void)s;
    sd_model *m = open_model("data/interim-gpt2");
    assert_string_equal(sd_model_name(m), "interim-gpt2");
    assert_int_equal(sd_model_config(m)->act, SD_ACT_GELU);
    assert_int_equal(sd_model_n_params(m), 5853184);
    assert_true(sd_model_loaded_bytes(m) == 0); // headers only
    sd_tensor *raw = NULL, *f = NULL;
    OK(sd_model_tensor(m, "h.3.attn.c_attn.weight", &raw, &err));
    assert_int_equal(raw->dtype, SD_F16);
    OK(sd_tensor_cast(raw, SD_F32, &f, &err));
    const float *w = f->data;
    static const sd_role r[3] = {SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_WV};
    for (int p = 0; p < 3; p++) {
        sd_tensor *t = get(m, 3, r[p]);
        for (int i = 0; i < 256; i += 5) {
            for (int j = 0; j < 256; j++)
                assert_true(((float *)t->data)[i * 256 + j] == w[i * 768 + 256 * p + j]);
        }
        sd_tensor_free(t);
    }
    sd_tensor_free(raw);
    sd_tensor_free(f);
    sd_model_unref(m);

    m = open_model("data/interim-sd/model.safetensors");
    assert_string_equal(sd_model_name(m), "interim-sd");
    const sd_config *c = sd_model_config(m);
    assert_true(c->embed_scale == 16.0 && c->d_floor == 0.0 && c->norm == SD_NORM_NONE);
    assert_true(c->layer[2].scale == 0.08838834764831845 && c->d_ff == 1024);
    assert_false(c->qkv_bias || c->out_bias);
    OK(sd_model_tensor(m, "layers.2.attn.wk", &raw, &err));
    OK(sd_tensor_cast(raw, SD_F64, &f, &err));
    sd_tensor *t = NULL;
    OK(sd_model_get(m, 2, SD_ROLE_WK, SD_F64, &t, &err));
    for (int i = 0; i < 256; i++) {
        for (int j = 0; j < 256; j++)
            assert_true(((double *)t->data)[i * 256 + j] == ((double *)f->data)[j * 256 + i]);
    }
    sd_tensor_free(t);
    sd_tensor_free(raw);
    sd_tensor_free(f);
    assert_false(sd_model_has(m, 0, SD_ROLE_NORM1_G));
    sd_err_clear(&err);
    assert_int_equal(sd_model_get(m, 0, SD_ROLE_NORM1_G, SD_F32, &t, &err), SD_EINVAL);
    HAS("norm1_g");
    assert_int_equal(sd_model_get(m, 6, SD_ROLE_WQ, SD_F32, &t, &err), SD_EINVAL);
    HAS("expected layer 0..5, got 6");
    assert_int_equal(sd_model_tensor(m, "layers.2.attn.wp", &t, &err), SD_EINVAL);
    HAS("layers.2.attn.w");
    sd_model_unref(m);
}

/* Writing a part goes through the fused tensor and leaves its neighbours and the clone alone. */
static void test_write_through(void **s) {
    (void)s;
    static const char *const folder[] = {REF "gpt2", REF "neox", REF "llama-gqa",
                                         "data/interim-sd"};
    for (size_t k = 0; k < 4; k++) {
        sd_model *m = open_model(folder[k]), *orig = open_model(folder[k]), *clone = NULL;
        uint64_t v0 = sd_model_version(m);
        sd_tensor *t = get(m, 1, SD_ROLE_WK);
        float *x = t->data;
        for (int64_t i = 0; i < sd_tensor_numel(t); i++)
            x[i] = (float)i * 0.5f;
        OK(sd_model_clone(m, &clone, &err));
        OK(sd_model_set(m, 1, SD_ROLE_WK, t, &err));
        assert_true(sd_model_version(m) > v0);
        sd_tensor *back = get(m, 1, SD_ROLE_WK);
        assert_memory_equal(back->data, x, sd_tensor_nbytes(t));
        sd_tensor_free(back);
        same_parts(clone, orig);
        // the other way round: an edited model's clone shares, and is edited apart
        sd_model *two = NULL;
        OK(sd_model_clone(m, &two, &err));
        x[0] = -7.0f;
        OK(sd_model_set(two, 1, SD_ROLE_WK, t, &err));
        assert_true(first(m, 1, SD_ROLE_WK) == 0.0f && first(two, 1, SD_ROLE_WK) == -7.0f);
        sd_tensor_free(t);
        // everything else is as it was
        t = get(orig, 1, SD_ROLE_WK);
        OK(sd_model_set(m, 1, SD_ROLE_WK, t, &err));
        same_parts(m, orig);
        sd_tensor_free(t);
        int64_t wrong[2] = {3, 5};
        OK(sd_tensor_new(SD_F32, 2, wrong, &t, &err));
        sd_err_clear(&err);
        assert_int_equal(sd_model_set(m, 1, SD_ROLE_WK, t, &err), SD_EINVAL);
        HAS("[3, 5]");
        sd_tensor_free(t);
        sd_model_unref(two);
        sd_model_unref(clone);
        sd_model_unref(orig);
        sd_model_unref(m);
    }
}

/* CASES S04: head 0.0 cut, saved, read again; the rest byte for byte as before. */
static void test_save_edited(void **s) {
    (void)s;
    static const char *const folder[] = {REF "gpt2", REF "neox", "data/interim-gpt2"};
    for (size_t k = 0; k < 3; k++) {
        sd_model *m = open_model(folder[k]);
        const sd_layer_cfg *lc = &sd_model_config(m)->layer[0];
        sd_tensor *t = get(m, 0, SD_ROLE_WQ);
        float *x = t->data;
        for (int64_t i = 0; i < t->shape[0]; i++) {
            for (int j = 0; j < lc->d_qk; j++)
                x[i * t->shape[1] + j] = 0.0f;
        }
        OK(sd_model_set(m, 0, SD_ROLE_WQ, t, &err));
        sd_tensor_free(t);
        OK(sd_model_add_step(m, "cut", "1", "{\"head\":\"0.0\"}", &err));
        char name[32];
        snprintf(name, sizeof name, "edited-%zu", k);
        OK(sd_model_save(m, at(name), NULL, &err));
        sd_model *again = open_model(at(name));
        same_parts(m, again);
        assert_true(first(again, 0, SD_ROLE_WQ) == 0.0f);
        assert_int_equal(sd_model_n_steps(again), 1);
        assert_string_equal(sd_model_step(again, 0).args, "{\"head\":\"0.0\"}");
        assert_int_equal(strncmp(sd_model_step(again, 0).input_hash, "sha256:", 7), 0);
        OK(sd_model_add_step(again, "cut", "1", "{}", &err));
        assert_int_equal(strncmp(sd_model_step(again, 1).input_hash, "chain:", 6), 0);
        sd_model *orig = open_model(folder[k]);
        int changed = 0;
        for (size_t i = 0; i < sd_model_n_tensors(orig); i++) {
            const char *tn = sd_model_tensor_name(orig, i);
            sd_tensor *a = NULL, *b = NULL;
            OK(sd_model_tensor(orig, tn, &a, &err));
            OK(sd_model_tensor(again, tn, &b, &err));
            if (a->dtype != b->dtype || memcmp(a->data, b->data, sd_tensor_nbytes(a)) != 0) {
                changed++;
                assert_true(strstr(tn, "attn.c_attn.weight") ||
                            strstr(tn, "query_key_value.weight"));
                assert_int_equal(b->dtype, SD_F32);
            }
            sd_tensor_free(a);
            sd_tensor_free(b);
        }
        assert_int_equal(changed, 1);
        sd_model_unref(orig);
        sd_model_unref(again);
        sd_model_unref(m);
    }
    assert_true(sd_path_exists(at("edited-2/tokenizer.json")));
}

/* Layers that no key of the family can describe, parts of surgery, per-layer sizes. */
static void test_surgery(void **s) {
    (void)s;
    sd_model *m = open_model("data/interim-gpt2");
    int64_t before = sd_model_n_params(m);
    sd_layer_cfg lc = sd_model_config(m)->layer[2];
    float bv = first(m, 2, SD_ROLE_BV), wv = first(m, 2, SD_ROLE_WV);
    lc.d_qk = 8; // thin heads; the scale stays an explicit number (CASES S01)
    OK(sd_model_set_layer_cfg(m, 2, &lc, &err));
    assert_true(first(m, 2, SD_ROLE_WV) == wv && first(m, 2, SD_ROLE_BV) == bv);
    assert_true(first(m, 2, SD_ROLE_WQ) == 0.0f);
    assert_int_equal(sd_model_n_params(m), before - 2 * 257 * 4 * 56);
    sd_tensor *t = get(m, 2, SD_ROLE_WQ);
    assert_int_equal(t->shape[1], 32);
    for (int i = 0; i < 256 * 32; i++)
        ((float *)t->data)[i] = (float)i;
    OK(sd_model_set(m, 2, SD_ROLE_WQ, t, &err));
    sd_tensor_free(t);
    lc = sd_model_config(m)->layer[4];
    strcpy(lc.kind, "bilinear");
    lc.d_qk = 0;
    lc.planes = 3;
    lc.f_rank = 2;
    OK(sd_model_set_layer_cfg(m, 4, &lc, &err));
    assert_true(sd_model_has(m, 4, SD_ROLE_RA) && sd_model_has(m, 4, SD_ROLE_DIAG));
    assert_false(sd_model_has(m, 4, SD_ROLE_WQ));
    t = get(m, 4, SD_ROLE_RB);
    ((float *)t->data)[11] = 2.5f;
    OK(sd_model_set(m, 4, SD_ROLE_RB, t, &err));
    sd_tensor_free(t);
    sd_tensor *named = NULL;
    OK(sd_model_tensor(m, "sd.layers.4.attn.rb", &named, &err));
    assert_true(((float *)named->data)[11] == 2.5f);
    sd_tensor_free(named);
    OK(sd_model_save(m, at("surgery"), NULL, &err));
    sd_model *again = open_model(at("surgery"));
    same_parts(m, again);
    const sd_config *a = sd_model_config(m), *b = sd_model_config(again);
    for (int l = 0; l < a->n_layer; l++)
        assert_memory_equal(&a->layer[l], &b->layer[l], sizeof a->layer[l]);
    json_t *j = NULL; // other programs must not take it for a GPT-2
    OK(sd_json_load(at("surgery/config.json"), 1 << 20, &j, &err));
    assert_string_equal(json_string_value(json_object_get(j, "model_type")), "sd:gpt2");
    json_decref(j);
    sd_model_unref(again);
    // back to what it was: the extra tensors go
    OK(sd_model_set_layer_cfg(m, 4, &sd_model_config(m)->layer[3], &err));
    assert_false(sd_model_has(m, 4, SD_ROLE_RA));
    sd_err_clear(&err);
    assert_int_equal(sd_model_tensor(m, "sd.layers.4.attn.rb", &named, &err), SD_EINVAL);
    sd_layer_cfg bad = sd_model_config(m)->layer[0];
    bad.d_v = 0;
    uint64_t v = sd_model_version(m);
    assert_int_equal(sd_model_set_layer_cfg(m, 0, &bad, &err), SD_EFORMAT);
    assert_true(sd_model_version(m) == v && sd_model_config(m)->layer[0].d_v == 64);
    sd_model_unref(m);

    // S–D: hybrids and cascade-allocated heads in the family's own keys
    m = nano("sd", "sd", SD_NORM_LAYER, 3);
    lc = sd_model_config(m)->layer[0];
    lc.d_qk = 8;
    OK(sd_model_set_layer_cfg(m, 0, &lc, &err));
    lc = sd_model_config(m)->layer[1];
    strcpy(lc.kind, "elu1");
    OK(sd_model_set_layer_cfg(m, 1, &lc, &err));
    assert_false(sd_model_has(m, 1, SD_ROLE_WD));
    OK(sd_model_save(m, at("hybrid"), NULL, &err));
    OK(sd_json_load(at("hybrid/config.json"), 1 << 20, &j, &err));
    assert_null(json_object_get(j, "sd_layers"));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(j, "d_head"), 0)), 8);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "attention"), 1)),
                        "elu1");
    json_decref(j);
    again = open_model(at("hybrid"));
    same_parts(m, again);
    for (int l = 0; l < 2; l++)
        assert_memory_equal(&sd_model_config(m)->layer[l], &sd_model_config(again)->layer[l],
                            sizeof(sd_layer_cfg));
    sd_model_unref(again);
    // kinds without queries and keys, a scalar diagonal: through sd_layers
    lc = sd_model_config(m)->layer[1];
    strcpy(lc.kind, "potential");
    strcpy(lc.options, "diag=input");
    lc.d_qk = 0;
    OK(sd_model_set_layer_cfg(m, 1, &lc, &err));
    lc = sd_model_config(m)->layer[0];
    strcpy(lc.options, "diag=scalar");
    OK(sd_model_set_layer_cfg(m, 0, &lc, &err));
    assert_true(sd_model_has(m, 1, SD_ROLE_POT) && sd_model_has(m, 1, SD_ROLE_WD));
    assert_true(sd_model_has(m, 0, SD_ROLE_DIAG) && !sd_model_has(m, 0, SD_ROLE_WD));
    OK(sd_model_save(m, at("hybrid"), NULL, &err)); // over the old one
    again = open_model(at("hybrid"));
    same_parts(m, again);
    assert_string_equal(sd_model_config(again)->layer[0].options, "diag=scalar");
    sd_model_unref(again);
    sd_model_unref(m);
}

/* The same seed, the same values, in whatever family; another seed, others. */
static void test_new(void **s) {
    (void)s;
    sd_model *a = nano("sd", "softmax", SD_NORM_LAYER, 42),
             *b = nano("gpt2", "softmax", SD_NORM_LAYER, 42),
             *c = nano("sd", "sd", SD_NORM_NONE, 43);
    static const sd_role same[] = {SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_WV,
                                   SD_ROLE_WO, SD_ROLE_W1, SD_ROLE_TOK};
    for (size_t k = 0; k < sizeof same / sizeof same[0]; k++) {
        sd_tensor *x = get(a, 1, same[k]), *y = get(b, 1, same[k]), *z = get(c, 1, same[k]);
        assert_memory_equal(x->data, y->data, sd_tensor_nbytes(x));
        assert_memory_not_equal(x->data, z->data, sd_tensor_nbytes(x));
        sd_stats st;
        OK(sd_tensor_stats(x, &st, &err));
        double want = same[k] == SD_ROLE_WO ? 0.02 / sqrt(4.0) : 0.02;
        assert_true(fabs(st.sd / want - 1) < 0.05 && fabs(st.mean) < 0.1 * want);
        sd_tensor_free(x);
        sd_tensor_free(y);
        sd_tensor_free(z);
    }
    assert_true(first(a, 0, SD_ROLE_NORM1_G) == 1.0f && first(a, 0, SD_ROLE_NORM1_B) == 0.0f);
    assert_true(fabs((double)first(c, 0, SD_ROLE_BD) - 0.5413248546) < 1e-6);
    assert_int_equal(sd_model_n_params(c),
                     256 * 64 + 64 * 64 + 2 * (4 * 64 * 64 + 64 * 2 + 2 + 8 * 64 * 64 + 5 * 64));
    assert_true(sd_model_container(c) == NULL && sd_model_tokenizer(c) == NULL);
    assert_string_equal(sd_model_tokenizer_error(c), "");
    OK(sd_model_add_step(c, "train", "1", "{}", &err));
    assert_int_equal(strncmp(sd_model_step(c, 0).input_hash, "new:", 4), 0);
    OK(sd_model_save(c, at("fresh"), NULL, &err));
    sd_model *d = open_model(at("fresh"));
    same_parts(c, d);
    assert_int_equal(sd_model_n_params(d), sd_model_n_params(c));
    assert_true(sd_model_config(d)->tied); // CASES C06
    sd_model_unref(a);
    sd_model_unref(b);
    sd_model_unref(c);
    sd_model_unref(d);
    sd_config bad;
    OK(sd_preset_config(sd_preset_find("nano"), "sd", "sd", SD_NORM_NONE, &bad, &err));
    strcpy(bad.family, "mamba");
    sd_err_clear(&err);
    assert_int_equal(sd_model_new(&bad, 1, &a, &err), SD_EINVAL);
    HAS("mamba");
    sd_config_free(&bad);
}

/* A crash between the two files of a folder that is written over leaves no mixture. */
/* The hash of a fresh model covers every field of its config: one that differs in one, differs. */
static void test_fresh_hash(void **s) {
    (void)s;
    sd_config c = {0};
    char seen[8][80];
    OK(sd_config_init(&c, 1, &err));
    strcpy(c.family, "sd");
    c.d_model = 8, c.d_ff = 16, c.vocab = 10, c.n_pos = 8;
    c.causal = c.has_head = c.tied = true;
    c.block = SD_BLOCK_PRE, c.pos = SD_POS_LEARNED;
    c.layer[0] = (sd_layer_cfg){
        .kind = "softmax", .n_head = 2, .n_kv_head = 2, .d_qk = 4, .d_v = 4, .scale = 0.5};
    for (int k = 0; k < 8; k++) {
        sd_config v = c;
        sd_layer_cfg layer = c.layer[0];
        v.layer = &layer;
        v.causal = k != 1;
        v.rope.theta = k == 2 ? 5e5 : c.rope.theta;
        v.qkv_bias = k == 3;
        v.mlp_bias = k == 4;
        v.norm = k == 5 ? SD_NORM_LAYER : SD_NORM_NONE;
        v.out_bias = k == 6;
        layer.scale = k == 7 ? 0.25 : 0.5;
        sd_model *m = NULL;
        OK(sd_model_new(&v, 1, &m, &err));
        OK(sd_model_add_step(m, "train", "1", "{}", &err));
        strcpy(seen[k], sd_model_step(m, 0).input_hash);
        for (int i = 0; i < k; i++)
            assert_string_not_equal(seen[i], seen[k]);
        // what would not open again is not recorded
        assert_int_equal(sd_model_add_step(m, "train", "1\n", "{}", &err), SD_EFORMAT);
        assert_int_equal(sd_model_add_step(m, "train", "1", "[1]", &err), SD_EFORMAT);
        assert_int_equal(sd_model_n_steps(m), 1);
        sd_model_unref(m);
    }
    sd_config_free(&c);
}

static void test_save_atomic(void **s) {
    (void)s;
    sd_model *a = nano("sd", "sd", SD_NORM_NONE, 1), *b = nano("sd", "softmax", SD_NORM_LAYER, 2);
    OK(sd_model_save(a, at("over"), NULL, &err));
    sd_buf old = {0};
    OK(sd_read_file(at("over/config.json"), 0, &old, &err));
    OK(sd_model_save(b, at("over"), NULL, &err));
    OK(sd_write_file(at("over/config.json"), old.p, old.n, &err)); // as if killed in between
    sd_buf_free(&old);
    warned got = {0};
    sd_run run = {.log = catch_log, .ctx = &got};
    sd_model *m = NULL;
    OK(sd_model_open(at("over"), &run, &m, &err));
    same_parts(m, b);
    assert_int_equal(got.n, 1);
    sd_model_unref(m);
    // targets that cannot be written: said, nothing left behind
    OK(sd_write_file(at("file"), "x", 1, &err));
    sd_err_clear(&err);
    assert_int_equal(sd_model_save(a, at("file"), NULL, &err), SD_EWRITE);
    assert_int_equal(sd_model_save(a, at("file/below"), NULL, &err), SD_EWRITE);
    OK(sd_write_file(at("over/model.safetensors.index.json"), "{}", 2, &err));
    assert_int_equal(sd_model_save(a, at("over"), NULL, &err), SD_EWRITE);
    HAS("shards");
    char **names = NULL;
    size_t n = 0;
    OK(sd_list_dir(scratch, &names, &n, &err));
    for (size_t i = 0; i < n; i++) {
        if (strstr(names[i], ".tmp"))
            fail_msg("left behind: %s", names[i]);
        sd_free(names[i]);
    }
    sd_free(names);
    // saving over the folder a model was read from
    remove(at("over/model.safetensors.index.json"));
    m = open_model(at("over"));
    OK(sd_model_save(m, at("over"), NULL, &err));
    same_parts(m, b);
    sd_model_unref(m);
    sd_model_unref(a);
    sd_model_unref(b);
}

static int destroyed;
static void destroy(void *p) {
    (void)p;
    destroyed++;
}

static void test_cache(void **s) {
    (void)s;
    sd_model *m = nano("sd", "sd", SD_NORM_NONE, 1), *c = NULL;
    int x, y;
    uint64_t v;
    destroyed = 0;
    assert_null(sd_model_cache(m, &v));
    sd_model_set_cache(m, &x, destroy);
    assert_true(sd_model_cache(m, &v) == &x && v == sd_model_version(m));
    OK(sd_model_clone(m, &c, &err));
    assert_null(sd_model_cache(c, &v));
    sd_tensor *t = get(m, 0, SD_ROLE_BD);
    OK(sd_model_set(m, 0, SD_ROLE_BD, t, &err));
    sd_tensor_free(t);
    assert_true(sd_model_cache(m, &v) == &x && v != sd_model_version(m));
    sd_model_set_cache(m, &y, destroy);
    assert_int_equal(destroyed, 1);
    sd_model_unref(c);
    sd_model_unref(sd_model_ref(m));
    assert_int_equal(destroyed, 1);
    sd_model_unref(m);
    assert_int_equal(destroyed, 2);
}

static void *reader(void *p) {
    sd_model *m = p;
    long bad = 0;
    for (int k = 0; k < 12; k++) {
        for (int l = 0; l < 6; l++) {
            sd_tensor *a = NULL;
            if (sd_model_get(m, l, (sd_role)(SD_ROLE_WQ + (k % 8)), SD_F64, &a, NULL) != SD_OK)
                bad++;
            sd_tensor_free(a);
        }
    }
    return (void *)bad;
}

static void test_threads(void **s) {
    (void)s;
    sd_model *m = open_model("data/interim-gpt2");
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, reader, m), 0);
    for (int i = 0; i < 4; i++) {
        void *bad = NULL;
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    sd_model_unref(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled),     cmocka_unit_test(test_write_through),
        cmocka_unit_test(test_save_edited), cmocka_unit_test(test_surgery),
        cmocka_unit_test(test_new),         cmocka_unit_test(test_fresh_hash),
        cmocka_unit_test(test_save_atomic), cmocka_unit_test(test_cache),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
