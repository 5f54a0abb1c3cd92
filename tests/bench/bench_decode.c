/* Decoding speed at GPT-2 small's shape (12 layers, D 768, 12 heads, V 50257): the median time of a
 * token once `ctx` tokens are in, for softmax attention and for the recurrent kinds at two lengths.
 *   bench_decode [threads] [tokens] [ctx]
 * Prints `BENCH name value`. peer_decode.py times transformers on the same shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/decode.h"

static int fatal(const sd_err *err) {
    fprintf(stderr, "bench_decode: %s\n", err->text);
    return 1;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static sd_status shape(const char *kind, int n_pos, sd_config *c, sd_err *err) {
    SD_TRY(sd_config_init(c, 12, err));
    snprintf(c->family, sizeof c->family, "gpt2");
    c->d_model = 768;
    c->d_ff = 3072;
    c->vocab = 50257;
    c->n_pos = n_pos;
    c->causal = c->tied = c->has_head = c->mlp_bias = c->qkv_bias = c->out_bias = true;
    c->norm = SD_NORM_LAYER;
    c->norm_eps = 1e-5;
    c->final_norm = true;
    c->act = SD_ACT_GELU_TANH;
    c->embed_scale = 1;
    c->d_floor = 1e-4;
    for (int l = 0; l < 12; l++) {
        sd_layer_cfg *lc = &c->layer[l];
        snprintf(lc->kind, sizeof lc->kind, "%s", kind);
        lc->n_head = lc->n_kv_head = 12;
        lc->d_qk = lc->d_v = 64;
        lc->scale = 0.125;
        sd_attn_normalize(lc); /* uniform has no queries and keys */
    }
    return SD_OK;
}

/* Median ms of a token after `ctx` tokens; prefill seconds in *fill. */
static sd_status measure(const sd_net *net, int threads, int ctx, int n, double *ms, double *fill,
                         sd_err *err) {
    sd_decoder *d = NULL;
    float *logits = sd_alloc(50257, sizeof *logits, err);
    int32_t *ids = sd_alloc((size_t)ctx, sizeof *ids, err);
    double *t = sd_alloc((size_t)n, sizeof *t, err);
    sd_decode_plan plan = {.capacity = ctx + n, .rows = 1024, .threads = threads};
    sd_status st = logits && ids && t ? SD_OK : SD_ENOMEM;
    for (int i = 0; i < ctx && st == SD_OK; i++)
        ids[i] = (i * 7919) % 50257;
    if (st == SD_OK)
        st = sd_decoder_new(net, &plan, &d, err);
    *fill = sd_now();
    if (st == SD_OK)
        st = sd_decoder_feed(d, ids, ctx, logits, err);
    *fill = sd_now() - *fill;
    for (int i = 0; i < n && st == SD_OK; i++) {
        int32_t id = 0;
        double t0 = sd_now();
        st = sd_sample(&(sd_sampling){.top_p = 1}, 50257, logits, NULL, NULL, &id, err);
        if (st == SD_OK)
            st = sd_decoder_feed(d, &id, 1, logits, err);
        t[i] = 1e3 * (sd_now() - t0);
    }
    if (st == SD_OK) {
        qsort(t, (size_t)n, sizeof *t, ascending);
        *ms = t[n / 2];
    }
    sd_decoder_free(d);
    sd_free(logits);
    sd_free(ids);
    sd_free(t);
    return st;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2, n = argc > 2 ? atoi(argv[2]) : 24;
    int ctx = argc > 3 ? atoi(argv[3]) : 1024;
    static const char *const kinds[] = {"softmax", "sd", "elu1", "uniform"};
    sd_err err = {0};
    for (int k = 0; k < 4; k++) {
        sd_config c = {0};
        sd_net *net = NULL;
        double ms = 0, fill = 0, ms2 = 0, fill2 = 0;
        if (shape(kinds[k], 2 * ctx + n, &c, &err) != SD_OK ||
            sd_net_build(&c, SD_F32, &net, &err) != SD_OK)
            return fatal(&err);
        float *p = sd_net_params(net);
        unsigned s = 1;
        for (size_t i = 0; i < sd_net_size(net); i++)
            p[i] = ((float)((s = s * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f) * 0.035f;
        if (measure(net, threads, ctx, n, &ms, &fill, &err) != SD_OK ||
            measure(net, threads, 2 * ctx, n, &ms2, &fill2, &err) != SD_OK)
            return fatal(&err);
        printf("BENCH decode.%s_ms %.3f\nBENCH decode.%s_double_ms %.3f\nBENCH decode.%s_fill_s "
               "%.3f\n",
               kinds[k], ms, kinds[k], ms2, kinds[k], fill);
        fflush(stdout);
        sd_net_free(net);
        sd_config_free(&c);
    }
    return 0;
}
