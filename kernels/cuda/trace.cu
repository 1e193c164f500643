// trace.cu owns ops that compute nothing: time stamps, prefetches of weights to L2, and the check
// for values that are not finite.
#include "kernels/cuda/device.cuh"

#define THREADS 256
#define AHEAD_LOT ((size_t)2048)

__global__ static void stamp_now(int64_t *at)
{
    *at = (int64_t)device_ns();
}

extern "C" void cuda_stamp(struct queue *q, const struct stamp_args *a)
{
    if (q->err)
        return;
    if (cuda_queue(q)->capture)
        cuda_graph_name(cuda_queue(q), a->name);
    else
        cuda_mark(a->name);
    launch_behind(cuda_stream(q), stamp_now, 1, 1, 0, a->at);
    queue_note(q, "stamp");
}

// Bulk prefetches to L2, paced: a thread requests a lot when the bytes in front of it have had
// their time at a.rate (bytes a nanosecond). A multiprocessor can request 240 GB/s at most (H200).
// One block only: eight small ones delayed the kernels beside them far more, probably clusters,
// which need multiprocessors that are free together.
__global__ static void prefetch_lots(const __grid_constant__ struct prefetch_args a)
{
    uint64_t begin = device_ns(), front = 0;

    for (int i = 0; i < a.n; i++) {
        const char *p = (const char *)a.of[i].at;
        size_t bytes = a.of[i].bytes / 16 * 16;

        for (size_t at = threadIdx.x * AHEAD_LOT; at < bytes; at += THREADS * AHEAD_LOT) {
            size_t left = bytes - at;

            while (device_ns() - begin < (uint32_t)(front + at) / (uint32_t)a.rate)
                ;
            bulk_ahead(p + at, left < AHEAD_LOT ? (int)left : (int)AHEAD_LOT);
        }
        front += bytes;
    }
}

extern "C" void cuda_prefetch(struct queue *q, const struct prefetch_args *a)
{
    if (q->err || prefetch_refused(q, a) || cuda_queue(q)->on == 0)
        return;
    launch_behind(cuda_stream(q), prefetch_lots, 1, THREADS, 0, *a);
    queue_note(q, "prefetch");
}

// One block for all rows, so that the first bad row is reported. Bound by the bytes that one
// multiprocessor reads; for diagnosis only.
__global__ static void inspect_rows(struct inspect_args a, struct cuda_alarm alarm)
{
    for (int r = 0; r < a.rows; r++) {
        const float *x = a.x + (size_t)r * (size_t)a.cols;
        int bad = 0;

        for (int c = threadIdx.x; c < a.cols; c += THREADS)
            bad |= !isfinite(x[c]);
        if (!__syncthreads_or(bad))
            continue;
        if (threadIdx.x == 0)
            alarm_set(alarm, FAULT_LAYER, a.info[r].slot, r, a.info[r].pos, a.layer, 0);
        return;
    }
}

extern "C" void cuda_inspect(struct queue *q, const struct inspect_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch_behind(cuda_stream(q), inspect_rows, 1, THREADS, 0, *a, cuda_queue(q)->alarm);
    queue_note(q, "inspect");
}
