/* run.h: what a long computation is given: the cancellation flag, progress, log, threads.
 *
 * The cancellation flag is the only global of the library: a lock-free atomic, set by a signal
 * handler and read by every thread. Long loops poll it per layer, step or head (at least every 50
 * ms of work) and return SD_ECANCEL; whoever runs the operation clears it.
 */
#ifndef SD_BASE_RUN_H
#define SD_BASE_RUN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

extern atomic_int sd_cancel_flag;

static inline bool sd_cancelled(void) {
    return atomic_load_explicit(&sd_cancel_flag, memory_order_relaxed) != 0;
}

/* SD_ECANCEL with "interrupted" when the flag is set, else SD_OK. */
sd_status sd_check_cancel(sd_err *SD_NULLABLE err);

typedef enum sd_log_level { SD_LOG_INFO, SD_LOG_WARN } sd_log_level;

/* Passed by const pointer to long operations; a NULL sd_run means one thread per available CPU,
 * no progress, warnings dropped. Callbacks are called from the calling thread only. */
typedef struct sd_run {
    int threads; /* 0: all available (affinity and cgroup) */
    uint64_t seed;
    void (*progress)(void *ctx, const char *what, double done, double total);
    void (*log)(void *ctx, sd_log_level level, const char *text);
    /* Text a computation makes bit by bit, for a terminal it may run over; NULL: nobody watches. */
    void (*stream)(void *ctx, const char *text, size_t n);
    void *ctx;
    /* Attention kinds beside the library's own (nn/attn.h); NULL: none. */
    const struct sd_attn_list *kinds;
} sd_run;

int sd_run_threads(const sd_run *SD_NULLABLE run); /* >= 1 */
void sd_run_progress(const sd_run *SD_NULLABLE run, const char *what, double done, double total);
void sd_run_log(const sd_run *SD_NULLABLE run, sd_log_level level, const char *fmt, ...)
    SD_PRINTF(3, 4);

#endif
