/* test_tokenizer.c: every tokenizer kind against ids made by another implementation
 * (tests/ref/tokenizers.json), any bytes, long texts, refusals, training. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/tokenizer.h"

static json_t *ref;

static int setup(void **state) {
    (void)state;
    json_error_t e;
    ref = json_load_file("tests/ref/tokenizers.json", JSON_ALLOW_NUL, &e);
    return ref ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    json_decref(ref);
    return 0;
}

static json_t *base(const char *name) {
    json_t *b = json_object_get(json_object_get(ref, "bases"), name);
    assert_non_null(b);
    return json_deep_copy(b);
}

static sd_tokenizer *from(json_t *j) { /* takes j */
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    if (sd_tokenizer_from_json(j, "toy", &t, &err) != SD_OK)
        fail_msg("%s", err.text);
    json_decref(j);
    return t;
}

static sd_tokenizer *open_ok(const char *path) {
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    if (sd_tokenizer_open(path, NULL, &t, &err) != SD_OK)
        fail_msg("%s", err.text);
    return t;
}

static sd_ids encode(const sd_tokenizer *t, const char *s, size_t n, unsigned flags, size_t *lost,
                     int *first) {
    sd_ids ids = {0};
    sd_err err = {0};
    if (sd_tokenizer_encode(t, s, n, flags, &ids, lost, first, &err) != SD_OK)
        fail_msg("%s", err.text);
    return ids;
}

static void expect_ids(const sd_tokenizer *t, const char *s, size_t n, unsigned flags,
                       const int32_t *want, size_t k) {
    sd_ids ids = encode(t, s, n, flags, NULL, NULL);
    assert_int_equal(ids.n, k);
    for (size_t i = 0; i < k; i++)
        assert_int_equal(ids.v[i], want[i]);
    sd_ids_free(&ids);
}

static void expect_round_trip(const sd_tokenizer *t, const char *s, size_t n) {
    size_t lost = 9;
    sd_ids ids = encode(t, s, n, 0, &lost, NULL);
    sd_buf out = {0};
    assert_int_equal(lost, 0);
    assert_int_equal(sd_tokenizer_decode(t, ids.v, ids.n, 0, false, &out, NULL), SD_OK);
    assert_int_equal(out.n, n);
    if (n)
        assert_memory_equal(out.p, s, n);
    sd_buf_free(&out);
    sd_ids_free(&ids);
}

static void expect_refusal(json_t *j, const char *part) { /* takes j */
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    sd_status st = sd_tokenizer_from_json(j, "toy", &t, &err);
    json_decref(j);
    if (st == SD_OK) {
        sd_tokenizer_unref(t);
        fail_msg("accepted; expected an error with \"%s\"", part);
    }
    assert_int_equal(st, SD_EFORMAT);
    if (!strstr(err.text, part))
        fail_msg("expected \"%s\" in: %s", part, err.text);
    assert_non_null(strstr(err.text, "toy"));
}

/* ---- against the reference ---------------------------------------------------------------------
 */
static void test_reference(void **state) {
    (void)state;
    const json_t *texts = json_object_get(ref, "texts");
    size_t i, k;
    json_t *c;
    int checked = 0;
    json_array_foreach(json_object_get(ref, "cases"), i, c) {
        json_t *j = base(json_string_value(json_object_get(c, "base")));
        json_t *set = json_object_get(c, "set");
        json_t *model = json_object_get(set, "model");
        if (model) {
            json_object_update(json_object_get(j, "model"), model);
            json_object_del(set, "model");
        }
        json_object_update(j, set);
        sd_tokenizer *t = from(j);
        unsigned flags = json_is_true(json_object_get(c, "special")) ? SD_TOK_ADD_SPECIAL : 0;
        for (k = 0; k < json_array_size(texts); k++) {
            const json_t *text = json_array_get(texts, k);
            const json_t *want = json_array_get(json_object_get(c, "ids"), k);
            sd_ids ids =
                encode(t, json_string_value(text), json_string_length(text), flags, NULL, NULL);
            bool same = ids.n == json_array_size(want);
            for (size_t m = 0; same && m < ids.n; m++)
                same = ids.v[m] == json_integer_value(json_array_get(want, m));
            if (!same)
                fail_msg("case %s, text %zu \"%s\": other ids",
                         json_string_value(json_object_get(c, "name")), k, json_string_value(text));
            sd_ids_free(&ids);
            checked++;
        }
        sd_tokenizer_unref(t);
    }
    assert_true(checked > 1500);
}

