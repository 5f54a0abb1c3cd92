/* core/base: status, memory, strings, numbers, ranges, suggestions, random numbers, hashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/run.h"
#include "base/status.h"
#include "base/str.h"

static void test_status(void **state) {
    (void)state;
    sd_err e;
    sd_err_clear(&e);
    sd_err_context(&e, "nothing");
    assert_string_equal(e.text, "");
    assert_int_equal(sd_fail(&e, SD_EFORMAT, "tensor %s: %d", "w", 3), SD_EFORMAT);
    sd_err_context(&e, "file %d", 7);
    assert_string_equal(e.text, "file 7: tensor w: 3");
    assert_int_equal(e.code, SD_EFORMAT);
    assert_int_equal(sd_fail(NULL, SD_ENOMEM, "x"), SD_ENOMEM);
    sd_err_context(NULL, "x");
    /* Cut at a character boundary, whatever the length. */
    for (int pad = 0; pad < 5; pad++) {
        char text[1200], head[8] = "abcdefg";
        head[pad] = '\0';
        strcpy(text, head);
        while (strlen(text) < 1100)
            strcat(text, pad % 2 ? "é" : "€");
        sd_fail(&e, SD_EINVAL, "%s", text);
        size_t n = strlen(e.text), i = 0, k;
        assert_true(n > SD_ERR_TEXT - 5 && n < SD_ERR_TEXT);
        while (i < n && (k = sd_utf8_next(e.text + i, n - i, NULL)) > 0)
            i += k;
        assert_int_equal(i, n);
        sd_err_context(&e, "%s", text);
        n = strlen(e.text);
        for (i = 0; i < n && (k = sd_utf8_next(e.text + i, n - i, NULL)) > 0;)
            i += k;
        assert_int_equal(i, n);
        assert_true(n < SD_ERR_TEXT);
    }
    int codes[] = {0, 1, 3, 3, 4, 5, 6, 130, 1, 1};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(sd_status_exit_code((sd_status)i), codes[i]);
        assert_string_not_equal(sd_status_name((sd_status)i), "unknown status");
    }
}

