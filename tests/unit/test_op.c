/* The op registry: what registers, how arguments are checked and completed, help, lineage. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "host/session.h"
#include "train/trainer.h"

static sd_session *session;
static sd_err err;

static int setup(void **state) {
    (void)state;
    return sd_session_new(&session, &err) == SD_OK ? 0 : -1;
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

/* ---- an op that shows what it got ---- */
static struct {
    int64_t planes;
    double share;
    char filter[16], name[32];
    bool flag, given_name;
    int calls;
} seen;

static int show(const sd_host *host, sd_call *call) {
    seen.planes = host->arg_int(call, "planes");
    seen.share = host->arg_num(call, "share");
    strcpy(seen.filter, host->arg_str(call, "filter"));
    seen.given_name = host->arg_given(call, "name");
    strcpy(seen.name, seen.given_name ? host->arg_str(call, "name") : "");
    seen.flag = host->arg_bool(call, "flag");
    seen.calls++;
    return host->return_num(call, host->arg_num(call, "x"));
}

static const sd_arg_desc show_args[] = {
    {.name = "x", .kind = SD_ARG_NUM, .flags = SD_ARG_REQUIRED, .doc = "a number"},
    {.name = "planes",
     .kind = SD_ARG_INT,
     .dflt = "2",
     .min = 0,
     .max = 12,
     .doc = "planes to keep"},
    {.name = "share", .kind = SD_ARG_NUM, .dflt = "0.5", .min = 0, .max = 1, .doc = "a share"},
    {.name = "filter",
     .kind = SD_ARG_CHOICE,
     .dflt = "keep",
     .choices = "keep|scalar|none",
     .doc = "filtering"},
    {.name = "name", .kind = SD_ARG_STR, .doc = "a name"},
    {.name = "flag", .kind = SD_ARG_BOOL, .dflt = "true", .doc = "a flag"},
};
static const sd_op_desc show_op = {.struct_size = sizeof(sd_op_desc),
                                   .returns = SD_ARG_NUM,
                                   .name = "show",
                                   .summary = "shows its arguments",
                                   .details = "First paragraph.\n\nSecond paragraph.",
                                   .example = "assert(show(1) == 1)\nshow(2)",
                                   .returns_doc = "its argument",
                                   .args = show_args,
                                   .n_args = 6,
                                   .run = show};

enum { X, PLANES, SHARE, FILTER, NAME, FLAG };

static sd_value num(double v) {
    return (sd_value){.kind = SD_ARG_NUM, .f = v};
}
static sd_value integer(int64_t v) {
    return (sd_value){.kind = SD_ARG_INT, .i = v, .f = (double)v};
}
static sd_value str(const char *s) {
    return (sd_value){.kind = SD_ARG_STR, .s = sd_strdup(s, NULL), .s_len = strlen(s)};
}

/* Calls show with x = 1 and one more argument. */
static sd_status call_with(int i, sd_value v) {
    sd_value args[6] = {0}, out;
    args[X] = num(1);
    if (i >= 0)
        args[i] = v;
    sd_err_clear(&err);
    sd_status st = sd_op_call(session, sd_op_find(session, "show"), args, &out, &err);
    for (int k = 0; k < 6; k++)
        sd_value_clear(&args[k]);
    if (st == SD_OK)
        assert_true(out.kind == SD_ARG_NUM);
    sd_value_clear(&out);
    return st;
}

static void test_defaults(void **state) {
    (void)state;
    assert_int_equal(sd_op_register(session, &show_op, NULL, &err), SD_OK);
    assert_int_equal(call_with(-1, num(0)), SD_OK);
    assert_int_equal(seen.planes, 2);
    assert_true(seen.share == 0.5 && seen.flag && !seen.given_name);
    assert_string_equal(seen.filter, "keep");
    assert_int_equal(call_with(PLANES, num(7)), SD_OK); /* 7.0 is an integer */
    assert_int_equal(seen.planes, 7);
    assert_int_equal(call_with(SHARE, integer(1)), SD_OK);
    assert_true(seen.share == 1);
    assert_int_equal(call_with(FILTER, str("none")), SD_OK);
    assert_string_equal(seen.filter, "none");
    assert_int_equal(call_with(NAME, str("a\"b")), SD_OK);
    assert_string_equal(seen.name, "a\"b");
}

