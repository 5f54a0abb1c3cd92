/* A plugin's descriptor made of the fuzzer's bytes: the check and the registry must refuse or
 * accept without reading where nothing is, and a refusal leaves nothing behind. Pointers come as
 * offsets into the input, as NULL, or as wild addresses. */
#include <stdlib.h>
#include <string.h>

#include "host/host.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *at;
static size_t left;

static uint32_t take(void) {
    uint32_t v = 0;
    size_t n = left < 4 ? left : 4;
    memcpy(&v, at, n);
    at += n;
    left -= n;
    return v;
}

/* Mostly something sensible: random words alone never pass the first check. */
static uint32_t mostly(uint32_t good) {
    uint32_t v = take();
    return v % 16 ? good : v / 16;
}

/* An address where nothing is, below the sanitizer's own tables (its write(2) looks there first).
 */
static const void *wild(void) {
    return (const void *)(uintptr_t)(take() & 0x6ffffff8u);
}

static int nothing(const sd_host *host, sd_call *call) {
    (void)host;
    (void)call;
    return 1;
}

static const char *pointer(const char *pool, size_t n) {
    uint32_t v = take();
    switch (v % 64) {
    case 0:
        return NULL;
    case 1:
        return (const char *)(uintptr_t)(v / 64); /* the zero page, or nearly */
    case 2:
        return (const char *)~(uintptr_t)(v / 64);
    default:
        return pool + v / 64 % n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sd_session *s;
    sd_err err = {0};
    if (!s && sd_session_new(&s, &err) != SD_OK)
        abort();
    at = data;
    left = size;
    /* Strings: the input itself, ended, after a few words that make valid ones likely. */
    static const char words[] = "name\0x\0one line\0keep|none\0keep\0"
                                "1\0true\0"
                                "0.5\0all\0b_2";
    size_t n = sizeof words + size + 1;
    char *pool = malloc(n);
    memcpy(pool, words, sizeof words);
    memcpy(pool + sizeof words, data, size);
    pool[n - 1] = 0;
    sd_arg_desc args[4];
    sd_op_desc ops[3];
    memset(args, 0, sizeof args);
    memset(ops, 0, sizeof ops);
    for (int i = 0; i < 4; i++) {
        args[i].name = pointer(pool, n);
        args[i].kind = mostly(take() % 12);
        args[i].flags = mostly(take() % 2);
        args[i].dflt = take() % 2 ? NULL : pointer(pool, n);
        uint32_t a = take(), b = take();
        memcpy(&args[i].min, (uint32_t[2]){a, b}, 8);
        args[i].max = mostly(10);
        args[i].choices = pointer(pool, n);
        args[i].doc = pointer(pool, n);
    }
    for (int i = 0; i < 3; i++) {
        ops[i].struct_size = mostly(sizeof(sd_op_desc));
        ops[i].returns = mostly(SD_ARG_NUM);
        ops[i].name = pointer(pool, n);
        ops[i].summary = pointer(pool, n);
        ops[i].details = pointer(pool, n);
        ops[i].example = pointer(pool, n);
        ops[i].returns_doc = pointer(pool, n);
        ops[i].args = take() % 8 ? args : (const sd_arg_desc *)wild();
        ops[i].n_args = mostly(take() % 5);
        if (ops[i].args == args && ops[i].n_args > 4) /* beyond it lies our own stack: readable */
            ops[i].n_args = 4;
        ops[i].flags = mostly(0);
        ops[i].run = take() % 8 ? nothing : NULL;
    }
    sd_plugin_desc d = {.abi_major = mostly(SD_ABI_MAJOR),
                        .abi_minor = mostly(SD_ABI_MINOR),
                        .struct_size = mostly(sizeof d),
                        .op_size = mostly(sizeof(sd_op_desc)),
                        .arg_size = mostly(sizeof(sd_arg_desc)),
                        .n_ops = 1 + take() % 3,
                        .name = pointer(pool, n),
                        .version = pointer(pool, n),
                        .summary = pointer(pool, n),
                        .ops = take() % 16 ? ops : (const sd_op_desc *)wild()};
    bool sane = d.ops == ops;
    for (int i = 0; i < 3; i++)
        sane = sane && (ops[i].args == args || ops[i].n_args == 0);
    if (sd_plugin_check(&d, false, &err) != SD_OK) {
        if (!err.text[0])
            abort();
    } else if (sane) {
        bool all = true;
        for (uint32_t i = 0; i < d.n_ops && all; i++) {
            err = (sd_err){0};
            all = sd_op_register_versioned(s, &ops[i], d.name, d.version, &err) == SD_OK;
            if (!all && !err.text[0])
                abort();
            sd_buf help = {0};
            if (all && sd_op_help(sd_op_find(s, ops[i].name), 60, &help, &err) != SD_OK)
                abort();
            sd_buf_free(&help);
        }
        sd_op_remove_plugin(s, d.name);
        for (size_t i = 0; sd_op_at(s, i); i++)
            if (sd_op_at(s, i)->plugin)
                abort();
        /* the session keeps records of unloaded ops; start afresh now and then */
        if (s->n_gone > 500) {
            sd_session_free(s);
            s = NULL;
        }
    }
    free(pool);
    return 0;
}
