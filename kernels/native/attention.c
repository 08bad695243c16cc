/* Attention of one layer over the spans of a step: bfloat16 in and out, scores and sums in float32.
 *
 * A unit of work is a run of query tokens under one KV head. The G query heads that read the head are
 * folded into rows, row = token * G + head, so rows of different requests that share a run of keys are
 * one matrix product. Keys and values of a run are brought into the layout of the product once for all
 * rows of the unit; the softmax is the running one of Dao et al. 2022 (FlashAttention), in base 2.
 *
 * The bits of a row's result depend on its query and on the keys and values at its positions, and on nothing
 * else of the step, since the order of its sums is a matter of positions alone:
 * - products over keys and sums of weights run over tiles of TILE_KEYS keys from a multiple of TILE_KEYS on,
 *   a tile after the other; a key that a row does not see has a weight of zero, which changes no sum;
 * - the running maximum is rounded up to a whole number, so a weight is the same number times a power of two
 *   whatever the maximum was, and a rescaling is exact;
 * - every stretch of STRETCH keys from a multiple of STRETCH on begins with empty sums, and stretches are joined
 *   in order. So another thread may have a stretch of the same row.
 * Exact stands for: down to 2**-126 of the largest weight of the row.
 *
 * Needs AVX512-BF16; uses AMX where the processor has it and the kernel of the operating system lets us.
 * Judge: kernels.reference.
 */

/* the order of operations is as written: elementwise.c is built with flags that let a compiler choose */
#if defined(__clang__)
#pragma clang fp reassociate(off) contract(off)
#else
#pragma GCC optimize("no-associative-math", "no-reciprocal-math", "fp-contract=off")
#endif

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef uint16_t bf16;

#define ROWS 32        /* query rows that run through the softmax together: two matrix tiles */
#define LANES 16       /* floats in a vector, columns in a matrix tile */
#define TILE_KEYS 32   /* keys that one tile of weights holds, and the least that is multiplied */
#define STRETCH 512    /* keys whose scores are held at once and whose sums begin empty */
#define NOTHING -1e30f /* the score of a hidden key, and the maximum over no keys */
#define LOG2_E 1.44269504f

typedef struct {
    const bf16 *query, *key, *value;           /* [tokens, heads, head_dim]; heads are dense */
    const bf16 *key_pool, *value_pool;         /* [kv_heads, slots, head_dim]; slots are dense */
    bf16 *out;                                 /* [queries, heads, head_dim], dense */
    const int32_t *units, *items, *pieces, *joins, *positions, *block_ids;
    int64_t num_units, num_joins, num_shares, unit_rows;
    int64_t query_stride, key_stride, value_stride, pool_stride;    /* in elements */
    int64_t kv_heads, group, head_dim, block_size, window;    /* window 0: none */
    float scale, soft_cap;                                    /* soft_cap 0: none */
} attention;

/* See kernels.native.attention_work.AttentionWork for these four. */
typedef struct {
    int32_t query_lo, query_hi, item_lo, item_hi, share;
} unit;

typedef struct {
    int32_t query_lo, query_hi, position, tokens, causal, piece, skip;
} item;

typedef struct {
    int32_t key_lo, tokens, from_pool;
} piece;

typedef struct {
    int32_t query_lo, query_hi, share_lo, share_hi;
} join;

/* What rows have come to. Where `top` is NOTHING, the row has seen no key and its sums may be anything. */
typedef struct {
    float *sum; /* [rows + ROWS, width + LANES] weighted values, then weights: lane n of pairs n of tiles */
    float *top; /* [rows + ROWS] running maximum */
} state;

/* What a thread works in. width is head_dim rounded up to whole tiles, the rest is zero. */
typedef struct {
    int64_t width;
    bf16 *query;     /* [rows + ROWS, width] */
    state all, here; /* over all stretches so far; over the one at work */
    uint32_t *key;   /* [STRETCH / LANES] panels of [width / 2, LANES] pairs of elements */
    uint32_t *value; /* [width / LANES] panels of [STRETCH / 2, LANES] pairs of keys */
    float *scores;   /* [ROWS, STRETCH] */
    bf16 *weights;   /* [ROWS, STRETCH] */
    float *others;   /* [LANES, width + LANES] */
} workspace;

/* The keys [lo, hi) of an item that each row of a tile sees, and over all rows. */
typedef struct {
    int32_t lo[ROWS], hi[ROWS], least, most;
    int uneven;
} view;

