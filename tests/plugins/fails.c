/* Loads; each op goes wrong in its own way. */
#include <math.h>

#include "gallery.h"

static int with_reason(const sd_host *host, sd_call *call) {
    return host->fail(call, SD_FAIL_NUMERIC, "no convergence after %d steps", 30);
}

static int without_reason(const sd_host *host, sd_call *call) {
    (void)host;
    (void)call;
    return 5;
}

static int is_nan(const sd_host *host, sd_call *call) {
    return host->return_num(call, NAN);
}

static int wrong_kind(const sd_host *host, sd_call *call) {
    return host->return_str(call, "text", 4);
}

static int nothing(const sd_host *host, sd_call *call) {
    (void)host;
    (void)call;
    return 0;
}

static int undeclared(const sd_host *host, sd_call *call) {
    return host->arg_int(call, "ghost") ? 1 : host->failed(call);
}

static int leaks(const sd_host *host, sd_call *call) {
    host->alloc(call, 1000, 8); /* scratch memory is no leak */
    host->table_new(call, "one");
    host->table_new(call, "two");
    host->rng_new(call, 1, 2);
    return host->return_num(call, 1);
}

static int stale(const sd_host *host, sd_call *call) {
    sd_htable *t = host->table_new(call, "t");
    host->table_release(call, t);
    return host->table_heading(call, t, "after release") ? host->failed(call) : 0;
}

static int too_big(const sd_host *host, sd_call *call) {
    return host->alloc(call, SIZE_MAX / 2, 16) ? 0 : host->failed(call);
}

static const sd_arg_desc model_arg[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "a model"}};

static int changes_argument(const sd_host *host, sd_call *call) {
    sd_hmodel *m = host->arg_model(call, "model");
    sd_harray a;
    if (host->model_get_part(call, m, 0, "wq", &a) || host->model_set_part(call, m, 0, "wq", &a))
        return host->failed(call);
    return host->return_num(call, 1);
}

static int wrong_shape(const sd_host *host, sd_call *call) {
    sd_hmodel *m = host->model_clone(call, host->arg_model(call, "model"));
    double v[4] = {0};
    sd_harray a = {.ndim = 2, .shape = {2, 2}, .data = v};
    if (!m || host->model_set_part(call, m, 0, "wq", &a)) {
        host->model_release(call, m);
        return host->failed(call);
    }
    return host->return_num(call, 1);
}

static const sd_op_desc ops[] = {
    OP("fail_with_reason", SD_ARG_NUM, with_reason),
    OP("fail_without_reason", SD_ARG_NUM, without_reason),
    OP("fail_nan", SD_ARG_NUM, is_nan),
    OP("fail_kind", SD_ARG_NUM, wrong_kind),
    OP("fail_nothing", SD_ARG_NUM, nothing),
    OP("fail_undeclared", SD_ARG_NUM, undeclared),
    OP("fail_leak", SD_ARG_NUM, leaks),
    OP("fail_stale", SD_ARG_NUM, stale),
    OP("fail_too_big", SD_ARG_NUM, too_big),
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_NUM,
     .name = "fail_changes_argument",
     .summary = "a test",
     .details = "A test.",
     .example = "return 1",
     .returns_doc = "something",
     .args = model_arg,
     .n_args = 1,
     .run = changes_argument},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_NUM,
     .name = "fail_shape",
     .summary = "a test",
     .details = "A test.",
     .example = "return 1",
     .returns_doc = "something",
     .args = model_arg,
     .n_args = 1,
     .run = wrong_shape},
};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("fails", ops)};
