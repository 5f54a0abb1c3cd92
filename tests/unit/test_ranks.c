/* Effective ranks: golden values of METHOD §4, CASES N02, N05, N06. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spectral/spectral.h"

static void near_to(double got, double want, double tol) {
    if (!(fabs(got - want) <= tol))
        fail_msg("got %.10g, want %.10g", got, want);
}

/* k unit planes and 64 − k of size eps → entropy, energy, pr, stable, to the digits given. */
static void golden_planes(void **state) {
    (void)state;
    static const struct {
        int k;
        double eps, entropy, energy, pr, stable, tol;
    } g[] = {{1, 0.001, 3.20, 2.00, 2.00, 2.00, 0.005},
             {1, 0.01, 19.33, 2.13, 2.03, 2.01, 0.005},
             {1, 0.1, 106.5, 19.33, 5.28, 3.26, 0.05},
             {2, 0.01, 15.58, 4.13, 4.02, 4.01, 0.005},
             {10, 0.1, 69.06, 26.69, 22.21, 21.08, 0.005}};
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        double s[64];
        for (int p = 0; p < 64; p++)
            s[(p * 37) % 64] = p < g[i].k ? 1 : g[i].eps; // order must not matter
        sd_ranks r;
        sd_ranks_of(s, 64, true, &r);
        near_to(r.entropy, g[i].entropy, g[i].tol);
        near_to(r.energy, g[i].energy, 0.005);
        near_to(r.pr, g[i].pr, 0.005);
        near_to(r.stable, g[i].stable, 0.005);
    }
    double s[64];
    for (int p = 0; p < 64; p++)
        s[p] = p ? 0.01 : 1;
    sd_ranks r;
    sd_ranks_of(s, 64, true, &r);
    assert_int_equal(r.n90, 2);
    assert_int_equal(r.n99, 2);
}

static void n02_ranks(void **state) {
    (void)state;
    static const double s[] = {4.05137424173, 1.53407019672, 0.482695954992};
    sd_ranks r;
    sd_ranks_of(s, 3, true, &r);
    near_to(r.entropy, 4.535251, 5e-7);
    near_to(r.energy, 3.102545, 5e-7);
    near_to(r.pr, 2.625455, 5e-7);
}

static void n05_zeros(void **state) {
    (void)state;
    static const struct {
        double s[3];
        size_t n;
        double want;
    } c[] = {{{0, 0, 0}, 3, 0},      {{1, 0, 0}, 3, 1},         {{1, 1, 0}, 3, 2},
             {{1e-320, 0, 0}, 2, 1}, {{1e300, 0, 1e300}, 3, 2}, {{0}, 0, 0}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        sd_ranks r;
        sd_ranks_of(c[i].s, c[i].n, false, &r);
        near_to(r.pr, c[i].want, 1e-12);
        near_to(r.entropy, c[i].want, 1e-12);
        near_to(r.energy, c[i].want, 1e-12);
        near_to(r.stable, c[i].want, 1e-12);
        assert_int_equal(r.n99, (int)c[i].want);
        sd_ranks_of(c[i].s, c[i].n, true, &r);
        near_to(r.pr, 2 * c[i].want, 1e-12);
        assert_int_equal(r.n90, 2 * (int)c[i].want);
    }
}

static void n06_measures(void **state) {
    (void)state;
    static const double s[] = {1, 4, 1, 2}, sorted[] = {4, 2, 1, 1}, signs[] = {-4, 2, 1, -1};
    const double *each[] = {s, sorted, signs};
    for (int i = 0; i < 3; i++) {
        sd_ranks r;
        sd_ranks_of(each[i], 4, false, &r);
        near_to(r.entropy, 3.363586, 5e-7);
        near_to(r.energy, 2.276322, 5e-7);
        near_to(r.pr, 1.766423, 5e-7);
        near_to(r.stable, 1.375, 1e-15);
        assert_int_equal(r.n90, 2); // 16 + 4 of 22 is 90.9%
        assert_int_equal(r.n95, 3);
        assert_int_equal(r.n99, 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_planes),
        cmocka_unit_test(n02_ranks),
        cmocka_unit_test(n05_zeros),
        cmocka_unit_test(n06_measures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
