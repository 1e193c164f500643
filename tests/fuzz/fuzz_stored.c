/* fuzz_stored - modules made of any tensors: refused in words, or a weight whose parts fit each
 * other.
 *
 * Input: how the weight is asked for and its size, then for each tensor that there is its name,
 * type, rank, dimensions and first number.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats/exl3.h"
#include "src/base/log.h"
#include "src/model/stored.h"

static const char *const names[] = {
    "weight",
    "trellis",
    "suh",
    "svh",
    "su",
    "sv",
    "mcg",
    "mul1",
    "bias",
    "head_bias",
    "weight_packed",
    "weight_scale",
    "scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "slice.0.trellis",
    "slice.0.suh",
    "slice.0.svh",
    "slice.1.trellis",
    "slice.1.suh",
    "slice.1.svh",
    "slice.1.mul1",
    "slice.0.mul1",
    "shard_0.trellis",
    "shard_1.trellis",
};
static const struct {
    const char *name;
    int each;
    enum dtype dtype;
} types[] = {
    { "F32", 4, DTYPE_F32 },   { "F16", 2, DTYPE_F16 },       { "BF16", 2, DTYPE_BF16 },
    { "I16", 2, DTYPE_COUNT }, { "I32", 4, DTYPE_COUNT },     { "U8", 1, DTYPE_COUNT },
    { "I8", 1, DTYPE_COUNT },  { "F8_E4M3", 1, DTYPE_COUNT }, { "F8_E8M0", 1, DTYPE_COUNT },
};
static const int64_t sizes[] = {
    0,  1,  2,  3,  4,   7,   8,   16,  24,  32,  40,  41,      48,
    51, 61, 64, 96, 112, 127, 128, 130, 160, 256, 512, 1 << 30, (int64_t)1 << 40
};

#define COUNT(a) (sizeof(a) / sizeof(a[0]))
#define TENSORS_MAX 24

struct made_up {
    struct source base;
    int n;
    char name[TENSORS_MAX][64];
    struct tensor t[TENSORS_MAX];
    uint32_t number[TENSORS_MAX];
};

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

static int made_up_find(struct source *s, const char *name, int64_t rows, int64_t cols,
                        struct tensor *out)
{
    const struct made_up *m = (const struct made_up *)s;

    for (int i = 0; i < m->n; i++)
        if (strcmp(m->name[i], name) == 0) {
            *out = m->t[i];
            return 0;
        }
    return 1;
}

static int made_up_read(struct source *s, const char *name, const struct tensor *t, uint64_t at,
                        void *buf, size_t bytes)
{
    const struct made_up *m = (const struct made_up *)s;

    if (at != 0 || bytes != 4 || t->elements * (uint64_t)t->each < 4)
        abort();
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->name[i], name) == 0) {
            memcpy(buf, &m->number[i], 4);
            return 0;
        }
    abort();
}

static const struct source_ops made_up_ops = { .name = "fuzz",
                                               .find = made_up_find,
                                               .read = made_up_read };

struct input {
    const uint8_t *p, *end;
};

static uint8_t next(struct input *in)
{
    return in->p < in->end ? *in->p++ : 0;
}

static int64_t size_of(struct input *in)
{
    return sizes[next(in) % COUNT(sizes)];
}

static void add(struct made_up *m, struct input *in)
{
    struct tensor *t = &m->t[m->n];
    uint8_t type = next(in) % COUNT(types);

    snprintf(m->name[m->n], sizeof(m->name[0]), "a.%s", names[next(in) % COUNT(names)]);
    *t = (struct tensor){ .dtype = types[type].dtype,
                          .type = types[type].name,
                          .file = "fuzz",
                          .each = types[type].each,
                          .rank = next(in) % 4,
                          .elements = 1 };
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = size_of(in);
        /* What the reader of safetensors would not let pass. */
        if (__builtin_mul_overflow(t->elements, (uint64_t)t->shape[i], &t->elements) ||
            t->elements > (uint64_t)1 << 56)
            t->elements = (uint64_t)1 << 56;
    }
    for (int i = 0; i < 4; i++)
        m->number[m->n] = m->number[m->n] << 8 | next(in);
    if (m->number[m->n] % 3 == 0)
        m->number[m->n] = 0x83dcd12du;
    if (m->number[m->n] % 7 == 0)
        m->number[m->n] = 0x3f800000u;
    m->n++;
}

