/* heal.c: a short training after surgery, and what it is worth beside the untouched model trained
 * as long (METHOD §7.5).
 *
 * Needs: host ABI 1.1, groups args, model, text, evaluate, train, table.
 * Requirements:
 *   1. The schedule, batches and numbers are those of `train`: the host runs it (train_run).
 *   2. A layer is "operated" when its kind, dimensions or any of its parts differ from the
 *      original's; "operated" trains these layers alone, the global parts as they are.
 *   3. The control is the original, trained on the same batches with the same schedule, without a
 *      teacher (it would be its own) and whole, or the same layers where layers were chosen.
 *   4. What is scored was not trained on: heal_table asks for a held-out text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sd_plugin.h"

typedef struct job {
    const sd_host *host;
    sd_call *call;
    sd_hmodel *model, *original; /* original: nullable */
    sd_hmodel_info info;
    const int32_t *ids; /* NULL: a token file */
    size_t n;
    const char *data;
    unsigned char *layers; /* NULL: everything */
    sd_htrain_run run;
} job;

/* ---- which layers surgery has changed ----------------------------------------------------------
 */

static bool same_config(const sd_hlayer_info *a, const sd_hlayer_info *b) {
    return a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->d_qk == b->d_qk &&
           a->d_v == b->d_v && a->planes == b->planes && a->f_rank == b->f_rank &&
           a->scale == b->scale && strcmp(a->kind, b->kind) == 0 &&
           strcmp(a->options, b->options) == 0;
}

/* *same = the part is in both with equal values, or in neither. */
static int same_part(const job *j, int32_t layer, const char *role, bool *same) {
    const sd_host *h = j->host;
    bool a = h->model_has_part(j->call, j->model, layer, role),
         b = h->model_has_part(j->call, j->original, layer, role);
    *same = a == b;
    if (!a || !b)
        return h->failed(j->call);
    sd_harray x, y;
    if (h->model_get_part(j->call, j->model, layer, role, &x) ||
        h->model_get_part(j->call, j->original, layer, role, &y))
        return h->failed(j->call);
    int64_t n = 1;
    *same = x.ndim == y.ndim;
    for (int i = 0; *same && i < x.ndim; i++) {
        *same = x.shape[i] == y.shape[i];
        n *= x.shape[i];
    }
    *same = *same && memcmp(x.data, y.data, (size_t)n * sizeof *x.data) == 0;
    h->release(j->call, x.data);
    h->release(j->call, y.data);
    return 0;
}

static int operated(job *j) {
    static const char *const roles[] = {"wq",      "bq",      "wk",      "bk", "wv",
                                        "bv",      "wo",      "bo",      "wd", "bd",
                                        "ra",      "rb",      "f",       "fl", "diag",
                                        "pot",     "norm1_g", "norm1_b", "w1", "b1",
                                        "norm2_g", "norm2_b", "w3",      "w2", "b2"};
    const sd_host *h = j->host;
    bool any = false;
    for (int32_t l = 0; l < j->info.n_layer; l++) {
        sd_hlayer_info a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
        if (h->cancelled(j->call) || h->model_layer(j->call, j->model, l, &a) ||
            h->model_layer(j->call, j->original, l, &b))
            return h->failed(j->call);
        bool same = same_config(&a, &b);
        for (size_t r = 0; same && r < sizeof roles / sizeof *roles; r++)
            if (same_part(j, l, roles[r], &same))
                return h->failed(j->call);
        j->layers[l] = !same;
        any |= !same;
    }
    return any ? 0
               : h->fail(j->call, SD_FAIL_INVALID,
                         "layers=\"operated\": no layer of %s differs from the original's",
                         h->model_name(j->call, j->model));
}

static int choose_layers(job *j) {
    const sd_host *h = j->host;
    const char *which = h->arg_str(j->call, "layers");
    if (strcmp(which, "all") == 0)
        return 0;
    j->layers = h->alloc(j->call, (size_t)j->info.n_layer, 1);
    if (!j->layers)
        return h->failed(j->call);
    if (strcmp(which, "operated") != 0)
        return h->arg_range(j->call, "layers", "layer", j->info.n_layer, j->layers);
    if (!j->original)
        return h->fail(j->call, SD_FAIL_INVALID,
                       "layers=\"operated\" needs the model before surgery: original=");
    return operated(j);
}

/* ---- what is trained, on what ------------------------------------------------------------------
 */