static void test_mem(void **state) {
    (void)state;
    sd_err e;
    size_t out = 42;
    assert_false(sd_mul_size(SIZE_MAX / 2, 3, &out));
    assert_false(sd_add_size(SIZE_MAX, 1, &out));
    assert_int_equal(out, 42);
    assert_true(sd_mul_size(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(sd_mul_size(SIZE_MAX, 0, &out) && out == 0);
    assert_null(sd_alloc(SIZE_MAX / 4, 8, &e));
    assert_int_equal(e.code, SD_ENOMEM);
    assert_null(sd_alloc_raw(SIZE_MAX, 1, &e));
    assert_int_equal(e.code, SD_ENOMEM);
    for (size_t n = 0; n < 300; n++) {
        unsigned char *p = sd_alloc(n, 1, &e);
        assert_non_null(p);
        assert_true(n < 64 || (uintptr_t)p % 64 == 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAA, n);
        sd_free(p);
    }
    sd_free(NULL);
    void *p = NULL;
    size_t cap = 0;
    for (size_t n = 1; n < 5000; n += 7) {
        assert_int_equal(sd_grow(&p, &cap, n, sizeof(int), &e), SD_OK);
        assert_true(cap >= n);
        ((int *)p)[n - 1] = (int)n;
    }
    for (size_t n = 1; n < 5000; n += 7)
        assert_int_equal(((int *)p)[n - 1], (int)n);
    void *before = p;
    size_t cap_before = cap;
    assert_int_equal(sd_grow(&p, &cap, SIZE_MAX / 2, sizeof(int), &e), SD_ENOMEM);
    assert_true(p == before && cap == cap_before);
    sd_free(p);
    char *s = sd_strndup("abcdef", 3, &e);
    assert_string_equal(s, "abc");
    sd_free(s);

    sd_arena *a = sd_arena_new(&e);
    unsigned char *prev = NULL;
    for (size_t n = 1; n < 70000; n = n * 3 + 1) {
        unsigned char *q = sd_arena_alloc(a, n, 1, &e);
        assert_non_null(q);
        assert_int_equal((uintptr_t)q % 16, 0);
        assert_true(q != prev);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(q[i], 0);
        memset(q, 0x55, n);
        prev = q;
    }
    assert_null(sd_arena_alloc(a, SIZE_MAX / 2, 16, &e));
    assert_int_equal(e.code, SD_ENOMEM);
    assert_string_equal(sd_arena_strndup(a, "xyz", 2, &e), "xy");
    sd_arena_free(a);
    sd_arena_free(NULL);
}

static void test_buf(void **state) {
    (void)state;
    sd_buf b = {0};
    sd_buf_put(&b, "", 0);
    sd_buf_puts(&b, "ab");
    sd_buf_putc(&b, 'c');
    sd_buf_printf(&b, "%d %s", 5, "x");
    assert_string_equal(b.p, "abc5 x");
    assert_int_equal(b.n, 6);
    char *big = malloc(100001);
    memset(big, 'z', 100000);
    big[100000] = '\0';
    sd_buf_printf(&b, "%s", big);
    assert_int_equal(b.n, 100006);
    assert_int_equal(b.p[100006], 0);
    free(big);
    sd_buf_clear(&b);
    assert_string_equal(b.p, "");
    sd_err e;
    assert_int_equal(sd_buf_status(&b, &e), SD_OK);
    b.failed = true; /* sticky */
    sd_buf_puts(&b, "more");
    assert_int_equal(b.n, 0);
    assert_int_equal(sd_buf_status(&b, &e), SD_ENOMEM);
    sd_buf_free(&b);
    assert_null(b.p);

    sd_buf_json_string(&b,
                       "a\"\\\n\t\x01\x7f\xff"
                       "é😀\0z",
                       16);
    assert_string_equal(b.p, "\"a\\\"\\\\\\n\\t\\u0001\\u007f\xEF\xBF\xBDé😀\\u0000z\"");
    sd_buf_free(&b);

    static const char rude[] = "a\x1b[1m\n\t\r\x7f\xff\xc2\x9b\\é";
    sd_buf_visible(&b, rude, sizeof rude - 1, false);
    assert_string_equal(b.p, "a\\x1b[1m\\n\\t\\r\\x7f\\xff\\u009b\\é");
    sd_buf_clear(&b);
    sd_buf_visible(&b, rude, sizeof rude - 1, true);
    assert_string_equal(b.p, "a\\x1b[1m\n\t\\r\\x7f\\xff\\u009b\\é");
    sd_buf_free(&b);
}

/* Text of strangers: one line in messages, nothing that turns the reading direction; a Lua literal
 * that cannot be left. */
static void test_strangers(void **state) {
    (void)state;
    sd_buf b = {0};
    static const char name[] = "h\n\"]]\\\0\xe2\x80\xae\xe2\x80\xa8\x1b[2J\r\xff λ\xc2\x9b";
    sd_buf_lua_string(&b, name, sizeof name - 1);
    assert_string_equal(b.p,
                        "\"h\\n\\\"]]\\\\\\x00\\u{202e}\\u{2028}\\x1b[2J\\x0d\\xff λ\\u{9b}\"");
    sd_buf_clear(&b);
    sd_buf_visible(&b, name, sizeof name - 1, false);
    assert_string_equal(b.p, "h\\n\"]]\\\\x00\\u202e\\u2028\\x1b[2J\\r\\xff λ\\u009b");
    sd_buf again = {0}; /* escaped twice is escaped once */
    sd_buf_visible(&again, b.p, b.n, false);
    assert_string_equal(again.p, b.p);
    sd_buf_free(&again);
    sd_buf_free(&b);

    sd_err e = {0};
    sd_fail(&e, SD_EFORMAT, "tensor %s: too long", "a\nerror: forged\xe2\x80\xae\x1b[31m");
    assert_string_equal(e.text, "tensor a\\nerror: forged\\u202e\\x1b[31m: too long");
    sd_err_context(&e, "%s", "x\ny");
    assert_non_null(strstr(e.text, "x\\ny: tensor a\\n"));
    char long_name[3 * SD_ERR_TEXT];
    memset(long_name, 1, sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    sd_fail(&e, SD_EFORMAT, "%s", long_name); /* grows fourfold, stays inside, no cut escape */
    assert_true(strlen(e.text) < sizeof e.text && strlen(e.text) % 4 == 0);
}

static void test_shortest(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *text;
    } want[] = {{1e-5, "1e-05"},
                {0.1, "0.1"},
                {1.0 / 3, "0.3333333333333333"},
                {100000, "100000"},
                {-0.0, "-0"},
                {0.1 + 0.2, "0.30000000000000004"},
                {NAN, "null"},
                {5e-324, "4.94065645841247e-324"}};
    sd_buf b = {0};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        sd_buf_clear(&b);
        sd_buf_json_double(&b, want[i].x);
        assert_string_equal(b.p, want[i].text);
    }
    sd_buf_clear(&b);
    sd_buf_json_float(&b, 0.1f);
    assert_string_equal(b.p, "0.1");
    sd_buf_clear(&b);
    sd_buf_json_float(&b, 16777217.0f / 3);
    assert_string_equal(b.p, "5592405.5");
    sd_buf_free(&b);
}

static void test_utf8(void **state) {
    (void)state;
    /* Every code point there and back; surrogates are refused. */
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char t[4];
        uint32_t back = 0;
        size_t n = sd_utf8_put(c, t);
        bool surrogate = c >= 0xD800 && c <= 0xDFFF;
        if (sd_utf8_next(t, n, &back) != (surrogate ? 0 : n) || (!surrogate && back != c))
            fail_msg("U+%04X", (unsigned)c);
        for (size_t cut = 0; cut < n; cut++)
            if (sd_utf8_next(t, cut, NULL) != 0)
                fail_msg("U+%04X cut to %zu bytes", (unsigned)c, cut);
    }
    const char *bad[] = {"\xC0\x80",
                         "\xC1\xBF",
                         "\xE0\x80\x80",
                         "\xE0\x9F\xBF",
                         "\xF0\x80\x80\x80",
                         "\xF4\x90\x80\x80",
                         "\xF5\x80\x80\x80",
                         "\x80",
                         "\xBF",
                         "\xFF",
                         "\xC3(",
                         "\xE2\x82(",
                         "\xED\xA0\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(sd_utf8_next(bad[i], strlen(bad[i]), NULL), 0);
}

static void numbers(void) {
    double d;
    int64_t i;
    struct {
        const char *s;
        double v;
    } good[] = {{"0", 0},
                {"-1.5", -1.5},
                {"+2", 2},
                {".5", 0.5},
                {"5.", 5},
                {"1e3", 1000},
                {"1E-3", 1e-3},
                {"1e+2", 100},
                {"1e-400", 0},
                {"5e-324", 5e-324},
                {"1.7976931348623157e308", 1.7976931348623157e308},
                {"inf", INFINITY},
                {"-inf", -INFINITY},
                {"0.1000000000000000055511151231257827021181583404541015625000000000000000000000",
                 0.1}};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        if (!sd_parse_double(good[k].s, &d) || d != good[k].v)
            fail_msg("%s", good[k].s);
    }
    assert_true(sd_parse_double("nan", &d) && isnan(d));
    const char *bad[] = {"",       " 1", "1 ",    "1,5", "1.5.2",    "0x10",  "1e",
                         "e5",     ".",  "-",     "+-1", "1e400",    "1_000", "infinity",
                         "nan(1)", "1f", "1e5.0", "--1", "\302\2401"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        if (sd_parse_double(bad[k], &d))
            fail_msg("'%s' was taken for %g", bad[k], d);
    assert_true(sd_parse_i64("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(sd_parse_i64("9223372036854775807", &i) && i == INT64_MAX);
    assert_true(sd_parse_i64("+7", &i) && i == 7);
    const char *badi[] = {
        "", "9223372036854775808", "-9223372036854775809", "1.0", " 1", "1 ", "0x1", "-", "1e3"};
    for (size_t k = 0; k < sizeof badi / sizeof *badi; k++)
        if (sd_parse_i64(badi[k], &i))
            fail_msg("'%s'", badi[k]);

    sd_buf b = {0};
    sd_buf_json_double(&b, 0.1);
    sd_buf_putc(&b, ' ');
    sd_buf_json_double(&b, NAN);
    sd_buf_putc(&b, ' ');
    sd_buf_json_double(&b, -1.5e300);
    sd_buf_putc(&b, ' ');
    sd_buf_double(&b, 1.0 / 3, 4);
    sd_buf_putc(&b, ' ');
    sd_buf_double(&b, -INFINITY, 4);
    sd_buf_putc(&b, ' ');
    sd_buf_fixed(&b, 2.5, 2);
    assert_string_equal(b.p, "0.1 null -1.5e+300 0.3333 -inf 2.50");
    /* Round trips, bit for bit. */
    sd_rng r;
    sd_rng_seed(&r, 5);
    for (int k = 0; k < 20000; k++) {
        uint64_t u = sd_rng_u64(&r), w;
        double x, y = 0;
        memcpy(&x, &u, 8);
        if (!isfinite(x))
            continue;
        sd_buf_clear(&b);
        sd_buf_json_double(&b, x);
        if (!sd_parse_double(b.p, &y) || (memcpy(&w, &y, 8), w != u))
            fail_msg("%.17g became %s", x, b.p);
    }
    sd_buf_free(&b);
}

static void test_numbers(void **state) {
    (void)state;
    numbers();
    /* The same in a locale with a decimal comma, where the system has one. */
    const char *names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "ru_RU.UTF-8", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < 5 && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) && strcmp(localeconv()->decimal_point, ".") != 0;
    if (found)
        numbers();
    setlocale(LC_NUMERIC, "C");
}

static const char *const words[] = {"planes", "layers", "basis", "kind", "x", "truncate", NULL};

static const char *word(const void *ctx, size_t i) {
    return ((const char *const *)ctx)[i];
}

static void test_suggest(void **state) {
    (void)state;
    struct {
        const char *in, *out;
    } c[] = {{"plane", "planes"}, {"plaens", "planes"},     {"lyers", "layers"}, {"Basis", "basis"},
             {"knid", "kind"},    {"trunkate", "truncate"}, {"zzzzzz", NULL},    {"", NULL},
             {"q", NULL},         {"truncat", "truncate"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *got = sd_suggest(c[i].in, word, words);
        if ((got == NULL) != (c[i].out == NULL) || (got && strcmp(got, c[i].out) != 0))
            fail_msg("%s: %s", c[i].in, got ? got : "nothing");
    }
    char longname[300];
    memset(longname, 'a', 299);
    longname[299] = '\0';
    assert_null(sd_suggest(longname, word, words));
}

static void test_ranges(void **state) {
    (void)state;
    sd_err e;
    bool m[12];
    struct {
        const char *in, *out;
    } ok[] = {{"all", "111111111111"}, {"0", "100000000000"},   {"0-3,7", "111100010000"},
              {"11", "000000000001"},  {"3-3", "000100000000"}, {" 1 - 2 , 4 ", "011010000000"},
              {"5,5", "000001000000"}, {"0-11", "111111111111"}};
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        char got[13] = "";
        if (sd_parse_ranges(ok[i].in, "layer", 12, m, &e) != SD_OK)
            fail_msg("%s: %s", ok[i].in, e.text);
        for (int k = 0; k < 12; k++)
            got[k] = m[k] ? '1' : '0';
        assert_string_equal(got, ok[i].out);
    }
    const char *bad[] = {"",
                         "12",
                         "0-12",
                         "3-1",
                         "-1",
                         "a",
                         "1,",
                         ",1",
                         "1-",
                         "1--2",
                         "1.5",
                         "1 2",
                         "99999999999999999999",
                         "all,1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (sd_parse_ranges(bad[i], "layer", 12, m, &e) != SD_EINVAL || !strstr(e.text, "layer"))
            fail_msg("'%s'", bad[i]);
    assert_int_equal(sd_parse_ranges("12", "layer", 12, m, &e), SD_EINVAL);
    assert_string_equal(e.text, "expected layer 0..11, got 12");
}

static void test_rng(void **state) {
    (void)state;
    /* xoshiro256** from splitmix64(42): values of the authors' C code. */
    sd_rng r, q;
    sd_rng_seed(&r, 42);
    const uint64_t first[4] = {UINT64_C(0x15780b2e0c2ec716), UINT64_C(0x6104d9866d113a7e),
                               UINT64_C(0xae17533239e499a1), UINT64_C(0xecb8ad4703b360a1)};
    for (int i = 0; i < 4; i++)
        assert_true(sd_rng_u64(&r) == first[i]);
    sd_rng_stream(&r, 1, 2, 3);
    sd_rng_stream(&q, 1, 2, 3);
    assert_true(sd_rng_u64(&r) == sd_rng_u64(&q));
    sd_rng_stream(&q, 1, 3, 2);
    sd_rng_stream(&r, 1, 2, 3);
    assert_true(sd_rng_u64(&r) != sd_rng_u64(&q));
    double s1 = 0, s2 = 0, s3 = 0, s4 = 0, u1 = 0;
    enum { N = 200000 };
    int hist[7] = {0};
    sd_rng_seed(&r, 9);
    for (int i = 0; i < N; i++) {
        double g = sd_rng_gauss(&r), u = sd_rng_uniform(&r);
        assert_true(u >= 0.0 && u < 1.0);
        s1 += g, s2 += g * g, s3 += g * g * g, s4 += g * g * g * g, u1 += u;
        hist[sd_rng_below(&r, 7)]++;
    }
    assert_true(fabs(s1 / N) < 4 / sqrt(N));
    assert_true(fabs(s2 / N - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(s3 / N) < 4 * sqrt(15.0 / N));
    assert_true(fabs(s4 / N - 3) < 4 * sqrt(96.0 / N));
    assert_true(fabs(u1 / N - 0.5) < 4 * sqrt(1.0 / 12 / N));
    double chi = 0;
    for (int i = 0; i < 7; i++)
        chi += (hist[i] - N / 7.0) * (hist[i] - N / 7.0) / (N / 7.0);
    assert_true(chi < 30);
    assert_int_equal(sd_rng_below(&r, 1), 0);
}

static void test_hash(void **state) {
    (void)state;
    struct {
        const char *in, *hex;
    } c[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[65];
    sd_sha256 s;
    for (size_t i = 0; i < 3; i++) {
        sd_sha256_init(&s);
        sd_sha256_add(&s, c[i].in, strlen(c[i].in));
        sd_sha256_hex(&s, hex);
        assert_string_equal(hex, c[i].hex);
    }
    /* A million a, in pieces of every size. */
    char a[1000];
    memset(a, 'a', sizeof a);
    sd_sha256_init(&s);
    size_t done = 0;
    for (size_t k = 0; done < 1000000; k = (k + 37) % 997) {
        size_t n = k < 1000000 - done ? k : 1000000 - done;
        sd_sha256_add(&s, a, n);
        done += n;
    }
    sd_sha256_hex(&s, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    /* hash64: each bit of the input and of the seed matters. */
    unsigned char p[40] = {0};
    for (size_t n = 0; n <= 40; n++) {
        uint64_t h = sd_hash64(p, n, 1);
        assert_true(h != sd_hash64(p, n, 2));
        assert_true(n == 40 || h != sd_hash64(p, n + 1, 1));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            p[bit / 8] ^= (unsigned char)(1u << bit % 8);
            uint64_t g = sd_hash64(p, n, 1);
            p[bit / 8] ^= (unsigned char)(1u << bit % 8);
            int flips = __builtin_popcountll(g ^ h);
            if (flips < 10 || flips > 54)
                fail_msg("n %zu bit %zu: %d bits change", n, bit, flips);
        }
    }
    assert_true(sd_hash64(NULL, 0, 3) == sd_hash64(p, 0, 3));
}

static void on_log(void *ctx, sd_log_level level, const char *text) {
    assert_int_equal(level, SD_LOG_WARN);
    strcpy(ctx, text);
}

static void on_progress(void *ctx, const char *what, double done, double total) {
    sprintf(ctx, "%s %g/%g", what, done, total);
}

static void test_run(void **state) {
    (void)state;
    char text[100] = "";
    sd_run r = {.threads = 3, .log = on_log, .progress = on_progress, .ctx = text};
    sd_run_log(&r, SD_LOG_WARN, "%d heads", 4);
    assert_string_equal(text, "4 heads");
    sd_run_progress(&r, "probe", 1, 2);
    assert_string_equal(text, "probe 1/2");
    assert_int_equal(sd_run_threads(&r), 3);
    assert_true(sd_run_threads(NULL) >= 1);
    sd_run_log(NULL, SD_LOG_INFO, "x");
    sd_run_progress(NULL, "x", 0, 0);
    sd_err e;
    assert_int_equal(sd_check_cancel(&e), SD_OK);
    sd_cancel_flag = 1;
    assert_int_equal(sd_check_cancel(&e), SD_ECANCEL);
    assert_string_equal(e.text, "interrupted");
    sd_cancel_flag = 0;
}

/* Every name comes back with its own number, before and after the table grows and is cleared. */
static void test_map(void **state) {
    (void)state;
    enum { N = 5000 };
    static char name[N][16];
    sd_err err = {0};
    sd_map m = {0};
    assert_int_equal(sd_map_get(&m, "a"), -1);
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "name.%d", i);
        assert_int_equal(sd_map_reserve(&m, (size_t)i + 1, &err), SD_OK);
        assert_int_equal(sd_map_get(&m, name[i]), -1);
        assert_int_equal(sd_map_put(&m, name[i], i), -1);
    }
    for (int i = 0; i < N; i++) {
        char copy[16];
        strcpy(copy, name[i]); // compared by content
        assert_int_equal(sd_map_get(&m, copy), i);
    }
    assert_int_equal(sd_map_put(&m, "name.7", 9), 7); // the first stays
    assert_int_equal(sd_map_get(&m, "name.7"), 7);
    assert_int_equal(sd_map_get(&m, ""), -1);
    assert_true(m.n == N && m.n_slot >= 2 * N);
    sd_map_clear(&m);
    assert_int_equal(sd_map_get(&m, "name.7"), -1);
    assert_int_equal(sd_map_put(&m, "name.7", 9), -1);
    assert_int_equal(sd_map_get(&m, "name.7"), 9);
    sd_map_free(&m);
    assert_int_equal(sd_map_get(&m, "name.7"), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),    cmocka_unit_test(test_mem),
        cmocka_unit_test(test_buf),       cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_shortest),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_suggest),
        cmocka_unit_test(test_ranges),    cmocka_unit_test(test_rng),
        cmocka_unit_test(test_hash),      cmocka_unit_test(test_run),
        cmocka_unit_test(test_map),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
