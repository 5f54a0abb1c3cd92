/* eval.c: perplexity by windows, paired comparison, masked pseudo-perplexity, induction recall
 * (METHOD §9). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "nn/forward.h"
#include "spectral/internal.h"

enum { BATCH_TOKENS = 4096, BATCH_MAX = 64, BOOTSTRAP = 10000, DEFAULT_CTX = 1024 };

typedef struct windows {
    size_t n;
    double *nll;   // (n) Σ over the window's scored tokens
    double *count; // (n)
    double sum, scored;
    size_t ctx, stride, dropped;
    bool bos, masked;
    bool had_bos; /* the text begins with the BOS: none is put before it */
} windows;

static void windows_free(windows *w) {
    sd_free(w->nll);
    sd_free(w->count);
    *w = (windows){0};
}

static sd_status windows_alloc(windows *w, size_t n, sd_err *err) {
    w->n = n;
    w->nll = sd_alloc(n + 1, sizeof *w->nll, err);
    w->count = sd_alloc(n + 1, sizeof *w->count, err);
    if (!w->nll || !w->count) {
        windows_free(w);
        return SD_ENOMEM;
    }
    return SD_OK;
}

static int batch_of(size_t tokens) {
    size_t b = BATCH_TOKENS / tokens;
    return (int)(b < 1 ? 1 : b > BATCH_MAX ? BATCH_MAX : b);
}

static sd_status window_size(const sd_model *m, const sd_eval_opts *o, const sd_run *run,
                             size_t *ctx, size_t *stride, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    if (o->ctx < 0 || o->stride < 0)
        return sd_fail(err, SD_EINVAL, "ctx and stride cannot be negative");
    if (c->pos == SD_POS_LEARNED && o->ctx > c->n_pos)
        return sd_fail(err, SD_EINVAL, "window of %d tokens: the position table of %s holds %d",
                       o->ctx, sd_model_name(m), c->n_pos);
    if (c->pos != SD_POS_LEARNED && o->ctx > c->n_pos && c->n_pos > 0)
        sd_run_log(run, SD_LOG_WARN, "window of %d tokens: %s was trained on %d", o->ctx,
                   sd_model_name(m), c->n_pos);
    size_t dflt = DEFAULT_CTX;
    if (c->n_pos > 0 && (c->pos == SD_POS_LEARNED || c->n_pos < DEFAULT_CTX))
        dflt = (size_t)c->n_pos;
    *ctx = o->ctx ? (size_t)o->ctx : dflt;
    *stride = o->stride ? (size_t)o->stride : *ctx;
    if (*stride > *ctx)
        return sd_fail(err, SD_EINVAL,
                       "stride %zu is longer than the window of %zu: tokens between "
                       "windows would not be scored",
                       *stride, *ctx);
    if (o->hf_convention && *stride != *ctx)
        return sd_fail(err, SD_EINVAL, "the hf convention has stride = ctx: %zu, not %zu", *ctx,
                       *stride);
    return SD_OK;
}

static sd_status find_bos(const sd_model *m, int32_t *id, sd_err *err) {
    *id = sd_model_config(m)->bos;
    sd_tokenizer *t = sd_model_tokenizer(m);
    if (*id < 0 && t)
        *id = sd_tokenizer_special(t, "bos");
    if (*id < 0)
        return sd_fail(err, SD_EINVAL, "bos: %s names no BOS token", sd_model_name(m));
    return SD_OK;
}

/* One batch of windows starting at input `start[i]`, all `len` long; targets before `from[i]` (an
 * index into seq) are not scored. */
typedef struct span {
    size_t start, len, from;
} span;

