#include "base/run.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/os.h"

atomic_int sd_cancel_flag;

sd_status sd_check_cancel(sd_err *err) {
    return sd_cancelled() ? sd_fail(err, SD_ECANCEL, "interrupted") : SD_OK;
}

int sd_run_threads(const sd_run *run) {
    return run && run->threads > 0 ? run->threads : sd_cpu_count();
}

void sd_run_progress(const sd_run *run, const char *what, double done, double total) {
    if (run && run->progress)
        run->progress(run->ctx, what, done, total);
}

void sd_run_log(const sd_run *run, sd_log_level level, const char *fmt, ...) {
    if (!run || !run->log)
        return;
    char text[SD_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    if (level == SD_LOG_INFO) /* may be a drawing of several lines */
        vsnprintf(text, sizeof text, fmt, ap);
    else
        sd_vmessage(text, sizeof text, fmt, ap);
    va_end(ap);
    run->log(run->ctx, level, text);
}
