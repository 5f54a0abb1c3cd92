/* Attention kinds of plugins: registration and its refusals, and every registered kind through what
 * the program does with its own: gradients, decoding, saving, opening, price. Run from the
 * repository's root; SD_BUILD names the build folder. */
#include <math.h>
#include <unistd.h>

#include "net_help.h"

#include "base/mem.h"
#include "base/os.h"
#include "host/host.h"
#include "nn/decode.h"
#include "nn/price.h"

static sd_session *session;
static sd_err err;
static char logged[4096];
static const char *build;

static void on_log(void *ctx, sd_log_level level, const char *text) {
    (void)ctx;
    (void)level;
    if (strlen(logged) + strlen(text) + 2 < sizeof logged)
        strcat(strcat(logged, text), "\n");
}

static int setup(void **state) {
    (void)state;
    build = getenv("SD_BUILD") ? getenv("SD_BUILD") : "build";
    if (sd_session_new(&session, &err) != SD_OK)
        return -1;
    sd_session_run(session)->log = on_log;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sd_session_free(session);
    return 0;
}

#define OK(x_)                                                            \
    do {                                                                  \
        sd_err_clear(&err);                                               \
        if ((x_) != SD_OK)                                                \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #x_, err.text); \
    } while (0)

#define has(text_, part_)                                          \
    do {                                                           \
        if (!strstr(text_, part_))                                 \
            fail_msg("\"%s\" does not hold \"%s\"", text_, part_); \
    } while (0)

static const char *so(const char *folder, const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s/%s.so", build, folder, name);
    return path;
}

static const sd_run *run(void) {
    return sd_session_run(session);
}

static size_t foreign_count(void) {
    size_t n = 0, own = 0;
    while (sd_attn_at(own))
        own++;
    while (sd_attn_at_in(run(), own + n))
        n++;
    return n;
}

/* ---- registration ---------------------------------------------------------------------------- */

static void refused(const char *name, const char *message) {
    char op[64];
    sd_err_clear(&err);
    if (sd_plugin_load(session, so("tests/gallery", name), &err) == SD_OK)
        fail_msg("%s loaded", name);
    has(err.text, message);
    has(err.text, name);
    snprintf(op, sizeof op, "%s_op", name);
    assert_null(sd_op_find(session, op));
    assert_int_equal(foreign_count(), 0);
    assert_int_equal(sd_plugin_count(session), 0);
}

static void test_refused(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        refused("kind_taken", "attention kind softmax: exists already, built in");
        refused("kind_half", "attention kind 1: its f32 backward is missing");
        refused("kind_stateless", "attention kind 1: its f32 state_size is missing");
        refused("kind_option", "option size: 4..3 is no range");
        refused("kind_scores", "made of parts that it does not have");
        refused("kind_wild", "its f64 functions are not in readable memory");
    }
}

/* A plugin of ABI 1.0 still loads: its descriptor ends before the kinds. */
static void test_old_minor(void **state) {
    (void)state;
    OK(sd_plugin_load(session, so("tests/gallery", "old_minor"), &err));
    assert_non_null(sd_op_find(session, "old_minor_op"));
    assert_int_equal(sd_plugin_at(session, 0).n_kinds, 0);
    OK(sd_plugin_unload(session, "old_minor", &err));
}

/* ---- a model of a plugin's kind -------------------------------------------------------------- */

static sd_model *model_of(const char *kind) {
    sd_value args[32] = {0}, out = {0};
    const sd_op *op = sd_op_find(session, "new");
    const struct { const char *name, *v; } given[] = {{"preset", "nano"}, {"kind", kind}};
    args[sd_op_arg_index(op->desc, "vocab")] = (sd_value){.kind = SD_ARG_INT, .i = 40};
    for (size_t i = 0; i < 2; i++)
        args[sd_op_arg_index(op->desc, given[i].name)] = (sd_value){
            .kind = SD_ARG_STR, .s = sd_strdup(given[i].v, NULL), .s_len = strlen(given[i].v)};
    sd_err_clear(&err);
    sd_op_call(session, op, args, &out, &err);
    for (int i = 0; i < 32; i++)
        sd_value_clear(&args[i]);
    return out.model;
}

