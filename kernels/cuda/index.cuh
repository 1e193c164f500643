// index - what index.cu and select.cu share: which entries compete in a row.
#ifndef TANDEM_KERNELS_CUDA_INDEX_CUH
#define TANDEM_KERNELS_CUDA_INDEX_CUH

#include "kernels/cuda/order.cuh"

// The entries that compete in a row, ascending: all of 0 .. n - 1, or those of the candidate
// blocks.
struct field {
    const int32_t *cand; // NULL: all
    int block;
    int n;    // visible entries
    int size; // competing entries
};

__device__ static inline int entry_of(const struct field &f, int i)
{
    return f.cand ? f.cand[i / f.block] * f.block + i % f.block : i;
}

// The field of row r where all entries compete.
__device__ static inline struct field field_all(const struct select_args &a, int r)
{
    int n = (a.info[r].pos + 1) / a.ratio;

    return { NULL, a.block, n, n };
}

// The field of row r into shared memory, by all threads. Only the last candidate block can be cut
// by n: its entries are the newest.
__device__ static inline void field_load(const struct select_args &a, int r, struct field *f)
{
    int n = (a.info[r].pos + 1) / a.ratio;
    const int32_t *cand = a.cand_in ? a.cand_in + (size_t)r * (size_t)a.blocks : NULL;

    if (threadIdx.x == 0) {
        f->cand = cand;
        f->block = a.block;
        f->n = n;
        f->size = cand ? 0 : n;
    }
    __syncthreads();
    for (int b = threadIdx.x; cand && b < a.blocks; b += (int)blockDim.x) {
        int left = n - cand[b] * a.block;

        if (cand[b] >= 0 && left > 0)
            atomicAdd(&f->size, left < a.block ? left : a.block);
    }
    __syncthreads();
}

__device__ static inline bool is_scored(const struct select_args &a, const struct field &f)
{
    return f.n > a.topk || (a.cand_out && (f.n + a.block - 1) / a.block > a.blocks);
}

// select_by_units - index.cu: queue scores and sel of rows row0 .. row0 + rows - 1, at most
// CUDA_WORKERS, where keys and queries are values of QI; false: nothing is queued, it cannot.
bool select_by_units(struct queue *q, const struct select_args *a, int row0, int rows);

cudaError_t index_limits(int shared_max);

#endif
