/* The plugin loader on a gallery of broken plugins (tests/plugins), each with its own message; and
 * what the bundled plugins do to models. Run from the repository's root; SD_BUILD names the build
 * folder. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/os.h"
#include "host/host.h"
#include "host/session.h"

static sd_session *session;
static sd_err err;
static char logged[4096];
static char build[512];

static void on_log(void *ctx, sd_log_level level, const char *text) {
    (void)ctx;
    (void)level;
    if (strlen(logged) + strlen(text) + 2 < sizeof logged)
        strcat(strcat(logged, text), "\n");
}

static int setup(void **state) {
    (void)state;
    const char *b = getenv("SD_BUILD");
    b = b ? b : "build";
    if (b[0] == '/')
        snprintf(build, sizeof build, "%s", b);
    else if (getcwd(build, sizeof build - 100))
        snprintf(build + strlen(build), 100, "/%s", b);
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

#define has(text_, part_)                                          \
    do {                                                           \
        if (!strstr(text_, part_))                                 \
            fail_msg("\"%s\" does not hold \"%s\"", text_, part_); \
    } while (0)

static const char *gallery(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/tests/gallery/%s.so", build, name);
    return path;
}

static size_t op_count(void) {
    size_t n = 0;
    while (sd_op_at(session, n))
        n++;
    return n;
}

/* Refused with this message, and nothing stays behind. */
static void refused(const char *path, const char *message) {
    size_t ops = op_count(), plugins = sd_plugin_count(session);
    sd_err_clear(&err);
    sd_status st = sd_plugin_load(session, path, &err);
    if (st == SD_OK)
        fail_msg("%s loaded", path);
    has(err.text, message);
    has(err.text, path);
    assert_int_equal(op_count(), ops);
    assert_int_equal(sd_plugin_count(session), plugins);
}

static void test_gallery(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) { /* nothing is worn out by refusing */
        refused(gallery("wrong_major"), "built for plugin ABI 2, this program speaks ABI 1");
        char text[96];
        snprintf(text, sizeof text, "needs plugin ABI %d.%d, this program has %d.%d", SD_ABI_MAJOR,
                 SD_ABI_MINOR + 1, SD_ABI_MAJOR, SD_ABI_MINOR);
        refused(gallery("newer_minor"), text);
        refused(gallery("short_struct"), "its sd_plugin is");
        refused(gallery("short_op"), "its op descriptors are");
        refused(gallery("missing_symbol"), "exports no symbol sd_plugin");
        refused(gallery("duplicate"), "op heads exists already, built in");
        assert_null(sd_op_find(session, "duplicate_first"));
        refused(gallery("unresolved"), "undefined symbol: sd_nobody_has_this");
        refused(gallery("wild_pointer"), "op 1: argument 1: its doc is not a string");
        refused(gallery("wild_function"), "op 1: its function does not point into");
        refused(gallery("undocumented"), "op undocumented: its example is missing");
        refused(gallery("too_many"), "announces 100000 ops");
        refused(gallery("bad_default"), "the default 12 is outside 0..10");
    }
    logged[0] = 0;
    refused(gallery("failing_init"), "plugin failing_init: its init failed: the flux capacitor is "
                                     "not plugged in");
    has(logged, "init leaked 1 table handle");
    refused(gallery("silent_init"), "its init failed with code 77 and gave no reason");
}

