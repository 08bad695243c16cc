/* A step as it is cut for attention.c by attention_work.c; see kernels.native.attention_work.AttentionWork. */
#pragma once
#include <stdint.h>

#define TILE_KEYS 32 /* keys that one tile of weights holds, and the least that is multiplied */
#define STRETCH 512  /* keys whose scores are held at once and whose sums begin empty */

typedef struct {
    int32_t head, query_lo, query_hi, item_lo, item_hi, share;
} unit;

typedef struct {
    int32_t query_lo, query_hi, position, tokens, causal, piece, skip;
} item;

typedef struct {
    int32_t key_lo, tokens, from_pool;
} piece;

typedef struct {
    int32_t head, query_lo, query_hi, share_lo, share_hi;
} join;
