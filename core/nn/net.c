#include "nn/net.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "nn/net_i.h"
#include "nn/price.h"
#include "nn/rope.h"
#include "num/blas.h"

enum { ALIGN = 16 }; /* elements */

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* ---- building ------------------------------------------------------------------------------ */

static bool decays(sd_role r, int ndim) {
    return ndim == 2 && r != SD_ROLE_COUNT;
}

static sd_status build_slices(sd_net *net, sd_err *err) {
    const sd_config *c = &net->cfg;
    size_t rows = (size_t)c->n_layer + 1, cap = rows * SD_ROLE_COUNT;
    net->index = sd_alloc(cap, sizeof *net->index, err);
    net->slice = sd_alloc(cap, sizeof *net->slice, err);
    if (!net->index || !net->slice)
        return SD_ENOMEM;
    for (size_t i = 0; i < cap; i++)
        net->index[i] = NET_NONE;
    size_t at = 0;
    for (int l = -1; l < c->n_layer; l++) {
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            int64_t shape[2] = {1, 1};
            int ndim = 0;
            if (sd_role_is_global((sd_role)r) != (l < 0) ||
                !sd_role_shape(c, l, (sd_role)r, shape, &ndim) || (r == SD_ROLE_HEAD && c->tied))
                continue;
            size_t n;
            if (!sd_mul_size((size_t)shape[0], ndim == 2 ? (size_t)shape[1] : 1, &n) ||
                !sd_add_size(at, round_up(n, ALIGN), &net->size))
                return sd_fail(err, SD_ENOMEM, "parameters of the model overflow memory");
            net->index[(size_t)(l + 1) * SD_ROLE_COUNT + (size_t)r] = (int)net->n_slice;
            sd_net_slice *s = &net->slice[net->n_slice++];
            *s = (sd_net_slice){.role = (sd_role)r,
                                .layer = l,
                                .offset = at,
                                .n = n,
                                .ndim = ndim,
                                .shape = {shape[0], ndim == 2 ? shape[1] : 1},
                                .decay = decays((sd_role)r, ndim)};
            if (l < 0)
                snprintf(s->name, sizeof s->name, "%s", sd_role_name((sd_role)r));
            else
                snprintf(s->name, sizeof s->name, "layer %d %s", l, sd_role_name((sd_role)r));
            at = net->size;
            net->n_params += n;
        }
    }
    return SD_OK;
}

static sd_status build_layer(sd_net *net, int l, sd_err *err) {
    const sd_config *c = &net->cfg;
    const sd_layer_cfg *lc = &c->layer[l];
    net_layer *nl = &net->layer[l];
    SD_TRY(sd_attn_need(lc, &nl->kind, err)); // known: the config was checked
    if (nl->kind->causal_only && !c->causal)
        return sd_fail(err, SD_EINVAL,
                       "layer %d: attention kind '%s' is causal, but the model is an encoder", l,
                       lc->kind);
    size_t col = 0;
    for (int i = 0; i < nl->kind->n_part; i++) {
        const sd_attn_part *p = &nl->kind->part[i];
        const sd_net_slice *w = net_slice(net, l, p->weight);
        if (!w || p->slot == SD_SLOT_NONE)
            continue;
        net_part *np = &nl->part[nl->n_part++];
        *np = (net_part){.slot = p->slot,
                         .weight = w,
                         .bias = p->augmented ? NULL : net_slice(net, l, p->bias),
                         .augmented = p->augmented,
                         .col = col,
                         .n = (size_t)w->shape[1]};
        nl->has[p->slot] = true;
        nl->off[p->slot] = col;
        col += np->n;
    }
    if (nl->has[SD_SLOT_Q] != nl->has[SD_SLOT_K] || !nl->has[SD_SLOT_V])
        return sd_fail(err, SD_EINVAL, "layer %d: parts of attention kind '%s' are missing", l,
                       lc->kind);
    nl->np = col;
    nl->ld = round_up(col, ALIGN);
    nl->pack = net->pack_size;
    net->pack_size += ((size_t)c->d_model + 1) * nl->ld;
    nl->attn_width = (size_t)lc->n_head * (size_t)lc->d_v;
    return SD_OK;
}

