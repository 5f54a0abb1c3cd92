/* tok.h: the inside of a tokenizer, shared by tokenizer.c and the tok_*.c files only.
 *
 * Text flows: valid UTF-8 runs (invalid bytes apart) → added tokens → normaliser steps → added
 * tokens that match normalised text → pre-tokeniser steps, depth first → model, one piece at a
 * time → ids. Every pre-tokeniser is broken down into a few primitive steps at load time. */
#ifndef SD_IO_TOK_H
#define SD_IO_TOK_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "base/mem.h"
#include "io/tokenizer.h"

/* ---- vocabulary: spelling ↔ id ----------------------------------------------------------- */
typedef struct tok_str {
    const char *s; /* NULL: a hole */
    uint32_t n;
} tok_str;

typedef struct tok_slot {
    uint32_t tag;
    int32_t id1; /* id + 1, 0 = empty */
} tok_slot;

typedef struct tok_vocab {
    tok_str *at; /* (size) by id */
    size_t cap;
    int32_t size; /* highest id + 1 */
    size_t count; /* spellings in the hash */
    tok_slot *slot;
    size_t mask;
    uint32_t longest; /* bytes of the longest spelling */
    sd_arena *arena;
} tok_vocab;

enum { TOK_MAX_TOKEN = 1 << 16 }; /* bytes of a spelling */

sd_status sd_tok_vocab_init(tok_vocab *v, size_t expected, sd_err *err);
void sd_tok_vocab_free(tok_vocab *v);
/* Ids beyond 2·expected + 65536 are refused, so that a small file cannot ask for a huge table. A
 * spelling met twice keeps its first id in look-ups when `twice_ok`, else is refused; so is an id
 * met twice. */
sd_status sd_tok_vocab_add(tok_vocab *v, const char *s, size_t n, int64_t id, size_t expected,
                           bool twice_ok, sd_err *err);
int32_t sd_tok_vocab_find(const tok_vocab *v, const char *s, size_t n); /* -1 when absent */

/* ---- merges: (left id, right id) → rank, new id ---------------------------------------- */
typedef struct tok_merge {
    int32_t a, b;
    uint32_t rank;
    int32_t id; /* -1 = empty slot */
} tok_merge;

typedef struct tok_merges {
    tok_merge *slot;
    size_t mask, count;
} tok_merges;

sd_status sd_tok_merges_put(tok_merges *m, int32_t a, int32_t b, uint32_t rank, int32_t id,
                            sd_err *err); /* a later entry replaces an earlier one */

static inline uint64_t tok_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    return x;
}

static inline const tok_merge *tok_merges_get(const tok_merges *m, int32_t a, int32_t b) {
    size_t i = (size_t)tok_mix((uint64_t)(uint32_t)a << 32 | (uint32_t)b) & m->mask;
    while (m->slot[i].id >= 0) {
        if (m->slot[i].a == a && m->slot[i].b == b)
            return &m->slot[i];
        i = (i + 1) & m->mask;
    }
    return NULL;
}

/* ---- patterns and steps -------------------------------------------------------------------- */
typedef enum tok_pat_kind {
    TOK_PAT_LITERAL,
    TOK_PAT_REGEX,
    TOK_PAT_SPACE,   /* any white-space character, one at a time */
    TOK_PAT_NUMERIC, /* any character of category N */
    TOK_PAT_PUNCT    /* ASCII punctuation or category P */
} tok_pat_kind;

typedef struct tok_pattern {
    tok_pat_kind kind;
    char *s; /* literal */
    size_t n;
    pcre2_code *re;
} tok_pattern;

typedef enum tok_behavior {
    TOK_REMOVED,
    TOK_ISOLATED,
    TOK_MERGED_PREVIOUS,
    TOK_MERGED_NEXT,
    TOK_CONTIGUOUS
} tok_behavior;

typedef enum tok_pre_kind {
    TOK_PRE_SPLIT,
    TOK_PRE_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
    TOK_PRE_MAP,          /* bytes → ByteLevel's printable characters */
    TOK_PRE_META          /* Metaspace: ' ' → replacement, prepended by scheme */
} tok_pre_kind;

typedef enum tok_prepend { TOK_NEVER, TOK_FIRST, TOK_ALWAYS } tok_prepend;

typedef struct tok_pre {
    tok_pre_kind kind;
    tok_pattern pat;
    tok_behavior behavior;
    bool invert;
    char *rep; /* Metaspace replacement */
    size_t nrep;
    tok_prepend prepend;
} tok_pre;

typedef enum tok_norm_kind {
    TOK_NFC,
    TOK_NFD,
    TOK_NFKC,
    TOK_NFKD,
    TOK_LOWER,
    TOK_STRIP_ACCENTS,
    TOK_REPLACE,
    TOK_PREPEND,
    TOK_STRIP,
    TOK_BERT,
    TOK_NORM_MAP
} tok_norm_kind;

typedef struct tok_norm {
    tok_norm_kind kind;
    tok_pattern pat; /* Replace */
    char *content;   /* Replace, Prepend */
    size_t n;
    bool left, right;                    /* Strip */
    bool clean, chinese, accents, lower; /* BertNormalizer */
} tok_norm;

