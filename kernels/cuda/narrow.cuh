// narrow - the dense product of coded and bf16 weights, 8 or 16 rows a block (more rows: more
// blocks, which read the weights again). A block has a strip, a split of the inputs and up to NT *
// 8 rows; a warp has a part. The warp loads its first codes before dependency_settle (programmatic
// dependent launch), later ones through L2 prefetches. Where that is little work the block makes
// its inputs itself (rotated f16 or bf16 planes in shared memory), else take_rows (strips.cu) has
// made them. The splits of a strip are a cluster: each block sends its partial sums through
// distributed shared memory to the blocks that finish rows. Bound by the bytes of the weights or by
// their decoding.
#ifndef TANDEM_KERNELS_CUDA_NARROW_CUH
#define TANDEM_KERNELS_CUDA_NARROW_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/rows.cuh"

#define NARROW_SUMS (EXL3_BLOCK + 4) // values of a row of sums, padded against bank conflicts
#define NARROW_PART (STRIP_WARPS * STRIP_THREADS * 16) // bytes of the sums that warps add at a time
#define NARROW_PAD 8                                   // values between rows of inputs
#define NARROW_AHEAD 4    // pieces of codes that a warp prefetches ahead
#define NARROW_TASKS 64   // (row, 128 inputs) pairs up to which a block makes its own inputs
#define NARROW_AGAIN 4096 // the same, of all blocks together

struct narrow_job {
    const struct mat *w; // NULL: nothing to do
    int strip, split, n; // n: rows
    int first;           // first row, of the call
    int begin, end;      // outputs that are wanted
    int x;               // prepared inputs: index of row 0
    const float *from;   // else: values of row 0
    const uint16_t *suh;
};

// narrow_units - the units of inputs that contain the pieces of a split, as whole blocks of 128.
__host__ __device__ static inline void narrow_units(const struct mat &w, int split, int splits,
                                                    int *low, int *high)
{
    int pieces = strip_pieces(w), halves = strip_halves(w);

    *low = part_first(pieces, split, splits) * halves / 4 * 2;
    *high = (part_first(pieces, split + 1, splits) * halves + 3) / 4 * 2;
}

// narrow_span - units of inputs that a block holds at most.
static inline int narrow_span(const struct mat &w, int splits)
{
    int most = 0;

    for (int i = 0; i < splits; i++) {
        int low, high;

        narrow_units(w, i, splits, &low, &high);
        most = high - low > most ? high - low : most;
    }
    return most;
}

// narrow_sums - bytes of the sums that a block receives, for so many rows of the call.
static inline size_t narrow_sums(int rows)
{
    return (size_t)((rows + STRIP_SPLITS - 1) * NARROW_SUMS) * sizeof(float);
}

// narrow_row - bytes of a row of inputs that a block makes itself.
static inline size_t narrow_row(int span, bool exl3)
{
    return (size_t)(span * STRIP_UNIT + NARROW_PAD) * 2 * (exl3 ? 1 : STRIP_PLANES) + (size_t)span;
}

// ---- clusters and launches ------------------------------------------------------------------

// A cluster barrier in two halves: what a block stored before cluster_arrive is visible to the
// cluster after cluster_wait. All threads call both, alternately.
__device__ static inline void cluster_arrive()
{
    __cluster_barrier_arrive();
}

__device__ static inline void cluster_wait()
{
    __cluster_barrier_wait();
}

// The address of p's counterpart in the shared memory of block `rank` of the cluster.
__device__ static inline float *cluster_peer(float *p, int rank)
{
    return (float *)__cluster_map_shared_rank(p, (unsigned)rank);
}

// ---- which block does what ------------------------------------------------------------------

__device__ static inline void narrow_dense(const struct strip_launch &p, int rows,
                                           struct narrow_job *j)
{
    int wide = strip_outputs(p.w), part = (int)blockIdx.y, group, slices, variant;