static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- c [rows, panels * LANES] (+)= a [rows, depth] b; b is in panels as the workspace has them ------- */

static void product_avx512(const bf16 *a, int64_t a_stride, const uint32_t *b, int64_t panel_size, float *c,
                           int64_t c_stride, int64_t depth, int64_t panels, int64_t rows, int accumulate) {
    for (int64_t r = 0; r < rows; r += 8)
        for (int64_t p = 0; p < panels; p += 2) {
            __m512 sum[8][2];
            float *to = c + r * c_stride + p * LANES;
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 2; j++)
                    sum[i][j] = accumulate ? _mm512_loadu_ps(to + i * c_stride + j * LANES) : _mm512_setzero_ps();
            for (int64_t k = 0; k < depth / 2; k++) {
                __m512bh left = (__m512bh)_mm512_loadu_si512(b + p * panel_size + k * LANES);
                __m512bh right = (__m512bh)_mm512_loadu_si512(b + (p + 1) * panel_size + k * LANES);
                for (int i = 0; i < 8; i++) {
                    int32_t pair;
                    memcpy(&pair, a + (r + i) * a_stride + 2 * k, sizeof pair);
                    __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, left);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, right);
                }
            }
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 2; j++) _mm512_storeu_ps(to + i * c_stride + j * LANES, sum[i][j]);
        }
}

#if defined(__AMX_BF16__)

static void product_amx(const bf16 *a, int64_t a_stride, const uint32_t *b, int64_t panel_size, float *c,
                        int64_t c_stride, int64_t depth, int64_t panels, int64_t rows, int accumulate) {
    const int both = rows > 16;
    const bf16 *a_below = a + 16 * a_stride;
    for (int64_t p = 0; p < panels; p += 2) {
        const uint32_t *left = b + p * panel_size, *right = left + panel_size;
        float *to = c + p * LANES, *below = to + 16 * c_stride;
        if (accumulate) {
            _tile_loadd(0, to, 4 * c_stride);
            _tile_loadd(1, to + LANES, 4 * c_stride);
            if (both) {
                _tile_loadd(2, below, 4 * c_stride);
                _tile_loadd(3, below + LANES, 4 * c_stride);
            }
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t k = 0; k < depth; k += 32) {
            _tile_loadd(6, left + k / 2 * LANES, 64);
            _tile_loadd(7, right + k / 2 * LANES, 64);
            _tile_loadd(4, a + k, 2 * a_stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (both) {
                _tile_loadd(5, a_below + k, 2 * a_stride);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, to, 4 * c_stride);
        _tile_stored(1, to + LANES, 4 * c_stride);
        if (both) {
            _tile_stored(2, below, 4 * c_stride);
            _tile_stored(3, below + LANES, 4 * c_stride);
        }
    }
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Linux gives a process the tile registers when it asks. */
static int amx_allowed(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#endif

static void product(int amx, const bf16 *a, int64_t a_stride, const uint32_t *b, int64_t panel_size, float *c,
                    int64_t c_stride, int64_t depth, int64_t panels, int64_t rows, int accumulate) {
#if defined(__AMX_BF16__)
    if (amx) {
        product_amx(a, a_stride, b, panel_size, c, c_stride, depth, panels, rows, accumulate);
        return;
    }
#endif
    (void)amx;
    product_avx512(a, a_stride, b, panel_size, c, c_stride, depth, panels, rows, accumulate);
}

/* ---- keys and values into panels ---------------------------------------------------------------------- */

static void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* now quarter q of r[i + j] is column 4 q + j of rows i to i + 3 */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int j = 0; j < 4; j++) {
        t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88); /* even quarters */
        t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
        t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    }
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
        r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
    }
}

/* Where LANES keys of an item and their values lie, from key `first` on; those from `count` on do not exist. */
typedef struct {
    const bf16 *key[LANES], *value[LANES];
} places;

