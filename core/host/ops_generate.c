/* ops_generate.c: text sampled from a model, token by token (nn/decode.h). */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "host/args.h"
#include "host/host.h"
#include "nn/decode.h"
#include "nn/forward.h"
#include "nn/hook.h"

enum { DETOKENIZE_LEAD = 4 };

/* Ids, and what they spell so far. A piece of text is settled once it ends at a whole character:
 * the ids since `mark` are decoded again with each token, those before `seen` were settled. */
typedef struct spelling {
    const sd_tokenizer *tok;
    const int32_t *ids; // all: prompt and new
    int32_t rows;       /* of the model's embedding */
    size_t mark, seen;
    sd_buf text, a, b;
} spelling;

static void spelling_free(spelling *s) {
    sd_buf_free(&s->text);
    sd_buf_free(&s->a);
    sd_buf_free(&s->b);
}

/* Bytes at the end of p that start a character and do not finish it. */
static size_t open_tail(const char *p, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)p[n - k];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return need > k ? k : 0;
    }
    return 0;
}

static sd_status spell(spelling *s, size_t n, bool last, sd_err *err) {
    sd_buf_clear(&s->a);
    sd_buf_clear(&s->b);
    SD_TRY(sd_tokenizer_decode(s->tok, s->ids + s->mark, s->seen - s->mark, s->rows, true, &s->a,
                               err));
    SD_TRY(sd_tokenizer_decode(s->tok, s->ids + s->mark, n - s->mark, s->rows, true, &s->b, err));
    SD_TRY(sd_buf_status(&s->b, err));
    if (s->b.n <= s->a.n || (!last && open_tail(s->b.p, s->b.n)))
        return SD_OK;
    sd_buf_put(&s->text, s->b.p + s->a.n, s->b.n - s->a.n);
    s->mark = s->seen;
    s->seen = n;
    return sd_buf_status(&s->text, err);
}

typedef struct job {
    sd_call *c;
    sd_model *m;
    int32_t *ids;
    size_t n_prompt, n, cap; /* given; there; room */
    sd_sampling sampling;
    sd_rng rng;
    bool eos;
    const char *stop;
    size_t n_stop;
    spelling s;
    size_t streamed;
    float *logits;
    sd_sample_item *work;
    bool stopped;
} job;

/* Text that no stop string can still take back goes to the terminal. */
static void stream(job *j, bool last) {
    const sd_run *run = &j->c->s->run;
    size_t keep = !last && j->n_stop ? j->n_stop - 1 : 0;
    size_t end = j->s.text.n > keep ? j->s.text.n - keep : 0;
    if (end > j->streamed)
        end -= last ? 0 : open_tail(j->s.text.p, end);
    if (!run->stream || end <= j->streamed)
        return;
    run->stream(run->ctx, j->s.text.p + j->streamed, end - j->streamed);
    j->streamed = end;
}

/* After a token: true when the text is finished. */
static sd_status taken(job *j, bool *end, sd_err *err) {
    *end = false;
    if (!j->s.tok)
        return SD_OK;
    size_t before = j->s.text.n;
    SD_TRY(spell(&j->s, j->n, false, err));
    size_t from = before > j->n_stop ? before - j->n_stop : 0;
    for (size_t i = from; j->n_stop && i + j->n_stop <= j->s.text.n; i++)
        if (memcmp(j->s.text.p + i, j->stop, j->n_stop) == 0) {
            j->s.text.n = i;
            j->s.text.p[i] = 0;
            *end = j->stopped = true;
            return SD_OK;
        }
    stream(j, false);
    return SD_OK;
}

/* Logits after all tokens so far, the last `fresh` of which are new. A model that carries hooks is
 * run over everything again: what they change is the activations of whole sequences. */
static sd_status advance(job *j, sd_decoder *d, size_t fresh, sd_err *err) {
    if (d)
        return sd_decoder_feed(d, j->ids + j->n - fresh, (int)fresh, j->logits, err);
    sd_forward_opts o = {.run = &j->c->s->run, .last_logits = true};
    return sd_forward(j->m, j->ids, 1, (int)j->n, &o, NULL, j->logits, err);
}

