/* foreign.h: what a download left in place of a model's file, told by its first bytes. */
#ifndef SD_IO_FOREIGN_H
#define SD_IO_FOREIGN_H

#include "base/os.h"

enum { SD_FOREIGN_BYTES = 64 }; /* that many first bytes tell */

/* SD_EFORMAT, naming path and what it is, when head (n bytes of a file of `size`) begins a Git LFS
 * pointer, a web page, an archive, a pickle or a model file of GGML's time before GGUF; SD_OK for
 * all else. */
sd_status sd_refuse_foreign(const char *path, const void *head, size_t n, uint64_t size,
                            sd_err *err);

#endif
