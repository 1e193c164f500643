/* synth.c owns codes that are made where they lie. */
#include "src/base/synth.h"

#include <errno.h>

#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"
#include "kernels/ref/ref.h"

/* A block of inputs at a time: its groups are whole, so it lies like a strip of its own. */
static void synth_strip(const struct synth_args *a, int strip)
{
    int words = 4 * a->w.q.bits2;
    int steps = (int)mat_round_up((size_t)a->w.cols, EXL3_BLOCK) / EXL3_TILE, all = 8 * words;
    int least = EXL3_BLOCK / EXL3_TILE;
    uint32_t src[8 * 8 * EXL3_WORDS_MAX / 2];
    struct mat part = a->w;
    char *to = (char *)(uintptr_t)a->w.data +
               (size_t)(a->strip0 + strip) * mat_strip_bytes(DTYPE_EXL3, &a->w.q, a->w.cols);

    part.cols = EXL3_BLOCK;
    for (int k = 0; k < steps; k += least) {
        for (int i = 0; i < least; i++) {
            uint64_t first = (uint64_t)(a->tile_row + k + i) * (uint64_t)a->tile_cols +
                             (uint64_t)(a->tile_col + 8 * strip);

            for (int w = 0; w < all; w++)
                src[i * all + w] = synth_word(a->hash, first * (uint64_t)words + (uint64_t)w);
        }
        mat_pack_codes(&part, src, (size_t)all * sizeof(*src), EXL3_BLOCK, to);
        to += mat_strip_bytes(DTYPE_EXL3, &a->w.q, EXL3_BLOCK);
    }
}

static void synth_strips(const void *args, int lo, int hi, int worker)
{
    for (int i = lo; i < hi; i++)
        synth_strip(args, i);
}

void ref_synth(struct queue *q, const struct synth_args *a)
{
    if (q->err)
        return;
    if (a->w.dtype != DTYPE_EXL3 || a->w.q.layout != LAYOUT_DEVICE) {
        queue_fail(q, -EINVAL, "synth: weights of type %d, layout %d", (int)a->w.dtype,
                   a->w.q.layout);
        return;
    }
    ref_run(q, a->strips, 1, synth_strips, a);
}
