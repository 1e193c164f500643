// state.cu owns rows of a slot's state: writing them (quantised by codec.cuh), reading them, and
// the compressor that pools `ratio` raw rows into one. A state is [slots][cap] rows, row r of a
// slot at r % cap. Bound by bytes, for few rows by latency.
#include "kernels/cuda/codec.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)

// A lane a value: warp u has 32 values of row u / pieces, from 32 (u % pieces) on. Bound by bytes.
__global__ static void requant_values(float *x, int rows, int cols, enum codec codec)
{
    dependency_wait();
    int lane = (int)threadIdx.x % CUDA_WARP, pieces = (cols + CUDA_WARP - 1) / CUDA_WARP;
    size_t u = (size_t)blockIdx.x * WARPS + threadIdx.x / CUDA_WARP;
    int row = (int)(u / (size_t)pieces), c = (int)(u % (size_t)pieces) * CUDA_WARP + lane;
    float *at = x + (size_t)row * (size_t)cols + (size_t)c;
    struct coded o;

    if (row >= rows)
        return;
    o = codec_encode(codec, c < cols ? *at : 0);
    if (c < cols)
        *at = codec_decode(codec, o.code, codec_step(codec, o.scale));
}

extern "C" void cuda_requant(struct queue *q, const struct requant_args *a)
{
    size_t warps;

    if (queue_skips(q, a->rows) || a->codec == CODEC_F32)
        return;
    if (a->cols % codec_block(a->codec) != 0) {
        queue_fail(q, -EINVAL, "requant: %d values, want a multiple of %d", a->cols,
                   codec_block(a->codec));
        return;
    }
    warps = (size_t)a->rows * (size_t)((a->cols + CUDA_WARP - 1) / CUDA_WARP);
    launch(q, requant_values, blocks_for(warps, WARPS), THREADS, 0, a->x, a->rows, a->cols,
           a->codec);
    queue_note(q, "requant");
}

// A block a row, its warps in strides over pieces of 32 values. Only rows that end a group of
// `ratio` positions are written.
__global__ static void put_rows(struct row_put_args a)
{
    dependency_wait();
    const struct state_view &v = a.view;
    struct row_info info = a.info[blockIdx.x];
    int lane = (int)threadIdx.x % CUDA_WARP;
    const float *x = a.x + (size_t)blockIdx.x * (size_t)a.ldx;
    unsigned char *row;

    if ((info.pos + 1) % a.ratio != 0)
        return;
    row = state_row(v, info.slot, info.pos / a.ratio);
    if (v.codec == CODEC_F32) {
        for (int c = threadIdx.x; c < a.width; c += THREADS)
            ((float *)row)[a.col0 + c] = x[c];
        return;
    }
    for (int first = (int)threadIdx.x - lane; first < a.width; first += THREADS)
        codec_put(v.codec, row, a.width, first + lane,
                  first + lane < a.width ? x[first + lane] : 0);
}

// A block a row.
__global__ static void get_rows(struct row_get_args a)
{
    dependency_wait();
    struct row_info info = a.info[blockIdx.x];
    int pos = info.pos + a.offset;
    float *y = a.y + (size_t)blockIdx.x * (size_t)a.view.cols;
    const float *row = pos < 0 ? NULL : state_f32(a.view, info.slot, pos);

    for (int c = threadIdx.x; c < a.view.cols; c += THREADS)
        y[c] = row ? row[c] : 0;
}

extern "C" void cuda_row_get(struct queue *q, const struct row_get_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->view.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "row_get: rows of codec %d", a->view.codec);
        return;
    }
    launch(q, get_rows, a->rows, THREADS, 0, *a);
    queue_note(q, "row_get");
}

extern "C" void cuda_row_put(struct queue *q, const struct row_put_args *a)
{
    struct row_put_args b = *a;

    if (queue_skips(q, a->rows))
        return;
    b.ratio = a->ratio > 1 ? a->ratio : 1;
    b.width = a->width ? a->width : a->view.cols;
    b.ldx = a->ldx ? a->ldx : a->view.cols;
    if (b.width % codec_block(b.view.codec) != 0 || b.col0 < 0 || b.col0 + b.width > b.view.cols ||
        (b.view.codec != CODEC_F32 && b.width != b.view.cols)) {
        queue_fail(q, -EINVAL, "row_put: values %d .. %d of a row of %d in blocks of %d", b.col0,
                   b.col0 + b.width - 1, b.view.cols, codec_block(b.view.codec));
        return;
    }
    launch(q, put_rows, a->rows, THREADS, 0, b);
    queue_note(q, "row_put");
}

// A softmax over the `ratio` raw rows of a group, for each column by itself: a raw row is [cols]
// values, then [cols] logits. A thread a value of y; blocks in x are columns, in y rows. Bound by
// bytes.
__global__ static void pool_columns(struct pool_args a)
{
    dependency_wait();
    struct row_info info = a.info[blockIdx.y];
    int c = (int)(blockIdx.x * THREADS + threadIdx.x), begin = info.pos - (a.ratio - 1);
    float most = -INFINITY, total = 0, sum = 0;
    float *y = a.y + (size_t)blockIdx.y * (size_t)a.cols + (size_t)c;

    if (c >= a.cols)
        return;
    if ((info.pos + 1) % a.ratio != 0) {
        *y = 0;
        return;
    }
    for (int i = 0; i < a.ratio; i++) {
        float b = state_f32(a.raw, info.slot, begin + i)[a.cols + c];

        most = b > most ? b : most;
    }
    for (int i = 0; i < a.ratio; i++)
        total += expf(state_f32(a.raw, info.slot, begin + i)[a.cols + c] - most);
    for (int i = 0; i < a.ratio; i++) {
        const float *raw = state_f32(a.raw, info.slot, begin + i);

        sum += expf(raw[a.cols + c] - most) / total * raw[c];
    }
    *y = rounded(sum, a.round);
}

extern "C" void cuda_pool(struct queue *q, const struct pool_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->ratio < 1 || a->raw.cap < a->ratio || a->raw.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "pool: groups of %d from a ring of %d", a->ratio, a->raw.cap);
        return;
    }
    launch(q, pool_columns, dim3(blocks_for((size_t)a->cols, THREADS), (unsigned)a->rows), THREADS,
           0, *a);
    queue_note(q, "pool");
}
