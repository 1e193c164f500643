#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/model/pack_rig.h"

static const int64_t other_primes[] = { 5, 11, 7 };

struct bind_case {
    const char *name;
    struct asked ask; /* differences from as_packed: fields that are not 0 */
    const char *says;
};

static const struct bind_case binds[] = {
    { "as packed", { .name = NULL }, NULL },
    { "more rows", { .rows = 48 }, "a.weight: shape [40, 24], the model asks for [48, 24]" },
    { "more columns", { .cols = 25 }, "a.weight: shape" },
    { "cut along columns", { .shard = SHARD_COLS }, "a.weight: share of rows" },
    { "cut in other units", { .unit = 20 }, "a.weight: share of rows from 0, 24" },
    { "another kind", { .mat_as_table = 1 }, "a.weight: is a mat, the model asks for a table" },
    { "another name", { .name = "b.weight" }, "b.weight is not in the pack" },
    { "something more", { .extra = 1 }, "more is not in the pack" },
    { "something less", { .skip_vec = 1 }, "v is in the pack and the model does not ask for it" },
    { "something twice", { .twice = 1 }, "v is asked for twice" },
    { "longer vector", { .vec = 7 }, "v: shape [6, 1]" },
    { "other hash columns", { .prime = other_primes }, "r.weight: hash column 1 has 7 rows" },
};

Test(pack_broken, bind_wants_every_weight_as_it_was_packed)
{
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct pack *p;

    small_pack(folder, path);
    log_sink(keep_line, &line);
    cr_assert(eq(int, pack_open(path, &p), 0));
    for (size_t i = 0; i < sizeof(binds) / sizeof(binds[0]); i++) {
        const struct asked *d = &binds[i].ask;
        struct asked a = as_packed;
        struct walk_part part = { asked_weights, &a };
        int r;

        a.rows = d->rows ? d->rows : a.rows;
        a.cols = d->cols ? d->cols : a.cols;
        a.unit = d->unit ? d->unit : a.unit;
        a.vec = d->vec ? d->vec : a.vec;
        a.shard = d->shard ? d->shard : a.shard;
        a.name = d->name ? d->name : a.name;
        a.prime = d->prime ? d->prime : a.prime;
        a.skip_vec = d->skip_vec;
        a.extra = d->extra;
        a.twice = d->twice;
        a.mat_as_table = d->mat_as_table;
        line = (struct last_line){ 0 };
        r = pack_bind(p, &part, 1);
        cr_expect(eq(int, r, binds[i].says ? -EINVAL : 0), "%s", binds[i].name);
        cr_expect(r == 0 || (strstr(line.text, binds[i].says) && strstr(line.text, path)), "%s: %s",
                  binds[i].name, line.text);
        cr_expect(eq(int, line.n, binds[i].says != NULL), "%s: one line", binds[i].name);
    }
    pack_close(p);
    folder_count(folder, 1);
}

static void change_byte(const char *path, long at, int how)
{
    FILE *f = fopen(path, "r+");
    int c;

    cr_assert(f && fseek(f, at, SEEK_SET) == 0 && (c = fgetc(f)) >= 0);
    cr_assert(fseek(f, at, SEEK_SET) == 0 && fputc(c ^ how, f) >= 0 && fclose(f) == 0);
}

Test(pack_broken, one_flipped_bit_is_found_and_named)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct pack *p;

    small_pack(folder, path);
    log_sink(keep_line, &line);
    cr_assert(eq(int, pack_open(path, &p), 0));
    cr_assert(eq(int, pack_bind(p, &part, 1), 0));
    cr_expect(eq(int, pack_verify(p), 0));
    for (size_t i = 0; i < p->toc.n; i++) {
        const struct pack_weight *w = &p->toc.weight[i];

        for (int last = 0; last < 2; last++) {
            long at = (long)(w->offset + (last ? w->bytes - 1 : 0));

            change_byte(path, at, 0x40);
            line = (struct last_line){ 0 };
            cr_expect(eq(int, pack_verify(p), -EBADMSG), "%s", w->d.name);
            cr_expect(strstr(line.text, w->d.name) && strstr(line.text, path), "%s", line.text);
            change_byte(path, at, 0x40);
        }
    }
    cr_expect(eq(int, pack_verify(p), 0));
    pack_close(p);
    folder_count(folder, 1);
}

struct header_case {
    const char *name;
    long at;
    int how;
    const char *says;
};

