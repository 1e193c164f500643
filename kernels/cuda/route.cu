// route.cu owns the router: logits of all experts and the choice of the best.
//
// One launch: a block has a tile of experts, a share of the inputs and up to ROWS rows; the block that
// comes last adds the shares up in order and chooses. Shares depend on the number of inputs alone.
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/order.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define ROWS 4                        // of a block
#define STEPS 10                      // loads of a lane
#define SHARE (WARPS * STEPS * 8)     // inputs of a block
#define OWN (EXPERTS_MAX / CUDA_WARP) // experts of a lane

__device__ static float router_score(float v)
{
    return sqrtf(v > 20 ? v : log1pf(expf(v)));
}

// A warp: the k largest of the words, listed by ascending id, ties to the lower id. score: without bias.
__device__ static void route_row(const struct route_args &a, size_t row, const uint32_t *word,
                                 const float *score, int *chosen)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    uint32_t own[OWN], taken = 0;
    float sum = 0;

    static_assert(OWN <= 32, "a bit of `taken` for each");
#pragma unroll
    for (int i = 0; i < OWN; i++)
        own[i] = lane + i * CUDA_WARP < a.experts ? word[lane + i * CUDA_WARP] : 0;
    for (int c = 0; c < a.k; c++) {
        uint32_t best = 0, most;
        int at = -1, id;

#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (lane + i * CUDA_WARP < a.experts && !(taken >> i & 1) &&
                (at < 0 || own[i] > best)) {
                best = own[i];
                at = i;
            }
        most = __reduce_max_sync(FULL_MASK, best);
        id = at >= 0 && best == most ? lane + at * CUDA_WARP : EXPERTS_MAX;
        id = __reduce_min_sync(FULL_MASK, id);
        if (id % CUDA_WARP == lane)
            taken |= 1u << id / CUDA_WARP;
        if (lane == 0)
            chosen[c] = id;
    }
    __syncwarp();
    for (int i = lane; i < a.k; i += CUDA_WARP) {
        int at = 0, id = chosen[i];

        for (int j = 0; j < a.k; j++)
            at += chosen[j] < id;
        a.id[row * (size_t)a.k + (size_t)at] = id;
        chosen[CHOICES_MAX + at] = id;
    }
    __syncwarp();
    for (int i = 0; i < a.k; i++)
        sum += score[chosen[CHOICES_MAX + i]];
    for (int i = lane; i < a.k; i += CUDA_WARP) {
        float s = score[chosen[CHOICES_MAX + i]];

        a.weight[row * (size_t)a.k + (size_t)i] = (a.norm ? s / (sum + 1e-20f) : s) * a.scale;
    }
}

// What a row's warp chooses from.
struct choice {
    uint32_t word[EXPERTS_MAX];
    float score[EXPERTS_MAX];
    int chosen[2 * CHOICES_MAX];
};

__device__ static void choice_put(const struct route_args &a, struct choice *c, int e, float logit)
{
    float s = router_score(logit * a.temp);

    c->score[e] = s;
    c->word[e] = order_word(s + a.bias[e]);
}

// A warp a row.
__global__ static void route_rows(struct route_args a)
{
    dependency_wait();
    __shared__ struct choice c;
    size_t row = blockIdx.x;

    for (int e = (int)threadIdx.x; e < a.experts; e += CUDA_WARP)
        choice_put(a, &c, e, a.logit[row * (size_t)a.experts + (size_t)e]);
    __syncwarp();
    route_row(a, row, c.word, c.score, c.chosen);
}

