/* The queue of the CUDA backend: copies whose source is gone, errors that stay until the wait, what
 * kernels find, captured windows. */
#include "tests/device/lab.h"

#include <errno.h>

#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "tests/device/parts.h"
#include "tests/kernels/refusals.h"

static struct lab lab;

#define CHECK(c)                                                                                   \
    do {                                                                                           \
        if (!(c))                                                                                  \
            lab_fail(&lab, "line %d: %s", __LINE__, #c);                                           \
    } while (0)

static const struct backend_ops *b;
static struct device *d;
static struct queue *q;

static void *take(size_t bytes)
{
    void *p = NULL;

    CHECK(b->alloc(d, bytes, &p) == 0);
    return p;
}

static void put_stack(void *dst, int32_t v)
{
    b->put(q, dst, &v, sizeof(v));
}

static void memory(void)
{
    uint64_t before = d->allocations;
    char *p = take(1000), *empty = take(0), back[1000], *large;
    const void *w;
    void *no = p;

    CHECK(d->name[0] && strcmp(d->name, b->name) != 0);
    CHECK(d->allocations > before);
    b->get(q, back, p, sizeof(back));
    CHECK(b->wait(q) == 0);
    for (size_t i = 0; i < sizeof(back); i++)
        CHECK(back[i] == 0);
    CHECK((uintptr_t)p % 256 == 0);
    if (!lab.quick) { /* what failed is nothing to the copies below */
        CHECK(b->alloc(d, (size_t)1 << 60, &no) == -ENOMEM && no == p);
        CHECK(b->host_alloc(d, (size_t)1 << 60, &no) < 0 && no == p);
    }

    large = malloc(37 << 20);
    for (size_t i = 0; i < (37 << 20); i++)
        large[i] = (char)(i * 7 >> 3);
    CHECK(b->weights(d, large, 37 << 20, &w) == 0);
    memset(back, 0, sizeof(back));
    b->get(q, back, (const char *)w + (20 << 20) + 5, sizeof(back));
    CHECK(b->wait(q) == 0 && memcmp(back, large + (20 << 20) + 5, sizeof(back)) == 0);
    b->unweights(d, w);
    free(large);
    b->free(d, p);
    b->free(d, empty);
    b->free(d, NULL);
}

/* Sources on the stack, more than the ring holds, and sizes that go directly. */
static void copies(void)
{
    int n = 200000;
    int32_t *p = take(sizeof(int32_t) * (size_t)n), *back = calloc((size_t)n, sizeof(*back));
    int wrong = 0;

    for (int i = 0; i < 1000; i++)
        put_stack(p + i, i * 3);
    for (int i = 0; i < 1000; i++)
        b->get(q, back + i, p + i, sizeof(*back));
    CHECK(b->wait(q) == 0);
    for (int i = 0; i < 1000; i++)
        wrong += back[i] != i * 3;
    CHECK(wrong == 0);
    for (int round = 0; round < 40; round++) {
        int32_t *from = malloc(sizeof(*from) * (size_t)n);
        int len = 1 + (round * 40503 + 7) % n;

        for (int i = 0; i < len; i++)
            from[i] = i ^ round;
        b->put(q, p, from, sizeof(*from) * (size_t)len);
        memset(from, 0xee, sizeof(*from) * (size_t)len);
        free(from);
        b->get(q, back, p, sizeof(*back) * (size_t)len);
        if (round % 3 == 0) {
            CHECK(b->wait(q) == 0);
            for (int i = 0; i < len; i++)
                wrong += back[i] != (i ^ round);
        }
    }
    CHECK(b->wait(q) == 0 && wrong == 0);

    /* what was asked for first comes from where later copies have been */
    put_stack(p, 12345);
    b->get(q, back, p, sizeof(*back));
    for (int i = 0; i < 8; i++)
        b->put(q, p, back + 1, sizeof(*p) * (size_t)(n - 1));
    CHECK(b->wait(q) == 0 && back[0] == 12345);
    free(back);
    b->free(d, p);
}

static void sticky(void)
{
    float *x = take(64), *y = take(64), back[16];
    struct add_args add = { .x = x, .y = y, .rows = 1, .cols = 16 };
    struct mat odd = { .data = x, .dtype = DTYPE_F32, .rows = 5, .cols = 3 };
    float ones[16];

    for (int i = 0; i < 16; i++)
        ones[i] = 1;
    b->put(q, x, ones, sizeof(ones));
    b->op->matmul(q, &(struct matmul_args){ .w = &odd, .x = x, .y = y, .rows = 1, .groups = 2 });
    b->op->add(q, &add); /* ignored */
    b->put(q, y, ones, sizeof(ones));
    CHECK(b->wait(q) == -EINVAL);
    CHECK(b->wait(q) == 0);
    b->op->add(q, &add);
    b->get(q, back, y, sizeof(back));
    CHECK(b->wait(q) == 0 && back[0] == 1 && back[15] == 1);
    b->free(d, x);
    b->free(d, y);
}

static void expect_refusal(const char *call, int r)
{
    if (r != -EINVAL)
        lab_fail(&lab, "%s: %d", call, r);
}

static void refused(void)
{
    void *m = take(REFUSALS_BYTES);

    refusals_run(q, m, expect_refusal);
    b->free(d, m);
}

/* What only a kernel can see: the first bad row is named, nothing is written, nothing is committed.
 */
static void found(void)
{
    struct row_info info[20], *d_info = take(sizeof(info));
    struct segment seg = { 1, 0, 3, 0 }, *d_seg = take(sizeof(seg));
    struct slot_head head[SLOTS_MAX] = { { .pos = 5 }, { .pos = 50, .next = 9 } };
    struct slot_head *d_head = take(sizeof(head)), after[SLOTS_MAX];
    struct sampler sampler[SLOTS_MAX] = { { .temperature = 0 } },
                   *d_sampler = take(sizeof(sampler));
    struct candidate best[20], *d_best = take(sizeof(best));
    int32_t *ints = take(sizeof(int32_t) * 128), ok[2];
    float *y = take(sizeof(float) * 20 * 8), *rows = take(sizeof(float) * 10 * 8), back[160];
    void *scratch = take(choose_scratch(100) * (size_t)d->workers);
    struct table t = { rows, DTYPE_F32, 10, 8 };
    struct commit_args commit = {
        .seg = d_seg, .n_ok = ints, .next = ints + 8, .head = d_head, .segs = 1
    };
    struct accept_args accept = { .seg = d_seg,
                                  .tok = ints + 16,
                                  .choice = ints + 48,
                                  .n_ok = ints,
                                  .next = ints + 8,
                                  .segs = 1 };
    struct choose_args choose = { .best = d_best,
                                  .sampler = d_sampler,
                                  .info = d_info,
                                  .choice = ints + 48,
                                  .scratch = scratch,
                                  .width = { 100 },
                                  .ranks = 1,
                                  .rows = 20 };

    for (int r = 0; r < 20; r++) {
        info[r] = (struct row_info){ .slot = r % 2,
                                     .pos = 100 + r,
                                     .tok = r == 7 || r == 13 ? 10 : r % 10 };
        best[r] = (struct candidate){ r == 11 || r == 18 ? NAN : 1, r == 11 || r == 18 ? -1 : r };
    }
    b->put(q, d_info, info, sizeof(info));
    b->put(q, d_seg, &seg, sizeof(seg));
    b->put(q, d_head, head, sizeof(head));
    b->put(q, d_sampler, sampler, sizeof(sampler));
    b->put(q, d_best, best, sizeof(best));
    b->op->embed(
        q, &(struct embed_args){ .table = &t, .info = d_info, .y = y, .rows = 20, .copies = 1 });
    CHECK(b->wait(q) == -EINVAL);
    b->op->embed(
        q, &(struct embed_args){ .table = &t, .info = d_info, .y = y, .rows = 7, .copies = 1 });
    b->get(q, back, y, sizeof(back));
    CHECK(b->wait(q) == 0);

    /* a row without a finite logit: slot, row and position are in the line; no commit */
    b->op->choose(q, &choose);
    b->op->accept(q, &accept);
    ok[0] = 3;
    b->put(q, ints, ok, sizeof(int32_t));
    b->op->commit(q, &commit);
    b->get(q, after, d_head, sizeof(after));
    CHECK(b->wait(q) == -EBADMSG);
    CHECK(memcmp(after, head, sizeof(head)) == 0);
    /* the next round is not disturbed */
    choose.rows = 11;
    b->op->choose(q, &choose);
    b->op->commit(q, &commit);
    b->get(q, after, d_head, sizeof(after));
    CHECK(b->wait(q) == 0 && after[1].pos == 53);
    b->free(d, d_info), b->free(d, d_seg), b->free(d, d_head), b->free(d, d_sampler);
    b->free(d, d_best), b->free(d, ints), b->free(d, y), b->free(d, rows), b->free(d, scratch);
}

/* A captured sequence: puts are read again at each launch, gets arrive by the wait, and what lies
 * in device memory may change between launches. */
static void graphs(void)
{
    float *x = take(64), *y = take(64), in[16], out[16], other[16];
    struct add_args add = { .x = x, .y = y, .rows = 1, .cols = 16 };
    struct graph *g = NULL, *second = NULL;
    struct mat odd = { .data = x, .dtype = DTYPE_F32, .rows = 5, .cols = 3 };

    CHECK(b->graph_end(q, &g) == -EINVAL);
    CHECK(b->graph_begin(q) == 0);
    CHECK(b->graph_begin(q) == -EINVAL);
    b->put(q, x, in, sizeof(in));
    b->op->add(q, &add);
    b->get(q, out, y, sizeof(out));
    CHECK(b->graph_end(q, &g) == 0);
    memset(out, 0, sizeof(out));
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < 16; i++)
            in[i] = (float)(round * 100 + i);
        b->graph_launch(q, g);
        memset(in, 0, sizeof(in)); /* a launch has read it */
    }
    CHECK(b->wait(q) == 0);
    CHECK(out[0] == 600 && out[15] == 645);
    for (int i = 0; i < 16; i++)
        other[i] = 1000;
    b->put(q, y, other, sizeof(other));
    b->graph_launch(q, g);
    CHECK(b->wait(q) == 0 && out[3] == 1000);

    /* errors inside end the capture and leave the queue usable */
    CHECK(b->graph_begin(q) == 0);
    b->op->matmul(q, &(struct matmul_args){ .w = &odd, .x = x, .y = y, .rows = 1, .groups = 2 });
    CHECK(b->graph_end(q, &second) == -EINVAL);
    CHECK(b->wait(q) == 0);
    CHECK(b->graph_begin(q) == 0);
    CHECK(b->wait(q) == -EINVAL); /* no wait inside */
    CHECK(b->graph_end(q, &second) == 0);
    b->graph_close(second);
    CHECK(b->graph_begin(q) == 0);
    for (int i = 0; i < 2000; i++)
        b->put(q, x, in, sizeof(in));
    CHECK(b->graph_end(q, &second) == -EINVAL); /* more copies than a graph has room for */
    b->graph_launch(q, g);
    CHECK(b->wait(q) == 0);
    b->graph_close(g);
    b->graph_close(NULL);

    /* a queue that has failed begins nothing, and launches nothing */
    memset(out, 0, sizeof(out));
    queue_fail(q, -EBADMSG, "before");
    CHECK(b->graph_begin(q) == -EBADMSG && b->wait(q) == -EBADMSG);
    CHECK(b->graph_end(q, &second) == -EINVAL);
    b->free(d, x), b->free(d, y);
}

