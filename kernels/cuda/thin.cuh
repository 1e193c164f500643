// thin - products of up to 16 rows by EXL3 weights whose codes of a whole split fit into a block's
// shared memory: one matrix, or several of the same inputs in one launch.
//
// A block has a strip (128 outputs) and a split of its inputs: STRIP_WARPS parts, each by SHARES
// warps that divide its 8 tiles of 16 outputs. Steps:
//   bulk copies of the codes, issued before dependency_settle (programmatic dependent launch);
//   where parts are long only the first piece of each comes so early and the rest is requested
//   after the loads of the inputs, which would otherwise queue behind the codes;
//   inputs of the split are rotated (Hadamard, 128) and stored as f16 in shared memory;
//   each warp decodes and multiplies, then parts add up in shared memory;
//   splits send their sums, through distributed shared memory within a cluster or through global
//   memory (`far`), to the blocks that finish rows; those rotate the sums back and store outputs.
// Sums have the order of strip.cuh, so a row has the bits that it has in narrow.cuh. Bound by the
// bytes of the codes or by their decoding.
#ifndef TANDEM_KERNELS_CUDA_THIN_CUH
#define TANDEM_KERNELS_CUDA_THIN_CUH

#include "kernels/cuda/narrow.cuh"

#define THIN_HEAD 256 // bytes of mbarriers in front: two for each part's codes, one for the sums

// A matrix of a launch. Its strips are numbered on from those of the matrix before.
struct thin_mat {
    const uint4 *codes;
    const uint16_t *suh, *svh, *bias;
    float *y;
    int rows, end; // outputs; strips of this matrix and those before
    enum codebook book;
    enum round round;
    int cut, per_group,
        per_slice; // strips that share inputs, 0: all; cuts in a group and in a slice
};

// grid (splits, strips of all matrices, 1). The host works out what a block would need divisions
// for.
struct thin_launch {
    const float *from;
    int rows, groups, cols, pieces;
    uint32_t by_parts; // 2^32 / parts, rounded up
    int strip;         // 16-byte words of a strip's codes
    bool later;        // all pieces of a part but the first are requested after the inputs
    int ld;            // values of a row of inputs in shared memory
    int sums, held;    // offsets in shared memory: sums of splits, codes
    int parts;         // and sums of warps
    int blocks_log;    // log2: a split has at most 2^blocks_log blocks of 128 inputs
    int peers_log;     // log2: 2^peers_log blocks finish rows, row i in block i % 2^peers_log
    bool aligned;      // rows of inputs are aligned to 16 bytes
    // NULL: the splits are a cluster. Else the last split of a strip finishes all rows and gets the
    // sums of the others here, [strips][rows][splits - 1][CUDA_WARP], as flag-carrying words.
    uint4 *far;
    struct thin_mat m[MATMULS_MAX];
};

struct thin_job {
    const struct thin_mat *m;
    int strip, first, n; // first: row of the call
    const float *from;
    const uint16_t *suh;
    int low, blocks;         // inputs: the split's first unit, and its blocks of 128
    int begin, at, mid, end; // pieces: first of the split, of the part, of its second copy, end
};

// ---- inputs -----------------------------------------------------------------------------------

// The first piece of a part.
__device__ static inline int thin_first(const struct thin_launch &p, int part)
{
    return (int)__umulhi((unsigned)(p.pieces * part), p.by_parts);
}

template <class C>
__device__ static inline void thin_find(const struct thin_launch &p, int rows, int part,
                                        struct thin_job *j)
{
    constexpr int HALVES = C::STEPS / 2; // halves of a unit in a piece
    int i = 0, split = (int)blockIdx.x * STRIP_WARPS, group = 0, high;

    while ((int)blockIdx.y >= p.m[i].end)
        i++;
    j->m = &p.m[i];
    j->strip = (int)blockIdx.y - (i ? p.m[i - 1].end : 0);
    j->first = (int)blockIdx.z * rows;
    j->n = p.rows - j->first < rows ? p.rows - j->first : rows;
    j->suh = j->m->suh;
    if (j->m->cut) {
        int variant = j->strip / j->m->cut;

        group = variant / j->m->per_group;
        j->suh += (size_t)(variant / j->m->per_slice) * mat_round_up((size_t)p.cols, EXL3_BLOCK);
    }
    j->from = p.from + ((size_t)j->first * (size_t)p.groups + (size_t)group) * (size_t)p.cols;
    j->begin = thin_first(p, split);
    j->at = thin_first(p, split + part);
    j->end = thin_first(p, split + part + 1);
    j->mid = p.later && j->at < j->end ? j->at + 1 : j->end;
    j->low = j->begin * HALVES / 4 * 2;
    high = (thin_first(p, split + STRIP_WARPS) * HALVES + 3) / 4 * 2;
    j->blocks = (high - j->low) / 2;
}

