/* trace.c: trace.h. */
#include "spectral/trace.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "nn/forward.h"
#include "nn/hook.h"
#include "spectral/calib.h"
#include "spectral/internal.h"

enum { CELLS = 1 << 22 }; /* logits at a time */

void sd_trace_spell(const sd_model *m, int32_t id, sd_buf *out) {
    sd_tokenizer *t = sd_model_tokenizer(m);
    sd_buf b = {0};
    if (!t || sd_tokenizer_decode(t, &id, 1, sd_model_config(m)->vocab, false, &b, NULL) != SD_OK) {
        sd_buf_printf(out, "#%d", (int)id);
        sd_buf_free(&b);
        return;
    }
    size_t from = 0, to = b.n;
    while (from < to && b.p[from] == ' ' && (sd_buf_puts(out, "·"), true))
        from++;
    while (to > from && b.p[to - 1] == ' ')
        to--;
    if (to > from)
        sd_buf_visible(out, b.p + from, to - from, false);
    for (; to < b.n; to++)
        sd_buf_puts(out, "·");
    sd_buf_free(&b);
}

/* Of one row of logits, in f64. */
typedef struct row_stats {
    double logz, entropy;
    size_t arg, above; /* argmax; logits above the target's */
} row_stats;

static row_stats stats_of(const float *x, size_t v, int32_t target) {
    row_stats s = {0};
    double sum = 0, dot = 0;
    for (size_t i = 1; i < v; i++)
        s.arg = x[i] > x[s.arg] ? i : s.arg;
    double top = (double)x[s.arg];
    for (size_t i = 0; i < v; i++) {
        double d = (double)x[i] - top, e = exp(d);
        sum += e;
        dot += e * d;
        s.above += target >= 0 && x[i] > x[target];
    }
    s.logz = top + log(sum);
    s.entropy = log(sum) - dot / sum;
    return s;
}

static sd_status need_causal(const sd_model *m, const char *what, size_t n, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    if (!c->causal || !c->has_head)
        return sd_fail(err, SD_EINVAL, "%s: %s predicts no next token", what, sd_model_name(m));
    if (n < 2)
        return sd_fail(err, SD_EINVAL, "%s needs at least 2 tokens, got %zu", what, n);
    return SD_OK;
}

static sd_status window_size(const sd_model *m, const sd_trace_opts *o, size_t *ctx, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    if (c->pos == SD_POS_LEARNED && o->ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "window of %d tokens: the position table of %s holds %d",
                       o->ctx, sd_model_name(m), c->n_pos);
    *ctx = (size_t)(o->ctx > 0 ? o->ctx : sd_calib_ctx(c));
    return SD_OK;
}

typedef struct column_def {
    const char *name, *doc;
    sd_col_kind kind;
} column_def;

static sd_status add_columns(sd_table *t, const column_def *d, size_t n, sd_err *err) {
    for (size_t i = 0; i < n; i++)
        SD_TRY(sd_table_add_column(t, d[i].name, d[i].kind, d[i].doc, false, NULL, err));
    return SD_OK;
}

static sd_status token_row(sd_table *t, const sd_model *m, size_t position, int32_t id,
                           const float *logits, size_t v, double *loss, sd_err *err) {
    row_stats s = stats_of(logits, v, id);
    sd_buf b = {0};
    int row;
    *loss = s.logz - (double)logits[id];
    if (!isfinite(*loss))
        return sd_fail(err, SD_ENUMERIC, "non-finite loss at token %zu", position);
    SD_TRY(sd_table_add_row(t, &row, err));
    sd_table_set_int(t, row, "position", (int64_t)position);
    sd_table_set_int(t, row, "id", id);
    sd_table_set_num(t, row, "loss", *loss);
    sd_table_set_int(t, row, "rank", (int64_t)s.above + 1);
    sd_table_set_num(t, row, "entropy", s.entropy);
    sd_trace_spell(m, id, &b);
    sd_status st = sd_buf_status(&b, err);
    if (st == SD_OK)
        st = sd_table_set_str(t, row, "token", b.p ? b.p : "", err);
    sd_buf_free(&b);
    return st;
}

