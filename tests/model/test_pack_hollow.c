/* Packs without the codes that a device can make: everything but those codes is as in a whole pack,
 * and what op synth makes from the hashes is the codes. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <sys/stat.h>

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "src/model/pack_file.h"
#include "src/model/resident.h"
#include "src/model/scheme.h"
#include "src/model/source.h"
#include "tests/model/tensors.h"

#define MATS 6

struct some {
    struct mat m[MATS];
    const float *norm;
};

static const char *const names[MATS] = { "layers.0.ffn.shared_experts.w1.weight",
                                         "layers.0.ffn.shared_experts.w2.weight",
                                         "layers.0.attn.wq_a.weight",
                                         "layers.0.attn.wo_a.weight",
                                         "layers.0.ffn.experts.0.w2.weight",
                                         "layers.0.ffn.gate.weight" };

/* Widths of five blocks and of one, whole, in slices, and one that is not EXL3. */
static void some_weights(void *object, struct walk *w)
{
    struct some *s = object;

    walk_mat(w, &s->m[0], 640, 4096, SHARD_ROWS, 1, "%s", names[0]);
    walk_mat(w, &s->m[1], 4096, 640, SHARD_COLS, 1, "%s", names[1]);
    walk_mat(w, &s->m[2], 128, 384, SHARD_NONE, 1, "%s", names[2]);
    walk_mat(w, &s->m[3], 1024, 256, SHARD_ROWS, 128, "%s", names[3]);
    walk_mat(w, &s->m[4], 128, 128, SHARD_COLS, 1, "%s", names[4]);
    walk_mat(w, &s->m[5], 16, 128, SHARD_NONE, 1, "%s", names[5]);
    walk_vec(w, &s->norm, 100, SHARD_NONE, 1, "norm.weight");
}

static void write_open(struct source *src, const char *folder, int rank, int ranks, bool hollow,
                       struct some *s, struct pack **out)
{
    struct walk_part part = { some_weights, s };
    struct pack_spec spec = { .family = "test",
                              .parts = &part,
                              .n_parts = 1,
                              .rank = rank,
                              .ranks = ranks,
                              .layouts = PACK_DEVICE,
                              .hollow = hollow };
    char path[PATH_CAP], name[32];

    snprintf(name, sizeof(name), "%d-%d.pack", rank, hollow);
    path_join(path, sizeof(path), folder, name);
    cr_assert(eq(int, pack_write(path, &spec, src), 0));
    cr_assert(eq(int, pack_open(path, out), 0));
    pack_prefer(*out, LAYOUT_DEVICE);
    cr_assert(eq(int, pack_bind(*out, &part, 1), 0));
    cr_expect(eq(int, pack_verify(*out), 0));
}

static void expect_made(const struct pack *p, const char *name, const struct mat *whole,
                        const struct mat *hollow)
{
    const struct backend_ops *ref;
    struct device *d;
    struct queue *q;
    struct mat_parts parts;
    struct pack_made made;
    struct synth_args a = { .w = *whole };
    unsigned char *codes;

    mat_parts(whole, &parts);
    pack_made(p, name, &made);
    if (whole->dtype != DTYPE_EXL3 || parts.total == 0) {
        cr_expect(eq(int, made.n, 0), "%s", name);
        cr_expect(memcmp(whole->data, hollow->data, parts.total) == 0, "%s", name);
        return;
    }
    cr_assert(eq(int, made.n, whole->q.slices ? whole->q.slices : 1), "%s", name);
    cr_expect(memcmp((const char *)whole->data + parts.at[PART_SUH],
                     (const char *)hollow->data + parts.at[PART_SUH],
                     parts.total - parts.at[PART_SUH]) == 0,
              "%s", name);
    codes = calloc(1, parts.bytes[PART_CODES]);
    cr_assert(eq(int, backend_find("ref", &ref), 0));
    cr_assert(eq(int, ref->open(0, 2, &d), 0));
    cr_assert(eq(int, ref->queue_open(d, &q), 0));
    a.w.data = codes;
    a.tile_row = made.tile_row;
    a.tile_col = made.tile_col;
    a.tile_cols = made.tile_cols;
    a.strips = whole->rows / EXL3_BLOCK / made.n;
    for (int i = 0; i < made.n; i++, a.strip0 += a.strips) {
        a.hash = made.hash[i];
        ref->op->synth(q, &a);
    }
    cr_expect(eq(int, ref->wait(q), 0));
    cr_expect(memcmp(codes, whole->data, parts.bytes[PART_CODES]) == 0, "%s: codes", name);
    ref->queue_close(q);
    ref->close(d);
    free(codes);
}

