/* truncate.c: cuts routing to its strongest planes, and filtering to a scalar or to nothing.
 *
 * Needs: host ABI 1.0, groups args, model, text, calibrate, linalg.
 * Kinds: S-D layers keep their kind with narrower queries and keys; layers that score q k' become
 * "bilinear", a kernel with separate routing and filtering factors. Rotary layers are refused, and
 * those without scores.
 *
 * An S-D head scores s_ij = alpha (q_i k_j - k_i q_j): all routing, plus the diagonal -d_i. A
 * standard head's kernel M = c q k' splits into R = (M - M')/2 and F = (M + M')/2. Biases take
 * part: the weights get the bias row and the inputs a 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sd_plugin.h"

typedef struct job {
    const sd_host *host;
    sd_call *call;
    sd_hmodel *out; /* the model being cut */
    sd_hcalib *calib;
    int32_t layer, D, H, d, kv;
    bool bias, calibrated, all_planes;
    int32_t planes;
    char filter; /* k s n */
    unsigned char *heads;
    bool every_head;
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

/* Columns of one head of a (D, heads*d) weight, times s, with the bias as row D: w (D+1, d). */
static void head_columns(const job *j, const sd_harray *w, const sd_harray *b, int32_t head,
                         double s, double *out) {
    int64_t ld = w->shape[1], at = (int64_t)head * j->d;
    for (int32_t i = 0; i < j->D; i++)
        for (int32_t c = 0; c < j->d; c++)
            out[i * j->d + c] = s * w->data[i * ld + at + c];
    for (int32_t c = 0; c < j->d; c++)
        out[j->D * j->d + c] = b->data ? s * b->data[at + c] : 0;
}

/* The k best planes over the calibration tokens. With U = [q k] of all rows, G = U'U/N = R'R and
 * A = qk' - kq' = U J U', the skew matrix B = R J R' has A's spectrum (over N). From its planes
 * Bx = sy, By = -sx: U J R'x / s and -U J R'y / s are the left and right factors, and they are
 * linear in the inputs, so they fold into weights. wq, wk (D+1, d) -> a, b (D+1, k) with
 * A_k = a b' - b a'. R comes from eigenvalues with a cut-off: a singular G is no failure. */
static int calibrated_planes(job *j, int32_t head, const double *wq, const double *wk, int32_t k,
                             double *a, double *b) {
    const sd_host *h = j->host;
    int32_t d = j->d, w = 2 * d, D1 = j->D + 1;
    sd_harray g;
    if (h->calib_get(j->call, j->calib, j->layer, "qk", &g))
        return h->failed(j->call);
    const double *G = g.data + (size_t)head * w * w;
    double *lam = zeros(j, 1, w), *v = zeros(j, w, w), *R = zeros(j, w, w), *JR = zeros(j, w, w);
    double *B = zeros(j, w, w), *sig = zeros(j, 1, d), *x = zeros(j, d, w), *y = zeros(j, d, w);
    double *u = zeros(j, 1, w);
    if (!lam || !v || !R || !JR || !B || !sig || !x || !y || !u || h->eigh(j->call, w, G, lam, v))
        return h->failed(j->call);
    double cut = lam[w - 1] * 1e-12;
    for (int32_t r = 0; r < w; r++) /* R = sqrt(lambda) v', JR = J R' */
        for (int32_t c = 0; c < w; c++)
            R[r * w + c] = lam[r] > cut ? sqrt(lam[r]) * v[c * w + r] : 0;
    for (int32_t r = 0; r < d; r++)
        for (int32_t c = 0; c < w; c++) {
            JR[r * w + c] = R[c * w + d + r];
            JR[(d + r) * w + c] = -R[c * w + r];
        }
    if (h->matmul(j->call, false, false, w, w, w, 1, R, w, JR, w, 0, B, w) ||
        h->skew_planes(j->call, w, B, sig, x, y))
        return h->failed(j->call);
    for (int32_t p = 0; p < k; p++) {
        if (!(sig[p] > sig[0] * 1e-12))
            break; /* the columns stay zero */
        for (int which = 0; which < 2; which++) {
            /* a gets s^(1/2) U J R'x / s, b gets -s^(1/2) U J R'y / s */
            const double *z = (which ? y : x) + (size_t)p * w;
            double s = (which ? -1 : 1) / sqrt(sig[p]), *to = which ? b : a;
            if (h->matmul(j->call, false, false, w, 1, w, s, JR, w, z, 1, 0, u, 1))
                return h->failed(j->call);
            for (int32_t i = 0; i < D1; i++) {
                double sum = 0;
                for (int32_t c = 0; c < d; c++)
                    sum += wq[i * d + c] * u[c] + wk[i * d + c] * u[d + c];
                to[i * k + p] = sum;
            }
        }
    }
    void *scratch[] = {g.data, lam, v, R, JR, B, sig, x, y, u};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        h->release(j->call, scratch[i]);
    return 0;
}

