/* args.h: argument descriptors that several built-in operations share, so that one name means one
 * thing everywhere. Private to host/. */
#ifndef SD_HOST_ARGS_H
#define SD_HOST_ARGS_H

#include "include/sd_plugin.h"

#define N(a_) (sizeof(a_) / sizeof *(a_))

#define INT_ARG(name_, dflt_, lo_, hi_, doc_) \
    { .name = name_, .kind = SD_ARG_INT, .dflt = dflt_, .min = lo_, .max = hi_, .doc = doc_ }
#define NUM_ARG(name_, dflt_, lo_, hi_, doc_) \
    { .name = name_, .kind = SD_ARG_NUM, .dflt = dflt_, .min = lo_, .max = hi_, .doc = doc_ }
#define MODEL_ARG \
    { .name = "model", .kind = SD_ARG_MODEL, .flags = SD_ARG_REQUIRED, .doc = "the model" }
#define TEXT_ARG                                                       \
    {                                                                  \
        .name = "text", .kind = SD_ARG_TEXT, .flags = SD_ARG_REQUIRED, \
        .doc = "text \"file\", a literal string, or ids"               \
    }
/* Read with sd_call_seed. `of_`: "seed of the split". */
#define SEED_ARG(of_) INT_ARG("seed", NULL, 0, INFINITY, of_ "; the session's (--seed) when absent")
/* Read with sd_call_draws. */
#define DRAWS_ARG(doc_) INT_ARG("draws", "20", 0, 100000, doc_)
#define CTX_ARG \
    INT_ARG("ctx", "0", 0, 1048576, "tokens a sequence; 0: the position table, at most 512")

#endif
