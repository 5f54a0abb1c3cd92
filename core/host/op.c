/* op.c: the registry: descriptors validated and copied, arguments checked, calls run, lineage. */
#include "host/host.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "io/json.h"

enum { MAX_NAME = 48, MAX_LINE = 400, MAX_PAGE = 16384, MAX_ARGS = 64 };

void sd_value_clear(sd_value *v) {
    sd_free(v->s);
    sd_model_unref(v->model);
    sd_text_unref(v->text);
    sd_table_unref(v->table);
    sd_tensor_free(v->tensor);
    memset(v, 0, sizeof *v);
}

const char *sd_op_kind_name(uint32_t kind) {
    static const char *const names[] = {
        "nothing",       "true or false", "an integer", "a number", "a string", "a choice",
        "layer numbers", "a path",        "a model",    "a text",   "a table",  "a tensor",
    };
    return kind < sizeof names / sizeof *names ? names[kind] : "a value of unknown kind";
}

uint32_t sd_op_n_required(const sd_op_desc *d) {
    uint32_t n = 0;
    while (n < d->n_args && (d->args[n].flags & SD_ARG_REQUIRED))
        n++;
    return n;
}

/* ---- validation ---- */

static bool name_ok(const char *s) {
    if (!s || s[0] < 'a' || s[0] > 'z')
        return false;
    size_t n = 0;
    for (; s[n]; n++)
        if (n >= MAX_NAME ||
            !((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= '0' && s[n] <= '9') || s[n] == '_'))
            return false;
    return true;
}

/* An op's name, or "plot.NAME": a figure, a field of the table `plot`. */
static bool op_name_ok(const char *s) {
    return name_ok(s && strncmp(s, "plot.", 5) == 0 ? s + 5 : s);
}

/* Reserved in Lua: an op of such a name could not be called. */
static bool lua_keyword(const char *s) {
    static const char *const kw[] = {"and",   "break", "do",       "else", "elseif", "end",
                                     "false", "for",   "function", "goto", "if",     "in",
                                     "local", "nil",   "not",      "or",   "repeat", "return",
                                     "then",  "true",  "until",    "while"};
    for (size_t i = 0; i < sizeof kw / sizeof *kw; i++)
        if (strcmp(s, kw[i]) == 0)
            return true;
    return false;
}

/* A text of `what` in place: not NULL, not empty, at most max bytes, valid UTF-8, no control bytes
 * (line feeds only where `lines`). */
static sd_status check_text(const char *s, const char *what, size_t max, bool lines, sd_err *err) {
    if (!s)
        return sd_fail(err, SD_EPLUGIN, "%s is missing", what);
    size_t n = strnlen(s, max + 1);
    if (n == 0)
        return sd_fail(err, SD_EPLUGIN, "%s is empty", what);
    if (n > max)
        return sd_fail(err, SD_EPLUGIN, "%s is longer than %zu bytes", what, max);
    for (size_t i = 0; i < n;) {
        size_t k = sd_utf8_next(s + i, n - i, NULL);
        if (k == 0)
            return sd_fail(err, SD_EPLUGIN, "%s is not UTF-8 at byte %zu", what, i);
        if ((unsigned char)s[i] < 0x20 && !(lines && s[i] == '\n'))
            return sd_fail(err, SD_EPLUGIN, "%s holds a control byte at %zu", what, i);
        i += k;
    }
    return SD_OK;
}

/* Is `value` one of "a|b|c"? */
static bool in_choices(const char *choices, const char *value) {
    size_t n = strlen(value);
    for (const char *p = choices; n && *p;) {
        size_t k = strcspn(p, "|");
        if (k == n && memcmp(p, value, n) == 0)
            return true;
        p += k;
        if (*p)
            p++;
    }
    return false;
}

static sd_status parse_default(const sd_arg_desc *a, sd_value *v, sd_err *err) {
    const char *s = a->dflt;
    switch (a->kind) {
    case SD_ARG_BOOL:
        if (strcmp(s, "true") != 0 && strcmp(s, "false") != 0)
            return sd_fail(err, SD_EPLUGIN, "the default \"%s\" is not true or false", s);
        v->b = s[0] == 't';
        break;
    case SD_ARG_INT:
        if (!sd_parse_i64(s, &v->i))
            return sd_fail(err, SD_EPLUGIN, "the default \"%s\" is not an integer", s);
        v->f = (double)v->i;
        break;
    case SD_ARG_NUM:
        if (!sd_parse_double(s, &v->f) || isnan(v->f))
            return sd_fail(err, SD_EPLUGIN, "the default \"%s\" is not a number", s);
        break;
    case SD_ARG_CHOICE:
        if (!in_choices(a->choices, s))
            return sd_fail(err, SD_EPLUGIN, "the default \"%s\" is not among the choices %s", s,
                           a->choices);
        /* fall through */
    case SD_ARG_STR:
    case SD_ARG_PATH:
    case SD_ARG_LAYERS:
        v->s_len = strlen(s);
        v->s = sd_strndup(s, v->s_len, err);
        if (!v->s)
            return SD_ENOMEM;
        break;
    default:
        return sd_fail(err, SD_EPLUGIN, "%s cannot have a default", sd_op_kind_name(a->kind));
    }
    v->kind = (sd_arg_kind)a->kind;
    return SD_OK;
}

