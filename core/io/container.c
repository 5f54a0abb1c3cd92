#include "io/container_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "io/foreign.h"
#include "io/json.h"

/* Files are little-endian and read in place. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian machines only");

enum {
    MAX_SHARDS = 512,          /* each keeps a descriptor open */
    CHUNK_ELEMS = 65536,       /* converted at once; a multiple of every block size */
    READ_CHUNK = 8 << 20,      /* raw bytes between two looks at the cancellation flag */
    MAX_INDEX_BYTES = 64 << 20 /* of *.safetensors.index.json */
};

/* ---- formats: one row each ----------------------------------------------------------------------
 */
static bool any_probe(const unsigned char *head, size_t n) {
    (void)head;
    (void)n;
    return true;
}

static const struct {
    const char *name;
    bool (*probe)(const unsigned char *head, size_t n); /* first bytes of the file */
    sd_status (*headers)(sd_container *c, int file, const sd_run *run, sd_err *err);
} formats[] = {
    {"gguf", sd_gguf_probe, sd_gguf_headers},
    {"safetensors", any_probe, sd_safetensors_headers}, /* has no magic: last */
};

/* ---- building -----------------------------------------------------------------------------------
 */
/* C0, DEL, C1, line and paragraph separators, and what turns the direction of writing. */
static bool unprintable(uint32_t cp) {
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x61c || cp == 0x200e || cp == 0x200f ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
}

sd_shown sd_show(const char *name, size_t n) {
    sd_shown o;
    size_t k = 0, max = 120;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = sd_utf8_next(name + i, n - i, &cp);
        if (k + (len ? len : 1) > max) {
            memcpy(o.s + k, "...", 3);
            k += 3;
            break;
        }
        if (len == 0 || unprintable(cp)) {
            o.s[k++] = '?';
            i += len ? len : 1;
        } else {
            memcpy(o.s + k, name + i, len);
            k += len;
            i += len;
        }
    }
    o.s[k] = 0;
    return o;
}

bool sd_shape_product(int ndim, const int64_t *shape, uint64_t *n) {
    uint64_t p = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 0) {
            *n = 0;
            return true;
        }
    }
    for (int d = 0; d < ndim; d++) {
        if (p > (uint64_t)INT64_MAX / (uint64_t)shape[d]) {
            return false;
        }
        p *= (uint64_t)shape[d];
    }
    *n = p;
    return true;
}

sd_status sd_container_add(sd_container *c, const sd_tensor_info *info, size_t n_name,
                           uint64_t offset, sd_err *err) {
    void *p = c->entries;
    sd_status st = sd_grow(&p, &c->cap, c->n + 1, sizeof *c->entries, err);
    c->entries = p;
    if (st != SD_OK) {
        return st;
    }
    if (c->n >= UINT32_MAX - 1 || c->n >= INT32_MAX) {
        return sd_fail(err, SD_EFORMAT, "too many tensors");
    }
    char *name = sd_arena_strndup(c->names, info->name, n_name, err);
    if (!name) {
        return SD_ENOMEM;
    }
    sd_entry *e = &c->entries[c->n];
    e->info = *info;
    e->info.name = name;
    if (info->unsupported) {
        size_t n_type = strlen(info->unsupported);
        e->info.unsupported = sd_arena_strndup(c->names, info->unsupported, n_type, err);
        if (!e->info.unsupported) {
            return SD_ENOMEM;
        }
    }
    e->offset = offset;
    c->n++;
    return SD_OK;
}

typedef struct range {
    uint64_t begin, end;
    size_t entry;
} range;

