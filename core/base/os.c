#define _GNU_SOURCE
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/run.h"

/* ---- reading --------------------------------------------------------------------------------- */

struct sd_file {
    int fd;
    uint64_t size;
    struct timespec mtime;
    char *path;
};

sd_status sd_file_open(const char *path, sd_file **out, sd_err *err) {
    *out = NULL;
    /* O_NONBLOCK: opening a FIFO must be refused, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return sd_fail(err, SD_EFILE, "%s: %s", path, strerror(errno));
    struct stat st;
    sd_status s = SD_OK;
    if (fstat(fd, &st) != 0)
        s = sd_fail(err, SD_EFILE, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        s = sd_fail(err, SD_EFILE, "%s: is a folder, not a file", path);
    else if (!S_ISREG(st.st_mode))
        s = sd_fail(err, SD_EFILE, "%s: not a regular file", path);
    sd_file *f = s == SD_OK ? sd_alloc(1, sizeof *f, err) : NULL;
    if (f) {
        f->fd = fd;
        f->size = (uint64_t)st.st_size;
        f->mtime = st.st_mtim;
        f->path = sd_strdup(path, err);
    }
    if (!f || !f->path) {
        close(fd);
        sd_free(f);
        return s == SD_OK ? SD_ENOMEM : s;
    }
    *out = f;
    return SD_OK;
}

const char *sd_file_path(const sd_file *f) {
    return f->path;
}

uint64_t sd_file_size(const sd_file *f) {
    return f->size;
}

sd_status sd_file_pread(sd_file *f, uint64_t offset, void *dst, size_t n, sd_err *err) {
    unsigned char *p = dst;
    size_t got = 0;
    while (got < n) {
        uint64_t at = offset + got;
        ssize_t k = at > INT64_MAX ? 0 : pread(f->fd, p + got, n - got, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sd_fail(err, SD_EFILE, "%s: reading %zu bytes at %llu: %s", f->path, n,
                           (unsigned long long)offset, strerror(errno));
        if (k == 0)
            return sd_fail(err, SD_EFILE,
                           "%s: needs %zu bytes at offset %llu, has %zu (file cut short?)", f->path,
                           n, (unsigned long long)offset, got);
        got += (size_t)k;
    }
    return SD_OK;
}

sd_status sd_file_unchanged(const sd_file *f, sd_err *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return sd_fail(err, SD_EFILE, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size != f->size)
        return sd_fail(err, SD_EFILE, "%s: changed since it was opened: had %llu bytes, has %llu",
                       f->path, (unsigned long long)f->size, (unsigned long long)st.st_size);
    if (st.st_mtim.tv_sec != f->mtime.tv_sec || st.st_mtim.tv_nsec != f->mtime.tv_nsec)
        return sd_fail(err, SD_EFILE,
                       "%s: changed since it was opened (written at %lld.%09ld, was %lld.%09ld): "
                       "open it again",
                       f->path, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                       (long long)f->mtime.tv_sec, f->mtime.tv_nsec);
    return SD_OK;
}

void sd_file_close(sd_file *f) {
    if (!f)
        return;
    close(f->fd);
    sd_free(f->path);
    sd_free(f);
}

sd_status sd_read_file(const char *path, uint64_t max, sd_buf *out, sd_err *err) {
    sd_file *f;
    SD_TRY(sd_file_open(path, &f, err));
    sd_status st = SD_OK;
    if (max && f->size > max) {
        st = sd_fail(err, SD_EFORMAT, "%s: %llu bytes, at most %llu are read", path,
                     (unsigned long long)f->size, (unsigned long long)max);
        goto done;
    }
    void *p = out->p;
    st = sd_grow(&p, &out->cap, out->n + (size_t)f->size + 1, 1, err);
    out->p = p ? p : out->p;
    if (st != SD_OK)
        goto done;
    SD_GO(st, done, sd_file_pread(f, 0, out->p + out->n, (size_t)f->size, err));
    out->n += (size_t)f->size;
    out->p[out->n] = '\0';
done:
    sd_file_close(f);
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct sd_writer {
    int fd;
    char *path, *tmp;
    bool failed, direct; /* direct: a device or FIFO, written in place */
    size_t fill;
    unsigned char buf[1 << 16];
};

