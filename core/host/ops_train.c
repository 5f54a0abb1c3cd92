/* ops_train.c: corpora, new models, training (METHOD §6; core/train). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "host/args.h"
#include "host/figures.h"
#include "host/host.h"
#include "io/json.h"
#include "io/tokens.h"
#include "nn/attn.h"
#include "nn/preset.h"
#include "train/trainer.h"

/* ---- corpora -----------------------------------------------------------------------------------
 */

/* The text files a PATH names: the file itself, or every *.txt of a folder in order. */
typedef struct paths {
    char **v;
    size_t n, cap;
} paths;

static void paths_free(paths *p) {
    for (size_t i = 0; i < p->n; i++)
        sd_free(p->v[i]);
    sd_free(p->v);
}

static sd_status paths_of(const char *path, paths *out, sd_err *err) {
    char **names = NULL;
    size_t n = 0;
    bool dir = sd_path_is_dir(path);
    if (dir)
        SD_TRY(sd_list_dir(path, &names, &n, err));
    else
        n = 1;
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        size_t k = dir ? strlen(names[i]) : 0;
        if (dir && (k < 4 || strcmp(names[i] + k - 4, ".txt") != 0))
            continue;
        void *v = out->v;
        st = sd_grow(&v, &out->cap, out->n + 1, sizeof(char *), err);
        out->v = v;
        char *s =
            st == SD_OK ? dir ? sd_path_join(path, names[i], err) : sd_strdup(path, err) : NULL;
        if (s)
            out->v[out->n++] = s;
        else if (st == SD_OK)
            st = SD_ENOMEM;
    }
    for (size_t i = 0; dir && i < n; i++)
        sd_free(names[i]);
    sd_free(names);
    if (st == SD_OK && out->n == 0)
        st = sd_fail(err, SD_EFILE, "%s: holds no .txt files", path);
    return st;
}

/* Makes the folder a file is to be written into. */
static sd_status make_parent(const char *path, sd_err *err) {
    const char *base = sd_path_base(path);
    if (base == path || base == path + 1)
        return SD_OK;
    char *dir = sd_strndup(path, (size_t)(base - path) - 1, err);
    sd_status st = dir ? sd_mkdirs(dir, err) : SD_ENOMEM;
    sd_free(dir);
    return st;
}

static int op_train_tokenizer(const sd_host *host, sd_call *c) {
    paths p = {0};
    sd_buf json = {0};
    sd_err *e = &c->err;
    static const char *const specials[] = {"<|endoftext|>"};
    const char *out = host->arg_str(c, "out");
    sd_status st = paths_of(host->arg_str(c, "path"), &p, e);
    if (st == SD_OK)
        st = make_parent(out, e);
    if (st == SD_OK)
        st = sd_tokenizer_train((const char *const *)p.v, p.n, (int32_t)host->arg_int(c, "vocab"),
                                specials, 1, &c->s->run, &json, e);
    if (st == SD_OK)
        st = sd_write_file(out, json.p, json.n, e);
    paths_free(&p);
    sd_buf_free(&json);
    return st == SD_OK ? host->return_str(c, out, strlen(out)) : (int)st;
}

static int op_tokenize(const sd_host *host, sd_call *c) {
    paths p = {0};
    sd_err *e = &c->err;
    sd_tokenizer *tok = NULL;
    sd_table *t = NULL;
    sd_tokens_stats s;
    const char *out = host->arg_str(c, "out");
    sd_status st;
    SD_GO(st, done, paths_of(host->arg_str(c, "path"), &p, e));
    SD_GO(st, done, sd_tokenizer_open(host->arg_str(c, "tokenizer"), &c->s->run, &tok, e));
    SD_GO(st, done, make_parent(out, e));
    SD_GO(st, done,
          sd_tokens_build((const char *const *)p.v, p.n, tok, out, host->arg_num(c, "holdout"),
                          sd_call_seed(c), &c->s->run, &s, e));
    if (s.lost_bytes)
        sd_run_log(&c->s->run, SD_LOG_WARN, "%llu bytes are not in the vocabulary and were lost",
                   (unsigned long long)s.lost_bytes);
    static const char *const names[] = {"documents", "bytes", "train_tokens", "val_tokens"};
    const uint64_t values[] = {s.documents, s.bytes, s.train_tokens, s.val_tokens};
    static const char *const docs[] = {"documents read", "bytes read", "ids in OUT.train.bin",
                                       "ids in OUT.val.bin"};
    int row;
    st = SD_ENOMEM;
    if (!(t = sd_table_new("tokens", e)))
        goto done;
    for (int i = 0; i < 4; i++)
        SD_GO(st, done, sd_table_add_column(t, names[i], SD_COL_INT, docs[i], false, NULL, e));
    SD_GO(st, done, sd_table_add_row(t, &row, e));
    for (int i = 0; i < 4; i++)
        sd_table_set_int(t, row, names[i], (int64_t)values[i]);
done:
    paths_free(&p);
    sd_tokenizer_unref(tok);
    if (st != SD_OK) {
        sd_table_unref(t);
        t = NULL;
    }
    return sd_call_return_table(c, st, t);
}

