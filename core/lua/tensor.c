/* tensor.c: tensors in Lua. Indices count from 0, as layers and heads do; negative ones count from
 * the end; ranges are inclusive ("0-3"). */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "lua/bind.h"
#include "num/blas.h"
#include "spectral/spectral.h"

static int close_tensor(lua_State *L) {
    sd_tensor **b = luaL_checkudata(L, 1, SD_MT_TENSOR);
    if (*b) {
        sd_lua_unaccount(sd_lua_get(L), (*b)->storage);
        sd_tensor_free(*b);
        *b = NULL;
    }
    return 0;
}

/* Runs one fallible constructor into a fresh box; tries again after a full collection when memory
 * is short. */
#define MAKE(L_, ...)                             \
    do {                                          \
        sd_tensor **box_ = sd_lua_box_tensor(L_); \
        sd_tensor **out = box_;                   \
        sd_err e_ = {0}, *err = &e_;              \
        sd_status st_ = (__VA_ARGS__);            \
        if (st_ == SD_ENOMEM) {                   \
            lua_gc(L_, LUA_GCCOLLECT);            \
            st_ = (__VA_ARGS__);                  \
        }                                         \
        if (st_ != SD_OK)                         \
            sd_lua_raise(L_, err);                \
        sd_lua_boxed_tensor(L_, box_);            \
    } while (0)

static sd_dtype parse_dtype(lua_State *L, const char *s) {
    char up[16];
    size_t n = strlen(s);
    sd_dtype t;
    if (n < sizeof up) {
        for (size_t i = 0; i <= n; i++)
            up[i] = (char)toupper((unsigned char)s[i]);
        if (sd_dtype_find(up, &t) && !sd_dtype_get(t)->is_quant)
            return t;
    }
    sd_lua_fail(L, SD_EINVAL, "unknown dtype %s: f32, f64, f16, bf16, i8 ... i64, u8 ... u64", s);
    return SD_F64;
}

static sd_dtype opt_dtype(lua_State *L, int i, sd_dtype dflt) {
    const char *s = sd_lua_opt_str(L, i, "dtype", NULL);
    return s ? parse_dtype(L, s) : dflt;
}

static int64_t to_index(lua_State *L, int arg, int64_t n, const char *what) {
    int64_t i = luaL_checkinteger(L, arg);
    if (i < -n || i >= n) {
        if (n == 0)
            sd_lua_fail(L, SD_EINVAL, "index %lld: this %s is empty", (long long)i, what);
        sd_lua_fail(L, SD_EINVAL, "expected index 0..%lld, got %lld: tensors count from 0",
                    (long long)(n - 1), (long long)i);
    }
    return i < 0 ? i + n : i;
}

static int check_dim(lua_State *L, int arg, const sd_tensor *t) {
    int64_t d = luaL_checkinteger(L, arg);
    if (d < -t->ndim || d >= t->ndim)
        sd_lua_fail(L, SD_EINVAL, "expected dimension 0..%d, got %lld", t->ndim - 1, (long long)d);
    return (int)(d < 0 ? d + t->ndim : d);
}

static void push_scalar(lua_State *L, const sd_tensor *t, const int64_t *ix) {
    const sd_dtype_info *info = sd_dtype_get(t->dtype);
    double v = sd_tensor_at(t, ix);
    if (!info->is_float && !info->is_quant && fabs(v) < 9007199254740992.0)
        lua_pushinteger(L, (lua_Integer)v);
    else
        lua_pushnumber(L, v);
}

/* ---- construction
 * -------------------------------------------------------------------------------- */

/* Shape from integer arguments first..last or from one table. */
static int read_shape(lua_State *L, int first, int last, int64_t *shape) {
    int nd = 0;
    if (first == last && lua_istable(L, first)) {
        nd = (int)lua_rawlen(L, first);
        if (nd > SD_MAX_DIMS)
            sd_lua_fail(L, SD_EINVAL, "%d dimensions: at most %d", nd, SD_MAX_DIMS);
        for (int i = 0; i < nd; i++) {
            lua_rawgeti(L, first, i + 1);
            int ok;
            shape[i] = lua_tointegerx(L, -1, &ok);
            if (!ok)
                sd_lua_fail(L, SD_EINVAL, "shape entry %d is not an integer", i + 1);
            lua_pop(L, 1);
        }
    } else {
        if (last - first + 1 > SD_MAX_DIMS)
            sd_lua_fail(L, SD_EINVAL, "%d dimensions: at most %d", last - first + 1, SD_MAX_DIMS);
        for (int i = first; i <= last; i++)
            shape[nd++] = luaL_checkinteger(L, i);
    }
    for (int i = 0; i < nd; i++)
        if (shape[i] < 0)
            sd_lua_fail(L, SD_EINVAL, "shape entry %d is negative: %lld", i + 1,
                        (long long)shape[i]);
    return nd;
}

/* Index of the trailing options table, or 0; `data` = a first table argument is data. */
static int trailing(lua_State *L, bool data) {
    int n = lua_gettop(L);
    if (n >= 1 && lua_istable(L, n) && !(n == 1 && data))
        return n;
    return 0;
}

static int fill_data(lua_State *L, int i, int nd, const int64_t *shape, int depth, double **p) {
    luaL_checkstack(L, 4, NULL);
    if (!lua_istable(L, i) || (int64_t)lua_rawlen(L, i) != shape[depth])
        return 0;
    for (int64_t j = 1; j <= shape[depth]; j++) {
        lua_rawgeti(L, i, j);
        if (depth + 1 == nd) {
            int ok;
            *(*p)++ = lua_tonumberx(L, -1, &ok);
            if (!ok || lua_type(L, -1) != LUA_TNUMBER)
                return 0;
        } else if (!fill_data(L, lua_gettop(L), nd, shape, depth + 1, p))
            return 0;
        lua_pop(L, 1);
    }
    return 1;
}

/* Pushes a tensor made of nested tables at i. */
static void from_table(lua_State *L, int i, sd_dtype dt) {
    int64_t shape[SD_MAX_DIMS];
    int nd = 0, top = lua_gettop(L);
    lua_pushvalue(L, i);
    while (lua_istable(L, -1)) {
        if (nd >= SD_MAX_DIMS) {
            sd_lua_fail(L, SD_EINVAL, "more than %d dimensions", SD_MAX_DIMS);
            break; /* not reached */
        }
        shape[nd++] = (int64_t)lua_rawlen(L, -1);
        luaL_checkstack(L, 4, NULL);
        if (!shape[nd - 1])
            break;
        lua_rawgeti(L, -1, 1);
    }
    lua_settop(L, top);
    MAKE(L, sd_tensor_new(SD_F64, nd, shape, out, err));
    sd_tensor *t = *(sd_tensor **)lua_touserdata(L, -1);
    double *p = t->data;
    int base = lua_gettop(L);
    if (sd_tensor_numel(t) && !fill_data(L, i, nd, shape, 0, &p))
        sd_lua_fail(L, SD_EINVAL, "nested tables of numbers, all rows of equal length, expected");
    lua_settop(L, base);
    if (dt != SD_F64) {
        MAKE(L, sd_tensor_cast(t, dt, out, err));
        lua_remove(L, -2);
    }
}

