/* kinds.c: attention kinds that plugins register. A checked descriptor becomes a row of the library
 * (nn/attn.h) whose functions call the plugin's, one sequence and key head at a time. Rows stay
 * until the session ends: models may carry them after the plugin is gone, and its code stays
 * mapped.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/host.h"
#include "nn/attn.h"

/* sd_attn_kind.impl */
typedef struct kind_impl {
    sd_kind_desc desc;
    sd_kind_ops f32, f64;
} kind_impl;

struct sd_kind_rec {
    sd_attn_kind row; /* first: sd_session's list holds pointers to it */
    kind_impl impl;
    sd_arena *arena; /* strings and options */
    bool live;
};

static const kind_impl *impl_of(const sd_attn_kind *k) {
    return k->impl;
}

static void layer_info(const sd_layer_cfg *lc, sd_hlayer_info *out) {
    *out = (sd_hlayer_info){.struct_size = sizeof *out,
                            .n_head = lc->n_head,
                            .n_kv_head = lc->n_kv_head,
                            .d_qk = lc->d_qk,
                            .d_v = lc->d_v,
                            .planes = lc->planes,
                            .f_rank = lc->f_rank,
                            .scores = (int32_t)impl_of(lc->foreign)->desc.scores,
                            .scale = lc->scale};
    snprintf(out->kind, sizeof out->kind, "%s", lc->kind);
    snprintf(out->options, sizeof out->options, "%s", lc->options);
}

static double flops(const sd_layer_cfg *lc, double keys) {
    sd_hlayer_info i;
    layer_info(lc, &i);
    return impl_of(lc->foreign)->desc.flops(&i, keys);
}