/* Inputs ids[0..len), scored ids[1..len]; at: position of ids[0]. */
static sd_status token_window(sd_table *t, sd_model *m, const int32_t *ids, size_t len, size_t at,
                              float *hidden, float *logits, size_t rows, double *sum,
                              const sd_run *run, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    size_t d = (size_t)c->d_model, v = (size_t)c->vocab;
    sd_forward_opts o = {.run = run};
    SD_TRY(sd_forward(m, ids, 1, (int)len, &o, hidden, NULL, err));
    for (size_t r = 0; r < len; r += rows) {
        size_t n = len - r < rows ? len - r : rows;
        SD_TRY(sd_check_cancel(err));
        SD_TRY(sd_forward_unembed(m, hidden + r * d, (int)n, false, run, logits, err));
        for (size_t i = 0; i < n; i++) {
            double loss;
            SD_TRY(token_row(t, m, at + r + i + 1, ids[r + i + 1], logits + i * v, v, &loss, err));
            *sum += loss;
        }
    }
    return SD_OK;
}

sd_status sd_trace_tokens(sd_model *m, const int32_t *ids, size_t n, const sd_trace_opts *opts,
                          const sd_run *run, sd_table **out, sd_err *err) {
    static const column_def cols[] = {{"position", "place in the text, from 0", SD_COL_INT},
                                      {"token", "the token; · is a space at its ends", SD_COL_STR},
                                      {"id", "its id", SD_COL_INT},
                                      {"loss", "−log of its probability, nats", SD_COL_NUM},
                                      {"rank", "1: the likeliest token", SD_COL_INT},
                                      {"entropy", "of the prediction, nats", SD_COL_NUM}};
    sd_trace_opts o = opts ? *opts : (sd_trace_opts){0};
    const sd_config *c = sd_model_config(m);
    size_t ctx, v = (size_t)c->vocab, rows = CELLS / v ? CELLS / v : 1;
    double sum = 0;
    *out = NULL;
    SD_TRY(need_causal(m, "tokens", n, err));
    SD_TRY(window_size(m, &o, &ctx, err));
    rows = rows < ctx ? rows : ctx;
    size_t n_win = (n - 1 + ctx - 1) / ctx;
    if (o.max_seqs > 0 && (size_t)o.max_seqs < n_win)
        n_win = (size_t)o.max_seqs;
    float *hidden = sd_alloc_raw(ctx * (size_t)c->d_model, sizeof *hidden, err);
    float *logits = sd_alloc_raw(rows * v, sizeof *logits, err);
    sd_table *t = sd_table_new("tokens", err);
    sd_status st = hidden && logits && t ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        st = add_columns(t, cols, sizeof cols / sizeof *cols, err);
    for (size_t w = 0; w < n_win && st == SD_OK; w++) {
        size_t at = w * ctx, len = n - 1 - at < ctx ? n - 1 - at : ctx;
        sd_run_progress(run, "tokens", (double)w, (double)n_win);
        st = token_window(t, m, ids + at, len, at, hidden, logits, rows, &sum, run, err);
    }
    sd_run_progress(run, "tokens", (double)n_win, (double)n_win);
    if (st == SD_OK) {
        double scored = sd_table_rows(t);
        st = sd_table_heading(t, err,
                              "%s: %.0f tokens scored of %zu given, windows of %zu; mean "
                              "loss %.4f nats",
                              sd_model_name(m), scored, n, ctx, sum / scored);
        if (st == SD_OK)
            st = sd_table_meta_num(t, "nll", sum / scored, err);
        if (st == SD_OK)
            st = sd_table_meta_num(t, "ctx", (double)ctx, err);
        if (st == SD_OK)
            st = sd_table_meta_str(t, "model", sd_model_name(m), err);
    }
    sd_free(hidden);
    sd_free(logits);
    if (st == SD_OK)
        *out = t;
    else
        sd_table_unref(t);
    return st;
}

