/* checkpoint.c: the resumable state of a run in one safetensors file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/os.h"
#include "io/container.h"
#include "train/internal.h"

static const char FORMAT[] = "sd-training-1";

static uint64_t layout_hash(const sd_net *net) {
    uint64_t h = sd_net_size(net);
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        h = sd_hash64(s->name, strlen(s->name), h);
        h = sd_hash64(&s->offset, sizeof s->offset, h);
        h = sd_hash64(&s->n, sizeof s->n, h);
    }
    return h;
}

static void *buffer(sd_net *net, sd_optim *opt, int i) {
    return i == 0 ? sd_net_params(net) : i == 1 ? sd_optim_m(opt) : sd_optim_v(opt);
}

static const char *const buffer_name[3] = {"params", "adam_m", "adam_v"};

static uint64_t checksum(sd_net *net, sd_optim *opt) {
    size_t bytes = sd_net_size(net) * (sd_net_dtype(net) == SD_F64 ? 8 : 4);
    uint64_t h = 0;
    for (int i = 0; i < 3; i++)
        h = sd_hash64(buffer(net, opt, i), bytes, h);
    return h;
}

static void borrowed(void *ctx) {
    (void)ctx; /* the net and the optimizer own the memory */
}

/* "0-3,7" of the layers that are trained; empty when all are. */
static sd_status layer_text(const sd_train_opts *o, int n_layer, sd_buf *out, sd_err *err) {
    sd_buf_puts(out, "");
    for (int l = 0; o->layers && l < n_layer; l++) {
        if (!o->layers[l])
            continue;
        int end = l;
        while (end + 1 < n_layer && o->layers[end + 1])
            end++;
        sd_buf_printf(out, "%s%d", out->n ? "," : "", l);
        if (end > l)
            sd_buf_printf(out, "-%d", end);
        l = end;
    }
    return sd_buf_status(out, err);
}

sd_status sd_ckpt_save(const char *dir, const sd_ckpt *c, sd_net *net, sd_optim *opt, sd_err *err) {
    sd_buf path = {0}, opts = {0}, layers = {0};
    sd_tensor *t[3] = {NULL};
    json_t *meta = json_object();
    sd_status st = SD_ENOMEM;
    if (!meta)
        goto done;
    int64_t n = (int64_t)sd_net_size(net);
    for (int i = 0; i < 3; i++)
        SD_GO(st, done,
              sd_tensor_wrap(sd_net_dtype(net), 1, &n, buffer(net, opt, i), borrowed, NULL, &t[i],
                             err));
    char layout[24], sum[24], step[24];
    snprintf(layout, sizeof layout, "%016" PRIx64, layout_hash(net));
    snprintf(sum, sizeof sum, "%016" PRIx64, checksum(net, opt));
    snprintf(step, sizeof step, "%" PRId64, c->step);
    SD_GO(st, done, sd_train_opts_json(c->o, &opts, err));
    SD_GO(st, done, layer_text(c->o, sd_net_config(net)->n_layer, &layers, err));
    const char *const kv[][2] = {{"format", FORMAT},
                                 {"layout", layout},
                                 {"checksum", sum},
                                 {"step", step},
                                 {"options", opts.p},
                                 {"layers", layers.p},
                                 {"teacher", c->o->teacher ? "yes" : "no"},
                                 {"train", c->train_path},
                                 {"val", c->val_path},
                                 {"note", c->o->note ? c->o->note : ""}};
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        if (json_object_set_new(meta, kv[i][0], json_string(kv[i][1])) != 0) {
            st = sd_fail(err, SD_EINVAL, "checkpoint: %s is not text", kv[i][0]);
            goto done;
        }
    sd_buf_printf(&path, "%s/checkpoint.safetensors", dir);
    SD_GO(st, done, sd_buf_status(&path, err));
    const sd_named_tensor named[3] = {
        {buffer_name[0], t[0]}, {buffer_name[1], t[1]}, {buffer_name[2], t[2]}};
    st = sd_safetensors_write(path.p, named, 3, meta, err);
done:
    for (int i = 0; i < 3; i++)
        sd_tensor_free(t[i]);
    json_decref(meta);
    sd_buf_free(&path);
    sd_buf_free(&opts);
    sd_buf_free(&layers);
    return st;
}

static sd_status open_checkpoint(const char *dir, sd_container **c, sd_err *err) {
    sd_buf path = {0};
    sd_buf_printf(&path, "%s/checkpoint.safetensors", dir);
    sd_status st = sd_buf_status(&path, err);
    if (st == SD_OK)
        st = sd_container_open(path.p, NULL, c, err);
    if (st == SD_OK) {
        const char *format = json_string_value(json_object_get(sd_container_meta(*c), "format"));
        if (!format || strcmp(format, FORMAT) != 0)
            st = sd_fail(err, SD_EFORMAT, "%s: not a training checkpoint of this program", path.p);
        if (st != SD_OK) {
            sd_container_unref(*c);
            *c = NULL;
        }
    }
    sd_buf_free(&path);
    return st;
}

static const char *meta_str(const sd_container *c, const char *key) {
    const char *s = json_string_value(json_object_get(sd_container_meta(c), key));
    return s ? s : "";
}

