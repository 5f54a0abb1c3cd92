/* plugin.c: loading plugins; the only user of dlfcn.h.
 *
 * A plugin is checked whole before its init or any op runs: file type, ABI version, structure
 * sizes, every pointer and string of its descriptor (read through a pipe, so that a wild pointer is
 * an error and not a crash), then the registry's own validation. Loading is all-or-nothing.
 *
 * Each load opens a private copy of the file, unlinked at once: rebuilding the file cannot pull the
 * mapping away, and reload really sees the new code. A mapping whose init has run is never closed:
 * dlclose under running threads crashes. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "host/host.h"

enum { MAX_KINDS = 64, MAX_OPS = 256, MAX_STR = 16385, MAX_FILE = 256 << 20 };

/* ---- reading memory that may not be there ---- */

typedef struct prober {
    int fd[2];
} prober;

static sd_status prober_open(prober *p, sd_err *err) {
    if (pipe(p->fd) != 0)
        return sd_fail(err, SD_EPLUGIN, "no pipe for checking the plugin: %s", strerror(errno));
    fcntl(p->fd[0], F_SETFD, FD_CLOEXEC);
    fcntl(p->fd[1], F_SETFD, FD_CLOEXEC);
    return SD_OK;
}

static void prober_close(prober *p) {
    close(p->fd[0]);
    close(p->fd[1]);
}

/* write(2) reports EFAULT for an unreadable address instead of dying of it. */
static bool byte_readable(const prober *p, const void *at) {
    char c;
    ssize_t n;
    do
        n = write(p->fd[1], at, 1);
    while (n < 0 && errno == EINTR);
    if (n != 1)
        return false;
    while (read(p->fd[0], &c, 1) < 0 && errno == EINTR)
        ;
    return true;
}

static bool readable(const prober *p, const void *at, size_t n) {
    const uintptr_t page = 4096, a = (uintptr_t)at;
    if (!at || n > UINTPTR_MAX - a)
        return false;
    for (uintptr_t x = a; x < a + n; x = (x / page + 1) * page)
        if (!byte_readable(p, (const void *)x))
            return false;
    return true;
}

/* Aligned as the descriptors' structures are. */
static bool aligned(const void *at) {
    return (uintptr_t)at % _Alignof(sd_op_desc) == 0;
}

/* Is s a terminated string of less than MAX_STR bytes in readable memory? */
static bool string_readable(const prober *p, const char *s) {
    const uintptr_t page = 4096;
    uintptr_t a = (uintptr_t)s;
    size_t left = MAX_STR;
    while (left) {
        if (!a || !byte_readable(p, (const void *)a))
            return false;
        size_t k = page - a % page;
        k = k < left ? k : left;
        if (memchr((const void *)a, 0, k))
            return true;
        a += k;
        left -= k;
    }
    return false;
}

/* ---- the descriptor ---- */

typedef struct check {
    const prober *p;
    bool maps; /* functions are checked against the mapping named by `file` */
    char file[64];
} check;

/* Permissions and "device inode" of the mapping that holds `at`, from the kernel's own list (dladdr
 * would need _GNU_SOURCE); false when there is none. */
static bool mapping_of(const void *at, char perms[8], char file[64]) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[1024];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned long lo, hi;
        char dev[24], inode[32];
        if (sscanf(line, "%lx-%lx %7s %*s %23s %31s", &lo, &hi, perms, dev, inode) == 5 &&
            (uintptr_t)at >= lo && (uintptr_t)at < hi) {
            snprintf(file, 64, "%s %s", dev, inode);
            found = true;
        }
    }
    if (f)
        fclose(f);
    return found;
}

static sd_status need_string(const check *k, const char *s, const char *what, bool nullable,
                             sd_err *err) {
    if (!s)
        return nullable ? SD_OK : sd_fail(err, SD_EPLUGIN, "%s is missing", what);
    if (!string_readable(k->p, s))
        return sd_fail(err, SD_EPLUGIN,
                       "%s is not a string: a wild pointer or no end within %d bytes", what,
                       MAX_STR - 1);
    return SD_OK;
}

