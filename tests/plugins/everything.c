/* Loads; its one op goes through the whole function table on a model and a text, and returns the
 * number of checks that held; a check that does not hold fails the op by its name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gallery.h"

#define CHECK(x_)                                                                            \
    do {                                                                                     \
        if (!(x_))                                                                           \
            return host->fail(call, SD_FAIL_INVALID, "%s (%s)", #x_, host->fail_text(call)); \
        done++;                                                                              \
    } while (0)

typedef struct seen {
    int layers, tokens;
    double sum;
} seen;

static int on_capture(void *user, const sd_hcapture *c) {
    seen *s = user;
    s->layers++;
    s->tokens = c->tokens;
    for (int i = 0; i < c->tokens * c->n_head * c->d_qk; i++)
        s->sum += fabs((double)c->q[i]);
    return 0;
}

/* What ABI 1.1 added; the number of checks that held through *held. */
static int since_1_1(const sd_host *host, sd_call *call, sd_hmodel *in, sd_htext *text,
                     const int32_t *ids, int *held) {
    int done = 0;
    sd_hmodel_info mi = {.struct_size = sizeof mi};
    sd_hlayer_info li = {.struct_size = sizeof li};
    CHECK(host->model_info(call, in, &mi) == 0 && host->model_layer(call, in, 0, &li) == 0);
    sd_hprice all = {.struct_size = sizeof all}, one = {.struct_size = sizeof one};
    CHECK(host->model_price(call, in, -1, 0, &all) == 0 &&
          host->model_price(call, in, 0, 0, &one) == 0);
    CHECK(all.n_params == mi.n_params && one.attn_params * mi.n_layer == all.attn_params);
    CHECK(all.flops > all.attn_flops && all.cache_bytes > 0 && all.recurrent_layers == 0);
    CHECK(host->model_price(call, in, mi.n_layer, 0, &one) != 0);
    host->fail_clear(call);
    sd_hrope rope = {.struct_size = sizeof rope};
    CHECK(host->model_rope(call, in, &rope) == 0 && rope.pairs == 0);
    sd_hmodel *m = host->model_clone(call, in);
    CHECK(m && host->model_no_scores(call, in, 0)[0] == 0);
    strcpy(li.kind, "uniform");
    li.d_qk = 0;
    CHECK(host->model_set_layer(call, m, 0, &li) == 0);
    CHECK(strcmp(host->model_no_scores(call, m, 0), "no scores (uniform)") == 0);
    CHECK(host->model_price(call, m, -1, 0, &one) == 0 && one.recurrent_layers == 1 &&
          one.cache_bytes < all.cache_bytes && one.n_params < all.n_params);
    CHECK(host->model_set_name(call, m, "cut") == 0 &&
          strcmp(host->model_name(call, m), "cut") == 0);
    CHECK(host->model_set_name(call, in, "cut") != 0);
    host->fail_clear(call);
    sd_hdelta d = {.struct_size = sizeof d};
    CHECK(host->compare(call, in, m, ids, 40, 16, 16, 1, &d) == 0 && d.tokens == 39);
    CHECK(d.windows == 3 && fabs(d.nll_b - d.nll_a - d.delta) < 1e-9 && d.lo <= d.delta &&
          d.delta <= d.hi);
    sd_hrecall r = {.struct_size = sizeof r};
    CHECK(host->recall(call, in, 8, 2, 1, &r) == 0 && r.half == 8 && r.seqs == 2 && r.nll > 0);
    sd_hcalib *cal = host->calibrate(call, in, ids, 32, 16, 2);
    sd_harray o;
    CHECK(cal && host->calib_get(call, cal, 0, "o2", &o) == 0 && o.shape[2] == li.d_v &&
          o.data[0] > 0);
    host->calib_release(call, cal);
    const double G[4] = {4, 0, 0, 9}, one1[1] = {4}, one2[1] = {9}; /* q, k uncorrelated: sigma 6 */
    double sg[1], a[2], b[2];
    size_t live;
    CHECK(host->whitened_planes(call, 1, G, 1, sg, a, b, &live) == 0 && live == 2);
    CHECK(fabs(sg[0] - 6) < 1e-12 && fabs(a[0] * b[1] - b[0] * a[1] - 1) < 1e-12);
    CHECK(host->whitened_product(call, 1, one1, one2, 1, sg, a, b) == 0 &&
          fabs(sg[0] - 6) < 1e-12 && fabs(a[0] * b[0] - 1) < 1e-12);
    sd_htrain *tr = host->train_new(call, in, 1, 16);
    double x;
    CHECK(tr && host->train_teach(call, tr, in, 1) == 0);
    host->train_zero(call, tr); /* its own teacher: nothing to learn */
    CHECK(host->train_backward(call, tr, ids, ids + 1, 1, 16, 1, &x) == 0);
    double most = 0;
    for (size_t i = 0; i < host->train_size(call, tr); i++)
        most = fmax(most, fabs((double)host->train_grad(call, tr)[i]));
    CHECK(most < 1e-4 && host->train_teach(call, tr, in, 2) != 0);
    host->fail_clear(call);
    CHECK(host->train_teach(call, tr, NULL, 0) == 0);
    host->train_release(call, tr);
    sd_htrain_run go = {.struct_size = sizeof go,
                        .batch = 1,
                        .ctx = 16,
                        .steps = 2,
                        .warmup = -1,
                        .lr = 1e-3,
                        .min_lr = -1,
                        .seed = 1,
                        .teacher = in,
                        .teacher_weight = 0.5};
    sd_hscore s0 = {.struct_size = sizeof s0}, s1 = {.struct_size = sizeof s1};
    CHECK(host->train_run(call, in, ids, 40, NULL, &go) != 0); /* an argument is not changed */
    host->fail_clear(call);
    CHECK(host->train_run(call, m, ids, 40, "x.bin", &go) != 0);
    host->fail_clear(call);
    CHECK(host->evaluate(call, m, ids, 40, 16, 0, &s0) == 0 &&
          host->train_run(call, m, ids, 40, NULL, &go) == 0 &&
          host->evaluate(call, m, ids, 40, 16, 0, &s1) == 0 && s0.nll != s1.nll);
    sd_hvalue arg[2] = {{.name = "model", .kind = SD_ARG_MODEL, .model = in},
                        {.name = "text", .kind = SD_ARG_TEXT, .text = text}},
              out;
    CHECK(host->op_known(call, "nll") && !host->op_known(call, "nonsense"));
    CHECK(host->op_run(call, "nll", arg, 2, &out) == 0 && out.kind == SD_ARG_NUM && out.num > 0);
    CHECK(host->op_run(call, "lineage", arg, 1, &out) == 0 && out.kind == SD_ARG_TABLE &&
          host->table_n_rows(call, out.table) == 0);
    host->table_release(call, out.table);
    CHECK(host->op_run(call, "lineage", arg, 2, &out) != 0 &&
          strstr(host->fail_text(call), "unknown option text"));
    host->fail_clear(call);
    CHECK(host->op_run(call, "nonsense", arg, 1, &out) != 0);
    host->fail_clear(call);
    CHECK(host->write_file(call, "/nowhere/at/all", "x", 1) == SD_FAIL_WRITE);
    host->fail_clear(call);
    CHECK(host->write_file(call, "build/everything.tmp", "x", 1) == 0 &&
          remove("build/everything.tmp") == 0);
    host->model_release(call, m);
    *held += done;
    return 0;
}

