// keep.cu owns rows on their way into a state: norm, rotation and quantiser in one launch.
#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/turn.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define COLS_MAX 1024

// A block a row; a thread pairs of neighbours. Bound by the time of its steps.
__global__ static void keep_rows(struct row_keep_args a)
{
    dependency_wait();
    __shared__ float x[COLS_MAX], part[WARPS];
    struct row_info info = a.info[blockIdx.x];
    const struct state_view &v = a.view;
    int cols = v.cols, t = (int)threadIdx.x, lane = t % CUDA_WARP, begin = cols - a.dims;
    const float *in = a.x + (size_t)blockIdx.x * (size_t)cols;
    float by = 1, sum = 0;
    unsigned char *row;

    if ((info.pos + 1) % a.ratio != 0) // the whole block
        return;
    for (int c = t; c < cols; c += THREADS) {
        x[c] = in[c];
        sum = fmaf(x[c], x[c], sum);
    }
    sum = block_sum<WARPS>(sum, part);
    if (a.w)
        by = 1.0f / sqrtf(sum / (float)cols + a.eps);
    for (int i = t; i < cols / 2; i += THREADS) {
        float2 p = make_float2(x[2 * i], x[2 * i + 1]);

        if (a.w)
            p = make_float2(rounded(p.x * by * a.w[2 * i], a.round),
                            rounded(p.y * by * a.w[2 * i + 1], a.round));
        if (2 * i >= begin)
            p = turned(p, turn_of(info.pos - info.pos % a.ratio, a.freq[i - begin / 2], false),
                       a.round);
        x[2 * i] = p.x;
        x[2 * i + 1] = p.y;
    }
    __syncthreads();
    row = state_row(v, info.slot, info.pos / a.ratio);
    if (v.codec == CODEC_F32) {
        for (int c = t; c < cols; c += THREADS)
            ((float *)row)[c] = x[c];
        return;
    }
    for (int first = t - lane; first < cols; first += THREADS)
        codec_put(v.codec, row, cols, first + lane, first + lane < cols ? x[first + lane] : 0);
}

extern "C" void cuda_row_keep(struct queue *q, const struct row_keep_args *a)
{
    struct row_keep_args b = *a;

    if (queue_skips(q, a->rows))
        return;
    if (a->view.cols % 2 != 0 || a->view.cols > COLS_MAX || a->dims % 2 != 0 ||
        a->dims > a->view.cols || a->view.cols % codec_block(a->view.codec) != 0) {
        queue_fail(q, -EINVAL, "row_keep: %d dims of %d, want an even number up to %d", a->dims,
                   a->view.cols, COLS_MAX);
        return;
    }
    b.ratio = a->ratio > 1 ? a->ratio : 1;
    launch(q, keep_rows, a->rows, THREADS, 0, b);
    queue_note(q, "row_keep");
}
