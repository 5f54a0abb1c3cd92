/* main.c: the program: options, scripts, exit codes (SHELL §3), progress and messages. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/os.h"
#include "lua/embed.h"
#include "num/blas.h"
#include "shell/shell.h"

static const char usage[] =
    "usage: sd [options] [script [args]]\n"
    "  -e CODE         evaluate CODE and print its value (may be repeated)\n"
    "  -i              open the prompt after -e and script\n"
    "  -q, --quiet     no banner, no progress, no notes\n"
    "  --json          print values as JSON (result tables as arrays of row objects)\n"
    "  --threads N     threads to use (0: all available)\n"
    "  --seed N        seed of everything random that is not given one\n"
    "  --no-plugins    do not load plugins at the start\n"
    "  --no-progress   no progress lines\n"
    "  --help          this text\n"
    "  --help-man      the manual page's source\n"
    "  --version       versions of the program and what it is built on\n"
    "  --              end of options\n"
    "Without a script and with a terminal: the prompt. Without a terminal: the script is read "
    "from\n"
    "standard input. Exit: 0 ok, 1 error, 2 usage, 3 input file or format, 4 numerical failure,\n"
    "5 optional program missing, 6 output not written, 130 interrupted.\n";

/* ---- messages and progress
 * ------------------------------------------------------------------------- */

void shell_update_size(shell *s) {
    sd_lua *S = sd_lua_get(s->L);
    struct winsize w;
    bool tty = isatty(STDOUT_FILENO);
    S->width = 80;
    S->rows = 0;
    if (tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) {
        S->width = w.ws_col < 40 ? 40 : w.ws_col;
        S->rows = w.ws_row > 4 ? w.ws_row - 2 : 0;
    } else if (!tty) {
        int64_t c;
        const char *e = getenv("COLUMNS");
        if (e && sd_parse_i64(e, &c) && c >= 40 && c <= 10000)
            S->width = (int)c;
        else
            S->width = 120;
    }
}

void shell_clear_progress(shell *s) {
    if (s->line_shown && s->err_tty)
        fputs("\r\033[K", stderr);
    s->line_shown = false;
    s->started = 0;
}

void shell_report(shell *s, const char *message) {
    shell_clear_progress(s);
    fflush(stdout);
    if (!message)
        message = "(no message)";
    if (strcmp(message, "interrupted") == 0) {
        fprintf(stderr, "%s\n", message);
        return;
    }
    while (strncmp(message, "prompt:1: ", 10) == 0)
        message += 10; /* one line was typed: the place is known */
    const char *on = s->color ? "\033[1;31m" : "", *off = s->color ? "\033[0m" : "";
    sd_buf b = {0};
    sd_buf_visible(&b, message, strlen(message), true);
    fprintf(stderr, "%s%s%s %s\n", on, s->interactive ? "error:" : "sd:", off,
            b.p && !b.failed ? b.p : "(out of memory)");
    sd_buf_free(&b);
}

static void on_log(void *ctx, sd_log_level level, const char *text) {
    shell *s = ctx;
    if (s->quiet && level == SD_LOG_INFO)
        return;
    if (s->line_shown && s->err_tty)
        fputs("\r\033[K", stderr);
    s->line_shown = false;
    fflush(stdout);
    sd_buf b = {0};
    sd_buf_visible(&b, text, strlen(text), true);
    fprintf(stderr, "%s: %s\n", level == SD_LOG_WARN ? "warning" : "note", b.p ? b.p : "");
    sd_buf_free(&b);
}

static void span_text(double sec, char out[32]) {
    if (!(sec >= 0) || sec > 359999)
        snprintf(out, 32, "?");
    else if (sec < 60)
        snprintf(out, 32, "%.0f s", ceil(sec));
    else if (sec < 3600)
        snprintf(out, 32, "%d min %02d s", (int)(sec / 60), (int)fmod(sec, 60));
    else
        snprintf(out, 32, "%d h %02d min", (int)(sec / 3600), (int)fmod(sec / 60, 60));
}

/* The same activity goes on while the text up to a colon stays: "train: loss 3.2, …". */
static bool same_activity(const char *a, const char *b) {
    size_t n = strcspn(a, ":");
    return n == strcspn(b, ":") && strncmp(a, b, n) == 0;
}

