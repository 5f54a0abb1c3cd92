/* Training: schedule, learning, interruption and resumption bit for bit, stops on what is not
 * finite, checkpoints that outlive kill, full disks and damage, frozen layers, teachers, and every
 * kind of attention (CASES C01, C03, C04, C06). */
#include "model_help.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/hash.h"
#include "nn/attn.h"
#include "nn/forward.h"
#include "train/internal.h"

enum { V = 29, CTX = 16 };

static sd_model *tiny(const char *kind, sd_norm norm, uint64_t seed) {
    sd_config c;
    sd_model *m = NULL;
    OK(sd_config_init(&c, 2, &err));
    strcpy(c.family, "sd");
    c.d_model = 16;
    c.d_ff = 32;
    c.vocab = V;
    c.n_pos = 64;
    c.causal = c.tied = c.has_head = c.mlp_bias = true;
    c.norm = norm;
    c.final_norm = norm != SD_NORM_NONE;
    c.norm_eps = 1e-5;
    c.block = SD_BLOCK_PRE;
    c.act = SD_ACT_GELU;
    c.pos = SD_POS_LEARNED;
    c.embed_scale = norm == SD_NORM_NONE ? 4 : 1;
    c.d_floor = 1e-4;
    c.bos = c.eos = -1;
    for (int l = 0; l < 2; l++) {
        sd_layer_cfg *lc = &c.layer[l];
        strcpy(lc->kind, kind);
        lc->n_head = lc->n_kv_head = 2;
        lc->d_qk = lc->d_v = 8;
        lc->scale = strcmp(kind, "sd") == 0 ? 0.25 : 0.35355;
    }
    OK(sd_config_check(&c, &err));
    OK(sd_model_new(&c, seed, &m, &err));
    sd_config_free(&c);
    return m;
}

/* A text with something to learn: each token follows from the one before, with slips. */
static sd_tokens *corpus(size_t n, uint64_t seed) {
    int32_t *ids = malloc(n * sizeof *ids);
    uint64_t s = seed * 2 + 1;
    int32_t x = 0;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x = (s >> 33) % 8 == 0 ? (int32_t)((s >> 40) % V) : (x * 5 + 3) % V;
        ids[i] = x;
    }
    sd_tokens *t = NULL;
    OK(sd_tokens_from_ids(ids, n, &t, &err));
    free(ids);
    return t;
}

static sd_train_opts options(int64_t steps) {
    sd_train_opts o;
    sd_train_defaults(&o);
    o.steps = steps;
    o.batch = 4;
    o.ctx = CTX;
    o.lr = 0.01;
    o.min_lr = 0.001;
    o.warmup = 2;
    o.measure_draws = 2;
    return o;
}

static const sd_run one = {.threads = 1}, two = {.threads = 2};

/* Trains and gives the log; fails the test when training fails. */
static sd_table *run(sd_model *m, const sd_train_opts *o, const sd_run *r) {
    sd_tokens *t = corpus(1500, 1);
    sd_table *log = NULL;
    OK(sd_train(m, t, NULL, o, r, &log, NULL, &err));
    sd_tokens_free(t);
    return log;
}

static double cell(const sd_table *t, int row, const char *name) {
    return sd_table_num(t, row, sd_table_find_col(t, name));
}

static double mean_loss(const sd_table *log, int from, int n) {
    double s = 0;
    for (int i = 0; i < n; i++)
        s += cell(log, from + i, "loss");
    return s / n;
}

static void same_file(const sd_buf *before, const char *path) {
    sd_buf now = {0};
    OK(sd_read_file(path, 0, &now, &err));
    assert_int_equal(before->n, now.n);
    assert_memory_equal(before->p, now.p, now.n);
    sd_buf_free(&now);
}

/* The checkpoint of `dir` in a net and an optimizer of m's shape. */
static int64_t load(const char *dir, sd_model *m, sd_net **net, sd_optim **opt) {
    const sd_adamw p = {0.9, 0.95, 1e-8, 0.1};
    int64_t step = -1;
    OK(sd_net_new(m, SD_F32, net, &err));
    OK(sd_optim_new(*net, &p, NULL, opt, &err));
    OK(sd_ckpt_load(dir, *net, *opt, &step, &err));
    return step;
}

/* ---- what training is ---- */

static void schedule(void **state) {
    (void)state;
    sd_train_opts o;
    sd_train_defaults(&o);
    o.steps = 110;
    o.warmup = 10;
    o.lr = 1;
    o.min_lr = 0.1;
    assert_true(fabs(sd_train_lr(&o, 0) - 0.1) < 1e-12);
    assert_true(fabs(sd_train_lr(&o, 9) - 1.0) < 1e-12);
    assert_true(fabs(sd_train_lr(&o, 10) - 1.0) < 1e-12);
    assert_true(fabs(sd_train_lr(&o, 35) - (0.1 + 0.45 * (1 + sqrt(0.5)))) < 1e-12);
    assert_true(fabs(sd_train_lr(&o, 60) - 0.55) < 1e-12);
    assert_true(fabs(sd_train_lr(&o, 110) - 0.1) < 1e-12);
    for (int i = 10; i < 110; i++)
        assert_true(sd_train_lr(&o, i + 1) < sd_train_lr(&o, i));
    o.warmup = -1; /* 5%, at most 200 */
    o.steps = 1000;
    assert_true(fabs(sd_train_lr(&o, 0) - 1.0 / 50) < 1e-12);
    o.steps = 100000;
    assert_true(fabs(sd_train_lr(&o, 0) - 1.0 / 200) < 1e-12);
    o.warmup = 0;
    assert_true(fabs(sd_train_lr(&o, 0) - 1.0) < 1e-12);
    o.steps = 5; /* nothing but warm-up */
    o.warmup = 10;
    assert_true(fabs(sd_train_lr(&o, 4) - 0.5) < 1e-12);
}

static void learns(void **state) {
    (void)state;
    static const struct {
        const char *kind;
        sd_norm norm;
    } row[] = {{"sd", SD_NORM_NONE}, {"sd", SD_NORM_LAYER}, {"softmax", SD_NORM_LAYER}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        sd_model *m = tiny(row[i].kind, row[i].norm, 1);
        sd_train_opts o = options(80);
        sd_table *log = run(m, &o, &two);
        assert_int_equal(sd_table_rows(log), 80);
        double first = cell(log, 0, "loss"), last = mean_loss(log, 70, 10);
        assert_true(fabs(first - log1p(V - 1)) < 0.3);
        if (!(last < 1.9))
            fail_msg("%s: loss %.3f at the start, %.3f at the end", row[i].kind, first, last);
        for (int r = 0; r < 80; r++) {
            assert_int_equal(cell(log, r, "step"), r + 1);
            assert_int_equal(cell(log, r, "tokens"), (r + 1) * 4 * CTX);
            assert_true(isfinite(cell(log, r, "grad_norm")) && cell(log, r, "tokens_s") > 0);
            assert_true(cell(log, r, "lr") == sd_train_lr(&o, r));
        }
        sd_table_unref(log);
        sd_model_unref(m);
    }
}

