/* Built for another major version of the ABI. Every later field is nonsense on purpose: it may not
 * be looked at. */
#include "gallery.h"
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {
    .abi_major = SD_ABI_MAJOR + 1, .struct_size = 7, .n_ops = 4000000000u, .name = (const char *)8};
