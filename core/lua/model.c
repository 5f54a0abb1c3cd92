/* model.c: models, texts and tokenizers in Lua. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "io/json.h"
#include "lua/bind.h"

/* ---- models
 * --------------------------------------------------------------------------------------- */

static int close_model(lua_State *L) {
    sd_box_model *b = luaL_checkudata(L, 1, SD_MT_MODEL);
    if (b->m) {
        sd_model_unref(b->m);
        b->m = NULL;
    }
    if (b->next) {
        b->next->prev = b->prev;
        b->prev->next = b->next;
        sd_lua_get(L)->n_models--;
        b->next = b->prev = NULL;
    }
    return 0;
}

static const char *norm_name(sd_norm n) {
    return n == SD_NORM_LAYER ? "layernorm" : n == SD_NORM_RMS ? "rmsnorm" : "none";
}
static const char *pos_name(sd_pos p) {
    return p == SD_POS_ROPE ? "rope" : p == SD_POS_LEARNED ? "learned" : "none";
}
static const char *act_name(sd_act a) {
    static const char *const names[] = {"gelu", "gelu_tanh", "relu", "silu"};
    return names[a];
}
static const char *block_name(sd_block b) {
    return b == SD_BLOCK_POST ? "post" : b == SD_BLOCK_PARALLEL ? "parallel" : "pre";
}

static void set_int(lua_State *L, const char *k, int64_t v) {
    lua_pushinteger(L, v);
    lua_setfield(L, -2, k);
}
static void set_num(lua_State *L, const char *k, double v) {
    lua_pushnumber(L, v);
    lua_setfield(L, -2, k);
}
static void set_str(lua_State *L, const char *k, const char *v) {
    lua_pushstring(L, v);
    lua_setfield(L, -2, k);
}
static void set_bool(lua_State *L, const char *k, bool v) {
    lua_pushboolean(L, v);
    lua_setfield(L, -2, k);
}

static void push_config(lua_State *L, const sd_config *c) {
    lua_createtable(L, 0, 32);
    set_str(L, "family", c->family);
    set_int(L, "n_layer", c->n_layer);
    set_int(L, "d_model", c->d_model);
    set_int(L, "d_ff", c->d_ff);
    set_int(L, "vocab", c->vocab);
    set_int(L, "n_pos", c->n_pos);
    set_bool(L, "causal", c->causal);
    set_str(L, "norm", norm_name(c->norm));
    set_num(L, "norm_eps", c->norm_eps);
    set_bool(L, "final_norm", c->final_norm);
    set_str(L, "block", block_name(c->block));
    set_str(L, "act", act_name(c->act));
    set_bool(L, "gated_mlp", c->gated_mlp);
    set_str(L, "pos", pos_name(c->pos));
    if (c->pos == SD_POS_ROPE) {
        set_int(L, "rope_dim", c->rope.dim);
        set_num(L, "rope_theta", c->rope.theta);
    }
    set_bool(L, "tied", c->tied);
    set_bool(L, "qkv_bias", c->qkv_bias);
    set_num(L, "embed_scale", c->embed_scale);
    if (c->bos >= 0)
        set_int(L, "bos", c->bos);
    if (c->eos >= 0)
        set_int(L, "eos", c->eos);
    if (c->n_layer > 0) { /* layer 0's, which most models share */
        set_int(L, "n_head", c->layer[0].n_head);
        set_int(L, "n_kv_head", c->layer[0].n_kv_head);
        set_int(L, "d_head", c->layer[0].d_qk);
        set_str(L, "attention", c->layer[0].kind);
    }
    lua_createtable(L, 0, c->n_layer);
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_cfg *l = &c->layer[i];
        lua_createtable(L, 0, 8);
        set_str(L, "kind", l->kind);
#define SET(name_, lo_, hi_, opt_) \
    if (!(opt_) || l->name_)       \
        set_int(L, #name_, l->name_);
        SD_LAYER_INTS(SET)
#undef SET
        set_num(L, "scale", l->scale);
        if (l->options[0])
            set_str(L, "options", l->options);
        lua_rawseti(L, -2, i); /* from 0, as layers are */
    }
    lua_setfield(L, -2, "layer");
}

static sd_role parse_role(lua_State *L, const char *s) {
    for (int r = 0; r < SD_ROLE_COUNT; r++)
        if (strcmp(sd_role_name((sd_role)r), s) == 0)
            return (sd_role)r;
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        lua_pushfstring(L, " %s", sd_role_name((sd_role)r));
        luaL_addvalue(&b);
    }
    luaL_pushresult(&b);
    sd_lua_fail(L, SD_EINVAL, "no part \"%s\"; parts are:%s", s, lua_tostring(L, -1));
    return SD_ROLE_COUNT;
}