static bool bounded(const sd_arg_desc *a) {
    return a->min < a->max;
}

static sd_status check_arg(const sd_op_desc *d, uint32_t i, sd_err *err) {
    const sd_arg_desc *a = &d->args[i];
    if (!name_ok(a->name) || lua_keyword(a->name))
        return sd_fail(
            err, SD_EPLUGIN,
            "the name of argument %u is not of the form [a-z][a-z0-9_]*, or is a word of "
            "Lua",
            i + 1);
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(d->args[j].name, a->name) == 0)
            return sd_fail(err, SD_EPLUGIN, "argument %s is declared twice", a->name);
    if (a->kind < SD_ARG_BOOL || a->kind > SD_ARG_TENSOR)
        return sd_fail(err, SD_EPLUGIN, "argument %s has unknown kind %u", a->name, a->kind);
    if (a->flags & ~(uint32_t)SD_ARG_REQUIRED)
        return sd_fail(err, SD_EPLUGIN, "argument %s has unknown flags 0x%x", a->name, a->flags);
    if ((a->flags & SD_ARG_REQUIRED) && i > 0 && !(d->args[i - 1].flags & SD_ARG_REQUIRED))
        return sd_fail(err, SD_EPLUGIN, "required argument %s stands after an optional one",
                       a->name);
    if ((a->flags & SD_ARG_REQUIRED) && a->dflt)
        return sd_fail(err, SD_EPLUGIN, "required argument %s has a default", a->name);
    if (isnan(a->min) || isnan(a->max))
        return sd_fail(err, SD_EPLUGIN, "argument %s: a bound is not a number", a->name);
    sd_status st = check_text(a->doc, "its doc", MAX_LINE, false, err);
    if (st == SD_OK && a->kind == SD_ARG_CHOICE) {
        st = check_text(a->choices, "its list of choices", MAX_LINE, false, err);
        if (st == SD_OK && (a->choices[0] == '|' || a->choices[strlen(a->choices) - 1] == '|' ||
                            strstr(a->choices, "||")))
            st = sd_fail(err, SD_EPLUGIN, "an empty choice in \"%s\"", a->choices);
    }
    if (st == SD_OK && a->dflt) {
        if (a->dflt[0])
            st = check_text(a->dflt, "its default", MAX_LINE, false, err);
        sd_value v = {0};
        if (st == SD_OK)
            st = parse_default(a, &v, err);
        if (st == SD_OK && (a->kind == SD_ARG_INT || a->kind == SD_ARG_NUM) && bounded(a) &&
            (v.f < a->min || v.f > a->max))
            st = sd_fail(err, SD_EPLUGIN, "the default %s is outside %g..%g", a->dflt, a->min,
                         a->max);
        sd_value_clear(&v);
    }
    if (st != SD_OK)
        sd_err_context(err, "argument %s", a->name);
    return st;
}

static sd_status check_desc(const sd_op_desc *d, sd_err *err) {
    if (!d)
        return sd_fail(err, SD_EPLUGIN, "no descriptor");
    if (d->struct_size != sizeof *d)
        return sd_fail(err, SD_EPLUGIN,
                       "the descriptor of an op is %u bytes, this program's is %zu: rebuild the "
                       "plugin with this program's sd_plugin.h",
                       d->struct_size, sizeof *d);
    const char *dot = op_name_ok(d->name) ? strchr(d->name, '.') : NULL;
    if (!op_name_ok(d->name) || lua_keyword(dot ? dot + 1 : d->name))
        return sd_fail(
            err, SD_EPLUGIN,
            "an op's name is missing, not of the form [a-z][a-z0-9_]*, or a word of Lua");
    sd_status st = check_text(d->summary, "its summary", MAX_LINE, false, err);
    if (st == SD_OK)
        st = check_text(d->details, "its details", MAX_PAGE, true, err);
    if (st == SD_OK)
        st = check_text(d->example, "its example", MAX_PAGE, true, err);
    if (st == SD_OK && d->returns != SD_ARG_NIL)
        st = check_text(d->returns_doc, "the doc of what it returns", MAX_LINE, false, err);
    if (st == SD_OK &&
        (d->returns == SD_ARG_TEXT || d->returns == SD_ARG_LAYERS || d->returns > SD_ARG_TENSOR))
        st = sd_fail(err, SD_EPLUGIN, "it declares to return %s", sd_op_kind_name(d->returns));
    if (st == SD_OK && (d->flags & ~(uint32_t)SD_OP_NO_LINEAGE))
        st = sd_fail(err, SD_EPLUGIN, "unknown flags 0x%x", d->flags);
    if (st == SD_OK && d->n_args > MAX_ARGS)
        st = sd_fail(err, SD_EPLUGIN, "%u arguments, at most %d are possible", d->n_args, MAX_ARGS);
    if (st == SD_OK && d->n_args && !d->args)
        st = sd_fail(err, SD_EPLUGIN, "%u arguments are announced and none is there", d->n_args);
    if (st == SD_OK && !d->run)
        st = sd_fail(err, SD_EPLUGIN, "it has no function");
    for (uint32_t i = 0; st == SD_OK && i < d->n_args; i++)
        st = check_arg(d, i, err);
    if (st != SD_OK)
        sd_err_context(err, "op %s", d->name);
    return st;
}

