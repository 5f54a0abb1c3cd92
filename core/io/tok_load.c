/* tok_load.c: fills a tokenizer from tokenizer.json, vocab.json + merges.txt, vocab.txt or GGUF
 * metadata. Everything the pipeline does not know is refused by name: a tokenizer that is almost
 * right gives ids that are quietly wrong. */
#include <stdlib.h>
#include <string.h>

#include "io/container.h"
#include "io/json.h"
#include "io/tok.h"

enum { MAX_STEPS = 64, MAX_DEPTH = 16, MAX_ADDED_BYTES = 4096 };

#define WORD(before_, after_) before_ "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}" after_

static const char meta_space[] = "\xe2\x96\x81"; /* U+2581 */

/* ---- small helpers --------------------------------------------------------------------------- */
static const char *str_of(const json_t *o, const char *key, const char *otherwise, sd_status *st,
                          sd_err *err) {
    const char *s = otherwise;
    bool found = false;
    if (*st == SD_OK)
        *st = sd_json_str(o, key, &s, &found, err);
    return found && *st == SD_OK ? s : otherwise;
}

static bool bool_of(const json_t *o, const char *key, bool otherwise, sd_status *st, sd_err *err) {
    bool v = otherwise, found = false;
    if (*st == SD_OK)
        *st = sd_json_bool(o, key, &v, &found, err);
    return found && *st == SD_OK ? v : otherwise;
}

static sd_status is_object(const json_t *o, const char *what, sd_err *err) {
    return json_is_object(o) ? SD_OK : sd_fail(err, SD_EFORMAT, "%s: expected an object", what);
}

static sd_status keep(char **dst, size_t *n, const char *s, size_t len, sd_err *err) {
    char *c = sd_strndup(s, len, err);
    if (!c)
        return SD_ENOMEM;
    sd_free(*dst);
    *dst = c;
    *n = len;
    return SD_OK;
}

static sd_status too_many(const char *what, sd_err *err) {
    return sd_fail(err, SD_EFORMAT, "%s: more than %d steps", what, MAX_STEPS);
}

/* A zeroed new last element, or NULL. */
static tok_norm *new_norm(sd_tokenizer *t, sd_err *err) {
    if (!t->norm && !(t->norm = sd_alloc(MAX_STEPS, sizeof *t->norm, err)))
        return NULL;
    if (t->n_norm == MAX_STEPS) {
        too_many("normalizer", err);
        return NULL;
    }
    return &t->norm[t->n_norm++];
}

static tok_pre *new_pre(sd_tokenizer *t, tok_pre_kind kind, sd_err *err) {
    if (!t->pre && !(t->pre = sd_alloc(MAX_STEPS, sizeof *t->pre, err)))
        return NULL;
    if (t->n_pre == MAX_STEPS) {
        too_many("pre_tokenizer", err);
        return NULL;
    }
    tok_pre *p = &t->pre[t->n_pre++];
    p->kind = kind;
    return p;
}

static tok_dec *new_dec(sd_tokenizer *t, tok_dec_kind kind, sd_err *err) {
    if (!t->dec && !(t->dec = sd_alloc(MAX_STEPS, sizeof *t->dec, err)))
        return NULL;
    if (t->n_dec == MAX_STEPS) {
        too_many("decoder", err);
        return NULL;
    }
    tok_dec *d = &t->dec[t->n_dec++];
    d->kind = kind;
    return d;
}

static sd_status last_code(sd_err *err) {
    return err && err->code != SD_OK ? err->code : SD_ENOMEM;
}

static sd_status add_split(sd_tokenizer *t, const char *regex, tok_behavior b, bool invert,
                           sd_err *err) {
    tok_pre *p = new_pre(t, TOK_PRE_SPLIT, err);
    if (!p)
        return last_code(err);
    p->behavior = b;
    p->invert = invert;
    return sd_tok_regex(regex, strlen(regex), &p->pat, err);
}

static sd_status add_class(sd_tokenizer *t, tok_pat_kind kind, tok_behavior b, sd_err *err) {
    tok_pre *p = new_pre(t, TOK_PRE_SPLIT, err);
    if (!p)
        return last_code(err);
    p->pat.kind = kind;
    p->behavior = b;
    return SD_OK;
}

static sd_status add_map(sd_tokenizer *t, sd_err *err) {
    t->byte_level = true;
    return new_pre(t, TOK_PRE_MAP, err) ? SD_OK : last_code(err);
}

static sd_status add_dec(sd_tokenizer *t, tok_dec_kind kind, const char *s, size_t n, tok_dec **out,
                         sd_err *err) {
    tok_dec *d = new_dec(t, kind, err);
    if (!d)
        return last_code(err);
    if (out)
        *out = d;
    return s ? keep(&d->s, &d->n, s, n, err) : SD_OK;
}

/* {"String": s} or {"Regex": s}, or a plain string. */
static sd_status pattern_of(const json_t *o, tok_pattern *out, sd_err *err) {
    const json_t *p = json_object_get(o, "pattern"), *v;
    if (json_is_string(p))
        return sd_tok_literal(json_string_value(p), json_string_length(p), out, err);
    if ((v = json_object_get(p, "String")) && json_is_string(v))
        return sd_tok_literal(json_string_value(v), json_string_length(v), out, err);
    if ((v = json_object_get(p, "Regex")) && json_is_string(v))
        return sd_tok_regex(json_string_value(v), json_string_length(v), out, err);
    return sd_fail(err, SD_EFORMAT, "pattern: expected {\"String\": …} or {\"Regex\": …}");
}

static sd_status behavior_of(const json_t *o, tok_behavior otherwise, tok_behavior *out,
                             sd_err *err) {
    static const char *const name[] = {"Removed", "Isolated", "MergedWithPrevious",
                                       "MergedWithNext", "Contiguous"};
    sd_status st = SD_OK;
    const char *b = str_of(o, "behavior", name[otherwise], &st, err);
    for (int i = 0; st == SD_OK && i < 5; i++) {
        if (strcmp(b, name[i]) == 0) {
            *out = (tok_behavior)i;
            return SD_OK;
        }
    }
    return st != SD_OK ? st : sd_fail(err, SD_EFORMAT, "unknown split behavior \"%s\"", b);
}

/* ---- normalizer ---------------------------------------------------------------------------------
 */
