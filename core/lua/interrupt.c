/* interrupt.c: Ctrl-C (SHELL §2).
 *
 * The handler sets the cancellation flag and a hook on the *running* coroutine. The hook raises for
 * as long as the flag is set, so a pcall that swallows the error meets it again at its next
 * instruction; whoever takes over from a dying coroutine gets the hook too. The shell clears the
 * flag when the chunk has ended. Nothing ever jumps out of a library call: C loops poll the flag,
 * and a single library call that may be long runs in a child process that can be killed.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "lua/bind.h"

/* A signal handler has nowhere else to look. */
static lua_State *volatile running;
static volatile sig_atomic_t presses, job_pid;
static struct timespec first_press;
static pthread_t main_thread;

static void hook(lua_State *L, lua_Debug *ar) {
    (void)ar;
    if (sd_cancelled()) {
        sd_lua_get(L)->status = SD_ECANCEL;
        lua_pushliteral(L, "interrupted");
        lua_error(L);
    }
    lua_sethook(L, NULL, 0, 0);
}

static void set_hook(lua_State *L) {
    lua_sethook(L, hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

static void say(const char *s) {
    ssize_t n = write(STDERR_FILENO, s, strlen(s));
    (void)n;
}

static void on_sigint(int sig) {
    int saved = errno;
    if (!pthread_equal(pthread_self(), main_thread)) {
        /* A BLAS worker was picked (the main thread had the signal blocked): hand it over, so that
         * the hook is set and pselect is woken where it matters. */
        pthread_kill(main_thread, sig);
        errno = saved;
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double since = (double)(now.tv_sec - first_press.tv_sec) +
                   1e-9 * (double)(now.tv_nsec - first_press.tv_nsec);
    if (!sd_cancel_flag)
        presses = 0;
    if (presses >= 2 && since > 2) /* a new series */
        presses = 1;
    if (presses <= 1)
        first_press = now;
    sd_cancel_flag = 1;
    presses++;
    if (running) {
        set_hook(running);
        if (presses == 2)
            say("\nstopping: waiting for a safe point (a third Ctrl-C within 2 s ends the "
                "program)\n");
        else if (presses >= 3) {
            if (job_pid > 0)
                kill((pid_t)job_pid, SIGKILL);
            say("\nended\n");
            _exit(130);
        }
    }
    errno = saved;
}

/* A reader of our output that went away ends the program quietly; any other broken pipe (a child
 * that died) is an ordinary write error. */
static void on_sigpipe(int sig) {
    (void)sig;
    int saved = errno;
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) > 0 && (p.revents & POLLERR))
        _exit(141);
    errno = saved;
}

void sd_lua_interrupt_install(void) {
    main_thread = pthread_self();
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_sigint;
    sigaction(SIGINT, &sa, NULL);
    sa.sa_handler = on_sigpipe;
    sa.sa_flags = SA_RESTART;
    sigaction(SIGPIPE, &sa, NULL);
}

lua_State *sd_lua_running(lua_State *L) {
    return running ? running : L;
}

void sd_lua_interrupt_begin(lua_State *L) {
    sd_cancel_flag = 0;
    presses = 0;
    lua_sethook(L, NULL, 0, 0);
    sd_lua_get(L)->status = SD_OK;
    running = L;
}

void sd_lua_interrupt_end(lua_State *L) {
    running = NULL;
    sd_cancel_flag = 0;
    presses = 0;
    lua_sethook(L, NULL, 0, 0);
}

/* ---- coroutine.resume, wrap, close: as Lua's own, but it is known which coroutine runs --------
 */

/* After control came back to L. */
static void came_back(lua_State *L) {
    running = L;
    if (sd_cancelled())
        set_hook(L);
}

/* Results or the error value on L's stack; -1 on error. */
static int resume(lua_State *L, lua_State *co, int narg) {
    int nres;
    if (!lua_checkstack(co, narg)) {
        lua_pushliteral(L, "too many arguments to resume");
        return -1;
    }
    lua_xmove(L, co, narg);
    lua_State *outer = running;
    running = co;
    if (sd_cancelled())
        set_hook(co);
    int status = lua_resume(co, L, narg, &nres);
    running = outer;
    if (outer)
        came_back(L);
    if (status == LUA_OK || status == LUA_YIELD) {
        if (!lua_checkstack(L, nres + 1)) {
            lua_pop(co, nres);
            lua_pushliteral(L, "too many results to resume");
            return -1;
        }
        lua_xmove(co, L, nres);
        return nres;
    }
    lua_xmove(co, L, 1);
    return -1;
}

static lua_State *check_co(lua_State *L) {
    lua_State *co = lua_tothread(L, 1);
    luaL_argexpected(L, co, 1, "coroutine");
    return co;
}

static int co_resume(lua_State *L) {
    lua_State *co = check_co(L);
    int n = resume(L, co, lua_gettop(L) - 1);
    lua_pushboolean(L, n >= 0);
    lua_insert(L, n < 0 ? -2 : -(n + 1));
    return n < 0 ? 2 : n + 1;
}

static int close_co(lua_State *L, lua_State *co) {
    lua_State *outer = running;
    running = co;
    int status = lua_resetthread(co);
    running = outer;
    if (outer)
        came_back(L);
    return status;
}

static int wrapped(lua_State *L) {
    lua_State *co = lua_tothread(L, lua_upvalueindex(1));
    int n = resume(L, co, lua_gettop(L));
    if (n >= 0)
        return n;
    int status = lua_status(co);
    if (status != LUA_OK && status != LUA_YIELD) { /* died by an error: run its to-be-closed */
        if (close_co(L, co) != LUA_OK) {
            lua_pop(L, 1);
            lua_xmove(co, L, 1);
        }
    }
    if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING && !sd_cancelled()) {
        luaL_where(L, 1);
        lua_insert(L, -2);
        lua_concat(L, 2);
    }
    return lua_error(L);
}

