/* ops.c: every op of the registry as a Lua function, from its descriptor alone: required arguments
 * by position, the others in one trailing options table (or everything by name: train{...}). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/bind.h"

typedef struct call_box { /* owns everything the call holds, so that errors leak nothing */
    uint32_t n;
    sd_value result;
    sd_value args[];
} call_box;

static void clear_call(call_box *c) {
    for (uint32_t i = 0; i < c->n; i++)
        sd_value_clear(&c->args[i]);
    sd_value_clear(&c->result);
    memset(&c->result, 0, sizeof c->result);
    memset(c->args, 0, c->n * sizeof *c->args);
}

static int gc_call(lua_State *L) {
    clear_call(lua_touserdata(L, 1));
    return 0;
}

static void set_string(lua_State *L, sd_value *v, const char *s, size_t n) {
    sd_err e = {0};
    v->s = sd_strndup(s, n, &e);
    if (!v->s)
        sd_lua_raise(L, &e);
    v->kind = SD_ARG_STR;
    v->s_len = n;
}

static void bad_arg(lua_State *L, const sd_op_desc *d, const sd_arg_desc *a, int i) {
    const char *got = luaL_typename(L, i);
    if (lua_isuserdata(L, i) && luaL_getmetafield(L, i, "__name") == LUA_TSTRING)
        got = lua_tostring(L, -1);
    sd_lua_fail(L, SD_EINVAL, "%s: %s: expected %s, got a %s", d->name, a->name,
                sd_op_kind_name(a->kind), got);
}

/* {0, 3, 5} → "0,3,5" */
static void layer_list(lua_State *L, const sd_op_desc *d, const sd_arg_desc *a, int i,
                       sd_value *v) {
    size_t n = lua_rawlen(L, i);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (size_t k = 1; k <= n; k++) {
        lua_rawgeti(L, i, (lua_Integer)k);
        if (!lua_isinteger(L, -1) && lua_type(L, -1) != LUA_TSTRING)
            bad_arg(L, d, a, i);
        if (k > 1) {
            lua_pushliteral(L, ",");
            lua_insert(L, -2);
            lua_concat(L, 2);
        }
        luaL_addvalue(&b);
    }
    luaL_pushresult(&b);
    size_t len;
    const char *s = lua_tolstring(L, -1, &len);
    set_string(L, v, s, len);
    lua_pop(L, 1);
}

static void read_arg(lua_State *L, const sd_op_desc *d, const sd_arg_desc *a, int i, sd_value *v) {
    sd_err e = {0};
    size_t n;
    const char *s;
    i = lua_absindex(L, i);
    if (a->kind == SD_ARG_TEXT && (lua_istable(L, i) || lua_type(L, i) == LUA_TSTRING ||
                                   sd_lua_test_text(L, i) || sd_lua_test_tensor(L, i))) {
        if (sd_lua_to_text(L, i, &v->text, &e) != SD_OK)
            sd_lua_raise(L, &e);
        v->kind = SD_ARG_TEXT;
        return;
    }
    switch (lua_type(L, i)) {
    case LUA_TNIL:
        return;
    case LUA_TBOOLEAN:
        v->kind = SD_ARG_BOOL;
        v->b = lua_toboolean(L, i);
        return;
    case LUA_TNUMBER:
        if (a->kind == SD_ARG_PATH)
            bad_arg(L, d, a, i);
        if (a->kind == SD_ARG_STR || a->kind == SD_ARG_CHOICE) { /* planes=2 beside planes="all" */
            lua_pushvalue(L, i);
            s = lua_tolstring(L, -1, &n);
            set_string(L, v, s, n);
            lua_pop(L, 1);
        } else if (lua_isinteger(L, i)) {
            v->kind = SD_ARG_INT;
            v->i = lua_tointeger(L, i);
        } else {
            v->kind = SD_ARG_NUM;
            v->f = lua_tonumber(L, i);
        }
        return;
    case LUA_TSTRING:
        s = lua_tolstring(L, i, &n);
        if (a->kind != SD_ARG_STR && strlen(s) != n)
            sd_lua_fail(L, SD_EINVAL, "%s: %s holds a zero byte", d->name, a->name);
        set_string(L, v, s, n);
        return;
    case LUA_TTABLE:
        if (a->kind == SD_ARG_LAYERS || a->kind == SD_ARG_STR) { /* {8, 16} is "8,16" */
            layer_list(L, d, a, i, v);
            return;
        }
        if (a->kind != SD_ARG_TENSOR)
            bad_arg(L, d, a, i);
        break;
    default:
        break;
    }
    if (a->kind == SD_ARG_TENSOR && (lua_istable(L, i) || sd_lua_test_tensor(L, i))) {
        sd_tensor *t;
        if (lua_istable(L, i)) {
            lua_pushvalue(L, i);
            t = sd_lua_to_tensor(L, lua_gettop(L), SD_F64);
        } else {
            t = sd_lua_test_tensor(L, i);
            lua_pushvalue(L, i);
        }
        if (sd_tensor_view(t, t->ndim, t->shape, t->stride, 0, &v->tensor, &e) != SD_OK)
            sd_lua_raise(L, &e);
        lua_pop(L, 1);
        v->kind = SD_ARG_TENSOR;
        return;
    }
    sd_model *m = sd_lua_test_model(L, i);
    sd_table *w = m ? NULL : sd_lua_test_table(L, i);
    if (m) {
        v->kind = SD_ARG_MODEL;
        v->model = sd_model_ref(m);
    } else if (w) {
        v->kind = SD_ARG_TABLE;
        v->table = sd_table_ref(w);
    } else {
        bad_arg(L, d, a, i);
    }
}

