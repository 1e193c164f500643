// route.cu owns the router: logits of all experts and the choice of the best.
//
// One launch: a gang of blocks (a cluster) has a tile of experts, a block of it a share of the inputs with the tile's weights
// in registers. Blocks send their sums to the one that adds a row's up in order; whoever comes last with a tile of
// a row chooses. Shares depend on the number of inputs alone. routes.cu has many rows.
#include <cooperative_groups.h>

#include "kernels/cuda/route.cuh"

#define ROWS 4     // of a gang at a time
#define GROUPS 4   // gangs of a tile where rows are many
#define CHOOSES 32 // rows of a launch that also chooses, at most

// A warp a row.
template <int OWN> __global__ static void route_rows(struct route_args a)
{
    dependency_wait();
    __shared__ float sorted[CHOICES_MAX];
    size_t row = blockIdx.x;
    uint32_t word[OWN];
    float score[OWN];

#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int e = (int)threadIdx.x + i * CUDA_WARP;

        word[i] = 0;
        if (e < a.experts) {
            uint2 bid = bid_of(a, e, a.logit[row * (size_t)a.experts + (size_t)e]);

            word[i] = bid.x;
            score[i] = f32_from_bits(bid.y);
        }
    }
    route_row<OWN>(
        a, row, word, [&](int i) { return score[i]; }, sorted);
}

struct route_room {
    __align__(16) float x[2][ROWS][SHARE];
    __align__(16) float warp[WARPS][ROWS][MAT_TILE];
    float got[2][ROWS][SHARES_MAX]
             [MAT_TILE]; // sums of all shares, of the rows that this block adds up
    float sorted[WARPS][CHOICES_MAX];
};

// The block's inputs of `rows` rows from r0 on, zeros behind the last one, on their way.
__device__ static inline void rows_fetch(const struct route_args &a, int r0, int rows, int k0,
                                         int cols, float (*to)[SHARE])
{
    for (int i = (int)threadIdx.x; i < rows * (SHARE / 4); i += THREADS) {
        int r = i / (SHARE / 4), k = i % (SHARE / 4) * 4;
        bool there = k0 + k < cols;

        copy_async_some(shared_at(&to[r][k]),
                        a.x + (size_t)(r0 + r) * (size_t)cols + (there ? k0 + k : 0),
                        there ? 16 : 0);
    }
    copy_commit();
}

// A row's sums of a tile, by a warp.
__device__ static inline void row_add(const struct route_args &a, const float (*got)[MAT_TILE],
                                      size_t r, int tile, uint2 *bids)
{
    int lane = (int)threadIdx.x % CUDA_WARP, e = tile * MAT_TILE + lane;
    float sum = got[0][lane % MAT_TILE];

    if (lane >= MAT_TILE || e >= a.experts)
        return;
    for (int s = 1; s < (int)gridDim.x; s++)
        sum += got[s][lane];
    a.logit[r * (size_t)a.experts + (size_t)e] = sum;
    if (bids)
        bids[r * (size_t)a.experts + (size_t)e] = bid_of(a, e, sum);
}

// The choice of a row, by the warp that counts its last tile.
template <int OWN>
__device__ static void row_end(const struct route_args &a, size_t r, const uint2 *bids,
                               uint32_t *ticket, float *sorted)
{
    int lane = (int)threadIdx.x % CUDA_WARP, last = 0;
    uint32_t word[OWN], score[OWN];

    bids += r * (size_t)a.experts;
    if (lane == 0) {
        last = counter_trade(ticket) == gridDim.y - 1;
        if (last)
            *ticket = 0;
    }
    if (!__shfl_sync(FULL_MASK, last, 0))
        return;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int e = lane + i * CUDA_WARP;
        uint2 bid = e < a.experts ? __ldcg(bids + e) : make_uint2(0, 0);

        word[i] = bid.x;
        score[i] = bid.y;
    }
    route_row<OWN>( // many scores do not fit beside the words
        a, r, word,
        [&](int i) {
            return f32_from_bits(OWN == OWN_MANY ? __ldcg(&bids[lane + i * CUDA_WARP].y)
                                                 : score[i]);
        },
        sorted);
}

// Blocks in x are the shares of a gang, in y tiles, in z `each` rows. A warp every eighth lot of 8 inputs of the block's
// share; four lanes have an input's 16 experts. The weights are on their way before the rows are there. Bound
// by the time of its steps. Without bids there are logits alone.
template <enum dtype D, int OWN>
__global__ static void __launch_bounds__(THREADS, 3)
    route_gang(const __grid_constant__ route_args a, const __grid_constant__ mat gate, int each,
               uint2 *bids, uint32_t *tickets)
{
    __shared__ struct route_room m;
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int share = (int)blockIdx.x, tile = (int)blockIdx.y, k0 = share * SHARE, cols = gate.cols;
    int shares = (int)gridDim.x, begin = (int)blockIdx.z * each, n = min(each, a.rows - begin);
    float4 w[STEPS];

    gang_arrive(); // memory of a block that has not begun is nobody's
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int k = k0 + (i * WARPS + warp) * 8 + lane / 4;

        w[i] = make_float4(0, 0, 0, 0);
        if (k < cols)
            w[i] = stored_four<D>(gate.data, ((size_t)tile * (size_t)cols + (size_t)k) * MAT_TILE +
                                                 (size_t)(lane % 4 * 4));
    }
    dependency_settle();
    rows_fetch(a, begin, min(ROWS, n), k0, cols, m.x[0]);
