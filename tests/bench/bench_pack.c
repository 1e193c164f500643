/* Speed of packing: a made-up EXL3 folder of some GB is packed, and copied in 4 MiB blocks past the
 * page cache as a ceiling (`dd iflag=direct oflag=direct bs=4M`), in turns. usage: bench_pack
 * FOLDER [GB [ROUNDS]], 4 and 3 by default; twice as much room is needed there and given back. */
#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/convert_folder.h"
#include "src/model/pack.h"
#include "src/model/scheme.h"
#include "src/model/source.h"
#include "src/model/stored.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 2304
#define COLS 5120
#define BLOCK ((size_t)4 << 20)
#define WANTED 0.8 /* of the copy's speed */

struct experts {
    struct mat *m;
    int n;
};

static void must(int r, const char *what)
{
    if (r != 0) {
        fprintf(stderr, "bench_pack: %s: %d\n", what, r);
        exit(1);
    }
}

static void expert_weights(void *object, struct walk *w)
{
    struct experts *e = object;

    for (int i = 0; i < e->n; i++)
        walk_expert(w, &e->m[i], ROWS, COLS, SHARD_ROWS, i, e->n,
                    "layers.0.ffn.experts.%d.w1.weight", i);
}

/* ---- a folder of EXL3 groups --------------------------------------------------------------- */

static void add(struct folder *f, const struct stored_tensor *t, size_t *index)
{
    must(folder_add(f, t->name, t->t.type, t->t.each, t->t.rank, t->t.shape, index), "add");
}

static void fill(struct folder *f, struct source *s, const struct stored_tensor *t, size_t index,
                 void *buf)
{
    uint64_t bytes = folder_bytes(f, index);

    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        size_t n = bytes - at < BLOCK ? (size_t)(bytes - at) : BLOCK;

        must(s->ops->read(s, t->name, &t->t, at, buf, n), "make up");
        must(folder_write(f, index, at, buf, n), "write");
    }
}

/* The trellis of every group is the first one's: speed does not depend on what it says. */
static void make_folder(const char *path, int groups)
{
    struct stored *w = calloc((size_t)groups, sizeof(*w));
    size_t(*index)[4] = calloc((size_t)groups, sizeof(*index));
    void *buf = malloc(BLOCK), *trellis;
    struct folder f = { 0 };
    struct scheme scheme;
    struct source *s;
    size_t bytes;

    must(scheme_parse("exl3-3", &scheme), "scheme");
    must(source_synth_open_scheme(1, &scheme, &s), "source");
    for (int i = 0; i < groups; i++) {
        char name[64];
        struct stored_tensor mark = { 0 };

        snprintf(name, sizeof(name), "layers.0.ffn.experts.%d.w1.weight", i);
        must(source_stored(s, name, STORED_MAT, ROWS, COLS, &w[i]), name);
        snprintf(mark.name, sizeof(mark.name), "layers.0.ffn.experts.%d.w1.mul1", i);
        must(s->ops->find(s, mark.name, ROWS, COLS, &mark.t), mark.name);
        w[i].scale = mark;
        add(&f, &w[i].slice[0].codes, &index[i][0]);
        add(&f, &w[i].slice[0].suh, &index[i][1]);
        add(&f, &w[i].slice[0].svh, &index[i][2]);
        add(&f, &mark, &index[i][3]);
    }
    must(folder_begin(&f, path, (uint64_t)1 << 30), "begin");
    bytes = (size_t)folder_bytes(&f, index[0][0]);
    trellis = malloc(bytes);
    must(s->ops->read(s, w[0].slice[0].codes.name, &w[0].slice[0].codes.t, 0, trellis, bytes),
         "make up");
    for (int i = 0; i < groups; i++) {
        must(folder_write(&f, index[i][0], 0, trellis, bytes), "write");
        fill(&f, s, &w[i].slice[0].suh, index[i][1], buf);
        fill(&f, s, &w[i].slice[0].svh, index[i][2], buf);
        fill(&f, s, &w[i].scale, index[i][3], buf);
    }
    must(folder_end(&f), "end");
    folder_close(&f);
    s->ops->close(s);
    free(trellis);
    free(buf);
    free(index);
    free(w);
}

/* ---- measuring ----------------------------------------------------------------------------- */

/* Copy a file past the page cache, a block at a time; bytes copied. */
static uint64_t copy_direct(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_DIRECT),
        out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    void *buf;
    uint64_t sum = 0;
    ssize_t n;

    if (in < 0 || out < 0 || posix_memalign(&buf, 4096, BLOCK) != 0)
        must(-1, to);
    while ((n = read(in, buf, BLOCK)) > 0) {
        size_t whole = ((size_t)n + 4095) / 4096 * 4096;

        if (write(out, buf, whole) != (ssize_t)whole)
            must(-1, to);
        sum += (uint64_t)n;
    }
    close(in);
    close(out);
    free(buf);
    return sum;
}

static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);

    if (fd >= 0) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static int shard_path(const char *folder, int i, int n, char path[PATH_CAP])
{
    if (n == 1)
        snprintf(path, PATH_CAP, "%.3900s/model.safetensors", folder);
    else
        snprintf(path, PATH_CAP, "%.3900s/model-%05d-of-%05d.safetensors", folder, i + 1, n);
    return access(path, F_OK);
}