/* Largest absolute difference of the parameters. */
static double distance(sd_model *a, sd_model *b) {
    sd_net *x, *y;
    double far = 0;
    OK(sd_net_new(a, SD_F32, &x, &err));
    OK(sd_net_new(b, SD_F32, &y, &err));
    const float *p = sd_net_params(x), *q = sd_net_params(y);
    for (size_t i = 0; i < sd_net_size(x); i++)
        if (!(fabs((double)p[i] - q[i]) <= far))
            far = fabs((double)p[i] - q[i]);
    sd_net_free(x);
    sd_net_free(y);
    return far;
}

static void accumulation_and_recompute(void **state) {
    (void)state;
    sd_model *m[3];
    sd_table *log[3];
    for (int i = 0; i < 3; i++) {
        sd_train_opts o = options(6);
        m[i] = tiny("sd", SD_NORM_LAYER, 1);
        o.batch = i == 1 ? 4 : 8;
        o.accum = i == 1 ? 2 : 1;
        o.recompute = i == 2;
        o.adam.eps = 1e-4; /* near eps = 0 Adam turns rounding into steps of lr */
        log[i] = run(m[i], &o, &two);
    }
    for (int r = 0; r < 6; r++) {
        assert_true(fabs(cell(log[0], r, "loss") - cell(log[1], r, "loss")) < 1e-6);
        assert_true(cell(log[0], r, "loss") == cell(log[2], r, "loss"));
    }
    assert_true(distance(m[0], m[1]) < 1e-6);
    same_parts(m[0], m[2]);
    for (int i = 0; i < 3; i++) {
        sd_table_unref(log[i]);
        sd_model_unref(m[i]);
    }
}

static void frozen_layers(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_LAYER, 1), *was = NULL;
    OK(sd_model_clone(m, &was, &err));
    const bool layers[2] = {false, true};
    sd_train_opts o = options(3);
    o.layers = layers;
    sd_table_unref(run(m, &o, &two));
    int moved = 0;
    for (int l = 0; l < 2; l++)
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            if ((sd_role_is_global((sd_role)r) && l > 0) || !sd_model_has(m, l, (sd_role)r))
                continue;
            sd_tensor *a = NULL, *b = NULL;
            OK(sd_model_get(m, l, (sd_role)r, SD_F32, &a, &err));
            OK(sd_model_get(was, l, (sd_role)r, SD_F32, &b, &err));
            bool same = memcmp(a->data, b->data, sd_tensor_nbytes(a)) == 0;
            if (same == (l == 1)) /* layer 1's own move, everything else stays */
                fail_msg("layer %d %s %s", l, sd_role_name((sd_role)r), same ? "stayed" : "moved");
            moved += !same;
            sd_tensor_free(a);
            sd_tensor_free(b);
        }
    assert_true(moved >= 10);
    sd_model_unref(m);
    sd_model_unref(was);
}

/* C06: one tensor for both uses; its gradient's sum of both is test_grad's. */
static void tied_embeddings(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_NONE, 1), *back = NULL;
    /* tok, pos; per layer q k v o, wd bd, two matrices and their biases */
    const int64_t layer = 4 * 16 * 16 + 16 * 2 + 2 + 2 * 16 * 32 + 32 + 16;
    assert_int_equal(sd_model_n_params(m), 16 * V + 16 * 64 + 2 * layer);
    sd_train_opts o = options(5);
    sd_table_unref(run(m, &o, &two));
    OK(sd_model_save(m, at("tied"), NULL, &err));
    OK(sd_model_open(at("tied"), NULL, &back, &err));
    assert_true(sd_model_config(back)->tied);
    assert_false(sd_model_has(back, 0, SD_ROLE_HEAD));
    assert_int_equal(sd_model_n_params(back), sd_model_n_params(m));
    assert_int_equal(sd_model_n_tensors(back), sd_model_n_tensors(m));
    same_parts(m, back);
    /* Training moves both uses at once: still tied. */
    sd_table_unref(run(back, &o, &two));
    assert_false(sd_model_has(back, 0, SD_ROLE_HEAD));
    sd_model_unref(m);
    sd_model_unref(back);
}

/* PyTorch's losses over the same 50 steps (tests/ref/train_curve.py). */
static void reference_curve(void **state) {
    (void)state;
    enum { STEPS = 50, N = STEPS * 4 * 32 + 1 };
    static int32_t ids[N];
    uint64_t s = 3;
    int32_t x = 0;
    for (int i = 0; i < N; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x = (s >> 33) % 8 == 0 ? (int32_t)((s >> 40) % 64) : (x * 5 + 3) % 64;
        ids[i] = x;
    }
    json_t *ref = NULL;
    OK(sd_json_load("tests/ref/train_curve.json", 1 << 20, &ref, &err));
    static const char *const names[] = {"sd", "gpt2"};
    for (int k = 0; k < 2; k++) {
        sd_tokens *t = NULL;
        sd_table *log = NULL;
        sd_model *m = open_model(k ? REF "curve-gpt2" : REF "curve-sd");
        OK(sd_tokens_from_ids(ids, N, &t, &err));
        sd_train_opts o = options(STEPS);
        o.ctx = 32;
        o.lr = 5e-3;
        o.min_lr = 5e-4;
        o.warmup = 5;
        o.clip = 0.5;
        o.shuffle = false;
        OK(sd_train(m, t, NULL, &o, &two, &log, NULL, &err));
        const json_t *want = json_object_get(ref, names[k]);
        assert_int_equal(json_array_size(json_object_get(want, "loss")), STEPS);
        double far = 0, far_norm = 0;
        for (int i = 0; i < STEPS; i++) {
            size_t at_i = (size_t)i;
            double loss = json_number_value(json_array_get(json_object_get(want, "loss"), at_i)),
                   norm =
                       json_number_value(json_array_get(json_object_get(want, "grad_norm"), at_i));
            double d = fabs(cell(log, i, "loss") - loss),
                   dn = fabs(cell(log, i, "grad_norm") - norm) / norm;
            if (!(d < 1e-3) || !(dn < 1e-2))
                fail_msg("%s, step %d: loss %.6f, PyTorch %.6f; gradient norm %.5f, PyTorch %.5f",
                         names[k], i, cell(log, i, "loss"), loss, cell(log, i, "grad_norm"), norm);
            far = d > far ? d : far;
            far_norm = dn > far_norm ? dn : far_norm;
        }
        print_message("%s: loss within %.1e of PyTorch's, gradient norm %.1e\n", names[k], far,
                      far_norm);
        sd_table_unref(log);
        sd_tokens_free(t);
        sd_model_unref(m);
    }
    json_decref(ref);
}

