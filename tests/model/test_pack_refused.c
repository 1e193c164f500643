#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "src/model/pack_file.h"
#include "tests/model/quant_rig.h"

/* ---- what no checkpoint may hold ----------------------------------------------------------- */

struct bad_case {
    const char *name, *tensors;
    enum shard shard;
    int rows, cols, unit, ranks, result; /* of the last rank */
    const char *says;
};

#define EXL3_OK "a.trellis:I16[8,16,16] "

static const struct bad_case bad[] = {
    { "fine", "a.weight:F8_E4M3[32,32] a.scale:F8_E8M0[1,1]", SHARD_NONE, 32, 32, 1, 1, 0, NULL },
    { "a code that is NaN", "a.weight:F8_E4M3[32,32]=007f0000 a.scale:F8_E8M0[1,1]", SHARD_NONE, 32,
      32, 1, 1, -EINVAL, "a.weight: element 2," },
    { "e8m0 255", "a.weight:F8_E4M3[32,128] a.scale:F8_E8M0[1,4]=ff000000", SHARD_NONE, 32, 128, 1,
      1, -EINVAL, "a.scale: element 3," },
    { "f32 scale that is NaN", "a.weight:F8_E4M3[32,32] a.scale:F32[1,1]=7fc00000", SHARD_NONE, 32,
      32, 1, 1, -EINVAL, "a.scale: element 0," },
    { "bf16 scale that is NaN", "a.weight:F8_E4M3[32,128] a.scale:BF16[1,4]=00007fc0", SHARD_NONE,
      32, 128, 1, 1, -EINVAL, "a.scale: element 0," },
    { "f16 scale without end", "a.weight:F8_E4M3[32,128] a.scale:F16[1,4]=7c000000", SHARD_NONE, 32,
      128, 1, 1, -EINVAL, "a.scale: element 1," },
    { "mxfp4 scale of 255", "a.weight:I8[4,32] a.scale:F8_E8M0[4,2]=0000ff00", SHARD_NONE, 4, 64, 1,
      1, -EINVAL, "a.scale: element 1," },
    { "negative nvfp4 scale",
      "a.weight:U8[4,32] a.weight_scale:F8_E4M3[4,4]=00800000 a.weight_scale_2:F32[]=3f800000",
      SHARD_NONE, 4, 64, 1, 1, -EINVAL, "a.weight_scale: element 2," },
    { "suh without end", EXL3_OK "a.suh:F16[128]=7c000000 a.svh:F16[256]", SHARD_NONE, 256, 128, 1,
      1, -EINVAL, "a.suh: element 1," },
    { "svh that is NaN", EXL3_OK "a.suh:F16[128] a.svh:F16[256]=00007e00", SHARD_NONE, 256, 128, 1,
      1, -EINVAL, "a.svh: element 0," },
    { "bias that is NaN", EXL3_OK "a.suh:F16[128] a.svh:F16[256] a.bias:F16[256]=00007e00",
      SHARD_NONE, 256, 128, 1, 1, -EINVAL, "a.bias: element 0," },
    { "heads that cut a block", EXL3_OK "a.suh:F16[128] a.svh:F16[256]", SHARD_ROWS, 256, 128, 64,
      4, -EINVAL, "cuts a block of 128" },
    { "groups that cut a slice",
      "a.slice.0.trellis:I16[8,16,16] a.slice.0.suh:F16[128] a.slice.0.svh:F16[256]", SHARD_ROWS,
      256, 128, 128, 2, 0, NULL },
    { "an empty share behind a width that is no whole block",
      "a.trellis:I16[8,8,16] a.suh:F16[128] a.svh:F16[128]", SHARD_ROWS, 100, 128, 1, 2, 0, NULL },
    { "an empty share of inputs behind such a width",
      "a.trellis:I16[16,8,16] a.suh:F16[256] a.svh:F16[128]", SHARD_COLS, 128, 200, 1, 3, 0, NULL },
    { "missing", "b.weight:BF16[4,4]", SHARD_NONE, 4, 4, 1, 1, -ENOENT, "a.weight" },
};

