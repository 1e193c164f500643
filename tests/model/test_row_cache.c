#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdbool.h>
#include <string.h>

#include "src/base/rng.h"
#include "src/model/row_cache.h"

#define ROW 264

/* A row that says where it lies. */
static void fill(unsigned char row[ROW], uint64_t place)
{
    for (int i = 0; i < ROW; i++)
        row[i] = (unsigned char)(place * 31 + (uint64_t)i);
}

static bool holds(struct row_cache *c, uint64_t place)
{
    const void *row = row_cache_find(c, place);
    unsigned char want[ROW];

    fill(want, place);
    if (row)
        cr_assert(memcmp(row, want, ROW) == 0, "row %lu is another", (unsigned long)place);
    return row != NULL;
}

static void put(struct row_cache *c, uint64_t place)
{
    unsigned char row[ROW];

    fill(row, place);
    row_cache_put(c, place, row, ROW);
}

static const struct bound_case {
    size_t bound;
    uint64_t rows;
    uint32_t least, most; /* entries */
} bounds[] = {
    { 0, 1000, 0, 0 },
    { ROW, 1000, 0, 0 },
    { 2 * ROW, 1000, 1, 1 },
    { 10 * ROW, 1000, 8, 9 },
    { 1 << 20, 1000, 1000, 1000 }, /* all there are */
    { 1 << 20, 1000000, 3600, 3900 },
    { 256 << 20, UINT64_MAX, 900000, 1000000 },
};

Test(row_cache, the_bound_is_never_passed_and_well_used)
{
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        const struct bound_case *b = &bounds[i];
        struct row_cache *c;

        cr_assert(eq(int, row_cache_open(b->bound, ROW, b->rows, &c), 0));
        cr_expect(row_cache_bytes(c) <= b->bound, "%zu bytes of %zu", row_cache_bytes(c), b->bound);
        cr_expect(row_cache_slots(c) >= b->least && row_cache_slots(c) <= b->most,
                  "%zu: %u entries", b->bound, row_cache_slots(c));
        for (uint64_t p = 0; p < 3 * (uint64_t)row_cache_slots(c) && p < 10000; p++)
            put(c, p * ROW);
        row_cache_close(c);
    }
}

Test(row_cache, no_bound_is_passed_by_a_byte)
{
    for (size_t row = 1; row < 70; row += 17)
        for (size_t bound = 0; bound < 3000; bound++) {
            struct row_cache *c;

            cr_assert(eq(int, row_cache_open(bound, row, UINT64_MAX, &c), 0));
            cr_assert(le(sz, row_cache_bytes(c), bound), "rows of %zu", row);
            row_cache_close(c);
        }
}

/* Whatever was put and found in whatever order: a row is its own or not there, no more rows are
 * there than entries, and the newest is. */
Test(row_cache, rows_are_their_own)
{
    struct row_cache *c;
    int there = 0;

    cr_assert(eq(int, row_cache_open(40 * ROW, ROW, 1000, &c), 0));
    for (uint32_t i = 0; i < 100000; i++) {
        struct philox p = philox4x32(i, 0, 0, 0, 5);

        if (p.w[0] % 2 == 0) {
            holds(c, p.w[1] % 120 * ROW);
        } else {
            put(c, p.w[1] % 120 * ROW);
            cr_assert(holds(c, p.w[1] % 120 * ROW));
        }
    }
    for (uint64_t place = 0; place < 120; place++)
        there += holds(c, place * ROW);
    cr_expect(eq(int, there, (int)row_cache_slots(c)));
    row_cache_close(c);
}

/* What is found again and again outlives a long prompt. */
Test(row_cache, rows_in_use_stay)
{
    struct row_cache *c;
    int stayed = 0;

    cr_assert(eq(int, row_cache_open(60 * ROW, ROW, 100000, &c), 0));
    for (uint64_t i = 0; i < 10; i++)
        put(c, i * ROW);
    for (uint64_t i = 1000; i < 5000; i++) {
        put(c, i * ROW);
        holds(c, i % 10 * ROW);
    }
    for (uint64_t i = 0; i < 10; i++)
        stayed += holds(c, i * ROW);
    cr_expect(eq(int, stayed, 10));
    row_cache_close(c);
}
