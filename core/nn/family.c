#include "nn/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "nn/attn.h"

/* The family table: a new family is its file and a row here (and its name in family.h). */
static const sd_family *const families[] = {
    &sd_family_gpt2, &sd_family_sd, &sd_family_bert, &sd_family_gpt_neox, &sd_family_llama,
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const sd_family *sd_family_at(size_t i) {
    return i < N_FAMILIES ? families[i] : NULL;
}

const sd_family *sd_family_find(const char *name) {
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    }
    return NULL;
}

void sd_family_list(sd_buf *out) {
    for (size_t i = 0; i < N_FAMILIES; i++)
        sd_buf_printf(out, "%s%s", i ? ", " : "", families[i]->name);
}

void sd_family_list_gguf(sd_buf *out) {
    const char *sep = "";
    for (size_t i = 0; i < N_FAMILIES; i++) {
        for (const char *const *a = families[i]->gguf; a && *a; a++) {
            sd_buf_printf(out, "%s%s", sep, *a);
            sep = ", ";
        }
    }
}

bool sd_family_reads_gguf(const sd_family *f, const char *arch) {
    for (const char *const *a = f->gguf; a && *a; a++) {
        if (strcmp(*a, arch) == 0)
            return true;
    }
    return false;
}

/* ---- stored tensors from rows -------------------------------------------------------------- */

static bool is_fused(sd_layout lay) {
    return lay == SD_LAY_QKV_IN_OUT || lay == SD_LAY_QKV_PER_HEAD;
}

static bool expand(const char *pattern, int layer, char out[128]) {
    const char *p = strstr(pattern, "{l}");
    int n = p ? snprintf(out, 128, "%.*s%d%s", (int)(p - pattern), pattern, layer, p + 3)
              : snprintf(out, 128, "%s", pattern);
    return n > 0 && n < 128;
}

/* Widths (columns) of the three parts of a fused tensor; 0 = that part is not there. */
static int64_t fused_widths(const sd_config *cfg, int layer, bool bias, int64_t w[3]) {
    static const sd_role roles[2][3] = {{SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_WV},
                                        {SD_ROLE_BQ, SD_ROLE_BK, SD_ROLE_BV}};
    int64_t total = 0;
    for (int p = 0; p < 3; p++) {
        int64_t shape[2];
        int ndim;
        w[p] = 0;
        if (sd_role_shape(cfg, layer, roles[bias][p], shape, &ndim))
            w[p] = shape[ndim - 1];
        total += w[p];
    }
    return total;
}

static bool row_shape(const sd_family_row *row, const sd_config *cfg, int layer, int *ndim,
                      int64_t *shape) {
    int64_t s[2];
    if (is_fused(row->layout)) {
        bool bias = row->role == SD_ROLE_BQ;
        int64_t w[3], total = fused_widths(cfg, layer, bias, w);
        if (total == 0)
            return false;
        *ndim = bias ? 1 : 2;
        if (bias) {
            shape[0] = total;
        } else {
            bool per_head = row->layout == SD_LAY_QKV_PER_HEAD;
            shape[0] = per_head ? total : cfg->d_model;
            shape[1] = per_head ? cfg->d_model : total;
        }
        return true;
    }
    if (!sd_role_shape(cfg, layer, row->role, s, ndim))
        return false;
    if (*ndim == 2 && row->layout == SD_LAY_OUT_IN) {
        shape[0] = s[1], shape[1] = s[0];
    } else {
        shape[0] = s[0];
        if (*ndim == 2)
            shape[1] = s[1];
    }
    return true;
}

/* Heads a part is divided into, and the width of one; 1 head for parts without. */
static void part_heads(const sd_config *cfg, int layer, sd_role r, int64_t cols, int64_t *heads,
                       int64_t *width) {
    int64_t h = 1;
    if (r == SD_ROLE_WQ || r == SD_ROLE_BQ)
        h = cfg->layer[layer].n_head;
    else if (r == SD_ROLE_WK || r == SD_ROLE_BK || r == SD_ROLE_WV || r == SD_ROLE_BV)
        h = cfg->layer[layer].n_kv_head;
    *heads = h;
    *width = cols / h;
}