static double loss_of(sd_model *m) {
    int32_t ids[41];
    double nll;
    int64_t count;
    test_ids(ids, 41, 40, 5);
    sd_net *net = NULL;
    OK(sd_net_new(m, SD_F64, &net, &err));
    sd_net_ws *ws = test_ws(net, 1, 40, false, NULL, 1);
    OK(sd_net_loss(net, ws,
                   &(sd_net_batch){.batch = 1, .tokens = 40, .ids = ids, .targets = ids + 1}, &nll,
                   &count, NULL, &err));
    sd_net_ws_free(ws);
    sd_net_free(net);
    return nll;
}

/* Saved with the plugin's name; without the plugin the file does not open, an open model works on,
 * and the kind is not given to layers any more; with it, it opens again to the same model. */
static void test_life(void **state) {
    (void)state;
    char dir[] = "/tmp/sd-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m", dir);
    assert_null(model_of("decay,sd"));
    has(err.text, "unknown attention kind 'decay'");
    OK(sd_plugin_load(session, so("plugins", "template_kind"), &err));
    assert_int_equal(sd_plugin_at(session, 0).n_kinds, 1);
    assert_null(model_of("decai,sd"));
    has(err.text, "did you mean decay?");
    sd_model *m = model_of("decay,sd"), *back = NULL;
    assert_non_null(m);
    double loss = loss_of(m);
    OK(sd_model_save(m, path, NULL, &err));
    OK(sd_model_open(path, run(), &back, &err));
    assert_true(loss_of(back) == loss);
    sd_model_unref(back);

    OK(sd_plugin_unload(session, "template_kind", &err));
    assert_int_equal(foreign_count(), 0);
    sd_err_clear(&err);
    assert_int_equal(sd_model_open(path, run(), &back, &err), SD_EPLUGIN);
    has(err.text, path);
    has(err.text, "layer 0: attention kind 'decay' needs plugin template_kind 1.0");
    assert_int_equal(sd_model_open(path, NULL, &back, &err), SD_EPLUGIN);
    assert_true(loss_of(m) == loss); /* its code is still mapped */
    assert_null(model_of("decay"));

    OK(sd_plugin_load(session, so("plugins", "template_kind"), &err));
    OK(sd_model_open(path, run(), &back, &err));
    assert_true(loss_of(back) == loss);
    sd_model_unref(back);
    sd_model_unref(m);
    sd_remove_folder(path);
    rmdir(dir);
}

/* ---- every registered kind ------------------------------------------------------------------- */

/* Two layers of this kind; the second shares keys among its heads. */
static void config_of(sd_config *c, const sd_attn_kind *k, const char *options) {
    test_config(c, k->name);
    for (int l = 0; l < 2; l++) {
        sd_layer_cfg *lc = &c->layer[l];
        sd_attn_bind(lc, run());
        assert_ptr_equal(lc->foreign, k);
        lc->d_qk = 2;
        lc->planes = 2 + l;
        lc->f_rank = 3;
        if (options)
            snprintf(lc->options, sizeof lc->options, "%s", options);
        else
            sd_attn_least_options(k, lc->options, sizeof lc->options);
        sd_attn_normalize(lc);
    }
    c->layer[1].n_kv_head = 1;
    c->qkv_bias = c->out_bias = true;
}

static double loss_at(sd_net *net, sd_net_ws *ws, const sd_net_batch *b) {
    double nll;
    int64_t count;
    OK(sd_net_loss(net, ws, b, &nll, &count, NULL, &err));
    return nll;
}

