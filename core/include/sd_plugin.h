/* sd_plugin.h: the one header a plugin includes. ABI 1.1.
 *
 * A plugin is a shared object that exports one data symbol, `sd_plugin`. It is native code running
 * inside the program: load only what you trust. The host checks ABI version and structure sizes
 * before anything of the plugin runs. The host is reached only through the function table passed to
 * each op; the table only ever grows at its end, and each group names the minor version that added
 * it.
 *
 *     gcc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wl,-z,defs my.c -o my.so -lm
 *
 * See plugins/template.c and plugins/README.md.
 *
 * Ownership. Everything handed out belongs to the running call and dies with it: strings, arrays
 * and scratch memory silently; handles (models, tables, calibrations, trainers, generators) should
 * be released or returned, and one that is neither is freed and reported as a leak. Nothing may be
 * kept across calls, and the table is used from the calling thread only.
 *
 * Errors. A function that can fail returns an int status (0 = ok) or NULL, and the host remembers
 * the reason: an op passes it up with `return host->failed(call);`. An op that finds a fault itself
 * says `return host->fail(call, SD_FAIL_INVALID, "planes %d: ...", n);`.
 *
 * Matrices are row-major. Layers and heads are numbered from 0.
 */
#ifndef SD_PLUGIN_H
#define SD_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SD_ABI_MAJOR 1
#define SD_ABI_MINOR 1
#define SD_PLUGIN_EXPORT __attribute__((visibility("default")))
#if defined(__GNUC__)
#define SD_PLUGIN_PRINTF(f_, a_) __attribute__((format(printf, f_, a_)))
#else
#define SD_PLUGIN_PRINTF(f_, a_)
#endif

/* ---- op descriptors ------------------------------------------------------------------------- */

typedef enum sd_arg_kind {
    SD_ARG_NIL = 0, /* as `returns`: nothing */
    SD_ARG_BOOL = 1,
    SD_ARG_INT = 2,
    SD_ARG_NUM = 3,
    SD_ARG_STR = 4,
    SD_ARG_CHOICE = 5, /* one of `choices` */
    SD_ARG_LAYERS = 6, /* "0-3,7", "all", or an integer */
    SD_ARG_PATH = 7,
    SD_ARG_MODEL = 8,
    SD_ARG_TEXT = 9, /* text "file", a literal string, or ids */
    SD_ARG_TABLE = 10,
    SD_ARG_TENSOR = 11
} sd_arg_kind;

enum { SD_ARG_REQUIRED = 1 }; /* sd_arg_desc.flags */

typedef struct sd_arg_desc {
    const char *name; /* [a-z][a-z0-9_]* */
    uint32_t kind;    /* sd_arg_kind */
    uint32_t flags; /* SD_ARG_REQUIRED: positional, in the order of the array, before all others */
    const char *dflt;    /* default as text ("64", "true", "keep"); NULL = absent unless given */
    double min, max;     /* INT, NUM: inclusive bounds when min < max (either may be infinite);
                            min >= max, so also {0, 0}: unbounded */
    const char *choices; /* CHOICE: "keep|scalar|none" */
    const char *doc;     /* one line */
} sd_arg_desc;

typedef struct sd_host sd_host;
typedef struct sd_call sd_call; /* one running call; owns every handle made in it */

/* 0 = success. Anything else: the op failed, and said why with host->fail (which returns the code).
 */
typedef int (*sd_op_fn)(const sd_host *host, sd_call *call);

typedef struct sd_op_desc {
    uint32_t struct_size; /* sizeof(sd_op_desc) */
    uint32_t returns;     /* sd_arg_kind */
    const char *name;     /* [a-z][a-z0-9_]*; "plot.NAME": a figure, the field NAME of plot */
    const char *summary;  /* one line */
    const char *details;  /* paragraphs, separated by an empty line */
    const char *example;  /* Lua lines; run in the tests with `m` (the bundled S-D model), `g` (the
                             bundled GPT-2 model) and `t` (a short text) defined */
    const char *returns_doc;
    const sd_arg_desc *args;
    uint32_t n_args;
    uint32_t flags; /* SD_OP_* */
    sd_op_fn run;
} sd_op_desc;

enum {
    SD_OP_NO_LINEAGE = 1 /* the model returned is not a product of this op's arguments (open) */
};

/* ---- attention kinds (1.1) -------------------------------------------------------------------
 * A kind is how a layer's attention sublayer turns what it projects into the heads' outputs. The
 * program owns the weights, their gradients, saving and the order of calls; a kind is its
 * description and its functions. See plugins/template_kind.c. */