static const char *check(const sd_layer_cfg *lc) {
    sd_hlayer_info i;
    layer_info(lc, &i);
    return impl_of(lc->foreign)->desc.check(&i);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static const void *at(const void *p, size_t n, size_t es) {
    return p ? (const char *)p + n * es : NULL;
}

static void *to(void *p, size_t n, size_t es) {
    return p ? (char *)p + n * es : NULL;
}

/* Columns of a slot that belong to key head g, of rows that begin at element `row` of proj. */
static size_t column(const sd_attn_args *a, sd_slot s, int g) {
    size_t group = (size_t)(a->n_head / a->n_kv), n = group;
    switch (s) {
    case SD_SLOT_Q:
        n = group * (size_t)a->d_qk;
        break;
    case SD_SLOT_K:
        n = (size_t)a->d_qk;
        break;
    case SD_SLOT_V:
        n = (size_t)a->d_v;
        break;
    case SD_SLOT_A:
    case SD_SLOT_B:
        n = group * (size_t)a->planes;
        break;
    case SD_SLOT_F:
        n = group * (size_t)a->f_rank;
        break;
    default:
        break;
    }
    return a->off[s] + (size_t)g * n;
}

static const void *slot(const sd_attn_args *a, sd_slot s, int g, size_t row, size_t es) {
    return a->has[s] ? at(a->proj, row * a->ld + column(a, s, g), es) : NULL;
}

static void *d_slot(const sd_attn_args *a, sd_slot s, int g, size_t row, size_t es) {
    return a->has[s] ? to(a->dproj, row * a->ld + column(a, s, g), es) : NULL;
}

/* Sizes only, as scratch and state_size get them. */
static sd_kind_args sizes(const sd_attn_args *a) {
    return (sd_kind_args){.struct_size = sizeof(sd_kind_args),
                          .tokens = a->tokens,
                          .heads = a->n_head / a->n_kv,
                          .d_qk = a->d_qk,
                          .d_v = a->d_v,
                          .planes = a->planes,
                          .f_rank = a->f_rank,
                          .causal = a->causal,
                          .window = a->window,
                          .scale = a->scale,
                          .options = a->options};
}

/* `n` rows of key head g: those of proj from `row` on, those of o and d from `out` on. */
static sd_kind_args rows_of(const sd_attn_args *a, int g, size_t row, size_t out, size_t n,
                            size_t es) {
    sd_kind_args k = sizes(a);
    size_t group = (size_t)k.heads, h = (size_t)g * group;
    k.tokens = (int32_t)n;
    k.ld = a->ld;
    k.d_ld = (size_t)a->n_head;
    k.o_ld = (size_t)a->n_head * (size_t)a->d_v;
    k.q = slot(a, SD_SLOT_Q, g, row, es);
    k.k = slot(a, SD_SLOT_K, g, row, es);
    k.v = slot(a, SD_SLOT_V, g, row, es);
    k.pot = slot(a, SD_SLOT_W, g, row, es);
    k.ra = slot(a, SD_SLOT_A, g, row, es);
    k.rb = slot(a, SD_SLOT_B, g, row, es);
    k.f = slot(a, SD_SLOT_F, g, row, es);
    k.d = at(a->dval, out * k.d_ld + h, es);
    k.diag = at(a->diag, h, es);
    k.fl = at(a->fl, h * (size_t)a->f_rank, es);
    k.o = to(a->o, out * k.o_ld + h * (size_t)a->d_v, es);
    return k;
}

static size_t elements(size_t bytes, size_t es) {
    return bytes > SIZE_MAX / 4 ? SIZE_MAX / 4 / es : (bytes + es - 1) / es;
}

static void zero_columns(const sd_attn_args *a, sd_slot s, int g, size_t row, size_t es) {
    size_t n = column(a, s, g + 1) - column(a, s, g);
    for (size_t i = 0; a->has[s] && i < (size_t)a->tokens; i++)
        memset(d_slot(a, s, g, row + i, es), 0, n * es);
}

static void run_forward(const sd_kind_ops *ops, const sd_attn_args *a, int b, int g, void *work,
                        size_t es) {
    size_t t = (size_t)a->tokens, r0 = (size_t)b * t;
    sd_kind_args k = rows_of(a, g, r0, r0, t, es);
    k.lse = to(a->lse, ((size_t)b * (size_t)a->n_head + (size_t)g * (size_t)k.heads) * t, es);
    ops->forward(&k, work);
}

static sd_kind_args backward_args(const sd_attn_args *a, int b, int g, size_t es) {
    size_t t = (size_t)a->tokens, r0 = (size_t)b * t;
    sd_kind_args k = rows_of(a, g, r0, r0, t, es);
    size_t h = (size_t)b * (size_t)a->n_head + (size_t)g * (size_t)k.heads;
    for (int s = 0; s < SD_SLOT_COUNT; s++)
        zero_columns(a, (sd_slot)s, g, r0, es);
    k.lse = to(a->lse, h * t, es);
    k.d_o = at(a->d_o, r0 * k.o_ld + (size_t)g * (size_t)k.heads * (size_t)a->d_v, es);
    k.dq = d_slot(a, SD_SLOT_Q, g, r0, es);
    k.dk = d_slot(a, SD_SLOT_K, g, r0, es);
    k.dv = d_slot(a, SD_SLOT_V, g, r0, es);
    k.dpot = d_slot(a, SD_SLOT_W, g, r0, es);
    k.dra = d_slot(a, SD_SLOT_A, g, r0, es);
    k.drb = d_slot(a, SD_SLOT_B, g, r0, es);
    k.df = d_slot(a, SD_SLOT_F, g, r0, es);
    k.dd = d_slot(a, SD_SLOT_U, g, r0, es);
    k.ddiag = a->diag ? to(a->ddiag, h, es) : NULL;
    k.dfl = a->fl ? to(a->dfl, h * (size_t)a->f_rank, es) : NULL;
    if (k.ddiag)
        memset(k.ddiag, 0, (size_t)k.heads * es);
    if (k.dfl)
        memset(k.dfl, 0, (size_t)k.heads * (size_t)a->f_rank * es);
    return k;
}

static void run_decode(const sd_kind_ops *ops, bool recurrent, const sd_attn_args *a, int b, int g,
                       int t, void *state, void *work, size_t es) {
    size_t r0 = (size_t)b * (size_t)a->tokens, out = r0 + (size_t)(t - a->first);
    sd_kind_args k = rows_of(a, g, recurrent ? out : r0, out, recurrent ? 1 : (size_t)t + 1, es);
    ops->decode(&k, t, state, work);
}

/* dd is with respect to d = softplus(u) + floor; the layer wants it with respect to u. */
#define SIGMOID(x_) ((x_) < 0 ? exp(x_) / (1 + exp(x_)) : 1 / (1 + exp(-(x_))))
#define TYPED(t_, type_)                                                                        \
    static size_t scratch_##t_(const sd_attn_args *a, bool backward) {                          \
        sd_kind_args k = sizes(a);                                                              \
        return elements(impl_of(a->kind)->t_.scratch(&k, backward), sizeof(type_));             \
    }                                                                                           \
    static void forward_##t_(const sd_attn_args *a, int b, int g, void *work) {                 \
        run_forward(&impl_of(a->kind)->t_, a, b, g, work, sizeof(type_));                       \
    }                                                                                           \
    static void backward_##t_(const sd_attn_args *a, int b, int g, void *work) {                \
        sd_kind_args k = backward_args(a, b, g, sizeof(type_));                                 \
        impl_of(a->kind)->t_.backward(&k, work);                                                \
        size_t r0 = (size_t)b * (size_t)a->tokens;                                              \
        for (size_t i = r0; a->has[SD_SLOT_U] && i < r0 + (size_t)a->tokens; i++) {             \
            const type_ *u = slot(a, SD_SLOT_U, g, i, sizeof(type_));                           \
            type_ *du = d_slot(a, SD_SLOT_U, g, i, sizeof(type_));                              \
            for (int h = 0; h < k.heads; h++)                                                   \
                du[h] *= (type_)SIGMOID((double)u[h]);                                          \
        }                                                                                       \
    }                                                                                           \
    static size_t state_##t_(const sd_attn_args *a) {                                           \
        sd_kind_args k = sizes(a);                                                              \
        size_t n = elements(impl_of(a->kind)->t_.state_size(&k), sizeof(type_));                \
        return n ? n : 1;                                                                       \
    }                                                                                           \
    static void decode_##t_(const sd_attn_args *a, int b, int g, int t, void *state, void *w) { \
        run_decode(&impl_of(a->kind)->t_, a->kind->recurrent, a, b, g, t, state, w,             \
                   sizeof(type_));                                                              \
    }                                                                                           \
    static const sd_attn_ops cached_##t_ = {scratch_##t_, forward_##t_, backward_##t_, NULL,    \
                                            decode_##t_};                                       \
    static const sd_attn_ops recurrent_##t_ = {scratch_##t_, forward_##t_, backward_##t_,       \
                                               state_##t_, decode_##t_}