/* ---- the learner ---- */

/* Steps by hand over the same sequences are the trainer's, bit for bit. */
static void by_hand(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_LAYER, 1), *hand = NULL;
    OK(sd_model_clone(m, &hand, &err));
    sd_tokens *t = corpus(1500, 1);
    sd_train_opts o = options(5);
    o.shuffle = false;
    o.accum = 2;
    OK(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err));
    sd_learner *l = NULL;
    sd_net_plan plan = {.batch = 4, .tokens = CTX, .threads = 1};
    OK(sd_learner_new(hand, SD_F32, &plan, &l, &err));
    int32_t ids[4 * CTX], targets[4 * CTX];
    for (int s = 0; s < 5; s++) {
        sd_learner_zero(l);
        for (int a = 0; a < 2; a++) {
            for (int b = 0; b < 4; b++) {
                uint64_t from = (uint64_t)(s * 8 + a * 4 + b) * CTX;
                OK(sd_tokens_read(t, from, CTX, V, ids + b * CTX, &err));
                OK(sd_tokens_read(t, from + 1, CTX, V, targets + b * CTX, &err));
            }
            sd_net_batch batch = {.batch = 4, .tokens = CTX, .ids = ids, .targets = targets};
            double nll;
            int64_t count;
            OK(sd_learner_backward(l, &batch, 1.0 / (8 * CTX), &one, &nll, &count, NULL, &err));
        }
        OK(sd_learner_update(l, &o.adam, sd_train_lr(&o, s), o.clip, NULL, &err));
    }
    OK(sd_net_store(sd_learner_net(l), hand, &err));
    same_parts(m, hand);
    sd_learner_free(l);
    sd_tokens_free(t);
    sd_model_unref(m);
    sd_model_unref(hand);
}

/* (1 − w)·NLL + w·KL of one batch under a net. */
static double distilled_loss(sd_learner *l, const sd_net_batch *b, double w) {
    double nll, kl;
    int64_t count;
    sd_learner_zero(l);
    OK(sd_learner_backward(l, b, 1, &one, &nll, &count, &kl, &err));
    return (1 - w) * nll + w * kl;
}

static void distillation_gradient(void **state) {
    (void)state;
    const double w = 0.3, h = 1e-5;
    sd_model *m = tiny("softmax", SD_NORM_LAYER, 1), *teacher = tiny("sd", SD_NORM_LAYER, 2);
    sd_learner *l = NULL;
    sd_net_plan plan = {.batch = 2, .tokens = 8, .threads = 2};
    OK(sd_learner_new(m, SD_F64, &plan, &l, &err));
    OK(sd_learner_teach(l, teacher, w, &err));
    int32_t ids[16], targets[16];
    for (int i = 0; i < 16; i++) {
        ids[i] = (i * 11 + 3) % V;
        targets[i] = i % 5 == 4 ? -1 : (i * 7 + 2) % V;
    }
    sd_net_batch b = {.batch = 2, .tokens = 8, .ids = ids, .targets = targets};
    distilled_loss(l, &b, w);
    size_t n = sd_net_size(sd_learner_net(l)), checked = 0;
    double *x = sd_net_params(sd_learner_net(l)), *g = malloc(n * sizeof *g);
    memcpy(g, sd_learner_grad(l), n * sizeof *g);
    for (size_t i = 0; i < n; i += 37) {
        double was = x[i];
        x[i] = was + h;
        double up = distilled_loss(l, &b, w);
        x[i] = was - h;
        double down = distilled_loss(l, &b, w);
        x[i] = was;
        double want = (up - down) / (2 * h);
        if (!(fabs(g[i] - want) <= 1e-6 * fmax(1, fabs(want))))
            fail_msg("parameter %zu: gradient %.12g, difference quotient %.12g", i, g[i], want);
        checked += fabs(want) > 1e-3;
    }
    assert_true(checked > 30);
    free(g);
    /* KL is 0 of the teacher itself, and positive of another. */
    double nll, kl;
    int64_t count;
    OK(sd_learner_backward(l, &b, 1, &one, &nll, &count, &kl, &err));
    assert_true(kl > 0.01);
    OK(sd_learner_teach(l, m, w, &err));
    OK(sd_learner_backward(l, &b, 1, &one, &nll, &count, &kl, &err));
    assert_true(fabs(kl) < 1e-5 * fabs(nll));
    OK(sd_learner_teach(l, NULL, 0, &err));
    OK(sd_learner_backward(l, &b, 1, &one, &nll, &count, &kl, &err));
    assert_true(kl == 0);
    assert_int_equal(sd_learner_teach(l, teacher, 1.5, &err), SD_EINVAL);
    HAS("1.5 is not in 0..1");
    sd_learner_free(l);
    sd_model_unref(m);
    sd_model_unref(teacher);
}

/* A choice may change from step to step; what is not chosen stays, also from decay. */
static void choice(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_LAYER, 1);
    sd_learner *l = NULL;
    sd_net_plan plan = {.batch = 1, .tokens = 8, .threads = 1};
    OK(sd_learner_new(m, SD_F32, &plan, &l, &err));
    const int32_t ids[9] = {1, 5, 7, 2, 9, 11, 3, 4, 8};
    sd_net_batch b = {.batch = 1, .tokens = 8, .ids = ids, .targets = ids + 1};
    sd_net *net = sd_learner_net(l);
    size_t n = sd_net_n_slices(net), size = sd_net_size(net);
    bool *mask = calloc(n, sizeof *mask);
    float *was = malloc(size * sizeof *was), *now = sd_net_params(net);
    const sd_adamw p = {0.9, 0.95, 1e-8, 0.1};
    for (size_t only = 0; only < n; only++) {
        double nll, norm, sum = 0;
        int64_t count;
        memcpy(was, now, size * sizeof *was);
        memset(mask, 0, n * sizeof *mask);
        mask[only] = true;
        sd_learner_choose(l, mask);
        sd_learner_zero(l);
        OK(sd_learner_backward(l, &b, 0.125, &one, &nll, &count, NULL, &err));
        OK(sd_learner_update(l, &p, 0.01, 0, &norm, &err));
        for (size_t s = 0; s < n; s++) {
            const sd_net_slice *y = sd_net_slice_at(net, s);
            bool same = memcmp(was + y->offset, now + y->offset, y->n * sizeof *was) == 0;
            if (same == (s == only))
                fail_msg("slice %s %s", y->name, same ? "stayed" : "moved");
        }
        const sd_net_slice *y = sd_net_slice_at(net, only);
        const float *g = sd_learner_grad(l);
        for (size_t i = y->offset; i < y->offset + y->n; i++)
            sum += (double)g[i] * g[i];
        assert_true(fabs(norm - sqrt(sum)) < 1e-9 * fmax(1, norm));
    }
    assert_int_equal(sd_learner_steps(l), n);
    free(was);
    free(mask);
    sd_learner_free(l);
    sd_model_unref(m);
}

