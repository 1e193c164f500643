// routes.cu owns the router of many rows, with the bits that route.cu gives.
//
// Two passes. In the first a block has PAIR tiles of 16 experts, a share of the inputs (split-K)
// and a range of rows; it keeps the weights in registers and takes ROWS rows at a time, which
// cp.async brings through STAGES stages. Partial sums go to scratch, [rows][shares][tiles * 16]. In
// the second a warp adds a row's shares in order and chooses. The first is bound by additions, the
// second by latency.
#include "kernels/cuda/route.cuh"

#define PAIR 2    // tiles of a block
#define ROWS 4    // rows of a step
#define STAGES 3  // steps in shared memory
#define RANGE 128 // rows of a block, where that makes enough blocks to fill the device
#define PLACES 2  // resident blocks on a multiprocessor
#define EXPERTS (PAIR * MAT_TILE)
#define ENDS_WARPS 4

// Reduce eight values over the lanes l % 4, l % 4 + 4, ... by a transposing butterfly: lane l gets
// the value whose number is l / 4 with its three bits reversed.
template <int HALF = 4> __device__ static inline float fold_eight(float (&v)[8])
{
    constexpr int STEP = 16 / HALF;
    bool upper = threadIdx.x & STEP;

#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];

        v[i] = mine + __shfl_xor_sync(FULL_MASK, other, STEP);
    }
    if constexpr (HALF > 1)
        return fold_eight<HALF / 2>(v);
    return v[0];
}

// Grid (tile pairs * shares, ranges of rows); threads have weights as gate_load says. Bound by
// additions.
template <enum dtype D>
__global__ static void __launch_bounds__(THREADS, PLACES)
    route_ranges(struct route_args a, struct mat gate, int shares, int range, float *part)
{
    __shared__ __align__(16) float x[STAGES][ROWS][SHARE];
    __shared__ float warp_part[2][ROWS][WARPS][EXPERTS];
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int tile = (int)blockIdx.x / shares * PAIR, share = (int)blockIdx.x % shares,
        k0 = share * SHARE;
    int tiles = (a.experts + MAT_TILE - 1) / MAT_TILE, width = tiles * MAT_TILE, cols = gate.cols;
    int r = (int)blockIdx.y * range, end = r + range < a.rows ? r + range : a.rows;
    int own =
        lane / 4 % 2 * MAT_TILE + lane % 4 * 4 + lane / 8 % 2 * 2 + lane / 16; // of fold_eight
    struct stored_four<D> stored[PAIR][STEPS];
    float4 w[PAIR][STEPS];
    auto fetch = [&](int r0, int stage) {
        for (int i = t; r0 < end && i < ROWS * SHARE / 4; i += THREADS) {
            int row = i / (SHARE / 4), at = i % (SHARE / 4) * 4, k = k0 + at;

            row = r0 + row < end ? row : 0; // sums of rows past the last are not used
            copy_async_some(shared_at(&x[stage][i / (SHARE / 4)][at]),
                            a.x + (size_t)(r0 + row) * (size_t)cols + (size_t)(k < cols ? k : 0),
                            k < cols ? 16 : 0);
        }
        copy_commit();
    };
    auto add_up = [&](int r0, int of) { // halves of the block take turns: `of` is the one due
        int i = t % (THREADS / 2), row = r0 + i / EXPERTS, n = i % EXPERTS;
        float sum;

        static_assert(THREADS / 2 == ROWS * EXPERTS, "a thread a sum");
        if (t / (THREADS / 2) != of || row >= end || tile * MAT_TILE + n >= width)
            return;
        sum = warp_part[of][i / EXPERTS][0][n];
#pragma unroll
        for (int j = 1; j < WARPS; j++)
            sum += warp_part[of][i / EXPERTS][j][n];
        part[((size_t)row * (size_t)shares + (size_t)share) * (size_t)width +
             (size_t)(tile * MAT_TILE + n)] = sum;
    };

#pragma unroll
    for (int p = 0; p < PAIR; p++)
        gate_load<D>(gate, tile + p, k0, stored[p]);
    dependency_wait();
    for (int i = 0; i < STAGES - 1; i++)
        fetch(r + i * ROWS, i);
#pragma unroll
    for (int p = 0; p < PAIR; p++)
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            w[p][i] = four_values<D>(stored[p][i]);
    int turn = 0;
    for (int at = 0; r < end; r += ROWS, turn ^= 1) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        fetch(r + (STAGES - 1) * ROWS, at == 0 ? STAGES - 1 : at - 1);
        if (r > (int)blockIdx.y * range)
            add_up(r - ROWS, turn ^ 1);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float v[4 * PAIR] = {};

#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                float f = x[at][i][(j * WARPS + warp) * 8 + lane / 4];

#pragma unroll
                for (int p = 0; p < PAIR; p++) {
                    v[p * 4] = fmaf(w[p][j].x, f, v[p * 4]);
                    v[p * 4 + 1] = fmaf(w[p][j].y, f, v[p * 4 + 1]);
                    v[p * 4 + 2] = fmaf(w[p][j].z, f, v[p * 4 + 2]);
                    v[p * 4 + 3] = fmaf(w[p][j].w, f, v[p * 4 + 3]);
                }
            }
            warp_part[turn][i][warp][own] = fold_eight(v);
        }
        at = at == STAGES - 1 ? 0 : at + 1;
    }
    __syncthreads();
    add_up(r - ROWS, turn ^ 1);
}

