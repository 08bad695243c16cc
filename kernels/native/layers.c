/* The layers of a decoder, one after the other in one call.
 *
 * Each is what linear.c, elementwise.c and attention.c do; nothing is computed here. A step of a few rows takes a few
 * hundred microseconds a layer, and to come back to Python between its six operations takes as long as one of them.
 */
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <omp.h>
#include <string.h>

#include "attention.h"
#include "linear.h"

#define PARALLEL_FROM 64 /* kept rows; fewer are written before a second thread has woken up */

void rotate(bf16 *x, const float *restrict cos, const float *restrict sin, int64_t rows, int64_t heads, int64_t half,
            int64_t x_stride);
void rms_norm32(const float *restrict x, const float *restrict weight, float *restrict out, int64_t rows, int64_t width,
                float eps);

typedef struct {
    layer qkv, attention_out, feed_forward; /* but for rows and where these are; qkv of the last layer: key and value */
    int64_t turn, window;                   /* turn: which of the tables of angles; window 0: none */
    float scale, soft_cap;                  /* soft_cap 0: none */
} decoder_layer;

typedef struct {
    const decoder_layer *layers;
    const layer *last_query;         /* of the last layer, but for rows and where these are */
    const float *norm;               /* [hidden], behind the last layer */
    const float *const *turns;       /* cosines and sines [rows, head_dim / 2] of the first kind of angles, and so on */
    float *stream;                   /* [rows, hidden] */
    bf16 *update;                    /* [rows, hidden] */
    bf16 *key_pools, *value_pools;   /* [layers, kv_heads, slots, head_dim], dense */
    const int64_t *keep_rows, *keep_slots, *read_rows;
    float *hidden;                   /* [read, hidden], the result */
    int64_t num_layers, rows, num_kept, num_read;
    float eps;                       /* of norm */
    attention attend, attend_read;   /* but for what changes from layer to layer; attend_read: of rows that are read */
} decoder_step;

/* What a step works in. */
typedef struct {
    bf16 *qkv, *attended;            /* [rows, query, key and value]; [rows, query] */
    float *read_stream;              /* [read, hidden] */
    bf16 *read_update, *read_query;  /* [read, hidden]; [read, query] */
    float *copies;                   /* of the stream, as a layer has them, or NULL */
} workspace;

static int64_t query_width(const attention *a) { return a->kv_heads * a->group * a->head_dim; }

/* Memory for a step, kept by the thread for the next one; 0 when there is none. */
static int take_workspace(const decoder_step *s, workspace *w) {
    static _Thread_local kept_memory kept;
    const int64_t query = query_width(&s->attend), key_value = 2 * s->attend.kv_heads * s->attend.head_dim;
    const int64_t hidden = s->last_query->in;
    const int64_t sizes[] = {s->rows * (query + key_value) * 2, s->rows * query * 2, s->num_read * hidden * 4,
                             s->num_read * hidden * 2, s->num_read * query * 2};
    void **parts[] = {(void **)&w->qkv, (void **)&w->attended, (void **)&w->read_stream, (void **)&w->read_update,
                      (void **)&w->read_query};
    return take_parts(&kept, sizes, parts, 5);
}

/* Keys or values [rows, kv_heads, head_dim] of kept rows to their slots; rows are `stride` apart. */
static void keep(const decoder_step *s, const bf16 *from, int64_t stride, bf16 *pool) {
    const int64_t dim = s->attend.head_dim;
#pragma omp parallel for schedule(static) if (s->num_kept > PARALLEL_FROM)
    for (int64_t k = 0; k < s->num_kept; k++)
        for (int64_t head = 0; head < s->attend.kv_heads; head++)
            memcpy(pool + head * s->attend.pool_stride + s->keep_slots[k] * dim, from + s->keep_rows[k] * stride + head * dim,
                   dim * sizeof(bf16));
}

/* Every thread gets a copy of the stream where all layers that add to it take one. */
static int take_copies(const decoder_step *s, workspace *w) {
    static _Thread_local kept_memory kept;
    const int64_t count = s->rows * s->last_query->in, others = omp_get_max_threads() - 1;
    w->copies = NULL;
    for (int64_t i = 0; i < s->num_layers; i++)
        if (!takes_copies(&s->layers[i].qkv, s->rows) ||
            (i + 1 < s->num_layers && !takes_copies(&s->layers[i].feed_forward, s->rows)))
            return 1;
    if (others && !(w->copies = (float *)take(&kept, others * count * sizeof(float)))) return 0;
    for (int64_t i = 0; i < others; i++) memcpy(w->copies + i * count, s->stream, count * sizeof(float));
    return 1;
}

static layer of_rows(layer l, int64_t rows, float *stream, const bf16 *x, bf16 *out) {
    l.rows = rows, l.stream = stream, l.x = x, l.out = out, l.x_stride = l.in;
    return l;
}

/* What a layer's first product gave is turned, and kept where it is wanted; gives the attention to it. It is keys and values
 * behind `heads` heads of query. */
