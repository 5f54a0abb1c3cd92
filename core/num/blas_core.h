/* blas_core.h: sees to it that OpenBLAS runs the right kernels (see blas_core.c). Naming the
 * variable links the file in; num/blas.c does so for every user of the library. */
#ifndef SD_NUM_BLAS_CORE_H
#define SD_NUM_BLAS_CORE_H

extern const int sd_blas_core_linked; /* 1 */

#endif
