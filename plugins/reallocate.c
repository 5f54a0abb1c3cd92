/* reallocate.c: gives each layer its own head dimension, for queries and keys, values and outputs,
 * or both (METHOD 7.4).
 *
 * Needs: host ABI 1.1, groups args, model, text, calibrate, evaluate, linalg, table.
 * Kinds: S-D layers keep their strongest planes, layers that score q k' the product of lower rank
 * nearest to it; both keep their kind and their score's scale. Values and outputs are cut in layers
 * of any kind that has them. Rotary queries and keys are refused: what="vo" is left.
 *
 * All cuts are folds of columns: W_Q' = W_Q a, W_K' = W_K b, and W_V' = W_V a, W_O' = b' W_O, from
 * second moments: of the weights, or of what the calibration text shows. Heads that share keys and
 * values share the fold. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sd_plugin.h"

typedef struct layer {
    sd_hlayer_info info;
    bool chosen;
    int32_t d;       /* the dimension it gets */
    double *qk, *vo; /* (d_qk), (d_v): squared strength that the r-th dimension holds, all heads */
    double per_dim;  /* parameters of one dimension in every head */
    double weight;   /* of its error in the pool */
} layer;

typedef struct job {
    const sd_host *host;
    sd_call *call;
    sd_hmodel *in;
    sd_hcalib *calib;
    int32_t n_layer, D;
    bool bias, rope, qk, vo;
    layer *all;
} job;

static double *zeros(job *j, int64_t n0, int64_t n1) {
    return j->host->alloc(j->call, (size_t)(n0 * n1 > 0 ? n0 * n1 : 1), sizeof(double));
}

static int get(job *j, sd_hmodel *m, int32_t l, const char *role, sd_harray *a) {
    return j->host->model_get_part(j->call, m, l, role, a);
}

/* Columns of one head of a weight and its bias: w (D+1, d); rows: those of a transposed W_O. */
static int head_of(job *j, int32_t l, const char *weight, const char *bias, int32_t head, int32_t d,
                   double **out) {
    const sd_host *h = j->host;
    sd_harray w, b = {0};
    bool has = bias && h->model_has_part(j->call, j->in, l, bias);
    *out = zeros(j, j->D + 1, d);
    if (!*out || get(j, j->in, l, weight, &w) || (has && get(j, j->in, l, bias, &b)))
        return h->failed(j->call);
    for (int32_t i = 0; i < j->D; i++)
        for (int32_t c = 0; c < d; c++)
            (*out)[i * d + c] = bias ? w.data[i * w.shape[1] + (int64_t)head * d + c]
                                     : w.data[((int64_t)head * d + c) * w.shape[1] + i];
    for (int32_t c = 0; has && c < d; c++)
        (*out)[j->D * d + c] = b.data[(int64_t)head * d + c];
    h->release(j->call, w.data);
    if (has)
        h->release(j->call, b.data);
    return 0;
}

/* g (d, d) += w'w. */
static int add_gram(job *j, const double *w, int32_t d, double *g) {
    size_t n = (size_t)d;
    return j->host->matmul(j->call, true, false, n, n, (size_t)j->D + 1, 1, w, n, w, n, 1, g, n);
}

/* g (d, d) += block (r0, c0) of head `head` of a calibrated (H, w, w) array. */
static int add_block(job *j, int32_t l, const char *what, int32_t head, int32_t at, int32_t d,
                     double *g) {
    sd_harray a;
    if (j->host->calib_get(j->call, j->calib, l, what, &a))
        return j->host->failed(j->call);
    int64_t w = a.shape[1];
    for (int32_t r = 0; r < d; r++)
        for (int32_t c = 0; c < d; c++)
            g[r * d + c] += a.data[(int64_t)head * w * w + (at + r) * w + at + c];
    j->host->release(j->call, a.data);
    return 0;
}

/* ---- folds ----------------------------------------------------------------------------------- */

/* The fold of one key head's queries and keys: sigma (d), and with rank > 0 the columns a, b of
 * q' = [q k] a, k' = [q k] b (S-D: (2d, rank)) or q' = q a, k' = k b ((d, rank)). */