Test(pack_hollow, codes_come_from_the_hashes_and_the_rest_from_the_file)
{
    static const char *const schemes[] = { "exl3-3", "exl3-2.5", "exl3-v41" };
    struct scheme scheme;
    struct source *src;

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        for (int ranks = 1; ranks <= 4; ranks *= 2) {
            char folder[PATH_CAP];

            temp_folder(folder);
            cr_assert(eq(int, scheme_parse(schemes[i], &scheme), 0));
            cr_assert(eq(int, source_synth_open_scheme(3, &scheme, &src), 0));
            for (int r = 0; r < ranks; r++) {
                struct some whole, hollow;
                struct pack *p, *h;

                write_open(src, folder, r, ranks, false, &whole, &p);
                write_open(src, folder, r, ranks, true, &hollow, &h);
                for (int m = 0; m < MATS; m++)
                    expect_made(h, names[m], &whole.m[m], &hollow.m[m]);
                cr_expect(memcmp(whole.norm, hollow.norm, 100 * sizeof(float)) == 0);
                pack_close(p);
                pack_close(h);
            }
            src->ops->close(src);
            folder_count(folder, 1);
        }
}

Test(pack_hollow, holes_take_no_room_and_no_host_reads_them)
{
    struct scheme scheme;
    struct source *src;
    struct some s;
    struct walk_part part = { some_weights, &s };
    const struct backend_ops *ref;
    struct device *d;
    struct resident *resident;
    struct pack *p;
    struct stat st;
    char folder[PATH_CAP];

    temp_folder(folder);
    cr_assert(eq(int, scheme_parse("exl3-8", &scheme), 0));
    cr_assert(eq(int, source_synth_open_scheme(3, &scheme, &src), 0));
    write_open(src, folder, 0, 1, true, &s, &p);
    cr_assert(eq(int, stat(pack_name(p), &st), 0));
    cr_expect(st.st_size > 5 << 20);
    cr_expect(st.st_blocks * 512 < 1 << 20, "%ld bytes on disk", (long)st.st_blocks * 512);
    cr_assert(eq(int, backend_find("ref", &ref), 0));
    cr_assert(eq(int, ref->open(0, 1, &d), 0));
    cr_expect(eq(int, resident_open(d, p, &part, 1, &resident), -EINVAL));
    ref->close(d);
    pack_close(p);
    src->ops->close(src);
    folder_count(folder, 1);
}

Test(pack_hollow, other_formats_are_written_whole)
{
    struct scheme scheme;
    struct source *src;
    struct some s;
    struct walk_part part = { some_weights, &s };
    struct pack_spec spec = {
        .family = "test", .parts = &part, .n_parts = 1, .ranks = 1, .layouts = PACK_DEVICE
    };
    struct pack_made made;
    struct pack *p;
    char folder[PATH_CAP], path[PATH_CAP];

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "p.pack");
    cr_assert(eq(int, scheme_parse("fp8", &scheme), 0));
    cr_assert(eq(int, source_synth_open_scheme(3, &scheme, &src), 0));
    spec.hollow = true;
    cr_assert(eq(int, pack_write(path, &spec, src), 0));
    cr_assert(eq(int, pack_open(path, &p), 0));
    pack_made(p, names[0], &made);
    cr_expect(eq(int, made.n, 0));
    pack_close(p);
    src->ops->close(src);
    folder_count(folder, 1);
}