/* Both models read the same tokens and can be compared and distilled. */
static int check_pair(const job *j) {
    const sd_host *h = j->host;
    sd_hmodel_info o = {.struct_size = sizeof o};
    if (h->model_info(j->call, j->original, &o))
        return h->failed(j->call);
    const struct {
        const char *what;
        int32_t a, b;
    } sizes[] = {{"layers", j->info.n_layer, o.n_layer},
                 {"width", j->info.d_model, o.d_model},
                 {"tokens in the vocabulary", j->info.vocab, o.vocab}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].a != sizes[i].b)
            return h->fail(j->call, SD_FAIL_INVALID,
                           "%s has %d %s, the original %s %d: it was not made from it",
                           h->model_name(j->call, j->model), sizes[i].a, sizes[i].what,
                           h->model_name(j->call, j->original), sizes[i].b);
    return 0;
}

static int read_job(const sd_host *h, sd_call *call, job *j) {
    *j = (job){.host = h,
               .call = call,
               .model = h->arg_model(call, "model"),
               .original = h->arg_given(call, "original") ? h->arg_model(call, "original") : NULL,
               .info = {.struct_size = sizeof j->info},
               .data = h->arg_str(call, "data"),
               .run = {.struct_size = sizeof j->run,
                       .batch = (int32_t)h->arg_int(call, "batch"),
                       .ctx = (int32_t)h->arg_int(call, "ctx"),
                       .steps = h->arg_int(call, "steps"),
                       .warmup = h->arg_given(call, "warmup") ? h->arg_int(call, "warmup") : -1,
                       .lr = h->arg_num(call, "lr"),
                       .min_lr = -1,
                       .seed = (uint64_t)h->arg_int(call, "seed"),
                       .teacher_weight = h->arg_num(call, "teacher_weight")}};
    sd_htext *text = h->arg_text(call, "text");
    if (!text == !j->data)
        return h->fail(call, SD_FAIL_INVALID, "%s",
                       text ? "text= and data= are both given: only one can be trained on"
                            : "give text= to train on, or data=\"corpus.train.bin\" made by "
                              "tokenize");
    if (h->model_info(call, j->model, &j->info) || (j->original && check_pair(j)) ||
        choose_layers(j))
        return h->failed(call);
    if (text && h->text_ids(call, text, j->model, &j->ids, &j->n))
        return h->failed(call);
    j->run.layers = j->layers;
    if (j->run.ctx == 0) /* as train has it, and known here for the table */
        j->run.ctx =
            j->info.n_pos > 0 && !j->info.rope && j->info.n_pos < 256 ? j->info.n_pos : 256;
    if (j->run.teacher_weight > 0 && !j->original)
        return h->fail(call, SD_FAIL_INVALID,
                       "teacher_weight = %g needs the teacher: original= the model before surgery",
                       j->run.teacher_weight);
    return 0;
}

static sd_hmodel *trained(const job *j, sd_hmodel *from, bool taught) {
    const sd_host *h = j->host;
    sd_hmodel *m = h->model_clone(j->call, from);
    sd_htrain_run run = j->run;
    run.teacher = taught && run.teacher_weight > 0 ? j->original : NULL;
    if (m && h->train_run(j->call, m, j->ids, j->n, j->data, &run)) {
        h->model_release(j->call, m);
        m = NULL;
    }
    return m;
}

static int heal(const sd_host *h, sd_call *call) {
    job j;
    if (read_job(h, call, &j))
        return h->failed(call);
    sd_htext *held = h->arg_text(call, "holdout");
    const int32_t *ids = NULL;
    size_t n = 0;
    sd_hscore before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    if (held && (h->text_ids(call, held, j.model, &ids, &n) ||
                 h->evaluate(call, j.model, ids, n, 0, 0, &before)))
        return h->failed(call);
    sd_hmodel *m = trained(&j, j.model, true);
    if (!m)
        return h->failed(call);
    if (held) {
        if (h->evaluate(call, m, ids, n, 0, 0, &after)) {
            h->model_release(call, m);
            return h->failed(call);
        }
        h->log(call, false, "held-out perplexity %.4g, healed %.4g", before.ppl, after.ppl);
    }
    return h->return_model(call, m);
}

/* ---- the table ---------------------------------------------------------------------------------
 */

typedef struct held {
    const int32_t *ids;
    size_t n;
    int32_t ctx;
    uint64_t seed;
} held;

