/* op.h: the op registry. An op descriptor (include/sd_plugin.h) is the single source of truth of an
 * operation: help text, argument checking, completion and the Lua binding come from it. Built-in
 * operations and plugins register the same way. */
#ifndef SD_HOST_OP_H
#define SD_HOST_OP_H

#include "base/run.h"
#include "base/table.h"
#include "include/sd_plugin.h"
#include "nn/model.h"

/* A text given to an operation: bytes (a file's or a literal), or token ids. Ref-counted. */
typedef struct sd_text sd_text;
sd_status sd_text_from_file(const char *path, SD_OWN sd_text **out, sd_err *err);
sd_status sd_text_from_bytes(const char *p, size_t n, SD_OWN sd_text **out, sd_err *err);
sd_status sd_text_from_ids(const int32_t *ids, size_t n, SD_OWN sd_text **out, sd_err *err);
sd_text *sd_text_ref(sd_text *t);
void sd_text_unref(sd_text *SD_NULLABLE t);
const char *sd_text_name(const sd_text *t);             /* path, or "text" */
const char *sd_text_bytes(const sd_text *t, size_t *n); /* NULL for ids */
/* The ids as given, without a model (n = 0 for a text of bytes). */
void sd_text_raw_ids(const sd_text *t, const int32_t **ids, size_t *n);
/* Token ids under m's tokenizer (cached for the last tokenizer); for an ids text, checked against
 * V. Borrowed until the next call on t. */
sd_status sd_text_ids(sd_text *t, const sd_model *m, const int32_t **ids, size_t *n, sd_err *err);
/* Bytes the last tokenizer could not express, and the value of the first. */
size_t sd_text_lost(const sd_text *t, int *first);

/* A value on its way in or out of an op. Objects are counted references. */
typedef struct sd_value {
    sd_arg_kind kind; /* SD_ARG_NIL when absent */
    bool b;
    int64_t i;
    double f;
    char *s; /* STR, CHOICE, PATH, LAYERS (owned) */
    size_t s_len;
    sd_model *model;
    sd_text *text;
    sd_table *table;
    sd_tensor *tensor;
} sd_value;
void sd_value_clear(sd_value *v);

typedef struct sd_session sd_session; /* registry + plugins + run settings (host/session.h) */

/* One registered op: its descriptor copied, and where it came from. */
typedef struct sd_op {
    const sd_op_desc *desc;
    const char *plugin; /* NULL for a built-in */
} sd_op;

/* Validates the descriptor whole (names, duplicate arguments, defaults of the right kind, choices,
 * documentation present: an op without summary, details, example or an argument without doc does
 * not register) and adds it. */
sd_status sd_op_register(sd_session *s, const sd_op_desc *d, const char *SD_NULLABLE plugin,
                         sd_err *err);
const sd_op *sd_op_find(const sd_session *s, const char *name);
const sd_op *sd_op_at(const sd_session *s, size_t i); /* sorted by name; NULL past the end */

/* Argument i by name or position → index into desc->args, or error with a suggestion. */
int sd_op_arg_index(const sd_op_desc *d, const char *name);
/* The same as an error: "truncate: unknown option plane: did you mean planes?" */
sd_status sd_op_arg_find(const sd_op_desc *d, const char *name, int *index, sd_err *err);
/* Number of leading positional (required) arguments; the rest are options. */
uint32_t sd_op_n_required(const sd_op_desc *d);
/* "a model", "a number", ... of an sd_arg_kind, for messages. */
const char *sd_op_kind_name(uint32_t kind);

/* Checks and completes args (n = desc->n_args values, NIL = not given → default), runs the op,
 * records lineage on a returned model, frees leaked plugin handles and reports them.
 * Near kinds convert: INT ↔ NUM without loss, STR → CHOICE, PATH, LAYERS, TEXT (literal), INT →
 * LAYERS, PATH → MODEL is not (open it). args stay the caller's (sd_value_clear each); result is
 * written on success and the caller's too. Errors start with the op's name; an op of an unloaded
 * plugin is an error. */
sd_status sd_op_call(sd_session *s, const sd_op *op, sd_value *args, sd_value *result, sd_err *err);
/* The same as a part of another op, which records the step: none of its own is. */
sd_status sd_op_call_inner(sd_session *s, const sd_op *op, sd_value *args, sd_value *result,
                           sd_err *err);

/* "truncate(model, {planes=, filter="keep", …})" and the full help page. */
sd_status sd_op_signature(const sd_op_desc *d, sd_buf *out, sd_err *err);
sd_status sd_op_help(const sd_op *op, int width, sd_buf *out, sd_err *err);

#endif