static bool is_object(uint32_t kind) {
    return kind == SD_ARG_MODEL || kind == SD_ARG_TEXT || kind == SD_ARG_TABLE ||
           kind == SD_ARG_TENSOR;
}

static int push_result(lua_State *L, call_box *c) {
    sd_value *r = &c->result;
    switch (r->kind) {
    case SD_ARG_NIL:
        return 0;
    case SD_ARG_BOOL:
        lua_pushboolean(L, r->b);
        return 1;
    case SD_ARG_INT:
        lua_pushinteger(L, r->i);
        return 1;
    case SD_ARG_NUM:
        lua_pushnumber(L, r->f);
        return 1;
    case SD_ARG_MODEL: {
        sd_box_model *b = sd_lua_box_model(L);
        b->m = r->model;
        r->model = NULL;
        sd_lua_boxed_model(L, b);
        return 1;
    }
    case SD_ARG_TEXT: {
        sd_text **b = sd_lua_box_text(L);
        *b = r->text;
        r->text = NULL;
        return 1;
    }
    case SD_ARG_TABLE: {
        sd_table **b = sd_lua_box_table(L);
        *b = r->table;
        r->table = NULL;
        return 1;
    }
    case SD_ARG_TENSOR: {
        sd_tensor **b = sd_lua_box_tensor(L);
        *b = r->tensor;
        r->tensor = NULL;
        sd_lua_boxed_tensor(L, b);
        return 1;
    }
    default:
        lua_pushlstring(L, r->s ? r->s : "", r->s_len);
        return 1;
    }
}

