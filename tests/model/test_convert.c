#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "src/base/json.h"
#include "src/model/convert.h"
#include "tests/model/stored_rig.h"

/* ---- a checkpoint to convert --------------------------------------------------------------- */

#define CONFIG                                                                                     \
    "{\"model_type\": \"test\", \"eps\": 1e-20, \"n\": [1, 2.5, null, true], \"text_config\": "    \
    "{\"a\": \"\\u00e9\", \"quantization_config\": {\"quant_method\": \"fp8\"}}, "                 \
    "\"quantization_config\": {\"quant_method\": \"exl3\"}}"

static const struct {
    const char *name;
    int rows, cols;
    bool rows_of_table;
} weights[] = {
    { "layers.0.attn.wq_b.weight", 100, 96, false }, /* ragged blocks */
    { "layers.0.ffn.experts.0.w1.weight", 48, 64, false },
    { "layers.0.attn.compressor.wkv.weight", 32, 64, false },
    { "layers.0.ffn.gate.weight", 6, 64, false },
    { "layers.1.engram.embed.weight", 10, 64, true },
    { "head.weight", 40, 64, false },
    { "norm.weight", 64, 1, false },
};
#define WEIGHTS (sizeof(weights) / sizeof(weights[0]))

static void some_weights(void *object, struct walk *w)
{
    static const int64_t primes[] = { 3, 7 };
    static struct mat m;
    static const float *v;
    static struct row_table t;

    for (size_t i = 0; i < WEIGHTS; i++) {
        if (weights[i].rows_of_table)
            walk_rows(w, &t, primes, 2, weights[i].cols, "%s", weights[i].name);
        else if (weights[i].cols == 1)
            walk_vec(w, &v, weights[i].rows, SHARD_NONE, 1, "%s", weights[i].name);
        else
            walk_mat(w, &m, weights[i].rows, weights[i].cols, SHARD_NONE, 1, "%s", weights[i].name);
    }
}

/* Values of many magnitudes, ties among them, and a group of zeros. */
static float value(size_t weight, size_t i)
{
    float v = synth_normal(weight, i);

    if (i < 128)
        return i < 32 || i >= 64 ? (float)((int)(i % 29) - 14) / 8 : 0;
    return bf16_round(ldexpf(v, (int)(i % 23) - 11));
}

static struct source *plain_source(void)
{
    struct tensors f = { 0 };
    char folder[PATH_CAP], shape[32];
    struct source *s;

    for (size_t i = 0; i < WEIGHTS; i++) {
        size_t n = (size_t)(weights[i].rows * weights[i].cols);
        uint16_t *v = malloc(n * 2);

        for (size_t k = 0; k < n; k++)
            v[k] = bf16_from_f32(value(i, k));
        snprintf(shape, sizeof(shape), weights[i].cols == 1 ? "[%d]" : "[%d,%d]", weights[i].rows,
                 weights[i].cols);
        tensors_add(&f, weights[i].name, "BF16", shape, v, n * 2);
        free(v);
    }
    tensors_add(&f, "vision.blob", "I64", "[1,2]", "0123456789abcdef", 16);
    temp_folder(folder);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    folder_count(folder, 1);
    return s;
}

static int convert_to(const char *word, const char *folder, uint64_t shard_bytes)
{
    struct walk_part part = { some_weights, NULL };
    struct convert_spec spec = {
        .folder = folder, .parts = &part, .n_parts = 1, .shard_bytes = shard_bytes
    };
    struct source *src = plain_source();
    struct json *config;
    int r;

    cr_assert(eq(int, json_parse(CONFIG, strlen(CONFIG), "config.json", 8, &config), 0));
    spec.config = config;
    r = scheme_parse(word, &spec.scheme);
    if (r == 0)
        r = convert(&spec, src);
    json_close(config);
    src->ops->close(src);
    return r;
}

/* ---- codes are the nearest ones ------------------------------------------------------------ */

static float code_value(enum dtype t, int code)
{
    return t == DTYPE_FP8 ? f32_from_e4m3((uint8_t)code) : f32_from_e2m1((uint8_t)code);
}