#define LEN 4096
#define PUTS 32 /* and as many gets are what a captured window has room for */

/* Puts into places 16 values apart, and gets from there. */
static void queue_copies(int32_t *p, const int32_t *in, int32_t *out, int puts, int gets)
{
    for (int i = 0; i < puts; i++)
        b->put(q, p + 16 * i, in + i % PUTS, sizeof(*in));
    for (int i = 0; i < gets; i++)
        b->get(q, out + i % PUTS, p + 16 * i, sizeof(*out));
}

/* As many copies as there is room for, and one more; launches without a wait between them. */
static void many_copies(void)
{
    int32_t *p = take(sizeof(*p) * 16 * (PUTS + 1)), in[PUTS], out[PUTS];
    int32_t a[LEN], last[LEN], back[LEN];
    struct graph *both = NULL, *gets = NULL, *order = NULL, *no = NULL;
    void *wide = take(sizeof(a));

    CHECK(b->graph_begin(q) == 0);
    queue_copies(p, in, out, PUTS, PUTS);
    CHECK(b->graph_end(q, &both) == 0);
    CHECK(b->graph_begin(q) == 0);
    queue_copies(p, in, out, 0, PUTS);
    CHECK(b->graph_end(q, &gets) == 0);
    for (int more = 0; more < 2; more++) {
        CHECK(b->graph_begin(q) == 0);
        queue_copies(p, in, out, more ? PUTS + 1 : 1, more ? 1 : PUTS + 1);
        CHECK(b->graph_end(q, &no) == -EINVAL);
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < PUTS; i++)
            in[i] = 100 * round + i;
        memset(out, 0xff, sizeof(out));
        b->graph_launch(q, both);
        for (int i = 0; i < round; i++)
            b->graph_launch(q, gets);
        CHECK(b->wait(q) == 0 && memcmp(in, out, sizeof(in)) == 0);
    }
    memset(out, 0, sizeof(out));
    queue_fail(q, -EBADMSG, "before");
    b->graph_launch(q, both);
    CHECK(b->wait(q) == -EBADMSG && out[1] == 0);

    /* copies beside each other in a capture stay in their order */
    for (int i = 0; i < LEN; i++)
        a[i] = i, last[i] = -i;
    CHECK(b->graph_begin(q) == 0);
    b->put(q, wide, a, sizeof(a));
    b->put(q, wide, last, sizeof(last));
    b->get(q, back, wide, sizeof(back));
    b->put(q, wide, a, sizeof(a));
    CHECK(b->graph_end(q, &order) == 0);
    CHECK(q->nodes == 4); /* one kernel copies one way, and no place twice */
    for (int round = 0; round < 3; round++) {
        b->graph_launch(q, order);
        CHECK(b->wait(q) == 0 && memcmp(back, last, sizeof(back)) == 0);
    }
    b->graph_close(both), b->graph_close(gets), b->graph_close(order);
    b->free(d, p), b->free(d, wide);
}