sd_tensor *sd_lua_to_tensor(lua_State *L, int i, sd_dtype dflt) {
    sd_tensor *t = sd_lua_test_tensor(L, i);
    if (t)
        return t;
    i = lua_absindex(L, i);
    if (lua_type(L, i) == LUA_TNUMBER) {
        MAKE(L, sd_tensor_new(dflt, 0, NULL, out, err));
        t = *(sd_tensor **)lua_touserdata(L, -1);
        sd_tensor_put(t, NULL, lua_tonumber(L, i));
    } else if (lua_istable(L, i)) {
        from_table(L, i, dflt);
    } else {
        luaL_typeerror(L, i, "tensor, number or table of numbers");
    }
    lua_replace(L, i);
    return sd_lua_check_tensor(L, i);
}

static const char *const dtype_opts[] = {"dtype", NULL};
static const char *const seed_opts[] = {"dtype", "seed", NULL};

static int make_tensor(lua_State *L) {
    int o = trailing(L, true);
    sd_tensor *src = sd_lua_test_tensor(L, 1);
    if (o) {
        sd_lua_check_options(L, o, dtype_opts);
    }
    sd_dtype dt = opt_dtype(L, o, src ? src->dtype : SD_F64);
    int last = o ? o - 1 : lua_gettop(L);
    if (src) {
        MAKE(L, sd_tensor_cast(src, dt, out, err));
        return 1;
    }
    if (last >= 1 && lua_istable(L, 1)) {
        from_table(L, 1, dt);
        return 1;
    }
    int64_t shape[SD_MAX_DIMS];
    int nd = read_shape(L, 1, last, shape);
    MAKE(L, sd_tensor_new(dt, nd, shape, out, err));
    return 1;
}

static int fill_kind(lua_State *L, int kind) {
    /* a lone table is a shape here, as in zeros{2,3}; with names it is options */
    int n = lua_gettop(L), o = 0;
    if (n >= 1 && lua_istable(L, n) && (n > 1 || lua_rawlen(L, n) == 0))
        o = n;
    if (o)
        sd_lua_check_options(L, o, kind >= 2 ? seed_opts : dtype_opts);
    sd_dtype dt = opt_dtype(L, o, SD_F64);
    int64_t shape[SD_MAX_DIMS];
    int nd = read_shape(L, 1, o ? o - 1 : n, shape);
    uint64_t seed = 0;
    if (kind >= 2) {
        sd_run *run = sd_session_run(sd_lua_get(L)->session);
        seed = (uint64_t)sd_lua_opt_int(L, o, "seed", (int64_t)run->seed);
    }
    MAKE(L, sd_tensor_new(kind ? SD_F64 : dt, nd, shape, out, err));
    if (!kind)
        return 1;
    sd_tensor *t = sd_lua_check_tensor(L, -1);
    double *p = t->data;
    int64_t m = sd_tensor_numel(t);
    sd_rng r;
    sd_rng_seed(&r, seed);
    sd_err e = {0};
    for (int64_t i = 0; i < m; i++) {
        if ((i & 0xfffff) == 0xfffff && sd_check_cancel(&e) != SD_OK)
            sd_lua_raise(L, &e);
        p[i] = kind == 1 ? 1.0 : kind == 2 ? sd_rng_gauss(&r) : sd_rng_uniform(&r);
    }
    if (dt != SD_F64)
        MAKE(L, sd_tensor_cast(t, dt, out, err));
    return 1;
}

static int make_zeros(lua_State *L) {
    return fill_kind(L, 0);
}
static int make_ones(lua_State *L) {
    return fill_kind(L, 1);
}
static int make_randn(lua_State *L) {
    return fill_kind(L, 2);
}
static int make_rand(lua_State *L) {
    return fill_kind(L, 3);
}

static int make_eye(lua_State *L) {
    int64_t n = luaL_checkinteger(L, 1), shape[2] = {n, n};
    sd_lua_check_options(L, 2, dtype_opts);
    sd_dtype dt = opt_dtype(L, 2, SD_F64);
    if (n < 0)
        sd_lua_fail(L, SD_EINVAL, "size %lld is negative", (long long)n);
    MAKE(L, sd_tensor_new(dt, 2, shape, out, err));
    sd_tensor *t = sd_lua_check_tensor(L, -1);
    for (int64_t i = 0; i < n; i++)
        sd_tensor_put(t, (int64_t[]){i, i}, 1.0);
    return 1;
}

static int make_arange(lua_State *L) {
    double a = luaL_checknumber(L, 1), b = luaL_checknumber(L, 2), s = luaL_optnumber(L, 3, 1.0);
    if (!(s != 0) || !isfinite(a) || !isfinite(b) || !isfinite(s))
        sd_lua_fail(L, SD_EINVAL, "arange(first, last, step): finite numbers and step not 0");
    double c = floor((b - a) / s + 1e-9) + 1;
    if (c > 1e9)
        sd_lua_fail(L, SD_EINVAL, "arange of %.3g elements", c);
    int64_t n = c > 0 ? (int64_t)c : 0;
    MAKE(L, sd_tensor_new(SD_F64, 1, &n, out, err));
    double *p = sd_lua_check_tensor(L, -1)->data;
    for (int64_t i = 0; i < n; i++)
        p[i] = a + (double)i * s;
    return 1;
}

/* ---- access
 * -------------------------------------------------------------------------------------- */

/* "a-b", "all", ":" → inclusive bounds. */
static void parse_span(lua_State *L, const char *s, int64_t n, int64_t *a, int64_t *b) {
    char *end;
    *a = 0;
    *b = n - 1;
    if (strcmp(s, "all") == 0 || strcmp(s, ":") == 0)
        return;
    *a = strtoll(s, &end, 10);
    *b = *a;
    if (end != s && *end == '-' && isdigit((unsigned char)end[1]))
        *b = strtoll(end + 1, &end, 10);
    if (end == s || *end)
        sd_lua_fail(L, SD_EINVAL, "\"%s\": a range such as \"0-3\", or \"all\", expected", s);
    if (*a < 0 || *b >= n || *a > *b)
        sd_lua_fail(L, SD_EINVAL, "range \"%s\": expected 0..%lld", s, (long long)(n - 1));
}

