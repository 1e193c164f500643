/* source_hf.c owns the open shards of a checkpoint folder and knows which of their tensors were
 * asked for.
 *
 * A shard is read front to back by the packer, so large reads go past the page cache, or what they
 * leave there is dropped: a checkpoint may be larger than memory, and nobody reads it twice.
 */
#include "src/model/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/names.h"
#include "src/model/safetensors.h"
#include "src/model/source_index.h"

#define CONFIG_BYTES ((size_t)16 << 20)
#define CONFIG_NESTING 64
#define DIRECT_BYTES (64 << 10)
#define STAGING_BYTES (((size_t)4 << 20) + 2 * READ_ALIGN) /* 4 MiB that begin anywhere */
#define STAGINGS 4            /* readers at a time that go past the page cache */
#define DROP_BYTES (64 << 10) /* reads of this size and above are dropped from the page cache */

enum asked { NOT_LISTED, LISTED, ASKED };

struct hf_shard {
    struct safetensors *file;
    int direct_fd;        /* the same file past the page cache, -1 if its file system cannot */
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
    pthread_mutex_t lock;    /* staging */
    char *staging[STAGINGS]; /* STAGING_BYTES each for reads past the page cache, in use: NULL */
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
                            .file = shard->file->path,
                            .each = e->t->each,
                            .rank = e->t->rank,
                            .elements = e->t->elements,
                            .shard = e->shard,
                            .offset = shard->file->data + e->t->begin };
    memcpy(out->shape, e->t->shape, sizeof(out->shape));
    return 0;
}

/* One that nobody uses, NULL if there is none. */
static char *staging_take(struct source_hf *h)
{
    char *found = NULL;

    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < STAGINGS && !found; i++) {
        found = h->staging[i];
        h->staging[i] = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    return found;
}

static void staging_drop(struct source_hf *h, char *staging)
{
    int i = 0;

    pthread_mutex_lock(&h->lock);
    while (h->staging[i])
        i++;
    h->staging[i] = staging;
    pthread_mutex_unlock(&h->lock);
}

/* Blocks that cover the range, then the range out of them. */
static int read_blocks(int fd, char *staging, char *out, size_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        uint64_t from = offset / READ_ALIGN * READ_ALIGN;
        size_t skip = (size_t)(offset - from), want = STAGING_BYTES - skip, covered;
        ssize_t n;

        want = want < bytes ? want : bytes;
        covered = (skip + want + READ_ALIGN - 1) / READ_ALIGN * READ_ALIGN;
        n = pread(fd, staging, covered, (off_t)from);
        if (n < (ssize_t)(skip + want))
            return 1;
        memcpy(out, staging + skip, want);
        out += want;
        offset += want;
        bytes -= want;
    }
    return 0;
}

/* The same into a buffer that lies to its blocks as the range does to the file's: nothing is copied
 * but the two blocks that the range begins and ends in. */
static int read_in_place(int fd, char *staging, char *out, size_t bytes, uint64_t offset)
{
    size_t skip = (size_t)(offset % READ_ALIGN), head = skip ? READ_ALIGN - skip : 0;
    size_t middle = (bytes - head) / READ_ALIGN * READ_ALIGN, tail = bytes - head - middle;
    struct iovec part[3];
    ssize_t want = (ssize_t)(skip + bytes), n;
    int parts = 0;

    if (head)
        part[parts++] = (struct iovec){ staging, READ_ALIGN };
    if (middle)
        part[parts++] = (struct iovec){ out + head, middle };
    if (tail)
        part[parts++] = (struct iovec){ staging + READ_ALIGN, READ_ALIGN };
    n = preadv(fd, part, parts, (off_t)(offset - skip));
    if (n < want)
        return 1;
    memcpy(out, staging + skip, head);
    memcpy(out + head + middle, staging + READ_ALIGN, tail);
    return 0;
}

/* Large reads go past the page cache. 1 if this one cannot; what fails so is read, and told, in the
 * usual way.
 */
static int read_direct(struct source_hf *h, const struct hf_shard *shard, void *buf, size_t bytes,
                       uint64_t offset)
{
    char *staging;
    int r;

    if (shard->direct_fd < 0 || bytes < DIRECT_BYTES)
        return 1;
    staging = staging_take(h);
    if (!staging)
        return 1;
    if (((uintptr_t)buf - offset) % READ_ALIGN == 0)
        r = read_in_place(shard->direct_fd, staging, buf, bytes, offset);
    else
        r = read_blocks(shard->direct_fd, staging, buf, bytes, offset);
    staging_drop(h, staging);
    return r;
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
    if (at > t->elements * (uint64_t)t->each || bytes > t->elements * (uint64_t)t->each - at)
        return fail(-EINVAL, "%s: %zu bytes from offset %llu are not inside it", label, bytes,
                    (unsigned long long)at);
    if (read_direct(h, &h->shard[t->shard], buf, bytes, (uint64_t)offset) == 0)
        return 0;
    r = full_pread(f->fd, buf, bytes, offset, label);
    if (r < 0)
        atomic_store(&h->base.failed, true);
    else if (bytes >= DROP_BYTES)
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
        if (h->shard[i].direct_fd >= 0)
            close(h->shard[i].direct_fd);
        safetensors_close(h->shard[i].file);
        free(h->shard[i].asked);
    }
    free(h->shard);
    free(h->entry);
    for (int i = 0; i < STAGINGS; i++)
        free(h->staging[i]);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static const struct source_ops hf_ops = {
    .name = "hf",
    .find = hf_find,
    .read = hf_read,
    .unused = hf_unused,
    .close = hf_close,
};

