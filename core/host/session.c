/* session.c: one running program's registry and settings. */
#include "host/host.h"

#include <string.h>

sd_status sd_session_new(sd_session **out, sd_err *err) {
    *out = NULL;
    sd_session *s = sd_alloc(1, sizeof *s, err);
    if (!s)
        return SD_ENOMEM;
    s->run.seed = 1;
    s->run.kinds = &s->kind_list;
    sd_api_fill_table(&s->host);
    const sd_builtin_group groups[] = {sd_ops_model(),    sd_ops_spectral(), sd_ops_eval(),
                                       sd_ops_generate(), sd_ops_trace(),    sd_ops_train(),
                                       sd_ops_sweep()};
    sd_status st = SD_OK;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (size_t i = 0; st == SD_OK && i < groups[g].n; i++)
            st = sd_op_register(s, &groups[g].ops[i], NULL, err);
    for (size_t i = 0; st == SD_OK && sd_figure_op(i); i++)
        st = sd_op_register(s, sd_figure_op(i), NULL, err);
    if (st == SD_OK)
        *out = s;
    else
        sd_session_free(s);
    return st;
}

static void free_rec(sd_op_rec *r) {
    sd_arena_free(r->arena);
    sd_free(r);
}

void sd_session_free(sd_session *s) {
    if (!s)
        return;
    while (s->n_plugins)
        if (sd_plugin_unload(s, s->plugins[s->n_plugins - 1].name, NULL) != SD_OK)
            break;
    for (size_t i = 0; i < s->n_ops; i++)
        free_rec(s->ops[i]);
    for (size_t i = 0; i < s->n_gone; i++)
        free_rec(s->gone[i]);
    sd_free(s->ops);
    sd_free(s->gone);
    sd_free(s->plugins);
    sd_kind_free_all(s);
    sd_free(s);
}

sd_run *sd_session_run(sd_session *s) {
    return &s->run;
}
