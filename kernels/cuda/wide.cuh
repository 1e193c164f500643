// wide - the product of strips for many rows: a block takes a strip, all of its inputs and 64 rows.
// Pieces are decoded into shared memory once for all rows. A row's sum is made as in strip.cuh, part
// after part, so its bits are those that it has in a small window; there is one split to give back.
#ifndef TANDEM_KERNELS_CUDA_WIDE_CUH
#define TANDEM_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/codes.cuh"

#define WIDE_ROWS 64
#define WIDE_UNITS 2 // decoded at a time
#define WIDE_TILES 4 // of a warp

// Which tiles and rows a warp has, and its sums: of a part, of a split, of all.
template <class C> struct wide_share {
    static constexpr int ACROSS = C::TILES / WIDE_TILES;           // warps along the outputs
    static constexpr int DOWN = STRIP_WARPS / ACROSS;              // and along the rows
    static constexpr int NT = WIDE_ROWS / STRIP_TOKENS / DOWN;     // instructions' worth of rows
    static constexpr int EACH = 4 / C::STEPS;                      // pieces of a unit
    static constexpr int PIECES = WIDE_UNITS * EACH;               // in shared memory
    static constexpr int SPAN = C::TILES / (STRIP_WARPS / PIECES); // tiles that a warp decodes
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

template <class C>
__global__ static void __launch_bounds__(STRIP_THREADS)
    strip_wide(const __grid_constant__ struct strip_launch p)
{
    typedef wide_share<C> share;
    constexpr int NT = share::NT, EACH = share::EACH;
    __shared__ uint4 tiles[share::PIECES * C::STEPS][C::TILES][CUDA_WARP];
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int t0 = warp % share::ACROSS * WIDE_TILES, r0 = warp / share::ACROSS * NT * STRIP_TOKENS;
    typename share::sums part = {}, split = {}, all = {};
    const uint16_t *x[NT];
    const uint8_t *count[NT];
    bool live[NT];
    struct strip_job j;
    int units, parts, done = 0;

    if (!(p.order ? job_expert(p, C::KIND, WIDE_ROWS, &j) : job_dense(p, WIDE_ROWS, &j)))
        return;
    units = strip_units(j.w.cols);
    parts = j.splits * STRIP_WARPS;
#pragma unroll
    for (int r = 0; r < NT; r++) {
        int row = r0 + r * STRIP_TOKENS + lane / 4;

        live[r] = row < j.n;
        row = j.x0 + (live[r] ? row : 0);
        x[r] = p.x.data + (size_t)row * (size_t)p.x.ld + lane % 4 * 16;
        count[r] = p.x.count + (size_t)row * (size_t)(p.x.ld / STRIP_UNIT);
    }
    C codes(j.w, j.strip, lane);

    auto end_parts = [&](int unit) { // those that end before this unit
        while (done < parts && part_first(units, done + 1, parts) <= unit) {
            wide_add(split, part, done % STRIP_WARPS == 0);
            if (++done % STRIP_WARPS == 0)
                wide_add(all, split, done == STRIP_WARPS);
        }
    };
    for (int unit = 0; unit < units; unit += WIDE_UNITS) {
        int mine = warp % share::PIECES, piece = unit * EACH + mine;

        __syncthreads(); // tiles are read by the round before
        if (piece < units * EACH) {
            typename C::piece codes_now;

            codes.load(piece, codes_now);
#pragma unroll
            for (int step = 0; step < C::STEPS; step++)
#pragma unroll
                for (int t = 0; t < C::TILES; t += 2) {
                    uint32_t a[2][4];

                    if (t / share::SPAN != warp / share::PIECES)
                        continue;
                    codes.operands(codes_now, step, t, a);
#pragma unroll
                    for (int k = 0; k < 2; k++)
                        tiles[mine * C::STEPS + step][t + k][lane] =
                            make_uint4(a[k][0], a[k][1], a[k][2], a[k][3]);
                }
        }
        __syncthreads();
        for (int n = 0; n < share::PIECES && unit * EACH + n < units * EACH; n++) {
            typename share::sums few = {};
            int at = unit * EACH + n, planes = 1;

            if (n % EACH == 0)
                end_parts(unit + n / EACH);
            if (!C::F16) {
                int most = 1;

#pragma unroll
                for (int r = 0; r < NT; r++) {
                    int c = live[r] ? count[r][at / EACH] : 1;

                    most = c > most ? c : most;
                }
                planes = __any_sync(FULL_MASK, most > 2)   ? 3
                         : __any_sync(FULL_MASK, most > 1) ? 2
                                                           : 1;
            }
            for (int plane = 0; plane < planes; plane++)
#pragma unroll
                for (int step = 0; step < C::STEPS; step += 2) {
                    uint4 b[NT];

#pragma unroll
                    for (int r = 0; r < NT; r++)
                        b[r] = live[r] ? *(const uint4 *)(x[r] + (size_t)plane * p.x.plane +
                                                          (size_t)(at / EACH) * STRIP_UNIT +
                                                          (at % EACH * C::STEPS + step) * 4)
                                       : make_uint4(0, 0, 0, 0);
#pragma unroll
                    for (int s = 0; s < 2; s++)
#pragma unroll
                        for (int t = 0; t < WIDE_TILES; t++) {
                            uint4 v = tiles[n * C::STEPS + step + s][t0 + t][lane];
                            const uint32_t a[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
                            for (int r = 0; r < NT; r++)
                                mma<C::F16>(C::SCALED ? few[t][r] : part[t][r], a,
                                            s ? b[r].z : b[r].x, s ? b[r].w : b[r].y);
                        }
                }
            if constexpr (C::SCALED)
#pragma unroll
                for (int t = 0; t < WIDE_TILES; t++) {
                    float by = codes.scale(at, t0 + t);

#pragma unroll
                    for (int r = 0; r < NT; r++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            part[t][r][c] = fmaf(by, few[t][r][c], part[t][r][c]);
                }
        }
    }
    end_parts(units);
#pragma unroll
    for (int t = 0; t < WIDE_TILES; t++)
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int row = r0 + r * STRIP_TOKENS + lane % 4 * 2 + c % 2;

                if (row < j.n)
                    p.z[j.z + (size_t)(j.z0 + row) * (size_t)p.ldz +
                        (size_t)(j.column + (t0 + t) * MAT_TILE + lane / 4 + c / 2 * 8)] =
                        all[t][r][c];
            }
}

// ---- launching ----------------------------------------------------------------------------------

static inline unsigned strip_lots(const struct strip_launch *p, int rows)
{
    unsigned lots = blocks_for((size_t)p->rows, rows);

    return p->order ? (unsigned)p->picks + (p->ws[0] ? lots : 0) : lots;
}

// strip_go - queue the product, the narrow one with grid.y splits of every matrix.
template <class C> static void strip_go(cudaStream_t s, const struct strip_launch *p, dim3 grid)
{
    if (p->wide) {
        grid.y = (unsigned)p->matrices;
        grid.z = strip_lots(p, WIDE_ROWS);
        strip_wide<C><<<grid, STRIP_THREADS, 0, s>>>(*p);
    } else if (p->rows <= (p->order ? WIDE_ROWS : STRIP_TOKENS)) { // an expert has few of the rows
        grid.z = strip_lots(p, STRIP_TOKENS);
        strip_rows<C, 1><<<grid, STRIP_THREADS, 0, s>>>(*p);
    } else {
        grid.z = strip_lots(p, 2 * STRIP_TOKENS);
        strip_rows<C, 2><<<grid, STRIP_THREADS, 0, s>>>(*p);
    }
}

#endif
