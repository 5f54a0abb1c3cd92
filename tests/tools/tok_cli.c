/* tok_cli.c: the tokenizer alone, for comparing with other implementations.
 *
 *   tok_cli TOKENIZER encode FLAGS     standard input → ids, one decimal number a line
 *   tok_cli TOKENIZER lines FLAGS      each input record on its own: a 4-byte little-endian length
 *                                      and that many bytes; one line of ids a record
 *   tok_cli TOKENIZER check FLAGS      as encode; then decodes and compares with the input
 *   tok_cli TOKENIZER decode 0         ids on standard input → bytes
 *   tok_cli TOKENIZER time REPEAT      encode REPEAT times, seconds of each on standard error
 *   tok_cli train VOCAB FILE... [-s SPECIAL]...   trains; tokenizer.json on standard output
 * FLAGS: the sum of SD_TOK_SPECIAL_AS_TEXT (1) and SD_TOK_ADD_SPECIAL (2). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "io/tokenizer.h"

static int fail(const sd_err *err) {
    fprintf(stderr, "tok_cli: %s\n", err->text);
    return 1;
}

static void read_all(sd_buf *b) {
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        sd_buf_put(b, chunk, n);
}

static int train(int argc, char **argv, sd_err *err) {
    const char *paths[64], *specials[64];
    size_t n_paths = 0, n_specials = 0;
    sd_buf json = {0};
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "-s") == 0 && i + 1 < argc && n_specials < 64)
            specials[n_specials++] = argv[++i];
        else if (n_paths < 64)
            paths[n_paths++] = argv[i];
    }
    if (sd_tokenizer_train(paths, n_paths, atoi(argv[2]), specials, n_specials, NULL, &json, err) !=
        SD_OK)
        return fail(err);
    fwrite(json.p, 1, json.n, stdout);
    sd_buf_free(&json);
    return 0;
}

static void print_ids(const sd_ids *ids, char sep) {
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? (char[]){sep, 0} : "", (int)ids->v[i]);
    putchar('\n');
}

int main(int argc, char **argv) {
    sd_err err = {0};
    if (argc >= 4 && strcmp(argv[1], "train") == 0)
        return train(argc, argv, &err);
    if (argc < 4) {
        fprintf(stderr, "usage: tok_cli TOKENIZER encode|lines|check|decode|time FLAGS\n");
        return 2;
    }
    sd_tokenizer *t = NULL;
    double began = sd_now();
    if (sd_tokenizer_open(argv[1], NULL, &t, &err) != SD_OK)
        return fail(&err);
    if (strcmp(argv[2], "time") == 0)
        fprintf(stderr, "open %.4f\n", sd_now() - began);
    unsigned flags = (unsigned)atoi(argv[3]);
    sd_buf text = {0}, back = {0};
    sd_ids ids = {0};
    size_t lost = 0;
    int first = -1, rc = 0;
    read_all(&text);
    const char *p = text.p ? text.p : "";
    if (strcmp(argv[2], "lines") == 0) {
        for (size_t i = 0; i + 4 <= text.n && rc == 0;) {
            const unsigned char *u = (const unsigned char *)p + i;
            size_t n = u[0] | (size_t)u[1] << 8 | (size_t)u[2] << 16 | (size_t)u[3] << 24;
            i += 4;
            if (n > text.n - i)
                break;
            ids.n = 0;
            if (sd_tokenizer_encode(t, p + i, n, flags, &ids, &lost, &first, &err) != SD_OK)
                rc = fail(&err);
            print_ids(&ids, ' ');
            i += n;
        }
    } else if (strcmp(argv[2], "decode") == 0) {
        for (char *s = text.p, *e; s && rc == 0; s = e) {
            long v = strtol(s, &e, 10);
            if (e == s)
                break;
            int32_t id = (int32_t)v;
            if (sd_grow((void **)&ids.v, &ids.cap, ids.n + 1, sizeof id, &err) != SD_OK)
                rc = fail(&err);
            else
                ids.v[ids.n++] = id;
        }
        if (rc == 0 && sd_tokenizer_decode(t, ids.v, ids.n, 0, false, &back, &err) != SD_OK)
            rc = fail(&err);
        fwrite(back.p ? back.p : "", 1, back.n, stdout);
    } else {
        bool timing = strcmp(argv[2], "time") == 0;
        for (unsigned k = 0; k < (timing ? flags : 1) && rc == 0; k++) {
            ids.n = 0;
            began = sd_now();
            if (sd_tokenizer_encode(t, p, text.n, timing ? 0 : flags, &ids, &lost, &first, &err) !=
                SD_OK)
                rc = fail(&err);
            if (timing)
                fprintf(stderr, "encode %.4f  %zu tokens\n", sd_now() - began, ids.n);
        }
        if (lost)
            fprintf(stderr, "lost %zu bytes, the first is 0x%02X\n", lost, (unsigned)first);
        if (strcmp(argv[2], "encode") == 0 && rc == 0) {
            print_ids(&ids, '\n');
        } else if (strcmp(argv[2], "check") == 0 && rc == 0) {
            if (sd_tokenizer_decode(t, ids.v, ids.n, 0, false, &back, &err) != SD_OK)
                rc = fail(&err);
            else if (back.n != text.n || memcmp(back.p ? back.p : "", p, text.n) != 0) {
                fprintf(stderr, "decode(encode(x)) differs from x\n");
                rc = 3;
            }
        }
    }
    sd_buf_free(&text);
    sd_buf_free(&back);
    sd_ids_free(&ids);
    sd_tokenizer_unref(t);
    return rc;
}
