// route.cu owns the router: logits of all experts and the choice of the k best of each row.
// routes.cu has many rows.
//
// Up to FEW rows take one launch, grid (shares, tiles). A cluster has a tile of 16 experts, each of
// its blocks a share of the inputs (split-K) with the tile's weights in registers, loaded before
// dependency_settle. Of row r, block r % shares of every cluster gets the partial sums through
// distributed shared memory, adds them in order and writes the tile's experts to global memory as a
// list in descending order. The warp that counts the row's last list merges them: k times the best
// of the lists' heads. Shares depend on the number of inputs alone. Bound by latency.
#include "kernels/cuda/route.cuh"

#define ROWS 4 // rows of a step
#define MORE 8 // rows of a step where a call has more than ROWS

// The choice alone, from logits. A block of one warp a row. Bound by latency.
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
            uint2 bid = bid_of(a, a.bias[e], a.logit[row * (size_t)a.experts + (size_t)e]);

            word[i] = bid.x;
            score[i] = f32_from_bits(bid.y);
        }
    }
    route_row<OWN>(
        a, row, word, [&](int i) { return score[i]; }, sorted);
}

// An entry of a tile's list: order word (bid_of), score and id of an expert.
struct alignas(16) bid {
    uint32_t word, score;
    int32_t id, unused;
};
static_assert(sizeof(struct bid) == sizeof(uint4), "a copy each");

// Entries that a block can hold for the rows that its warps choose at the same time.
#define ROOM (2 * ROWS * SHARE * (int)sizeof(float) / (int)sizeof(struct bid))

// The choice of a row: ids and scores in the order in which they were found, and scores sorted by
// id. Unused ids are INT32_MAX and unused sorted scores 0, so that loops may run over them.
struct choice {
    alignas(16) int32_t id[CHOICES_MAX];
    float score[CHOICES_MAX];
    alignas(16) float sorted[CHOICES_MAX];
};

// R: rows of a step.
template <int R> struct route_room {
    union {
        alignas(16) float x[2][R][SHARE];
        struct { // once the rows are not needed any more
            struct bid list[ROOM];
            struct choice choice[R > ROWS ? WARPS : 0];
        };
    };
    alignas(16) float warp[WARPS][R][MAT_TILE];
    alignas(16) float got[FEW + SHARES_MAX]
                         [MAT_TILE]; // [row of the block][share] sums that other blocks send
    uint64_t come[FEW];              // a barrier for each of these rows
    struct choice early[R > ROWS ? 0 : WARPS];

    __device__ struct choice &choice_of(int warp)
    {
        return R > ROWS ? choice[warp] : early[warp];
    }
};

// Request the block's share of `rows` rows from r0 on, zeros past the last input.
__device__ static inline void rows_fetch(const struct route_args &a, int r0, int rows, int k0,
                                         int cols, float (*to)[SHARE])
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * (SHARE / 4); i += THREADS) {
        int r = i / (SHARE / 4), k = i % (SHARE / 4) * 4;
        bool there = k0 + k < cols;

        copy_async_some(shared_at(&to[r][k]),
                        a.x + (size_t)(r0 + r) * (size_t)cols + (there ? k0 + k : 0),
                        there ? 16 : 0);
    }
    copy_commit();
}

// Add an input times its weights for the lane's four experts.
__device__ static inline void row_add(const float4 &w, float v, float *sum)
{
    sum[0] = fmaf(w.x, v, sum[0]);
    sum[1] = fmaf(w.y, v, sum[1]);
    sum[2] = fmaf(w.z, v, sum[2]);
    sum[3] = fmaf(w.w, v, sum[3]);
}

// Reduce two rows' sums over the eight lanes that have the same experts, as a transposing
// butterfly: each step halves the values that a lane keeps. The order of additions is that of a
// plain butterfly. A lane ends with row lane / 4 % 2 and expert lane / 8 % 2 * 2 + lane / 16 of its
// four.
__device__ static inline float lanes_fold(float (&s)[8])
{
#pragma unroll
    for (int n = 4, step = 4; n > 0; n /= 2, step *= 2) {
        bool high = threadIdx.x & (unsigned)step;

#pragma unroll
        for (int i = 0; i < n; i++) {
            float other = __shfl_xor_sync(FULL_MASK, high ? s[i] : s[i + n], step);

            s[i] = (high ? s[i + n] : s[i]) + other;
        }
    }
    return s[0];
}

