// sheet.cu owns the dense product of coded and bf16 weights for many rows, in three launches:
//   sheet_take   rows become tiles (group.cuh) of rotated f16 or bf16 planes,
//                [planes][units of 64 inputs][groups of 8 rows]
//   sheet_codes  weights are decoded once to a sheet of operands in scratch, tiles [blocks of 128
//                outputs][units]; as many blocks at a time as scratch has room for
//   sheet_rows   a GEMM of both: a block has 128 outputs, 64 or 128 rows and all inputs. Bulk
//                copies bring units into a ring of up to 8 stages with full and empty mbarriers;
//                all eight warps multiply, and take turns in requesting the next unit
// There is no split-K: a block adds the parts and splits of strip.cuh one after another, so a row
// has the bits of a small window. Bound by L2 bandwidth, then by the matrix unit.
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sheet.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define BLOCK_TILES 8                                     // tiles of 16 outputs of a block
#define UNIT_STEPS 4                                      // k-steps of a unit
#define UNIT_CODES (UNIT_STEPS * BLOCK_TILES * CUDA_WARP) // 16-byte words of a unit's operands
#define CODES_BYTES (UNIT_CODES * 16)
#define STAGES_MAX 8             // stages of the ring, a unit each
#define HEAD 128                 // bytes of shared memory in front: two mbarriers a stage
#define BAND 8                   // blocks along the rows that share an L2 band (sheet_where)
#define SUMS_LD (EXL3_BLOCK + 4) // values of a row of sums, padded against bank conflicts

// What the launches work on: p with inputs as tiles; a block has outputs 128 * (block0 + block) on.
struct sheet {
    struct strip_launch p;
    uint4 *codes; // [blocks][units] tiles of 128 outputs
    int block0, units;
    int groups;             // groups of 8 rows of the call
    int room, across, down; // shared memory for stages; blocks along the outputs and the rows
};

// ---- inputs -------------------------------------------------------------------------------------

// A block 8 rows of 128 inputs, a warp a row of them, once for each set of outputs that shares
// inputs (blockIdx.z). Bound by bytes.
__global__ static void sheet_take(const __grid_constant__ struct sheet s)
{
    __shared__ __align__(16) uint16_t held[STRIP_PLANES * WARPS * EXL3_BLOCK];
    __shared__ uint8_t count[WARPS * 2];
    const struct strip_launch &p = s.p;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP,
        units = p.x.ld / STRIP_UNIT;
    int k0 = (int)blockIdx.x * EXL3_BLOCK, variant = (int)blockIdx.z,
        row = (int)blockIdx.y * WARPS + warp;
    int slices = p.w.q.slices ? p.w.q.slices : 1, slice = variant * p.cut / (p.w.rows / slices);
    int at = variant * s.groups + (int)blockIdx.y,
        planes = p.w.dtype == DTYPE_EXL3 ? 1 : STRIP_PLANES;
    const float *from =
        p.from +
        ((size_t)row * (size_t)p.groups + (size_t)(variant * p.cut / p.local)) * (size_t)p.w.cols;
    struct strip_x x = { held, count, WARPS * EXL3_BLOCK, EXL3_BLOCK };
    float v[4] = { 0, 0, 0, 0 };

    dependency_wait();
    if (row < p.rows)
        take_four(from, k0 + 4 * lane, p.w.cols, v);
    put_any(x, p.w, p.w.suh + (size_t)slice * (size_t)p.x.ld + k0, p.in, warp, 0, v, true);
    __syncthreads();
    if (planes > 1 && t < 2 * WARPS)
        p.x.count[(size_t)(at * WARPS + t / 2) * (size_t)units +
                  (size_t)(k0 / STRIP_UNIT + t % 2)] = count[t];
    for (int i = t; i < planes * 2 * GROUP_ROWS * 8; i += THREADS) {
        int r = i % 8, piece = i / 8 % 8, unit = i / 64 % 2, plane = i / 128;
        const uint16_t *h =
            held + plane * WARPS * EXL3_BLOCK + r * EXL3_BLOCK + unit * STRIP_UNIT + piece * 8;

        *(uint4 *)(p.x.data + (size_t)plane * p.x.plane +
                   ((size_t)(k0 / STRIP_UNIT + unit) * (p.x.plane / (size_t)p.x.ld / GROUP_ROWS) +
                    (size_t)at) *
                       GROUP_VALUES +
                   (size_t)(piece * 64 + r * 8)) = *(const uint4 *)h;
    }
}

