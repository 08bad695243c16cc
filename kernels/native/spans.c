/* Whether a span table contradicts itself, and how its spans hang together.
 *
 * Spans in order of their first row, and of position where that is the same, come as a walk through the trie of the step does:
 * those whose rows have ended are behind it, and the others hold the row one below the other. So the one that was reached last
 * of these is the previous of the next. The engine writes spans in this order; others are sorted first.
 * Judges: kernels.checks.check_spans, kernels.spans.previous_spans.
 */
#include "spans.h"

#include <stdlib.h>
#include <string.h>

void sort_keyed(keyed *all, keyed *spare, int64_t count) {
    for (int64_t half = 1; half < count; half *= 2)
        for (int64_t low = 0; low + half < count; low += 2 * half) {
            const int64_t high = low + 2 * half < count ? low + 2 * half : count;
            int64_t left = 0, right = low + half, to = low;
            if (all[right - 1].key <= all[right].key) continue;
            memcpy(spare, all + low, half * sizeof *all);
            while (left < half) all[to++] = right < high && all[right].key < spare[left].key ? all[right++] : spare[left++];
        }
}

/* Spans with query rows, in order of the walk; how many there are. */
static int64_t in_order(const span_table *t, keyed *order, keyed *spare) {
    int64_t count = 0;
    for (int64_t m = 0; m < t->num_spans; m++)
        if (t->query_lo[m] < t->query_hi[m])
            order[count++] = (keyed){((int64_t)t->query_lo[m] << 32) + t->key_position[m], m};
    sort_keyed(order, spare, count);
    return count;
}

/* `open`: the spans that hold the row at hand, each the previous of the next. */
static int walk(const span_table *t, const keyed *order, int64_t count, int32_t *open, int32_t *previous) {
    int64_t depth = 0, row = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t m = (int32_t)order[i].place;
        while (depth && t->query_hi[open[depth - 1]] <= t->query_lo[m]) depth--;
        if (t->key_position[m] > 0) {
            const int32_t last = depth ? open[depth - 1] : -1;
            if (last < 0 || t->query_hi[last] < t->query_hi[m] ||
                (int64_t)t->key_position[last] + t->key_tokens[last] != t->key_position[m])
                return UNSOUND;
            previous[m] = last;
        }
        open[depth++] = m;
        if (!t->causal[m]) continue;
        if (t->query_lo[m] != row) return UNSOUND;
        row = t->query_hi[m];
    }
    return row == t->num_queries ? SOUND : UNSOUND;
}

int find_previous(const span_table *t, int32_t *previous) {
    keyed *order = malloc((size_t)(t->num_spans + 1) * (2 * sizeof *order + sizeof(int32_t))); /* one more: none is no error */
    if (!order) return NO_MEMORY;
    keyed *spare = order + t->num_spans;
    memset(previous, -1, t->num_spans * sizeof *previous);
    const int result = walk(t, order, in_order(t, order, spare), (int32_t *)(spare + t->num_spans), previous);
    free(order);
    return result;
}

static int is_sound(const span_table *t, int64_t m) {
    const int64_t key_hi = (int64_t)t->key_lo[m] + t->key_tokens[m];
    const int rows = t->query_lo[m] >= 0 && t->query_lo[m] <= t->query_hi[m] && t->query_hi[m] <= t->num_queries;
    const int keys = t->key_lo[m] >= 0 && t->key_tokens[m] >= 1 && t->key_position[m] >= 0;
    return rows && keys && !(t->from_pool[m] && (t->causal[m] || key_hi > t->num_blocks * t->block_size));
}

/* Whether a packed table keeps its contract; anything but SOUND stands for one that may not.
 *
 * fresh_rows, slots: the least that hold all it names. */
int check_spans(const void *packed, int64_t *fresh_rows, int64_t *slots) {
    const span_table t = unpack_table(packed);
    int64_t block_hi = 0, fresh_hi = 0;
    if (t.block_size < 1) return UNSOUND;
    for (int64_t b = 0; b < t.num_blocks; b++) {
        if (t.block_ids[b] < 0) return UNSOUND;
        if (block_hi <= t.block_ids[b]) block_hi = (int64_t)t.block_ids[b] + 1;
    }
    for (int64_t m = 0; m < t.num_spans; m++) {
        const int64_t key_hi = (int64_t)t.key_lo[m] + t.key_tokens[m];
        if (!is_sound(&t, m)) return UNSOUND;
        if (!t.from_pool[m] && fresh_hi < key_hi) fresh_hi = key_hi;
    }
    *fresh_rows = fresh_hi, *slots = block_hi * t.block_size;
    int32_t *previous = malloc((size_t)(t.num_spans + 1) * sizeof *previous);
    if (!previous) return NO_MEMORY;
    const int result = find_previous(&t, previous);
    free(previous);
    return result;
}