static void locate(const attention *a, const item *run, int64_t head, int64_t first, int64_t count, places *at) {
    memset(at, 0, sizeof *at);
    if (count <= 0) return; /* there may be no piece after the last key */
    const piece *from = (const piece *)a->pieces + run->piece;
    int64_t done = run->skip + first;
    while (done >= from->tokens) done -= from++->tokens;
    int64_t block = (from->key_lo + done) / a->block_size, inside = (from->key_lo + done) % a->block_size;
    for (int64_t n = 0; n < least_of(count, LANES); n++, done++, inside++) {
        if (done == from->tokens) {
            from++, done = 0;
            block = from->key_lo / a->block_size, inside = from->key_lo % a->block_size;
        }
        if (from->from_pool) {
            if (inside == a->block_size) block++, inside = 0;
            int64_t slot = head * a->pool_stride + (a->block_ids[block] * a->block_size + inside) * a->head_dim;
            at->key[n] = a->key_pool + slot;
            at->value[n] = a->value_pool + slot;
        } else {
            at->key[n] = a->key + (from->key_lo + done) * a->key_stride + head * a->head_dim;
            at->value[n] = a->value + (from->key_lo + done) * a->value_stride + head * a->head_dim;
        }
    }
}

static void pack_keys(const bf16 *const keys[LANES], int64_t dim, int64_t width, uint32_t *panel) {
    for (int64_t d = 0; d < width; d += 32) {
        __mmask32 real = dim - d >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (dim - d)) - 1;
        __m512i rows[LANES];
        for (int n = 0; n < LANES; n++)
            rows[n] = keys[n] ? _mm512_maskz_loadu_epi16(real, keys[n] + d) : _mm512_setzero_si512();
        transpose(rows);
        for (int n = 0; n < LANES; n++) _mm512_storeu_si512(panel + (d / 2 + n) * LANES, rows[n]);
    }
}

/* Two rows of values become one of pairs, in every panel of LANES columns; `pairs` is where key 0 goes. */
static void pack_values(const bf16 *const values[LANES], int64_t dim, int64_t width, uint32_t *pairs) {
    for (int64_t n = 0; n < LANES; n += 2)
        for (int64_t d = 0; d < width; d += LANES) {
            __mmask16 real = d < dim ? (__mmask16)~0 : 0; /* head_dim is a multiple of LANES */
            __m256i even = values[n] ? _mm256_maskz_loadu_epi16(real, values[n] + d) : _mm256_setzero_si256();
            __m256i odd = values[n + 1] ? _mm256_maskz_loadu_epi16(real, values[n + 1] + d) : _mm256_setzero_si256();
            __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            _mm512_storeu_si512(pairs + d / LANES * (STRETCH / 2 * LANES) + n / 2 * LANES, both);
        }
}

/* The panels of an item; whole pairs of panels are written. */
static void pack(const attention *a, const item *run, int64_t head, workspace *w) {
    for (int64_t start = 0; start < (run->tokens + 31) / TILE_KEYS * TILE_KEYS; start += LANES) {
        places at;
        locate(a, run, head, start, run->tokens - start, &at);
        pack_keys(at.key, a->head_dim, w->width, w->key + start / 2 * w->width);
        pack_values(at.value, a->head_dim, w->width, w->value + start / 2 * LANES);
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------ */

/* 2 ** (x - top) for a whole top, by a cubic around the nearest whole number to x: another top gives the same
 * number times a power of two. The relative error is below 8e-5, of which a bfloat16 keeps nothing. */
static inline __m512 exp2_below(__m512 x, __m512 top) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.05517166f), f, _mm512_set1_ps(0.24261112f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69326099f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99992807f));
    return _mm512_scalef_ps(p, _mm512_sub_ps(whole, top));
}

/* Logits of one row in base 2, hidden keys last of all, in place of its scores; gives their maximum. */
static float logits(const attention *a, float *scores, int64_t begin, int64_t end, int32_t lo, int32_t hi) {
    const __m512 scale = _mm512_set1_ps(a->scale * LOG2_E);
    const __m512 into_cap = _mm512_set1_ps(a->soft_cap ? 2.0f * LOG2_E * a->scale / a->soft_cap : 0.0f);
    const __m512 cap = _mm512_set1_ps(a->soft_cap * LOG2_E), one = _mm512_set1_ps(1.0f);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 top = _mm512_set1_ps(NOTHING);
    for (int64_t k = begin; k < end; k += LANES) {
        __m512 x = _mm512_loadu_ps(scores + k);
        if (a->soft_cap != 0.0f) { /* tanh(y) = 1 - 2 / (e**2y + 1) */
            __m512 e = _mm512_add_ps(exp2_below(_mm512_mul_ps(x, into_cap), _mm512_setzero_ps()), one);
            x = _mm512_mul_ps(cap, _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e)));
        } else {
            x = _mm512_mul_ps(x, scale);
        }
        __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32((int)k));
        __mmask16 seen = _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(lo)) &
                         _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(hi));
        x = _mm512_mask_blend_ps(seen, _mm512_set1_ps(NOTHING), x);
        _mm512_storeu_ps(scores + k, x);
        top = _mm512_max_ps(top, x);
    }
    return _mm512_reduce_max_ps(top);
}