static sd_status need_function(const check *k, void (*fn)(void), const char *what, sd_err *err) {
    void *at;
    char perms[8], file[64];
    memcpy(&at, &fn, sizeof at);
    if (k->maps && at &&
        (!mapping_of(at, perms, file) || strcmp(file, k->file) != 0 || !strchr(perms, 'x')))
        return sd_fail(err, SD_EPLUGIN, "%s does not point into the plugin's code", what);
    return SD_OK;
}

static sd_status check_op_memory(const check *k, const sd_op_desc *d, uint32_t i, sd_err *err) {
    char what[64];
    snprintf(what, sizeof what, "op %u", i + 1);
    if (d->struct_size != sizeof *d)
        return sd_fail(err, SD_EPLUGIN, "%s: struct_size is %u, this program's sd_op_desc is %zu",
                       what, d->struct_size, sizeof *d);
    sd_status st = need_string(k, d->name, "its name", false, err);
    if (st == SD_OK)
        st = need_string(k, d->summary, "its summary", true, err);
    if (st == SD_OK)
        st = need_string(k, d->details, "its details", true, err);
    if (st == SD_OK)
        st = need_string(k, d->example, "its example", true, err);
    if (st == SD_OK)
        st = need_string(k, d->returns_doc, "its returns_doc", true, err);
    if (st == SD_OK && d->n_args > 64)
        st = sd_fail(err, SD_EPLUGIN, "%u arguments, at most 64 are possible", d->n_args);
    if (st == SD_OK && d->n_args &&
        !(aligned(d->args) && readable(k->p, d->args, d->n_args * sizeof *d->args)))
        st = sd_fail(err, SD_EPLUGIN, "its %u arguments are not in readable memory", d->n_args);
    for (uint32_t j = 0; st == SD_OK && j < d->n_args; j++) {
        const sd_arg_desc *a = &d->args[j];
        st = need_string(k, a->name, "its name", false, err);
        if (st == SD_OK)
            st = need_string(k, a->dflt, "its default", true, err);
        if (st == SD_OK)
            st = need_string(k, a->choices, "its choices", true, err);
        if (st == SD_OK)
            st = need_string(k, a->doc, "its doc", true, err);
        if (st != SD_OK)
            sd_err_context(err, "argument %u", j + 1);
    }
    if (st == SD_OK) {
        void (*fn)(void);
        memcpy(&fn, &d->run, sizeof fn);
        st = need_function(k, fn, "its function", err);
    }
    if (st != SD_OK)
        sd_err_context(err, "%s", what);
    return st;
}

static sd_status need_ops(const check *k, const sd_kind_ops *o, const char *type, bool recurrent,
                          sd_err *err) {
    if (!(aligned(o) && readable(k->p, o, sizeof *o)))
        return sd_fail(err, SD_EPLUGIN, "its %s functions are not in readable memory", type);
    const void *const fields[] = {&o->scratch, &o->forward, &o->backward, &o->decode,
                                  &o->state_size};
    static const char *const names[] = {"scratch", "forward", "backward", "decode", "state_size"};
    for (int i = 0; i < 5; i++) {
        void (*fn)(void);
        char what[64];
        memcpy(&fn, fields[i], sizeof fn);
        snprintf(what, sizeof what, "its %s %s", type, names[i]);
        if (!fn && (i < 4 || recurrent))
            return sd_fail(err, SD_EPLUGIN, "%s is missing", what);
        SD_TRY(need_function(k, fn, what, err));
    }
    return SD_OK;
}

