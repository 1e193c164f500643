// wide - the product for many rows where decoding a matrix to scratch (sheet.cu) would not pay:
// rows of experts, and groups of outputs that are no whole blocks of 128. A block has a strip, all
// of its inputs and up to 32 * NT rows (EXL3) or 64 * NT; NT is 2 for EXL3 with many rows. Shared
// memory holds two units of 64 inputs: the warps decode the next one into it (operands as mma
// fragments) and copy its rows by cp.async while they multiply the one at hand. There is no
// split-K: the block adds the parts and splits of strip.cuh one after another, so a row has the
// bits of a small window. Sums go to z; the caller makes outputs of them.
#ifndef TANDEM_KERNELS_CUDA_WIDE_CUH
#define TANDEM_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/narrow.cuh"

#define WIDE_TILES 4         // tiles of 16 outputs of a warp
#define WIDE_STEPS 4         // k-steps of a unit
#define WIDE_ROOM (80 << 10) // shared memory of a block, at most

// How the warps of a block divide its tiles and rows.
template <class C, int NT> struct wide_share {
    static constexpr int ACROSS = C::TILES / WIDE_TILES; // warps along the outputs
    static constexpr int DOWN = STRIP_WARPS / ACROSS;    // and along the rows
    static constexpr int ROWS = DOWN * NT * STRIP_TOKENS;
    static constexpr int PAIRS = C::TILES / 2;                      // of tiles, a warp decodes one
    static constexpr int STEPS = WIDE_STEPS * PAIRS / STRIP_WARPS;  // in so many k-steps of a unit
    static constexpr int CODES = WIDE_STEPS * C::TILES * CUDA_WARP; // operands of a unit
    typedef float sums[WIDE_TILES][NT][4];
};

template <class S> __device__ static inline void wide_add(S &to, S &from, bool first)
{
#pragma unroll
    for (int t = 0; t < (int)(sizeof(to) / sizeof(to[0])); t++)
#pragma unroll
        for (int r = 0; r < (int)(sizeof(to[0]) / sizeof(to[0][0])); r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                to[t][r][c] = first ? from[t][r][c] : to[t][r][c] + from[t][r][c];
                from[t][r][c] = 0;
            }
}

// ---- which block does what ------------------------------------------------------------------

__device__ static inline bool job_dense(const struct strip_launch &p, int rows, struct strip_job *j)
{
    int wide = strip_outputs(p.w), group = (int)blockIdx.x / p.parts;
    int begin = group * p.local, first = (int)blockIdx.z * rows;

    j->w = p.w;
    j->strip = begin / wide + (int)blockIdx.x % p.parts;
    j->n = p.rows - first < rows ? p.rows - first : rows;
    j->x0 = (j->strip * wide > begin ? j->strip * wide : begin) / p.cut * p.rows + first;
    j->z0 = first;
    j->column = (int)blockIdx.x * wide;
    j->z = 0;
    return j->strip * wide < begin + p.local;
}

// Picks of an expert are adjacent in the order; blockIdx.z is a lot of a routed expert, which
// begins at a head, or behind those one of the shared expert, `rows` rows long. Inputs and sums are
// indexed by place of the pass.
__device__ static inline bool job_expert(const struct strip_launch &p, uint32_t kind, int rows,
                                         struct strip_job *j)
{
    int y = (int)blockIdx.z, m = (int)blockIdx.y;

    if (y < p.lots) {
        struct member head;

        if (y >= *p.heads)
            return false;
        y = p.heads[1 + y];
        head = p.order[y];
        j->w = p.we[m][head.expert];
        j->z0 = y - p.first;
        j->n = lot_rows(p, j->z0, p.lot, head.left);
    } else {
        j->w = *p.ws[m];
        j->z0 = shared_lot(p, y - p.lots, rows);
        j->n = lot_rows(p, j->z0, rows, p.places - j->z0);
    }
    j->x0 = m * p.places + j->z0;
    j->strip = (int)blockIdx.x;
    j->column = j->strip * strip_outputs(j->w);
    j->z = (size_t)m * p.zmat;
    return mat_kind(&j->w) == kind && j->column < j->w.rows;
}

// ---- the product ----------------------------------------------------------------------------

// The most planes that a row of the block needs.
template <int ROWS>
__device__ static inline int wide_planes(const struct strip_launch &p, const struct strip_job &j)
{
    int units = p.x.ld / STRIP_UNIT, most = 1;

    for (int i = (int)threadIdx.x; i < j.n * units; i += STRIP_THREADS) {
        int c = p.x.count[(size_t)j.x0 * (size_t)units + (size_t)i];

        most = c > most ? c : most;
    }
    return __syncthreads_or(most > 2) ? 3 : __syncthreads_or(most > 1) ? 2 : 1;
}

