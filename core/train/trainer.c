#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "nn/attn.h"
#include "num/blas.h"
#include "spectral/spectral.h"
#include "train/internal.h"

/* Of the held-out order: losses of runs with different seeds are over the same sequences. */
enum { HELD_OUT_SEED = 1 };

/* ---- data -------------------------------------------------------------------------------------
 */

typedef struct feed {
    sd_tokens *tokens;
    const sd_config *cfg;
    const sd_train_opts *o;
    uint64_t seed;
    uint64_t n;     /* pieces an epoch */
    uint64_t epoch; /* of `order` */
    uint32_t *order;
    int32_t mask_id;
} feed;

static sd_status feed_init(feed *f, sd_tokens *t, const sd_config *cfg, const sd_train_opts *o,
                           const sd_model *m, uint64_t seed, sd_err *err) {
    *f = (feed){.tokens = t, .cfg = cfg, .o = o, .seed = seed, .epoch = UINT64_MAX, .mask_id = -1};
    uint64_t count = sd_tokens_count(t), need = (uint64_t)o->ctx + (cfg->causal ? 1 : 0);
    if (count < need)
        return sd_fail(err, SD_EINVAL, "%s: holds %llu tokens; a sequence of ctx = %d needs %llu",
                       sd_tokens_path(t), (unsigned long long)count, o->ctx,
                       (unsigned long long)need);
    f->n = (count - (cfg->causal ? 1 : 0)) / (uint64_t)o->ctx;
    if (f->n > UINT32_MAX)
        f->n = UINT32_MAX;
    if (!cfg->causal) {
        sd_tokenizer *tok = sd_model_tokenizer(m);
        f->mask_id = tok ? sd_tokenizer_special(tok, "mask") : -1;
        if (f->mask_id < 0)
            return sd_fail(err, SD_EINVAL,
                           "masked-token training needs a tokenizer with a mask token");
    }
    if (o->shuffle && !(f->order = sd_alloc((size_t)f->n, sizeof *f->order, err)))
        return SD_ENOMEM;
    return SD_OK;
}

static void reorder(feed *f, uint64_t epoch) {
    sd_rng r;
    sd_rng_stream(&r, f->seed, 0x65706f6368, epoch);
    for (uint64_t i = 0; i < f->n; i++)
        f->order[i] = (uint32_t)i;
    for (uint64_t i = f->n; i > 1; i--) {
        uint64_t j = sd_rng_below(&r, i);
        uint32_t x = f->order[i - 1];
        f->order[i - 1] = f->order[j];
        f->order[j] = x;
    }
    f->epoch = epoch;
}

/* Sample `k` of the run: ids and targets of one sequence. */
static sd_status feed_sample(feed *f, uint64_t k, int32_t *ids, int32_t *targets, sd_err *err) {
    uint64_t epoch = k / f->n, i = k % f->n;
    if (f->order) {
        if (f->epoch != epoch)
            reorder(f, epoch);
        i = f->order[i];
    }
    size_t ctx = (size_t)f->o->ctx;
    uint64_t at = i * ctx;
    int vocab = f->cfg->vocab;
    SD_TRY(sd_tokens_read(f->tokens, at, ctx, vocab, ids, err));
    if (f->cfg->causal)
        return sd_tokens_read(f->tokens, at + 1, ctx, vocab, targets, err);
    /* BERT's recipe: of the chosen tokens 80% become [MASK], 10% random, 10% stay. */
    sd_rng r;
    sd_rng_stream(&r, f->seed, 0x6d6c6d, k);
    for (size_t t = 0; t < ctx; t++) {
        targets[t] = -1;
        if (sd_rng_uniform(&r) >= f->o->mlm)
            continue;
        targets[t] = ids[t];
        double u = sd_rng_uniform(&r);
        if (u < 0.8)
            ids[t] = f->mask_id;
        else if (u < 0.9)
            ids[t] = (int32_t)sd_rng_below(&r, (uint64_t)vocab);
    }
    return SD_OK;
}

/* ---- run --------------------------------------------------------------------------------------
 */

typedef struct state {
    sd_model *m;
    const sd_train_opts *o;
    const sd_run *run;
    sd_lock *lock; /* of the folder; NULL without one */
    sd_learner *l;
    sd_net *net;   /* l's */
    sd_net_ws *ws; /* l's */
    feed train, val;
    bool has_val;
    int32_t *ids, *targets; // (accum, B, T)
    sd_table *log, *cascade;
    int32_t *measure_ids;
    size_t n_measure;
    sd_run quiet; /* for measurements: no progress of their own; warnings once */
    int64_t step; /* updates done */
    size_t ws_bytes;
    double gemm_rate, flops_token;
    double flushed, flush_cost; /* when the tables were last written, seconds it took */
} state;