static int run(const sd_host *host, sd_call *call) {
    int done = 0;
    sd_hmodel *in = host->arg_model(call, "model");
    sd_htext *text = host->arg_text(call, "text");
    CHECK(in && text && host->abi_major == SD_ABI_MAJOR && host->struct_size >= sizeof(sd_host));
    sd_hmodel_info mi = {.struct_size = sizeof mi};
    CHECK(host->model_info(call, in, &mi) == 0 && mi.n_layer > 0 && mi.vocab > 0 &&
          mi.n_params > 0);
    sd_hlayer_info li = {.struct_size = sizeof li};
    CHECK(host->model_layer(call, in, 0, &li) == 0 && li.n_head > 0 && li.d_qk > 0);
    CHECK(host->model_layer(call, in, mi.n_layer, &li) != 0);
    host->fail_clear(call);
    CHECK(host->failed(call) == 0 && host->fail_text(call)[0] == 0);
    CHECK(host->model_n_tensors(call, in) > 4);
    const char *name = host->model_tensor_name(call, in, 0);
    sd_harray a, b;
    CHECK(name && host->model_get_tensor(call, in, name, &a) == 0 && a.ndim >= 1);
    CHECK(!host->model_tensor_name(call, in, 1u << 20));
    CHECK(host->model_has_part(call, in, 0, "wq") && host->model_has_part(call, in, -1, "tok"));
    CHECK(host->model_get_part(call, in, 0, "wq", &a) == 0 && a.ndim == 2 &&
          a.shape[0] == mi.d_model && a.shape[1] == (int64_t)li.n_head * li.d_qk);
    /* a clone changes, the argument does not */
    sd_hmodel *m = host->model_clone(call, in);
    CHECK(m);
    a.data[0] += 1;
    CHECK(host->model_set_part(call, m, 0, "wq", &a) == 0);
    CHECK(host->model_get_part(call, m, 0, "wq", &b) == 0 && fabs(b.data[0] - a.data[0]) < 1e-3);
    CHECK(host->model_get_part(call, in, 0, "wq", &b) == 0 &&
          fabs(b.data[0] - a.data[0] + 1) < 1e-3);
    host->release(call, b.data);
    const int32_t *ids;
    size_t n;
    CHECK(host->text_ids(call, text, in, &ids, &n) == 0 && n > 40);
    CHECK(host->text_name(call, text)[0]);
    seen s = {0};
    CHECK(host->capture(call, in, ids, n, 16, 2, on_capture, &s) == 0);
    CHECK(s.layers == 2 * mi.n_layer && s.tokens == 16 && s.sum > 0);
    sd_hcalib *cal = host->calibrate(call, in, ids, n, 16, 2);
    sd_harray g;
    CHECK(cal && host->calib_get(call, cal, 0, "rows", &g) == 0 && g.data[0] == 32);
    CHECK(host->calib_get(call, cal, 0, "qk", &g) == 0 && g.ndim == 3 && g.shape[1] == 2 * li.d_qk);
    CHECK(host->calib_get(call, cal, 0, "x2", &g) == 0 && g.shape[0] == mi.d_model + 1 &&
          fabs(g.data[(int64_t)(mi.d_model + 1) * (mi.d_model + 1) - 1] - 1) < 1e-9);
    CHECK(host->calib_get(call, cal, 0, "q_mean", &g) == 0 && g.shape[0] == li.n_head);
    CHECK(host->calib_get(call, cal, 0, "nonsense", &g) != 0);
    host->fail_clear(call);
    host->calib_release(call, cal);
    sd_hscore sc = {.struct_size = sizeof sc};
    CHECK(host->evaluate(call, in, ids, 40, 0, 0, &sc) == 0 && sc.tokens == 39);
    CHECK(fabs(log(sc.ppl) - sc.nll) < 1e-9);
    CHECK(host->logits(call, in, ids, 5, &g) == 0 && g.shape[0] == 5 && g.shape[1] == mi.vocab);
    /* a step downhill lowers the loss of its own batch */
    sd_htrain *tr = host->train_new(call, in, 1, 32);
    CHECK(tr && host->train_size(call, tr) > 0 && host->train_n_slices(call, tr) > 4);
    sd_hslice sl = {.struct_size = sizeof sl};
    CHECK(host->train_slice(call, tr, 0, &sl) == 0 && sl.n > 0 && sl.role[0]);
    double before, at, after;
    CHECK(host->train_loss(call, tr, ids, ids + 1, 1, 32, &before) == 0);
    host->train_zero(call, tr);
    CHECK(host->train_backward(call, tr, ids, ids + 1, 1, 32, 1, &at) == 0 &&
          fabs(at - before) < 1e-4);
    sd_hadamw o = {
        .struct_size = sizeof o, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .clip = 1};
    CHECK(host->train_step(call, tr, &o, NULL) == 0);
    CHECK(host->train_loss(call, tr, ids, ids + 1, 1, 32, &after) == 0 && after < before);
    CHECK(host->train_store(call, tr, m) == 0);
    CHECK(host->train_store(call, tr, in) != 0); /* an argument is read-only */
    host->fail_clear(call);
    host->train_release(call, tr);
    host->model_release(call, m);
    /* linear algebra */
    const double A[4] = {2, 1, 1, 2}, B[4] = {0, 3, -3, 0};
    double w[2], v[4], C[4], sg[1], x[2], y[2], u[4], vt[4], q[4], r[4], im[2];
    CHECK(host->matmul(call, false, true, 2, 2, 2, 1, A, 2, A, 2, 0, C, 2) == 0 && C[0] == 5 &&
          C[1] == 4);
    CHECK(host->matmul(call, false, false, 2, 2, 2, 1, A, 1, A, 2, 0, C, 2) != 0);
    host->fail_clear(call);
    CHECK(host->eigh(call, 2, A, w, v) == 0 && fabs(w[0] - 1) < 1e-12 && fabs(w[1] - 3) < 1e-12);
    CHECK(host->svd(call, 2, 2, A, w, u, vt) == 0 && fabs(w[0] - 3) < 1e-12);
    CHECK(host->eig(call, 2, B, w, im) == 0 && fabs(fabs(im[0]) - 3) < 1e-12);
    CHECK(host->qr(call, 2, 2, A, q, r) == 0 && fabs(q[0] * q[0] + q[2] * q[2] - 1) < 1e-12);
    CHECK(host->skew_planes(call, 2, B, sg, x, y) == 0 && fabs(sg[0] - 3) < 1e-12);
    double ka[2], kb[2]; /* R of wq wk' with wq = e1, wk = e2: (e1 e2' - e2 e1')/2 */
    const double e1[2] = {1, 0}, e2[2] = {0, 1};
    CHECK(host->kernel_planes(call, 2, 1, e1, e2, 1, ka, kb, 0, NULL, NULL) == 0);
    CHECK(fabs(ka[0] * kb[1] - kb[0] * ka[1] - 0.5) < 1e-12);
    /* tables */
    sd_htable *t = host->table_new(call, "test");
    CHECK(t && host->table_column(call, t, "k", SD_TABLE_INT, "a key", false) == 0 &&
          host->table_column(call, t, "x", SD_TABLE_NUM, "a value", false) == 0 &&
          host->table_column(call, t, "s", SD_TABLE_STR, "a word", false) == 0 &&
          host->table_column(call, t, "v", SD_TABLE_VEC, "a vector", false) == 0);
    CHECK(host->table_column(call, t, "x", SD_TABLE_NUM, "again", false) != 0);
    host->fail_clear(call);
    int row = host->table_row(call, t);
    CHECK(row == 0 && host->table_set_int(call, t, row, "k", 7) == 0 &&
          host->table_set_num(call, t, row, "x", 0.5) == 0 &&
          host->table_set_str(call, t, row, "s", "w") == 0 &&
          host->table_set_vec(call, t, row, "v", A, 4) == 0);
    CHECK(host->table_set_num(call, t, 3, "x", 1) != 0 &&
          host->table_set_num(call, t, 0, "k", 1) != 0);
    host->fail_clear(call);
    size_t nv;
    CHECK(host->table_n_rows(call, t) == 1 && host->table_has_column(call, t, "x"));
    CHECK(host->table_get_num(call, t, 0, "k") == 7 && host->table_get_num(call, t, 0, "x") == 0.5);
    CHECK(strcmp(host->table_get_str(call, t, 0, "s"), "w") == 0);
    CHECK(host->table_get_vec(call, t, 0, "v", &nv)[3] == 2 && nv == 4);
    CHECK(host->table_heading(call, t, "heading") == 0 && host->table_note(call, t, "note") == 0 &&
          host->table_meta_num(call, t, "n", 1) == 0 &&
          host->table_meta_str(call, t, "m", "x") == 0);
    /* random numbers: the same from the same seed */
    sd_hrng *r1 = host->rng_new(call, 5, 1), *r2 = host->rng_new(call, 5, 1);
    CHECK(r1 && r2 && host->rng_gauss(call, r1) == host->rng_gauss(call, r2));
    CHECK(host->rng_uniform(call, r1) < 1 && host->rng_below(call, r1, 3) < 3);
    host->rng_release(call, r1);
    host->rng_release(call, r2);
    CHECK(host->threads(call) >= 1 && !host->cancelled(call));
    if (since_1_1(host, call, in, text, ids, &done))
        return host->failed(call);
    host->progress(call, "testing", 1, 1);
    host->table_meta_num(call, t, "checks", done);
    return host->return_table(call, t);
}

static const sd_arg_desc args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "a model"},
    {.name = "text", .kind = SD_ARG_TEXT, .flags = SD_ARG_REQUIRED, .doc = "a text"},
};
static const sd_op_desc ops[] = {{.struct_size = sizeof(sd_op_desc),
                                  .returns = SD_ARG_TABLE,
                                  .name = "everything",
                                  .summary = "a test",
                                  .details = "A test.",
                                  .example = "return 1",
                                  .returns_doc = "a table",
                                  .args = args,
                                  .n_args = 2,
                                  .run = run}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("everything", ops)};