/* t(i, "0-3", "all"): one entry a dimension. */
static int t_call(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int n = lua_gettop(L) - 1, dim = 0;
    if (n > t->ndim)
        sd_lua_fail(L, SD_EINVAL, "%d indices for %d dimensions", n, t->ndim);
    lua_pushvalue(L, 1);
    for (int i = 0; i < n; i++) {
        if (lua_isnoneornil(L, i + 2)) {
            dim++;
        } else if (lua_type(L, i + 2) == LUA_TSTRING) {
            int64_t a, b;
            parse_span(L, lua_tostring(L, i + 2), t->shape[dim], &a, &b);
            MAKE(L, sd_tensor_slice(t, dim, a, b + 1, out, err));
            dim++;
        } else {
            int64_t ix = to_index(L, i + 2, t->shape[dim], "dimension");
            MAKE(L, sd_tensor_select(t, dim, ix, out, err));
        }
        if (lua_gettop(L) > n + 2)
            lua_replace(L, n + 2);
        t = sd_lua_check_tensor(L, n + 2);
    }
    if (t->ndim == 0) {
        push_scalar(L, t, NULL);
        return 1;
    }
    return 1;
}

static int t_index(lua_State *L) {
    sd_tensor *t = NULL;
    if (lua_type(L, 2) == LUA_TSTRING) {
        lua_pushvalue(L, 2);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
            return 1;
        t = sd_lua_check_tensor(L, 1);
        const char *k = lua_tostring(L, 2);
        if (strcmp(k, "shape") == 0) {
            lua_createtable(L, t->ndim, 0);
            for (int i = 0; i < t->ndim; i++) {
                lua_pushinteger(L, t->shape[i]);
                lua_rawseti(L, -2, i + 1);
            }
            return 1;
        }
        if (strcmp(k, "dtype") == 0) {
            char low[16];
            const char *nm = sd_dtype_get(t->dtype)->name;
            size_t i = 0;
            for (; i < sizeof low - 1 && nm[i]; i++)
                low[i] = (char)tolower((unsigned char)nm[i]);
            low[i] = 0;
            lua_pushstring(L, low);
            return 1;
        }
        if (strcmp(k, "ndim") == 0) {
            lua_pushinteger(L, t->ndim);
            return 1;
        }
        if (strcmp(k, "n") == 0) {
            lua_pushinteger(L, sd_tensor_numel(t));
            return 1;
        }
        if (isdigit((unsigned char)*k) || strcmp(k, "all") == 0) {
            lua_settop(L, 2);
            return t_call(L);
        }
        return sd_lua_fail(L, SD_EINVAL, "a tensor has no field %s (help \"tensor\" lists them)",
                           k);
    }
    t = sd_lua_check_tensor(L, 1);
    if (t->ndim == 0)
        return sd_lua_fail(L, SD_EINVAL, "a scalar tensor has no elements: use t:item()");
    if (lua_type(L, 2) != LUA_TNUMBER)
        return luaL_typeerror(L, 2, "integer index or field name");
    int64_t i = to_index(L, 2, t->shape[0], "dimension");
    if (t->ndim == 1) {
        push_scalar(L, t, &i);
        return 1;
    }
    MAKE(L, sd_tensor_select(t, 0, i, out, err));
    return 1;
}

static void fill(sd_tensor *t, double v) {
    int64_t ix[SD_MAX_DIMS] = {0}, n = sd_tensor_numel(t);
    for (int64_t i = 0; i < n; i++) {
        sd_tensor_put(t, ix, v);
        for (int d = t->ndim - 1; d >= 0 && ++ix[d] == t->shape[d]; d--)
            ix[d] = 0;
    }
}

static void check_plain(lua_State *L, const sd_tensor *t) {
    if (sd_dtype_get(t->dtype)->is_quant)
        sd_lua_fail(L, SD_EINVAL, "a %s tensor cannot be written: t:cast \"f32\" first",
                    sd_dtype_get(t->dtype)->name);
}

static void assign(lua_State *L, sd_tensor *dst, int val) {
    check_plain(L, dst);
    if (lua_type(L, val) == LUA_TNUMBER) {
        fill(dst, lua_tonumber(L, val));
        return;
    }
    sd_tensor *src = sd_lua_to_tensor(L, val, SD_F64);
    sd_err e = {0};
    if (sd_tensor_copy_into(dst, src, &e) != SD_OK)
        sd_lua_raise(L, &e);
}

static int t_newindex(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    if (t->ndim == 1 && lua_type(L, 2) == LUA_TNUMBER) {
        int64_t i = to_index(L, 2, t->shape[0], "dimension");
        check_plain(L, t);
        sd_tensor_put(t, &i, luaL_checknumber(L, 3));
        return 0;
    }
    if (lua_type(L, 2) != LUA_TNUMBER &&
        !(lua_type(L, 2) == LUA_TSTRING && isdigit((unsigned char)*lua_tostring(L, 2))))
        return sd_lua_fail(L, SD_EINVAL, "a tensor has no field to set: t[i] = value, or t:set");
    lua_pushcfunction(L, t_call);
    lua_pushvalue(L, 1);
    lua_pushvalue(L, 2);
    lua_call(L, 2, 1);
    assign(L, sd_lua_check_tensor(L, -1), 3);
    return 0;
}

static void read_multi(lua_State *L, sd_tensor *t, int first, int64_t *ix) {
    for (int i = 0; i < t->ndim; i++)
        ix[i] = to_index(L, first + i, t->shape[i], "dimension");
}

static int t_get(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int64_t ix[SD_MAX_DIMS];
    if (lua_gettop(L) - 1 != t->ndim)
        return sd_lua_fail(L, SD_EINVAL, "%d indices for %d dimensions", lua_gettop(L) - 1,
                           t->ndim);
    read_multi(L, t, 2, ix);
    push_scalar(L, t, ix);
    return 1;
}

static int t_set(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int64_t ix[SD_MAX_DIMS];
    if (lua_gettop(L) - 2 != t->ndim)
        return sd_lua_fail(L, SD_EINVAL, "%d indices for %d dimensions", lua_gettop(L) - 2,
                           t->ndim);
    check_plain(L, t);
    read_multi(L, t, 2, ix);
    sd_tensor_put(t, ix, luaL_checknumber(L, t->ndim + 2));
    lua_settop(L, 1);
    return 1;
}

static int t_slice(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int d = check_dim(L, 2, t);
    int64_t a = to_index(L, 3, t->shape[d], "dimension"),
            b = to_index(L, 4, t->shape[d], "dimension");
    if (b < a)
        return sd_lua_fail(L, SD_EINVAL, "last %lld before first %lld", (long long)b, (long long)a);
    MAKE(L, sd_tensor_slice(t, d, a, b + 1, out, err));
    return 1;
}

