// experts.cu owns the op moe: which kernels serve a call, how its scratch is laid out, and the
// kernels around the products of many rows.
//
// Few rows: one launch of few.cuh. Inputs, hidden values and outputs are indexed by pick, the rows
// of the shared expert behind the picks. A row's sum runs over its experts in ascending order, then
// the shared one, here as below.
//
// Many rows, experts of mixed types, f32 and f16: picks are sorted by expert, and behind them place
// picks + row belongs to the shared expert. A pass handles as many consecutive places as scratch
// has room for; within it weights are read and decoded once for all rows that chose them. A pass is
// two products (wide.cuh, crowd.cu) with three kernels around them, and adds its outputs to the
// rows; since places ascend by expert, so do the experts of a row from pass to pass.
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WARPS (THREADS / CUDA_WARP)
#define FEW_OVER 4        // overhead of an item of few.cuh, in pieces
#define INPUTS_EACH 32    // (place, 128 inputs) pairs of a multiprocessor in a round of items
#define CROWD_FROM 40     // mean picks an expert from which crowd.cu takes its larger lots
#define WIDE_MANY_FROM 32 // and wide.cuh
#define GROUP 8           // places whose inputs are stored together as tiles: group.cuh

struct expert_rows {
    struct moe_args a;
    struct member *order;
    int32_t *place;        // [picks]: where in the order a pick is
    int32_t *heads;        // of the pass: where its lots begin, by expert_sort
    int picks, lots, lot;  // lots of a pass, at most; rows of a lot, at most
    int first, places;     // places of the pass; first is a multiple of GROUP
    int grain;             // lots end at multiples of this: strip_launch
    bool exl3, wide, many; // all EXL3; not few.cuh; many rows an expert
    struct strip_x x, h;   // inputs [gate, up][places]; hidden values [places] as inputs
    float *hidden;         // wide: sums [2][places][ldh]; hidden values replace the first
    float *out;            // [places][ldo]: sums if wide, else outputs
    int ldh, ldo;
    size_t zmat;
    int splits[2];  // of the inputs: of gate and up, of down
    float *sums[2]; // few rows: partial sums of the splits
};

// The pick and the expert (-1: the shared one) of place p of the pass; false: the place is empty.
__device__ static inline bool at_place(const struct expert_rows &e, int p, int *pick, int *expert)
{
    struct member m = { 0, -1, 0, 0 };

    if (p >= e.places)
        return false;
    p += e.first;
    if (p < e.picks)
        m = e.order[p];
    *pick = p < e.picks ? m.pick : p;
    *expert = m.expert;
    return m.pick >= 0;
}

// The row of x of a pick; behind the picks come rows of the shared expert.
__device__ static inline int row_of(const struct expert_rows &e, int pick)
{
    return pick < e.picks ? pick / e.a.k : pick - e.picks;
}

// Matrix m of an expert: 0 gate, 1 up, 2 down.
__device__ static inline const struct mat *expert_mat(const struct expert_rows &e, int expert,
                                                      int m)
{
    if (expert < 0)
        return m == 0 ? e.a.s1 : m == 1 ? e.a.s3 : e.a.s2;
    return (m == 0 ? e.a.w1 : m == 1 ? e.a.w3 : e.a.w2) + expert;
}

// ---- many rows ----------------------------------------------------------------------------------

// Staging of 128 inputs of a group of places, which EXL3 wants as tiles.
struct held_group {
    uint16_t value[GROUP][EXL3_BLOCK + 8]; // padded against bank conflicts
    bool tiled[GROUP];
};

// Prepares inputs k0 .. k0 + 127 of the warp's place: staged for give_tiles, or stored at once.
__device__ static inline void hold(struct held_group &g, const struct strip_x &x,
                                   const struct mat &w, enum codec in, int row, int k0,
                                   float (&v)[4])
{
    int at = (int)threadIdx.x / CUDA_WARP, lane = (int)threadIdx.x % CUDA_WARP;

    if (w.dtype != DTYPE_EXL3 || !x.tiled) {
        put_any(x, w, w.suh + k0, in, row, k0, v);
        return;
    }
    g.tiled[at] = true;
    put_rotated(g.value[at] + lane / 16 * STRIP_UNIT, *(const uint2 *)(w.suh + k0 + 4 * lane), v,
                true);
}

// Stores what the block's warps have staged as tiles of group `group` of `groups`.
__device__ static inline void give_tiles(const struct held_group &g, uint16_t *tiled, int k0,
                                         int group, int groups)
{
    int t = (int)threadIdx.x, row = t % GROUP, piece = t / GROUP;

    __syncthreads();
    if (t < 2 * GROUP * 8 && g.tiled[row])
        *(uint4 *)(tiled +
                   ((size_t)(k0 / STRIP_UNIT + piece / 8) * (size_t)groups + (size_t)group) *
                       (GROUP * STRIP_UNIT) +
                   piece % 8 * 64 + row * 8) = *(const uint4 *)(g.value[row] + piece * 8);
}

