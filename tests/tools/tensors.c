/* tensors FILE: one line a tensor: name, type, shape, SHA-256 of its values as little-endian f32
 * (integers and f64: of their raw bytes). For comparison with other readers. */
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "io/container.h"

int main(int argc, char **argv) {
    sd_err err = {0};
    sd_container *c = NULL;
    if (argc != 2 || sd_container_open(argv[1], NULL, &c, &err) != SD_OK) {
        fprintf(stderr, "tensors: %s\n", argc == 2 ? err.text : "usage: tensors FILE");
        return 1;
    }
    for (size_t i = 0; i < sd_container_count(c); i++) {
        const sd_tensor_info *t = sd_container_at(c, i);
        const sd_dtype_info *d = sd_dtype_get(t->dtype);
        bool raw = !(d->is_float || d->is_quant) || t->dtype == SD_F64;
        sd_tensor *x = NULL;
        if (sd_container_read_as(c, i, raw ? t->dtype : SD_F32, &x, &err) != SD_OK) {
            fprintf(stderr, "tensors: %s\n", err.text);
            return 1;
        }
        sd_sha256 h;
        char hex[65];
        sd_sha256_init(&h);
        sd_sha256_add(&h, x->data, sd_tensor_nbytes(x));
        sd_sha256_hex(&h, hex);
        printf("%s\t%s\t", t->name, d->name);
        for (int k = 0; k < t->ndim; k++) {
            printf("%s%" PRId64, k ? "," : "", t->shape[k]);
        }
        printf("\t%s\n", hex);
        sd_tensor_free(x);
    }
    sd_container_unref(c);
    return 0;
}
