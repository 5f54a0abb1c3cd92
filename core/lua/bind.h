/* bind.h: what the Lua bindings share. One sd_lua per Lua state (main thread and coroutines).
 *
 * Errors: bindings raise Lua errors whose value is a string; the state remembers status and text of
 * the last one raised, so that the shell can turn an uncaught error into an exit code
 * (sd_lua_exit_code). Boxes: userdata are made empty first and get their C object second, so that a
 * memory error of Lua leaks nothing; `__gc` and `__close` share one function. Memory: C bytes
 * behind live boxes are counted; past a soft maximum a full collection runs (state.c).
 */
#ifndef SD_LUA_BIND_H
#define SD_LUA_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdbool.h>

#include "base/mem.h"
#include "host/session.h"

/* ---- one row of a function table: the function and its documentation ------------------------- */
typedef struct sd_fn {
    const char *name;    /* "matmul", or a method's name */
    lua_CFunction fn;    /* NULL: documentation of something implemented in Lua or of a field */
    const char *sig;     /* "matmul(a, b)" */
    const char *summary; /* one line */
    const char *details; /* nullable */
    const char *example; /* Lua lines; run by the doctests with m, g, t and p (a probe) defined */
    const char *options; /* nullable: "dtype=f32|f64 seed=" for completion */
} sd_fn;

typedef struct sd_box_model {
    sd_model *m;
    struct sd_box_model *prev, *next; /* live models, for the memory account */
} sd_box_model;

typedef struct sd_lua {
    sd_session *session;
    size_t lua_bytes; /* by Lua's allocator */
    /* External bytes: tensors by storage (views share), models by what they loaded. */
    struct sd_account {
        const void *key;
        size_t bytes;
        unsigned count;
    } * acc;
    size_t acc_n, acc_cap;
    size_t tensor_bytes, soft_max;
    size_t n_models,
        models_max; /* live models hold their files open: a soft maximum of their own */
    bool collecting;
    sd_box_model models; /* list head */
    /* Last error raised by a binding. */
    sd_status status;
    char text[SD_ERR_TEXT];
    /* How values print. */
    int width, rows;  /* of the terminal; 0 rows: no limit */
    bool interactive; /* at the prompt */
} sd_lua;

sd_lua *sd_lua_get(lua_State *L);

/* A state with Lua's libraries, the sd table and its globals; the session is borrowed. */
lua_State *sd_lua_new(sd_session *s, sd_err *err);
void sd_lua_close(lua_State *L);
/* (Re)binds every op of the registry as a field of sd; call after plugins came or went. */
void sd_lua_bind_ops(lua_State *L);

/* ---- errors ---------------------------------------------------------------------------------- */
int sd_lua_raise(lua_State *L, const sd_err *e); /* does not return */
int sd_lua_fail(lua_State *L, sd_status code, const char *fmt, ...) SD_PRINTF(3, 4);
/* Position of the user's code that called us ("file:3: "), pushed; "" when there is none. */
void sd_lua_where(lua_State *L);
/* Exit code of the uncaught error value at idx. */
int sd_lua_exit_code(lua_State *L, int idx);
/* Message handler: message + traceback of the user's own frames. */
int sd_lua_message(lua_State *L);
/* Is this chunk name one of ours (embedded Lua)? */
bool sd_lua_is_internal(const char *source);

/* ---- boxes ------------------------------------------------------------------------------------
 */
#define SD_MT_TENSOR "tensor"
#define SD_MT_TABLE "result table"
#define SD_MT_MODEL "model"
#define SD_MT_TEXT "text"
#define SD_MT_TOKENIZER "tokenizer"

/* Each pushes an empty box; fill it, then call the account function for tensors and models. */
sd_tensor **sd_lua_box_tensor(lua_State *L);
void sd_lua_boxed_tensor(lua_State *L, sd_tensor **box);
sd_box_model *sd_lua_box_model(lua_State *L);
void sd_lua_boxed_model(lua_State *L, sd_box_model *box);
sd_table **sd_lua_box_table(lua_State *L);
sd_text **sd_lua_box_text(lua_State *L);
sd_tokenizer **sd_lua_box_tokenizer(lua_State *L);