TYPED(f32, float);
TYPED(f64, double);

/* ---- rows ------------------------------------------------------------------------------------ */

static const char *copy(sd_arena *a, const char *s, bool *ok, sd_err *err) {
    const char *p = s && *ok ? sd_arena_strndup(a, s, strlen(s), err) : NULL;
    *ok = *ok && (!s || p);
    return p;
}

static void describe_scores(sd_attn_kind *r, uint32_t scores) {
    static const sd_attn_term qk = {.q = SD_SLOT_Q, .k = SD_SLOT_K, .factor = 1, .scaled = true};
    switch (scores) {
    case SD_SCORES_OF_QK:
        r->routing = r->filtering = qk;
        break;
    case SD_SCORES_OF_SKEW:
        r->routing = qk;
        r->routing.factor = 2;
        r->diagonal = SD_SCORE_DIAG_REPLACE;
        break;
    case SD_SCORES_OF_PARTS:
        r->routing = (sd_attn_term){.q = SD_SLOT_A, .k = SD_SLOT_B, .factor = 2};
        r->filtering =
            (sd_attn_term){.q = SD_SLOT_F, .k = SD_SLOT_F, .factor = 1, .weighted = true};
        r->diagonal = SD_SCORE_DIAG_ADD;
        break;
    case SD_SCORES_OF_KEYS:
        r->routing = (sd_attn_term){.q = SD_SLOT_ONE, .k = SD_SLOT_W, .factor = 2};
        r->diagonal = SD_SCORE_DIAG_REPLACE;
        break;
    default:
        break;
    }
}

static void describe_parts(sd_attn_kind *r, uint32_t parts) {
    sd_attn_part *p = r->part;
#define ADD(...)            \
    *p++ = (sd_attn_part) { \
        __VA_ARGS__         \
    }
    if (parts & SD_KIND_QK) {
        ADD(.slot = SD_SLOT_Q, .weight = SD_ROLE_WQ, .bias = SD_ROLE_BQ, .width = SD_WIDTH_QUERY);
        ADD(.slot = SD_SLOT_K, .weight = SD_ROLE_WK, .bias = SD_ROLE_BK, .width = SD_WIDTH_KEY);
    }
    ADD(.slot = SD_SLOT_V, .weight = SD_ROLE_WV, .bias = SD_ROLE_BV, .width = SD_WIDTH_VALUE);
    if (parts & SD_KIND_D)
        ADD(.slot = SD_SLOT_U, .weight = SD_ROLE_WD, .bias = SD_ROLE_BD, .bias_always = true,
            .width = SD_WIDTH_HEADS, .diag = SD_DIAG_INPUT);
#define AUGMENTED(slot_, role_, width_) \
    ADD(.slot = slot_, .weight = role_, .bias = SD_ROLE_COUNT, .augmented = true, .width = width_)
    if (parts & SD_KIND_POT)
        AUGMENTED(SD_SLOT_W, SD_ROLE_POT, SD_WIDTH_HEADS);
    if (parts & SD_KIND_PLANES) {
        AUGMENTED(SD_SLOT_A, SD_ROLE_RA, SD_WIDTH_PLANES);
        AUGMENTED(SD_SLOT_B, SD_ROLE_RB, SD_WIDTH_PLANES);
    }
    if (parts & SD_KIND_RANK) {
        AUGMENTED(SD_SLOT_F, SD_ROLE_F, SD_WIDTH_RANK);
        ADD(.slot = SD_SLOT_NONE, .weight = SD_ROLE_FL, .bias = SD_ROLE_COUNT,
            .width = SD_WIDTH_RANK);
    }
    if (parts & SD_KIND_SCALAR)
        ADD(.slot = SD_SLOT_NONE, .weight = SD_ROLE_DIAG, .bias = SD_ROLE_COUNT,
            .width = SD_WIDTH_HEADS);
#undef AUGMENTED
#undef ADD
    r->n_part = (int)(p - r->part);
}

