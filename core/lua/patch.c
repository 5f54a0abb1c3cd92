/* patch.c: patch(m, point, value): a model whose passes replace or change an activation, by a
 * number, a tensor, its mean over the tokens, or a Lua function (nn/hook.h). */
#include <stdlib.h>
#include <string.h>

#include "lua/bind.h"
#include "nn/hook.h"

typedef enum source { FILL, MEAN, TENSOR, FUNCTION } source;

typedef struct patch {
    sd_lua *S;
    lua_State *L; /* the main thread, for the registry */
    source source;
    double fill;
    sd_tensor *tensor;  // f32
    int ref;            /* of the function */
    int head, from, to; /* −1: all; positions from..to */
} patch;

static void patch_free(void *ctx) {
    patch *p = ctx;
    if (p->source == FUNCTION)
        luaL_unref(p->L, LUA_REGISTRYINDEX, p->ref);
    sd_tensor_free(p->tensor);
    sd_free(p);
}

/* One sequence of a site, without the dimension of sequences. */
typedef struct part {
    const sd_site *s;
    size_t n, heads, tokens, width; /* elements; 1 head where there are none; of a row */
    size_t head_stride, token_stride;
} part;

static part part_of(const sd_site *s) {
    part p = {.s = s, .n = s->n / (size_t)s->batch, .heads = 1, .tokens = (size_t)s->tokens};
    if (s->ndim == 3) {
        p.width = p.token_stride = (size_t)s->shape[2];
    } else if (s->point == SD_POINT_SCORES || s->point == SD_POINT_PATTERN) {
        p.heads = (size_t)s->shape[1];
        p.width = p.token_stride = p.tokens;
        p.head_stride = p.tokens * p.tokens;
    } else {
        p.heads = (size_t)s->shape[2];
        p.width = p.head_stride = (size_t)s->shape[3];
        p.token_stride = p.heads * p.width;
    }
    return p;
}

static sd_status new_tensor(const sd_site *s, const float *x, sd_tensor **out, sd_err *err) {
    SD_TRY(sd_tensor_new(SD_F32, s->ndim - 1, s->shape + 1, out, err));
    memcpy((*out)->data, x, s->n / (size_t)s->batch * sizeof *x);
    return SD_OK;
}

/* y: the new values of one sequence. */
static sd_status from_tensor(const part *p, const sd_tensor *t, float *y, sd_err *err) {
    size_t n = (size_t)sd_tensor_numel(t), row = p->n / p->tokens;
    bool square = p->s->point == SD_POINT_SCORES || p->s->point == SD_POINT_PATTERN;
    if (n == p->n) {
        memcpy(y, t->data, n * sizeof *y);
        return SD_OK;
    }
    if (n != row || square)
        return sd_fail(err, SD_EINVAL,
                       "a tensor of %zu values for %zu (%zu tokens of %zu): it must be as large as "
                       "the activation, or as one token of it",
                       n, p->n, p->tokens, row);
    for (size_t i = 0; i < p->tokens; i++)
        memcpy(y + i * row, t->data, row * sizeof *y);
    return SD_OK;
}

static sd_status mean_row(const part *p, const float *x, float *y, sd_err *err) {
    size_t row = p->n / p->tokens;
    if (p->s->point == SD_POINT_SCORES || p->s->point == SD_POINT_PATTERN)
        return sd_fail(err, SD_EINVAL, "a mean over tokens is for rows of tokens");
    for (size_t c = 0; c < row; c++) {
        double sum = 0;
        for (size_t i = 0; i < p->tokens; i++)
            sum += (double)x[i * row + c];
        for (size_t i = 0; i < p->tokens; i++)
            y[i * row + c] = (float)(sum / (double)p->tokens);
    }
    return SD_OK;
}

