// index_side - scores of SIDE entries at a time by mma, where keys and queries are values of QI:
// decoded keys are the A operand, queries of eight heads the B operand. Blocks have WARPS warps.
#ifndef TANDEM_KERNELS_CUDA_INDEX_SIDE_CUH
#define TANDEM_KERNELS_CUDA_INDEX_SIDE_CUH

#include "kernels/cuda/index.cuh"
#include "kernels/cuda/matrix.cuh"

#define DIM 128
#define WARPS 16
#define THREADS (WARPS * CUDA_WARP)
#define SIDE 16 // entries: rows of an mma
#define HEADS_MAX 32

// Queries as bf16 pairs in the order of B fragments: of each eight values the j-th with the
// (j + 4)-th, which is how e2m1_eight pairs a key's. All threads of the block.
#define QUERY_LINE (DIM / 2 + 4) // words of a head

// A thread's share of the queries, requested and not yet stored.
template <int TILES> struct query_part {
    float4 of[(TILES * 8 * (DIM / 8) + THREADS - 1) / THREADS][2];
};

template <int TILES>
__device__ static inline void queries_ask(const float *q, int heads, struct query_part<TILES> *p)
{
#pragma unroll
    for (int i = 0; i < (TILES * 8 * (DIM / 8) + THREADS - 1) / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x;

        p->of[i][0] = p->of[i][1] = make_float4(0, 0, 0, 0);
        if (at / (DIM / 8) < heads) {
            p->of[i][0] = ((const float4 *)q)[2 * at];
            p->of[i][1] = ((const float4 *)q)[2 * at + 1];
        }
    }
}

template <int TILES>
__device__ static inline void queries_put(const struct query_part<TILES> &p, uint32_t *to)
{
#pragma unroll
    for (int i = 0; i < (TILES * 8 * (DIM / 8) + THREADS - 1) / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x, h = at / (DIM / 8);
        float4 x = p.of[i][0], y = p.of[i][1];

        if (h < TILES * 8)
            *(uint4 *)(to + h * QUERY_LINE + at % (DIM / 8) * 4) = make_uint4(
                bf16_pair(x.x, y.x), bf16_pair(x.y, y.y), bf16_pair(x.z, y.z), bf16_pair(x.w, y.w));
    }
}

template <int TILES>
__device__ static inline void queries_stage(const float *q, int heads, uint32_t *to)
{
    struct query_part<TILES> p;

    queries_ask(q, heads, &p);
    queries_put(p, to);
}

// The lane's B fragments of eight heads for the b-th eight values of its block: lane % 4 is one of
// the four blocks of 32 values, so a lane needs one scale of a key.
__device__ static inline uint4 query_load(const uint32_t *staged, int h, int b)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    return *(const uint4 *)(staged + (h * 8 + lane / 4) * QUERY_LINE + lane % 4 * 16 + b * 4);
}

// Weights of the heads, zeros behind the last one.
__device__ static inline void weights_stage(const struct select_args &a, int r, float *wt)
{
    int t = (int)threadIdx.x;

    if (t < HEADS_MAX)
        wt[t] = t < a.heads ? a.wt[(size_t)r * (size_t)a.heads + (size_t)t] : 0;
}

// A lane's share of SIDE entries: codes and scales of its block of rows lane / 4 and lane / 4 + 8.
struct side {
    uint32_t code[2][DIM / 32], scale[2];
};

__device__ static inline void side_load(const struct select_args &a, const struct field &f,
                                        const unsigned char *keys, int first, struct side *s)
{
    int lane = (int)threadIdx.x % CUDA_WARP, r = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < 2; m++) {
        int i = first + m * 8 + r;
        const uint32_t *row;

#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            s->code[m][b] = 0;
        s->scale[m] = 0x7f7f7f7fu;
        if (i >= f.size)
            continue;
        row = (const uint32_t *)(keys + (size_t)(uint32_t)entry_of(f, i) * a.keys.row_bytes);
#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            s->code[m][b] = row[t * 4 + b];
        s->scale[m] = row[DIM / 8];
    }
}

#define ROW_WORDS (DIM / 8 + 1) // of a key, codes and scales