static int fold_qk(job *j, int32_t l, int32_t g, int32_t rank, double *sigma, double *a,
                   double *b) {
    const sd_host *h = j->host;
    const sd_hlayer_info *info = &j->all[l].info;
    int32_t d = info->d_qk, per = info->n_head / info->n_kv_head;
    if (info->scores == SD_SCORES_OF_SKEW) {
        double *gram = zeros(j, 2 * d, 2 * d), *q, *k;
        if (!gram)
            return h->failed(j->call);
        if (j->calib) {
            if (add_block(j, l, "qk", g, 0, 2 * d, gram))
                return h->failed(j->call);
        } else {
            double *u = zeros(j, j->D + 1, 2 * d);
            if (!u || head_of(j, l, "wq", "bq", g, d, &q) || head_of(j, l, "wk", "bk", g, d, &k))
                return h->failed(j->call);
            for (int32_t i = 0; i <= j->D; i++) {
                memcpy(u + (int64_t)i * 2 * d, q + (int64_t)i * d, (size_t)d * sizeof *u);
                memcpy(u + (int64_t)i * 2 * d + d, k + (int64_t)i * d, (size_t)d * sizeof *u);
            }
            if (add_gram(j, u, 2 * d, gram))
                return h->failed(j->call);
            h->release(j->call, u);
            h->release(j->call, q);
            h->release(j->call, k);
        }
        int rc = h->whitened_planes(j->call, (size_t)d, gram, (size_t)rank, sigma, a, b, NULL);
        h->release(j->call, gram);
        return rc;
    }
    double *gq = zeros(j, d, d), *gk = zeros(j, d, d), *w;
    if (!gq || !gk)
        return h->failed(j->call);
    for (int32_t i = 0; i < per; i++)
        if (j->calib ? add_block(j, l, "qk", g * per + i, 0, d, gq)
                     : head_of(j, l, "wq", "bq", g * per + i, d, &w) || add_gram(j, w, d, gq))
            return h->failed(j->call);
    if (j->calib ? add_block(j, l, "qk", g * per, d, d, gk)
                 : head_of(j, l, "wk", "bk", g, d, &w) || add_gram(j, w, d, gk))
        return h->failed(j->call);
    int rc = h->whitened_product(j->call, (size_t)d, gq, gk, (size_t)rank, sigma, a, b);
    h->release(j->call, gq);
    h->release(j->call, gk);
    return rc;
}

/* The same of its values and outputs: v' = v a, W_O' = b' W_O. */
static int fold_vo(job *j, int32_t l, int32_t g, int32_t rank, double *sigma, double *a,
                   double *b) {
    const sd_host *h = j->host;
    const sd_hlayer_info *info = &j->all[l].info;
    int32_t d = info->d_v, per = info->n_head / info->n_kv_head;
    double *go = zeros(j, d, d), *gw = zeros(j, d, d), *w;
    if (!go || !gw)
        return h->failed(j->call);
    for (int32_t i = 0; i < per; i++) {
        if ((j->calib && add_block(j, l, "o2", g * per + i, 0, d, go)) ||
            head_of(j, l, "wo", NULL, g * per + i, d, &w) || add_gram(j, w, d, gw))
            return h->failed(j->call);
        h->release(j->call, w);
    }
    if (!j->calib && (head_of(j, l, "wv", "bv", g, d, &w) || add_gram(j, w, d, go)))
        return h->failed(j->call);
    int rc = h->whitened_product(j->call, (size_t)d, go, gw, (size_t)rank, sigma, a, b);
    h->release(j->call, go);
    h->release(j->call, gw);
    return rc;
}

/* Column blocks of heads of a weight (rows, heads*d) [bias: one row] through folds (d, r) of their
 * groups: out (rows, heads*r) += in fold. */
static void through(const double *in, int64_t rows, int32_t heads, int32_t per, int32_t d,
                    const double *fold, int64_t stride, int32_t r, double *out) {
    for (int64_t i = 0; i < rows; i++)
        for (int32_t hd = 0; hd < heads; hd++) {
            const double *x = in + (i * heads + hd) * d, *f = fold + hd / per * stride;
            double *y = out + (i * heads + hd) * r;
            for (int32_t c = 0; c < d; c++)
                for (int32_t k = 0; k < r; k++)
                    y[k] += x[c] * f[c * r + k];
        }
}

typedef struct fresh { /* parts of a layer to be written */
    const char *role;
    sd_harray a;
} fresh;

