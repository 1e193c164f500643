// codec - the quantisers of cached rows: QW is e4m3 with an e8m0 scale for 32 values, QC e2m1 with
// an e4m3 scale for 16, QI e2m1 with an e8m0 scale for 32. A row is its codes, then its scales. A
// lane has one value when storing, a thread four when reading. Bits are those of
// kernels/ref/codec.c.
#ifndef TANDEM_KERNELS_CUDA_CODEC_CUH
#define TANDEM_KERNELS_CUDA_CODEC_CUH

#include "kernels/cuda/device.cuh"

__host__ __device__ static inline int codec_block(enum codec c)
{
    return c == CODEC_F32 ? 1 : c == CODEC_QC ? 16 : 32;
}

// The offset of the scales in a row of cols values.
__device__ static inline int codec_scales(enum codec c, int cols)
{
    return c == CODEC_QW ? cols : cols / 2;
}

struct coded {
    uint8_t code, scale;
};

__device__ static inline float at_least(float x, float floor)
{
    return x < floor ? floor : x; // keeps a NaN
}

// The code of this lane's value and the scale of its block. A warp; lanes without a value pass 0.
__device__ static inline struct coded codec_encode(enum codec c, float v)
{
    uint32_t most = f32_bits(v) & 0x7fffffffu; // compared as bits: an infinity or a NaN wins
    struct coded o;
    float amax;

    for (int step = codec_block(c) / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(FULL_MASK, most, step);

        most = other > most ? other : most;
    }
    amax = f32_from_bits(most);
    if (c == CODEC_QW) {
        o.scale = pow2ceil_e8m0(at_least(amax, 1e-4f) * (1.0f / 448));
        o.code = e4m3_from_f32(v / f32_from_e8m0(o.scale));
    } else if (c == CODEC_QC) {
        uint8_t s = e4m3_from_f32(at_least(amax, 6 * 0x1p-9f) / 6);

        o.scale = most < 0x7f800000u ? s : 0x7f;
        o.code = e2m1_from_f32(v / f32_from_e4m3(s));
    } else {
        o.scale = pow2ceil_e8m0(at_least(amax, 6 * 0x1p-126f) * (1.0f / 6));
        o.code = e2m1_from_f32(v / f32_from_e8m0(o.scale));
    }
    return o;
}

// Store this lane's value c of a row of cols values. A warp; a lane with c >= cols stores nothing.
__device__ static inline void codec_put(enum codec codec, unsigned char *row, int cols, int c,
                                        float v)
{
    struct coded o = codec_encode(codec, v);
    unsigned next = __shfl_down_sync(FULL_MASK, (unsigned)o.code, 1);

    if (c >= cols)
        return;
    if (codec == CODEC_QW)
        row[c] = o.code;
    else if (c % 2 == 0)
        row[c / 2] = (unsigned char)(o.code | next << 4);
    if (c % codec_block(codec) == 0)
        row[codec_scales(codec, cols) + c / codec_block(codec)] = o.scale;
}

__device__ static inline float codec_step(enum codec c, uint8_t scale)
{
    return c == CODEC_QC ? f32_from_e4m3(scale) : f32_from_e8m0(scale);
}

__device__ static inline float codec_decode(enum codec c, uint8_t code, float step)
{
    return (c == CODEC_QW ? f32_from_e4m3(code) : f32_from_e2m1(code)) * step;
}

// n bytes, 1 to 4, as a word: rows of a state need not be aligned.
__device__ static inline uint32_t load_bytes(const unsigned char *p, int n)
{
    uint32_t v = 0;

    if (n == 4 && ((uintptr_t)p & 3) == 0)
        return *(const uint32_t *)p;
    if (n == 2 && ((uintptr_t)p & 1) == 0)
        return *(const uint16_t *)p;
    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << (8 * i);
    return v;
}

// Values i .. i + 3 of a stored row of cols values; i is a multiple of 4.
__device__ static inline void codec_read4(enum codec c, const unsigned char *row, int cols, int i,
                                          float v[4])
{
    if (c == CODEC_F32) {
        for (int j = 0; j < 4; j++)
            v[j] = ((const float *)row)[i + j];
        return;
    }
    float step = codec_step(c, row[codec_scales(c, cols) + i / codec_block(c)]);
    uint32_t u = c == CODEC_QW ? load_bytes(row + i, 4) : load_bytes(row + i / 2, 2);
    int bits = c == CODEC_QW ? 8 : 4;

    for (int j = 0; j < 4; j++)
        v[j] = codec_decode(c, (uint8_t)(u >> (j * bits) & ((1u << bits) - 1)), step);
}

#endif