static void writer_free(sd_writer *w) {
    if (w->fd >= 0)
        close(w->fd);
    sd_free(w->path);
    sd_free(w->tmp);
    sd_free(w);
}

sd_status sd_writer_open(const char *path, sd_writer **out, sd_err *err) {
    *out = NULL;
    if (sd_path_is_dir(path))
        return sd_fail(err, SD_EWRITE, "%s: is a folder", path);
    sd_writer *w = sd_alloc(1, sizeof *w, err);
    if (!w)
        return SD_ENOMEM;
    w->fd = -1;
    sd_buf tmp = {0};
    sd_buf_printf(&tmp, "%s.XXXXXX.tmp", path);
    w->path = sd_strdup(path, err);
    w->tmp = tmp.p;
    if (!w->path || tmp.failed) {
        writer_free(w);
        return sd_fail(err, SD_ENOMEM, "out of memory");
    }
    /* /dev/stdout or a FIFO is not replaced by a file of its name. */
    struct stat old;
    w->direct = stat(path, &old) == 0 && !S_ISREG(old.st_mode);
    w->fd =
        w->direct ? open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY) : mkostemps(w->tmp, 4, O_CLOEXEC);
    if (w->fd < 0) {
        sd_status st = sd_fail(err, SD_EWRITE, "%s: %s", path, strerror(errno));
        writer_free(w);
        return st;
    }
    if (w->direct) {
        *out = w;
        return SD_OK;
    }
    /* mkstemp makes 0600; a saved file gets what the umask allows, or what it replaces had. */
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(w->fd, stat(path, &old) == 0 ? old.st_mode & 07777 : 0666 & ~mask) != 0)
        w->failed = false; /* a file system without modes: nothing is lost */
    *out = w;
    return SD_OK;
}

static sd_status writer_raw(sd_writer *w, const unsigned char *p, size_t n, sd_err *err) {
    while (n) {
        ssize_t k = write(w->fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            w->failed = true;
            return sd_fail(err, SD_EWRITE, "%s: %s", w->path, k < 0 ? strerror(errno) : "no space");
        }
        p += k;
        n -= (size_t)k;
    }
    return SD_OK;
}

sd_status sd_writer_put(sd_writer *w, const void *p, size_t n, sd_err *err) {
    if (w->failed)
        return sd_fail(err, SD_EWRITE, "%s: an earlier write failed", w->path);
    const unsigned char *q = p;
    if (n + w->fill >= sizeof w->buf) {
        SD_TRY(writer_raw(w, w->buf, w->fill, err));
        w->fill = 0;
    }
    if (n >= sizeof w->buf)
        return writer_raw(w, q, n, err);
    if (n)
        memcpy(w->buf + w->fill, q, n);
    w->fill += n;
    return SD_OK;
}

/* Of the file that the spent temporary name stands beside. The name is cut: nothing can run out. A
 * folder that may be written but not read cannot be synced. */
static int sync_folder(char *tmp) {
    char *slash = strrchr(tmp, '/');
    if (slash)
        slash[slash == tmp] = '\0';
    int fd = open(slash ? tmp : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int bad = fsync(fd) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
    close(fd);
    return bad;
}

sd_status sd_writer_commit(sd_writer *w, sd_err *err) {
    sd_status st = SD_OK;
    if (w->failed)
        st = sd_fail(err, SD_EWRITE, "%s: an earlier write failed", w->path);
    else
        st = writer_raw(w, w->buf, w->fill, err);
    if (st == SD_OK && !w->direct && fsync(w->fd) != 0 && errno != EINVAL && errno != EROFS)
        st = sd_fail(err, SD_EWRITE, "%s: %s", w->path, strerror(errno));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && st == SD_OK)
        st = sd_fail(err, SD_EWRITE, "%s: %s", w->path, strerror(errno));
    if (w->direct) {
        writer_free(w);
        return st;
    }
    if (st == SD_OK && rename(w->tmp, w->path) != 0)
        st = sd_fail(err, SD_EWRITE, "%s: %s", w->path, strerror(errno));
    if (st != SD_OK) {
        unlink(w->tmp);
    } else {
        int bad = sync_folder(w->tmp);
        if (bad)
            st = sd_fail(err, SD_EWRITE, "%s: its folder: %s", w->path, strerror(bad));
    }
    writer_free(w);
    return st;
}

