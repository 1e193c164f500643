// sheet.cu owns the dense product of coded weights for many rows: a sheet of operands is decoded once, in
// memory, and multiplied tile by tile: a block takes 128 outputs, up to 128 rows and all inputs, of
// which the next units are on their way to shared memory while those at hand are multiplied. A row's sum
// is made as in strip.cuh, part after part.
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sheet.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define BLOCK_TILES 8                                     // of a block's outputs
#define ACROSS 2                                          // warps along them
#define DOWN (WARPS / ACROSS)                             // and along the rows
#define SHARE (BLOCK_TILES / ACROSS)                      // tiles of a warp
#define UNIT_STEPS 4                                      // k-steps of a unit
#define UNIT_CODES (UNIT_STEPS * BLOCK_TILES * CUDA_WARP) // 16-byte operands of a unit
#define UNIT_ROW 8                                        // 16-byte pieces of a row's unit
#define ROOM (96 << 10)                                   // shared memory of a block
#define SUMS_LD (EXL3_BLOCK + 4) // values of a row of sums: rows begin in other banks

// What the launches work on: strip_launch, with inputs made; outputs 128 * (block0 + block).
struct sheet {
    struct strip_launch p;
    uint4 *codes; // [blocks][units][UNIT_STEPS][BLOCK_TILES][lanes]
    int block0, units;
};

// A block a unit of 128 outputs: warps take pairs of tiles of its pieces. Bound by bytes.
template <class C> __global__ static void sheet_codes(const __grid_constant__ struct sheet s)
{
    constexpr int EACH = UNIT_STEPS / C::STEPS, PAIRS = C::TILES / 2,
                  STRIPS = BLOCK_TILES / C::TILES;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int unit = (int)blockIdx.x, pair = warp % PAIRS, piece = warp / PAIRS % EACH;
    int half = warp / PAIRS / EACH, strip = (s.block0 + (int)blockIdx.y) * STRIPS + half;
    uint4 *to = s.codes + ((size_t)blockIdx.y * (size_t)s.units + (size_t)unit) * UNIT_CODES + lane;
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
                to[((piece * C::STEPS + step) * BLOCK_TILES + half * C::TILES + t + k) *
                   CUDA_WARP] = make_uint4(a[k][0], a[k][1], a[k][2], a[k][3]);
        }
}

// ---- the product ----------------------------------------------------------------------------

template <int NT> struct sheet_sums {
    float v[SHARE][NT][4];
};

template <int NT>
__device__ static inline void sheet_add(struct sheet_sums<NT> &to, struct sheet_sums<NT> &from,
                                        bool first)
{
#pragma unroll
    for (int t = 0; t < SHARE; t++)
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                to.v[t][r][c] = first ? from.v[t][r][c] : to.v[t][r][c] + from.v[t][r][c];
                from.v[t][r][c] = 0;
            }
}

// Planes that some row of the block needs.
template <int ROWS>
__device__ static inline int sheet_planes(const struct strip_launch &p, int x0, int first)
{
    int units = p.x.ld / STRIP_UNIT, most = 1;

    for (int i = (int)threadIdx.x; i < ROWS * units; i += THREADS) {
        int row = first + i / units;
        int c =
            row < p.rows ? p.x.count[(size_t)(x0 + row) * (size_t)units + (size_t)(i % units)] : 1;

        most = c > most ? c : most;
    }
    return __syncthreads_or(most > 2) ? 3 : __syncthreads_or(most > 1) ? 2 : 1;
}

