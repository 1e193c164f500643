// experts.cu owns the experts where some weights are quantised.
//
// Picks are sorted by expert and keep that place: place p of the order has its inputs, hidden values
// and outputs in row p, a row of the window its shared expert's in row picks + row. Two products of
// strips with three steps around them: inputs of each pick as its expert wants them; hidden values
// from the sums of gate and up, at once as inputs of the second product; a row's experts added in
// ascending order, then the shared one.
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/strip.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define WIDE_FROM 512 // rows of which an expert has more than one instruction's worth

struct expert_rows {
    struct moe_args a;
    struct member *order;
    int32_t *place; // [picks] of each pick in the order
    int picks;
    bool exl3, wide;     // nothing but EXL3; products by wide.cuh
    struct strip_x x, h; // inputs [2][picks + rows], hidden values [picks + rows]
    float *hidden, *out; // sums [2][splits][picks + rows][ldh], [splits][picks + rows][ldo]
    int ldh, ldo;
    size_t zmat;
};

__host__ __device__ static int splits_of(const struct expert_rows &e, int cols)
{
    return e.wide ? 1 : strip_splits_expert(cols);
}

// The pick in place p and its expert, -1 for the shared one; false if nothing is there.
__device__ static bool at_place(const struct expert_rows &e, int p, int *pick, int *expert)
{
    struct member m;

    *expert = -1;
    *pick = p;
    if (p >= e.picks)
        return e.a.s1 != NULL;
    m = e.order[p];
    *pick = m.pick;
    *expert = m.expert;
    return m.pick >= 0;
}

// A warp a block of 128 inputs of a place, for gate or up. Bound by bytes.
__global__ static void expert_inputs(const __grid_constant__ struct expert_rows e)
{
    int blocks = e.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP, up = (int)blockIdx.y;
    int p = i / blocks, k0 = i % blocks * EXL3_BLOCK, all = e.picks + e.a.rows, pick, expert, row;
    const struct mat *w;
    float v[4];

    if (p >= all || !at_place(e, p, &pick, &expert))
        return;
    if (p < e.picks && k0 == 0 && !up && lane == 0)
        e.place[pick] = p;
    row = p < e.picks ? pick / e.a.k : p - e.picks;
    w = expert < 0 ? (up ? e.a.s3 : e.a.s1) : (up ? e.a.w3 : e.a.w1) + expert;
    if (w->rows == 0)
        return;
    take_four(e.a.x + (size_t)row * (size_t)e.a.dim, k0 + 4 * lane, e.a.dim, v);
    put_inputs(e.x, *w, w->suh + k0, e.a.in, up * all + p, k0, v);
}

// A warp a block of 128 hidden values of a place. Bound by bytes.
__global__ static void expert_hidden(const __grid_constant__ struct expert_rows e)
{
    int blocks = e.h.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int p = i / blocks, n0 = i % blocks * EXL3_BLOCK, all = e.picks + e.a.rows, pick, expert;
    size_t far = (size_t)all * (size_t)e.ldh;
    const struct mat *w1, *w3, *w2;
    const float *z = e.hidden + (size_t)p * (size_t)e.ldh + n0;
    float gate[4], up[4], v[4], weight;

    if (p >= all || !at_place(e, p, &pick, &expert))
        return;
    w1 = expert < 0 ? e.a.s1 : e.a.w1 + expert;
    w3 = expert < 0 ? e.a.s3 : e.a.w3 + expert;
    w2 = expert < 0 ? e.a.s2 : e.a.w2 + expert;
    if (n0 >= w1->rows)
        return;
    weight = expert < 0 ? 1 : e.a.weight[pick];
    take_outputs(z, far, splits_of(e, w1->cols), *w1, n0, EXL3_BLOCK, gate);
    take_outputs(z + e.zmat, far, splits_of(e, w3->cols), *w3, n0, EXL3_BLOCK, up);
#pragma unroll
    for (int k = 0; k < 4; k++)
        v[k] = n0 + 4 * lane + k < w1->rows
                   ? swiglu(rounded(gate[k], e.a.round), rounded(up[k], e.a.round), weight,
                            e.a.limit, e.a.round)
                   : 0;
    put_inputs(e.h, *w2, w2->suh + n0, e.a.in, p, n0, v);
}

// A block 128 outputs of a row: warps take its experts in turn, threads add them up in order.
__global__ static void expert_outputs(const __grid_constant__ struct expert_rows e)
{
    __shared__ float part[CHOICES_MAX + 1][EXL3_BLOCK];
    __shared__ int sorted[CHOICES_MAX];
    int row = (int)blockIdx.y, n0 = (int)blockIdx.x * EXL3_BLOCK, t = (int)threadIdx.x;
    int lane = t % CUDA_WARP, all = e.picks + e.a.rows, k = e.a.k, last = k + (e.a.s2 != NULL);
    const int32_t *id = e.a.id + (size_t)row * (size_t)k;
    float sum = 0, v[4];

    if (t < k) {
        int at = 0;

        for (int j = 0; j < k; j++)
            at += id[j] < id[t] || (id[j] == id[t] && j < t);
        sorted[at] = t;
    }
    for (int i = t / CUDA_WARP; i < last; i += WARPS) {
        const struct mat *w = i < k ? e.a.w2 + id[i] : e.a.s2;
        int p = e.picks + row;

        if (i < k) {
            if (!expert_is_here(e.a, id[i]))
                continue;
            p = e.place[row * k + i];
        }
        take_outputs(e.out + (size_t)p * (size_t)e.ldo + n0, (size_t)all * (size_t)e.ldo,
                     splits_of(e, w->cols), *w, n0, EXL3_BLOCK, v);
        for (int c = 0; c < 4; c++)
            part[i][4 * lane + c] = v[c];
    }
    __syncthreads();
    if (t >= EXL3_BLOCK || n0 + t >= e.a.dim)
        return;
    for (int i = 0; i < k; i++)
        if (expert_is_here(e.a, id[sorted[i]]))
            sum += part[sorted[i]][t];
    if (e.a.s2)
        sum += part[k][t];
    e.a.y[(size_t)row * (size_t)e.a.dim + (size_t)(n0 + t)] = sum;
}

