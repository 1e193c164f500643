// trace.cu owns what looks on while a window runs: the clock, and the search for numbers that are
// none.
#include "kernels/cuda/device.cuh"

#define THREADS 256

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

// One block for all rows, so that the first bad row wins. Bound by the bytes of x; a diagnosis.
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
