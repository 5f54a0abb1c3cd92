/* ablate.h: what a part of a model is worth on a text: the loss with the part taken out, minus the
 * loss as it is (METHOD §7.6, §9).
 *
 * The text is cut into windows of ctx tokens; every target after the first token of the text is
 * scored once. A batch of windows is run once as it is, and the input of every layer in question is
 * kept; each ablation then runs from its own layer on. The result is that of two whole evaluations:
 * a pass that begins at a layer repeats the same arithmetic. */
#ifndef SD_SPECTRAL_ABLATE_H
#define SD_SPECTRAL_ABLATE_H

#include "base/table.h"
#include "nn/model.h"

typedef enum sd_ablate_what {
    SD_ABLATE_HEAD,      /* its output z (to zero, or to its mean over the text) */
    SD_ABLATE_ROUTING,   /* M becomes its symmetric part F */
    SD_ABLATE_FILTERING, /* M becomes its skew part R, its diagonal 0 */
    SD_ABLATE_PLANE,     /* one plane less in R */
    SD_ABLATE_ATTN,      /* what the attention sublayer gives to the residual stream */
    SD_ABLATE_MLP,       /* what the MLP gives */
    SD_ABLATE_LAYER,     /* the block passes its input on */
    SD_ABLATE_WHAT_COUNT
} sd_ablate_what;
#define SD_ABLATE_CHOICES "head|routing|filtering|plane|attn|mlp|layer"
const char *sd_ablate_name(sd_ablate_what w);

typedef struct sd_ablate_target {
    sd_ablate_what what;
    int layer;
    int head; /* −1: all heads of the layer together; not used by attn, mlp, layer */
    /* A plane of the head as a (2d) and b (2d) over U = [q k] (unscaled): R loses
     * f·((Ua)(Ub)ᵀ − (Ub)(Ua)ᵀ), f the scale (S–D) or half of it (sd_whitened_planes). */
    const double *a, *b;
} sd_ablate_target;

typedef struct sd_ablation {
    double delta, lo, hi; /* nats a scored token; 95% interval over windows (NaN: one window) */
    /* Root mean square of the change of the scores over the pairs that the softmax sees; NaN where
     * scores are not what is changed. delta / score_rms: loss per unit of score error. */
    double score_rms;
} sd_ablation;

typedef struct sd_ablate_opts {
    int ctx;       /* tokens a window; 0: the position table, at most 512 */
    int max_seqs;  /* windows at most; 0: all */
    bool mean;     /* head, attn, mlp: their mean over the text instead of zero */
    uint64_t seed; /* of the bootstrap over windows */
} sd_ablate_opts;

/* out (n_targets); *base (nullable): mean loss as it is; *tokens: targets scored. Refuses encoders,
 * layers and heads that are not there, kinds without scores for routing, filtering and plane
 * ("layer 3 (elu1): …"). Hooks the model carries stay in force. */
sd_status sd_ablate(sd_model *m, const int32_t *ids, size_t n, const sd_ablate_target *targets,
                    size_t n_targets, const sd_ablate_opts *SD_NULLABLE o,
                    const sd_run *SD_NULLABLE run, sd_ablation *out, double *SD_NULLABLE base,
                    int64_t *SD_NULLABLE tokens, sd_err *err);

/* One row a head (a layer for attn, mlp, layer): layer, head, delta, delta_lo, delta_hi, score_rms.
 * layers, heads: ranges, NULL = all. Not for planes. A layer whose kind has no scores has a row
 * with a status and no values when routing or filtering is asked for. Meta nll, tokens. */
sd_status sd_ablate_table(sd_model *m, const int32_t *ids, size_t n, sd_ablate_what what,
                          const char *SD_NULLABLE layers, const char *SD_NULLABLE heads,
                          const sd_ablate_opts *SD_NULLABLE o, const sd_run *SD_NULLABLE run,
                          SD_OWN sd_table **out, sd_err *err);

#endif