/* T05: both spellings of merges; what is not a merge is refused. */
static void test_merges(void **state) {
    (void)state;
    sd_tokenizer *pairs = from(base("bytes"));
    json_t *j = base("bytes"), *m, *list = json_array(), *bad;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(j, "model"), "merges"), i, m) {
        char line[256];
        snprintf(line, sizeof line, "%s %s", json_string_value(json_array_get(m, 0)),
                 json_string_value(json_array_get(m, 1)));
        json_array_append_new(list, json_string(line));
    }
    json_object_set(json_object_get(j, "model"), "merges", list);
    sd_tokenizer *strings = from(json_deep_copy(j));
    const char *text = "The capital of France is attention";
    sd_ids a = encode(pairs, text, strlen(text), 0, NULL, NULL);
    assert_true(a.n < 24);
    expect_ids(strings, text, strlen(text), 0, a.v, a.n);
    sd_ids_free(&a);
    sd_tokenizer_unref(pairs);
    sd_tokenizer_unref(strings);
    const char *wrong[] = {"", "a", " a", "a ", "a b c", "a  b", "#version: 0.2"};
    for (i = 0; i < 7; i++) {
        bad = json_deep_copy(j);
        json_array_set_new(json_object_get(json_object_get(bad, "model"), "merges"), 5,
                           json_string(wrong[i]));
        expect_refusal(bad, wrong[i][0] == '#' ? "merge 5" : "merges[5]");
    }
    json_t *odd[] = {json_pack("[ss]", "a", ""), json_pack("[sss]", "a", "b", "c"), json_integer(3),
                     json_pack("[s]", "a"), json_null()};
    for (i = 0; i < 5; i++) {
        bad = json_deep_copy(j);
        json_array_set_new(json_object_get(json_object_get(bad, "model"), "merges"), 7, odd[i]);
        expect_refusal(bad, "merges[7]");
    }
    bad = json_deep_copy(j);
    json_object_set_new(json_object_get(bad, "model"), "merges", json_array());
    expect_refusal(bad, "merges: expected an array that is not empty");
    bad = json_deep_copy(j);
    json_object_del(json_object_get(bad, "model"), "merges");
    expect_refusal(bad, "merges");
    bad = json_deep_copy(j);
    json_array_set_new(json_object_get(json_object_get(bad, "model"), "merges"), 7,
                       json_string("Z Z"));
    expect_refusal(bad, "is not in the vocabulary");
    json_decref(list);
    json_decref(j);
}

/* T01, T07: any bytes survive; halves of characters decode to their bytes. */
static void test_any_bytes(void **state) {
    (void)state;
    sd_tokenizer *toy = from(base("bytes"));
    sd_tokenizer *bundled = open_ok("data/interim-sd");
    static const char *const text[] = {"\xff",
                                       "\xc3\x28",
                                       "\xe2\x82",
                                       "\xf4\x90\x80\x80",
                                       "\xad",
                                       "季節 í \xc2\xad a\xc2\xad z",
                                       "a\xff\xfe b  \xed\xa0\x80"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        expect_round_trip(toy, text[i], strlen(text[i]));
        expect_round_trip(bundled, text[i], strlen(text[i]));
    }
    expect_round_trip(toy, "x\0y", 3);
    expect_round_trip(toy, "", 0);
    sd_rng r;
    sd_rng_seed(&r, 11);
    char noise[4096];
    for (int k = 0; k < 20; k++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (char)sd_rng_below(&r, k & 1 ? 256 : 300);
        expect_round_trip(toy, noise, sizeof noise);
        expect_round_trip(bundled, noise, sizeof noise);
    }
    const char *emoji = "\xf0\x9f\x98\x80\xf0\x9f\x98\x80";
    sd_ids ids = encode(toy, emoji, 8, 0, NULL, NULL);
    sd_buf all = {0};
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(sd_tokenizer_decode(toy, &ids.v[i], 1, 0, false, &all, NULL), SD_OK);
    assert_int_equal(all.n, 8);
    assert_memory_equal(all.p, emoji, 8);
    sd_buf_free(&all);
    sd_ids_free(&ids);
    /* byte 0xAD is the last of the 68 remapped ones */
    int32_t ad = sd_tokenizer_find(toy, "\xc5\x83");
    assert_true(ad >= 0);
    expect_ids(toy, "\xad", 1, 0, &ad, 1);
    sd_tokenizer_unref(toy);
    sd_tokenizer_unref(bundled);
}

/* A vocabulary without some bytes says how many were lost, and which came first. */
static void test_lost_bytes(void **state) {
    (void)state;
    json_t *j = base("bytes");
    json_t *vocab = json_object_get(json_object_get(j, "model"), "vocab");
    json_object_del(vocab, "\xc4\x80"); /* byte 0x00 */
    json_object_del(vocab, "\xc5\x83"); /* byte 0xAD */
    sd_tokenizer *t = from(j);
    for (int again = 0; again < 3; again++) { /* also from the cache */
        size_t lost = 0;
        int first = -1;
        sd_ids ids = encode(t,
                            "ab\xad\0\xad"
                            "cd",
                            7, 0, &lost, &first);
        assert_int_equal(lost, 3);
        assert_int_equal(first, 0xad);
        sd_ids_free(&ids);
        ids = encode(t, "abcd", 4, 0, &lost, &first);
        assert_int_equal(lost, 0);
        assert_int_equal(first, -1);
        sd_ids_free(&ids);
    }
    sd_tokenizer_unref(t);
    t = from(base("words")); /* unknown words count as lost too */
    size_t lost = 0;
    int first = -1;
    sd_ids ids = encode(t, "the \xef\xa4\x80 the", 11, 0, &lost, &first);
    assert_true(lost > 0);
    sd_ids_free(&ids);
    ids = encode(t, "the \xff the", 9, 0, &lost, &first);
    assert_int_equal(lost, 1);
    assert_int_equal(first, 0xff);
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
}

/* ---- the slow method, straight from the definition ----------------------------------------------
 */
typedef struct slow_merge {
    int32_t a, b, id;
} slow_merge;

static slow_merge *slow_merges(const sd_tokenizer *t, const json_t *j, size_t *n) {
    json_t *list = json_object_get(json_object_get(j, "model"), "merges"), *m;
    size_t i;
    slow_merge *v = calloc(json_array_size(list), sizeof *v);
    json_array_foreach(list, i, m) {
        const char *a = json_string_value(json_array_get(m, 0));
        const char *b = json_string_value(json_array_get(m, 1));
        char s[512];
        snprintf(s, sizeof s, "%s%s", a, b);
        v[i] =
            (slow_merge){sd_tokenizer_find(t, a), sd_tokenizer_find(t, b), sd_tokenizer_find(t, s)};
    }
    *n = json_array_size(list);
    return v;
}