static sd_status check_kind_options(const check *k, const sd_kind_desc *d, sd_err *err) {
    const uint32_t most = 24; /* options of a row are counted in the bits of an integer */
    if (d->n_options > most)
        return sd_fail(err, SD_EPLUGIN, "%u options, at most %u are possible", d->n_options, most);
    if (d->n_options &&
        !(aligned(d->options) && readable(k->p, d->options, d->n_options * sizeof *d->options)))
        return sd_fail(err, SD_EPLUGIN, "its %u options are not in readable memory", d->n_options);
    sd_status st = SD_OK;
    for (uint32_t j = 0; st == SD_OK && j < d->n_options; j++) {
        const sd_kind_option *o = &d->options[j];
        st = need_string(k, o->name, "its name", false, err);
        if (st == SD_OK)
            st = need_string(k, o->doc, "its doc", false, err);
        if (st == SD_OK)
            st = need_string(k, o->choices, "its choices", true, err);
        if (st == SD_OK)
            st = need_string(k, o->required, "its example of use", true, err);
        if (st != SD_OK)
            sd_err_context(err, "option %u", j + 1);
    }
    return st;
}

static sd_status check_kind_memory(const check *k, const sd_kind_desc *d, uint32_t i, sd_err *err) {
    void (*flops)(void), (*refuse)(void);
    sd_status st = SD_OK;
    if (d->struct_size != sizeof *d)
        st = sd_fail(err, SD_EPLUGIN, "struct_size is %u, this program's sd_kind_desc is %zu",
                     d->struct_size, sizeof *d);
    if (st == SD_OK)
        st = need_string(k, d->name, "its name", false, err);
    if (st == SD_OK)
        st = need_string(k, d->summary, "its summary", false, err);
    if (st == SD_OK)
        st = check_kind_options(k, d, err);
    memcpy(&flops, &d->flops, sizeof flops);
    memcpy(&refuse, &d->check, sizeof refuse);
    if (st == SD_OK && !flops)
        st = sd_fail(err, SD_EPLUGIN, "its flops is missing");
    if (st == SD_OK)
        st = need_function(k, flops, "its flops", err);
    if (st == SD_OK)
        st = need_function(k, refuse, "its check", err);
    bool recurrent = d->flags & SD_KIND_RECURRENT;
    if (st == SD_OK)
        st = need_ops(k, d->f32, "f32", recurrent, err);
    if (st == SD_OK)
        st = need_ops(k, d->f64, "f64", recurrent, err);
    if (st != SD_OK)
        sd_err_context(err, "attention kind %u", i + 1);
    return st;
}

/* What a descriptor of this minor version says of attention kinds. */
static sd_status check_kinds(const check *k, const sd_plugin_desc *d, sd_err *err) {
    if (d->abi_minor < 1 || d->n_kinds == 0)
        return SD_OK;
    if (d->n_kinds > MAX_KINDS)
        return sd_fail(err, SD_EPLUGIN, "it announces %u attention kinds, at most %d are possible",
                       d->n_kinds, MAX_KINDS);
    if (d->kind_size != sizeof(sd_kind_desc))
        return sd_fail(err, SD_EPLUGIN, "its kind descriptors are %u bytes, ABI %d.%d has %zu",
                       d->kind_size, SD_ABI_MAJOR, SD_ABI_MINOR, sizeof(sd_kind_desc));
    if (!(aligned(d->kinds) && readable(k->p, d->kinds, d->n_kinds * sizeof *d->kinds)))
        return sd_fail(err, SD_EPLUGIN, "its %u kind descriptors are not in readable memory",
                       d->n_kinds);
    sd_status st = SD_OK;
    for (uint32_t i = 0; st == SD_OK && i < d->n_kinds; i++)
        st = check_kind_memory(k, &d->kinds[i], i, err);
    return st;
}

/* Bytes of a descriptor built for ABI 1.minor. */
static size_t desc_size(uint32_t minor) {
    return minor < 1 ? offsetof(sd_plugin_desc, kind_size) : sizeof(sd_plugin_desc);
}

