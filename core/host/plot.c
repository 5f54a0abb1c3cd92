/* plot.c: figures through gnuplot, without a shell and without a pipe (SHELL §4).
 *
 * The script and data are written to a folder; gnuplot runs inside it on names of ours, so that no
 * path a user or a checkpoint chose is ever part of a command. `-d` because a broken ~/.gnuplot
 * ruins every run. */
#include "host/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "num/dtype.h"

enum { MAX_DATA = 256, MAX_NOTES = 32, TEXT_NOTES = 3 };
static const double deadline = 180;

typedef struct data_file {
    char name[32];
    sd_buf bytes;
    size_t rows, cols;
} data_file;

struct sd_plot {
    char *title;
    sd_buf script;
    data_file data[MAX_DATA];
    size_t n_data, nonfinite;
    char *notes[MAX_NOTES];
    bool warns[MAX_NOTES];
    size_t n_notes;
    int width, height;
};

sd_status sd_plot_new(const char *title, sd_plot **out, sd_err *err) {
    *out = NULL;
    sd_plot *p = sd_alloc(1, sizeof *p, err);
    if (!p)
        return SD_ENOMEM;
    p->title = sd_strdup(title ? title : "", err);
    if (!p->title) {
        sd_free(p);
        return SD_ENOMEM;
    }
    p->width = 900;
    p->height = 560;
    *out = p;
    return SD_OK;
}

void sd_plot_free(sd_plot *p) {
    if (!p)
        return;
    for (size_t i = 0; i < p->n_data; i++)
        sd_buf_free(&p->data[i].bytes);
    for (size_t i = 0; i < p->n_notes; i++)
        sd_free(p->notes[i]);
    sd_buf_free(&p->script);
    sd_free(p->title);
    sd_free(p);
}

void sd_plot_size(sd_plot *p, int width, int height) {
    p->width = width < 100 ? 100 : width > 4000 ? 4000 : width;
    p->height = height < 100 ? 100 : height > 4000 ? 4000 : height;
}

sd_status sd_plot_cmd(sd_plot *p, sd_err *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sd_buf_vprintf(&p->script, fmt, ap);
    va_end(ap);
    sd_buf_putc(&p->script, '\n');
    return sd_buf_status(&p->script, err);
}

/* In single quotes gnuplot knows one escape, '' for a quote: back-quotes, backslashes and $ are
 * plain. Control bytes (a newline would end the command) become spaces. Its scanner loses count of
 * '' at the very start and of two quotes in a row ('a''''b' ends after a'): those runs are pieces
 * of their own, in double quotes, where a single quote is plain. */
void sd_plot_quote(sd_buf *out, const char *s) {
    size_t n = strlen(s), pieces = 0;
    for (size_t i = 0; i < n; i++) {
        size_t run = strspn(s + i, "'");
        pieces += run > 1 || (run == 1 && i == 0);
        i += run ? run - 1 : 0;
    }
    sd_buf_puts(out, pieces ? "(" : "");
    bool open = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t run = strspn(s + i, "'"), k = sd_utf8_next(s + i, n - i, &cp);
        if (run > 1 || (run == 1 && i == 0)) {
            sd_buf_printf(out, "%s\"%.*s\" . ", open ? "' . " : "", (int)run, s + i);
            open = false;
            i += run;
            continue;
        }
        if (!open)
            sd_buf_putc(out, '\'');
        open = true;
        if (k == 0) {
            sd_buf_puts(out, "\xEF\xBF\xBD");
            k = 1;
        } else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029) {
            sd_buf_putc(out, ' ');
        } else if (cp == '\'') {
            sd_buf_puts(out, "''");
        } else {
            sd_buf_put(out, s + i, k);
        }
        i += k;
    }
    sd_buf_puts(out, open ? "'" : "''");
    sd_buf_puts(out, pieces ? ")" : "");
}

static data_file *new_data(sd_plot *p, const char *ext, size_t rows, size_t cols, char name[64],
                           sd_err *err) {
    if (p->n_data >= MAX_DATA) {
        sd_fail(err, SD_EINVAL, "a figure of more than %d data files", MAX_DATA);
        return NULL;
    }
    data_file *d = &p->data[p->n_data];
    memset(d, 0, sizeof *d);
    snprintf(d->name, sizeof d->name, "data%zu.%s", p->n_data + 1, ext);
    d->rows = rows;
    d->cols = cols;
    snprintf(name, 64, "'%s'", d->name);
    p->n_data++;
    return d;
}

