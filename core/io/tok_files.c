/* tok_files.c: a tokenizer from the files that came before tokenizer.json: vocab.json with
 * merges.txt, and vocab.txt, with what the folder's configuration says. */
#include <string.h>

#include "io/tok_build.h"

/* ---- added tokens ---- */

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
    return n ? sd_tok_put_added(t, room, s, n, id, flags, err) : SD_OK;
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
        sd_tok_added_flags(v, &a, &st, err);
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

/* ---- vocab.json + merges.txt ---- */
static const struct class {
    const char *name; /* also with "Fast" behind it */
    bool roberta, qwen2;
} classes[] = {
    {"GPT2Tokenizer", false, false},   {"CodeGenTokenizer", false, false},
    {"RobertaTokenizer", true, false}, {"BartTokenizer", true, false},
    {"Qwen2Tokenizer", false, true},   {"PreTrainedTokenizer", false, false},
};

static const struct class *class_of(const json_t *config, sd_err *err) {
    sd_status st = SD_OK;
    const char *name = sd_tok_str_of(config, "tokenizer_class", "GPT2Tokenizer", &st, err);
    char plain[64];
    size_t n = strlen(name);
    if (st != SD_OK)
        return NULL;
    if (n > 4 && strcmp(name + n - 4, "Fast") == 0)
        n -= 4;
    if (n < sizeof plain) { /* a longer one is no name of ours */
        memcpy(plain, name, n);
        plain[n] = 0;
    }
    int k = TOK_ROW("tokenizer_class", n < sizeof plain ? plain : name, classes, err);
    if (k < 0)
        sd_err_context(err, "vocab.json and merges.txt (a tokenizer.json would say what it needs)");
    return k < 0 ? NULL : &classes[k];
}

static sd_status read_merges(sd_tokenizer *t, const char *merges, size_t n, sd_err *err) {
    size_t rank = 0, line = 0;
    for (size_t i = 0; i < n;) {
        const char *e = memchr(merges + i, '\n', n - i);
        size_t end = e ? (size_t)(e - merges) : n, stop = end;
        if (stop > i && merges[stop - 1] == '\r')
            stop--;
        line++;
        if (stop > i && !(line == 1 && stop - i >= 8 && memcmp(merges + i, "#version", 8) == 0)) {
            sd_status st = sd_tok_merge_line(t, merges + i, stop - i, rank++, err);
            if (st != SD_OK) {
                sd_err_context(err, "merges, line %zu", line);
                return st;
            }
        }
        i = end + 1;
    }
    return rank ? SD_OK : sd_fail(err, SD_EFORMAT, "merges: the list is empty");
}

sd_status sd_tok_load_bpe_files(sd_tokenizer *t, const json_t *vocab, const char *merges, size_t n,
                                const json_t *config, const json_t *added, sd_err *err) {
    sd_status st = SD_OK;
    const struct class *class = class_of(config, err);
    if (!class)
        return SD_EFORMAT;
    bool prefix = sd_tok_bool_of(config, "add_prefix_space", false, &st, err);
    SD_TRY(st);
    t->model = TOK_BPE;
    SD_TRY(sd_tok_load_vocab(t, vocab, json_object_size(added), err));
    SD_TRY(read_merges(t, merges, n, err));
    if (class->qwen2)
        SD_TRY(sd_tok_add_norm(t, TOK_NFC, NULL, err));
    if (prefix)
        SD_TRY(sd_tok_add_pre(t, TOK_PRE_PREFIX_SPACE, NULL, err));
    SD_TRY(sd_tok_add_split(t, class->qwen2 ? sd_tok_qwen2_regex : sd_tok_gpt2_regex, TOK_ISOLATED,
                            false, err));
    SD_TRY(sd_tok_add_map(t, err));
    SD_TRY(sd_tok_add_dec(t, TOK_DEC_BYTELEVEL, NULL, 0, NULL, err));
    /* GPT-2's end of text, where no configuration names it. */
    if (!config && !class->roberta && !class->qwen2)
        t->role[0] = t->role[1] = sd_tok_vocab_find(&t->vocab, "<|endoftext|>", 13);
    SD_TRY(file_added(t, config, added, err));
    if (class->roberta) {
        int32_t a = sd_tok_vocab_find(&t->vocab, "<s>", 3),
                b = sd_tok_vocab_find(&t->vocab, "</s>", 4);
        if (a < 0 || b < 0)
            return sd_fail(err, SD_EFORMAT, "tokenizer_class \"%s\": no <s> and </s>", class->name);
        SD_TRY(sd_tok_wrap(t, &a, 1, true, err));
        SD_TRY(sd_tok_wrap(t, &b, 1, false, err));
    }
    return sd_tok_finish(t, err);
}

/* ---- vocab.txt ---- */
/* One token a line; *upper: some hold capitals, outside [CLS] and its like. */
static sd_status read_vocab(sd_tokenizer *t, const char *text, size_t n, bool *upper, sd_err *err) {
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    lines += n > 0 && text[n - 1] != '\n';
    if (lines == 0)
        return sd_fail(err, SD_EFORMAT, "the vocabulary is empty");
    SD_TRY(sd_tok_vocab_init(&t->vocab, lines, err));
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
                *upper = *upper || (text[k] >= 'A' && text[k] <= 'Z');
        i = end + 1;
    }
    return SD_OK;
}

sd_status sd_tok_load_vocab_txt(sd_tokenizer *t, const char *text, size_t n, const json_t *config,
                                sd_err *err) {
    sd_status st = SD_OK;
    bool upper = false;
    SD_TRY(read_vocab(t, text, n, &upper, err));
    SD_TRY(sd_tok_bert_model(t, err));
    /* Without a configuration: a vocabulary that holds capitals is a cased one. */
    bool lower = sd_tok_bool_of(config, "do_lower_case", !upper, &st, err);
    bool accents = sd_tok_bool_of(config, "strip_accents", lower, &st, err);
    bool chinese = sd_tok_bool_of(config, "tokenize_chinese_chars", true, &st, err);
    SD_TRY(st);
    SD_TRY(file_added(t, config, NULL, err));
    t->unk = t->role[2];
    if (t->unk < 0)
        return sd_fail(err, SD_EFORMAT, "WordPiece: unk_token \"[UNK]\" is not in the vocabulary");
    SD_TRY(sd_tok_bert_pipeline(t, lower, accents, chinese, err));
    return sd_tok_finish(t, err);
}