/* ---- bytes that come late -------------------------------------------------------------------- */

#define LATE 5000
#define BRINGS 16 /* what a captured window has room for */

struct late {
    float *src;
    int64_t *flag, code; /* that fetch sets the flag to; 0: it leaves it */
    float value;
    int calls;
};

static void add(const float *x, float *y)
{
    b->op->add(q, &(struct add_args){ .x = x, .y = y, .rows = 1, .cols = LEN });
}

static void side(enum side_at at, int lane)
{
    b->op->side(q, &(struct side_args){ .at = at, .lane = lane });
}

/* Lane i doubles array i + 1 some times and takes array 0 in; then all are added up. The last
 * section is met by the end of the capture alone. */
static void queue_sections(float *const x[1 + SIDE_LANES], float *sum)
{
    for (int i = 0; i < SIDE_LANES; i++) {
        side(SIDE_BEGIN, i);
        for (int n = 0; n < 20; n++)
            add(x[1 + i], x[1 + i]);
        side(SIDE_END, i);
        side(SIDE_BEGIN, i); /* behind the one before */
        add(x[0], x[1 + i]);
        side(SIDE_END, i);
    }
    for (int i = 0; i < SIDE_LANES; i++) {
        side(SIDE_JOIN, i);
        add(x[1 + i], sum);
        side(SIDE_JOIN, i); /* nothing is left to meet */
    }
    side(SIDE_BEGIN, 0);
    add(sum, x[1]);
    side(SIDE_END, 0);
}

