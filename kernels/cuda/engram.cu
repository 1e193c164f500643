// engram.cu owns the device side of the n-gram memory: the wait for rows that the host brings, the
// joining of gathered pieces [ranks][rows][ldx] to rows [rows][cols], and the gate that adds the
// memory's value to the residual streams. Bound by bytes, for few rows by latency.
#include "kernels/cuda/device.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define COLS (4 * THREADS) // columns of a block of unshard_pieces
#define GATE_WARPS 32
#define GATE_THREADS (GATE_WARPS * CUDA_WARP)

// Wait until the host raises the flag; a negative flag is an error. One thread, so that a waiting
// rank takes next to nothing from one that shares the device. It does not call dependency_next and
// the copy behind it is a plain launch: no later kernel may take places while this one waits.
__global__ static void await_flag(const int64_t *flag, int64_t limit_ns, struct cuda_alarm alarm)
{
    uint64_t since = device_ns();
    int64_t come;

    while ((come = (int64_t)flag_read((const uint64_t *)flag)) == 0) {
        if (limit_ns >= 0 && (int64_t)(device_ns() - since) > limit_ns) {
            alarm_set(alarm, FAULT_LATE, 0, 0, 0, (int)(limit_ns / 1000000), 0);
            return;
        }
        __nanosleep(128);
    }
    if (come < 0)
        alarm_set(alarm, FAULT_BRING, 0, 0, 0, (int)come, 0);
}

extern "C" void cuda_bring(struct queue *q, const struct bring_args *a)
{
    struct cuda_queue *c = cuda_queue(q);

    if (!c->capture) {
        if (queue_fetch(q, a))
            cuda_put(q, a->y, a->src, a->bytes);
        return;
    }
    if (q->err)
        return;
    launch_behind(cuda_stream(q), await_flag, 1, 1, 0, a->flag, a->limit_ns, c->alarm);
    queue_note(q, "bring");
    cuda_graph_bring(c, a);
    cuda_put(q, a->y, a->src, a->bytes);
}

// A block COLS columns of the piece of a row. Bound by bytes.
__global__ static void unshard_pieces(struct unshard_args a, int cols)
{
    dependency_wait();
    int piece = (int)blockIdx.y, at = 0;
    size_t row = blockIdx.x;
    const float *x = a.x + ((size_t)piece * (size_t)a.rows + row) * (size_t)a.ldx;

    for (int i = 0; i < piece; i++)
        at += a.width[i];
    for (int c = (int)(blockIdx.z * COLS + threadIdx.x), i = 0; i < COLS && c < a.width[piece];
         c += THREADS, i += THREADS)
        a.y[row * (size_t)cols + (size_t)(at + c)] = x[c];
}

extern "C" void cuda_unshard(struct queue *q, const struct unshard_args *a)
{
    int cols = 0, widest = 1;

    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX) {
        queue_fail(q, -EINVAL, "unshard: %d ranks, want 1 .. %d", a->ranks, RANKS_MAX);
        return;
    }
    for (int i = 0; i < a->ranks; i++) {
        cols += a->width[i];
        widest = a->width[i] > widest ? a->width[i] : widest;
        if (a->width[i] < 0 || a->width[i] > a->ldx) {
            queue_fail(q, -EINVAL, "unshard: piece %d has %d values in rows of %d", i, a->width[i],
                       a->ldx);
            return;
        }
    }
    if (a->rows <= 0)
        return;
    launch(q, unshard_pieces,
           dim3((unsigned)a->rows, (unsigned)a->ranks, blocks_for((size_t)widest, COLS)), THREADS,
           0, *a, cols);
    queue_note(q, "unshard");
}

// A block a (row, stream): kv [rows][hc + 1][dim] has a key for each stream and one value; three
// sums give the gate, then gate times value is added to the stream in place. Bound by latency.
__global__ static void gate_streams(struct engram_gate_args a)
{
    dependency_wait();
    __shared__ float part[GATE_WARPS];
    size_t dim = (size_t)a.dim, row = blockIdx.x, i = blockIdx.y;
    const float *kv = a.kv + row * (size_t)(a.hc + 1) * dim, *key = kv + i * dim;
    const float *value = kv + (size_t)a.hc * dim, *qw = a.qw + i * dim, *kw = a.kw + i * dim;
    float *x = a.x + (row * (size_t)a.hc + i) * dim;
    float dot = 0, xx = 0, kk = 0, n = (float)a.dim, d, gate;

    for (int c = threadIdx.x; c < a.dim; c += GATE_THREADS) {
        dot = fmaf(x[c] * (qw[c] * kw[c]), key[c], dot);
        xx = fmaf(x[c], x[c], xx);
        kk = fmaf(key[c], key[c], kk);
    }
    dot = block_sum<GATE_WARPS>(dot, part);
    xx = block_sum<GATE_WARPS>(xx, part);
    kk = block_sum<GATE_WARPS>(kk, part);
    d = dot * (1.0f / sqrtf(xx / n + a.eps)) * (1.0f / sqrtf(kk / n + a.eps)) * (1.0f / sqrtf(n));
    // copysign keeps the sign of a zero; fmaxf would drop a NaN.
    gate = sigmoid(copysignf(sqrtf(fabsf(d) < 1e-6f ? 1e-6f : fabsf(d)), d));
    for (int c = threadIdx.x; c < a.dim; c += GATE_THREADS)
        x[c] = rounded(x[c] + gate * value[c], a.round);
}

extern "C" void cuda_engram_gate(struct queue *q, const struct engram_gate_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, gate_streams, dim3((unsigned)a->rows, (unsigned)a->hc), GATE_THREADS, 0, *a);
    queue_note(q, "engram_gate");
}