// A warp: add a row's shares for a tile, store the logits, and write the tile's list, ties by
// ascending id; entry c of tile t is list[c * tiles + t]. An expert's rank is the number of larger
// ones: two lanes have each expert and compare it with half of the others each.
__device__ static inline void tile_end(const struct route_args &a, const float (*got)[MAT_TILE],
                                       int shares, size_t r, int e, float bias, struct bid *list)
{
    int lane = (int)threadIdx.x % CUDA_WARP, mine = lane % MAT_TILE;
    int half = lane / MAT_TILE * (MAT_TILE / 2), place = 0;
    float sum = got[0][mine];
    uint2 bid = make_uint2(0, 0);

#pragma unroll
    for (int s = 1; s < SHARES_MAX; s++)
        sum = s < shares ? sum + got[s][mine] : sum;
    if (e < a.experts)
        bid = bid_of(a, bias, sum);
#pragma unroll
    for (int i = half; i < half + MAT_TILE / 2; i++) {
        uint32_t other = __shfl_sync(FULL_MASK, bid.x, i);

        place += other > bid.x || (other == bid.x && i < mine);
    }
    place += __shfl_xor_sync(FULL_MASK, place, MAT_TILE);
    if (lane >= MAT_TILE || e >= a.experts)
        return;
    if (place < a.k)
        *(uint4 *)(list + place * (int)gridDim.y) = make_uint4(bid.x, bid.y, (uint32_t)e, 0);
    a.logit[r * (size_t)a.experts + (size_t)e] = sum;
}

// A warp: merge a row's lists, `each` entries long; a lane has PER lists, those of tiles from PER *
// lane on, and keeps the first two entries of each in registers.
template <int PER>
__device__ static inline void lists_choose(const struct route_args &a, int tiles, int each,
                                           const struct bid *list, struct choice *choice)
{
    int lane = (int)threadIdx.x % CUDA_WARP, next[PER] = {};
    struct bid head[PER], second[PER] = {};
    auto take = [&](int i) {
        int tile = lane * PER + i, left = a.experts - tile * MAT_TILE;

        head[i] = second[i];
        second[i].word = 0;
        if (next[i] < each && next[i] < left)
            second[i] = list[next[i] * tiles + tile];
        next[i]++;
    };

#pragma unroll
    for (int i = 0; i < PER; i++) {
        take(i);
        take(i);
    }
#pragma unroll 1
    for (int c = 0; c < a.k; c++) {
        uint32_t most = head[0].word, all, who;
        bool mine;

#pragma unroll
        for (int i = 1; i < PER; i++)
            most = head[i].word > most ? head[i].word : most;
        all = __reduce_max_sync(FULL_MASK, most);
        who = __ballot_sync(FULL_MASK, most == all);
        mine = most == all && (who & ((1u << lane) - 1)) == 0; // ties go to the lowest lane
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (mine && head[i].word == all) {
                choice->id[c] = head[i].id;
                choice->score[c] = f32_from_bits(head[i].score);
                take(i);
                mine = false;
            }
    }
    __syncwarp();
}

// Count a list of the row; the warp that counts the last one makes the row's choice.
template <int PER>
__device__ static void row_end(const struct route_args &a, size_t r, const struct bid *from,
                               uint32_t *ticket, struct bid *list, struct choice *choice)
{
    int lane = (int)threadIdx.x % CUDA_WARP, last = 0, tiles = (int)gridDim.y;
    int each = a.k < MAT_TILE ? a.k : MAT_TILE;
    float sum = 0;

    __syncwarp();
    if (lane == 0) {
        last = counter_trade(ticket) == gridDim.y - 1;
        if (last)
            *ticket = 0;
    }
    if (!__shfl_sync(FULL_MASK, last, 0))
        return;
    __syncwarp(); // passes on what lane 0 acquired
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll 4
        for (int c = 0, at = lane * PER + i; lane * PER + i < tiles && c < each; c++, at += tiles)
            copy_async((uint4 *)(list + at), (const uint4 *)(from + at));
    copy_wait_all();
    lists_choose<PER>(a, tiles, each, list, choice);
#pragma unroll 1
    for (int c = lane; c < a.k; c += CUDA_WARP) {
        int id = choice->id[c], at = 0;

#pragma unroll 1
        for (int i = 0; i < a.k; i += 8)
#pragma unroll
            for (int j = i; j < i + 8; j++)
                at += choice->id[j] < id;
        choice->sorted[at] = choice->score[c];
        a.id[r * (size_t)a.k + (size_t)at] = id;
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < a.k; i += 8)
#pragma unroll
        for (int j = i; j < i + 8; j++)
            sum += choice->sorted[j];
    if (a.top_p > 0)
        sum = leave_out(a, r, choice->sorted, a.top_p * sum);
#pragma unroll 1
    for (int i = lane; i < a.k; i += CUDA_WARP)
        a.weight[r * (size_t)a.k + (size_t)i] =
            (a.norm ? choice->sorted[i] / (sum + 1e-20f) : choice->sorted[i]) * a.scale;
    __syncwarp();
}

