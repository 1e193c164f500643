// index.cu owns the indexer where keys and queries are values of QI: scores on matrix units, and the
// exact best of them by all multiprocessors.
//
//   score_keys     order words of all competing entries, and how many have which first digit
//   count_second   of those in the digit that the bound lies in, how many have which second digit
//   collect        entries above the bound, and those that share its two digits; the block that comes
//                  last takes the best of these and lists all in ascending order
//
// Products of QI values are exact in f32 and in bf16 operands, so sums over a head's values are those
// of the reference as long as they are exact; heads are added in index order, multiply then add.
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/matrix.cuh"

#define DIM 128
#define STEPS (DIM / 16)
#define WARPS 4
#define THREADS (WARPS * CUDA_WARP)
#define LOT 32 // entries a warp takes at a time
#define HEADS_MAX 32
#define PICK_THREADS 512
#define TIES_SORTED 2048 // that the last block sorts in shared memory

// Digits of a key's high word: 11, 11 and 10 bits of ~word.
#define FIRST(word) (~(word) >> 21)
#define SECOND(word) (~(word) >> 10 & (DIGITS - 1))

// Of a row, zero between ops.
struct index_count {
    uint32_t first[DIGITS], second[DIGITS];
    uint32_t sure, ties, pad[2];
};
static_assert(sizeof(struct index_count) <= INDEX_COUNT, "room of a row");

// Lists of a row: entries above the bound, keys of those that tie with it so far.
struct index_lists {
    uint32_t *sure; // [topk]
    uint64_t *tie;  // [cap]
};

struct indexing {
    struct select_args a;
    int row0;
    struct index_count *count; // [rows]
    char *list;
    size_t list_bytes; // of a row
};

__device__ static struct index_lists lists_of(const struct indexing &x, int lot_row)
{
    char *at = x.list + (size_t)lot_row * x.list_bytes;

    return { (uint32_t *)(at + (size_t)x.a.keys.cap * sizeof(uint64_t)), (uint64_t *)at };
}

// Queries as bf16 pairs in the order of the operands: of each block of 32 values lane quarter t has
// values 8 t .. 8 t + 7, the j-th with the (j + 4)-th. All threads of the block.
#define QUERY_LINE (DIM / 2 + 4) // words of a head

template <int TILES>
__device__ static inline void queries_stage(const float *q, int heads, uint32_t *to)
{
    for (int i = (int)threadIdx.x; i < TILES * 8 * (DIM / 8); i += THREADS) {
        int h = i / (DIM / 8), at = i % (DIM / 8);
        float4 x = make_float4(0, 0, 0, 0), y = x;

        if (h < heads) {
            x = ((const float4 *)(q + (size_t)h * DIM))[2 * at];
            y = ((const float4 *)(q + (size_t)h * DIM))[2 * at + 1];
        }
        *(uint4 *)(to + h * QUERY_LINE + at * 4) = make_uint4(
            bf16_pair(x.x, y.x), bf16_pair(x.y, y.y), bf16_pair(x.z, y.z), bf16_pair(x.w, y.w));
    }
}

// The lane's right operands of eight heads.
__device__ static inline void query_load(const uint32_t *staged, uint32_t (&b)[STEPS][2])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

#pragma unroll
    for (int blk = 0; blk < DIM / 32; blk++) {
        uint4 u = *(const uint4 *)(staged + lane / 4 * QUERY_LINE + blk * 16 + lane % 4 * 4);

        b[2 * blk][0] = u.x;
        b[2 * blk][1] = u.y;
        b[2 * blk + 1][0] = u.z;
        b[2 * blk + 1][1] = u.w;
    }
}

// A warp LOT entries: two tiles of 16 keys against all heads. `hit` is the warp's, [LOT][HEADS_MAX + 1].
template <int TILES>
__device__ static void lot_scores(const struct select_args &a, const struct field &f, int slot,
                                  int first, const uint32_t (&q)[TILES][STEPS][2], float *hit)
{
    int lane = (int)threadIdx.x % CUDA_WARP, r = lane / 4, t = lane % 4;
    uint32_t code[2][2][DIM / 32], scale[2][2];

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = first + m * 16 + s * 8 + r;
            const uint32_t *row;

#pragma unroll
            for (int b = 0; b < DIM / 32; b++)
                code[m][s][b] = 0;
            scale[m][s] = 0x7f7f7f7fu;
            if (i >= f.size)
                continue;
            row = (const uint32_t *)state_row(a.keys, slot, entry_of(f, i));
#pragma unroll
            for (int b = 0; b < DIM / 32; b++)
                code[m][s][b] = row[b * 4 + t];
            scale[m][s] = row[DIM / 8];
        }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float dot[TILES][4] = {};

#pragma unroll
        for (int b = 0; b < DIM / 32; b++) {
            uint32_t v[2][4];

#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t by = scale_pair(scale[m][s] >> (8 * b) & 0xff);

#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[s][j] = bf16_times(e2m1_far(code[m][s][b] >> (4 * j)), by);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint32_t left[4] = { v[0][2 * k], v[1][2 * k], v[0][2 * k + 1],
                                           v[1][2 * k + 1] };