// ---- launching ----------------------------------------------------------------------------------

// Some rows of the call, with room for them in scratch.
static char *lay_out(struct expert_rows *e, char *at)
{
    size_t all = (size_t)(e->picks + e->a.rows);

    e->place = (int32_t *)at;
    at += mat_round_up((size_t)e->picks * sizeof(int32_t), MAT_ALIGN);
    e->order = (struct member *)at;
    at += mat_round_up((size_t)e->picks * sizeof(struct member), MAT_ALIGN);
    at = strip_x_place(&e->x, e->exl3, 2 * (int)all, at);
    at = strip_x_place(&e->h, e->exl3, (int)all, at);
    e->zmat = (size_t)splits_of(*e, e->a.dim) * all * (size_t)e->ldh;
    e->hidden = (float *)at;
    at += 2 * e->zmat * sizeof(float);
    e->out = (float *)at;
    return at + (size_t)splits_of(*e, e->a.inter) * all * (size_t)e->ldo * sizeof(float);
}

static void products(cudaStream_t s, const struct expert_rows *e, struct strip_launch *p,
                     int outputs, int splits)
{
    p->order = e->order;
    p->picks = e->picks;
    p->rows = e->a.rows;
    p->wide = e->wide;
    p->zrows = e->picks + e->a.rows;
    for (uint32_t left = e->a.kinds; left; left &= left - 1) {
        uint32_t kind = left & -left;
        int wide = kind >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64;

        strip_launch_kind(
            s, kind, p, dim3(blocks_for((size_t)outputs, wide), (unsigned)(splits * p->matrices)));
    }
}

static void some_rows(struct queue *q, const struct expert_rows *e)
{
    cudaStream_t s = cuda_stream(q);
    const struct moe_args *a = &e->a;
    unsigned all = (unsigned)(e->picks + a->rows);
    struct strip_launch first = { .x = e->x,
                                  .z = e->hidden,
                                  .zmat = e->zmat,
                                  .ldz = e->ldh,
                                  .we = { a->w1, a->w3 },
                                  .ws = { a->s1, a->s3 },
                                  .matrices = 2 };
    struct strip_launch second = {
        .x = e->h, .z = e->out, .ldz = e->ldo, .we = { a->w2 }, .ws = { a->s2 }, .matrices = 1
    };

    expert_sort(q, a, e->picks, e->order);
    expert_inputs<<<dim3(blocks_for((size_t)all * (size_t)(e->x.ld / EXL3_BLOCK), WARPS), 2),
                    THREADS, 0, s>>>(*e);
    if (a->inter > 0) {
        products(s, e, &first, a->inter, strip_splits_expert(a->dim));
        expert_hidden<<<blocks_for((size_t)all * (size_t)(e->h.ld / EXL3_BLOCK), WARPS), THREADS, 0,
                        s>>>(*e);
        products(s, e, &second, a->dim, strip_splits_expert(a->inter));
    }
    expert_outputs<<<dim3(blocks_for((size_t)a->dim, EXL3_BLOCK), (unsigned)a->rows), THREADS, 0,
                     s>>>(*e);
}

void strip_moe(struct queue *q, const struct moe_args *a)
{
    struct expert_rows e = { .a = *a };
    size_t room = cuda_queue(q)->scratch_bytes, one;
    int most;

    e.x.ld = e.ldo = (int)mat_round_up((size_t)a->dim, EXL3_BLOCK);
    e.h.ld = e.ldh = (int)mat_round_up((size_t)a->inter, EXL3_BLOCK);
    e.picks = a->k;
    e.exl3 = a->kinds % MAT_KIND_EXL3 == 0;
    e.wide = a->rows > WIDE_FROM;
    e.a.rows = 1;
    one = (size_t)(uintptr_t)lay_out(&e, NULL);
    most = (int)(room / one);
    if (a->kinds & MAT_KINDS_PLAIN) {
        queue_fail(q, -ENOTSUP, "moe: plain and quantised weights together");
        return;
    }
    if (most < 1 || (a->in == CODEC_QW && a->dim % 32)) {
        queue_fail(q, -EINVAL,
                   "moe: %d experts of %d x %d need %zu bytes of scratch, there are %zu", a->k,
                   a->inter, a->dim, one, room);
        return;
    }
    for (int first = 0; first < a->rows; first += e.a.rows) {
        size_t r = (size_t)first;

        e.a.rows = a->rows - first < most ? a->rows - first : most;
        e.a.x = a->x + r * (size_t)a->dim;
        e.a.id = a->id + r * (size_t)a->k;
        e.a.weight = a->weight + r * (size_t)a->k;
        e.a.y = a->y + r * (size_t)a->dim;
        e.picks = e.a.rows * a->k;
        lay_out(&e, (char *)cuda_queue(q)->scratch);
        some_rows(q, &e);
    }
    queue_note(q, "moe");
}