void sd_writer_abort(sd_writer *w) {
    if (!w)
        return;
    if (!w->direct)
        unlink(w->tmp);
    writer_free(w);
}

sd_status sd_write_file(const char *path, const void *p, size_t n, sd_err *err) {
    sd_writer *w;
    SD_TRY(sd_writer_open(path, &w, err));
    sd_status st = sd_writer_put(w, p, n, err);
    if (st != SD_OK) {
        sd_writer_abort(w);
        return st;
    }
    return sd_writer_commit(w, err);
}

/* ---- locks ----------------------------------------------------------------------------------- */

struct sd_lock {
    int fd;
};

/* A file system without flock: the owner's name is all there is. Alive when it may be. */
static bool owner_alive(const char *owner, const char *host) {
    long pid = 0;
    char at[256] = "";
    if (sscanf(owner, "process %ld on %255s", &pid, at) != 2 || pid <= 0)
        return false;
    return strcmp(at, host) != 0 || kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

sd_status sd_lock_take(const char *path, const char *what, sd_lock **out, sd_err *err) {
    char host[256] = "?", owner[512] = "", mine[512];
    *out = NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0)
        return sd_fail(err, SD_EWRITE, "%s: %s", path, strerror(errno));
    gethostname(host, sizeof host - 1);
    int rc;
    while ((rc = flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR)
        ;
    int why = rc == 0 ? 0 : errno;
    ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    owner[n > 0 ? n : 0] = '\0';
    owner[strcspn(owner, "\r\n")] = '\0';
    if (why == EWOULDBLOCK || (why && owner_alive(owner, host))) {
        close(fd);
        return sd_fail(err, SD_EINVAL, "%s is in use by %s", what,
                       owner[0] ? owner : "another process");
    }
    int k = snprintf(mine, sizeof mine, "process %ld on %s\n", (long)getpid(), host);
    sd_lock *l = sd_alloc(1, sizeof *l, err);
    if (!l || ftruncate(fd, 0) != 0 || pwrite(fd, mine, (size_t)k, 0) != k) {
        sd_status st = l ? sd_fail(err, SD_EWRITE, "%s: %s", path, strerror(errno)) : SD_ENOMEM;
        close(fd);
        sd_free(l);
        return st;
    }
    l->fd = fd;
    *out = l;
    return SD_OK;
}

void sd_lock_release(sd_lock *l) {
    if (!l)
        return;
    /* Emptied, not removed: a waiting opener would lock a file without a name. */
    int emptied = ftruncate(l->fd, 0);
    (void)emptied; /* else the lock, which is gone, decides */
    close(l->fd);
    sd_free(l);
}

/* ---- paths ----------------------------------------------------------------------------------- */

bool sd_path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool sd_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

sd_status sd_mkdirs(const char *path, sd_err *err) {
    char *p = sd_strdup(path, err);
    if (!p)
        return SD_ENOMEM;
    sd_status st = SD_OK;
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s != '\0')
            continue;
        char c = *s;
        *s = '\0';
        if (mkdir(p, 0777) != 0 && !(errno == EEXIST && sd_path_is_dir(p))) {
            st = sd_fail(err, SD_EWRITE, "%s: %s", p, strerror(errno));
            break;
        }
        *s = c;
        if (c == '\0' || s[1] == '\0')
            break;
    }
    sd_free(p);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

sd_status sd_list_dir(const char *path, char ***names, size_t *n, sd_err *err) {
    *names = NULL;
    *n = 0;
    DIR *d = opendir(path);
    if (!d)
        return sd_fail(err, SD_EFILE, "%s: %s", path, strerror(errno));
    void *v = NULL;
    size_t cap = 0, count = 0;
    sd_status st = SD_OK;
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        SD_GO(st, done, sd_grow(&v, &cap, count + 1, sizeof(char *), err));
        if (!(((char **)v)[count] = sd_strdup(e->d_name, err))) {
            st = SD_ENOMEM;
            goto done;
        }
        count++;
    }
    if (count)
        qsort(v, count, sizeof(char *), by_name);
