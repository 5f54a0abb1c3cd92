/* The passes of a decoder (nn/decode.h): the same steps as a full forward pass (net_k.c), on the
 * rows of the tokens just fed, with every product split by columns over the threads. */
#include "base/mem.h"
#include "nn/decode_i.h"
#include "nn/kern.h"

/* Rows from which a product is a matter of arithmetic, not of reading the weights. */
enum { GEMM_ROWS = 8, ROW_BLOCK = 32, MAX_LIN = SD_ATTN_MAX_PARTS, MIN_COLS = 64 };

/* y (rows, n) = base + bias + x (rows, k) · w (k, n), columns from w and y on; dots: w is (n, k).
 */
typedef struct lin {
    const real *x, *w, *bias, *base;
    size_t ldx, k, n, ldw, ldbase, ldy;
    real *y;
    bool dots;
    size_t chunk, n_chunk;
} lin;

typedef struct pass {
    sd_decoder *d;
    const sd_net *net;
    const sd_config *c;
    const int32_t *ids;
    size_t n, dm;
    int l;
    const net_layer *nl;
    const sd_layer_cfg *lc;
    const dec_layer *dl;
    real *x, *y; /* the block's input and output */
    lin lin[MAX_LIN];
    int n_lin;
    bool act; /* the products are the MLP's first: the activation follows chunk by chunk */
} pass;

static const real *par(const pass *p, int layer, sd_role r) {
    const sd_net_slice *s = net_slice(p->net, layer, r);
    return s ? (const real *)p->net->params + s->offset : NULL;
}

static sd_status run(pass *p, size_t n, sd_pool_fn fn, sd_err *err) {
    sd_pool_run(p->d->pool, n, fn, p);
    return sd_check_cancel(err);
}

static real *scratch_of(const pass *p, int worker) {
    return (real *)p->d->scratch + (size_t)worker * p->d->scratch_size;
}

/* ---- products ------------------------------------------------------------------------------- */

static void lin_cols(const pass *p, const lin *l, size_t c0, size_t nc) {
    bool many = p->n >= GEMM_ROWS;
    for (size_t r = 0; r < p->n; r++) {
        real *y = l->y + r * l->ldy + c0;
        SD_R(sd_k_base_bias)
        (1, nc, l->base ? l->base + r * l->ldbase + c0 : NULL, l->bias ? l->bias + c0 : NULL, y);
        if (many)
            continue;
        if (l->dots)
            SD_R(sd_k_dots)(nc, l->k, 1, l->x + r * l->ldx, l->w + c0 * l->ldw, l->ldw, y);
        else
            SD_R(sd_k_gemv)(l->k, nc, l->x + r * l->ldx, l->w + c0, l->ldw, y);
    }
    if (many)
        r_gemm(false, l->dots, p->n, nc, l->k, 1, l->x, l->ldx, l->w + c0 * (l->dots ? l->ldw : 1),
               l->ldw, 1, l->y + c0, l->ldy);
}

static void lin_item(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    int k = 0;
    if (p->act) { /* the gate's columns, then the activation */
        const lin *l = &p->lin[0];
        size_t c0 = i * l->chunk, nc = l->n - c0 < l->chunk ? l->n - c0 : l->chunk;
        real *act = (real *)p->d->act + c0;
        for (; k < p->n_lin; k++)
            lin_cols(p, &p->lin[k], c0, nc);
        for (size_t r = 0; r < p->n; r++)
            SD_R(sd_k_act_fwd)
        (p->c->act, nc, l->y + r * l->ldy + c0, p->n_lin > 1 ? p->lin[1].y + r * l->ldy + c0 : NULL,
         act + r * l->n);
        return;
    }
    while (i >= p->lin[k].n_chunk)
        i -= p->lin[k++].n_chunk;
    const lin *l = &p->lin[k];
    size_t c0 = i * l->chunk;
    lin_cols(p, l, c0, l->n - c0 < l->chunk ? l->n - c0 : l->chunk);
}

static sd_status run_lins(pass *p, sd_err *err) {
    size_t items = 0, threads = (size_t)p->d->threads;
    for (int k = 0; k < p->n_lin; k++) {
        lin *l = &p->lin[k];
        size_t parts = threads * (l->n >= 4096 * threads ? 4 : 1); /* a late thread costs less */
        l->chunk = ((l->n + parts - 1) / parts + MIN_COLS - 1) / MIN_COLS * MIN_COLS;
        l->n_chunk = (l->n + l->chunk - 1) / l->chunk;
        items += p->act && k ? 0 : l->n_chunk;
    }
    sd_status st = run(p, items, lin_item, err);
    p->n_lin = 0;
    p->act = false;
    return st;
}