/* What a layer's scores are before the softmax, whatever its kind's name (0: a host that does not
 * say). R is the routing, F the filtering. */
enum {
    SD_SCORES_ABSENT = 1,   /* there are none (uniform), or no matrix of them (elu1) */
    SD_SCORES_OF_QK = 2,    /* scale q k': R and F are its skew and symmetric parts */
    SD_SCORES_OF_SKEW = 3,  /* scale (q k' - k q') minus a diagonal */
    SD_SCORES_OF_PARTS = 4, /* factors of R and of F apart, and a number on the diagonal */
    SD_SCORES_OF_KEYS = 5   /* a number a key, minus a diagonal */
};

/* One attention sublayer; what model_set_layer may change. Kinds are the host's list of attention
 * kinds: "softmax", "sd", "bilinear", "elu1", "uniform", "potential", ... (plugins/README.md).
 * Dimensions that the kind has no use for are 0, and made so when they are set. */
typedef struct sd_hlayer_info {
    uint32_t struct_size;
    int32_t n_head, n_kv_head, d_qk, d_v;
    int32_t planes, f_rank; /* bilinear: routing planes and filtering rank a head */
    int32_t scores;         /* SD_SCORES_...; follows from the kind, not read by model_set_layer */
    double scale; /* c (softmax) or alpha (sd): stays as it is whatever the factors' width */
    char kind[24];
    char options[64];
} sd_hlayer_info;

/* What a kind has the layer project beside the values (sd_kind_desc.parts; roles as for
 * model_get_part). D is the model's width, H the heads. */
enum {
    SD_KIND_QK = 1,  /* queries and keys: "wq" "bq" "wk" "bk", d_qk a head */
    SD_KIND_D = 2,   /* the positive diagonal d(x) of S-D: "wd" "bd". A kind with an option "diag"
                        has it in layers with diag=input only */
    SD_KIND_POT = 4, /* a number a head and token: "pot" (D+1, H), the last row its bias */
    SD_KIND_PLANES = 8, /* two factors: "ra" "rb" (D+1, H*planes) */
    SD_KIND_RANK = 16,  /* a factor and its weights: "f" (D+1, H*f_rank), "fl" (H*f_rank) */
    SD_KIND_SCALAR = 32 /* a number a head: "diag" (H) */
};

enum {                        /* sd_kind_desc.flags */
       SD_KIND_CAUSAL = 1,    /* refuses encoders */
       SD_KIND_RECURRENT = 2, /* decodes with a state of constant size */
       SD_KIND_ROTARY = 4     /* queries and keys may be rotary */
};

/* An option "name=value" of a layer: one of `choices` ("qk|skew"), or with NULL an integer in
 * min..max. An option "window" hides all but the last keys of a row. */
typedef struct sd_kind_option {
    const char *name, *doc, *choices;
    int64_t min, max;
    const char *required; /* NULL, or: it must be given, for example with this value */
} sd_kind_option;

/* One sequence and the heads that share one key head. Data is float or double, as the functions it
 * goes to; rows of q .. f are `ld` elements apart, of d `d_ld`, of o `o_ld`. What the kind has no
 * part for is NULL. A new program may append fields. */
typedef struct sd_kind_args {
    uint32_t struct_size;
    int32_t tokens, heads, d_qk, d_v, planes, f_rank; /* T, G, ... */
    int32_t causal, window;                           /* window 0: all keys before a row */
    int32_t reserved;
    double scale;
    const char *options; /* "features=skew window=64" */
    size_t ld, d_ld, o_ld;
    const void *q;       /* (T, G, d_qk), with bias, turned by rotary positions */
    const void *k;       /* (T, d_qk) */
    const void *v;       /* (T, d_v) */
    const void *pot;     /* (T, G) */
    const void *ra, *rb; /* (T, G, planes) */
    const void *f;       /* (T, G, f_rank) */
    const void *d;       /* (T, G), positive */
    const void *diag;    /* (G) */
    const void *fl;      /* (G, f_rank) */
    void *o;             /* (T, G, d_v): to be written */
    void *lse;           /* (G, T) a number a row that backward gets back; NULL: not wanted */
    /* backward: o and lse as forward left them. Gradients are zero and to be added to; rows as
     * those of what they belong to, dd's T rows of G numbers. */
    const void *d_o;
    void *dq, *dk, *dv, *dpot, *dra, *drb, *df, *dd, *ddiag, *dfl;
} sd_kind_args;