#pragma unroll
                for (int h = 0; h < TILES; h++)
                    multiply(dot[h], left, q[h][2 * b + k][0], q[h][2 * b + k][1]);
            }
        }
#pragma unroll
        for (int h = 0; h < TILES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                hit[(m * 16 + i / 2 * 8 + r) * (HEADS_MAX + 1) + h * 8 + t * 2 + i % 2] =
                    dot[h][i] < 0 ? 0 : dot[h][i];
    }
}

// Blocks in x share out a row's entries, blocks in y are rows. Bound by the decoding of keys and by
// their bytes.
template <int TILES>
__global__ static void __launch_bounds__(THREADS) score_keys(const __grid_constant__ indexing x)
{
    dependency_wait();
    __shared__ struct field f;
    __shared__ __align__(16) uint32_t staged[TILES * 8 * QUERY_LINE];
    __shared__ uint32_t count[DIGITS];
    __shared__ float hits[WARPS][LOT * (HEADS_MAX + 1)], wt[HEADS_MAX];
    const struct select_args &a = x.a;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = x.row0 + (int)blockIdx.y, slot = a.info[r].slot;
    uint32_t *word = (uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    const float *hit = hits[warp] + lane * (HEADS_MAX + 1);
    uint32_t q[TILES][STEPS][2];

    field_load(a, r, &f);
    if (!is_scored(a, f))
        return;
    queries_stage<TILES>(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, staged);
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        count[i] = 0;
    if ((int)threadIdx.x < HEADS_MAX)
        wt[threadIdx.x] =
            (int)threadIdx.x < a.heads ? a.wt[(size_t)r * (size_t)a.heads + threadIdx.x] : 0;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < TILES; h++)
        query_load(staged + h * 8 * QUERY_LINE, q[h]);
    for (int first = ((int)blockIdx.x * WARPS + warp) * LOT; first < f.size;
         first += (int)gridDim.x * WARPS * LOT) {
        float sum = 0;

        lot_scores<TILES>(a, f, slot, first, q, hits[warp]);
        __syncwarp();
#pragma unroll
        for (int h = 0; h < TILES * 8; h++) // behind the last head come zeros
            sum += wt[h] * hit[h];
        if (first + lane < f.size) {
            uint32_t w = order_word(a.scale * sum);

            word[first + lane] = w;
            atomicAdd(&count[FIRST(w)], 1);
        }
        __syncwarp();
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        if (count[i])
            atomicAdd(&x.count[blockIdx.y].first[i], count[i]);
}

// Entries that a row takes; all of a block's threads.
__device__ static int taken_of(const struct select_args &a, const struct field &f)
{
    return f.n <= a.topk ? 0 : a.topk < f.size ? a.topk : f.size;
}

__global__ static void __launch_bounds__(PICK_THREADS)
    count_second(const __grid_constant__ indexing x)
{
    dependency_wait();
    __shared__ struct field f;
    __shared__ struct order_count n;
    __shared__ uint32_t count[DIGITS];
    const struct select_args &a = x.a;
    const uint32_t *first = x.count[blockIdx.y].first;
    int r = x.row0 + (int)blockIdx.y, k;
    const uint32_t *word = (const uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    uint32_t digit;

    field_load(a, r, &f);
    k = taken_of(a, f);
    if (k == 0 || k == f.size)
        return;
    for (int i = (int)threadIdx.x; i < DIGITS; i += PICK_THREADS)
        count[i] = 0;
    digit_find(
        k, [=](int d) { return (int)__ldcg(first + d); }, &n); // and a barrier for count
    digit = (uint32_t)n.digit;
    for (int i = (int)(blockIdx.x * PICK_THREADS + threadIdx.x); i < f.size;
         i += (int)gridDim.x * PICK_THREADS) {
        uint32_t w = __ldcg(word + i);

        if (FIRST(w) == digit)
            atomicAdd(&count[SECOND(w)], 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += PICK_THREADS)
        if (count[i])
            atomicAdd(&x.count[blockIdx.y].second[i], count[i]);
}

// The `left` smallest of n tied keys are the first of `key`, in any order. All threads of the block.
__device__ static void ties_settle(const uint64_t *tie, int n, int left, uint32_t *out,
                                   uint64_t *key, struct order_count *count, int *part)
{
    if (n <= TIES_SORTED) {
        int room = pow2_at_least(n);

        for (int i = (int)threadIdx.x; i < room; i += PICK_THREADS)
            key[i] = i < n ? __ldcg(tie + i) : KEY_NONE;
        key_sort(key, room);
        for (int i = (int)threadIdx.x; i < left; i += PICK_THREADS)
            out[i] = (uint32_t)key_id(key[i]);
    } else {
        uint64_t cut = key_cut(
            n, left, [=](int i) { return __ldcg(tie + i); }, count);
        int done = 0, total;

        for (int first = 0; first < n; first += PICK_THREADS) {
            int i = first + (int)threadIdx.x;
            bool take = i < n && __ldcg(tie + i) <= cut;
            int at = block_place(take, part, &total);

            if (take)
                out[done + at] = (uint32_t)key_id(__ldcg(tie + i));
            done += total;
        }
    }
    __syncthreads();
}

struct collect_room {
    struct field f;
    struct order_count n;
    uint64_t key[TIES_SORTED];
    uint32_t id[INDEX_TOPK];
    int part[PICK_THREADS / CUDA_WARP];
};

__global__ static void __launch_bounds__(PICK_THREADS, 1)
    collect(const __grid_constant__ indexing x, uint32_t *tickets)
{
    dependency_wait();
    extern __shared__ __align__(16) unsigned char dynamic[];
    struct collect_room &m = *(struct collect_room *)dynamic;
    const struct select_args &a = x.a;
    struct index_count *count = &x.count[blockIdx.y];
    struct index_lists list = lists_of(x, (int)blockIdx.y);
    int r = x.row0 + (int)blockIdx.y, k, left, sure, room;
    const uint32_t *word = (const uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    int32_t *sel = a.sel + (size_t)r * (size_t)a.topk;
    uint32_t bound = 0;

    field_load(a, r, &m.f);
    k = taken_of(a, m.f);
    if (k == 0 || k == m.f.size) { // everything that competes
        if (blockIdx.x == 0)
            for (int i = (int)threadIdx.x; i < a.topk; i += PICK_THREADS)
                sel[i] = i < (k ? k : m.f.n) ? (k ? entry_of(m.f, i) : i) : -1;
    } else {
        digit_find(
            k, [=](int d) { return (int)__ldcg(count->first + d); }, &m.n);
        bound = (uint32_t)m.n.digit << DIGIT_BITS;
        left = m.n.left;
        __syncthreads();
        digit_find(
            left, [=](int d) { return (int)__ldcg(count->second + d); }, &m.n);
        bound |= (uint32_t)m.n.digit;
        for (int i = (int)(blockIdx.x * PICK_THREADS + threadIdx.x); i < m.f.size;
             i += (int)gridDim.x * PICK_THREADS) {
            uint32_t w = __ldcg(word + i);

            if (~w >> 10 < bound)
                list.sure[atomicAdd(&count->sure, 1)] = (uint32_t)i;
            else if (~w >> 10 == bound)
                list.tie[atomicAdd(&count->ties, 1)] = order_key(w, (uint32_t)i);
        }
    }
    if (!last_block(&tickets[blockIdx.y], gridDim.x))
        return;
    if (k > 0 && k < m.f.size) {
        sure = (int)__ldcg(&count->sure);
        for (int i = (int)threadIdx.x; i < sure; i += PICK_THREADS)
            m.id[i] = __ldcg(list.sure + i);
        ties_settle(list.tie, (int)__ldcg(&count->ties), k - sure, m.id + sure, m.key, &m.n,
                    m.part);
        room = pow2_at_least(k);
        for (int i = (int)threadIdx.x; i < room; i += PICK_THREADS)
            m.key[i] = i < k ? m.id[i] : KEY_NONE;
        key_sort(m.key, room);
        for (int i = (int)threadIdx.x; i < a.topk; i += PICK_THREADS)
            sel[i] = i < k ? entry_of(m.f, (int)m.key[i]) : -1;
    }
    for (int i = (int)threadIdx.x; i < (int)(sizeof(*count) / sizeof(uint32_t)); i += PICK_THREADS)
        ((uint32_t *)count)[i] = 0;
}

bool select_by_units(struct queue *q, const struct select_args *a, int row0, int rows)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    struct indexing x = { *a, row0, (struct index_count *)cuda_queue(q)->counts,
                          (char *)cuda_queue(q)->scratch,
                          (size_t)a->keys.cap * sizeof(uint64_t) + INDEX_TOPK * sizeof(uint32_t) };
    unsigned lots = blocks_for((size_t)a->keys.cap, WARPS * LOT), most = 4 * (unsigned)d->sms;
    unsigned scans = blocks_for((size_t)a->keys.cap, 2 * PICK_THREADS);
    void (*score)(indexing) = a->heads <= 8    ? score_keys<1>
                              : a->heads <= 16 ? score_keys<2>
                                               : score_keys<4>;

    if (a->in != CODEC_QI || a->keys.codec != CODEC_QI || a->dim != DIM || a->heads > HEADS_MAX ||
        a->topk > INDEX_TOPK || ((uintptr_t)a->q & 15) != 0 ||
        (((uintptr_t)a->keys.base | a->keys.slot_stride | a->keys.row_bytes) & 3) != 0 ||
        (size_t)rows * x.list_bytes > cuda_queue(q)->scratch_bytes)
        return false;
    launch(q, score, dim3(lots < most ? lots : most, (unsigned)rows), THREADS, 0, x);
    scans = scans < (unsigned)d->sms ? scans : (unsigned)d->sms;
    launch(q, count_second, dim3(scans, (unsigned)rows), PICK_THREADS, 0, x);
    launch(q, collect, dim3(scans, (unsigned)rows), PICK_THREADS, sizeof(struct collect_room), x,
           cuda_queue(q)->tickets);
    return true;
}
