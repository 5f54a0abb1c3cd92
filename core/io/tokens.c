#include "io/tokens.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "io/json.h"

static const char SEPARATOR[] = "<|endoftext|>";

struct sd_tokens {
    sd_file *file; /* NULL: ids in memory */
    int32_t *ids;
    int width;      /* bytes an id */
    uint64_t start; /* of the ids in the file */
    uint64_t count, made_with;
    char *path;
};

uint64_t sd_tokens_hash_of(const sd_tokenizer *tok) {
    uint64_t h = (uint64_t)sd_tokenizer_vocab_size(tok);
    for (int32_t i = 0; i < sd_tokenizer_vocab_size(tok); i++) {
        size_t n = 0;
        const char *s = sd_tokenizer_token(tok, i, &n);
        h = sd_hash64(s ? s : "", s ? n : 0, h);
    }
    return h ? h : 1;
}

/* ---- building ---------------------------------------------------------------------------------
 */

typedef struct split {
    sd_writer *w;
    char *path;
    uint64_t tokens, documents;
} split;

typedef struct builder {
    const sd_tokenizer *tok;
    split part[2]; /* train, val */
    int width;
    int32_t eot;
    double holdout;
    uint64_t seed;
    sd_tokens_stats *stats;
    sd_ids ids, first;
} builder;

static sd_status put_ids(builder *b, split *s, const int32_t *ids, size_t n, bool end,
                         sd_err *err) {
    for (size_t i = 0; i < n + (end && b->eot >= 0); i++) {
        int32_t id = i < n ? ids[i] : b->eot;
        unsigned char le[4] = {(unsigned char)id, (unsigned char)(id >> 8),
                               (unsigned char)(id >> 16), (unsigned char)(id >> 24)};
        SD_TRY(sd_writer_put(s->w, le, (size_t)b->width, err));
        s->tokens++;
    }
    s->documents++;
    return SD_OK;
}

/* The first document waits until it is known whether a second one comes: a single document is for
 * both, its tail held out. */
static sd_status write_document(builder *b, const char *text, size_t n, sd_err *err) {
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (n == 0)
        return SD_OK;
    size_t lost = 0;
    const uint64_t which = b->stats->documents;
    b->ids.n = 0;
    SD_TRY(sd_tokenizer_encode(b->tok, text, n, SD_TOK_SPECIAL_AS_TEXT, &b->ids, &lost, NULL, err));
    b->stats->lost_bytes += lost;
    b->stats->documents++;
    if (which == 0) {
        sd_ids swap = b->first;
        b->first = b->ids;
        b->ids = swap;
        return SD_OK;
    }
    sd_rng r;
    sd_rng_stream(&r, b->seed, 0x646f63, which);
    /* The first document is for training, the second held out: a tiny corpus has both. */
    if (which == 1)
        SD_TRY(put_ids(b, &b->part[0], b->first.v, b->first.n, true, err));
    bool val = b->holdout > 0 && (which == 1 || sd_rng_uniform(&r) < b->holdout);
    return put_ids(b, &b->part[val], b->ids.v, b->ids.n, true, err);
}

static sd_status write_single(builder *b, sd_err *err) {
    if (b->stats->documents != 1)
        return SD_OK;
    size_t n = b->first.n, tail = b->holdout > 0 ? (size_t)ceil(b->holdout * (double)n) : 0;
    if (b->holdout > 0 && n < 2)
        return sd_fail(err, SD_EFORMAT,
                       "one document of %zu token: nothing to hold out (holdout=0 takes it whole)",
                       n);
    tail = tail >= n ? n - 1 : tail;
    SD_TRY(put_ids(b, &b->part[0], b->first.v, n - tail, tail == 0, err));
    return tail ? put_ids(b, &b->part[1], b->first.v + n - tail, tail, true, err) : SD_OK;
}