/* Called from several threads at once, never with the same memory to write: no static variables, no
 * host. scratch: bytes of work memory (64-byte aligned, as found) that forward, or backward, and
 * decode need for at most a->tokens tokens; what decode needs must not grow with them.
 * decode: token t after tokens 0 .. t-1. o and d are those of t alone. A kind without state finds
 * rows 0 .. t of q .. f (tokens = t + 1); a recurrent one row t (tokens = 1) and its state: of
 * state_size bytes, zero before token 0. */
typedef struct sd_kind_ops {
    size_t (*scratch)(const sd_kind_args *a, int backward);
    void (*forward)(const sd_kind_args *a, void *scratch);
    void (*backward)(const sd_kind_args *a, void *scratch);
    size_t (*state_size)(const sd_kind_args *a); /* NULL unless recurrent */
    void (*decode)(const sd_kind_args *a, int32_t t, void *state, void *scratch);
} sd_kind_ops;

typedef struct sd_kind_desc {
    uint32_t struct_size; /* sizeof(sd_kind_desc) */
    uint32_t parts;       /* SD_KIND_QK | ... */
    uint32_t flags;       /* SD_KIND_CAUSAL | ... */
    uint32_t scores;      /* SD_SCORES_...: the matrix that heads and probe take apart, scale in */
    const char *name;     /* [a-z][a-z0-9_]*, at most 23 bytes: what files and new{kind=} say */
    const char *summary;  /* one line */
    const sd_kind_option *options;
    uint32_t n_options;
    uint32_t reserved;
    double scale_width; /* a fresh layer's scale is 1/sqrt(scale_width * d_qk); 0: 1 */
    /* FLOPs of one token between projections and output, all heads; keys: seen by a row on average.
     */
    double (*flops)(const sd_hlayer_info *layer, double keys);
    /* NULL, or: why a layer whose options and dimensions are in range is refused all the same
     * (NULL: it is not). Sizes that scratch and state_size multiply are to be bounded here. */
    const char *(*check)(const sd_hlayer_info *layer);
    const sd_kind_ops *f32, *f64; /* on float and on double */
} sd_kind_desc;

/* ---- the plugin itself --------------------------------------------------------------------- */

typedef struct sd_plugin_desc {
    uint32_t abi_major, abi_minor; /* SD_ABI_MAJOR, SD_ABI_MINOR */
    uint32_t struct_size;          /* sizeof(sd_plugin_desc) */
    uint32_t op_size;              /* sizeof(sd_op_desc) */
    uint32_t arg_size;             /* sizeof(sd_arg_desc) */
    uint32_t n_ops;
    const char *name, *version, *summary;
    const sd_op_desc *ops;
    int (*init)(const sd_host *host, sd_call *call); /* nullable; non-zero = load is undone */
    void (*fini)(const sd_host *host);               /* nullable; on unload, before the end */
    /* -- 1.1; a descriptor of abi_minor 0 ends before this */
    uint32_t kind_size; /* sizeof(sd_kind_desc); 0 without kinds */
    uint32_t n_kinds;
    const sd_kind_desc *kinds;
} sd_plugin_desc;

/* Start of the structure: `SD_PLUGIN_HEADER(ops), .name = "mine", .version = "1.0", ...`; for a
 * plugin with attention kinds `SD_PLUGIN_HEADER(ops), SD_PLUGIN_KINDS(kinds), ...`, or without
 * operations `SD_PLUGIN_ABI, SD_PLUGIN_KINDS(kinds), ...` */
#define SD_PLUGIN_ABI                                                                            \
    .abi_major = SD_ABI_MAJOR, .abi_minor = SD_ABI_MINOR, .struct_size = sizeof(sd_plugin_desc), \
    .op_size = sizeof(sd_op_desc), .arg_size = sizeof(sd_arg_desc)
#define SD_PLUGIN_HEADER(ops_) \
    SD_PLUGIN_ABI, .n_ops = sizeof(ops_) / sizeof((ops_)[0]), .ops = (ops_)
#define SD_PLUGIN_KINDS(kinds_)                                                         \
    .kind_size = sizeof(sd_kind_desc), .n_kinds = sizeof(kinds_) / sizeof((kinds_)[0]), \
    .kinds = (kinds_)

/* ---- types of the function table ------------------------------------------------------------ */

