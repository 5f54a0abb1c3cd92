/* bench_tokenizer.c: encoding speed on 10 MB of text, opening, training.
 *
 *   bench_tokenizer TOKENIZER TEXT [REPEAT]
 *
 * Prints `name value unit` lines; the best of REPEAT runs. The first 10 MB of TEXT are used, TEXT
 * repeated when it is shorter. */
#include <stdio.h>
#include <stdlib.h>

#include "base/os.h"
#include "io/tokenizer.h"

enum { BYTES = 10000000 };

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "data/interim-sd";
    const char *file = argc > 2 ? argv[2] : "data/introduction.txt";
    int repeat = argc > 3 ? atoi(argv[3]) : 3;
    sd_tokenizer *t = NULL;
    sd_buf text = {0}, big = {0};
    sd_err err = {0};
    double open = 1e9, best = 1e9;
    for (int i = 0; i < repeat; i++) {
        sd_tokenizer_unref(t);
        t = NULL;
        double t0 = sd_now();
        if (sd_tokenizer_open(path, NULL, &t, &err) != SD_OK)
            goto bad;
        double took = sd_now() - t0;
        open = took < open ? took : open;
    }
    if (sd_read_file(file, 0, &text, &err) != SD_OK)
        goto bad;
    while (text.n && big.n < BYTES)
        sd_buf_put(&big, text.p, text.n < BYTES - big.n ? text.n : BYTES - big.n);
    size_t tokens = 0;
    for (int i = 0; i < repeat; i++) {
        sd_ids ids = {0};
        double t0 = sd_now();
        if (sd_tokenizer_encode(t, big.p ? big.p : "", big.n, 0, &ids, NULL, NULL, &err) != SD_OK)
            goto bad;
        double took = sd_now() - t0;
        best = took < best ? took : best;
        tokens = ids.n;
        sd_ids_free(&ids);
    }
    sd_buf json = {0};
    double t0 = sd_now();
    if (sd_tokenizer_train(&file, 1, 8192, NULL, 0, NULL, &json, &err) == SD_OK)
        printf("tokenizer.train %.3f s (%.1f MB)\n", sd_now() - t0, (double)text.n / 1e6);
    sd_buf_free(&json);
    printf("tokenizer.open %.1f ms\n", open * 1e3);
    printf("tokenizer.encode %.3f s for %.1f MB, %zu tokens, %.1f MB/s\n", best,
           (double)big.n / 1e6, tokens, (double)big.n / 1e6 / best);
    sd_buf_free(&text);
    sd_buf_free(&big);
    sd_tokenizer_unref(t);
    return 0;
bad:
    fprintf(stderr, "bench_tokenizer: %s\n", err.text);
    return 1;
}