sd_status sd_net_build(const sd_config *cfg, sd_dtype real, sd_net **out, sd_err *err) {
    *out = NULL;
    if (real != SD_F32 && real != SD_F64)
        return sd_fail(err, SD_EINVAL, "a net computes in F32 or F64");
    sd_status st = SD_OK;
    sd_net *net = sd_alloc(1, sizeof *net, err);
    if (!net)
        return SD_ENOMEM;
    net->dtype = real;
    net->es = real == SD_F32 ? sizeof(float) : sizeof(double);
    SD_GO(st, fail, sd_config_copy(&net->cfg, cfg, err));
    SD_GO(st, fail, sd_config_check(&net->cfg, err));
    SD_GO(st, fail, build_slices(net, err));
    st = SD_ENOMEM;
    if (!(net->layer = sd_alloc((size_t)net->cfg.n_layer, sizeof *net->layer, err)))
        goto fail;
    for (int l = 0; l < net->cfg.n_layer; l++)
        SD_GO(st, fail, build_layer(net, l, err));
    st = SD_ENOMEM;
    if (net->cfg.pos == SD_POS_ROPE) {
        net->inv_freq = sd_alloc((size_t)net->cfg.rope.dim / 2 + 1, sizeof *net->inv_freq, err);
        if (!net->inv_freq)
            goto fail;
        sd_rope_inv_freq(&net->cfg.rope, net->inv_freq);
    }
    if (!(net->params = sd_alloc(net->size, net->es, err)))
        goto fail;
    *out = net;
    return SD_OK;
fail:
    sd_net_free(net);
    return st;
}

sd_status sd_net_new(sd_model *m, sd_dtype real, sd_net **out, sd_err *err) {
    sd_status st = sd_net_build(sd_model_config(m), real, out, err);
    if (st == SD_OK && (st = sd_net_load(*out, m, err)) != SD_OK) {
        sd_net_free(*out);
        *out = NULL;
    }
    return st;
}

void sd_net_free(sd_net *net) {
    if (!net)
        return;
    sd_config_free(&net->cfg);
    sd_free(net->slice);
    sd_free(net->index);
    sd_free(net->layer);
    sd_free(net->inv_freq);
    sd_free(net->params);
    sd_free(net);
}

sd_status sd_net_load(sd_net *net, sd_model *m, sd_err *err) {
    for (size_t i = 0; i < net->n_slice; i++) {
        const sd_net_slice *s = &net->slice[i];
        sd_tensor *t = NULL;
        SD_TRY(sd_check_cancel(err));
        SD_TRY(sd_model_get(m, s->layer, s->role, net->dtype, &t, err));
        if ((size_t)sd_tensor_numel(t) != s->n || !sd_tensor_is_contiguous(t)) {
            int64_t got = sd_tensor_numel(t);
            sd_tensor_free(t);
            return sd_fail(err, SD_EINVAL, "%s: expected %zu values, the model has %lld", s->name,
                           s->n, (long long)got);
        }
        memcpy((char *)net->params + s->offset * net->es, t->data, s->n * net->es);
        sd_tensor_free(t);
    }
    return SD_OK;
}

sd_status sd_net_store(const sd_net *net, sd_model *m, sd_err *err) {
    for (size_t i = 0; i < net->n_slice; i++) {
        const sd_net_slice *s = &net->slice[i];
        sd_tensor *t = NULL;
        SD_TRY(sd_tensor_new(net->dtype, s->ndim, s->shape, &t, err));
        memcpy(t->data, (const char *)net->params + s->offset * net->es, s->n * net->es);
        sd_status st = sd_model_set(m, s->layer, s->role, t, err);
        sd_tensor_free(t);
        if (st != SD_OK)
            return st;
    }
    return SD_OK;
}

const sd_config *sd_net_config(const sd_net *net) {
    return &net->cfg;
}
sd_dtype sd_net_dtype(const sd_net *net) {
    return net->dtype;
}
void *sd_net_params(sd_net *net) {
    return net->params;
}
size_t sd_net_size(const sd_net *net) {
    return net->size;
}
size_t sd_net_n_params(const sd_net *net) {
    return net->n_params;
}
size_t sd_net_n_slices(const sd_net *net) {
    return net->n_slice;
}
const sd_net_slice *sd_net_slice_at(const sd_net *net, size_t i) {
    return i < net->n_slice ? &net->slice[i] : NULL;
}
const sd_net_slice *sd_net_find(const sd_net *net, int layer, sd_role r) {
    if (layer < -1 || layer >= net->cfg.n_layer || (unsigned)r >= SD_ROLE_COUNT)
        return NULL;
    return net_slice(net, layer, r);
}

