/* tokenizer.h: text ↔ token ids, for every tokenizer kind we read.
 *
 * A tokenizer is a pipeline read from tokenizer.json, vocab.json + merges.txt, vocab.txt or GGUF
 * metadata: added tokens → normaliser → pre-tokeniser → model (byte-level BPE, SentencePiece-type
 * BPE with byte fallback, WordPiece) → post-processor. Anything unknown is refused by name. What a
 * file's steps make of a text is bounded (tok.h). */
#ifndef SD_IO_TOKENIZER_H
#define SD_IO_TOKENIZER_H

#include <jansson.h>

#include "base/os.h"
#include "base/run.h"

typedef struct sd_tokenizer sd_tokenizer;

typedef struct sd_ids { /* growable id list; free with sd_ids_free */
    int32_t *v;
    size_t n, cap;
} sd_ids;
void sd_ids_free(sd_ids *ids);

enum {
    SD_TOK_SPECIAL_AS_TEXT =
        1,                 /* "<|endoftext|>" in the text is ordinary text, not the special id */
    SD_TOK_ADD_SPECIAL = 2 /* apply the post-processor: [CLS] … [SEP], BOS */
};

/* A tokenizer file, or a folder that holds one (tokenizer.json first). */
sd_status sd_tokenizer_open(const char *path, const sd_run *SD_NULLABLE run,
                            SD_OWN sd_tokenizer **out, sd_err *err);
sd_status sd_tokenizer_from_json(const json_t *tokenizer_json, const char *what,
                                 SD_OWN sd_tokenizer **out, sd_err *err);
sd_status sd_tokenizer_from_gguf(const json_t *meta, const char *what, SD_OWN sd_tokenizer **out,
                                 sd_err *err);
/* vocab.json with merges.txt's text, or (vocab NULL) vocab.txt's text. config: the folder's
 * tokenizer_config.json, added: its added_tokens.json. Without a config GPT-2's splitting is
 * meant; a vocab.txt that holds capitals is taken as cased. */
sd_status sd_tokenizer_from_files(const json_t *SD_NULLABLE vocab, const char *text, size_t n,
                                  const json_t *SD_NULLABLE config, const json_t *SD_NULLABLE added,
                                  const char *what, SD_OWN sd_tokenizer **out, sd_err *err);
sd_tokenizer *sd_tokenizer_ref(sd_tokenizer *t);
void sd_tokenizer_unref(sd_tokenizer *SD_NULLABLE t);

/* Appends to ids. Any bytes are accepted (invalid UTF-8 included). Bytes the vocabulary cannot
 * express are reported through *lost (nullable): count of lost bytes; first_lost (nullable) the
 * value of the first. Polls the cancellation flag. */
sd_status sd_tokenizer_encode(const sd_tokenizer *t, const char *text, size_t n, unsigned flags,
                              sd_ids *ids, size_t *SD_NULLABLE lost, int *SD_NULLABLE first_lost,
                              sd_err *err);
/* Appends the bytes of ids to out. An id without a token gives `<id N>` below `rows`, the number of
 * rows of a model's embedding (often padded; a model can name such a row as its best guess), and is
 * an error with both numbers from there on; rows 0: always. */
sd_status sd_tokenizer_decode(const sd_tokenizer *t, const int32_t *ids, size_t n, int32_t rows,
                              bool skip_special, sd_buf *out, sd_err *err);
/* Of ids made with SD_TOK_ADD_SPECIAL: the text began with the token that was put before it (BOS,
 * [CLS]), so that it stands there twice, as stock code has it. */
bool sd_tokenizer_starts_twice(const sd_tokenizer *t, const int32_t *ids, size_t n);

int32_t sd_tokenizer_vocab_size(const sd_tokenizer *t); /* highest id + 1 */
const char *sd_tokenizer_kind(const sd_tokenizer *t);   /* "byte-level BPE", "WordPiece", ... */
/* Stored spelling of an id (NULL when the id is a hole); id of a spelling, -1 when absent. */
const char *sd_tokenizer_token(const sd_tokenizer *t, int32_t id, size_t *n);
int32_t sd_tokenizer_find(const sd_tokenizer *t, const char *token);
/* Special ids, -1 when the tokenizer has none: "bos", "eos", "unk", "cls", "sep", "mask", "pad". */
int32_t sd_tokenizer_special(const sd_tokenizer *t, const char *role);

/* Trains a byte-level BPE of vocab_size entries (256 bytes + merges + specials) on the texts and
 * returns the tokenizer.json text. Deterministic: ties go to the smaller pair. */
sd_status sd_tokenizer_train(const char *const *paths, size_t n_paths, int32_t vocab_size,
                             const char *const *specials, size_t n_specials,
                             const sd_run *SD_NULLABLE run, sd_buf *json, sd_err *err);

#endif
