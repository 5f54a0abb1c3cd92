/* ops_model.c: operations on whole models: open, save, edit, lineage, info, diff. */
#include <string.h>

#include "base/map.h"
#include "host/host.h"
#include "io/info.h"
#include "io/json.h"

/* Arguments of the steps that made a model: those of an operation known here must be its own, or
 * a recipe would leave them out and make another model. */
static sd_status check_lineage(const sd_session *s, const sd_model *m, sd_err *err) {
    for (size_t i = 0; i < sd_model_n_steps(m); i++) {
        sd_step step = sd_model_step(m, i);
        const sd_op *op = sd_op_find(s, step.op);
        if (!op)
            continue; // of a plugin that is not loaded
        json_t *args = NULL;
        SD_TRY(sd_json_parse(step.args, strlen(step.args), "args", &args, err));
        const char *key;
        json_t *v;
        sd_status st = SD_OK;
        json_object_foreach(args, key, v) {
            int index;
            st = sd_op_arg_find(op->desc, key, &index, err);
            if (st != SD_OK)
                break;
        }
        json_decref(args);
        if (st != SD_OK) {
            sd_err_context(err, "%s: lineage step %zu", sd_model_path(m), i);
            return st;
        }
    }
    return SD_OK;
}

static int op_open(const sd_host *host, sd_call *c) {
    (void)host;
    sd_model *m = NULL;
    sd_status st = sd_model_open(sd_call_arg(c, "path")->s, &c->s->run, &m, &c->err);
    if (st == SD_OK)
        st = check_lineage(c->s, m, &c->err);
    return sd_call_return_model(c, st, m);
}

static int op_save(const sd_host *host, sd_call *c) {
    sd_value *path = sd_call_arg(c, "path");
    sd_status st = sd_model_save(sd_call_arg(c, "model")->model, path->s, &c->s->run, &c->err);
    return st != SD_OK ? (int)st : host->return_str(c, path->s, path->s_len);
}

static int op_edit(const sd_host *host, sd_call *c) {
    (void)host;
    sd_model *m = NULL;
    sd_status st = sd_model_clone(sd_call_arg(c, "model")->model, &m, &c->err);
    if (st == SD_OK)
        st = sd_model_set_tensor(m, sd_call_arg(c, "name")->s, sd_call_arg(c, "tensor")->tensor,
                                 &c->err);
    return sd_call_return_model(c, st, m);
}

static int op_lineage(const sd_host *host, sd_call *c) {
    (void)host;
    sd_model *m = sd_call_arg(c, "model")->model;
    sd_table *t = sd_table_new("lineage", &c->err);
    if (!t)
        return SD_ENOMEM;
    sd_err *e = &c->err;
    sd_status st = sd_table_heading(t, e, "%s: %s", sd_model_name(m),
                                    sd_model_path(m)[0] ? sd_model_path(m) : "made here");
    if (st == SD_OK)
        st = sd_table_add_column(t, "step", SD_COL_INT, "number of the step, from 0", false, NULL,
                                 e);
    if (st == SD_OK)
        st = sd_table_add_column(t, "op", SD_COL_STR, "operation", false, NULL, e);
    if (st == SD_OK)
        st = sd_table_add_column(t, "args", SD_COL_STR, "its arguments as JSON", false, NULL, e);
    if (st == SD_OK)
        st = sd_table_add_column(t, "version", SD_COL_STR, "version of the program or plugin",
                                 false, NULL, e);
    if (st == SD_OK)
        st = sd_table_add_column(t, "input_hash", SD_COL_STR, "what the step was applied to", true,
                                 NULL, e);
    for (size_t i = 0; st == SD_OK && i < sd_model_n_steps(m); i++) {
        sd_step s = sd_model_step(m, i);
        int row;
        if ((st = sd_table_add_row(t, &row, e)) != SD_OK)
            break;
        sd_table_set_int(t, row, "step", (int64_t)i);
        st = sd_table_set_str(t, row, "op", s.op, e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "args", s.args ? s.args : "", e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "version", s.version ? s.version : "", e);
        if (st == SD_OK)
            st = sd_table_set_str(t, row, "input_hash", s.input_hash ? s.input_hash : "", e);
    }
    if (st == SD_OK && sd_model_n_steps(m) == 0)
        st = sd_table_note(t, e, "no steps: the model is as it was opened");
    return sd_call_return_table(c, st, t);
}

/* A column with why no part of the model uses a tensor, where the file opens as a model that has
 * such tensors. */
static sd_status add_unused(sd_table *t, const char *path, sd_err *err) {
    sd_model *m = NULL;
    sd_err quiet = {0};
    sd_status st = sd_model_open(path, NULL, &m, &quiet);
    if (st != SD_OK) {
        if (st == SD_ENOMEM || st == SD_ECANCEL)
            *err = quiet;
        return st == SD_ENOMEM || st == SD_ECANCEL ? st : SD_OK; // weights of a model unknown here
    }
    size_t n = sd_model_n_unused(m);
    sd_map at = {0};
    st = n ? sd_map_reserve(&at, n, err) : SD_OK;
    for (size_t i = 0; st == SD_OK && i < n; i++)
        sd_map_put(&at, sd_model_unused(m, i).name, (int)i);
    if (st == SD_OK && n)
        st = sd_table_add_column(t, "unused", SD_COL_STR, "why no part of the model uses it", false,
                                 NULL, err);
    int name = st == SD_OK && n ? sd_table_find_col(t, "name") : -1;
    for (int row = 0; st == SD_OK && n && row < sd_table_rows(t); row++) {
        int i = sd_map_get(&at, sd_table_str(t, row, name));
        if (i >= 0)
            st = sd_table_set_str(t, row, "unused", sd_model_unused(m, (size_t)i).why, err);
    }
    if (st == SD_OK)
        st = sd_table_meta_num(t, "unused", (double)n, err);
    sd_map_free(&at);
    sd_model_unref(m);
    return st;
}

