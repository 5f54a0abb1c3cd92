/* repl.c: evaluation and the prompt (SHELL §1). */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "shell/shell.h"

/* ---- compiling and calling
 * ------------------------------------------------------------------------ */

static bool ends_at_eof(lua_State *L, int status) {
    if (status != LUA_ERRSYNTAX)
        return false;
    size_t n;
    const char *msg = lua_tolstring(L, -1, &n);
    static const char mark[] = "<eof>";
    size_t k = sizeof mark - 1;
    return (n >= k && strcmp(msg + n - k, mark) == 0) ||
           (n >= k + 1 && strcmp(msg + n - k - 1, "<eof>'") == 0); /* unfinished long string */
}

/* The newline before the end keeps an unfinished short string from looking like unfinished input.
 */
chunk_state shell_compile(lua_State *L, const char *src, size_t n, const char *name, bool *expr) {
    lua_pushliteral(L, "return ");
    lua_pushlstring(L, src, n);
    lua_pushliteral(L, "\n");
    lua_concat(L, 3);
    size_t len;
    const char *text = lua_tolstring(L, -1, &len);
    int st = luaL_loadbufferx(L, text, len, name, "t");
    lua_remove(L, -2);
    *expr = st == LUA_OK;
    if (st == LUA_OK)
        return CHUNK_READY;
    bool incomplete = ends_at_eof(L, st);
    lua_pop(L, 1);

    lua_pushlstring(L, src, n);
    lua_pushliteral(L, "\n");
    lua_concat(L, 2);
    text = lua_tolstring(L, -1, &len);
    st = luaL_loadbufferx(L, text, len, name, "t");
    lua_remove(L, -2);
    if (st == LUA_OK)
        return CHUNK_READY;
    return incomplete || ends_at_eof(L, st) ? CHUNK_INCOMPLETE : CHUNK_ERROR;
}

int shell_call(shell *s, int narg, int nres) {
    lua_State *L = s->L;
    int base = lua_gettop(L) - narg;
    lua_pushcfunction(L, sd_lua_message);
    lua_insert(L, base);
    shell_update_size(s);
    sd_lua_interrupt_begin(L);
    int st = lua_pcall(L, narg, nres, base);
    int code = st == LUA_OK ? 0 : sd_lua_exit_code(L, -1);
    sd_lua_interrupt_end(L);
    shell_clear_progress(s);
    lua_remove(L, base);
    return code;
}

/* ---- printing
 * --------------------------------------------------------------------------------------- */

static int show(lua_State *L) {
    sd_lua_show(L, 1);
    return 1;
}

static int print_json(shell *s, int i) {
    sd_buf b = {0};
    sd_err e = {0};
    sd_status st = sd_lua_json(s->L, i, &b, &e);
    if (st == SD_OK) {
        fwrite(b.p, 1, b.n, stdout);
        putchar('\n');
    } else {
        shell_report(s, e.text);
    }
    sd_buf_free(&b);
    return st == SD_OK ? 0 : sd_status_exit_code(st);
}

int shell_print_values(shell *s, int n) {
    lua_State *L = s->L;
    int first = lua_gettop(L) - n + 1, code = 0;
    luaL_checkstack(L, 10, "too many values to print");
    for (int i = 0; i < n && !code; i++) {
        if (s->json) {
            code = print_json(s, first + i);
            continue;
        }
        lua_pushcfunction(L, show);
        lua_pushvalue(L, first + i);
        code = shell_call(s, 1, 1); /* a user's __tostring may run, and may be interrupted */
        size_t len;
        const char *text = lua_tolstring(L, -1, &len);
        if (code) {
            shell_report(s, text);
        } else {
            fwrite(text, 1, len, stdout);
            if (len == 0 || text[len - 1] != '\n')
                putchar('\n');
        }
        lua_pop(L, 1);
    }
    return code;
}

/* _ is the last value, __ the one before, ___ the third; older ones may be collected. */
static void remember(lua_State *L, int i) {
    if (lua_isnil(L, i))
        return;
    i = lua_absindex(L, i);
    lua_pushglobaltable(L);
    lua_pushliteral(L, "__");
    lua_rawget(L, -2);
    lua_setfield(L, -2, "___");
    lua_pushliteral(L, "_");
    lua_rawget(L, -2);
    lua_setfield(L, -2, "__");
    lua_pushvalue(L, i);
    lua_setfield(L, -2, "_");
    lua_pop(L, 1);
}

