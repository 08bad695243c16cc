/* The running softmax of attention in base 2: one row's scores become weights, and sums of weighted values are kept. */
#pragma once
#include "panels.h"

#if defined(__AVX512BF16__)
#include <math.h>

#define NOTHING -1e30f /* the score of a hidden key, and the maximum over no keys */
#define LOG2_E 1.44269504f

/* What rows have come to. Where `top` is NOTHING, the row has seen no key and its sums may be anything. */
typedef struct {
    float *sum; /* [rows, width + LANES] weighted values, then weights: lane n of pairs n of tiles */
    float *top; /* [rows] running maximum */
} state;

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

/* Logits of one row in base 2, hidden keys last of all, in place of its scores; gives their maximum. soft_cap 0: none. */
static float logits(float scale, float soft_cap, float *scores, int64_t begin, int64_t end, int32_t lo, int32_t hi) {
    const __m512 factor = _mm512_set1_ps(scale * LOG2_E);
    const __m512 into_cap = _mm512_set1_ps(soft_cap ? 2.0f * LOG2_E * scale / soft_cap : 0.0f);
    const __m512 cap = _mm512_set1_ps(soft_cap * LOG2_E), one = _mm512_set1_ps(1.0f);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 top = _mm512_set1_ps(NOTHING);
    for (int64_t k = begin; k < end; k += LANES) {
        __m512 x = _mm512_loadu_ps(scores + k);
        if (soft_cap != 0.0f) { /* tanh(y) = 1 - 2 / (e**2y + 1) */
            __m512 e = _mm512_add_ps(exp2_below(_mm512_mul_ps(x, into_cap), _mm512_setzero_ps()), one);
            x = _mm512_mul_ps(cap, _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e)));
        } else {
            x = _mm512_mul_ps(x, factor);
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
static float top_logit(float scale, const float *scores, int64_t begin, int64_t end) {
    __m512 top = _mm512_loadu_ps(scores + begin);
    for (int64_t k = begin + LANES; k < end; k += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + k));
    return _mm512_reduce_max_ps(top) * (scale * LOG2_E);
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

#endif
