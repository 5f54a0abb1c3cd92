/* table.c: result tables in Lua: rows, columns, printing, CSV and JSON (what computes is in
 * table_ops.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/table_ops.h"
#include "lua/bind.h"
#include "lua/table.h"
#include "spectral/spectral.h"

static int close_table(lua_State *L) {
    sd_table **b = luaL_checkudata(L, 1, SD_MT_TABLE);
    sd_table_unref(*b);
    *b = NULL;
    return 0;
}

void sd_lua_table_cell(lua_State *L, const sd_table *t, int row, int col) {
    if (!sd_table_has(t, row, col)) {
        lua_pushnil(L);
        return;
    }
    switch (sd_table_col_kind(t, col)) {
    case SD_COL_INT:
        lua_pushinteger(L, sd_table_int(t, row, col));
        break;
    case SD_COL_NUM:
        lua_pushnumber(L, sd_table_num(t, row, col));
        break;
    case SD_COL_STR:
        lua_pushstring(L, sd_table_str(t, row, col));
        break;
    case SD_COL_VEC: {
        size_t n;
        const double *v = sd_table_vec(t, row, col, &n);
        lua_createtable(L, n < 1 << 20 ? (int)n : 0, 0);
        for (size_t i = 0; i < n; i++) {
            lua_pushnumber(L, v[i]);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
    }
    }
}

static void push_row(lua_State *L, const sd_table *t, int row) {
    int nc = sd_table_cols(t);
    lua_createtable(L, 0, nc);
    for (int c = 0; c < nc; c++) {
        sd_lua_table_cell(L, t, row, c);
        lua_setfield(L, -2, sd_table_col_name(t, c));
    }
}

static const char *col_name_at(const void *ctx, size_t i) {
    const sd_table *t = ctx;
    return (int)i < sd_table_cols(t) ? sd_table_col_name(t, (int)i) : NULL;
}

int sd_lua_table_col(lua_State *L, const sd_table *t, const char *name) {
    int c = sd_table_find_col(t, name);
    if (c < 0 && sd_column_renamed(name))
        c = sd_table_find_col(t, sd_column_renamed(name));
    if (c < 0) {
        const char *near = sd_suggest(name, col_name_at, t);
        if (near)
            sd_lua_fail(L, SD_EINVAL, "no column %s: did you mean %s?", name, near);
        sd_lua_fail(L, SD_EINVAL, "no column %s (w.columns lists them)", name);
    }
    return c;
}

static int w_row(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    lua_Integer i = luaL_checkinteger(L, 2);
    if (i < 0)
        i += sd_table_rows(t); /* -1 is the last */
    if (i < 0 || i >= sd_table_rows(t))
        return sd_lua_fail(L, SD_EINVAL, "expected row 0..%d, got %lld: rows count from 0",
                           sd_table_rows(t) - 1, (long long)i);
    push_row(L, t, (int)i);
    return 1;
}

static int next_row(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    lua_Integer i = luaL_checkinteger(L, 2) + 1;
    if (i >= sd_table_rows(t))
        return 0;
    lua_pushinteger(L, i);
    push_row(L, t, (int)i);
    return 2;
}

static int w_rows(lua_State *L) {
    sd_lua_check_table(L, 1);
    lua_pushcfunction(L, next_row);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, -1);
    return 3;
}

static int w_head(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int layer = (int)luaL_checkinteger(L, 2), head = (int)luaL_optinteger(L, 3, -1);
    int r = sd_table_find_row(t, layer, head);
    if (r < 0) {
        if (lua_isnoneornil(L, 3))
            return sd_lua_fail(L, SD_EINVAL, "no row of layer %d (layers count from 0)", layer);
        return sd_lua_fail(L, SD_EINVAL, "no row of layer %d head %d (both count from 0)", layer,
                           head);
    }
    push_row(L, t, r);
    return 1;
}

