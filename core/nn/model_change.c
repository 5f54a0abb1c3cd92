/* Changes of a layer's config: tensors that go, come and stay. */
#include "nn/model_i.h"

#include <string.h>

#include "base/mem.h"
#include "nn/attn.h"

/* Values of the parts that a tensor of another shape will keep. */
typedef struct kept {
    sd_role role;
    sd_tensor *t;
} kept;

sd_status sd_model_set_layer_cfg(sd_model *m, int layer, const sd_layer_cfg *lc, sd_err *err) {
    if (layer < 0 || layer >= m->cfg.n_layer)
        return sd_model_no_part(m, layer, SD_ROLE_WV, err);
    sd_config next;
    SD_TRY(sd_config_copy(&next, &m->cfg, err));
    next.layer[layer] = *lc;
    sd_attn_normalize(&next.layer[layer]);
    sd_status st = sd_config_check(&next, err);
    kept keep[SD_ROLE_COUNT];
    size_t n_keep = 0;
    bool *drop = NULL;
    model_entry *added = NULL;
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
    model_walk w = {0};
    while (st == SD_OK && sd_model_walk(&w, m->family, &next, name, &ndim, shape)) {
        int i = sd_model_find(m, name);
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
        model_entry *e = &added[n_added];
        memset(e, 0, sizeof *e);
        e->src = -1;
        e->name = sd_strdup(name, err);
        e->info.name = e->name;
        e->info.ndim = ndim;
        e->info.dtype = SD_F32;
        memcpy(e->info.shape, shape, (size_t)ndim * sizeof *shape);
        n_added++;
        st = e->name ? sd_model_zero(e, &e->edited, err) : SD_ENOMEM;
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
            a[1] != b[1] || sd_model_place(m, layer, (sd_role)r, &loc, &e, NULL) != SD_OK ||
            !drop[e])
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
            sd_blob_unref(m->entries[i].edited);
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
        sd_model_index_put(m, (int)i);
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
        sd_blob_unref(added[i].edited);
        sd_free(added[i].name);
    }
    sd_free(added);
    sd_free(drop);
    sd_config_free(&next);
    return st;
}
