/* Training speed: forward + loss + backward of an S–D model (defaults: 6 layers, D 256, 4 heads of
 * 64, V 8192, T 256, batch 8, f32), as tokens a second and as model FLOPs beside the sgemm rate of
 * the same run. peer_train.py times PyTorch on the same model.
 *   bench_train [threads] [seconds] [kind] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/net.h"
#include "num/blas.h"

static int fatal(const sd_err *err) {
    fprintf(stderr, "bench_train: %s\n", err->text);
    return 1;
}

/* GFLOP/s of a 2048³ product, best of several. */
static double gemm_rate(int threads) {
    size_t n = 2048;
    float *m = sd_alloc(3 * n * n, sizeof *m, NULL);
    if (!m)
        return 0;
    for (size_t i = 0; i < 2 * n * n; i++)
        m[i] = (float)(i % 17) - 8;
    int old = sd_blas_threads(threads);
    double best = 0;
    for (int k = 0; k < 5; k++) {
        double t = sd_now();
        sd_gemm_f32(false, false, n, n, n, 1, m, n, m + n * n, n, 0, m + 2 * n * n, n);
        t = sd_now() - t;
        if (k > 0 && 2.0 * 2048 * 2048 * 2048 / t > best)
            best = 2.0 * 2048 * 2048 * 2048 / t;
    }
    sd_blas_threads(old);
    sd_free(m);
    return best / 1e9;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    double seconds = argc > 2 ? atof(argv[2]) : 8;
    const char *kind = argc > 3 ? argv[3] : "sd";
    enum { L = 6, D = 256, H = 4, V = 8192, T = 256, B = 8 };
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
    double best = 1e30, total = 0, nll = 0, rate = gemm_rate(threads), r2;
    int64_t count = 0;
    for (int k = 0; k < 3 || total < seconds; k++) {
        double t = sd_now();
        memset(grad, 0, sd_net_size(net) * sizeof *grad);
        if (sd_net_backward(net, ws, &b, 1.0 / (B * T), grad, &nll, &count, NULL, &err) != SD_OK)
            return fatal(&err);
        t = sd_now() - t;
        total += t;
        if (t < best)
            best = t;
        if (k % 4 == 3 && (r2 = gemm_rate(threads)) > rate)
            rate = r2;
    }
    double flops = sd_net_flops(net, T, true) * B * T / best / 1e9;
    printf("%s, %d threads: loss %.4f; step %.1f ms, %.0f tokens/s; %.1f GFLOP/s model, sgemm %.1f"
           " GFLOP/s: %.1f%%; workspace %.0f MB\n",
           kind, threads, nll / (double)count, best * 1e3, B * T / best, flops, rate,
           100 * flops / rate, (double)sd_net_ws_bytes(net, &plan) / 1e6);
    sd_free(ids);
    sd_free(targets);
    sd_free(grad);
    sd_net_ws_free(ws);
    sd_net_free(net);
    sd_config_free(&c);
    return 0;
}