static int cut_qk(job *j, int32_t l, fresh *out, int *n) {
    const sd_host *h = j->host;
    const sd_hlayer_info *info = &j->all[l].info;
    int32_t H = info->n_head, kv = info->n_kv_head, d = info->d_qk, r = j->all[l].d;
    bool skew = info->scores == SD_SCORES_OF_SKEW;
    int32_t in = skew ? 2 * d : d;
    int64_t stride = (int64_t)in * r;
    double *fold[2] = {zeros(j, kv, stride), zeros(j, kv, stride)}, *s = zeros(j, 1, d);
    if (!fold[0] || !fold[1] || !s)
        return h->failed(j->call);
    for (int32_t g = 0; g < kv; g++)
        if (h->cancelled(j->call) ||
            fold_qk(j, l, g, r, s, fold[0] + g * stride, fold[1] + g * stride))
            return h->failed(j->call);
    static const char *const roles[2][2] = {{"wq", "wk"}, {"bq", "bk"}};
    for (int b = 0; b < (j->bias ? 2 : 1); b++) {
        sd_harray x[2];
        if (get(j, j->in, l, roles[b][0], &x[0]) || get(j, j->in, l, roles[b][1], &x[1]))
            return h->failed(j->call);
        int64_t rows = b ? 1 : j->D;
        for (int which = 0; which < 2; which++) { /* the new queries, the new keys */
            int32_t heads = which ? kv : H;
            double *y = zeros(j, rows, (int64_t)heads * r);
            if (!y)
                return h->failed(j->call);
            if (skew)
                for (int src = 0; src < 2; src++)
                    through(x[src].data, rows, heads, 1, d, fold[which] + (int64_t)src * d * r,
                            stride, r, y);
            else
                through(x[which].data, rows, heads, heads / kv, d, fold[which], stride, r, y);
            out[(*n)++] =
                (fresh){roles[b][which],
                        {.ndim = b ? 1 : 2, .shape = {b ? heads * r : rows, heads * r}, .data = y}};
        }
        h->release(j->call, x[0].data);
        h->release(j->call, x[1].data);
    }
    h->release(j->call, fold[0]);
    h->release(j->call, fold[1]);
    return 0;
}

static int cut_vo(job *j, int32_t l, fresh *out, int *n) {
    const sd_host *h = j->host;
    const sd_hlayer_info *info = &j->all[l].info;
    int32_t H = info->n_head, kv = info->n_kv_head, d = info->d_v, r = j->all[l].d, per = H / kv;
    int64_t stride = (int64_t)d * r;
    double *a = zeros(j, kv, stride), *b = zeros(j, kv, stride), *s = zeros(j, 1, d);
    sd_harray wo, w;
    double *o = zeros(j, (int64_t)H * r, j->D);
    if (!a || !b || !s || !o || get(j, j->in, l, "wo", &wo))
        return h->failed(j->call);
    for (int32_t g = 0; g < kv; g++)
        if (h->cancelled(j->call) || fold_vo(j, l, g, r, s, a + g * stride, b + g * stride))
            return h->failed(j->call);
    for (int32_t hd = 0; hd < H; hd++) /* b' W_O of the head */
        if (h->matmul(j->call, true, false, (size_t)r, (size_t)j->D, (size_t)d, 1,
                      b + hd / per * stride, (size_t)r, wo.data + (int64_t)hd * d * j->D,
                      (size_t)j->D, 0, o + (int64_t)hd * r * j->D, (size_t)j->D))
            return h->failed(j->call);
    out[(*n)++] = (fresh){"wo", {.ndim = 2, .shape = {(int64_t)H * r, j->D}, .data = o}};
    for (int bias = 0; bias < (j->bias ? 2 : 1); bias++) {
        int64_t rows = bias ? 1 : j->D;
        double *y = zeros(j, rows, (int64_t)kv * r);
        if (!y || get(j, j->in, l, bias ? "bv" : "wv", &w))
            return h->failed(j->call);
        through(w.data, rows, kv, 1, d, a, stride, r, y);
        out[(*n)++] =
            (fresh){bias ? "bv" : "wv",
                    {.ndim = bias ? 1 : 2, .shape = {bias ? kv * r : rows, kv * r}, .data = y}};
        h->release(j->call, w.data);
    }
    h->release(j->call, wo.data);
    h->release(j->call, a);
    h->release(j->call, b);
    return 0;
}

/* A clone of the model in which every chosen layer has its d. */
static sd_hmodel *apply(job *j) {
    const sd_host *h = j->host;
    sd_hmodel *m = h->model_clone(j->call, j->in);
    for (int32_t l = 0; m && l < j->n_layer; l++) {
        layer *L = &j->all[l];
        sd_hlayer_info info = L->info;
        h->progress(j->call, "reallocating", l, j->n_layer);
        bool qk = L->chosen && j->qk && L->d < info.d_qk,
             vo = L->chosen && j->vo && L->d < info.d_v;
        fresh parts[8];
        int n = 0;
        if ((qk && cut_qk(j, l, parts, &n)) || (vo && cut_vo(j, l, parts, &n)))
            return NULL;
        if (qk)
            info.d_qk = L->d; /* the score's scale stays the original one */
        if (vo)
            info.d_v = L->d;
        if ((qk || vo) && h->model_set_layer(j->call, m, l, &info))
            return NULL;
        for (int i = 0; i < n; i++) {
            if (h->model_set_part(j->call, m, l, parts[i].role, &parts[i].a))
                return NULL;
            h->release(j->call, parts[i].a.data);
        }
    }
    h->progress(j->call, "reallocating", j->n_layer, j->n_layer);
    return m;
}

/* ---- schedules ------------------------------------------------------------------------------- */

