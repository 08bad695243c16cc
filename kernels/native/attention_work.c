/* Cuts a step for attention.c; what the arrays are is written down at kernels.native.attention_work.AttentionWork.
 *
 * Queries are taken in runs of `unit_tokens`, the last of which may be shorter. No tile of keys is cut where a span ends and
 * another begins: its keys go to the lower span, whose rows are all that see the whole tile.
 */
#include "attention_work.h"

#include <stdlib.h>
#include <string.h>

#include "spans.h"

enum { NUM_ITEMS, NUM_PIECES, NUM_JOINS, NUM_UNITS, NUM_SHARES, NUM_COUNTS };

typedef struct {
    span_table table;
    int64_t unit_tokens, num_runs, kv_heads;
    int64_t whole_heads;   /* a unit of the heads after them has the items of one stretch */
    int64_t stretches;     /* that a row sees at most */
    int32_t *previous;     /* [num_spans], see find_previous */
    int32_t *first_piece;  /* [num_spans] */
    int64_t *run_items;    /* [num_runs] how many; then where the next goes; then where they end */
    keyed *found;          /* [items] position and span of each item, those of a run together */
    keyed *order;          /* [units] pairs of query and key of a unit, negative, and its place in `unsorted` */
    keyed *spare;          /* as many as there are of found or of order */
    unit *unsorted;        /* [units] */
    item *items;
    piece *pieces;
    join *joins;
    int64_t *counts;       /* [NUM_COUNTS] */
} work;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Positions of the keys that items of a span have, from the first of a tile on; none: low is high. */
typedef struct {
    int64_t low, high;
} key_range;

static key_range keys_of(const span_table *t, int64_t m) {
    const int64_t low = t->key_position[m] / TILE_KEYS * TILE_KEYS, high = (int64_t)t->key_position[m] + t->key_tokens[m];
    if (t->query_lo[m] == t->query_hi[m]) return (key_range){low, low};
    /* rows that see all of a span see more keys after it, and those complete its last tile */
    return (key_range){low, t->causal[m] ? high : most(low, high / TILE_KEYS * TILE_KEYS)};
}

static int64_t run_lo(const work *w, int64_t m) { return w->table.query_lo[m] / w->unit_tokens; }

static int64_t run_hi(const work *w, int64_t m) { return (w->table.query_hi[m] - 1) / w->unit_tokens + 1; }

/* The pieces of a span's items: keys of those before it in its first tile, then its own. They are written before `end`, if
 * there is one. Gives how many. */
static int64_t put_pieces(const work *w, int64_t m, piece *end) {
    const span_table *t = &w->table;
    const int64_t own = keys_of(t, m).high - t->key_position[m];
    if (end) end[-1] = (piece){t->key_lo[m], (int32_t)own, t->from_pool[m]};
    int64_t count = 1;
    for (int32_t missing = t->key_position[m] % TILE_KEYS, keys; missing; missing -= keys) {
        m = w->previous[m];
        keys = (int32_t)least(missing, t->key_tokens[m]);
        count++;
        if (end) end[-count] = (piece){t->key_lo[m] + t->key_tokens[m] - keys, keys, t->from_pool[m]};
    }
    return count;
}

static void measure(work *w) {
    for (int64_t m = 0; m < w->table.num_spans; m++) {
        const key_range keys = keys_of(&w->table, m);
        if (keys.low == keys.high) continue;
        const int64_t stretches = (keys.high - 1) / STRETCH - keys.low / STRETCH + 1;
        w->stretches = most(w->stretches, (keys.high - 1) / STRETCH + 1);
        for (int64_t run = run_lo(w, m); run < run_hi(w, m); run++) w->run_items[run] += stretches;
        w->counts[NUM_ITEMS] += stretches * (run_hi(w, m) - run_lo(w, m));
        w->counts[NUM_PIECES] += put_pieces(w, m, NULL);
    }
}