// Decode the warp's share of a unit to operands.
template <class C, int NT>
__device__ static inline void wide_decode(const C &codes, const typename C::piece &piece, uint4 *to)
{
    typedef wide_share<C, NT> share;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int first = warp / share::PAIRS * share::STEPS; // k-step of the unit

#pragma unroll
    for (int step = 0; step < C::STEPS; step++)
#pragma unroll
        for (int t = 0; t < C::TILES; t += 2) {
            uint32_t a[2][4];
            int at = first / C::STEPS * C::STEPS + step;

            if (t / 2 != warp % share::PAIRS || at < first || at >= first + share::STEPS)
                continue;
            if (C::BOOKS > 1 && codes.book)
                codes.template operands<C::BOOKS - 1>(piece, step, t, a);
            else
                codes.template operands<0>(piece, step, t, a);
#pragma unroll
            for (int k = 0; k < 2; k++)
                to[(at * C::TILES + t + k) * CUDA_WARP + lane] =
                    make_uint4(a[k][0], a[k][1], a[k][2], a[k][3]);
        }
}

// Load the warp's piece of codes of a unit; of bf16 weights only what the warp's share needs.
template <class C, int NT>
__device__ static inline void wide_load(const C &codes, int unit, typename C::piece &piece)
{
    typedef wide_share<C, NT> share;
    int first = (int)threadIdx.x / CUDA_WARP / share::PAIRS * share::STEPS; // k-step of the unit
    int n = unit * (WIDE_STEPS / C::STEPS) + first / C::STEPS;

    if constexpr (C::KIND == bf16_codes::KIND)
        codes.load_steps(n, first % C::STEPS, first % C::STEPS + share::STEPS, piece);
    else
        codes.load(n, piece);
}

// Grid (strips, matrices, lots of rows). Bound by decoding, from some 64 rows on by the matrix
// unit.
template <class C, int NT>
__global__ static void __launch_bounds__(STRIP_THREADS, NT == 1 ? 2 : 1)
    strip_wide(const __grid_constant__ struct strip_launch p)
{
    typedef wide_share<C, NT> share;
    extern __shared__ uint4 wide_memory[];
    constexpr int EACH = WIDE_STEPS / C::STEPS, ROWS = share::ROWS;
    constexpr int MINE = ROWS * 8 / STRIP_THREADS; // 16-byte pieces of rows that a thread brings
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int t0 = warp % share::ACROSS * WIDE_TILES, r0 = warp / share::ACROSS * NT * STRIP_TOKENS;
    typename share::sums part = {}, split = {}, all = {};
    typename C::piece now;
    const uint16_t *from[MINE];
    uint4 *rows = wide_memory + 2 * share::CODES;
    struct strip_job j;
    int units, pieces, parts, until, planes = 1, done = 0;

    if (!(p.role == STRIP_DENSE ? job_dense(p, ROWS, &j) : job_expert(p, C::KIND, ROWS, &j)))
        return;
    units = strip_units(j.w);
    pieces = units * EACH;
    int warps = p.role == STRIP_DENSE ? STRIP_WARPS : FEW_WARPS; // parts of a split

    parts = p.splits * warps;
    until = part_first(pieces, 1, parts);
    if (!C::F16)
        planes = wide_planes<ROWS>(p, j);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int row = (i * STRIP_THREADS + t) / 8;

        from[i] =
            p.x.data + (size_t)(j.x0 + (row < j.n ? row : j.n - 1)) * (size_t)p.x.ld + t % 8 * 8;
    }
    C codes(j.w, j.strip, lane);

    auto bring = [&](int unit) {
        uint4 *to = rows + (size_t)(unit % 2 * planes) * (size_t)(ROWS * 8);

        for (int plane = 0; plane < planes && unit < units; plane++, to += ROWS * 8)
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                int at = i * STRIP_THREADS + t, row = at / 8;

                copy_async(to + row * 8 + (at % 8 ^ (row & 1)),
                           (const uint4 *)(from[i] + (size_t)plane * p.x.plane +
                                           (size_t)unit * STRIP_UNIT));
            }
        copy_commit();
    };
    auto end_parts = [&](int piece) { // those that end before this one
        while (done < parts && until <= piece) {
            wide_add(split, part, done % warps == 0);
            if (++done % warps == 0)
                wide_add(all, split, done == warps);
            until = part_first(pieces, done + 1, parts);
        }
    };
    if (units > 0) {
        wide_load<C, NT>(codes, 0, now);
        bring(0);
        wide_decode<C, NT>(codes, now, wide_memory);
    }
    if (units > 1)
        wide_load<C, NT>(codes, 1, now);
    for (int unit = 0; unit < units; unit++) {
        const uint4 *a = wide_memory + unit % 2 * share::CODES;
        const uint4 *b = rows + (size_t)(unit % 2 * planes) * (size_t)(ROWS * 8);

        copy_wait<0>();
        __syncthreads(); // this unit has arrived, and the one before has been read
        if (unit + 1 < units) {
            bring(unit + 1);
            wide_decode<C, NT>(codes, now, wide_memory + (unit + 1) % 2 * share::CODES);
        }
        if (unit + 2 < units)
            wide_load<C, NT>(codes, unit + 2, now);
        if (r0 >= j.n)
            continue;
        for (int n = 0; n < EACH; n++) {
            typename share::sums few = {};

            end_parts(unit * EACH + n);
            for (int plane = 0; plane < planes; plane++)
#pragma unroll
                for (int half = 0; half < C::STEPS / 2; half++) {
                    int pair = n * (C::STEPS / 2) + half; // of k-steps
                    uint4 x[NT];

#pragma unroll
                    for (int r = 0; r < NT; r++) {
                        int row = r0 + r * STRIP_TOKENS + lane / 4;

                        x[r] = b[(plane * ROWS + row) * 8 + ((lane % 4 * 2 + pair) ^ (row & 1))];
                    }
#pragma unroll
                    for (int s = 0; s < 2; s++)
#pragma unroll
                        for (int k = 0; k < WIDE_TILES; k++) {
                            uint4 v = a[((pair * 2 + s) * C::TILES + t0 + k) * CUDA_WARP + lane];
                            const uint32_t w[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
                            for (int r = 0; r < NT; r++)
                                mma<C::F16>(C::SCALED ? few[k][r] : part[k][r], w,
                                            s ? x[r].z : x[r].x, s ? x[r].w : x[r].y);
                        }
                }
            if constexpr (C::SCALED)
#pragma unroll
                for (int k = 0; k < WIDE_TILES; k++) {
                    float by = codes.scale(unit * EACH + n, t0 + k);

#pragma unroll
                    for (int r = 0; r < NT; r++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            part[k][r][c] = fmaf(by, few[k][r][c], part[k][r][c]);
                }
        }
    }
    end_parts(pieces);
#pragma unroll
    for (int k = 0; k < WIDE_TILES; k++)
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int row = r0 + r * STRIP_TOKENS + lane % 4 * 2 + c % 2;

                if (row < j.n)
                    p.z[j.z + (size_t)(j.z0 + row) * (size_t)p.ldz +
                        (size_t)(j.column + C::output(t0 + k, lane / 4, c / 2))] = all[k][r][c];
            }
}

