/* source_synth.c owns nothing but a seed and a scheme: a value is a function of seed, tensor name
 * and element index.
 */
#include "src/model/source.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/synth.h"
#include "src/model/scheme.h"

#define E2M1_DEVIATION 2.926f /* of sixteen equally frequent codes */
#define E4M3_DEVIATION 16.0f  /* of what e4m3_table makes of equally frequent bytes */

struct source_synth {
    struct source base;
    uint64_t seed;
    struct scheme scheme;
    uint8_t e4m3_table[256]; /* a random byte to a code whose value is near normal */
};

/* What the elements of a tensor are. */
enum filling {
    FILL_VALUES, /* mean + deviation * near normal, in the tensor's type */
    FILL_BYTES,  /* random: trellis words, e2m1 codes */
    FILL_E4M3,   /* codes near normal with E4M3_DEVIATION */
    FILL_SIGNED, /* f16 of one magnitude, give or take an eighth, either sign */
    FILL_SCALE,  /* one number again and again */
};

/* A tensor that is asked for, taken apart by its name. */
struct made {
    enum filling filling;
    float mean, deviation; /* FILL_SIGNED, FILL_SCALE: mean is the magnitude, the number */
    uint32_t bits;         /* FILL_SCALE: the element */
};

static const char *const dtype_names[DTYPE_COUNT] = {
    [DTYPE_F32] = "F32",
    [DTYPE_F16] = "F16",
    [DTYPE_BF16] = "BF16",
};

static void set(struct tensor *t, const char *type, int each, int rank, int64_t a, int64_t b,
                int64_t c)
{
    *t = (struct tensor){ .dtype = DTYPE_COUNT,
                          .type = type,
                          .file = "synth",
                          .each = each,
                          .rank = rank,
                          .shape = { a, b, c },
                          .elements = (uint64_t)(rank > 0 ? a : 1) * (uint64_t)(rank > 1 ? b : 1) *
                                      (uint64_t)(rank > 2 ? c : 1) };
}

static int64_t ceil_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* ---- plain ------------------------------------------------------------------------------- */

static void plain(const char *name, enum dtype dtype, int64_t rows, int64_t cols, struct tensor *t,
                  struct made *m)
{
    set(t, dtype_names[dtype], (int)dtype_bytes(dtype), cols == 1 ? 1 : 2, rows, cols, 0);
    t->dtype = dtype;
    *m = (struct made){ .filling = FILL_VALUES, .deviation = 0.1f };
    if (t->rank == 2)
        m->deviation = 1.0f / sqrtf((float)cols);
    else if (strstr(name, "norm") || strstr(name, "q_weight") || strstr(name, "k_weight"))
        m->mean = 1;
}

/* ---- parts of quantised weights ---------------------------------------------------------- */

static void scale(struct made *m, uint32_t bits)
{
    *m = (struct made){ .filling = FILL_SCALE, .bits = bits };
}

/* The e8m0 byte nearest to a scale. */
static uint32_t e8m0_of(float v)
{
    return (uint32_t)(127 + lrintf(log2f(v)));
}

/* Each of these answers 1 if the weight has no such part. */
static int exl3_part(const struct quant *q, const char *tail, int slice, int64_t rows, int64_t cols,
                     struct tensor *t, struct made *m)
{
    static const uint32_t marker[] = {
        [CODEBOOK_MCG] = 0xcbac1fedu, [CODEBOOK_MUL1] = 0x83dcd12du
    };
    static const float deviation[] = { 1.2437f, 1.2441f, 1.0003f };
    int64_t n = ceil_to(q->slices ? rows / q->slices : rows, EXL3_BLOCK);
    int64_t k = ceil_to(cols, EXL3_BLOCK);

