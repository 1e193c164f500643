// moe.cu owns the order of picks, and the products of experts whose weights are f32 or f16: no operands of
// matrix instructions here. All else about experts is experts.cu's.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define LONG_LOT 64 // rows of a block

// A thread a pick counts the picks in front of it; a block takes all of them by and by.
__global__ static void sort_picks(struct moe_args a, int picks, struct member *order,
                                  int32_t *heads, int lot, struct cuda_alarm alarm)
{
    __shared__ int32_t expert[THREADS]; // -1: not here
    int i = (int)(blockIdx.x * THREADS + threadIdx.x), e = -1, before = 0, place = 0, missing = 0;
    int members = 0;

    dependency_wait();
    if (i < picks)
        e = a.id[i];
    if (e >= a.experts)
        alarm_set(alarm, FAULT_EXPERT, 0, i / a.k, 0, e, a.experts);
    else if (e >= 0 && !expert_is_here(a, e))
        alarm_set(alarm, FAULT_TYPE, 0, i / a.k, 0, (int)a.w1[e].dtype, 0);
    if (i == 0 && a.s1 &&
        !(expert_type_ok(a, *a.s1) && expert_type_ok(a, *a.s3) && expert_type_ok(a, *a.s2)))
        alarm_set(alarm, FAULT_TYPE, 0, 0, 0, (int)a.s1->dtype, 0);
    for (int base = 0; base < picks; base += THREADS) {
        int n = picks - base < THREADS ? picks - base : THREADS, t = (int)threadIdx.x;

        __syncthreads();
        expert[t] = t < n && expert_is_here(a, a.id[base + t]) ? a.id[base + t] : -1;
        __syncthreads();
        for (int j = 0; j < n; j++) {
            int o = expert[j];

            before += o >= 0 && (o < e || (o == e && base + j < i));
            place += o == e && base + j < i;
            members += o == e;
            missing += o < 0 && base + j < i;
        }
    }
    if (i >= picks)
        return;
    if (expert_is_here(a, e)) {
        order[before] = (struct member){ i, e, place, members - place };
        if (place % lot == 0)
            heads[1 + atomicAdd(heads, 1)] = before;
    } else {
        order[picks - 1 - missing].pick = -1;
    }
}

void expert_sort(struct queue *q, const struct moe_args *a, int picks, struct member *order,
                 int32_t *heads, int lot)
{
    cudaError_t e = cudaMemsetAsync(heads, 0, sizeof(*heads), cuda_stream(q));

    if (e != cudaSuccess)
        queue_fail(q, cuda_errno(e), "cuda: moe: %s", cudaGetErrorString(e));
    launch(q, sort_picks, blocks_for((size_t)picks, THREADS), THREADS, 0, *a, picks, order, heads,
           lot, cuda_queue(q)->alarm);
}

// A block 64 outputs of the rows of a lot, DOT_ROWS of them and a tile at a time. Bound by the bytes of the weights.
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

                if (p.role == STRIP_GATE_UP)
                    at = at < p.picks ? p.order[at].pick / p.a.k : at - p.picks;
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
    grid.z = (unsigned)p->lots + (p->a.s1 ? blocks_for((size_t)p->rows, LONG_LOT) : 0);
    if (kind == 1u << DTYPE_F32)
        long_rows<DTYPE_F32><<<grid, DOT_THREADS, 0, cuda_stream(q)>>>(*p);
    else
        long_rows<DTYPE_F16><<<grid, DOT_THREADS, 0, cuda_stream(q)>>>(*p);
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
