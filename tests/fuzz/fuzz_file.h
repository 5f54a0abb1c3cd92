/* fuzz_file.h: hands a fuzzer's bytes to code that opens paths, and reads everything it opened. */
#ifndef SD_TESTS_FUZZ_FILE_H
#define SD_TESTS_FUZZ_FILE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/table.h"
#include "io/container.h"
#include "io/info.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The process's own folder, in memory where there is /dev/shm; removed at exit by its user. */
static char fuzz_dir[64];

static void fuzz_clean(void) {
    char cmd[4][128];
    static const char *const names[4] = {"f", "s1.safetensors", "s2.safetensors", "m.index.json"};
    for (int i = 0; i < 4; i++) {
        snprintf(cmd[i], sizeof cmd[i], "%s/%s", fuzz_dir, names[i]);
        unlink(cmd[i]);
    }
    rmdir(fuzz_dir);
}

static const char *fuzz_write(const char *name, const void *p, size_t n) {
    static char path[128];
    if (!fuzz_dir[0]) {
        strcpy(fuzz_dir,
               access("/dev/shm", W_OK) == 0 ? "/dev/shm/sd-fuzz-XXXXXX" : "/tmp/sd-fuzz-XXXXXX");
        if (!mkdtemp(fuzz_dir)) {
            abort();
        }
        atexit(fuzz_clean);
    }
    snprintf(path, sizeof path, "%s/%s", fuzz_dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) {
        abort();
    }
    close(fd);
    return path;
}

/* Opens, checks what the contract promises of every tensor, reads all of it, lists it. */
static inline void fuzz_container(const char *path, uint64_t file_bytes) {
    sd_err err = {0};
    sd_container *c = NULL;
    sd_status st = sd_container_open(path, NULL, &c, &err);
    if (st != SD_OK) {
        if (c || !err.text[0] || err.code != st) {
            abort();
        }
        return;
    }
    for (size_t i = 0; i < sd_container_count(c); i++) {
        const sd_tensor_info *t = sd_container_at(c, i);
        if (t->bytes > file_bytes || sd_container_find(c, t->name) != (int)i) {
            abort();
        }
        sd_tensor *x = NULL;
        if (sd_container_read(c, i, &x, &err) == SD_OK) {
            if (sd_tensor_nbytes(x) != t->bytes) {
                abort();
            }
            sd_tensor_free(x);
        }
        x = NULL;
        if (sd_container_read_as(c, i, i % 2 ? SD_F64 : SD_F32, &x, &err) == SD_OK) {
            sd_tensor_free(x);
        }
    }
    sd_container_unref(c);
    sd_table *t = NULL;
    if (sd_info(path, file_bytes % 2, NULL, &t, &err) == SD_OK) {
        sd_table_unref(t);
    }
}

#endif
