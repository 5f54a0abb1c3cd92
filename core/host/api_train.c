/* api_train.c: the plugin table's group "train". */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/api.h"
#include "train/trainer.h"

struct sd_api_trainer {
    sd_learner *l;
    bool *chosen;      /* (n_slices) */
    int batch, tokens; /* the largest */
};

void sd_api_trainer_free(sd_api_trainer *t) {
    if (!t)
        return;
    sd_learner_free(t->l);
    sd_free(t->chosen);
    sd_free(t);
}

static sd_htrain *h_train_new(sd_call *c, sd_hmodel *m, int32_t batch, int32_t tokens) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return NULL;
    if (batch < 1 || tokens < 1) {
        sd_api_fail(c, SD_EINVAL, "a batch of %d x %d tokens", batch, tokens);
        return NULL;
    }
    sd_api_trainer *t = sd_alloc(1, sizeof *t, &c->err);
    if (!t)
        return NULL;
    t->batch = batch;
    t->tokens = tokens;
    sd_net_plan plan = {
        .batch = batch, .tokens = tokens, .threads = sd_run_threads(&c->s->run), .backward = true};
    sd_handle *out = NULL;
    if (sd_learner_new(h->u.model, SD_F32, &plan, &t->l, &c->err) == SD_OK &&
        (t->chosen = sd_alloc(sd_net_n_slices(sd_learner_net(t->l)), sizeof *t->chosen, &c->err)) !=
            NULL &&
        (out = sd_api_new(c, H_TRAIN)) != NULL) {
        out->u.train = t;
        return (sd_htrain *)out;
    }
    sd_api_trainer_free(t);
    return NULL;
}

static sd_api_trainer *train_of(sd_call *c, const sd_htrain *t) {
    sd_handle *h = sd_api_check(c, t, H_TRAIN);
    return h ? h->u.train : NULL;
}

static size_t h_train_size(sd_call *c, sd_htrain *p) {
    sd_api_trainer *t = train_of(c, p);
    return t ? sd_net_size(sd_learner_net(t->l)) : 0;
}

static float *h_train_params(sd_call *c, sd_htrain *p) {
    sd_api_trainer *t = train_of(c, p);
    return t ? sd_net_params(sd_learner_net(t->l)) : NULL;
}

static float *h_train_grad(sd_call *c, sd_htrain *p) {
    sd_api_trainer *t = train_of(c, p);
    return t ? sd_learner_grad(t->l) : NULL;
}

static size_t h_train_n_slices(sd_call *c, sd_htrain *p) {
    sd_api_trainer *t = train_of(c, p);
    return t ? sd_net_n_slices(sd_learner_net(t->l)) : 0;
}

static int h_train_slice(sd_call *c, sd_htrain *p, size_t i, sd_hslice *out) {
    sd_api_trainer *t = train_of(c, p);
    if (!t)
        return c->err.code;
    if (i >= sd_net_n_slices(sd_learner_net(t->l)))
        return sd_api_fail(c, SD_EINVAL, "slice %zu of %zu", i,
                           sd_net_n_slices(sd_learner_net(t->l)));
    const sd_net_slice *s = sd_net_slice_at(sd_learner_net(t->l), i);
    sd_hslice v = {
        .layer = s->layer, .offset = (int64_t)s->offset, .n = (int64_t)s->n, .decay = s->decay};
    snprintf(v.role, sizeof v.role, "%s", sd_role_name(s->role));
    snprintf(v.name, sizeof v.name, "%s", s->name);
    return sd_api_fill(c, out, &v, sizeof v);
}

