/* A linear layer or a feed-forward part; see linear.c. */
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
enum { GATE_NONE, GATE_SILU, GATE_GELU };

typedef struct {
    float *stream;                  /* [rows, in] dense, to which x is added; NULL: x itself is the input */
    float *copies;                  /* [threads - 1, rows, in], the same for all threads but the first; NULL: they share it */
    const bf16 *x;                  /* [rows, in] */
    const float *norm;              /* [in] weight of the norm of stream */
    const char *first, *second;     /* packed; second NULL: a linear layer, else a feed-forward part */
    const float *bias;              /* [out] or NULL; of a linear layer */
    bf16 *out;                      /* [rows, out] dense */
    int64_t rows, in, inner, out_width, x_stride, gate; /* inner: outputs of a gated first product */
    int64_t first_coding, second_coding;
    float eps;
} layer;

/* Runs a layer. Gives 0, or 1 when there was no memory to work in. */
int run_layer(const layer *l);

#define CHAIN 3 /* the most layers of a chain */

/* The same for layers of the same rows that follow each other. */
int run_chain(const layer *chain, int64_t count);

/* Whether so few rows go through the layer that each thread can add them to a copy of the stream. */
int takes_copies(const layer *l, int64_t rows);

/* run_chain for layers with few rows of which each has a coded weight; see coded.c. */
int run_coded_chain(const layer *chain, int64_t count, int64_t threads);
#endif
