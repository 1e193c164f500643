// strip - the product of weights that matrix instructions read: a block takes a strip of outputs, a
// share of the inputs and up to 16 rows. codes.cuh says how codes become operands, strips.cu what
// happens to the rows before and to the sums behind.
//
// Weights are the 16 rows of an m16n8k16 instruction and rows of the window its 8 columns, so a
// decoded weight serves all rows. What a row's sum is made of:
//   the inputs are cut in units of 64; units are dealt, in order, to splits times STRIP_WARPS parts;
//   a part is one chain of instructions, k ascending, from 0;
//   parts of a split add up in order, and then splits in order.
// How many splits there are depends on the shape alone, so a row has the same bits in every window.
//
// A row of inputs lies as lanes read it: of each unit, lane quarter t has the values 2t, 2t + 1,
// 2t + 8, 2t + 9 of its four k-steps side by side, 32 bytes. EXL3 has f16 inputs, rotated. Others
// have x as a sum of up to three bf16 planes, which is exact; a byte for each unit says how many of
// them are not zero, and a row that needs fewer than its neighbours adds zeros.
#ifndef TANDEM_KERNELS_CUDA_STRIP_CUH
#define TANDEM_KERNELS_CUDA_STRIP_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/outputs.cuh"

#define STRIP_WARPS 8
#define STRIP_THREADS (STRIP_WARPS * CUDA_WARP)
#define STRIP_UNIT 64    // inputs
#define STRIP_TOKENS 8   // rows of an instruction
#define STRIP_PLANES 3   // of inputs that are not rotated
#define STRIP_BLOCKS 264 // that a dense product is cut into at most, where it has fewer strips

// Rows of inputs, [planes][rows][ld], and [rows][ld / STRIP_UNIT] counts of planes.
struct strip_x {
    uint16_t *data;
    uint8_t *count;
    size_t plane;
    int ld; // a multiple of 128
};

// What the blocks of a launch work on. Dense: grid (parts of all groups, splits, lots of rows).
// Experts: grid (strips, splits * matrices, picks and lots of the shared expert's rows).
struct strip_launch {
    struct mat w; // dense
    struct strip_x x;
    float *z; // [matrices][splits][zrows][ldz] sums of a split
    size_t zmat;
    int zrows, ldz;
    int splits;
    bool wide; // by wide.cuh, which adds splits up itself
    int rows;
    int groups, parts, local,
        cut; // dense: outputs of a group are `local`, `cut` share their inputs
    float *y;
    enum round round;
    // experts: order NULL where dense
    const struct member *order;      // as expert_sort leaves it
    const struct mat *we[2], *ws[2]; // matrices of routed experts and of the shared one
    int matrices, picks;             // each matrix has inputs of its own
};

// A matrix of outputs that lie together; which strip, which rows of x and z.
struct strip_job {
    struct mat w;
    int strip, split, splits;
    int x0, z0, n; // first row of inputs and of sums, rows
    int column;    // of z
    size_t z;      // where the matrix begins in z
};

// strip_lay - where input i of a unit lies in it.
__host__ __device__ static inline int strip_lay(int i)
{
    return i % 8 / 2 * 16 + i / 16 * 4 + i % 16 / 8 * 2 + i % 2;
}

__host__ __device__ static inline int strip_units(int cols)
{
    return (int)(mat_round_up((size_t)cols, EXL3_BLOCK) / STRIP_UNIT);
}

// strip_outputs - outputs of a strip of w.
__host__ __device__ static inline int strip_outputs(const struct mat &w)
{
    return w.dtype == DTYPE_EXL3 ? EXL3_BLOCK : 64;
}

__host__ __device__ static inline int strip_splits(int strips, int cols)
{
    int most = (strip_units(cols) + STRIP_WARPS - 1) / STRIP_WARPS;
    int want = STRIP_BLOCKS / (strips ? strips : 1);

    want = want < most ? want : most;
    return want > 1 ? want : 1;
}

// Experts have many strips: those of all who were chosen.
__host__ __device__ static inline int strip_splits_expert(int cols)
{
    int n = strip_units(cols) / (2 * STRIP_WARPS);

    return n > 1 ? n : 1;
}

// The units of a part are first .. first of the next part - 1.
__device__ static inline int part_first(int units, int part, int parts)
{
    return (int)((long long)units * part / parts);
}

__device__ static inline uint4 load_once(const uint4 *p)
{
    uint4 v;

    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

template <bool F16>
__device__ static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A piece of the inputs of NT times 8 rows by a piece of a strip: k-step after k-step.
template <class C, int NT>
__device__ static inline void piece_product(const C &codes, const typename C::piece &piece,
                                            const uint4 (&b)[NT][C::STEPS / 2],
                                            float (&acc)[C::TILES][NT][4])
{
#pragma unroll
    for (int step = 0; step < C::STEPS; step++)
#pragma unroll
        for (int t = 0; t < C::TILES; t += 2) {
            uint32_t a[2][4];

            codes.operands(piece, step, t, a);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int r = 0; r < NT; r++) {
                    uint4 x = b[r][step / 2]; // two k-steps in 16 bytes

                    mma<C::F16>(acc[t + k][r], a[k], step % 2 ? x.z : x.x, step % 2 ? x.w : x.y);
                }
        }
}

