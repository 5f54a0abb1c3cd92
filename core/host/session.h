/* session.h: everything one running program holds: op registry, loaded plugins, run settings.
 * One object, passed explicitly; there are no globals. */
#ifndef SD_HOST_SESSION_H
#define SD_HOST_SESSION_H

#include "host/op.h"

/* Registers the built-in ops (heads, probe, nll, ppl, stability, …). */
sd_status sd_session_new(SD_OWN sd_session **out, sd_err *err);
void sd_session_free(sd_session *SD_NULLABLE s);
sd_run *sd_session_run(sd_session *s); /* threads, seed, progress and log callbacks: writable */

/* Plugins. Loading is all-or-nothing; the error names file, plugin and cause. */
sd_status sd_plugin_load(sd_session *s, const char *path, sd_err *err);
sd_status sd_plugin_unload(sd_session *s, const char *name, sd_err *err); /* mapping is kept */
sd_status sd_plugin_reload(sd_session *s, const char *name, sd_err *err); /* a fresh copy */
/* Loads every *.so of the search path (build tree, SD_PLUGIN_PATH, user data dir, install dir;
 * never the working directory); a bad plugin is logged and skipped. */
sd_status sd_plugin_load_all(sd_session *s, sd_err *err);
typedef struct sd_plugin_info {
    const char *name, *version, *summary, *path;
    int abi_major, abi_minor;
    size_t n_ops, n_kinds;
} sd_plugin_info;
size_t sd_plugin_count(const sd_session *s);
sd_plugin_info sd_plugin_at(const sd_session *s, size_t i);

#endif
