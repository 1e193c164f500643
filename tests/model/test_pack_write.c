#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/model/pack_line.h"
#include "tests/model/pack_rig.h"
#include "tests/model/watch_source.h"

Test(pack_write, walk_that_names_a_weight_twice_is_not_packed)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 1);
    struct last_line line = { 0 };
    struct source *src;

    a.twice = 1;
    log_sink(keep_line, &line);
    cr_assert(eq(int, source_synth_open(1, DTYPE_F32, &src), 0));
    cr_expect(eq(int, pack_write("/nonexistent/x", &spec, src), -EINVAL));
    cr_expect(strstr(line.text, "v: the walk names two weights so") != NULL, "%s", line.text);
    src->ops->close(src);
}

/* ---- interrupted, crowded, full -------------------------------------------------------------- */

Test(pack_write, a_missing_tensor_leaves_nothing_behind)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 1);
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct source *src;

    log_sink(keep_line, &line);
    temp_folder(folder);
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_hf_open(POCKET, &src), 0));
    cr_expect(eq(int, pack_write(path, &spec, src), -ENOENT));
    cr_expect(strstr(line.text, "a.weight") != NULL, "%s", line.text);
    cr_expect(eq(int, line.n, 1));
    cr_expect(eq(int, folder_count(folder, 0), 0));
    src->ops->close(src);
    folder_count(folder, 1);
}

Test(pack_write, a_failing_read_leaves_nothing_behind)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 1);
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct source *src;
    int n;

    log_sink(keep_line, &line);
    temp_folder(folder);
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_synth_open(1, DTYPE_F32, &src), 0));
    for (n = 1;; n++) {
        struct watch_source watch;
        int r;

        watch_init(&watch, src);
        watch.fail_at = n;
        r = pack_write(path, &spec, &watch.base);
        if (r == 0)
            break;
        cr_expect(eq(int, r, -EIO), "read %d", n);
        cr_expect(eq(int, folder_count(folder, 0), 0), "read %d", n);
    }
    cr_expect(eq(int, n, 5), "four weights, four reads");
    cr_expect(eq(int, folder_count(folder, 0), 1));
    src->ops->close(src);
    folder_count(folder, 1);
}

static void keep_nothing(void *arg, enum log_level level, const char *line)
{
}

Test(pack_write, a_part_that_is_of_no_use_goes_and_nothing_else)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 2);
    struct pack_header begun = { .version = PACK_VERSION };
    char folder[PATH_CAP], path[PATH_CAP], other[PATH_CAP + 16], *whole;
    struct source *src;
    size_t bytes;

    small_pack(folder, path);
    memcpy(begun.magic, PACK_MAGIC, sizeof(begun.magic));
    cr_assert(eq(int, file_read(path, 1 << 20, &whole, &bytes), 0));
    snprintf(other, sizeof(other), "%s.backup", path);
    cr_assert(
        eq(int,
           file_write(other, "somebody's text, as long as the header of a pack or even longer", 64,
                      0644),
           0));
    snprintf(other, sizeof(other), "%s.saved1", path);
    cr_assert(eq(int, file_write(other, whole, bytes, 0644), 0));
    snprintf(other, sizeof(other), "%s.part", path);
    cr_assert(eq(int, file_write(other, &begun, sizeof(begun), 0600), 0));
    snprintf(other, sizeof(other), "%s.lock", path); /* of a run that was killed */
    cr_assert(eq(int, file_write(other, "", 0, 0600), 0));
    cr_assert(eq(int, folder_count(folder, 0), 5));
    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    cr_assert(eq(int, pack_write(path, &spec, src), 0));
    cr_expect(eq(int, folder_count(folder, 0), 3),
              "the pack and two files that are not ours to remove");
    snprintf(other, sizeof(other), "%s.part", path);
    cr_assert(eq(int, file_write(other, "somebody's text", 15, 0644), 0));
    log_sink(keep_nothing, NULL);
    cr_expect(eq(int, pack_write(path, &spec, src), -EEXIST), "a file that is nobody's part");
    log_sink(NULL, NULL);
    cr_expect(eq(int, folder_count(folder, 0), 4));
    src->ops->close(src);
    free(whole);
    folder_count(folder, 1);
}