static int t_select(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int d = check_dim(L, 2, t);
    int64_t i = to_index(L, 3, t->shape[d], "dimension");
    MAKE(L, sd_tensor_select(t, d, i, out, err));
    return 1;
}

static int t_transpose(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    if (t->ndim < 2)
        return sd_lua_fail(L, SD_EINVAL, "a tensor of %d dimensions has no transpose", t->ndim);
    int a = t->ndim - 2, b = t->ndim - 1;
    if (!lua_isnoneornil(L, 2)) {
        a = check_dim(L, 2, t);
        b = check_dim(L, 3, t);
    }
    MAKE(L, sd_tensor_transpose(t, a, b, out, err));
    return 1;
}

static int t_reshape(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int64_t shape[SD_MAX_DIMS];
    int n = lua_gettop(L) - 1;
    if (n > SD_MAX_DIMS)
        return sd_lua_fail(L, SD_EINVAL, "%d dimensions: at most %d", n, SD_MAX_DIMS);
    for (int i = 0; i < n; i++)
        shape[i] = luaL_checkinteger(L, i + 2);
    MAKE(L, sd_tensor_reshape(t, n, shape, out, err));
    return 1;
}

static int t_cast(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    sd_dtype dt = parse_dtype(L, luaL_checkstring(L, 2));
    MAKE(L, sd_tensor_cast(t, dt, out, err));
    return 1;
}

static int t_clone(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    sd_dtype dt = sd_dtype_get(t->dtype)->is_quant ? SD_F32 : t->dtype;
    MAKE(L, sd_tensor_cast(t, dt, out, err));
    return 1;
}

static int t_copy(lua_State *L) {
    assign(L, sd_lua_check_tensor(L, 1), 2);
    lua_settop(L, 1);
    return 1;
}

static int t_item(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    if (sd_tensor_numel(t) != 1)
        return sd_lua_fail(L, SD_EINVAL, "t:item() needs one element, this has %lld",
                           (long long)sd_tensor_numel(t));
    int64_t ix[SD_MAX_DIMS] = {0};
    push_scalar(L, t, ix);
    return 1;
}

static void push_nested(lua_State *L, const sd_tensor *t, int dim, int64_t *ix) {
    if (dim == t->ndim) {
        push_scalar(L, t, ix);
        return;
    }
    luaL_checkstack(L, 4, NULL);
    lua_createtable(L, t->shape[dim] < 1 << 24 ? (int)t->shape[dim] : 0, 0);
    for (ix[dim] = 0; ix[dim] < t->shape[dim]; ix[dim]++) {
        push_nested(L, t, dim + 1, ix);
        lua_rawseti(L, -2, ix[dim] + 1);
    }
}

static int t_totable(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    sd_tensor *c = t;
    int64_t ix[SD_MAX_DIMS] = {0};
    if (sd_dtype_get(t->dtype)->is_quant) {
        MAKE(L, sd_tensor_cast(t, SD_F32, out, err));
        c = sd_lua_check_tensor(L, -1);
    }
    push_nested(L, c, 0, ix);
    return 1;
}

static int t_len(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    lua_pushinteger(L, t->ndim ? t->shape[0] : 1);
    return 1;
}

static int t_tostring(lua_State *L) {
    sd_tensor **b = luaL_checkudata(L, 1, SD_MT_TENSOR);
    if (!*b) {
        lua_pushliteral(L, "tensor (closed)");
        return 1;
    }
    sd_buf out = {0};
    sd_err e = {0};
    sd_status st = sd_tensor_describe(*b, &out, &e);
    if (st == SD_OK)
        st = sd_buf_status(&out, &e);
    if (st == SD_OK) {
        while (out.n && out.p[out.n - 1] == '\n')
            out.n--;
        lua_pushlstring(L, out.p ? out.p : "", out.n);
    }
    sd_buf_free(&out);
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

/* ---- arithmetic
 * ----------------------------------------------------------------------------------- */

static int binary(lua_State *L, char op) {
    sd_dtype other = SD_F64;
    for (int i = 1; i <= 2; i++) {
        sd_tensor *t = sd_lua_test_tensor(L, i);
        if (t && t->dtype != SD_F64)
            other = SD_F32; /* a plain number takes the tensor's precision */
    }
    sd_tensor *a = sd_lua_to_tensor(L, 1, other), *b = sd_lua_to_tensor(L, 2, other);
    MAKE(L, sd_tensor_binary(op, a, b, out, err));
    return 1;
}

static int t_add(lua_State *L) {
    return binary(L, '+');
}
static int t_sub(lua_State *L) {
    return binary(L, '-');
}
static int t_mul(lua_State *L) {
    return binary(L, '*');
}
static int t_div(lua_State *L) {
    return binary(L, '/');
}

/* ---- masks: Lua's own < and == give one boolean, so that comparisons are methods ---- */
static int t_lt(lua_State *L) {
    return binary(L, '<');
}
static int t_le(lua_State *L) {
    return binary(L, 'l');
}
static int t_gt(lua_State *L) {
    return binary(L, '>');
}
static int t_ge(lua_State *L) {
    return binary(L, 'g');
}
static int t_eq(lua_State *L) {
    return binary(L, '=');
}
static int t_ne(lua_State *L) {
    return binary(L, '!');
}
static int t_and(lua_State *L) {
    return binary(L, '&');
}
static int t_or(lua_State *L) {
    return binary(L, '|');
}
static int t_not(lua_State *L) {
    lua_settop(L, 1);
    lua_pushnumber(L, 0);
    return binary(L, '=');
}

static int no_order(lua_State *L) {
    return sd_lua_fail(L, SD_EINVAL,
                       "a < b of tensors or columns: Lua's own comparison gives one boolean, no "
                       "mask: write a:lt(b) (le gt ge eq ne; & | ~ combine), or for rows "
                       "w:where \"pr < 3\"");
}

/* mask:where(a, b): a where the mask is not 0, else b; without b the indices. */
static int t_where(lua_State *L) {
    sd_tensor *m = sd_lua_check_tensor(L, 1);
    if (lua_isnoneornil(L, 2)) {
        if (m->ndim != 1)
            return sd_lua_fail(L, SD_EINVAL,
                               "mask:where() gives indices of one dimension, this "
                               "has %d: mask:where(a, b) chooses elements",
                               m->ndim);
        MAKE(L, sd_tensor_cast(m, SD_F64, out, err));
        const double *x = sd_lua_check_tensor(L, -1)->data;
        int64_t k = 0, n = m->shape[0];
        for (int64_t i = 0; i < n; i++)
            k += x[i] != 0;
        MAKE(L, sd_tensor_new(SD_I64, 1, &k, out, err));
        int64_t *at = sd_lua_check_tensor(L, -1)->data;
        for (int64_t i = 0; i < n; i++)
            if (x[i] != 0)
                *at++ = i;
        return 1;
    }
    sd_tensor *a = sd_lua_to_tensor(L, 2, SD_F64), *b = sd_lua_to_tensor(L, 3, SD_F64);
    lua_settop(L, 3);
    /* The shape all three broadcast to, then element by element. */
    MAKE(L, sd_tensor_binary('&', m, a, out, err));
    const sd_tensor *both = sd_lua_check_tensor(L, -1);
    MAKE(L, sd_tensor_binary('&', both, b, out, err));
    const sd_tensor *shape = sd_lua_check_tensor(L, -1);
    const sd_tensor *in[3] = {m, a, b};
    bool wide = a->dtype == SD_F64 || b->dtype == SD_F64;
    MAKE(L, sd_tensor_new(wide ? SD_F64 : SD_F32, shape->ndim, shape->shape, out, err));
    sd_tensor *r = sd_lua_check_tensor(L, -1);
    int64_t ix[SD_MAX_DIMS] = {0}, n = sd_tensor_numel(r);
    for (int64_t i = 0; i < n; i++) {
        double v[3];
        for (int k = 0; k < 3; k++) {
            int64_t own[SD_MAX_DIMS] = {0};
            int lead = r->ndim - in[k]->ndim;
            for (int d = 0; d < in[k]->ndim; d++)
                own[d] = in[k]->shape[d] == 1 ? 0 : ix[d + lead];
            v[k] = sd_tensor_at(in[k], own);
        }
        sd_tensor_put(r, ix, v[0] != 0 ? v[1] : v[2]);
        for (int d = r->ndim - 1; d >= 0 && ++ix[d] == r->shape[d]; d--)
            ix[d] = 0;
    }
    return 1;
}

static int64_t nonzero(lua_State *L, int64_t *n) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    MAKE(L, sd_tensor_cast(t, SD_F64, out, err));
    const double *x = sd_lua_check_tensor(L, -1)->data;
    int64_t k = 0;
    *n = sd_tensor_numel(t);
    for (int64_t i = 0; i < *n; i++)
        k += x[i] != 0;
    return k;
}
static int t_any(lua_State *L) {
    int64_t n;
    lua_pushboolean(L, nonzero(L, &n) > 0);
    return 1;
}
static int t_all(lua_State *L) {
    int64_t n, k = nonzero(L, &n);
    lua_pushboolean(L, k == n);
    return 1;
}