static const struct header_case headers[] = {
    { "magic", 0, 1, "not a pack" },
    { "last byte of the magic", 7, 1, "not a pack" },
    { "version", 8, 1, "this program reads 2" },
    { "not complete", 12, 1, "unfinished" },
    { "file size", 16, 1, "truncated?" },
    { "file size beyond 2^63", 23, 0x80, "truncated?" },
    { "place of the table", 25, 1, "table of contents" },
    { "place of the table beyond the end", 31, 0x80, "table of contents" },
    { "size of the table", 32, 1, "table of contents" },
    { "digest of the table", 40, 1, "another digest" },
    { "nothing", 56, 1, "unfinished" },
};

Test(pack_broken, broken_headers_are_refused)
{
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct pack_header h;
    struct pack *p;
    struct stat st;
    FILE *f;

    small_pack(folder, path);
    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        change_byte(path, headers[i].at, headers[i].how);
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_open(path, &p), -EINVAL), "%s", headers[i].name);
        cr_expect(strstr(line.text, headers[i].says) && strstr(line.text, path), "%s: %s",
                  headers[i].name, line.text);
        change_byte(path, headers[i].at, headers[i].how);
    }
    f = fopen(path, "r");
    cr_assert(f && fread(&h, sizeof(h), 1, f) == 1 && fclose(f) == 0 && stat(path, &st) == 0);
    for (uint64_t at = h.toc_offset; at < h.file_bytes; at++) {
        change_byte(path, (long)at, 0x10);
        cr_expect(eq(int, pack_open(path, &p), -EINVAL), "table of contents, byte %lu", at);
        change_byte(path, (long)at, 0x10);
    }
    cr_assert(truncate(path, st.st_size + 1) == 0);
    cr_expect(eq(int, pack_open(path, &p), -EINVAL), "a byte more");
    for (off_t size = st.st_size - 1; size >= 0; size = size > 200 ? size * 2 / 3 : size - 21) {
        cr_assert(truncate(path, size) == 0);
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_open(path, &p), -EINVAL), "cut to %ld bytes", size);
        cr_expect(line.n == 1 && strstr(line.text, path), "cut to %ld bytes: %s", size, line.text);
    }
    cr_expect(eq(int, pack_open(folder, &p), -EINVAL));
    cr_expect(eq(int, pack_open("/nonexistent", &p), -ENOENT));
    folder_count(folder, 1);
}

/* ---- tables of contents that lie ------------------------------------------------------------- */

enum lie {
    LIE_NONE,
    LIE_RANK,
    LIE_RANKS,
    LIE_RANKS_0,
    LIE_KIND,
    LIE_DTYPE,
    LIE_SHARD,
    LIE_ROWS_0,
    LIE_ROWS_HUGE,
    LIE_COLS_NEGATIVE,
    LIE_COLS_HUGE,
    LIE_FIRST_NEGATIVE,
    LIE_COUNT_NEGATIVE,
    LIE_SHARE_BEYOND,
    LIE_SHARE_WRAPS,
    LIE_PART_OF_REPLICATED,
    LIE_OFFSET_BEYOND,
    LIE_OFFSET_WRAPS,
    LIE_OFFSET_ODD,
    LIE_OVERLAP,
    LIE_HOLE,
    LIE_HEADER_OVERLAP,
    LIE_BYTES,
    LIE_BYTES_HUGE,
    LIE_NO_NAME,
    LIE_VEC_COLS,
    LIE_VEC_TYPE,
    LIE_COLUMN_ROWS,
    LIE_COLUMN_ROWS_0,
    LIE_COLUMN_ROWS_WRAP,
    LIE_ROWS_REPLICATED,
    LIE_COLUMNS_OF_A_VEC,
    LIE_DIGEST_SHORT,
    LIE_END_EARLY,
    LIE_END_LATE,
    LIE_UNIT_0,
    LIE_LAYOUTS,
    LIE_QUANT_OF_A_VEC,
    LIE_BITS_OF_F32,
    LIES
};

