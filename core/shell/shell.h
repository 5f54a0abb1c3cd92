/* shell.h: what the files of shell/ share: the running shell, evaluation, the line editor. */
#ifndef SD_SHELL_SHELL_H
#define SD_SHELL_SHELL_H

#include "lua/bind.h"

typedef struct shell {
    lua_State *L;
    sd_session *session;
    bool quiet, json, interactive, progress_off;
    bool color; /* errors in red on a terminal (NO_COLOR, TERM=dumb: off) */
    bool warned_local;
    /* progress line on stderr */
    bool err_tty, line_shown;
    double started, last_shown, last_done, first_done;
    char what[64];
    sd_buf streamed; /* text that ran over the screen since the input */
} shell;

/* Chunk results: */
typedef enum chunk_state { CHUNK_READY, CHUNK_INCOMPLETE, CHUNK_ERROR } chunk_state;

/* Compiles src as an expression, then as a statement; the function (or the error message) is
 * pushed. *expr: it was an expression. CHUNK_INCOMPLETE: more input may complete it. */
chunk_state shell_compile(lua_State *L, const char *src, size_t n, const char *name, bool *expr);
/* Calls the function under narg arguments with traceback and interruption; leaves the results or
 * the message. Returns 0 or the exit code of the failure. */
int shell_call(shell *s, int narg, int nres);
/* Prints `n` values at the top of the stack as the prompt does (or as JSON). Exit code. */
int shell_print_values(shell *s, int n);
void shell_report(shell *s, const char *message); /* an error, on stderr */
void shell_clear_progress(shell *s);
/* At a prompt on a terminal: text being generated runs over the screen (sd_run.stream). */
void shell_stream(void *sh, const char *text, size_t n);
void shell_update_size(shell *s);

/* repl.c: the prompt until Ctrl-D; exit code. */
int shell_repl(shell *s);
/* -e and piped expressions: evaluates and prints. */
int shell_eval(shell *s, const char *src, const char *name);

/* complete.c: candidates for the word that starts at `start` of `line` (up to its end). Returns a
 * NULL-terminated malloc'ed list, first entry the common prefix (readline's convention), or NULL;
 * *files is set when file names should be offered instead. */
char **shell_complete(void *sh, const char *line, int start, int end, bool *files);

/* lineedit.c: one line from the terminal (or, without a terminal, from stdin). */
typedef enum le_result { LE_LINE, LE_EOF, LE_INTERRUPT } le_result;
typedef char **(*le_complete_fn)(void *ctx, const char *line, int start, int end, bool *files);
void lineedit_start(bool terminal, le_complete_fn complete, void *ctx);
le_result lineedit_read(const char *prompt, char **line); /* malloc'ed, without newline */
void lineedit_history_load(const char *path, int max);
void lineedit_history_add(const char *line);

#endif
