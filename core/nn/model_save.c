/* Saving: an HF-style folder. */
#include "nn/model_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/json.h"

/* Layers the family's own keys cannot express go under "sd_layers" (null = as the keys say). */
static sd_status describe_layers(const sd_model *m, json_t *o, sd_err *err) {
    sd_config back = {0};
    sd_status st = m->family->configure(o, NULL, &back, NULL, err);
    if (st == SD_OK) {
        bool any = false;
        json_t *a = json_array();
        for (int l = 0; a && l < m->cfg.n_layer; l++) {
            bool same = !m->cfg.layer[l].foreign && sd_layer_same(&back.layer[l], &m->cfg.layer[l]);
            any = any || !same;
            json_array_append_new(a, same ? json_null() : sd_layer_json(&m->cfg.layer[l]));
        }
        if (!a || json_array_size(a) != (size_t)m->cfg.n_layer)
            st = sd_fail(err, SD_ENOMEM, "out of memory");
        if (st == SD_OK && any) {
            st = sd_json_set(o, "sd_layers", json_incref(a), err);
            char type[40];
            if (st == SD_OK && strcmp(m->family->name, "sd") != 0) {
                snprintf(type, sizeof type, "sd:%s",
                         json_string_value(json_object_get(o, "model_type")));
                st = sd_json_set(o, "model_type", json_string(type), err);
                json_object_del(o, "architectures");
            }
        }
        json_decref(a);
    }
    sd_config_free(&back);
    return st;
}

static const char *hf_dtype(const sd_model *m) {
    uint64_t half = 0, brain = 0, other = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        const sd_tensor_info *t = &m->entries[i].info;
        *(t->dtype == SD_F16 ? &half : t->dtype == SD_BF16 ? &brain : &other) += t->bytes;
    }
    return half > brain && half > other ? "float16" : brain > other ? "bfloat16" : "float32";
}

static sd_status config_text(const sd_model *m, char **out, sd_err *err) {
    json_t *o = NULL;
    SD_TRY(m->family->describe(&m->cfg, &o, err));
    sd_status st = describe_layers(m, o, err);
    if (st == SD_OK && m->cfg.bos >= 0)
        st = sd_json_set(o, "bos_token_id", json_integer(m->cfg.bos), err);
    if (st == SD_OK && m->cfg.eos >= 0)
        st = sd_json_set(o, "eos_token_id", json_integer(m->cfg.eos), err);
    if (st == SD_OK)
        st = sd_json_set(o, "torch_dtype", json_string(hf_dtype(m)), err);
    if (st == SD_OK)
        st = sd_model_describe_steps(m, o, err);
    if (st == SD_OK)
        st = sd_json_text(o, 2, out, err);
    json_decref(o);
    return st;
}

static sd_status write_weights(sd_model *m, const char *path, const char *config, const sd_run *run,
                               sd_err *err) {
    sd_status st = SD_OK;
    size_t n = m->n_entries;
    sd_tensor **t = sd_alloc(n, sizeof *t, err);
    sd_named_tensor *nt = sd_alloc(n, sizeof *nt, err);
    char(*names)[160] = sd_alloc(n, sizeof *names, err);
    json_t *meta = json_pack("{s:s, s:s}", "format", "pt", "sd_config", config);
    if (!t || !nt || !names || !meta)
        st = sd_fail(err, SD_ENOMEM, "out of memory");
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        const model_entry *e = &m->entries[i];
        const char *prefix =
            m->family->export_prefix ? m->family->export_prefix(&m->cfg, e->name) : "";
        snprintf(names[i], sizeof names[i], "%s%s", prefix, e->name);
        nt[i].name = names[i];
        if (e->edited) {
            nt[i].tensor = e->edited->t;
        } else {
            st = sd_check_cancel(err);
            if (st == SD_OK)
                st = sd_model_load(m, e, true, SD_F32, &t[i], err);
            nt[i].tensor = t[i];
        }
        sd_run_progress(run, "save", (double)i, (double)n);
    }
    if (st == SD_OK)
        st = sd_safetensors_write(path, nt, n, meta, err);
    for (size_t i = 0; t && i < n; i++)
        sd_tensor_free(t[i]);
    json_decref(meta);
    sd_free(names);
    sd_free(nt);
    sd_free(t);
    return st;
}

