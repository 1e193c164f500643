// experts.cu owns the experts.
//
// A few rows: inputs are made, then few.cuh makes hidden values, at once as inputs of the second product, and
// outputs, which are added row by row: a row's experts in ascending order, then the shared one. The rows that chose
// an expert share its codes. Inputs, hidden values and outputs lie by pick.
//
// Many rows, experts of mixed types, f32 and f16: picks are sorted by expert and keep that place: place p of the
// order has its inputs, hidden values and outputs in row p, a row of the window its shared expert's in
// row picks + row. Two products of wide strips with three steps around them.
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define LAUNCHES 64 // of products of a call, at most
#define FEW_OVER 4  // pieces that an item costs beside its own

struct expert_rows {
    struct moe_args a;
    struct member *order;
    int32_t *place;        // [picks] of each pick in the order
    int32_t *heads;        // as expert_sort leaves them
    int picks, lots, lot;  // lots: heads at most, of `lot` rows
    bool exl3, wide, many; // nothing but EXL3; products by wide.cuh, for many rows an expert
    struct strip_x x, h;   // inputs [2][picks + rows], hidden values [picks + rows]
    float *hidden;         // wide: sums [2][picks + rows][ldh], of which the first become values
    float *out;            // sums if wide, or outputs [picks + rows][ldo]
    int ldh, ldo;
    size_t zmat;
    int splits[2];   // of the inputs of both products
    float *sums[2];  // a few rows: of splits, of both products
    uint32_t *count; // and what their blocks count: zero when they begin
    size_t counts;
    uint32_t *ready; // blocks that made inputs; zero between calls
};

// The pick in place p, or pick p where there is no order, and its expert, -1 for the shared one; false if nothing is there.
__device__ static bool at_place(const struct expert_rows &e, int p, int *pick, int *expert)
{
    struct member m;

    *expert = -1;
    *pick = p;
    if (p >= e.picks)
        return e.a.s1 != NULL;
    if (!e.wide) {
        *expert = e.a.id[p];
        return expert_is_here(e.a, *expert);
    }
    m = e.order[p];
    *pick = m.pick;
    *expert = m.expert;
    return m.pick >= 0;
}

// A warp a block of 128 inputs of a place, for gate or up. Bound by bytes.
__device__ static void some_inputs(const struct expert_rows &e)
{
    int blocks = e.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP, up = (int)blockIdx.y;
    int p = i / blocks, k0 = i % blocks * EXL3_BLOCK, all = e.picks + e.a.rows, pick, expert, row;
    const struct mat *w;
    float v[4];

    for (size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x; !up && c < e.counts;
         c += (size_t)gridDim.x * THREADS)
        e.count[c] = 0;
    if (p >= all || !at_place(e, p, &pick, &expert))
        return;
    if (e.wide && p < e.picks && k0 == 0 && !up && lane == 0)
        e.place[pick] = p;
    row = p < e.picks ? pick / e.a.k : p - e.picks;
    w = expert < 0 ? (up ? e.a.s3 : e.a.s1) : (up ? e.a.w3 : e.a.w1) + expert;
    if (w->rows == 0)
        return;
    take_four(e.a.x + (size_t)row * (size_t)e.a.dim, k0 + 4 * lane, e.a.dim, v);
    put_any(e.x, *w, w->suh + k0, e.a.in, up * all + p, k0, v);
}

__global__ static void expert_inputs(const __grid_constant__ struct expert_rows e)
{
    dependency_settle(); // who comes in next may look at the choices
    dependency_next();
    some_inputs(e);
    __syncthreads();
    if (threadIdx.x == 0 && e.ready)
        (void)count_up(e.ready, 0);
}

// A warp a block of 128 hidden values of a place. Bound by bytes.
__global__ static void expert_hidden(const __grid_constant__ struct expert_rows e)
{
    int blocks = e.h.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int p = i / blocks, n0 = i % blocks * EXL3_BLOCK, all = e.picks + e.a.rows, pick, expert;
    const struct mat *w1, *w3, *w2;
    float *z = e.hidden + (size_t)p * (size_t)e.ldh + n0;
    float gate[4], up[4], v[4], weight;

    if (p >= all || !at_place(e, p, &pick, &expert))
        return;
    w1 = expert < 0 ? e.a.s1 : e.a.w1 + expert;
    w3 = expert < 0 ? e.a.s3 : e.a.w3 + expert;
    w2 = expert < 0 ? e.a.s2 : e.a.w2 + expert;
    if (n0 >= w1->rows)
        return;
    weight = expert < 0 ? 1 : e.a.weight[pick];
    take_outputs(z, *w1, n0, EXL3_BLOCK, gate);
    take_outputs(z + e.zmat, *w3, n0, EXL3_BLOCK, up);
#pragma unroll
    for (int k = 0; k < 4; k++)
        v[k] = n0 + 4 * lane + k < w1->rows
                   ? swiglu(rounded(gate[k], e.a.round), rounded(up[k], e.a.round), weight,
                            e.a.limit, e.a.round)
                   : 0;
#pragma unroll
    for (int k = 0; k < 4 && e.a.kinds & EXPERT_KINDS_LONG; k++)
        z[4 * lane + k] = v[k];
    put_any(e.h, *w2, w2->suh + n0, e.a.in, p, n0, v);
}