static int by_begin(const void *a, const void *b) {
    const range *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

sd_status sd_container_check_ranges(sd_container *c, size_t from, uint64_t start, uint64_t bytes,
                                    bool cover, sd_err *err) {
    size_t n = c->n - from;
    range *r = sd_alloc(n, sizeof *r, err);
    if (!r) {
        return SD_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const sd_entry *e = &c->entries[from + i];
        r[i] = (range){e->offset - start, e->offset - start + e->info.bytes, from + i};
    }
    qsort(r, n, sizeof *r, by_begin);
    sd_status st = SD_OK;
    uint64_t at = 0;
    size_t last = 0; /* the entry whose range ends at `at` */
    for (size_t i = 0; i < n && st == SD_OK; i++) {
        const char *name = c->entries[r[i].entry].info.name;
        sd_shown a = sd_show(name, strlen(name));
        bool empty = r[i].begin == r[i].end;
        if (r[i].begin < at && !(empty && !cover)) {
            const char *other = c->entries[last].info.name;
            st =
                sd_fail(err, SD_EFORMAT,
                        "tensor %s: its bytes [%llu,%llu] overlap those of tensor %s, which end at "
                        "%llu",
                        a.s, (unsigned long long)r[i].begin, (unsigned long long)r[i].end,
                        sd_show(other, strlen(other)).s, (unsigned long long)at);
        } else if (cover && r[i].begin > at) {
            st =
                sd_fail(err, SD_EFORMAT,
                        "tensor %s: begins at byte %llu, but the data before it ends at %llu (%llu "
                        "bytes belong to no tensor)",
                        a.s, (unsigned long long)r[i].begin, (unsigned long long)at,
                        (unsigned long long)(r[i].begin - at));
        } else if (!empty) {
            at = r[i].end;
            last = r[i].entry;
        }
    }
    sd_free(r);
    if (st == SD_OK && cover && at != bytes) {
        st = sd_fail(err, SD_EFORMAT,
                     "%llu trailing bytes belong to no tensor (tensors end at %llu, data at %llu)",
                     (unsigned long long)(bytes - at), (unsigned long long)at,
                     (unsigned long long)bytes);
    }
    return st;
}

/* ---- names --------------------------------------------------------------------------------------
 */
static sd_status index_names(sd_container *c, sd_err *err) {
    SD_TRY(sd_map_reserve(&c->names_at, c->n, err));
    for (size_t i = 0; i < c->n; i++) {
        const char *name = c->entries[i].info.name;
        if (sd_map_put(&c->names_at, name, (int)i) >= 0) {
            return sd_fail(err, SD_EFORMAT, "tensor %s: named twice",
                           sd_show(name, strlen(name)).s);
        }
    }
    return SD_OK;
}

/* ---- opening ------------------------------------------------------------------------------------
 */
static sd_status open_file(sd_container *c, const char *path, const sd_run *run, sd_err *err) {
    void *p = c->files;
    sd_status st = sd_grow(&p, &c->cap_files, c->n_files + 1, sizeof *c->files, err);
    c->files = p;
    if (st != SD_OK) {
        return st;
    }
    sd_file *f;
    SD_TRY(sd_file_open(path, &f, err));
    c->files[c->n_files++] = f;

    unsigned char head[SD_FOREIGN_BYTES];
    uint64_t size = sd_file_size(f);
    size_t n = size < sizeof head ? (size_t)size : sizeof head;
    SD_TRY(sd_file_pread(f, 0, head, n, err));
    SD_TRY(sd_refuse_foreign(path, head, n, size, err));
    size_t i = 0;
    while (!formats[i].probe(head, n)) {
        i++;
    }
    if (c->format && strcmp(c->format, formats[i].name) != 0) {
        return sd_fail(err, SD_EFORMAT, "%s: a %s file among %s shards", path, formats[i].name,
                       c->format);
    }
    c->format = formats[i].name;
    st = formats[i].headers(c, (int)(c->n_files - 1), run, err);
    if (st != SD_OK) {
        sd_err_context(err, "%s", path);
    }
    return st;
}

/* A shard's name comes from a stranger's file: it must stay in the folder of the index. */
static bool plain_file_name(const char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = sd_utf8_next(s + i, n - i, &cp);
        if (k == 0 || unprintable(cp)) {
            return false;
        }
        i += k;
    }
    return n && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 && !strchr(s, '/');
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sd_status folder_of(const char *path, char **dir, sd_err *err) {
    const char *base = sd_path_base(path);
    *dir = base == path ? sd_strdup(".", err) : sd_strndup(path, (size_t)(base - path), err);
    return *dir ? SD_OK : SD_ENOMEM;
}

/* Distinct shard names of the weight_map, sorted; borrowed strings. */
static sd_status shard_names(const json_t *map, const char ***out, size_t *n, sd_err *err) {
    size_t total = json_object_size(map), k = 0;
    const char **v = sd_alloc(total, sizeof *v, err);
    if (!v) {
        return SD_ENOMEM;
    }
    const char *key;
    json_t *val;
    sd_status st = SD_OK;
    json_object_foreach((json_t *)map, key, val) {
        const char *s = json_string_value(val);
        if (!s || !plain_file_name(s)) {
            sd_shown owner = sd_show(key, strlen(key));
            st = s ? sd_fail(err, SD_EFORMAT,
                             "weight_map: tensor %s: its file name \"%s\" is not a plain name in "
                             "the same folder",
                             owner.s, sd_show(s, strlen(s)).s)
                   : sd_fail(err, SD_EFORMAT,
                             "weight_map: tensor %s: its file name is not a string", owner.s);
            break;
        }
        v[k++] = s;
    }
    if (st == SD_OK) {
        qsort(v, k, sizeof *v, by_text);
        size_t m = 0;
        for (size_t i = 0; i < k; i++) {
            if (m == 0 || strcmp(v[m - 1], v[i]) != 0) {
                v[m++] = v[i];
            }
        }
        k = m;
        if (k > MAX_SHARDS) {
            st = sd_fail(err, SD_EFORMAT, "weight_map names %zu files (limit %d)", k, MAX_SHARDS);
        }
    }
    if (st != SD_OK) {
        sd_free(v);
        v = NULL;
        k = 0;
    }
    *out = v;
    *n = k;
    return st;
}

static sd_status check_all_there(const char *dir, const char **shards, size_t n, sd_err *err) {
    sd_buf missing = {0};
    size_t k = 0;
    sd_status st = SD_OK;
    for (size_t i = 0; i < n && st == SD_OK; i++) {
        char *p = sd_path_join(dir, shards[i], err);
        if (!p) {
            st = SD_ENOMEM;
        } else if (!sd_path_exists(p)) {
            if (++k <= 8) {
                sd_buf_printf(&missing, "%s%s", k > 1 ? ", " : "",
                              sd_show(shards[i], strlen(shards[i])).s);
            }
        }
        sd_free(p);
    }
    if (st == SD_OK && k > 0) {
        st = sd_fail(err, SD_EFILE, "%zu of %zu shards are missing: %s%s", k, n,
                     missing.p ? missing.p : "", k > 8 ? ", ..." : "");
    }
    sd_buf_free(&missing);
    return st;
}

/* The index decides which shard a name is read from. Names it lacks are kept (with a warning) when
 * no other tensor has them. */
static sd_status apply_index(sd_container *c, const json_t *map, const char **shards,
                             const sd_run *run, sd_err *err) {
    sd_map *names = &c->names_at;
    SD_TRY(sd_map_reserve(names, c->n, err));
    size_t extra = 0, kept = 0;
    const char *first_extra = NULL, *first_absent = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < c->n; i++) {
            sd_entry *e = &c->entries[i];
            const json_t *v = json_object_get(map, e->info.name);
            bool mapped = v && strcmp(json_string_value(v), shards[e->info.shard]) == 0;
            if (mapped != (pass == 0)) {
                continue;
            }
            if (pass == 1) {
                extra++;
                first_extra = first_extra ? first_extra : e->info.name;
            }
            bool taken = sd_map_get(names, e->info.name) >= 0;
            if (taken && pass == 0) {
                return sd_fail(err, SD_EFORMAT, "tensor %s: named twice in one shard",
                               sd_show(e->info.name, strlen(e->info.name)).s);
            }
            if (taken || (pass == 1 && v)) {
                e->info.shard = -1; /* dropped below */
                continue;
            }
            e->info.unindexed = pass == 1;
            sd_map_put(names, e->info.name, (int)i);
        }
    }
    for (size_t i = 0; i < c->n; i++) {
        if (c->entries[i].info.shard >= 0) {
            c->entries[kept++] = c->entries[i];
        }
    }
    c->n = kept;
    sd_map_clear(names);
    SD_TRY(index_names(c, err));
    size_t absent = 0;
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)map, key, val) {
        if (sd_container_find(c, key) < 0) {
            absent++;
            first_absent = first_absent ? first_absent : key;
        }
    }
    if (extra) {
        sd_run_log(run, SD_LOG_WARN,
                   "%s: %zu tensor%s in the shards but not placed there by the index (first: %s)",
                   c->path, extra, extra > 1 ? "s are" : " is",
                   sd_show(first_extra, strlen(first_extra)).s);
    }
    if (absent) {
        sd_run_log(run, SD_LOG_WARN,
                   "%s: %zu tensor%s named by the index but absent from the shard (first: %s)",
                   c->path, absent, absent > 1 ? "s are" : " is",
                   sd_show(first_absent, strlen(first_absent)).s);
    }
    return SD_OK;
}

