#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/model/stored_rig.h"

#define EXL3(p) p ".suh:F16[128] " p ".svh:F16[256] "
#define MUL1 ".mul1:I32[]=83dcd12d "
#define MCG ".mcg:I32[1]=cbac1fed "
#define NVFP4_ONE ":F32[]=3f800000"
#define BLOCK_32                                                                                   \
    "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[32,32]}}"

struct stored_case {
    const char *name, *tensors, *config;
    enum stored_as as;
    int rows, cols;
    enum dtype dtype;
    struct quant q;
    int n, k, slices;
};

static const struct stored_case found[] = {
    { "plain", "a.weight:BF16[8,4]", NULL, STORED_MAT, 8, 4, DTYPE_BF16, { 0 }, 8, 4, 1 },
    { "a bias is a weight of its own",
      "a.weight:F16[8,4] a.bias:F32[8]",
      NULL,
      STORED_MAT,
      8,
      4,
      DTYPE_F16,
      { 0 },
      8,
      4,
      1 },
    { "exl3, 3inst",
      "a.trellis:I16[8,16,48] " EXL3("a"),
      NULL,
      STORED_MAT,
      256,
      128,
      DTYPE_EXL3,
      { .bits2 = 6, .codebook = CODEBOOK_3INST },
      256,
      128,
      1 },
    { "exl3, mcg, 8 bits",
      "a.trellis:I16[8,16,128] a" MCG EXL3("a"),
      NULL,
      STORED_MAT,
      256,
      128,
      DTYPE_EXL3,
      { .bits2 = 16, .codebook = CODEBOOK_MCG },
      256,
      128,
      1 },
    { "exl3, mul1, two and a half bits",
      "a.trellis:I16[8,16,40] a" MUL1 EXL3("a"),
      NULL,
      STORED_MAT,
      256,
      128,
      DTYPE_EXL3,
      { .bits2 = 5, .codebook = CODEBOOK_MUL1 },
      256,
      128,
      1 },
    { "exl3, padded on both sides",
      "a.trellis:I16[8,16,16] " EXL3("a"),
      NULL,
      STORED_MAT,
      130,
      24,
      DTYPE_EXL3,
      { .bits2 = 2 },
      256,
      128,
      1 },
    { "exl3, signs of one side, bias",
      "a.trellis:I16[8,16,16] a.su:I16[8] a.svh:F16[256] a.bias:F16[256]",
      NULL,
      STORED_MAT,
      256,
      128,
      DTYPE_EXL3,
      { .bits2 = 2, .has_bias = 1 },
      256,
      128,
      1 },
    { "exl3, slices",
      "a.slice.0.trellis:I16[8,16,64] a.slice.0" MUL1 EXL3(
          "a.slice.0") "a.slice.1.trellis:I16[8,16,64] a.slice.1" MUL1 EXL3("a.slice.1"),
      NULL,
      STORED_MAT,
      512,
      128,
      DTYPE_EXL3,
      { .bits2 = 8, .codebook = CODEBOOK_MUL1, .slices = 2 },
      256,
      128,
      2 },
    { "exl3, one slice",
      "a.slice.0.trellis:I16[8,16,16] " EXL3("a.slice.0"),
      NULL,
      STORED_MAT,
      256,
      128,
      DTYPE_EXL3,
      { .bits2 = 2 },
      256,
      128,
      1 },
    { "nvfp4, ModelOpt",
      "a.weight:U8[8,32] a.weight_scale:F8_E4M3[8,4] a.weight_scale_2" NVFP4_ONE
      " a.input_scale:F32[]",
      NULL,
      STORED_MAT,
      8,
      64,
      DTYPE_NVFP4,
      { .global = 1 },
      8,
      64,
      1 },
    { "nvfp4, compressed-tensors",
      "a.weight_packed:U8[8,32] a.weight_scale:F8_E4M3[8,4] a.weight_global_scale:F32[1]=43000000 "
      "a.input_global_scale:F32[1]",
      NULL,
      STORED_MAT,
      8,
      64,
      DTYPE_NVFP4,
      { .global = 128, .divides = 1 },
      8,
      64,
      1 },
    { "mxfp4, compressed-tensors",
      "a.weight_packed:U8[8,32] a.weight_scale:U8[8,2]",
      NULL,
      STORED_MAT,
      8,
      64,
      DTYPE_MXFP4,
      { 0 },
      8,
      64,
      1 },
    { "mxfp4",
      "a.weight:I8[8,32] a.scale:F8_E8M0[8,2]",
      NULL,
      STORED_MAT,
      8,
      64,
      DTYPE_MXFP4,
      { 0 },
      8,
      64,
      1 },
    { "fp8, 32 by the config",
      "a.weight:F8_E4M3[64,96] a.scale:F8_E8M0[2,3]",
      BLOCK_32,
      STORED_MAT,
      64,
      96,
      DTYPE_FP8,
      { .block = 32, .e8m0 = 1 },
      64,
      96,
      1 },
    { "fp8, 128 by the shapes",
      "a.weight:F8_E4M3[130,136] a.weight_scale_inv:F32[2,2]",
      NULL,
      STORED_MAT,
      130,
      136,
      DTYPE_FP8,
      { .block = 128 },
      130,
      136,
      1 },
    { "fp8, base model's scales",
      "a.weight:F8_E4M3[64,96] a.scale:F32[2,3]",
      NULL,
      STORED_MAT,
      64,
      96,
      DTYPE_FP8,
      { .block = 32 },
      64,
      96,
      1 },
    { "fp8, scales as bf16, as Qwen3 has them",
      "a.weight:F8_E4M3[130,136] a.weight_scale_inv:BF16[2,2]",
      NULL,
      STORED_MAT,
      130,
      136,
      DTYPE_FP8,
      { .block = 128 },
      130,
      136,
      1 },
    { "fp8, scales as f16",
      "a.weight:F8_E4M3[64,96] a.weight_scale_inv:F16[2,3]",
      BLOCK_32,
      STORED_MAT,
      64,
      96,
      DTYPE_FP8,
      { .block = 32 },
      64,
      96,
      1 },
    { "fp8, one scale",
      "a.weight:F8_E4M3[24,40] a.weight_scale:F32[]=3f800000",
      BLOCK_32,
      STORED_MAT,
      24,
      40,
      DTYPE_FP8,
      { .block = 48 },
      24,
      40,
      1 },
    { "fp8 rows",
      "a.weight:F8_E4M3[7,64] a.scale:F8_E8M0[7,2]",
      BLOCK_32,
      STORED_ROWS,
      7,
      64,
      DTYPE_FP8,
      { .block = 32, .e8m0 = 1 },
      7,
      64,
      1 },
    { "n-gram rows",
      "a.trellis:I16[7,51] a.head_bias:F16[2,160]",
      NULL,
      STORED_ROWS,
      7,
      160,
      DTYPE_EXL3,
      { .bits2 = 10, .codebook = CODEBOOK_MUL1 },
      7,
      160,
      1 },
    { "n-gram rows in shards",
      "a.shard_0.trellis:I16[4,41] a.shard_1.trellis:I16[2,41] a.shard_2.trellis:I16[1,41] "
      "a.head_bias:F16[2,160]",
      NULL,
      STORED_ROWS,
      7,
      160,
      DTYPE_EXL3,
      { .bits2 = 8, .codebook = CODEBOOK_MUL1 },
      7,
      160,
      3 },
};

