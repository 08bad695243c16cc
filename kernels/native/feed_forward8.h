/* A feed-forward part in whole numbers of 8 bits; see feed_forward8.c. */
#pragma once
#include "linear.h"

#if defined(__AMX_BF16__)
/* Of weights that pack_weight8 packed. Threads share the outputs of all rows. Gives 0, or 1 when there was no memory to work in. */
int run_panels8(const layer *l, int64_t threads);

/* Bytes that a thread needs for a block of rows. */
int64_t block_bytes8(const layer *l, int64_t rows);

/* Rows [low, low + rows) by one thread. */
void run_block8(const layer *l, char *memory, int64_t low, int64_t rows);
#endif