/* Reasons, for host->fail; the program's exit code follows them. */
enum {
    SD_FAIL_INVALID = 1, /* bad argument or use */
    SD_FAIL_FILE = 2,    /* an input file cannot be read */
    SD_FAIL_FORMAT = 3,  /* an input file holds something wrong */
    SD_FAIL_NUMERIC = 4, /* non-finite value, no convergence */
    SD_FAIL_MISSING = 5, /* an optional program is not there */
    SD_FAIL_WRITE = 6,   /* output could not be written whole */
    SD_FAIL_CANCEL = 7,  /* interrupted by the user */
    SD_FAIL_MEMORY = 8
};

/* Opaque handles. */
typedef struct sd_hmodel sd_hmodel;
typedef struct sd_htext sd_htext;
typedef struct sd_htable sd_htable;
typedef struct sd_hcalib sd_hcalib;
typedef struct sd_htrain sd_htrain;
typedef struct sd_hrng sd_hrng;

/* A dense f64 array, row-major. Handed out: data is the call's (writable copy). Handed in: data is
 * yours, copied by the callee. */
typedef struct sd_harray {
    int32_t ndim; /* 0..6; 0 = scalar */
    int32_t reserved;
    int64_t shape[6];
    double *data;
} sd_harray;

/* Set struct_size before passing a structure that has one: the host fills no more than that. */
typedef struct sd_hmodel_info {
    uint32_t struct_size;
    int32_t n_layer, d_model, d_ff, vocab, n_pos;
    int32_t causal, tied, rope; /* rope: rotary dimensions a head, 0 = none */
    int32_t qkv_bias;
    int32_t norm; /* 0 none, 1 layer norm, 2 RMS norm */
    int32_t reserved;
    double embed_scale, d_floor;
    int64_t n_params;
    char family[24];
} sd_hmodel_info;

/* What one attention sublayer saw on one batch; pointers are valid during the callback only. q and
 * k are NULL together, and d_qk 0, where the kind has none (uniform, potential, bilinear). */
typedef struct sd_hcapture {
    uint32_t struct_size;
    int32_t layer, batch, tokens;
    int32_t n_head, n_kv_head, d_qk, d_v, d_model;
    int32_t reserved;
    double scale;
    const float *x; /* (B, T, D) inputs, after the sublayer's norm if any */
    const float *q; /* (B, T, H, d_qk) with bias, after RoPE */
    const float *k; /* (B, T, Hkv, d_qk) */
    const float *v; /* (B, T, Hkv, d_v) */
    const float *d; /* (B, T, H) S-D diagonal (positive), else NULL */
} sd_hcapture;
/* Non-zero stops the run and becomes its status. */
typedef int (*sd_hcapture_fn)(void *user, const sd_hcapture *c);

typedef struct sd_hscore {
    uint32_t struct_size;
    int32_t windows;
    int64_t tokens; /* scored */
    double nll;     /* mean, nats */
    double ppl;     /* exp(nll) */
} sd_hscore;

/* What a model costs at a context of T tokens (1.1). FLOPs are a token's forward pass; bytes those
 * of an f32 decoder after T tokens. */
typedef struct sd_hprice {
    uint32_t struct_size;
    int32_t recurrent_layers;      /* decode with constant state */
    int64_t n_params, attn_params; /* attention sublayers, norms not counted */
    double flops, attn_flops;
    double cache_bytes, state_bytes; /* grows with T; constant */
} sd_hprice;

/* Two models on the same windows (1.1): mean loss of each in nats, delta = nll_b - nll_a with its
 * 95% interval by paired bootstrap over windows. */
typedef struct sd_hdelta {
    uint32_t struct_size;
    int32_t windows;
    int64_t tokens;
    double nll_a, nll_b, delta, lo, hi;
} sd_hdelta;

/* Induction (1.1): random tokens repeated once; accuracy and loss on the second half, and on the
 * first, where nothing can be recalled. */
typedef struct sd_hrecall {
    uint32_t struct_size;
    int32_t half, seqs;
    double accuracy, nll, accuracy_first, nll_first, chance;
} sd_hrecall;

/* Rotary positions (1.1): pair i turns dimensions (a[i], b[i]) of a head by position * inv[i]. The
 * arrays are the call's. */
typedef struct sd_hrope {
    uint32_t struct_size;
    int32_t pairs; /* 0: no rotary positions */
    int32_t *a, *b;
    double *inv;
} sd_hrope;

/* One named slice of a trainer's flat buffers. */
typedef struct sd_hslice {
    uint32_t struct_size;
    int32_t layer; /* -1: global */
    int64_t offset, n;
    int32_t decay; /* weight decay applies */
    int32_t reserved;
    char role[24], name[48];
} sd_hslice;

