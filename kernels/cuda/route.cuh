// route - what the two routers, route.cu (few rows) and routes.cu (many), share: how the sums of a
// logit are cut, and the choice of the k best experts. The inputs of a row are cut into shares of
// SHARE, a share into lots of 8 inputs dealt to WARPS warps; a lane's sums, then lanes, warps and
// shares add up in a fixed order, so both routers give the same bits.
#ifndef TANDEM_KERNELS_CUDA_ROUTE_CUH
#define TANDEM_KERNELS_CUDA_ROUTE_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/order.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define STEPS 10                  // inputs of a lane in a share, a load each
#define SHARE (WARPS * STEPS * 8) // inputs of a block
#define SHARES_MAX 8
#define FEW 16     // rows up to which route.cu's clusters are used; above, routes.cu is faster
#define OWN_FEW 12 // experts of a lane: up to 384 experts, and with more
#define OWN_MANY (EXPERTS_MAX / CUDA_WARP)

// A thread's weights in a tile of 16 experts and the share from input k0 on. A warp has every
// eighth lot of 8 inputs; of a lot, lane l has input l / 4 and the four experts from 4 (l % 4) on.
// Zeros past the last input.
template <enum dtype D>
__device__ static inline void gate_load(const struct mat &gate, int tile, int k0,
                                        struct stored_four<D> (&w)[STEPS])
{
    int lane = (int)threadIdx.x % CUDA_WARP, k = k0 + (int)threadIdx.x / CUDA_WARP * 8 + lane / 4;
    const struct stored_four<D> *at =
        (const struct stored_four<D> *)gate.data +
        ((size_t)tile * (size_t)gate.cols + (size_t)k) * (MAT_TILE / 4) + (size_t)(lane % 4);

#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        w[i] = {};
        if (tile * MAT_TILE < gate.rows && k + i * WARPS * 8 < gate.cols)
            w[i] = at[i * WARPS * 8 * (MAT_TILE / 4)];
    }
}

__device__ static float router_score(float v)
{
    return sqrtf(v > 20 ? v : log1pf(expf(v)));
}

// An expert's order word for the choice, from its score with bias, plus 1 so that 0 means none; and
// the bits of its score without bias.
__device__ static inline uint2 bid_of(const struct route_args &a, float bias, float logit)
{
    float s = router_score(logit * a.temp);

    return make_uint2(order_word(s + bias) + 1, f32_bits(s));
}

// top_p: drop (id -1, score 0) every expert that follows, in descending order of score, after the
// scores of those before it have reached `enough`. Returns the sum of the scores that are left. A
// warp.
__device__ static inline float leave_out(const struct route_args &a, size_t row, float *sorted,
                                         float enough)
{
    int lane = (int)threadIdx.x % CUDA_WARP, turn = 0;
    uint32_t out = 0;
    float sum = 0;

    static_assert(CHOICES_MAX <= 32 * CUDA_WARP, "a bit of `out` for each of a lane's");
    for (int i = lane; i < a.k; i += CUDA_WARP, turn++) {
        float s = sorted[i], before = 0;

        for (int j = 0; j < a.k; j++)
            if (sorted[j] > s || (sorted[j] == s && j < i))
                before += sorted[j];
        out |= (uint32_t)(before >= enough && before > 0) << turn;
    }
    __syncwarp();
    turn = 0;
    for (int i = lane; i < a.k; i += CUDA_WARP, turn++)
        if (out >> turn & 1) {
            a.id[row * (size_t)a.k + (size_t)i] = -1;
            sorted[i] = 0;
        }
    __syncwarp();
    for (int i = 0; i < a.k; i++)
        sum += sorted[i];
    return sum;
}

// The choice of a row: the k largest words, ties to the lower id, written by ascending id. Lane l
// has the words of experts l, l + 32, ...; score(i) is the score of its i-th. A warp.
template <int OWN, typename S>
__device__ static void route_row(const struct route_args &a, size_t row, uint32_t (&word)[OWN],
                                 S score, float *sorted)
{
    int lane = (int)threadIdx.x % CUDA_WARP, before = 0;
    uint32_t taken = 0;
    float sum = 0;

    static_assert(OWN <= 32, "a bit of `taken` for each");
#pragma unroll 1
    for (int c = 0; c < a.k; c++) {
        uint32_t best = word[0], most;
        int id = EXPERTS_MAX;

#pragma unroll
        for (int i = 1; i < OWN; i++)
            best = word[i] > best ? word[i] : best;
        most = __reduce_max_sync(FULL_MASK, best);
#pragma unroll
        for (int i = OWN - 1; i >= 0; i--)
            id = word[i] == most ? lane + i * CUDA_WARP : id;
        id = __reduce_min_sync(FULL_MASK, id);
        if (id % CUDA_WARP == lane)
            taken |= 1u << id / CUDA_WARP;
#pragma unroll
        for (int i = 0; i < OWN; i++)
            word[i] = id == lane + i * CUDA_WARP ? 0 : word[i];
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t set = __ballot_sync(FULL_MASK, taken >> i & 1);

        if (taken >> i & 1) {
            int at = before + __popc(set & ((1u << lane) - 1));

            a.id[row * (size_t)a.k + (size_t)at] = lane + i * CUDA_WARP;
            sorted[at] = score(i);
        }
        before += __popc(set);
    }
    __syncwarp();
    for (int i = 0; i < a.k; i++)
        sum += sorted[i];
    if (a.top_p > 0)
        sum = leave_out(a, row, sorted, a.top_p * sum);
    for (int i = lane; i < a.k; i += CUDA_WARP)
        a.weight[row * (size_t)a.k + (size_t)i] =
            (a.norm ? sorted[i] / (sum + 1e-20f) : sorted[i]) * a.scale;
    __syncwarp();
}

// route_by_shares - routes.cu: logits and choices of any number of rows, where route_by_gang could
// take the gate, with its bits.
void route_by_shares(struct queue *q, const struct route_args *a);

#endif