sd_status sd_ckpt_load(const char *dir, sd_net *net, sd_optim *opt, int64_t *step, sd_err *err) {
    sd_container *c = NULL;
    SD_TRY(open_checkpoint(dir, &c, err));
    sd_status st = SD_OK;
    char layout[24], sum[24];
    snprintf(layout, sizeof layout, "%016" PRIx64, layout_hash(net));
    if (strcmp(meta_str(c, "layout"), layout) != 0) {
        st = sd_fail(err, SD_EFORMAT, "%s: the checkpoint is of a model of another shape",
                     sd_container_path(c));
        goto done;
    }
    if (!sd_parse_i64(meta_str(c, "step"), step) || *step < 0) {
        st = sd_fail(err, SD_EFORMAT, "%s: bad step '%s'", sd_container_path(c),
                     meta_str(c, "step"));
        goto done;
    }
    for (int i = 0; i < 3; i++) {
        int k = sd_container_find(c, buffer_name[i]);
        if (k < 0 || sd_container_at(c, (size_t)k)->ndim != 1 ||
            (uint64_t)sd_container_at(c, (size_t)k)->shape[0] != sd_net_size(net) ||
            sd_container_at(c, (size_t)k)->dtype != sd_net_dtype(net)) {
            st = sd_fail(err, SD_EFORMAT, "%s: tensor %s is missing or of another size",
                         sd_container_path(c), buffer_name[i]);
            goto done;
        }
        sd_tensor *t;
        SD_GO(st, done, sd_container_read(c, (size_t)k, &t, err));
        memcpy(buffer(net, opt, i), t->data, sd_tensor_nbytes(t));
        sd_tensor_free(t);
    }
    snprintf(sum, sizeof sum, "%016" PRIx64, checksum(net, opt));
    if (strcmp(meta_str(c, "checksum"), sum) != 0)
        st = sd_fail(err, SD_EFORMAT, "%s: checksum %s, its header says %s: the file is damaged",
                     sd_container_path(c), sum, meta_str(c, "checksum"));
done:
    sd_container_unref(c);
    return st;
}

/* ---- the folder ---- */

static const char *const run_files[] = {
    "checkpoint.safetensors", "log.csv",    "log.jsonl", "cascade.csv",
    "cascade.jsonl",          "cascade.png"};

/* NAME.XXXXXX.tmp of one of the run's files (base/os.h). */
static bool is_temporary(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof run_files / sizeof *run_files; i++) {
        size_t k = strlen(run_files[i]);
        if (n == k + 11 && strncmp(name, run_files[i], k) == 0 && name[k] == '.' &&
            strcmp(name + n - 4, ".tmp") == 0)
            return true;
    }
    return false;
}

void sd_dir_sweep(const char *dir) {
    char **names = NULL;
    size_t n = 0;
    if (sd_list_dir(dir, &names, &n, NULL) != SD_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        char *p = is_temporary(names[i]) ? sd_path_join(dir, names[i], NULL) : NULL;
        if (p)
            remove(p);
        sd_free(p);
        sd_free(names[i]);
    }
    sd_free(names);
}

sd_status sd_dir_begin(const char *dir, bool overwrite, sd_err *err) {
    char *path = sd_path_join(dir, run_files[0], err);
    if (!path)
        return SD_ENOMEM;
    bool held = sd_path_exists(path);
    sd_free(path);
    if (held && !overwrite)
        return sd_fail(err, SD_EINVAL,
                       "%s holds a training run: go on with resume \"%s\", choose another folder, "
                       "or give overwrite=true",
                       dir, dir);
    SD_TRY(sd_mkdirs(dir, err));
    /* The checkpoint goes first: without it the rest is no run. */
    for (size_t i = 0; i < sizeof run_files / sizeof *run_files; i++) {
        if (!(path = sd_path_join(dir, run_files[i], err)))
            return SD_ENOMEM;
        sd_status st = SD_OK;
        if (sd_path_exists(path) && remove(path) != 0)
            st = sd_fail(err, SD_EWRITE, "%s: cannot be removed: %s", path, strerror(errno));
        sd_free(path);
        SD_TRY(st);
    }
    sd_dir_sweep(dir);
    return SD_OK;
}

void sd_train_state_free(sd_train_state *s) {
    sd_free(s->train_path);
    sd_free(s->val_path);
    sd_free(s->layers);
    sd_free(s->note);
    memset(s, 0, sizeof *s);
}

sd_status sd_train_peek(const char *dir, sd_train_state *out, sd_err *err) {
    memset(out, 0, sizeof *out);
    sd_container *c = NULL;
    json_t *j = NULL;
    SD_TRY(open_checkpoint(dir, &c, err));
    sd_status st;
    const char *opts = meta_str(c, "options");
    SD_GO(st, done, sd_json_parse(opts, strlen(opts), sd_container_path(c), &j, err));
    st = sd_train_opts_parse(j, &out->opts, err);
    if (st != SD_OK) {
        st = SD_EFORMAT; /* what the file says is wrong, not what the user said */
        if (err)
            err->code = st;
        sd_err_context(err, "%s: options", sd_container_path(c));
        goto done;
    }
    if (!sd_parse_i64(meta_str(c, "step"), &out->step) || out->step < 0)
        st = sd_fail(err, SD_EFORMAT, "%s: bad step '%s'", sd_container_path(c),
                     meta_str(c, "step"));
    out->distilled = strcmp(meta_str(c, "teacher"), "yes") == 0;
    const struct {
        const char *key;
        char **to;
    } text[] = {{"train", &out->train_path},
                {"val", &out->val_path},
                {"layers", &out->layers},
                {"note", &out->note}};
    for (size_t i = 0; st == SD_OK && i < sizeof text / sizeof *text; i++)
        if (!(*text[i].to = sd_strdup(meta_str(c, text[i].key), err)))
            st = SD_ENOMEM;
done:
    if (st != SD_OK)
        sd_train_state_free(out);
    json_decref(j);
    sd_container_unref(c);
    return st;
}
