#include "nn/model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/json.h"
#include "nn/family.h"

/* A tensor shared between clones; never changed while more than one of them holds it. */
typedef struct blob {
    atomic_int refs;
    sd_tensor *t; // contiguous, a plain type
} blob;

typedef struct entry {
    char *name; // in the model's own heap
    sd_tensor_info info;
    int src;      // index in the container, -1: none
    blob *edited; // NULL: the container's bytes are the value
} entry;

typedef struct step {
    char *op, *version, *args, *hash;
} step;

enum { N_SLOTS = 4 };
typedef struct slot { // recently read tensors as F32/F64, so that Q, K and V of a fused one are
    int src;          // read once
    uint64_t used;
    blob *b;
} slot;

struct sd_model {
    atomic_int refs;
    sd_config cfg;
    const sd_family *family;
    sd_container *container;
    char *name, *path;
    entry *entries;
    size_t n_entries, cap_entries;
    int32_t *index; // hash table of entry numbers, -1 = free
    size_t n_index;

    sd_tokenizer *tokenizer;
    bool tokenizer_tried;
    sd_err tokenizer_err; // why it was refused
    char *tokenizer_source;

    step *steps;
    size_t n_steps, cap_steps;
    uint64_t version;
    char fresh_hash[72];

    void *cache;
    uint64_t cache_version;
    size_t cache_bytes;
    void (*cache_destroy)(void *);

    pthread_mutex_t lock; // of slots, clock, tokenizer
    slot slots[N_SLOTS];
    uint64_t clock;
};

/* ---- blobs --------------------------------------------------------------------------------- */

static blob *blob_new(sd_tensor *t, sd_err *err) {
    blob *b = sd_alloc(1, sizeof *b, err);
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->t = t;
    return b;
}

static blob *blob_ref(blob *b) {
    if (b)
        atomic_fetch_add(&b->refs, 1);
    return b;
}

static void blob_unref(blob *b) {
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) {
        sd_tensor_free(b->t);
        sd_free(b);
    }
}

/* ---- entries ------------------------------------------------------------------------------- */

static int find_entry(const sd_model *m, const char *name) {
    if (m->n_index == 0)
        return -1;
    size_t mask = m->n_index - 1;
    for (size_t h = sd_hash64(name, strlen(name), 7) & mask; m->index[h] >= 0; h = (h + 1) & mask) {
        if (strcmp(m->entries[m->index[h]].name, name) == 0)
            return m->index[h];
    }
    return -1;
}

static void index_put(sd_model *m, int i) {
    size_t mask = m->n_index - 1;
    const char *name = m->entries[i].name;
    size_t h = sd_hash64(name, strlen(name), 7) & mask;
    while (m->index[h] >= 0)
        h = (h + 1) & mask;
    m->index[h] = i;
}

static sd_status reindex(sd_model *m, sd_err *err) {
    size_t want = 16;
    while (want < 2 * (m->n_entries + 1))
        want *= 2;
    if (want != m->n_index) {
        int32_t *p = sd_alloc(want, sizeof *p, err);
        if (!p)
            return SD_ENOMEM;
        sd_free(m->index);
        m->index = p;
        m->n_index = want;
    }
    memset(m->index, 0xff, m->n_index * sizeof *m->index);
    for (size_t i = 0; i < m->n_entries; i++)
        index_put(m, (int)i);
    return SD_OK;
}

static sd_status add_entry(sd_model *m, const char *name, sd_dtype dtype, int ndim,
                           const int64_t *shape, int src, sd_err *err) {
    SD_TRY(
        sd_grow((void **)&m->entries, &m->cap_entries, m->n_entries + 1, sizeof *m->entries, err));
    char *copy = sd_strdup(name, err);
    if (!copy)
        return SD_ENOMEM;
    entry *e = &m->entries[m->n_entries];
    memset(e, 0, sizeof *e);
    e->name = copy;
    e->info.name = copy;
    e->info.dtype = dtype;
    e->info.ndim = ndim;
    uint64_t n = 1;
    for (int k = 0; k < ndim; k++) {
        e->info.shape[k] = shape[k];
        n *= (uint64_t)shape[k];
    }
    e->info.bytes = n * 4;
    if (src >= 0) {
        e->info.bytes = sd_container_at(m->container, (size_t)src)->bytes;
        e->info.shard = sd_container_at(m->container, (size_t)src)->shard;
    }
    e->src = src;
    m->n_entries++;
    if (2 * (m->n_entries + 1) > m->n_index) {
        sd_status st = reindex(m, err);
        if (st != SD_OK) {
            m->n_entries--;
            sd_free(copy);
        }
        return st;
    }
    index_put(m, (int)m->n_entries - 1);
    return SD_OK;
}

/* ---- where parts live ---------------------------------------------------------------------- */

/* Parts that surgery adds are in tensors of our own, whatever the family. */
static bool own_locate(const sd_config *cfg, int layer, sd_role r, sd_locator *out) {
    int64_t s[2];
    int nd;
    if (sd_role_is_global(r) || !sd_role_shape(cfg, layer, r, s, &nd))
        return false;
    snprintf(out->tensor, sizeof out->tensor, "sd.layers.%d.attn.%s", layer, sd_role_name(r));
    out->offset = 0;
    out->shape[0] = nd == 2 ? s[0] : 1;
    out->shape[1] = 1;
    out->shape[2] = nd == 2 ? s[1] : s[0];
    out->stride[0] = out->stride[1] = out->shape[2];
    out->stride[2] = 1;
    return true;
}

static bool locate(const sd_family *f, const sd_config *cfg, int layer, sd_role r,
                   sd_locator *out) {
    return f->locate(cfg, layer, r, out) || own_locate(cfg, layer, r, out);
}

/* All tensors of a model under cfg: the family's, then ours. `state` starts zeroed. */
typedef struct walk {
    size_t i;
    int layer, role;
    bool own;
} walk;

static bool walk_next(walk *w, const sd_family *f, const sd_config *cfg, char name[128], int *ndim,
                      int64_t shape[2]) {
    if (!w->own) {
        if (f->tensor_at(cfg, w->i++, name, ndim, shape))
            return true;
        w->own = true;
    }
    for (; w->layer < cfg->n_layer; w->layer++, w->role = 0) {
        while (w->role < SD_ROLE_COUNT) {
            sd_role r = (sd_role)w->role++;
            sd_locator loc;
            if (sd_role_is_global(r) || f->locate(cfg, w->layer, r, &loc) ||
                !own_locate(cfg, w->layer, r, &loc))
                continue;
            strcpy(name, loc.tensor);
            return sd_role_shape(cfg, w->layer, r, shape, ndim);
        }
    }
    return false;
}

/* ---- construction -------------------------------------------------------------------------- */

static sd_model *model_alloc(sd_err *err) {
    sd_model *m = sd_alloc(1, sizeof *m, err);
    if (!m)
        return NULL;
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->lock, NULL);
    m->version = 1;
    for (int i = 0; i < N_SLOTS; i++)
        m->slots[i].src = -1;
    return m;
}

sd_model *sd_model_ref(sd_model *m) {
    atomic_fetch_add(&m->refs, 1);
    return m;
}

static void free_step(step *s) {
    sd_free(s->op);
    sd_free(s->version);
    sd_free(s->args);
    sd_free(s->hash);
}