/* Widest: q k v u w a b f and the two that are not projected. */
_Static_assert(SD_ATTN_MAX_PARTS >= 10, "every part of a plugin's kind fits into a row");

static bool has_option(const sd_kind_desc *d, const char *name) {
    for (uint32_t i = 0; i < d->n_options; i++)
        if (strcmp(d->options[i].name, name) == 0)
            return true;
    return false;
}

static bool fill(sd_kind_rec *r, const sd_kind_desc *d, const char *plugin, const char *version,
                 sd_err *err) {
    bool ok = true;
    sd_attn_option *o = sd_arena_alloc(r->arena, d->n_options + 1, sizeof *o, err);
    ok = o != NULL;
    for (uint32_t i = 0; ok && i < d->n_options; i++) {
        const sd_kind_option *in = &d->options[i];
        o[i] = (sd_attn_option){.name = copy(r->arena, in->name, &ok, err),
                                .doc = copy(r->arena, in->doc, &ok, err),
                                .choices = copy(r->arena, in->choices, &ok, err),
                                .min = (int)in->min,
                                .max = (int)in->max,
                                .required = copy(r->arena, in->required, &ok, err)};
    }
    bool recurrent = d->flags & SD_KIND_RECURRENT;
    r->impl = (kind_impl){.desc = *d, .f32 = *d->f32, .f64 = *d->f64};
    r->row = (sd_attn_kind){
        .name = copy(r->arena, d->name, &ok, err),
        .summary = copy(r->arena, d->summary, &ok, err),
        .plugin = copy(r->arena, plugin, &ok, err),
        .version = copy(r->arena, version, &ok, err),
        .causal_only = d->flags & SD_KIND_CAUSAL,
        .recurrent = recurrent,
        .rope = d->flags & SD_KIND_ROTARY,
        .option = o,
        .n_option = (int)d->n_options,
        .diag = d->parts & SD_KIND_SCALAR                        ? SD_DIAG_SCALAR
                : d->parts & SD_KIND_D && !has_option(d, "diag") ? SD_DIAG_INPUT
                                                                 : SD_DIAG_NONE,
        .scale_width = d->scale_width,
        .flops = flops,
        .check = d->check ? check : NULL,
        .f32 = recurrent ? &recurrent_f32 : &cached_f32,
        .f64 = recurrent ? &recurrent_f64 : &cached_f64,
        .impl = &r->impl,
    };
    describe_parts(&r->row, d->parts);
    describe_scores(&r->row, d->scores);
    return ok;
}

/* ---- what may be registered ------------------------------------------------------------------ */

static bool word(const char *s, size_t most) {
    return s[0] >= 'a' && s[0] <= 'z' && strlen(s) <= most &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(s);
}

static sd_status check_option(const sd_kind_option *o, sd_err *err) {
    if (!word(o->name, 20))
        return sd_fail(err, SD_EPLUGIN, "option name \"%.40s\" is not of the form [a-z][a-z0-9_]*",
                       o->name);
    if (!o->doc || !o->doc[0])
        return sd_fail(err, SD_EPLUGIN, "option %s: its doc is missing", o->name);
    if (!o->choices && (o->min > o->max || o->min < INT32_MIN || o->max > INT32_MAX))
        return sd_fail(err, SD_EPLUGIN, "option %s: %lld..%lld is no range of 32-bit integers",
                       o->name, (long long)o->min, (long long)o->max);
    if (strcmp(o->name, "window") == 0 && (o->choices || o->min < 1))
        return sd_fail(err, SD_EPLUGIN, "option window is a number of keys, at least 1");
    return SD_OK;
}