static int call_op(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    const char *name = lua_tostring(L, lua_upvalueindex(1));
    const sd_op *op = sd_op_find(S->session, name);
    if (!op)
        return sd_lua_fail(L, SD_EPLUGIN, "%s is not there any more: its plugin was unloaded",
                           name);
    const sd_op_desc *d = op->desc;
    uint32_t req = sd_op_n_required(d);
    int given = lua_gettop(L), opts = 0;
    while (given > 0 && lua_isnil(L, given) && (uint32_t)given > req)
        given--;
    bool all_named = req > 0 && given == 1 && lua_istable(L, 1) && lua_rawlen(L, 1) == 0;
    if (all_named || ((uint32_t)given > req && lua_istable(L, given)))
        opts = given;
    uint32_t npos = (uint32_t)(opts ? given - 1 : given);

    call_box *c = lua_newuserdatauv(L, sizeof *c + d->n_args * sizeof(sd_value), 0);
    memset(c, 0, sizeof *c + d->n_args * sizeof(sd_value));
    c->n = d->n_args;
    if (luaL_newmetatable(L, "sd.call")) {
        lua_pushcfunction(L, gc_call);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);

    /* By position: what is required, then optional objects (train(m, {...})); the rest has names.
     */
    for (uint32_t i = 0; i < npos; i++) {
        if (i >= d->n_args || (i >= req && !is_object(d->args[i].kind)))
            return sd_lua_fail(
                L, SD_EINVAL,
                "%s takes %u argument%s%s; the others are named in a table at the end: "
                "help(%s)",
                name, i, i == 1 ? "" : "s", i < d->n_args ? " by position" : "", name);
        read_arg(L, d, &d->args[i], (int)i + 1, &c->args[i]);
    }
    if (opts) {
        for (lua_pushnil(L); lua_next(L, opts); lua_pop(L, 1)) {
            sd_err e = {0};
            int i;
            if (lua_type(L, -2) != LUA_TSTRING)
                return sd_lua_fail(L, SD_EINVAL, "%s: options are named, {%s=...}; got key %s",
                                   name, req < d->n_args ? d->args[req].name : "name",
                                   luaL_tolstring(L, -2, NULL));
            if (sd_op_arg_find(d, lua_tostring(L, -2), &i, &e) != SD_OK)
                return sd_lua_raise(L, &e);
            if (c->args[i].kind != SD_ARG_NIL)
                return sd_lua_fail(L, SD_EINVAL, "%s: %s is given twice", name, d->args[i].name);
            read_arg(L, d, &d->args[i], lua_gettop(L), &c->args[i]);
        }
    }
    fflush(stdout); /* progress and warnings on stderr come in order */
    sd_err e = {0};
    sd_status st = sd_op_call(S->session, op, c->args, &c->result, &e);
    if (st == SD_ENOMEM) { /* dead tensors and models may hold it */
        sd_err first = e;
        lua_gc(L, LUA_GCCOLLECT);
        e = (sd_err){0};
        st = sd_op_call(S->session, op, c->args, &c->result, &e);
        if (st != SD_OK && st != SD_ECANCEL)
            e = first; /* the second run may have tripped over what the first one left */
    }
    if (st != SD_OK) {
        clear_call(c);
        return sd_lua_raise(L, &e);
    }
    int n = push_result(L, c);
    clear_call(c);
    return n;
}

/* The place of an op: a field of sd, or "group.name" a field of sd.group, which is there
 * (sd_lua_open_ops). Sets it to the value on top, which is popped. */
static void set_place(lua_State *L, int sd, const char *name) {
    const char *dot = strchr(name, '.');
    if (!dot) {
        lua_setfield(L, sd, name);
        return;
    }
    lua_pushlstring(L, name, (size_t)(dot - name));
    lua_rawget(L, sd);
    lua_insert(L, -2);
    lua_setfield(L, -2, dot + 1);
    lua_pop(L, 1);
}

static void push_place(lua_State *L, int sd, const char *name) {
    const char *dot = strchr(name, '.');
    if (!dot) {
        lua_getfield(L, sd, name);
        return;
    }
    lua_pushlstring(L, name, (size_t)(dot - name));
    lua_rawget(L, sd);
    lua_getfield(L, -1, dot + 1);
    lua_remove(L, -2);
}