    j->w = &p.w;
    j->split = (int)blockIdx.x;
    j->first = (int)blockIdx.z * rows;
    j->n = p.rows - j->first < rows ? p.rows - j->first : rows;
    if (p.cut == p.w.rows) { // the same inputs for all
        j->begin = 0;
        j->end = p.w.rows;
        j->strip = part;
        j->x = j->first;
        j->from = p.from + (size_t)j->first * (size_t)p.w.cols;
        j->suh = p.w.suh;
        return;
    }
    group = part / p.parts;
    slices = p.w.q.slices ? p.w.q.slices : 1;
    j->begin = group * p.local;
    j->end = j->begin + p.local;
    j->strip = j->begin / wide + part % p.parts;
    if (j->strip * wide >= j->end) { // the last part of a group may have nothing
        j->w = NULL;
        return;
    }
    variant = (j->strip * wide > j->begin ? j->strip * wide : j->begin) / p.cut;
    group = variant * p.cut / p.local;
    j->x = variant * p.rows + j->first;
    j->from = p.from + ((size_t)j->first * (size_t)p.groups + (size_t)group) * (size_t)p.w.cols;
    j->suh = p.w.suh + (size_t)(variant * p.cut / (p.w.rows / slices)) *
                           mat_round_up((size_t)p.w.cols, EXL3_BLOCK);
}

// ---- inputs ---------------------------------------------------------------------------------

// The inputs of row i of the job.
__device__ static inline const float *narrow_from(const struct strip_launch &p,
                                                  const struct narrow_job &j, int i)
{
    return j.from + (size_t)i * (size_t)p.groups * (size_t)p.w.cols;
}

// Prefetch to L2 what the block needs for its rotations: suh, svh, bias.
__device__ static inline void narrow_ahead(const struct strip_launch &p, const struct narrow_job &j,
                                           int low, int high)
{
    int t = (int)threadIdx.x, n0 = j.strip * EXL3_BLOCK;

    if (j.w->dtype != DTYPE_EXL3)
        return;
    if (!p.x.data && t < high - low)
        prefetch_l2(j.suh + (low + t) * STRIP_UNIT);
    if (t >= STRIP_THREADS - 4)
        prefetch_l2(t % 2 || !j.w->bias ? j.w->svh + n0 + t / 2 % 2 * STRIP_UNIT
                                        : j.w->bias + n0 + t / 2 % 2 * STRIP_UNIT);
}

// Make the inputs of units low .. high - 1 (both even) of all rows, warps in turn.
template <bool ROTATED>
__device__ static inline void narrow_inputs(const struct strip_launch &p,
                                            const struct narrow_job &j, const struct strip_x &x,
                                            int low, int high)
{
    int lane = (int)threadIdx.x % CUDA_WARP, blocks = (high - low) / 2;

    for (int i = (int)threadIdx.x / CUDA_WARP; i < j.n * blocks; i += STRIP_WARPS) {
        int row = i / blocks, k0 = i % blocks * EXL3_BLOCK, k = low * STRIP_UNIT + k0;
        float v[4];

        take_four(narrow_from(p, j, row), k + 4 * lane, j.w->cols, v);
        put_inputs<ROTATED>(x, *j.w, j.suh + k, p.in, row, k0, EXL3_BLOCK, v);
    }
}

// ---- sums -----------------------------------------------------------------------------------

// Row i of a job is finished by block i % peers of the cluster, which gets a row of sums from each
// of its peers: those of row i from peer r are row i / peers * peers + r of its sums.