static void test_argument_errors(void **state) {
    (void)state;
    int calls = seen.calls;
    assert_int_equal(call_with(PLANES, integer(13)), SD_EINVAL);
    assert_string_equal(err.text, "show: expected planes 0..12, got 13");
    assert_int_equal(call_with(PLANES, num(1.5)), SD_EINVAL);
    has(err.text, "expected an integer as planes, got 1.5");
    assert_int_equal(call_with(PLANES, num(1e300)), SD_EINVAL);
    assert_int_equal(call_with(PLANES, str("2")), SD_EINVAL);
    has(err.text, "expected an integer as planes, got a string");
    assert_int_equal(call_with(SHARE, num(-0.1)), SD_EINVAL);
    has(err.text, "expected share 0..1, got -0.1");
    assert_int_equal(call_with(SHARE, num((double)NAN)), SD_EINVAL);
    assert_int_equal(call_with(FILTER, str("scaler")), SD_EINVAL);
    has(err.text, "unknown filter \"scaler\": did you mean \"scalar\"?");
    assert_int_equal(call_with(FILTER, str("keep|scalar")), SD_EINVAL);
    assert_int_equal(call_with(FILTER, str("")), SD_EINVAL);
    assert_int_equal(call_with(FLAG, integer(1)), SD_EINVAL);
    has(err.text, "expected true or false as flag, got an integer");
    sd_value args[6] = {0}, out;
    assert_int_equal(sd_op_call(session, sd_op_find(session, "show"), args, &out, &err), SD_EINVAL);
    has(err.text, "argument 1 (x) is missing: expected a number");
    for (int i = 0; i < 6; i++)
        sd_value_clear(&args[i]);
    assert_int_equal(seen.calls, calls); /* nothing of this ran */
    int i = -1;
    assert_int_equal(sd_op_arg_find(&show_op, "plane", &i, &err), SD_EINVAL);
    assert_string_equal(err.text, "show: unknown option plane: did you mean planes?");
    assert_int_equal(sd_op_arg_find(&show_op, "zzzzzzzz", &i, &err), SD_EINVAL);
    has(err.text, "its options are planes, share, filter, name, flag");
    assert_int_equal(sd_op_arg_find(&show_op, "share", &i, &err), SD_OK);
    assert_int_equal(i, SHARE);
}