// A lane's four inputs of a block of 128 of a row, its part of suh, and where they go.
struct thin_four {
    float v[4];
    uint2 su;
    uint16_t *to;
};

// Warps make inputs in turn, a row of a block of 128 at a time: rows row0, row0 + step, ..., then
// the warp's next block. The next one is loaded while this one is rotated. su: the lane's part of
// suh for the warp's first block. asked: called by all threads once all warps have issued their
// first loads.
template <class F>
__device__ static inline void thin_inputs(const struct thin_launch &p, const struct thin_job &j,
                                          uint2 su, int warps, uint16_t *x, const F &asked)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int across = 1 << p.blocks_log, step = warps >> p.blocks_log, row0 = warp >> p.blocks_log;
    size_t ldx = (size_t)p.groups * (size_t)p.cols;
    struct thin_four now = {}, next = {};
    int b, row;
    bool is, more;

    if (step == 0) {
        across = warps;
        step = 1;
    }
    b = warp & (across - 1);
    row = row0;
    auto take = [&](struct thin_four &f) {
        int k = j.low * STRIP_UNIT + b * EXL3_BLOCK + 4 * lane;

        if (b >= j.blocks || row >= j.n)
            return false;
        f.su = b < across ? su : *(const uint2 *)(j.suh + k);
        f.to = x + row * p.ld + b * EXL3_BLOCK + lane / 16 * STRIP_UNIT;
        take_four(j.from + (size_t)row * ldx, k, p.cols, f.v);
        row += step;
        if (row >= j.n) {
            row = row0;
            b += across;
        }
        return true;
    };
    is = take(now);
    more = is && take(next);
    if (p.later) {
        __syncthreads();
        asked();
    }
    while (is) {
        put_rotated(now.to, now.su, now.v);
        now = next;
        is = more;
        more = more && take(next);
    }
}

// Several rows at a time: a warp rotates 128 inputs of four rows, eight lanes a row. Lane l of the
// eight has 16 values: as loaded, v[4 c + e] is input 64 (l / 4) + 4 (l % 4) + 16 c + e; at the
// end, v[8 c] .. v[8 c + 7] are stored (in the order of strip_lay) from 64 c + 16 (l % 4) + 8 (l /
// 4) on.
#define THIN_QUAD 4

struct thin_quad {
    float4 v[4];
    uint2 su[4];
};

__device__ static inline int thin_place(int k0)
{
    int l = (int)threadIdx.x % 8;

    return k0 + l / 4 * STRIP_UNIT + l % 4 * 4;
}

// The lane's part of suh; k0: the block's first input.
__device__ static inline void thin_signs(const struct thin_job &j, int k0, struct thin_quad &f)
{
#pragma unroll
    for (int c = 0; c < 4; c++)
        f.su[c] = *(const uint2 *)(j.suh + thin_place(k0) + 16 * c);
}

__device__ static inline void thin_rows_take(const struct thin_launch &p, const struct thin_job &j,
                                             int row, int k0, struct thin_quad &f)
{
    int at = min(row + (int)threadIdx.x % CUDA_WARP / 8, j.n - 1), k = thin_place(k0);
    const float *from = j.from + (size_t)at * (size_t)p.groups * (size_t)p.cols + k;

#pragma unroll
    for (int c = 0; c < 4; c++)
        f.v[c] = k + 16 * c < p.cols ? *(const float4 *)(from + 16 * c) : make_float4(0, 0, 0, 0);
}

// A butterfly between this lane and lane ^ `step`, for two values each: the lower lane computes sum
// and difference of both `a`, the upper one (bit `step` set) those of both `b`, so each sends one
// value instead of two. The sum is left in `a`, the difference in `b`, negated in the upper lane.
__device__ static inline void butterfly_across(float *a, float *b, int step)
{
    bool high = threadIdx.x & (unsigned)step;
    float mine = high ? *b : *a, other = __shfl_xor_sync(FULL_MASK, high ? *a : *b, step);

    *a = mine + other;
    *b = mine - other;
}

