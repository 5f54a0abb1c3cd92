/* truncate.c: cuts routing to its strongest planes, and filtering to a scalar or to nothing.
 *
 * Needs: host ABI 1.1, groups args, model, text, calibrate, linalg, table.
 * Kinds: S-D layers keep their kind with narrower queries and keys; layers that score q k' become
 * "bilinear", a kernel with separate routing and filtering factors. In rotary layers whole
 * frequency bands are cut, which commutes with the rotation. Layers without scores are refused.
 *
 * An S-D head scores s_ij = alpha (q_i k_j - k_i q_j): all routing, plus the diagonal -d_i. A
 * standard head's kernel M = c q k' splits into R = (M - M')/2 and F = (M + M')/2. Biases take
 * part: the weights get the bias row and the inputs a 1.
 *
 * How much stays is decided first, for every head (choose_*), from the strengths sigma of its
 * planes in units of the score; then the layers are cut (cut_*). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sd_plugin.h"

typedef struct layer {
    sd_hlayer_info info;
    bool chosen, every;   /* among layers=; all its heads are cut */
    unsigned char *heads; /* (H) heads to cut */
    int32_t full;         /* planes a head has; rotary: bands */
    int32_t groups;       /* what `keep` counts for: H heads, or the key heads of a rotary layer */
    double *sigma;        /* (groups, full) strengths in units of the score, descending */
    int32_t *order;       /* (groups, full) rotary: the band behind each strength */
    int32_t *keep;        /* (groups) */
    int32_t width;        /* planes the layer stores a head */
} layer;

typedef struct job {
    const sd_host *host;
    sd_call *call;
    sd_hmodel *in, *out; /* read from, written to (a clone) */
    sd_hcalib *calib;
    sd_hrope rope;
    int32_t layer, n_layer, D, H, d, kv; /* of the layer at work */
    layer *L, *all;
    bool bias, calibrated, all_planes;
    int32_t planes;        /* planes= or bands=; -1: not given */
    double energy, budget; /* < 0: not given */
    char filter;           /* k s n */
    double scale, d_floor;
} job;

static int part(job *j, const char *role, sd_harray *a) {
    return j->host->model_get_part(j->call, j->out, j->layer, role, a);
}

static int put(job *j, const char *role, int32_t ndim, int64_t n0, int64_t n1, double *data) {
    sd_harray a = {.ndim = ndim, .shape = {n0, n1}, .data = data};
    return j->host->model_set_part(j->call, j->out, j->layer, role, &a);
}

static double *zeros(job *j, int64_t n0, int64_t n1) {
    return j->host->alloc(j->call, (size_t)(n0 * n1 > 0 ? n0 * n1 : 1), sizeof(double));
}

static bool is_skew(const layer *L) {
    return L->info.scores == SD_SCORES_OF_SKEW;
}

/* Makes layer l the one at work. */
static void at(job *j, int32_t l) {
    j->layer = l;
    j->L = &j->all[l];
    j->H = j->L->info.n_head;
    j->kv = j->L->info.n_kv_head;
    j->d = j->L->info.d_qk;
    j->scale = j->L->info.scale;
}

/* ---- planes of a head ------------------------------------------------------------------------ */

typedef struct qk { /* queries and keys of a layer; bq, bk without data where it has none */
    sd_harray wq, wk, bq, bk;
} qk;

static int read_qk(job *j, qk *w) {
    *w = (qk){0};
    return part(j, "wq", &w->wq) || part(j, "wk", &w->wk) ||
                   (j->bias && (part(j, "bq", &w->bq) || part(j, "bk", &w->bk)))
               ? j->host->failed(j->call)
               : 0;
}

static void drop_qk(job *j, qk *w) {
    double *all[] = {w->wq.data, w->wk.data, w->bq.data, w->bk.data};
    for (int i = 0; i < 4; i++)
        if (all[i])
            j->host->release(j->call, all[i]);
}

/* Columns of one head of a (D, heads*d) weight, times s, with the bias as row D: w (D+1, d). */
static void head_columns(const job *j, const sd_harray *w, const sd_harray *b, int32_t head,
                         double s, double *out) {
    int64_t ld = w->shape[1], from = (int64_t)head * j->d;
    for (int32_t i = 0; i < j->D; i++)
        for (int32_t c = 0; c < j->d; c++)
            out[i * j->d + c] = s * w->data[i * ld + from + c];
    for (int32_t c = 0; c < j->d; c++)
        out[j->D * j->d + c] = b->data ? s * b->data[from + c] : 0;
}

/* The k strongest planes of A = qk' - kq', wq, wk (D+1, d): strengths sigma (d, nullable), factors
 * a, b (D+1, k, nullable together) with A_k = a b' - b a'. Strongest in the weights, or over all
 * pairs of calibration tokens (METHOD 8.1, 8.2). */
static int planes_of(job *j, int32_t head, const double *wq, const double *wk, int32_t k,
                     double *sigma, double *a, double *b) {
    const sd_host *h = j->host;
    int32_t d = j->d, D1 = j->D + 1, full = j->L->full;
    if (j->calibrated) {
        sd_harray g;
        double *fa = a ? zeros(j, 2 * d, k) : NULL, *fb = a ? zeros(j, 2 * d, k) : NULL;
        double *s = zeros(j, 1, d);
        if (!s || (a && (!fa || !fb)) || h->calib_get(j->call, j->calib, j->layer, "qk", &g) ||
            h->whitened_planes(j->call, (size_t)d, g.data + (size_t)head * 4 * (size_t)(d * d),
                               (size_t)k, s, k ? fa : NULL, k ? fb : NULL, NULL))
            return h->failed(j->call);
        for (int which = 0; a && k && which < 2; which++) {
            double *to = which ? b : a;
            const double *f = which ? fb : fa;
            size_t n = (size_t)D1, w = (size_t)d, p = (size_t)k;
            if (h->matmul(j->call, false, false, n, p, w, 1, wq, w, f, p, 0, to, p) ||
                h->matmul(j->call, false, false, n, p, w, 1, wk, w, f + w * p, p, 1, to, p))
                return h->failed(j->call);
        }
        for (int32_t p = 0; sigma && p < d; p++)
            sigma[p] = s[p];
        void *scratch[] = {g.data, s, fa, fb};
        for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
            if (scratch[i])
                h->release(j->call, scratch[i]);
        return 0;
    }
    /* kernel_planes gives (wq wk' - wk wq')/2 */
    int32_t n = sigma ? full : k;
    double *fa = zeros(j, D1, n), *fb = zeros(j, D1, n);
    if (!fa || !fb ||
        (n && h->kernel_planes(j->call, (size_t)D1, (size_t)d, wq, wk, (size_t)n, fa, fb, 0, NULL,
                               NULL)))
        return h->failed(j->call);
    for (int32_t p = 0; p < n; p++) {
        double norm = 0; /* of a plane's factor, squared: its strength */
        for (int32_t i = 0; i < D1; i++) {
            norm += fa[i * n + p] * fa[i * n + p];
            if (a && p < k) {
                a[i * k + p] = sqrt(2) * fa[i * n + p];
                b[i * k + p] = sqrt(2) * fb[i * n + p];
            }
        }
        if (sigma)
            sigma[p] = 2 * norm;
    }
    h->release(j->call, fa);
    h->release(j->call, fb);
    return 0;
}

