/* test_shell_pty.c: the prompt as a person meets it, on a pseudo-terminal: lines, continuation,
 * completion, and every case of interruption that SHELL §2 lists. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char home[] = "/tmp/sd-pty-XXXXXX";
static char program[512];

typedef struct term {
    int fd;
    pid_t pid;
    char *out;      /* everything seen */
    size_t n, mark; /* up to mark it was asked for already */
} term;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(double s) {
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static void start(term *t, const char *const *extra) {
    memset(t, 0, sizeof *t);
    t->out = calloc(1, 1 << 22);
    t->fd = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(t->fd >= 0);
    assert_int_equal(grantpt(t->fd), 0);
    assert_int_equal(unlockpt(t->fd), 0);
    char slave[128];
    snprintf(slave, sizeof slave, "%s", ptsname(t->fd));
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        setsid();
        int s = open(slave, O_RDWR);
        struct winsize w = {.ws_row = 40, .ws_col = 100};
        ioctl(s, TIOCSWINSZ, &w);
        for (int i = 0; i < 3; i++)
            dup2(s, i);
        close(t->fd);
        setenv("TERM", "dumb", 1);
        setenv("HOME", home, 1);
        unsetenv("XDG_STATE_HOME");
        unsetenv("XDG_CONFIG_HOME");
        unsetenv("COLUMNS");
        unsetenv("LINES");
        setenv("INPUTRC", "/dev/null", 1);
        const char *argv[12] = {program};
        for (int i = 0; extra && extra[i]; i++)
            argv[i + 1] = extra[i];
        execv(program, (char *const *)argv);
        _exit(127);
    }
}

/* Reads for up to `s` seconds or until nothing comes for `quiet`. */
static bool pump(term *t, double s) {
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    if (poll(&p, 1, (int)(s * 1000)) <= 0)
        return false;
    ssize_t n = read(t->fd, t->out + t->n, (1 << 22) - t->n - 1);
    if (n <= 0)
        return false;
    t->n += (size_t)n;
    t->out[t->n] = 0;
    return true;
}

static bool wait_for(term *t, const char *text, double s) {
    double end = now() + s;
    for (;;) {
        char *at = strstr(t->out + t->mark, text);
        if (at) {
            t->mark = (size_t)(at - t->out) + strlen(text);
            return true;
        }
        if (now() > end)
            return false;
        if (!pump(t, 0.05) && waitpid(t->pid, NULL, WNOHANG | WNOWAIT) == t->pid && !pump(t, 0.05))
            return strstr(t->out + t->mark, text) != NULL;
    }
}

#define EXPECT(t_, text_, s_)                                                                    \
    do {                                                                                         \
        if (!wait_for(t_, text_, s_)) {                                                          \
            fprintf(stderr, "expected \"%s\" after:\n%s\n---\n", text_, (t_)->out + (t_)->mark); \
            kill((t_)->pid, SIGKILL);                                                            \
            fail();                                                                              \
        }                                                                                        \
    } while (0)

static void type(term *t, const char *s) {
    size_t n = strlen(s);
    while (n) {
        ssize_t k = write(t->fd, s, n > 256 ? 256 : n);
        if (k < 0 && errno == EINTR)
            continue;
        assert_true(k > 0);
        s += k;
        n -= (size_t)k;
        while (pump(t, 0)) /* so that neither side blocks */
            ;
    }
}

static void prompt(term *t) {
    EXPECT(t, "sd> ", 10);
}

