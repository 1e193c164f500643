// penalty.cu owns the token counts of slots, count [slots][cols], and the edits of logits
// [rows][cols] before sampling: penalties, biases, bans. Bound by the bytes of the rows.
#include "kernels/cuda/device.cuh"
#include "kernels/sampling.h"

#define THREADS 256

// A thread a token. Atomic, because two rows may be the same token of the same slot.
__global__ static void count_tokens(struct count_args a)
{
    dependency_wait();
    int r = (int)(blockIdx.x * THREADS + threadIdx.x), c;
    struct row_info i;
    uint32_t *count;

    if (r >= a.rows)
        return;
    i = a.info[r];
    c = i.tok - a.id0;
    if (i.slot < 0 || c < 0 || c >= a.cols)
        return;
    count = a.count + (size_t)i.slot * (size_t)a.cols + (size_t)c;
    if (i.pos < a.sampler[i.slot].prompt)
        atomicOr(count, COUNT_PROMPT);
    else
        atomicAdd(count, 1u);
}

extern "C" void cuda_count(struct queue *q, const struct count_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, count_tokens, blocks_for((size_t)a->rows, THREADS), THREADS, 0, *a);
    queue_note(q, "count");
}

// A thread a logit: blocks in x are columns, in y rows. The counts lack the window's own tokens up
// to row r, so they are added here. Bound by the bytes of the rows.
__global__ static void penalize_rows(struct penalize_args a)
{
    dependency_wait();
    int r = (int)blockIdx.y, c = (int)(blockIdx.x * THREADS + threadIdx.x);
    struct row_info info = a.info[r];
    const struct sampler *s = &a.sampler[info.slot];
    size_t at = (size_t)info.slot * (size_t)a.cols + (size_t)c, here;
    float z, y;
    uint32_t n = 0;

    if (c >= a.cols)
        return;
    here = (size_t)r * (size_t)a.cols + (size_t)c;
    z = a.logits[here];
    if (sampler_counts(s)) {
        n = a.count[at];
        for (int i = info.first; i <= r; i++)
            if (a.info[i].tok - a.id0 == c)
                n = a.info[i].pos < s->prompt ? n | COUNT_PROMPT : n + 1;
    }
    y = sampler_edit(s, z, s->biases > 0 ? a.bias[at] : 0, n);
    if (z < INFINITY && sampler_bans(s, info.pos + 1, a.id0 + c))
        y = -INFINITY;
    a.y[here] = y;
}

extern "C" void cuda_penalize(struct queue *q, const struct penalize_args *a)
{
    dim3 grid(blocks_for((size_t)a->cols, THREADS), (unsigned)a->rows);

    if (queue_skips(q, a->rows) || a->cols <= 0)
        return;
    launch(q, penalize_rows, grid, THREADS, 0, *a);
    queue_note(q, "penalize");
}
