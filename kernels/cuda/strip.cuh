// strip - the product of weights that matrix instructions read: what narrow.cuh (up to 16 rows in a
// block) and wide.cuh (64) share. codes.cuh says how codes become operands, rows.cuh how rows become
// inputs, outputs.cuh how sums become outputs.
//
// Weights are the 16 rows of an m16n8k16 instruction and rows of the window its 8 columns, so a
// decoded weight serves all rows. What a row's sum is made of:
//   the inputs are cut in pieces of 32 or 64; pieces are dealt, in order, to splits times STRIP_WARPS
//   parts; a part is one chain of instructions, k ascending, from 0;
//   parts of a split add up in order, and then splits in order.
// How many splits there are depends on the device and the shapes of a launch alone (op matmuls), so a row has the same bits in every window.
// Splits of a strip are blocks of one cluster, which send their sums to the blocks that finish rows, or send them through memory
// where clusters would not run at once (thin.cuh).
//
// A row of inputs lies as lanes read it: of each unit, lane quarter t has the values 2t, 2t + 1,
// 2t + 8, 2t + 9 of its four k-steps side by side, 32 bytes; for bf16 weights every fourth value from t on;
// for sheets, and for experts of EXL3 in prompts, in the order of tiles (group.cuh). EXL3 has f16 inputs, rotated.
// Others have x as a sum of up to three bf16 planes, which is exact; a byte for each unit says how many of them are
// not zero, and a row that needs fewer than its neighbours adds zeros.
#ifndef TANDEM_KERNELS_CUDA_STRIP_CUH
#define TANDEM_KERNELS_CUDA_STRIP_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/outputs.cuh"

#define STRIP_WARPS 8
#define STRIP_THREADS (STRIP_WARPS * CUDA_WARP)
#define STRIP_UNIT 64            // inputs
#define STRIP_TOKENS 8           // rows of an instruction
#define STRIP_PLANES 3           // of inputs that are not rotated
#define NARROW_SHARED (48 << 10) // bytes a block gets without asking, and all that few rows take
#define STRIP_SPLITS 8           // blocks of a cluster, at most
#define STRIP_PLACES 3           // blocks whose registers a multiprocessor has room for
#define STRIP_PLACES_PLAIN 2     // the same for bf16 weights
#define FEW_WARPS 4              // of a block of few.cuh: parts of a split of experts
#define FEW_SPLITS 16            // of experts, at most
#define FEW_PICKS 384            // of a call that few.cuh takes
#define FEW_MOST 64              // and its rows

// Rows of inputs, [planes][rows][ld], and [rows][ld / STRIP_UNIT] counts of planes.
struct strip_x {
    uint16_t *data;
    uint8_t *count;
    size_t plane;
    int ld;
    uint16_t *tiled; // of EXL3 in prompts: [ld / STRIP_UNIT][rows / 8] groups of rows (group.cuh)
};

enum strip_role { STRIP_DENSE, STRIP_GATE_UP, STRIP_DOWN };

// What the blocks of a launch work on.
//   dense    grid (splits, parts of all groups, lots of rows)
//   wide     grid (strips or parts, matrices, ...): it adds splits up itself
struct strip_launch {
    enum strip_role role;
    int splits, rows;
    bool roomy;       // a multiprocessor has a block less than registers allow, with more of them
    struct strip_x x; // inputs; data NULL: blocks make their own from `from`
    const float *from;
    int ldfrom; // experts of many rows: values of a row of `from`
    int span;   // units of inputs that a block makes at most
    enum codec in;
    enum round round;
    float *y;
    // dense
    struct mat w;
    int groups, parts, local, cut; // outputs of a group are `local`, `cut` share their inputs
    // experts
    struct moe_args a;
    int picks, strips; // strips of a matrix
    int first, places; // of a pass over many rows: those of the order that it has
    // wide
    bool wide, many; // many: rows to each expert, or in all
    float *z;        // [matrices][zrows][ldz] sums
    size_t zmat;
    int zrows, ldz;
    const struct member *order; // as expert_sort leaves it
    const int32_t *heads; // the same, of the pass: their number, and where a block's rows begin
    int lots, lot;        // heads at most, of `lot` rows
    int grain;            // lots end where so many places do: 1, or 8 for crowd.cu
    const struct mat *we[2], *ws[2]; // matrices of routed experts and of the shared one
    int matrices;                    // 2: gate and up
};

// A matrix of outputs that lie together; which strip, which rows of x and z. Of wide.cuh.
struct strip_job {
    struct mat w;
    int strip;
    int x0, z0, n; // first row of inputs and of sums, rows
    int column;    // of z
    size_t z;      // where the matrix begins in z
};

// strip_lay - where input i of a unit lies in it.
__host__ __device__ static inline int strip_lay(int i)
{
    return i % 8 / 2 * 16 + i / 16 * 4 + i % 16 / 8 * 2 + i % 2;
}

// strip_lay_plain - the same for bf16 weights, whose lanes have every fourth input.
__host__ __device__ static inline int strip_lay_plain(int i)
{
    return i % 4 * 16 + i / 4;
}