/* The same where the row sees every key and nothing is capped: scores stay as they are. */
static float top_logit(const attention *a, const float *scores, int64_t begin, int64_t end) {
    __m512 top = _mm512_loadu_ps(scores + begin);
    for (int64_t k = begin + LANES; k < end; k += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + k));
    return _mm512_reduce_max_ps(top) * (a->scale * LOG2_E);
}

/* Sums of a row whose maximum was `old` as they are below `new`. */
static void rescale(float *sum, float old, float new, int64_t width) {
    const __m512 by = _mm512_set1_ps(old - new);
    for (int64_t d = 0; d < width + LANES; d += LANES)
        _mm512_storeu_ps(sum + d, old <= NOTHING ? _mm512_setzero_ps() : _mm512_scalef_ps(_mm512_loadu_ps(sum + d), by));
}

/* Weights of one row from `scores` times `scale`, with the running maximum and the sum of weights brought up to date.
 * A score that is not a number makes the row not a number. */
static void weigh(const float *scores, float scale, int64_t begin, int64_t end, float top_here, bf16 *weights,
                  float *top, float *sum, int64_t width) {
    const float old = *top, new = top_here <= old ? old : ceilf(top_here);
    if (new <= NOTHING) { /* this row has seen no key yet */
        memset(weights + begin, 0, (end - begin) * sizeof *weights);
        return;
    }
    if (!(new <= old)) rescale(sum, old, new, width);
    *top = new;
    const __m512 factor = _mm512_set1_ps(scale), below = _mm512_set1_ps(new);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    /* the sum of what is multiplied: the rounding of a weight that outweighs the others cancels */
    __m512 total = _mm512_loadu_ps(sum + width);
    for (int64_t k = begin; k < end; k += TILE_KEYS) {
        __m512 left = exp2_below(_mm512_mul_ps(_mm512_loadu_ps(scores + k), factor), below);
        __m512 right = exp2_below(_mm512_mul_ps(_mm512_loadu_ps(scores + k + LANES), factor), below);
        __m512bh rounded = _mm512_cvtne2ps_pbh(right, left);
        _mm512_storeu_si512(weights + k, (__m512i)rounded);
        total = _mm512_dpbf16_ps(total, rounded, ones);
    }
    _mm512_storeu_ps(sum + width, total);
}

/* Adds what rows have come to over the next stretch. */
static void add_stretch(state all, state next, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        const float old = all.top[r], here = next.top[r], new = here <= old ? old : here;
        float *to = all.sum + r * (width + LANES);
        const float *from = next.sum + r * (width + LANES);
        if (here <= NOTHING) continue;
        if (!(new <= old)) rescale(to, old, new, width);
        all.top[r] = new;
        const __m512 by = _mm512_set1_ps(here - new);
        for (int64_t d = 0; d < width + LANES; d += LANES)
            _mm512_storeu_ps(to + d, _mm512_add_ps(_mm512_loadu_ps(to + d),
                                                   _mm512_scalef_ps(_mm512_loadu_ps(from + d), by)));
    }
}

/* ---- units -------------------------------------------------------------------------------------------- */

/* What `count` rows from row `row` of the unit see of the keys of an item. */
static void look(const attention *a, const item *run, int64_t unit_lo, int64_t row, int64_t count, view *v) {
    v->uneven = 0;
    if (!run->causal && !a->window) {
        v->least = 0;
        v->most = run->tokens;
        for (int64_t r = 0; r < count; r++) v->lo[r] = 0, v->hi[r] = run->tokens;
        return;
    }
    v->least = run->tokens;
    v->most = 0;
    for (int64_t r = 0; r < count; r++) {
        int64_t before = a->positions[unit_lo + (row + r) / a->group] - run->position;
        int64_t hi = run->causal ? least_of(before + 1, run->tokens) : run->tokens;
        int64_t lo = a->window ? most_of(before + 1 - a->window, 0) : 0;
        if (lo >= hi) lo = hi = 0;
        v->lo[r] = (int32_t)lo;
        v->hi[r] = (int32_t)hi;
        if (lo < hi) {
            v->least = (int32_t)least_of(v->least, lo);
            v->most = (int32_t)most_of(v->most, hi);
        }
    }
    for (int64_t r = 0; r < count; r++) v->uneven |= v->lo[r] != v->least || v->hi[r] != v->most;
}