    if ((slice >= 0 && slice >= q->slices) || (q->slices > 0 && slice < 0))
        return 1;
    if (strcmp(tail, "trellis") == 0) {
        set(t, "I16", 2, 3, k / 16, n / 16, 8 * q->bits2);
        *m = (struct made){ .filling = FILL_BYTES };
    } else if (strcmp(tail, "suh") == 0) {
        set(t, "F16", 2, 1, k, 0, 0);
        *m = (struct made){ .filling = FILL_SIGNED, .mean = 1 };
    } else if (strcmp(tail, "svh") == 0) {
        set(t, "F16", 2, 1, n, 0, 0);
        *m = (struct made){ .filling = FILL_SIGNED,
                            .mean = 1.0f / (sqrtf((float)cols) * deviation[q->codebook]) };
    } else if ((strcmp(tail, "mcg") == 0 && q->codebook == CODEBOOK_MCG) ||
               (strcmp(tail, "mul1") == 0 && q->codebook == CODEBOOK_MUL1)) {
        set(t, "I32", 4, 0, 0, 0, 0);
        scale(m, marker[q->codebook]);
    } else {
        return 1;
    }
    return 0;
}

static int fp8_part(const struct quant *q, const char *tail, bool rows_of_table, int64_t rows,
                    int64_t cols, struct tensor *t, struct made *m)
{
    float v = 1.0f / (E4M3_DEVIATION * sqrtf((float)cols));
    int64_t block = q->block, tall = rows_of_table ? rows : (rows + block - 1) / block;

    if (strcmp(tail, "weight") == 0) {
        set(t, "F8_E4M3", 1, 2, rows, cols, 0);
        *m = (struct made){ .filling = FILL_E4M3 };
        return 0;
    }
    if (strcmp(tail, q->e8m0 ? "scale" : "weight_scale_inv") != 0)
        return 1;
    set(t, q->e8m0 ? "F8_E8M0" : "F32", q->e8m0 ? 1 : 4, 2, tall, (cols + block - 1) / block, 0);
    t->dtype = q->e8m0 ? DTYPE_COUNT : DTYPE_F32;
    scale(m, q->e8m0 ? e8m0_of(v) : f32_bits(v));
    return 0;
}

static int mxfp4_part(const char *tail, int64_t rows, int64_t cols, struct tensor *t,
                      struct made *m)
{
    if (strcmp(tail, "weight") == 0) {
        set(t, "I8", 1, 2, rows, cols / 2, 0);
        *m = (struct made){ .filling = FILL_BYTES };
    } else if (strcmp(tail, "scale") == 0) {
        set(t, "F8_E8M0", 1, 2, rows, cols / 32, 0);
        scale(m, e8m0_of(1.0f / (E2M1_DEVIATION * sqrtf((float)cols))));
    } else {
        return 1;
    }
    return 0;
}

static int nvfp4_part(const struct quant *q, const char *tail, int64_t rows, int64_t cols,
                      struct tensor *t, struct made *m)
{
    float global = 1.0f / (64 * E2M1_DEVIATION * sqrtf((float)cols));

    if (strcmp(tail, q->divides ? "weight_packed" : "weight") == 0) {
        set(t, "U8", 1, 2, rows, cols / 2, 0);
        *m = (struct made){ .filling = FILL_BYTES };
    } else if (strcmp(tail, "weight_scale") == 0) {
        set(t, "F8_E4M3", 1, 2, rows, cols / 16, 0);
        scale(m, e4m3_from_f32(64));
    } else if (strcmp(tail, q->divides ? "weight_global_scale" : "weight_scale_2") == 0) {
        set(t, "F32", 4, 0, 0, 0, 0);
        scale(m, f32_bits(q->divides ? 1 / global : global));
    } else {
        return 1;
    }
    return 0;
}

/* ---- names ------------------------------------------------------------------------------- */

static const char *const parts[] = { "weight",
                                     "trellis",
                                     "suh",
                                     "svh",
                                     "su",
                                     "sv",
                                     "mcg",
                                     "mul1",
                                     "head_bias",
                                     "weight_packed",
                                     "weight_scale",
                                     "weight_scale_2",
                                     "weight_global_scale",
                                     "weight_scale_inv",
                                     "scale" };