static void write_file(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void test_files(void **state) {
    (void)state;
    char dir[] = "/tmp/sd-test-XXXXXX", path[700];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/text.so", dir);
    write_file(path, "hello, I am a text\n", 19);
    refused(path, "not a shared object: the file starts with \"hello, I am a text\"");
    write_file(path, "", 0);
    refused(path, "the file is empty");
    write_file(path,
               "\x7f"
               "ELF",
               4);
    refused(path, "not a shared object");
    unlink(path);
    refused(path, path); /* names the file and says that it is not there */
    refused(dir, dir);
    /* cut short at every kind of place: refused, never SIGBUS */
    sd_buf b = {0};
    assert_int_equal(sd_read_file(gallery("good"), 0, &b, &err), SD_OK);
    for (size_t n = 16; n < b.n; n = n * 3 / 2) {
        write_file(path, b.p, n);
        sd_err_clear(&err);
        if (sd_plugin_load(session, path, &err) == SD_OK)
            assert_int_equal(sd_plugin_unload(session, "good", &err), SD_OK);
    }
    /* an executable is no plugin */
    sd_buf exe = {0};
    assert_int_equal(sd_read_file("/bin/true", 0, &exe, &err), SD_OK);
    write_file(path, exe.p, exe.n);
    sd_err_clear(&err);
    assert_int_not_equal(sd_plugin_load(session, path, &err), SD_OK);
    sd_buf_free(&exe);
    sd_buf_free(&b);
    unlink(path);
    rmdir(dir);
}

static sd_status call(const char *op, sd_value *args, size_t n, sd_value *out) {
    sd_value all[24] = {0};
    if (n)
        memcpy(all, args, n * sizeof *args);
    sd_err_clear(&err);
    memset(out, 0, sizeof *out);
    const sd_op *o = sd_op_find(session, op);
    if (!o)
        fail_msg("no op %s", op);
    sd_status st = sd_op_call(session, o, all, out, &err);
    for (size_t i = 0; i < 24; i++)
        sd_value_clear(&all[i]);
    return st;
}

static sd_value num(double v) {
    return (sd_value){.kind = SD_ARG_NUM, .f = v};
}
static sd_value str(const char *s) {
    return (sd_value){.kind = SD_ARG_STR, .s = sd_strdup(s, NULL), .s_len = strlen(s)};
}
static sd_value mval(sd_model *m) {
    return (sd_value){.kind = SD_ARG_MODEL, .model = sd_model_ref(m)};
}

static double good_work(double x) {
    sd_value args[1] = {num(x)}, out;
    if (call("good_work", args, 1, &out) != SD_OK)
        fail_msg("%s", err.text);
    return out.f;
}

static void test_life(void **state) {
    (void)state;
    logged[0] = 0;
    assert_int_equal(sd_plugin_load(session, gallery("good"), &err), SD_OK);
    has(logged, "good: init 1");
    assert_true(good_work(21) == 42);
    sd_plugin_info info = sd_plugin_at(session, 0);
    assert_string_equal(info.name, "good");
    assert_int_equal(info.n_ops, 2);
    assert_string_equal(sd_op_find(session, "good_work")->plugin, "good");
    refused(gallery("good"), "a plugin of this name is loaded already");
    refused(gallery("same_name"), "a plugin of this name is loaded already");
    /* an unloaded op is a message, not a crash */
    const sd_op *old = sd_op_find(session, "good_answer");
    assert_int_equal(sd_plugin_unload(session, "good", &err), SD_OK);
    assert_null(sd_op_find(session, "good_answer"));
    sd_value out;
    assert_int_equal(sd_op_call(session, old, NULL, &out, &err), SD_EPLUGIN);
    has(err.text, "good_answer: plugin good was unloaded");
    assert_int_equal(sd_plugin_unload(session, "goud", &err), SD_EINVAL);
    assert_int_equal(sd_plugin_load(session, gallery("good"), &err), SD_OK);
    assert_int_equal(sd_plugin_unload(session, "goud", &err), SD_EINVAL);
    has(err.text, "did you mean good?");
    /* a reload is a fresh copy: its static counter starts again */
    logged[0] = 0;
    assert_int_equal(sd_plugin_reload(session, "good", &err), SD_OK);
    has(logged, "good: init 1");
    assert_true(good_work(2) == 4);
}

/* Rebuilding the file under a loaded plugin neither disturbs it nor is missed by reload. */
static void test_reload(void **state) {
    (void)state;
    char dir[] = "/tmp/sd-test-XXXXXX", path[700];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/p.so", dir);
    sd_buf a = {0}, b = {0};
    assert_int_equal(sd_plugin_unload(session, "good", &err), SD_OK);
    assert_int_equal(sd_read_file(gallery("good"), 0, &a, &err), SD_OK);
    assert_int_equal(sd_read_file(gallery("same_name"), 0, &b, &err), SD_OK);
    write_file(path, a.p, a.n);
    assert_int_equal(sd_plugin_load(session, path, &err), SD_OK);
    write_file(path, b.p, b.n); /* truncates and rewrites in place */
    assert_true(good_work(3) == 6);
    assert_int_equal(sd_plugin_reload(session, "good", &err), SD_OK);
    assert_null(sd_op_find(session, "good_work"));
    assert_non_null(sd_op_find(session, "same_name_op"));
    /* a broken rebuild leaves the loaded one in place */
    write_file(path, "int x;", 6);
    assert_int_not_equal(sd_plugin_reload(session, "good", &err), SD_OK);
    has(err.text, "not a shared object");
    assert_non_null(sd_op_find(session, "same_name_op"));
    sd_buf d = {0};
    assert_int_equal(sd_read_file(gallery("failing_init"), 0, &d, &err), SD_OK);
    write_file(path, d.p, d.n);
    assert_int_not_equal(sd_plugin_reload(session, "good", &err), SD_OK);
    has(err.text, "the file now holds plugin failing_init, not good");
    assert_non_null(sd_op_find(session, "same_name_op"));
    assert_int_equal(sd_plugin_unload(session, "good", &err), SD_OK);
    sd_buf_free(&a);
    sd_buf_free(&b);
    sd_buf_free(&d);
    unlink(path);
    rmdir(dir);
}

static void test_failing_ops(void **state) {
    (void)state;
    sd_value out;
    assert_int_equal(sd_plugin_load(session, gallery("fails"), &err), SD_OK);
    assert_int_equal(call("fail_with_reason", NULL, 0, &out), SD_ENUMERIC);
    assert_string_equal(err.text, "fail_with_reason: no convergence after 30 steps");
    assert_int_equal(call("fail_without_reason", NULL, 0, &out), SD_EPLUGIN);
    has(err.text, "fail_without_reason (plugin fails): failed with code 5 and gave no reason");
    assert_int_equal(call("fail_nan", NULL, 0, &out), SD_ENUMERIC);
    has(err.text, "returned nan");
    assert_int_equal(call("fail_kind", NULL, 0, &out), SD_EPLUGIN);
    has(err.text, "declares to return a number and returned a string");
    assert_int_equal(call("fail_nothing", NULL, 0, &out), SD_EPLUGIN);
    has(err.text, "declares to return a number and returned nothing");
    assert_int_equal(call("fail_undeclared", NULL, 0, &out), SD_EPLUGIN);
    has(err.text, "asks for argument ghost, which it does not declare");
    logged[0] = 0;
    assert_int_equal(call("fail_leak", NULL, 0, &out), SD_OK);
    has(logged, "plugin fails: fail_leak leaked 2 table handles, 1 rng handle (freed)");
    assert_int_equal(call("fail_stale", NULL, 0, &out), SD_EINVAL);
    has(err.text, "not a table of this call");
    assert_int_equal(call("fail_too_big", NULL, 0, &out), SD_ENOMEM);
}

/* No function of the table is missing: its groups fill it whole. */
static void test_table_whole(void **state) {
    (void)state;
    void (*f)(void);
    const char *t = (const char *)&session->host;
    assert_int_equal(session->host.abi_minor, SD_ABI_MINOR);
    for (size_t at = offsetof(sd_host, arg_given); at < sizeof(sd_host); at += sizeof f) {
        memcpy(&f, t + at, sizeof f);
        if (!f)
            fail_msg("the function at byte %zu of the table is not filled", at);
    }
}

/* The session lives: after all that, everything still works. */
static void test_everything(void **state) {
    (void)state;
    sd_model *m = NULL;
    sd_value out;
    assert_int_equal(sd_model_open("data/interim-sd", NULL, &m, &err), SD_OK);
    assert_int_equal(sd_plugin_load(session, gallery("everything"), &err), SD_OK);
    logged[0] = 0;
    sd_value args[2] = {mval(m), str("A text long enough to be cut into two sequences of sixteen "
                                     "tokens each, to be scored, calibrated on and trained on for "
                                     "one step, which lowers the loss of its own words at once.")};
    if (call("everything", args, 2, &out) != SD_OK)
        fail_msg("%s", err.text);
    /* what the run announced, and nothing after it: no leak */
    assert_ptr_equal(strstr(logged, "training cut:"), logged);
    assert_ptr_equal(strchr(logged, '\n'), logged + strlen(logged) - 1);
    sd_value_clear(&out);
    sd_value one[1] = {mval(m)};
    assert_int_equal(call("fail_changes_argument", one, 1, &out), SD_EINVAL);
    has(err.text, "cannot be changed: clone it first");
    sd_value two[1] = {mval(m)};
    assert_int_not_equal(call("fail_shape", two, 1, &out), SD_OK);
    sd_model_unref(m);
}

/* A value for the argument `name` of op. */
static void give(const char *op, sd_value *args, const char *name, sd_value v) {
    int i = sd_op_arg_index(sd_op_find(session, op)->desc, name);
    assert_true(i >= 0 && i < 40);
    args[i] = v;
}

/* The trainer behind the table is the trainer of `train`: the same steps give the same bits. */
static void test_one_trainer(void **state) {
    (void)state;
    sd_model *m = NULL;
    sd_value out, all[40] = {0};
    static int32_t ids[4 * 32 + 1];
    for (int i = 0; i < 4 * 32 + 1; i++)
        ids[i] = (i * i * 3 + 7 * i) % 500;
    assert_int_equal(sd_model_open("data/interim-sd", NULL, &m, &err), SD_OK);
    assert_int_equal(sd_plugin_load(session, gallery("trains"), &err), SD_OK);
    sd_value hand[2] = {mval(m), {.kind = SD_ARG_TEXT}};
    assert_int_equal(sd_text_from_ids(ids, 4 * 32 + 1, &hand[1].text, &err), SD_OK);
    sd_text *t = sd_text_ref(hand[1].text);
    if (call("train_by_hand", hand, 2, &out) != SD_OK)
        fail_msg("%s", err.text);
    give("train", all, "model", mval(m));
    give("train", all, "text", (sd_value){.kind = SD_ARG_TEXT, .text = t});
    give("train", all, "steps", num(4));
    give("train", all, "batch", num(2));
    give("train", all, "ctx", num(16));
    give("train", all, "lr", num(1e-3));
    give("train", all, "min_lr", num(1e-3));
    give("train", all, "warmup", num(0));
    give("train", all, "shuffle", (sd_value){.kind = SD_ARG_BOOL, .b = false});
    sd_value trained = {0};
    if (sd_op_call(session, sd_op_find(session, "train"), all, &trained, &err) != SD_OK)
        fail_msg("%s", err.text);
    size_t moved = 0;
    for (size_t i = 0; i < sd_model_n_tensors(m); i++) {
        const char *name = sd_model_tensor_name(m, i);
        sd_tensor *a = NULL, *b = NULL, *was = NULL;
        assert_int_equal(sd_model_tensor(out.model, name, &a, &err), SD_OK);
        assert_int_equal(sd_model_tensor(trained.model, name, &b, &err), SD_OK);
        assert_int_equal(sd_model_tensor(m, name, &was, &err), SD_OK);
        if (sd_tensor_nbytes(a) != sd_tensor_nbytes(b) ||
            memcmp(a->data, b->data, sd_tensor_nbytes(a)) != 0)
            fail_msg("%s differs between train and a plugin's steps", name);
        moved += memcmp(a->data, was->data, sd_tensor_nbytes(a)) != 0;
        sd_tensor_free(a);
        sd_tensor_free(b);
        sd_tensor_free(was);
    }
    assert_true(moved > 10);
    for (int i = 0; i < 40; i++)
        sd_value_clear(&all[i]);
    sd_value_clear(&out);
    sd_value_clear(&trained);
    sd_model_unref(m);
}

/* ---- truncate ---- */

static const char sample[] =
    "It was the best of times, it was the worst of times. The routing of a head says which token "
    "looks at which, the filtering says how strongly a token looks at itself and its likes; the "
    "two "
    "parts of a matrix add up to the whole and do not overlap.";

static double max_logit_difference(sd_model *a, sd_model *b) {
    sd_value xa[2] = {mval(a), str(sample)}, xb[2] = {mval(b), str(sample)}, oa, ob;
    if (call("logits", xa, 2, &oa) != SD_OK || call("logits", xb, 2, &ob) != SD_OK)
        fail_msg("%s", err.text);
    double worst = 0;
    const float *p = oa.tensor->data, *q = ob.tensor->data;
    int64_t n = sd_tensor_numel(oa.tensor);
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)p[i] - q[i]));
    sd_value_clear(&oa);
    sd_value_clear(&ob);
    return worst;
}