/* ---- interruption and resumption ---- */

typedef struct stopper {
    sd_run run;
    double at;
} stopper;

static void stop_at(void *ctx, const char *what, double done, double total) {
    stopper *s = ctx;
    (void)total;
    if (strncmp(what, "train", 5) == 0 && done == s->at)
        sd_cancel_flag = 1;
}

static void stop_measured(void *ctx, const sd_table *cascade) {
    (void)ctx;
    (void)cascade;
    sd_cancel_flag = 1;
}

static void same_tables(const char *a, const char *b, const char *which) {
    sd_table *x = NULL, *y = NULL;
    OK(sd_train_table(a, which, &x, &err));
    OK(sd_train_table(b, which, &y, &err));
    assert_int_equal(sd_table_rows(x), sd_table_rows(y));
    assert_int_equal(sd_table_cols(x), sd_table_cols(y));
    for (int r = 0; r < sd_table_rows(x); r++)
        for (int c = 0; c < sd_table_cols(x); c++) {
            const char *name = sd_table_col_name(x, c);
            if (strcmp(name, "tokens_s") == 0 || strcmp(name, "mfu") == 0)
                continue;
            if (sd_table_has(x, r, c) != sd_table_has(y, r, c) ||
                (sd_table_has(x, r, c) && sd_table_num(x, r, c) != sd_table_num(y, r, c)))
                fail_msg("%s, row %d, %s: %.17g and %.17g", which, r, name, sd_table_num(x, r, c),
                         sd_table_num(y, r, c));
        }
    sd_table_unref(x);
    sd_table_unref(y);
}

static sd_train_opts full_options(const char *dir) {
    sd_train_opts o = options(20);
    o.accum = 2;
    o.eval_every = 5;
    o.eval_tokens = 64;
    o.measure_every = 5;
    o.measure_seqs = 1;
    o.save_every = 4;
    o.seed = UINT64_MAX - 3;
    o.dir = dir;
    return o;
}

/* C04: 20 steps straight, and stopped at step `when` and resumed to 20. Step 10 is one that is
 * evaluated and measured: that work is interrupted too, and made good. */
static void resumed(int when, const sd_run *threads, const char *straight) {
    char dir[128];
    snprintf(dir, sizeof dir, "%s/stop-%d-%d", scratch, when, threads->threads);
    sd_model *m = tiny("sd", SD_NORM_NONE, 1), *again = tiny("sd", SD_NORM_NONE, 2);
    sd_tokens *t = corpus(700, 1), *v = corpus(200, 2); /* 43 pieces: several epochs */
    stopper s = {*threads, when};
    s.run.progress = stop_at;
    s.run.ctx = &s;
    sd_train_opts o = full_options(dir);
    if (when == 0)
        o.measured = stop_measured;
    assert_int_equal(sd_train(m, t, v, &o, &s.run, NULL, NULL, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    char says[64];
    snprintf(says, sizeof says, "after step %d of 20", when);
    HAS(says);
    /* m holds what the checkpoint holds. */
    sd_net *net, *held;
    sd_optim *opt;
    assert_int_equal(load(dir, m, &net, &opt), when);
    OK(sd_net_new(m, SD_F32, &held, &err));
    assert_memory_equal(sd_net_params(net), sd_net_params(held), 4 * sd_net_size(net));
    sd_net_free(net);
    sd_net_free(held);
    sd_optim_free(opt);
    sd_train_state st;
    OK(sd_train_peek(dir, &st, &err));
    assert_int_equal(st.step, when);
    assert_int_equal(st.opts.steps, 20);
    assert_true(st.opts.seed == UINT64_MAX - 3);
    o = st.opts;
    sd_train_state_free(&st);
    o.dir = dir;
    o.resume = true;
    OK(sd_train(again, t, v, &o, threads, NULL, NULL, &err));
    sd_model *end = open_model(straight), *mine = NULL;
    char path[160];
    snprintf(path, sizeof path, "%s/model", dir);
    mine = open_model(path);
    same_parts(again, mine);
    same_parts(again, end);
    snprintf(path, sizeof path, "%.*s", (int)strlen(straight) - 6, straight);
    same_tables(path, dir, "log");
    same_tables(path, dir, "cascade");
    sd_tokens_free(t);
    sd_tokens_free(v);
    sd_model_unref(m);
    sd_model_unref(again);
    sd_model_unref(end);
    sd_model_unref(mine);
}

static void resume_bit_for_bit(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        const sd_run *r = threads == 1 ? &one : &two;
        char dir[128], model[160];
        snprintf(dir, sizeof dir, "%s/straight-%d", scratch, threads);
        snprintf(model, sizeof model, "%s/model", dir);
        sd_model *m = tiny("sd", SD_NORM_NONE, 1);
        sd_tokens *t = corpus(700, 1), *v = corpus(200, 2);
        sd_train_opts o = full_options(dir);
        sd_table *log = NULL, *cascade = NULL;
        OK(sd_train(m, t, v, &o, r, &log, &cascade, &err));
        assert_int_equal(sd_table_rows(log), 20);
        assert_int_equal(sd_table_rows(cascade), 5 * 2); /* steps 0 5 10 15 20, two layers */
        for (int i = 0; i < 10; i++) {                   /* METHOD §6: stable all through */
            assert_true(cell(cascade, i, "stability") == 1);
            assert_true(cell(cascade, i, "max_re_l") <= -cell(cascade, i, "min_d") + 1e-6);
            assert_true(cell(cascade, i, "pr") >= 2 - 1e-9 && cell(cascade, i, "pr_null") > 2);
        }
        assert_true(isfinite(cell(log, 19, "val_loss")) && isnan(cell(log, 18, "val_loss")));
        sd_table_unref(log);
        sd_table_unref(cascade);
        sd_tokens_free(t);
        sd_tokens_free(v);
        sd_model_unref(m);
        resumed(10, r, model);
        resumed(7, r, model);
        if (threads == 1) {
            resumed(0, r, model);
            resumed(20, r, model); /* in the last evaluation */
        }
    }
    /* The work is split the same way whoever runs it: threads make no difference either. */
    sd_model *a = open_model(at("straight-1/model")), *b = open_model(at("straight-2/model"));
    same_parts(a, b);
    sd_model_unref(a);
    sd_model_unref(b);
}

/* Every line of DIR/NAME is one JSON object with the table's columns. */
static void valid_lines(const char *dir, const char *name, int rows) {
    char path[160];
    sd_buf text = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OK(sd_read_file(path, 0, &text, &err));
    int n = 0;
    for (char *p = text.p, *nl; (nl = strchr(p, '\n')) != NULL; p = nl + 1, n++) {
        json_t *j = NULL;
        OK(sd_json_parse(p, (size_t)(nl - p), name, &j, &err));
        assert_true(json_is_integer(json_object_get(j, "step")));
        json_decref(j);
    }
    assert_int_equal(n, rows);
    sd_buf_free(&text);
}

static void a_folder_is_not_overwritten(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/held", scratch);
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(4);
    o.measure_every = 2;
    o.measure_seqs = 1;
    o.dir = dir;
    o.note = "what \"was\" done\n";
    OK(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err));
    valid_lines(dir, "log.jsonl", 4);
    valid_lines(dir, "cascade.jsonl", 3 * 2);
    sd_train_state st;
    OK(sd_train_peek(dir, &st, &err));
    assert_string_equal(st.note, o.note);
    assert_string_equal(st.train_path, "ids");
    assert_string_equal(st.val_path, "");
    assert_string_equal(st.layers, "");
    sd_train_state_free(&st);
    sd_buf was = {0};
    OK(sd_read_file(at("held/checkpoint.safetensors"), 0, &was, &err));
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_EINVAL);
    HAS("holds a training run");
    HAS("overwrite=true");
    same_file(&was, at("held/checkpoint.safetensors"));
    /* Started anew: nothing of the old run stays, temporaries of killed saves neither. */
    OK(sd_write_file(at("held/checkpoint.safetensors.abcdef.tmp"), "junk", 4, &err));
    OK(sd_write_file(at("held/notes.abcdef.tmp"), "mine", 4, &err));
    o.overwrite = true;
    o.steps = 2;
    o.measure_every = 0;
    o.note = NULL;
    OK(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err));
    valid_lines(dir, "log.jsonl", 2);
    valid_lines(dir, "cascade.jsonl", 0);
    assert_false(sd_path_exists(at("held/checkpoint.safetensors.abcdef.tmp")));
    assert_true(sd_path_exists(at("held/notes.abcdef.tmp")));
    sd_buf_free(&was);
    sd_tokens_free(t);
    sd_model_unref(m);
}

