/* tok_steps.c: the four pieces of a tokenizer.json that are lists of steps: normalizer,
 * pre_tokenizer, post_processor, decoder. A piece is a table of its types; a Sequence holds pieces
 * of the same kind. Pre-tokenizers are broken down into a few primitive steps. */
#include <string.h>

#include "io/tok_build.h"

/* Word characters of the Rust regex crate's \w, joiners included. */
#define WORD(before_, after_) before_ "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}" after_

typedef struct step_row {
    const char *name;
    sd_status (*load)(sd_tokenizer *t, const json_t *o, int kind, sd_err *err); /* NULL: Sequence */
    int kind;
} step_row;

typedef struct piece {
    const char *name; /* in the file */
    const char *list; /* what a Sequence calls its members */
    const step_row *row;
    size_t n;
} piece;

static sd_status load(const piece *p, sd_tokenizer *t, const json_t *o, int depth, sd_err *err) {
    const char *type;
    if (!json_is_object(o))
        return sd_fail(err, SD_EFORMAT, "%s: expected an object", p->name);
    SD_TRY(sd_json_str(o, "type", &type, NULL, err));
    if (depth > TOK_MAX_DEPTH)
        return sd_fail(err, SD_EFORMAT, "%s: nested deeper than %d", p->name, TOK_MAX_DEPTH);
    int k = sd_tok_row(p->name, type, p->row, p->n, sizeof *p->row, err);
    if (k < 0)
        return SD_EFORMAT;
    if (p->row[k].load)
        return p->row[k].load(t, o, p->row[k].kind, err);
    const json_t *list = json_object_get(o, p->list);
    if (!json_is_array(list))
        return sd_fail(err, SD_EFORMAT, "Sequence: expected an array \"%s\"", p->list);
    for (size_t i = 0; i < json_array_size(list); i++)
        SD_TRY(load(p, t, json_array_get(list, i), depth + 1, err));
    return SD_OK;
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

static sd_status content_of(const json_t *o, char **dst, size_t *n, sd_err *err) {
    const json_t *c = json_object_get(o, "content");
    if (!json_is_string(c))
        return sd_fail(err, SD_EFORMAT, "Replace: expected a string \"content\"");
    return sd_tok_keep(dst, n, json_string_value(c), json_string_length(c), err);
}

/* ---- normalizer --------------------------------------------------------------------------------
 */
static sd_status norm_plain(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)o;
    if (kind == TOK_NORM_MAP)
        t->byte_level = true;
    return sd_tok_add_norm(t, (tok_norm_kind)kind, NULL, err);
}

static sd_status norm_replace(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    tok_norm *m;
    SD_TRY(sd_tok_add_norm(t, (tok_norm_kind)kind, &m, err));
    SD_TRY(content_of(o, &m->content, &m->n, err));
    return pattern_of(o, &m->pat, err);
}

static sd_status norm_prepend(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    const char *s;
    tok_norm *m;
    SD_TRY(sd_tok_add_norm(t, (tok_norm_kind)kind, &m, err));
    SD_TRY(sd_json_str(o, "prepend", &s, NULL, err));
    return sd_tok_keep(&m->content, &m->n, s, strlen(s), err);
}

static sd_status norm_strip(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    tok_norm *m;
    SD_TRY(sd_tok_add_norm(t, (tok_norm_kind)kind, &m, err));
    m->left = sd_tok_bool_of(o, "strip_left", true, &st, err);
    m->right = sd_tok_bool_of(o, "strip_right", true, &st, err);
    return st;
}

static sd_status norm_bert(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    tok_norm *m;
    SD_TRY(sd_tok_add_norm(t, (tok_norm_kind)kind, &m, err));
    m->clean = sd_tok_bool_of(o, "clean_text", true, &st, err);
    m->chinese = sd_tok_bool_of(o, "handle_chinese_chars", true, &st, err);
    m->lower = sd_tok_bool_of(o, "lowercase", true, &st, err);
    m->accents = sd_tok_bool_of(o, "strip_accents", m->lower, &st, err);
    return st;
}

static const step_row norm_rows[] = {
    {"Sequence", NULL, 0},
    {"NFC", norm_plain, TOK_NFC},
    {"NFD", norm_plain, TOK_NFD},
    {"NFKC", norm_plain, TOK_NFKC},
    {"NFKD", norm_plain, TOK_NFKD},
    {"Lowercase", norm_plain, TOK_LOWER},
    {"StripAccents", norm_plain, TOK_STRIP_ACCENTS},
    {"Replace", norm_replace, TOK_REPLACE},
    {"Prepend", norm_prepend, TOK_PREPEND},
    {"Strip", norm_strip, TOK_STRIP},
    {"BertNormalizer", norm_bert, TOK_BERT},
    {"ByteLevel", norm_plain, TOK_NORM_MAP},
};