static int32_t widest(const job *j, const layer *L) {
    int32_t qk = j->qk ? L->info.d_qk : 0, vo = j->vo ? L->info.d_v : 0;
    return qk > vo ? qk : vo;
}

/* Squared strengths by dimension, summed over heads: what a pool of dimensions competes with. */
static int strengths(job *j, int32_t l) {
    const sd_host *h = j->host;
    layer *L = &j->all[l];
    int32_t kv = L->info.n_kv_head;
    bool skew = L->info.scores == SD_SCORES_OF_SKEW;
    int32_t most = L->info.d_qk > L->info.d_v ? L->info.d_qk : L->info.d_v;
    double *s = zeros(j, 1, most);
    L->qk = zeros(j, 1, L->info.d_qk);
    L->vo = zeros(j, 1, L->info.d_v);
    if (!s || !L->qk || !L->vo)
        return h->failed(j->call);
    for (int32_t g = 0; g < kv; g++) {
        if (h->cancelled(j->call))
            return h->failed(j->call);
        double unit = L->info.scale * L->info.scale * (skew ? 2 : 1); /* a plane counts twice */
        if (j->qk && fold_qk(j, l, g, 0, s, NULL, NULL))
            return h->failed(j->call);
        for (int32_t r = 0; j->qk && r < L->info.d_qk; r++)
            L->qk[r] += unit * s[r] * s[r];
        if (j->vo && fold_vo(j, l, g, 0, s, NULL, NULL))
            return h->failed(j->call);
        for (int32_t r = 0; j->vo && r < L->info.d_v; r++)
            L->vo[r] += s[r] * s[r];
    }
    h->release(j->call, s);
    return 0;
}

/* A share of the parameters, in steps of `step` dimensions: each goes to the layer where it holds
 * most of the squared scores (and of the squared outputs, each part over its total in the model)
 * per parameter. The strengths of a layer fall, so the greedy choice is the best one. */
static int choose_budget(job *j, double share, int32_t step) {
    const sd_host *h = j->host;
    double before = 0, spent = 0, total_qk = 0, total_vo = 0;
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        if (!L->chosen)
            continue;
        h->progress(j->call, "measuring", l, j->n_layer);
        if (strengths(j, l))
            return h->failed(j->call);
        for (int32_t r = 0; j->qk && r < L->info.d_qk; r++)
            total_qk += L->qk[r];
        for (int32_t r = 0; j->vo && r < L->info.d_v; r++)
            total_vo += L->vo[r];
        before += L->per_dim * widest(j, L);
        L->d = step < widest(j, L) ? step : widest(j, L);
        spent += L->per_dim * L->d;
    }
    if (spent > share * before)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "budget=%g cannot be met: %d dimensions a layer are %.3g of the parameters",
                       share, step, spent / before);
    for (;;) {
        layer *best = NULL;
        double most = 0;
        for (int32_t l = 0; l < j->n_layer; l++) {
            layer *L = &j->all[l];
            if (!L->chosen || L->d >= widest(j, L))
                continue;
            int32_t to = L->d + step < widest(j, L) ? L->d + step : widest(j, L);
            double cost = L->per_dim * (to - L->d), gain = 0;
            if (spent + cost > share * before)
                continue;
            for (int32_t r = L->d; r < to; r++)
                gain += (j->qk && r < L->info.d_qk && total_qk > 0 ? L->qk[r] / total_qk : 0) +
                        (j->vo && r < L->info.d_v && total_vo > 0 ? L->vo[r] / total_vo : 0);
            if (!best || gain * L->weight / cost > most) {
                best = L;
                most = gain * L->weight / cost;
            }
        }
        if (!best)
            return 0;
        int32_t to = best->d + step < widest(j, best) ? best->d + step : widest(j, best);
        spent += best->per_dim * (to - best->d);
        best->d = to;
    }
}

/* "8,8,16,64" or "16": one number, or one a chosen layer. */
static int choose_list(job *j, const char *text) {
    const sd_host *h = j->host;
    const char *p = text;
    int32_t n = 0, wanted = 0, first = 0;
    for (int32_t l = 0; l < j->n_layer; l++)
        wanted += j->all[l].chosen;
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        if (!L->chosen)
            continue;
        char *end;
        long v = n == 1 && !*p ? first : strtol(p, &end, 10);
        bool again = n >= 1 && !*p;
        if (!again && (end == p || (*end && *end != ',') || v < 1 || v > 1 << 20))
            return h->fail(j->call, SD_FAIL_INVALID,
                           "expected d as a number from 1, or one a layer (\"8,8,16,64\"), got "
                           "\"%.60s\"",
                           text);
        if (again && n != 1)
            return h->fail(j->call, SD_FAIL_INVALID, "d has %d numbers for %d layers", n, wanted);
        if (!again) {
            p = *end ? end + 1 : end;
            first = (int32_t)v;
            n++;
        } else {
            v = first;
        }
        L->d = (int32_t)v;
    }
    if (*p)
        return h->fail(j->call, SD_FAIL_INVALID, "d has more numbers than the %d layers: \"%.60s\"",
                       wanted, text);
    return 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* From a table of ranks: half the layer's median rank (a plane counts 2), rounded up to a multiple
 * of `step`. */
