/* ops_sweep.c: one measurement over a series of checkpoints. Published training series exist whose
 * branches all carry the final weights, so equal checkpoints are named before anything is shown. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/os.h"
#include "host/args.h"
#include "host/host.h"
#include "spectral/spectral.h"

typedef struct member {
    char *name, *path;
    uint64_t hash;
    int64_t step; /* the last number in the name, -1 without one */
} member;

typedef struct series {
    member *v;
    size_t n, cap;
} series;

static void series_free(series *s) {
    for (size_t i = 0; i < s->n; i++) {
        sd_free(s->v[i].name);
        sd_free(s->v[i].path);
    }
    sd_free(s->v);
}

static int64_t last_number(const char *name) {
    int64_t v = -1;
    for (const char *p = name; *p;) {
        if (!isdigit((unsigned char)*p)) {
            p++;
            continue;
        }
        for (v = 0; isdigit((unsigned char)*p); p++)
            v = v > INT64_MAX / 100 ? v : 10 * v + (*p - '0');
    }
    return v;
}

/* By step, then by name: step2 before step10. */
static bool before(const member *a, const member *b) {
    return a->step != b->step ? a->step < b->step : strcmp(a->name, b->name) < 0;
}

/* Hash of every tensor's name, type, shape and bytes: metadata and file layout do not count. */
static sd_status hash_weights(const char *path, const sd_run *run, uint64_t *out, sd_err *err) {
    sd_container *c = NULL;
    SD_TRY(sd_container_open(path, run, &c, err));
    sd_status st = SD_OK;
    uint64_t sum = 0;
    for (size_t i = 0; st == SD_OK && i < sd_container_count(c); i++) {
        const sd_tensor_info *info = sd_container_at(c, i);
        sd_tensor *t = NULL;
        st = sd_check_cancel(err);
        if (st == SD_OK)
            st = sd_container_read(c, i, &t, err);
        if (st != SD_OK)
            break;
        uint64_t h = sd_hash64(info->name, strlen(info->name), (uint64_t)info->dtype);
        h = sd_hash64(info->shape, (size_t)info->ndim * sizeof *info->shape, h);
        sum += sd_hash64(t->data, sd_tensor_nbytes(t), h); /* whatever the order in the file */
        sd_tensor_free(t);
    }
    sd_container_unref(c);
    *out = sum;
    return st;
}

/* Every folder or weight file directly inside `path` that opens as a checkpoint. */
static sd_status find_members(const char *path, const sd_run *run, series *out, sd_err *err) {
    char **names = NULL;
    size_t n = 0;
    SD_TRY(sd_list_dir(path, &names, &n, err));
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        size_t k = strlen(names[i]);
        member m = {.name = names[i], .step = last_number(names[i])};
        names[i] = NULL;
        m.path = sd_path_join(path, m.name, err);
        bool dir = m.path && sd_path_is_dir(m.path);
        bool file = (k > 12 && strcmp(m.name + k - 12, ".safetensors") == 0) ||
                    (k > 5 && strcmp(m.name + k - 5, ".gguf") == 0);
        sd_err e = {SD_OK, ""};
        st = m.path ? SD_OK : SD_ENOMEM;
        sd_status opened =
            st == SD_OK && (dir || file) ? hash_weights(m.path, run, &m.hash, &e) : SD_EINVAL;
        if (opened == SD_ECANCEL || opened == SD_ENOMEM) {
            st = opened;
            *err = e;
        } else if (opened != SD_OK && (dir || file)) {
            sd_run_log(run, SD_LOG_WARN, "%s: left out of the sweep: %s", m.name, e.text);
        }
        void *v = out->v;
        if (st == SD_OK && opened == SD_OK)
            st = sd_grow(&v, &out->cap, out->n + 1, sizeof m, err);
        out->v = v;
        if (st != SD_OK || opened != SD_OK) {
            sd_free(m.name);
            sd_free(m.path);
            continue;
        }
        size_t at = out->n++;
        for (; at > 0 && before(&m, &out->v[at - 1]); at--)
            out->v[at] = out->v[at - 1];
        out->v[at] = m;
    }
    for (size_t i = 0; i < n; i++)
        sd_free(names[i]);
    sd_free(names);
    if (st == SD_OK && out->n == 0)
        st = sd_fail(err, SD_EFILE, "%s: holds no checkpoints", path);
    return st;
}

