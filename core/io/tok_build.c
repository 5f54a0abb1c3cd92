/* tok_build.c: the steps, merges and added tokens that every loader of a tokenizer makes. */
#include <string.h>

#include "io/container.h"
#include "io/tok_build.h"

const char sd_tok_meta_space[] = "\xe2\x96\x81";

const char sd_tok_qwen2_regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- rows by name ---- */
static const char *name_of(const void *rows, size_t i, size_t size) {
    const char *name;
    memcpy(&name, (const char *)rows + i * size, sizeof name);
    return name;
}

int sd_tok_row(const char *what, const char *name, const void *rows, size_t n, size_t size,
               sd_err *err) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name_of(rows, i, size), name) == 0)
            return (int)i;
    sd_buf known = {0};
    for (size_t i = 0; i < n; i++)
        sd_buf_printf(&known, " %s", name_of(rows, i, size));
    sd_fail(err, SD_EFORMAT, "unknown %s \"%.60s\" (known:%s)", what, name, known.p ? known.p : "");
    sd_buf_free(&known);
    return -1;
}

/* ---- fields ---- */

const char *sd_tok_str_of(const json_t *o, const char *key, const char *otherwise, sd_status *st,
                          sd_err *err) {
    const char *s = otherwise;
    bool found = false;
    if (*st == SD_OK)
        *st = sd_json_str(o, key, &s, &found, err);
    return found && *st == SD_OK ? s : otherwise;
}

bool sd_tok_bool_of(const json_t *o, const char *key, bool otherwise, sd_status *st, sd_err *err) {
    bool v = otherwise, found = false;
    if (*st == SD_OK)
        *st = sd_json_bool(o, key, &v, &found, err);
    return found && *st == SD_OK ? v : otherwise;
}

sd_status sd_tok_keep(char **dst, size_t *n, const char *s, size_t len, sd_err *err) {
    char *c = sd_strndup(s, len, err);
    if (!c)
        return SD_ENOMEM;
    sd_free(*dst);
    *dst = c;
    *n = len;
    return SD_OK;
}

void sd_tok_added_flags(const json_t *o, tok_added *a, sd_status *st, sd_err *err) {
    a->single_word = sd_tok_bool_of(o, "single_word", false, st, err);
    a->lstrip = sd_tok_bool_of(o, "lstrip", false, st, err);
    a->rstrip = sd_tok_bool_of(o, "rstrip", false, st, err);
    a->special = sd_tok_bool_of(o, "special", false, st, err);
    a->normalized = sd_tok_bool_of(o, "normalized", !a->special, st, err);
}

/* ---- steps ---- */
/* Room for one more of `size` bytes in *v. */
static sd_status room(void **v, size_t n, size_t size, const char *what, sd_err *err) {
    if (!*v && !(*v = sd_alloc(TOK_MAX_STEPS, size, err)))
        return SD_ENOMEM;
    if (n == TOK_MAX_STEPS)
        return sd_fail(err, SD_EFORMAT, "%s: more than %d steps", what, TOK_MAX_STEPS);
    return SD_OK;
}

sd_status sd_tok_add_norm(sd_tokenizer *t, tok_norm_kind kind, tok_norm **out, sd_err *err) {
    SD_TRY(room((void **)&t->norm, t->n_norm, sizeof *t->norm, "normalizer", err));
    tok_norm *m = &t->norm[t->n_norm++];
    m->kind = kind;
    if (out)
        *out = m;
    return SD_OK;
}

sd_status sd_tok_add_pre(sd_tokenizer *t, tok_pre_kind kind, tok_pre **out, sd_err *err) {
    SD_TRY(room((void **)&t->pre, t->n_pre, sizeof *t->pre, "pre_tokenizer", err));
    tok_pre *p = &t->pre[t->n_pre++];
    p->kind = kind;
    if (out)
        *out = p;
    return SD_OK;
}

sd_status sd_tok_add_split(sd_tokenizer *t, const char *regex, tok_behavior b, bool invert,
                           sd_err *err) {
    tok_pre *p;
    SD_TRY(sd_tok_add_pre(t, TOK_PRE_SPLIT, &p, err));
    p->behavior = b;
    p->invert = invert;
    return sd_tok_regex(regex, strlen(regex), &p->pat, err);
}

sd_status sd_tok_add_class(sd_tokenizer *t, tok_pat_kind kind, tok_behavior b, sd_err *err) {
    tok_pre *p;
    SD_TRY(sd_tok_add_pre(t, TOK_PRE_SPLIT, &p, err));
    p->pat.kind = kind;
    p->behavior = b;
    return SD_OK;
}

