/* dot_body - the functions of dot.c for one instruction set; included once for each.
 *
 * DOT_NAME(f) is the set's name for f, DOT_ACCS how many sums of MAT_TILE outputs its registers can hold,
 * DOT_WIDE whether MAT_TILE values are one register.
 */

typedef float DOT_NAME(vec) __attribute__((vector_size(4 * MAT_TILE)));
typedef float DOT_NAME(vec_mem) __attribute__((vector_size(4 * MAT_TILE), aligned(4), may_alias));
typedef uint32_t DOT_NAME(bits) __attribute__((vector_size(4 * MAT_TILE)));
typedef int32_t DOT_NAME(ints) __attribute__((vector_size(4 * MAT_TILE)));
typedef uint16_t DOT_NAME(half_mem)
    __attribute__((vector_size(2 * MAT_TILE), aligned(2), may_alias));

/* One column of a tile as f32. Vectors travel by pointer: by value their ABI depends on the set. */
static ALWAYS_INLINE void DOT_NAME(column)(const void *data, size_t at, enum dtype t,
                                           DOT_NAME(vec) * out)
{
    DOT_NAME(bits) u;
#if !DOT_WIDE
    DOT_NAME(bits) a, small, normal, is;
#endif

    if (t == DTYPE_F32) {
        *out = *(const DOT_NAME(vec_mem) *)((const float *)data + at);
        return;
    }
    u = __builtin_convertvector(*(const DOT_NAME(half_mem) *)((const uint16_t *)data + at),
                                DOT_NAME(bits));
    if (t == DTYPE_BF16) {
        *out = (DOT_NAME(vec))(u << 16);
        return;
    }
#if DOT_WIDE
    *out = (DOT_NAME(vec))_mm512_cvtph_ps(
        _mm256_loadu_si256((const void *)((const uint16_t *)data + at)));
#else
    /* f32_from_f16 of numfmt.h, with masks for its choices */
    a = u & 0x7fff;
    small = (DOT_NAME(bits))(__builtin_convertvector((DOT_NAME(ints))a, DOT_NAME(vec)) * 0x1p-24f);
    is = (DOT_NAME(bits))(a >= 0x7c00);
    normal = (a << 13) + (is & 0x38000000u) + 0x38000000u; /* the second lifts 31 to 255 */
    is = (DOT_NAME(bits))(a < 0x400);
    a = (is & small) | (~is & normal);
    *out = (DOT_NAME(vec))(a | (u & 0x8000) << 16);
#endif
}

/* R rows against T tiles; R, T and t are constants where this is inlined. */
static ALWAYS_INLINE void DOT_NAME(block)(const struct dot_tiles *w, int first,
                                          const float *const *x, float *y, size_t ldy, bool onto,
                                          const int R, const int T, const enum dtype t)
{
    DOT_NAME(vec) acc[DOT_ACCS], col[4];
    const float *xr[DOT_ROWS];
    size_t at = (size_t)first * w->tile_step, step = w->tile_step;
    int cols = w->cols;

#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        xr[r] = x[r];
#pragma GCC unroll 4
        for (int i = 0; i < T; i++)
            acc[r * T + i] = (DOT_NAME(vec)){ 0 };
    }
    if (onto) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < T; i++)
                acc[r * T + i] =
                    *(const DOT_NAME(vec_mem) *)(y + (size_t)r * ldy + (size_t)i * MAT_TILE);
    }
    for (int k = 0; k < cols; k++, at += w->col_step) {
#pragma GCC unroll 4
        for (int i = 0; i < T; i++)
            DOT_NAME(column)(w->data, at + (size_t)i * step, t, &col[i]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < T; i++)
                acc[r * T + i] += col[i] * xr[r][k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < T; i++)
            *(DOT_NAME(vec_mem) *)(y + (size_t)r * ldy + (size_t)i * MAT_TILE) = acc[r * T + i];
}

/* All tiles for R rows: as many tiles at a time as the registers hold, then the rest one by one. */
#define DOT_MANY(R) (DOT_ACCS / (R) >= 4 ? 4 : DOT_ACCS / (R) >= 2 ? 2 : 1)
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
DOT_FN(4)
#if DOT_ACCS >= 8
DOT_FN(5)
DOT_FN(6)
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
        DOT_NAME(rows_4),
#if DOT_ACCS >= 8
        DOT_NAME(rows_5),
        DOT_NAME(rows_6),
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

#if DOT_WIDE
/* Blocks of d x d trade places with their neighbours, d = 1, 2, 4, 8: lane l of a pair of rows a, b that lie
 * d apart becomes DOT_UPPER in a and DOT_LOWER in b, counted through a and then b. */
#define DOT_UPPER(l, d) ((l) & (d) ? 16 + (l) - (d) : (l))
#define DOT_LOWER(l, d) ((l) & (d) ? 16 + (l) : (l) + (d))
#define DOT_LANES(f, d)                                                                            \
    {                                                                                              \
        f(0, d), f(1, d), f(2, d), f(3, d), f(4, d), f(5, d), f(6, d), f(7, d), f(8, d), f(9, d),  \
            f(10, d), f(11, d), f(12, d), f(13, d), f(14, d), f(15, d)                             \
    }

static ALWAYS_INLINE void DOT_NAME(swap)(DOT_NAME(vec) * v, const int d, DOT_NAME(ints) upper,
                                         DOT_NAME(ints) lower)
{
#pragma GCC unroll 16
    for (int i = 0; i < MAT_TILE; i++) {
        DOT_NAME(vec) a = v[i];

        if (i & d)
            continue;
        v[i] = __builtin_shuffle(a, v[i + d], upper);
        v[i + d] = __builtin_shuffle(a, v[i + d], lower);
    }
}

static void DOT_NAME(transpose)(const float *rows, size_t ld, int n, int cols, float *out)
{
    for (int c = 0; c < cols; c += MAT_TILE) {
        DOT_NAME(vec) v[MAT_TILE];

#pragma GCC unroll 16
        for (int j = 0; j < MAT_TILE; j++) {
            v[j] = (DOT_NAME(vec)){ 0 };
            if (j < n)
                v[j] = *(const DOT_NAME(vec_mem) *)(rows + (size_t)j * ld + (size_t)c);
        }
        DOT_NAME(swap)
        (v, 1, (DOT_NAME(ints))DOT_LANES(DOT_UPPER, 1), (DOT_NAME(ints))DOT_LANES(DOT_LOWER, 1));
        DOT_NAME(swap)
        (v, 2, (DOT_NAME(ints))DOT_LANES(DOT_UPPER, 2), (DOT_NAME(ints))DOT_LANES(DOT_LOWER, 2));
        DOT_NAME(swap)
        (v, 4, (DOT_NAME(ints))DOT_LANES(DOT_UPPER, 4), (DOT_NAME(ints))DOT_LANES(DOT_LOWER, 4));
        DOT_NAME(swap)
        (v, 8, (DOT_NAME(ints))DOT_LANES(DOT_UPPER, 8), (DOT_NAME(ints))DOT_LANES(DOT_LOWER, 8));
#pragma GCC unroll 16
        for (int j = 0; j < MAT_TILE; j++)
            *(DOT_NAME(vec_mem) *)(out + (size_t)(c + j) * MAT_TILE) = v[j];
    }
}

#undef DOT_UPPER
#undef DOT_LOWER
#undef DOT_LANES
#endif

#undef DOT_FN
#undef DOT_ONE
#undef DOT_MANY
#undef DOT_NAME
#undef DOT_ACCS
#undef DOT_WIDE
