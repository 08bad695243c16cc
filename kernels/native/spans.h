/* The spans of a step as C reads them; see spans.c. */
#pragma once
#include <stdint.h>

/* See kernels.api.SpanTable. */
typedef struct {
    int64_t num_spans, num_queries, num_blocks, block_size;
    const int32_t *query_lo, *query_hi, *key_lo, *key_tokens, *key_position; /* [num_spans] */
    const int32_t *positions, *block_ids;                                    /* [num_queries], [num_blocks] */
    const uint8_t *from_pool, *causal;                                       /* [num_spans] */
} span_table;

/* A table as kernels.native.spans packs it: the four numbers, then the arrays, in the order of the struct. */
static inline span_table unpack_table(const void *packed) {
    span_table t;
    const int64_t *numbers = packed;
    t.num_spans = numbers[0], t.num_queries = numbers[1], t.num_blocks = numbers[2], t.block_size = numbers[3];
    const int32_t *next = (const int32_t *)(numbers + 4);
    const int32_t **columns[] = {&t.query_lo, &t.query_hi, &t.key_lo, &t.key_tokens, &t.key_position};
    for (int i = 0; i < 5; i++, next += t.num_spans) *columns[i] = next;
    t.positions = next, next += t.num_queries;
    t.block_ids = next, next += t.num_blocks;
    t.from_pool = (const uint8_t *)next, t.causal = t.from_pool + t.num_spans;
    return t;
}

/* What came of a table. */
enum { SOUND = 0, UNSOUND = -1, NO_MEMORY = -2 };

/* For each span with query rows the one whose keys these see right before; -1: none, the span begins at position 0.
 * Gives SOUND; UNSOUND where a span that begins elsewhere has none, or a row is not in exactly one causal span; or NO_MEMORY. */
int find_previous(const span_table *t, int32_t *previous);

typedef struct {
    int64_t key, place;
} keyed;

/* Ascending, those of one key in the order they had. `spare` has room for as many. */
void sort_keyed(keyed *all, keyed *spare, int64_t count);