static void add_lin(pass *p, const real *x, size_t k, const real *w, size_t n, const real *bias,
                    const real *base, size_t ldbase, real *y, size_t ldy) {
    p->lin[p->n_lin++] = (lin){.x = x,
                               .ldx = k,
                               .k = k,
                               .w = w,
                               .ldw = n,
                               .n = n,
                               .bias = bias,
                               .base = base,
                               .ldbase = ldbase,
                               .y = y,
                               .ldy = ldy};
}

/* ---- row by row ------------------------------------------------------------------------------ */

typedef struct norm_job {
    pass *p;
    const real *x, *g, *b;
    real *y;
} norm_job;

static void norm_item(void *ctx, size_t i, int worker) {
    (void)worker;
    const norm_job *j = ctx;
    const pass *p = j->p;
    size_t r0 = i * ROW_BLOCK, n = p->n - r0 < ROW_BLOCK ? p->n - r0 : ROW_BLOCK;
    SD_R(sd_k_norm_fwd)
    (p->c->norm, n, p->dm, j->x + r0 * p->dm, j->g, j->b, (real)p->c->norm_eps, j->y + r0 * p->dm,
     (real *)p->d->stat + 2 * r0);
}

static sd_status norm(pass *p, const real *x, int layer, sd_role g, sd_role b, real *y,
                      sd_err *err) {
    norm_job j = {p, x, par(p, layer, g), par(p, layer, b), y};
    sd_pool_run(p->d->pool, (p->n + ROW_BLOCK - 1) / ROW_BLOCK, norm_item, &j);
    return sd_check_cancel(err);
}

static sd_status embed(pass *p, sd_err *err) {
    const sd_config *c = p->c;
    const real *tok = par(p, -1, SD_ROLE_TOK), *pos = par(p, -1, SD_ROLE_POS);
    const real *type = par(p, -1, SD_ROLE_TYPE);
    size_t d = p->dm;
    real s = (real)c->embed_scale, *x = c->embed_norm ? p->y : p->x;
    for (size_t r = 0; r < p->n; r++) {
        const real *e = tok + (size_t)p->ids[r] * d;
        const real *q = pos ? pos + ((size_t)p->d->len + r) * d : NULL;
        for (size_t j = 0; j < d; j++)
            x[r * d + j] = s * (e[j] + (q ? q[j] : 0));
        if (type)
            SD_R(sd_k_add)(d, type, x + r * d);
    }
    return c->embed_norm ? norm(p, x, -1, SD_ROLE_EMBED_NORM_G, SD_ROLE_EMBED_NORM_B, p->x, err)
                         : SD_OK;
}

static void rope_table(const pass *p) {
    size_t half = (size_t)p->c->rope.dim / 2;
    for (size_t t = 0; t < p->n; t++) {
        real *cs = (real *)p->d->rope + t * 2 * half;
        for (size_t i = 0; i < half; i++) {
            double angle = (double)((size_t)p->d->len + t) * p->net->inv_freq[i];
            cs[i] = (real)cos(angle);
            cs[half + i] = (real)sin(angle);
        }
    }
}

/* ---- attention --------------------------------------------------------------------------------
 */

static const sd_attn_ops *attn_ops(const pass *p) {
#if SD_REAL_BITS == 32
    return p->nl->kind->f32;
#else
    return p->nl->kind->f64;
#endif
}

static size_t group_of(const pass *p) {
    return (size_t)(p->lc->n_head / p->lc->n_kv_head);
}

/* First row of this feed in the block of key head g. */
static real *block_rows(const pass *p, size_t g) {
    const dec_layer *dl = p->dl;
    if (dl->state_size)
        return (real *)p->d->block + g * p->n * dl->w;
    return (real *)dl->cache + (g * (size_t)p->d->capacity + (size_t)p->d->len) * dl->w;
}

static bool rotary(const pass *p) {
    return p->c->pos == SD_POS_ROPE && p->nl->kind->rope && p->nl->has[SD_SLOT_Q];
}

