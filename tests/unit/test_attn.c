/* Attention kinds one by one through their descriptors: CASES S07 and S09, S–D's symmetries, the
 * decode step of every kind, independence of the future. */
#include <math.h>

#include "net_help.h"

typedef struct bed { /* one sequence */
    sd_attn_args a;
    const sd_attn_kind *kind;
    double *proj, *o, *dval, *lse, *work;
} bed;

static bed make(const char *kind, int T, int H, int Hkv, int dqk, int dv, const char *options) {
    bed b = {.kind = sd_attn_find(kind)};
    assert_non_null(b.kind);
    sd_layer_cfg lc = {.n_head = H, .n_kv_head = Hkv};
    snprintf(lc.kind, sizeof lc.kind, "%s", kind);
    snprintf(lc.options, sizeof lc.options, "%s", options);
    b.a = (sd_attn_args){.batch = 1,
                         .tokens = T,
                         .n_head = H,
                         .n_kv = Hkv,
                         .d_qk = dqk,
                         .d_v = dv,
                         .planes = 3,
                         .f_rank = 2,
                         .causal = true,
                         .window = sd_attn_window(&lc),
                         .scale = 0.6,
                         .options = options};
    size_t at = 0;
    for (int i = 0; i < b.kind->n_part; i++) {
        sd_slot s = b.kind->part[i].slot;
        if (s == SD_SLOT_NONE)
            continue;
        int n = s == SD_SLOT_Q                     ? H * dqk
                : s == SD_SLOT_K                   ? Hkv * dqk
                : s == SD_SLOT_V                   ? Hkv * dv
                : s == SD_SLOT_F                   ? H * 2
                : s == SD_SLOT_A || s == SD_SLOT_B ? H * 3
                                                   : H;
        b.a.has[s] = true;
        b.a.off[s] = at;
        at += (size_t)n;
    }
    b.a.ld = at + 3;
    uint64_t seed = 21;
    b.proj = calloc((size_t)T * b.a.ld, sizeof(double));
    for (size_t i = 0; i < (size_t)T * b.a.ld; i++)
        b.proj[i] = 1.5 * test_uniform(&seed);
    b.o = calloc((size_t)(T * H * dv), sizeof(double));
    b.lse = calloc((size_t)(T * H), sizeof(double));
    b.dval = calloc((size_t)(T * H), sizeof(double));
    for (int i = 0; i < T * H; i++)
        b.dval[i] = 0.1 + fabs(test_uniform(&seed));
    b.a.proj = b.proj;
    b.a.o = b.o;
    b.a.lse = b.lse;
    b.a.dval = b.a.has[SD_SLOT_U] ? b.dval : NULL;
    b.work = calloc(b.kind->f64->scratch(&b.a, true) + 16, sizeof(double));
    return b;
}

static void drop(bed *b) {
    free(b->proj);
    free(b->o);
    free(b->lse);
    free(b->dval);
    free(b->work);
}

static void go(bed *b) {
    for (int g = 0; g < b->a.n_kv; g++)
        b->kind->f64->forward(&b->a, 0, g, b->work);
}

static const struct {
    const char *kind, *options;
} all[] = {{"softmax", ""},           {"sd", ""},
           {"sd", "softmax=none"},    {"elu1", ""},
           {"elu1", "features=skew"}, {"bilinear", ""},
           {"uniform", ""},           {"potential", ""},
           {"window", "window=17"},   {"window", "window=300"},
           {"window", "window=1"},    {"sd", "window=70"},
           {"bilinear", "window=33"}, {"sd", "softmax=none window=5"}};
enum { N_ALL = sizeof all / sizeof *all };

/* S09 (c): a change of token t leaves the outputs before t alone, bit for bit. */
static void test_future(void **state) {
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        enum { T = 150, AT = 70 };
        bed b = make(all[k].kind, T, 4, 2, 5, 6, all[k].options);
        go(&b);
        double *before = malloc(T * 24 * sizeof(double));
        memcpy(before, b.o, T * 24 * sizeof(double));
        for (size_t j = 0; j < b.a.ld; j++)
            b.proj[AT * b.a.ld + j] += 3.0;
        go(&b);
        assert_memory_equal(before, b.o, AT * 24 * sizeof(double));
        assert_memory_not_equal(before + AT * 24, b.o + AT * 24, 24 * sizeof(double));
        free(before);
        drop(&b);
    }
}

