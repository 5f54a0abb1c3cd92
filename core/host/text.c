/* text.c: texts as operations take them: bytes or ids, tokenised once per tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "host/op.h"

struct sd_text {
    int refs;
    char *name;
    char *bytes; /* NULL for ids */
    size_t n_bytes;
    sd_ids ids;
    sd_tokenizer *tok; /* the ids' tokenizer (counted) */
    size_t lost;       /* bytes that tokenizer cannot express */
    int first_lost;
};

static sd_status text_new(const char *name, sd_text **out, sd_err *err) {
    sd_text *t = sd_alloc(1, sizeof *t, err);
    if (!t)
        return SD_ENOMEM;
    t->refs = 1;
    t->name = sd_strdup(name, err);
    if (!t->name) {
        sd_free(t);
        return SD_ENOMEM;
    }
    *out = t;
    return SD_OK;
}

sd_status sd_text_from_bytes(const char *p, size_t n, sd_text **out, sd_err *err) {
    sd_text *t;
    *out = NULL;
    SD_TRY(text_new("text", &t, err));
    size_t bytes;
    t->bytes = sd_add_size(n, 1, &bytes) ? sd_alloc_raw(bytes, 1, err) : NULL;
    if (!t->bytes) {
        sd_text_unref(t);
        return sd_fail(err, SD_ENOMEM, "out of memory for a text of %zu bytes", n);
    }
    if (n)
        memcpy(t->bytes, p, n);
    t->bytes[n] = 0;
    t->n_bytes = n;
    *out = t;
    return SD_OK;
}

sd_status sd_text_from_file(const char *path, sd_text **out, sd_err *err) {
    sd_text *t;
    *out = NULL;
    SD_TRY(text_new(path, &t, err));
    sd_buf b = {0};
    sd_status st = sd_read_file(path, 0, &b, err);
    if (st == SD_OK && !b.p)
        sd_buf_put(&b, "", 0);
    if (st == SD_OK)
        st = sd_buf_status(&b, err);
    if (st == SD_OK && !b.p) {
        b.p = sd_strdup("", err);
        st = b.p ? SD_OK : SD_ENOMEM;
    }
    if (st != SD_OK) {
        sd_buf_free(&b);
        sd_text_unref(t);
        return st;
    }
    t->bytes = b.p;
    t->n_bytes = b.n;
    *out = t;
    return SD_OK;
}

sd_status sd_text_from_ids(const int32_t *ids, size_t n, sd_text **out, sd_err *err) {
    sd_text *t;
    *out = NULL;
    SD_TRY(text_new("ids", &t, err));
    t->ids.v = sd_alloc_raw(n, sizeof *ids, err);
    if (!t->ids.v) {
        sd_text_unref(t);
        return SD_ENOMEM;
    }
    if (n)
        memcpy(t->ids.v, ids, n * sizeof *ids);
    t->ids.n = t->ids.cap = n;
    *out = t;
    return SD_OK;
}

sd_text *sd_text_ref(sd_text *t) {
    t->refs++;
    return t;
}

void sd_text_unref(sd_text *t) {
    if (!t || --t->refs > 0)
        return;
    sd_free(t->name);
    sd_free(t->bytes);
    sd_ids_free(&t->ids);
    sd_tokenizer_unref(t->tok);
    sd_free(t);
}

const char *sd_text_name(const sd_text *t) {
    return t->name;
}

const char *sd_text_bytes(const sd_text *t, size_t *n) {
    *n = t->bytes ? t->n_bytes : 0;
    return t->bytes;
}

void sd_text_raw_ids(const sd_text *t, const int32_t **ids, size_t *n) {
    *ids = t->bytes ? NULL : t->ids.v;
    *n = t->bytes ? 0 : t->ids.n;
}

size_t sd_text_lost(const sd_text *t, int *first) {
    *first = t->first_lost;
    return t->lost;
}

sd_status sd_text_ids(sd_text *t, const sd_model *m, const int32_t **ids, size_t *n, sd_err *err) {
    const int vocab = sd_model_config(m)->vocab;
    if (t->bytes) {
        sd_tokenizer *tok;
        SD_TRY(sd_model_need_tokenizer(m, &tok, err));
        if (tok != t->tok) {
            sd_ids fresh = {0};
            size_t lost = 0;
            int first = -1;
            sd_status st = sd_tokenizer_encode(tok, t->bytes, t->n_bytes, SD_TOK_SPECIAL_AS_TEXT,
                                               &fresh, &lost, &first, err);
            if (st != SD_OK) {
                sd_ids_free(&fresh);
                return st;
            }
            sd_ids_free(&t->ids);
            t->ids = fresh;
            sd_tokenizer_unref(t->tok);
            t->tok = sd_tokenizer_ref(tok);
            t->lost = lost;
            t->first_lost = first;
        }
    }
    for (size_t i = 0; i < t->ids.n; i++)
        if (t->ids.v[i] < 0 || t->ids.v[i] >= vocab)
            return sd_fail(err, SD_EINVAL,
                           "%s: token %zu is %d, but %s has %d tokens, numbered from 0", t->name, i,
                           (int)t->ids.v[i], sd_model_name(m), vocab);
    *ids = t->ids.v;
    *n = t->ids.n;
    return SD_OK;
}