/* The parts that a description of the scores speaks of. */
static sd_status check_scores(const sd_kind_desc *d, sd_err *err) {
    static const uint32_t needs[] = {[SD_SCORES_ABSENT] = 0,
                                     [SD_SCORES_OF_QK] = SD_KIND_QK,
                                     [SD_SCORES_OF_SKEW] = SD_KIND_QK,
                                     [SD_SCORES_OF_PARTS] = SD_KIND_PLANES | SD_KIND_RANK,
                                     [SD_SCORES_OF_KEYS] = SD_KIND_POT};
    if (d->scores < SD_SCORES_ABSENT || d->scores > SD_SCORES_OF_KEYS)
        return sd_fail(err, SD_EPLUGIN, "scores %u is none of the known descriptions", d->scores);
    if (needs[d->scores] & ~d->parts)
        return sd_fail(err, SD_EPLUGIN, "its scores are made of parts that it does not have");
    return SD_OK;
}

static sd_status check_kind(const sd_session *s, const sd_kind_desc *d, sd_err *err) {
    const uint32_t parts = 63, flags = 7;
    if (!word(d->name, sizeof((sd_layer_cfg *)0)->kind - 1))
        return sd_fail(err, SD_EPLUGIN, "its name is not of the form [a-z][a-z0-9_]*, 23 at most");
    if (!d->summary[0] || strlen(d->summary) > 200 || strchr(d->summary, '\n'))
        return sd_fail(err, SD_EPLUGIN, "its summary is empty, too long or no single line");
    const sd_attn_kind *other = sd_attn_find_in(&s->run, d->name);
    if (other && other->plugin)
        return sd_fail(err, SD_EPLUGIN, "exists already, of plugin %s", other->plugin);
    if (other)
        return sd_fail(err, SD_EPLUGIN, "exists already, built in");
    if (d->parts & ~parts || d->flags & ~flags)
        return sd_fail(err, SD_EPLUGIN, "parts %u or flags %u are not known", d->parts, d->flags);
    SD_TRY(check_scores(d, err));
    if (d->flags & SD_KIND_RECURRENT && !(d->f32->state_size && d->f64->state_size))
        return sd_fail(err, SD_EPLUGIN, "it is recurrent, but state_size is missing");
    if (!(d->scale_width >= 0 && d->scale_width <= 1e6))
        return sd_fail(err, SD_EPLUGIN, "scale_width %g is not in 0..1e6", d->scale_width);
    for (uint32_t i = 0; i < d->n_options; i++) {
        SD_TRY(check_option(&d->options[i], err));
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(d->options[i].name, d->options[j].name) == 0)
                return sd_fail(err, SD_EPLUGIN, "option %s twice", d->options[i].name);
    }
    return SD_OK;
}

static void free_rec(sd_kind_rec *r) {
    if (!r)
        return;
    sd_arena_free(r->arena);
    sd_free(r);
}

sd_status sd_kind_register(sd_session *s, const sd_kind_desc *d, const char *plugin,
                           const char *version, sd_err *err) {
    sd_status st = check_kind(s, d, err);
    if (st != SD_OK) {
        sd_err_context(err, "attention kind %.40s", d->name);
        return st;
    }
    SD_TRY(sd_grow((void **)&s->kinds, &s->cap_kinds, s->n_kinds + 1, sizeof *s->kinds, err));
    SD_TRY(sd_grow((void **)&s->kind_list.row, &s->cap_kind_rows, s->n_kinds + 1,
                   sizeof *s->kind_list.row, err));
    sd_kind_rec *r = sd_alloc(1, sizeof *r, err);
    if (!r || !(r->arena = sd_arena_new(err)) || !fill(r, d, plugin, version, err)) {
        free_rec(r);
        return SD_ENOMEM;
    }
    r->live = true;
    s->kinds[s->n_kinds++] = r;
    s->kind_list.row[s->kind_list.n++] = &r->row;
    return SD_OK;
}

void sd_kind_remove_plugin(sd_session *s, const char *plugin) {
    s->kind_list.n = 0;
    for (size_t i = 0; i < s->n_kinds; i++) {
        sd_kind_rec *r = s->kinds[i];
        r->live = r->live && strcmp(r->row.plugin, plugin) != 0;
        if (r->live)
            s->kind_list.row[s->kind_list.n++] = &r->row;
    }
}

void sd_kind_free_all(sd_session *s) {
    for (size_t i = 0; i < s->n_kinds; i++)
        free_rec(s->kinds[i]);
    sd_free(s->kinds);
    sd_free((void *)s->kind_list.row);
}