/* ---- new models --------------------------------------------------------------------------------
 */

static const char *kind_at(const void *run, size_t i) {
    const sd_attn_kind *k = sd_attn_at_in(run, i);
    return k ? k->name : NULL;
}

static sd_status check_kind(const sd_run *run, const char *name, sd_err *err) {
    if (sd_attn_find_in(run, name))
        return SD_OK;
    const char *near = sd_suggest(name, kind_at, run);
    return near ? sd_fail(err, SD_EINVAL, "unknown attention kind '%s': did you mean %s?", name,
                          near)
                : sd_fail(err, SD_EINVAL, "unknown attention kind '%s'", name);
}

/* The i-th item of "a,b,c", blanks around it cut; a single item serves every layer. */
static sd_status list_item(const char *list, const char *what, int n, int i, char *out, size_t size,
                           sd_err *err) {
    int items = 1;
    for (const char *p = list; *p; p++)
        items += *p == ',';
    if (items != 1 && items != n)
        return sd_fail(err, SD_EINVAL, "%s: %d items for %d layers: give one, or one a layer", what,
                       items, n);
    const char *p = list;
    for (int k = 0; items > 1 && k < i; k++)
        p = strchr(p, ',') + 1;
    p += strspn(p, " ");
    size_t len = strcspn(p, ",");
    while (len > 0 && p[len - 1] == ' ')
        len--;
    if (len == 0 || len >= size)
        return sd_fail(err, SD_EINVAL, "%s: bad item %d in '%s'", what, i, list);
    memcpy(out, p, len);
    out[len] = '\0';
    return SD_OK;
}

/* "window window=64": a kind and its options, for layer l; its other fields then follow. */
static sd_status layer_kind(const sd_run *run, const char *kinds, int n, int l, sd_layer_cfg *lc,
                            sd_err *err) {
    char item[sizeof lc->kind + sizeof lc->options];
    SD_TRY(list_item(kinds, "kind", n, l, item, sizeof item, err));
    size_t len = strcspn(item, " "), rest = len + strspn(item + len, " ");
    if (len >= sizeof lc->kind || strlen(item + rest) >= sizeof lc->options)
        return sd_fail(err, SD_EINVAL, "kind: item %d is too long in '%s'", l, kinds);
    memcpy(lc->kind, item, len);
    lc->kind[len] = '\0';
    strcpy(lc->options, item + rest);
    sd_attn_bind(lc, run);
    return check_kind(run, lc->kind, err);
}