/* AdamW with gradient clipping by global norm (clip <= 0: off). */
typedef struct sd_hadamw {
    uint32_t struct_size;
    uint32_t reserved;
    double lr, beta1, beta2, eps, weight_decay, clip;
} sd_hadamw;

/* A whole training run (1.1), scheduled as the op `train` does: warm-up, half a cosine from lr to
 * min_lr, AdamW, sequences in an order decided by the seed. Numbers left at 0 (warmup, min_lr:
 * below 0) are train's own defaults; ctx 0: 256, or the position table if smaller. */
typedef struct sd_htrain_run {
    uint32_t struct_size;
    int32_t batch, ctx;
    int32_t reserved;
    int64_t steps, warmup;
    double lr, min_lr;
    uint64_t seed;
    sd_hmodel *teacher; /* nullable: distil, teacher_weight of the loss (METHOD 7.5) */
    double teacher_weight;
    const unsigned char *layers; /* (n_layer) nullable: 0 = this layer's parts stay as they are, and
                                    so do the global ones */
} sd_htrain_run;

/* A value on its way into or out of another op (1.1): the member that `kind` names. */
typedef struct sd_hvalue {
    const char *name; /* of the argument */
    uint32_t kind;    /* sd_arg_kind; BOOL and INT are in num */
    uint32_t reserved;
    double num;
    const char *str; /* STR, CHOICE, PATH, LAYERS */
    sd_hmodel *model;
    sd_htext *text;
    sd_htable *table;
} sd_hvalue;

enum { SD_TABLE_INT = 0, SD_TABLE_NUM = 1, SD_TABLE_STR = 2, SD_TABLE_VEC = 3 };

/* ---- the host's function table ---------------------------------------------------------------
 * Append-only. A function added after 1.0 may only be called when host->abi_minor says it is there,
 * or when the plugin's own abi_minor demands it (the loader then refuses an older host). */
struct sd_host {
    uint32_t abi_major, abi_minor, struct_size, reserved;

    /* -- arguments (1.0). Checked against the descriptor before the op runs: of the declared kind,
     * in range, defaults filled in. Asking for an undeclared name or another kind fails the call
     * and returns 0/NULL. */
    bool (*arg_given)(sd_call *c, const char *name); /* given by the user or by a default */
    bool (*arg_bool)(sd_call *c, const char *name);
    int64_t (*arg_int)(sd_call *c, const char *name);
    double (*arg_num)(sd_call *c, const char *name); /* INT or NUM; NaN when absent */
    const char *(*arg_str)(sd_call *c,
                           const char *name); /* STR, CHOICE, PATH, LAYERS; NULL: absent */
    /* LAYERS (or a STR holding a range list such as heads "0-3"): mask[0..count) becomes 0/1;
     * absent = all. `what` names the thing in the error ("head"). */
    int (*arg_range)(sd_call *c, const char *name, const char *what, int32_t count,
                     unsigned char *mask);
    sd_hmodel *(*arg_model)(sd_call *c, const char *name); /* borrowed: read-only, not released */
    sd_htext *(*arg_text)(sd_call *c, const char *name);   /* NULL when absent */
    sd_htable *(*arg_table)(sd_call *c, const char *name); /* borrowed, read-only */
    int (*arg_array)(sd_call *c, const char *name, sd_harray *out);

    /* -- failing (1.0) */
    int (*fail)(sd_call *c, int code, const char *fmt, ...) SD_PLUGIN_PRINTF(3, 4); /* → code */
    int (*failed)(sd_call *c);            /* code of the last failure, 0 if none */
    const char *(*fail_text)(sd_call *c); /* its text, "" if none */
    void (*fail_clear)(sd_call *c);       /* forgets it: the op goes on another way */

    /* -- results (1.0): exactly one, of the declared kind, before returning 0 (none for NIL).
     * A model or table given back is released by the host. */
    int (*return_bool)(sd_call *c, bool v);
    int (*return_int)(sd_call *c, int64_t v);
    int (*return_num)(sd_call *c, double v); /* a NaN is refused: fail says more */
    int (*return_str)(sd_call *c, const char *s, size_t n);
    int (*return_model)(sd_call *c, sd_hmodel *m);
    int (*return_table)(sd_call *c, sd_htable *t);
    int (*return_array)(sd_call *c, const sd_harray *a); /* TENSOR, f64 */

    /* -- scratch memory (1.0): zeroed, 64-byte aligned, freed with the call. n*size is checked. */
    void *(*alloc)(sd_call *c, size_t n, size_t size);
    void (*release)(sd_call *c, void *p); /* optional early release; also arrays' data */