static sd_status decoder_of(job *j, sd_decoder **d, sd_err *err) {
    const sd_net *net = NULL;
    size_t hooks = 0;
    sd_decode_plan plan = {
        .capacity = (int)j->cap, .rows = (int)j->n_prompt, .threads = j->c->s->run.threads};
    sd_model_hooks(j->m, &hooks);
    *d = NULL;
    SD_TRY(sd_forward_net(j->m, &net, err));
    SD_TRY(sd_decoder_new(net, &plan, d, err)); /* also says what cannot be decoded */
    if (hooks) {
        sd_decoder_free(*d);
        *d = NULL;
    }
    return SD_OK;
}

static sd_status produce(job *j, sd_err *err) {
    const sd_config *cfg = sd_model_config(j->m);
    const sd_run *run = &j->c->s->run;
    size_t v = (size_t)cfg->vocab, made = j->n_prompt;
    sd_tokenizer *tok = sd_model_tokenizer(j->m);
    int32_t eos = cfg->eos >= 0 ? cfg->eos : tok ? sd_tokenizer_special(tok, "eos") : -1;
    sd_decoder *d = NULL;
    sd_status st;
    SD_TRY(decoder_of(j, &d, err));
    SD_GO(st, out, advance(j, d, j->n, err));
    while (j->n < j->cap) {
        int32_t id = 0;
        bool end = false;
        SD_GO(st, out, sd_sample(&j->sampling, v, j->logits, &j->rng, j->work, &id, err));
        if (j->eos && id == eos)
            break;
        j->ids[j->n++] = id;
        SD_GO(st, out, taken(j, &end, err));
        if (end || j->n == j->cap)
            break;
        if (!run->stream)
            sd_run_progress(run, "generate", (double)(j->n - made), (double)(j->cap - made));
        SD_GO(st, out, advance(j, d, 1, err));
    }
out:
    sd_decoder_free(d);
    return st;
}

/* Prompt, room for what is to come, and what a position table leaves of it. */
static sd_status prepare(job *j, sd_call *c, int64_t want, bool *cut) {
    const sd_config *cfg = sd_model_config(j->m);
    const int32_t *ids = NULL;
    size_t n = 0, total;
    int32_t bos = -1;
    SD_TRY(sd_call_ids(c, "text", j->m, &ids, &n));
    if (n == 0) {
        sd_tokenizer *tok = sd_model_tokenizer(j->m);
        bos = cfg->bos >= 0 ? cfg->bos : tok ? sd_tokenizer_special(tok, "bos") : -1;
        if (bos < 0)
            return sd_fail(&c->err, SD_EINVAL, "an empty prompt needs a BOS token: %s names none",
                           sd_model_name(j->m));
        ids = &bos;
        n = 1;
    }
    if (cfg->pos == SD_POS_LEARNED && n > (size_t)cfg->n_pos)
        return sd_fail(&c->err, SD_EINVAL, "a prompt of %zu tokens: the position table holds %d", n,
                       cfg->n_pos);
    if (!sd_add_size(n, (size_t)want, &total) || total > INT32_MAX)
        return sd_fail(&c->err, SD_EINVAL, "%zu tokens and %lld more: too many", n,
                       (long long)want);
    *cut = cfg->pos == SD_POS_LEARNED && total > (size_t)cfg->n_pos;
    j->cap = *cut ? (size_t)cfg->n_pos : total;
    j->ids = sd_alloc_raw(j->cap, sizeof *j->ids, &c->err);
    j->logits = sd_alloc_raw((size_t)cfg->vocab, sizeof *j->logits, &c->err);
    j->work = sd_alloc_raw((size_t)cfg->vocab, sizeof *j->work, &c->err);
    if (!j->ids || !j->logits || !j->work)
        return SD_ENOMEM;
    memcpy(j->ids, ids, n * sizeof *ids);
    j->n = j->n_prompt = n;
    j->s.tok = sd_model_tokenizer(j->m);
    j->s.ids = j->ids;
    j->s.rows = cfg->vocab;
    j->s.seen = n;
    j->s.mark = n > DETOKENIZE_LEAD ? n - DETOKENIZE_LEAD : 0;
    return SD_OK;
}

static sd_status finish(job *j, const sd_host *host, sd_call *c) {
    if (!j->s.tok) { /* no tokenizer: the ids themselves */
        for (size_t i = j->n_prompt; i < j->n; i++)
            sd_buf_printf(&j->s.text, "%s%d", i > j->n_prompt ? " " : "", (int)j->ids[i]);
    } else if (!j->stopped) {
        SD_TRY(spell(&j->s, j->n, true, &c->err));
    }
    stream(j, true);
    SD_TRY(sd_buf_status(&j->s.text, &c->err));
    return host->return_str(c, j->s.text.p ? j->s.text.p : "", j->s.text.n);
}

