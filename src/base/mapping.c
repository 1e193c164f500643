/* mapping.c owns SIGBUS. Its handler runs in the thread that read the page, in the middle of
 * anything: it takes no lock and calls nothing that may. */
#include "src/base/mapping.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAPPINGS_MAX = 64 };

struct mapping {
    _Atomic uintptr_t at; /* 0: free, 1: being filled */
    _Atomic size_t bytes;
    _Atomic(const char *) name;
};

static struct mapping mappings[MAPPINGS_MAX];
static atomic_int watchers, exit_code;
static _Atomic uintptr_t lost; /* the first address that was missing */

/* The mapping of an address; of one that is closed at the same time nobody reads. */
static const struct mapping *mapping_of(uintptr_t at)
{
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        uintptr_t begin = atomic_load(&mappings[i].at);

        if (begin > 1 && at >= begin && at - begin < atomic_load(&mappings[i].bytes))
            return &mappings[i];
    }
    return NULL;
}

static void put_text(char *out, size_t cap, size_t *n, const char *text)
{
    while (*text && *n + 1 < cap)
        out[(*n)++] = *text++;
    out[*n] = 0;
}

/* Without stdio, for a handler. */
static void describe(uintptr_t at, char *out, size_t cap)
{
    const struct mapping *m = mapping_of(at);
    char digits[24], *d = digits + sizeof(digits) - 1;
    size_t n = 0, offset = m ? at - atomic_load(&m->at) : 0;

    *d = 0;
    do {
        *--d = (char)('0' + offset % 10);
        offset /= 10;
    } while (offset);
    put_text(out, cap, &n, m ? atomic_load(&m->name) : "a mapped file");
    put_text(out, cap, &n, ": byte ");
    put_text(out, cap, &n, d);
    put_text(out, cap, &n, " cannot be read: the file was cut off, or the disk fails");
}

static void on_missing_page(int signal, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr, none = 0;
    char line[4400], text[4300];
    size_t n = 0;

    if (!mapping_of(at)) { /* the access runs again and kills */
        sigaction(SIGBUS, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
        return;
    }
    atomic_compare_exchange_strong(&lost, &none, at);
    if (atomic_load(&watchers) == 0) {
        describe(at, text, sizeof(text));
        put_text(line, sizeof(line), &n, "error: ");
        put_text(line, sizeof(line), &n, text);
        put_text(line, sizeof(line), &n, "\n");
        _exit(write(STDERR_FILENO, line, n) < 0 ? 70 : atomic_load(&exit_code));
    }
    for (;;)
        pause();
}

void mapping_guard(int code)
{
    struct sigaction act = { .sa_sigaction = on_missing_page, .sa_flags = SA_SIGINFO };

    atomic_store(&exit_code, code);
    sigfillset(&act.sa_mask);
    sigdelset(&act.sa_mask, SIGUSR2); /* its stack may be asked for */
    sigaction(SIGBUS, &act, NULL);
}

void mapping_block(sigset_t *old)
{
    sigset_t others;

    sigfillset(&others);
    sigdelset(&others, SIGBUS);
    sigdelset(&others, SIGUSR2); /* a worker that hangs shows where (stacks.h) */
    pthread_sigmask(SIG_SETMASK, &others, old);
}

int mapping_open(int fd, size_t bytes, const char *name, const void **out)
{
    void *at;
    int i = 0;

    for (uintptr_t none = 0; i < MAPPINGS_MAX; i++, none = 0)
        if (atomic_compare_exchange_strong(&mappings[i].at, &none, 1))
            break;
    if (i == MAPPINGS_MAX)
        return -EMFILE;
    at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        int r = -errno;

        atomic_store(&mappings[i].at, 0);
        return r;
    }
    atomic_store(&mappings[i].bytes, bytes);
    atomic_store(&mappings[i].name, name);
    atomic_store(&mappings[i].at, (uintptr_t)at);
    *out = at;
    return 0;
}

void mapping_close(const void *at, size_t bytes)
{
    /* while the pages are still ours: another thread's next mapping may get the same address */
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (atomic_load(&mappings[i].at) == (uintptr_t)at)
            atomic_store(&mappings[i].at, 0);
    munmap((void *)at, bytes);
}

void mapping_scattered(const void *at, size_t bytes)
{
    madvise((void *)at, bytes, MADV_RANDOM);
}

void mapping_need(const void *at, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at / page * page;

    madvise((void *)from, (uintptr_t)at + bytes - from, MADV_WILLNEED);
}

void mapping_watch(bool begin)
{
    atomic_fetch_add(&watchers, begin ? 1 : -1);
}

bool mapping_lost(char *out, size_t cap)
{
    uintptr_t at = atomic_load(&lost);

    if (at < 2 || !atomic_compare_exchange_strong(&lost, &at, 1))
        return false;
    describe(at, out, cap);
    return true;
}