static sd_status truncate_(sd_model *m, const char *layers, const char *heads, const char *planes,
                           const char *filter, const char *basis, const char *calib,
                           sd_model **out) {
    enum { N = 40 };
    sd_value a[N] = {mval(m)}, o;
    const struct {
        const char *name, *text;
    } opts[] = {{"layers", layers}, {"heads", heads}, {"planes", planes},
                {"filter", filter}, {"basis", basis}, {"calib", calib}};
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++)
        if (opts[i].text)
            give("truncate", a, opts[i].name, str(opts[i].text));
    sd_status st = call("truncate", a, (int)sd_op_find(session, "truncate")->desc->n_args, &o);
    *out = o.model;
    return st;
}

/* Two parts of the bundled text: one to calibrate on, one to score. */
static char calib_text[6001], score_text[8001];

static void read_text(void) {
    sd_buf b = {0};
    assert_int_equal(sd_read_file("data/introduction.txt", 0, &b, &err), SD_OK);
    assert_true(b.n > 14000);
    memcpy(calib_text, b.p, 6000);
    memcpy(score_text, b.p + 6000, 8000);
    sd_buf_free(&b);
}

static double nll(sd_model *m) {
    sd_value a[2] = {mval(m), str(score_text[0] ? score_text : sample)}, o;
    if (call("nll", a, 2, &o) != SD_OK)
        fail_msg("%s", err.text);
    return o.f;
}

