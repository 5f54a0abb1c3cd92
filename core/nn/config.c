#include "nn/config.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "nn/attn.h"

sd_status sd_config_init(sd_config *c, int n_layer, sd_err *err) {
    memset(c, 0, sizeof *c);
    if (n_layer < 1 || n_layer > SD_MAX_LAYERS)
        return sd_fail(err, SD_EFORMAT, "number of layers must be 1..%d, got %d", SD_MAX_LAYERS,
                       n_layer);
    c->layer = sd_alloc((size_t)n_layer, sizeof *c->layer, err);
    if (!c->layer)
        return SD_ENOMEM;
    c->n_layer = n_layer;
    c->embed_scale = 1.0;
    c->bos = c->eos = -1;
    strcpy(c->rope.scaling, "none");
    c->rope.theta = 10000.0;
    c->rope.factor = 1.0;
    return SD_OK;
}

sd_status sd_config_copy(sd_config *dst, const sd_config *src, sd_err *err) {
    sd_layer_cfg *layer = sd_alloc((size_t)src->n_layer, sizeof *layer, err);
    if (!layer) {
        memset(dst, 0, sizeof *dst);
        return SD_ENOMEM;
    }
    *dst = *src;
    dst->layer = layer;
    memcpy(layer, src->layer, (size_t)src->n_layer * sizeof *layer);
    return SD_OK;
}

void sd_config_free(sd_config *c) {
    if (!c)
        return;
    sd_free(c->layer);
    c->layer = NULL;
    c->n_layer = 0;
}

bool sd_layer_same(const sd_layer_cfg *a, const sd_layer_cfg *b) {
    double tol = 1e-14 * (fabs(a->scale) + fabs(b->scale));
    bool same = strcmp(a->kind, b->kind) == 0 && strcmp(a->options, b->options) == 0 &&
                fabs(a->scale - b->scale) <= tol;
#define SAME(name_, lo_, hi_, opt_) same = same && a->name_ == b->name_;
    SD_LAYER_INTS(SAME)
#undef SAME
    return same;
}

bool sd_layer_option(const char *options, const char *key, char *out, size_t n) {
    size_t klen = strlen(key);
    const char *p = options;
    while (*p) {
        while (*p == ' ')
            p++;
        size_t len = strcspn(p, " ");
        if (len > klen && p[klen] == '=' && memcmp(p, key, klen) == 0) {
            size_t v = len - klen - 1;
            if (v >= n)
                v = n - 1;
            memcpy(out, p + klen + 1, v);
            out[v] = 0;
            return true;
        }
        p += len;
    }
    return false;
}

sd_diag sd_layer_diag(const sd_layer_cfg *lc) {
    char v[16];
    const sd_attn_kind *k = sd_attn_of(lc);
    for (int i = 0; k && i < k->n_option; i++) {
        if (strcmp(k->option[i].name, "diag") != 0 ||
            !sd_layer_option(lc->options, "diag", v, sizeof v))
            continue;
        if (strcmp(v, "input") == 0)
            return SD_DIAG_INPUT;
        return strcmp(v, "scalar") == 0 ? SD_DIAG_SCALAR : SD_DIAG_NONE;
    }
    return k ? k->diag : SD_DIAG_NONE;
}

static sd_status in_range(const char *field, int64_t v, int64_t lo, int64_t hi, sd_err *err) {
    if (v < lo || v > hi)
        return sd_fail(err, SD_EFORMAT, "%s must be %lld..%lld, got %lld", field, (long long)lo,
                       (long long)hi, (long long)v);
    return SD_OK;
}

static sd_status finite_in(const char *field, double v, double lo, double hi, sd_err *err) {
    if (!(v >= lo && v <= hi))
        return sd_fail(err, SD_EFORMAT, "%s must be a number in %g..%g, got %g", field, lo, hi, v);
    return SD_OK;
}

