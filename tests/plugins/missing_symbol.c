/* Exports something else. */
#include "gallery.h"
SD_PLUGIN_EXPORT const int sd_plugins = 1;
