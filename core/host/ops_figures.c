/* ops_figures.c: figures as operations (plot.rank and the like in Lua). */
#include "host/args.h"
#include "host/figures.h"
#include "host/host.h"

/* To the file when one is given, returning its path; else drawn in characters, returned as text. */
static int draw(const sd_host *host, sd_call *c, sd_status st, sd_plot *p) {
    if (st != SD_OK)
        return st;
    const char *file = host->arg_str(c, "file");
    sd_buf out = {0};
    if (file) {
        st = sd_plot_file(p, file, &c->s->run, &c->err);
        sd_buf_puts(&out, file);
    } else {
        st = sd_plot_text(p, (int)host->arg_int(c, "cols"), (int)host->arg_int(c, "rows"),
                          &c->s->run, &out, &c->err);
    }
    sd_plot_free(p);
    if (st == SD_OK)
        st = sd_buf_status(&out, &c->err);
    int rc = st == SD_OK ? host->return_str(c, out.p, out.n) : (int)st;
    sd_buf_free(&out);
    return rc;
}

static const sd_table *table_of(sd_call *c) {
    return sd_call_arg(c, "table")->table;
}

static int op_rank(const sd_host *host, sd_call *c) {
    sd_plot *p = NULL;
    sd_status st = sd_figure_rank(table_of(c), host->arg_str(c, "column"),
                                  host->arg_str(c, "title"), &p, &c->err);
    return draw(host, c, st, p);
}

static int op_spectrum(const sd_host *host, sd_call *c) {
    sd_plot *p = NULL;
    sd_status st =
        sd_figure_spectrum(table_of(c), (int)host->arg_int(c, "layer"),
                           (int)host->arg_int(c, "head"), host->arg_str(c, "title"), &p, &c->err);
    return draw(host, c, st, p);
}

static int op_heads(const sd_host *host, sd_call *c) {
    sd_plot *p = NULL;
    sd_status st = sd_figure_heads(table_of(c), host->arg_str(c, "column"),
                                   host->arg_str(c, "title"), &p, &c->err);
    return draw(host, c, st, p);
}

static int op_cascade(const sd_host *host, sd_call *c) {
    sd_plot *p = NULL;
    sd_status st = sd_figure_cascade(table_of(c), host->arg_str(c, "column"),
                                     host->arg_str(c, "title"), &p, &c->err);
    return draw(host, c, st, p);
}

#define TABLE_ARG(what_) \
    { .name = "table", .kind = SD_ARG_TABLE, .flags = SD_ARG_REQUIRED, .doc = what_ }
#define FILE_ARGS                                                                              \
    {.name = "file",                                                                           \
     .kind = SD_ARG_PATH,                                                                      \
     .doc = "file to write (.png .svg .pdf .txt), its data beside it; absent: drawn as text"}, \
        {.name = "title", .kind = SD_ARG_STR, .doc = "title instead of the usual one"},        \
        {.name = "cols",                                                                       \
         .kind = SD_ARG_INT,                                                                   \
         .dflt = "80",                                                                         \
         .min = 20,                                                                            \
         .max = 1000,                                                                          \
         .doc = "width of the drawing as text"},                                               \
    {                                                                                          \
        .name = "rows", .kind = SD_ARG_INT, .dflt = "24", .min = 8, .max = 1000,               \
        .doc = "height of the drawing as text"                                                 \
    }

static const sd_arg_desc rank_args[] = {
    TABLE_ARG("a table of heads, probe or summary"),
    {.name = "column", .kind = SD_ARG_STR, .dflt = "pr", .doc = "the rank to draw"},
    FILE_ARGS,
};
static const sd_arg_desc spectrum_args[] = {
    TABLE_ARG("a table of heads or probe"),
    {.name = "layer",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .min = 0,
     .max = 100000,
     .doc = "the layer, numbered from 0"},
    {.name = "head",
     .kind = SD_ARG_INT,
     .dflt = "0",
     .min = 0,
     .max = 100000,
     .doc = "the head, numbered from 0"},
    FILE_ARGS,
};
static const sd_arg_desc heads_args[] = {
    TABLE_ARG("a table with the columns layer and head"),
    {.name = "column", .kind = SD_ARG_STR, .dflt = "pr", .doc = "the column to map"},
    FILE_ARGS,
};

static const sd_arg_desc cascade_args[] = {
    TABLE_ARG("a table of training(dir, {which=\"cascade\"})"),
    {.name = "column", .kind = SD_ARG_STR, .dflt = "c_pr", .doc = "the rank to draw"},
    FILE_ARGS,
};

static const sd_op_desc ops[] = {
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "plot_cascade",
     .summary = "figure: rank of every layer over training",
     .details = "One line a layer over the tokens trained on, its null dotted in the same colour: "
                "the spectral cascade as it forms. The centred rank is drawn unless another column "
                "is named, since the raw one is the potential plane's in most layers.",
     .example = "dir = os.tmpname(); os.remove(dir)\n"
                "x = train(m, {text=t, steps=2, batch=1, ctx=32, measure_every=1, dir=dir})\n"
                "s = plot_cascade(training(dir, {which='cascade'}), {rows=16})\n"
                "assert(s:find 'tokens')",
     .returns_doc = "the file's path, or the drawing as text",
     .args = cascade_args,
     .n_args = N(cascade_args),
     .run = op_cascade},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "plot_rank",
     .summary = "figure: rank per layer, beside its null and the centred rank",
     .details = "The median over heads with every head beside it, the null with one standard "
                "deviation, the centred rank, and the line of minimal rank at 3. A file gets its "
                "script and data beside it (x.png: x.plot/) and redraws from them alone.",
     .example = "s = plot_rank(probe(m, t, {ctx=128, seqs=1, draws=2}), {cols=70, rows=20})\n"
                "assert(s:find 'layer')",
     .returns_doc = "the file's path, or the drawing as text",
     .args = rank_args,
     .n_args = N(rank_args),
     .run = op_rank},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "plot_spectrum",
     .summary = "figure: planes and eigenvalues of one head",
     .details = "Left: the singular value of every routing plane, over the largest. Right: the "
                "eigenvalues of M in the complex plane, over their spectral radius; the unstable "
                "half plane is shaded.",
     .example = "s = plot_spectrum(heads(m, {layers=0, draws=0}), {layer=0, head=1})\n"
                "assert(s:find 'plane')",
     .returns_doc = "the file's path, or the drawing as text",
     .args = spectrum_args,
     .n_args = N(spectrum_args),
     .run = op_spectrum},
    {.struct_size = sizeof(sd_op_desc),
     .returns = SD_ARG_STR,
     .name = "plot_heads",
     .summary = "figure: any column as a map of layers and heads",
     .details = "Colours follow a logarithmic scale where the column spans more than a factor of "
                "20. Small maps carry their numbers.",
     .example = "s = plot_heads(heads(m, {draws=0}), {column='pr'})\nassert(s:find 'head')",
     .returns_doc = "the file's path, or the drawing as text",
     .args = heads_args,
     .n_args = N(heads_args),
     .run = op_heads},
};

sd_builtin_group sd_ops_figures(void) {
    return (sd_builtin_group){ops, N(ops)};
}
