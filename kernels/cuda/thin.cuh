// thin - products of a few rows by EXL3 weights of which a block can hold a split's codes: one matrix, or
// several of the same inputs in one launch. Bulk copies bring the codes, all of them at once and before
// the kernel in front has ended; SHARES warps have the tiles of a part between them. Sums are made as
// strip.cuh says, so a row has the bits that it has in narrow.cuh.
#ifndef TANDEM_KERNELS_CUDA_THIN_CUH
#define TANDEM_KERNELS_CUDA_THIN_CUH

#include "kernels/cuda/narrow.cuh"

#define THIN_HEAD 128 // bytes in front: a barrier of each part's codes and one of the sums

// A matrix of a launch. Its strips follow those of the one before.
struct thin_mat {
    const uint4 *codes;
    const uint16_t *suh, *svh, *bias;
    float *y;
    int rows, end; // outputs; strips of this one and those before
    enum codebook book;
    enum round round;
    int cut, per_group,
        per_slice; // strips that share inputs, 0: all; cuts of a group and of a slice
};

// grid (splits, strips of all, lots of rows). What a block would have to divide for is worked out before.
struct thin_launch {
    const float *from;
    int rows, groups, cols, pieces;
    uint32_t by_parts; // 2^32 / parts, rounded up
    int strip;         // 16-byte pieces of a strip's codes
    int ld;            // values of a row of inputs in shared memory
    int sums, held;    // where sums and codes lie there
    int blocks_log;    // of inputs a split has at most so many blocks of 128
    int peers_log;     // so many of the splits finish rows, row i the one that i ends in
    // NULL: splits are a cluster; else sums go to z, [strips][splits][rows][EXL3_BLOCK], and the
    // last block of a strip, by its ticket, finishes the rows.
    float *z;
    uint32_t *tickets;
    struct thin_mat m[MATMULS_MAX];
};

struct thin_job {
    const struct thin_mat *m;
    int strip, first, n; // first: row of the call
    const float *from;
    const uint16_t *suh;
    int low, blocks;    // of the inputs: the split's first unit, blocks of 128
    int begin, at, end; // pieces: where the split begins, the warp's part
};

// ---- copies and sums that arrive by themselves ------------------------------------------------------

// One thread, once: the barrier opens when `bytes` have come.
__device__ static inline void arrival_expect(uint64_t *bar, int bytes)
{
    barrier_init(bar, 1);
    barrier_publish();
    barrier_expect(bar, bytes);
}

// ---- the block's work -------------------------------------------------------------------------

// The first piece of a part.
__device__ static inline int thin_first(const struct thin_launch &p, int part)
{
    return (int)__umulhi((unsigned)(p.pieces * part), p.by_parts);
}

template <class C>
__device__ static inline void thin_find(const struct thin_launch &p, int rows, int part,
                                        struct thin_job *j)
{
    constexpr int HALVES = C::STEPS / 2; // of a unit that a piece is
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
    j->low = j->begin * HALVES / 4 * 2;
    high = (thin_first(p, split + STRIP_WARPS) * HALVES + 3) / 4 * 2;
    j->blocks = (high - j->low) / 2;
}

// Warps make inputs in turn: of a block of 128 rows `row`, `row` + `step` ... su: the lane's of the first block.
__device__ static inline void thin_inputs(const struct thin_launch &p, const struct thin_job &j,
                                          uint2 su, int warps, uint16_t *x)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int across = 1 << p.blocks_log, step = warps >> p.blocks_log, row0 = warp >> p.blocks_log;
    size_t ldx = (size_t)p.groups * (size_t)p.cols;

    if (step == 0) {
        across = warps;
        step = 1;
    }
    for (int b = warp & (across - 1); b < j.blocks; b += across) {
        int k = j.low * STRIP_UNIT + b * EXL3_BLOCK + 4 * lane;

        if (b >= across)
            su = *(const uint2 *)(j.suh + k);
        for (int row = row0; row < j.n; row += step) {
            float v[4];

            take_four(j.from + (size_t)row * ldx, k, p.cols, v);
            put_rotated(x + row * p.ld + b * EXL3_BLOCK + lane / 16 * STRIP_UNIT, su, v);
        }
    }
}

// Where a lane finds its rows' inputs, of unit 0.
template <int NT> struct thin_x {
    const uint16_t *x[NT];
    bool live[NT];
};