static sd_status load_norm(sd_tokenizer *t, const json_t *o, int depth, sd_err *err) {
    static const struct {
        const char *name;
        tok_norm_kind kind;
    } plain[] = {{"NFC", TOK_NFC},           {"NFD", TOK_NFD},
                 {"NFKC", TOK_NFKC},         {"NFKD", TOK_NFKD},
                 {"Lowercase", TOK_LOWER},   {"StripAccents", TOK_STRIP_ACCENTS},
                 {"ByteLevel", TOK_NORM_MAP}};
    const char *type;
    SD_TRY(is_object(o, "normalizer", err));
    SD_TRY(sd_json_str(o, "type", &type, NULL, err));
    if (depth > MAX_DEPTH)
        return sd_fail(err, SD_EFORMAT, "nested deeper than %d", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "normalizers");
        if (!json_is_array(list))
            return sd_fail(err, SD_EFORMAT, "Sequence: expected an array \"normalizers\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            SD_TRY(load_norm(t, json_array_get(list, i), depth + 1, err));
        return SD_OK;
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(type, plain[i].name) == 0) {
            tok_norm *m = new_norm(t, err);
            if (!m)
                return last_code(err);
            m->kind = plain[i].kind;
            if (m->kind == TOK_NORM_MAP)
                t->byte_level = true;
            return SD_OK;
        }
    }
    sd_status st = SD_OK;
    if (strcmp(type, "Replace") == 0) {
        const json_t *c = json_object_get(o, "content");
        tok_norm *m = new_norm(t, err);
        if (!m)
            return last_code(err);
        m->kind = TOK_REPLACE;
        if (!json_is_string(c))
            return sd_fail(err, SD_EFORMAT, "Replace: expected a string \"content\"");
        SD_TRY(keep(&m->content, &m->n, json_string_value(c), json_string_length(c), err));
        return pattern_of(o, &m->pat, err);
    }
    if (strcmp(type, "Prepend") == 0) {
        const char *s;
        tok_norm *m = new_norm(t, err);
        if (!m)
            return last_code(err);
        m->kind = TOK_PREPEND;
        SD_TRY(sd_json_str(o, "prepend", &s, NULL, err));
        return keep(&m->content, &m->n, s, strlen(s), err);
    }
    if (strcmp(type, "Strip") == 0) {
        tok_norm *m = new_norm(t, err);
        if (!m)
            return last_code(err);
        m->kind = TOK_STRIP;
        m->left = bool_of(o, "strip_left", true, &st, err);
        m->right = bool_of(o, "strip_right", true, &st, err);
        return st;
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        tok_norm *m = new_norm(t, err);
        if (!m)
            return last_code(err);
        m->kind = TOK_BERT;
        m->clean = bool_of(o, "clean_text", true, &st, err);
        m->chinese = bool_of(o, "handle_chinese_chars", true, &st, err);
        m->lower = bool_of(o, "lowercase", true, &st, err);
        m->accents = bool_of(o, "strip_accents", m->lower, &st, err);
        return st;
    }
    return sd_fail(err, SD_EFORMAT,
                   "unknown normalizer \"%s\" (known: Sequence NFC NFD NFKC NFKD Lowercase "
                   "StripAccents Replace Prepend Strip BertNormalizer ByteLevel)",
                   type);
}

/* ---- pre-tokenizer
 * -------------------------------------------------------------------------------- */
static sd_status prepend_of(const json_t *o, tok_prepend *out, sd_err *err) {
    sd_status st = SD_OK;
    const char *s = str_of(o, "prepend_scheme", NULL, &st, err);
    bool add = bool_of(o, "add_prefix_space", true, &st, err);
    if (st != SD_OK)
        return st;
    if (!s)
        *out = add ? TOK_ALWAYS : TOK_NEVER;
    else if (strcmp(s, "always") == 0)
        *out = TOK_ALWAYS;
    else if (strcmp(s, "first") == 0)
        *out = TOK_FIRST;
    else if (strcmp(s, "never") == 0)
        *out = TOK_NEVER;
    else
        return sd_fail(err, SD_EFORMAT, "unknown prepend_scheme \"%s\"", s);
    return SD_OK;
}