// A block a unit of 128 outputs, a warp a pair of tiles of one of its pieces. Bound by bytes.
template <class C> __global__ static void sheet_codes(const __grid_constant__ struct sheet s)
{
    constexpr int EACH = UNIT_STEPS / C::STEPS, PAIRS = C::TILES / 2,
                  STRIPS = BLOCK_TILES / C::TILES;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int unit = (int)blockIdx.x, pair = warp % PAIRS, piece = warp / PAIRS % EACH;
    int half = warp / PAIRS / EACH, strip = (s.block0 + (int)blockIdx.y) * STRIPS + half;
    uint32_t *to =
        (uint32_t *)(s.codes + ((size_t)blockIdx.y * (size_t)s.units + (size_t)unit) * UNIT_CODES) +
        lane;
    typename C::piece now;

    if (half >= STRIPS)
        return;
    C codes(s.p.w, strip, lane);
    bool there = strip * C::TILES * MAT_TILE < s.p.w.rows;

    if (there)
        codes.load(unit * EACH + piece, now);
#pragma unroll
    for (int step = 0; step < C::STEPS; step++)
#pragma unroll
        for (int t = 0; t < C::TILES; t += 2) {
            uint32_t a[2][4] = {};

            if (t / 2 != pair)
                continue;
            if (there && C::BOOKS > 1 && codes.book)
                codes.template operands<C::BOOKS - 1>(now, step, t, a);
            else if (there)
                codes.template operands<0>(now, step, t, a);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) // i % 2: outputs from 8 on, i / 2: inputs from 8 on
                    to[((half * C::TILES + t + k) * 2 + i % 2) * (GROUP_BYTES / 4) +
                       ((piece * C::STEPS + step) * 2 + i / 2) * (GROUP_PIECE / 4)] = a[k][i];
        }
}

// ---- the product ----------------------------------------------------------------------------

// The most planes that a row of the block needs.
__device__ static inline int sheet_planes(const struct sheet &s, int group, int groups)
{
    int units = s.p.x.ld / STRIP_UNIT, n = groups * GROUP_ROWS * units / 16;
    const uint4 *from = (const uint4 *)(s.p.x.count + (size_t)group * GROUP_ROWS * (size_t)units);
    uint32_t two = 0, three = 0;

    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        uint4 v = from[i];

        two |= v.x | v.y | v.z | v.w;
        three |= (v.x & v.x >> 1) | (v.y & v.y >> 1) | (v.z & v.z >> 1) | (v.w & v.w >> 1);
    }
    return __syncthreads_or(three & 0x01010101u) ? 3 : __syncthreads_or(two & 0x02020202u) ? 2 : 1;
}

// Rasterisation of blocks: bands of BAND blocks along the rows, outputs outermost within a band, so
// that blocks that run at the same time share outputs and rows in L2.
__device__ static inline void sheet_where(const struct sheet &s, int *across, int *down)
{
    int i = (int)blockIdx.x, band = i / (s.across * BAND) * BAND;
    int high = s.down - band < BAND ? s.down - band : BAND;

    i -= band * s.across;
    *across = i / high;
    *down = band + i % high;
}

// Request a unit's tiles of outputs and rows into a stage. One thread.
__device__ static inline void sheet_bring(const struct sheet &s, unsigned char *to, uint64_t *full,
                                          int unit, int across, int group, int groups, int planes,
                                          int plane)
{
    size_t all = s.p.x.plane / (size_t)s.p.x.ld / GROUP_ROWS; // groups

    barrier_expect(full, CODES_BYTES + planes * groups * GROUP_BYTES);
    bulk_bring(to, s.codes + ((size_t)across * (size_t)s.units + (size_t)unit) * UNIT_CODES,
               CODES_BYTES, full);
    to += CODES_BYTES;
    for (int i = 0; i < planes; i++, to += plane)
        bulk_bring(to,
                   s.p.x.data + (size_t)i * s.p.x.plane +
                       ((size_t)unit * all + (size_t)group) * GROUP_VALUES,
                   groups * GROUP_BYTES, full);
}