static size_t slow_encode(const slow_merge *m, size_t nm, int32_t *id, size_t n) {
    for (size_t k = 0; k < nm; k++) { /* all of one rank before the next: lowest rank first */
        size_t out = 0;
        for (size_t i = 0; i < n;) {
            if (i + 1 < n && id[i] == m[k].a && id[i + 1] == m[k].b) {
                id[out++] = m[k].id;
                i += 2;
            } else {
                id[out++] = id[i++];
            }
        }
        n = out;
    }
    return n;
}

/* T09: long words are not quadratic, and their ids are those of the slow method. */
static void test_long_words(void **state) {
    (void)state;
    json_t *j = base("bytes");
    size_t nm;
    sd_tokenizer *t = from(json_deep_copy(j));
    slow_merge *m = slow_merges(t, j, &nm);
    enum { N = 1 << 20, SAMPLE = 2048 };
    char *s = malloc(N);
    sd_rng r;
    sd_rng_seed(&r, 3);
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < N; i++)
            s[i] = kind == 0   ? 'a'
                   : kind == 1 ? ' '
                   : kind == 2 ? (char)('a' + sd_rng_below(&r, 26))
                               : "etaoinshr"[sd_rng_below(&r, 9)];
        for (size_t n = 1; n <= SAMPLE; n = n * 3 + 5) {
            int32_t id[SAMPLE];
            for (size_t i = 0; i < n; i++) {
                char u[3] = {s[i], 0, 0};
                id[i] = sd_tokenizer_find(t, s[i] == ' ' ? "\xc4\xa0" : u);
            }
            size_t k = slow_encode(m, nm, id, n);
            expect_ids(t, s, n, 0, id, k);
        }
        double began = sd_now();
        sd_ids ids = encode(t, s, N, 0, NULL, NULL);
        double took = sd_now() - began;
        if (took > (getenv("SD_SANITIZED") ? 20 : 2))
            fail_msg("kind %d: %.1f s for 1 MB", kind, took);
        assert_true(ids.n > 0);
        sd_ids_free(&ids);
    }
    free(s);
    free(m);
    json_decref(j);
    sd_tokenizer_unref(t);
    t = from(base("pieces"));
    char *line = malloc(N);
    memset(line, 'a', N);
    double began = sd_now();
    sd_ids ids = encode(t, line, N, 0, NULL, NULL);
    assert_true(sd_now() - began < (getenv("SD_SANITIZED") ? 20 : 2));
    sd_ids_free(&ids);
    free(line);
    sd_tokenizer_unref(t);
}

/* ---- special tokens
 * ------------------------------------------------------------------------------ */
static void test_special(void **state) {
    (void)state;
    sd_tokenizer *t = from(base("bytes"));
    int32_t end = sd_tokenizer_find(t, "<|end|>");
    expect_ids(t, "<|end|>", 7, 0, &end, 1);
    sd_ids ids = encode(t, "<|end|>", 7, SD_TOK_SPECIAL_AS_TEXT, NULL, NULL);
    assert_true(ids.n > 1);
    sd_buf out = {0};
    sd_tokenizer_decode(t, ids.v, ids.n, 0, true, &out, NULL);
    assert_string_equal(out.p, "<|end|>");
    sd_buf_clear(&out);
    sd_tokenizer_decode(t, &end, 1, 0, true, &out, NULL);
    assert_int_equal(out.n, 0);
    sd_tokenizer_decode(t, &end, 1, 0, false, &out, NULL);
    assert_string_equal(out.p, "<|end|>");
    sd_buf_free(&out);
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
    t = from(base("words"));
    assert_int_equal(sd_tokenizer_special(t, "cls"), sd_tokenizer_find(t, "[CLS]"));
    assert_int_equal(sd_tokenizer_special(t, "sep"), sd_tokenizer_find(t, "[SEP]"));
    assert_int_equal(sd_tokenizer_special(t, "mask"), sd_tokenizer_find(t, "[MASK]"));
    assert_int_equal(sd_tokenizer_special(t, "bos"), -1);
    assert_int_equal(sd_tokenizer_special(t, "nonsense"), -1);
    ids = encode(t, "the", 3, SD_TOK_ADD_SPECIAL, NULL, NULL); /* once each */
    assert_int_equal(ids.v[0], sd_tokenizer_find(t, "[CLS]"));
    assert_int_equal(ids.v[ids.n - 1], sd_tokenizer_find(t, "[SEP]"));
    assert_int_equal(ids.n, 3);
    assert_string_equal(sd_tokenizer_kind(t), "WordPiece");
    assert_false(sd_tokenizer_starts_twice(t, ids.v, ids.n));
    sd_ids_free(&ids);
    ids = encode(t, "[CLS] the", 9, SD_TOK_ADD_SPECIAL, NULL, NULL); /* as stock code: two */
    assert_int_equal(ids.v[1], sd_tokenizer_find(t, "[CLS]"));
    assert_true(sd_tokenizer_starts_twice(t, ids.v, ids.n));
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
}

