/* Logits of rows over the whole vocabulary, or only their log-sum-exp, with AMX.
 *
 * Hidden states are float32. Each is taken as the sum of two bfloat16 numbers, which together keep 16 bits of
 * it, and multiplied twice; sums are float32. Rows of the head are one factor as they lie in memory, so that no
 * second copy of the largest matrix of a small model is needed; hidden states, few, are what is brought into
 * the layout of the other. The vocabulary is cut into parts at fixed places and the parts are added in order:
 * the result of a row is the same bit for bit whatever rows stand beside it and however many threads run.
 *
 * Judge: kernels.reference.
 */
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <math.h>
#include <string.h>

#define PART 1024       /* entries of the vocabulary that a thread goes through at once */
#define STEP (4 * TILE) /* what one step along the width reads of 32 hidden states: high and low halves, two tiles each */

typedef struct {
    __m512 top[2], sum[2]; /* of 32 rows: maximum so far, and sum of exponentials below it */
} running;

/* Two bfloat16 numbers whose sum is x but for a part in 2 ** 17, the greater one first. */
static inline uint32_t halves_of(float x) {
    uint32_t bits, low_bits;
    memcpy(&bits, &x, 4);
    uint32_t high = bits & 0xffff0000;
    float cut, low;
    memcpy(&cut, &high, 4);
    low = x - cut;
    memcpy(&low_bits, &low, 4);
    low_bits += 0x7fff + ((low_bits >> 16) & 1);
    return high >> 16 | (low_bits & 0xffff0000);
}

/* 32 hidden states [rows, width]; what is beyond `rows` or `width` is zero. */
static void pack_hidden(const float *hidden, int64_t rows, int64_t width, bf16 *packed) {
    for (int64_t s = 0; s * 32 < width; s++)
        for (int64_t r = 0; r < 32; r++)
            for (int64_t k = 0; k < 32; k++) {
                uint32_t both = r < rows && s * 32 + k < width ? halves_of(hidden[r * width + s * 32 + k]) : 0;
                bf16 *to = packed + s * STEP + r / 16 * TILE + k / 2 * 32 + r % 16 * 2 + k % 2;
                to[0] = (bf16)both;
                to[2 * TILE] = (bf16)(both >> 16);
            }
}

/* logits [32, 32] of 32 entries of the head, `stride` apart, for 32 hidden states */
static inline void multiply(const bf16 *head, int64_t stride, int64_t steps, const bf16 *hidden, float *logits,
                            const char *ahead, int64_t lines) {
    begin_sums(logits, 0);
    for (int64_t s = 0; s < steps; s++, hidden += STEP) {
        _tile_loadd(4, head + s * 32, 2 * stride);
        _tile_loadd(5, head + 16 * stride + s * 32, 2 * stride);
        for (int half = 0; half < 2; half++) {
            _tile_loadd(6, hidden + half * 2 * TILE, 64);
            _tile_loadd(7, hidden + half * 2 * TILE + TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (int64_t i = 0; i < lines; i++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
    }
    end_sums(logits, 1);
}

/* soft_cap * tanh(x / soft_cap), where tanh(y) is 1 - 2 / (exp(2 y) + 1) */
static inline __m512 capped(__m512 x, float soft_cap) {
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = _mm512_add_ps(exp_vector(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / soft_cap))), one);
    return _mm512_mul_ps(_mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e)), _mm512_set1_ps(soft_cap));
}

static inline void add_logits(running *at, const float *logits, int64_t count) {
    for (int h = 0; h < 2; h++) {
        __m512 top = at->top[h];
        for (int64_t v = 0; v < count; v++) top = _mm512_max_ps(top, _mm512_loadu_ps(logits + v * 32 + h * 16));
        __m512 sum = _mm512_mul_ps(at->sum[h], exp_vector(_mm512_sub_ps(at->top[h], top)));
        for (int64_t v = 0; v < count; v++)
            sum = _mm512_add_ps(sum, exp_vector(_mm512_sub_ps(_mm512_loadu_ps(logits + v * 32 + h * 16), top)));
        at->top[h] = top;
        at->sum[h] = sum;
    }
}