static const char *const lie_names[LIES] = {
    [LIE_RANK] = "rank 1 of 1",
    [LIE_RANKS] = "too many ranks",
    [LIE_RANKS_0] = "no ranks",
    [LIE_KIND] = "unknown kind",
    [LIE_DTYPE] = "unknown type",
    [LIE_SHARD] = "unknown cut",
    [LIE_ROWS_0] = "no rows",
    [LIE_ROWS_HUGE] = "rows above int",
    [LIE_COLS_NEGATIVE] = "negative columns",
    [LIE_COLS_HUGE] = "columns above int",
    [LIE_FIRST_NEGATIVE] = "share begins before 0",
    [LIE_COUNT_NEGATIVE] = "negative share",
    [LIE_SHARE_BEYOND] = "share ends behind the weight",
    [LIE_SHARE_WRAPS] = "share wraps around",
    [LIE_PART_OF_REPLICATED] = "part of a replicated weight",
    [LIE_OFFSET_BEYOND] = "offset behind the data",
    [LIE_OFFSET_WRAPS] = "offset near 2^64",
    [LIE_OFFSET_ODD] = "offset not aligned",
    [LIE_OVERLAP] = "two weights share bytes",
    [LIE_HOLE] = "hole between weights",
    [LIE_HEADER_OVERLAP] = "weight inside the header",
    [LIE_BYTES] = "one byte more than the shape",
    [LIE_BYTES_HUGE] = "bytes near 2^64",
    [LIE_NO_NAME] = "no name",
    [LIE_VEC_COLS] = "vector of two columns",
    [LIE_VEC_TYPE] = "vector of bf16",
    [LIE_COLUMN_ROWS] = "hash columns longer than the table",
    [LIE_COLUMN_ROWS_0] = "empty hash column",
    [LIE_COLUMN_ROWS_WRAP] = "hash columns that wrap around",
    [LIE_ROWS_REPLICATED] = "row table that is not cut",
    [LIE_COLUMNS_OF_A_VEC] = "hash columns of a vector",
    [LIE_DIGEST_SHORT] = "digest of 14 bytes",
    [LIE_END_EARLY] = "data ends before the last weight",
    [LIE_END_LATE] = "space behind the last weight",
    [LIE_UNIT_0] = "widths in units of 0",
    [LIE_LAYOUTS] = "a third layout",
    [LIE_QUANT_OF_A_VEC] = "vector of MXFP4",
    [LIE_BITS_OF_F32] = "f32 with a width",
};

static void tell_lie(struct pack_toc *t, enum lie lie)
{
    struct pack_weight *m = &t->weight[0], *v = &t->weight[1], *r = &t->weight[2];

    switch (lie) {
    case LIE_RANK:
        t->rank = t->ranks;
        break;
    case LIE_RANKS:
        t->ranks = 9;
        break;
    case LIE_RANKS_0:
        t->ranks = 0;
        break;
    case LIE_KIND:
        m->d.kind = WEIGHT_ROWS + 1;
        break;
    case LIE_DTYPE:
        m->dtype = DTYPE_COUNT;
        break;
    case LIE_SHARD:
        m->d.shard = SHARD_COLS + 1;
        break;
    case LIE_ROWS_0:
        m->d.rows = 0;
        break;
    case LIE_ROWS_HUGE:
        m->d.rows = (int64_t)1 << 31;
        break;
    case LIE_COLS_NEGATIVE:
        m->d.cols = -8;
        break;
    case LIE_COLS_HUGE:
        m->d.cols = INT64_MAX;
        break;
    case LIE_FIRST_NEGATIVE:
        m->d.first = -1;
        break;
    case LIE_COUNT_NEGATIVE:
        m->d.count = -16;
        break;
    case LIE_SHARE_BEYOND:
        m->d.first = 17;
        break;
    case LIE_SHARE_WRAPS:
        m->d.first = INT64_MAX;
        break;
    case LIE_PART_OF_REPLICATED:
        v->d.count = 8;
        v->bytes = 32;
        break;
    case LIE_OFFSET_BEYOND:
        v->offset = 1 << 20;
        break;
    case LIE_OFFSET_WRAPS:
        v->offset = UINT64_MAX - 255;
        break;
    case LIE_OFFSET_ODD:
        v->offset += 4;
        break;
    case LIE_OVERLAP:
        v->offset = m->offset;
        break;
    case LIE_HOLE:
        r->offset += 256;
        break;
    case LIE_HEADER_OVERLAP:
        m->offset = 0;
        break;
    case LIE_BYTES:
        m->bytes++;
        break;
    case LIE_BYTES_HUGE:
        m->bytes = UINT64_MAX - 16;
        break;
    case LIE_NO_NAME:
        m->d.name[0] = 0;
        break;
    case LIE_VEC_COLS:
        v->d.cols = 2;
        break;
    case LIE_VEC_TYPE:
        v->dtype = DTYPE_BF16;
        v->bytes /= 2;
        break;
    case LIE_COLUMN_ROWS:
        r->column_rows[1] = 100;
        r->bytes = (5 + 100) * 8;
        break;
    case LIE_COLUMN_ROWS_0:
        r->column_rows[1] = 0;
        r->bytes = 5 * 8;
        break;
    case LIE_COLUMN_ROWS_WRAP:
        r->column_rows[0] = r->column_rows[1] = INT64_MAX;
        break;
    case LIE_ROWS_REPLICATED:
        r->d.shard = SHARD_NONE;
        break;
    case LIE_COLUMNS_OF_A_VEC:
        r->d.kind = WEIGHT_VEC;
        r->d.cols = 1;
        break;
    case LIE_UNIT_0:
        t->width_unit = 0;
        break;
    case LIE_LAYOUTS:
        t->layouts = 4;
        break;
    case LIE_QUANT_OF_A_VEC:
        v->dtype = DTYPE_MXFP4;
        break;
    case LIE_BITS_OF_F32:
        m->q.bits2 = 6;
        break;
    default:
        break;
    }
}

