// strips.cu owns the dense product of bf16 and quantised weights (ops matmul and matmuls): it cuts
// the product into groups, strips and splits, and chooses the kernel: thin.cuh, narrow.cuh, from 65
// rows on sheet.cu, or wide.cuh where the outputs of a group are no whole blocks of 128. Inputs
// that blocks do not make themselves, and the sums of wide.cuh, lie in the queue's scratch; where
// it is too small for all rows the product is done in several passes over the rows.
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sheet.cuh"
#include "kernels/cuda/thin.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WIDE_FROM 64 // rows up to which narrow.cuh is used: it reads the weights once for 16 rows
#define WARPS (THREADS / CUDA_WARP)
#define PASS_VALUES (32 << 20) // outputs of a pass over many rows, at most

struct rows_in {
    struct mat w;
    struct strip_x x;
    const float *from;
    int rows, groups, local, cut;
    enum codec in;
};

// One warp for each block of 128 inputs of a row; blockIdx.y counts the sets of outputs that share
// their inputs. Bound by bytes.
__global__ static void take_rows(const __grid_constant__ struct rows_in p)
{
    int blocks = p.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP, variant = (int)blockIdx.y;
    int row = i / blocks, k0 = i % blocks * EXL3_BLOCK, slices = p.w.q.slices ? p.w.q.slices : 1;
    int group = variant * p.cut / p.local, slice = variant * p.cut / (p.w.rows / slices);
    const float *from =
        p.from + ((size_t)row * (size_t)p.groups + (size_t)group) * (size_t)p.w.cols;
    float v[4];

    dependency_wait();
    if (row >= p.rows)
        return;
    take_four(from, k0 + 4 * lane, p.w.cols, v);
    put_any(p.x, p.w, p.w.suh + (size_t)slice * (size_t)p.x.ld + k0, p.in, variant * p.rows + row,
            k0, v);
}

// One warp for the outputs of a row in a strip, from the sums of wide.cuh. Bound by bytes.
__global__ static void give_rows(const __grid_constant__ struct strip_launch p)
{
    int parts = p.groups * p.parts, i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;
    int row = i / parts, part = i % parts, wide = strip_outputs(p.w);
    int lane = (int)threadIdx.x % CUDA_WARP, begin = part / p.parts * p.local;
    int n0 = (begin / wide + part % p.parts) * wide;
    float v[4];

    if (row >= p.rows)
        return;
    take_outputs(p.z + (size_t)row * (size_t)p.ldz + (size_t)(part * wide), p.w, n0, wide, v);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int n = n0 + 4 * lane + k;

        if (4 * lane < wide && n >= begin && n < begin + p.local)
            p.y[(size_t)row * (size_t)p.w.rows + (size_t)n] = rounded(v[k], p.round);
    }
}

void strip_launch_kind(struct queue *q, uint32_t kind, const struct strip_launch *p, dim3 grid)
{
    if (kind == fp8_codes::KIND)
        strip_go<fp8_codes>(q, p, grid);
    else if (kind == fp4_codes<DTYPE_MXFP4>::KIND)
        strip_go<fp4_codes<DTYPE_MXFP4>>(q, p, grid);
    else if (kind == fp4_codes<DTYPE_NVFP4>::KIND)
        strip_go<fp4_codes<DTYPE_NVFP4>>(q, p, grid);
    else if (kind == bf16_codes::KIND)
        strip_go<bf16_codes>(q, p, grid);
    else if (kind & EXPERT_KINDS_LONG)
        long_launch(q, kind, p, grid);
    else if (p->wide && p->grain > 1)
        crowd_launch(q, kind, p);
    else
        for (int bits2 = 2; bits2 <= 16; bits2++)
            if (kind == MAT_KIND_EXL3 << bits2)
                strip_launch_exl3(q, bits2, p, grid);
}

extern "C" cudaError_t cuda_strip_limits(int shared_max)
{
    cudaError_t e = shared_max < WIDE_ROOM ? cudaErrorInvalidConfiguration : cudaSuccess;

    e = strip_limits<fp8_codes>(e);
    e = strip_limits<fp4_codes<DTYPE_MXFP4>>(e);
    e = strip_limits<fp4_codes<DTYPE_NVFP4>>(e);
    e = strip_limits<bf16_codes>(e);
    return thin_limits(strip_limits_exl3(e), shared_max);
}

static int gcd(int a, int b)
{
    while (b) {
        int r = a % b;

        a = b;
        b = r;
    }
    return a;
}