/* Ctrl-C while text runs over the screen ends the text, not the input: what was made is kept. A
 * second one soon after is meant for the input, a loop say; in a script every one is. */
static bool keep_text(sd_call *c) {
    double now = sd_now();
    if (now - c->s->text_ended < 2)
        return false;
    c->s->text_ended = now;
    atomic_store(&sd_cancel_flag, 0);
    sd_err_clear(&c->err);
    return true;
}

static int op_generate(const sd_host *host, sd_call *c) {
    const sd_value *stop = sd_call_arg(c, "stop");
    job j = {.c = c,
             .m = sd_call_arg(c, "model")->model,
             .sampling = {.temperature = host->arg_num(c, "temperature"),
                          .top_p = host->arg_num(c, "top_p"),
                          .top_k = (int)host->arg_int(c, "top_k")},
             .eos = host->arg_bool(c, "eos"),
             .stop = stop->kind == SD_ARG_NIL ? NULL : stop->s,
             .n_stop = stop->kind == SD_ARG_NIL ? 0 : stop->s_len};
    int64_t want = host->arg_int(c, "tokens");
    bool cut = false;
    sd_rng_seed(&j.rng, sd_call_seed(c));
    sd_status st = prepare(&j, c, want, &cut);
    if (st == SD_OK && j.n_stop && !j.s.tok)
        st =
            sd_fail(&c->err, SD_EINVAL, "stop= needs a tokenizer: %s has none", sd_model_name(j.m));
    if (st == SD_OK)
        st = produce(&j, &c->err);
    if (st == SD_ECANCEL && c->s->run.stream && keep_text(c)) {
        st = SD_OK;
        cut = false;
    }
    if (st == SD_OK)
        st = finish(&j, host, c);
    if (st == SD_OK && cut && j.n == j.cap && !j.stopped)
        sd_run_log(&c->s->run, SD_LOG_WARN,
                   "generate: ended after %zu of %lld tokens: the position table holds %d",
                   j.n - j.n_prompt, (long long)want, sd_model_config(j.m)->n_pos);
    spelling_free(&j.s);
    sd_free(j.ids);
    sd_free(j.logits);
    sd_free(j.work);
    return st;
}

static const sd_arg_desc generate_args[] = {
    MODEL_ARG,
    TEXT_ARG,
    INT_ARG("tokens", "64", 1, 16777216, "how many to make, at most"),
    NUM_ARG("temperature", "1", 0, INFINITY, "divides the logits; 0: always the likeliest token"),
    INT_ARG("top_k", "0", 0, 16777216, "draw from so many likeliest tokens; 0: from all"),
    NUM_ARG("top_p", "1", 0, 1, "draw from the likeliest tokens that hold this share together"),
    {.name = "stop",
     .kind = SD_ARG_STR,
     .doc = "a string that ends the text; it is not part of it"},
    {.name = "eos",
     .kind = SD_ARG_BOOL,
     .dflt = "true",
     .doc = "end at the model's end-of-text token"},
    SEED_ARG("seed of the draws"),
};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "generate",
     .summary = "lets a model go on with a text",
     .details =
         "Tokens are drawn one by one from softmax(logits / temperature), after top_k and then "
         "top_p. Layers of softmax kind keep the keys and values of all tokens, recurrent kinds "
         "(elu1, uniform, potential) a state of constant size, mixed as the model mixes them; the "
         "result is that of full forward passes. A position table that ends, ends the text, and a "
         "warning says so; a longer prompt is refused."
         "\n\nAt the prompt the text runs over the screen as it is made, and Ctrl-C ends it: what "
         "was made is the result (pressed again within two seconds it ends the input). The prompt "
         "itself is not repeated. A model without a tokenizer "
         "takes and gives token ids.",
     .example = "s = generate(m, 'The ', {tokens=8, temperature=0})\n"
                "assert(s == generate(m, 'The ', {tokens=8, top_k=1}) and #s > 0)",
     .returns_doc = "the new text, a string (without a tokenizer: ids, parted by spaces)",
     .args = generate_args,
     .n_args = N(generate_args),
     .run = op_generate},
};

sd_builtin_group sd_ops_generate(void) {
    return (sd_builtin_group){ops, N(ops)};
}