static void bad_weights(void *object, struct walk *w)
{
    const struct bad_case *c = object;
    static struct mat m;

    walk_mat(w, &m, c->rows, c->cols, c->shard, c->unit, "a.weight");
}

Test(pack_refused, what_is_no_number_is_refused_and_nothing_is_left)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct bad_case *c = &bad[i];
        struct walk_part part = { bad_weights, (void *)c };
        struct pack_spec spec = spec_of(&part, c->ranks - 1, c->ranks, PACK_BOTH);
        char folder[PATH_CAP], path[PATH_CAP];
        struct source *src;

        temp_folder(folder);
        path_join(path, sizeof(path), folder, "x.pack");
        cr_assert(eq(int, source_of(c->tensors, NULL, &src), 0));
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_write(path, &spec, src), c->result), "%s: %s", c->name, line.text);
        cr_expect(eq(int, line.n, c->result != 0), "%s: one line", c->name);
        if (c->says)
            cr_expect(strstr(line.text, c->says) &&
                          strstr(line.text, c->result == -ENOENT ? "checkpoint"
                                            : c->ranks > 1       ? "share"
                                                                 : "offset"),
                      "%s: %s", c->name, line.text);
        cr_expect(eq(int, folder_count(folder, 0), c->result == 0), "%s", c->name);
        src->ops->close(src);
        folder_count(folder, 1);
    }
    log_sink(NULL, NULL);
}

/* ---- biases --------------------------------------------------------------------------------- */

struct bias_case {
    const char *tensors;
    int rows, cols; /* 1: a vector */
    bool walked;    /* the model has a.bias as a weight */
    const char *refused;
};

#define EXL3_SLICE(bias)                                                                           \
    "a.slice.0.trellis:I16[8,16,16] a.slice.0.suh:F16[128] a.slice.0.svh:F16[256] " bias

static const struct bias_case biases[] = {
    { "a.weight:BF16[8,4] a.bias:BF16[8]", 8, 4, false, "a.bias" },
    { "a.weight:BF16[8,4] a.bias:BF16[8]", 8, 4, true, NULL },
    { "a.weight:F8_E4M3[32,32] a.scale:F8_E8M0[1,1] a.bias:F32[32]", 32, 32, false, "a.bias" },
    { "a.weight:BF16[8] a.bias:BF16[8]", 8, 1, false, "a.bias" },
    { "a.weight:BF16[8] a.bias:BF16[8]", 8, 1, true, NULL },
    { EXL3_OK "a.suh:F16[128] a.svh:F16[256] a.bias:F16[256]", 256, 128, false, NULL },
    { EXL3_OK "a.suh:F16[128] a.svh:F16[256] a.bias:F16[256]", 256, 128, true, "a.bias" },
    { EXL3_SLICE("a.slice.0.bias:F16[256]"), 256, 128, false, NULL },
    { EXL3_SLICE("a.slice.0.bias:F16[256] a.bias:F16[256]"), 256, 128, true, "a.slice.0.bias" },
    { EXL3_SLICE("a.slice.0.bias:F16[256] a.bias:F16[256]"), 256, 128, false, "a.bias" },
    { EXL3_SLICE("a.bias:F16[256]"), 256, 128, false, "a.bias" },
    { EXL3_SLICE("a.bias:F16[256]"), 256, 128, true, NULL },
};

static void bias_weights(void *object, struct walk *w)
{
    const struct bias_case *c = object;
    static const float *v, *bias;
    static struct mat m;

    if (c->cols == 1)
        walk_vec(w, &v, c->rows, SHARD_NONE, 1, "a.weight");
    else
        walk_mat(w, &m, c->rows, c->cols, SHARD_NONE, 1, "a.weight");
    if (c->walked)
        walk_vec(w, &bias, c->rows, SHARD_NONE, 1, "a.bias");
}

