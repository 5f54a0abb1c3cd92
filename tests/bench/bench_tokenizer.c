/* Tokenizer speed: encoding the first 10 MB of TEXT (repeated when it is shorter), opening, and
 * with `train` training a vocabulary of 8,192 on TEXT.
 *   bench_tokenizer TOKENIZER TEXT [REPEAT] [train]
 * Prints `BENCH name value` for every repetition. peer_tokenizer.py times Hugging Face's. */
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
    for (int i = 0; i < repeat; i++) {
        sd_tokenizer_unref(t);
        t = NULL;
        double t0 = sd_now();
        if (sd_tokenizer_open(path, NULL, &t, &err) != SD_OK)
            goto bad;
        printf("BENCH tok.open_ms %.3f\n", (sd_now() - t0) * 1e3);
    }
    if (sd_read_file(file, 0, &text, &err) != SD_OK)
        goto bad;
    while (text.n && big.n < BYTES)
        sd_buf_put(&big, text.p, text.n < BYTES - big.n ? text.n : BYTES - big.n);
    for (int i = 0; i < repeat; i++) {
        sd_ids ids = {0};
        double t0 = sd_now();
        if (sd_tokenizer_encode(t, big.p ? big.p : "", big.n, 0, &ids, NULL, NULL, &err) != SD_OK)
            goto bad;
        double took = sd_now() - t0;
        printf("BENCH tok.sd_mbs %.3f\nBENCH tok.tokens %zu\n", (double)big.n / 1e6 / took, ids.n);
        fflush(stdout);
        sd_ids_free(&ids);
    }
    if (argc > 4) {
        sd_buf json = {0};
        double t0 = sd_now();
        if (sd_tokenizer_train(&file, 1, 8192, NULL, 0, NULL, &json, &err) != SD_OK)
            goto bad;
        printf("BENCH tok.train_s %.3f\n", sd_now() - t0);
        sd_buf_free(&json);
    }
    sd_buf_free(&text);
    sd_buf_free(&big);
    sd_tokenizer_unref(t);
    return 0;
bad:
    fprintf(stderr, "bench_tokenizer: %s\n", err.text);
    return 1;
}