static int fused_index(sd_role first, sd_role r) {
    bool bias = first == SD_ROLE_BQ;
    if (r == (bias ? SD_ROLE_BQ : SD_ROLE_WQ))
        return 0;
    if (r == (bias ? SD_ROLE_BK : SD_ROLE_WK))
        return 1;
    if (r == (bias ? SD_ROLE_BV : SD_ROLE_WV))
        return 2;
    return -1;
}

bool sd_family_rows_locate(const sd_family_row *rows, size_t n, const sd_config *cfg, int layer,
                           sd_role r, sd_locator *out) {
    int64_t s[2];
    int ndim;
    if (!sd_role_shape(cfg, layer, r, s, &ndim))
        return false;
    for (size_t k = 0; k < n; k++) {
        const sd_family_row *row = &rows[k];
        int part = is_fused(row->layout) ? fused_index(row->role, r) : -1;
        if (part < 0 && row->role != r)
            continue;
        if (!expand(row->pattern, layer, out->tensor))
            return false;
        int64_t in = ndim == 2 ? s[0] : 1, cols = ndim == 2 ? s[1] : s[0], heads, width;
        part_heads(cfg, layer, r, cols, &heads, &width);
        out->shape[0] = in, out->shape[1] = heads, out->shape[2] = width;
        out->offset = 0;
        int64_t step, ld; // memory distance of a column and of a row of the canonical part
        if (part >= 0) {
            int64_t w[3], total = fused_widths(cfg, layer, ndim == 1, w), before = 0;
            for (int p = 0; p < part; p++)
                before += w[p];
            const sd_layer_cfg *lc = &cfg->layer[layer];
            bool by_head = row->layout == SD_LAY_QKV_PER_HEAD;
            step = by_head && ndim == 2 ? cfg->d_model : 1;
            ld = by_head ? 1 : total;
            if (by_head && lc->n_head == lc->n_kv_head) {
                // head h holds its q, k and v rows side by side: before/H rows stand in front
                out->offset = before / heads * step;
                out->stride[1] = total / heads * step;
            } else {
                out->offset = before * step;
                out->stride[1] = width * step;
            }
        } else {
            bool flip = row->layout == SD_LAY_OUT_IN && ndim == 2;
            step = flip ? in : 1;
            ld = flip ? 1 : cols;
            out->stride[1] = width * step;
        }
        out->stride[0] = ld;
        out->stride[2] = step;
        return true;
    }
    return false;
}

bool sd_family_rows_at(const sd_family_row *rows, size_t n, const sd_config *cfg, size_t i,
                       char name[128], int *ndim, int64_t *shape) {
    for (int l = -1; l < cfg->n_layer; l++) {
        for (size_t k = 0; k < n; k++) {
            if (sd_role_is_global(rows[k].role) != (l < 0))
                continue;
            if (!row_shape(&rows[k], cfg, l, ndim, shape))
                continue;
            if (i-- == 0)
                return expand(rows[k].pattern, l, name);
        }
    }
    return false;
}

bool sd_family_idle(const sd_family *f, const sd_config *cfg, const char *name) {
    static const sd_role roles[] = {SD_ROLE_WQ, SD_ROLE_WK, SD_ROLE_BQ, SD_ROLE_BK};
    sd_config c;
    bool found = false;
    if (sd_config_copy(&c, cfg, NULL) != SD_OK)
        return false;
    for (int l = 0; l < c.n_layer && !found; l++) {
        sd_layer_cfg *lc = &c.layer[l];
        if (sd_attn_uses(lc, SD_WIDTH_QUERY))
            continue;
        *lc = (sd_layer_cfg){.n_head = lc->n_head, .n_kv_head = lc->n_kv_head, .d_v = lc->d_v};
        strcpy(lc->kind, sd_attn_at(0)->name);
        lc->d_qk = lc->d_v;
        sd_locator with, v;
        bool value = f->locate(&c, l, SD_ROLE_WV, &v);
        for (size_t i = 0; i < sizeof roles / sizeof *roles && !found; i++)
            found = f->locate(&c, l, roles[i], &with) && strcmp(with.tensor, name) == 0 &&
                    !(value && strcmp(v.tensor, name) == 0);
    }
    sd_config_free(&c);
    return found;
}

