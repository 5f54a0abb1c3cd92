#include "io/json.h"

#include <string.h>

#include "base/mem.h"
#include "io/foreign.h"

/* Deepest nesting accepted: real files stay below 20, and jansson recurses. */
enum { MAX_DEPTH = 128 };

/* Bytes of heap (glibc, jansson 2.14) behind each kind of value; see budget() below. */
enum {
    COST_OBJECT = 240, /* json_object_t and 8 buckets */
    COST_PAIR = 96,    /* entry beside its key's bytes, and its share of the bucket table */
    COST_ARRAY = 144,  /* json_array_t and room for 8 */
    COST_SLOT = 16,    /* pointer in an array that grows by doubling */
    COST_STRING = 96,  /* json_string_t and its text's block, beside the text */
    COST_NUMBER = 32
};
enum { COST_FLOOR = 1 << 20, COST_PER_BYTE = 40 };

/* One walk over the text before jansson sees it: bounds the depth and what the values will
 * allocate. `[[],[],…` takes 48 bytes of heap per byte of text, `{},` 85; the densest tables in
 * real tokenizers stay below 25. Errors of syntax are left to jansson. */
static sd_status budget(const char *s, size_t n, sd_err *err) {
    uint64_t cost = 0;
    int depth = 0;
    size_t line = 1;
    for (size_t i = 0; i < n; i++) {
        switch (s[i]) {
        case '\n':
            line++;
            break;
        case '{':
        case '[':
            cost += s[i] == '{' ? COST_OBJECT : COST_ARRAY;
            if (++depth > MAX_DEPTH) {
                return sd_fail(err, SD_EFORMAT, "line %zu: nested deeper than %d levels", line,
                               MAX_DEPTH);
            }
            break;
        case '}':
        case ']':
            depth--;
            break;
        case ',':
            cost += COST_SLOT;
            break;
        case ':':
            cost += COST_PAIR - COST_STRING;
            break;
        case '"':
            cost += COST_STRING;
            for (i++; i < n && s[i] != '"'; i++) {
                if (s[i] == '\\') {
                    i++;
                }
            }
            break;
        case '-':
        case '0':
        case '1':
        case '2':
        case '3':
        case '4':
        case '5':
        case '6':
        case '7':
        case '8':
        case '9':
            cost += COST_NUMBER;
            while (i + 1 < n && ((s[i + 1] >= '0' && s[i + 1] <= '9') || s[i + 1] == '.' ||
                                 s[i + 1] == 'e' || s[i + 1] == 'E')) {
                i++;
            }
            break;
        default:
            break;
        }
    }
    uint64_t limit = COST_FLOOR + (uint64_t)n * COST_PER_BYTE;
    if (cost > limit) {
        return sd_fail(err, SD_EFORMAT,
                       "%zu bytes of JSON would take about %llu bytes of memory (limit %llu): too "
                       "many tiny values",
                       n, (unsigned long long)cost, (unsigned long long)limit);
    }
    return SD_OK;
}

sd_status sd_json_parse(const char *text, size_t n, const char *what, json_t **out, sd_err *err) {
    *out = NULL;
    sd_status st = budget(text ? text : "", n, err);
    if (st != SD_OK) {
        sd_err_context(err, "%s", what);
        return st;
    }
    json_error_t je;
    *out = json_loadb(text ? text : "", n, JSON_REJECT_DUPLICATES, &je);
    if (*out) {
        return SD_OK;
    }
    /* jansson leaves the text empty when an allocation fails half-way */
    if (json_error_code(&je) == json_error_out_of_memory || !je.text[0]) {
        return sd_fail(err, SD_ENOMEM, "%s: out of memory", what);
    }
    /* jansson quotes the offending token: keep control bytes of a stranger's file off the screen */
    for (char *p = je.text; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            *p = '?';
        }
    }
    return sd_fail(err, SD_EFORMAT, "%s: line %d, column %d: %s", what, je.line, je.column,
                   je.text);
}

sd_status sd_json_load(const char *path, uint64_t max_bytes, json_t **out, sd_err *err) {
    *out = NULL;
    sd_buf b = {0};
    sd_status st = sd_read_file(path, max_bytes, &b, err);
    if (st == SD_OK) {
        const char *text = b.p;
        size_t n = b.n;
        if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte-order mark */
            text += 3;
            n -= 3;
        }
        st = sd_refuse_foreign(path, text, n, n, err);
        if (st == SD_OK) {
            st = sd_json_parse(text, n, path, out, err);
        }
    }
    sd_buf_free(&b);
    return st;
}

static const char *kind_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

static sd_status look_up(const json_t *obj, const char *key, const json_t **v, bool *found,
                         sd_err *err) {
    *v = json_object_get(obj, key);
    bool there = *v && !json_is_null(*v);
    if (found) {
        *found = there;
    } else if (!there) {
        return sd_fail(err, SD_EFORMAT, "field \"%s\" is %s", key, *v ? "null" : "missing");
    }
    if (!there) {
        *v = NULL;
    }
    return SD_OK;
}

