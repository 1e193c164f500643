// matrices.cpp owns the matrix unit of the emulated device: what a warp does with its instructions.
#include "tests/emulated/device.h"

#include "kernels/numfmt.h"

namespace emulated
{
// A seat has the lane's address, then what it gets.
static void load_all(seat *s, bool turned)
{
    for (int l = 0; l < LANES; l++)
        for (int m = 0; m < 4; m++) {
            uint16_t v[2];

            for (int k = 0; k < 2; k++) {
                int row = turned ? l % 4 * 2 + k : l / 4, col = turned ? l / 4 : l % 4 * 2 + k;
                const uint16_t *from;

                memcpy(&from, s[m * 8 + row].bytes, sizeof(from));
                v[k] = from[col];
            }
            memcpy(s[l].bytes + 16 + m * 4, v, sizeof(v));
        }
}

void matrices_load(uint32_t (&m)[4], const void *row, bool turned)
{
    seat *s;

    check_place("matrices_load", row, 16, 16, true);
    s = turned ? meet("matrices_load_turned", ~0u, &row, sizeof(row),
                      [](seat *s) { load_all(s, true); })
               : meet("matrices_load", ~0u, &row, sizeof(row), [](seat *s) { load_all(s, false); });
    memcpy(m, s[lane()].bytes + 16, sizeof(m));
}

static const float *f16_values()
{
    static float v[1 << 16];

    for (unsigned i = 0; i < 1 << 16; i++)
        v[i] = f32_from_f16((uint16_t)i);
    return v;
}

float f16_value(uint16_t h)
{
    static const float *v = f16_values();

    return v[h];
}

// The sum of 16 products, which are exact, and of what there was is made in double, in order of the inputs, and rounded
// once. A matrix unit cuts bits off where it adds.
void multiply(bool f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    float mine[12];
    const uint32_t word[6] = { a[0], a[1], a[2], a[3], b0, b1 };
    const seat *s;
    int row = lane() / 4, col = lane() % 4 * 2;

    for (int i = 0; i < 6; i++) {
        mine[2 * i] = f16 ? f16_value((uint16_t)word[i]) : f32_from_bits(word[i] << 16);
        mine[2 * i + 1] =
            f16 ? f16_value((uint16_t)(word[i] >> 16)) : f32_from_bits(word[i] & 0xffff0000u);
    }
    s = meet("mma", ~0u, mine, sizeof(mine));
    double sum[4] = {};
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 4; k++) {
            const float *x = (const float *)s[row * 4 + k].bytes + half * 4;
            const float *y0 = (const float *)s[col * 4 + k].bytes + 8 + half * 2;
            const float *y1 = (const float *)s[col * 4 + 4 + k].bytes + 8 + half * 2;

            for (int i = 0; i < 2; i++) {
                sum[0] += (double)x[i] * y0[i];
                sum[1] += (double)x[i] * y1[i];
                sum[2] += (double)x[2 + i] * y0[i];
                sum[3] += (double)x[2 + i] * y1[i];
            }
        }
    for (int i = 0; i < 4; i++)
        c[i] = (float)(c[i] + sum[i]);
}
} // namespace emulated