/* The derivative of the loss along one random direction of each slice, fourth-order differences. */
static void gradients(const char *what, const sd_config *c, int tokens) {
    sd_net *net = test_net(c, SD_F64, 17, 0.4);
    sd_net_ws *ws = test_ws(net, 1, tokens, true, NULL, 2);
    int32_t ids[160];
    test_ids(ids, (size_t)tokens + 1, c->vocab, 3);
    sd_net_batch b = {.batch = 1, .tokens = tokens, .ids = ids, .targets = ids + 1};
    double *grad = calloc(sd_net_size(net), sizeof *grad), nll;
    int64_t count;
    OK(sd_net_backward(net, ws, &b, 1, grad, &nll, &count, NULL, &err));
    uint64_t seed = 5;
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        static const double at[4] = {-2, -1, 1, 2}, w[4] = {1, -8, 8, -1};
        const double h = 3e-4;
        double *p = (double *)sd_net_params(net) + s->offset, dot = 0, norm = 0, fd = 0;
        double *keep = malloc(2 * s->n * sizeof *keep), *v = keep + s->n;
        memcpy(keep, p, s->n * sizeof *keep);
        for (size_t j = 0; j < s->n; j++) {
            v[j] = test_uniform(&seed);
            dot += grad[s->offset + j] * v[j];
            norm += grad[s->offset + j] * grad[s->offset + j];
        }
        for (int k = 0; k < 4; k++) {
            for (size_t j = 0; j < s->n; j++)
                p[j] = keep[j] + at[k] * h * v[j];
            fd += w[k] * loss_at(net, ws, &b) / (12 * h);
        }
        memcpy(p, keep, s->n * sizeof *keep);
        free(keep);
        if (!(fabs(fd - dot) <= 1e-7 * (fmax(fabs(fd), sqrt(norm)) + 1e-3)))
            fail_msg("%s, %d tokens: %s: gradient %.12g, differences %.12g (norm %.3g)", what,
                     tokens, s->name, dot, fd, sqrt(norm));
    }
    free(grad);
    sd_net_ws_free(ws);
    sd_net_free(net);
}

/* Logits of one token after the other, and of uneven feeds, are those of the whole at once. */
static void decoding(const char *what, const sd_config *c, sd_dtype t, int tokens, double tol) {
    sd_net *net = test_net(c, t, 17, 0.4);
    sd_net_ws *ws = test_ws(net, 1, tokens, false, NULL, 2);
    size_t es = t == SD_F32 ? 4 : 8, v = (size_t)c->vocab;
    char *all = malloc((size_t)tokens * v * es), *step = malloc(v * es);
    int32_t ids[160];
    test_ids(ids, (size_t)tokens, c->vocab, 3);
    OK(sd_net_forward(net, ws, &(sd_net_batch){.batch = 1, .tokens = tokens, .ids = ids}, NULL,
                      NULL, all, &err));
    for (int feed = 1; feed <= tokens; feed = feed == 1 ? 7 : feed * 9) {
        sd_decoder *d = NULL;
        OK(sd_decoder_new(net, &(sd_decode_plan){tokens, feed, 2}, &d, &err));
        for (int i = 0; i < tokens; i += feed) {
            int n = tokens - i < feed ? tokens - i : feed;
            OK(sd_decoder_feed(d, ids + i, n, step, &err));
            for (size_t j = 0; j < v; j++) {
                size_t at = (size_t)(i + n - 1) * v + j;
                double x = t == SD_F32 ? (double)((float *)all)[at] : ((double *)all)[at];
                double y = t == SD_F32 ? (double)((float *)step)[j] : ((double *)step)[j];
                if (!(fabs(x - y) <= tol * (1 + fabs(x))))
                    fail_msg("%s: token %d in feeds of %d: %.12g at once, %.12g", what, i + n - 1,
                             feed, x, y);
            }
        }
        sd_decoder_free(d);
    }
    free(all);
    free(step);
    sd_net_ws_free(ws);
    sd_net_free(net);
}

static void check_kind(const sd_attn_kind *k, const char *options) {
    char what[128];
    sd_config c;
    sd_price p;
    config_of(&c, k, options);
    snprintf(what, sizeof what, "%s %s", k->name, c.layer[0].options);
    static const int lengths[] = {1, 9, 70, 131};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        gradients(what, &c, lengths[i]);
        decoding(what, &c, SD_F64, lengths[i], 1e-11);
        decoding(what, &c, SD_F32, lengths[i], 2e-4);
    }
    sd_price_layer(&c, 0, 64, &p);
    assert_true(p.attn_flops > 0 && p.attn_params > 0);
    assert_true(k->recurrent ? p.state_bytes > 0 && p.cache_bytes == 0
                             : p.cache_bytes > 0 && p.state_bytes == 0);
    sd_config_free(&c);
}

static void test_matrix(void **state) {
    (void)state;
    size_t own = 0, seen = 0;
    const sd_attn_kind *k;
    while (sd_attn_at(own))
        own++;
    for (; (k = sd_attn_at_in(run(), own + seen)); seen++)
        check_kind(k, NULL);
    assert_true(seen >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_old_minor),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_matrix),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