/* One field changed, one message. */
static void test_bad_descriptors(void **state) {
    (void)state;
    static const sd_arg_desc good = {.name = "a", .kind = SD_ARG_INT, .doc = "a number"};
    sd_arg_desc a[3];
    sd_op_desc d;
    size_t n = 0;
    while (sd_op_at(session, n))
        n++;
#define REFUSED(change_, message_)                                             \
    do {                                                                       \
        a[0] = a[1] = a[2] = good;                                             \
        a[1].name = "b";                                                       \
        a[2].name = "c";                                                       \
        d = show_op;                                                           \
        d.name = "broken";                                                     \
        d.args = a;                                                            \
        d.n_args = 3;                                                          \
        change_;                                                               \
        sd_err_clear(&err);                                                    \
        assert_int_equal(sd_op_register(session, &d, NULL, &err), SD_EPLUGIN); \
        has(err.text, message_);                                               \
        assert_null(sd_op_find(session, "broken"));                            \
    } while (0)
    REFUSED(d.struct_size = 8, "8 bytes");
    REFUSED(d.name = NULL, "name is missing");
    REFUSED(d.name = "", "name");
    REFUSED(d.name = "Broken", "[a-z]");
    REFUSED(d.name = "bro ken", "[a-z]");
    REFUSED(d.name = "end", "word of Lua");
    REFUSED(d.summary = NULL, "summary is missing");
    REFUSED(d.summary = "", "summary is empty");
    REFUSED(d.summary = "two\nlines", "control byte");
    REFUSED(d.summary = "bad \xff", "UTF-8");
    REFUSED(d.details = "", "details is empty");
    REFUSED(d.example = NULL, "example is missing");
    REFUSED(d.returns_doc = NULL, "what it returns is missing");
    REFUSED(d.returns = 99, "declares to return");
    REFUSED(d.flags = 0x80, "flags");
    REFUSED(d.n_args = 1000, "1000 arguments");
    REFUSED(d.args = NULL, "none is there");
    REFUSED(d.run = NULL, "no function");
    REFUSED(a[1].name = "a", "declared twice");
    REFUSED(a[1].name = "9", "argument 2");
    REFUSED(a[1].name = "nil", "argument 2");
    REFUSED(a[1].doc = "", "doc is empty");
    REFUSED(a[1].doc = NULL, "doc is missing");
    REFUSED(a[1].kind = 0, "unknown kind");
    REFUSED(a[1].kind = 77, "unknown kind");
    REFUSED(a[1].flags = 6, "unknown flags");
    REFUSED(a[1].flags = SD_ARG_REQUIRED, "after an optional");
    REFUSED((a[0].flags = SD_ARG_REQUIRED, a[0].dflt = "1"), "has a default");
    REFUSED(a[1].dflt = "one", "not an integer");
    REFUSED(a[1].dflt = "1x", "not an integer");
    REFUSED((a[1].kind = SD_ARG_NUM, a[1].dflt = "nan"), "not a number");
    REFUSED((a[1].kind = SD_ARG_BOOL, a[1].dflt = "yes"), "not true or false");
    REFUSED((a[1].kind = SD_ARG_CHOICE, a[1].choices = NULL), "choices is missing");
    REFUSED((a[1].kind = SD_ARG_CHOICE, a[1].choices = "a||b"), "empty choice");
    REFUSED((a[1].kind = SD_ARG_CHOICE, a[1].choices = "a|b", a[1].dflt = "c"),
            "among the choices");
    REFUSED((a[1].kind = SD_ARG_MODEL, a[1].dflt = "m"), "cannot have a default");
    REFUSED((a[1].dflt = "11", a[1].min = 0, a[1].max = 10), "outside 0..10");
    REFUSED((a[1].min = NAN), "not a number");
    REFUSED(d.name = "heads", "exists already, built in");
    size_t after = 0;
    while (sd_op_at(session, after))
        after++;
    assert_int_equal(n, after);
    /* sorted */
    for (size_t i = 1; i < n; i++)
        assert_true(strcmp(sd_op_at(session, i - 1)->desc->name, sd_op_at(session, i)->desc->name) <
                    0);
}

/* The registry keeps a copy: a descriptor may go away. */
static void test_copies(void **state) {
    (void)state;
    sd_op_desc *d = malloc(sizeof *d);
    sd_arg_desc *a = malloc(sizeof *a);
    char *name = strdup("copied"), *doc = strdup("a doc");
    *d = show_op;
    *a = (sd_arg_desc){.name = "x", .kind = SD_ARG_NUM, .doc = doc};
    d->name = name;
    d->args = a;
    d->n_args = 1;
    assert_int_equal(sd_op_register(session, d, NULL, &err), SD_OK);
    memset(name, 'z', 6);
    memset(doc, 'z', 5);
    memset(a, 0xff, sizeof *a);
    memset(d, 0xff, sizeof *d);
    free(name);
    free(doc);
    free(a);
    free(d);
    const sd_op *op = sd_op_find(session, "copied");
    assert_non_null(op);
    assert_string_equal(op->desc->args[0].doc, "a doc");
}