// A pick that the call was not queued for.
__device__ static void check_pick(const struct expert_rows &e, int row, int expert,
                                  const struct cuda_alarm &alarm)
{
    const struct moe_args &a = e.a;

    if (expert >= a.experts)
        alarm_set(alarm, FAULT_EXPERT, 0, row, 0, expert, a.experts);
    else if (expert >= 0 && (!expert_is_here(a, expert) ||
                             mats_mixed(a.w1 + expert, a.w3 + expert, a.w2 + expert)))
        alarm_set(alarm, FAULT_TYPE, 0, row, 0, (int)a.w1[expert].dtype, 0);
    if (row == 0 && a.s1 &&
        !(expert_type_ok(a, *a.s1) && expert_type_ok(a, *a.s3) && expert_type_ok(a, *a.s2) &&
          !mats_mixed(a.s1, a.s3, a.s2)))
        alarm_set(alarm, FAULT_TYPE, 0, 0, 0, (int)a.s1->dtype, 0);
}

// A block 128 outputs of a row: warps take its experts in turn, threads add them up in order.
__global__ static void expert_outputs(const __grid_constant__ struct expert_rows e,
                                      struct cuda_alarm alarm)
{
    __shared__ float part[CHOICES_MAX + 1][EXL3_BLOCK];
    __shared__ int sorted[CHOICES_MAX];
    int row = (int)blockIdx.y, n0 = (int)blockIdx.x * EXL3_BLOCK, t = (int)threadIdx.x;
    int lane = t % CUDA_WARP, k = e.a.k, last = k + (e.a.s2 != NULL);
    const int32_t *id = e.a.id + (size_t)row * (size_t)k;
    float sum = 0, v[4];

