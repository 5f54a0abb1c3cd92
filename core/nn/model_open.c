/* Opening: config.json or GGUF metadata to a config, the container's tensors against the family's.
 */
#include "nn/model_i.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "nn/attn.h"
#include "nn/family.h"

/* Container name → entry: built while renaming, so that what open allocates is bounded by the
 * container, not by what config.json claims. */
typedef struct found {
    char name[128];
    int src;
    bool used;
} found;

typedef struct found_list {
    found *v;
    size_t n;
    sd_map at; // name → index in v
} found_list;

static sd_status note_unused(sd_model *m, int src, const char *why, bool kept, sd_err *err) {
    SD_TRY(sd_grow((void **)&m->unused, &m->cap_unused, m->n_unused + 1, sizeof *m->unused, err));
    m->unused[m->n_unused++] = (model_unused){src, why, kept};
    return SD_OK;
}

static sd_status found_build(found_list *f, sd_model *m, sd_err *err) {
    size_t n = sd_container_count(m->container);
    f->v = sd_alloc(n, sizeof *f->v, err);
    if (!f->v)
        return SD_ENOMEM;
    SD_TRY(sd_map_reserve(&f->at, n, err));
    for (size_t i = 0; i < n; i++) {
        const sd_tensor_info *t = sd_container_at(m->container, i);
        found *e = &f->v[f->n];
        const char *why = m->family->rename(&m->cfg, m->container, t->name, e->name);
        if (why)
            SD_TRY(note_unused(m, (int)i, why, false, err));
        if (!e->name[0])
            continue;
        e->src = (int)i;
        int other = sd_map_put(&f->at, e->name, (int)f->n);
        if (other >= 0)
            return sd_fail(err, SD_EFORMAT, "%s: tensors %.120s and %.120s are both '%s'",
                           sd_container_path(m->container),
                           sd_container_at(m->container, (size_t)f->v[other].src)->name, t->name,
                           e->name);
        f->n++;
    }
    return SD_OK;
}

/* The container's tensor t as the stored tensor `name` of this shape? */
static sd_status check_fit(const sd_model *m, const sd_tensor_info *t, const char *name, int ndim,
                           const int64_t *shape, sd_err *err) {
    char want[96], got[96];
    const char *path = sd_container_path(m->container);
    sd_relayout fix = sd_model_relayout(m, name);
    bool same = t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = t->shape[fix.transpose ? ndim - 1 - d : d] == shape[d];
    if (!same) {
        bool turned = t->ndim == 2 && ndim == 2 && t->shape[fix.transpose ? 0 : 1] == shape[0] &&
                      t->shape[fix.transpose ? 1 : 0] == shape[1];
        int64_t asked[SD_MAX_DIMS];
        for (int d = 0; d < ndim; d++)
            asked[d] = shape[fix.transpose ? ndim - 1 - d : d];
        sd_shape_text(ndim, asked, want);
        sd_shape_text(t->ndim, t->shape, got);
        return sd_fail(err, SD_EFORMAT, "%s: tensor %s has shape %s, config.json asks for %s%s",
                       path, t->name, got, want,
                       turned ? " (it is transposed, unlike its neighbours)" : "");
    }
    const sd_dtype_info *ti = sd_dtype_get(t->dtype);
    if (!t->unsupported && !ti->is_float && !ti->is_quant)
        return sd_fail(err, SD_EFORMAT, "%s: tensor %s has type %s: weights must be floats", path,
                       t->name, ti->name);
    return SD_OK;
}

/* Tensors of the file in which no part lives: known to the family, of another file set, or refused.
 */
static sd_status match_rest(sd_model *m, const found_list *f, const sd_run *run, sd_err *err) {
    size_t n = 0;
    sd_unused first = {0};
    for (size_t k = 0; k < f->n; k++) {
        if (f->v[k].used)
            continue;
        const sd_tensor_info *t = sd_container_at(m->container, (size_t)f->v[k].src);
        const char *why = sd_model_why_unused(m->family, &m->cfg, f->v[k].name);
        bool kept = why != NULL;
        if (!why && t->unindexed)
            why = "not placed by the index"; // of another file set; warned about at opening
        if (!why && sd_family_idle(m->family, &m->cfg, f->v[k].name)) {
            why = "its layer's attention kind never reads it";
            sd_run_log(run, SD_LOG_WARN, "tensor %.200s is not used: %s", t->name, why);
        }
        if (!why) {
            char got[96];
            sd_shape_text(t->ndim, t->shape, got);
            return sd_fail(
                err, SD_EFORMAT,
                "%s: unexpected tensor %.200s %s: no part of a %s model with this config",
                sd_container_path(m->container), t->name, got, m->family->name);
        }
        SD_TRY(note_unused(m, f->v[k].src, why, kept, err));
        if (!kept)
            continue;
        if (n++ == 0)
            first = sd_model_unused(m, m->n_unused - 1);
        SD_TRY(sd_model_add_entry(m, f->v[k].name, t->dtype, t->ndim, t->shape, f->v[k].src, err));
    }
    if (n > 0)
        sd_run_log(run, SD_LOG_WARN, "%s: %zu tensor%s not used: %.120s (%s)%s",
                   sd_container_path(m->container), n, n > 1 ? "s are" : " is", first.name,
                   first.why, n > 1 ? ", ..." : "");
    return SD_OK;
}