/* One token at a time gives what all at once gives. */
static void test_decode(void **state) {
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        enum { T = 140 };
        bed b = make(all[k].kind, T, 4, 2, 5, 6, all[k].options);
        go(&b);
        double want[T * 24];
        memcpy(want, b.o, sizeof want);
        memset(b.o, 0, sizeof want);
        size_t n = b.kind->f64->state_size ? b.kind->f64->state_size(&b.a) : 0;
        assert_int_equal(b.kind->recurrent, n > 0);
        double *st = calloc(2 * n + 1, sizeof *st);
        for (int t = 0; t < T; t++)
            for (int g = 0; g < 2; g++)
                b.kind->f64->decode(&b.a, 0, g, t, st + (size_t)g * n, b.work);
        for (int i = 0; i < T * 24; i++)
            if (!(fabs(want[i] - b.o[i]) < 1e-11))
                fail_msg("%s %s: element %d: %.15g at once, %.15g stepwise", all[k].kind,
                         all[k].options, i, want[i], b.o[i]);
        free(st);
        drop(&b);
    }
}

/* S09 (a, b, e): the first output is the first value; equal values give that value. */
static void test_means(void **state) {
    (void)state;
    for (int k = 0; k < N_ALL; k++) {
        if (strstr(all[k].options, "softmax=none"))
            continue;
        for (int T = 1; T < 140; T += 69) {
            bed b = make(all[k].kind, T, 2, 2, 5, 6, all[k].options);
            go(&b);
            for (int j = 0; j < 12; j++)
                assert_true(fabs(b.o[j] - b.proj[b.a.off[SD_SLOT_V] + (size_t)j]) < 1e-14);
            for (int i = 0; i < T; i++)
                for (int j = 0; j < 12; j++)
                    b.proj[(size_t)i * b.a.ld + b.a.off[SD_SLOT_V] + (size_t)j] = j - 4.5;
            go(&b);
            for (int i = 0; i < T * 12; i++)
                assert_true(fabs(b.o[i] - (i % 12 - 4.5)) < 1e-13);
            drop(&b);
        }
    }
}

/* S09 (d): the chunked form against the plain masked sum, also across chunk borders. */
static void test_elu1_dense(void **state) {
    (void)state;
    enum { T = 131, D = 5, V = 6 };
    bed b = make("elu1", T, 1, 1, D, V, "");
    go(&b);
    for (int i = 0; i < T; i++) {
        double num[V] = {0}, den = 0;
        for (int j = 0; j <= i; j++) {
            double w = 0;
            for (int c = 0; c < D; c++) {
                double q = b.proj[(size_t)i * b.a.ld + b.a.off[SD_SLOT_Q] + (size_t)c];
                double k = b.proj[(size_t)j * b.a.ld + b.a.off[SD_SLOT_K] + (size_t)c];
                w += (q > 0 ? q + 1 : exp(q)) * (k > 0 ? k + 1 : exp(k));
            }
            for (int c = 0; c < V; c++)
                num[c] += w * b.proj[(size_t)j * b.a.ld + b.a.off[SD_SLOT_V] + (size_t)c];
            den += w;
        }
        for (int c = 0; c < V; c++)
            assert_true(fabs(b.o[i * V + c] - num[c] / den) < 1e-12);
    }
    drop(&b);
}

/* S07: φ(x) of very negative x in f32, seen through o_1 = (φ(q)φ(k0) v0 + φ(q)φ(k1) v1)/(...):
 * with φ(k1) = 1, v0 = 1, v1 = 0, o_1 = φ(k0)/(1 + φ(k0)). */
