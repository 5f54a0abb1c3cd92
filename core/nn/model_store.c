/* Storage and sharing of a model's tensors: blobs, entries, reading on demand, copy on write. */
#include "nn/model_i.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- blobs --------------------------------------------------------------------------------- */

model_blob *sd_blob_new(sd_tensor *t, sd_err *err) {
    model_blob *b = sd_alloc(1, sizeof *b, err);
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->t = t;
    return b;
}

model_blob *sd_blob_ref(model_blob *b) {
    if (b)
        atomic_fetch_add(&b->refs, 1);
    return b;
}

void sd_blob_unref(model_blob *b) {
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) {
        sd_tensor_free(b->t);
        sd_free(b);
    }
}

/* ---- entries ------------------------------------------------------------------------------- */

int sd_model_find(const sd_model *m, const char *name) {
    return sd_map_get(&m->index, name);
}

sd_status sd_model_add_entry(sd_model *m, const char *name, sd_dtype dtype, int ndim,
                             const int64_t *shape, int src, sd_err *err) {
    SD_TRY(
        sd_grow((void **)&m->entries, &m->cap_entries, m->n_entries + 1, sizeof *m->entries, err));
    SD_TRY(sd_map_reserve(&m->index, m->n_entries + 1, err));
    char *copy = sd_strdup(name, err);
    if (!copy)
        return SD_ENOMEM;
    model_entry *e = &m->entries[m->n_entries];
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
        e->info.unsupported = sd_container_at(m->container, (size_t)src)->unsupported;
    }
    e->src = src;
    sd_map_put(&m->index, copy, (int)m->n_entries++);
    return SD_OK;
}