/* ---- registry ---- */

static const char *dup_str(sd_arena *a, const char *s, bool *ok, sd_err *err) {
    if (!s || !*ok)
        return NULL;
    char *p = sd_arena_strndup(a, s, strlen(s), err);
    *ok = p != NULL;
    return p;
}

static sd_op_rec *copy_desc(const sd_op_desc *d, const char *plugin, const char *version,
                            sd_err *err) {
    sd_op_rec *r = sd_alloc(1, sizeof *r, err);
    if (!r)
        return NULL;
    r->arena = sd_arena_new(err);
    bool ok = r->arena != NULL;
    sd_op_desc *c = ok ? sd_arena_alloc(r->arena, 1, sizeof *c, err) : NULL;
    ok = c != NULL;
    if (ok) {
        *c = *d;
        c->name = dup_str(r->arena, d->name, &ok, err);
        c->summary = dup_str(r->arena, d->summary, &ok, err);
        c->details = dup_str(r->arena, d->details, &ok, err);
        c->example = dup_str(r->arena, d->example, &ok, err);
        c->returns_doc = dup_str(r->arena, d->returns_doc, &ok, err);
        sd_arg_desc *args =
            ok && d->n_args ? sd_arena_alloc(r->arena, d->n_args, sizeof *args, err) : NULL;
        ok = ok && (args || !d->n_args);
        for (uint32_t i = 0; ok && i < d->n_args; i++) {
            args[i] = d->args[i];
            args[i].name = dup_str(r->arena, d->args[i].name, &ok, err);
            args[i].dflt = dup_str(r->arena, d->args[i].dflt, &ok, err);
            args[i].choices = args[i].kind == SD_ARG_CHOICE
                                  ? dup_str(r->arena, d->args[i].choices, &ok, err)
                                  : NULL;
            args[i].doc = dup_str(r->arena, d->args[i].doc, &ok, err);
        }
        c->args = args;
        r->pub.plugin = dup_str(r->arena, plugin, &ok, err);
        r->version = dup_str(r->arena, version ? version : SD_VERSION, &ok, err);
    }
    if (!ok) {
        sd_arena_free(r->arena);
        sd_free(r);
        return NULL;
    }
    r->pub.desc = c;
    r->live = true;
    return r;
}