/* FLOP/s of an n³ f32 product on the run's threads: what the processor gives here and now. */
static double measure_gemm(size_t n, int threads) {
    float *a = sd_alloc(3 * n * n, sizeof *a, NULL);
    if (!a)
        return NAN;
    for (size_t i = 0; i < 2 * n * n; i++)
        a[i] = (float)(i % 17) * 0.01f;
    int old = sd_blas_threads(threads);
    double best = 0.0, flops = 2.0 * (double)n * (double)n * (double)n;
    for (int i = 0; i < 4; i++) {
        double t = sd_now();
        sd_gemm_f32(false, false, n, n, n, 1.0f, a, n, a + n * n, n, 0.0f, a + 2 * n * n, n);
        t = sd_now() - t;
        if (i && t > 0 && flops / t > best)
            best = flops / t;
    }
    sd_blas_threads(old);
    sd_free(a);
    return best > 0 ? best : NAN;
}

static sd_status evaluate(state *s, double *loss, sd_err *err) {
    const sd_train_opts *o = s->o;
    uint64_t windows = (uint64_t)o->eval_tokens / (uint64_t)o->ctx;
    if (windows < 1)
        windows = 1;
    if (windows > s->val.n)
        windows = s->val.n;
    double sum = 0.0;
    int64_t count = 0;
    for (uint64_t w = 0; w < windows;) {
        int b = 0;
        for (; b < o->batch && w < windows; b++, w++)
            SD_TRY(feed_sample(&s->val, w, s->ids + (size_t)b * (size_t)o->ctx,
                               s->targets + (size_t)b * (size_t)o->ctx, err));
        sd_net_batch batch = {.batch = b, .tokens = o->ctx, .ids = s->ids, .targets = s->targets};
        double nll;
        int64_t c;
        SD_TRY(sd_net_loss(s->net, s->ws, &batch, &nll, &c, NULL, err));
        sum += nll;
        count += c;
    }
    *loss = count ? sum / (double)count : NAN;
    return SD_OK;
}

/* Worst head of each S–D layer in a stability table. */
static void stability_of(sd_table *to, int row, const sd_table *stab, int layer) {
    int cl = sd_table_find_col(stab, "layer"), ct = sd_table_find_col(stab, "test"),
        cv = sd_table_find_col(stab, "value"), cd = sd_table_find_col(stab, "min_d"),
        ck = sd_table_find_col(stab, "ok");
    double re = -INFINITY, d = INFINITY;
    bool ok = true, any = false;
    for (int r = 0; r < sd_table_rows(stab); r++) {
        if (sd_table_int(stab, r, cl) != layer)
            continue;
        if (sd_table_has(stab, r, ck) && !sd_table_int(stab, r, ck))
            ok = false;
        if (strcmp(sd_table_str(stab, r, ct), "spectral") == 0 && sd_table_has(stab, r, cd)) {
            any = true;
            if (sd_table_num(stab, r, cv) > re)
                re = sd_table_num(stab, r, cv);
            if (sd_table_num(stab, r, cd) < d)
                d = sd_table_num(stab, r, cd);
        }
    }
    if (any) {
        sd_table_set_num(to, row, "max_re_l", re);
        sd_table_set_num(to, row, "min_d", d);
        sd_table_set_int(to, row, "stability", ok);
    }
}

