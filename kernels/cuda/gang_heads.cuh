// gang_heads - the heads of a block of attention: loaded early, rotated by their row's position,
// kept as bf16 in shared memory and loaded as left operands.
#ifndef TANDEM_KERNELS_CUDA_GANG_HEADS_CUH
#define TANDEM_KERNELS_CUDA_GANG_HEADS_CUH

#include "kernels/cuda/gang_keys.cuh"
#include "kernels/cuda/turn.cuh"

#define FLAT 8       // heads of a gang where the device has room for twice as many gangs
#define PAIRS_MAX 32 // rotated pairs of a head

// Keys and heads have the j-th of each eight values next to the (j + 4)-th, as decoding leaves
// them, and so have the columns of sums until the outputs are stored.
__device__ static inline int value_of(int column)
{
    return column / 8 * 8 + column % 2 * 4 + column % 8 / 2;
}

// Pairs of neighbouring values from `begin` on are rotated by their row's position.
struct gang_turn {
    alignas(16) float2 pair[PAIRS_MAX];
    int begin;
};

// A thread's values of the heads, in eights, loaded while keys are located.
template <int DIM, int HEADS> struct gang_heads {
    static constexpr int EIGHTS = HEADS * DIM / 8 < THREADS ? 1 : HEADS * DIM / 8 / THREADS;
    float4 v[EIGHTS][2];
};

template <int DIM, int HEADS>
__device__ static inline struct gang_heads<DIM, HEADS> heads_fetch(const float *q, int heads) {
    struct gang_heads<DIM, HEADS> g;

#pragma unroll
    for (int i = 0; i < g.EIGHTS; i++) {
        int at = (int)threadIdx.x + i * THREADS;

#pragma unroll
        for (int j = 0; j < 2; j++)
            g.v[i][j] =
                at / (DIM / 8) < heads ? ((const float4 *)q)[2 * at + j] : make_float4(0, 0, 0, 0);
    }
    return g;
}

// Two values truncated to bf16, x in the low half; the bits cut off are added to `rest`.
__device__ static inline uint32_t
pair_cut(float x, float y, uint32_t &rest)
{
    rest |= (f32_bits(x) | f32_bits(y)) & 0xffffu;
    return __byte_perm(f32_bits(x), f32_bits(y), 0x7632);
}

// Rotate four values; at and turn.begin are multiples of four.
__device__ static inline void four_turn(const struct gang_turn &turn, int at, enum round round,
                                        float4 &v)
{
    float4 pair = *(const float4 *)&turn.pair[max(at - turn.begin, 0) / 2];
    float2 x = turned(make_float2(v.x, v.y), make_float2(pair.x, pair.y), round);
    float2 y = turned(make_float2(v.z, v.w), make_float2(pair.z, pair.w), round);

    if (at >= turn.begin)
        v = make_float4(x.x, x.y, y.x, y.y);
}

// Store the heads, rotated, as bf16 [HEADS][DIM + PAD]; rows from `heads` on are zeros.
template <int DIM, int HEADS>
__device__ static inline void heads_put(struct gang_heads<DIM, HEADS> &g,
                                        const struct gang_turn &turn, enum round round, int heads,
                                        uint16_t *to, uint32_t &rest)
{
#pragma unroll
    for (int i = 0; i < g.EIGHTS; i++) {
        int at = (int)threadIdx.x + i * THREADS, c = at % (DIM / 8) * 8;

        if (at >= HEADS * DIM / 8)
            break;
        if (c + 8 > turn.begin && at / (DIM / 8) < heads) {
            four_turn(turn, c, round, g.v[i][0]);
            four_turn(turn, c + 4, round, g.v[i][1]);
        }
        *(uint4 *)(to + at / (DIM / 8) * (DIM + PAD) + c) = make_uint4(
            pair_cut(g.v[i][0].x, g.v[i][1].x, rest), pair_cut(g.v[i][0].y, g.v[i][1].y, rest),
            pair_cut(g.v[i][0].z, g.v[i][1].z, rest), pair_cut(g.v[i][0].w, g.v[i][1].w, rest));
    }
}

// The left operand of columns k .. k + 15 of TALL rows of `ld` bf16 numbers.
__device__ static inline void left_load(uint32_t (&left)[4], const uint16_t *row, int ld, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    matrices_load(left, row + lane % 16 * ld + k + lane / 16 * 8);
}

// Left operands of columns k .. k + 15 and k + 16 .. k + 31 of FLAT rows; the other rows are zeros.
__device__ static inline void flat_load(uint32_t (&left)[2][4], const uint16_t *row, int ld, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    uint32_t m[4];

    matrices_load(m, row + lane % 8 * ld + k + lane / 8 * 8);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        left[i][0] = m[2 * i];
        left[i][2] = m[2 * i + 1];
        left[i][1] = left[i][3] = 0;
    }
}

// Value d of a head, rotated.
__device__ static float head_value(const float *q, const struct gang_turn &turn, enum round round,
                                   int d)
{
    float2 v;

    if (d < turn.begin)
        return q[d];
    v = turned(make_float2(q[d / 2 * 2], q[d / 2 * 2 + 1]), turn.pair[(d - turn.begin) / 2], round);
    return d % 2 ? v.y : v.x;
}

// The left operand in planes, from the f32 heads.
template <int DIM>
__device__ static inline struct planes
heads_planes(const float *q, int heads, const struct gang_turn &turn, enum round round, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float2 v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int h = lane / 4 + i % 2 * 8, d = value_of(k + i / 2 * 8 + lane % 4 * 2);

        v[i] = make_float2(0, 0);
        if (h < heads)
            v[i] = make_float2(head_value(q + (size_t)h * DIM, turn, round, d),
                               head_value(q + (size_t)h * DIM, turn, round, d + 4));
    }
    return planes_of(v);
}

#endif