// strip_lay_tile_plain - the same in a row of a tile (group.cuh), where other weights have inputs in order.
__host__ __device__ static inline int strip_lay_tile_plain(int i)
{
    return i / 16 * 16 + i % 4 * 2 + i / 4 % 2 + i / 8 % 2 * 8;
}

// strip_outputs - outputs of a strip of w.
__host__ __device__ static inline int strip_outputs(const struct mat &w)
{
    return w.dtype == DTYPE_EXL3 ? EXL3_BLOCK : 64;
}

__host__ __device__ static inline int strip_units(const struct mat &w)
{
    return (int)(mat_round_up((size_t)w.cols, strip_outputs(w)) / STRIP_UNIT);
}

// strip_halves - halves of a unit that a piece is: codes of odd widths come by the unit.
__host__ __device__ static inline int strip_halves(const struct mat &w)
{
    return w.dtype == DTYPE_EXL3 && w.q.bits2 % 2 ? 2 : 1;
}

__host__ __device__ static inline int strip_pieces(const struct mat &w)
{
    return strip_units(w) * 2 / strip_halves(w);
}

// How many blocks share the inputs of each strip, and how many a multiprocessor is to have.
struct strip_cut {
    int splits, places;
};

// strip_cut_of - of `strips` strips: the numbers for which, on the device's multiprocessors of up to `most` blocks each and
// no fewer than `fewest`, the longest part and the waves of blocks take least. A block alone decodes no faster than one of
// all places: a warp waits for itself most of the time. Of two that take as long the one with more registers.
static inline struct strip_cut strip_cut_of(const struct queue *q, int strips, int pieces, int most,
                                            int fewest)
{
    enum { WAVE = 4 };
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    int fit = d->shared_sm / NARROW_SHARED, least = 1 << 30;
    struct strip_cut best = { 1, most };

    most = fit < most ? (fit > 1 ? fit : 1) : most;
    fewest = fewest < most ? fewest : most;
    for (int places = fewest; places <= most; places++)
        for (int n = 1; n <= STRIP_SPLITS; n++) {
            int blocks = (strips * n + d->sms - 1) / d->sms;
            int each = (pieces + n * STRIP_WARPS - 1) / (n * STRIP_WARPS);
            // clusters do not fit everywhere: 340 blocks of them at once on 132 multiprocessors of 3
            int room = d->sms * places * (n > 1 ? 85 : 99) / 99;
            int cost = (blocks > places ? blocks : places) * each +
                       WAVE * ((strips * n + room - 1) / room);

            if (cost < least) {
                least = cost;
                best = { n, places };
            }
        }
    return best;
}

// The pieces of a part are first .. first of the next part - 1.
__host__ __device__ static inline int part_first(int pieces, int part, int parts)
{
    return (int)((unsigned)pieces * (unsigned)part / (unsigned)parts);
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

// strip_launch_kind - the product by weights of one kind (mat_kind); grid's x and y are set.
void strip_launch_kind(struct queue *q, uint32_t kind, const struct strip_launch *p, dim3 grid);
void strip_launch_exl3(struct queue *q, int bits2, const struct strip_launch *p, dim3 grid);

cudaError_t strip_limits_exl3(cudaError_t e);

#define CROWD_FEW 8 // groups of 8 rows of a lot
#define CROWD_MANY 12
#define CROWD_LOTS 2048 // of a pass, at most

// crowd_launch - the product by EXL3 experts of one kind for many rows. crowd.cu, for
// devices that say `crowds`.
void crowd_launch(struct queue *q, uint32_t kind, const struct strip_launch *p);

// Rows of a lot that begins at place `at` of a pass, if so many are left.
__host__ __device__ static inline int lot_rows(const struct strip_launch &p, int at, int lot,
                                               int left)
{
    return left < lot - at % p.grain ? left : lot - at % p.grain;
}

// Where lot i of so many rows of the shared expert begins in a pass, and how many there are.
__host__ __device__ static inline int shared_lot(const struct strip_launch &p, int i, int rows)
{
    int begin = p.picks > p.first ? p.picks - p.first : 0;

    return i > 0 ? begin / p.grain * p.grain + i * rows : begin;
}

__host__ __device__ static inline int shared_lots(const struct strip_launch &p, int rows)
{
    int begin = shared_lot(p, 0, rows), n = p.places - begin / p.grain * p.grain;

    return p.a.s1 && p.places > begin ? (n + rows - 1) / rows : 0;
}

// long_launch - the same for experts of EXPERT_KINDS_LONG.
void long_launch(struct queue *q, uint32_t kind, const struct strip_launch *p, dim3 grid);

// strip_matmul, strip_matmuls - the ops for weights that are operands of matrix instructions; strip_moe - the op.
void strip_matmul(struct queue *q, const struct matmul_args *a);
void strip_matmuls(struct queue *q, const struct matmuls_args *a);
void strip_moe(struct queue *q, const struct moe_args *a);

#endif
