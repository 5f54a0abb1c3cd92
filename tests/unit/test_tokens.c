/* Token files: building from texts, held-out documents, reading, and files that lie. */
#include "model_help.h"

#include "io/tokens.h"

static sd_tokenizer *tok;

static void put_text(const char *name, const char *text) {
    OK(sd_write_file(at(name), text, strlen(text), &err));
}

static int make_tokenizer(void **state) {
    if (scratch_make(state) != 0)
        return -1;
    put_text("seed.txt", "the cat sat on the mat and the dog sat on the cat\n");
    const char *const special[] = {"<|endoftext|>"};
    const char *path = at("seed.txt");
    sd_buf json = {0};
    OK(sd_tokenizer_train(&path, 1, 270, special, 1, NULL, &json, &err));
    OK(sd_write_file(at("tokenizer.json"), json.p, json.n, &err));
    sd_buf_free(&json);
    OK(sd_tokenizer_open(at("tokenizer.json"), NULL, &tok, &err));
    return 0;
}

static int drop_tokenizer(void **state) {
    sd_tokenizer_unref(tok);
    return scratch_remove(state);
}

static sd_status build(const char *text, const char *out, double holdout, uint64_t seed,
                       sd_tokens_stats *s) {
    put_text("in.txt", text);
    const char *path = at("in.txt");
    sd_err_clear(&err);
    return sd_tokens_build(&path, 1, tok, at(out), holdout, seed, NULL, s, &err);
}

/* The whole of a token file as text. */
static void text_of(const char *name, sd_buf *out) {
    sd_tokens *t = NULL;
    OK(sd_tokens_open(at(name), NULL, &t, &err));
    size_t n = (size_t)sd_tokens_count(t);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    OK(sd_tokens_read(t, 0, n, sd_tokenizer_vocab_size(tok), ids, &err));
    sd_buf_clear(out);
    sd_buf_puts(out, "");
    OK(sd_tokenizer_decode(tok, ids, n, 0, false, out, &err));
    free(ids);
    sd_tokens_free(t);
}

static void documents(void **state) {
    (void)state;
    sd_tokens_stats s;
    sd_buf text = {0};
    /* Separators with either line end, doubled, first, last with and without a line end. */
    OK(build("<|endoftext|>\none\nline\n<|endoftext|>\r\n<|endoftext|>\ntwo\r\n<|endoftext|>\n"
             "three <|endoftext|> inside\n<|endoftext|>",
             "d", 0, 1, &s));
    assert_int_equal(s.documents, 3);
    assert_int_equal(s.val_tokens, 0);
    assert_int_equal(s.lost_bytes, 0);
    text_of("d.train.bin", &text);
    /* The marker inside a line is ordinary text; each document ends with the special token. */
    assert_string_equal(text.p, "one\nline<|endoftext|>two<|endoftext|>three <|endoftext|> inside"
                                "<|endoftext|>");
    sd_tokens *t = NULL;
    OK(sd_tokens_open(at("d.train.bin"), NULL, &t, &err));
    assert_int_equal(sd_tokens_count(t), s.train_tokens);
    assert_true(sd_tokens_made_with(t) == sd_tokens_hash_of(tok));
    int32_t ids[64];
    OK(sd_tokens_read(t, 0, (size_t)s.train_tokens, 270, ids, &err));
    int eot = 0;
    for (uint64_t i = 0; i < s.train_tokens; i++)
        eot += ids[i] == sd_tokenizer_find(tok, "<|endoftext|>");
    assert_int_equal(eot, 3);
    /* Past the end: both numbers. */
    assert_int_equal(sd_tokens_read(t, s.train_tokens, 1, 270, ids, &err), SD_EFORMAT);
    assert_int_equal(sd_tokens_read(t, UINT64_MAX, 1, 270, ids, &err), SD_EFORMAT);
    OK(sd_tokens_read(t, s.train_tokens, 0, 270, ids, &err));
    sd_tokens_free(t);
    /* No separator at all: one document, whose tail is held out. */
    OK(build("one document\nof two lines", "n", 0.25, 1, &s));
    assert_int_equal(s.documents, 1);
    assert_true(s.val_tokens >= 2 && s.train_tokens > s.val_tokens);
    text_of("n.train.bin", &text);
    sd_buf both = {0};
    sd_buf_puts(&both, text.p);
    text_of("n.val.bin", &text);
    assert_true(text.n > sizeof "<|endoftext|>" - 1);
    sd_buf_puts(&both, text.p);
    assert_string_equal(both.p, "one document\nof two lines<|endoftext|>");
    sd_buf_free(&both);
    OK(build("one document\nof two lines", "n", 0, 1, &s)); /* nothing asked for */
    assert_int_equal(s.val_tokens, 0);
    text_of("n.train.bin", &text);
    assert_string_equal(text.p, "one document\nof two lines<|endoftext|>");
    assert_int_equal(build("a", "n", 0.5, 1, &s), SD_EFORMAT); /* one token for two files */
    assert_non_null(strstr(err.text, "nothing to hold out"));
    sd_buf_free(&text);
}

