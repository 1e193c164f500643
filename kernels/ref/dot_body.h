/* dot_body - the functions of dot.c for one instruction set; included once for each.
 *
 * DOT_NAME(f) is the set's name for f. A register holds DOT_LANES values, so a tile is DOT_PARTS
 * registers; DOT_SUMS tiles of sums fit beside what else is needed. DOT_F16(p) is a cast of
 * DOT_LANES f16 values in hardware, if there is one.
 */

#define DOT_PARTS (MAT_TILE / DOT_LANES)

typedef float DOT_NAME(vec) __attribute__((vector_size(4 * DOT_LANES)));
typedef float DOT_NAME(vec_mem) __attribute__((vector_size(4 * DOT_LANES), aligned(4), may_alias));
typedef uint32_t DOT_NAME(bits) __attribute__((vector_size(4 * DOT_LANES)));
typedef int32_t DOT_NAME(ints) __attribute__((vector_size(4 * DOT_LANES)));
typedef uint16_t DOT_NAME(half_mem)
    __attribute__((vector_size(2 * DOT_LANES), aligned(2), may_alias));

/* A part of a column as f32. Vectors travel by pointer: by value their ABI depends on the set. */
static ALWAYS_INLINE void DOT_NAME(column)(const void *data, size_t at, enum dtype t,
                                           DOT_NAME(vec) * out)
{
    const uint16_t *half = (const uint16_t *)data + at;
    DOT_NAME(bits) u;

    if (t == DTYPE_F32) {
        *out = *(const DOT_NAME(vec_mem) *)((const float *)data + at);
        return;
    }
#ifdef DOT_F16
    if (t == DTYPE_F16) {
        *out = (DOT_NAME(vec))DOT_F16(half);
        return;
    }
#endif
    u = __builtin_convertvector(*(const DOT_NAME(half_mem) *)half, DOT_NAME(bits));
    if (t == DTYPE_F16) { /* f32_from_f16 of numfmt.h, with masks for its choices */
        DOT_NAME(bits) a = u & 0x7fff, is = (DOT_NAME(bits))(a >= 0x7c00), normal, small;

        small =
            (DOT_NAME(bits))(__builtin_convertvector((DOT_NAME(ints))a, DOT_NAME(vec)) * 0x1p-24f);
        normal = (a << 13) + (is & 0x38000000u) + 0x38000000u; /* the second lifts 31 to 255 */
        is = (DOT_NAME(bits))(a < 0x400);
        *out = (DOT_NAME(vec))((is & small) | (~is & normal) | (u & 0x8000) << 16);
        return;
    }
    *out = (DOT_NAME(vec))(u << 16);
}

/* R rows against T tiles; R, T and t are constants where this is inlined. Part i of the T tiles'
 * column has sums acc[r * T * DOT_PARTS + i]. */
static ALWAYS_INLINE void DOT_NAME(block)(const struct dot_tiles *w, int first,
                                          const float *const *x, float *y, size_t ldy, bool onto,
                                          const int R, const int T, const enum dtype t)
{
    DOT_NAME(vec) acc[DOT_SUMS * DOT_PARTS], col[4];
    const float *xr[DOT_ROWS];
    size_t at = (size_t)first * w->tile_step, step = w->tile_step;
    const int parts = T * DOT_PARTS;
    const int ahead = DOT_PARTS > 1 ? 1 : T; /* parts of a column in registers at a time */
    int cols = w->cols;

#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        xr[r] = x[r];
#pragma GCC unroll 16
        for (int i = 0; i < parts; i++)
            acc[r * parts + i] = (DOT_NAME(vec)){ 0 };
    }
    if (onto) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
            for (int i = 0; i < parts; i++)
                acc[r * parts + i] =
                    *(const DOT_NAME(vec_mem) *)(y + (size_t)r * ldy + (size_t)i * DOT_LANES);
    }
    for (int k = 0; k < cols; k++, at += w->col_step) {
#pragma GCC unroll 16
        for (int i = 0; i < parts; i += ahead) {
#pragma GCC unroll 4
            for (int c = 0; c < ahead; c++)
                DOT_NAME(column)
            (w->data,
             at + (size_t)((i + c) / DOT_PARTS) * step + (size_t)((i + c) % DOT_PARTS * DOT_LANES),
             t, &col[c]);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int c = 0; c < ahead; c++)
                    acc[r * parts + i + c] += col[c] * xr[r][k];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int i = 0; i < parts; i++)
            *(DOT_NAME(vec_mem) *)(y + (size_t)r * ldy + (size_t)i * DOT_LANES) =
                acc[r * parts + i];
}

/* All tiles for R rows: as many tiles at a time as the registers hold, then the rest one by one. */
#define DOT_MANY(R) (DOT_SUMS / (R) >= 4 ? 4 : DOT_SUMS / (R) >= 2 ? 2 : 1)
#define DOT_ONE(R, D)                                                                              \
    do {                                                                                           \
        int i = 0;                                                                                 \
                                                                                                   \
        for (; i + DOT_MANY(R) <= tiles; i += DOT_MANY(R))                                         \
            DOT_NAME(block)                                                                        \
        (w, first + i, x, y + (size_t)i * MAT_TILE, ldy, onto, R, DOT_MANY(R), D);                 \
        for (; i < tiles; i++)                                                                     \
            DOT_NAME(block)(w, first + i, x, y + (size_t)i * MAT_TILE, ldy, onto, R, 1, D);        \
    } while (0)
