/* mat - how weights lie in device memory.
 *
 * A matrix is stored for y = W x with W [rows][cols], as tiles of MAT_TILE consecutive rows, inside a tile
 * column by column: value (n, k) is element (n / MAT_TILE) * MAT_TILE * cols + k * MAT_TILE + n % MAT_TILE.
 * A last tile that is not full is padded with zeros. So one column of a tile is one vector load and the
 * sum over k stays in index order for every output. A table is row-major: its rows are gathered by id.
 */
#ifndef TANDEM_KERNELS_MAT_H
#define TANDEM_KERNELS_MAT_H

#include <stddef.h>
#include <stdint.h>

#define MAT_TILE 16

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_COUNT };

struct mat {
    const void *data;
    enum dtype dtype;
    int rows, cols; /* outputs and inputs, this rank's share */
};

struct table {
    const void *data;
    enum dtype dtype;
    int rows, cols;
};

/* dtype_bytes - bytes of one value. */
static inline size_t dtype_bytes(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

static inline size_t mat_bytes(int rows, int cols, enum dtype t)
{
    return (size_t)((rows + MAT_TILE - 1) / MAT_TILE) * MAT_TILE * (size_t)cols * dtype_bytes(t);
}

#endif