sd_status sd_plot_data(sd_plot *p, const double *v, size_t rows, size_t cols, char name[64],
                       sd_err *err) {
    data_file *d = new_data(p, "txt", rows, cols, name, err);
    if (!d)
        return err ? err->code : SD_EINVAL;
    for (size_t i = 0; i < rows; i++) {
        bool gap = true;
        for (size_t j = 0; j < cols; j++)
            gap = gap && isnan(v[i * cols + j]);
        if (gap) {
            sd_buf_putc(&d->bytes, '\n');
            continue;
        }
        for (size_t j = 0; j < cols; j++) {
            double x = v[i * cols + j];
            if (isfinite(x)) {
                sd_buf_printf(&d->bytes, "%.9g", x);
            } else {
                sd_buf_puts(&d->bytes, "nan");
                p->nonfinite++;
            }
            sd_buf_putc(&d->bytes, j + 1 < cols ? ' ' : '\n');
        }
    }
    return sd_buf_status(&d->bytes, err);
}

sd_status sd_plot_matrix(sd_plot *p, const double *v, size_t rows, size_t cols, char name[64],
                         sd_err *err) {
    data_file *d = new_data(p, "bin", rows, cols, name, err);
    if (!d)
        return err ? err->code : SD_EINVAL;
    for (size_t i = 0; i < rows * cols; i++) {
        float f = (float)v[i];
        if (!isfinite(v[i])) {
            f = NAN;
            p->nonfinite++;
        }
        sd_buf_put(&d->bytes, &f, sizeof f);
    }
    return sd_buf_status(&d->bytes, err);
}

size_t sd_plot_nonfinite(const sd_plot *p) {
    return p->nonfinite;
}

sd_status sd_plot_note(sd_plot *p, bool warn, const char *text, sd_err *err) {
    if (p->n_notes == MAX_NOTES)
        return SD_OK; /* enough is said */
    sd_buf b = {0};
    sd_buf_visible(&b, text, strlen(text), false);
    SD_TRY(sd_buf_status(&b, err));
    p->notes[p->n_notes] = b.p;
    p->warns[p->n_notes] = warn;
    p->n_notes += b.p != NULL;
    return SD_OK;
}

/* Words to lines of at most cols characters, the later ones indented. */
static void wrap(sd_buf *out, const char *s, size_t cols) {
    size_t at = 0;
    while (*s) {
        size_t n = strcspn(s, " "), chars = 0;
        for (size_t i = 0; i < n; i++)
            chars += ((unsigned char)s[i] & 0xC0) != 0x80;
        if (at && at + 1 + chars > cols) {
            sd_buf_puts(out, "\n ");
            at = 1;
        }
        if (at)
            sd_buf_putc(out, ' ');
        sd_buf_put(out, s, n);
        at += chars + (at > 0);
        s += n + (s[n] == ' ');
    }
    sd_buf_putc(out, '\n');
}

/* Warnings go to the log; the drawing as text has the first notes below it. */
static void say_notes(const sd_plot *p, const char *path, int cols, const sd_run *run,
                      sd_buf *text) {
    for (size_t i = 0; i < p->n_notes; i++) {
        if (p->warns[i])
            sd_run_log(run, SD_LOG_WARN, "%s%s%s", path, path[0] ? ": " : "", p->notes[i]);
        if (text && i < TEXT_NOTES)
            wrap(text, p->notes[i], (size_t)cols);
    }
}

size_t sd_plot_decimate(const double *xy, size_t n, size_t buckets, double *out) {
    if (n <= 2 * buckets) {
        memcpy(out, xy, n * 2 * sizeof *xy);
        return n;
    }
    size_t w = 0;
    for (size_t b = 0; b < buckets; b++) {
        size_t lo = n * b / buckets, hi = n * (b + 1) / buckets, imin = hi, imax = hi;
        for (size_t i = lo; i < hi; i++) {
            double y = xy[2 * i + 1];
            if (!isfinite(y))
                continue;
            if (imin == hi || y < xy[2 * imin + 1])
                imin = i;
            if (imax == hi || y > xy[2 * imax + 1])
                imax = i;
        }
        if (imin == hi)
            continue;
        size_t first = imin < imax ? imin : imax, second = imin < imax ? imax : imin;
        memcpy(out + 2 * w++, xy + 2 * first, 2 * sizeof *xy);
        if (second != first)
            memcpy(out + 2 * w++, xy + 2 * second, 2 * sizeof *xy);
    }
    return w;
}

