/* pack_bind.c owns what is done with an open pack: giving its weights to a model, reading it
 * again, listing it. */
#include "src/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/log.h"
#include "src/base/meter.h"
#include "src/model/pack_file.h"

static const char *const kind_names[] = {
    [WEIGHT_MAT] = "mat",
    [WEIGHT_TABLE] = "table",
    [WEIGHT_VEC] = "vec",
    [WEIGHT_ROWS] = "rows",
};
static const char *const shard_names[] = {
    [SHARD_NONE] = "all",
    [SHARD_ROWS] = "rows",
    [SHARD_COLS] = "cols",
};

struct bind {
    struct walk w;
    struct pack *p;
    unsigned char *bound; /* [toc.n] */
};

static const struct pack_weight *named(const struct pack *p, size_t i)
{
    return &p->toc.weight[p->by_name[i]];
}

/* The first place of a name in by_name and how many have it: one, or a layout each. */
static size_t find(const struct pack *p, const char *name, size_t *n)
{
    size_t lo = 0, hi = p->toc.n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strcmp(named(p, mid)->d.name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (*n = 0; lo + *n < p->toc.n && strcmp(named(p, lo + *n)->d.name, name) == 0; ++*n)
        ;
    return lo;
}

static int compare(const struct pack *p, const struct weight *want, const struct pack_weight *w)
{
    const struct weight *d = &w->d;

    if (d->kind != want->kind)
        return fail(-EINVAL, "%s: %s: is a %s, the model asks for a %s", p->path, d->name,
                    kind_names[d->kind], kind_names[want->kind]);
    if (d->rows != want->rows || d->cols != want->cols)
        return fail(-EINVAL, "%s: %s: shape [%lld, %lld], the model asks for [%lld, %lld]", p->path,
                    d->name, (long long)d->rows, (long long)d->cols, (long long)want->rows,
                    (long long)want->cols);
    if (d->shard != want->shard || d->first != want->first || d->count != want->count)
        return fail(
            -EINVAL, "%s: %s: share of %s from %lld, %lld; the model asks for %s from %lld, %lld",
            p->path, d->name, shard_names[d->shard], (long long)d->first, (long long)d->count,
            shard_names[want->shard], (long long)want->first, (long long)want->count);
    for (int64_t i = 0; d->kind == WEIGHT_ROWS && i < d->count; i++)
        if (w->column_rows[i] != want->prime[want->first + i])
            return fail(-EINVAL, "%s: %s: hash column %lld has %lld rows, the model asks for %lld",
                        p->path, d->name, (long long)(want->first + i),
                        (long long)w->column_rows[i], (long long)want->prime[want->first + i]);
    return 0;
}

static struct row_table row_table(const struct pack *p, size_t weight)
{
    const struct pack_weight *w = &p->toc.weight[weight];
    struct row_table t = { .first = (int)w->d.first,
                           .count = (int)w->d.count,
                           .cols = (int)w->d.cols,
                           .dtype = w->dtype,
                           .row_bytes = pack_row_bytes(w) };

    while (p->table[t.id] != weight)
        t.id++;
    if (w->dtype == DTYPE_EXL3) {
        t.bits = w->q.bits2 / 2;
        t.bias = (const uint16_t *)(p->map + pack_row_bias(w));
    }
    return t;
}

static int bind_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct bind *b = (struct bind *)walk;
    struct pack *p = b->p;
    const struct pack_weight *w;
    size_t n, first = find(p, d->name, &n), at = first;
    const void *data;
    struct mat m;
    int r;

    if (n == 0)
        return fail(-EINVAL, "%s: %s is not in the pack", p->path, d->name);
    if (b->bound[p->by_name[first]])
        return fail(-EINVAL, "%s: %s is asked for twice", p->path, d->name);
    for (size_t i = first; i < first + n; i++) {
        b->bound[p->by_name[i]] = 1;
        if (named(p, i)->q.layout == p->prefer)
            at = i;
    }
    w = named(p, at);
    r = compare(p, d, w);
    if (r < 0)
        return r;
    data = p->map + w->offset;
    m = pack_mat(w);
    switch (d->kind) {
    case WEIGHT_MAT:
        mat_place(&m, data);
        *(struct mat *)target = m;
        break;
    case WEIGHT_TABLE:
        *(struct table *)target =
            (struct table){ .data = data, .dtype = w->dtype, .rows = m.rows, .cols = m.cols };
        break;
    case WEIGHT_VEC:
        *(const float **)target = data;
        break;
    case WEIGHT_ROWS:
        *(struct row_table *)target = row_table(p, p->by_name[at]);
        break;
    }
    return 0;
}

