#include "nn/attn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* The list of kinds: a new one is its two files and a line here. */
extern const sd_attn_kind sd_attn_kind_softmax, sd_attn_kind_sd, sd_attn_kind_elu1,
    sd_attn_kind_bilinear, sd_attn_kind_uniform, sd_attn_kind_potential, sd_attn_kind_window;
static const sd_attn_kind *const kinds[] = {
    &sd_attn_kind_softmax, &sd_attn_kind_sd,        &sd_attn_kind_elu1,   &sd_attn_kind_bilinear,
    &sd_attn_kind_uniform, &sd_attn_kind_potential, &sd_attn_kind_window,
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

const sd_attn_kind *sd_attn_at(size_t i) {
    return i < N_KINDS ? kinds[i] : NULL;
}

const sd_attn_kind *sd_attn_find(const char *name) {
    for (size_t i = 0; i < N_KINDS; i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}

const sd_attn_kind *sd_attn_at_in(const sd_run *run, size_t i) {
    if (i < N_KINDS)
        return kinds[i];
    return run && run->kinds && i - N_KINDS < run->kinds->n ? run->kinds->row[i - N_KINDS] : NULL;
}

const sd_attn_kind *sd_attn_find_in(const sd_run *run, const char *name) {
    const sd_attn_kind *k;
    for (size_t i = 0; (k = sd_attn_at_in(run, i)); i++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

void sd_attn_bind(sd_layer_cfg *lc, const sd_run *run) {
    const sd_attn_kind *k = sd_attn_find_in(run, lc->kind);
    lc->foreign = k && k->plugin ? k : NULL;
}

const sd_attn_kind *sd_attn_of(const sd_layer_cfg *lc) {
    if (lc->foreign && strcmp(lc->foreign->name, lc->kind) == 0)
        return lc->foreign;
    return sd_attn_find(lc->kind);
}

sd_status sd_attn_need(const sd_layer_cfg *lc, const sd_attn_kind **out, sd_err *err) {
    *out = sd_attn_of(lc);
    if (*out)
        return SD_OK;
    char known[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_KINDS && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", kinds[i]->name);
    return sd_fail(err, SD_EINVAL, "attention kind '%.23s' is unknown (known: %s)", lc->kind,
                   known);
}

/* ---- parts ----------------------------------------------------------------------------------- */

bool sd_attn_uses(const sd_layer_cfg *lc, sd_attn_width w) {
    const sd_attn_kind *k = sd_attn_of(lc);
    for (int i = 0; k && i < k->n_part; i++)
        if (k->part[i].width == w)
            return true;
    return false;
}

void sd_attn_normalize(sd_layer_cfg *lc) {
    if (!sd_attn_of(lc))
        return;
    if (!sd_attn_uses(lc, SD_WIDTH_QUERY))
        lc->d_qk = 0;
    if (!sd_attn_uses(lc, SD_WIDTH_PLANES))
        lc->planes = 0;
    if (!sd_attn_uses(lc, SD_WIDTH_RANK))
        lc->f_rank = 0;
}

double sd_attn_fresh_scale(const sd_layer_cfg *lc) {
    const sd_attn_kind *k = sd_attn_of(lc);
    return k && lc->d_qk > 0 && k->scale_width > 0 ? 1.0 / sqrt(k->scale_width * lc->d_qk) : 1.0;
}

static int64_t part_width(const sd_layer_cfg *lc, sd_attn_width w) {
    int64_t h = lc->n_head, kv = lc->n_kv_head;
    switch (w) {
    case SD_WIDTH_QUERY:
        return h * lc->d_qk;
    case SD_WIDTH_KEY:
        return kv * lc->d_qk;
    case SD_WIDTH_VALUE:
        return kv * lc->d_v;
    case SD_WIDTH_HEADS:
        return h;
    case SD_WIDTH_PLANES:
        return h * lc->planes;
    case SD_WIDTH_RANK:
        return h * lc->f_rank;
    }
    return 0;
}

static bool part_there(const sd_layer_cfg *lc, const sd_attn_part *p) {
    return (p->diag == SD_DIAG_NONE || sd_layer_diag(lc) == p->diag) &&
           part_width(lc, p->width) > 0;
}

bool sd_attn_role_shape(const sd_config *cfg, const sd_layer_cfg *lc, sd_role r, int64_t shape[2],
                        int *ndim) {
    const sd_attn_kind *k = sd_attn_of(lc);
    for (int i = 0; k && i < k->n_part; i++) {
        const sd_attn_part *p = &k->part[i];
        if ((p->weight != r && p->bias != r) || !part_there(lc, p))
            continue;
        bool bias = p->weight != r, vector = bias || p->slot == SD_SLOT_NONE;
        if (bias && !p->bias_always && !cfg->qkv_bias)
            return false;
        int64_t cols = part_width(lc, p->width);
        shape[0] = vector ? cols : cfg->d_model + (p->augmented ? 1 : 0);
        shape[1] = vector ? 1 : cols;
        *ndim = vector ? 1 : 2;
        return true;
    }
    return false;
}

const sd_attn_part *sd_attn_part_of(const sd_layer_cfg *lc, sd_slot s) {
    const sd_attn_kind *k = sd_attn_of(lc);
    for (int i = 0; k && i < k->n_part; i++)
        if (k->part[i].slot == s && part_there(lc, &k->part[i]))
            return &k->part[i];
    return NULL;
}

/* ---- options --------------------------------------------------------------------------------- */

static const sd_attn_option *option_of(const sd_attn_kind *k, const char *name, size_t n) {
    for (int i = 0; k && i < k->n_option; i++)
        if (strlen(k->option[i].name) == n && memcmp(k->option[i].name, name, n) == 0)
            return &k->option[i];
    return NULL;
}

static bool is_choice(const char *choices, const char *v) {
    size_t n = strlen(v);
    for (const char *p = choices; *p; p += strspn(p, "|")) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, v, n) == 0)
            return true;
        p += len;
    }
    return false;
}

static sd_status check_value(const sd_attn_kind *k, const sd_attn_option *o, const char *v,
                             sd_err *err) {
    if (o->choices)
        return is_choice(o->choices, v)
                   ? SD_OK
                   : sd_fail(err, SD_EFORMAT, "option %s of attention kind '%s' is %s, got '%s'",
                             o->name, k->name, o->choices, v);
    int64_t n;
    if (!sd_parse_i64(v, &n) || n < o->min || n > o->max)
        return sd_fail(err, SD_EFORMAT, "option %s of attention kind '%s' must be %d..%d, got '%s'",
                       o->name, k->name, o->min, o->max, v);
    return SD_OK;
}

static sd_status unknown_option(const sd_attn_kind *k, const char *name, int n, sd_err *err) {
    char known[128] = "none";
    size_t at = 0;
    for (int i = 0; i < k->n_option && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "",
                               k->option[i].name);
    return sd_fail(err, SD_EFORMAT, "attention kind '%s' has no option '%.*s' (known: %s)", k->name,
                   n, name, known);
}

static sd_status check_options(const sd_attn_kind *k, const sd_layer_cfg *lc, sd_err *err) {
    unsigned seen = 0; // n_option is far below 32
    for (const char *p = lc->options; *p;) {
        p += strspn(p, " ");
        size_t len = strcspn(p, " "), key = strcspn(p, "= ");
        if (!len)
            break;
        const sd_attn_option *o = key < len ? option_of(k, p, key) : NULL;
        if (!o)
            return unknown_option(k, p, (int)key, err);
        unsigned bit = 1u << (o - k->option);
        if (seen & bit)
            return sd_fail(err, SD_EFORMAT, "option %s of attention kind '%s' is given twice",
                           o->name, k->name);
        seen |= bit;
        char v[sizeof lc->options];
        memcpy(v, p + key + 1, len - key - 1);
        v[len - key - 1] = 0;
        SD_TRY(check_value(k, o, v, err));
        p += len;
    }
    for (int i = 0; i < k->n_option; i++)
        if (k->option[i].required && !(seen & 1u << i))
            return sd_fail(err, SD_EFORMAT,
                           "attention kind '%s' needs its option %s (%s), as in %s=%s", k->name,
                           k->option[i].name, k->option[i].doc, k->option[i].name,
                           k->option[i].required);
    return SD_OK;
}

void sd_attn_least_options(const sd_attn_kind *k, char *out, size_t n) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < k->n_option && at < n; i++)
        if (k->option[i].required)
            at += (size_t)snprintf(out + at, n - at, "%s%s=%s", at ? " " : "", k->option[i].name,
                                   k->option[i].required);
}

