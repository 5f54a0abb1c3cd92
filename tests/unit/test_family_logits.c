/* Every family and option against transformers (f32, eager): tests/ref/models, made by
 * tests/ref/tiny_models.py. */
#include "model_help.h"

#include "nn/forward.h"

static double worst(const float *a, const sd_tensor *b) {
    const float *r = b->data;
    double w = 0;
    for (int64_t i = 0; i < sd_tensor_numel(b); i++) {
        double d = fabs((double)a[i] - (double)r[i]);
        if (!(d <= w)) // also true for NaN
            w = isnan(d) ? INFINITY : d;
    }
    return w;
}

/* Runs m on the reference ids of `folder`; the largest differences of hidden states and logits. */
static void compare(sd_model *m, const char *folder, double tol) {
    char path[256];
    snprintf(path, sizeof path, "%s/reference.safetensors", folder);
    sd_container *c = NULL;
    OK(sd_container_open(path, NULL, &c, &err));
    sd_tensor *ids = NULL, *types = NULL, *hidden = NULL, *logits = NULL;
    OK(sd_container_read(c, (size_t)sd_container_find(c, "ids"), &ids, &err));
    OK(sd_container_read(c, (size_t)sd_container_find(c, "hidden"), &hidden, &err));
    int it = sd_container_find(c, "types"), il = sd_container_find(c, "logits");
    if (it >= 0)
        OK(sd_container_read(c, (size_t)it, &types, &err));
    if (il >= 0)
        OK(sd_container_read(c, (size_t)il, &logits, &err));
    int B = (int)ids->shape[0], T = (int)ids->shape[1];
    const sd_config *cfg = sd_model_config(m);
    float *h = malloc(sizeof *h * (size_t)(B * T * cfg->d_model));
    float *y = malloc(sizeof *y * (size_t)(B * T * cfg->vocab));
    sd_forward_opts o = {.token_types = types ? types->data : NULL};
    OK(sd_forward(m, ids->data, B, T, &o, h, logits ? y : NULL, &err));
    double dh = worst(h, hidden), dl = logits ? worst(y, logits) : 0;
    if (!(dh < tol) || !(dl < tol))
        fail_msg("%s: hidden states differ by %.3g, logits by %.3g", folder, dh, dl);
    free(h);
    free(y);
    sd_tensor_free(ids);
    sd_tensor_free(types);
    sd_tensor_free(hidden);
    sd_tensor_free(logits);
    sd_container_unref(c);
}

static const char *const models[] = {
    "gpt2",           "gpt2-unscaled", "gpt2-bylayer", "gpt2-untied",    "bert",
    "bert-mlm",       "neox",          "neox-serial",  "llama",          "llama-gqa",
    "llama-bias",     "llama-llama3",  "llama-linear", "mistral",        "qwen2",
    "mistral-window", "qwen2-window",  "llama-g10",    "llama-g10-gguf", "llama-llama3-gguf",
};

static void test_references(void **s) {
    (void)s;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char folder[128];
        snprintf(folder, sizeof folder, REF "%s", models[i]);
        sd_model *m = NULL;
        char path[160];
        snprintf(path, sizeof path, "%s/%s", folder,
                 strstr(models[i], "gguf") ? "model.gguf" : "model.safetensors");
        OK(sd_model_open(path, NULL, &m, &err));
        compare(m, folder, 1e-4);
        // saved and read again it computes the same (GGUF: now in Hugging Face's layout)
        OK(sd_model_save(m, at(models[i]), NULL, &err));
        sd_model *again = open_model(at(models[i]));
        same_parts(m, again);
        compare(again, folder, 1e-4);
        sd_model_unref(again);
        sd_model_unref(m);
    }
}

/* The comparison can fail: each option the references exercise, flipped, moves the logits. */
static void test_options_matter(void **s) {
    (void)s;
    static const struct {
        const char *model, *key;
        const char *json;
    } flips[] = {
        {"gpt2", "activation_function", "\"gelu\""},
        {"gpt2", "layer_norm_epsilon", "0.001"},
        {"gpt2-unscaled", "scale_attn_weights", "true"},
        {"gpt2-bylayer", "scale_attn_by_inverse_layer_idx", "false"},
        {"neox", "use_parallel_residual", "false"},
        {"neox", "rope_parameters", "{\"partial_rotary_factor\": 0.5, \"rope_theta\": 10000}"},
        {"llama-llama3", "rope_parameters", "{\"rope_theta\": 100.0}"},
        {"llama-linear", "rope_parameters", "{\"rope_theta\": 10000.0}"},
        {"llama", "rms_norm_eps", "0.01"},
    };
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        char folder[128], name[160];
        snprintf(folder, sizeof folder, REF "%s", flips[i].model);
        snprintf(name, sizeof name, "flip-%zu", i);
        pieces *p = take_apart(folder);
        for (size_t k = p->n; k-- > 0;) {
            if (strcmp(p->name[k], "hidden") == 0 || strcmp(p->name[k], "logits") == 0)
                fail_msg("the reference was opened as a model");
        }
        json_t *v = json_loads(flips[i].json, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        set_key(p, flips[i].key, v);
        put_together(p, at(name));
        sd_model *m = open_model(at(name)), *orig = open_model(folder);
        int32_t ids[12];
        for (int t = 0; t < 12; t++)
            ids[t] = (t * 7 + 3) % 48;
        float a[12 * 48], b[12 * 48];
        OK(sd_forward(m, ids, 1, 12, NULL, NULL, a, &err));
        OK(sd_forward(orig, ids, 1, 12, NULL, NULL, b, &err));
        double w = 0;
        for (int k = 0; k < 12 * 48; k++)
            w = fmax(w, fabs((double)a[k] - (double)b[k]));
        if (!(w > 3e-4))
            fail_msg("%s: %s makes no difference (%g)", flips[i].model, flips[i].key, w);
        sd_model_unref(m);
        sd_model_unref(orig);
        free_pieces(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_options_matter),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