static sd_status check_layer(const sd_config *c, int l, sd_err *err) {
    const sd_layer_cfg *lc = &c->layer[l];
    if (!lc->kind[0] || memchr(lc->kind, 0, sizeof lc->kind) == NULL)
        return sd_fail(err, SD_EFORMAT, "attention kind is missing");
    if (memchr(lc->options, 0, sizeof lc->options) == NULL)
        return sd_fail(err, SD_EFORMAT, "options are not terminated");
#define CHECK(name_, lo_, hi_, opt_) SD_TRY(in_range(#name_, lc->name_, lo_, hi_, err));
    SD_LAYER_INTS(CHECK)
#undef CHECK
    SD_TRY(in_range("n_kv_head", lc->n_kv_head, 1, lc->n_head, err));
    if (lc->n_head % lc->n_kv_head != 0)
        return sd_fail(err, SD_EFORMAT, "n_head %d is no multiple of n_kv_head %d", lc->n_head,
                       lc->n_kv_head);
    SD_TRY(in_range("n_head * head dimension",
                    (int64_t)lc->n_head * (lc->d_qk > lc->d_v ? lc->d_qk : lc->d_v), 1, 1 << 18,
                    err));
    if (lc->d_qk > 0)
        SD_TRY(finite_in("scale", lc->scale, -1e6, 1e6, err));
    SD_TRY(sd_attn_check(lc, err));
    if (c->pos == SD_POS_ROPE && lc->d_qk > 0 && c->rope.dim > lc->d_qk)
        return sd_fail(err, SD_EFORMAT, "rotary dimensions %d exceed the head dimension %d",
                       c->rope.dim, lc->d_qk);
    return SD_OK;
}

sd_status sd_config_check(const sd_config *c, sd_err *err) {
    SD_TRY(in_range("n_layer", c->n_layer, 1, SD_MAX_LAYERS, err));
    if (!c->layer)
        return sd_fail(err, SD_EINVAL, "config has no layers");
    SD_TRY(in_range("d_model", c->d_model, 1, 1 << 17, err));
    SD_TRY(in_range("d_ff", c->d_ff, 1, 1 << 20, err));
    SD_TRY(in_range("vocab", c->vocab, 1, 1 << 24, err));
    SD_TRY(in_range("n_pos", c->n_pos, 1, 1 << 28, err));
    SD_TRY(in_range("n_type", c->n_type, 0, 1 << 16, err));
    SD_TRY(in_range("d_model * vocab", (int64_t)c->d_model * c->vocab, 1, (int64_t)1 << 36, err));
    SD_TRY(in_range("d_model * d_ff", (int64_t)c->d_model * c->d_ff, 1, (int64_t)1 << 34, err));
    if (c->pos == SD_POS_LEARNED)
        SD_TRY(
            in_range("d_model * n_pos", (int64_t)c->d_model * c->n_pos, 1, (int64_t)1 << 34, err));
    if (c->norm != SD_NORM_NONE)
        SD_TRY(finite_in("norm_eps", c->norm_eps, 0.0, 1.0, err));
    SD_TRY(finite_in("embed_scale", c->embed_scale, -1e6, 1e6, err));
    SD_TRY(finite_in("d_floor", c->d_floor, 0.0, 1e6, err));
    if (c->norm == SD_NORM_NONE && (c->final_norm || c->embed_norm))
        return sd_fail(err, SD_EFORMAT, "norm is none, but a final or embedding norm is asked for");
    if (c->block == SD_BLOCK_POST && c->norm == SD_NORM_NONE)
        return sd_fail(err, SD_EFORMAT, "post-norm blocks need a norm");
    if (c->mlm_head && !c->has_head)
        return sd_fail(err, SD_EFORMAT, "a masked-language-model head needs an output head");
    if (c->pos == SD_POS_ROPE) {
        const sd_rope_cfg *r = &c->rope;
        SD_TRY(in_range("rotary dimensions", r->dim, 2, SD_MAX_ROPE, err));
        if (r->dim % 2)
            return sd_fail(err, SD_EFORMAT, "rotary dimensions must be even, got %d", r->dim);
        SD_TRY(finite_in("rope theta", r->theta, 1e-3, 1e15, err));
        bool linear = strcmp(r->scaling, "linear") == 0, llama3 = strcmp(r->scaling, "llama3") == 0;
        if (linear || llama3)
            SD_TRY(finite_in("rope factor", r->factor, 1e-6, 1e9, err));
        if (llama3) {
            SD_TRY(finite_in("rope low_freq_factor", r->low_freq, 1e-6, 1e9, err));
            SD_TRY(finite_in("rope high_freq_factor", r->high_freq, 1e-6, 1e9, err));
            if (!(r->high_freq > r->low_freq))
                return sd_fail(err, SD_EFORMAT,
                               "rope high_freq_factor %g must exceed low_freq_factor %g",
                               r->high_freq, r->low_freq);
            SD_TRY(in_range("rope original_max_position_embeddings", r->original_ctx, 1, 1 << 28,
                            err));
        }
        if (strcmp(r->scaling, "factors") == 0) {
            if (r->n_factor != r->dim / 2)
                return sd_fail(err, SD_EFORMAT, "%d rope factors for %d rotary pairs", r->n_factor,
                               r->dim / 2);
            for (int i = 0; i < r->n_factor; i++)
                SD_TRY(finite_in("rope factor", (double)r->freq_factor[i], 1e-9, 1e9, err));
        } else if (!linear && !llama3 && strcmp(r->scaling, "none") != 0) {
            return sd_fail(err, SD_EFORMAT, "rope scaling '%s' is unknown", r->scaling);
        }
    }
    for (int l = 0; l < c->n_layer; l++) {
        sd_status st = check_layer(c, l, err);
        if (st != SD_OK) {
            sd_err_context(err, "layer %d", l);
            return st;
        }
    }
    return SD_OK;
}