/* ---- reading config.json ------------------------------------------------------------------- */

bool sd_family_is(const json_t *config, const char *type, const char *arch) {
    const char *t = json_string_value(json_object_get(config, "model_type"));
    if (t)
        return strcmp(t, type) == 0;
    const char *a = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return a && strncmp(a, arch, strlen(arch)) == 0;
}

sd_status sd_family_int(const json_t *config, const char *key, const char *alias, int lo, int hi,
                        bool required, int *out, sd_err *err) {
    int64_t v = 0;
    bool found = false;
    SD_TRY(sd_json_i64(config, key, lo, hi, &v, &found, err));
    if (!found && alias)
        SD_TRY(sd_json_i64(config, alias, lo, hi, &v, &found, err));
    if (found)
        *out = (int)v;
    else if (required)
        return sd_fail(err, SD_EFORMAT, "'%s' is missing", key);
    return SD_OK;
}

sd_status sd_family_bool(const json_t *config, const char *key, bool dflt, bool *out, sd_err *err) {
    bool found = false, v = dflt;
    SD_TRY(sd_json_bool(config, key, &v, &found, err));
    *out = found ? v : dflt;
    return SD_OK;
}

sd_status sd_family_real(const json_t *config, const char *key, const char *alias, double dflt,
                         double *out, sd_err *err) {
    bool found = false;
    double v = dflt;
    SD_TRY(sd_json_f64(config, key, &v, &found, err));
    if (!found && alias)
        SD_TRY(sd_json_f64(config, alias, &v, &found, err));
    *out = found ? v : dflt;
    return SD_OK;
}

static const struct {
    const char *name;
    sd_act act;
} acts[] = {
    {"gelu", SD_ACT_GELU},
    {"gelu_new", SD_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", SD_ACT_GELU_TANH},
    {"gelu_fast", SD_ACT_GELU_TANH}, // the same polynomial, factored otherwise
    {"relu", SD_ACT_RELU},
    {"silu", SD_ACT_SILU},
    {"swish", SD_ACT_SILU},
};

sd_status sd_family_act(const json_t *config, const char *key, const char *dflt, sd_act *out,
                        sd_err *err) {
    const char *v = dflt;
    bool found = false;
    SD_TRY(sd_json_str(config, key, &v, &found, err));
    if (!found)
        v = dflt;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (strcmp(acts[i].name, v) == 0) {
            *out = acts[i].act;
            return SD_OK;
        }
    }
    sd_buf b = {0};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        sd_buf_printf(&b, "%s%s", i ? ", " : "", acts[i].name);
    sd_status st =
        sd_fail(err, SD_EFORMAT, "%s '%.64s' is not supported (known: %s)", key, v, b.p ? b.p : "");
    sd_buf_free(&b);
    return st;
}

const char *sd_family_act_name(sd_act a) {
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (acts[i].act == a)
            return acts[i].name;
    }
    return "gelu";
}

sd_status sd_family_special(const json_t *config, sd_config *cfg, sd_err *err) {
    static const char *const keys[2] = {"bos_token_id", "eos_token_id"};
    int *dst[2] = {&cfg->bos, &cfg->eos};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(config, keys[i]);
        if (json_is_array(v))
            v = json_array_get(v, 0);
        *dst[i] = -1;
        if (!v || json_is_null(v))
            continue;
        if (!json_is_integer(v))
            return sd_fail(err, SD_EFORMAT, "'%s' must be an integer", keys[i]);
        json_int_t id = json_integer_value(v);
        // ids outside the vocabulary (-1 in some files) mean "none"
        if (id >= 0 && id < cfg->vocab)
            *dst[i] = (int)id;
    }
    return SD_OK;
}

static sd_status rope_int(const json_t *obj, const json_t *config, const char *key, int dflt,
                          int *out, sd_err *err) {
    *out = dflt;
    const json_t *v = json_object_get(obj, key);
    return sd_family_int(v && !json_is_null(v) ? obj : config, key, NULL, 1, 1 << 28, false, out,
                         err);
}

