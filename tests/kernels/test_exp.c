#include "kernels/ref/exp.h"

#include "tests/kernels/bed.h"

Test(exp, stays_within_its_ulps)
{
    double worst = 0;

    for (uint64_t u = 0; u < 0x100000000u; u += 4099) {
        float x = f32_from_bits((uint32_t)u);
        double want, ulp, e;

        if (!(x > -104 && x < 88.7f))
            continue;
        want = exp((double)x);
        ulp = want < 0x1p-126 ? 0x1p-149 : ldexp(1, ilogb(want) - 23);
        e = fabs((double)exp_f32(x) - want) / ulp;
        worst = e > worst ? e : worst;
    }
    cr_expect(worst < 1.1, "%f ulp", worst);
}

Test(exp, edges)
{
    static const struct {
        float x, y;
    } cases[] = {
        { 0, 1 },
        { -0.0f, 1 },
        { 89, INFINITY },
        { INFINITY, INFINITY },
        { 3e38f, INFINITY },
        { -INFINITY, 0 },
        { -104.1f, 0 },
        { -3e38f, 0 },
        { 0x1p-149f, 1 },
        { -103.2f, 0x1p-149f },
    };

    for (size_t i = 0; i < COUNT(cases); i++)
        cr_expect(eq(flt, exp_f32(cases[i].x), cases[i].y), "%a", cases[i].x);
    cr_expect(isnan(exp_f32(NAN)) && isnan(sigmoid_f32(NAN)) && isnan(silu_f32(NAN)));
    cr_expect(eq(flt, sigmoid_f32(-200), 0));
    cr_expect(eq(flt, sigmoid_f32(200), 1));
    cr_expect(eq(flt, silu_f32(200), 200));
    cr_expect(fabsf(silu_f32(-200)) < 1e-30f);
}