/* A download cache keeps files in a folder `blobs` beside `snapshots` and links to them; any other
 * way out of the model's folder is not followed.
 */
static int check_inside(const char *folder, const char *path)
{
    static const char blobs[] = "/../../blobs/";
    char *real = realpath(path, NULL), *home = realpath(folder, NULL), *cache = NULL;
    char other[PATH_CAP];
    bool inside = true;

    if (real && home)
        inside = strncmp(real, home, strlen(home)) == 0 && real[strlen(home)] == '/';
    if (!inside && snprintf(other, sizeof(other), "%s%s", home, blobs) < (int)sizeof(other)) {
        cache = realpath(other, NULL);
        inside = cache && strncmp(real, cache, strlen(cache)) == 0 && real[strlen(cache)] == '/';
    }
    if (!inside)
        fail(-EINVAL, "%s: a link out of the folder, to %s", path, real);
    free(cache);
    free(home);
    free(real);
    return inside ? 0 : -EINVAL;
}

/* The texts of a checkpoint, where they are there. */
static int check_texts(const char *folder)
{
    static const char *const names[] = { "config.json", "generation_config.json", "tokenizer.json",
                                         SOURCE_INDEX_FILE };
    char path[PATH_CAP];
    int r = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && r == 0; i++) {
        r = path_join(path, sizeof(path), folder, names[i]);
        if (r == 0 && access(path, F_OK) == 0)
            r = check_inside(folder, path);
    }
    return r;
}

static int open_shard(struct source_hf *h, const char *path)
{
    struct hf_shard *shard = &h->shard[h->n_shards];
    int r = safetensors_open(path, &shard->file);

    if (r < 0)
        return r;
    h->n_shards++;
    shard->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    shard->asked = calloc(shard->file->n + 1, 1);
    return shard->asked ? 0 : fail(-ENOMEM, "%s: no memory for %zu tensors", path, shard->file->n);
}

static int open_shards(struct source_hf *h, const char *folder, const struct source_index *x,
                       const char *const *extra, int n_extra)
{
    char path[PATH_CAP];
    int r = 0;

    h->shard = calloc((size_t)(x->n_shards + n_extra) + 1, sizeof(*h->shard));
    if (!h->shard)
        return fail(-ENOMEM, "%s: no memory for %d shards", folder, x->n_shards + n_extra);
    for (int i = 0; i < x->n_shards && r == 0; i++) {
        r = path_join(path, sizeof(path), folder, x->shard[i]);
        if (r == 0)
            r = check_inside(folder, path);
        if (r == 0)
            r = open_shard(h, path);
    }
    for (int i = 0; i < n_extra && r == 0; i++)
        r = open_shard(h, extra[i]);
    return r;
}

/* All tensors of a file. */
static void enter_file(struct source_hf *h, int shard)
{
    const struct safetensors *f = h->shard[shard].file;

    for (size_t i = 0; i < f->n; i++)
        h->entry[h->n++] = (struct hf_entry){ .t = &f->tensor[i], .shard = shard };
}

static int check_twice(const struct source_hf *h)
{
    for (size_t i = 1; i < h->n; i++)
        if (strcmp(h->entry[i - 1].t->name, h->entry[i].t->name) == 0)
            return fail(-EINVAL, "%s: tensor %s: it is in %s too",
                        h->shard[h->entry[i].shard].file->path, h->entry[i].t->name,
                        h->shard[h->entry[i - 1].shard].file->path);
    return 0;
}

/* How much of a name is its module's: "a.b." of "a.b.weight" and of "a.b.slice.0.trellis", all of
 * one without a dot. */
static size_t module_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : strlen(name), at = n;

    if (!dot)
        return n;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    if (at < n && at >= 7 &&
        (strncmp(name + at - 7, ".slice.", 7) == 0 || strncmp(name + at - 7, ".shard_", 7) == 0))
        return at - 6;
    return n + 1;
}

/* Whether one of the first n entries, which are in order, is a part of the same module. */
static bool has_module(const struct source_hf *h, size_t n, const char *name)
{
    size_t module = module_of(name), lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strncmp(h->entry[mid].t->name, name, module) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < n && strncmp(h->entry[lo].t->name, name, module) == 0; lo++)
        if (module_of(h->entry[lo].t->name) == module)
            return true;
    return false;
}

