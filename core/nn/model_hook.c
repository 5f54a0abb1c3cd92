/* model_hook.c: the hooks a model carries (nn/hook.h). */
#include "base/mem.h"
#include "nn/hook.h"
#include "nn/model_i.h"

struct model_hook {
    atomic_int refs;
    void *ctx;
    void (*destroy)(void *ctx);
};

static void hook_unref(model_hook *h) {
    if (atomic_fetch_sub(&h->refs, 1) > 1)
        return;
    if (h->destroy)
        h->destroy(h->ctx);
    sd_free(h);
}

static sd_status grow(sd_model *m, size_t n, sd_err *err) {
    sd_hook *v = sd_alloc(n + 1, sizeof *v, err);
    model_hook **r = sd_alloc(n + 1, sizeof(model_hook *), err);
    if (!v || !r) {
        sd_free(v);
        sd_free(r);
        return SD_ENOMEM;
    }
    for (size_t i = 0; i < m->n_hooks; i++) {
        v[i] = m->hooks[i];
        r[i] = m->hook_refs[i];
    }
    sd_free(m->hooks);
    sd_free(m->hook_refs);
    m->hooks = v;
    m->hook_refs = r;
    return SD_OK;
}

sd_status sd_model_add_hook(sd_model *m, const sd_hook *h, void (*destroy)(void *), sd_err *err) {
    model_hook *r = sd_alloc(1, sizeof *r, err);
    sd_status st = r ? grow(m, m->n_hooks + 1, err) : SD_ENOMEM;
    if (st != SD_OK) {
        sd_free(r);
        return st;
    }
    atomic_init(&r->refs, 1);
    r->ctx = h->ctx;
    r->destroy = destroy;
    m->hooks[m->n_hooks] = *h;
    m->hook_refs[m->n_hooks++] = r;
    return SD_OK;
}

const sd_hook *sd_model_hooks(const sd_model *m, size_t *n) {
    *n = m->n_hooks;
    return m->hooks;
}

sd_status sd_model_share_hooks(sd_model *m, const sd_model *src, sd_err *err) {
    if (src->n_hooks == 0)
        return SD_OK;
    SD_TRY(grow(m, src->n_hooks, err));
    for (size_t i = 0; i < src->n_hooks; i++) {
        atomic_fetch_add(&src->hook_refs[i]->refs, 1);
        m->hooks[i] = src->hooks[i];
        m->hook_refs[i] = src->hook_refs[i];
    }
    m->n_hooks = src->n_hooks;
    return SD_OK;
}

void sd_model_drop_hooks(sd_model *m) {
    for (size_t i = 0; i < m->n_hooks; i++)
        hook_unref(m->hook_refs[i]);
    sd_free(m->hooks);
    sd_free(m->hook_refs);
}