static sd_status no_use(const sd_attn_kind *k, const char *field, int v, sd_err *err) {
    return sd_fail(err, SD_EFORMAT, "attention kind '%s' has no use for %s: must be 0, got %d",
                   k->name, field, v);
}

sd_status sd_attn_check(const sd_layer_cfg *lc, sd_err *err) {
    const sd_attn_kind *k;
    SD_TRY(sd_attn_need(lc, &k, err));
    bool qk = sd_attn_uses(lc, SD_WIDTH_QUERY);
    if (qk && lc->d_qk < 1)
        return sd_fail(err, SD_EFORMAT, "attention kind '%s' needs d_qk >= 1", lc->kind);
    if (!qk && lc->d_qk != 0)
        return no_use(k, "d_qk", lc->d_qk, err);
    if (lc->planes != 0 && !sd_attn_uses(lc, SD_WIDTH_PLANES))
        return no_use(k, "planes", lc->planes, err);
    if (lc->f_rank != 0 && !sd_attn_uses(lc, SD_WIDTH_RANK))
        return no_use(k, "f_rank", lc->f_rank, err);
    SD_TRY(check_options(k, lc, err));
    const char *why = k->check ? k->check(lc) : NULL;
    return why ? sd_fail(err, SD_EFORMAT, "attention kind '%s': %s", k->name, why) : SD_OK;
}

