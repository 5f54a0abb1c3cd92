/* internal.h: what trainer.c, checkpoint.c and tables.c share. Private to train/. */
#ifndef SD_TRAIN_INTERNAL_H
#define SD_TRAIN_INTERNAL_H

#include "io/json.h"
#include "train/trainer.h"

/* What sd_train_opts_json wrote, checked. */
sd_status sd_train_opts_parse(const json_t *j, sd_train_opts *o, sd_err *err);

typedef struct sd_ckpt {
    const sd_train_opts *o;
    const char *train_path, *val_path;
    int64_t step;
} sd_ckpt;

/* DIR/checkpoint.safetensors: the flat buffers params, adam_m, adam_v with their layout's hash, the
 * options and a checksum over the data. Atomic. */
sd_status sd_ckpt_save(const char *dir, const sd_ckpt *c, sd_net *net, sd_optim *opt, sd_err *err);
/* Makes DIR ready for a new run: refuses one that holds a checkpoint unless `overwrite`, which
 * removes the run's files. */
sd_status sd_dir_begin(const char *dir, bool overwrite, sd_err *err);
/* Removes the temporaries of saves that were killed. */
void sd_dir_sweep(const char *dir);
/* Fills net and opt; refuses another layout or a wrong checksum. */
sd_status sd_ckpt_load(const char *dir, sd_net *net, sd_optim *opt, int64_t *step, sd_err *err);

sd_status sd_log_new(SD_OWN sd_table **out, sd_err *err);
sd_status sd_cascade_new(SD_OWN sd_table **out, sd_err *err);
/* Rows of DIR/WHICH.jsonl up to and including `last` (by column step) appended to t; a missing file
 * is no rows. */
sd_status sd_rows_load(const char *dir, const char *which, int64_t last, sd_table *t, sd_err *err);
/* WHICH.csv and WHICH.jsonl, atomically. */
sd_status sd_rows_save(const char *dir, const char *which, const sd_table *t, sd_err *err);

#endif
