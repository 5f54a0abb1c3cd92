#include "nn/rope.h"

#include <math.h>
#include <string.h>

void sd_rope_inv_freq(const sd_rope_cfg *r, double *inv) {
    const double pi = 3.14159265358979323846;
    bool llama3 = strcmp(r->scaling, "llama3") == 0;
    bool linear = strcmp(r->scaling, "linear") == 0;
    bool factors = strcmp(r->scaling, "factors") == 0;
    for (int i = 0; i < r->dim / 2; i++) {
        double f = pow(r->theta, -2.0 * i / r->dim);
        if (linear) {
            f /= r->factor;
        } else if (factors) {
            if (i < r->n_factor)
                f /= (double)r->freq_factor[i];
        } else if (llama3) {
            double wavelen = 2.0 * pi / f;
            double longest = r->original_ctx / r->low_freq;
            double shortest = r->original_ctx / r->high_freq;
            if (wavelen > longest) {
                f /= r->factor;
            } else if (wavelen >= shortest) {
                double smooth =
                    (r->original_ctx / wavelen - r->low_freq) / (r->high_freq - r->low_freq);
                f = (1.0 - smooth) * f / r->factor + smooth * f;
            }
        }
        inv[i] = f;
    }
}