Test(stored, every_format_is_recognised_by_its_tensors)
{
    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        const struct stored_case *c = &found[i];
        struct source *s;
        struct stored w;

        cr_assert(eq(int, source_of(c->tensors, c->config, &s), 0), "%s", c->name);
        cr_assert(eq(int, source_stored(s, "a.weight", c->as, c->rows, c->cols, &w), 0), "%s",
                  c->name);
        cr_expect(eq(int, (int)w.dtype, (int)c->dtype), "%s", c->name);
        cr_expect(w.q.layout == 0 && w.q.codebook == c->q.codebook && w.q.bits2 == c->q.bits2 &&
                      w.q.has_bias == c->q.has_bias && w.q.e8m0 == c->q.e8m0 &&
                      w.q.divides == c->q.divides && w.q.block == c->q.block &&
                      w.q.slices == c->q.slices && w.q.global == c->q.global,
                  "%s: what it takes to read it", c->name);
        cr_expect(w.n == c->n && w.k == c->k && w.slices == c->slices && w.rows == c->rows &&
                      w.cols == c->cols,
                  "%s: sizes %ld %ld %d", c->name, (long)w.n, (long)w.k, w.slices);
        s->ops->close(s);
    }
}

/* A checkpoint whose embedding is its head: quantisers store a head of its own beside it. */
Test(stored, a_quantised_head_beside_a_tied_embedding_is_the_head)
{
    static const struct {
        const char *tensors, *codes;
        enum dtype dtype;
    } cases[] = {
        { "model.embed_tokens.weight:F16[256,128]", "model.embed_tokens.weight", DTYPE_F16 },
        { "model.embed_tokens.weight:F16[256,128] lm_head.weight:BF16[256,128]",
          "model.embed_tokens.weight", DTYPE_F16 },
        { "model.embed_tokens.weight:F16[256,128] lm_head.trellis:I16[8,16,96] lm_head" MUL1 EXL3(
              "lm_head"),
          "lm_head.trellis", DTYPE_EXL3 },
        { "model.embed_tokens.weight:F16[256,128] lm_head.weight:F8_E4M3[256,128] "
          "lm_head.weight_scale_inv:BF16[2,1]",
          "lm_head.weight", DTYPE_FP8 },
    };

    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct source *s;
        struct stored w;

        cr_assert(eq(int, source_of(cases[i].tensors, NULL, &s), 0));
        cr_assert(eq(
            int, source_stored(s, "model.embed_tokens.weight#head", STORED_MAT, 256, 128, &w), 0));
        cr_expect(eq(int, (int)w.dtype, (int)cases[i].dtype), "%s", cases[i].tensors);
        cr_expect(eq(str, w.slice[0].codes.name, (char *)cases[i].codes));
        cr_assert(
            eq(int, source_stored(s, "model.embed_tokens.weight", STORED_PLAIN, 256, 128, &w), 0));
        cr_expect(eq(int, (int)w.dtype, (int)DTYPE_F16), "%s", cases[i].tensors);
        s->ops->close(s);
    }
}

