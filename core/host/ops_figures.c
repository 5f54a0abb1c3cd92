/* ops_figures.c: figures as operations (plot.rank and the like in Lua). */
#include <string.h>

#include "host/args.h"
#include "host/figures.h"
#include "host/host.h"

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
    {.name = "column", .kind = SD_ARG_STR, .doc = "the rank to draw; the centred one when absent"},
    FILE_ARGS,
};

#define BY_ARG                                                                     \
    {                                                                              \
        .name = "by", .kind = SD_ARG_STR,                                          \
        .doc = "a column: one series, with its own colour, for each of its values" \
    }
#define LOG_ARG(which_) \
    { .name = "log", .kind = SD_ARG_STR, .doc = which_ }
#define X_ARG \
    { .name = "x", .kind = SD_ARG_STR, .doc = "the column along the axis, numbers or names" }

static const sd_arg_desc xy_args[] = {
    TABLE_ARG("any table"),
    X_ARG,
    {.name = "y",
     .kind = SD_ARG_STR,
     .doc = "the column drawn, or several: \"pr,pr_null\" or {\"pr\", \"pr_null\"}"},
    BY_ARG,
    LOG_ARG("logarithmic axes: \"x\", \"y\" or \"xy\""),
    {.name = "style",
     .kind = SD_ARG_CHOICE,
     .dflt = "auto",
     .choices = "auto|points|lines|both",
     .doc = "auto: joined where each series has one value for each x, in order"},
    FILE_ARGS,
};
static const sd_arg_desc bars_args[] = {
    TABLE_ARG("any table"),
    X_ARG,
    {.name = "y", .kind = SD_ARG_STR, .doc = "the column drawn"},
    BY_ARG,
    LOG_ARG("\"y\": a logarithmic axis"),
    FILE_ARGS,
};
static const sd_arg_desc hist_args[] = {
    TABLE_ARG("any table"),
    {.name = "column", .kind = SD_ARG_STR, .doc = "the column counted"},
    INT_ARG("bins", "0", 0, 1000, "how many bins; 0: by Freedman and Diaconis"),
    LOG_ARG("logarithmic axes: \"x\", \"y\" or \"xy\""),
    FILE_ARGS,
};
static const sd_arg_desc map_args[] = {
    {.name = "tensor",
     .kind = SD_ARG_TENSOR,
     .flags = SD_ARG_REQUIRED,
     .doc = "a matrix, or one row"},
    {.name = "log", .kind = SD_ARG_BOOL, .dflt = "false", .doc = "a logarithmic scale of colours"},
    {.name = "x", .kind = SD_ARG_STR, .dflt = "column", .doc = "name of the columns"},
    {.name = "y", .kind = SD_ARG_STR, .dflt = "row", .doc = "name of the rows"},
    FILE_ARGS,
};

static int op_figure(const sd_host *host, sd_call *c);

#define FIGURE(args_)                                                                            \
    .struct_size = sizeof(sd_op_desc), .returns = SD_ARG_STR,                                    \
    .returns_doc = "the file's path, or the drawing as text", .args = args_, .n_args = N(args_), \
    .run = op_figure