/* Up to ROWS rows from row `row` of the unit see the packed keys. */
static void run_tile(const attention *a, int amx, int64_t row, int64_t count, const view *v, state here, workspace *w) {
    const int64_t width = w->width, stride = width + LANES, rows = (count + LANES - 1) / LANES * LANES;
    const int64_t begin = v->least / TILE_KEYS * TILE_KEYS, end = (v->most + 31) / TILE_KEYS * TILE_KEYS;
    const int plain = !v->uneven && a->soft_cap == 0.0f && begin == v->least && end == v->most;
    product(amx, w->query + row * width, width, w->key + begin / LANES * (width / 2 * LANES), width / 2 * LANES,
            w->scores + begin, STRETCH, width, (end - begin) / LANES, rows, 0);
    for (int64_t r = 0; r < count; r++) {
        float *scores = w->scores + r * STRETCH;
        float top = plain ? top_logit(a, scores, begin, end) : logits(a, scores, begin, end, v->lo[r], v->hi[r]);
        weigh(scores, plain ? a->scale * LOG2_E : 1.0f, begin, end, top, w->weights + r * STRETCH, here.top + row + r,
              here.sum + (row + r) * stride, width);
    }
    /* rows past the last belong to other requests, and not even a NaN may reach them */
    float *after = here.sum + (row + count) * stride;
    const size_t others = (rows - count) * stride * sizeof *after;
    memcpy(w->others, after, others);
    product(amx, w->weights + begin, STRETCH, w->value + begin / 2 * LANES, STRETCH / 2 * LANES, here.sum + row * stride,
            stride, end - begin, width / LANES, rows, 1);
    memcpy(after, w->others, others);
}

static void run_item(const attention *a, int amx, const item *run, int64_t head, int64_t unit_lo, state here,
                     workspace *w) {
    const int64_t low = (run->query_lo - unit_lo) * a->group, high = (run->query_hi - unit_lo) * a->group;
    int packed = 0;
    for (int64_t row = low; row < high; row += ROWS) {
        const int64_t count = least_of(ROWS, high - row);
        view v;
        look(a, run, unit_lo, row, count, &v);
        if (v.least >= v.most) continue;
        if (!packed) pack(a, run, head, w);
        packed = 1;
        run_tile(a, amx, row, count, &v, here, w);
    }
}

static void forget(state s, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) s.top[r] = NOTHING;
}

static void write_out(const attention *a, int64_t query_lo, int64_t rows, int64_t head, state all, int64_t width) {
    const int64_t dim = a->head_dim, group = a->group;
    for (int64_t r = 0; r < rows; r++) {
        const float *sum = all.sum + r * (width + LANES);
        const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_loadu_ps(sum + width)));
        const __mmask16 seen = all.top[r] <= NOTHING ? 0 : (__mmask16)~0;
        bf16 *to = a->out + ((query_lo + r / group) * a->kv_heads * group + head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            __m512 x = _mm512_maskz_mul_ps(seen, _mm512_loadu_ps(sum + d), share);
            _mm256_storeu_si256((__m256i *)(to + d), (__m256i)_mm512_cvtneps_pbh(x));
        }
    }
}

/* Floats of a state, in whole vectors. */
static int64_t state_size(int64_t rows, int64_t width) {
    return (rows + ROWS) * (width + LANES) + (rows + ROWS + LANES - 1) / LANES * LANES;
}

static state state_in(float *memory, int64_t rows, int64_t width) {
    return (state){memory, memory + (rows + ROWS) * (width + LANES)};
}

static state share_in(const attention *a, float *shares, int64_t share, int64_t head, int64_t width) {
    return state_in(shares + (share * a->kv_heads + head) * state_size(a->unit_rows, width), a->unit_rows, width);
}