sd_status sd_family_rope(const json_t *config, const char *theta_key, const char *partial_key,
                         double partial_default, int head_dim, sd_config *cfg, sd_err *err) {
    sd_rope_cfg *r = &cfg->rope;
    const char *where = "rope_parameters";
    const json_t *obj = json_object_get(config, where);
    if (!obj || json_is_null(obj)) {
        where = "rope_scaling";
        obj = json_object_get(config, where);
        if (json_is_null(obj))
            obj = NULL;
    }
    if (obj && !json_is_object(obj))
        return sd_fail(err, SD_EFORMAT, "'%s' must be an object", where);
    cfg->pos = SD_POS_ROPE;
    r->style = SD_ROPE_HALF;
    double partial;
    SD_TRY(sd_family_real(config, theta_key, "rope_theta", 10000.0, &r->theta, err));
    SD_TRY(sd_family_real(config, partial_key, "partial_rotary_factor", partial_default, &partial,
                          err));
    strcpy(r->scaling, "none");
    r->factor = 1.0;
    if (obj) {
        const char *type = NULL;
        bool found = false;
        SD_TRY(sd_json_str(obj, "rope_type", &type, &found, err));
        if (!found)
            SD_TRY(sd_json_str(obj, "type", &type, &found, err));
        if (!found) {
            const char *key;
            json_t *v;
            json_object_foreach((json_t *)obj, key, v) {
                if (json_is_object(v))
                    return sd_fail(err, SD_EFORMAT,
                                   "'%s' differs by layer type ('%.40s'): not supported", where,
                                   key);
            }
            type = "default";
        }
        SD_TRY(sd_family_real(obj, "rope_theta", NULL, r->theta, &r->theta, err));
        SD_TRY(sd_family_real(obj, "partial_rotary_factor", NULL, partial, &partial, err));
        if (strcmp(type, "linear") == 0) {
            strcpy(r->scaling, "linear");
            SD_TRY(sd_json_f64(obj, "factor", &r->factor, NULL, err));
        } else if (strcmp(type, "llama3") == 0) {
            strcpy(r->scaling, "llama3");
            SD_TRY(sd_json_f64(obj, "factor", &r->factor, NULL, err));
            SD_TRY(sd_json_f64(obj, "low_freq_factor", &r->low_freq, NULL, err));
            SD_TRY(sd_json_f64(obj, "high_freq_factor", &r->high_freq, NULL, err));
            SD_TRY(rope_int(obj, config, "original_max_position_embeddings", cfg->n_pos,
                            &r->original_ctx, err));
        } else if (strcmp(type, "sd_factors") == 0) {
            const json_t *f = json_object_get(obj, "factors");
            size_t n = json_array_size(f);
            if (!json_is_array(f) || n < 1 || n > SD_MAX_ROPE / 2)
                return sd_fail(err, SD_EFORMAT, "'%s': factors must be a list of 1..%d numbers",
                               where, SD_MAX_ROPE / 2);
            strcpy(r->scaling, "factors");
            r->n_factor = (int)n;
            for (size_t i = 0; i < n; i++)
                r->freq_factor[i] = (float)json_number_value(json_array_get(f, i));
        } else if (strcmp(type, "default") != 0) {
            return sd_fail(err, SD_EFORMAT,
                           "rope_type '%.64s' is not supported (known: default, linear, llama3)",
                           type);
        }
    }
    if (!(partial > 0.0 && partial <= 1.0))
        return sd_fail(err, SD_EFORMAT, "partial rotary factor must be in (0, 1], got %g", partial);
    r->dim = (int)(head_dim * partial);
    return SD_OK;
}

