/* fuzz_text.c: any bytes as text, in every kind of tokenizer; byte-level kinds must give the bytes
 * back. The first byte chooses tokenizer and flags. Run from the repository's root. */
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "io/json.h"
#include "io/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = 6 };
static sd_tokenizer *kind[KINDS];

static void load(void) {
    static const char *const base[] = {"bytes", "bytes", "words", "pieces", "suffix"};
    json_error_t e;
    json_t *ref = json_load_file("tests/ref/tokenizers.json", JSON_ALLOW_NUL, &e);
    sd_err err = {0};
    if (!ref || sd_tokenizer_open("data/interim-sd", NULL, &kind[5], &err) != SD_OK)
        abort();
    for (int i = 0; i < 5; i++) {
        json_t *j = json_object_get(json_object_get(ref, "bases"), base[i]);
        if (i == 1) {
            json_object_set_new(j, "normalizer",
                                json_pack("{ss s[{ss}{ss}{ss}]}", "type", "Sequence", "normalizers",
                                          "type", "NFKD", "type", "StripAccents", "type",
                                          "Lowercase"));
            json_object_set_new(j, "added_tokens",
                                json_pack("[{si ss sb sb sb}{si ss sb sb}]", "id", 700, "content",
                                          "AB", "lstrip", 1, "rstrip", 1, "normalized", 1, "id",
                                          701, "content", "ab ", "single_word", 1, "normalized",
                                          0));
        }
        if (sd_tokenizer_from_json(j, "toy", &kind[i], &err) != SD_OK)
            abort();
        if (i == 1) { /* the plain one is base 0 */
            json_object_set_new(j, "normalizer", json_null());
        }
    }
    json_decref(ref);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!kind[0])
        load();
    if (size == 0)
        return 0;
    int k = data[0] % KINDS;
    const char *s = (const char *)data + 1;
    size_t n = size - 1, lost = 0;
    sd_ids ids = {0};
    sd_buf out = {0};
    sd_err err = {0};
    if (sd_tokenizer_encode(kind[k], s, n, (data[0] / KINDS) & 3, &ids, &lost, NULL, &err) != SD_OK)
        abort();
    if (sd_tokenizer_decode(kind[k], ids.v, ids.n, 0, false, &out, &err) != SD_OK)
        abort();
    if ((k == 0 || k == 5) && (lost || out.n != n || (n && memcmp(out.p, s, n) != 0)))
        abort();
    sd_ids_free(&ids);
    sd_buf_free(&out);
    return 0;
}
