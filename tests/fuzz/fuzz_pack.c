/* fuzz_pack - headers and tables of contents of any bytes: refused, or every weight lies inside
 * the data.
 *
 * Input: a pack header of 64 bytes, whose toc_offset says where the data ends, then a table of
 * contents. The digest that guards the table in a file is left out: it would stop every change
 * before it is looked at.
 */
#include "tests/fuzz/fuzz.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/model/pack_file.h"

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

/* The parts of a quantised matrix lie inside its blob, none over another. */
static void check_parts(const struct pack_weight *w)
{
    struct mat m = pack_mat(w);
    struct mat_parts p;
    size_t end = 0;

    mat_parts(&m, &p);
    for (int i = 0; i < MAT_PARTS; i++) {
        if (p.bytes[i] == 0)
            continue;
        if (p.at[i] < end || p.at[i] % MAT_ALIGN != 0 || p.bytes[i] > w->bytes - p.at[i])
            abort();
        end = p.at[i] + p.bytes[i];
    }
    if (end != w->bytes)
        abort();
}

static void check(const struct pack_toc *t, uint64_t end)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct pack_weight *w = &t->weight[i];
        uint64_t bytes;

        if (w->offset % PACK_ALIGN != 0 || w->offset < sizeof(struct pack_header) ||
            w->offset > end || w->bytes > end - w->offset || pack_share_bytes(w, &bytes) < 0 ||
            bytes != w->bytes)
            abort();
        if (i > 0 && w->offset < t->weight[i - 1].offset + t->weight[i - 1].bytes)
            abort();
        if (w->d.kind == WEIGHT_MAT && w->dtype > DTYPE_COUNT)
            check_parts(w);
        if (w->d.first < 0 || w->d.count < 0 || w->d.rows < 1 || w->d.cols < 1)
            abort();
    }
}

/* What was accepted is written and accepted again, byte for byte. */
static void again(const struct pack_toc *t, uint64_t end)
{
    struct pack_toc second;
    uint8_t *one, *two;
    size_t one_bytes, two_bytes;

    if (pack_toc_encode(t, &one, &one_bytes) < 0 ||
        pack_toc_decode("fuzz", one, one_bytes, end, &second) < 0 ||
        pack_toc_encode(&second, &two, &two_bytes) < 0)
        abort();
    if (one_bytes != two_bytes || memcmp(one, two, one_bytes) != 0)
        abort();
    pack_toc_free(&second);
    free(one);
    free(two);
}

/* A table of one weight of every kind, and what its header would say. */
size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    static int64_t column_rows[2] = { 101, 103 };
    struct pack_weight weight[] = {
        { .d = { .name = "a",
                 .kind = WEIGHT_MAT,
                 .rows = 32,
                 .cols = 64,
                 .shard = SHARD_ROWS,
                 .unit = 1,
                 .count = 32 },
          .dtype = DTYPE_BF16 },
        { .d = { .name = "b", .kind = WEIGHT_TABLE, .rows = 9, .cols = 8, .unit = 1, .count = 9 },
          .dtype = DTYPE_F16 },
        { .d = { .name = "c", .kind = WEIGHT_VEC, .rows = 7, .cols = 1, .unit = 1, .count = 7 },
          .dtype = DTYPE_F32 },
        { .d = { .name = "d",
                 .kind = WEIGHT_ROWS,
                 .rows = 311,
                 .cols = 5,
                 .shard = SHARD_ROWS,
                 .unit = 1,
                 .count = 2 },
          .dtype = DTYPE_F32,
          .column_rows = column_rows },
    };
    struct pack_toc t = { .family = (char *)"test",
                          .ranks = 2,
                          .width_unit = 1,
                          .blob = { { "config.json", "{}", 2 } },
                          .n_blobs = 1,
                          .weight = weight,
                          .n = sizeof(weight) / sizeof(weight[0]) };
    struct pack_header h = {
        .magic = PACK_MAGIC, .version = PACK_VERSION, .complete = 1, .toc_offset = sizeof(h)
    };
    uint8_t *toc;
    size_t bytes;

    if (i > 0)
        return 0;
    for (size_t k = 0; k < t.n; k++) {
        weight[k].offset = pack_align(h.toc_offset);
        if (pack_share_bytes(&weight[k], &weight[k].bytes) < 0)
            abort();
        h.toc_offset = weight[k].offset + weight[k].bytes;
    }
    h.toc_offset = pack_align(h.toc_offset);
    if (pack_toc_encode(&t, &toc, &bytes) < 0)
        abort();
    h.toc_bytes = bytes;
    h.file_bytes = h.toc_offset + bytes;
    memcpy(out, &h, sizeof(h));
    memcpy(out + sizeof(h), toc, bytes);
    free(toc);
    return sizeof(h) + bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pack_header h;
    struct pack_toc t;
    uint8_t *toc;

    if (bytes < sizeof(h))
        return 0;
    memcpy(&h, data, sizeof(h));
    pack_header_check("fuzz", &h, h.toc_offset + (bytes - sizeof(h)));
    bytes -= sizeof(h);
    toc = malloc(bytes + !bytes);
    if (!toc)
        abort();
    memcpy(toc, data + sizeof(h), bytes);
    if (pack_toc_decode("fuzz", toc, bytes, h.toc_offset, &t) == 0) {
        check(&t, h.toc_offset);
        again(&t, h.toc_offset);
        pack_toc_free(&t);
    }
    free(toc);
    return 0;
}