static void test_help(void **state) {
    (void)state;
    sd_buf b = {0};
    assert_int_equal(sd_op_signature(&show_op, &b, &err), SD_OK);
    assert_string_equal(b.p, "show(x, {planes=2, share=0.5, filter=\"keep\", name=, flag=true})");
    sd_buf_clear(&b);
    assert_int_equal(sd_op_help(sd_op_find(session, "show"), 60, &b, &err), SD_OK);
    has(b.p, "shows its arguments");
    has(b.p, "First paragraph.\n\nSecond paragraph.\n");
    has(b.p, "\"keep\", \"scalar\", \"none\"");
    has(b.p, "planes to keep (integer 0..12; default 2)");
    has(b.p, "  assert(show(1) == 1)\n  show(2)\n");
    for (const char *p = b.p; *p;) { /* fits the width, in characters */
        size_t k = strcspn(p, "\n");
        assert_true(k <= 66);
        p += k + (p[k] == '\n');
    }
    for (size_t i = 0; sd_op_at(session, i); i++) {
        sd_buf_clear(&b);
        assert_int_equal(sd_op_help(sd_op_at(session, i), 80, &b, &err), SD_OK);
        has(b.p, "Example");
    }
    sd_buf_free(&b);
}

static void test_text(void **state) {
    (void)state;
    sd_text *t = NULL;
    assert_int_equal(sd_text_from_bytes("a\0b", 3, &t, &err), SD_OK);
    size_t n;
    assert_memory_equal(sd_text_bytes(t, &n), "a\0b", 4);
    assert_int_equal(n, 3);
    sd_text_unref(sd_text_ref(t));
    sd_text_unref(t);
    assert_int_equal(sd_text_from_file("/nonexistent/x", &t, &err), SD_EFILE);
    assert_null(t);
    const int32_t ids[3] = {5, 6, 7};
    assert_int_equal(sd_text_from_ids(ids, 3, &t, &err), SD_OK);
    assert_null(sd_text_bytes(t, &n));
    sd_text_unref(t);
}

/* ---- with a model ---- */
static sd_model *model;

static sd_status call1(const char *op, sd_value first, sd_value second, sd_value *out) {
    sd_value args[16] = {0};
    args[0] = first;
    args[1] = second;
    sd_err_clear(&err);
    sd_status st = sd_op_call(session, sd_op_find(session, op), args, out, &err);
    for (int i = 0; i < 16; i++)
        sd_value_clear(&args[i]);
    return st;
}

static sd_value mval(void) {
    return (sd_value){.kind = SD_ARG_MODEL, .model = sd_model_ref(model)};
}

static void test_model_ops(void **state) {
    (void)state;
    sd_value out;
    assert_int_equal(call1("open", str("data/interim-sd"), (sd_value){0}, &out), SD_OK);
    model = out.model;
    assert_int_equal(call1("open", str("data/no-such-model"), (sd_value){0}, &out), SD_EFILE);
    has(err.text, "open: ");
    assert_int_equal(call1("nll", mval(), str("The words of a text are scored one by one."), &out),
                     SD_OK);
    assert_true(out.f > 1 && out.f < 12);
    sd_value_clear(&out);
    assert_int_equal(call1("nll", mval(), integer(3), &out), SD_EINVAL);
    has(err.text, "nll: expected a text as text, got an integer");
    /* layer numbers are checked against the model */
    assert_int_equal(call1("heads", mval(), str("0-6"), &out), SD_EINVAL);
    has(err.text, "expected layer 0..5, got 6");
    has(err.text, "has 6 layers, numbered from 0");
    assert_int_equal(call1("lineage", mval(), (sd_value){0}, &out), SD_OK);
    assert_int_equal(sd_table_rows(out.table), 0);
    sd_value_clear(&out);
    assert_int_equal(call1("logits", mval(), str("two words"), &out), SD_OK);
    assert_int_equal(out.tensor->shape[1], sd_model_config(model)->vocab);
    sd_value_clear(&out);
    assert_int_equal(call1("capture", mval(), str("two words and more"), &out), SD_OK);
    assert_int_equal(out.tensor->ndim, 3);
    sd_value_clear(&out);
}

