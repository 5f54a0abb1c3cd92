/* A layer in which hooks look on (nn/hook.h): the same steps as in net_k.c, but one after the other
 * over all rows, so that every activation is there whole at its point. Scores and patterns, which a
 * plain pass never forms, are formed here: scores from the terms of the kind's row, the pattern by
 * letting the kind itself attend to unit vectors in place of the values, so that it is what this
 * kind does, whichever it is. */
#include "base/mem.h"
#include "nn/net_pass.h"

bool SD_R(sd_net_hooked)(const pass *p, int layer) {
    for (size_t i = 0; i < p->b->n_hooks; i++) {
        const sd_hook *h = &p->b->hooks[i];
        if (h->point != SD_POINT_FINAL && (h->layer < 0 || h->layer == layer))
            return true;
    }
    return false;
}

#if SD_REAL_BITS == 64 /* refused in net.c */

sd_status SD_R(sd_net_hooked_layer)(pass *p, sd_err *err) {
    (void)p;
    return sd_fail(err, SD_EINVAL, "hooks look into f32 nets only");
}

sd_status SD_R(sd_net_hooked_final)(pass *p, real *x, sd_err *err) {
    (void)p, (void)x, (void)err;
    return SD_OK;
}

#else

static bool wanted(const pass *p, sd_point point) {
    for (size_t i = 0; i < p->b->n_hooks; i++) {
        const sd_hook *h = &p->b->hooks[i];
        if (h->point == point && (h->layer < 0 || h->layer == p->l))
            return true;
    }
    return false;
}

/* Shows x to every hook of the point; *edited (nullable): one of them changed it. */
static sd_status visit(pass *p, sd_point point, real *x, int64_t a, int64_t b, int64_t c,
                       bool *edited, sd_err *err) {
    int64_t lead = p->b->batch;
    sd_site s = {.point = point,
                 .layer = p->l,
                 .batch = p->b->batch,
                 .tokens = p->b->tokens,
                 .cfg = p->c,
                 .ndim = c ? 4 : 3,
                 .shape = {lead, a, b, c},
                 .n = (size_t)(lead * a * b * (c ? c : 1)),
                 .x = x};
    for (size_t i = 0; i < p->b->n_hooks; i++) {
        const sd_hook *h = &p->b->hooks[i];
        if (h->point != point || (h->layer >= 0 && h->layer != p->l))
            continue;
        sd_status st = h->fn(h->ctx, &s, err);
        if (st != SD_OK) {
            if (st != SD_ECANCEL)
                sd_err_context(err, "%s of layer %d", sd_point_name(point), p->l);
            return st;
        }
    }
    if (edited)
        *edited = s.edited;
    return SD_OK;
}

static sd_status visit_resid(pass *p, sd_point point, real *x, bool *edited, sd_err *err) {
    return visit(p, point, x, p->b->tokens, p->c->d_model, 0, edited, err);
}

/* A slot of the projections: copied out, shown, and copied back when it was changed. */
static sd_status visit_slot(pass *p, sd_point point, sd_slot slot, int64_t heads, int64_t width,
                            sd_err *err) {
    if (!wanted(p, point) || !p->nl->has[slot])
        return SD_OK;
    size_t w = (size_t)(heads * width), ld = p->nl->ld;
    real *proj = (real *)p->lb->proj + p->nl->off[slot];
    real *x = sd_alloc_raw(p->n * w, sizeof *x, err);
    bool edited = false;
    if (!x)
        return SD_ENOMEM;
    for (size_t r = 0; r < p->n; r++)
        memcpy(x + r * w, proj + r * ld, w * sizeof *x);
    sd_status st = visit(p, point, x, p->b->tokens, heads, width, &edited, err);
    for (size_t r = 0; edited && st == SD_OK && r < p->n; r++)
        memcpy(proj + r * ld, x + r * w, w * sizeof *x);
    sd_free(x);
    return st;
}