static sd_status copy_file(const char *from, const char *to, sd_err *err) {
    sd_buf b = {0};
    sd_status st = sd_read_file(from, (uint64_t)1 << 28, &b, err);
    if (st == SD_OK)
        st = sd_write_file(to, b.p ? b.p : "", b.n, err);
    sd_buf_free(&b);
    return st;
}

static sd_status copy_tokenizer(const sd_model *m, const char *dir, sd_err *err) {
    const char *src = m->tokenizer_source;
    if (!src)
        return SD_OK;
    bool folder = sd_path_is_dir(src);
    const char *file;
    for (size_t i = 0; (file = sd_model_tokenizer_file(i)); i++) {
        char *from = folder ? sd_path_join(src, file, err) : sd_strdup(src, err);
        char *to = sd_path_join(dir, folder ? file : sd_path_base(src), err);
        sd_status st = from && to ? SD_OK : SD_ENOMEM;
        if (st == SD_OK && sd_path_exists(from) && strcmp(from, to) != 0)
            st = copy_file(from, to, err);
        sd_free(from);
        sd_free(to);
        SD_TRY(st);
        if (!folder)
            break;
    }
    return SD_OK;
}

static sd_status write_folder(sd_model *m, const char *dir, const char *config, const sd_run *run,
                              sd_err *err) {
    char *weights = sd_path_join(dir, "model.safetensors", err);
    char *cfg_path = sd_path_join(dir, "config.json", err);
    sd_status st = weights && cfg_path ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        st = copy_tokenizer(m, dir, err);
    if (st == SD_OK)
        st = write_weights(m, weights, config, run, err);
    if (st == SD_OK)
        st = sd_write_file(cfg_path, config, strlen(config), err);
    sd_free(weights);
    sd_free(cfg_path);
    return st;
}

sd_status sd_model_save(sd_model *m, const char *dir_in, const sd_run *run, sd_err *err) {
    if (m->n_hooks)
        return sd_fail(err, SD_EINVAL,
                       "%s carries %zu hook%s (patch), which live in this session only: it cannot "
                       "be saved",
                       m->name, m->n_hooks, m->n_hooks == 1 ? "" : "s");
    size_t n = strlen(dir_in);
    while (n > 1 && dir_in[n - 1] == '/')
        n--;
    char *dir = sd_strndup(dir_in, n, err), *text = NULL;
    sd_status st = dir ? config_text(m, &text, err) : SD_ENOMEM;
    if (st != SD_OK)
        goto done;
    if (!m->tokenizer_source && (m->tokenizer || m->container))
        sd_run_log(run, SD_LOG_WARN,
                   "%s: saved without a tokenizer: the model's own is not in a file that can be "
                   "copied",
                   dir);
    if (sd_path_exists(dir)) {
        char *index = sd_path_join(dir, "model.safetensors.index.json", err);
        if (!sd_path_is_dir(dir))
            st = sd_fail(err, SD_EWRITE, "%s: exists and is no folder", dir);
        else if (!index)
            st = SD_ENOMEM;
        else if (sd_path_exists(index))
            st =
                sd_fail(err, SD_EWRITE,
                        "%s holds a model in shards (model.safetensors.index.json): save elsewhere",
                        dir);
        else
            st = write_folder(m, dir, text, run, err);
        sd_free(index);
        goto done;
    }
    // a new folder is made under another name and renamed when whole
    sd_buf tmp = {0};
    sd_buf_printf(&tmp, "%s.tmp-%ld", dir, (long)getpid());
    st = sd_buf_status(&tmp, err);
    if (st == SD_OK) {
        sd_remove_folder(tmp.p); // left by a crashed process of the same number
        st = sd_mkdirs(tmp.p, err);
    }
    if (st == SD_OK) {
        st = write_folder(m, tmp.p, text, run, err);
        if (st == SD_OK && rename(tmp.p, dir) != 0)
            st = sd_fail(err, SD_EWRITE, "%s: cannot be renamed to %s", tmp.p, dir);
        if (st != SD_OK)
            sd_remove_folder(tmp.p);
    }
    sd_buf_free(&tmp);
done:
    if (text)
        sd_free(text);
    sd_free(dir);
    return st;
}