static void test_decode(void **state) {
    (void)state;
    sd_tokenizer *t = from(base("words"));
    sd_buf out = {0};
    sd_err err = {0};
    sd_ids ids = encode(t, "The rank, it is two.", 20, 0, NULL, NULL);
    assert_int_equal(sd_tokenizer_decode(t, ids.v, ids.n, 0, true, &out, &err), SD_OK);
    assert_string_equal(out.p, "the rank, it is two.");
    int32_t bad[] = {1, 100000};
    assert_int_equal(sd_tokenizer_decode(t, bad, 2, 0, false, &out, &err), SD_EINVAL);
    assert_non_null(strstr(err.text, "100000"));
    /* below a model's rows an id without a token writes its number */
    sd_buf_clear(&out);
    bad[0] = sd_tokenizer_find(t, "the");
    assert_int_equal(sd_tokenizer_decode(t, bad, 2, 100001, true, &out, &err), SD_OK);
    assert_string_equal(out.p, "the <id 100000>");
    assert_int_equal(sd_tokenizer_decode(t, bad, 2, 100000, true, &out, &err), SD_EINVAL);
    bad[1] = -1;
    assert_int_equal(sd_tokenizer_decode(t, bad, 2, 100000, false, &out, &err), SD_EINVAL);
    assert_int_equal(sd_tokenizer_decode(t, bad, 2, 0, false, &out, &err), SD_EINVAL);
    size_t n = 0;
    assert_null(sd_tokenizer_token(t, -1, &n));
    assert_null(sd_tokenizer_token(t, sd_tokenizer_vocab_size(t), &n));
    assert_non_null(sd_tokenizer_token(t, 0, &n));
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
    t = from(base("pieces"));
    const char *s = "a\xff\xe5\xad\xa3 z  b"; /* byte fallback keeps invalid bytes too */
    ids = encode(t, s, strlen(s), 0, NULL, NULL);
    sd_buf_clear(&out);
    assert_int_equal(sd_tokenizer_decode(t, ids.v, ids.n, 0, true, &out, &err), SD_OK);
    assert_string_equal(out.p, s);
    sd_ids_free(&ids);
    sd_buf_free(&out);
    sd_tokenizer_unref(t);
}

/* ---- refusals
 * ------------------------------------------------------------------------------------ */
static json_t *with(const char *name, const char *key, const char *json) {
    json_t *j = base(name);
    json_error_t e;
    json_t *v = json_loads(json, JSON_DECODE_ANY, &e);
    assert_non_null(v);
    json_object_set_new(key[0] == '.' ? json_object_get(j, "model") : j, key + (key[0] == '.'), v);
    return j;
}

static void test_refusals(void **state) {
    (void)state;
    static const char *const row[][3] = {
        {"normalizer", "{\"type\":\"Precompiled\"}", "unknown normalizer \"Precompiled\""},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}",
         "regular expression"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}",
         "empty pattern"},
        {"normalizer", "[]", "expected an object"},
        {"pre_tokenizer", "{\"type\":\"UnicodeScripts\"}",
         "unknown pre_tokenizer \"UnicodeScripts\""},
        {"pre_tokenizer", "{}", "type"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}", "&&"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"}}",
         "class inside"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2}+\"}}", "interval"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(*ACCEPT)a\"}}", "(*"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"((((a{900}){900}){900}){900})\"}}",
         "regular expression"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}",
         "unknown split behavior \"Odd\""},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", "one character"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"odd\"}",
         "unknown prepend_scheme \"odd\""},
        {"decoder", "{\"type\":\"CTC\"}", "unknown decoder \"CTC\""},
        {"post_processor", "{\"type\":\"Odd\"}", "unknown post_processor \"Odd\""},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
         "\"special_tokens\":{}}",
         "has no ids"},
        {"post_processor", "{\"type\":\"BertProcessing\",\"sep\":[\"x\",99999],\"cls\":[\"y\",1]}",
         "id 99999 is not in the vocabulary"},
        {".type", "\"Unigram\"", "unknown tokenizer model \"Unigram\""},
        {".dropout", "0.1", "dropout"},
        {".new_option", "true", "unknown option \"new_option\""},
        {".unk_token", "\"nowhere\"", "unk_token \"nowhere\""},
        {".vocab", "{}", "vocab"},
        {".vocab", "{\"a\":\"b\"}", "no integer id"},
        {".vocab", "{\"a\":0,\"b\":0}", "id 0 is given to"},
        {".vocab", "{\"a\":2147483000}", "out of range"},
        {".vocab", "{\"a\":-1}", "out of range"},
        {"added_tokens", "[{\"id\":1,\"content\":\"a\"}]", "and 65 in the vocabulary"},
        {"added_tokens", "[{\"id\":900000000,\"content\":\"new\"}]", "out of range"},
        {"added_tokens", "[{\"id\":5}]", "added_tokens[0]"},
        {"model", "7", "model: expected an object"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        json_t *j = with("bytes", row[i][0], row[i][1]);
        const char *want = row[i][2];
        if (strstr(want, "and 65"))
            want = "in the vocabulary";
        expect_refusal(j, want);
    }
    expect_refusal(json_object(), "model");
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    assert_int_equal(sd_tokenizer_open("tests/no-such-thing", NULL, &t, &err), SD_EFORMAT);
    assert_int_equal(sd_tokenizer_open("tests/no-such-thing.json", NULL, &t, &err), SD_EFILE);
    assert_int_equal(sd_tokenizer_open("tests/unit", NULL, &t, &err), SD_EFILE);
    assert_non_null(strstr(err.text, "tests/unit"));
}

/* ---- bounds
 * -------------------------------------------------------------------------------------- */
