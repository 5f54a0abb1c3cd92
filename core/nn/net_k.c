/* The passes of a net: forward, loss, backward (nn/net.h).
 *
 * Work goes in row blocks (a block of tokens through norm, projections, MLP, so that a block's
 * activations stay in cache), heads (attention), vocabulary chunks (loss) and pieces of weight
 * matrices (their gradients, which sum over all tokens in one product). No piece is split by the
 * number of threads, and no two pieces write the same memory: results are the same for any number
 * of threads. */
#include "base/mem.h"
#include "nn/net_pass.h"

static real *grad_of(const pass *p, int layer, sd_role r) {
    const sd_net_slice *s = net_slice(p->net, layer, r);
    return s ? p->grad + s->offset : NULL;
}

static sd_status start(pass *p, const sd_net *net, sd_net_ws *ws, const sd_net_batch *b) {
    memset(p, 0, sizeof *p);
    p->net = net;
    p->ws = ws;
    p->b = b;
    p->c = &net->cfg;
    p->n = (size_t)b->batch * (size_t)b->tokens;
    p->d = (size_t)p->c->d_model;
    p->rb = sd_net_row_block(p->n);
    p->blocks = (p->n + p->rb - 1) / p->rb;
    return SD_OK;
}

static void set_layer(pass *p, int l) {
    sd_net_ws *ws = p->ws;
    p->l = l;
    p->nl = &p->net->layer[l];
    p->lc = &p->c->layer[l];
    p->lb = &ws->lb[l];
    p->x = ws->x[l];
    p->y = ws->x[l + 1];
    const sd_layer_cfg *lc = p->lc;
    sd_attn_args *a = &p->args;
    memset(a, 0, sizeof *a);
    a->kind = p->nl->kind;
    a->batch = p->b->batch;
    a->tokens = p->b->tokens;
    a->n_head = lc->n_head;
    a->n_kv = lc->n_kv_head;
    a->d_qk = lc->d_qk;
    a->d_v = lc->d_v;
    a->planes = lc->planes;
    a->f_rank = lc->f_rank;
    a->causal = p->c->causal;
    a->window = sd_attn_window(lc);
    a->scale = lc->scale;
    a->options = lc->options;
    a->ld = p->nl->ld;
    memcpy(a->off, p->nl->off, sizeof a->off);
    memcpy(a->has, p->nl->has, sizeof a->has);
    a->proj = p->lb->proj;
    a->dval = p->nl->has[SD_SLOT_U] ? p->lb->dval : NULL;
    a->diag = par(p, l, SD_ROLE_DIAG);
    a->fl = par(p, l, SD_ROLE_FL);
    a->o = p->lb->att;
    a->lse = p->lb->lse;
}

/* ---- forward ------------------------------------------------------------------------------- */

/* Packed weight (D, ld) of a layer's projections, then its bias row. */
static const real *packed(const pass *p) {
    return (const real *)p->ws->pack + p->nl->pack;
}

static void pack_layer(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const net_layer *nl = &p->net->layer[i];
    real *w = (real *)p->ws->pack + nl->pack, *bias = w + p->d * nl->ld;
    const real *params = p->net->params;
    for (int k = 0; k < nl->n_part; k++) {
        const net_part *t = &nl->part[k];
        const real *src = params + t->weight->offset;
        for (size_t r = 0; r < p->d; r++)
            memcpy(w + r * nl->ld + t->col, src + r * t->n, t->n * sizeof(real));
        if (t->augmented)
            memcpy(bias + t->col, src + p->d * t->n, t->n * sizeof(real));
        else if (t->bias)
            memcpy(bias + t->col, params + t->bias->offset, t->n * sizeof(real));
        else
            memset(bias + t->col, 0, t->n * sizeof(real));
    }
    for (size_t r = 0; r <= p->d; r++)
        memset(w + r * nl->ld + nl->np, 0, (nl->ld - nl->np) * sizeof(real));
}

static void rope_table(const pass *p) {
    size_t half = (size_t)p->c->rope.dim / 2;
    for (size_t t = 0; t < (size_t)p->b->tokens; t++) {
        real *cs = (real *)p->ws->rope + t * 2 * half;
        for (size_t i = 0; i < half; i++) {
            double angle = (double)t * p->net->inv_freq[i];
            cs[i] = (real)cos(angle);
            cs[half + i] = (real)sin(angle);
        }
    }
}

static void embed_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const sd_config *c = p->c;
    size_t r0, n, d = p->d, t = (size_t)p->b->tokens;
    block_of(p, i, &r0, &n);
    const real *tok = par(p, -1, SD_ROLE_TOK), *pos = par(p, -1, SD_ROLE_POS);
    const real *type = par(p, -1, SD_ROLE_TYPE);
    real *x = (real *)(c->embed_norm ? p->ws->emb : p->ws->x[0]) + r0 * d;
    real s = (real)c->embed_scale;
    for (size_t r = 0; r < n; r++) {
        const real *e = tok + (size_t)p->b->ids[r0 + r] * d;
        const real *q = pos ? pos + ((r0 + r) % t) * d : NULL;
        for (size_t j = 0; j < d; j++)
            x[r * d + j] = s * (e[j] + (q ? q[j] : 0));
        if (type) {
            const real *y = type + (p->b->types ? (size_t)p->b->types[r0 + r] * d : 0);
            SD_R(sd_k_add)(d, y, x + r * d);
        }
    }
    if (c->embed_norm)
        SD_R(sd_k_norm_fwd)
    (c->norm, n, d, x, par(p, -1, SD_ROLE_EMBED_NORM_G), par(p, -1, SD_ROLE_EMBED_NORM_B),
     (real)c->norm_eps, (real *)p->ws->x[0] + r0 * d, (real *)p->ws->emb_stat + 2 * r0);
}

