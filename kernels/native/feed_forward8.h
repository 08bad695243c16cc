/* A feed-forward part in whole numbers of 8 bits; see feed_forward8.c. */
#pragma once
#include "linear.h"

#if defined(__AMX_BF16__)
/* As run_layer, of one row or more and weights that pack_weight8 packed. */
int run_feed_forward8(const layer *l);
#endif
