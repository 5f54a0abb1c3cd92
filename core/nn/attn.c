#include "nn/attn.h"

#include <string.h>

#define OPS(name_) extern const sd_attn_ops name_##_f32, name_##_f64
OPS(sd_attn_softmax);
OPS(sd_attn_sd);
OPS(sd_attn_elu1);
OPS(sd_attn_bilinear);
OPS(sd_attn_uniform);
OPS(sd_attn_potential);

#define NB SD_ROLE_COUNT
#define PQ \
    { SD_SLOT_Q, SD_ROLE_WQ, SD_ROLE_BQ, false }
#define PK \
    { SD_SLOT_K, SD_ROLE_WK, SD_ROLE_BK, false }
#define PV \
    { SD_SLOT_V, SD_ROLE_WV, SD_ROLE_BV, false }
#define PU \
    { SD_SLOT_U, SD_ROLE_WD, SD_ROLE_BD, false }

static const sd_attn_kind kinds[] = {
    {.name = "softmax",
     .summary = "softmax(c q·k), tiled: stores O(N·d) and one log-sum a row, never N×N",
     .rope = true,
     .part = {PQ, PK, PV},
     .n_part = 3,
     .f32 = &sd_attn_softmax_f32,
     .f64 = &sd_attn_softmax_f64},
    {.name = "sd",
     .summary = "S–D: softmax of skew routing minus a positive diagonal (METHOD 6)",
     .rope = true,
     .part = {PQ, PK, PV, PU},
     .n_part = 4,
     .needs_diag = true,
     .f32 = &sd_attn_sd_f32,
     .f64 = &sd_attn_sd_f64},
    {.name = "elu1",
     .summary = "causal linear attention with features ELU+1, chunked, O(1) state (METHOD 7.2)",
     .causal_only = true,
     .recurrent = true,
     .rope = true,
     .part = {PQ, PK, PV},
     .n_part = 3,
     .f32 = &sd_attn_elu1_f32,
     .f64 = &sd_attn_elu1_f64},
    {.name = "bilinear",
     .summary = "softmax of separate routing and filtering factors: truncated heads (METHOD 7.1)",
     .part = {{SD_SLOT_A, SD_ROLE_RA, NB, true},
              {SD_SLOT_B, SD_ROLE_RB, NB, true},
              {SD_SLOT_F, SD_ROLE_F, NB, true},
              PV},
     .n_part = 4,
     .needs_diag = true,
     .needs_fl = true,
     .f32 = &sd_attn_bilinear_f32,
     .f64 = &sd_attn_bilinear_f64},
    {.name = "uniform",
     .summary = "the mean of all values seen: no scores at all",
     .recurrent = true,
     .part = {PV},
     .n_part = 1,
     .f32 = &sd_attn_uniform_f32,
     .f64 = &sd_attn_uniform_f64},
    {.name = "potential",
     .summary = "per-key bias w_j, and −d_i on the diagonal for S–D: O(N) recurrence (METHOD 7.3)",
     .causal_only = true,
     .recurrent = true,
     .part = {{SD_SLOT_W, SD_ROLE_POT, NB, true}, PV, PU},
     .n_part = 3,
     .f32 = &sd_attn_potential_f32,
     .f64 = &sd_attn_potential_f64},
};

const sd_attn_kind *sd_attn_at(size_t i) {
    return i < sizeof kinds / sizeof *kinds ? &kinds[i] : NULL;
}

const sd_attn_kind *sd_attn_find(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}