struct refused_case {
    const char *name, *tensors, *config;
    enum stored_as as;
    int rows, cols;
    const char *says;
};

static const struct refused_case refused[] = {
    { "scale beside a plain weight", "a.weight:BF16[8,32] a.scale:F8_E8M0[8,1]", NULL, STORED_MAT,
      8, 32, "a.scale beside a plain weight of type BF16" },
    { "two formats", "a.weight:BF16[256,128] a.trellis:I16[8,16,16] " EXL3("a"), NULL, STORED_MAT,
      256, 128, "a.{weight, trellis, suh, svh} are no format" },
    { "scales without a trellis", EXL3("a"), NULL, STORED_MAT, 256, 128, "a.{suh, svh}" },
    { "codes without a scale", "a.weight_packed:U8[8,32]", NULL, STORED_MAT, 8, 64,
      "a.{weight_packed}" },
    { "fp8 without a scale", "a.weight:F8_E4M3[8,32]", NULL, STORED_MAT, 8, 32, "F8_E4M3" },
    { "two scales", "a.weight:F8_E4M3[32,32] a.scale:F8_E8M0[1,1] a.weight_scale_inv:F32[1,1]",
      NULL, STORED_MAT, 32, 32, "a.{weight, weight_scale_inv, scale}" },
    { "slices beside a whole", "a.weight:BF16[256,128] a.slice.0.trellis:I16[8,16,16]", NULL,
      STORED_MAT, 256, 128, "a.{weight, slice.0.trellis}" },
    { "suh too short", "a.trellis:I16[8,16,16] a.suh:F16[112] a.svh:F16[256]", NULL, STORED_MAT,
      256, 128, "a.suh: type F16, shape [112], want F16 [128]" },
    { "svh of another type", "a.trellis:I16[8,16,16] a.suh:F16[128] a.svh:BF16[256]", NULL,
      STORED_MAT, 256, 128, "a.svh: type BF16" },
    { "half of a pair", "a.trellis:I16[8,16,16] a.suh:F16[128]", NULL, STORED_MAT, 256, 128,
      "neither a.svh nor a.sv is there" },
    { "both of a pair", "a.trellis:I16[8,16,16] a.su:I16[8] " EXL3("a"), NULL, STORED_MAT, 256, 128,
      "a.su is there too" },
    { "two codebooks", "a.trellis:I16[8,16,16] a" MUL1 "a" MCG EXL3("a"), NULL, STORED_MAT, 256,
      128, "two codebooks in one group" },
    { "a marker that means nothing", "a.trellis:I16[8,16,16] a.mul1:I32[]=83d6b12d " EXL3("a"),
      NULL, STORED_MAT, 256, 128, "marker 0x83D6B12D, want 0x83DCD12D" },
    { "half width without mul1", "a.trellis:I16[8,16,40] a" MCG EXL3("a"), NULL, STORED_MAT, 256,
      128, "40 words a tile is no width" },
    { "no width", "a.trellis:I16[8,16,72] a" MUL1 EXL3("a"), NULL, STORED_MAT, 256, 128,
      "72 words a tile is no width" },
    { "nine bits", "a.trellis:I16[8,16,144] a" MUL1 EXL3("a"), NULL, STORED_MAT, 256, 128,
      "144 words" },
    { "no whole blocks", "a.trellis:I16[8,15,16] a.suh:F16[128] a.svh:F16[240]", NULL, STORED_MAT,
      240, 128, "a.trellis: type I16, shape [8, 15, 16], want" },
    { "smaller than the model", "a.trellis:I16[8,16,16] " EXL3("a"), NULL, STORED_MAT, 257, 128,
      "at least 128 and 257" },
    { "trellis of rank 2", "a.trellis:I16[8,256] " EXL3("a"), NULL, STORED_MAT, 256, 128,
      "a.trellis: type I16, shape [8, 256]" },
    { "bias of another length", "a.trellis:I16[8,16,16] a.bias:F16[128] " EXL3("a"), NULL,
      STORED_MAT, 256, 128, "a.bias" },
    { "slices of two codebooks",
      "a.slice.0.trellis:I16[8,16,64] a.slice.0" MUL1 EXL3(
          "a.slice.0") "a.slice.1.trellis:I16[8,16,64] " EXL3("a.slice.1"),
      NULL, STORED_MAT, 512, 128, "a.slice.1.trellis: codebook" },
    { "a slice too few", "a.slice.0.trellis:I16[8,16,64] a.slice.0" MUL1 EXL3("a.slice.0"), NULL,
      STORED_MAT, 512, 128, "1 slices of 256 rows, want 512" },
    { "a slice without a trellis",
      "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0") EXL3("a.slice.1"), NULL, STORED_MAT, 512,
      128, "a.slice.1.trellis is not there" },
    { "exl3 for a table", "a.trellis:I16[8,16,16] " EXL3("a"), NULL, STORED_PLAIN, 256, 128,
      "exl3, which is not supported for a table" },
    { "mxfp4 for a lookup table", "a.weight:I8[8,32] a.scale:F8_E8M0[8,2]", NULL, STORED_ROWS, 8,
      64, "mxfp4, which is not supported for a lookup table" },
    { "global scale of zero",
      "a.weight:U8[8,32] a.weight_scale:F8_E4M3[8,4] a.weight_scale_2:F32[]", NULL, STORED_MAT, 8,
      64, "global scale 0" },
    { "global scale without end",
      "a.weight:U8[8,32] a.weight_scale:F8_E4M3[8,4] a.weight_scale_2:F32[]=7f800000", NULL,
      STORED_MAT, 8, 64, "global scale inf" },
    { "swizzled scales", "a.weight:U8[8,32] a.weight_scale:F8_E4M3[512] a.weight_scale_2" NVFP4_ONE,
      NULL, STORED_MAT, 8, 64, "a.weight_scale: type F8_E4M3, shape [512], want F8_E4M3 [8, 4]" },
    { "inputs that are no whole group",
      "a.weight:U8[8,4] a.weight_scale:F8_E4M3[8,0] a.weight_scale_2" NVFP4_ONE, NULL, STORED_MAT,
      8, 8, "a.weight: type U8, shape [8, 4]" },
    { "mxfp4 scales in groups of 16", "a.weight:I8[8,32] a.scale:F8_E8M0[8,4]", NULL, STORED_MAT, 8,
      64, "want F8_E8M0 [8, 2]" },
    { "fp8 grid of another block", "a.weight:F8_E4M3[256,256] a.scale:F8_E8M0[2,2]", BLOCK_32,
      STORED_MAT, 256, 256, "a scale for blocks of 32" },
    { "fp8 grid that could be both", "a.weight:F8_E4M3[32,32] a.scale:F8_E8M0[1,2]", NULL,
      STORED_MAT, 32, 32, "want a scale for blocks of 32 or 128" },
    { "fp8 scales that are whole numbers", "a.weight:F8_E4M3[64,96] a.scale:I32[2,3]", BLOCK_32,
      STORED_MAT, 64, 96, "want scales of type F32, BF16, F16 or F8_E8M0" },
    { "fp8 turned around", "a.weight:F8_E4M3[96,64] a.scale:F8_E8M0[3,2]", BLOCK_32, STORED_MAT, 64,
      96, "want F8_E4M3 [64, 96]" },
    { "slices for a lookup table", "a.slice.0.trellis:I16[8,16,48] " EXL3("a.slice.0"), NULL,
      STORED_ROWS, 256, 128, "no slices of a lookup table" },
    { "n-gram rows of 3 bits", "a.trellis:I16[7,31] a.head_bias:F16[2,160]", NULL, STORED_ROWS, 7,
      160, "I16 [7, 41, 51 or 61]" },
    { "shards of too few rows", "a.shard_0.trellis:I16[4,41] a.head_bias:F16[2,160]", NULL,
      STORED_ROWS, 7, 160, "1 of 4 rows in all, want 7" },
    { "shards of too many rows",
      "a.shard_0.trellis:I16[4,41] a.shard_1.trellis:I16[4,41] a.head_bias:F16[2,160]", NULL,
      STORED_ROWS, 7, 160, "2 of 8 rows in all, want 7" },
    { "shards of two widths",
      "a.shard_0.trellis:I16[4,41] a.shard_1.trellis:I16[3,51] a.head_bias:F16[2,160]", NULL,
      STORED_ROWS, 7, 160, "a.shard_1.trellis: other rows than those of shard 0" },
    { "a shard of a matrix", "a.shard_0.trellis:I16[4,41] a.head_bias:F16[2,160]", NULL, STORED_MAT,
      4, 160, "of a lookup table" },
    { "n-gram rows without biases", "a.trellis:I16[7,51]", NULL, STORED_ROWS, 7, 160,
      "head_bias alone" },
    { "n-gram rows too few", "a.trellis:I16[6,41] a.head_bias:F16[2,160]", NULL, STORED_ROWS, 7,
      160, "I16 [7, 41, 51 or 61]" },
    { "n-gram rows of a narrow table", "a.trellis:I16[7,41] a.head_bias:F16[2,160]", NULL,
      STORED_ROWS, 7, 128, "rows of 160 values" },
    { "n-gram biases of rank 3", "a.trellis:I16[7,41] a.head_bias:F16[2,160,1]", NULL, STORED_ROWS,
      7, 160, "want F16 [heads, 160]" },
    { "n-gram biases beside a matrix", "a.trellis:I16[8,16,16] a.head_bias:F16[2,160] " EXL3("a"),
      NULL, STORED_MAT, 256, 128, "none beside a matrix" },
    { "a marker of rank 2", "a.trellis:I16[8,16,16] a.mul1:I32[1,1]=83dcd12d " EXL3("a"), NULL,
      STORED_MAT, 256, 128, "a.mul1: type I32, shape [1, 1], want one I32" },
    { "suh of rank 2", "a.trellis:I16[8,16,16] a.suh:F16[128,1] a.svh:F16[256]", NULL, STORED_MAT,
      256, 128, "a.suh: type F16, shape [128, 1]" },
    { "no whole blocks of inputs", "a.trellis:I16[9,16,16] a.suh:F16[144] a.svh:F16[256]", NULL,
      STORED_MAT, 256, 144, "a.trellis: type I16, shape [9, 16, 16], want" },
    { "fewer inputs than the model", "a.trellis:I16[8,16,16] " EXL3("a"), NULL, STORED_MAT, 256,
      129, "at least 129 and 256" },
    { "slices one of which has a bias",
      "a.slice.0.trellis:I16[8,16,64] a.slice.0.bias:F16[256] " EXL3("a.slice.0")
          "a.slice.1.trellis:I16[8,16,64] " EXL3("a.slice.1"),
      NULL, STORED_MAT, 512, 128, "bias differ from slice 0's" },
    { "slices of other inputs",
      "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0")
          "a.slice.1.trellis:I16[16,16,64] a.slice.1.suh:F16[256] a.slice.1.svh:F16[256]",
      NULL, STORED_MAT, 512, 128, "a.slice.1.trellis: codebook, width, shape" },
    { "slices of other outputs",
      "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0")
          "a.slice.1.trellis:I16[8,8,64] a.slice.1.suh:F16[128] a.slice.1.svh:F16[128]",
      NULL, STORED_MAT, 512, 128, "a.slice.1.trellis: codebook, width, shape" },
    { "a slice too many",
      "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0") "a.slice.1.trellis:I16[8,16,64] " EXL3(
          "a.slice.1"),
      NULL, STORED_MAT, 256, 128, "2 slices of 256 rows, want 256" },
    { "fp8 with one scale of rank 3", "a.weight:F8_E4M3[64,96] a.scale:F32[1,1,1]", NULL,
      STORED_MAT, 64, 96, "want a scale for blocks of 32 or 128" },
    { "fp8 grid of rank 3", "a.weight:F8_E4M3[64,96] a.scale:F32[2,3,1]", BLOCK_32, STORED_MAT, 64,
      96, "want a scale for blocks of 32" },
    { "fp8 rows that are no whole group", "a.weight:F8_E4M3[7,40] a.scale:F8_E8M0[7,1]", NULL,
      STORED_ROWS, 7, 40, "want F8_E8M0 [7, 1]" },
    { "signed codes under names of compressed-tensors",
      "a.weight_packed:I8[8,32] a.weight_scale:F8_E8M0[8,2]", NULL, STORED_MAT, 8, 64,
      "want U8 [8, 32]" },
    { "signed codes of nvfp4",
      "a.weight:I8[8,32] a.weight_scale:F8_E4M3[8,4] a.weight_scale_2" NVFP4_ONE, NULL, STORED_MAT,
      8, 64, "want U8 [8, 32]" },
    { "nvfp4 scales without a type",
      "a.weight_packed:U8[8,32] a.weight_scale:U8[8,4] a.weight_global_scale:F32[]=43000000", NULL,
      STORED_MAT, 8, 64, "want F8_E4M3 [8, 4]" },
    { "mxfp4 scales without a type", "a.weight:U8[8,32] a.scale:U8[8,2]", NULL, STORED_MAT, 8, 64,
      "want F8_E8M0 [8, 2]" },
};

