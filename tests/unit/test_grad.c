/* Gradients of every attention kind, block order, norm, activation and head against central
 * differences in f64: for each slice of parameters the derivative along a random direction,
 * fourth-order stencil, to 1e-7 relative; plus single entries. */
#include <math.h>

#include "net_help.h"

enum { MAX_N = 2 * 150 };

static double loss_at(sd_net *net, sd_net_ws *ws, const sd_net_batch *b) {
    double nll, loss = 0;
    int64_t count;
    sd_err err = {0};
    if (!b->teacher) {
        if (sd_net_loss(net, ws, b, &nll, &count, NULL, &err) != SD_OK)
            fail_msg("%s", err.text);
        return nll;
    }
    double *g = calloc(sd_net_size(net), sizeof *g);
    if (sd_net_backward(net, ws, b, 1, g, &nll, &count, &loss, &err) != SD_OK)
        fail_msg("%s", err.text);
    free(g);
    return loss;
}

/* d loss / d t at params + t·v over one slice. */
static double derivative(sd_net *net, sd_net_ws *ws, const sd_net_batch *b, const sd_net_slice *s,
                         const double *v, double h) {
    static const double at[4] = {-2, -1, 1, 2}, w[4] = {1, -8, 8, -1};
    double *p = (double *)sd_net_params(net) + s->offset, sum = 0;
    double *keep = malloc(s->n * sizeof *keep);
    memcpy(keep, p, s->n * sizeof *keep);
    for (int k = 0; k < 4; k++) {
        for (size_t j = 0; j < s->n; j++)
            p[j] = keep[j] + at[k] * h * v[j];
        sum += w[k] * loss_at(net, ws, b);
    }
    memcpy(p, keep, s->n * sizeof *keep);
    free(keep);
    return sum / (12 * h);
}

typedef struct options {
    int batch, tokens;
    bool types, holes, teacher;
    bool kinks; /* the loss is not smooth everywhere (ELU, ReLU): several steps are tried */
    const bool *recompute;
    double size;
} options;

static void check(const char *what, sd_config *c, options o) {
    int B = o.batch ? o.batch : 2, T = o.tokens ? o.tokens : 7;
    size_t n = (size_t)(B * T);
    assert_true(n <= MAX_N);
    sd_net *net = test_net(c, SD_F64, 11, o.size > 0 ? o.size : 0.5);
    sd_net_ws *ws = test_ws(net, B, T, true, o.recompute, 2);
    for (int l = 0; o.kinks && l < c->n_layer; l++) /* keep long sequences off ELU's kink */
        for (int k = 0; k < 2; k++) {
            const sd_net_slice *t = sd_net_find(net, l, k ? SD_ROLE_BK : SD_ROLE_BQ);
            for (size_t j = 0; t && j < t->n; j++)
                ((double *)sd_net_params(net))[t->offset + j] = j % 2 ? 3 : -3;
        }
    int32_t ids[MAX_N], targets[MAX_N], types[MAX_N];
    test_ids(ids, n, c->vocab, 3);
    test_ids(targets, n, c->vocab, 4);
    test_ids(types, n, 2, 5);
    if (o.holes)
        for (size_t i = 0; i < n; i += 3)
            targets[i] = -1;
    float *teacher = NULL;
    sd_net_batch b = {.batch = B, .tokens = T, .ids = ids, .targets = targets};
    if (o.types)
        b.types = types;
    if (o.teacher) {
        uint64_t s = 9;
        teacher = malloc(n * (size_t)c->vocab * sizeof *teacher);
        for (size_t i = 0; i < n * (size_t)c->vocab; i++)
            teacher[i] = (float)(2 * test_uniform(&s));
        b.teacher = teacher;
        b.teacher_weight = 0.4;
    }
    double *grad = calloc(sd_net_size(net), sizeof *grad), nll;
    int64_t count;
    sd_err err = {0};
    /* accumulated in two halves of the scale */
    for (int k = 0; k < 2; k++)
        if (sd_net_backward(net, ws, &b, k ? 0.75 : 0.25, grad, &nll, &count, NULL, &err) != SD_OK)
            fail_msg("%s: %s", what, err.text);
    uint64_t seed = 77;
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        const double *g = grad + s->offset;
        double *v = malloc(s->n * sizeof *v);
        for (int pick = 0; pick < 2; pick++) {
            double dot = 0, norm = 0;
            if (pick == 0) {
                for (size_t j = 0; j < s->n; j++)
                    v[j] = test_uniform(&seed);
            } else {
                memset(v, 0, s->n * sizeof *v);
                v[(size_t)((test_uniform(&seed) + 1) / 2 * (double)s->n) % s->n] = 1;
            }
            for (size_t j = 0; j < s->n; j++) {
                dot += g[j] * v[j];
                norm += g[j] * g[j];
            }
            /* where the loss has kinks, a step must be short enough to cross none and long enough
             * to stand out of the rounding */
            static const double steps[] = {3e-4, 3e-5, 3e-6};
            double fd = 0;
            bool good = false;
            for (int k = 0; k < (o.kinks ? 3 : 1) && !good; k++) {
                fd = derivative(net, ws, &b, s, v, steps[k]);
                good =
                    fabs(fd - dot) <= 1e-7 * (fmax(fabs(fd), sqrt(norm)) + 1e-3 + 1e-6 / steps[k]);
            }
            if (!good)
                fail_msg("%s: %s: gradient %.12g, differences %.12g (norm %.3g)", what, s->name,
                         dot, fd, sqrt(norm));
        }
        free(v);
    }
    free(teacher);
    free(grad);
    sd_net_ws_free(ws);
    sd_net_free(net);
    sd_config_free(c);
}