static sd_status load_pre(sd_tokenizer *t, const json_t *o, int depth, sd_err *err) {
    const char *type;
    sd_status st = SD_OK;
    SD_TRY(is_object(o, "pre_tokenizer", err));
    SD_TRY(sd_json_str(o, "type", &type, NULL, err));
    if (depth > MAX_DEPTH)
        return sd_fail(err, SD_EFORMAT, "nested deeper than %d", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list))
            return sd_fail(err, SD_EFORMAT, "Sequence: expected an array \"pretokenizers\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            SD_TRY(load_pre(t, json_array_get(list, i), depth + 1, err));
        return SD_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        bool prefix = bool_of(o, "add_prefix_space", true, &st, err);
        bool regex = bool_of(o, "use_regex", true, &st, err);
        SD_TRY(st);
        if (t->byte_level)
            return sd_fail(err, SD_EFORMAT, "ByteLevel is applied twice");
        if (prefix && !new_pre(t, TOK_PRE_PREFIX_SPACE, err))
            return last_code(err);
        if (regex)
            SD_TRY(add_split(t, sd_tok_gpt2_regex, TOK_ISOLATED, false, err));
        return add_map(t, err);
    }
    if (strcmp(type, "Split") == 0) {
        tok_pre *p = new_pre(t, TOK_PRE_SPLIT, err);
        if (!p)
            return last_code(err);
        p->invert = bool_of(o, "invert", false, &st, err);
        SD_TRY(st);
        SD_TRY(behavior_of(o, TOK_ISOLATED, &p->behavior, err));
        return pattern_of(o, &p->pat, err);
    }
    if (strcmp(type, "Digits") == 0) {
        bool single = bool_of(o, "individual_digits", false, &st, err);
        SD_TRY(st);
        return add_class(t, TOK_PAT_NUMERIC, single ? TOK_ISOLATED : TOK_CONTIGUOUS, err);
    }
    if (strcmp(type, "Whitespace") == 0)
        /* \w of the Rust regex crate, joiners included */
        return add_split(t, WORD("[", "]+") "|" WORD("[^", "\\s]+"), TOK_REMOVED, true, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_class(t, TOK_PAT_SPACE, TOK_REMOVED, err);
    if (strcmp(type, "Punctuation") == 0) {
        tok_behavior b;
        SD_TRY(behavior_of(o, TOK_ISOLATED, &b, err));
        return add_class(t, TOK_PAT_PUNCT, b, err);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        SD_TRY(add_class(t, TOK_PAT_SPACE, TOK_REMOVED, err));
        return add_class(t, TOK_PAT_PUNCT, TOK_ISOLATED, err);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        const char *s;
        SD_TRY(sd_json_str(o, "delimiter", &s, NULL, err));
        tok_pre *p = new_pre(t, TOK_PRE_SPLIT, err);
        if (!p)
            return last_code(err);
        p->behavior = TOK_REMOVED;
        return sd_tok_literal(s, strlen(s), &p->pat, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *rep = str_of(o, "replacement", meta_space, &st, err);
        bool cut = bool_of(o, "split", true, &st, err);
        SD_TRY(st);
        size_t n = strlen(rep);
        if (n == 0 || sd_utf8_next(rep, n, NULL) != n)
            return sd_fail(err, SD_EFORMAT, "Metaspace: expected one character as replacement");
        tok_pre *p = new_pre(t, TOK_PRE_META, err);
        if (!p)
            return last_code(err);
        SD_TRY(keep(&p->rep, &p->nrep, rep, n, err));
        SD_TRY(prepend_of(o, &p->prepend, err));
        if (!cut)
            return SD_OK;
        tok_pre *q = new_pre(t, TOK_PRE_SPLIT, err);
        if (!q)
            return last_code(err);
        q->behavior = TOK_MERGED_NEXT;
        return sd_tok_literal(rep, n, &q->pat, err);
    }
    return sd_fail(
        err, SD_EFORMAT,
        "unknown pre_tokenizer \"%s\" (known: Sequence ByteLevel Split Digits Whitespace "
        "WhitespaceSplit Punctuation BertPreTokenizer CharDelimiterSplit Metaspace)",
        type);
}

/* ---- decoder
 * -------------------------------------------------------------------------------------- */
static sd_status load_dec(sd_tokenizer *t, const json_t *o, int depth, sd_err *err) {
    const char *type, *s;
    sd_status st = SD_OK;
    tok_dec *d = NULL;
    SD_TRY(is_object(o, "decoder", err));
    SD_TRY(sd_json_str(o, "type", &type, NULL, err));
    if (depth > MAX_DEPTH)
        return sd_fail(err, SD_EFORMAT, "nested deeper than %d", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "decoders");
        if (!json_is_array(list))
            return sd_fail(err, SD_EFORMAT, "Sequence: expected an array \"decoders\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            SD_TRY(load_dec(t, json_array_get(list, i), depth + 1, err));
        return SD_OK;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return add_dec(t, TOK_DEC_BYTELEVEL, NULL, 0, NULL, err);
    if (strcmp(type, "ByteFallback") == 0)
        return add_dec(t, TOK_DEC_BYTEFALLBACK, NULL, 0, NULL, err);
    if (strcmp(type, "Fuse") == 0)
        return add_dec(t, TOK_DEC_FUSE, NULL, 0, NULL, err);
    if (strcmp(type, "WordPiece") == 0) {
        s = str_of(o, "prefix", "##", &st, err);
        bool cleanup = bool_of(o, "cleanup", true, &st, err);
        SD_TRY(st);
        SD_TRY(add_dec(t, TOK_DEC_WORDPIECE, s, strlen(s), &d, err));
        d->cleanup = cleanup;
        return SD_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        tok_prepend p;
        s = str_of(o, "replacement", meta_space, &st, err);
        SD_TRY(st);
        SD_TRY(prepend_of(o, &p, err));
        if (!*s)
            return sd_fail(err, SD_EFORMAT, "Metaspace: an empty replacement");
        SD_TRY(add_dec(t, TOK_DEC_METASPACE, s, strlen(s), &d, err));
        d->keep_first = p == TOK_NEVER;
        return SD_OK;
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        s = str_of(o, "suffix", "</w>", &st, err);
        SD_TRY(st);
        if (!*s)
            return sd_fail(err, SD_EFORMAT, "BPEDecoder: an empty suffix");
        return add_dec(t, TOK_DEC_BPE, s, strlen(s), NULL, err);
    }
    if (strcmp(type, "Strip") == 0) {
        int64_t start = 0, stop = 0;
        s = str_of(o, "content", " ", &st, err);
        SD_TRY(st);
        if (!*s)
            return sd_fail(err, SD_EFORMAT, "Strip: an empty content");
        SD_TRY(add_dec(t, TOK_DEC_STRIP, s, strlen(s), &d, err));
        bool found;
        SD_TRY(sd_json_i64(o, "start", 0, INT32_MAX, &start, &found, err));
        SD_TRY(sd_json_i64(o, "stop", 0, INT32_MAX, &stop, &found, err));
        d->start = (size_t)start;
        d->stop = (size_t)stop;
        return SD_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        const json_t *c = json_object_get(o, "content");
        if (!json_is_string(c))
            return sd_fail(err, SD_EFORMAT, "Replace: expected a string \"content\"");
        SD_TRY(add_dec(t, TOK_DEC_REPLACE, json_string_value(c), json_string_length(c), &d, err));
        return pattern_of(o, &d->pat, err);
    }
    return sd_fail(err, SD_EFORMAT,
                   "unknown decoder \"%s\" (known: Sequence ByteLevel WordPiece Metaspace "
                   "ByteFallback Fuse Strip Replace BPEDecoder)",
                   type);
}

/* ---- post-processor ----------------------------------------------------------------------------
 */
static sd_status wrap(int32_t **v, size_t *n, const int32_t *ids, size_t k, bool front,
                      sd_err *err) {
    if (k == 0)
        return SD_OK;
    int32_t *p = sd_alloc(*n + k, sizeof *p, err);
    if (!p)
        return SD_ENOMEM;
    if (*n)
        memcpy(p + (front ? k : 0), *v, *n * sizeof *p);
    memcpy(p + (front ? 0 : *n), ids, k * sizeof *p);
    sd_free(*v);
    *v = p;
    *n += k;
    return SD_OK;
}

static sd_status check_id(const json_t *v, int32_t *out, sd_err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX - 2)
        return sd_fail(err, SD_EFORMAT, "post_processor: expected a token id");
    *out = (int32_t)json_integer_value(v);
    return SD_OK;
}

static sd_status load_post(sd_tokenizer *t, const json_t *o, int depth, sd_err *err) {
    const char *type;
    SD_TRY(is_object(o, "post_processor", err));
    SD_TRY(sd_json_str(o, "type", &type, NULL, err));
    if (depth > MAX_DEPTH)
        return sd_fail(err, SD_EFORMAT, "nested deeper than %d", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "processors");
        if (!json_is_array(list))
            return sd_fail(err, SD_EFORMAT, "Sequence: expected an array \"processors\"");
        for (size_t i = 0; i < json_array_size(list); i++)
            SD_TRY(load_post(t, json_array_get(list, i), depth + 1, err));
        return SD_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) /* offsets only */
        return SD_OK;
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        const json_t *cls = json_object_get(o, "cls"), *sep = json_object_get(o, "sep");
        int32_t a, b;
        SD_TRY(check_id(json_array_get(cls, 1), &a, err));
        SD_TRY(check_id(json_array_get(sep, 1), &b, err));
        SD_TRY(wrap(&t->head, &t->n_head, &a, 1, true, err));
        return wrap(&t->tail, &t->n_tail, &b, 1, false, err);
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        const json_t *list = json_object_get(o, "single");
        const json_t *special = json_object_get(o, "special_tokens");
        if (!json_is_array(list))
            return sd_fail(err, SD_EFORMAT, "TemplateProcessing: expected an array \"single\"");
        sd_ids before = {0}, after = {0};
        sd_status st = SD_OK;
        int texts = 0;
        for (size_t i = 0; st == SD_OK && i < json_array_size(list); i++) {
            const json_t *e = json_array_get(list, i), *s;
            if ((s = json_object_get(e, "Sequence"))) {
                const json_t *id = json_object_get(s, "id");
                if (!json_is_string(id) || strcmp(json_string_value(id), "A") != 0)
                    st = sd_fail(err, SD_EFORMAT,
                                 "TemplateProcessing: \"single\" uses a sequence "
                                 "other than A");
                texts++;
            } else if ((s = json_object_get(e, "SpecialToken"))) {
                const json_t *id = json_object_get(s, "id"), *ids = NULL;
                if (json_is_string(id))
                    ids = json_object_get(json_object_get(special, json_string_value(id)), "ids");
                if (!json_is_array(ids))
                    st = sd_fail(err, SD_EFORMAT, "TemplateProcessing: special token %s has no ids",
                                 json_is_string(id) ? json_string_value(id) : "?");
                for (size_t k = 0; st == SD_OK && k < json_array_size(ids); k++) {
                    int32_t v = 0;
                    st = check_id(json_array_get(ids, k), &v, err);
                    if (st == SD_OK)
                        st = sd_tok_ids_put(texts ? &after : &before, v, err);
                }
            } else {
                st = sd_fail(err, SD_EFORMAT, "TemplateProcessing: unknown piece in \"single\"");
            }
        }
        if (st == SD_OK && texts != 1)
            st = sd_fail(err, SD_EFORMAT,
                         "TemplateProcessing: \"single\" uses the text %d times, expected once",
                         texts);
        if (st == SD_OK)
            st = wrap(&t->head, &t->n_head, before.v, before.n, true, err);
        if (st == SD_OK)
            st = wrap(&t->tail, &t->n_tail, after.v, after.n, false, err);
        sd_ids_free(&before);
        sd_ids_free(&after);
        return st;
    }
    return sd_fail(err, SD_EFORMAT,
                   "unknown post_processor \"%s\" (known: Sequence ByteLevel BertProcessing "
                   "RobertaProcessing TemplateProcessing)",
                   type);
}

/* ---- models -------------------------------------------------------------------------------------
 */
