/* fuzz_vocab.c: any bytes as vocab.txt, and as vocab.json followed by a NUL and merges.txt. */
#include <string.h>

#include "base/os.h"
#include "io/json.h"
#include "io/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(sd_tokenizer *t) {
    static const char text[] = "go gospi\xc4\x87 ABC abab \xe5\xad\xa3\xff  x\n";
    sd_ids ids = {0};
    sd_buf out = {0};
    sd_err err = {0};
    if (sd_tokenizer_encode(t, text, sizeof text - 1, SD_TOK_ADD_SPECIAL, &ids, NULL, NULL, &err) ==
        SD_OK)
        (void)sd_tokenizer_decode(t, ids.v, ids.n, 0, true, &out, &err);
    sd_ids_free(&ids);
    sd_buf_free(&out);
    sd_tokenizer_unref(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *s = (const char *)data;
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    if (sd_tokenizer_from_files(NULL, s, size, NULL, NULL, "fuzz", &t, &err) == SD_OK)
        use(t);
    const char *nul = memchr(s, 0, size);
    json_t *j = NULL;
    if (nul && sd_json_parse(s, (size_t)(nul - s), "fuzz", &j, &err) == SD_OK) {
        size_t n = size - (size_t)(nul + 1 - s);
        if (sd_tokenizer_from_files(j, nul + 1, n, NULL, NULL, "fuzz", &t, &err) == SD_OK)
            use(t);
        json_decref(j);
    }
    return 0;
}