    /* -- model (1.0). A clone shares every tensor until it is changed; arguments cannot be changed.
     * Parts are the canonical roles of a layer: "wq" "bq" "wk" "bk" "wv" "bv" "wo" "bo" "wd" "bd"
     * "norm1_g" ..., weights (in, out): y = x W + b; layer -1 for global ones ("tok", "pos", ...).
     * A fused stored tensor is written through. */
    sd_hmodel *(*model_clone)(sd_call *c, sd_hmodel *m);
    void (*model_release)(sd_call *c, sd_hmodel *m);
    const char *(*model_name)(sd_call *c, sd_hmodel *m);
    int (*model_info)(sd_call *c, sd_hmodel *m, sd_hmodel_info *out);
    int (*model_layer)(sd_call *c, sd_hmodel *m, int32_t layer, sd_hlayer_info *out);
    /* Parts whose shape follows from the changed fields must be set before the model is used. */
    int (*model_set_layer)(sd_call *c, sd_hmodel *m, int32_t layer, const sd_hlayer_info *in);
    size_t (*model_n_tensors)(sd_call *c, sd_hmodel *m);
    const char *(*model_tensor_name)(sd_call *c, sd_hmodel *m, size_t i); /* NULL past the end */
    int (*model_get_tensor)(sd_call *c, sd_hmodel *m, const char *name, sd_harray *out);
    int (*model_set_tensor)(sd_call *c, sd_hmodel *m, const char *name, const sd_harray *in);
    bool (*model_has_part)(sd_call *c, sd_hmodel *m, int32_t layer, const char *role);
    int (*model_get_part)(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                          sd_harray *out);
    int (*model_set_part)(sd_call *c, sd_hmodel *m, int32_t layer, const char *role,
                          const sd_harray *in);

    /* -- text (1.0): ids under the model's tokenizer, the call's. */
    int (*text_ids)(sd_call *c, sd_htext *t, sd_hmodel *m, const int32_t **ids, size_t *n);
    const char *(*text_name)(sd_call *c, sd_htext *t);

    /* -- calibrate (1.0). The text is cut into sequences of ctx tokens (0: the position table, at
     * most 512; a text shorter than ctx is one sequence; a last short piece is dropped), of which
     * at most max_seqs are run (0: all). capture streams what each layer saw. calibrate gathers,
     * per layer, over all rows N: "rows" (1) · "x2" (D+1, D+1) second moment of [x 1] / N · "qk"
     * (H, 2d, 2d) Gram of [q k] / N per head (k of the head's group) · "q_mean" "k_mean" (H, d) ·
     * "d_mean" "d_sd" (H) of the S-D diagonal · "diag_mean" (H) mean over tokens of scale·q_i·k_i.
     * Asking for what a layer's kind does not have (q and k, the diagonal) is an error. */
    int (*capture)(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                   int32_t max_seqs, sd_hcapture_fn fn, void *user);
    sd_hcalib *(*calibrate)(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                            int32_t max_seqs);
    int (*calib_get)(sd_call *c, sd_hcalib *h, int32_t layer, const char *what, sd_harray *out);
    void (*calib_release)(sd_call *c, sd_hcalib *h);

    /* -- evaluate (1.0): METHOD §9; ctx 0 = position table, stride 0 = ctx. */
    int (*evaluate)(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, int32_t ctx,
                    int32_t stride, sd_hscore *out);
    /* Logits (T, V) of one sequence. */
    int (*logits)(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, sd_harray *out);

    /* -- train (1.0): f32 copies of a model's parameters and their gradient, as two flat buffers
     * with the same slices. batch x tokens is the largest batch to come. */
    sd_htrain *(*train_new)(sd_call *c, sd_hmodel *m, int32_t batch, int32_t tokens);
    size_t (*train_size)(sd_call *c, sd_htrain *t);
    float *(*train_params)(sd_call *c, sd_htrain *t);
    float *(*train_grad)(sd_call *c, sd_htrain *t);
    size_t (*train_n_slices)(sd_call *c, sd_htrain *t);
    int (*train_slice)(sd_call *c, sd_htrain *t, size_t i, sd_hslice *out);
    /* ids, targets (B, T), target -1 = not scored. Loss: mean nats over scored positions; gradient:
     * grad += scale * d(mean loss)/d(params) (train_zero first). */
    int (*train_loss)(sd_call *c, sd_htrain *t, const int32_t *ids, const int32_t *targets,
                      int32_t batch, int32_t tokens, double *loss);
    void (*train_zero)(sd_call *c, sd_htrain *t);
    int (*train_backward)(sd_call *c, sd_htrain *t, const int32_t *ids, const int32_t *targets,
                          int32_t batch, int32_t tokens, double scale, double *loss);
    /* One update; mask (nullable, train_n_slices entries): slices with 0 stay as they are. A
     * non-finite gradient is refused before anything changes. */
    int (*train_step)(sd_call *c, sd_htrain *t, const sd_hadamw *o, const unsigned char *mask);
    int (*train_store)(sd_call *c, sd_htrain *t, sd_hmodel *m); /* parameters → a clone */
    void (*train_release)(sd_call *c, sd_htrain *t);

