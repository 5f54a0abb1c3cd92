/* tok_gguf.c: a tokenizer from GGUF metadata (tokenizer.ggml.*). */
#include <stdlib.h>
#include <string.h>

#include "io/container.h"
#include "io/tok_build.h"

#define LETTERS_LOW "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define LETTERS_UP "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The splits that a name in tokenizer.ggml.pre stands for, applied one after the other. */
static const struct {
    const char *names;    /* space-separated */
    const char *regex[4]; /* NULL-terminated; "" = GPT-2's */
    bool ignore_merges, bos;
} pre_names[] = {
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
    {" qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo ", {sd_tok_qwen2_regex}, false, false},
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
        for (size_t i = 0; i < sizeof pre_names / sizeof *pre_names; i++) {
            if (!strstr(pre_names[i].names, key))
                continue;
            t->ignore_merges = pre_names[i].ignore_merges;
            *bos = pre_names[i].bos;
            for (int k = 0; k < 4 && pre_names[i].regex[k]; k++) {
                const char *re = pre_names[i].regex[k];
                SD_TRY(sd_tok_add_split(t, *re ? re : sd_tok_gpt2_regex, TOK_ISOLATED, false, err));
            }
            return sd_tok_add_map(t, err);
        }
    }
    sd_buf b = {0};
    for (size_t i = 0; i < sizeof pre_names / sizeof *pre_names; i++)
        sd_buf_puts(&b, pre_names[i].names + (i > 0));
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
            if (b.n > 3 && memcmp(b.p, sd_tok_meta_space, 3) == 0) {
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
        if (e->n > TOK_MAX_ADDED)
            return sd_fail(err, SD_EFORMAT, "token %zu of %u bytes: more than %d", i,
                           (unsigned)e->n, TOK_MAX_ADDED);
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

/* ---- the three models ---- */
typedef struct source {
    const json_t *meta, *tokens, *types;
    bool bos, eos; /* put around a text unless the file says otherwise */
} source;

static sd_status load_gpt2(sd_tokenizer *t, source *g, sd_err *err) {
    sd_status st = SD_OK;
    const char *pre = sd_tok_str_of(g->meta, "tokenizer.ggml.pre", NULL, &st, err);
    bool space = sd_tok_bool_of(g->meta, "tokenizer.ggml.add_space_prefix", false, &st, err);
    SD_TRY(st);
    if (!pre)
        return sd_fail(err, SD_EFORMAT,
                       "tokenizer.ggml.pre is missing: how text is split is not known");
    if (space)
        SD_TRY(sd_tok_add_pre(t, TOK_PRE_PREFIX_SPACE, NULL, err));
    SD_TRY(gguf_pre(t, pre, &g->bos, err));
    SD_TRY(sd_tok_load_merges(t, json_object_get(g->meta, "tokenizer.ggml.merges"), err));
    return sd_tok_add_dec(t, TOK_DEC_BYTELEVEL, NULL, 0, NULL, err);
}

static sd_status load_llama(sd_tokenizer *t, source *g, sd_err *err) {
    sd_status st = SD_OK;
    tok_norm *m;
    tok_dec *d;
    bool space = sd_tok_bool_of(g->meta, "tokenizer.ggml.add_space_prefix", true, &st, err);
    if (sd_tok_bool_of(g->meta, "tokenizer.ggml.remove_extra_whitespaces", false, &st, err))
        return sd_fail(err, SD_EFORMAT, "tokenizer.ggml.remove_extra_whitespaces is not supported");
    SD_TRY(st);
    g->bos = true;
    if (space) {
        SD_TRY(sd_tok_add_norm(t, TOK_PREPEND, &m, err));
        SD_TRY(sd_tok_keep(&m->content, &m->n, sd_tok_meta_space, 3, err));
    }
    SD_TRY(sd_tok_add_norm(t, TOK_REPLACE, &m, err));
    SD_TRY(sd_tok_literal(" ", 1, &m->pat, err));
    SD_TRY(sd_tok_keep(&m->content, &m->n, sd_tok_meta_space, 3, err));
    t->byte_fallback = t->fuse_unk = true;
    t->unk = t->role[2];
    SD_TRY(merges_of_scores(t, json_object_get(g->meta, "tokenizer.ggml.scores"), g->types, err));
    SD_TRY(sd_tok_add_dec(t, TOK_DEC_REPLACE, " ", 1, &d, err));
    SD_TRY(sd_tok_literal(sd_tok_meta_space, 3, &d->pat, err));
    SD_TRY(sd_tok_add_dec(t, TOK_DEC_BYTEFALLBACK, NULL, 0, NULL, err));
    SD_TRY(sd_tok_add_dec(t, TOK_DEC_FUSE, NULL, 0, NULL, err));
    if (space) {
        SD_TRY(sd_tok_add_dec(t, TOK_DEC_STRIP, " ", 1, &d, err));
        d->start = 1;
    }
    return SD_OK;
}

static sd_status load_bert(sd_tokenizer *t, source *g, sd_err *err) {
    (void)g;
    SD_TRY(sd_tok_bert_model(t, err));
    t->unk = t->role[2];
    if (t->unk < 0)
        return sd_fail(err, SD_EFORMAT, "WordPiece: no unknown token");
    return sd_tok_bert_pipeline(t, true, true, true, err); /* with [CLS] and [SEP] */
}

static const struct {
    const char *name;
    sd_status (*load)(sd_tokenizer *t, source *g, sd_err *err);
    tok_model model;
} models[] = {{"gpt2", load_gpt2, TOK_BPE},
              {"llama", load_llama, TOK_BPE},
              {"bert", load_bert, TOK_WORDPIECE}};

static sd_status gguf_roles(sd_tokenizer *t, const json_t *meta, sd_err *err) {
    static const struct {
        const char *key;
        int role;
    } row[] = {{"tokenizer.ggml.bos_token_id", 0},       {"tokenizer.ggml.eos_token_id", 1},
               {"tokenizer.ggml.unknown_token_id", 2},   {"tokenizer.ggml.cls_token_id", 3},
               {"tokenizer.ggml.seperator_token_id", 4}, /* as the format spells it */
               {"tokenizer.ggml.separator_token_id", 4}, {"tokenizer.ggml.mask_token_id", 5},
               {"tokenizer.ggml.padding_token_id", 6}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        SD_TRY(gguf_id(meta, row[i].key, t->vocab.size, &t->role[row[i].role], err));
    return SD_OK;
}

sd_status sd_tok_load_gguf(sd_tokenizer *t, const json_t *meta, sd_err *err) {
    const char *model;
    source g = {.meta = meta,
                .tokens = json_object_get(meta, "tokenizer.ggml.tokens"),
                .types = json_object_get(meta, "tokenizer.ggml.token_type")};
    SD_TRY(sd_json_str(meta, "tokenizer.ggml.model", &model, NULL, err));
    if (!json_is_array(g.tokens) || json_array_size(g.tokens) == 0)
        return sd_fail(err, SD_EFORMAT,
                       "tokenizer.ggml.tokens: expected an array that is not empty");
    if (g.types && json_array_size(g.types) != json_array_size(g.tokens))
        return sd_fail(err, SD_EFORMAT, "tokenizer.ggml.token_type has %zu entries, tokens %zu",
                       json_array_size(g.types), json_array_size(g.tokens));
    int k = TOK_ROW("tokenizer model", model, models, err);
    if (k < 0) {
        sd_err_context(err, "tokenizer.ggml.model");
        return SD_EFORMAT;
    }
    t->model = models[k].model;
    SD_TRY(gguf_vocab(t, g.tokens, g.types, t->model == TOK_WORDPIECE, err));
    SD_TRY(gguf_roles(t, meta, err));
    SD_TRY(gguf_added(t, g.types, err));
    SD_TRY(models[k].load(t, &g, err));
    if (t->model == TOK_BPE) {
        sd_status st = SD_OK;
        bool bos = sd_tok_bool_of(meta, "tokenizer.ggml.add_bos_token", g.bos, &st, err);
        bool eos = sd_tok_bool_of(meta, "tokenizer.ggml.add_eos_token", g.eos, &st, err);
        SD_TRY(st);
        if (bos && t->role[0] >= 0)
            SD_TRY(sd_tok_wrap(t, &t->role[0], 1, true, err));
        if (eos && t->role[1] >= 0)
            SD_TRY(sd_tok_wrap(t, &t->role[1], 1, false, err));
    }
    return sd_tok_finish(t, err);
}
