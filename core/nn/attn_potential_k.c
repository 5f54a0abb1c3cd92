/* Kind "potential": routing that is a pure potential is, under causal softmax, a per-key bias w_j
 * and an O(N) recurrence (METHOD §7.3): o_i = (Σ_{j<i} e^{w_j} v_j + e^{w_i − d_i} v_i) / (same
 * without v), d_i = 0 for standard heads. Running maximum for safety; everything in f64. */
#include "nn/attn.h"
#include "nn/real.h"

static size_t scratch(const sd_attn_args *a, bool backward) {
    (void)backward;
    /* f64 accumulators (d_v + 2), and the running maximum of each row */
    return 2 * ((size_t)a->d_v + 2 + (size_t)a->tokens);
}

static double key_w(const sd_attn_args *a, size_t r, int h) {
    return (double)((const real *)a->proj)[r * a->ld + a->off[SD_SLOT_W] + (size_t)h];
}

static double self_d(const sd_attn_args *a, size_t r, int h) {
    return a->dval ? (double)((const real *)a->dval)[r * (size_t)a->n_head + (size_t)h] : 0;
}

/* One step: num, *den hold Σ_{j<i} e^{w_j − m} (v_j, 1); writes o and log of the full denominator,
 * then takes token i in. */
static void step(const sd_attn_args *a, size_t r, int g, int h, double *num, double *den, double *m,
                 real *lse) {
    size_t dv = (size_t)a->d_v;
    const real *v = (const real *)a->proj + r * a->ld + a->off[SD_SLOT_V] + (size_t)g * dv;
    real *o = (real *)a->o + r * (size_t)a->n_head * dv + (size_t)h * dv;
    double w = key_w(a, r, h), mn = w > *m ? w : *m;
    if (mn > *m) {
        double c = exp(*m - mn);
        for (size_t j = 0; j < dv; j++)
            num[j] *= c;
        *den *= c;
        *m = mn;
    }
    /* the self term may outweigh or vanish on its own scale */
    double ws = w - self_d(a, r, h), mx = *den > 0 ? mn : ws;
    double cs = exp(mn - mx), es = exp(ws - mx), z = *den * cs + es;
    for (size_t j = 0; j < dv; j++)
        o[j] = (real)((num[j] * cs + es * (double)v[j]) / z);
    if (lse)
        *lse = (real)(mx + log(z));
    double e = exp(w - mn);
    for (size_t j = 0; j < dv; j++)
        num[j] += e * (double)v[j];
    *den += e;
}

static void forward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v;
    double *num = work;
    for (int h = g * group; h < (g + 1) * group; h++) {
        double den = 0, m = -INFINITY;
        memset(num, 0, dv * sizeof *num);
        for (size_t i = 0; i < t; i++)
            step(a, (size_t)b * t + i, g, h, num, &den, &m,
                 a->lse ? (real *)a->lse + (size_t)(b * a->n_head + h) * t + i : NULL);
    }
}

/* P_ij = e^{w_j − lse_i}; with G_ij = P_ij (dO_i·v_j − dO_i·O_i): dw_j = Σ_i G_ij, and
 * Σ_{i>j} e^{−lse_i} (dO_i, dO_i·O_i) is a sum from the right. e^{w_j} and e^{−lse_i} are balanced
 * by a running shift c ≥ −lse of the rows taken in. */
static void backward(const sd_attn_args *a, int b, int g, void *work) {
    int group = a->n_head / a->n_kv;
    size_t t = (size_t)a->tokens, dv = (size_t)a->d_v, od = (size_t)a->n_head * dv;
    double *acc = work;
    for (size_t i = 0; i < t; i++)
        memset((real *)a->dproj + ((size_t)b * t + i) * a->ld + a->off[SD_SLOT_V] + (size_t)g * dv,
               0, dv * sizeof(real));
    for (int h = g * group; h < (g + 1) * group; h++) {
        const real *lse = (const real *)a->lse + (size_t)(b * a->n_head + h) * t;
        double dsum = 0, c = -INFINITY;
        memset(acc, 0, dv * sizeof *acc);
        for (size_t i = t; i-- > 0;) {
            size_t r = (size_t)b * t + i, at = r * od + (size_t)h * dv;
            const real *go = (const real *)a->d_o + at, *o = (const real *)a->o + at;
            const real *v = (const real *)a->proj + r * a->ld + a->off[SD_SLOT_V] + (size_t)g * dv;
            real *row = (real *)a->dproj + r * a->ld,
                 *dvr = row + a->off[SD_SLOT_V] + (size_t)g * dv;
            double w = key_w(a, r, h), p0 = exp(w - self_d(a, r, h) - (double)lse[i]);
            double pl = c > -INFINITY ? exp(w + c) : 0, gov = 0, goo = 0, accv = 0;
            for (size_t j = 0; j < dv; j++) {
                gov += (double)go[j] * (double)v[j];
                goo += (double)go[j] * (double)o[j];
                accv += acc[j] * (double)v[j];
                dvr[j] += (real)(p0 * (double)go[j] + pl * acc[j]);
            }
            double g0 = p0 * (gov - goo);
            row[a->off[SD_SLOT_W] + (size_t)h] = (real)(g0 + pl * (accv - dsum));
            if (a->has[SD_SLOT_U] && a->dval) {
                real u = ((const real *)a->proj)[r * a->ld + a->off[SD_SLOT_U] + (size_t)h];
                row[a->off[SD_SLOT_U] + (size_t)h] = (real)-g0 * r_sigmoid(u);
            }
            double cn = -(double)lse[i];
            if (cn > c) {
                double f = c > -INFINITY ? exp(c - cn) : 0;
                for (size_t j = 0; j < dv; j++)
                    acc[j] *= f;
                dsum *= f;
                c = cn;
            }
            double e = exp(cn - c);
            for (size_t j = 0; j < dv; j++)
                acc[j] += e * (double)go[j];
            dsum += e * goo;
        }
    }
}

static size_t state_size(const sd_attn_args *a) {
    return 2 * (size_t)(a->n_head / a->n_kv) * ((size_t)a->d_v + 3);
}

static void decode(const sd_attn_args *a, int b, int g, int t, void *state, void *work) {
    (void)work;
    int group = a->n_head / a->n_kv;
    size_t dv = (size_t)a->d_v;
    for (int h = g * group; h < (g + 1) * group; h++) {
        double *s = (double *)state + (size_t)(h - g * group) * (dv + 3);
        if (t == 0)
            s[dv + 1] = -INFINITY;
        step(a, (size_t)(b * a->tokens + t - a->first), g, h, s, &s[dv], &s[dv + 1], NULL);
    }
}

extern const sd_attn_ops SD_R(sd_attn_potential);
const sd_attn_ops SD_R(sd_attn_potential) = {scratch, forward, backward, state_size, decode};
