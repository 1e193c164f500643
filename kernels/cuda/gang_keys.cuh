// gang_keys - the keys of a block of attention: located in the states, copied to shared memory as
// they are stored, and decoded there to bf16, DIM + PAD values a key.
#ifndef TANDEM_KERNELS_CUDA_GANG_KEYS_CUH
#define TANDEM_KERNELS_CUDA_GANG_KEYS_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/matrix.cuh"

#define GANG 8   // parts that the keys of a row are split into, mostly a block each
#define TALL 16  // heads: rows of an instruction
#define WARPS 16 // of a block
#define THREADS (WARPS * CUDA_WARP)
#define PAD 8        // unused values after a row in shared memory: neighbours lie in other banks
#define GANG_AHEAD 5 // keys that a warp locates together

struct gang_row {
    int slot, first, win, n; // row of the window's first key, keys of the window, all keys
    const int32_t *sel;
};

// The row of its state that key j of the list is, -1 past the last. Only the window is a ring.
__device__ static inline int row_of(const struct attend_args &a, const struct gang_row &w, int j)
{
    int r = w.first + j;

    if (j >= w.n)
        return -1;
    return j >= w.win ? w.sel[j - w.win] : r < a.win.cap ? r : r - a.win.cap;
}

// Until its warp decodes it, a stored key lies in the second half of the memory of its values. A
// thread has pieces of 16 values, PIECES threads a key.
template <int DIM> struct gang_piece {
    static constexpr int PIECES = DIM / 16;
    int key, piece;
    uint16_t *place;
    unsigned char *stored;

    __device__ gang_piece(uint16_t *keys, int i)
        : key(((int)threadIdx.x + i * THREADS) / PIECES), piece((int)threadIdx.x % PIECES),
          place(keys + key * (DIM + PAD)), stored((unsigned char *)place + DIM)
    {
    }
};

// Request the keys of the list from `from` on.
template <int DIM>
__device__ static inline void keys_fetch(const struct attend_args &a, const struct gang_row &w,
                                         int from, int mine, int i0, uint16_t *keys)
{
    const unsigned char *near = a.win.base + (size_t)w.slot * a.win.slot_stride;
    const unsigned char *far = a.more.base + (size_t)w.slot * a.more.slot_stride;
    int row[GANG_AHEAD];

#pragma unroll
    for (int i = 0; i < GANG_AHEAD; i++) {
        const struct gang_piece<DIM> p(keys, i0 + i);

        row[i] = p.key < mine ? row_of(a, w, from + p.key) : -1;
    }
#pragma unroll
    for (int i = 0; i < GANG_AHEAD; i++) {
        const struct gang_piece<DIM> p(keys, i0 + i);
        int c = p.piece;

        if (row[i] < 0)
            continue;
        if (from + p.key < w.win) {
            const unsigned char *at = near + (size_t)(uint32_t)row[i] * a.win.row_bytes;

#pragma unroll
            for (int k = 0; k < 16; k += 4)
                copy_ahead<4>(p.stored + 16 * c + k, at + 16 * c + k);
            if (c < DIM / 32 / 4)
                copy_ahead<4>(p.stored + DIM + 4 * c, at + DIM + 4 * c);
        } else {
            const unsigned char *at = far + (size_t)(uint32_t)row[i] * a.more.row_bytes;

            copy_ahead<8>(p.stored + 8 * c, at + 8 * c);
            if (c < DIM / 16 / 4)
                copy_ahead<4>(p.stored + DIM / 2 + 4 * c, at + DIM / 2 + 4 * c);
        }
    }
}

// The same for rows that are multiples of 16 bytes: a bulk copy a key, counted by barrier `come`.
template <int DIM>
__device__ static inline void keys_bring(const struct attend_args &a, const struct gang_row &w,
                                         int from, int mine, uint16_t *keys, uint64_t *come)
{
    constexpr int NEAR = DIM + DIM / 32, FAR = DIM / 2 + DIM / 16;
    int j = (int)threadIdx.x % CUDA_WARP * WARPS + (int)threadIdx.x / CUDA_WARP;
    int near = min(max(w.win - from, 0), mine);
    unsigned char *to = (unsigned char *)(keys + j * (DIM + PAD)) + DIM;
    size_t row, slot = (size_t)w.slot;

    if (threadIdx.x == 0)
        barrier_expect(come, near * NEAR + (mine - near) * FAR);
    if (j >= mine)
        return;
    row = (size_t)(uint32_t)row_of(a, w, from + j);
    if (j < near)
        bulk_bring(to, a.win.base + slot * a.win.slot_stride + row * a.win.row_bytes, NEAR, come);
    else
        bulk_bring(to, a.more.base + slot * a.more.slot_stride + row * a.more.row_bytes, FAR, come);
}

// A thread's piece of a stored key.
struct gang_stored {
    uint4 code;
    uint32_t scale;
};

template <int DIM>
__device__ static inline struct gang_stored stored_load(const struct gang_piece<DIM> &p, int win,
                                                        int mine)
{
    struct gang_stored s = {};

    if (p.key < mine && p.key < win) {
        s.code = ((const uint4 *)p.stored)[p.piece];
        s.scale = p.stored[DIM + p.piece / 2];
    } else if (p.key < mine) {
        uint2 u = ((const uint2 *)p.stored)[p.piece];

        s.code = make_uint4(u.x, u.y, 0, 0);
        s.scale = p.stored[DIM / 2 + p.piece];
    }
    return s;
}