static int op_info(const sd_host *host, sd_call *c) {
    sd_table *t = NULL;
    const char *path = sd_call_arg(c, "path")->s;
    sd_status st = sd_info(path, host->arg_bool(c, "hash"), &c->s->run, &t, &c->err);
    if (st == SD_OK)
        st = add_unused(t, path, &c->err);
    return sd_call_return_table(c, st, t);
}

static int op_diff(const sd_host *host, sd_call *c) {
    (void)host;
    sd_table *t = NULL;
    sd_status st =
        sd_diff(sd_call_arg(c, "path")->s, sd_call_arg(c, "other")->s, &c->s->run, &t, &c->err);
    return sd_call_return_table(c, st, t);
}

static const sd_arg_desc info_args[] = {
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "a .safetensors or .gguf file, an index, or a folder that holds one"},
    {.name = "hash",
     .kind = SD_ARG_BOOL,
     .dflt = "false",
     .doc = "add the SHA-256 of the files, which reads all of them"},
};
static const sd_arg_desc diff_args[] = {
    {.name = "path", .kind = SD_ARG_PATH, .flags = SD_ARG_REQUIRED, .doc = "a checkpoint"},
    {.name = "other",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "the checkpoint to compare with it"},
};
static const sd_arg_desc open_args[] = {
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "a folder in Hugging Face layout, a .safetensors or .gguf file, or a saved model"},
};
static const sd_arg_desc save_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model"},
    {.name = "path",
     .kind = SD_ARG_PATH,
     .flags = SD_ARG_REQUIRED,
     .doc = "folder to write; a new one appears whole or not at all"},
};
static const sd_arg_desc edit_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model"},
    {.name = "name",
     .kind = SD_ARG_STR,
     .flags = SD_ARG_REQUIRED,
     .doc = "stored name of the tensor, as m:tensors() lists them"},
    {.name = "tensor",
     .kind = SD_ARG_TENSOR,
     .flags = SD_ARG_REQUIRED,
     .doc = "its new values, in the same shape"},
};
static const sd_arg_desc lineage_args[] = {
    {.name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model"},
};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_MODEL,
     .name = "open",
     .summary = "opens a model",
     .details =
         "Reads the config and the tensors' names, types and shapes; weights are read when they "
         "are first needed. The family is found from the config and the tensors, never from the "
         "file's name; an unknown one is refused with the list of the known.",
     .example = "x = open(m.path)\nassert(#heads(x) > 0)",
     .returns_doc = "a model",
     .args = open_args,
     .n_args = 1,
     .flags = SD_OP_NO_LINEAGE,
     .run = op_open},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "save",
     .summary = "writes a model as a folder: config, weights, tokenizer",
     .details = "Tensors that were not changed keep their type and bytes. Layers that surgery "
                "changed and the steps that made the model are described in config.json, so that "
                "the folder opens again without the plugins that made it.",
     .example = "dir = os.tmpname(); os.remove(dir)\nsave(m, dir)\n"
                "assert(nll(open(dir), t) == nll(m, t))\n"
                "for _, f in ipairs{'config.json', 'model.safetensors', 'tokenizer.json'} do\n"
                "  os.remove(dir .. '/' .. f)\nend\nos.remove(dir)",
     .returns_doc = "the folder's path",
     .args = save_args,
     .n_args = 2,
     .run = op_save},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_MODEL,
     .name = "edit",
     .summary = "a model with one stored tensor replaced",
     .details = "The input model is untouched and shares every other tensor with the new one. The "
                "edit is recorded in the new model's lineage by the hash of the values.",
     .example = "name = m:tensors()[1].name\n"
                "x = edit(m, name, m[name] * 1.01)\n"
                "assert(lineage(x):row(0).op == 'edit')",
     .returns_doc = "the new model",
     .args = edit_args,
     .n_args = 3,
     .run = op_edit},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "lineage",
     .summary = "how a model was made, step by step",
     .details = "Every operation that returns a model records its name, version, arguments and the "
                "hash of the model it was applied to. recipe.save writes the same steps as a Lua "
                "script.",
     .example = "assert(#lineage(m) == 0)",
     .returns_doc = "a table, one row a step, oldest first",
     .args = lineage_args,
     .n_args = 1,
     .run = op_lineage},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "info",
     .summary = "what a checkpoint holds, from its headers alone",
     .details =
         "Tensors with their types, shapes and sizes, the parameter count and the file's own "
         "metadata; where they make a model, also which tensors no part of it uses, and why. No "
         "weight is read unless the hash is asked for (or two tied matrices are to be compared), "
         "so it is quick on files of any size.",
     .example = "i = info(m.path)\nassert(i.meta.format == 'safetensors')",
     .returns_doc = "a table, one row a tensor",
     .args = info_args,
     .n_args = 2,
     .run = op_info},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_TABLE,
     .name = "diff",
     .summary = "how two checkpoints differ, tensor by tensor",
     .details = "Tensors are paired by name and called same, retyped (another type, equal values), "
                "changed, or found in one file only, with the largest and the relative difference.",
     .example = "d = diff(m.path, m.path)\nassert(d.meta.identical == 1)",
     .returns_doc = "a table, one row a tensor",
     .args = diff_args,
     .n_args = 2,
     .run = op_diff},
};

sd_builtin_group sd_ops_model(void) {
    return (sd_builtin_group){ops, sizeof ops / sizeof *ops};
}