sd_status sd_family_rope_describe(const sd_config *cfg, int head_dim, json_t *config, sd_err *err) {
    const sd_rope_cfg *r = &cfg->rope;
    json_t *o = json_object();
    if (!o)
        return sd_fail(err, SD_ENOMEM, "out of memory");
    bool none = strcmp(r->scaling, "none") == 0;
    const char *type = none                                 ? "default"
                       : strcmp(r->scaling, "factors") == 0 ? "sd_factors"
                                                            : r->scaling;
    sd_status st = sd_json_set(o, "rope_type", json_string(type), err);
    if (st == SD_OK)
        st = sd_json_set(o, "rope_theta", json_real(r->theta), err);
    if (st == SD_OK && r->dim != head_dim)
        st = sd_json_set(o, "partial_rotary_factor", json_real((double)r->dim / head_dim), err);
    if (st == SD_OK && (strcmp(type, "linear") == 0 || strcmp(type, "llama3") == 0))
        st = sd_json_set(o, "factor", json_real(r->factor), err);
    if (st == SD_OK && strcmp(type, "llama3") == 0) {
        st = sd_json_set(o, "low_freq_factor", json_real(r->low_freq), err);
        if (st == SD_OK)
            st = sd_json_set(o, "high_freq_factor", json_real(r->high_freq), err);
        if (st == SD_OK)
            st = sd_json_set(o, "original_max_position_embeddings", json_integer(r->original_ctx),
                             err);
    }
    if (st == SD_OK && strcmp(type, "sd_factors") == 0) {
        json_t *f = json_array();
        for (int i = 0; f && i < r->n_factor; i++)
            json_array_append_new(f, json_real((double)r->freq_factor[i]));
        st = sd_json_set(o, "factors", f, err);
    }
    if (st != SD_OK) {
        json_decref(o);
        return st;
    }
    // both spellings: readers older than rope_parameters look at rope_theta and rope_scaling
    SD_TRY(sd_json_set(config, "rope_theta", json_real(r->theta), err));
    SD_TRY(sd_json_set(config, "rope_scaling", none ? json_null() : json_deep_copy(o), err));
    return sd_json_set(config, "rope_parameters", o, err);
}

bool sd_family_has(const sd_container *c, const char *name) {
    return c && sd_container_find(c, name) >= 0;
}

static int first_of(const sd_container *c, const char *const *names) {
    for (; *names; names++) {
        int i = sd_container_find(c, *names);
        if (i >= 0)
            return i;
    }
    return -1;
}

/* Of types that are not decoded the bytes are all there is to compare. */
static sd_status same_bytes(sd_container *c, int a, int b, bool *same, sd_err *err) {
    enum { STEP = 16384 };
    const sd_tensor_info *ia = sd_container_at(c, (size_t)a), *ib = sd_container_at(c, (size_t)b);
    unsigned char x[STEP], y[STEP];
    *same = ia->bytes == ib->bytes && strcmp(sd_tensor_type(ia), sd_tensor_type(ib)) == 0;
    for (uint64_t at = 0; *same && at < ia->bytes; at += STEP) {
        size_t n = ia->bytes - at < STEP ? (size_t)(ia->bytes - at) : STEP;
        SD_TRY(sd_container_read_bytes(c, (size_t)a, at, x, n, err));
        SD_TRY(sd_container_read_bytes(c, (size_t)b, at, y, n, err));
        *same = memcmp(x, y, n) == 0;
    }
    return SD_OK;
}

static sd_status same_values(sd_container *c, int a, int b, bool *same, sd_err *err) {
    const sd_tensor_info *ia = sd_container_at(c, (size_t)a), *ib = sd_container_at(c, (size_t)b);
    *same = false;
    if (ia->ndim != ib->ndim || memcmp(ia->shape, ib->shape, sizeof(int64_t) * (size_t)ia->ndim))
        return SD_OK;
    if (ia->unsupported || ib->unsupported)
        return same_bytes(c, a, b, same, err);
    sd_tensor *ta = NULL, *tb = NULL;
    bool raw = ia->dtype == ib->dtype;
    sd_status st = raw ? sd_container_read(c, (size_t)a, &ta, err)
                       : sd_container_read_as(c, (size_t)a, SD_F32, &ta, err);
    if (st == SD_OK)
        st = raw ? sd_container_read(c, (size_t)b, &tb, err)
                 : sd_container_read_as(c, (size_t)b, SD_F32, &tb, err);
    if (st == SD_OK)
        *same = memcmp(ta->data, tb->data, raw ? (size_t)ia->bytes : sd_tensor_nbytes(ta)) == 0;
    sd_tensor_free(ta);
    sd_tensor_free(tb);
    return st;
}