// The part's pieces by the tiles of share SHARE, whose codes lie at `from`, the lane's first ones.
template <class C, int NT, int SHARES, int BOOK, int SHARE>
__device__ static inline void thin_part(const C &codes, const struct thin_job &j,
                                        const struct thin_x<NT> &x, const uint4 *from,
                                        float (&acc)[C::TILES / SHARES][NT][4])
{
    constexpr int EACH = 4 / C::STEPS, TILES = C::TILES / SHARES;

#pragma unroll 1
    for (int at = j.at; at < j.end; at++, from += C::CHUNKS * CUDA_WARP) {
        uint4 b[NT][C::STEPS / 2];
        typename C::piece now;

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

// The same by the number of the share.
template <class C, int NT, int SHARES, int BOOK, int SHARE = 0>
__device__ static inline void thin_share(int share, const C &codes, const struct thin_job &j,
                                         const struct thin_x<NT> &x, const uint4 *from,
                                         float (&acc)[C::TILES / SHARES][NT][4])
{
    if (share == SHARE)
        thin_part<C, NT, SHARES, BOOK, SHARE>(codes, j, x, from, acc);
    else if constexpr (SHARE + 1 < SHARES)
        thin_share<C, NT, SHARES, BOOK, SHARE + 1>(share, codes, j, x, from, acc);
}

// A warp's sums to `parts`, [STRIP_WARPS][rows][NARROW_SUMS].
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

// Where a split's sums of a row lie in memory.
__device__ static inline float *thin_far(const struct thin_launch &p, int n, int split, int row)
{
    int strip = (int)blockIdx.y, splits = (int)gridDim.x;

    return p.z + (size_t)((strip * splits + split) * n + row) * EXL3_BLOCK;
}

// Parts add up in order, and what they come to goes where the row is finished.
__device__ static inline void thin_send(const struct thin_launch &p, const float *parts,
                                        float *sums, uint64_t *bar, int n)
{
    int peers = (int)gridDim.x, rank = (int)blockIdx.x;

    for (int i = (int)threadIdx.x; i < n * CUDA_WARP; i += (int)blockDim.x) {
        int row = i / CUDA_WARP, at = i % CUDA_WARP * 4;
        const float4 *from = (const float4 *)(parts + row * NARROW_SUMS + at);
        float *to = sums + ((row >> p.peers_log) * peers + rank) * NARROW_SUMS + at;
        float4 s = *from;

#pragma unroll
        for (int k = 1; k < STRIP_WARPS; k++) {
            float4 o = from[k * n * NARROW_SUMS / 4];

            s.x += o.x;
            s.y += o.y;
            s.z += o.z;
            s.w += o.w;
        }
        if (p.z)
            *(float4 *)(thin_far(p, n, rank, row) + at) = s;
        else if (peers > 1)
            peer_send(to, s, bar, row & ((1 << p.peers_log) - 1));
        else
            *(float4 *)to = s;
    }
}

// A row's outputs by a warp, from the sums of all splits in order: the first lies at `from`, each
// `step` values further; FAR: in memory that other blocks wrote.
template <bool FAR>
__device__ static inline void thin_give(const struct thin_launch &p, const struct thin_job &j,
                                        const float *from, int step, uint2 by, uint2 plus, int row)
{
    int lane = (int)threadIdx.x % CUDA_WARP, n0 = j.strip * EXL3_BLOCK + 4 * lane;
    float *y = j.m->y + (size_t)(j.first + row) * (size_t)j.m->rows + n0;
    float v[4];

    for (int s = 0; s < (int)gridDim.x; s++) {
        const float4 *at = (const float4 *)(from + s * step + 4 * lane);
        float4 f = FAR ? __ldcg(at) : *at;

        v[0] = s ? v[0] + f.x : f.x;
        v[1] = s ? v[1] + f.y : f.y;
        v[2] = s ? v[2] + f.z : f.z;
        v[3] = s ? v[3] + f.w : f.w;
    }
    finish_rotated(by, plus, j.m->bias != NULL, v);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (n0 + k < j.m->rows)
            y[k] = rounded(v[k], j.m->round);
}

// Bound by the bytes of the weights, or by their decoding.
template <class C, int NT, int SHARES, int BLOCKS>
__global__ static void __launch_bounds__(STRIP_THREADS *SHARES, BLOCKS)
    thin_rows(const __grid_constant__ struct thin_launch p)
{
    extern __shared__ __align__(128) unsigned char thin_memory[];
    constexpr int WARPS = STRIP_WARPS * SHARES, ROWS = NT * STRIP_TOKENS;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int part = warp / SHARES, share = warp % SHARES, peers = (int)gridDim.x;
    int rank = (int)blockIdx.x, ends = 1 << p.peers_log; // blocks in which rows end
    uint64_t *bar = (uint64_t *)thin_memory, *sums_bar = bar + STRIP_WARPS;
    uint16_t *inputs = (uint16_t *)(thin_memory + THIN_HEAD);
    float *sums = (float *)(thin_memory + p.sums);
    float *parts = (float *)(thin_memory + p.held); // when the codes have been read
    float acc[C::TILES / SHARES][NT][4] = {};
    struct thin_x<NT> x;
    struct thin_job j;

    thin_find<C>(p, ROWS, part, &j);
    C codes(j.m->codes + (size_t)j.strip * (size_t)p.strip, j.m->book, lane);
    uint4 *mine = (uint4 *)parts + (j.at - j.begin) * C::CHUNKS * CUDA_WARP + lane;

    if (share == 0 && lane == 0 && j.at < j.end) {
        int bytes = (j.end - j.at) * C::BYTES;

        arrival_expect(bar + part, bytes);
        bulk_bring_once(mine, codes.at + (size_t)j.at * C::CHUNKS * CUDA_WARP, bytes, bar + part);
    }
    if (peers > 1 && !p.z) {
        if (t == CUDA_WARP - 1) // of each row that ends here, sums of all blocks
            arrival_expect(sums_bar, (rank < ends ? (j.n - rank + ends - 1) >> p.peers_log : 0) *
                                         peers * EXL3_BLOCK * (int)sizeof(float));
        cluster_arrive();
    }
    int n0 = j.strip * EXL3_BLOCK + 4 * lane, b0 = warp & ((1 << p.blocks_log) - 1);
    uint2 by = *(const uint2 *)(j.m->svh + n0), plus = make_uint2(0, 0), su = plus;

    if (j.m->bias)
        plus = *(const uint2 *)(j.m->bias + n0);
    if (b0 < j.blocks)
        su = *(const uint2 *)(j.suh + j.low * STRIP_UNIT + b0 * EXL3_BLOCK + 4 * lane);
    dependency_settle();
    thin_inputs(p, j, su, WARPS, inputs);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < NT; r++) {
        int i = r * STRIP_TOKENS + lane / 4;

        x.live[r] = i < j.n;
        x.x[r] = inputs + (x.live[r] ? i : 0) * p.ld + lane % 4 * 16 - j.low * STRIP_UNIT;
    }
    if (j.at < j.end)
        barrier_wait(bar + part, 0);
    if (C::BOOKS > 1 && codes.book)
        thin_share<C, NT, SHARES, C::BOOKS - 1>(share, codes, j, x, mine, acc);
    else
        thin_share<C, NT, SHARES, 0>(share, codes, j, x, mine, acc);
    dependency_next();
    __syncthreads(); // codes have been read
    thin_keep(acc, parts, part, share, j.n);
    __syncthreads();
    if (peers > 1 && !p.z)
        cluster_wait(); // all of the cluster expect sums
    thin_send(p, parts, sums, sums_bar, j.n);
    if (p.z) {
        if (last_block(&p.tickets[blockIdx.y], gridDim.x))
            for (int row = warp; row < j.n; row += WARPS)
                thin_give<true>(p, j, thin_far(p, j.n, 0, row), j.n * EXL3_BLOCK, by, plus, row);
        return;
    }
    if (peers == 1)
        __syncthreads();
    if (rank >= ends)
        return;
    for (int row = (warp << p.peers_log) + rank; row < j.n; row += WARPS << p.peers_log) {
        if (peers > 1)
            barrier_wait(sums_bar, 0);
        thin_give<false>(p, j, sums + (row >> p.peers_log) * peers * NARROW_SUMS, NARROW_SUMS, by,
                         plus, row);
    }
}

// ---- launching ----------------------------------------------------------------------------------

// thin_splits - how many blocks share the inputs of each of `strips` strips of matrices like w; 0 where the device
// does not run all of them at once, or a block cannot hold its codes, or has many: narrow.cuh is faster there.
int thin_splits(const struct queue *q, const struct mat *w, int strips);

// thin_fits - whether p, whose splits are those, has few enough rows.
bool thin_fits(const struct queue *q, const struct strip_launch *p);

// thin_products - queue n products that fit, of weights of one kind, of as many inputs, splits and groups.
void thin_products(struct queue *q, const struct strip_launch *p, int n);

cudaError_t thin_limits(cudaError_t e, int shared_max);

#endif