/* "a.slice.3.suh" to the weight "a.weight", slice 3 and the tail "suh"; false if the name is no
 * part of a module. */
static bool take_apart(const char *name, char *weight, size_t cap, const char **tail, int *slice)
{
    const char *dot = strrchr(name, '.'), *end = dot, *p;
    bool known = false;

    *slice = -1;
    for (size_t i = 0; dot && i < sizeof(parts) / sizeof(parts[0]); i++)
        known |= strcmp(dot + 1, parts[i]) == 0;
    if (!known)
        return false;
    *tail = dot + 1;
    for (p = dot; p > name && p[-1] >= '0' && p[-1] <= '9'; p--)
        ;
    if (p < dot && p - name > 7 && strncmp(p - 7, ".slice.", 7) == 0) {
        *slice = atoi(p);
        end = p - 7;
    }
    return snprintf(weight, cap, "%.*s.weight", (int)(end - name), name) < (int)cap;
}

/* Everything about a tensor but its values; 1 if the scheme has none of this name. */
static int make(const struct source_synth *y, const char *name, int64_t rows, int64_t cols,
                struct tensor *t, struct made *m)
{
    char weight[512];
    const char *tail;
    struct quant q;
    enum dtype dtype;
    int slice;

    if (!take_apart(name, weight, sizeof(weight), &tail, &slice)) {
        /* what is no module's weight the releases hold in f32: mixes of streams, sinks, the
         * router's bias */
        plain(name, y->scheme.dtype < DTYPE_COUNT ? y->scheme.dtype : DTYPE_F32, rows, cols, t, m);
        return 0;
    }
    dtype = scheme_format(&y->scheme, weight, rows, cols, &q);
    switch (dtype) {
    case DTYPE_EXL3:
        return exl3_part(&q, tail, slice, rows, cols, t, m);
    case DTYPE_FP8:
        return fp8_part(&q, tail, scheme_is_rows(weight), rows, cols, t, m);
    case DTYPE_MXFP4:
        return mxfp4_part(tail, rows, cols, t, m);
    case DTYPE_NVFP4:
        return nvfp4_part(&q, tail, rows, cols, t, m);
    default:
        if (strcmp(tail, "weight") != 0)
            return 1;
        plain(name, dtype, rows, cols, t, m);
        return 0;
    }
}

static int synth_find(struct source *s, const char *name, int64_t rows, int64_t cols,
                      struct tensor *out)
{
    const struct source_synth *y = (const struct source_synth *)s;
    uint64_t elements;
    struct tensor t;
    struct made m;
    int r;

    if (rows < 1 || cols < 1)
        return 1;
    if (__builtin_mul_overflow((uint64_t)rows, (uint64_t)cols, &elements) ||
        elements > UINT64_MAX / 64)
        return fail(-EINVAL, "synth: tensor %s: shape [%lld, %lld] is too large", name,
                    (long long)rows, (long long)cols);
    r = make(y, name, rows, cols, &t, &m);
    if (r != 0)
        return r;
    /* What the values depend on beside the name, for read. */
    t.shard = (int)cols;
    t.offset = (uint64_t)rows;
    *out = t;
    return 0;
}

/* ---- values ------------------------------------------------------------------------------ */

/* Byte i of the tensor is byte i % 16 of block i / 16. */
static void fill_bytes(uint64_t hash, uint64_t at, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n;) {
        struct philox b = synth_block(hash, (at + i) / 16, SYNTH_BYTES);
        size_t from = (at + i) % 16, take = n - i < 16 - from ? n - i : 16 - from;

        memcpy(out + i, (const unsigned char *)b.w + from, take);
        i += take;
    }
}

static void fill_one(const struct made *m, const struct tensor *t, uint64_t hash, uint64_t i,
                     void *out)
{
    float v = m->mean;
    uint16_t half;

    if (m->filling == FILL_SIGNED) {
        float u = synth_uniform(hash, i);

        half = f16_from_f32((u < 0 ? -v : v) * (1 + 0.125f * (2 * fabsf(u) - 1)));
        memcpy(out, &half, 2);
        return;
    }
    v += m->deviation * synth_normal(hash, i);
    half = t->dtype == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
    memcpy(out, t->dtype == DTYPE_F32 ? (void *)&v : (void *)&half, (size_t)t->each);
}