static void test_elu1_features(void **state) {
    (void)state;
    static const struct {
        double x, phi;
    } row[] = {{-6, 2.4787522e-3},
               {-8, 3.3546263e-4},
               {-20, 2.0611536e-9},
               {-87, 1.6458115e-38},
               {0, 1},
               {3, 4}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        float proj[2][3] = {{0, (float)row[i].x, 1}, {0, 0, 0}}, o[2] = {0}, lse[2], work[20000];
        sd_attn_args a = {.batch = 1,
                          .tokens = 2,
                          .n_head = 1,
                          .n_kv = 1,
                          .d_qk = 1,
                          .d_v = 1,
                          .causal = true,
                          .options = "",
                          .ld = 3,
                          .off = {0, 1, 2},
                          .has = {true, true, true},
                          .proj = proj,
                          .o = o,
                          .lse = lse};
        const sd_attn_ops *f = sd_attn_find("elu1")->f32;
        assert_true(f->scratch(&a, false) <= 20000);
        f->forward(&a, 0, 0, work);
        double want = row[i].phi / (1 + row[i].phi);
        if (!(fabs(o[1] - want) <= 3e-7 * want))
            fail_msg("phi(%g): %.9g, expected %.9g", row[i].x, (double)o[1], want);
    }
}

/* The masked sum in logarithms; proj rows hold q (D), k (D), v (V). */
enum { XT = 70, XD = 3, XV = 4, XLD = 2 * XD + XV };
static double log_phi(double x) {
    return x > 0 ? log1p(x) : x;
}
static void log_space(const double *proj, double *o) {
    for (int i = 0; i < XT; i++) {
        double s[XT], top = -HUGE_VAL, z = 0, num[XV] = {0}, mq = -HUGE_VAL;
        for (int c = 0; c < XD; c++) // a common factor of row i's weights: out first
            mq = fmax(mq, log_phi(proj[i * XLD + c]));
        for (int j = 0; j <= i; j++) {
            double mx = -HUGE_VAL, sum = 0, t[XD];
            for (int c = 0; c < XD; c++) {
                t[c] = log_phi(proj[i * XLD + c]) - mq + log_phi(proj[j * XLD + XD + c]);
                mx = fmax(mx, t[c]);
            }
            for (int c = 0; c < XD; c++)
                sum += exp(t[c] - mx);
            s[j] = mx + log(sum);
            top = fmax(top, s[j]);
        }
        for (int j = 0; j <= i; j++) {
            double e = exp(s[j] - top);
            z += e;
            for (int c = 0; c < XV; c++)
                num[c] += e * proj[j * XLD + 2 * XD + c];
        }
        for (int c = 0; c < XV; c++)
            o[i * XV + c] = num[c] / z;
    }
}
static double loss_of(const double *proj, const double *w) {
    double o[XT * XV], sum = 0;
    log_space(proj, o);
    for (int i = 0; i < XT * XV; i++)
        sum += w[i] * o[i];
    return sum;
}

static sd_attn_args extreme_args(const void *proj, void *o, void *lse) {
    return (sd_attn_args){.batch = 1,
                          .tokens = XT,
                          .n_head = 1,
                          .n_kv = 1,
                          .d_qk = XD,
                          .d_v = XV,
                          .causal = true,
                          .options = "",
                          .ld = XLD,
                          .off = {0, XD, 2 * XD},
                          .has = {true, true, true},
                          .proj = proj,
                          .o = o,
                          .lse = lse};
}

/* Queries and keys whose features underflow or overflow on their own: forward in f32 and f64,
 * decode, and the gradient. mode 0: all tokens; 1: from token 40 on; 2: token 3 alone; 3: one
 * feature against the other. */
