// dense.cu owns the pieces every block is made of: norm, product, sum, gate.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/strip.cuh"

#define THREADS 256
#define NORM_WARP_COLS 512 // rows up to this long belong to one warp

// WARPS warps a row; a lane steps through the columns. Bound by bytes.
template <int WARPS>
__global__ static void norm_rows(const float *x, const float *w, float *y, int rows, int cols,
                                 float eps, enum round round)
{
    dependency_wait();
    __shared__ float part[WARPS];
    int in_block = (int)blockDim.x / (WARPS * CUDA_WARP);
    int row = (int)blockIdx.x * in_block + (int)threadIdx.x / (WARPS * CUDA_WARP);
    int c0 = (int)threadIdx.x % (WARPS * CUDA_WARP);
    float sum = 0, by;

    if (row >= rows) // whole warps leave, and with WARPS > 1 a block has one row
        return;
    x += (size_t)row * (size_t)cols;
    y += (size_t)row * (size_t)cols;
    for (int c = c0; c < cols; c += WARPS * CUDA_WARP)
        sum = fmaf(x[c], x[c], sum);
    sum = block_sum<WARPS>(sum, part);
    by = 1.0f / sqrtf(sum / (float)cols + eps);
    for (int c = c0; c < cols; c += WARPS * CUDA_WARP)
        y[c] = rounded(x[c] * by * w[c], round);
}

extern "C" void cuda_rmsnorm(struct queue *q, const struct rmsnorm_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->cols <= NORM_WARP_COLS)
        launch(q, norm_rows<1>, blocks_for((size_t)a->rows, THREADS / CUDA_WARP), THREADS, 0, a->x,
               a->w, a->y, a->rows, a->cols, a->eps, a->round);
    else
        launch(q, norm_rows<8>, a->rows, 8 * CUDA_WARP, 0, a->x, a->w, a->y, a->rows, a->cols,
               a->eps, a->round);
    queue_note(q, "rmsnorm");
}

struct product {
    struct mat w;
    const float *x;
    float *y;
    int rows, groups, local; // local: outputs of a group
    int parts;               // tiles that a group may touch
    enum round round;
};

// A block a (group, tile) and RB rows: see dot.cuh. A tile that two groups share is taken by both,
// and each stores its own outputs. Bound by the bytes of the weights.
template <enum dtype D, int RB> __global__ static void product_tiles(struct product p)
{
    __shared__ float part[DOT_WARPS * RB * MAT_TILE];
    int group = (int)blockIdx.x / p.parts, begin = group * p.local, end = begin + p.local;
    int tile = begin / MAT_TILE + (int)blockIdx.x % p.parts;
    int r0 = (int)blockIdx.y * RB, r = r0 + (int)threadIdx.x / MAT_TILE;
    int n = tile * MAT_TILE + (int)threadIdx.x % MAT_TILE;
    const float *x[RB];
    float sum;

    if (tile * MAT_TILE >= end)
        return;
#pragma unroll
    for (int i = 0; i < RB; i++) {
        size_t row = (size_t)(r0 + i < p.rows ? r0 + i : p.rows - 1);

        x[i] = p.x + (row * (size_t)p.groups + (size_t)group) * (size_t)p.w.cols;
    }
    sum = dot_tile<D, RB>(mat_tile(p.w, tile), p.w.cols, x, part);
    if ((int)threadIdx.x < RB * MAT_TILE && r < p.rows && n >= begin && n < end)
        p.y[(size_t)r * (size_t)p.w.rows + (size_t)n] = rounded(sum, p.round);
}

template <enum dtype D> static void product_launch(cudaStream_t s, const struct product *p)
{
    unsigned tiles = (unsigned)(p->groups * p->parts);

    if (p->rows == 1)
        product_tiles<D, 1><<<tiles, DOT_THREADS, 0, s>>>(*p);
    else if (p->rows == 2)
        product_tiles<D, 2><<<tiles, DOT_THREADS, 0, s>>>(*p);
    else if (p->rows <= 4)
        product_tiles<D, 4><<<tiles, DOT_THREADS, 0, s>>>(*p);
    else
        product_tiles<D, DOT_ROWS>
            <<<dim3(tiles, blocks_for((size_t)p->rows, DOT_ROWS)), DOT_THREADS, 0, s>>>(*p);
}

extern "C" void cuda_matmul(struct queue *q, const struct matmul_args *a)
{
    struct product p = { *a->w, a->x, a->y, a->rows, a->groups ? a->groups : 1, 0, 0, a->round };

    if (queue_skips(q, a->rows))
        return;
    if (p.groups < 0 || p.w.rows % p.groups != 0) {
        queue_fail(q, -EINVAL, "matmul: %d outputs in %d groups", p.w.rows, p.groups);
        return;
    }
    if (p.w.dtype >= DTYPE_COUNT) {
        strip_matmul(q, a);
        return;
    }
    if (p.w.rows == 0)
        return;
    p.local = p.w.rows / p.groups;
    p.parts = p.local / MAT_TILE + (p.local % MAT_TILE ? 2 : 0);
    if (p.w.dtype == DTYPE_F32)
        product_launch<DTYPE_F32>(cuda_stream(q), &p);
    else if (p.w.dtype == DTYPE_F16)
        product_launch<DTYPE_F16>(cuda_stream(q), &p);
    else
        product_launch<DTYPE_BF16>(cuda_stream(q), &p);
    queue_note(q, "matmul");
}

extern "C" void cuda_matmuls(struct queue *q, const struct matmuls_args *a)
{
    for (int i = 0; i < a->n; i++)
        cuda_matmul(q, &a->of[i]);
}

// A thread a value. Bound by bytes.
__global__ static void add_values(const float *x, float *y, size_t n, enum round round)
{
    dependency_wait();
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        y[i] = rounded(y[i] + x[i], round);
}

extern "C" void cuda_add(struct queue *q, const struct add_args *a)
{
    size_t n = (size_t)(a->rows > 0 ? a->rows : 0) * (size_t)a->cols;

    if (queue_skips(q, a->rows) || n == 0)
        return;
    launch(q, add_values, blocks_for(n, THREADS), THREADS, 0, a->x, a->y, n, a->round);
    queue_note(q, "add");
}

// A thread a value. Bound by bytes.
__global__ static void swiglu_values(const float *gate, const float *up, float *y, size_t n,
                                     float limit, enum round round)
{
    dependency_wait();
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        y[i] = swiglu(gate[i], up[i], 1, limit, round);
}

extern "C" void cuda_swiglu(struct queue *q, const struct swiglu_args *a)
{
    size_t n = (size_t)(a->rows > 0 ? a->rows : 0) * (size_t)a->cols;

    if (queue_skips(q, a->rows) || n == 0)
        return;
    launch(q, swiglu_values, blocks_for(n, THREADS), THREADS, 0, a->gate, a->up, a->y, n, a->limit,
           a->round);
    queue_note(q, "swiglu");
}