static int choose_ranks(job *j, sd_htable *t, const char *rank, int32_t step) {
    const sd_host *h = j->host;
    int32_t rows = h->table_n_rows(j->call, t);
    double *v = zeros(j, 1, rows);
    if (!v)
        return h->failed(j->call);
    if (!h->table_has_column(j->call, t, "layer") || !h->table_has_column(j->call, t, rank))
        return h->fail(
            j->call, SD_FAIL_INVALID,
            "ranks: a table with the columns layer and %.40s is needed, as probe or heads "
            "gives",
            rank);
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        size_t n = 0;
        for (int32_t r = 0; r < rows; r++) {
            double x = h->table_get_num(j->call, t, r, rank);
            if (h->table_get_num(j->call, t, r, "layer") == l && !isnan(x))
                v[n++] = x;
        }
        if (!L->chosen)
            continue;
        if (n == 0)
            return h->fail(j->call, SD_FAIL_INVALID, "ranks: the table has no %.40s for layer %d",
                           rank, l);
        qsort(v, n, sizeof *v, by_size);
        double median = n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
        double planes = ceil(median / 2), d = ceil(planes / step) * step;
        int32_t top = widest(j, L);
        L->d = d < 1 ? (step < top ? step : top) : d > top ? top : (int32_t)d;
    }
    return 0;
}

/* The same dimensions in all, spread evenly (the first layers take what does not divide), or in the
 * order of the layers turned round: baselines at equal parameters. */
static int reschedule(job *j, const char *how, const int32_t *d0) {
    const sd_host *h = j->host;
    int32_t n = 0, sum = 0, i = 0;
    for (int32_t l = 0; l < j->n_layer; l++)
        if (j->all[l].chosen) {
            n++;
            sum += d0[l];
        }
    for (int32_t l = 0, back = j->n_layer - 1; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        if (!L->chosen)
            continue;
        L->d = d0[l];
        if (strcmp(how, "uniform") == 0) {
            L->d = sum / n + (i++ < sum % n);
        } else if (strcmp(how, "reversed") == 0) {
            while (!j->all[back].chosen)
                back--;
            L->d = d0[back--];
        }
        if (L->d > widest(j, L))
            return h->fail(j->call, SD_FAIL_INVALID,
                           "layer %d: %d dimensions asked for (%s), it has %d", l, L->d, how,
                           widest(j, L));
    }
    return 0;
}

/* ---- the ops --------------------------------------------------------------------------------- */

static int read_layer(job *j, int32_t l) {
    const sd_host *h = j->host;
    layer *L = &j->all[l];
    L->info.struct_size = sizeof L->info;
    L->chosen = true;
    L->weight = 1;
    if (h->model_layer(j->call, j->in, l, &L->info))
        return h->failed(j->call);
    const sd_hlayer_info *info = &L->info;
    bool scores = info->scores == SD_SCORES_OF_SKEW || info->scores == SD_SCORES_OF_QK;
    if (j->qk && !scores)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "layer %d is %s: it has no queries and keys whose product is its score; "
                       "what=\"vo\" cuts its values and outputs",
                       l, info->kind);
    if (j->qk && info->scores == SD_SCORES_OF_SKEW && info->n_kv_head != info->n_head)
        return h->fail(j->call, SD_FAIL_INVALID, "layer %d: S-D heads that share keys", l);
    double b = j->bias ? 1 : 0;
    L->per_dim = (j->qk ? (j->D + b) * (info->n_head + info->n_kv_head) : 0) +
                 (j->vo ? (double)j->D * info->n_head + (j->D + b) * info->n_kv_head : 0);
    return 0;
}

static int read_weights(job *j) {
    const sd_host *h = j->host;
    if (!h->arg_given(j->call, "sensitivity"))
        return 0;
    sd_htable *t = h->arg_table(j->call, "sensitivity");
    if (!h->table_has_column(j->call, t, "layer") || !h->table_has_column(j->call, t, "delta"))
        return h->fail(j->call, SD_FAIL_INVALID,
                       "sensitivity: a table with the columns layer and delta (loss without the "
                       "head), as ablate gives, is needed");
    for (int32_t l = 0; l < j->n_layer; l++) {
        double sum = 0;
        for (int32_t r = 0; r < h->table_n_rows(j->call, t); r++)
            if (h->table_get_num(j->call, t, r, "layer") == l)
                sum += fmax(h->table_get_num(j->call, t, r, "delta"), 0);
        j->all[l].weight = sum;
    }
    return 0;
}