static int op_new(const sd_host *host, sd_call *c) {
    sd_err *e = &c->err;
    sd_config cfg;
    memset(&cfg, 0, sizeof cfg);
    sd_model *m = NULL;
    sd_tokenizer *tok = NULL;
    const char *name = host->arg_str(c, "preset"), *family = host->arg_str(c, "family");
    const sd_preset *base = sd_preset_find(name);
    sd_status st = SD_OK;
    if (!base)
        return host->fail(c, SD_EINVAL, "unknown preset '%s'; presets() lists them", name);
    sd_preset p = *base;
    const struct {
        const char *name;
        int *v;
    } sizes[] = {{"n_layer", &p.n_layer},
                 {"width", &p.d_model},
                 {"n_head", &p.n_head},
                 {"vocab", &p.vocab},
                 {"ctx", &p.n_pos}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (host->arg_given(c, sizes[i].name))
            *sizes[i].v = (int)host->arg_int(c, sizes[i].name);
    const char *kinds = host->arg_str(c, "kind"), *d_heads = host->arg_str(c, "d_head");
    const char *norm_text = host->arg_str(c, "norm"), *tok_path = host->arg_str(c, "tokenizer");
    bool gpt2 = strcmp(family, "gpt2") == 0;
    sd_norm norm = norm_text ? strcmp(norm_text, "none") == 0 ? SD_NORM_NONE : SD_NORM_LAYER
                   : gpt2    ? SD_NORM_LAYER
                             : SD_NORM_NONE;
    if (!kinds)
        kinds = gpt2 ? "softmax" : "sd";
    if (tok_path) {
        SD_GO(st, done, sd_tokenizer_open(tok_path, &c->s->run, &tok, e));
        if (!host->arg_given(c, "vocab"))
            p.vocab = sd_tokenizer_vocab_size(tok);
        else if (p.vocab < sd_tokenizer_vocab_size(tok)) {
            st = sd_fail(e, SD_EINVAL, "vocab = %d: the tokenizer has %d entries", p.vocab,
                         sd_tokenizer_vocab_size(tok));
            goto done;
        }
    }
    SD_GO(st, done, sd_preset_config(&p, family, "softmax", norm, &cfg, e));
    for (int l = 0; l < cfg.n_layer; l++) {
        sd_layer_cfg *lc = &cfg.layer[l];
        SD_GO(st, done, layer_kind(&c->s->run, kinds, cfg.n_layer, l, lc, e));
        if (d_heads) {
            int64_t d;
            char item[24];
            SD_GO(st, done, list_item(d_heads, "d_head", cfg.n_layer, l, item, sizeof item, e));
            if (!sd_parse_i64(item, &d) || d < 1 || d > 65536) {
                st = sd_fail(e, SD_EINVAL, "d_head: '%s' is not a head dimension", item);
                goto done;
            }
            lc->d_qk = lc->d_v = (int)d;
        }
        sd_attn_normalize(lc);
        lc->scale = sd_attn_fresh_scale(lc);
    }
    SD_GO(st, done, sd_config_check(&cfg, e));
    SD_GO(st, done, sd_model_new(&cfg, sd_call_seed(c), &m, e));
    if (tok) {
        sd_model_set_tokenizer(m, tok);
        /* Saving copies the file, so that the trained model opens with it. */
        SD_GO(st, done, sd_model_set_tokenizer_source(m, tok_path, e));
    }
done:
    sd_tokenizer_unref(tok);
    sd_config_free(&cfg);
    if (st != SD_OK) {
        sd_model_unref(m);
        m = NULL;
    }
    return sd_call_return_model(c, st, m);
}

static int op_presets(const sd_host *host, sd_call *c) {
    (void)host;
    sd_err *e = &c->err;
    sd_table *t = sd_table_new("presets", e);
    sd_status st = t ? SD_OK : SD_ENOMEM;
    static const char *const ints[] = {"n_layer", "width", "n_head", "d_head", "vocab", "ctx"};
    if (st == SD_OK)
        st = sd_table_add_column(t, "preset", SD_COL_STR, "name for new{}", false, NULL, e);
    for (int i = 0; st == SD_OK && i < 6; i++)
        st = sd_table_add_column(t, ints[i], SD_COL_INT, ints[i], false, NULL, e);
    if (st == SD_OK)
        st = sd_table_add_column(t, "summary", SD_COL_STR, "what it is for", false, NULL, e);
    for (size_t i = 0; st == SD_OK && sd_preset_at(i); i++) {
        const sd_preset *p = sd_preset_at(i);
        const int v[] = {p->n_layer, p->d_model, p->n_head, p->d_head, p->vocab, p->n_pos};
        int row;
        if ((st = sd_table_add_row(t, &row, e)) != SD_OK)
            break;
        st = sd_table_set_str(t, row, "preset", p->name, e);
        for (int k = 0; k < 6; k++)
            sd_table_set_int(t, row, ints[k], v[k]);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "summary", p->summary, e);
    }
    return sd_call_return_table(c, st, t);
}

/* ---- training ----------------------------------------------------------------------------------
 */

typedef struct live {
    sd_call *c;
    const char *column;
} live;

/* The cascade so far, in characters through the log, from the second measurement on; a picture that
 * cannot be drawn stops nothing. */
static void draw_live(void *ctx, const sd_table *cascade) {
    live *l = ctx;
    sd_plot *p = NULL;
    sd_buf out = {0};
    sd_err e = {SD_OK, ""};
    int rows = sd_table_rows(cascade), c = sd_table_find_col(cascade, "step");
    if (rows == 0 || sd_table_int(cascade, 0, c) == sd_table_int(cascade, rows - 1, c))
        return;
    const sd_figure_args a = {.table = cascade, .column = l->column};
    if (sd_figure_plot(sd_figure_cascade, &a, &p, &e) == SD_OK &&
        sd_plot_text(p, 78, 22, &l->c->s->run, &out, &e) == SD_OK && out.p)
        sd_run_log(&l->c->s->run, SD_LOG_INFO, "\n%s", out.p);
    sd_plot_free(p);
    sd_buf_free(&out);
}