/* ---- scores and pattern ------------------------------------------------------------------------
 */

typedef struct square_job {
    pass *p;
    real *s;      // (B, H, T, T)
    double *work; // (threads, work_size)
    size_t work_size, j0;
    sd_attn_args args; /* pattern: the kind's own call on unit values */
} square_job;

/* ½(Q Kᵀ ± K Qᵀ)·c into m (T, T), added. */
static void add_term(const sd_layer_cfg *lc, const sd_attn_term *t, const sd_attn_slots *x,
                     int head, double sign, double *f, double *m) {
    size_t n = x->rows, w = sd_attn_term_width(lc, t);
    if (!w)
        return;
    double c = 0.5 * sd_attn_term_scale(lc, t), *q = f, *k = f + n * w;
    sd_attn_term_factors(lc, t, x, head, q, k);
    sd_gemm_f64(false, true, n, n, w, c, q, w, k, w, 1, m, n);
    sd_gemm_f64(false, true, n, n, w, sign * c, k, w, q, w, 1, m, n);
}

static double delta_of(const pass *p, size_t row, size_t h) {
    if (p->nl->has[SD_SLOT_U])
        return -(double)((const real *)p->lb->dval)[row * (size_t)p->lc->n_head + h];
    return p->args.diag ? (double)((const real *)p->args.diag)[h] : 0;
}

static void score_item(void *ctx, size_t i, int worker) {
    const square_job *j = ctx;
    const pass *p = j->p;
    const sd_attn_kind *kind = p->nl->kind;
    size_t n = (size_t)p->b->tokens, h = (size_t)p->lc->n_head, b = i / h, head = i % h;
    sd_attn_slots x = {.rows = n, .d_model = p->d};
    double *m = j->work + (size_t)worker * j->work_size, *fl = m + n * n, *f = fl;
    for (int k = 0; k < p->nl->n_part; k++) {
        const net_part *t = &p->nl->part[k];
        x.at[t->slot].f32 = (const real *)p->lb->proj + b * n * p->nl->ld + t->col;
        x.at[t->slot].ld = p->nl->ld;
    }
    if (p->args.fl) {
        size_t nfl = h * (size_t)p->lc->f_rank;
        for (size_t k = 0; k < nfl; k++)
            fl[k] = (double)((const real *)p->args.fl)[k];
        x.fl = fl;
        f = fl + nfl;
    }
    memset(m, 0, n * n * sizeof *m);
    add_term(p->lc, &kind->routing, &x, (int)head, -1, f, m);
    add_term(p->lc, &kind->filtering, &x, (int)head, 1, f, m);
    for (size_t t = 0; t < n; t++) {
        double d = delta_of(p, b * n + t, head), *at = &m[t * n + t];
        *at = kind->diagonal == SD_SCORE_DIAG_REPLACE ? d
              : kind->diagonal == SD_SCORE_DIAG_ADD   ? *at + d
                                                      : *at;
    }
    real *out = j->s + i * n * n;
    for (size_t t = 0; t < n * n; t++)
        out[t] = (real)m[t];
}

static sd_status form_scores(pass *p, real *s, sd_err *err) {
    const sd_attn_kind *kind = p->nl->kind;
    size_t n = (size_t)p->b->tokens, h = (size_t)p->lc->n_head, size, all;
    size_t wr = sd_attn_term_width(p->lc, &kind->routing);
    size_t wf = sd_attn_term_width(p->lc, &kind->filtering), w = wr > wf ? wr : wf;
    square_job j = {.p = p, .s = s};
    if (!sd_mul_size(n, n + 2 * w, &size) ||
        !sd_add_size(size, h * (size_t)p->lc->f_rank, &j.work_size) ||
        !sd_mul_size(j.work_size, (size_t)p->ws->threads, &all))
        return sd_fail(err, SD_ENOMEM, "scores of %zu tokens overflow memory", n);
    if (!(j.work = sd_alloc_raw(all, sizeof *j.work, err)))
        return SD_ENOMEM;
    sd_pool_run(p->ws->pool, (size_t)p->b->batch * h, score_item, &j);
    sd_free(j.work);
    return sd_check_cancel(err);
}