int pack_bind(struct pack *p, const struct walk_part *parts, int n_parts)
{
    struct bind b = { .w = { .visit = bind_visit,
                             .rank = p->toc.rank,
                             .ranks = p->toc.ranks,
                             .width_unit = p->toc.width_unit,
                             .whole_experts = p->toc.whole_experts },
                      .p = p };
    int r;

    b.bound = calloc(p->toc.n + 1, 1);
    if (!b.bound)
        return fail(-ENOMEM, "%s: no memory for %zu weights", p->path, p->toc.n);
    r = walk_parts(&b.w, parts, n_parts);
    for (size_t i = 0; r == 0 && i < p->toc.n; i++)
        if (!b.bound[i])
            r = fail(-EINVAL, "%s: %s is in the pack and the model does not ask for it", p->path,
                     p->toc.weight[i].d.name);
    free(b.bound);
    return r;
}

/* ---- sets ------------------------------------------------------------------------------------ */

static void add_blob(struct sha256 *s, const struct pack_toc *t, const char *name)
{
    for (int i = 0; i < t->n_blobs; i++)
        if (strcmp(t->blob[i].name, name) == 0)
            sha256_add(s, t->blob[i].data, t->blob[i].bytes);
}

static void add_config(struct sha256 *s, const struct pack_toc *t)
{
    add_blob(s, t, "config.json");
}

static void add_tokenizer(struct sha256 *s, const struct pack_toc *t)
{
    add_blob(s, t, "tokenizer.json");
}

static void add_split(struct sha256 *s, const struct pack_toc *t)
{
    sha256_add_u64(s, (uint64_t)t->ranks);
    sha256_add_u64(s, (uint64_t)t->width_unit);
    sha256_add_u64(s, t->whole_experts);
    sha256_add_u64(s, (uint64_t)t->layouts);
}

static void add_formats(struct sha256 *s, const struct pack_toc *t)
{
    sha256_add(s, t->walk_digest, SHA256_BYTES);
    for (size_t i = 0; i < t->n; i++)
        sha256_add_u64(s, t->weight[i].dtype);
}

static void add_weights(struct sha256 *s, const struct pack_toc *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->weight[i].d.shard == SHARD_NONE)
            sha256_add(s, t->weight[i].digest, XXH3_BYTES);
}

int pack_set_part(const struct pack *p, int i, const char **name, uint8_t out[SET_DIGEST_BYTES])
{
    static const struct {
        const char *name;
        void (*add)(struct sha256 *s, const struct pack_toc *t);
    } parts[] = { { "config.json", add_config },
                  { "tokenizer.json", add_tokenizer },
                  { "split, layout", add_split },
                  { "names, shapes, formats", add_formats },
                  { "replicated weights", add_weights } };
    struct sha256 *s;
    int r;

    if (i >= (int)(sizeof(parts) / sizeof(parts[0])))
        return 1;
    r = sha256_open(&s);
    if (r < 0)
        return r;
    parts[i].add(s, &p->toc);
    r = sha256_end(s, out);
    sha256_close(s);
    *name = parts[i].name;
    return r;
}

