// keep.cu owns rows on their way into a state: RMS norm, rotary embedding and quantiser (codec.cuh)
// in one launch, for several arrays [rows][cols] at a time. Bound by latency.
#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/turn.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define COLS_MAX 2048

// A block a row of one of the arrays (blockIdx.y), a thread columns t, t + THREADS, ... Apart from
// the sum, threads share values only by shuffle. Rows whose array has no state are normed in place.
// Bound by latency.
template <int PIECES> __global__ static void keep_rows(const __grid_constant__ row_keeps_args list)
{
    __shared__ float part[WARPS], own[PIECES * THREADS];
    const struct row_keep &a = list.of[blockIdx.y];
    const struct state_view &v = a.view;
    int cols = v.cols, t = (int)threadIdx.x, odd = t % 2, begin = cols - a.dims;
    float *in = a.x + (size_t)blockIdx.x * (size_t)cols + t;
    int at = begin + ((t - begin) % THREADS + THREADS) % THREADS; // its first rotated column
    float x[PIECES], w[PIECES], freq = at < cols ? a.freq[(at - begin) / 2] : 0, by = 1, sum = 0;
    float2 turn = make_float2(1, 0);
    struct row_info info = {};
    unsigned char *row;

#pragma unroll
    for (int i = 0; i < PIECES; i++)
        w[i] = a.w && t + i * THREADS < cols ? a.w[t + i * THREADS] : 1;
    dependency_wait();
    if (v.base)
        info = a.info[blockIdx.x];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        x[i] = t + i * THREADS < cols ? in[i * THREADS] : 0;
        sum = fmaf(x[i], x[i], sum);
    }
    if (v.base && (info.pos + 1) % a.ratio != 0) // the whole block
        return;
    if (at < cols)
        turn = turn_of(info.pos - info.pos % a.ratio, freq, false);
    if (a.w)
        by = 1.0f / sqrtf(block_sum<WARPS>(sum, part) / (float)cols + a.eps);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        x[i] = a.w ? rounded(x[i] * by * w[i], a.round) : x[i];
        own[t + i * THREADS] = x[i];
        if (!v.base && t + i * THREADS < cols)
            in[i * THREADS] = x[i];
    }
    if (!v.base)
        return;
    row = state_row(v, info.slot, info.pos / a.ratio);
#pragma unroll 1
    for (int c = t; c - t < cols; c += THREADS) {
        float value = own[c], other = __shfl_xor_sync(FULL_MASK, value, 1);

        if (c >= begin && c < cols) {
            float2 p = odd ? make_float2(other, value) : make_float2(value, other);

            if (c != at)
                turn = turn_of(info.pos - info.pos % a.ratio, a.freq[(c - begin) / 2], false);
            p = turned(p, turn, a.round);
            value = odd ? p.y : p.x;
        }
        if (v.codec != CODEC_F32)
            codec_put(v.codec, row, cols, c, c < cols ? value : 0);
        else if (c < cols)
            ((float *)row)[c] = value;
    }
}

extern "C" void cuda_row_keeps(struct queue *q, const struct row_keeps_args *a)
{
    struct row_keeps_args b = *a;
    int most = 0;

    if (row_keeps_refused(q, a) || queue_skips(q, a->n > 0 ? a->of[0].rows : 0))
        return;
    for (int i = 0; i < a->n; i++) {
        const struct row_keep *k = &a->of[i];

        if (k->view.cols % 2 != 0 || k->view.cols > COLS_MAX || k->dims % 2 != 0 ||
            k->dims > k->view.cols || k->view.cols % codec_block(k->view.codec) != 0) {
            queue_fail(q, -EINVAL, "row_keeps: %d dims of %d, want an even number up to %d",
                       k->dims, k->view.cols, COLS_MAX);
            return;
        }
        b.of[i].ratio = k->ratio > 1 ? k->ratio : 1;
        most = k->view.cols > most ? k->view.cols : most;
    }
    launch(q, most <= 2 * THREADS ? keep_rows<2> : keep_rows<COLS_MAX / THREADS>,
           dim3((unsigned)a->of[0].rows, (unsigned)a->n), THREADS, 0, b);
    queue_note(q, "row_keeps");
}