/* Strengths of every plane of the layer's heads, in units of the score. */
static int strengths(job *j) {
    const sd_host *h = j->host;
    layer *L = j->L;
    double unit = is_skew(L) ? j->scale : 0.5 * j->scale;
    qk w;
    double *q = zeros(j, j->D + 1, j->d), *k = zeros(j, j->D + 1, j->d), *s = zeros(j, 1, j->d);
    L->sigma = zeros(j, j->H, L->full);
    if (!q || !k || !s || !L->sigma || read_qk(j, &w))
        return h->failed(j->call);
    for (int32_t hd = 0; hd < j->H; hd++) {
        if (h->cancelled(j->call))
            return h->failed(j->call);
        head_columns(j, &w.wq, &w.bq, hd, 1, q);
        head_columns(j, &w.wk, &w.bk, hd / (j->H / j->kv), 1, k);
        if (planes_of(j, hd, q, k, 0, s, NULL, NULL))
            return h->failed(j->call);
        for (int32_t p = 0; p < L->full; p++)
            L->sigma[hd * L->full + p] = unit * s[p];
    }
    h->release(j->call, q);
    h->release(j->call, k);
    h->release(j->call, s);
    drop_qk(j, &w);
    return 0;
}

/* ---- frequency bands of a rotary head -------------------------------------------------------- */

/* Second moments (2, 2) of dimensions (a, b) of a head's columns: w (D+1, d), x2 (D+1, D+1) or NULL
 * for the weights' own. */
static int band_moment(job *j, const double *w, int32_t a, int32_t b, const double *x2, double g[3],
                       double *tmp) {
    int32_t D1 = j->D + 1, dims[2] = {a, b};
    g[0] = g[1] = g[2] = 0;
    for (int c = 0; c < 2; c++) {
        if (x2) {
            if (j->host->matmul(j->call, false, false, (size_t)D1, 1, (size_t)D1, 1, x2, (size_t)D1,
                                w + dims[c], (size_t)j->d, 0, tmp, 1))
                return j->host->failed(j->call);
        } else {
            for (int32_t i = 0; i < D1; i++)
                tmp[i] = w[i * j->d + dims[c]];
        }
        for (int32_t i = 0; i < D1; i++) {
            g[c ? 2 : 0] += tmp[i] * w[i * j->d + dims[c]];
            g[1] += c ? 0 : tmp[i] * w[i * j->d + dims[1]];
        }
    }
    return 0;
}

/* Mean over lags 0 .. LAGS-1 of tr(R' Gq R Gk), R the rotation by lag * f: the mean square of the
 * band's part of the score of two independent tokens at that distance. */
static double band_energy(const double gq[3], const double gk[3], double f) {
    enum { LAGS = 512 };
    double sum = 0;
    for (int lag = 0; lag < LAGS; lag++) {
        double c = cos(lag * f), s = sin(lag * f);
        /* q' R k with R = [c -s; s c]: the moment of R k is R Gk R' */
        double k0 = c * c * gk[0] - 2 * c * s * gk[1] + s * s * gk[2];
        double k1 = c * s * (gk[0] - gk[2]) + (c * c - s * s) * gk[1];
        double k2 = s * s * gk[0] + 2 * c * s * gk[1] + c * c * gk[2];
        sum += gq[0] * k0 + 2 * gq[1] * k1 + gq[2] * k2;
    }
    return sum / LAGS;
}

static int band_strengths(job *j) {
    const sd_host *h = j->host;
    layer *L = j->L;
    int32_t D1 = j->D + 1, n = L->full, group = j->H / j->kv;
    qk w;
    sd_harray x2 = {0};
    double *q = zeros(j, D1, j->d), *k = zeros(j, D1, j->d), *tmp = zeros(j, 1, D1);
    double *e = zeros(j, 1, n);
    L->sigma = zeros(j, j->kv, n);
    L->order = h->alloc(j->call, (size_t)(j->kv * n + 1), sizeof *L->order);
    if (!q || !k || !tmp || !e || !L->sigma || !L->order || read_qk(j, &w) ||
        (j->calibrated && h->calib_get(j->call, j->calib, j->layer, "x2", &x2)))
        return h->failed(j->call);
    for (int32_t g = 0; g < j->kv; g++) {
        head_columns(j, &w.wk, &w.bk, g, 1, k);
        memset(e, 0, (size_t)n * sizeof *e);
        for (int32_t hd = g * group; hd < (g + 1) * group; hd++) {
            head_columns(j, &w.wq, &w.bq, hd, j->scale, q);
            for (int32_t t = 0; t < n; t++) {
                double gq[3], gk[3];
                if (h->cancelled(j->call) ||
                    band_moment(j, q, j->rope.a[t], j->rope.b[t], x2.data, gq, tmp) ||
                    band_moment(j, k, j->rope.a[t], j->rope.b[t], x2.data, gk, tmp))
                    return h->failed(j->call);
                e[t] += band_energy(gq, gk, j->rope.inv[t]) / group;
            }
        }
        for (int32_t p = 0; p < n; p++) { /* by strength */
            int32_t best = 0;
            for (int32_t t = 1; t < n; t++)
                if (e[t] > e[best])
                    best = t;
            L->order[g * n + p] = best;
            L->sigma[g * n + p] = sqrt(fmax(e[best], 0));
            e[best] = -1;
        }
    }
    drop_qk(j, &w);
    void *scratch[] = {q, k, tmp, e, x2.data};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        if (scratch[i])
            h->release(j->call, scratch[i]);
    return 0;
}

/* Zeros the columns of the bands that go, in every head of the group alike. */
static int cut_bands(job *j) {
    const sd_host *h = j->host;
    layer *L = j->L;
    qk w;
    if (read_qk(j, &w))
        return h->failed(j->call);
    sd_harray *all[4] = {&w.wq, &w.wk, &w.bq, &w.bk};
    for (int which = 0; which < 4; which++) {
        sd_harray *a = all[which];
        if (!a->data)
            continue;
        int32_t heads = which % 2 ? j->kv : j->H, per = heads / j->kv;
        int64_t ld = (int64_t)heads * j->d, rows = a->ndim == 2 ? a->shape[0] : 1;
        for (int32_t hd = 0; hd < heads; hd++)
            for (int32_t p = L->keep[hd / per]; p < L->full; p++) {
                int32_t t = L->order[hd / per * L->full + p];
                for (int64_t r = 0; r < rows; r++)
                    a->data[r * ld + (int64_t)hd * j->d + j->rope.a[t]] =
                        a->data[r * ld + (int64_t)hd * j->d + j->rope.b[t]] = 0;
            }
    }
    static const char *const roles[4] = {"wq", "wk", "bq", "bk"};
    for (int which = 0; which < 4; which++)
        if (all[which]->data &&
            h->model_set_part(j->call, j->out, j->layer, roles[which], all[which]))
            return h->failed(j->call);
    drop_qk(j, &w);
    return 0;
}

/* ---- how much stays -------------------------------------------------------------------------- */

/* A share of the energy: the fewest planes that hold it (METHOD 4). */
static void choose_energy(job *j) {
    layer *L = j->L;
    for (int32_t g = 0; g < L->groups; g++) {
        const double *s = L->sigma + g * L->full;
        double total = 0, sum = 0;
        int32_t k = 0;
        for (int32_t p = 0; p < L->full; p++)
            total += s[p] * s[p];
        while (k < L->full && sum < j->energy * total * (1 - 1e-12)) {
            sum += s[k] * s[k];
            k++;
        }
        L->keep[g] = k;
    }
}

/* Rows of a projection: the inputs, and the bias where it is stored. */
static double rows_of(const job *j, const layer *L) {
    return j->D + (j->bias || !is_skew(L) ? 1.0 : 0.0);
}