static bool train_batch(sd_call *c, const sd_api_trainer *t, const int32_t *ids,
                        const int32_t *targets, int32_t batch, int32_t tokens, sd_net_batch *out) {
    int vocab = sd_net_config(sd_learner_net(t->l))->vocab;
    if (!ids || !targets || batch < 1 || tokens < 1 || batch > t->batch || tokens > t->tokens) {
        sd_api_fail(c, SD_EINVAL, "a batch of %d x %d tokens; the trainer was made for %d x %d",
                    batch, tokens, t->batch, t->tokens);
        return false;
    }
    for (size_t i = 0; i < (size_t)batch * (size_t)tokens; i++)
        if (ids[i] < 0 || ids[i] >= vocab || targets[i] < -1 || targets[i] >= vocab) {
            sd_api_fail(c, SD_EINVAL, "token or target %zu is outside 0..%d", i, vocab - 1);
            return false;
        }
    *out = (sd_net_batch){.batch = batch, .tokens = tokens, .ids = ids, .targets = targets};
    return true;
}

static int train_result(sd_call *c, double sum, int64_t count, double *loss) {
    if (count == 0)
        return sd_api_fail(c, SD_EINVAL, "a batch without scored targets");
    double v = sum / (double)count;
    if (loss)
        *loss = v;
    return isfinite(v) ? 0 : sd_api_fail(c, SD_ENUMERIC, "the loss is not finite");
}

static int h_train_loss(sd_call *c, sd_htrain *p, const int32_t *ids, const int32_t *targets,
                        int32_t batch, int32_t tokens, double *loss) {
    sd_api_trainer *t = train_of(c, p);
    sd_net_batch b;
    double sum = 0;
    int64_t count = 0;
    if (!t || !train_batch(c, t, ids, targets, batch, tokens, &b) ||
        sd_net_loss(sd_learner_net(t->l), sd_learner_ws(t->l), &b, &sum, &count, NULL, &c->err) !=
            SD_OK)
        return c->err.code;
    return train_result(c, sum, count, loss);
}

static void h_train_zero(sd_call *c, sd_htrain *p) {
    sd_api_trainer *t = train_of(c, p);
    if (t)
        sd_learner_zero(t->l);
}

static int h_train_backward(sd_call *c, sd_htrain *p, const int32_t *ids, const int32_t *targets,
                            int32_t batch, int32_t tokens, double scale, double *loss) {
    sd_api_trainer *t = train_of(c, p);
    sd_net_batch b;
    double sum = 0;
    int64_t count = 0, scored = 0;
    if (!t || !train_batch(c, t, ids, targets, batch, tokens, &b))
        return c->err.code;
    for (size_t i = 0; i < (size_t)batch * (size_t)tokens; i++)
        scored += targets[i] >= 0;
    if (scored == 0)
        return train_result(c, 0, 0, loss);
    if (sd_learner_backward(t->l, &b, scale / (double)scored, &c->s->run, &sum, &count, NULL,
                            &c->err) != SD_OK)
        return c->err.code;
    return train_result(c, sum, count, loss);
}

static int h_train_step(sd_call *c, sd_htrain *p, const sd_hadamw *o, const unsigned char *mask) {
    sd_api_trainer *t = train_of(c, p);
    if (!t)
        return c->err.code;
    if (!o || o->struct_size < sizeof *o)
        return sd_api_fail(c, SD_EINVAL, "train_step: struct_size is not set");
    if (!isfinite(o->lr) || isnan(o->clip))
        return sd_api_fail(c, SD_EINVAL, "train_step: lr %g, clip %g", o->lr, o->clip);
    sd_adamw a = {o->beta1, o->beta2, o->eps, o->weight_decay};
    if (sd_adamw_check(&a, &c->err) != SD_OK)
        return c->err.code;
    size_t n = sd_net_n_slices(sd_learner_net(t->l));
    for (size_t i = 0; mask && i < n; i++)
        t->chosen[i] = mask[i];
    sd_learner_choose(t->l, mask ? t->chosen : NULL);
    return sd_learner_update(t->l, &a, o->lr, o->clip, NULL, &c->err);
}

