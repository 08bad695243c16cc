/* A feed-forward part in whole numbers of 8 bits with AMX.
 *
 * Weights are rounded to 127 steps on either side of zero, output by output, and so are the rows that they multiply. Before
 * that both are turned; see rounded.h.
 *
 * Sums of products are exact, turning and rounding a row look at nothing else, so the result of a row is the same bit for bit
 * in any step, as it is in linear.c. Work is shared among threads as there, too.
 *
 * Judge: kernels.reference.
 */
#include "feed_forward8.h"
#include "rounded.h"
#include "rows.h"

#if defined(__AMX_BF16__)
#include <omp.h>

#define DEPTH 24   /* steps along the inputs for which a panel stays in the first-level cache */

/* ---- weights -------------------------------------------------------------------------------------------- */

/* weight [out, in] as panels; of a gated one see weights.h. */
void pack_weight8(const bf16 *weight, char *packed, int64_t out, int64_t in, int64_t gated) {
    const panel_layout l = layout_of(out, in, gated);
    const int64_t steps = steps8_of(in);
    memset(packed, 0, l.panels * panel_bytes(steps));
#pragma omp parallel for schedule(static)
    for (int64_t output = 0; output < l.panels * 32; output++) {
        const int64_t tile = output % 32 / 16, n = output % 16, row = row_of(&l, output / 32, tile, n);
        char *panel = packed + output / 32 * panel_bytes(steps);
        float turned[64], largest = 1e-30f, scale;
        if (row < 0) continue;
        for (int64_t s = 0; s < steps; s++) {
            turn_weight(weight + row * in, in, s, turned);
            for (int64_t k = 0; k < 64; k++) largest = fmaxf(largest, fabsf(turned[k]));
        }
        for (int64_t s = 0; s < steps; s++) {
            char *to = panel + s * STEP8 + tile * STEP8 / 2 + n * 4;
            turn_weight(weight + row * in, in, s, turned);
            for (int64_t k = 0; k < 64; k++) to[k / 4 * 64 + k % 4] = (char)lrintf(turned[k] * (127.0f / largest));
        }
        scale = largest / 127.0f / 64.0f; /* of the row, with both factors of 1/8 */
        memcpy(panel + steps * STEP8 + (tile * 16 + n) * 4, &scale, 4);
    }
}

/* ---- product -------------------------------------------------------------------------------------------- */

/* What a panel becomes: columns [column, column + width) of rows that are `stride` elements apart; with a gate, 16 columns of
 * a packed block of `steps` steps. */
typedef struct {
    bf16 *to;
    int64_t stride, steps, column, width, gate;
    const float *row_scales, *scales;
} target;

/* Up to 32 rows of a panel whose sums are complete but not yet written. */
typedef struct {
    target target;
    const int32_t *sums;
    int64_t next, count; /* rows [0, count) of the target, the first `next` of them done */
} pending;

/* 1 / (1 + exp(-x)); relative error below 2^-13, little beside that of 8 bits. A polynomial gives the exponential between two
 * powers of two. */
static inline __m512 logistic(__m512 x) {
    const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)), f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF);
    __m512 p = _mm512_set1_ps(1.3534167e-2f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.2011464e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4144276e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9300383e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0000026f));
    return _mm512_rcp14_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p, t)));
}

static inline __m512 open_gate8(__m512 gate, __m512 up, int64_t kind) {
    return _mm512_mul_ps(_mm512_mul_ps(gate, up), logistic(before_logistic(gate, kind)));
}

static inline __m512 scaled(const int32_t *sums, __m512 scales, __m512 row_scale) {
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums)), scales), row_scale);
}

#define AT_ONCE 4 /* rows that are written in a step */

