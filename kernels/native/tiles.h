/* What sources written for AVX512-BF16 share: tile registers, a few vector operations, and memory of a thread.
 *
 * Comes before any other header: whoever includes it has the order of operations as written, while the flags of the library
 * let a compiler choose one, also among intrinsics, which to GCC are plain operators on vectors.
 */
#pragma once

#if defined(__clang__)
#pragma clang fp reassociate(off) contract(off)
#else
#pragma GCC optimize("no-associative-math", "no-reciprocal-math", "fp-contract=off")
#endif

#if defined(__AVX512BF16__)
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint16_t bf16;

/* For functions that are given constants to be compiled for. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define TILE 512 /* elements of a tile: 16 rows of 32 inputs, or 16 pairs of inputs for 16 outputs */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t round_up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

/* ---- tile registers ------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>

/* Stands between writing memory and loading tiles from it, and between storing tiles and reading that: to GCC (12, for one) the
 * intrinsics are assembly that touches no memory, so it moves other accesses across, or leaves out what nobody seems to read. */
static inline void settle(void) { __asm__ volatile("" ::: "memory"); }

/* Tiles 0 to 3 become the quarters of sums [32, 32], of four bytes each, row by row, or zeros. */
ALWAYS_INLINE void begin_sums(const void *sums, int resume) {
    const char *at = (const char *)sums;
    settle();
    if (resume) {
        _tile_loadd(0, at, 128);
        _tile_loadd(1, at + 64, 128);
        _tile_loadd(2, at + 2048, 128);
        _tile_loadd(3, at + 2112, 128);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* The other way; without `both`, the first 16 rows only. */
ALWAYS_INLINE void end_sums(void *sums, int both) {
    char *at = (char *)sums;
    _tile_stored(0, at, 128);
    _tile_stored(1, at + 64, 128);
    if (both) {
        _tile_stored(2, at + 2048, 128);
        _tile_stored(3, at + 2112, 128);
    }
    settle();
}

/* Whether tile registers can be used; Linux gives them to a process that asks. */
static inline int ask_for_tiles(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* All tiles whole. Gives what they were before, so that whoever used them finds them in the same shapes. */
static inline tile_shapes enter_tiles(void) {
    tile_shapes before, ours = {.palette = 1};
    _tile_storeconfig(&before);
    for (int i = 0; i < 8; i++) ours.row_bytes[i] = 64, ours.rows[i] = 16;
    _tile_loadconfig(&ours);
    return before;
}

static inline void leave_tiles(const tile_shapes *before) {
    if (before->palette) _tile_loadconfig(before);
    else _tile_release();
}
#else
static inline int ask_for_tiles(void) { return 0; }

static inline tile_shapes enter_tiles(void) { return (tile_shapes){.palette = 0}; }

static inline void leave_tiles(const tile_shapes *before) { (void)before; }
#endif

/* ---- vectors -------------------------------------------------------------------------------------------- */

/* Lanes of the first `count` of 32 elements. */
static inline __mmask32 first_of(int64_t count) {
    return count >= 32 ? ~(__mmask32)0 : count <= 0 ? 0 : ((__mmask32)1 << count) - 1;
}

static inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

/* exp(x) for x up to 88 by a polynomial around the nearest power of two; relative error below 1e-6 */
static inline __m512 exp_vector(__m512 x) {
    /* the bound comes first: the second operand is what is left of a NaN */
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
    x = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole), p = _mm512_set1_ps(1.3333558e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

/* 16 vectors of 16 elements of 32 bits: rows become columns. */
static inline void transpose(__m512i r[16]) {
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

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Memory of a thread, kept from call to call of one source; NULL where there is none. */
typedef struct {
    char *memory;
    int64_t size;
} kept_memory;

static inline char *take(kept_memory *kept, int64_t size) {
    if (size > kept->size) {
        free(kept->memory);
        kept->memory = aligned_alloc(64, round_up(size, 64));
        kept->size = kept->memory ? size : 0;
    }
    return kept->memory;
}

/* The same as parts of `sizes` bytes, each at a multiple of 64 bytes; 0 where there is none. */
static inline int take_parts(kept_memory *kept, const int64_t *sizes, void **const *parts, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++) total += round_up(sizes[i], 64);
    char *next = take(kept, total);
    if (!next) return 0;
    for (int i = 0; i < count; i++) {
        *parts[i] = next;
        next += round_up(sizes[i], 64);
    }
    return 1;
}

#endif
