#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "kernels/formats/exl3.h"
#include "src/model/pack_file.h"
#include "src/model/row_store.h"
#include "tests/model/quant_rig.h"

/* ---- goldens through a pack ---------------------------------------------------------------- */

struct golden {
    const char *file, *weight, *expect;
    int rows, cols;
    bool mat;
};

struct one {
    const struct golden *g;
    enum shard shard;
    struct mat m;
};

static void one_weight(void *object, struct walk *w)
{
    struct one *o = object;

    walk_mat(w, &o->m, o->g->rows, o->g->cols, o->shard, 1, "%s", o->g->weight);
}

/* A folder whose model.safetensors is a golden file. */
static struct source *golden_source(const char *file)
{
    char folder[PATH_CAP], from[PATH_CAP], to[PATH_CAP], *data;
    struct source *s;
    size_t bytes;

    temp_folder(folder);
    snprintf(from, sizeof(from), VECTORS "/formats/%s.safetensors", file);
    path_join(to, sizeof(to), folder, "model.safetensors");
    cr_assert(eq(int, file_read(from, 1 << 24, &data, &bytes), 0));
    cr_assert(eq(int, file_write(to, data, bytes, 0644), 0));
    free(data);
    cr_assert(eq(int, source_hf_open(folder, &s), 0), "%s", file);
    folder_count(folder, 1);
    return s;
}

static void *golden_take(struct source *s, const char *name)
{
    struct stored_tensor t;

    snprintf(t.name, sizeof(t.name), "%s", name);
    cr_assert(eq(int, s->ops->find(s, name, 0, 0, &t.t), 0), "%s", name);
    return take(s, &t);
}

/* Pack a weight of a source for a rank and bind it. */
static struct pack *pack_one(struct source *src, struct one *o, int rank, int ranks, int layouts)
{
    struct walk_part part = { one_weight, o };
    struct pack_spec spec = spec_of(&part, rank, ranks, layouts);
    char folder[PATH_CAP], path[PATH_CAP];
    struct pack *p;

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    cr_assert(eq(int, pack_write(path, &spec, src), 0), "%s", o->g->weight);
    cr_assert(eq(int, pack_open(path, &p), 0));
    cr_assert(eq(int, pack_bind(p, &part, 1), 0));
    folder_count(folder, 1);
    return p;
}

Test(pack_golden, golden_values_come_out_bit_for_bit)
{
    static const struct golden cases[] = {
        { "nvfp4", "modelopt.weight", "modelopt.expect", 8, 64, true },
        { "nvfp4", "ct.weight", "ct.expect", 8, 64, true },
        { "mxfp4", "w1.weight", "expect", 16, 128, true },
        { "fp8_block", "v41.weight", "v41.expect", 64, 96, true },
    };

    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int layouts = PACK_CPU; layouts <= PACK_DEVICE; layouts++) {
            const struct golden *g = &cases[i];
            struct one o = { .g = g };
            struct source *src = golden_source(g->file);
            struct pack *p = pack_one(src, &o, 0, 1, layouts);
            float *want = golden_take(src, g->expect), *is = bound_values(&o.m);

            for (int n = 0; n < g->rows; n++)
                for (int k = 0; k < g->cols; k++)
                    cr_assert(f32_bits(is[n * g->cols + k]) == f32_bits(want[n * g->cols + k]),
                              "%s: %d, %d", g->expect, n, k);
            free(is);
            free(want);
            pack_close(p);
            src->ops->close(src);
        }
}