static int h_train_store(sd_call *c, sd_htrain *p, sd_hmodel *m) {
    sd_api_trainer *t = train_of(c, p);
    sd_handle *h = t ? sd_api_writable(c, m) : NULL;
    return h ? (int)sd_net_store(sd_learner_net(t->l), h->u.model, &c->err) : (int)c->err.code;
}

static void h_train_release(sd_call *c, sd_htrain *t) {
    sd_api_drop(c, t, H_TRAIN);
}

static int h_train_teach(sd_call *c, sd_htrain *p, sd_hmodel *teacher, double weight) {
    sd_api_trainer *t = train_of(c, p);
    sd_handle *h = t && teacher ? sd_api_model_of(c, teacher) : NULL;
    if (!t || (teacher && !h))
        return c->err.code;
    return sd_learner_teach(t->l, h ? h->u.model : NULL, weight, &c->err);
}

static sd_status run_options(sd_call *c, const sd_htrain_run *o, const sd_model *m,
                             sd_train_opts *out) {
    sd_train_defaults(out);
    if (o->steps)
        out->steps = o->steps;
    if (o->batch)
        out->batch = o->batch;
    if (o->lr != 0)
        out->lr = o->lr;
    out->ctx = o->ctx ? o->ctx : sd_default_ctx(m, out->ctx);
    out->warmup = o->warmup < 0 ? -1 : o->warmup;
    out->min_lr = o->min_lr < 0 ? 0.1 * out->lr : o->min_lr;
    out->seed = o->seed;
    if (!o->teacher)
        return SD_OK;
    const sd_handle *h = sd_api_model_of(c, o->teacher);
    if (!h)
        return c->err.code;
    out->teacher = h->u.model;
    out->teacher_weight = o->teacher_weight;
    return SD_OK;
}

static int h_train_run(sd_call *c, sd_hmodel *p, const int32_t *ids, size_t n, const char *data,
                       const sd_htrain_run *o) {
    sd_handle *h = sd_api_writable(c, p);
    sd_train_opts opts;
    if (!h)
        return c->err.code;
    sd_model *m = h->u.model;
    if (!o || o->struct_size < sizeof *o)
        return sd_api_fail(c, SD_EINVAL, "train_run: struct_size is not set");
    if (!ids == !data)
        return sd_api_fail(c, SD_EINVAL, "train_run: %s",
                           ids ? "both ids and a token file" : "neither ids nor a token file");
    if (run_options(c, o, m, &opts) != SD_OK)
        return c->err.code;
    bool *layers = NULL;
    sd_tokens *t = NULL;
    sd_status st = SD_OK;
    int L = sd_model_config(m)->n_layer;
    if (o->layers) {
        opts.layers = layers = sd_alloc((size_t)L, sizeof *layers, &c->err);
        st = layers ? SD_OK : SD_ENOMEM;
        for (int l = 0; layers && l < L; l++)
            layers[l] = o->layers[l] != 0;
    }
    if (st == SD_OK)
        st =
            ids ? sd_tokens_from_ids(ids, n, &t, &c->err) : sd_tokens_open(data, NULL, &t, &c->err);
    if (st == SD_OK)
        st = sd_same_tokenizer(m, t, &c->err);
    if (st == SD_OK)
        st = sd_train(m, t, NULL, &opts, &c->s->run, NULL, NULL, &c->err);
    sd_tokens_free(t);
    sd_free(layers);
    return (int)st;
}

void sd_api_train(sd_host *t) {
    t->train_new = h_train_new;
    t->train_size = h_train_size;
    t->train_params = h_train_params;
    t->train_grad = h_train_grad;
    t->train_n_slices = h_train_n_slices;
    t->train_slice = h_train_slice;
    t->train_loss = h_train_loss;
    t->train_zero = h_train_zero;
    t->train_backward = h_train_backward;
    t->train_step = h_train_step;
    t->train_store = h_train_store;
    t->train_release = h_train_release;
    t->train_teach = h_train_teach;
    t->train_run = h_train_run;
}