/* ---- pre-tokenizer -----------------------------------------------------------------------------
 */
static sd_status prepend_of(const json_t *o, tok_prepend *out, sd_err *err) {
    static const struct {
        const char *name;
        tok_prepend scheme;
    } row[] = {{"always", TOK_ALWAYS}, {"first", TOK_FIRST}, {"never", TOK_NEVER}};
    sd_status st = SD_OK;
    const char *s = sd_tok_str_of(o, "prepend_scheme", NULL, &st, err);
    bool add = sd_tok_bool_of(o, "add_prefix_space", true, &st, err);
    SD_TRY(st);
    int k = s ? TOK_ROW("prepend_scheme", s, row, err) : add ? 0 : 2;
    if (k < 0)
        return SD_EFORMAT;
    *out = row[k].scheme;
    return SD_OK;
}

static sd_status behavior_of(const json_t *o, tok_behavior *out, sd_err *err) {
    static const struct {
        const char *name;
        tok_behavior behavior;
    } row[] = {{"Removed", TOK_REMOVED},
               {"Isolated", TOK_ISOLATED},
               {"MergedWithPrevious", TOK_MERGED_PREVIOUS},
               {"MergedWithNext", TOK_MERGED_NEXT},
               {"Contiguous", TOK_CONTIGUOUS}};
    sd_status st = SD_OK;
    const char *b = sd_tok_str_of(o, "behavior", "Isolated", &st, err);
    SD_TRY(st);
    int k = TOK_ROW("split behavior", b, row, err);
    if (k < 0)
        return SD_EFORMAT;
    *out = row[k].behavior;
    return SD_OK;
}

static sd_status pre_byte_level(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)kind;
    sd_status st = SD_OK;
    bool prefix = sd_tok_bool_of(o, "add_prefix_space", true, &st, err);
    bool regex = sd_tok_bool_of(o, "use_regex", true, &st, err);
    SD_TRY(st);
    if (t->byte_level)
        return sd_fail(err, SD_EFORMAT, "ByteLevel is applied twice");
    if (prefix)
        SD_TRY(sd_tok_add_pre(t, TOK_PRE_PREFIX_SPACE, NULL, err));
    if (regex)
        SD_TRY(sd_tok_add_split(t, sd_tok_gpt2_regex, TOK_ISOLATED, false, err));
    return sd_tok_add_map(t, err);
}

static sd_status pre_split(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    tok_pre *p;
    SD_TRY(sd_tok_add_pre(t, (tok_pre_kind)kind, &p, err));
    p->invert = sd_tok_bool_of(o, "invert", false, &st, err);
    SD_TRY(st);
    SD_TRY(behavior_of(o, &p->behavior, err));
    return pattern_of(o, &p->pat, err);
}

static sd_status pre_digits(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    bool single = sd_tok_bool_of(o, "individual_digits", false, &st, err);
    SD_TRY(st);
    return sd_tok_add_class(t, (tok_pat_kind)kind, single ? TOK_ISOLATED : TOK_CONTIGUOUS, err);
}

static sd_status pre_whitespace(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)o, (void)kind;
    return sd_tok_add_split(t, WORD("[", "]+") "|" WORD("[^", "\\s]+"), TOK_REMOVED, true, err);
}

static sd_status pre_whitespace_split(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)o;
    return sd_tok_add_class(t, (tok_pat_kind)kind, TOK_REMOVED, err);
}

static sd_status pre_punctuation(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    tok_behavior b;
    SD_TRY(behavior_of(o, &b, err));
    return sd_tok_add_class(t, (tok_pat_kind)kind, b, err);
}

static sd_status pre_bert(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)o, (void)kind;
    SD_TRY(sd_tok_add_class(t, TOK_PAT_SPACE, TOK_REMOVED, err));
    return sd_tok_add_class(t, TOK_PAT_PUNCT, TOK_ISOLATED, err);
}

static sd_status pre_delimiter(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    const char *s;
    tok_pre *p;
    SD_TRY(sd_json_str(o, "delimiter", &s, NULL, err));
    SD_TRY(sd_tok_add_pre(t, (tok_pre_kind)kind, &p, err));
    p->behavior = TOK_REMOVED;
    return sd_tok_literal(s, strlen(s), &p->pat, err);
}

