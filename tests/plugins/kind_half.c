/* Its kind has no backward pass. */
#include "kind.h"
static const sd_op_desc ops[] = {OP("kind_half_op", SD_ARG_NUM, answer)};
static const sd_kind_ops f = {.scratch = k_scratch, .forward = k_pass, .decode = k_decode};
static const sd_kind_desc kinds[] = {{KIND("half", &f)}};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("kind_half", ops), SD_PLUGIN_KINDS(kinds)};
