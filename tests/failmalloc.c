/* failmalloc: a preloaded library that fails one allocation of the main program, so that every
 * clean-up path of libsd.a and the program can be walked.
 *
 *   LD_PRELOAD=failmalloc.so SD_FAIL_ALLOC=N SD_FAIL_COUNT=FILE program ...
 *
 * The N-th (from 1) malloc, calloc, realloc, posix_memalign or aligned_alloc called from the main
 * executable's own text returns NULL with ENOMEM (posix_memalign: ENOMEM). Calls from shared
 * libraries (Lua's, OpenBLAS's, libc's own) are neither counted nor failed: the return address is
 * compared with the executable's mapping. SD_FAIL_ALLOC unset, empty or 0: count only.
 * SD_FAIL_MANY=K: fail K calls in a row from the N-th on (-1: all of them). SD_FAIL_COUNT names a
 * file that gets "<calls> <failed>\n" when the program ends; it is written in fini, so a crash
 * leaves none. realloc to size 0 and strdup-like wrappers inside libc are left alone.
 * A child process inherits the environment but has its own main executable: the settings hold for
 * the first process only, children are told by SD_FAIL_PID that they are not meant.
 *
 * Build: gcc -std=gnu11 -O1 -g -Wall -Wextra -fPIC -shared tests/failmalloc.c -o failmalloc.so -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's own entry points: no dlsym, which allocates itself. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static uintptr_t text_lo, text_hi; /* executable segment of the main program */
static long fail_at, fail_many = 1;
static atomic_long calls, failed;
static bool armed;
static char count_file[4096];

static int find_main(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    /* The first object is the main program. */
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
            uintptr_t lo = info->dlpi_addr + p->p_vaddr;
            if (!text_hi || lo < text_lo)
                text_lo = lo;
            if (lo + p->p_memsz > text_hi)
                text_hi = lo + p->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void start(void) {
    char pid[32];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    const char *owner = getenv("SD_FAIL_PID");
    if (owner && *owner && strcmp(owner, pid) != 0)
        return;
    setenv("SD_FAIL_PID", pid, 1);
    const char *n = getenv("SD_FAIL_ALLOC"), *many = getenv("SD_FAIL_MANY"),
               *file = getenv("SD_FAIL_COUNT");
    fail_at = n ? strtol(n, NULL, 10) : 0;
    if (many && *many)
        fail_many = strtol(many, NULL, 10);
    if (file)
        snprintf(count_file, sizeof count_file, "%s", file);
    dl_iterate_phdr(find_main, NULL);
    armed = true;
}

__attribute__((destructor)) static void finish(void) {
    if (!armed || !count_file[0])
        return;
    armed = false;
    char text[64];
    int len = snprintf(text, sizeof text, "%ld %ld\n", atomic_load(&calls), atomic_load(&failed));
    int fd = open(count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, (size_t)len) != len)
        fprintf(stderr, "failmalloc: %s: %s\n", count_file, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* Whether this call, made from `from`, is to fail. */
static bool refuse(const void *from) {
    uintptr_t a = (uintptr_t)from;
    if (!armed || a < text_lo || a >= text_hi)
        return false;
    long k = atomic_fetch_add(&calls, 1) + 1;
    if (fail_at <= 0 || k < fail_at || (fail_many >= 0 && k >= fail_at + fail_many))
        return false;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return true;
}

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

void *malloc(size_t n) {
    return refuse(CALLER) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    return refuse(CALLER) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    if (n != 0 && refuse(CALLER))
        return NULL;
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    return refuse(CALLER) ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n) {
    if (align % sizeof(void *) != 0 || align == 0 || (align & (align - 1)) != 0)
        return EINVAL;
    if (refuse(CALLER))
        return ENOMEM;
    int saved = errno;
    void *p = __libc_memalign(align, n);
    errno = saved;
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}