static void run_unit(const attention *a, int amx, const unit *u, int64_t head, float *shares, workspace *w) {
    const int64_t width = w->width, dim = a->head_dim, group = a->group, rows = (u->query_hi - u->query_lo) * group;
    const item *run = (const item *)a->items + u->item_lo, *end = (const item *)a->items + u->item_hi;
    const state all = u->share < 0 ? w->all : share_in(a, shares, u->share, head, width);
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *from = a->query + (u->query_lo + r / group) * a->query_stride + (head * group + r % group) * dim;
        memcpy(w->query + r * width, from, dim * sizeof(bf16));
        memset(w->query + r * width + dim, 0, (width - dim) * sizeof(bf16));
    }
    forget(all, rows);
    for (state here = all; run < end; here = w->here) {
        const int64_t stretch = run->position / STRETCH;
        if (here.top != all.top) forget(here, rows);
        for (; run < end && run->position / STRETCH == stretch; run++)
            run_item(a, amx, run, head, u->query_lo, here, w);
        if (here.top != all.top) add_stretch(all, here, rows, width);
    }
    if (u->share < 0) write_out(a, u->query_lo, rows, head, all, width);
}

static void run_join(const attention *a, const join *j, int64_t head, float *shares, workspace *w) {
    const int64_t rows = (j->query_hi - j->query_lo) * a->group;
    forget(w->all, rows);
    for (int64_t share = j->share_lo; share < j->share_hi; share++)
        add_stretch(w->all, share_in(a, shares, share, head, w->width), rows, w->width);
    write_out(a, j->query_lo, rows, head, w->all, w->width);
}

/* Memory for units of `rows` rows, kept by the thread for the next call; 0 when there is none. */
static int take_workspace(workspace *w, int64_t rows, int64_t width) {
    static _Thread_local struct {
        char *memory;
        int64_t size;
    } kept;
    float *all, *here;
    const int64_t sizes[] = {(rows + ROWS) * width * 2, state_size(rows, width) * 4, state_size(rows, width) * 4,
                             STRETCH * width * 2,       STRETCH * width * 2,         ROWS * STRETCH * 4,
                             ROWS * STRETCH * 2,        LANES * (width + LANES) * 4};
    void **parts[] = {(void **)&w->query, (void **)&all,    (void **)&here,    (void **)&w->key,
                      (void **)&w->value, (void **)&w->scores, (void **)&w->weights, (void **)&w->others};
    int64_t total = 0;
    for (int i = 0; i < 8; i++) total += (sizes[i] + 63) / 64 * 64;
    if (total > kept.size) {
        free(kept.memory);
        kept.memory = aligned_alloc(64, total);
        kept.size = kept.memory ? total : 0;
    }
    if (!kept.memory) return 0;
    char *next = kept.memory;
    for (int i = 0; i < 8; i++) {
        *parts[i] = next;
        next += (sizes[i] + 63) / 64 * 64;
    }
    w->all = state_in(all, rows, width);
    w->here = state_in(here, rows, width);
    w->width = width;
    return 1;
}

/* Runs all units, then all joins. Gives 0, or 1 when there was no memory to work in. */
int attend(const attention *a) {
    const int64_t width = (a->head_dim + 31) / 32 * 32;
    const size_t shared = a->num_shares * a->kv_heads * state_size(a->unit_rows, width) * sizeof(float);
    float *shares = shared ? aligned_alloc(64, shared) : NULL;
    int failed = shared && !shares, amx = 0;
    if (failed) return 1;
#if defined(__AMX_BF16__)
    amx = amx_allowed();
#endif
#pragma omp parallel if (a->num_units * a->kv_heads > 1)
    {
        workspace w;
        int ready = take_workspace(&w, a->unit_rows, width);
#if defined(__AMX_BF16__)
        tile_shapes before, ours = {.palette = 1};
        if (amx) { /* whoever used the tiles before finds them in the same shapes */
            _tile_storeconfig(&before);
            for (int i = 0; i < 8; i++) ours.row_bytes[i] = 64, ours.rows[i] = 16;
            _tile_loadconfig(&ours);
        }
#endif
        if (!ready)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 1) collapse(2) nowait
        for (int64_t u = 0; u < a->num_units; u++)
            for (int64_t head = 0; head < a->kv_heads; head++)
                if (ready) run_unit(a, amx, (const unit *)a->units + u, head, shares, &w);
        if (a->num_joins) {
#pragma omp barrier
#pragma omp for collapse(2) nowait
            for (int64_t j = 0; j < a->num_joins; j++)
                for (int64_t head = 0; head < a->kv_heads; head++)
                    if (ready) run_join(a, (const join *)a->joins + j, head, shares, &w);
        }
#if defined(__AMX_BF16__)
        if (amx && before.palette) _tile_loadconfig(&before);
        else if (amx) _tile_release();
#endif
    }
    free(shares);
    return failed;
}

#endif