/* ---- going on ------------------------------------------------------------------------------ */

/* What a run that is killed behind `n` weights leaves; `torn` bytes of the next note are there. */
static void leave_part(const char *path, const struct pack_spec *spec, size_t n, size_t torn)
{
    struct pack_sink *sink;
    struct source *src;
    struct pack_part p;
    struct pack_toc t;
    uint64_t end, total;
    size_t all;

    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    cr_assert(eq(int, pack_plan(spec, 1, &t), 0));
    cr_assert(eq(int, pack_lay_out(spec, src, &t, &end, &total), 0));
    cr_assert(eq(int, pack_part_open(path, &t, end, &p), 0));
    cr_assert(eq(int, pack_sink_open(path, p.file.fd, sizeof(struct pack_header), &sink), 0));
    all = t.n;
    t.n = n;
    cr_assert(eq(int, pack_line_run(path, src, &t, &p, sink, total), 0));
    t.n = all;
    cr_expect(eq(ulong, p.noted, 0), "so little is not worth a sync");
    cr_assert(eq(int, pack_part_note(&p, &t, n, (uint64_t)1 << 40, sink), 0));
    cr_expect(eq(ulong, p.noted, n));
    cr_assert(pwrite(p.done_fd, "0123456789abcdef", torn, lseek(p.done_fd, 0, SEEK_END)) ==
              (ssize_t)torn);
    close(p.file.fd);
    close(p.done_fd);
    pack_sink_close(sink);
    pack_toc_free(&t);
    src->ops->close(src);
}

static void flip(const char *path, uint64_t at)
{
    FILE *f = fopen(path, "r+");
    int c;

    cr_assert(f && fseek(f, (long)at, SEEK_SET) == 0);
    c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

Test(pack_write, a_killed_run_is_gone_on_with_where_it_was)
{
    static const struct {
        const char *name;
        size_t weights, torn;
        int damage; /* 1: a byte of the last weight; 2: of the key; 3: another checkpoint */
        int reads;  /* of the second run */
    } cases[] = {
        { "nothing was noted", 0, 0, 0, 4 },
        { "half", 2, 0, 0, 2 },
        { "a torn note", 2, 9, 0, 2 },
        { "all but the end", 4, 0, 0, 0 },
        { "a disk that lost it", 2, 0, 1, 4 },
        { "notes of something else", 2, 0, 2, 4 },
        { "a checkpoint that has changed", 2, 0, 3, 4 },
    };
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    char folder[PATH_CAP], path[PATH_CAP], other[PATH_CAP + 16], *want, *got;
    size_t bytes, got_bytes;

    small_pack(folder, path);
    cr_assert(eq(int, file_read(path, 1 << 20, &want, &bytes), 0));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pack_spec spec = spec_of(&part, 0, 2), was = spec;
        struct watch_source watch;
        struct source *src;

        unlink(path);
        if (cases[i].damage == 3)
            was.source_digest[5] ^= 1;
        leave_part(path, &was, cases[i].weights, cases[i].torn);
        snprintf(other, sizeof(other), "%s.%s", path, cases[i].damage == 2 ? "done" : "part");
        if (cases[i].damage == 1 || cases[i].damage == 2)
            flip(other, cases[i].damage == 2 ? 10 : 256 + 1536); /* t.weight lies behind a.weight */
        cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
        watch_init(&watch, src);
        cr_assert(eq(int, pack_write(path, &spec, &watch.base), 0), "%s", cases[i].name);
        cr_expect(eq(int, watch.reads, cases[i].reads), "%s", cases[i].name);
        cr_assert(eq(int, file_read(path, 1 << 20, &got, &got_bytes), 0));
        cr_expect(got_bytes == bytes && memcmp(got, want, bytes) == 0, "%s: the same pack",
                  cases[i].name);
        cr_expect(eq(int, folder_count(folder, 0), 1), "%s: nothing else is left", cases[i].name);
        free(got);
        src->ops->close(src);
    }
    free(want);
    folder_count(folder, 1);
}

