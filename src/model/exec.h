/* exec - what a forward pass runs with: ops, queue, scratch and the ranks' sums.
 *
 * The arena is a bump allocator over one device allocation. Its size is found by running a forward
 * pass dry: with exec_dry every op and collective does nothing and the arena only counts.
 */
#ifndef TANDEM_MODEL_EXEC_H
#define TANDEM_MODEL_EXEC_H

#include "kernels/ops.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct comm;
struct device;
struct queue;

struct arena {
    char *base;  /* NULL while measuring */
    size_t size; /* bytes at base */
    size_t used, peak;
};

struct exec {
    const struct op_table *op;
    struct queue *q;
    struct arena *tmp;
    struct comm *comm;
    int workers;      /* of the device: what per-worker scratch is sized by */
    enum round round; /* of activations: ROUND_NONE at fp32, ROUND_BF16 at bf16 and released */
    enum codec in;    /* of inputs of FP8 and MXFP4 weights: CODEC_QW at released, else CODEC_F32 */
    float top_p;      /* of op route; 0: all experts */
    bool side;        /* ops that do not need each other are queued as sections of op `side` */
    size_t prefetch;  /* bytes of weights that are asked for beside each exchange; 0: none */
    int prefetch_rate; /* GB/s */
    bool trace; /* setting trace_numerics: look for a NaN or an infinity behind every layer */
    void (*passed)(void *arg, int layer); /* told when a layer has been queued; NULL: nobody asks */
    void *passed_arg;
};

/* exec_layer - the stream x [rows][cols] has passed a layer. No section is open; some may not have
 * been met. */
static inline void exec_layer(struct exec *x, const float *stream, const struct row_info *info,
                              int rows, int cols, int layer)
{
    if (x->trace)
        x->op->inspect(x->q,
                       &(struct inspect_args){
                           .x = stream, .info = info, .rows = rows, .cols = cols, .layer = layer });
    if (x->passed)
        x->passed(x->passed_arg, layer);
}

/* arena_take - bytes from the arena, aligned to 256. Asserts that they fit: the dry run sized
 * it. */
void *arena_take(struct arena *a, size_t bytes);

static inline float *arena_f32(struct arena *a, size_t n)
{
    return arena_take(a, n * sizeof(float));
}

static inline int32_t *arena_i32(struct arena *a, size_t n)
{
    return arena_take(a, n * sizeof(int32_t));
}

/* exec_product - y [rows][w->rows] from the arena, and its product is one more of those that l
 * queues later. */
static inline float *exec_product(struct exec *x, struct matmuls_args *l, const struct mat *w,
                                  const float *in, int rows, enum codec codec, enum round round)
{
    float *y = arena_f32(x->tmp, (size_t)rows * (size_t)w->rows);

    assert(l->n < MATMULS_MAX && (l->n == 0 || (in == l->of[0].x && rows == l->of[0].rows)));
    l->of[l->n++] =
        (struct matmul_args){ .w = w, .x = in, .y = y, .rows = rows, .in = codec, .round = round };
    return y;
}

/* arena_mark, arena_reset - give back everything taken since the mark. */
static inline size_t arena_mark(const struct arena *a)
{
    return a->used;
}

static inline void arena_reset(struct arena *a, size_t mark)
{
    a->used = mark;
}

/* exec_dry - an exec whose ops and collectives do nothing; x->tmp counts. `like` gives workers and
 * round. */
void exec_dry(struct exec *x, struct arena *a, const struct exec *like);

/* arena_open - device memory for what the dry runs measured.   errors   -ENOMEM */
int arena_open(struct device *d, size_t bytes, struct arena *a);
void arena_close(struct device *d, struct arena *a);

#endif