/* Parameters that one more plane in every head of a layer costs, and those that do not depend on
 * the planes. */
static double plane_cost(const job *j, const layer *L) {
    return 2 * rows_of(j, L) * L->info.n_head;
}
static double fixed_cost(const job *j, const layer *L) {
    if (is_skew(L))
        return 0;
    double rank = j->filter == 'k' || !L->every ? 2.0 * L->info.d_qk : 0;
    return L->info.n_head * (rank * (j->D + 2.0) + 1);
}
static double present_cost(const job *j, const layer *L) {
    return (j->D + (j->bias ? 1.0 : 0.0)) * L->info.d_qk * (L->info.n_head + L->info.n_kv_head);
}

static int32_t least_width(const layer *L) {
    return !L->every ? L->full : is_skew(L) ? 1 : 0;
}

typedef struct plane { /* of the pool */
    double value;
    int32_t layer, head, index;
} plane;

static int by_value(const void *x, const void *y) {
    const plane *a = x, *b = y;
    if (a->value != b->value)
        return a->value < b->value ? 1 : -1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->head != b->head)
        return a->head < b->head ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Loss of ablating a head per unit of score error (METHOD 7.6), from the table of `ablate`; 1
 * without one. */
static int weight_of(job *j, sd_htable *t, int32_t l, int32_t head, double energy, double *out) {
    const sd_host *h = j->host;
    *out = 1;
    if (!t)
        return 0;
    for (int32_t r = 0; r < h->table_n_rows(j->call, t); r++)
        if (h->table_get_num(j->call, t, r, "layer") == l &&
            h->table_get_num(j->call, t, r, "head") == head) {
            double delta = h->table_get_num(j->call, t, r, "delta");
            *out = energy > 0 && delta > 0 ? delta / energy : 0;
            return 0;
        }
    return h->fail(j->call, SD_FAIL_INVALID,
                   "sensitivity: the table has no row for layer %d, head %d", l, head);
}

/* One pool of the planes of all heads, the most valuable first, until the parameters are spent.
 * What a layer's width holds anyway costs nothing, so its other heads are filled up to it. */
static int choose_budget(job *j) {
    const sd_host *h = j->host;
    sd_htable *sens =
        h->arg_given(j->call, "sensitivity") ? h->arg_table(j->call, "sensitivity") : NULL;
    if (sens && (!h->table_has_column(j->call, sens, "layer") ||
                 !h->table_has_column(j->call, sens, "head") ||
                 !h->table_has_column(j->call, sens, "delta")))
        return h->fail(j->call, SD_FAIL_INVALID,
                       "sensitivity: a table with the columns layer, head and delta (loss without "
                       "the head), as ablate gives, is needed");
    double before = 0, spent = 0;
    size_t n = 0, at_ = 0;
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        if (!L->chosen)
            continue;
        L->width = least_width(L);
        before += present_cost(j, L);
        spent += fixed_cost(j, L) + L->width * plane_cost(j, L);
        n += (size_t)L->groups * (size_t)L->full;
    }
    double target = j->budget * before;
    if (spent > target)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "budget=%g cannot be met: these layers score with %.0f parameters now, and "
                       "need %.0f with "
                       "no plane at all%s",
                       j->budget, before, spent,
                       j->filter == 'k' ? " (a standard head's filtering is stored apart; "
                                          "filter=\"scalar\" or \"none\" frees it)"
                                        : "");
    plane *pool = h->alloc(j->call, n + 1, sizeof *pool);
    if (!pool)
        return h->failed(j->call);
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        for (int32_t g = 0; L->chosen && g < L->groups; g++) {
            const double *s = L->sigma + g * L->full;
            double energy = 0, weight;
            for (int32_t p = 0; p < L->full; p++)
                energy += 2 * s[p] * s[p];
            if (!L->heads[g])
                continue;
            if (weight_of(j, sens, l, g, energy, &weight))
                return h->failed(j->call);
            for (int32_t p = 0; p < L->full; p++)
                pool[at_++] = (plane){weight * s[p] * s[p], l, g, p};
        }
    }
    qsort(pool, at_, sizeof *pool, by_value);
    for (size_t i = 0; i < at_; i++) {
        layer *L = &j->all[pool[i].layer];
        if (pool[i].index < L->width || L->sigma[pool[i].head * L->full + pool[i].index] <= 0)
            continue;
        if (pool[i].index > L->width || spent + plane_cost(j, L) > target)
            continue; /* a stronger plane of this head did not fit */
        L->width++;
        spent += plane_cost(j, L);
    }
    for (int32_t l = 0; l < j->n_layer; l++)
        for (int32_t g = 0; j->all[l].chosen && g < j->all[l].groups; g++)
            j->all[l].keep[g] = j->all[l].width;
    h->release(j->call, pool);
    return 0;
}

/* Fills keep and width of every chosen layer. */
static int choose(job *j) {
    const sd_host *h = j->host;
    bool rotary = j->rope.pairs > 0, measured = j->energy >= 0 || j->budget >= 0 || rotary;
    for (int32_t l = 0; l < j->n_layer; l++) {
        at(j, l);
        layer *L = j->L;
        if (!L->chosen)
            continue;
        h->progress(j->call, "measuring", l, j->n_layer);
        if (j->planes > L->full)
            return h->fail(j->call, SD_FAIL_INVALID,
                           "expected %s 0..%d, got %d: a head of layer %d has %d %s",
                           rotary ? "bands" : "planes", L->full, j->planes, l, L->full,
                           rotary ? "frequency bands" : "planes");
        if (measured && (rotary ? band_strengths(j) : strengths(j)))
            return h->failed(j->call);
        for (int32_t g = 0; g < L->groups; g++)
            L->keep[g] = j->planes >= 0 ? j->planes : L->full;
        if (j->energy >= 0)
            choose_energy(j);
    }
    if (j->budget >= 0 && choose_budget(j))
        return h->failed(j->call);
    for (int32_t l = 0; l < j->n_layer; l++) {
        layer *L = &j->all[l];
        if (!L->chosen)
            continue;
        L->width = least_width(L);
        for (int32_t g = 0; g < L->groups; g++) {
            if (!rotary && !L->heads[g])
                L->keep[g] = L->full;
            if (L->keep[g] > L->width)
                L->width = L->keep[g];
        }
    }
    h->progress(j->call, "measuring", j->n_layer, j->n_layer);
    return 0;
}

/* ---- filtering of an S-D layer --------------------------------------------------------------- */

/* Value b with softplus(b) = y; y <= 0 gives one whose softplus is 0. */
static double softplus_inverse(double y) {
    if (y <= 0)
        return -1000;
    return y > 30 ? y : log(expm1(y));
}

/* Takes "name=value" out of the options. */
static void drop_option(sd_hlayer_info *info, const char *name) {
    char kept[sizeof info->options] = "";
    size_t at = 0;
    for (const char *p = info->options; *p;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " ");
        if (n && strncmp(p, name, strlen(name)) != 0) {
            if (at)
                kept[at++] = ' ';
            memcpy(kept + at, p, n);
            at += n;
        }
        p += n;
    }
    kept[at] = 0;
    strcpy(info->options, kept);
}