static sd_status open_index(sd_container *c, const char *path, const sd_run *run, sd_err *err) {
    json_t *root = NULL;
    const char **shards = NULL;
    size_t n = 0;
    char *dir = NULL;
    sd_status st;
    SD_TRY(sd_json_load(path, MAX_INDEX_BYTES, &root, err));
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        st = sd_fail(err, SD_EFORMAT, "field \"weight_map\" is %s",
                     map ? "not an object" : "missing");
        goto done_here;
    }
    SD_GO(st, done_here, shard_names(map, &shards, &n, err));
    if (n == 0) {
        st = sd_fail(err, SD_EFORMAT, "field \"weight_map\" is empty");
        goto done_here;
    }
    SD_GO(st, done, folder_of(path, &dir, err));
    SD_GO(st, done_here, check_all_there(dir, shards, n, err));
    for (size_t i = 0; i < n; i++) {
        char *p = sd_path_join(dir, shards[i], err);
        st = p ? open_file(c, p, run, err) : SD_ENOMEM;
        sd_free(p);
        if (st != SD_OK) {
            goto done;
        }
    }
    st = apply_index(c, map, shards, run, err);
done_here:
    if (st != SD_OK) {
        sd_err_context(err, "%s", path);
    }
done:
    sd_free(dir);
    sd_free(shards);
    json_decref(root);
    return st;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Picks the file of a folder that holds the weights; *out is owned. */