// ---- which block does what ------------------------------------------------------------------

__device__ static inline bool job_dense(const struct strip_launch &p, int rows, struct strip_job *j)
{
    int wide = strip_outputs(p.w), group = (int)blockIdx.x / p.parts;
    int begin = group * p.local, first = (int)blockIdx.z * rows;

    j->w = p.w;
    j->strip = begin / wide + (int)blockIdx.x % p.parts;
    j->split = (int)blockIdx.y;
    j->splits = p.splits;
    j->n = p.rows - first < rows ? p.rows - first : rows;
    j->x0 = (j->strip * wide > begin ? j->strip * wide : begin) / p.cut * p.rows + first;
    j->z0 = first;
    j->column = (int)blockIdx.x * wide;
    j->z = 0;
    return j->strip * wide < begin + p.local;
}

// Members of an expert lie side by side in the order; the first of every `rows` of them begins a
// job.
__device__ static inline bool job_expert(const struct strip_launch &p, uint32_t kind, int rows,
                                         struct strip_job *j)
{
    int y = (int)blockIdx.z, m = (int)blockIdx.y % p.matrices;

    if (y < p.picks) {
        struct member head = p.order[y];

        if (head.pick < 0 || head.place % rows != 0)
            return false;
        j->w = p.we[m][head.expert];
        j->n = head.left < rows ? head.left : rows;
        j->z0 = y;
    } else {
        int row = (y - p.picks) * rows;

        j->w = *p.ws[m];
        j->n = p.rows - row < rows ? p.rows - row : rows;
        j->z0 = p.picks + row;
    }
    j->x0 = m * (p.picks + p.rows) + j->z0;
    j->strip = (int)blockIdx.x;
    j->split = (int)blockIdx.y / p.matrices;
    j->splits = strip_splits_expert(j->w.cols);
    j->column = j->strip * strip_outputs(j->w);
    j->z = (size_t)m * p.zmat;
    return mat_kind(&j->w) == kind && j->split < j->splits && j->column < j->w.rows;
}

// ---- outputs --------------------------------------------------------------------------------

// A warp the outputs of a row in a part, from the sums of its splits.
__device__ static inline void give_part(const struct strip_launch &p, int row, int part)
{
    int wide = strip_outputs(p.w), lane = (int)threadIdx.x % CUDA_WARP;
    int begin = part / p.parts * p.local, n0 = (begin / wide + part % p.parts) * wide;
    float v[4];

    take_outputs(p.z + (size_t)row * (size_t)p.ldz + (size_t)(part * wide),
                 (size_t)p.zrows * (size_t)p.ldz, p.wide ? 1 : p.splits, p.w, n0, wide, v);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int n = n0 + 4 * lane + k;

        if (4 * lane < wide && n >= begin && n < begin + p.local)
            p.y[(size_t)row * (size_t)p.w.rows + (size_t)n] = rounded(v[k], p.round);
    }
}

// ---- the product ----------------------------------------------------------------------------

// Warps add their sums in order, a pair of tiles at a time.
template <int TILES, int NT>
__device__ static inline void strip_store(const float (&acc)[TILES][NT][4], float4 *part,
                                          const struct strip_launch &p, const struct strip_job &j)
{
    constexpr int SLOTS = 2 * NT * CUDA_WARP;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;

#pragma unroll
    for (int t = 0; t < TILES; t += 2) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int r = 0; r < NT; r++) {
                const float(&c)[4] = acc[t + i][r];

                part[warp * SLOTS + (i * NT + r) * CUDA_WARP + lane] =
                    make_float4(c[0], c[1], c[2], c[3]);
            }
        __syncthreads();
        if ((int)threadIdx.x < SLOTS) {
            float4 s = part[threadIdx.x];
            int row = warp % NT * STRIP_TOKENS + lane % 4 * 2;
            float *z = p.z + j.z +
                       ((size_t)j.split * (size_t)p.zrows + (size_t)(j.z0 + row)) * (size_t)p.ldz +
                       (size_t)(j.column + (t + warp / NT) * MAT_TILE + lane / 4);

            for (int w = 1; w < STRIP_WARPS; w++) {
                float4 o = part[w * SLOTS + (int)threadIdx.x];

                s.x += o.x;
                s.y += o.y;
                s.z += o.z;
                s.w += o.w;
            }
            if (row < j.n) {
                z[0] = s.x;
                z[8] = s.z;
            }
            if (row + 1 < j.n) {
                z[p.ldz] = s.y;
                z[p.ldz + 8] = s.w;
            }
        }
    }
}