sd_status sd_tok_add_map(sd_tokenizer *t, sd_err *err) {
    t->byte_level = true;
    return sd_tok_add_pre(t, TOK_PRE_MAP, NULL, err);
}

sd_status sd_tok_add_dec(sd_tokenizer *t, tok_dec_kind kind, const char *s, size_t n, tok_dec **out,
                         sd_err *err) {
    SD_TRY(room((void **)&t->dec, t->n_dec, sizeof *t->dec, "decoder", err));
    tok_dec *d = &t->dec[t->n_dec++];
    d->kind = kind;
    if (out)
        *out = d;
    return s ? sd_tok_keep(&d->s, &d->n, s, n, err) : SD_OK;
}

sd_status sd_tok_wrap(sd_tokenizer *t, const int32_t *ids, size_t n, bool front, sd_err *err) {
    int32_t **v = front ? &t->head : &t->tail;
    size_t *have = front ? &t->n_head : &t->n_tail;
    if (n == 0)
        return SD_OK;
    if (n > TOK_MAX_TEMPLATE || *have + n > TOK_MAX_TEMPLATE)
        return sd_fail(err, SD_EFORMAT, "post_processor: %zu ids around a text: more than %d",
                       *have + n, TOK_MAX_TEMPLATE);
    int32_t *p = sd_alloc(*have + n, sizeof *p, err);
    if (!p)
        return SD_ENOMEM;
    if (*have)
        memcpy(p + (front ? n : 0), *v, *have * sizeof *p);
    memcpy(p + (front ? 0 : *have), ids, n * sizeof *p);
    sd_free(*v);
    *v = p;
    *have += n;
    return SD_OK;
}

/* ---- vocabulary ---- */

sd_status sd_tok_load_vocab(sd_tokenizer *t, const json_t *vocab, size_t extra, sd_err *err) {
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

sd_status sd_tok_merge_line(sd_tokenizer *t, const char *s, size_t n, size_t i, sd_err *err) {
    const char *sp = memchr(s, ' ', n);
    if (!sp || sp == s || sp + 1 == s + n || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - s)))
        return bad_merge(i, err);
    return add_merge(t, s, (size_t)(sp - s), sp + 1, n - (size_t)(sp + 1 - s), (uint32_t)i, err);
}

sd_status sd_tok_load_merges(sd_tokenizer *t, const json_t *m, sd_err *err) {
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
            st = sd_tok_merge_line(t, b.p ? b.p : "", b.n, i, err);
    }
    sd_buf_free(&b);
    return st;
}

sd_status sd_tok_put_added(sd_tokenizer *t, size_t room, const char *s, size_t n, int64_t id,
                           tok_added flags, sd_err *err) {
    if (n > TOK_MAX_ADDED)
        return sd_fail(err, SD_EFORMAT, "added token of %zu bytes: more than %d", n, TOK_MAX_ADDED);
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

/* ---- BERT ---- */
sd_status sd_tok_bert_model(sd_tokenizer *t, sd_err *err) {
    static const char *const spelling[TOK_ROLES] = {NULL,    NULL,     "[UNK]", "[CLS]",
                                                    "[SEP]", "[MASK]", "[PAD]"};
    t->model = TOK_WORDPIECE;
    t->max_chars = 100;
    for (int i = 0; i < TOK_ROLES; i++)
        if (spelling[i] && t->role[i] < 0)
            t->role[i] = sd_tok_vocab_find(&t->vocab, spelling[i], strlen(spelling[i]));
    return sd_tok_keep(&t->prefix, &t->nprefix, "##", 2, err);
}

sd_status sd_tok_bert_pipeline(sd_tokenizer *t, bool lower, bool accents, bool chinese,
                               sd_err *err) {
    tok_norm *m;
    tok_dec *d;
    SD_TRY(sd_tok_add_norm(t, TOK_BERT, &m, err));
    m->clean = true;
    m->chinese = chinese;
    m->lower = lower;
    m->accents = accents;
    SD_TRY(sd_tok_add_class(t, TOK_PAT_SPACE, TOK_REMOVED, err));
    SD_TRY(sd_tok_add_class(t, TOK_PAT_PUNCT, TOK_ISOLATED, err));
    SD_TRY(sd_tok_add_dec(t, TOK_DEC_WORDPIECE, "##", 2, &d, err));
    d->cleanup = true;
    int32_t cls = t->role[3], sep = t->role[4];
    if (cls >= 0)
        SD_TRY(sd_tok_wrap(t, &cls, 1, true, err));
    return sep >= 0 ? sd_tok_wrap(t, &sep, 1, false, err) : SD_OK;
}