void sd_shape_text(int ndim, const int64_t *shape, char out[96]) {
    int n = snprintf(out, 96, "[");
    for (int i = 0; i < ndim && n < 80; i++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(out + n, 96 - (size_t)n, "]");
}

const char *sd_model_why_unused(const sd_family *f, const sd_config *cfg, const char *stored) {
    return f->unused ? f->unused(cfg, stored) : NULL;
}

size_t sd_model_n_unused(const sd_model *m) {
    return m->n_unused;
}

sd_unused sd_model_unused(const sd_model *m, size_t i) {
    if (i >= m->n_unused)
        return (sd_unused){"", "", false};
    const model_unused *u = &m->unused[i];
    return (sd_unused){sd_container_at(m->container, (size_t)u->src)->name, u->why, u->kept};
}

sd_relayout sd_model_relayout(const sd_model *m, const char *stored) {
    sd_relayout none = {0};
    return m->family->relayout && m->container ? m->family->relayout(&m->cfg, m->container, stored)
                                               : none;
}

sd_status sd_model_zero(const model_entry *e, model_blob **out, sd_err *err) {
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_new(SD_F32, e->info.ndim, e->info.shape, &t, err));
    *out = sd_blob_new(t, err);
    if (!*out) {
        sd_tensor_free(t);
        return SD_ENOMEM;
    }
    return SD_OK;
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
sd_status sd_model_load(const sd_model *m, const model_entry *e, bool raw, sd_dtype as,
                        sd_tensor **out, sd_err *err) {
    const sd_dtype_info *ti = sd_dtype_get(e->info.dtype);
    if (raw && !ti->is_quant)
        SD_TRY(sd_container_read(m->container, (size_t)e->src, out, err));
    else
        SD_TRY(sd_container_read_as(m->container, (size_t)e->src, raw ? SD_F32 : as, out, err));
    sd_status st = apply_relayout(sd_model_relayout(m, e->name), out, err);
    if (st != SD_OK) {
        sd_tensor_free(*out);
        *out = NULL;
    }
    return st;
}

/* The value of e as F32 (F64 when stored so); a reference to give back with blob_unref. */
sd_status sd_model_fetch(sd_model *m, const model_entry *e, model_blob **out, sd_err *err) {
    if (e->edited) {
        *out = sd_blob_ref(e->edited);
        return SD_OK;
    }
    pthread_mutex_lock(&m->lock);
    sd_status st = SD_OK;
    model_slot *victim = &m->slots[0];
    for (int i = 0; i < MODEL_SLOTS; i++) {
        model_slot *s = &m->slots[i];
        if (s->b && s->src == e->src) {
            s->used = ++m->clock;
            *out = sd_blob_ref(s->b);
            pthread_mutex_unlock(&m->lock);
            return SD_OK;
        }
        if (s->used < victim->used)
            victim = s;
    }
    sd_tensor *t = NULL;
    model_blob *b = NULL;
    st = sd_model_load(m, e, false, e->info.dtype == SD_F64 ? SD_F64 : SD_F32, &t, err);
    if (st == SD_OK) {
        b = sd_blob_new(t, err);
        if (!b) {
            sd_tensor_free(t);
            st = SD_ENOMEM;
        }
    }
    if (b) {
        sd_blob_unref(victim->b);
        victim->b = sd_blob_ref(b);
        victim->src = e->src;
        victim->used = ++m->clock;
        *out = b;
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* e's own F32/F64 tensor, held by no other model: ready to be written. */
sd_status sd_model_own(sd_model *m, model_entry *e, sd_tensor **out, sd_err *err) {
    if (e->edited && atomic_load(&e->edited->refs) == 1) {
        *out = e->edited->t;
        return SD_OK;
    }
    model_blob *b = NULL;
    SD_TRY(sd_model_fetch(m, e, &b, err));
    sd_tensor *t = NULL;
    sd_status st = sd_tensor_new(b->t->dtype, b->t->ndim, b->t->shape, &t, err);
    if (st == SD_OK)
        memcpy(t->data, b->t->data, sd_tensor_nbytes(t));
    sd_blob_unref(b);
    if (st != SD_OK)
        return st;
    model_blob *mine = sd_blob_new(t, err);
    if (!mine) {
        sd_tensor_free(t);
        return SD_ENOMEM;
    }
    sd_blob_unref(e->edited);
    e->edited = mine;
    e->info.dtype = t->dtype;
    e->info.unsupported = NULL;
    e->info.bytes = sd_tensor_nbytes(t);
    *out = t;
    return SD_OK;
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

static sd_status need_entry(const sd_model *m, const char *name, model_entry **out, sd_err *err) {
    int i = sd_model_find(m, name);
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
    model_entry *e = NULL;
    SD_TRY(need_entry(m, name, &e, err));
    if (e->edited)
        return copy_tensor(e->edited->t, out, err);
    return sd_model_load(m, e, true, SD_F32, out, err);
}

sd_status sd_model_set_tensor(sd_model *m, const char *name, const sd_tensor *t, sd_err *err) {
    model_entry *e = NULL;
    SD_TRY(need_entry(m, name, &e, err));
    bool same = t->ndim == e->info.ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == e->info.shape[d];
    if (!same) {
        char want[96], got[96];
        sd_shape_text(e->info.ndim, e->info.shape, want);
        sd_shape_text(t->ndim, t->shape, got);
        return sd_fail(err, SD_EINVAL, "tensor %s has shape %s, got %s", name, want, got);
    }
    if (sd_dtype_get(t->dtype)->is_quant)
        return sd_fail(err, SD_EINVAL, "tensor %s: a block-quantised value cannot be stored", name);
    sd_dtype keep = e->info.dtype == SD_F64 ? SD_F64 : SD_F32;
    sd_tensor *mine = NULL;
    SD_TRY(sd_tensor_new(keep, t->ndim, t->shape, &mine, err));
    sd_status st = sd_tensor_copy_into(mine, t, err);
    model_blob *b = st == SD_OK ? sd_blob_new(mine, err) : NULL;
    if (!b) {
        sd_tensor_free(mine);
        return st == SD_OK ? SD_ENOMEM : st;
    }
    sd_blob_unref(e->edited);
    e->edited = b;
    e->info.dtype = keep;
    e->info.unsupported = NULL;
    e->info.bytes = sd_tensor_nbytes(mine);
    m->version++;
    return SD_OK;
}