// Halves first .. end - 1 of a unit: outputs at a times rows at b, plane after plane.
template <class C, int N, int PLANES>
__device__ static inline void sheet_halves(group_sums<N> &sums, uint32_t a, uint32_t b, int plane,
                                           int first, int end, bool more, int four)
{
    group_begin();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < PLANES; i++)
            if (half >= first && half < end)
                group_steps<C::F16>(sums, a, b + (uint32_t)(i * plane), half,
                                    more || half > first || i > 0, four);
    group_settle(sums);
}

// The same for a number of planes known at run time. wgmma needs straight-line code between
// group_begin and group_settle, so each number of planes has code of its own.
template <class C, int N>
__device__ static inline void sheet_planed(group_sums<N> &sums, uint32_t a, uint32_t b, int plane,
                                           int planes, int first, int end, bool more, int four)
{
    if (!GROUP_ASYNC) {
#pragma unroll 1
        for (int half = first; half < end; half++)
#pragma unroll 1
            for (int i = 0; i < (C::F16 ? 1 : planes); i++, more = true)
                group_steps<C::F16>(sums, a, b + (uint32_t)(i * plane), half, more, four);
    } else if (C::F16 || planes == 1) {
        sheet_halves<C, N, 1>(sums, a, b, plane, first, end, more, four);
    } else if (planes == 2) {
        sheet_halves<C, N, 2>(sums, a, b, plane, first, end, more, four);
    } else {
        sheet_halves<C, N, 3>(sums, a, b, plane, first, end, more, four);
    }
}

