/* api_model.c: the plugin table's group "model": reading and changing models. */
#include <stdio.h>
#include <string.h>

#include "host/api.h"
#include "nn/attn.h"
#include "nn/price.h"
#include "nn/rope.h"

static bool layer_ok(sd_call *c, const sd_handle *h, int32_t layer, bool global) {
    int n = sd_model_config(h->u.model)->n_layer;
    if (layer >= (global ? -1 : 0) && layer < n)
        return true;
    sd_api_fail(c, SD_EINVAL, "expected layer 0..%d, got %d: %s has %d layers, numbered from 0",
                n - 1, layer, sd_model_name(h->u.model), n);
    return false;
}

static sd_hmodel *h_model_clone(sd_call *c, sd_hmodel *m) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return NULL;
    sd_model *copy = NULL;
    if (sd_model_clone(h->u.model, &copy, &c->err) != SD_OK)
        return NULL;
    sd_handle *n = sd_api_new(c, H_MODEL);
    if (!n) {
        sd_model_unref(copy);
        return NULL;
    }
    n->u.model = copy;
    return (sd_hmodel *)n;
}

static void h_model_release(sd_call *c, sd_hmodel *m) {
    sd_api_drop(c, m, H_MODEL);
}

static const char *h_model_name(sd_call *c, sd_hmodel *m) {
    sd_handle *h = sd_api_model_of(c, m);
    return h ? sd_model_name(h->u.model) : "";
}

static int h_model_info(sd_call *c, sd_hmodel *m, sd_hmodel_info *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    sd_hmodel_info i = {.n_layer = g->n_layer,
                        .d_model = g->d_model,
                        .d_ff = g->d_ff,
                        .vocab = g->vocab,
                        .n_pos = g->n_pos,
                        .causal = g->causal,
                        .tied = g->tied,
                        .rope = g->pos == SD_POS_ROPE ? g->rope.dim : 0,
                        .qkv_bias = g->qkv_bias,
                        .norm = (int32_t)g->norm,
                        .embed_scale = g->embed_scale,
                        .d_floor = g->d_floor,
                        .n_params = sd_model_n_params(h->u.model)};
    snprintf(i.family, sizeof i.family, "%s", g->family);
    return sd_api_fill(c, out, &i, sizeof i);
}

static int32_t scores_of(const sd_layer_cfg *lc) {
    static const int32_t of[] = {[SD_SCORES_NONE] = SD_SCORES_ABSENT,
                                 [SD_SCORES_PRODUCT] = SD_SCORES_OF_QK,
                                 [SD_SCORES_SKEW] = SD_SCORES_OF_SKEW,
                                 [SD_SCORES_FACTORS] = SD_SCORES_OF_PARTS,
                                 [SD_SCORES_KEY] = SD_SCORES_OF_KEYS};
    return of[sd_attn_algebra_of(lc)];
}

static int h_model_layer(sd_call *c, sd_hmodel *m, int32_t layer, sd_hlayer_info *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h || !layer_ok(c, h, layer, false))
        return c->err.code;
    const sd_layer_cfg *g = &sd_model_config(h->u.model)->layer[layer];
    sd_hlayer_info i = {.scores = scores_of(g), .scale = g->scale};
#define COPY(name_, lo_, hi_, opt_) i.name_ = g->name_;
    SD_LAYER_INTS(COPY)
#undef COPY
    snprintf(i.kind, sizeof i.kind, "%s", g->kind);
    snprintf(i.options, sizeof i.options, "%s", g->options);
    return sd_api_fill(c, out, &i, sizeof i);
}

static int h_model_set_layer(sd_call *c, sd_hmodel *m, int32_t layer, const sd_hlayer_info *in) {
    sd_handle *h = sd_api_writable(c, m);
    if (!h || !layer_ok(c, h, layer, false))
        return c->err.code;
    if (!in || in->struct_size < sizeof *in)
        return sd_api_fail(c, SD_EINVAL, "model_set_layer: struct_size is not set");
    if (!memchr(in->kind, 0, sizeof in->kind) || !memchr(in->options, 0, sizeof in->options))
        return sd_api_fail(c, SD_EINVAL, "model_set_layer: kind or options is not terminated");
    sd_layer_cfg g = sd_model_config(h->u.model)->layer[layer];
#define COPY(name_, lo_, hi_, opt_) g.name_ = in->name_;
    SD_LAYER_INTS(COPY)
#undef COPY
    g.scale = in->scale;
    snprintf(g.kind, sizeof g.kind, "%s", in->kind);
    snprintf(g.options, sizeof g.options, "%s", in->options);
    sd_attn_bind(&g, &c->s->run);
    return sd_model_set_layer_cfg(h->u.model, layer, &g, &c->err);
}

static size_t h_model_n_tensors(sd_call *c, sd_hmodel *m) {
    sd_handle *h = sd_api_model_of(c, m);
    return h ? sd_model_n_tensors(h->u.model) : 0;
}

static const char *h_model_tensor_name(sd_call *c, sd_hmodel *m, size_t i) {
    sd_handle *h = sd_api_model_of(c, m);
    return h && i < sd_model_n_tensors(h->u.model) ? sd_model_tensor_name(h->u.model, i) : NULL;
}

static int h_model_get_tensor(sd_call *c, sd_hmodel *m, const char *name, sd_harray *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    sd_tensor *t = NULL;
    if (sd_model_tensor(h->u.model, name ? name : "", &t, &c->err) != SD_OK)
        return c->err.code;
    int rc = sd_api_array_out(c, t, out);
    sd_tensor_free(t);
    return rc;
}

