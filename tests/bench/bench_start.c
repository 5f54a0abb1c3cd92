/* Wall time of a program: from fork until the text `sd> ` appears on its pseudo-terminal, or until
 * it ends.
 *   bench_start REPEAT prompt|exit NAME PROGRAM [ARGS...]
 * Prints `BENCH NAME milliseconds` for every repetition. */
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int failed(const char *what) {
    fprintf(stderr, "bench_start: %s\n", what);
    return 1;
}

/* Reads until the prompt is there; false when the program ended before. */
static int wait_prompt(int fd) {
    char seen[65536];
    size_t n = 0;
    while (n < sizeof seen - 1) {
        ssize_t got = read(fd, seen + n, sizeof seen - 1 - n);
        if (got <= 0)
            return 0;
        n += (size_t)got;
        seen[n] = 0;
        if (strstr(seen, "sd> "))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5 || (strcmp(argv[2], "prompt") && strcmp(argv[2], "exit")))
        return failed("usage: bench_start REPEAT prompt|exit NAME PROGRAM [ARGS...]");
    int prompt = strcmp(argv[2], "prompt") == 0;
    for (int i = 0; i < atoi(argv[1]); i++) {
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        if (master < 0 || grantpt(master) || unlockpt(master))
            return failed("no pseudo-terminal");
        double t = now();
        pid_t pid = fork();
        if (pid < 0)
            return failed("fork");
        if (pid == 0) {
            setsid();
            int s = prompt ? open(ptsname(master), O_RDWR) : open("/dev/null", O_RDWR);
            for (int f = 0; f < 3; f++)
                if (prompt || f != 2)
                    dup2(s, f);
            close(master);
            setenv("TERM", "xterm", 1);
            execv(argv[4], argv + 4);
            _exit(127);
        }
        int status = 0, ok = 1;
        if (prompt) {
            ok = wait_prompt(master);
            t = now() - t;
            if (write(master, "\004", 1) < 0)
                ok = 0;
            char rest[4096];
            while (read(master, rest, sizeof rest) > 0) {
            }
            waitpid(pid, &status, 0);
        } else {
            waitpid(pid, &status, 0);
            t = now() - t;
        }
        close(master);
        if (!ok || !WIFEXITED(status) || WEXITSTATUS(status))
            return failed("the program failed");
        printf("BENCH %s %.3f\n", argv[3], 1e3 * t);
    }
    return 0;
}
