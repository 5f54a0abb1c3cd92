/* Weight-level analysis of 1,776 synthetic heads in the shapes of GPT-2 small, medium and large,
 * BERT-base and Pythia-410M (d = 64): every column of `heads` (budgets, all ranks of R and F,
 * planes, eigenvalues, Henrici), Gaussian nulls apart and timed on their own. peer_heads.py times
 * NumPy on the same shapes. Values are Gaussian: the cost does not depend on them.
 *   bench_heads [threads] [repeat]
 * Prints `BENCH name value` for every repetition, as all bench programs do (run.sh). */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/os.h"
#include "num/blas.h"
#include "spectral/internal.h"

enum { D_HEAD = 64, DRAWS = 20 };
static const struct {
    const char *name;
    int layers, heads;
} shapes[] = {{"gpt2", 12, 12},
              {"gpt2-medium", 24, 16},
              {"gpt2-large", 36, 20},
              {"bert-base", 12, 12},
              {"pythia-410m", 24, 16}};

static int fatal(const sd_err *err) {
    fprintf(stderr, "bench_heads: %s\n", err->text);
    return 1;
}

typedef struct draws {
    size_t rows;
} draws;

static sd_status one_draw(void *ctx, size_t i, int worker, sd_err *err) {
    (void)worker;
    draws *c = ctx;
    reduced r = {.r = sd_alloc(4 * D_HEAD * D_HEAD, sizeof(double), err)};
    if (!r.r)
        return SD_ENOMEM;
    sd_rng g;
    sd_rng_stream(&g, 1, c->rows, i);
    sd_spectral_reduced_gauss(c->rows, D_HEAD, &g, &r);
    sd_spectrum s;
    sd_status st = sd_spectral_spectrum_reduced(&r, NULL, SD_SPEC_R | SD_SPEC_LAMBDA, &s, err);
    sd_free(r.r);
    if (st == SD_OK)
        sd_spectrum_free(&s);
    return st;
}

int main(int argc, char **argv) {
    sd_err err = {0};
    sd_run run = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    int repeat = argc > 2 ? atoi(argv[2]) : 3, total = 0;
    printf("heads: %d threads, %s\n", sd_run_threads(&run), sd_blas_config());
    for (int rep = 0; rep < repeat; rep++) {
        double sum = 0, nulls = 0;
        total = 0;
        for (size_t m = 0; m < sizeof shapes / sizeof *shapes; m++) {
            size_t d = (size_t)shapes[m].heads * D_HEAD;
            double *w = sd_alloc(2 * d * d, sizeof *w, &err);
            sd_table *t = NULL;
            if (!w || sd_heads_table(&t, &err) != SD_OK)
                return fatal(&err);
            sd_rng g;
            sd_rng_seed(&g, m + 1);
            sd_rng_fill_gauss(&g, w, 2 * d * d);
            double t0 = sd_now();
            for (int l = 0; l < shapes[m].layers; l++)
                if (sd_heads_layer(t, l, d, shapes[m].heads, shapes[m].heads, D_HEAD, w, w + d * d,
                                   0.125, &run, &err) != SD_OK)
                    return fatal(&err);
            double dt = sd_now() - t0;
            sum += dt;
            total += sd_table_rows(t);
            if (rep == repeat - 1)
                printf("  %-12s %4d heads, D %4zu: %7.3f s, %6.3f ms a head\n", shapes[m].name,
                       sd_table_rows(t), d, dt, 1e3 * dt / sd_table_rows(t));
            sd_table_unref(t);
            sd_free(w);
            // One null per model, as `heads` computes it.
            draws c = {.rows = d};
            int blas = sd_blas_threads(1);
            t0 = sd_now();
            if (sd_parallel(DRAWS, sd_run_threads(&run), one_draw, &c, &err) != SD_OK)
                return fatal(&err);
            nulls += sd_now() - t0;
            sd_blas_threads(blas);
        }
        printf("BENCH heads.sd_s %.4f\nBENCH heads.null_s %.4f\n", sum, nulls);
        fflush(stdout);
    }
    printf("  %d heads; the nulls are %d Gaussian draws a model\n", total, DRAWS);
    return 0;
}