// Bound by the matrix unit.
template <class C>
__global__ static void __launch_bounds__(THREADS, 1)
    sheet_rows(const __grid_constant__ struct sheet s)
{
    extern __shared__ uint4 sheet_memory[];
    constexpr int NT = C::SCALED ? 2 : 4, ROWS = DOWN * NT * STRIP_TOKENS;
    const struct strip_launch &p = s.p;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int t0 = warp % ACROSS * SHARE, r0 = warp / ACROSS * NT * STRIP_TOKENS;
    int n0 = (s.block0 + (int)blockIdx.x) * EXL3_BLOCK, first = (int)blockIdx.y * ROWS;
    int variant = n0 / p.cut, x0 = variant * p.rows;
    int planes = C::F16 ? 1 : sheet_planes<ROWS>(p, x0, first);
    int bytes = (UNIT_CODES + planes * ROWS * UNIT_ROW) * 16, stages = ROOM / bytes < 3 ? 1 : 3;
    int parts = p.splits * STRIP_WARPS, done = 0, pieces = strip_pieces(p.w);
    int halves = strip_halves(p.w), until = part_first(pieces, 1, parts) * halves;
    const uint4 *from = s.codes + (size_t)blockIdx.x * (size_t)s.units * UNIT_CODES;
    struct sheet_sums<NT> part = {}, split = {}, all = {
    };
    // a thread brings the same pieces of rows in every unit
    constexpr int MINE = ROWS * UNIT_ROW / THREADS;
    const uint16_t *mine[MINE];
    C codes(p.w, n0 / (C::TILES * MAT_TILE) + t0 / C::TILES, lane);

    while (until == 0 && done + 1 < parts) // parts of nothing, before there is a sum
        until = part_first(pieces, ++done + 1, parts) * halves;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int row = first + (i * THREADS + t) / UNIT_ROW;

        mine[i] = p.x.data + (size_t)(x0 + (row < p.rows ? row : p.rows - 1)) * (size_t)p.x.ld +
                  t % UNIT_ROW * 8;
    }
    auto bring = [&](int unit) {
        uint4 *to = sheet_memory + (size_t)(unit % stages) * (size_t)(bytes / 16);

        if (unit < s.units) {
#pragma unroll
            for (int i = 0; i < UNIT_CODES / THREADS; i++)
                copy_async(to + i * THREADS + t,
                           from + (size_t)unit * UNIT_CODES + i * THREADS + t);
            to += UNIT_CODES;
            for (int plane = 0; plane < planes; plane++, to += ROWS * UNIT_ROW)
#pragma unroll
                for (int i = 0; i < MINE; i++) {
                    int at = i * THREADS + t, row = at / UNIT_ROW;

                    copy_async(to + row * UNIT_ROW + (at % UNIT_ROW ^ (row & 1)),
                               (const uint4 *)(mine[i] + (size_t)plane * p.x.plane +
                                               (size_t)unit * STRIP_UNIT));
                }
        }
        copy_commit();
    };
    for (int u = 0; u + 1 < stages; u++)
        bring(u);
    for (int unit = 0; unit < s.units; unit++) {
        const uint4 *a = sheet_memory + (size_t)(unit % stages) * (size_t)(bytes / 16);
        const uint4 *b = a + UNIT_CODES;

        if (stages > 1) {
            copy_wait<1>();
            __syncthreads();
            bring(unit + stages - 1); // where the unit before this one was
        } else {
            __syncthreads();
            bring(unit);
            copy_wait<0>();
            __syncthreads();
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            struct sheet_sums<NT> few = {
            };

            for (int plane = 0; plane < planes; plane++) {
                uint4 x[NT];

#pragma unroll
                for (int r = 0; r < NT; r++) {
                    int row = r0 + r * STRIP_TOKENS + lane / 4;

                    x[r] = b[(plane * ROWS + row) * UNIT_ROW + ((lane % 4 * 2 + half) ^ (row & 1))];
                }
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int k = 0; k < SHARE; k++) {
                        uint4 v = a[((half * 2 + step) * BLOCK_TILES + t0 + k) * CUDA_WARP + lane];
                        const uint32_t w[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
                        for (int r = 0; r < NT; r++)
                            mma<C::F16>(C::SCALED ? few.v[k][r] : part.v[k][r], w,
                                        step ? x[r].z : x[r].x, step ? x[r].w : x[r].y);
                    }
            }
            if constexpr (C::SCALED)
#pragma unroll
                for (int k = 0; k < SHARE; k++) {
                    float by = codes.scale(unit * 2 + half, k);

#pragma unroll
                    for (int r = 0; r < NT; r++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            part.v[k][r][c] = fmaf(by, few.v[k][r][c], part.v[k][r][c]);
                }
            while (done < parts && until <= unit * 2 + half + 1) {
                sheet_add(split, part, done % STRIP_WARPS == 0);
                if (++done % STRIP_WARPS == 0)
                    sheet_add(all, split, done == STRIP_WARPS);
                until = part_first(pieces, done + 1, parts) * halves;
            }
        }
    }
    // outputs, a warp a row
    float *sums = (float *)sheet_memory;

    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SHARE; k++)
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                sums[(r0 + r * STRIP_TOKENS + lane % 4 * 2 + c % 2) * SUMS_LD +
                     C::output(t0 + k, lane / 4, c / 2)] = all.v[k][r][c];
    __syncthreads();
    for (int i = warp; i < ROWS && first + i < p.rows; i += WARPS) {
        float4 f = *(const float4 *)(sums + i * SUMS_LD + 4 * lane);
        float v[4] = { f.x, f.y, f.z, f.w };
        float *y = p.y + (size_t)(first + i) * (size_t)p.w.rows + n0 + 4 * lane;

        finish_outputs<C::F16>(p.w, n0, EXL3_BLOCK, v);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (n0 + 4 * lane + k < p.w.rows)
                y[k] = rounded(v[k], p.round);
    }
}

