#include "train/learner.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct sd_learner {
    sd_net *net;
    sd_net_ws *ws;
    sd_optim *opt;
    void *grad;
    size_t grad_bytes;
    int64_t steps;
    sd_model *teacher; /* NULL: none */
    double weight;
    float *logits;   // (B, T, V) of the teacher
    double *entropy; // (B, T) of its distributions
    size_t rows;     /* the largest B·T */
};

sd_status sd_learner_new(sd_model *m, sd_dtype type, const sd_net_plan *plan, sd_learner **out,
                         sd_err *err) {
    static const sd_adamw any = {0.9, 0.95, 1e-8, 0.1}; /* each update brings its own */
    *out = NULL;
    sd_net_plan p = *plan;
    p.backward = true;
    sd_learner *l = sd_alloc(1, sizeof *l, err);
    if (!l)
        return SD_ENOMEM;
    sd_status st;
    SD_GO(st, fail, sd_net_new(m, type, &l->net, err));
    SD_GO(st, fail, sd_net_ws_new(l->net, &p, &l->ws, err));
    SD_GO(st, fail, sd_optim_new(l->net, &any, NULL, &l->opt, err));
    l->rows = (size_t)plan->batch * (size_t)plan->tokens;
    l->grad_bytes = sd_net_size(l->net) * (type == SD_F64 ? sizeof(double) : sizeof(float));
    if (!(l->grad = sd_alloc(l->grad_bytes, 1, err))) {
        st = SD_ENOMEM;
        goto fail;
    }
    *out = l;
    return SD_OK;
fail:
    sd_learner_free(l);
    return st;
}

void sd_learner_free(sd_learner *l) {
    if (!l)
        return;
    sd_model_unref(l->teacher);
    sd_free(l->logits);
    sd_free(l->entropy);
    sd_free(l->grad);
    sd_optim_free(l->opt);
    sd_net_ws_free(l->ws);
    sd_net_free(l->net);
    sd_free(l);
}

sd_net *sd_learner_net(sd_learner *l) {
    return l->net;
}
sd_net_ws *sd_learner_ws(sd_learner *l) {
    return l->ws;
}
sd_optim *sd_learner_optim(sd_learner *l) {
    return l->opt;
}
void *sd_learner_grad(sd_learner *l) {
    return l->grad;
}
int64_t sd_learner_steps(const sd_learner *l) {
    return l->steps;
}
void sd_learner_set_steps(sd_learner *l, int64_t steps) {
    l->steps = steps;
}
void sd_learner_choose(sd_learner *l, const bool *slices) {
    sd_optim_choose(l->opt, l->net, slices);
}
void sd_learner_zero(sd_learner *l) {
    memset(l->grad, 0, l->grad_bytes);
}

sd_status sd_learner_teach(sd_learner *l, sd_model *teacher, double weight, sd_err *err) {
    int vocab = sd_net_config(l->net)->vocab;
    if (!(weight >= 0 && weight <= 1))
        return sd_fail(err, SD_EINVAL, "the teacher's weight %g is not in 0..1", weight);
    if (teacher && sd_model_config(teacher)->vocab != vocab)
        return sd_fail(err, SD_EINVAL, "the teacher has %d tokens, the model %d",
                       sd_model_config(teacher)->vocab, vocab);
    if (teacher && weight > 0 && !l->logits) {
        size_t n;
        if (!sd_mul_size(l->rows, (size_t)vocab, &n) ||
            !(l->logits = sd_alloc_raw(n, sizeof *l->logits, err)))
            return sd_fail(err, SD_ENOMEM, "the teacher's logits: %zu x %d numbers", l->rows,
                           vocab);
    }
    sd_model *old = l->teacher;
    l->teacher = teacher && weight > 0 ? sd_model_ref(teacher) : NULL;
    l->weight = weight;
    sd_model_unref(old);
    return SD_OK;
}

typedef struct entropy_job {
    const sd_net_batch *b;
    size_t vocab;
    double *out;
} entropy_job;

