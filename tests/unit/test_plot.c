/* The gnuplot driver and the figures: whole files of every kind, hostile text in every slot, no
 * gnuplot, a dying gnuplot, a full disk, steadiness (CASES R02, R04; SHELL §4). */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/os.h"
#include "host/figures.h"

static char dir[64];
static sd_err err;

static const char *in_dir(const char *name) {
    static char path[4][512];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 512, "%s/%s", dir, name);
    return p;
}

static int setup(void **state) {
    (void)state;
    strcpy(dir, "/tmp/sd-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char p[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(p, sizeof p, "%s/%s", path, e->d_name);
        struct stat st;
        if (lstat(p, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(p);
        else
            unlink(p);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static int teardown(void **state) {
    (void)state;
    remove_tree(dir);
    return 0;
}

#define ok(x_)                        \
    do {                              \
        if ((x_) != SD_OK)            \
            fail_msg("%s", err.text); \
    } while (0)
#define has(text_, part_)                                          \
    do {                                                           \
        if (!strstr(text_, part_))                                 \
            fail_msg("\"%s\" does not hold \"%s\"", text_, part_); \
    } while (0)

static bool have_gnuplot(void) {
    const char *argv[] = {"gnuplot", "--version", NULL};
    int code;
    sd_buf out = {0};
    sd_status st = sd_spawn(argv, NULL, 20, &code, &out, NULL);
    sd_buf_free(&out);
    return st == SD_OK && code == 0;
}

static const char *const hostile[] = {
    "a`touch PWNED`b",
    "it's",
    "x\"y",
    "h_0 {",
    "two\nlines; system 'touch PWNED'",
    "100%% %d %s %n",
    "'; system('touch PWNED'); print '",
    "\\",
    "\\'",
    "''",
    "a''b",
    "a''; system('touch PWNED'); x = ''",
    "'''a'''b'",
    "'",
    "'; print 'x",
    "\"; system(\"touch PWNED\"); \"",
    "@macro $var ${x}",
    "#comment",
    "\x01\x02\x1b[31m",
    "bad \xff\xc3( utf-8",
    "日本語 λ σ",
    "<svg>&amp;</svg>]]>",
    "",
};
enum { N_HOSTILE = sizeof hostile / sizeof *hostile };

static void test_quote(void **state) {
    (void)state;
    static const char *const want[][2] = {
        {"plain", "'plain'"},       {"it's", "'it''s'"},
        {"a`b", "'a`b'"},           {"a\nb\tc", "'a b c'"},
        {"\xff", "'\xEF\xBF\xBD'"}, {"", "''"},
        {"\\n$x", "'\\n$x'"},       {"λ", "'λ'"},
        {"'a'", "(\"'\" . 'a''')"}, {"a''b", "('a' . \"''\" . 'b')"},
        {"''", "(\"''\" . '')"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        sd_buf b = {0};
        sd_plot_quote(&b, want[i][0]);
        assert_string_equal(b.p, want[i][1]);
        sd_buf_free(&b);
    }
}

/* A table as probe makes them, with `name` in every text slot. */
static sd_table *table(const char *name, int layers, int heads) {
    sd_table *t = sd_table_new("probe", &err);
    assert_non_null(t);
    ok(sd_table_heading(t, &err, "%s", name));
    ok(sd_table_meta_str(t, "model", name, &err));
    ok(sd_table_add_column(t, "layer", SD_COL_INT, "layer", false, NULL, &err));
    ok(sd_table_add_column(t, "head", SD_COL_INT, "head", false, NULL, &err));
    const char *const cols[] = {"pr", "pr_null", "pr_null_sd", "c_pr", "routing"};
    for (size_t i = 0; i < 5; i++)
        ok(sd_table_add_column(t, cols[i], SD_COL_NUM, name[0] ? name : "doc", false, NULL, &err));
    ok(sd_table_add_column(t, "planes", SD_COL_VEC, "planes", true, NULL, &err));
    ok(sd_table_add_column(t, "lambda_re", SD_COL_VEC, "re", true, NULL, &err));
    ok(sd_table_add_column(t, "lambda_im", SD_COL_VEC, "im", true, NULL, &err));
    for (int l = 0; l < layers; l++)
        for (int h = 0; h < heads; h++) {
            int row;
            ok(sd_table_add_row(t, &row, &err));
            sd_table_set_int(t, row, "layer", l);
            sd_table_set_int(t, row, "head", h);
            double pr = 2 + fabs(sin(l * 3 + h)) + (l == layers - 1 ? 4 : 0);
            sd_table_set_num(t, row, "pr", pr);
            sd_table_set_num(t, row, "pr_null", 9 + cos(l));
            sd_table_set_num(t, row, "pr_null_sd", 0.8);
            sd_table_set_num(t, row, "c_pr", pr + 0.5);
            sd_table_set_num(t, row, "routing", 0.5 + 0.4 * sin(l - h));
            double s[64], re[64], im[64];
            for (int i = 0; i < 64; i++) {
                s[i] = 5 * exp(-0.3 * i);
                re[i] = cos(i) * (64 - i) / 64.0;
                im[i] = (i % 2 ? 1 : -1) * sin(i / 2) * (64 - i) / 64.0;
            }
            ok(sd_table_set_vec(t, row, "planes", s, 64, &err));
            ok(sd_table_set_vec(t, row, "lambda_re", re, 64, &err));
            ok(sd_table_set_vec(t, row, "lambda_im", im, 64, &err));
        }
    return t;
}

static sd_plot *figure(const sd_table *t, int which, const char *title) {
    sd_plot *p = NULL;
    static const sd_figure_fn make[] = {sd_figure_rank, sd_figure_spectrum, sd_figure_heads};
    const sd_figure_args a = {.table = t, .title = title, .layer = 1, .head = 2};
    ok(sd_figure_plot(make[which], &a, &p, &err));
    return p;
}

static sd_status refused(sd_figure_fn make, sd_figure_args a) {
    sd_plot *p = NULL;
    sd_status st = sd_figure_plot(make, &a, &p, &err);
    assert_null(p);
    return st;
}

/* Draws to `name` in the test's folder; fig.gp of its bundle is returned (free with sd_buf_free).
 */
static sd_buf drawn(sd_figure_fn make, sd_figure_args a, const char *name, const sd_run *run) {
    sd_plot *p = NULL;
    char script[64];
    sd_buf b = {0};
    ok(sd_figure_plot(make, &a, &p, &err));
    ok(sd_plot_file(p, in_dir(name), run, &err));
    sd_plot_free(p);
    snprintf(script, sizeof script, "%.*s.plot/fig.gp", (int)(strchr(name, '.') - name), name);
    ok(sd_read_file(in_dir(script), 0, &b, &err));
    return b;
}

static char logged[4096];
static void keep_log(void *ctx, sd_log_level level, const char *text) {
    (void)ctx;
    assert_int_equal(level, SD_LOG_WARN);
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", text);
}

static void test_kinds(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    sd_table *t = table("a model", 6, 4);
    for (int f = 0; f < 3; f++) {
        const char *const kinds[] = {"png", "svg", "pdf", "txt"};
        for (size_t k = 0; k < 4; k++) {
            char name[32];
            snprintf(name, sizeof name, "f%d.%s", f, kinds[k]);
            sd_plot *p = figure(t, f, NULL);
            ok(sd_plot_file(p, in_dir(name), NULL, &err));
            sd_buf b = {0};
            ok(sd_read_file(in_dir(name), 0, &b, &err));
            assert_true(b.n > 500 && b.n < 500000);
            assert_true(sd_plot_whole(kinds[k], b.p, b.n));
            assert_false(sd_plot_whole(kinds[k], b.p, k < 3 ? b.n - 9 : 0));
            sd_buf_free(&b);
            sd_plot_free(p);
        }
        sd_plot *p = figure(t, f, NULL);
        sd_buf text = {0};
        ok(sd_plot_text(p, 78, 22, NULL, &text, &err));
        assert_true(text.p[0] != '\f' && strchr(text.p, '\n'));
        for (const char *s = text.p; *s;) { /* inside the width, in characters */
            size_t chars = 0;
            for (; *s && *s != '\n'; s++)
                chars += ((unsigned char)*s & 0xC0) != 0x80;
            assert_true(chars <= 78);
            s += *s == '\n';
        }
        sd_buf_free(&text);
        sd_plot_free(p);
    }
    sd_table_unref(t);
}

/* Redrawn from the bundle alone, moved elsewhere. */
static void test_bundle(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    sd_table *t = table("bundle", 5, 3);
    sd_plot *p = figure(t, 0, NULL);
    ok(sd_plot_file(p, in_dir("b.png"), NULL, &err));
    sd_plot_free(p);
    sd_table_unref(t);
    assert_int_equal(rename(in_dir("b.plot"), in_dir("moved")), 0);
    const char *argv[] = {"gnuplot", "-d", "fig.gp", NULL};
    int code = -1;
    sd_buf out = {0}, a = {0}, b = {0};
    ok(sd_spawn(argv, in_dir("moved"), 60, &code, &out, &err));
    assert_int_equal(code, 0);
    ok(sd_read_file(in_dir("moved/fig.png"), 0, &a, &err));
    ok(sd_read_file(in_dir("b.png"), 0, &b, &err));
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.p, b.p, a.n);
    sd_buf m = {0};
    ok(sd_read_file(in_dir("moved/manifest.json"), 0, &m, &err));
    has(m.p, "\"script\": \"fig.gp\"");
    sd_buf_free(&m);
    sd_buf_free(&out);
    sd_buf_free(&a);
    sd_buf_free(&b);
}

/* CASES R02: nothing executes, whatever stands in titles, names, headings, docs and file names. */
static void test_hostile(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    char cwd[500];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(dir), 0);
    for (int i = 0; i < N_HOSTILE; i++) {
        sd_table *t = table(hostile[i], 3, 3);
        for (int f = 0; f < 3; f++) {
            sd_plot *p = figure(t, f, i % 2 ? hostile[i] : NULL);
            sd_buf text = {0};
            ok(sd_plot_text(p, 80, 24, NULL, &text, &err));
            sd_buf_free(&text);
            sd_plot_free(p);
        }
        /* a file of that name (a NUL or '/' cannot be in one) */
        sd_plot *p = figure(t, 0, hostile[i]);
        char path[700];
        snprintf(path, sizeof path, "%s/%s.svg", dir, hostile[i]);
        if (!strchr(hostile[i], '/')) {
            ok(sd_plot_file(p, path, NULL, &err));
            assert_true(sd_path_exists(path));
        }
        sd_plot_free(p);
        sd_table_unref(t);
        assert_false(sd_path_exists("PWNED"));
    }
    sd_table *t = table("x", 2, 2);
    sd_plot *p = figure(t, 0, "it's h_0 {a}");
    ok(sd_plot_file(p, in_dir("typed.svg"), NULL, &err));
    sd_buf b = {0};
    ok(sd_read_file(in_dir("typed.svg"), 0, &b, &err));
    assert_non_null(strstr(b.p, "h_0 {a}")); /* as typed: no markup */
    sd_buf_free(&b);
    sd_plot_free(p);
    sd_table_unref(t);
    assert_int_equal(chdir(cwd), 0);
    /* no bundle holds it either */
    DIR *d = opendir(dir);
    struct dirent *e;
    while ((e = readdir(d))) {
        char q[700];
        snprintf(q, sizeof q, "%s/%s/PWNED", dir, e->d_name);
        assert_int_not_equal(access(q, F_OK), 0);
    }
    closedir(d);
}

static void fake_gnuplot(const char *script) {
    mkdir(in_dir("bin"), 0755);
    FILE *f = fopen(in_dir("bin/gnuplot"), "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    chmod(in_dir("bin/gnuplot"), 0755);
}

static sd_status draw_with_path(const char *path, const char *file) {
    char *old = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
    setenv("PATH", path, 1);
    sd_table *t = table("x", 2, 2);
    sd_plot *p = figure(t, 0, NULL);
    sd_err_clear(&err);
    sd_status st = sd_plot_file(p, file, NULL, &err);
    sd_plot_free(p);
    sd_table_unref(t);
    setenv("PATH", old, 1);
    free(old);
    return st;
}

/* CASES R04 */
static void test_missing_and_dying(void **state) {
    (void)state;
    char bin[600];
    snprintf(bin, sizeof bin, "%s/bin:/usr/bin:/bin", dir);
    assert_int_equal(draw_with_path("/nonexistent", in_dir("m.png")), SD_EMISSING);
    has(err.text, "gnuplot is not installed");
    has(err.text, "m.plot");
    assert_true(sd_path_exists(in_dir("m.plot/fig.gp")));
    assert_true(sd_path_exists(in_dir("m.plot/data1.txt")));
    assert_false(sd_path_exists(in_dir("m.png")));

    FILE *f = fopen(in_dir("d.png"), "w"); /* an older figure stays when the new one fails */
    fputs("old", f);
    fclose(f);
    fake_gnuplot("exit 3");
    assert_int_not_equal(draw_with_path(bin, in_dir("d.png")), SD_OK);
    has(err.text, "status 3 and said nothing");
    fake_gnuplot("echo '\"fig.gp\" line 4: undefined variable: x' >&2; exit 1");
    assert_int_not_equal(draw_with_path(bin, in_dir("d.png")), SD_OK);
    has(err.text, "undefined variable: x");
    fake_gnuplot("kill -9 $$");
    assert_int_not_equal(draw_with_path(bin, in_dir("d.png")), SD_OK);
    /* what a full disk leaves: status 0, no word, a cut file */
    fake_gnuplot("printf '\\211PNG\\r\\n\\032\\n0000000000000000000000000' > fig.png; exit 0");
    assert_int_equal(draw_with_path(bin, in_dir("d.png")), SD_EWRITE);
    has(err.text, "incomplete file of");
    fake_gnuplot("exit 0");
    assert_int_equal(draw_with_path(bin, in_dir("d.png")), SD_EWRITE);
    sd_buf b = {0};
    ok(sd_read_file(in_dir("d.png"), 0, &b, &err));
    assert_string_equal(b.p, "old");
    sd_buf_free(&b);
}

static void test_places(void **state) {
    (void)state;
    sd_table *t = table("x", 2, 2);
    sd_plot *p = figure(t, 0, NULL);
    assert_int_equal(sd_plot_file(p, in_dir("x.jpg"), NULL, &err), SD_EINVAL);
    has(err.text, ".png, .svg, .pdf or .txt");
    assert_int_equal(sd_plot_file(p, in_dir("png"), NULL, &err), SD_EINVAL);
    assert_int_equal(sd_plot_file(p, in_dir("no/such/folder/x.png"), NULL, &err), SD_EWRITE);
    mkdir(in_dir("folder.png"), 0755);
    assert_int_equal(sd_plot_file(p, in_dir("folder.png"), NULL, &err), SD_EWRITE);
    FILE *f = fopen(in_dir("taken.plot"), "w");
    fclose(f);
    assert_int_equal(sd_plot_file(p, in_dir("taken.png"), NULL, &err), SD_EWRITE);
    sd_plot_free(p);
    assert_int_equal(refused(sd_figure_rank, (sd_figure_args){.table = t, .column = "prr"}),
                     SD_EINVAL);
    has(err.text, "did you mean pr?");
    assert_int_equal(refused(sd_figure_spectrum, (sd_figure_args){.table = t, .layer = 7}),
                     SD_EINVAL);
    has(err.text, "no layer 7, head 0");
    assert_int_equal(refused(sd_figure_heads, (sd_figure_args){.table = t, .column = "planes"}),
                     SD_EINVAL);
    has(err.text, "holds no numbers");
    sd_table_unref(t);
    t = table("x", 0, 0);
    assert_int_equal(refused(sd_figure_rank, (sd_figure_args){.table = t}), SD_EINVAL);
    assert_int_equal(refused(sd_figure_heads, (sd_figure_args){.table = t}), SD_EINVAL);
    sd_table_unref(t);
}

/* A disk with no room: 6 in the exit code's terms, the old figure stays. A small tmpfs needs root;
 * RLIMIT_FSIZE in a child does the same to gnuplot and to our own files. */
static void test_no_room(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit r = {2000, 2000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &r);
        sd_table *t = table("x", 2, 2);
        sd_plot *p = figure(t, 0, NULL);
        sd_status st = sd_plot_file(p, in_dir("full.png"), NULL, &err);
        _exit(st == SD_EWRITE && err.text[0] && !sd_path_exists(in_dir("full.png")) ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_nonfinite(void **state) {
    (void)state;
    sd_plot *p = NULL;
    ok(sd_plot_new("x", &p, &err));
    const double v[6] = {1, NAN, 2, INFINITY, 3, -INFINITY};
    char name[64];
    ok(sd_plot_data(p, v, 3, 2, name, &err));
    assert_string_equal(name, "'data1.txt'");
    ok(sd_plot_matrix(p, v, 2, 3, name, &err));
    assert_string_equal(name, "'data2.bin'");
    assert_int_equal(sd_plot_nonfinite(p), 6);
    sd_plot_free(p);
    if (!have_gnuplot())
        return;
    /* a column without values in a layer, and a map with holes, still draw */
    sd_table *t = table("holes", 4, 3);
    sd_table_set_num(t, 0, "pr", NAN);
    sd_table_set_num(t, 1, "pr", NAN);
    sd_table_set_num(t, 2, "pr", NAN);
    for (int f = 0; f < 3; f += 2) {
        p = figure(t, f, NULL);
        ok(sd_plot_file(p, in_dir("holes.png"), NULL, &err));
        sd_plot_free(p);
    }
    sd_table_unref(t);
}

/* Each curve beside its own null; the line of minimal rank is the table's; its caveats are there.
 */
static void test_own_null(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    sd_table *t = table("m", 3, 2);
    ok(sd_table_add_column(t, "c_pr_null", SD_COL_NUM, "n", false, NULL, &err));
    for (int r = 0; r < sd_table_rows(t); r++)
        sd_table_set_num(t, r, "c_pr_null", 4321);
    ok(sd_table_meta_num(t, "tau", 4.25, &err));
    ok(sd_table_note(t, &err, "a caveat of the table"));
    sd_buf b = drawn(sd_figure_rank, (sd_figure_args){.table = t}, "own.svg", NULL), d = {0};
    has(b.p, "'null of pr'");
    has(b.p, "'null of c_pr'");
    has(b.p, "up to 4.25");
    has(b.p, "a caveat of the table");
    sd_buf_free(&b);
    for (int i = 1; i < 8 && !d.n; i++) { /* the null of the centred rank is among the data */
        char name[64];
        snprintf(name, sizeof name, "own.plot/data%d.txt", i);
        ok(sd_read_file(in_dir(name), 0, &d, &err));
        if (!strstr(d.p, " 4321"))
            sd_buf_clear(&d);
    }
    assert_true(d.n > 0);
    sd_buf_free(&d);
    ok(sd_read_file(in_dir("own.plot/manifest.json"), 0, &b, &err));
    has(b.p, "a caveat of the table");
    sd_buf_free(&b);
    b = drawn(sd_figure_rank, (sd_figure_args){.table = t, .column = "routing"}, "own.svg", NULL);
    assert_null(strstr(b.p, "minimal rank")); /* a share has none */
    sd_buf_free(&b);
    sd_table_unref(t);
}

/* A null that was not asked for is not "not finite"; missing and non-finite values are counted. */
static void test_left_out(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    const sd_run run = {.log = keep_log};
    sd_table *t = sd_table_new("own", &err);
    const char *const cols[] = {"layer", "head", "x", "y", "y_null"};
    for (int i = 0; i < 5; i++)
        ok(sd_table_add_column(t, cols[i], i < 2 ? SD_COL_INT : SD_COL_NUM, "doc", false, NULL,
                               &err));
    for (int i = 0; i < 9; i++) {
        ok(sd_table_add_row(t, NULL, &err));
        sd_table_set_int(t, i, "layer", i / 3);
        sd_table_set_int(t, i, "head", i % 3);
        sd_table_set_num(t, i, "x", i);
        if (i != 4)
            sd_table_set_num(t, i, "y", i == 5 ? NAN : i == 6 ? -2 : i + 1);
    }
    logged[0] = 0;
    sd_buf b = drawn(sd_figure_rank, (sd_figure_args){.table = t, .column = "y"}, "lo.svg", &run);
    has(logged, "1 row has no y");
    has(logged, "1 value of y not finite");
    assert_null(strstr(logged, "null"));
    sd_buf_free(&b);
    logged[0] = 0;
    b = drawn(sd_figure_xy, (sd_figure_args){.table = t, .x = "x", .y = "y", .log = "y"}, "lo.svg",
              &run);
    has(logged, "1 value is not above zero: no place on a logarithmic axis");
    has(b.p, "set logscale y");
    has(b.p, "sd_xlabel = 'x'");
    has(b.p, "sd_ylabel = 'y'");
    sd_buf_free(&b);
    assert_int_equal(refused(sd_figure_xy, (sd_figure_args){.table = t, .x = "x", .y = "y_null"}),
                     SD_EINVAL);
    has(err.text, "y_null holds no finite value");
    assert_int_equal(refused(sd_figure_xy, (sd_figure_args){.table = t, .x = "x"}), SD_EINVAL);
    has(err.text, "the columns are layer head x y y_null");
    sd_table_unref(t);
}

/* Columns of 10,000 rows in under a second, and every figure of any table in every kind. */
static void test_any(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    enum { ROWS = 10000 };
    sd_table *t = sd_table_new("own", &err);
    ok(sd_table_add_column(t, "x", SD_COL_NUM, "x", false, NULL, &err));
    ok(sd_table_add_column(t, "y", SD_COL_NUM, "y", false, NULL, &err));
    ok(sd_table_add_column(t, "who", SD_COL_STR, "name", false, NULL, &err));
    for (int i = 0; i < ROWS; i++) {
        ok(sd_table_add_row(t, NULL, &err));
        sd_table_set_num(t, i, "x", i);
        sd_table_set_num(t, i, "y", 1 + fabs(sin(i * 12.9898) * 43.7));
        ok(sd_table_set_str(t, i, "who", hostile[i % (N_HOSTILE - 1)], &err));
    }
    static const char *const styles[] = {"points", "lines"};
    for (int i = 0; i < 2; i++) {
        double t0 = sd_now();
        sd_buf b =
            drawn(sd_figure_xy,
                  (sd_figure_args){.table = t, .x = "x", .y = "y", .log = "y", .style = styles[i]},
                  "many.png", NULL);
        double took = sd_now() - t0;
        print_message("10000 points (%s) in %.2f s\n", styles[i], took);
        assert_true(took < 5); /* under a second on a quiet machine */
        sd_buf_free(&b);
    }
    static const char *const kinds[] = {"any.png", "any.svg", "any.pdf", "any.txt"};
    for (int k = 0; k < 4; k++) {
        sd_figure_args a = {.table = t, .x = "who", .y = "y", .column = "y", .title = hostile[k]};
        static const sd_figure_fn make[] = {sd_figure_xy, sd_figure_bars, sd_figure_hist};
        for (int f = 0; f < 3; f++) {
            sd_buf b = drawn(make[f], a, kinds[k], NULL);
            sd_buf_free(&b);
        }
        a.by = "who";
        a.x = "x";
        sd_buf b = drawn(sd_figure_xy, a, kinds[k], NULL);
        sd_buf_free(&b);
        assert_int_not_equal(access("PWNED", F_OK), 0);
        assert_int_not_equal(access(in_dir("any.plot/PWNED"), F_OK), 0);
    }
    assert_int_equal(refused(sd_figure_bars, (sd_figure_args){.table = t, .x = "x", .y = "y"}),
                     SD_EINVAL);
    has(err.text, "more than 200 different values");
    sd_table_unref(t);
}

/* A row, a column and a cell draw; a logarithmic scale names at least three values and its range.
 */
static void test_map(void **state) {
    (void)state;
    if (!have_gnuplot())
        skip();
    static const int64_t shapes[][2] = {{1, 1}, {1, 7}, {7, 1}, {2, 2}, {3, 1200}};
    static const char *const kinds[] = {"map.png", "map.svg", "map.pdf", "map.txt"};
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 4; k++) {
            sd_tensor *t = NULL;
            ok(sd_tensor_new(SD_F64, 2, shapes[i], &t, &err));
            double *v = t->data;
            for (int64_t j = 0; j < shapes[i][0] * shapes[i][1]; j++)
                v[j] = 0.5 + (double)j;
            sd_buf b =
                drawn(sd_figure_map, (sd_figure_args){.tensor = t, .log = k % 2 ? "z" : NULL},
                      kinds[k], NULL);
            if (k % 2) {
                const char *p = strstr(b.p, "set cbtics (");
                assert_non_null(p);
                int commas = 0;
                for (; *p != ')'; p++)
                    commas += *p == ',';
                assert_true(commas >= 2);
                has(b.p, "logarithmic'");
            }
            if (i == 4)
                has(b.p, "means over blocks of 1 rows and 2 columns");
            sd_buf_free(&b);
            sd_tensor_free(t);
        }
    sd_table *t = table("one", 1, 1);
    sd_buf b = drawn(sd_figure_heads, (sd_figure_args){.table = t}, "map.png", NULL);
    sd_buf_free(&b);
    sd_table_unref(t);
    t = table("row", 1, 9);
    b = drawn(sd_figure_heads, (sd_figure_args){.table = t}, "map.svg", NULL);
    sd_buf_free(&b);
    sd_table_unref(t);
}

/* A gnuplot without cairo: the plainer terminal is in the script, and when that is missing too the
 * message names both and the way out. */
static void test_no_cairo(void **state) {
    (void)state;
    char bin[600];
    snprintf(bin, sizeof bin, "%s/bin:/usr/bin:/bin", dir);
    fake_gnuplot("echo '\"fig.gp\" line 3: unknown or ambiguous terminal type; type just ...' >&2; "
                 "exit 1");
    assert_int_equal(draw_with_path(bin, in_dir("c.png")), SD_EMISSING);
    has(err.text, "neither of the terminals pngcairo and png");
    has(err.text, ".svg");
    has(err.text, "c.plot/fig.gp");
    sd_buf b = {0};
    ok(sd_read_file(in_dir("c.plot/fig.gp"), 0, &b, &err));
    has(b.p, "strstrt(GPVAL_TERMINALS, 'pngcairo') == 0) { set terminal png ");
    sd_buf_free(&b);
}

static void test_decimate(void **state) {
    (void)state;
    enum { N = 10000, B = 100 };
    double *xy = malloc(sizeof *xy * 2 * N), *out = malloc(sizeof *out * 4 * B);
    for (int i = 0; i < N; i++) {
        xy[2 * i] = i;
        xy[2 * i + 1] = i == 5123 ? 99 : i == 777 ? -99 : sin(i);
    }
    size_t n = sd_plot_decimate(xy, N, B, out);
    assert_true(n <= 2 * B && n >= B);
    double lo = 0, hi = 0;
    for (size_t i = 0; i < n; i++) {
        lo = fmin(lo, out[2 * i + 1]);
        hi = fmax(hi, out[2 * i + 1]);
        assert_true(i == 0 || out[2 * i] > out[2 * i - 2]);
    }
    assert_true(lo == -99 && hi == 99); /* no peak is lost */
    assert_int_equal(sd_plot_decimate(xy, 150, B, out), 150);
    free(xy);
    free(out);
}

static int open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* CASES R04: many plots leave neither files open nor zombies (a fake gnuplot keeps this quick). */
static void test_steady(void **state) {
    (void)state;
    char bin[600];
    snprintf(bin, sizeof bin, "%s/bin:/usr/bin:/bin", dir);
    fake_gnuplot("echo a figure > fig.txt");
    char *old = strdup(getenv("PATH"));
    setenv("PATH", bin, 1);
    sd_table *t = table("x", 2, 2);
    int before = open_files();
    for (int i = 0; i < 500; i++) {
        sd_plot *p = figure(t, 0, NULL);
        sd_buf text = {0};
        ok(sd_plot_text(p, 60, 20, NULL, &text, &err));
        assert_string_equal(text.p, "a figure\n");
        sd_buf_free(&text);
        sd_plot_free(p);
    }
    setenv("PATH", old, 1);
    free(old);
    sd_table_unref(t);
    assert_int_equal(open_files(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child at all */
    assert_int_equal(errno, ECHILD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quote),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_bundle),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_missing_and_dying),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_own_null),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_any),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_no_cairo),
        cmocka_unit_test(test_decimate),
        cmocka_unit_test(test_steady),
    };
    return cmocka_run_group_tests_name("plot", tests, setup, teardown);
}
