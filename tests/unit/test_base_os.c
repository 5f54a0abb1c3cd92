/* core/base/os: files read and written, folders, other programs, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/run.h"

static char root[64];

static char *at(const char *name) {
    char *p = sd_path_join(root, name, NULL);
    assert_non_null(p);
    return p;
}

static int setup(void **state) {
    (void)state;
    strcpy(root, "/tmp/sd-os-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static void remove_all(const char *dir) {
    char **names;
    size_t n;
    chmod(dir, 0700);
    if (sd_list_dir(dir, &names, &n, NULL) != SD_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        char *p = sd_path_join(dir, names[i], NULL);
        struct stat st;
        if (lstat(p, &st) == 0 && S_ISDIR(st.st_mode))
            remove_all(p);
        else
            unlink(p);
        sd_free(p);
        sd_free(names[i]);
    }
    sd_free(names);
    rmdir(dir);
}

static int teardown(void **state) {
    (void)state;
    remove_all(root);
    return 0;
}

static size_t entries(const char *dir) {
    char **names;
    size_t n;
    assert_int_equal(sd_list_dir(dir, &names, &n, NULL), SD_OK);
    for (size_t i = 0; i < n; i++)
        sd_free(names[i]);
    sd_free(names);
    return n;
}

static void expect_file(const char *path, const char *text) {
    sd_buf b = {0};
    assert_int_equal(sd_read_file(path, 0, &b, NULL), SD_OK);
    assert_string_equal(b.p, text);
    sd_buf_free(&b);
}

static void test_read(void **state) {
    (void)state;
    sd_err e;
    char *p = at("data");
    assert_int_equal(sd_write_file(p, "0123456789", 10, &e), SD_OK);
    sd_file *f;
    assert_int_equal(sd_file_open(p, &f, &e), SD_OK);
    assert_int_equal(sd_file_size(f), 10);
    assert_string_equal(sd_file_path(f), p);
    char b[11] = "";
    assert_int_equal(sd_file_pread(f, 3, b, 4, &e), SD_OK);
    assert_string_equal(b, "3456");
    assert_int_equal(sd_file_pread(f, 10, b, 0, &e), SD_OK);
    assert_int_equal(sd_file_pread(f, 7, b, 4, &e), SD_EFILE); /* both numbers */
    assert_non_null(strstr(e.text, p));
    assert_non_null(strstr(e.text, "needs 4 bytes"));
    assert_non_null(strstr(e.text, "has 3"));
    assert_int_equal(sd_file_pread(f, UINT64_MAX, b, 4, &e), SD_EFILE);
    /* Cut short after opening: an error, no signal. */
    assert_int_equal(truncate(p, 2), 0);
    assert_int_equal(sd_file_pread(f, 0, b, 10, &e), SD_EFILE);
    sd_file_close(f);
    sd_file_close(NULL);

    assert_int_equal(sd_write_file(p, "0123456789", 10, &e), SD_OK);
    sd_buf buf = {0};
    sd_buf_puts(&buf, "head:");
    assert_int_equal(sd_read_file(p, 10, &buf, &e), SD_OK);
    assert_string_equal(buf.p, "head:0123456789");
    assert_int_equal(sd_read_file(p, 9, &buf, &e), SD_EFORMAT);
    assert_non_null(strstr(e.text, "10"));
    assert_non_null(strstr(e.text, "9"));
    sd_buf_free(&buf);
    assert_int_equal(sd_write_file(p, NULL, 0, &e), SD_OK);
    assert_int_equal(sd_read_file(p, 0, &buf, &e), SD_OK);
    assert_string_equal(buf.p, "");
    sd_buf_free(&buf);
    sd_free(p);

    /* Only regular files; a FIFO must not block. */
    p = at("fifo");
    assert_int_equal(mkfifo(p, 0600), 0);
    const char *bad[] = {"/nonexistent/x", root, p, "/dev/zero", ""};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(sd_file_open(bad[i], &f, &e), SD_EFILE);
        assert_null(f);
        assert_memory_equal(e.text, bad[i], strlen(bad[i]));
    }
    unlink(p);
    sd_free(p);
}