static sd_model *cut(sd_model *m, const char *layers, const char *heads, const char *planes,
                     const char *filter, const char *basis, const char *calib) {
    sd_model *x = NULL;
    if (truncate_(m, layers, heads, planes, filter, basis, calib, &x) != SD_OK)
        fail_msg("%s", err.text);
    return x;
}

static sd_model *load(const char *path) {
    sd_model *m = NULL;
    if (sd_model_open(path, NULL, &m, &err) != SD_OK)
        fail_msg("%s", err.text);
    return m;
}

static void need_truncate(void) {
    char path[600];
    if (sd_op_find(session, "truncate"))
        return;
    snprintf(path, sizeof path, "%s/plugins/truncate.so", build);
    if (sd_plugin_load(session, path, &err) != SD_OK)
        fail_msg("%s", err.text);
}

/* CASES S01, S02: a cut at full rank computes what the model did before; so does cutting nothing.
 */
static void test_truncate_full_rank(void **state) {
    (void)state;
    need_truncate();
    const char *paths[2] = {"data/interim-sd", "data/interim-gpt2"};
    for (int i = 0; i < 2; i++) {
        sd_model *m = load(paths[i]);
        double before = nll(m);
        sd_model *x = cut(m, NULL, NULL, "64", "keep", NULL, NULL);
        assert_true(max_logit_difference(m, x) < 2e-4); /* logits of size 10-20 in f32 */
        assert_true(fabs(nll(x) - before) < 1e-5);
        sd_model_unref(x);
        /* only some heads: the others are represented exactly */
        x = cut(m, "1-2", "1,3", "64", "keep", NULL, NULL);
        assert_true(fabs(nll(x) - before) < 1e-5);
        sd_model_unref(x);
        x = cut(m, NULL, NULL, "64", "keep", "calibrated", sample);
        assert_true(fabs(nll(x) - before) < 2e-3); /* the Gram's cut-off drops the directions no
                                                      calibration token used */
        sd_model_unref(x);
        sd_model_unref(m);
    }
}

