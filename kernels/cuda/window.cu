// window.cu owns both ends of a window: segments become rows (row_info [rows]), tokens become
// residual streams, and what is kept goes to the slots. Bound by latency, embed by the bytes of y.
#include "kernels/cuda/device.cuh"

#define THREADS 256
#define COLS (2 * THREADS) // columns of a block of embed_rows

// A block a segment, a thread a row at a time.
__global__ static void stage_segments(struct stage_args a)
{
    dependency_wait();
    struct segment g = a.seg[blockIdx.x];
    struct slot_head h = a.head[g.slot];

    for (int i = threadIdx.x; i < g.len; i += THREADS) {
        int tok = a.tok[g.first + i];
        struct row_info info = { g.slot, h.pos + a.ahead + i, tok < 0 ? h.next : tok, g.first };

        a.info[g.first + i] = info;
    }
}

extern "C" void cuda_stage(struct queue *q, const struct stage_args *a)
{
    if (queue_skips(q, a->segs))
        return;
    launch(q, stage_segments, a->segs, THREADS, 0, *a);
    queue_note(q, "stage");
}

// A block COLS columns of a row. Every block checks all tokens, so that a bad one leaves all of y
// untouched; block (0, 0) reports the first bad row. Bound by the bytes of y.
__global__ static void embed_rows(struct table t, const struct row_info *info, float *y, int rows,
                                  int copies, struct cuda_alarm alarm)
{
    dependency_wait();
    __shared__ int first_bad;
    size_t cols = (size_t)t.cols, at = (size_t)info[blockIdx.x].tok * cols;
    float *out = y + (size_t)blockIdx.x * (size_t)copies * cols;

    if (threadIdx.x == 0)
        first_bad = rows;
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += THREADS)
        if (info[r].tok < 0 || info[r].tok >= t.rows)
            atomicMin(&first_bad, r);
    __syncthreads();
    if (first_bad < rows) {
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            alarm_set(alarm, FAULT_TOKEN, info[first_bad].slot, first_bad, info[first_bad].pos,
                      info[first_bad].tok, t.rows);
        return;
    }
    for (int c = (int)(blockIdx.y * COLS + threadIdx.x);
         c < t.cols && c < (int)(blockIdx.y + 1) * COLS; c += THREADS) {
        float v = stored_value(t.dtype, t.data, at + (size_t)c);

        for (int i = 0; i < copies; i++)
            out[(size_t)i * cols + (size_t)c] = v;
    }
}

extern "C" void cuda_embed(struct queue *q, const struct embed_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, embed_rows, dim3((unsigned)a->rows, blocks_for((size_t)a->table->cols, COLS)),
           THREADS, 0, *a->table, a->info, a->y, a->rows, a->copies, cuda_queue(q)->alarm);
    queue_note(q, "embed");
}

// A thread a segment; segments are at most SLOTS_MAX and windows short.
__global__ static void accept_segments(struct accept_args a, const int32_t *taken)
{
    dependency_wait();
    int s = (int)threadIdx.x;
    struct segment g;
    const int32_t *tok, *choice;
    int n;

    if (s >= a.segs || *taken)
        return;
    g = a.seg[s];
    tok = a.tok + g.first;
    choice = a.choice + g.first;
    if (g.flags & SEG_KNOWN) {
        a.n_ok[s] = g.len;
        a.next[s] = -1;
        return;
    }
    n = g.len > 0;
    while (n > 0 && n < g.len && tok[n] == choice[n - 1])
        n++;
    a.next[s] = n > 0 ? choice[n - 1] : -1;
    a.n_ok[s] = a.next[s] == CHOICE_OPEN ? 0 : n;
}

extern "C" void cuda_accept(struct queue *q, const struct accept_args *a)
{
    if (queue_skips(q, a->segs))
        return;
    if (a->segs > CUDA_WARP) {
        queue_fail(q, -EINVAL, "accept: %d segments, want at most %d", a->segs, CUDA_WARP);
        return;
    }
    launch(q, accept_segments, 1, CUDA_WARP, 0, *a, cuda_queue(q)->alarm.taken);
    queue_note(q, "accept");
}

__global__ static void commit_segments(struct commit_args a, const int32_t *taken)
{
    dependency_wait();
    int s = (int)threadIdx.x;
    struct slot_head *h;

    if (s >= a.segs || *taken || a.n_ok[s] == 0) // no row ran: the fold's lanes are as they were
        return;
    h = &a.head[a.seg[s].slot];
    h->pos += a.n_ok[s];
    h->next = a.next[s];
    h->base ^= 1;
    h->pend = a.n_ok[s];
}

extern "C" void cuda_commit(struct queue *q, const struct commit_args *a)
{
    if (queue_skips(q, a->segs))
        return;
    if (a->segs > CUDA_WARP) {
        queue_fail(q, -EINVAL, "commit: %d segments, want at most %d", a->segs, CUDA_WARP);
        return;
    }
    launch(q, commit_segments, 1, CUDA_WARP, 0, *a, cuda_queue(q)->alarm.taken);
    queue_note(q, "commit");
}
