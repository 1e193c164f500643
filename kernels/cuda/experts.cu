// experts.cu owns the experts.
//
// A few rows: a cluster makes 128 hidden values of a pick from gate and up, at once as inputs of the
// second product; whose outputs are then added row by row, a row's experts in ascending order, then
// the shared one. The rows that chose an expert share its codes. Hidden values and outputs lie by pick.
//
// Many rows, experts of mixed types, f32 and f16: picks are sorted by expert and keep that place: place p of the
// order has its inputs, hidden values and outputs in row p, a row of the window its shared expert's in
// row picks + row. Two products of wide strips with three steps around them.
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define NARROW_MOST 64 // rows of a call that the first way takes
#define INPUTS_FROM 4  // rows whose inputs are made once, not by every block that reads them

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
    int splits[2], span; // of the inputs of both products; units of inputs in a split of the first
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
__global__ static void expert_inputs(const __grid_constant__ struct expert_rows e)
{
    int blocks = e.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP, up = (int)blockIdx.y;
    int p = i / blocks, k0 = i % blocks * EXL3_BLOCK, all = e.picks + e.a.rows, pick, expert, row;
    const struct mat *w;
    float v[4];

    dependency_wait();
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

// Some rows of the call, with room for them in scratch.
static char *lay_out(struct expert_rows *e, char *at)
{
    size_t all = (size_t)(e->picks + e->a.rows);

    at = strip_x_place(&e->h, e->exl3, (int)all, at);
    e->out = (float *)at;
    at += all * (size_t)e->ldo * sizeof(float);
    at = strip_x_place(&e->x, e->exl3, 2 * (int)all, at);
    if (!e->wide)
        return at;
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

// Launches for each kind of weights; those behind the first may run beside it.
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
    p->beside = false;
    for (uint32_t left = e->a.kinds; left; left &= left - 1) {
        uint32_t kind = left & -left;
        unsigned strips = blocks_for((size_t)outputs, kind >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64);

        p->early = (left & (left - 1)) != 0;
        strip_launch_kind(q, kind, p, e->wide ? dim3(strips, across) : dim3(across, strips));
        p->beside = true;
    }
}

static dim3 inputs_grid(const struct expert_rows *e)
{
    size_t all = (size_t)(e->picks + e->a.rows);

    return dim3(blocks_for(all * (size_t)(e->x.ld / EXL3_BLOCK), WARPS), 2);
}

static void few_rows(struct queue *q, const struct expert_rows *e, int each)
{
    const struct moe_args *a = &e->a;
    struct strip_launch p = {
        .role = STRIP_GATE_UP, .splits = e->splits[0], .from = a->x, .each = each, .h = e->h
    };

    if (a->inter > 0) {
        p.span = e->span;
        if (a->rows >= INPUTS_FROM) {
            launch(q, expert_inputs, inputs_grid(e), THREADS, 0, *e);
            p.x = e->x;
            p.each = STRIP_TOKENS;
        }
        products(q, e, &p, a->inter, 2 * (unsigned)p.splits);
        p.role = STRIP_DOWN;
        p.x = e->h;
        p.each = STRIP_TOKENS;
        p.y = e->out;
        p.ldy = e->ldo;
        p.splits = e->splits[1];
        products(q, e, &p, a->dim, (unsigned)p.splits);
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
    expert_inputs<<<inputs_grid(e), THREADS, 0, s>>>(*e);
    if (a->inter > 0) {
        products(q, e, &first, a->inter, 2);
        expert_hidden<<<blocks_for((size_t)all * (size_t)(e->h.ld / EXL3_BLOCK), WARPS), THREADS, 0,
                        s>>>(*e);
        products(q, e, &second, a->dim, 1);
    }
    expert_outputs<<<dim3(blocks_for((size_t)a->dim, EXL3_BLOCK), (unsigned)a->rows), THREADS, 0,
                     s>>>(*e, cuda_queue(q)->alarm);
}

// Splits of inputs by shape and types of the call and the device alone, as if a row's experts were all that there is.
static void cut_inputs(const struct queue *q, struct expert_rows *e)
{
    const struct moe_args *a = &e->a;
    struct mat w = { .dtype = DTYPE_EXL3, .cols = a->dim }, by_unit = w, plain = w;
    int experts = a->k + (a->s1 != NULL), wide = a->kinds >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64;
    int places = a->kinds & 1u << DTYPE_BF16 ? STRIP_PLACES_PLAIN : STRIP_PLACES;

    e->splits[0] = strip_splits(q, 2 * e->ldh / wide * experts, strip_pieces(w), places);
    if (e->splits[0] > STRIP_SPLITS / 2)
        e->splits[0] = STRIP_SPLITS / 2;
    by_unit.q.bits2 = 3;     // codes that come by the unit
    plain.dtype = DTYPE_FP8; // rows that end inside a block, so that splits begin elsewhere
    for (const struct mat *m : { &w, &by_unit, &plain }) {
        int span = narrow_span(*m, e->splits[0]);

        e->span = span > e->span ? span : e->span;
    }
    w = (struct mat){ .dtype = DTYPE_EXL3, .cols = a->inter };
    e->splits[1] = strip_splits(q, e->ldo / wide * experts, strip_pieces(w), places);
}

void strip_moe(struct queue *q, const struct moe_args *a)
{
    struct expert_rows e = { .a = *a };
    size_t room = cuda_queue(q)->scratch_bytes, one;
    int most, each;

    e.x.ld = e.ldo = (int)mat_round_up((size_t)a->dim, EXL3_BLOCK);
    e.h.ld = e.ldh = (int)mat_round_up((size_t)a->inter, EXL3_BLOCK);
    e.exl3 = a->kinds % MAT_KIND_EXL3 == 0;
    cut_inputs(q, &e);
    each = (int)((NARROW_SHARED - narrow_sums(STRIP_TOKENS)) / narrow_row(e.span, e.exl3));
    each = each < STRIP_TOKENS ? each : STRIP_TOKENS;
    e.wide = a->rows > NARROW_MOST || a->mixed || each < 1 || a->kinds & EXPERT_KINDS_LONG;
    e.many = e.exl3 && (size_t)a->rows * (size_t)a->k > (size_t)a->experts * 32;
    e.lot = wide_rows(a->kinds, e.many);
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
    for (int first = 0; first < a->rows; first += e.a.rows) {
        size_t r = (size_t)first;

        e.a.rows = a->rows - first < most ? a->rows - first : most;
        e.a.x = a->x + r * (size_t)a->dim;
        e.a.id = a->id + r * (size_t)a->k;
        e.a.weight = a->weight + r * (size_t)a->k;
        e.a.y = a->y + r * (size_t)a->dim;
        e.picks = e.a.rows * a->k;
        lay_out(&e, (char *)cuda_queue(q)->scratch);
        if (e.wide)
            many_rows(q, &e);
        else
            few_rows(q, &e, each);
    }
    queue_note(q, "moe");
}