static sd_status load_vocab(sd_tokenizer *t, const json_t *vocab, size_t extra, sd_err *err) {
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return sd_fail(err, SD_EFORMAT, "vocab: expected an object that is not empty");
    size_t n = json_object_size(vocab) + extra;
    SD_TRY(sd_tok_vocab_init(&t->vocab, n, err));
    void *it;
    for (it = json_object_iter((json_t *)vocab); it;
         it = json_object_iter_next((json_t *)vocab, it)) {
        const json_t *v = json_object_iter_value(it);
        const char *key = json_object_iter_key(it);
        if (!json_is_integer(v))
            return sd_fail(err, SD_EFORMAT, "vocab: token \"%.60s\" has no integer id", key);
        SD_TRY(sd_tok_vocab_add(&t->vocab, key, json_object_iter_key_len(it), json_integer_value(v),
                                n, false, err));
    }
    return SD_OK;
}

/* One merge: the spellings of the two sides; the result is left + right without the prefix. */
static sd_status add_merge(sd_tokenizer *t, const char *a, size_t na, const char *b, size_t nb,
                           uint32_t rank, sd_err *err) {
    int32_t ia = sd_tok_vocab_find(&t->vocab, a, na), ib = sd_tok_vocab_find(&t->vocab, b, nb),
            id = -1;
    if (ia < 0 || ib < 0)
        return sd_fail(err, SD_EFORMAT, "merge %u: \"%.*s\" is not in the vocabulary",
                       (unsigned)rank, (int)((ia < 0 ? na : nb) > 60 ? 60 : (ia < 0 ? na : nb)),
                       ia < 0 ? a : b);
    size_t skip = t->nprefix < nb ? t->nprefix : nb;
    size_t n = na + nb - skip;
    char small[256], *s = small;
    if (n > sizeof small && !(s = sd_alloc(n, 1, err)))
        return SD_ENOMEM;
    memcpy(s, a, na);
    memcpy(s + na, b + skip, nb - skip);
    id = sd_tok_vocab_find(&t->vocab, s, n);
    sd_status st = SD_OK;
    if (id < 0)
        st = sd_fail(err, SD_EFORMAT, "merge %u: its result \"%.*s\" is not in the vocabulary",
                     (unsigned)rank, n > 60 ? 60 : (int)n, s);
    if (s != small)
        sd_free(s);
    return st != SD_OK ? st : sd_tok_merges_put(&t->merges, ia, ib, rank, id, err);
}

static sd_status bad_merge(size_t i, sd_err *err) {
    return sd_fail(err, SD_EFORMAT, "merges[%zu]: expected \"left right\" or [\"left\", \"right\"]",
                   i);
}

/* "a b": exactly one space. */
static sd_status merge_line(sd_tokenizer *t, const char *s, size_t n, size_t i, sd_err *err) {
    const char *sp = memchr(s, ' ', n);
    if (!sp || sp == s || sp + 1 == s + n || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - s)))
        return bad_merge(i, err);
    return add_merge(t, s, (size_t)(sp - s), sp + 1, n - (size_t)(sp + 1 - s), (uint32_t)i, err);
}

static sd_status load_merges(sd_tokenizer *t, const json_t *m, sd_err *err) {
    if (!json_is_array(m) || json_array_size(m) == 0)
        return sd_fail(err, SD_EFORMAT, "merges: expected an array that is not empty");
    sd_buf b = {0};
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < json_array_size(m); i++) {
        const json_t *e = json_array_get(m, i), *x = json_array_get(e, 0),
                     *y = json_array_get(e, 1);
        if (json_is_array(e)) {
            if (json_array_size(e) != 2 || !json_is_string(x) || !json_is_string(y) ||
                !json_string_length(x) || !json_string_length(y))
                st = bad_merge(i, err);
            else
                st = add_merge(t, json_string_value(x), json_string_length(x), json_string_value(y),
                               json_string_length(y), (uint32_t)i, err);
            continue;
        }
        sd_buf_clear(&b);
        if (!sd_meta_bytes(e, &b))
            st = bad_merge(i, err);
        else if ((st = sd_buf_status(&b, err)) == SD_OK)
            st = merge_line(t, b.p ? b.p : "", b.n, i, err);
    }
    sd_buf_free(&b);
    return st;
}

static sd_status load_bpe(sd_tokenizer *t, const json_t *m, size_t extra, sd_err *err) {
    static const char *const known[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges"};
    void *it;
    for (it = json_object_iter((json_t *)m); it; it = json_object_iter_next((json_t *)m, it)) {
        const char *key = json_object_iter_key(it);
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(key, known[i]) != 0)
            i++;
        const json_t *v = json_object_iter_value(it);
        if (i == n && !json_is_null(v) && !json_is_false(v))
            return sd_fail(err, SD_EFORMAT, "BPE: unknown option \"%.60s\"", key);
    }
    sd_status st = SD_OK;
    double dropout = 0;
    bool found;
    SD_TRY(sd_json_f64(m, "dropout", &dropout, &found, err));
    if (found && dropout != 0)
        return sd_fail(err, SD_EFORMAT, "BPE: dropout %g is not supported", dropout);
    t->model = TOK_BPE;
    const char *unk = str_of(m, "unk_token", NULL, &st, err);
    const char *prefix = str_of(m, "continuing_subword_prefix", "", &st, err);
    const char *suffix = str_of(m, "end_of_word_suffix", "", &st, err);
    t->fuse_unk = bool_of(m, "fuse_unk", false, &st, err);
    t->byte_fallback = bool_of(m, "byte_fallback", false, &st, err);
    t->ignore_merges = bool_of(m, "ignore_merges", false, &st, err);
    SD_TRY(st);
    if (*prefix)
        SD_TRY(keep(&t->prefix, &t->nprefix, prefix, strlen(prefix), err));
    if (*suffix)
        SD_TRY(keep(&t->suffix, &t->nsuffix, suffix, strlen(suffix), err));
    SD_TRY(load_vocab(t, json_object_get(m, "vocab"), extra, err));
    if (unk && (t->unk = sd_tok_vocab_find(&t->vocab, unk, strlen(unk))) < 0)
        return sd_fail(err, SD_EFORMAT, "BPE: unk_token \"%s\" is not in the vocabulary", unk);
    return load_merges(t, json_object_get(m, "merges"), err);
}

static sd_status load_wordpiece(sd_tokenizer *t, const json_t *m, size_t extra, sd_err *err) {
    sd_status st = SD_OK;
    int64_t max = 100;
    bool found;
    t->model = TOK_WORDPIECE;
    const char *unk = str_of(m, "unk_token", "[UNK]", &st, err);
    const char *prefix = str_of(m, "continuing_subword_prefix", "##", &st, err);
    SD_TRY(st);
    SD_TRY(sd_json_i64(m, "max_input_chars_per_word", 1, INT32_MAX, &max, &found, err));
    t->max_chars = (size_t)max;
    SD_TRY(keep(&t->prefix, &t->nprefix, prefix, strlen(prefix), err));
    SD_TRY(load_vocab(t, json_object_get(m, "vocab"), extra, err));
    if ((t->unk = sd_tok_vocab_find(&t->vocab, unk, strlen(unk))) < 0)
        return sd_fail(err, SD_EFORMAT, "WordPiece: unk_token \"%s\" is not in the vocabulary",
                       unk);
    return SD_OK;
}

/* ---- added tokens -----------------------------------------------------------------------------
 */