/* The filtering of an S-D layer; info is what the layer is by now. */
static int filter_sd(job *j, sd_hlayer_info *info) {
    const sd_host *h = j->host;
    if (j->filter == 'k')
        return 0;
    double *value = zeros(j, 1, j->H); /* d of each head */
    if (!value)
        return h->failed(j->call);
    if (h->model_has_part(j->call, j->out, j->layer, "diag")) {
        if (j->filter == 's')
            return 0; /* is a scalar already */
        sd_harray diag;
        if (part(j, "diag", &diag))
            return h->failed(j->call);
        for (int32_t i = 0; i < j->H; i++)
            diag.data[i] = j->L->heads[i] ? 0 : diag.data[i];
        return put(j, "diag", 1, j->H, 0, diag.data);
    }
    if (j->filter == 's') {
        sd_harray mean;
        if (h->calib_get(j->call, j->calib, j->layer, "d_mean", &mean))
            return h->failed(j->call);
        memcpy(value, mean.data, (size_t)j->H * sizeof *value);
    }
    if (j->L->every) {
        drop_option(info, "diag=");
        size_t n = strlen(info->options);
        const char *more = n ? " diag=scalar" : "diag=scalar";
        if (n + strlen(more) >= sizeof info->options)
            return h->fail(j->call, SD_FAIL_INVALID, "layer %d: its options are full", j->layer);
        strcpy(info->options + n, more);
        if (h->model_set_layer(j->call, j->out, j->layer, info))
            return h->failed(j->call);
        for (int32_t i = 0; i < j->H; i++)
            value[i] = -value[i];
        return put(j, "diag", 1, j->H, 0, value);
    }
    /* Some heads only: d(x) = softplus(w x + b) + floor with w = 0 is a constant. */
    if (j->filter == 'n' && j->d_floor > 0)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "this model's diagonal is at least %g by construction: filter=\"none\" must "
                       "take all heads of a layer",
                       j->d_floor);
    sd_harray wd, bd;
    if (part(j, "wd", &wd) || part(j, "bd", &bd))
        return h->failed(j->call);
    for (int32_t i = 0; i < j->H; i++) {
        if (!j->L->heads[i])
            continue;
        for (int32_t r = 0; r < j->D; r++)
            wd.data[(int64_t)r * j->H + i] = 0;
        bd.data[i] = softplus_inverse(value[i] - j->d_floor);
    }
    return put(j, "wd", 2, j->D, j->H, wd.data) || put(j, "bd", 1, j->H, 0, bd.data)
               ? h->failed(j->call)
               : 0;
}

/* ---- cutting --------------------------------------------------------------------------------- */

static int cut_sd(job *j) {
    const sd_host *h = j->host;
    layer *L = j->L;
    sd_hlayer_info info = L->info;
    bool whole = true;
    for (int32_t hd = 0; hd < j->H; hd++)
        whole &= L->keep[hd] == j->d;
    if (whole)
        return filter_sd(j, &info);
    qk w;
    if (read_qk(j, &w))
        return h->failed(j->call);
    int32_t D1 = j->D + 1, width = L->width;
    int64_t ld = (int64_t)j->H * width;
    double *q = zeros(j, D1, j->d), *k = zeros(j, D1, j->d), *a = zeros(j, D1, j->d),
           *b = zeros(j, D1, j->d), *nq = zeros(j, D1, ld), *nk = zeros(j, D1, ld);
    if (!q || !k || !a || !b || !nq || !nk)
        return h->failed(j->call);
    for (int32_t hd = 0; hd < j->H; hd++) {
        if (h->cancelled(j->call))
            return h->failed(j->call);
        head_columns(j, &w.wq, &w.bq, hd, 1, q);
        head_columns(j, &w.wk, &w.bk, hd, 1, k);
        bool cut = L->keep[hd] < j->d;
        int32_t n = cut ? L->keep[hd] : j->d;
        if (cut && planes_of(j, hd, q, k, n, NULL, a, b))
            return h->failed(j->call);
        for (int32_t i = 0; i < D1; i++)
            for (int32_t c = 0; c < n; c++) {
                nq[i * ld + (int64_t)hd * width + c] = cut ? a[i * n + c] : q[i * j->d + c];
                nk[i * ld + (int64_t)hd * width + c] = cut ? b[i * n + c] : k[i * j->d + c];
            }
    }
    info.d_qk = width; /* the score's scale stays the original one */
    if (h->model_set_layer(j->call, j->out, j->layer, &info) || put(j, "wq", 2, j->D, ld, nq) ||
        put(j, "wk", 2, j->D, ld, nk) ||
        (j->bias &&
         (put(j, "bq", 1, ld, 0, nq + j->D * ld) || put(j, "bk", 1, ld, 0, nk + j->D * ld))))
        return h->failed(j->call);
    void *scratch[] = {q, k, a, b, nq, nk};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        h->release(j->call, scratch[i]);
    drop_qk(j, &w);
    return filter_sd(j, &info);
}

/* The options of a standard layer that its bilinear form takes over. */
static void keep_window(sd_hlayer_info *info) {
    char kept[sizeof info->options] = "";
    for (const char *p = info->options; *p;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " ");
        if (strncmp(p, "window=", 7) == 0) {
            memcpy(kept, p, n);
            kept[n] = 0;
        }
        p += n;
    }
    strcpy(info->options, kept);
}

typedef struct factors { /* of a whole layer, as the bilinear kind stores them */
    int32_t P, fr;
    double *ra, *rb; /* (D+1, H*P) */
    double *f, *fl;  /* (D+1, H*fr), (H*fr) */
    double *diag;    /* (H) */
} factors;

/* Routing of head hd, cut to its planes, into F's columns. wq, wk (D+1, d) unscaled. */
static int put_routing(job *j, int32_t hd, const double *wq, const double *wk, factors *F,
                       double *a, double *b) {
    int32_t n = j->L->keep[hd], D1 = j->D + 1;
    double s = sqrt(0.5 * fabs(j->scale)), sign = j->scale < 0 ? -1 : 1; /* R = c/2 (qk' - kq') */
    if (n && planes_of(j, hd, wq, wk, n, NULL, a, b))
        return j->host->failed(j->call);
    for (int32_t i = 0; i < D1; i++)
        for (int32_t c = 0; c < n; c++) {
            F->ra[i * (int64_t)j->H * F->P + (int64_t)hd * F->P + c] = sign * s * a[i * n + c];
            F->rb[i * (int64_t)j->H * F->P + (int64_t)hd * F->P + c] = s * b[i * n + c];
        }
    return 0;
}

static int put_filtering(job *j, int32_t hd, double *wq, const double *wk, factors *F, double *f,
                         double *lam) {
    const sd_host *h = j->host;
    int32_t D1 = j->D + 1;
    for (int32_t i = 0; i < D1 * j->d; i++)
        wq[i] *= j->scale;
    if (h->kernel_planes(j->call, (size_t)D1, (size_t)j->d, wq, wk, 0, NULL, NULL, (size_t)F->fr, f,
                         lam))
        return h->failed(j->call);
    for (int32_t i = 0; i < D1; i++)
        memcpy(F->f + i * (int64_t)j->H * F->fr + (int64_t)hd * F->fr, f + i * F->fr,
               (size_t)F->fr * sizeof *f);
    memcpy(F->fl + (int64_t)hd * F->fr, lam, (size_t)F->fr * sizeof *lam);
    return 0;
}

