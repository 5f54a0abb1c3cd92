/* table_ops.c: tables that compute: columns added and replaced, rows chosen by expressions, masks
 * and functions, groups, joins, reading back.
 *
 * Expressions are Lua expressions in a string, evaluated once a row with the columns as variables.
 * Lua's own comparison of two columns can only give one boolean: metamethods of < and == have their
 * results turned into booleans, so that `w[w.pr < 3]` cannot be made to work; masks have methods.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/table_ops.h"
#include "io/tables.h"
#include "lua/table.h"

/* ---- expressions ---- */
typedef struct at_row { /* where an expression stands */
    const sd_table *t;
    int row;
} at_row;

static const char *col_name(const void *ctx, size_t i) {
    const sd_table *t = ctx;
    return (int)i < sd_table_cols(t) ? sd_table_col_name(t, (int)i) : NULL;
}

/* __index of an expression's environment: column, function of math, global. Upvalues: the row,
 * columns by name, math, globals. */
static int env_index(lua_State *L) {
    const at_row *at = lua_touserdata(L, lua_upvalueindex(1));
    lua_settop(L, 2);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) == LUA_TNUMBER) {
        int c = (int)lua_tointeger(L, -1);
        sd_col_kind k = sd_table_col_kind(at->t, c);
        if (!sd_table_has(at->t, at->row, c) && (k == SD_COL_INT || k == SD_COL_NUM))
            lua_pushnumber(L, NAN); /* comparisons with it are false, arithmetic goes on */
        else
            sd_lua_table_cell(L, at->t, at->row, c);
        return 1;
    }
    for (int up = 3; up <= 4; up++) {
        lua_pushvalue(L, 2);
        if (lua_gettable(L, lua_upvalueindex(up)) != LUA_TNIL)
            return 1;
        lua_settop(L, 2);
    }
    const char *name = lua_tostring(L, 2), *near = sd_suggest(name, col_name, at->t);
    if (near)
        return sd_lua_fail(
            L, SD_EINVAL, "no column or global %s in the expression: did you mean %s?", name, near);
    return sd_lua_fail(
        L, SD_EINVAL,
        "no column or global %s in the expression (w.columns lists the columns; it "
        "does not see local variables: w:where(function(r) return r.pr < x end) does)",
        name);
}

/* Pushes the compiled expression; the row it will read is returned. */
static at_row *compile(lua_State *L, const sd_table *t, const char *src) {
    lua_pushfstring(L, "return %s", src);
    size_t n;
    const char *s = lua_tolstring(L, -1, &n);
    if (luaL_loadbufferx(L, s, n, "=expression", "t") != LUA_OK) {
        const char *why = lua_tostring(L, -1);
        why = strstr(why, ": ") ? strstr(why, ": ") + 2 : why;
        sd_lua_fail(L, SD_EINVAL,
                    "\"%s\" is no expression: %s (columns as names, with < <= == ~= and or not + - "
                    "* /, functions of math)",
                    src, why);
    }
    lua_remove(L, -2);
    lua_newtable(L); /* the environment */
    lua_newtable(L); /* its metatable */
    at_row *at = lua_newuserdatauv(L, sizeof *at, 0);
    *at = (at_row){t, 0};
    lua_createtable(L, 0, sd_table_cols(t));
    for (int c = 0; c < sd_table_cols(t); c++) {
        lua_pushinteger(L, c);
        lua_setfield(L, -2, sd_table_col_name(t, c));
    }
    lua_getglobal(L, "math");
    lua_pushglobaltable(L);
    lua_pushcclosure(L, env_index, 4);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    if (!lua_setupvalue(L, -2, 1)) /* an expression without names has no environment */
        lua_pop(L, 1);
    /* the row lives as long as the closure does; one without names reads none */
    return at;
}

/* Value of the expression on top at a row, pushed. */
static void eval_at(lua_State *L, at_row *at, int row) {
    at->row = row;
    lua_pushvalue(L, -1);
    lua_call(L, 0, 1);
}

/* ---- rows ---- */
static int *new_order(lua_State *L, int n) {
    return lua_newuserdatauv(L, sizeof(int) * ((size_t)n + 1), 0);
}