static double copy_all(const char *folder, int shards, const char *to, double *gb)
{
    int64_t start = clock_ns();
    char path[PATH_CAP];
    uint64_t bytes = 0;

    for (int i = 0; i < shards; i++) {
        must(shard_path(folder, i, shards, path), path);
        bytes += copy_direct(path, to);
    }
    *gb = (double)bytes / 1e9;
    unlink(to);
    return (double)(clock_ns() - start) / NS_PER_S;
}

static double pack_all(const char *folder, struct experts *e, int layouts, const char *to)
{
    struct walk_part part = { expert_weights, e };
    struct pack_spec spec = {
        .family = "bench", .parts = &part, .n_parts = 1, .ranks = 1, .layouts = layouts
    };
    int64_t start = clock_ns();
    struct source *s;

    must(source_hf_open(folder, &s), folder);
    must(pack_write(to, &spec, s), to);
    s->ops->close(s);
    return (double)(clock_ns() - start) / NS_PER_S;
}

static void verify(const char *path)
{
    struct pack *p;

    must(pack_open(path, &p), path);
    must(pack_verify(p), path);
    pack_close(p);
}

/* MB of a file that are in the page cache. */
static double cached_mb(const char *path)
{
    int fd = open(path, O_RDONLY);
    off_t bytes = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    size_t pages = ((size_t)bytes + 4095) / 4096, n = 0;
    void *map = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    unsigned char *in = calloc(pages + 1, 1);

    if (map != MAP_FAILED && in && mincore(map, (size_t)bytes, in) == 0)
        for (size_t i = 0; i < pages; i++)
            n += in[i] & 1;
    if (map != MAP_FAILED)
        munmap(map, (size_t)bytes);
    free(in);
    close(fd);
    return (double)n * 4096 / 1e6;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* A pass of either kind; what the other one has left to the disk is done before it begins. */
struct pass {
    double seconds, cpu, left_mb; /* left: in the page cache */
};

static void settle(const char *folder, int shards)
{
    char path[PATH_CAP];

    sync();
    for (int i = 0; i < shards; i++)
        if (shard_path(folder, i, shards, path) == 0)
            forget(path);
    usleep(300000);
}

static struct pass pass_of(const char *folder, int shards, struct experts *e, int layouts,
                           const char *to)
{
    char path[PATH_CAP];
    struct pass p = { 0 };
    double copied, cpu;

    settle(folder, shards);
    cpu = cpu_seconds();
    p.seconds = layouts ? pack_all(folder, e, layouts, to) : copy_all(folder, shards, to, &copied);
    p.cpu = cpu_seconds() - cpu;
    for (int i = 0; layouts && i < shards; i++)
        if (shard_path(folder, i, shards, path) == 0)
            p.left_mb += cached_mb(path);
    if (layouts)
        p.left_mb += cached_mb(to);
    return p;
}

static void drop_folder(const char *folder, int shards)
{
    char path[PATH_CAP];

    for (int i = 0; i < shards; i++)
        if (shard_path(folder, i, shards, path) == 0)
            unlink(path);
    snprintf(path, sizeof(path), "%.3900s/model.safetensors.index.json", folder);
    unlink(path);
    rmdir(folder);
}

static double gigabytes(const char *folder, int shards)
{
    char path[PATH_CAP];
    double sum = 0;
    struct stat st;

    for (int i = 0; i < shards; i++)
        if (shard_path(folder, i, shards, path) == 0 && stat(path, &st) == 0)
            sum += (double)st.st_size / 1e9;
    return sum;
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "copy past the cache", "pack, layout cpu",
                                         "pack, layout cuda" };
    double gb = argc > 2 ? atof(argv[2]) : 4, best[3] = { 0 };
    int rounds = argc > 3 ? atoi(argv[3]) : 3, shards = 1;
    struct experts e = { .n = (int)(gb * 1e9 / (ROWS * COLS * 3 / 8.0)) };
    char folder[PATH_CAP], to[PATH_CAP], path[PATH_CAP];
    struct rusage u;

    if (argc < 2)
        return 2;
    log_open(-1, LOG_WARN);
    e.m = calloc((size_t)e.n, sizeof(*e.m));
    snprintf(folder, sizeof(folder), "%.3900s/bench-pack-XXXXXX", argv[1]);
    if (!mkdtemp(folder))
        must(-1, folder);
    snprintf(to, sizeof(to), "%.3900s/rank0.pack", folder);
    make_folder(folder, e.n);
    while (shards < 1000 && shard_path(folder, 0, shards, path) != 0)
        shards++;
    gb = gigabytes(folder, shards);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 3; i++) {
            struct pass p = pass_of(folder, shards, &e, i, to);

            if (i > 0 && round == 0)
                verify(to);
            unlink(to);
            best[i] = best[i] > 0 && best[i] < p.seconds ? best[i] : p.seconds;
            printf("%-20s %5.2f GB in %5.2f s, %5.0f MB/s, %5.2f s of cores, %3.0f MB left in the "
                   "cache\n",
                   names[i], gb, p.seconds, gb * 1e3 / p.seconds, p.cpu, p.left_mb);
        }
    drop_folder(folder, shards);
    free(e.m);
    getrusage(RUSAGE_SELF, &u);
    printf("memory at most %ld MiB; best of %d rounds: copy %.0f MB/s, cpu %.0f%% of it, cuda "
           "%.0f%%\n",
           u.ru_maxrss / 1024, rounds, gb * 1e3 / best[0], 100 * best[0] / best[1],
           100 * best[0] / best[2]);
    if (best[0] / best[1] < WANTED || best[0] / best[2] < WANTED)
        printf("less than %.0f%% of the copy\n", 100 * WANTED);
    return 0;
}
