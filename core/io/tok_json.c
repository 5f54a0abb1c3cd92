/* tok_json.c: a tokenizer from tokenizer.json: model, added tokens, special roles (the steps are in
 * tok_steps.c). */
#include <stdlib.h>
#include <string.h>

#include "io/tok_build.h"

/* ---- models ---- */

/* An option that BPE does not know and that is set would change ids. */
static sd_status bpe_options(const json_t *m, sd_err *err) {
    static const struct {
        const char *name;
    } known[] = {{"type"},
                 {"dropout"},
                 {"unk_token"},
                 {"continuing_subword_prefix"},
                 {"end_of_word_suffix"},
                 {"fuse_unk"},
                 {"byte_fallback"},
                 {"ignore_merges"},
                 {"vocab"},
                 {"merges"}};
    void *it;
    for (it = json_object_iter((json_t *)m); it; it = json_object_iter_next((json_t *)m, it)) {
        const json_t *v = json_object_iter_value(it);
        if (!json_is_null(v) && !json_is_false(v) &&
            TOK_ROW("option", json_object_iter_key(it), known, err) < 0) {
            sd_err_context(err, "BPE");
            return SD_EFORMAT;
        }
    }
    return SD_OK;
}

/* What is put before or after characters while merging. */
static sd_status affix(const json_t *m, const char *key, const char *otherwise, char **out,
                       size_t *n, sd_err *err) {
    sd_status st = SD_OK;
    const char *s = sd_tok_str_of(m, key, otherwise, &st, err);
    SD_TRY(st);
    if (strlen(s) > TOK_MAX_AFFIX)
        return sd_fail(err, SD_EFORMAT, "%s of %zu bytes: more than %d", key, strlen(s),
                       TOK_MAX_AFFIX);
    return *s || *otherwise ? sd_tok_keep(out, n, s, strlen(s), err) : SD_OK;
}

static sd_status load_bpe(sd_tokenizer *t, const json_t *m, size_t extra, sd_err *err) {
    sd_status st = SD_OK;
    double dropout = 0;
    bool found;
    SD_TRY(bpe_options(m, err));
    SD_TRY(sd_json_f64(m, "dropout", &dropout, &found, err));
    if (found && dropout != 0)
        return sd_fail(err, SD_EFORMAT, "BPE: dropout %g is not supported", dropout);
    t->model = TOK_BPE;
    const char *unk = sd_tok_str_of(m, "unk_token", NULL, &st, err);
    t->fuse_unk = sd_tok_bool_of(m, "fuse_unk", false, &st, err);
    t->byte_fallback = sd_tok_bool_of(m, "byte_fallback", false, &st, err);
    t->ignore_merges = sd_tok_bool_of(m, "ignore_merges", false, &st, err);
    SD_TRY(st);
    SD_TRY(affix(m, "continuing_subword_prefix", "", &t->prefix, &t->nprefix, err));
    SD_TRY(affix(m, "end_of_word_suffix", "", &t->suffix, &t->nsuffix, err));
    SD_TRY(sd_tok_load_vocab(t, json_object_get(m, "vocab"), extra, err));
    if (unk && (t->unk = sd_tok_vocab_find(&t->vocab, unk, strlen(unk))) < 0)
        return sd_fail(err, SD_EFORMAT, "BPE: unk_token \"%s\" is not in the vocabulary", unk);
    return sd_tok_load_merges(t, json_object_get(m, "merges"), err);
}

static sd_status load_wordpiece(sd_tokenizer *t, const json_t *m, size_t extra, sd_err *err) {
    sd_status st = SD_OK;
    int64_t max = 100;
    bool found;
    t->model = TOK_WORDPIECE;
    const char *unk = sd_tok_str_of(m, "unk_token", "[UNK]", &st, err);
    SD_TRY(st);
    SD_TRY(sd_json_i64(m, "max_input_chars_per_word", 1, INT32_MAX, &max, &found, err));
    t->max_chars = (size_t)max;
    SD_TRY(affix(m, "continuing_subword_prefix", "##", &t->prefix, &t->nprefix, err));
    SD_TRY(sd_tok_load_vocab(t, json_object_get(m, "vocab"), extra, err));
    if ((t->unk = sd_tok_vocab_find(&t->vocab, unk, strlen(unk))) < 0)
        return sd_fail(err, SD_EFORMAT, "WordPiece: unk_token \"%s\" is not in the vocabulary",
                       unk);
    return SD_OK;
}

static const struct {
    const char *name;
    sd_status (*load)(sd_tokenizer *t, const json_t *m, size_t extra, sd_err *err);
} models[] = {{"BPE", load_bpe}, {"WordPiece", load_wordpiece}};

/* ---- added tokens ---- */

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
        sd_tok_added_flags(e, &a, &st, err);
        if (st == SD_OK && json_string_length(c) > 0)
            st = sd_tok_put_added(t, n, json_string_value(c), json_string_length(c), seen[i], a,
                                  err);
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

/* ---- tokenizer.json ---- */
sd_status sd_tok_load_json(sd_tokenizer *t, const json_t *j, sd_err *err) {
    if (!json_is_object(j))
        return sd_fail(err, SD_EFORMAT, "tokenizer: expected an object");
    const json_t *m = json_object_get(j, "model"), *added = json_object_get(j, "added_tokens");
    if (!json_is_object(m))
        return sd_fail(err, SD_EFORMAT, "model: expected an object");
    sd_status st = SD_OK;
    const char *type = sd_tok_str_of(m, "type", NULL, &st, err);
    SD_TRY(st);
    if (!type) /* older files leave it out */
        type = json_object_get(m, "merges")                     ? "BPE"
               : json_object_get(m, "max_input_chars_per_word") ? "WordPiece"
                                                                : "(not given)";
    int k = TOK_ROW("tokenizer model", type, models, err);
    if (k < 0)
        return SD_EFORMAT;
    SD_TRY(models[k].load(t, m, json_array_size(added), err));
    SD_TRY(sd_tok_load_steps(t, j, err));
    SD_TRY(load_added(t, added, err));
    return sd_tok_finish(t, err);
}

/* ---- roles ---- */

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