/* a, b (D+1, k) with kept qk' - kq' = a b' - b a'; wq, wk unscaled. */
static int best_planes(job *j, int32_t head, const double *wq, const double *wk, int32_t k,
                       double *a, double *b) {
    if (k == 0)
        return 0;
    if (j->calibrated)
        return calibrated_planes(j, head, wq, wk, k, a, b);
    /* kernel_planes gives (wq wk' - wk wq')/2 */
    int rc = j->host->kernel_planes(j->call, (size_t)j->D + 1, (size_t)j->d, wq, wk, (size_t)k, a,
                                    b, 0, NULL, NULL);
    for (int64_t i = 0; rc == 0 && i < ((int64_t)j->D + 1) * k; i++) {
        a[i] *= sqrt(2);
        b[i] *= sqrt(2);
    }
    return rc;
}

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
            diag.data[i] = j->heads[i] ? 0 : diag.data[i];
        return put(j, "diag", 1, j->H, 0, diag.data);
    }
    if (j->filter == 's') {
        sd_harray mean;
        if (h->calib_get(j->call, j->calib, j->layer, "d_mean", &mean))
            return h->failed(j->call);
        memcpy(value, mean.data, (size_t)j->H * sizeof *value);
    }
    if (j->every_head) {
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
        if (!j->heads[i])
            continue;
        for (int32_t r = 0; r < j->D; r++)
            wd.data[(int64_t)r * j->H + i] = 0;
        bd.data[i] = softplus_inverse(value[i] - j->d_floor);
    }
    return put(j, "wd", 2, j->D, j->H, wd.data) || put(j, "bd", 1, j->H, 0, bd.data)
               ? h->failed(j->call)
               : 0;
}