/* One more than there is room for. */
Test(stored, too_many_slices_or_shards_are_refused)
{
    static char slices[STORED_SLICES_MAX * 128 + 128], shards[sizeof(slices)];
    struct last_line line = { 0 };
    struct source *s;
    struct stored w;

    strcpy(shards, "a.head_bias:F16[2,160] ");
    for (int i = 0; i <= STORED_SLICES_MAX; i++) {
        char one[128];

        snprintf(one, sizeof(one),
                 "a.slice.%d.trellis:I16[8,8,16] a.slice.%d.suh:F16[128] "
                 "a.slice.%d.svh:F16[128] ",
                 i, i, i);
        strcat(slices, one);
        snprintf(one, sizeof(one), "a.shard_%d.trellis:I16[1,41] ", i);
        strcat(shards, one);
    }
    log_sink(keep_line, &line);
    cr_assert(eq(int, source_of(slices, NULL, &s), 0));
    cr_expect(eq(int,
                 source_stored(s, "a.weight", STORED_MAT, 128 * (STORED_SLICES_MAX + 1), 128, &w),
                 -EINVAL));
    cr_expect(strstr(line.text, "a.: more than ") && strstr(line.text, "slices"), "%s", line.text);
    s->ops->close(s);
    cr_assert(eq(int, source_of(shards, NULL, &s), 0));
    cr_expect(eq(int, source_stored(s, "a.weight", STORED_ROWS, STORED_SLICES_MAX + 1, 160, &w),
                 -EINVAL));
    cr_expect(strstr(line.text, "a.: more than ") && strstr(line.text, "shards"), "%s", line.text);
    s->ops->close(s);
    log_sink(NULL, NULL);
}

