/* A model's life, and what it answers about itself. */
#include "nn/model_i.h"

#include <string.h>

#include "base/mem.h"

sd_model *sd_model_alloc(sd_err *err) {
    sd_model *m = sd_alloc(1, sizeof *m, err);
    if (!m)
        return NULL;
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->lock, NULL);
    m->version = 1;
    for (int i = 0; i < MODEL_SLOTS; i++)
        m->slots[i].src = -1;
    return m;
}

sd_model *sd_model_ref(sd_model *m) {
    atomic_fetch_add(&m->refs, 1);
    return m;
}
void sd_model_unref(sd_model *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    if (m->cache && m->cache_destroy)
        m->cache_destroy(m->cache);
    for (int i = 0; i < MODEL_SLOTS; i++)
        sd_blob_unref(m->slots[i].b);
    for (size_t i = 0; i < m->n_entries; i++) {
        sd_blob_unref(m->entries[i].edited);
        sd_free(m->entries[i].name);
    }
    for (size_t i = 0; i < m->n_steps; i++)
        sd_model_free_step(&m->steps[i]);
    sd_free(m->entries);
    sd_map_free(&m->index);
    sd_free(m->unused);
    sd_free(m->steps);
    sd_model_drop_hooks(m);
    sd_free(m->name);
    sd_free(m->path);
    sd_free(m->tokenizer_source);
    sd_tokenizer_unref(m->tokenizer);
    sd_container_unref(m->container);
    sd_config_free(&m->cfg);
    pthread_mutex_destroy(&m->lock);
    sd_free(m);
}

sd_status sd_model_clone(const sd_model *src, sd_model **out, sd_err *err) {
    sd_model *m = sd_model_alloc(err);
    if (!m)
        return SD_ENOMEM;
    sd_status st = SD_OK;
    m->family = src->family;
    SD_GO(st, fail, sd_config_copy(&m->cfg, &src->cfg, err));
    if (src->container)
        m->container = sd_container_ref(src->container);
    m->name = sd_strdup(src->name, err);
    m->path = sd_strdup(src->path, err);
    memcpy(m->fresh_hash, src->fresh_hash, sizeof m->fresh_hash);
    if (src->tokenizer_source) {
        m->tokenizer_source = sd_strdup(src->tokenizer_source, err);
        if (!m->tokenizer_source)
            st = SD_ENOMEM;
    }
    m->tokenizer_err = src->tokenizer_err;
    if (!m->name || !m->path || st != SD_OK) {
        st = SD_ENOMEM;
        goto fail;
    }
    if (src->tokenizer)
        m->tokenizer = sd_tokenizer_ref(src->tokenizer);
    m->tokenizer_tried = src->tokenizer_tried;
    for (size_t i = 0; i < src->n_entries; i++) {
        const model_entry *e = &src->entries[i];
        SD_GO(st, fail,
              sd_model_add_entry(m, e->name, e->info.dtype, e->info.ndim, e->info.shape, e->src,
                                 err));
        model_entry *mine = &m->entries[m->n_entries - 1];
        mine->info.bytes = e->info.bytes;
        mine->info.unsupported = e->info.unsupported;
        mine->edited = sd_blob_ref(e->edited);
    }
    if (src->n_unused) {
        SD_GO(st, fail,
              sd_grow((void **)&m->unused, &m->cap_unused, src->n_unused, sizeof *m->unused, err));
        memcpy(m->unused, src->unused, src->n_unused * sizeof *m->unused);
        m->n_unused = src->n_unused;
    }
    SD_GO(st, fail, sd_model_share_hooks(m, src, err));
    for (size_t i = 0; i < src->n_steps; i++)
        SD_GO(st, fail,
              sd_model_push_step(m, src->steps[i].op, src->steps[i].version, src->steps[i].args,
                                 src->steps[i].hash, err));
    *out = m;
    return SD_OK;
fail:
    sd_model_unref(m);
    return st;
}

const sd_config *sd_model_config(const sd_model *m) {
    return &m->cfg;
}

const sd_family *sd_model_family(const sd_model *m) {
    return m->family;
}

const char *sd_model_name(const sd_model *m) {
    return m->name;
}

sd_status sd_model_set_name(sd_model *m, const char *name, sd_err *err) {
    char *copy = sd_strdup(name, err);
    if (!copy)
        return SD_ENOMEM;
    sd_free(m->name);
    m->name = copy;
    return SD_OK;
}

const char *sd_model_path(const sd_model *m) {
    return m->path;
}

const sd_container *sd_model_container(const sd_model *m) {
    return m->container;
}

const char *sd_model_tokenizer_file(size_t i) {
    static const char *const files[] = {
        "tokenizer.json", "tokenizer_config.json",   "vocab.json", "merges.txt",
        "vocab.txt",      "special_tokens_map.json",
    };
    return i < sizeof files / sizeof files[0] ? files[i] : NULL;
}