static sd_status measure(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    sd_table *probe = NULL, *sum = NULL, *stab = NULL;
    sd_status st;
    bool any_sd = false;
    for (int l = 0; l < sd_model_config(s->m)->n_layer; l++)
        any_sd |= sd_attn_is_skew(&sd_model_config(s->m)->layer[l]);
    SD_GO(st, done, sd_net_store(s->net, s->m, err));
    sd_probe_opts p = {.ctx = o->ctx,
                       .max_seqs = o->measure_seqs,
                       .null_draws = o->measure_draws,
                       .tau = 3.0,
                       .seed = o->seed};
    SD_GO(st, done, sd_probe(s->m, s->measure_ids, s->n_measure, &p, &s->quiet, &probe, err));
    SD_GO(st, done, sd_rank_summary(probe, 3.0, &sum, err));
    if (any_sd)
        SD_GO(st, done, sd_stability(s->m, s->measure_ids, s->n_measure, &s->quiet, &stab, err));
    int cl = sd_table_find_col(sum, "layer");
    for (int r = 0; r < sd_table_rows(sum); r++) {
        int row;
        SD_GO(st, done, sd_table_add_row(s->cascade, &row, err));
        sd_table_set_int(s->cascade, row, "step", s->step);
        sd_table_set_int(s->cascade, row, "tokens", s->step * o->accum * o->batch * o->ctx);
        sd_table_set_int(s->cascade, row, "layer", sd_table_int(sum, r, cl));
        sd_columns_copy(s->cascade, row, SD_IN_CASCADE, sum, r);
        if (stab)
            stability_of(s->cascade, row, stab, (int)sd_table_int(sum, r, cl));
    }
    s->quiet.log = NULL; /* what the first measurement warned of holds for all */
    if (o->measured)
        o->measured(o->measured_ctx, s->cascade);
done:
    sd_table_unref(probe);
    sd_table_unref(sum);
    sd_table_unref(stab);
    return st;
}

static sd_status save_rows(state *s, sd_err *err) {
    SD_TRY(sd_rows_save(s->o->dir, "log", s->log, err));
    return sd_rows_save(s->o->dir, "cascade", s->cascade, err);
}

/* The tables while the run goes on, at most a twentieth of its time. A full disk is the business of
 * the next checkpoint. */
static void flush(state *s) {
    double now = sd_now();
    if (!s->o->dir || now - s->flushed < 5.0 + 20.0 * s->flush_cost)
        return;
    if (save_rows(s, NULL) != SD_OK)
        sd_run_log(s->run, SD_LOG_WARN, "%s: the log could not be written", s->o->dir);
    s->flushed = sd_now();
    s->flush_cost = s->flushed - now;
}

static sd_status save(state *s, sd_err *err) {
    if (!s->o->dir)
        return SD_OK;
    const char *bad = sd_optim_nonfinite(s->net, sd_net_params(s->net));
    if (bad)
        return sd_fail(err, SD_ENUMERIC,
                       "step %lld: parameter %s holds a non-finite value; not saved",
                       (long long)s->step, bad);
    sd_ckpt c = {s->o, sd_tokens_path(s->train.tokens),
                 s->has_val ? sd_tokens_path(s->val.tokens) : "", s->step};
    /* Rows first: rows beyond the checkpoint are dropped on resume, missing ones could not be
     * brought back. */
    SD_TRY(save_rows(s, err));
    return sd_ckpt_save(s->o->dir, &c, s->net, sd_learner_optim(s->l), err);
}

static sd_status save_model(state *s, const char *name, sd_err *err) {
    if (!s->o->dir)
        return SD_OK;
    sd_buf p = {0};
    sd_buf_printf(&p, "%s/%s", s->o->dir, name);
    sd_status st = sd_buf_status(&p, err);
    if (st == SD_OK)
        st = sd_model_save(s->m, p.p, NULL, err);
    sd_buf_free(&p);
    return st;
}

/* One update. The parameters change only in the last call, so that a failure or an interruption
 * leaves the state of the step before. */