/* `n` copies of `step` as a Sequence under `list`. */
static char *sequence(const char *list, const char *step, int n) {
    sd_buf b = {0};
    sd_buf_printf(&b, "{\"type\":\"Sequence\",\"%s\":[", list);
    for (int i = 0; i < n; i++)
        sd_buf_printf(&b, "%s%s", i ? "," : "", step);
    sd_buf_puts(&b, "]}");
    return b.p;
}

#define GROW(type_) \
    "{\"type\":\"" type_ "\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"

/* What a file makes of one letter is bounded, wherever it grows; each of these took gigabytes. */
static void test_bounds(void **state) {
    (void)state;
    char many[5001];
    memset(many, 'x', sizeof many - 1);
    many[sizeof many - 1] = 0;
    char prepend[6000];
    snprintf(prepend, sizeof prepend, "{\"type\":\"Prepend\",\"prepend\":\"%s\"}", many);
    const struct {
        const char *base, *piece, *list, *step, *want;
        int n;
    } row[] = {
        {"bytes", "normalizer", "normalizers", GROW("Replace"), "normalizer Replace makes", 12},
        {"bytes", "normalizer", "normalizers", prepend, "normalizer Prepend makes", 60},
        {"pieces", "pre_tokenizer", "pretokenizers",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\".\"},\"behavior\":\"Isolated\"},"
         "{\"type\":\"Metaspace\",\"replacement\":\"p\",\"split\":false},"
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\".\"},\"behavior\":\"Isolated\"},"
         "{\"type\":\"Metaspace\",\"replacement\":\"q\",\"split\":false}",
         "pre_tokenizer makes", 15},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *steps = sequence(row[i].list, row[i].step, row[i].n);
        sd_tokenizer *t = from(with(row[i].base, row[i].piece, steps));
        sd_ids ids = {0};
        sd_err err = {0};
        double began = sd_now();
        if (sd_tokenizer_encode(t, "a", 1, 0, &ids, NULL, NULL, &err) != SD_EFORMAT)
            fail_msg("row %zu: not refused", i);
        if (!strstr(err.text, row[i].want) || !strstr(err.text, "of 1:"))
            fail_msg("row %zu: %s", i, err.text);
        assert_true(sd_now() - began < (getenv("SD_SANITIZED") ? 20 : 2));
        assert_int_equal(ids.n, 0);
        sd_ids_free(&ids);
        sd_tokenizer_unref(t);
        free(steps);
    }
    /* A normalizer is also met by added tokens, when the file is read. */
    char *steps = sequence("normalizers", GROW("Replace"), 12);
    json_t *j = with("bytes", "normalizer", steps);
    json_array_append_new(json_object_get(j, "added_tokens"),
                          json_pack("{s:i,s:s,s:b}", "id", 5000, "content", "a a", "normalized",
                                    1));
    expect_refusal(j, "added tokens: the tokenizer's normalizer Replace makes");
    free(steps);
    steps = sequence("decoders", GROW("Replace"), 12);
    sd_tokenizer *t = from(with("bytes", "decoder", steps));
    free(steps);
    sd_buf out = {0};
    sd_err err = {0};
    int32_t a = sd_tokenizer_find(t, "a");
    assert_int_equal(sd_tokenizer_decode(t, &a, 1, 0, false, &out, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "decoder Replace makes"));
    sd_tokenizer_unref(t);
    /* A template: one name for many ids, many times. */
    sd_buf b = {0};
    sd_buf_puts(&b, "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}");
    for (int i = 0; i < 40; i++)
        sd_buf_puts(&b, ",{\"SpecialToken\":{\"id\":\"x\"}}");
    sd_buf_puts(&b, "],\"special_tokens\":{\"x\":{\"ids\":[1");
    for (int i = 0; i < 40; i++)
        sd_buf_puts(&b, ",1");
    sd_buf_puts(&b, "]}}}");
    expect_refusal(with("bytes", "post_processor", b.p), "more than 1024 ids around a text");
    sd_buf_free(&b);
    json_t *big = json_stringn(many, 300);
    j = base("bytes");
    json_object_set_new(json_object_get(j, "model"), "end_of_word_suffix", big);
    expect_refusal(j, "end_of_word_suffix of 300 bytes: more than 256");
    /* A spelling: the vocabulary decides how much an id writes. */
    char *longest = malloc(70001);
    memset(longest, 'x', 70000);
    longest[70000] = 0;
    j = base("bytes");
    json_object_set_new(json_object_get(json_object_get(j, "model"), "vocab"), longest,
                        json_integer(300));
    free(longest);
    expect_refusal(j, "has 70000 bytes: more than 65536");
    sd_buf_free(&out);
    /* What grows within reason passes: U+FDFA is 18 characters in NFKC. */
    t = from(with("bytes", "normalizer", "{\"type\":\"NFKC\"}"));
    sd_buf text = {0};
    for (int i = 0; i < 20000; i++)
        sd_buf_puts(&text, "\xef\xb7\xba");
    sd_ids ids = {0};
    assert_int_equal(sd_tokenizer_encode(t, text.p, text.n, 0, &ids, NULL, NULL, &err), SD_OK);
    assert_true(ids.n > 0);
    sd_ids_free(&ids);
    sd_buf_free(&text);
    sd_tokenizer_unref(t);
}

/* A pattern that backtracks without end is an error, not a hang. */
static void test_hostile_regex(void **state) {
    (void)state;
    sd_tokenizer *t =
        from(with("bytes", "pre_tokenizer",
                  "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+(?=b)(a+)+c\"}}"));
    char s[3000];
    memset(s, 'a', sizeof s);
    s[1500] = 'b';
    sd_ids ids = {0};
    sd_err err = {0};
    sd_status st = sd_tokenizer_encode(t, s, sizeof s, 0, &ids, NULL, NULL, &err);
    assert_true(st == SD_OK || st == SD_EINVAL);
    if (st == SD_EINVAL)
        assert_non_null(strstr(err.text, "regular expression"));
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
}

