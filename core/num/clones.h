/* clones.h: SD_CLONES before a function has it compiled for several vector widths, chosen when the
 * program is loaded. The chooser runs before a thread sanitizer is ready for it: none there. */
#ifndef SD_NUM_CLONES_H
#define SD_NUM_CLONES_H

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define SD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SD_CLONES
#endif

#endif
