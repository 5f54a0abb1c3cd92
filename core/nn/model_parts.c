/* The canonical parts of a model as views of its stored tensors. */
#include "nn/model_i.h"

#include <stdio.h>
#include <string.h>

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

bool sd_model_locate(const sd_family *f, const sd_config *cfg, int layer, sd_role r,
                     sd_locator *out) {
    return f->locate(cfg, layer, r, out) || own_locate(cfg, layer, r, out);
}

bool sd_model_walk(model_walk *w, const sd_family *f, const sd_config *cfg, char name[128],
                   int *ndim, int64_t shape[2]) {
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

void sd_model_scatter(const sd_locator *l, const sd_tensor *canon, sd_tensor *stored) {
    if (canon->dtype == SD_F32 && stored->dtype == SD_F32)
        put_ff(l, canon->data, stored->data);
    else if (canon->dtype == SD_F32)
        put_fd(l, canon->data, stored->data);
    else if (stored->dtype == SD_F32)
        put_df(l, canon->data, stored->data);
    else
        put_dd(l, canon->data, stored->data);
}

sd_status sd_model_no_part(const sd_model *m, int layer, sd_role r, sd_err *err) {
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
sd_status sd_model_place(const sd_model *m, int layer, sd_role r, sd_locator *loc, int *e,
                         sd_err *err) {
    if ((unsigned)r >= SD_ROLE_COUNT || !sd_model_locate(m->family, &m->cfg, layer, r, loc))
        return sd_model_no_part(m, layer, r, err);
    *e = sd_model_find(m, loc->tensor);
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
    return sd_model_place(m, layer, r, &loc, &e, NULL) == SD_OK;
}

sd_status sd_model_get(sd_model *m, int layer, sd_role r, sd_dtype as, sd_tensor **out,
                       sd_err *err) {
    sd_locator loc;
    int e, nd;
    int64_t shape[2];
    if (as != SD_F32 && as != SD_F64)
        return sd_fail(err, SD_EINVAL, "a part is read as F32 or F64");
    SD_TRY(sd_model_place(m, layer, r, &loc, &e, err));
    sd_role_shape(&m->cfg, layer, r, shape, &nd);
    model_blob *b = NULL;
    sd_tensor *t = NULL;
    SD_TRY(sd_model_fetch(m, &m->entries[e], &b, err));
    sd_status st = sd_tensor_new(as, nd, shape, &t, err);
    if (st == SD_OK)
        gather(&loc, t, b->t);
    sd_blob_unref(b);
    if (st == SD_OK)
        *out = t;
    return st;
}

sd_status sd_model_set(sd_model *m, int layer, sd_role r, const sd_tensor *t, sd_err *err) {
    sd_locator loc;
    int e, nd;
    int64_t shape[2];
    SD_TRY(sd_model_place(m, layer, r, &loc, &e, err));
    sd_role_shape(&m->cfg, layer, r, shape, &nd);
    if (t->ndim != nd || t->shape[0] != shape[0] || (nd == 2 && t->shape[1] != shape[1])) {
        char want[96], got[96];
        sd_shape_text(nd, shape, want);
        sd_shape_text(t->ndim, t->shape, got);
        return sd_fail(err, SD_EINVAL, "part '%s' of layer %d has shape %s, got %s",
                       sd_role_name(r), layer, want, got);
    }
    sd_tensor *plain = NULL, *dst = NULL;
    const sd_tensor *src = t;
    if ((t->dtype != SD_F32 && t->dtype != SD_F64) || !sd_tensor_is_contiguous(t)) {
        SD_TRY(sd_tensor_cast(t, t->dtype == SD_F64 ? SD_F64 : SD_F32, &plain, err));
        src = plain;
    }
    sd_status st = sd_model_own(m, &m->entries[e], &dst, err);
    if (st == SD_OK) {
        sd_model_scatter(&loc, src, dst);
        m->version++;
    }
    sd_tensor_free(plain);
    return st;
}
