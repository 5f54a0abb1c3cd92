/* run_model MODEL IN OUT: runs a model on the tensors `ids` (B, T) and, when there, `types` (B, T)
 * of the safetensors file IN (I32) and writes `hidden` and, with an output head, `logits` to OUT.
 * SD_ALL=1 in the environment: every activation as well, as "resid_pre.0", "pattern.3", ...
 * run_model MODEL save DIR: opens and saves, nothing else. For comparison with other programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "nn/forward.h"
#include "nn/hook.h"

static void say(void *ctx, sd_log_level level, const char *text) {
    (void)ctx;
    fprintf(stderr, "%s%s\n", level == SD_LOG_WARN ? "warning: " : "", text);
}

enum { MAX = 4096 };
typedef struct all {
    sd_named_tensor v[MAX + 2];
    char name[MAX][32];
    int n;
} all;

static sd_status keep(void *ctx, sd_site *s, sd_err *err) {
    all *a = ctx;
    if (a->n == MAX)
        return sd_fail(err, SD_EINVAL, "more than %d activations", MAX);
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_new(SD_F32, s->ndim, s->shape, &t, err));
    memcpy(t->data, s->x, s->n * sizeof *s->x);
    snprintf(a->name[a->n], sizeof a->name[0], "%s.%d", sd_point_name(s->point), s->layer);
    a->v[a->n] = (sd_named_tensor){a->name[a->n], t};
    a->n++;
    return SD_OK;
}

static sd_status run(sd_model *m, const char *in, const char *out, sd_err *err) {
    sd_container *c = NULL;
    sd_tensor *ids = NULL, *types = NULL, *hidden = NULL, *logits = NULL;
    sd_status st;
    all *seen = sd_alloc(1, sizeof *seen, err);
    if (!seen)
        return SD_ENOMEM;
    SD_GO(st, done, sd_container_open(in, NULL, &c, err));
    int i = sd_container_find(c, "ids"), t = sd_container_find(c, "types");
    if (i < 0 || sd_container_at(c, (size_t)i)->ndim != 2 ||
        sd_container_at(c, (size_t)i)->dtype != SD_I32) {
        st = sd_fail(err, SD_EFORMAT, "%s: no tensor ids (B, T) of type I32", in);
        goto done;
    }
    SD_GO(st, done, sd_container_read(c, (size_t)i, &ids, err));
    if (t >= 0)
        SD_GO(st, done, sd_container_read(c, (size_t)t, &types, err));
    const sd_config *cfg = sd_model_config(m);
    int64_t sh[3] = {ids->shape[0], ids->shape[1], cfg->d_model};
    SD_GO(st, done, sd_tensor_new(SD_F32, 3, sh, &hidden, err));
    sh[2] = cfg->vocab;
    if (cfg->has_head)
        SD_GO(st, done, sd_tensor_new(SD_F32, 3, sh, &logits, err));
    sd_hook hooks[SD_POINT_COUNT];
    for (int p = 0; p < SD_POINT_COUNT; p++)
        hooks[p] = (sd_hook){.point = (sd_point)p, .layer = -1, .fn = keep, .ctx = seen};
    sd_forward_opts o = {.token_types = types ? types->data : NULL,
                         .hooks = hooks,
                         .n_hooks = getenv("SD_ALL") ? SD_POINT_COUNT : 0};
    SD_GO(st, done,
          sd_forward(m, ids->data, (int)sh[0], (int)sh[1], &o, hidden->data,
                     logits ? logits->data : NULL, err));
    int n = seen->n;
    seen->v[n++] = (sd_named_tensor){"hidden", hidden};
    if (logits)
        seen->v[n++] = (sd_named_tensor){"logits", logits};
    st = sd_safetensors_write(out, seen->v, (size_t)n, NULL, err);
done:
    for (int k = 0; k < seen->n; k++)
        sd_tensor_free((sd_tensor *)seen->v[k].tensor);
    sd_free(seen);
    sd_tensor_free(ids);
    sd_tensor_free(types);
    sd_tensor_free(hidden);
    sd_tensor_free(logits);
    sd_container_unref(c);
    return st;
}

int main(int argc, char **argv) {
    sd_err err = {0};
    sd_model *m = NULL;
    sd_run log = {.log = say};
    if (argc != 4) {
        fprintf(stderr, "usage: run_model MODEL IN OUT | run_model MODEL save DIR\n");
        return 2;
    }
    sd_status st = sd_model_open(argv[1], &log, &m, &err);
    if (st == SD_OK)
        st = strcmp(argv[2], "save") == 0 ? sd_model_save(m, argv[3], &log, &err)
                                          : run(m, argv[2], argv[3], &err);
    if (st != SD_OK)
        fprintf(stderr, "run_model: %s\n", err.text);
    sd_model_unref(m);
    return sd_status_exit_code(st);
}