struct second {
    pthread_t thread;
    const char *path;
    struct watch_source watch;
    int result;
};

static atomic_int waiting;

static void see_waiting(void *arg, enum log_level level, const char *line)
{
    if (strstr(line, "another process is at it"))
        atomic_store(&waiting, 1);
}

static void *pack_again(void *arg)
{
    struct second *s = arg;
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 2);

    s->result = pack_write(s->path, &spec, &s->watch.base);
    return NULL;
}

/* In the middle of the first run the second one starts, and the first goes on when the second
 * waits. */
static void start_second(struct watch_source *w)
{
    struct second *s = w->arg;

    cr_assert(pthread_create(&s->thread, NULL, pack_again, s) == 0);
    while (!atomic_load(&waiting))
        usleep(1000);
}

Test(pack_write, second_packer_waits_and_finds_the_pack, .timeout = 30)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 2);
    char folder[PATH_CAP], path[PATH_CAP];
    struct watch_source watch;
    struct second s = { .path = path, .result = -1 };
    struct source *src;

    log_sink(see_waiting, NULL);
    temp_folder(folder);
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    watch_init(&watch, src);
    watch_init(&s.watch, src);
    watch.first = start_second;
    watch.arg = &s;
    cr_expect(eq(int, pack_write(path, &spec, &watch.base), 0));
    cr_assert(pthread_join(s.thread, NULL) == 0);
    cr_expect(eq(int, s.result, 0));
    cr_expect(eq(int, s.watch.reads, 0), "the second reads nothing");
    cr_expect(eq(int, folder_count(folder, 0), 1));
    src->ops->close(src);
    folder_count(folder, 1);
}

/* The biggest file that this process may write is smaller than the pack: as a full disk, for every
 * user. */
Test(pack_write, writes_that_fail_leave_nothing_behind)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 1);
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct source *src;

    log_sink(keep_line, &line);
    signal(SIGXFSZ, SIG_IGN);
    temp_folder(folder);
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_synth_open(1, DTYPE_F32, &src), 0));
    for (rlim_t most = 0; most < 6000; most += 500) {
        struct rlimit limit = { most, RLIM_INFINITY };

        cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_write(path, &spec, src), -EFBIG), "limit %lu", (unsigned long)most);
        cr_expect(strstr(line.text, path) && line.n == 1, "limit %lu: %s", (unsigned long)most,
                  line.text);
        cr_expect(eq(int, folder_count(folder, 0), 0), "limit %lu", (unsigned long)most);
    }
    src->ops->close(src);
    folder_count(folder, 1);
}

static void two_megabytes(void *object, struct walk *w)
{
    walk_table(w, object, 4096, 256, SHARD_NONE, "t.weight");
}