sd_status sd_plugin_check(const sd_plugin_desc *d, bool mapped, sd_err *err) {
    prober p;
    SD_TRY(prober_open(&p, err));
    check k = {.p = &p};
    char perms[8];
    k.maps = mapped && mapping_of(d, perms, k.file) && strcmp(k.file, "00:00 0") != 0;
    sd_status st = SD_OK;
    /* Sizes may only be trusted after the version, and the version is in the first eight bytes. */
    if (!aligned(d) || !readable(&p, d, 8))
        st = sd_fail(err, SD_EPLUGIN, "its sd_plugin is not in readable memory");
    else if (d->abi_major != SD_ABI_MAJOR)
        st = sd_fail(err, SD_EPLUGIN,
                     "it was built for plugin ABI %u, this program speaks ABI %d: rebuild it with "
                     "this program's sd_plugin.h",
                     d->abi_major, SD_ABI_MAJOR);
    else if (d->abi_minor > SD_ABI_MINOR)
        st = sd_fail(err, SD_EPLUGIN,
                     "it needs plugin ABI %u.%u, this program has %d.%d: use a newer program",
                     d->abi_major, d->abi_minor, SD_ABI_MAJOR, SD_ABI_MINOR);
    else if (!readable(&p, d, 24))
        st = sd_fail(err, SD_EPLUGIN, "its sd_plugin is cut short");
    else if (d->struct_size != desc_size(d->abi_minor))
        st = sd_fail(err, SD_EPLUGIN, "its sd_plugin is %u bytes, ABI %u.%u has %zu",
                     d->struct_size, d->abi_major, d->abi_minor, desc_size(d->abi_minor));
    else if (d->op_size != sizeof(sd_op_desc))
        st = sd_fail(err, SD_EPLUGIN, "its op descriptors are %u bytes, ABI %d.%d has %zu",
                     d->op_size, SD_ABI_MAJOR, SD_ABI_MINOR, sizeof(sd_op_desc));
    else if (d->arg_size != sizeof(sd_arg_desc))
        st = sd_fail(err, SD_EPLUGIN, "its argument descriptors are %u bytes, ABI %d.%d has %zu",
                     d->arg_size, SD_ABI_MAJOR, SD_ABI_MINOR, sizeof(sd_arg_desc));
    else if (!readable(&p, d, d->struct_size))
        st = sd_fail(err, SD_EPLUGIN, "its sd_plugin is cut short");
    else if (d->n_ops > MAX_OPS || (d->n_ops == 0 && (d->abi_minor < 1 || d->n_kinds == 0)))
        st = sd_fail(err, SD_EPLUGIN, "it announces %u ops, expected 1..%d", d->n_ops, MAX_OPS);
    if (st == SD_OK)
        st = need_string(&k, d->name, "its name", false, err);
    if (st == SD_OK)
        st = need_string(&k, d->version, "its version", false, err);
    if (st == SD_OK)
        st = need_string(&k, d->summary, "its summary", false, err);
    if (st == SD_OK &&
        (!d->name[0] || strlen(d->name) > 48 ||
         strspn(d->name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != strlen(d->name)))
        st = sd_fail(err, SD_EPLUGIN, "its name is not of the form [a-z0-9_-]+");
    if (st == SD_OK &&
        (!d->version[0] || strlen(d->version) > 48 || !d->summary[0] || strlen(d->summary) > 400))
        st = sd_fail(err, SD_EPLUGIN, "its version or summary is empty or too long");
    for (const char *s = st == SD_OK ? d->version : ""; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e) {
            st = sd_fail(err, SD_EPLUGIN, "its version holds a byte that is not plain text");
            break;
        }
    for (const char *s = st == SD_OK ? d->summary : ""; *s;) {
        size_t w = sd_utf8_next(s, strlen(s), NULL);
        if (w == 0 || (unsigned char)*s < 0x20) {
            st = sd_fail(err, SD_EPLUGIN, "its summary is not one line of UTF-8");
            break;
        }
        s += w;
    }
    if (st == SD_OK && d->n_ops &&
        !(aligned(d->ops) && readable(&p, d->ops, d->n_ops * sizeof *d->ops)))
        st = sd_fail(err, SD_EPLUGIN, "its %u op descriptors are not in readable memory", d->n_ops);
    for (uint32_t i = 0; st == SD_OK && i < d->n_ops; i++)
        st = check_op_memory(&k, &d->ops[i], i, err);
    if (st == SD_OK)
        st = check_kinds(&k, d, err);
    void (*fn)(void);
    if (st == SD_OK) {
        memcpy(&fn, &d->init, sizeof fn);
        st = need_function(&k, fn, "its init", err);
    }
    if (st == SD_OK) {
        memcpy(&fn, &d->fini, sizeof fn);
        st = need_function(&k, fn, "its fini", err);
    }
    prober_close(&p);
    return st;
}

/* ---- the file ---- */

/* A loadable file of this machine whose segments all lie inside it (the loader would map a cut file
 * and die of SIGBUS later). */
static sd_status check_elf(const char *p, size_t n, sd_err *err) {
    if (n < 4 || memcmp(p, ELFMAG, SELFMAG) != 0) {
        char head[24] = "";
        size_t k = 0;
        for (; k < n && k < sizeof head - 1 && (unsigned char)p[k] >= 0x20 &&
               (unsigned char)p[k] < 0x7f;
             k++)
            head[k] = p[k];
        head[k] = 0;
        if (n == 0)
            return sd_fail(err, SD_EPLUGIN, "not a shared object: the file is empty");
        return k ? sd_fail(err, SD_EPLUGIN, "not a shared object: the file starts with \"%s\"",
                           head)
                 : sd_fail(err, SD_EPLUGIN, "not a shared object: the file has no ELF header");
    }
    if (n < sizeof(Elf64_Ehdr) || p[EI_CLASS] != ELFCLASS64)
        return n > EI_CLASS && p[EI_CLASS] == ELFCLASS32 && sizeof(void *) == 4
                   ? SD_OK
                   : sd_fail(err, SD_EPLUGIN, "not a shared object of this machine");
    Elf64_Ehdr e;
    memcpy(&e, p, sizeof e);
    if (e.e_type != ET_DYN)
        return sd_fail(err, SD_EPLUGIN,
                       "an ELF file, but not a shared object (build with -shared)");
    if (e.e_phentsize != sizeof(Elf64_Phdr) || e.e_phoff > n ||
        (n - e.e_phoff) / sizeof(Elf64_Phdr) < e.e_phnum)
        return sd_fail(err, SD_EPLUGIN, "the shared object is cut short: %zu bytes", n);
    for (size_t i = 0; i < e.e_phnum; i++) {
        Elf64_Phdr h;
        memcpy(&h, p + e.e_phoff + i * sizeof h, sizeof h);
        if (h.p_type == PT_LOAD && (h.p_offset > n || h.p_filesz > n - h.p_offset))
            return sd_fail(err, SD_EPLUGIN,
                           "the shared object is cut short: a segment ends at byte %llu, the file "
                           "has %zu",
                           (unsigned long long)(h.p_offset + h.p_filesz), n);
    }
    return SD_OK;
}

/* A private copy of the bytes in dir; *path is its name. */
static bool write_copy(const char *dir, const char *bytes, size_t n, char *path, size_t cap) {
    if ((size_t)snprintf(path, cap, "%s/.sd-plugin-XXXXXX", dir) >= cap)
        return false;
    int fd = mkstemp(path);
    if (fd < 0)
        return false;
    while (n) {
        ssize_t w = write(fd, bytes, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            break;
        bytes += w;
        n -= (size_t)w;
    }
    bool ok = n == 0 && fchmod(fd, 0500) == 0;
    if (close(fd) != 0)
        ok = false;
    if (!ok)
        unlink(path);
    return ok;
}

/* dlerror's text without the name of the private copy. */
static void dl_reason(const char *copy, char *out, size_t cap) {
    const char *e = dlerror();
    e = e ? e : "unknown reason";
    size_t n = strlen(copy);
    if (strncmp(e, copy, n) == 0 && strncmp(e + n, ": ", 2) == 0)
        e += n + 2;
    snprintf(out, cap, "%s", e);
}

static sd_status open_object(const char *path, void **handle, sd_err *err) {
    sd_buf b = {0};
    *handle = NULL;
    sd_status st = sd_read_file(path, MAX_FILE, &b, err);
    if (st != SD_OK) {
        sd_buf_free(&b);
        /* The path is added by the caller. */
        return st;
    }
    st = check_elf(b.p ? b.p : "", b.n, err);
    const char *tmp = getenv("TMPDIR");
    const char *dirs[] = {tmp && tmp[0] == '/' ? tmp : NULL, "/tmp", "/var/tmp", "/dev/shm"};
    char copy[512], why[400] = "no folder for its copy";
    for (size_t i = 0; st == SD_OK && !*handle && i < sizeof dirs / sizeof *dirs; i++) {
        if (!dirs[i] || !write_copy(dirs[i], b.p, b.n, copy, sizeof copy))
            continue;
        *handle = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
        if (!*handle)
            dl_reason(copy, why, sizeof why);
        unlink(copy);
        /* A folder mounted noexec is the one failure another folder cures. */
        if (!*handle && !strstr(why, "failed to map segment"))
            break;
    }
    sd_buf_free(&b);
    if (st == SD_OK && !*handle)
        st = sd_fail(err, SD_EPLUGIN, "%s", why);
    return st;
}

/* ---- loading ---- */

static size_t find_plugin(const sd_session *s, const char *name) {
    size_t i = 0;
    while (i < s->n_plugins && strcmp(s->plugins[i].name, name) != 0)
        i++;
    return i;
}

static void free_loaded(sd_loaded *l) {
    sd_free(l->name);
    sd_free(l->version);
    sd_free(l->summary);
    sd_free(l->path);
    memset(l, 0, sizeof *l);
}

static sd_status run_init(sd_session *s, const sd_plugin_desc *d, sd_err *err) {
    if (!d->init)
        return SD_OK;
    sd_call c = {.s = s, .plugin = d->name};
    int rc = d->init(&s->host, &c);
    sd_status st = SD_OK;
    if (rc != 0)
        st = c.err.code != SD_OK
                 ? sd_fail(err, SD_EPLUGIN, "its init failed: %s", c.err.text)
                 : sd_fail(err, SD_EPLUGIN, "its init failed with code %d and gave no reason", rc);
    sd_call_finish(&c);
    return st;
}

/* Registers a checked descriptor's ops and kinds, then runs init; undoes all on failure. */
static sd_status install(sd_session *s, const sd_plugin_desc *d, const char *path, void *handle,
                         bool *init_ran, sd_err *err) {
    if (find_plugin(s, d->name) < s->n_plugins)
        return sd_fail(err, SD_EPLUGIN, "a plugin of this name is loaded already, from %s",
                       s->plugins[find_plugin(s, d->name)].path);
    SD_TRY(
        sd_grow((void **)&s->plugins, &s->cap_plugins, s->n_plugins + 1, sizeof *s->plugins, err));
    sd_loaded l = {.abi_major = d->abi_major,
                   .abi_minor = d->abi_minor,
                   .n_ops = d->n_ops,
                   .n_kinds = d->abi_minor < 1 ? 0 : d->n_kinds,
                   .handle = handle,
                   .fini = d->fini};
    l.name = sd_strdup(d->name, err);
    l.version = sd_strdup(d->version, err);
    l.summary = sd_strdup(d->summary, err);
    l.path = sd_strdup(path, err);
    sd_status st = l.name && l.version && l.summary && l.path ? SD_OK : SD_ENOMEM;
    for (uint32_t i = 0; st == SD_OK && i < d->n_ops; i++)
        st = sd_op_register_versioned(s, &d->ops[i], l.name, l.version, err);
    for (uint32_t i = 0; st == SD_OK && i < l.n_kinds; i++)
        st = sd_kind_register(s, &d->kinds[i], l.name, l.version, err);
    if (st == SD_OK) {
        *init_ran = d->init != NULL;
        st = run_init(s, d, err);
    }
    if (st != SD_OK) {
        if (l.name) {
            sd_op_remove_plugin(s, l.name);
            sd_kind_remove_plugin(s, l.name);
        }
        free_loaded(&l);
        return st;
    }
    s->plugins[s->n_plugins++] = l;
    return SD_OK;
}

static sd_status load_desc(const char *path, void **handle, const sd_plugin_desc **out,
                           sd_err *err) {
    SD_TRY(open_object(path, handle, err));
    const sd_plugin_desc *d = dlsym(*handle, "sd_plugin");
    sd_status st;
    if (!d)
        st = sd_fail(err, SD_EPLUGIN,
                     "it exports no symbol sd_plugin (declare it SD_PLUGIN_EXPORT, see "
                     "plugins/template.c)");
    else
        st = sd_plugin_check(d, true, err);
    if (st != SD_OK) {
        dlclose(*handle); /* nothing of it has run but its constructors */
        *handle = NULL;
        return st;
    }
    *out = d;
    return SD_OK;
}

static sd_status file_error(const char *path, const char *name, sd_status st, sd_err *err) {
    if (err && strncmp(err->text, path, strlen(path)) == 0)
        return st;
    if (name)
        sd_err_context(err, "%s: plugin %s", path, name);
    else
        sd_err_context(err, "%s", path);
    return st;
}

static sd_status load_one(sd_session *s, const char *path, sd_err *err) {
    void *handle = NULL;
    const sd_plugin_desc *d = NULL;
    bool init_ran = false;
    sd_status st = load_desc(path, &handle, &d, err);
    if (st != SD_OK)
        return file_error(path, NULL, st, err);
    char name[64];
    snprintf(name, sizeof name, "%s", d->name);
    st = install(s, d, path, handle, &init_ran, err);
    if (st != SD_OK) {
        if (!init_ran)
            dlclose(handle);
        return file_error(path, name, st, err);
    }
    return SD_OK;
}

sd_status sd_plugin_load(sd_session *s, const char *path, sd_err *err) {
    sd_err local = {0};
    return load_one(s, path, err ? err : &local);
}

static void detach(sd_session *s, size_t i) {
    sd_loaded l = s->plugins[i];
    if (l.fini)
        l.fini(&s->host);
    sd_op_remove_plugin(s, l.name);
    sd_kind_remove_plugin(s, l.name);
    memmove(s->plugins + i, s->plugins + i + 1, (s->n_plugins - i - 1) * sizeof *s->plugins);
    s->n_plugins--;
    free_loaded(&l);
}

static const char *plugin_name_at(const void *ctx, size_t i) {
    const sd_session *s = ctx;
    return i < s->n_plugins ? s->plugins[i].name : NULL;
}

static sd_status need_plugin(const sd_session *s, const char *name, size_t *i, sd_err *err) {
    *i = find_plugin(s, name);
    if (*i < s->n_plugins)
        return SD_OK;
    const char *near = sd_suggest(name, plugin_name_at, s);
    return near ? sd_fail(err, SD_EINVAL, "no plugin %.60s is loaded: did you mean %s?", name, near)
                : sd_fail(err, SD_EINVAL, "no plugin %.60s is loaded", name);
}

sd_status sd_plugin_unload(sd_session *s, const char *name, sd_err *err) {
    size_t i;
    SD_TRY(need_plugin(s, name, &i, err));
    detach(s, i);
    return SD_OK;
}

/* The new file is opened and checked before the old one is let go; should its registration or init
 * fail, the old ops come back. */
sd_status sd_plugin_reload(sd_session *s, const char *name, sd_err *err) {
    sd_err local = {0};
    err = err ? err : &local;
    size_t i;
    SD_TRY(need_plugin(s, name, &i, err));
    char *path = sd_strdup(s->plugins[i].path, err);
    if (!path)
        return SD_ENOMEM;
    void *handle = NULL, *old = s->plugins[i].handle;
    const sd_plugin_desc *d = NULL;
    bool init_ran = false;
    sd_status st = load_desc(path, &handle, &d, err);
    if (st == SD_OK && strcmp(d->name, name) != 0) {
        st = sd_fail(err, SD_EPLUGIN, "the file now holds plugin %s, not %.60s", d->name, name);
        dlclose(handle);
    } else if (st == SD_OK) {
        detach(s, i);
        st = install(s, d, path, handle, &init_ran, err);
        if (st != SD_OK) {
            if (!init_ran)
                dlclose(handle);
            const sd_plugin_desc *back = dlsym(old, "sd_plugin");
            sd_err ignored = {0};
            if (back)
                install(s, back, path, old, &init_ran, &ignored);
        }
    }
    if (st != SD_OK)
        file_error(path, NULL, st, err);
    sd_free(path);
    return st;
}

static sd_status load_dir(sd_session *s, const char *dir, sd_err *err) {
    char **names = NULL;
    size_t n = 0;
    if (dir[0] != '/' || !sd_path_is_dir(dir))
        return SD_OK; /* relative folders would make the working directory a source of code */
    if (sd_list_dir(dir, &names, &n, NULL) != SD_OK)
        return SD_OK;
    sd_status st = SD_OK;
    for (size_t i = 0; i < n; i++) {
        size_t k = strlen(names[i]);
        if (st == SD_OK && k > 3 && names[i][0] != '.' && strcmp(names[i] + k - 3, ".so") == 0) {
            char *path = sd_path_join(dir, names[i], err);
            if (!path) {
                st = SD_ENOMEM;
            } else {
                sd_err e = {0};
                sd_status one = load_one(s, path, &e);
                if (one == SD_ENOMEM || one == SD_ECANCEL) {
                    st = one;
                    sd_fail(err, one, "%s", e.text);
                } else if (one != SD_OK && !strstr(e.text, "is loaded already")) {
                    sd_run_log(&s->run, SD_LOG_WARN, "plugin not loaded: %s", e.text);
                }
                sd_free(path);
            }
        }
        sd_free(names[i]);
    }
    sd_free(names);
    return st;
}

/* First found wins: an earlier folder's plugin shadows a later one's of the same name. */
sd_status sd_plugin_load_all(sd_session *s, sd_err *err) {
    sd_buf b = {0};
    sd_status st = SD_OK;
    if (sd_program_dir(&b, NULL) == SD_OK && b.p) {
        sd_buf_puts(&b, "/plugins");
        if (!b.failed)
            st = load_dir(s, b.p, err);
    }
    const char *env = getenv("SD_PLUGIN_PATH");
    for (const char *p = env ? env : ""; st == SD_OK && *p;) {
        size_t k = strcspn(p, ":");
        sd_buf_clear(&b);
        sd_buf_put(&b, p, k);
        if (k && !b.failed) {
            if (b.p[0] != '/')
                sd_run_log(&s->run, SD_LOG_WARN,
                           "SD_PLUGIN_PATH: \"%s\" is not an absolute path and is left out", b.p);
            st = load_dir(s, b.p, err);
        }
        p += k;
        if (*p)
            p++;
    }
    sd_buf_clear(&b);
    if (st == SD_OK && sd_xdg_dir("data", &b, NULL) == SD_OK) {
        sd_buf_printf(&b, "/plugins/%d", SD_ABI_MAJOR);
        if (!b.failed)
            st = load_dir(s, b.p, err);
    }
    sd_buf_clear(&b);
    if (st == SD_OK && sd_program_dir(&b, NULL) == SD_OK) {
        sd_buf_printf(&b, "/../lib/sd/plugins/%d", SD_ABI_MAJOR);
        if (!b.failed)
            st = load_dir(s, b.p, err);
    }
    sd_buf_free(&b);
    return st;
}

size_t sd_plugin_count(const sd_session *s) {
    return s->n_plugins;
}

sd_plugin_info sd_plugin_at(const sd_session *s, size_t i) {
    const sd_loaded *l = &s->plugins[i];
    return (sd_plugin_info){.name = l->name,
                            .version = l->version,
                            .summary = l->summary,
                            .path = l->path,
                            .abi_major = (int)l->abi_major,
                            .abi_minor = (int)l->abi_minor,
                            .n_ops = l->n_ops,
                            .n_kinds = l->n_kinds};
}