/* NULL when the value is something else; an error when it is closed. */
sd_tensor *sd_lua_test_tensor(lua_State *L, int i);
sd_table *sd_lua_test_table(lua_State *L, int i);
sd_model *sd_lua_test_model(lua_State *L, int i);
sd_text *sd_lua_test_text(lua_State *L, int i);
sd_tensor *sd_lua_check_tensor(lua_State *L, int i);
sd_table *sd_lua_check_table(lua_State *L, int i);
sd_model *sd_lua_check_model(lua_State *L, int i);
/* A tensor from a tensor, a number or nested tables of numbers: replaces stack slot i by a box. */
sd_tensor *sd_lua_to_tensor(lua_State *L, int i, sd_dtype dflt);
/* A new reference to a text from text userdata, a literal string or a table of ids. */
sd_status sd_lua_to_text(lua_State *L, int i, sd_text **out, sd_err *err);

/* Account of external bytes; collects when the soft maximum is passed. */
void sd_lua_account(lua_State *L, const void *key, size_t bytes);
void sd_lua_unaccount(sd_lua *S, const void *key);
size_t sd_lua_external(const sd_lua *S);
void sd_lua_check_memory(lua_State *L);

/* ---- registration ---------------------------------------------------------------------------- */
/* Sets each function in the table on top of the stack and records its documentation under
 * prefix .. name ("tensor:sum"). Ends at a row without a name. */
void sd_lua_register(lua_State *L, const sd_fn *f, const char *prefix);
/* New class: metatable with the methods as __index (raw, so that completion can walk it), close
 * function as __gc and __close. Leaves the metatable on the stack. */
void sd_lua_class(lua_State *L, const char *name, const sd_fn *methods, const char *prefix,
                  lua_CFunction close, lua_CFunction index);

/* Options of hand-written functions: the trailing table at index i (or none). Unknown keys are
 * errors that suggest the nearest name; names: NULL-terminated list. */
void sd_lua_check_options(lua_State *L, int i, const char *const *names);
/* Field of the options table at i, pushed; false and nothing pushed when absent. */
bool sd_lua_option(lua_State *L, int i, const char *name);
bool sd_lua_opt_bool(lua_State *L, int i, const char *name, bool dflt);
int64_t sd_lua_opt_int(lua_State *L, int i, const char *name, int64_t dflt);
double sd_lua_opt_num(lua_State *L, int i, const char *name, double dflt);
const char *sd_lua_opt_str(lua_State *L, int i, const char *name, const char *dflt);

void sd_lua_open_tensor(lua_State *L); /* each: sd table on top */
void sd_lua_open_linalg(lua_State *L);
void sd_lua_open_table(lua_State *L);
void sd_lua_open_model(lua_State *L);
void sd_lua_open_system(lua_State *L);
void sd_lua_open_ops(lua_State *L);
void sd_lua_open_patch(lua_State *L);
void sd_lua_open_interrupt(lua_State *L); /* wraps coroutine.* */
void sd_lua_open_strings(lua_State *L);   /* string.find … rep, interruptible */

/* ---- values as text ----------------------------------------------------------------------------
 */
/* JSON of any value: result tables as arrays of rows, tensors as nested arrays, NaN as null. */
sd_status sd_lua_json(lua_State *L, int i, sd_buf *out, sd_err *err);
/* Pushes the Lua value of a jansson value (opaque pointer: json_t). */
void sd_lua_push_json(lua_State *L, const void *json);
/* What the prompt shows for the value at i, pushed as a string (lua/show.lua). */
void sd_lua_show(lua_State *L, int i);
/* Help on the value or topic at i, pushed as a string (lua/help.lua). */
void sd_lua_help(lua_State *L, int i);

/* ---- interruption (SHELL §2) --------------------------------------------------------------------
 */
/* The coroutine that runs now, for callbacks from inside a C call; L when none is known. */
lua_State *sd_lua_running(lua_State *L);
void sd_lua_interrupt_install(void);       /* SIGINT handler; SIGPIPE policy */
void sd_lua_interrupt_begin(lua_State *L); /* a chunk starts: clears flag and hook */
void sd_lua_interrupt_end(lua_State *L);   /* a chunk ended: true state is back at the prompt */
/* Runs fn(ctx) in a child process that Ctrl-C can end, and copies the `n_out` output buffers back.
 * For one library call that may take longer than a second. */
typedef struct sd_job_out {
    double *p;
    size_t n;
} sd_job_out;
sd_status sd_lua_run_job(const char *what, sd_status (*fn)(void *ctx, sd_err *err), void *ctx,
                         sd_job_out *out, size_t n_out, sd_err *err);

#endif