static void unit_item(void *ctx, size_t i, int worker) {
    const square_job *j = ctx;
    size_t kv = (size_t)j->args.n_kv;
    attn_ops(j->p)->forward(&j->args, (int)(i / kv), (int)(i % kv), scratch_of(j->p, worker));
}

static void unit_take(void *ctx, size_t i, int worker) {
    (void)worker;
    const square_job *j = ctx;
    size_t n = (size_t)j->args.tokens, h = (size_t)j->args.n_head, dv = (size_t)j->args.d_v;
    size_t b = i / h, head = i % h, nj = n - j->j0 < dv ? n - j->j0 : dv;
    const real *o = (const real *)j->args.o + b * n * h * dv + head * dv;
    for (size_t t = 0; t < n; t++)
        memcpy(j->s + (i * n + t) * n + j->j0, o + t * h * dv, nj * sizeof *o);
}

static sd_status form_pattern(pass *p, real *s, sd_err *err) {
    size_t n = (size_t)p->b->tokens, h = (size_t)p->lc->n_head, kv = (size_t)p->lc->n_kv_head;
    size_t dv = (size_t)p->lc->d_v, ld = p->nl->ld, rows = p->n;
    square_job j = {.p = p, .s = s, .args = p->args};
    real *proj = sd_alloc_raw(rows * ld, sizeof *proj, err);
    real *o = sd_alloc_raw(rows * h * dv, sizeof *o, err);
    sd_status st = proj && o ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        memcpy(proj, p->lb->proj, rows * ld * sizeof *proj);
    j.args.proj = proj;
    j.args.o = o;
    j.args.lse = NULL;
    for (j.j0 = 0; st == SD_OK && j.j0 < n; j.j0 += dv) {
        for (size_t r = 0; r < rows; r++) {
            real *v = proj + r * ld + p->nl->off[SD_SLOT_V];
            memset(v, 0, kv * dv * sizeof *v);
            for (size_t g = 0; g < kv && r % n >= j.j0 && r % n < j.j0 + dv; g++)
                v[g * dv + r % n - j.j0] = 1;
        }
        sd_pool_run(p->ws->pool, (size_t)p->b->batch * kv, unit_item, &j);
        sd_pool_run(p->ws->pool, (size_t)p->b->batch * h, unit_take, &j);
        st = sd_check_cancel(err);
    }
    sd_free(proj);
    sd_free(o);
    return st;
}

/* Scores that were changed → pattern, in place. */
static void softmax_item(void *ctx, size_t i, int worker) {
    (void)worker;
    const square_job *j = ctx;
    const pass *p = j->p;
    size_t n = (size_t)p->b->tokens;
    char v[16];
    bool raw = sd_layer_option(p->lc->options, "softmax", v, sizeof v) && strcmp(v, "none") == 0;
    for (size_t t = 0; t < n; t++) {
        real *s = j->s + (i * n + t) * n, mx = -INFINITY;
        size_t lo, hi;
        double sum = 0;
        sd_attn_keys(p->lc, p->c->causal, t, n, &lo, &hi);
        for (size_t k = lo; k < hi; k++)
            mx = s[k] > mx ? s[k] : mx;
        for (size_t k = 0; k < n; k++) {
            bool seen = k >= lo && k < hi;
            s[k] = !seen ? 0 : raw ? s[k] : r_exp(s[k] - mx);
            sum += (double)s[k];
        }
        for (size_t k = lo; k < hi && !raw; k++)
            s[k] = (real)((double)s[k] / sum);
    }
}