// A block 128 outputs x 8 N rows (group_sums says which a warp has). Bound by L2 bandwidth, then by
// the matrix unit.
template <class C, int N>
__global__ static void __launch_bounds__(THREADS, 1)
    sheet_rows(const __grid_constant__ struct sheet s)
{
    extern __shared__ __align__(128) unsigned char sheet_memory[];
    constexpr int ROWS = N * GROUP_ROWS, PLANE = N * GROUP_BYTES;
    constexpr int TILES = group_sums<N>::TILES, HALVES = GROUP_ASYNC ? 2 : 1; // unrolled
    const struct strip_launch &p = s.p;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP, across, down;
    int four = group_four();
    uint64_t *full = (uint64_t *)sheet_memory, *empty = full + STAGES_MAX;

    sheet_where(s, &across, &down);
    int n0 = (s.block0 + across) * EXL3_BLOCK, variant = n0 / p.cut, first = down * ROWS;
    int group = variant * s.groups + down * N;
    int groups = s.groups - down * N < N ? s.groups - down * N : N;
    int planes = C::F16 ? 1 : sheet_planes(s, group, groups);
    int bytes = CODES_BYTES + planes * PLANE;
    int stages = s.room / bytes < STAGES_MAX ? s.room / bytes : STAGES_MAX, stage = 0, lap = 0;
    int behind = stages > 3 ? 2 : 1; // units after which a stage is refilled
    group_parts<N> sums;
    group_sums<N> few;
    C codes(p.w, n0 / (C::TILES * MAT_TILE) + group_sums<N>::tile(0) / C::TILES, lane);

    if (t < stages) {
        barrier_init(full + t, 1);
        barrier_init(empty + t, WARPS);
        barrier_publish();
    }
    __syncthreads();
    auto bring = [&](int unit, int to) {
        sheet_bring(s, sheet_memory + HEAD + to * bytes, full + to, unit, across, group, groups,
                    planes, PLANE);
    };
    if (t == 0)
        for (int i = 0; i < stages && i < s.units; i++)
            bring(i, i);
    __syncwarp();
    sums.begin(p.w, p.splits, STRIP_WARPS, NULL);
    if (C::SCALED)
        group_set(few, 0);
    if (sums.ends(0))
        sums.end(0, false);
    for (int unit = 0; unit < s.units; unit++) {
        uint32_t a = shared_at(sheet_memory) + HEAD + (uint32_t)(stage * bytes),
                 b = a + CODES_BYTES;
        int next = unit - behind + stages; // goes where unit - behind was

        barrier_wait(full + stage, lap);
        if (unit >= behind && next < s.units && t == unit % WARPS * CUDA_WARP) { // warps in turn
            int to = stage - behind, wrapped = to < 0;

            to += wrapped ? stages : 0;
            barrier_wait(empty + to, lap ^ wrapped);
            bring(next, to);
        }
        __syncwarp();
        if (GROUP_ASYNC && !C::SCALED) {
            if (sums.ends(unit * 2 + 1)) {
                sheet_planed<C>(sums.part, a, b, PLANE, planes, 0, 1, sums.more, four);
                sums.end(unit * 2 + 1, true);
                sheet_planed<C>(sums.part, a, b, PLANE, planes, 1, 2, false, four);
            } else {
                sheet_planed<C>(sums.part, a, b, PLANE, planes, 0, 2, sums.more, four);
            }
            sums.more = true;
            if (sums.ends(unit * 2 + 2))
                sums.end(unit * 2 + 2, true);
        } else {
#pragma unroll HALVES
            for (int half = 0; half < 2; half++) {
                if constexpr (C::SCALED) {
                    float by[TILES];

#pragma unroll
                    for (int k = 0; k < TILES; k++)
                        by[k] = codes.scale(unit * 2 + half,
                                            group_sums<N>::tile(k * (N / TILES)) % C::TILES);
                    sheet_planed<C>(few, a, b, PLANE, planes, half, half + 1, false, four);
#pragma unroll
                    for (int i = 0; i < N; i++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            sums.part.v[i][c] =
                                fmaf(by[i / (N / TILES)], few.v[i][c], sums.part.v[i][c]);
                } else {
                    sheet_planed<C>(sums.part, a, b, PLANE, planes, half, half + 1, sums.more,
                                    four);
                }
                sums.more = true;
                if (sums.ends(unit * 2 + half + 1)) {
                    sums.end(unit * 2 + half + 1, true);
                    if (C::SCALED)
                        group_set(sums.part, 0);
                }
            }
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(empty + stage);
        if (++stage == stages) {
            stage = 0;
            lap ^= 1;
        }
    }
    // outputs, a warp a row
    float *held = (float *)(sheet_memory + HEAD);
    bool at_once = p.w.rows % 4 == 0 && ((uintptr_t)p.y & 15) == 0;

    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            held[(group_sums<N>::rows(i) * GROUP_ROWS + lane % 4 * 2 + c % 2) * SUMS_LD +
                 C::output(group_sums<N>::tile(i), lane / 4, c / 2)] = sums.total(i, c);
    __syncthreads();
    for (int i = warp; i < ROWS && first + i < p.rows; i += WARPS) {
        float4 f = *(const float4 *)(held + i * SUMS_LD + 4 * lane);
        float v[4] = { f.x, f.y, f.z, f.w };
        float *y = p.y + (size_t)(first + i) * (size_t)p.w.rows + n0 + 4 * lane;

        finish_outputs<C::F16>(p.w, n0, EXL3_BLOCK, v);
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = rounded(v[k], p.round);
        if (at_once && n0 + 4 * lane < p.w.rows)
            *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (!at_once && n0 + 4 * lane + k < p.w.rows)
                y[k] = v[k];
    }
}

// ---- launching ----------------------------------------------------------------------------------

// Decoded operands of one type are multiplied by one kernel, whatever codes they came from.
template <class C> struct sheet_kind {
    typedef C codes;
};
template <int BITS2> struct sheet_kind<exl3_codes<BITS2>> {
    typedef exl3_codes<8> codes;
};
template <> struct sheet_kind<fp4_codes<DTYPE_NVFP4>> {
    typedef fp4_codes<DTYPE_MXFP4> codes;
};

template <class C, int N> static void sheet_blocks(struct queue *q, struct sheet *s)
{
    s->down = (int)blocks_for((size_t)s->groups, N);
    launch_behind(cuda_stream(q), sheet_rows<C, N>, (unsigned)(s->across * s->down), THREADS,
                  (size_t)(HEAD + s->room), *s);
}

// Waves of blocks of n groups of rows, times n: the relative time of the product.
static int sheet_waves(const struct queue *q, const struct sheet *s, int n)
{
    int sms = ((const struct cuda_device *)q->dev)->sms;

    return (int)blocks_for((size_t)s->across * blocks_for((size_t)s->groups, n), sms) * n;
}

// Bytes of a stage for `groups` groups of rows, at most; two stages have to fit.
template <class C> static constexpr int stage_bytes(int groups)
{
    return CODES_BYTES + (C::F16 ? 1 : STRIP_PLANES) * groups * GROUP_BYTES;
}

template <class C> static void sheet_go(struct queue *q, struct sheet *s, size_t room)
{
    typedef typename sheet_kind<C>::codes kind;
    int blocks = (int)blocks_for((size_t)s->p.w.rows, EXL3_BLOCK);
    size_t each = (size_t)s->units * UNIT_CODES * sizeof(uint4);
    int most = each ? (int)(room / each) : blocks;

    for (s->block0 = 0; s->block0 < blocks; s->block0 += most) {
        s->across = blocks - s->block0 < most ? blocks - s->block0 : most;
        if (s->units)
            launch_behind(cuda_stream(q), sheet_codes<C>,
                          dim3((unsigned)s->units, (unsigned)s->across), THREADS, 0, *s);
        bool large =
            s->room >= 2 * stage_bytes<C>(16) && sheet_waves(q, s, 16) <= sheet_waves(q, s, 8);

        if constexpr (!C::SCALED) // scaled codes have one more set of accumulators
            if (large) {
                sheet_blocks<kind, 16>(q, s);
                continue;
            }
        sheet_blocks<kind, 8>(q, s);
    }
}

extern "C" cudaError_t cuda_sheet_limits(int shared_max)
{
    cudaError_t e = cudaSuccess;

    if (shared_max < HEAD + 2 * stage_bytes<bf16_codes>(8))
        return cudaErrorInvalidConfiguration;
#define ROOM_FOR(...)                                                                              \
    if (e == cudaSuccess)                                                                          \
        e = cudaFuncSetAttribute((const void *)sheet_rows<__VA_ARGS__>,                            \
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max);
    ROOM_FOR(fp8_codes, 8)
    ROOM_FOR(fp4_codes<DTYPE_MXFP4>, 8)
    ROOM_FOR(fp4_codes<DTYPE_MXFP4>, 16)
    ROOM_FOR(exl3_codes<8>, 8)
    ROOM_FOR(exl3_codes<8>, 16)
    ROOM_FOR(bf16_codes, 8)
    ROOM_FOR(bf16_codes, 16)
#undef ROOM_FOR
    return e;
}

size_t sheet_least(const struct mat *w)
{
    return (size_t)strip_units(*w) * UNIT_CODES * sizeof(uint4);
}

bool sheet_fits(const struct strip_launch *p)
{
    return p->cut % EXL3_BLOCK == 0 || p->cut == p->w.rows;
}

void sheet_matmul(struct queue *q, const struct strip_launch *p, void *room, size_t bytes)
{
    struct sheet s = { *p };
    int variants = p->w.rows / p->cut;
    char *at = (char *)room;

    s.units = strip_units(p->w);
    s.room = ((const struct cuda_device *)q->dev)->shared_max - HEAD;
    s.groups = (int)blocks_for((size_t)p->rows, GROUP_ROWS);
    at = strip_x_place(&s.p.x, p->w.dtype == DTYPE_EXL3, variants * s.groups * GROUP_ROWS, at);
    s.codes = (uint4 *)at;
    bytes -= (size_t)(at - (char *)room);
    if (s.units)
        launch(q, sheet_take,
               dim3((unsigned)(s.p.x.ld / EXL3_BLOCK), (unsigned)s.groups, (unsigned)variants),
               THREADS, 0, s);
    switch (p->w.dtype) {
    case DTYPE_FP8:
        sheet_go<fp8_codes>(q, &s, bytes);
        return;
    case DTYPE_MXFP4:
        sheet_go<fp4_codes<DTYPE_MXFP4>>(q, &s, bytes);
        return;
    case DTYPE_NVFP4:
        sheet_go<fp4_codes<DTYPE_NVFP4>>(q, &s, bytes);
        return;
    case DTYPE_BF16:
        sheet_go<bf16_codes>(q, &s, bytes);
        return;
    default:
        break;
    }
    switch (p->w.q.bits2) {
#define WIDTH(b)                                                                                   \
    case b:                                                                                        \
        sheet_go<exl3_codes<b>>(q, &s, bytes);                                                     \
        break;
        EXL3_WIDTHS(WIDTH)
#undef WIDTH
    }
}