static sd_status resolve_folder(const char *dir, const sd_run *run, char **out, sd_err *err) {
    static const char *const tails[] = {".safetensors.index.json", ".safetensors", ".gguf"};
    static const char *const usual[] = {"model.safetensors.index.json", NULL, NULL};
    static const char single[] = "model.safetensors"; /* stock code looks for it first */
    char **names;
    size_t n, k = 0;
    *out = NULL;
    SD_TRY(sd_list_dir(dir, &names, &n, err));
    const char *pick = NULL;
    sd_buf list = {0};
    bool index = false, shard = false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], single) == 0) {
            pick = names[i];
            k = 1;
        }
        index = index || strcmp(names[i], usual[0]) == 0;
        shard = shard || (ends_with(names[i], tails[1]) && strcmp(names[i], single) != 0);
    }
    if (k && index && shard) {
        sd_run_log(run, SD_LOG_WARN,
                   "%s holds %s and also shards with an index: the single file is read, as other "
                   "programs do (name the index to read the shards)",
                   dir, single);
    }
    for (size_t t = 0; t < sizeof tails / sizeof *tails && k == 0; t++) {
        for (size_t i = 0; i < n; i++) {
            if (!ends_with(names[i], tails[t]) || names[i][0] == '.') {
                continue;
            }
            if (usual[t] && strcmp(names[i], usual[t]) == 0) {
                pick = names[i];
                k = 1;
                break;
            }
            pick = names[i];
            if (++k <= 6) {
                sd_buf_printf(&list, "%s%s", k > 1 ? ", " : "",
                              sd_show(names[i], strlen(names[i])).s);
            }
        }
    }
    sd_status st = SD_OK;
    if (k == 1) {
        *out = sd_path_join(dir, pick, err);
        st = *out ? SD_OK : SD_ENOMEM;
    } else if (k > 1) {
        st = sd_fail(err, SD_EFILE, "%s: holds %zu weight files, name one: %s%s", dir, k,
                     list.p ? list.p : "", k > 6 ? ", ..." : "");
    } else {
        bool pickle = false;
        for (size_t i = 0; i < n; i++) {
            pickle = pickle || ends_with(names[i], ".bin") || ends_with(names[i], ".pt") ||
                     ends_with(names[i], ".pth");
        }
        st = sd_fail(err, SD_EFILE, "%s: no .safetensors or .gguf file in this folder%s", dir,
                     pickle ? " (PyTorch pickles are not read: convert them to safetensors)" : "");
    }
    sd_buf_free(&list);
    for (size_t i = 0; i < n; i++) {
        sd_free(names[i]);
    }
    sd_free(names);
    return st;
}

