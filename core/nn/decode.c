/* decode.c: planning a decoder, feeding it, choosing tokens (nn/decode.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "nn/decode_i.h"
#include "num/blas.h"

enum { ROWS_MAX = 4096 };

/* With base NULL only counts; overflow sticks. */
typedef struct carver {
    char *base;
    size_t at, es;
    bool overflow;
} carver;

static void *carve(carver *c, size_t n, size_t m) {
    size_t k, next;
    if (!sd_mul_size(n, m, &k) || !sd_mul_size(k, c->es, &k) || k > SIZE_MAX - 64 ||
        !sd_add_size(c->at, (k + 63) / 64 * 64, &next)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->at : NULL;
    c->at = next;
    return p;
}

static size_t max_sz(size_t a, size_t b) {
    return a > b ? a : b;
}

static void carve_layer(sd_decoder *d, int l, carver *c) {
    const net_layer *nl = &d->net->layer[l];
    const sd_layer_cfg *lc = &d->net->cfg.layer[l];
    dec_layer *dl = &d->layer[l];
    size_t kv = (size_t)lc->n_kv_head, at = c->at;
    dl->w = 0;
    for (int i = 0; i < nl->n_part; i++) {
        dl->off[nl->part[i].slot] = dl->w;
        dl->w += nl->part[i].n / kv;
    }
    sd_attn_args a = {.kind = nl->kind,
                      .batch = 1,
                      .tokens = d->rows,
                      .n_head = lc->n_head / lc->n_kv_head,
                      .n_kv = 1,
                      .d_qk = lc->d_qk,
                      .d_v = lc->d_v,
                      .planes = lc->planes,
                      .f_rank = lc->f_rank,
                      .causal = true,
                      .window = sd_attn_window(lc),
                      .options = lc->options};
    memcpy(a.has, nl->has, sizeof a.has);
    const sd_attn_ops *ops = d->net->dtype == SD_F32 ? nl->kind->f32 : nl->kind->f64;
    dl->state_size = ops->state_size ? (ops->state_size(&a) + 7) / 8 * 8 : 0;
    d->scratch_size = max_sz(d->scratch_size, ops->scratch(&a, false));
    if (dl->state_size) {
        dl->state = carve(c, kv, dl->state_size);
        d->state_bytes += c->at - at;
    } else {
        size_t n = 0;
        if (!sd_mul_size(kv, (size_t)d->capacity, &n))
            c->overflow = true;
        dl->cache = carve(c, n, dl->w);
        d->cache_bytes += c->at - at;
    }
}

static void carve_all(sd_decoder *d, carver *c) {
    const sd_config *cfg = &d->net->cfg;
    size_t n = (size_t)d->rows, dm = (size_t)cfg->d_model, ff = (size_t)cfg->d_ff;
    size_t ld = 0, width = 0, heads = 0, block = 0;
    d->scratch_size = d->cache_bytes = d->state_bytes = 0;
    for (int l = 0; l < cfg->n_layer; l++) {
        carve_layer(d, l, c);
        ld = max_sz(ld, d->net->layer[l].ld);
        width = max_sz(width, d->net->layer[l].attn_width);
        heads = max_sz(heads, (size_t)cfg->layer[l].n_head);
        if (d->layer[l].state_size)
            block = max_sz(block, (size_t)cfg->layer[l].n_kv_head * d->layer[l].w);
    }
    d->scratch_size = (d->scratch_size + 63) / 64 * 64;
    d->x = carve(c, n, dm);
    d->y = carve(c, n, dm);
    d->mid = carve(c, n, dm);
    d->norm = carve(c, n, dm);
    d->stat = carve(c, n, 2);
    d->proj = carve(c, n, ld);
    d->block = carve(c, n, block);
    d->dval = carve(c, n, heads);
    d->dblock = carve(c, n, heads);
    d->oblock = carve(c, n, width);
    d->att = carve(c, n, width);
    d->h1 = carve(c, n, ff);
    d->h3 = carve(c, n, cfg->gated_mlp ? ff : 0);
    d->act = carve(c, n, ff);
    d->rope = carve(c, n, cfg->pos == SD_POS_ROPE ? (size_t)cfg->rope.dim : 0);
    d->scratch = carve(c, (size_t)d->threads, d->scratch_size);
}

sd_status sd_decoder_new(const sd_net *net, const sd_decode_plan *plan, sd_decoder **out,
                         sd_err *err) {
    const sd_config *cfg = &net->cfg;
    *out = NULL;
    if (!cfg->causal)
        return sd_fail(err, SD_EINVAL,
                       "an encoder (%s) sees both sides of a token and predicts no next one",
                       cfg->family);
    if (!cfg->has_head)
        return sd_fail(err, SD_EINVAL, "this model has no output head: no next token");
    if (plan->capacity < 1 || plan->rows < 0)
        return sd_fail(err, SD_EINVAL, "decoding of %d tokens", plan->capacity);
    if (cfg->pos == SD_POS_LEARNED && plan->capacity > cfg->n_pos)
        return sd_fail(err, SD_EINVAL, "decoding of %d tokens: the position table holds %d",
                       plan->capacity, cfg->n_pos);
    sd_decoder *d = sd_alloc(1, sizeof *d, err);
    if (!d)
        return SD_ENOMEM;
    sd_run run = {.threads = plan->threads};
    int rows = plan->rows ? plan->rows : plan->capacity;
    rows = rows < plan->capacity ? rows : plan->capacity;
    d->net = net;
    d->capacity = plan->capacity;
    d->rows = rows < ROWS_MAX ? rows : ROWS_MAX;
    sd_status st = SD_ENOMEM;
    if (!(d->layer = sd_alloc((size_t)cfg->n_layer, sizeof *d->layer, err)))
        goto fail;
    SD_GO(st, fail, sd_pool_new(sd_run_threads(&run), &d->pool, err));
    d->threads = sd_pool_threads(d->pool);
    carver c = {.es = net->es};
    carve_all(d, &c);
    if (c.overflow) {
        st = sd_fail(err, SD_ENOMEM, "decoding of %d tokens overflows memory", plan->capacity);
        goto fail;
    }
    st = SD_ENOMEM;
    if (!(d->mem = sd_alloc_raw(c.at, 1, err))) /* untouched pages of the cache cost nothing */
        goto fail;
    c = (carver){.base = d->mem, .es = net->es};
    carve_all(d, &c);
    sd_decoder_reset(d);
    *out = d;
    return SD_OK;
fail:
    sd_decoder_free(d);
    return st;
}

void sd_decoder_free(sd_decoder *d) {
    if (!d)
        return;
    sd_pool_free(d->pool);
    sd_free(d->layer);
    sd_free(d->mem);
    sd_free(d);
}

void sd_decoder_reset(sd_decoder *d) {
    d->len = 0;
    for (int l = 0; l < d->net->cfg.n_layer; l++) {
        dec_layer *dl = &d->layer[l];
        if (dl->state)
            memset(dl->state, 0,
                   (size_t)d->net->cfg.layer[l].n_kv_head * dl->state_size * d->net->es);
    }
}

int sd_decoder_len(const sd_decoder *d) {
    return d->len;
}

void sd_decoder_bytes(const sd_decoder *d, size_t *cache, size_t *state) {
    *cache = d->cache_bytes;
    *state = d->state_bytes;
}

sd_status sd_decoder_feed(sd_decoder *d, const int32_t *ids, int n, void *logits, sd_err *err) {
    int vocab = d->net->cfg.vocab;
    if (n < 1)
        return sd_fail(err, SD_EINVAL, "decoding of %d tokens", n);
    if (n > d->capacity - d->len)
        return sd_fail(err, SD_EINVAL, "%d tokens after %d: the decoder was planned for %d", n,
                       d->len, d->capacity);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return sd_fail(err, SD_EINVAL, "token id %d at position %d: the vocabulary has %d",
                           ids[i], d->len + i, vocab);
    const dec_ops *ops = d->net->dtype == SD_F32 ? &sd_decode_ops_f32 : &sd_decode_ops_f64;
    int old = sd_blas_threads(1);
    sd_status st = SD_OK;
    for (int i = 0; i < n && st == SD_OK;) {
        int k = n - i < d->rows ? n - i : d->rows;
        st = ops->feed(d, ids + i, (size_t)k, i + k == n ? logits : NULL, err);
        i += k;
        d->len += k;
    }
    sd_blas_threads(old);
    return st;
}

/* ---- sampling ------------------------------------------------------------------------------ */

/* Largest first; equal ones by id, so that the order is one. */
static int by_logit(const void *pa, const void *pb) {
    const sd_sample_item *a = pa, *b = pb;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Brings the k first in the order of by_logit to the front, in any order (quickselect). */
static void select_top(sd_sample_item *w, size_t n, size_t k) {
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && hi != k) {
        sd_sample_item pivot = w[lo + (hi - lo - 1) / 2]; /* never the last: each part is smaller */
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (by_logit(&w[i], &pivot) < 0)
                i++;
            while (by_logit(&pivot, &w[j]) < 0)
                j--;
            if (i >= j)
                break;
            sd_sample_item t = w[i];
            w[i++] = w[j];
            w[j--] = t;
        }
        if (k <= j + 1)
            hi = j + 1;
        else
            lo = j + 1;
    }
}

