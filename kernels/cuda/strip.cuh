// strip - what the products on matrix instructions (mma m16n8k16, wgmma) share: thin.cuh and
// narrow.cuh (up to 16 rows a block), wide.cuh, sheet.cu and crowd.cu (more rows). codes.cuh turns
// codes into operands, rows.cuh rows into inputs, outputs.cuh sums into outputs.
//
// A strip is the unit in which weights are packed: 128 outputs for EXL3, else 64. Weights are the A
// operand (16 outputs x 16 inputs) and rows of the window the B operand (8 columns), so a decoded
// weight serves all rows. The sum over the inputs is a split-K sum of fixed order:
//   the inputs are cut into pieces of 32 or 64, which are dealt, in order, to splits * STRIP_WARPS
//   parts (experts: splits * FEW_WARPS); a part is one chain of instructions, k ascending, from 0;
//   the parts of a split are added in order, then the splits in order.
// The number of splits depends on the device and the shapes of a launch alone (op matmuls), so a
// row has the same bits in every window. The splits of a strip are the blocks of a cluster, which
// send their partial sums through distributed shared memory to the blocks that finish rows; where
// the clusters of a launch would not all be resident, they go through global memory (thin.cuh).
//
// A row of inputs is stored in units of 64, ordered so that a lane reads its B fragments with wide
// loads: lane t of a quad (lane % 4) has the values 2t, 2t + 1, 2t + 8, 2t + 9 of the unit's four
// k-steps, 32 adjacent bytes; for bf16 weights every fourth value from t on; for sheets, and for
// EXL3 experts in prompts, the order is that of tiles (group.cuh). Inputs of EXL3 are f16, rotated
// by a Hadamard transform. Other inputs are the exact sum of up to three bf16 planes; one byte for
// each unit counts the planes that are not zero, and a row that needs fewer than its neighbours
// adds zeros.
#ifndef TANDEM_KERNELS_CUDA_STRIP_CUH
#define TANDEM_KERNELS_CUDA_STRIP_CUH

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/outputs.cuh"

#define STRIP_WARPS 8
#define STRIP_THREADS (STRIP_WARPS * CUDA_WARP)
#define STRIP_UNIT 64            // inputs of a unit
#define STRIP_TOKENS 8           // rows of an instruction
#define STRIP_PLANES 3           // bf16 planes of inputs that are not rotated
#define NARROW_SHARED (48 << 10) // shared memory a block gets without opting in, narrow.cuh's limit
#define STRIP_SPLITS 8           // splits, and blocks of a cluster, at most
#define STRIP_PLACES 3           // resident blocks that registers allow on a multiprocessor
#define STRIP_PLACES_PLAIN 2     // the same for bf16 weights
#define FEW_WARPS 4              // warps of a block of few.cuh: parts of a split of experts
#define FEW_SPLITS 16            // splits of experts, at most
#define FEW_PICKS 384            // picks of a call that few.cuh takes, at most
#define FEW_MOST 64              // and rows

// Rows of inputs: data [planes][rows][ld], count [rows][ld / STRIP_UNIT] planes that are not zero.
struct strip_x {
    uint16_t *data;
    uint8_t *count;
    size_t plane; // values from plane to plane
    int ld;
    uint16_t *tiled; // EXL3 in prompts: [ld / STRIP_UNIT][rows / 8] groups of rows (group.cuh)
};

enum strip_role { STRIP_DENSE, STRIP_GATE_UP, STRIP_DOWN };

// What the blocks of a launch work on.
//   dense    grid (splits, parts of all groups, lots of rows)
//   wide     grid (strips or parts, matrices, ...): it adds splits up itself
struct strip_launch {
    enum strip_role role;
    int splits, rows;
    bool roomy;       // one resident block fewer on a multiprocessor, with more registers each
    struct strip_x x; // inputs; data NULL: blocks make their own from `from`
    const float *from;
    int ldfrom; // experts of many rows: values of a row of `from`
    int span;   // units of inputs that a block makes itself, at most
    enum codec in;
    enum round round;
    float *y;
    // dense
    struct mat w;
    int groups, parts, local, cut; // a group has `local` outputs in `parts` strips; `cut` outputs
                                   // share their inputs
    // experts
    struct moe_args a;
    int picks, strips; // strips of a matrix
    int first, places; // of a pass over many rows: first place of the order, and how many
    // wide
    bool wide, many; // many: rows to each expert, or in all
    float *z;        // [matrices][zrows][ldz] sums
    size_t zmat;
    int zrows, ldz;
    const struct member *order; // as expert_sort leaves it
    const int32_t *heads; // of the pass, as expert_sort leaves them: [0] their number, then places
    int lots, lot;        // heads at most; rows of a lot at most
    int grain;            // lots end at multiples of so many places: 1, or 8 for crowd.cu
    const struct mat *we[2], *ws[2]; // matrices of routed experts and of the shared one
    int matrices;                    // 2: gate and up
};

