/* container.h: a checkpoint's named tensors, whatever file format holds them; no model knowledge.
 *
 * Opening reads headers only; tensor data is read (pread, so a file cut short later is an error and
 * never SIGBUS), checked and converted when asked for; several threads may read at once. A new
 * format is one file (io/safetensors.c, io/gguf.c) and one row in the table in container.c. Model
 * files are untrusted: every length is checked before use, and no allocation exceeds a small
 * multiple of the file's size. */
#ifndef SD_IO_CONTAINER_H
#define SD_IO_CONTAINER_H

#include <jansson.h>

#include "base/os.h"
#include "base/run.h"
#include "num/tensor.h"

typedef struct sd_container sd_container;

typedef struct sd_tensor_info {
    const char *name;
    sd_dtype dtype;                      /* SD_U8 when the type is not decoded */
    const char *SD_NULLABLE unsupported; /* its name then ("Q2_K"): listed, but reading it fails */
    int ndim;
    int64_t
        shape[SD_MAX_DIMS]; /* row-major, outermost first (GGUF's order is reversed on reading) */
    uint64_t bytes;
    int shard;      /* index of the file that holds it */
    bool unindexed; /* in a shard, but not placed there by the index */
} sd_tensor_info;

/* path: a .safetensors or .gguf file, a *.safetensors.index.json, or a folder that holds one of
 * them (model.safetensors first, as stock code does, with a warning when an index and other shards
 * stand beside it; then an index, then a single *.safetensors or *.gguf; several candidates are
 * refused with their names). Warnings go to run->log. The format is told by content.
 *
 * Refused with SD_EFORMAT, naming file, tensor and both numbers: what a failed
 * download leaves (io/foreign.h), data ranges that overlap, leave gaps (safetensors) or pass the
 * end of the file, overflowing shapes, duplicate names, missing shards. A tensor of a type that is
 * not decoded is listed (sd_tensor_info.unsupported), and the count of such is warned about. */
sd_status sd_container_open(const char *path, const sd_run *SD_NULLABLE run,
                            SD_OWN sd_container **out, sd_err *err);
sd_container *sd_container_ref(sd_container *c);
void sd_container_unref(sd_container *SD_NULLABLE c);

const char *sd_container_format(const sd_container *c); /* "safetensors", "gguf" */
const char *sd_container_path(const sd_container *c);
size_t sd_container_n_files(const sd_container *c);
const char *sd_container_file(const sd_container *c, size_t i);
size_t sd_container_count(const sd_container *c);
const sd_tensor_info *sd_container_at(const sd_container *c, size_t i);
/* "F32", "Q4_K", or the name of a type that is not decoded. */
const char *sd_tensor_type(const sd_tensor_info *t);
int sd_container_find(const sd_container *c, const char *name); /* -1 when absent */
/* Metadata as a JSON object (safetensors: the union of the files' __metadata__, the first file
 * wins; GGUF: key-values, big arrays included). Borrowed. GGUF values map losslessly: bool →
 * true/false, integers → integer (a uint64 above INT64_MAX → string of decimal digits), finite
 * floats → real, non-finite floats → the string "nan", "inf" or "-inf", strings → string, except
 * that a string which is not valid UTF-8 or holds a NUL byte (tokens may) becomes the object
 * {"bytes": "<lower-case hex>"}; arrays → array, nested ones included. Use sd_meta_bytes for
 * strings that may be either. Equal small numbers share one immutable json_t: do not set them. */
json_t *sd_container_meta(const sd_container *c);
/* Bytes of a metadata string in either spelling: appended to out. False (out untouched) when v is
 * neither. */
bool sd_meta_bytes(const json_t *v, sd_buf *out);

/* Reading fails with SD_EFILE when the file was written to since it was opened (its time or size
 * differs); one that was replaced by another under its name still gives the bytes it had, since the
 * old one is kept open.
 *
 * Reads tensor i: raw dtype, contiguous, or converted (F32/F64) block by block without holding the
 * raw bytes whole. */
sd_status sd_container_read(sd_container *c, size_t i, SD_OWN sd_tensor **out, sd_err *err);
sd_status sd_container_read_as(sd_container *c, size_t i, sd_dtype to, SD_OWN sd_tensor **out,
                               sd_err *err);
/* n raw bytes of tensor i from byte `offset` on. */
sd_status sd_container_read_bytes(sd_container *c, size_t i, uint64_t offset, void *dst, size_t n,
                                  sd_err *err);
/* SHA-256 of the files' bytes, one after the other in sd_container_file order (all data is read;
 * polls cancellation). */
sd_status sd_container_hash(sd_container *c, const sd_run *SD_NULLABLE run, char out[65],
                            sd_err *err);

/* Writing: tensors in the order given, `__metadata__` from a JSON object of strings (nullable).
 * Duplicate or reserved names are refused; the write is atomic. The header keeps the given order;
 * the data is laid out by falling element size, so that every tensor is aligned. */
typedef struct sd_named_tensor {
    const char *name;
    const sd_tensor *tensor;
} sd_named_tensor;
sd_status sd_safetensors_write(const char *path, const sd_named_tensor *t, size_t n,
                               const json_t *SD_NULLABLE metadata, sd_err *err);

#endif