#define DOT_FN(R)                                                                                  \
    static void DOT_NAME(rows_##R)(const struct dot_tiles *w, int first, int tiles,                \
                                   const float *const *x, float *y, size_t ldy, bool onto)         \
    {                                                                                              \
        switch (w->dtype) {                                                                        \
        case DTYPE_F32:                                                                            \
            DOT_ONE(R, DTYPE_F32);                                                                 \
            break;                                                                                 \
        case DTYPE_F16:                                                                            \
            DOT_ONE(R, DTYPE_F16);                                                                 \
            break;                                                                                 \
        default:                                                                                   \
            DOT_ONE(R, DTYPE_BF16);                                                                \
            break;                                                                                 \
        }                                                                                          \
    }

DOT_FN(1)
DOT_FN(2)
DOT_FN(3)
#if DOT_SUMS >= 4
DOT_FN(4)
#endif
#if DOT_SUMS >= 6
DOT_FN(5)
DOT_FN(6)
#endif
#if DOT_SUMS >= 8
DOT_FN(7)
DOT_FN(8)
#endif

static void DOT_NAME(rows)(const struct dot_tiles *w, int first, int tiles, const float *const *x,
                           int rows, float *y, size_t ldy, bool onto)
{
    typedef void rows_fn(const struct dot_tiles *, int, int, const float *const *, float *, size_t,
                         bool);
    static rows_fn *const fn[] = {
        DOT_NAME(rows_1),
        DOT_NAME(rows_2),
        DOT_NAME(rows_3),
#if DOT_SUMS >= 4
        DOT_NAME(rows_4),
#endif
#if DOT_SUMS >= 6
        DOT_NAME(rows_5),
        DOT_NAME(rows_6),
#endif
#if DOT_SUMS >= 8
        DOT_NAME(rows_7),
        DOT_NAME(rows_8),
#endif
    };
    const int most = (int)(sizeof(fn) / sizeof(fn[0]));

    while (rows > 0) {
        int n = rows < most ? rows : most;

        fn[n - 1](w, first, tiles, x, y, ldy, onto);
        rows -= n;
        x += n;
        y += (size_t)n * ldy;
    }
}

/* Blocks of d x d trade places with their neighbours, d = 1, 2, 4, ...: lane l of a pair of rows a,
 * b that lie d apart becomes DOT_UPPER in a and DOT_LOWER in b, counted through a and then b. */
#define DOT_UPPER(l, d) ((l) & (d) ? DOT_LANES + (l) - (d) : (l))
#define DOT_LOWER(l, d) ((l) & (d) ? DOT_LANES + (l) : (l) + (d))
#define DOT_MASK_4(f, d, l) f(l, d), f((l) + 1, d), f((l) + 2, d), f((l) + 3, d)
#if DOT_LANES == 4
#define DOT_MASK(f, d) ((DOT_NAME(ints)){ DOT_MASK_4(f, d, 0) })
#elif DOT_LANES == 8
#define DOT_MASK(f, d) ((DOT_NAME(ints)){ DOT_MASK_4(f, d, 0), DOT_MASK_4(f, d, 4) })
#else
#define DOT_MASK(f, d)                                                                             \
    ((DOT_NAME(ints)){ DOT_MASK_4(f, d, 0), DOT_MASK_4(f, d, 4), DOT_MASK_4(f, d, 8),              \
                       DOT_MASK_4(f, d, 12) })
#endif
#define DOT_SWAP(v, d)                                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < DOT_LANES; i++)                                   \
    {                                                                                              \
        DOT_NAME(vec) a = (v)[i];                                                                  \
                                                                                                   \
        if (i & (d))                                                                               \
            continue;                                                                              \
        (v)[i] = DOT_SHUFFLE(a, (v)[i + (d)], DOT_MASK(DOT_UPPER, d));                             \
        (v)[i + (d)] = DOT_SHUFFLE(a, (v)[i + (d)], DOT_MASK(DOT_LOWER, d));                       \
    }

/* Columns c .. c + DOT_LANES - 1 of as many rows, from row j on. */
static ALWAYS_INLINE void DOT_NAME(turn)(const float *rows, size_t ld, int j, int n, int c,
                                         float *out)
{
    DOT_NAME(vec) v[DOT_LANES];

#pragma GCC unroll 16
    for (int i = 0; i < DOT_LANES; i++) {
        v[i] = (DOT_NAME(vec)){ 0 };
        if (j + i < n)
            v[i] = *(const DOT_NAME(vec_mem) *)(rows + (size_t)(j + i) * ld + (size_t)c);
    }
    DOT_SWAP(v, 1)
    DOT_SWAP(v, 2)
#if DOT_LANES >= 8
    DOT_SWAP(v, 4)
#endif
#if DOT_LANES >= 16
    DOT_SWAP(v, 8)
#endif
#pragma GCC unroll 16
    for (int i = 0; i < DOT_LANES; i++)
        *(DOT_NAME(vec_mem) *)(out + (size_t)(c + i) * MAT_TILE + (size_t)j) = v[i];
}

static void DOT_NAME(transpose)(const float *rows, size_t ld, int n, int cols, float *out)
{
    for (int c = 0; c < cols; c += DOT_LANES)
        for (int j = 0; j < MAT_TILE; j += DOT_LANES)
            DOT_NAME(turn)(rows, ld, j, n, c, out);
}

#undef DOT_MASK
#undef DOT_MASK_4
#undef DOT_UPPER
#undef DOT_LOWER
#undef DOT_SWAP
#undef DOT_FN
#undef DOT_ONE
#undef DOT_MANY
#undef DOT_PARTS
#undef DOT_NAME
#undef DOT_LANES
#undef DOT_SUMS
#undef DOT_F16
