/* The elementwise operations of a decoder step on a CPU, bfloat16 in and out, float32 inside.
 *
 * PyTorch runs each of these as several passes over memory; here each is one. Rows are spread
 * over OpenMP threads, the same pool that PyTorch uses. Judge: kernels.reference.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

/* fewer elements than this are done before a second thread has woken up */
#define PARALLEL_FROM 16384

static inline float widen(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* to nearest, ties to even; a NaN stays one because its top mantissa bit is set first */
static inline bf16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40;
    return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* exp by range reduction to [-ln2/2, ln2/2] and the Cephes polynomial; relative error below 2e-7 */
static inline float exp_approx(float x) {
    x = x < -87.0f ? -87.0f : x; /* comparisons, not fminf: those are calls unless NaN is ruled out */
    x = x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504f);
    float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. Tokens of x are x_stride apart and hold heads rows each, one after
 * the other; rows of out are dense. */
void rms_norm(const bf16 *restrict x, const float *restrict weight, bf16 *restrict out, int64_t rows, int64_t heads,
              int64_t width, int64_t x_stride, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *from = x + r / heads * x_stride + r % heads * width;
        bf16 *to = out + r * width;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            float value = widen(from[i]);
            sum += value * value;
        }
        float scale = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = narrow(widen(from[i]) * scale * weight[i]);
    }
}

/* The same of float32, to float32; rows are dense. */
void rms_norm32(const float *restrict x, const float *restrict weight, float *restrict out, int64_t rows, int64_t width,
                float eps) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float *to = out + r * width;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += from[i] * from[i];
        float scale = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = from[i] * scale * weight[i];
    }
}

/* stream[r] += update[r], then out[r] is the norm of stream[r] as above; rows of update are update_stride apart */
void add_rms_norm(float *restrict stream, const bf16 *restrict update, const float *restrict weight,
                  bf16 *restrict out, int64_t rows, int64_t width, int64_t update_stride, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *add = update + r * update_stride;
        float *x = stream + r * width;
        bf16 *to = out + r * width;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            x[i] += widen(add[i]);
            sum += x[i] * x[i];
        }
        float scale = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = narrow(x[i] * scale * weight[i]);
    }
}

/* codes[r] = x[r] / scales[r] to the nearest whole number, where 127 scales[r] is the largest magnitude of x[r].
 * A row that holds a NaN or an infinity gets a scale that is not finite, and codes of zero. */
void quantise_rows(const bf16 *restrict x, int8_t *restrict codes, float *restrict scales, int64_t rows, int64_t width,
                   int64_t x_stride) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *from = x + r * x_stride;
        int8_t *to = codes + r * width;
        uint32_t largest = 0; /* magnitudes of floats compare as their bits do, and a NaN is above all */
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < width; i++) {
            uint32_t magnitude = (uint32_t)from[i] & 0x7fff;
            largest = magnitude > largest ? magnitude : largest;
        }
        int finite = largest < 0x7f80;
        scales[r] = finite ? fmaxf(widen((bf16)largest) / 127.0f, 1e-30f) : widen((bf16)largest);
        float factor = finite ? 1.0f / scales[r] : 0.0f;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            bf16 value = finite ? from[i] : 0;
            to[i] = (int8_t)rintf(widen(value) * factor);
        }
    }
}

/* y[r] = y[r] * scales[r] in place */
void scale_rows(bf16 *restrict y, const float *restrict scales, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        bf16 *to = y + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = narrow(widen(to[i]) * scales[r]);
    }
}

/* out[r] = silu(gate) * up, or gelu(gate) * up by the tanh approximation, where row r of x holds gate and then up,
 * width elements each; 1 + tanh(y) is 2 / (1 + exp(-2 y)) */
static inline void gate_rows(const bf16 *restrict x, bf16 *restrict out, int64_t rows, int64_t width, int gelu) {
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *gate = x + r * 2 * width, *up = gate + width;
        bf16 *to = out + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float value = widen(gate[i]);
            float inner = gelu ? 1.59576912f * (value + 0.044715f * value * value * value) : value;
            to[i] = narrow(value / (1.0f + exp_approx(-inner)) * widen(up[i]));
        }
    }
}

void swiglu(const bf16 *x, bf16 *out, int64_t rows, int64_t width) { gate_rows(x, out, rows, width, 0); }

void geglu(const bf16 *x, bf16 *out, int64_t rows, int64_t width) { gate_rows(x, out, rows, width, 1); }

/* Rotary embedding of heads of 2 * half elements in place, pairs (i, i + half); cos and sin are [rows, half].
 * Heads of a row follow each other in x; rows are x_stride apart. */
void rotate(bf16 *x, const float *restrict cos, const float *restrict sin, int64_t rows, int64_t heads, int64_t half,
            int64_t x_stride) {
#pragma omp parallel for schedule(static) if (rows * heads * half > PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const float *c = cos + r * half, *s = sin + r * half;
        for (int64_t h = 0; h < heads; h++) {
            bf16 *low = x + r * x_stride + h * 2 * half, *high = low + half;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float first = widen(low[i]), second = widen(high[i]);
                low[i] = narrow(first * c[i] - second * s[i]);
                high[i] = narrow(second * c[i] + first * s[i]);
            }
        }
    }
}

/* Fold a partial attention result into a running one: log-sum-exps are natural, part is bfloat16.
 * Rows are heads x queries; row r of head h is at h * stride + r in units of one row. */
void merge(float *restrict out, float *restrict lse, const bf16 *restrict part, const float *restrict part_lse,
           int64_t heads, int64_t rows, int64_t width, int64_t stride) {
#pragma omp parallel for collapse(2) schedule(static) if (heads * rows * width > PARALLEL_FROM)
    for (int64_t h = 0; h < heads; h++)
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = h * stride + r, from = h * rows + r;
            float high = lse[at] > part_lse[from] ? lse[at] : part_lse[from];
            float old = expf(lse[at] - high), new = expf(part_lse[from] - high);
            float keep = old / (old + new), add = new / (old + new);
            lse[at] = high + logf(old + new);
            float *to = out + at * width;
            const bf16 *source = part + from * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++) to[i] = to[i] * keep + widen(source[i]) * add;
        }
}

/* logits[r][c] = hidden[r] . head[ids[r][c]]; hidden is [rows, width], ids [rows, columns] */
void label_logits(const float *restrict hidden, const bf16 *restrict head, const int64_t *restrict ids,
                  float *restrict logits, int64_t rows, int64_t columns, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * columns * width > PARALLEL_FROM)
    for (int64_t i = 0; i < rows * columns; i++) {
        const float *x = hidden + i / columns * width;
        const bf16 *y = head + ids[i] * width;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; k++) sum += x[k] * widen(y[k]);
        logits[i] = sum;
    }
}