/* No code of the format, times the stored scale, is nearer by more than a quotient's rounding; of
 * two the one with an even last bit. */
static bool is_nearest(enum dtype t, float scale, int code, float v)
{
    int codes = t == DTYPE_FP8 ? 256 : 16;
    double off = fabs((double)code_value(t, code) * (double)scale - (double)v);

    for (int c = 0; c < codes; c++) {
        double other = fabs((double)code_value(t, c) * (double)scale - (double)v);

        if (code_value(t, c) == code_value(t, code) || isnan(other))
            continue;
        if (other < off * (1 - 1e-6) || (other == off && code % 2 != 0))
            return false;
    }
    return true;
}

/* The power of two below the scale would be too small for the largest value. */
static bool is_tight(float scale, float most, float code_most)
{
    return most <= code_most * scale && (most == 0 || most > code_most * scale / 2);
}

struct encoded {
    const struct stored *w;
    unsigned char *code, *scale;
    size_t weight;
};

static float scale_of(const struct encoded *e, int64_t n, int64_t k)
{
    const struct stored *w = e->w;
    int64_t block = w->q.block, blocks = block ? (w->k + block - 1) / block : 0;
    size_t at;
    float s;

    if (w->dtype == DTYPE_FP8) {
        at = (size_t)((weights[e->weight].rows_of_table ? n : n / block) * blocks + k / block);
        return w->q.e8m0 ? f32_from_e8m0(e->scale[at]) : ((float *)(void *)e->scale)[at];
    }
    at = (size_t)((n * w->k + k) / mat_group(w->dtype));
    if (w->dtype == DTYPE_MXFP4)
        return f32_from_e8m0(e->scale[at]);
    s = f32_from_e4m3(e->scale[at]);
    return w->q.divides ? s / w->q.global : s * w->q.global;
}

static int code_of(const struct encoded *e, int64_t n, int64_t k)
{
    size_t at = (size_t)(n * e->w->k + k);

    return e->w->dtype == DTYPE_FP8 ? e->code[at] : e->code[at / 2] >> (k % 2 * 4) & 15;
}

static void expect_encoded(struct source *s, size_t weight, const struct stored *w,
                           const char *word)
{
    struct encoded e = { w, take(s, &w->slice[0].codes), take(s, &w->scale), weight };
    int64_t tall = w->dtype == DTYPE_FP8 && !weights[weight].rows_of_table ? w->q.block : 1;
    int64_t wide = w->dtype == DTYPE_FP8 ? w->q.block : mat_group(w->dtype);

    for (int64_t n0 = 0; n0 < w->n; n0 += tall)
        for (int64_t k0 = 0; k0 < w->k; k0 += wide) {
            float scale = scale_of(&e, n0, k0), most = 0;

            for (int64_t n = n0; n < n0 + tall && n < w->n; n++)
                for (int64_t k = k0; k < k0 + wide && k < w->k; k++) {
                    float v = value(weight, (size_t)(n * w->k + k));

                    most = fmaxf(most, fabsf(v));
                    /* A group of zeros may have a scale of zero, and one that is rounded down
                     * saturates. */
                    if (w->dtype == DTYPE_NVFP4 && fabsf(v) > 6 * scale)
                        cr_assert(eq(int, code_of(&e, n, k) & 7, 7), "%s", word);
                    else
                        cr_assert(is_nearest(w->dtype, scale, code_of(&e, n, k), v),
                                  "%s, %s: %ld, %ld: %g is not %g times %g", word,
                                  weights[weight].name, (long)n, (long)k, (double)v,
                                  (double)code_value(w->dtype, code_of(&e, n, k)), (double)scale);
                }
            if (w->dtype == DTYPE_MXFP4 || w->q.e8m0)
                cr_assert(is_tight(scale, most, w->dtype == DTYPE_FP8 ? 448 : 6), "%s: %g of %g",
                          word, (double)scale, (double)most);
        }
    free(e.code);
    free(e.scale);
}