/* z = P V of one head. */
static void weigh_item(void *ctx, size_t i, int worker) {
    (void)worker;
    const square_job *j = ctx;
    const pass *p = j->p;
    size_t n = (size_t)p->b->tokens, h = (size_t)p->lc->n_head, dv = (size_t)p->lc->d_v;
    size_t b = i / h, head = i % h, g = head / (h / (size_t)p->lc->n_kv_head);
    const real *v = (const real *)p->lb->proj + b * n * p->nl->ld + p->nl->off[SD_SLOT_V] + g * dv;
    r_gemm(false, false, n, dv, n, 1, j->s + i * n * n, n, v, p->nl->ld, 0,
           (real *)p->lb->att + b * n * h * dv + head * dv, h * dv);
}

static sd_status attend(pass *p, sd_err *err) {
    bool scores = wanted(p, SD_POINT_SCORES), pattern = wanted(p, SD_POINT_PATTERN);
    size_t n = (size_t)p->b->tokens, heads = (size_t)p->b->batch * (size_t)p->lc->n_head, all;
    const pass_stages *st = &SD_R(sd_pass_stages);
    char why[64];
    if (scores && sd_attn_no_scores(p->lc, why))
        scores = false;
    if (!scores && !pattern)
        return run(p, (size_t)p->b->batch * (size_t)p->lc->n_kv_head, st->heads, err);
    if (!sd_mul_size(heads, n * n, &all))
        return sd_fail(err, SD_ENOMEM, "patterns of %zu tokens overflow memory", n);
    square_job j = {.p = p, .s = sd_alloc_raw(all, sizeof *j.s, err)};
    int64_t t = p->b->tokens;
    bool new_scores = false, new_pattern = false;
    sd_status rc = j.s ? SD_OK : SD_ENOMEM;
    if (rc == SD_OK && scores)
        rc = form_scores(p, j.s, err);
    if (rc == SD_OK && scores)
        rc = visit(p, SD_POINT_SCORES, j.s, p->lc->n_head, t, t, &new_scores, err);
    if (rc == SD_OK && new_scores)
        sd_pool_run(p->ws->pool, heads, softmax_item, &j);
    else if (rc == SD_OK && pattern)
        rc = form_pattern(p, j.s, err);
    if (rc == SD_OK && pattern)
        rc = visit(p, SD_POINT_PATTERN, j.s, p->lc->n_head, t, t, &new_pattern, err);
    if (rc == SD_OK && (new_scores || new_pattern)) {
        sd_pool_run(p->ws->pool, heads, weigh_item, &j);
        rc = sd_check_cancel(err);
    } else if (rc == SD_OK) {
        rc = run(p, (size_t)p->b->batch * (size_t)p->lc->n_kv_head, st->heads, err);
    }
    sd_free(j.s);
    return rc;
}

/* ---- the way out, in stages
 * ---------------------------------------------------------------------- */

static void attn_out_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d, w = p->nl->attn_width;
    block_of(p, i, &r0, &n);
    real *y = p->out1 + r0 * d;
    SD_R(sd_k_base_bias)(n, d, NULL, par(p, p->l, SD_ROLE_BO), y);
    r_gemm(false, false, n, d, w, 1, (const real *)p->lb->att + r0 * w, w, par(p, p->l, SD_ROLE_WO),
           d, 1, y, d);
}

static void mid_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    real *x2 = (real *)p->lb->x2 + r0 * d, *s1 = is_post(p) ? (real *)p->lb->s1 + r0 * d : x2;
    memcpy(s1, p->x + r0 * d, n * d * sizeof *s1);
    SD_R(sd_k_add)(n * d, p->out1 + r0 * d, s1);
    if (is_post(p))
        SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, s1, par(p, p->l, SD_ROLE_NORM1_G), par(p, p->l, SD_ROLE_NORM1_B),
     (real)p->c->norm_eps, x2, (real *)p->lb->stat1 + 2 * r0);
}