static void sections(void)
{
    float *x[2 + SIDE_LANES], host[LEN], out[2][2 + SIDE_LANES][LEN];
    struct graph *g = NULL;

    for (int i = 0; i < COUNT(x); i++)
        x[i] = take(sizeof(host));
    for (int captured = 0; captured < 2; captured++) {
        for (int i = 0; i < COUNT(x); i++) {
            for (int c = 0; c < LEN; c++)
                host[c] = (float)(c % (5 + i)) / 3;
            b->put(q, x[i], host, sizeof(host));
        }
        CHECK(b->wait(q) == 0);
        CHECK(!captured || b->graph_begin(q) == 0);
        queue_sections(x, x[1 + SIDE_LANES]);
        CHECK(!captured || b->graph_end(q, &g) == 0);
        if (g)
            b->graph_launch(q, g);
        for (int i = 0; i < COUNT(x); i++)
            b->get(q, out[captured][i], x[i], sizeof(host));
        CHECK(b->wait(q) == 0);
    }
    CHECK(memcmp(out[0], out[1], sizeof(out[0])) == 0);
    CHECK(out[1][1][7] != out[1][2][7]);
    b->graph_close(g);

    side(SIDE_JOIN, SIDE_LANES);
    CHECK(b->wait(q) == -EINVAL);
    CHECK(b->graph_begin(q) == 0);
    side(SIDE_BEGIN, 0);
    side(SIDE_BEGIN, 1); /* inside another one */
    CHECK(b->graph_end(q, &g) == -EINVAL);
    CHECK(b->graph_begin(q) == 0);
    side(SIDE_END, 0);
    CHECK(b->graph_end(q, &g) == -EINVAL);
    for (int i = 0; i < COUNT(x); i++)
        b->free(d, x[i]);
}