/* What a checkpoint's header says is checked like what a user says. */
static void resumed_options(void **state) {
    (void)state;
    static const struct {
        const char *name, *was, *is, *says;
    } row[] = {
        {"steps", "4", "0", "steps"},
        {"batch", "4", "-4", "batch"},
        {"batch", "4", "9999999", "batch"},
        {"ctx", "16", "1e30", "ctx"},
        {"lr", "0.01", "0", "lr"},
        {"lr", "0.01", "1e300", "lr"},
        {"beta2", "0.95", "1", "beta2"},
        {"weight_decay", "0.1", "-1", "decay"},
        {"mlm", "0.15", "15", "mlm"},
        {"eval_tokens", "32768", "0", "eval_tokens"},
        {"measure_draws", "2", "100000", "measure_draws"},
        {"measure_seqs", "2", "0", "measure_seqs"},
    };
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_train_opts o = options(4);
    o.dir = at("options");
    sd_table_unref(run(m, &o, &two));
    const char *file = at("options/checkpoint.safetensors");
    sd_buf was = {0};
    OK(sd_read_file(file, 0, &was, &err));
    uint64_t header = 0;
    memcpy(&header, was.p, 8);
    sd_train_state st;
    OK(sd_train_peek(o.dir, &st, &err));
    sd_train_state_free(&st);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        sd_buf now = {0};
        sd_buf_put(&now, was.p, was.n);
        char old[64], new[64]; /* JSON inside of JSON */
        snprintf(old, sizeof old, "\\\"%s\\\": %s", row[i].name, row[i].was);
        snprintf(new, sizeof new, "\\\"%s\\\": %s", row[i].name, row[i].is);
        char *p = strstr(now.p + 8, old);
        if (!p || (size_t)(p - now.p) > header)
            fail_msg("the header does not hold %s", old);
        size_t cut = strlen(old), more = strlen(new), at_p = (size_t)(p - now.p);
        sd_buf text = {0};
        sd_buf_put(&text, now.p, at_p);
        sd_buf_put(&text, new, more);
        sd_buf_put(&text, now.p + at_p + cut, 8 + header - at_p - cut);
        uint64_t longer = header + more - cut;
        memcpy(text.p, &longer, 8);
        sd_buf_put(&text, now.p + 8 + header, now.n - 8 - header);
        OK(sd_write_file(file, text.p, text.n, &err));
        sd_err_clear(&err);
        if (sd_train_peek(o.dir, &st, &err) != SD_EFORMAT)
            fail_msg("%s: %s", new, err.text);
        HAS("checkpoint.safetensors: options");
        HAS(row[i].says);
        sd_buf_free(&now);
        sd_buf_free(&text);
    }
    sd_buf_free(&was);
    sd_model_unref(m);
}

/* A folder has one owner: another run, resumption or overwriting is refused with who it is. A dead
 * owner holds nothing. */
static void one_owner(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(3);
    o.dir = at("owned");
    sd_table_unref(run(m, &o, &one));
    sd_buf was = {0};
    OK(sd_read_file(at("owned/checkpoint.safetensors"), 0, &was, &err));
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sd_lock *l = NULL;
        char ok = sd_lock_take(at("owned/lock"), "x", &l, NULL) == SD_OK;
        if (write(ready[1], &ok, 1) == 1)
            pause();
        _exit(1);
    }
    char ok = 0, owner[40];
    assert_true(read(ready[0], &ok, 1) == 1 && ok);
    snprintf(owner, sizeof owner, "in use by process %ld on ", (long)pid);
    for (int i = 0; i < 3; i++) {
        o.resume = i == 1;
        o.overwrite = i == 2;
        assert_int_equal(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err), SD_EINVAL);
        HAS("/owned is ");
        HAS(owner);
        same_file(&was, at("owned/checkpoint.safetensors"));
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    o.resume = false;
    o.overwrite = true;
    o.lr = 1e-3;
    for (int i = 0; i < 2; i++) /* and a run that ended has let go */
        OK(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err));
    sd_lock *l = NULL, *second = NULL;
    OK(sd_lock_take(at("owned/lock"), "x", &l, &err));
    assert_int_equal(sd_lock_take(at("owned/lock"), "the folder", &second, &err), SD_EINVAL);
    HAS("the folder is in use by process ");
    sd_lock_release(l);
    close(ready[0]);
    close(ready[1]);
    sd_buf_free(&was);
    sd_tokens_free(t);
    sd_model_unref(m);
}