/* A line that redraws itself on a terminal, after half a second; elsewhere a plain line now and
 * then. What was done before the first call (a resumed training) does not count for the time left.
 */
static void on_progress(void *ctx, const char *what, double at, double total) {
    shell *s = ctx;
    if (s->progress_off)
        return;
    double now = sd_now();
    if (s->started == 0 || !same_activity(what, s->what) || at < s->last_done) {
        s->started = now;
        s->last_shown = now;
        s->first_done = at;
        snprintf(s->what, sizeof s->what, "%s", what);
    }
    s->last_done = at;
    double age = now - s->started, since = now - s->last_shown;
    if (s->err_tty ? age < 0.5 || (s->line_shown && since < 0.1) : since < 30)
        return;
    s->last_shown = now;
    char left[32] = "?";
    double share = total > 0 ? at / total : 0;
    double since_start = total > 0 ? (at - s->first_done) / total : 0;
    if (since_start > 0)
        span_text(age * (1 - share) / since_start, left);
    fflush(stdout);
    if (s->err_tty) {
        struct winsize w;
        int cols = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
        char line[160];
        snprintf(line, sizeof line, "%s  %3.0f%%  %s left", what, 100 * share, left);
        fprintf(stderr, "\r%.*s\033[K", cols - 1, line);
        s->line_shown = true;
    } else {
        fprintf(stderr, "%s: %.0f%%, %s left\n", what, 100 * share, left);
    }
    fflush(stderr);
}

/* Control bytes are shown, not obeyed. */
void shell_stream(void *sh, const char *text, size_t n) {
    shell *s = sh;
    sd_buf b = {0};
    shell_clear_progress(s);
    sd_buf_visible(&b, text, n, true);
    if (b.n)
        fwrite(b.p, 1, b.n, stdout);
    fflush(stdout);
    sd_buf_free(&b);
    sd_buf_put(&s->streamed, text, n);
}

/* Whatever way the program ends, output that was not written is an error, said once. */
static void check_stdout(void) {
    bool bad = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) != 0)
        bad = true;
    if (!bad)
        return;
    int e = errno;
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (e == EPIPE || (poll(&p, 1, 0) > 0 && (p.revents & POLLERR) && e != ENOSPC))
        _exit(141); /* the reader went away: quiet */
    fprintf(stderr, "sd: standard output was not written: %s\n", strerror(e ? e : ENOSPC));
    fflush(stderr);
    _exit(6);
}

/* ---- options
 * -------------------------------------------------------------------------------------------- */

typedef struct options {
    bool interactive, quiet, json, no_plugins, no_progress, man;
    int64_t threads, seed;
    const char **code;
    int n_code, script; /* index of the script in argv, or argc */
} options;

static int bad_usage(const char *fmt, const char *what) {
    fputs("sd: ", stderr);
    fprintf(stderr, fmt, what);
    fputs("\n(sd --help lists the options)\n", stderr);
    return 2;
}

/* 0 = go on, 1 = done (help, version), 2 = wrong usage. */
static int read_options(int argc, char **argv, options *o) {
    int i = 1;
    for (; i < argc; i++) {
        const char *a = argv[i];
        if (a[0] != '-' || a[1] == 0)
            break;
        if (strcmp(a, "--") == 0) {
            i++;
            break;
        }
        const char *eq = strncmp(a, "--", 2) == 0 ? strchr(a, '=') : NULL;
        size_t n = eq ? (size_t)(eq - a) : strlen(a);
#define IS(name_) (n == sizeof name_ - 1 && strncmp(a, name_, n) == 0)
        if (IS("-e") || IS("--threads") || IS("--seed")) {
            const char *v = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!v)
                return bad_usage("option %s needs a value", a);
            if (IS("-e")) {
                o->code[o->n_code++] = v;
                continue;
            }
            int64_t *out = IS("--seed") ? &o->seed : &o->threads;
            if (!sd_parse_i64(v, out) || *out < 0 || (out == &o->threads && *out > 1024))
                return bad_usage(out == &o->seed ? "--seed: an integer >= 0 expected, got %s"
                                                 : "--threads: 0 to 1024 expected, got %s",
                                 v);
        } else if (eq) {
            return bad_usage("unknown option %s", a);
        } else if (IS("-i")) {
            o->interactive = true;
        } else if (IS("-q") || IS("--quiet")) {
            o->quiet = true;
        } else if (IS("--json")) {
            o->json = true;
        } else if (IS("--no-plugins")) {
            o->no_plugins = true;
        } else if (IS("--no-progress")) {
            o->no_progress = true;
        } else if (IS("--help-man")) {
            o->man = true;
        } else if (IS("--help") || IS("-h")) {
            fputs(usage, stdout);
            return 1;
        } else if (IS("--version") || IS("-v")) {
            printf("sd %s\n%s\n%s\nplugin interface %d.%d\n", SD_VERSION, LUA_RELEASE,
                   sd_blas_config(), SD_ABI_MAJOR, SD_ABI_MINOR);
            return 1;
        } else {
            return bad_usage("unknown option %s", a);
        }
#undef IS
    }
    o->script = i;
    return 0;
}