Test(pack_write, a_full_disk_is_told_before_reading)
{
    struct table t;
    struct walk_part part = { two_megabytes, &t };
    struct pack_spec spec = spec_of(&part, 0, 1);
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    struct watch_source watch;
    struct source *src;

    temp_folder(folder);
    if ((unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=1m") < 0) {
        rmdir(folder);
        cr_skip_test("no right to mount a small file system: %s", strerror(errno));
    }
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    watch_init(&watch, src);
    log_sink(keep_line, &line);
    cr_expect(eq(int, pack_write(path, &spec, &watch.base), -ENOSPC));
    cr_expect(strstr(line.text, path) && strstr(line.text, "no room for 2.1 MB, 1.0 MB"), "%s",
              line.text);
    cr_expect(eq(int, watch.reads, 0));
    cr_expect(eq(int, folder_count(folder, 0), 0));
    src->ops->close(src);
    umount(folder);
    rmdir(folder);
}

/* ---- first use ------------------------------------------------------------------------------- */

Test(pack_write, first_use_packs_and_the_next_finds_it)
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 1, 2);
    char folder[PATH_CAP], cache[PATH_CAP], path[PATH_CAP] = "";
    struct watch_source watch;
    struct source *src;
    struct pack *p;
    int reads;

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    path_join(cache, sizeof(cache), folder, "not/there");
    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    watch_init(&watch, src);
    cr_expect(eq(int, pack_cached(cache, &spec, NULL, path), 1));
    cr_expect(strstr(path, "not/there/0102030000") && strstr(path, "-2/rank1.pack"), "%s", path);
    cr_expect(access(cache, F_OK) < 0, "asking makes nothing");
    cr_expect(eq(int, pack_cached(cache, &spec, &watch.base, path), 0));
    reads = watch.reads;
    cr_expect(gt(int, reads, 0));
    cr_expect(eq(int, pack_cached(cache, &spec, &watch.base, path), 0));
    cr_expect(eq(int, pack_cached(cache, &spec, NULL, path), 0));
    cr_expect(eq(int, watch.reads, reads), "packed once");
    a.skip_vec = 1;
    cr_expect(eq(int, pack_cached(cache, &spec, NULL, path), 1), "a model that asks for less");
    cr_expect(eq(int, pack_cached(cache, &spec, &watch.base, path), 0));
    cr_expect(gt(int, watch.reads, reads), "packed again");
    cr_assert(truncate(path, 5000) == 0);
    cr_expect(eq(int, pack_cached(cache, &spec, &watch.base, path), 0),
              "a cut pack is packed again");
    cr_assert(eq(int, pack_open(path, &p), 0));
    cr_expect(eq(int, pack_bind(p, &part, 1), 0));
    pack_close(p);
    src->ops->close(src);
    folder_count(folder, 1);
}

static void checkpoint(const char *folder, const char *config, const char *name)
{
    struct tensors f = { 0 };
    char path[PATH_CAP];

    tensors_add(&f, name, "U8", "[3]", "abc", 3);
    tensors_write(&f, folder, "model.safetensors");
    path_join(path, sizeof(path), folder, "config.json");
    cr_assert(eq(int, file_write(path, config, strlen(config), 0644), 0));
}

Test(pack_write, source_digest_is_a_key_of_the_folder)
{
    static const struct timespec times[2] = { { 1000, 5 }, { 1000, 5 } },
                                 later[2] = { { 1000, 6 }, { 1000, 6 } };
    char folder[PATH_CAP], file[PATH_CAP], tokenizer[PATH_CAP];
    struct last_line line = { 0 };
    uint8_t d[6][32];

    temp_folder(folder);
    log_sink(keep_line, &line);
    cr_expect(eq(int, source_digest(folder, d[0]), -ENOENT));
    path_join(file, sizeof(file), folder, "model.safetensors");
    path_join(tokenizer, sizeof(tokenizer), folder, "tokenizer.json");
    for (int i = 0; i < 6; i++) {
        checkpoint(folder, i == 1 ? "{\"a\":1}" : "{}", i == 2 ? "b" : "a");
        if (i == 3)
            cr_assert(eq(int, file_write(tokenizer, "{}", 2, 0644), 0));
        if (i == 4)
            unlink(tokenizer);
        cr_assert(utimensat(AT_FDCWD, file, i == 4 ? later : times, 0) == 0);
        cr_assert(eq(int, source_digest(folder, d[i]), 0));
    }
    cr_expect(memcmp(d[0], d[1], 32) != 0, "config");
    cr_expect(memcmp(d[0], d[2], 32) != 0, "header of a shard");
    cr_expect(memcmp(d[0], d[3], 32) != 0, "tokenizer");
    cr_expect(memcmp(d[0], d[4], 32) != 0, "time of a shard");
    cr_expect(memcmp(d[0], d[5], 32) == 0, "the same again");
    folder_count(folder, 1);
}