void sd_model_unref(sd_model *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    if (m->cache && m->cache_destroy)
        m->cache_destroy(m->cache);
    for (int i = 0; i < N_SLOTS; i++)
        blob_unref(m->slots[i].b);
    for (size_t i = 0; i < m->n_entries; i++) {
        blob_unref(m->entries[i].edited);
        sd_free(m->entries[i].name);
    }
    for (size_t i = 0; i < m->n_steps; i++)
        free_step(&m->steps[i]);
    sd_free(m->entries);
    sd_free(m->index);
    sd_free(m->steps);
    sd_free(m->name);
    sd_free(m->path);
    sd_free(m->tokenizer_source);
    sd_tokenizer_unref(m->tokenizer);
    sd_container_unref(m->container);
    sd_config_free(&m->cfg);
    pthread_mutex_destroy(&m->lock);
    sd_free(m);
}

static void shape_text(int ndim, const int64_t *shape, char out[96]) {
    int n = snprintf(out, 96, "[");
    for (int i = 0; i < ndim && n < 80; i++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(out + n, 96 - (size_t)n, "]");
}

/* Container name → entry: a small hash map built while renaming, so that what open allocates is
 * bounded by the container, not by what config.json claims. */
typedef struct found {
    char name[128];
    int src;
    bool used;
} found;

typedef struct found_map {
    found *v;
    size_t n, cap;
    int32_t *index;
    size_t n_index;
} found_map;

static int found_find(const found_map *f, const char *name) {
    size_t mask = f->n_index - 1;
    for (size_t h = sd_hash64(name, strlen(name), 7) & mask; f->index[h] >= 0; h = (h + 1) & mask) {
        if (strcmp(f->v[f->index[h]].name, name) == 0)
            return f->index[h];
    }
    return -1;
}

static sd_status found_build(found_map *f, const sd_model *m, sd_err *err) {
    size_t n = sd_container_count(m->container);
    f->n_index = 16;
    while (f->n_index < 2 * (n + 1))
        f->n_index *= 2;
    f->v = sd_alloc(n, sizeof *f->v, err);
    f->index = sd_alloc(f->n_index, sizeof *f->index, err);
    if (!f->v || !f->index)
        return SD_ENOMEM;
    memset(f->index, 0xff, f->n_index * sizeof *f->index);
    for (size_t i = 0; i < n; i++) {
        const sd_tensor_info *t = sd_container_at(m->container, i);
        found *e = &f->v[f->n];
        m->family->rename(&m->cfg, m->container, t->name, e->name);
        if (!e->name[0])
            continue;
        int other = found_find(f, e->name);
        if (other >= 0)
            return sd_fail(err, SD_EFORMAT, "%s: tensors %.120s and %.120s are both '%s'",
                           sd_container_path(m->container),
                           sd_container_at(m->container, (size_t)f->v[other].src)->name, t->name,
                           e->name);
        e->src = (int)i;
        size_t h = sd_hash64(e->name, strlen(e->name), 7) & (f->n_index - 1);
        while (f->index[h] >= 0)
            h = (h + 1) & (f->n_index - 1);
        f->index[h] = (int32_t)f->n++;
    }
    return SD_OK;
}

static sd_relayout relayout_of(const sd_model *m, const char *stored) {
    sd_relayout none = {0};
    return m->family->relayout && m->container ? m->family->relayout(&m->cfg, m->container, stored)
                                               : none;
}

static sd_status match_tensors(sd_model *m, found_map *f, sd_err *err) {
    char name[128], want[96], got[96];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    walk w = {0};
    const char *path = sd_container_path(m->container);
    while (walk_next(&w, m->family, &m->cfg, name, &ndim, shape)) {
        int k = found_find(f, name);
        shape_text(ndim, shape, want);
        if (k < 0)
            return sd_fail(err, SD_EFORMAT, "%s: tensor %s %s is missing", path, name, want);
        const sd_tensor_info *t = sd_container_at(m->container, (size_t)f->v[k].src);
        sd_relayout fix = relayout_of(m, name);
        bool same = t->ndim == ndim;
        for (int d = 0; same && d < ndim; d++)
            same = t->shape[fix.transpose ? ndim - 1 - d : d] == shape[d];
        if (!same) {
            shape_text(t->ndim, t->shape, got);
            return sd_fail(err, SD_EFORMAT, "%s: tensor %s has shape %s, config.json asks for %s",
                           path, t->name, got, want);
        }
        const sd_dtype_info *ti = sd_dtype_get(t->dtype);
        if (!ti->is_float && !ti->is_quant)
            return sd_fail(err, SD_EFORMAT, "%s: tensor %s has type %s: weights must be floats",
                           path, t->name, ti->name);
        f->v[k].used = true;
        SD_TRY(add_entry(m, name, t->dtype, ndim, shape, f->v[k].src, err));
    }
    for (size_t k = 0; k < f->n; k++) {
        if (f->v[k].used)
            continue;
        const sd_tensor_info *t = sd_container_at(m->container, (size_t)f->v[k].src);
        shape_text(t->ndim, t->shape, got);
        if (!m->family->optional || !m->family->optional(&m->cfg, f->v[k].name)) {
            if (t->unindexed)
                continue; // of another file set: the index does not ask for it (warned at opening)
            return sd_fail(
                err, SD_EFORMAT,
                "%s: unexpected tensor %.200s %s: no part of a %s model with this config", path,
                t->name, got, m->family->name);
        }
        SD_TRY(add_entry(m, f->v[k].name, t->dtype, t->ndim, t->shape, f->v[k].src, err));
    }
    return SD_OK;
}

/* ---- config.json: sd's own keys ------------------------------------------------------------ */

static json_t *layer_json(const sd_layer_cfg *lc) {
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:i, s:i, s:s}", "kind", lc->kind, "n_head",
                     lc->n_head, "n_kv_head", lc->n_kv_head, "d_qk", lc->d_qk, "d_v", lc->d_v,
                     "scale", lc->scale, "planes", lc->planes, "f_rank", lc->f_rank, "options",
                     lc->options);
}

static sd_status layer_from_json(const json_t *o, sd_layer_cfg *lc, sd_err *err) {
    const char *kind = "", *options = "";
    bool given;
    SD_TRY(sd_json_str(o, "kind", &kind, NULL, err));
    SD_TRY(sd_json_str(o, "options", &options, &given, err));
    if (!given)
        options = "";
    if (strlen(kind) >= sizeof lc->kind || strlen(options) >= sizeof lc->options)
        return sd_fail(err, SD_EFORMAT, "kind or options too long");
    memset(lc, 0, sizeof *lc);
    strcpy(lc->kind, kind);
    strcpy(lc->options, options);
    SD_TRY(sd_family_int(o, "n_head", NULL, 1, 4096, true, &lc->n_head, err));
    SD_TRY(sd_family_int(o, "n_kv_head", NULL, 1, 4096, true, &lc->n_kv_head, err));
    SD_TRY(sd_family_int(o, "d_qk", NULL, 0, 8192, true, &lc->d_qk, err));
    SD_TRY(sd_family_int(o, "d_v", NULL, 1, 8192, true, &lc->d_v, err));
    SD_TRY(sd_family_int(o, "planes", NULL, 0, 8192, false, &lc->planes, err));
    SD_TRY(sd_family_int(o, "f_rank", NULL, 0, 16384, false, &lc->f_rank, err));
    return sd_json_f64(o, "scale", &lc->scale, NULL, err);
}