static void refusals(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_NONE, 1), *other = tiny("softmax", SD_NORM_LAYER, 1);
    sd_tokens *t = corpus(100, 1), *few = corpus(CTX, 1);
    sd_train_opts o = options(2);
#define REFUSED(change_, says_)                                                        \
    do {                                                                               \
        sd_train_opts keep = o;                                                        \
        change_;                                                                       \
        sd_err_clear(&err);                                                            \
        assert_int_equal(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err), SD_EINVAL); \
        HAS(says_);                                                                    \
        o = keep;                                                                      \
    } while (0)
    REFUSED(o.steps = 0, "steps");
    REFUSED(o.batch = -1, "batch");
    REFUSED(o.lr = NAN, "lr");
    REFUSED(o.lr = 0, "lr");
    REFUSED(o.clip = NAN, "clip");
    REFUSED(o.adam.beta2 = 1, "beta2");
    REFUSED(o.adam.eps = NAN, "eps");
    REFUSED(o.ctx = 65, "ctx = 65: the position table holds 64");
    REFUSED(o.batch = 1 << 20, "batch = 1.04858e+06 is not in 1..65536");
    REFUSED((o.batch = 1 << 16, o.accum = 1 << 16), "65536 x 16 x 65536 is too large");
    REFUSED(o.lr = INFINITY, "lr = inf is not in");
    REFUSED(o.mlm = 2, "mlm");
    REFUSED(o.measure_draws = -1, "measure_draws");
    REFUSED(o.teacher_weight = 1.5, "teacher_weight");
    REFUSED(o.resume = true, "folder");
#undef REFUSED
    assert_int_equal(sd_train(m, few, NULL, &o, &one, NULL, NULL, &err), SD_EINVAL);
    HAS("holds 16 tokens");
    HAS("needs 17");
    static const int32_t wild[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 28, 29, 1, 2, 3, 4, 5, 6};
    sd_tokens *w = NULL;
    OK(sd_tokens_from_ids(wild, 17, &w, &err));
    assert_int_equal(sd_train(m, w, NULL, &o, &one, NULL, NULL, &err), SD_EFORMAT);
    HAS("token 29 at 10: the model knows 0..28");
    /* Resuming where there is nothing, and with another model. */
    o.resume = true;
    o.dir = at("nothing");
    assert_int_equal(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err), SD_EFILE);
    o.resume = false;
    o.dir = at("shape");
    OK(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err));
    o.resume = true;
    assert_int_equal(sd_train(other, t, NULL, &o, &one, NULL, NULL, &err), SD_EFORMAT);
    HAS("another shape");
    sd_tokens_free(t);
    sd_tokens_free(few);
    sd_tokens_free(w);
    sd_model_unref(m);
    sd_model_unref(other);
}

/* ---- what is not finite (C01) ---- */

static void diverges(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/diverges", scratch);
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(50);
    o.lr = 1e6;
    o.min_lr = 0;
    o.warmup = 0;
    o.clip = 0;
    o.save_every = 1;
    o.dir = dir;
    sd_err_clear(&err);
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_ENUMERIC);
    assert_int_equal(sd_status_exit_code(err.code), 4);
    HAS("stopped before the update");
    if (!strstr(err.text, "gradient of ") && !strstr(err.text, "parameter "))
        fail_msg("no tensor is named: %s", err.text);
    /* The checkpoint is that of the step the message names, whole and finite. */
    sd_net *net;
    sd_optim *opt;
    int named = -1;
    assert_int_equal(sscanf(err.text, "step %d:", &named), 1);
    int64_t step = load(dir, m, &net, &opt);
    assert_int_equal(step, named);
    assert_true(step >= 1 && step < 50);
    assert_null(sd_optim_nonfinite(net, sd_net_params(net)));
    valid_lines(dir, "log.jsonl", (int)step);
    sd_optim_free(opt);
    sd_net_free(net);
    sd_tokens_free(t);
    sd_model_unref(m);
}

static void planted_nan(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/planted", scratch);
    sd_model *m = tiny("sd", SD_NORM_LAYER, 1);
    sd_tokens *t = corpus(500, 1);
    stopper s = {two, 4};
    s.run.progress = stop_at;
    s.run.ctx = &s;
    sd_train_opts o = options(10);
    o.dir = dir;
    assert_int_equal(sd_train(m, t, NULL, &o, &s.run, NULL, NULL, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    /* Before step 5 one weight of the state goes bad. */
    sd_net *net;
    sd_optim *opt;
    assert_int_equal(load(dir, m, &net, &opt), 4);
    const sd_net_slice *wk = sd_net_find(net, 1, SD_ROLE_WK);
    ((float *)sd_net_params(net))[wk->offset + 77] = NAN;
    sd_ckpt c = {&o, "ids", "", 4};
    OK(sd_ckpt_save(dir, &c, net, opt, &err));
    sd_optim_free(opt);
    sd_net_free(net);
    sd_buf was = {0};
    OK(sd_read_file(at("planted/checkpoint.safetensors"), 0, &was, &err));
    o.resume = true;
    o.save_every = 1;
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_ENUMERIC);
    HAS("step 4:");
    HAS("parameter layer 1 wk");
    HAS("stopped before the update");
    same_file(&was, at("planted/checkpoint.safetensors"));
    sd_buf_free(&was);
    sd_tokens_free(t);
    sd_model_unref(m);
}

/* An update may itself make a weight infinite: that state is never written. */
static void infinite_update(void **state) {
    (void)state;
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_tokens *t = corpus(500, 1);
    /* A position that no sequence reaches, so that the loss does not see it: decay alone makes it
     * infinite. */
    sd_tensor *pos = NULL;
    OK(sd_model_get(m, -1, SD_ROLE_POS, SD_F32, &pos, &err));
    ((float *)pos->data)[60 * 16] = 1e30f;
    OK(sd_model_set(m, -1, SD_ROLE_POS, pos, &err));
    sd_tensor_free(pos);
    sd_train_opts o = options(1);
    o.lr = 1e9;
    o.adam.weight_decay = 10;
    o.warmup = 0;
    o.dir = at("infinite");
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_ENUMERIC);
    HAS("not saved");
    HAS("parameter ");
    sd_net *net;
    sd_optim *opt;
    assert_int_equal(load(at("infinite"), m, &net, &opt), 0);
    sd_optim_free(opt);
    sd_net_free(net);
    sd_tokens_free(t);
    sd_model_unref(m);
}

/* ---- checkpoints (C03) ---- */