static const char *const role_names[SD_ROLE_COUNT] = {
    [SD_ROLE_TOK] = "tok",
    [SD_ROLE_POS] = "pos",
    [SD_ROLE_TYPE] = "type",
    [SD_ROLE_EMBED_NORM_G] = "embed_norm_g",
    [SD_ROLE_EMBED_NORM_B] = "embed_norm_b",
    [SD_ROLE_NORM1_G] = "norm1_g",
    [SD_ROLE_NORM1_B] = "norm1_b",
    [SD_ROLE_WQ] = "wq",
    [SD_ROLE_BQ] = "bq",
    [SD_ROLE_WK] = "wk",
    [SD_ROLE_BK] = "bk",
    [SD_ROLE_WV] = "wv",
    [SD_ROLE_BV] = "bv",
    [SD_ROLE_WO] = "wo",
    [SD_ROLE_BO] = "bo",
    [SD_ROLE_WD] = "wd",
    [SD_ROLE_BD] = "bd",
    [SD_ROLE_NORM2_G] = "norm2_g",
    [SD_ROLE_NORM2_B] = "norm2_b",
    [SD_ROLE_W1] = "w1",
    [SD_ROLE_B1] = "b1",
    [SD_ROLE_W3] = "w3",
    [SD_ROLE_W2] = "w2",
    [SD_ROLE_B2] = "b2",
    [SD_ROLE_FINAL_NORM_G] = "final_norm_g",
    [SD_ROLE_FINAL_NORM_B] = "final_norm_b",
    [SD_ROLE_MLM_W] = "mlm_w",
    [SD_ROLE_MLM_B] = "mlm_b",
    [SD_ROLE_MLM_NORM_G] = "mlm_norm_g",
    [SD_ROLE_MLM_NORM_B] = "mlm_norm_b",
    [SD_ROLE_HEAD] = "head",
    [SD_ROLE_HEAD_B] = "head_b",
    [SD_ROLE_RA] = "ra",
    [SD_ROLE_RB] = "rb",
    [SD_ROLE_F] = "f",
    [SD_ROLE_FL] = "fl",
    [SD_ROLE_DIAG] = "diag",
    [SD_ROLE_POT] = "pot",
};

const char *sd_role_name(sd_role r) {
    return (unsigned)r < SD_ROLE_COUNT ? role_names[r] : "?";
}

