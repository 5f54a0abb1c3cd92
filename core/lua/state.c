/* state.c: the Lua state: allocator, account of external memory, boxes, errors, environment. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/bind.h"
#include "lua/embed.h"

enum { SOFT_MAX_START = 256 << 20, MODELS_MAX_START = 50 };

/* ---- state ------------------------------------------------------------------------------------
 */

sd_lua *sd_lua_get(lua_State *L) {
    sd_lua *S;
    memcpy(&S, lua_getextraspace(L), sizeof S); /* threads inherit the main thread's copy */
    return S;
}

static void *allocate(void *ud, void *p, size_t osize, size_t nsize) {
    sd_lua *S = ud;
    size_t old = p ? osize : 0;
    if (nsize == 0) {
        free(p);
        S->lua_bytes -= old;
        return NULL;
    }
    void *q = realloc(p, nsize);
    if (q)
        S->lua_bytes += nsize - old;
    return q;
}

/* ---- account of external bytes ------------------------------------------------------------------
 */
/* A small open-addressing table keyed by storage, since views share one. Failure to grow it only
 * makes the account less exact. */

static size_t slot_of(const void *key, size_t cap) {
    return (size_t)(((uintptr_t)key >> 4) * (uintptr_t)0x9E3779B97F4A7C15u >> 7) & (cap - 1);
}

static struct sd_account *find_slot(struct sd_account *a, size_t cap, const void *key) {
    size_t i = slot_of(key, cap);
    while (a[i].key && a[i].key != key)
        i = (i + 1) & (cap - 1);
    return &a[i];
}

static bool grow_account(sd_lua *S) {
    size_t cap = S->acc_cap ? S->acc_cap * 2 : 64;
    struct sd_account *a = calloc(cap, sizeof *a);
    if (!a)
        return false;
    for (size_t i = 0; i < S->acc_cap; i++)
        if (S->acc[i].key)
            *find_slot(a, cap, S->acc[i].key) = S->acc[i];
    free(S->acc);
    S->acc = a;
    S->acc_cap = cap;
    return true;
}

size_t sd_lua_external(const sd_lua *S) {
    size_t n = S->tensor_bytes;
    for (const sd_box_model *b = S->models.next; b != &S->models; b = b->next)
        n += b->m ? sd_model_loaded_bytes(b->m) : 0;
    return n;
}

void sd_lua_check_memory(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    if (S->collecting || (S->n_models <= S->models_max && sd_lua_external(S) <= S->soft_max))
        return;
    S->collecting = true;
    lua_gc(L, LUA_GCCOLLECT);
    S->collecting = false;
    size_t live = sd_lua_external(S);
    while (live > S->soft_max / 10 * 8)
        S->soft_max = S->soft_max / 10 * 14;
    while (S->n_models > S->models_max / 10 * 8)
        S->models_max = S->models_max / 10 * 14;
}

void sd_lua_account(lua_State *L, const void *key, size_t bytes) {
    sd_lua *S = sd_lua_get(L);
    if (S->acc_n * 2 >= S->acc_cap && !grow_account(S))
        return;
    struct sd_account *a = find_slot(S->acc, S->acc_cap, key);
    if (!a->key) {
        a->key = key;
        a->bytes = bytes;
        S->acc_n++;
        S->tensor_bytes += bytes;
    }
    a->count++;
    sd_lua_check_memory(L);
}

void sd_lua_unaccount(sd_lua *S, const void *key) {
    if (!S->acc_cap)
        return;
    struct sd_account *a = find_slot(S->acc, S->acc_cap, key);
    if (!a->key || --a->count)
        return;
    S->tensor_bytes -= a->bytes;
    S->acc_n--;
    /* backward-shift deletion keeps probe chains whole */
    size_t mask = S->acc_cap - 1, hole = (size_t)(a - S->acc), j = hole;
    for (;;) {
        j = (j + 1) & mask;
        if (!S->acc[j].key)
            break;
        size_t home = slot_of(S->acc[j].key, S->acc_cap);
        if (((j - home) & mask) >= ((j - hole) & mask)) {
            S->acc[hole] = S->acc[j];
            hole = j;
        }
    }
    S->acc[hole] = (struct sd_account){0};
}

/* ---- errors -------------------------------------------------------------------------------------
 */

bool sd_lua_is_internal(const char *source) {
    return source && strncmp(source, "=[sd]", 5) == 0;
}