static void damaged_checkpoints(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/damaged", scratch);
    sd_model *m = tiny("sd", SD_NORM_NONE, 1);
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(2);
    o.dir = dir;
    OK(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err));
    sd_buf whole = {0};
    OK(sd_read_file(at("damaged/checkpoint.safetensors"), 0, &whole, &err));
    o.resume = true;
    static const int cut[] = {0, 7, 100, -1000, -1};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        size_t n = cut[i] < 0 ? whole.n - (size_t)-cut[i] : (size_t)cut[i];
        OK(sd_write_file(at("damaged/checkpoint.safetensors"), whole.p, n, &err));
        sd_status st = sd_train(m, t, NULL, &o, &two, NULL, NULL, &err);
        if (st != SD_EFORMAT)
            fail_msg("cut to %zu: %d, %s", n, st, err.text);
        HAS("checkpoint.safetensors");
    }
    whole.p[whole.n - 500] ^= 1;
    OK(sd_write_file(at("damaged/checkpoint.safetensors"), whole.p, whole.n, &err));
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_EFORMAT);
    HAS("the file is damaged");
    sd_train_state st;
    OK(sd_write_file(at("damaged/checkpoint.safetensors"), "version https://git-lfs", 23, &err));
    assert_true(sd_train_peek(dir, &st, &err) != SD_OK);
    HAS("checkpoint.safetensors");
    HAS("Git LFS");
    sd_buf_free(&whole);
    sd_tokens_free(t);
    sd_model_unref(m);
}

/* A model big enough that a kill meets a save more often than not. */
static sd_model *bulky(void) {
    sd_config c;
    sd_model *m = NULL, *small = tiny("sd", SD_NORM_NONE, 1);
    OK(sd_config_copy(&c, sd_model_config(small), &err));
    c.d_ff = 1024;
    OK(sd_model_new(&c, 1, &m, &err));
    sd_config_free(&c);
    sd_model_unref(small);
    return m;
}

static int temporaries(const char *dir) {
    char **names;
    size_t n;
    int k = 0;
    OK(sd_list_dir(dir, &names, &n, &err));
    for (size_t i = 0; i < n; i++) {
        k += strstr(names[i], ".tmp") != NULL;
        sd_free(names[i]);
    }
    sd_free(names);
    return k;
}

/* The first step is done and its save begins. */
static void say_begun(void *ctx, const char *what, double done, double total) {
    int *fd = ctx;
    (void)what;
    (void)done;
    (void)total;
    if (*fd >= 0 && write(*fd, "x", 1) == 1)
        *fd = -1;
}

static void killed_while_saving(void **state) {
    (void)state;
    char dir[128];
    snprintf(dir, sizeof dir, "%s/killed", scratch);
    sd_model *m = bulky();
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(1000000);
    o.batch = 1;
    o.save_every = 1;
    o.steps = 5;
    o.dir = dir;
    double step_time = sd_now();
    OK(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err));
    step_time = (sd_now() - step_time) / 6;
    if (step_time > 0.05)
        step_time = 0.05;
    o.steps = 1000000;
    o.resume = true;
    uint64_t random = 12345;
    int64_t last = 5;
    int stale = 0;
    for (int k = 0; k < 50; k++) {
        int ends[2];
        char byte;
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(ends[0]);
            sd_run r = {.threads = 1, .progress = say_begun, .ctx = &ends[1]};
            sd_train(m, t, NULL, &o, &r, NULL, NULL, NULL);
            _exit(0);
        }
        assert_true(pid > 0);
        close(ends[1]);
        assert_int_equal(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct timespec wait = {0, (long)(step_time * 2e9 * (double)(random >> 33) / 2147483648.0)};
        nanosleep(&wait, NULL);
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        stale += temporaries(dir) > 0;
        sd_net *net;
        sd_optim *opt;
        int64_t step = load(dir, m, &net, &opt);
        assert_true(step >= last);
        assert_null(sd_optim_nonfinite(net, sd_net_params(net)));
        last = step;
        sd_optim_free(opt);
        sd_net_free(net);
    }
    print_message("killed 50 times, %d of them in a save; at step %d\n", stale, (int)last);
    assert_true(last > 5 && stale > 0);
    /* The next run goes on, and what the killed ones left is gone. */
    o.steps = last + 1;
    sd_table *log = NULL;
    OK(sd_train(m, t, NULL, &o, &one, &log, NULL, &err));
    assert_int_equal(sd_table_rows(log), last + 1);
    assert_int_equal(temporaries(dir), 0);
    sd_table_unref(log);
    sd_tokens_free(t);
    sd_model_unref(m);
}

