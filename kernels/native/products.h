/* What linear.c and coded.c share: where the results of a product go, and the sizes of a layer. */
#pragma once
#include "linear.h"
#include "weights.h"

#if defined(__AMX_BF16__)
/* What a panel becomes: columns [column, column + width) of rows that are `stride` elements apart; with a gate, 16 columns of
 * the packed input of another product, of `steps` steps. */
typedef struct {
    bf16 *to;
    int64_t stride, steps, column, width, gate;
    const float *bias;
} target;

/* What panel `panel` becomes, of a product that comes to `columns` columns. */
static inline target panel_of(target t, int64_t panel, int64_t columns) {
    const int64_t width = t.gate ? 16 : 32;
    t.column = panel * width;
    t.width = least(width, columns - t.column);
    return t;
}

/* Whether a weight of the layer becomes bfloat16 on the way into a product. */
static inline int has_codes(const layer *l) { return is_unpacked(l->first_coding) || is_unpacked(l->second_coding); }

typedef struct {
    int64_t in_steps, inner_steps, first_panels, second_panels; /* of a feed-forward part; else only the firsts */
    int64_t block_bytes, inner_bytes, sums_bytes;               /* of one block of rows */
} sizes;

static inline sizes sizes_of(const layer *l, int64_t rows) {
    const int64_t padded = round_up(rows, 32);
    sizes z = {.in_steps = (l->in + 31) / 32, .inner_steps = (l->inner + 31) / 32};
    z.first_panels = l->gate ? 2 * z.inner_steps : (l->out_width + 31) / 32;
    z.second_panels = l->gate ? (l->out_width + 31) / 32 : 0;
    z.block_bytes = padded * z.in_steps * 64;
    z.inner_bytes = l->gate ? padded * z.inner_steps * 64 : 0;
    z.sums_bytes = most(padded, 64) * 128;
    return z;
}
#endif
