/* Linear layers of few rows whose weights are coded (weights.h), in bfloat16 with AMX.
 *
 * Reading the weights and unpacking them is what takes the time here. So a weight is the left factor of a product and
 * the rows of the step are the right one: in a left factor the 32 inputs of an output, which have a scale and an offset
 * of their own, are one vector, and its no more than 16 levels are computed once and looked up. Sums come out with a row
 * for each output, and are turned on their way out. A weight in bfloat16 beside a coded one is turned as it comes.
 *
 * The product of a weight and an input is the same number from either side, and a sum runs over the inputs in the same
 * order. So the bits are those that linear.c gives.
 *
 * Judge: kernels.reference.
 */
#include "linear.h"
#include "products.h"
#include "rows.h"

#if defined(__AMX_BF16__)
#include <omp.h>

#define DEPTH 24 /* steps that are unpacked at once where more than one group of rows reads them */
#define RING 4   /* steps that are kept unpacked where one group does */
#define FAR 6    /* steps that the next one is brought nearer before its turn */
#define AHEAD 2  /* a tile that was written just now cannot be loaded yet, so steps are unpacked before their turn */

/* A weight that is scale * code + offset in the layout of weights.h: codes [out, in], one byte each; scales and offsets
 * [out, in / 32]. */
void pack_codes(const uint8_t *codes, const float *scales, const float *offsets, char *packed, int64_t out, int64_t in,
                int64_t gated, int64_t coding) {
    const panel_layout l = layout_of(out, in, gated);
    memset(packed, 0, l.panels * l.steps * step_bytes(coding));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < l.panels; p++)
        for (int64_t s = 0; s < l.steps; s++)
            for (int64_t tile = 0; tile < 2; tile++)
                for (int64_t n = 0; n < 16; n++) {
                    const int64_t row = row_of(&l, p, tile, n), block = row * l.steps + s;
                    char *to = packed + (p * l.steps + s) * step_bytes(coding) + tile * tile_bytes(coding);
                    if (row < 0) continue;
                    put_codes(to, codes + row * in + s * 32, n, coding);
                    put_number(to + code_bytes(coding), scales[block], n, coding);
                    put_number(to + code_bytes(coding) + (has_half_scales(coding) ? 32 : 64), offsets[block], n, coding);
                }
}

/* ---- rows of the step -------------------------------------------------------------------------------------- */

/* Rows [lo, lo + 16) of the step, as far as there are so many, as right factors. */
static void pack_tile(const layer *l, const sizes *z, bf16 *block, int64_t lo) {
    for (int64_t row = lo; row < least(lo + 16, l->rows); row++) pack_row(l, block, row, row);
    for (int64_t s = 0; s < z->in_steps; s++) {
        bf16 *tile = packed_at(block, z->in_steps, lo, s);
        turn_tile(tile, tile);
    }
}