/* ---- files
 * --------------------------------------------------------------------------------------- */
static char dir[] = "/tmp/sd-test-tokenizer-XXXXXX";

static void put_file(const char *name, const char *text, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(sd_write_file(path, text, n, NULL), SD_OK);
}

static void drop_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

static void test_files(void **state) {
    (void)state;
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(dir));
    json_t *j = base("bytes"), *m;
    char *vocab = json_dumps(json_object_get(json_object_get(j, "model"), "vocab"), 0);
    sd_buf merges = {0};
    size_t i;
    sd_buf_puts(&merges, "#version: 0.2\n");
    json_array_foreach(json_object_get(json_object_get(j, "model"), "merges"), i, m)
        sd_buf_printf(&merges, "%s %s%s", json_string_value(json_array_get(m, 0)),
                      json_string_value(json_array_get(m, 1)), i & 1 ? "\r\n" : "\n");
    put_file("vocab.json", vocab, strlen(vocab));
    sd_err err = {0};
    sd_tokenizer *t = NULL, *want = from(j);
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFILE); /* no merges yet */
    put_file("merges.txt", merges.p, merges.n);
    t = open_ok(dir);
    const char *text = "  The matrix M,\n\n it's  rank 2. é";
    sd_ids ids = encode(want, text, strlen(text), 0, NULL, NULL);
    expect_ids(t, text, strlen(text), 0, ids.v, ids.n);
    sd_tokenizer_unref(t);
    /* a class that splits otherwise is refused by name */
    const char *config = "{\"tokenizer_class\":\"OddTokenizer\"}";
    put_file("tokenizer_config.json", config, strlen(config));
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "OddTokenizer"));
    config = "{\"tokenizer_class\":\"GPT2Tokenizer\",\"eos_token\":\"<|end|>\","
             "\"added_tokens_decoder\":{\"0\":{\"content\":\"<|end|>\",\"special\":true}}}";
    put_file("tokenizer_config.json", config, strlen(config));
    t = open_ok(dir);
    assert_int_equal(sd_tokenizer_special(t, "eos"), 0);
    int32_t zero = 0;
    expect_ids(t, "<|end|>", 7, 0, &zero, 1);
    sd_tokenizer_unref(t);
    drop_file("tokenizer_config.json");
    put_file("merges.txt", "#version: 0.2\n", 14);
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "empty"));
    put_file("merges.txt", "h e\nbroken\n", 11);
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "line 2"));
    drop_file("merges.txt");
    drop_file("vocab.json");
    sd_ids_free(&ids);
    sd_tokenizer_unref(want);
    free(vocab);
    /* vocab.txt: T11 */
    const char *words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngo\n##sp\n##ic\nupper\n\xe4\xb8\xad\n"
                        "a\n##a\n\xe5\x9b\xbd\n";
    put_file("vocab.txt", words, strlen(words));
    t = open_ok(dir);
    int32_t gospic[] = {2, 5, 6, 7, 3}, upper[] = {8}, unk[] = {1}, cjk[] = {9, 10, 12};
    expect_ids(t, "gospi\xc4\x87", 7, SD_TOK_ADD_SPECIAL, gospic, 5);
    expect_ids(t, "gospic\xcc\x81", 8, SD_TOK_ADD_SPECIAL, gospic, 5);
    expect_ids(t, "UPPER", 5, 0, upper, 1);
    char long_word[101];
    memset(long_word, 'a', sizeof long_word);
    expect_ids(t, long_word, 101, 0, unk, 1);
    ids = encode(t, long_word, 100, 0, NULL, NULL);
    assert_int_equal(ids.n, 100);
    sd_ids_free(&ids);
    expect_ids(t, "gospel", 6, 0, unk, 1);
    expect_ids(t, "\xef\x81\x99", 3, 0, NULL, 0); /* private use is dropped */
    expect_ids(t,
               "\xe4\xb8\xad"
               "a\xe5\x9b\xbd",
               7, 0, cjk, 3);
    sd_tokenizer_unref(t);
    put_file("vocab.txt", "[PAD]\na\n", 8);
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "[UNK]"));
    put_file("vocab.txt", "", 0);
    assert_int_equal(sd_tokenizer_open(dir, NULL, &t, &err), SD_EFORMAT);
    drop_file("vocab.txt");
    sd_buf_free(&merges);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- GGUF metadata
 * -------------------------------------------------------------------------------- */
static json_t *by_id(const json_t *vocab) {
    json_t *list = json_array(), *v;
    const char *key;
    for (size_t i = 0; i < json_object_size(vocab); i++)
        json_array_append_new(list, json_string(""));
    json_object_foreach((json_t *)vocab, key, v)
        json_array_set_new(list, (size_t)json_integer_value(v), json_string(key));
    return list;
}