sd_role sd_role_find(const char *name) {
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        if (strcmp(role_names[r], name) == 0)
            return (sd_role)r;
    }
    return SD_ROLE_COUNT;
}

bool sd_role_is_global(sd_role r) {
    return r <= SD_ROLE_EMBED_NORM_B || (r >= SD_ROLE_FINAL_NORM_G && r <= SD_ROLE_HEAD_B);
}

bool sd_role_shape(const sd_config *cfg, int layer, sd_role r, int64_t shape[2], int *ndim) {
    int64_t rows = 0, cols = 0; // rows 0: a vector of cols
    bool has = false;
    int64_t D = cfg->d_model;
    const sd_layer_cfg *lc = NULL;
    if ((unsigned)r >= SD_ROLE_COUNT)
        return false;
    if (!sd_role_is_global(r)) {
        if (layer < 0 || layer >= cfg->n_layer)
            return false;
        lc = &cfg->layer[layer];
    }
    bool any_norm = cfg->norm != SD_NORM_NONE, centred = cfg->norm == SD_NORM_LAYER;
    switch (r) {
    case SD_ROLE_TOK:
        has = true, rows = cfg->vocab, cols = D;
        break;
    case SD_ROLE_POS:
        has = cfg->pos == SD_POS_LEARNED, rows = cfg->n_pos, cols = D;
        break;
    case SD_ROLE_TYPE:
        has = cfg->n_type > 0, rows = cfg->n_type, cols = D;
        break;
    case SD_ROLE_EMBED_NORM_G:
        has = cfg->embed_norm && any_norm, cols = D;
        break;
    case SD_ROLE_EMBED_NORM_B:
        has = cfg->embed_norm && centred, cols = D;
        break;
    case SD_ROLE_NORM1_G:
    case SD_ROLE_NORM2_G:
        has = any_norm, cols = D;
        break;
    case SD_ROLE_NORM1_B:
    case SD_ROLE_NORM2_B:
        has = centred, cols = D;
        break;
    case SD_ROLE_WO:
        has = true, rows = (int64_t)lc->n_head * lc->d_v, cols = D;
        break;
    case SD_ROLE_BO:
        has = cfg->out_bias, cols = D;
        break;
    case SD_ROLE_W1:
        has = true, rows = D, cols = cfg->d_ff;
        break;
    case SD_ROLE_B1:
        has = cfg->mlp_bias, cols = cfg->d_ff;
        break;
    case SD_ROLE_W3:
        has = cfg->gated_mlp, rows = D, cols = cfg->d_ff;
        break;
    case SD_ROLE_W2:
        has = true, rows = cfg->d_ff, cols = D;
        break;
    case SD_ROLE_B2:
        has = cfg->mlp_bias, cols = D;
        break;
    case SD_ROLE_FINAL_NORM_G:
        has = cfg->final_norm && any_norm, cols = D;
        break;
    case SD_ROLE_FINAL_NORM_B:
        has = cfg->final_norm && centred, cols = D;
        break;
    case SD_ROLE_MLM_W:
        has = cfg->mlm_head, rows = D, cols = D;
        break;
    case SD_ROLE_MLM_B:
    case SD_ROLE_MLM_NORM_G:
    case SD_ROLE_MLM_NORM_B:
        has = cfg->mlm_head, cols = D;
        break;
    case SD_ROLE_HEAD:
        has = cfg->has_head && !cfg->tied, rows = D, cols = cfg->vocab;
        break;
    case SD_ROLE_HEAD_B:
        has = cfg->has_head && cfg->mlm_head, cols = cfg->vocab;
        break;
    case SD_ROLE_COUNT:
        break;
    default: // what attention kinds are made of
        return sd_attn_role_shape(cfg, lc, r, shape, ndim);
    }
    if (!has)
        return false;
    if (rows > 0) {
        shape[0] = rows, shape[1] = cols;
        *ndim = 2;
    } else {
        shape[0] = cols, shape[1] = 1;
        *ndim = 1;
    }
    return true;
}