static int h_model_set_tensor(sd_call *c, sd_hmodel *m, const char *name, const sd_harray *in) {
    sd_handle *h = sd_api_writable(c, m);
    sd_tensor *t = NULL;
    if (!h || sd_api_array_in(c, in, &t))
        return c->err.code;
    int rc = sd_model_set_tensor(h->u.model, name ? name : "", t, &c->err);
    sd_tensor_free(t);
    return rc;
}

static bool find_role(sd_call *c, const char *name, sd_role *out) {
    *out = name ? sd_role_find(name) : SD_ROLE_COUNT;
    if (*out != SD_ROLE_COUNT)
        return true;
    sd_api_fail(c, SD_EINVAL, "unknown part \"%.40s\"", name ? name : "NULL");
    return false;
}

static bool h_model_has_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role) {
    sd_handle *h = sd_api_model_of(c, m);
    sd_role r;
    return h && find_role(c, role, &r) && layer_ok(c, h, layer, sd_role_is_global(r)) &&
           sd_model_has(h->u.model, layer, r);
}

static int h_model_get_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                            sd_harray *out) {
    sd_handle *h = sd_api_model_of(c, m);
    sd_role r;
    if (!h || !find_role(c, role, &r) || !layer_ok(c, h, layer, sd_role_is_global(r)))
        return c->err.code;
    sd_tensor *t = NULL;
    if (sd_model_get(h->u.model, layer, r, SD_F64, &t, &c->err) != SD_OK)
        return c->err.code;
    int rc = sd_api_array_out(c, t, out);
    sd_tensor_free(t);
    return rc;
}

static int h_model_set_part(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                            const sd_harray *in) {
    sd_handle *h = sd_api_writable(c, m);
    sd_role r;
    sd_tensor *t = NULL;
    if (!h || !find_role(c, role, &r) || !layer_ok(c, h, layer, sd_role_is_global(r)) ||
        sd_api_array_in(c, in, &t))
        return c->err.code;
    int rc = sd_model_set(h->u.model, layer, r, t, &c->err);
    sd_tensor_free(t);
    return rc;
}

static int h_model_price(sd_call *c, sd_hmodel *m, int32_t layer, int32_t tokens, sd_hprice *out) {
    enum { CTX = 1024 };
    sd_handle *h = sd_api_model_of(c, m);
    if (!h || !layer_ok(c, h, layer, true))
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    if (tokens < 0)
        return sd_api_fail(c, SD_EINVAL, "the price at %d tokens", tokens);
    if (tokens == 0)
        tokens = g->n_pos > 0 && g->n_pos < CTX ? g->n_pos : CTX;
    sd_price p;
    if (layer < 0)
        sd_price_of(g, tokens, &p);
    else
        sd_price_layer(g, layer, tokens, &p);
    sd_hprice s = {.recurrent_layers = p.recurrent,
                   .n_params = layer < 0 ? sd_model_n_params(h->u.model) : p.attn_params,
                   .attn_params = p.attn_params,
                   .flops = p.flops,
                   .attn_flops = p.attn_flops,
                   .cache_bytes = p.cache_bytes,
                   .state_bytes = p.state_bytes};
    return sd_api_fill(c, out, &s, sizeof s);
}

static int h_model_rope(sd_call *c, sd_hmodel *m, sd_hrope *out) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h)
        return c->err.code;
    const sd_config *g = sd_model_config(h->u.model);
    size_t n = g->pos == SD_POS_ROPE ? (size_t)g->rope.dim / 2 : 0;
    sd_hrope s = {.pairs = (int32_t)n,
                  .a = sd_api_alloc(c, n + 1, sizeof *s.a),
                  .b = sd_api_alloc(c, n + 1, sizeof *s.b),
                  .inv = sd_api_doubles(c, n + 1)};
    if (!s.a || !s.b || !s.inv)
        return SD_ENOMEM;
    if (n)
        sd_rope_inv_freq(&g->rope, s.inv);
    for (size_t i = 0; i < n; i++) {
        bool halves = g->rope.style == SD_ROPE_HALF;
        s.a[i] = (int32_t)(halves ? i : 2 * i);
        s.b[i] = (int32_t)(halves ? i + n : 2 * i + 1);
    }
    return sd_api_fill(c, out, &s, sizeof s);
}

static const char *h_model_no_scores(sd_call *c, sd_hmodel *m, int32_t layer) {
    sd_handle *h = sd_api_model_of(c, m);
    if (!h || !layer_ok(c, h, layer, false))
        return NULL;
    char *buf = sd_api_alloc(c, 64, 1);
    const char *why =
        buf ? sd_attn_no_scores(&sd_model_config(h->u.model)->layer[layer], buf) : NULL;
    return buf ? (why ? why : "") : NULL;
}

static int h_model_set_name(sd_call *c, sd_hmodel *m, const char *name) {
    sd_handle *h = sd_api_writable(c, m);
    if (!h)
        return c->err.code;
    if (!name || !*name)
        return sd_api_fail(c, SD_EINVAL, "a model cannot be named \"\"");
    return sd_model_set_name(h->u.model, name, &c->err);
}

void sd_api_model(sd_host *t) {
    t->model_clone = h_model_clone;
    t->model_release = h_model_release;
    t->model_name = h_model_name;
    t->model_info = h_model_info;
    t->model_layer = h_model_layer;
    t->model_set_layer = h_model_set_layer;
    t->model_n_tensors = h_model_n_tensors;
    t->model_tensor_name = h_model_tensor_name;
    t->model_get_tensor = h_model_get_tensor;
    t->model_set_tensor = h_model_set_tensor;
    t->model_has_part = h_model_has_part;
    t->model_get_part = h_model_get_part;
    t->model_set_part = h_model_set_part;
    t->model_price = h_model_price;
    t->model_rope = h_model_rope;
    t->model_no_scores = h_model_no_scores;
    t->model_set_name = h_model_set_name;
}