/* Runs protected: f, tensor box, info → what f gave. */
static sd_status call_function(const patch *k, const part *p, const float *x, float *y,
                               sd_err *err) {
    lua_State *L = sd_lua_running(k->L);
    int top = lua_gettop(L);
    sd_tensor *given = NULL, *copy = NULL;
    sd_status st = SD_OK;
    if (!lua_checkstack(L, 10))
        return sd_fail(err, SD_ENOMEM, "the Lua stack is full");
    SD_TRY(new_tensor(p->s, x, &given, err));
    lua_rawgeti(L, LUA_REGISTRYINDEX, k->ref);
    sd_tensor **box = sd_lua_box_tensor(L);
    *box = given;
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, p->s->layer);
    lua_setfield(L, -2, "layer");
    lua_pushstring(L, sd_point_name(p->s->point));
    lua_setfield(L, -2, "point");
    lua_pushvalue(L, top + 2);
    lua_insert(L, top + 1); /* the box stays while its tensor is read */
    if (lua_pcall(L, 2, 1, 0) != LUA_OK) {
        const char *msg = lua_tostring(L, -1);
        st = sd_cancelled() ? sd_check_cancel(err)
                            : sd_fail(err, SD_EINVAL, "%s", msg ? msg : "error without a message");
    } else if (lua_isnil(L, -1)) {
        st = from_tensor(p, given, y, err);
    } else if (sd_lua_test_tensor(L, -1)) {
        st = sd_tensor_cast(sd_lua_test_tensor(L, -1), SD_F32, &copy, err);
        if (st == SD_OK)
            st = from_tensor(p, copy, y, err);
    } else {
        st = sd_fail(err, SD_EINVAL, "the function gave a %s: expected a tensor, or nil",
                     luaL_typename(L, -1));
    }
    sd_tensor_free(copy);
    lua_settop(L, top);
    return st;
}

static sd_status on_site(void *ctx, sd_site *s, sd_err *err) {
    const patch *k = ctx;
    part p = part_of(s);
    if (k->head >= 0 && (size_t)k->head >= p.heads)
        return sd_fail(err, SD_EINVAL, "expected head 0..%zu, got %d", p.heads - 1, k->head);
    float *y = malloc(p.n * sizeof *y);
    if (!y)
        return sd_fail(err, SD_ENOMEM, "out of memory for %zu values", p.n);
    sd_status st = SD_OK;
    for (size_t b = 0; b < (size_t)s->batch && st == SD_OK; b++) {
        float *x = s->x + b * p.n;
        if (k->source == FILL)
            for (size_t i = 0; i < p.n; i++)
                y[i] = (float)k->fill;
        else
            st = k->source == MEAN     ? mean_row(&p, x, y, err)
                 : k->source == TENSOR ? from_tensor(&p, k->tensor, y, err)
                                       : call_function(k, &p, x, y, err);
        size_t h0 = k->head < 0 ? 0 : (size_t)k->head, h1 = k->head < 0 ? p.heads : h0 + 1;
        size_t t0 = (size_t)k->from, t1 = k->to < 0 ? p.tokens : (size_t)k->to + 1;
        t1 = t1 < p.tokens ? t1 : p.tokens;
        for (size_t h = h0; st == SD_OK && h < h1; h++)
            for (size_t t = t0; t < t1; t++) {
                size_t at = h * p.head_stride + t * p.token_stride;
                memcpy(x + at, y + at, p.width * sizeof *x);
            }
    }
    free(y);
    s->edited = true;
    return st;
}

/* Value at stack slot i into p; what lineage says of it. */
static void read_value(lua_State *L, int i, patch *p, sd_buf *said) {
    sd_err e = {0};
    if (lua_isfunction(L, i)) {
        lua_pushvalue(L, i);
        p->ref = luaL_ref(L, LUA_REGISTRYINDEX);
        p->source = FUNCTION;
        sd_buf_puts(said, "\"a function\"");
    } else if (lua_type(L, i) == LUA_TNUMBER) {
        p->fill = lua_tonumber(L, i);
        sd_buf_json_double(said, p->fill);
    } else if (lua_type(L, i) == LUA_TSTRING && strcmp(lua_tostring(L, i), "mean") == 0) {
        p->source = MEAN;
        sd_buf_puts(said, "\"mean\"");
    } else if (sd_lua_test_tensor(L, i)) {
        if (sd_tensor_cast(sd_lua_test_tensor(L, i), SD_F32, &p->tensor, &e) != SD_OK)
            sd_lua_raise(L, &e);
        p->source = TENSOR;
        sd_buf_printf(said, "\"a tensor of %lld values\"", (long long)sd_tensor_numel(p->tensor));
    } else {
        sd_lua_fail(L, SD_EINVAL,
                    "patch: expected a number, a tensor, \"mean\" or a function, got a %s",
                    luaL_typename(L, i));
    }
}

static int patch_gc(lua_State *L) {
    patch **b = lua_touserdata(L, 1);
    if (*b)
        patch_free(*b);
    *b = NULL;
    return 0;
}

