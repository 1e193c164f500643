#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/mapping.h"

#define BYTES ((size_t)1 << 20)

static atomic_int back; /* the reader has come back */
static const char *at;

/* A mapped file that is cut off behind its first page. */
static void cut_off(const char *name)
{
    char path[] = "/tmp/tandem-mapping-XXXXXX";
    int fd = mkstemp(path);
    const void *map = NULL;

    cr_assert(fd >= 0 && ftruncate(fd, BYTES) == 0);
    cr_assert(eq(int, mapping_open(fd, BYTES, name, &map), 0));
    cr_assert(ftruncate(fd, 4096) == 0);
    unlink(path);
    close(fd);
    at = map;
}

static void *read_page(void *arg)
{
    sigset_t old;

    mapping_block(&old); /* as workers do */
    atomic_store(&back, *(volatile const char *)(at + 40000) == 0);
    return NULL;
}

Test(mapping, a_missing_page_is_told_to_the_watcher_once)
{
    int64_t until = clock_ns() + 5 * NS_PER_S;
    char what[256] = "";
    pthread_t thread;

    mapping_guard(99);
    mapping_watch(true);
    cut_off("x/rank0.pack");
    cr_expect(eq(int, at[100], 0), "what is there is read");
    cr_expect(not(mapping_lost(what, sizeof(what))));
    cr_assert(pthread_create(&thread, NULL, read_page, NULL) == 0);
    while (!mapping_lost(what, sizeof(what)) && clock_ns() < until)
        clock_sleep(NS_PER_MS);
    cr_expect(strcmp(what, "x/rank0.pack: byte 40000 cannot be read: the file was cut off, or the "
                           "disk fails") == 0,
              "%s", what);
    cr_expect(not(mapping_lost(what, sizeof(what))));
    cr_expect(eq(int, atomic_load(&back), 0), "nobody computes with what is not there");
}

Test(mapping, without_a_watcher_the_process_leaves_with_the_code, .exit_code = 65)
{
    mapping_guard(65);
    cut_off("x/rank0.pack");
    read_page(NULL);
}

Test(mapping, another_fault_kills_as_ever, .signal = SIGBUS)
{
    mapping_guard(65);
    cut_off("x/rank0.pack");
    raise(SIGBUS); /* its address is none of ours */
    raise(SIGBUS);
}

Test(mapping, places_are_used_again)
{
    for (int i = 0; i < 200; i++) {
        cut_off("x");
        mapping_close(at, BYTES);
    }
}
