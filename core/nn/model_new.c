/* Fresh models: every tensor of a config, initialised from a seed. */
#include "nn/model_i.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/family.h"

static sd_status add_missing(sd_model *m, sd_err *err) {
    char name[128];
    int ndim;
    int64_t shape[SD_MAX_DIMS];
    model_walk w = {0};
    while (sd_model_walk(&w, m->family, &m->cfg, name, &ndim, shape)) {
        if (sd_model_find(m, name) >= 0)
            continue;
        SD_TRY(sd_model_add_entry(m, name, SD_F32, ndim, shape, -1, err));
        model_entry *e = &m->entries[m->n_entries - 1];
        SD_TRY(sd_model_zero(e, &e->edited, err));
    }
    return SD_OK;
}

/* softplus(0.5413) = 1: every S–D diagonal starts at 1 (METHOD §6). */
static const double b_d_start = 0.5413248546129181;

/* Initial value of a part: constant, or Gaussian of the standard deviation given. */
static bool init_of(const sd_config *cfg, sd_role r, double *constant, double *sd) {
    *constant = 0.0;
    *sd = 0.0;
    switch (r) {
    case SD_ROLE_EMBED_NORM_G:
    case SD_ROLE_NORM1_G:
    case SD_ROLE_NORM2_G:
    case SD_ROLE_FINAL_NORM_G:
    case SD_ROLE_MLM_NORM_G:
        *constant = 1.0;
        return true;
    case SD_ROLE_BD:
        *constant = b_d_start;
        return true;
    case SD_ROLE_TOK:
    case SD_ROLE_POS:
    case SD_ROLE_TYPE:
    case SD_ROLE_WQ:
    case SD_ROLE_WK:
    case SD_ROLE_WV:
    case SD_ROLE_WD:
    case SD_ROLE_W1:
    case SD_ROLE_W3:
    case SD_ROLE_MLM_W:
    case SD_ROLE_HEAD:
        *sd = 0.02;
        return true;
    case SD_ROLE_WO:
    case SD_ROLE_W2:
        *sd = 0.02 / __builtin_sqrt(2.0 * cfg->n_layer);
        return true;
    default:
        return false; // zero
    }
}

static sd_status init_part(sd_model *m, int layer, sd_role r, uint64_t seed, sd_err *err) {
    int64_t s[2];
    int nd;
    double constant, sd;
    if (!sd_role_shape(&m->cfg, layer, r, s, &nd) || !init_of(&m->cfg, r, &constant, &sd))
        return SD_OK;
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_new(SD_F32, nd, s, &t, err));
    float *p = t->data;
    size_t n = (size_t)sd_tensor_numel(t);
    // one stream a part: the values depend on the part, not on the family's layout
    sd_rng rng;
    sd_rng_stream(&rng, seed, (uint64_t)(sd_role_is_global(r) ? 0 : layer + 1), (uint64_t)r);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(sd > 0.0 ? sd * sd_rng_gauss(&rng) : constant);
    sd_status st = sd_model_set(m, layer, r, t, err);
    sd_tensor_free(t);
    return st;
}

/* Every field of a config and the seed: two models that differ in any of them differ in this. */
static void config_hash(const sd_config *cfg, uint64_t seed, char out[72]) {
    sd_sha256 h;
    char hex[65], buf[192];
    sd_sha256_init(&h);
#define ADD(...) sd_sha256_add(&h, buf, (size_t)snprintf(buf, sizeof buf, __VA_ARGS__))
#define INT(f_) ADD(" %d", (int)cfg->f_);
#define REAL(f_) ADD(" %.17g", cfg->f_);
    ADD("%s %llu %s", cfg->family, (unsigned long long)seed, cfg->rope.scaling);
    SD_CONFIG_INTS(INT)
    SD_CONFIG_REALS(REAL)
    for (int i = 0; i < cfg->rope.n_factor; i++)
        ADD(" %.9g", (double)cfg->rope.freq_factor[i]);
    for (int l = 0; l < cfg->n_layer; l++) {
        const sd_layer_cfg *lc = &cfg->layer[l];
        ADD("|%s %.17g %s", lc->kind, lc->scale, lc->options);
#define LAYER(name_, lo_, hi_, opt_) ADD(" %d", lc->name_);
        SD_LAYER_INTS(LAYER)
    }
#undef ADD
#undef INT
#undef REAL
#undef LAYER
    sd_sha256_hex(&h, hex);
    snprintf(out, 72, "new:%s", hex);
}

sd_status sd_model_new(const sd_config *cfg, uint64_t seed, sd_model **out, sd_err *err) {
    const sd_family *f = sd_family_find(cfg->family);
    if (!f) {
        sd_buf b = {0};
        sd_family_list(&b);
        sd_status bad = sd_fail(err, SD_EINVAL, "unknown model family '%.24s' (known: %s)",
                                cfg->family, b.p ? b.p : "");
        sd_buf_free(&b);
        return bad;
    }
    SD_TRY(sd_config_check(cfg, err));
    sd_model *m = sd_model_alloc(err);
    if (!m)
        return SD_ENOMEM;
    sd_status st;
    m->family = f;
    SD_GO(st, fail, sd_config_copy(&m->cfg, cfg, err));
    m->name = sd_strdup("new", err);
    m->path = sd_strdup("", err);
    if (!m->name || !m->path) {
        st = SD_ENOMEM;
        goto fail;
    }
    config_hash(cfg, seed, m->fresh_hash);
    SD_GO(st, fail, add_missing(m, err));
    for (int l = 0; l < cfg->n_layer; l++) {
        SD_GO(st, fail, sd_check_cancel(err));
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            if (!sd_role_is_global((sd_role)r))
                SD_GO(st, fail, init_part(m, l, (sd_role)r, seed, err));
        }
    }
    for (int r = 0; r < SD_ROLE_COUNT; r++) {
        if (sd_role_is_global((sd_role)r))
            SD_GO(st, fail, init_part(m, 0, (sd_role)r, seed, err));
    }
    *out = m;
    return SD_OK;
fail:
    sd_model_unref(m);
    return st;
}