static void test_kinds(void **state) {
    (void)state;
    for (size_t k = 0; sd_attn_at(k); k++) {
        const sd_attn_kind *kind = sd_attn_at(k);
        for (int variant = 0; variant < 4; variant++) {
            sd_config c;
            test_config(&c, kind->name);
            for (int l = 0; l < 2; l++) {
                c.layer[l].planes = 2 + l;
                c.layer[l].f_rank = 3;
                sd_attn_normalize(&c.layer[l]);
                sd_attn_least_options(kind, c.layer[l].options, sizeof c.layer[l].options);
            }
            options o = {.batch = 2, .kinks = strcmp(kind->name, "elu1") == 0};
            if (variant == 1) { /* one token */
                o.tokens = 1;
                c.norm = SD_NORM_LAYER;
                c.final_norm = true;
            } else if (variant == 2) { /* across tiles and chunks, no multiple of them */
                o.batch = 1;
                o.tokens = 131;
                o.size = 0.3;
                c.qkv_bias = c.out_bias = true;
            } else if (variant == 3) { /* grouped values, biases, layer norm */
                c.layer[1].n_kv_head = 1;
                c.qkv_bias = c.out_bias = true;
                c.norm = SD_NORM_LAYER;
                c.final_norm = true;
                o.holes = true;
            }
            char what[64];
            snprintf(what, sizeof what, "%s, variant %d", kind->name, variant);
            check(what, &c, o);
        }
    }
}

static void test_sd_options(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    for (int l = 0; l < 2; l++)
        strcpy(c.layer[l].options, "diag=scalar");
    check("sd, scalar diagonal", &c, (options){0});
    test_config(&c, "sd");
    strcpy(c.layer[0].options, "softmax=none");
    strcpy(c.layer[1].options, "softmax=none diag=scalar");
    check("sd, raw map", &c, (options){.tokens = 70, .batch = 1, .size = 0.2});
    test_config(&c, "sd");
    strcpy(c.layer[0].options, "diag=none");
    c.causal = false;
    check("sd, no diagonal, full", &c, (options){0});
    test_config(&c, "sd");
    strcpy(c.layer[0].options, "window=9 softmax=none");
    strcpy(c.layer[1].options, "window=40 diag=scalar");
    check("sd, windows", &c, (options){.tokens = 70, .batch = 1, .size = 0.2});
    test_config(&c, "window");
    strcpy(c.layer[0].options, "window=5");
    strcpy(c.layer[1].options, "window=70");
    c.layer[1].n_kv_head = 1;
    check("windows", &c, (options){.tokens = 131, .batch = 1, .size = 0.3});
    test_config(&c, "elu1");
    strcpy(c.layer[0].options, "features=skew");
    strcpy(c.layer[1].options, "features=skew");
    c.qkv_bias = true;
    check("elu1, skew features", &c,
          (options){.tokens = 67, .batch = 1, .size = 0.3, .kinks = true});
    test_config(&c, "potential");
    for (int l = 0; l < 2; l++) {
        c.layer[l].d_qk = 0;
        strcpy(c.layer[l].options, "diag=input");
    }
    check("potential with diagonal", &c, (options){.tokens = 9, .size = 0.8});
}