done:
    closedir(d);
    if (st != SD_OK) {
        while (count)
            sd_free(((char **)v)[--count]);
        sd_free(v);
        return st;
    }
    *names = v;
    *n = count;
    return SD_OK;
}

void sd_remove_folder(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

char *sd_path_join(const char *dir, const char *name, sd_err *err) {
    sd_buf b = {0};
    size_t n = strlen(dir);
    sd_buf_printf(&b, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    if (sd_buf_status(&b, err) != SD_OK) {
        sd_buf_free(&b);
        return NULL;
    }
    return b.p;
}

const char *sd_path_base(const char *path) {
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

sd_status sd_program_dir(sd_buf *out, sd_err *err) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return sd_fail(err, SD_EFILE, "/proc/self/exe: %s", strerror(errno));
    path[n] = '\0';
    char *s = strrchr(path, '/');
    sd_buf_put(out, path, s && s != path ? (size_t)(s - path) : 1);
    return sd_buf_status(out, err);
}

sd_status sd_xdg_dir(const char *kind, sd_buf *out, sd_err *err) {
    static const struct {
        const char *kind, *env, *dflt;
    } dirs[] = {{"data", "XDG_DATA_HOME", ".local/share"},
                {"state", "XDG_STATE_HOME", ".local/state"},
                {"config", "XDG_CONFIG_HOME", ".config"},
                {"cache", "XDG_CACHE_HOME", ".cache"}};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        if (strcmp(kind, dirs[i].kind) != 0)
            continue;
        const char *x = getenv(dirs[i].env), *home = getenv("HOME");
        if (x && x[0] == '/')
            sd_buf_printf(out, "%s/sd", x);
        else if (home && home[0])
            sd_buf_printf(out, "%s/%s/sd", home, dirs[i].dflt);
        else
            return sd_fail(err, SD_EFILE, "neither %s nor HOME is set", dirs[i].env);
        return sd_buf_status(out, err);
    }
    return sd_fail(err, SD_EINVAL, "unknown folder kind '%s'", kind);
}

/* ---- machine --------------------------------------------------------------------------------- */

double sd_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPUs of the cgroup's quota, rounded up; 0 = unlimited or unknown. */
static int cgroup_cpus(void) {
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    long long quota = 0, period = 0;
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) != 2)
            quota = 0;
        fclose(f);
    } else {
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
        if (f && fscanf(f, "%lld", &quota) != 1)
            quota = 0;
        if (f)
            fclose(f);
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
        if (f && fscanf(f, "%lld", &period) != 1)
            period = 0;
        if (f)
            fclose(f);
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int sd_cpu_count(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int q = cgroup_cpus();
    if (q > 0 && q < n)
        n = q;
    return n > 0 ? n : 1;
}

void *sd_map_pages(size_t n) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void sd_unmap_pages(void *p, size_t n) {
    munmap(p, n);
}

uint64_t sd_peak_rss(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (uint64_t)u.ru_maxrss * 1024 : 0;
}

/* ---- other programs -------------------------------------------------------------------------- */

sd_status sd_spawn(const char *const *argv, const char *dir, double deadline, int *exit_code,
                   sd_buf *output, sd_err *err) {
    int pipefd[2];
    if (dir && !sd_path_is_dir(dir))
        return sd_fail(err, SD_EFILE, "%s: not a folder", dir);
    if (pipe2(pipefd, O_CLOEXEC) != 0)
        return sd_fail(err, SD_EFILE, "pipe: %s", strerror(errno));
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&fa, pipefd[1], 1);
    posix_spawn_file_actions_adddup2(&fa, pipefd[1], 2);
    if (dir)
        posix_spawn_file_actions_addchdir_np(&fa, dir);
    sigset_t none, dflt;
    sigemptyset(&none);
    sigemptyset(&dflt);
    sigaddset(&dflt, SIGPIPE);
    sigaddset(&dflt, SIGINT);
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setsigdefault(&at, &dflt);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                      POSIX_SPAWN_SETSIGDEF);
    pid_t pid;
    extern char **environ;
    int rc = posix_spawnp(&pid, argv[0], &fa, &at, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    close(pipefd[1]);
    if (rc != 0) {
        close(pipefd[0]);
        return sd_fail(err, rc == ENOENT ? SD_EMISSING : SD_EFILE, "%s: %s", argv[0],
                       rc == ENOENT ? "not installed" : strerror(rc));
    }
    sd_status st = SD_OK;
    double end = sd_now() + deadline;
    bool eof = false;
    int status = 0;
    for (;;) {
        if (!eof) {
            struct pollfd p = {pipefd[0], POLLIN, 0};
            if (poll(&p, 1, 20) > 0) {
                char buf[4096];
                ssize_t k = read(pipefd[0], buf, sizeof buf);
                if (k > 0 && output && output->n < 1 << 20)
                    sd_buf_put(output, buf, (size_t)k);
                else if (k == 0 || (k < 0 && errno != EINTR))
                    eof = true;
            }
        } else {
            poll(NULL, 0, 5);
        }
        pid_t w = waitpid(pid, &status, WNOHANG);
        /* The program may be done while a grandchild holds the pipe: do not wait for its end. */
        if (w == pid || (w < 0 && errno != EINTR))
            break;
        if (sd_cancelled())
            st = sd_fail(err, SD_ECANCEL, "interrupted");
        else if (sd_now() > end)
            st =
                sd_fail(err, SD_EFILE, "%s: not finished after %.0f s, stopped", argv[0], deadline);
        if (st != SD_OK) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
            break;
        }
    }
    if (!eof && output) { /* what is already in the pipe */
        struct pollfd p = {pipefd[0], POLLIN, 0};
        char buf[4096];
        ssize_t k;
        while (output->n < 1 << 20 && poll(&p, 1, 0) > 0 &&
               (k = read(pipefd[0], buf, sizeof buf)) > 0)
            sd_buf_put(output, buf, (size_t)k);
    }
    close(pipefd[0]);
    if (exit_code)
        *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return st;
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct team {
    size_t n;
    atomic_size_t next;
    atomic_bool stop;
    sd_parallel_fn fn;
    void *ctx;
    pthread_mutex_t lock;
    sd_status status;
    sd_err first;
} team;