// Add the warps' sums in order and store them in the block that finishes the row.
template <class C, int NT>
__device__ static inline void narrow_add(const float (&acc)[C::TILES][NT][4], float4 *part,
                                         float *sums, int n)
{
    constexpr int TILES = C::TILES, AT_A_TIME = 8 / NT < TILES ? 8 / NT : TILES;
    constexpr int SLOTS = AT_A_TIME * NT * CUDA_WARP;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int row = warp % NT * STRIP_TOKENS + lane % 4 * 2, peers = (int)gridDim.x;
    float *to[2];

    for (int k = 0; k < 2; k++) {
        int i = row + k;

        to[k] = sums + (i / peers * peers + (int)blockIdx.x) * NARROW_SUMS;
        if (peers > 1)
            to[k] = cluster_peer(to[k], i % peers);
    }
#pragma unroll
    for (int first = 0; first < TILES; first += AT_A_TIME) {
        __syncthreads(); // `part` overlays inputs, then the sums of the tiles before
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
#pragma unroll
            for (int r = 0; r < NT; r++) {
                const float(&c)[4] = acc[first + i][r];

                if (r * STRIP_TOKENS + lane % 4 * 2 < n)
                    part[warp * SLOTS + (i * NT + r) * CUDA_WARP + lane] =
                        make_float4(c[0], c[1], c[2], c[3]);
            }
        __syncthreads();
        if (first == 0 && peers > 1)
            cluster_wait(); // all blocks of the cluster have started
        if (t < SLOTS && row < n) {
            int tile = first + warp / NT;
            int low = C::output(tile, lane / 4, 0), high = C::output(tile, lane / 4, 1);
            float4 s = part[t];

#pragma unroll
            for (int w = 1; w < STRIP_WARPS; w++) {
                float4 o = part[w * SLOTS + t];

                s.x += o.x;
                s.y += o.y;
                s.z += o.z;
                s.w += o.w;
            }
            to[0][low] = s.x;
            to[0][high] = s.z;
            if (row + 1 < n) {
                to[1][low] = s.y;
                to[1][high] = s.w;
            }
        }
    }
}

// The lane's four sums of a row: those of peers first .. first + splits - 1, added in order.
__device__ static inline void narrow_take(const float *sums, int row, int first, int splits,
                                          int wide, float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP, peers = (int)gridDim.x;

    v[0] = v[1] = v[2] = v[3] = 0;
    if (4 * lane >= wide)
        return;
    sums += (row / peers * peers + first) * NARROW_SUMS + 4 * lane;
    for (int s = 0; s < splits; s++, sums += NARROW_SUMS) {
        float4 o = *(const float4 *)sums;

        v[0] = s ? v[0] + o.x : o.x;
        v[1] = s ? v[1] + o.y : o.y;
        v[2] = s ? v[2] + o.z : o.z;
        v[3] = s ? v[3] + o.w : o.w;
    }
}

// Finish and store the rows of outputs that end in this block, warps in turn.
template <bool ROTATED>
__device__ static inline void narrow_give(const struct strip_launch &p, const struct narrow_job &j,
                                          const float *sums)
{
    int lane = (int)threadIdx.x % CUDA_WARP, wide = ROTATED ? EXL3_BLOCK : 64, n0 = j.strip * wide;
    int peers = (int)gridDim.x;

    for (int i = (int)threadIdx.x / CUDA_WARP * peers + (int)blockIdx.x; i < j.n;
         i += STRIP_WARPS * peers) {
        float v[4];

        narrow_take(sums, i, 0, p.splits, wide, v);
        finish_outputs<ROTATED>(*j.w, n0, wide, v);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int n = n0 + 4 * lane + k;

            if (4 * lane < wide && n >= j.begin && n < j.end)
                p.y[(size_t)(j.first + i) * (size_t)p.w.rows + (size_t)n] = rounded(v[k], p.round);
        }
    }
}

// ---- the product ----------------------------------------------------------------------------

// A piece of a strip times a piece of the inputs of NT * 8 rows, k-step after k-step.
template <class C, int NT, int BOOK>
__device__ static inline void piece_product(const C &codes, const typename C::piece &piece,
                                            const uint4 (&b)[NT][C::STEPS / 2],
                                            float (&acc)[C::TILES][NT][4])
{
#pragma unroll
    for (int step = 0; step < C::STEPS; step++)
#pragma unroll
        for (int t = 0; t < C::TILES; t += 2) {
            uint32_t a[2][4];

            codes.template operands<BOOK>(piece, step, t, a);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int r = 0; r < NT; r++) {
                    uint4 x = b[r][step / 2]; // two k-steps in 16 bytes

                    mma<C::F16>(acc[t + k][r], a[k], step % 2 ? x.z : x.x, step % 2 ? x.w : x.y);
                }
        }
}