Test(pack_refused, a_bias_is_added_once_or_refused)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(biases) / sizeof(biases[0]); i++) {
        const struct bias_case *c = &biases[i];
        struct walk_part part = { bias_weights, (void *)c };
        struct pack_spec spec = spec_of(&part, 0, 1, PACK_CPU);
        char folder[PATH_CAP], path[PATH_CAP], says[64];
        struct source *src;

        temp_folder(folder);
        path_join(path, sizeof(path), folder, "x.pack");
        cr_assert(eq(int, source_of(c->tensors, NULL, &src), 0));
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_write(path, &spec, src), c->refused ? -EINVAL : 0), "%s: %s",
                  c->tensors, line.text);
        snprintf(says, sizeof(says), "tensor %s: a bias", c->refused ? c->refused : "");
        cr_expect(eq(int, strstr(line.text, says) != NULL, c->refused != NULL), "%s: %s",
                  c->tensors, line.text);
        src->ops->close(src);
        folder_count(folder, 1);
    }
    log_sink(NULL, NULL);
}

/* ---- tables of contents that lie about formats --------------------------------------------- */

struct lie {
    const char *name;
    enum dtype dtype;
    struct quant q;
    enum shard shard;
    int64_t rows, cols, count;
};

static const struct lie lies[] = {
    { "layout 2", DTYPE_EXL3, { .bits2 = 6, .layout = 2 }, SHARD_NONE, 128, 128, 128 },
    { "codebook 3", DTYPE_EXL3, { .bits2 = 6, .codebook = 3 }, SHARD_NONE, 128, 128, 128 },
    { "no width", DTYPE_EXL3, { .bits2 = 0 }, SHARD_NONE, 128, 128, 128 },
    { "half width of 3inst", DTYPE_EXL3, { .bits2 = 5 }, SHARD_NONE, 128, 128, 128 },
    { "nine bits", DTYPE_EXL3, { .bits2 = 18 }, SHARD_NONE, 128, 128, 128 },
    { "slices that are no blocks",
      DTYPE_EXL3,
      { .bits2 = 4, .slices = 2 },
      SHARD_NONE,
      128,
      128,
      128 },
    { "slices below 0", DTYPE_EXL3, { .bits2 = 4, .slices = -1 }, SHARD_NONE, 128, 128, 128 },
    { "block 0", DTYPE_FP8, { .block = 0 }, SHARD_NONE, 64, 64, 64 },
    { "block 8", DTYPE_FP8, { .block = 8 }, SHARD_NONE, 64, 64, 64 },
    { "block below 0", DTYPE_FP8, { .block = -32 }, SHARD_NONE, 64, 64, 64 },
    { "half a group", DTYPE_MXFP4, { 0 }, SHARD_COLS, 64, 64, 16 },
    { "no whole groups", DTYPE_MXFP4, { 0 }, SHARD_NONE, 64, 40, 64 },
    { "no global scale", DTYPE_NVFP4, { .global = 0 }, SHARD_NONE, 64, 64, 64 },
    { "global scale without end", DTYPE_NVFP4, { .global = INFINITY }, SHARD_NONE, 64, 64, 64 },
    { "type behind the last", DTYPE_END, { 0 }, SHARD_NONE, 64, 64, 64 },
};

Test(pack_refused, tables_of_contents_that_lie_about_formats_are_refused)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct pack_weight w = { .d = { .name = "m",
                                        .kind = WEIGHT_MAT,
                                        .rows = lies[i].rows,
                                        .cols = lies[i].cols,
                                        .shard = lies[i].shard,
                                        .count = lies[i].count },
                                 .dtype = lies[i].dtype,
                                 .q = lies[i].q,
                                 .offset = 256 };
        struct pack_toc t = { .family = (char *)"test",
                              .ranks = 1,
                              .width_unit = 1,
                              .layouts = PACK_CPU,
                              .weight = &w,
                              .n = 1 },
                        got;
        uint8_t *data;
        size_t bytes;

        line = (struct last_line){ 0 };
        cr_assert(eq(int, pack_toc_encode(&t, &data, &bytes), 0));
        cr_expect(eq(int, pack_toc_decode("x.pack", data, bytes, 256, &got), -EINVAL), "%s",
                  lies[i].name);
        cr_expect(eq(int, line.n, 1), "%s", lies[i].name);
        free(data);
    }
    log_sink(NULL, NULL);
}