typedef struct member {
    team *t;
    int worker;
} member;

static void *work(void *arg) {
    member *m = arg;
    team *t = m->t;
    for (;;) {
        size_t i = atomic_fetch_add(&t->next, 1);
        if (i >= t->n || atomic_load(&t->stop))
            return NULL;
        sd_err e = {SD_OK, ""};
        sd_status st = sd_check_cancel(&e);
        if (st == SD_OK)
            st = t->fn(t->ctx, i, m->worker, &e);
        if (st != SD_OK) {
            atomic_store(&t->stop, true);
            pthread_mutex_lock(&t->lock);
            if (t->status == SD_OK) {
                t->status = st;
                t->first = e;
            }
            pthread_mutex_unlock(&t->lock);
            return NULL;
        }
    }
}

sd_status sd_parallel(size_t n, int threads, sd_parallel_fn fn, void *ctx, sd_err *err) {
    enum { MAX_THREADS = 256 };
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    if ((size_t)(threads < 1 ? 1 : threads) > n)
        threads = n ? (int)n : 1;
    team t = {.n = n, .fn = fn, .ctx = ctx, .status = SD_OK};
    atomic_init(&t.next, 0);
    atomic_init(&t.stop, false);
    pthread_mutex_init(&t.lock, NULL);
    pthread_t id[MAX_THREADS];
    member m[MAX_THREADS];
    int started = 0;
    for (int i = 1; i < threads; i++) {
        m[i] = (member){&t, i};
        /* Fewer threads than asked for is slower, not wrong. */
        if (pthread_create(&id[started], NULL, work, &m[i]) != 0)
            break;
        started++;
    }
    m[0] = (member){&t, 0};
    work(&m[0]);
    for (int i = 0; i < started; i++)
        pthread_join(id[i], NULL);
    pthread_mutex_destroy(&t.lock);
    if (t.status != SD_OK && err)
        *err = t.first;
    return t.status;
}