static uint64_t name_hash(const struct source_synth *y, const char *name)
{
    uint64_t h = fnv1a64_u32(FNV1A64_INIT, (uint32_t)y->seed);

    return fnv1a64(fnv1a64_u32(h, (uint32_t)(y->seed >> 32)), name, strlen(name));
}

static int synth_read(struct source *s, const char *name, const struct tensor *t, uint64_t at,
                      void *buf, size_t bytes)
{
    const struct source_synth *y = (const struct source_synth *)s;
    uint64_t h = name_hash(y, name), first = at / (uint64_t)t->each;
    size_t each = (size_t)t->each, n = bytes / each;
    unsigned char *out = buf;
    struct tensor same;
    struct made m;

    if (at % each != 0 || bytes % each != 0 || first > t->elements || n > t->elements - first)
        return fail(-EINVAL, "synth: tensor %s: %zu bytes from offset %llu are not inside it", name,
                    bytes, (unsigned long long)at);
    if (make(y, name, (int64_t)t->offset, t->shard, &same, &m) != 0)
        return fail(-EINVAL, "synth: no tensor %s", name);
    if (m.filling == FILL_BYTES || m.filling == FILL_E4M3) {
        fill_bytes(h, at, out, bytes);
        for (size_t i = 0; m.filling == FILL_E4M3 && i < bytes; i++)
            out[i] = y->e4m3_table[out[i]];
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (m.filling == FILL_SCALE)
            memcpy(out + i * each, &m.bits, each);
        else
            fill_one(&m, t, h, first + i, out + i * each);
    }
    return 0;
}

/* Nothing exists before it is asked for. */
static void synth_unused(struct source *s, void (*fn)(void *arg, const char *name), void *arg)
{
}

static void synth_close(struct source *s)
{
    free(s);
}

static const struct source_ops synth_ops = {
    .name = "synth",
    .find = synth_find,
    .read = synth_read,
    .unused = synth_unused,
    .close = synth_close,
};

/* Quantiles of a normal distribution, by bisection of its integral: byte b is the middle of the
 * b-th of 256 equal parts. */
static void make_table(uint8_t table[256])
{
    for (int b = 0; b < 256; b++) {
        double want = (b + 0.5) / 256, lo = -8, hi = 8;

        for (int i = 0; i < 60; i++) {
            double mid = (lo + hi) / 2;

            if (0.5 * erfc(-mid * 0.70710678118654752) < want)
                lo = mid;
            else
                hi = mid;
        }
        table[b] = e4m3_from_f32((float)(lo * (double)E4M3_DEVIATION));
    }
}

int source_synth_hash(const struct source *s, const char *name, uint64_t *hash)
{
    if (s->ops != &synth_ops)
        return 1;
    *hash = name_hash((const struct source_synth *)s, name);
    return 0;
}

int source_synth_open_scheme(uint64_t seed, const struct scheme *scheme, struct source **out)
{
    struct source_synth *y = calloc(1, sizeof(*y));

    if (!y)
        return fail(-ENOMEM, "synth: no memory");
    y->base.ops = &synth_ops;
    y->seed = seed;
    y->scheme = *scheme;
    if (scheme->dtype == DTYPE_FP8)
        y->base.quant.block = scheme->q.block;
    make_table(y->e4m3_table);
    *out = &y->base;
    return 0;
}

int source_synth_open(uint64_t seed, enum dtype dtype, struct source **out)
{
    if ((int)dtype < 0 || dtype >= DTYPE_COUNT)
        return fail(-EINVAL, "synth: no type %d", (int)dtype);
    return source_synth_open_scheme(seed, &(struct scheme){ .dtype = dtype, .experts = dtype },
                                    out);
}