static int t_dot(lua_State *L) {
    sd_tensor *a = sd_lua_check_tensor(L, 1), *b = sd_lua_to_tensor(L, 2, SD_F64);
    lua_settop(L, 2);
    if (a->ndim != 1 || b->ndim != 1 || a->shape[0] != b->shape[0])
        return sd_lua_fail(
            L, SD_EINVAL,
            "dot of %d and %d dimensions, %lld and %lld elements: two vectors of one "
            "length expected (matmul multiplies matrices)",
            a->ndim, b->ndim, (long long)sd_tensor_numel(a), (long long)sd_tensor_numel(b));
    MAKE(L, sd_tensor_cast(a, SD_F64, out, err));
    MAKE(L, sd_tensor_cast(b, SD_F64, out, err));
    const double *x = sd_lua_check_tensor(L, 3)->data, *y = sd_lua_check_tensor(L, 4)->data;
    double s = 0;
    for (int64_t i = 0; i < a->shape[0]; i++)
        s += x[i] * y[i];
    lua_pushnumber(L, s);
    return 1;
}

/* Element-wise: f(x, p) on a contiguous f64 or f32 copy. */
typedef double (*elementwise)(double x, double p);
static int map1(lua_State *L, elementwise f, double p) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    sd_dtype dt = t->dtype == SD_F64 ? SD_F64 : SD_F32;
    MAKE(L, sd_tensor_cast(t, dt, out, err));
    sd_tensor *r = sd_lua_check_tensor(L, -1);
    int64_t n = sd_tensor_numel(r);
    if (dt == SD_F64)
        for (int64_t i = 0; i < n; i++)
            ((double *)r->data)[i] = f(((double *)r->data)[i], p);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)r->data)[i] = (float)f(((float *)r->data)[i], p);
    return 1;
}

static double f_neg(double x, double p) {
    (void)p;
    return -x;
}
static double f_abs(double x, double p) {
    (void)p;
    return fabs(x);
}
static double f_exp(double x, double p) {
    (void)p;
    return exp(x);
}
static double f_log(double x, double p) {
    (void)p;
    return log(x);
}
static double f_sqrt(double x, double p) {
    (void)p;
    return sqrt(x);
}
static double f_pow(double x, double p) {
    return p == 2 ? x * x : pow(x, p);
}

static int t_unm(lua_State *L) {
    return map1(L, f_neg, 0);
}
static int t_abs(lua_State *L) {
    return map1(L, f_abs, 0);
}
static int t_exp(lua_State *L) {
    return map1(L, f_exp, 0);
}
static int t_log(lua_State *L) {
    return map1(L, f_log, 0);
}
static int t_sqrt(lua_State *L) {
    return map1(L, f_sqrt, 0);
}
static int t_pow(lua_State *L) {
    return map1(L, f_pow, luaL_checknumber(L, 2));
}

static int t_map(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    MAKE(L, sd_tensor_cast(t, SD_F64, out, err));
    sd_tensor *r = sd_lua_check_tensor(L, -1);
    int64_t n = sd_tensor_numel(r);
    for (int64_t i = 0; i < n; i++) {
        lua_pushvalue(L, 2);
        lua_pushnumber(L, ((double *)r->data)[i]);
        lua_call(L, 1, 1);
        int ok;
        ((double *)r->data)[i] = lua_tonumberx(L, -1, &ok);
        if (!ok)
            return sd_lua_fail(L, SD_EINVAL, "the function gave a %s, not a number",
                               luaL_typename(L, -1));
        lua_pop(L, 1);
    }
    return 1;
}