static int finish(term *t) {
    int st = -1;
    double end = now() + 10;
    while (waitpid(t->pid, &st, WNOHANG) == 0) {
        pump(t, 0.02);
        if (now() > end) {
            kill(t->pid, SIGKILL);
            waitpid(t->pid, &st, 0);
            break;
        }
    }
    close(t->fd);
    free(t->out);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

static const char *const plain[] = {"--no-plugins", "-q", NULL};
static bool slow(void) { /* sanitizers make everything slower */
    return getenv("SD_SANITIZED") != NULL;
}

/* ---- lines (CASES R07) ---- */

static void lines(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "1\r");
    EXPECT(&t, "1\r\n1\r\n", 5);
    prompt(&t);
    type(&t, "a = 7\r");
    prompt(&t);
    type(&t, "a\r");
    EXPECT(&t, "a\r\n7\r\n", 5);
    prompt(&t);
    type(&t, "for i=1,2 do\r");
    EXPECT(&t, ">> ", 5);
    type(&t, "print(i)\r");
    EXPECT(&t, ">> ", 5);
    type(&t, "end\r");
    EXPECT(&t, "\r\n1\r\n2\r\n", 5);
    prompt(&t);
    type(&t, "end\r");
    EXPECT(&t, "error:", 5);
    prompt(&t);
    type(&t, "x='abc\r"); /* an unfinished string is an error, not a continuation */
    EXPECT(&t, "unfinished string", 5);
    prompt(&t);
    type(&t, "1+\r"); /* unfinished as an expression only */
    EXPECT(&t, ">> ", 5);
    type(&t, "2\r");
    EXPECT(&t, "\r\n3\r\n", 5);
    prompt(&t);
    type(&t, "x = {\r");
    EXPECT(&t, ">> ", 5);
    type(&t, "\r"); /* an empty line abandons the chunk */
    prompt(&t);
    type(&t, "if true then\r");
    EXPECT(&t, ">> ", 5);
    type(&t, "\003"); /* so does Ctrl-C */
    EXPECT(&t, "^C", 2);
    prompt(&t);
    type(&t, "half a li\003"); /* and mid-line */
    EXPECT(&t, "^C", 2);
    prompt(&t);
    type(&t, "\003"); /* at an empty prompt */
    EXPECT(&t, "^C", 2);
    prompt(&t);
    type(&t, "while true do\r");
    EXPECT(&t, ">> ", 5);
    type(&t, "\004"); /* Ctrl-D abandons too */
    prompt(&t);
    type(&t, "6*7;\r"); /* muted, but remembered */
    prompt(&t);
    type(&t, "_\r");
    EXPECT(&t, "\r\n42\r\n", 5);
    prompt(&t);
    type(&t, "0/0\r");
    EXPECT(&t, "\r\nnan\r\n", 5);
    prompt(&t);
    type(&t, "local q = 1\r");
    EXPECT(&t, "note: a local lives", 5);
    prompt(&t);
    type(&t, "sd> a + 1\r"); /* a pasted prompt */
    EXPECT(&t, "\r\n8\r\n", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void long_line(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    char *s = malloc(20100);
    strcpy(s, "#'");
    memset(s + 2, 'x', 20000);
    strcpy(s + 20002, "'\r");
    type(&t, s);
    free(s);
    EXPECT(&t, "\r\n20000\r\n", slow() ? 60 : 20);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void completion(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "x_long_name = {alpha_field = 5}\r");
    prompt(&t);
    type(&t, "x_lo\t.alp\t\r");
    EXPECT(&t, "x_long_name.alpha_field\r\n5\r\n", 5);
    prompt(&t);
    type(&t, "a = ones(2)\r");
    prompt(&t);
    type(&t, "a:tota\t()[1]\r");
    EXPECT(&t, "a:totable()[1]\r\n1.0\r\n", 5);
    prompt(&t);
    type(&t, "zeros(2, {dty\t\"f3\t).dtype\r"); /* the option, then its choice; the quote closes */
    EXPECT(&t, "zeros(2, {dtype=\"f32\"", 5);
    type(&t, "\003");
    prompt(&t);
    /* completing never runs user code */
    type(&t, "bad = setmetatable({}, {__index = function() os.exit(3) end})\r");
    prompt(&t);
    type(&t, "bad.f\t");
    EXPECT(&t, "bad.f", 5);
    type(&t, "\003");
    prompt(&t);
    type(&t, "heads(nil, {dra\t");
    EXPECT(&t, "heads(nil, {draws=", 5);
    type(&t, "\003");
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void help_at_the_prompt(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "?matmul\r");
    EXPECT(&t, "Matrix product", 5);
    prompt(&t);
    type(&t, "svd?\r");
    EXPECT(&t, "Singular value decomposition", 5);
    prompt(&t);
    type(&t, "a = ones(2)\r");
    prompt(&t);
    type(&t, "a:reshape\r"); /* trapped at >> elsewhere */
    EXPECT(&t, "t:reshape(", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void history(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "first_entry = 1234\r");
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
    char path[600];
    snprintf(path, sizeof path, "%s/.local/state/sd/history", home);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    start(&t, plain);
    prompt(&t);
    type(&t, "\020\r"); /* Ctrl-P: the last line of the last session */
    prompt(&t);
    type(&t, "first_entry\r");
    EXPECT(&t, "1234\r\n", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
    /* not writable: silent */
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0); /* a folder in its place: root cannot write it either */
    start(&t, plain);
    prompt(&t);
    type(&t, "5\r");
    EXPECT(&t, "5\r\n5\r\n", 5);
    prompt(&t);
    assert_null(strstr(t.out, "history"));
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
    rmdir(path);
}

/* ---- interruption ---- */

/* Runs code, interrupts it after `after` seconds, wants the prompt back soon and the state whole.
 */
static void interrupt(term *t, const char *code, double after) {
    type(t, code);
    type(t, "\r");
    double end = now() + after;
    while (now() < end)
        pump(t, 0.02);
    size_t seen = t->n;
    type(t, "\003");
    double from = now();
    EXPECT(t, "interrupted", slow() ? 10 : 2);
    double took = now() - from;
    if (took > (slow() ? 3 : 0.5)) {
        fprintf(stderr, "%s: %.2f s until it stopped (%zu bytes before)\n", code, took, seen);
        fail();
    }
    prompt(t);
    type(t, "keep .. 'ing'\r");
    EXPECT(t, "\r\nkeeping\r\n", 5);
    prompt(t);
}

static void interruption(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "keep = 'keep'\r");
    prompt(&t);
    interrupt(&t, "while true do end", 0.3);
    interrupt(&t, "coroutine.wrap(function() while true do end end)()", 0.3);
    interrupt(&t,
              "co = coroutine.create(function() while true do end end) "
              "while true do coroutine.resume(co) end",
              0.3);
    interrupt(&t, "while true do pcall(function() while true do end end) end", 0.3);
    interrupt(&t, "repeat local ok = pcall(error, 'x') until false", 0.3);
    interrupt(&t,
              "coroutine.wrap(function() coroutine.wrap(function() while true do "
              "coroutine.wrap(function() while true do end end)() end end)() end)()",
              0.3);
    interrupt(
        &t,
        "while true do local c = coroutine.wrap(function() pcall(function() while true do end "
        "end) coroutine.yield(1) end) c() end",
        0.3);
    interrupt(&t, "s = '' while true do s = (s .. 'x'):rep(2):sub(1, 1000) end", 0.3);
    interrupt(
        &t, "while true do xpcall(function() while true do end end, function(e) return e end) end",
        0.3);
    interrupt(&t,
              "setmetatable({}, {__index = function(t, k) while true do end end}).x = nil "
              "local y = setmetatable({}, {__index = function(t, k) while true do end end}).x",
              0.3);
    interrupt(&t, "big = randn(2200, 2200) svd(big)", slow() ? 3 : 1.5); /* a child process */
    interrupt(&t, "pcall(svd, big) while true do end", 1.0);
    interrupt(&t, "while true do matmul(big, big) end", 1.0);
    type(&t, "eigh({{2,1},{1,2}}, {vectors=false})[1]\r"); /* the next one works */
    EXPECT(&t, "\r\n3.0\r\n", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void interruption_of_operations(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "keep = 'keep'\r");
    prompt(&t);
    type(&t, "m = open 'data/interim-sd'; x = text 'data/introduction.txt';\r");
    prompt(&t);
    interrupt(&t, "probe(m, x, {draws=100000, seqs=8})", 1.0);
    interrupt(&t, "while true do pcall(probe, m, x, {draws=100000, seqs=8}) end", 1.0);
    interrupt(&t, "while true do heads(m) end", 1.0);
    interrupt(&t, "while true do ppl(m, x) end", 1.0);
    interrupt(&t, "('a'):rep(30000):find(('a*'):rep(30) .. 'b')", 0.5);
    interrupt(&t, "('a'):rep(30000):gsub(('a-'):rep(30) .. 'b', 'x')", 0.5);
    interrupt(&t, "('a'):rep(2000000):find(('a'):rep(1000000) .. 'b', 1, true)", 0.5);
    interrupt(&t, "while true do s = ('x'):rep(1 << 26) end", 0.5);
    interrupt(&t, "s = '' while true do s = s .. ('x'):rep(100000) end", 0.5);
    type(&t, "s = nil\r");
    prompt(&t);
    interrupt(&t, "big = randn(200000000)", 0.5);
    interrupt(&t, "big = ones(60000000, {dtype='f32'}); while true do y = big * big end", 1.0);
    interrupt(&t, "big = rand(9000, 9000); y = matmul(big, big)", 3.0);
    type(&t, "big, y = nil, nil; collectgarbage()\r");
    prompt(&t);
    interrupt(&t, "n = train(m, {text=x, steps=100000, batch=2, ctx=64, draw=false})", 1.0);
    interrupt(&t, "while true do pcall(train, m, {text=x, steps=100000, batch=2, ctx=64}) end",
              1.0);
    type(&t, "nll(m, 'the same model still works') > 0\r");
    EXPECT(&t, "\r\ntrue\r\n", 20);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

/* A line with the time left appears after half a second, and is gone when the answer comes. */
static void progress(void **state) {
    (void)state;
    term t;
    const char *const args[] = {"--no-plugins", NULL};
    start(&t, args);
    prompt(&t);
    type(&t, "m = open 'data/interim-sd'; x = text 'data/introduction.txt';\r");
    prompt(&t);
    type(&t, "p = probe(m, x, {draws=4000, seqs=8})\r");
    EXPECT(&t, " left", 30);
    type(&t, "\003");
    EXPECT(&t, "\r\033[K", 5);
    EXPECT(&t, "interrupted", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

/* Text runs over the screen while it is made and is not shown twice; Ctrl-C ends the text and keeps
 * what there is. */
static void generating(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    type(&t, "m = open 'data/interim-sd';\r");
    prompt(&t);
    type(&t, "g = generate(m, 'The', {tokens=12, temperature=0});\r");
    EXPECT(&t, ", and the ", 10);
    prompt(&t);
    type(&t, "generate(m, 'The', {tokens=12, temperature=0})\r");
    EXPECT(&t, ", and the ", 10);
    size_t at = t.mark;
    prompt(&t);
    assert_null(strstr(t.out + at, "and the"));
    type(&t, "'the same', _ == g\r");
    EXPECT(&t, "true", 5);
    prompt(&t);
    type(&t, "x = generate(m, 'The', {tokens=253, eos=false, seed=1})\r");
    EXPECT(&t, " the ", 10);
    type(&t, "\003");
    prompt(&t);
    type(&t, "y = generate(m, 'The', {tokens=253, eos=false, seed=1});\r");
    prompt(&t);
    type(&t, "y:sub(1, #x) == x and #x > 4\r");
    EXPECT(&t, "\r\ntrue\r\n", 5);
    prompt(&t);
    nap(2.2); /* soon after the last one it would end the loop at once */
    type(&t, "while true do s = generate(m, 'The', {tokens=250, eos=false}) end\r");
    EXPECT(&t, " the ", 10);
    type(&t, "\003"); /* one text */
    nap(0.3);
    type(&t, "\003"); /* soon after: the loop */
    EXPECT(&t, "interrupted", 5);
    prompt(&t);
    type(&t, "#s > 0\r");
    EXPECT(&t, "\r\ntrue\r\n", 5);
    prompt(&t);
    type(&t, "\004");
    assert_int_equal(finish(&t), 0);
}

static void third_press_ends(void **state) {
    (void)state;
    term t;
    start(&t, plain);
    prompt(&t);
    /* one C call of Lua's own that polls nothing */
    type(&t, "table.move({}, 1, 1 << 40, 2)\r");
    nap(0.4);
    type(&t, "\003");
    nap(0.3);
    type(&t, "\003");
    EXPECT(&t, "stopping", 3);
    type(&t, "\003");
    assert_int_equal(finish(&t), 130);
}

static int setup(void **state) {
    (void)state;
    const char *b = getenv("SD_BUILD");
    snprintf(program, sizeof program, "%s/sd", b ? b : "build");
    return mkdtemp(home) && access(program, X_OK) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char cmd[600];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", home);
    return system(cmd) == 0 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),      cmocka_unit_test(long_line),
        cmocka_unit_test(completion), cmocka_unit_test(help_at_the_prompt),
        cmocka_unit_test(history),    cmocka_unit_test(interruption),
        cmocka_unit_test(generating), cmocka_unit_test(interruption_of_operations),
        cmocka_unit_test(progress),   cmocka_unit_test(third_press_ends),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
