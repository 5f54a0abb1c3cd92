/* Changes of a layer's config: tensors that go, come and stay. Everything that can fail is done on
 * a plan; the model changes at once, at the end, or not at all. */
#include "nn/model_i.h"

#include <string.h>

#include "base/mem.h"
#include "nn/attn.h"

typedef struct plan {
    sd_config next;
    bool *drop;         // (n_entries) tensors the next config has no place for
    model_entry *added; // new ones, zeros or carried values
    size_t n_added, cap_added;
} plan;

static void plan_free(plan *p) {
    for (size_t i = 0; i < p->n_added; i++) {
        sd_blob_unref(p->added[i].edited);
        sd_free(p->added[i].name);
    }
    sd_free(p->added);
    sd_free(p->drop);
    sd_config_free(&p->next);
}

static sd_status plan_add(plan *p, const char *name, int ndim, const int64_t *shape, sd_err *err) {
    SD_TRY(sd_grow((void **)&p->added, &p->cap_added, p->n_added + 1, sizeof *p->added, err));
    model_entry *e = &p->added[p->n_added];
    memset(e, 0, sizeof *e);
    e->src = -1;
    e->name = sd_strdup(name, err);
    if (!e->name)
        return SD_ENOMEM;
    p->n_added++;
    e->info.name = e->name;
    e->info.ndim = ndim;
    e->info.dtype = SD_F32;
    memcpy(e->info.shape, shape, (size_t)ndim * sizeof *shape);
    SD_TRY(sd_model_zero(e, &e->edited, err));
    e->info.bytes = sd_tensor_nbytes(e->edited->t);
    return SD_OK;
}

/* Tensors of the next config that are not there in their shape: added; those it has not: dropped.
 */
static sd_status plan_tensors(plan *p, const sd_model *m, sd_err *err) {
    char name[128];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    model_walk w = {0};
    p->drop = sd_alloc(m->n_entries, sizeof *p->drop, err);
    if (!p->drop)
        return SD_ENOMEM;
    for (size_t i = 0; i < m->n_entries; i++)
        p->drop[i] = !sd_model_why_unused(m->family, &p->next, m->entries[i].name);
    while (sd_model_walk(&w, m->family, &p->next, name, &ndim, shape)) {
        int i = sd_model_find(m, name);
        bool same = i >= 0 && m->entries[i].info.ndim == ndim;
        for (int d = 0; same && d < ndim; d++)
            same = m->entries[i].info.shape[d] == shape[d];
        if (same)
            p->drop[i] = false;
        else
            SD_TRY(plan_add(p, name, ndim, shape, err));
    }
    return SD_OK;
}

/* A part whose shape stays in a tensor that does not: its value goes into the new tensor. */
static sd_status carry(plan *p, sd_model *m, int layer, sd_role r, sd_err *err) {
    int64_t a[2], b[2];
    int na, nb, e;
    sd_locator from, to;
    if (!sd_role_shape(&m->cfg, layer, r, a, &na) || !sd_role_shape(&p->next, layer, r, b, &nb) ||
        na != nb || a[0] != b[0] || a[1] != b[1] ||
        sd_model_place(m, layer, r, &from, &e, NULL) != SD_OK || !p->drop[e])
        return SD_OK;
    if (!sd_model_locate(m->family, &p->next, layer, r, &to))
        return sd_model_no_part(m, layer, r, err);
    for (size_t i = 0; i < p->n_added; i++) {
        if (strcmp(p->added[i].name, to.tensor) != 0)
            continue;
        sd_tensor *t = NULL;
        bool wide = m->entries[e].info.dtype == SD_F64;
        SD_TRY(sd_model_get(m, layer, r, wide ? SD_F64 : SD_F32, &t, err));
        sd_model_scatter(&to, t, p->added[i].edited->t);
        sd_tensor_free(t);
        return SD_OK;
    }
    return SD_OK; // it moves into a tensor that stays
}

/* Room for the new tensors was made: nothing here can fail. */
static void commit(plan *p, sd_model *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        if (p->drop[i]) {
            sd_blob_unref(m->entries[i].edited);
            sd_free(m->entries[i].name);
        } else {
            m->entries[n++] = m->entries[i];
        }
    }
    if (p->n_added)
        memcpy(&m->entries[n], p->added, p->n_added * sizeof *p->added);
    m->n_entries = n + p->n_added;
    p->n_added = 0;
    sd_map_clear(&m->index);
    for (size_t i = 0; i < m->n_entries; i++)
        sd_map_put(&m->index, m->entries[i].name, (int)i);
    sd_config old = m->cfg;
    m->cfg = p->next;
    p->next = old;
    m->version++;
}

sd_status sd_model_set_layer_cfg(sd_model *m, int layer, const sd_layer_cfg *lc, sd_err *err) {
    if (layer < 0 || layer >= m->cfg.n_layer)
        return sd_model_no_part(m, layer, SD_ROLE_WV, err);
    plan p = {0};
    SD_TRY(sd_config_copy(&p.next, &m->cfg, err));
    p.next.layer[layer] = *lc;
    sd_attn_normalize(&p.next.layer[layer]);
    sd_status st;
    SD_GO(st, done, sd_config_check(&p.next, err));
    SD_GO(st, done, plan_tensors(&p, m, err));
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        if (!sd_role_is_global((sd_role)r))
            SD_GO(st, done, carry(&p, m, layer, (sd_role)r, err));
    }
    size_t n = m->n_entries + p.n_added;
    SD_GO(st, done, sd_grow((void **)&m->entries, &m->cap_entries, n, sizeof *m->entries, err));
    SD_GO(st, done, sd_map_reserve(&m->index, n, err));
    commit(&p, m);
done:
    plan_free(&p);
    return st;
}
