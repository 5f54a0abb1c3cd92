/* system.c: plugins, threads, seed, memory, and what the embedded Lua needs from C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "lua/bind.h"
#include "nn/attn.h"
#include "num/blas.h"
#include "spectral/spectral.h"

static sd_session *session(lua_State *L) {
    return sd_lua_get(L)->session;
}

/* ---- plugins
 * ------------------------------------------------------------------------------------- */

static int plugin_load(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    sd_err e = {0};
    if (sd_plugin_load(session(L), path, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    sd_lua_bind_ops(L);
    sd_plugin_info i = sd_plugin_at(session(L), sd_plugin_count(session(L)) - 1);
    lua_pushstring(L, i.name);
    return 1;
}

static int plugin_unload(lua_State *L) {
    sd_err e = {0};
    if (sd_plugin_unload(session(L), luaL_checkstring(L, 1), &e) != SD_OK)
        return sd_lua_raise(L, &e);
    sd_lua_bind_ops(L);
    return 0;
}

static int plugin_reload(lua_State *L) {
    sd_err e = {0};
    sd_status st = sd_plugin_reload(session(L), luaL_checkstring(L, 1), &e);
    sd_lua_bind_ops(L);
    return st == SD_OK ? 0 : sd_lua_raise(L, &e);
}

static int plugin_list(lua_State *L) {
    sd_session *s = session(L);
    sd_table **b = sd_lua_box_table(L);
    sd_err e = {0};
    sd_table *t = *b = sd_table_new("plugins", &e);
    sd_status st = t ? SD_OK : SD_ENOMEM;
    static const struct {
        const char *name, *doc;
        sd_col_kind kind;
        bool wide;
    } cols[] = {{"name", "the plugin's name", SD_COL_STR, false},
                {"version", "its version", SD_COL_STR, false},
                {"abi", "the interface it was built for", SD_COL_STR, false},
                {"ops", "operations it brings", SD_COL_INT, false},
                {"kinds", "attention kinds it brings", SD_COL_INT, false},
                {"summary", "what it does", SD_COL_STR, false},
                {"path", "the file it came from", SD_COL_STR, true}};
    for (size_t i = 0; st == SD_OK && i < sizeof cols / sizeof *cols; i++)
        st =
            sd_table_add_column(t, cols[i].name, cols[i].kind, cols[i].doc, cols[i].wide, NULL, &e);
    for (size_t i = 0; st == SD_OK && i < sd_plugin_count(s); i++) {
        sd_plugin_info p = sd_plugin_at(s, i);
        char abi[32];
        int row;
        snprintf(abi, sizeof abi, "%d.%d", p.abi_major, p.abi_minor);
        st = sd_table_add_row(t, &row, &e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "name", p.name, &e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "version", p.version, &e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "abi", abi, &e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "summary", p.summary, &e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "path", p.path, &e);
        if (st == SD_OK) {
            sd_table_set_int(t, row, "ops", (int64_t)p.n_ops);
            sd_table_set_int(t, row, "kinds", (int64_t)p.n_kinds);
        }
    }
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

/* ---- settings
 * ------------------------------------------------------------------------------------- */

static int set_threads(lua_State *L) {
    sd_run *run = sd_session_run(session(L));
    if (!lua_isnoneornil(L, 1)) {
        lua_Integer n = luaL_checkinteger(L, 1);
        int most = 1024;
        if (n < 0 || n > most)
            return sd_lua_fail(L, SD_EINVAL, "threads: expected 0 (all) to %d, got %lld", most,
                               (long long)n);
        sd_run asked = {.threads = (int)n};
        int want = sd_run_threads(&asked), fit = sd_blas_reserve(want);
        if (fit < want && want > sd_run_threads(run))
            return sd_lua_fail(L, SD_ENOMEM, "threads: the address space has room for %d, not %d",
                               fit, want);
        run->threads = (int)n;
        sd_blas_threads(want);
    }
    lua_pushinteger(L, sd_run_threads(run));
    return 1;
}

static int set_seed(lua_State *L) {
    sd_run *run = sd_session_run(session(L));
    if (!lua_isnoneornil(L, 1)) {
        lua_Integer n = luaL_checkinteger(L, 1);
        if (n < 0)
            return sd_lua_fail(L, SD_EINVAL, "seed: expected an integer >= 0, got %lld",
                               (long long)n);
        run->seed = (uint64_t)n;
    }
    lua_pushinteger(L, (lua_Integer)run->seed);
    return 1;
}

static int memory(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    lua_createtable(L, 0, 5);
    lua_pushinteger(L, (lua_Integer)sd_lua_external(S));
    lua_setfield(L, -2, "external");
    lua_pushinteger(L, (lua_Integer)S->tensor_bytes);
    lua_setfield(L, -2, "tensors");
    lua_pushinteger(L, (lua_Integer)S->soft_max);
    lua_setfield(L, -2, "soft_max");
    lua_pushinteger(L, (lua_Integer)S->lua_bytes);
    lua_setfield(L, -2, "lua");
    lua_pushinteger(L, (lua_Integer)sd_peak_rss());
    lua_setfield(L, -2, "peak_rss");
    return 1;
}

static int wall_clock(lua_State *L) {
    lua_pushnumber(L, sd_now());
    return 1;
}

static int quit(lua_State *L) {
    int code = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)luaL_optinteger(L, 1, 0);
    fflush(stdout);
    exit(code); /* the shell's exit handler checks what was written */
    return 0;
}

/* ---- for the embedded Lua
 * --------------------------------------------------------------------------- */

static int in_fail(lua_State *L) {
    return sd_lua_fail(L, (sd_status)luaL_optinteger(L, 2, SD_EINVAL), "%s",
                       luaL_checkstring(L, 1));
}

/* internal.quote(s): a Lua literal; internal.visible(s): what a terminal may be given. */
static int push_buf(lua_State *L, sd_buf *b) {
    sd_err e = {0};
    sd_status st = sd_buf_status(b, &e);
    if (st == SD_OK)
        lua_pushlstring(L, b->p ? b->p : "", b->n);
    sd_buf_free(b);
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

static int in_quote(lua_State *L) {
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    sd_buf b = {0};
    sd_buf_lua_string(&b, s, n);
    return push_buf(L, &b);
}

static int in_visible(lua_State *L) {
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    sd_buf b = {0};
    sd_buf_visible(&b, s, n, true);
    return push_buf(L, &b);
}

static const char *list_at(const void *ctx, size_t i) {
    lua_State *L = (lua_State *)ctx;
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    lua_pop(L, 1);
    return s;
}

static int in_suggest(lua_State *L) {
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_pushstring(L, sd_suggest(luaL_checkstring(L, 1), list_at, L));
    return 1;
}

static int in_kinds(lua_State *L) {
    lua_newtable(L);
    for (size_t i = 0; sd_attn_at(i); i++) {
        lua_pushstring(L, sd_attn_at(i)->name);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

static int in_size(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    lua_pushinteger(L, S->width);
    lua_pushinteger(L, S->rows);
    return 2;
}

static int in_registry(lua_State *L) {
    if (lua_isinteger(L, 1)) {
        lua_rawgeti(L, LUA_REGISTRYINDEX, lua_tointeger(L, 1));
        return 1;
    }
    lua_getfield(L, LUA_REGISTRYINDEX, luaL_checkstring(L, 1));
    return 1;
}

/* internal.doc{name=, signature=, ...}: documentation of a function written in Lua. */
static int in_doc(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs");
    lua_getfield(L, 1, "name");
    lua_pushvalue(L, 1);
    lua_rawset(L, -3);
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs_of");
    if (lua_getfield(L, 1, "fn") != LUA_TNIL) {
        lua_getfield(L, 1, "name");
        lua_rawset(L, -3);
    }
    lua_pushnil(L);
    lua_setfield(L, 1, "fn");
    return 0;
}

/* internal.methods(class): the table of its methods. */
static int in_methods(lua_State *L) {
    luaL_getmetatable(L, luaL_checkstring(L, 1));
    if (lua_istable(L, -1))
        lua_getfield(L, -1, "methods");
    return 1;
}

static int in_write(lua_State *L) {
    size_t n;
    const char *path = luaL_checkstring(L, 1), *s = luaL_checklstring(L, 2, &n);
    sd_err e = {0};
    if (sd_write_file(path, s, n, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 0;
}

static int in_class(lua_State *L) {
    static const char *const classes[] = {SD_MT_TENSOR, SD_MT_TABLE, SD_MT_MODEL, SD_MT_TEXT,
                                          SD_MT_TOKENIZER};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (luaL_testudata(L, 1, classes[i])) {
            lua_pushstring(L, classes[i]);
            return 1;
        }
    return 0;
}

static int in_column(lua_State *L) {
    sd_buf b = {0};
    bool found = sd_column_doc(luaL_checkstring(L, 1), &b);
    if (found && b.p)
        lua_pushlstring(L, b.p, b.n);
    else
        lua_pushnil(L);
    sd_buf_free(&b);
    return 1;
}

static const sd_fn plugin_fns[] = {
    {"load", plugin_load, "plugin.load(file)", "Loads a plugin (.so) and binds its operations.",
     "A plugin is native code inside this process: load only what you trust. Loading is all or "
     "nothing; the error names file, plugin and cause.",
     "assert(not pcall(plugin.load, 'no-such-plugin.so'))", NULL},
    {"unload", plugin_unload, "plugin.unload(name)", "Takes a plugin's operations away.", NULL,
     "assert(not pcall(plugin.unload, 'no-such-plugin'))", NULL},
    {"reload", plugin_reload, "plugin.reload(name)", "Unloads a plugin and loads a fresh copy.",
     NULL, "assert(not pcall(plugin.reload, 'no-such-plugin'))", NULL},
    {"list", plugin_list, "plugin.list()", "The loaded plugins as a table.", NULL,
     "assert(plugin.list().columns[1] == 'name')", NULL},
    {NULL}};

static const sd_fn functions[] = {
    {"threads", set_threads, "threads([n])", "Gets or sets the threads used; 0 = all available.",
     "All available means the processors this process may use (affinity and cgroup).",
     "assert(threads() >= 1)", NULL},
    {"seed", set_seed, "seed([n])", "Gets or sets the session's seed, the default of every seed=.",
     NULL, "assert(seed() >= 0)", NULL},
    {"memory", memory, "memory()",
     "Bytes held: external (tensors and models), soft_max, lua, peak_rss.", NULL,
     "assert(memory().external >= 0)", NULL},
    {"clock", wall_clock, "clock()",
     "Seconds on the wall since some fixed moment, to time a piece of work.",
     "os.clock, Lua's own, adds up the time of all processors.",
     "t0 = clock(); assert(clock() >= t0)", NULL},
    {"quit", quit, "quit([code])", "Leaves the program.", NULL, "assert(quit)", NULL},
    {NULL}};

void sd_lua_open_system(lua_State *L) {
    sd_lua_register(L, functions, "");
    lua_newtable(L);
    sd_lua_register(L, plugin_fns, "plugin.");
    lua_setfield(L, -2, "plugin");
    lua_pushstring(L, SD_VERSION);
    lua_setfield(L, -2, "version");

    lua_newtable(L);
    static const luaL_Reg internal[] = {{"fail", in_fail},
                                        {"suggest", in_suggest},
                                        {"size", in_size},
                                        {"registry", in_registry},
                                        {"doc", in_doc},
                                        {"methods", in_methods},
                                        {"write", in_write},
                                        {"class", in_class},
                                        {"column", in_column},
                                        {"quote", in_quote},
                                        {"visible", in_visible},
                                        {"kinds", in_kinds},
                                        {NULL, NULL}};
    luaL_setfuncs(L, internal, 0);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd_internal");
}

/* ---- into the embedded Lua
 * ---------------------------------------------------------------------------- */

static void call_internal(lua_State *L, const char *fn, int i) {
    i = lua_absindex(L, i);
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
    lua_getfield(L, -1, fn);
    lua_remove(L, -2);
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
}

void sd_lua_show(lua_State *L, int i) {
    call_internal(L, "show", i);
}

void sd_lua_help(lua_State *L, int i) {
    call_internal(L, "help", i);
}
