/* Parsing must bound its memory (run.sh sets the limit), and what parses must print and parse back
 * to the same value. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *j = NULL, *again = NULL;
    sd_err err = {0};
    if (sd_json_parse((const char *)data, size, "fuzz", &j, &err) != SD_OK) {
        if (j || !err.text[0]) {
            abort();
        }
        return 0;
    }
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) {
        int64_t i = 0;
        double d;
        bool b, found;
        const char *s;
        if (sd_json_i64(j, key, -5, 1000, &i, NULL, &err) == SD_OK && (i < -5 || i > 1000)) {
            abort();
        }
        sd_json_f64(j, key, &d, &found, &err);
        sd_json_bool(j, key, &b, NULL, &err);
        sd_json_str(j, key, &s, NULL, &err);
    }
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text) {
        if (sd_json_parse(text, strlen(text), "again", &again, &err) == SD_OK) {
            if (!json_equal(j, again)) {
                abort();
            }
            json_decref(again);
        }
        free(text);
    }
    json_decref(j);
    return 0;
}