    /* -- linear algebra (1.0), f64, row-major. C (m, n) = alpha op(A) op(B) + beta C. */
    int (*matmul)(sd_call *c, bool ta, bool tb, size_t m, size_t n, size_t k, double alpha,
                  const double *a, size_t lda, const double *b, size_t ldb, double beta,
                  double *out, size_t ldc);
    /* Symmetric a (n, n): w ascending, v (nullable) eigenvectors as columns. */
    int (*eigh)(sd_call *c, size_t n, const double *a, double *w, double *v);
    int (*eig)(sd_call *c, size_t n, const double *a, double *re, double *im);
    /* a (m, n) = u diag(s) vt, k = min(m, n); u (m, k), vt (k, n) nullable together. */
    int (*svd)(sd_call *c, size_t m, size_t n, const double *a, double *s, double *u, double *vt);
    int (*qr)(sd_call *c, size_t m, size_t n, const double *a, double *q, double *r);
    /* Planes of a skew b (n, n): Bx = σy, By = −σx; sigma (n/2) descending; x, y (n/2, n) rows,
     * nullable together. */
    int (*skew_planes)(sd_call *c, size_t n, const double *b, double *sigma, double *x, double *y);
    /* Routing and filtering factors of the kernel wq wkᵀ (wq, wk: (d1, d), scale already in wq):
     * a, b (d1, planes) with R_k = a bᵀ − b aᵀ; f (d1, f_rank), lambda (f_rank) with F = f diag(λ)
     * fᵀ. Any pair may be NULL. */
    int (*kernel_planes)(sd_call *c, size_t d1, size_t d, const double *wq, const double *wk,
                         size_t planes, double *a, double *b, size_t f_rank, double *f,
                         double *lambda);

    /* -- table (1.0): building one, and reading one. Columns by name; a vector column is not
     * printed but reaches Lua and JSON. Reading an unset cell gives NaN / NULL. */
    sd_htable *(*table_new)(sd_call *c, const char *kind);
    void (*table_release)(sd_call *c, sd_htable *t);
    int (*table_heading)(sd_call *c, sd_htable *t, const char *text);
    int (*table_note)(sd_call *c, sd_htable *t, const char *text);
    int (*table_meta_num)(sd_call *c, sd_htable *t, const char *name, double v);
    int (*table_meta_str)(sd_call *c, sd_htable *t, const char *name, const char *v);
    int (*table_column)(sd_call *c, sd_htable *t, const char *name, int kind, const char *doc,
                        bool wide);
    int (*table_row)(sd_call *c, sd_htable *t); /* index of the new row, or -1 */
    int (*table_set_int)(sd_call *c, sd_htable *t, int32_t row, const char *col, int64_t v);
    int (*table_set_num)(sd_call *c, sd_htable *t, int32_t row, const char *col, double v);
    int (*table_set_str)(sd_call *c, sd_htable *t, int32_t row, const char *col, const char *v);
    int (*table_set_vec)(sd_call *c, sd_htable *t, int32_t row, const char *col, const double *v,
                         size_t n);
    int32_t (*table_n_rows)(sd_call *c, sd_htable *t);
    bool (*table_has_column)(sd_call *c, sd_htable *t, const char *col);
    double (*table_get_num)(sd_call *c, sd_htable *t, int32_t row, const char *col);
    const char *(*table_get_str)(sd_call *c, sd_htable *t, int32_t row, const char *col);
    const double *(*table_get_vec)(sd_call *c, sd_htable *t, int32_t row, const char *col,
                                   size_t *n);

    /* -- random numbers (1.0): the same on every machine. seed(): the session's. */
    uint64_t (*seed)(sd_call *c);
    sd_hrng *(*rng_new)(sd_call *c, uint64_t seed, uint64_t stream);
    void (*rng_release)(sd_call *c, sd_hrng *r);
    double (*rng_uniform)(sd_call *c, sd_hrng *r); /* [0, 1) */
    double (*rng_gauss)(sd_call *c, sd_hrng *r);
    uint64_t (*rng_below)(sd_call *c, sd_hrng *r, uint64_t bound); /* [0, bound), bound >= 1 */

