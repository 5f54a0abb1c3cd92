/* rotary.c: rotary pairs and angles, for kernels at a lag and for nulls that are rotated as the
 * heads are (METHOD §1, §5.3). */
#include <math.h>

#include "base/mem.h"
#include "nn/rope.h"
#include "spectral/internal.h"

void sd_spectral_rotary_free(rotary *r) {
    sd_free(r->a);
    sd_free(r->b);
    sd_free(r->cs);
    sd_free(r->sn);
    *r = (rotary){0};
}

sd_status sd_spectral_rotary(const sd_rope_cfg *r, int64_t first, size_t count, rotary *out,
                             sd_err *err) {
    size_t n = (size_t)r->dim / 2, cells;
    *out = (rotary){.n = n, .count = count};
    if (!sd_mul_size(n, count, &cells))
        return sd_fail(err, SD_ENOMEM, "angles of %zu pairs at %zu positions: the size overflows",
                       n, count);
    double *inv = sd_alloc(n + 1, sizeof *inv, err);
    out->a = sd_alloc(n + 1, sizeof *out->a, err);
    out->b = sd_alloc(n + 1, sizeof *out->b, err);
    out->cs = sd_alloc(cells + 1, sizeof *out->cs, err);
    out->sn = sd_alloc(cells + 1, sizeof *out->sn, err);
    if (!inv || !out->a || !out->b || !out->cs || !out->sn) {
        sd_free(inv);
        sd_spectral_rotary_free(out);
        return SD_ENOMEM;
    }
    sd_rope_inv_freq(r, inv);
    for (size_t i = 0; i < n; i++) {
        out->a[i] = r->style == SD_ROPE_HALF ? i : 2 * i;
        out->b[i] = r->style == SD_ROPE_HALF ? i + n : 2 * i + 1;
        for (size_t p = 0; p < count; p++) {
            double angle = (double)(first + (int64_t)p) * inv[i];
            out->cs[p * n + i] = cos(angle);
            out->sn[p * n + i] = sin(angle);
        }
    }
    sd_free(inv);
    return SD_OK;
}

void sd_spectral_rotate_rows(const rotary *rot, size_t rows, double *x, size_t ld, size_t off) {
    for (size_t p = 0; p < rows; p++) {
        double *row = x + p * ld + off;
        const double *cs = rot->cs + p * rot->n, *sn = rot->sn + p * rot->n;
        for (size_t i = 0; i < rot->n; i++) {
            double u = row[rot->a[i]], v = row[rot->b[i]];
            row[rot->a[i]] = u * cs[i] - v * sn[i];
            row[rot->b[i]] = v * cs[i] + u * sn[i];
        }
    }
}