// ---- launching ----------------------------------------------------------------------------------

// wide_rows - rows that a block can take for every one of these kinds; many: EXL3 with many rows.
static inline int wide_rows(uint32_t kinds, bool many)
{
    return (kinds >= MAT_KIND_EXL3 ? 32 : 64) * (many ? 2 : 1);
}

template <class C, int NT>
static void wide_go(struct queue *q, const struct strip_launch *p, dim3 grid)
{
    typedef wide_share<C, NT> share;
    size_t shared =
        2 * sizeof(uint4) * (size_t)(share::CODES + (C::F16 ? 1 : STRIP_PLANES) * share::ROWS * 8);

    grid.z = p->role == STRIP_DENSE ? blocks_for((size_t)p->rows, share::ROWS)
                                    : (unsigned)(p->lots + shared_lots(*p, share::ROWS));
    if (grid.z == 0)
        return;
    launch_behind(cuda_stream(q), strip_wide<C, NT>, grid, STRIP_THREADS, shared, *p);
}

// strip_go - queue the product; grid.x and grid.y are set.
template <class C> static void strip_go(struct queue *q, const struct strip_launch *p, dim3 grid)
{
    if constexpr (C::F16)
        if (p->wide && p->many) {
            wide_go<C, 2>(q, p, grid);
            return;
        }
    if (p->wide) {
        wide_go<C, 1>(q, p, grid);
    } else if (p->rows <= STRIP_TOKENS) {
        void (*kernel)(struct strip_launch) = strip_rows<C, 1>;

        if constexpr (C::F16 && C::BLOCKS == STRIP_PLACES)
            kernel = p->roomy ? strip_rows<C, 1, C::BLOCKS - 1> : kernel;
        grid.z = 1;
        launch_cluster(q, kernel, grid.x, grid, STRIP_THREADS, narrow_bytes<C, 1>(p, p->rows), *p);
    } else {
        grid.z = blocks_for((size_t)p->rows, 2 * STRIP_TOKENS);
        launch_cluster(q, strip_rows<C, 2>, grid.x, grid, STRIP_THREADS,
                       narrow_bytes<C, 2>(p, 2 * STRIP_TOKENS), *p);
    }
}

// strip_limits - let the kernels for C have the shared memory that they ask for.
template <class C> static cudaError_t strip_limits(cudaError_t e)
{
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute((const void *)strip_wide<C, 1>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, WIDE_ROOM);
    if constexpr (C::F16)
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute((const void *)strip_wide<C, 2>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, WIDE_ROOM);
    return e;
}

#endif