static sd_status read_documents(builder *b, const char *path, const sd_run *run, sd_err *err) {
    enum { CHUNK = 1 << 20 };
    sd_file *f;
    SD_TRY(sd_file_open(path, &f, err));
    sd_buf doc = {0};
    sd_status st = SD_OK;
    uint64_t size = sd_file_size(f), at = 0;
    size_t scanned = 0; /* bytes of doc whose lines were looked at */
    char *chunk = sd_alloc_raw(CHUNK, 1, err);
    if (!chunk) {
        st = SD_ENOMEM;
        goto done;
    }
    while (at < size) {
        size_t n = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        SD_GO(st, done, sd_file_pread(f, at, chunk, n, err));
        sd_buf_put(&doc, chunk, n);
        SD_GO(st, done, sd_buf_status(&doc, err));
        at += n;
        /* Every complete line; the last, unfinished one waits for the next chunk. */
        size_t start = 0;
        for (char *nl; (nl = memchr(doc.p + scanned, '\n', doc.n - scanned)) != NULL;) {
            size_t end = (size_t)(nl - doc.p), len = end - scanned;
            if (len && doc.p[end - 1] == '\r')
                len--;
            if (len == sizeof SEPARATOR - 1 && memcmp(doc.p + scanned, SEPARATOR, len) == 0) {
                SD_GO(st, done, write_document(b, doc.p + start, scanned - start, err));
                start = end + 1;
            }
            scanned = end + 1;
        }
        if (start) {
            memmove(doc.p, doc.p + start, doc.n - start);
            doc.n -= start;
            scanned -= start;
        }
        sd_run_progress(run, "tokenise", (double)at, (double)size);
        SD_GO(st, done, sd_check_cancel(err));
    }
    /* A last line that is a separator without a line end. */
    if (doc.n - scanned == sizeof SEPARATOR - 1 &&
        memcmp(doc.p + scanned, SEPARATOR, sizeof SEPARATOR - 1) == 0)
        doc.n = scanned;
    if (doc.n)
        SD_GO(st, done, write_document(b, doc.p, doc.n, err));
    b->stats->bytes += size;
done:
    sd_free(chunk);
    sd_buf_free(&doc);
    sd_file_close(f);
    return st;
}

static sd_status write_meta(const split *s, const builder *b, const char *split_name, sd_err *err) {
    sd_buf j = {0}, path = {0};
    sd_buf_printf(&path, "%s.json", s->path);
    sd_buf_printf(&j,
                  "{\"format\": \"sd-tokens\", \"dtype\": \"uint%d\", \"tokens\": %" PRIu64
                  ", \"documents\": %" PRIu64 ", \"vocab\": %" PRId32 ", \"eot\": %" PRId32
                  ", \"split\": \"%s\", \"seed\": %" PRId64 ", \"tokenizer\": \"%016" PRIx64
                  "\"}\n",
                  8 * b->width, s->tokens, s->documents, sd_tokenizer_vocab_size(b->tok), b->eot,
                  split_name, (int64_t)b->seed, sd_tokens_hash_of(b->tok));
    sd_status st = sd_buf_status(&j, err);
    if (st == SD_OK)
        st = sd_buf_status(&path, err);
    if (st == SD_OK)
        st = sd_write_file(path.p, j.p, j.n, err);
    sd_buf_free(&j);
    sd_buf_free(&path);
    return st;
}