static void test_truncate_effect(void **state) {
    (void)state;
    need_truncate();
    read_text();
    sd_model *sd = load("data/interim-sd"), *g = load("data/interim-gpt2");
    double sd0 = nll(sd), g0 = nll(g);
    /* fewer planes cost more, and the score's scale is kept (S01) */
    double last = INFINITY;
    const char *planes[4] = {"0", "1", "4", "16"};
    for (int i = 0; i < 4; i++) {
        sd_model *x = cut(sd, NULL, NULL, planes[i], NULL, NULL, NULL);
        double v = nll(x);
        assert_true(v < last);
        last = v;
        if (i) {
            assert_int_equal(sd_model_config(x)->layer[0].d_qk, atoi(planes[i]));
            assert_true(sd_model_config(x)->layer[0].scale == sd_model_config(sd)->layer[0].scale);
        }
        sd_model_unref(x);
    }
    assert_true(last - sd0 < 0.02);
    /* METHOD C6: S-D leans on routing, a standard model on filtering */
    sd_model *a = cut(sd, NULL, NULL, "all", "scalar", NULL, calib_text);
    sd_model *b = cut(sd, NULL, NULL, "0", "keep", NULL, NULL);
    sd_model *c = cut(g, NULL, NULL, "all", "scalar", NULL, calib_text);
    sd_model *d = cut(g, NULL, NULL, "0", "keep", NULL, NULL);
    double v[4] = {nll(a) - sd0, nll(b) - sd0, nll(c) - g0, nll(d) - g0};
    if (!(v[0] < 0.03 && v[1] > 0.1 && v[2] > 0.08 && v[3] < 0.06))
        fail_msg("S-D scalar %+.4f, no routing %+.4f; standard scalar %+.4f, no routing %+.4f",
                 v[0], v[1], v[2], v[3]);
    assert_string_equal(sd_model_config(c)->layer[3].kind, "bilinear");
    sd_model_unref(a);
    sd_model_unref(b);
    sd_model_unref(c);
    sd_model_unref(d);
    /* some heads only: the constant diagonal is the same, however it is stored */
    a = cut(sd, "0", "0-3", "all", "scalar", NULL, calib_text);
    b = cut(sd, "0", "0-2", "all", "scalar", NULL, calib_text);
    c = cut(b, "0", "3", "all", "scalar", NULL, calib_text);
    assert_true(fabs(nll(a) - nll(c)) < 1e-3); /* the second mean comes from the cut model */
    assert_string_equal(sd_model_step(c, 1).op, "truncate");
    has(sd_model_step(c, 1).version, "truncate 1.1");
    sd_model_unref(a);
    sd_model_unref(b);
    sd_model_unref(c);
    /* filter none: the diagonal is 0 */
    a = cut(sd, NULL, NULL, "all", "none", NULL, NULL);
    assert_true(isfinite(nll(a)));
    sd_model_unref(a);
    sd_model_unref(sd);
    sd_model_unref(g);
}

