/* tok_build.h: what the loaders of a tokenizer share (tok_json.c, tok_steps.c, tok_files.c,
 * tok_gguf.c, tok_build.c only). Each loader fills a zeroed tokenizer from one source; everything
 * the pipeline does not know is refused by name: a tokenizer that is almost right gives ids that
 * are quietly wrong. */
#ifndef SD_IO_TOK_BUILD_H
#define SD_IO_TOK_BUILD_H

#include "io/json.h"
#include "io/tok.h"

enum {
    TOK_MAX_STEPS = 64,      /* normalizer, pre-tokenizer and decoder steps each */
    TOK_MAX_DEPTH = 16,      /* of nested Sequences */
    TOK_MAX_ADDED = 4096,    /* bytes of an added token */
    TOK_MAX_TEMPLATE = 1024, /* ids that a post-processor puts around a text */
    TOK_MAX_AFFIX = 256 /* bytes of a subword prefix or a word suffix: met at every character */
};

extern const char sd_tok_meta_space[]; /* U+2581 */
extern const char sd_tok_qwen2_regex[];

/* ---- rows by name: one table is both the dispatch and the message's "known:" ------------------
 */
/* Index of the row called `name` in n rows of `size` bytes, each of which begins with its name
 * (const char *); -1 with `unknown <what> "<name>" (known: …)` in err. */
int sd_tok_row(const char *what, const char *name, const void *rows, size_t n, size_t size,
               sd_err *err);
#define TOK_ROW(what_, name_, rows_, err_) \
    sd_tok_row(what_, name_, rows_, sizeof(rows_) / sizeof *(rows_), sizeof *(rows_), err_)

/* ---- fields ------------------------------------------------------------------------------------
 */
/* A field or its default. Does nothing once *st is an error, so that several may follow. */
const char *sd_tok_str_of(const json_t *o, const char *key, const char *otherwise, sd_status *st,
                          sd_err *err);
bool sd_tok_bool_of(const json_t *o, const char *key, bool otherwise, sd_status *st, sd_err *err);
/* Replaces *dst by a copy of s. */
sd_status sd_tok_keep(char **dst, size_t *n, const char *s, size_t len, sd_err *err);
void sd_tok_added_flags(const json_t *o, tok_added *a, sd_status *st, sd_err *err);

/* ---- steps: appended to the pipeline; out (nullable) is the step, for its further fields -------
 */
sd_status sd_tok_add_norm(sd_tokenizer *t, tok_norm_kind kind, tok_norm **out, sd_err *err);
sd_status sd_tok_add_pre(sd_tokenizer *t, tok_pre_kind kind, tok_pre **out, sd_err *err);
sd_status sd_tok_add_split(sd_tokenizer *t, const char *regex, tok_behavior b, bool invert,
                           sd_err *err);
sd_status sd_tok_add_class(sd_tokenizer *t, tok_pat_kind kind, tok_behavior b, sd_err *err);
sd_status sd_tok_add_map(sd_tokenizer *t, sd_err *err); /* ByteLevel's characters */
sd_status sd_tok_add_dec(sd_tokenizer *t, tok_dec_kind kind, const char *SD_NULLABLE s, size_t n,
                         tok_dec **SD_NULLABLE out, sd_err *err);
/* Ids around the text: before it, outermost last, or after it. */
sd_status sd_tok_wrap(sd_tokenizer *t, const int32_t *ids, size_t n, bool front, sd_err *err);

/* The four pieces of a tokenizer.json (tok_steps.c). */
sd_status sd_tok_load_steps(sd_tokenizer *t, const json_t *tokenizer_json, sd_err *err);

/* ---- vocabulary --------------------------------------------------------------------------------
 */
sd_status sd_tok_load_vocab(sd_tokenizer *t, const json_t *vocab, size_t extra, sd_err *err);
sd_status sd_tok_load_merges(sd_tokenizer *t, const json_t *m, sd_err *err);
/* Merge number i as "left right", exactly one space. */
sd_status sd_tok_merge_line(sd_tokenizer *t, const char *s, size_t n, size_t i, sd_err *err);
/* Appends to t->added, whose memory the caller has made; room: what it has made. */
sd_status sd_tok_put_added(sd_tokenizer *t, size_t room, const char *s, size_t n, int64_t id,
                           tok_added flags, sd_err *err);

/* ---- BERT without a tokenizer.json -------------------------------------------------------------
 */
/* WordPiece with "##"; roles by spelling where none is set, [UNK] is needed. */
sd_status sd_tok_bert_model(sd_tokenizer *t, sd_err *err);
sd_status sd_tok_bert_pipeline(sd_tokenizer *t, bool lower, bool accents, bool chinese,
                               sd_err *err);

#endif