static void rotate(const pass *p, size_t r0, size_t n, real sign, real *proj) {
    const sd_config *c = p->c;
    if (c->pos != SD_POS_ROPE || !p->nl->kind->rope || !p->nl->has[SD_SLOT_Q])
        return;
    const sd_layer_cfg *lc = p->lc;
    sd_slot slot[2] = {SD_SLOT_Q, SD_SLOT_K};
    int heads[2] = {lc->n_head, lc->n_kv_head};
    for (int k = 0; k < 2; k++)
        SD_R(sd_k_rope)
    (n, r0, (size_t)p->b->tokens, heads[k], lc->d_qk, c->rope.dim, c->rope.style, p->nl->ld,
     p->ws->rope, sign, proj + r0 * p->nl->ld + p->nl->off[slot[k]]);
}

static void norm1_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    if (has_norm(p) && !is_post(p))
        SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, p->x + r0 * d, par(p, p->l, SD_ROLE_NORM1_G), par(p, p->l, SD_ROLE_NORM1_B),
     (real)p->c->norm_eps, (real *)p->lb->a + r0 * d, (real *)p->lb->stat1 + 2 * r0);
}

static void project_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const net_layer *nl = p->nl;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    real *proj = p->lb->proj;
    const real *w = packed(p);
    r_gemm(false, false, n, nl->np, d, 1, attn_in(p) + r0 * d, d, w, nl->ld, 0, proj + r0 * nl->ld,
           nl->ld);
    bool bias = false;
    for (int k = 0; k < nl->n_part; k++)
        bias = bias || nl->part[k].augmented || nl->part[k].bias;
    if (bias)
        SD_R(sd_k_add_bias)(n, nl->np, nl->ld, w + d * nl->ld, proj + r0 * nl->ld);
    rotate(p, r0, n, 1, proj);
    if (nl->has[SD_SLOT_U]) {
        size_t h = (size_t)p->lc->n_head;
        SD_R(sd_k_softplus)
        (n, h, nl->ld, proj + r0 * nl->ld + nl->off[SD_SLOT_U], (real)p->c->d_floor,
         (real *)p->lb->dval + r0 * h);
    }
}

static void proj_rows(void *ctx, size_t i, int worker) {
    norm1_rows(ctx, i, worker);
    project_rows(ctx, i, worker);
}

static void head_fwd(void *ctx, size_t i, int worker) {
    const pass *p = ctx;
    int kv = p->lc->n_kv_head;
    attn_ops(p)->forward(&p->args, (int)i / kv, (int)i % kv, scratch_of(p, worker));
}

/* h1 = in·W1 + b1, act, y += act·W2 (y holds residual and bias). */
static void mlp_fwd(const pass *p, size_t r0, size_t n, const real *in, real *y) {
    const sd_config *c = p->c;
    size_t d = p->d, ff = (size_t)c->d_ff;
    real *h1 = (real *)p->lb->h1 + r0 * ff, *act = (real *)p->lb->act + r0 * ff;
    real *h3 = c->gated_mlp ? (real *)p->lb->h3 + r0 * ff : NULL;
    const real *b1 = par(p, p->l, SD_ROLE_B1);
    r_gemm(false, false, n, ff, d, 1, in, d, par(p, p->l, SD_ROLE_W1), ff, 0, h1, ff);
    if (b1)
        SD_R(sd_k_add_bias)(n, ff, ff, b1, h1);
    if (h3)
        r_gemm(false, false, n, ff, d, 1, in, d, par(p, p->l, SD_ROLE_W3), ff, 0, h3, ff);
    SD_R(sd_k_act_fwd)(c->act, n * ff, h1, h3, act);
    r_gemm(false, false, n, d, ff, 1, act, ff, par(p, p->l, SD_ROLE_W2), d, 1, y, d);
}

static void out_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const sd_config *c = p->c;
    size_t r0, n, d = p->d, w = p->nl->attn_width;
    block_of(p, i, &r0, &n);
    const real *x = p->x + r0 * d, *att = (const real *)p->lb->att + r0 * w;
    const real *wo = par(p, p->l, SD_ROLE_WO), *bo = par(p, p->l, SD_ROLE_BO);
    const real *b2 = par(p, p->l, SD_ROLE_B2);
    const real *g1 = par(p, p->l, SD_ROLE_NORM1_G), *c1 = par(p, p->l, SD_ROLE_NORM1_B);
    const real *g2 = par(p, p->l, SD_ROLE_NORM2_G), *c2 = par(p, p->l, SD_ROLE_NORM2_B);
    real eps = (real)c->norm_eps, *y = p->y + r0 * d;
    real *st1 = has_norm(p) ? (real *)p->lb->stat1 + 2 * r0 : NULL;
    real *st2 = has_norm(p) ? (real *)p->lb->stat2 + 2 * r0 : NULL;
    if (c->block == SD_BLOCK_PARALLEL) {
        SD_R(sd_k_base_bias)(n, d, x, bo, y);
        r_gemm(false, false, n, d, w, 1, att, w, wo, d, 1, y, d);
        if (has_norm(p))
            SD_R(sd_k_norm_fwd)(c->norm, n, d, x, g2, c2, eps, (real *)p->lb->n2 + r0 * d, st2);
        if (b2)
            SD_R(sd_k_add_bias)(n, d, d, b2, y);
        mlp_fwd(p, r0, n, mlp_in(p) + r0 * d, y);
        return;
    }
    real *x2 = (real *)p->lb->x2 + r0 * d;
    real *s1 = is_post(p) ? (real *)p->lb->s1 + r0 * d : x2;
    SD_R(sd_k_base_bias)(n, d, x, bo, s1);
    r_gemm(false, false, n, d, w, 1, att, w, wo, d, 1, s1, d);
    if (is_post(p))
        SD_R(sd_k_norm_fwd)(c->norm, n, d, s1, g1, c1, eps, x2, st1);
    else if (has_norm(p))
        SD_R(sd_k_norm_fwd)(c->norm, n, d, x2, g2, c2, eps, (real *)p->lb->n2 + r0 * d, st2);
    real *s2 = is_post(p) ? (real *)p->lb->s2 + r0 * d : y;
    SD_R(sd_k_base_bias)(n, d, x2, b2, s2);
    mlp_fwd(p, r0, n, mlp_in(p) + r0 * d, s2);
    if (is_post(p))
        SD_R(sd_k_norm_fwd)(c->norm, n, d, s2, g2, c2, eps, y, st2);
}

