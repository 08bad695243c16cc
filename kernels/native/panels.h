/* Matrix products of attention, and keys and values in the layout that they read.
 *
 * A panel holds LANES columns of a factor, pairs of its rows one after the other: 32 bits for each column.
 */
#pragma once
#include "tiles.h"

#if defined(__AVX512BF16__)
#include <string.h>

#include "attention_work.h"

#define LANES 16 /* floats in a vector, columns in a matrix tile */

/* ---- c [rows, panels * LANES] (+)= a [rows, depth] b; b is in panels -------------------------- */

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
#endif

static void product(int amx, const bf16 *a, int64_t a_stride, const uint32_t *b, int64_t panel_size, float *c,
                    int64_t c_stride, int64_t depth, int64_t panels, int64_t rows, int accumulate) {
#if defined(__AMX_BF16__)
    if (amx) {
        settle();
        product_amx(a, a_stride, b, panel_size, c, c_stride, depth, panels, rows, accumulate);
        settle();
        return;
    }
#endif
    (void)amx;
    product_avx512(a, a_stride, b, panel_size, c, c_stride, depth, panels, rows, accumulate);
}

/* ---- keys and values into panels ---------------------------------------------------------------------- */

static void pack_keys(const bf16 *const keys[LANES], int64_t dim, int64_t width, uint32_t *panel) {
    for (int64_t d = 0; d < width; d += 32) {
        __mmask32 real = first_of(dim - d);
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
            __mmask16 real = (__mmask16)first_of(dim - d);
            __m256i even = values[n] ? _mm256_maskz_loadu_epi16(real, values[n] + d) : _mm256_setzero_si256();
            __m256i odd = values[n + 1] ? _mm256_maskz_loadu_epi16(real, values[n + 1] + d) : _mm256_setzero_si256();
            __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            _mm512_storeu_si512(pairs + d / LANES * (STRETCH / 2 * LANES) + n / 2 * LANES, both);
        }
}

#endif
