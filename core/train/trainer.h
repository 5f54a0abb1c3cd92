/* trainer.h: training a model on tokens, with its routing ranks measured on the way.
 *
 * One step = `accum` micro-batches of `batch` sequences of `ctx` tokens; the loss is the mean over
 * all scored tokens of the step. Sequences are the consecutive ctx-token pieces of the token file,
 * each seen once an epoch in an order decided by (seed, epoch): the state of the data is the step
 * number, so that a resumed run repeats the uninterrupted one bit for bit at an equal number of
 * threads. Learning rate: linear warm-up, then half a cosine from lr to min_lr at `steps`. */
#ifndef SD_TRAIN_TRAINER_H
#define SD_TRAIN_TRAINER_H

#include "base/table.h"
#include "io/tokens.h"
#include "train/learner.h"

typedef struct sd_train_opts {
    int64_t steps;
    int batch, ctx, accum;
    double lr, min_lr;
    int64_t warmup;
    sd_adamw adam;
    double clip; /* gradient norm limit; 0: none */
    uint64_t seed;
    bool shuffle;       /* false: pieces in file order */
    bool recompute;     /* keep each layer's input only and run it again in backward */
    const bool *layers; /* (L) nullable: only these layers' parts are trained */
    double mlm;         /* encoders: share of tokens masked (0.15) */
    sd_model *teacher;  /* nullable: distillation (METHOD §7.5) */
    double teacher_weight;
    int64_t eval_every;    /* held-out loss every so many steps, and at the end; 0: at the end */
    int64_t eval_tokens;   /* at most so many held-out tokens */
    int64_t measure_every; /* ranks every so many steps, and at 0 and the end; 0: never */
    int measure_seqs, measure_draws;
    int64_t save_every; /* checkpoint every so many steps, and at the end; 0: at the end */
    /* nullable: nothing is written. Else DIR/checkpoint.safetensors, log.csv, log.jsonl,
     * cascade.csv, cascade.jsonl (also while it runs), start/ (the model as it was given) and, at
     * the end, model/. */
    const char *dir; /* owned by one run at a time: DIR/lock */
    bool resume;     /* go on from DIR/checkpoint.safetensors to the original `steps` */
    bool overwrite;  /* a run that DIR already holds is removed; else it is refused */
    /* Kept in the checkpoint and given back by sd_train_peek: what the caller wants to remember of
     * the run. nullable. */
    const char *note;
    /* Called on the trained model before DIR/model is written (lineage). nullable. */
    sd_status (*finished)(void *ctx, sd_model *m, sd_err *err);
    void *finished_ctx;
    /* After each measurement (nullable): the cascade so far. */
    void (*measured)(void *ctx, const sd_table *cascade);
    void *measured_ctx;
} sd_train_opts;

/* Field defaults: 1000 steps, batch 8, ctx 256, lr 6e-4 → a tenth, warm-up (−1) 5% capped at 200,
 * β .9 .95, decay 0.1, clip 1. */
void sd_train_defaults(sd_train_opts *o);

/* The numbers among the options, with their ranges: of a fresh run as of a resumed one. */
typedef struct sd_train_opt {
    const char *name, *key; /* as an argument; in the checkpoint */
    enum { SD_TRAIN_INT, SD_TRAIN_I64, SD_TRAIN_NUM } kind;
    size_t offset; /* in sd_train_opts: int, int64_t or double */
    double min, max;
} sd_train_opt;
const sd_train_opt *sd_train_opt_at(size_t i); /* NULL past the end */
double sd_train_opt_get(const sd_train_opts *o, const sd_train_opt *t);
void sd_train_opt_set(sd_train_opts *o, const sd_train_opt *t, double v);
/* Every number in its range and the batch not too large; names the option and its bounds. */
sd_status sd_train_opts_check(const sd_train_opts *o, sd_err *err);

/* The learning rate of step `step` (from 0). */
double sd_train_lr(const sd_train_opts *o, int64_t step);

/* Trains m in place. Held-out sequences are the same ones whatever the seed. log: one row a step
 * (step, tokens, loss, lr, grad_norm, tokens_s, mfu, val_loss); cascade: one row a measured step
 * and layer (ranks, nulls and potential share of METHOD §5; for S–D layers also max_re_l, min_d and
 * stable of §6). Both nullable.
 *
 * Stops before the update on a non-finite loss or gradient (SD_ENUMERIC, naming the first bad
 * parameter or gradient; the last checkpoint stays, and no parameters with a non-finite value are
 * ever written to one). Ctrl-C: a checkpoint of the last finished step is written when there is a
 * DIR, m holds that step's parameters, SD_ECANCEL. A failed checkpoint write is SD_EWRITE with the
 * previous one intact. On any other failure m's parameters are those of some step before. */
sd_status sd_train(sd_model *m, sd_tokens *train, sd_tokens *SD_NULLABLE val,
                   const sd_train_opts *o, const sd_run *SD_NULLABLE run,
                   SD_OWN sd_table **SD_NULLABLE log, SD_OWN sd_table **SD_NULLABLE cascade,
                   sd_err *err);

/* What a training folder holds: the tables written there. `which`: "log" or "cascade". */
sd_status sd_train_table(const char *dir, const char *which, SD_OWN sd_table **out, sd_err *err);

/* Options as JSON text and back (the checkpoint keeps them; `steps`, schedule and data order are
 * the original ones on resume). Pointers (dir, layers, teacher) are not part of it. */
sd_status sd_train_opts_json(const sd_train_opts *o, sd_buf *out, sd_err *err);
/* Reads the options, token-file names and step of DIR's checkpoint header without its data. The
 * options are checked like a fresh run's. Strings are owned: sd_train_state_free. */
typedef struct sd_train_state {
    sd_train_opts opts;
    int64_t step;
    char *train_path, *val_path; /* val_path "" = none */
    char *layers;                /* mask as "0-3,7"; "" = all */
    char *note;                  /* "" = none */
    bool distilled;              /* it had a teacher */
} sd_train_state;
sd_status sd_train_peek(const char *dir, sd_train_state *out, sd_err *err);
void sd_train_state_free(sd_train_state *s);

#endif