/* Texts longer than the reading chunk, with separators on its edges. */
static void long_text(void **state) {
    (void)state;
    enum { CHUNK = 1 << 20 };
    sd_buf in = {0}, text = {0};
    sd_tokens_stats s;
    for (int shift = -14; shift <= 1; shift += 5) {
        sd_buf_clear(&in);
        size_t edge = (size_t)(CHUNK + shift);
        while (in.n + 8 < edge)
            sd_buf_puts(&in, "the mat\n");
        while (in.n < edge)
            sd_buf_putc(&in, '\n');
        sd_buf_puts(&in, "<|endoftext|>\nlast one\n");
        assert_false(in.failed);
        OK(build(in.p, "l", 0.001, 3, &s));
        assert_int_equal(s.documents, 2);
        text_of("l.val.bin", &text);
        assert_string_equal(text.p, "last one<|endoftext|>");
    }
    sd_buf_free(&in);
    sd_buf_free(&text);
}

static void held_out(void **state) {
    (void)state;
    sd_buf in = {0}, a = {0}, b = {0}, c = {0};
    sd_tokens_stats s;
    for (int i = 0; i < 400; i++)
        sd_buf_printf(&in, "document %d\n<|endoftext|>\n", i);
    OK(build(in.p, "a", 0.2, 7, &s));
    assert_int_equal(s.documents, 400);
    OK(build(in.p, "b", 0.2, 7, &s));
    OK(build(in.p, "c", 0.2, 8, &s));
    text_of("a.val.bin", &a);
    text_of("b.val.bin", &b);
    text_of("c.val.bin", &c);
    assert_string_equal(a.p, b.p);
    assert_string_not_equal(a.p, c.p);
    int n = 0;
    for (const char *p = a.p; (p = strstr(p, "document")) != NULL; p++)
        n++;
    assert_in_range(n, 50, 110); /* 80 ± 8 */
    /* A longer corpus keeps the same documents held out. */
    sd_buf_printf(&in, "document 400\n<|endoftext|>\n");
    OK(build(in.p, "b", 0.2, 7, &s));
    text_of("b.val.bin", &b);
    assert_memory_equal(a.p, b.p, a.n);
    /* Two documents are one of each, whatever the share. */
    for (uint64_t seed = 0; seed < 8; seed++) {
        OK(build("first\n<|endoftext|>\nsecond\n", "t", seed % 2 ? 0.9 : 0.0001, seed, &s));
        assert_true(s.train_tokens > 0 && s.val_tokens > 0);
    }
    /* Read back from the meta: the bytes of both files are whole ids. */
    sd_buf meta = {0};
    OK(sd_read_file(at("t.val.bin.json"), 0, &meta, &err));
    assert_non_null(strstr(meta.p, "\"dtype\": \"uint16\""));
    sd_buf_free(&meta);
    sd_buf_free(&in);
    sd_buf_free(&a);
    sd_buf_free(&b);
    sd_buf_free(&c);
}

