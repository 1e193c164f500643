/* source_hf.c owns the open shards of a checkpoint folder and knows which of their tensors were
 * asked for.
 *
 * A shard is read front to back by the packer, so what large reads leave in the page cache is
 * dropped: a checkpoint may be larger than memory, and nobody reads it twice.
 */
#include "src/model/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/safetensors.h"
#include "src/model/source_index.h"

#define DROP_BYTES (64 << 10) /* reads of this size and above are dropped from the page cache */

enum asked { NOT_LISTED, LISTED, ASKED };

struct hf_shard {
    struct safetensors *file;
    unsigned char *asked; /* [file->n] enum asked */
};

struct hf_entry {
    const struct st_tensor *t;
    int shard;
};

struct source_hf {
    struct source base;
    struct hf_shard *shard;
    int n_shards;
    struct hf_entry *entry; /* by name */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_entry *)a)->t->name, ((const struct hf_entry *)b)->t->name);
}

static struct hf_entry *entry_find(const struct source_hf *h, const char *name)
{
    size_t lo = 0, hi = h->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, h->entry[mid].t->name);

        if (c == 0)
            return &h->entry[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static int hf_find(struct source *s, const char *name, int64_t rows, int64_t cols,
                   struct tensor *out)
{
    struct source_hf *h = (struct source_hf *)s;
    struct hf_entry *e = entry_find(h, name);
    const struct hf_shard *shard;

    if (!e)
        return 1;
    shard = &h->shard[e->shard];
    shard->asked[e->t - shard->file->tensor] = ASKED;
    *out = (struct tensor){ .dtype = e->t->dtype,
                            .type = e->t->type,
                            .rank = e->t->rank,
                            .elements = e->t->elements,
                            .shard = e->shard,
                            .offset = shard->file->data + e->t->begin };
    memcpy(out->shape, e->t->shape, sizeof(out->shape));
    return 0;
}

static int hf_read(struct source *s, const char *name, const struct tensor *t, uint64_t at,
                   void *buf, size_t bytes)
{
    struct source_hf *h = (struct source_hf *)s;
    const struct safetensors *f = h->shard[t->shard].file;
    char label[PATH_CAP + ST_NAME_MAX + 32];
    off_t offset = (off_t)(t->offset + at);
    int r;

    snprintf(label, sizeof(label), "%s: tensor %s", f->path, name);
    if (t->dtype >= DTYPE_COUNT || at > t->elements * dtype_bytes(t->dtype) ||
        bytes > t->elements * dtype_bytes(t->dtype) - at)
        return fail(-EINVAL, "%s: %zu bytes from offset %llu are not inside it", label, bytes,
                    (unsigned long long)at);
    r = full_pread(f->fd, buf, bytes, offset, label);
    if (r == 0 && bytes >= DROP_BYTES)
        posix_fadvise(f->fd, offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    return r;
}

static void hf_unused(struct source *s, void (*fn)(void *arg, const char *name), void *arg)
{
    struct source_hf *h = (struct source_hf *)s;

    for (int i = 0; i < h->n_shards; i++)
        for (size_t j = 0; j < h->shard[i].file->n; j++)
            if (h->shard[i].asked[j] == LISTED)
                fn(arg, h->shard[i].file->tensor[j].name);
}

static void hf_close(struct source *s)
{
    struct source_hf *h = (struct source_hf *)s;

    for (int i = 0; i < h->n_shards; i++) {
        safetensors_close(h->shard[i].file);
        free(h->shard[i].asked);
    }
    free(h->shard);
    free(h->entry);
    free(h);
}

static const struct source_ops hf_ops = {
    .name = "hf",
    .find = hf_find,
    .read = hf_read,
    .unused = hf_unused,
    .close = hf_close,
};

static int open_shards(struct source_hf *h, const char *folder, const struct source_index *x)
{
    h->shard = calloc((size_t)x->n_shards + 1, sizeof(*h->shard));
    if (!h->shard)
        return fail(-ENOMEM, "%s: no memory for %d shards", folder, x->n_shards);
    for (int i = 0; i < x->n_shards; i++) {
        struct hf_shard *shard = &h->shard[i];
        char path[PATH_CAP];
        int r = path_join(path, sizeof(path), folder, x->shard[i]);

        if (r < 0)
            return r;
        r = safetensors_open(path, &shard->file);
        if (r < 0)
            return r;
        h->n_shards++;
        shard->asked = calloc(shard->file->n + 1, 1);
        if (!shard->asked)
            return fail(-ENOMEM, "%s: no memory for %zu tensors", path, shard->file->n);
    }
    return 0;
}

/* Enter what the index lists, all of the one shard without an index. */
static int enter(struct source_hf *h, const struct source_index *x)
{
    size_t total = 0;

    for (int i = 0; i < h->n_shards; i++)
        total += h->shard[i].file->n;
    h->entry = calloc((x->listed ? x->n_list : total) + 1, sizeof(*h->entry));
    if (!h->entry)
        return fail(-ENOMEM, "%s: no memory for %zu tensors", SOURCE_INDEX_FILE, total);
    for (size_t i = 0; !x->listed && i < total; i++)
        h->entry[h->n++] = (struct hf_entry){ .t = &h->shard[0].file->tensor[i] };
    for (size_t i = 0; i < x->n_list; i++) {
        int shard = x->list[i].shard;
        const struct safetensors *f = h->shard[shard].file;
        const struct st_tensor *t = safetensors_find(f, x->list[i].tensor);

        if (!t)
            return fail(-EINVAL, "%s: tensor %s is not in this file, %s says it is", f->path,
                        x->list[i].tensor, SOURCE_INDEX_FILE);
        h->entry[h->n++] = (struct hf_entry){ .t = t, .shard = shard };
    }
    for (size_t i = 0; i < h->n; i++) {
        const struct hf_shard *shard = &h->shard[h->entry[i].shard];

        shard->asked[h->entry[i].t - shard->file->tensor] = LISTED;
    }
    qsort(h->entry, h->n, sizeof(*h->entry), by_name);
    if (total > h->n)
        log_warn("%s: %zu tensors of the shards are not in %s, ignored", h->shard[0].file->path,
                 total - h->n, SOURCE_INDEX_FILE);
    return 0;
}

int source_hf_open(const char *folder, struct source **out)
{
    struct source_index x;
    struct source_hf *h;
    int r = source_index_read(folder, &x);

    if (r < 0)
        return r;
    h = calloc(1, sizeof(*h));
    if (!h) {
        r = fail(-ENOMEM, "%s: no memory", folder);
        goto free_index;
    }
    h->base.ops = &hf_ops;
    r = open_shards(h, folder, &x);
    if (r == 0)
        r = enter(h, &x);
    if (r < 0) {
        hf_close(&h->base);
        goto free_index;
    }
    *out = &h->base;

free_index:
    source_index_free(&x);
    return r;
}