static bool muted(const char *src) {
    size_t n = strlen(src);
    while (n && isspace((unsigned char)src[n - 1]))
        n--;
    return n && src[n - 1] == ';';
}

/* Is the one value a string that has just run over the screen? */
static bool was_streamed(const shell *s, int n) {
    size_t len;
    if (n != 1 || lua_type(s->L, -1) != LUA_TSTRING)
        return false;
    const char *text = lua_tolstring(s->L, -1, &len);
    return len > 0 && len == s->streamed.n && memcmp(text, s->streamed.p, len) == 0;
}

/* Calls the compiled chunk on the stack and prints what it gave. */
static int run_chunk(shell *s, const char *src, bool expr) {
    lua_State *L = s->L;
    int base = lua_gettop(L) - 1;
    sd_buf_clear(&s->streamed);
    int code = shell_call(s, 0, LUA_MULTRET);
    if (s->streamed.n && s->streamed.p[s->streamed.n - 1] != '\n')
        putchar('\n');
    if (code) {
        shell_report(s, lua_tostring(L, -1));
    } else {
        int n = lua_gettop(L) - base;
        if (n && expr)
            remember(L, base + 1);
        if (n && !muted(src) && !was_streamed(s, n))
            code = shell_print_values(s, n);
    }
    lua_settop(L, base);
    return code;
}

int shell_eval(shell *s, const char *src, const char *name) {
    bool expr;
    chunk_state st = shell_compile(s->L, src, strlen(src), name, &expr);
    if (st == CHUNK_READY)
        return run_chunk(s, src, expr);
    shell_report(s, lua_tostring(s->L, -1));
    lua_pop(s->L, 1);
    return 1;
}

/* ---- the prompt
 * ------------------------------------------------------------------------------------- */

static const char prompt1[] = "sd> ", prompt2[] = ">> ";

/* A pasted transcript: keeps what followed the prompts, drops what was printed. In place. */
static void strip_prompts(char *text) {
    if (strncmp(text, prompt1, 4) != 0)
        return;
    char *out = text;
    for (char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        size_t skip = strncmp(p, prompt1, 4) == 0 ? 4 : strncmp(p, prompt2, 3) == 0 ? 3 : 0;
        if (skip) {
            memmove(out, p + skip, n - skip);
            out += n - skip;
            *out++ = '\n';
        }
        p += n + (p[n] == '\n');
    }
    if (out > text)
        out--;
    *out = 0;
}

/* ?x, x? and a trailing name:method ask for help: the topic's start and length, or NULL. */
static const char *help_topic(const char *src, size_t *len) {
    while (isspace((unsigned char)*src))
        src++;
    size_t n = strlen(src);
    while (n && isspace((unsigned char)src[n - 1]))
        n--;
    if (n == 0 || memchr(src, '\n', n))
        return NULL;
    if (src[0] == '?') {
        *len = n - 1;
        return src + 1;
    }
    if (src[n - 1] == '?') {
        *len = n - 1;
        return src;
    }
    size_t i = 0, colon = 0;
    if (!isalpha((unsigned char)src[0]) && src[0] != '_')
        return NULL;
    for (; i < n; i++) {
        if (src[i] == ':' && !colon)
            colon = i;
        else if (!isalnum((unsigned char)src[i]) && src[i] != '_' && (src[i] != '.' || colon))
            return NULL;
    }
    if (!colon || colon + 1 == n || isdigit((unsigned char)src[colon + 1]))
        return NULL;
    *len = n;
    return src;
}

static void print_help(shell *s, const char *topic, size_t n) {
    lua_State *L = s->L;
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
    lua_getfield(L, -1, "topic");
    lua_remove(L, -2);
    lua_pushlstring(L, topic, n);
    if (shell_call(s, 1, 1) != 0)
        shell_report(s, lua_tostring(L, -1));
    else
        printf("%s\n", lua_tostring(L, -1));
    lua_pop(L, 1);
}

static bool starts_local(const char *src) {
    while (isspace((unsigned char)*src))
        src++;
    return strncmp(src, "local", 5) == 0 && isspace((unsigned char)src[5]);
}

/* ---- history: plain text, appended per input, private; failures are silent
 * -------------------------- */

enum { HISTORY_LINES = 5000 };

