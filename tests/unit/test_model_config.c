/* Config limits, roles, rotary frequencies, presets. */
#include "model_help.h"

#include "nn/preset.h"
#include "nn/rope.h"

static void preset(sd_config *c) {
    OK(sd_preset_config(sd_preset_find("nano"), "sd", "sd", SD_NORM_LAYER, c, &err));
}

static void test_limits(void **s) {
    (void)s;
    sd_config c;
    sd_err_clear(&err);
    assert_int_equal(sd_config_init(&c, 0, &err), SD_EFORMAT);
    assert_int_equal(sd_config_init(&c, 1000000, &err), SD_EFORMAT);
    preset(&c);
    OK(sd_config_check(&c, &err));
#define BAD(field_, v_, text_)                                   \
    do {                                                         \
        sd_config d;                                             \
        OK(sd_config_copy(&d, &c, &err));                        \
        d.field_ = v_;                                           \
        assert_int_equal(sd_config_check(&d, &err), SD_EFORMAT); \
        HAS(text_);                                              \
        sd_config_free(&d);                                      \
    } while (0)
    BAD(d_model, 0, "d_model");
    BAD(d_model, -3, "got -3");
    BAD(d_ff, 1 << 30, "d_ff");
    BAD(vocab, 0x7fffffff, "vocab");
    BAD(n_pos, 0, "n_pos");
    BAD(norm_eps, NAN, "norm_eps");
    BAD(embed_scale, INFINITY, "embed_scale");
    BAD(norm, SD_NORM_NONE, "final");
    BAD(layer[1].n_head, 0, "layer 1: n_head");
    BAD(layer[1].n_kv_head, 3, "n_kv_head");
    BAD(layer[0].d_v, 0, "d_v");
    BAD(layer[0].d_qk, 0, "needs d_qk");
    BAD(layer[0].scale, NAN, "scale");
    BAD(layer[0].kind[0], 0, "kind");
    BAD(layer[0].planes, -1, "planes");
    sd_config r;
    OK(sd_config_copy(&r, &c, &err));
    r.pos = SD_POS_ROPE;
    r.rope.dim = 33;
    assert_int_equal(sd_config_check(&r, &err), SD_EFORMAT);
    HAS("even");
    r.rope.dim = 64;
    assert_int_equal(sd_config_check(&r, &err), SD_EFORMAT);
    HAS("exceed the head dimension 32");
    r.rope.dim = 32;
    OK(sd_config_check(&r, &err));
    strcpy(r.rope.scaling, "yarn");
    assert_int_equal(sd_config_check(&r, &err), SD_EFORMAT);
    HAS("yarn");
    sd_config_free(&r);
    sd_config_free(&c);
}

static void test_roles(void **s) {
    (void)s;
    for (int r = 0; r < SD_ROLE_COUNT; r++)
        assert_int_equal(sd_role_find(sd_role_name((sd_role)r)), r);
    assert_int_equal(sd_role_find("nothing"), SD_ROLE_COUNT);
    sd_config c;
    preset(&c);
    int64_t sh[2];
    int nd;
    assert_true(sd_role_shape(&c, 0, SD_ROLE_WD, sh, &nd) && sh[0] == 64 && sh[1] == 2 && nd == 2);
    assert_false(sd_role_shape(&c, 0, SD_ROLE_DIAG, sh, &nd));
    assert_false(sd_role_shape(&c, 2, SD_ROLE_WQ, sh, &nd));
    assert_false(sd_role_shape(&c, -1, SD_ROLE_WQ, sh, &nd));
    assert_false(sd_role_shape(&c, 0, SD_ROLE_HEAD, sh, &nd)); // tied
    strcpy(c.layer[0].options, "window=8 diag=scalar");
    assert_false(sd_role_shape(&c, 0, SD_ROLE_WD, sh, &nd));
    assert_true(sd_role_shape(&c, 0, SD_ROLE_DIAG, sh, &nd) && nd == 1 && sh[0] == 2);
    char v[8];
    assert_true(sd_layer_option(c.layer[0].options, "window", v, sizeof v));
    assert_string_equal(v, "8");
    assert_false(sd_layer_option(c.layer[0].options, "indow", v, sizeof v));
    strcpy(c.layer[1].kind, "bilinear");
    c.layer[1].d_qk = 0;
    c.layer[1].planes = 3;
    OK(sd_config_check(&c, &err));
    assert_true(sd_role_shape(&c, 1, SD_ROLE_RA, sh, &nd) && sh[0] == 65 && sh[1] == 6);
    assert_false(sd_role_shape(&c, 1, SD_ROLE_F, sh, &nd));
    assert_false(sd_role_shape(&c, 1, SD_ROLE_WQ, sh, &nd));
    sd_config_free(&c);
}

