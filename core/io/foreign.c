#include "io/foreign.h"

#include <string.h>
#include <strings.h>

#define OLD "a model file of GGML's time before GGUF: convert it to GGUF first"
#define PICKLE "convert it to safetensors first"

static const struct {
    const char *magic;
    unsigned char n;
    bool text; // letters of either case, behind white space or a byte-order mark
    const char *what;
} known[] = {
    {"version https://git-lfs", 23, false,
     "a Git LFS pointer, weights not downloaded (run `git lfs pull` in its folder, or download the "
     "file itself)"},
    {"<!doctype", 9, true, "a web page (HTML), not the file: the download went wrong"},
    {"<html", 5, true, "a web page (HTML), not the file: the download went wrong"},
    {"<?xml", 5, true, "an XML text, not the file: the download went wrong"},
    {"PK\3\4", 4, false, "a zip archive (a PyTorch pickle?): " PICKLE},
    {"\x80\2", 2, false, "a Python pickle: " PICKLE},
    {"\x80\3", 2, false, "a Python pickle: " PICKLE},
    {"\x80\4", 2, false, "a Python pickle: " PICKLE},
    {"\x80\5", 2, false, "a Python pickle: " PICKLE},
    {"\x89HDF\r\n", 6, false, "an HDF5 file (Keras?): " PICKLE},
    {"\x1f\x8b", 2, false, "a gzip archive: unpack it first"},
    {"\xfd"
     "7zXZ",
     5, false, "an xz archive: unpack it first"},
    {"(\xb5/\xfd", 4, false, "a zstd archive: unpack it first"},
    // 32-bit numbers, little-endian: "ggml" stands reversed
    {"lmgg", 4, false, "ggml: " OLD},
    {"fmgg", 4, false, "ggmf: " OLD},
    {"tjgg", 4, false, "ggjt: " OLD},
    {"algg", 4, false, "ggla, a LoRA adapter: " OLD},
    {"nsgg", 4, false, "ggsn, a llama.cpp session: no model"},
};

sd_status sd_refuse_foreign(const char *path, const void *head, size_t n, uint64_t size,
                            sd_err *err) {
    const char *h = head, *t = head;
    size_t left = n;
    if (left >= 3 && memcmp(t, "\xef\xbb\xbf", 3) == 0)
        t += 3, left -= 3;
    while (left > 0 && (*t == ' ' || *t == '\t' || *t == '\r' || *t == '\n'))
        t++, left--;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t k = known[i].n;
        bool is = known[i].text ? left >= k && strncasecmp(t, known[i].magic, k) == 0
                                : n >= k && memcmp(h, known[i].magic, k) == 0;
        if (is)
            return sd_fail(err, SD_EFORMAT, "%s: %s; %llu bytes", path, known[i].what,
                           (unsigned long long)size);
    }
    return SD_OK;
}