static void test_hybrid_dims(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    strcpy(c.layer[0].kind, "elu1");
    c.layer[0].d_qk = 3;
    c.layer[0].d_v = 2;
    c.layer[1].n_head = c.layer[1].n_kv_head = 3;
    c.layer[1].d_qk = 5;
    c.norm = SD_NORM_RMS;
    c.final_norm = true;
    c.tied = false;
    check("hybrid, head dimensions by layer", &c, (options){.tokens = 11, .kinks = true});
}

static void test_blocks(void **state) {
    (void)state;
    static const sd_norm norms[] = {SD_NORM_LAYER, SD_NORM_RMS};
    static const sd_block blocks[] = {SD_BLOCK_PRE, SD_BLOCK_POST, SD_BLOCK_PARALLEL};
    static const sd_act acts[] = {SD_ACT_GELU, SD_ACT_GELU_TANH, SD_ACT_SILU};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            sd_config c;
            test_config(&c, "softmax");
            c.norm = norms[i];
            c.block = blocks[j];
            c.act = acts[(i + j) % 3];
            c.gated_mlp = i == 1;
            c.final_norm = j != 1;
            c.qkv_bias = c.out_bias = true;
            c.tied = j != 0;
            char what[64];
            snprintf(what, sizeof what, "norm %d, block %d", i, j);
            check(what, &c, (options){.tokens = 5});
        }
    sd_config c;
    test_config(&c, "sd");
    c.block = SD_BLOCK_PARALLEL;
    check("parallel without norm", &c, (options){0});
    test_config(&c, "softmax");
    c.act = SD_ACT_RELU;
    check("relu", &c, (options){.tokens = 3, .batch = 1, .kinks = true});
}

static void test_rope(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        sd_config c;
        test_config(&c, i == 3 ? "sd" : "softmax");
        c.pos = SD_POS_ROPE;
        c.rope.dim = i == 1 ? 2 : 4;
        c.rope.style = i == 2 ? SD_ROPE_INTERLEAVED : SD_ROPE_HALF;
        c.layer[0].n_head = 4;
        c.layer[0].n_kv_head = 2;
        c.norm = SD_NORM_RMS;
        c.final_norm = true;
        c.gated_mlp = true;
        c.act = SD_ACT_SILU;
        check("rope", &c, (options){0});
    }
}

static void test_bert(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        sd_config c;
        test_config(&c, "softmax");
        c.causal = false;
        c.norm = SD_NORM_LAYER;
        c.norm_eps = 1e-12;
        c.block = SD_BLOCK_POST;
        c.embed_norm = true;
        c.n_type = 2;
        c.mlm_head = true;
        c.tied = tied;
        c.embed_scale = 1;
        c.qkv_bias = c.out_bias = true;
        check("bert", &c, (options){.types = tied, .holes = true});
    }
}

static void test_recompute(void **state) {
    (void)state;
    static const bool some[2] = {true, false}, all[2] = {true, true};
    for (int i = 0; i < 2; i++) {
        sd_config c;
        test_config(&c, "sd");
        c.norm = SD_NORM_LAYER;
        c.final_norm = true;
        check("recompute", &c, (options){.recompute = i ? all : some});
    }
}

static void test_teacher(void **state) {
    (void)state;
    sd_config c;
    test_config(&c, "sd");
    check("teacher", &c, (options){.teacher = true, .holes = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_sd_options),
        cmocka_unit_test(test_hybrid_dims), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rope),        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_recompute),   cmocka_unit_test(test_teacher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
