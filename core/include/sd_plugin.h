/* sd_plugin.h: the one header a plugin includes.
 *
 * A plugin is a shared object that exports one data symbol, `sd_plugin`. It is native code running
 * inside the program: load only what you trust. The host checks ABI version and structure sizes
 * before anything of the plugin runs. The host is reached only through the function table passed to
 * each op; the table only ever grows at its end, and each group names the minor version that added
 * it.
 *
 * See plugins/template.c and plugins/README.md.
 */
#ifndef SD_PLUGIN_H
#define SD_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SD_ABI_MAJOR 1
#define SD_ABI_MINOR 0
#define SD_PLUGIN_EXPORT __attribute__((visibility("default")))

/* ---- op descriptors ------------------------------------------------------------------------- */

typedef enum sd_arg_kind {
    SD_ARG_NIL = 0, /* as `returns`: nothing */
    SD_ARG_BOOL = 1,
    SD_ARG_INT = 2,
    SD_ARG_NUM = 3,
    SD_ARG_STR = 4,
    SD_ARG_CHOICE = 5, /* one of `choices` */
    SD_ARG_LAYERS = 6, /* "0-3,7", "all", or an integer */
    SD_ARG_PATH = 7,
    SD_ARG_MODEL = 8,
    SD_ARG_TEXT = 9, /* text "file", a literal string, or ids */
    SD_ARG_TABLE = 10,
    SD_ARG_TENSOR = 11
} sd_arg_kind;

enum { SD_ARG_REQUIRED = 1 };

typedef struct sd_arg_desc {
    const char *name;
    uint32_t kind;  /* sd_arg_kind */
    uint32_t flags; /* SD_ARG_REQUIRED: positional, in the order of the array, before all others */
    const char *dflt;    /* default as text ("64", "true", "keep"); NULL = absent unless given */
    double min, max;     /* INT, NUM: inclusive; min > max = unbounded */
    const char *choices; /* CHOICE: "keep|scalar|none" */
    const char *doc;     /* one line */
} sd_arg_desc;

typedef struct sd_host sd_host;
typedef struct sd_call sd_call; /* one running call; owns every handle made in it */

/* 0 = success. Anything else: the op failed, and said why with host->fail (which returns the code).
 */
typedef int (*sd_op_fn)(const sd_host *host, sd_call *call);

typedef struct sd_op_desc {
    uint32_t struct_size; /* sizeof(sd_op_desc) */
    uint32_t returns;     /* sd_arg_kind */
    const char *name;     /* [a-z][a-z0-9_]* */
    const char *summary;  /* one line */
    const char *details;  /* paragraphs */
    const char *example;  /* Lua lines; runs in the tests with `m` and `t` defined */
    const char *returns_doc;
    const sd_arg_desc *args;
    uint32_t n_args;
    uint32_t flags;
    sd_op_fn run;
} sd_op_desc;

/* ---- the plugin itself ------------------------------------------------------------------------
 */

typedef struct sd_plugin_desc {
    uint32_t abi_major, abi_minor; /* SD_ABI_MAJOR, SD_ABI_MINOR */
    uint32_t struct_size;          /* sizeof(sd_plugin_desc) */
    uint32_t op_size;              /* sizeof(sd_op_desc) */
    uint32_t arg_size;             /* sizeof(sd_arg_desc) */
    uint32_t n_ops;
    const char *name, *version, *summary;
    const sd_op_desc *ops;
    int (*init)(const sd_host *host, sd_call *call); /* nullable */
    void (*fini)(const sd_host *host);               /* nullable */
} sd_plugin_desc;

/* ---- the host's function table: filled in by host/plugin.c
 * --------------------------------------- */
/* TO BE COMPLETED: groups model · text · calibrate · evaluate · train · linalg · table · rng ·
 * progress/cancel · log · fail · args. */
struct sd_host {
    uint32_t abi_major, abi_minor, struct_size, reserved;
};

#ifdef __cplusplus
}
#endif

#endif
