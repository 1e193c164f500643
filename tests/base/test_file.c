#include "src/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/base/capture.h"

static char folder[64];
static struct capture log_lines;

static void enter(void)
{
    strcpy(folder, "/tmp/tandem-file-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    cr_assert(eq(int, chdir(folder), 0));
    capture_start(&log_lines);
}

static void leave(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    cr_expect(eq(int, chdir("/"), 0));
    cr_expect(eq(int, system(command), 0));
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = -2; /* . and .. */

    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

TestSuite(file, .init = enter, .fini = leave);

Test(file, what_is_written_is_read)
{
    char *text;
    size_t n;
    struct stat st;

    cr_assert(eq(int, file_write("a", "one\0two", 7, 0600), 0));
    cr_assert(eq(int, stat("a", &st), 0));
    cr_expect(eq(int, (int)(st.st_mode & 0777), 0600));
    cr_assert(eq(int, file_read("a", 7, &text, &n), 0));
    cr_expect(n == 7 && memcmp(text, "one\0two", 8) == 0, "the NUL behind it included");
    free(text);
    cr_expect(eq(int, file_write("a", "", 0, 0644), 0));
    cr_assert(eq(int, file_read("a", 0, &text, &n), 0));
    cr_expect(n == 0 && text[0] == 0);
    free(text);
    cr_expect(eq(int, entries("."), 1), "no temporary file stays");
}

Test(file, a_pipe_is_read_to_its_end)
{
    static const struct {
        size_t bytes, most;
        int result;
    } cases[] = { { 0, 10, 0 },        { 7, 7, 0 },         { 8, 7, -EFBIG },
                  { 65535, 65536, 0 }, { 65536, 65536, 0 }, { 65536, 65535, -EFBIG } };
    static char data[65536];

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7 + i / 251);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[64], *text = NULL;
        int end[2];
        size_t n = 0;

        cr_assert(pipe(end) == 0);
        cr_assert(write(end[1], data, cases[i].bytes) == (ssize_t)cases[i].bytes);
        close(end[1]);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", end[0]);
        cr_expect(eq(int, file_read_stream(path, cases[i].most, &text, &n), cases[i].result));
        if (cases[i].result == 0)
            cr_expect(n == cases[i].bytes && memcmp(text, data, n) == 0 && text[n] == 0);
        free(text);
        close(end[0]);
    }
}

Test(file, reading_refuses_by_kind_and_size)
{
    char *text = NULL;
    size_t n;

    cr_assert(eq(int, mkdir("dir", 0777), 0));
    cr_assert(eq(int, mkfifo("fifo", 0666), 0));
    cr_assert(eq(int, file_write("big", "12345678", 8, 0666), 0));
    cr_expect(eq(int, file_read("none", 10, &text, &n), -ENOENT));
    cr_expect(strstr(log_lines.last, "none: open: No such file") != NULL, "%s", log_lines.last);
    cr_expect(eq(int, file_read("dir", 10, &text, &n), -EISDIR));
    cr_expect(eq(int, file_read("fifo", 10, &text, &n), -EINVAL));
    cr_expect(eq(int, file_read("big", 7, &text, &n), -EFBIG));
    cr_expect(strstr(log_lines.last, "big: 8 bytes, at most 7") != NULL, "%s", log_lines.last);
    cr_expect(eq(int, file_read("big/x", 7, &text, &n), -ENOTDIR));
    cr_expect(eq(int, file_read("/proc/self/status", 1 << 20, &text, &n), -EIO)); /* "0 bytes" */
    cr_expect(strstr(log_lines.last, "status: changed while it was read") != NULL, "%s",
              log_lines.last);
    cr_expect(eq(int, log_lines.lines, 6));
    cr_expect(eq(ptr, text, NULL));
}