typedef enum tok_dec_kind {
    TOK_DEC_BYTELEVEL,
    TOK_DEC_WORDPIECE,
    TOK_DEC_METASPACE,
    TOK_DEC_BYTEFALLBACK,
    TOK_DEC_FUSE,
    TOK_DEC_STRIP,
    TOK_DEC_REPLACE,
    TOK_DEC_BPE
} tok_dec_kind;

typedef struct tok_dec {
    tok_dec_kind kind;
    tok_pattern pat; /* Replace */
    char *s;         /* prefix, replacement, strip character, suffix, Replace's content */
    size_t n;
    bool cleanup, keep_first; /* WordPiece; Metaspace with prepend_scheme "never" */
    size_t start, stop;       /* Strip */
} tok_dec;

/* ---- added tokens -----------------------------------------------------------------------------
 */
typedef struct tok_added {
    int32_t id;
    tok_str text;    /* as given */
    tok_str matched; /* normalised spelling when `normalized` */
    bool single_word, lstrip, rstrip, normalized, special;
} tok_added;

typedef struct tok_node {
    int32_t child, next; /* -1 = none */
    int32_t token;       /* index into added, -1 = none */
    unsigned char byte;
} tok_node;

typedef struct tok_trie {
    tok_node *node;
    size_t n, cap;
    int32_t root[256];
} tok_trie;

/* ---- scratch of one running call ---------------------------------------------------------- */
typedef struct tok_sym {
    int32_t id, prev, next;
} tok_sym;

typedef struct tok_cand { /* a candidate merge in the heap */
    uint32_t rank;
    int32_t pos; /* left symbol */
    int32_t b;   /* right symbol's index when queued */
    int32_t ida, idb;
} tok_cand;

typedef struct tok_cell {
    uint64_t hash; /* 0 = empty */
    uint32_t key, nkey, ids, nids;
} tok_cell;

typedef struct tok_cache {
    tok_cell *cell;
    size_t mask, count;
    sd_buf keys;
    int32_t *ids;
    size_t nids, cap;
} tok_cache;

typedef struct tok_scratch {
    pcre2_match_data *md;
    pcre2_match_context *mc;
    pcre2_jit_stack *stack;
    tok_cache cache;
    tok_sym *sym;
    size_t sym_cap;
    tok_cand *heap;
    size_t heap_cap;
    sd_buf chr; /* one character with prefix or suffix; look-ups of ignore_merges */
} tok_scratch;

SD_OWN tok_scratch *sd_tok_scratch_new(sd_err *err);
void sd_tok_scratch_free(tok_scratch *s);

/* ---- the tokenizer ------------------------------------------------------------------------------
 */
typedef enum tok_model { TOK_BPE, TOK_WORDPIECE } tok_model;

enum { TOK_ROLES = 7 }; /* bos eos unk cls sep mask pad */

struct sd_tokenizer {
    int refs; /* atomic */
    tok_vocab vocab;
    tok_model model;
    /* BPE */
    tok_merges merges;
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL = none */
    size_t nprefix, nsuffix;
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;          /* -1 = none */
    int32_t byte_id[256]; /* ids of single bytes (byte-level) or of <0xNN> (byte fallback) */
    /* WordPiece (prefix is shared with BPE) */
    size_t max_chars;

    tok_norm *norm;
    size_t n_norm;
    tok_pre *pre;
    size_t n_pre;
    bool byte_level; /* text reaches the model as ByteLevel characters */
    bool leaf_bytes; /* ... and the last mapping is left to the model (raw bytes reach it) */
    char *cut;       /* no merge crosses in front of this string: sections may be cut there */
    size_t ncut;
    tok_dec *dec;
    size_t n_dec;
    bool no_decoder;  /* tokens are joined with spaces */
    bool strip_space; /* the encoder adds one space in front (decoders remove it) */

    tok_added *added;
    size_t n_added;
    tok_trie raw_trie, norm_trie;
    int32_t *added_of;    /* (vocab.size) index into added, -1 */
    int32_t *head, *tail; /* post-processor: ids before and after */
    size_t n_head, n_tail;
    int32_t role[TOK_ROLES];
    const char *kind;

    pthread_mutex_t lock; /* guards `scratch` */
    tok_scratch *scratch;
};

/* ---- bounds: what a file may make of a text ---------------------------------------------------
 * Steps of a tokenizer file may grow what they are given (Replace, Prepend, Metaspace at every
 * piece): twelve steps that write ten letters for one would make 10^12. All that the steps of one
 * call make out of n bytes stays below TOK_GROWTH·n + TOK_SLACK, and below 1 GiB + 4·n where that
 * is less; the largest legitimate step writes 11 bytes for one (NFKC of U+FDFA). A final text of n
 * bytes never gives more than n ids, so that ids are bounded too. */
enum { TOK_GROWTH = 64, TOK_SLACK = 1 << 16 };

typedef struct tok_budget {
    size_t given, most, made; /* bytes */
} tok_budget;