static int store_factors(job *j, const factors *F) {
    const sd_host *h = j->host;
    sd_hlayer_info info = j->L->info;
    int64_t D1 = j->D + 1, H = j->H;
    strcpy(info.kind, "bilinear");
    keep_window(&info);
    info.planes = F->P;
    info.f_rank = F->fr;
    info.d_qk = 0;
    return h->model_set_layer(j->call, j->out, j->layer, &info) ||
                   (F->P && (put(j, "ra", 2, D1, H * F->P, F->ra) ||
                             put(j, "rb", 2, D1, H * F->P, F->rb))) ||
                   (F->fr && (put(j, "f", 2, D1, H * F->fr, F->f) ||
                              put(j, "fl", 1, H * F->fr, 0, F->fl))) ||
                   put(j, "diag", 1, H, 0, F->diag)
               ? h->failed(j->call)
               : 0;
}

static int cut_standard(job *j) {
    const sd_host *h = j->host;
    layer *L = j->L;
    bool whole = j->filter == 'k';
    for (int32_t hd = 0; hd < j->H; hd++)
        whole &= L->keep[hd] == L->full;
    if (whole)
        return 0;
    qk w;
    sd_harray mean = {0};
    int32_t D1 = j->D + 1, d = j->d, most = 2 * d < D1 ? 2 * d : D1;
    factors F = {.P = L->width, .fr = j->filter == 'k' || !L->every ? most : 0};
    if (read_qk(j, &w) ||
        (j->filter == 's' && h->calib_get(j->call, j->calib, j->layer, "diag_mean", &mean)))
        return h->failed(j->call);
    double *q = zeros(j, D1, d), *k = zeros(j, D1, d), *a = zeros(j, D1, d), *b = zeros(j, D1, d),
           *f = zeros(j, D1, F.fr), *lam = zeros(j, 1, F.fr);
    F.ra = zeros(j, D1, (int64_t)j->H * F.P);
    F.rb = zeros(j, D1, (int64_t)j->H * F.P);
    F.f = zeros(j, D1, (int64_t)j->H * F.fr);
    F.fl = zeros(j, 1, (int64_t)j->H * F.fr);
    F.diag = zeros(j, 1, j->H);
    if (!q || !k || !a || !b || !f || !lam || !F.diag || !F.ra || !F.rb || !F.f || !F.fl)
        return h->failed(j->call);
    for (int32_t hd = 0; hd < j->H; hd++) {
        bool cut = L->heads[hd];
        if (h->cancelled(j->call))
            return h->failed(j->call);
        head_columns(j, &w.wq, &w.bq, hd, 1, q);
        head_columns(j, &w.wk, &w.bk, hd / (j->H / j->kv), 1, k);
        if (put_routing(j, hd, q, k, &F, a, b) ||
            (F.fr && (!cut || j->filter == 'k') && put_filtering(j, hd, q, k, &F, f, lam)))
            return h->failed(j->call);
        if (cut && j->filter == 's')
            F.diag[hd] = mean.data[hd];
    }
    int rc = store_factors(j, &F);
    void *scratch[] = {q, k, a, b, f, lam, F.ra, F.rb, F.f, F.fl, F.diag};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        h->release(j->call, scratch[i]);
    drop_qk(j, &w);
    return rc;
}

/* Refuses, before anything is computed, a layer whose scores are not there or not whole. */
static int refuse(const sd_host *h, sd_call *call, sd_hmodel *m, int32_t layer) {
    sd_hlayer_info info = {.struct_size = sizeof info};
    if (h->model_layer(call, m, layer, &info))
        return h->failed(call);
    switch (info.scores) {
    case SD_SCORES_OF_QK:
    case SD_SCORES_OF_SKEW:
        return 0;
    case SD_SCORES_ABSENT:
        return h->fail(call, SD_FAIL_INVALID, "layer %d is %s: no scores to cut", layer, info.kind);
    case SD_SCORES_OF_PARTS:
        return h->fail(call, SD_FAIL_INVALID,
                       "layer %d is %s: its routing and filtering are factors already; cut the "
                       "model it was made from",
                       layer, info.kind);
    case SD_SCORES_OF_KEYS:
        return h->fail(call, SD_FAIL_INVALID,
                       "layer %d is %s: its routing is one plane by construction; nothing to cut",
                       layer, info.kind);
    default:
        return h->fail(call, SD_FAIL_INVALID, "layer %d: this host does not say what %s scores",
                       layer, info.kind);
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* What is asked of the planes: exactly one of planes, bands, energy, budget, or nothing. */
static int read_amount(job *j) {
    const sd_host *h = j->host;
    const char *planes = h->arg_str(j->call, "planes");
    bool rotary = j->rope.pairs > 0;
    j->all_planes = strcmp(planes, "all") == 0;
    j->planes = -1;
    j->energy = h->arg_given(j->call, "energy") ? h->arg_num(j->call, "energy") : -1;
    j->budget = h->arg_given(j->call, "budget") ? h->arg_num(j->call, "budget") : -1;
    bool bands = h->arg_given(j->call, "bands");
    if (!j->all_planes + (j->energy >= 0) + (j->budget >= 0) + bands > 1)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "planes, bands, energy and budget each say how much stays: give one");
    if (h->arg_given(j->call, "sensitivity") && j->budget < 0)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "sensitivity= weighs a pool of planes: it goes "
                       "with budget=");
    if (rotary && (!j->all_planes || j->budget >= 0 || j->filter != 'k'))
        return h->fail(
            j->call, SD_FAIL_INVALID,
            "%s rotates queries and keys (RoPE): the score is W_Q R W_K' with a rotation "
            "R that depends on the distance, so a cut of W_Q W_K' is not a cut of the "
            "scores. Whole frequency bands commute with it: bands=N keeps N of %d, "
            "energy=0.9 those that hold 90%%%s",
            h->model_name(j->call, j->in), j->rope.pairs,
            j->budget >= 0 ? "; they are zeroed where they stand and save no parameters" : "");
    if (bands && !rotary)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "%s has no rotary positions, so no frequency bands: planes=",
                       h->model_name(j->call, j->in));
    if (bands)
        j->planes = (int32_t)h->arg_int(j->call, "bands");
    if (!j->all_planes) {
        char *end;
        long k = strtol(planes, &end, 10);
        if (end == planes || *end || k < 0 || k > 1 << 20)
            return h->fail(j->call, SD_FAIL_INVALID,
                           "expected planes as a number from 0 or \"all\", got \"%.40s\"", planes);
        j->planes = (int32_t)k;
    }
    return 0;
}

static int read_layer(job *j, int32_t l) {
    const sd_host *h = j->host;
    layer *L = &j->all[l];
    int32_t D1 = j->D + 1;
    L->info.struct_size = sizeof L->info;
    if (refuse(h, j->call, j->in, l) || h->model_layer(j->call, j->in, l, &L->info))
        return h->failed(j->call);
    int32_t H = L->info.n_head, d = L->info.d_qk;
    bool rotary = j->rope.pairs > 0;
    L->groups = rotary ? L->info.n_kv_head : H;
    L->full = rotary ? j->rope.pairs : is_skew(L) || d < D1 / 2 ? d : D1 / 2;
    L->heads = h->alloc(j->call, (size_t)H, 1);
    L->keep = h->alloc(j->call, (size_t)L->groups, sizeof *L->keep);
    if (!L->heads || !L->keep || h->arg_range(j->call, "heads", "head", H, L->heads))
        return h->failed(j->call);
    bool any = false;
    L->every = true;
    for (int32_t i = 0; i < H; i++) {
        L->every &= L->heads[i] != 0;
        any |= L->heads[i] != 0;
    }
    L->chosen = any;
    if (is_skew(L) && L->info.n_kv_head != H)
        return h->fail(j->call, SD_FAIL_INVALID, "layer %d: S-D heads that share keys", l);
    if (rotary && !L->every)
        return h->fail(
            j->call, SD_FAIL_INVALID,
            "layer %d is rotary: its heads share their bands' keys, so all heads are cut "
            "together",
            l);
    return 0;
}