/* Weights that are asked for ahead are nobody's result; the last range is cut down to whole
 * units. */
static void ahead(void)
{
    float *x = take(LEN * sizeof(*x)), host[LEN], out[LEN];
    struct prefetch_args a = { .of = { { x, 0 }, { x, LEN }, { x, LEN * sizeof(*x) - 2 } },
                               .n = 3,
                               .rate = 100 };
    struct graph *g = NULL;

    for (int c = 0; c < LEN; c++)
        host[c] = (float)c;
    b->put(q, x, host, sizeof(host));
    CHECK(b->wait(q) == 0);
    CHECK(b->graph_begin(q) == 0);
    side(SIDE_BEGIN, 0);
    b->op->prefetch(q, &a);
    side(SIDE_END, 0);
    add(x, x);
    CHECK(b->graph_end(q, &g) == 0);
    CHECK(q->nodes == 2);
    b->graph_launch(q, g);
    b->op->prefetch(q, &a); /* beside nothing */
    b->get(q, out, x, sizeof(out));
    CHECK(b->wait(q) == 0);
    for (int c = 0; c < LEN; c++)
        CHECK(out[c] == 2 * host[c]);
    a.rate = 0;
    b->op->prefetch(q, &a);
    CHECK(b->wait(q) == -EINVAL);
    a.rate = 1, a.n = PREFETCH_MAX + 1;
    b->op->prefetch(q, &a);
    CHECK(b->wait(q) == -EINVAL);
    b->graph_close(g);
    b->free(d, x);
}

static void late_fetch(void *arg)
{
    struct late *l = arg;

    if (*l->flag != 0)
        return;
    clock_sleep(50 * NS_PER_MS);
    for (int i = 0; i < LATE; i++)
        l->src[i] = l->value + (float)i;
    l->calls++;
    __atomic_store_n(l->flag, l->code, __ATOMIC_RELEASE);
}

/* y = src, twice as much in z; out is z. */
static void queue_late(const struct bring_args *bring, float *z, float *out)
{
    struct add_args add = { .x = bring->y, .y = z, .rows = 1, .cols = LATE };
    static const float none[LATE];

    b->put(q, z, none, sizeof(none));
    b->op->bring(q, bring);
    b->op->add(q, &add);
    b->op->add(q, &add);
    b->get(q, out, z, sizeof(float) * LATE);
}

static bool late_is(const float *out, float value)
{
    for (int i = 0; i < LATE; i++)
        if (out[i] != 2 * (value + (float)i))
            return false;
    return true;
}

/* A graph is launched before its bytes are there, and the device goes on with others meanwhile. */
static void late_graph(struct late *l, struct graph *g, float *out)
{
    struct queue *other;
    float *x = take(64), one[16] = { 1 };

    CHECK(b->queue_open(d, &other) == 0);
    for (int round = 1; round <= 4; round++) {
        *l->flag = 0;
        l->calls = 0;
        l->value = (float)(round * 1000);
        b->graph_launch(q, g);
        CHECK(l->calls == 0);
        b->put(other, x, one, sizeof(one));
        b->get(other, one, x, sizeof(one));
        CHECK(b->wait(other) == 0 && one[0] == 1);
        if (round == 3)
            b->graph_launch(q, g); /* of two, the second finds what the first has waited for */
        /* their copies share pinned memory: a launch waits for the one before */
        CHECK(l->calls == (round == 3));
        CHECK(b->wait(q) == 0 && l->calls == 1 && late_is(out, l->value));
    }
    b->queue_close(other);
    b->free(d, x);
}

