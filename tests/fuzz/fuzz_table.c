/* fuzz_table.c: any bytes as a table's CSV or JSON; what is read prints, is written and read again.
 */
#include <stdlib.h>

#include "io/json.h"
#include "io/tables.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *s = (const char *)data;
    json_t *j = NULL;
    sd_table *t = NULL, *again = NULL;
    sd_buf b = {0};
    sd_err err = {0};
    sd_status st;
    if (size && (*s == '[' || *s == '{'))
        st = sd_json_parse(s, size, "fuzz", &j, &err) == SD_OK ? sd_table_from_json(j, &t, &err)
                                                               : SD_EFORMAT;
    else
        st = sd_table_from_csv(s, size, &t, &err);
    if (st != SD_OK && !err.text[0])
        abort();
    if (st == SD_OK) {
        (void)sd_table_print(t, 80, 20, &b, &err);
        sd_buf_clear(&b);
        sd_buf_puts(&b, "#sd ");
        (void)sd_table_header_json(t, &b, &err);
        sd_buf_puts(&b, "\n");
        (void)sd_table_csv(t, &b, &err);
        if (sd_table_from_csv(b.p, b.n, &again, &err) == SD_OK &&
            sd_table_rows(again) != sd_table_rows(t) && sd_table_cols(t) > 1)
            abort();
        sd_table_unref(again);
        sd_buf_free(&b);
    }
    sd_table_unref(t);
    json_decref(j);
    return 0;
}