static void read_opts(const sd_host *host, sd_call *c, sd_train_opts *o) {
    sd_train_defaults(o);
    for (size_t i = 0; sd_train_opt_at(i); i++) {
        const sd_train_opt *t = sd_train_opt_at(i);
        if (host->arg_given(c, t->name)) /* whole numbers among them are at most 2^53 */
            sd_train_opt_set(o, t, host->arg_num(c, t->name));
    }
    if (!host->arg_given(c, "min_lr"))
        o->min_lr = 0.1 * o->lr;
    o->seed = sd_call_seed(c);
    o->shuffle = host->arg_bool(c, "shuffle");
    o->recompute = host->arg_bool(c, "recompute");
    o->dir = host->arg_str(c, "dir");
    o->overwrite = host->arg_bool(c, "overwrite");
    /* A long run that is killed loses a tenth at most. */
    if (o->dir && !host->arg_given(c, "save_every"))
        o->save_every = o->steps / 10;
}

typedef struct job {
    sd_model *m;
    sd_tokens *train, *val;
    bool *layers;
    char *note; /* lineage of the run: {"version": "...", "args": "..."} */
    sd_train_opts o;
} job;

static void job_free(job *j) {
    sd_model_unref(j->m);
    sd_tokens_free(j->train);
    sd_tokens_free(j->val);
    sd_free(j->layers);
    sd_free(j->note);
}

/* What the trained model's lineage will say, kept in the checkpoint: a resumed run ends with the
 * lineage of an uninterrupted one. */
static sd_status make_note(sd_call *c, job *j, sd_err *err) {
    sd_buf version = {0}, args = {0};
    json_t *note = NULL;
    sd_status st = sd_call_step(c, &version, &args, err);
    if (st == SD_OK) {
        note = json_pack("{s:s, s:s}", "version", version.p, "args", args.p);
        st = note ? sd_json_text(note, 0, &j->note, err) : sd_fail(err, SD_ENOMEM, "out of memory");
    }
    json_decref(note);
    sd_buf_free(&version);
    sd_buf_free(&args);
    return st;
}

/* The step of `train` on the trained model. */
static sd_status add_step(void *ctx, sd_model *m, sd_err *err) {
    const job *j = ctx;
    json_t *note = NULL;
    const char *version, *args;
    sd_status st;
    SD_GO(st, done, sd_json_parse(j->note, strlen(j->note), "checkpoint", &note, err));
    SD_GO(st, done, sd_json_str(note, "version", &version, NULL, err));
    SD_GO(st, done, sd_json_str(note, "args", &args, NULL, err));
    st = sd_model_add_step(m, "train", version, args, err);
done:
    json_decref(note);
    return st;
}

sd_status sd_same_tokenizer(sd_model *m, const sd_tokens *file, sd_err *err) {
    sd_tokenizer *t = sd_model_tokenizer(m);
    uint64_t made = t && file ? sd_tokens_made_with(file) : 0;
    if (made && made != sd_tokens_hash_of(t))
        return sd_fail(err, SD_EINVAL, "%s was made with another tokenizer than the model's",
                       sd_tokens_path(file));
    return SD_OK;
}

int sd_default_ctx(const sd_model *m, int ctx) {
    const sd_config *g = sd_model_config(m);
    return g->pos == SD_POS_LEARNED && g->n_pos < ctx ? g->n_pos : ctx;
}

/* Opens the data, trains, leaves the figure. Layers: "" = all. */
static sd_status run_job(const sd_host *host, sd_call *c, job *j, const char *train_path,
                         const char *val_path, const char *layers) {
    sd_err *e = &c->err;
    sd_table *log = NULL, *cascade = NULL;
    if (layers && layers[0] && strcmp(layers, "all") != 0) {
        int n = sd_model_config(j->m)->n_layer;
        if (!(j->layers = sd_alloc((size_t)n, sizeof *j->layers, e)))
            return SD_ENOMEM;
        SD_TRY(sd_parse_ranges(layers, "layer", n, j->layers, e));
        j->o.layers = j->layers;
    }
    if (!j->train)
        SD_TRY(sd_tokens_open(train_path, host->arg_str(c, "dtype"), &j->train, e));
    if (val_path && val_path[0]) {
        SD_TRY(sd_tokens_open(val_path, host->arg_str(c, "dtype"), &j->val, e));
        if (sd_tokens_count(j->val) < (uint64_t)j->o.ctx + 1) {
            sd_run_log(&c->s->run, SD_LOG_WARN, "%s: fewer than ctx + 1 tokens; not scored",
                       val_path);
            sd_tokens_free(j->val);
            j->val = NULL;
        }
    }
    SD_TRY(sd_same_tokenizer(j->m, j->train, e));
    SD_TRY(sd_same_tokenizer(j->m, j->val, e));
    live l = {c, host->arg_str(c, "column")};
    j->o.note = j->note;
    j->o.finished = add_step;
    j->o.finished_ctx = j;
    if (host->arg_bool(c, "draw")) {
        j->o.measured = draw_live;
        j->o.measured_ctx = &l;
    }
    sd_status st = sd_train(j->m, j->train, j->val, &j->o, &c->s->run, &log, &cascade, e);
    if (st == SD_OK && j->o.dir && cascade && sd_table_rows(cascade) > 0) {
        /* The figure after; without gnuplot its bundle stays and the training is not lost. */
        sd_plot *p = NULL;
        sd_err pe = {SD_OK, ""};
        char *file = sd_path_join(j->o.dir, "cascade.png", NULL);
        const sd_figure_args a = {.table = cascade, .column = l.column};
        if (file && (sd_figure_plot(sd_figure_cascade, &a, &p, &pe) != SD_OK ||
                     sd_plot_file(p, file, &c->s->run, &pe) != SD_OK))
            sd_run_log(&c->s->run, SD_LOG_WARN, "%s", pe.text);
        sd_plot_free(p);
        sd_free(file);
    }
    sd_table_unref(log);
    sd_table_unref(cascade);
    return st;
}