/* (…, m, k) × (k, n) in row blocks, so that no single BLAS call runs long and Ctrl-C is seen. */
static int matmul(lua_State *L) {
    sd_tensor *a = sd_lua_to_tensor(L, 1, SD_F64), *b = sd_lua_to_tensor(L, 2, SD_F64);
    lua_settop(L, 2);
    if (a->ndim != 2 || b->ndim != 2) {
        MAKE(L, sd_tensor_matmul(a, b, out, err));
        return 1;
    }
    double row = 2.0 * (double)a->shape[1] * (double)b->shape[1];
    int64_t block = row > 0 ? (int64_t)(4e9 / row) + 1 : a->shape[0];
    if (block >= a->shape[0] || a->shape[1] != b->shape[0]) {
        MAKE(L, sd_tensor_matmul(a, b, out, err));
        return 1;
    }
    sd_dtype dt = a->dtype == SD_F64 || b->dtype == SD_F64 ? SD_F64 : SD_F32;
    if (b->dtype != dt) { /* once, not per block */
        MAKE(L, sd_tensor_cast(b, dt, out, err));
        lua_replace(L, 2);
        b = sd_lua_check_tensor(L, 2);
    }
    int64_t shape[2] = {a->shape[0], b->shape[1]};
    MAKE(L, sd_tensor_new(dt, 2, shape, out, err));
    sd_tensor *c = sd_lua_check_tensor(L, 3);
    for (int64_t i = 0; i < shape[0]; i += block) {
        int64_t end = i + block < shape[0] ? i + block : shape[0];
        MAKE(L, sd_tensor_slice(a, 0, i, end, out, err));
        MAKE(L, sd_tensor_matmul(sd_lua_check_tensor(L, 4), b, out, err));
        MAKE(L, sd_tensor_slice(c, 0, i, end, out, err));
        sd_err e = {0};
        sd_status st =
            sd_tensor_copy_into(sd_lua_check_tensor(L, 6), sd_lua_check_tensor(L, 5), &e);
        if (st == SD_OK)
            st = sd_check_cancel(&e);
        if (st != SD_OK)
            return sd_lua_raise(L, &e);
        for (int k = 4; k <= 6; k++) { /* free at once, not at the next collection */
            lua_pushcfunction(L, close_tensor);
            lua_pushvalue(L, k);
            lua_call(L, 1, 0);
        }
        lua_settop(L, 3);
    }
    return 1;
}

/* ---- statistics
 * ----------------------------------------------------------------------------------- */

static int reduce(lua_State *L, const char *op) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int d = lua_isnoneornil(L, 2) ? -1 : check_dim(L, 2, t);
    MAKE(L, sd_tensor_reduce(op, t, d, out, err));
    sd_tensor *r = sd_lua_check_tensor(L, -1);
    if (r->ndim == 0)
        lua_pushnumber(L, sd_tensor_at(r, NULL));
    return 1;
}

static int quantile(lua_State *L, double q, int arg) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    int d = lua_isnoneornil(L, arg) ? -1 : check_dim(L, arg, t);
    MAKE(L, sd_tensor_quantile(t, q, d, out, err));
    sd_tensor *r = sd_lua_check_tensor(L, -1);
    if (r->ndim == 0)
        lua_pushnumber(L, sd_tensor_at(r, NULL));
    return 1;
}
static int t_median(lua_State *L) {
    return quantile(L, 0.5, 2);
}
static int t_quantile(lua_State *L) {
    return quantile(L, luaL_checknumber(L, 2), 3);
}

static int t_sum(lua_State *L) {
    return reduce(L, "sum");
}
static int t_mean(lua_State *L) {
    return reduce(L, "mean");
}
static int t_min(lua_State *L) {
    return reduce(L, "min");
}
static int t_max(lua_State *L) {
    return reduce(L, "max");
}

static void stats(lua_State *L, sd_stats *s) {
    sd_err e = {0};
    if (sd_tensor_stats(sd_lua_check_tensor(L, 1), s, &e) != SD_OK)
        sd_lua_raise(L, &e);
}

static int t_norm(lua_State *L) {
    sd_stats s;
    stats(L, &s);
    lua_pushnumber(L, s.n_nan || s.n_inf ? NAN : s.norm);
    return 1;
}

static int t_sd(lua_State *L) {
    sd_stats s;
    stats(L, &s);
    lua_pushnumber(L, s.sd);
    return 1;
}

static int t_stats(lua_State *L) {
    sd_stats s;
    stats(L, &s);
    lua_createtable(L, 0, 8);
    const struct {
        const char *k;
        double v;
    } row[] = {{"min", s.min}, {"max", s.max}, {"mean", s.mean}, {"sd", s.sd}, {"norm", s.norm}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        lua_pushnumber(L, row[i].v);
        lua_setfield(L, -2, row[i].k);
    }
    lua_pushinteger(L, s.n);
    lua_setfield(L, -2, "n");
    lua_pushinteger(L, s.n_nan);
    lua_setfield(L, -2, "n_nan");
    lua_pushinteger(L, s.n_inf);
    lua_setfield(L, -2, "n_inf");
    return 1;
}

static int t_diag(lua_State *L) {
    sd_tensor *t = sd_lua_check_tensor(L, 1);
    if (t->ndim == 1) {
        int64_t n = t->shape[0], shape[2] = {n, n};
        MAKE(L, sd_tensor_new(t->dtype == SD_F64 ? SD_F64 : SD_F32, 2, shape, out, err));
        sd_tensor *r = sd_lua_check_tensor(L, -1);
        for (int64_t i = 0; i < n; i++)
            sd_tensor_put(r, (int64_t[]){i, i}, sd_tensor_at(t, &i));
        return 1;
    }
    if (t->ndim != 2)
        return sd_lua_fail(L, SD_EINVAL, "diag of %d dimensions: 1 or 2 expected", t->ndim);
    int64_t n = t->shape[0] < t->shape[1] ? t->shape[0] : t->shape[1];
    int64_t stride = t->stride[0] + t->stride[1];
    MAKE(L, sd_tensor_view(t, 1, &n, &stride, 0, out, err));
    return 1;
}

