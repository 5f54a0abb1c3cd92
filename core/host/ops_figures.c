/* ops_figures.c: figures as operations. */
#include "host/host.h"

sd_builtin_group sd_ops_figures(void) {
    return (sd_builtin_group){NULL, 0};
}
