/* cold - one call of a recorded pass, alone on the device with caches that hold none of what it
 * reads; and the same products by other means, to compare.
 *
 * Between two calls more memory is written than the caches hold; calls, writes and notes of the
 * clock are one graph where the backend has graphs. */
#ifndef TANDEM_RANK_COLD_H
#define TANDEM_RANK_COLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blas;
struct calls;
struct queue;

#define COLD_CALLS 9 /* of which a median is taken */
#define COLD_WHY 160

struct cold {
    struct queue *q;
    const struct calls *calls;
    bool graphs;
    double copy_gbps; /* of a copy, read and written bytes */
    int64_t stamp_ns; /* what a note of the clock costs */
    int64_t *at;      /* device, [2 * COLD_CALLS] notes */
    float *spill[2];  /* device: read, and read and written */
    size_t spill_cols;
    struct blas *blas; /* NULL: why says what is missing, once it was looked for */
    char why[COLD_WHY];
};

/* cold_open - fills *c; calls are recorded later.
 * errors   -ENOMEM, those of the queue; cold_close in any case */
int cold_open(struct queue *q, const struct calls *calls, bool graphs, struct cold *c);
void cold_close(struct cold *c);

/* cold_find_blas - from now on cold_blas has its library, if there is one.
 * errors   those of blas_open below 0 */
int cold_find_blas(struct cold *c);

/* cold_time - us of call i.
 * cold_plain, cold_blas - us of its products by kernels/plain.h instead; by bf16 numbers that mean
 * nothing.
 * errors   1: it has no products, or they are not to be had that way; those of the queue */
int cold_time(struct cold *c, int i, double *us);
int cold_plain(struct cold *c, int i, double *us);
int cold_blas(struct cold *c, int i, double *us);

/* cold_matrix_rate - what the library makes of 4,096 rows by 2,048 outputs of 4,096 inputs.
 * errors   1: it is not there; those of the queue */
int cold_matrix_rate(struct cold *c, double *tflops);

#endif
