/* OpenBLAS chooses its kernels when it is loaded, by a table of processors: one it does not know
 * (Sapphire Rapids for Debian 12's 0.3.21, or a hypervisor that hides the model) gets "Prescott",
 * the slowest, four to five times below what the processor can do. Here, before anything else runs,
 * the choice is made again by instruction set, through the library's own entry points of dynamic
 * builds (weak: a static build has none, and needs none). OPENBLAS_CORETYPE, when set by the user,
 * stands. */
#include "num/blas_core.h"

#include <stdlib.h>
#include <string.h>

extern char *openblas_get_corename(void) __attribute__((weak));
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

const int sd_blas_core_linked = 1;

__attribute__((constructor)) static void pick(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (!openblas_get_corename || !gotoblas_dynamic_init || !gotoblas_dynamic_quit ||
        getenv("OPENBLAS_CORETYPE"))
        return;
    const char *now = openblas_get_corename();
    if (!now || strcmp(now, "Prescott") != 0)
        return;
    __builtin_cpu_init();
    const char *core = NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        core = "SkylakeX";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        core = "Haswell";
    else if (__builtin_cpu_supports("avx"))
        core = "Sandybridge";
    if (!core || setenv("OPENBLAS_CORETYPE", core, 1) != 0)
        return;
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv("OPENBLAS_CORETYPE");
#endif
}
