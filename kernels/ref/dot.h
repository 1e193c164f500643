/* dot - the one inner product of the reference backend: sums over k in index order, vectors across
 * outputs.
 *
 * Matrices, decoded keys and decoded values are all read as tiles of MAT_TILE outputs. A column of
 * a tile is converted to f32 once and used for up to DOT_ROWS rows, whose sums stay in registers.
 * How many rows or tiles are taken at a time never changes a bit: every output is its own sum.
 */
#ifndef TANDEM_KERNELS_REF_DOT_H
#define TANDEM_KERNELS_REF_DOT_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/mat.h"

#define DOT_ROWS 8

/* Output n of tile t at column k is element t * tile_step + k * col_step + n of data. */
struct dot_tiles {
    const void *data;
    enum dtype dtype;
    size_t tile_step, col_step;
    int cols;
};

static inline struct dot_tiles dot_mat(const struct mat *w)
{
    return (struct dot_tiles){ .data = w->data,
                               .dtype = w->dtype,
                               .tile_step = (size_t)MAT_TILE * (size_t)w->cols,
                               .col_step = MAT_TILE,
                               .cols = w->cols };
}

/* dot_rows - y[r * ldy + 16 t + n] = (onto ? y : 0) + sum_k w(first + t, n, k) x[r][k], t in 0 ..
 * tiles - 1.
 *
 * shapes   x [rows] pointers to w->cols values; y whole tiles; rows <= DOT_ROWS
 */
void dot_rows(const struct dot_tiles *w, int first, int tiles, const float *const *x, int rows,
              float *y, size_t ldy, bool onto);

/* dot_transpose - out[c * MAT_TILE + j] = rows[j * ld + c] for n <= MAT_TILE rows, zeros behind
 * them; cols is a multiple of MAT_TILE. */
void dot_transpose(const float *rows, size_t ld, int n, int cols, float *out);

#endif