/* The next rows, AT_ONCE at most. */
static inline void write_some(pending *p) {
    const target t = p->target;
    const __m512 low_scales = _mm512_loadu_ps(t.scales), high_scales = _mm512_loadu_ps(t.scales + 16);
    const __mmask32 real = first_of(t.width);
    const int64_t first = p->next;
    const int32_t *sums = p->sums + first * 32;
    bf16 *to = t.gate ? t.to + first * 32 + t.column % 32 : t.to + first * t.stride + t.column;
    p->next += AT_ONCE;
#pragma GCC unroll 4
    for (int64_t r = 0; r < AT_ONCE; r++, sums += 32, to += t.stride) {
        const __m512 row_scale = _mm512_set1_ps(t.row_scales[first + r]);
        const __m512 low = scaled(sums, low_scales, row_scale), high = scaled(sums + 16, high_scales, row_scale);
        if (first + r >= p->count) break;
        if (t.gate) _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(open_gate8(low, high, t.gate)));
        else _mm512_mask_storeu_epi16(to, real, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* sums [32, 32] of one panel for 32 rows along `steps` steps, on top of what is there with `resume`. Meanwhile, for the
 * vector units are idle otherwise, rows of the panel before are written, and what comes next is brought nearer. */
static inline void multiply(const char *a, const char *b, int64_t steps, int32_t *sums, int resume, int both, pending *before,
                            const char *ahead, int64_t lines, const bf16 *soon, int64_t stride) {
    begin_sums(sums, resume);
    for (int64_t s = 0; s < steps; s++, a += STEP8, b += STEP8) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, b + STEP8 / 2, 64);
        _tile_dpbssd(1, 4, 7);
        if (both) {
            _tile_loadd(5, a + STEP8 / 2, 64);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        for (int64_t i = 0; i < lines; i++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
        for (int64_t i = 0; i < AT_ONCE; i++, soon += stride) __builtin_prefetch(soon, 1);
        if (before->next < before->count) write_some(before);
    }
    end_sums(sums, both);
}

/* Panels [from, to) of `weight` for the first `rows` of some rounded rows; `columns` are all that there are. */
static void run_panels(rounded_rows a, int64_t rows, int64_t steps, const char *weight, int64_t from, int64_t to, target t,
                       int64_t columns, int32_t *scratch) {
    const int64_t groups = (rows + 31) / 32, width = t.gate ? 16 : 32, depth = least(steps, DEPTH);
    const int64_t lines = (32 + groups - 1) / groups, stride = t.gate ? 32 : t.stride;
    pending last = {.next = 0, .count = 0};
    int64_t turn = 0;
    for (int64_t p = from; p < to; p++) {
        const char *panel = weight + p * panel_bytes(steps);
        target here = t;
        here.column = p * width;
        here.width = least(width, columns - here.column);
        here.scales = (const float *)(panel + steps * STEP8);
        for (int64_t s = 0; s < steps; s += depth) {
            const int64_t now = least(depth, steps - s);
            const char *b = panel + s * STEP8;
            for (int64_t g = 0; g < groups; g++) {
                int32_t *sums = scratch + (steps > depth ? g : turn++ % 2) * 1024;
                here.to = t.gate ? t.to + (g * t.steps + here.column / 32) * STEP : t.to + g * 32 * t.stride;
                here.row_scales = a.scales + g * 32;
                multiply(a.codes + (g * steps + s) * STEP8, b, now, sums, s > 0, rows - g * 32 > 16, &last,
                         b + now * STEP8 + g * lines * 64 * now, lines, here.to + (t.gate ? 0 : here.column), stride);
                while (last.next < last.count) write_some(&last);
                if (s + now == steps) last = (pending){.target = here, .sums = sums, .count = least(32, rows - g * 32)};
            }
        }
    }
    while (last.next < last.count) write_some(&last);
}

/* ---- the whole part ------------------------------------------------------------------------------------- */

static _Thread_local kept_memory kept;

/* Of one block of rows: numbers of panels, and bytes of what stands between the products. */
typedef struct {
    int64_t in_steps, inner_steps, first_panels, second_panels;
    int64_t block_bytes, inner_bytes, codes_bytes, scales_bytes; /* of all threads that take it */
    int64_t sums_bytes, turned_bytes;                            /* of each */
} sizes;

static sizes sizes_of(const layer *l, int64_t rows) {
    const int64_t padded = round_up(rows, 32), longest = most(steps8_of(l->in), steps8_of(l->inner));
    sizes z = {.in_steps = (l->in + 31) / 32, .inner_steps = (l->inner + 31) / 32};
    z.first_panels = 2 * z.inner_steps;
    z.second_panels = (l->out_width + 31) / 32;
    z.block_bytes = padded * z.in_steps * 64;
    z.inner_bytes = padded * z.inner_steps * 64;
    z.codes_bytes = padded * longest * 64;
    z.scales_bytes = round_up(padded * 4, 64);
    z.sums_bytes = most(padded, 64) * 128;
    z.turned_bytes = 16 * (longest * 64 + 16) * 4;
    return z;
}

/* Where things are in one stretch of memory; `own` is what thread `number` has to itself. */
typedef struct {
    bf16 *block, *inner;
    rounded_rows rounded;
    int32_t *sums;
    float *turned;
} workspace;

static int64_t shared_bytes(const sizes *z) { return z->block_bytes + z->inner_bytes + z->codes_bytes + z->scales_bytes; }

static int64_t own_bytes(const sizes *z) { return z->sums_bytes + z->turned_bytes; }

static workspace lay_out(const sizes *z, char *memory, int64_t number) {
    char *codes = memory + z->block_bytes + z->inner_bytes, *own = memory + shared_bytes(z) + number * own_bytes(z);
    return (workspace){(bf16 *)memory, (bf16 *)(memory + z->block_bytes), {codes, (float *)(codes + z->codes_bytes)},
                       (int32_t *)own, (float *)(own + z->sums_bytes)};
}

static void first_product(const layer *l, const sizes *z, const workspace *w, int64_t rows, int64_t from, int64_t to) {
    const target t = {.to = w->inner, .stride = 32, .steps = z->inner_steps, .gate = l->gate};
    run_panels(w->rounded, rows, steps8_of(l->in), l->first, from, to, t, z->inner_steps * 32, w->sums);
}

static void second_product(const layer *l, const sizes *z, const workspace *w, int64_t row, int64_t rows, int64_t from,
                           int64_t to) {
    const target t = {.to = l->out + row * l->out_width, .stride = l->out_width};
    run_panels(w->rounded, rows, steps8_of(l->inner), l->second, from, to, t, l->out_width, w->sums);
}

int64_t block_bytes8(const layer *l, int64_t rows) {
    const sizes z = sizes_of(l, rows);
    return shared_bytes(&z) + own_bytes(&z);
}

void run_block8(const layer *l, char *memory, int64_t low, int64_t rows) {
    const sizes z = sizes_of(l, rows);
    const workspace w = lay_out(&z, memory, 0);
    for (int64_t row = 0; row < rows; row++) pack_row(l, w.block, row, low + row);
    load_turns();
    for (int64_t row = 0; row < rows; row += 16) round_rows(w.block, z.in_steps, w.rounded, row, w.turned);
    first_product(l, &z, &w, rows, 0, z.first_panels);
    load_turns();
    for (int64_t row = 0; row < rows; row += 16) round_rows(w.inner, z.inner_steps, w.rounded, row, w.turned);
    second_product(l, &z, &w, low, rows, 0, z.second_panels);
}

int run_panels8(const layer *l, int64_t threads) {
    const sizes z = sizes_of(l, l->rows);
    char *memory = take(&kept, shared_bytes(&z) + threads * own_bytes(&z));
    if (!memory) return 1;
    const int64_t first_chunk = chunk_of(z.first_panels, threads), second_chunk = chunk_of(z.second_panels, threads);
#pragma omp parallel
    {
        const workspace w = lay_out(&z, memory, omp_get_thread_num());
        const tile_shapes before = enter_tiles();
#pragma omp for schedule(static)
        for (int64_t row = 0; row < l->rows; row++) pack_row(l, w.block, row, row);
        load_turns();
#pragma omp for schedule(static)
        for (int64_t row = 0; row < l->rows; row += 16) round_rows(w.block, z.in_steps, w.rounded, row, w.turned);
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < z.first_panels; p += first_chunk)
            first_product(l, &z, &w, l->rows, p, least(p + first_chunk, z.first_panels));
        load_turns();
#pragma omp for schedule(static)
        for (int64_t row = 0; row < l->rows; row += 16) round_rows(w.inner, z.inner_steps, w.rounded, row, w.turned);
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < z.second_panels; p += second_chunk)
            second_product(l, &z, &w, 0, l->rows, p, least(p + second_chunk, z.second_panels));
        leave_tiles(&before);
    }
    return 0;
}

#endif
