/* Running the bundled models: their reference.json (64 ids, logits, NLL, argmax), capture, the
 * cached compute form after an edit, batches longer than one run, refusals (CASES P09). */
#include <math.h>

#include "base/mem.h"
#include "io/json.h"
#include "net_help.h"
#include "nn/forward.h"

typedef struct reference {
    int32_t ids[64], argmax[64];
    double nll, last[16];
} reference;

static void read_reference(const char *dir, reference *r) {
    char path[128];
    json_t *j = NULL;
    sd_err err = {0};
    snprintf(path, sizeof path, "%s/reference.json", dir);
    if (sd_json_load(path, 1 << 20, &j, &err) != SD_OK)
        fail_msg("%s", err.text);
    assert_int_equal(json_array_size(json_object_get(j, "ids")), 64);
    for (size_t i = 0; i < 64; i++) {
        r->ids[i] = (int32_t)json_integer_value(json_array_get(json_object_get(j, "ids"), i));
        r->argmax[i] = (int32_t)json_integer_value(json_array_get(json_object_get(j, "argmax"), i));
    }
    for (size_t i = 0; i < 16; i++)
        r->last[i] =
            json_number_value(json_array_get(json_object_get(j, "logits_last_first16"), i));
    r->nll = json_number_value(json_object_get(j, "mean_nll"));
    json_decref(j);
}

static sd_model *open_model(const char *dir) {
    sd_model *m = NULL;
    sd_err err = {0};
    if (sd_model_open(dir, NULL, &m, &err) != SD_OK)
        fail_msg("%s", err.text);
    return m;
}

static const char *const dirs[] = {"data/interim-sd", "data/interim-gpt2"};

static void test_reference(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        reference r;
        read_reference(dirs[k], &r);
        sd_model *m = open_model(dirs[k]);
        size_t v = (size_t)sd_model_config(m)->vocab;
        float *logits = malloc(64 * v * sizeof *logits);
        sd_err err = {0};
        if (sd_forward(m, r.ids, 1, 64, NULL, NULL, logits, &err) != SD_OK)
            fail_msg("%s", err.text);
        for (size_t t = 0; t < 64; t++) {
            size_t best = 0;
            for (size_t j = 0; j < v; j++)
                if (logits[t * v + j] > logits[t * v + best])
                    best = j;
            assert_int_equal(best, r.argmax[t]);
        }
        for (size_t j = 0; j < 16; j++)
            assert_true(fabs(logits[63 * v + j] - r.last[j]) < 1e-3);
        int32_t targets[64];
        double nll[64], sum = 0;
        memcpy(targets, r.ids + 1, 63 * sizeof *targets);
        targets[63] = -1;
        assert_int_equal(sd_forward_nll(m, r.ids, targets, 1, 64, NULL, nll, &err), SD_OK);
        for (int t = 0; t < 64; t++)
            sum += nll[t];
        assert_true(nll[63] == 0);
        if (!(fabs(sum / 63 - r.nll) < 1e-4))
            fail_msg("%s: mean NLL %.6f, reference %.6f", dirs[k], sum / 63, r.nll);
        free(logits);
        sd_model_unref(m);
    }
}

typedef struct seen {
    sd_model *m;
    int calls;
    double worst;
} seen;

/* q of the last row, recomputed from x and the canonical weights; d is positive and right. */
static sd_status look(void *ctx, const sd_capture *c, sd_err *err) {
    seen *s = ctx;
    sd_tensor *w = NULL;
    assert_int_equal(c->layer, s->calls);
    assert_int_equal(c->d_qk * c->n_head, 256);
    s->calls++;
    size_t last = (size_t)(c->batch * c->tokens - 1), d = (size_t)c->d_model;
    const float *x = c->x + last * d;
    for (int part = 0; part < 3; part++) {
        static const sd_role role[] = {SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_WV};
        const float *got = (part == 0 ? c->q : part == 1 ? c->k : c->v) + last * 256;
        assert_int_equal(sd_model_get(s->m, c->layer, role[part], SD_F64, &w, err), SD_OK);
        for (size_t j = 0; j < 256; j++) {
            double y = 0;
            for (size_t i = 0; i < d; i++)
                y += x[i] * ((const double *)w->data)[i * 256 + j];
            s->worst = fmax(s->worst, fabs(y - got[j]) / (1 + fabs(y)));
        }
        sd_tensor_free(w);
    }
    assert_int_equal(c->d != NULL, strcmp(c->kind, "sd") == 0);
    for (size_t i = 0; c->d && i < (last + 1) * (size_t)c->n_head; i++)
        assert_true(c->d[i] > 0);
    return SD_OK;
}

static void test_capture(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        reference r;
        read_reference(dirs[k], &r);
        seen s = {.m = open_model(dirs[k])};
        sd_forward_opts o = {.capture = look, .capture_ctx = &s, .stop_after_capture = true};
        sd_err err = {0};
        assert_int_equal(sd_forward(s.m, r.ids, 2, 32, &o, NULL, NULL, &err), SD_OK);
        assert_int_equal(s.calls, 6);
        assert_true(s.worst < 1e-4);
        sd_model_unref(s.m);
    }
}

/* A long batch goes in several runs; each sequence gets what it gets alone. An edit of the model
 * is seen by the next call. */
static void test_runs_and_edits(void **state) {
    (void)state;
    enum { B = 20, T = 256 };
    sd_model *m = open_model(dirs[0]);
    int32_t *ids = malloc(B * T * sizeof *ids), *targets = malloc(B * T * sizeof *targets);
    double *nll = malloc(B * T * sizeof *nll), one[T];
    test_ids(ids, B * T, 4096, 1);
    test_ids(targets, B * T, 4096, 2);
    sd_err err = {0};
    assert_int_equal(sd_forward_nll(m, ids, targets, B, T, NULL, nll, &err), SD_OK);
    size_t at = 19 * T;
    assert_int_equal(sd_forward_nll(m, ids + at, targets + at, 1, T, NULL, one, &err), SD_OK);
    for (int t = 0; t < T; t++)
        assert_true(fabs(one[t] - nll[at + (size_t)t]) < 1e-3);
    sd_tensor *w = NULL;
    assert_int_equal(sd_model_get(m, 2, SD_ROLE_WV, SD_F32, &w, &err), SD_OK);
    ((float *)w->data)[5] += 3;
    assert_int_equal(sd_model_set(m, 2, SD_ROLE_WV, w, &err), SD_OK);
    sd_tensor_free(w);
    assert_int_equal(sd_forward_nll(m, ids + at, targets + at, 1, T, NULL, one, &err), SD_OK);
    double change = 0;
    for (int t = 0; t < T; t++)
        change = fmax(change, fabs(one[t] - nll[at + (size_t)t]));
    assert_true(change > 1e-3);
    /* refusals */
    assert_int_equal(sd_forward(m, ids, 1, 257, NULL, NULL, NULL, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "257"));
    assert_non_null(strstr(err.text, "256"));
    ids[3] = 4096;
    assert_int_equal(sd_forward(m, ids, 1, 8, NULL, NULL, NULL, &err), SD_EINVAL);
    free(ids);
    free(targets);
    free(nll);
    sd_model_unref(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_runs_and_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