static sd_status record(sd_model *m, const char *point, int layer, const patch *p,
                        const sd_buf *said, sd_err *err) {
    sd_buf args = {0};
    sd_buf_printf(&args, "{\"point\":\"%s\",\"value\":%.*s", point, (int)said->n,
                  said->p ? said->p : "0");
    if (layer >= 0)
        sd_buf_printf(&args, ",\"layer\":%d", layer);
    if (p->head >= 0)
        sd_buf_printf(&args, ",\"head\":%d", p->head);
    if (p->from > 0 || p->to >= 0)
        sd_buf_printf(&args, ",\"from\":%d,\"to\":%d", p->from, p->to);
    sd_buf_puts(&args, ",\"saved\":\"no: a hook of this session\"}");
    sd_status st = sd_buf_status(&args, err);
    if (st == SD_OK)
        st = sd_model_add_step(m, "patch", SD_VERSION, args.p, err);
    sd_buf_free(&args);
    return st;
}

static int lua_patch(lua_State *L) {
    static const char *const names[] = {"layer", "head", "from", "to", NULL};
    sd_model *m = sd_lua_check_model(L, 1);
    const sd_config *c = sd_model_config(m);
    const char *name = luaL_checkstring(L, 2);
    sd_point point = sd_point_find(name);
    sd_err e = {0};
    if (point == SD_POINT_COUNT)
        return sd_lua_fail(L, SD_EINVAL, "patch: no activation \"%s\" (known: %s)", name,
                           SD_POINT_CHOICES);
    luaL_checkany(L, 3);
    sd_lua_check_options(L, 4, names);
    int layer = (int)sd_lua_opt_int(L, 4, "layer", -1);
    if (point == SD_POINT_FINAL && layer < 0)
        layer = c->n_layer - 1;
    if (layer >= 0 && sd_point_check(c, point, layer, &e) != SD_OK) {
        sd_err_context(&e, "patch");
        return sd_lua_raise(L, &e);
    }
    patch **box = lua_newuserdatauv(L, sizeof *box, 0); /* owns the patch until the model does */
    *box = NULL;
    if (luaL_newmetatable(L, "sd.patch")) {
        lua_pushcfunction(L, patch_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    patch *p = *box = sd_alloc(1, sizeof *p, &e);
    if (!p)
        return sd_lua_raise(L, &e);
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    p->L = lua_tothread(L, -1);
    lua_pop(L, 1);
    p->S = sd_lua_get(L);
    p->head = (int)sd_lua_opt_int(L, 4, "head", -1);
    p->from = (int)sd_lua_opt_int(L, 4, "from", 0);
    p->to = (int)sd_lua_opt_int(L, 4, "to", -1);
    if (p->from < 0)
        return sd_lua_fail(L, SD_EINVAL, "patch: from %d: positions are numbered from 0", p->from);
    sd_buf said = {0};
    read_value(L, 3, p, &said);
    sd_box_model *b = sd_lua_box_model(L);
    sd_hook h = {.point = point, .layer = layer, .fn = on_site, .ctx = p};
    sd_status st = sd_model_clone(m, &b->m, &e);
    if (st == SD_OK)
        st = record(b->m, name, layer, p, &said, &e);
    sd_buf_free(&said);
    if (st == SD_OK)
        st = sd_model_add_hook(b->m, &h, patch_free, &e);
    if (st != SD_OK)
        return sd_lua_raise(L, &e);
    *box = NULL;
    sd_lua_boxed_model(L, b);
    return 1;
}

static const sd_fn functions[] = {
    {"patch", lua_patch, "patch(model, point, value, {layer=, head=, from=, to=})",
     "A model whose every pass replaces or changes an activation.",
     "point is one of capture's (help(capture)); without layer= every layer that has it. value: a "
     "number; \"mean\" over the tokens; a tensor as large as the activation of a sequence, or as "
     "one token of it, from another text or model (capture); or a function of the activation (an "
     "f32 tensor as capture gives it, and {layer, point}) that returns a tensor, or changes the "
     "one "
     "it was given and returns nothing. head= and from=, to= (positions) restrict what is written. "
     "Everything after the point follows: changed scores give a changed pattern.\n\n"
     "It holds in nll, ppl, compare, logits, tokens, capture, ablate and generate (which then runs "
     "the whole text for every token). Patches add up. The model given is untouched; the patched "
     "one "
     "lives in this session and cannot be saved.",
     "n = patch(m, 'z', 0, {layer=2, head=1})\n"
     "a = ablate(m, t, {layers='2', heads='1', ctx=64}):row(0).delta\n"
     "assert(math.abs(nll(n, t, {ctx=64}) - nll(m, t, {ctx=64}) - a) < 1e-6)\n"
     "k = patch(m, 'resid_post', function(x) return x * 1 end, {layer=0})\n"
     "assert(nll(k, 'the same') == nll(m, 'the same'))",
     "layer= head= from= to="},
    {NULL}};

void sd_lua_open_patch(lua_State *L) {
    sd_lua_register(L, functions, "");
}