/* Everything up to the decision. */
static int prepare(job *j) {
    const sd_host *h = j->host;
    sd_hmodel_info mi = {.struct_size = sizeof mi};
    j->in = h->arg_model(j->call, "model");
    j->rope.struct_size = sizeof j->rope;
    if (!j->in || h->model_info(j->call, j->in, &mi) || h->model_rope(j->call, j->in, &j->rope))
        return h->failed(j->call);
    j->D = mi.d_model;
    j->bias = mi.qkv_bias;
    j->d_floor = mi.d_floor;
    j->n_layer = mi.n_layer;
    j->filter = h->arg_str(j->call, "filter")[0];
    if (read_amount(j))
        return h->failed(j->call);
    bool asked = strcmp(h->arg_str(j->call, "basis"), "calibrated") == 0;
    j->calibrated = asked && (j->planes >= 0 || j->energy >= 0 || j->budget >= 0);
    unsigned char *chosen = h->alloc(j->call, (size_t)mi.n_layer, 1);
    j->all = h->alloc(j->call, (size_t)mi.n_layer, sizeof *j->all);
    if (!chosen || !j->all || h->arg_range(j->call, "layers", "layer", mi.n_layer, chosen))
        return h->failed(j->call);
    for (int32_t l = 0; l < mi.n_layer; l++)
        if (chosen[l] && read_layer(j, l))
            return h->failed(j->call);
    if (j->calibrated || j->filter == 's') {
        sd_htext *text = h->arg_text(j->call, "calib");
        const int32_t *ids;
        size_t n;
        if (!text)
            return h->fail(j->call, SD_FAIL_INVALID,
                           "%s needs a calibration text: calib=text \"file\" (not the one you will "
                           "score)",
                           j->filter == 's' ? "filter=\"scalar\"" : "basis=\"calibrated\"");
        if (h->text_ids(j->call, text, j->in, &ids, &n))
            return h->failed(j->call);
        j->calib = h->calibrate(j->call, j->in, ids, n, (int32_t)h->arg_int(j->call, "ctx"),
                                (int32_t)h->arg_int(j->call, "seqs"));
        if (!j->calib)
            return h->failed(j->call);
    }
    j->out = h->model_clone(j->call, j->in);
    return j->out ? choose(j) : h->failed(j->call);
}

static void finish(job *j) {
    if (j->calib)
        j->host->calib_release(j->call, j->calib);
    if (j->out)
        j->host->model_release(j->call, j->out);
}

static int run(const sd_host *h, sd_call *call) {
    job j = {.host = h, .call = call};
    int rc = prepare(&j);
    for (int32_t l = 0; rc == 0 && l < j.n_layer; l++) {
        h->progress(call, "truncating", l, j.n_layer);
        at(&j, l);
        if (j.L->chosen)
            rc = j.rope.pairs ? cut_bands(&j) : is_skew(j.L) ? cut_sd(&j) : cut_standard(&j);
    }
    h->progress(call, "truncating", j.n_layer, j.n_layer);
    if (rc == 0) {
        rc = h->return_model(call, j.out);
        j.out = NULL;
    }
    finish(&j);
    return rc;
}

/* The same decision as a table, with its price; nothing is cut. */
static int run_plan(const sd_host *h, sd_call *call) {
    job j = {.host = h, .call = call};
    sd_htable *t = NULL;
    int rc = prepare(&j);
    for (int32_t l = 0; rc == 0 && l < j.n_layer; l++) {
        at(&j, l);
        if (j.L->chosen && !j.L->sigma)
            rc = j.rope.pairs ? band_strengths(&j) : strengths(&j);
    }
    if (rc == 0) {
        t = h->table_new(call, "truncate_plan");
        static const struct {
            const char *name, *doc;
            int kind;
        } cols[] = {{"layer", "layer", SD_TABLE_INT},
                    {"head", "head; of a rotary layer: key head", SD_TABLE_INT},
                    {"planes", "planes it has (rotary: frequency bands)", SD_TABLE_INT},
                    {"kept", "planes that stay", SD_TABLE_INT},
                    {"energy", "share of the squared strength that stays", SD_TABLE_NUM},
                    {"error",
                     "root of 2 x the squares of the planes left out, in units of the score",
                     SD_TABLE_NUM},
                    {"params", "parameters of the layer's scores now", SD_TABLE_INT},
                    {"params_cut", "and when cut", SD_TABLE_INT}};
        for (size_t i = 0; t && rc == 0 && i < sizeof cols / sizeof *cols; i++)
            rc = h->table_column(call, t, cols[i].name, cols[i].kind, cols[i].doc, false);
        if (!t)
            rc = h->failed(call);
        char head[200];
        snprintf(head, sizeof head, "%.80s: what a cut keeps, by %s; nothing has been cut",
                 h->model_name(call, j.in),
                 j.rope.pairs   ? "frequency bands"
                 : j.calibrated ? "planes over all pairs of calibration tokens"
                                : "planes of the weights");
        rc = rc ? rc : h->table_heading(call, t, head);
    }
    for (int32_t l = 0; rc == 0 && l < j.n_layer; l++) {
        at(&j, l);
        const layer *L = j.L;
        double before = L->chosen ? present_cost(&j, L) : 0, after = before;
        if (L->chosen && !j.rope.pairs) {
            bool whole = is_skew(L) || j.filter == 'k';
            for (int32_t g = 0; g < L->groups; g++)
                whole &= L->keep[g] == L->full;
            after = whole ? before : fixed_cost(&j, L) + L->width * plane_cost(&j, L);
        }
        for (int32_t g = 0; L->chosen && g < L->groups && rc == 0; g++) {
            double kept = 0, lost = 0;
            for (int32_t p = 0; p < L->full; p++) {
                double s = L->sigma[g * L->full + p];
                *(p < L->keep[g] ? &kept : &lost) += s * s;
            }
            int32_t r = h->table_row(call, t);
            rc = r < 0 || h->table_set_int(call, t, r, "layer", l) ||
                         h->table_set_int(call, t, r, "head", g) ||
                         h->table_set_int(call, t, r, "planes", L->full) ||
                         h->table_set_int(call, t, r, "kept", L->keep[g]) ||
                         (kept + lost > 0 &&
                          h->table_set_num(call, t, r, "energy", kept / (kept + lost))) ||
                         h->table_set_num(call, t, r, "error", sqrt(2 * lost)) ||
                         h->table_set_int(call, t, r, "params", (int64_t)before) ||
                         h->table_set_int(call, t, r, "params_cut", (int64_t)after)
                     ? h->failed(call)
                     : 0;
        }
    }
    finish(&j);
    return rc ? rc : h->return_table(call, t);
}

/* ---- how far the scores of a cut model are off ----------------------------------------------- */

typedef struct half { /* one model's routing of a head: s (U1 U2' - U2 U1'), U (D+1, w) each */
    int32_t w;
    double s, *u1, *u2;
} half;