void sd_lua_where(lua_State *L) {
    lua_Debug ar;
    for (int level = 1; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline > 0 && !sd_lua_is_internal(ar.source)) {
            lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
            return;
        }
    }
    lua_pushliteral(L, "");
}

int sd_lua_raise(lua_State *L, const sd_err *e) {
    sd_lua *S = sd_lua_get(L);
    S->status = e->code;
    snprintf(S->text, sizeof S->text, "%s", e->text);
    if (e->code == SD_ECANCEL) {
        lua_pushliteral(L, "interrupted");
        return lua_error(L);
    }
    sd_lua_where(L);
    lua_pushstring(L, S->text);
    lua_concat(L, 2);
    return lua_error(L);
}

int sd_lua_fail(lua_State *L, sd_status code, const char *fmt, ...) {
    sd_err e = {.code = code};
    va_list ap;
    va_start(ap, fmt);
    sd_vmessage(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    return sd_lua_raise(L, &e);
}

int sd_lua_exit_code(lua_State *L, int idx) {
    sd_lua *S = sd_lua_get(L);
    if (sd_cancelled())
        return sd_status_exit_code(SD_ECANCEL);
    const char *s = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : NULL;
    if (s && S->status != SD_OK && S->text[0] && strstr(s, S->text))
        return sd_status_exit_code(S->status);
    return 1;
}

/* One line of the traceback for the frame at ar ("Slnt" known). */
static void add_frame(lua_State *L, luaL_Buffer *b, const lua_Debug *ar) {
    if (strcmp(ar->what, "main") == 0)
        lua_pushfstring(L, "\n  in %s:%d", ar->short_src, ar->currentline);
    else if (ar->name)
        lua_pushfstring(L, "\n  in %s, %s:%d%s", ar->name, ar->short_src, ar->currentline,
                        ar->istailcall ? " (after tail calls)" : "");
    else
        lua_pushfstring(L, "\n  in function <%s:%d>, line %d", ar->short_src, ar->linedefined,
                        ar->currentline);
    luaL_addvalue(b);
}

/* How deep the stack is. lua_getstack walks there from the top: only a few levels are asked for,
 * since a runaway recursion has 200,000. */
static int stack_depth(lua_State *L) {
    lua_Debug ar;
    int lo = 1, hi = 1;
    while (lua_getstack(L, hi, &ar)) {
        lo = hi;
        hi *= 2;
    }
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (lua_getstack(L, mid, &ar))
            lo = mid + 1;
        else
            hi = mid;
    }
    return hi;
}

/* The frames a user wrote, one line each; nothing when the error is in the main chunk itself. Of
 * many, the innermost SHOWN, found among the innermost LOOKED levels. */
static void add_traceback(lua_State *L, luaL_Buffer *b) {
    enum { SHOWN = 12, LOOKED = 200 };
    lua_Debug ar;
    int depth = stack_depth(L), frames = 0, main_only = 1;
    for (int level = 1; level < LOOKED && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "S", &ar);
        if (ar.what[0] != 'C' && !sd_lua_is_internal(ar.source)) {
            frames++;
            main_only = main_only && strcmp(ar.what, "main") == 0;
        }
    }
    if (main_only && depth <= LOOKED)
        return;
    if (depth > LOOKED)
        frames += depth - LOOKED;
    int shown = 0;
    for (int level = 1; level < LOOKED && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Slnt", &ar);
        if (ar.what[0] == 'C' || sd_lua_is_internal(ar.source))
            continue;
        if (++shown > SHOWN)
            break;
        add_frame(L, b, &ar);
    }
    if (frames > shown || shown > SHOWN) {
        lua_pushfstring(L, "\n  ... %d more", frames - (shown > SHOWN ? SHOWN : shown));
        luaL_addvalue(b);
    }
}

/* Names of the table whose keys are asked for, one after the other. */
typedef struct keys {
    lua_State *L;
    int table;
} keys;

/* The i-th name of the sd functions, then of the globals; both tables are on the stack. */
static const char *global_at(const void *ctx, size_t i) {
    const keys *k = ctx;
    lua_rawgeti(k->L, k->table, (lua_Integer)i + 1);
    const char *s = lua_tostring(k->L, -1);
    lua_pop(k->L, 1); /* the list keeps it */
    return s;
}