// A block's strip for up to NT * STRIP_TOKENS rows: a warp a part. The codes of the next k-steps are
// on their way while those at hand are decoded. Bound by the bytes of the weights.
template <class C, int NT>
__global__ static void __launch_bounds__(STRIP_THREADS, NT == 1 ? C::BLOCKS : 1)
    strip_rows(const __grid_constant__ struct strip_launch p)
{
    __shared__ float4 part[STRIP_WARPS * 2 * NT * CUDA_WARP];
    constexpr int EACH = 4 / C::STEPS; // pieces of a unit
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    float acc[C::TILES][NT][4] = {};
    const uint16_t *x[NT];
    const uint8_t *count[NT];
    bool live[NT];
    struct strip_job j;
    int units, at, end;

    if (!(p.order ? job_expert(p, C::KIND, NT * STRIP_TOKENS, &j)
                  : job_dense(p, NT * STRIP_TOKENS, &j)))
        return;
    units = strip_units(j.w.cols);
    at = part_first(units, j.split * STRIP_WARPS + warp, j.splits * STRIP_WARPS) * EACH;
    end = part_first(units, j.split * STRIP_WARPS + warp + 1, j.splits * STRIP_WARPS) * EACH;
#pragma unroll
    for (int r = 0; r < NT; r++) {
        int row = r * STRIP_TOKENS + lane / 4;

        live[r] = row < j.n;
        row = j.x0 + (live[r] ? row : 0);
        x[r] = p.x.data + (size_t)row * (size_t)p.x.ld + lane % 4 * 16;
        count[r] = p.x.count + (size_t)row * (size_t)(p.x.ld / STRIP_UNIT);
    }
    C codes(j.w, j.strip, lane);
    typename C::piece now, next;
    uint4 b[NT][C::STEPS / 2], bn[NT][C::STEPS / 2];

    auto load_x = [&](int piece, int plane, uint4(&v)[NT][C::STEPS / 2]) {
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int i = 0; i < C::STEPS / 2; i++)
                v[r][i] = live[r] ? *(const uint4 *)(x[r] + (size_t)plane * p.x.plane +
                                                     (size_t)(piece / EACH) * STRIP_UNIT +
                                                     (piece % EACH * C::STEPS + 2 * i) * 4)
                                  : make_uint4(0, 0, 0, 0);
    };
    if (at < end) {
        codes.load(at, next);
        load_x(at, 0, bn);
    }
    for (; at < end; at++) {
        now = next;
#pragma unroll
        for (int r = 0; r < NT; r++)
#pragma unroll
            for (int i = 0; i < C::STEPS / 2; i++)
                b[r][i] = bn[r][i];
        if (at + 1 < end) {
            codes.load(at + 1, next);
            load_x(at + 1, 0, bn);
        }
        int planes = 1;

        if (!C::F16) {
            int most = 1;

#pragma unroll
            for (int r = 0; r < NT; r++) {
                int c = live[r] ? count[r][at / EACH] : 1;

                most = c > most ? c : most;
            }
            planes = __any_sync(FULL_MASK, most > 2) ? 3 : __any_sync(FULL_MASK, most > 1) ? 2 : 1;
        }
        if constexpr (C::SCALED) { // the scale is that of a few k-steps: a sum of their own
            float few[C::TILES][NT][4] = {};

            for (int plane = 0;;) {
                piece_product<C, NT>(codes, now, b, few);
                if (++plane == planes)
                    break;
                load_x(at, plane, b);
            }
#pragma unroll
            for (int t = 0; t < C::TILES; t++) {
                float by = codes.scale(at, t);

#pragma unroll
                for (int r = 0; r < NT; r++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        acc[t][r][c] = fmaf(by, few[t][r][c], acc[t][r][c]);
            }
        } else {
            for (int plane = 0;;) {
                piece_product<C, NT>(codes, now, b, acc);
                if (C::F16 || ++plane == planes)
                    break;
                load_x(at, plane, b);
            }
        }
    }
    strip_store<C::TILES, NT>(acc, part, p, j);
}

// strip_x_bytes - of a row of inputs of x.ld values for weights of this type.
static inline size_t strip_x_bytes(const struct strip_x *x, bool exl3)
{
    return (size_t)x->ld * 2 * (exl3 ? 1 : STRIP_PLANES) + (size_t)(x->ld / STRIP_UNIT);
}

// strip_x_place - rows of inputs begin at `at`; returns what follows them.
static inline char *strip_x_place(struct strip_x *x, bool exl3, int rows, char *at)
{
    x->plane = (size_t)rows * (size_t)x->ld;
    x->data = (uint16_t *)at;
    x->count = (uint8_t *)(at + x->plane * 2 * (exl3 ? 1 : STRIP_PLANES));
    return at + mat_round_up((size_t)rows * strip_x_bytes(x, exl3), MAT_ALIGN);
}

// strip_launch_kind - the product by weights of one kind (mat_kind), grid's x and y are set.
void strip_launch_kind(cudaStream_t s, uint32_t kind, const struct strip_launch *p, dim3 grid);
void strip_launch_exl3(cudaStream_t s, int bits2, const struct strip_launch *p, dim3 grid);

// strip_matmul, strip_moe - the ops, for weights of which some are quantised.
void strip_matmul(struct queue *q, const struct matmul_args *a);
void strip_moe(struct queue *q, const struct moe_args *a);

#endif
