/* The index file of two fixed shards. */
#include "fuzz_file.h"

static void shard(const char *name, const char *header) {
    sd_buf b = {0};
    uint64_t len = strlen(header);
    sd_buf_put(&b, &len, 8);
    sd_buf_puts(&b, header);
    sd_buf_put(&b, "\0\0\200\077\0\0\0\100", 8);
    fuzz_write(name, b.p, b.n);
    sd_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool ready;
    if (!ready) {
        shard("s1.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}");
        shard("s2.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
        ready = true;
    }
    fuzz_container(fuzz_write("m.index.json", data, size), 8);
    return 0;
}