// The Hadamard transform with the operations of rotate and put_rotated (strides 1, 2 .. 64), so
// with the same bits. butterfly_across negates some values; a negated value only changes the sign
// of what it ends in, which the scale undoes.
__device__ static inline void thin_rows_put(const struct thin_quad &f, uint16_t *unit, bool live)
{
    int l = (int)threadIdx.x % 8;
    float v[16], scale[4];

#pragma unroll
    for (int c = 0; c < 4; c++) {
        float *u = &v[4 * c];

        u[0] = f.v[c].x * f16_of(f.su[c], 0);
        u[1] = f.v[c].y * f16_of(f.su[c], 1);
        u[2] = f.v[c].z * f16_of(f.su[c], 2);
        u[3] = f.v[c].w * f16_of(f.su[c], 3);
        butterfly(&u[0], &u[1]);
        butterfly(&u[2], &u[3]);
        butterfly(&u[0], &u[2]);
        butterfly(&u[1], &u[3]);
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2)
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            butterfly_across(&v[i], &v[i + 2], step);
            butterfly_across(&v[i + 1], &v[i + 3], step);
        }
#pragma unroll
    for (int step = 4; step <= 8; step *= 2)
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (!(i & step))
                butterfly(&v[i], &v[i + step]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        butterfly_across(&v[i], &v[i + 8], 4);
    scale[0] = (l & 3) == 3 ? -EXL3_SCALE : EXL3_SCALE;
    scale[1] = l & 2 ? -scale[0] : scale[0];
    scale[2] = l & 4 ? -scale[0] : scale[0];
    scale[3] = l & 4 ? -scale[1] : scale[1];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        uint32_t w[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float by = scale[2 * c + i % 2];

            w[i] = f16_nearest(v[8 * c + 2 * i] * by) |
                   (uint32_t)f16_nearest(v[8 * c + 2 * i + 1] * by) << 16;
        }
        if (live)
            *(uint4 *)(unit + c * STRIP_UNIT + l % 4 * 16 + l / 4 * 8) =
                make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// Carry block index `b` into `row`: where the warp's next four rows are.
__device__ static inline void thin_quad_at(int blocks, int &row, int &b)
{
    for (; b >= blocks; b -= blocks)
        row += THIN_QUAD;
}

// thin_inputs for rows that are aligned to 16 bytes. f: holds the lane's part of suh for the warp's
// first four rows, block b of rows `row` on.
template <class F>
__device__ static inline void
thin_inputs_many(const struct thin_launch &p, const struct thin_job &j, struct thin_quad f, int row,
                 int b, int warps, uint16_t *x, const F &asked)
{
    int mine = (int)threadIdx.x % CUDA_WARP / 8, low = j.low * STRIP_UNIT;

    if (row < j.n)
        thin_rows_take(p, j, row, low + b * EXL3_BLOCK, f);
    if (p.later) {
        __syncthreads();
        asked();
    }
    while (row < j.n) {
        struct thin_quad now = f;
        uint16_t *unit = x + (row + mine) * p.ld + b * EXL3_BLOCK;
        bool live = row + mine < j.n;

        b += warps;
        thin_quad_at(j.blocks, row, b);
        if (row < j.n) {
            thin_signs(j, low + b * EXL3_BLOCK, f);
            thin_rows_take(p, j, row, low + b * EXL3_BLOCK, f);
        }
        thin_rows_put(now, unit, live);
    }
}

// Where a lane reads its rows' inputs: address of unit 0.
template <int NT> struct thin_x {
    const uint16_t *x[NT];
    bool live[NT];
};

// ---- the product ------------------------------------------------------------------------------

// The part's pieces times the tiles of share SHARE. from: the lane's first codes. rest: the barrier
// of the part's second copy.
template <class C, int NT, int SHARES, int BOOK, int SHARE>
__device__ static inline void thin_part(const C &codes, const struct thin_job &j,
                                        const struct thin_x<NT> &x, const uint4 *from,
                                        uint64_t *rest, float (&acc)[C::TILES / SHARES][NT][4])
{
    constexpr int EACH = 4 / C::STEPS, TILES = C::TILES / SHARES;

#pragma unroll 1
    for (int at = j.at; at < j.end; at++, from += C::CHUNKS * CUDA_WARP) {
        uint4 b[NT][C::STEPS / 2];
        typename C::piece now;

        if (at == j.mid)
            barrier_wait(rest, 0);
        codes.take(from, now);
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int i = 0; i < C::STEPS / 2; i++)
                b[r][i] = x.live[r] ? *(const uint4 *)(x.x[r] + at / EACH * STRIP_UNIT +
                                                       (at % EACH * C::STEPS + 2 * i) * 4)
                                    : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int step = 0; step < C::STEPS; step++)
#pragma unroll
            for (int t = 0; t < TILES; t += 2) {
                uint32_t a[2][4];

                codes.template operands<BOOK>(now, step, SHARE * TILES + t, a);
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int r = 0; r < NT; r++) {
                        uint4 v = b[r][step / 2]; // two k-steps in 16 bytes

                        mma<true>(acc[t + k][r], a[k], step % 2 ? v.z : v.x, step % 2 ? v.w : v.y);
                    }
            }
    }
}