/* ---- logit lens
 * ------------------------------------------------------------------------------------ */

typedef struct lens {
    sd_model *m;
    const int32_t *ids;
    size_t len, at;     /* inputs; the position whose guess is shown */
    float *x;           // (L+1, len, D): residual streams, last what meets the head
    float *own, *other; // logits of `rows` positions: the model's, a layer's
    size_t rows;
    struct {
        double nll, hit, agree, entropy, kl;
        int32_t top;
    } * sum; // (L+1)
} lens;

static sd_status keep_stream(void *ctx, sd_site *s, sd_err *err) {
    (void)err;
    lens *l = ctx;
    size_t k = s->point == SD_POINT_FINAL ? (size_t)s->cfg->n_layer : (size_t)s->layer;
    memcpy(l->x + k * s->n, s->x, s->n * sizeof *s->x);
    return SD_OK;
}

static void lens_row(lens *l, size_t k, size_t pos, const float *own, const float *x, size_t v) {
    row_stats a = stats_of(own, v, -1), b = stats_of(x, v, -1);
    double kl = 0;
    for (size_t i = 0; i < v; i++)
        kl += exp((double)own[i] - a.logz) * (((double)own[i] - a.logz) - ((double)x[i] - b.logz));
    l->sum[k].nll += b.logz - (double)x[l->ids[pos + 1]];
    l->sum[k].hit += b.arg == (size_t)l->ids[pos + 1];
    l->sum[k].agree += a.arg == b.arg;
    l->sum[k].entropy += b.entropy;
    l->sum[k].kl += kl;
    if (pos == l->at)
        l->sum[k].top = (int32_t)b.arg;
}

static sd_status lens_run(lens *l, const sd_run *run, sd_err *err) {
    const sd_config *c = sd_model_config(l->m);
    size_t d = (size_t)c->d_model, v = (size_t)c->vocab, L = (size_t)c->n_layer;
    sd_hook h[2] = {{SD_POINT_RESID_PRE, -1, keep_stream, l}, {SD_POINT_FINAL, -1, keep_stream, l}};
    sd_forward_opts o = {.run = run, .hooks = h, .n_hooks = 2};
    SD_TRY(sd_forward(l->m, l->ids, 1, (int)l->len, &o, NULL, NULL, err));
    for (size_t r = 0; r < l->len; r += l->rows) {
        size_t n = l->len - r < l->rows ? l->len - r : l->rows;
        SD_TRY(
            sd_forward_unembed(l->m, l->x + (L * l->len + r) * d, (int)n, false, run, l->own, err));
        for (size_t k = 0; k <= L; k++) {
            SD_TRY(sd_check_cancel(err));
            sd_run_progress(run, "lens", (double)(r * (L + 1) + k * n), (double)(l->len * (L + 1)));
            if (k < L)
                SD_TRY(sd_forward_unembed(l->m, l->x + (k * l->len + r) * d, (int)n, true, run,
                                          l->other, err));
            for (size_t i = 0; i < n; i++)
                lens_row(l, k, r + i, l->own + i * v, (k < L ? l->other : l->own) + i * v, v);
        }
    }
    sd_run_progress(run, "lens", 1, 1);
    return SD_OK;
}

