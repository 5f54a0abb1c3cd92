#include "train/adamw.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/linalg.h"
#include "train/adamw_i.h"

enum { PIECE = 1 << 16 };

typedef struct piece {
    size_t offset, n;
    bool decay;
} piece;

struct sd_optim {
    sd_adamw p;
    size_t size, n_pieces, width;
    bool f64;
    piece *pieces;
    double *partial; /* (n_pieces) */
    void *m, *v;
};

/* Pieces of the chosen slices; with `out` NULL they are counted. */
static size_t cut(const sd_net *net, const bool *train, piece *out) {
    size_t k = 0;
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        if (train && !train[i])
            continue;
        for (size_t at = 0; at < s->n; at += PIECE, k++)
            if (out)
                out[k] = (piece){s->offset + at, s->n - at < PIECE ? s->n - at : PIECE, s->decay};
    }
    return k;
}

sd_status sd_optim_new(const sd_net *net, const sd_adamw *p, const bool *train, sd_optim **out,
                       sd_err *err) {
    *out = NULL;
    sd_optim *o = sd_alloc(1, sizeof *o, err);
    if (!o)
        return SD_ENOMEM;
    o->p = *p;
    o->size = sd_net_size(net);
    o->f64 = sd_net_dtype(net) == SD_F64;
    o->width = o->f64 ? sizeof(double) : sizeof(float);
    size_t all = cut(net, NULL, NULL); /* room for any choice */
    o->pieces = sd_alloc(all ? all : 1, sizeof *o->pieces, err);
    o->partial = sd_alloc(all ? all : 1, sizeof *o->partial, err);
    o->m = sd_alloc(o->size, o->width, err);
    o->v = sd_alloc(o->size, o->width, err);
    if (!o->pieces || !o->partial || !o->m || !o->v) {
        sd_optim_free(o);
        return SD_ENOMEM;
    }
    sd_optim_choose(o, net, train);
    *out = o;
    return SD_OK;
}

void sd_optim_choose(sd_optim *o, const sd_net *net, const bool *train) {
    o->n_pieces = cut(net, train, o->pieces);
}

void sd_optim_set(sd_optim *o, const sd_adamw *p) {
    o->p = *p;
}

sd_status sd_adamw_check(const sd_adamw *p, sd_err *err) {
    if (!(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1))
        return sd_fail(err, SD_EINVAL, "beta1 = %g and beta2 = %g must be in [0, 1)", p->beta1,
                       p->beta2);
    if (!(p->eps >= 0 && isfinite(p->eps) && p->weight_decay >= 0 && isfinite(p->weight_decay)))
        return sd_fail(err, SD_EINVAL, "eps = %g and decay = %g must be finite, not negative",
                       p->eps, p->weight_decay);
    return SD_OK;
}

void sd_optim_free(sd_optim *o) {
    if (!o)
        return;
    sd_free(o->pieces);
    sd_free(o->partial);
    sd_free(o->m);
    sd_free(o->v);
    sd_free(o);
}

void *sd_optim_m(sd_optim *o) {
    return o->m;
}
void *sd_optim_v(sd_optim *o) {
    return o->v;
}

typedef struct job {
    sd_optim *o;
    char *x;
    const char *g;
    sd_adamw_coef c;
} job;

static void norm_piece(void *ctx, size_t i, int worker) {
    (void)worker;
    job *j = ctx;
    const piece *p = &j->o->pieces[i];
    const char *g = j->g + p->offset * j->o->width;
    j->o->partial[i] =
        j->o->f64 ? sd_adamw_sum_squares_f64(p->n, g) : sd_adamw_sum_squares_f32(p->n, g);
}

double sd_optim_grad_norm(sd_optim *o, sd_net_ws *ws, const void *grad) {
    job j = {.o = o, .g = grad};
    sd_net_parallel(ws, o->n_pieces, norm_piece, &j);
    double s = 0.0;
    for (size_t i = 0; i < o->n_pieces; i++)
        s += o->partial[i];
    return sqrt(s);
}

static void step_piece(void *ctx, size_t i, int worker) {
    (void)worker;
    job *j = ctx;
    const piece *p = &j->o->pieces[i];
    size_t at = p->offset * j->o->width;
    sd_adamw_coef c = j->c;
    c.decay = p->decay ? c.lr * j->o->p.weight_decay : 0.0;
    (j->o->f64 ? sd_adamw_update_f64 : sd_adamw_update_f32)(
        p->n, j->x + at, j->g + at, (char *)j->o->m + at, (char *)j->o->v + at, &c);
}

void sd_optim_step(sd_optim *o, sd_net *net, sd_net_ws *ws, const void *grad, double grad_scale,
                   double lr, int64_t t) {
    job j = {.o = o,
             .x = sd_net_params(net),
             .g = grad,
             .c = {.b1 = o->p.beta1,
                   .b2 = o->p.beta2,
                   .eps = o->p.eps,
                   .lr = lr,
                   .c1 = 1.0 / (1.0 - pow(o->p.beta1, (double)t)),
                   .c2 = 1.0 / (1.0 - pow(o->p.beta2, (double)t)),
                   .scale = grad_scale}};
    sd_net_parallel(ws, o->n_pieces, step_piece, &j);
}

const char *sd_optim_nonfinite(const sd_net *net, const void *flat) {
    for (size_t i = 0; i < sd_net_n_slices(net); i++) {
        const sd_net_slice *s = sd_net_slice_at(net, i);
        size_t bad = sd_net_dtype(net) == SD_F64
                         ? sd_first_nonfinite_f64((const double *)flat + s->offset, s->n)
                         : sd_first_nonfinite_f32((const float *)flat + s->offset, s->n);
        if (bad < s->n)
            return s->name;
    }
    return NULL;
}
