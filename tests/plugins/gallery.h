/* gallery.h: what the broken plugins of this folder share: one good op, and a good descriptor to
 * break. See ../unit/test_plugin.c, which loads each and expects its own message. */
#ifndef SD_TESTS_GALLERY_H
#define SD_TESTS_GALLERY_H

#include "sd_plugin.h"

#define OP(name_, returns_, run_)                                              \
    {                                                                          \
        .struct_size = sizeof(sd_op_desc), .returns = returns_, .name = name_, \
        .summary = "a test", .details = "A test.", .example = "return 1",      \
        .returns_doc = "something", .run = run_                                \
    }

static inline int answer(const sd_host *host, sd_call *call) {
    return host->return_num(call, 42);
}

#define GOOD(name_, ops_) \
    SD_PLUGIN_HEADER(ops_), .name = name_, .version = "1.0", .summary = "a test plugin"

#endif