static sd_status add_member(sd_call *c, const sd_host *host, const member *m, sd_table *t) {
    sd_err *e = &c->err;
    sd_model *model = NULL;
    sd_table *rows = NULL, *sum = NULL;
    const sd_value *text = sd_call_arg(c, "text");
    int draws = sd_call_draws(c);
    uint64_t seed = sd_call_seed(c);
    sd_status st;
    SD_GO(st, done, sd_model_open(m->path, &c->s->run, &model, e));
    if (text->kind == SD_ARG_TEXT) {
        const int32_t *ids;
        size_t n;
        sd_probe_opts o = {.ctx = (int)host->arg_int(c, "ctx"),
                           .max_seqs = (int)host->arg_int(c, "seqs"),
                           .null_draws = draws,
                           .tau = 3.0,
                           .seed = seed};
        SD_GO(st, done, sd_call_ids(c, "text", model, &ids, &n));
        SD_GO(st, done, sd_probe(model, ids, n, &o, &c->s->run, &rows, e));
    } else {
        sd_heads_opts o = {.null_draws = draws, .seed = seed};
        SD_GO(st, done, sd_heads(model, &o, &c->s->run, &rows, e));
    }
    SD_GO(st, done, sd_rank_summary(rows, 3.0, &sum, e));
    int cl = sd_table_find_col(sum, "layer");
    for (int r = 0; r < sd_table_rows(sum); r++) {
        int row;
        SD_GO(st, done, sd_table_add_row(t, &row, e));
        SD_GO(st, done, sd_table_set_str(t, row, "checkpoint", m->name, e));
        if (m->step >= 0)
            sd_table_set_int(t, row, "step", m->step);
        sd_table_set_int(t, row, "layer", sd_table_int(sum, r, cl));
        sd_columns_copy(t, row, SD_IN_SWEEP, sum, r);
    }
done:
    sd_err_context(st == SD_OK ? NULL : e, "%s", m->name);
    sd_table_unref(rows);
    sd_table_unref(sum);
    sd_model_unref(model);
    return st;
}

static int op_sweep(const sd_host *host, sd_call *c) {
    sd_err *e = &c->err;
    const char *path = host->arg_str(c, "path");
    series s = {0};
    sd_table *t = NULL;
    sd_status st;
    SD_GO(st, done, find_members(path, &c->s->run, &s, e));
    st = (t = sd_table_new("sweep", e)) ? SD_OK : SD_ENOMEM;
    if (st != SD_OK)
        goto done;
    SD_GO(st, done,
          sd_table_add_column(t, "checkpoint", SD_COL_STR, "its name in the folder", false, NULL,
                              e));
    SD_GO(st, done,
          sd_table_add_column(t, "step", SD_COL_INT, "the last number in the name", false, NULL,
                              e));
    SD_GO(st, done, sd_table_add_column(t, "layer", SD_COL_INT, "layer, from 0", false, NULL, e));
    SD_GO(st, done, sd_columns_add(t, SD_IN_SWEEP, e));
    SD_GO(st, done, sd_table_heading(t, e, "medians over heads"));
    SD_GO(st, done, sd_table_meta_str(t, "model", sd_path_base(path), e));
    /* Before any curve: checkpoints that are the same weights under several names. */
    size_t equal = 0;
    for (size_t i = 0; i < s.n; i++)
        for (size_t j = i + 1; j < s.n; j++)
            if (s.v[i].hash == s.v[j].hash) {
                equal++;
                sd_run_log(&c->s->run, SD_LOG_WARN, "%s and %s hold the same weights", s.v[i].name,
                           s.v[j].name);
                SD_GO(st, done,
                      sd_table_note(t, e, "%s and %s hold the same weights", s.v[i].name,
                                    s.v[j].name));
            }
    SD_GO(st, done, sd_table_meta_num(t, "equal_pairs", (double)equal, e));
    for (size_t i = 0; i < s.n; i++) {
        sd_run_progress(&c->s->run, "sweep", (double)i, (double)s.n);
        SD_GO(st, done, sd_check_cancel(e));
        SD_GO(st, done, add_member(c, host, &s.v[i], t));
    }
done:
    series_free(&s);
    if (st != SD_OK) {
        sd_table_unref(t);
        t = NULL;
    }
    return sd_call_return_table(c, st, t);
}

static const sd_arg_desc sweep_args[] = {
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "a folder of checkpoints: folders, .safetensors or .gguf files"},
    {.name = "text", .kind = SD_ARG_TEXT, .doc = "measure on this text; absent: the weights"},
    CTX_ARG,
    INT_ARG("seqs", "2", 0, 1000000, "sequences; 0: what the text holds, at most 8"),
    DRAWS_ARG("draws of the null; 0: none"),
    SEED_ARG("seed of the null"),
};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "sweep",
     .summary = "ranks per layer over a folder of checkpoints",
     .details = "Opens every checkpoint in the folder, in the order of the last number in its "
                "name, and measures it: its weights, or a text. Checkpoints that hold the same "
                "weights are named first, in a warning and below the table: there are published "
                "training series whose steps all carry the final weights. What does not open is "
                "left out with a warning.",
     .example = "s = sweep('data', {draws=2})\nassert(#s == 12)",
     .returns_doc = "a table: one row a checkpoint and layer",
     .args = sweep_args,
     .n_args = N(sweep_args),
     .run = op_sweep},
};

sd_builtin_group sd_ops_sweep(void) {
    return (sd_builtin_group){ops, N(ops)};
}