/* What two outputs are for 16 rows as pairs in bfloat16. */
static inline __m512i pair_up(__m512 even, __m512 odd) {
    const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                             20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(in_turn, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* sums [32 outputs, 32 rows] of a panel, of which there are `rows` rows, to `to`, where the first of these rows begins. */
static void write_panel(const target *t, const float *sums, bf16 *to, int64_t rows) {
    const __mmask32 real = first_of(t->width);
    for (int64_t lo = 0; lo < rows; lo += 16, sums += 16) {
        __m512i pairs[16];
        if (t->gate != GATE_NONE) {
            for (int64_t n = 0; n < 16; n += 2) {
                __m512 even = open_gate(_mm512_loadu_ps(sums + n * 32), _mm512_loadu_ps(sums + (n + 16) * 32), t->gate);
                __m512 odd = open_gate(_mm512_loadu_ps(sums + (n + 1) * 32), _mm512_loadu_ps(sums + (n + 17) * 32), t->gate);
                _mm512_storeu_si512(to + lo / 16 * TILE + (t->column % 32 + n) * 16, pair_up(even, odd));
            }
            continue;
        }
        for (int64_t n = 0; n < 32; n += 2) {
            __m512 even = _mm512_loadu_ps(sums + n * 32), odd = _mm512_loadu_ps(sums + (n + 1) * 32);
            if (t->bias && n < t->width) {
                even = _mm512_add_ps(even, _mm512_set1_ps(t->bias[t->column + n]));
                odd = _mm512_add_ps(odd, _mm512_set1_ps(n + 1 < t->width ? t->bias[t->column + n + 1] : 0.0f));
            }
            pairs[n / 2] = pair_up(even, odd);
        }
        transpose(pairs);
        for (int64_t r = lo; r < least(lo + 16, rows); r++)
            _mm512_mask_storeu_epi16(to + r * t->stride + t->column, real, pairs[r - lo]);
    }
}

/* ---- product -------------------------------------------------------------------------------------------- */

/* Steps that lie one after the other and are unpacked in turn, each shortly before it is multiplied. */
typedef struct {
    const char *from;
    int64_t coding, count, done; /* steps there are, and steps unpacked */
    bf16 *ring;                  /* step i is at i % RING until step i + RING comes there */
    step_numbers numbers[2];     /* of the next step, at its number % 2, and of the one before */
} stream;

ALWAYS_INLINE void open_stream(stream *t, const char *from, int64_t coding, int64_t count, bf16 *ring) {
    t->from = from, t->coding = coding, t->count = count, t->done = 0, t->ring = ring;
    read_numbers(from, coding, &t->numbers[0]);
}

/* Parts [lo, hi) of the next step, if there is one. */
ALWAYS_INLINE void unpack(stream *t, int64_t lo, int64_t hi) {
    if (t->done == t->count) return;
    const char *from = t->from + t->done * step_bytes(t->coding);
    for (; lo < hi; lo++) unpack_left(from, t->coding, &t->numbers[t->done % 2], lo, t->ring + t->done % RING * STEP);
}

/* The next step is whole. What comes a while after it is brought nearer. */
ALWAYS_INLINE void pass_step(stream *t) {
    const int64_t size = step_bytes(t->coding);
    if (t->done == t->count) return;
    t->done++;
    if (t->done < t->count) read_numbers(t->from + t->done * size, t->coding, &t->numbers[t->done % 2]);
    for (int64_t line = 0; line < size; line += 64) _mm_prefetch(t->from + (t->done + FAR) * size + line, _MM_HINT_T1);
}

/* sums [32, 32] of a panel whose first step is number `first` of the stream. The steps after are unpacked meanwhile, in parts
 * between the operations on tiles: a processor that runs two threads looks ahead no further than a few of them. */
ALWAYS_INLINE void multiply_stream(stream *t, int64_t first, const bf16 *right, int64_t steps, float *sums, int both) {
    begin_sums(sums, 0);
    for (int64_t s = first; s < first + steps; s++, right += STEP) {
        const bf16 *left = t->ring + s % RING * STEP;
        unpack(t, 0, 2);
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        unpack(t, 2, 3);
        _tile_dpbf16ps(0, 4, 6);
        unpack(t, 3, 4);
        _tile_loadd(5, left + TILE, 64);
        unpack(t, 4, 5);
        _tile_dpbf16ps(2, 5, 6);
        unpack(t, 5, 6);
        if (both) _tile_loadd(7, right + TILE, 64);
        unpack(t, 6, 7);
        if (both) _tile_dpbf16ps(1, 4, 7);
        unpack(t, 7, 8);
        if (both) _tile_dpbf16ps(3, 5, 7);
        pass_step(t);
        settle();
    }
    end_sums(sums, 1);
}

/* The same for steps that are unpacked already, on top of what is there with `resume`. */
static inline void multiply(const bf16 *left, const bf16 *right, int64_t steps, float *sums, int resume, int both) {
    begin_sums(sums, resume);
    for (int64_t s = 0; s < steps; s++, left += STEP, right += STEP) {
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, left + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (both) {
            _tile_loadd(7, right + TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    end_sums(sums, 1);
}

/* A product with the rows of a step. */
typedef struct {
    const char *weight;
    int64_t coding, steps, rows, columns; /* columns: outputs, or of a gated product what they come to */
    const bf16 *block;                    /* the rows as right factors */
    target to;                            /* of row 0; its column is not set */
} product;

/* Panels [from, to) of a product with no more than 32 rows. */
ALWAYS_INLINE void run_stream(const product *p, int64_t coding, int64_t from, int64_t to, float *sums, bf16 *unpacked) {
    stream steps;
    open_stream(&steps, p->weight + from * p->steps * step_bytes(coding), coding, (to - from) * p->steps, unpacked);
    for (int i = 0; i < AHEAD; i++) unpack(&steps, 0, PARTS), pass_step(&steps);
    for (int64_t panel = from; panel < to; panel++) {
        const target here = panel_of(p->to, panel, p->columns);
        multiply_stream(&steps, (panel - from) * p->steps, p->block, p->steps, sums, p->rows > 16);
        write_panel(&here, sums, here.to + (here.gate ? here.column / 32 * STEP : 0), p->rows);
    }
}

/* The same for more rows: steps are unpacked once for all groups of 32. */
static void run_groups(const product *p, int64_t from, int64_t to, float *sums, bf16 *unpacked) {
    const int64_t depth = least(p->steps, DEPTH), step = step_bytes(p->coding);
    for (int64_t panel = from; panel < to; panel++) {
        const target here = panel_of(p->to, panel, p->columns);
        for (int64_t s = 0; s < p->steps; s += depth) {
            const int64_t now = least(depth, p->steps - s);
            for (int64_t i = 0; i < now; i++)
                unpack_step(p->weight + (panel * p->steps + s + i) * step, p->coding, unpacked + i * STEP);
            for (int64_t row = 0, g = 0; row < p->rows; row += 32, g++)
                multiply(unpacked, p->block + (g * p->steps + s) * STEP, now, sums + g * 1024, s > 0, p->rows - row > 16);
        }
        for (int64_t row = 0, g = 0; row < p->rows; row += 32, g++)
            write_panel(&here, sums + g * 1024,
                        here.to + (here.gate ? (g * here.steps + here.column / 32) * STEP : row * here.stride),
                        least(32, p->rows - row));
    }
}

/* A coding is a constant in each of these, since the innermost loop looks at it all the time. */
static void run_panels(const product *p, int64_t from, int64_t to, float *sums, bf16 *unpacked) {
    if (p->rows > 32) run_groups(p, from, to, sums, unpacked);
    else switch (p->coding) {
        case CODING_NONE: run_stream(p, CODING_NONE, from, to, sums, unpacked); break;
        case CODING_4_HALF: run_stream(p, CODING_4_HALF, from, to, sums, unpacked); break;
        case CODING_4: run_stream(p, CODING_4, from, to, sums, unpacked); break;
        case CODING_8_HALF: run_stream(p, CODING_8_HALF, from, to, sums, unpacked); break;
        default: run_stream(p, CODING_8, from, to, sums, unpacked);
        }
}

/* ---- layers --------------------------------------------------------------------------------------------- */

static _Thread_local kept_memory kept;

/* Packs the rows; gives where. */
static bf16 *pack_rows(const layer *l, const sizes *z, bf16 *shared, bf16 *own) {
    if (packs_alone(l)) {
        const layer mine = with_copy(*l, omp_get_thread_num());
        for (int64_t lo = 0; lo < l->rows; lo += 16) pack_tile(&mine, z, own, lo);
        return own;
    }
#pragma omp for schedule(static)
    for (int64_t lo = 0; lo < l->rows; lo += 16) pack_tile(l, z, shared, lo);
    return shared;
}

static int64_t shared_bytes(const sizes *z) { return z->block_bytes + z->inner_bytes; }

/* Of each thread: sums, unpacked steps, packed rows. */
static int64_t own_bytes(const sizes *z) { return z->sums_bytes + DEPTH * STEP * 2 + z->block_bytes; }

/* The part of one thread of a team in a layer; ends when all are done. All rows are one block; threads share the panels. */
static void run_share(const layer *l, const sizes *z, char *shared, char *own, int64_t threads) {
    bf16 *inner = (bf16 *)(shared + z->block_bytes), *unpacked = (bf16 *)(own + z->sums_bytes);
    float *sums = (float *)own;
    const target out = {.to = l->out, .stride = l->out_width, .bias = l->bias};
    const target between = {.to = inner, .steps = z->inner_steps, .gate = l->gate};
    const int64_t first_chunk = chunk_of(z->first_panels, threads), second_chunk = chunk_of(z->second_panels, threads);
    const product first = {.weight = l->first, .coding = l->first_coding, .steps = z->in_steps, .rows = l->rows,
                           .columns = l->gate ? z->inner_steps * 32 : l->out_width,
                           .block = pack_rows(l, z, (bf16 *)shared, unpacked + DEPTH * STEP),
                           .to = l->gate ? between : out};
    const product second = {.weight = l->second, .coding = l->second_coding, .steps = z->inner_steps, .rows = l->rows,
                            .columns = l->out_width, .block = inner, .to = out};
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < z->first_panels; p += first_chunk)
        run_panels(&first, p, least(p + first_chunk, z->first_panels), sums, unpacked);
    if (l->gate)
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < z->second_panels; p += second_chunk)
            run_panels(&second, p, least(p + second_chunk, z->second_panels), sums, unpacked);
}

int run_coded_chain(const layer *chain, int64_t count, int64_t threads) {
    sizes z[CHAIN];
    int64_t shared = 0, own = 0;
    for (int64_t i = 0; i < count; i++) {
        z[i] = sizes_of(chain + i, chain->rows);
        shared = most(shared, shared_bytes(z + i)), own = most(own, own_bytes(z + i));
    }
    char *memory = take(&kept, shared + threads * own);
    if (!memory) return 1;
#pragma omp parallel
    {
        const tile_shapes before = enter_tiles();
        for (int64_t i = 0; i < count; i++)
            run_share(chain + i, z + i, memory, memory + shared + omp_get_thread_num() * own, threads);
        leave_tiles(&before);
    }
    return 0;
}

#endif