static sd_status match_tensors(sd_model *m, found_list *f, const sd_run *run, sd_err *err) {
    char name[128];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    model_walk w = {0};
    while (sd_model_walk(&w, m->family, &m->cfg, name, &ndim, shape)) {
        int k = sd_map_get(&f->at, name);
        if (k < 0) {
            char want[96];
            sd_shape_text(ndim, shape, want);
            return sd_fail(err, SD_EFORMAT, "%s: tensor %s %s is missing",
                           sd_container_path(m->container), name, want);
        }
        const sd_tensor_info *t = sd_container_at(m->container, (size_t)f->v[k].src);
        SD_TRY(check_fit(m, t, name, ndim, shape, err));
        f->v[k].used = true;
        SD_TRY(sd_model_add_entry(m, name, t->dtype, ndim, shape, f->v[k].src, err));
    }
    return match_rest(m, f, run, err);
}

/* ---- config.json: sd's own keys ------------------------------------------------------------ */

/* A plugin's kind is written with the plugin: "linearize 1.0". */
json_t *sd_layer_json(const sd_layer_cfg *lc) {
    const sd_attn_kind *k = sd_attn_of(lc);
    json_t *o = json_pack("{s:s}", "kind", lc->kind);
    int bad = !o;
#define PUT(name_, lo_, hi_, opt_) \
    bad = bad || json_object_set_new(o, #name_, json_integer(lc->name_)) != 0;
    SD_LAYER_INTS(PUT)
#undef PUT
    bad = bad || json_object_set_new(o, "scale", json_real(lc->scale)) != 0 ||
          json_object_set_new(o, "options", json_string(lc->options)) != 0;
    if (!bad && k && k->plugin)
        bad = json_object_set_new(o, "plugin", json_sprintf("%s %s", k->plugin, k->version)) != 0;
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* Is the row that the layer's kind means there? Another plugin's kind of the same name is another
 * kind; another version is told. */
static sd_status need_plugin(const json_t *o, const sd_layer_cfg *lc, const sd_run *run,
                             sd_err *err) {
    const char *plugin;
    bool given;
    SD_TRY(sd_json_str(o, "plugin", &plugin, &given, err));
    if (!given || !*plugin)
        return SD_OK;
    const sd_attn_kind *k = sd_attn_of(lc);
    size_t name = strcspn(plugin, " ");
    if (!k)
        return sd_fail(err, SD_EPLUGIN,
                       "attention kind '%s' needs plugin %.100s, which is not loaded", lc->kind,
                       plugin);
    if (!k->plugin || strlen(k->plugin) != name || memcmp(k->plugin, plugin, name) != 0)
        return sd_fail(err, SD_EPLUGIN,
                       "attention kind '%s' is that of plugin %.100s; the one at hand is %s%s",
                       lc->kind, plugin, k->plugin ? "of plugin " : "built in",
                       k->plugin ? k->plugin : "");
    if (plugin[name] && strcmp(plugin + name + 1, k->version) != 0)
        sd_run_log(run, SD_LOG_WARN,
                   "attention kind '%s' was saved with plugin %.100s; version %s is loaded",
                   lc->kind, plugin, k->version);
    return SD_OK;
}

sd_status sd_layer_from_json(const json_t *o, const sd_run *run, sd_layer_cfg *lc, sd_err *err) {
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
    sd_attn_bind(lc, run);
    SD_TRY(need_plugin(o, lc, run, err));
#define GET(name_, lo_, hi_, opt_) \
    SD_TRY(sd_family_int(o, #name_, NULL, lo_, hi_, !(opt_), &lc->name_, err));
    SD_LAYER_INTS(GET)
#undef GET
    sd_attn_normalize(lc); // written before kinds said what they have no use for
    return sd_json_f64(o, "scale", &lc->scale, NULL, err);
}

static sd_status read_layers(const json_t *config, const sd_run *run, sd_config *cfg, sd_err *err) {
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
        sd_status st = sd_layer_from_json(o, run, &cfg->layer[l], err);
        if (st != SD_OK) {
            sd_err_context(err, "'sd_layers': layer %d", l);
            return st;
        }
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
        key = "GGUF architecture";
    sd_buf b = {0};
    if (gguf)
        sd_family_list_gguf(&b);
    else
        sd_family_list(&b);
    sd_status st =
        t || gguf ? sd_fail(err, SD_EFORMAT, "unknown model family: %s '%.64s' (known: %s)", key,
                            t ? t : "", b.p ? b.p : "")
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
    found_list fm = {0};
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
        st = read_layers(config, run, &m->cfg, err);
    if (st == SD_OK)
        st = sd_config_check(&m->cfg, err);
    if (st == SD_OK && !gguf)
        st = sd_model_read_steps(config, m, err);
    if (st != SD_OK) {
        sd_err_context(err, "%s: %s", path, gguf ? "metadata" : "config.json");
        goto done;
    }
    SD_GO(st, done, found_build(&fm, m, err));
    SD_GO(st, done, match_tensors(m, &fm, run, err));
    m->tokenizer_source = gguf ? NULL : sd_strdup(dir, err);
    if (!gguf && !m->tokenizer_source)
        st = SD_ENOMEM;
done:
    sd_free(fm.v);
    sd_map_free(&fm.at);
    sd_free(dir);
    json_decref(config);
    return st;
}

sd_status sd_model_open(const char *path, const sd_run *run, sd_model **out, sd_err *err) {
    sd_model *m = sd_model_alloc(err);
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