/* Lua array of a column; missing cells are nil holes, so the length is #w. */
static int w_array(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int c = sd_lua_table_col(L, t, luaL_checkstring(L, 2)), n = sd_table_rows(t);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        sd_lua_table_cell(L, t, i, c);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int w_column(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int c = sd_lua_table_col(L, t, luaL_checkstring(L, 2));
    int64_t n = sd_table_rows(t);
    sd_col_kind k = sd_table_col_kind(t, c);
    if (k != SD_COL_INT && k != SD_COL_NUM)
        return sd_lua_fail(L, SD_EINVAL, "column %s is not of numbers: use w:array",
                           sd_table_col_name(t, c));
    sd_tensor **b = sd_lua_box_tensor(L);
    sd_err e = {0};
    if (sd_tensor_new(SD_F64, 1, &n, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    for (int i = 0; i < n; i++)
        ((double *)(*b)->data)[i] = sd_table_has(t, i, c) ? sd_table_num(t, i, c) : NAN;
    sd_lua_boxed_tensor(L, b);
    return 1;
}

/* ---- new tables from old
 * ------------------------------------------------------------------------- */

static int w_select(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int nc = sd_table_cols(t);
    bool *keep = lua_newuserdatauv(L, (size_t)nc + 1, 0);
    memset(keep, 0, (size_t)nc + 1);
    if (lua_istable(L, 2)) {
        for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, 2); i++) {
            lua_rawgeti(L, 2, i);
            keep[sd_lua_table_col(L, t, luaL_checkstring(L, -1))] = true;
            lua_pop(L, 1);
        }
    } else {
        int top = lua_gettop(L) - 1;
        for (int i = 2; i <= top; i++)
            keep[sd_lua_table_col(L, t, luaL_checkstring(L, i))] = true;
    }
    sd_table **b = sd_lua_box_table(L);
    sd_err e = {0};
    if (sd_table_take(t, NULL, 0, keep, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

/* ---- out
 * ------------------------------------------------------------------------------------------- */

/* With a path: written there; without: returned. */
static int deliver(lua_State *L, sd_status st, sd_buf *b, const char *path, sd_err *e) {
    if (st == SD_OK)
        st = sd_buf_status(b, e);
    if (st == SD_OK && path)
        st = sd_write_file(path, b->p ? b->p : "", b->n, e);
    if (st == SD_OK && !path)
        lua_pushlstring(L, b->p ? b->p : "", b->n);
    sd_buf_free(b);
    return st == SD_OK ? !path : sd_lua_raise(L, e);
}

static int w_csv(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int o = lua_istable(L, 2) ? 2 : 3;
    const char *path = o == 3 ? luaL_optstring(L, 2, NULL) : NULL;
    static const char *const names[] = {"header", NULL};
    sd_lua_check_options(L, o, names);
    sd_buf b = {0};
    sd_err e = {0};
    sd_status st = SD_OK;
    if (sd_lua_opt_bool(L, o, "header", false)) {
        sd_buf_puts(&b, "#sd ");
        st = sd_table_header_json(t, &b, &e);
        sd_buf_puts(&b, "\r\n");
    }
    if (st == SD_OK)
        st = sd_table_csv(t, &b, &e);
    return deliver(L, st, &b, path, &e);
}

static int w_json(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    int o = lua_istable(L, 2) ? 2 : 3;
    const char *path = o == 3 ? luaL_optstring(L, 2, NULL) : NULL;
    static const char *const names[] = {"vectors", "header", NULL};
    sd_lua_check_options(L, o, names);
    bool header = sd_lua_opt_bool(L, o, "header", false);
    bool vec = sd_lua_opt_bool(L, o, "vectors", header);
    sd_buf b = {0};
    sd_err e = {0};
    sd_status st = SD_OK;
    if (header) {
        sd_buf_puts(&b, "{\"table\": ");
        st = sd_table_header_json(t, &b, &e);
        sd_buf_puts(&b, ",\n\"rows\": ");
    }
    if (st == SD_OK)
        st = sd_table_json(t, vec, &b, &e);
    if (header)
        sd_buf_puts(&b, "}\n");
    return deliver(L, st, &b, path, &e);
}

static int text_of(lua_State *L, const sd_table *t, int width, int rows) {
    sd_buf b = {0};
    sd_err e = {0};
    sd_status st = sd_table_print(t, width, rows, &b, &e);
    while (st == SD_OK && b.n && b.p[b.n - 1] == '\n')
        b.n--;
    deliver(L, st, &b, NULL, &e);
    return 1;
}

static int w_tostring(lua_State *L) {
    sd_table **b = luaL_checkudata(L, 1, SD_MT_TABLE);
    if (!*b) {
        lua_pushliteral(L, "result table (closed)");
        return 1;
    }
    sd_lua *S = sd_lua_get(L);
    return text_of(L, *b, S->width, S->rows);
}

static int w_print(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    static const char *const names[] = {"rows", "width", NULL};
    sd_lua_check_options(L, 2, names);
    int rows = (int)sd_lua_opt_int(L, 2, "rows", 0);
    int width = (int)sd_lua_opt_int(L, 2, "width", sd_lua_get(L)->width);
    if (rows < 0 || width < 20)
        return sd_lua_fail(L, SD_EINVAL, "rows >= 0 and width >= 20 expected");
    text_of(L, t, width, rows);
    size_t n;
    const char *s = lua_tolstring(L, -1, &n);
    fwrite(s, 1, n, stdout);
    fputc('\n', stdout);
    return 0;
}

static void push_strings(lua_State *L, const sd_table *t, size_t n,
                         const char *(*at)(const sd_table *, size_t)) {
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        lua_pushstring(L, at(t, i));
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

static const char *column_at(const sd_table *t, size_t i) {
    return sd_table_col_name(t, (int)i);
}

static int w_doc(lua_State *L) {
    sd_table *t = sd_lua_check_table(L, 1);
    if (lua_isnoneornil(L, 2)) {
        luaL_Buffer b;
        luaL_buffinit(L, &b);
        for (int c = 0; c < sd_table_cols(t); c++) {
            lua_pushfstring(L, "%s%s: %s", c ? "\n" : "", sd_table_col_name(t, c),
                            sd_table_col_doc(t, c));
            luaL_addvalue(&b);
        }
        luaL_pushresult(&b);
        return 1;
    }
    lua_pushstring(L, sd_table_col_doc(t, sd_lua_table_col(L, t, luaL_checkstring(L, 2))));
    return 1;
}

static int w_index(lua_State *L) {
    sd_table *t;
    if (sd_lua_test_tensor(L, 2))
        return sd_lua_table_pick(L);
    if (lua_isboolean(L, 2))
        return sd_lua_fail(L, SD_EINVAL,
                           "w[...] got one boolean: Lua compares whole columns to one; write "
                           "w[w.layer:eq(3)] or w:where \"layer == 3\"");
    if (lua_type(L, 2) == LUA_TNUMBER) /* an index would silently miss a row under ipairs */
        return sd_lua_fail(L, SD_EINVAL, "rows count from 0: w:row(%d), or for i, row in w:rows()",
                           (int)lua_tointeger(L, 2));
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    t = sd_lua_check_table(L, 1);
    const char *k = luaL_checkstring(L, 2);
    if (strcmp(k, "kind") == 0) {
        lua_pushstring(L, sd_table_kind(t));
    } else if (strcmp(k, "columns") == 0) {
        push_strings(L, t, (size_t)sd_table_cols(t), column_at);
    } else if (strcmp(k, "notes") == 0) {
        push_strings(L, t, sd_table_n_notes(t), sd_table_note_at);
    } else if (strcmp(k, "heading") == 0) {
        push_strings(L, t, sd_table_n_heading(t), sd_table_heading_at);
    } else if (strcmp(k, "meta") == 0) {
        lua_newtable(L);
        for (size_t i = 0; i < sd_table_n_meta(t); i++) {
            const char *s = NULL;
            double v = 0;
            const char *name = sd_table_meta_at(t, i, &s, &v);
            if (s)
                lua_pushstring(L, s);
            else
                lua_pushnumber(L, v);
            lua_setfield(L, -2, name);
        }
    } else if (sd_table_find_col(t, k) >= 0) {
        /* w.pr: a one-row table gives the value, others the column */
        int c = sd_table_find_col(t, k);
        if (sd_table_rows(t) == 1) {
            sd_lua_table_cell(L, t, 0, c);
            return 1;
        }
        sd_col_kind kind = sd_table_col_kind(t, c);
        lua_settop(L, 2);
        return kind == SD_COL_INT || kind == SD_COL_NUM ? w_column(L) : w_array(L);
    } else {
        return sd_lua_fail(L, SD_EINVAL,
                           "no column, method or field %s (w.columns lists the columns)", k);
    }
    return 1;
}

static int w_len(lua_State *L) {
    lua_pushinteger(L, sd_table_rows(sd_lua_check_table(L, 1)));
    return 1;
}

/* ---- tables from Lua rows
 * --------------------------------------------------------------------------- */

/* Kind of column `name` over all rows: the narrowest that holds every value. */
static int kind_of(lua_State *L, int rows, const char *name) {
    int kind = -1;
    lua_Integer n = (lua_Integer)lua_rawlen(L, rows);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, rows, i);
        int t = lua_getfield(L, -1, name), k = kind;
        if (t == LUA_TNUMBER)
            k = lua_isinteger(L, -1) ? SD_COL_INT : SD_COL_NUM;
        else if (t == LUA_TSTRING || t == LUA_TBOOLEAN)
            k = SD_COL_STR;
        else if (t == LUA_TTABLE)
            k = SD_COL_VEC;
        else if (t != LUA_TNIL)
            sd_lua_fail(L, SD_EINVAL,
                        "row %d: %s is a %s: numbers, strings and arrays of numbers "
                        "make a table",
                        (int)i, name, lua_typename(L, t));
        if (kind >= 0 && k != kind) {
            if ((k == SD_COL_INT && kind == SD_COL_NUM) || (k == SD_COL_NUM && kind == SD_COL_INT))
                k = SD_COL_NUM;
            else
                sd_lua_fail(L, SD_EINVAL, "row %d: %s is of another type than above", (int)i, name);
        }
        kind = k;
        lua_pop(L, 2);
    }
    return kind < 0 ? SD_COL_NUM : kind;
}

static sd_status set_cell(lua_State *L, sd_table *t, int row, const char *name, sd_col_kind k,
                          sd_err *err) {
    if (lua_isnil(L, -1))
        return SD_OK;
    switch (k) {
    case SD_COL_INT:
        sd_table_set_int(t, row, name, lua_tointeger(L, -1));
        return SD_OK;
    case SD_COL_NUM:
        sd_table_set_num(t, row, name, lua_tonumber(L, -1));
        return SD_OK;
    case SD_COL_STR:
        return sd_table_set_str(t, row, name,
                                lua_isboolean(L, -1) ? (lua_toboolean(L, -1) ? "true" : "false")
                                                     : lua_tostring(L, -1),
                                err);
    default: {
        size_t n = lua_rawlen(L, -1);
        double *v = lua_newuserdatauv(L, (n + 1) * sizeof *v, 0);
        for (size_t i = 0; i < n; i++) {
            lua_rawgeti(L, -2, (lua_Integer)i + 1);
            v[i] = lua_tonumber(L, -1);
            lua_pop(L, 1);
        }
        sd_status st = sd_table_set_vec(t, row, name, v, n, err);
        lua_pop(L, 1);
        return st;
    }
    }
}

static int tabulate(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    static const char *const names[] = {"columns", "kind", "heading", NULL};
    sd_lua_check_options(L, 2, names);
    lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
    lua_settop(L, 2);
    if (!sd_lua_option(L, 2, "columns")) { /* sorted names of all rows */
        lua_getglobal(L, "table");
        lua_getfield(L, -1, "sort");
        lua_newtable(L);
        lua_newtable(L); /* seen */
        for (lua_Integer i = 1; i <= n; i++) {
            lua_rawgeti(L, 1, i);
            luaL_checktype(L, -1, LUA_TTABLE);
            for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
                if (lua_type(L, -2) != LUA_TSTRING)
                    return sd_lua_fail(L, SD_EINVAL,
                                       "row %d: columns have names, got key of type %s", (int)i,
                                       luaL_typename(L, -2));
                lua_pushvalue(L, -2);
                if (lua_rawget(L, 6) == LUA_TNIL) {
                    lua_pushvalue(L, -3);
                    lua_rawseti(L, 5, (lua_Integer)lua_rawlen(L, 5) + 1);
                    lua_pushvalue(L, -3);
                    lua_pushboolean(L, 1);
                    lua_rawset(L, 6);
                }
                lua_pop(L, 1);
            }
            lua_pop(L, 1);
        }
        lua_settop(L, 5);
        lua_pushvalue(L, 4);
        lua_pushvalue(L, 5);
        lua_call(L, 1, 0);
        lua_replace(L, 3);
        lua_settop(L, 3);
    }
    luaL_checktype(L, 3, LUA_TTABLE);
    sd_table **b = sd_lua_box_table(L);
    sd_err e = {0};
    sd_table *t = *b = sd_table_new(sd_lua_opt_str(L, 2, "kind", "table"), &e);
    sd_status st = t ? SD_OK : SD_ENOMEM;
    const char *heading = sd_lua_opt_str(L, 2, "heading", NULL);
    if (st == SD_OK && heading)
        st = sd_table_heading(t, &e, "%s", heading);
    int nc = (int)lua_rawlen(L, 3);
    for (int c = 1; st == SD_OK && c <= nc; c++) {
        lua_rawgeti(L, 3, c);
        const char *name = luaL_checkstring(L, -1);
        sd_buf doc = {0};
        sd_column_doc(name, &doc);
        int kind = kind_of(L, 1, name);
        st = sd_table_add_column(t, name, (sd_col_kind)kind, doc.p ? doc.p : "", false, NULL, &e);
        sd_buf_free(&doc);
        lua_pop(L, 1);
    }
    for (lua_Integer i = 1; st == SD_OK && i <= n; i++) {
        int row;
        st = sd_table_add_row(t, &row, &e);
        lua_rawgeti(L, 1, i);
        for (int c = 0; st == SD_OK && c < nc; c++) {
            lua_getfield(L, -1, sd_table_col_name(t, c));
            st = set_cell(L, t, row, sd_table_col_name(t, c), sd_table_col_kind(t, c), &e);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

static const sd_fn functions[] = {
    {"tabulate", tabulate, "tabulate({{name=value, ...}, ...}, {columns=, kind=, heading=})",
     "A result table from Lua rows: it prints, sorts, plots and writes as any other.",
     "columns: an array of names in the order wanted (default: all names, sorted).",
     "w = tabulate({{layer=0, pr=2.5}, {layer=1, pr=3.5}}, {columns={'layer', 'pr'}})\n"
     "assert(w:row(1).pr == 3.5)",
     "columns= kind= heading="},
    {NULL}};

static const sd_fn methods[] = {
    {"row", w_row, "w:row(i)", "Row i (from 0; -1 is the last) as a Lua table, with its vectors.",
     NULL, "assert(p:row(0).layer == 0)", NULL},
    {"rows", w_rows, "for i, row in w:rows() do ... end", "Iterates over the rows, from 0.", NULL,
     "local n = 0\nfor i, r in p:rows() do n = n + 1 end\nassert(n == #p)", NULL},
    {"head", w_head, "w:head(layer, [head])", "The row of a layer (and head), counted from 0.",
     NULL, "assert(p:head(0, 1).head == 1)\nassert(#p:head(0, 0).planes > 0)", NULL},
    {"column", w_column, "w:column(name)",
     "A column of numbers as a tensor, missing cells nan; also w.name.", NULL,
     "assert(p:column(\"pr\"):min() >= 0)", NULL},
    {"array", w_array, "w:array(name)", "A column as a Lua array, missing cells nil.", NULL,
     "assert(p:array(\"layer\")[1] == 0)", NULL},
    {"select", w_select, "w:select(column, ...)", "A new table of some columns.", NULL,
     "assert(#p:select(\"layer\", \"head\", \"pr\").columns == 3)", NULL},
    {"csv", w_csv, "w:csv([file], {header=false})", "Writes CSV to a file, or returns it.",
     "header=true: a first line with types, heading, notes and docs, which read_table reads back.",
     "assert(p:csv():match \"^layer\")", "header=true|false"},
    {"json", w_json, "w:json([file], {vectors=false, header=false})",
     "Writes an array of row objects to a file, or returns it.",
     "header=true: an object with the rows, their vectors, types, heading, notes and docs, which "
     "read_table reads back.",
     "assert(p:json():match \"^%[\")", "vectors=true|false header=true|false"},
    {"print", w_print, "w:print({rows=0, width=})", "Prints all rows (or some) at a width.", NULL,
     "p:print{rows=2}", "rows= width="},
    {"doc", w_doc, "w:doc([column])", "What a column (or every column) means.", NULL,
     "assert(#p:doc(\"pr\") > 0)", NULL},
    {"close", NULL, "w:close()", "Frees the table now; using it afterwards is an error.", NULL,
     "local w = p:select(\"pr\")\nw:close()\nassert(not pcall(w.csv, w))", NULL},
    {NULL}};

void sd_lua_open_table(lua_State *L) {
    sd_lua_register(L, functions, "");
    sd_lua_table_functions(L);
    sd_lua_class(L, SD_MT_TABLE, methods, "table:", close_table, w_index);
    lua_getfield(L, -1, "methods");
    sd_lua_table_ops(L);
    lua_pushcclosure(L, sd_lua_table_newindex, 1);
    lua_setfield(L, -2, "__newindex");
    static const luaL_Reg meta[] = {{"__len", w_len}, {"__tostring", w_tostring}, {NULL, NULL}};
    luaL_setfuncs(L, meta, 0);
    lua_pop(L, 1);
}