// Whether w can be cut into its groups and slices; *cut: adjacent outputs that share their inputs.
static bool cut_of(struct queue *q, const struct matmul_args *a, int groups, int *cut)
{
    const struct mat *w = a->w;
    int slices = w->q.slices ? w->q.slices : 1;

    if (groups < 1 || slices < 1 || w->rows % groups || w->rows % slices) {
        queue_fail(q, -EINVAL, "matmul: %d outputs in %d groups, %d slices", w->rows, groups,
                   slices);
        return false;
    }
    *cut = w->rows / groups;
    if (w->dtype != DTYPE_EXL3 || w->rows == 0)
        return true;
    *cut = gcd(*cut, w->rows / slices);
    if (*cut < w->rows && *cut % EXL3_BLOCK) {
        queue_fail(q, -EINVAL, "matmul: %d outputs in %d groups, %d slices; EXL3 is cut at blocks",
                   w->rows, groups, slices);
        return false;
    }
    return true;
}

// Queue p->rows rows of the call from `first` on. at: room for their inputs; NULL if blocks make
// them.
static void some_rows(struct queue *q, struct strip_launch *p, const struct matmul_args *a,
                      int first, char *at)
{
    struct rows_in in = { .w = p->w, .groups = p->groups, .local = p->local, .in = p->in };
    int variants = p->w.rows / p->cut, blocks = p->groups * p->parts;
    bool exl3 = p->w.dtype == DTYPE_EXL3;

    p->y = a->y + (size_t)first * (size_t)p->w.rows;
    p->from = a->x + (size_t)first * (size_t)p->groups * (size_t)p->w.cols;
    if (p->wide && sheet_fits(p)) {
        char *end = (char *)cuda_lane(q)->scratch + cuda_lane(q)->scratch_bytes;

        sheet_matmul(q, p, at, (size_t)(end - at));
        return;
    }
    if (at) {
        p->zrows = p->rows;
        p->z = (float *)strip_x_place(&p->x, exl3, variants * p->rows, at);
        in.x = p->x;
        in.from = p->from;
        in.rows = p->rows;
        in.cut = p->cut;
        if (p->x.ld)
            launch(q, take_rows,
                   dim3(blocks_for((size_t)p->rows * (size_t)(p->x.ld / EXL3_BLOCK), WARPS),
                        (unsigned)variants),
                   THREADS, 0, in);
    }
    if (p->wide) {
        strip_launch_kind(q, mat_kind(&p->w), p, dim3((unsigned)blocks, 1));
        launch_behind(cuda_stream(q), give_rows,
                      blocks_for((size_t)p->rows * (size_t)blocks, WARPS), THREADS, 0, *p);
    } else {
        strip_launch_kind(q, mat_kind(&p->w), p, dim3((unsigned)p->splits, (unsigned)blocks));
    }
}

// Whether blocks make the inputs of so many rows themselves (narrow.cuh).
static bool own_inputs(const struct strip_launch *p, int rows)
{
    size_t sums = narrow_sums((rows > STRIP_TOKENS ? 2 : 1) * STRIP_TOKENS);
    int each = rows > STRIP_TOKENS ? 2 * STRIP_TOKENS : rows;
    bool exl3 = p->w.dtype == DTYPE_EXL3;

    return !p->wide && (exl3 || p->w.dtype == DTYPE_BF16) && rows * p->span / 2 <= NARROW_TASKS &&
           rows * p->span / 2 * p->splits * p->groups * p->parts <= NARROW_AGAIN &&
           (size_t)each * narrow_row(p->span, exl3) <= NARROW_SHARED - sums;
}

// Describe the product in p, all but its splits; false: there is nothing to do, or it failed.
static bool cut_product(struct queue *q, const struct matmul_args *a, struct strip_launch *p)
{
    const struct mat *w = a->w;
    int wide = strip_outputs(*w);

    *p = (struct strip_launch){ .role = STRIP_DENSE };
    p->in = a->in;
    p->round = a->round;
    p->w = *w;
    if (w->dtype > DTYPE_COUNT && w->q.layout != LAYOUT_DEVICE) {
        queue_fail(q, -EINVAL, "matmul: weights packed for another backend");
        return false;
    }
    p->groups = a->groups ? a->groups : 1;
    if (!cut_of(q, a, p->groups, &p->cut) || w->rows == 0)
        return false;
    if ((a->in == CODEC_QW && (w->dtype == DTYPE_FP8 || w->dtype == DTYPE_MXFP4) && w->cols % 32) ||
        (w->dtype == DTYPE_FP8 && w->q.block % 32)) {
        queue_fail(q, -EINVAL, "matmul: %d inputs, scales of %d", w->cols, (int)w->q.block);
        return false;
    }
    p->local = w->rows / p->groups;
    p->parts = (p->local + wide - 1) / wide + (p->local % wide && p->groups > 1);
    p->ldz = (int)mat_round_up((size_t)(p->groups * p->parts * wide), EXL3_BLOCK);
    p->wide = p->many = a->rows > WIDE_FROM;
    p->rows = a->rows;
    p->from = a->x;
    p->y = a->y;
    return true;
}