static void test_gguf(void **state) {
    (void)state;
    json_t *j = base("bytes"), *m, *merges = json_array(), *types = json_array();
    size_t i;
    json_array_foreach(json_object_get(json_object_get(j, "model"), "merges"), i, m) {
        char line[256];
        snprintf(line, sizeof line, "%s %s", json_string_value(json_array_get(m, 0)),
                 json_string_value(json_array_get(m, 1)));
        json_array_append_new(merges, json_string(line));
    }
    json_t *tokens = by_id(json_object_get(json_object_get(j, "model"), "vocab"));
    for (i = 0; i < json_array_size(tokens); i++)
        json_array_append_new(types, json_integer(i == 0 ? 3 : 1));
    json_t *meta =
        json_pack("{ss so so so ss si}", "tokenizer.ggml.model", "gpt2", "tokenizer.ggml.tokens",
                  tokens, "tokenizer.ggml.token_type", types, "tokenizer.ggml.merges", merges,
                  "tokenizer.ggml.pre", "gpt-2", "tokenizer.ggml.eos_token_id", 0);
    sd_tokenizer *t = NULL, *want = from(j);
    sd_err err = {0};
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_OK);
    const char *text = "  The matrix M,\n\n it's 2024 <|end|> rank 2. é";
    sd_ids ids = encode(want, text, strlen(text), 0, NULL, NULL);
    expect_ids(t, text, strlen(text), 0, ids.v, ids.n);
    assert_int_equal(sd_tokenizer_special(t, "eos"), 0);
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
    sd_tokenizer_unref(want);
    static const char *const known[] = {"llama-bpe", "qwen2",          "smollm",
                                        "falcon",    "deepseek-coder", "deepseek-v3",
                                        "tekken",    "gpt-4o",         "dbrx"};
    for (i = 0; i < sizeof known / sizeof *known; i++) {
        json_object_set_new(meta, "tokenizer.ggml.pre", json_string(known[i]));
        if (sd_tokenizer_from_gguf(meta, "toy", &t, &err) != SD_OK)
            fail_msg("%s: %s", known[i], err.text);
        expect_round_trip(t, text, strlen(text));
        sd_tokenizer_unref(t);
    }
    json_object_set_new(meta, "tokenizer.ggml.pre", json_string("odd"));
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "\"odd\""));
    json_object_del(meta, "tokenizer.ggml.pre");
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_EFORMAT);
    json_object_set_new(meta, "tokenizer.ggml.pre", json_string("gpt-2"));
    json_object_set_new(meta, "tokenizer.ggml.eos_token_id", json_integer(700));
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "700"));
    json_object_set_new(meta, "tokenizer.ggml.model", json_string("t5"));
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_EFORMAT);
    assert_non_null(strstr(err.text, "\"t5\""));
    json_decref(meta);

    /* SentencePiece: scores instead of merges, here in the merge list's order. */
    j = base("pieces");
    tokens = by_id(json_object_get(json_object_get(j, "model"), "vocab"));
    types = json_array();
    json_t *scores = json_array();
    for (i = 0; i < json_array_size(tokens); i++) {
        json_array_append_new(types, json_integer(i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1));
        json_array_append_new(scores, json_real(-(double)i));
    }
    meta =
        json_pack("{ss so so so si si}", "tokenizer.ggml.model", "llama", "tokenizer.ggml.tokens",
                  tokens, "tokenizer.ggml.token_type", types, "tokenizer.ggml.scores", scores,
                  "tokenizer.ggml.bos_token_id", 1, "tokenizer.ggml.unknown_token_id", 0);
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_OK);
    want = from(j);
    text = "the attention of a head  is low-rank; 季\xc3\xa9";
    sd_ids a = encode(want, text, strlen(text), SD_TOK_ADD_SPECIAL, NULL, NULL);
    sd_ids b = encode(t, text, strlen(text), SD_TOK_ADD_SPECIAL, NULL, NULL);
    assert_int_equal(a.v[0], 1);
    assert_int_equal(b.n, a.n);
    assert_memory_equal(a.v, b.v, a.n * sizeof *a.v);
    sd_buf out = {0};
    assert_int_equal(sd_tokenizer_decode(t, b.v, b.n, 0, true, &out, &err), SD_OK);
    assert_string_equal(out.p, text);
    sd_buf_free(&out);
    sd_ids_free(&a);
    sd_ids_free(&b);
    sd_tokenizer_unref(t);
    sd_tokenizer_unref(want);
    json_decref(meta);

    /* BERT: word starts carry U+2581 */
    meta = json_pack("{ss s[ssssss] s[iiiiii]}", "tokenizer.ggml.model", "bert",
                     "tokenizer.ggml.tokens", "[UNK]", "[CLS]", "[SEP]", "\xe2\x96\x81go", "sp",
                     "ic", "tokenizer.ggml.token_type", 2, 3, 3, 1, 1, 1);
    assert_int_equal(sd_tokenizer_from_gguf(meta, "toy", &t, &err), SD_OK);
    int32_t gospic[] = {1, 3, 4, 5, 2};
    expect_ids(t, "gospi\xc4\x87", 7, SD_TOK_ADD_SPECIAL, gospic, 5);
    sd_tokenizer_unref(t);
    json_decref(meta);
}

/* ---- training
 * -------------------------------------------------------------------------------------- */