static int cut_sd(job *j, sd_hlayer_info *info) {
    const sd_host *h = j->host;
    if (j->kv != j->H)
        return h->fail(j->call, SD_FAIL_INVALID, "layer %d: S-D heads that share keys", j->layer);
    if (!j->all_planes) {
        sd_harray wq, wk, bq = {0}, bk = {0};
        if (part(j, "wq", &wq) || part(j, "wk", &wk) ||
            (j->bias && (part(j, "bq", &bq) || part(j, "bk", &bk))))
            return h->failed(j->call);
        int32_t D1 = j->D + 1, k = j->planes;
        int32_t width = j->every_head ? (k > 0 ? k : 1) : j->d; /* no routing: one plane of zeros */
        double *q = zeros(j, D1, j->d), *kk = zeros(j, D1, j->d), *a = zeros(j, D1, k),
               *b = zeros(j, D1, k);
        int64_t ld = (int64_t)j->H * width;
        double *nq = zeros(j, D1, ld), *nk = zeros(j, D1, ld);
        if (!q || !kk || !a || !b || !nq || !nk)
            return h->failed(j->call);
        for (int32_t hd = 0; hd < j->H; hd++) {
            if (h->cancelled(j->call))
                return h->failed(j->call);
            head_columns(j, &wq, &bq, hd, 1, q);
            head_columns(j, &wk, &bk, hd, 1, kk);
            bool cut = j->heads[hd];
            if (cut) {
                memset(a, 0, (size_t)D1 * (size_t)k * sizeof *a);
                memset(b, 0, (size_t)D1 * (size_t)k * sizeof *b);
                if (best_planes(j, hd, q, kk, k, a, b))
                    return h->failed(j->call);
            }
            int32_t n = cut ? k : j->d;
            for (int32_t i = 0; i < D1; i++)
                for (int32_t c = 0; c < n; c++) {
                    nq[i * ld + (int64_t)hd * width + c] = cut ? a[i * k + c] : q[i * j->d + c];
                    nk[i * ld + (int64_t)hd * width + c] = cut ? b[i * k + c] : kk[i * j->d + c];
                }
        }
        info->d_qk = width; /* the score's scale stays the original one */
        if (h->model_set_layer(j->call, j->out, j->layer, info) || put(j, "wq", 2, j->D, ld, nq) ||
            put(j, "wk", 2, j->D, ld, nk) ||
            (j->bias &&
             (put(j, "bq", 1, ld, 0, nq + j->D * ld) || put(j, "bk", 1, ld, 0, nk + j->D * ld))))
            return h->failed(j->call);
    }
    return filter_sd(j, info);
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

static int cut_standard(job *j, sd_hlayer_info *info) {
    const sd_host *h = j->host;
    if (j->all_planes && j->filter == 'k')
        return 0;
    sd_harray wq, wk, bq = {0}, bk = {0}, mean = {0};
    if (part(j, "wq", &wq) || part(j, "wk", &wk) ||
        (j->bias && (part(j, "bq", &bq) || part(j, "bk", &bk))) ||
        (j->filter == 's' && h->calib_get(j->call, j->calib, j->layer, "diag_mean", &mean)))
        return h->failed(j->call);
    int32_t D1 = j->D + 1, d = j->d, w = 2 * d, full = d < D1 / 2 ? d : D1 / 2;
    int32_t cut_planes = j->all_planes ? full : j->planes < full ? j->planes : full;
    int32_t P = j->every_head ? cut_planes : full; /* heads left alone keep all */
    int32_t fmax = w < D1 ? w : D1, fr = j->filter == 'k' || !j->every_head ? fmax : 0;
    double *q = zeros(j, D1, d), *k = zeros(j, D1, d), *a = zeros(j, D1, P), *b = zeros(j, D1, P),
           *f = zeros(j, D1, fr), *lam = zeros(j, 1, fr), *diag = zeros(j, 1, j->H);
    int64_t ldp = (int64_t)j->H * P, ldf = (int64_t)j->H * fr;
    double *ra = zeros(j, D1, ldp), *rb = zeros(j, D1, ldp), *rf = zeros(j, D1, ldf),
           *fl = zeros(j, 1, ldf);
    if (!q || !k || !a || !b || !f || !lam || !diag || !ra || !rb || !rf || !fl)
        return h->failed(j->call);
    for (int32_t hd = 0; hd < j->H; hd++) {
        if (h->cancelled(j->call))
            return h->failed(j->call);
        bool cut = j->heads[hd];
        int32_t n = cut ? cut_planes : full;
        head_columns(j, &wq, &bq, hd, j->scale, q);
        head_columns(j, &wk, &bk, hd / (j->H / j->kv), 1, k);
        if (cut && j->calibrated && !j->all_planes) {
            /* A = qk' - kq' is twice the routing */
            head_columns(j, &wq, &bq, hd, 1, q);
            memset(a, 0, (size_t)D1 * (size_t)n * sizeof *a);
            memset(b, 0, (size_t)D1 * (size_t)n * sizeof *b);
            if (n && calibrated_planes(j, hd, q, k, n, a, b))
                return h->failed(j->call);
            for (int64_t i = 0; i < (int64_t)D1 * n; i++)
                a[i] *= 0.5 * j->scale;
            head_columns(j, &wq, &bq, hd, j->scale, q);
        } else if (n && h->kernel_planes(j->call, (size_t)D1, (size_t)d, q, k, (size_t)n, a, b, 0,
                                         NULL, NULL)) {
            return h->failed(j->call);
        }
        for (int32_t i = 0; i < D1; i++)
            for (int32_t c = 0; c < n; c++) {
                ra[i * ldp + (int64_t)hd * P + c] = a[i * n + c];
                rb[i * ldp + (int64_t)hd * P + c] = b[i * n + c];
            }
        if (fr && (!cut || j->filter == 'k')) {
            if (h->kernel_planes(j->call, (size_t)D1, (size_t)d, q, k, 0, NULL, NULL, (size_t)fr, f,
                                 lam))
                return h->failed(j->call);
            for (int32_t i = 0; i < D1; i++)
                memcpy(rf + i * ldf + (int64_t)hd * fr, f + i * fr, (size_t)fr * sizeof *f);
            memcpy(fl + (int64_t)hd * fr, lam, (size_t)fr * sizeof *lam);
        } else if (cut && j->filter == 's') {
            diag[hd] = mean.data[hd];
        }
    }
    strcpy(info->kind, "bilinear");
    keep_window(info);
    info->planes = P;
    info->f_rank = fr;
    info->d_qk = 0;
    if (h->model_set_layer(j->call, j->out, j->layer, info) ||
        (P && (put(j, "ra", 2, D1, ldp, ra) || put(j, "rb", 2, D1, ldp, rb))) ||
        (fr && (put(j, "f", 2, D1, ldf, rf) || put(j, "fl", 1, ldf, 0, fl))) ||
        put(j, "diag", 1, j->H, 0, diag))
        return h->failed(j->call);
    return 0;
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

static int cut_layer(job *j) {
    const sd_host *h = j->host;
    sd_hlayer_info info = {.struct_size = sizeof info};
    if (h->model_layer(j->call, j->out, j->layer, &info))
        return h->failed(j->call);
    j->H = info.n_head;
    j->kv = info.n_kv_head;
    j->d = info.d_qk;
    j->scale = info.scale;
    j->heads = h->alloc(j->call, (size_t)j->H, 1);
    if (!j->heads || h->arg_range(j->call, "heads", "head", j->H, j->heads))
        return h->failed(j->call);
    j->every_head = true;
    bool any = false;
    for (int32_t i = 0; i < j->H; i++) {
        j->every_head &= j->heads[i] != 0;
        any |= j->heads[i] != 0;
    }
    if (!any)
        return 0;
    bool sd = info.scores == SD_SCORES_OF_SKEW;
    if (!j->all_planes && j->planes > j->d)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "expected planes 0..%d, got %d: a head of layer %d has dimension %d, so %d "
                       "planes",
                       j->d, j->planes, j->layer, j->d, j->d);
    return sd ? cut_sd(j, &info) : cut_standard(j, &info);
}

static int run(const sd_host *h, sd_call *call) {
    sd_hmodel *in = h->arg_model(call, "model");
    sd_hmodel_info mi = {.struct_size = sizeof mi};
    if (!in || h->model_info(call, in, &mi))
        return h->failed(call);
    if (mi.rope)
        return h->fail(
            call, SD_FAIL_INVALID,
            "%s rotates queries and keys (RoPE): the score is W_Q R W_K' with a rotation "
            "R that depends on the distance, so a cut of W_Q W_K' is not a cut of the "
            "scores; rotary heads are not truncated",
            h->model_name(call, in));
    job j = {.host = h, .call = call, .D = mi.d_model, .bias = mi.qkv_bias, .d_floor = mi.d_floor};
    const char *planes = h->arg_str(call, "planes");
    j.all_planes = strcmp(planes, "all") == 0;
    if (!j.all_planes) {
        char *end;
        long k = strtol(planes, &end, 10);
        if (end == planes || *end || k < 0 || k > 1 << 20)
            return h->fail(call, SD_FAIL_INVALID,
                           "expected planes as a number from 0 or \"all\", got \"%.40s\"", planes);
        j.planes = (int32_t)k;
    }
    j.filter = h->arg_str(call, "filter")[0];
    j.calibrated = strcmp(h->arg_str(call, "basis"), "calibrated") == 0 && !j.all_planes;
    unsigned char *layers = h->alloc(call, (size_t)mi.n_layer, 1);
    if (!layers || h->arg_range(call, "layers", "layer", mi.n_layer, layers))
        return h->failed(call);
    for (int32_t l = 0; l < mi.n_layer; l++)
        if (layers[l] && refuse(h, call, in, l))
            return h->failed(call);
    sd_htext *text = h->arg_text(call, "calib");
    if (j.calibrated || j.filter == 's') {
        const int32_t *ids;
        size_t n;
        if (!text)
            return h->fail(call, SD_FAIL_INVALID,
                           "%s needs a calibration text: calib=text \"file\" (not the one you will "
                           "score)",
                           j.filter == 's' ? "filter=\"scalar\"" : "basis=\"calibrated\"");
        if (h->text_ids(call, text, in, &ids, &n))
            return h->failed(call);
        j.calib = h->calibrate(call, in, ids, n, (int32_t)h->arg_int(call, "ctx"),
                               (int32_t)h->arg_int(call, "seqs"));
        if (!j.calib)
            return h->failed(call);
    }
    j.out = h->model_clone(call, in);
    if (!j.out)
        return h->failed(call);
    int rc = 0;
    for (j.layer = 0; rc == 0 && j.layer < mi.n_layer; j.layer++) {
        h->progress(call, "truncating", j.layer, mi.n_layer);
        if (layers[j.layer])
            rc = cut_layer(&j);
    }
    h->progress(call, "truncating", mi.n_layer, mi.n_layer);
    if (j.calib)
        h->calib_release(call, j.calib);
    if (rc) {
        h->model_release(call, j.out);
        return rc;
    }
    return h->return_model(call, j.out);
}

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

static const sd_op_desc ops[] = {{
    .struct_size = sizeof(sd_op_desc),
    .returns = SD_ARG_MODEL,
    .name = "truncate",
    .summary = "cuts routing to its strongest planes, filtering to a scalar or nothing",
    .details =
        "Returns a new model; the input is untouched. In S-D attention the routing is "
        "alpha (q k' - k q') and the filtering is the diagonal; a cut head keeps fewer query and "
        "key columns, and its score scale stays what it was. A standard head becomes a bilinear "
        "kernel with separate routing and filtering factors, biases included; cut at full rank it "
        "computes what it did before.\n\n"
        "The scalar that replaces the filtering is the mean over the calibration text, never over "
        "the text that is scored.\n\n"
        "basis=\"calibrated\" keeps the planes that are strongest in the scores over all pairs of "
        "calibration tokens. Whether it beats the plain weights is for a measurement to say.\n\n"
        "Rotary models are refused: with a rotation between queries and keys, a cut of their "
        "product is no cut of the scores.",
    .example = "n = truncate(m, {planes=2})\n"
               "assert(nll(n, t) > 0)\n"
               "x = truncate(g, {layers='0', planes='all', filter='none'})\n"
               "assert(lineage(x):row(0).op == 'truncate')",
    .returns_doc = "the cut model",
    .args = args,
    .n_args = sizeof args / sizeof *args,
    .run = run,
}};

SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_HEADER(ops),
    .name = "truncate",
    .version = "1.0",
    .summary = "cuts attention heads to their strongest routing planes",
};