static int co_wrap(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_State *co = lua_newthread(L);
    lua_pushvalue(L, 1);
    lua_xmove(L, co, 1);
    lua_pushcclosure(L, wrapped, 1);
    return 1;
}

static int co_close(lua_State *L) {
    lua_State *co = check_co(L);
    lua_Debug ar;
    int status = lua_status(co);
    bool normal = status == LUA_OK && lua_getstack(co, 0, &ar); /* it resumed someone else */
    if (co == L || normal)
        return luaL_error(L, "cannot close a %s coroutine", co == L ? "running" : "normal");
    if (close_co(L, co) == LUA_OK) {
        lua_pushboolean(L, 1);
        return 1;
    }
    lua_pushboolean(L, 0);
    lua_xmove(co, L, 1);
    return 2;
}

void sd_lua_open_interrupt(lua_State *L) {
    lua_getglobal(L, "coroutine");
    static const luaL_Reg fns[] = {
        {"resume", co_resume}, {"wrap", co_wrap}, {"close", co_close}, {NULL, NULL}};
    luaL_setfuncs(L, fns, 0);
    lua_pop(L, 1);
}

/* ---- one long library call, in a child ----------------------------------------------------------
 */

static bool write_all(int fd, const void *p, size_t n) {
    const char *s = p;
    while (n) {
        ssize_t k = write(fd, s, n > (1u << 20) ? 1u << 20 : n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        s += k;
        n -= (size_t)k;
    }
    return true;
}

/* 1 whole, 0 the child ended early, -1 cancelled. */
static int read_all(int fd, void *p, size_t n) {
    char *s = p;
    while (n) {
        if (sd_cancelled())
            return -1;
        struct pollfd pf = {.fd = fd, .events = POLLIN};
        int r = poll(&pf, 1, 50);
        if (r <= 0)
            continue;
        ssize_t k = read(fd, s, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return 0;
        s += k;
        n -= (size_t)k;
    }
    return 1;
}

sd_status sd_lua_run_job(const char *what, sd_status (*fn)(void *ctx, sd_err *err), void *ctx,
                         sd_job_out *out, size_t n_out, sd_err *err) {
    int fd[2];
    if (pipe(fd) != 0)
        return sd_fail(err, SD_EINVAL, "%s: %s", what, strerror(errno));
    pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        return sd_fail(err, SD_EINVAL, "%s: no child process: %s", what, strerror(errno));
    }
    if (pid == 0) {
        signal(SIGINT, SIG_IGN); /* the parent decides */
        signal(SIGPIPE, SIG_DFL);
        close(fd[0]);
        sd_err e = {0};
        sd_status st = fn(ctx, &e);
        e.code = st;
        bool ok = write_all(fd[1], &e, sizeof e);
        for (size_t i = 0; ok && st == SD_OK && i < n_out; i++)
            ok = write_all(fd[1], out[i].p, out[i].n * sizeof(double));
        _exit(0);
    }
    job_pid = (sig_atomic_t)pid;
    close(fd[1]);
    sd_err e = {0};
    int got = read_all(fd[0], &e, sizeof e);
    for (size_t i = 0; got > 0 && e.code == SD_OK && i < n_out; i++)
        got = read_all(fd[0], out[i].p, out[i].n * sizeof(double));
    close(fd[0]);
    if (got <= 0)
        kill(pid, SIGKILL);
    int ws = 0;
    while (waitpid(pid, &ws, 0) < 0 && errno == EINTR)
        ;
    job_pid = 0;
    if (got < 0)
        return sd_check_cancel(err);
    if (got == 0)
        return sd_fail(err, SD_ENOMEM, "%s: the child process ended early (%s %d)", what,
                       WIFSIGNALED(ws) ? "signal" : "status",
                       WIFSIGNALED(ws) ? WTERMSIG(ws) : WEXITSTATUS(ws));
    if (e.code != SD_OK) {
        if (err)
            *err = e;
        return e.code;
    }
    return SD_OK;
}