    /* -- progress, cancellation, log (1.0). Poll cancelled at least every 50 ms of work: when it is
     * true the failure is recorded, so `if (host->cancelled(c)) return host->failed(c);` */
    void (*progress)(sd_call *c, const char *what, double done, double total);
    bool (*cancelled)(sd_call *c);
    void (*log)(sd_call *c, bool warning, const char *fmt, ...) SD_PLUGIN_PRINTF(3, 4);
    int32_t (*threads)(sd_call *c); /* threads the session allows, >= 1 */

    /* ==== 1.1 ==== */

    /* -- model: price at a context of `tokens` (0: the position table, at most 1024); layer -1: all
     * of the model, else one attention sublayer. */
    int (*model_price)(sd_call *c, sd_hmodel *m, int32_t layer, int32_t tokens, sd_hprice *out);
    int (*model_rope)(sd_call *c, sd_hmodel *m, sd_hrope *out);
    /* Kind and options of a layer as the host knows the kind: "" or why heads of this layer have no
     * scores to take apart ("no scores (uniform)"); the call's. NULL: failed. */
    const char *(*model_no_scores)(sd_call *c, sd_hmodel *m, int32_t layer);
    /* Titles and file names; only a clone can be named. */
    int (*model_set_name)(sd_call *c, sd_hmodel *m, const char *name);

    /* -- calibrate: calib_get also knows "o2" (H, d_v, d_v), the second moment of the heads'
     * outputs before W_O. */

    /* -- evaluate: ctx, stride as for evaluate; draws are seeded with `seed`. half, seqs 0: min(64,
     * half the position table), 8. */
    int (*compare)(sd_call *c, sd_hmodel *a, sd_hmodel *b, const int32_t *ids, size_t n,
                   int32_t ctx, int32_t stride, uint64_t seed, sd_hdelta *out);
    int (*recall)(sd_call *c, sd_hmodel *m, int32_t half, int32_t seqs, uint64_t seed,
                  sd_hrecall *out);

    /* -- linear algebra. Planes of A = QK' - KQ' that are strongest over all pairs of rows, from
     * the second moment gram (2d, 2d) of [Q K] (calib_get "qk"): sigma (d) descending, over the
     * number of rows; a, b (2d, planes, nullable together) fold: with Q' = [Q K] a, K' = [Q K] b,
     * Q'K'' - K'Q'' is A cut to its `planes` strongest (METHOD 8.2). live (nullable): directions
     * that the rows visit; the others are dropped. */
    int (*whitened_planes)(sd_call *c, size_t d, const double *gram, size_t planes, double *sigma,
                           double *a, double *b, size_t *live);
    /* The product of rank `rank` nearest to QK' over all pairs of rows, from the second moments gq,
     * gk (d, d): (Q a)(K b)'; a, b (d, rank, nullable together); sigma (d) descending: the mean
     * squared error is the sum of the squares left out. */
    int (*whitened_product)(sd_call *c, size_t d, const double *gq, const double *gk, size_t rank,
                            double *sigma, double *a, double *b);

    /* -- train: what train_backward descends becomes, at a scored position, (1 - weight) NLL +
     * weight KL(teacher || student); NULL or 0: the text alone. The losses reported stay the
     * text's. The teacher reads the same ids; its vocabulary must be the same. */
    int (*train_teach)(sd_call *c, sd_htrain *t, sd_hmodel *teacher, double weight);
    /* Trains m (a clone) in place on ids, or with ids NULL on the token file `data`. A non-finite
     * loss stops it by the tensor's name; interrupted or failed, m is not to be used. */
    int (*train_run)(sd_call *c, sd_hmodel *m, const int32_t *ids, size_t n, const char *data,
                     const sd_htrain_run *o);

    /* -- operations: runs another op, its arguments checked as if they had been typed; what is not
     * given has its default. out: BOOL, INT, NUM, STR, MODEL or TABLE; handles and strings are the
     * call's. A model made so has the lineage of its argument: the step recorded is the outer op's
     * (train and resume record their own). */
    bool (*op_known)(sd_call *c, const char *name);
    int (*op_run)(sd_call *c, const char *name, const sd_hvalue *args, size_t n, sd_hvalue *out);

    /* -- files: written whole or not at all. */
    int (*write_file)(sd_call *c, const char *path, const char *data, size_t n);
};

#ifdef __cplusplus
}
#endif

#endif