static void nothing_to_train_on(void **state) {
    (void)state;
    static const char *const empty[] = {"", "\n\n\n", "<|endoftext|>", "<|endoftext|>\n\n"};
    sd_tokens_stats s;
    OK(build("something", "e", 0, 1, &s));
    sd_buf before = {0}, after = {0};
    OK(sd_read_file(at("e.train.bin"), 0, &before, &err));
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        assert_int_equal(build(empty[i], "e", 0.1, 1, &s), SD_EFORMAT);
        HAS("no text to train on");
    }
    /* What was there before is not touched, and no temporary stays. */
    OK(sd_read_file(at("e.train.bin"), 0, &after, &err));
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.p, after.p, before.n);
    char **names;
    size_t n;
    OK(sd_list_dir(scratch, &names, &n, &err));
    for (size_t i = 0; i < n; i++) {
        assert_null(strstr(names[i], ".tmp"));
        sd_free(names[i]);
    }
    sd_free(names);
    sd_buf_free(&before);
    sd_buf_free(&after);
    const char *missing = at("not-there.txt");
    assert_int_equal(sd_tokens_build(&missing, 1, tok, at("x"), 0, 1, NULL, &s, &err), SD_EFILE);
}

static sd_status open_with(const void *p, size_t n, const char *meta, sd_tokens **t) {
    OK(sd_write_file(at("x.bin"), p, n, &err));
    if (meta)
        OK(sd_write_file(at("x.bin.json"), meta, strlen(meta), &err));
    else
        remove(at("x.bin.json"));
    sd_err_clear(&err);
    return sd_tokens_open(at("x.bin"), NULL, t, &err);
}