/* ---- scripts
 * -------------------------------------------------------------------------------------------- */

/* Source of a script, "-" = stdin (a pipe serves as well as a file). A first line of a file that
 * starts with # is skipped, as Lua does, but counted; on stdin only a #! line: #t is an expression
 * too. */
static int read_source(shell *s, const char *path, sd_buf *b) {
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(path, "rb");
    char part[65536];
    size_t n;
    sd_err e = {0};
    sd_status st = SD_OK;
    if (f)
        errno = 0;
    while (f && (n = fread(part, 1, sizeof part, f)) > 0)
        sd_buf_put(b, part, n);
    if (!f || ferror(f))
        st = sd_fail(&e, SD_EFILE, "%s: %s", from_stdin ? "standard input" : path, strerror(errno));
    else
        st = sd_buf_status(b, &e);
    if (f && !from_stdin)
        fclose(f);
    if (st != SD_OK) {
        shell_report(s, e.text);
        return sd_status_exit_code(st);
    }
    if (b->n && b->p[0] == '#' && (!from_stdin || (b->n > 1 && b->p[1] == '!')))
        for (size_t i = 0; i < b->n && b->p[i] != '\n'; i++)
            b->p[i] = ' ';
    return 0;
}

static int run_script(shell *s, int argc, char **argv, int script, bool from_stdin) {
    lua_State *L = s->L;
    const char *path = from_stdin ? "-" : argv[script];
    from_stdin = from_stdin || strcmp(path, "-") == 0;
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");

    sd_buf b = {0};
    int code = read_source(s, path, &b);
    if (code) {
        sd_buf_free(&b);
        return code;
    }
    lua_pushfstring(L, from_stdin ? "=stdin" : "@%s", path);
    const char *name = lua_tostring(L, -1), *src = b.p ? b.p : "";
    bool expr = false, text = b.n == strlen(src);
    int st;
    if (from_stdin && text && shell_compile(L, src, b.n, name, &expr) == CHUNK_READY && expr) {
        st = LUA_OK; /* `echo '1+1' | sd` prints its value */
    } else {
        lua_settop(L, 1);
        st = luaL_loadbufferx(L, src, b.n, lua_tostring(L, 1), "t");
    }
    sd_buf_free(&b);
    if (st != LUA_OK) {
        shell_report(s, lua_tostring(L, -1));
        lua_settop(L, 0);
        return 1;
    }
    int n = argc - script - 1, given = 0;
    luaL_checkstack(L, n + 8, "too many arguments");
    for (int i = 0; i < n && !from_stdin; i++, given++)
        lua_pushstring(L, argv[script + 1 + i]);
    code = shell_call(s, given, LUA_MULTRET);
    if (code)
        shell_report(s, lua_tostring(L, -1));
    else if ((expr || s->json) && lua_gettop(L) > 1)
        code = shell_print_values(s, lua_gettop(L) - 1);
    lua_settop(L, 0);
    return code;
}

static int print_man(shell *s) {
    lua_State *L = s->L;
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
    lua_getfield(L, -1, "man");
    lua_pushstring(L, strchr(usage, '\n') + 1);
    int code = shell_call(s, 1, 1);
    if (code)
        shell_report(s, lua_tostring(L, -1));
    else
        fputs(lua_tostring(L, -1), stdout);
    return code;
}