static void find_items(work *w) {
    for (int64_t run = 0, first = 0, count; run < w->num_runs; run++, first += count) {
        count = w->run_items[run];
        w->run_items[run] = first;
    }
    for (int64_t m = 0; m < w->table.num_spans; m++) {
        const key_range keys = keys_of(&w->table, m);
        if (keys.low == keys.high) continue;
        for (int64_t run = run_lo(w, m); run < run_hi(w, m); run++)
            for (int64_t position = keys.low; position < keys.high; position = (position / STRETCH + 1) * STRETCH)
                w->found[w->run_items[run]++] = (keyed){position, m};
    }
}

static void write_pieces(work *w) {
    piece *end = w->pieces + w->counts[NUM_PIECES];
    for (int64_t m = w->table.num_spans - 1; m >= 0; m--) {
        const key_range keys = keys_of(&w->table, m);
        if (keys.low == keys.high) continue;
        end -= put_pieces(w, m, end);
        w->first_piece[m] = (int32_t)(end - w->pieces);
    }
}

static item item_of(const work *w, int64_t run, int64_t position, int64_t m) {
    const span_table *t = &w->table;
    const key_range keys = keys_of(t, m);
    return (item){
        .query_lo = (int32_t)most(t->query_lo[m], run * w->unit_tokens),
        .query_hi = (int32_t)least(t->query_hi[m], (run + 1) * w->unit_tokens),
        .position = (int32_t)position,
        .tokens = (int32_t)(least(keys.high, (position / STRETCH + 1) * STRETCH) - position),
        .causal = t->causal[m],
        .piece = w->first_piece[m],
        .skip = (int32_t)(position - keys.low),
    };
}

static void add_unit(work *w, int64_t run, int64_t head, int64_t item_lo, int64_t item_hi, int64_t share) {
    const int64_t query_lo = run * w->unit_tokens, query_hi = least(query_lo + w->unit_tokens, w->table.num_queries);
    const int64_t number = w->counts[NUM_UNITS]++;
    int64_t pairs = 0;
    for (const item *i = w->items + item_lo; i < w->items + item_hi; i++) pairs += (int64_t)(i->query_hi - i->query_lo) * i->tokens;
    w->order[number] = (keyed){-pairs, number};
    w->unsorted[number] = (unit){(int32_t)head,    (int32_t)query_lo, (int32_t)query_hi,
                                 (int32_t)item_lo, (int32_t)item_hi,  (int32_t)share};
}

static int64_t stretch_of(const work *w, int64_t item) { return w->items[item].position / STRETCH; }

/* A unit for each stretch of the items [low, high) of a run, and how they are joined. */
static void add_shares(work *w, int64_t run, int64_t head, int64_t low, int64_t high) {
    const int64_t share_lo = w->counts[NUM_SHARES];
    for (int64_t first = low, next = low + 1; next <= high; next++) {
        if (next < high && stretch_of(w, next) == stretch_of(w, first)) continue;
        add_unit(w, run, head, first, next, w->counts[NUM_SHARES]++);
        first = next;
    }
    const unit *any = w->unsorted + w->counts[NUM_UNITS] - 1;
    w->joins[w->counts[NUM_JOINS]++] =
        (join){any->head, any->query_lo, any->query_hi, (int32_t)share_lo, (int32_t)w->counts[NUM_SHARES]};
}

/* The units of a run that has the items [low, high). */
static void add_units(work *w, int64_t run, int64_t low, int64_t high) {
    const int64_t whole = stretch_of(w, low) == stretch_of(w, high - 1) ? w->kv_heads : w->whole_heads;
    for (int64_t head = 0; head < whole; head++) add_unit(w, run, head, low, high, -1);
    for (int64_t head = whole; head < w->kv_heads; head++) add_shares(w, run, head, low, high);
}

