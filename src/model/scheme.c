/* scheme.c owns the words for formats and the list of what is a linear layer. */
#include "src/model/scheme.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"

#define ROWS_TAIL "engram.embed.weight"

/* Modules that are linear layers, the last word of their prefix. `wk` and `wkv` of compressors and
 * indexers are small: releases in FP8 keep them plain.
 */
static const char *const linear[] = {
    "wq_a",   "wq_b",   "wkv",    "wo_a",      "wo_b",      "w1",
    "w2",     "w3",     "wk",     "wgate",     "main_proj", "q_proj",
    "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",   "down_proj",
};
static const char *const heads[] = { "head", "lm_head" };

/* The last word before ".weight"; its length, 0 if the name ends otherwise. */
static size_t last_word(const char *name, const char **word)
{
    size_t len = strlen(name);
    const char *end;

    if (len < 8 || strcmp(name + len - 7, ".weight") != 0)
        return 0;
    end = name + len - 7;
    *word = end;
    while (*word > name && (*word)[-1] != '.')
        (*word)--;
    return (size_t)(end - *word);
}

static bool is_one_of(const char *const *list, size_t n, const char *name)
{
    const char *word;
    size_t len = last_word(name, &word);

    for (size_t i = 0; len > 0 && i < n; i++)
        if (strlen(list[i]) == len && strncmp(word, list[i], len) == 0)
            return true;
    return false;
}

bool scheme_is_rows(const char *name)
{
    size_t len = strlen(name), tail = strlen(ROWS_TAIL);

    return len > tail && strcmp(name + len - tail, ROWS_TAIL) == 0 && name[len - tail - 1] == '.';
}