/* CASES M07. */
static void test_rope(void **s) {
    (void)s;
    sd_rope_cfg r = {.dim = 64,
                     .theta = 5e5,
                     .scaling = "llama3",
                     .factor = 32,
                     .low_freq = 1,
                     .high_freq = 4,
                     .original_ctx = 8192};
    static const struct {
        int i;
        double v;
    } want[] = {{14, 3.2114460e-3}, {15, 1.2905479e-3}, {16, 4.2955680e-4},
                {17, 9.7082878e-5}, {18, 1.9461638e-5}, {31, 9.4183067e-8}};
    double inv[32], plain[32];
    sd_rope_inv_freq(&r, inv);
    for (size_t k = 0; k < sizeof want / sizeof want[0]; k++)
        assert_true(fabs(inv[want[k].i] / want[k].v - 1) < 2e-7);
    strcpy(r.scaling, "none");
    sd_rope_inv_freq(&r, plain);
    assert_true(plain[0] == 1.0 && plain[14] == inv[14] && plain[18] > 30 * inv[18]);
    strcpy(r.scaling, "linear");
    r.factor = 4;
    sd_rope_inv_freq(&r, inv);
    for (int i = 0; i < 32; i++)
        assert_true(inv[i] == plain[i] / 4);
    strcpy(r.scaling, "factors");
    r.n_factor = 32;
    for (int i = 0; i < 32; i++)
        r.freq_factor[i] = (float)(i + 1);
    sd_rope_inv_freq(&r, inv);
    for (int i = 0; i < 32; i++)
        assert_true(inv[i] == plain[i] / (i + 1));
}

/* The sizes METHOD §6 gives, counted without building the big ones: the parts' shapes. */
static int64_t count(const sd_config *c) {
    int64_t n = 0, sh[2];
    int nd;
    for (int l = 0; l < c->n_layer; l++) {
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            if ((l == 0 || !sd_role_is_global((sd_role)r)) &&
                sd_role_shape(c, l, (sd_role)r, sh, &nd))
                n += nd == 2 ? sh[0] * sh[1] : sh[0];
        }
    }
    return n;
}

static void test_presets(void **s) {
    (void)s;
    static const struct {
        const char *name;
        double millions;
    } want[] = {{"7M", 7.35},  {"18M", 17.9},   {"30M", 30.3},
                {"51M", 51.5}, {"125M", 124.5}, {"355M", 355.0}};
    for (size_t k = 0; k < 6; k++) {
        sd_config c;
        OK(sd_preset_config(sd_preset_find(want[k].name), "sd", "sd", SD_NORM_NONE, &c, &err));
        double got = (double)count(&c) / 1e6;
        if (fabs(got / want[k].millions - 1) > 4e-3)
            fail_msg("%s: %.2f M", want[k].name, got);
        assert_true(fabs(c.layer[0].scale - 1 / sqrt(128.0)) < 1e-15);
        sd_config_free(&c);
    }
    assert_null(sd_preset_find("9M"));
    sd_config c;
    assert_int_equal(sd_preset_config(sd_preset_find("nano"), "gpt2", "softmax", SD_NORM_NONE, &c,
                                      &err),
                     SD_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_presets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
