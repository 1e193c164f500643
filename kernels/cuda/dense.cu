// dense.cu owns the small ops of every layer: RMS norm, sum, SwiGLU, and the product of f32 and f16
// weights; products of other weights go to strips.cu. Bound by bytes, for few rows by latency.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/strip.cuh"

#define THREADS 256
#define NORM_WARP_COLS 512 // a row up to this long is one warp's
#define NORM_COLS_MAX 16384

// Values c .. c + 3 of a row, zeros past its end.
__device__ static inline void four_load(const float *x, int c, int cols, bool four, float *v)
{
    float4 u = make_float4(0, 0, 0, 0);

    if (four && c < cols)
        u = *(const float4 *)(x + c);
    v[0] = u.x;
    v[1] = u.y;
    v[2] = u.z;
    v[3] = u.w;
    for (int j = 0; !four && j < 4; j++)
        v[j] = c + j < cols ? x[c + j] : 0;
}

// WARPS warps for each row, up to 4 * PIECES values for each lane; four: rows are aligned for
// 16-byte accesses. Bound by bytes, for few rows by latency.
template <int WARPS, int PIECES>
__global__ static void norm_rows(const float *x, const float *w, float *y, int rows, int cols,
                                 float eps, enum round round, bool four)
{
    __shared__ float part[WARPS];
    constexpr int LANES = WARPS * CUDA_WARP;
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    int lane = (int)threadIdx.x % LANES;
    float v[4 * PIECES], by[4 * PIECES], sum = 0;

#pragma unroll
    for (int i = 0; i < PIECES; i++)
        four_load(w, (lane + i * LANES) * 4, cols, four, &by[4 * i]); // no kernel writes w
    dependency_wait();
    if (row >= rows) // whole warps leave, and with WARPS > 1 a block has one row
        return;
    x += (size_t)row * (size_t)cols;
    y += (size_t)row * (size_t)cols;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        four_load(x, (lane + i * LANES) * 4, cols, four, &v[4 * i]);
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++)
        sum = fmaf(v[i], v[i], sum);
    sum = 1.0f / sqrtf(block_sum<WARPS>(sum, part) / (float)cols + eps);
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++)
        v[i] = rounded(v[i] * sum * by[i], round);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int c = (lane + i * LANES) * 4;

        if (four && c < cols)
            *(float4 *)(y + c) = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        for (int j = 0; !four && j < 4 && c + j < cols; j++)
            y[c + j] = v[4 * i + j];
    }
}

extern "C" void cuda_rmsnorm(struct queue *q, const struct rmsnorm_args *a)
{
    bool four =
        a->cols % 4 == 0 && (((uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->y) & 15) == 0;

    if (queue_skips(q, a->rows))
        return;
    if (a->cols <= NORM_WARP_COLS)
        launch(q, norm_rows<1, NORM_WARP_COLS / CUDA_WARP / 4>,
               blocks_for((size_t)a->rows, THREADS / CUDA_WARP), THREADS, 0, a->x, a->w, a->y,
               a->rows, a->cols, a->eps, a->round, four);
    else if (a->cols <= 2 * THREADS * 4)
        launch(q, norm_rows<8, 2>, a->rows, THREADS, 0, a->x, a->w, a->y, a->rows, a->cols, a->eps,
               a->round, four);
    else if (a->cols <= NORM_COLS_MAX)
        launch(q, norm_rows<8, NORM_COLS_MAX / THREADS / 4>, a->rows, THREADS, 0, a->x, a->w, a->y,
               a->rows, a->cols, a->eps, a->round, four);
    else
        queue_fail(q, -EINVAL, "rmsnorm: rows of %d, want at most %d", a->cols, NORM_COLS_MAX);
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

// One block for each (group, tile) and RB rows (dot.cuh). A tile that two groups share is
// multiplied for both, and each stores its own outputs. Bound by the bytes of the weights.
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
        launch_behind(s, product_tiles<D, 1>, tiles, DOT_THREADS, 0, *p);
    else if (p->rows == 2)
        launch_behind(s, product_tiles<D, 2>, tiles, DOT_THREADS, 0, *p);
    else if (p->rows <= 4)
        launch_behind(s, product_tiles<D, 4>, tiles, DOT_THREADS, 0, *p);
    else
        launch_behind(s, product_tiles<D, DOT_ROWS>,
                      dim3(tiles, blocks_for((size_t)p->rows, DOT_ROWS)), DOT_THREADS, 0, *p);
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
    if (p.w.dtype > DTYPE_COUNT || p.w.dtype == DTYPE_BF16) {
        strip_matmul(q, a);
        return;
    }
    if (p.w.rows == 0)
        return;
    p.local = p.w.rows / p.groups;
    p.parts = p.local / MAT_TILE + (p.local % MAT_TILE ? 2 : 0);
    if (p.w.dtype == DTYPE_F32)
        product_launch<DTYPE_F32>(cuda_stream(q), &p);
    else
        product_launch<DTYPE_F16>(cuda_stream(q), &p);
    queue_note(q, "matmul");
}

extern "C" void cuda_matmuls(struct queue *q, const struct matmuls_args *a)
{
    if (!matmuls_refused(q, a) && !queue_skips(q, a->n ? a->of[0].rows : 0))
        strip_matmuls(q, a);
}

// One thread for each value. Bound by bytes.
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

// One thread for each value. Bound by bytes.
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
