/* io_build.h: small checkpoint files made byte by byte, for the tests of io. */
#ifndef SD_TESTS_IO_BUILD_H
#define SD_TESTS_IO_BUILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/container.h"

static char tmp_dir[64];

static inline int make_tmp(void **state) {
    (void)state;
    strcpy(tmp_dir, "/tmp/sd-test-XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : -1;
}

static inline int remove_tmp(void **state) {
    (void)state;
    char **names;
    size_t n;
    if (sd_list_dir(tmp_dir, &names, &n, NULL) != SD_OK) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        char *p = sd_path_join(tmp_dir, names[i], NULL);
        unlink(p);
        sd_free(p);
        sd_free(names[i]);
    }
    sd_free(names);
    return rmdir(tmp_dir);
}

/* Path of a file in the test's folder; four may be in use at once. */
static inline const char *in_tmp(const char *name) {
    static char path[4][256];
    static int k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", tmp_dir, name);
    return path[k];
}

static inline void write_bytes(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Safetensors: the header as text, then the data. */
static inline const char *st_file(const char *name, const char *header, const void *data,
                                  size_t n) {
    const char *path = in_tmp(name);
    sd_buf b = {0};
    uint64_t len = strlen(header);
    sd_buf_put(&b, &len, 8);
    sd_buf_puts(&b, header);
    sd_buf_put(&b, data, n);
    write_bytes(path, b.p, b.n);
    sd_buf_free(&b);
    return path;
}

/* GGUF pieces. */
static inline void put_u32(sd_buf *b, uint32_t x) {
    sd_buf_put(b, &x, 4);
}
static inline void put_u64(sd_buf *b, uint64_t x) {
    sd_buf_put(b, &x, 8);
}
static inline void put_str(sd_buf *b, const char *s) {
    put_u64(b, strlen(s));
    sd_buf_put(b, s, strlen(s));
}
static inline void put_head(sd_buf *b, uint32_t version, uint64_t tensors, uint64_t pairs) {
    sd_buf_puts(b, "GGUF");
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, pairs);
}
static inline void put_key(sd_buf *b, const char *key, uint32_t type) {
    put_str(b, key);
    put_u32(b, type);
}
static inline void put_tensor(sd_buf *b, const char *name, uint32_t ndim, const uint64_t *ne,
                              uint32_t type, uint64_t offset) {
    put_str(b, name);
    put_u32(b, ndim);
    sd_buf_put(b, ne, 8 * (size_t)ndim);
    put_u32(b, type);
    put_u64(b, offset);
}
static inline void put_pad(sd_buf *b, size_t alignment) {
    while (b->n % alignment) {
        sd_buf_putc(b, 0);
    }
}
/* Writes b to a file of the test's folder and frees it. */
static inline const char *flush_file(const char *name, sd_buf *b) {
    const char *path = in_tmp(name);
    assert_false(b->failed);
    write_bytes(path, b->p ? b->p : "", b->n);
    sd_buf_free(b);
    return path;
}

/* Opening must fail with `code` and a text that holds every one of the strings (NULL ends). */
static inline void refused(const char *path, sd_status code, ...) {
    sd_container *c = NULL;
    sd_err err = {0};
    sd_status st = sd_container_open(path, NULL, &c, &err);
    if (st != code) {
        fail_msg("%s: expected status %d, got %d (%s)", path, code, st, err.text);
    }
    assert_null(c);
    va_list ap;
    va_start(ap, code);
    for (const char *s; (s = va_arg(ap, const char *)) != NULL;) {
        if (!strstr(err.text, s)) {
            fail_msg("\"%s\" does not say \"%s\"", err.text, s);
        }
    }
    va_end(ap);
}

static inline sd_container *opened(const char *path) {
    sd_container *c = NULL;
    sd_err err = {0};
    if (sd_container_open(path, NULL, &c, &err) != SD_OK) {
        fail_msg("%s", err.text);
    }
    assert_non_null(c);
    return c;
}

/* Tensor `name` as f64. */
static inline sd_tensor *read_f64(sd_container *c, const char *name) {
    sd_err err = {0};
    sd_tensor *t = NULL;
    int i = sd_container_find(c, name);
    assert_true(i >= 0);
    if (sd_container_read_as(c, (size_t)i, SD_F64, &t, &err) != SD_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

/* Collects warnings. */
typedef struct warnings {
    int n;
    char text[2048];
} warnings;
static inline void keep_warning(void *ctx, sd_log_level level, const char *text) {
    warnings *w = ctx;
    if (level == SD_LOG_WARN) {
        w->n++;
        size_t k = strlen(w->text);
        snprintf(w->text + k, sizeof w->text - k, "%s\n", text);
    }
}

#endif
