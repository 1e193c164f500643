// strips.cu owns the dense product of quantised weights: rows go in, strips are multiplied, sums
// come out. Rows are taken as many at a time as the queue's scratch holds.
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/wide.cuh"

#define THREADS 256
#define WIDE_FROM 64 // rows that four narrow launches' blocks read the weights for
#define WARPS (THREADS / CUDA_WARP)

struct rows_in {
    struct mat w;
    struct strip_x x;
    const float *from;
    int rows, groups, local, cut;
    enum codec in;
};

// A warp a block of 128 inputs of a row, as the outputs that share them want it. Bound by bytes.
__global__ static void take_rows(const __grid_constant__ struct rows_in p)
{
    int blocks = p.x.ld / EXL3_BLOCK, lane = (int)threadIdx.x % CUDA_WARP;
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP, variant = (int)blockIdx.y;
    int row = i / blocks, k0 = i % blocks * EXL3_BLOCK, slices = p.w.q.slices ? p.w.q.slices : 1;
    int group = variant * p.cut / p.local, slice = variant * p.cut / (p.w.rows / slices);
    const float *from =
        p.from + ((size_t)row * (size_t)p.groups + (size_t)group) * (size_t)p.w.cols;
    float v[4];

    if (row >= p.rows)
        return;
    take_four(from, k0 + 4 * lane, p.w.cols, v);
    put_inputs(p.x, p.w, p.w.suh + (size_t)slice * (size_t)p.x.ld + k0, p.in,
               variant * p.rows + row, k0, v);
}

// A warp the outputs of a row in a part. Bound by bytes.
__global__ static void give_rows(const __grid_constant__ struct strip_launch p)
{
    int parts = p.groups * p.parts, i = (int)blockIdx.x * WARPS + (int)threadIdx.x / CUDA_WARP;

    if (i / parts < p.rows)
        give_part(p, i / parts, i % parts);
}

void strip_launch_kind(cudaStream_t s, uint32_t kind, const struct strip_launch *p, dim3 grid)
{
    if (kind == fp8_codes::KIND)
        strip_go<fp8_codes>(s, p, grid);
    else if (kind == fp4_codes<DTYPE_MXFP4>::KIND)
        strip_go<fp4_codes<DTYPE_MXFP4>>(s, p, grid);
    else if (kind == fp4_codes<DTYPE_NVFP4>::KIND)
        strip_go<fp4_codes<DTYPE_NVFP4>>(s, p, grid);
    else
        for (int bits2 = 2; bits2 <= 16; bits2++)
            if (kind == MAT_KIND_EXL3 << bits2)
                strip_launch_exl3(s, bits2, p, grid);
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

// Whether the groups and slices of w can be cut, with `cut` the outputs that share their inputs.
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

void strip_matmul(struct queue *q, const struct matmul_args *a)
{
    struct strip_launch p = { .w = *a->w, .round = a->round, .matrices = 1 };
    struct rows_in in = { .w = *a->w, .in = a->in };
    int wide = strip_outputs(p.w), variants, most;
    bool exl3 = p.w.dtype == DTYPE_EXL3;
    size_t row, room = cuda_queue(q)->scratch_bytes;
    char *at = (char *)cuda_queue(q)->scratch;

    if (p.w.q.layout != LAYOUT_DEVICE) {
        queue_fail(q, -EINVAL, "matmul: weights packed for another backend");
        return;
    }
    p.groups = a->groups ? a->groups : 1;
    if (!cut_of(q, a, p.groups, &p.cut) || p.w.rows == 0)
        return;
    if ((a->in == CODEC_QW && (p.w.dtype == DTYPE_FP8 || p.w.dtype == DTYPE_MXFP4) &&
         p.w.cols % 32) ||
        (p.w.dtype == DTYPE_FP8 && p.w.q.block % 32)) {
        queue_fail(q, -EINVAL, "matmul: %d inputs, scales of %d", p.w.cols, (int)p.w.q.block);
        return;
    }
    p.local = p.w.rows / p.groups;
    p.parts = (p.local + wide - 1) / wide + (p.local % wide && p.groups > 1);
    p.ldz = (int)mat_round_up((size_t)(p.groups * p.parts * wide), EXL3_BLOCK);
    p.splits = strip_splits(p.groups * p.parts, p.w.cols);
    p.x.ld = (int)mat_round_up((size_t)p.w.cols, EXL3_BLOCK);
    p.wide = a->rows > WIDE_FROM;
    variants = p.w.rows / p.cut;
    row = (size_t)variants * strip_x_bytes(&p.x, exl3) +
          (size_t)(p.wide ? 1 : p.splits) * (size_t)p.ldz * sizeof(float);
    most = (int)((room - 2 * MAT_ALIGN) / row);
    if (most < 1) {
        queue_fail(q, -EINVAL, "matmul: %d x %d is too large: a row needs %zu bytes of %zu",
                   p.w.rows, p.w.cols, row, room);
        return;
    }
    for (int first = 0; first < a->rows; first += p.rows) {
        p.rows = a->rows - first < most ? a->rows - first : most;
        p.zrows = p.rows;
        p.z = (float *)strip_x_place(&p.x, exl3, variants * p.rows, at);
        p.y = a->y + (size_t)first * (size_t)p.w.rows;
        in.x = p.x;
        in.from = a->x + (size_t)first * (size_t)p.groups * (size_t)p.w.cols;
        in.rows = p.rows;
        in.groups = p.groups;
        in.local = p.local;
        in.cut = p.cut;
        if (p.x.ld)
            take_rows<<<dim3(blocks_for((size_t)p.rows * (size_t)(p.x.ld / EXL3_BLOCK), WARPS),
                             (unsigned)variants),
                        THREADS, 0, cuda_stream(q)>>>(in);
        strip_launch_kind(cuda_stream(q), mat_kind(&p.w), &p,
                          dim3((unsigned)(p.groups * p.parts), (unsigned)p.splits));
        give_rows<<<blocks_for((size_t)p.rows * (size_t)(p.groups * p.parts), WARPS), THREADS, 0,
                    cuda_stream(q)>>>(p);
    }
    queue_note(q, "matmul");
}