static void norm2_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    const real *x = p->c->block == SD_BLOCK_PARALLEL ? p->x : p->lb->x2;
    SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, x + r0 * d, par(p, p->l, SD_ROLE_NORM2_G), par(p, p->l, SD_ROLE_NORM2_B),
     (real)p->c->norm_eps, (real *)p->lb->n2 + r0 * d, (real *)p->lb->stat2 + 2 * r0);
}

static void act_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    const sd_config *c = p->c;
    size_t r0, n, d = p->d, ff = (size_t)c->d_ff;
    block_of(p, i, &r0, &n);
    const real *in = mlp_in(p) + r0 * d, *b1 = par(p, p->l, SD_ROLE_B1);
    real *h1 = (real *)p->lb->h1 + r0 * ff, *h3 = c->gated_mlp ? (real *)p->lb->h3 + r0 * ff : NULL;
    r_gemm(false, false, n, ff, d, 1, in, d, par(p, p->l, SD_ROLE_W1), ff, 0, h1, ff);
    if (b1)
        SD_R(sd_k_add_bias)(n, ff, ff, b1, h1);
    if (h3)
        r_gemm(false, false, n, ff, d, 1, in, d, par(p, p->l, SD_ROLE_W3), ff, 0, h3, ff);
    SD_R(sd_k_act_fwd)(c->act, n * ff, h1, h3, (real *)p->lb->act + r0 * ff);
}

static void mlp_out_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d, ff = (size_t)p->c->d_ff;
    block_of(p, i, &r0, &n);
    real *y = p->out2 + r0 * d;
    SD_R(sd_k_base_bias)(n, d, NULL, par(p, p->l, SD_ROLE_B2), y);
    r_gemm(false, false, n, d, ff, 1, (const real *)p->lb->act + r0 * ff, ff,
           par(p, p->l, SD_ROLE_W2), d, 1, y, d);
}

static void end_rows(void *ctx, size_t i, int worker) {
    (void)worker;
    const pass *p = ctx;
    size_t r0, n, d = p->d;
    block_of(p, i, &r0, &n);
    bool side = p->c->block == SD_BLOCK_PARALLEL;
    real *y = p->y + r0 * d, *s = is_post(p) ? (real *)p->lb->s2 + r0 * d : y;
    memcpy(s, (side ? p->x : (const real *)p->lb->x2) + r0 * d, n * d * sizeof *s);
    if (side)
        SD_R(sd_k_add)(n * d, p->out1 + r0 * d, s);
    SD_R(sd_k_add)(n * d, p->out2 + r0 * d, s);
    if (is_post(p))
        SD_R(sd_k_norm_fwd)
    (p->c->norm, n, d, s, par(p, p->l, SD_ROLE_NORM2_G), par(p, p->l, SD_ROLE_NORM2_B),
     (real)p->c->norm_eps, y, (real *)p->lb->stat2 + 2 * r0);
}

/* A sublayer's input: shown in a copy where it is the residual stream itself, which a change of the
 * sublayer's input leaves alone. */
static sd_status visit_input(pass *p, sd_point point, const real *in, bool own, real **copy,
                             sd_err *err) {
    if (!wanted(p, point))
        return SD_OK;
    real *x = (real *)(uintptr_t)in; /* the workspace's own buffer */
    if (!own) {
        if (!(*copy = sd_alloc_raw(p->n * p->d, sizeof **copy, err)))
            return SD_ENOMEM;
        memcpy(*copy, in, p->n * p->d * sizeof **copy);
        x = *copy;
    }
    return visit_resid(p, point, x, NULL, err);
}

