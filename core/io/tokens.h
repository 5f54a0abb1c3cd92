/* tokens.h: token files: a text corpus as ids, ready to train on.
 *
 * NAME.bin holds little-endian uint16 ids (uint32 when the vocabulary needs it) and nothing else,
 * as other trainers write them; NAME.bin.json beside it says format, dtype, tokens, documents,
 * vocabulary, tokenizer hash. Without meta, the two formats of llm.c are known by their header
 * (magic 20240520: uint16, 20240801: uint32); any other file is uint16, unless it reads as well as
 * uint32: then its type must be said. */
#ifndef SD_IO_TOKENS_H
#define SD_IO_TOKENS_H

#include "base/run.h"
#include "io/tokenizer.h"

typedef struct sd_tokens sd_tokens;

typedef struct sd_tokens_stats {
    uint64_t documents, train_tokens, val_tokens, bytes, lost_bytes;
} sd_tokens_stats;

/* Text files → OUT.train.bin and OUT.val.bin. Documents are separated by a line "<|endoftext|>" (a
 * file without one is a single document) and each is followed by the tokenizer's end-of-text id
 * when it has one; empty ones do not count. A document goes to the held-out file with probability
 * `holdout`, decided by (seed, document number): whole documents, the same ones every time. With
 * holdout > 0 the first document is always trained on, and of two or more at least one is held
 * out; of a single one its last tokens are (SD_EFORMAT when it has only one). Nothing to train on is SD_EFORMAT. Streams: memory is bounded by the longest
 * document. Both files are written atomically. */
sd_status sd_tokens_build(const char *const *paths, size_t n_paths, const sd_tokenizer *tok,
                          const char *out, double holdout, uint64_t seed,
                          const sd_run *SD_NULLABLE run, sd_tokens_stats *stats, sd_err *err);

/* dtype: "uint16", "uint32", or NULL: as the file says. One that contradicts the file's meta or
 * header, and a missing one of an ambiguous file, is SD_EFORMAT. */
sd_status sd_tokens_open(const char *path, const char *SD_NULLABLE dtype, SD_OWN sd_tokens **out,
                         sd_err *err);
/* Every id of the file is in [0, vocab), else SD_EFORMAT with the first that is not and its
 * position. Cancellable. */
sd_status sd_tokens_check(sd_tokens *t, int32_t vocab, sd_err *err);
/* The same over ids in memory (copied). */
sd_status sd_tokens_from_ids(const int32_t *ids, size_t n, SD_OWN sd_tokens **out, sd_err *err);
void sd_tokens_free(sd_tokens *SD_NULLABLE t);
uint64_t sd_tokens_count(const sd_tokens *t);
const char *sd_tokens_path(const sd_tokens *t); /* "ids" in memory */
/* Hash of the tokenizer it was made with (of sd_tokens_hash_of); 0 when the meta does not say. */
uint64_t sd_tokens_made_with(const sd_tokens *t);
/* Hash of a vocabulary, spelling by spelling; never 0. */
uint64_t sd_tokens_hash_of(const sd_tokenizer *tok);
/* n ids from `offset`; each is checked against vocab ("token 9000 at 17: the model knows 0..4095").
 */
sd_status sd_tokens_read(sd_tokens *t, uint64_t offset, size_t n, int32_t vocab, int32_t *dst,
                         sd_err *err);

#endif