static int m_part(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    sd_role r = parse_role(L, luaL_checkstring(L, 2));
    int layer = sd_role_is_global(r) ? -1 : (int)luaL_checkinteger(L, 3);
    int n = sd_model_config(m)->n_layer;
    if (!sd_role_is_global(r) && (layer < 0 || layer >= n))
        return sd_lua_fail(L, SD_EINVAL, "expected layer 0..%d, got %d", n - 1, layer);
    sd_tensor **b = sd_lua_box_tensor(L);
    sd_err e = {0};
    if (sd_model_get(m, layer, r, SD_F32, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    sd_lua_boxed_tensor(L, b);
    return 1;
}

static int m_parts(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    int layer = (int)luaL_optinteger(L, 2, 0), n = 0;
    const sd_config *c = sd_model_config(m);
    if (layer < 0 || layer >= c->n_layer)
        return sd_lua_fail(L, SD_EINVAL, "expected layer 0..%d, got %d", c->n_layer - 1, layer);
    lua_newtable(L);
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        sd_role role = (sd_role)r;
        if (!sd_model_has(m, sd_role_is_global(role) ? -1 : layer, role))
            continue;
        lua_pushstring(L, sd_role_name(role));
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static int m_names(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    size_t n = sd_model_n_tensors(m);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        lua_pushstring(L, sd_model_tensor_name(m, i));
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

static int m_tensors(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    size_t n = sd_model_n_tensors(m);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        const sd_tensor_info *t = sd_model_tensor_info(m, i);
        lua_createtable(L, 0, 3);
        set_str(L, "name", sd_model_tensor_name(m, i));
        set_str(L, "dtype", sd_tensor_type(t));
        lua_createtable(L, t->ndim, 0);
        for (int d = 0; d < t->ndim; d++) {
            lua_pushinteger(L, t->shape[d]);
            lua_rawseti(L, -2, d + 1);
        }
        lua_setfield(L, -2, "shape");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

static int m_tokenizer(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    sd_tokenizer *t;
    sd_err e;
    if (sd_model_need_tokenizer(m, &t, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    sd_tokenizer **b = sd_lua_box_tokenizer(L);
    *b = sd_tokenizer_ref(t);
    return 1;
}

static const char *tensor_name_at(const void *ctx, size_t i) {
    static const char *const own[] = {"config",  "name",  "path", "family",    "n_params", "names",
                                      "tensors", "parts", "part", "tokenizer", "steps",    "close"};
    enum { N_OWN = sizeof own / sizeof *own };
    const sd_model *m = ctx;
    if (i < N_OWN)
        return own[i];
    i -= N_OWN;
    return i < sd_model_n_tensors(m) ? sd_model_tensor_name(m, i) : NULL;
}

static void no_tensor(lua_State *L, const sd_model *m, const char *k) {
    const char *near = sd_suggest(k, tensor_name_at, m);
    if (near)
        sd_lua_fail(L, SD_EINVAL, "%s has no \"%s\": did you mean \"%s\"?", sd_model_name(m), k,
                    near);
    sd_lua_fail(L, SD_EINVAL,
                "%s has no tensor, method or field \"%s\" (m:names() lists the tensors)",
                sd_model_name(m), k);
}

static bool has_tensor(const sd_model *m, const char *k) {
    size_t n = sd_model_n_tensors(m);
    for (size_t i = 0; i < n; i++)
        if (strcmp(sd_model_tensor_name(m, i), k) == 0)
            return true;
    return false;
}

static int m_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    sd_model *m = sd_lua_check_model(L, 1);
    const char *k = luaL_checkstring(L, 2);
    if (strcmp(k, "config") == 0)
        push_config(L, sd_model_config(m));
    else if (strcmp(k, "name") == 0)
        lua_pushstring(L, sd_model_name(m));
    else if (strcmp(k, "path") == 0)
        lua_pushstring(L, sd_model_path(m));
    else if (strcmp(k, "family") == 0)
        lua_pushstring(L, sd_model_family(m)->name);
    else if (strcmp(k, "n_params") == 0)
        lua_pushinteger(L, sd_model_n_params(m));
    else {
        if (!has_tensor(m, k))
            no_tensor(L, m, k);
        sd_tensor **b = sd_lua_box_tensor(L);
        sd_err e = {0};
        if (sd_model_tensor(m, k, b, &e) != SD_OK)
            return sd_lua_raise(L, &e);
        sd_lua_boxed_tensor(L, b);
    }
    return 1;
}

/* m[name] = tensor goes through the op `edit`, so that it is part of the lineage; the handle then
 * stands for the edited model. Other handles of the old model are untouched. */
static int m_newindex(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    sd_box_model *box = lua_touserdata(L, 1);
    const char *k = luaL_checkstring(L, 2);
    if (!has_tensor(m, k))
        no_tensor(L, m, k);
    lua_getfield(L, LUA_REGISTRYINDEX, "sd");
    lua_getfield(L, -1, "edit");
    lua_pushvalue(L, 1);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 3);
    lua_call(L, 3, 1);
    sd_model *n = sd_model_ref(sd_lua_check_model(L, -1));
    sd_model_unref(box->m);
    box->m = n;
    return 0;
}

static void size_text(sd_buf *b, int64_t n) {
    if (n >= 1000000000)
        sd_buf_printf(b, "%.2fB", (double)n / 1e9);
    else if (n >= 1000000)
        sd_buf_printf(b, "%.2fM", (double)n / 1e6);
    else if (n >= 1000)
        sd_buf_printf(b, "%.1fk", (double)n / 1e3);
    else
        sd_buf_printf(b, "%lld", (long long)n);
}

/* "6" or "8-64" over the layers. */
static void span(sd_buf *b, const sd_config *c, int (*f)(const sd_layer_cfg *)) {
    int lo = 0, hi = 0;
    for (int i = 0; i < c->n_layer; i++) {
        int v = f(&c->layer[i]);
        lo = i && lo < v ? lo : v;
        hi = i && hi > v ? hi : v;
    }
    if (lo == hi)
        sd_buf_printf(b, "%d", lo);
    else
        sd_buf_printf(b, "%d-%d", lo, hi);
}
static int get_heads(const sd_layer_cfg *l) {
    return l->n_head;
}
static int get_d(const sd_layer_cfg *l) {
    return l->d_qk ? l->d_qk : l->d_v; // a kind without queries and keys has values
}
static int get_kv(const sd_layer_cfg *l) {
    return l->n_kv_head;
}

static void kinds(sd_buf *b, const sd_config *c) {
    for (int i = 0; i < c->n_layer;) {
        int j = i;
        while (j + 1 < c->n_layer && strcmp(c->layer[j + 1].kind, c->layer[i].kind) == 0)
            j++;
        sd_buf_printf(b, "%s%s", i ? ", " : "", c->layer[i].kind);
        if (i || j + 1 < c->n_layer) {
            if (j > i)
                sd_buf_printf(b, " (layers %d-%d)", i, j);
            else
                sd_buf_printf(b, " (layer %d)", i);
        }
        i = j + 1;
    }
}

static int m_tostring(lua_State *L) {
    sd_box_model *box = luaL_checkudata(L, 1, SD_MT_MODEL);
    if (!box->m) {
        lua_pushliteral(L, "model (closed)");
        return 1;
    }
    const sd_model *m = box->m;
    const sd_config *c = sd_model_config(m);
    sd_buf b = {0};
    sd_buf_puts(&b, "model ");
    sd_buf_visible(&b, sd_model_name(m), strlen(sd_model_name(m)), false);
    sd_buf_printf(&b, " (family %s)\n", sd_model_family(m)->name);
    sd_buf_puts(&b, "  parameters  ");
    size_text(&b, sd_model_n_params(m));
    sd_buf_printf(&b, "%s\n  shape       ", c->tied ? " (output tied to the embedding)" : "");
    sd_buf_printf(&b, "%d layers, ", c->n_layer);
    span(&b, c, get_heads);
    sd_buf_puts(&b, " heads of ");
    span(&b, c, get_d);
    if (c->n_layer && c->layer[0].n_kv_head != c->layer[0].n_head) {
        sd_buf_puts(&b, " (");
        span(&b, c, get_kv);
        sd_buf_puts(&b, " key heads)");
    }
    sd_buf_printf(&b, ", width %d, MLP %d, vocabulary %d\n", c->d_model, c->d_ff, c->vocab);
    sd_buf_puts(&b, "  attention   ");
    kinds(&b, c);
    sd_buf_printf(&b, "%s, norm %s, positions %s", c->causal ? ", causal" : ", bidirectional",
                  norm_name(c->norm), pos_name(c->pos));
    if (c->n_pos > 0)
        sd_buf_printf(&b, " (%d)", c->n_pos);
    sd_tokenizer *t = sd_model_tokenizer(m);
    if (t)
        sd_buf_printf(&b, "\n  tokenizer   %s, %d entries", sd_tokenizer_kind(t),
                      (int)sd_tokenizer_vocab_size(t));
    else if (*sd_model_tokenizer_error(m))
        sd_buf_printf(&b, "\n  tokenizer   refused: %s", sd_model_tokenizer_error(m));
    else
        sd_buf_puts(&b, "\n  tokenizer   none: give token ids");
    size_t kept = 0, first = 0;
    for (size_t i = sd_model_n_unused(m); i-- > 0;) {
        if (sd_model_unused(m, i).kept) {
            kept++;
            first = i;
        }
    }
    if (kept) { /* not the buffers that are recomputed: info(m.path) lists all */
        sd_unused u = sd_model_unused(m, first);
        sd_buf_printf(&b, "\n  unused      %zu tensor%s: ", kept, kept > 1 ? "s" : "");
        sd_buf_visible(&b, u.name, strlen(u.name), false);
        sd_buf_printf(&b, " (%s)%s", u.why, kept > 1 ? ", …" : "");
    }
    size_t n = sd_model_n_steps(m);
    for (size_t i = 0; i < n && i < 8; i++) {
        sd_step s = sd_model_step(m, i);
        size_t len = s.args ? strlen(s.args) : 0, shown = len;
        if (len > 200) /* ids and the like: whole in lineage(m) */
            for (shown = 160; shown && ((unsigned char)s.args[shown] & 0xC0) == 0x80;)
                shown--;
        sd_buf_printf(&b, "\n  step %-6zu %s ", i, s.op);
        sd_buf_visible(&b, len ? s.args : "", shown, false);
        if (shown < len)
            sd_buf_puts(&b, "…");
    }
    if (n > 8)
        sd_buf_printf(&b, "\n  ... %zu more steps", n - 8);
    sd_err e = {0};
    sd_status st = sd_buf_status(&b, &e);
    if (st == SD_OK)
        lua_pushlstring(L, b.p, b.n);
    sd_buf_free(&b);
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

/* The steps as Lua tables: what recipe.save writes. */
static int m_steps(lua_State *L) {
    sd_model *m = sd_lua_check_model(L, 1);
    size_t n = sd_model_n_steps(m);
    lua_createtable(L, (int)n, 0);
    for (size_t i = 0; i < n; i++) {
        sd_step s = sd_model_step(m, i);
        lua_createtable(L, 0, 4);
        set_str(L, "op", s.op);
        set_str(L, "version", s.version);
        set_str(L, "input_hash", s.input_hash);
        json_t *j = NULL;
        sd_err e = {0};
        if (s.args && sd_json_parse(s.args, strlen(s.args), "arguments", &j, &e) == SD_OK) {
            sd_lua_push_json(L, j);
            json_decref(j);
        } else {
            lua_newtable(L);
        }
        lua_setfield(L, -2, "args");
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* ---- text ---------------------------------------------------------------------------------------
 */

static int close_text(lua_State *L) {
    sd_text **b = luaL_checkudata(L, 1, SD_MT_TEXT);
    sd_text_unref(*b);
    *b = NULL;
    return 0;
}

/* Ids from a table or an integer tensor at i, into a Lua-owned buffer that is pushed. */
static const int32_t *read_ids(lua_State *L, int i, size_t *n) {
    sd_tensor *t = sd_lua_test_tensor(L, i);
    int64_t len = t ? sd_tensor_numel(t) : (int64_t)lua_rawlen(L, i);
    if (t && t->ndim != 1)
        sd_lua_fail(L, SD_EINVAL, "ids are one row, this tensor has %d dimensions", t->ndim);
    int32_t *v = lua_newuserdatauv(L, (size_t)(len + 1) * sizeof *v, 0);
    for (int64_t k = 0; k < len; k++) {
        double x;
        int ok = 1;
        if (t) {
            x = sd_tensor_at(t, &k);
        } else {
            lua_rawgeti(L, i, k + 1);
            x = lua_tonumberx(L, -1, &ok);
            lua_pop(L, 1);
        }
        if (!ok)
            sd_lua_fail(L, SD_EINVAL, "entry %lld is not a token id", (long long)k);
        if (!(x >= 0 && x <= INT32_MAX) || x != floor(x))
            sd_lua_fail(L, SD_EINVAL, "entry %lld is not a token id: %.15g", (long long)k, x);
        v[k] = (int32_t)x;
    }
    *n = (size_t)len;
    return v;
}

sd_status sd_lua_to_text(lua_State *L, int i, sd_text **out, sd_err *err) {
    sd_text *t = sd_lua_test_text(L, i);
    if (t) {
        *out = sd_text_ref(t);
        return SD_OK;
    }
    if (lua_type(L, i) == LUA_TSTRING) {
        size_t n;
        const char *s = lua_tolstring(L, i, &n);
        if (n > 0 && n < 1024 && !memchr(s, 0, n) && sd_path_exists(s) && !sd_path_is_dir(s))
            sd_run_log(sd_session_run(sd_lua_get(L)->session), SD_LOG_WARN,
                       "\"%s\" is taken as %zu characters of text; text \"%s\" reads the file of "
                       "that name",
                       s, n, s);
        return sd_text_from_bytes(s, n, out, err);
    }
    if (lua_istable(L, i) || sd_lua_test_tensor(L, i)) {
        size_t n;
        const int32_t *v = read_ids(L, i, &n);
        sd_status st = sd_text_from_ids(v, n, out, err);
        lua_pop(L, 1);
        return st;
    }
    return sd_fail(err, SD_EINVAL,
                   "a text expected: text \"file\", a literal string or token ids; got %s",
                   luaL_typename(L, i));
}

static int make_text(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    sd_text **b = sd_lua_box_text(L);
    sd_err e = {0};
    if (sd_text_from_file(path, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static int make_ids(lua_State *L) {
    if (!lua_istable(L, 1) && !sd_lua_test_tensor(L, 1))
        return luaL_typeerror(L, 1, "table or tensor of token ids");
    size_t n;
    const int32_t *v = read_ids(L, 1, &n);
    sd_text **b = sd_lua_box_text(L);
    sd_err e = {0};
    if (sd_text_from_ids(v, n, b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static sd_text *check_text(lua_State *L, int i) {
    sd_text *t = sd_lua_test_text(L, i);
    if (!t)
        luaL_typeerror(L, i, SD_MT_TEXT);
    return t;
}

static void push_ids(lua_State *L, const int32_t *v, size_t n) {
    lua_createtable(L, n < 1 << 24 ? (int)n : 0, 0);
    for (size_t i = 0; i < n; i++) {
        lua_pushinteger(L, v[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

static int text_ids(lua_State *L) {
    sd_text *t = check_text(L, 1);
    sd_model *m = sd_lua_check_model(L, 2);
    const int32_t *v;
    size_t n;
    sd_err e = {0};
    if (sd_text_ids(t, m, &v, &n, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    push_ids(L, v, n);
    return 1;
}

static int text_sub(lua_State *L) {
    sd_text *t = check_text(L, 1);
    size_t n;
    const char *s = sd_text_bytes(t, &n);
    if (!s)
        return sd_lua_fail(L, SD_EINVAL, "this text is token ids: it has no characters");
    lua_Integer a = luaL_checkinteger(L, 2), b = luaL_optinteger(L, 3, -1);
    a = a < 0 ? (lua_Integer)n + a + 1 : a < 1 ? 1 : a;
    b = b < 0 ? (lua_Integer)n + b + 1 : b > (lua_Integer)n ? (lua_Integer)n : b;
    a = a < 1 ? 1 : a;
    sd_text **box = sd_lua_box_text(L);
    sd_err e = {0};
    if (sd_text_from_bytes(s + (a - 1), b >= a ? (size_t)(b - a + 1) : 0, box, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

static int text_string(lua_State *L) {
    sd_text *t = check_text(L, 1);
    size_t n;
    const char *s = sd_text_bytes(t, &n);
    if (!s)
        return sd_lua_fail(L, SD_EINVAL, "this text is token ids: decode(m, ids) gives characters");
    lua_pushlstring(L, s, n);
    return 1;
}

static int text_len(lua_State *L) {
    sd_text *t = check_text(L, 1);
    size_t n;
    const int32_t *v;
    if (!sd_text_bytes(t, &n))
        sd_text_raw_ids(t, &v, &n);
    lua_pushinteger(L, (lua_Integer)n);
    return 1;
}

static int text_tostring(lua_State *L) {
    sd_text **b = luaL_checkudata(L, 1, SD_MT_TEXT);
    if (!*b) {
        lua_pushliteral(L, "text (closed)");
        return 1;
    }
    size_t n;
    const char *s = sd_text_bytes(*b, &n);
    if (!s) {
        const int32_t *v;
        sd_text_raw_ids(*b, &v, &n);
        lua_pushfstring(L, "text of %I token ids", (lua_Integer)n);
        return 1;
    }
    luaL_Buffer out;
    luaL_buffinit(L, &out);
    lua_pushfstring(L, "text %s, %I bytes: \"", sd_text_name(*b), (lua_Integer)n);
    luaL_addvalue(&out);
    size_t i = 0;
    while (i < n && i < 60) {
        size_t w = sd_utf8_next(s + i, n - i, NULL);
        if (w == 0 || (unsigned char)s[i] < 32 || s[i] == 127) {
            luaL_addchar(&out, s[i] == '\n' || s[i] == '\t' ? ' ' : '?');
            w = 1;
        } else {
            luaL_addlstring(&out, s + i, w);
        }
        i += w;
    }
    luaL_addstring(&out, i < n ? "...\"" : "\"");
    luaL_pushresult(&out);
    return 1;
}

static int text_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    sd_text *t = check_text(L, 1);
    const char *k = luaL_checkstring(L, 2);
    if (strcmp(k, "name") == 0) {
        lua_pushstring(L, sd_text_name(t));
        return 1;
    }
    return sd_lua_fail(L, SD_EINVAL, "a text has no method or field %s", k);
}

/* ---- tokenizers
 * ------------------------------------------------------------------------------------ */

static int close_tokenizer(lua_State *L) {
    sd_tokenizer **b = luaL_checkudata(L, 1, SD_MT_TOKENIZER);
    sd_tokenizer_unref(*b);
    *b = NULL;
    return 0;
}

static int make_tokenizer(lua_State *L) {
    if (sd_lua_test_model(L, 1))
        return m_tokenizer(L);
    const char *path = luaL_checkstring(L, 1);
    sd_tokenizer **b = sd_lua_box_tokenizer(L);
    sd_err e = {0};
    if (sd_tokenizer_open(path, sd_session_run(sd_lua_get(L)->session), b, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    return 1;
}

/* A tokenizer, or a model's. */
static sd_tokenizer *check_tokenizer(lua_State *L, int i) {
    sd_model *m = sd_lua_test_model(L, i);
    if (m) {
        sd_tokenizer *t;
        sd_err e;
        if (sd_model_need_tokenizer(m, &t, &e) != SD_OK)
            sd_lua_raise(L, &e);
        return t;
    }
    sd_tokenizer **b = luaL_testudata(L, i, SD_MT_TOKENIZER);
    if (!b)
        luaL_typeerror(L, i, "model or tokenizer");
    if (!*b)
        sd_lua_fail(L, SD_EINVAL, "this tokenizer is closed");
    return *b;
}

/* An id list that Lua frees, whatever happens. */
static int gc_ids(lua_State *L) {
    sd_ids_free(lua_touserdata(L, 1));
    return 0;
}
static sd_ids *new_ids(lua_State *L) {
    sd_ids *v = lua_newuserdatauv(L, sizeof *v, 0);
    memset(v, 0, sizeof *v);
    if (luaL_newmetatable(L, "sd.ids")) {
        lua_pushcfunction(L, gc_ids);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return v;
}

static int encode(lua_State *L) {
    sd_tokenizer *t = check_tokenizer(L, 1);
    size_t n, lost = 0;
    int first = -1;
    sd_text *x = sd_lua_test_text(L, 2);
    const char *s = x ? sd_text_bytes(x, &n) : luaL_checklstring(L, 2, &n);
    if (!s)
        return sd_lua_fail(L, SD_EINVAL, "this text is token ids already");
    static const char *const names[] = {"special", "add_special", NULL};
    sd_lua_check_options(L, 3, names);
    unsigned flags = (sd_lua_opt_bool(L, 3, "special", true) ? 0 : SD_TOK_SPECIAL_AS_TEXT) |
                     (sd_lua_opt_bool(L, 3, "add_special", false) ? SD_TOK_ADD_SPECIAL : 0);
    sd_ids *v = new_ids(L);
    sd_err e = {0};
    if (sd_tokenizer_encode(t, s, n, flags, v, &lost, &first, &e) != SD_OK)
        return sd_lua_raise(L, &e);
    push_ids(L, v->v, v->n);
    const sd_run *run = sd_session_run(sd_lua_get(L)->session);
    if ((flags & SD_TOK_ADD_SPECIAL) && sd_tokenizer_starts_twice(t, v->v, v->n))
        sd_run_log(run, SD_LOG_WARN,
                   "encode: the text begins with the token that add_special puts before it: token "
                   "%d stands there twice (add_special=false leaves one)",
                   (int)v->v[0]);
    if (lost) {
        sd_run_log(run, SD_LOG_WARN,
                   "encode: %zu byte(s) are not in the vocabulary and were lost, the first 0x%02X",
                   lost, (unsigned)first);
    }
    return 1;
}

static int decode(lua_State *L) {
    sd_tokenizer *t = check_tokenizer(L, 1);
    if (lua_isinteger(L, 2)) {
        lua_createtable(L, 1, 0);
        lua_pushvalue(L, 2);
        lua_rawseti(L, -2, 1);
        lua_replace(L, 2);
    }
    if (!lua_istable(L, 2) && !sd_lua_test_tensor(L, 2))
        return luaL_typeerror(L, 2, "table or tensor of token ids");
    static const char *const names[] = {"skip_special", NULL};
    sd_lua_check_options(L, 3, names);
    bool skip = sd_lua_opt_bool(L, 3, "skip_special", false);
    size_t n;
    const int32_t *v = read_ids(L, 2, &n);
    sd_buf b = {0};
    sd_err e = {0};
    sd_model *m = sd_lua_test_model(L, 1); /* its embedding may have more rows than tokens */
    sd_status st = sd_tokenizer_decode(t, v, n, m ? sd_model_config(m)->vocab : 0, skip, &b, &e);
    if (st == SD_OK)
        st = sd_buf_status(&b, &e);
    if (st == SD_OK)
        lua_pushlstring(L, b.p ? b.p : "", b.n);
    sd_buf_free(&b);
    return st == SD_OK ? 1 : sd_lua_raise(L, &e);
}

static int tok_token(lua_State *L) {
    sd_tokenizer *t = check_tokenizer(L, 1);
    size_t n;
    const char *s = sd_tokenizer_token(t, (int32_t)luaL_checkinteger(L, 2), &n);
    if (s)
        lua_pushlstring(L, s, n);
    else
        lua_pushnil(L);
    return 1;
}

static int tok_find(lua_State *L) {
    int32_t id = sd_tokenizer_find(check_tokenizer(L, 1), luaL_checkstring(L, 2));
    if (id >= 0)
        lua_pushinteger(L, id);
    else
        lua_pushnil(L);
    return 1;
}

static int tok_index(lua_State *L) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    sd_tokenizer *t = check_tokenizer(L, 1);
    const char *k = luaL_checkstring(L, 2);
    if (strcmp(k, "kind") == 0)
        lua_pushstring(L, sd_tokenizer_kind(t));
    else if (strcmp(k, "vocab") == 0)
        lua_pushinteger(L, sd_tokenizer_vocab_size(t));
    else {
        int32_t id = sd_tokenizer_special(t, k);
        if (id < 0)
            return sd_lua_fail(L, SD_EINVAL, "this tokenizer has no method or special token %s", k);
        lua_pushinteger(L, id);
    }
    return 1;
}

static int tok_tostring(lua_State *L) {
    sd_tokenizer **b = luaL_checkudata(L, 1, SD_MT_TOKENIZER);
    if (*b)
        lua_pushfstring(L, "tokenizer: %s, %d entries", sd_tokenizer_kind(*b),
                        (int)sd_tokenizer_vocab_size(*b));
    else
        lua_pushliteral(L, "tokenizer (closed)");
    return 1;
}

/* ---- tables
 * ------------------------------------------------------------------------------------------ */

static const sd_fn model_methods[] = {
    {"names", m_names, "m:names()", "Names of the stored tensors.", NULL, "assert(#m:names() > 0)",
     NULL},
    {"tensors", m_tensors, "m:tensors()", "Array of {name, dtype, shape}, without reading weights.",
     NULL, "assert(m:tensors()[1].shape[1] > 0)", NULL},
    {"parts", m_parts, "m:parts([layer])", "Names of the canonical parts this model has.", NULL,
     "assert(table.concat(m:parts(0), ' '):match 'wq')", NULL},
    {"part", m_part, "m:part(name, [layer])",
     "A canonical part, weights as (in, out): y = x W + b; a copy.", NULL,
     "assert(m:part('wq', 0).shape[1] == m.config.d_model)", NULL},
    {"tokenizer", m_tokenizer, "m:tokenizer()", "The model's tokenizer.", NULL,
     "assert(m:tokenizer().vocab > 0)", NULL},
    {"steps", m_steps, "m:steps()",
     "How the model was made, as Lua tables (lineage(m) as a table).", NULL,
     "assert(#m:steps() == 0)", NULL},
    {"close", NULL, "m:close()", "Frees the model now; using the handle afterwards is an error.",
     NULL, "local x = open(m.path)\nx:close()\nassert(not pcall(x.names, x))", NULL},
    {NULL}};

static const sd_fn text_methods[] = {
    {"ids", text_ids, "t:ids(model)", "Token ids under a model's tokenizer.", NULL,
     "assert(#t:ids(m) > 0)", NULL},
    {"sub", text_sub, "t:sub(first, [last])", "Part of a text by bytes, as string.sub counts.",
     NULL, "assert(#t:sub(1, 10) == 10)", NULL},
    {"string", text_string, "t:string()", "The text as a Lua string.", NULL,
     "assert(#t:string() == #t)", NULL},
    {"close", NULL, "t:close()", "Frees the text now.", NULL, "t:sub(1, 2):close()", NULL},
    {NULL}};

static const sd_fn tokenizer_methods[] = {
    {"encode", encode, "k:encode(text, {special=true, add_special=false})",
     "Token ids of a string.", NULL, "assert(#m:tokenizer():encode 'abc' > 0)",
     "special=true|false add_special=true|false"},
    {"decode", decode, "k:decode(ids, {skip_special=false})", "The string of token ids.", NULL,
     "local k = m:tokenizer()\nassert(k:decode(k:encode 'abc') == 'abc')",
     "skip_special=true|false"},
    {"token", tok_token, "k:token(id)", "Stored spelling of an id, nil for a hole.", NULL,
     "assert(m:tokenizer():token(0))", NULL},
    {"find", tok_find, "k:find(spelling)", "The id of a stored spelling, or nil.", NULL,
     "local k = m:tokenizer()\nassert(k:find(k:token(65)) == 65)", NULL},
    {"close", NULL, "k:close()", "Frees the tokenizer now.", NULL, "m:tokenizer():close()", NULL},
    {NULL}};

static const sd_fn functions[] = {
    {"text", make_text, "text(file)", "A text file, for everything that takes text.",
     "A plain string given to an operation is literal text; text \"file\" reads a file; ids{...} "
     "are "
     "token ids.",
     "local x = text 'data/introduction.txt'\nassert(#x > 1000)", NULL},
    {"ids", make_ids, "ids{1, 2, 3}", "A text given as token ids.", NULL,
     "assert(nll(m, ids{1, 2, 3, 4}) > 0)", NULL},
    {"tokenizer", make_tokenizer, "tokenizer(path or model)",
     "A tokenizer from a file or folder, or a model's.", NULL, "assert(tokenizer(m).vocab > 0)",
     NULL},
    {"encode", encode, "encode(model, text, {special=true, add_special=false})",
     "Token ids of a string under a model's (or a) tokenizer.",
     "special=false takes \"<|endoftext|>\" in the text as ordinary characters; add_special=true "
     "adds "
     "what the tokenizer adds around a text ([CLS], BOS).",
     "assert(#encode(m, 'routing and filtering') > 2)",
     "special=true|false add_special=true|false"},
    {"decode", decode, "decode(model, ids, {skip_special=false})",
     "The string of token ids. A row of the embedding without a token gives <id N>.", NULL,
     "assert(decode(m, encode(m, ' two words')) == ' two words')", "skip_special=true|false"},
    {NULL}};

void sd_lua_open_model(lua_State *L) {
    sd_lua_register(L, functions, "");
    sd_lua_class(L, SD_MT_MODEL, model_methods, "model:", close_model, m_index);
    static const luaL_Reg model_meta[] = {
        {"__newindex", m_newindex}, {"__tostring", m_tostring}, {NULL, NULL}};
    luaL_setfuncs(L, model_meta, 0);
    lua_pop(L, 1);
    sd_lua_class(L, SD_MT_TEXT, text_methods, "text:", close_text, text_index);
    static const luaL_Reg text_meta[] = {
        {"__len", text_len}, {"__tostring", text_tostring}, {NULL, NULL}};
    luaL_setfuncs(L, text_meta, 0);
    lua_pop(L, 1);
    sd_lua_class(L, SD_MT_TOKENIZER, tokenizer_methods, "tokenizer:", close_tokenizer, tok_index);
    lua_pushcfunction(L, tok_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
}
