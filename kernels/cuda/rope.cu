// rope.cu owns the rotary embedding: the last `dims` values of each head of x [rows][heads][cols]
// are rotated in place (turn.cuh), pairs adjacent or dims / 2 apart. Bound by bytes, for a few rows
// by latency.
#include "kernels/cuda/turn.cuh"

#define THREADS 256
#define ROPE_PAIRS_MAX 512
#define BLOCK_HEADS 16

// A block BLOCK_HEADS heads of a row, which share the row's cosines and sines.
__global__ static void rope_heads(struct rope_args a)
{
    dependency_wait();
    __shared__ float2 turn[ROPE_PAIRS_MAX];
    int pos = a.info[blockIdx.x].pos, pairs = a.dims / 2, near = a.pairs == ROPE_ADJACENT;
    int h0 = (int)blockIdx.y * BLOCK_HEADS;
    int heads = a.heads - h0 < BLOCK_HEADS ? a.heads - h0 : BLOCK_HEADS;
    float *x = a.x + ((size_t)blockIdx.x * (size_t)a.heads + (size_t)h0) * (size_t)a.cols +
               (size_t)(a.cols - a.dims);

    pos -= pos % a.ratio;
    for (int i = threadIdx.x; i < pairs; i += THREADS)
        turn[i] = turn_of(pos, a.freq[i], a.inverse);
    __syncthreads();
    for (int j = threadIdx.x; j < heads * pairs; j += THREADS) {
        int i = j % pairs;
        float *u = x + (size_t)(j / pairs) * (size_t)a.cols + (near ? 2 * i : i);
        float *v = u + (near ? 1 : pairs);
        float2 p = turned(make_float2(*u, *v), turn[i], a.round);

        *u = p.x;
        *v = p.y;
    }
}

extern "C" void cuda_rope(struct queue *q, const struct rope_args *a)
{
    struct rope_args b = *a;

    if (queue_skips(q, a->rows))
        return;
    if (a->dims % 2 != 0 || a->dims > a->cols || a->dims > 2 * ROPE_PAIRS_MAX) {
        queue_fail(q, -EINVAL, "rope: %d dims of %d, want an even number up to %d", a->dims,
                   a->cols, 2 * ROPE_PAIRS_MAX);
        return;
    }
    b.ratio = a->ratio > 1 ? a->ratio : 1;
    launch(q, rope_heads, dim3((unsigned)a->rows, blocks_for((size_t)a->heads, BLOCK_HEADS)),
           THREADS, 0, b);
    queue_note(q, "rope");
}
