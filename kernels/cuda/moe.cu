// moe.cu owns the order of picks, and the experts where all weights are plain; experts.cu has the
// others.
//
// Three launches for plain experts: picks are sorted by expert, hidden values are made for up to
// GROUP picks of an expert at a time, and outputs are summed row by row, a row's experts in
// ascending order, then the shared one. Sums of a pick do not depend on the picks beside it.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/strip.cuh"

#define THREADS 256
#define GROUP 4 // picks that share an expert's weights while they are read

// What the launches of one call share. A pick is row * k + place; its hidden values are at hidden +
// pick * inter, those of the shared expert for row r at hidden + (picks + r) * inter.
struct experts {
    struct moe_args a;
    int picks;
    float *hidden;
    struct member *order; // as expert_sort leaves it
};

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
        if (heads && place % lot == 0)
            heads[1 + atomicAdd(heads, 1)] = before;
    } else {
        order[picks - 1 - missing].pick = -1;
    }
}

void expert_sort(struct queue *q, const struct moe_args *a, int picks, struct member *order,
                 int32_t *heads, int lot)
{
    if (heads)
        cudaMemsetAsync(heads, 0, sizeof(*heads), cuda_stream(q));
    launch(q, sort_picks, blocks_for((size_t)picks, THREADS), THREADS, 0, *a, picks, order, heads,
           lot, cuda_queue(q)->alarm);
}

// A block: a tile of the hidden values of up to RB picks of one expert, those from order[y] on if
// that is where a group begins; behind the picks, of RB rows of the shared expert. Bound by the
// bytes of the weights.
template <int RB> __global__ static void hidden_tiles(struct experts x)
{
    dependency_wait();
    __shared__ float part[DOT_WARPS * RB * MAT_TILE];
    const struct moe_args &a = x.a;
    int y = (int)blockIdx.y, tile = (int)blockIdx.x, shared = y >= x.picks, n = 0, r, c;
    struct mat w1, w3;
    const float *in[RB];
    float gate, up, weight;

    if (shared) {
        int row = (y - x.picks) * RB;

        w1 = *a.s1;
        w3 = *a.s3;
        n = a.rows - row < RB ? a.rows - row : RB;
#pragma unroll
        for (int i = 0; i < RB; i++)
            in[i] = a.x + (size_t)(i < n ? row + i : row) * (size_t)w1.cols;
    } else {
        struct member m = x.order[y];

        if (m.pick < 0 || m.place % RB != 0)
            return;
        n = m.left < RB ? m.left : RB;
        w1 = a.w1[m.expert];
        w3 = a.w3[m.expert];
#pragma unroll
        for (int i = 0; i < RB; i++) {
            int pick = i < n ? x.order[y + i].pick : m.pick; // an expert's members lie side by side

            in[i] = a.x + (size_t)(pick / a.k) * (size_t)w1.cols;
        }
    }
    if (tile * MAT_TILE >= w1.rows)
        return;
    gate = dot_any<RB>(w1, tile, in, part);
    up = dot_any<RB>(w3, tile, in, part);
    r = (int)threadIdx.x / MAT_TILE;
    c = tile * MAT_TILE + (int)threadIdx.x % MAT_TILE;
    if (r >= n || c >= w1.rows)
        return;
    r = shared ? (y - x.picks) * RB + r : x.order[y + r].pick;
    weight = shared ? 1 : a.weight[r];
    r += shared ? x.picks : 0;
    x.hidden[(size_t)r * (size_t)a.inter + (size_t)c] =
        swiglu(rounded(gate, a.round), rounded(up, a.round), weight, a.limit, a.round);
}

// A block: a tile of a row's outputs. Bound by the bytes of the weights.
__global__ static void output_tiles(struct experts x)
{
    dependency_wait();
    __shared__ float part[DOT_WARPS * MAT_TILE];
    __shared__ int sorted[CHOICES_MAX];
    const struct moe_args &a = x.a;
    int row = (int)blockIdx.y, tile = (int)blockIdx.x, t = (int)threadIdx.x;
    int n = tile * MAT_TILE + t % MAT_TILE;
    const int32_t *id = a.id + (size_t)row * (size_t)a.k;
    float y = 0;

    if (t < a.k) {
        int at = 0;

        for (int j = 0; j < a.k; j++)
            at += id[j] < id[t] || (id[j] == id[t] && j < t);
        sorted[at] = t;
    }
    __syncthreads();
    for (int i = 0; i < a.k; i++) {
        int e = id[sorted[i]];
        const float *in[1] = { x.hidden +
                               ((size_t)row * (size_t)a.k + (size_t)sorted[i]) * (size_t)a.inter };

        if (expert_is_here(a, e))
            y += dot_any<1>(a.w2[e], tile, in, part);
    }
    if (a.s2) {
        const float *in[1] = { x.hidden + (size_t)(x.picks + row) * (size_t)a.inter };

        y += dot_any<1>(*a.s2, tile, in, part);
    }
    if (t < MAT_TILE && n < a.dim)
        a.y[(size_t)row * (size_t)a.dim + (size_t)n] = y;
}

static void hidden_launch(struct queue *q, const struct experts *x)
{
    unsigned tiles = blocks_for((size_t)x->a.inter, MAT_TILE), lots = (unsigned)x->picks;

    if (x->a.rows == 1)
        launch(q, hidden_tiles<1>, dim3(tiles, lots + (x->a.s1 != NULL)), DOT_THREADS, 0, *x);
    else
        launch(q, hidden_tiles<GROUP>,
               dim3(tiles, lots + (x->a.s1 ? blocks_for((size_t)x->a.rows, GROUP) : 0)),
               DOT_THREADS, 0, *x);
}

extern "C" void cuda_moe(struct queue *q, const struct moe_args *a)
{
    struct experts x = { *a, a->rows * a->k, a->scratch, NULL };
    size_t room = cuda_queue(q)->scratch_bytes;

    if (queue_skips(q, a->rows))
        return;
    x.order = (struct member *)cuda_queue(q)->scratch;
    if (a->experts < 1 || a->experts > EXPERTS_MAX || a->k < 1 || a->k > CHOICES_MAX ||
        (size_t)x.picks * sizeof(struct member) > room) {
        queue_fail(q, -EINVAL, "moe: %d of %d experts in %d rows, want at most %d of %d", a->k,
                   a->experts, a->rows, CHOICES_MAX, EXPERTS_MAX);
        return;
    }
    if (a->kinds & ~MAT_KINDS_PLAIN) {
        strip_moe(q, a);
        return;
    }
    if (a->inter > 0) {
        expert_sort(q, a, x.picks, x.order, NULL, 1);
        hidden_launch(q, &x);
    }
    launch(q, output_tiles, dim3(blocks_for((size_t)a->dim, MAT_TILE), (unsigned)a->rows),
           DOT_THREADS, 0, x);
    queue_note(q, "moe");
}