/* Appends to t->added, whose memory the caller has made. */
static sd_status put_added(sd_tokenizer *t, size_t room, const char *s, size_t n, int64_t id,
                           tok_added flags, sd_err *err) {
    if (n > MAX_ADDED_BYTES)
        return sd_fail(err, SD_EFORMAT, "added token of %zu bytes: more than %d", n,
                       MAX_ADDED_BYTES);
    int32_t known = sd_tok_vocab_find(&t->vocab, s, n);
    if (known >= 0 && known != id)
        return sd_fail(err, SD_EFORMAT,
                       "added token \"%.*s\" has id %lld, and %d in the vocabulary",
                       n > 60 ? 60 : (int)n, s, (long long)id, (int)known);
    if (known < 0)
        SD_TRY(sd_tok_vocab_add(&t->vocab, s, n, id, t->vocab.count + room, false, err));
    flags.id = (int32_t)id;
    flags.text = t->vocab.at[id];
    t->added[t->n_added++] = flags;
    return SD_OK;
}

static int by_id(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

static sd_status load_added(sd_tokenizer *t, const json_t *list, sd_err *err) {
    size_t n = json_array_size(list);
    if (n == 0)
        return SD_OK;
    t->added = sd_alloc(n, sizeof *t->added, err);
    int64_t *seen = sd_alloc(n, sizeof *seen, err);
    sd_status st = t->added && seen ? SD_OK : SD_ENOMEM;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        const json_t *e = json_array_get(list, i), *c = json_object_get(e, "content");
        if (!json_is_string(c)) {
            st = sd_fail(err, SD_EFORMAT, "added_tokens[%zu]: expected a string \"content\"", i);
            break;
        }
        st = sd_json_i64(e, "id", 0, INT32_MAX - 2, &seen[i], NULL, err);
        tok_added a = {0};
        a.single_word = bool_of(e, "single_word", false, &st, err);
        a.lstrip = bool_of(e, "lstrip", false, &st, err);
        a.rstrip = bool_of(e, "rstrip", false, &st, err);
        a.special = bool_of(e, "special", false, &st, err);
        a.normalized = bool_of(e, "normalized", !a.special, &st, err);
        if (st == SD_OK && json_string_length(c) > 0)
            st = put_added(t, n, json_string_value(c), json_string_length(c), seen[i], a, err);
    }
    if (st == SD_OK) {
        qsort(seen, n, sizeof *seen, by_id);
        for (size_t i = 1; i < n && st == SD_OK; i++)
            if (seen[i] == seen[i - 1])
                st = sd_fail(err, SD_EFORMAT, "added_tokens: id %lld is listed twice",
                             (long long)seen[i]);
    }
    sd_free(seen);
    return st;
}

/* ---- tokenizer.json
 * ------------------------------------------------------------------------------ */
sd_status sd_tok_load_json(sd_tokenizer *t, const json_t *j, sd_err *err) {
    SD_TRY(is_object(j, "tokenizer", err));
    const json_t *m = json_object_get(j, "model"), *v;
    const json_t *added = json_object_get(j, "added_tokens");
    SD_TRY(is_object(m, "model", err));
    sd_status st = SD_OK;
    const char *type = str_of(m, "type", NULL, &st, err);
    SD_TRY(st);
    if (!type) /* older files leave it out */
        type = json_object_get(m, "merges")                     ? "BPE"
               : json_object_get(m, "max_input_chars_per_word") ? "WordPiece"
                                                                : "(not given)";
    size_t extra = json_array_size(added);
    if (strcmp(type, "BPE") == 0)
        SD_TRY(load_bpe(t, m, extra, err));
    else if (strcmp(type, "WordPiece") == 0)
        SD_TRY(load_wordpiece(t, m, extra, err));
    else
        return sd_fail(err, SD_EFORMAT, "unknown tokenizer model \"%s\" (known: BPE WordPiece)",
                       type);
    if ((v = json_object_get(j, "normalizer")) && !json_is_null(v))
        SD_TRY(load_norm(t, v, 0, err));
    if ((v = json_object_get(j, "pre_tokenizer")) && !json_is_null(v))
        SD_TRY(load_pre(t, v, 0, err));
    if ((v = json_object_get(j, "post_processor")) && !json_is_null(v))
        SD_TRY(load_post(t, v, 0, err));
    if ((v = json_object_get(j, "decoder")) && !json_is_null(v))
        SD_TRY(load_dec(t, v, 0, err));
    else
        t->no_decoder = true;
    SD_TRY(load_added(t, added, err));
    return sd_tok_finish(t, err);
}

/* ---- roles
 * ---------------------------------------------------------------------------------------- */
void sd_tok_roles_json(sd_tokenizer *t, const json_t *config) {
    static const char *const key[TOK_ROLES] = {"bos_token", "eos_token",  "unk_token", "cls_token",
                                               "sep_token", "mask_token", "pad_token"};
    for (int i = 0; i < TOK_ROLES; i++) {
        const json_t *v = json_object_get(config, key[i]);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        if (!json_is_string(v))
            continue;
        int32_t id = sd_tok_vocab_find(&t->vocab, json_string_value(v), json_string_length(v));
        if (id >= 0)
            t->role[i] = id;
    }
}

/* ---- vocab.json + merges.txt ----------------------------------------------------------------- */
static const char qwen2_regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{"
                                  "N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                                  "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Three files may name one token: the later flags win. */
static sd_status add_added(sd_tokenizer *t, size_t room, const char *s, size_t n, int64_t id,
                           tok_added flags, sd_err *err) {
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].id == id && t->added[i].text.n == n &&
            memcmp(t->added[i].text.s, s, n) == 0) {
            flags.id = t->added[i].id;
            flags.text = t->added[i].text;
            t->added[i] = flags;
            return SD_OK;
        }
    }
    return n ? put_added(t, room, s, n, id, flags, err) : SD_OK;
}

static sd_status file_added(sd_tokenizer *t, const json_t *config, const json_t *added,
                            sd_err *err) {
    const json_t *dec = json_object_get(config, "added_tokens_decoder");
    size_t n = json_object_size(dec) + json_object_size(added) + TOK_ROLES;
    t->added = sd_alloc(n, sizeof *t->added, err);
    if (!t->added)
        return SD_ENOMEM;
    void *it;
    for (it = json_object_iter((json_t *)added); it;
         it = json_object_iter_next((json_t *)added, it)) {
        const json_t *v = json_object_iter_value(it);
        if (!json_is_integer(v))
            return sd_fail(err, SD_EFORMAT, "added_tokens.json: expected integer ids");
        SD_TRY(add_added(t, n, json_object_iter_key(it), json_object_iter_key_len(it),
                         json_integer_value(v), (tok_added){.normalized = true}, err));
    }
    for (it = json_object_iter((json_t *)dec); it; it = json_object_iter_next((json_t *)dec, it)) {
        const json_t *v = json_object_iter_value(it), *c = json_object_get(v, "content");
        int64_t id;
        if (!sd_parse_i64(json_object_iter_key(it), &id) || !json_is_string(c))
            return sd_fail(err, SD_EFORMAT, "added_tokens_decoder: expected id: {content …}");
        sd_status st = SD_OK;
        tok_added a = {0};
        a.single_word = bool_of(v, "single_word", false, &st, err);
        a.lstrip = bool_of(v, "lstrip", false, &st, err);
        a.rstrip = bool_of(v, "rstrip", false, &st, err);
        a.special = bool_of(v, "special", false, &st, err);
        a.normalized = bool_of(v, "normalized", !a.special, &st, err);
        SD_TRY(st);
        SD_TRY(add_added(t, n, json_string_value(c), json_string_length(c), id, a, err));
    }
    sd_tok_roles_json(t, config);
    for (int i = 0; i < TOK_ROLES; i++) { /* special tokens match in text */
        int32_t id = t->role[i];
        bool have = id < 0;
        for (size_t k = 0; k < t->n_added && !have; k++)
            have = t->added[k].id == id;
        if (!have)
            SD_TRY(add_added(t, n, t->vocab.at[id].s, t->vocab.at[id].n, id,
                             (tok_added){.special = true}, err));
    }
    return SD_OK;
}