/* Reads the arguments and decides every layer's d. */
static int prepare(job *j) {
    const sd_host *h = j->host;
    sd_hmodel_info mi = {.struct_size = sizeof mi};
    j->in = h->arg_model(j->call, "model");
    if (!j->in || h->model_info(j->call, j->in, &mi))
        return h->failed(j->call);
    const char *what = h->arg_str(j->call, "what"), *d = h->arg_str(j->call, "d");
    j->n_layer = mi.n_layer;
    j->D = mi.d_model;
    j->bias = mi.qkv_bias;
    j->rope = mi.rope > 0;
    j->qk = strcmp(what, "vo") != 0;
    j->vo = strcmp(what, "qk") != 0;
    bool ranks = h->arg_given(j->call, "ranks"), budget = h->arg_given(j->call, "budget");
    if ((d != NULL) + ranks + budget != 1)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "how many dimensions: give one of d=, ranks= and budget=");
    if (j->rope && j->qk)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "%s rotates queries and keys (RoPE): dimensions belong to fixed frequencies "
                       "and cannot be mixed; what=\"vo\" cuts values and outputs",
                       h->model_name(j->call, j->in));
    unsigned char *chosen = h->alloc(j->call, (size_t)mi.n_layer, 1);
    int32_t *d0 = h->alloc(j->call, (size_t)mi.n_layer, sizeof *d0);
    j->all = h->alloc(j->call, (size_t)mi.n_layer, sizeof *j->all);
    if (!chosen || !d0 || !j->all || h->arg_range(j->call, "layers", "layer", mi.n_layer, chosen))
        return h->failed(j->call);
    for (int32_t l = 0; l < mi.n_layer; l++)
        if (chosen[l] && read_layer(j, l))
            return h->failed(j->call);
    if (strcmp(h->arg_str(j->call, "basis"), "calibrated") == 0) {
        sd_htext *text = h->arg_text(j->call, "calib");
        const int32_t *ids;
        size_t n;
        if (!text)
            return h->fail(
                j->call, SD_FAIL_INVALID,
                "basis=\"calibrated\" needs a calibration text: calib=text \"file\" (not "
                "the one you will score)");
        if (h->text_ids(j->call, text, j->in, &ids, &n) ||
            !(j->calib = h->calibrate(j->call, j->in, ids, n, (int32_t)h->arg_int(j->call, "ctx"),
                                      (int32_t)h->arg_int(j->call, "seqs"))))
            return h->failed(j->call);
    }
    int32_t step = (int32_t)h->arg_int(j->call, "step");
    if (read_weights(j) || (d       ? choose_list(j, d)
                            : ranks ? choose_ranks(j, h->arg_table(j->call, "ranks"),
                                                   h->arg_str(j->call, "rank"), step)
                                    : choose_budget(j, h->arg_num(j->call, "budget"), step)))
        return h->failed(j->call);
    for (int32_t l = 0; l < mi.n_layer; l++)
        d0[l] = j->all[l].d;
    return reschedule(j, h->arg_str(j->call, "schedule"), d0);
}

static int run(const sd_host *h, sd_call *call) {
    job j = {.host = h, .call = call};
    sd_hmodel *m = prepare(&j) ? NULL : apply(&j);
    if (j.calib)
        h->calib_release(call, j.calib);
    return m ? h->return_model(call, m) : h->failed(call);
}

static int add_row(job *j, sd_htable *t, const char *name, sd_hmodel *m, const int32_t *ids,
                   size_t n) {
    const sd_host *h = j->host;
    sd_hprice now = {.struct_size = sizeof now}, was = {.struct_size = sizeof was};
    sd_hdelta e = {.struct_size = sizeof e};
    char d[256] = "";
    size_t at = 0;
    for (int32_t l = 0; l < j->n_layer && at + 8 < sizeof d; l++) {
        sd_hlayer_info info = {.struct_size = sizeof info};
        if (h->model_layer(j->call, m, l, &info))
            return h->failed(j->call);
        at += (size_t)snprintf(d + at, sizeof d - at, "%s%d", l ? "," : "",
                               j->qk ? info.d_qk : info.d_v);
    }
    if (h->model_price(j->call, m, -1, 0, &now) || h->model_price(j->call, j->in, -1, 0, &was) ||
        h->compare(j->call, j->in, m, ids, n, (int32_t)h->arg_int(j->call, "ctx"), 0,
                   h->seed(j->call), &e))
        return h->failed(j->call);
    int32_t r = h->table_row(j->call, t);
    return r < 0 || h->table_set_str(j->call, t, r, "schedule", name) ||
                   h->table_set_str(j->call, t, r, "d", d) ||
                   h->table_set_int(j->call, t, r, "attn_params", now.attn_params) ||
                   h->table_set_num(j->call, t, r, "attn_share",
                                    (double)now.attn_params / (double)was.attn_params) ||
                   h->table_set_num(j->call, t, r, "ppl", exp(e.nll_b)) ||
                   h->table_set_num(j->call, t, r, "change", expm1(e.delta)) ||
                   h->table_set_num(j->call, t, r, "delta", e.delta) ||
                   h->table_set_num(j->call, t, r, "delta_lo", e.lo) ||
                   h->table_set_num(j->call, t, r, "delta_hi", e.hi) ||
                   h->table_set_int(j->call, t, r, "tokens", e.tokens)
               ? h->failed(j->call)
               : 0;
}