static void test_elu1_extreme(void **state) {
    (void)state;
    static const struct {
        double q, k;
        bool gradient; /* differences can be taken at this size */
    } row[] = {{-200, 0, true},    {0, -200, true},  {-90, -90, true},    {-200, -200, true},
               {1e38, 0, false},   {0, 1e38, false}, {1e38, 1e38, false}, {-1e30, 1e30, false},
               {-1e4, -1e4, true}, {50, -50, true}};
    const sd_attn_kind *kind = sd_attn_find("elu1");
    for (size_t n = 0; n < 4 * sizeof row / sizeof *row; n++) {
        int mode = (int)(n % 4);
        double proj[XT * XLD], want[XT * XV], o[XT * XV], lse[XT], w[XT * XV], d[XT * XLD];
        float pf[XT * XLD], of[XT * XV], lf[XT];
        uint64_t seed = 5 + n;
        for (int i = 0; i < XT * XLD; i++) {
            int t = i / XLD, c = i % XLD;
            bool hit = mode == 0 ? true : mode == 1 ? t >= 40 : mode == 2 ? t == 3 : c % 2 == 0;
            double base = c < XD ? row[n / 4].q : c < 2 * XD ? row[n / 4].k : 0;
            pf[i] = (float)((hit ? base : 0) + test_uniform(&seed));
            proj[i] = pf[i];
        }
        for (int i = 0; i < XT * XV; i++)
            w[i] = test_uniform(&seed);
        log_space(proj, want);
        sd_attn_args a = extreme_args(proj, o, lse), b = extreme_args(pf, of, lf);
        double *work = calloc(kind->f64->scratch(&a, true) + 16, sizeof *work);
        double *st = calloc(kind->f64->state_size(&a) + 16, sizeof *st);
        kind->f64->forward(&a, 0, 0, work);
        kind->f32->forward(&b, 0, 0, work);
        for (int i = 0; i < XT * XV; i++)
            if (!(fabs(o[i] - want[i]) < 1e-11) || !(fabs((double)of[i] - want[i]) < 2e-5))
                fail_msg("q %g, k %g, mode %d, element %d: %g in f64, %g in f32, expected %g",
                         row[n / 4].q, row[n / 4].k, mode, i, o[i], (double)of[i], want[i]);
        a.d_o = w;
        a.dproj = d;
        kind->f64->backward(&a, 0, 0, work);
        for (int i = 0; i < XT * XLD; i++) {
            double keep = proj[i], h = 1e-5;
            assert_true(isfinite(d[i]));
            if (!row[n / 4].gradient || i % 3)
                continue;
            proj[i] = keep + h;
            double up = loss_of(proj, w);
            proj[i] = keep - h;
            double diff = (up - loss_of(proj, w)) / (2 * h);
            proj[i] = keep;
            if (!(fabs(diff - d[i]) < 1e-6))
                fail_msg("q %g, k %g, mode %d, gradient %d: %g, differences %g", row[n / 4].q,
                         row[n / 4].k, mode, i, d[i], diff);
        }
        float wf[XT * XV], df[XT * XLD];
        for (int i = 0; i < XT * XV; i++)
            wf[i] = (float)w[i];
        b.d_o = wf;
        b.dproj = df;
        kind->f32->backward(&b, 0, 0, work);
        for (int i = 0; i < XT * XLD; i++)
            if (!(fabs((double)df[i] - d[i]) < 1e-4))
                fail_msg("q %g, k %g, mode %d, gradient %d: %g in f32, %g in f64", row[n / 4].q,
                         row[n / 4].k, mode, i, (double)df[i], d[i]);
        for (int t = 0; t < XT; t++)
            kind->f64->decode(&a, 0, 0, t, st, work);
        for (int i = 0; i < XT * XV; i++)
            assert_true(fabs(o[i] - want[i]) < 1e-11);
        free(work);
        free(st);
    }
}

/* METHOD §6: S is unchanged when [Q K] is multiplied by a symplectic matrix; here (q, k) →
 * (q + a k, k), then (q, k) → (k, −q). */
static void test_symplectic(void **state) {
    (void)state;
    enum { T = 75, D = 5 };
    bed b = make("sd", T, 1, 1, D, 6, "");
    go(&b);
    double want[T * 6];
    memcpy(want, b.o, sizeof want);
    for (int i = 0; i < T; i++) {
        double *q = b.proj + (size_t)i * b.a.ld + b.a.off[SD_SLOT_Q];
        double *k = b.proj + (size_t)i * b.a.ld + b.a.off[SD_SLOT_K];
        for (int j = 0; j < D; j++) {
            double x = q[j] + 0.7 * k[j], y = k[j];
            q[j] = y;
            k[j] = -x;
        }
    }
    go(&b);
    for (int i = 0; i < T * 6; i++)
        assert_true(fabs(want[i] - b.o[i]) < 1e-12);
    drop(&b);
}

/* Every window from 1 to past the text, also across tiles, against the masked sum; full attention
 * at the widest; and the list of keys that the score statistics go by is the same. */
