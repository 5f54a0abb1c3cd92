/* Shared by the model tests: checkpoints taken apart, changed and put together again in a scratch
 * folder. */
#ifndef MODEL_HELP_H
#define MODEL_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "io/container.h"
#include "io/json.h"
#include "nn/model.h"

#define OK(expr_)                                                            \
    do {                                                                     \
        sd_err_clear(&err);                                                  \
        if ((expr_) != SD_OK)                                                \
            fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, #expr_, err.text); \
    } while (0)
#define HAS(text_)                                                                    \
    do {                                                                              \
        if (!strstr(err.text, text_))                                                 \
            fail_msg("%s:%d: '%s' not in '%s'", __FILE__, __LINE__, text_, err.text); \
    } while (0)

#define REF "tests/ref/models/"

static sd_err err;
static char scratch[64];

static inline int scratch_make(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/sd-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static inline void remove_tree(const char *path) {
    char **names = NULL;
    size_t n = 0;
    if (sd_path_is_dir(path) && sd_list_dir(path, &names, &n, NULL) == SD_OK) {
        for (size_t i = 0; i < n; i++) {
            char *p = sd_path_join(path, names[i], NULL);
            remove_tree(p);
            sd_free(p);
            sd_free(names[i]);
        }
        sd_free(names);
        rmdir(path);
        return;
    }
    remove(path);
}

static inline int scratch_remove(void **state) {
    (void)state;
    remove_tree(scratch);
    return 0;
}

/* A path in the scratch folder; valid until the eighth call after. */
static inline const char *at(const char *name) {
    static char buf[8][256];
    static int k;
    k = (k + 1) % 8;
    snprintf(buf[k], sizeof buf[k], "%s/%s", scratch, name);
    return buf[k];
}

/* A checkpoint in pieces. */
typedef struct pieces {
    json_t *config;
    char name[80][128];
    sd_tensor *t[80];
    size_t n;
} pieces;

static inline pieces *take_apart(const char *folder) {
    pieces *p = calloc(1, sizeof *p);
    sd_container *c = NULL;
    OK(sd_container_open(folder, NULL, &c, &err));
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (sd_path_exists(path))
        OK(sd_json_load(path, 1 << 20, &p->config, &err));
    for (size_t i = 0; i < sd_container_count(c); i++) {
        snprintf(p->name[p->n], 128, "%s", sd_container_at(c, i)->name);
        OK(sd_container_read(c, i, &p->t[p->n], &err));
        p->n++;
    }
    sd_container_unref(c);
    return p;
}

static inline int piece(const pieces *p, const char *name) {
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->name[i], name) == 0)
            return (int)i;
    }
    return -1;
}

static inline void drop_piece(pieces *p, const char *name) {
    int i = piece(p, name);
    assert_true(i >= 0);
    sd_tensor_free(p->t[i]);
    for (size_t k = (size_t)i; k + 1 < p->n; k++) {
        memcpy(p->name[k], p->name[k + 1], 128);
        p->t[k] = p->t[k + 1];
    }
    p->n--;
}

static inline float *add_piece(pieces *p, const char *name, int ndim, const int64_t *shape) {
    snprintf(p->name[p->n], 128, "%s", name);
    OK(sd_tensor_new(SD_F32, ndim, shape, &p->t[p->n], &err));
    return p->t[p->n++]->data;
}

static inline void prefix_pieces(pieces *p, const char *prefix) {
    for (size_t i = 0; i < p->n; i++) {
        char s[128];
        snprintf(s, sizeof s, "%s%.100s", prefix, p->name[i]);
        strcpy(p->name[i], s);
    }
}

static inline void free_pieces(pieces *p) {
    for (size_t i = 0; i < p->n; i++)
        sd_tensor_free(p->t[i]);
    json_decref(p->config);
    free(p);
}

static inline void put_together(const pieces *p, const char *folder) {
    sd_named_tensor nt[80];
    char path[256];
    OK(sd_mkdirs(folder, &err));
    for (size_t i = 0; i < p->n; i++) {
        nt[i].name = p->name[i];
        nt[i].tensor = p->t[i];
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    OK(sd_safetensors_write(path, nt, p->n, NULL, &err));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(p->config, path, 0), 0);
}

static inline sd_model *open_model(const char *path) {
    sd_model *m = NULL;
    OK(sd_model_open(path, NULL, &m, &err));
    return m;
}

/* Must be refused; the text stays in err. */
static inline void refused(const char *path) {
    sd_model *m = NULL;
    sd_err_clear(&err);
    if (sd_model_open(path, NULL, &m, &err) == SD_OK)
        fail_msg("%s opened", path);
    assert_null(m);
    assert_true(err.code == SD_EFORMAT || err.code == SD_EFILE);
}

static inline void set_key(pieces *p, const char *key, json_t *v) {
    assert_int_equal(json_object_set_new(p->config, key, v), 0);
}

/* All parts of two models are equal, bit for bit. */
static inline void same_parts(sd_model *a, sd_model *b) {
    const sd_config *c = sd_model_config(a);
    for (int l = 0; l < c->n_layer; l++) {
        for (int r = 0; r < SD_ROLE_COUNT; r++) {
            if (sd_role_is_global((sd_role)r) && l > 0)
                continue;
            assert_int_equal(sd_model_has(a, l, (sd_role)r), sd_model_has(b, l, (sd_role)r));
            if (!sd_model_has(a, l, (sd_role)r))
                continue;
            sd_tensor *x = NULL, *y = NULL;
            OK(sd_model_get(a, l, (sd_role)r, SD_F32, &x, &err));
            OK(sd_model_get(b, l, (sd_role)r, SD_F32, &y, &err));
            assert_int_equal(sd_tensor_nbytes(x), sd_tensor_nbytes(y));
            if (memcmp(x->data, y->data, sd_tensor_nbytes(x)) != 0)
                fail_msg("layer %d: %s differs", l, sd_role_name((sd_role)r));
            sd_tensor_free(x);
            sd_tensor_free(y);
        }
    }
}

/* Warnings given while opening. */
typedef struct warned {
    int n;
    char text[1024];
} warned;
static inline void catch_log(void *ctx, sd_log_level level, const char *text) {
    warned *w = ctx;
    if (level == SD_LOG_WARN) {
        w->n++;
        snprintf(w->text, sizeof w->text, "%s", text);
    }
}

#endif