Test(stored, what_is_no_format_is_refused_by_name)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const struct refused_case *c = &refused[i];
        struct source *s;
        struct stored w;

        cr_assert(eq(int, source_of(c->tensors, c->config, &s), 0), "%s", c->name);
        line = (struct last_line){ 0 };
        cr_expect(eq(int, source_stored(s, "a.weight", c->as, c->rows, c->cols, &w), -EINVAL), "%s",
                  c->name);
        cr_expect(eq(int, line.n, 1), "%s: one line", c->name);
        cr_expect(strstr(line.text, c->says) != NULL, "%s: %s", c->name, line.text);
        s->ops->close(s);
    }
    log_sink(NULL, NULL);
}

static const struct {
    const char *config, *says; /* NULL: fine */
    int block;
} configs[] = {
    { "{}", NULL, 0 },
    { BLOCK_32, NULL, 32 },
    { "{\"text_config\":" BLOCK_32 "}", NULL, 32 },
    { "{\"quantization_config\":{\"quant_method\":\"exl3\",\"original_quantization_config\":"
      "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}}",
      NULL, 128 },
    { "{\"quantization_config\":{\"quant_method\":\"awq\"}}", "quant_method \"awq\"", 0 },
    { "{\"quantization_config\":{\"weight_block_size\":[128,64]}}", "blocks of 128 x 64", 0 },
    { "{\"quantization_config\":{\"weight_block_size\":[8,8]}}", "multiple of 16", 0 },
    { "{\"quantization_config\":{\"weight_block_size\":[32]}}", "1 numbers", 0 },
    { "{\"quantization_config\":{\"weight_block_size\":[0,0]}}", "weight_block_size", 0 },
    { "{\"quantization_config\":[]}", "quantization_config", 0 },
};

