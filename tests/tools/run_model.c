/* run_model MODEL IN OUT: runs a model on the tensors `ids` (B, T) and, when there, `types` (B, T)
 * of the safetensors file IN (I32) and writes `hidden` and, with an output head, `logits` to OUT.
 * run_model MODEL save DIR: opens and saves, nothing else. For comparison with other programs. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "nn/forward.h"

static void say(void *ctx, sd_log_level level, const char *text) {
    (void)ctx;
    fprintf(stderr, "%s%s\n", level == SD_LOG_WARN ? "warning: " : "", text);
}

static sd_status run(sd_model *m, const char *in, const char *out, sd_err *err) {
    sd_container *c = NULL;
    sd_tensor *ids = NULL, *types = NULL, *hidden = NULL, *logits = NULL;
    sd_status st;
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
    sd_forward_opts o = {.token_types = types ? types->data : NULL};
    SD_GO(st, done,
          sd_forward(m, ids->data, (int)sh[0], (int)sh[1], &o, hidden->data,
                     logits ? logits->data : NULL, err));
    sd_named_tensor nt[2] = {{"hidden", hidden}, {"logits", logits}};
    st = sd_safetensors_write(out, nt, logits ? 2 : 1, NULL, err);
done:
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