static int push_rows(lua_State *L, const sd_table *t, const int *order, int n) {
    sd_table **b = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_take(t, order, n, NULL, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static const sd_tensor *check_length(lua_State *L, const sd_table *t, sd_tensor *x,
                                     const char *what) {
    if (x->ndim != 1 || x->shape[0] != sd_table_rows(t))
        sd_lua_fail(L, SD_EINVAL, "%s has %lld elements in %d dimension%s, the table %d rows", what,
                    (long long)sd_tensor_numel(x), x->ndim, x->ndim == 1 ? "" : "s",
                    sd_table_rows(t));
    return x;
}

/* Row i as a table that reads its cells when asked; [0] is its place. */
static int row_index(lua_State *L) {
    const sd_table *t = sd_lua_check_table(L, lua_upvalueindex(1));
    lua_rawgeti(L, 1, 0);
    int row = (int)lua_tointeger(L, -1);
    if (lua_type(L, 2) != LUA_TSTRING) {
        lua_pushnil(L);
        return 1;
    }
    sd_lua_table_cell(L, t, row, sd_lua_table_col(L, t, lua_tostring(L, 2)));
    return 1;
}

static int row_pairs(lua_State *L) {
    const sd_table *t = sd_lua_check_table(L, lua_upvalueindex(1));
    lua_rawgeti(L, 1, 0);
    int row = (int)lua_tointeger(L, -1);
    lua_getglobal(L, "next");
    lua_newtable(L);
    for (int c = 0; c < sd_table_cols(t); c++) {
        sd_lua_table_cell(L, t, row, c);
        lua_setfield(L, -2, sd_table_col_name(t, c));
    }
    return 2;
}

static int where_function(lua_State *L, const sd_table *t) {
    int n = sd_table_rows(t), k = 0, *order = new_order(L, n);
    lua_newtable(L); /* the rows' metatable */
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, row_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushvalue(L, 1);
    lua_pushcclosure(L, row_pairs, 1);
    lua_setfield(L, -2, "__pairs");
    for (int i = 0; i < n; i++) {
        lua_pushvalue(L, 2);
        lua_createtable(L, 0, 1);
        lua_pushinteger(L, i);
        lua_rawseti(L, -2, 0);
        lua_pushvalue(L, -3);
        lua_setmetatable(L, -2);
        lua_call(L, 1, 1);
        if (lua_toboolean(L, -1))
            order[k++] = i;
        lua_pop(L, 1);
    }
    return push_rows(L, t, order, k);
}

static int where_expression(lua_State *L, const sd_table *t, const char *src) {
    int n = sd_table_rows(t), k = 0, *order = new_order(L, n);
    at_row *at = compile(L, t, src);
    for (int i = 0; i < n; i++) {
        eval_at(L, at, i);
        if (!lua_isboolean(L, -1) && !lua_isnil(L, -1))
            return sd_lua_fail(L, SD_EINVAL,
                               "\"%s\" gives a %s: where takes what is true or false (w:eval gives "
                               "values)",
                               src, luaL_typename(L, -1));
        if (lua_toboolean(L, -1))
            order[k++] = i;
        lua_pop(L, 1);
    }
    return push_rows(L, t, order, k);
}

static int where_mask(lua_State *L, const sd_table *t, sd_tensor *m) {
    check_length(L, t, m, "the mask");
    int n = sd_table_rows(t), k = 0, *order = new_order(L, n);
    for (int64_t i = 0; i < n; i++)
        if (sd_tensor_at(m, &i) != 0)
            order[k++] = (int)i;
    return push_rows(L, t, order, k);
}

static int w_where(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    sd_tensor *m = sd_lua_test_tensor(L, 2);
    lua_settop(L, 2);
    if (m)
        return where_mask(L, t, m);
    if (lua_isfunction(L, 2))
        return where_function(L, t);
    if (lua_type(L, 2) == LUA_TSTRING)
        return where_expression(L, t, lua_tostring(L, 2));
    if (lua_isboolean(L, 2))
        return sd_lua_fail(L, SD_EINVAL,
                           "where got one boolean: Lua compares whole columns to one; write "
                           "w:where \"layer == 3\" or w:where(w.layer:eq(3))");
    return luaL_typeerror(L, 2, "\"expression\", mask or function(row)");
}

int sd_lua_table_pick(lua_State *L) {
    return where_mask(L, sd_lua_check_table(L, 1), sd_lua_check_tensor(L, 2));
}

static int some(lua_State *L, bool last) {
    sd_table *t = sd_lua_check_table(L, 1);
    lua_Integer n = luaL_optinteger(L, 2, 5);
    int rows = sd_table_rows(t);
    luaL_argcheck(L, n >= 0, 2, "a number of rows expected");
    int k = n < rows ? (int)n : rows, *order = new_order(L, k);
    for (int i = 0; i < k; i++)
        order[i] = last ? rows - k + i : i;
    return push_rows(L, t, order, k);
}
static int w_first(lua_State *L) {
    return some(L, false);
}
static int w_last(lua_State *L) {
    return some(L, true);
}

/* ---- names in arguments: "a", {"a", "b"} or several arguments ---- */
/* The names at stack slot i, or from i to the last string; pushes nothing; at most max. */
static int read_names(lua_State *L, int i, const char **names, int max) {
    int n = 0;
    if (lua_istable(L, i)) {
        int m = (int)lua_rawlen(L, i);
        for (int k = 1; k <= m && n < max; k++) {
            lua_rawgeti(L, i, k);
            if (lua_type(L, -1) != LUA_TSTRING)
                sd_lua_fail(L, SD_EINVAL, "names of columns expected, got a %s",
                            luaL_typename(L, -1));
            names[n++] = lua_tostring(L, -1); /* the table keeps it */
            lua_pop(L, 1);
        }
    } else {
        for (; n < max && lua_type(L, i) == LUA_TSTRING; i++)
            names[n++] = lua_tostring(L, i);
    }
    if (n == 0)
        luaL_typeerror(L, i, "name of a column, or {names}");
    if (n == max)
        sd_lua_fail(L, SD_EINVAL, "more than %d columns", max - 1);
    return n;
}
enum { MAX_NAMES = 65 };

static int w_sort(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    const char *names[MAX_NAMES];
    sd_key keys[MAX_NAMES];
    static const char *const opts[] = {"desc", NULL};
    int n = read_names(L, 2, names, MAX_NAMES), o = lua_istable(L, 2) ? 3 : n + 2;
    sd_lua_check_options(L, o, opts);
    bool desc = sd_lua_opt_bool(L, o, "desc", false);
    for (int i = 0; i < n; i++) {
        bool minus = names[i][0] == '-' && sd_table_find_col(t, names[i]) < 0;
        keys[i] = (sd_key){sd_lua_table_col(L, t, names[i] + minus), minus != desc};
    }
    int rows = sd_table_rows(t), *order = new_order(L, rows);
    sd_err e = {0};
    if (sd_table_order(t, keys, n, order, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return push_rows(L, t, order, rows);
}

/* ---- columns ---- */
/* The table in box 1, which nobody else reads: a copy when it is shared. */
static sd_table *own(lua_State *L) {
    sd_table **b = luaL_checkudata(L, 1, SD_MT_TABLE);
    sd_lua_check_table(L, 1);
    if (sd_table_shared(*b)) {
        sd_table *copy;
        sd_err e = {0};
        if (sd_table_take(*b, NULL, 0, NULL, &copy, &e) != SD_OK)
            sd_lua_raise(L, &e);
        sd_table_unref(*b);
        *b = copy;
    }
    return *b;
}

/* Kind of the Lua value at i as a cell; -1 for nil. */
static int cell_kind(lua_State *L, int i, const char *name) {
    switch (lua_type(L, i)) {
    case LUA_TNIL:
        return -1;
    case LUA_TNUMBER:
        return lua_isinteger(L, i) ? SD_COL_INT : SD_COL_NUM;
    case LUA_TBOOLEAN:
    case LUA_TSTRING:
        return SD_COL_STR;
    case LUA_TTABLE:
        return SD_COL_VEC;
    default:
        return sd_lua_fail(L, SD_EINVAL,
                           "%s: a %s is no cell: numbers, strings and arrays of numbers are", name,
                           luaL_typename(L, i));
    }
}

static int wider(lua_State *L, int a, int b, const char *name) {
    if (a < 0 || b < 0 || a == b)
        return a > b ? a : b;
    if (a > SD_COL_NUM || b > SD_COL_NUM)
        sd_lua_fail(L, SD_EINVAL, "%s: cells of different types", name);
    return SD_COL_NUM;
}

static sd_status put_value(lua_State *L, sd_table *t, int row, int c, int i, sd_err *err) {
    i = lua_absindex(L, i);
    if (lua_isnil(L, i))
        return SD_OK;
    switch (sd_table_col_kind(t, c)) {
    case SD_COL_INT:
        sd_table_put_int(t, row, c, lua_tointeger(L, i));
        return SD_OK;
    case SD_COL_NUM:
        sd_table_put_num(t, row, c, lua_tonumber(L, i));
        return SD_OK;
    case SD_COL_STR:
        return sd_table_put_str(t, row, c,
                                !lua_isboolean(L, i)  ? lua_tostring(L, i)
                                : lua_toboolean(L, i) ? "true"
                                                      : "false",
                                err);
    default: {
        size_t n = lua_rawlen(L, i);
        double *v = lua_newuserdatauv(L, (n + 1) * sizeof *v, 0);
        for (size_t k = 0; k < n; k++) {
            lua_rawgeti(L, i, (lua_Integer)k + 1);
            v[k] = lua_tonumber(L, -1);
            lua_pop(L, 1);
        }
        sd_status st = sd_table_put_vec(t, row, c, v, n, err);
        lua_pop(L, 1);
        return st;
    }
    }
}

/* Column `name` from a tensor: whole numbers stay integers where they were or the tensor's are. */
static sd_status from_tensor(lua_State *L, sd_table *t, const char *name, const char *doc,
                             sd_tensor *x, sd_err *err) {
    int n = sd_table_rows(t), c = sd_table_find_col(t, name);
    bool whole = !sd_dtype_get(x->dtype)->is_float && !sd_dtype_get(x->dtype)->is_quant;
    if (x->ndim > 0)
        check_length(L, t, x, name);
    if (!whole && c >= 0 && sd_table_col_kind(t, c) == SD_COL_INT) {
        whole = true;
        for (int64_t i = 0; i < n && whole; i++) {
            double v = sd_tensor_at(x, &i);
            whole = v == floor(v) && fabs(v) < 9007199254740992.0;
        }
    }
    SD_TRY(sd_table_put_column(t, name, whole ? SD_COL_INT : SD_COL_NUM, doc, &c, err));
    for (int64_t i = 0; i < n; i++) {
        double v = sd_tensor_at(x, &i);
        if (whole)
            sd_table_put_int(t, (int)i, c, (int64_t)v);
        else
            sd_table_put_num(t, (int)i, c, v);
    }
    return SD_OK;
}

/* Sets column `name` of t (a fresh or owned table) from the value at v: a tensor, an array, or one
 * value for every row. */
static sd_status set_column(lua_State *L, sd_table *t, const char *name, const char *doc, int v,
                            sd_err *err) {
    sd_tensor *x = sd_lua_test_tensor(L, v);
    int n = sd_table_rows(t), kind = -1, c;
    if (x)
        return from_tensor(L, t, name, doc, x, err);
    bool list = lua_istable(L, v);
    if (list && (lua_Integer)lua_rawlen(L, v) > n)
        return sd_fail(err, SD_EINVAL, "%s: %d values for %d rows", name, (int)lua_rawlen(L, v), n);
    for (int i = 0; i < (list ? n : 1); i++) {
        if (list)
            lua_rawgeti(L, v, i + 1);
        else
            lua_pushvalue(L, v);
        kind = wider(L, kind, cell_kind(L, -1, name), name);
        lua_pop(L, 1);
    }
    SD_TRY(sd_table_put_column(t, name, kind < 0 ? SD_COL_NUM : (sd_col_kind)kind, doc, &c, err));
    sd_status st = SD_OK;
    for (int i = 0; i < n && st == SD_OK; i++) {
        if (list)
            lua_rawgeti(L, v, i + 1);
        else
            lua_pushvalue(L, v);
        st = put_value(L, t, i, c, -1, err);
        lua_pop(L, 1);
    }
    return st;
}

static void check_name(lua_State *L, const char *name, int methods) {
    static const char *const fields[] = {"kind", "columns", "notes", "heading", "meta"};
    bool taken = !*name;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        taken = taken || strcmp(fields[i], name) == 0;
    lua_getfield(L, methods, name);
    if (taken || !lua_isnil(L, -1))
        sd_lua_fail(L, SD_EINVAL, "\"%s\" is a %s of tables: a column needs another name", name,
                    taken ? "field" : "method");
    lua_pop(L, 1);
}

int sd_lua_table_newindex(lua_State *L) {
    sd_lua_check_table(L, 1);
    if (lua_type(L, 2) != LUA_TSTRING)
        return sd_lua_fail(L, SD_EINVAL,
                           "rows of a table are not set one by one: w.name = values sets a column");
    const char *name = lua_tostring(L, 2);
    sd_err e = {0};
    if (sd_table_find_col(sd_lua_check_table(L, 1), name) < 0)
        check_name(L, name, lua_upvalueindex(1));
    /* A value that reads this very table must be there before the copy. */
    sd_table *t = own(L);
    if (lua_isnil(L, 3)) {
        sd_table_drop_column(t, sd_lua_table_col(L, t, name));
        return 0;
    }
    if (set_column(L, t, name, NULL, 3, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 0;
}

/* Values of an expression over all rows: a tensor of numbers, a mask, or an array; pushed. */
static void push_values(lua_State *L, const sd_table *t, const char *src) {
    int n = sd_table_rows(t);
    bool numbers = true, masks = true;
    lua_createtable(L, n, 0);
    int list = lua_gettop(L);
    at_row *at = compile(L, t, src);
    for (int i = 0; i < n; i++) {
        eval_at(L, at, i);
        numbers = numbers && lua_type(L, -1) == LUA_TNUMBER;
        masks = masks && lua_isboolean(L, -1);
        if (lua_isfunction(L, -1) || lua_isuserdata(L, -1))
            sd_lua_fail(L, SD_EINVAL, "\"%s\" gives a %s: numbers, strings or booleans expected",
                        src, luaL_typename(L, -1));
        lua_rawseti(L, list, i + 1);
    }
    lua_settop(L, list);
    if (!numbers && !masks)
        return;
    sd_tensor **b = sd_lua_box_tensor(L);
    sd_err e = {0};
    int64_t shape = n;
    bool whole = numbers && n > 0;
    for (int i = 0; i < n && whole; i++) {
        lua_rawgeti(L, list, i + 1);
        whole = lua_isinteger(L, -1);
        lua_pop(L, 1);
    }
    sd_dtype dt = n && masks ? SD_U8 : whole ? SD_I64 : SD_F64;
    if (sd_tensor_new(dt, 1, &shape, b, &e) != SD_OK)
        sd_lua_raise(L, &e);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, list, i + 1);
        if (dt == SD_I64)
            ((int64_t *)(*b)->data)[i] = lua_tointeger(L, -1);
        else if (dt == SD_F64)
            ((double *)(*b)->data)[i] = lua_tonumber(L, -1);
        else
            ((uint8_t *)(*b)->data)[i] = (uint8_t)lua_toboolean(L, -1);
        lua_pop(L, 1);
    }
    sd_lua_boxed_tensor(L, b);
    lua_replace(L, list);
    lua_settop(L, list);
}

static int w_eval(lua_State *L) {
    push_values(L, sd_lua_check_table(L, 1), luaL_checkstring(L, 2));
    return 1;
}

/* w:with{name = "expression" or values}: in the order of the names, each seeing the ones before. */
static int w_with(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    sd_table **b = sd_lua_box_table(L); /* 3 */
    sd_err e = {0};
    if (sd_table_take(t, NULL, 0, NULL, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    luaL_getmetafield(L, 1, "methods"); /* 4 */
    lua_newtable(L);                    /* 5: names, sorted */
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            return sd_lua_fail(L, SD_EINVAL,
                               "columns have names: w:with{ratio = \"pr / pr_null\"}");
        lua_pushvalue(L, -2);
        lua_rawseti(L, 5, (lua_Integer)lua_rawlen(L, 5) + 1);
    }
    lua_getglobal(L, "table");
    lua_getfield(L, -1, "sort");
    lua_pushvalue(L, 5);
    lua_call(L, 1, 0);
    lua_settop(L, 5);
    for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, 5); i++) {
        lua_settop(L, 5);
        lua_rawgeti(L, 5, i);
        const char *name = lua_tostring(L, 6), *doc = NULL;
        if (sd_table_find_col(*b, name) < 0)
            check_name(L, name, 4);
        lua_getfield(L, 2, name);
        if (lua_type(L, 7) == LUA_TSTRING) {
            doc = lua_tostring(L, 7);
            push_values(L, *b, doc);
        }
        if (set_column(L, *b, name, doc, lua_gettop(L), &e) != SD_OK)
            return sd_lua_raise(L, &e);
    }
    lua_settop(L, 3);
    return 1;
}

/* ---- groups ---- */
enum { MAX_AGGS = 256 };

typedef struct plan { /* one aggregate asked for */
    int col;
    int fn; /* stack slot of a Lua function, 0: named */
    sd_agg agg;
    char as[96];
} plan;

/* "median", "quantile 0.9", with the suffix its column gets where several are asked for. */
static void read_agg(lua_State *L, const char *how, plan *p, const char *col, bool several) {
    char *end;
    char suffix[32];
    p->agg = (sd_agg){.col = p->col, .how = how};
    snprintf(suffix, sizeof suffix, "%.20s", how);
    if (strncmp(how, "quantile", 8) == 0) {
        p->agg.how = "quantile";
        p->agg.q = strtod(how + 8, &end);
        if (end == how + 8 || *end)
            sd_lua_fail(L, SD_EINVAL, "\"%s\": quantile and a number expected: \"quantile 0.9\"",
                        how);
        snprintf(suffix, sizeof suffix, "q%g", p->agg.q * 100);
        for (char *s = suffix; *s; s++)
            if (*s == '.' || *s == '-' || *s == '+')
                *s = '_';
    }
    snprintf(p->as, sizeof p->as, several ? "%s_%s" : "%s", col, suffix);
}

static void add_plan(lua_State *L, int v, int col, const char *name, bool several, plan *plans,
                     int *n) {
    if (*n == MAX_AGGS)
        sd_lua_fail(L, SD_EINVAL, "more than %d aggregates", MAX_AGGS);
    plan *p = &plans[(*n)++];
    memset(p, 0, sizeof *p);
    p->col = col;
    if (strlen(name) > 64)
        sd_lua_fail(L, SD_EINVAL, "column %s: a name too long to aggregate", name);
    if (lua_isfunction(L, v)) {
        p->fn = lua_absindex(L, v);
        snprintf(p->as, sizeof p->as, several ? "%s_f%d" : "%s", name, *n);
    } else if (lua_type(L, v) == LUA_TSTRING) {
        read_agg(L, lua_tostring(L, v), p, name, several);
    } else {
        sd_lua_fail(L, SD_EINVAL,
                    "%s: an aggregate is a name (median mean min max sum sd count first last, "
                    "\"quantile 0.9\") or a function of a tensor, got a %s",
                    name, luaL_typename(L, v));
    }
}

/* The aggregates of {column = how}, in the order of the table's columns. */
static int read_plans(lua_State *L, const sd_table *t, int o, plan *plans) {
    int n = 0;
    if (lua_isnoneornil(L, o))
        return 0;
    luaL_checktype(L, o, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, o); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            sd_lua_fail(L, SD_EINVAL,
                        "aggregates are named: w:group(\"layer\", {pr = \"median\"})");
        sd_lua_table_col(L, t, lua_tostring(L, -2));
    }
    for (int c = 0; c < sd_table_cols(t); c++) {
        const char *name = sd_table_col_name(t, c);
        luaL_checkstack(L, 8, NULL);
        if (lua_getfield(L, o, name) == LUA_TNIL) {
            lua_pop(L, 1);
            continue;
        }
        if (!lua_istable(L, -1)) {
            add_plan(L, -1, c, name, false, plans, &n); /* a function stays on the stack */
            continue;
        }
        int list = lua_gettop(L), m = (int)lua_rawlen(L, list);
        for (int i = 1; i <= m; i++) {
            luaL_checkstack(L, 4, NULL);
            lua_rawgeti(L, list, i);
            add_plan(L, -1, c, name, true, plans, &n);
        }
    }
    return n;
}

/* A Lua function of each group's values. */
static void apply(lua_State *L, const sd_table *t, const plan *p, const int *order,
                  const int *start, int groups, sd_table *d) {
    sd_err e = {0};
    int c;
    sd_col_kind k = sd_table_col_kind(t, p->col);
    if (k != SD_COL_INT && k != SD_COL_NUM)
        sd_lua_fail(L, SD_EINVAL, "%s holds no numbers: a function aggregates numbers",
                    sd_table_col_name(t, p->col));
    if (sd_table_put_column(d, p->as, SD_COL_NUM, "a function of the group", &c, &e) != SD_OK)
        sd_lua_raise(L, &e);
    for (int g = 0; g < groups; g++) {
        int64_t n = 0;
        lua_pushvalue(L, p->fn);
        sd_tensor **b = sd_lua_box_tensor(L);
        for (int i = start[g]; i < start[g + 1]; i++)
            n += sd_table_has(t, order[i], p->col);
        if (sd_tensor_new(SD_F64, 1, &n, b, &e) != SD_OK)
            sd_lua_raise(L, &e);
        double *x = (*b)->data;
        for (int i = start[g]; i < start[g + 1]; i++)
            if (sd_table_has(t, order[i], p->col))
                *x++ = sd_table_num(t, order[i], p->col);
        sd_lua_boxed_tensor(L, b);
        lua_call(L, 1, 1);
        if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TNUMBER)
            sd_lua_fail(L, SD_EINVAL, "the function of %s gave a %s, not a number",
                        sd_table_col_name(t, p->col), luaL_typename(L, -1));
        if (!lua_isnil(L, -1))
            sd_table_put_num(d, g, c, lua_tonumber(L, -1));
        lua_pop(L, 1);
    }
}

static int w_group(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    const char *names[MAX_NAMES];
    int cols[MAX_NAMES], n = read_names(L, 2, names, MAX_NAMES);
    int o = lua_istable(L, 2) ? 3 : n + 2, rows = sd_table_rows(t), groups = 0, named = 0;
    lua_settop(L, o);
    for (int i = 0; i < n; i++)
        cols[i] = sd_lua_table_col(L, t, names[i]);
    plan *plans = lua_newuserdatauv(L, sizeof *plans * MAX_AGGS, 0);
    int m = read_plans(L, t, o, plans);
    sd_agg *aggs = lua_newuserdatauv(L, sizeof *aggs * (size_t)(m + 1), 0);
    for (int i = 0; i < m; i++) {
        if (plans[i].fn)
            continue;
        aggs[named] = plans[i].agg;
        aggs[named++].as = plans[i].as;
    }
    int *order = new_order(L, rows), *start = new_order(L, rows + 1);
    sd_table **b = sd_lua_box_table(L);
    int box = lua_gettop(L);
    sd_err e = {0};
    if (sd_table_group(t, cols, n, aggs, named, b, &e) != SD_OK ||
        sd_table_groups(t, cols, n, order, start, &groups, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    for (int i = 0; i < m; i++)
        if (plans[i].fn)
            apply(L, t, &plans[i], order, start, groups, *b);
    if (m > 0 && named == 0) /* made for want of aggregates */
        sd_table_drop_column(*b, sd_lua_table_col(L, *b, "n"));
    lua_settop(L, box);
    return 1;
}

/* ---- several tables ---- */
static int w_join(lua_State *L) {
    sd_table *a = sd_lua_check_table(L, 1), *b = sd_lua_check_table(L, 2);
    const char *names[MAX_NAMES];
    static const char *const opts[] = {"how", "suffix", NULL};
    int n = read_names(L, 3, names, MAX_NAMES), o = lua_istable(L, 3) ? 4 : n + 3;
    sd_lua_check_options(L, o, opts);
    const char *how = sd_lua_opt_str(L, o, "how", "inner");
    sd_join j = strcmp(how, "inner") == 0   ? SD_JOIN_INNER
                : strcmp(how, "left") == 0  ? SD_JOIN_LEFT
                : strcmp(how, "outer") == 0 ? SD_JOIN_OUTER
                                            : (sd_join)-1;
    if ((int)j < 0)
        return sd_lua_fail(L, SD_EINVAL, "how=\"%s\": inner, left or outer expected", how);
    const char *suffix = sd_lua_opt_str(L, o, "suffix", "_2");
    sd_table **out = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_join(a, b, names, n, j, suffix, out, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static int w_concat(lua_State *L) {
    enum { MAX_TABLES = 1000 };
    int n = lua_gettop(L);
    static const char *const opts[] = {"by", NULL};
    int o = n >= 2 && lua_istable(L, n) ? n : 0;
    if (o) {
        sd_lua_check_options(L, o, opts);
        n--;
    }
    if (n > MAX_TABLES)
        return sd_lua_fail(L, SD_EINVAL, "more than %d tables", MAX_TABLES);
    const sd_table **t = lua_newuserdatauv(L, sizeof *t * (size_t)n, 0);
    for (int i = 0; i < n; i++)
        t[i] = sd_lua_check_table(L, i + 1);
    const char *by = o ? sd_lua_opt_str(L, o, "by", NULL) : NULL;
    sd_table **out = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_concat(t, n, by, out, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static int w_describe(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    sd_table **out = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_summarise(t, out, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static int read_table(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    sd_table **out = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_read(path, out, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static const sd_fn functions[] = {
    {"read_table", read_table, "read_table(file)",
     "A result table from a CSV or JSON file, one of ours or another's.",
     "Written with header=true (w:csv, w:json) it comes back as it was: types, heading, notes, "
     "docs. "
     "Else types are read off the cells: int, num, str; empty cells are missing, quoted ones "
     "strings.",
     "local f = os.tmpname()\np:csv(f, {header=true})\nlocal q = read_table(f)\nos.remove(f)\n"
     "assert(q.pr[0] == p.pr[0] and q.heading[1] == p.heading[1])",
     NULL},
    {NULL}};

static const sd_fn methods[] = {
    {"where", w_where, "w:where(\"pr < 3 and layer >= 2\"), w:where(mask) or w:where(function)",
     "A new table of the rows for which an expression, a mask or a function holds.",
     "An expression is Lua with the columns as variables, the functions of math and your globals; "
     "a missing number is nan, so that comparisons with it are false. Masks come from columns: "
     "w[w.pr:lt(3) & w.layer:ge(2)]. (w[w.pr < 3] cannot work: Lua's < gives one boolean.)",
     "assert(#p:where \"pr < 0\" == 0)\nassert(#p:where(p.layer:eq(0)) == #p[p.layer:eq(0)])\n"
     "assert(#p:where(function(r) return r.layer == 0 end) == #p:where \"layer == 0\")",
     NULL},
    {"filter", w_where, "w:filter(function(row) return ... end)", "The same as w:where.", NULL,
     "assert(p:filter(function(r) return r.layer == 0 end):row(0).layer == 0)", NULL},
    {"eval", w_eval, "w:eval(\"pr / pr_null\")",
     "An expression over the columns, for every row: a tensor, a mask, or an array.", NULL,
     "assert(p:eval(\"pr * 2\")[0] == 2 * p.pr[0])\nassert(p:eval(\"layer == 0\"):sum() > 0)",
     NULL},
    {"with", w_with, "w:with{name = \"expression\", ...}",
     "A new table with columns added or replaced; w.name = values changes w itself.",
     "Strings are expressions (see where); tensors, arrays and single values are taken as they "
     "are. "
     "w.ratio = w.pr / w.pr_null sets a column of w, w.ratio = nil removes it.",
     "local w = p:with{ratio = \"pr / pr_null\"}\nw.twice = w.ratio * 2\n"
     "assert(w:row(0).twice == 2 * w:row(0).ratio)\nw.twice = nil\n"
     "assert(#w.columns == #p.columns + 1)",
     NULL},
    {"sort", w_sort, "w:sort(column, ..., {desc=false})",
     "A new table in the order of one or more columns; \"-pr\" descends. Missing and nan last.",
     NULL,
     "local s = p:sort(\"layer\", \"-pr\")\nassert(s:row(0).layer == 0 and s:row(0).pr >= "
     "s:row(1).pr)",
     "desc=true|false"},
    {"group", w_group, "w:group(column or {columns}, {pr = \"median\", ...})",
     "One row a group: medians, means ... of columns; without them the rows counted.",
     "Aggregates: mean median min max sum sd count first last, \"quantile 0.9\", or a function of "
     "the group's values as a tensor. One keeps the column's name, a list {\"median\", \"sd\"} "
     "gives "
     "pr_median, pr_sd. Missing and nan cells are left out.",
     "local g = p:group(\"layer\", {pr = \"median\"})\n"
     "assert(g:row(0).pr == p:where(\"layer == 0\").pr:median())\n"
     "assert(p:group({\"layer\"}, {pr = {\"min\", \"quantile 0.9\"}}):row(0).pr_q90)",
     NULL},
    {"join", w_join, "w:join(v, column or {columns}, {how=\"inner\", suffix=\"_2\"})",
     "Rows of two tables side by side where columns agree; other columns of v get a suffix.",
     "how: inner leaves out rows without a partner, left keeps those of w, outer both. A note "
     "counts "
     "them.",
     "local j = p:join(p, {\"layer\", \"head\"}, {suffix = \"_b\"})\n"
     "assert(#j == #p and j:row(0).pr_b == p:row(0).pr)",
     "how=inner|left|outer suffix="},
    {"concat", w_concat, "w:concat(v, ..., {by=})",
     "The rows of several tables under each other, columns by name.",
     "by=\"model\": a first column with each table's meta entry of that name, or its place.",
     "local c = p:concat(p, {by = \"run\"})\nassert(#c == 2 * #p and c:row(-1).run == \"1\")",
     "by="},
    {"first", w_first, "w:first([n])", "A new table of the first n (5) rows.", NULL,
     "assert(#p:first(2) == 2)", NULL},
    {"last", w_last, "w:last([n])", "A new table of the last n (5) rows.", NULL,
     "assert(p:last(1):row(0).layer == p:row(-1).layer)", NULL},
    {"describe", w_describe, "w:describe()",
     "One row a column: how many values, mean, sd, least, quartiles, greatest.", NULL,
     "assert(p:describe():where(\"column == 'pr'\"):row(0).n == #p)", NULL},
    {NULL}};

void sd_lua_table_ops(lua_State *L) {
    sd_lua_register(L, methods, "table:");
}

void sd_lua_table_functions(lua_State *L) {
    sd_lua_register(L, functions, "");
}