// A warp: leave all entries unused.
__device__ static inline void choice_clear(struct choice &choice)
{
    for (int i = (int)threadIdx.x % CUDA_WARP; i < CHOICES_MAX; i += CUDA_WARP) {
        choice.id[i] = INT32_MAX;
        choice.sorted[i] = 0;
    }
}

// Blocks in x are the shares of a cluster, in y tiles. Threads have weights as gate_load says,
// requested before dependency_settle; rows come R at a time by cp.async, double-buffered. Bound
// by latency.
template <enum dtype D, int PER, int R>
__global__ static void __launch_bounds__(THREADS, 3)
    route_gang(const __grid_constant__ route_args a, const __grid_constant__ mat gate,
               struct bid *lists, uint32_t *tickets)
{
    __shared__ struct route_room<R> m;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int share = (int)blockIdx.x, tile = (int)blockIdx.y, k0 = share * SHARE, cols = gate.cols;
    int shares = (int)gridDim.x, tiles = (int)gridDim.y, e = tile * MAT_TILE + lane % MAT_TILE;
    int each = a.k < MAT_TILE ? a.k : MAT_TILE;
    int to = t / (MAT_TILE / 4), of = 0; // block that gets the sums, and which of its rows it is
    struct stored_four<D> stored[STEPS];
    float4 w[STEPS];
    float bias = 0;