void sd_lua_bind_ops(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "sd");         /* 1 */
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_bound");   /* 2: name → function */
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs");    /* 3 */
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_docs_of"); /* 4 */
    int sd = top + 1, bound = top + 2, docs = top + 3, of = top + 4;
    for (lua_pushnil(L); lua_next(L, bound); lua_pop(L, 1)) {
        const char *name = lua_tostring(L, -2);
        if (sd_op_find(S->session, name))
            continue;
        push_place(L, sd, name);
        if (lua_rawequal(L, -1, -2)) {
            lua_pushnil(L);
            set_place(L, sd, name);
        }
        lua_pop(L, 1);
        lua_pushnil(L);
        lua_setfield(L, docs, name);
        lua_pushvalue(L, -2);
        lua_pushnil(L);
        lua_rawset(L, bound); /* clearing a field during traversal is allowed */
    }
    const sd_op *op;
    for (size_t i = 0; (op = sd_op_at(S->session, i)); i++) {
        if (lua_getfield(L, bound, op->desc->name) == LUA_TNIL) {
            lua_pop(L, 1);
            lua_pushstring(L, op->desc->name);
            lua_pushcclosure(L, call_op, 1);
            lua_pushvalue(L, -1);
            lua_setfield(L, bound, op->desc->name);
        }
        lua_pushvalue(L, -1);
        lua_pushstring(L, op->desc->name);
        lua_rawset(L, of);
        set_place(L, sd, op->desc->name);
        lua_createtable(L, 0, 3);
        lua_pushliteral(L, "op");
        lua_setfield(L, -2, "kind");
        lua_pushstring(L, op->desc->name);
        lua_setfield(L, -2, "name");
        lua_setfield(L, docs, op->desc->name);
    }
    lua_settop(L, top);
}

/* internal.op(name): the descriptor as a Lua table, for help and completion. */
static int op_table(lua_State *L) {
    const sd_op *op = sd_op_find(sd_lua_get(L)->session, luaL_checkstring(L, 1));
    if (!op)
        return 0;
    const sd_op_desc *d = op->desc;
    sd_buf sig = {0};
    sd_err e = {0};
    if (sd_op_signature(d, &sig, &e) != SD_OK) {
        sd_buf_free(&sig);
        return sd_lua_raise(L, &e);
    }
    lua_createtable(L, 0, 10);
    lua_pushlstring(L, sig.p ? sig.p : "", sig.n);
    lua_setfield(L, -2, "signature");
    sd_buf_free(&sig);
    const char *const kv[][2] = {{"name", d->name},
                                 {"summary", d->summary},
                                 {"details", d->details},
                                 {"example", d->example},
                                 {"returns", d->returns_doc},
                                 {"plugin", op->plugin},
                                 {"makes", sd_op_kind_name(d->returns)}};
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        if (kv[i][1]) {
            lua_pushstring(L, kv[i][1]);
            lua_setfield(L, -2, kv[i][0]);
        }
    lua_createtable(L, (int)d->n_args, 0);
    for (uint32_t i = 0; i < d->n_args; i++) {
        const sd_arg_desc *a = &d->args[i];
        lua_createtable(L, 0, 6);
        const char *const av[][2] = {{"name", a->name},
                                     {"kind", sd_op_kind_name(a->kind)},
                                     {"default", a->dflt},
                                     {"choices", a->choices},
                                     {"doc", a->doc}};
        for (size_t k = 0; k < sizeof av / sizeof *av; k++)
            if (av[k][1]) {
                lua_pushstring(L, av[k][1]);
                lua_setfield(L, -2, av[k][0]);
            }
        lua_pushboolean(L, (a->flags & SD_ARG_REQUIRED) != 0);
        lua_setfield(L, -2, "required");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, "args");
    return 1;
}

static int op_help(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    const sd_op *op = sd_op_find(S->session, luaL_checkstring(L, 1));
    if (!op)
        return 0;
    sd_buf b = {0};
    sd_err e = {0};
    sd_status st = sd_op_help(op, (int)luaL_optinteger(L, 2, S->width), &b, &e);
    if (st == SD_OK)
        lua_pushlstring(L, b.p ? b.p : "", b.n);
    sd_buf_free(&b);
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

static int op_names(lua_State *L) {
    sd_lua *S = sd_lua_get(L);
    const sd_op *op;
    lua_newtable(L);
    for (size_t i = 0; (op = sd_op_at(S->session, i)); i++) {
        lua_pushstring(L, op->desc->name);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

void sd_lua_open_ops(lua_State *L) {
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "sd_bound");
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
    static const luaL_Reg fns[] = {
        {"op", op_table}, {"op_help", op_help}, {"op_names", op_names}, {NULL, NULL}};
    luaL_setfuncs(L, fns, 0);
    lua_pop(L, 1);
    lua_newtable(L);
    lua_setfield(L, -2, "plot");
    sd_lua_bind_ops(L);
}