// The same for a share known at run time.
template <class C, int NT, int SHARES, int BOOK, int SHARE = 0>
__device__ static inline void thin_share(int share, const C &codes, const struct thin_job &j,
                                         const struct thin_x<NT> &x, const uint4 *from,
                                         uint64_t *rest, float (&acc)[C::TILES / SHARES][NT][4])
{
    if (share == SHARE)
        thin_part<C, NT, SHARES, BOOK, SHARE>(codes, j, x, from, rest, acc);
    else if constexpr (SHARE + 1 < SHARES)
        thin_share<C, NT, SHARES, BOOK, SHARE + 1>(share, codes, j, x, from, rest, acc);
}

// ---- sums -------------------------------------------------------------------------------------

// Store a warp's sums in `parts`, [STRIP_WARPS][rows][NARROW_SUMS].
template <int TILES, int NT>
__device__ static inline void thin_keep(const float (&acc)[TILES][NT][4], float *parts, int part,
                                        int share, int n)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int row = r * STRIP_TOKENS + lane % 4 * 2 + c % 2;

                if (row < n)
                    parts[(part * n + row) * NARROW_SUMS + (share * TILES + i) * MAT_TILE +
                          lane / 4 + c / 2 * 8] = acc[i][r][c];
            }
}

// The lane's four sums of a row in this split: parts added in order.
__device__ static inline float4 thin_sum(const float *parts, int n, int row)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    const float4 *from = (const float4 *)(parts + row * NARROW_SUMS + 4 * lane);
    float4 s = *from;

#pragma unroll
    for (int k = 1; k < STRIP_WARPS; k++) {
        float4 o = from[k * n * NARROW_SUMS / 4];

        s.x += o.x;
        s.y += o.y;
        s.z += o.z;
        s.w += o.w;
    }
    return s;
}

// Sums go through global memory as flag-carrying words: inverted bits, where 0 means that the word
// has not arrived (the NaN with all bits set becomes another NaN). The reader resets words to 0. So
// no counters or fences are needed, only relaxed accesses.
__device__ static inline uint32_t thin_word(float sum)
{
    uint32_t word = ~f32_bits(sum);

    return word ? word : 1;
}

__device__ static inline void thin_put(uint4 *to, float4 s)
{
    words_put(to, make_uint4(thin_word(s.x), thin_word(s.y), thin_word(s.z), thin_word(s.w)));
}

// Add the sums of all splits in order; the last split, which calls this, has `own`. It spins on the
// others, which wait for nobody: blocks start in the order of their numbers and theirs are lower,
// so they run or have ended.
__device__ static inline float4 thin_collect(uint4 *far, int splits, float4 own)
{
    uint4 v[STRIP_SPLITS - 1];
    float4 sum = make_float4(0, 0, 0, 0);
    bool there;

    do {
        there = true;
#pragma unroll
        for (int s = 0; s < STRIP_SPLITS - 1; s++) // all at once
            if (s < splits - 1)
                v[s] = words_read(far + s * CUDA_WARP);
#pragma unroll
        for (int s = 0; s < STRIP_SPLITS - 1; s++)
            if (s < splits - 1)
                there = there && v[s].x && v[s].y && v[s].z && v[s].w;
    } while (!there);
#pragma unroll
    for (int s = 0; s < STRIP_SPLITS - 1; s++)
        if (s < splits - 1) {
            float4 o = make_float4(f32_from_bits(~v[s].x), f32_from_bits(~v[s].y),
                                   f32_from_bits(~v[s].z), f32_from_bits(~v[s].w));

            sum.x = s ? sum.x + o.x : o.x;
            sum.y = s ? sum.y + o.y : o.y;
            sum.z = s ? sum.z + o.z : o.z;
            sum.w = s ? sum.w + o.w : o.w;
            words_put(far + s * CUDA_WARP, make_uint4(0, 0, 0, 0));
        }
    return make_float4(sum.x + own.x, sum.y + own.y, sum.z + own.z, sum.w + own.w);
}