static void final_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, (const real *)p->ws->x[p->c->n_layer] + r0 * d,
     par(p, -1, SD_ROLE_FINAL_NORM_G), par(p, -1, SD_ROLE_FINAL_NORM_B), (real)p->c->norm_eps,
     (real *)p->ws->hf + r0 * d, (real *)p->ws->hf_stat + 2 * r0);
}

/* One f32 copy of a run of columns for the capture callback. */
static sd_status to_f32(const pass *p, const real *x, size_t n, size_t ld, float **out,
                        sd_err *err) {
    *out = sd_alloc_raw(p->n * n, sizeof(float), err);
    if (!*out)
        return SD_ENOMEM;
    SD_R(sd_k_to_f32)(p->n, n, ld, x, *out);
    return SD_OK;
}

/* δ of the scores' diagonal: −d of S–D, or the head's own number. */
static sd_status capture_delta(const pass *p, float **d, float **delta, sd_err *err) {
    size_t h = (size_t)p->lc->n_head, n = p->n * h;
    const real *diag = p->args.diag;
    bool minus = p->nl->kind->diagonal == SD_SCORE_DIAG_REPLACE;
    if (!diag && !p->nl->has[SD_SLOT_U])
        return SD_OK;
    if (!(*delta = sd_alloc_raw(n, sizeof **delta, err)))
        return SD_ENOMEM;
    if (p->nl->has[SD_SLOT_U]) {
        SD_TRY(to_f32(p, p->lb->dval, h, h, d, err));
        for (size_t i = 0; i < n; i++)
            (*delta)[i] = -(*d)[i];
        return SD_OK;
    }
    if (minus && !(*d = sd_alloc_raw(n, sizeof **d, err)))
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        (*delta)[i] = (float)diag[i % h];
        if (minus)
            (*d)[i] = -(*delta)[i];
    }
    return SD_OK;
}

static sd_status capture_weights(const pass *p, double **fl, sd_err *err) {
    const real *w = p->args.fl;
    size_t n = (size_t)p->lc->n_head * (size_t)p->lc->f_rank;
    if (!w)
        return SD_OK;
    if (!(*fl = sd_alloc_raw(n, sizeof **fl, err)))
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        (*fl)[i] = (double)w[i];
    return SD_OK;
}

static sd_status capture(const pass *p, const sd_forward_opts *opts, sd_err *err) {
    const sd_layer_cfg *lc = p->lc;
    const net_layer *nl = p->nl;
    float *x = NULL, *slot[SD_SLOT_COUNT] = {NULL}, *d = NULL, *delta = NULL, *o = NULL;
    double *fl = NULL;
    sd_status st = SD_OK;
    sd_capture c = {.layer = p->l,
                    .batch = p->b->batch,
                    .tokens = p->b->tokens,
                    .n_head = lc->n_head,
                    .n_kv_head = lc->n_kv_head,
                    .d_qk = lc->d_qk,
                    .d_v = lc->d_v,
                    .d_model = p->c->d_model,
                    .scale = lc->scale,
                    .kind = lc->kind,
                    .cfg = lc,
                    .slots = {.rows = p->n, .d_model = p->d}};
    SD_GO(st, out, to_f32(p, attn_in(p), p->d, p->d, &x, err));
    for (int k = 0; k < nl->n_part; k++) {
        const net_part *t = &nl->part[k];
        SD_GO(st, out,
              to_f32(p, (const real *)p->lb->proj + t->col, t->n, nl->ld, &slot[t->slot], err));
        c.slots.at[t->slot].f32 = slot[t->slot];
        c.slots.at[t->slot].ld = t->n;
    }
    SD_GO(st, out, capture_delta(p, &d, &delta, err));
    SD_GO(st, out, capture_weights(p, &fl, err));
    if (opts->capture_output) {
        size_t od = (size_t)lc->n_head * (size_t)lc->d_v;
        SD_GO(st, out, to_f32(p, p->args.o, od, od, &o, err));
        c.o = o;
    }
    c.x = x;
    c.q = slot[SD_SLOT_Q];
    c.k = slot[SD_SLOT_K];
    c.v = slot[SD_SLOT_V];
    c.d = d;
    c.delta = delta;
    c.slots.fl = fl;
    st = opts->capture(opts->capture_ctx, &c, err);
out:
    sd_free(x);
    for (int s = 0; s < SD_SLOT_COUNT; s++)
        sd_free(slot[s]);
    sd_free(d);
    sd_free(delta);
    sd_free(fl);
    sd_free(o);
    return st;
}

static sd_status layer_forward(pass *p, int l, const sd_forward_opts *opts, bool *stop,
                               sd_err *err) {
    set_layer(p, l);
    if (SD_R(sd_net_hooked)(p, l)) {
        p->opts = opts;
        p->stop = false;
        sd_status st = SD_R(sd_net_hooked_layer)(p, err);
        *stop = p->stop;
        return st;
    }
    SD_TRY(run(p, p->blocks, proj_rows, err));
    bool seen = opts && opts->capture,
         last = seen && opts->stop_after_capture && l == p->c->n_layer - 1;
    if (seen && !opts->capture_output)
        SD_TRY(capture(p, opts, err));
    *stop = last;
    if (last && !opts->capture_output)
        return SD_OK;
    SD_TRY(run(p, (size_t)p->b->batch * (size_t)p->lc->n_kv_head, head_fwd, err));
    if (seen && opts->capture_output)
        SD_TRY(capture(p, opts, err));
    if (last)
        return SD_OK;
    return run(p, p->blocks, out_rows, err);
}