// Set the splits of n products for one thin launch; false: thin.cuh cannot take them together.
static bool split_thin(const struct queue *q, struct strip_launch *p, int n)
{
    int strips = 0, splits;

    for (int i = 0; i < n; i++)
        strips += p[i].groups * p[i].parts;
    splits = thin_splits(q, &p->w, strips);
    for (int i = 0; i < n && splits; i++) {
        p[i].splits = splits;
        p[i].span = narrow_span(p[i].w, splits);
    }
    return splits > 0;
}

// Queue one product that thin.cuh does not take, in as many passes as scratch needs.
static void product_alone(struct queue *q, const struct matmul_args *a, struct strip_launch p)
{
    int most;
    bool exl3 = p.w.dtype == DTYPE_EXL3;
    size_t row, spare = 0, room = cuda_lane(q)->scratch_bytes;

    if (own_inputs(&p, a->rows)) {
        some_rows(q, &p, a, 0, NULL);
        queue_note(q, "matmul");
        return;
    }
    p.x.ld = (int)mat_round_up((size_t)p.w.cols, EXL3_BLOCK);
    row = (size_t)(p.w.rows / p.cut) * strip_x_bytes(&p.x, exl3) +
          (p.wide ? (size_t)p.ldz * sizeof(float) : 0);
    if (p.wide && sheet_fits(&p)) {
        size_t all = sheet_least(&p.w) * blocks_for((size_t)p.w.rows, EXL3_BLOCK);

        row -= (size_t)p.ldz * sizeof(float);
        spare = all < room / 2 ? all : sheet_least(&p.w) < room / 2 ? room / 2 : sheet_least(&p.w);
        spare += 8 * row; // rows are rounded up to groups of 8
    }
    most = row && room > spare + 2 * MAT_ALIGN ? (int)((room - spare - 2 * MAT_ALIGN) / row) : 0;
    if (most > a->rows || row == 0)
        most = a->rows;
    if (p.wide && most > PASS_VALUES / p.w.rows)
        most = PASS_VALUES / p.w.rows > 0 ? PASS_VALUES / p.w.rows : 1;
    if (most < 1) {
        queue_fail(q, -EINVAL, "matmul: %d x %d is too large: a row needs %zu bytes of %zu",
                   p.w.rows, p.w.cols, row, room);
        return;
    }
    for (int first = 0; first < a->rows; first += p.rows) {
        p.rows = a->rows - first < most ? a->rows - first : most;
        some_rows(q, &p, a, first, (char *)cuda_lane(q)->scratch);
    }
    queue_note(q, "matmul");
}

// Whether one launch can have both, whatever their outputs.
static bool alike(const struct strip_launch *a, const struct strip_launch *b)
{
    return mat_kind(&a->w) == mat_kind(&b->w) && a->w.cols == b->w.cols && a->groups == b->groups;
}

static void products(struct queue *q, const struct matmul_args *const *a, struct strip_launch *p,
                     int n)
{
    bool thin = split_thin(q, p, n);

    if (thin && thin_fits(q, p)) {
        thin_products(q, p, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (!thin && n > 1) { // one alone may still be thin
            products(q, a + i, p + i, 1);
            continue;
        }
        if (!thin) {
            int most = p[i].w.dtype == DTYPE_BF16 ? STRIP_PLACES_PLAIN : STRIP_PLACES;
            struct strip_cut cut = strip_cut_of(q, p[i].groups * p[i].parts, strip_pieces(p[i].w),
                                                most, p[i].w.dtype == DTYPE_EXL3 ? most - 1 : most);

            p[i].splits = cut.splits;
            p[i].roomy = cut.places < most;
            p[i].span = narrow_span(p[i].w, p[i].splits);
        }
        product_alone(q, a[i], p[i]);
    }
}

void strip_matmul(struct queue *q, const struct matmul_args *a)
{
    struct strip_launch p;

    if (cut_product(q, a, &p))
        products(q, &a, &p, 1);
}

void strip_matmuls(struct queue *q, const struct matmuls_args *a)
{
    struct strip_launch p[MATMULS_MAX];
    const struct matmul_args *of[MATMULS_MAX];
    int n = 0;

    for (int i = 0; i < a->n; i++) {
        if (a->of[i].w->dtype != DTYPE_EXL3) {
            cuda_matmul(q, &a->of[i]);
        } else if (cut_product(q, &a->of[i], &p[n])) {
            of[n++] = &a->of[i];
        }
    }
    for (int first = 0, end; first < n; first = end) {
        end = first + 1;
        for (int i = end; i < n; i++)
            if (alike(&p[first], &p[i])) {
                struct strip_launch one = p[end];
                const struct matmul_args *a_one = of[end];

                p[end] = p[i];
                of[end++] = of[i];
                p[i] = one;
                of[i] = a_one;
            }
        products(q, of + first, p + first, end - first);
    }
}
