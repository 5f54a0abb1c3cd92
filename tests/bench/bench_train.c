/* Training speed of an S–D model (6 layers, D 256, 4 heads of 64, V 8192, T 256, batch 8, f32): a
 * whole step (forward, loss, backward, clipping, AdamW), and forward + loss + backward alone, as
 * model FLOPs beside the sgemm rate of the same run. peer_train.py times PyTorch on the same model.
 *   bench_train [threads] [seconds] [kind]
 * Prints `BENCH name value`: medians over the steps of this run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/net.h"
#include "num/blas.h"
#include "train/adamw.h"

static int fatal(const sd_err *err) {
    fprintf(stderr, "bench_train: %s\n", err->text);
    return 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* GFLOP/s of one 2048³ product; m: 3 matrices. */
static double gemm_rate(int threads, float *m) {
    size_t n = 2048;
    int old = sd_blas_threads(threads);
    double t = sd_now();
    sd_gemm_f32(false, false, n, n, n, 1, m, n, m + n * n, n, 0, m + 2 * n * n, n);
    t = sd_now() - t;
    sd_blas_threads(old);
    return 2.0 * 2048 * 2048 * 2048 / t / 1e9;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    double seconds = argc > 2 ? atof(argv[2]) : 8;
    const char *kind = argc > 3 ? argv[3] : "sd";
    enum { L = 6, D = 256, H = 4, V = 8192, T = 256, B = 8, MAX = 1000 };
    sd_err err = {0};
    sd_config c;
    if (sd_config_init(&c, L, &err) != SD_OK)
        return fatal(&err);
    snprintf(c.family, sizeof c.family, "sd");
    c.d_model = D;
    c.d_ff = 4 * D;
    c.vocab = V;
    c.n_pos = T;
    c.causal = c.tied = c.has_head = c.mlp_bias = true;
    c.d_floor = 1e-4;
    for (int l = 0; l < L; l++) {
        sd_layer_cfg *lc = &c.layer[l];
        snprintf(lc->kind, sizeof lc->kind, "%s", kind);
        lc->n_head = lc->n_kv_head = H;
        lc->d_qk = lc->d_v = D / H;
        lc->scale = strcmp(kind, "sd") == 0 ? 0.08838834764831845 : 0.125;
    }
    sd_net *net = NULL;
    sd_net_ws *ws = NULL;
    sd_net_plan plan = {.batch = B, .tokens = T, .threads = threads, .backward = true};
    if (sd_net_build(&c, SD_F32, &net, &err) != SD_OK ||
        sd_net_ws_new(net, &plan, &ws, &err) != SD_OK)
        return fatal(&err);
    float *p = sd_net_params(net), *grad = sd_alloc(sd_net_size(net), sizeof *grad, &err);
    int32_t *ids = sd_alloc((size_t)B * T, sizeof *ids, &err);
    int32_t *targets = sd_alloc((size_t)B * T, sizeof *targets, &err);
    if (!grad || !ids || !targets)
        return fatal(&err);
    unsigned s = 1;
    for (size_t i = 0; i < sd_net_size(net); i++)
        p[i] = ((float)((s = s * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f) * 0.035f;
    for (size_t i = 0; i < (size_t)B * T; i++) {
        ids[i] = (int32_t)((s = s * 1664525u + 1013904223u) >> 8) % V;
        targets[i] = (int32_t)((s = s * 1664525u + 1013904223u) >> 8) % V;
    }
    sd_net_batch b = {.batch = B, .tokens = T, .ids = ids, .targets = targets};
    static double step[MAX], fb[MAX], rate[MAX / 2 + 2];
    sd_adamw adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    sd_optim *opt = NULL;
    size_t nn = 2048 * 2048;
    float *mats = sd_alloc(3 * nn, sizeof *mats, &err);
    if (!mats || sd_optim_new(net, &adam, NULL, &opt, &err) != SD_OK)
        return fatal(&err);
    for (size_t i = 0; i < 2 * nn; i++)
        mats[i] = (float)(i % 17) - 8;
    double total = 0, nll = 0;
    int64_t count = 0;
    int n = 0, rates = 0;
    gemm_rate(threads, mats);
    for (int k = 0; n < MAX && (n < 3 || total < seconds); k++) {
        double t = sd_now();
        memset(grad, 0, sd_net_size(net) * sizeof *grad);
        nll = 0;
        count = 0;
        if (sd_net_backward(net, ws, &b, 1.0 / (B * T), grad, &nll, &count, NULL, &err) != SD_OK)
            return fatal(&err);
        double t1 = sd_now(), norm = sd_optim_grad_norm(opt, ws, grad);
        sd_optim_step(opt, net, ws, grad, norm > 1 ? 1 / norm : 1, 1e-4, k + 1);
        double t2 = sd_now();
        if (k == 0) // first touch of the memory
            continue;
        fb[n] = t1 - t;
        step[n++] = t2 - t;
        total += t2 - t;
        if (n % 3 == 1) {
            rate[rates++] = gemm_rate(threads, mats);
            // OpenBLAS's threads wait in a busy loop for a while: not during the next step.
            nanosleep(&(struct timespec){0, 150000000}, NULL);
        }
    }
    double flops = sd_net_flops(net, T, true) * B * T / 1e9;
    double s1 = median(step, n), s2 = median(fb, n), r = median(rate, rates);
    printf("%s, %d threads: loss %.4f after %d steps; workspace %.0f MB\n", kind, threads,
           nll / (double)count, n + 1, (double)sd_net_ws_bytes(net, &plan) / 1e6);
    printf("BENCH train.sd_ms %.3f\nBENCH train.sd_fb_ms %.3f\nBENCH train.sgemm %.2f\n", 1e3 * s1,
           1e3 * s2, r);
    printf("BENCH train.flops %.4f\nBENCH train.share %.5f\nBENCH train.fb_share %.5f\n", flops,
           flops / s1 / r, flops / s2 / r);
    sd_optim_free(opt);
    sd_free(mats);
    sd_free(ids);
    sd_free(targets);
    sd_free(grad);
    sd_net_ws_free(ws);
    sd_net_free(net);
    sd_config_free(&c);
    return 0;
}