sd_status sd_tokens_build(const char *const *paths, size_t n_paths, const sd_tokenizer *tok,
                          const char *out, double holdout, uint64_t seed, const sd_run *run,
                          sd_tokens_stats *stats, sd_err *err) {
    static const char *const names[2] = {"train", "val"};
    memset(stats, 0, sizeof *stats);
    builder b = {.tok = tok,
                 .width = sd_tokenizer_vocab_size(tok) > 65536 ? 4 : 2,
                 .eot = sd_tokenizer_find(tok, SEPARATOR),
                 .holdout = holdout,
                 .seed = seed,
                 .stats = stats};
    if (b.eot < 0)
        b.eot = sd_tokenizer_special(tok, "eos");
    sd_status st = SD_OK;
    for (int i = 0; i < 2; i++) {
        sd_buf p = {0};
        sd_buf_printf(&p, "%s.%s.bin", out, names[i]);
        SD_GO(st, done, sd_buf_status(&p, err));
        b.part[i].path = p.p;
        SD_GO(st, done, sd_writer_open(p.p, &b.part[i].w, err));
    }
    for (size_t i = 0; i < n_paths; i++)
        SD_GO(st, done, read_documents(&b, paths[i], run, err));
    SD_GO(st, done, write_single(&b, err));
    if (b.part[0].tokens == 0) {
        st = sd_fail(err, SD_EFORMAT, "%s: no text to train on", n_paths ? paths[0] : "no files");
        goto done;
    }
    for (int i = 0; i < 2; i++) {
        sd_writer *w = b.part[i].w;
        b.part[i].w = NULL;
        SD_GO(st, done, sd_writer_commit(w, err));
        SD_GO(st, done, write_meta(&b.part[i], &b, names[i], err));
    }
    stats->train_tokens = b.part[0].tokens;
    stats->val_tokens = b.part[1].tokens;
done:
    for (int i = 0; i < 2; i++) {
        sd_writer_abort(b.part[i].w);
        sd_free(b.part[i].path);
    }
    sd_ids_free(&b.ids);
    sd_ids_free(&b.first);
    return st;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static sd_status read_meta(sd_tokens *t, const json_t *meta, int64_t *tokens, sd_err *err) {
    const char *dtype, *made_with;
    bool found;
    SD_TRY(sd_json_str(meta, "dtype", &dtype, NULL, err));
    if (strcmp(dtype, "uint32") == 0)
        t->width = 4;
    else if (strcmp(dtype, "uint16") != 0)
        return sd_fail(err, SD_EFORMAT, "dtype '%s': expected uint16 or uint32", dtype);
    SD_TRY(sd_json_i64(meta, "tokens", 0, INT64_MAX / 8, tokens, NULL, err));
    SD_TRY(sd_json_str(meta, "tokenizer", &made_with, &found, err));
    if (found)
        t->made_with = strtoull(made_with, NULL, 16);
    return SD_OK;
}

static uint32_t le32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* llm.c: 256 int32 (magic, version, number of tokens, zeros), then the ids. */
static sd_status read_header(sd_tokens *t, bool *found, int64_t *tokens, sd_err *err) {
    enum { HEADER = 1024, MAGIC16 = 20240520, MAGIC32 = 20240801 };
    unsigned char h[12];
    *found = false;
    if (sd_file_size(t->file) < sizeof h)
        return SD_OK;
    SD_TRY(sd_file_pread(t->file, 0, h, sizeof h, err));
    uint32_t magic = le32(h);
    if (magic != MAGIC16 && magic != MAGIC32)
        return SD_OK;
    if (sd_file_size(t->file) < HEADER)
        return sd_fail(err, SD_EFORMAT,
                       "%s: starts like a token file of llm.c (magic %u), but its header is cut: "
                       "%" PRIu64 " of %d bytes",
                       t->path, magic, sd_file_size(t->file), HEADER);
    *found = true;
    t->width = magic == MAGIC32 ? 4 : 2;
    t->start = HEADER;
    *tokens = le32(h + 8);
    return SD_OK;
}

/* Read as uint32, the first ids are all of some vocabulary: high halves below 16. */
static sd_status looks_wide(sd_tokens *t, bool *yes, sd_err *err) {
    unsigned char b[4096];
    uint64_t size = sd_file_size(t->file);
    size_t n = size < sizeof b ? (size_t)size : sizeof b;
    *yes = size > 0 && size % 4 == 0;
    SD_TRY(sd_file_pread(t->file, 0, b, n, err));
    for (size_t i = 0; *yes && i + 4 <= n; i += 4)
        *yes = b[i + 2] < 16 && b[i + 3] == 0;
    return SD_OK;
}

/* What kind of file it is: width, start, and the number of tokens it announces (-1: none). */
static sd_status identify(sd_tokens *t, const char *dtype, int64_t *tokens, sd_err *err) {
    sd_buf meta_path = {0};
    json_t *meta = NULL;
    bool known = false;
    sd_status st;
    t->width = 2;
    sd_buf_printf(&meta_path, "%s.json", t->path);
    SD_GO(st, done, sd_buf_status(&meta_path, err));
    if (sd_path_exists(meta_path.p)) {
        known = true;
        SD_GO(st, done, sd_json_load(meta_path.p, 1 << 20, &meta, err));
        if ((st = read_meta(t, meta, tokens, err)) != SD_OK) {
            sd_err_context(err, "%s", meta_path.p);
            goto done;
        }
    } else {
        SD_GO(st, done, read_header(t, &known, tokens, err));
    }
    int asked = !dtype                         ? 0
                : strcmp(dtype, "uint32") == 0 ? 4
                : strcmp(dtype, "uint16") == 0 ? 2
                                               : -1;
    bool wide = false;
    if (asked < 0)
        st = sd_fail(err, SD_EINVAL, "dtype '%s': expected uint16 or uint32", dtype);
    else if (known && asked && asked != t->width)
        st = sd_fail(err, SD_EFORMAT, "%s: dtype %s was given, the file says uint%d", t->path,
                     dtype, 8 * t->width);
    else if (asked)
        t->width = asked;
    else if (!known && (st = looks_wide(t, &wide, err)) == SD_OK && wide)
        st = sd_fail(err, SD_EFORMAT,
                     "%s: without %s beside it, its ids may be uint16 or uint32: give dtype=",
                     t->path, sd_path_base(meta_path.p));
done:
    json_decref(meta);
    sd_buf_free(&meta_path);
    return st;
}

sd_status sd_tokens_open(const char *path, const char *dtype, sd_tokens **out, sd_err *err) {
    *out = NULL;
    sd_tokens *t = sd_alloc(1, sizeof *t, err);
    if (!t)
        return SD_ENOMEM;
    sd_status st;
    int64_t tokens = -1;
    SD_GO(st, fail, sd_file_open(path, &t->file, err));
    if (!(t->path = sd_strdup(path, err))) {
        st = SD_ENOMEM;
        goto fail;
    }
    SD_GO(st, fail, identify(t, dtype, &tokens, err));
    uint64_t size = sd_file_size(t->file) - t->start;
    if (size % (uint64_t)t->width != 0) {
        st = sd_fail(err, SD_EFORMAT, "%s: %" PRIu64 " bytes are not a whole number of uint%d ids",
                     path, size, 8 * t->width);
        goto fail;
    }
    t->count = size / (uint64_t)t->width;
    if (tokens >= 0 && (uint64_t)tokens != t->count) {
        st = sd_fail(err, SD_EFORMAT, "%s: holds %" PRIu64 " tokens, its %s says %" PRId64, path,
                     t->count, t->start ? "header" : "meta", tokens);
        goto fail;
    }
    *out = t;
    return SD_OK;
fail:
    sd_tokens_free(t);
    return st;
}

sd_status sd_tokens_check(sd_tokens *t, int32_t vocab, sd_err *err) {
    enum { PIECE = 1 << 16 };
    int32_t *ids = sd_alloc_raw(PIECE, sizeof *ids, err);
    sd_status st = ids ? SD_OK : SD_ENOMEM;
    for (uint64_t at = 0; st == SD_OK && at < t->count; at += PIECE) {
        size_t n = t->count - at < PIECE ? (size_t)(t->count - at) : PIECE;
        st = sd_check_cancel(err);
        if (st == SD_OK)
            st = sd_tokens_read(t, at, n, vocab, ids, err);
    }
    sd_free(ids);
    return st;
}

sd_status sd_tokens_from_ids(const int32_t *ids, size_t n, sd_tokens **out, sd_err *err) {
    *out = NULL;
    sd_tokens *t = sd_alloc(1, sizeof *t, err);
    if (!t)
        return SD_ENOMEM;
    t->ids = sd_alloc_raw(n ? n : 1, sizeof *t->ids, err);
    t->path = sd_strdup("ids", err);
    if (!t->ids || !t->path) {
        sd_tokens_free(t);
        return SD_ENOMEM;
    }
    if (n)
        memcpy(t->ids, ids, n * sizeof *ids);
    t->count = n;
    *out = t;
    return SD_OK;
}

void sd_tokens_free(sd_tokens *t) {
    if (!t)
        return;
    sd_file_close(t->file);
    sd_free(t->ids);
    sd_free(t->path);
    sd_free(t);
}

uint64_t sd_tokens_count(const sd_tokens *t) {
    return t->count;
}

const char *sd_tokens_path(const sd_tokens *t) {
    return t->path;
}

uint64_t sd_tokens_made_with(const sd_tokens *t) {
    return t->made_with;
}

sd_status sd_tokens_read(sd_tokens *t, uint64_t offset, size_t n, int32_t vocab, int32_t *dst,
                         sd_err *err) {
    if (offset > t->count || n > t->count - offset)
        return sd_fail(err, SD_EFORMAT, "%s: needs %zu tokens at %" PRIu64 ", has %" PRIu64,
                       t->path, n, offset, t->count);
    enum { PIECE = 4096 };
    unsigned char buf[4 * PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        size_t k = n - i < PIECE ? n - i : PIECE;
        if (t->ids)
            memcpy(dst + i, t->ids + offset + i, k * sizeof *dst);
        else
            SD_TRY(sd_file_pread(t->file, t->start + (offset + i) * (uint64_t)t->width, buf,
                                 k * (size_t)t->width, err));
        for (size_t j = 0; j < k; j++) {
            int64_t id;
            if (t->ids)
                id = dst[i + j];
            else if (t->width == 2)
                id = buf[2 * j] | buf[2 * j + 1] << 8;
            else
                id = (int64_t)((uint32_t)buf[4 * j] | (uint32_t)buf[4 * j + 1] << 8 |
                               (uint32_t)buf[4 * j + 2] << 16 | (uint32_t)buf[4 * j + 3] << 24);
            if (id < 0 || id >= vocab)
                return sd_fail(err, SD_EFORMAT,
                               "%s: token %" PRId64 " at %" PRIu64 ": the model knows 0..%" PRId32,
                               t->path, id, offset + i + j, vocab - 1);
            dst[i + j] = (int32_t)id;
        }
    }
    return SD_OK;
}