/* The same under any name that the module may have; a release has the released one. */
static bool has_like(const struct source_hf *h, size_t n, const char *name)
{
    const char *released = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    struct name_place places[PLACES_MAX];
    char weight[TENSOR_NAME_MAX];
    const char *const of[] = { released, weight };

    if (has_module(h, n, name))
        return true;
    if (snprintf(weight, sizeof(weight), "%.*sweight", (int)module_of(released), released) >=
        (int)sizeof(weight))
        return false;
    for (int i = 0; i < 2; i++)
        for (int j = name_places(of[i], places); j-- > 0;)
            if (!places[j].by_shape && has_module(h, n, places[j].name))
                return true;
    return false;
}

/* Tensors of a file beside the folder, but for modules that the folder has: the shards with the
 * tables of a release hold more than the tables, and a quantised checkpoint has its own of that. */
static void enter_beside(struct source_hf *h, size_t own, int shard)
{
    const struct safetensors *f = h->shard[shard].file;
    const char *first = NULL;
    size_t left = 0;

    for (size_t i = 0; i < f->n; i++)
        if (!has_like(h, own, f->tensor[i].name))
            h->entry[h->n++] = (struct hf_entry){ .t = &f->tensor[i], .shard = shard };
        else if (left++ == 0)
            first = f->tensor[i].name;
    if (left > 0)
        log_info("%s: %zu tensors left aside, the folder has the like, first %s", f->path, left,
                 first);
}

/* Enter what the index lists, or all of the one shard without an index. */
static int enter_own(struct source_hf *h, const struct source_index *x)
{
    size_t total = 0;

    for (int i = 0; i < x->n_shards; i++)
        total += h->shard[i].file->n;
    if (!x->listed)
        enter_file(h, 0);
    for (size_t i = 0; i < x->n_list; i++) {
        int shard = x->list[i].shard;
        const struct safetensors *f = h->shard[shard].file;
        const struct st_tensor *t = safetensors_find(f, x->list[i].tensor);

        if (!t)
            return fail(-EINVAL, "%s: tensor %s is not in this file, %s says it is", f->path,
                        x->list[i].tensor, SOURCE_INDEX_FILE);
        h->entry[h->n++] = (struct hf_entry){ .t = t, .shard = shard };
    }
    qsort(h->entry, h->n, sizeof(*h->entry), by_name);
    if (total > h->n)
        log_warn("%s: %zu tensors of the shards are not in %s, ignored", h->shard[0].file->path,
                 total - h->n, SOURCE_INDEX_FILE);
    return 0;
}

/* The folder's tensors, then those of the files beside it. */
static int enter(struct source_hf *h, const struct source_index *x)
{
    size_t total = x->n_list, own;
    int r;

    for (int i = 0; i < h->n_shards; i++)
        total += h->shard[i].file->n;
    h->entry = calloc(total + 1, sizeof(*h->entry));
    if (!h->entry)
        return fail(-ENOMEM, "%s: no memory for %zu tensors", SOURCE_INDEX_FILE, total);
    r = enter_own(h, x);
    if (r < 0)
        return r;
    own = h->n;
    for (int i = x->n_shards; i < h->n_shards; i++)
        enter_beside(h, own, i);
    for (size_t i = 0; i < h->n; i++) {
        const struct hf_shard *shard = &h->shard[h->entry[i].shard];

        shard->asked[h->entry[i].t - shard->file->tensor] = LISTED;
    }
    qsort(h->entry, h->n, sizeof(*h->entry), by_name);
    return check_twice(h);
}

/* A folder without a config.json is still a folder of tensors. */
static int read_config(const char *folder, struct quant_config *out)
{
    struct json *config;
    char path[PATH_CAP];
    int r = path_join(path, sizeof(path), folder, "config.json");

    if (r < 0 || access(path, F_OK) != 0)
        return r;
    r = json_read(path, CONFIG_BYTES, CONFIG_NESTING, &config);
    if (r < 0)
        return r;
    r = quant_config_read(config, out);
    json_close(config);
    return r;
}

int source_hf_open_with(const char *folder, const char *const *extra, int n_extra,
                        struct source **out)
{
    struct source_index x;
    struct source_hf *h;
    int r = check_texts(folder);

    if (r == 0)
        r = source_index_read(folder, &x);
    if (r < 0)
        return r;
    h = calloc(1, sizeof(*h));
    if (!h) {
        r = fail(-ENOMEM, "%s: no memory", folder);
        goto free_index;
    }
    h->base.ops = &hf_ops;
    pthread_mutex_init(&h->lock, NULL);
    for (int i = 0; i < STAGINGS; i++)
        h->staging[i] = aligned_alloc(READ_ALIGN, STAGING_BYTES);
    r = read_config(folder, &h->base.quant);
    if (r == 0)
        r = open_shards(h, folder, &x, extra, n_extra);
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

int source_hf_open(const char *folder, struct source **out)
{
    return source_hf_open_with(folder, NULL, 0, out);
}