/* Key head g: its columns of the projections go to its block, rotated, and its diagonals. */
static void spread(const pass *p, size_t g) {
    const net_layer *nl = p->nl;
    const dec_layer *dl = p->dl;
    size_t kv = (size_t)p->lc->n_kv_head, group = group_of(p), h = (size_t)p->lc->n_head;
    real *rows = block_rows(p, g);
    for (size_t r = 0; r < p->n; r++) {
        const real *src = (const real *)p->d->proj + r * nl->ld;
        for (int i = 0; i < nl->n_part; i++) {
            const net_part *t = &nl->part[i];
            size_t w = t->n / kv;
            memcpy(rows + r * dl->w + dl->off[t->slot], src + t->col + g * w, w * sizeof(real));
        }
        if (nl->has[SD_SLOT_U])
            memcpy((real *)p->d->dblock + (g * p->n + r) * group,
                   (const real *)p->d->dval + r * h + g * group, group * sizeof(real));
    }
    if (!rotary(p))
        return;
    SD_R(sd_k_rope)
    (p->n, 0, p->n, (int)group, p->lc->d_qk, p->c->rope.dim, p->c->rope.style, dl->w, p->d->rope, 1,
     rows + dl->off[SD_SLOT_Q]);
    SD_R(sd_k_rope)
    (p->n, 0, p->n, 1, p->lc->d_qk, p->c->rope.dim, p->c->rope.style, dl->w, p->d->rope, 1,
     rows + dl->off[SD_SLOT_K]);
}

static sd_attn_args args_of(const pass *p, size_t g) {
    const sd_layer_cfg *lc = p->lc;
    const dec_layer *dl = p->dl;
    size_t group = group_of(p);
    const real *diag = par(p, p->l, SD_ROLE_DIAG);
    const real *fl = par(p, p->l, SD_ROLE_FL);
    sd_attn_args a = {.kind = p->nl->kind,
                      .batch = 1,
                      .tokens = (int)p->n,
                      .first = p->d->len,
                      .n_head = (int)group,
                      .n_kv = 1,
                      .d_qk = lc->d_qk,
                      .d_v = lc->d_v,
                      .planes = lc->planes,
                      .f_rank = lc->f_rank,
                      .causal = true,
                      .window = sd_attn_window(lc),
                      .scale = lc->scale,
                      .options = lc->options,
                      .ld = dl->w,
                      .dval = p->nl->has[SD_SLOT_U] ? (const real *)p->d->dblock + g * p->n * group
                                                    : NULL,
                      .diag = diag ? diag + g * group : NULL,
                      .fl = fl ? fl + g * group * (size_t)lc->f_rank : NULL,
                      .o = (real *)p->d->oblock + g * p->n * group * (size_t)lc->d_v};
    a.proj = dl->state_size ? block_rows(p, g)
                            : (const real *)dl->cache + g * (size_t)p->d->capacity * dl->w;
    memcpy(a.off, dl->off, sizeof a.off);
    memcpy(a.has, p->nl->has, sizeof a.has);
    return a;
}

static void spread_item(void *ctx, size_t g, int worker) {
    (void)worker;
    spread(ctx, g);
}

/* Rows [r0, r0 + n) of key head g: what its heads give, into the rows of att. */
static void gather(const pass *p, size_t g, size_t r0, size_t n) {
    size_t w = group_of(p) * (size_t)p->lc->d_v;
    for (size_t r = r0; r < r0 + n; r++)
        memcpy((real *)p->d->att + r * p->nl->attn_width + g * w,
               (const real *)p->d->oblock + (g * p->n + r) * w, w * sizeof(real));
}

/* All rows of one key head: the first feed at once, recurrent kinds in order. */
static void head_item(void *ctx, size_t g, int worker) {
    const pass *p = ctx;
    sd_attn_args a = args_of(p, g);
    size_t size = p->dl->state_size;
    if (size == 0 && p->d->len == 0 && p->n > 1) {
        attn_ops(p)->forward(&a, 0, 0, scratch_of(p, worker));
    } else {
        real *state = size ? (real *)p->dl->state + g * size : NULL;
        for (size_t r = 0; r < p->n; r++)
            attn_ops(p)->decode(&a, 0, 0, p->d->len + (int)r, state, scratch_of(p, worker));
    }
    gather(p, g, 0, p->n);
}

/* One token: spreading and attending a head at a time. */
static void token_item(void *ctx, size_t g, int worker) {
    spread(ctx, g);
    head_item(ctx, g, worker);
}

/* A later feed of a kind with a cache: rows are independent. */
static void row_item(void *ctx, size_t i, int worker) {
    const pass *p = ctx;
    size_t kv = (size_t)p->lc->n_kv_head, g = i % kv, r = i / kv;
    sd_attn_args a = args_of(p, g);
    attn_ops(p)->decode(&a, 0, 0, p->d->len + (int)r, NULL, scratch_of(p, worker));
    gather(p, g, r, 1);
}