/* Reads layer l of m as factors of its routing. */
static int read_half(job *j, sd_hmodel *m, int32_t l, int32_t head, half *out) {
    const sd_host *h = j->host;
    sd_hlayer_info info = {.struct_size = sizeof info};
    if (h->model_layer(j->call, m, l, &info))
        return h->failed(j->call);
    bool skew = info.scores == SD_SCORES_OF_SKEW, parts = info.scores == SD_SCORES_OF_PARTS;
    if (!skew && !parts && info.scores != SD_SCORES_OF_QK)
        return h->fail(j->call, SD_FAIL_INVALID, "layer %d of %s is %s: no routing to compare", l,
                       h->model_name(j->call, m), info.kind);
    int32_t w = parts ? info.planes : info.d_qk, kv = info.n_kv_head, D1 = j->D + 1;
    *out = (half){.w = w, .s = parts ? 1 : skew ? info.scale : 0.5 * info.scale};
    for (int which = 0; which < 2 && w > 0; which++) {
        static const char *const role[2][3] = {{"wq", "bq", "ra"}, {"wk", "bk", "rb"}};
        sd_harray a, b = {0};
        double *u = zeros(j, D1, w);
        int32_t from = which && !parts ? head / (info.n_head / kv) : head;
        bool bias = !parts && h->model_has_part(j->call, m, l, role[which][1]);
        if (!u || h->model_get_part(j->call, m, l, role[which][parts ? 2 : 0], &a) ||
            (bias && h->model_get_part(j->call, m, l, role[which][1], &b)))
            return h->failed(j->call);
        for (int32_t i = 0; i < (parts ? D1 : j->D); i++)
            memcpy(u + (int64_t)i * w, a.data + i * a.shape[1] + (int64_t)from * w,
                   (size_t)w * sizeof *u);
        if (bias)
            memcpy(u + (int64_t)j->D * w, b.data + (int64_t)from * w, (size_t)w * sizeof *u);
        h->release(j->call, a.data);
        if (bias)
            h->release(j->call, b.data);
        *(which ? &out->u2 : &out->u1) = u;
    }
    return 0;
}

/* Mean of R_ij^2 over all ordered pairs of the text's tokens, R the sum of both halves: with U all
 * factors side by side, G = U' X2 U and R = U J U', it is tr(G J G J'). */
static int mean_square(job *j, const double *x2, const half *p, int n, double *out) {
    const sd_host *h = j->host;
    int32_t D1 = j->D + 1, w = 0;
    for (int i = 0; i < n; i++)
        w += 2 * p[i].w;
    *out = 0;
    if (w == 0)
        return 0;
    size_t m = (size_t)w, d1 = (size_t)D1;
    double *u = zeros(j, D1, w), *x = zeros(j, D1, w), *g = zeros(j, w, w), *gj = zeros(j, w, w);
    if (!u || !x || !g || !gj)
        return h->failed(j->call);
    for (int i = 0, at_ = 0; i < n; at_ += 2 * p[i].w, i++)
        for (int32_t r = 0; r < D1 && p[i].w; r++) {
            memcpy(u + r * w + at_, p[i].u1 + r * p[i].w, (size_t)p[i].w * sizeof *u);
            memcpy(u + r * w + at_ + p[i].w, p[i].u2 + r * p[i].w, (size_t)p[i].w * sizeof *u);
        }
    if (h->matmul(j->call, false, false, d1, m, d1, 1, x2, d1, u, m, 0, x, m) ||
        h->matmul(j->call, true, false, m, m, d1, 1, u, m, x, m, 0, g, m))
        return h->failed(j->call);
    for (int i = 0, at_ = 0; i < n; at_ += 2 * p[i].w, i++) /* G J: J swaps the two halves */
        for (int32_t r = 0; r < w; r++)
            for (int32_t c = 0; c < p[i].w; c++) {
                gj[r * w + at_ + p[i].w + c] = p[i].s * g[r * w + at_ + c];
                gj[r * w + at_ + c] = -p[i].s * g[r * w + at_ + p[i].w + c];
            }
    double sum = 0; /* tr(G J G J') = -tr(G J G J) */
    for (int32_t r = 0; r < w; r++)
        for (int32_t c = 0; c < w; c++)
            sum -= gj[r * w + c] * gj[c * w + r];
    *out = sum > 0 ? sum : 0;
    void *scratch[] = {u, x, g, gj};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        h->release(j->call, scratch[i]);
    return 0;
}

static int error_rows(job *j, sd_htable *t, sd_hmodel *a, sd_hmodel *b, int32_t l) {
    const sd_host *h = j->host;
    sd_hlayer_info info = {.struct_size = sizeof info}, other = {.struct_size = sizeof other};
    sd_harray x2;
    if (h->model_layer(j->call, a, l, &info) || h->model_layer(j->call, b, l, &other) ||
        h->calib_get(j->call, j->calib, l, "x2", &x2))
        return h->failed(j->call);
    if (info.n_head != other.n_head)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "layer %d has %d heads in one model, %d in the other", l, info.n_head,
                       other.n_head);
    for (int32_t hd = 0; hd < info.n_head; hd++) {
        half p[2];
        double whole, off;
        if (h->cancelled(j->call) || read_half(j, a, l, hd, &p[0]) ||
            read_half(j, b, l, hd, &p[1]) || mean_square(j, x2.data, p, 1, &whole))
            return h->failed(j->call);
        p[1].s = -p[1].s;
        if (mean_square(j, x2.data, p, 2, &off))
            return h->failed(j->call);
        int32_t r = h->table_row(j->call, t);
        if (r < 0 || h->table_set_int(j->call, t, r, "layer", l) ||
            h->table_set_int(j->call, t, r, "head", hd) ||
            h->table_set_num(j->call, t, r, "routing_rms", sqrt(whole)) ||
            h->table_set_num(j->call, t, r, "error_rms", sqrt(off)) ||
            (whole > 0 && h->table_set_num(j->call, t, r, "relative", sqrt(off / whole))))
            return h->failed(j->call);
        for (int i = 0; i < 2; i++)
            if (p[i].w) {
                h->release(j->call, p[i].u1);
                h->release(j->call, p[i].u2);
            }
    }
    h->release(j->call, x2.data);
    return 0;
}

