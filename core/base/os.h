/* os.h: the operating system's door; os.c is the only file that defines _GNU_SOURCE.
 * Paths are UTF-8 bytes; errors name the path and strerror's text. */
#ifndef SD_BASE_OS_H
#define SD_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

/* A file opened for positioned reads (O_RDONLY|O_CLOEXEC, regular files only: a directory, FIFO or
 * device is refused). Reads past the end are errors with both numbers, never SIGBUS. Thread-safe.
 */
typedef struct sd_file sd_file;
sd_status sd_file_open(const char *path, SD_OWN sd_file **out, sd_err *err);
const char *sd_file_path(const sd_file *f);
uint64_t sd_file_size(const sd_file *f); /* at open */
sd_status sd_file_pread(sd_file *f, uint64_t offset, void *dst, size_t n, sd_err *err);
/* SD_EFILE when the file was written to since it was opened: size or time of change differ. (One
 * that was replaced under its name is another: this one keeps its bytes.) */
sd_status sd_file_unchanged(const sd_file *f, sd_err *err);
void sd_file_close(sd_file *SD_NULLABLE f);

/* Whole file into out (appended). max bytes refused with both numbers; 0 = no limit. */
sd_status sd_read_file(const char *path, uint64_t max, sd_buf *out, sd_err *err);

/* Atomic writing: a temporary file beside `path`, then fsync, rename, fsync of the folder. Nothing
 * at `path` changes before commit; sd_writer_abort (or commit's failure) removes the temporary. All
 * errors are SD_EWRITE; an error is sticky. */
typedef struct sd_writer sd_writer;
sd_status sd_writer_open(const char *path, SD_OWN sd_writer **out, sd_err *err);
sd_status sd_writer_put(sd_writer *w, const void *p, size_t n, sd_err *err);
sd_status sd_writer_commit(SD_OWN sd_writer *w, sd_err *err); /* frees w, also on failure */
void sd_writer_abort(SD_OWN sd_writer *SD_NULLABLE w);
sd_status sd_write_file(const char *path, const void *p, size_t n, sd_err *err);

/* One owner at a time, over processes and within one: an advisory lock on the file `path`, made if
 * it is not there and left, empty, on release. The kernel drops it when the owner ends in whatever
 * way, so that it cannot be stale. `what` names the thing in the refusal (SD_EINVAL), with the
 * owner's process and host: "runs/a is in use by process 12 on host b". */
typedef struct sd_lock sd_lock;
sd_status sd_lock_take(const char *path, const char *what, SD_OWN sd_lock **out, sd_err *err);
void sd_lock_release(SD_OWN sd_lock *SD_NULLABLE l);

bool sd_path_exists(const char *path);
bool sd_path_is_dir(const char *path);
sd_status sd_mkdirs(const char *path, sd_err *err);
/* Sorted names in a folder, without "." and "..". Free each and the array with sd_free. */
sd_status sd_list_dir(const char *path, SD_OWN char ***names, size_t *n, sd_err *err);
/* Removes a folder of files, as far as it goes. For clean-up: allocates nothing itself. */
void sd_remove_folder(const char *path);
/* dir + "/" + name; base name (pointer into path). */
SD_OWN char *sd_path_join(const char *dir, const char *name, sd_err *err);
const char *sd_path_base(const char *path);
/* Absolute path of the running program's folder (for build-tree and install-tree look-up). */
sd_status sd_program_dir(sd_buf *out, sd_err *err);
/* $HOME-based XDG folder: kind "data", "state", "config", "cache"; ends without a slash + "/sd". */
sd_status sd_xdg_dir(const char *kind, sd_buf *out, sd_err *err);

double sd_now(void);        /* monotonic seconds */
int sd_cpu_count(void);     /* affinity ∩ cgroup quota, >= 1 */
uint64_t sd_peak_rss(void); /* bytes */
/* Fresh private pages, untouched; NULL when the address space has no room. */
void *SD_NULLABLE sd_map_pages(size_t n);
void sd_unmap_pages(void *p, size_t n);

/* Runs a program without a shell: own process group, stdin from /dev/null, stdout+stderr captured
 * (up to 1 MiB), deadline in seconds, killed and reaped on deadline or cancellation. `exit_code` is
 * the status, or 128+signal. SD_EMISSING when argv[0] is not on PATH. `dir` (nullable) = working
 * folder. */
sd_status sd_spawn(const char *const *argv, const char *SD_NULLABLE dir, double deadline,
                   int *exit_code, sd_buf *output, sd_err *err);

/* Splits [0, n) over up to `threads` POSIX threads; fn(ctx, i, worker) runs once for each i in some
 * order. A failing fn stops the rest; its error is returned. BLAS threads are set to 1 inside by
 * the caller (num/blas.h). Polls the cancellation flag between items. */
typedef sd_status (*sd_parallel_fn)(void *ctx, size_t i, int worker, sd_err *err);
sd_status sd_parallel(size_t n, int threads, sd_parallel_fn fn, void *ctx, sd_err *err);

#endif