static void expect_plain(struct source *s, size_t weight, const struct stored *w)
{
    uint16_t *v = take(s, &w->slice[0].codes);

    for (size_t i = 0; i < (size_t)(weights[weight].rows * weights[weight].cols); i++)
        cr_assert(f32_from_bf16(v[i]) == value(weight, i), "%s: %zu", weights[weight].name, i);
    free(v);
}

static const struct {
    const char *word;
    enum dtype dense, expert, table;
    int block;
} schemes[] = {
    { "fp8", DTYPE_FP8, DTYPE_FP8, DTYPE_FP8, 32 },
    { "fp8-128", DTYPE_FP8, DTYPE_FP8, DTYPE_FP8, 128 },
    { "fp8-mxfp4", DTYPE_FP8, DTYPE_MXFP4, DTYPE_FP8, 32 },
    { "mxfp4", DTYPE_MXFP4, DTYPE_MXFP4, DTYPE_FP8, 0 },
    { "nvfp4", DTYPE_NVFP4, DTYPE_NVFP4, DTYPE_FP8, 0 },
    { "nvfp4-ct", DTYPE_NVFP4, DTYPE_NVFP4, DTYPE_FP8, 0 },
};

Test(convert, every_code_is_the_nearest_and_the_rest_is_copied)
{
    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        for (int cut = 0; cut < 2; cut++) {
            const char *word = schemes[i].word;
            char folder[PATH_CAP], blob[16];
            struct source *s;
            struct tensor t;

            temp_folder(folder);
            cr_assert(eq(int, convert_to(word, folder, cut ? 1000 : CONVERT_SHARD_BYTES), 0), "%s",
                      word);
            cr_expect(cut == (folder_count(folder, 0) > 2), "%s: %d files", word,
                      folder_count(folder, 0));
            cr_assert(eq(int, source_hf_open(folder, &s), 0), "%s", word);
            cr_expect(eq(int, s->quant.block, schemes[i].block), "%s", word);
            for (size_t j = 0; j < WEIGHTS; j++) {
                enum stored_as as = weights[j].rows_of_table ? STORED_ROWS : STORED_MAT;
                enum dtype want = j == 0   ? schemes[i].dense
                                  : j == 1 ? schemes[i].expert
                                  : j == 4 ? schemes[i].table
                                           : DTYPE_BF16;
                struct stored w;

                cr_assert(
                    eq(int,
                       source_stored(s, weights[j].name, as, weights[j].rows, weights[j].cols, &w),
                       0));
                cr_assert(eq(int, (int)w.dtype, (int)want), "%s: %s", word, weights[j].name);
                if (w.dtype < DTYPE_COUNT)
                    expect_plain(s, j, &w);
                else
                    expect_encoded(s, j, &w, word);
            }
            cr_assert(eq(int, s->ops->find(s, "vision.blob", 0, 0, &t), 0));
            cr_assert(eq(int, s->ops->read(s, "vision.blob", &t, 0, blob, 16), 0));
            cr_expect(memcmp(blob, "0123456789abcdef", 16) == 0 && t.rank == 2);
            s->ops->close(s);
            folder_count(folder, 1);
        }
}

/* Files of the run before that another number of shards leaves in the folder. */
Test(convert, the_last_conversion_into_a_folder_counts)
{
    char folder[PATH_CAP];

    log_open(-1, LOG_ERR);
    temp_folder(folder);
    for (int run = 0; run < 4; run++) {
        const char *word = run % 2 ? "mxfp4" : "fp8";
        struct source *s;
        struct stored w;

        cr_assert(eq(int, convert_to(word, folder, run % 2 ? CONVERT_SHARD_BYTES : 1000), 0));
        cr_assert(eq(int, source_hf_open(folder, &s), 0), "run %d", run);
        cr_assert(
            eq(int,
               source_stored(s, weights[0].name, STORED_MAT, weights[0].rows, weights[0].cols, &w),
               0));
        cr_expect(eq(int, (int)w.dtype, run % 2 ? DTYPE_MXFP4 : DTYPE_FP8), "run %d", run);
        s->ops->close(s);
    }
    folder_count(folder, 1);
}