/* ---- which keys a row sees ------------------------------------------------------------------- */

int sd_attn_window(const sd_layer_cfg *lc) {
    char v[24];
    int64_t n = 0;
    if (!option_of(sd_attn_of(lc), "window", 6) ||
        !sd_layer_option(lc->options, "window", v, sizeof v) || !sd_parse_i64(v, &n) || n < 0 ||
        n > 1 << 28)
        return 0;
    return (int)n;
}

void sd_attn_keys(const sd_layer_cfg *lc, bool causal, size_t i, size_t n, size_t *lo, size_t *hi) {
    size_t w = causal ? (size_t)sd_attn_window(lc) : 0;
    *lo = w && i + 1 > w ? i + 1 - w : 0;
    *hi = causal ? i + 1 : n;
}

double sd_attn_mean_keys(const sd_layer_cfg *lc, bool causal, size_t n) {
    if (!causal)
        return (double)n;
    double w = sd_attn_window(lc), t = (double)n;
    if (w <= 0 || w >= t)
        return (t + 1) / 2;
    return (w * (w + 1) / 2 + (t - w) * w) / t;
}

/* ---- the interaction matrix ------------------------------------------------------------------ */

sd_attn_algebra sd_attn_algebra_of(const sd_layer_cfg *lc) {
    const sd_attn_kind *k = sd_attn_of(lc);
    if (!k || (k->routing.factor == 0 && k->filtering.factor == 0))
        return SD_SCORES_NONE;
    const sd_attn_term *r = &k->routing, *f = &k->filtering;
    if (f->factor == 0)
        return r->q == SD_SLOT_ONE ? SD_SCORES_KEY : SD_SCORES_SKEW;
    return r->q == f->q && r->k == f->k && r->factor == f->factor ? SD_SCORES_PRODUCT
                                                                  : SD_SCORES_FACTORS;
}

bool sd_attn_is_skew(const sd_layer_cfg *lc) {
    sd_attn_algebra a = sd_attn_algebra_of(lc);
    return (a == SD_SCORES_SKEW || a == SD_SCORES_KEY) &&
           sd_attn_of(lc)->diagonal == SD_SCORE_DIAG_REPLACE;
}

const char *sd_attn_no_scores(const sd_layer_cfg *lc, char buf[64]) {
    if (sd_attn_algebra_of(lc) != SD_SCORES_NONE)
        return NULL;
    snprintf(buf, 64, "no scores (%.23s)", lc->kind);
    return buf;
}

/* Columns of one head in a slot, and where they begin. */
static size_t slot_columns(const sd_layer_cfg *lc, sd_slot s, int head, size_t *at) {
    size_t h = (size_t)head, g = h / (size_t)(lc->n_head / lc->n_kv_head), n = 1;
    switch (s) {
    case SD_SLOT_Q:
    case SD_SLOT_K:
        n = (size_t)lc->d_qk;
        break;
    case SD_SLOT_V:
        n = (size_t)lc->d_v;
        break;
    case SD_SLOT_A:
    case SD_SLOT_B:
        n = (size_t)lc->planes;
        break;
    case SD_SLOT_F:
        n = (size_t)lc->f_rank;
        break;
    default:
        break;
    }
    *at = (s == SD_SLOT_K || s == SD_SLOT_V ? g : h) * n;
    return n;
}

size_t sd_attn_term_width(const sd_layer_cfg *lc, const sd_attn_term *t) {
    size_t at;
    return t->factor == 0 ? 0 : slot_columns(lc, t->k, 0, &at);
}

double sd_attn_term_scale(const sd_layer_cfg *lc, const sd_attn_term *t) {
    return t->factor * (t->scaled ? lc->scale : 1);
}

static void gather(const sd_layer_cfg *lc, const sd_attn_slots *x, sd_slot s, int head, size_t w,
                   double *out) {
    size_t at = 0;
    if (s >= SD_SLOT_COUNT) {
        for (size_t i = 0; i < x->rows * w; i++)
            out[i] = !x->weights || i / w == x->d_model;
        return;
    }
    slot_columns(lc, s, head, &at);
    size_t ld = x->at[s].ld;
    for (size_t i = 0; i < x->rows; i++)
        for (size_t c = 0; c < w; c++)
            out[i * w + c] = x->at[s].f32   ? (double)x->at[s].f32[i * ld + at + c]
                             : x->at[s].f64 ? x->at[s].f64[i * ld + at + c]
                                            : 0;
}

void sd_attn_term_factors(const sd_layer_cfg *lc, const sd_attn_term *t, const sd_attn_slots *x,
                          int head, double *q, double *k) {
    size_t w = sd_attn_term_width(lc, t);
    if (!w)
        return;
    gather(lc, x, t->q, head, w, q);
    gather(lc, x, t->k, head, w, k);
    const double *fl = t->weighted && x->fl ? x->fl + (size_t)head * w : NULL;
    for (size_t i = 0; fl && i < x->rows * w; i++)
        q[i] *= fl[i % w];
}