const pass_stages SD_R(sd_pass_stages) = {norm1_rows, project_rows, head_fwd, out_rows, capture};

/* Everything up to the (normed) hidden state. */
static sd_status trunk(pass *p, const sd_forward_opts *opts, bool *stop, sd_err *err) {
    sd_net_ws *ws = p->ws;
    if (!ws->packed)
        SD_TRY(run(p, (size_t)p->c->n_layer, pack_layer, err));
    ws->packed = ws->frozen;
    if (p->c->pos == SD_POS_ROPE)
        rope_table(p);
    if (p->b->start)
        memcpy(ws->x[p->b->start_layer], p->b->start, p->n * p->d * sizeof(real));
    else
        SD_TRY(run(p, p->blocks, embed_rows, err));
    int end = opts && opts->end_layer ? opts->end_layer : p->c->n_layer;
    for (int l = p->b->start_layer; l < end && !*stop; l++)
        SD_TRY(layer_forward(p, l, opts, stop, err));
    *stop = *stop || end < p->c->n_layer;
    if (*stop)
        return SD_OK;
    if (p->c->final_norm)
        SD_TRY(run(p, p->blocks, final_rows, err));
    return SD_R(sd_net_hooked_final)(p, p->c->final_norm ? ws->hf : ws->x[p->c->n_layer], err);
}

static const real *hidden_of(const pass *p) {
    return p->c->final_norm ? p->ws->hf : p->ws->x[p->c->n_layer];
}

/* ---- output head and loss ------------------------------------------------------------------ */

/* The masked-LM head before the decoder, on p->scored rows of p->hl (all in ws->hc or hidden). */
static void mlm_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0 = i * p->rb, n = p->scored - r0 < p->rb ? p->scored - r0 : p->rb, d = p->d;
    real *m1 = (real *)p->ws->m1 + r0 * d, *m2 = (real *)p->ws->m2 + r0 * d;
    SD_R(sd_k_base_bias)(n, d, NULL, par(p, -1, SD_ROLE_MLM_B), m1);
    r_gemm(false, false, n, d, d, 1, p->hl + r0 * d, d, par(p, -1, SD_ROLE_MLM_W), d, 1, m1, d);
    SD_R(sd_k_act_fwd)(p->c->act, n * d, m1, NULL, m2);
    SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, m2, par(p, -1, SD_ROLE_MLM_NORM_G), par(p, -1, SD_ROLE_MLM_NORM_B),
     (real)p->c->norm_eps, (real *)p->ws->m3 + r0 * d, (real *)p->ws->m_stat + 2 * r0);
}

static size_t scored_blocks(const pass *p) {
    return (p->scored + p->rb - 1) / p->rb;
}

static sd_status mlm_forward(pass *p, sd_err *err) {
    if (!p->c->mlm_head)
        return SD_OK;
    SD_TRY(run(p, scored_blocks(p), mlm_rows, err));
    p->hl = p->ws->m3;
    return SD_OK;
}

enum { VCHUNK = 1024, RCHUNK = 512, SCHUNK = 16 };

/* logits (nr, nv) = h (nr, D) · decoder columns v0.. + bias */
static void decode_cols(const pass *p, const real *h, size_t nr, size_t v0, size_t nv, real *out) {
    size_t d = p->d, v = (size_t)p->c->vocab;
    if (p->c->tied)
        r_gemm(false, true, nr, nv, d, 1, h, d, par(p, -1, SD_ROLE_TOK) + v0 * d, d, 0, out + v0,
               v);
    else
        r_gemm(false, false, nr, nv, d, 1, h, d, par(p, -1, SD_ROLE_HEAD) + v0, v, 0, out + v0, v);
    const real *bias = par(p, -1, SD_ROLE_HEAD_B);
    if (bias)
        SD_R(sd_k_add_bias)(nr, nv, v, bias + v0, out + v0);
}

static void logits_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0 = i * p->rb, n = p->scored - r0 < p->rb ? p->scored - r0 : p->rb;
    size_t v = (size_t)p->c->vocab;
    decode_cols(p, p->hl + r0 * p->d, n, 0, v, p->logits_out + r0 * v);
}

static sd_status forward(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b,
                         const sd_forward_opts *opts, void *hidden, void *logits, sd_err *err) {
    pass p;
    bool stop = false;
    SD_TRY(start(&p, net, ws, b));
    SD_TRY(trunk(&p, opts, &stop, err));
    if (stop)
        return SD_OK;
    if (hidden)
        memcpy(hidden, hidden_of(&p), p.n * p.d * sizeof(real));
    if (!logits)
        return SD_OK;
    p.scored = p.n;
    p.hl = hidden_of(&p);
    p.logits_out = logits;
    if (opts && opts->last_logits) {
        size_t t = (size_t)b->tokens;
        p.scored = (size_t)b->batch;
        for (size_t i = 0; i < p.scored; i++)
            memcpy((real *)ws->hc + i * p.d, p.hl + ((i + 1) * t - 1) * p.d, p.d * sizeof(real));
        p.hl = ws->hc;
    }
    SD_TRY(mlm_forward(&p, err));
    return run(&p, scored_blocks(&p), logits_rows, err);
}

