/* container_impl.h: what the formats of this folder share; not for other folders. */
#ifndef SD_IO_CONTAINER_IMPL_H
#define SD_IO_CONTAINER_IMPL_H

#include <stdatomic.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/container.h"

typedef struct sd_entry {
    sd_tensor_info info;
    uint64_t offset; /* of the first data byte in its file */
} sd_entry;

struct sd_container {
    atomic_int refs;
    const char *format;
    char *path;
    sd_file **files;
    size_t n_files, cap_files;
    sd_entry *entries;
    size_t n, cap;
    sd_map names_at; /* name → entry */
    sd_arena *names;
    json_t *meta;
};

/* Appends an entry; info->name (n_name bytes) is copied. Names are checked for duplicates later. */
sd_status sd_container_add(sd_container *c, const sd_tensor_info *info, size_t n_name,
                           uint64_t offset, sd_err *err);

/* Reads the headers of file `file` (index in c->files), appends its entries and metadata. Errors do
 * not name the file: the caller does. */
sd_status sd_safetensors_headers(sd_container *c, int file, const sd_run *run, sd_err *err);
sd_status sd_gguf_headers(sd_container *c, int file, const sd_run *run, sd_err *err);
bool sd_gguf_probe(const unsigned char *head, size_t n);

/* Orders entries [from, c->n) by data range and refuses ranges that overlap; with `cover`, also
 * gaps and anything but exact use of [start, start + bytes). */
sd_status sd_container_check_ranges(sd_container *c, size_t from, uint64_t start, uint64_t bytes,
                                    bool cover, sd_err *err);

/* Product of the shape in *n; false when it passes INT64_MAX. A zero dimension makes it 0. */
bool sd_shape_product(int ndim, const int64_t *shape, uint64_t *n);

/* A stranger's name for an error text: cut, control bytes replaced. */
typedef struct sd_shown {
    char s[136];
} sd_shown;
sd_shown sd_show(const char *name, size_t n);

#endif
