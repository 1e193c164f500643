// matrix - bf16 operands of mma m16n8k16: from stored e4m3 and e2m1 codes, and from f32 values as
// three bf16 planes.
//
// Fragments: of A (16 x 16) a lane has rows r = lane / 4 and r + 8 and columns c = lane % 4 * 2, c
// + 1, c + 8, c + 9, a pair of columns a register, in the order (r, c), (r + 8, c), (r, c + 8), (r
// + 8, c + 8); of B (16 x 8) rows c, c + 1 and c + 8, c + 9 of column r.
#ifndef TANDEM_KERNELS_CUDA_MATRIX_CUH
#define TANDEM_KERNELS_CUDA_MATRIX_CUH

#include "kernels/cuda/device.cuh"

// Two e4m3 codes, in bits 0 .. 7 and 16 .. 23, to bf16: shifted into place they are bf16 numbers
// 2^120 too small. The code of a NaN becomes 480; a block that has one is marked by its scale.
__device__ static inline uint32_t e4m3_far(uint32_t u)
{
    return bf16_times((u & 0x007f007fu) << 4 | (u & 0x00800080u) << 8, 0x7b807b80u);
}

// Eight e2m1 codes times `by`, to bf16; v[j] has codes j and j + 4. Shifted into place a code is a
// bf16 number 2^126 too small; a subnormal code is a subnormal number.
__device__ static inline void e2m1_eight(uint32_t u, uint32_t by, uint32_t (&v)[4])
{
    const uint32_t at = 0x01c001c0u, sign = 0x80008000u, far = 0x7e807e80u;

    v[0] = bf16_times(bf16_times((u << 6 & at) | (u << 12 & sign), far), by);
    v[1] = bf16_times(bf16_times((u << 2 & at) | (u << 8 & sign), far), by);
    v[2] = bf16_times(bf16_times((u >> 2 & at) | (u << 4 & sign), far), by);
    v[3] = bf16_times(bf16_times((u >> 6 & at) | (u & sign), far), by);
}

__device__ static inline void e4m3_eight(uint32_t u0, uint32_t u1, uint32_t by, uint32_t (&v)[4])
{
    const uint32_t at = 0x07f007f0u, sign = 0x80008000u, far = 0x7b807b80u; // as in e4m3_far

#pragma unroll
    for (int j = 0; j < 4; j++) { // codes are in the upper halves of half words
        uint32_t u = __byte_perm(u0, u1, (unsigned)(j << 4 | (j + 4) << 12));

        v[j] = bf16_times(bf16_times((u >> 4 & at) | (u & sign), far), by);
    }
}

// The same with `by` 2^126 times as large, a number if it was not above 2. A product copies
// codes to where their parts have to be: shifts would take the unit that bounds decoding.
__device__ static inline void e2m1_eight_once(uint32_t u, uint32_t by, uint32_t (&v)[4])
{
    const uint32_t at = 0x81c081c0u;
    uint32_t w = u >> 8;

    v[0] = bf16_times((u & 0x000f000fu) * 0x1040 & at, by);
    v[1] = bf16_times((u & 0x00f000f0u) * 0x104 & at, by);
    v[2] = bf16_times((w & 0x000f000fu) * 0x1040 & at, by);
    v[3] = bf16_times((w & 0x00f000f0u) * 0x104 & at, by);
}

// The same with `by` 2^120 times as large.
__device__ static inline void e4m3_eight_once(uint32_t u0, uint32_t u1, uint32_t by,
                                              uint32_t (&v)[4])
{
    const uint32_t at = 0x07f007f0u, sign = 0x80008000u; // as in e4m3_far

#pragma unroll
    for (int j = 0; j < 4; j++) { // codes are in both halves of half words
        uint32_t u = __byte_perm(u0, u1, (unsigned)(j * 0x11 | (j + 4) * 0x1100));

        v[j] = bf16_times((u << 4 & at) | (u & sign), by);
    }
}

// An e8m0 scale, 2^(s - 127), as bf16 in both halves of a word; 2^-127 is subnormal, 255 a NaN.
__device__ static inline uint32_t scale_pair(uint32_t s)
{
    uint32_t h = s == 255 ? 0x7fc0u : s == 0 ? 0x0040u : s << 7;

    return h | h << 16;
}

// x and y rounded to bf16; they are left with the remainders. A value that is not finite is all in
// its first plane.
__device__ static inline uint32_t plane_of(float &x, float &y)
{
    uint32_t u = bf16_pair(x, y);

    x = (u & 0x7f80u) == 0x7f80u ? 0 : x - f32_from_bits(u << 16);
    y = (u & 0x7f800000u) == 0x7f800000u ? 0 : y - f32_from_bits(u & 0xffff0000u);
    return u;
}

// The A operand as the sum of three planes.
struct planes {
    uint32_t top[4], mid[4], low[4];
    bool more; // mid or low is not zero in some lane of the warp
};

__device__ static inline struct planes planes_of(float2 (&v)[4])
{
    struct planes p;
    bool more = false;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        p.top[i] = plane_of(v[i].x, v[i].y);
        more |= v[i].x != 0 || v[i].y != 0;
        p.mid[i] = plane_of(v[i].x, v[i].y);
        p.low[i] = bf16_pair(v[i].x, v[i].y);
    }
    p.more = __any_sync(FULL_MASK, more);
    return p;
}

__device__ static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1)
{
    mma<false>(c, a, b0, b1);
}

#endif
