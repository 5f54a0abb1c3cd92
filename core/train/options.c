/* options.c: a run's options: one table of names and ranges behind defaults, checking, the
 * checkpoint's JSON and the arguments of `train`. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "train/internal.h"

/* The largest whole number that a double and so JSON and Lua carry. */
#define BIG 9007199254740992.0

#define I64(name_, field_, min_, max_) \
    { name_, name_, SD_TRAIN_I64, offsetof(sd_train_opts, field_), min_, max_ }
#define INT(name_, field_, min_, max_) \
    { name_, name_, SD_TRAIN_INT, offsetof(sd_train_opts, field_), min_, max_ }
#define NUM(name_, key_, field_, min_, max_) \
    { name_, key_, SD_TRAIN_NUM, offsetof(sd_train_opts, field_), min_, max_ }

static const sd_train_opt table[] = {
    I64("steps", steps, 1, BIG),
    INT("batch", batch, 1, 65536),
    INT("ctx", ctx, 1, 1048576),
    INT("accum", accum, 1, 65536),
    I64("warmup", warmup, -1, BIG), /* -1: left to the default */
    I64("eval_every", eval_every, 0, BIG),
    I64("eval_tokens", eval_tokens, 1, BIG),
    I64("measure_every", measure_every, 0, BIG),
    INT("measure_seqs", measure_seqs, 1, 1000),
    INT("measure_draws", measure_draws, 0, 1000),
    I64("save_every", save_every, 0, BIG),
    NUM("lr", "lr", lr, 0, 1e9),
    NUM("min_lr", "min_lr", min_lr, 0, 1e9),
    NUM("beta1", "beta1", adam.beta1, 0, 0.9999999),
    NUM("beta2", "beta2", adam.beta2, 0, 0.9999999),
    NUM("eps", "eps", adam.eps, 0, 1),
    NUM("decay", "weight_decay", adam.weight_decay, 0, 10),
    NUM("clip", "clip", clip, 0, 1e9),
    NUM("mlm", "mlm", mlm, 0.001, 0.99),
    NUM("teacher_weight", "teacher_weight", teacher_weight, 0, 1),
};
enum { N_OPTS = sizeof table / sizeof *table };

const sd_train_opt *sd_train_opt_at(size_t i) {
    return i < N_OPTS ? &table[i] : NULL;
}

double sd_train_opt_get(const sd_train_opts *o, const sd_train_opt *t) {
    const char *p = (const char *)o + t->offset;
    if (t->kind == SD_TRAIN_NUM)
        return *(const double *)(const void *)p;
    return t->kind == SD_TRAIN_INT ? *(const int *)(const void *)p
                                   : (double)*(const int64_t *)(const void *)p;
}

void sd_train_opt_set(sd_train_opts *o, const sd_train_opt *t, double v) {
    char *p = (char *)o + t->offset;
    if (t->kind == SD_TRAIN_NUM)
        *(double *)(void *)p = v;
    else if (t->kind == SD_TRAIN_INT)
        *(int *)(void *)p = (int)v;
    else
        *(int64_t *)(void *)p = (int64_t)v;
}

void sd_train_defaults(sd_train_opts *o) {
    memset(o, 0, sizeof *o);
    o->steps = 1000;
    o->batch = 8;
    o->ctx = 256;
    o->accum = 1;
    o->lr = 6e-4;
    o->min_lr = 6e-5;
    o->warmup = -1;
    o->adam = (sd_adamw){0.9, 0.95, 1e-8, 0.1};
    o->clip = 1.0;
    o->seed = 1;
    o->shuffle = true;
    o->mlm = 0.15;
    o->eval_tokens = 32768;
    o->measure_seqs = 2;
    o->measure_draws = 10;
}

double sd_train_lr(const sd_train_opts *o, int64_t step) {
    int64_t warmup = o->warmup >= 0 ? o->warmup : o->steps / 20 < 200 ? o->steps / 20 : 200;
    if (step < warmup)
        return o->lr * (double)(step + 1) / (double)warmup;
    if (o->steps <= warmup)
        return o->lr;
    double x = (double)(step - warmup) / (double)(o->steps - warmup);
    return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1.0 + cos(3.14159265358979323846 * x));
}

sd_status sd_train_opts_check(const sd_train_opts *o, sd_err *err) {
    for (size_t i = 0; i < N_OPTS; i++) {
        double v = sd_train_opt_get(o, &table[i]);
        if (!(v >= table[i].min && v <= table[i].max))
            return sd_fail(err, SD_EINVAL, "%s = %g is not in %g..%g", table[i].name, v,
                           table[i].min, table[i].max);
    }
    if (!(o->lr > 0))
        return sd_fail(err, SD_EINVAL, "lr = %g must be positive", o->lr);
    int64_t tokens = (int64_t)o->batch * o->ctx; /* at most 2^36 */
    if (tokens > INT32_MAX / 4 || tokens * o->accum > INT32_MAX / 4)
        return sd_fail(err, SD_EINVAL, "batch x ctx x accum = %d x %d x %d is too large", o->batch,
                       o->ctx, o->accum);
    return SD_OK;
}

sd_status sd_train_opts_json(const sd_train_opts *o, sd_buf *b, sd_err *err) {
    sd_buf_printf(b, "{\"seed\": %" PRId64 ", \"shuffle\": %s, \"recompute\": %s", (int64_t)o->seed,
                  o->shuffle ? "true" : "false", o->recompute ? "true" : "false");
    for (size_t i = 0; i < N_OPTS; i++) {
        sd_buf_printf(b, ", \"%s\": ", table[i].key);
        double v = sd_train_opt_get(o, &table[i]);
        if (table[i].kind == SD_TRAIN_NUM)
            sd_buf_json_double(b, v);
        else
            sd_buf_printf(b, "%" PRId64, (int64_t)v);
    }
    sd_buf_puts(b, "}");
    return sd_buf_status(b, err);
}

sd_status sd_train_opts_parse(const json_t *j, sd_train_opts *o, sd_err *err) {
    sd_train_defaults(o);
    int64_t i;
    for (size_t k = 0; k < N_OPTS; k++) {
        double v;
        if (table[k].kind == SD_TRAIN_NUM) {
            SD_TRY(sd_json_f64(j, table[k].key, &v, NULL, err));
        } else {
            SD_TRY(sd_json_i64(j, table[k].key, (int64_t)table[k].min, (int64_t)table[k].max, &i,
                               NULL, err));
            v = (double)i;
        }
        sd_train_opt_set(o, &table[k], v);
    }
    SD_TRY(sd_json_i64(j, "seed", INT64_MIN, INT64_MAX, &i, NULL, err));
    o->seed = (uint64_t)i;
    SD_TRY(sd_json_bool(j, "shuffle", &o->shuffle, NULL, err));
    SD_TRY(sd_json_bool(j, "recompute", &o->recompute, NULL, err));
    return sd_train_opts_check(o, err);
}