    dependency_wait();
    if (e.ready && t == 0 && blockIdx.x == 0 && row == 0)
        *e.ready = 0;
    if (t < k) {
        int at = 0;

        for (int j = 0; j < k; j++)
            at += id[j] < id[t] || (id[j] == id[t] && j < t);
        sorted[at] = t;
        if (n0 == 0 && !e.wide)
            check_pick(e, row, id[t], alarm);
    }
    for (int i = t / CUDA_WARP; i < last; i += WARPS) {
        int expert = i < k ? id[i] : -1, p = i < k ? row * k + i : e.picks + row;
        const struct mat *w = i < k ? e.a.w2 + expert : e.a.s2;
        const float *z;

        if (i < k && !expert_is_here(e.a, expert))
            continue;
        if (i < k && e.wide)
            p = e.place[p];
        z = e.out + (size_t)p * (size_t)e.ldo + n0;
        if (e.wide)
            take_outputs(z, *w, n0, EXL3_BLOCK, v);
        else if (w->cols == 0)
            v[0] = v[1] = v[2] = v[3] = 0;
        for (int c = 0; c < 4; c++)
            part[i][4 * lane + c] = e.wide || w->cols == 0 ? v[c] : z[4 * lane + c];
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

static int strips_at_most(int outputs)
{
    return (int)blocks_for((size_t)outputs, 64);
}

// Some rows of the call, with room for them in scratch. Outputs of wide products come where their inputs were.
static char *lay_out(struct expert_rows *e, char *at)
{
    size_t all = (size_t)(e->picks + e->a.rows);
    char *inputs, *end;

    at = strip_x_place(&e->h, e->exl3, (int)all, at);
    e->out = (float *)at;
    inputs = at + all * (size_t)e->ldo * sizeof(float);
    end = strip_x_place(&e->x, e->exl3, 2 * (int)all, e->wide ? at : inputs);
    at = end > inputs ? end : inputs;
    if (!e->wide) {
        int ld[2] = { e->ldh, e->ldo };

        for (int i = 0; i < 2; i++) {
            e->sums[i] = (float *)at;
            at += (size_t)((2 - i) * e->splits[i]) * all * (size_t)ld[i] * sizeof(float);
        }
        e->count = (uint32_t *)at;
        e->counts = LAUNCHES + all * (size_t)(strips_at_most(ld[0]) + strips_at_most(ld[1]) + 1);
        return at + mat_round_up(e->counts * sizeof(uint32_t), MAT_ALIGN);
    }
    e->place = (int32_t *)at;
    at += mat_round_up((size_t)e->picks * sizeof(int32_t), MAT_ALIGN);
    e->order = (struct member *)at;
    at += mat_round_up((size_t)e->picks * sizeof(struct member), MAT_ALIGN);
    e->lots = e->picks / e->lot + (e->a.experts < e->picks ? e->a.experts : e->picks);
    e->heads = (int32_t *)at;
    at += mat_round_up((size_t)(e->lots + 1) * sizeof(int32_t), MAT_ALIGN);
    e->zmat = all * (size_t)e->ldh;
    e->hidden = (float *)at;
    return at + 2 * e->zmat * sizeof(float);
}

// Launches for each kind of weights, beside each other where rows are few: the shared expert, of which there is one
// and mostly of more bits, begins.
static void products(struct queue *q, const struct expert_rows *e, struct strip_launch *p,
                     int outputs, unsigned across)
{
    p->a = e->a;
    p->in = e->a.in;
    p->round = e->a.round;
    p->picks = e->picks;
    p->rows = e->a.rows;
    p->wide = e->wide;
    p->many = e->many;
    p->heads = e->heads;
    p->lots = e->lots;
    p->lot = e->lot;
    for (uint32_t left = e->a.kinds, kind; left; left ^= kind) {
        for (kind = left; kind & (kind - 1);)
            kind &= kind - 1;
        p->strips = (int)blocks_for((size_t)outputs, kind >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64);
        p->early = p->role == STRIP_GATE_UP || left != kind;
        strip_launch_kind(q, kind, p, dim3((unsigned)p->strips, across));
        p->taken++;
    }
}

static dim3 inputs_grid(const struct expert_rows *e)
{
    size_t all = (size_t)(e->picks + e->a.rows);

    return dim3(blocks_for(all * (size_t)(e->x.ld / EXL3_BLOCK), WARPS), 2);
}

static void few_rows(struct queue *q, const struct expert_rows *e)
{
    const struct moe_args *a = &e->a;
    size_t places = (size_t)(e->picks + a->rows);
    struct strip_launch p = { .role = STRIP_GATE_UP,
                              .splits = e->splits[0],
                              .x = e->x,
                              .h = e->h,
                              .taken = e->count,
                              .made = e->count + LAUNCHES,
                              .z = e->sums[0],
                              .zrows = (int)places,
                              .ldz = e->ldh,
                              .matrices = 2 };

    if (a->inter > 0) {
        dim3 grid = inputs_grid(e);

        p.ticket = p.made + places;
        p.marks = strips_at_most(e->ldh);
        p.ready = e->ready;
        p.blocks = grid.x * grid.y;
        launch(q, expert_inputs, grid, THREADS, 0, *e);
        products(q, e, &p, a->inter, 1);
        p.ticket += places * (size_t)p.marks;
        p.marks = strips_at_most(e->ldo);
        p.role = STRIP_DOWN;
        p.matrices = 1;
        p.x = e->h;
        p.y = e->out;
        p.ldy = e->ldo;
        p.splits = e->splits[1];
        p.z = e->sums[1];
        p.ldz = e->ldo;
        products(q, e, &p, a->dim, 1);
    }
    launch(q, expert_outputs, dim3(blocks_for((size_t)a->dim, EXL3_BLOCK), (unsigned)a->rows),
           THREADS, 0, *e, cuda_queue(q)->alarm);
}

static void many_rows(struct queue *q, const struct expert_rows *e)
{
    cudaStream_t s = cuda_stream(q);
    const struct moe_args *a = &e->a;
    unsigned all = (unsigned)(e->picks + a->rows);
    struct strip_launch first = { .role = STRIP_GATE_UP,
                                  .splits = e->splits[0],
                                  .x = e->x,
                                  .from = a->x,
                                  .ldfrom = a->dim,
                                  .z = e->hidden,
                                  .zmat = e->zmat,
                                  .zrows = (int)all,
                                  .ldz = e->ldh,
                                  .order = e->order,
                                  .we = { a->w1, a->w3 },
                                  .ws = { a->s1, a->s3 } };
    struct strip_launch second = { .role = STRIP_DOWN,
                                   .splits = e->splits[1],
                                   .x = e->h,
                                   .from = e->hidden,
                                   .ldfrom = e->ldh,
                                   .z = e->out,
                                   .zrows = (int)all,
                                   .ldz = e->ldo,
                                   .order = e->order,
                                   .we = { a->w2 },
                                   .ws = { a->s2 } };

    expert_sort(q, a, e->picks, e->order, e->heads, e->lot);
    launch_behind(s, expert_inputs, inputs_grid(e), THREADS, 0, *e);
    if (a->inter > 0) {
        products(q, e, &first, a->inter, 2);
        launch_behind(s, expert_hidden,
                      blocks_for((size_t)all * (size_t)(e->h.ld / EXL3_BLOCK), WARPS), THREADS, 0,
                      *e);
        products(q, e, &second, a->dim, 1);
    }
    launch_behind(s, expert_outputs,
                  dim3(blocks_for((size_t)a->dim, EXL3_BLOCK), (unsigned)a->rows), THREADS, 0, *e,
                  cuda_queue(q)->alarm);
}

// How many items share the inputs of each of `strips` strips, by the shape of the call and the device alone, as if a
// row's experts were all that there is: the number for which the items of a place, and half of one that others wait
// for in the end, take least.
static int few_splits(const struct queue *q, int strips, int pieces)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    int places = d->sms * 3 * STRIP_WARPS / FEW_WARPS, best = 1, least = 1 << 30;

    for (int n = 1; n <= FEW_SPLITS; n++) {
        int each = (pieces + n * FEW_WARPS - 1) / (n * FEW_WARPS) + FEW_OVER;
        int cost = (2 * strips * n * 16 / places + 16) * each;

        if (cost < least) {
            least = cost;
            best = n;
        }
    }
    return best;
}

static void cut_inputs(const struct queue *q, struct expert_rows *e)
{
    const struct moe_args *a = &e->a;
    struct mat up = { .dtype = DTYPE_EXL3, .cols = a->dim };
    struct mat down = { .dtype = DTYPE_EXL3, .cols = a->inter };
    int experts = a->k + (a->s1 != NULL);
    // Strips of FP8 and FP4 are half as wide as those of EXL3 and take as long, those of bf16 take half.
    int wide = a->kinds & 1u << DTYPE_BF16 ? 64 : EXL3_BLOCK;

    e->splits[0] = few_splits(q, 2 * e->ldh / wide * experts, strip_pieces(up));
    e->splits[1] = few_splits(q, e->ldo / wide * experts, strip_pieces(down));
}

void strip_moe(struct queue *q, const struct moe_args *a)
{
    struct expert_rows e = { .a = *a };
    size_t room = cuda_lane(q)->scratch_bytes, one;
    int most;

    e.x.ld = e.ldo = (int)mat_round_up((size_t)a->dim, EXL3_BLOCK);
    e.h.ld = e.ldh = (int)mat_round_up((size_t)a->inter, EXL3_BLOCK);
    e.exl3 = a->kinds % MAT_KIND_EXL3 == 0;
    cut_inputs(q, &e);
    e.wide = a->rows > FEW_MOST || a->rows * a->k > FEW_PICKS || a->mixed ||
             a->kinds & EXPERT_KINDS_LONG;
    e.ready = e.wide ? NULL : cuda_lane(q)->tickets;
    e.lot = wide_rows(a->kinds, false);
    e.picks = a->k;
    e.a.rows = 1;
    one = (size_t)(uintptr_t)lay_out(&e, NULL);
    most = (int)(room / one);
    if (most < 1 || (a->in == CODEC_QW && a->dim % 32)) {
        queue_fail(q, -EINVAL,
                   "moe: %d experts of %d x %d need %zu bytes of scratch, there are %zu", a->k,
                   a->inter, a->dim, one, room);
        return;
    }
    most = most < a->rows ? (int)blocks_for((size_t)a->rows, (int)blocks_for((size_t)a->rows, most))
                          : a->rows; // in equal shares
    e.many = e.exl3 && (size_t)most * (size_t)a->k > (size_t)a->experts * 32;
    e.lot = wide_rows(a->kinds, e.many);
    for (int first = 0; first < a->rows; first += e.a.rows) {
        size_t r = (size_t)first;

        e.a.rows = a->rows - first < most ? a->rows - first : most;
        e.a.x = a->x + r * (size_t)a->dim;
        e.a.id = a->id + r * (size_t)a->k;
        e.a.weight = a->weight + r * (size_t)a->k;
        e.a.y = a->y + r * (size_t)a->dim;
        e.picks = e.a.rows * a->k;
        lay_out(&e, (char *)cuda_lane(q)->scratch);
        if (e.wide)
            many_rows(q, &e);
        else
            few_rows(q, &e);
    }
    queue_note(q, "moe");
}