sd_status sd_tok_load_bpe_files(sd_tokenizer *t, const json_t *vocab, const char *merges, size_t n,
                                const json_t *config, const json_t *added, sd_err *err) {
    sd_status st = SD_OK;
    const char *class = str_of(config, "tokenizer_class", "GPT2Tokenizer", &st, err);
    bool prefix = bool_of(config, "add_prefix_space", false, &st, err);
    SD_TRY(st);
    size_t len = strlen(class);
    if (len > 4 && strcmp(class + len - 4, "Fast") == 0)
        len -= 4;
    bool roberta = (len == 16 && strncmp(class, "RobertaTokenizer", 16) == 0) ||
                   (len == 13 && strncmp(class, "BartTokenizer", 13) == 0);
    bool qwen2 = len == 14 && strncmp(class, "Qwen2Tokenizer", 14) == 0;
    if (!roberta && !qwen2 && !(len == 13 && strncmp(class, "GPT2Tokenizer", 13) == 0) &&
        !(len == 16 && strncmp(class, "CodeGenTokenizer", 16) == 0) &&
        strcmp(class, "PreTrainedTokenizerFast") != 0)
        return sd_fail(
            err, SD_EFORMAT,
            "tokenizer_class \"%s\" with vocab.json and merges.txt (known: GPT2Tokenizer "
            "CodeGenTokenizer RobertaTokenizer BartTokenizer Qwen2Tokenizer); "
            "a tokenizer.json would say what it needs",
            class);
    t->model = TOK_BPE;
    SD_TRY(load_vocab(t, vocab, json_object_size(added), err));
    size_t rank = 0, line = 0;
    for (size_t i = 0; i < n;) {
        const char *e = memchr(merges + i, '\n', n - i);
        size_t end = e ? (size_t)(e - merges) : n, stop = end;
        if (stop > i && merges[stop - 1] == '\r')
            stop--;
        line++;
        if (stop > i && !(line == 1 && stop - i >= 8 && memcmp(merges + i, "#version", 8) == 0)) {
            st = merge_line(t, merges + i, stop - i, rank++, err);
            if (st != SD_OK) {
                sd_err_context(err, "merges, line %zu", line);
                return st;
            }
        }
        i = end + 1;
    }
    if (rank == 0)
        return sd_fail(err, SD_EFORMAT, "merges: the list is empty");
    if (qwen2) {
        tok_norm *m = new_norm(t, err);
        if (!m)
            return last_code(err);
        m->kind = TOK_NFC;
    }
    if (prefix && !new_pre(t, TOK_PRE_PREFIX_SPACE, err))
        return last_code(err);
    SD_TRY(add_split(t, qwen2 ? qwen2_regex : sd_tok_gpt2_regex, TOK_ISOLATED, false, err));
    SD_TRY(add_map(t, err));
    SD_TRY(add_dec(t, TOK_DEC_BYTELEVEL, NULL, 0, NULL, err));
    /* GPT-2's end of text, where no configuration names it. */
    if (!config && !roberta && !qwen2)
        t->role[0] = t->role[1] = sd_tok_vocab_find(&t->vocab, "<|endoftext|>", 13);
    SD_TRY(file_added(t, config, added, err));
    if (roberta) {
        int32_t a = sd_tok_vocab_find(&t->vocab, "<s>", 3),
                b = sd_tok_vocab_find(&t->vocab, "</s>", 4);
        if (a < 0 || b < 0)
            return sd_fail(err, SD_EFORMAT, "tokenizer_class \"%s\": no <s> and </s>", class);
        SD_TRY(wrap(&t->head, &t->n_head, &a, 1, true, err));
        SD_TRY(wrap(&t->tail, &t->n_tail, &b, 1, false, err));
    }
    return sd_tok_finish(t, err);
}

/* ---- vocab.txt
 * --------------------------------------------------------------------------------------- */
static sd_status bert_pipeline(sd_tokenizer *t, bool lower, bool accents, bool chinese,
                               sd_err *err) {
    tok_norm *m = new_norm(t, err);
    if (!m)
        return last_code(err);
    m->kind = TOK_BERT;
    m->clean = true;
    m->chinese = chinese;
    m->lower = lower;
    m->accents = accents;
    SD_TRY(add_class(t, TOK_PAT_SPACE, TOK_REMOVED, err));
    SD_TRY(add_class(t, TOK_PAT_PUNCT, TOK_ISOLATED, err));
    tok_dec *d;
    SD_TRY(add_dec(t, TOK_DEC_WORDPIECE, "##", 2, &d, err));
    d->cleanup = true;
    int32_t cls = t->role[3], sep = t->role[4];
    if (cls >= 0)
        SD_TRY(wrap(&t->head, &t->n_head, &cls, 1, true, err));
    if (sep >= 0)
        SD_TRY(wrap(&t->tail, &t->n_tail, &sep, 1, false, err));
    return SD_OK;
}

static void bert_roles(sd_tokenizer *t) {
    static const char *const spelling[TOK_ROLES] = {NULL,    NULL,     "[UNK]", "[CLS]",
                                                    "[SEP]", "[MASK]", "[PAD]"};
    for (int i = 0; i < TOK_ROLES; i++)
        if (spelling[i] && t->role[i] < 0)
            t->role[i] = sd_tok_vocab_find(&t->vocab, spelling[i], strlen(spelling[i]));
}

sd_status sd_tok_load_vocab_txt(sd_tokenizer *t, const char *text, size_t n, const json_t *config,
                                sd_err *err) {
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    lines += n > 0 && text[n - 1] != '\n';
    if (lines == 0)
        return sd_fail(err, SD_EFORMAT, "the vocabulary is empty");
    SD_TRY(sd_tok_vocab_init(&t->vocab, lines, err));
    bool upper = false;
    int64_t id = 0;
    for (size_t i = 0; i < n; id++) {
        const char *e = memchr(text + i, '\n', n - i);
        size_t end = e ? (size_t)(e - text) : n, stop = end;
        if (stop > i && text[stop - 1] == '\r')
            stop--;
        for (size_t k = i; k < stop;) {
            size_t len = sd_utf8_next(text + k, stop - k, NULL);
            if (len == 0)
                return sd_fail(err, SD_EFORMAT, "vocabulary, line %lld: not UTF-8",
                               (long long)id + 1);
            k += len;
        }
        SD_TRY(sd_tok_vocab_add(&t->vocab, text + i, stop - i, id, lines, true, err));
        if (stop > i && text[i] != '[')
            for (size_t k = i; k < stop; k++)
                upper = upper || (text[k] >= 'A' && text[k] <= 'Z');
        i = end + 1;
    }
    t->model = TOK_WORDPIECE;
    t->max_chars = 100;
    SD_TRY(keep(&t->prefix, &t->nprefix, "##", 2, err));
    bert_roles(t);
    sd_status st = SD_OK;
    /* Without a configuration: a vocabulary that holds capitals is a cased one. */
    bool lower = bool_of(config, "do_lower_case", !upper, &st, err);
    bool accents = bool_of(config, "strip_accents", lower, &st, err);
    bool chinese = bool_of(config, "tokenize_chinese_chars", true, &st, err);
    SD_TRY(st);
    SD_TRY(file_added(t, config, NULL, err));
    t->unk = t->role[2];
    if (t->unk < 0)
        return sd_fail(err, SD_EFORMAT, "WordPiece: unk_token \"[UNK]\" is not in the vocabulary");
    SD_TRY(bert_pipeline(t, lower, accents, chinese, err));
    return sd_tok_finish(t, err);
}

/* ---- GGUF
 * ------------------------------------------------------------------------------------------------
 */