Test(convert, one_that_is_stopped_leaves_nothing)
{
    static const volatile sig_atomic_t stop = 1;
    struct walk_part part = { some_weights, NULL };
    struct convert_spec spec = { .parts = &part, .n_parts = 1, .shard_bytes = 1, .stop = &stop };
    struct source *src = plain_source();
    struct last_line line = { 0 };
    char folder[PATH_CAP];

    temp_folder(folder);
    spec.folder = folder;
    cr_assert(eq(int, scheme_parse("fp8", &spec.scheme), 0));
    log_sink(keep_line, &line);
    cr_expect(eq(int, convert(&spec, src), -EINTR));
    cr_expect(line.n == 1 && strstr(line.text, folder), "%s", line.text);
    cr_expect(eq(int, folder_count(folder, 1), 0));
    log_sink(NULL, NULL);
    src->ops->close(src);
}

Test(convert, config_keeps_what_it_said_and_says_the_formats)
{
    char folder[PATH_CAP], path[PATH_CAP];
    const struct json *q, *text, *n;
    const char *word = "";
    struct json *c;
    double eps = 0;

    log_open(-1, LOG_ERR);
    temp_folder(folder);
    cr_assert(eq(int, convert_to("fp8-mxfp4", folder, CONVERT_SHARD_BYTES), 0));
    path_join(path, sizeof(path), folder, "config.json");
    cr_assert(eq(int, json_read(path, 1 << 20, 8, &c), 0));
    cr_assert(eq(int, json_get_object(c, "quantization_config", &q), 0));
    cr_expect(json_str(q, "quant_method", &word) == 0 && strcmp(word, "fp8") == 0);
    cr_expect(json_str(q, "scale_fmt", &word) == 0 && strcmp(word, "ue8m0") == 0);
    cr_expect(json_str(q, "expert_dtype", &word) == 0 && strcmp(word, "fp4") == 0);
    cr_expect(json_f64(c, "eps", &eps) == 0 && eps == 1e-20);
    cr_assert(eq(int, json_get_object(c, "text_config", &text), 0));
    cr_expect(eq(int, json_has(text, "quantization_config"), 0));
    cr_expect(json_str(text, "a", &word) == 0 && strcmp(word, "\xc3\xa9") == 0);
    cr_assert(eq(int, json_get_array(c, "n", &n), 0));
    cr_expect(json_count(n) == 4 && json_is(json_at(n, 0), JSON_IS_INT) &&
              json_is(json_at(n, 1), JSON_IS_REAL) && json_is(json_at(n, 2), JSON_IS_NULL) &&
              json_is(json_at(n, 3), JSON_IS_BOOL));
    json_close(c);
    folder_count(folder, 1);
}

static void one_weight(void *object, struct walk *w)
{
    static struct mat m;

    walk_mat(w, &m, 32, 32, SHARD_NONE, 1, "a.w1.weight");
}

/* The scale of a whole matrix, where there is nothing to scale, or next to nothing. */
Test(convert, matrices_without_a_magnitude_have_a_scale)
{
    static const char *const tensors[] = { "a.w1.weight:BF16[32,32]",
                                           "a.w1.weight:BF16[32,32]=00800080",
                                           "a.w1.weight:BF16[32,32]=7f7f7f7f" };
    static const char *const formats[] = { "nvfp4", "nvfp4-ct", "mxfp4", "fp8", "fp8-128" };

    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        for (size_t j = 0; j < sizeof(formats) / sizeof(formats[0]); j++) {
            struct walk_part part = { one_weight, NULL };
            struct convert_spec spec = { .parts = &part,
                                         .n_parts = 1,
                                         .shard_bytes = CONVERT_SHARD_BYTES };
            char folder[PATH_CAP];
            struct json *config;
            struct source *src;
            struct stored w;

            temp_folder(folder);
            spec.folder = folder;
            cr_assert(eq(int, source_of(tensors[i], NULL, &src), 0));
            cr_assert(eq(int, json_parse("{}", 2, "config.json", 8, &config), 0));
            spec.config = config;
            cr_assert(eq(int, scheme_parse(formats[j], &spec.scheme), 0));
            cr_assert(eq(int, convert(&spec, src), 0), "%s as %s", tensors[i], formats[j]);
            src->ops->close(src);
            json_close(config);
            cr_assert(eq(int, source_hf_open(folder, &src), 0));
            cr_expect(eq(int, source_stored(src, "a.w1.weight", STORED_MAT, 32, 32, &w), 0),
                      "%s as %s", tensors[i], formats[j]);
            src->ops->close(src);
            folder_count(folder, 1);
        }
}