// Decode to bf16; zeros past the last key. The first `win` keys are rows of the window. A warp has
// whole keys and reads the codes of the next one before it writes the values of this one.
template <int DIM>
__device__ static inline void keys_decode(int win, int mine, int keys, uint16_t *at)
{
    struct gang_stored now = stored_load<DIM>({ at, 0 }, win, mine), next;

#pragma unroll 1
    for (int i = 0; i * THREADS < keys * (DIM / 16); i++) {
        const struct gang_piece<DIM> p(at, i);
        uint32_t out[2][4] = {}, by, c = (uint32_t)p.piece;

        if (p.key >= keys) // the same for the whole warp
            break;
        next = stored_load<DIM>({ at, i + 1 }, win, mine);
        if (p.key < mine && p.key < win) {
            by = scale_pair(now.scale);
            e4m3_eight(now.code.x, now.code.y, by, out[0]);
            e4m3_eight(now.code.z, now.code.w, by, out[1]);
        } else if (p.key < mine) {
            by = now.scale;
            by = (by & 0x7f) == 0x7f ? 0x7fc07fc0u : e4m3_far(by | by << 16);
            e2m1_eight(now.code.x, by, out[0]);
            e2m1_eight(now.code.y, by, out[1]);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 2;
             k++) { // four lanes of eight begin with the other half: no bank conflict
            bool other = (c >> 2 & 1) != (uint32_t)k;
            uint4 v = make_uint4(other ? out[1][0] : out[0][0], other ? out[1][1] : out[0][1],
                                 other ? out[1][2] : out[0][2], other ? out[1][3] : out[0][3]);

            ((uint4 *)p.place)[2 * c + (other ? 1 : 0)] = v;
        }
        now = next;
    }
}

// The same where a lane has 16 values of each key of its warp; four lanes of eight store their
// other half first. Unless a scale is above 2^7 (window) or 2, its product with the codes' own
// power of two is finite, and codes are multiplied once. Bound by the unit of masks and shifts.
template <int DIM>
__device__ static inline void keys_decode_whole(int win, int mine, int keys, uint16_t *at)
{
    constexpr int STEP = WARPS * (DIM + PAD) * (int)sizeof(uint16_t);
    uint32_t lane = threadIdx.x % CUDA_WARP, other = lane / 4 % 2;
    int key = (int)(threadIdx.x / CUDA_WARP), near = min(win, mine);
    unsigned char *place = (unsigned char *)(at + key * (DIM + PAD));
    uint32_t first = 32 * lane + 16 * other, last = 32 * lane + 16 - 16 * other;
    uint32_t scale = 2 * DIM + lane / 2;
    uint2 a = make_uint2(0, 0), b = a;
    uint32_t s = 0, v[4], w[4];

    if (key < near) {
        a = *(const uint2 *)(place + DIM + first / 2);
        b = *(const uint2 *)(place + DIM + last / 2);
        s = place[scale];
    }
#pragma unroll 1
    for (; key < near; key += WARPS, place += STEP) {
        if (__any_sync(FULL_MASK, s > 127 + 7)) {
            uint32_t by = scale_pair(s);

            e4m3_eight(a.x, a.y, by, v);
            e4m3_eight(b.x, b.y, by, w);
        } else {
            uint32_t by = bf16_times(scale_pair(s), 0x7b807b80u);

            e4m3_eight_once(a.x, a.y, by, v);
            e4m3_eight_once(b.x, b.y, by, w);
        }
        if (key + WARPS < near) {
            a = *(const uint2 *)(place + STEP + DIM + first / 2);
            b = *(const uint2 *)(place + STEP + DIM + last / 2);
            s = place[STEP + scale];
        }
        __syncwarp();
        *(uint4 *)(place + first) = make_uint4(v[0], v[1], v[2], v[3]);
        *(uint4 *)(place + last) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    scale = DIM + DIM / 2 + lane;
    if (key < mine) {
        a.x = *(const uint32_t *)(place + DIM + first / 4);
        b.x = *(const uint32_t *)(place + DIM + last / 4);
        s = place[scale];
    }
#pragma unroll 1
    for (; key < mine; key += WARPS, place += STEP) {
        uint32_t by = e4m3_far(s * 0x10001);

        if (__any_sync(FULL_MASK, (s & 0x7f) > 0x40)) {
            by = (s & 0x7f) == 0x7f ? 0x7fc07fc0u : by;
            e2m1_eight(a.x, by, v);
            e2m1_eight(b.x, by, w);
        } else {
            by = bf16_times(by, 0x7e807e80u);
            e2m1_eight_once(a.x, by, v);
            e2m1_eight_once(b.x, by, w);
        }
        if (key + WARPS < mine) {
            a.x = *(const uint32_t *)(place + STEP + DIM + first / 4);
            b.x = *(const uint32_t *)(place + STEP + DIM + last / 4);
            s = place[STEP + scale];
        }
        __syncwarp();
        *(uint4 *)(place + first) = make_uint4(v[0], v[1], v[2], v[3]);
        *(uint4 *)(place + last) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (key < keys) { // at most once
        *(uint4 *)(place + first) = make_uint4(0, 0, 0, 0);
        *(uint4 *)(place + last) = make_uint4(0, 0, 0, 0);
    }
}

#endif