/* "attempt to call a nil value (global 'hads')" gets ": did you mean heads?". */
static void add_suggestion(lua_State *L, const char *msg, luaL_Buffer *b) {
    const char *p = strstr(msg, "nil value (global '");
    const char *e = p ? strchr(p += 19, '\'') : NULL;
    char name[64];
    if (!e || (size_t)(e - p) >= sizeof name)
        return;
    memcpy(name, p, (size_t)(e - p));
    name[e - p] = 0;
    lua_newtable(L);
    int list = lua_gettop(L), n = 0;
    for (int which = 0; which < 2; which++) {
        if (which)
            lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
        else
            lua_getfield(L, LUA_REGISTRYINDEX, "sd");
        for (lua_pushnil(L); lua_istable(L, list + 1) && lua_next(L, list + 1); lua_pop(L, 1)) {
            if (lua_type(L, -2) != LUA_TSTRING)
                continue;
            lua_pushvalue(L, -2);
            lua_rawseti(L, list, ++n);
        }
        lua_settop(L, list);
    }
    keys k = {L, list};
    const char *near = sd_suggest(name, global_at, &k);
    char out[160];
    snprintf(out, sizeof out,
             near ? "\n  did you mean %.80s?"
                  : "\n  there is no %.60s (help() lists what there is)",
             near ? near : name);
    lua_settop(L, list - 1);
    luaL_addstring(b, out);
}

int sd_lua_message(lua_State *L) {
    if (lua_type(L, 1) != LUA_TSTRING && !lua_isnumber(L, 1) &&
        !luaL_getmetafield(L, 1, "__tostring")) {
        lua_pushfstring(L, "(error value is a %s)", luaL_typename(L, 1));
        lua_replace(L, 1);
    }
    lua_settop(L, 1);
    luaL_tolstring(L, 1, NULL);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    lua_pushvalue(L, 2);
    luaL_addvalue(&b);
    if (!sd_cancelled())
        add_suggestion(L, lua_tostring(L, 2), &b);
    if (!sd_cancelled())
        add_traceback(L, &b);
    luaL_pushresult(&b);
    return 1;
}

/* ---- boxes --------------------------------------------------------------------------------------
 */

static void *new_box(lua_State *L, size_t size, const char *mt) {
    void *p = lua_newuserdatauv(L, size, 0);
    memset(p, 0, size);
    luaL_setmetatable(L, mt);
    return p;
}

sd_tensor **sd_lua_box_tensor(lua_State *L) {
    return new_box(L, sizeof(sd_tensor *), SD_MT_TENSOR);
}

void sd_lua_boxed_tensor(lua_State *L, sd_tensor **box) {
    if (*box)
        sd_lua_account(L, (*box)->storage, sd_tensor_storage_bytes(*box));
}

sd_box_model *sd_lua_box_model(lua_State *L) {
    return new_box(L, sizeof(sd_box_model), SD_MT_MODEL);
}

void sd_lua_boxed_model(lua_State *L, sd_box_model *b) {
    sd_lua *S = sd_lua_get(L);
    b->next = S->models.next;
    b->prev = &S->models;
    b->next->prev = b;
    S->models.next = b;
    S->n_models++;
    sd_lua_check_memory(L);
}

sd_table **sd_lua_box_table(lua_State *L) {
    return new_box(L, sizeof(sd_table *), SD_MT_TABLE);
}
sd_text **sd_lua_box_text(lua_State *L) {
    return new_box(L, sizeof(sd_text *), SD_MT_TEXT);
}
sd_tokenizer **sd_lua_box_tokenizer(lua_State *L) {
    return new_box(L, sizeof(sd_tokenizer *), SD_MT_TOKENIZER);
}

static void *test_box(lua_State *L, int i, const char *mt) {
    void **b = luaL_testudata(L, i, mt);
    if (!b)
        return NULL;
    if (!*b)
        sd_lua_fail(L, SD_EINVAL, "this %s is closed", mt);
    return *b;
}

sd_tensor *sd_lua_test_tensor(lua_State *L, int i) {
    return test_box(L, i, SD_MT_TENSOR);
}
sd_table *sd_lua_test_table(lua_State *L, int i) {
    return test_box(L, i, SD_MT_TABLE);
}
sd_model *sd_lua_test_model(lua_State *L, int i) {
    return test_box(L, i, SD_MT_MODEL);
}
sd_text *sd_lua_test_text(lua_State *L, int i) {
    return test_box(L, i, SD_MT_TEXT);
}

static void *check_box(lua_State *L, int i, const char *mt) {
    void *p = test_box(L, i, mt);
    if (!p)
        luaL_typeerror(L, i, mt);
    return p;
}

