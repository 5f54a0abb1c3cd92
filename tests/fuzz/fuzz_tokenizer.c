/* fuzz_tokenizer.c: any bytes as a tokenizer.json; what loads must encode and decode. */
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "io/json.h"
#include "io/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello  it's 12 \xc3\xa9\xe5\xad\xa3 <s>\xff\n\n a\xcc\x81";
    json_t *j = NULL;
    sd_tokenizer *t = NULL;
    sd_err err = {0};
    if (sd_json_parse((const char *)data, size, "fuzz", &j, &err) != SD_OK)
        return 0;
    if (sd_tokenizer_from_json(j, "fuzz", &t, &err) == SD_OK) {
        sd_ids ids = {0};
        sd_buf out = {0};
        if (sd_tokenizer_encode(t, text, sizeof text - 1, SD_TOK_ADD_SPECIAL, &ids, NULL, NULL,
                                &err) == SD_OK &&
            sd_tokenizer_decode(t, ids.v, ids.n, 0, false, &out, &err) != SD_OK && !err.text[0])
            abort();
        sd_ids_free(&ids);
        sd_buf_free(&out);
        sd_tokenizer_unref(t);
    } else if (!err.text[0]) {
        abort(); /* a refusal says why */
    }
    json_decref(j);
    return 0;
}