/* The layer of the goldens over one rank, two that share its outputs, two that share its inputs. */
Test(pack_golden, golden_layer_holds_over_ranks)
{
    static const struct golden g = {
        "exl3_linear_mul1_b3_256x256", "p.weight", NULL, 256, 256, true
    };
    struct source *src = golden_source(g.file);
    double *want = golden_take(src, "expect.y");
    uint16_t *half = golden_take(src, "x");
    float x[ROWS_TEST * 256], y[ROWS_TEST * 256];
    struct ref f;

    log_open(-1, LOG_ERR);
    ref_open(&f);
    f32_widen(DTYPE_F16, half, ROWS_TEST * 256, x);
    for (enum shard shard = SHARD_NONE; shard <= SHARD_COLS; shard++)
        for (int layouts = PACK_CPU; layouts <= PACK_DEVICE; layouts++) {
            int ranks = shard == SHARD_NONE ? 1 : 2, at = 0;
            double sum[ROWS_TEST * 256] = { 0 }, off = 0;

            for (int rank = 0; rank < ranks; rank++) {
                struct one o = { .g = &g, .shard = shard };
                struct pack *p = pack_one(src, &o, rank, ranks, layouts);
                float *own = cut(x, 256, shard == SHARD_COLS ? at : 0, o.m.cols);

                cr_expect(eq(int, o.m.bias != NULL, shard != SHARD_COLS || rank == 0));
                multiply(&f, &o.m, own, 1, y);
                for (int i = 0; i < ROWS_TEST * o.m.rows; i++)
                    sum[i / o.m.rows * 256 + i % o.m.rows + (shard == SHARD_ROWS ? at : 0)] += y[i];
                at += shard == SHARD_COLS ? o.m.cols : o.m.rows;
                free(own);
                pack_close(p);
            }
            for (int i = 0; i < ROWS_TEST * 256; i++)
                off = fmax(off, fabs(sum[i] - want[i]));
            cr_expect(off < 5e-4, "shard %d, layouts %d: off by %g", (int)shard, layouts, off);
        }
    free(half);
    free(want);
    ref_close(&f);
    src->ops->close(src);
}

/* ---- rows of lookup tables ----------------------------------------------------------------- */

struct rows {
    struct row_table t;
    int64_t prime[3];
    int cols;
};

static void rows_weights(void *object, struct walk *w)
{
    struct rows *r = object;

    walk_rows(w, &r->t, r->prime, 3, r->cols, "layers.1.engram.embed.weight");
}

/* All rows of a rank's columns through the store. */
static void expect_rows(struct pack *p, const struct rows *r, const char *io, const float *want,
                        const float *bias)
{
    struct row_store *s;
    int64_t before = 0;

    cr_assert(eq(int,
                 row_store_open(
                     &(struct row_store_settings){
                         .pack = p, .io = io, .cache_bytes = 1 << 16, .wait_limit_ms = 10000 },
                     &s),
                 0));
    for (int c = 0; c < r->t.first; c++)
        before += r->prime[c];
    for (int c = 0; c < r->t.count; c++)
        for (int64_t i = 0; i < r->prime[r->t.first + c]; i++, before++) {
            int32_t column = c;
            float v[256];

            cr_assert(eq(int, s->ops->ask(s, &r->t, 0, &column, &i, 1), 0));
            cr_assert(eq(int, s->ops->take(s, 0, v), 0));
            for (int k = 0; k < r->cols; k++) {
                float w = want[before * r->cols + k];

                if (bias)
                    w += bias[(r->t.first + c) * r->cols + k];
                cr_assert(f32_bits(v[k]) == f32_bits(w), "row %ld, value %d", (long)before, k);
            }
        }
    s->ops->close(s);
}