Test(stored, the_config_names_a_method_and_a_block)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        struct source *s;
        int r;

        line = (struct last_line){ 0 };
        r = source_of("a:U8[1]", configs[i].config, &s);
        cr_expect(eq(int, r, configs[i].says ? -EINVAL : 0), "%s", configs[i].config);
        if (configs[i].says)
            cr_expect(strstr(line.text, configs[i].says) != NULL, "%s: %s", configs[i].config,
                      line.text);
        if (r < 0)
            continue;
        cr_expect(eq(int, s->quant.block, configs[i].block), "%s", configs[i].config);
        s->ops->close(s);
    }
    log_sink(NULL, NULL);
}

/* ---- files --------------------------------------------------------------------------------- */

static void write_one(const char *folder, const char *file, const char *line)
{
    struct tensors f = { 0 };

    tensors_line(&f, line);
    tensors_write(&f, folder, file);
}

/* The shards of a release with its n-gram tables hold all that an Engram has; a quantised
 * checkpoint has all but the tables. */
Test(stored, files_beside_the_index_add_what_the_folder_lacks)
{
    char folder[PATH_CAP], beside[PATH_CAP], extra[PATH_CAP];
    const char *list[] = { extra, extra };
    struct last_line line = { 0 };
    struct source *s;
    struct stored w;

    log_sink(keep_line, &line);
    temp_folder(folder);
    temp_folder(beside);
    path_join(extra, sizeof(extra), beside, "model-00047-of-00048.safetensors");
    write_one(folder, "model.safetensors",
              "a.weight:BF16[8,4] e.wkv.trellis:I16[8,16,48] " EXL3("e.wkv") "e.k_weight:F16[4,8]");
    write_one(beside, "model-00047-of-00048.safetensors",
              "e.embed.weight:F8_E4M3[7,32] e.embed.scale:F8_E8M0[7,1] e.k_weight:BF16[4,8] "
              "e.wkv.weight:F8_E4M3[256,128] e.wkv.scale:F8_E8M0[8,4]");
    cr_assert(eq(int, source_hf_open_with(folder, list, 1, &s), 0));
    cr_expect(eq(int, source_stored(s, "e.embed.weight", STORED_ROWS, 7, 32, &w), 0));
    cr_expect(eq(int, source_stored(s, "a.weight", STORED_MAT, 8, 4, &w), 0));
    cr_expect(eq(int, source_stored(s, "e.wkv.weight", STORED_MAT, 256, 128, &w), 0));
    cr_expect(eq(int, (int)w.dtype, (int)DTYPE_EXL3));
    cr_expect(eq(int, source_stored(s, "e.k_weight", STORED_PLAIN, 32, 1, &w), 0));
    cr_expect(eq(int, (int)w.dtype, (int)DTYPE_F16));
    s->ops->close(s);
    cr_expect(eq(int, line.n, 0), "%s", line.text);
    cr_expect(eq(int, source_hf_open_with(folder, list, 2, &s), -EINVAL));
    cr_expect(strstr(line.text, "e.embed.") && strstr(line.text, "00047"), "%s", line.text);
    log_sink(NULL, NULL);
    folder_count(folder, 1);
    folder_count(beside, 1);
}

