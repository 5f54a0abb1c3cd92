/* How a model was made: its steps, as kept in memory and in config.json. */
#include "nn/model_i.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "io/json.h"

void sd_model_free_step(model_step *s) {
    sd_free(s->op);
    sd_free(s->version);
    sd_free(s->args);
    sd_free(s->hash);
}

static bool made_of(const char *s, size_t least, size_t most, const char *others) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              strchr(others, c)))
            return false;
    }
    return n >= least && n <= most;
}

static bool is_hash(const char *s) {
    static const char *const tags[] = {"sha256:", "header:", "new:", "chain:"};
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        size_t n = strlen(tags[i]);
        if (strncmp(s, tags[i], n) == 0)
            return strlen(s + n) == 64 && strspn(s + n, "0123456789abcdef") == 64;
    }
    return false;
}

/* A step comes from a stranger's file, and is shown and written into recipes: names and hashes are
 * what they are called, arguments a JSON object without control characters. */
static sd_status check_step(const char *op, const char *version, const char *args, const char *hash,
                            sd_err *err) {
    if (!made_of(op, 1, 64, "_.") || (op[0] >= '0' && op[0] <= '9'))
        return sd_fail(err, SD_EFORMAT, "op is no operation's name (letters, digits, _, up to 64)");
    if (!made_of(version, 0, 96, " ._+-~:()/,@"))
        return sd_fail(err, SD_EFORMAT,
                       "version of '%s' is no version (letters, digits and \" ._+-~:()/,@\", up "
                       "to 96)",
                       op);
    if (!is_hash(hash))
        return sd_fail(err, SD_EFORMAT,
                       "input_hash of '%s' is no hash (sha256:, header:, new: or chain: and 64 "
                       "hexadecimal digits)",
                       op);
    for (const unsigned char *p = (const unsigned char *)args; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            return sd_fail(err, SD_EFORMAT, "args of '%s' hold a control character (byte %u)", op,
                           (unsigned)*p);
    }
    json_t *j = NULL;
    sd_status st = sd_json_parse(args, strlen(args), "args", &j, err);
    if (st == SD_OK && !json_is_object(j))
        st = sd_fail(err, SD_EFORMAT, "args of '%s' are no JSON object", op);
    json_decref(j);
    return st;
}

sd_status sd_model_push_step(sd_model *m, const char *op, const char *version, const char *args,
                             const char *hash, sd_err *err) {
    SD_TRY(sd_grow((void **)&m->steps, &m->cap_steps, m->n_steps + 1, sizeof *m->steps, err));
    model_step s = {sd_strdup(op, err), sd_strdup(version, err), sd_strdup(args, err),
                    sd_strdup(hash, err)};
    if (!s.op || !s.version || !s.args || !s.hash) {
        sd_model_free_step(&s);
        return SD_ENOMEM;
    }
    m->steps[m->n_steps++] = s;
    return SD_OK;
}

sd_status sd_model_read_steps(const json_t *config, sd_model *m, sd_err *err) {
    const json_t *a = json_object_get(config, "sd_lineage");
    if (!a || json_is_null(a))
        return SD_OK;
    if (!json_is_array(a))
        return sd_fail(err, SD_EFORMAT, "'sd_lineage' must be a list");
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *o = json_array_get(a, i);
        const char *op, *version, *args, *hash;
        if (!json_is_object(o))
            return sd_fail(err, SD_EFORMAT, "'sd_lineage': entry %zu is no object", i);
        SD_TRY(sd_json_str(o, "op", &op, NULL, err));
        SD_TRY(sd_json_str(o, "version", &version, NULL, err));
        SD_TRY(sd_json_str(o, "args", &args, NULL, err));
        SD_TRY(sd_json_str(o, "input_hash", &hash, NULL, err));
        sd_status st = check_step(op, version, args, hash, err);
        if (st != SD_OK) {
            sd_err_context(err, "'sd_lineage': step %zu", i);
            return st;
        }
        SD_TRY(sd_model_push_step(m, op, version, args, hash, err));
    }
    return SD_OK;
}

sd_status sd_model_describe_steps(const sd_model *m, json_t *o, sd_err *err) {
    if (m->n_steps == 0)
        return SD_OK;
    json_t *a = json_array();
    for (size_t i = 0; a && i < m->n_steps; i++) {
        const model_step *s = &m->steps[i];
        json_t *e = json_pack("{s:s, s:s, s:s, s:s}", "op", s->op, "version", s->version, "args",
                              s->args, "input_hash", s->hash);
        if (!e || json_array_append_new(a, e) != 0) {
            json_decref(a);
            return sd_fail(err, SD_EWRITE, "lineage step %zu cannot be written as JSON", i);
        }
    }
    return sd_json_set(o, "sd_lineage", a, err);
}

static sd_status input_hash(const sd_model *m, char out[80], sd_err *err) {
    sd_sha256 h;
    char hex[65];
    if (m->n_steps > 0) {
        sd_sha256_init(&h);
        for (size_t i = 0; i < m->n_steps; i++) {
            const model_step *s = &m->steps[i];
            sd_sha256_add(&h, s->op, strlen(s->op) + 1);
            sd_sha256_add(&h, s->version, strlen(s->version) + 1);
            sd_sha256_add(&h, s->args, strlen(s->args) + 1);
            sd_sha256_add(&h, s->hash, strlen(s->hash) + 1);
        }
        sd_sha256_hex(&h, hex);
        snprintf(out, 80, "chain:%s", hex);
        return SD_OK;
    }
    if (!m->container) {
        snprintf(out, 80, "%s", m->fresh_hash);
        return SD_OK;
    }
    uint64_t bytes = 0;
    sd_sha256_init(&h);
    for (size_t i = 0; i < sd_container_count(m->container); i++) {
        const sd_tensor_info *t = sd_container_at(m->container, i);
        char buf[256];
        sd_shape_text(t->ndim, t->shape, buf);
        bytes += t->bytes;
        sd_sha256_add(&h, t->name, strlen(t->name) + 1);
        sd_sha256_add(&h, buf, strlen(buf) + 1);
        int n =
            snprintf(buf, sizeof buf, "%s %llu", sd_tensor_type(t), (unsigned long long)t->bytes);
        sd_sha256_add(&h, buf, (size_t)n + 1);
    }
    if (bytes > (uint64_t)64 << 20) {
        sd_sha256_hex(&h, hex);
        snprintf(out, 80, "header:%s", hex);
        return SD_OK;
    }
    SD_TRY(sd_container_hash(m->container, NULL, hex, err));
    snprintf(out, 80, "sha256:%s", hex);
    return SD_OK;
}

sd_status sd_model_add_step(sd_model *m, const char *op, const char *version, const char *args,
                            sd_err *err) {
    char hash[80];
    SD_TRY(input_hash(m, hash, err));
    SD_TRY(check_step(op, version, args, hash, err)); // what is saved must open
    return sd_model_push_step(m, op, version, args, hash, err);
}

size_t sd_model_n_steps(const sd_model *m) {
    return m->n_steps;
}

sd_step sd_model_step(const sd_model *m, size_t i) {
    sd_step none = {"", "", "", ""};
    if (i >= m->n_steps)
        return none;
    const model_step *s = &m->steps[i];
    sd_step out = {s->op, s->version, s->args, s->hash};
    return out;
}
