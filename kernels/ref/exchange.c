/* exchange - the meaning of a sum over ranks, on the host. */
#include "kernels/exchange.h"

#include <string.h>

#include "kernels/cast.h"

void exchange_stage(enum exchange_wire w, void *slot, const float *x, size_t n)
{
    uint16_t *b = slot;

    if (w == EXCHANGE_F32) {
        memcpy(slot, x, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++)
        b[i] = bf16_from_f32(x[i]);
}

/* One part after the other: each element still sees its adds in rank order. */
void exchange_add(enum exchange_wire w, const void *const *part, int world, float *y, size_t n)
{
    if (w == EXCHANGE_F32) {
        memcpy(y, part[0], n * sizeof(float));
        for (int r = 1; r < world; r++) {
            const float *p = part[r];

            for (size_t i = 0; i < n; i++)
                y[i] = y[i] + p[i];
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        y[i] = f32_from_bf16(((const uint16_t *)part[0])[i]);
    for (int r = 1; r < world; r++) {
        const uint16_t *p = part[r];

        for (size_t i = 0; i < n; i++)
            y[i] = y[i] + f32_from_bf16(p[i]);
    }
}
