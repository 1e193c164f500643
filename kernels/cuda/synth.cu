// synth.cu owns the codes of made-up EXL3 weights, computed on the device in the layout of a pack
// (kernels/mat.h), bit for bit those that the host would have packed. Bound by instructions.
#include "kernels/cuda/device.cuh"
#include "src/base/synth.h"

#define THREADS 256

// Bits pos .. pos + 31 of a lane's bits in a group of k-steps, the first bit highest; `tile`: the
// group's first tile in the tensor. In each tile the lane has `own` bits, from bit own * lane on.
__device__ static uint32_t lane_word(const struct synth_args &a, int64_t tile, int lane, int pos)
{
    int own = 4 * a.w.q.bits2, words = 4 * a.w.q.bits2, have = 0;
    uint32_t out = 0;

    while (have < 32) {
        int i = pos / own, at = pos % own, ring = own * lane + at, n = own - at;
        int64_t from = tile + i / 8 * a.tile_cols + i % 8;
        uint32_t word =
            synth_word(a.hash, (uint64_t)from * (uint64_t)words + (uint64_t)(ring / 32));

        n = n < 32 - ring % 32 ? n : 32 - ring % 32;
        n = n < 32 - have ? n : 32 - have;
        word = word << (ring % 32) >> (32 - n);
        out = n == 32 ? word : out << n | word;
        have += n;
        pos += n;
    }
    return out;
}

// A thread 16 bytes: a chunk of a lane's bits in a group of k-steps. Bound by instructions.
__global__ static void synth_chunks(struct synth_args a, size_t in_strip, size_t n)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    int group = exl3_group(a.w.q.bits2), chunks = group * a.w.q.bits2 / 4, lane = (int)(at % 32);
    int strip = (int)(at / in_strip), c = (int)(at % in_strip / 32);
    int64_t tile = (a.tile_row + c / chunks * group) * a.tile_cols + a.tile_col + 8 * strip;
    int pos = c % chunks * 128;
    uint4 v;

    if (at >= n)
        return;
    v.x = lane_word(a, tile, lane, pos);
    v.y = lane_word(a, tile, lane, pos + 32);
    v.z = lane_word(a, tile, lane, pos + 64);
    v.w = lane_word(a, tile, lane, pos + 96);
    ((uint4 *)(uintptr_t)a.w.data)[(size_t)a.strip0 * in_strip + at] = v;
}

extern "C" void cuda_synth(struct queue *q, const struct synth_args *a)
{
    size_t in_strip = mat_strip_bytes(a->w.dtype, &a->w.q, a->w.cols) / sizeof(uint4);
    size_t n = (size_t)(a->strips > 0 ? a->strips : 0) * in_strip;

    if (q->err)
        return;
    if (a->w.dtype != DTYPE_EXL3 || a->w.q.layout != LAYOUT_DEVICE) {
        queue_fail(q, -EINVAL, "synth: weights of type %d, layout %d", (int)a->w.dtype,
                   a->w.q.layout);
        return;
    }
    if (n == 0)
        return;
    launch_behind(cuda_stream(q), synth_chunks, blocks_for(n, THREADS), THREADS, 0, *a, in_strip,
                  n);
    queue_note(q, "synth");
}