static sd_status wrong_type(const json_t *v, const char *key, const char *expected, sd_err *err) {
    if (json_is_real(v)) {
        return sd_fail(err, SD_EFORMAT, "field \"%s\": expected %s, got the real number %.17g", key,
                       expected, json_real_value(v));
    }
    if (json_is_integer(v)) {
        return sd_fail(err, SD_EFORMAT, "field \"%s\": expected %s, got the integer %lld", key,
                       expected, (long long)json_integer_value(v));
    }
    return sd_fail(err, SD_EFORMAT, "field \"%s\": expected %s, got %s", key, expected,
                   kind_name(v));
}

sd_status sd_json_i64(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                      bool *found, sd_err *err) {
    const json_t *v;
    SD_TRY(look_up(obj, key, &v, found, err));
    if (!v) {
        return SD_OK;
    }
    if (!json_is_integer(v)) {
        return wrong_type(v, key, "an integer", err);
    }
    int64_t x = json_integer_value(v);
    if (x < min || x > max) {
        return sd_fail(err, SD_EFORMAT, "field \"%s\": expected an integer in %lld..%lld, got %lld",
                       key, (long long)min, (long long)max, (long long)x);
    }
    *out = x;
    return SD_OK;
}

sd_status sd_json_f64(const json_t *obj, const char *key, double *out, bool *found, sd_err *err) {
    const json_t *v;
    SD_TRY(look_up(obj, key, &v, found, err));
    if (!v) {
        return SD_OK;
    }
    if (!json_is_number(v)) {
        return wrong_type(v, key, "a number", err);
    }
    *out = json_number_value(v);
    return SD_OK;
}

sd_status sd_json_bool(const json_t *obj, const char *key, bool *out, bool *found, sd_err *err) {
    const json_t *v;
    SD_TRY(look_up(obj, key, &v, found, err));
    if (!v) {
        return SD_OK;
    }
    if (!json_is_boolean(v)) {
        return wrong_type(v, key, "true or false", err);
    }
    *out = json_is_true(v);
    return SD_OK;
}

sd_status sd_json_str(const json_t *obj, const char *key, const char **out, bool *found,
                      sd_err *err) {
    const json_t *v;
    SD_TRY(look_up(obj, key, &v, found, err));
    if (!v) {
        return SD_OK;
    }
    if (!json_is_string(v)) {
        return wrong_type(v, key, "a string", err);
    }
    *out = json_string_value(v);
    return SD_OK;
}

sd_status sd_json_set(json_t *obj, const char *key, json_t *v, sd_err *err) {
    /* json_object_set_new frees the value on failure too */
    return json_object_set_new(obj, key, v) == 0 ? SD_OK : sd_fail(err, SD_ENOMEM, "out of memory");
}

/* jansson writes reals with one number of digits for all, 0.00001 as 1.0000000000000001e-05. */
static void put_value(sd_buf *b, const json_t *j, int indent, int depth);

static void new_line(sd_buf *b, int indent, int depth) {
    if (indent)
        sd_buf_printf(b, "\n%*s", indent * depth, "");
}

static void put_object(sd_buf *b, json_t *j, int indent, int depth) {
    bool first = true;
    sd_buf_putc(b, '{');
    for (void *it = json_object_iter(j); it; it = json_object_iter_next(j, it)) {
        const char *key = json_object_iter_key(it);
        if (!first)
            sd_buf_putc(b, ',');
        first = false;
        new_line(b, indent, depth + 1);
        sd_buf_json_string(b, key, strlen(key));
        sd_buf_puts(b, indent ? ": " : ":");
        put_value(b, json_object_iter_value(it), indent, depth + 1);
    }
    if (!first)
        new_line(b, indent, depth);
    sd_buf_putc(b, '}');
}

static void put_array(sd_buf *b, const json_t *j, int indent, int depth) {
    size_t n = json_array_size(j);
    sd_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            sd_buf_putc(b, ',');
        new_line(b, indent, depth + 1);
        put_value(b, json_array_get(j, i), indent, depth + 1);
    }
    if (n)
        new_line(b, indent, depth);
    sd_buf_putc(b, ']');
}

static void put_value(sd_buf *b, const json_t *j, int indent, int depth) {
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        put_object(b, (json_t *)j, indent, depth);
        break;
    case JSON_ARRAY:
        put_array(b, j, indent, depth);
        break;
    case JSON_STRING:
        sd_buf_json_string(b, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        sd_buf_printf(b, "%lld", (long long)json_integer_value(j));
        break;
    case JSON_REAL: {
        size_t start = b->n;
        sd_buf_json_double(b, json_real_value(j));
        if (!b->failed && !strpbrk(b->p + start, ".en")) /* 1 would come back as an integer */
            sd_buf_puts(b, ".0");
        break;
    }
    case JSON_TRUE:
        sd_buf_puts(b, "true");
        break;
    case JSON_FALSE:
        sd_buf_puts(b, "false");
        break;
    default:
        sd_buf_puts(b, "null");
    }
}

sd_status sd_json_text(const json_t *j, int indent, char **out, sd_err *err) {
    sd_buf b = {0};
    put_value(&b, j, indent, 0);
    sd_status st = sd_buf_status(&b, err);
    if (st != SD_OK)
        sd_buf_free(&b);
    *out = st == SD_OK ? b.p : NULL;
    return st;
}