static void test_window(void **state) {
    (void)state;
    static const int windows[] = {1, 2, 31, 32, 33, 255, 256, 257, 299, 300, 1000};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        enum { T = 300, D = 5, V = 6 };
        char opt[32];
        snprintf(opt, sizeof opt, "window=%d", windows[w]);
        bed b = make("window", T, 1, 1, D, V, opt);
        sd_layer_cfg lc = {.kind = "window", .n_head = 1, .n_kv_head = 1};
        strcpy(lc.options, opt);
        go(&b);
        double pairs = 0;
        for (int i = 0; i < T; i++) {
            double num[V] = {0}, den = 0;
            size_t lo, hi;
            sd_attn_keys(&lc, true, (size_t)i, T, &lo, &hi);
            assert_int_equal(lo, i - windows[w] + 1 > 0 ? i - windows[w] + 1 : 0);
            assert_int_equal(hi, i + 1);
            pairs += (double)(hi - lo);
            for (size_t j = lo; j < hi; j++) {
                double s = 0;
                for (size_t c = 0; c < D; c++)
                    s += 0.6 * b.proj[(size_t)i * b.a.ld + b.a.off[SD_SLOT_Q] + c] *
                         b.proj[j * b.a.ld + b.a.off[SD_SLOT_K] + c];
                den += exp(s);
                for (size_t c = 0; c < V; c++)
                    num[c] += exp(s) * b.proj[j * b.a.ld + b.a.off[SD_SLOT_V] + c];
            }
            for (int c = 0; c < V; c++)
                if (!(fabs(b.o[i * V + c] - num[c] / den) < 1e-12))
                    fail_msg("%s: row %d: %.15g, expected %.15g", opt, i, b.o[i * V + c],
                             num[c] / den);
        }
        assert_true(fabs(sd_attn_mean_keys(&lc, true, T) - pairs / T) < 1e-12);
        drop(&b);
    }
}

/* Against N×N matrices, full (encoder) and causal, GQA, in f64. */
static void test_dense(void **state) {
    (void)state;
    for (int full = 0; full < 2; full++)
        for (int sd = 0; sd < 2; sd++) {
            enum { T = 130, H = 4, D = 5, V = 6 };
            bed b = make(sd ? "sd" : "softmax", T, H, 2, D, V, "");
            b.a.causal = !full;
            go(&b);
            for (int h = 0; h < H; h++)
                for (int i = 0; i < T; i += 43) {
                    double s[T], mx = -1e30, den = 0, o[V] = {0};
                    int end = full ? T : i + 1, g = h / 2;
                    for (int j = 0; j < end; j++) {
                        const double *ri = b.proj + (size_t)i * b.a.ld;
                        const double *rj = b.proj + (size_t)j * b.a.ld;
                        size_t oq = b.a.off[SD_SLOT_Q] + (size_t)(h * D);
                        size_t ok = b.a.off[SD_SLOT_K] + (size_t)(g * D);
                        s[j] = 0;
                        for (int c = 0; c < D; c++) {
                            s[j] += ri[oq + (size_t)c] * rj[ok + (size_t)c];
                            if (sd)
                                s[j] -= ri[ok + (size_t)c] * rj[oq + (size_t)c];
                        }
                        s[j] *= 0.6;
                        if (sd && i == j)
                            s[j] = -b.dval[i * H + h];
                        mx = s[j] > mx ? s[j] : mx;
                    }
                    for (int j = 0; j < end; j++) {
                        double p = exp(s[j] - mx);
                        den += p;
                        for (int c = 0; c < V; c++)
                            o[c] += p * b.proj[(size_t)j * b.a.ld + b.a.off[SD_SLOT_V] +
                                               (size_t)(g * V + c)];
                    }
                    for (int c = 0; c < V; c++)
                        assert_true(fabs(b.o[(i * H + h) * V + c] - o[c] / den) < 1e-12);
                    assert_true(fabs(b.lse[h * T + i] - mx - log(den)) < 1e-12);
                }
            drop(&b);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_future),        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_means),         cmocka_unit_test(test_elu1_dense),
        cmocka_unit_test(test_elu1_features), cmocka_unit_test(test_symplectic),
        cmocka_unit_test(test_dense),         cmocka_unit_test(test_window),
        cmocka_unit_test(test_elu1_extreme),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
