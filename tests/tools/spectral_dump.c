/* The program's own analysis of a model as JSON, with the captured q, k and d of some layers as raw
 * f32 files beside it, for tests/ref/spectral_check.py.
 *   spectral_dump MODEL OUT-DIR N-TOKENS [LAYERS] [heads|probe|both] < ids (text, one a line) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "spectral/spectral.h"

static sd_err err;

static void must(sd_status st) {
    if (st == SD_OK)
        return;
    fprintf(stderr, "spectral_dump: %s\n", err.text);
    exit(sd_status_exit_code(st));
}

static void save(const char *dir, const char *name, int layer, const sd_tensor *t) {
    char path[512];
    if (!t)
        return;
    snprintf(path, sizeof path, "%s/%s.%d.f32", dir, name, layer);
    must(sd_write_file(path, t->data, sd_tensor_nbytes(t), &err));
}

int main(int argc, char **argv) {
    sd_model *m;
    if (argc < 4) {
        fprintf(stderr, "usage: spectral_dump MODEL OUT-DIR N-TOKENS [LAYERS] [WHAT]\n");
        return 2;
    }
    const char *dir = argv[2], *layers = argc > 4 ? argv[4] : "all";
    const char *what = argc > 5 ? argv[5] : "both";
    size_t n = (size_t)atoi(argv[3]), got = 0;
    int32_t *ids = sd_alloc(n + 1, sizeof *ids, &err);
    while (got < n && scanf("%" SCNd32, &ids[got]) == 1)
        got++;
    must(sd_model_open(argv[1], NULL, &m, &err));
    must(sd_mkdirs(dir, &err));
    sd_buf out = {0};
    const sd_config *c = sd_model_config(m);
    sd_buf_printf(&out, "{\"family\":\"%s\",\"causal\":%s,\"layers\":[", c->family,
                  c->causal ? "true" : "false");
    for (int l = 0; l < c->n_layer; l++)
        sd_buf_printf(&out,
                      "%s{\"n_head\":%d,\"n_kv\":%d,\"d\":%d,\"scale\":%.17g,\"kind\":\"%s\"}",
                      l ? "," : "", c->layer[l].n_head, c->layer[l].n_kv_head, c->layer[l].d_qk,
                      c->layer[l].scale, c->layer[l].kind);
    sd_buf_puts(&out, "]");
    if (strcmp(what, "probe")) {
        sd_table *t;
        sd_heads_opts o = {.layers = layers, .null_draws = -1};
        must(sd_heads(m, &o, NULL, &t, &err));
        sd_buf_puts(&out, ",\"heads\":");
        must(sd_table_json(t, true, &out, &err));
        sd_table_unref(t);
    }
    if (strcmp(what, "heads")) {
        sd_table *t;
        sd_probe_opts o = {.layers = layers, .ctx = (int)got, .max_seqs = 1, .null_draws = 20};
        must(sd_probe(m, ids, got, &o, NULL, &t, &err));
        sd_buf_puts(&out, ",\"probe\":");
        must(sd_table_json(t, true, &out, &err));
        bool *mask = sd_alloc((size_t)c->n_layer, sizeof *mask, &err);
        must(sd_parse_ranges(layers, "layer", c->n_layer, mask, &err));
        for (int l = 0; l < c->n_layer; l++) {
            sd_captured cap;
            if (!mask[l])
                continue;
            must(sd_probe_capture(m, ids, got, l, NULL, NULL, &cap, &err));
            save(dir, "q", l, cap.q);
            save(dir, "k", l, cap.k);
            save(dir, "d", l, cap.d);
            sd_captured_free(&cap);
        }
        sd_free(mask);
        sd_table_unref(t);
    }
    sd_buf_puts(&out, "}\n");
    char path[512];
    snprintf(path, sizeof path, "%s/tables.json", dir);
    must(sd_buf_status(&out, &err));
    must(sd_write_file(path, out.p, out.n, &err));
    sd_buf_free(&out);
    sd_free(ids);
    sd_model_unref(m);
    return 0;
}