static char *history_path(void) {
    sd_buf b = {0};
    sd_err e = {0};
    if (sd_xdg_dir("state", &b, &e) != SD_OK || sd_mkdirs(b.p, &e) != SD_OK) {
        sd_buf_free(&b);
        return NULL;
    }
    sd_buf_puts(&b, "/history");
    if (sd_buf_status(&b, &e) != SD_OK) {
        sd_buf_free(&b);
        return NULL;
    }
    char *p = strdup(b.p);
    sd_buf_free(&b);
    return p;
}

static void history_append(const char *path, const char *src) {
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    size_t n = strlen(src);
    char *line = malloc(n + 2);
    if (line) {
        memcpy(line, src, n);
        line[n] = '\n';
        ssize_t k = write(fd, line, n + 1);
        (void)k;
        free(line);
    }
    close(fd);
}

static void startup_file(shell *s) {
    sd_buf b = {0};
    sd_err e = {0};
    if (sd_xdg_dir("config", &b, &e) == SD_OK) {
        sd_buf_puts(&b, "/init.lua");
        if (b.p && sd_path_exists(b.p)) {
            lua_pushfstring(s->L, "@%s", b.p);
            if (luaL_loadfilex(s->L, b.p, "t") != LUA_OK || shell_call(s, 0, 0) != 0)
                shell_report(s, lua_tostring(s->L, -1));
            lua_settop(s->L, 0);
        }
    }
    sd_buf_free(&b);
}

static void banner(shell *s) {
    size_t n = sd_plugin_count(s->session);
    int t = sd_run_threads(sd_session_run(s->session));
    printf("sd %s (Lua %s.%s), %d thread%s, %zu plugin%s. help() for help, Ctrl-D to leave.\n",
           SD_VERSION, LUA_VERSION_MAJOR, LUA_VERSION_MINOR, t, t == 1 ? "" : "s", n,
           n == 1 ? "" : "s");
}

int shell_repl(shell *s) {
    lua_State *L = s->L;
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    s->interactive = true;
    sd_lua_get(L)->interactive = true;
    if (terminal)
        sd_session_run(s->session)->stream = shell_stream;
    if (!s->quiet)
        banner(s);
    lineedit_start(terminal, shell_complete, s);
    char *history = terminal ? history_path() : NULL;
    if (history)
        lineedit_history_load(history, HISTORY_LINES);
    startup_file(s);

    sd_buf chunk = {0};
    for (;;) {
        char *line = NULL;
        fflush(stdout);
        le_result r = lineedit_read(chunk.n ? prompt2 : prompt1, &line);
        if (r == LE_EOF && !chunk.n)
            break;
        if (r != LE_LINE) { /* the unfinished chunk is dropped */
            sd_buf_clear(&chunk);
            continue;
        }
        strip_prompts(line);
        bool blank = line[strspn(line, " \t\r\n")] == 0;
        if (*line && !blank) {
            lineedit_history_add(line);
            history_append(history, line);
        }
        if (blank) { /* abandons an unfinished chunk */
            sd_buf_clear(&chunk);
            free(line);
            continue;
        }
        if (chunk.n)
            sd_buf_putc(&chunk, '\n');
        sd_buf_puts(&chunk, line);
        free(line);
        if (chunk.failed) {
            shell_report(s, "out of memory");
            sd_buf_free(&chunk);
            continue;
        }
        size_t len;
        const char *topic = help_topic(chunk.p, &len);
        if (topic) {
            print_help(s, topic, len);
            sd_buf_clear(&chunk);
            continue;
        }
        bool expr;
        chunk_state st = shell_compile(L, chunk.p, chunk.n, "=prompt", &expr);
        if (st == CHUNK_INCOMPLETE) {
            lua_pop(L, 1);
            continue;
        }
        if (st == CHUNK_ERROR) {
            shell_report(s, lua_tostring(L, -1));
        } else {
            bool local = !expr && starts_local(chunk.p);
            run_chunk(s, chunk.p, expr);
            if (local && !s->warned_local) {
                s->warned_local = true;
                fflush(stdout);
                fputs("note: a local lives for one input only; leave out `local` to keep it\n",
                      stderr);
            }
        }
        lua_settop(L, 0);
        sd_buf_clear(&chunk);
    }
    sd_buf_free(&chunk);
    free(history);
    return 0;
}
