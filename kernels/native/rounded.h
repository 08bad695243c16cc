/* Weights and rows of a product in whole numbers of 8 bits.
 *
 * Before they are rounded they are turned: 64 inputs become their 64 sums with the signs of a Hadamard matrix, times 1/8.
 * Products stay what they were, and the few large inputs that would leave the others of a row no digits are spread over 64
 * (Ashkboos et al. 2024). The factors of 1/8 are left to the scales of weights.
 */
#pragma once
#include "rows.h"

#if defined(__AMX_BF16__)
#define STEP8 2048 /* bytes of a step: 64 inputs of 32 rows or of 32 outputs, in two tiles */

static inline int64_t steps8_of(int64_t in) { return (in + 63) / 64; }

/* A panel of 32 outputs is its steps and then a scale for each of them. */
static inline int64_t panel_bytes(int64_t steps) { return steps * STEP8 + 32 * sizeof(float); }

/* ---- weights -------------------------------------------------------------------------------------------- */

/* Inputs [64 step, 64 step + 64) of a row of a weight, turned but for the 1/8. */
static void turn_weight(const bf16 *row, int64_t in, int64_t step, float turned[64]) {
    for (int64_t k = 0; k < 64; k++) {
        const uint32_t bits = step * 64 + k < in ? (uint32_t)row[step * 64 + k] << 16 : 0;
        memcpy(turned + k, &bits, 4);
    }
    for (int64_t half = 1; half < 64; half *= 2)
        for (int64_t low = 0; low < 64; low += 2 * half)
            for (int64_t k = low; k < low + half; k++) {
                const float first = turned[k], second = turned[k + half];
                turned[k] = first + second, turned[k + half] = first - second;
            }
}

/* ---- rounding rows -------------------------------------------------------------------------------------- */

/* Rows of a packed block in 8 bits: [rows / 32, steps] times STEP8, and what a code of each row stands for. */
typedef struct {
    char *codes;
    float *scales;
} rounded_rows;

/* What turns 32 inputs into 16 of their sums: with signs that are alike in both halves, and with such that are not. */
static void make_turns(bf16 turns[2][TILE]) {
    for (int64_t k = 0; k < 32; k++)
        for (int64_t n = 0; n < 16; n++) {
            const int odd = __builtin_popcount(k % 16 & n) % 2;
            for (int64_t kind = 0; kind < 2; kind++)
                turns[kind][k / 2 * 32 + n * 2 + k % 2] = (odd + kind * (k / 16)) % 2 ? 0xBF80 : 0x3F80; /* -1 or 1 */
        }
}

/* 64 inputs of 16 rows, or their first 32, to [16, 64] sums that are `stride` apart: the first half of the inputs with
 * either kind of signs, then the second. Wants the turns in tile registers 6 and 7. */
static inline void turn_tiles(const bf16 *a, int both, float *turned, int64_t stride) {
    settle();
    _tile_loadd(4, a, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (both) {
        _tile_loadd(5, a + STEP, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, turned, stride * 4);
    _tile_stored(1, turned + 16, stride * 4);
    _tile_stored(2, turned + 32, stride * 4);
    _tile_stored(3, turned + 48, stride * 4);
    settle();
}

static inline __m512 magnitude(const float *x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7FFFFFFF)));
}

/* The larger of |a + b| and |a - b|, and of those before, as bits: so that what is not a number is the largest. */
static inline __m512i larger(__m512i before, const float *a, const float *b) {
    return _mm512_max_epi32(before, _mm512_castps_si512(_mm512_add_ps(magnitude(a), magnitude(b))));
}

/* The codes of 64 sums, 16 in a vector. */
static inline __m512i codes_of(__m512 a, __m512 b, __m512 c, __m512 d, __m512 per_unit) {
    /* packing goes by quarters of the vectors */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i first = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(a, per_unit)), _mm512_cvtps_epi32(_mm512_mul_ps(b, per_unit)));
    __m512i second = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(c, per_unit)), _mm512_cvtps_epi32(_mm512_mul_ps(d, per_unit)));
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
}

/* Rows [row, row + 16) of a packed block of `steps` steps of 32 inputs; `turned` has room for 16 rows of them. */
static void round_rows(const bf16 *block, int64_t steps, rounded_rows to, int64_t row, float *turned) {
    const int64_t steps8 = (steps + 1) / 2, stride = steps8 * 64 + 16; /* not a multiple of what caches are made of */
    __m512i largest[16];
    for (int64_t r = 0; r < 16; r++) largest[r] = _mm512_castps_si512(_mm512_set1_ps(1e-30f)); /* of a row of zeros */
    for (int64_t s = 0; s <= steps8; s++) {
        if (s < steps8)
            turn_tiles(packed_at((bf16 *)block, steps, row, 2 * s), 2 * s + 1 < steps, turned + s * 64, stride);
        for (int64_t r = 0; s > 0 && r < 16; r++) {
            const float *at = turned + r * stride + (s - 1) * 64;
            largest[r] = larger(larger(largest[r], at, at + 32), at + 16, at + 48);
        }
    }
    for (int64_t r = 0; r < 16; r++) {
        const int32_t bits = _mm512_reduce_max_epi32(largest[r]);
        float most;
        memcpy(&most, &bits, 4);
        to.scales[row + r] = most / 127.0f;
        const __m512 per_unit = _mm512_set1_ps(127.0f / most);
        char *codes = to.codes + row / 32 * steps8 * STEP8 + (row + r) % 32 * 64;
        for (int64_t s = 0; s < steps8; s++, codes += STEP8) {
            const float *at = turned + r * stride + s * 64;
            const __m512 a = _mm512_loadu_ps(at), b = _mm512_loadu_ps(at + 16);
            const __m512 c = _mm512_loadu_ps(at + 32), d = _mm512_loadu_ps(at + 48);
            const __m512i rounded = codes_of(_mm512_add_ps(a, c), _mm512_add_ps(b, d), _mm512_sub_ps(a, c), _mm512_sub_ps(b, d), per_unit);
            _mm512_storeu_si512(codes, rounded);
        }
    }
}

/* The turns into the registers where round_rows wants them. */
static void load_turns(void) {
    bf16 turns[2][TILE] __attribute__((aligned(64)));
    make_turns(turns);
    settle();
    _tile_loadd(6, turns[0], 64);
    _tile_loadd(7, turns[1], 64);
}
#endif
