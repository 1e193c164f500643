// plain.cu owns a simple product of EXL3 weights for up to 16 rows, to be timed beside the op:
// rotate the inputs, multiply (a warp has 32 outputs and all inputs, no split-K), rotate the sums
// back, a launch each. Inputs [rows][ld] f16 and sums [rows][ldz] f32 lie in scratch. It is not
// tuned: with so few warps it is bound by latency.
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/plain.h"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define ROWS (2 * STRIP_TOKENS)

// Rotated inputs lie at `in`, sums at `z`, both in scratch.
struct plain {
    struct matmul_args a;
    struct mat w;
    uint16_t *in;
    float *z;
    int ld, ldz;
};

// A warp a block of 128 inputs of a row.
__global__ static void plain_inputs(const __grid_constant__ struct plain p)
{
    int blocks = p.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int row = i / blocks, k = i % blocks * EXL3_BLOCK;
    float v[4];

    dependency_wait();
    if (row >= p.a.rows)
        return;
    take_four(p.a.x + (size_t)row * (size_t)p.w.cols, k + 4 * lane, p.w.cols, v);
    put_rotated(p.in + (size_t)row * (size_t)p.ld + k + lane / 16 * STRIP_UNIT,
                *(const uint2 *)(p.w.suh + k + 4 * lane), v);
}

// A warp two tiles of 16 outputs, k ascending.
template <class C> __global__ static void plain_tiles(const __grid_constant__ struct plain p)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int strip = i / (C::TILES / 2), pair = i % (C::TILES / 2), pieces = strip_pieces(p.w);
    float acc[2][ROWS / STRIP_TOKENS][4] = {};

    dependency_wait();
    if (strip * EXL3_BLOCK >= p.w.rows)
        return;
    C codes(p.w, strip, lane);
    for (int at = 0; at < pieces; at++) {
        typename C::piece now;

        codes.load(at, now);
#pragma unroll
        for (int step = 0; step < C::STEPS; step++)
#pragma unroll
            for (int t = 0; t < C::TILES; t += 2) {
                int k = at * C::STEPS + step;
                uint32_t a[2][4];

                if (t / 2 != pair)
                    continue;
                if (C::BOOKS > 1 && codes.book)
                    codes.template operands<C::BOOKS - 1>(now, step, t, a);
                else
                    codes.template operands<0>(now, step, t, a);
#pragma unroll
                for (int r = 0; r < ROWS / STRIP_TOKENS; r++) {
                    int row = r * STRIP_TOKENS + lane / 4;
                    uint2 x = row < p.a.rows
                                  ? *(const uint2 *)(p.in + (size_t)row * (size_t)p.ld +
                                                     k / 4 * STRIP_UNIT + lane % 4 * 16 + k % 4 * 4)
                                  : make_uint2(0, 0);

                    mma<true>(acc[0][r], a[0], x.x, x.y);
                    mma<true>(acc[1][r], a[1], x.x, x.y);
                }
            }
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int r = 0; r < ROWS / STRIP_TOKENS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int row = r * STRIP_TOKENS + lane % 4 * 2 + c % 2;

                if (row < p.a.rows)
                    p.z[(size_t)row * (size_t)p.ldz + (size_t)strip * EXL3_BLOCK +
                        (size_t)((pair * 2 + k) * MAT_TILE + lane / 4 + c / 2 * 8)] = acc[k][r][c];
            }
}

// A warp 128 outputs of a row.
__global__ static void plain_outputs(const __grid_constant__ struct plain p)
{
    int strips = p.ldz / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int row = i / strips, n0 = i % strips * EXL3_BLOCK;
    float v[4];

    dependency_wait();
    if (row >= p.a.rows)
        return;
    take_outputs(p.z + (size_t)row * (size_t)p.ldz + n0, p.w, n0, EXL3_BLOCK, v);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (n0 + 4 * lane + k < p.w.rows)
            p.a.y[(size_t)row * (size_t)p.w.rows + (size_t)(n0 + 4 * lane + k)] =
                rounded(v[k], p.a.round);
}

template <class C> static void tiles_launch(struct queue *q, const struct plain *p)
{
    launch(q, plain_tiles<C>, blocks_for((size_t)p->ldz / (2 * MAT_TILE), WARPS), THREADS, 0, *p);
}

extern "C" bool plain_can(const struct queue *q, const struct matmul_args *a)
{
    return q->ops == &backend_cuda && a->w->dtype == DTYPE_EXL3 &&
           a->w->q.layout == LAYOUT_DEVICE && a->groups <= 1 && a->w->q.slices <= 1 &&
           a->rows <= ROWS && a->w->rows > 0 && a->w->cols > 0;
}

extern "C" void plain_product(struct queue *q, const struct matmul_args *a)
{
    struct plain p = { *a, *a->w };

    if (queue_skips(q, a->rows))
        return;
    p.ld = (int)mat_round_up((size_t)p.w.cols, EXL3_BLOCK);
    p.ldz = (int)mat_round_up((size_t)p.w.rows, EXL3_BLOCK);
    p.in = (uint16_t *)cuda_lane(q)->scratch;
    p.z = (float *)(p.in + (size_t)ROWS * (size_t)p.ld);
    if ((size_t)ROWS * (size_t)(p.ld * 2 + p.ldz * 4) > cuda_lane(q)->scratch_bytes) {
        queue_fail(q, -EINVAL, "plain: %d x %d is too large", p.w.rows, p.w.cols);
        return;
    }
    launch(q, plain_inputs, blocks_for((size_t)(a->rows * p.ld / EXL3_BLOCK), WARPS), THREADS, 0,
           p);
    switch (p.w.q.bits2) {
#define WIDTH(b)                                                                                   \
    case b:                                                                                        \
        tiles_launch<exl3_codes<b>>(q, &p);                                                        \
        break;
        EXL3_WIDTHS(WIDTH)
#undef WIDTH
    }
    launch(q, plain_outputs, blocks_for((size_t)(a->rows * p.ldz / EXL3_BLOCK), WARPS), THREADS, 0,
           p);
    queue_note(q, "plain");
}