static void want(int yes)
{
    if (!yes)
        abort();
}

static void check_exl3(const struct stored *w)
{
    want(exl3_width_ok((enum codebook)w->q.codebook, 8 * w->q.bits2));
    want(w->n % EXL3_BLOCK == 0 && w->k % EXL3_BLOCK == 0 && w->k >= w->cols);
    want(w->slices >= 1 && w->slices <= STORED_SLICES_MAX);
    want(w->slices > 1 ? w->n * w->slices == w->rows : w->n >= w->rows);
    for (int i = 0; i < w->slices; i++) {
        const struct stored_slice *s = &w->slice[i];

        want(s->codes.t.elements == (uint64_t)(w->n * w->k / 256 * 8 * w->q.bits2));
        want(s->suh.t.elements == (uint64_t)(s->suh_signs ? w->k / 16 : w->k));
        want(s->svh.t.elements == (uint64_t)(s->svh_signs ? w->n / 16 : w->n));
        want((s->bias.name[0] != 0) == w->q.has_bias);
    }
}

static void check_ngram(const struct stored *w)
{
    uint64_t words = (uint64_t)ngram_row_words(w->q.bits2 / 2), elements = 0;

    want(w->slices >= 1 && w->slices <= STORED_SLICES_MAX);
    for (int i = 0; i < w->slices; i++)
        elements += w->slice[i].codes.t.elements;
    want(elements == (uint64_t)w->rows * words);
}

static void check(const struct stored *w, enum stored_as as)
{
    const struct tensor *code = &w->slice[0].codes.t, *scale = &w->scale.t;
    uint64_t values = (uint64_t)w->rows * (uint64_t)w->cols;

    want(as != STORED_PLAIN || w->dtype < DTYPE_COUNT);
    want(format_unit(w->dtype, &w->q, w->rows, w->cols, true) >= 1);
    want(format_unit(w->dtype, &w->q, w->rows, w->cols, false) >= 1);
    switch (w->dtype) {
    case DTYPE_EXL3:
        if (as == STORED_ROWS)
            check_ngram(w);
        else
            check_exl3(w);
        break;
    case DTYPE_FP8:
        want(code->elements == values);
        want(w->q.block % 16 == 0 && w->q.block > 0);
        want(scale->elements >= 1 || values == 0);
        want(w->q.e8m0 ? scale->each == 1 : scale->dtype < DTYPE_COUNT);
        break;
    case DTYPE_MXFP4:
        want(code->elements * 2 == values && scale->elements * 32 == values);
        break;
    case DTYPE_NVFP4:
        want(code->elements * 2 == values && scale->elements * 16 == values);
        want(isfinite(w->q.global) && w->q.global > 0);
        break;
    default:
        want(code->elements == values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input in = { data, data + bytes };
    static const int blocks[] = { 0, 32, 128 };
    struct made_up m = { .base = { .ops = &made_up_ops } };
    enum stored_as as = (enum stored_as)(next(&in) % 3);
    int64_t rows = size_of(&in), cols = size_of(&in);
    struct stored w;
    int r;

    if (rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20)
        return 0;
    m.base.quant.block = blocks[next(&in) % 3];
    while (in.p < in.end && m.n < TENSORS_MAX)
        add(&m, &in);
    r = source_stored(&m.base, "a.weight", as, rows, cols, &w);
    if (r == 0)
        check(&w, as);
    else
        want(r == 1 || r == -EINVAL || r == -ENAMETOOLONG);
    return 0;
}