/* Entropy of softmax(teacher row) at scored positions: ln Σe^x − Σ x e^x / Σe^x. */
static void entropy_row(void *ctx, size_t i, int worker) {
    (void)worker;
    const entropy_job *j = ctx;
    const float *x = j->b->teacher + i * j->vocab;
    double top = x[0], s = 0, sx = 0;
    j->out[i] = 0;
    if (j->b->targets[i] < 0)
        return;
    for (size_t v = 1; v < j->vocab; v++)
        top = x[v] > top ? x[v] : top;
    for (size_t v = 0; v < j->vocab; v++) {
        double e = exp(x[v] - top);
        s += e;
        sx += e * (x[v] - top);
    }
    j->out[i] = log(s) - sx / s;
}

static sd_status teacher_entropy(sd_learner *l, const sd_net_batch *b, double *sum, sd_err *err) {
    size_t n = (size_t)b->batch * (size_t)b->tokens;
    if (!l->entropy && !(l->entropy = sd_alloc(l->rows, sizeof *l->entropy, err)))
        return SD_ENOMEM;
    entropy_job j = {b, (size_t)sd_net_config(l->net)->vocab, l->entropy};
    sd_net_parallel(l->ws, n, entropy_row, &j);
    *sum = 0;
    for (size_t i = 0; i < n; i++)
        *sum += l->entropy[i];
    return SD_OK;
}

static sd_status nonfinite(sd_learner *l, const char *what, double value, sd_err *err) {
    if (isnan(value))
        value = NAN; // of either sign, "nan" in the message
    const char *p = sd_optim_nonfinite(l->net, sd_net_params(l->net));
    if (p)
        return sd_fail(err, SD_ENUMERIC,
                       "%s is %g: parameter %s holds a non-finite value; stopped before the update",
                       what, value, p);
    const char *g = sd_optim_nonfinite(l->net, l->grad);
    if (g)
        return sd_fail(err, SD_ENUMERIC,
                       "%s is %g: the gradient of %s is the first non-finite one; stopped before "
                       "the update",
                       what, value, g);
    return sd_fail(err, SD_ENUMERIC, "%s is %g; stopped before the update", what, value);
}

sd_status sd_learner_backward(sd_learner *l, const sd_net_batch *batch, double scale,
                              const sd_run *run, double *nll_sum, int64_t *count, double *kl_sum,
                              sd_err *err) {
    sd_net_batch b = *batch;
    double loss = 0;
    if (kl_sum)
        *kl_sum = 0;
    if (l->teacher) {
        sd_forward_opts fo = {.run = run};
        SD_TRY(sd_forward(l->teacher, b.ids, b.batch, b.tokens, &fo, NULL, l->logits, err));
        b.teacher = l->logits;
        b.teacher_weight = l->weight;
    }
    SD_TRY(sd_net_backward(l->net, l->ws, &b, scale, l->grad, nll_sum, count, &loss, err));
    if (!isfinite(*nll_sum) || !isfinite(loss))
        return nonfinite(l, "the loss", isfinite(loss) ? *nll_sum : loss, err);
    if (l->teacher && kl_sum) {
        double entropy;
        SD_TRY(teacher_entropy(l, &b, &entropy, err));
        *kl_sum = (loss - (1 - l->weight) * *nll_sum) / l->weight - entropy;
    }
    return SD_OK;
}

sd_status sd_learner_update(sd_learner *l, const sd_adamw *p, double lr, double clip, double *norm,
                            sd_err *err) {
    double n = sd_optim_grad_norm(l->opt, l->ws, l->grad);
    if (norm)
        *norm = n;
    if (!isfinite(n))
        return nonfinite(l, "the gradient norm", n, err);
    sd_optim_set(l->opt, p);
    sd_optim_step(l->opt, l->net, l->ws, l->grad, clip > 0 && n > clip ? clip / n : 1.0, lr,
                  l->steps + 1);
    l->steps++;
    return SD_OK;
}