sd_tensor *sd_lua_check_tensor(lua_State *L, int i) {
    return check_box(L, i, SD_MT_TENSOR);
}
sd_table *sd_lua_check_table(lua_State *L, int i) {
    return check_box(L, i, SD_MT_TABLE);
}
sd_model *sd_lua_check_model(lua_State *L, int i) {
    return check_box(L, i, SD_MT_MODEL);
}

/* ---- registration -------------------------------------------------------------------------------
 */

/* registry.sd_docs: name → {name, signature, summary, details, example, options, kind};
 * registry.sd_docs_of: function → name (weak keys). */
void sd_lua_register(lua_State *L, const sd_fn *f, const char *prefix) {
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs");
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs_of");
    for (; f->name; f++) {
        lua_pushfstring(L, "%s%s", prefix, f->name); /* target docs of name */
        lua_createtable(L, 0, 8);
        const char *const kv[][2] = {
            {"signature", f->sig},   {"summary", f->summary},
            {"details", f->details}, {"example", f->example},
            {"options", f->options}, {"kind", strchr(prefix, ':') ? "method" : "function"}};
        for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
            if (kv[i][1]) {
                lua_pushstring(L, kv[i][1]);
                lua_setfield(L, -2, kv[i][0]);
            }
        lua_pushvalue(L, -2);
        lua_setfield(L, -2, "name");
        if (f->fn) {
            lua_pushcfunction(L, f->fn); /* target docs of name doc fn */
            lua_pushvalue(L, -1);
            lua_setfield(L, -7, f->name);
            lua_pushvalue(L, -3);
            lua_rawset(L, -5);
        }
        lua_rawset(L, -4);
    }
    lua_pop(L, 2);
}

void sd_lua_class(lua_State *L, const char *name, const sd_fn *methods, const char *prefix,
                  lua_CFunction close, lua_CFunction index) {
    luaL_newmetatable(L, name);
    lua_newtable(L);
    sd_lua_register(L, methods, prefix);
    lua_pushcfunction(L, close);
    lua_setfield(L, -2, "close");
    if (index) {
        lua_pushvalue(L, -1);
        lua_setfield(L, -3, "methods"); /* for completion */
        lua_pushcclosure(L, index, 1);
    }
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, close);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__gc");
    lua_setfield(L, -2, "__close");
    lua_pushliteral(L, "locked");
    lua_setfield(L, -2, "__metatable");
}

static const char *name_at(const void *ctx, size_t i) {
    const char *const *names = ctx;
    return names[i];
}

void sd_lua_check_options(lua_State *L, int i, const char *const *names) {
    if (i == 0 || lua_isnoneornil(L, i)) /* 0: no options given */
        return;
    luaL_checktype(L, i, LUA_TTABLE);
    i = lua_absindex(L, i);
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_argerror(L, i, "options are named: {name=value}");
        const char *k = lua_tostring(L, -2);
        size_t j = 0;
        while (names[j] && strcmp(names[j], k) != 0)
            j++;
        if (names[j])
            continue;
        const char *near = sd_suggest(k, name_at, names);
        if (near)
            sd_lua_fail(L, SD_EINVAL, "unknown option %s: did you mean %s?", k, near);
        sd_lua_fail(L, SD_EINVAL, "unknown option %s", k);
    }
}

bool sd_lua_option(lua_State *L, int i, const char *name) {
    if (i == 0 || !lua_istable(L, i))
        return false;
    if (lua_getfield(L, i, name) != LUA_TNIL)
        return true;
    lua_pop(L, 1);
    return false;
}

bool sd_lua_opt_bool(lua_State *L, int i, const char *name, bool dflt) {
    if (!sd_lua_option(L, i, name))
        return dflt;
    if (!lua_isboolean(L, -1))
        sd_lua_fail(L, SD_EINVAL, "option %s: true or false expected", name);
    bool v = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return v;
}

int64_t sd_lua_opt_int(lua_State *L, int i, const char *name, int64_t dflt) {
    if (!sd_lua_option(L, i, name))
        return dflt;
    int ok;
    int64_t v = lua_tointegerx(L, -1, &ok);
    if (!ok || lua_type(L, -1) != LUA_TNUMBER)
        sd_lua_fail(L, SD_EINVAL, "option %s: an integer expected", name);
    lua_pop(L, 1);
    return v;
}

double sd_lua_opt_num(lua_State *L, int i, const char *name, double dflt) {
    if (!sd_lua_option(L, i, name))
        return dflt;
    if (lua_type(L, -1) != LUA_TNUMBER)
        sd_lua_fail(L, SD_EINVAL, "option %s: a number expected", name);
    double v = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return v;
}