void pack_made(const struct pack *p, const char *name, struct pack_made *out)
{
    size_t n, at = find(p, name, &n);
    const struct pack_weight *w;

    *out = (struct pack_made){ 0 };
    if (n == 0 || named(p, at)->n_made == 0)
        return;
    w = named(p, at);
    *out = (struct pack_made){ .hash = w->made,
                               .n = w->n_made,
                               .tile_row = w->d.shard == SHARD_COLS ? w->d.first / MAT_TILE : 0,
                               .tile_col = w->made_col,
                               .tile_cols = w->made_cols };
}

/* A number for the file of a table's rows: the pack's is 0, each linked one has its own. */
static int file_number(const struct pack *p, int table)
{
    int n = 0;

    for (int i = 0; i <= table; i++)
        n += p->toc.weight[p->table[i]].links > 0;
    return p->toc.weight[p->table[table]].links > 0 ? n : 0;
}

int pack_rows_at(const struct pack *p, int table, int column, struct pack_rows *out)
{
    const struct pack_weight *w;
    uint64_t before;

    if (table < 0 || table >= p->n_tables)
        return fail(-EINVAL, "%s: row table %d of %d", p->path, table, p->n_tables);
    w = &p->toc.weight[p->table[table]];
    if (column < 0 || column >= w->d.count)
        return fail(-EINVAL, "%s: %s: hash column %d of %lld here", p->path, w->d.name, column,
                    (long long)w->d.count);
    before = (uint64_t)w->column_first[column];
    *out = (struct pack_rows){ .rows = w->column_rows[column], .file = file_number(p, table) };
    if (w->links == 0) {
        size_t bytes = (size_t)pack_row_bytes(w);

        out->piece[0].fd = p->fd;
        out->piece[0].offset = w->offset + before * bytes;
        out->piece[0].bytes = bytes;
    }
    for (int i = 0; i < w->links; i++) {
        size_t bytes = pack_link_bytes(w, i);

        out->piece[i].fd = w->link[i].fd;
        out->piece[i].offset = w->link[i].offset + before * bytes;
        out->piece[i].bytes = bytes;
    }
    return 0;
}

void pack_rows_size(const struct pack *p, uint64_t *rows, size_t *longest)
{
    *rows = 0;
    *longest = 0;
    for (int i = 0; i < p->n_tables; i++) {
        const struct pack_weight *w = &p->toc.weight[p->table[i]];
        size_t bytes = (size_t)pack_row_bytes(w);

        for (int64_t c = 0; c < w->d.count; c++)
            *rows += (uint64_t)w->column_rows[c];
        if (bytes > *longest)
            *longest = bytes;
    }
}

static int verify_weight(struct pack *p, const struct pack_weight *w, struct xxh3 *hash, void *buf,
                         struct meter *meter)
{
    uint8_t digest[XXH3_BYTES];
    char label[PATH_CAP + WEIGHT_NAME_MAX + 8];

    snprintf(label, sizeof(label), "%s: %s", p->path, w->d.name);
    for (uint64_t at = pack_stored_at(w); at < w->bytes;) {
        size_t n = w->bytes - at < PACK_BLOCK ? (size_t)(w->bytes - at) : PACK_BLOCK;
        off_t offset = (off_t)(w->offset + at);
        int r = full_pread(p->fd, buf, n, offset, label);

        if (r < 0)
            return r;
        posix_fadvise(p->fd, offset, (off_t)n, POSIX_FADV_DONTNEED);
        xxh3_add(hash, buf, n);
        meter_add(meter, n);
        at += n;
    }
    xxh3_end(hash, digest);
    if (memcmp(digest, w->digest, sizeof(digest)) != 0)
        return fail(-EBADMSG, "%s: the %llu bytes at offset %llu are not those that were written",
                    label, (unsigned long long)w->bytes, (unsigned long long)w->offset);
    return 0;
}

