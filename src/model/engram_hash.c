/* engram_hash.c owns the constants of the Engram hash: NumPy's generator, and primes. */
#include "src/model/engram_hash.h"
#include "src/base/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define LAYER_SEED 10007
#define POOL 4 /* words of a SeedSequence */

typedef unsigned __int128 u128;

struct engram_hash {
    struct engram_spec spec;
    int64_t mult[ENGRAM_TABLES_MAX][ENGRAM_ORDERS_MAX];
    int64_t prime[ENGRAM_TABLES_MAX][ENGRAM_COLUMNS_MAX];
    int64_t offset[ENGRAM_TABLES_MAX][ENGRAM_COLUMNS_MAX];
};

/* PCG64: a 128-bit congruential generator with XSL-RR output. */
struct pcg64 {
    u128 state, increment;
};

static uint32_t seed_hash(uint32_t value, uint32_t *constant, uint32_t factor)
{
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

/* NumPy's SeedSequence of a seed below 2^32: 8 words. */
static void seed_words(uint32_t seed, uint32_t out[8])
{
    uint32_t pool[POOL] = { seed }, constant = 0x43b0d7e5;

    for (int i = 0; i < POOL; i++)
        pool[i] = seed_hash(pool[i], &constant, 0x931e8875);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++) {
            uint32_t mixed;

            if (from == to)
                continue;
            mixed =
                0xca01f9dd * pool[to] - 0x4973f715 * seed_hash(pool[from], &constant, 0x931e8875);
            pool[to] = mixed ^ mixed >> 16;
        }
    constant = 0x8b51f9dd;
    for (int i = 0; i < 8; i++)
        out[i] = seed_hash(pool[i % POOL], &constant, 0x58f38ded);
}

static void pcg64_step(struct pcg64 *g)
{
    const u128 factor = (u128)0x2360ed051fc65da4 << 64 | 0x4385df649fccf645;

    g->state = g->state * factor + g->increment;
}

static void pcg64_seed(struct pcg64 *g, uint32_t seed)
{
    uint32_t w[8];
    u128 v[4];

    seed_words(seed, w);
    for (int i = 0; i < 4; i++)
        v[i] = (uint64_t)w[2 * i + 1] << 32 | w[2 * i];
    g->state = 0;
    g->increment = (v[2] << 64 | v[3]) << 1 | 1;
    pcg64_step(g);
    g->state += v[0] << 64 | v[1];
    pcg64_step(g);
}

static uint64_t pcg64_next(struct pcg64 *g)
{
    uint64_t x;
    unsigned turn;

    pcg64_step(g);
    x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    turn = (unsigned)(g->state >> 122);
    return x >> turn | x << (-turn & 63);
}

/* Uniform in 0 .. bound - 1, as NumPy draws it. */
static uint64_t pcg64_below(struct pcg64 *g, uint64_t bound)
{
    uint64_t reject = -bound % bound; /* 2^64 mod bound */
    u128 product;

    do
        product = (u128)pcg64_next(g) * bound;
    while ((uint64_t)product < reject);
    return (uint64_t)(product >> 64);
}

static bool is_prime(int64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

static int check_range(const char *key, int value, int low, int high)
{
    if (value >= low && value <= high)
        return 0;
    return fail(-EINVAL, "config: %s: %d, want %d .. %d", key, value, low, high);
}

static int check(const struct engram_spec *s)
{
    int r = check_range("engram_layer_ids: count", s->layers, 1, ENGRAM_TABLES_MAX);

    if (r >= 0)
        r = check_range("engram_max_ngram_size", s->orders, 2, ENGRAM_ORDERS_MAX);
    if (r >= 0)
        r = check_range("engram_n_heads", s->heads, 1, ENGRAM_HEADS_MAX);
    if (r >= 0)
        r = check_range("engram_vocab_size", s->vocab, 1, INT32_MAX);
    if (r >= 0)
        r = check_range("engram_compressed_vocab_size", s->classes, 1, 1 << 24);
    for (int t = 0; r >= 0 && t < s->layers; t++)
        r = check_range("engram_layer_ids", s->layer[t], t > 0 ? s->layer[t - 1] + 1 : 0,
                        INT32_MAX / LAYER_SEED);
    return r;
}

static void draw_multipliers(struct engram_hash *h, int t)
{
    uint64_t bound = (uint64_t)(INT64_MAX / h->spec.classes) / 2;
    struct pcg64 g;

    pcg64_seed(&g, (uint32_t)h->spec.layer[t] * LAYER_SEED);
    for (int s = 0; s < h->spec.orders; s++)
        h->mult[t][s] = (int64_t)(2 * pcg64_below(&g, bound) + 1);
}

/* *last is the prime of the column before, in this table or the one before. */
static int choose_primes(struct engram_hash *h, int t, int64_t *last)
{
    int64_t rows = 0;

    for (int c = 0; c < (h->spec.orders - 1) * h->spec.heads; c++) {
        do
            ++*last;
        while (!is_prime(*last));
        h->prime[t][c] = *last;
        h->offset[t][c] = rows;
        rows += *last;
        if (rows > INT32_MAX)
            return fail(-EINVAL, "config: engram_vocab_size: %d makes a table of 2^31 rows",
                        h->spec.vocab);
    }
    return 0;
}

int engram_hash_open(const struct engram_spec *spec, struct engram_hash **out)
{
    struct engram_hash *h;
    int64_t last = (int64_t)spec->vocab - 1;
    int r = check(spec);

    if (r < 0)
        return r;
    h = (struct engram_hash *)calloc(1, sizeof(*h));
    if (!h)
        return fail(-ENOMEM, "no memory for an engram hash");
    h->spec = *spec;
    for (int t = 0; r >= 0 && t < spec->layers; t++) {
        draw_multipliers(h, t);
        r = choose_primes(h, t, &last);
    }
    if (r < 0) {
        engram_hash_close(h);
        return r;
    }
    *out = h;
    return 0;
}

void engram_hash_close(struct engram_hash *h)
{
    free(h);
}

const int64_t *engram_hash_primes(const struct engram_hash *h, int t)
{
    return h->prime[t];
}

const int64_t *engram_hash_offsets(const struct engram_hash *h, int t)
{
    return h->offset[t];
}

const int64_t *engram_hash_multipliers(const struct engram_hash *h, int t)
{
    return h->mult[t];
}

void engram_hash_rows(const struct engram_hash *h, int t, const int32_t *class, int32_t pad,
                      int64_t *row)
{
    int heads = h->spec.heads;
    bool dead = false;
    int64_t roll = 0;

    for (int s = 0; s < h->spec.orders; s++) {
        dead = dead || class[s] < 0;
        roll ^= (dead ? pad : class[s]) * h->mult[t][s];
        for (int c = (s - 1) * heads; s > 0 && c < s * heads; c++)
            row[c] = roll % h->prime[t][c] + h->offset[t][c];
    }
}