Test(file, a_new_file_appears_only_when_it_is_whole)
{
    struct new_file f;
    char *text;
    size_t n;

    cr_assert(eq(int, file_write("a", "old", 3, 0666), 0));
    cr_assert(eq(int, new_file_open(&f, "a", 0644), 0));
    cr_expect(eq(int, full_pwrite(f.fd, "brand new", 9, 0, "a"), 0));
    cr_assert(eq(int, file_read("a", 10, &text, &n), 0));
    cr_expect(eq(str, text, (char *)"old"));
    free(text);
    cr_expect(eq(int, new_file_commit(&f), 0));
    new_file_drop(&f);
    cr_assert(eq(int, file_read("a", 10, &text, &n), 0));
    cr_expect(eq(str, text, (char *)"brand new"));
    free(text);

    cr_assert(eq(int, new_file_open(&f, "b", 0644), 0));
    new_file_drop(&f);
    new_file_drop(&f);
    cr_expect(eq(int, entries("."), 1));
    cr_expect(eq(int, new_file_open(&f, "none/c", 0644), -ENOENT));
    new_file_drop(&f);
    cr_assert(eq(int, mkdir("dir", 0777), 0));
    cr_expect(lt(int, file_write("dir", "x", 1, 0644), 0), "a folder is not replaced");
    cr_expect(eq(int, entries("."), 2), "its temporary file is gone");
}

Test(file, the_umask_holds_for_new_files)
{
    static const struct {
        mode_t umask, mode, got;
    } cases[] = {
        { 022, 0666, 0644 }, { 077, 0666, 0600 }, { 0, 0666, 0666 }, { 022, 0600, 0600 }
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stat st;

        umask(cases[i].umask);
        cr_assert(eq(int, file_write("a", "x", 1, cases[i].mode), 0));
        cr_assert(eq(int, stat("a", &st), 0));
        cr_expect(eq(int, (int)(st.st_mode & 07777), (int)cases[i].got), "case %zu", i);
    }
    cr_expect(eq(int, entries("."), 1));
}

Test(file, room_is_what_is_free)
{
    cr_expect(eq(int, file_room(".", 1), 0));
    cr_expect(eq(int, file_room("none", UINT64_MAX), 0), "nothing is known");
    cr_expect(eq(int, file_room("/proc", UINT64_MAX), 0), "nothing is known");
    cr_expect(eq(int, log_lines.lines, 0));
    cr_expect(eq(int, file_room(".", UINT64_MAX), -ENOSPC));
    cr_expect(strstr(log_lines.last, "no room for 18446744073709.6 MB, ") != NULL, "%s",
              log_lines.last);
}

Test(file, a_full_disk_is_named)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        cr_skip_test("no /dev/full here");
    cr_expect(eq(int, full_pwrite(fd, "x", 1, 0, "pack"), -ENOSPC));
    cr_expect(eq(str, log_lines.last, (char *)"error: pack: write: no space left"));
    close(fd);
}

Test(file, exact_reads_tell_where_a_file_ends)
{
    char buf[8] = "";
    int fd;

    cr_assert(eq(int, file_write("a", "0123456789", 10, 0666), 0));
    fd = open("a", O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0);
    cr_expect(eq(int, full_pread(fd, buf, 4, 6, "a"), 0));
    cr_expect(eq(str, buf, (char *)"6789"));
    cr_expect(eq(int, full_pread(fd, buf, 0, 99, "a"), 0));
    cr_expect(eq(int, full_pread(fd, buf, 5, 6, "a"), -EIO));
    cr_expect(eq(str, log_lines.last, (char *)"error: a: ends at byte 10, 1 more were expected"));
    cr_expect(eq(int, full_pwrite(fd, buf, 1, 0, "a"), -EBADF));
    close(fd);
    cr_expect(eq(int, full_pread(-1, buf, 1, 0, "a"), -EBADF));
}

