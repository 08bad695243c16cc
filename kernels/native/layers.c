/* The layers of a decoder, one after the other in one call.
 *
 * Each is what linear.c, elementwise.c and attention.c do; nothing is computed here. A step of a few rows takes a few
 * hundred microseconds a layer, and to come back to Python between its six operations takes as long as one of them.
 */
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <string.h>

#include "attention.h"
#include "linear.h"

#define PARALLEL_FROM 64 /* kept rows; fewer are written before a second thread has woken up */

void rotate(bf16 *x, const float *restrict cos, const float *restrict sin, int64_t rows, int64_t heads, int64_t half,
            int64_t x_stride);

typedef struct {
    layer qkv, attention_out, feed_forward; /* but for rows and where these are */
    int64_t turn, window;                   /* turn: which of the tables of angles; window 0: none */
    float scale, soft_cap;                  /* soft_cap 0: none */
} decoder_layer;

typedef struct {
    const decoder_layer *layers;
    const float *const *turns;       /* cosines and sines [rows, head_dim / 2] of the first kind of angles, and so on */
    float *stream;                   /* [rows, hidden] */
    bf16 *update, *qkv, *attended;   /* [rows, hidden]; of query, key and value; of query */
    bf16 *key_pools, *value_pools;   /* [layers, kv_heads, slots, head_dim], dense */
    const int64_t *keep_rows, *keep_slots;
    int64_t num_layers, rows, num_kept;
    attention attend;                /* but for what changes from layer to layer */
} decoder_step;

/* Keys or values [rows, kv_heads, head_dim] of kept rows to their slots; rows are `stride` apart. */
static void keep(const decoder_step *s, const bf16 *from, int64_t stride, bf16 *pool) {
    const int64_t dim = s->attend.head_dim;
#pragma omp parallel for schedule(static) if (s->num_kept > PARALLEL_FROM)
    for (int64_t k = 0; k < s->num_kept; k++)
        for (int64_t head = 0; head < s->attend.kv_heads; head++)
            memcpy(pool + head * s->attend.pool_stride + s->keep_slots[k] * dim, from + s->keep_rows[k] * stride + head * dim,
                   dim * sizeof(bf16));
}

static layer of_step(layer l, const decoder_step *s, float *stream, const bf16 *x, bf16 *out) {
    l.stream = stream, l.x = x, l.out = out, l.rows = s->rows, l.x_stride = l.in;
    return l;
}

static layer qkv_of(const decoder_step *s, int64_t number) {
    return of_step(s->layers[number].qkv, s, s->stream, s->update, s->qkv);
}

/* All of a layer behind its first product, and the first product of the next layer. */
static int run_one(const decoder_step *s, int64_t number) {
    const decoder_layer *l = s->layers + number;
    attention a = s->attend;
    const int64_t dim = a.head_dim, heads = a.kv_heads * a.group, width = (heads + 2 * a.kv_heads) * dim;
    const int64_t before = number * a.kv_heads * a.pool_stride;
    bf16 *key = s->qkv + heads * dim, *value = key + a.kv_heads * dim;
    rotate(s->qkv, s->turns[2 * l->turn], s->turns[2 * l->turn + 1], s->rows, heads + a.kv_heads, dim / 2, width);
    keep(s, key, width, s->key_pools + before);
    keep(s, value, width, s->value_pools + before);
    a.query = s->qkv, a.key = key, a.value = value, a.out = s->attended;
    a.key_pool = s->key_pools + before, a.value_pool = s->value_pools + before;
    a.query_stride = a.key_stride = a.value_stride = width;
    a.window = l->window, a.scale = l->scale, a.soft_cap = l->soft_cap;
    if (attend(&a)) return 1;
    /* the update was added to the stream before the first product, so its memory is free */
    layer chain[CHAIN] = {of_step(l->attention_out, s, NULL, s->attended, s->update),
                          of_step(l->feed_forward, s, s->stream, s->update, s->update)};
    if (number + 1 == s->num_layers) return run_chain(chain, 2);
    chain[2] = qkv_of(s, number + 1);
    return run_chain(chain, 3);
}

/* Runs all layers; the update of the last is in place of the first. Gives 0, or 1 when there was no memory to work in. */
int run_layers(const decoder_step *s) {
    if (s->rows == 0) return 0;
    const layer first = qkv_of(s, 0);
    if (run_layer(&first)) return 1;
    for (int64_t i = 0; i < s->num_layers; i++)
        if (run_one(s, i)) return 1;
    return 0;
}

#endif