typedef struct {
    const float *hidden; /* [rows, width] */
    const bf16 *head;    /* [vocabulary, width] */
    float *out;          /* [rows] log-sum-exps, or with `whole` [rows, vocabulary] logits */
    int64_t rows, vocabulary, width, whole;
    float soft_cap; /* 0: none */
} question;

/* Part `part` of the head for the 32 hidden states of group `group`; `copy` has room for 32 entries of whole steps. */
static running run_part(const question *q, int64_t part, int64_t group, const bf16 *hidden, int64_t lines, bf16 *copy) {
    const bf16 *head = q->head;
    const int64_t width = q->width, steps = (width + 31) / 32, hi = least((part + 1) * PART, q->vocabulary);
    running at = {{_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)}, {_mm512_setzero_ps(), _mm512_setzero_ps()}};
    float logits[32 * 32] __attribute__((aligned(64)));
    for (int64_t v = part * PART; v < hi; v += 32) {
        const int64_t count = least(32, hi - v);
        const bf16 *rows = head + v * width;
        int64_t stride = width;
        if (count < 32 || width % 32) { /* a tile may not reach past the end of an entry, nor of the head */
            stride = steps * 32;
            memset(copy, 0, 32 * stride * sizeof *copy);
            for (int64_t r = 0; r < count; r++) memcpy(copy + r * stride, rows + r * width, width * sizeof *copy);
            rows = copy;
        }
        multiply(rows, stride, steps, hidden, logits, (const char *)(head + (v + 32) * width), lines);
        if (q->soft_cap != 0.0f)
            for (int64_t i = 0; i < count * 32; i += 16)
                _mm512_storeu_ps(logits + i, capped(_mm512_loadu_ps(logits + i), q->soft_cap));
        if (!q->whole)
            add_logits(&at, logits, count);
        else
            for (int64_t r = 0; r < least(32, q->rows - group * 32); r++)
                for (int64_t n = 0; n < count; n++) q->out[(group * 32 + r) * q->vocabulary + v + n] = logits[n * 32 + r];
    }
    return at;
}

static _Thread_local kept_memory kept;

/* Answers a question. Gives 0, or 1 when there was no memory to work in. */
int run_vocabulary(const question *q) {
    if (q->rows == 0) return 0;
    const int64_t groups = (q->rows + 31) / 32, parts = (q->vocabulary + PART - 1) / PART;
    const int64_t group_size = (q->width + 31) / 32 * STEP, lines = (32 + groups - 1) / groups;
    char *memory = take(&kept, groups * group_size * sizeof(bf16) + parts * groups * 64 * sizeof(float));
    int failed = memory == NULL;
    if (failed) return failed;
    bf16 *packed = (bf16 *)memory;
    float *found = (float *)(packed + groups * group_size); /* [parts, groups, 2, 32]: maxima, then sums */
#pragma omp parallel
    {
        bf16 *copy = aligned_alloc(64, 32 * round_up(q->width, 32) * sizeof *copy);
        if (!copy)
#pragma omp atomic write
            failed = 1;
        const tile_shapes before = enter_tiles();
#pragma omp for schedule(static)
        for (int64_t g = 0; g < groups; g++)
            pack_hidden(q->hidden + g * 32 * q->width, least(32, q->rows - g * 32), q->width, packed + g * group_size);
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < parts; p++)
            for (int64_t g = 0; copy && g < groups; g++) {
                running at = run_part(q, p, g, packed + g * group_size, lines, copy);
                float *to = found + (p * groups + g) * 64;
                for (int h = 0; h < 2; h++) {
                    _mm512_storeu_ps(to + h * 16, at.top[h]);
                    _mm512_storeu_ps(to + 32 + h * 16, at.sum[h]);
                }
            }
        leave_tiles(&before);
        free(copy);
    }
    for (int64_t r = 0; !q->whole && r < q->rows; r++) {
        const float *from = found + r / 32 * 64 + r % 32;
        float top = from[0], sum = from[32];
        for (int64_t p = 1; p < parts; p++) {
            from += groups * 64;
            float higher = from[0] > top ? from[0] : top;
            sum = sum * expf(top - higher) + from[32] * expf(from[0] - higher);
            top = higher;
        }
        q->out[r] = top + logf(sum);
    }
    return failed;
}

#endif
