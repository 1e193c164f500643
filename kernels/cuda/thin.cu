// thin.cu owns the launches of thin.cuh: whether a product is thin, its splits, its shared memory.
#include "kernels/cuda/thin.cuh"

#define ROWS (2 * STRIP_TOKENS)                          // rows of a launch, at most
#define MEETING (CUDA_MEETING / (ROWS * EXL3_BLOCK * 4)) // blocks whose sums have room there
#define SHARES 2                                         // warps of a part
#define LATER 4   // pieces of the longest part from which on codes come in two copies
#define PIECES 48 // of 32 inputs in a block, at most: with more narrow.cuh is faster

template <class C>
static void thin_go(struct queue *q, const struct thin_launch *p, dim3 grid, size_t shared)
{
    unsigned threads = SHARES * STRIP_THREADS, cluster = p->far ? 1 : grid.x;

    if (p->rows <= STRIP_TOKENS)
        launch_cluster(q, thin_rows<C, 1, SHARES, 1>, cluster, grid, threads, shared, *p);
    else
        launch_cluster(q, thin_rows<C, 2, SHARES, 1>, cluster, grid, threads, shared, *p);
}

cudaError_t thin_limits(cudaError_t e, int shared_max)
{
#define WIDTH(b)                                                                                   \
    if (e == cudaSuccess)                                                                          \
        e = shared_room(thin_rows<exl3_codes<b>, 1, SHARES, 1>, shared_max);                       \
    if (e == cudaSuccess)                                                                          \
        e = shared_room(thin_rows<exl3_codes<b>, 2, SHARES, 1>, shared_max);
    EXL3_WIDTHS(WIDTH)
#undef WIDTH
    return e;
}

static const struct cuda_device *device_of(const struct queue *q)
{
    return (const struct cuda_device *)q->dev;
}

// Whether the splits of so many strips can be clusters and all be resident: clusters leave gaps,
// about 85 of 99 places are usable.
static bool as_clusters(const struct queue *q, int strips, int splits)
{
    return splits == 1 || strips * splits <= device_of(q)->sms * 85 / 99;
}

static int log_of(int n) // rounded down
{
    return n > 1 ? 1 + log_of(n / 2) : 0;
}

// Bytes of shared memory of a block for so many rows; the offsets are left in t. The warps' sums
// lie behind the codes or, where that would exceed `most`, over codes that have been read.
static int lay_out(struct thin_launch *t, const struct mat *w, int rows, int splits, int most)
{
    int piece = w->q.bits2 * 256 * strip_halves(*w), span = narrow_span(*w, splits);
    int codes = (strip_pieces(*w) + splits - 1) / splits * piece;
    int parts = STRIP_WARPS * rows * NARROW_SUMS * (int)sizeof(float);
    int ends;

    t->peers_log = log_of(splits);
    t->blocks_log = log_of(span / 2 * 2 - 1);
    t->ld = span * STRIP_UNIT + NARROW_PAD;
    t->sums = THIN_HEAD + rows * t->ld * 2;
    ends = (rows + (1 << t->peers_log) - 1) >> t->peers_log;
    t->held = (int)mat_round_up(
        (size_t)(t->sums + ends * splits * NARROW_SUMS * (int)sizeof(float)), 128);
    t->parts = t->held + codes + parts <= most ? t->held + codes : t->held;
    return t->parts + (t->parts == t->held && codes > parts ? codes : parts);
}

// With more blocks than fit as clusters, sums go through global memory. That costs the time of a
// piece or two, so it is chosen only if it makes the longest part shorter by at least two pieces.
int thin_splits(const struct queue *q, const struct mat *w, int strips)
{
    const struct cuda_device *d = device_of(q);
    struct thin_launch t;
    int best = 0, least = 1 << 30; // pieces of the longest part

    if (w->dtype != DTYPE_EXL3 || w->cols == 0)
        return 0;
    for (int n = 1; n <= STRIP_SPLITS && strips * n <= d->sms && strips * n <= MEETING; n++) {
        int pieces = strip_pieces(*w), each = (pieces + n * STRIP_WARPS - 1) / (n * STRIP_WARPS);

        if ((pieces + n - 1) / n * strip_halves(*w) <= PIECES &&
            lay_out(&t, w, 1, n, 0) <= d->shared_max &&
            (as_clusters(q, strips, n) || each + 1 < least)) {
            best = n;
            least = each;
        }
    }
    return best;
}

bool thin_fits(const struct queue *q, const struct strip_launch *p)
{
    struct thin_launch t;

    return p->rows <= ROWS && lay_out(&t, &p->w, p->rows, p->splits, 0) <= device_of(q)->shared_max;
}

// Whether the codes of a part come in two copies: only if parts are that long, and if all inputs
// can be requested between the two. That holds up to two (row, block of 128) pairs for each warp,
// or one block of four rows where four are made at a time.
static bool in_two(const struct thin_launch *t, const struct strip_launch *p)
{
    int parts = p->splits * STRIP_WARPS, each = (strip_pieces(p->w) + parts - 1) / parts;

    return each >= LATER && p->rows <= 2 * (SHARES * STRIP_WARPS >> t->blocks_log);
}

// Describe n products in t; returns their strips.
static int fill_in(struct thin_launch *t, const struct strip_launch *p, int n)
{
    int strips = 0;

    t->from = p->from;
    t->rows = p->rows;
    t->groups = p->groups;
    t->cols = p->w.cols;
    t->aligned = p->w.cols % 4 == 0 && (uintptr_t)p->from % sizeof(float4) == 0;
    t->pieces = strip_pieces(p->w);
    t->by_parts = (uint32_t)((((uint64_t)1 << 32) - 1) / (unsigned)(p->splits * STRIP_WARPS) + 1);
    t->strip = (int)(mat_strip_bytes(p->w.dtype, &p->w.q, p->w.cols) / sizeof(uint4));
    for (int i = 0; i < n; i++) {
        const struct mat *w = &p[i].w;
        struct thin_mat *m = &t->m[i];
        int slices = w->q.slices ? w->q.slices : 1;

        strips += (w->rows + EXL3_BLOCK - 1) / EXL3_BLOCK;
        m->codes = (const uint4 *)w->data;
        m->suh = w->suh;
        m->svh = w->svh;
        m->bias = w->bias;
        m->y = p[i].y;
        m->rows = w->rows;
        m->end = strips;
        m->book = (enum codebook)w->q.codebook;
        m->round = p[i].round;
        if (p[i].cut == w->rows)
            continue;
        m->cut = p[i].cut / EXL3_BLOCK;
        m->per_group = p[i].local / p[i].cut;
        m->per_slice = w->rows / slices / p[i].cut;
    }
    return strips;
}

void thin_products(struct queue *q, const struct strip_launch *p, int n)
{
    struct thin_launch t = {};
    size_t shared = (size_t)lay_out(&t, &p->w, p->rows, p->splits, device_of(q)->shared_max);
    int strips = fill_in(&t, p, n);

    t.later = in_two(&t, p);
    if (!as_clusters(q, strips, p->splits))
        t.far = (uint4 *)cuda_lane(q)->meeting;
    switch (p->w.q.bits2) {
#define WIDTH(b)                                                                                   \
    case b:                                                                                        \
        thin_go<exl3_codes<b>>(q, &t, dim3((unsigned)p->splits, (unsigned)strips), shared);        \
        break;
        EXL3_WIDTHS(WIDTH)
#undef WIDTH
    }
    queue_note(q, n > 1 ? "matmuls" : "matmul");
}
