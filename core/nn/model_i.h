/* model_i.h: the inside of a model, shared by its rooms:
 *   model.c          life, tokenizer, what it answers about itself
 *   model_store.c    tensors: storage, sharing between clones, reading on demand, copy on write
 *   model_parts.c    canonical parts as views of stored tensors
 *   model_open.c     opening a file and matching it against a family
 *   model_new.c      fresh models
 *   model_change.c   changes of a layer's config
 *   model_save.c     saving
 *   model_lineage.c  how it was made
 *   model_hook.c     hooks it carries
 */
#ifndef SD_NN_MODEL_I_H
#define SD_NN_MODEL_I_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"
#include "nn/model.h"

/* A tensor shared between clones; never changed while more than one of them holds it. */
typedef struct model_blob {
    atomic_int refs;
    sd_tensor *t; // contiguous, a plain type
} model_blob;

typedef struct model_entry {
    char *name; // in the model's own heap
    sd_tensor_info info;
    int src;            // index in the container, -1: none
    model_blob *edited; // NULL: the container's bytes are the value
} model_entry;

typedef struct model_step {
    char *op, *version, *args, *hash;
} model_step;

typedef struct model_unused {
    int src;         // index in the container
    const char *why; // static text
    bool kept;       // an entry as well
} model_unused;
typedef struct model_hook model_hook; // shared by the models that carry it

enum { MODEL_SLOTS = 4 };
typedef struct model_slot { // recently read tensors as F32/F64, so that Q, K and V of a fused one
    int src;                // are read once
    uint64_t used;
    model_blob *b;
} model_slot;

struct sd_model {
    atomic_int refs;
    sd_config cfg;
    const sd_family *family;
    sd_container *container;
    char *name, *path;
    model_entry *entries;
    size_t n_entries, cap_entries;
    sd_map index; // name → entry
    model_unused *unused;
    size_t n_unused, cap_unused;

    sd_tokenizer *tokenizer;
    bool tokenizer_tried;
    sd_err tokenizer_err; // why it was refused
    char *tokenizer_source;

    model_step *steps;
    size_t n_steps, cap_steps;
    uint64_t version;
    char fresh_hash[72];

    void *cache;
    uint64_t cache_version;
    size_t cache_bytes;
    void (*cache_destroy)(void *);

    struct sd_hook *hooks; // nn/hook.h
    model_hook **hook_refs;
    size_t n_hooks;

    pthread_mutex_t lock; // of slots, clock, tokenizer
    model_slot slots[MODEL_SLOTS];
    uint64_t clock;
};

sd_model *sd_model_alloc(sd_err *err);
/* Files a tokenizer may consist of, by index; NULL past the end. */
const char *sd_model_tokenizer_file(size_t i);
void sd_shape_text(int ndim, const int64_t *shape, char out[96]); /* "[2, 3]" */

/* ---- model_hook.c ---- */
sd_status sd_model_share_hooks(sd_model *m, const sd_model *src, sd_err *err);
void sd_model_drop_hooks(sd_model *m);

/* ---- model_store.c ---- */
model_blob *sd_blob_new(SD_OWN sd_tensor *t, sd_err *err); /* t stays the caller's on failure */
model_blob *sd_blob_ref(model_blob *SD_NULLABLE b);
void sd_blob_unref(model_blob *SD_NULLABLE b);
int sd_model_find(const sd_model *m, const char *name); /* index of an entry, -1 when absent */
sd_status sd_model_add_entry(sd_model *m, const char *name, sd_dtype dtype, int ndim,
                             const int64_t *shape, int src, sd_err *err);
/* Does the family know a tensor that no part lives in? */
const char *sd_model_why_unused(const sd_family *f, const sd_config *cfg, const char *stored);
/* Zeros of e's shape. */
sd_status sd_model_zero(const model_entry *e, model_blob **out, sd_err *err);
sd_relayout sd_model_relayout(const sd_model *m, const char *stored);
/* The stored form of entry e straight from the container: its own plain type, or `as`. */
sd_status sd_model_load(const sd_model *m, const model_entry *e, bool raw, sd_dtype as,
                        sd_tensor **out, sd_err *err);
/* The value of e as F32 (F64 when stored so); a reference to give back with sd_blob_unref. */
sd_status sd_model_fetch(sd_model *m, const model_entry *e, model_blob **out, sd_err *err);
/* e's own F32/F64 tensor, held by no other model: ready to be written. */
sd_status sd_model_own(sd_model *m, model_entry *e, sd_tensor **out, sd_err *err);

/* ---- model_parts.c ---- */
/* All tensors of a model under cfg: the family's, then ours. Starts zeroed. */
typedef struct model_walk {
    size_t i;
    int layer, role;
    bool own;
} model_walk;
bool sd_model_walk(model_walk *w, const sd_family *f, const sd_config *cfg, char name[128],
                   int *ndim, int64_t shape[2]);
bool sd_model_locate(const sd_family *f, const sd_config *cfg, int layer, sd_role r,
                     sd_locator *out);
/* Writes a canonical part into its place in a stored tensor; both F32 or F64. */
void sd_model_scatter(const sd_locator *l, const sd_tensor *canon, sd_tensor *stored);
/* Locator and entry of a part, checked to stay inside the stored tensor. */
sd_status sd_model_place(const sd_model *m, int layer, sd_role r, sd_locator *loc, int *e,
                         sd_err *err);
sd_status sd_model_no_part(const sd_model *m, int layer, sd_role r, sd_err *err); /* the refusal */

/* ---- model_open.c, model_save.c: a layer under "sd_layers" ---- */
json_t *sd_layer_json(const sd_layer_cfg *lc);
sd_status sd_layer_from_json(const json_t *o, const sd_run *SD_NULLABLE run, sd_layer_cfg *lc,
                             sd_err *err);

/* ---- model_lineage.c ---- */
void sd_model_free_step(model_step *s);
sd_status sd_model_push_step(sd_model *m, const char *op, const char *version, const char *args,
                             const char *hash, sd_err *err);
sd_status sd_model_read_steps(const json_t *config, sd_model *m, sd_err *err);
sd_status sd_model_describe_steps(const sd_model *m, json_t *o, sd_err *err);

#endif