// A block prepares 128 inputs of a group of places, for gate or for up; a warp has a place. Bound
// by bytes.
__global__ static void many_inputs(const __grid_constant__ struct expert_rows e)
{
    __shared__ __align__(16) struct held_group g;
    int blocks = e.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP, up = (int)blockIdx.y;
    int warp = (int)threadIdx.x / CUDA_WARP, group = (int)blockIdx.x / blocks;
    int k0 = (int)blockIdx.x % blocks * EXL3_BLOCK, p = group * GROUP + warp, pick, expert;
    int groups = (e.places + GROUP - 1) / GROUP;
    const struct mat *w;
    float v[4];

    if (lane == 0)
        g.tiled[warp] = false;
    __syncwarp();
    if (at_place(e, p, &pick, &expert) && (w = expert_mat(e, expert, up))->rows > 0) {
        take_four(e.a.x + (size_t)row_of(e, pick) * (size_t)e.a.dim, k0 + 4 * lane, e.a.dim, v);
        hold(g, e.x, *w, e.a.in, up * e.places + p, k0, v);
    }
    give_tiles(g, e.x.tiled, k0, up * groups + group, 2 * groups);
}

// A block makes 128 hidden values of a group of places; a warp has a place. Bound by bytes.
__global__ static void many_hidden(const __grid_constant__ struct expert_rows e)
{
    __shared__ __align__(16) struct held_group g;
    int blocks = e.h.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int warp = (int)threadIdx.x / CUDA_WARP, group = (int)blockIdx.x / blocks;
    int n0 = (int)blockIdx.x % blocks * EXL3_BLOCK, p = group * GROUP + warp, pick, expert;
    float *z = e.hidden + (size_t)p * (size_t)e.ldh + n0;
    const struct mat *w1;
    float gate[4], up[4], v[4], weight;

    if (lane == 0)
        g.tiled[warp] = false;
    __syncwarp();
    if (at_place(e, p, &pick, &expert) && n0 < (w1 = expert_mat(e, expert, 0))->rows) {
        weight = expert < 0 ? 1 : e.a.weight[pick];
        take_outputs(z, *w1, n0, EXL3_BLOCK, gate);
        take_outputs(z + e.zmat, *expert_mat(e, expert, 1), n0, EXL3_BLOCK, up);
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = n0 + 4 * lane + k < w1->rows
                       ? swiglu(rounded(gate[k], e.a.round), rounded(up[k], e.a.round), weight,
                                e.a.limit, e.a.round)
                       : 0;
#pragma unroll
        for (int k = 0; k < 4 && e.a.kinds & EXPERT_KINDS_LONG; k++)
            z[4 * lane + k] = v[k];
        hold(g, e.h, *expert_mat(e, expert, 2), e.a.in, p, n0, v);
    }
    give_tiles(g, e.h.tiled, n0, group, (e.places + GROUP - 1) / GROUP);
}

// A warp has 128 outputs of a row and adds this pass's experts to the sum of earlier passes. Bound
// by bytes.
__global__ static void many_outputs(const __grid_constant__ struct expert_rows e)
{
    __shared__ int place[CHOICES_MAX + 1], expert[CHOICES_MAX + 1]; // of the row, ascending
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
        take_outputs(e.out + (size_t)place[i] * (size_t)e.ldo + n0, *expert_mat(e, expert[i], 2),
                     n0, EXL3_BLOCK, v);
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

// Lays out scratch for few.cuh from `at` on; returns its end.
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

// strip_x_place with tiles for crowd.cu: EXL3 has them in place of rows, other types beside.
static char *lay_inputs(const struct expert_rows *e, struct strip_x *x, int rows, char *at)
{
    char *end = strip_x_place(x, e->exl3, rows, at);

    if (e->grain == 1)
        return end;
    x->tiled = e->exl3 ? x->data : (uint16_t *)end;
    return e->exl3 ? end : end + x->plane * sizeof(*x->tiled);
}

// Lays out scratch for passes of e->places places from `at` on; returns its end. Outputs replace
// the inputs of gate and up.
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
    e->lots = e->a.experts < picks ? e->a.experts : picks;
    e->lots = (picks + e->lots * (e->lot + e->grain - 1)) / e->lot;
    e->heads = (int32_t *)at;
    at += mat_round_up((size_t)passes * (size_t)(e->lots + 1) * sizeof(int32_t), MAT_ALIGN);
    at = lay_inputs(e, &e->h, e->places, at);
    e->out = (float *)at;
    inputs = at + all * (size_t)e->ldo * sizeof(float);
    end = lay_inputs(e, &e->x, 2 * e->places, at);
    at = end > inputs ? end : inputs;
    e->zmat = all * (size_t)e->ldh;
    e->hidden = (float *)at;
    return at + 2 * e->zmat * sizeof(float);
}

// One launch for each kind of weights of the call.
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
    p->grain = e->grain;
    p->heads = e->heads;
    p->lots = e->first < e->picks ? e->lots : 0;
    p->lot = e->lot;
    for (uint32_t left = e->a.kinds; left; left &= left - 1) {
        uint32_t kind = left & -left;

        p->strips = (int)blocks_for((size_t)outputs, kind >= MAT_KIND_EXL3 ? EXL3_BLOCK : 64);
        strip_launch_kind(q, kind, p, dim3((unsigned)p->strips, across));
    }
}