static sd_status score_spans(sd_model *m, const int32_t *seq, const span *sp, size_t n, windows *w,
                             const sd_run *run, sd_err *err) {
    sd_status st = SD_OK;
    size_t longest = 1;
    for (size_t i = 0; i < n; i++)
        longest = sp[i].len > longest ? sp[i].len : longest;
    size_t cap = (size_t)batch_of(longest) * longest;
    int32_t *ids = sd_alloc(cap, sizeof *ids, err), *targets = sd_alloc(cap, sizeof *targets, err);
    double *nll = sd_alloc(cap, sizeof *nll, err);
    if (!ids || !targets || !nll) {
        st = SD_ENOMEM;
        goto out;
    }
    sd_forward_opts fo = {.run = run};
    for (size_t i = 0; i < n;) {
        size_t len = sp[i].len, b = 0, most = (size_t)batch_of(longest);
        while (i + b < n && b < most && sp[i + b].len == len)
            b++;
        for (size_t j = 0; j < b; j++)
            for (size_t t = 0; t < len; t++) {
                size_t at = sp[i + j].start + t;
                ids[j * len + t] = seq[at];
                targets[j * len + t] = at + 1 >= sp[i + j].from ? seq[at + 1] : -1;
            }
        sd_run_progress(run, "perplexity", (double)i, (double)n);
        SD_GO(st, out, sd_check_cancel(err));
        SD_GO(st, out, sd_forward_nll(m, ids, targets, (int)b, (int)len, &fo, nll, err));
        for (size_t j = 0; j < b; j++)
            for (size_t t = 0; t < len; t++) {
                if (targets[j * len + t] < 0)
                    continue;
                double x = nll[j * len + t];
                if (!isfinite(x)) {
                    st = sd_fail(err, SD_ENUMERIC, "non-finite loss in window %zu at token %zu",
                                 i + j, sp[i + j].start + t + 1);
                    goto out;
                }
                w->nll[i + j] += x;
                w->count[i + j] += 1;
            }
        i += b;
    }
    sd_run_progress(run, "perplexity", (double)n, (double)n);
out:
    sd_free(ids);
    sd_free(targets);
    sd_free(nll);
    return st;
}

static sd_status causal_windows(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *o,
                                windows *w, const sd_run *run, sd_err *err) {
    sd_status st = SD_OK;
    int32_t bos = -1;
    span *sp = NULL;
    int32_t *seq = NULL;
    if (o->bos)
        SD_TRY(find_bos(m, &bos, err));
    w->had_bos = o->bos && n > 0 && ids[0] == bos;
    const bool add = o->bos && !w->had_bos;
    size_t total = n + add, used = 0;
    if (total < 2)
        return sd_fail(err, SD_EINVAL,
                       "perplexity needs at least 2 tokens (1 is enough with a BOS), got %zu", n);
    size_t ctx = w->ctx, stride = w->stride;
    sp = sd_alloc(total / stride + 2, sizeof *sp, err);
    seq = sd_alloc_raw(total, sizeof *seq, err);
    if (!sp || !seq) {
        st = SD_ENOMEM;
        goto out;
    }
    if (add)
        seq[0] = bos;
    memcpy(seq + (total - n), ids, n * sizeof *seq);
    if (o->hf_convention) {
        // Disjoint windows of ctx tokens, the first token of each unscored.
        for (size_t s = 0; s < total; s += ctx) {
            size_t len = total - s < ctx ? total - s : ctx;
            if (len < 2)
                w->dropped = len; // a single token has nothing to predict it
            else
                sp[used++] = (span){s, len - 1, s + 1};
        }
    } else {
        size_t next = 1; // first target no window has had
        for (size_t s = 0; next < total; s += stride) {
            size_t len = total - 1 - s < ctx ? total - 1 - s : ctx;
            sp[used++] = (span){s, len, next};
            next = s + len + 1;
        }
    }
    SD_GO(st, out, windows_alloc(w, used, err));
    st = score_spans(m, seq, sp, used, w, run, err);
out:
    sd_free(sp);
    sd_free(seq);
    return st;
}