static bool is_expert(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

static bool is_small(const char *name)
{
    return strstr(name, ".compressor.") || strstr(name, ".indexer.wk.");
}

/* ---- the published pack of V4.1 ---------------------------------------------------------- */

static int v41_bits(const char *name)
{
    const char *word = "";
    int layer = 0, late;
    size_t len = last_word(name, &word);

    if (strncmp(name, "mtp.", 4) == 0)
        return 4;
    if (sscanf(name, "layers.%d.", &layer) != 1)
        return 6; /* the head */
    if (is_expert(name))
        return layer >= 18 && layer <= 22 ? 2 : 3;
    late = layer >= 11 && layer <= 29;
    if (strstr(name, ".shared_experts."))
        return late && !(layer == 29 && len == 2 && word[1] == '2') ? 4 : 5;
    if (strstr(name, ".indexer.wk."))
        return 8;
    if (strstr(name, ".engram."))
        return layer == 1 ? 5 : 4;
    if (layer == 0 && (strstr(name, ".attn.wq_a.") || strstr(name, ".attn.wkv.")))
        return 6;
    return 5;
}

/* ---- formats ----------------------------------------------------------------------------- */

static enum dtype rows_format(const struct scheme *s, int64_t cols, struct quant *q)
{
    if (s->dtype < DTYPE_COUNT || cols % 32 != 0)
        return s->dtype < DTYPE_COUNT ? s->dtype : DTYPE_BF16;
    *q = (struct quant){ .block = 32, .e8m0 = 1 };
    return DTYPE_FP8;
}

static enum dtype linear_format(const struct scheme *s, const char *name, int64_t rows,
                                int64_t cols, struct quant *q)
{
    enum dtype t = is_expert(name) ? s->experts : s->dtype;

    *q = s->q;
    q->slices = 0;
    if (t == DTYPE_EXL3) {
        if (s->by_part)
            q->bits2 = (uint8_t)(2 * v41_bits(name));
        if (s->q.slices > 1 && strstr(name, ".wo_a.") && rows % s->q.slices == 0 &&
            rows / s->q.slices % EXL3_BLOCK == 0)
            q->slices = s->q.slices;
        return t;
    }
    if (is_small(name) || (mat_group(t) && cols % mat_group(t) != 0)) {
        *q = (struct quant){ 0 };
        return DTYPE_BF16;
    }
    if (t != DTYPE_FP8)
        *q = (struct quant){ .divides = t == DTYPE_NVFP4 && s->q.divides };
    return t;
}

enum dtype scheme_format(const struct scheme *s, const char *released, int64_t rows, int64_t cols,
                         struct quant *q)
{
    *q = (struct quant){ 0 };
    if (scheme_is_rows(released))
        return rows_format(s, cols, q);
    if (s->dtype < DTYPE_COUNT)
        return s->dtype;
    if (cols > 1 && is_one_of(linear, sizeof(linear) / sizeof(linear[0]), released))
        return linear_format(s, released, rows, cols, q);
    if (s->dtype == DTYPE_EXL3 && is_one_of(heads, sizeof(heads) / sizeof(heads[0]), released) &&
        !strstr(released, "markov"))
        return linear_format(s, released, rows, cols, q);
    return DTYPE_BF16;
}

/* ---- words ------------------------------------------------------------------------------- */

static const struct scheme words[] = {
    { .name = "f32", .dtype = DTYPE_F32, .experts = DTYPE_F32 },
    { .name = "f16", .dtype = DTYPE_F16, .experts = DTYPE_F16 },
    { .name = "bf16", .dtype = DTYPE_BF16, .experts = DTYPE_BF16 },
    { .name = "fp8", .dtype = DTYPE_FP8, .experts = DTYPE_FP8, .q = { .block = 32, .e8m0 = 1 } },
    { .name = "fp8-128", .dtype = DTYPE_FP8, .experts = DTYPE_FP8, .q = { .block = 128 } },
    { .name = "fp8-mxfp4",
      .dtype = DTYPE_FP8,
      .experts = DTYPE_MXFP4,
      .q = { .block = 32, .e8m0 = 1 } },
    { .name = "mxfp4", .dtype = DTYPE_MXFP4, .experts = DTYPE_MXFP4 },
    { .name = "nvfp4", .dtype = DTYPE_NVFP4, .experts = DTYPE_NVFP4 },
    { .name = "nvfp4-ct", .dtype = DTYPE_NVFP4, .experts = DTYPE_NVFP4, .q = { .divides = 1 } },
    { .name = "exl3-v41",
      .dtype = DTYPE_EXL3,
      .experts = DTYPE_EXL3,
      .q = { .codebook = CODEBOOK_MUL1, .slices = 8 },
      .by_part = true },
};

static const char *const books[] = { "3inst", "mcg", "mul1" };

/* "exl3-2.5", "exl3-3-mcg" */
static int parse_exl3(const char *word, struct scheme *out)
{
    struct scheme s = { .name = word,
                        .dtype = DTYPE_EXL3,
                        .experts = DTYPE_EXL3,
                        .q = { .codebook = CODEBOOK_MUL1, .slices = 8 } };
    char *end;
    double bits;

    if (strncmp(word, "exl3-", 5) != 0)
        return -EINVAL;
    bits = strtod(word + 5, &end);
    for (int i = 0; *end == '-' && i < 3; i++)
        if (strcmp(end + 1, books[i]) == 0) {
            s.q.codebook = (uint8_t)i;
            end += strlen(end);
        }
    if (*end || !(bits >= 1 && bits <= 8) || bits * 2 != (int)(bits * 2))
        return -EINVAL;
    s.q.bits2 = (uint8_t)(bits * 2);
    if (s.q.bits2 % 2 && (s.q.codebook != CODEBOOK_MUL1 || s.q.bits2 > 7))
        return -EINVAL;
    *out = s;
    return 0;
}

int scheme_parse(const char *word, struct scheme *out)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i].name) == 0) {
            *out = words[i];
            return 0;
        }
    if (parse_exl3(word, out) == 0)
        return 0;
    return fail(-EINVAL,
                "no format is called %s: f32, f16, bf16, fp8, fp8-128, fp8-mxfp4, mxfp4, nvfp4, "
                "nvfp4-ct, exl3-v41 and exl3-BITS are",
                word);
}
