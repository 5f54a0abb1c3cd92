/* lineedit.c: the line editor; the only user of readline, through its callback interface and
 * pselect(): the other ways lose keystrokes or jump out of unsafe code. SIGINT is blocked except
 * inside pselect, so it is never missed. Builds without readline too (READLINE=no). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "shell/shell.h"

#ifdef SD_READLINE
#include <readline/history.h>
#include <readline/readline.h>
#endif

static bool on_terminal;

/* Without a terminal, or without readline: plain lines; fgets cannot lose input. */
static le_result read_plain(const char *prompt, char **line) {
    size_t cap = 0;
    *line = NULL;
    fputs(prompt, stdout);
    fflush(stdout);
    errno = 0;
    ssize_t n = getline(line, &cap, stdin);
    if (n < 0) {
        free(*line);
        *line = NULL;
        if (errno == EINTR || sd_cancelled()) {
            clearerr(stdin);
            sd_cancel_flag = 0;
            fputs("\n", stdout);
            return LE_INTERRUPT;
        }
        return LE_EOF;
    }
    if (n > 0 && (*line)[n - 1] == '\n')
        (*line)[n - 1] = 0;
    return LE_LINE;
}

#ifdef SD_READLINE

static char *got;      /* the line, once the callback has it */
static bool done, eof; /* readline's own state is global too */
static le_complete_fn complete_fn;
static void *complete_ctx;
static volatile sig_atomic_t continued;

static void on_cont(int sig) {
    (void)sig;
    continued = 1;
}

static void on_line(char *line) {
    done = true;
    eof = line == NULL;
    got = line;
    rl_callback_handler_remove();
}

static char **attempt(const char *text, int start, int end) {
    (void)text;
    bool files = false;
    rl_attempted_completion_over = 1;
    rl_completion_append_character = '\0';
    char **m = complete_fn(complete_ctx, rl_line_buffer, start, end, &files);
    if (!m && files)
        rl_attempted_completion_over = 0; /* readline's own file names */
    return m;
}

static struct termios first_modes;

static void restore_modes(void) {
    tcsetattr(STDIN_FILENO, TCSANOW, &first_modes);
}

/* On Ctrl-C the kernel signals first and then empties the terminal's queues: an answer that is
 * written in between, such as the next prompt, would be thrown away with what was typed ahead. */
static void keep_output_on_interrupt(void) {
    if (tcgetattr(STDIN_FILENO, &first_modes) != 0 || (first_modes.c_lflag & NOFLSH))
        return;
    struct termios t = first_modes;
    t.c_lflag |= NOFLSH;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &t) == 0)
        atexit(restore_modes);
}

void lineedit_start(bool terminal, le_complete_fn complete, void *ctx) {
    on_terminal = terminal;
    if (!terminal)
        return;
    keep_output_on_interrupt();
    complete_fn = complete;
    complete_ctx = ctx;
    rl_readline_name = "sd";
    rl_catch_signals = 0;
    rl_attempted_completion_function = attempt;
    rl_basic_word_break_characters = " \t\n\"'`@$><=;|&{}()[]+-*/%^#~,.:?";
    rl_completer_word_break_characters = rl_basic_word_break_characters;
    rl_completer_quote_characters = "\"'";
    rl_completion_query_items = 60;
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_cont;
    sigaction(SIGCONT, &sa, NULL);
}

static le_result read_edited(const char *prompt, char **line) {
    sigset_t block, old, inside;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &old);
    inside = old;
    sigdelset(&inside, SIGINT);
    done = eof = false;
    got = NULL;
    continued = 0;
    sd_cancel_flag = 0;
    rl_callback_handler_install(prompt, on_line);
    le_result r = LE_LINE;
    while (!done) {
        fd_set fds;
        FD_ZERO(&fds);
        FD_SET(STDIN_FILENO, &fds);
        int n = pselect(STDIN_FILENO + 1, &fds, NULL, NULL, NULL, &inside);
        if (sd_cancelled()) {
            sd_cancel_flag = 0;
            rl_callback_sigcleanup();
            rl_free_line_state();
            rl_point = rl_end;
            rl_callback_handler_remove();
            fputs("^C\n", stdout);
            fflush(stdout);
            r = LE_INTERRUPT;
            break;
        }
        if (continued) { /* back from Ctrl-Z: the terminal is the shell's again */
            continued = 0;
            rl_prep_terminal(1);
            rl_forced_update_display();
        }
        if (n < 0 && errno == EINTR) {
            rl_check_signals(); /* window size */
            continue;
        }
        if (n < 0 || FD_ISSET(STDIN_FILENO, &fds))
            rl_callback_read_char();
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (r == LE_INTERRUPT)
        return r;
    if (eof) {
        fputs("\n", stdout);
        return LE_EOF;
    }
    *line = got;
    return LE_LINE;
}

le_result lineedit_read(const char *prompt, char **line) {
    return on_terminal ? read_edited(prompt, line) : read_plain(prompt, line);
}

/* The newest `max` lines of a plain file. */
void lineedit_history_load(const char *path, int max) {
    using_history();
    stifle_history(max);
    FILE *f = fopen(path, "r");
    if (!f)
        return;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, f)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = 0;
        if (*line)
            add_history(line);
    }
    free(line);
    fclose(f);
}

void lineedit_history_add(const char *line) {
    if (!on_terminal)
        return;
    HIST_ENTRY *last = history_length ? history_get(history_base + history_length - 1) : NULL;
    if (!last || strcmp(last->line, line) != 0)
        add_history(line);
}

#else

void lineedit_start(bool terminal, le_complete_fn complete, void *ctx) {
    (void)complete;
    (void)ctx;
    on_terminal = terminal;
}
le_result lineedit_read(const char *prompt, char **line) {
    return read_plain(prompt, line);
}
void lineedit_history_load(const char *path, int max) {
    (void)path;
    (void)max;
}
void lineedit_history_add(const char *line) {
    (void)line;
}

#endif
