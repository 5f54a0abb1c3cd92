/* json.c: Lua values to JSON, and jansson values to Lua. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "lua/bind.h"

enum { MAX_DEPTH = 64 };

static sd_status put(lua_State *L, int i, int depth, sd_buf *out, sd_err *err);

static void put_number(lua_State *L, int i, sd_buf *out) {
    if (lua_isinteger(L, i))
        sd_buf_printf(out, "%lld", (long long)lua_tointeger(L, i));
    else
        sd_buf_json_double(out, lua_tonumber(L, i));
}

static void put_tensor(const sd_tensor *t, int dim, int64_t *ix, sd_buf *out) {
    if (dim == t->ndim) {
        double v = sd_tensor_at(t, ix);
        if (t->dtype == SD_F64)
            sd_buf_json_double(out, v);
        else
            sd_buf_json_float(out, (float)v);
        return;
    }
    sd_buf_putc(out, '[');
    for (ix[dim] = 0; ix[dim] < t->shape[dim]; ix[dim]++) {
        if (ix[dim])
            sd_buf_putc(out, ',');
        put_tensor(t, dim + 1, ix, out);
    }
    sd_buf_putc(out, ']');
}

static sd_status put_table(lua_State *L, int i, int depth, sd_buf *out, sd_err *err) {
    size_t n = lua_rawlen(L, i), keys = 0;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1))
        keys++;
    if (n == keys) { /* an array (an empty table too) */
        sd_buf_putc(out, '[');
        for (size_t k = 1; k <= n; k++) {
            if (k > 1)
                sd_buf_putc(out, ',');
            lua_rawgeti(L, i, (lua_Integer)k);
            SD_TRY(put(L, lua_gettop(L), depth + 1, out, err));
            lua_pop(L, 1);
        }
        sd_buf_putc(out, ']');
        return SD_OK;
    }
    bool first = true;
    sd_buf_putc(out, '{');
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        char num[32];
        const char *k = num;
        size_t kn;
        if (lua_type(L, -2) == LUA_TSTRING) {
            k = lua_tolstring(L, -2, &kn);
        } else if (lua_isinteger(L, -2)) {
            kn = (size_t)snprintf(num, sizeof num, "%lld", (long long)lua_tointeger(L, -2));
        } else {
            return sd_fail(err, SD_EINVAL, "a key of type %s cannot be written as JSON",
                           luaL_typename(L, -2));
        }
        if (!first)
            sd_buf_putc(out, ',');
        first = false;
        sd_buf_json_string(out, k, kn);
        sd_buf_putc(out, ':');
        SD_TRY(put(L, lua_gettop(L), depth + 1, out, err));
    }
    sd_buf_putc(out, '}');
    return SD_OK;
}

static sd_status put(lua_State *L, int i, int depth, sd_buf *out, sd_err *err) {
    if (depth > MAX_DEPTH || !lua_checkstack(L, 8))
        return sd_fail(err, SD_EINVAL, "a value nested deeper than %d cannot be written as JSON",
                       MAX_DEPTH);
    size_t n;
    const char *s;
    switch (lua_type(L, i)) {
    case LUA_TNIL:
        sd_buf_puts(out, "null");
        return SD_OK;
    case LUA_TBOOLEAN:
        sd_buf_puts(out, lua_toboolean(L, i) ? "true" : "false");
        return SD_OK;
    case LUA_TNUMBER:
        put_number(L, i, out);
        return SD_OK;
    case LUA_TSTRING:
        s = lua_tolstring(L, i, &n);
        sd_buf_json_string(out, s, n);
        return SD_OK;
    case LUA_TTABLE:
        return put_table(L, i, depth, out, err);
    case LUA_TUSERDATA: {
        sd_table **w = luaL_testudata(L, i, SD_MT_TABLE);
        if (w && *w)
            return sd_table_json(*w, true, out, err);
        sd_tensor **t = luaL_testudata(L, i, SD_MT_TENSOR);
        if (t && *t && !sd_dtype_get((*t)->dtype)->is_quant) {
            int64_t ix[SD_MAX_DIMS] = {0};
            put_tensor(*t, 0, ix, out);
            return SD_OK;
        }
        sd_box_model *m = luaL_testudata(L, i, SD_MT_MODEL);
        if (m && m->m) {
            int top = lua_gettop(L);
            lua_getfield(L, i, "config");
            lua_pushstring(L, sd_model_name(m->m));
            lua_setfield(L, top + 1, "name");
            lua_pushstring(L, sd_model_path(m->m));
            lua_setfield(L, top + 1, "path");
            lua_pushinteger(L, sd_model_n_params(m->m));
            lua_setfield(L, top + 1, "n_params");
            sd_status st = put_table(L, top + 1, depth, out, err);
            lua_settop(L, top);
            return st;
        }
        break;
    }
    default:
        break;
    }
    return sd_fail(err, SD_EINVAL, "a %s cannot be written as JSON", luaL_typename(L, i));
}

sd_status sd_lua_json(lua_State *L, int i, sd_buf *out, sd_err *err) {
    int top = lua_gettop(L);
    sd_status st = put(L, lua_absindex(L, i), 0, out, err);
    lua_settop(L, top);
    return st == SD_OK ? sd_buf_status(out, err) : st;
}

void sd_lua_push_json(lua_State *L, const void *json) {
    const json_t *j = json;
    luaL_checkstack(L, 6, "JSON nested too deeply");
    const char *k;
    json_t *v;
    size_t i;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        lua_createtable(L, 0, (int)json_object_size(j));
        for (void *it = json_object_iter((json_t *)j); it;
             it = json_object_iter_next((json_t *)j, it)) {
            k = json_object_iter_key(it);
            v = json_object_iter_value(it);
            sd_lua_push_json(L, v);
            lua_setfield(L, -2, k);
        }
        break;
    case JSON_ARRAY:
        lua_createtable(L, (int)json_array_size(j), 0);
        for (i = 0; i < json_array_size(j); i++) {
            sd_lua_push_json(L, json_array_get(j, i));
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
        break;
    case JSON_STRING:
        lua_pushlstring(L, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        lua_pushinteger(L, json_integer_value(j));
        break;
    case JSON_REAL:
        lua_pushnumber(L, json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        lua_pushboolean(L, json_is_true(j));
        break;
    default:
        lua_pushnil(L);
    }
}