const char *sd_lua_opt_str(lua_State *L, int i, const char *name, const char *dflt) {
    if (!sd_lua_option(L, i, name))
        return dflt;
    if (lua_type(L, -1) != LUA_TSTRING)
        sd_lua_fail(L, SD_EINVAL, "option %s: a string expected", name);
    const char *v = lua_tostring(L, -1); /* the table keeps it alive */
    lua_pop(L, 1);
    return v;
}

/* ---- the environment
 * ----------------------------------------------------------------------------- */

/* Reading an unset global: Lua's own name first, then the function of the sd table. */
static int global_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(2));
    return 1;
}

/* Takes relative entries ("./?.lua") out of a package path, so that a model folder from a stranger
 * cannot plant a module. */
static void strip_path(lua_State *L, const char *field) {
    lua_getglobal(L, "package");
    lua_getfield(L, -1, field);
    const char *s = lua_tostring(L, -1);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    bool first = true;
    while (s && *s) {
        size_t n = strcspn(s, ";");
        if (*s == '/') {
            if (!first)
                luaL_addchar(&b, ';');
            luaL_addlstring(&b, s, n);
            first = false;
        }
        s += n + (s[n] == ';');
    }
    luaL_pushresult(&b);
    lua_setfield(L, -3, field);
    lua_pop(L, 2);
}

static int open_all(lua_State *L) {
    sd_lua *S = lua_touserdata(L, 1);
    lua_settop(L, 0);
    luaL_openlibs(L);
    strip_path(L, "path");
    strip_path(L, "cpath");

    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd_docs");
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd_docs_of");

    lua_newtable(L); /* sd, index 1 */
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd");
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "sd");
    lua_settop(L, 1);

    sd_lua_open_interrupt(L);
    sd_lua_open_strings(L);
    sd_lua_open_tensor(L);
    sd_lua_open_linalg(L);
    sd_lua_open_table(L);
    sd_lua_open_model(L);
    sd_lua_open_system(L);
    sd_lua_open_patch(L);
    sd_lua_open_ops(L);
    lua_settop(L, 1);

    /* The user's globals: a fresh table that reads Lua's names and sd's behind its own. */
    lua_pushglobaltable(L); /* 2: Lua's own */
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd_base");
    lua_pushvalue(L, 1);
    lua_setfield(L, 2, "sd");
    lua_newtable(L); /* 3: env */
    lua_createtable(L, 0, 2);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, global_index, 2);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, 3);
    lua_pushvalue(L, 3);
    lua_setfield(L, 3, "_G");
    lua_pushvalue(L, 3);
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_pushvalue(L, 3);
    lua_setfield(L, -2, "_G");
    lua_settop(L, 1);

    /* The Lua side: each chunk gets (sd, internal). */
    for (const sd_embed *e = sd_embedded; e->name; e++) {
        lua_pushfstring(L, "=[sd] %s", e->name);
        if (luaL_loadbufferx(L, e->text, strlen(e->text), lua_tostring(L, -1), "t") != LUA_OK)
            return lua_error(L);
        lua_pushvalue(L, 1);
        lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
        lua_call(L, 2, 0);
        lua_settop(L, 1);
    }
    (void)S;
    return 0;
}

lua_State *sd_lua_new(sd_session *s, sd_err *err) {
    sd_lua *S = calloc(1, sizeof *S);
    if (!S) {
        sd_fail(err, SD_ENOMEM, "out of memory");
        return NULL;
    }
    S->session = s;
    S->soft_max = SOFT_MAX_START;
    S->models_max = MODELS_MAX_START;
    S->models.prev = S->models.next = &S->models;
    S->width = 80;
    lua_State *L = lua_newstate(allocate, S);
    if (!L) {
        free(S);
        sd_fail(err, SD_ENOMEM, "out of memory");
        return NULL;
    }
    memcpy(lua_getextraspace(L), &S, sizeof S);
    lua_pushcfunction(L, open_all);
    lua_pushlightuserdata(L, S);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) {
        sd_fail(err, SD_EINVAL, "starting Lua: %s", luaL_tolstring(L, -1, NULL));
        sd_lua_close(L);
        return NULL;
    }
    return L;
}

void sd_lua_close(lua_State *L) {
    if (!L)
        return;
    sd_lua *S = sd_lua_get(L);
    lua_close(L);
    free(S->acc);
    free(S);
}