static void test_train(void **state) {
    (void)state;
    const char *paths[] = {"data/introduction.txt"}, *special[] = {"<|endoftext|>", "<|x|>"};
    sd_buf a = {0}, b = {0};
    sd_err err = {0};
    assert_int_equal(sd_tokenizer_train(paths, 1, 600, special, 2, NULL, &a, &err), SD_OK);
    assert_int_equal(sd_tokenizer_train(paths, 1, 600, special, 2, NULL, &b, &err), SD_OK);
    assert_string_equal(a.p, b.p);
    json_t *j = NULL;
    assert_int_equal(sd_json_parse(a.p, a.n, "trained", &j, &err), SD_OK);
    size_t nm;
    json_t *keep = json_incref(j);
    sd_tokenizer *t = from(j);
    assert_int_equal(sd_tokenizer_vocab_size(t), 600);
    assert_int_equal(sd_tokenizer_find(t, "<|endoftext|>"), 598);
    assert_int_equal(sd_tokenizer_special(t, "eos"), 598);
    for (int i = 0; i < 256; i++) { /* ids 0..255 are the bytes */
        char c = (char)i;
        int32_t id = i;
        expect_ids(t, &c, 1, 0, &id, 1);
    }
    slow_merge *m = slow_merges(t, keep, &nm);
    assert_int_equal(nm, 342);
    assert_int_equal(m[0].id, 256);
    sd_buf text = {0};
    assert_int_equal(sd_read_file(paths[0], 0, &text, &err), SD_OK);
    expect_round_trip(t, text.p, text.n);
    sd_ids ids = encode(t, text.p, text.n, 0, NULL, NULL);
    assert_true(ids.n < text.n / 2);
    sd_ids_free(&ids);
    free(m);
    json_decref(keep);
    sd_buf_free(&text);
    sd_tokenizer_unref(t);
    const char *twice[] = {"<a>", "<a>"}, *none[] = {"tests/no-such-file"};
    sd_buf c = {0};
    assert_int_equal(sd_tokenizer_train(paths, 1, 600, twice, 2, NULL, &c, &err), SD_EINVAL);
    assert_int_equal(sd_tokenizer_train(paths, 1, 256, NULL, 0, NULL, &c, &err), SD_EINVAL);
    assert_int_equal(sd_tokenizer_train(paths, 0, 600, NULL, 0, NULL, &c, &err), SD_EINVAL);
    assert_int_equal(sd_tokenizer_train(none, 1, 600, NULL, 0, NULL, &c, &err), SD_EFILE);
    assert_int_equal(c.n, 0);
    sd_buf_free(&a);
    sd_buf_free(&b);
    sd_buf_free(&c);
}

/* A toy corpus whose merges can be found by hand. */
static void test_train_by_hand(void **state) {
    (void)state;
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(dir));
    /* words: "abab" ×1, " abab" ×3, " aaa" ×4 → pair counts: (a,b) 8, (a,a) 8, ( ,a) 7, (b,a) 4:
     * (a,a) = (97,97) is smaller than (97,98) and goes first. Then " aaa" = [sp, aa, a]:
     * (a,b) 8; then (ab,ab) 4, (sp,ab) 3, (sp,aa) 4, (aa,a) 4: smallest pair first. */
    const char *s = "abab abab abab abab aaa aaa aaa aaa";
    put_file("t.txt", s, strlen(s));
    char path[256];
    snprintf(path, sizeof path, "%s/t.txt", dir);
    const char *paths[] = {path};
    sd_buf json = {0};
    sd_err err = {0};
    assert_int_equal(sd_tokenizer_train(paths, 1, 259, NULL, 0, NULL, &json, &err), SD_OK);
    json_t *j = NULL;
    assert_int_equal(sd_json_parse(json.p, json.n, "trained", &j, &err), SD_OK);
    json_t *m = json_object_get(json_object_get(j, "model"), "merges");
    assert_int_equal(json_array_size(m), 3);
    const char *want[3][2] = {{"a", "a"}, {"a", "b"}, {"\xc4\xa0", "aa"}};
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            assert_string_equal(json_string_value(json_array_get(json_array_get(m, i), k)),
                                want[i][k]);
    json_decref(j);
    sd_buf_free(&json);
    drop_file("t.txt");
    assert_int_equal(rmdir(dir), 0);
}

/* ---- sharing, cancellation
 * -------------------------------------------------------------------------- */
typedef struct job {
    const sd_tokenizer *t;
    const sd_ids *want;
    const sd_buf *text;
    int bad;
} job;

static void *work(void *p) {
    job *w = p;
    for (int k = 0; k < 20; k++) {
        sd_ids ids = {0};
        if (sd_tokenizer_encode(w->t, w->text->p, w->text->n, 0, &ids, NULL, NULL, NULL) != SD_OK ||
            ids.n != w->want->n || memcmp(ids.v, w->want->v, ids.n * sizeof *ids.v) != 0)
            w->bad++;
        sd_ids_free(&ids);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    sd_tokenizer *t = open_ok("data/interim-gpt2");
    sd_buf text = {0};
    assert_int_equal(sd_read_file("data/introduction.txt", 0, &text, NULL), SD_OK);
    sd_ids want = encode(t, text.p, text.n, 0, NULL, NULL);
    job w[3];
    pthread_t th[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (job){t, &want, &text, 0};
        assert_int_equal(pthread_create(&th[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(th[i], NULL);
        assert_int_equal(w[i].bad, 0);
    }
    sd_cancel_flag = 1;
    sd_ids ids = {0};
    sd_err err = {0};
    assert_int_equal(sd_tokenizer_encode(t, text.p, text.n, 0, &ids, NULL, NULL, &err), SD_ECANCEL);
    sd_cancel_flag = 0;
    assert_int_equal(ids.n, 0);
    sd_ids_free(&ids);
    sd_ids_free(&want);
    sd_buf_free(&text);
    sd_tokenizer_unref(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),     cmocka_unit_test(test_merges),
        cmocka_unit_test(test_any_bytes),     cmocka_unit_test(test_lost_bytes),
        cmocka_unit_test(test_long_words),    cmocka_unit_test(test_special),
        cmocka_unit_test(test_decode),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_hostile_regex), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_files),         cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_train),         cmocka_unit_test(test_train_by_hand),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