/* Rows of a residual stream through the final norm (if asked for and there) and the output head. */
static sd_status unembed(const sd_net *net, sd_net_ws *ws, size_t n, const void *x, bool norm,
                         void *logits, sd_err *err) {
    pass p;
    const sd_net_batch b = {.batch = 1, .tokens = (int)n};
    SD_TRY(start(&p, net, ws, &b));
    norm = norm && p.c->final_norm;
    memcpy(norm ? ws->x[p.c->n_layer] : ws->hc, x, n * p.d * sizeof(real));
    if (norm)
        SD_TRY(run(&p, p.blocks, final_rows, err));
    p.scored = n;
    p.hl = norm ? ws->hf : ws->hc;
    p.logits_out = logits;
    SD_TRY(mlm_forward(&p, err));
    return run(&p, scored_blocks(&p), logits_rows, err);
}

static size_t vchunks(const pass *p) {
    return ((size_t)p->c->vocab + VCHUNK - 1) / VCHUNK;
}

static void loss_logits(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t v = (size_t)p->c->vocab, v0 = i * VCHUNK, nv = v - v0 < VCHUNK ? v - v0 : VCHUNK;
    decode_cols(p, p->hl + p->r0 * p->d, p->nr, v0, nv, p->ws->logits);
}

static void loss_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t v = (size_t)p->c->vocab, end = (i + 1) * SCHUNK < p->nr ? (i + 1) * SCHUNK : p->nr;
    for (size_t r = i * SCHUNK; r < end; r++) {
        size_t at = p->ws->row[p->r0 + r];
        real *row = (real *)p->ws->logits + r * v;
        double nll, loss;
        if (p->b->teacher)
            loss = SD_R(sd_k_xent_teacher)(v, row, p->b->teacher + at * v, p->b->targets[at],
                                           p->b->teacher_weight, p->grad != NULL, p->scale, &nll);
        else
            loss = nll = SD_R(sd_k_xent)(v, row, p->b->targets[at], p->grad != NULL, p->scale);
        p->ws->nll[p->r0 + r] = nll;
        p->ws->loss[p->r0 + r] = loss;
    }
}

