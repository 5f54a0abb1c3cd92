/* net_help.h: small random nets for the tests of nn/. */
#ifndef TEST_NET_HELP_H
#define TEST_NET_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/attn.h"
#include "nn/net.h"

static inline double test_uniform(uint64_t *s) { /* splitmix64 → (−1, 1) */
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) / 4503599627370496.0 - 1.0;
}

/* Two layers, D 12, 2 heads of 4 and 6 values, ff 20, V 17, 16 positions; the caller changes it. */
static inline void test_config(sd_config *c, const char *kind) {
    sd_err err = {0};
    assert_int_equal(sd_config_init(c, 2, &err), SD_OK);
    strcpy(c->family, "sd");
    c->d_model = 12;
    c->d_ff = 20;
    c->vocab = 17;
    c->n_pos = 160;
    c->causal = true;
    c->norm = SD_NORM_NONE;
    c->norm_eps = 1e-5;
    c->block = SD_BLOCK_PRE;
    c->act = SD_ACT_GELU;
    c->pos = SD_POS_LEARNED;
    c->tied = true;
    c->has_head = true;
    c->mlp_bias = true;
    c->embed_scale = 1.5;
    c->d_floor = 1e-4;
    for (int l = 0; l < 2; l++) {
        sd_layer_cfg *lc = &c->layer[l];
        strcpy(lc->kind, kind);
        lc->n_head = lc->n_kv_head = 2;
        lc->d_qk = 4;
        lc->d_v = 6;
        lc->scale = strcmp(kind, "sd") == 0 ? 0.35355 : 0.5;
    }
}

static inline sd_net *test_net(const sd_config *c, sd_dtype t, uint64_t seed, double size) {
    sd_err err = {0};
    sd_net *net = NULL;
    if (sd_net_build(c, t, &net, &err) != SD_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        bool gain = s->role == SD_ROLE_NORM1_G || s->role == SD_ROLE_NORM2_G ||
                    s->role == SD_ROLE_FINAL_NORM_G || s->role == SD_ROLE_EMBED_NORM_G ||
                    s->role == SD_ROLE_MLM_NORM_G;
        for (size_t j = 0; j < s->n; j++) {
            double x = size * test_uniform(&seed) + (gain ? 1 : 0);
            if (t == SD_F32)
                ((float *)sd_net_params(net))[s->offset + j] = (float)x;
            else
                ((double *)sd_net_params(net))[s->offset + j] = x;
        }
    }
    return net;
}

static inline sd_net_ws *test_ws(const sd_net *net, int batch, int tokens, bool backward,
                                 const bool *recompute, int threads) {
    sd_err err = {0};
    sd_net_ws *ws = NULL;
    sd_net_plan plan = {batch, tokens, threads, backward, recompute};
    if (sd_net_ws_new(net, &plan, &ws, &err) != SD_OK)
        fail_msg("%s", err.text);
    return ws;
}

static inline void test_ids(int32_t *ids, size_t n, int below, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        int v = (int)((test_uniform(&seed) + 1) / 2 * below);
        ids[i] = v < below ? v : below - 1;
    }
}

#endif