static sd_status read_layers(const json_t *config, sd_config *cfg, sd_err *err) {
    const json_t *a = json_object_get(config, "sd_layers");
    if (!a || json_is_null(a))
        return SD_OK;
    if (!json_is_array(a) || json_array_size(a) != (size_t)cfg->n_layer)
        return sd_fail(err, SD_EFORMAT, "'sd_layers' must list %d layers", cfg->n_layer);
    for (int l = 0; l < cfg->n_layer; l++) {
        const json_t *o = json_array_get(a, (size_t)l);
        if (json_is_null(o))
            continue;
        if (!json_is_object(o))
            return sd_fail(err, SD_EFORMAT, "'sd_layers': entry %d is no object", l);
        sd_status st = layer_from_json(o, &cfg->layer[l], err);
        if (st != SD_OK) {
            sd_err_context(err, "'sd_layers': layer %d", l);
            return st;
        }
    }
    return SD_OK;
}

static sd_status push_step(sd_model *m, const char *op, const char *version, const char *args,
                           const char *hash, sd_err *err) {
    SD_TRY(sd_grow((void **)&m->steps, &m->cap_steps, m->n_steps + 1, sizeof *m->steps, err));
    step s = {sd_strdup(op, err), sd_strdup(version, err), sd_strdup(args, err),
              sd_strdup(hash, err)};
    if (!s.op || !s.version || !s.args || !s.hash) {
        free_step(&s);
        return SD_ENOMEM;
    }
    m->steps[m->n_steps++] = s;
    return SD_OK;
}

static sd_status read_steps(const json_t *config, sd_model *m, sd_err *err) {
    const json_t *a = json_object_get(config, "sd_lineage");
    if (!a || json_is_null(a))
        return SD_OK;
    if (!json_is_array(a))
        return sd_fail(err, SD_EFORMAT, "'sd_lineage' must be a list");
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *o = json_array_get(a, i);
        const char *op, *version, *args, *hash;
        if (!json_is_object(o))
            return sd_fail(err, SD_EFORMAT, "'sd_lineage': entry %zu is no object", i);
        SD_TRY(sd_json_str(o, "op", &op, NULL, err));
        SD_TRY(sd_json_str(o, "version", &version, NULL, err));
        SD_TRY(sd_json_str(o, "args", &args, NULL, err));
        SD_TRY(sd_json_str(o, "input_hash", &hash, NULL, err));
        SD_TRY(push_step(m, op, version, args, hash, err));
    }
    return SD_OK;
}

/* ---- opening ------------------------------------------------------------------------------- */

static const sd_family *match_family(const json_t *config, bool gguf) {
    for (size_t i = 0; sd_family_at(i); i++) {
        if (sd_family_at(i)->matches(config, gguf))
            return sd_family_at(i);
    }
    return NULL;
}

static sd_status unknown_family(const json_t *config, bool gguf, sd_err *err) {
    const char *key = gguf ? "general.architecture" : "model_type";
    const char *t = json_string_value(json_object_get(config, key));
    if (!t && !gguf) {
        t = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
        key = "architecture";
    }
    if (gguf)
        return sd_fail(err, SD_EFORMAT,
                       "unknown model family: %s '%.64s' (known in GGUF files: llama, qwen2, "
                       "mistral)",
                       key, t ? t : "");
    sd_buf b = {0};
    sd_family_list(&b);
    sd_status st =
        t ? sd_fail(err, SD_EFORMAT, "unknown model family: %s '%.64s' (known: %s)", key, t,
                    b.p ? b.p : "")
          : sd_fail(err, SD_EFORMAT, "config.json names no model_type (known families: %s)",
                    b.p ? b.p : "");
    sd_buf_free(&b);
    return st;
}

/* model_type "sd:gpt2" (a model that surgery changed) reads as gpt2. */
static sd_status plain_type(json_t **config, sd_err *err) {
    const char *t = json_string_value(json_object_get(*config, "model_type"));
    if (!t || strncmp(t, "sd:", 3) != 0)
        return SD_OK;
    json_t *copy = json_copy(*config);
    if (!copy || json_object_set_new(copy, "model_type", json_string(t + 3)) != 0) {
        json_decref(copy);
        return sd_fail(err, SD_ENOMEM, "out of memory");
    }
    json_decref(*config);
    *config = copy;
    return SD_OK;
}

/* The folder config.json is looked for in. */
static char *folder_of(const char *path, sd_err *err) {
    if (sd_path_is_dir(path))
        return sd_strdup(path, err);
    const char *base = sd_path_base(path);
    if (base == path)
        return sd_strdup(".", err);
    size_t n = (size_t)(base - path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return sd_strndup(path, n, err);
}

static sd_status find_config(const char *dir, const sd_container *c, const sd_run *run,
                             json_t **out, sd_err *err) {
    char *path = sd_path_join(dir, "config.json", err);
    if (!path)
        return SD_ENOMEM;
    json_t *file = NULL, *own = NULL;
    sd_status st = SD_OK;
    const char *text = json_string_value(json_object_get(sd_container_meta(c), "sd_config"));
    if (sd_path_exists(path))
        st = sd_json_load(path, 16u << 20, &file, err);
    if (st == SD_OK && text)
        st = sd_json_parse(text, strlen(text), "model.safetensors: sd_config", &own, err);
    if (st == SD_OK && !file && !own)
        st = sd_fail(err, SD_EFILE,
                     "%s: no config.json beside the weights: the model's shape is not known", dir);
    json_t *use = own ? own : file;
    if (st == SD_OK && !json_is_object(use))
        st = sd_fail(err, SD_EFORMAT, "%s: not a JSON object", path);
    if (st == SD_OK && own && file && !json_equal(own, file))
        sd_run_log(run, SD_LOG_WARN,
                   "%s is not the one model.safetensors was saved with; its own copy is used",
                   path);
    if (st == SD_OK)
        *out = json_incref(use);
    json_decref(file);
    json_decref(own);
    sd_free(path);
    return st;
}

static char *title_of(const char *path, sd_err *err) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/')
        b--;
    static const char *const generic[] = {"model.safetensors", "model.safetensors.index.json",
                                          "model.gguf"};
    for (size_t k = 0; k < sizeof generic / sizeof generic[0]; k++) {
        if (n - b == strlen(generic[k]) && memcmp(path + b, generic[k], n - b) == 0 && b > 1) {
            n = b - 1; // named after its folder
            b = n;
            while (b > 0 && path[b - 1] != '/')
                b--;
            break;
        }
    }
    static const char *const ends[] = {".safetensors", ".gguf"};
    for (size_t k = 0; k < 2; k++) {
        size_t e = strlen(ends[k]);
        if (n - b > e && memcmp(path + n - e, ends[k], e) == 0)
            n -= e;
    }
    return sd_strndup(path + b, n - b, err);
}

