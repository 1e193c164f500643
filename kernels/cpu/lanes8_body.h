/* lanes8_body - sets of eight lanes without an instruction for small floats: codes to f32 by
 * integer steps. */
#define LANES 8
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint8_t bytes8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t halves8 __attribute__((vector_size(16), aligned(2), may_alias));
#define LANE_NUMBERS                                                                               \
    {                                                                                              \
        0, 1, 2, 3, 4, 5, 6, 7                                                                     \
    }

static ALWAYS_INLINE vf vf_of(float x)
{
    return (vf){ x, x, x, x, x, x, x, x };
}

static ALWAYS_INLINE vu load_bytes(const unsigned char *p)
{
    halves8 h =
        __builtin_convertvector(*(const bytes8 *)p, halves8); /* in one step it goes lane by lane */

    return __builtin_convertvector(h, vu);
}

/* A float of few bits: its magnitude a, moved up to f32's exponent, or counted in units where it is
 * subnormal. */
static ALWAYS_INLINE vf small_float(vu a, vu sign, const int shift, const uint32_t bias,
                                    const vu below, const float unit)
{
    vf counted = __builtin_convertvector((vi)a, vf) * unit;
    vu is = (vu)(a < below);

    return (vf)((is & (vu)counted) | (~is & ((a << shift) + bias)) | sign);
}

static ALWAYS_INLINE vf e4m3_lanes(vu c)
{
    return small_float(c & 0x7f, (c & 0x80) << 24, 20, 120u << 23, (vu){ 8, 8, 8, 8, 8, 8, 8, 8 },
                       0x1p-9f);
}

static ALWAYS_INLINE vf e2m1_lanes(vu c)
{
    return small_float(c & 7, (c & 8) << 28, 22, 126u << 23, (vu){ 2, 2, 2, 2, 2, 2, 2, 2 }, 0.5f);
}

static ALWAYS_INLINE void e4m3_values(const unsigned char *p, vf out[2])
{
    out[0] = e4m3_lanes(load_bytes(p));
    out[1] = e4m3_lanes(load_bytes(p + 8));
}

static ALWAYS_INLINE void e2m1_values(const unsigned char *p, vf lo[2], vf hi[2])
{
    vu a = load_bytes(p), b = load_bytes(p + 8);

    lo[0] = e2m1_lanes(a);
    lo[1] = e2m1_lanes(b);
    hi[0] = e2m1_lanes(a >> 4);
    hi[1] = e2m1_lanes(b >> 4);
}
