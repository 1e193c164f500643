/* rng - keyed random numbers and the one exp and log that sampling uses; one source for C and CUDA.
 *
 * A draw is a pure function of its key: nothing here has state. det_exp and det_log use +, -, *, /
 * and bits only, each rounded on its own, so a host and a device that follow IEEE 754 return the
 * same bits. Their error stays below 0.8 ulp; they differ from a correctly rounded result by at
 * most one ulp.
 *
 * source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10)
 */
#ifndef TANDEM_BASE_RNG_H
#define TANDEM_BASE_RNG_H

#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "rng.h: -ffast-math changes what a sampled token is"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "rng.h: doubles must be evaluated as doubles"
#endif

#ifdef __CUDACC__
#define RNG_FN static inline __host__ __device__
#else
#define RNG_FN static inline
#endif

struct philox {
    uint32_t w[4];
};

/* philox4x32 - ten rounds over one counter block. */
RNG_FN struct philox philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    struct philox out;

    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out.w[0] = c0;
    out.w[1] = c1;
    out.w[2] = c2;
    out.w[3] = c3;
    return out;
}

RNG_FN double det_from_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

RNG_FN uint64_t det_to_bits(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* det_mul - a product that no compiler may fuse with a sum; C is built without contraction. */
RNG_FN double det_mul(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

#define DET_LN2_HI 0x1.62e42feep-1 /* 32 bits: its product with an exponent is exact */
#define DET_LN2_LO 0x1.a39ef35793c76p-33
#define DET_ONE_BY_LN2 0x1.71547652b82fep+0

/* det_exp - e to the x over the full range: inf above 709.78, subnormal or 0 below -708.4.
 *
 *   x = k ln 2 + r, |r| <= ln 2 / 2;  exp(r) = 1 + r + r^2 q(r)
 *   q within 2^-59 of (exp(r) - 1 - r) / r^2
 */
RNG_FN double det_exp(double x)
{
    double a, b, r, c, q, h, y;
    int k;

    if (!(x <= 0x1.62e42fefa39efp+9)) /* the last double whose exp is finite */
        return x != x ? x : det_from_bits(0x7ff0000000000000u);
    if (x < -745.2)
        return 0;
    k = (int)(det_mul(x, DET_ONE_BY_LN2) + (x < 0 ? -0.5 : 0.5));
    a = x - det_mul(k, DET_LN2_HI);
    b = det_mul(k, DET_LN2_LO);
    r = a - b;
    c = (a - r) - b; /* what rounding took from r */
    q = 0x1.1f730a202ec17p-29;
    q = det_mul(q, r) + 0x1.af4df5750ec30p-26;
    q = det_mul(q, r) + 0x1.27e4db6121beep-22;
    q = det_mul(q, r) + 0x1.71de022bd5558p-19;
    q = det_mul(q, r) + 0x1.a01a01a6d9931p-16;
    q = det_mul(q, r) + 0x1.a01a01abe9ce8p-13;
    q = det_mul(q, r) + 0x1.6c16c16c162d2p-10;
    q = det_mul(q, r) + 0x1.11111111100d8p-7;
    q = det_mul(q, r) + 0x1.5555555555556p-5;
    q = det_mul(q, r) + 0x1.5555555555557p-3;
    q = det_mul(q, r) + 0.5;
    h = 1 + r; /* (1 - h) + r is the exact rest of this sum */
    y = h + (((1 - h) + r) + (det_mul(det_mul(r, r), q) + c));
    /* 2^k in two factors: the first keeps y normal, the second may round or overflow. */
    if (k < -1000)
        return det_mul(det_mul(y, det_from_bits((uint64_t)(k + 200 + 1023) << 52)), 0x1p-200);
    if (k > 1000)
        return det_mul(det_mul(y, det_from_bits((uint64_t)(k - 200 + 1023) << 52)), 0x1p+200);
    return det_mul(y, det_from_bits((uint64_t)(k + 1023) << 52));
}

/* det_log - natural logarithm over the full range: -inf for 0, NaN below 0.
 *
 *   x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2));  s = f / (2 + f), z = s^2
 *   log(1 + f) = f - (f^2/2 - s (f^2/2 + z p(z)))
 *   p within 2^-51 of (log((1 + s)/(1 - s)) - 2 s) / s^3
 */
RNG_FN double det_log(double x)
{
    uint64_t bits = det_to_bits(x);
    double f, s, z, p, half, rest, big, h;
    int64_t k = 0;

    if (x != x || bits == 0x7ff0000000000000u)
        return x;
    if (x == 0)
        return det_from_bits(0xfff0000000000000u);
    if (x < 0)
        return det_from_bits(0x7ff8000000000000u);
    if (bits < 0x0010000000000000u) {
        bits = det_to_bits(det_mul(x, 0x1p+54));
        k = -54;
    }
    /* Shifted so that the exponent steps at sqrt(1/2) instead of 1. */
    bits += 0x3ff0000000000000u - 0x3fe6a09e667f3bcdu;
    k += (int64_t)(bits >> 52) - 1023;
    f = det_from_bits((bits & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1;
    s = f / (2 + f);
    z = det_mul(s, s);
    p = 0x1.2b59b70eb76c6p-3;
    p = det_mul(p, z) + 0x1.39fe42e9d4a8ap-3;
    p = det_mul(p, z) + 0x1.7462b58e4403ap-3;
    p = det_mul(p, z) + 0x1.c71c62e26212ep-3;
    p = det_mul(p, z) + 0x1.2492492df3ba9p-2;
    p = det_mul(p, z) + 0x1.99999999952ccp-2;
    p = det_mul(p, z) + 0x1.5555555555558p-1;
    half = det_mul(det_mul(0.5, f), f);
    rest = half - det_mul(s, half + det_mul(z, p));
    big = det_mul((double)k, DET_LN2_HI);
    h = big + f; /* (big - h) + f is the exact rest of this sum */
    return h + (((big - h) + f) - (rest - det_mul((double)k, DET_LN2_LO)));
}

enum draw_domain { DRAW_TOKEN, DRAW_NOISE, DRAW_COIN, DRAW_OTHER };

/* draw_u - the uniform in (0, 1) that belongs to (seed, position, id, domain), exact in a double.
 *
 * units    pos is the position that the chosen token will occupy, id the token
 * source   spec of the keyed draw in docs/DECODE.md; part of the format: a change changes every
 *          sampled reply
 */
RNG_FN double draw_u(uint64_t seed, uint64_t pos, uint32_t id, uint32_t domain)
{
    struct philox b = philox4x32(id, (uint32_t)pos, (uint32_t)(pos >> 32), domain, seed);
    uint64_t m =
        ((uint64_t)b.w[1] << 32 | b.w[0]) >> 12; /* 52 bits: one half more still fits exactly */

    return det_mul((double)m + 0.5, 0x1p-52);
}

/* draw_gumbel - the Gumbel noise of a token: argmax of x + g draws from softmax(x). */
RNG_FN double draw_gumbel(uint64_t seed, uint64_t pos, uint32_t id, uint32_t domain)
{
    return -det_log(-det_log(draw_u(seed, pos, id, domain)));
}

/* seed_of_choice - the seed of choice i of a request that wants several. */
RNG_FN uint64_t seed_of_choice(uint64_t seed, uint32_t i)
{
    return seed + i * (uint64_t)0x9E3779B97F4A7C15u;
}

/* Made-up weights: a value from the hash of a tensor's name and the element's index in the whole
 * tensor, so every rank count and every read order sees the same weights. One block serves four
 * uniform elements.
 */
RNG_FN struct philox synth_block(uint64_t name_hash, uint64_t block, uint32_t kind)
{
    return philox4x32((uint32_t)block, (uint32_t)(block >> 32), kind, 0x53594e54u, name_hash);
}

/* synth_uniform - in [-1, 1), a multiple of 2^-23: exact in f32. */
RNG_FN float synth_uniform(uint64_t name_hash, uint64_t index)
{
    struct philox b = synth_block(name_hash, index >> 2, 0);

    return (float)((int32_t)(b.w[index & 3] >> 8) - (1 << 23)) * 0x1p-23f;
}

/* synth_normal - near normal, mean 0, variance 1, within 4.9: the sum of eight 16-bit uniforms. */
RNG_FN float synth_normal(uint64_t name_hash, uint64_t index)
{
    struct philox b = synth_block(name_hash, index, 1);
    int32_t sum = -4 * 65535;

    for (int i = 0; i < 4; i++)
        sum += (int32_t)(b.w[i] & 0xffff) + (int32_t)(b.w[i] >> 16);
    return (float)sum * 0x1.3988e2p-16f; /* 1 / sqrt(8 (2^32 - 1) / 12) */
}

#endif