static int finish(sd_call *c, job *j, sd_status st) {
    sd_model *m = j->m;
    if (st == SD_OK)
        j->m = NULL;
    job_free(j);
    return sd_call_return_model(c, st, st == SD_OK ? m : NULL);
}

static int op_train(const sd_host *host, sd_call *c) {
    sd_err *e = &c->err;
    job j = {0};
    const sd_value *text = sd_call_arg(c, "text"), *teacher = sd_call_arg(c, "teacher");
    sd_status st;
    read_opts(host, c, &j.o);
    SD_GO(st, done, make_note(c, &j, e));
    SD_GO(st, done, sd_model_clone(sd_call_arg(c, "model")->model, &j.m, e));
    if (sd_call_arg(c, "ctx")->kind == SD_ARG_NIL)
        j.o.ctx = sd_default_ctx(j.m, j.o.ctx);
    if (teacher->kind == SD_ARG_MODEL)
        j.o.teacher = teacher->model;
    if (text->kind == SD_ARG_TEXT) {
        const int32_t *ids;
        size_t n;
        if (host->arg_str(c, "data")) {
            st =
                sd_fail(e, SD_EINVAL, "data= and text= are both given: only one can be trained on");
            goto done;
        }
        SD_GO(st, done, sd_call_ids(c, "text", j.m, &ids, &n));
        SD_GO(st, done, sd_tokens_from_ids(ids, n, &j.train, e));
    } else if (!host->arg_str(c, "data")) {
        st = sd_fail(e, SD_EINVAL, "give data=\"corpus.train.bin\" (made by tokenize) or text=");
        goto done;
    }
    st = run_job(host, c, &j, host->arg_str(c, "data"), host->arg_str(c, "val"),
                 host->arg_str(c, "layers"));
done:
    return finish(c, &j, st);
}

static int op_resume(const sd_host *host, sd_call *c) {
    sd_err *e = &c->err;
    job j = {0};
    sd_train_state state = {0};
    const char *dir = host->arg_str(c, "dir"), *data = host->arg_str(c, "data"),
               *val = host->arg_str(c, "val");
    const sd_value *teacher = sd_call_arg(c, "teacher"), *text = sd_call_arg(c, "text");
    char *path = NULL;
    sd_status st;
    SD_GO(st, done, sd_train_peek(dir, &state, e));
    j.o = state.opts;
    j.o.dir = dir;
    j.o.resume = true;
    if (state.note[0])
        st = (j.note = sd_strdup(state.note, e)) ? SD_OK : SD_ENOMEM;
    else
        st = make_note(c, &j, e);
    if (st != SD_OK)
        goto done;
    /* The shape, the tokenizer and the lineage before the training; its values are the
     * checkpoint's. */
    st = (path = sd_path_join(dir, "start", e)) ? SD_OK : SD_ENOMEM;
    if (st != SD_OK)
        goto done;
    if (!sd_path_is_dir(path)) { /* a folder of before start/ was kept */
        sd_free(path);
        if (!(path = sd_path_join(dir, "model", e))) {
            st = SD_ENOMEM;
            goto done;
        }
    }
    SD_GO(st, done, sd_model_open(path, &c->s->run, &j.m, e));
    SD_GO(st, done, sd_model_set_name(j.m, sd_path_base(dir), e));
    if (teacher->kind == SD_ARG_MODEL) {
        j.o.teacher = teacher->model;
    } else if (state.distilled) {
        st = sd_fail(e, SD_EINVAL, "this run was distilled: give its teacher again");
        goto done;
    }
    if (text->kind == SD_ARG_TEXT) {
        const int32_t *ids;
        size_t n;
        SD_GO(st, done, sd_call_ids(c, "text", j.m, &ids, &n));
        SD_GO(st, done, sd_tokens_from_ids(ids, n, &j.train, e));
    } else if (!data && strcmp(state.train_path, "ids") == 0) {
        st = sd_fail(e, SD_EINVAL, "this run was trained on a text: give it again with text=");
        goto done;
    }
    st = run_job(host, c, &j, data ? data : state.train_path, val ? val : state.val_path,
                 state.layers);
done:
    sd_free(path);
    sd_train_state_free(&state);
    return finish(c, &j, st);
}

