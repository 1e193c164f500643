// moe.cu owns the op's entry, the sorting of picks by expert, and the products of experts whose
// weights are f32 or f16, without the matrix unit (dot.cuh). All else about experts is
// experts.cu's.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/wide.cuh"

#define SORT_THREADS EXPERTS_MAX
#define LONG_LOT 64 // rows of a block, at most

// What sort_picks makes; see expert_sort.
struct sorting {
    int picks, places, lot, lots, grain;
    struct member *order;
    int32_t *place, *heads;
};

// Counting sort in one block: count the picks of each expert, prefix sums, then each pick takes the
// next place of its expert. The order within an expert depends on the threads and changes no
// result. Bound by latency.
__global__ static void __launch_bounds__(SORT_THREADS)
    sort_picks(struct moe_args a, struct sorting s, struct cuda_alarm alarm)
{
    __shared__ int count[EXPERTS_MAX], first[EXPERTS_MAX], given[EXPERTS_MAX];
    __shared__ int warp_sum[SORT_THREADS / CUDA_WARP], missing;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, picks = s.picks, n, sum;

    dependency_wait();
    count[t] = given[t] = 0;
    if (t == 0)
        missing = 0;
    for (int i = t; i * s.places < picks; i += SORT_THREADS)
        s.heads[(size_t)i * (size_t)(s.lots + 1)] = 0;
    __syncthreads();
    for (int i = t; i < picks; i += SORT_THREADS) {
        int e = a.id[i];

        if (e >= a.experts)
            alarm_set(alarm, FAULT_EXPERT, 0, i / a.k, 0, e, a.experts);
        else if (e >= 0 && !expert_is_here(a, e))
            alarm_set(alarm, FAULT_TYPE, 0, i / a.k, 0, (int)a.w1[e].dtype, 0);
        else if (e >= 0)
            atomicAdd(&count[e], 1);
    }
    if (t == 0 && a.s1 &&
        !(expert_type_ok(a, *a.s1) && expert_type_ok(a, *a.s3) && expert_type_ok(a, *a.s2)))
        alarm_set(alarm, FAULT_TYPE, 0, 0, 0, (int)a.s1->dtype, 0);
    __syncthreads();
    n = sum = count[t];
    for (int step = 1; step < CUDA_WARP; step *= 2) {
        int o = __shfl_up_sync(FULL_MASK, sum, step);

        sum += lane >= step ? o : 0;
    }
    if (lane == CUDA_WARP - 1)
        warp_sum[t / CUDA_WARP] = sum;
    __syncthreads();
    for (int w = 0; w < t / CUDA_WARP; w++)
        sum += warp_sum[w];
    first[t] = sum - n;
    __syncthreads();
    for (int i = t; i < picks; i += SORT_THREADS) {
        int e = a.id[i];

        if (expert_is_here(a, e)) {
            int at = first[e] + atomicAdd(&given[e], 1), pass = at / s.places;
            int begin = pass * s.places, end = begin + s.places, last = first[e] + count[e];

            begin = first[e] > begin ? first[e] : begin; // the expert's first place in the pass
            s.order[at] = (struct member){ i, e, (last < end ? last : end) - at, 0 };
            s.place[i] = at;
            if (at == begin || (at - (begin - begin % s.grain)) % s.lot == 0) {
                int32_t *heads = s.heads + (size_t)pass * (size_t)(s.lots + 1);

                heads[1 + atomicAdd(heads, 1)] = at;
            }
        } else {
            s.order[picks - 1 - atomicAdd(&missing, 1)].pick = -1;
            s.place[i] = -1;
        }
    }
}

void expert_sort(struct queue *q, const struct moe_args *a, int picks, int places, int lot,
                 int lots, int grain, struct member *order, int32_t *place, int32_t *heads)
{
    struct sorting s = { picks, places, lot, lots, grain, order, place, heads };

    launch(q, sort_picks, 1, SORT_THREADS, 0, *a, s, cuda_queue(q)->alarm);
}

// A block 64 outputs for the rows of a lot, one tile and DOT_ROWS rows at a time. Bound by the
// bytes of the weights.
template <enum dtype D>
__global__ static void long_rows(const __grid_constant__ struct strip_launch p)
{
    __shared__ float part[DOT_WARPS * DOT_ROWS * MAT_TILE];
    int t = (int)threadIdx.x;
    struct strip_job j;

    if (!job_expert(p, 1u << D, LONG_LOT, &j))
        return;
    for (int n = 0; n < 64 && j.column + n < j.w.rows; n += MAT_TILE)
        for (int first = 0; first < j.n; first += DOT_ROWS) {
            const float *x[DOT_ROWS];
            int row = first + t / MAT_TILE;
            float sum;

#pragma unroll
            for (int i = 0; i < DOT_ROWS; i++) {
                int at = j.z0 + (first + i < j.n ? first + i : first);

                if (p.role == STRIP_GATE_UP) {
                    at += p.first;
                    at = at < p.picks ? p.order[at].pick / p.a.k : at - p.picks;
                }
                x[i] = p.from + (size_t)at * (size_t)p.ldfrom;
            }
            sum =
                dot_tile<D, DOT_ROWS>(mat_tile(j.w, (j.column + n) / MAT_TILE), j.w.cols, x, part);
            if (t < DOT_ROWS * MAT_TILE && row < j.n)
                p.z[j.z + (size_t)(j.z0 + row) * (size_t)p.ldz +
                    (size_t)(j.column + n + t % MAT_TILE)] = sum;
        }
}

void long_launch(struct queue *q, uint32_t kind, const struct strip_launch *p, dim3 grid)
{
    grid.z = (unsigned)(p->lots + shared_lots(*p, LONG_LOT));
    if (grid.z == 0)
        return;
    if (kind == 1u << DTYPE_F32)
        launch_behind(cuda_stream(q), long_rows<DTYPE_F32>, grid, DOT_THREADS, 0, *p);
    else
        launch_behind(cuda_stream(q), long_rows<DTYPE_F16>, grid, DOT_THREADS, 0, *p);
}

extern "C" void cuda_moe(struct queue *q, const struct moe_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->experts < 1 || a->experts > EXPERTS_MAX || a->k < 1 || a->k > CHOICES_MAX) {
        queue_fail(q, -EINVAL, "moe: %d of %d experts, want at most %d of %d", a->k, a->experts,
                   CHOICES_MAX, EXPERTS_MAX);
        return;
    }
    strip_moe(q, a);
}
