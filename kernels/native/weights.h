/* How the weights of a product lie in memory: panels of 32 outputs, each one step of 32 inputs after the other.
 *
 * Of a gated product a panel is 16 gates and the 16 rows that they open, which stand `out / 2` rows below. What is beyond the
 * weight is zero. A step is two matrix tiles of 16 outputs, either in bfloat16, as right factors of a product, or coded: a weight
 * is then scale * code + offset, rounded to bfloat16, with one scale and one offset for the 32 inputs of an output.
 * Such a weight is unpacked shortly before it is multiplied, and takes a third of the memory, or little more than half.
 */
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <string.h>

#define STEP (2 * TILE) /* elements of a step */

/* See kernels.native.linear_parts.coding_of. What is coded as CODING_INT8 is multiplied as it is; see feed_forward8.c. */
enum { CODING_NONE, CODING_4_HALF, CODING_4, CODING_8_HALF, CODING_8, CODING_INT8 };

static inline int in_4_bits(int64_t coding) { return coding == CODING_4_HALF || coding == CODING_4; }

/* Whether a weight becomes bfloat16 before it is multiplied. */
static inline int is_unpacked(int64_t coding) { return coding != CODING_NONE && coding != CODING_INT8; }

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

/* The 32 codes of output n of a tile, which hold zeros before; see unpack_4 and unpack_8. */
static inline void put_codes(char *to, const uint8_t *codes, int64_t n, int64_t coding) {
    for (int64_t k = 0; k < 32; k++)
        if (in_4_bits(coding)) to[64 * (n / 4) + 2 * k + n % 4 / 2] |= (char)(codes[k] << (n % 2 * 4));
        else to[32 * n + k] = (char)codes[k];
}

/* ---- unpacking ------------------------------------------------------------------------------------------ */

/* A product with a code is exact wherever a scale has 16 bits or fewer, so one rounding is all that there is before bfloat16. */
static inline __m512 decode(__m512 codes, const float *scale, const float *offset) {
    return _mm512_fmadd_ps(codes, _mm512_set1_ps(*scale), _mm512_set1_ps(*offset));
}

/* The levels of two outputs. */
static inline __m512i table_of(__m512 levels, const float *scales, const float *offsets) {
    return (__m512i)_mm512_cvtne2ps_pbh(decode(levels, scales + 1, offsets + 1), decode(levels, scales, offsets));
}

static inline void look_up(__m512i table, __m512i places, bf16 *to) {
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, table));
}

/* 4 outputs with codes in 4 bits, one vector. Bits [4 i, 4 i + 4) of lane k are of output i and input k. An
 * output has no more than 16 levels; those of two outputs are one table, in which the second looks up with bit 4 set. */
static inline void unpack_4(const char *from, const float *scales, const float *offsets, bf16 *to) {
    const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
    const __m512i codes = _mm512_loadu_si512(from), last = _mm512_srli_epi16(codes, 12);
    const __m512i one = table_of(levels, scales, offsets), two = table_of(levels, scales + 2, offsets + 2);
    look_up(one, _mm512_and_si512(codes, low), to);
    look_up(one, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(codes, 4), low), second), to + 32);
    look_up(two, _mm512_and_si512(_mm512_srli_epi16(codes, 8), low), to + 64);
    look_up(two, _mm512_or_si512(last, second), to + 96);
}

/* 4 outputs with codes in 8 bits, signed, as they stand in the tile. */
static inline void unpack_8(const char *from, const float *scales, const float *offsets, bf16 *to) {
    for (int n = 0; n < 4; n++) {
        __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + 32 * n)));
        __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + 32 * n + 16)));
        __m512bh both = _mm512_cvtne2ps_pbh(decode(_mm512_cvtepi32_ps(high), scales + n, offsets + n),
                                            decode(_mm512_cvtepi32_ps(low), scales + n, offsets + n));
        _mm512_storeu_si512(to + n * 32, (__m512i)both);
    }
}

/* Outputs and pairs of inputs of a tile in bfloat16 change places: a left factor becomes a right one, or the other way. */
static inline void turn_tile(const bf16 *from, bf16 *to) {
    __m512i rows[16];
    for (int n = 0; n < 16; n++) rows[n] = _mm512_loadu_si512(from + n * 32);
    transpose(rows);
    for (int n = 0; n < 16; n++) _mm512_storeu_si512(to + n * 32, rows[n]);
}

#define PARTS 8 /* of a step, four outputs each */

/* Scales and offsets of a step, those of a tile side by side. */
typedef struct {
    float of[2][32] __attribute__((aligned(64)));
} step_numbers;

ALWAYS_INLINE void read_numbers(const char *from, int64_t coding, step_numbers *to) {
    if (coding == CODING_NONE) return;
    for (int tile = 0; tile < 2; tile++)
        for (int i = 0; i < 2; i++) {
            const char *at = from + tile * tile_bytes(coding) + code_bytes(coding);
            _mm512_store_ps(to->of[tile] + 16 * i, has_half_scales(coding)
                                                       ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at + i))
                                                       : _mm512_loadu_ps((const float *)at + 16 * i));
        }
}

/* A part of a step as part of two tiles that are left factors: the 32 inputs of an output stand side by side. */
ALWAYS_INLINE void unpack_left(const char *from, int64_t coding, const step_numbers *numbers, int64_t part,
                               bf16 *to) {
    const int64_t tile = part / 4, n = part % 4 * 4;
    const float *scales = numbers->of[tile] + n;
    from += tile * tile_bytes(coding) + code_bytes(coding) / 16 * n;
    to += tile * TILE + n * 32;
    if (coding == CODING_NONE) {
        if (n == 0) turn_tile((const bf16 *)from, to);
    } else if (in_4_bits(coding)) {
        unpack_4(from, scales, scales + 16, to);
    } else {
        unpack_8(from, scales, scales + 16, to);
    }
}

/* A step of any coding as two tiles that are left factors. */
static inline void unpack_step(const char *from, int64_t coding, bf16 *to) {
    step_numbers numbers;
    read_numbers(from, coding, &numbers);
    for (int part = 0; part < PARTS; part++) unpack_left(from, coding, &numbers, part, to);
}
#endif