/* ---- planning ------------------------------------------------------------------------------ */

size_t sd_net_row_block(size_t n) {
    size_t rb = round_up((n + 3) / 4, 32);
    rb = rb < 32 ? 32 : rb > 512 ? 512 : rb;
    size_t least = round_up((n + NET_MAX_BLOCKS - 1) / NET_MAX_BLOCKS, 32);
    return rb < least ? least : rb;
}

/* With base NULL only counts. A sticky overflow. */
typedef struct carver {
    char *base;
    size_t at;
    bool overflow;
} carver;

static void *carve(carver *c, size_t n, size_t m, size_t es) {
    size_t k, next;
    if (!sd_mul_size(n, m, &k) || !sd_mul_size(k, es, &k) || k > SIZE_MAX - 64 ||
        !sd_add_size(c->at, round_up(k, 64), &next)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->at : NULL;
    c->at = next;
    return p;
}

static void carve_layer(const sd_net *net, int l, size_t bt, carver *c, net_lbuf *b) {
    const sd_config *cfg = &net->cfg;
    const net_layer *nl = &net->layer[l];
    size_t es = net->es, d = (size_t)cfg->d_model, ff = (size_t)cfg->d_ff;
    size_t h = (size_t)cfg->layer[l].n_head;
    bool norm = cfg->norm != SD_NORM_NONE, post = cfg->block == SD_BLOCK_POST;
    memset(b, 0, sizeof *b);
    if (norm && !post) {
        b->a = carve(c, bt, d, es);
        b->n2 = carve(c, bt, d, es);
    }
    if (norm) {
        b->stat1 = carve(c, bt, 2, es);
        b->stat2 = carve(c, bt, 2, es);
    }
    b->proj = carve(c, bt, nl->ld, es);
    if (nl->has[SD_SLOT_U])
        b->dval = carve(c, bt, h, es);
    b->lse = carve(c, bt, h, es);
    b->att = carve(c, bt, nl->attn_width, es);
    if (cfg->block != SD_BLOCK_PARALLEL)
        b->x2 = carve(c, bt, d, es);
    if (post) {
        b->s1 = carve(c, bt, d, es);
        b->s2 = carve(c, bt, d, es);
    }
    b->h1 = carve(c, bt, ff, es);
    if (cfg->gated_mlp)
        b->h3 = carve(c, bt, ff, es);
    b->act = carve(c, bt, ff, es);
}

static size_t max_sz(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Lays everything out; ws->x and ws->lb have L+1 and L entries. */
static void carve_all(const sd_net *net, const sd_net_plan *p, int threads, carver *c,
                      sd_net_ws *ws) {
    const sd_config *cfg = &net->cfg;
    size_t es = net->es, d = (size_t)cfg->d_model, L = (size_t)cfg->n_layer, bt;
    if (!sd_mul_size((size_t)p->batch, (size_t)p->tokens, &bt)) {
        c->overflow = true;
        return;
    }
    if (p->backward) {
        for (size_t l = 0; l <= L; l++)
            ws->x[l] = carve(c, bt, d, es);
    } else {
        void *two[2] = {carve(c, bt, d, es), carve(c, bt, d, es)};
        for (size_t l = 0; l <= L; l++)
            ws->x[l] = two[l % 2];
    }
    /* layers that keep nothing share one set, as large as the largest of them */
    size_t shared_at = c->at, shared = 0;
    for (size_t l = 0; l < L; l++) {
        if (p->backward && !(p->recompute && p->recompute[l]))
            continue;
        carver t = {c->base, shared_at, false};
        carve_layer(net, (int)l, bt, &t, &ws->lb[l]);
        c->overflow |= t.overflow;
        shared = max_sz(shared, t.at - shared_at);
    }
    c->at = shared_at + shared;
    size_t width = 0, ld = 0, scratch = 0, heads = 0, fl = 0;
    for (size_t l = 0; l < L; l++) {
        const sd_layer_cfg *lc = &cfg->layer[l];
        const net_layer *nl = &net->layer[l];
        if (p->backward && !(p->recompute && p->recompute[l]))
            carve_layer(net, (int)l, bt, c, &ws->lb[l]);
        width = max_sz(width, nl->attn_width);
        ld = max_sz(ld, nl->ld);
        heads = max_sz(heads, (size_t)lc->n_head);
        fl = max_sz(fl, (size_t)lc->n_head * (size_t)lc->f_rank);
        sd_attn_args a = {.kind = nl->kind,
                          .tokens = p->tokens,
                          .n_head = lc->n_head,
                          .n_kv = lc->n_kv_head,
                          .d_qk = lc->d_qk,
                          .d_v = lc->d_v,
                          .planes = lc->planes,
                          .f_rank = lc->f_rank,
                          .causal = cfg->causal,
                          .window = sd_attn_window(lc),
                          .options = lc->options};
        memcpy(a.has, nl->has, sizeof a.has);
        const sd_attn_ops *ops = net->dtype == SD_F32 ? nl->kind->f32 : nl->kind->f64;
        scratch = max_sz(scratch, ops->scratch(&a, p->backward));
    }
    ws->scratch_size = round_up(scratch + 16, 64);
    ws->scratch = carve(c, (size_t)threads, ws->scratch_size, es);
    ws->pack = carve(c, net->pack_size, 1, es);
    if (cfg->pos == SD_POS_ROPE)
        ws->rope = carve(c, (size_t)p->tokens, (size_t)cfg->rope.dim, es);
    if (cfg->embed_norm) {
        ws->emb = carve(c, bt, d, es);
        ws->emb_stat = carve(c, bt, 2, es);
    }
    if (cfg->final_norm) {
        ws->hf = carve(c, bt, d, es);
        ws->hf_stat = carve(c, bt, 2, es);
    }
    size_t v = (size_t)cfg->vocab;
    /* about 32 MB of f32 logits at a time, at least 64 rows */
    ws->loss_rows = round_up(max_sz(((size_t)8 << 20) / v, 64), 32);
    if (ws->loss_rows > bt)
        ws->loss_rows = bt;
    ws->hc = carve(c, bt, d, es);
    if (cfg->mlm_head) {
        ws->m1 = carve(c, bt, d, es);
        ws->m2 = carve(c, bt, d, es);
        ws->m3 = carve(c, bt, d, es);
        ws->m_stat = carve(c, bt, 2, es);
    }
    ws->logits = carve(c, ws->loss_rows, v, es);
    ws->nll = carve(c, bt, 1, sizeof(double));
    ws->loss = carve(c, bt, 1, sizeof(double));
    ws->row = carve(c, bt, 1, sizeof(size_t));
    if (!p->backward)
        return;
    ws->da = carve(c, bt, d, es);
    ws->db = carve(c, bt, d, es);
    ws->dc = carve(c, bt, d, es);
    ws->dh1 = carve(c, bt, (size_t)cfg->d_ff, es);
    if (cfg->gated_mlp)
        ws->dh3 = carve(c, bt, (size_t)cfg->d_ff, es);
    ws->datt = carve(c, bt, width, es);
    ws->dproj = carve(c, bt, ld, es);
    ws->ddiag = carve(c, (size_t)p->batch, heads, es);
    ws->dfl = carve(c, (size_t)p->batch, fl + 1, es);
    ws->npart = carve(c, NET_MAX_BLOCKS, 4 * d, es);
}

static int plan_threads(const sd_net_plan *p) {
    sd_run run = {.threads = p->threads};
    int n = sd_run_threads(&run);
    return n < 1 ? 1 : n > 64 ? 64 : n;
}

static sd_status ws_frame(const sd_net *net, sd_net_ws **out, sd_err *err) {
    sd_net_ws *ws = sd_alloc(1, sizeof *ws, err);
    *out = ws;
    if (!ws)
        return SD_ENOMEM;
    size_t L = (size_t)net->cfg.n_layer;
    ws->net = net;
    ws->x = sd_alloc(L + 1, sizeof *ws->x, err);
    ws->lb = sd_alloc(L, sizeof *ws->lb, err);
    ws->recompute = sd_alloc(L, sizeof *ws->recompute, err);
    return ws->x && ws->lb && ws->recompute ? SD_OK : SD_ENOMEM;
}

size_t sd_net_ws_bytes(const sd_net *net, const sd_net_plan *plan) {
    sd_net_ws *ws = NULL;
    size_t bytes = SIZE_MAX;
    if (plan->batch >= 1 && plan->tokens >= 1 && ws_frame(net, &ws, NULL) == SD_OK) {
        carver c = {NULL, 0, false};
        carve_all(net, plan, plan_threads(plan), &c, ws);
        if (!c.overflow)
            bytes = c.at;
    }
    sd_net_ws_free(ws);
    return bytes;
}

sd_status sd_net_ws_new(const sd_net *net, const sd_net_plan *plan, sd_net_ws **out, sd_err *err) {
    *out = NULL;
    if (plan->batch < 1 || plan->tokens < 1 || (int64_t)plan->batch * plan->tokens > INT32_MAX)
        return sd_fail(err, SD_EINVAL, "a batch of %d sequences of %d tokens", plan->batch,
                       plan->tokens);
    size_t bytes = sd_net_ws_bytes(net, plan);
    if (bytes == SIZE_MAX)
        return sd_fail(err, SD_ENOMEM, "activations of %d × %d tokens overflow memory", plan->batch,
                       plan->tokens);
    sd_net_ws *ws = NULL;
    sd_status st = ws_frame(net, &ws, err);
    if (st != SD_OK)
        goto fail;
    SD_GO(st, fail, sd_pool_new(plan_threads(plan), &ws->pool, err));
    ws->threads = plan_threads(plan);
    ws->batch_rows = plan->batch * plan->tokens;
    ws->tokens = plan->tokens;
    ws->backward = plan->backward;
    ws->bytes = bytes;
    if (plan->recompute)
        memcpy(ws->recompute, plan->recompute, (size_t)net->cfg.n_layer * sizeof(bool));
    st = SD_ENOMEM;
    if (!(ws->mem = sd_alloc_raw(bytes, 1, err)))
        goto fail;
    carver c = {ws->mem, 0, false};
    carve_all(net, plan, ws->threads, &c, ws);
    *out = ws;
    return SD_OK;
fail:
    sd_net_ws_free(ws);
    return st;
}

void sd_net_ws_free(sd_net_ws *ws) {
    if (!ws)
        return;
    sd_pool_free(ws->pool);
    sd_free(ws->mem);
    sd_free(ws->x);
    sd_free(ws->lb);
    sd_free(ws->recompute);
    sd_free(ws);
}

void sd_net_ws_freeze(sd_net_ws *ws) {
    ws->frozen = true;
}

/* ---- running ------------------------------------------------------------------------------- */

static sd_status check_batch(const sd_net *net, const sd_net_ws *ws, const sd_net_batch *b,
                             bool targets, sd_err *err) {
    const sd_config *c = &net->cfg;
    if (b->batch < 1 || b->tokens < 1)
        return sd_fail(err, SD_EINVAL, "nothing to run: %d sequences of %d tokens", b->batch,
                       b->tokens);
    if (c->pos == SD_POS_LEARNED && b->tokens > c->n_pos)
        return sd_fail(err, SD_EINVAL, "forward of %d tokens: the position table holds %d",
                       b->tokens, c->n_pos);
    if (b->tokens > ws->tokens || (int64_t)b->batch * b->tokens > ws->batch_rows)
        return sd_fail(err, SD_EINVAL, "a batch of %d × %d tokens exceeds the planned %d tokens",
                       b->batch, b->tokens, ws->batch_rows);
    if (ws->net != net)
        return sd_fail(err, SD_EINVAL, "the workspace was planned for another net");
    if (b->start_layer < 0 || b->start_layer >= c->n_layer || (!b->start && b->start_layer))
        return sd_fail(err, SD_EINVAL, "a pass that begins at layer %d of %d", b->start_layer,
                       c->n_layer);
    if (b->n_hooks && net->dtype != SD_F32)
        return sd_fail(err, SD_EINVAL, "hooks look into f32 nets only");
    size_t n = (size_t)b->batch * (size_t)b->tokens;
    for (size_t i = 0; i < n; i++) {
        if (b->ids[i] < 0 || b->ids[i] >= c->vocab)
            return sd_fail(err, SD_EINVAL, "token id %d at position %zu: the vocabulary has %d",
                           b->ids[i], i, c->vocab);
        if (targets && (b->targets[i] < -1 || b->targets[i] >= c->vocab))
            return sd_fail(err, SD_EINVAL, "target %d at position %zu: the vocabulary has %d",
                           b->targets[i], i, c->vocab);
        if (b->types && c->n_type > 0 && (b->types[i] < 0 || b->types[i] >= c->n_type))
            return sd_fail(err, SD_EINVAL, "token type %d at position %zu: the model has %d",
                           b->types[i], i, c->n_type);
    }
    return SD_OK;
}

static const net_ops *ops_of(const sd_net *net) {
    return net->dtype == SD_F32 ? &sd_net_ops_f32 : &sd_net_ops_f64;
}

sd_status sd_net_forward(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b,
                         const sd_forward_opts *opts, void *hidden, void *logits, sd_err *err) {
    SD_TRY(check_batch(net, ws, b, false, err));
    if (logits && !net->cfg.has_head)
        return sd_fail(
            err, SD_EINVAL,
            "this model has no output over the vocabulary (no language-model head): no logits");
    int old = sd_blas_threads(1);
    sd_status st = ops_of(net)->forward(net, ws, b, opts, hidden, logits, err);
    sd_blas_threads(old);
    return st;
}

sd_status sd_net_unembed(const sd_net *net, sd_net_ws *ws, size_t n, const void *x, bool norm,
                         void *logits, sd_err *err) {
    if (!net->cfg.has_head)
        return sd_fail(err, SD_EINVAL, "this model has no output head: no logits");
    if (n < 1 || n > (size_t)ws->batch_rows)
        return sd_fail(err, SD_EINVAL, "%zu rows exceed the planned %d tokens", n, ws->batch_rows);
    int old = sd_blas_threads(1);
    sd_status st = ops_of(net)->unembed(net, ws, n, x, norm, logits, err);
    sd_blas_threads(old);
    return st;
}

static sd_status run_loss(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double scale,
                          void *grad, double *nll_sum, int64_t *count, double *nll,
                          double *loss_sum, sd_err *err) {
    if (!b->targets)
        return sd_fail(err, SD_EINVAL, "a loss needs targets");
    if (!net->cfg.has_head)
        return sd_fail(
            err, SD_EINVAL,
            "this model has no output over the vocabulary (no language-model head): no loss");
    if (b->teacher && !(b->teacher_weight >= 0 && b->teacher_weight <= 1))
        return sd_fail(err, SD_EINVAL, "teacher weight %g is not in 0..1", b->teacher_weight);
    SD_TRY(check_batch(net, ws, b, true, err));
    int old = sd_blas_threads(1);
    sd_status st = ops_of(net)->loss(net, ws, b, scale, grad, nll_sum, count, nll, loss_sum, err);
    sd_blas_threads(old);
    return st;
}

sd_status sd_net_loss(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double *nll_sum,
                      int64_t *count, double *nll, sd_err *err) {
    return run_loss(net, ws, b, 0, NULL, nll_sum, count, nll, NULL, err);
}

sd_status sd_net_backward(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double scale,
                          void *grad, double *nll_sum, int64_t *count, double *loss_sum,
                          sd_err *err) {
    if (!ws->backward)
        return sd_fail(err, SD_EINVAL, "the workspace was planned without backward");
    if (b->n_hooks || b->start)
        return sd_fail(err, SD_EINVAL, "no gradient flows through hooks");
    return run_loss(net, ws, b, scale, grad, nll_sum, count, NULL, loss_sum, err);
}

double sd_net_flops(const sd_net *net, int tokens, bool training) {
    sd_price p;
    sd_price_of(&net->cfg, tokens, &p);
    return training ? 3 * p.flops : p.flops;
}

void sd_net_parallel(sd_net_ws *ws, size_t n, void (*fn)(void *ctx, size_t i, int worker),
                     void *ctx) {
    sd_pool_run(ws->pool, n, fn, ctx);
}