static sd_status open_into(sd_model *m, const char *path, const sd_run *run, sd_err *err) {
    json_t *config = NULL;
    found_map fm = {0};
    char *dir = NULL;
    sd_status st;
    SD_GO(st, done, sd_container_open(path, run, &m->container, err));
    m->path = sd_strdup(path, err);
    m->name = title_of(path, err);
    dir = folder_of(path, err);
    if (!m->path || !m->name || !dir) {
        st = SD_ENOMEM;
        goto done;
    }
    bool gguf = strcmp(sd_container_format(m->container), "gguf") == 0;
    if (gguf) {
        config = json_incref(sd_container_meta(m->container));
    } else {
        SD_GO(st, done, find_config(dir, m->container, run, &config, err));
        SD_GO(st, done, plain_type(&config, err));
    }
    m->family = match_family(config, gguf);
    if (!m->family) {
        st = unknown_family(config, gguf, err);
        sd_err_context(err, "%s", path);
        goto done;
    }
    st = m->family->configure(config, m->container, &m->cfg, run, err);
    snprintf(m->cfg.family, sizeof m->cfg.family, "%s", m->family->name);
    if (st == SD_OK && !gguf)
        st = read_layers(config, &m->cfg, err);
    if (st == SD_OK)
        st = sd_config_check(&m->cfg, err);
    if (st == SD_OK && !gguf)
        st = read_steps(config, m, err);
    if (st != SD_OK) {
        sd_err_context(err, "%s: %s", path, gguf ? "metadata" : "config.json");
        goto done;
    }
    SD_GO(st, done, found_build(&fm, m, err));
    SD_GO(st, done, match_tensors(m, &fm, err));
    m->tokenizer_source = gguf ? NULL : sd_strdup(dir, err);
    if (!gguf && !m->tokenizer_source)
        st = SD_ENOMEM;
done:
    sd_free(fm.v);
    sd_free(fm.index);
    sd_free(dir);
    json_decref(config);
    return st;
}

sd_status sd_model_open(const char *path, const sd_run *run, sd_model **out, sd_err *err) {
    sd_model *m = model_alloc(err);
    if (!m)
        return SD_ENOMEM;
    sd_status st = open_into(m, path, run, err);
    if (st != SD_OK) {
        sd_model_unref(m);
        return st;
    }
    *out = m;
    return SD_OK;
}

/* ---- fresh models -------------------------------------------------------------------------- */

static sd_status zero_blob(const entry *e, blob **out, sd_err *err) {
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_new(SD_F32, e->info.ndim, e->info.shape, &t, err));
    *out = blob_new(t, err);
    if (!*out) {
        sd_tensor_free(t);
        return SD_ENOMEM;
    }
    return SD_OK;
}

static sd_status add_missing(sd_model *m, sd_err *err) {
    char name[128];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    walk w = {0};
    while (walk_next(&w, m->family, &m->cfg, name, &ndim, shape)) {
        if (find_entry(m, name) >= 0)
            continue;
        SD_TRY(add_entry(m, name, SD_F32, ndim, shape, -1, err));
        entry *e = &m->entries[m->n_entries - 1];
        SD_TRY(zero_blob(e, &e->edited, err));
    }
    return SD_OK;
}

/* softplus(0.5413) = 1: every S–D diagonal starts at 1 (METHOD §6). */
static const double b_d_start = 0.5413248546129181;

/* Initial value of a part: constant, or Gaussian of the standard deviation given. */
static bool init_of(const sd_config *cfg, sd_role r, double *constant, double *sd) {
    *constant = 0.0;
    *sd = 0.0;
    switch (r) {
    case SD_ROLE_EMBED_NORM_G:
    case SD_ROLE_NORM1_G:
    case SD_ROLE_NORM2_G:
    case SD_ROLE_FINAL_NORM_G:
    case SD_ROLE_MLM_NORM_G:
        *constant = 1.0;
        return true;
    case SD_ROLE_BD:
        *constant = b_d_start;
        return true;
    case SD_ROLE_TOK:
    case SD_ROLE_POS:
    case SD_ROLE_TYPE:
    case SD_ROLE_WQ:
    case SD_ROLE_WK:
    case SD_ROLE_WV:
    case SD_ROLE_WD:
    case SD_ROLE_W1:
    case SD_ROLE_W3:
    case SD_ROLE_MLM_W:
    case SD_ROLE_HEAD:
        *sd = 0.02;
        return true;
    case SD_ROLE_WO:
    case SD_ROLE_W2:
        *sd = 0.02 / __builtin_sqrt(2.0 * cfg->n_layer);
        return true;
    default:
        return false; // zero
    }
}

static sd_status init_part(sd_model *m, int layer, sd_role r, uint64_t seed, sd_err *err) {
    int64_t s[2];
    int nd;
    double constant, sd;
    if (!sd_role_shape(&m->cfg, layer, r, s, &nd) || !init_of(&m->cfg, r, &constant, &sd))
        return SD_OK;
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_new(SD_F32, nd, s, &t, err));
    float *p = t->data;
    size_t n = (size_t)sd_tensor_numel(t);
    // one stream a part: the values depend on the part, not on the family's layout
    sd_rng rng;
    sd_rng_stream(&rng, seed, (uint64_t)(sd_role_is_global(r) ? 0 : layer + 1), (uint64_t)r);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(sd > 0.0 ? sd * sd_rng_gauss(&rng) : constant);
    sd_status st = sd_model_set(m, layer, r, t, err);
    sd_tensor_free(t);
    return st;
}

static void config_hash(const sd_config *cfg, uint64_t seed, char out[72]) {
    sd_sha256 h;
    char hex[65];
    sd_sha256_init(&h);
    char buf[512];
    int n = snprintf(buf, sizeof buf, "%s %d %d %d %d %d %d %.17g %d %d %d %d %d %.17g %.17g %llu",
                     cfg->family, cfg->n_layer, cfg->d_model, cfg->d_ff, cfg->vocab, cfg->n_pos,
                     (int)cfg->norm, cfg->norm_eps, (int)cfg->block, (int)cfg->act, (int)cfg->pos,
                     cfg->rope.dim, cfg->tied, cfg->embed_scale, cfg->d_floor,
                     (unsigned long long)seed);
    sd_sha256_add(&h, buf, (size_t)n);
    for (int l = 0; l < cfg->n_layer; l++) {
        const sd_layer_cfg *lc = &cfg->layer[l];
        n = snprintf(buf, sizeof buf, "|%s %d %d %d %d %.17g %d %d %s", lc->kind, lc->n_head,
                     lc->n_kv_head, lc->d_qk, lc->d_v, lc->scale, lc->planes, lc->f_rank,
                     lc->options);
        sd_sha256_add(&h, buf, (size_t)n);
    }
    sd_sha256_hex(&h, hex);
    snprintf(out, 72, "new:%s", hex);
}

sd_status sd_model_new(const sd_config *cfg, uint64_t seed, sd_model **out, sd_err *err) {
    const sd_family *f = sd_family_find(cfg->family);
    if (!f) {
        sd_buf b = {0};
        sd_family_list(&b);
        sd_status bad = sd_fail(err, SD_EINVAL, "unknown model family '%.24s' (known: %s)",
                                cfg->family, b.p ? b.p : "");
        sd_buf_free(&b);
        return bad;
    }
    SD_TRY(sd_config_check(cfg, err));
    sd_model *m = model_alloc(err);
    if (!m)
        return SD_ENOMEM;
    sd_status st;
    m->family = f;
    SD_GO(st, fail, sd_config_copy(&m->cfg, cfg, err));
    m->name = sd_strdup("new", err);
    m->path = sd_strdup("", err);
    if (!m->name || !m->path) {
        st = SD_ENOMEM;
        goto fail;
    }
    config_hash(cfg, seed, m->fresh_hash);
    SD_GO(st, fail, add_missing(m, err));
    for (int l = 0; l < cfg->n_layer; l++) {
        SD_GO(st, fail, sd_check_cancel(err));
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            if (!sd_role_is_global((sd_role)r))
                SD_GO(st, fail, init_part(m, l, (sd_role)r, seed, err));
        }
    }
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        if (sd_role_is_global((sd_role)r))
            SD_GO(st, fail, init_part(m, 0, (sd_role)r, seed, err));
    }
    *out = m;
    return SD_OK;