int pack_verify(struct pack *p)
{
    uint8_t digest[SHA256_BYTES];
    struct meter meter;
    uint64_t total = 0;
    struct xxh3 *hash;
    void *buf;
    int r = xxh3_open(&hash);

    if (r < 0)
        return r;
    buf = malloc(PACK_BLOCK);
    if (!buf) {
        r = fail(-ENOMEM, "%s: no memory", p->path);
        goto close_hash;
    }
    for (size_t i = 0; i < p->toc.n; i++)
        total += p->toc.weight[i].bytes - pack_stored_at(&p->toc.weight[i]);
    meter_begin(&meter, p->path, METER_BYTES, total);
    for (size_t i = 0; r == 0 && i < p->toc.n; i++)
        r = verify_weight(p, &p->toc.weight[i], hash, buf, &meter);
    meter_end(&meter);
    if (r == 0)
        r = pack_toc_digest(&p->toc, digest);
    if (r == 0 && memcmp(digest, p->toc.set_digest, sizeof(digest)) != 0)
        r = fail(-EBADMSG, "%s: set digest is not that of the table of contents", p->path);
    free(buf);

close_hash:
    xxh3_close(hash);
    return r;
}

int pack_item(const struct pack *p, size_t i, struct pack_item *out)
{
    const struct pack_weight *w = &p->toc.weight[i];
    bool rows = i < p->toc.n && w->d.kind == WEIGHT_ROWS;

    if (i >= p->toc.n)
        return 1;
    *out = (struct pack_item){ .name = w->d.name,
                               .kind = w->d.kind,
                               .rows = w->d.rows,
                               .cols = w->d.cols,
                               .bytes = w->bytes,
                               .row_bytes = rows ? pack_row_bytes(w) : 0,
                               .columns = rows ? (int)w->d.count : 0,
                               .linked = w->links > 0 ? w->link[0].path : NULL,
                               .dtype = w->dtype,
                               .q = w->q,
                               .again = i > 0 && strcmp(w[-1].d.name, w->d.name) == 0 };
    return 0;
}

/* "exl3 2.5 mul1", "fp8 32", "bf16"; bits of a weight without its scales. */
static const char *format_text(const struct pack_weight *w, char *buf, size_t cap)
{
    static const char *const books[] = { "3inst", "mcg", "mul1" };
    const char *name = dtype_name(w->dtype);

    if (w->dtype == DTYPE_EXL3)
        snprintf(buf, cap, "%s %g %s", name, w->q.bits2 / 2.0, books[w->q.codebook]);
    else if (w->dtype == DTYPE_FP8)
        snprintf(buf, cap, "%s 8 %d", name, w->q.block);
    else if (w->dtype > DTYPE_COUNT)
        snprintf(buf, cap, "%s 4 %d", name, mat_group(w->dtype));
    else
        snprintf(buf, cap, "%s %zu", name, 8 * dtype_bytes(w->dtype));
    return buf;
}

void pack_list(const struct pack *p, void *out)
{
    char share[64], format[64], hex[HEX_CAP(XXH3_BYTES)];
    FILE *f = out;

    for (size_t i = 0; i < p->toc.n; i++) {
        const struct pack_weight *w = &p->toc.weight[i];
        const struct weight *d = &w->d;

        if (d->shard == SHARD_NONE)
            snprintf(share, sizeof(share), "all");
        else
            snprintf(share, sizeof(share), "%s %lld+%lld",
                     d->kind == WEIGHT_ROWS ? "columns" : shard_names[d->shard],
                     (long long)d->first, (long long)d->count);
        fprintf(f, "%-48s %-5s %-14s%s [%lld, %lld] %s %llu %s%s%s\n", d->name, kind_names[d->kind],
                format_text(w, format, sizeof(format)),
                w->dtype < DTYPE_COUNT || d->kind != WEIGHT_MAT ? ""
                : w->q.layout == LAYOUT_DEVICE                  ? " device"
                                                                : " cpu",
                (long long)d->rows, (long long)d->cols, share, (unsigned long long)w->bytes,
                hex_format(w->digest, XXH3_BYTES, hex), w->links > 0 ? " rows in " : "",
                w->links > 0 ? w->link[0].path : "");
    }
}