static void count_name(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
}

static int names_in(const char *line)
{
    int n = 0;

    for (; (line = strchr(line, ':')); line++)
        n++;
    return n;
}

/* Of a module that is in the folder nothing is added, whatever its format and the generation of its
 * name; of another one everything. */
Test(stored, what_the_folder_has_under_another_name_stays_beside)
{
    static const struct {
        const char *folder, *beside;
        bool added;
    } cases[] = {
        { "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0"), "a.weight:BF16[256,128]", false },
        { "a.weight:BF16[256,128]", "a.slice.0.trellis:I16[8,16,64] " EXL3("a.slice.0"), false },
        { "a.weight:BF16[256,128]", "a.slice.9.trellis:I16[8,16,64]", false },
        { "a.weight:BF16[256,128]", "a.shard_12.trellis:I16[7,41]", false },
        { "model.layers.3.attn.wkv.weight:BF16[8,4]", "layers.3.attn.wkv.scale:F8_E8M0[1,1]",
          false },
        { "model.layers.3.self_attn.kv_proj.weight:BF16[8,4]",
          "model.layers.3.attn.wkv.weight:BF16[8,4]", false },
        { "layers.3.attn.wkv.weight:BF16[8,4]", "model.layers.3.attn.wkv.weight:BF16[8,4]", false },
        { "model.layers.3.attn.wkv.weight:BF16[8,4]",
          "layers.3.attn.wkv.weight:F8_E4M3[8,4] layers.3.attn.wkv.scale:F8_E8M0[1,1]", false },
        { "model.layers.3.mlp.experts.down_proj:BF16[2,8,4]",
          "layers.3.ffn.experts.1.w2.weight:I8[8,2] layers.3.ffn.experts.1.w2.scale:F8_E8M0[8,1]",
          false },
        { "model.layers.3.attn_hc.fn:F32[8,4]", "layers.3.hc_attn_fn:F32[8,4]", false },
        { "model.embed_tokens.weight:BF16[8,4]", "embed.weight:BF16[8,4]", false },
        { "lm_head.weight:BF16[8,4]", "head.weight:BF16[8,4]", false },
        { "a.b.weight:BF16[8,4]", "a.weight:BF16[8,4]", true },
        { "a.weight:BF16[8,4]", "a.b.weight:BF16[8,4]", true },
        { "a.weight:BF16[8,4]", "a.slice.weight:BF16[8,4]", true },
        { "a.weight:BF16[8,4]", "a.slices.0.weight:BF16[8,4]", true },
        { "a.weight:BF16[8,4]", "a.0.weight:BF16[8,4]", true },
        { "ab:BF16[8,4]", "a:BF16[8,4]", true },
        { "a:BF16[8,4]", "ab:BF16[8,4]", true },
        { "layers.3.attn.wkv.weight:BF16[8,4]", "layers.4.attn.wkv.weight:BF16[8,4]", true },
        { "model.engram_tables.0.weight:BF16[7,32]", "layers.1.engram.embed.weight:BF16[9,32]",
          true },
    };
    char folder[PATH_CAP], beside[PATH_CAP], extra[PATH_CAP], name[256];
    const char *list[] = { extra };
    struct last_line line = { 0 };
    int unused;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct source *s;
        struct tensor t;

        temp_folder(folder);
        temp_folder(beside);
        path_join(extra, sizeof(extra), beside, "extra.safetensors");
        write_one(folder, "model.safetensors", cases[i].folder);
        write_one(beside, "extra.safetensors", cases[i].beside);
        cr_assert(eq(int, source_hf_open_with(folder, list, 1, &s), 0));
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(cases[i].beside, ":"), cases[i].beside);
        cr_expect(eq(int, s->ops->find(s, name, 0, 0, &t) == 0 && strcmp(t.file, extra) == 0,
                     cases[i].added),
                  "%s beside %s", cases[i].beside, cases[i].folder);
        s->ops->close(s);
        /* what stays beside is not unused: nobody could ask for it */
        cr_assert(eq(int, source_hf_open_with(folder, list, 1, &s), 0));
        unused = 0;
        s->ops->unused(s, count_name, &unused);
        cr_expect(eq(int, unused, names_in(cases[i].folder) + (cases[i].added ? 1 : 0)), "%s",
                  cases[i].beside);
        s->ops->close(s);
        folder_count(folder, 1);
        folder_count(beside, 1);
    }
    cr_expect(eq(int, line.n, 0), "%s", line.text);
    log_sink(NULL, NULL);
}