/* In the pack, or left in the files of the source. */
static void expect_table(struct source *src, struct rows *r, bool link, const float *want,
                         const float *bias)
{
    char folder[PATH_CAP], path[PATH_CAP];

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            struct walk_part part = { rows_weights, r };
            struct pack_spec spec = spec_of(&part, rank, ranks, PACK_CPU);
            struct pack_item item;
            struct pack *p;

            spec.link_rows = link;
            cr_assert(eq(int, pack_write(path, &spec, src), 0), "rank %d of %d", rank, ranks);
            cr_assert(eq(int, pack_open(path, &p), 0));
            cr_assert(eq(int, pack_bind(p, &part, 1), 0));
            cr_expect(eq(int, pack_verify(p), 0));
            cr_assert(eq(int, pack_item(p, 0, &item), 0));
            cr_expect(link ? item.linked && item.bytes == 0 : !item.linked && item.bytes > 0);
            expect_rows(p, r, "auto", want, bias);
            expect_rows(p, r, "pread", want, bias);
            pack_close(p);
            unlink(path);
        }
    folder_count(folder, 1);
}

Test(pack_golden, rows_in_fp8_are_those_of_the_golden_table)
{
    struct source *golden = golden_source("fp8_block"), *src;
    uint8_t *code = golden_take(golden, "table.weight"),
            *scale = golden_take(golden, "table.scale");
    float *want = golden_take(golden, "table.expect");
    struct rows r = { .prime = { 1, 2, 1 }, .cols = 256 };
    struct tensors f = { 0 };
    char folder[PATH_CAP];

    log_open(-1, LOG_ERR);
    temp_folder(folder);
    tensors_add(&f, "layers.1.engram.embed.weight", "F8_E4M3", "[4,256]", code, 1024);
    tensors_add(&f, "layers.1.engram.embed.scale", "F8_E8M0", "[4,8]", scale, 32);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &src), 0));
    expect_table(src, &r, false, want, NULL);
    expect_table(src, &r, true, want, NULL);
    src->ops->close(src);
    folder_count(folder, 1);
    golden->ops->close(golden);
    free(code);
    free(scale);
    free(want);
}

/* Three heads with the same golden rows and biases of their own: expect has the golden head's. */
Test(pack_golden, rows_in_exl3_have_the_bias_of_their_head)
{
    static const char *const names[] = { "b4", "b6" };

    log_open(-1, LOG_ERR);
    for (int i = 0; i < 4; i++) {
        struct source *golden = golden_source("exl3_ngram_rows"), *src;
        char name[64], folder[PATH_CAP], shape[32];
        uint16_t *rows, *bias, biases[3][160] = { 0 };
        struct rows r = { .prime = { 1, 1, 2 }, .cols = 160 };
        struct tensors f = { 0 };
        float *want;
        struct pack *p;
        struct walk_part part = { rows_weights, &r };
        struct pack_spec spec = spec_of(&part, 0, 1, PACK_CPU);
        int words = ngram_row_words(i / 2 ? 6 : 4);

        rows = golden_take(golden, (snprintf(name, 64, "%s.rows", names[i / 2]), name));
        bias = golden_take(golden, (snprintf(name, 64, "%s.head_bias", names[i / 2]), name));
        want = golden_take(golden, (snprintf(name, 64, "%s.expect", names[i / 2]), name));
        for (int h = 0; h < 3; h++)
            memcpy(biases[h], bias, sizeof(biases[h]));
        memset(biases[1], 0, sizeof(biases[1]));
        temp_folder(folder);
        snprintf(shape, sizeof(shape), "[4,%d]", words);
        if (i % 2) {
            tensors_add(&f, "layers.1.engram.embed.trellis", "I16", shape, rows, (size_t)words * 8);
        } else { /* the same rows in two tensors */
            snprintf(shape, sizeof(shape), "[3,%d]", words);
            tensors_add(&f, "layers.1.engram.embed.shard_0.trellis", "I16", shape, rows,
                        (size_t)words * 6);
            snprintf(shape, sizeof(shape), "[1,%d]", words);
            tensors_add(&f, "layers.1.engram.embed.shard_1.trellis", "I16", shape, rows + 3 * words,
                        (size_t)words * 2);
        }
        tensors_add(&f, "layers.1.engram.embed.head_bias", "F16", "[3,160]", biases,
                    sizeof(biases));
        tensors_write(&f, folder, "model.safetensors");
        cr_assert(eq(int, source_hf_open(folder, &src), 0));
        path_join(name, sizeof(name), folder, "x.pack");
        spec.link_rows = i % 2;
        cr_assert(eq(int, pack_write(name, &spec, src), 0));
        cr_assert(eq(int, pack_open(name, &p), 0));
        cr_assert(eq(int, pack_bind(p, &part, 1), 0));
        {
            static const float zero[160];
            float v[4 * 160], other[160];
            int32_t column[] = { 2, 0, 1, 2 };
            int64_t row[] = { 1, 0, 0, 0 };
            struct row_store *s;
            uint16_t none[160] = { 0 };

            cr_assert(eq(int,
                         row_store_open(&(struct row_store_settings){ .pack = p,
                                                                      .io = "auto",
                                                                      .cache_bytes = 1 << 16,
                                                                      .wait_limit_ms = 10000 },
                                        &s),
                         0));
            cr_assert(eq(int, s->ops->ask(s, &r.t, 0, column, row, 4), 0));
            cr_assert(eq(int, s->ops->take(s, 0, v), 0));
            ngram_row(rows + words, i / 2 ? 6 : 4, none, other);
            cr_expect(memcmp(v, want + 3 * 160, sizeof(zero)) == 0, "last row of the last head");
            cr_expect(memcmp(v + 160, want, sizeof(zero)) == 0, "first head");
            cr_expect(memcmp(v + 2 * 160, other, sizeof(zero)) == 0, "a head without bias");
            cr_expect(memcmp(v + 3 * 160, want + 2 * 160, sizeof(zero)) == 0);
            s->ops->close(s);
        }
        pack_close(p);
        src->ops->close(src);
        golden->ops->close(golden);
        folder_count(folder, 1);
        free(rows);
        free(bias);
        free(want);
    }
}