// A warp a row. Bound by latency.
template <int OWN>
__global__ static void __launch_bounds__(ENDS_WARPS *CUDA_WARP)
    route_ends(struct route_args a, int shares, int width, const float *part)
{
    __shared__ float sorted[ENDS_WARPS][CHOICES_MAX];
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    size_t row = (size_t)blockIdx.x * ENDS_WARPS + (size_t)warp;
    float sum[OWN];
    uint32_t word[OWN];

    dependency_wait();
    if (row >= (size_t)a.rows)
        return;
    part += row * (size_t)(shares * width);
    for (int s = 0; s < shares; s++, part += width)
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int e = lane + i * CUDA_WARP;
            float v = e < a.experts ? part[e] : 0;

            sum[i] = s == 0 ? v : sum[i] + v;
        }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int e = lane + i * CUDA_WARP;
        uint2 bid;

        word[i] = 0;
        if (e >= a.experts)
            continue;
        a.logit[row * (size_t)a.experts + (size_t)e] = sum[i];
        bid = bid_of(a, a.bias[e], sum[i]);
        word[i] = bid.x;
        sum[i] = f32_from_bits(bid.y);
    }
    route_row<OWN>(
        a, row, word, [&](int i) { return sum[i]; }, sorted[warp]);
}

// Queue as many rows as scratch has room for.
static void rows_launch(struct queue *q, const struct route_args *a, int shares, int tiles)
{
    int width = tiles * MAT_TILE, blocks = (tiles + PAIR - 1) / PAIR * shares;
    int steps = (a->rows + ROWS - 1) / ROWS, ranges = (a->rows + RANGE - 1) / RANGE;
    int places = ((const struct cuda_device *)q->dev)->sms * PLACES / blocks;
    float *part = (float *)cuda_lane(q)->scratch;

    ranges = ranges > places ? ranges : places < steps ? places : steps;
    steps = (steps + ranges - 1) / ranges; // of a range
    launch(q, a->gate->dtype == DTYPE_F32 ? route_ranges<DTYPE_F32> : route_ranges<DTYPE_BF16>,
           dim3((unsigned)blocks, blocks_for((size_t)a->rows, steps * ROWS)), THREADS, 0, *a,
           *a->gate, shares, steps * ROWS, part);
    launch(q, a->experts <= OWN_FEW * CUDA_WARP ? route_ends<OWN_FEW> : route_ends<OWN_MANY>,
           blocks_for((size_t)a->rows, ENDS_WARPS), ENDS_WARPS * CUDA_WARP, 0, *a, shares, width,
           (const float *)part);
}

void route_by_shares(struct queue *q, const struct route_args *a)
{
    int shares = (a->gate->cols + SHARE - 1) / SHARE;
    int tiles = (a->experts + MAT_TILE - 1) / MAT_TILE;
    size_t row = (size_t)(shares * tiles * MAT_TILE) * sizeof(float);
    int most = (int)(cuda_lane(q)->scratch_bytes / row), rows;

    assert(most > 0); // even the scratch of a side lane holds 512 of the widest rows
    for (int r = 0; r < a->rows; r += rows) {
        struct route_args part = *a;

        rows = a->rows - r < most ? a->rows - r : most;
        part.rows = rows;
        part.x += (size_t)r * (size_t)a->gate->cols;
        part.logit += (size_t)r * (size_t)a->experts;
        part.id += (size_t)r * (size_t)a->k;
        part.weight += (size_t)r * (size_t)a->k;
        rows_launch(q, &part, shares, tiles);
    }
}