// A warp finishes a row: rotates the sums back, adds the bias, stores 128 outputs.
__device__ static inline void thin_give(const struct thin_job &j, float4 s, uint2 by, uint2 plus,
                                        int row)
{
    int lane = (int)threadIdx.x % CUDA_WARP, n0 = j.strip * EXL3_BLOCK + 4 * lane;
    float *y = j.m->y + (size_t)(j.first + row) * (size_t)j.m->rows + n0;
    float v[4] = { s.x, s.y, s.z, s.w };

    finish_rotated(by, plus, j.m->bias != NULL, v);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (n0 + k < j.m->rows)
            y[k] = rounded(v[k], j.m->round);
}

// Add the parts of the split, hand the sums over, and finish the rows that end in this block. All
// warps.
__device__ static inline void thin_end(const struct thin_launch &p, const struct thin_job &j,
                                       const float *parts, float *sums, uint64_t *bar, uint2 by,
                                       uint2 plus)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int warps = (int)blockDim.x / CUDA_WARP, splits = (int)gridDim.x, rank = (int)blockIdx.x;
    int ends = 1 << p.peers_log;

    for (int row = warp; row < j.n; row += warps) {
        float4 s = thin_sum(parts, j.n, row);
        int at = ((int)blockIdx.y * j.n + row) * (splits - 1) * CUDA_WARP + lane; // of p.far

        if (splits == 1) {
            thin_give(j, s, by, plus, row);
        } else if (!p.far) {
            peer_send(sums + ((row >> p.peers_log) * splits + rank) * NARROW_SUMS + 4 * lane, s,
                      bar, row & (ends - 1));
        } else if (rank < splits - 1) {
            thin_put(p.far + at + rank * CUDA_WARP, s);
        } else {
            thin_give(j, thin_collect(p.far + at, splits, s), by, plus, row);
        }
    }
    if (splits == 1 || p.far || rank >= ends)
        return;
    for (int row = (warp << p.peers_log) + rank; row < j.n; row += warps << p.peers_log) {
        const float *from = sums + (row >> p.peers_log) * splits * NARROW_SUMS + 4 * lane;
        float4 s;

        barrier_wait(bar, 0);
        s = *(const float4 *)from;
        for (int i = 1; i < splits; i++) {
            float4 o = *(const float4 *)(from + i * NARROW_SUMS);

            s.x += o.x;
            s.y += o.y;
            s.z += o.z;
            s.w += o.w;
        }
        thin_give(j, s, by, plus, row);
    }
}