static int run(shell *s, const options *o, int argc, char **argv) {
    if (o->man)
        return print_man(s);
    int code = 0;
    for (int i = 0; i < o->n_code && !code; i++)
        code = shell_eval(s, o->code[i], "=prompt");
    bool in_tty = isatty(STDIN_FILENO), script = o->script < argc;
    if (!code && script)
        code = run_script(s, argc, argv, o->script, false);
    if (o->interactive)
        return code && (o->n_code || script) ? (shell_repl(s), code) : shell_repl(s);
    if (code || script || o->n_code)
        return code;
    if (in_tty)
        return shell_repl(s);
    return run_script(s, argc, argv, argc, true);
}

typedef struct job {
    shell *s;
    const options *o;
    int argc, code;
    char **argv;
} job;

/* Between the calls that are protected one by one, memory may end too: Lua would abort. */
static int protected_run(lua_State *L) {
    job *j = lua_touserdata(L, 1);
    lua_settop(L, 0);
    j->code = run(j->s, j->o, j->argc, j->argv);
    return 0;
}

/* Where the address space does not hold the work spaces of all threads, fewer are used. BLAS
 * workers beyond those were started before main, and may wait for room for ever, at the program's
 * end too: only a new start, or none of the usual end, gets rid of them. */
static void fit_threads(shell *s, sd_run *r, char **argv) {
    int want = sd_run_threads(r), fit = sd_blas_reserve(want);
    if (fit == want) {
        sd_blas_threads(want);
        return;
    }
    int started = sd_blas_threads(0), use = fit ? fit : 1;
    char n[16];
    snprintf(n, sizeof n, "%d", use);
    if (use < started && setenv("OPENBLAS_NUM_THREADS", n, 1) == 0)
        execv("/proc/self/exe", argv);
    if (fit == 0) {
        shell_report(s, "too little address space: OpenBLAS needs 128 MiB for each thread "
                        "(ulimit -v sets the limit)");
        fflush(stderr);
        _exit(1);
    }
    r->threads = fit;
    sd_blas_threads(fit);
    sd_run_log(r, SD_LOG_INFO, "the address space (ulimit -v) holds %d of %d threads", fit, want);
}

int main(int argc, char **argv) {
    setlocale(LC_CTYPE, ""); /* and nothing else: numbers stay as in C */
    atexit(check_stdout);
    options o = {.threads = -1, .seed = -1};
    o.code = calloc((size_t)argc + 1, sizeof *o.code);
    if (!o.code) {
        fputs("sd: out of memory\n", stderr);
        return 1;
    }
    int u = read_options(argc, argv, &o);
    if (u) {
        free(o.code);
        return u == 1 ? 0 : u;
    }
    sd_err e = {0};
    shell s = {.quiet = o.quiet, .json = o.json, .progress_off = o.quiet || o.no_progress};
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    s.err_tty = isatty(STDERR_FILENO);
    s.color = s.err_tty && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
    sd_lua_interrupt_install();
    int code = 1;
    if (sd_session_new(&s.session, &e) != SD_OK) {
        shell_report(&s, e.text);
        free(o.code);
        return sd_status_exit_code(e.code);
    }
    sd_run *r = sd_session_run(s.session);
    r->progress = on_progress;
    r->log = on_log;
    r->ctx = &s;
    if (o.threads >= 0)
        r->threads = (int)o.threads;
    if (o.seed >= 0)
        r->seed = (uint64_t)o.seed;
    fit_threads(&s, r, argv);
    if (!o.no_plugins && sd_plugin_load_all(s.session, &e) != SD_OK)
        shell_report(&s, e.text);
    s.L = sd_lua_new(s.session, &e);
    if (s.L) {
        shell_update_size(&s);
        job j = {.s = &s, .o = &o, .argc = argc, .argv = argv, .code = 1};
        lua_pushcfunction(s.L, protected_run);
        lua_pushlightuserdata(s.L, &j);
        if (lua_pcall(s.L, 1, 0, 0) != LUA_OK)
            shell_report(&s, lua_tostring(s.L, -1));
        code = j.code;
        shell_clear_progress(&s);
    } else {
        shell_report(&s, e.text);
    }
    sd_lua_close(s.L);
    sd_session_free(s.session);
    sd_buf_free(&s.streamed);
    free(o.code);
    return code;
}