fail:
    sd_model_unref(m);
    return st;
}

sd_status sd_model_clone(const sd_model *src, sd_model **out, sd_err *err) {
    sd_model *m = model_alloc(err);
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
        const entry *e = &src->entries[i];
        SD_GO(st, fail,
              add_entry(m, e->name, e->info.dtype, e->info.ndim, e->info.shape, e->src, err));
        entry *mine = &m->entries[m->n_entries - 1];
        mine->info.bytes = e->info.bytes;
        mine->edited = blob_ref(e->edited);
    }
    for (size_t i = 0; i < src->n_steps; i++)
        SD_GO(st, fail,
              push_step(m, src->steps[i].op, src->steps[i].version, src->steps[i].args,
                        src->steps[i].hash, err));
    *out = m;
    return SD_OK;
fail:
    sd_model_unref(m);
    return st;
}

/* ---- loading ------------------------------------------------------------------------------- */

/* Bytes moved as whole elements, whatever the plain type. */
static sd_status apply_relayout(sd_relayout fix, sd_tensor **pt, sd_err *err) {
    sd_tensor *t = *pt, *u = NULL;
    size_t es = (size_t)sd_dtype_get(t->dtype)->bytes;
    const unsigned char *src = t->data;
    if (fix.transpose && t->ndim == 2) {
        int64_t shape[2] = {t->shape[1], t->shape[0]};
        SD_TRY(sd_tensor_new(t->dtype, 2, shape, &u, err));
        unsigned char *dst = u->data;
        size_t a = (size_t)shape[1], b = (size_t)shape[0];
        for (size_t i = 0; i < a; i++) {
            for (size_t j = 0; j < b; j++)
                memcpy(dst + (j * a + i) * es, src + (i * b + j) * es, es);
        }
    } else if (fix.unpermute > 0 && t->ndim >= 1 && t->shape[0] % (2 * fix.unpermute) == 0) {
        SD_TRY(sd_tensor_new(t->dtype, t->ndim, t->shape, &u, err));
        unsigned char *dst = u->data;
        size_t rows = (size_t)t->shape[0], row = sd_tensor_nbytes(t) / (rows ? rows : 1);
        size_t d = rows / (size_t)fix.unpermute;
        for (size_t r = 0; r < rows; r++) {
            size_t h = r / d, k = r % d, to = h * d + (k % 2) * (d / 2) + k / 2;
            memcpy(dst + to * row, src + r * row, row);
        }
    }
    if (u) {
        sd_tensor_free(t);
        *pt = u;
    }
    return SD_OK;
}

/* The stored form of entry e straight from the container: its own plain type, or `as`. */
static sd_status load(const sd_model *m, const entry *e, bool raw, sd_dtype as, sd_tensor **out,
                      sd_err *err) {
    const sd_dtype_info *ti = sd_dtype_get(e->info.dtype);
    if (raw && !ti->is_quant)
        SD_TRY(sd_container_read(m->container, (size_t)e->src, out, err));
    else
        SD_TRY(sd_container_read_as(m->container, (size_t)e->src, raw ? SD_F32 : as, out, err));
    sd_status st = apply_relayout(relayout_of(m, e->name), out, err);
    if (st != SD_OK) {
        sd_tensor_free(*out);
        *out = NULL;
    }
    return st;
}

