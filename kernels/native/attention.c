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
#include "tiles.h"

#if defined(__AVX512BF16__)
#include "attention.h"
#include "panels.h"
#include "softmax.h"

#define AHEAD 4 /* groups of keys that are on their way at one time, the one whose turn it is included */
#define ROWS 32 /* query rows that run through the softmax together: two matrix tiles */

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

/* ---- keys and values of an item ------------------------------------------------------------------------ */

/* Where LANES keys of an item and their values lie, from key `first` on; those from `count` on do not exist. */
typedef struct {
    const bf16 *key[LANES], *value[LANES];
} places;

static void locate(const attention *a, const item *run, int64_t head, int64_t first, int64_t count, places *at) {
    memset(at, 0, sizeof *at);
    if (count <= 0) return; /* there may be no piece after the last key */
    const piece *from = a->pieces + run->piece;
    int64_t done = run->skip + first;
    while (done >= from->tokens) done -= from++->tokens;
    int64_t block = (from->key_lo + done) / a->block_size, inside = (from->key_lo + done) % a->block_size;
    for (int64_t n = 0; n < least(count, LANES); n++, done++, inside++) {
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

static void bring_nearer(const places *at, int64_t dim) {
    for (int n = 0; n < LANES && at->key[n]; n++)
        for (int64_t d = 0; d < dim; d += 32) {
            _mm_prefetch((const char *)(at->key[n] + d), _MM_HINT_T0);
            _mm_prefetch((const char *)(at->value[n] + d), _MM_HINT_T0);
        }
}

/* The panels of an item; whole pairs of panels are written. Keys are found and brought nearer a while before their turn, since
 * the blocks of a pool lie anywhere. */
static void pack(const attention *a, const item *run, int64_t head, workspace *w) {
    places found[AHEAD];
    for (int64_t turn = 0, soon = 0; soon < round_up(run->tokens, TILE_KEYS) + (AHEAD - 1) * LANES; turn++, soon += LANES) {
        const int64_t start = soon - (AHEAD - 1) * LANES;
        locate(a, run, head, soon, run->tokens - soon, &found[turn % AHEAD]);
        bring_nearer(&found[turn % AHEAD], a->head_dim);
        if (start < 0) continue;
        const places *here = &found[(turn + 1) % AHEAD];
        pack_keys(here->key, a->head_dim, w->width, w->key + start / 2 * w->width);
        pack_values(here->value, a->head_dim, w->width, w->value + start / 2 * LANES);
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
        int64_t hi = run->causal ? least(before + 1, run->tokens) : run->tokens;
        int64_t lo = a->window ? most(before + 1 - a->window, 0) : 0;
        if (lo >= hi) lo = hi = 0;
        v->lo[r] = (int32_t)lo;
        v->hi[r] = (int32_t)hi;
        if (lo < hi) {
            v->least = (int32_t)least(v->least, lo);
            v->most = (int32_t)most(v->most, hi);
        }
    }
    for (int64_t r = 0; r < count; r++) v->uneven |= v->lo[r] != v->least || v->hi[r] != v->most;
}

/* Up to ROWS rows from row `row` of the unit see the packed keys. */
static void run_tile(const attention *a, int amx, int64_t row, int64_t count, const view *v, state here, workspace *w) {
    const int64_t width = w->width, stride = width + LANES, rows = round_up(count, LANES);
    const int64_t begin = v->least / TILE_KEYS * TILE_KEYS, end = round_up(v->most, TILE_KEYS);
    const int plain = !v->uneven && a->soft_cap == 0.0f && begin == v->least && end == v->most;
    product(amx, w->query + row * width, width, w->key + begin / LANES * (width / 2 * LANES), width / 2 * LANES,
            w->scores + begin, STRETCH, width, (end - begin) / LANES, rows, 0);
    for (int64_t r = 0; r < count; r++) {
        float *scores = w->scores + r * STRETCH;
        float top = plain ? top_logit(a->scale, scores, begin, end)
                          : logits(a->scale, a->soft_cap, scores, begin, end, v->lo[r], v->hi[r]);
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
        const int64_t count = least(ROWS, high - row);
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
    return (rows + ROWS) * (width + LANES) + round_up(rows + ROWS, LANES);
}

static state state_in(float *memory, int64_t rows, int64_t width) {
    return (state){memory, memory + (rows + ROWS) * (width + LANES)};
}

static state share_in(const attention *a, float *shares, int64_t share, int64_t width) {
    return state_in(shares + share * state_size(a->unit_rows, width), a->unit_rows, width);
}

static void run_unit(const attention *a, int amx, const unit *u, float *shares, workspace *w) {
    const int64_t width = w->width, dim = a->head_dim, group = a->group, head = u->head;
    const int64_t rows = (u->query_hi - u->query_lo) * group;
    const item *run = a->items + u->item_lo, *end = a->items + u->item_hi;
    const state all = u->share < 0 ? w->all : share_in(a, shares, u->share, width);
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

static void run_join(const attention *a, const join *j, float *shares, workspace *w) {
    const int64_t rows = (j->query_hi - j->query_lo) * a->group;
    forget(w->all, rows);
    for (int64_t share = j->share_lo; share < j->share_hi; share++)
        add_stretch(w->all, share_in(a, shares, share, w->width), rows, w->width);
    write_out(a, j->query_lo, rows, j->head, w->all, w->width);
}

/* Memory for units of `rows` rows, kept by the thread for the next call; 0 when there is none. */
static int take_workspace(workspace *w, int64_t rows, int64_t width) {
    static _Thread_local kept_memory kept;
    float *all, *here;
    const int64_t sizes[] = {(rows + ROWS) * width * 2, state_size(rows, width) * 4, state_size(rows, width) * 4,
                             STRETCH * width * 2,       STRETCH * width * 2,         ROWS * STRETCH * 4,
                             ROWS * STRETCH * 2,        LANES * (width + LANES) * 4};
    void **parts[] = {(void **)&w->query, (void **)&all,    (void **)&here,    (void **)&w->key,
                      (void **)&w->value, (void **)&w->scores, (void **)&w->weights, (void **)&w->others};
    if (!take_parts(&kept, sizes, parts, 8)) return 0;
    w->all = state_in(all, rows, width);
    w->here = state_in(here, rows, width);
    w->width = width;
    return 1;
}

/* Runs all units, then all joins. Gives 0, or 1 when there was no memory to work in. */
int attend(const attention *a) {
    const int64_t width = round_up(a->head_dim, 32);
    const size_t shared = a->num_shares * state_size(a->unit_rows, width) * sizeof(float);
    float *shares = shared ? aligned_alloc(64, shared) : NULL;
    const int amx = ask_for_tiles();
    int failed = shared && !shares;
    if (failed) return failed;
#pragma omp parallel if (a->num_units > 1)
    {
        workspace w;
        int ready = take_workspace(&w, a->unit_rows, width);
        const tile_shapes before = amx ? enter_tiles() : (tile_shapes){.palette = 0};
        if (!ready)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t u = 0; u < a->num_units; u++)
            if (ready) run_unit(a, amx, a->units + u, shares, &w);
        if (a->num_joins) {
#pragma omp barrier
#pragma omp for nowait
            for (int64_t j = 0; j < a->num_joins; j++)
                if (ready) run_join(a, a->joins + j, shares, &w);
        }
        if (amx) leave_tiles(&before);
    }
    free(shares);
    return failed;
}

#endif