static void warn_unsupported(const sd_container *c, const sd_run *run) {
    size_t n = 0;
    const sd_tensor_info *first = NULL;
    for (size_t i = 0; i < c->n; i++) {
        if (c->entries[i].info.unsupported) {
            first = first ? first : &c->entries[i].info;
            n++;
        }
    }
    if (n) {
        sd_run_log(run, SD_LOG_WARN,
                   "%s: %zu of %zu tensors %s of a type that is not decoded and cannot be read "
                   "(first: %s, %s)",
                   c->path, n, c->n, n > 1 ? "are" : "is",
                   sd_show(first->name, strlen(first->name)).s, first->unsupported);
    }
}

sd_status sd_container_open(const char *path, const sd_run *run, sd_container **out, sd_err *err) {
    *out = NULL;
    char *file = NULL;
    sd_status st;
    sd_container *c = sd_alloc(1, sizeof *c, err);
    if (!c) {
        return SD_ENOMEM;
    }
    atomic_init(&c->refs, 1);
    c->names = sd_arena_new(err);
    c->meta = json_object();
    if (!c->names || !c->meta) {
        st = sd_fail(err, SD_ENOMEM, "%s: out of memory", path);
        goto fail;
    }
    if (sd_path_is_dir(path)) {
        SD_GO(st, fail, resolve_folder(path, run, &file, err));
    } else {
        file = sd_strdup(path, err);
        if (!file) {
            st = SD_ENOMEM;
            goto fail;
        }
    }
    c->path = file;
    if (ends_with(file, ".index.json")) {
        SD_GO(st, fail, open_index(c, file, run, err));
    } else {
        SD_GO(st, fail, open_file(c, file, run, err));
        st = index_names(c, err);
        if (st != SD_OK) {
            sd_err_context(err, "%s", file);
            goto fail;
        }
    }
    warn_unsupported(c, run);
    *out = c;
    return SD_OK;
fail:
    sd_container_unref(c);
    return st;
}

sd_container *sd_container_ref(sd_container *c) {
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void sd_container_unref(sd_container *c) {
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1) {
        return;
    }
    for (size_t i = 0; i < c->n_files; i++) {
        sd_file_close(c->files[i]);
    }
    sd_free(c->files);
    sd_free(c->entries);
    sd_map_free(&c->names_at);
    sd_free(c->path);
    sd_arena_free(c->names);
    json_decref(c->meta);
    sd_free(c);
}

/* ---- looking ------------------------------------------------------------------------------------
 */