#define LETTERS_LOW "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define LETTERS_UP "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The splits that a name in tokenizer.ggml.pre stands for, applied one after the other. */
static const struct {
    const char *names;    /* space-separated */
    const char *regex[4]; /* NULL-terminated; "" = GPT-2's */
    bool ignore_merges, bos;
} pre_rows[] = {
    {" gpt-2 gpt2 phi-2 mpt olmo jais gigachat roberta-bpe jina-es jina-de jina-v2-es jina-v2-de"
     " jina-v2-code jina-v1-en ",
     {""},
     false,
     false},
    {" llama3 llama-v3 llama-bpe falcon3 pixtral ",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL},
     true,
     true},
    {" dbrx smaug-bpe chatglm-bpe glm4 ",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL},
     false,
     false},
    {" qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo ", {qwen2_regex}, false, false},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ",
     {"\\p{N}", ""},
     false,
     false},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", "", "[0-9][0-9][0-9]"}, false, false},
    {" deepseek-coder ",
     {"[\\r\\n]|\\s?\\p{L}+|\\s?\\p{P}+|[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+|\\p{N}"},
     false,
     false},
    {" deepseek-v3 hunyuan-dense ",
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
      "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL},
     false,
     false},
    {" tekken ",
     {"[^\\r\\n\\p{L}\\p{N}]?[" LETTERS_UP "]*[" LETTERS_LOW "]+|[^\\r\\n\\p{L}\\p{N}]?[" LETTERS_UP
      "]+[" LETTERS_LOW "]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL},
     true,
     true},
    {" gpt-4o llama4 ",
     {"[^\\r\\n\\p{L}\\p{N}]?[" LETTERS_UP "]*[" LETTERS_LOW "]+" CONTRACTION
      "?|[^\\r\\n\\p{L}\\p{N}]?[" LETTERS_UP "]+[" LETTERS_LOW "]*" CONTRACTION
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL},
     false,
     false},
};

static sd_status gguf_pre(sd_tokenizer *t, const char *name, bool *bos, sd_err *err) {
    char key[64];
    size_t n = strlen(name);
    if (n > 0 && n < sizeof key - 3 && !strchr(name, ' ')) {
        key[0] = ' ';
        memcpy(key + 1, name, n);
        memcpy(key + 1 + n, " ", 2);
        for (size_t i = 0; i < sizeof pre_rows / sizeof *pre_rows; i++) {
            if (!strstr(pre_rows[i].names, key))
                continue;
            t->ignore_merges = pre_rows[i].ignore_merges;
            *bos = pre_rows[i].bos;
            for (int k = 0; k < 4 && pre_rows[i].regex[k]; k++) {
                const char *re = pre_rows[i].regex[k];
                SD_TRY(add_split(t, *re ? re : sd_tok_gpt2_regex, TOK_ISOLATED, false, err));
            }
            return add_map(t, err);
        }
    }
    sd_buf b = {0};
    for (size_t i = 0; i < sizeof pre_rows / sizeof *pre_rows; i++)
        sd_buf_puts(&b, pre_rows[i].names + (i > 0));
    sd_status st = sd_fail(err, SD_EFORMAT,
                           "unknown pre-tokenizer \"%.60s\" in tokenizer.ggml.pre (known: %.*s)",
                           name, b.n ? (int)b.n - 1 : 0, b.p ? b.p : "");
    sd_buf_free(&b);
    return st;
}

enum { T_NORMAL = 1, T_UNKNOWN, T_CONTROL, T_USER, T_UNUSED, T_BYTE };

static int token_type(const json_t *types, size_t i) {
    const json_t *v = json_array_get(types, i);
    return json_is_integer(v) ? (int)json_integer_value(v) : T_NORMAL;
}

static sd_status gguf_vocab(sd_tokenizer *t, const json_t *tokens, const json_t *types, bool bert,
                            sd_err *err) {
    size_t n = json_array_size(tokens);
    SD_TRY(sd_tok_vocab_init(&t->vocab, n, err));
    sd_buf b = {0}, c = {0};
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        sd_buf_clear(&b);
        sd_buf_clear(&c);
        if (!sd_meta_bytes(json_array_get(tokens, i), &b)) {
            st = sd_fail(err, SD_EFORMAT, "tokenizer.ggml.tokens[%zu]: expected a string", i);
            break;
        }
        int type = token_type(types, i);
        if (bert && b.n && b.p[0] != '[' && type != T_CONTROL && type != T_UNKNOWN) {
            /* Words carry U+2581 in front, continuations nothing: back to BERT's spelling. */
            if (b.n > 3 && memcmp(b.p, meta_space, 3) == 0) {
                sd_buf_put(&c, b.p + 3, b.n - 3);
            } else {
                sd_buf_puts(&c, "##");
                sd_buf_put(&c, b.p, b.n);
            }
        } else {
            sd_buf_put(&c, b.p ? b.p : "", b.n);
        }
        if ((st = sd_buf_status(&c, err)) == SD_OK)
            st = sd_tok_vocab_add(&t->vocab, c.p ? c.p : "", c.n, (int64_t)i, n, true, err);
    }
    sd_buf_free(&b);
    sd_buf_free(&c);
    return st;
}

/* Control tokens are special, user-defined ones match in text. */
static sd_status gguf_added(sd_tokenizer *t, const json_t *types, sd_err *err) {
    size_t n = (size_t)t->vocab.size, k = 0;
    for (size_t i = 0; i < n; i++) {
        int y = token_type(types, i);
        k += y == T_CONTROL || y == T_USER || y == T_UNKNOWN;
    }
    t->added = sd_alloc(k, sizeof *t->added, err);
    if (!t->added)
        return SD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int y = token_type(types, i);
        const tok_str *e = &t->vocab.at[i];
        if ((y != T_CONTROL && y != T_USER && y != T_UNKNOWN) || e->n == 0 ||
            sd_tok_vocab_find(&t->vocab, e->s, e->n) != (int32_t)i)
            continue;
        if (e->n > MAX_ADDED_BYTES)
            return sd_fail(err, SD_EFORMAT, "token %zu of %u bytes: more than %d", i,
                           (unsigned)e->n, MAX_ADDED_BYTES);
        t->added[t->n_added++] = (tok_added){.id = (int32_t)i, .text = *e, .special = y != T_USER};
    }
    return SD_OK;
}

typedef struct scored {
    double score;
    int32_t id;
} scored;

static int by_score(const void *x, const void *y) {
    const scored *a = x, *b = y;
    return a->score != b->score ? (a->score > b->score ? -1 : 1)
                                : (a->id > b->id) - (a->id < b->id);
}

/* SentencePiece merges any two neighbours whose joined spelling is a token, best score first: as a
 * merge list, every split of every token into two tokens, ranked by the token's score. */