// One block for each (split, strip); warp w has part w / SHARES and share w % SHARES of its tiles.
// NT: groups of 8 rows. Bound by the bytes of the weights, or by their decoding.
template <class C, int NT, int SHARES, int BLOCKS>
__global__ static void __launch_bounds__(STRIP_THREADS *SHARES, BLOCKS)
    thin_rows(const __grid_constant__ struct thin_launch p)
{
    extern __shared__ __align__(128) unsigned char thin_memory[];
    constexpr int WARPS = STRIP_WARPS * SHARES, ROWS = NT * STRIP_TOKENS;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int part = warp / SHARES, share = warp % SHARES, rank = (int)blockIdx.x;
    bool cluster = gridDim.x > 1 && !p.far;
    uint64_t *bar = (uint64_t *)thin_memory + part, *rest = bar + STRIP_WARPS;
    uint64_t *sums_bar = (uint64_t *)thin_memory + 2 * STRIP_WARPS;
    uint16_t *inputs = (uint16_t *)(thin_memory + THIN_HEAD);
    float *sums = (float *)(thin_memory + p.sums);
    float *parts = (float *)(thin_memory + p.parts);
    float acc[C::TILES / SHARES][NT][4] = {};
    struct thin_x<NT> x;
    struct thin_job j;

    thin_find<C>(p, ROWS, part, &j);
    C codes(j.m->codes + (size_t)j.strip * (size_t)p.strip, j.m->book, lane);
    uint4 *mine = (uint4 *)(thin_memory + p.held) + (j.at - j.begin) * C::CHUNKS * CUDA_WARP + lane;

    bool brings = share == 0 && lane == 0, meets = cluster && t == 0;
    int ends = 1 << p.peers_log; // blocks in which rows end

    auto bring = [&](int first, int end, uint64_t *to) {
        if (brings && first < end)
            bulk_bring_once(mine + (first - j.at) * C::CHUNKS * CUDA_WARP,
                            codes.at + (size_t)first * C::CHUNKS * CUDA_WARP,
                            (end - first) * C::BYTES, to);
    };
    if (brings) {
        barrier_init(bar, 1);
        barrier_init(rest, 1);
        if (meets)
            barrier_init(sums_bar, 1);
        barrier_publish();
    }
    __syncwarp();
    if (brings && j.at < j.end)
        barrier_expect(bar, (j.mid - j.at) * C::BYTES);
    bring(j.at, j.mid, bar);
    if (brings && j.mid < j.end)
        barrier_expect(rest, (j.end - j.mid) * C::BYTES);
    if (meets) // sums of all blocks for each row that is finished here
        barrier_expect(sums_bar, (rank < ends ? (j.n - rank + ends - 1) >> p.peers_log : 0) *
                                     (int)gridDim.x * EXL3_BLOCK * (int)sizeof(float));
    if (cluster)
        gang_begin();
    int n0 = j.strip * EXL3_BLOCK + 4 * lane, b0 = warp & ((1 << p.blocks_log) - 1);
    uint2 by = *(const uint2 *)(j.m->svh + n0), plus = make_uint2(0, 0), su = plus;
    auto asked = [&]() { bring(j.mid, j.end, rest); };

    if (j.m->bias)
        plus = *(const uint2 *)(j.m->bias + n0);
    if (j.n > 1 && j.blocks > 0 && p.aligned) {
        struct thin_quad f = {};
        int row = 0, b = warp;

        thin_quad_at(j.blocks, row, b);
        thin_signs(j, j.low * STRIP_UNIT + b * EXL3_BLOCK, f);
        dependency_settle();
        thin_inputs_many(p, j, f, row, b, WARPS, inputs, asked);
    } else {
        if (b0 < j.blocks)
            su = *(const uint2 *)(j.suh + j.low * STRIP_UNIT + b0 * EXL3_BLOCK + 4 * lane);
        dependency_settle();
        thin_inputs(p, j, su, WARPS, inputs, asked);
    }
    __syncthreads();
    if (cluster)
        gang_wait(); // all blocks of the cluster have set up their barrier for sums
#pragma unroll
    for (int r = 0; r < NT; r++) {
        int i = r * STRIP_TOKENS + lane / 4;

        x.live[r] = i < j.n;
        x.x[r] = inputs + (x.live[r] ? i : 0) * p.ld + lane % 4 * 16 - j.low * STRIP_UNIT;
    }
    if (j.at < j.end)
        barrier_wait(bar, 0);
    if (C::BOOKS > 1 && codes.book)
        thin_share<C, NT, SHARES, C::BOOKS - 1>(share, codes, j, x, mine, rest, acc);
    else
        thin_share<C, NT, SHARES, 0>(share, codes, j, x, mine, rest, acc);
    if (NT == 1) // with more rows, adding up is slower beside the next kernel's blocks
        dependency_next();
    if (p.parts == p.held)
        __syncthreads(); // the sums go where the codes were
    thin_keep(acc, parts, part, share, j.n);
    __syncthreads();
    thin_end(p, j, parts, sums, sums_bar, by, plus);
}

// ---- launching ----------------------------------------------------------------------------------

// thin_splits - how many blocks share the inputs of each of `strips` strips of matrices like w. 0
// if not all blocks would be resident at once, or a block cannot hold its codes or has so many that
// narrow.cuh is faster.
int thin_splits(const struct queue *q, const struct mat *w, int strips);

// thin_fits - whether p, with splits set by thin_splits, has few enough rows.
bool thin_fits(const struct queue *q, const struct strip_launch *p);

// thin_products - queue n products that fit, all of one kind of weights and of the same number of
// inputs, splits and groups.
void thin_products(struct queue *q, const struct strip_launch *p, int n);

cudaError_t thin_limits(cudaError_t e, int shared_max);

#endif