sd_status sd_family_tie(const json_t *config, bool dflt, sd_container *c, const char *const *heads,
                        const char *const *embeds, const sd_run *run, sd_config *cfg, sd_err *err) {
    bool tie = dflt, given = false;
    SD_TRY(sd_json_bool(config, "tie_word_embeddings", &tie, &given, err));
    if (!given)
        tie = dflt;
    cfg->tied = tie;
    cfg->has_head = true;
    if (!c)
        return SD_OK;
    int h = first_of(c, heads), e = first_of(c, embeds);
    if (h < 0) {
        if (given && !tie)
            return sd_fail(err, SD_EFORMAT,
                           "%s: tie_word_embeddings is false, but there is no tensor %s",
                           sd_container_path(c), heads[0]);
        cfg->tied = true;
        return SD_OK;
    }
    if (!tie)
        return SD_OK;
    if (e < 0)
        return sd_fail(err, SD_EFORMAT, "%s: tensor %s is missing", sd_container_path(c),
                       embeds[0]);
    bool same = false;
    SD_TRY(same_values(c, h, e, &same, err));
    if (!same) {
        cfg->tied = false;
        sd_run_log(run, SD_LOG_WARN,
                   "%s: tie_word_embeddings is true, but %s differs from %s; the file's own head "
                   "is used",
                   sd_container_path(c), sd_container_at(c, (size_t)h)->name,
                   sd_container_at(c, (size_t)e)->name);
    }
    return SD_OK;
}

bool sd_family_bare(const json_t *config, const sd_container *c, const char *head,
                    const char *short_embed) {
    const char *a = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    size_t n = a ? strlen(a) : 0;
    bool body = n > 5 && strcmp(a + n - 5, "Model") == 0;
    const char *heads[2] = {head, NULL};
    return c ? !sd_family_has(c, head) &&
                   (body || sd_family_has(c, short_embed) || sd_family_other_task(c, heads))
             : body;
}

static const struct {
    const char *prefix, *what;
    bool alone; // a model of this class has no output over the vocabulary
} tasks[] = {
    {"score.", "task head: classification", true},
    {"classifier.", "task head: classification", true},
    {"qa_outputs.", "task head: question answering", true},
    {"multiple_choice_head.", "task head: multiple choice", false}, // GPT2DoubleHeadsModel
};

const char *sd_family_task_head(const char *name) {
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        if (strncmp(name, tasks[i].prefix, strlen(tasks[i].prefix)) == 0)
            return tasks[i].what;
    }
    return NULL;
}

bool sd_family_other_task(const sd_container *c, const char *const *heads) {
    if (!c || first_of(c, heads) >= 0)
        return false;
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%sweight", tasks[i].prefix);
        if (tasks[i].alone && sd_family_has(c, name))
            return true;
    }
    return false;
}

bool sd_family_ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

bool sd_family_is_mask(const sd_container *c, const char *name, const char *tail) {
    if (!sd_family_ends_with(name, tail))
        return false;
    int i = sd_container_find(c, name);
    const sd_tensor_info *t = i < 0 ? NULL : sd_container_at(c, (size_t)i);
    return !t || t->ndim != 1 || t->shape[0] == 1; // a longer vector would be a bias
}

bool sd_family_same(const sd_container *c, const char *a, const char *b) {
    int i = sd_container_find(c, a), j = sd_container_find(c, b);
    bool same = false;
    // reading changes nothing a caller can see
    return i >= 0 && j >= 0 && same_values((sd_container *)c, i, j, &same, NULL) == SD_OK && same;
}

void sd_family_layers(sd_config *cfg, const char *kind, int n_head, int n_kv_head, int d_qk,
                      int d_v, double scale) {
    for (int l = 0; l < cfg->n_layer; l++) {
        sd_layer_cfg *lc = &cfg->layer[l];
        memset(lc, 0, sizeof *lc);
        snprintf(lc->kind, sizeof lc->kind, "%s", kind);
        lc->n_head = n_head;
        lc->n_kv_head = n_kv_head;
        lc->d_qk = d_qk;
        lc->d_v = d_v;
        lc->scale = scale;
    }
}

const char *sd_family_strip(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

void sd_family_name(char out[128], const char *name) {
    size_t n = strlen(name);
    if (n > 127) {
        strcpy(out, "?");
        return;
    }
    memcpy(out, name, n + 1);
}