static void brings(void)
{
    float *y = take(sizeof(float) * LATE), *z = take(sizeof(float) * LATE), out[LATE];
    void *src = NULL, *flag = NULL;
    struct late l = { .code = BRING_HERE };
    struct bring_args bring = {
        .y = y, .bytes = sizeof(float) * LATE, .fetch = late_fetch, .arg = &l, .limit_ns = -1
    };
    struct graph *g = NULL, *limited = NULL;
    int64_t begin;

    CHECK(b->host_alloc(d, sizeof(float) * LATE, &src) == 0);
    CHECK(b->host_alloc(d, sizeof(*l.flag), &flag) == 0);
    bring.src = l.src = src;
    bring.flag = l.flag = flag;

    l.value = 7;
    queue_late(&bring, z, out);
    CHECK(l.calls == 1);
    CHECK(b->wait(q) == 0 && late_is(out, 7));

    CHECK(b->graph_begin(q) == 0);
    queue_late(&bring, z, out);
    CHECK(b->graph_end(q, &g) == 0);
    CHECK(l.calls == 1);
    late_graph(&l, g, out);

    /* what cannot be had is the wait's error, eager and captured, and no harm to what follows */
    for (int captured = 0; captured < 2; captured++) {
        l.code = -ENODATA;
        *l.flag = 0;
        if (captured)
            b->graph_launch(q, g);
        else
            queue_late(&bring, z, out);
        CHECK(b->wait(q) == -ENODATA);
        CHECK(b->wait(q) == 0);
        l.code = BRING_HERE;
        l.value = 3;
        *l.flag = 0;
        b->graph_launch(q, g);
        CHECK(b->wait(q) == 0 && late_is(out, 3));
    }

    /* as many as there is room for, and one more; launched again before a wait */
    for (int more = 0; more < 2; more++) {
        struct graph *many = NULL;

        bring.bytes = sizeof(float);
        CHECK(b->graph_begin(q) == 0);
        for (int i = 0; i < BRINGS + more; i++)
            b->op->bring(q, &bring);
        CHECK(b->graph_end(q, &many) == (more ? -EINVAL : 0));
        *l.flag = 0;
        l.calls = 0;
        for (int i = 0; i < 4 && many; i++)
            b->graph_launch(q, many);
        CHECK(b->wait(q) == 0 && l.calls == !more);
        b->graph_close(many);
    }
    bring.bytes = sizeof(float) * LATE;

    /* a host that does not say anything */
    bring.limit_ns = 100 * NS_PER_MS;
    CHECK(b->graph_begin(q) == 0);
    queue_late(&bring, z, out);
    CHECK(b->graph_end(q, &limited) == 0);
    l.code = 0;
    *l.flag = 0;
    begin = clock_ns();
    b->graph_launch(q, limited);
    CHECK(b->wait(q) == -ETIMEDOUT);
    begin = clock_ns() - begin;
    CHECK(begin >= 100 * NS_PER_MS && begin < 1000 * NS_PER_MS);
    l.code = BRING_HERE;
    b->graph_launch(q, limited);
    CHECK(b->wait(q) == 0 && late_is(out, 3));

    b->graph_close(g), b->graph_close(limited);
    b->host_free(d, src), b->host_free(d, flag);
    b->free(d, y), b->free(d, z);
}

static void exchange_alone(void)
{
    int n = 5000;
    float *x = take(sizeof(float) * (size_t)n), *y = take(sizeof(float) * (size_t)n);
    float *in = malloc(sizeof(float) * (size_t)n), *want = malloc(sizeof(float) * (size_t)n);
    float *out = malloc(sizeof(float) * (size_t)n);
    const void *part[1];
    uint16_t *wire = malloc(sizeof(uint16_t) * (size_t)n);

    for (int i = 0; i < n; i++)
        in[i] = lab_uniform(&lab) * ldexpf(1, i % 60 - 30);
    in[7] = NAN, in[8] = INFINITY, in[9] = -0.0f;
    exchange_stage(EXCHANGE_BF16, wire, in, (size_t)n);
    part[0] = wire;
    exchange_add(EXCHANGE_BF16, part, 1, want, (size_t)n);
    b->put(q, x, in, sizeof(float) * (size_t)n);
    exchange_round(q, EXCHANGE_BF16, x, (size_t)n);
    exchange_copy(q, y, x, sizeof(float) * (size_t)n);
    b->get(q, out, y, sizeof(float) * (size_t)n);
    CHECK(b->wait(q) == 0 && memcmp(out, want, sizeof(float) * (size_t)n) == 0);
    b->free(d, x), b->free(d, y);
    free(in), free(want), free(out), free(wire);
}