    gate_load<D>(gate, tile, k0, stored);
    if (e < a.experts)
        bias = a.bias[e];
    if (R == ROWS)
        choice_clear(m.choice_of(warp));
    if (t == 0) {
        for (int i = 0; share + i * shares < a.rows; i++) {
            barrier_init(&m.come[i], 1);
            barrier_expect(&m.come[i], shares * MAT_TILE * (int)sizeof(float));
        }
        barrier_publish();
    }
    __syncwarp();
    gang_begin(); // a block's shared memory may be written only once the block has started
    dependency_settle();
    rows_fetch(a, 0, min(R, a.rows), k0, cols, m.x[0]);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        w[i] = four_values<D>(stored[i]);
#pragma unroll 1
    for (int r0 = 0, turn = 0; r0 < a.rows; r0 += R, turn ^= 1) {
        int rows = min(R, a.rows - r0);

        rows_fetch(a, r0 + R, min(R, a.rows - r0 - R), k0, cols, m.x[turn ^ 1]);
        copy_wait<1>();
        __syncthreads();
        int r = 0;
#pragma unroll 1
        for (; R > ROWS && r + 3 < rows; r += 4) {
            float s[2][8] = {};

#pragma unroll
            for (int i = 0; i < STEPS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    row_add(w[i], m.x[turn][r + j][(i * WARPS + warp) * 8 + lane / 4],
                            s[j / 2] + j % 2 * 4);
#pragma unroll
            for (int j = 0; j < 2; j++)
                m.warp[warp][r + 2 * j + lane / 4 % 2]
                      [lane % 4 * 4 + lane / 8 % 2 * 2 + lane / 16] = lanes_fold(s[j]);
        }
#pragma unroll 1
        for (; r + 1 < rows; r += 2) {
            float s[8] = {};

#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int k = (i * WARPS + warp) * 8 + lane / 4;

                row_add(w[i], m.x[turn][r][k], s);
                row_add(w[i], m.x[turn][r + 1][k], s + 4);
            }
            m.warp[warp][r + lane / 4 % 2][lane % 4 * 4 + lane / 8 % 2 * 2 + lane / 16] =
                lanes_fold(s);
        }
        if (r < rows) {
            float s[4] = {};

#pragma unroll
            for (int i = 0; i < STEPS; i++)
                row_add(w[i], m.x[turn][r][(i * WARPS + warp) * 8 + lane / 4], s);
            for (int step = 4; step < CUDA_WARP; step *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[i] += __shfl_xor_sync(FULL_MASK, s[i], step);
            if (lane < 4)
                *(float4 *)&m.warp[warp][r][lane * 4] = make_float4(s[0], s[1], s[2], s[3]);
        }
        if (r0 + R >= a.rows)
            dependency_next(); // not earlier: the experts' blocks would take others' places
        __syncthreads();
        if (r0 == 0)
            gang_wait();
        if (t < rows * (MAT_TILE / 4)) {
            int r = t / (MAT_TILE / 4), at = t % (MAT_TILE / 4) * 4;
            float4 sum = *(const float4 *)&m.warp[0][r][at];

#pragma unroll
            for (int i = 1; i < WARPS; i++) {
                float4 v = *(const float4 *)&m.warp[i][r][at];

                sum.x += v.x;
                sum.y += v.y;
                sum.z += v.z;
                sum.w += v.w;
            }
            for (; to >= shares; to -= shares)
                of++;
            if (shares > 1)
                peer_send(&m.got[of * shares + share][at], sum, &m.come[of], to);
            else // a launch without clusters
                *(float4 *)&m.got[of][at] = sum;
            to += R;
        }
    }
    if (shares == 1)
        __syncthreads();
    for (of = warp; share + of * shares < a.rows; of += WARPS) {
        int r = share + of * shares;
        struct bid *list = lists + (size_t)r * (size_t)(tiles * each);

        if (R > ROWS)
            choice_clear(m.choice_of(warp));
        if (shares > 1)
            barrier_wait(&m.come[of], 0);
        tile_end(a, &m.got[of * shares], shares, (size_t)r, e, bias, list + tile);
        row_end<PER>(a, (size_t)r, list, tickets + r, m.list + warp * tiles * each,
                     &m.choice_of(warp));
    }
}

template <enum dtype D>
static void gang_launch(struct queue *q, const struct route_args *a, int shares, int tiles)
{
    auto narrow = a->rows > ROWS ? route_gang<D, 1, MORE> : route_gang<D, 1, ROWS>;
    auto wide = a->rows > ROWS ? route_gang<D, 2, MORE> : route_gang<D, 2, ROWS>;

    launch_cluster(q, tiles <= CUDA_WARP ? narrow : wide, (unsigned)shares,
                   dim3((unsigned)shares, (unsigned)tiles), THREADS, 0, *a, *a->gate,
                   (struct bid *)cuda_lane(q)->scratch, cuda_lane(q)->tickets);
}

static void choice_launch(struct queue *q, const struct route_args *a)
{
    launch(q, a->experts <= OWN_FEW * CUDA_WARP ? route_rows<OWN_FEW> : route_rows<OWN_MANY>,
           a->rows, CUDA_WARP, 0, *a);
}

// Queue the router for gates that fit the clusters' scheme; false: this one does not.
static bool route_by_gang(struct queue *q, const struct route_args *a)
{
    const struct mat *g = a->gate;
    int shares = (g->cols + SHARE - 1) / SHARE, tiles = (a->experts + MAT_TILE - 1) / MAT_TILE;
    int each = a->k < MAT_TILE ? a->k : MAT_TILE; // of a list
    int choose = (FEW + shares - 1) / shares;     // warps of a block that choose

    static_assert(EXPERTS_MAX <= 2 * CUDA_WARP * MAT_TILE, "a lane has two tiles at most");
    if ((g->dtype != DTYPE_F32 && g->dtype != DTYPE_BF16) || g->rows != a->experts ||
        g->cols % 4 != 0 || ((uintptr_t)a->x & 15) != 0 || shares > SHARES_MAX ||
        (shares > 1 && !((const struct cuda_device *)q->dev)->gangs) ||
        (choose < WARPS ? choose : WARPS) * tiles * each > ROOM)
        return false;
    if (a->rows > FEW)
        route_by_shares(q, a);
    else if (g->dtype == DTYPE_F32)
        gang_launch<DTYPE_F32>(q, a, shares, tiles);
    else
        gang_launch<DTYPE_BF16>(q, a, shares, tiles);
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
