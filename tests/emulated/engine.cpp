// engine.cpp owns the threads of the emulated device: a fiber each, all on one thread of the process, so that a kernel
// runs alike whenever it runs in the same order. A fiber runs until it waits: for its warp, its block, its cluster, the
// kernels in front, or a word that others change.
//
// Variables of a block are thread-local ones of the device's thread. What the block has in them is taken away when another
// one runs, and a peer's place is one in what was taken. A block begins with bytes 0xff in all of them.
#include "tests/emulated/engine.h"

#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)256 << 10)
#else
#define STACK_BYTES ((size_t)64 << 10)
#endif

#define THREADS_MAX 1024
#define DYNAMIC_MAX (228 << 10)
#define POISON 0xff
#define BEHIND 1024 // bytes behind what a launch gives of shared memory

emulated_index threadIdx, blockIdx;
dim3 blockDim, gridDim;

// All names by which kernels know what a launch gives them of shared memory.
asm(".section .tbss,\"awT\",@nobits\n"
    ".balign 1024\n"
    ".globl emulated_dynamic, shared, dynamic, key, sheet_memory, narrow_memory, few_memory, "
    "thin_memory, wide_memory\n"
    ".type emulated_dynamic, @object\n.type shared, @object\n.type dynamic, @object\n"
    ".type key, @object\n.type sheet_memory, @object\n.type narrow_memory, @object\n"
    ".type few_memory, @object\n.type thin_memory, @object\n.type wide_memory, @object\n"
    "emulated_dynamic:\nshared:\ndynamic:\nkey:\nsheet_memory:\nnarrow_memory:\nfew_memory:\n"
    "thin_memory:\nwide_memory:\n"
    ".zero 233472\n"
    ".previous\n");
extern __thread char emulated_dynamic[];
static_assert(DYNAMIC_MAX == 233472, "as above");