// Whether a warp loads the next piece into registers ahead of time: with weights that need no
// decoding.
template <class C, int NT> __device__ static constexpr bool narrow_holds()
{
    return NT == 1 && C::KIND == bf16_codes::KIND;
}

// Resident blocks on a multiprocessor. With 16 rows two fit up to 6 bits without spills.
template <class C, int NT> __device__ static constexpr int narrow_blocks()
{
    return NT == 1 || C::KIND == bf16_codes::KIND || C::KIND == MAT_KIND_EXL3 << 12 ? C::BLOCKS
                                                                                    : C::BLOCKS - 1;
}

// Prefetch a piece of coded weights to L2, if it is before `end`.
template <class C> __device__ static inline void narrow_near(const C &codes, int piece, int end)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    if constexpr (C::KIND != bf16_codes::KIND)
        if (piece < end && lane * 128 < C::BYTES)
            prefetch_l2((const char *)(codes.at - lane) + (size_t)piece * C::BYTES + lane * 128);
}

// Where a lane reads its rows' inputs: address of unit 0, and of the counts of planes.
template <int NT> struct narrow_x {
    const uint16_t *x[NT];
    const uint8_t *count[NT];
    size_t plane;
    bool live[NT];
};

// A warp's part: pieces at .. end - 1, of which `now` is the first. Later codes are prefetched to
// L2 NARROW_AHEAD pieces ahead, which takes no registers, and other warps decode meanwhile. For
// bf16 weights, with nothing to decode, the detour costs: a head takes 161 us without it and 182
// with it.
template <class C, int NT, int BOOK>
__device__ static inline void narrow_part(const C &codes, const struct narrow_x<NT> &x, int at,
                                          int end, typename C::piece &now,
                                          float (&acc)[C::TILES][NT][4])
{
    constexpr int EACH = 4 / C::STEPS; // pieces of a unit

    auto load_x = [&](int piece, int plane, uint4(&v)[NT][C::STEPS / 2]) {
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int i = 0; i < C::STEPS / 2; i++)
                v[r][i] = x.live[r] ? *(const uint4 *)(x.x[r] + (size_t)plane * x.plane +
                                                       piece / EACH * STRIP_UNIT +
                                                       (piece % EACH * C::STEPS + 2 * i) * 4)
                                    : make_uint4(0, 0, 0, 0);
    };
    for (int first = at; at < end; at++) {
        uint4 b[NT][C::STEPS / 2];

        typename C::piece next;

        if (!narrow_holds<C, NT>() && at > first)
            codes.load(at, now);
        if (narrow_holds<C, NT>() && at + 1 < end)
            codes.load(at + 1, next);
        load_x(at, 0, b);
        narrow_near(codes, at + NARROW_AHEAD, end);
        int planes = 1;

        if (!C::F16) {
            int most = 1;

#pragma unroll
            for (int r = 0; r < NT; r++) {
                int c = x.live[r] ? x.count[r][at / EACH] : 1;

                most = c > most ? c : most;
            }
            planes = __any_sync(FULL_MASK, most > 2) ? 3 : __any_sync(FULL_MASK, most > 1) ? 2 : 1;
        }
        if constexpr (C::SCALED) { // a scale belongs to one piece, so that has a sum of its own
            float few[C::TILES][NT][4] = {};

            for (int plane = 0;;) {
                piece_product<C, NT, BOOK>(codes, now, b, few);
                if (++plane == planes)
                    break;
                load_x(at, plane, b);
            }
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
                float by = codes.scale(at, t);

#pragma unroll
                for (int r = 0; r < NT; r++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        acc[t][r][c] = fmaf(by, few[t][r][c], acc[t][r][c]);
            }
        } else {
            for (int plane = 0;;) {
                piece_product<C, NT, BOOK>(codes, now, b, acc);
                if (C::F16 || ++plane == planes)
                    break;
                load_x(at, plane, b);
            }
        }
        if (narrow_holds<C, NT>())
            now = next;
    }
}