const char *sd_container_format(const sd_container *c) {
    return c->format;
}

const char *sd_container_path(const sd_container *c) {
    return c->path;
}

size_t sd_container_n_files(const sd_container *c) {
    return c->n_files;
}

const char *sd_container_file(const sd_container *c, size_t i) {
    return i < c->n_files ? sd_file_path(c->files[i]) : NULL;
}

size_t sd_container_count(const sd_container *c) {
    return c->n;
}

const sd_tensor_info *sd_container_at(const sd_container *c, size_t i) {
    return i < c->n ? &c->entries[i].info : NULL;
}

const char *sd_tensor_type(const sd_tensor_info *t) {
    return t->unsupported ? t->unsupported : sd_dtype_get(t->dtype)->name;
}

int sd_container_find(const sd_container *c, const char *name) {
    return sd_map_get(&c->names_at, name);
}

json_t *sd_container_meta(const sd_container *c) {
    return c->meta;
}

static int hex_digit(char h) {
    return h >= '0' && h <= '9' ? h - '0' : h >= 'a' && h <= 'f' ? h - 'a' + 10 : -1;
}

bool sd_meta_bytes(const json_t *v, sd_buf *out) {
    if (json_is_string(v)) {
        sd_buf_put(out, json_string_value(v), json_string_length(v));
        return true;
    }
    const json_t *h = json_is_object(v) ? json_object_get(v, "bytes") : NULL;
    if (!json_is_string(h) || json_string_length(h) % 2) {
        return false;
    }
    const char *s = json_string_value(h);
    size_t n = json_string_length(h);
    for (size_t i = 0; i < n; i++) {
        if (hex_digit(s[i]) < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i += 2) {
        sd_buf_putc(out, (char)(hex_digit(s[i]) * 16 + hex_digit(s[i + 1])));
    }
    return true;
}

/* ---- reading ------------------------------------------------------------------------------------
 */
static sd_status check_entry(const sd_container *c, size_t i, sd_err *err) {
    return i < c->n ? SD_OK
                    : sd_fail(err, SD_EINVAL, "%s: expected tensor 0..%zu, got %zu", c->path,
                              c->n ? c->n - 1 : 0, i);
}

static void name_entry(const sd_entry *e, sd_err *err) {
    sd_err_context(err, "tensor %s", sd_show(e->info.name, strlen(e->info.name)).s);
}

sd_status sd_container_read_bytes(sd_container *c, size_t i, uint64_t offset, void *dst, size_t n,
                                  sd_err *err) {
    SD_TRY(check_entry(c, i, err));
    const sd_entry *e = &c->entries[i];
    if (offset > e->info.bytes || n > e->info.bytes - offset) {
        return sd_fail(err, SD_EINVAL, "tensor %s: %zu bytes from %llu asked for, it has %llu",
                       sd_show(e->info.name, strlen(e->info.name)).s, n, (unsigned long long)offset,
                       (unsigned long long)e->info.bytes);
    }
    while (n > 0) {
        size_t k = n < READ_CHUNK ? n : READ_CHUNK;
        SD_TRY(sd_check_cancel(err));
        sd_status st = sd_file_pread(c->files[e->info.shard], e->offset + offset, dst, k, err);
        if (st != SD_OK) {
            name_entry(e, err);
            return st;
        }
        dst = (char *)dst + k;
        offset += k;
        n -= k;
    }
    sd_status st = sd_file_unchanged(c->files[e->info.shard], err);
    if (st != SD_OK) {
        name_entry(e, err);
    }
    return st;
}

static sd_status check_decoded(const sd_tensor_info *t, sd_err *err) {
    return t->unsupported
               ? sd_fail(err, SD_EFORMAT,
                         "tensor %s: type %s is not decoded; decoded are F64 F32 F16 BF16 F8_E4M3 "
                         "F8_E5M2, integers, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K",
                         sd_show(t->name, strlen(t->name)).s, t->unsupported)
               : SD_OK;
}

sd_status sd_container_read(sd_container *c, size_t i, sd_tensor **out, sd_err *err) {
    *out = NULL;
    SD_TRY(check_entry(c, i, err));
    const sd_tensor_info *t = &c->entries[i].info;
    SD_TRY(check_decoded(t, err));
    SD_TRY(sd_tensor_new(t->dtype, t->ndim, t->shape, out, err));
    sd_status st = sd_container_read_bytes(c, i, 0, (*out)->data, (size_t)t->bytes, err);
    if (st != SD_OK) {
        sd_tensor_free(*out);
        *out = NULL;
    }
    return st;
}

sd_status sd_container_read_as(sd_container *c, size_t i, sd_dtype to, sd_tensor **out,
                               sd_err *err) {
    *out = NULL;
    SD_TRY(check_entry(c, i, err));
    const sd_tensor_info *t = &c->entries[i].info;
    SD_TRY(check_decoded(t, err));
    if (t->dtype == to) {
        return sd_container_read(c, i, out, err);
    }
    if (to != SD_F32 && to != SD_F64) {
        return sd_fail(err, SD_EINVAL, "tensor %s: read as F32, F64 or its own type, not %s",
                       sd_show(t->name, strlen(t->name)).s, sd_dtype_get(to)->name);
    }
    uint64_t chunk_bytes = 0;
    sd_dtype_bytes(t->dtype, CHUNK_ELEMS, &chunk_bytes);
    sd_tensor *x = NULL;
    void *raw = NULL;
    sd_status st;
    SD_GO(st, done, sd_tensor_new(to, t->ndim, t->shape, &x, err));
    raw = sd_alloc_raw((size_t)(t->bytes < chunk_bytes ? t->bytes : chunk_bytes), 1, err);
    if (!raw) {
        st = SD_ENOMEM;
        goto done;
    }
    const sd_dtype_info *d = sd_dtype_get(t->dtype);
    size_t at = 0; /* elements done */
    for (uint64_t off = 0; off < t->bytes;) {
        uint64_t left = t->bytes - off;
        size_t k = (size_t)(left < chunk_bytes ? left : chunk_bytes);
        size_t n = k / (size_t)d->bytes * (size_t)d->block;
        SD_GO(st, done, sd_container_read_bytes(c, i, off, raw, k, err));
        if (to == SD_F32) {
            sd_to_f32(t->dtype, raw, (float *)x->data + at, n);
        } else {
            sd_to_f64(t->dtype, raw, (double *)x->data + at, n);
        }
        at += n;
        off += k;
    }
    st = SD_OK;
done:
    sd_free(raw);
    if (st == SD_OK) {
        *out = x;
    } else {
        sd_tensor_free(x);
    }
    return st;
}

sd_status sd_container_hash(sd_container *c, const sd_run *run, char out[65], sd_err *err) {
    enum { STEP = 1 << 20 };
    unsigned char *buf = sd_alloc_raw(STEP, 1, err);
    if (!buf) {
        return SD_ENOMEM;
    }
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < c->n_files; i++) {
        total += sd_file_size(c->files[i]);
    }
    sd_sha256 h;
    sd_sha256_init(&h);
    sd_status st = SD_OK;
    for (size_t i = 0; i < c->n_files; i++) {
        uint64_t size = sd_file_size(c->files[i]);
        for (uint64_t off = 0; off < size;) {
            size_t k = size - off < STEP ? (size_t)(size - off) : STEP;
            SD_GO(st, out_, sd_check_cancel(err));
            SD_GO(st, out_, sd_file_pread(c->files[i], off, buf, k, err));
            sd_sha256_add(&h, buf, k);
            off += k;
            done += k;
            sd_run_progress(run, "hash", (double)done, (double)total);
        }
        SD_GO(st, out_, sd_file_unchanged(c->files[i], err));
    }
    sd_sha256_hex(&h, out);
out_:
    sd_free(buf);
    return st;
}