static sd_status merges_of_scores(sd_tokenizer *t, const json_t *scores, const json_t *types,
                                  sd_err *err) {
    size_t n = (size_t)t->vocab.size;
    if (!json_is_array(scores) || json_array_size(scores) != n)
        return sd_fail(err, SD_EFORMAT, "tokenizer.ggml.scores: expected %zu numbers, found %zu", n,
                       json_array_size(scores));
    scored *v = sd_alloc(n, sizeof *v, err);
    if (!v)
        return SD_ENOMEM;
    sd_status st = SD_OK;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(scores, i);
        int y = token_type(types, i);
        if (!json_is_number(x)) {
            st =
                sd_fail(err, SD_EFORMAT, "tokenizer.ggml.scores[%zu]: expected a finite number", i);
            break;
        }
        if (y != T_CONTROL && y != T_UNKNOWN && y != T_BYTE)
            v[m++] = (scored){json_number_value(x), (int32_t)i};
    }
    if (st == SD_OK)
        qsort(v, m, sizeof *v, by_score);
    uint32_t rank = 0;
    for (size_t i = 0; st == SD_OK && i < m; i++) {
        rank = i > 0 && v[i].score == v[i - 1].score ? rank : (uint32_t)i;
        const tok_str *e = &t->vocab.at[v[i].id];
        if (e->n > 1024) { /* every split is tried */
            st = sd_fail(err, SD_EFORMAT, "token %d of %u bytes: more than 1024", (int)v[i].id,
                         (unsigned)e->n);
            break;
        }
        if (sd_tok_vocab_find(&t->vocab, e->s, e->n) != v[i].id)
            continue;
        for (size_t k = 1; k < e->n && st == SD_OK; k++) {
            if (((unsigned char)e->s[k] & 0xc0) == 0x80)
                continue;
            int32_t a = sd_tok_vocab_find(&t->vocab, e->s, k);
            int32_t b = a < 0 ? -1 : sd_tok_vocab_find(&t->vocab, e->s + k, e->n - k);
            if (b >= 0)
                st = sd_tok_merges_put(&t->merges, a, b, rank, v[i].id, err);
        }
        if ((i & 0xfff) == 0xfff && st == SD_OK)
            st = sd_check_cancel(err);
    }
    sd_free(v);
    if (st == SD_OK && t->merges.count == 0)
        st = sd_fail(err, SD_EFORMAT, "no token of the vocabulary is made of two others");
    return st;
}

static sd_status gguf_id(const json_t *meta, const char *key, int32_t size, int32_t *out,
                         sd_err *err) {
    int64_t v = -1;
    bool found = false;
    SD_TRY(sd_json_i64(meta, key, -1, INT64_MAX, &v, &found, err));
    if (!found || v == 0xffffffffLL || v < 0)
        return SD_OK;
    if (v >= size)
        return sd_fail(err, SD_EFORMAT, "%s is %lld: expected 0..%d", key, (long long)v,
                       (int)size - 1);
    *out = (int32_t)v;
    return SD_OK;
}

sd_status sd_tok_load_gguf(sd_tokenizer *t, const json_t *meta, sd_err *err) {
    static const char *const key[TOK_ROLES] = {
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.cls_token_id",
        "tokenizer.ggml.seperator_token_id" /* as the format spells it */,
        "tokenizer.ggml.mask_token_id",
        "tokenizer.ggml.padding_token_id"};
    const char *model;
    SD_TRY(sd_json_str(meta, "tokenizer.ggml.model", &model, NULL, err));
    const json_t *tokens = json_object_get(meta, "tokenizer.ggml.tokens");
    const json_t *types = json_object_get(meta, "tokenizer.ggml.token_type");
    if (!json_is_array(tokens) || json_array_size(tokens) == 0)
        return sd_fail(err, SD_EFORMAT,
                       "tokenizer.ggml.tokens: expected an array that is not empty");
    if (types && json_array_size(types) != json_array_size(tokens))
        return sd_fail(err, SD_EFORMAT, "tokenizer.ggml.token_type has %zu entries, tokens %zu",
                       json_array_size(types), json_array_size(tokens));
    bool gpt2 = strcmp(model, "gpt2") == 0, spm = strcmp(model, "llama") == 0;
    bool bert = strcmp(model, "bert") == 0;
    if (!gpt2 && !spm && !bert)
        return sd_fail(err, SD_EFORMAT,
                       "unknown tokenizer model \"%s\" in tokenizer.ggml.model (known: gpt2 llama "
                       "bert)",
                       model);
    t->model = bert ? TOK_WORDPIECE : TOK_BPE;
    SD_TRY(gguf_vocab(t, tokens, types, bert, err));
    for (int i = 0; i < TOK_ROLES; i++)
        SD_TRY(gguf_id(meta, key[i], t->vocab.size, &t->role[i], err));
    SD_TRY(gguf_id(meta, "tokenizer.ggml.separator_token_id", t->vocab.size, &t->role[4], err));
    SD_TRY(gguf_added(t, types, err));
    sd_status st = SD_OK;
    if (bert) {
        bert_roles(t);
        t->max_chars = 100;
        SD_TRY(keep(&t->prefix, &t->nprefix, "##", 2, err));
        t->unk = t->role[2];
        if (t->unk < 0)
            return sd_fail(err, SD_EFORMAT, "WordPiece: no unknown token");
        SD_TRY(bert_pipeline(t, true, true, true, err));
        return sd_tok_finish(t, err);
    }
    bool bos = spm, eos = false;
    if (gpt2) {
        const char *pre = str_of(meta, "tokenizer.ggml.pre", NULL, &st, err);
        SD_TRY(st);
        if (!pre)
            return sd_fail(err, SD_EFORMAT,
                           "tokenizer.ggml.pre is missing: how text is split is not known");
        bool space = bool_of(meta, "tokenizer.ggml.add_space_prefix", false, &st, err);
        SD_TRY(st);
        if (space && !new_pre(t, TOK_PRE_PREFIX_SPACE, err))
            return last_code(err);
        SD_TRY(gguf_pre(t, pre, &bos, err));
        SD_TRY(load_merges(t, json_object_get(meta, "tokenizer.ggml.merges"), err));
        SD_TRY(add_dec(t, TOK_DEC_BYTELEVEL, NULL, 0, NULL, err));
    } else {
        bool space = bool_of(meta, "tokenizer.ggml.add_space_prefix", true, &st, err);
        if (bool_of(meta, "tokenizer.ggml.remove_extra_whitespaces", false, &st, err))
            return sd_fail(err, SD_EFORMAT,
                           "tokenizer.ggml.remove_extra_whitespaces is not supported");
        SD_TRY(st);
        tok_norm *m;
        if (space) {
            if (!(m = new_norm(t, err)))
                return last_code(err);
            m->kind = TOK_PREPEND;
            SD_TRY(keep(&m->content, &m->n, meta_space, 3, err));
        }
        if (!(m = new_norm(t, err)))
            return last_code(err);
        m->kind = TOK_REPLACE;
        SD_TRY(sd_tok_literal(" ", 1, &m->pat, err));
        SD_TRY(keep(&m->content, &m->n, meta_space, 3, err));
        t->byte_fallback = t->fuse_unk = true;
        t->unk = t->role[2];
        SD_TRY(merges_of_scores(t, json_object_get(meta, "tokenizer.ggml.scores"), types, err));
        tok_dec *d;
        SD_TRY(add_dec(t, TOK_DEC_REPLACE, " ", 1, &d, err));
        SD_TRY(sd_tok_literal(meta_space, 3, &d->pat, err));
        SD_TRY(add_dec(t, TOK_DEC_BYTEFALLBACK, NULL, 0, NULL, err));
        SD_TRY(add_dec(t, TOK_DEC_FUSE, NULL, 0, NULL, err));
        if (space) {
            SD_TRY(add_dec(t, TOK_DEC_STRIP, " ", 1, &d, err));
            d->start = 1;
        }
    }
    bos = bool_of(meta, "tokenizer.ggml.add_bos_token", bos, &st, err);
    eos = bool_of(meta, "tokenizer.ggml.add_eos_token", eos, &st, err);
    SD_TRY(st);
    if (bos && t->role[0] >= 0)
        SD_TRY(wrap(&t->head, &t->n_head, &t->role[0], 1, true, err));
    if (eos && t->role[1] >= 0)
        SD_TRY(wrap(&t->tail, &t->n_tail, &t->role[1], 1, false, err));
    return sd_tok_finish(t, err);
}