sd_status sd_sample(const sd_sampling *s, size_t v, const float *logits, sd_rng *rng,
                    sd_sample_item *work, int32_t *id, sd_err *err) {
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return sd_fail(err, SD_EINVAL, "temperature %g: 0 or more", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return sd_fail(err, SD_EINVAL, "top_p %g: above 0, up to 1", s->top_p);
    if (s->top_k < 0 || v == 0)
        return sd_fail(err, SD_EINVAL, "top_k %d of %zu tokens", s->top_k, v);
    size_t best = 0;
    for (size_t i = 0; i < v; i++) {
        if (!isfinite(logits[i]))
            return sd_fail(err, SD_ENUMERIC, "the logit of token %zu is not finite", i);
        if (logits[i] > logits[best])
            best = i;
    }
    *id = (int32_t)best;
    if (s->temperature == 0)
        return SD_OK;
    size_t n = s->top_k > 0 && (size_t)s->top_k < v ? (size_t)s->top_k : v;
    for (size_t i = 0; i < v; i++)
        work[i] = (sd_sample_item){logits[i], (int32_t)i};
    if (n < v)
        select_top(work, v, n);
    if (n < v || s->top_p < 1)
        qsort(work, n, sizeof *work, by_logit);
    double top = (double)logits[best], total = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
        total += exp(((double)work[i].logit - top) / s->temperature);
    size_t m = 0;
    while (m < n && (m == 0 || kept < s->top_p * total))
        kept += exp(((double)work[m++].logit - top) / s->temperature);
    double u = sd_rng_uniform(rng) * kept, sum = 0;
    for (size_t i = 0; i < m; i++) {
        *id = work[i].id;
        sum += exp(((double)work[i].logit - top) / s->temperature);
        if (u < sum)
            break;
    }
    return SD_OK;
}