static sd_status way_out(pass *p, sd_err *err) {
    bool side = p->c->block == SD_BLOCK_PARALLEL, own = has_norm(p) && !is_post(p);
    if (!(p->out1 = sd_alloc_raw(p->n * p->d, sizeof *p->out1, err)) ||
        !(p->out2 = sd_alloc_raw(p->n * p->d, sizeof *p->out2, err)))
        return SD_ENOMEM;
    SD_TRY(run(p, p->blocks, attn_out_rows, err));
    SD_TRY(visit_resid(p, SD_POINT_ATTN_OUT, p->out1, NULL, err));
    if (!side) {
        SD_TRY(run(p, p->blocks, mid_rows, err));
        SD_TRY(visit_resid(p, SD_POINT_RESID_MID, p->lb->x2, NULL, err));
    }
    if (own)
        SD_TRY(run(p, p->blocks, norm2_rows, err));
    SD_TRY(visit_input(p, SD_POINT_MLP_IN, mlp_in(p), own, &p->in2, err));
    SD_TRY(run(p, p->blocks, act_rows, err));
    SD_TRY(visit(p, SD_POINT_MLP_ACT, p->lb->act, p->b->tokens, p->c->d_ff, 0, NULL, err));
    SD_TRY(run(p, p->blocks, mlp_out_rows, err));
    SD_TRY(visit_resid(p, SD_POINT_MLP_OUT, p->out2, NULL, err));
    return run(p, p->blocks, end_rows, err);
}

static sd_status stages(pass *p, sd_err *err) {
    const pass_stages *st = &SD_R(sd_pass_stages);
    const sd_layer_cfg *lc = p->lc;
    bool own = has_norm(p) && !is_post(p), parts = false;
    SD_TRY(visit_resid(p, SD_POINT_RESID_PRE, p->ws->x[p->l], NULL, err));
    SD_TRY(run(p, p->blocks, st->norm1, err));
    SD_TRY(visit_input(p, SD_POINT_ATTN_IN, attn_in(p), own, &p->in1, err));
    SD_TRY(run(p, p->blocks, st->project, err));
    SD_TRY(visit_slot(p, SD_POINT_Q, SD_SLOT_Q, lc->n_head, lc->d_qk, err));
    SD_TRY(visit_slot(p, SD_POINT_K, SD_SLOT_K, lc->n_kv_head, lc->d_qk, err));
    SD_TRY(visit_slot(p, SD_POINT_V, SD_SLOT_V, lc->n_kv_head, lc->d_v, err));
    if (p->nl->has[SD_SLOT_U])
        SD_TRY(visit(p, SD_POINT_D, p->lb->dval, p->b->tokens, lc->n_head, 0, NULL, err));
    const sd_forward_opts *o = p->opts;
    bool seen = o && o->capture, last = seen && o->stop_after_capture && p->l == p->c->n_layer - 1;
    if (seen && !o->capture_output)
        SD_TRY(st->capture(p, o, err));
    p->stop = last;
    if (last && !o->capture_output)
        return SD_OK;
    SD_TRY(attend(p, err));
    if (seen && o->capture_output)
        SD_TRY(st->capture(p, o, err));
    if (last)
        return SD_OK;
    SD_TRY(visit(p, SD_POINT_Z, p->lb->att, p->b->tokens, lc->n_head, lc->d_v, NULL, err));
    for (int k = SD_POINT_ATTN_OUT; k <= SD_POINT_MLP_OUT; k++)
        parts = parts || wanted(p, (sd_point)k);
    SD_TRY(parts ? way_out(p, err) : run(p, p->blocks, st->out, err));
    return visit_resid(p, SD_POINT_RESID_POST, p->y, NULL, err);
}

sd_status SD_R(sd_net_hooked_layer)(pass *p, sd_err *err) {
    sd_status st = stages(p, err);
    sd_free(p->in1);
    sd_free(p->in2);
    sd_free(p->out1);
    sd_free(p->out2);
    p->in1 = p->in2 = p->out1 = p->out2 = NULL;
    return st;
}

sd_status SD_R(sd_net_hooked_final)(pass *p, real *x, sd_err *err) {
    p->l = p->c->n_layer - 1;
    return visit_resid(p, SD_POINT_FINAL, x, NULL, err);
}

#endif