static sd_status open_tokenizer(sd_model *m, sd_err *err) {
    if (m->tokenizer_source) {
        bool any = !sd_path_is_dir(m->tokenizer_source);
        const char *file;
        for (size_t i = 0; !any && (file = sd_model_tokenizer_file(i)); i++) {
            char *p = sd_path_join(m->tokenizer_source, file, err);
            if (!p)
                return SD_ENOMEM;
            any = sd_path_exists(p) && strstr(file, "_") == NULL;
            sd_free(p);
        }
        if (any)
            return sd_tokenizer_open(m->tokenizer_source, NULL, &m->tokenizer, err);
    } else if (m->container && strcmp(sd_container_format(m->container), "gguf") == 0) {
        json_t *meta = sd_container_meta(m->container);
        if (json_object_get(meta, "tokenizer.ggml.model"))
            return sd_tokenizer_from_gguf(meta, sd_container_path(m->container), &m->tokenizer,
                                          err);
    }
    return SD_OK;
}

sd_tokenizer *sd_model_tokenizer(const sd_model *cm) {
    sd_model *m = (sd_model *)cm; // opening on first use is no change a caller can see
    pthread_mutex_lock(&m->lock);
    if (!m->tokenizer && !m->tokenizer_tried) {
        sd_err_clear(&m->tokenizer_err);
        sd_status st = open_tokenizer(m, &m->tokenizer_err);
        if (st != SD_OK) {
            m->tokenizer = NULL;
            m->tokenizer_err.code = st;
        }
        m->tokenizer_tried = st != SD_ENOMEM; // there may be room the next time
    }
    pthread_mutex_unlock(&m->lock);
    return m->tokenizer;
}

sd_status sd_model_need_tokenizer(const sd_model *m, sd_tokenizer **out, sd_err *err) {
    *out = sd_model_tokenizer(m);
    if (*out)
        return SD_OK;
    sd_status st = m->tokenizer_err.code;
    if (st == SD_OK)
        return sd_fail(err, SD_EINVAL, "%s came without a tokenizer: give token ids, {1, 2, 3}",
                       m->name);
    return sd_fail(err, st, "%s: its tokenizer was refused: %s", m->name,
                   m->tokenizer_err.text[0] ? m->tokenizer_err.text : "out of memory");
}

const char *sd_model_tokenizer_error(const sd_model *m) {
    return m->tokenizer_err.text;
}

void sd_model_set_tokenizer(sd_model *m, sd_tokenizer *t) {
    sd_tokenizer *old = m->tokenizer;
    m->tokenizer = t ? sd_tokenizer_ref(t) : NULL;
    m->tokenizer_tried = true;
    sd_err_clear(&m->tokenizer_err);
    sd_tokenizer_unref(old);
}

sd_status sd_model_set_tokenizer_source(sd_model *m, const char *source, sd_err *err) {
    char *copy = source ? sd_strdup(source, err) : NULL;
    if (source && !copy)
        return SD_ENOMEM;
    sd_free(m->tokenizer_source);
    m->tokenizer_source = copy;
    return SD_OK;
}

int64_t sd_model_n_params(const sd_model *m) {
    int64_t total = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        int64_t n = 1;
        for (int d = 0; d < m->entries[i].info.ndim; d++)
            n *= m->entries[i].info.shape[d];
        total += n;
    }
    return total;
}

size_t sd_model_loaded_bytes(const sd_model *cm) {
    sd_model *m = (sd_model *)cm;
    size_t total = m->cache_bytes;
    for (size_t i = 0; i < m->n_entries; i++) {
        if (m->entries[i].edited)
            total += sd_tensor_nbytes(m->entries[i].edited->t);
    }
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < MODEL_SLOTS; i++) {
        if (m->slots[i].b)
            total += sd_tensor_nbytes(m->slots[i].b->t);
    }
    pthread_mutex_unlock(&m->lock);
    return total;
}

/* Names the state the next step is applied to (see sd_step). */
uint64_t sd_model_version(const sd_model *m) {
    return m->version;
}

void *sd_model_cache(const sd_model *m, uint64_t *version) {
    if (version)
        *version = m->cache_version;
    return m->cache;
}

void sd_model_set_cache(sd_model *m, void *cache, void (*destroy)(void *)) {
    if (m->cache && m->cache != cache && m->cache_destroy)
        m->cache_destroy(m->cache);
    m->cache = cache;
    m->cache_destroy = destroy;
    m->cache_version = m->version;
    m->cache_bytes = 0;
}

void sd_model_set_cache_bytes(sd_model *m, size_t bytes) {
    m->cache_bytes = bytes;
}
