/* status.h: how every fallible function of the library reports.
 *
 * A fallible function returns an sd_status and takes an `sd_err *err` last (nullable). The text is
 * recorded once, by sd_fail(), where the cause is known; callers add context with
 * sd_err_context() ("model.safetensors: ...") and pass the code up unchanged. The library never
 * exits, aborts, prints to stdout or longjmps.
 */
#ifndef SD_BASE_STATUS_H
#define SD_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

/* Ownership marks of public prototypes: the caller owns / only borrows / may pass or get NULL. */
#define SD_OWN
#define SD_BORROW
#define SD_NULLABLE

#if defined(__GNUC__)
#define SD_PRINTF(fmt_, args_) __attribute__((format(printf, fmt_, args_)))
#define SD_WARN_UNUSED __attribute__((warn_unused_result))
#else
#define SD_PRINTF(fmt_, args_)
#define SD_WARN_UNUSED
#endif

typedef enum sd_status {
    SD_OK = 0,
    SD_EINVAL = 1,   /* bad argument, state or usage of a call: exit code 1 */
    SD_EFILE = 2,    /* input file cannot be opened or read: exit code 3 */
    SD_EFORMAT = 3,  /* input file holds something wrong or unsupported: exit code 3 */
    SD_ENUMERIC = 4, /* non-finite value, no convergence: exit code 4 */
    SD_EMISSING = 5, /* an optional program (gnuplot) is not there: exit code 5 */
    SD_EWRITE = 6,   /* output could not be written whole: exit code 6 */
    SD_ECANCEL = 7,  /* interrupted by the user: exit code 130 */
    SD_ENOMEM = 8,   /* allocation failed or size overflows: exit code 1 */
    SD_EPLUGIN = 9   /* a plugin was refused or failed: exit code 1 */
} sd_status;

enum { SD_ERR_TEXT = 1024 };

typedef struct sd_err {
    sd_status code;
    char text[SD_ERR_TEXT]; /* one line of UTF-8, cut at a character boundary */
} sd_err;

/* Sets err (if not NULL) and returns code. What a message cannot show safely (newlines, control
 * bytes, bidirectional controls: names come from files of strangers) is escaped, str.h. */
sd_status sd_fail(sd_err *SD_NULLABLE err, sd_status code, const char *fmt, ...) SD_PRINTF(3, 4);

/* Prefixes the recorded text with "<formatted>: ". No effect on a NULL or clear err. */
void sd_err_context(sd_err *SD_NULLABLE err, const char *fmt, ...) SD_PRINTF(2, 3);

/* The same escaping for a message of any kind: one line, at most cap - 1 bytes. */
void sd_vmessage(char *out, size_t cap, const char *fmt, va_list ap);

void sd_err_clear(sd_err *SD_NULLABLE err);

/* "ok", "bad argument", ... */
const char *sd_status_name(sd_status code);

/* The process exit code of SHELL §3 for a status. */
int sd_status_exit_code(sd_status code);

/* Passes a failure up at once; for functions that hold nothing. */
#define SD_TRY(expr_)                \
    do {                             \
        sd_status try_st_ = (expr_); \
        if (try_st_ != SD_OK)        \
            return try_st_;          \
    } while (0)

/* Stores the status in st_ and jumps to label_ on failure; for functions with a clean-up. */
#define SD_GO(st_, label_, expr_) \
    do {                          \
        (st_) = (expr_);          \
        if ((st_) != SD_OK)       \
            goto label_;          \
    } while (0)

#endif
