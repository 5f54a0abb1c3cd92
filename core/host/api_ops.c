/* api_ops.c: the plugin table's groups "operations" and "files". */
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "host/api.h"

static bool h_op_known(sd_call *c, const char *name) {
    return name && sd_op_find(c->s, name) != NULL;
}

/* The value as the registry takes it: references counted, strings copied. */
static sd_status value_in(sd_call *c, const sd_hvalue *in, sd_value *out) {
    sd_handle *h = NULL;
    out->kind = (sd_arg_kind)in->kind;
    switch (out->kind) {
    case SD_ARG_NIL:
        return SD_OK;
    case SD_ARG_BOOL:
        out->b = in->num != 0;
        return SD_OK;
    case SD_ARG_INT:
        out->i = (int64_t)in->num;
        out->f = in->num;
        return SD_OK;
    case SD_ARG_NUM:
        out->f = in->num;
        return SD_OK;
    case SD_ARG_STR:
    case SD_ARG_CHOICE:
    case SD_ARG_LAYERS:
    case SD_ARG_PATH:
        out->kind = SD_ARG_STR; /* converts to each of the others */
        if (!in->str)
            return sd_fail(&c->err, SD_EINVAL, "op_run: %s is a string that is NULL", in->name);
        out->s = sd_strdup(in->str, &c->err);
        out->s_len = strlen(in->str);
        return out->s ? SD_OK : SD_ENOMEM;
    case SD_ARG_MODEL:
        if ((h = sd_api_model_of(c, in->model)) != NULL)
            out->model = sd_model_ref(h->u.model);
        break;
    case SD_ARG_TEXT:
        if ((h = sd_api_check(c, in->text, H_TEXT)) != NULL)
            out->text = sd_text_ref(h->u.text);
        break;
    case SD_ARG_TABLE:
        if ((h = sd_api_check(c, in->table, H_TABLE)) != NULL)
            out->table = sd_table_ref(h->u.table);
        break;
    default:
        break;
    }
    if (!h)
        out->kind = SD_ARG_NIL;
    return h                      ? SD_OK
           : c->err.code != SD_OK ? c->err.code
                                  : sd_fail(&c->err, SD_EINVAL, "op_run: %s is of kind %u",
                                            in->name ? in->name : "a value", in->kind);
}

static sd_status value_out(sd_call *c, const sd_value *v, sd_hvalue *out) {
    sd_handle *h = NULL;
    memset(out, 0, sizeof *out);
    out->kind = (uint32_t)v->kind;
    out->num = v->kind == SD_ARG_BOOL ? v->b : v->f;
    if (v->s) {
        char *s = sd_api_alloc(c, v->s_len + 1, 1);
        if (!s)
            return SD_ENOMEM;
        memcpy(s, v->s, v->s_len);
        out->str = s;
    }
    if (v->kind == SD_ARG_MODEL && (h = sd_api_new(c, H_MODEL)) != NULL) {
        h->u.model = sd_model_ref(v->model);
        out->model = (sd_hmodel *)h;
    } else if (v->kind == SD_ARG_TABLE && (h = sd_api_new(c, H_TABLE)) != NULL) {
        h->u.table = sd_table_ref(v->table);
        out->table = (sd_htable *)h;
    } else if (v->kind == SD_ARG_MODEL || v->kind == SD_ARG_TABLE) {
        return SD_ENOMEM;
    } else if (v->kind == SD_ARG_TENSOR) {
        return sd_fail(&c->err, SD_EINVAL, "op_run: tensors are not handed out");
    }
    return SD_OK;
}

static int h_op_run(sd_call *c, const char *name, const sd_hvalue *args, size_t n, sd_hvalue *out) {
    const sd_op *op = name ? sd_op_find(c->s, name) : NULL;
    if (!op)
        return sd_api_fail(c, SD_EINVAL,
                           "the operation %.60s is not there: load the plugin that has it",
                           name ? name : "NULL");
    if (!out)
        return sd_api_fail(c, SD_EINVAL, "op_run without a place for the result");
    uint32_t n_args = op->desc->n_args;
    sd_value *v = sd_alloc(n_args ? n_args : 1, sizeof *v, &c->err), result = {0};
    sd_status st = v ? SD_OK : SD_ENOMEM;
    for (size_t i = 0; st == SD_OK && i < n; i++) {
        int at;
        st = sd_op_arg_find(op->desc, args[i].name ? args[i].name : "", &at, &c->err);
        if (st == SD_OK)
            st = value_in(c, &args[i], &v[at]);
    }
    if (st == SD_OK)
        st = sd_op_call_inner(c->s, op, v, &result, &c->err);
    if (st == SD_OK)
        st = value_out(c, &result, out);
    sd_value_clear(&result);
    for (uint32_t i = 0; v && i < n_args; i++)
        sd_value_clear(&v[i]);
    sd_free(v);
    return (int)st;
}

static int h_write_file(sd_call *c, const char *path, const char *data, size_t n) {
    if (!path || !*path || (!data && n))
        return sd_api_fail(c, SD_EINVAL, "write_file without a path or data");
    return (int)sd_write_file(path, data, n, &c->err);
}

void sd_api_ops(sd_host *t) {
    t->op_known = h_op_known;
    t->op_run = h_op_run;
    t->write_file = h_write_file;
}