Test(file, folders_are_made_with_their_parents)
{
    struct stat st;

    cr_expect(eq(int, make_dirs("x/y//z/", 0755), 0));
    cr_expect(stat("x/y/z", &st) == 0 && S_ISDIR(st.st_mode));
    cr_expect(eq(int, make_dirs("x/y/z", 0755), 0));
    cr_expect(eq(int, make_dirs(folder, 0755), 0));
    cr_expect(eq(int, make_dirs("/", 0755), 0));
    cr_expect(eq(int, make_dirs("", 0755), -ENOENT));
    cr_assert(eq(int, file_write("file", "", 0, 0644), 0));
    cr_expect(eq(int, make_dirs("file/a", 0755), -ENOTDIR));
    cr_expect(eq(int, make_dirs("file", 0755), -ENOTDIR));
    cr_assert(eq(int, symlink("nowhere", "link"), 0));
    cr_expect(eq(int, make_dirs("link", 0755), -EROFS));
    cr_expect(eq(int, make_dirs("/proc/none/a", 0755), -EROFS));
}

Test(file, a_lock_has_one_holder)
{
    int first = -1, second = -1;

    cr_assert(eq(int, file_lock("lock", false, &first), 0));
    cr_expect(eq(int, file_lock("lock", false, &second), 1));
    cr_expect(eq(int, second, -1));
    file_unlock(first);
    cr_expect(eq(int, file_lock("lock", true, &second), 0));
    file_unlock(second);
    file_unlock(-1);
    cr_expect(eq(int, file_lock("none/lock", false, &first), -ENOENT));
}

static const struct {
    const char *dir, *name, *want;
} joins[] = {
    { "a", "b", "a/b" },     { "a/", "b", "a/b" },     { "", "b", "b" },
    { "/", "b", "/b" },      { "a/b", "c", "a/b/c" },  { "abcd", "ef", "abcd/ef" },
    { "abcd", "efg", NULL }, { "abcd/", "efg", NULL }, { "", "12345678", NULL },
};

Test(file, paths_are_joined_within_their_buffer)
{
    for (size_t i = 0; i < sizeof(joins) / sizeof(joins[0]); i++) {
        char out[8] = "keep";
        int r = path_join(out, sizeof(out), joins[i].dir, joins[i].name);

        cr_expect(eq(int, r, joins[i].want ? 0 : -ENAMETOOLONG), "%s + %s", joins[i].dir,
                  joins[i].name);
        cr_expect(eq(str, out, (char *)(joins[i].want ? joins[i].want : "keep")));
    }
}

static const struct {
    const char *name;
    size_t bytes;
    bool plain;
} names[] = {
    { "model-00001-of-00002.safetensors", 32, true },
    { "...", 3, true },
    { ".hidden", 7, true },
    { "a b", 3, true },
    { "", 0, false },
    { ".", 1, false },
    { "..", 2, false },
    { "a/b", 3, false },
    { "/a", 2, false },
    { "../a", 4, false },
    { "a/", 2, false },
    { "a\\b", 3, false },
    { "a\0b", 3, false },
};

Test(file, plain_names_stay_in_their_folder)
{
    char longest[256];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cr_expect(is_plain_name(names[i].name, names[i].bytes) == names[i].plain, "%s",
                  names[i].name);
    memset(longest, 'a', sizeof(longest));
    cr_expect(is_plain_name(longest, 255));
    cr_expect(not(is_plain_name(longest, 256)));
}

Test(file, one_file_has_many_paths)
{
    cr_assert(eq(int, mkdir("dir", 0777), 0));
    cr_assert(eq(int, file_write("a", "x", 1, 0666), 0));
    cr_assert(eq(int, file_write("b", "x", 1, 0666), 0));
    cr_assert(eq(int, symlink("a", "soft"), 0));
    cr_assert(eq(int, link("a", "hard"), 0));
    cr_expect(same_file("a", "dir/../a"));
    cr_expect(same_file("a", "soft"));
    cr_expect(same_file("hard", "soft"));
    cr_expect(same_file("dir", "dir/."));
    cr_expect(not(same_file("a", "b")), "equal bytes");
    cr_expect(not(same_file("a", "none")));
    cr_expect(not(same_file("none", "none")));
}
