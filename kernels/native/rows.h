/* Rows of a step on their way into a product of a linear layer, and the gate on the way out. */
#pragma once
#include "linear.h"
#include "weights.h"

#if defined(__AMX_BF16__)
#include <math.h>

/* Panels that a thread takes at once where threads share them: few enough that none waits long for the last. */
static inline int64_t chunk_of(int64_t panels, int64_t threads) { return (panels + 4 * threads - 1) / (4 * threads); }

/* Where inputs [32 step, 32 step + 32) of a row lie in a packed block of `steps` steps. */
static inline bf16 *packed_at(bf16 *block, int64_t steps, int64_t row, int64_t step) {
    return block + (row / 32 * steps + step) * STEP + row % 32 * 32;
}

static void pack_plain(const bf16 *x, bf16 *block, int64_t steps, int64_t row, int64_t in) {
    for (int64_t s = 0; s < steps; s++)
        _mm512_storeu_si512(packed_at(block, steps, row, s), _mm512_maskz_loadu_epi16(first_of(in - 32 * s), x + 32 * s));
}

/* stream += x, and the norm of the sum into the block */
static void pack_normed(const layer *l, float *stream, const bf16 *x, bf16 *block, int64_t steps, int64_t row) {
    __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t s = 0; s < steps; s++) {
        __mmask32 real = first_of(l->in - 32 * s);
        __m512i add = _mm512_maskz_loadu_epi16(real, x + 32 * s);
        for (int h = 0; h < 2; h++) {
            __mmask16 here = (__mmask16)(real >> (16 * h));
            float *at = stream + 32 * s + 16 * h;
            __m256i part = h ? _mm512_extracti64x4_epi64(add, 1) : _mm512_castsi512_si256(add);
            __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(here, at), widen(part));
            _mm512_mask_storeu_ps(at, here, sum);
            squares[h] = _mm512_fmadd_ps(sum, sum, squares[h]);
        }
    }
    float mean = _mm512_reduce_add_ps(_mm512_add_ps(squares[0], squares[1])) / (float)l->in;
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf(mean + l->eps));
    for (int64_t s = 0; s < steps; s++) {
        __mmask32 real = first_of(l->in - 32 * s);
        __m512 half[2];
        for (int h = 0; h < 2; h++) {
            __mmask16 here = (__mmask16)(real >> (16 * h));
            const int64_t at = 32 * s + 16 * h;
            half[h] = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(here, stream + at), scale),
                                    _mm512_maskz_loadu_ps(here, l->norm + at));
        }
        _mm512_storeu_si512(packed_at(block, steps, row, s), (__m512i)_mm512_cvtne2ps_pbh(half[1], half[0]));
    }
}

/* Row r of the input as row `row` of the block. What is in rows of a block that nobody packs reaches no other row. */
static void pack_row(const layer *l, bf16 *block, int64_t row, int64_t r) {
    const int64_t steps = (l->in + 31) / 32;
    if (l->stream)
        pack_normed(l, l->stream + r * l->in, l->x + r * l->x_stride, block, steps, row);
    else
        pack_plain(l->x + r * l->x_stride, block, steps, row, l->in);
}

/* What another processor wrote is slow to come by, so with few rows each thread packs all of them for itself where it can: where
 * no stream is added to, or it has a copy of that. */
static inline int packs_alone(const layer *l) { return !l->stream || l->copies; }

/* The layer with the copy of a thread, if there are copies, in place of the stream. */
static inline layer with_copy(layer l, int64_t thread) {
    if (l.stream && l.copies && thread) l.stream = l.copies + (thread - 1) * l.rows * l.in;
    return l;
}

/* What silu(gate), or gelu(gate) by the tanh approximation, is gate / (1 + exp(-x)) of: 1 + tanh(y) is 2 / (1 + exp(-2 y)) */
static inline __m512 before_logistic(__m512 gate, int64_t kind) {
    if (kind != GATE_GELU) return gate;
    __m512 cube = _mm512_mul_ps(_mm512_mul_ps(gate, gate), gate);
    return _mm512_mul_ps(_mm512_set1_ps(1.59576912f), _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, gate));
}

/* silu(gate) * up, or gelu(gate) * up */
static inline __m512 open_gate(__m512 gate, __m512 up, int64_t kind) {
    __m512 inner = before_logistic(gate, kind);
    __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_vector(_mm512_sub_ps(_mm512_setzero_ps(), inner)));
    return _mm512_mul_ps(_mm512_div_ps(gate, below), up);
}
#endif