/* ---- running gnuplot ---- */

typedef struct target {
    const char *kind; /* "png" ... */
    int cols, rows;   /* of the dumb terminal */
    bool colour;
} target;

static void header(const sd_plot *p, const target *t, sd_buf *b) {
    int w = p->width, h = p->height;
    sd_buf_printf(b,
                  "# A figure of sd %s. Redraw it in this folder with: gnuplot -d fig.gp\n"
                  "set encoding utf8\n",
                  SD_VERSION);
    /* Without cairo a plainer terminal is tried; where that is missing too gnuplot says so. */
    if (strcmp(t->kind, "png") == 0)
        sd_buf_printf(b,
                      "if (strstrt(GPVAL_TERMINALS, 'pngcairo') == 0) { set terminal png "
                      "noenhanced truecolor size %d,%d font 'DejaVu Sans,20' linewidth 2 } else { "
                      "set terminal pngcairo noenhanced size %d,%d font 'DejaVu Sans,11' "
                      "fontscale 2 linewidth 2 pointscale 2 background '#ffffff' }\n",
                      2 * w, 2 * h, 2 * w, 2 * h);
    else if (strcmp(t->kind, "svg") == 0)
        sd_buf_printf(b,
                      "set terminal svg noenhanced size %d,%d dynamic font 'DejaVu Sans,13' "
                      "background '#ffffff'\n",
                      w, h);
    else if (strcmp(t->kind, "pdf") == 0)
        sd_buf_printf(b,
                      "if (strstrt(GPVAL_TERMINALS, 'pdfcairo') == 0) { set terminal pdf "
                      "noenhanced size %.2fin,%.2fin } else { set terminal pdfcairo noenhanced "
                      "size %.2fin,%.2fin font 'DejaVu Sans,9' "
                      "linewidth 1.2 pointscale 0.8 background '#ffffff' }\n",
                      w / 100.0, h / 100.0, w / 100.0, h / 100.0);
    else
        sd_buf_printf(b, "set terminal dumb noenhanced size %d,%d %s\n", t->cols, t->rows,
                      t->colour ? "ansi256" : "mono");
    bool dumb = strcmp(t->kind, "txt") == 0;
    sd_buf_printf(b, "sd_dumb = %d; sd_ascii = %d\nset output 'fig.%s'\n", dumb, dumb && !t->colour,
                  t->kind);
}

static void manifest(const sd_plot *p, const target *t, const char *path, sd_buf *b) {
    sd_buf_printf(b, "{\n  \"program\": \"sd %s\",\n  \"title\": ", SD_VERSION);
    sd_buf_json_string(b, p->title, strlen(p->title));
    sd_buf_printf(b,
                  ",\n  \"script\": \"fig.gp\",\n  \"output\": \"fig.%s\",\n  \"file\": ", t->kind);
    sd_buf_json_string(b, path, strlen(path));
    sd_buf_printf(b, ",\n  \"nonfinite\": %zu,\n  \"data\": [", p->nonfinite);
    for (size_t i = 0; i < p->n_data; i++)
        sd_buf_printf(b, "%s\n    {\"name\": \"%s\", \"rows\": %zu, \"cols\": %zu}", i ? "," : "",
                      p->data[i].name, p->data[i].rows, p->data[i].cols);
    sd_buf_puts(b, p->n_data ? "\n  ],\n  \"notes\": [" : "],\n  \"notes\": [");
    for (size_t i = 0; i < p->n_notes; i++) {
        sd_buf_puts(b, i ? ",\n    " : "\n    ");
        sd_buf_json_string(b, p->notes[i], strlen(p->notes[i]));
    }
    sd_buf_puts(b, p->n_notes ? "\n  ]\n}\n" : "]\n}\n");
}