// A warp every eighth lot of 8 inputs of the block's share; four lanes have an input's 16 experts. The
// weights are on their way before the rows are there. Bound by the bytes of the gate.
template <enum dtype D>
__global__ static void __launch_bounds__(THREADS)
    route_tiles(struct route_args a, struct mat gate, int shares, float *part, uint32_t *tickets)
{
    __shared__ __align__(16) float warp_part[WARPS][ROWS][MAT_TILE];
    __shared__ float x[ROWS][SHARE];
    __shared__ struct choice choice[ROWS];
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int tile = (int)blockIdx.x / shares, share = (int)blockIdx.x % shares, k0 = share * SHARE;
    int r0 = (int)blockIdx.y * ROWS, rows = a.rows - r0 < ROWS ? a.rows - r0 : ROWS;
    int width = (a.experts + MAT_TILE - 1) / MAT_TILE * MAT_TILE, cols = gate.cols;
    float4 w[STEPS];

#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int k = k0 + (i * WARPS + warp) * 8 + lane / 4;

        w[i] = make_float4(0, 0, 0, 0);
        if (k < cols)
            w[i] = stored_four<D>(gate.data, ((size_t)tile * (size_t)cols + (size_t)k) * MAT_TILE +
                                                 (size_t)(lane % 4 * 4));
    }
    dependency_settle();
    for (int i = t; i < rows * SHARE; i += THREADS) {
        int k = k0 + i % SHARE;

        x[i / SHARE][i % SHARE] =
            k < cols ? a.x[(size_t)(r0 + i / SHARE) * (size_t)cols + (size_t)k] : 0;
    }
    __syncthreads();
    for (int r = 0; r < rows; r++) {
        float4 sum = make_float4(0, 0, 0, 0);

#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float v = x[r][(i * WARPS + warp) * 8 + lane / 4];

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
            *(float4 *)&warp_part[warp][r][lane * 4] = sum;
    }
    dependency_next(); // experts take all places that they find: until now others may need them
    __syncthreads();
    if (t < rows * MAT_TILE) {
        int r = t / MAT_TILE, n = t % MAT_TILE;
        float sum = warp_part[0][r][n];

        for (int i = 1; i < WARPS; i++)
            sum += warp_part[i][r][n];
        part[((size_t)(r0 + r) * (size_t)shares + (size_t)share) * (size_t)width +
             (size_t)(tile * MAT_TILE + n)] = sum;
    }
    if (!last_block(&tickets[blockIdx.y], gridDim.x))
        return;
    for (int i = t; i < rows * a.experts; i += THREADS) {
        int r = i / a.experts, e = i % a.experts;
        const float *p = part + (size_t)(r0 + r) * (size_t)(shares * width) + e;
        float sum = __ldcg(p);

        for (int s = 1; s < shares; s++)
            sum += __ldcg(p + s * width);
        a.logit[(size_t)(r0 + r) * (size_t)a.experts + (size_t)e] = sum;
        choice_put(a, &choice[r], e, sum);
    }
    __syncthreads();
    if (warp < rows)
        route_row(a, (size_t)(r0 + warp), choice[warp].word, choice[warp].score,
                  choice[warp].chosen);
}

// Whether the gate and the choice are one launch; false: they are not.
static bool route_whole(struct queue *q, const struct route_args *a)
{
    const struct mat *g = a->gate;
    int shares = (g->cols + SHARE - 1) / SHARE, lot = CUDA_TICKETS * ROWS;
    unsigned tiles = blocks_for((size_t)a->experts, MAT_TILE);
    size_t row = (size_t)shares * tiles * MAT_TILE * sizeof(float);
    size_t most = cuda_lane(q)->scratch_bytes / row;

    if ((g->dtype != DTYPE_F32 && g->dtype != DTYPE_BF16) || g->rows != a->experts || most < ROWS)
        return false;
    lot = (size_t)lot < most ? lot : (int)(most / ROWS) * ROWS;
    for (int r = 0; r < a->rows; r += lot) {
        struct route_args b = *a;
        dim3 grid(tiles * (unsigned)shares, 0);

        b.rows = a->rows - r < lot ? a->rows - r : lot;
        b.x += (size_t)r * (size_t)g->cols;
        b.logit += (size_t)r * (size_t)a->experts;
        b.id += (size_t)r * (size_t)a->k;
        b.weight += (size_t)r * (size_t)a->k;
        grid.y = blocks_for((size_t)b.rows, ROWS);
        launch(q, g->dtype == DTYPE_F32 ? route_tiles<DTYPE_F32> : route_tiles<DTYPE_BF16>, grid,
               THREADS, 0, b, *g, shares, (float *)cuda_lane(q)->scratch, cuda_lane(q)->tickets);
    }
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
    if (!a->gate || !route_whole(q, a)) {
        if (a->gate)
            cuda_matmul(q, &logits);
        launch(q, route_rows, a->rows, CUDA_WARP, 0, *a);
    }
    queue_note(q, "route");
}
