/* How the weights of a product lie in memory: panels of 32 outputs, each one step of 32 inputs after the other.
 *
 * Of a gated product a panel is 16 gates and the 16 rows that they open, which stand `out / 2` rows below. What is beyond the
 * weight is zero. A step is two matrix tiles of 16 outputs, either in bfloat16 or coded: a weight is then
 * scale * code + offset, rounded to bfloat16, with one scale and one offset for the 32 inputs of an output.
 * Such a weight is unpacked a step before it is multiplied, and takes a third of the memory, or little more than half.
 */
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <string.h>

#define STEP (2 * TILE) /* elements of a step */

/* See kernels.native.linear_parts.coding_of. What is coded as CODING_INT8 is multiplied as it is; see feed_forward8.c. */
enum { CODING_NONE, CODING_4_HALF, CODING_4, CODING_8_HALF, CODING_8, CODING_INT8 };

static inline int in_4_bits(int64_t coding) { return coding == CODING_4_HALF || coding == CODING_4; }

static inline int has_half_scales(int64_t coding) { return coding == CODING_4_HALF || coding == CODING_8_HALF; }

/* Bytes of the codes of a tile. */
static inline int64_t code_bytes(int64_t coding) { return in_4_bits(coding) ? TILE / 2 : TILE; }

/* Bytes of a tile: its codes, 16 scales, 16 offsets. */
static inline int64_t tile_bytes(int64_t coding) {
    return coding == CODING_NONE ? 2 * TILE : code_bytes(coding) + (has_half_scales(coding) ? 64 : 128);
}

static inline int64_t step_bytes(int64_t coding) { return 2 * tile_bytes(coding); }

typedef struct {
    int64_t steps, width, half, panels; /* width: outputs of a panel, or its gates; half: all of them */
} panel_layout;

static inline panel_layout layout_of(int64_t out, int64_t in, int64_t gated) {
    const int64_t width = gated ? 16 : 32, half = gated ? out / 2 : out;
    return (panel_layout){(in + 31) / 32, width, half, round_up(half, 32) / width};
}

/* The row of the weight that output n of a tile is, or -1. */
static inline int64_t row_of(const panel_layout *l, int64_t panel, int64_t tile, int64_t n) {
    const int64_t gated = l->width == 16, column = panel * l->width + (gated ? n : tile * 16 + n);
    return column < l->half ? column + (gated ? tile * l->half : 0) : -1;
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* A scale or offset of output n among the 16 of a tile. */
static inline void put_number(char *to, float number, int64_t n, int64_t coding) {
    if (has_half_scales(coding)) {
        const uint16_t half = (uint16_t)_cvtss_sh(number, _MM_FROUND_TO_NEAREST_INT);
        memcpy(to + 2 * n, &half, 2);
    } else {
        memcpy(to + 4 * n, &number, 4);
    }
}

/* The 32 codes of output n of a tile, which hold zeros before; see unpack_tile_4 and unpack_tile_8. */
static inline void put_codes(char *to, const uint8_t *codes, int64_t n, int64_t coding) {
    for (int64_t k = 0; k < 32; k++) {
        const int64_t pair = k / 2, lane = n % 8 * 2 + k % 2, half = n / 8;
        if (in_4_bits(coding)) to[128 * half + 64 * (pair / 8) + 4 * lane + pair % 8 / 2] |= codes[k] << (pair % 2 * 4);
        else to[32 * pair + 16 * half + lane] = (char)codes[k];
    }
}

/* ---- unpacking ------------------------------------------------------------------------------------------ */

/* What 16 numbers, one an output, are for the two inputs of each output that stand side by side in a row of a tile. */
typedef struct {
    __m512 low, high; /* of outputs [0, 8) and [8, 16) */
} paired;

static inline paired for_pairs(const char *from, int half) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512 x = half ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)) : _mm512_loadu_ps(from);
    return (paired){_mm512_permutexvar_ps(low, x), _mm512_permutexvar_ps(high, x)};
}

static inline void write_pairs(bf16 *to, __m512 low, __m512 high, const paired *scale, const paired *offset) {
    /* a product with a code is exact wherever a scale has 16 bits or fewer, so one rounding is all that there is before bfloat16 */
    low = _mm512_fmadd_ps(low, scale->low, offset->low);
    high = _mm512_fmadd_ps(high, scale->high, offset->high);
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* Codes in 4 bits: four vectors, of outputs [0, 8) and [8, 16) two each. Lane l of one is for output l / 2 and input l % 2 of
 * each pair, and bits [4 i, 4 i + 4) are of pair i, or of pair 8 + i in the second of two. */
static inline void unpack_tile_4(const char *from, bf16 *to, int half) {
    const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const paired scale = for_pairs(from + TILE / 2, half), offset = for_pairs(from + TILE / 2 + (half ? 32 : 64), half);
    for (int eight = 0; eight < 2; eight++) {
        __m512i low = _mm512_loadu_si512(from + 64 * eight), high = _mm512_loadu_si512(from + 128 + 64 * eight);
        for (int i = 0; i < 8; i++, to += 32) {
            write_pairs(to, _mm512_permutexvar_ps(low, levels), _mm512_permutexvar_ps(high, levels), &scale, &offset);
            low = _mm512_srli_epi32(low, 4);
            high = _mm512_srli_epi32(high, 4);
        }
    }
}

/* Codes in 8 bits, signed, as they stand in the tile. */
static inline void unpack_tile_8(const char *from, bf16 *to, int half) {
    const paired scale = for_pairs(from + TILE, half), offset = for_pairs(from + TILE + (half ? 32 : 64), half);
    for (int pair = 0; pair < 16; pair++, to += 32, from += 32) {
        __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
        __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + 16)));
        write_pairs(to, _mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high), &scale, &offset);
    }
}

/* A coded step as two tiles in bfloat16. */
static inline void unpack_step(const char *from, int64_t coding, bf16 *to) {
    for (int tile = 0; tile < 2; tile++, to += TILE, from += tile_bytes(coding)) switch (coding) {
        case CODING_4_HALF: unpack_tile_4(from, to, 1); break;
        case CODING_4: unpack_tile_4(from, to, 0); break;
        case CODING_8_HALF: unpack_tile_8(from, to, 1); break;
        default: unpack_tile_8(from, to, 0);
        }
}
#endif
