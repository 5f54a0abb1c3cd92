/* Opening a big checkpoint: GPT-2 small in f32 with its mask buffers, as it is on the hub (548 MB),
 * made as a sparse file. Shown: the time of sd_model_open, the bytes it read (/proc/self/io), and
 * the part of the file that came into the page cache, beside the size of the header.
 *   bench_open FOLDER [REPEAT] [keep]
 * The folder is made, and its files removed unless `keep` is given. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "nn/model.h"

enum { L = 12, D = 768, V = 50257, T = 1024 };

static const char config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_positions\": 1024, \"n_embd\": 768, "
    "\"n_layer\": 12, \"n_head\": 12, \"activation_function\": \"gelu_new\", "
    "\"layer_norm_epsilon\": 1e-05}";

static int fatal(const char *text) {
    fprintf(stderr, "bench_open: %s\n", text);
    return 1;
}

static void entry(sd_buf *h, uint64_t *at, const char *name, int layer, int n, const int *shape) {
    char full[96];
    uint64_t size = 4;
    snprintf(full, sizeof full, layer < 0 ? "%s" : "h.%2$d.%1$s", name, layer);
    sd_buf_printf(h, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", h->n > 1 ? "," : "", full);
    for (int i = 0; i < n; i++) {
        sd_buf_printf(h, "%s%d", i ? "," : "", shape[i]);
        size *= (uint64_t)shape[i];
    }
    sd_buf_printf(h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + size);
    *at += size;
}

/* Header, then a hole; returns the header's bytes, 0 on failure. */
static uint64_t make(const char *path) {
    static const struct {
        const char *name;
        int n, shape[4];
    } parts[] = {{"attn.bias", 4, {1, 1, T, T}},
                 {"attn.c_attn.bias", 1, {3 * D}},
                 {"attn.c_attn.weight", 2, {D, 3 * D}},
                 {"attn.c_proj.bias", 1, {D}},
                 {"attn.c_proj.weight", 2, {D, D}},
                 {"ln_1.bias", 1, {D}},
                 {"ln_1.weight", 1, {D}},
                 {"ln_2.bias", 1, {D}},
                 {"ln_2.weight", 1, {D}},
                 {"mlp.c_fc.bias", 1, {4 * D}},
                 {"mlp.c_fc.weight", 2, {D, 4 * D}},
                 {"mlp.c_proj.bias", 1, {D}},
                 {"mlp.c_proj.weight", 2, {4 * D, D}}};
    sd_buf h = {0};
    uint64_t at = 0;
    sd_buf_puts(&h, "{");
    for (int l = 0; l < L; l++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            entry(&h, &at, parts[i].name, l, parts[i].n, parts[i].shape);
    entry(&h, &at, "ln_f.bias", -1, 1, (int[]){D});
    entry(&h, &at, "ln_f.weight", -1, 1, (int[]){D});
    entry(&h, &at, "wpe.weight", -1, 2, (int[]){T, D});
    entry(&h, &at, "wte.weight", -1, 2, (int[]){V, D});
    sd_buf_puts(&h, "}");
    while (h.n % 8)
        sd_buf_puts(&h, " ");
    uint64_t n = h.n;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    bool ok = fd >= 0 && write(fd, &n, 8) == 8 && write(fd, h.p, h.n) == (ssize_t)h.n &&
              ftruncate(fd, (off_t)(8 + n + at)) == 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    sd_buf_free(&h);
    return ok ? 8 + n : 0;
}

static uint64_t bytes_read(void) {
    char line[128];
    uint64_t n = 0;
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "rchar: %" SCNu64, &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

/* Bytes of the file in the page cache. */
static uint64_t resident(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat st;
    uint64_t n = 0;
    if (fd < 0 || fstat(fd, &st))
        return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = ((size_t)st.st_size + page - 1) / page;
    unsigned char *in = sd_alloc(pages + 1, 1, NULL);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (in && p != MAP_FAILED && mincore(p, (size_t)st.st_size, in) == 0)
        for (size_t i = 0; i < pages; i++)
            n += (in[i] & 1) * page;
    if (p != MAP_FAILED)
        munmap(p, (size_t)st.st_size);
    sd_free(in);
    close(fd);
    return n;
}

int main(int argc, char **argv) {
    sd_err err = {0};
    if (argc < 2)
        return fatal("usage: bench_open FOLDER [REPEAT] [keep]");
    int repeat = argc > 2 ? atoi(argv[2]) : 7;
    char file[512], cfg[512];
    snprintf(file, sizeof file, "%s/model.safetensors", argv[1]);
    snprintf(cfg, sizeof cfg, "%s/config.json", argv[1]);
    if (sd_mkdirs(argv[1], &err) != SD_OK ||
        sd_write_file(cfg, config, sizeof config - 1, &err) != SD_OK)
        return fatal(err.text);
    uint64_t header = make(file);
    struct stat st = {0};
    if (!header || stat(file, &st))
        return fatal("the file cannot be made");
    printf("%.0f MB, header %" PRIu64 " bytes\n", (double)st.st_size / 1e6, header);
    for (int i = 0; i < repeat; i++) {
        int fd = open(file, O_RDONLY);
        if (fd >= 0) {
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            close(fd);
        }
        uint64_t held = resident(file), before = bytes_read();
        sd_model *m = NULL;
        double t = sd_now();
        if (sd_model_open(argv[1], NULL, &m, &err) != SD_OK)
            return fatal(err.text);
        t = sd_now() - t;
        uint64_t read_ = bytes_read() - before;
        printf("BENCH open.sd_ms %.3f\nBENCH open.read_bytes %" PRIu64 "\n", 1e3 * t, read_);
        printf("BENCH open.cached_before %" PRIu64 "\nBENCH open.cached_bytes %" PRIu64 "\n", held,
               resident(file));
        printf("BENCH open.header_bytes %" PRIu64 "\n", header);
        sd_model_unref(m);
    }
    if (argc < 4) {
        unlink(file);
        unlink(cfg);
        rmdir(argv[1]);
    }
    return 0;
}
