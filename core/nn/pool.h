/* pool.h: a small persistent pool of POSIX threads for the compute loops of nn/net.h: a training
 * step has some hundred short parallel sections, too many to start threads for each. */
#ifndef SD_NN_POOL_H
#define SD_NN_POOL_H

#include <stddef.h>

#include "base/status.h"

typedef struct sd_pool sd_pool;
typedef void (*sd_pool_fn)(void *ctx, size_t i, int worker);

/* threads >= 1, the caller included. Fewer are used when the system refuses more. */
sd_status sd_pool_new(int threads, SD_OWN sd_pool **out, sd_err *err);
void sd_pool_free(SD_OWN sd_pool *SD_NULLABLE p);
int sd_pool_threads(const sd_pool *p);

/* fn(ctx, i, worker) once for each i in [0, n), handed out in order; returns when all are done.
 * After cancellation the remaining items are skipped: check sd_check_cancel afterwards. Called from
 * one thread at a time, not from inside fn. */
void sd_pool_run(sd_pool *p, size_t n, sd_pool_fn fn, void *ctx);

#endif
