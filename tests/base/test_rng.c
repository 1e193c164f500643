#include "src/base/rng.h"

#include <math.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static const struct {
    uint32_t ctr[4];
    uint64_t key;
    uint32_t want[4];
} philox_cases[] = {
    { { 0, 0, 0, 0 }, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { ~0u, ~0u, ~0u, ~0u }, ~UINT64_C(0), { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
      UINT64_C(0x299f31d0a4093822),
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    /* the words of the keyed draw's known answers: (id, pos low, pos high, domain) under a seed */
    { { 3, 2, 0, 0 }, 1, { 0xf87dff44, 0x4f835ed8, 0xb0a6265e, 0xeccb7132 } },
    { { 3, 2, 0, 1 }, 1, { 0xc0035ec1, 0x07a4214c, 0x5fb32b3b, 0xdef36a68 } },
    { { 128799, 1000, 0, 0 }, 42, { 0x5b90c58a, 0x192a30fe, 0x154e57c4, 0x39057fff } },
    { { 129279, 299999, 0, 0 },
      UINT64_C(0x0123456789abcdef),
      { 0x60964712, 0x1e0b2281, 0x99572377, 0x6249f165 } },
    { { 1, 1048575, 0, 0 }, ~UINT64_C(0), { 0x7f5f3720, 0x1e7a6ff6, 0x2773d83e, 0x7c0562b5 } },
};

Test(rng, philox_published_vectors)
{
    for (size_t i = 0; i < sizeof(philox_cases) / sizeof(philox_cases[0]); i++) {
        const uint32_t *c = philox_cases[i].ctr;
        struct philox b = philox4x32(c[0], c[1], c[2], c[3], philox_cases[i].key);

        for (int k = 0; k < 4; k++)
            cr_expect(eq(u32, b.w[k], philox_cases[i].want[k]), "case %zu word %d", i, k);
    }
}

static const struct {
    uint64_t seed, pos;
    uint32_t id, domain;
    double u, g;
} draw_cases[] = {
    { 0, 0, 0, DRAW_TOKEN, 0.88052019788861424, 2.06166125443424 },
    { 1, 2, 3, DRAW_TOKEN, 0.31059830472121763, -0.156366645355052 },
    { 1, 2, 3, DRAW_NOISE, 0.029848176229291368, -1.25608075536466 },
    { 42, 1000, 128799, DRAW_TOKEN, 0.098300039385836091, -0.841451166516941 },
    { UINT64_C(0x0123456789abcdef), 299999, 129279, DRAW_TOKEN, 0.11735740336060829,
      -0.761987966861949 },
    { ~UINT64_C(0), 1048575, 1, DRAW_TOKEN, 0.11905574577337752, -0.755259374771872 },
};

Test(rng, keyed_draw_known_answers)
{
    for (size_t i = 0; i < sizeof(draw_cases) / sizeof(draw_cases[0]); i++) {
        uint64_t seed = draw_cases[i].seed, pos = draw_cases[i].pos;
        uint32_t id = draw_cases[i].id, domain = draw_cases[i].domain;

        cr_expect(eq(dbl, draw_u(seed, pos, id, domain), draw_cases[i].u), "case %zu", i);
        cr_expect(epsilon_eq(dbl, draw_gumbel(seed, pos, id, domain), draw_cases[i].g, 5e-15),
                  "case %zu", i);
    }
    /* The high half of a position counts. */
    cr_expect(ne(dbl, draw_u(1, 2, 3, 0), draw_u(1, 2 + (UINT64_C(1) << 32), 3, 0)));
    cr_expect(eq(u64, seed_of_choice(7, 0), 7));
    cr_expect(eq(u64, seed_of_choice(42, 1), UINT64_C(0x9E3779B97F4A7C15) + 42));
    cr_expect(eq(u64, seed_of_choice(0, 2), UINT64_C(0x3C6EF372FE94F82A)));
}

/* The two ends of u: g is finite, and its bounds are those that the draw promises. */
Test(rng, noise_is_bounded)
{
    double low = 0.5 * 0x1p-52, high = 1 - 0x1p-53;

    cr_expect(epsilon_eq(dbl, -det_log(-det_log(low)), -3.604, 1e-3));
    cr_expect(epsilon_eq(dbl, -det_log(-det_log(high)), 36.737, 1e-3));
}

Test(rng, noise_has_the_moments_of_gumbel)
{
    double sum = 0, square = 0;
    int n = 200000;

    for (int i = 0; i < n; i++) {
        double g = draw_gumbel(99, 5, (uint32_t)i, DRAW_TOKEN);

        sum += g;
        square += g * g;
    }
    cr_expect(epsilon_eq(dbl, sum / n, 0.5772156649, 0.01));
    cr_expect(epsilon_eq(dbl, square / n - sum / n * (sum / n), M_PI * M_PI / 6, 0.03));
}

/* Doubles in their order as integers: the distance counts representable values between. */
static int64_t ordinal(double x)
{
    int64_t bits = (int64_t)det_to_bits(x);

    return bits < 0 ? INT64_MIN - bits : bits;
}

static int64_t ulps(double a, double b)
{
    int64_t d;

    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INT64_MAX;
    d = ordinal(a) - ordinal(b);
    return d < 0 ? -d : d;
}

static const double odd_values[] = {
    0.0,
    -0.0,
    1.0,
    -1.0,
    INFINITY,
    -INFINITY,
    NAN,
    5e-324,
    -5e-324,
    1e-310,
    0x1p-52,
    0x1p-1022,
    0x1.fffffffffffffp-1023,
    0x1.fffffffffffffp+1023,
    0x1p+1023,
    0.5,
    2.0,
    0x1.62e42fefa39efp+9,
    0x1.62e42fefa39f0p+9,
    -708.3964185322641,
    -708.4,
    -744.44,
    -745.13,
    -745.1332191019411,
    -745.1332191019412,
    -745.2,
    -746.0,
    -1e300,
    1e300,
    709.0,
    709.5,
    0x1.6a09e667f3bccp-1,
    0x1.6a09e667f3bcdp-1,
    0x1.6a09e667f3bcdp+0,
    0x1.fffffffffffffp-1,
    0x1.0000000000001p+0,
    0.34657359027997264,
    -0.34657359027997264,
    1e-20,
    -1e-20,
};

Test(rng, exp_and_log_of_odd_values)
{
    for (size_t i = 0; i < sizeof(odd_values) / sizeof(odd_values[0]); i++) {
        double x = odd_values[i];

        cr_expect(ulps(det_exp(x), exp(x)) <= 1, "exp %a: %a, libm %a", x, det_exp(x), exp(x));
        cr_expect(ulps(det_log(x), log(x)) <= 1, "log %a: %a, libm %a", x, det_log(x), log(x));
    }
    cr_expect(eq(dbl, det_exp(0.0), 1.0));
    cr_expect(eq(dbl, det_exp(-0.0), 1.0));
    cr_expect(eq(u64, det_to_bits(det_log(1.0)), 0));
    cr_expect(eq(dbl, det_exp(-INFINITY), 0.0));
    cr_expect(eq(dbl, det_log(-0.0), -INFINITY));
}

/* A plain 64-bit generator for test inputs. */
static uint64_t next_bits(uint64_t *state)
{
    struct philox b = philox4x32((uint32_t)*state, (uint32_t)(*state >> 32), 0, 0, 20240229);

    ++*state;
    return (uint64_t)b.w[1] << 32 | b.w[0];
}

Test(rng, exp_is_within_one_ulp_of_libm)
{
    uint64_t state = 0;
    int64_t worst = 0;
    long differ = 0;
    static const double spans[] = { 1500, 80, 2, 1e-3, 1e-9 };

    for (int i = 0; i < 2000000; i++) {
        double unit = (double)(next_bits(&state) >> 11) * 0x1p-53 - 0.5;
        double x = unit * spans[i % 5];
        int64_t d = ulps(det_exp(x), exp(x));

        differ += d != 0;
        if (d > worst)
            worst = d;
        cr_assert(d <= 1, "exp %a: %a, libm %a", x, det_exp(x), exp(x));
    }
    cr_log_info("exp: %ld of 2000000 differ, by at most %ld ulp", differ, (long)worst);
    cr_expect(differ < 200000);
}

Test(rng, log_is_within_one_ulp_of_libm)
{
    uint64_t state = 1000000000;
    long differ = 0;

    for (int i = 0; i < 2000000; i++) {
        uint64_t bits = next_bits(&state);
        double x;

        if (i % 3 == 0) /* any positive double, subnormals and infinity included */
            x = det_from_bits(bits % 0x7ff0000000000001u);
        else if (i % 3 == 1) /* the uniforms of a draw */
            x = ((double)(bits >> 12) + 0.5) * 0x1p-52;
        else /* near 1, where the result loses its leading part */
            x = 1 + ((double)(bits >> 11) * 0x1p-53 - 0.5) * (i % 2 ? 1e-2 : 1e-7);
        differ += ulps(det_log(x), log(x)) != 0;
        cr_assert(ulps(det_log(x), log(x)) <= 1, "log %a: %a, libm %a", x, det_log(x), log(x));
    }
    cr_log_info("log: %ld of 2000000 differ", differ);
    cr_expect(differ < 400000);
}

static void expect_rising(double (*fn)(double), double around, const char *name)
{
    double x = around, last;

    for (int i = 0; i < 64; i++)
        x = nextafter(x, -INFINITY);
    last = fn(x);
    for (int i = 0; i < 128; i++) {
        double y;

        x = nextafter(x, INFINITY);
        y = fn(x);
        cr_assert(y >= last, "%s falls at %a: %a after %a", name, x, y, last);
        last = y;
    }
}

static double exp_fn(double x)
{
    return det_exp(x);
}

static double log_fn(double x)
{
    return det_log(x);
}

/* Where the reduction steps to the next power of two, two polynomials meet. */
Test(rng, exp_and_log_rise_across_their_breakpoints)
{
    for (int k = -1075; k <= 1023; k++)
        expect_rising(exp_fn, (k + 0.5) * M_LN2, "exp");
    for (int k = -1022; k <= 1022; k++) {
        expect_rising(log_fn, ldexp(M_SQRT2, k), "log");
        expect_rising(log_fn, ldexp(1, k), "log");
    }
    expect_rising(exp_fn, 0, "exp");
    expect_rising(exp_fn, -708.3964185322641, "exp");
}

Test(rng, synth_values_are_fixed_and_well_spread)
{
    double sum = 0, square = 0, low = 1, high = -1, normal = 0, normal_square = 0, fourth = 0;
    int n = 100000;

    for (int i = 0; i < n; i++) {
        double u = (double)synth_uniform(0x1234, (uint64_t)i);
        double z = (double)synth_normal(0x1234, (uint64_t)i);

        sum += u;
        square += u * u;
        low = u < low ? u : low;
        high = u > high ? u : high;
        normal += z;
        normal_square += z * z;
        fourth += z * z * z * z;
        cr_assert(u >= -1 && u < 1 && fabs(z) < 4.9);
    }
    cr_expect(epsilon_eq(dbl, sum / n, 0, 0.01));
    cr_expect(epsilon_eq(dbl, square / n, 1.0 / 3, 0.01));
    cr_expect(low < -0.999 && high > 0.999);
    cr_expect(epsilon_eq(dbl, normal / n, 0, 0.02));
    cr_expect(epsilon_eq(dbl, normal_square / n, 1, 0.03));
    cr_expect(epsilon_eq(dbl, fourth / n, 2.85, 0.1)); /* 3 - 1.2 / 8: eight uniforms */
    cr_expect(ne(flt, synth_uniform(1, 0), synth_uniform(2, 0)));
    cr_expect(ne(flt, synth_uniform(1, 0), synth_uniform(1, UINT64_C(1) << 40)));
    cr_expect(eq(u32, synth_block(0, 5, 0).w[2], philox4x32(5, 0, 0, 0x53594e54, 0).w[2]));
}