static int t_close_to(lua_State *L) {
    sd_tensor *a = sd_lua_check_tensor(L, 1), *b = sd_lua_to_tensor(L, 2, SD_F64);
    static const char *const names[] = {"tol", NULL};
    sd_lua_check_options(L, 3, names);
    double tol = sd_lua_opt_num(L, 3, "tol", 1e-6);
    MAKE(L, sd_tensor_binary('-', a, b, out, err));
    sd_stats d, s;
    sd_err e = {0};
    if (sd_tensor_stats(sd_lua_check_tensor(L, -1), &d, &e) != SD_OK ||
        sd_tensor_stats(b, &s, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    double scale = fmax(1.0, fmax(fabs(s.max), fabs(s.min)));
    double worst = d.n ? fmax(fabs(d.max), fabs(d.min)) : 0;
    lua_pushboolean(L, !d.n_nan && !d.n_inf && (d.n == 0 || worst <= tol * scale));
    return 1;
}

static int ranks(lua_State *L) {
    sd_tensor *t = sd_lua_to_tensor(L, 1, SD_F64);
    static const char *const names[] = {"paired", NULL};
    sd_lua_check_options(L, 2, names);
    bool paired = sd_lua_opt_bool(L, 2, "paired", false);
    if (t->ndim != 1)
        return sd_lua_fail(L, SD_EINVAL, "singular values are one row, this has %d dimensions",
                           t->ndim);
    MAKE(L, sd_tensor_cast(t, SD_F64, out, err));
    t = sd_lua_check_tensor(L, -1);
    const double *v = t->data;
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (!(v[i] >= 0) || !isfinite(v[i]))
            return sd_lua_fail(L, SD_ENUMERIC,
                               "singular value %lld is %g: finite and >= 0 expected", (long long)i,
                               isnan(v[i]) ? (double)NAN : v[i]);
    sd_ranks r;
    sd_ranks_of(v, (size_t)t->shape[0], paired, &r);
    lua_createtable(L, 0, SD_RANK_COUNT);
    for (size_t i = 0; i < SD_RANK_COUNT; i++) {
        if (sd_rank_is_count(i))
            lua_pushinteger(L, (lua_Integer)r.v[i]);
        else
            lua_pushnumber(L, r.v[i]);
        lua_setfield(L, -2, sd_rank_name(i));
    }
    return 1;
}

static const sd_fn methods[] = {
    {"get", t_get, "t:get(i, j, ...)", "The element at an index, one number a dimension.", NULL,
     "assert(tensor{{1,2},{3,4}}:get(1, 0) == 3)", NULL},
    {"set", t_set, "t:set(i, j, ..., value)", "Sets one element; returns the tensor.", NULL,
     "local a = zeros(2, 2)\na:set(0, 1, 5)\nassert(a[0][1] == 5)", NULL},
    {"slice", t_slice, "t:slice(dim, first, last)",
     "The part first..last (inclusive) of one dimension; a view.", NULL,
     "local a = arange(0, 9)\nassert(a:slice(0, 2, 4)[0] == 2)\nassert(#a[\"2-4\"] == 3)", NULL},
    {"select", t_select, "t:select(dim, index)", "One index of one dimension, which goes; a view.",
     NULL, "assert(tensor{{1,2},{3,4}}:select(1, 1)[1] == 4)", NULL},
    {"transpose", t_transpose, "t:transpose([d0, d1])",
     "Two dimensions swapped (the last two by default); a view.", NULL,
     "assert(tensor{{1,2},{3,4}}:transpose()[0][1] == 3)", NULL},
    {"T", t_transpose, "t:T()", "The transpose; a view.", NULL,
     "assert(tensor{{1,2},{3,4}}:T()[0][1] == 3)", NULL},
    {"reshape", t_reshape, "t:reshape(n, ...)",
     "The same elements in another shape; one entry may be -1.", NULL,
     "assert(arange(1, 6):reshape(2, -1)[1][0] == 4)", NULL},
    {"cast", t_cast, "t:cast(dtype)", "A copy in another storage type.", NULL,
     "assert(ones(2):cast(\"f16\").dtype == \"f16\")", NULL},
    {"clone", t_clone, "t:clone()", "A copy that shares nothing.", NULL,
     "local a = ones(2)\nlocal b = a:clone()\nb[0] = 7\nassert(a[0] == 1)", NULL},
    {"copy", t_copy, "t:copy(source)", "Overwrites the elements from a tensor, table or number.",
     NULL, "assert(zeros(3):copy(2):sum() == 6)", NULL},
    {"fill", t_copy, "t:fill(x)", "Sets every element.", NULL,
     "assert(zeros(3):fill(2):sum() == 6)", NULL},
    {"item", t_item, "t:item()", "The number in a tensor of one element.", NULL,
     "assert(ones(1, 1):item() == 1)", NULL},
    {"totable", t_totable, "t:totable()", "Nested Lua tables (which count from 1).", NULL,
     "assert(tensor{{1,2},{3,4}}:totable()[2][1] == 3)", NULL},
    {"sum", t_sum, "t:sum([dim])", "The sum, of everything or along one dimension.", NULL,
     "assert(tensor{{1,2},{3,4}}:sum() == 10)\nassert(tensor{{1,2},{3,4}}:sum(0)[1] == 6)", NULL},
    {"mean", t_mean, "t:mean([dim])", "The mean, of everything or along one dimension.", NULL,
     "assert(tensor{1,2,3}:mean() == 2)", NULL},
    {"min", t_min, "t:min([dim])", "The least element, of everything or along one dimension.", NULL,
     "assert(tensor{3,1,2}:min() == 1)", NULL},
    {"max", t_max, "t:max([dim])", "The greatest element, of everything or along one dimension.",
     NULL, "assert(tensor{3,1,2}:max() == 3)", NULL},
    {"median", t_median, "t:median([dim])",
     "The median, of everything or along one dimension; nan where there is a nan.", NULL,
     "assert(tensor{5,1,2,3}:median() == 2.5)", NULL},
    {"quantile", t_quantile, "t:quantile(q, [dim])",
     "The q-quantile, 0 <= q <= 1, between neighbours by linear interpolation.", NULL,
     "assert(tensor{0,1,2,3,4}:quantile(0.25) == 1)", NULL},
    {"dot", t_dot, "a:dot(b)", "The sum of products of two vectors.", NULL,
     "assert(tensor{1,2}:dot{3,4} == 11)", NULL},
    {"lt", t_lt, "a:lt(b)", "Mask of a < b, element by element: u8, 1 where it holds.",
     "Masks combine with & | ~, count with :sum(), choose with :where, and pick rows of a table: "
     "w[w.pr:lt(3)]. Lua's own a < b can only give one boolean, so it is an error.",
     "local m = tensor{1,2,3}:lt(3) & tensor{1,2,3}:gt(1)\nassert(m:sum() == 1 and m[1] == 1)",
     NULL},
    {"le", t_le, "a:le(b)", "Mask of a <= b; see lt.", NULL, "assert(tensor{1,2}:le(1):sum() == 1)",
     NULL},
    {"gt", t_gt, "a:gt(b)", "Mask of a > b; see lt.", NULL, "assert(tensor{1,2}:gt(1):sum() == 1)",
     NULL},
    {"ge", t_ge, "a:ge(b)", "Mask of a >= b; see lt.", NULL, "assert(tensor{1,2}:ge(1):sum() == 2)",
     NULL},
    {"eq", t_eq, "a:eq(b)", "Mask of equal elements; nan equals nothing. See lt.", NULL,
     "assert(tensor{1,2}:eq(2):sum() == 1)", NULL},
    {"ne", t_ne, "a:ne(b)", "Mask of different elements; see lt.", NULL,
     "local a = tensor{1, 0/0}\nassert(a:ne(a):sum() == 1)", NULL},
    {"where", t_where, "mask:where(a, b) or mask:where()",
     "Elements of a where the mask holds, else of b; or the indices where it holds.", NULL,
     "local a = tensor{1,-2,3}\nassert(a:gt(0):where(a, 0):sum() == 4)\n"
     "assert(a:gt(0):where()[1] == 2)",
     NULL},
    {"any", t_any, "mask:any()", "Whether any element is not 0.", NULL, "assert(tensor{0,1}:any())",
     NULL},
    {"all", t_all, "mask:all()", "Whether no element is 0.", NULL, "assert(not tensor{0,1}:all())",
     NULL},
    {"norm", t_norm, "t:norm()", "Frobenius norm.", NULL, "assert(tensor{3,4}:norm() == 5)", NULL},
    {"sd", t_sd, "t:sd()", "Standard deviation of the finite elements.", NULL,
     "assert(ones(4):sd() == 0)", NULL},
    {"stats", t_stats, "t:stats()", "Table of n, n_nan, n_inf, min, max, mean, sd, norm.", NULL,
     "assert(tensor{3,4}:stats().norm == 5)", NULL},
    {"diag", t_diag, "t:diag()", "The diagonal of a matrix (a view), or a vector as a matrix.",
     NULL, "assert(eye(3):diag():sum() == 3)", NULL},
    {"abs", t_abs, "t:abs()", "Absolute values.", NULL, "assert(tensor{-1,2}:abs():sum() == 3)",
     NULL},
    {"exp", t_exp, "t:exp()", "Exponential of each element.", NULL,
     "assert(zeros(2):exp():sum() == 2)", NULL},
    {"log", t_log, "t:log()", "Natural logarithm of each element.", NULL,
     "assert(ones(2):log():sum() == 0)", NULL},
    {"sqrt", t_sqrt, "t:sqrt()", "Square root of each element.", NULL,
     "assert(tensor{4,9}:sqrt()[1] == 3)", NULL},
    {"pow", t_pow, "t:pow(p)", "Each element to the power p; also t^p.", NULL,
     "assert((tensor{1,2,3}^2):sum() == 14)", NULL},
    {"map", t_map, "t:map(f)", "A Lua function of each element.", NULL,
     "assert(tensor{1,2}:map(function(x) return x + 1 end):sum() == 5)", NULL},
    {"matmul", matmul, "a:matmul(b)", "Matrix product.", NULL,
     "assert(eye(2):matmul(tensor{{1,2},{3,4}})[1][0] == 3)", NULL},
    {"close_to", t_close_to, "a:close_to(b, {tol=1e-6})",
     "Whether all elements agree within tol, relative to the largest of b (at least 1).", NULL,
     "assert(ones(3):close_to(ones(3) + 1e-9))", "tol="},
    {"close", NULL, "t:close()", "Frees the memory now; using it afterwards is an error.", NULL,
     "local a = ones(3)\na:close()\nassert(not pcall(a.sum, a))", NULL},
    {NULL}};

static const sd_fn functions[] = {
    {"tensor", make_tensor, "tensor(n, ..., {dtype=\"f64\"}) or tensor{{1, 2}, {3, 4}}",
     "A tensor of zeros of a shape, or of nested tables of numbers, or a copy of a tensor.",
     "Indices count from 0, as layers and heads do: t[0] is the first row, t[-1] the last. Ranges "
     "are "
     "inclusive: t[\"0-3\"]; t(2, \"0-3\", \"all\") indexes several dimensions. Slices are views: "
     "they "
     "share memory and keep it alive. Arithmetic + - * / ^ works element by element with "
     "broadcasting; matmul is the matrix product. Fields: shape dtype ndim n.",
     "local a = tensor{{1, 2}, {3, 4}}\nassert(a[1][0] == 3 and (a + 1):sum() == 14)",
     "dtype=f32|f64|f16|bf16|i32|i64"},
    {"zeros", make_zeros, "zeros(n, ..., {dtype=\"f64\"})", "A tensor of zeros.", NULL,
     "assert(zeros(2, 3).n == 6)", "dtype=f32|f64|f16|bf16|i32|i64"},
    {"ones", make_ones, "ones(n, ..., {dtype=\"f64\"})", "A tensor of ones.", NULL,
     "assert(ones(2, 3):sum() == 6)", "dtype=f32|f64|f16|bf16|i32|i64"},
    {"randn", make_randn, "randn(n, ..., {seed=, dtype=\"f64\"})",
     "Gaussian numbers, mean 0 and sd 1; the same on every machine for one seed.", NULL,
     "assert(randn(3, {seed=1})[0] == randn(3, {seed=1})[0])", "seed= dtype=f32|f64"},
    {"rand", make_rand, "rand(n, ..., {seed=, dtype=\"f64\"})", "Uniform numbers in [0, 1).", NULL,
     "assert(rand(100, {seed=1}):max() < 1)", "seed= dtype=f32|f64"},
    {"eye", make_eye, "eye(n, {dtype=\"f64\"})", "The identity matrix.", NULL,
     "assert(eye(3):sum() == 3)", "dtype=f32|f64"},
    {"arange", make_arange, "arange(first, last, [step])",
     "Evenly spaced numbers from first to last, both included.", NULL,
     "assert(#arange(0, 9) == 10)", NULL},
    {"matmul", matmul, "matmul(a, b)", "Matrix product (..., m, k) x (k, n).", NULL,
     "assert(matmul(eye(2), tensor{{1,2},{3,4}})[1][0] == 3)", NULL},
    {"ranks", ranks, "ranks(sigma, {paired=false})",
     "Every effective rank of METHOD §4 over singular values: pr entropy energy stable n90 n95 "
     "n99.",
     "paired=true: each value is a plane of a skew matrix and counts twice.",
     "local r = ranks({4, 2, 1, 1})\nassert(math.abs(r.pr - 1.766423) < 1e-6)",
     "paired=true|false"},
    {NULL}};

void sd_lua_open_tensor(lua_State *L) {
    sd_lua_register(L, functions, "");
    sd_lua_class(L, SD_MT_TENSOR, methods, "tensor:", close_tensor, t_index);
    static const luaL_Reg meta[] = {{"__newindex", t_newindex}, {"__call", t_call},
                                    {"__len", t_len},           {"__tostring", t_tostring},
                                    {"__add", t_add},           {"__sub", t_sub},
                                    {"__mul", t_mul},           {"__div", t_div},
                                    {"__unm", t_unm},           {"__pow", t_pow},
                                    {"__band", t_and},          {"__bor", t_or},
                                    {"__bnot", t_not},          {"__lt", no_order},
                                    {"__le", no_order},         {NULL, NULL}};
    luaL_setfuncs(L, meta, 0);
    lua_pop(L, 1);
}
