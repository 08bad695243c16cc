/* Linear layers of a decoder step in bfloat16 with AMX, sums in float32.
 *
 * A row is multiplied in the same order whatever rows stand beside it and however many threads run: its sums
 * are one matrix tile's over the inputs from first to last. Hence the result of a row is the same bit for
 * bit in any step, which is what lets a reused prefix give the very score that a computed one gives.
 *
 * What a layer does before and after a product is done where its rows are in the cache anyway: the sum of
 * the residual stream and its norm on the way in, bias or gate on the way out; a feed-forward part is one
 * call. With many rows each thread takes blocks of them through everything; with few, threads share the
 * outputs, since then reading the weights is what takes the time; coded.c does that where weights are coded.
 *
 * Judge: kernels.reference.
 */
#include "feed_forward8.h"
#include "linear.h"
#include "products.h"
#include "rows.h"

#if defined(__AMX_BF16__)
#include <omp.h>

#define DEPTH 24        /* steps along the inputs for which a panel of outputs stays in the first-level cache */
#define BLOCK 256       /* rows that a thread takes through a layer at once, when there are many */
#define FEW 128         /* up to so many rows are one block, whose outputs the threads share */

/* ---- packing -------------------------------------------------------------------------------------------- */

/* weight [out, in] in the layout of weights.h. */
void pack_weight(const bf16 *weight, bf16 *packed, int64_t out, int64_t in, int64_t gated) {
    const panel_layout l = layout_of(out, in, gated);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < l.panels; p++)
        for (int64_t s = 0; s < l.steps; s++)
            for (int64_t tile = 0; tile < 2; tile++)
                for (int64_t n = 0; n < 16; n++) {
                    const int64_t row = row_of(&l, p, tile, n);
                    bf16 *to = packed + (p * l.steps + s) * STEP + tile * TILE + n * 2;
                    for (int64_t k = 0; k < 32; k++)
                        to[k / 2 * 32 + k % 2] = row >= 0 && s * 32 + k < in ? weight[row * in + s * 32 + k] : 0;
                }
}

/* ---- results -------------------------------------------------------------------------------------------- */