static int run_table(const sd_host *h, sd_call *call) {
    job j = {.host = h, .call = call};
    const int32_t *ids;
    size_t n;
    if (prepare(&j) || h->text_ids(call, h->arg_text(call, "text"), j.in, &ids, &n))
        return h->failed(call);
    static const struct {
        const char *name, *doc;
        int kind;
    } cols[] = {{"schedule", "which layers get how many dimensions", SD_TABLE_STR},
                {"d", "dimensions a head, layer by layer", SD_TABLE_STR},
                {"attn_params", "parameters of the attention sublayers", SD_TABLE_INT},
                {"attn_share", "of the untouched model's", SD_TABLE_NUM},
                {"ppl", "perplexity", SD_TABLE_NUM},
                {"change", "of perplexity, from the untouched model", SD_TABLE_NUM},
                {"delta", "mean loss less the untouched model's, nats", SD_TABLE_NUM},
                {"delta_lo", "2.5% of the paired bootstrap", SD_TABLE_NUM},
                {"delta_hi", "97.5% of the paired bootstrap", SD_TABLE_NUM},
                {"tokens", "tokens scored", SD_TABLE_INT}};
    sd_htable *t = h->table_new(call, "reallocate_table");
    int32_t *d0 = h->alloc(call, (size_t)j.n_layer, sizeof *d0);
    char head[300];
    snprintf(head, sizeof head,
             "%.80s: head dimensions of %s cut by %s; base: all parameters of the attention "
             "sublayers; uniform and reversed have the same dimensions in all",
             h->model_name(call, j.in),
             j.qk && j.vo ? "queries, keys, values and outputs"
             : j.qk       ? "queries and keys"
                          : "values and outputs",
             j.calib ? "second moments on the calibration text" : "the weights");
    int rc = !t || !d0 || h->table_heading(call, t, head);
    for (size_t i = 0; rc == 0 && i < sizeof cols / sizeof *cols; i++)
        rc = h->table_column(call, t, cols[i].name, cols[i].kind, cols[i].doc, false);
    for (int32_t l = 0; rc == 0 && l < j.n_layer; l++)
        d0[l] = j.all[l].d;
    rc = rc ? rc : add_row(&j, t, "untouched", j.in, ids, n);
    static const char *const schedules[] = {"given", "uniform", "reversed"};
    for (size_t i = 0; rc == 0 && i < sizeof schedules / sizeof *schedules; i++) {
        sd_hmodel *m = reschedule(&j, schedules[i], d0) ? NULL : apply(&j);
        rc = !m || add_row(&j, t, schedules[i], m, ids, n);
        if (m)
            h->model_release(call, m);
    }
    if (j.calib)
        h->calib_release(call, j.calib);
    return rc ? h->failed(call) : h->return_table(call, t);
}