static void test_lineage(void **state) {
    (void)state;
    if (!model)
        skip();
    const char *name = sd_model_tensor_name(model, 0);
    sd_tensor *t = NULL;
    assert_int_equal(sd_model_tensor(model, name, &t, &err), SD_OK);
    sd_value args[3] = {mval(), str(name), {.kind = SD_ARG_TENSOR, .tensor = t}}, out;
    assert_int_equal(sd_op_call(session, sd_op_find(session, "edit"), args, &out, &err), SD_OK);
    assert_int_equal(sd_model_n_steps(model), 0);
    assert_int_equal(sd_model_n_steps(out.model), 1);
    sd_step s = sd_model_step(out.model, 0);
    assert_string_equal(s.op, "edit");
    assert_string_equal(s.version, SD_VERSION);
    has(s.args, "\"name\":");
    has(s.args, "\"sha256\":\"");
    has(s.input_hash, "sha256:");
    for (int i = 0; i < 3; i++)
        sd_value_clear(&args[i]);
    /* a second step stands on the first */
    sd_model *first = out.model;
    assert_int_equal(sd_model_tensor(first, name, &t, &err), SD_OK);
    sd_value again[3] = {
        {.kind = SD_ARG_MODEL, .model = first}, str(name), {.kind = SD_ARG_TENSOR, .tensor = t}};
    assert_int_equal(sd_op_call(session, sd_op_find(session, "edit"), again, &out, &err), SD_OK);
    assert_int_equal(sd_model_n_steps(out.model), 2);
    assert_string_not_equal(sd_model_step(out.model, 1).input_hash, s.input_hash);
    for (int i = 0; i < 3; i++)
        sd_value_clear(&again[i]);
    sd_value_clear(&out);
    sd_model_unref(model);
    model = NULL;
}

/* The ranges that `train` announces are those a run, also a resumed one, is checked against. */
static void test_train_ranges(void **state) {
    (void)state;
    const sd_op_desc *d = sd_op_find(session, "train")->desc;
    sd_train_opts o;
    sd_train_defaults(&o);
    assert_int_equal(sd_train_opts_check(&o, &err), SD_OK);
    for (size_t i = 0; sd_train_opt_at(i); i++) {
        const sd_train_opt *t = sd_train_opt_at(i);
        int a = sd_op_arg_index(d, t->name);
        if (a < 0)
            fail_msg("train has no argument %s", t->name);
        double low = strcmp(t->name, "warmup") == 0 ? -1 : d->args[a].min; /* -1: the default */
        if (t->min != low || t->max != d->args[a].max)
            fail_msg("%s: %g..%g in core/train, %g..%g as an argument", t->name, t->min, t->max,
                     d->args[a].min, d->args[a].max);
        double was = sd_train_opt_get(&o, t), bad[2] = {t->min - 1, t->max * 2};
        for (int k = 0; k < 2; k++) {
            if (k && t->kind == SD_TRAIN_INT && bad[k] > INT32_MAX)
                continue;
            sd_train_opt_set(&o, t, bad[k]);
            sd_err_clear(&err);
            assert_int_equal(sd_train_opts_check(&o, &err), SD_EINVAL);
            has(err.text, t->name);
        }
        sd_train_opt_set(&o, t, was);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_argument_errors),
        cmocka_unit_test(test_bad_descriptors),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_model_ops),
        cmocka_unit_test(test_lineage),
        cmocka_unit_test(test_train_ranges),
    };
    return cmocka_run_group_tests_name("op", tests, setup, teardown);
}