static void test_truncate_saved(void **state) {
    (void)state;
    need_truncate();
    char dir[] = "/tmp/sd-test-XXXXXX", path[100];
    assert_non_null(mkdtemp(dir));
    const char *paths[2] = {"data/interim-sd", "data/interim-gpt2"};
    for (int i = 0; i < 2; i++) {
        sd_model *m = load(paths[i]);
        sd_model *x = cut(m, "0-2", NULL, "2", "scalar", "calibrated", sample);
        snprintf(path, sizeof path, "%s/m%d", dir, i);
        if (sd_model_save(x, path, NULL, &err) != SD_OK)
            fail_msg("%s", err.text);
        sd_model *y = load(path); /* needs no plugin */
        assert_true(max_logit_difference(x, y) == 0);
        assert_int_equal(sd_model_n_steps(y), 1);
        sd_model_unref(x);
        sd_model_unref(y);
        sd_model_unref(m);
        char **names = NULL;
        size_t n = 0;
        assert_int_equal(sd_list_dir(path, &names, &n, &err), SD_OK);
        for (size_t k = 0; k < n; k++) {
            char f[400];
            snprintf(f, sizeof f, "%s/%s", path, names[k]);
            unlink(f);
            sd_free(names[k]);
        }
        sd_free(names);
        rmdir(path);
    }
    rmdir(dir);
}

static void test_truncate_refuses(void **state) {
    (void)state;
    need_truncate();
    sd_model *m = load("data/interim-sd"), *x = NULL;
    assert_int_equal(truncate_(m, "0-9", NULL, "2", NULL, NULL, NULL, &x), SD_EINVAL);
    has(err.text, "expected layer 0..5, got 9");
    assert_int_equal(truncate_(m, NULL, "4", "2", NULL, NULL, NULL, &x), SD_EINVAL);
    has(err.text, "expected head 0..3, got 4");
    assert_int_equal(truncate_(m, NULL, NULL, "65", NULL, NULL, NULL, &x), SD_EINVAL);
    has(err.text, "expected planes 0..64, got 65");
    assert_int_equal(truncate_(m, NULL, NULL, "some", NULL, NULL, NULL, &x), SD_EINVAL);
    assert_int_equal(truncate_(m, NULL, NULL, "-1", NULL, NULL, NULL, &x), SD_EINVAL);
    assert_int_equal(truncate_(m, NULL, NULL, "2", "scalar", NULL, NULL, &x), SD_EINVAL);
    has(err.text, "needs a calibration text");
    assert_int_equal(truncate_(m, NULL, NULL, "2", "kepe", NULL, NULL, &x), SD_EINVAL);
    has(err.text, "did you mean \"keep\"?");
    assert_null(x);
    sd_model_unref(m);
    sd_model *g = load("data/interim-gpt2");
    sd_model *once = cut(g, "0", NULL, "2", NULL, NULL, NULL);
    assert_int_equal(truncate_(once, "0", NULL, "1", NULL, NULL, NULL, &x), SD_EINVAL);
    has(err.text, "layer 0 is bilinear: its routing and filtering are factors already");
    sd_model_unref(once);
    sd_model_unref(g);
}

