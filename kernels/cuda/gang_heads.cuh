// gang_heads - the heads of a block of attend_gang: fetched while keys are looked for, turned by their row's position, kept
// as bf16 in shared memory and loaded as left operands; a part of gang.cu.
#ifndef TANDEM_KERNELS_CUDA_GANG_HEADS_CUH
#define TANDEM_KERNELS_CUDA_GANG_HEADS_CUH

#include "kernels/cuda/gang_keys.cuh"
#include "kernels/cuda/turn.cuh"

#define FLAT 8       // heads where there is room for more gangs than with TALL
#define PAIRS_MAX 32 // that turn by position

// Rows of keys and heads have of each eight values the j-th beside the (j + 4)-th, as codes are decoded; so have
// columns of the sums until the end.
__device__ static inline int value_of(int column)
{
    return column / 8 * 8 + column % 2 * 4 + column % 8 / 2;
}

// Values from `begin` on are turned by their row's position: pairs of neighbours.
struct gang_turn {
    float2 pair[PAIRS_MAX];
    int begin;
};

// The heads' values of a thread, eight and eight, on their way while keys are looked for.
#define EIGHTS(dim) (TALL * (dim) / 8 < THREADS ? 1 : TALL * (dim) / 8 / THREADS)

template <int DIM> struct gang_heads {
    float4 v[EIGHTS(DIM)][2];
};

template <int DIM>
__device__ static inline struct gang_heads<DIM> heads_fetch(const float *q, int heads) {
    struct gang_heads<DIM> g;

#pragma unroll
    for (int i = 0; i < EIGHTS(DIM); i++) {
        int at = (int)threadIdx.x + i * THREADS;

#pragma unroll
        for (int j = 0; j < 2; j++)
            g.v[i][j] =
                at / (DIM / 8) < heads ? ((const float4 *)q)[2 * at + j] : make_float4(0, 0, 0, 0);
    }
    return g;
}

// Two values as bf16, x in the low half; what is left out is in `rest`.
__device__ static inline uint32_t
pair_cut(float x, float y, uint32_t &rest)
{
    rest |= (f32_bits(x) | f32_bits(y)) & 0xffffu;
    return __byte_perm(f32_bits(x), f32_bits(y), 0x7632);
}

__device__ static inline void four_turn(const struct gang_turn &turn, int at, enum round round,
                                        float4 &v)
{
    float2 x = make_float2(v.x, v.y), y = make_float2(v.z, v.w);

    if (at >= turn.begin)
        x = turned(x, turn.pair[(at - turn.begin) / 2], round);
    if (at + 2 >= turn.begin)
        y = turned(y, turn.pair[(at + 2 - turn.begin) / 2], round);
    v = make_float4(x.x, x.y, y.x, y.y);
}

// Turned, as bf16, to [TALL][DIM + PAD].
template <int DIM>
__device__ static inline void heads_put(struct gang_heads<DIM> &g, const struct gang_turn &turn,
                                        enum round round, uint16_t *to, uint32_t &rest)
{
#pragma unroll
    for (int i = 0; i < EIGHTS(DIM); i++) {
        int at = (int)threadIdx.x + i * THREADS, c = at % (DIM / 8) * 8;

        if (at >= TALL * DIM / 8)
            break;
        if (c + 8 > turn.begin) {
            four_turn(turn, c, round, g.v[i][0]);
            four_turn(turn, c + 4, round, g.v[i][1]);
        }
        *(uint4 *)(to + at / (DIM / 8) * (DIM + PAD) + c) = make_uint4(
            pair_cut(g.v[i][0].x, g.v[i][1].x, rest), pair_cut(g.v[i][0].y, g.v[i][1].y, rest),
            pair_cut(g.v[i][0].z, g.v[i][1].z, rest), pair_cut(g.v[i][0].w, g.v[i][1].w, rest));
    }
}

// The left operand of columns k .. k + 15, from the heads' bf16 values.
template <int DIM>
__device__ static inline void heads_load(uint32_t (&top)[4], const uint16_t *head, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    matrices_load(top, head + lane % 16 * (DIM + PAD) + k + lane / 16 * 8);
}

// Value d of a head as it is turned.
__device__ static float head_value(const float *q, const struct gang_turn &turn, enum round round,
                                   int d)
{
    float2 v;

    if (d < turn.begin)
        return q[d];
    v = turned(make_float2(q[d / 2 * 2], q[d / 2 * 2 + 1]), turn.pair[(d - turn.begin) / 2], round);
    return d % 2 ? v.y : v.x;
}

// The same in planes, from the heads as they came.
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