// The counters of few_launch, in the lane's tickets; behind `made` the tickets of the strips.
enum { TAKEN = 0, READY = FEW_LINE, DONE = 2 * FEW_LINE, MADE = 3 * FEW_LINE };

// Whether the lane has enough counters for so many places.
static bool counts_fit(const struct expert_rows *e, int places)
{
    size_t strips = blocks_for((size_t)e->ldh, 64) + blocks_for((size_t)e->ldo, 64);

    return blocks_for((size_t)e->ldh, 64) <= FEW_LINE * 32 &&
           MADE + (size_t)places * (FEW_LINE + strips) <= CUDA_TICKETS;
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
                            .seats = count + CUDA_TICKETS,
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
    unsigned groups = blocks_for((size_t)e->places, GROUP);
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
                                  .ws = { a->s1, a->s3 },
                                  .matrices = 2 };
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
                                   .ws = { a->s2 },
                                   .matrices = 1 };

    launch_behind(s, many_inputs, dim3(groups * (unsigned)(e->x.ld / EXL3_BLOCK), 2), THREADS, 0,
                  *e);
    if (a->inter > 0) {
        products(q, e, &first, a->inter, 2);
        launch_behind(s, many_hidden, groups * (unsigned)(e->h.ld / EXL3_BLOCK), THREADS, 0, *e);
        products(q, e, &second, a->dim, 1);
    }
    launch_behind(s, many_outputs,
                  dim3(blocks_for((size_t)a->dim, WARPS * EXL3_BLOCK), (unsigned)a->rows), THREADS,
                  0, *e);
}

// Split-K of the experts: into how many splits the inputs of each of `strips` strips are cut. By
// shape and device alone, so that a row's bits do not depend on the call: minimises the modelled
// time of one row's experts, the rounds of items and half of an item for the tail.
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
    // Strips of FP8 and FP4 are half as wide as those of EXL3 and take as long; bf16 takes half.
    int wide = a->kinds & 1u << DTYPE_BF16 ? 64 : EXL3_BLOCK;

    e->splits[0] = few_splits(q, 2 * e->ldh / wide * experts, strip_pieces(up));
    e->splits[1] = few_splits(q, e->ldo / wide * experts, strip_pieces(down));
}

// Launches few.cuh for as many rows at a time as scratch has room for.
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
    expert_sort(q, &e->a, e->picks, most, e->lot, e->lots, e->grain, e->order, e->place, e->heads);
    for (; e->first < all; e->first += most, e->heads += e->lots + 1) {
        e->places = all - e->first < most ? all - e->first : most;
        many_rows(q, e);
    }
}

void strip_moe(struct queue *q, const struct moe_args *a)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    struct expert_rows e = { .a = *a };
    size_t room = cuda_lane(q)->scratch_bytes, one;
    int all;

    e.x.ld = e.ldo = (int)mat_round_up((size_t)a->dim, EXL3_BLOCK);
    e.h.ld = e.ldh = (int)mat_round_up((size_t)a->inter, EXL3_BLOCK);
    e.exl3 = a->kinds % MAT_KIND_EXL3 == 0;
    cut_inputs(q, &e);
    e.wide = a->rows > FEW_MOST || a->rows * a->k > FEW_PICKS || a->mixed || a->inter == 0 ||
             a->kinds & EXPERT_KINDS_LONG || !counts_fit(&e, a->rows * (a->k + 1));
    e.grain = d->crowds && a->kinds >= MAT_KIND_EXL3 ? GROUP : 1;
    e.many = e.wide && e.exl3 &&
             (size_t)a->rows * (size_t)a->k >
                 (size_t)a->experts * (e.grain > 1 ? CROWD_FROM : WIDE_MANY_FROM);
    e.lot = e.grain == 1 ? wide_rows(a->kinds, e.many)
            : e.many     ? CROWD_MANY * GROUP
                         : CROWD_FEW * GROUP;
    e.picks = e.wide ? a->rows * a->k : a->k;
    all = e.picks + (e.wide && !a->s1 ? 0 : e.wide ? a->rows : 1);
    e.places = e.wide ? GROUP : all;
    one = (size_t)(uintptr_t)(e.wide ? lay_many(&e, NULL) : lay_few(&e, NULL));
    if (one > room || (a->in == CODEC_QW && a->dim % 32)) {
        queue_fail(q, -EINVAL,
                   "moe: %d experts of %d x %d need %zu bytes of scratch, there are %zu", a->k,
                   a->inter, a->dim, one, room);
        return;
    }
    if (e.wide) { // the fewest passes that fit, of equal size
        for (int passes = 1;; passes++) {
            e.places = (int)mat_round_up(blocks_for((size_t)all, passes), GROUP);
            if ((size_t)(uintptr_t)lay_many(&e, NULL) <= room &&
                (e.grain == 1 || e.lots + e.places / e.lot + 1 <= CROWD_LOTS))
                break;
        }
        many_passes(q, &e, all);
    } else {
        few_passes(q, &e, (int)(room / one));
    }
    queue_note(q, "moe");
}