/* Linked rows are those of the file that was there, or the pack is refused. */
Test(pack_golden, a_linked_file_that_is_another_one_is_refused)
{
    static const struct {
        const char *name, *says;
        int result;
    } cases[] = {
        { "as it was", NULL, 0 },
        { "longer", "another file now", -EINVAL },
        { "other tensors", "another file now", -EINVAL },
        { "gone", "stays in", -ENOENT },
    };
    struct rows r = { .prime = { 1, 2, 1 }, .cols = 64 };
    struct walk_part part = { rows_weights, &r };
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pack_spec spec = spec_of(&part, 1, 2, PACK_CPU);
        char folder[PATH_CAP], path[PATH_CAP], shard[PATH_CAP];
        struct tensors f = { 0 };
        struct source *src;
        struct pack *p;

        spec.link_rows = true;
        temp_folder(folder);
        path_join(path, sizeof(path), folder, "x.pack");
        path_join(shard, sizeof(shard), folder, "model.safetensors");
        tensors_line(&f, "layers.1.engram.embed.weight:BF16[4,64]");
        tensors_write(&f, folder, "model.safetensors");
        cr_assert(eq(int, source_hf_open(folder, &src), 0));
        cr_assert(eq(int, pack_write(path, &spec, src), 0));
        src->ops->close(src);
        if (i == 1)
            cr_assert(truncate(shard, 2000) == 0);
        if (i == 2) {
            f = (struct tensors){ 0 };
            tensors_line(&f, "layers.2.engram.embed.weight:BF16[4,64]");
            tensors_write(&f, folder, "model.safetensors");
        }
        if (i == 3)
            unlink(shard);
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_open(path, &p), cases[i].result), "%s", cases[i].name);
        if (cases[i].result == 0)
            pack_close(p);
        else
            cr_expect(line.n == 1 && strstr(line.text, cases[i].says) &&
                          strstr(line.text, "model.safetensors"),
                      "%s: %s", cases[i].name, line.text);
        folder_count(folder, 1);
    }
    log_sink(NULL, NULL);
}