/* Each content token is scored with itself masked, [CLS] and [SEP] around the window unscored. */
static sd_status masked_windows(sd_model *m, const int32_t *ids, size_t n, windows *w,
                                const sd_run *run, sd_err *err) {
    const sd_config *c = sd_model_config(m);
    sd_tokenizer *tok = sd_model_tokenizer(m);
    if (!c->has_head)
        return sd_fail(err, SD_EINVAL, "%s has no masked-token head: pseudo-perplexity needs one",
                       sd_model_name(m));
    int32_t mask = tok ? sd_tokenizer_special(tok, "mask") : -1;
    int32_t cls = tok ? sd_tokenizer_special(tok, "cls") : -1;
    int32_t sep = tok ? sd_tokenizer_special(tok, "sep") : -1;
    if (mask < 0)
        return sd_fail(err, SD_EINVAL, "%s: the tokenizer names no mask token", sd_model_name(m));
    size_t around = (size_t)(cls >= 0) + (size_t)(sep >= 0);
    if (w->ctx <= around)
        return sd_fail(err, SD_EINVAL, "window of %zu tokens has no room beside [CLS] and [SEP]",
                       w->ctx);
    if (w->stride != w->ctx)
        return sd_fail(err, SD_EINVAL,
                       "masked pseudo-perplexity has no overlapping windows: "
                       "stride %zu, ctx %zu",
                       w->stride, w->ctx);
    sd_status st = SD_OK;
    size_t content = w->ctx - around, m_ids = 0, cap = (size_t)batch_of(w->ctx) * w->ctx;
    int32_t *text = sd_alloc(n + 1, sizeof *text, err);
    int32_t *in = sd_alloc(cap, sizeof *in, err), *targets = sd_alloc(cap, sizeof *targets, err);
    double *nll = sd_alloc(cap, sizeof *nll, err);
    if (!text || !in || !targets || !nll) {
        st = SD_ENOMEM;
        goto out;
    }
    for (size_t i = 0; i < n; i++) // specials the caller's tokenization added
        if (ids[i] != cls && ids[i] != sep)
            text[m_ids++] = ids[i];
    if (!m_ids) {
        st =
            sd_fail(err, SD_EINVAL, "pseudo-perplexity needs at least 1 token beside [CLS], [SEP]");
        goto out;
    }
    SD_GO(st, out, windows_alloc(w, (m_ids + content - 1) / content, err));
    sd_forward_opts fo = {.run = run};
    double done = 0;
    for (size_t win = 0; win < w->n; win++) {
        size_t start = win * content, k = m_ids - start < content ? m_ids - start : content;
        size_t len = k + around, most = (size_t)batch_of(w->ctx), lead = cls >= 0;
        for (size_t p = 0; p < k; p += most) {
            size_t b = k - p < most ? k - p : most;
            for (size_t j = 0; j < b; j++) {
                int32_t *row = in + j * len, *tg = targets + j * len;
                for (size_t t = 0; t < len; t++)
                    tg[t] = -1;
                if (lead)
                    row[0] = cls;
                memcpy(row + lead, text + start, k * sizeof *row);
                if (sep >= 0)
                    row[len - 1] = sep;
                tg[lead + p + j] = row[lead + p + j];
                row[lead + p + j] = mask;
            }
            sd_run_progress(run, "pseudo-perplexity", done, (double)m_ids);
            SD_GO(st, out, sd_check_cancel(err));
            SD_GO(st, out, sd_forward_nll(m, in, targets, (int)b, (int)len, &fo, nll, err));
            for (size_t j = 0; j < b; j++) {
                double x = nll[j * len + lead + p + j];
                if (!isfinite(x)) {
                    st = sd_fail(err, SD_ENUMERIC, "non-finite loss in window %zu at token %zu",
                                 win, start + p + j);
                    goto out;
                }
                w->nll[win] += x;
                w->count[win] += 1;
            }
            done += (double)b;
        }
    }
    sd_run_progress(run, "pseudo-perplexity", (double)m_ids, (double)m_ids);
out:
    sd_free(text);
    sd_free(in);
    sd_free(targets);
    sd_free(nll);
    return st;
}

static sd_status run_windows(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *o,
                             size_t ctx, size_t stride, windows *w, const sd_run *run,
                             sd_err *err) {
    *w = (windows){.ctx = ctx, .stride = stride, .bos = o->bos};
    w->masked = !sd_model_config(m)->causal;
    sd_status st = w->masked ? masked_windows(m, ids, n, w, run, err)
                             : causal_windows(m, ids, n, o, w, run, err);
    if (st != SD_OK) {
        windows_free(w);
        return st;
    }
    for (size_t i = 0; i < w->n; i++) {
        w->sum += w->nll[i];
        w->scored += w->count[i];
    }
    // 0 is "not checked" too: a zeroed options struct must not demand an empty text.
    if (o->expect_tokens > 0 && (double)o->expect_tokens != w->scored) {
        st = sd_fail(err, SD_EINVAL, "expected %" PRId64 " scored tokens, got %.0f (%zu given)",
                     o->expect_tokens, w->scored, n);
        windows_free(w);
    }
    return st;
}