static sd_status pre_metaspace(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    tok_pre *p, *q;
    const char *rep = sd_tok_str_of(o, "replacement", sd_tok_meta_space, &st, err);
    bool cut = sd_tok_bool_of(o, "split", true, &st, err);
    SD_TRY(st);
    size_t n = strlen(rep);
    if (n == 0 || sd_utf8_next(rep, n, NULL) != n)
        return sd_fail(err, SD_EFORMAT, "Metaspace: expected one character as replacement");
    SD_TRY(sd_tok_add_pre(t, (tok_pre_kind)kind, &p, err));
    SD_TRY(sd_tok_keep(&p->rep, &p->nrep, rep, n, err));
    SD_TRY(prepend_of(o, &p->prepend, err));
    if (!cut)
        return SD_OK;
    SD_TRY(sd_tok_add_pre(t, TOK_PRE_SPLIT, &q, err));
    q->behavior = TOK_MERGED_NEXT;
    return sd_tok_literal(rep, n, &q->pat, err);
}

static const step_row pre_rows[] = {
    {"Sequence", NULL, 0},
    {"ByteLevel", pre_byte_level, 0},
    {"Split", pre_split, TOK_PRE_SPLIT},
    {"Digits", pre_digits, TOK_PAT_NUMERIC},
    {"Whitespace", pre_whitespace, 0},
    {"WhitespaceSplit", pre_whitespace_split, TOK_PAT_SPACE},
    {"Punctuation", pre_punctuation, TOK_PAT_PUNCT},
    {"BertPreTokenizer", pre_bert, 0},
    {"CharDelimiterSplit", pre_delimiter, TOK_PRE_SPLIT},
    {"Metaspace", pre_metaspace, TOK_PRE_META},
};

/* ---- decoder -----------------------------------------------------------------------------------
 */
static sd_status dec_plain(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)o;
    return sd_tok_add_dec(t, (tok_dec_kind)kind, NULL, 0, NULL, err);
}

/* A decoder with one string, which may not be empty. */
static sd_status dec_string(sd_tokenizer *t, const json_t *o, int kind, const char *key,
                            const char *otherwise, tok_dec **out, sd_err *err) {
    sd_status st = SD_OK;
    const char *s = sd_tok_str_of(o, key, otherwise, &st, err), *type = "";
    SD_TRY(st);
    if (!*s) {
        SD_TRY(sd_json_str(o, "type", &type, NULL, err));
        return sd_fail(err, SD_EFORMAT, "%s: an empty %s", type, key);
    }
    return sd_tok_add_dec(t, (tok_dec_kind)kind, s, strlen(s), out, err);
}

static sd_status dec_wordpiece(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    sd_status st = SD_OK;
    tok_dec *d;
    const char *s = sd_tok_str_of(o, "prefix", "##", &st, err);
    bool cleanup = sd_tok_bool_of(o, "cleanup", true, &st, err);
    SD_TRY(st);
    SD_TRY(sd_tok_add_dec(t, (tok_dec_kind)kind, s, strlen(s), &d, err));
    d->cleanup = cleanup;
    return SD_OK;
}

static sd_status dec_metaspace(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    tok_prepend p;
    tok_dec *d;
    SD_TRY(prepend_of(o, &p, err));
    SD_TRY(dec_string(t, o, kind, "replacement", sd_tok_meta_space, &d, err));
    d->keep_first = p == TOK_NEVER;
    return SD_OK;
}

static sd_status dec_bpe(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    return dec_string(t, o, kind, "suffix", "</w>", NULL, err);
}

static sd_status dec_strip(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    int64_t start = 0, stop = 0;
    bool found;
    tok_dec *d;
    SD_TRY(dec_string(t, o, kind, "content", " ", &d, err));
    SD_TRY(sd_json_i64(o, "start", 0, INT32_MAX, &start, &found, err));
    SD_TRY(sd_json_i64(o, "stop", 0, INT32_MAX, &stop, &found, err));
    d->start = (size_t)start;
    d->stop = (size_t)stop;
    return SD_OK;
}

static sd_status dec_replace(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    tok_dec *d;
    SD_TRY(sd_tok_add_dec(t, (tok_dec_kind)kind, NULL, 0, &d, err));
    SD_TRY(content_of(o, &d->s, &d->n, err));
    return pattern_of(o, &d->pat, err);
}

static const step_row dec_rows[] = {
    {"Sequence", NULL, 0},
    {"ByteLevel", dec_plain, TOK_DEC_BYTELEVEL},
    {"WordPiece", dec_wordpiece, TOK_DEC_WORDPIECE},
    {"Metaspace", dec_metaspace, TOK_DEC_METASPACE},
    {"ByteFallback", dec_plain, TOK_DEC_BYTEFALLBACK},
    {"Fuse", dec_plain, TOK_DEC_FUSE},
    {"Strip", dec_strip, TOK_DEC_STRIP},
    {"Replace", dec_replace, TOK_DEC_REPLACE},
    {"BPEDecoder", dec_bpe, TOK_DEC_BPE},
};

/* ---- post-processor ----------------------------------------------------------------------------
 */
