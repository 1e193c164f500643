/* codes_body - FP8, MXFP4 and NVFP4 strips for one instruction set; included once by each set_*.c,
 * which defines beside what exl3_body.h needs
 *
 *   e4m3_values(p, out)        16 codes at p as f32 e2m1_values(p, lo, hi)     the low and the high
 *   codes of 16 bytes at p as f32
 *
 * A tile has 16 outputs, a column of it is PER_TILE vectors. Products are rounded before they are
 * added: with f32 inputs they need not be exact.
 */
#define PER_TILE (16 / LANES)

/* What a column becomes: added to one row's sums, or laid down for many rows. */
static ALWAYS_INLINE void column_use(const vf w[PER_TILE], const bool one, float x,
                                     vf acc[PER_TILE], float *panel)
{
#pragma GCC unroll 2
    for (int i = 0; i < PER_TILE; i++) {
        if (one)
            acc[i] = acc[i] + w[i] * x;
        else
            *(vf_mem *)(panel + i * LANES) = w[i];
    }
}

/* Inputs k0 .. k0 + n - 1 of a tile, at x[0 .. n - 1]. */
static ALWAYS_INLINE void fp8_columns(const struct mat *w, int tile, int k0, int n, const bool one,
                                      const float *x, vf acc[PER_TILE], float *panel)
{
    const unsigned char *code =
        (const unsigned char *)w->data + ((size_t)tile * (size_t)w->cols + (size_t)k0) * MAT_TILE;
    int block = w->q.block;
    size_t at = (size_t)tile * (size_t)((w->cols + block - 1) / block);

    for (int k = 0; k < n;) {
        int in_block = (k0 + k) / block,
            end = (in_block + 1) * (int64_t)block < k0 + n ? (in_block + 1) * block - k0 : n;
        float by = w->q.e8m0 ? f32_from_e8m0(((const uint8_t *)w->scale)[at + (size_t)in_block])
                             : ((const float *)w->scale)[at + (size_t)in_block];

        for (; k < end; k++) {
            vf v[PER_TILE];

            e4m3_values(code + k * MAT_TILE, v);
            for (int i = 0; i < PER_TILE; i++)
                v[i] *= by;
            column_use(v, one, one ? x[k] : 0, acc, panel + k * MAT_TILE);
        }
    }
}

static ALWAYS_INLINE void group_scales(const struct mat *w, const uint8_t *scale, vf by[PER_TILE])
{
    if (w->dtype == DTYPE_NVFP4) {
        e4m3_values(scale, by);
        for (int i = 0; i < PER_TILE; i++)
            by[i] = w->q.divides ? by[i] / w->q.global : by[i] * w->q.global;
        return;
    }
    for (int i = 0; i < PER_TILE; i++) {
        vu bits;

        for (int j = 0; j < LANES; j++)
            bits[j] = scale[i * LANES + j];
        bits = bits << 23;
        by[i] = (vf)(bits | ((vu)(bits == 0) & 0x00400000u)); /* byte 0 is 2^-127 */
    }
}

static ALWAYS_INLINE void fp4_columns(const struct mat *w, int tile, int k0, int n, const bool one,
                                      const float *x, vf acc[PER_TILE], float *panel)
{
    size_t cols = (size_t)w->cols;
    int group = mat_group(w->dtype);
    const unsigned char *code =
        (const unsigned char *)w->data + ((size_t)tile * cols + (size_t)k0) / 2 * MAT_TILE;
    const uint8_t *scale =
        (const uint8_t *)w->scale + ((size_t)tile * cols + (size_t)k0) / (size_t)group * MAT_TILE;

    for (int k = 0; k < n; k += group, scale += MAT_TILE) {
        vf by[PER_TILE];

        group_scales(w, scale, by);
        for (int i = k; i < k + group; i += 2) {
            vf even[PER_TILE], odd[PER_TILE];

            e2m1_values(code + i / 2 * MAT_TILE, even, odd);
            for (int j = 0; j < PER_TILE; j++) {
                even[j] *= by[j];
                odd[j] *= by[j];
            }
            column_use(even, one, one ? x[i] : 0, acc, panel + i * MAT_TILE);
            column_use(odd, one, one ? x[i + 1] : 0, acc, panel + (i + 1) * MAT_TILE);
        }
    }
}

static void tile_one(const struct mat *w, int tile, int k0, int n, const float *x, float *y)
{
    vf acc[PER_TILE];

    for (int i = 0; i < PER_TILE; i++)
        acc[i] = *(const vf_mem *)(y + i * LANES);
    if (w->dtype == DTYPE_FP8)
        fp8_columns(w, tile, k0, n, true, x, acc, NULL);
    else
        fp4_columns(w, tile, k0, n, true, x, acc, NULL);
    for (int i = 0; i < PER_TILE; i++)
        *(vf_mem *)(y + i * LANES) = acc[i];
}

static void tile_values(const struct mat *w, int tile, int k0, int n, float *panel)
{
    if (w->dtype == DTYPE_FP8)
        fp8_columns(w, tile, k0, n, false, NULL, NULL, panel);
    else
        fp4_columns(w, tile, k0, n, false, NULL, NULL, panel);
}

/* A block of inputs for all rows: one row reads the codes and adds at once, more share what was
 * decoded. */
static void codes_block(const struct strip *s, int k0, int n, float *y, size_t ldy)
{
    const struct mat *w = s->w;
    int tiles = (s->n + MAT_TILE - 1) / MAT_TILE, first = s->first / MAT_TILE;
    float in[STRIP_ROWS][STRIP_INPUTS], panel[STRIP_INPUTS * MAT_TILE] __attribute__((aligned(64)));
    struct dot_tiles values = { panel, DTYPE_F32, 0, MAT_TILE, n };
    const float *x[STRIP_ROWS];

    for (int r = 0; r < s->rows; r++) {
        x[r] = s->x[r] + k0;
        if (s->in) {
            strip_quantise(s->in, x[r], n, in[r]);
            x[r] = in[r];
        }
    }
    for (int t = 0; t < tiles; t++) {
        if (s->rows == 1) {
            tile_one(w, first + t, k0, n, x[0], y + t * MAT_TILE);
            continue;
        }
        tile_values(w, first + t, k0, n, panel);
        for (int r = 0; r < s->rows; r += DOT_ROWS)
            dot_rows(&values, 0, 1, x + r, s->rows - r < DOT_ROWS ? s->rows - r : DOT_ROWS,
                     y + (size_t)r * ldy + t * MAT_TILE, ldy, true);
    }
}

static void codes_strip(const struct strip *s, float *y, size_t ldy)
{
    int cols = s->w->cols;

    for (int r = 0; r < s->rows; r++)
        memset(y + (size_t)r * ldy, 0, mat_round_up((size_t)s->n, MAT_TILE) * sizeof(*y));
    for (int k0 = 0; k0 < cols; k0 += STRIP_INPUTS)
        codes_block(s, k0, cols - k0 < STRIP_INPUTS ? cols - k0 : STRIP_INPUTS, y, ldy);
}

/* strip_fn of the set. */
static void set_strip(const struct strip *s, float *y, size_t ldy)
{
    const struct mat *w = s->w;

    if (w->dtype < DTYPE_COUNT || w->q.layout != LAYOUT_CPU)
        ref_strip(s, y, ldy);
    else if (w->dtype == DTYPE_EXL3)
        exl3_strip(s, y, ldy);
    else
        codes_strip(s, y, ldy);
}
