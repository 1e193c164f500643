// experts.cu owns the experts.
//
// A few rows: few.cuh makes inputs, hidden values, at once as inputs of the second product, and outputs, which it adds
// row by row: a row's experts in ascending order, then the shared one. The rows that chose an expert share its codes.
// Inputs, hidden values and outputs lie by pick.
//
// Many rows, experts of mixed types, f32 and f16: picks are sorted by expert and keep that place, behind them rows of the
// window have places picks + row for the shared expert. A pass takes as many places as scratch has room for, so weights
// are read and decoded once for all rows that chose them: inputs, hidden values and outputs lie by place of the
// pass. Two products of wide strips with three steps around them; each pass adds its outputs to its rows, whose experts
// are in ascending order within a pass and from pass to pass.
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define FEW_OVER 4     // pieces that an item costs beside its own
#define INPUTS_EACH 32 // blocks of inputs that a multiprocessor makes in one turn

struct expert_rows {
    struct moe_args a;
    struct member *order;
    int32_t *place;        // [picks] of each pick in the order
    int32_t *heads;        // as expert_sort leaves them, of a pass
    int picks, lots, lot;  // lots: heads of a pass at most, of `lot` rows
    int first, places;     // of the pass
    bool exl3, wide, many; // nothing but EXL3; products by wide.cuh, for many rows an expert
    struct strip_x x, h;   // inputs [2][places], hidden values [places]
    float *hidden;         // wide: sums [2][places][ldh], of which the first become values
    float *out;            // sums if wide, or outputs [places][ldo]
    int ldh, ldo;
    size_t zmat;
    int splits[2];  // of the inputs of both products
    float *sums[2]; // a few rows: of splits, of both products
};

// The pick in place p of the pass and its expert, -1 for the shared one; false if nothing is there.
__device__ static bool at_place(const struct expert_rows &e, int p, int *pick, int *expert)
{
    struct member m;

    p += e.first;
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
    int p = i / blocks, k0 = i % blocks * EXL3_BLOCK, pick, expert, row;
    const struct mat *w;
    float v[4];

    if (p >= e.places || !at_place(e, p, &pick, &expert))
        return;
    row = expert >= 0 ? pick / e.a.k : pick - e.picks;
    w = expert < 0 ? (up ? e.a.s3 : e.a.s1) : (up ? e.a.w3 : e.a.w1) + expert;
    if (w->rows == 0)
        return;
    take_four(e.a.x + (size_t)row * (size_t)e.a.dim, k0 + 4 * lane, e.a.dim, v);
    put_any(e.x, *w, w->suh + k0, e.a.in, up * e.places + p, k0, v);
}

