#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_container(fuzz_write("f", data, size), size);
    return 0;
}
