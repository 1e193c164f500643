/* cast - stored values of any dtype to f32, for host code; the bits are those of numfmt.h. */
#ifndef TANDEM_KERNELS_CAST_H
#define TANDEM_KERNELS_CAST_H

#include "kernels/mat.h"
#include "kernels/numfmt.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* f32_widen - n values of a stored type to f32; src needs no alignment. */
static inline void f32_widen(enum dtype t, const void *src, size_t n, float *dst)
{
    const unsigned char *p = (const unsigned char *)src;
    uint16_t h;

    if (t == DTYPE_F32) {
        if (n > 0)
            memcpy(dst, src, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&h, p + 2 * i, sizeof(h));
        dst[i] = t == DTYPE_BF16 ? f32_from_bf16(h) : f32_from_f16(h);
    }
}

#endif