static sd_status id_of(const json_t *v, int32_t *out, sd_err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX - 2)
        return sd_fail(err, SD_EFORMAT, "post_processor: expected a token id");
    *out = (int32_t)json_integer_value(v);
    return SD_OK;
}

static sd_status post_offsets(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)t, (void)o, (void)kind, (void)err; /* changes offsets only */
    return SD_OK;
}

static sd_status post_bert(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)kind;
    int32_t a, b;
    SD_TRY(id_of(json_array_get(json_object_get(o, "cls"), 1), &a, err));
    SD_TRY(id_of(json_array_get(json_object_get(o, "sep"), 1), &b, err));
    SD_TRY(sd_tok_wrap(t, &a, 1, true, err));
    return sd_tok_wrap(t, &b, 1, false, err);
}

typedef struct template {
    const json_t *special; /* name → {"ids": […]} */
    sd_ids before, after;
    int texts;
}
template;

static sd_status template_special(template *m, const json_t *s, sd_err *err) {
    const char *id;
    SD_TRY(sd_json_str(s, "id", &id, NULL, err));
    const json_t *ids = json_object_get(json_object_get(m->special, id), "ids");
    if (!json_is_array(ids))
        return sd_fail(err, SD_EFORMAT, "TemplateProcessing: special token %.60s has no ids", id);
    sd_ids *to = m->texts ? &m->after : &m->before;
    for (size_t k = 0; k < json_array_size(ids); k++) {
        int32_t v = 0;
        if (to->n == TOK_MAX_TEMPLATE) /* one name may stand for many ids, many times */
            return sd_fail(err, SD_EFORMAT, "TemplateProcessing: more than %d ids around a text",
                           TOK_MAX_TEMPLATE);
        SD_TRY(id_of(json_array_get(ids, k), &v, err));
        SD_TRY(sd_tok_ids_put(to, v, err));
    }
    return SD_OK;
}

static sd_status template_part(template *m, const json_t *e, sd_err *err) {
    const json_t *s;
    if ((s = json_object_get(e, "SpecialToken")))
        return template_special(m, s, err);
    if (!(s = json_object_get(e, "Sequence")))
        return sd_fail(err, SD_EFORMAT, "TemplateProcessing: unknown piece in \"single\"");
    const json_t *id = json_object_get(s, "id");
    if (!json_is_string(id) || strcmp(json_string_value(id), "A") != 0)
        return sd_fail(err, SD_EFORMAT,
                       "TemplateProcessing: \"single\" uses a sequence other than A");
    m->texts++;
    return SD_OK;
}

static sd_status post_template(sd_tokenizer *t, const json_t *o, int kind, sd_err *err) {
    (void)kind;
    const json_t *list = json_object_get(o, "single");
    if (!json_is_array(list))
        return sd_fail(err, SD_EFORMAT, "TemplateProcessing: expected an array \"single\"");
    template m = {.special = json_object_get(o, "special_tokens")};
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < json_array_size(list); i++)
        st = template_part(&m, json_array_get(list, i), err);
    if (st == SD_OK && m.texts != 1)
        st = sd_fail(err, SD_EFORMAT,
                     "TemplateProcessing: \"single\" uses the text %d times, expected once",
                     m.texts);
    if (st == SD_OK)
        st = sd_tok_wrap(t, m.before.v, m.before.n, true, err);
    if (st == SD_OK)
        st = sd_tok_wrap(t, m.after.v, m.after.n, false, err);
    sd_ids_free(&m.before);
    sd_ids_free(&m.after);
    return st;
}

static const step_row post_rows[] = {
    {"Sequence", NULL, 0},
    {"ByteLevel", post_offsets, 0},
    {"BertProcessing", post_bert, 0},
    {"RobertaProcessing", post_bert, 0},
    {"TemplateProcessing", post_template, 0},
};

/* ---- all four ----------------------------------------------------------------------------------
 */
#define PIECE(name_, list_, rows_) \
    { name_, list_, rows_, sizeof(rows_) / sizeof *(rows_) }

sd_status sd_tok_load_steps(sd_tokenizer *t, const json_t *j, sd_err *err) {
    static const piece pieces[] = {PIECE("normalizer", "normalizers", norm_rows),
                                   PIECE("pre_tokenizer", "pretokenizers", pre_rows),
                                   PIECE("post_processor", "processors", post_rows),
                                   PIECE("decoder", "decoders", dec_rows)};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const json_t *v = json_object_get(j, pieces[i].name);
        if (v && !json_is_null(v))
            SD_TRY(load(&pieces[i], t, v, 0, err));
    }
    t->no_decoder = !json_object_get(j, "decoder") || json_is_null(json_object_get(j, "decoder"));
    return SD_OK;
}