/* In a process of its own: limits and identities do not come back. */
static void cannot_write(bool read_only) {
    char dir[128];
    snprintf(dir, sizeof dir, "%s/%s", scratch, read_only ? "read-only" : "full");
    sd_model *m = bulky();
    sd_tokens *t = corpus(500, 1);
    sd_train_opts o = options(1);
    o.dir = dir;
    OK(sd_train(m, t, NULL, &o, &one, NULL, NULL, &err));
    sd_buf was = {0}, path = {0};
    sd_buf_printf(&path, "%s/checkpoint.safetensors", dir);
    OK(sd_read_file(path.p, 0, &was, &err));
    if (read_only) {
        assert_int_equal(chmod(scratch, 0755), 0);
        assert_int_equal(chmod(dir, 0555), 0);
    }
    o.steps = 3;
    o.resume = true;
    pid_t pid = fork();
    if (pid == 0) {
        if (read_only) {
            if (geteuid() == 0 && setuid(65534) != 0)
                _exit(90);
        } else {
            struct rlimit limit = {100000, 100000}; /* bytes a file */
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        sd_err e = {0};
        sd_status st = sd_train(m, t, NULL, &o, &one, NULL, NULL, &e);
        _exit(st == SD_EWRITE && strstr(e.text, dir) ? 0 : st == SD_OK ? 91 : 92);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    if (read_only)
        assert_int_equal(chmod(dir, 0755), 0);
    same_file(&was, path.p);
    assert_int_equal(temporaries(dir), 0);
    sd_table *log = NULL;
    OK(sd_train(m, t, NULL, &o, &one, &log, NULL, &err)); /* with space again */
    assert_int_equal(sd_table_rows(log), 3);
    sd_table_unref(log);
    sd_buf_free(&was);
    sd_buf_free(&path);
    sd_tokens_free(t);
    sd_model_unref(m);
}

static void disk_full(void **state) {
    (void)state;
    cannot_write(false);
}
static void read_only_folder(void **state) {
    (void)state;
    cannot_write(true);
}

/* ---- teachers, encoders, kinds ---- */

/* Mean KL of m's next-token distribution from the teacher's. */
static double kl(sd_model *teacher, sd_model *m) {
    sd_tokens *t = corpus(64, 9);
    int32_t ids[64];
    OK(sd_tokens_read(t, 0, 64, V, ids, &err));
    sd_tokens_free(t);
    static float p[64 * V], q[64 * V];
    OK(sd_forward(teacher, ids, 1, 64, NULL, NULL, p, &err));
    OK(sd_forward(m, ids, 1, 64, NULL, NULL, q, &err));
    double sum = 0;
    for (int i = 0; i < 64; i++) {
        double zp = 0, zq = 0;
        for (int v = 0; v < V; v++) {
            zp += exp((double)p[i * V + v]);
            zq += exp((double)q[i * V + v]);
        }
        for (int v = 0; v < V; v++) {
            double lp = (double)p[i * V + v] - log(zp), lq = (double)q[i * V + v] - log(zq);
            sum += exp(lp) * (lp - lq);
        }
    }
    return sum / 64;
}

static void distillation(void **state) {
    (void)state;
    sd_model *teacher = tiny("softmax", SD_NORM_LAYER, 5), *m = tiny("sd", SD_NORM_LAYER, 1);
    sd_train_opts o = options(60);
    sd_table_unref(run(teacher, &o, &two));
    double before = kl(teacher, m);
    o.teacher = teacher;
    o.teacher_weight = 1;
    o.dir = at("distilled");
    sd_table_unref(run(m, &o, &two));
    double after = kl(teacher, m);
    if (!(after < 0.25 * before))
        fail_msg("KL to the teacher: %.4f before, %.4f after", before, after);
    sd_train_state st;
    OK(sd_train_peek(at("distilled"), &st, &err));
    assert_true(st.distilled);
    assert_true(st.opts.teacher_weight == 1);
    sd_train_state_free(&st);
    sd_model_unref(teacher);
    sd_model_unref(m);
}

static void masked_tokens(void **state) {
    (void)state;
    sd_model *m = open_model(REF "bert-mlm");
    sd_tokens *t = corpus(1500, 1);
    sd_train_opts o = options(60);
    sd_err_clear(&err);
    assert_int_equal(sd_train(m, t, NULL, &o, &two, NULL, NULL, &err), SD_EINVAL);
    HAS("mask token");
    sd_buf vocab = {0};
    for (int i = 0; i < 43; i++)
        sd_buf_printf(&vocab, "w%d\n", i);
    sd_buf_puts(&vocab, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
    sd_tokenizer *tok = NULL;
    OK(sd_tokenizer_from_files(NULL, vocab.p, vocab.n, NULL, NULL, "vocab.txt", &tok, &err));
    sd_model_set_tokenizer(m, tok);
    o.mlm = 0.3;
    sd_table *log = NULL;
    OK(sd_train(m, t, NULL, &o, &two, &log, NULL, &err));
    double first = mean_loss(log, 0, 5), last = mean_loss(log, 50, 10);
    if (!(last < first - 0.7))
        fail_msg("masked loss %.3f, then %.3f", first, last);
    /* The number of scored tokens is that of the masked ones: the loss is a mean, not a sum. */
    assert_true(first > 2 && first < 6);
    sd_table_unref(log);
    sd_buf_free(&vocab);
    sd_tokenizer_unref(tok);
    sd_tokens_free(t);
    sd_model_unref(m);
}

static void fill(sd_model *m, int layer, sd_role r, float size) {
    sd_tensor *t = NULL;
    OK(sd_model_get(m, layer, r, SD_F32, &t, &err));
    uint64_t s = 99 + (uint64_t)r;
    float *p = t->data;
    for (size_t i = 0; i < sd_tensor_nbytes(t) / 4; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p[i] = size * ((float)(s >> 40) / 8388608.0f - 1);
    }
    OK(sd_model_set(m, layer, r, t, &err));
    sd_tensor_free(t);
}

/* Surgery, then training of the operated layers alone: every kind of the table heals, on layers
 * that were S–D and on standard ones. */
static void healing(void **state) {
    (void)state;
    for (int standard = 0; standard < 2; standard++) {
        sd_model *base = tiny(standard ? "softmax" : "sd", SD_NORM_LAYER, 3);
        sd_train_opts o = options(100);
        sd_table_unref(run(base, &o, &two));
        for (size_t k = 0; sd_attn_at(k); k++) {
            const char *kind = sd_attn_at(k)->name;
            sd_model *m = NULL;
            OK(sd_model_clone(base, &m, &err));
            sd_layer_cfg lc = sd_model_config(m)->layer[1];
            snprintf(lc.kind, sizeof lc.kind, "%s", kind);
            bool bilinear = strcmp(kind, "bilinear") == 0;
            lc.planes = 3;
            lc.f_rank = 2;
            sd_attn_least_options(sd_attn_at(k), lc.options, sizeof lc.options);
            OK(sd_model_set_layer_cfg(m, 1, &lc, &err));
            if (bilinear)
                for (sd_role r = SD_ROLE_RA; r <= SD_ROLE_FL; r++)
                    fill(m, 1, r, 0.2f);
            const bool layers[2] = {false, true};
            sd_train_opts h = options(60);
            h.layers = layers;
            h.lr = 0.003;
            h.dir = at("healed");
            h.overwrite = true;
            sd_tokens *t = corpus(1500, 1);
            sd_table *log = NULL;
            OK(sd_train(m, t, t, &h, &two, &log, NULL, &err));
            double first = cell(log, 0, "loss"), last = mean_loss(log, 50, 10);
            bool same = strcmp(kind, sd_model_config(base)->layer[1].kind) == 0;
            if (!(last < first || same) || !(last < 1.9))
                fail_msg("%s on %s: %.3f before, %.3f after", kind, standard ? "softmax" : "sd",
                         first, last);
            /* What was written opens and is what was trained. */
            sd_model *back = open_model(at("healed/model"));
            same_parts(m, back);
            sd_train_state st;
            OK(sd_train_peek(at("healed"), &st, &err));
            assert_string_equal(st.layers, "1");
            sd_train_state_free(&st);
            sd_table_unref(log);
            sd_tokens_free(t);
            sd_model_unref(m);
            sd_model_unref(back);
        }
        sd_model_unref(base);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule),
        cmocka_unit_test(learns),
        cmocka_unit_test(accumulation_and_recompute),
        cmocka_unit_test(frozen_layers),
        cmocka_unit_test(tied_embeddings),
        cmocka_unit_test(reference_curve),
        cmocka_unit_test(resume_bit_for_bit),
        cmocka_unit_test(a_folder_is_not_overwritten),
        cmocka_unit_test(resumed_options),
        cmocka_unit_test(one_owner),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(distillation_gradient),
        cmocka_unit_test(choice),
        cmocka_unit_test(refusals),
        cmocka_unit_test(diverges),
        cmocka_unit_test(planted_nan),
        cmocka_unit_test(infinite_update),
        cmocka_unit_test(damaged_checkpoints),
        cmocka_unit_test(killed_while_saving),
        cmocka_unit_test(disk_full),
        cmocka_unit_test(read_only_folder),
        cmocka_unit_test(distillation),
        cmocka_unit_test(masked_tokens),
        cmocka_unit_test(healing),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