static void damaged(void **state) {
    (void)state;
    static const unsigned char four[] = {1, 0, 2, 1, 255, 255, 3, 0};
    sd_tokens *t = NULL;
    int32_t ids[4];
    /* Without meta: uint16. */
    OK(open_with(four, 8, NULL, &t));
    assert_int_equal(sd_tokens_count(t), 4);
    assert_true(sd_tokens_made_with(t) == 0);
    OK(sd_tokens_read(t, 0, 4, 65536, ids, &err));
    assert_int_equal(ids[2], 65535);
    assert_int_equal(sd_tokens_read(t, 0, 4, 270, ids, &err), SD_EFORMAT);
    HAS("token 65535 at 2: the model knows 0..269");
    assert_int_equal(sd_tokens_check(t, 270, &err), SD_EFORMAT);
    HAS("token 65535 at 2: the model knows 0..269");
    OK(sd_tokens_check(t, 65536, &err));
    sd_tokens_free(t);
    OK(open_with(four, 8, "{\"dtype\": \"uint32\", \"tokens\": 2}", &t));
    OK(sd_tokens_read(t, 0, 1, 1 << 28, ids, &err));
    assert_int_equal(ids[0], 1 | 258 << 16);
    assert_int_equal(sd_tokens_read(t, 1, 1, INT32_MAX, ids, &err), SD_OK);
    sd_tokens_free(t);
    static const unsigned char negative[] = {255, 255, 255, 255};
    OK(open_with(negative, 4, "{\"dtype\": \"uint32\", \"tokens\": 1}", &t));
    assert_int_equal(sd_tokens_read(t, 0, 1, INT32_MAX, ids, &err), SD_EFORMAT);
    HAS("token 4294967295 at 0");
    sd_tokens_free(t);
    /* Refused, with the file and both numbers. */
    static const struct {
        size_t n;
        const char *meta, *says;
    } bad[] = {
        {7, NULL, "7 bytes are not a whole number of uint16 ids"},
        {6, "{\"dtype\": \"uint32\", \"tokens\": 1}", "6 bytes"},
        {8, "{\"dtype\": \"uint16\", \"tokens\": 5}", "holds 4 tokens, its meta says 5"},
        {8, "{\"dtype\": \"uint16\"}", "tokens"},
        {8, "{\"tokens\": 4}", "dtype"},
        {8, "{\"dtype\": \"int8\", \"tokens\": 8}", "int8"},
        {8, "{\"dtype\": \"uint16\", \"tokens\": -1}", "tokens"},
        {8, "{\"dtype\": \"uint16\", \"tokens\": 1e30}", "tokens"},
        {8, "{\"dtype\": 7, \"tokens\": 4}", "dtype"},
        {8, "{\"dtype\": \"uint16\", \"tok", "x.bin.json"},
        {8, "", "x.bin.json"},
        {8, "[]", "x.bin.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (open_with(four, bad[i].n, bad[i].meta, &t) != SD_EFORMAT)
            fail_msg("row %zu: %s", i, err.text);
        assert_null(t);
        HAS("x.bin");
        HAS(bad[i].says);
    }
    OK(open_with("", 0, NULL, &t)); /* an empty file is no tokens */
    assert_int_equal(sd_tokens_count(t), 0);
    sd_tokens_free(t);
    assert_int_equal(sd_tokens_open(scratch, NULL, &t, &err), SD_EFILE);
    assert_int_equal(sd_tokens_open(at("nowhere.bin"), NULL, &t, &err), SD_EFILE);
    static const int32_t some[] = {5, -1, 7};
    OK(sd_tokens_from_ids(some, 3, &t, &err));
    assert_int_equal(sd_tokens_read(t, 0, 3, 10, ids, &err), SD_EFORMAT);
    HAS("token -1 at 1");
    sd_tokens_free(t);
}

/* Files of other trainers: known, or asked about; never read as what they are not. */
static void foreign(void **state) {
    (void)state;
    enum { N = 200000 };
    static unsigned char f[1024 + 4 * N];
    sd_tokens *t = NULL;
    int32_t ids[4];
    for (int wide = 0; wide < 2; wide++) {
        const int32_t head[3] = {wide ? 20240801 : 20240520, wide ? 7 : 1, N};
        size_t w = wide ? 4 : 2, size = 1024 + w * N;
        memset(f, 0, sizeof f);
        memcpy(f, head, sizeof head);
        for (size_t i = 0; i < N; i++)
            f[1024 + w * i] = (unsigned char)(i % 7);
        OK(open_with(f, size, NULL, &t));
        assert_int_equal(sd_tokens_count(t), N);
        OK(sd_tokens_read(t, 9, 4, 7, ids, &err));
        assert_true(ids[0] == 2 && ids[3] == 5);
        OK(sd_tokens_check(t, 7, &err));
        sd_tokens_free(t);
        /* An id of V deep in the file. */
        f[1024 + w * 150001] = 7;
        OK(open_with(f, size, NULL, &t));
        assert_int_equal(sd_tokens_check(t, 7, &err), SD_EFORMAT);
        HAS("token 7 at 150001: the model knows 0..6");
        sd_tokens_free(t);
        assert_int_equal(open_with(f, size - w, NULL, &t), SD_EFORMAT);
        HAS("its header says 200000");
        assert_int_equal(open_with(f, 100, NULL, &t), SD_EFORMAT);
        HAS("llm.c");
        OK(sd_write_file(at("x.bin"), f, size, &err));
        assert_int_equal(sd_tokens_open(at("x.bin"), wide ? "uint16" : "uint32", &t, &err),
                         SD_EFORMAT);
        HAS("the file says uint");
    }
    /* uint32 without its meta. */
    static const unsigned char bare[16] = {1, 0, 0, 0, 44, 1, 0, 0, 7, 0, 0, 0, 2, 2, 0, 0};
    assert_int_equal(open_with(bare, 16, NULL, &t), SD_EFORMAT);
    HAS("give dtype=");
    HAS("x.bin.json");
    OK(sd_tokens_open(at("x.bin"), "uint32", &t, &err));
    assert_int_equal(sd_tokens_count(t), 4);
    sd_tokens_free(t);
    OK(sd_tokens_open(at("x.bin"), "uint16", &t, &err));
    assert_int_equal(sd_tokens_count(t), 8);
    sd_tokens_free(t);
    assert_int_equal(sd_tokens_open(at("x.bin"), "int7", &t, &err), SD_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents), cmocka_unit_test(long_text),
        cmocka_unit_test(held_out),  cmocka_unit_test(nothing_to_train_on),
        cmocka_unit_test(damaged),   cmocka_unit_test(foreign),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