static sd_status receipt(sd_table *t, const windows *w, const sd_eval_opts *o, size_t n,
                         sd_err *err) {
    SD_TRY(
        sd_table_heading(t, err,
                         "%.0f tokens scored of %zu given, %zu windows, ctx %zu, stride %zu, %s, "
                         "%s",
                         w->scored, n, w->n, w->ctx, w->stride, w->bos ? "BOS" : "no BOS",
                         w->masked ? "each token masked in turn, [CLS] and [SEP] not scored"
                         : o->hf_convention ? "first token of each window not scored (hf)"
                                            : "every token but the first scored once"));
    if (w->had_bos)
        SD_TRY(sd_table_note(t, err,
                             "the text begins with a BOS already: no second one is put "
                             "before it"));
    if (w->dropped)
        SD_TRY(sd_table_note(t, err, "the last token stands alone in its window and is dropped"));
    return SD_OK;
}

static sd_status column(sd_table *t, const char *name, sd_col_kind kind, const char *doc,
                        sd_err *err) {
    return sd_table_add_column(t, name, kind, doc, false, NULL, err);
}

sd_status sd_eval_ppl(sd_model *m, const int32_t *ids, size_t n, const sd_eval_opts *opts,
                      const sd_run *run, sd_table **out, sd_err *err) {
    sd_eval_opts o = opts ? *opts : (sd_eval_opts){.expect_tokens = -1};
    windows w;
    size_t ctx, stride;
    *out = NULL;
    SD_TRY(window_size(m, &o, run, &ctx, &stride, err));
    SD_TRY(run_windows(m, ids, n, &o, ctx, stride, &w, run, err));
    sd_status st = SD_OK;
    sd_table *t = sd_table_new("ppl", err);
    int row;
    if (!t) {
        st = SD_ENOMEM;
        goto out;
    }
    SD_GO(st, out, column(t, "ppl", SD_COL_NUM, "exp of the mean loss over scored tokens", err));
    SD_GO(st, out, column(t, "nll", SD_COL_NUM, "mean loss in nats a scored token", err));
    SD_GO(st, out, column(t, "tokens", SD_COL_INT, "tokens scored", err));
    SD_GO(st, out, column(t, "windows", SD_COL_INT, "windows", err));
    SD_GO(st, out, column(t, "ctx", SD_COL_INT, "tokens a window", err));
    SD_GO(st, out, column(t, "stride", SD_COL_INT, "tokens between window starts", err));
    SD_GO(st, out, column(t, "bos", SD_COL_INT, "1: the text starts with a BOS token", err));
    SD_GO(st, out, column(t, "convention", SD_COL_STR, "sd, hf or masked", err));
    SD_GO(st, out, column(t, "nll_window", SD_COL_VEC, "sum of losses by window", err));
    SD_GO(st, out, column(t, "count_window", SD_COL_VEC, "scored tokens by window", err));
    SD_GO(st, out, receipt(t, &w, &o, n, err));
    SD_GO(st, out, sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_GO(st, out, sd_table_add_row(t, &row, err));
    double nll = w.sum / w.scored;
    sd_table_set_num(t, row, "ppl", exp(nll));
    sd_table_set_num(t, row, "nll", nll);
    sd_table_set_int(t, row, "tokens", (int64_t)w.scored);
    sd_table_set_int(t, row, "windows", (int64_t)w.n);
    sd_table_set_int(t, row, "ctx", (int64_t)w.ctx);
    sd_table_set_int(t, row, "stride", (int64_t)w.stride);
    sd_table_set_int(t, row, "bos", w.bos);
    SD_GO(st, out,
          sd_table_set_str(t, row, "convention",
                           w.masked          ? "masked"
                           : o.hf_convention ? "hf"
                                             : "sd",
                           err));
    SD_GO(st, out, sd_table_set_vec(t, row, "nll_window", w.nll, w.n, err));
    SD_GO(st, out, sd_table_set_vec(t, row, "count_window", w.count, w.n, err));
    *out = t;
    t = NULL;
out:
    windows_free(&w);
    sd_table_unref(t);
    return st;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double p) {
    double at = p * (double)(n - 1);
    size_t i = (size_t)at;
    double f = at - (double)i;
    return i + 1 < n ? sorted[i] + f * (sorted[i + 1] - sorted[i]) : sorted[i];
}

sd_status sd_spectral_bootstrap(size_t n, const double *delta, const double *count, uint64_t seed,
                                double *lo, double *hi, sd_err *err) {
    double *draw = sd_alloc(BOOTSTRAP, sizeof *draw, err);
    if (!draw)
        return SD_ENOMEM;
    sd_rng g;
    sd_rng_seed(&g, seed);
    sd_status st = SD_OK;
    for (size_t b = 0; b < BOOTSTRAP && st == SD_OK; b++) {
        double s = 0, c = 0;
        for (size_t i = 0; i < n; i++) {
            size_t w = (size_t)sd_rng_below(&g, n);
            s += delta[w];
            c += count[w];
        }
        draw[b] = s / c;
        if (b % 64 == 0)
            st = sd_check_cancel(err);
    }
    if (st == SD_OK) {
        qsort(draw, BOOTSTRAP, sizeof *draw, ascending);
        *lo = percentile(draw, BOOTSTRAP, 0.025);
        *hi = percentile(draw, BOOTSTRAP, 0.975);
    }
    sd_free(draw);
    return st;
}

sd_status sd_eval_compare(sd_model *a, sd_model *b, const int32_t *ids, size_t n,
                          const sd_eval_opts *opts, uint64_t seed, const sd_run *run,
                          sd_table **out, sd_err *err) {
    sd_eval_opts o = opts ? *opts : (sd_eval_opts){.expect_tokens = -1};
    const sd_config *ca = sd_model_config(a), *cb = sd_model_config(b);
    windows wa = {0}, wb = {0};
    size_t ctx, stride, ctx_b, stride_b;
    *out = NULL;
    if (ca->vocab != cb->vocab)
        return sd_fail(err, SD_EINVAL,
                       "losses over different vocabularies cannot be compared: %d and %d entries",
                       ca->vocab, cb->vocab);
    if (ca->causal != cb->causal)
        return sd_fail(err, SD_EINVAL, "a causal model and an encoder cannot be compared");
    SD_TRY(window_size(a, &o, run, &ctx, &stride, err));
    SD_TRY(window_size(b, &o, run, &ctx_b, &stride_b, err));
    ctx = ctx_b < ctx ? ctx_b : ctx;
    stride = stride_b < stride ? stride_b : stride;
    sd_status st = SD_OK;
    sd_table *t = NULL;
    double *delta = NULL;
    SD_GO(st, out, run_windows(a, ids, n, &o, ctx, stride, &wa, run, err));
    SD_GO(st, out, run_windows(b, ids, n, &o, ctx, stride, &wb, run, err));
    if (wa.n != wb.n || wa.scored != wb.scored) {
        st = sd_fail(err, SD_EINVAL, "the two models score different tokens: %.0f and %.0f",
                     wa.scored, wb.scored);
        goto out;
    }
    delta = sd_alloc(wa.n + 1, sizeof *delta, err);
    t = delta ? sd_table_new("compare", err) : NULL;
    if (!t) {
        st = SD_ENOMEM;
        goto out;
    }
    double sum = 0, lo = 0, hi = 0;
    int row;
    for (size_t i = 0; i < wa.n; i++) {
        delta[i] = wb.nll[i] - wa.nll[i];
        sum += delta[i];
    }
    SD_GO(st, out, column(t, "ppl_a", SD_COL_NUM, "perplexity of the first model", err));
    SD_GO(st, out, column(t, "ppl_b", SD_COL_NUM, "perplexity of the second model", err));
    SD_GO(st, out, column(t, "change", SD_COL_NUM, "ppl_b/ppl_a − 1", err));
    SD_GO(st, out, column(t, "delta", SD_COL_NUM, "mean loss of b minus a, nats a token", err));
    SD_GO(st, out, column(t, "delta_lo", SD_COL_NUM, "2.5% of the paired bootstrap", err));
    SD_GO(st, out, column(t, "delta_hi", SD_COL_NUM, "97.5% of the paired bootstrap", err));
    SD_GO(st, out, column(t, "tokens", SD_COL_INT, "tokens scored", err));
    SD_GO(st, out, column(t, "windows", SD_COL_INT, "windows (units of the bootstrap)", err));
    SD_GO(st, out, column(t, "delta_window", SD_COL_VEC, "loss of b minus a by window", err));
    SD_GO(st, out, column(t, "count_window", SD_COL_VEC, "scored tokens by window", err));
    SD_GO(st, out, receipt(t, &wa, &o, n, err));
    SD_GO(st, out,
          sd_table_heading(t, err,
                           "a: %s; b: %s; 95%% interval by %d paired bootstrap draws over "
                           "windows, seed %" PRIu64,
                           sd_model_name(a), sd_model_name(b), BOOTSTRAP, seed));
    SD_GO(st, out, sd_table_meta_str(t, "model_a", sd_model_name(a), err));
    SD_GO(st, out, sd_table_meta_str(t, "model_b", sd_model_name(b), err));
    SD_GO(st, out, sd_table_add_row(t, &row, err));
    double na = wa.sum / wa.scored, nb = wb.sum / wb.scored;
    sd_table_set_num(t, row, "ppl_a", exp(na));
    sd_table_set_num(t, row, "ppl_b", exp(nb));
    sd_table_set_num(t, row, "change", exp(nb - na) - 1);
    sd_table_set_num(t, row, "delta", sum / wa.scored);
    sd_table_set_int(t, row, "tokens", (int64_t)wa.scored);
    sd_table_set_int(t, row, "windows", (int64_t)wa.n);
    if (wa.n > 1) {
        SD_GO(st, out, sd_spectral_bootstrap(wa.n, delta, wa.count, seed, &lo, &hi, err));
        sd_table_set_num(t, row, "delta_lo", lo);
        sd_table_set_num(t, row, "delta_hi", hi);
    } else {
        SD_GO(st, out, sd_table_note(t, err, "one window: there is no interval over windows"));
    }
    SD_GO(st, out, sd_table_set_vec(t, row, "delta_window", delta, wa.n, err));
    SD_GO(st, out, sd_table_set_vec(t, row, "count_window", wa.count, wa.n, err));
    *out = t;
    t = NULL;
out:
    windows_free(&wa);
    windows_free(&wb);
    sd_free(delta);
    sd_table_unref(t);
    return st;
}

/* −log softmax(row)[target] in f64, and whether the target is the argmax. */
static double row_nll(const float *row, size_t v, int32_t target, bool *hit) {
    float top = row[0];
    size_t arg = 0;
    for (size_t i = 1; i < v; i++)
        if (row[i] > top) {
            top = row[i];
            arg = i;
        }
    double z = 1; // the largest itself
    for (size_t i = 0; i < v; i++)
        z += i == arg ? 0 : exp((double)row[i] - top);
    *hit = arg == (size_t)target;
    return log(z) - ((double)row[target] - top);
}

sd_status sd_eval_recall(sd_model *m, const sd_recall_opts *opts, const sd_run *run, sd_table **out,
                         sd_err *err) {
    sd_recall_opts o = opts ? *opts : (sd_recall_opts){0};
    const sd_config *c = sd_model_config(m);
    sd_status st = SD_OK;
    sd_table *t = NULL;
    int32_t *ids = NULL;
    float *logits = NULL;
    *out = NULL;
    if (!c->causal)
        return sd_fail(err, SD_EINVAL, "recall needs a causal model; %s is an encoder",
                       sd_model_name(m));
    if (o.half < 0 || o.seqs < 0 || o.half == 1)
        return sd_fail(err, SD_EINVAL, "recall needs half >= 2 tokens and seqs >= 1");
    size_t half = o.half                           ? (size_t)o.half
                  : c->n_pos > 0 && c->n_pos < 128 ? (size_t)c->n_pos / 2
                                                   : 64;
    size_t seqs = o.seqs ? (size_t)o.seqs : 8, n = 2 * half, v = (size_t)c->vocab, cells;
    if (half < 2 || (c->pos == SD_POS_LEARNED && n > (size_t)c->n_pos))
        return sd_fail(err, SD_EINVAL,
                       "recall over 2 x %zu tokens: the position table of %s holds %d", half,
                       sd_model_name(m), c->n_pos);
    if (!sd_mul_size(n, v, &cells))
        return sd_fail(err, SD_ENOMEM, "%zu x %zu logits: the size overflows", n, v);
    ids = sd_alloc(n, sizeof *ids, err);
    logits = sd_alloc_raw(cells, sizeof *logits, err);
    if (!ids || !logits) {
        st = SD_ENOMEM;
        goto out;
    }
    double nll[2] = {0}, hits[2] = {0};
    sd_forward_opts fo = {.run = run};
    for (size_t s = 0; s < seqs; s++) {
        sd_rng g;
        sd_rng_stream(&g, o.seed, s, half);
        for (size_t i = 0; i < half; i++)
            ids[i] = ids[half + i] = (int32_t)sd_rng_below(&g, v);
        sd_run_progress(run, "recall", (double)s, (double)seqs);
        SD_GO(st, out, sd_check_cancel(err));
        SD_GO(st, out, sd_forward(m, ids, 1, (int)n, &fo, NULL, logits, err));
        for (size_t i = 0; i + 1 < n; i++) {
            if (i + 1 == half) // the repetition's first token cannot be known
                continue;
            bool hit;
            double x = row_nll(logits + i * v, v, ids[i + 1], &hit);
            if (!isfinite(x)) {
                st = sd_fail(err, SD_ENUMERIC, "non-finite loss in sequence %zu at token %zu", s,
                             i + 1);
                goto out;
            }
            nll[i + 1 > half] += x;
            hits[i + 1 > half] += hit;
        }
    }
    sd_run_progress(run, "recall", (double)seqs, (double)seqs);
    t = sd_table_new("recall", err);
    if (!t) {
        st = SD_ENOMEM;
        goto out;
    }
    int row;
    double count = (double)seqs * (double)(half - 1);
    SD_GO(st, out, column(t, "half", SD_COL_INT, "random tokens before the repetition", err));
    SD_GO(st, out, column(t, "seqs", SD_COL_INT, "sequences", err));
    SD_GO(st, out, column(t, "accuracy", SD_COL_NUM, "argmax hits in the repetition", err));
    SD_GO(st, out, column(t, "nll", SD_COL_NUM, "mean loss in the repetition, nats", err));
    SD_GO(st, out, column(t, "accuracy_first", SD_COL_NUM, "argmax hits in the first half", err));
    SD_GO(st, out, column(t, "nll_first", SD_COL_NUM, "mean loss in the first half, nats", err));
    SD_GO(st, out, column(t, "chance", SD_COL_NUM, "loss of a uniform guess, ln V", err));
    SD_GO(st, out,
          sd_table_heading(t, err,
                           "%s: induction, %zu sequences of %zu random tokens repeated once, "
                           "seed %" PRIu64 "; each half from its second token on",
                           sd_model_name(m), seqs, half, o.seed));
    SD_GO(st, out, sd_table_meta_str(t, "model", sd_model_name(m), err));
    SD_GO(st, out, sd_table_add_row(t, &row, err));
    sd_table_set_int(t, row, "half", (int64_t)half);
    sd_table_set_int(t, row, "seqs", (int64_t)seqs);
    sd_table_set_num(t, row, "accuracy", hits[1] / count);
    sd_table_set_num(t, row, "nll", nll[1] / count);
    sd_table_set_num(t, row, "accuracy_first", hits[0] / count);
    sd_table_set_num(t, row, "nll_first", nll[0] / count);
    sd_table_set_num(t, row, "chance", log((double)v));
    *out = t;
    t = NULL;
out:
    sd_free(ids);
    sd_free(logits);
    sd_table_unref(t);
    return st;
}