tok_budget sd_tok_budget_of(size_t n);
/* `more` bytes are about to be kept, or (pending) are in a buffer that still grows. */
sd_status sd_tok_budget_take(tok_budget *b, size_t more, const char *what, sd_err *err);
sd_status sd_tok_budget_check(const tok_budget *b, size_t pending, const char *what, sd_err *err);

/* One encode call. */
typedef struct tok_run {
    const sd_tokenizer *t;
    tok_scratch *s;
    sd_ids *ids;
    size_t lost;
    int first_lost; /* -1 = none yet */
    unsigned polls;
    tok_budget budget;
} tok_run;

/* ---- helpers across files -----------------------------------------------------------------------
 */
sd_status sd_tok_ids_put(sd_ids *ids, int32_t id, sd_err *err);
static inline void tok_lose(tok_run *r, const char *s, size_t n) {
    if (n && r->first_lost < 0)
        r->first_lost = (unsigned char)s[0];
    r->lost += n;
}

/* Empties a scratch buffer, also after a failed allocation. */
static inline void tok_reset(sd_buf *b) {
    sd_buf_clear(b);
    b->failed = false;
}

/* tok_pre.c */
sd_status sd_tok_regex(const char *pattern, size_t n, tok_pattern *out, sd_err *err);
sd_status sd_tok_literal(const char *s, size_t n, tok_pattern *out, sd_err *err);
void sd_tok_pattern_free(tok_pattern *p);
/* First match at or after `from`; *found false when none. Empty matches are skipped. */
sd_status sd_tok_find(const tok_pattern *p, tok_scratch *s, const char *text, size_t n, size_t from,
                      bool *found, size_t *ms, size_t *me, sd_err *err);
sd_status sd_tok_pre_run(tok_run *r, size_t step, const char *s, size_t n, bool first, sd_err *err);
extern const char sd_tok_gpt2_regex[];

/* tok_chars.c */
bool sd_tok_is_space(uint32_t c);      /* White_Space */
bool sd_tok_is_numeric(uint32_t c);    /* category N */
bool sd_tok_is_punct(uint32_t c);      /* ASCII punctuation or category P */
bool sd_tok_is_word(uint32_t c);       /* \w */
bool sd_tok_is_nonspacing(uint32_t c); /* category Mn */
bool sd_tok_is_mark(uint32_t c);       /* category M */
bool sd_tok_is_other(uint32_t c);      /* control, format, private use */
bool sd_tok_is_cjk(uint32_t c);        /* BERT's Chinese characters */
int sd_tok_combining_class(uint32_t c);
bool sd_tok_decomposes(uint32_t c, bool compat);
uint32_t sd_tok_lower1(uint32_t c); /* the first character of the lower-case mapping */

/* tok_norm.c. *out gets the normalised text (appended); after_raw: the section follows invalid
 * bytes, so nothing is prepended. */
sd_status sd_tok_normalize(const sd_tokenizer *t, tok_scratch *s, const char *text, size_t n,
                           bool after_raw, sd_buf *out, tok_budget *budget, sd_err *err);
/* ByteLevel's table: byte → code point and back (-1 when the code point is none of the 256). */
uint32_t sd_tok_byte_char(unsigned char b);
int sd_tok_char_byte(uint32_t c);
void sd_tok_map_bytes(const char *s, size_t n, sd_buf *out);

/* tok_bpe.c, tok_wordpiece.c: one piece. `bytes`: s are raw bytes of a byte-level vocabulary.
 */
sd_status sd_tok_bpe(tok_run *r, const char *s, size_t n, bool bytes, sd_err *err);
sd_status sd_tok_wordpiece(tok_run *r, const char *s, size_t n, sd_err *err);
/* Cached pieces: true when s was known and its ids were appended. */
bool sd_tok_cache_get(tok_run *r, const char *s, size_t n, uint64_t *hash, sd_status *st,
                      sd_err *err);
void sd_tok_cache_put(tok_run *r, const char *s, size_t n, uint64_t hash, size_t first_id);

/* tok_json.c, tok_gguf.c, tok_files.c: fill a zeroed tokenizer. */
sd_status sd_tok_load_json(sd_tokenizer *t, const json_t *j, sd_err *err);
sd_status sd_tok_load_gguf(sd_tokenizer *t, const json_t *meta, sd_err *err);
sd_status sd_tok_load_bpe_files(sd_tokenizer *t, const json_t *vocab, const char *merges, size_t n,
                                const json_t *SD_NULLABLE config, const json_t *SD_NULLABLE added,
                                sd_err *err);
sd_status sd_tok_load_vocab_txt(sd_tokenizer *t, const char *text, size_t n,
                                const json_t *SD_NULLABLE config, sd_err *err);
void sd_tok_roles_json(sd_tokenizer *t, const json_t *config); /* bos_token ... of an HF config */

/* tokenizer.c */
SD_OWN sd_tokenizer *sd_tok_new(sd_err *err);
/* Builds tries, byte tables, roles by spelling; checks what can only be checked at the end. */
sd_status sd_tok_finish(sd_tokenizer *t, sd_err *err);

#endif