// One block for each (split, strip, NT * 8 rows), one warp for each part. Bound by the bytes of the
// weights, or by their decoding.
template <class C, int NT, int BLOCKS = narrow_blocks<C, NT>()>
__global__ static void __launch_bounds__(STRIP_THREADS, BLOCKS)
    strip_rows(const __grid_constant__ struct strip_launch p)
{
    extern __shared__ uint4 narrow_memory[];
    constexpr int ROWS = NT * STRIP_TOKENS;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    float *sums = (float *)narrow_memory;
    float4 *part = (float4 *)(sums + (ROWS + STRIP_SPLITS - 1) * NARROW_SUMS);
    float acc[C::TILES][NT][4] = {};
    struct strip_x own = p.x;
    struct narrow_x<NT> x;
    struct narrow_job j;
    int pieces, low, high, at, end;
    typename C::piece now;

    narrow_dense(p, ROWS, &j);
    if (!j.w) { // all blocks of a cluster
        dependency_settle();
        return;
    }
    C codes(*j.w, j.strip, lane);

    pieces = strip_pieces(*j.w);
    at = part_first(pieces, j.split * STRIP_WARPS + warp, p.splits * STRIP_WARPS);
    end = part_first(pieces, j.split * STRIP_WARPS + warp + 1, p.splits * STRIP_WARPS);
    if (at < end)
        codes.load(at, now);
    if (gridDim.x > 1)
        cluster_arrive();
    narrow_units(*j.w, j.split, p.splits, &low, &high);
    narrow_ahead(p, j, low, high);
    for (int i = 1; i < NARROW_AHEAD; i++)
        narrow_near(codes, at + i, end);
    dependency_settle();
    if (!p.x.data) {
        own.ld = p.span * STRIP_UNIT + NARROW_PAD;
        own.data = (uint16_t *)part;
        own.plane = (size_t)j.n * (size_t)own.ld;
        own.count = (uint8_t *)(own.data + own.plane * (C::F16 ? 1 : STRIP_PLANES));
        narrow_inputs<C::F16>(p, j, own, low, high);
        __syncthreads();
    }
    x.plane = own.plane;
#pragma unroll
    for (int r = 0; r < NT; r++) {
        int i = r * STRIP_TOKENS + lane / 4, row;

        x.live[r] = i < j.n;
        i = x.live[r] ? i : 0;
        row = !p.x.data ? i : j.x + i;
        x.x[r] = own.data + (size_t)row * (size_t)own.ld + lane % 4 * 16;
        x.count[r] = own.count + (size_t)row * (size_t)(own.ld / STRIP_UNIT);
        if (!p.x.data) {
            x.x[r] -= low * STRIP_UNIT;
            x.count[r] -= low;
        }
    }
    if (C::BOOKS > 1 && codes.book)
        narrow_part<C, NT, C::BOOKS - 1>(codes, x, at, end, now, acc);
    else
        narrow_part<C, NT, 0>(codes, x, at, end, now, acc);
    dependency_next();
    narrow_add<C, NT>(acc, part, sums, j.n);
    if (gridDim.x > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    narrow_give<C::F16>(p, j, sums);
}

// narrow_bytes - shared memory of a block of strip_rows<C, NT> that takes n rows.
template <class C, int NT> static size_t narrow_bytes(const struct strip_launch *p, int n)
{
    size_t sums = narrow_sums(NT * STRIP_TOKENS);
    size_t x = p->x.data ? 0 : (size_t)n * narrow_row(p->span, C::F16);

    return sums + (x > NARROW_PART ? x : NARROW_PART);
}

#endif