static int run_error(const sd_host *h, sd_call *call) {
    job j = {.host = h, .call = call};
    sd_hmodel *a = h->arg_model(call, "model"), *b = h->arg_model(call, "cut");
    sd_hmodel_info mi = {.struct_size = sizeof mi}, mb = {.struct_size = sizeof mb};
    const int32_t *ids;
    size_t n;
    if (!a || !b || h->model_info(call, a, &mi) || h->model_info(call, b, &mb))
        return h->failed(call);
    if (mi.n_layer != mb.n_layer || mi.d_model != mb.d_model)
        return h->fail(call, SD_FAIL_INVALID,
                       "%d layers of width %d beside %d of width %d: not one model and its cut",
                       mi.n_layer, mi.d_model, mb.n_layer, mb.d_model);
    if (mi.rope || mb.rope)
        return h->fail(
            call, SD_FAIL_INVALID,
            "rotary scores depend on the distance: their error over all pairs is not one "
            "number a head");
    unsigned char *layers = h->alloc(call, (size_t)mi.n_layer, 1);
    j.D = mi.d_model;
    if (!layers || h->arg_range(call, "layers", "layer", mi.n_layer, layers) ||
        h->text_ids(call, h->arg_text(call, "text"), a, &ids, &n) ||
        !(j.calib = h->calibrate(call, a, ids, n, (int32_t)h->arg_int(call, "ctx"),
                                 (int32_t)h->arg_int(call, "seqs"))))
        return h->failed(call);
    sd_htable *t = h->table_new(call, "routing_error");
    int rc =
        !t ||
        h->table_heading(call, t,
                         "routing scores over all ordered pairs of the text's tokens, at "
                         "the inputs of the first model; RMS, in units of the score") ||
        h->table_column(call, t, "layer", SD_TABLE_INT, "layer", false) ||
        h->table_column(call, t, "head", SD_TABLE_INT, "head", false) ||
        h->table_column(call, t, "routing_rms", SD_TABLE_NUM, "RMS of the first model's routing",
                        false) ||
        h->table_column(call, t, "error_rms", SD_TABLE_NUM,
                        "RMS of the difference of the two models' routing", false) ||
        h->table_column(call, t, "relative", SD_TABLE_NUM, "error_rms over routing_rms", false);
    for (int32_t l = 0; rc == 0 && l < mi.n_layer; l++)
        rc = layers[l] ? error_rows(&j, t, a, b, l) : 0;
    h->calib_release(call, j.calib);
    return rc ? h->failed(call) : h->return_table(call, t);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static const sd_arg_desc args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model to cut"},
    {.name = "layers",
     .kind = SD_ARG_LAYERS,
     .dflt = "all",
     .doc = "layers to cut, as \"0-3,7\", numbered from 0"},
    {.name = "heads",
     .kind = SD_ARG_STR,
     .dflt = "all",
     .doc = "heads to cut in each of them, as \"0,2\"; the others stay exactly what they are"},
    {.name = "planes",
     .kind = SD_ARG_STR,
     .dflt = "all",
     .doc = "routing planes to keep a head: a number (0 = no routing), or \"all\""},
    {.name = "energy",
     .kind = SD_ARG_NUM,
     .min = 0,
     .max = 1,
     .doc = "instead: the fewest planes that hold this share of a head's squared routing"},
    {.name = "budget",
     .kind = SD_ARG_NUM,
     .min = 0,
     .max = 1,
     .doc = "instead: this share of the parameters that score now, the planes of all heads "
            "competing for them"},
    {.name = "sensitivity",
     .kind = SD_ARG_TABLE,
     .doc = "with budget: a table (layer, head, delta) of the loss that each head's absence costs, "
            "as ablate gives; planes are then worth their share of it"},
    {.name = "bands",
     .kind = SD_ARG_INT,
     .min = 0,
     .max = 1 << 20,
     .doc = "rotary models: frequency bands to keep a key head"},
    {.name = "filter",
     .kind = SD_ARG_CHOICE,
     .dflt = "keep",
     .choices = "keep|scalar|none",
     .doc = "filtering: as it is, one number a head (its mean over the calibration text), or none"},
    {.name = "basis",
     .kind = SD_ARG_CHOICE,
     .dflt = "weights",
     .choices = "weights|calibrated",
     .doc = "which planes are the strongest: those of the weights, or those of the scores on the "
            "calibration text"},
    {.name = "calib", .kind = SD_ARG_TEXT, .doc = "calibration text; not the text to be scored"},
    {.name = "ctx",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1048576,
     .doc = "tokens a calibration sequence; 0: the position table, at most 512"},
    {.name = "seqs",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1000000,
     .doc = "calibration sequences; 0: all the text holds"},
};

static const sd_arg_desc error_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model"},
    {.name = "cut", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model cut"},
    {.name = "text", .kind = SD_ARG_TEXT, .flags = SD_ARG_REQUIRED, .doc = "the text"},
    {.name = "layers", .kind = SD_ARG_LAYERS, .dflt = "all", .doc = "layers to compare"},
    {.name = "ctx",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1048576,
     .doc = "tokens a sequence; 0: the position table, at most 512"},
    {.name = "seqs",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .max = 1000000,
     .doc = "sequences; 0: all the text holds"},
};

static const sd_op_desc ops[] = {
    {
        .struct_size = sizeof(sd_op_desc),
        .returns = SD_ARG_MODEL,
        .name = "truncate",
        .summary = "cuts routing to its strongest planes, filtering to a scalar or nothing",
        .details =
            "Returns a new model; the input is untouched. In S-D attention the routing is "
            "alpha (q k' - k q') and the filtering is the diagonal; a cut head keeps fewer query "
            "and key columns, and its score scale stays what it was. A standard head becomes a "
            "bilinear kernel with separate routing and filtering factors, biases included; cut at "
            "full rank it computes what it did before. Heads that share keys are cut each by its "
            "own kernel.\n\n"
            "How much stays: planes= for every head, energy= for a share of each head's squared "
            "routing, or budget= for a share of the parameters, for which the planes of all heads "
            "compete by their squared strength in the scores, with sensitivity= times the loss "
            "that "
            "one unit of the head's score error costs. truncate_plan shows the decision and its "
            "price without cutting.\n\n"
            "The scalar that replaces the filtering is the mean over the calibration text, never "
            "over the text that is scored.\n\n"
            "basis=\"calibrated\" keeps the planes that are strongest in the scores over all pairs "
            "of calibration tokens. Whether it beats the plain weights is for a measurement to "
            "say: routing_error, compare.\n\n"
            "Rotary models: with a rotation between queries and keys, a cut of their product is no "
            "cut of the scores. What commutes with it is a whole frequency band: bands=, or "
            "energy= "
            "with the bands' shares of the mean square score, averaged over the distances 0 to 511 "
            "(of the weights, or with basis=\"calibrated\" on the calibration text). Bands that go "
            "are zeroed in all heads of a key head, and save no parameters; dimensions that do not "
            "rotate stay.",
        .example = "n = truncate(m, {planes=2})\n"
                   "assert(nll(n, t) > 0)\n"
                   "x = truncate(g, {layers='0', planes='all', filter='none'})\n"
                   "assert(lineage(x):row(0).op == 'truncate')",
        .returns_doc = "the cut model",
        .args = args,
        .n_args = sizeof args / sizeof *args,
        .run = run,
    },
    {
        .struct_size = sizeof(sd_op_desc),
        .returns = SD_ARG_TABLE,
        .name = "truncate_plan",
        .summary = "what truncate would keep in each head, and what that costs and saves",
        .details =
            "The arguments are truncate's. Nothing is cut. error is the closed form of what "
            "goes: the Frobenius norm of the lost routing for the planes of the weights, the "
            "RMS over all ordered pairs of calibration tokens for calibrated ones.",
        .example = "p = truncate_plan(m, {energy=0.9})\n"
                   "assert(p:row(0).kept >= 1 and p:row(0).energy >= 0.9)",
        .returns_doc = "a table, one row a head",
        .args = args,
        .n_args = sizeof args / sizeof *args,
        .run = run_plan,
    },
    {
        .struct_size = sizeof(sd_op_desc),
        .returns = SD_ARG_TABLE,
        .name = "routing_error",
        .summary = "how far the routing scores of a cut model are from the original's, by head",
        .details =
            "Measured over all ordered pairs of the text's tokens (pairs across sequences and "
            "i = j included), at the inputs that the first model's layers see. On the "
            "calibration text the error of a calibrated cut is its closed form, and no cut to "
            "as many planes has a smaller one; another text shows what of that carries over.",
        .example = "n = truncate(m, {planes=2})\n"
                   "e = routing_error(m, n, t)\n"
                   "assert(e:row(0).relative < 1)",
        .returns_doc = "a table, one row a head",
        .args = error_args,
        .n_args = sizeof error_args / sizeof *error_args,
        .run = run_error,
    },
};

SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_HEADER(ops),
    .name = "truncate",
    .version = "1.1",
    .summary = "cuts attention heads to their strongest routing planes",
};
