/* Two kinds of input: a whole file, or (first byte 'J') a header's text, to which the length is put
 * and the data the rest of the input after the first NUL. */
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] != 'J') {
        fuzz_container(fuzz_write("f", data, size), size);
        return 0;
    }
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end ? (size_t)(end - data) - 1 : size - 1;
    sd_buf b = {0};
    uint64_t len = n;
    sd_buf_put(&b, &len, 8);
    sd_buf_put(&b, data + 1, n);
    if (end) {
        sd_buf_put(&b, end + 1, size - n - 2);
    }
    fuzz_container(fuzz_write("f", b.p, b.n), b.n);
    sd_buf_free(&b);
    return 0;
}