// A warp a block of 128 hidden values of a place. Bound by bytes.
__global__ static void expert_hidden(const __grid_constant__ struct expert_rows e)
{
    int blocks = e.h.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int p = i / blocks, n0 = i % blocks * EXL3_BLOCK, pick, expert;
    const struct mat *w1, *w3, *w2;
    float *z = e.hidden + (size_t)p * (size_t)e.ldh + n0;
    float gate[4], up[4], v[4], weight;

    if (p >= e.places || !at_place(e, p, &pick, &expert))
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

// A warp 128 outputs of a row, of which it adds up what is of this pass to what the passes before left. Bound by bytes.
__global__ static void expert_added(const __grid_constant__ struct expert_rows e)
{
    __shared__ int place[CHOICES_MAX + 1], expert[CHOICES_MAX + 1]; // in order
    int row = (int)blockIdx.y, t = (int)threadIdx.x, lane = t % CUDA_WARP, k = e.a.k, n;
    int n0 = ((int)blockIdx.x * WARPS + t / CUDA_WARP) * EXL3_BLOCK, mine = -1;
    const int32_t *of = e.place + (size_t)row * (size_t)k;
    float *y = e.a.y + (size_t)row * (size_t)e.a.dim + n0 + 4 * lane, sum[4] = {}, v[4];

    if (t < k)
        mine = of[t] - e.first;
    else if (t == k && e.a.s1)
        mine = e.picks + row - e.first;
    mine = mine < e.places ? mine : -1;
    n = __syncthreads_count(mine >= 0);
    if (mine >= 0) {
        int at = 0;

        for (int i = 0; i < k; i++)
            at += of[i] >= e.first && of[i] - e.first < mine;
        place[at] = mine;
        expert[at] = t < k ? e.order[e.first + mine].expert : -1;
    }
    __syncthreads();
    if (n0 >= e.a.dim || (n == 0 && e.first > 0))
        return;
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (e.first > 0 && n0 + 4 * lane + c < e.a.dim)
            sum[c] = y[c];
    for (int i = 0; i < n; i++) {
        const struct mat *w = expert[i] < 0 ? e.a.s2 : e.a.w2 + expert[i];

        take_outputs(e.out + (size_t)place[i] * (size_t)e.ldo + n0, *w, n0, EXL3_BLOCK, v);
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum[c] += v[c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (n0 + 4 * lane + c < e.a.dim)
            y[c] = sum[c];
}

// ---- launching ----------------------------------------------------------------------------------

// A few rows of the call, with room for them in scratch.
static char *lay_few(struct expert_rows *e, char *at)
{
    size_t all = (size_t)e->places;
    int ld[2] = { e->ldh, e->ldo };

    at = strip_x_place(&e->h, e->exl3, e->places, at);
    e->out = (float *)at;
    at += all * (size_t)e->ldo * sizeof(float);
    at = strip_x_place(&e->x, e->exl3, 2 * e->places, at);
    for (int i = 0; i < 2; i++) {
        e->sums[i] = (float *)at;
        at += (size_t)((2 - i) * e->splits[i]) * all * (size_t)ld[i] * sizeof(float);
    }
    return at;
}

// All rows, of which a pass has as many places as `places` says. Outputs come where inputs were.
static char *lay_many(struct expert_rows *e, char *at)
{
    size_t all = (size_t)e->places;
    int picks = e->places < e->picks ? e->places : e->picks;
    int passes = (int)blocks_for((size_t)e->picks, e->places);
    char *inputs, *end;

    e->place = (int32_t *)at;
    at += mat_round_up((size_t)e->picks * sizeof(int32_t), MAT_ALIGN);
    e->order = (struct member *)at;
    at += mat_round_up((size_t)e->picks * sizeof(struct member), MAT_ALIGN);
    e->lots = picks / e->lot + (e->a.experts < picks ? e->a.experts : picks);
    e->heads = (int32_t *)at;
    at += mat_round_up((size_t)passes * (size_t)(e->lots + 1) * sizeof(int32_t), MAT_ALIGN);
    at = strip_x_place(&e->h, e->exl3, e->places, at);
    e->out = (float *)at;
    inputs = at + all * (size_t)e->ldo * sizeof(float);
    end = strip_x_place(&e->x, e->exl3, 2 * e->places, at);
    at = end > inputs ? end : inputs;
    e->zmat = all * (size_t)e->ldh;
    e->hidden = (float *)at;
    return at + 2 * e->zmat * sizeof(float);
}

// A launch for each kind of weights.
static void products(struct queue *q, const struct expert_rows *e, struct strip_launch *p,
                     int outputs, unsigned across)
{
    p->a = e->a;
    p->in = e->a.in;
    p->round = e->a.round;
    p->picks = e->picks;
    p->rows = e->a.rows;
    p->first = e->first;
    p->places = e->places;
    p->wide = e->wide;
    p->many = e->many;
    p->heads = e->heads;
    p->lots = e->first < e->picks ? e->lots : 0;
    p->lot = e->lot;
    for (uint32_t left = e->a.kinds; left; left &= left - 1) {
        uint32_t kind = left & -left;
        unsigned strips = blocks_for((size_t)outputs, kind >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64);

        strip_launch_kind(q, kind, p, dim3(strips, across));
    }
}

// What few.cuh counts lies in the queue's tickets: items, items of inputs, strips of outputs and, for each place, strips
// of hidden values, FEW_LINE from one to the next; then the tickets of each place's strips.
enum { TAKEN = 0, READY = FEW_LINE, DONE = 2 * FEW_LINE, MADE = 3 * FEW_LINE };

// Whether the queue has as many as so many places take.
static bool counts_fit(const struct expert_rows *e, int places)
{
    size_t strips = blocks_for((size_t)e->ldh, 64) + blocks_for((size_t)e->ldo, 64);

    return MADE + (size_t)places * (FEW_LINE + strips) <= CUDA_TICKETS;
}

static void few_rows(struct queue *q, const struct expert_rows *e)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    const struct moe_args *a = &e->a;
    uint32_t *count = cuda_lane(q)->tickets;
    int places = e->places, tasks = 2 * places * (e->x.ld / EXL3_BLOCK);
    struct few_launch p = { .a = *a,
                            .x = e->x,
                            .h = e->h,
                            .out = e->out,
                            .taken = count + TAKEN,
                            .ready = count + READY,
                            .done = count + DONE,
                            .made = count + MADE,
                            .alarm = cuda_queue(q)->alarm,
                            .picks = e->picks,
                            .places = places,
                            .ldo = e->ldo };

    for (int i = 0; i < 2; i++) {
        p.of[i].z = e->sums[i];
        p.of[i].ld = i ? e->ldo : e->ldh;
        p.of[i].splits = e->splits[i];
    }
    p.of[0].ticket = p.made + places * FEW_LINE;
    p.tasks = 1 + tasks / (d->sms * INPUTS_EACH);
    p.inputs = (int)blocks_for((size_t)tasks, FEW_WARPS * p.tasks);
    p.across = (int)blocks_for((size_t)a->dim, FEW_ACROSS);
    p.rows = a->rows * p.across;
    few_experts(q, &p);
}

static void many_rows(struct queue *q, const struct expert_rows *e)
{
    cudaStream_t s = cuda_stream(q);
    const struct moe_args *a = &e->a;
    struct strip_launch first = { .role = STRIP_GATE_UP,
                                  .splits = e->splits[0],
                                  .x = e->x,
                                  .from = a->x,
                                  .ldfrom = a->dim,
                                  .z = e->hidden,
                                  .zmat = e->zmat,
                                  .zrows = e->places,
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
                                   .zrows = e->places,
                                   .ldz = e->ldo,
                                   .order = e->order,
                                   .we = { a->w2 },
                                   .ws = { a->s2 } };

    launch_behind(s, expert_inputs,
                  dim3(blocks_for((size_t)e->places * (size_t)(e->x.ld / EXL3_BLOCK), WARPS), 2),
                  THREADS, 0, *e);
    if (a->inter > 0) {
        products(q, e, &first, a->inter, 2);
        launch_behind(s, expert_hidden,
                      blocks_for((size_t)e->places * (size_t)(e->h.ld / EXL3_BLOCK), WARPS),
                      THREADS, 0, *e);
        products(q, e, &second, a->dim, 1);
    }
    launch_behind(s, expert_added,
                  dim3(blocks_for((size_t)a->dim, WARPS * EXL3_BLOCK), (unsigned)a->rows), THREADS,
                  0, *e);
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

// The rows of a call that few.cuh takes, as many at a time as scratch has room for.
static void few_passes(struct queue *q, struct expert_rows *e, int most)
{
    struct moe_args a = e->a;

    for (int first = 0; first < a.rows; first += e->a.rows) {
        size_t r = (size_t)first;

        e->a.rows = a.rows - first < most ? a.rows - first : most;
        e->a.x = a.x + r * (size_t)a.dim;
        e->a.id = a.id + r * (size_t)a.k;
        e->a.weight = a.weight + r * (size_t)a.k;
        e->a.y = a.y + r * (size_t)a.dim;
        e->picks = e->a.rows * a.k;
        e->places = e->picks + e->a.rows;
        lay_few(e, (char *)cuda_lane(q)->scratch);
        few_rows(q, e);
    }
}

static void many_passes(struct queue *q, struct expert_rows *e, int all)
{
    int most = e->places;

    lay_many(e, (char *)cuda_lane(q)->scratch);
    expert_sort(q, &e->a, e->picks, most, e->lot, e->lots, e->order, e->place, e->heads);
    for (; e->first < all; e->first += most, e->heads += e->lots + 1) {
        e->places = all - e->first < most ? all - e->first : most;
        many_rows(q, e);
    }
}

void strip_moe(struct queue *q, const struct moe_args *a)
{
    struct expert_rows e = { .a = *a };
    size_t room = cuda_lane(q)->scratch_bytes, one;
    int all;

    e.x.ld = e.ldo = (int)mat_round_up((size_t)a->dim, EXL3_BLOCK);
    e.h.ld = e.ldh = (int)mat_round_up((size_t)a->inter, EXL3_BLOCK);
    e.exl3 = a->kinds % MAT_KIND_EXL3 == 0;
    cut_inputs(q, &e);
    e.wide = a->rows > FEW_MOST || a->rows * a->k > FEW_PICKS || a->mixed || a->inter == 0 ||
             a->kinds & EXPERT_KINDS_LONG || !counts_fit(&e, a->rows * (a->k + 1));
    e.many = e.wide && e.exl3 && (size_t)a->rows * (size_t)a->k > (size_t)a->experts * 32;
    e.lot = wide_rows(a->kinds, e.many);
    e.picks = e.wide ? a->rows * a->k : a->k;
    all = e.picks + (e.wide && !a->s1 ? 0 : e.wide ? a->rows : 1);
    e.places = e.wide ? 1 : all;
    one = (size_t)(uintptr_t)(e.wide ? lay_many(&e, NULL) : lay_few(&e, NULL));
    if (one > room || (a->in == CODEC_QW && a->dim % 32)) {
        queue_fail(q, -EINVAL,
                   "moe: %d experts of %d x %d need %zu bytes of scratch, there are %zu", a->k,
                   a->inter, a->dim, one, room);
        return;
    }
    if (e.wide) { // as few passes as there is room for, equal shares
        for (int passes = 1;; passes++) {
            e.places = (int)blocks_for((size_t)all, passes);
            if ((size_t)(uintptr_t)lay_many(&e, NULL) <= room)
                break;
        }
        many_passes(q, &e, all);
    } else {
        few_passes(q, &e, (int)(room / one));
    }
    queue_note(q, "moe");
}