/* m: rows 0 .. 15 of [32][8] f32; v: 20 values; r: 2 hash columns of a table of 23 rows. */
static void toc_of_three(struct pack_toc *t, struct pack_weight w[3], int64_t columns[2])
{
    columns[0] = 5;
    columns[1] = 7;
    w[0] = (struct pack_weight){ .d = { .name = "m",
                                        .kind = WEIGHT_MAT,
                                        .rows = 32,
                                        .cols = 8,
                                        .shard = SHARD_ROWS,
                                        .count = 16 },
                                 .offset = 256,
                                 .bytes = 512 };
    w[1] = (struct pack_weight){
        .d = { .name = "v", .kind = WEIGHT_VEC, .rows = 20, .cols = 1, .count = 20 },
        .offset = 768,
        .bytes = 80
    };
    w[2] = (struct pack_weight){ .d = { .name = "r",
                                        .kind = WEIGHT_ROWS,
                                        .rows = 23,
                                        .cols = 4,
                                        .shard = SHARD_ROWS,
                                        .count = 2 },
                                 .dtype = DTYPE_BF16,
                                 .offset = 1024,
                                 .bytes = 12 * 8,
                                 .column_rows = columns };
    /* What is left of the first digest when its length lies parses as an unknown field. */
    w[0].digest[14] = 0x78;
    *t = (struct pack_toc){ .family = (char *)"test",
                            .ranks = 1,
                            .width_unit = 1,
                            .layouts = PACK_CPU,
                            .blob = { { "config.json", "{}", 2 } },
                            .n_blobs = 1,
                            .weight = w,
                            .n = 3 };
}

Test(pack_broken, tables_of_contents_that_lie_are_refused)
{
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (enum lie lie = LIE_NONE; lie < LIES; lie++) {
        uint64_t end = lie == LIE_END_EARLY ? 1024 : lie == LIE_END_LATE ? 1536 : 1280;
        struct pack_weight w[3];
        int64_t columns[2];
        struct pack_toc t, got;
        uint8_t *data, *field;
        size_t bytes;
        int r;

        toc_of_three(&t, w, columns);
        tell_lie(&t, lie);
        cr_assert(eq(int, pack_toc_encode(&t, &data, &bytes), 0));
        if (lie == LIE_DIGEST_SHORT) {
            field = memmem(data, bytes, (const uint8_t[]){ 0x5a, 16 }, 2);
            cr_assert(field != NULL);
            field[1] = 14;
        }
        line = (struct last_line){ 0 };
        r = pack_toc_decode("x.pack", data, bytes, end, &got);
        if (lie == LIE_NONE)
            cr_assert(eq(int, r, 0), "the truth: %s", line.text);
        else
            cr_expect(eq(int, r, -EINVAL), "%s", lie_names[lie]);
        cr_expect(eq(int, line.n, lie != LIE_NONE), "%s", lie_names[lie]);
        cr_expect(lie == LIE_NONE || strstr(line.text, "x.pack"), "%s: %s", lie_names[lie],
                  line.text);
        if (r == 0)
            pack_toc_free(&got);
        free(data);
    }
}

Test(pack_broken, cut_tables_of_contents_are_refused_or_end_early)
{
    struct last_line line = { 0 };
    struct pack_weight w[3];
    int64_t columns[2];
    struct pack_toc t, got;
    uint8_t *data;
    size_t bytes;

    log_sink(keep_line, &line);
    toc_of_three(&t, w, columns);
    cr_assert(eq(int, pack_toc_encode(&t, &data, &bytes), 0));
    for (size_t n = 0; n < bytes; n++)
        cr_expect(eq(int, pack_toc_decode("x.pack", data, n, 1280, &got), -EINVAL), "%zu bytes", n);
    free(data);
}