Test(stored, links_stay_in_the_folder_or_in_its_download_cache)
{
    char root[PATH_CAP], folder[PATH_CAP], path[PATH_CAP], to[PATH_CAP];
    static const struct {
        const char *target; /* below root */
        int result;
    } cases[] = {
        { "blobs/0123", 0 },
        { "snapshots/main/weights", 0 },
        { "other/0123", -EINVAL },
        { "snapshots/mainly/weights", -EINVAL },
        { "blobs2/0123", -EINVAL },
    };
    struct last_line line;
    struct source *s;

    log_sink(keep_line, &line);
    temp_folder(root);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(folder, sizeof(folder), "%.400s/snapshots/main", root);
        cr_assert(eq(int, make_dirs(folder, 0755), 0));
        snprintf(path, sizeof(path), "%.400s/%s", root, cases[i].target);
        *strrchr(path, '/') = 0;
        cr_assert(eq(int, make_dirs(path, 0755), 0));
        write_one(path, strrchr(cases[i].target, '/') + 1, "a.weight:BF16[8,4]");
        snprintf(to, sizeof(to), "%.400s/%s", root, cases[i].target);
        snprintf(path, sizeof(path), "%.600s/model.safetensors", folder);
        cr_assert(symlink(to, path) == 0);
        cr_expect(eq(int, source_hf_open(folder, &s), cases[i].result), "%s", cases[i].target);
        if (cases[i].result == 0)
            s->ops->close(s);
        else
            cr_expect(strstr(line.text, "a link out of the folder") != NULL, "%s", line.text);
        unlink(path);
    }
    log_sink(NULL, NULL);
    folder_count(root, 1);
}