/* The device's clock ascends; inspect lets numbers pass and ends the queue at one that is none. */
static void watched(void)
{
    enum { ROWS = 5, COLS = 300 };
    float in[ROWS * COLS], *x = take(sizeof(in));
    struct row_info info[ROWS] = { { .slot = 1, .pos = 7 } }, *d_info = take(sizeof(info));
    int64_t at[2], *d_at = take(sizeof(at));
    struct inspect_args a = { .x = x, .info = d_info, .rows = ROWS, .cols = COLS, .layer = 3 };

    for (int i = 0; i < ROWS * COLS; i++)
        in[i] = lab_uniform(&lab);
    b->put(q, x, in, sizeof(in));
    b->put(q, d_info, info, sizeof(info));
    b->op->stamp(q, &(struct stamp_args){ .at = d_at, .name = "begin" });
    b->op->inspect(q, &a);
    b->op->stamp(q, &(struct stamp_args){ .at = d_at + 1, .name = "end" });
    b->get(q, at, d_at, sizeof(at));
    CHECK(b->wait(q) == 0 && at[0] > 0 && at[1] >= at[0]);
    in[2 * COLS + 299] = INFINITY;
    b->put(q, x, in, sizeof(in));
    b->op->inspect(q, &a);
    CHECK(b->wait(q) == -EBADMSG);
    b->free(d, x), b->free(d, d_info), b->free(d, d_at);
}

/* What a library gathers between: parts of three ranks, of which the middle one is of other
 * values. */
static void parts_added(void)
{
    enum { WORLD = 3, N = 5001, STRIDE = N * 4 + 12 };
    char *parts = take(WORLD * STRIDE), *slot[WORLD];
    float *x = take(sizeof(float) * N), in[N], want[N], out[N];
    const void *part[WORLD];

    for (int w = EXCHANGE_BF16; w <= EXCHANGE_F32; w++) {
        for (int r = 0; r < WORLD; r++) {
            for (int i = 0; i < N; i++)
                in[i] = lab_uniform(&lab) * ldexpf(1, r == 1 ? 12 : i % 20 - 10);
            part[r] = slot[r] = malloc(sizeof(float) * N);
            exchange_stage(w, slot[r], in, N);
            b->put(q, x, in, sizeof(in));
            exchange_put(q, w, parts + r * STRIDE, x, N);
        }
        exchange_sum(q, w, parts, STRIDE, WORLD, x, N);
        b->get(q, out, x, sizeof(out));
        exchange_add(w, part, WORLD, want, N);
        CHECK(b->wait(q) == 0 && memcmp(out, want, sizeof(out)) == 0);
        for (int r = 0; r < WORLD; r++)
            free(slot[r]);
    }
    b->free(d, parts), b->free(d, x);
}

int queue_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = { { "memory", memory },
                  { "copies", copies },
                  { "sticky", sticky },
                  { "refused", refused },
                  { "found", found },
                  { "graphs", graphs },
                  { "many copies", many_copies },
                  { "brings", brings },
                  { "sections", sections },
                  { "ahead", ahead },
                  { "exchange", exchange_alone },
                  { "parts", parts_added },
                  { "watched", watched } };
    int r = lab_open(&lab);

    if (r != 0)
        return r;
    lab.quick = argc > 1 && strcmp(argv[1], "-q") == 0; /* no call that a checker would report */
    d = lab.dev;
    b = d->ops;
    q = lab.q;
    for (int i = 0; i < COUNT(parts); i++) {
        if (lab.quick && parts[i].run == brings) /* a checker lets nothing run beside a wait */
            continue;
        lab_begin(&lab, parts[i].name);
        parts[i].run();
        printf("queue %s done\n", parts[i].name);
        fflush(stdout);
    }
    printf("queue: %d failures\n", lab.failures);
    r = lab.failures != 0;
    lab_close(&lab);
    return r;
}