/* Items, pieces, joins, units, positions and block ids, one after the other. */
static void write_work(work *w, int32_t *into) {
    const span_table *t = &w->table;
    w->items = (item *)into;
    w->pieces = (piece *)(w->items + w->counts[NUM_ITEMS]);
    w->joins = (join *)(w->pieces + w->counts[NUM_PIECES]);
    find_items(w);
    write_pieces(w);
    for (int64_t run = 0, low = 0; run < w->num_runs; low = w->run_items[run++]) {
        const int64_t high = w->run_items[run];
        sort_keyed(w->found + low, w->spare, high - low);
        for (int64_t i = low; i < high; i++) w->items[i] = item_of(w, run, w->found[i].key, w->found[i].place);
        if (low < high) add_units(w, run, low, high);
    }
    unit *units = (unit *)(w->joins + w->counts[NUM_JOINS]);
    sort_keyed(w->order, w->spare, w->counts[NUM_UNITS]);
    for (int64_t n = 0; n < w->counts[NUM_UNITS]; n++) units[n] = w->unsorted[w->order[n].place];
    int32_t *positions = (int32_t *)(units + w->counts[NUM_UNITS]);
    memcpy(positions, t->positions, t->num_queries * sizeof *positions);
    memcpy(positions + t->num_queries, t->block_ids, t->num_blocks * sizeof *positions);
}

static int64_t most_joins(const work *w) { return w->num_runs * (w->kv_heads - w->whole_heads); }

static int64_t most_units(const work *w) { return w->num_runs * w->whole_heads + most_joins(w) * w->stretches; }

/* Bytes that write_work fills at most. */
static int64_t room_for(const work *w) {
    return w->counts[NUM_ITEMS] * sizeof(item) + w->counts[NUM_PIECES] * sizeof(piece) + most_joins(w) * sizeof(join) +
           most_units(w) * sizeof(unit) + (w->table.num_queries + w->table.num_blocks) * sizeof(int32_t);
}

static int write_if_memory(work *w, int32_t *into) {
    const int64_t items = w->counts[NUM_ITEMS], units = most_units(w);
    const int64_t num_keyed = items + units + most(items, units);
    char *memory = malloc((num_keyed + 1) * sizeof(keyed) + units * sizeof(unit)); /* one more: none is no error */
    if (!memory) return NO_MEMORY;
    w->found = (keyed *)memory, w->order = w->found + items, w->spare = w->order + units;
    w->unsorted = (unit *)(w->found + num_keyed);
    write_work(w, into);
    free(memory);
    return SOUND;
}

/* Cuts a packed table that kernels.checks.check_spans accepts, see write_work; `counts` says how many items, pieces, joins,
 * units and shares there are.
 *
 * Gives how many bytes are wanted; more than `room`: nothing was written; negative: UNSOUND or NO_MEMORY. */
int64_t cut_attention(const void *packed, int64_t unit_tokens, int64_t kv_heads, int64_t whole_heads, int32_t *into,
                      int64_t room, int64_t *counts) {
    work w = {.table = unpack_table(packed), .unit_tokens = unit_tokens, .counts = counts};
    const int64_t num_spans = w.table.num_spans;
    w.kv_heads = kv_heads, w.whole_heads = whole_heads;
    w.num_runs = (w.table.num_queries + unit_tokens - 1) / unit_tokens;
    memset(counts, 0, NUM_COUNTS * sizeof *counts);
    char *memory = calloc(w.num_runs + num_spans + 1, sizeof(int64_t)); /* one more: none is no error */
    if (!memory) return NO_MEMORY;
    w.run_items = (int64_t *)memory;
    w.previous = (int32_t *)(w.run_items + w.num_runs), w.first_piece = w.previous + num_spans;
    int64_t result = find_previous(&w.table, w.previous), wanted = 0;
    if (result == SOUND) {
        measure(&w);
        wanted = room_for(&w);
        if (wanted <= room) result = write_if_memory(&w, into);
    }
    free(memory);
    return result == SOUND ? wanted : result;
}