static void tied_weights(void *object, struct walk *w)
{
    static struct table t;
    static struct mat m;

    (void)object;
    walk_table(w, &t, 32, 32, SHARD_NONE, "model.embed_tokens.weight");
    walk_mat(w, &m, 32, 32, SHARD_ROWS, 1, "model.embed_tokens.weight#head");
}

static void note_name(void *arg, const char *name)
{
    strcat(strcat(arg, name), " ");
}

Test(convert, an_embedding_that_is_the_head_too_is_written_once)
{
    struct walk_part part = { tied_weights, NULL };
    char folder[PATH_CAP], names[256] = "";
    struct convert_spec spec = {
        .folder = folder, .parts = &part, .n_parts = 1, .shard_bytes = CONVERT_SHARD_BYTES
    };
    struct source *src;
    struct json *config;

    log_open(-1, LOG_ERR);
    temp_folder(folder);
    cr_assert(eq(int, source_of("model.embed_tokens.weight:BF16[32,32]", NULL, &src), 0));
    cr_assert(eq(int, json_parse("{}", 2, "config.json", 8, &config), 0));
    spec.config = config;
    cr_assert(eq(int, scheme_parse("fp8", &spec.scheme), 0));
    cr_assert(eq(int, convert(&spec, src), 0));
    json_close(config);
    src->ops->close(src);
    cr_assert(eq(int, source_hf_open(folder, &src), 0));
    src->ops->unused(src, note_name, names);
    cr_expect(eq(str, names, (char *)"model.embed_tokens.weight "));
    src->ops->close(src);
    folder_count(folder, 1);
}

Test(convert, what_cannot_be_is_refused_and_writes_nothing)
{
    static const struct {
        const char *word, *tensors, *says;
    } cases[] = {
        { "exl3-3", NULL, "no encoder for exl3-3" },
        { "bf16", NULL, "no encoder for bf16" },
        { "fp9", NULL, "fp9" },
        { "fp8", "a.w1.weight:F8_E4M3[32,32] a.w1.scale:F8_E8M0[1,1]", "fp8 already" },
        { "fp8", "a.w1.weight:BF16[32,32]=7f800000", "a.w1.weight: element 1 is not finite" },
        { "fp8", "b.weight:BF16[32,32]", "a.w1.weight" },
        { "fp8", "a.w1.weight:BF16[32,32] a.w1.bias:BF16[32]", "a.w1.bias: a bias that this" },
    };
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char folder[PATH_CAP];
        int r;

        temp_folder(folder);
        line = (struct last_line){ 0 };
        if (!cases[i].tensors) {
            r = convert_to(cases[i].word, folder, CONVERT_SHARD_BYTES);
        } else {
            struct walk_part part = { one_weight, NULL };
            struct convert_spec spec = {
                .folder = folder, .parts = &part, .n_parts = 1, .shard_bytes = CONVERT_SHARD_BYTES
            };
            struct source *src;
            struct json *config;

            cr_assert(eq(int, source_of(cases[i].tensors, NULL, &src), 0));
            cr_assert(eq(int, json_parse("{}", 2, "config.json", 8, &config), 0));
            spec.config = config;
            cr_assert(eq(int, scheme_parse(cases[i].word, &spec.scheme), 0));
            r = convert(&spec, src);
            json_close(config);
            src->ops->close(src);
        }
        cr_expect(r < 0 && line.n == 1 && strstr(line.text, cases[i].says), "%s: %s", cases[i].says,
                  line.text);
        cr_expect(eq(int, folder_count(folder, 0), 0), "%s: nothing is left", cases[i].says);
        folder_count(folder, 1);
    }
    log_sink(NULL, NULL);
}
