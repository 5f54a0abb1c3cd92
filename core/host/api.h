/* api.h: what the adapters of the plugin table share (hostapi.c, api_*.c). Each fills its group of
 * sd_plugin.h's table; they check handles and arguments, call the library and translate. Private to
 * host/. */
#ifndef SD_HOST_API_H
#define SD_HOST_API_H

#include "base/rng.h"
#include "host/host.h"
#include "spectral/calib.h"

typedef enum sd_handle_kind {
    H_MODEL,
    H_TEXT,
    H_TABLE,
    H_CALIB,
    H_TRAIN,
    H_RNG,
    H_COUNT
} sd_handle_kind;

typedef struct sd_api_trainer sd_api_trainer; /* api_train.c */
void sd_api_trainer_free(sd_api_trainer *SD_NULLABLE t);

struct sd_handle {
    sd_handle_kind kind;
    bool borrowed; /* an argument: not released, not changed, not a leak */
    union {
        sd_model *model;
        sd_text *text;
        sd_table *table;
        sd_calib *calib;
        sd_api_trainer *train;
        sd_rng rng;
    } u;
};

/* A fresh handle of the call, NULL with its error. */
sd_handle *sd_api_new(sd_call *c, sd_handle_kind kind);
/* The handle p when it is one of this call and kind, else NULL with the call's error. */
sd_handle *sd_api_check(sd_call *c, const void *p, sd_handle_kind kind);
/* Frees a handle that the op made; NULL is nothing. */
void sd_api_drop(sd_call *c, void *p, sd_handle_kind kind);
sd_handle *sd_api_model_of(sd_call *c, const sd_hmodel *m);
/* The same, of a model that may be changed. */
sd_handle *sd_api_writable(sd_call *c, const sd_hmodel *m);

/* The table's fail: records and returns the code. */
int sd_api_fail(sd_call *c, int code, const char *fmt, ...) SD_PRINTF(3, 4);
/* The table's alloc, and n doubles of it. */
void *sd_api_alloc(sd_call *c, size_t n, size_t size);
double *sd_api_doubles(sd_call *c, size_t n);
/* Copies `in` (size bytes, struct_size first) to the caller's structure, no more than its
 * struct_size, which is kept. */
int sd_api_fill(sd_call *c, void *out, const void *in, size_t size);
/* A tensor's elements as an f64 array of the call, and back. */
int sd_api_array_out(sd_call *c, const sd_tensor *t, sd_harray *out);
int sd_api_array_in(sd_call *c, const sd_harray *a, SD_OWN sd_tensor **out);

/* Each fills its group. */
void sd_api_model(sd_host *t);
void sd_api_text(sd_host *t);
void sd_api_train(sd_host *t);
void sd_api_linalg(sd_host *t);
void sd_api_table(sd_host *t);
void sd_api_ops(sd_host *t);

#endif