// ---- launching ----------------------------------------------------------------------------------

// Operands of one type are multiplied by one kernel, whatever codes they were.
template <class C> struct sheet_kind {
    typedef C codes;
};
template <int BITS2> struct sheet_kind<exl3_codes<BITS2>> {
    typedef exl3_codes<8> codes;
};
template <> struct sheet_kind<fp4_codes<DTYPE_NVFP4>> {
    typedef fp4_codes<DTYPE_MXFP4> codes;
};

template <class C> static void sheet_go(struct queue *q, struct sheet *s, size_t room)
{
    typedef typename sheet_kind<C>::codes kind;
    int blocks = (int)blocks_for((size_t)s->p.w.rows, EXL3_BLOCK);
    size_t each = (size_t)s->units * UNIT_CODES * sizeof(uint4);
    int most = each ? (int)(room / each) : blocks;
    constexpr int ROWS = DOWN * (C::SCALED ? 2 : 4) * STRIP_TOKENS;

    for (s->block0 = 0; s->block0 < blocks; s->block0 += most) {
        unsigned n = (unsigned)(blocks - s->block0 < most ? blocks - s->block0 : most);

        if (s->units)
            sheet_codes<C><<<dim3((unsigned)s->units, n), THREADS, 0, cuda_stream(q)>>>(*s);
        sheet_rows<kind>
            <<<dim3(n, blocks_for((size_t)s->p.rows, ROWS)), THREADS, ROOM, cuda_stream(q)>>>(*s);
    }
}

extern "C" cudaError_t cuda_sheet_limits(int shared_max)
{
    cudaError_t e = cudaSuccess;

    if (shared_max < ROOM)
        return cudaErrorInvalidConfiguration;
#define ROOM_FOR(c)                                                                                \
    if (e == cudaSuccess)                                                                          \
        e = cudaFuncSetAttribute((const void *)sheet_rows<c>,                                      \
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM);
    ROOM_FOR(fp8_codes)
    ROOM_FOR(fp4_codes<DTYPE_MXFP4>)
    ROOM_FOR(exl3_codes<8>)
    ROOM_FOR(bf16_codes)
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
    struct sheet s = { *p, (uint4 *)room, 0, strip_units(p->w) };

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