static int op_training(const sd_host *host, sd_call *c) {
    sd_table *t = NULL;
    sd_status st = sd_train_table(host->arg_str(c, "dir"), host->arg_str(c, "which"), &t, &c->err);
    return sd_call_return_table(c, st, t);
}

/* ---- descriptors -------------------------------------------------------------------------------
 */

#define BIG 9007199254740992.0

static const sd_arg_desc tokenizer_args[] = {
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "a text file, or a folder of .txt files"},
    INT_ARG("vocab", "8192", 258, 1000000, "entries: 256 bytes, merges, one special"),
    {.name = "out", .kind = SD_ARG_PATH, .dflt = "tokenizer.json", .doc = "file to write"},
};
static const sd_arg_desc tokenize_args[] = {
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "a text file, or a folder of .txt files; a line <|endoftext|> parts documents"},
    {.name = "tokenizer",
     .kind = SD_ARG_PATH,
     .dflt = "tokenizer.json",
     .doc = "a tokenizer file or a folder that holds one"},
    {.name = "out", .kind = SD_ARG_PATH, .dflt = "corpus", .doc = "OUT.train.bin and OUT.val.bin"},
    NUM_ARG("holdout", "0.01", 0, 0.9, "share of documents held out"),
    SEED_ARG("seed of the split"),
};
static const sd_arg_desc new_args[] = {
    {.name = "preset", .kind = SD_ARG_STR, .dflt = "mini", .doc = "a size of presets()"},
    {.name = "family",
     .kind = SD_ARG_CHOICE,
     .dflt = "sd",
     .choices = "sd|gpt2",
     .doc = "layout: sd (any kind, with or without norm) or gpt2"},
    {.name = "kind",
     .kind = SD_ARG_STR,
     .doc = "attention kind, one or one a layer: \"sd\", \"softmax\", \"elu1,elu1,sd,sd\""},
    {.name = "norm",
     .kind = SD_ARG_CHOICE,
     .choices = "none|layernorm",
     .doc = "norm; absent: none for family sd, layernorm for gpt2"},
    INT_ARG("n_layer", NULL, 1, 1000, "layers, instead of the preset's"),
    INT_ARG("width", NULL, 1, 65536, "model width D, instead of the preset's"),
    INT_ARG("n_head", NULL, 1, 1024, "heads, instead of the preset's"),
    {.name = "d_head",
     .kind = SD_ARG_STR,
     .doc = "head dimension, one or one a layer: \"8,8,16,64\""},
    INT_ARG("vocab", NULL, 1, 1000000, "vocabulary; absent: the tokenizer's, else the preset's"),
    INT_ARG("ctx", NULL, 1, 1048576, "positions, instead of the preset's"),
    {.name = "tokenizer", .kind = SD_ARG_PATH, .doc = "tokenizer the model is to use"},
    SEED_ARG("seed of the weights"),
};
static const sd_arg_desc train_args[] = {
    {.name = "model",
     .kind = SD_ARG_MODEL,
     .flags = SD_ARG_REQUIRED,
     .doc = "the model to start from; untouched"},
    {.name = "data", .kind = SD_ARG_PATH, .doc = "token file, made by tokenize"},
    {.name = "val", .kind = SD_ARG_PATH, .doc = "held-out token file"},
    {.name = "dtype",
     .kind = SD_ARG_CHOICE,
     .choices = "uint16|uint32",
     .doc = "type of the ids in token files that do not say it themselves"},
    {.name = "text", .kind = SD_ARG_TEXT, .doc = "a text to train on instead of a token file"},
    {.name = "dir", .kind = SD_ARG_PATH, .doc = "folder for checkpoint, log, cascade and model"},
    INT_ARG("steps", "1000", 1, BIG, "updates in all"),
    INT_ARG("batch", "8", 1, 65536, "sequences a micro-batch"),
    INT_ARG("ctx", NULL, 1, 1048576,
            "tokens a sequence; absent: 256, or the position table if smaller"),
    INT_ARG("accum", "1", 1, 65536, "micro-batches an update"),
    NUM_ARG("lr", "0.0006", 0, 1e9, "highest learning rate"),
    NUM_ARG("min_lr", NULL, 0, 1e9, "learning rate at the end; absent: a tenth of lr"),
    INT_ARG("warmup", NULL, 0, BIG, "steps of warm-up; absent: 5%, at most 200"),
    NUM_ARG("decay", "0.1", 0, 10, "decoupled weight decay of matrices"),
    NUM_ARG("beta1", "0.9", 0, 0.9999999, "AdamW's first moment"),
    NUM_ARG("beta2", "0.95", 0, 0.9999999, "AdamW's second moment"),
    NUM_ARG("eps", "1e-8", 0, 1, "AdamW's epsilon"),
    NUM_ARG("clip", "1", 0, 1e9, "limit of the gradient's norm; 0: none"),
    {.name = "layers", .kind = SD_ARG_LAYERS, .doc = "train only these layers; absent: everything"},
    {.name = "teacher", .kind = SD_ARG_MODEL, .doc = "distil from this model"},
    NUM_ARG("teacher_weight", "0.5", 0, 1, "share of the teacher in the loss"),
    NUM_ARG("mlm", "0.15", 0.001, 0.99, "encoders: share of tokens masked"),
    {.name = "shuffle", .kind = SD_ARG_BOOL, .dflt = "true", .doc = "sequences in random order"},
    {.name = "recompute",
     .kind = SD_ARG_BOOL,
     .dflt = "false",
     .doc = "run each layer's forward again in backward: less memory, more time"},
    INT_ARG("eval_every", "0", 0, BIG, "held-out loss every so many steps; 0: at the end"),
    INT_ARG("eval_tokens", "32768", 1, BIG, "held-out tokens scored"),
    INT_ARG("measure_every", "0", 0, BIG, "ranks every so many steps, at 0 and the end; 0: never"),
    INT_ARG("measure_seqs", "2", 1, 1000, "sequences of the fixed measuring batch"),
    INT_ARG("measure_draws", "10", 0, 1000, "random-weight draws of the nulls"),
    INT_ARG("save_every", NULL, 0, BIG,
            "checkpoint every so many steps; absent: a tenth of the run; 0: at the end"),
    {.name = "overwrite",
     .kind = SD_ARG_BOOL,
     .dflt = "false",
     .doc = "remove a run that dir already holds, instead of refusing"},
    {.name = "draw",
     .kind = SD_ARG_BOOL,
     .dflt = "true",
     .doc = "draw the cascade in characters after each measurement"},
    {.name = "column", .kind = SD_ARG_STR, .dflt = "c_pr", .doc = "the rank to draw"},
    SEED_ARG("seed of the data order"),
};
static const sd_arg_desc resume_args[] = {
    {.name = "dir", .kind = SD_ARG_PATH, .flags = SD_ARG_REQUIRED, .doc = "a training folder"},
    {.name = "data", .kind = SD_ARG_PATH, .doc = "token file, if it was moved"},
    {.name = "val", .kind = SD_ARG_PATH, .doc = "held-out token file, if it was moved"},
    {.name = "dtype",
     .kind = SD_ARG_CHOICE,
     .choices = "uint16|uint32",
     .doc = "type of the ids in token files that do not say it themselves"},
    {.name = "text", .kind = SD_ARG_TEXT, .doc = "the text, for a run that was given one"},
    {.name = "teacher", .kind = SD_ARG_MODEL, .doc = "the teacher, for a run that had one"},
    {.name = "draw",
     .kind = SD_ARG_BOOL,
     .dflt = "true",
     .doc = "draw the cascade in characters after each measurement"},
    {.name = "column", .kind = SD_ARG_STR, .dflt = "c_pr", .doc = "the rank to draw"},
};
static const sd_arg_desc training_args[] = {
    {.name = "dir", .kind = SD_ARG_PATH, .flags = SD_ARG_REQUIRED, .doc = "a training folder"},
    {.name = "which",
     .kind = SD_ARG_CHOICE,
     .dflt = "log",
     .choices = "log|cascade",
     .doc = "log: one row a step; cascade: one row a measured step and layer"},
};

