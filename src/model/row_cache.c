/* row_cache.c owns one mapping: index, entries and rows, in this order. Pages are taken as rows
 * come. */
#include "src/model/row_cache.h"

#include "src/base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NONE UINT32_MAX
#define SLOTS_MOST ((uint64_t)1 << 30)

struct entry {
    uint64_t place;
    uint32_t next; /* in the same chain */
    uint32_t found;
};

struct row_cache {
    size_t row_bytes, bytes;
    uint32_t slots, used, hand;
    uint32_t chains;     /* a power of two */
    uint32_t *chain;     /* [chains] first entry, one more than its number so that zero is none */
    struct entry *entry; /* [slots] */
    unsigned char *row;  /* [slots][row_bytes] */
};

static uint32_t chains_for(uint64_t slots)
{
    uint32_t n = 1;

    while (n < slots)
        n *= 2;
    return n;
}

static uint64_t bytes_for(uint64_t slots, size_t row_bytes)
{
    return chains_for(slots) * sizeof(uint32_t) + slots * (sizeof(struct entry) + row_bytes) +
           sizeof(struct entry); /* alignment of the entries */
}

/* The most entries that fit: whole powers of two of the index make the sum uneven, so look for
 * it. */
static uint64_t slots_for(size_t bound, size_t row_bytes, uint64_t rows)
{
    uint64_t lo = 0, hi = bound / (sizeof(struct entry) + row_bytes);

    if (hi > rows)
        hi = rows;
    if (hi > SLOTS_MOST)
        hi = SLOTS_MOST;
    while (lo < hi) {
        uint64_t mid = hi - (hi - lo) / 2;

        if (bytes_for(mid, row_bytes) <= bound)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

int row_cache_open(size_t bound, size_t row_bytes, uint64_t rows, struct row_cache **out)
{
    struct row_cache *c = calloc(1, sizeof(*c));
    size_t index;
    void *map;

    assert(row_bytes > 0);
    if (!c)
        return fail(-ENOMEM, "row cache: no memory");
    c->row_bytes = row_bytes;
    c->slots = (uint32_t)slots_for(bound, row_bytes, rows);
    if (c->slots == 0) {
        *out = c;
        return 0;
    }
    c->chains = chains_for(c->slots);
    c->bytes = (size_t)bytes_for(c->slots, row_bytes);
    map = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
    if (map == MAP_FAILED) {
        int r = fail(-ENOMEM, "row cache: no memory for %zu bytes: %s", c->bytes, strerror(errno));

        free(c);
        return r;
    }
    /* Look-ups are all over the index. Without large pages they are slower and nothing else. */
    (void)madvise(map, c->bytes, MADV_HUGEPAGE);
    index = c->chains * sizeof(uint32_t);
    index = (index + sizeof(struct entry) - 1) / sizeof(struct entry) * sizeof(struct entry);
    c->chain = map;
    c->entry = (struct entry *)(void *)((unsigned char *)map + index);
    c->row = (unsigned char *)(c->entry + c->slots);
    *out = c;
    return 0;
}

void row_cache_close(struct row_cache *c)
{
    if (!c)
        return;
    if (c->slots > 0)
        munmap(c->chain, c->bytes);
    free(c);
}

static uint32_t *chain_of(const struct row_cache *c, uint64_t place)
{
    return &c->chain[(place * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (c->chains - 1)];
}

static uint32_t find(const struct row_cache *c, uint64_t place)
{
    if (c->slots == 0)
        return NONE;
    for (uint32_t i = *chain_of(c, place); i != 0; i = c->entry[i - 1].next)
        if (c->entry[i - 1].place == place)
            return i - 1;
    return NONE;
}

void row_cache_hint(const struct row_cache *c, uint64_t place, int step)
{
    uint32_t i;

    if (c->slots == 0)
        return;
    if (step == 0) {
        __builtin_prefetch(chain_of(c, place));
        return;
    }
    i = *chain_of(c, place);
    if (i != 0)
        __builtin_prefetch(&c->entry[i - 1]);
}

const void *row_cache_find(struct row_cache *c, uint64_t place)
{
    uint32_t i = find(c, place);

    if (i == NONE)
        return NULL;
    c->entry[i].found = 1;
    return c->row + (size_t)i * c->row_bytes;
}

static void unlink_entry(struct row_cache *c, uint32_t i)
{
    uint32_t *at = chain_of(c, c->entry[i].place);

    while (*at != i + 1)
        at = &c->entry[*at - 1].next;
    *at = c->entry[i].next;
}

/* A free entry, or the first behind the hand that was not found since the hand was there. */
static uint32_t make_room(struct row_cache *c)
{
    uint32_t i;

    if (c->used < c->slots)
        return c->used++;
    while (c->entry[c->hand].found) {
        c->entry[c->hand].found = 0;
        c->hand = (c->hand + 1) % c->slots;
    }
    i = c->hand;
    c->hand = (c->hand + 1) % c->slots;
    unlink_entry(c, i);
    return i;
}

void row_cache_put(struct row_cache *c, uint64_t place, const void *row, size_t bytes)
{
    uint32_t *at, i;

    assert(bytes <= c->row_bytes);
    if (c->slots == 0 || find(c, place) != NONE)
        return;
    i = make_room(c);
    at = chain_of(c, place);
    c->entry[i] = (struct entry){ .place = place, .next = *at };
    *at = i + 1;
    memcpy(c->row + (size_t)i * c->row_bytes, row, bytes);
}

size_t row_cache_bytes(const struct row_cache *c)
{
    return c->bytes;
}

uint32_t row_cache_slots(const struct row_cache *c)
{
    return c->slots;
}