// What a block of wide.cuh works on: a matrix, one of its strips, rows of x and z.
struct strip_job {
    struct mat w;
    int strip;
    int x0, z0, n; // first row of inputs and of sums, rows
    int column;    // of z
    size_t z;      // where the matrix begins in z
};

// strip_lay - where input i of a unit is stored in it.
__host__ __device__ static inline int strip_lay(int i)
{
    return i % 8 / 2 * 16 + i / 16 * 4 + i % 16 / 8 * 2 + i % 2;
}

// strip_lay_plain - the same for bf16 weights, where a lane of a quad has every fourth input.
__host__ __device__ static inline int strip_lay_plain(int i)
{
    return i % 4 * 16 + i / 4;
}

// strip_lay_tile_plain - for bf16 weights, in a row of a tile (group.cuh); other weights have the
// inputs of a tile in order.
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

// strip_halves - halves of a unit in a piece: 1 or, where bits2 is odd, 2 (a piece is a whole
// unit).
__host__ __device__ static inline int strip_halves(const struct mat &w)
{
    return w.dtype == DTYPE_EXL3 && w.q.bits2 % 2 ? 2 : 1;
}

__host__ __device__ static inline int strip_pieces(const struct mat &w)
{
    return strip_units(w) * 2 / strip_halves(w);
}

// Blocks that share the inputs of a strip (split-K), and resident blocks of a multiprocessor.
struct strip_cut {
    int splits, places;
};

// strip_cut_of - the cut of `strips` strips for which the estimated time is least, with `fewest` to
// `most` blocks on a multiprocessor: pieces of the longest part times the blocks of a
// multiprocessor, plus a cost for each wave of blocks. A block alone on a multiprocessor counts as
// if all its places were taken, because it decodes no faster: a warp mostly waits for its own
// instructions. Ties go to fewer places, so to more registers.
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
            // clusters leave gaps: of 132 multiprocessors of 3 blocks they fill 340 places
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

// part_first - the first piece of a part; it ends before the first piece of the next part.
__host__ __device__ static inline int part_first(int pieces, int part, int parts)
{
    return (int)((unsigned)pieces * (unsigned)part / (unsigned)parts);
}

// strip_x_bytes - bytes of a row of inputs of x->ld values, for EXL3 or other weights.
static inline size_t strip_x_bytes(const struct strip_x *x, bool exl3)
{
    return (size_t)x->ld * 2 * (exl3 ? 1 : STRIP_PLANES) + (size_t)(x->ld / STRIP_UNIT);
}

// strip_x_place - lay out rows of inputs from `at` on; returns the address behind them.
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

#define CROWD_FEW 8 // groups of 8 rows in a lot
#define CROWD_MANY 12
#define CROWD_LOTS 2048 // lots of a pass, at most

// crowd_launch - the product by EXL3 experts of one kind for many rows; crowd.cu, where
// cuda_device.crowds is set.
void crowd_launch(struct queue *q, uint32_t kind, const struct strip_launch *p);

// lot_rows - rows of the lot that begins at place `at` of a pass when `left` rows are left: up to
// `lot`, ending where the grain says.
__host__ __device__ static inline int lot_rows(const struct strip_launch &p, int at, int lot,
                                               int left)
{
    return left < lot - at % p.grain ? left : lot - at % p.grain;
}

// shared_lot, shared_lots - where lot i of the shared expert begins in a pass, in lots of `rows`
// rows, and how many lots there are.
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

// long_launch - the product by experts of EXPERT_KINDS_LONG (f32, f16); moe.cu.
void long_launch(struct queue *q, uint32_t kind, const struct strip_launch *p, dim3 grid);

// strip_matmul, strip_matmuls - the ops for bf16 and coded weights; strip_moe - op moe for all
// weights.
void strip_matmul(struct queue *q, const struct matmul_args *a);
void strip_matmuls(struct queue *q, const struct matmuls_args *a);
void strip_moe(struct queue *q, const struct moe_args *a);

#endif