/* The value of e as F32 (F64 when stored so); a reference to give back with blob_unref. */
static sd_status fetch(sd_model *m, const entry *e, blob **out, sd_err *err) {
    if (e->edited) {
        *out = blob_ref(e->edited);
        return SD_OK;
    }
    pthread_mutex_lock(&m->lock);
    sd_status st = SD_OK;
    slot *victim = &m->slots[0];
    for (int i = 0; i < N_SLOTS; i++) {
        slot *s = &m->slots[i];
        if (s->b && s->src == e->src) {
            s->used = ++m->clock;
            *out = blob_ref(s->b);
            pthread_mutex_unlock(&m->lock);
            return SD_OK;
        }
        if (s->used < victim->used)
            victim = s;
    }
    sd_tensor *t = NULL;
    blob *b = NULL;
    st = load(m, e, false, e->info.dtype == SD_F64 ? SD_F64 : SD_F32, &t, err);
    if (st == SD_OK) {
        b = blob_new(t, err);
        if (!b) {
            sd_tensor_free(t);
            st = SD_ENOMEM;
        }
    }
    if (b) {
        blob_unref(victim->b);
        victim->b = blob_ref(b);
        victim->src = e->src;
        victim->used = ++m->clock;
        *out = b;
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* e's own F32/F64 tensor, held by no other model: ready to be written. */
static sd_status own(sd_model *m, entry *e, sd_tensor **out, sd_err *err) {
    if (e->edited && atomic_load(&e->edited->refs) == 1) {
        *out = e->edited->t;
        return SD_OK;
    }
    blob *b = NULL;
    SD_TRY(fetch(m, e, &b, err));
    sd_tensor *t = NULL;
    sd_status st = sd_tensor_new(b->t->dtype, b->t->ndim, b->t->shape, &t, err);
    if (st == SD_OK)
        memcpy(t->data, b->t->data, sd_tensor_nbytes(t));
    blob_unref(b);
    if (st != SD_OK)
        return st;
    blob *mine = blob_new(t, err);
    if (!mine) {
        sd_tensor_free(t);
        return SD_ENOMEM;
    }
    blob_unref(e->edited);
    e->edited = mine;
    e->info.dtype = t->dtype;
    e->info.bytes = sd_tensor_nbytes(t);
    *out = t;
    return SD_OK;
}

/* ---- parts --------------------------------------------------------------------------------- */

/* dst[(i*H + h)*d + j] ↔ src[offset + i*s0 + h*s1 + j*s2], in square blocks, so that neither side
 * is walked against its grain for long. */
#define MOVE(name_, A_, B_, DIR_)                                                         \
    static void name_(const sd_locator *l, A_ *canon, B_ *stored) {                       \
        enum { T = 32 };                                                                  \
        int64_t I = l->shape[0], H = l->shape[1], d = l->shape[2];                        \
        for (int64_t h = 0; h < H; h++) {                                                 \
            for (int64_t i0 = 0; i0 < I; i0 += T) {                                       \
                int64_t i1 = i0 + T < I ? i0 + T : I;                                     \
                for (int64_t j0 = 0; j0 < d; j0 += T) {                                   \
                    int64_t j1 = j0 + T < d ? j0 + T : d;                                 \
                    for (int64_t i = i0; i < i1; i++) {                                   \
                        A_ *c = canon + (i * H + h) * d;                                  \
                        B_ *s = stored + l->offset + i * l->stride[0] + h * l->stride[1]; \
                        for (int64_t j = j0; j < j1; j++)                                 \
                            DIR_;                                                         \
                    }                                                                     \
                }                                                                         \
            }                                                                             \
        }                                                                                 \
    }
MOVE(get_ff, float, const float, c[j] = s[j * l->stride[2]])
MOVE(get_fd, float, const double, c[j] = (float)s[j * l->stride[2]])
MOVE(get_df, double, const float, c[j] = (double)s[j * l->stride[2]])
MOVE(get_dd, double, const double, c[j] = s[j * l->stride[2]])
MOVE(put_ff, const float, float, s[j * l->stride[2]] = c[j])
MOVE(put_fd, const float, double, s[j * l->stride[2]] = (double)c[j])
MOVE(put_df, const double, float, s[j * l->stride[2]] = (float)c[j])
MOVE(put_dd, const double, double, s[j * l->stride[2]] = c[j])

static void gather(const sd_locator *l, sd_tensor *canon, const sd_tensor *stored) {
    if (canon->dtype == SD_F32 && stored->dtype == SD_F32)
        get_ff(l, canon->data, stored->data);
    else if (canon->dtype == SD_F32)
        get_fd(l, canon->data, stored->data);
    else if (stored->dtype == SD_F32)
        get_df(l, canon->data, stored->data);
    else
        get_dd(l, canon->data, stored->data);
}

static void scatter(const sd_locator *l, const sd_tensor *canon, sd_tensor *stored) {
    if (canon->dtype == SD_F32 && stored->dtype == SD_F32)
        put_ff(l, canon->data, stored->data);
    else if (canon->dtype == SD_F32)
        put_fd(l, canon->data, stored->data);
    else if (stored->dtype == SD_F32)
        put_df(l, canon->data, stored->data);
    else
        put_dd(l, canon->data, stored->data);
}

static sd_status no_part(const sd_model *m, int layer, sd_role r, sd_err *err) {
    if (!sd_role_is_global(r) && (layer < 0 || layer >= m->cfg.n_layer))
        return sd_fail(err, SD_EINVAL,
                       "expected layer 0..%d, got %d: %s has %d layers, numbered from 0",
                       m->cfg.n_layer - 1, layer, m->name, m->cfg.n_layer);
    if (sd_role_is_global(r))
        return sd_fail(err, SD_EINVAL, "%s has no part '%s'", m->name, sd_role_name(r));
    return sd_fail(err, SD_EINVAL, "layer %d of %s (%s attention) has no part '%s'", layer, m->name,
                   m->cfg.layer[layer].kind, sd_role_name(r));
}

/* Locator and entry of a part, checked to stay inside the stored tensor. */
static sd_status place(const sd_model *m, int layer, sd_role r, sd_locator *loc, int *e,
                       sd_err *err) {
    if ((unsigned)r >= SD_ROLE_COUNT || !locate(m->family, &m->cfg, layer, r, loc))
        return no_part(m, layer, r, err);
    *e = find_entry(m, loc->tensor);
    if (*e < 0)
        return sd_fail(err, SD_EINVAL, "%s: tensor %s of part '%s' is missing", m->name,
                       loc->tensor, sd_role_name(r));
    const sd_tensor_info *t = &m->entries[*e].info;
    int64_t n = 1, last = loc->offset;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    for (int d = 0; d < 3; d++)
        last += (loc->shape[d] - 1) * loc->stride[d];
    if (loc->offset < 0 || last >= n)
        return sd_fail(err, SD_EINVAL, "%s: part '%s' does not fit tensor %s", m->name,
                       sd_role_name(r), loc->tensor);
    return SD_OK;
}

bool sd_model_has(const sd_model *m, int layer, sd_role r) {
    sd_locator loc;
    int e;
    return place(m, layer, r, &loc, &e, NULL) == SD_OK;
}

sd_status sd_model_get(sd_model *m, int layer, sd_role r, sd_dtype as, sd_tensor **out,
                       sd_err *err) {
    sd_locator loc;
    int e, nd;
    int64_t shape[2];
    if (as != SD_F32 && as != SD_F64)
        return sd_fail(err, SD_EINVAL, "a part is read as F32 or F64");
    SD_TRY(place(m, layer, r, &loc, &e, err));
    sd_role_shape(&m->cfg, layer, r, shape, &nd);
    blob *b = NULL;
    sd_tensor *t = NULL;
    SD_TRY(fetch(m, &m->entries[e], &b, err));
    sd_status st = sd_tensor_new(as, nd, shape, &t, err);
    if (st == SD_OK)
        gather(&loc, t, b->t);
    blob_unref(b);
    if (st == SD_OK)
        *out = t;
    return st;
}

sd_status sd_model_set(sd_model *m, int layer, sd_role r, const sd_tensor *t, sd_err *err) {
    sd_locator loc;
    int e, nd;
    int64_t shape[2];
    SD_TRY(place(m, layer, r, &loc, &e, err));
    sd_role_shape(&m->cfg, layer, r, shape, &nd);
    if (t->ndim != nd || t->shape[0] != shape[0] || (nd == 2 && t->shape[1] != shape[1])) {
        char want[96], got[96];
        shape_text(nd, shape, want);
        shape_text(t->ndim, t->shape, got);
        return sd_fail(err, SD_EINVAL, "part '%s' of layer %d has shape %s, got %s",
                       sd_role_name(r), layer, want, got);
    }
    sd_tensor *plain = NULL, *dst = NULL;
    const sd_tensor *src = t;
    if ((t->dtype != SD_F32 && t->dtype != SD_F64) || !sd_tensor_is_contiguous(t)) {
        SD_TRY(sd_tensor_cast(t, t->dtype == SD_F64 ? SD_F64 : SD_F32, &plain, err));
        src = plain;
    }
    sd_status st = own(m, &m->entries[e], &dst, err);
    if (st == SD_OK) {
        scatter(&loc, src, dst);
        m->version++;
    }
    sd_tensor_free(plain);
    return st;
}

/* ---- named tensors ------------------------------------------------------------------------- */

size_t sd_model_n_tensors(const sd_model *m) {
    return m->n_entries;
}

const char *sd_model_tensor_name(const sd_model *m, size_t i) {
    return i < m->n_entries ? m->entries[i].name : NULL;
}

const sd_tensor_info *sd_model_tensor_info(const sd_model *m, size_t i) {
    return i < m->n_entries ? &m->entries[i].info : NULL;
}

static const char *nth_name(const void *ctx, size_t i) {
    return sd_model_tensor_name(ctx, i);
}

static sd_status need_entry(const sd_model *m, const char *name, entry **out, sd_err *err) {
    int i = find_entry(m, name);
    if (i < 0) {
        const char *near = sd_suggest(name, nth_name, m);
        return sd_fail(err, SD_EINVAL, "%s has no tensor '%.200s'%s%s%s", m->name, name,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    *out = &m->entries[i];
    return SD_OK;
}

static sd_status copy_tensor(const sd_tensor *t, sd_tensor **out, sd_err *err) {
    sd_tensor *c = NULL;
    SD_TRY(sd_tensor_new(t->dtype, t->ndim, t->shape, &c, err));
    memcpy(c->data, t->data, sd_tensor_nbytes(c));
    *out = c;
    return SD_OK;
}

sd_status sd_model_tensor(sd_model *m, const char *name, sd_tensor **out, sd_err *err) {
    entry *e = NULL;
    SD_TRY(need_entry(m, name, &e, err));
    if (e->edited)
        return copy_tensor(e->edited->t, out, err);
    return load(m, e, true, SD_F32, out, err);
}

sd_status sd_model_set_tensor(sd_model *m, const char *name, const sd_tensor *t, sd_err *err) {
    entry *e = NULL;
    SD_TRY(need_entry(m, name, &e, err));
    bool same = t->ndim == e->info.ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == e->info.shape[d];
    if (!same) {
        char want[96], got[96];
        shape_text(e->info.ndim, e->info.shape, want);
        shape_text(t->ndim, t->shape, got);
        return sd_fail(err, SD_EINVAL, "tensor %s has shape %s, got %s", name, want, got);
    }
    if (sd_dtype_get(t->dtype)->is_quant)
        return sd_fail(err, SD_EINVAL, "tensor %s: a block-quantised value cannot be stored", name);
    sd_dtype keep = e->info.dtype == SD_F64 ? SD_F64 : SD_F32;
    sd_tensor *mine = NULL;
    SD_TRY(sd_tensor_new(keep, t->ndim, t->shape, &mine, err));
    sd_status st = sd_tensor_copy_into(mine, t, err);
    blob *b = st == SD_OK ? blob_new(mine, err) : NULL;
    if (!b) {
        sd_tensor_free(mine);
        return st == SD_OK ? SD_ENOMEM : st;
    }
    blob_unref(e->edited);
    e->edited = b;
    e->info.dtype = keep;
    e->info.bytes = sd_tensor_nbytes(mine);
    m->version++;
    return SD_OK;
}

/* ---- surgery ------------------------------------------------------------------------------- */

/* Values of the parts that a tensor of another shape will keep. */
typedef struct kept {
    sd_role role;
    sd_tensor *t;
} kept;

sd_status sd_model_set_layer_cfg(sd_model *m, int layer, const sd_layer_cfg *lc, sd_err *err) {
    if (layer < 0 || layer >= m->cfg.n_layer)
        return no_part(m, layer, SD_ROLE_WV, err);
    sd_config next;
    SD_TRY(sd_config_copy(&next, &m->cfg, err));
    next.layer[layer] = *lc;
    sd_status st = sd_config_check(&next, err);
    kept keep[SD_ROLE_COUNT];
    size_t n_keep = 0;
    bool *drop = NULL;
    entry *added = NULL;
    size_t n_added = 0, cap_added = 0;
    if (st != SD_OK)
        goto done;

    // 1. tensors of this layer that change: old ones dropped, new ones made
    char name[128];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    drop = sd_alloc(m->n_entries, sizeof *drop, err);
    bool *stays = drop ? sd_alloc(m->n_entries, sizeof *stays, err) : NULL;
    if (!stays) {
        st = SD_ENOMEM;
        goto done;
    }
    walk w = {0};
    while (st == SD_OK && walk_next(&w, m->family, &next, name, &ndim, shape)) {
        int i = find_entry(m, name);
        bool same = i >= 0 && m->entries[i].info.ndim == ndim;
        for (int d = 0; same && d < ndim; d++)
            same = m->entries[i].info.shape[d] == shape[d];
        if (same) {
            stays[i] = true;
            continue;
        }
        st = sd_grow((void **)&added, &cap_added, n_added + 1, sizeof *added, err);
        if (st != SD_OK)
            break;
        entry *e = &added[n_added];
        memset(e, 0, sizeof *e);
        e->src = -1;
        e->name = sd_strdup(name, err);
        e->info.name = e->name;
        e->info.ndim = ndim;
        e->info.dtype = SD_F32;
        memcpy(e->info.shape, shape, (size_t)ndim * sizeof *shape);
        n_added++;
        st = e->name ? zero_blob(e, &e->edited, err) : SD_ENOMEM;
        if (st == SD_OK)
            e->info.bytes = sd_tensor_nbytes(e->edited->t);
    }
    for (size_t i = 0; i < m->n_entries; i++)
        drop[i] =
            !stays[i] && !(m->family->optional && m->family->optional(&next, m->entries[i].name));
    sd_free(stays);
    if (st != SD_OK)
        goto done;

    // 2. parts whose shape stays, in a tensor that does not
    for (int r = 0; st == SD_OK && r < SD_ROLE_COUNT; r++) {
        int64_t a[2], b[2];
        int na, nb, e;
        sd_locator loc;
        if (sd_role_is_global((sd_role)r) || !sd_role_shape(&m->cfg, layer, (sd_role)r, a, &na) ||
            !sd_role_shape(&next, layer, (sd_role)r, b, &nb) || na != nb || a[0] != b[0] ||
            a[1] != b[1] || place(m, layer, (sd_role)r, &loc, &e, NULL) != SD_OK || !drop[e])
            continue;
        keep[n_keep].role = (sd_role)r;
        keep[n_keep].t = NULL;
        st =
            sd_model_get(m, layer, (sd_role)r, m->entries[e].info.dtype == SD_F64 ? SD_F64 : SD_F32,
                         &keep[n_keep].t, err);
        if (st == SD_OK)
            n_keep++;
    }
    if (st != SD_OK)
        goto done;

    // 3. room for everything before anything changes
    st = sd_grow((void **)&m->entries, &m->cap_entries, m->n_entries + n_added, sizeof *m->entries,
                 err);
    if (st != SD_OK)
        goto done;
    size_t want = m->n_index;
    while (want < 2 * (m->n_entries + n_added + 1))
        want *= 2;
    if (want != m->n_index) {
        int32_t *p = sd_alloc(want, sizeof *p, err);
        if (!p) {
            st = SD_ENOMEM;
            goto done;
        }
        sd_free(m->index);
        m->index = p;
        m->n_index = want;
    }
    size_t n = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        if (drop[i]) {
            blob_unref(m->entries[i].edited);
            sd_free(m->entries[i].name);
        } else {
            m->entries[n++] = m->entries[i];
        }
    }
    if (n_added)
        memcpy(&m->entries[n], added, n_added * sizeof *added);
    m->n_entries = n + n_added;
    n_added = 0;
    memset(m->index, 0xff, m->n_index * sizeof *m->index);
    for (size_t i = 0; i < m->n_entries; i++)
        index_put(m, (int)i);
    sd_config old = m->cfg;
    m->cfg = next;
    next = old;
    m->version++;
    for (size_t k = 0; st == SD_OK && k < n_keep;
         k++) // cannot fail: shapes agree, tensors are ours
        st = sd_model_set(m, layer, keep[k].role, keep[k].t, err);
done:
    for (size_t k = 0; k < n_keep; k++)
        sd_tensor_free(keep[k].t);
    for (size_t i = 0; i < n_added; i++) {
        blob_unref(added[i].edited);
        sd_free(added[i].name);
    }
    sd_free(added);
    sd_free(drop);
    sd_config_free(&next);
    return st;
}

/* ---- saving -------------------------------------------------------------------------------- */

static bool same_layer(const sd_layer_cfg *a, const sd_layer_cfg *b) {
    double tol = 1e-14 * (__builtin_fabs(a->scale) + __builtin_fabs(b->scale));
    return strcmp(a->kind, b->kind) == 0 && strcmp(a->options, b->options) == 0 &&
           a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->d_qk == b->d_qk &&
           a->d_v == b->d_v && __builtin_fabs(a->scale - b->scale) <= tol &&
           a->planes == b->planes && a->f_rank == b->f_rank;
}

static sd_status set_json(json_t *o, const char *key, json_t *v, sd_err *err) {
    return json_object_set_new(o, key, v) == 0 ? SD_OK : sd_fail(err, SD_ENOMEM, "out of memory");
}

/* Layers the family's own keys cannot express go under "sd_layers" (null = as the keys say). */
static sd_status describe_layers(const sd_model *m, json_t *o, sd_err *err) {
    sd_config back = {0};
    sd_status st = m->family->configure(o, NULL, &back, NULL, err);
    if (st == SD_OK) {
        bool any = false;
        json_t *a = json_array();
        for (int l = 0; a && l < m->cfg.n_layer; l++) {
            bool same = same_layer(&back.layer[l], &m->cfg.layer[l]);
            any = any || !same;
            json_array_append_new(a, same ? json_null() : layer_json(&m->cfg.layer[l]));
        }
        if (!a || json_array_size(a) != (size_t)m->cfg.n_layer)
            st = sd_fail(err, SD_ENOMEM, "out of memory");
        if (st == SD_OK && any) {
            st = set_json(o, "sd_layers", json_incref(a), err);
            char type[40];
            if (st == SD_OK && strcmp(m->family->name, "sd") != 0) {
                snprintf(type, sizeof type, "sd:%s",
                         json_string_value(json_object_get(o, "model_type")));
                st = set_json(o, "model_type", json_string(type), err);
                json_object_del(o, "architectures");
            }
        }
        json_decref(a);
    }
    sd_config_free(&back);
    return st;
}

static sd_status describe_steps(const sd_model *m, json_t *o, sd_err *err) {
    if (m->n_steps == 0)
        return SD_OK;
    json_t *a = json_array();
    for (size_t i = 0; a && i < m->n_steps; i++) {
        const step *s = &m->steps[i];
        json_t *e = json_pack("{s:s, s:s, s:s, s:s}", "op", s->op, "version", s->version, "args",
                              s->args, "input_hash", s->hash);
        if (!e || json_array_append_new(a, e) != 0) {
            json_decref(a);
            return sd_fail(err, SD_EWRITE, "lineage step %zu cannot be written as JSON", i);
        }
    }
    return set_json(o, "sd_lineage", a, err);
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
        st = set_json(o, "bos_token_id", json_integer(m->cfg.bos), err);
    if (st == SD_OK && m->cfg.eos >= 0)
        st = set_json(o, "eos_token_id", json_integer(m->cfg.eos), err);
    if (st == SD_OK)
        st = set_json(o, "torch_dtype", json_string(hf_dtype(m)), err);
    if (st == SD_OK)
        st = describe_steps(m, o, err);
    if (st == SD_OK) {
        *out = json_dumps(o, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
        if (!*out)
            st = sd_fail(err, SD_ENOMEM, "out of memory");
    }
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
        const entry *e = &m->entries[i];
        const char *prefix =
            m->family->export_prefix ? m->family->export_prefix(&m->cfg, e->name) : "";
        snprintf(names[i], sizeof names[i], "%s%s", prefix, e->name);
        nt[i].name = names[i];
        if (e->edited) {
            nt[i].tensor = e->edited->t;
        } else {
            st = sd_check_cancel(err);
            if (st == SD_OK)
                st = load(m, e, true, SD_F32, &t[i], err);
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

static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json",   "vocab.json", "merges.txt",
    "vocab.txt",      "special_tokens_map.json",
};
enum { N_TOKENIZER_FILES = sizeof tokenizer_files / sizeof tokenizer_files[0] };

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
    for (size_t i = 0; i < N_TOKENIZER_FILES; i++) {
        char *from = folder ? sd_path_join(src, tokenizer_files[i], err) : sd_strdup(src, err);
        char *to = sd_path_join(dir, folder ? tokenizer_files[i] : sd_path_base(src), err);
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
        free(text);
    sd_free(dir);
    return st;
}

/* ---- the rest ------------------------------------------------------------------------------ */

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

static sd_status open_tokenizer(sd_model *m, sd_err *err) {
    if (m->tokenizer_source) {
        bool any = !sd_path_is_dir(m->tokenizer_source);
        for (size_t i = 0; !any && i < N_TOKENIZER_FILES; i++) {
            char *p = sd_path_join(m->tokenizer_source, tokenizer_files[i], err);
            if (!p)
                return SD_ENOMEM;
            any = sd_path_exists(p) && strstr(tokenizer_files[i], "_") == NULL;
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
    for (int i = 0; i < N_SLOTS; i++) {
        if (m->slots[i].b)
            total += sd_tensor_nbytes(m->slots[i].b->t);
    }
    pthread_mutex_unlock(&m->lock);
    return total;
}

/* Names the state the next step is applied to (see sd_step). */
static sd_status input_hash(const sd_model *m, char out[80], sd_err *err) {
    sd_sha256 h;
    char hex[65];
    if (m->n_steps > 0) {
        sd_sha256_init(&h);
        for (size_t i = 0; i < m->n_steps; i++) {
            const step *s = &m->steps[i];
            sd_sha256_add(&h, s->op, strlen(s->op) + 1);
            sd_sha256_add(&h, s->version, strlen(s->version) + 1);
            sd_sha256_add(&h, s->args, strlen(s->args) + 1);
            sd_sha256_add(&h, s->hash, strlen(s->hash) + 1);
        }
        sd_sha256_hex(&h, hex);
        snprintf(out, 80, "chain:%s", hex);
        return SD_OK;
    }
    if (!m->container) {
        snprintf(out, 80, "%s", m->fresh_hash);
        return SD_OK;
    }
    uint64_t bytes = 0;
    sd_sha256_init(&h);
    for (size_t i = 0; i < sd_container_count(m->container); i++) {
        const sd_tensor_info *t = sd_container_at(m->container, i);
        char buf[256];
        shape_text(t->ndim, t->shape, buf);
        bytes += t->bytes;
        sd_sha256_add(&h, t->name, strlen(t->name) + 1);
        sd_sha256_add(&h, buf, strlen(buf) + 1);
        int n = snprintf(buf, sizeof buf, "%s %llu", sd_dtype_get(t->dtype)->name,
                         (unsigned long long)t->bytes);
        sd_sha256_add(&h, buf, (size_t)n + 1);
    }
    if (bytes > (uint64_t)64 << 20) {
        sd_sha256_hex(&h, hex);
        snprintf(out, 80, "header:%s", hex);
        return SD_OK;
    }
    SD_TRY(sd_container_hash(m->container, NULL, hex, err));
    snprintf(out, 80, "sha256:%s", hex);
    return SD_OK;
}

sd_status sd_model_add_step(sd_model *m, const char *op, const char *version, const char *args,
                            sd_err *err) {
    char hash[80];
    SD_TRY(input_hash(m, hash, err));
    return push_step(m, op, version, args, hash, err);
}

size_t sd_model_n_steps(const sd_model *m) {
    return m->n_steps;
}

sd_step sd_model_step(const sd_model *m, size_t i) {
    sd_step none = {"", "", "", ""};
    if (i >= m->n_steps)
        return none;
    const step *s = &m->steps[i];
    sd_step out = {s->op, s->version, s->args, s->hash};
    return out;
}

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
