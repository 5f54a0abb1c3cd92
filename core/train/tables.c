/* tables.c: the log and the cascade of a run as tables, and their files. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "spectral/columns.h"
#include "train/internal.h"

typedef struct col {
    const char *name;
    sd_col_kind kind;
    bool wide;
    const char *doc;
} col;

static const col log_cols[] = {
    {"step", SD_COL_INT, false, "updates done"},
    {"tokens", SD_COL_INT, false, "tokens trained on so far"},
    {"loss", SD_COL_NUM, false, "mean negative log-likelihood of the step, nats a token"},
    {"val_loss", SD_COL_NUM, false, "held-out loss, where it was measured"},
    {"lr", SD_COL_NUM, false, "learning rate of the step"},
    {"grad_norm", SD_COL_NUM, false, "gradient norm before clipping"},
    {"tokens_s", SD_COL_NUM, false, "tokens a second"},
    {"mfu", SD_COL_NUM, false, "model FLOPs over the matrix-product rate measured at the start"},
};

/* Before and after the declared ones (SD_IN_CASCADE). */
static const col cascade_head[] = {
    {"step", SD_COL_INT, false, "updates done"},
    {"tokens", SD_COL_INT, false, "tokens trained on so far"},
    {"layer", SD_COL_INT, false, "layer, from 0"},
};
static const col cascade_tail[] = {
    {"max_re_l", SD_COL_NUM, false, "S-D: largest Re of L's eigenvalues over heads"},
    {"min_d", SD_COL_NUM, true, "S-D: smallest diagonal"},
    {"stability", SD_COL_INT, false, "S-D: 1 when every stability test behaves as it must"},
};

static sd_status add(sd_table *t, const col *c, size_t n, sd_err *err) {
    for (size_t i = 0; i < n; i++)
        SD_TRY(sd_table_add_column(t, c[i].name, c[i].kind, c[i].doc, c[i].wide, NULL, err));
    return SD_OK;
}

static sd_status made(sd_status st, sd_table *t, sd_table **out) {
    if (st != SD_OK)
        sd_table_unref(t);
    else
        *out = t;
    return st;
}

sd_status sd_log_new(sd_table **out, sd_err *err) {
    sd_table *t = sd_table_new("training", err);
    sd_status st = t ? add(t, log_cols, sizeof log_cols / sizeof *log_cols, err) : SD_ENOMEM;
    return made(st, t, out);
}

sd_status sd_cascade_new(sd_table **out, sd_err *err) {
    sd_table *t = sd_table_new("cascade", err);
    sd_status st =
        t ? add(t, cascade_head, sizeof cascade_head / sizeof *cascade_head, err) : SD_ENOMEM;
    if (st == SD_OK)
        st = sd_columns_add(t, SD_IN_CASCADE, err);
    if (st == SD_OK)
        st = add(t, cascade_tail, sizeof cascade_tail / sizeof *cascade_tail, err);
    return made(st, t, out);
}

/* The column of a cell under the name it has today: runs of before keep theirs in their files. */
static const char *present_name(const char *name) {
    const char *now = sd_column_renamed(name);
    return now ? now : !strcmp(name, "stable") ? "stability" : name;
}

static sd_status file_of(const char *dir, const char *which, const char *ext, sd_buf *out,
                         sd_err *err) {
    sd_buf_clear(out);
    sd_buf_printf(out, "%s/%s.%s", dir, which, ext);
    return sd_buf_status(out, err);
}

sd_status sd_rows_load(const char *dir, const char *which, int64_t last, sd_table *t, sd_err *err) {
    sd_buf path = {0}, text = {0};
    json_t *obj = NULL;
    sd_status st;
    SD_GO(st, done, file_of(dir, which, "jsonl", &path, err));
    if (!sd_path_exists(path.p))
        goto done;
    SD_GO(st, done, sd_read_file(path.p, (uint64_t)1 << 30, &text, err));
    for (char *p = text.p; p && *p;) {
        char *nl = strchr(p, '\n');
        size_t n = nl ? (size_t)(nl - p) : strlen(p);
        SD_GO(st, done, sd_json_parse(p, n, path.p, &obj, err));
        int64_t step;
        SD_GO(st, done, sd_json_i64(obj, "step", 0, INT64_MAX / 2, &step, NULL, err));
        if (step <= last) {
            int row;
            SD_GO(st, done, sd_table_add_row(t, &row, err));
            const char *key;
            json_t *v;
            json_object_foreach(obj, key, v) {
                const char *name = present_name(key);
                int c = sd_table_find_col(t, name);
                if (c < 0)
                    continue;
                if (json_is_integer(v) && sd_table_col_kind(t, c) == SD_COL_INT)
                    sd_table_set_int(t, row, name, json_integer_value(v));
                else if (json_is_number(v) && sd_table_col_kind(t, c) == SD_COL_NUM)
                    sd_table_set_num(t, row, name, json_number_value(v));
            }
        }
        json_decref(obj);
        obj = NULL;
        p = nl ? nl + 1 : NULL;
    }
done:
    json_decref(obj);
    sd_buf_free(&path);
    sd_buf_free(&text);
    return st;
}

sd_status sd_rows_save(const char *dir, const char *which, const sd_table *t, sd_err *err) {
    sd_buf path = {0}, text = {0};
    sd_status st;
    SD_GO(st, done, file_of(dir, which, "csv", &path, err));
    SD_GO(st, done, sd_table_csv(t, &text, err));
    SD_GO(st, done, sd_write_file(path.p, text.p, text.n, err));
    sd_buf_clear(&text);
    for (int r = 0; r < sd_table_rows(t); r++) {
        sd_buf_putc(&text, '{');
        for (int c = 0; c < sd_table_cols(t); c++) {
            sd_buf_printf(&text, "%s\"%s\": ", c ? ", " : "", sd_table_col_name(t, c));
            if (!sd_table_has(t, r, c))
                sd_buf_puts(&text, "null");
            else if (sd_table_col_kind(t, c) == SD_COL_INT)
                sd_buf_printf(&text, "%lld", (long long)sd_table_int(t, r, c));
            else
                sd_buf_json_double(&text, sd_table_num(t, r, c));
        }
        sd_buf_puts(&text, "}\n");
    }
    SD_GO(st, done, sd_buf_status(&text, err));
    SD_GO(st, done, file_of(dir, which, "jsonl", &path, err));
    SD_GO(st, done, sd_write_file(path.p, text.p ? text.p : "", text.n, err));
done:
    sd_buf_free(&path);
    sd_buf_free(&text);
    return st;
}

sd_status sd_train_table(const char *dir, const char *which, sd_table **out, sd_err *err) {
    *out = NULL;
    bool log = strcmp(which, "log") == 0;
    if (!log && strcmp(which, "cascade") != 0)
        return sd_fail(err, SD_EINVAL, "unknown table '%s': log or cascade", which);
    if (!sd_path_is_dir(dir))
        return sd_fail(err, SD_EFILE, "%s: no such training folder", dir);
    sd_table *t;
    SD_TRY(log ? sd_log_new(&t, err) : sd_cascade_new(&t, err));
    sd_status st = sd_rows_load(dir, which, INT64_MAX, t, err);
    if (st == SD_OK && sd_table_rows(t) == 0)
        st = sd_fail(err, SD_EFILE, "%s: holds no %s.jsonl", dir, which);
    if (st == SD_OK)
        st = sd_table_meta_str(t, "model", sd_path_base(dir), err);
    if (st != SD_OK) {
        sd_table_unref(t);
        return st;
    }
    *out = t;
    return SD_OK;
}