static sd_status lens_table(const lens *l, sd_table **out, sd_err *err) {
    static const column_def cols[] = {
        {"layer", "the stream in front of this layer; the last row is the model itself",
         SD_COL_INT},
        {"nll", "mean loss of the next token, nats", SD_COL_NUM},
        {"accuracy", "share of tokens that are the best guess", SD_COL_NUM},
        {"agree", "share of best guesses that are the model's", SD_COL_NUM},
        {"entropy", "of the prediction, nats", SD_COL_NUM},
        {"kl", "divergence of the model's prediction from this one, nats", SD_COL_NUM},
        {"top", "best guess at the position of the heading", SD_COL_STR}};
    sd_table *t = *out = sd_table_new("lens", err);
    const sd_model *m = l->m;
    double n = (double)l->len;
    sd_buf b = {0};
    if (!t)
        return SD_ENOMEM;
    SD_TRY(add_columns(t, cols, sizeof cols / sizeof *cols, err));
    sd_trace_spell(m, l->ids[l->at], &b);
    sd_buf_puts(&b, " → ");
    sd_trace_spell(m, l->ids[l->at + 1], &b);
    sd_status st = sd_buf_status(&b, err);
    if (st == SD_OK)
        st = sd_table_heading(t, err,
                              "%s: the residual stream in front of every layer through final norm "
                              "and output head; %zu tokens; top at %zu: %s",
                              sd_model_name(m), l->len, l->at, b.p);
    sd_buf_free(&b);
    SD_TRY(st);
    SD_TRY(sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_TRY(sd_table_meta_num(t, "at", (double)l->at, err));
    for (int k = 0; k <= sd_model_config(m)->n_layer; k++) {
        int row;
        SD_TRY(sd_table_add_row(t, &row, err));
        sd_table_set_int(t, row, "layer", k);
        sd_table_set_num(t, row, "nll", l->sum[k].nll / n);
        sd_table_set_num(t, row, "accuracy", l->sum[k].hit / n);
        sd_table_set_num(t, row, "agree", l->sum[k].agree / n);
        sd_table_set_num(t, row, "entropy", l->sum[k].entropy / n);
        sd_table_set_num(t, row, "kl", l->sum[k].kl / n);
        sd_buf top = {0};
        sd_trace_spell(m, l->sum[k].top, &top);
        st = sd_buf_status(&top, err);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "top", top.p ? top.p : "", err);
        sd_buf_free(&top);
        SD_TRY(st);
    }
    return SD_OK;
}

sd_status sd_trace_lens(sd_model *m, const int32_t *ids, size_t n, const sd_trace_opts *opts,
                        const sd_run *run, sd_table **out, sd_err *err) {
    sd_trace_opts o = opts ? *opts : (sd_trace_opts){.at = -1};
    const sd_config *c = sd_model_config(m);
    size_t ctx, v = (size_t)c->vocab, L = (size_t)c->n_layer, streams;
    lens l = {.m = m, .ids = ids};
    *out = NULL;
    SD_TRY(need_causal(m, "lens", n, err));
    SD_TRY(window_size(m, &o, &ctx, err));
    l.len = n - 1 < ctx ? n - 1 : ctx;
    int64_t at = o.at < 0 ? (int64_t)l.len + o.at : o.at;
    if (at < 0 || at >= (int64_t)l.len)
        return sd_fail(err, SD_EINVAL, "at %d: %zu positions are scored, from 0", o.at, l.len);
    l.at = (size_t)at;
    l.rows = CELLS / v ? CELLS / v : 1;
    l.rows = l.rows < l.len ? l.rows : l.len;
    if (!sd_mul_size((L + 1) * l.len, (size_t)c->d_model, &streams))
        return sd_fail(err, SD_ENOMEM, "streams of %zu tokens overflow memory", l.len);
    l.x = sd_alloc_raw(streams, sizeof *l.x, err);
    l.own = sd_alloc_raw(l.rows * v, sizeof *l.own, err);
    l.other = sd_alloc_raw(l.rows * v, sizeof *l.other, err);
    l.sum = sd_alloc(L + 1, sizeof *l.sum, err);
    sd_status st = l.x && l.own && l.other && l.sum ? SD_OK : SD_ENOMEM;
    if (st == SD_OK)
        st = lens_run(&l, run, err);
    if (st == SD_OK)
        st = lens_table(&l, out, err);
    if (st != SD_OK) {
        sd_table_unref(*out);
        *out = NULL;
    }
    sd_free(l.x);
    sd_free(l.own);
    sd_free(l.other);
    sd_free(l.sum);
    return st;
}