#define MODEL_ARG \
    { .name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model" }
#define SHARED_ARGS                                                                                \
    {.name = "layers", .kind = SD_ARG_LAYERS, .dflt = "all", .doc = "layers to cut"},              \
        {.name = "d",                                                                              \
         .kind = SD_ARG_STR,                                                                       \
         .doc = "dimensions a head: a number, or one a layer (\"8,8,16,64\")"},                    \
        {.name = "ranks",                                                                          \
         .kind = SD_ARG_TABLE,                                                                     \
         .doc =                                                                                    \
             "instead: a table of measured ranks (probe, heads); a layer gets half its median, "   \
             "rounded up to a multiple of step"},                                                  \
        {.name = "rank", .kind = SD_ARG_STR, .dflt = "n99", .doc = "with ranks: the column"},      \
        {.name = "budget",                                                                         \
         .kind = SD_ARG_NUM,                                                                       \
         .min = 0,                                                                                 \
         .max = 1,                                                                                 \
         .doc = "instead: this share of the cut parts' parameters, each step of dimensions going " \
                "to the layer where it holds most"},                                               \
        {.name = "sensitivity",                                                                    \
         .kind = SD_ARG_TABLE,                                                                     \
         .doc = "with budget: a table (layer, delta) of the loss that each head's absence costs, " \
                "as ablate gives; a layer's gain is weighed by their sum"},                        \
        {.name = "step",                                                                           \
         .kind = SD_ARG_INT,                                                                       \
         .dflt = "8",                                                                              \
         .min = 1,                                                                                 \
         .max = 4096,                                                                              \
         .doc = "dimensions come in multiples of this (ranks, budget)"},                           \
        {.name = "what",                                                                           \
         .kind = SD_ARG_CHOICE,                                                                    \
         .dflt = "qk",                                                                             \
         .choices = "qk|vo|qkvo",                                                                  \
         .doc = "queries and keys, values and outputs, or both"},                                  \
        {.name = "schedule",                                                                       \
         .kind = SD_ARG_CHOICE,                                                                    \
         .dflt = "given",                                                                          \
         .choices = "given|uniform|reversed",                                                      \
         .doc = "as asked, or a baseline with the same dimensions in all"},                        \
        {.name = "basis",                                                                          \
         .kind = SD_ARG_CHOICE,                                                                    \
         .dflt = "weights",                                                                        \
         .choices = "weights|calibrated",                                                          \
         .doc = "what is kept best: the weights' products, or scores and outputs on the "          \
                "calibration text"},                                                               \
        {.name = "calib", .kind = SD_ARG_TEXT, .doc = "calibration text; not the one scored"},     \
        {.name = "ctx",                                                                            \
         .kind = SD_ARG_INT,                                                                       \
         .dflt = "0",                                                                              \
         .max = 1048576,                                                                           \
         .doc = "tokens a sequence; 0: the position table (calibration: at most 512)"},            \
    {                                                                                              \
        .name = "seqs", .kind = SD_ARG_INT, .dflt = "0", .max = 1000000,                           \
        .doc = "calibration sequences; 0: all the text holds"                                      \
    }

static const sd_arg_desc args[] = {MODEL_ARG, SHARED_ARGS};
static const sd_arg_desc table_args[] = {
    MODEL_ARG,
    {.name = "text", .kind = SD_ARG_TEXT, .flags = SD_ARG_REQUIRED, .doc = "the text to score"},
    SHARED_ARGS};

static const sd_op_desc ops[] = {
    {
        .struct_size = sizeof(sd_op_desc),
        .returns = SD_ARG_MODEL,
        .name = "reallocate",
        .summary = "gives each layer its own head dimension",
        .details =
            "Returns a new model; the input is untouched. An S-D layer keeps its d strongest "
            "planes; "
            "a standard layer keeps its kind, with the product of rank d that is nearest to q k'; "
            "values and outputs keep the product W_V W_O of rank d that is nearest. The score's "
            "scale stays what it was. With d as it is, nothing changes.\n\n"
            "basis=\"calibrated\" measures nearness on the calibration text: over all pairs of "
            "queries and keys, and over the heads' outputs.\n\n"
            "A saving in parameters is a share of what is cut: with base Q, K, V, O and d 8 of 64 "
            "everywhere, what=\"qk\" saves 43.75% of the attention parameters, what=\"qkvo\" "
            "87.5%.\n\n"
            "A share (budget=) of both parts together weighs each part's error by its total in the "
            "model.",
        .example = "n = reallocate(m, {d='8,8,16,16,32,64'})\n"
                   "assert(n.config.layer[0].d_qk == 8 and n.n_params < m.n_params)\n"
                   "x = reallocate(g, {budget=0.5, what='qkvo'})\n"
                   "assert(nll(x, t) > 0)",
        .returns_doc = "the model with new head dimensions",
        .args = args,
        .n_args = sizeof args / sizeof *args,
        .run = run,
    },
    {
        .struct_size = sizeof(sd_op_desc),
        .returns = SD_ARG_TABLE,
        .name = "reallocate_table",
        .summary = "a schedule of head dimensions beside its baselines at equal parameters",
        .details =
            "Scores the untouched model, the schedule asked for, the same dimensions spread "
            "evenly over the layers, and the schedule turned round, on one text: perplexity, "
            "and the loss beside the untouched model's with its 95% interval.",
        .example = "w = reallocate_table(m, t, {d='8,8,8,8,16,64'})\n"
                   "assert(#w == 4 and w:row(2).attn_params == w:row(3).attn_params)",
        .returns_doc = "a table: untouched, given, uniform, reversed",
        .args = table_args,
        .n_args = sizeof table_args / sizeof *table_args,
        .run = run_table,
    },
};

SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_HEADER(ops),
    .name = "reallocate",
    .version = "1.0",
    .summary = "gives each layer its own head dimension",
};