/* A figure: one row, with the function (figures.h) that says what it shows. */
static const struct {
    sd_figure_fn make;
    sd_op_desc op;
} rows[] = {
    {sd_figure_cascade,
     {FIGURE(cascade_args), .name = "plot.cascade",
      .summary = "figure: rank of every layer over training",
      .details =
          "One line a layer over the tokens trained on, its null dotted in the same colour: "
          "the spectral cascade as it forms. The centred rank is drawn unless another column "
          "is named, since the raw one is the potential plane's in most layers.",
      .example = "dir = os.tmpname(); os.remove(dir)\n"
                 "x = train(m, {text=t, steps=2, batch=1, ctx=32, measure_every=1, dir=dir})\n"
                 "s = plot.cascade(training(dir, {which='cascade'}), {rows=16})\n"
                 "assert(s:find 'tokens')"}},
    {sd_figure_rank,
     {FIGURE(rank_args), .name = "plot.rank",
      .summary = "figure: rank per layer, raw and centred, each over its null",
      .details =
          "The median over heads with every head beside it and its null with one standard "
          "deviation, dotted; the centred rank over its own null; and the line of minimal rank, "
          "the table's tau. A file gets its "
          "script and data beside it (x.png: x.plot/) and redraws from them alone.",
      .example = "s = plot.rank(probe(m, t, {ctx=128, seqs=1, draws=2}), {cols=70, rows=20})\n"
                 "assert(s:find 'layer')"}},
    {sd_figure_spectrum,
     {FIGURE(spectrum_args), .name = "plot.spectrum",
      .summary = "figure: planes and eigenvalues of one head",
      .details = "Left: the singular value of every routing plane, over the largest. Right: the "
                 "eigenvalues of M in the complex plane, over their spectral radius; the unstable "
                 "half plane is shaded.",
      .example = "s = plot.spectrum(heads(m, {layers=0, draws=0}), {layer=0, head=1})\n"
                 "assert(s:find 'plane')"}},
    {sd_figure_heads,
     {FIGURE(heads_args), .name = "plot.heads",
      .summary = "figure: any column as a map of layers and heads",
      .details = "Colours follow a logarithmic scale where the column spans more than a factor of "
                 "20. Small maps carry their numbers.",
      .example = "s = plot.heads(heads(m, {draws=0}), {column='pr'})\nassert(s:find 'head')"}},
    {sd_figure_xy,
     {FIGURE(xy_args), .name = "plot.xy",
      .summary = "figure: any columns of any table against each other",
      .details =
          "Missing and non-finite values, and those with no place on a logarithmic axis, are "
          "left out and counted. Several y have one colour each; by= gives one series a value.",
      .example =
          "w = heads(m, {draws=0})\n"
          "s = plot.xy(w, {x='layer', y='pr', by='head', log='y'})\nassert(s:find 'layer')"}},
    {sd_figure_bars,
     {FIGURE(bars_args), .name = "plot.bars", .summary = "figure: a column as bars",
      .details =
          "Where several rows have the same x (and by) the bar is their median, and the figure "
          "says so.",
      .example =
          "s = plot.bars(heads(m, {draws=0}), {x='layer', y='pr'})\nassert(s:find 'median')"}},
    {sd_figure_hist,
     {FIGURE(hist_args), .name = "plot.hist", .summary = "figure: histogram of a column",
      .details = "With log=\"x\" the bins have equal width on the logarithmic axis.",
      .example = "s = plot.hist(heads(m, {draws=0}), {column='pr'})\nassert(s:find 'rows')"}},
    {sd_figure_map,
     {FIGURE(map_args), .name = "plot.map",
      .summary = "figure: a matrix in colours, the first row on top",
      .details =
          "An attention map, a weight, any tensor of one or two dimensions. Where both signs "
          "occur zero is white. More than 1000 rows or columns are drawn as means of blocks, "
          "and the figure says so.",
      .example = "s = plot.map(m:part('wq', 0), {rows=20})\nassert(s:find 'column')"}},
};

/* An argument that not every figure declares. */
static const sd_value *asked(sd_call *c, const char *name) {
    return sd_op_arg_index(c->op->desc, name) >= 0 ? sd_call_arg(c, name) : NULL;
}

static const char *asked_str(sd_call *c, const char *name) {
    const sd_value *v = asked(c, name);
    return v && v->s && v->s[0] ? v->s : NULL;
}

static int asked_int(sd_call *c, const char *name) {
    const sd_value *v = asked(c, name);
    return v ? (int)v->i : 0;
}

/* To the file when one is given, returning its path; else drawn in characters, returned as text. */
static int op_figure(const sd_host *host, sd_call *c) {
    size_t which = 0;
    while (strcmp(rows[which].op.name, c->op->desc->name) != 0)
        which++;
    const sd_value *table = asked(c, "table"), *tensor = asked(c, "tensor"), *log = asked(c, "log");
    sd_figure_args a = {.table = table ? table->table : NULL,
                        .tensor = tensor ? tensor->tensor : NULL,
                        .column = asked_str(c, "column"),
                        .title = asked_str(c, "title"),
                        .x = asked_str(c, "x"),
                        .y = asked_str(c, "y"),
                        .by = asked_str(c, "by"),
                        .log = log && log->b ? "z" : asked_str(c, "log"),
                        .style = asked_str(c, "style"),
                        .layer = asked_int(c, "layer"),
                        .head = asked_int(c, "head"),
                        .bins = asked_int(c, "bins")};
    sd_plot *p = NULL;
    sd_buf out = {0};
    const char *file = asked_str(c, "file");
    sd_status st = sd_figure_plot(rows[which].make, &a, &p, &c->err);
    if (st == SD_OK && file) {
        st = sd_plot_file(p, file, &c->s->run, &c->err);
        sd_buf_puts(&out, file);
    } else if (st == SD_OK) {
        st = sd_plot_text(p, asked_int(c, "cols"), asked_int(c, "rows"), &c->s->run, &out, &c->err);
    }
    sd_plot_free(p);
    if (st == SD_OK)
        st = sd_buf_status(&out, &c->err);
    int rc = st == SD_OK ? host->return_str(c, out.p, out.n) : (int)st;
    sd_buf_free(&out);
    return rc;
}

const sd_op_desc *sd_figure_op(size_t i) {
    return i < N(rows) ? &rows[i].op : NULL;
}