static void test_writer(void **state) {
    (void)state;
    sd_err e;
    char *dir = at("w"), *p = at("w/out");
    assert_int_equal(sd_mkdirs(dir, &e), SD_OK);
    assert_int_equal(sd_write_file(p, "old", 3, &e), SD_OK);
    chmod(p, 0640);
    sd_writer *w;
    assert_int_equal(sd_writer_open(p, &w, &e), SD_OK);
    char big[100000];
    memset(big, 'x', sizeof big);
    for (int i = 0; i < 5; i++)
        assert_int_equal(sd_writer_put(w, big, (size_t)(i * 21000), &e), SD_OK);
    expect_file(p, "old"); /* nothing changes before commit */
    assert_int_equal(entries(dir), 2);
    assert_int_equal(sd_writer_commit(w, &e), SD_OK);
    assert_int_equal(entries(dir), 1);
    struct stat st;
    assert_int_equal(stat(p, &st), 0);
    assert_int_equal(st.st_size, 210000);
    assert_int_equal(st.st_mode & 0777, 0640); /* keeps the mode of what it replaces */
    assert_int_equal(sd_writer_open(p, &w, &e), SD_OK);
    assert_int_equal(sd_writer_put(w, "new", 3, &e), SD_OK);
    sd_writer_abort(w);
    sd_writer_abort(NULL);
    assert_int_equal(entries(dir), 1);
    assert_int_equal(stat(p, &st), 0);
    assert_int_equal(st.st_size, 210000);
    mode_t mask = umask(027);
    char *q = at("w/fresh");
    assert_int_equal(sd_write_file(q, "1", 1, &e), SD_OK);
    umask(mask);
    assert_int_equal(stat(q, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    sd_free(q);
    /* A folder in the way, a missing folder. */
    assert_int_equal(sd_writer_open(dir, &w, &e), SD_EWRITE);
    assert_int_equal(sd_write_file("/nonexistent/a", "x", 1, &e), SD_EWRITE);
    assert_non_null(strstr(e.text, "/nonexistent/a"));
    /* Removed from under the writer: commit fails, leaves nothing. */
    char *sub = at("w/sub"), *r = at("w/sub/file");
    assert_int_equal(sd_mkdirs(sub, &e), SD_OK);
    assert_int_equal(sd_writer_open(r, &w, &e), SD_OK);
    remove_all(sub);
    assert_int_equal(sd_writer_put(w, "x", 1, &e), SD_OK);
    assert_int_equal(sd_writer_commit(w, &e), SD_EWRITE);
    sd_free(sub);
    sd_free(r);
    sd_free(dir);
    sd_free(p);
}

/* Devices are written in place: /dev/full is full, /dev/null stays a device. */
static void test_devices(void **state) {
    (void)state;
    sd_err e;
    struct stat st;
    assert_int_equal(sd_write_file("/dev/null", "x", 1, &e), SD_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    if (stat("/dev/full", &st) != 0)
        return;
    assert_int_equal(sd_write_file("/dev/full", "x", 1, &e), SD_EWRITE);
    assert_non_null(strstr(e.text, "/dev/full"));
    assert_non_null(strstr(e.text, strerror(ENOSPC)));
    sd_writer *w;
    char big[200000] = {0};
    assert_int_equal(sd_writer_open("/dev/full", &w, &e), SD_OK);
    assert_int_equal(sd_writer_put(w, big, sizeof big, &e), SD_EWRITE);
    assert_int_equal(sd_writer_put(w, big, 1, &e), SD_EWRITE); /* sticky */
    assert_int_equal(sd_writer_commit(w, &e), SD_EWRITE);
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

/* No room for the bytes (a file size limit stands in for a full disk): the old file stays, the
 * temporary one goes. */
static void test_no_space(void **state) {
    (void)state;
    sd_err e;
    char *dir = at("full"), *p = at("full/out");
    assert_int_equal(sd_mkdirs(dir, &e), SD_OK);
    assert_int_equal(sd_write_file(p, "old", 3, &e), SD_OK);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 50000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    static char big[300000];
    sd_status one = sd_write_file(p, big, sizeof big, &e);
    sd_writer *w;
    sd_status open = sd_writer_open(p, &w, NULL), put = SD_OK, commit = SD_OK;
    if (open == SD_OK) {
        for (int i = 0; i < 60 && put == SD_OK; i++)
            put = sd_writer_put(w, big, 1000, NULL); /* fails at commit at the latest */
        commit = sd_writer_commit(w, NULL);
    }
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(one, SD_EWRITE);
    assert_non_null(strstr(e.text, "out"));
    assert_int_equal(open, SD_OK);
    assert_int_equal(commit, SD_EWRITE);
    expect_file(p, "old");
    assert_int_equal(entries(dir), 1);
    sd_free(dir);
    sd_free(p);
}

static void test_paths(void **state) {
    (void)state;
    sd_err e;
    char *p = sd_path_join("a", "b", &e), *q = sd_path_join("a/", "b", &e);
    assert_string_equal(p, "a/b");
    assert_string_equal(q, "a/b");
    assert_string_equal(sd_path_base(p), "b");
    assert_string_equal(sd_path_base("x"), "x");
    sd_free(p);
    sd_free(q);
    p = at("m/a/b/c/");
    assert_int_equal(sd_mkdirs(p, &e), SD_OK);
    assert_int_equal(sd_mkdirs(p, &e), SD_OK);
    assert_true(sd_path_is_dir(p) && sd_path_exists(p));
    sd_free(p);
    p = at("m/file");
    assert_int_equal(sd_write_file(p, "x", 1, &e), SD_OK);
    assert_false(sd_path_is_dir(p));
    q = at("m/file/sub");
    assert_int_equal(sd_mkdirs(q, &e), SD_EWRITE);
    assert_int_equal(sd_mkdirs(p, &e), SD_EWRITE);
    sd_free(p);
    sd_free(q);
    p = at("m");
    char **names;
    size_t n;
    assert_int_equal(sd_list_dir(p, &names, &n, &e), SD_OK);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[1], "file");
    sd_free(names[0]);
    sd_free(names[1]);
    sd_free(names);
    assert_int_equal(sd_list_dir("/nonexistent", &names, &n, &e), SD_EFILE);
    sd_free(p);
    sd_buf b = {0};
    assert_int_equal(sd_program_dir(&b, &e), SD_OK);
    assert_true(b.p[0] == '/' && sd_path_is_dir(b.p));
    sd_buf_clear(&b);
    setenv("XDG_DATA_HOME", "/x/y", 1);
    assert_int_equal(sd_xdg_dir("data", &b, &e), SD_OK);
    assert_string_equal(b.p, "/x/y/sd");
    sd_buf_clear(&b);
    setenv("XDG_DATA_HOME", "relative", 1); /* to be ignored */
    setenv("HOME", "/home/u", 1);
    assert_int_equal(sd_xdg_dir("data", &b, &e), SD_OK);
    assert_string_equal(b.p, "/home/u/.local/share/sd");
    assert_int_equal(sd_xdg_dir("nonsense", &b, &e), SD_EINVAL);
    sd_buf_free(&b);
    assert_true(sd_cpu_count() >= 1);
    assert_true(sd_peak_rss() > 100000);
    double t = sd_now();
    assert_true(sd_now() >= t);
}

static void test_spawn(void **state) {
    (void)state;
    sd_err e;
    sd_buf out = {0};
    int code = -1;
    const char *echo[] = {"sh", "-c", "echo out; echo err >&2; cat; exit 7", NULL};
    assert_int_equal(sd_spawn(echo, NULL, 10, &code, &out, &e), SD_OK); /* stdin is /dev/null */
    assert_int_equal(code, 7);
    assert_string_equal(out.p, "out\nerr\n");
    sd_buf_clear(&out);
    const char *plain[] = {"printf", "%s|", "a b", "$(touch x)", "`id`", "'", NULL};
    assert_int_equal(sd_spawn(plain, NULL, 10, &code, &out, &e), SD_OK); /* no shell */
    assert_string_equal(out.p, "a b|$(touch x)|`id`|'|");
    sd_buf_clear(&out);
    const char *where[] = {"pwd", NULL};
    assert_int_equal(sd_spawn(where, root, 10, &code, &out, &e), SD_OK);
    assert_non_null(strstr(out.p, sd_path_base(root)));
    assert_int_equal(sd_spawn(where, "/nonexistent", 10, &code, &out, &e), SD_EFILE);
    const char *none[] = {"sd-no-such-program", NULL};
    assert_int_equal(sd_spawn(none, NULL, 10, &code, &out, &e), SD_EMISSING);
    assert_non_null(strstr(e.text, "sd-no-such-program"));
    const char *dead[] = {"sh", "-c", "kill -9 $$", NULL};
    assert_int_equal(sd_spawn(dead, NULL, 10, &code, NULL, &e), SD_OK);
    assert_int_equal(code, 128 + 9);
    /* A megabyte is kept, the rest read and dropped: the program does not block. */
    sd_buf_clear(&out);
    const char *loud[] = {"sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y", NULL};
    assert_int_equal(sd_spawn(loud, NULL, 20, &code, &out, &e), SD_OK);
    assert_int_equal(code, 0);
    assert_true(out.n >= 1 << 20 && out.n < (1 << 20) + 8192);
    /* Deadlines: also for one that closes its output, ignores signals or leaves children behind. */
    const char *slow[][4] = {{"sleep", "30", NULL, NULL},
                             {"sh", "-c", "exec >&- 2>&-; sleep 30", NULL},
                             {"sh", "-c", "trap '' TERM INT HUP; sleep 30; sleep 30", NULL}};
    for (size_t i = 0; i < 3; i++) {
        double t = sd_now();
        assert_int_equal(sd_spawn(slow[i], NULL, 0.3, &code, &out, &e), SD_EFILE);
        assert_true(sd_now() - t < 5);
        assert_int_equal(code, 128 + 9);
    }
    const char *orphan[] = {"sh", "-c", "sleep 30 & exit 3", NULL};
    double t = sd_now();
    assert_int_equal(sd_spawn(orphan, NULL, 20, &code, &out, &e), SD_OK);
    assert_int_equal(code, 3);
    assert_true(sd_now() - t < 5);
    /* Cancelled from a signal. */
    sd_cancel_flag = 1;
    t = sd_now();
    assert_int_equal(sd_spawn(slow[0], NULL, 20, &code, &out, &e), SD_ECANCEL);
    assert_true(sd_now() - t < 2);
    sd_cancel_flag = 0;
    /* Nothing is left: no zombie, no descriptor. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    size_t before = entries("/proc/self/fd");
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sd_spawn(where, NULL, 10, &code, NULL, &e), SD_OK);
        assert_int_equal(sd_spawn(none, NULL, 10, &code, NULL, &e), SD_EMISSING);
    }
    assert_int_equal(entries("/proc/self/fd"), before);
    sd_buf_free(&out);
}

typedef struct job {
    atomic_int count[1000];
    atomic_int total, workers[8];
    size_t fail_at, cancel_at;
} job;

static sd_status item(void *ctx, size_t i, int worker, sd_err *err) {
    job *j = ctx;
    atomic_fetch_add(&j->count[i], 1);
    atomic_fetch_add(&j->total, 1);
    atomic_fetch_add(&j->workers[worker], 1);
    if (i == j->cancel_at)
        sd_cancel_flag = 1;
    if (i == j->fail_at)
        return sd_fail(err, SD_ENUMERIC, "item %zu", i);
    struct timespec ms = {0, 100000};
    nanosleep(&ms, NULL);
    return SD_OK;
}

static void test_parallel(void **state) {
    (void)state;
    sd_err e;
    for (int threads = 0; threads <= 8; threads++) {
        job *j = calloc(1, sizeof *j);
        j->fail_at = j->cancel_at = SIZE_MAX;
        size_t n = threads == 5 ? 3 : 1000; /* also fewer items than threads */
        assert_int_equal(sd_parallel(n, threads, item, j, &e), SD_OK);
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(atomic_load(&j->count[i]), i < n);
        /* The first failure is returned and the rest not begun. */
        memset(j, 0, sizeof *j);
        j->fail_at = 20;
        j->cancel_at = SIZE_MAX;
        assert_int_equal(sd_parallel(1000, threads, item, j, &e), SD_ENUMERIC);
        assert_string_equal(e.text, "item 20");
        assert_true(atomic_load(&j->total) < 900);
        memset(j, 0, sizeof *j);
        j->fail_at = SIZE_MAX;
        j->cancel_at = 20;
        assert_int_equal(sd_parallel(1000, threads, item, j, &e), SD_ECANCEL);
        assert_true(atomic_load(&j->total) < 900);
        sd_cancel_flag = 0;
        free(j);
    }
    assert_int_equal(sd_parallel(0, 4, item, NULL, &e), SD_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),     cmocka_unit_test(test_writer),
        cmocka_unit_test(test_devices),  cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_paths),    cmocka_unit_test(test_spawn),
        cmocka_unit_test(test_parallel),
    };
    return cmocka_run_group_tests_name("os", tests, setup, teardown);
}