/* CASES S02: a model with big query and key biases, and S06: one with rotary positions. */
static void test_truncate_toys(void **state) {
    (void)state;
    need_truncate();
    sd_config cfg;
    assert_int_equal(sd_config_init(&cfg, 2, &err), SD_OK);
    strcpy(cfg.family, "gpt2");
    cfg.d_model = 16;
    cfg.d_ff = 32;
    cfg.vocab = 40;
    cfg.n_pos = 24;
    cfg.causal = cfg.tied = cfg.has_head = cfg.final_norm = true;
    cfg.norm = SD_NORM_LAYER;
    cfg.norm_eps = 1e-5;
    cfg.act = SD_ACT_GELU_TANH;
    cfg.pos = SD_POS_LEARNED;
    cfg.qkv_bias = cfg.out_bias = cfg.mlp_bias = true;
    cfg.embed_scale = 1;
    cfg.bos = cfg.eos = -1;
    for (int l = 0; l < 2; l++) {
        sd_layer_cfg *lc = &cfg.layer[l];
        strcpy(lc->kind, "softmax");
        lc->n_head = lc->n_kv_head = 2;
        lc->d_qk = lc->d_v = 8;
        lc->scale = 1 / sqrt(8);
    }
    sd_model *m = NULL, *x = NULL;
    if (sd_model_new(&cfg, 3, &m, &err) != SD_OK)
        fail_msg("%s", err.text);
    for (int l = 0; l < 2; l++)
        for (int r = 0; r < 4; r++) {
            const sd_role roles[4] = {SD_ROLE_BQ, SD_ROLE_BK, SD_ROLE_WQ, SD_ROLE_WK};
            sd_tensor *t = NULL;
            assert_int_equal(sd_model_get(m, l, roles[r], SD_F64, &t, &err), SD_OK);
            double *v = t->data;
            for (int64_t i = 0; i < sd_tensor_numel(t); i++)
                v[i] = r < 2 ? 3 * sin((double)(7 * i + l + r)) : 20 * v[i];
            assert_int_equal(sd_model_set(m, l, roles[r], t, &err), SD_OK);
            sd_tensor_free(t);
        }
    int32_t ids[24];
    for (int i = 0; i < 24; i++)
        ids[i] = (i * 7 + i * i) % 40;
    sd_value a[4] = {mval(m), {0}, {0}, str("8")}, o;
    if (call("truncate", a, 4, &o) != SD_OK)
        fail_msg("%s", err.text);
    x = o.model;
    double worst = 0;
    sd_value out[2];
    for (int i = 0; i < 2; i++) {
        sd_text *t = NULL;
        assert_int_equal(sd_text_from_ids(ids, 24, &t, &err), SD_OK);
        sd_value in[2] = {mval(i ? x : m), {.kind = SD_ARG_TEXT, .text = t}};
        if (call("logits", in, 2, &out[i]) != SD_OK)
            fail_msg("%s", err.text);
    }
    for (int i = 0; i < 24 * 40; i++)
        worst = fmax(worst, fabs((double)((float *)out[0].tensor->data)[i] -
                                 ((float *)out[1].tensor->data)[i]));
    assert_true(worst < 1e-5);
    sd_value_clear(&out[0]);
    sd_value_clear(&out[1]);
    sd_model_unref(x);
    sd_model_unref(m);
    sd_config_free(&cfg);
}

/* CASES S06: with rotary positions the product of the weights is not the score. */
static void test_truncate_rotary(void **state) {
    (void)state;
    need_truncate();
    sd_config cfg;
    assert_int_equal(sd_config_init(&cfg, 1, &err), SD_OK);
    strcpy(cfg.family, "llama");
    cfg.d_model = 16;
    cfg.d_ff = 32;
    cfg.vocab = 40;
    cfg.n_pos = 24;
    cfg.causal = cfg.tied = cfg.has_head = cfg.final_norm = cfg.gated_mlp = true;
    cfg.norm = SD_NORM_RMS;
    cfg.norm_eps = 1e-5;
    cfg.act = SD_ACT_SILU;
    cfg.pos = SD_POS_ROPE;
    cfg.rope = (sd_rope_cfg){.dim = 8, .theta = 10000, .scaling = "none", .factor = 1};
    cfg.embed_scale = 1;
    cfg.bos = cfg.eos = -1;
    sd_layer_cfg *lc = &cfg.layer[0];
    strcpy(lc->kind, "softmax");
    lc->n_head = 2;
    lc->n_kv_head = 1;
    lc->d_qk = lc->d_v = 8;
    lc->scale = 1 / sqrt(8);
    sd_model *m = NULL, *x = NULL;
    if (sd_model_new(&cfg, 3, &m, &err) != SD_OK)
        fail_msg("%s", err.text);
    assert_int_equal(truncate_(m, NULL, NULL, "2", NULL, NULL, NULL, &x), SD_EINVAL);
    has(err.text, "rotates queries and keys (RoPE)");
    sd_model_unref(m);
    sd_config_free(&cfg);
}