/* First the rows' dh, then the vocabulary chunks of the decoder's gradient. */
static void loss_back(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t d = p->d, v = (size_t)p->c->vocab, rchunks = (p->nr + RCHUNK - 1) / RCHUNK;
    const real *dl = p->ws->logits, *h = p->hl + p->r0 * d;
    bool tied = p->c->tied;
    if (i < rchunks) {
        size_t r = i * RCHUNK, n = p->nr - r < RCHUNK ? p->nr - r : RCHUNK;
        const real *w = par(p, -1, tied ? SD_ROLE_TOK : SD_ROLE_HEAD);
        r_gemm(false, !tied, n, d, v, 1, dl + r * v, v, w, tied ? d : v, 0,
               p->dhl + (p->r0 + r) * d, d);
        return;
    }
    size_t v0 = (i - rchunks) * VCHUNK, nv = v - v0 < VCHUNK ? v - v0 : VCHUNK;
    if (tied)
        r_gemm(true, false, nv, d, p->nr, 1, dl + v0, v, h, d, 1,
               grad_of(p, -1, SD_ROLE_TOK) + v0 * d, d);
    else
        r_gemm(true, false, d, nv, p->nr, 1, h, d, dl + v0, v, 1, grad_of(p, -1, SD_ROLE_HEAD) + v0,
               v);
    real *gb = grad_of(p, -1, SD_ROLE_HEAD_B);
    if (gb)
        SD_R(sd_k_colsum)(p->nr, nv, v, dl + v0, gb + v0);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* A piece of a weight gradient: C (m, n) += Aᵀ B over all rows; or column sums of B into C. */
typedef struct piece {
    const real *a, *b;
    size_t lda, ldb, m, n, ldc;
    real *c;
    size_t rows;
} piece;

enum { MAX_PIECES = 512, PIECE_COLS = 256 };

typedef struct piece_list {
    piece v[MAX_PIECES];
    size_t n;
} piece_list;

static void add_piece(piece_list *t, piece x) {
    if (x.c && t->n < MAX_PIECES)
        t->v[t->n++] = x;
}

/* dW (m, n) += aᵀ b, in strips along its longer side. */
static void add_weight(piece_list *t, size_t rows, const real *a, size_t lda, size_t m,
                       const real *b, size_t ldb, size_t n, real *c) {
    size_t longer = m > n ? m : n, strip = PIECE_COLS;
    if (longer > 16 * strip)
        strip = (longer / 16 + 15) / 16 * 16;
    for (size_t i = 0; c && i < longer; i += strip) {
        size_t w = longer - i < strip ? longer - i : strip;
        if (m >= n)
            add_piece(t, (piece){a + i, b, lda, ldb, w, n, n, c + i * n, rows});
        else
            add_piece(t, (piece){a, b + i, lda, ldb, m, w, n, c + i, rows});
    }
}

static void run_piece(void *ctx, size_t i, int worker) {
    (void)worker;
    const piece *x = &((const piece_list *)ctx)->v[i];
    if (x->a)
        r_gemm(true, false, x->m, x->n, x->rows, 1, x->a, x->lda, x->b, x->ldb, 1, x->c, x->ldc);
    else
        SD_R(sd_k_colsum)(x->rows, x->n, x->ldb, x->b, x->c);
}

static sd_status run_pieces(const pass *p, piece_list *t, sd_err *err) {
    sd_pool_run(p->ws->pool, t->n, run_piece, t);
    return sd_check_cancel(err);
}

/* Norm gradients of a block go to its own row of ws->npart: [norm][g, b][D]. */
static real *npart(const pass *p, size_t block, int norm) {
    return (real *)p->ws->npart + block * 4 * p->d + (size_t)norm * 2 * p->d;
}

static void clear_npart(const pass *p) {
    memset(p->ws->npart, 0, p->blocks * 4 * p->d * sizeof(real));
}

static void add_norm_pieces(const pass *p, piece_list *t, int norm, int layer, sd_role g,
                            sd_role b) {
    real *gg = grad_of(p, layer, g), *gb = grad_of(p, layer, b);
    add_piece(
        t, (piece){.b = npart(p, 0, norm), .ldb = 4 * p->d, .n = p->d, .c = gg, .rows = p->blocks});
    add_piece(
        t,
        (piece){
            .b = npart(p, 0, norm) + p->d, .ldb = 4 * p->d, .n = p->d, .c = gb, .rows = p->blocks});
}

/* dx = base + ∂norm; the norm's own gradients go to npart. */
static void norm_back(const pass *p, size_t block, int which, int layer, sd_role g, sd_role b,
                      size_t n, const real *x, const real *stat, const real *dy, const real *base,
                      real *dx) {
    real *part = npart(p, block, which);
    SD_R(sd_k_norm_bwd)
    (p->c->norm, n, p->d, x, stat, par(p, layer, g), dy, base, dx, part,
     par(p, layer, b) ? part + p->d : NULL);
}

/* MLP: from dy (gradient of its output) to dh1 (dh3) and its input's gradient din. */
static void mlp_back(const pass *p, size_t r0, size_t n, const real *dy, real *din) {
    const sd_config *c = p->c;
    size_t d = p->d, ff = (size_t)c->d_ff;
    real *dh1 = (real *)p->ws->dh1 + r0 * ff;
    real *dh3 = c->gated_mlp ? (real *)p->ws->dh3 + r0 * ff : NULL;
    r_gemm(false, true, n, ff, d, 1, dy, d, par(p, p->l, SD_ROLE_W2), d, 0, dh1, ff);
    SD_R(sd_k_act_bwd)
    (c->act, n * ff, (const real *)p->lb->h1 + r0 * ff,
     c->gated_mlp ? (const real *)p->lb->h3 + r0 * ff : NULL, dh1, dh1, dh3);
    r_gemm(false, true, n, d, ff, 1, dh1, ff, par(p, p->l, SD_ROLE_W1), ff, 0, din, d);
    if (dh3)
        r_gemm(false, true, n, d, ff, 1, dh3, ff, par(p, p->l, SD_ROLE_W3), ff, 1, din, d);
}

/* From dx (of the layer's output) down to the gradients of the attention output and its heads. */
static void back_out(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d, w = p->nl->attn_width;
    block_of(p, i, &r0, &n);
    size_t o = r0 * d;
    const real *st1 = has_norm(p) ? (const real *)p->lb->stat1 + 2 * r0 : NULL;
    const real *st2 = has_norm(p) ? (const real *)p->lb->stat2 + 2 * r0 : NULL;
    const real *x2 = (const real *)p->lb->x2;
    real *t = (real *)p->dacc + o;
    if (p->c->block == SD_BLOCK_PARALLEL) { /* g1 = g2 = dx */
        mlp_back(p, r0, n, p->dx + o, t);
        if (has_norm(p))
            norm_back(p, i, 1, p->l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B, n, p->x + o, st2, t,
                      p->dx + o, t);
        else
            SD_R(sd_k_add)(n * d, p->dx + o, t);
    } else if (is_post(p)) { /* g2 = ds2, g1 = ds1 */
        norm_back(p, i, 1, p->l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B, n, (const real *)p->lb->s2 + o,
                  st2, p->dx + o, NULL, p->g2 + o);
        mlp_back(p, r0, n, p->g2 + o, t);
        SD_R(sd_k_add)(n * d, p->g2 + o, t);
        norm_back(p, i, 0, p->l, SD_ROLE_NORM1_G, SD_ROLE_NORM1_B, n, (const real *)p->lb->s1 + o,
                  st1, t, NULL, p->g1 + o);
    } else { /* g2 = dx, g1 = dx2 */
        real *g1 = p->g1 + o;
        mlp_back(p, r0, n, p->dx + o, g1);
        if (has_norm(p))
            norm_back(p, i, 1, p->l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B, n, x2 + o, st2, g1,
                      p->dx + o, g1);
        else
            SD_R(sd_k_add)(n * d, p->dx + o, g1);
    }
    r_gemm(false, true, n, w, d, 1, p->g1 + o, d, par(p, p->l, SD_ROLE_WO), d, 0,
           (real *)p->ws->datt + r0 * w, w);
}

static void head_bwd(void *ctx, size_t i, int worker) {
    const pass *p = ctx;
    int kv = p->lc->n_kv_head;
    attn_ops(p)->backward(&p->args, (int)i / kv, (int)i % kv, scratch_of(p, worker));
}

/* From the projections' gradient to the layer's input: dacc (parallel) or g1 is the residual. The
 * result goes to p->y's role: the buffer p->dacc, which is dx of the layer below. */
static void back_proj(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const net_layer *nl = p->nl;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    size_t o = r0 * d;
    real *dproj = p->ws->dproj, *out = p->dacc + o;
    rotate(p, r0, n, -1, dproj);
    bool par_block = p->c->block == SD_BLOCK_PARALLEL;
    if (has_norm(p) && !is_post(p)) {
        /* the block's da goes through norm1: hc is free by now */
        real *da = (real *)p->ws->hc + o;
        r_gemm(false, true, n, d, nl->np, 1, dproj + r0 * nl->ld, nl->ld, packed(p), nl->ld, 0, da,
               d);
        norm_back(p, i, 0, p->l, SD_ROLE_NORM1_G, SD_ROLE_NORM1_B, n, p->x + o,
                  (const real *)p->lb->stat1 + 2 * r0, da, par_block ? out : p->g1 + o, out);
        return;
    }
    if (!par_block)
        memcpy(out, p->g1 + o, n * d * sizeof(real));
    r_gemm(false, true, n, d, nl->np, 1, dproj + r0 * nl->ld, nl->ld, packed(p), nl->ld, 1, out, d);
}

/* Gradients of small vectors that heads leave per sequence. */
static void sum_sequences(const pass *p, const real *x, size_t n, real *c) {
    if (c)
        SD_R(sd_k_colsum)((size_t)p->b->batch, n, n, x, c);
}

static void layer_pieces(const pass *p, piece_list *t) {
    const sd_config *c = p->c;
    const net_layer *nl = p->nl;
    size_t n = p->n, d = p->d, ff = (size_t)c->d_ff, w = nl->attn_width;
    const real *dh1 = p->ws->dh1, *dproj = p->ws->dproj;
    int l = p->l;
    t->n = 0;
    add_weight(t, n, p->lb->act, ff, ff, p->g2, d, d, grad_of(p, l, SD_ROLE_W2));
    add_weight(t, n, mlp_in(p), d, d, dh1, ff, ff, grad_of(p, l, SD_ROLE_W1));
    if (c->gated_mlp)
        add_weight(t, n, mlp_in(p), d, d, p->ws->dh3, ff, ff, grad_of(p, l, SD_ROLE_W3));
    for (int k = 0; k < nl->n_part; k++) {
        const net_part *q = &nl->part[k];
        real *gw = p->grad + q->weight->offset;
        add_weight(t, n, attn_in(p), d, d, dproj + q->col, nl->ld, q->n, gw);
        real *gb = q->augmented ? gw + d * q->n : q->bias ? p->grad + q->bias->offset : NULL;
        add_piece(t, (piece){.b = dproj + q->col, .ldb = nl->ld, .n = q->n, .c = gb, .rows = n});
    }
    add_weight(t, n, p->lb->att, w, w, p->g1, d, d, grad_of(p, l, SD_ROLE_WO));
    add_piece(t, (piece){.b = dh1, .ldb = ff, .n = ff, .c = grad_of(p, l, SD_ROLE_B1), .rows = n});
    add_piece(t, (piece){.b = p->g2, .ldb = d, .n = d, .c = grad_of(p, l, SD_ROLE_B2), .rows = n});
    add_piece(t, (piece){.b = p->g1, .ldb = d, .n = d, .c = grad_of(p, l, SD_ROLE_BO), .rows = n});
    if (has_norm(p)) {
        add_norm_pieces(p, t, 0, l, SD_ROLE_NORM1_G, SD_ROLE_NORM1_B);
        add_norm_pieces(p, t, 1, l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B);
    }
}

/* dx of layer l's output in p->dx; leaves that of its input in *dx. Three (BT, D) buffers rotate:
 * dx, g1, dacc (post blocks keep ds2 in ws->hc). */
static sd_status layer_backward(pass *p, int l, real *buf[3], sd_err *err) {
    sd_net_ws *ws = p->ws;
    if (ws->recompute[l]) {
        bool stop = false;
        SD_TRY(layer_forward(p, l, NULL, &stop, err));
    }
    set_layer(p, l);
    p->dx = buf[0];
    bool post = is_post(p), parallel = p->c->block == SD_BLOCK_PARALLEL;
    p->g1 = parallel ? buf[0] : buf[1];
    p->g2 = post ? ws->hc : buf[0];
    p->dacc = buf[2];
    clear_npart(p);
    SD_TRY(run(p, p->blocks, back_out, err));
    sd_attn_args *a = &p->args;
    a->d_o = ws->datt;
    a->dproj = ws->dproj;
    a->ddiag = a->diag ? ws->ddiag : NULL;
    a->dfl = a->fl ? ws->dfl : NULL;
    SD_TRY(run(p, (size_t)p->b->batch * (size_t)p->lc->n_kv_head, head_bwd, err));
    SD_TRY(run(p, p->blocks, back_proj, err));
    size_t h = (size_t)p->lc->n_head;
    if (a->diag)
        sum_sequences(p, ws->ddiag, h, grad_of(p, l, SD_ROLE_DIAG));
    if (a->fl)
        sum_sequences(p, ws->dfl, h * (size_t)p->lc->f_rank, grad_of(p, l, SD_ROLE_FL));
    piece_list t;
    layer_pieces(p, &t);
    SD_TRY(run_pieces(p, &t, err));
    real *next = buf[2];
    buf[2] = buf[0];
    buf[0] = next;
    return SD_OK;
}

static void final_back(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    norm_back(p, i, 0, -1, SD_ROLE_FINAL_NORM_G, SD_ROLE_FINAL_NORM_B, n,
              (const real *)p->ws->x[p->c->n_layer] + r0 * d, (const real *)p->ws->hf_stat + 2 * r0,
              p->dacc + r0 * d, NULL, p->dx + r0 * d);
}

static void mlm_back(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0 = i * p->rb, n = p->scored - r0 < p->rb ? p->scored - r0 : p->rb, d = p->d;
    /* dhl: gradient after the norm → before the activation (in place), kept for MLM_W */
    real *g = p->dhl + r0 * d;
    norm_back(p, i, 0, -1, SD_ROLE_MLM_NORM_G, SD_ROLE_MLM_NORM_B, n,
              (const real *)p->ws->m2 + r0 * d, (const real *)p->ws->m_stat + 2 * r0, g, NULL, g);
    SD_R(sd_k_act_bwd)(p->c->act, n * d, (const real *)p->ws->m1 + r0 * d, NULL, g, g, NULL);
    r_gemm(false, true, n, d, d, 1, g, d, par(p, -1, SD_ROLE_MLM_W), d, 0, p->dacc + r0 * d, d);
}

enum { ECHUNK = 64 };

/* Embedding tables: columns are split, so that rows may repeat. */
static void embed_back(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t d = p->d, j0 = i * ECHUNK, j1 = j0 + ECHUNK < d ? j0 + ECHUNK : d;
    size_t t = (size_t)p->b->tokens;
    real *tok = grad_of(p, -1, SD_ROLE_TOK), *pos = grad_of(p, -1, SD_ROLE_POS);
    real *type = grad_of(p, -1, SD_ROLE_TYPE), s = (real)p->c->embed_scale;
    for (size_t r = 0; r < p->n; r++) {
        const real *g = p->dx + r * d;
        real *e = tok + (size_t)p->b->ids[r] * d;
        for (size_t j = j0; j < j1; j++)
            e[j] += s * g[j];
        if (pos) {
            real *q = pos + (r % t) * d;
            for (size_t j = j0; j < j1; j++)
                q[j] += s * g[j];
        }
        if (type) {
            real *y = type + (p->b->types ? (size_t)p->b->types[r] * d : 0);
            for (size_t j = j0; j < j1; j++)
                y[j] += g[j];
        }
    }
}

static void embed_norm_back(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    norm_back(p, i, 0, -1, SD_ROLE_EMBED_NORM_G, SD_ROLE_EMBED_NORM_B, n,
              (const real *)p->ws->emb + r0 * d, (const real *)p->ws->emb_stat + 2 * r0,
              p->dx + r0 * d, NULL, p->dx + r0 * d);
}

static sd_status flush_norm(pass *p, sd_role g, sd_role b, sd_err *err) {
    piece_list t;
    t.n = 0;
    add_norm_pieces(p, &t, 0, -1, g, b);
    return run_pieces(p, &t, err);
}

static sd_status backward(pass *p, const real *h0, sd_err *err) {
    sd_net_ws *ws = p->ws;
    size_t d = p->d;
    real *buf[3] = {ws->da, ws->db, ws->dc};
    /* gradient of the hidden state at the scored rows: p->dhl is ws->db */
    real *dh = p->dhl;
    if (p->c->mlm_head) {
        clear_npart(p);
        p->dacc = ws->da;
        SD_TRY(run(p, scored_blocks(p), mlm_back, err));
        SD_TRY(flush_norm(p, SD_ROLE_MLM_NORM_G, SD_ROLE_MLM_NORM_B, err));
        piece_list t;
        t.n = 0;
        add_weight(&t, p->scored, h0, d, d, p->dhl, d, d, grad_of(p, -1, SD_ROLE_MLM_W));
        add_piece(&t, (piece){.b = p->dhl,
                              .ldb = d,
                              .n = d,
                              .c = grad_of(p, -1, SD_ROLE_MLM_B),
                              .rows = p->scored});
        SD_TRY(run_pieces(p, &t, err));
        dh = ws->da;
    }
    if (p->scored < p->n) {
        memset(ws->dc, 0, p->n * d * sizeof(real));
        for (size_t i = 0; i < p->scored; i++)
            memcpy((real *)ws->dc + ws->row[i] * d, dh + i * d, d * sizeof(real));
        dh = ws->dc;
    }
    if (p->c->final_norm) {
        clear_npart(p);
        p->dacc = dh;
        p->dx = dh; /* row by row: in place */
        SD_TRY(run(p, p->blocks, final_back, err));
        SD_TRY(flush_norm(p, SD_ROLE_FINAL_NORM_G, SD_ROLE_FINAL_NORM_B, err));
    }
    for (int i = 0; i < 3; i++)
        if (buf[i] == dh) {
            buf[i] = buf[0];
            buf[0] = dh;
        }
    for (int l = p->c->n_layer - 1; l >= 0; l--)
        SD_TRY(layer_backward(p, l, buf, err));
    p->dx = buf[0];
    if (p->c->embed_norm) {
        clear_npart(p);
        SD_TRY(run(p, p->blocks, embed_norm_back, err));
        SD_TRY(flush_norm(p, SD_ROLE_EMBED_NORM_G, SD_ROLE_EMBED_NORM_B, err));
    }
    return run(p, (d + ECHUNK - 1) / ECHUNK, embed_back, err);
}

static sd_status loss(const sd_net *net, sd_net_ws *ws, const sd_net_batch *b, double scale,
                      void *grad, double *nll_sum, int64_t *count, double *nll, double *loss_sum,
                      sd_err *err) {
    pass p;
    bool stop = false;
    SD_TRY(start(&p, net, ws, b));
    p.grad = grad;
    p.scale = (real)scale;
    SD_TRY(trunk(&p, NULL, &stop, err));
    for (size_t i = 0; i < p.n; i++)
        if (b->targets[i] >= 0)
            ws->row[p.scored++] = i;
    const real *h0 = hidden_of(&p);
    if (p.scored < p.n) {
        for (size_t i = 0; i < p.scored; i++)
            memcpy((real *)ws->hc + i * p.d, h0 + ws->row[i] * p.d, p.d * sizeof(real));
        h0 = ws->hc;
    }
    p.hl = h0;
    p.dhl = ws->db;
    SD_TRY(mlm_forward(&p, err));
    for (p.r0 = 0; p.r0 < p.scored; p.r0 += ws->loss_rows) {
        p.nr = p.scored - p.r0 < ws->loss_rows ? p.scored - p.r0 : ws->loss_rows;
        SD_TRY(run(&p, vchunks(&p), loss_logits, err));
        SD_TRY(run(&p, (p.nr + SCHUNK - 1) / SCHUNK, loss_rows, err));
        if (grad)
            SD_TRY(run(&p, (p.nr + RCHUNK - 1) / RCHUNK + vchunks(&p), loss_back, err));
    }
    double sum = 0, mixed = 0;
    for (size_t i = 0; i < p.scored; i++) {
        sum += ws->nll[i];
        mixed += ws->loss[i];
    }
    *nll_sum = sum;
    *count = (int64_t)p.scored;
    if (loss_sum)
        *loss_sum = mixed;
    if (nll) {
        for (size_t i = 0; i < p.n; i++)
            nll[i] = 0;
        for (size_t i = 0; i < p.scored; i++)
            nll[ws->row[i]] = ws->nll[i];
    }
    if (!grad || p.scored == 0)
        return SD_OK;
    return backward(&p, h0, err);
}

const net_ops SD_R(sd_net_ops) = {forward, loss, unembed};