static attention placed(const decoder_step *s, const workspace *w, int64_t number, int64_t heads, attention a) {
    const decoder_layer *l = s->layers + number;
    const int64_t dim = a.head_dim, width = (heads + 2 * a.kv_heads) * dim;
    const int64_t before = number * a.kv_heads * a.pool_stride;
    bf16 *key = w->qkv + heads * dim, *value = key + a.kv_heads * dim;
    rotate(w->qkv, s->turns[2 * l->turn], s->turns[2 * l->turn + 1], s->rows, heads + a.kv_heads, dim / 2, width);
    keep(s, key, width, s->key_pools + before);
    keep(s, value, width, s->value_pools + before);
    a.query = w->qkv, a.key = key, a.value = value, a.out = w->attended;
    a.key_pool = s->key_pools + before, a.value_pool = s->value_pools + before;
    a.query_stride = a.key_stride = a.value_stride = width;
    a.window = l->window, a.scale = l->scale, a.soft_cap = l->soft_cap;
    return a;
}

/* Of a layer that adds the update to the stream of all rows. */
static layer adding(layer l, const decoder_step *s, const workspace *w, bf16 *out) {
    l = of_rows(l, s->rows, s->stream, s->update, out);
    l.copies = w->copies;
    return l;
}

/* All of a layer behind its first product, and the first product of the next layer if that is not the last. */
static int run_one(const decoder_step *s, const workspace *w, int64_t number) {
    const decoder_layer *l = s->layers + number;
    const attention a = placed(s, w, number, s->attend.kv_heads * s->attend.group, s->attend);
    if (attend(&a)) return 1;
    /* the update was added to the stream before the first product, so its memory is free */
    layer chain[CHAIN] = {of_rows(l->attention_out, s->rows, NULL, w->attended, s->update),
                          adding(l->feed_forward, s, w, s->update)};
    if (number + 2 == s->num_layers) return run_chain(chain, 2);
    chain[2] = adding(s->layers[number + 1].qkv, s, w, w->qkv);
    return run_chain(chain, 3);
}

/* Stream, update and query of rows that are read, turned. Before the update is added to the stream of all rows. */
static int query_last(const decoder_step *s, const workspace *w) {
    const int64_t hidden = s->last_query->in, half = s->attend.head_dim / 2, width = query_width(&s->attend);
    const int64_t turn = s->layers[s->num_layers - 1].turn;
    for (int64_t r = 0; r < s->num_read; r++) {
        memcpy(w->read_stream + r * hidden, s->stream + s->read_rows[r] * hidden, hidden * sizeof(float));
        memcpy(w->read_update + r * hidden, s->update + s->read_rows[r] * hidden, hidden * sizeof(bf16));
    }
    const layer query = of_rows(*s->last_query, s->num_read, w->read_stream, w->read_update, w->read_query);
    if (run_layer(&query)) return 1;
    for (int64_t r = 0; r < s->num_read; r++)
        rotate(w->read_query + r * width, s->turns[2 * turn] + s->read_rows[r] * half,
               s->turns[2 * turn + 1] + s->read_rows[r] * half, 1, s->attend.kv_heads * s->attend.group, half, width);
    return 0;
}

static void add_update(float *stream, const bf16 *update, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 real = (__mmask16)first_of(count - i);
        const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(real, stream + i), widen(_mm256_maskz_loadu_epi16(real, update + i)));
        _mm512_mask_storeu_ps(stream + i, real, sum);
    }
}

/* The last layer: keys and values of all rows, and all the rest of those that are read. */
static int run_last(const decoder_step *s, const workspace *w) {
    const int64_t number = s->num_layers - 1, hidden = s->last_query->in;
    const decoder_layer *l = s->layers + number;
    if (query_last(s, w)) return 1;
    const layer key_value = adding(l->qkv, s, w, w->qkv);
    if (run_layer(&key_value)) return 1;
    attention a = placed(s, w, number, 0, s->attend_read);
    if (s->num_read == 0) return 0;
    a.query = w->read_query, a.query_stride = query_width(&a);
    if (attend(&a)) return 1;
    const layer chain[] = {of_rows(l->attention_out, s->num_read, NULL, w->attended, w->read_update),
                           of_rows(l->feed_forward, s->num_read, w->read_stream, w->read_update, w->read_update)};
    if (run_chain(chain, 2)) return 1;
    add_update(w->read_stream, w->read_update, s->num_read * hidden);
    rms_norm32(w->read_stream, s->norm, s->hidden, s->num_read, hidden, s->eps);
    return 0;
}

/* Runs all layers and the norm behind them. Gives 0, or 1 when there was no memory to work in. */
int run_layers(const decoder_step *s) {
    workspace w;
    if (s->rows == 0) return 0;
    if (!take_workspace(s, &w) || !take_copies(s, &w)) return 1;
    if (s->num_layers > 1) {
        const layer first = adding(s->layers->qkv, s, &w, w.qkv);
        if (run_layer(&first)) return 1;
    }
    for (int64_t i = 0; i + 1 < s->num_layers; i++)
        if (run_one(s, &w, i)) return 1;
    return run_last(s, &w);
}

#endif