static int start_table(const job *j, const held *x, sd_htable **out) {
    const sd_host *h = j->host;
    sd_call *c = j->call;
    char head[400];
    sd_htable *t = *out = h->table_new(c, "healing");
    if (!t)
        return h->failed(c);
    snprintf(head, sizeof head,
             "%s, from %s; %lld steps of %d x %d tokens, lr %g, seed %llu%s; %zu held-out tokens",
             h->model_name(c, j->model), h->model_name(c, j->original), (long long)j->run.steps,
             j->run.batch, j->run.ctx, j->run.lr, (unsigned long long)j->run.seed,
             j->layers ? ", chosen layers only" : "", x->n);
    h->table_heading(c, t, head);
    h->table_heading(c, t,
                     "control: the original trained on the same batches; delta in nats, its 95% "
                     "interval by paired bootstrap over windows");
    if (j->run.teacher_weight > 0) {
        snprintf(head, sizeof head, "distilled from the original with weight %g",
                 j->run.teacher_weight);
        h->table_note(c, t, head);
    }
    static const struct {
        const char *name, *doc;
        int kind;
        bool wide;
    } cols[] = {
        {"model", "which of the four", SD_TABLE_STR, false},
        {"tokens", "tokens seen in this training", SD_TABLE_INT, false},
        {"ppl", "perplexity on the held-out text", SD_TABLE_NUM, false},
        {"change", "its perplexity over the control's, minus 1", SD_TABLE_NUM, false},
        {"delta", "mean loss minus the control's, nats", SD_TABLE_NUM, false},
        {"delta_lo", "lower end of the 95% interval", SD_TABLE_NUM, false},
        {"delta_hi", "upper end", SD_TABLE_NUM, false},
        {"recall", "accuracy on the second half of repeated random tokens", SD_TABLE_NUM, false},
        {"recall_nll", "loss there, nats", SD_TABLE_NUM, true},
        {"chance", "accuracy of a guess", SD_TABLE_NUM, true},
    };
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        if (h->table_column(c, t, cols[i].name, cols[i].kind, cols[i].doc, cols[i].wide))
            return h->failed(c);
    return 0;
}

static int add_row(const job *j, const held *x, sd_htable *t, const char *name, sd_hmodel *m,
                   sd_hmodel *control, int64_t tokens) {
    const sd_host *h = j->host;
    sd_call *c = j->call;
    sd_hdelta d = {.struct_size = sizeof d};
    sd_hrecall r = {.struct_size = sizeof r};
    int32_t row = h->table_row(c, t);
    if (row < 0 || h->compare(c, control, m, x->ids, x->n, x->ctx, 0, x->seed, &d) ||
        h->recall(c, m, 0, 0, x->seed, &r))
        return h->failed(c);
    h->table_set_str(c, t, row, "model", name);
    h->table_set_int(c, t, row, "tokens", tokens);
    const struct {
        const char *col;
        double v;
    } cells[] = {{"ppl", exp(d.nll_b)}, {"change", expm1(d.delta)}, {"delta", d.delta},
                 {"delta_lo", d.lo},    {"delta_hi", d.hi},         {"recall", r.accuracy},
                 {"recall_nll", r.nll}, {"chance", r.chance}};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        bool own = m == control && strncmp(cells[i].col, "delta", 5) == 0; /* 0 by definition */
        if (!own)
            h->table_set_num(c, t, row, cells[i].col, cells[i].v);
    }
    return h->failed(c);
}

static int heal_table(const sd_host *h, sd_call *call) {
    job j;
    held x = {.ctx = (int32_t)h->arg_int(call, "eval_ctx"),
              .seed = (uint64_t)h->arg_int(call, "seed")};
    if (read_job(h, call, &j))
        return h->failed(call);
    sd_htext *text = h->arg_text(call, "holdout");
    if (!text)
        return h->fail(call, SD_FAIL_INVALID,
                       "give the text to be scored, not the one trained on: holdout=");
    sd_hmodel *control = NULL, *healed = NULL;
    sd_htable *t = NULL;
    if (h->text_ids(call, text, j.model, &x.ids, &x.n) || start_table(&j, &x, &t))
        return h->failed(call);
    int64_t seen = j.run.steps * j.run.batch * j.run.ctx;
    if ((control = trained(&j, j.original, false)) != NULL)
        healed = trained(&j, j.model, true);
    int rc = !healed || add_row(&j, &x, t, "original", j.original, control, 0) ||
                     add_row(&j, &x, t, "control", control, control, seen) ||
                     add_row(&j, &x, t, "operated", j.model, control, 0) ||
                     add_row(&j, &x, t, "healed", healed, control, seen)
                 ? h->failed(call)
                 : 0;
    if (control)
        h->model_release(call, control);
    if (healed)
        h->model_release(call, healed);
    return rc ? rc : h->return_table(call, t);
}

/* ---- descriptors -------------------------------------------------------------------------------
 */