#pragma unroll 1
    for (int r0 = 0, turn = 0; r0 < n; r0 += ROWS, turn ^= 1) {
        int rows = min(ROWS, n - r0);

        rows_fetch(a, begin + r0 + ROWS, min(ROWS, n - r0 - ROWS), k0, cols, m.x[turn ^ 1]);
        copy_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < rows; r++) {
            float4 sum = make_float4(0, 0, 0, 0);

#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                float v = m.x[turn][r][(i * WARPS + warp) * 8 + lane / 4];

                sum.x = fmaf(w[i].x, v, sum.x);
                sum.y = fmaf(w[i].y, v, sum.y);
                sum.z = fmaf(w[i].z, v, sum.z);
                sum.w = fmaf(w[i].w, v, sum.w);
            }
            for (int step = 4; step < CUDA_WARP; step *= 2) {
                sum.x += __shfl_xor_sync(FULL_MASK, sum.x, step);
                sum.y += __shfl_xor_sync(FULL_MASK, sum.y, step);
                sum.z += __shfl_xor_sync(FULL_MASK, sum.z, step);
                sum.w += __shfl_xor_sync(FULL_MASK, sum.w, step);
            }
            if (lane < 4)
                *(float4 *)&m.warp[warp][r][lane * 4] = sum;
        }
        if (r0 + ROWS >= n)
            dependency_next(); // experts take all places that they find: until now others may need them
        __syncthreads();
        if (r0 == 0)
            gang_wait();
        if (t < rows * MAT_TILE) {
            int r = t / MAT_TILE, to = (r0 + r) % shares;
            float sum = m.warp[0][r][t % MAT_TILE];

            for (int i = 1; i < WARPS; i++)
                sum += m.warp[i][r][t % MAT_TILE];
            *gang.map_shared_rank(&m.got[turn][r][share][t % MAT_TILE], to) = sum;
        }
        gang_meet();
        if (warp < rows && (r0 + warp) % shares == share)
            row_add(a, m.got[turn][warp], (size_t)(begin + r0 + warp), tile, bids);
    }
    copy_wait_all();
    if (!bids)
        return;
    __syncthreads();
    for (int i = warp * shares + share; i < n; i += WARPS * shares)
        row_end<OWN>(a, (size_t)(begin + i), bids, tickets + begin + i, m.sorted[warp]);
}

// Logits, or the choice too.
template <enum dtype D>
static void gang_launch(struct queue *q, const struct route_args *a, int shares, bool choose)
{
    int lots = (a->rows + ROWS - 1) / ROWS, groups = choose ? 1 : GROUPS;
    int each = (lots + groups - 1) / groups * ROWS;
    dim3 grid((unsigned)shares, blocks_for((size_t)a->experts, MAT_TILE),
              blocks_for((size_t)a->rows, each));

    launch_cluster(
        q, a->experts <= OWN_FEW * CUDA_WARP ? route_gang<D, OWN_FEW> : route_gang<D, OWN_MANY>,
        (unsigned)shares, grid, THREADS, 0, *a, *a->gate, each,
        choose ? (uint2 *)cuda_lane(q)->scratch : NULL, cuda_lane(q)->tickets);
}

static void choice_launch(struct queue *q, const struct route_args *a)
{
    launch(q, a->experts <= OWN_FEW * CUDA_WARP ? route_rows<OWN_FEW> : route_rows<OWN_MANY>,
           a->rows, CUDA_WARP, 0, *a);
}

// Whether a gang takes the gate; false: none does.
static bool route_by_gang(struct queue *q, const struct route_args *a)
{
    const struct mat *g = a->gate;
    int shares = (g->cols + SHARE - 1) / SHARE;
    bool choose = a->rows <= CHOOSES && cuda_lane(q)->scratch_bytes >=
                                            sizeof(uint2) * (size_t)a->rows * (size_t)a->experts;

    if ((g->dtype != DTYPE_F32 && g->dtype != DTYPE_BF16) || g->rows != a->experts ||
        g->cols % 4 != 0 || ((uintptr_t)a->x & 15) != 0 || shares > SHARES_MAX ||
        (shares > 1 && !((const struct cuda_device *)q->dev)->gangs))
        return false;
    if (route_by_shares(q, a))
        return true;
    if (g->dtype == DTYPE_F32)
        gang_launch<DTYPE_F32>(q, a, shares, choose);
    else
        gang_launch<DTYPE_BF16>(q, a, shares, choose);
    if (!choose)
        choice_launch(q, a);
    return true;
}

extern "C" void cuda_route(struct queue *q, const struct route_args *a)
{
    struct matmul_args logits = { .w = a->gate, .x = a->x, .y = a->logit, .rows = a->rows };

    if (queue_skips(q, a->rows))
        return;
    if (a->k < 1 || a->k > a->experts || a->k > CHOICES_MAX || a->experts > EXPERTS_MAX) {
        queue_fail(q, -EINVAL, "route: %d of %d experts, want at most %d of %d", a->k, a->experts,
                   CHOICES_MAX, EXPERTS_MAX);
        return;
    }
    if (!a->gate || !route_by_gang(q, a)) {
        if (a->gate)
            cuda_matmul(q, &logits);
        choice_launch(q, a);
    }
    queue_note(q, "route");
}