/* Row `row` of a panel, 32 sums, to where it belongs. */
static inline void write_row(const target *t, const float *sums, int64_t row) {
    __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
    if (t->gate != GATE_NONE) {
        __m256i opened = (__m256i)_mm512_cvtneps_pbh(open_gate(low, high, t->gate));
        _mm256_storeu_si256((__m256i *)(t->to + row * 32 + t->column % 32), opened);
        return;
    }
    __mmask32 real = first_of(t->width);
    if (t->bias) {
        low = _mm512_add_ps(low, _mm512_maskz_loadu_ps((__mmask16)real, t->bias + t->column));
        high = _mm512_add_ps(high, _mm512_maskz_loadu_ps((__mmask16)(real >> 16), t->bias + t->column + 16));
    }
    _mm512_mask_storeu_epi16(t->to + row * t->stride + t->column, real, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* A panel of up to 32 rows whose sums are complete but not yet written. */
typedef struct {
    target target;
    const float *sums;
    int64_t next, count; /* rows [0, count) of the target, the first `next` of them done */
} pending;

static inline void write_some(pending *p, int64_t rows) {
    for (int64_t end = least(p->next + rows, p->count); p->next < end; p->next++)
        write_row(&p->target, p->sums + p->next * 32, p->next);
}

/* ---- product -------------------------------------------------------------------------------------------- */

/* sums [32, 32] of one panel for 32 rows along `steps` steps, on top of what is there with `resume`. Meanwhile, for the
 * vector units are idle otherwise: rows of the panel before are written, and what comes next is brought nearer. */
static inline void multiply(const bf16 *a, const bf16 *b, int64_t steps, float *sums, int resume, int both, pending *before,
                            const char *ahead, int64_t lines, const bf16 *soon, int64_t stride) {
    const int64_t some = (32 + steps - 1) / steps;
    begin_sums(sums, resume);
    for (int64_t s = 0; s < steps; s++, a += STEP, b += STEP) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (int64_t i = 0; i < lines; i++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
        for (int64_t i = 0; i < some; i++, soon += stride) __builtin_prefetch(soon, 1);
        write_some(before, some);
    }
    end_sums(sums, both);
}

/* Panels [from, to) of `weight` for the first `rows` rows of a packed block; `columns` are all that there are. */
static void run_panels(const bf16 *a, int64_t rows, int64_t steps, const bf16 *weight, int64_t from, int64_t to, target t,
                       int64_t columns, float *scratch) {
    const int64_t groups = (rows + 31) / 32, depth = least(steps, DEPTH);
    /* lines of what is multiplied next that each step of a group brings nearer */
    const int64_t lines = (32 + groups - 1) / groups, stride = t.gate ? 32 : t.stride;
    pending last = {.next = 0, .count = 0};
    int64_t turn = 0;
    for (int64_t p = from; p < to; p++) {
        target here = panel_of(t, p, columns);
        for (int64_t s = 0; s < steps; s += depth) {
            const int64_t now = least(depth, steps - s);
            const bf16 *b = weight + (p * steps + s) * STEP;
            for (int64_t g = 0; g < groups; g++) {
                float *sums = scratch + (steps > depth ? g : turn++ % 2) * 1024;
                const char *ahead = (const char *)(b + now * STEP) + g * lines * 64 * now;
                /* where the 32 rows of this group begin */
                here.to = t.gate ? t.to + (g * t.steps + here.column / 32) * STEP : t.to + g * 32 * t.stride;
                multiply(a + (g * steps + s) * STEP, b, now, sums, s > 0, rows - g * 32 > 16, &last, ahead, lines,
                         here.to + (t.gate ? 0 : here.column), stride);
                write_some(&last, 32);
                if (s + now == steps) last = (pending){.target = here, .sums = sums, .count = least(32, rows - g * 32)};
            }
        }
    }
    write_some(&last, 32);
}

/* ---- layers --------------------------------------------------------------------------------------------- */

static _Thread_local kept_memory kept, kept_weights;

/* Panels [from, to) of the first or only product, of rows that are packed in `block` and are rows `row` and on of the step. */
static void first_product(const layer *l, const sizes *z, const bf16 *block, bf16 *inner, int64_t row, int64_t rows,
                          int64_t from, int64_t to, float *sums) {
    target t = {.gate = l->gate, .bias = l->bias};
    if (l->gate) t.to = inner, t.steps = z->inner_steps;
    else t.to = l->out + row * l->out_width, t.stride = l->out_width;
    run_panels(block, rows, z->in_steps, (const bf16 *)l->first, from, to, t, l->gate ? z->inner_steps * 32 : l->out_width,
               sums);
}

static void second_product(const layer *l, const sizes *z, const bf16 *inner, int64_t row, int64_t rows, int64_t from,
                           int64_t to, float *sums) {
    target t = {.to = l->out + row * l->out_width, .stride = l->out_width};
    run_panels(inner, rows, z->inner_steps, (const bf16 *)l->second, from, to, t, l->out_width, sums);
}

/* Rows [lo, lo + rows) of a layer, in memory of one thread. */
static void run_block(const layer *l, const sizes *z, char *memory, int64_t lo, int64_t rows) {
    if (l->first_coding == CODING_INT8) {
        run_block8(l, memory, lo, rows);
        return;
    }
    bf16 *block = (bf16 *)memory, *inner = (bf16 *)(memory + z->block_bytes);
    float *sums = (float *)(memory + z->block_bytes + z->inner_bytes);
    for (int64_t row = 0; row < rows; row++) pack_row(l, block, row, lo + row);
    first_product(l, z, block, inner, lo, rows, 0, z->first_panels, sums);
    if (l->gate) second_product(l, z, inner, lo, rows, 0, z->second_panels, sums);
}

/* The part of a thread in unpacking `count` steps to `to`; gives where all of them are once every thread is done. */
static const char *unpack_share(const char *from, int64_t coding, int64_t count, bf16 **to) {
    if (!is_unpacked(coding)) return from;
    bf16 *steps = *to;
    *to += count * STEP;
#pragma omp for schedule(static)
    for (int64_t s = 0; s < count; s++) {
        bf16 *step = steps + s * STEP;
        unpack_step(from + s * step_bytes(coding), coding, step);
        for (int tile = 0; tile < 2; tile++) turn_tile(step + tile * TILE, step + tile * TILE);
    }
    return (const char *)steps;
}

/* Every thread takes blocks of rows through all layers of a chain, so that what one gives the next finds in the cache. Coded
 * weights are unpacked before, once for all rows. */
static int chain_by_rows(const layer *chain, int64_t count, int64_t threads) {
    const int64_t all = chain->rows, rounds = (all + threads * BLOCK - 1) / (threads * BLOCK);
    const int64_t height = round_up((all + threads * rounds - 1) / (threads * rounds), 32);
    int64_t own_bytes = 0, coded_steps = 0;
    sizes z[CHAIN];
    for (int64_t i = 0; i < count; i++) {
        const layer *l = chain + i;
        z[i] = sizes_of(l, height);
        own_bytes = most(own_bytes, l->first_coding == CODING_INT8 ? block_bytes8(l, height)
                                                                   : z[i].block_bytes + z[i].inner_bytes + z[i].sums_bytes);
        if (is_unpacked(l->first_coding)) coded_steps += z[i].first_panels * z[i].in_steps;
        if (is_unpacked(l->second_coding)) coded_steps += z[i].second_panels * z[i].inner_steps;
    }
    bf16 *weights = NULL;
    if (coded_steps && !(weights = (bf16 *)take(&kept_weights, coded_steps * STEP * 2))) return 1;
    int failed = 0;
#pragma omp parallel
    {
        layer plain[CHAIN];
        bf16 *next = weights;
        for (int64_t i = 0; i < count; i++) {
            const layer *l = chain + i;
            plain[i] = *l;
            plain[i].first = unpack_share(l->first, l->first_coding, z[i].first_panels * z[i].in_steps, &next);
            plain[i].second = unpack_share(l->second, l->second_coding, z[i].second_panels * z[i].inner_steps, &next);
        }
        char *memory = take(&kept, own_bytes);
        if (!memory)
#pragma omp atomic write
            failed = 1;
        const tile_shapes before = enter_tiles();
#pragma omp for schedule(dynamic, 1)
        for (int64_t lo = 0; lo < all; lo += height)
            for (int64_t i = 0; memory && i < count; i++) run_block(plain + i, z + i, memory, lo, least(height, all - lo));
        leave_tiles(&before);
    }
    return failed;
}

/* All rows are one block; threads share the panels. */
static int layer_by_panels(const layer *l, int64_t threads) {
    const sizes z = sizes_of(l, l->rows);
    const int64_t shared = z.block_bytes + z.inner_bytes, own_bytes = z.block_bytes + z.sums_bytes;
    char *memory = take(&kept, shared + threads * own_bytes);
    if (!memory) return 1;
    bf16 *inner = (bf16 *)(memory + z.block_bytes);
    const int64_t first_chunk = chunk_of(z.first_panels, threads), second_chunk = chunk_of(z.second_panels, threads);
#pragma omp parallel
    {
        char *own = memory + shared + omp_get_thread_num() * own_bytes;
        bf16 *block = (bf16 *)(packs_alone(l) ? own : memory);
        float *sums = (float *)(own + z.block_bytes);
        const layer mine = with_copy(*l, omp_get_thread_num());
        const tile_shapes before = enter_tiles();
        if (packs_alone(l))
            for (int64_t row = 0; row < l->rows; row++) pack_row(&mine, block, row, row);
        else
#pragma omp for schedule(static)
            for (int64_t row = 0; row < l->rows; row++) pack_row(l, block, row, row);
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < z.first_panels; p += first_chunk)
            first_product(l, &z, block, inner, 0, l->rows, p, least(p + first_chunk, z.first_panels), sums);
        if (l->gate)
#pragma omp for schedule(dynamic, 1)
            for (int64_t p = 0; p < z.second_panels; p += second_chunk)
                second_product(l, &z, inner, 0, l->rows, p, least(p + second_chunk, z.second_panels), sums);
        leave_tiles(&before);
    }
    return 0;
}

/* Whether the functions of this source can be used here. */
int tiles_allowed(void) { return ask_for_tiles(); }

int takes_copies(const layer *l, int64_t rows) { return rows <= 32 && l->first_coding != CODING_INT8; }

int run_layer(const layer *l) {
    const int64_t threads = omp_get_max_threads();
    if (l->rows == 0) return 0;
    if (l->rows > FEW) return chain_by_rows(l, 1, threads);
    if (l->first_coding == CODING_INT8) return run_panels8(l, threads);
    return has_codes(l) ? run_coded_chain(l, 1, threads) : layer_by_panels(l, threads);
}

int run_chain(const layer *chain, int64_t count) {
    int coded = 1;
    if (chain->rows > FEW) return chain_by_rows(chain, count, omp_get_max_threads());
    for (int64_t i = 0; i < count; i++) coded &= has_codes(chain + i);
    if (coded && chain->rows) return run_coded_chain(chain, count, omp_get_max_threads());
    for (int64_t i = 0; i < count; i++)
        if (run_layer(chain + i)) return 1;
    return 0;
}

#endif
