/* Attention of one layer; see attention.c. */
#pragma once
#include "tiles.h"

#include "attention_work.h"

#if defined(__AVX512BF16__)
typedef struct {
    const bf16 *query, *key, *value;           /* [tokens, heads, head_dim]; heads are dense */
    const bf16 *key_pool, *value_pool;         /* [kv_heads, slots, head_dim]; slots are dense */
    bf16 *out;                                 /* [queries, heads, head_dim], dense */
    const unit *units;
    const item *items;
    const piece *pieces;
    const join *joins;
    const int32_t *positions, *block_ids;
    int64_t num_units, num_joins, num_shares, unit_rows;
    int64_t query_stride, key_stride, value_stride, pool_stride; /* in elements */
    int64_t kv_heads, group, head_dim, block_size, window;       /* window 0: none */
    float scale, soft_cap;                                       /* soft_cap 0: none */
} attention;

/* Runs all units, then all joins. Gives 0, or 1 when there was no memory to work in. */
int attend(const attention *a);
#endif