// The same from shared memory, where keys lie without gaps: the lane's first key is at `row`, its
// second `behind` keys further.
__device__ static inline void side_take(const uint32_t *row, int behind, struct side *s)
{
    int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            s->code[m][b] = row[m * behind * ROW_WORDS + t * 4 + b];
        s->scale[m] = row[m * behind * ROW_WORDS + DIM / 8];
    }
}

// As e2m1_eight, with one multiplication a pair; `by` is 2^126 times the scale.
__device__ static inline void e2m1_near(uint32_t u, uint32_t by, uint32_t (&v)[4])
{
    const uint32_t at = 0x01c001c0u, sign = 0x80008000u;

    v[0] = bf16_times((u << 6 & at) | (u << 12 & sign), by);
    v[1] = bf16_times((u << 2 & at) | (u << 8 & sign), by);
    v[2] = bf16_times((u >> 2 & at) | (u << 4 & sign), by);
    v[3] = bf16_times((u >> 6 & at) | (u & sign), by);
}

// Whether no scale of the warp's keys is larger than 2, so that 2^126 times it is finite.
__device__ static inline bool side_near(const struct side &s)
{
    int t = (int)threadIdx.x % 4;
    bool far = false;

#pragma unroll
    for (int m = 0; m < 2; m++)
        far |= (s.scale[m] >> (8 * t) & 0xff) > 128;
    return !__any_sync(FULL_MASK, far);
}

// Store what each head adds to the scores of the lane's two entries: to line `hit` and `behind`
// lines further. Of each eight heads the last four lie half a line behind the first four, which
// avoids bank conflicts. NEAR: side_near holds, and a code is multiplied once instead of twice,
// with the same bits.
#define HIT_LINE (HEADS_MAX + 4)

template <int TILES, bool NEAR, typename Q>
__device__ static inline void side_scores(const struct side &s, const float *wt, Q query,
                                          float *hit, int behind)
{
    int t = (int)threadIdx.x % 4;
    float dot[TILES][4] = {};
    uint32_t by[2];

#pragma unroll
    for (int m = 0; m < 2; m++)
        by[m] = NEAR ? ((s.scale[m] >> (8 * t) & 0xff) + 126) * 0x00800080u
                     : scale_pair(s.scale[m] >> (8 * t) & 0xff);
#pragma unroll
    for (int b = 0; b < DIM / 32; b++) {
        uint32_t v[2][4];

#pragma unroll
        for (int m = 0; m < 2; m++)
            if (NEAR)
                e2m1_near(s.code[m][b], by[m], v[m]);
            else
                e2m1_eight(s.code[m][b], by[m], v[m]);
#pragma unroll
        for (int h = 0; h < TILES; h++) {
            const uint32_t left[2][4] = { { v[0][0], v[1][0], v[0][1], v[1][1] },
                                          { v[0][2], v[1][2], v[0][3], v[1][3] } };
            uint4 right = query(h, b);

            multiply(dot[h], left[0], right.x, right.y);
            multiply(dot[h], left[1], right.z, right.w);
        }
    }
#pragma unroll
    for (int h = 0; h < TILES; h++) {
        float2 by_head = *(const float2 *)(wt + h * 8 + t * 2);

#pragma unroll
        for (int m = 0; m < 2; m++) {
            *(float2 *)(hit + m * behind * HIT_LINE + h * 4 + t / 2 * (HEADS_MAX / 2) + t % 2 * 2) =
                make_float2(by_head.x * not_negative(dot[h][2 * m]),
                            by_head.y * not_negative(dot[h][2 * m + 1]));
        }
    }
}

// The order word of the entry with line `hit`: its heads in index order.
template <int TILES>
__device__ static inline uint32_t hits_word(const struct select_args &a, const float *hit)
{
    float sum = 0;

#pragma unroll
    for (int h = 0; h < TILES * 8; h += 4) { // weights past the last head are zero
        float4 v = *(const float4 *)(hit + h / 8 * 4 + h / 4 % 2 * (HEADS_MAX / 2));

        sum += v.x;
        sum += v.y;
        sum += v.z;
        sum += v.w;
    }
    return order_word(a.scale * sum);
}

__device__ static inline const unsigned char *slot_keys(const struct select_args &a, int r)
{
    return a.keys.base + (size_t)a.info[r].slot * a.keys.slot_stride;
}

#endif
