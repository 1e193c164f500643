/* exchange - the arithmetic of a sum over ranks: round to the wire type, add in rank order.
 *
 * Two steps around the transport: every rank stages its rounded partial into the slot that leaves, then adds
 * the slots of all ranks, its own rounded one included, so that all ranks form the same bits.
 */
#ifndef TANDEM_KERNELS_EXCHANGE_H
#define TANDEM_KERNELS_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

enum exchange_wire { EXCHANGE_BF16, EXCHANGE_F32 };

/* exchange_wire_bytes - bytes of one element on the wire */
static inline size_t exchange_wire_bytes(enum exchange_wire w)
{
    return w == EXCHANGE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* exchange_stage - slot[i] = round_wire(x[i]): bf16 to nearest even, a NaN stays a NaN (quiet); f32 as it is
 *
 * shapes   x [n] f32; slot [n] of the wire type, aligned to it
 */
void exchange_stage(enum exchange_wire w, void *slot, const float *x, size_t n);

/* exchange_add - y[i] = f32(part[0][i]) + f32(part[1][i]) + ... , from the left, plain f32 adds
 *
 * shapes   part [world][n] of the wire type; y [n] f32
 */
void exchange_add(enum exchange_wire w, const void *const *part, int world, float *y, size_t n);

#endif
