/* tensors FILE [OUT]: one line a tensor: name, type, shape, SHA-256 of its values as little-endian
 * f32 (integers and f64: of their raw bytes). With OUT, the tensors are written there as
 * safetensors too, quantised ones as f32. For comparison with other readers. */
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/mem.h"
#include "io/container.h"

int main(int argc, char **argv) {
    sd_err err = {0};
    sd_container *c = NULL;
    if ((argc != 2 && argc != 3) || sd_container_open(argv[1], NULL, &c, &err) != SD_OK) {
        fprintf(stderr, "tensors: %s\n",
                argc == 2 || argc == 3 ? err.text : "usage: tensors FILE [OUT]");
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
        if (d->is_quant) { /* a block's zeros have no sign */
            for (int64_t k = 0; k < sd_tensor_numel(x); k++) {
                ((float *)x->data)[k] += 0.0f;
            }
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
    if (argc == 3) {
        size_t n = sd_container_count(c);
        sd_named_tensor *all = sd_alloc(n, sizeof *all, &err);
        sd_status st = all ? SD_OK : SD_ENOMEM;
        for (size_t i = 0; i < n && st == SD_OK; i++) {
            const sd_tensor_info *t = sd_container_at(c, i);
            sd_tensor *x = NULL;
            st = sd_container_read_as(c, i, sd_dtype_get(t->dtype)->is_quant ? SD_F32 : t->dtype,
                                      &x, &err);
            all[i] = (sd_named_tensor){t->name, x};
        }
        if (st == SD_OK) {
            st = sd_safetensors_write(argv[2], all, n, NULL, &err);
        }
        for (size_t i = 0; i < n; i++) {
            sd_tensor_free((sd_tensor *)all[i].tensor);
        }
        sd_free(all);
        if (st != SD_OK) {
            fprintf(stderr, "tensors: %s\n", err.text);
            return 1;
        }
    }
    sd_container_unref(c);
    return 0;
}
