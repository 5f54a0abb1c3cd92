/* host.h: what the files of host/ share: the session, one running call, the registry's records.
 * Private to host/. */
#ifndef SD_HOST_HOST_H
#define SD_HOST_HOST_H

#include "base/mem.h"
#include "host/op.h"
#include "host/session.h"
#include "io/tokens.h"
#include "nn/attn.h"

/* A registered op. `pub` is first: a const sd_op * is one of these. Records of unloaded plugins
 * stay allocated until the session ends (a binding may still hold the pointer), with live = false.
 */
typedef struct sd_op_rec {
    sd_op pub;
    sd_arena *arena; /* the descriptor's copy */
    const char *version;
    bool live;
} sd_op_rec;

typedef struct sd_loaded { /* one loaded plugin (plugin.c) */
    char *name, *version, *summary, *path;
    uint32_t abi_major, abi_minor;
    size_t n_ops, n_kinds;
    void *handle;
    void (*fini)(const sd_host *host);
} sd_loaded;

typedef struct sd_kind_rec sd_kind_rec; /* one registered attention kind (kinds.c) */

struct sd_session {
    sd_host host; /* the table every op gets */
    sd_run run;
    sd_op_rec **ops; /* live ones, sorted by name */
    size_t n_ops, cap_ops;
    sd_op_rec **gone;
    size_t n_gone, cap_gone;
    sd_loaded *plugins;
    size_t n_plugins, cap_plugins;
    sd_kind_rec **kinds; /* all that were ever registered */
    size_t n_kinds, cap_kinds;
    sd_attn_list kind_list; /* the live ones: run.kinds */
    size_t cap_kind_rows;
    double text_ended; /* when Ctrl-C last ended a text being generated (sd_now) */
};

/* A scratch block of a call: header before the 64-byte aligned data. */
typedef struct sd_block_hdr {
    struct sd_block_hdr *prev, *next;
    uint64_t magic;
} sd_block_hdr;

typedef struct sd_handle sd_handle; /* hostapi.c */

struct sd_call {
    sd_session *s;
    const sd_op *op; /* NULL in a plugin's init */
    const char *plugin;
    sd_value *args;
    sd_value *result;
    bool has_result;
    sd_err err; /* last failure */
    sd_block_hdr *blocks;
    sd_handle **handles;
    size_t n_handles, cap_handles;
};

/* The function table over the library, whole (hostapi.c). */
void sd_api_fill_table(sd_host *t);

/* Frees everything the call owns; leaked handles are reported to the session's log. */
void sd_call_finish(sd_call *c);

sd_status sd_op_register_versioned(sd_session *s, const sd_op_desc *d,
                                   const char *SD_NULLABLE plugin, const char *SD_NULLABLE version,
                                   sd_err *err);
/* Takes all live ops of a plugin out of the registry. */
void sd_op_remove_plugin(sd_session *s, const char *plugin);

/* A checked descriptor's kind joins the session's list. Its row stays until the session ends, since
 * models may carry it. */
sd_status sd_kind_register(sd_session *s, const sd_kind_desc *d, const char *plugin,
                           const char *version, sd_err *err);
void sd_kind_remove_plugin(sd_session *s, const char *plugin);
void sd_kind_free_all(sd_session *s);

/* Everything that can be checked of a plugin's descriptor before its code runs: version, sizes,
 * every pointer readable, every string ended; functions inside d's own mapping when it was `mapped`
 * from a file. */
sd_status sd_plugin_check(const sd_plugin_desc *d, bool mapped, sd_err *err);

/* Value of a built-in's argument by name (programmer error when undeclared). */
sd_value *sd_call_arg(sd_call *c, const char *name);
int sd_call_return_table(sd_call *c, sd_status st, SD_OWN sd_table *t);
int sd_call_return_model(sd_call *c, sd_status st, SD_OWN sd_model *m);
int sd_call_return_tensor(sd_call *c, sd_status st, SD_OWN sd_tensor *t);
int sd_call_return_num(sd_call *c, sd_status st, double v);

/* What lineage records of the running built-in, for ops that add the step themselves
 * (SD_OP_NO_LINEAGE): version and arguments as JSON, appended. */
sd_status sd_call_step(sd_call *c, sd_buf *version, sd_buf *args, sd_err *err);

/* The seed= of a call; an absent one becomes the session's, so that lineage has it. */
uint64_t sd_call_seed(sd_call *c);
/* The draws= of a call as the library counts them: there 0 asks for its default, here for none. */
int sd_call_draws(sd_call *c);

/* Borrowed ids of a TEXT argument under m; bytes the tokenizer cannot express are warned of. */
sd_status sd_call_ids(sd_call *c, const char *name, sd_model *m, const int32_t **ids, size_t *n);

/* A token file made with another tokenizer than the model's means other words by its ids. */
sd_status sd_same_tokenizer(sd_model *m, const sd_tokens *SD_NULLABLE file, sd_err *err);
/* The default of a run's ctx shrinks to a smaller position table; a value asked for does not. */
int sd_default_ctx(const sd_model *m, int ctx);

/* Rows of the built-in tables, one array a file. */
typedef struct sd_builtin_group {
    const sd_op_desc *ops;
    size_t n;
} sd_builtin_group;
sd_builtin_group sd_ops_model(void);
sd_builtin_group sd_ops_spectral(void);
sd_builtin_group sd_ops_eval(void);
sd_builtin_group sd_ops_generate(void);
sd_builtin_group sd_ops_trace(void);
sd_builtin_group sd_ops_train(void);
sd_builtin_group sd_ops_sweep(void);
const sd_op_desc *sd_figure_op(size_t i); /* the figures one by one, NULL past the end */

#endif