/* Plain writing: a bundle is made anew each time, so nothing is gained by forcing it to the disk.
 */
static sd_status write_in(const char *dir, const char *name, const sd_buf *b, sd_err *err) {
    SD_TRY(sd_buf_status(b, err));
    char *path = sd_path_join(dir, name, err);
    if (!path)
        return SD_ENOMEM;
    FILE *f = fopen(path, "wbe");
    bool ok = f && (b->n == 0 || fwrite(b->p, 1, b->n, f) == b->n);
    int e = errno;
    if (f && fclose(f) != 0 && ok) {
        ok = false;
        e = errno;
    }
    sd_status st = ok ? SD_OK : sd_fail(err, SD_EWRITE, "%s: %s", path, strerror(e));
    sd_free(path);
    return st;
}

static bool ours(const char *name) {
    if (strncmp(name, "data", 4) == 0) {
        size_t k = strspn(name + 4, "0123456789");
        return k && (strcmp(name + 4 + k, ".txt") == 0 || strcmp(name + 4 + k, ".bin") == 0);
    }
    static const char *const names[] = {"fig.gp",  "fig.png", "fig.svg",
                                        "fig.pdf", "fig.txt", "manifest.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Removes what an earlier figure left in its bundle; files that are not ours stay. */
static void clean_bundle(const char *dir) {
    char **names = NULL;
    size_t n = 0;
    if (sd_list_dir(dir, &names, &n, NULL) != SD_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        if (ours(names[i])) {
            char *path = sd_path_join(dir, names[i], NULL);
            if (path)
                unlink(path);
            sd_free(path);
        }
        sd_free(names[i]);
    }
    sd_free(names);
}

static sd_status write_bundle(const sd_plot *p, const target *t, const char *dir, const char *path,
                              sd_err *err) {
    clean_bundle(dir);
    sd_status st = SD_OK;
    for (size_t i = 0; st == SD_OK && i < p->n_data; i++)
        st = write_in(dir, p->data[i].name, &p->data[i].bytes, err);
    sd_buf b = {0};
    if (st == SD_OK) {
        header(p, t, &b);
        sd_buf_put(&b, p->script.p ? p->script.p : "", p->script.n);
        sd_buf_puts(&b, "set output\n");
        st = write_in(dir, "fig.gp", &b, err);
    }
    sd_buf_clear(&b);
    if (st == SD_OK) {
        manifest(p, t, path, &b);
        st = write_in(dir, "manifest.json", &b, err);
    }
    sd_buf_free(&b);
    return st;
}

/* What gnuplot and its libraries say without meaning harm. */
static bool harmless(const char *line) {
    static const char *const ok[] = {
        "adjusting to",       /* Warning: empty x range [..], adjusting to [..] */
        "Fontconfig warning", /* no cache folder, old rules */
        "Fontconfig error: No writable cache directories",
        "matches previous range",
        "convert degree sign", /* of the C locale, under set encoding utf8 */
        "dconf-CRITICAL",
        "Pango-WARNING",
    };
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++)
        if (strstr(line, ok[i]))
            return true;
    return strspn(line, " \t\r") == strlen(line);
}

/* First line of the output that means something went wrong, as one line of plain text. */
static bool complaint(const sd_buf *out, char text[300]) {
    char best[300] = "";
    for (const char *p = out->p ? out->p : ""; *p;) {
        size_t k = strcspn(p, "\n");
        char line[300];
        snprintf(line, sizeof line, "%.*s", (int)(k < 299 ? k : 299), p);
        /* gnuplot shows the command and a caret first: the line that names the trouble counts. */
        bool names = strstr(line, "line ") || strstr(line, "arning") || strstr(line, "rror");
        if (!harmless(line) && (!best[0] || (names && !strstr(best, "line "))))
            snprintf(best, sizeof best, "%s", line);
        p += k + (p[k] == '\n');
    }
    for (char *c = best; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    snprintf(text, 300, "%s", best);
    return best[0] != 0;
}

bool sd_plot_whole(const char *kind, const void *bytes, size_t n) {
    const char *p = bytes;
    while (strcmp(kind, "png") != 0 && n && strchr(" \t\r\n", p[n - 1]) && p[n - 1])
        n--;
    if (strcmp(kind, "png") == 0)
        return n > 20 && memcmp(p, "\x89PNG\r\n\x1a\n", 8) == 0 &&
               memcmp(p + n - 12, "\0\0\0\0IEND\xae\x42\x60\x82", 12) == 0;
    if (strcmp(kind, "svg") == 0)
        return n > 12 && memcmp(p, "<?xml", 5) == 0 && memcmp(p + n - 6, "</svg>", 6) == 0;
    if (strcmp(kind, "pdf") == 0)
        return n > 12 && memcmp(p, "%PDF-", 5) == 0 && memcmp(p + n - 5, "%%EOF", 5) == 0;
    return n > 0;
}

/* The terminals that can draw a kind, the one preferred first. */
static const char *terminals(const char *kind) {
    return strcmp(kind, "png") == 0   ? "pngcairo and png"
           : strcmp(kind, "pdf") == 0 ? "pdfcairo and pdf"
                                      : kind;
}

static sd_status run_gnuplot(const char *dir, const target *t, sd_buf *bytes, sd_err *err) {
    const char *argv[] = {"gnuplot", "-d", "fig.gp", NULL};
    sd_buf out = {0};
    int code = 0;
    char text[300];
    sd_status st = sd_spawn(argv, dir, deadline, &code, &out, err);
    if (st == SD_EMISSING)
        st = sd_fail(err, SD_EMISSING,
                     "gnuplot is not installed (Debian: apt install gnuplot-nox); the figure's "
                     "script and data are in %s",
                     dir);
    if (st == SD_OK && strstr(out.p ? out.p : "", "unknown or ambiguous terminal"))
        st = sd_fail(err, SD_EMISSING,
                     "this gnuplot cannot draw %s: it has neither of the terminals %s (Debian: apt "
                     "install gnuplot-nox); name the file .svg, or redraw %s/fig.gp elsewhere",
                     t->kind, terminals(t->kind), dir);
    if (st == SD_OK && code != 0)
        st = complaint(&out, text)
                 ? sd_fail(err, SD_EINVAL, "gnuplot failed with status %d: %s", code, text)
                 : sd_fail(err, SD_EINVAL, "gnuplot failed with status %d and said nothing", code);
    char name[16];
    snprintf(name, sizeof name, "fig.%s", t->kind);
    char *path = st == SD_OK ? sd_path_join(dir, name, err) : NULL;
    if (st == SD_OK && !path)
        st = SD_ENOMEM;
    /* On a full disk gnuplot exits with 0, says nothing and leaves a cut file. */
    if (st == SD_OK && (sd_read_file(path, 0, bytes, NULL) != SD_OK ||
                        !sd_plot_whole(t->kind, bytes->p ? bytes->p : "", bytes->n)))
        st = complaint(&out, text)
                 ? sd_fail(err, SD_EINVAL, "gnuplot drew no whole figure: %s", text)
                 : sd_fail(err, SD_EWRITE,
                           "gnuplot wrote an incomplete file of %zu bytes (is the disk full?)",
                           bytes->n);
    if (st == SD_OK && complaint(&out, text))
        st = sd_fail(err, SD_EINVAL, "gnuplot warned: %s", text);
    sd_free(path);
    sd_buf_free(&out);
    return st;
}

/* The character terminal's drawing without its form feed, and without the blanks that pad lines and
 * page. */
static void put_text(sd_buf *out, const char *p, size_t n) {
    const char *end = p + n;
    size_t blank = 0;
    bool begun = false;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        const char *next = nl ? nl + 1 : end, *e = nl ? nl : end;
        while (p < e && *p == '\f')
            p++;
        while (e > p && (e[-1] == ' ' || e[-1] == '\f'))
            e--;
        if (e == p) {
            blank++;
        } else {
            for (; begun && blank; blank--)
                sd_buf_putc(out, '\n');
            blank = 0;
            begun = true;
            sd_buf_put(out, p, (size_t)(e - p));
            sd_buf_putc(out, '\n');
        }
        p = next;
    }
}

static const char *kind_of(const char *path) {
    const char *dot = strrchr(sd_path_base(path), '.');
    static const char *const kinds[] = {"png", "svg", "pdf", "txt"};
    for (size_t i = 0; dot && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(dot + 1, kinds[i]) == 0)
            return kinds[i];
    return NULL;
}

sd_status sd_plot_bundle_dir(const char *path, sd_buf *out, sd_err *err) {
    if (!kind_of(path))
        return sd_fail(err, SD_EINVAL, "%s: expected a file that ends in .png, .svg, .pdf or .txt",
                       path);
    sd_buf_put(out, path, (size_t)(strrchr(path, '.') - path));
    sd_buf_puts(out, ".plot");
    return sd_buf_status(out, err);
}

sd_status sd_plot_file(sd_plot *p, const char *path, const sd_run *run, sd_err *err) {
    sd_buf dir = {0}, bytes = {0};
    SD_TRY(sd_buf_status(&p->script, err));
    sd_status st = sd_plot_bundle_dir(path, &dir, err);
    if (st != SD_OK) {
        sd_buf_free(&dir);
        return st;
    }
    target t = {.kind = kind_of(path), .cols = 100, .rows = 32};
    if (sd_path_is_dir(path))
        st = sd_fail(err, SD_EWRITE, "%s is a folder", path);
    else if (mkdir(dir.p, 0777) != 0 && !(errno == EEXIST && sd_path_is_dir(dir.p)))
        st = sd_fail(err, SD_EWRITE, "%s: %s", dir.p, strerror(errno));
    if (st == SD_OK)
        st = write_bundle(p, &t, dir.p, path, err);
    if (st == SD_OK)
        st = run_gnuplot(dir.p, &t, &bytes, err);
    if (st == SD_OK && strcmp(t.kind, "txt") == 0) {
        sd_buf text = {0};
        put_text(&text, bytes.p, bytes.n);
        say_notes(p, path, t.cols, NULL, &text);
        st = sd_buf_status(&text, err);
        if (st == SD_OK)
            st = sd_write_file(path, text.p, text.n, err);
        sd_buf_free(&text);
    } else if (st == SD_OK) {
        char name[16];
        snprintf(name, sizeof name, "fig.%s", t.kind);
        char *from = sd_path_join(dir.p, name, err);
        if (!from)
            st = SD_ENOMEM;
        else if (rename(from, path) != 0)
            st = sd_fail(err, SD_EWRITE, "%s: %s", path, strerror(errno));
        sd_free(from);
    }
    if (st == SD_OK)
        say_notes(p, path, 0, run, NULL);
    sd_buf_free(&bytes);
    sd_buf_free(&dir);
    return st;
}

sd_status sd_plot_text(sd_plot *p, int cols, int rows, const sd_run *run, sd_buf *out,
                       sd_err *err) {
    SD_TRY(sd_buf_status(&p->script, err));
    const char *no = getenv("NO_COLOR"), *tmp = getenv("TMPDIR");
    target t = {.kind = "txt",
                .cols = cols < 40    ? 40
                        : cols > 400 ? 400
                                     : cols,
                .rows = rows < 12    ? 12
                        : rows > 200 ? 200
                                     : rows,
                .colour = isatty(STDOUT_FILENO) && !(no && no[0])};
    sd_buf bytes = {0}, dir = {0};
    sd_buf_printf(&dir, "%s/sd-plot-XXXXXX", tmp && tmp[0] == '/' ? tmp : "/tmp");
    SD_TRY(sd_buf_status(&dir, err));
    sd_status st = SD_OK;
    if (!mkdtemp(dir.p)) {
        st = sd_fail(err, SD_EWRITE, "%s: %s", dir.p, strerror(errno));
        sd_buf_free(&dir);
        return st;
    }
    st = write_bundle(p, &t, dir.p, "", err);
    if (st == SD_OK)
        st = run_gnuplot(dir.p, &t, &bytes, err);
    if (st == SD_EMISSING) /* the folder goes: there is nothing to point to */
        sd_fail(err, SD_EMISSING, "gnuplot is not installed (Debian: apt install gnuplot-nox)");
    clean_bundle(dir.p);
    rmdir(dir.p);
    if (st == SD_OK) {
        put_text(out, bytes.p, bytes.n);
        say_notes(p, "", t.cols, run, out);
        st = sd_buf_status(out, err);
    }
    sd_buf_free(&bytes);
    sd_buf_free(&dir);
    return st;
}