static size_t find_slot(const sd_session *s, const char *name, bool *found) {
    size_t lo = 0, hi = s->n_ops;
    *found = false;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int c = strcmp(s->ops[mid]->pub.desc->name, name);
        if (c == 0) {
            *found = true;
            return mid;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

sd_status sd_op_register_versioned(sd_session *s, const sd_op_desc *d, const char *plugin,
                                   const char *version, sd_err *err) {
    SD_TRY(check_desc(d, err));
    bool found;
    size_t at = find_slot(s, d->name, &found);
    if (found) {
        const char *owner = s->ops[at]->pub.plugin;
        return sd_fail(err, SD_EPLUGIN, "op %s exists already, %s%s", d->name,
                       owner ? "from plugin " : "built in", owner ? owner : "");
    }
    /* Both lists are grown now, so that unloading cannot fail. */
    SD_TRY(sd_grow((void **)&s->ops, &s->cap_ops, s->n_ops + 1, sizeof *s->ops, err));
    SD_TRY(
        sd_grow((void **)&s->gone, &s->cap_gone, s->n_gone + s->n_ops + 1, sizeof *s->gone, err));
    sd_op_rec *r = copy_desc(d, plugin, version, err);
    if (!r)
        return SD_ENOMEM;
    memmove(s->ops + at + 1, s->ops + at, (s->n_ops - at) * sizeof *s->ops);
    s->ops[at] = r;
    s->n_ops++;
    return SD_OK;
}

sd_status sd_op_register(sd_session *s, const sd_op_desc *d, const char *plugin, sd_err *err) {
    return sd_op_register_versioned(s, d, plugin, NULL, err);
}

void sd_op_remove_plugin(sd_session *s, const char *plugin) {
    size_t w = 0;
    for (size_t i = 0; i < s->n_ops; i++) {
        sd_op_rec *r = s->ops[i];
        if (r->pub.plugin && strcmp(r->pub.plugin, plugin) == 0) {
            r->live = false;
            s->gone[s->n_gone++] = r;
        } else {
            s->ops[w++] = r;
        }
    }
    s->n_ops = w;
}

const sd_op *sd_op_find(const sd_session *s, const char *name) {
    bool found;
    size_t at = find_slot(s, name, &found);
    return found ? &s->ops[at]->pub : NULL;
}

const sd_op *sd_op_at(const sd_session *s, size_t i) {
    return i < s->n_ops ? &s->ops[i]->pub : NULL;
}

int sd_op_arg_index(const sd_op_desc *d, const char *name) {
    for (uint32_t i = 0; i < d->n_args; i++)
        if (strcmp(d->args[i].name, name) == 0)
            return (int)i;
    return -1;
}

static const char *arg_name_at(const void *ctx, size_t i) {
    const sd_op_desc *d = ctx;
    return i < d->n_args ? d->args[i].name : NULL;
}

sd_status sd_op_arg_find(const sd_op_desc *d, const char *name, int *index, sd_err *err) {
    *index = sd_op_arg_index(d, name);
    if (*index >= 0)
        return SD_OK;
    const char *near = sd_suggest(name, arg_name_at, d);
    if (near)
        return sd_fail(err, SD_EINVAL, "%s: unknown option %.60s: did you mean %s?", d->name, name,
                       near);
    sd_buf b = {0};
    for (uint32_t i = sd_op_n_required(d); i < d->n_args; i++)
        sd_buf_printf(&b, "%s%s", b.n ? ", " : "", d->args[i].name);
    sd_status st =
        b.n ? sd_fail(err, SD_EINVAL, "%s: unknown option %.60s: its options are %s", d->name, name,
                      b.p)
            : sd_fail(err, SD_EINVAL, "%s: unknown option %.60s: it has no options", d->name, name);
    sd_buf_free(&b);
    return st;
}

/* ---- calls ---- */

typedef struct choice_list {
    char item[32][48];
    size_t n;
} choice_list;

static const char *choice_at(const void *ctx, size_t i) {
    const choice_list *l = ctx;
    return i < l->n ? l->item[i] : NULL;
}

static sd_status bad_choice(const sd_arg_desc *a, const char *got, sd_err *err) {
    choice_list l = {.n = 0};
    sd_buf all = {0};
    for (const char *p = a->choices; *p;) {
        size_t k = strcspn(p, "|");
        if (l.n < 32)
            snprintf(l.item[l.n++], sizeof l.item[0], "%.*s", (int)k, p);
        sd_buf_printf(&all, "%s%.*s", all.n ? ", " : "", (int)k, p);
        p += k;
        if (*p)
            p++;
    }
    const char *near = sd_suggest(got, choice_at, &l);
    sd_status st =
        near ? sd_fail(err, SD_EINVAL, "unknown %s \"%.60s\": did you mean \"%s\"? (one of %s)",
                       a->name, got, near, all.p ? all.p : "")
             : sd_fail(err, SD_EINVAL, "unknown %s \"%.60s\": expected one of %s", a->name, got,
                       all.p ? all.p : "");
    sd_buf_free(&all);
    return st;
}

static sd_status wrong_kind(const sd_arg_desc *a, const sd_value *v, sd_err *err) {
    return sd_fail(err, SD_EINVAL, "expected %s as %s, got %s", sd_op_kind_name(a->kind), a->name,
                   sd_op_kind_name(v->kind));
}

/* Text bounds of a message: "0..12", "at least 1", "at most 3". */
static void bounds_text(const sd_arg_desc *a, char out[64]) {
    if (isinf(a->max) || (a->kind == SD_ARG_INT && a->max >= 9007199254740991.0))
        snprintf(out, 64, "of at least %.15g", a->min);
    else if (isinf(a->min))
        snprintf(out, 64, "of at most %.15g", a->max);
    else
        snprintf(out, 64, "%.15g..%.15g", a->min, a->max);
}

/* Converts a given value to the declared kind and checks its range. */
static sd_status check_value(const sd_arg_desc *a, sd_value *v, sd_err *err) {
    char text[64];
    switch (a->kind) {
    case SD_ARG_INT:
        if (v->kind == SD_ARG_NUM) {
            if (!(v->f >= -9.2e18 && v->f <= 9.2e18) || v->f != floor(v->f))
                return sd_fail(err, SD_EINVAL, "expected an integer as %s, got %.15g", a->name,
                               v->f);
            v->i = (int64_t)v->f;
        } else if (v->kind != SD_ARG_INT) {
            return wrong_kind(a, v, err);
        }
        v->kind = SD_ARG_INT;
        if (bounded(a) && ((double)v->i < a->min || (double)v->i > a->max)) {
            bounds_text(a, text);
            return sd_fail(err, SD_EINVAL, "expected %s %s, got %lld", a->name, text,
                           (long long)v->i);
        }
        break;
    case SD_ARG_NUM:
        if (v->kind == SD_ARG_INT)
            v->f = (double)v->i;
        else if (v->kind != SD_ARG_NUM)
            return wrong_kind(a, v, err);
        v->kind = SD_ARG_NUM;
        if (isnan(v->f))
            return sd_fail(err, SD_EINVAL, "expected a number as %s, got nan", a->name);
        if (bounded(a) && (v->f < a->min || v->f > a->max)) {
            bounds_text(a, text);
            return sd_fail(err, SD_EINVAL, "expected %s %s, got %.15g", a->name, text, v->f);
        }
        break;
    case SD_ARG_LAYERS:
        if (v->kind == SD_ARG_INT || (v->kind == SD_ARG_NUM && v->f == floor(v->f))) {
            long long i = v->kind == SD_ARG_INT ? (long long)v->i : (long long)v->f;
            snprintf(text, sizeof text, "%lld", i);
            v->s = sd_strdup(text, err);
            if (!v->s)
                return SD_ENOMEM;
            v->s_len = strlen(v->s);
            v->kind = SD_ARG_LAYERS;
        }
        /* fall through */
    case SD_ARG_STR:
    case SD_ARG_PATH:
    case SD_ARG_CHOICE: {
        bool text_kind = v->kind == SD_ARG_STR || v->kind == SD_ARG_PATH ||
                         v->kind == SD_ARG_CHOICE || v->kind == SD_ARG_LAYERS;
        if (a->kind == SD_ARG_STR && v->kind == SD_ARG_INT) { /* heads=3 */
            snprintf(text, sizeof text, "%lld", (long long)v->i);
            v->s = sd_strdup(text, err);
            if (!v->s)
                return SD_ENOMEM;
            v->s_len = strlen(v->s);
        } else if (!text_kind) {
            return wrong_kind(a, v, err);
        }
        v->kind = (sd_arg_kind)a->kind;
        if (a->kind != SD_ARG_STR && strlen(v->s) != v->s_len)
            return sd_fail(err, SD_EINVAL, "%s holds a zero byte", a->name);
        if (a->kind == SD_ARG_CHOICE && !in_choices(a->choices, v->s))
            return bad_choice(a, v->s, err);
        if (a->kind == SD_ARG_PATH && !v->s[0])
            return sd_fail(err, SD_EINVAL, "%s is an empty path", a->name);
        break;
    }
    case SD_ARG_TEXT:
        if (v->kind == SD_ARG_STR) { /* a plain string is literal text */
            SD_TRY(sd_text_from_bytes(v->s, v->s_len, &v->text, err));
            v->kind = SD_ARG_TEXT;
        } else if (v->kind != SD_ARG_TEXT) {
            return wrong_kind(a, v, err);
        }
        break;
    default:
        if (v->kind != (sd_arg_kind)a->kind)
            return wrong_kind(a, v, err);
    }
    return SD_OK;
}

static sd_status complete_args(const sd_op_desc *d, sd_value *args, sd_err *err) {
    const sd_model *first = NULL;
    for (uint32_t i = 0; i < d->n_args; i++) {
        const sd_arg_desc *a = &d->args[i];
        if (args[i].kind == SD_ARG_NIL) {
            if (a->flags & SD_ARG_REQUIRED)
                return sd_fail(err, SD_EINVAL, "argument %u (%s) is missing: expected %s", i + 1,
                               a->name, sd_op_kind_name(a->kind));
            if (a->dflt)
                SD_TRY(parse_default(a, &args[i], err));
        } else {
            SD_TRY(check_value(a, &args[i], err));
        }
        if (!first && a->kind == SD_ARG_MODEL)
            first = args[i].model;
    }
    /* Layer numbers are checked against the model the op works on, before anything runs. */
    for (uint32_t i = 0; first && i < d->n_args; i++) {
        if (d->args[i].kind != SD_ARG_LAYERS || args[i].kind == SD_ARG_NIL)
            continue;
        int n = sd_model_config(first)->n_layer;
        bool *mask = sd_alloc((size_t)n, sizeof *mask, err);
        if (!mask)
            return SD_ENOMEM;
        sd_status st = sd_parse_ranges(args[i].s, "layer", n, mask, err);
        sd_free(mask);
        if (st == SD_EINVAL && err && strlen(err->text) < 300) {
            char text[SD_ERR_TEXT];
            snprintf(text, sizeof text, "%s", err->text);
            return sd_fail(err, st, "%s: %s has %d layers, numbered from 0", text,
                           sd_model_name(first), n);
        }
        SD_TRY(st);
    }
    return SD_OK;
}

/* ---- lineage ---- */

static void json_sha(sd_buf *b, const void *p, size_t n) {
    sd_sha256 h;
    char hex[65];
    sd_sha256_init(&h);
    sd_sha256_add(&h, p, n);
    sd_sha256_hex(&h, hex);
    sd_buf_printf(b, ",\"sha256\":\"%s\"}", hex);
}

static bool is_utf8(const char *p, size_t n) {
    for (size_t k = 0; k < n;) {
        size_t w = sd_utf8_next(p + k, n - k, NULL);
        if (w == 0)
            return false;
        k += w;
    }
    return true;
}

/* A text as what it was given by, and its hash; a long one by the hash alone. */
static void text_json(sd_buf *b, sd_text *t) {
    enum { WHOLE = 4096 };
    size_t n;
    const char *p = sd_text_bytes(t, &n);
    if (p && strcmp(sd_text_name(t), "text") == 0) {
        sd_buf_puts(b, "{\"text\":");
        if (n <= WHOLE && is_utf8(p, n))
            sd_buf_json_string(b, p, n);
        else
            sd_buf_puts(b, "null");
        json_sha(b, p, n);
    } else if (p) {
        sd_buf_puts(b, "{\"file\":");
        sd_buf_json_string(b, sd_text_name(t), strlen(sd_text_name(t)));
        json_sha(b, p, n);
    } else {
        const int32_t *ids = NULL;
        sd_text_raw_ids(t, &ids, &n);
        sd_buf_puts(b, "{\"ids\":");
        for (size_t k = 0; k < n && n <= WHOLE; k++)
            sd_buf_printf(b, "%c%d", k ? ',' : '[', (int)ids[k]);
        sd_buf_puts(b, n > WHOLE ? "null" : n ? "]" : "[]");
        json_sha(b, ids, n * sizeof *ids);
    }
}

static sd_status table_json(sd_buf *b, const sd_table *table, sd_err *err) {
    sd_buf t = {0};
    sd_status st = sd_table_json(table, true, &t, err);
    sd_buf_puts(b, "{\"table\":");
    sd_buf_json_string(b, sd_table_kind(table), strlen(sd_table_kind(table)));
    json_sha(b, t.p ? t.p : "", t.n);
    sd_buf_free(&t);
    return st;
}

static sd_status tensor_json(sd_buf *b, const sd_tensor *tensor, sd_err *err) {
    sd_tensor *t = NULL;
    SD_TRY(sd_tensor_cast(tensor, tensor->dtype, &t, err));
    sd_buf_puts(b, "{\"tensor\":[");
    for (int k = 0; k < t->ndim; k++)
        sd_buf_printf(b, "%s%lld", k ? "," : "", (long long)t->shape[k]);
    sd_buf_printf(b, "],\"dtype\":\"%s\"", sd_dtype_get(t->dtype)->name);
    json_sha(b, t->data, sd_tensor_nbytes(t));
    sd_tensor_free(t);
    return SD_OK;
}

static sd_status value_json(sd_buf *b, const sd_value *v, sd_err *err) {
    switch (v->kind) {
    case SD_ARG_BOOL:
        sd_buf_puts(b, v->b ? "true" : "false");
        return SD_OK;
    case SD_ARG_INT:
        sd_buf_printf(b, "%lld", (long long)v->i);
        return SD_OK;
    case SD_ARG_NUM:
        if (isinf(v->f)) /* JSON has none */
            sd_buf_puts(b, v->f > 0 ? "1e999" : "-1e999");
        else
            sd_buf_json_double(b, v->f);
        return SD_OK;
    case SD_ARG_MODEL: {
        const char *path = sd_model_path(v->model);
        const char *name = path && path[0] ? path : sd_model_name(v->model);
        sd_buf_puts(b, "{\"model\":");
        sd_buf_json_string(b, name, strlen(name));
        sd_buf_printf(b, ",\"steps\":%zu}", sd_model_n_steps(v->model));
        return SD_OK;
    }
    case SD_ARG_TEXT:
        text_json(b, v->text);
        return SD_OK;
    case SD_ARG_TABLE:
        return table_json(b, v->table, err);
    case SD_ARG_TENSOR:
        return tensor_json(b, v->tensor, err);
    default:
        sd_buf_json_string(b, v->s, v->s_len);
        return SD_OK;
    }
}

/* Arguments as a JSON object, complete enough to replay: the model worked on is left out (it is the
 * step's input); long literal texts and tensors are named by their hash. */
static sd_status args_json(const sd_op_desc *d, const sd_value *args, sd_buf *b, sd_err *err) {
    bool first_model = true, comma = false;
    sd_buf_putc(b, '{');
    for (uint32_t i = 0; i < d->n_args; i++) {
        const sd_value *v = &args[i];
        if (v->kind == SD_ARG_NIL)
            continue;
        if (v->kind == SD_ARG_MODEL && first_model) {
            first_model = false;
            continue;
        }
        sd_buf_printf(b, "%s\"%s\":", comma ? "," : "", d->args[i].name);
        comma = true;
        SD_TRY(value_json(b, v, err));
    }
    sd_buf_putc(b, '}');
    return sd_buf_status(b, err);
}

/* The model itself records the hash of what the step was applied to. */
static sd_status record_lineage(const sd_op_rec *r, const sd_value *args, sd_model *out,
                                sd_err *err) {
    sd_buf json = {0}, version = {0};
    sd_status st = args_json(r->pub.desc, args, &json, err);
    if (r->pub.plugin)
        sd_buf_printf(&version, "%s %s", r->pub.plugin, r->version);
    else
        sd_buf_puts(&version, r->version);
    if (st == SD_OK)
        st = sd_buf_status(&version, err);
    if (st == SD_OK)
        st = sd_model_add_step(out, r->pub.desc->name, version.p, json.p, err);
    sd_buf_free(&json);
    sd_buf_free(&version);
    return st;
}

sd_status sd_call_step(sd_call *c, sd_buf *version, sd_buf *args, sd_err *err) {
    const sd_op_rec *r = (const sd_op_rec *)(const void *)c->op;
    SD_TRY(args_json(r->pub.desc, c->args, args, err));
    sd_buf_puts(version, r->version);
    return sd_buf_status(version, err);
}

static sd_status check_result(const sd_op_desc *d, const sd_value *v, sd_err *err) {
    if (v->kind != (sd_arg_kind)d->returns)
        return sd_fail(err, SD_EPLUGIN, "the op declares to return %s and returned %s",
                       sd_op_kind_name(d->returns), sd_op_kind_name(v->kind));
    if (v->kind == SD_ARG_NUM && isnan(v->f))
        return sd_fail(err, SD_ENUMERIC, "the op returned nan");
    return SD_OK;
}

static sd_status op_call(sd_session *s, const sd_op *op, sd_value *args, sd_value *result,
                         bool record, sd_err *err) {
    const sd_op_rec *r = (const sd_op_rec *)(const void *)op;
    const sd_op_desc *d = op->desc;
    sd_err local = {0};
    if (!err)
        err = &local;
    memset(result, 0, sizeof *result);
    if (!r->live)
        return sd_fail(err, SD_EPLUGIN, "%s: plugin %s was unloaded", d->name,
                       op->plugin ? op->plugin : "?");
    sd_status st = complete_args(d, args, err);
    if (st != SD_OK) {
        sd_err_context(err, "%s", d->name);
        return st;
    }
    sd_call c = {.s = s, .op = op, .plugin = op->plugin, .args = args, .result = result};
    int rc = d->run(&s->host, &c);
    if (rc != 0) {
        st = c.err.code != SD_OK ? c.err.code : SD_EPLUGIN;
        if (c.err.code != SD_OK)
            sd_fail(err, st, "%s", c.err.text);
        else
            sd_fail(err, st, "failed with code %d and gave no reason", rc);
    } else {
        st = check_result(d, result, err);
    }
    sd_call_finish(&c);
    if (st == SD_OK && result->kind == SD_ARG_MODEL && !(d->flags & SD_OP_NO_LINEAGE)) {
        bool is_arg = false;
        for (uint32_t i = 0; i < d->n_args; i++)
            is_arg |= args[i].model == result->model;
        if (is_arg) {
            /* The step is recorded on a copy: the argument stays what it is. */
            sd_model *copy = NULL;
            st = sd_model_clone(result->model, &copy, err);
            if (st == SD_OK) {
                sd_model_unref(result->model);
                result->model = copy;
            }
        }
        if (st == SD_OK && record)
            st = record_lineage(r, args, result->model, err);
    }
    if (st != SD_OK) {
        sd_value_clear(result);
        if (op->plugin && st == SD_EPLUGIN)
            sd_err_context(err, "%s (plugin %s)", d->name, op->plugin);
        else
            sd_err_context(err, "%s", d->name);
    }
    return st;
}

sd_status sd_op_call(sd_session *s, const sd_op *op, sd_value *args, sd_value *result,
                     sd_err *err) {
    return op_call(s, op, args, result, true, err);
}

sd_status sd_op_call_inner(sd_session *s, const sd_op *op, sd_value *args, sd_value *result,
                           sd_err *err) {
    return op_call(s, op, args, result, false, err);
}

/* ---- help ---- */

sd_status sd_op_signature(const sd_op_desc *d, sd_buf *out, sd_err *err) {
    uint32_t req = sd_op_n_required(d);
    sd_buf_printf(out, "%s(", d->name);
    for (uint32_t i = 0; i < req; i++)
        sd_buf_printf(out, "%s%s", i ? ", " : "", d->args[i].name);
    if (req < d->n_args) {
        sd_buf_puts(out, req ? ", {" : "{");
        for (uint32_t i = req; i < d->n_args; i++) {
            const sd_arg_desc *a = &d->args[i];
            sd_buf_printf(out, "%s%s=", i > req ? ", " : "", a->name);
            bool quoted = a->kind == SD_ARG_STR || a->kind == SD_ARG_CHOICE ||
                          a->kind == SD_ARG_PATH || a->kind == SD_ARG_LAYERS;
            if (a->dflt)
                sd_buf_printf(out, quoted ? "\"%s\"" : "%s", a->dflt);
        }
        sd_buf_putc(out, '}');
    }
    sd_buf_putc(out, ')');
    return sd_buf_status(out, err);
}

/* Wraps a paragraph text to width with an indent; an empty line separates paragraphs. */
static void wrap(sd_buf *out, const char *text, int width, int indent, int first_col) {
    int col = first_col;
    bool start = true;
    for (const char *p = text; *p;) {
        if (*p == '\n') {
            if (p[1] == '\n') {
                sd_buf_puts(out, "\n\n");
                while (*p == '\n')
                    p++;
                sd_buf_printf(out, "%*s", indent, "");
                col = indent;
                start = true;
                continue;
            }
            p++;
            continue;
        }
        if (*p == ' ') {
            p++;
            continue;
        }
        size_t n = strcspn(p, " \n");
        int w = 0; /* characters, not bytes */
        for (size_t i = 0; i < n; i++)
            w += ((unsigned char)p[i] & 0xC0) != 0x80;
        if (!start && col + 1 + w > width) {
            sd_buf_printf(out, "\n%*s", indent, "");
            col = indent;
            start = true;
        }
        if (!start) {
            sd_buf_putc(out, ' ');
            col++;
        }
        sd_buf_put(out, p, n);
        col += w;
        p += n;
        start = false;
    }
    sd_buf_putc(out, '\n');
}

static void describe_arg(sd_buf *out, const sd_arg_desc *a, int width, int pad) {
    sd_buf line = {0};
    sd_buf_puts(&line, a->doc);
    sd_buf_puts(&line, " (");
    if (a->kind == SD_ARG_CHOICE) {
        for (const char *p = a->choices; *p;) {
            size_t k = strcspn(p, "|");
            sd_buf_printf(&line, "\"%.*s\"", (int)k, p);
            p += k;
            if (*p) {
                sd_buf_puts(&line, ", ");
                p++;
            }
        }
    } else {
        const char *k = sd_op_kind_name(a->kind);
        k += strncmp(k, "a ", 2) == 0 ? 2 : strncmp(k, "an ", 3) == 0 ? 3 : 0;
        sd_buf_puts(&line, k);
        if ((a->kind == SD_ARG_INT || a->kind == SD_ARG_NUM) && bounded(a)) {
            char text[64];
            bounds_text(a, text);
            sd_buf_printf(&line, " %s", text);
        }
    }
    if (a->dflt)
        sd_buf_printf(&line, "; default %s", a->dflt[0] ? a->dflt : "empty");
    sd_buf_putc(&line, ')');
    sd_buf_printf(out, "  %-*s", pad, a->name);
    if (!line.failed)
        wrap(out, line.p, width, pad + 2, pad + 2);
    sd_buf_free(&line);
}

sd_status sd_op_help(const sd_op *op, int width, sd_buf *out, sd_err *err) {
    const sd_op_desc *d = op->desc;
    const sd_op_rec *r = (const sd_op_rec *)(const void *)op;
    if (width < 40)
        width = 80;
    if (width > 100)
        width = 100;
    sd_buf sig = {0};
    sd_status st = sd_op_signature(d, &sig, err);
    if (st == SD_OK)
        wrap(out, sig.p, width, (int)strlen(d->name) + 1, 0);
    sd_buf_free(&sig);
    SD_TRY(st);
    sd_buf_puts(out, "    ");
    wrap(out, d->summary, width, 4, 4);
    sd_buf_putc(out, '\n');
    wrap(out, d->details, width, 0, 0);
    int pad = 8;
    for (uint32_t i = 0; i < d->n_args; i++) {
        int n = (int)strlen(d->args[i].name) + 2;
        pad = n > pad ? n : pad;
    }
    uint32_t req = sd_op_n_required(d);
    if (req) {
        sd_buf_puts(out, "\nArguments\n");
        for (uint32_t i = 0; i < req; i++)
            describe_arg(out, &d->args[i], width, pad);
    }
    if (req < d->n_args) {
        sd_buf_puts(out, "\nOptions\n");
        for (uint32_t i = req; i < d->n_args; i++)
            describe_arg(out, &d->args[i], width, pad);
    }
    if (d->returns != SD_ARG_NIL) {
        sd_buf_puts(out, "\nReturns\n  ");
        wrap(out, d->returns_doc, width, 2, 2);
    }
    sd_buf_puts(out, "\nExample\n");
    for (const char *p = d->example; *p;) {
        size_t k = strcspn(p, "\n");
        sd_buf_puts(out, "  ");
        sd_buf_put(out, p, k);
        sd_buf_putc(out, '\n');
        p += k + (p[k] == '\n');
    }
    if (op->plugin)
        sd_buf_printf(out, "\nFrom plugin %s %s.\n", op->plugin, r->version);
    return sd_buf_status(out, err);
}