static void test_template(void **state) {
    (void)state;
    char path[600];
    snprintf(path, sizeof path, "%s/plugins/template.so", build);
    if (sd_plugin_load(session, path, &err) != SD_OK)
        fail_msg("%s", err.text);
    sd_model *m = load("data/interim-sd");
    sd_value a[3] = {mval(m), {.kind = SD_ARG_INT, .i = 5}, {.kind = SD_ARG_INT, .i = 1}}, o;
    assert_int_equal(call("scale_head", a, 3, &o), SD_OK);
    assert_true(nll(o.model) != nll(m));
    sd_value_clear(&o);
    sd_value b[3] = {mval(m), {.kind = SD_ARG_INT, .i = 5}, {.kind = SD_ARG_INT, .i = 4}};
    assert_int_equal(call("scale_head", b, 3, &o), SD_EINVAL);
    has(err.text, "expected head 0..3, got 4: interim-sd has 4 heads");
    sd_model_unref(m);
}

/* The search path: absolute folders only; a bad file is logged and skipped; never the working
 * directory. */
static void test_search_path(void **state) {
    (void)state;
    char dir[] = "/tmp/sd-test-XXXXXX", path[700], env[800];
    assert_non_null(mkdtemp(dir));
    sd_buf b = {0};
    assert_int_equal(sd_read_file(gallery("good"), 0, &b, &err), SD_OK);
    snprintf(path, sizeof path, "%s/a.so", dir);
    write_file(path, "text", 4);
    snprintf(path, sizeof path, "%s/b.so", dir);
    write_file(path, b.p, b.n);
    sd_session *s = NULL;
    assert_int_equal(sd_session_new(&s, &err), SD_OK);
    sd_session_run(s)->log = on_log;
    logged[0] = 0;
    snprintf(env, sizeof env, "relative::%s", dir);
    setenv("SD_PLUGIN_PATH", env, 1);
    setenv("XDG_DATA_HOME", dir, 1);
    assert_int_equal(sd_plugin_load_all(s, &err), SD_OK);
    unsetenv("SD_PLUGIN_PATH");
    unsetenv("XDG_DATA_HOME");
    assert_non_null(sd_op_find(s, "good_work"));
    has(logged, "a.so: not a shared object");
    has(logged, "\"relative\" is not an absolute path");
    char cwd[500];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(dir), 0);
    sd_session *s2 = NULL;
    assert_int_equal(sd_session_new(&s2, &err), SD_OK);
    assert_int_equal(sd_plugin_load_all(s2, &err), SD_OK);
    assert_null(sd_op_find(s2, "good_work"));
    assert_int_equal(chdir(cwd), 0);
    sd_session_free(s2);
    sd_session_free(s);
    sd_buf_free(&b);
    unlink(path);
    snprintf(path, sizeof path, "%s/a.so", dir);
    unlink(path);
    rmdir(dir);
}

static int open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void test_steady(void **state) {
    (void)state;
    int before = open_files();
    for (int i = 0; i < 30; i++) {
        assert_int_not_equal(sd_plugin_load(session, gallery("wild_pointer"), &err), SD_OK);
        assert_int_equal(sd_plugin_load(session, gallery("good"), &err), SD_OK);
        assert_true(good_work(1) == 2);
        assert_int_equal(sd_plugin_unload(session, "good", &err), SD_OK);
    }
    assert_int_equal(open_files(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gallery),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_failing_ops),
        cmocka_unit_test(test_table_whole),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_one_trainer),
        cmocka_unit_test(test_truncate_full_rank),
        cmocka_unit_test(test_truncate_effect),
        cmocka_unit_test(test_truncate_saved),
        cmocka_unit_test(test_truncate_refuses),
        cmocka_unit_test(test_truncate_toys),
        cmocka_unit_test(test_truncate_rotary),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_search_path),
        cmocka_unit_test(test_steady),
    };
    return cmocka_run_group_tests_name("plugin", tests, setup, teardown);
}