#define HEAL_ARGS                                                                                 \
    {.name = "text", .kind = SD_ARG_TEXT, .doc = "text to train on"},                             \
        {.name = "data", .kind = SD_ARG_PATH, .doc = "token file to train on, made by tokenize"}, \
        {.name = "layers",                                                                        \
         .kind = SD_ARG_STR,                                                                      \
         .dflt = "all",                                                                           \
         .doc = "\"all\", \"operated\" (those that differ from the original's), or \"0-3\""},     \
        {.name = "steps",                                                                         \
         .kind = SD_ARG_INT,                                                                      \
         .dflt = "300",                                                                           \
         .min = 1,                                                                                \
         .max = 1e9,                                                                              \
         .doc = "updates"},                                                                       \
        {.name = "batch",                                                                         \
         .kind = SD_ARG_INT,                                                                      \
         .dflt = "8",                                                                             \
         .min = 1,                                                                                \
         .max = 65536,                                                                            \
         .doc = "sequences an update"},                                                           \
        {.name = "ctx",                                                                           \
         .kind = SD_ARG_INT,                                                                      \
         .dflt = "0",                                                                             \
         .min = 0,                                                                                \
         .max = 1048576,                                                                          \
         .doc = "tokens a sequence; 0: 256, or the position table if smaller"},                   \
        {.name = "lr",                                                                            \
         .kind = SD_ARG_NUM,                                                                      \
         .dflt = "0.0003",                                                                        \
         .min = 1e-12,                                                                            \
         .max = 1e9,                                                                              \
         .doc = "highest learning rate; it ends at a tenth"},                                     \
        {.name = "warmup",                                                                        \
         .kind = SD_ARG_INT,                                                                      \
         .max = 1e9,                                                                              \
         .doc = "steps of warm-up; absent: 5%, at most 200"},                                     \
        {.name = "teacher_weight",                                                                \
         .kind = SD_ARG_NUM,                                                                      \
         .dflt = "0",                                                                             \
         .min = 0,                                                                                \
         .max = 1,                                                                                \
         .doc = "share of the original's distribution in the loss; 0: the text alone"},           \
    {                                                                                             \
        .name = "seed", .kind = SD_ARG_INT, .dflt = "1", .max = 9007199254740992.0,               \
        .doc = "seed of the data order"                                                           \
    }

/* clang-format off */
static const sd_arg_desc heal_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model after surgery"},
    {.name = "original", .kind = SD_ARG_MODEL,
     .doc = "the model before surgery, for layers=\"operated\" and teacher_weight="},
    HEAL_ARGS,
    {.name = "holdout", .kind = SD_ARG_TEXT,
     .doc = "text not trained on; its perplexity before and after is logged"},
};
static const sd_arg_desc table_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model after surgery"},
    {.name = "original", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED,
     .doc = "the model before surgery"},
    HEAL_ARGS,
    {.name = "holdout", .kind = SD_ARG_TEXT, .doc = "text to be scored, not trained on"},
    {.name = "eval_ctx", .kind = SD_ARG_INT, .dflt = "0", .min = 0, .max = 1048576,
     .doc = "tokens a scored window; 0: the position table"},
};
/* clang-format on */

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_MODEL,
     .name = "heal",
     .summary = "a short training after surgery",
     .details =
         "Trains a copy on a text, as train does: AdamW, warm-up, half a cosine to a tenth of lr. "
         "layers=\"operated\" trains only the layers that differ from the original's; "
         "teacher_weight= distils from the original: that share of the loss is the divergence from "
         "its distribution.\n\n"
         "Any model improves on the text it is trained on: only a control that was trained as long "
         "says what the surgery cost. heal_table has it. A non-finite loss stops the run by the "
         "tensor's name; Ctrl-C comes back to the prompt, and the model given stays what it is.",
     .example = "n = truncate(m, {planes=1, layers=0})\n"
                "h = heal(n, {original=m, text=t, layers='operated', steps=2, batch=1, ctx=32})\n"
                "assert(nll(h, t) < nll(n, t))",
     .returns_doc = "the healed model",
     .args = heal_args,
     .n_args = sizeof heal_args / sizeof *heal_args,
     .run = heal},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "heal_table",
     .summary = "what surgery costs after healing, beside a control trained as long",
     .details =
         "Four rows on the held-out text: the original untouched, the control (the original "
         "trained on the same batches), the operated model, and the operated model healed; "
         "perplexity, difference of the loss from the control's with its 95% interval, recall of "
         "repeated random tokens, tokens seen.",
     .example = "n = truncate(m, {planes=0, layers=0})\n"
                "w = heal_table(n, m, {text=t, holdout=t, steps=1, batch=1, ctx=32})\n"
                "assert(w:row(3).model == 'healed' and w:row(3).tokens == 32)",
     .returns_doc = "a table",
     .args = table_args,
     .n_args = sizeof table_args / sizeof *table_args,
     .run = heal_table}};

SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    SD_PLUGIN_HEADER(ops),
    .name = "heal",
    .version = "1.0",
    .summary = "short training after surgery, with its control",
};