#define OP(name_, returns_, args_, run_)                                                  \
    .struct_size = sizeof(sd_op_desc), .returns = returns_, .name = name_, .args = args_, \
    .n_args = N(args_), .run = run_

static const sd_op_desc ops[] = {
    {OP("train_tokenizer", SD_ARG_STR, tokenizer_args, op_train_tokenizer),
     .summary = "train a byte-level BPE on text files",
     .details = "GPT-2's pre-tokeniser, merges by frequency, ties to the smaller pair: the same "
                "text gives the same file. The result is a tokenizer.json that other tools read.",
     .example = "f = os.tmpname()\n"
                "train_tokenizer('data/introduction.txt', {vocab=400, out=f})\n"
                "os.remove(f)",
     .returns_doc = "the file's path"},
    {OP("tokenize", SD_ARG_TABLE, tokenize_args, op_tokenize),
     .summary = "text files to token files for training",
     .details =
         "Writes OUT.train.bin and OUT.val.bin (little-endian uint16, or uint32 for large "
         "vocabularies) with OUT.*.bin.json beside them. Whole documents are held out (of a single "
         "one its tail), "
         "chosen by the seed.",
     .example = "f = os.tmpname()\n"
                "r = tokenize('data/introduction.txt', {tokenizer='data/interim-sd', out=f})\n"
                "assert(r:row(0).train_tokens > 5000)",
     .returns_doc = "a table of one row: documents, bytes, tokens of both files"},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "presets",
     .run = op_presets,
     .summary = "sizes that new knows by name",
     .details = "The paper's scales with GPT-2's vocabulary, and small ones.",
     .example = "assert(#presets() >= 6)",
     .returns_doc = "a table"},
    {OP("new", SD_ARG_MODEL, new_args, op_new),
     .summary = "a fresh model from a config, to inspect or train",
     .details = "new{preset=\"mini\", tokenizer=\"tokenizer.json\"} is an S-D model without norm; "
                "family=\"gpt2\" its standard twin. kind and d_head take one value or one a layer, "
                "so that hybrids and cascade-shaped models train from scratch.",
     .example = "x = new{preset='nano', kind='elu1,sd', d_head='8,32', n_layer=2}\n"
                "assert(x.n_params > 0)",
     .returns_doc = "a model"},
    {OP("train", SD_ARG_MODEL, train_args, op_train),
     .flags = SD_OP_NO_LINEAGE, /* it records its own step, before the model is written */
     .summary = "train a model on tokens and watch its ranks form",
     .details =
         "AdamW with warm-up and cosine. The model given is untouched. With dir= everything is "
         "kept "
         "there: checkpoint.safetensors to resume from, log and cascade as .csv and .jsonl "
         "(written "
         "while it runs; training(dir) reads them), cascade.png, start/ (the model as it was) and "
         "model/ (as it became). Ctrl-C leaves a checkpoint, and resume(dir) goes on to the same "
         "result, bit for bit, as an uninterrupted run at an equal number of threads. With "
         "measure_every= the ranks of every layer and their nulls are measured on a fixed held-out "
         "batch and drawn. A non-finite loss stops the run before the update and names the "
         "tensor.\n\n"
         "After surgery, layers= trains the operated layers alone and teacher= distils from the "
         "original: the loss is then (1 - teacher_weight) of the text's and teacher_weight of the "
         "cross-entropy to the teacher.",
     .example = "x = train(m, {text=t, steps=2, batch=1, ctx=32})\n"
                "assert(nll(x, t) ~= nll(m, t))",
     .returns_doc = "the trained model"},
    {OP("resume", SD_ARG_MODEL, resume_args, op_resume), .flags = SD_OP_NO_LINEAGE,
     .summary = "go on with an interrupted training",
     .details = "Continues from the folder's checkpoint to the number of steps first asked for, "
                "with the same schedule, data order and seed: bit for bit what the uninterrupted "
                "run gives at an equal number of threads, and with its lineage.",
     .example = "dir = os.tmpname(); os.remove(dir)\n"
                "x = train(m, {text=t, steps=2, batch=1, ctx=32, dir=dir})\n"
                "y = resume(dir, {text=t})\n"
                "assert(nll(x, t) == nll(y, t))",
     .returns_doc = "the trained model"},
    {OP("training", SD_ARG_TABLE, training_args, op_training),
     .summary = "log or cascade of a training folder, as a table",
     .details = "Reads what train wrote, also while it runs.",
     .example = "dir = os.tmpname(); os.remove(dir)\n"
                "x = train(m, {text=t, steps=3, batch=1, ctx=32, dir=dir})\n"
                "assert(#training(dir) == 3)",
     .returns_doc = "a table"},
};

sd_builtin_group sd_ops_train(void) {
    return (sd_builtin_group){ops, N(ops)};
}