static sd_status train_step(state *s, double *loss, double *norm, int64_t *scored, sd_err *err) {
    const sd_train_opts *o = s->o;
    size_t t = (size_t)o->ctx, bt = (size_t)o->batch * t;
    uint64_t first = (uint64_t)s->step * (uint64_t)o->accum * (uint64_t)o->batch;
    int64_t total = 0;
    for (size_t i = 0; i < (size_t)o->accum * (size_t)o->batch; i++)
        SD_TRY(feed_sample(&s->train, first + i, s->ids + i * t, s->targets + i * t, err));
    for (size_t i = 0; i < (size_t)o->accum * bt; i++)
        total += s->targets[i] >= 0;
    if (total == 0)
        return sd_fail(err, SD_EINVAL, "step %lld: no token to score", (long long)s->step);
    sd_learner_zero(s->l);
    double sum = 0.0;
    for (int a = 0; a < o->accum; a++) {
        sd_net_batch b = {.batch = o->batch,
                          .tokens = o->ctx,
                          .ids = s->ids + (size_t)a * bt,
                          .targets = s->targets + (size_t)a * bt};
        double nll;
        int64_t count;
        SD_TRY(sd_learner_backward(s->l, &b, 1.0 / (double)total, s->run, &nll, &count, NULL, err));
        sum += nll;
    }
    *loss = sum / (double)total;
    *scored = total;
    SD_TRY(sd_learner_update(s->l, &o->adam, sd_train_lr(o, s->step), o->clip, norm, err));
    s->step++;
    return SD_OK;
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static bool has_step(const sd_table *t, int64_t step) {
    int n = sd_table_rows(t);
    return n > 0 && sd_table_int(t, n - 1, sd_table_find_col(t, "step")) == step;
}

/* The held-out loss and the measurement that belong to the state as it is, unless the tables have
 * them: an interruption in the middle of them is made good on resume. */
static sd_status settle(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    bool last = s->step == o->steps;
    if (s->has_val && (last || due(o->eval_every, s->step)) && has_step(s->log, s->step)) {
        int row = sd_table_rows(s->log) - 1;
        if (!sd_table_has(s->log, row, sd_table_find_col(s->log, "val_loss"))) {
            double v, loss = sd_table_num(s->log, row, sd_table_find_col(s->log, "loss"));
            SD_TRY(evaluate(s, &v, err));
            sd_table_set_num(s->log, row, "val_loss", v);
            sd_run_log(s->run, SD_LOG_INFO,
                       "step %lld of %lld: loss %.4f, held-out %.4f (perplexity %.2f)",
                       (long long)s->step, (long long)o->steps, loss, v, exp(v));
        }
    }
    if (o->measure_every > 0 && (last || s->step % o->measure_every == 0) &&
        !has_step(s->cascade, s->step))
        SD_TRY(measure(s, err));
    return SD_OK;
}

static sd_status loop(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    double rate = 0.0;
    SD_TRY(settle(s, err));
    while (s->step < o->steps) {
        double t0 = sd_now(), loss = NAN, norm = NAN;
        int64_t scored;
        double lr = sd_train_lr(o, s->step);
        SD_TRY(sd_check_cancel(err));
        sd_status st = train_step(s, &loss, &norm, &scored, err);
        if (st == SD_ENUMERIC)
            sd_err_context(err, "step %lld", (long long)s->step);
        SD_TRY(st);
        double dt = sd_now() - t0;
        double tps = (double)o->accum * o->batch * o->ctx / (dt > 1e-9 ? dt : 1e-9);
        rate = rate > 0 ? 0.9 * rate + 0.1 * tps : tps;
        int row;
        SD_TRY(sd_table_add_row(s->log, &row, err));
        sd_table_set_int(s->log, row, "step", s->step);
        sd_table_set_int(s->log, row, "tokens", s->step * o->accum * o->batch * o->ctx);
        sd_table_set_num(s->log, row, "loss", loss);
        sd_table_set_num(s->log, row, "lr", lr);
        sd_table_set_num(s->log, row, "grad_norm", norm);
        sd_table_set_num(s->log, row, "tokens_s", tps);
        if (isfinite(s->gemm_rate))
            sd_table_set_num(s->log, row, "mfu", tps * s->flops_token / s->gemm_rate);
        char what[160];
        snprintf(what, sizeof what, "train: loss %.3f, %.0f tokens/s, %.0f%% of sgemm", loss, rate,
                 100.0 * rate * s->flops_token / s->gemm_rate);
        sd_run_progress(s->run, what, (double)s->step, (double)o->steps);
        SD_TRY(settle(s, err));
        if (s->step == o->steps || due(o->save_every, s->step))
            SD_TRY(save(s, err));
        else
            flush(s);
    }
    return SD_OK;
}

static sd_status check(const sd_train_opts *o, const sd_config *c, sd_err *err) {
    SD_TRY(sd_train_opts_check(o, err));
    if (c->pos == SD_POS_LEARNED && o->ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "ctx = %d: the position table holds %d", o->ctx, c->n_pos);
    if (!c->has_head)
        return sd_fail(err, SD_EINVAL, "the model has no output head to train with");
    if (o->resume && !o->dir)
        return sd_fail(err, SD_EINVAL, "resume needs the training folder (dir)");
    return SD_OK;
}

/* The learner of a run: planned, its layers chosen, its teacher there. */
static sd_status start_learner(state *s, int threads, sd_err *err) {
    const sd_train_opts *o = s->o;
    int n_layer = sd_model_config(s->m)->n_layer;
    sd_net_plan plan = {o->batch, o->ctx, threads, true, NULL};
    bool *recompute = NULL, *mask = NULL;
    sd_status st = SD_ENOMEM;
    if (o->recompute) {
        if (!(recompute = sd_alloc((size_t)n_layer, sizeof *recompute, err)))
            goto done;
        memset(recompute, 1, (size_t)n_layer * sizeof *recompute);
    }
    plan.recompute = recompute;
    SD_GO(st, done, sd_learner_new(s->m, SD_F32, &plan, &s->l, err));
    s->net = sd_learner_net(s->l);
    s->ws = sd_learner_ws(s->l);
    s->ws_bytes = sd_net_ws_bytes(s->net, &plan);
    if (o->layers) {
        if (!(mask = sd_alloc(sd_net_n_slices(s->net), sizeof *mask, err))) {
            st = SD_ENOMEM;
            goto done;
        }
        for (size_t i = 0; i < sd_net_n_slices(s->net); i++) {
            int l = sd_net_slice_at(s->net, i)->layer;
            mask[i] = l >= 0 && o->layers[l];
        }
        sd_learner_choose(s->l, mask);
    }
    st = sd_learner_teach(s->l, o->teacher, o->teacher_weight, err);
done:
    sd_free(recompute);
    sd_free(mask);
    return st;
}

/* A fixed batch to measure on: the first tokens of the held-out file, else of the training file. */
static sd_status measuring_batch(state *s, sd_tokens *src, sd_err *err) {
    s->n_measure = (size_t)s->o->ctx * (size_t)s->o->measure_seqs;
    if (s->n_measure > sd_tokens_count(src))
        s->n_measure = (size_t)sd_tokens_count(src);
    s->measure_ids = sd_alloc(s->n_measure + 1, sizeof *s->measure_ids, err);
    if (!s->measure_ids)
        return SD_ENOMEM;
    return sd_tokens_read(src, 0, s->n_measure, sd_model_config(s->m)->vocab, s->measure_ids, err);
}

/* Everything of a run but its state: learner, data, buffers, tables. */
static sd_status prepare(state *s, sd_tokens *train, sd_tokens *val, int threads, sd_err *err) {
    const sd_train_opts *o = s->o;
    const sd_config *c = sd_model_config(s->m);
    SD_TRY(start_learner(s, threads, err));
    SD_TRY(feed_init(&s->train, train, c, o, s->m, o->seed, err));
    if (val)
        SD_TRY(feed_init(&s->val, val, c, o, s->m, HELD_OUT_SEED, err));
    size_t all = (size_t)o->accum * (size_t)o->batch * (size_t)o->ctx;
    if (!(s->ids = sd_alloc(all, sizeof *s->ids, err)) ||
        !(s->targets = sd_alloc(all, sizeof *s->targets, err)))
        return SD_ENOMEM;
    SD_TRY(sd_log_new(&s->log, err));
    SD_TRY(sd_cascade_new(&s->cascade, err));
    SD_TRY(sd_table_meta_str(s->cascade, "model", sd_model_name(s->m), err));
    SD_TRY(sd_table_meta_str(s->log, "model", sd_model_name(s->m), err));
    return o->measure_every > 0 ? measuring_batch(s, val ? val : train, err) : SD_OK;
}

/* The state of the folder's checkpoint. */
static sd_status go_on(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    SD_TRY(sd_ckpt_load(o->dir, s->net, sd_learner_optim(s->l), &s->step, err));
    if (s->step > o->steps)
        return sd_fail(err, SD_EINVAL, "%s: the checkpoint is of step %lld, the run of %lld",
                       o->dir, (long long)s->step, (long long)o->steps);
    sd_learner_set_steps(s->l, s->step);
    SD_TRY(sd_rows_load(o->dir, "log", s->step, s->log, err));
    SD_TRY(sd_rows_load(o->dir, "cascade", s->step, s->cascade, err));
    sd_dir_sweep(o->dir);
    return SD_OK;
}

static void announce(state *s, int threads) {
    const sd_train_opts *o = s->o;
    double all = (double)o->accum * o->batch * o->ctx;
    s->flops_token = sd_net_flops(s->net, o->ctx, true);
    /* A run of a few seconds is not worth a long look at the processor. */
    bool brief = s->flops_token * (double)(o->steps - s->step) * all < 2e11;
    s->gemm_rate = measure_gemm(brief ? 256 : 1024, threads);
    sd_run_log(s->run, SD_LOG_INFO,
               "training %s: %.2fM parameters, %lld steps of %d x %d x %d tokens, activations %.2f "
               "GB, sgemm %.0f GFLOP/s on %d threads",
               sd_model_name(s->m), (double)sd_net_n_params(s->net) / 1e6, (long long)o->steps,
               o->accum, o->batch, o->ctx, (double)s->ws_bytes / 1e9, s->gemm_rate / 1e9, threads);
}

/* Interrupted: the last finished step into m, and into a checkpoint. The request has been heard;
 * what is left to do polls the flag and must not be stopped by it, nor by an impatient second one.
 */
static sd_status interrupted(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    int asked = sd_cancel_flag;
    sd_err e = {SD_OK, ""};
    sd_status st;
    int tries = 0;
    do {
        sd_cancel_flag = 0;
        st = sd_net_store(s->net, s->m, &e);
        if (st == SD_OK)
            st = save(s, &e);
    } while (st == SD_ECANCEL && ++tries < 3);
    sd_cancel_flag = asked;
    if (st != SD_OK)
        return sd_fail(err, st, "interrupted after step %lld; %s", (long long)s->step, e.text);
    if (o->dir) {
        sd_fail(&e, SD_ECANCEL, "interrupted after step %lld of %lld; go on with resume \"%s\"",
                (long long)s->step, (long long)o->steps, o->dir);
        sd_run_log(s->run, SD_LOG_INFO, "%s", e.text); /* a prompt says only "interrupted" */
        if (err)
            *err = e;
    }
    return SD_ECANCEL;
}

static sd_status finished(state *s, sd_err *err) {
    const sd_train_opts *o = s->o;
    SD_TRY(sd_net_store(s->net, s->m, err));
    if (o->finished)
        SD_TRY(o->finished(o->finished_ctx, s->m, err));
    if (o->dir)
        SD_TRY(save_rows(s, err));
    return save_model(s, "model", err);
}

/* The folder is ours until the run ends, and ready for it; only then is anything of it removed. */
static sd_status own_folder(const sd_train_opts *o, sd_lock **lock, sd_err *err) {
    if (!o->dir || (o->resume && !sd_path_is_dir(o->dir)))
        return SD_OK; /* nothing to own; resuming says so */
    SD_TRY(sd_mkdirs(o->dir, err));
    char *path = sd_path_join(o->dir, "lock", err);
    sd_status st = path ? sd_lock_take(path, o->dir, lock, err) : SD_ENOMEM;
    sd_free(path);
    if (st == SD_OK && !o->resume)
        st = sd_dir_begin(o->dir, o->overwrite, err);
    return st;
}

static void state_free(state *s) {
    sd_table_unref(s->log);
    sd_table_unref(s->cascade);
    sd_free(s->train.order);
    sd_free(s->val.order);
    sd_free(s->measure_ids);
    sd_free(s->ids);
    sd_free(s->targets);
    sd_learner_free(s->l);
    sd_lock_release(s->lock);
}

sd_status sd_train(sd_model *m, sd_tokens *train, sd_tokens *val, const sd_train_opts *o,
                   const sd_run *run, sd_table **log, sd_table **cascade, sd_err *err) {
    if (log)
        *log = NULL;
    if (cascade)
        *cascade = NULL;
    SD_TRY(check(o, sd_model_config(m), err));
    SD_TRY(sd_tokens_check(train, sd_model_config(m)->vocab, err));
    if (val)
        SD_TRY(sd_tokens_check(val, sd_model_config(m)->vocab, err));
    state s = {.m = m, .o = o, .run = run, .has_val = val != NULL, .flushed = sd_now()};
    if (run)
        s.quiet = *run;
    s.quiet.progress = NULL;
    int threads = sd_run_threads(run);
    sd_status st;
    SD_GO(st, done, own_folder(o, &s.lock, err));
    SD_GO(st, done, prepare(&s, train, val, threads, err));
    if (o->resume) {
        SD_GO(st, done, go_on(&s, err));
    } else if (o->dir) {
        SD_GO(st, done, save_model(&s, "start", err)); /* shape and tokenizer, for resume */
        SD_GO(st, done, save(&s, err));
    }
    announce(&s, threads);
    st = loop(&s, err);
    if (st == SD_ECANCEL)
        st = interrupted(&s, err);
    else if (st == SD_OK)
        st = finished(&s, err);
    else if (o->dir && save_rows(&s, NULL) != SD_OK)
        sd_run_log(run, SD_LOG_WARN, "%s: the log could not be written", o->dir);
    if (log && s.log)
        *log = sd_table_ref(s.log);
    if (cascade && s.cascade)
        *cascade = sd_table_ref(s.cascade);
done:
    state_free(&s);
    return st;
}
