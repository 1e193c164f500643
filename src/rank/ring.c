/* ring.c owns the buffer between two threads; `put` and `taken` count units since open. */
#include "src/rank/ring.h"

#include "src/base/clock.h"
#include "src/base/cores.h"
#include "src/base/log.h"
#include "src/base/mapping.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FULL_NAP_NS (NS_PER_MS / 2)

struct ring {
    size_t unit, units;
    ring_fn *fn;
    void *arg;
    _Alignas(64) _Atomic uint64_t put;
    _Alignas(64) _Atomic uint64_t taken;
    atomic_bool closing;
    sem_t news;
    pthread_t thread;
    char *data;
};

static void *take(void *arg)
{
    struct ring *r = (struct ring *)arg;

    for (;;) {
        bool last = atomic_load(&r->closing); /* before the count: nothing is put after it */
        uint64_t to = atomic_load_explicit(&r->put, memory_order_acquire);
        uint64_t from = atomic_load_explicit(&r->taken, memory_order_relaxed);

        if (from == to) {
            if (last)
                return NULL;
            while (sem_wait(&r->news) != 0)
                ;
            continue;
        }
        size_t place = from % r->units, n = to - from;

        if (n > r->units - place)
            n = r->units - place;
        r->fn(r->arg, r->data + place * r->unit, n);
        atomic_store_explicit(&r->taken, from + n, memory_order_release);
    }
}

int ring_open(size_t unit_bytes, size_t units, ring_fn *fn, void *arg, struct ring **out)
{
    struct ring *r = aligned_alloc(64, (sizeof(*r) + 63) / 64 * 64);
    sigset_t old;
    int err;

    if (!r)
        return fail(-ENOMEM, "ring: out of memory");
    memset(r, 0, sizeof(*r));
    r->unit = unit_bytes;
    r->units = units;
    r->fn = fn;
    r->arg = arg;
    r->data = malloc(unit_bytes * units);
    if (!r->data) {
        free(r);
        return fail(-ENOMEM, "ring: no memory for %zu units of %zu bytes", units, unit_bytes);
    }
    sem_init(&r->news, 0, 0);
    mapping_block(&old);
    err = cores_thread(&r->thread, take, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        sem_destroy(&r->news);
        free(r->data);
        free(r);
        return fail(-err, "ring: no thread: %s", strerror(err));
    }
    *out = r;
    return 0;
}

void ring_put(struct ring *r, const void *data, size_t n)
{
    const char *from = (const char *)data;

    while (n > 0) {
        uint64_t put = atomic_load_explicit(&r->put, memory_order_relaxed);
        uint64_t taken = atomic_load_explicit(&r->taken, memory_order_acquire);
        size_t place = put % r->units, some = r->units - (size_t)(put - taken);

        if (some == 0) {
            clock_sleep(FULL_NAP_NS);
            continue;
        }
        if (some > r->units - place)
            some = r->units - place;
        if (some > n)
            some = n;
        memcpy(r->data + place * r->unit, from, some * r->unit);
        atomic_store_explicit(&r->put, put + some, memory_order_release);
        sem_post(&r->news);
        from += some * r->unit;
        n -= some;
    }
}

void ring_close(struct ring *r)
{
    if (!r)
        return;
    atomic_store(&r->closing, true);
    sem_post(&r->news);
    pthread_join(r->thread, NULL);
    sem_destroy(&r->news);
    free(r->data);
    free(r);
}