namespace emulated
{
enum state { READY, PAUSED, AT_WARP, AT_BLOCK, AT_GANG, AT_SETTLE, ENDED };

struct copy {
    void *to;
    const void *from;
    int bytes, all;
};

struct thread {
    void *sp;
    char *stack;
    void *fake; // AddressSanitizer's
    enum state state;
    unsigned gang_phase;
    std::vector<copy> copies;
    std::vector<size_t> groups; // copies that each ends with
};

struct warp {
    seat seats[2][LANES];
    unsigned ready, live, here, wanted;
    const char *what;
    int turn;
};

struct parcel {
    void *to;
    const void *from;
    uint64_t *bar;
    int bytes;
    char data[16]; // from NULL
};

struct gang;

struct block {
    grid *g;
    struct gang *gang;
    emulated_index at;
    unsigned rank;
    int n, live, waiting, sum, turn, sums[2];
    bool let, begun, ended;
    char *image; // of what is the block's while another one runs
    std::vector<parcel> parcels;
    thread t[THREADS_MAX];
    warp w[THREADS_MAX / LANES];
};

struct gang {
    std::vector<block *> blocks;
    int live, arrived;
    unsigned phase;
};

static std::vector<block *> resident, spare;
static size_t threads_resident, shared_resident;
static block *in; // whose variables the thread has
static block *b;  // running
static thread *now;
static warp *w;
static void *home, *home_stack;
static size_t home_bytes;
static bool moved;
static char *variables; // thread-local ones of the device's thread

// ---- faults ------------------------------------------------------------------------------------

void broken(const char *what, ...)
{
    va_list ap;

    fflush(stdout);
    if (b)
        fprintf(stderr, "BROKEN %s block (%u, %u, %u) thread %u: ", b->g->k->name.c_str(), b->at.x,
                b->at.y, b->at.z, now ? threadIdx.x : 0);
    va_start(ap, what);
    vfprintf(stderr, what, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    _Exit(1);
}

static bool in_dynamic(const void *p)
{
    return (const char *)p >= emulated_dynamic && (const char *)p < emulated_dynamic + DYNAMIC_MAX;
}

static bool in_static(const void *p)
{
    return (const char *)p >= variables + b->g->k->begin &&
           (const char *)p < variables + b->g->k->end;
}

void check_place(const char *what, const void *p, size_t align, size_t bytes, bool shared)
{
    const char *end = (const char *)p + bytes;

    if ((uintptr_t)p % align != 0)
        broken("%s: %p is not aligned to %zu bytes", what, p, align);
    if (shared && !(in_dynamic(p) ? end <= emulated_dynamic + b->g->shared
                                  : in_static(p) && in_static(end - 1)))
        broken("%s: %zu bytes at %p are not in the %zu of the block's shared memory", what, bytes,
               p, b->g->shared);
}

char *shared_begin()
{
    return variables;
}

// ---- a block's variables -----------------------------------------------------------------------

static size_t static_bytes(const block *o)
{
    return o->g->k->end - o->g->k->begin;
}

static void dynamic_ends(size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(emulated_dynamic, bytes);
    __asan_poison_memory_region(emulated_dynamic + bytes, DYNAMIC_MAX - bytes);
#endif
}

static char *image_of(block *o)
{
    size_t bytes = (static_bytes(o) + o->g->shared + LINE - 1) / LINE * LINE;

    if (!o->image) {
        o->image = (char *)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024 + 1024);
        memset(o->image, POISON, bytes);
    }
    return o->image;
}

// Bytes behind what a launch gives are as they were.
static void check_behind(const block *o)
{
#ifndef __SANITIZE_ADDRESS__
    for (size_t i = o->g->shared; i < o->g->shared + BEHIND && i < DYNAMIC_MAX; i++)
        if ((unsigned char)emulated_dynamic[i] != POISON)
            broken("byte %zu of shared memory was written, the block has %zu", i, o->g->shared);
#endif
}

static void swap_in(block *next)
{
    size_t behind = next->g->shared + BEHIND < DYNAMIC_MAX ? BEHIND : DYNAMIC_MAX - next->g->shared;

    if (in == next)
        return;
    if (in) {
        check_behind(in);
        memcpy(image_of(in), variables + in->g->k->begin, static_bytes(in));
        memcpy(in->image + static_bytes(in), emulated_dynamic, in->g->shared);
    }
    in = next;
    dynamic_ends(DYNAMIC_MAX);
    if (next->image) {
        memcpy(variables + next->g->k->begin, next->image, static_bytes(next));
        memcpy(emulated_dynamic, next->image + static_bytes(next), next->g->shared);
    } else {
        memset(variables + next->g->k->begin, POISON, static_bytes(next));
        memset(emulated_dynamic, POISON, next->g->shared);
    }
    memset(emulated_dynamic + next->g->shared, POISON, behind);
    dynamic_ends(next->g->shared);
}

void *peer_place(const void *p, int rank, bool used)
{
    block *peer;

    if (rank < 0 || (size_t)rank >= b->gang->blocks.size())
        broken("a cluster of %zu blocks has none of rank %d", b->gang->blocks.size(), rank);
    peer = b->gang->blocks[(size_t)rank];
    check_place("peer", p, 1, 1, true);
    if (peer == b)
        return (void *)p;
    if (peer->ended)
        broken("block %d of the cluster has ended", rank);
    if (used && !peer->begun)
        broken("block %d of the cluster may not have begun", rank);
    return image_of(peer) + (in_dynamic(p)
                                 ? static_bytes(peer) + (size_t)((char *)p - emulated_dynamic)
                                 : (size_t)((char *)p - variables - b->g->k->begin));
}

unsigned rank_of_block()
{
    return b->rank;
}

// ---- fibers ------------------------------------------------------------------------------------

static unsigned drawn(unsigned salt)
{
    uint64_t x = (order() * 0x9e3779b97f4a7c15ull ^ salt) * 0xbf58476d1ce4e5b9ull;

    return (unsigned)((x ^ x >> 31) * 0x94d049bb133111ebull >> 40);
}

// Which of n comes i-th.
static unsigned in_order(unsigned i, unsigned n, unsigned salt)
{
    unsigned step = order() < 2 ? 1 : drawn(salt) % n + 1, a, c;

    do { // until it has no divisor that n has
        step += order() < 2 ? 0 : 1;
        for (a = step, c = n; c; a %= c, std::swap(a, c))
            ;
    } while (a != 1);
    i = (unsigned)(((uint64_t)i * step + (order() < 2 ? 0 : drawn(salt + 1))) % n);
    return order() == 1 ? n - 1 - i : i;
}

// Fibers of AddressSanitizer's are what it says they are.
static void leave(void **fake, const void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}

static void arrive(void *fake)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

// To another thread of the block, or to where threads are chosen from (NULL). `over`: this one does not come back.
static void go_to(thread *t, bool over)
{
    void *fake = NULL, **from = now ? &now->sp : &home;

    leave(over ? NULL : &fake, t ? t->stack : home_stack, t ? STACK_BYTES : home_bytes);
    now = t;
    if (t) {
        threadIdx.x = (unsigned)(t - b->t);
        w = &b->w[threadIdx.x / LANES];
    }
    fiber_switch(from, t ? t->sp : home);
    arrive(fake);
}

// The first lane that can go on behind lane `at` of the warp.
static thread *ready_lane(warp *of, int at)
{
    unsigned r = of->ready, behind;
    int lane;

    if (!r)
        return NULL;
    if (order() % 2 == 0) {
        behind = at == LANES - 1 ? 0 : r & ~0u << (at + 1);
        lane = __builtin_ctz(behind ? behind : r);
    } else {
        behind = r & ((1u << at) - 1);
        lane = LANES - 1 - __builtin_clz(behind ? behind : r);
    }
    return &b->t[(of - b->w) * LANES + lane];
}

int lane()
{
    return (int)(threadIdx.x % LANES);
}

static void set_state(thread *t, enum state s)
{
    unsigned at = (unsigned)(t - b->t), bit = 1u << at % LANES;
    warp *of = &b->w[at / LANES];

    t->state = s;
    of->ready = s == READY ? of->ready | bit : of->ready & ~bit;
}

// The thread waits.
static void rest(enum state s)
{
    set_state(now, s);
    go_to(ready_lane(w, lane()), s == ENDED);
}

static void gang_check(gang *of)
{
    if (of->live && of->arrived == of->live) {
        of->arrived = 0;
        of->phase++;
        moved = true;
    }
}

static void entry()
{
    arrive(NULL);
    b->g->what->run();
    for (auto &c : now->copies) {
        memcpy(c.to, c.from, (size_t)c.bytes);
        memset((char *)c.to + c.bytes, 0, (size_t)(c.all - c.bytes));
    }
    w->live &= ~(1u << lane());
    b->live--;
    b->gang->live--;
    gang_check(b->gang);
    moved = true;
    rest(ENDED);
}

seat *meet(const char *what, unsigned mask, const void *mine, size_t bytes, void (*all)(seat *))
{
    unsigned bit = 1u << lane();
    seat *s = w->seats[w->turn];
    warp *of = w;

    if (mask & ~w->live || !(mask & bit))
        broken("%s of lanes %08x, of which %08x are there", what, mask, w->live);
    if (w->here && (w->wanted != mask || strcmp(w->what, what) != 0))
        broken("%s where other lanes of the warp are at %s", what, w->what);
    w->what = what;
    w->wanted = mask;
    w->here |= bit;
    memcpy(s[lane()].bytes, mine, bytes);
    if (w->here != mask) {
        rest(AT_WARP);
        return s;
    }
    w->here = 0;
    w->turn ^= 1;
    moved = true;
    if (all)
        all(s);
    for (unsigned left = mask & ~bit; left; left &= left - 1)
        b->t[(of - b->w) * LANES + __builtin_ctz(left)].state = READY;
    w->ready |= mask;
    return s;
}

int barrier(int mine)
{
    int turn = b->turn;

    b->sum += mine;
    b->waiting++;
    rest(AT_BLOCK);
    return b->sums[turn];
}

void pause()
{
    rest(PAUSED);
}

void gang_arrive()
{
    now->gang_phase = b->gang->phase;
    b->gang->arrived++;
    gang_check(b->gang);
}

void gang_wait()
{
    if (now->gang_phase == b->gang->phase)
        rest(AT_GANG);
}

void dependency_next()
{
    if (!b->let) {
        b->let = true;
        b->g->let++;
    }
    if (order() % 2)
        pause(); // the next one may come in
}

void dependency_settle()
{
    if (!b->g->settled)
        rest(AT_SETTLE);
}

// ---- copies ------------------------------------------------------------------------------------

void copy_later(void *to, const void *from, int bytes, int all)
{
    check_place("a copy to shared memory", to, (size_t)all, (size_t)all, true);
    now->copies.push_back({ to, from, bytes, all });
}

void copy_commit()
{
    now->groups.push_back(now->copies.size());
}

void copy_wait(int left)
{
    size_t done = now->groups.size() > (size_t)left ? now->groups.size() - (size_t)left : 0;
    size_t n = done ? now->groups[done - 1] : 0;

    for (size_t i = 0; i < n; i++) {
        const copy &c = now->copies[i];

        memcpy(c.to, c.from, (size_t)c.bytes);
        memset((char *)c.to + c.bytes, 0, (size_t)(c.all - c.bytes));
    }
    now->copies.erase(now->copies.begin(), now->copies.begin() + (long)n);
    now->groups.erase(now->groups.begin(), now->groups.begin() + (long)done);
    for (auto &g : now->groups)
        g -= n;
}

// A barrier of copies in its 64 bits.
struct counter {
    uint32_t phase : 1, all : 15, left : 16;
    int32_t bytes;
};
static_assert(sizeof(counter) == sizeof(uint64_t), "the size of an mbarrier");

static counter *counter_at(uint64_t *bar)
{
    counter *c = (counter *)bar;

    check_place("a barrier of copies", bar, 8, 8, true);
    if (c->all == 0 || c->all == 0x7fff || c->left > c->all)
        broken("a barrier of copies that has not begun");
    return c;
}

static void counter_check(counter *c)
{
    if (c->left == 0 && c->bytes == 0) {
        c->phase ^= 1;
        c->left = c->all;
        moved = true;
    }
}

void barrier_init(uint64_t *bar, int arrivals)
{
    counter c = { 0, (uint32_t)arrivals & 0x7fff, (uint32_t)arrivals & 0xffff, 0 };

    check_place("a barrier of copies", bar, 8, 8, true);
    memcpy(bar, &c, sizeof(c));
}

void barrier_arrive(uint64_t *bar, int bytes)
{
    counter *c = counter_at(bar);

    if (c->left == 0)
        broken("a barrier of copies has more arrivals than it waits for");
    c->bytes += bytes;
    c->left--;
    counter_check(c);
}

static void deliver(uint64_t *bar)
{
    for (size_t i = 0; i < b->parcels.size();)
        if (b->parcels[i].bar == bar) {
            parcel p = b->parcels[i];
            counter *c = counter_at(bar);

            b->parcels.erase(b->parcels.begin() + (long)i);
            memcpy(p.to, p.from ? p.from : p.data, (size_t)p.bytes);
            c->bytes -= p.bytes;
            counter_check(c);
        } else {
            i++;
        }
}

void barrier_wait(uint64_t *bar, int parity)
{
    while (counter_at(bar)->phase == (unsigned)parity) {
        deliver(bar);
        if (counter_at(bar)->phase == (unsigned)parity)
            pause();
    }
}

void parcel_fetch(void *to, const void *from, int bytes, uint64_t *bar)
{
    check_place("a bulk copy to shared memory", to, 16, (size_t)bytes, true);
    check_place("a bulk copy", from, 16, (size_t)bytes, false);
    (void)counter_at(bar);
    if (bytes <= 0 || bytes % 16 != 0)
        broken("a bulk copy of %d bytes", bytes);
    b->parcels.push_back({ to, from, bar, bytes, {} });
}

void parcel_send(void *to, const void *data, int bytes, uint64_t *bar, int rank)
{
    parcel p = { to, NULL, bar, bytes, {} };

    check_place("a parcel", to, bytes, (size_t)bytes, true);
    (void)peer_place(to, rank, true);
    memcpy(p.data, data, (size_t)bytes);
    b->gang->blocks[(size_t)rank]->parcels.push_back(p);
}

// ---- blocks ------------------------------------------------------------------------------------

static block *block_new()
{
    block *o;
    char *stacks;

    if (!spare.empty()) {
        o = spare.back();
        spare.pop_back();
        return o;
    }
    o = new block;
    stacks = (char *)mmap(NULL, THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        broken("no memory for the stacks of a block");
    for (int i = 0; i < THREADS_MAX; i++)
        o->t[i].stack = stacks + (size_t)i * STACK_BYTES;
    return o;
}

static void fibers_begin(block *o)
{
    for (int i = 0; i < o->n; i++) {
        thread *t = &o->t[i];
        // tops lie in other lines of the cache, and as a call leaves them
        uintptr_t top =
            ((uintptr_t)t->stack + STACK_BYTES - 64 - (size_t)i % 64 * 192) & ~(uintptr_t)15;

        t->sp = fiber_stack(top, entry);
        t->state = READY;
        t->copies.clear();
        t->groups.clear();
    }
    for (int i = 0; i < (o->n + LANES - 1) / LANES; i++) {
        warp *of = &o->w[i];
        int lanes = o->n - i * LANES;

        of->live = of->ready = lanes >= LANES ? ~0u : (1u << lanes) - 1;
        of->here = 0;
        of->turn = 0;
    }
}

bool engine_empty()
{
    return resident.empty();
}

bool engine_admit(grid *g)
{
    unsigned threads = g->threads.x, n = g->cluster;
    size_t shared = g->shared + 1024;
    gang *of;

    if (g->begun == g->all())
        return false;
    if (!resident.empty() && (threads_resident + n * threads > SMS * SM_THREADS ||
                              shared_resident + n * shared > (size_t)SMS * SM_SHARED * 2))
        return false;
    threads_resident += n * threads;
    shared_resident += n * shared;
    of = new gang{ {}, (int)(n * threads), 0, 0 };
    for (unsigned i = 0; i < n; i++) {
        block *o = block_new();
        unsigned at = in_order(g->begun / n, g->all() / n, 7) * n + i;

        o->g = g;
        o->gang = of;
        o->at = { at % g->blocks.x, at / g->blocks.x % g->blocks.y,
                  at / g->blocks.x / g->blocks.y };
        o->rank = i;
        o->n = o->live = (int)threads;
        o->waiting = o->sum = o->turn = 0;
        o->let = o->begun = o->ended = false;
        o->image = NULL;
        o->parcels.clear();
        fibers_begin(o);
        of->blocks.push_back(o);
        resident.push_back(o);
    }
    g->begun += n;
    return true;
}

// Blocks of a cluster go together.
static void gang_end(gang *of)
{
    for (block *o : of->blocks) {
        threads_resident -= (size_t)o->n;
        shared_resident -= o->g->shared + 1024;
        o->g->ended++;
        if (!o->let)
            o->g->let++;
        free(o->image);
        o->image = NULL;
        spare.push_back(o);
        for (size_t i = 0; i < resident.size(); i++)
            if (resident[i] == o)
                resident.erase(resident.begin() + (long)i);
    }
    delete of;
}

static void wake()
{
    for (int i = 0; i < b->n; i++) {
        thread *t = &b->t[i];
        bool gang = t->state == AT_GANG && t->gang_phase != b->gang->phase;
        bool settled = t->state == AT_SETTLE && b->g->settled;

        moved |= gang || settled;
        if (t->state == PAUSED || gang || settled)
            set_state(t, READY);
    }
}

// Nobody in the block can go on, and nobody waits for what is outside of it.
static void report_stuck()
{
    static const char *const what[] = {
        "ready",        "looking",          "at a warp's",
        "at a barrier", "at the cluster's", "waiting for kernels in front",
        "ended"
    };
    int n[ENDED + 1] = {};
    char text[256] = "";

    for (int i = 0; i < b->n; i++)
        n[b->t[i].state]++;
    for (int i = 0; i <= ENDED; i++)
        if (n[i])
            snprintf(text + strlen(text), sizeof(text) - strlen(text), " %d %s,", n[i], what[i]);
    broken("threads do not meet:%s of %d", text, b->n);
}

static void block_run()
{
    unsigned warps = (unsigned)(b->n + LANES - 1) / LANES;
    bool waits = false;

    swap_in(b);
    b->begun = true;
    blockIdx = b->at;
    blockDim = b->g->threads;
    gridDim = b->g->blocks;
    wake();
    for (bool any = true; any;) {
        any = false;
        for (unsigned i = 0; i < warps; i++) {
            warp *of = &b->w[in_order(i, warps, 11)];
            thread *t = ready_lane(of, order() % 2 ? 0 : LANES - 1);

            if (!t)
                continue;
            any = true;
            go_to(t, false);
        }
        if (b->waiting && b->waiting == b->live) {
            b->sums[b->turn] = b->sum;
            b->turn ^= 1;
            b->sum = b->waiting = 0;
            for (int i = 0; i < b->n; i++)
                if (b->t[i].state == AT_BLOCK)
                    set_state(&b->t[i], READY);
            any = moved = true;
        }
    }
    for (int i = 0; i < b->n && !waits; i++)
        waits = b->t[i].state == PAUSED || b->t[i].state == AT_GANG || b->t[i].state == AT_SETTLE;
    if (b->live && !waits)
        report_stuck();
    if (b->live)
        return;
    if (!b->parcels.empty())
        broken("the block ended before what it asked for came");
    check_behind(b);
    b->ended = true;
    in = NULL;
}

bool engine_pass()
{
    std::vector<block *> all = resident;
    size_t n = all.size();

    if (!home_stack) {
        pthread_attr_t attr;

        pthread_getattr_np(pthread_self(), &attr);
        pthread_attr_getstack(&attr, &home_stack, &home_bytes);
        pthread_attr_destroy(&attr);
        dl_iterate_phdr(
            [](struct dl_phdr_info *i, size_t, void *arg) {
                *(void **)arg = i->dlpi_tls_data;
                return 1;
            },
            &variables);
    }
    moved = false;
    for (size_t i = 0; i < n; i++) {
        gang *of;
        bool over = true;

        b = all[order() % 2 ? n - 1 - i : i];
        if (b->ended)
            continue;
        block_run();
        of = b->gang;
        for (block *o : of->blocks)
            over &= o->ended;
        if (over)
            gang_end(of);
        b = NULL;
    }
    return moved;
}
} // namespace emulated