static sd_status attend(pass *p, sd_err *err) {
    size_t kv = (size_t)p->lc->n_kv_head;
    if (p->nl->has[SD_SLOT_U])
        SD_R(sd_k_softplus)
    (p->n, (size_t)p->lc->n_head, p->nl->ld, (const real *)p->d->proj + p->nl->off[SD_SLOT_U],
     (real)p->c->d_floor, p->d->dval);
    if (p->n == 1)
        return run(p, kv, token_item, err);
    SD_TRY(run(p, kv, spread_item, err));
    if (p->dl->state_size || p->d->len == 0)
        return run(p, kv, head_item, err);
    return run(p, kv * p->n, row_item, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static sd_status project(pass *p, const real *in, sd_err *err) {
    const real *params = p->net->params;
    for (int i = 0; i < p->nl->n_part; i++) {
        const net_part *t = &p->nl->part[i];
        const real *w = params + t->weight->offset;
        const real *bias = t->augmented ? w + p->dm * t->n
                           : t->bias    ? params + t->bias->offset
                                        : NULL;
        add_lin(p, in, p->dm, w, t->n, bias, NULL, 0, (real *)p->d->proj + t->col, p->nl->ld);
    }
    return run_lins(p, err);
}

static sd_status mlp(pass *p, const real *in, const real *base, real *y, sd_err *err) {
    size_t ff = (size_t)p->c->d_ff, d = p->dm;
    add_lin(p, in, d, par(p, p->l, SD_ROLE_W1), ff, par(p, p->l, SD_ROLE_B1), NULL, 0, p->d->h1,
            ff);
    if (p->c->gated_mlp)
        add_lin(p, in, d, par(p, p->l, SD_ROLE_W3), ff, NULL, NULL, 0, p->d->h3, ff);
    p->act = true;
    SD_TRY(run_lins(p, err));
    add_lin(p, p->d->act, ff, par(p, p->l, SD_ROLE_W2), d, par(p, p->l, SD_ROLE_B2), base, d, y, d);
    return run_lins(p, err);
}

static sd_status block(pass *p, int l, sd_err *err) {
    sd_decoder *d = p->d;
    const sd_config *c = p->c;
    bool has = c->norm != SD_NORM_NONE, post = c->block == SD_BLOCK_POST, pre = has && !post;
    size_t dm = p->dm;
    p->l = l;
    p->nl = &p->net->layer[l];
    p->lc = &c->layer[l];
    p->dl = &d->layer[l];
    real *nb = d->norm, *mid = d->mid;
    if (pre)
        SD_TRY(norm(p, p->x, l, SD_ROLE_NORM1_G, SD_ROLE_NORM1_B, nb, err));
    SD_TRY(project(p, pre ? nb : p->x, err));
    SD_TRY(attend(p, err));
    add_lin(p, d->att, p->nl->attn_width, par(p, l, SD_ROLE_WO), dm, par(p, l, SD_ROLE_BO), p->x,
            dm, post && has ? nb : mid, dm);
    SD_TRY(run_lins(p, err));
    if (post && has)
        SD_TRY(norm(p, nb, l, SD_ROLE_NORM1_G, SD_ROLE_NORM1_B, mid, err));
    const real *in = c->block == SD_BLOCK_PARALLEL ? p->x : mid;
    if (pre) {
        SD_TRY(norm(p, in, l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B, nb, err));
        in = nb;
    }
    if (!post || !has)
        return mlp(p, in, mid, p->y, err);
    SD_TRY(mlp(p, in, mid, nb, err));
    return norm(p, nb, l, SD_ROLE_NORM2_G, SD_ROLE_NORM2_B, p->y, err);
}

static sd_status feed(sd_decoder *d, const int32_t *ids, size_t n, void *logits, sd_err *err) {
    const sd_config *c = &d->net->cfg;
    pass p = {.d = d,
              .net = d->net,
              .c = c,
              .ids = ids,
              .n = n,
              .dm = (size_t)c->d_model,
              .x = d->x,
              .y = d->y};
    SD_TRY(embed(&p, err));
    if (c->pos == SD_POS_ROPE)
        rope_table(&p);
    for (int l = 0; l < c->n_layer; l++) {
        SD_TRY(block(&p, l, err));
        real *t = p.x;
        p.x = p.y;
        p.y = t;
    }
    if (!logits)
        return SD_OK;
    const real *h = p.x + (n - 1) * p.dm;
    p.n = 1;
    if (c->final_norm) {
        SD_TRY(norm(&p, h, -1, SD_ROLE_FINAL_NORM_G, SD_ROLE_FINAL_NORM_B, d->norm, err));
        h = d->norm;
    }
    size_t v = (size_t)c->vocab;
    add_lin(&p, h, p.dm, par(&p, -1, c->tied ? SD_ROLE_TOK : SD_ROLE_HEAD), v,
            par(&p, -1, SD_ROLE_HEAD_B), NULL, 0, logits, v);
    if (c->tied) {
        p.lin[0].dots = true;
        p.lin[0].ldw = p.dm;
    }
    return run_lins(&p, err);
}

const dec_ops SD_R(sd_decode_ops) = {feed};
