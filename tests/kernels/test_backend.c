#include <errno.h>

#include "tests/base/capture.h"
#include "tests/kernels/bed.h"
#include "tests/kernels/refusals.h"

static const char *const names[] = { "ref", "cpu" };

/* What holds for every backend that opens here. */
Test(backend, memory_and_queues)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct backend_ops *ops;
        struct device *d;
        struct queue *q;
        unsigned char in[300], out[300];
        const void *w;
        void *p, *empty;

        cr_assert(eq(int, backend_find(names[i], &ops), 0));
        cr_assert(eq(str, (char *)ops->name, (char *)names[i]));
        cr_assert(eq(int, ops->open(0, 2, &d), 0));
        cr_expect(eq(int, d->workers, 2));
        cr_assert(eq(int, ops->queue_open(d, &q), 0));
        cr_assert(eq(int, ops->alloc(d, sizeof(in), &p), 0));
        cr_expect(eq(int, (int)((uintptr_t)p % 256), 0));
        ops->get(q, out, p, sizeof(out));
        cr_expect(eq(int, ops->wait(q), 0));
        for (size_t k = 0; k < sizeof(out); k++) {
            cr_expect(eq(int, out[k], 0));
            in[k] = (unsigned char)(k * 7);
        }
        ops->put(q, p, in, sizeof(in));
        ops->get(q, out, p, sizeof(out));
        cr_expect(eq(int, ops->wait(q), 0));
        cr_expect(eq(int, memcmp(in, out, sizeof(in)), 0));
        cr_expect(eq(int, ops->alloc(d, 0, &empty), 0));
        cr_expect(eq(int, ops->weights(d, in, sizeof(in), &w), 0));
        if (ops->caps & BACKEND_HOST_MEMORY)
            cr_expect(w == in);
        ops->unweights(d, w);
        ops->free(d, empty);
        ops->free(d, p);
        ops->free(d, NULL);
        ops->queue_close(q);
        ops->close(d);
        ops->close(NULL);
    }
}

Test(backend, every_op_is_there)
{
    struct bed b;

    bed_open(&b, 1);
#define EXPECT_ENTRY(name) cr_expect(b.op->name != NULL, #name);
    OP_LIST(EXPECT_ENTRY)
    bed_close(&b);
}

static void expect_refusal(const char *call, int r)
{
    cr_expect(eq(int, r, -EINVAL), "%s", call);
}

Test(backend, bad_arguments_fail_the_queue)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        struct bed b;
        char *m, any = 0;

        bed_open_backend(&b, names[i], 2);
        m = bed_take(&b, REFUSALS_BYTES);
        refusals_run(b.q, m, expect_refusal);
        for (size_t k = 0; k < REFUSALS_BYTES; k++)
            any |= m[k];
        cr_expect(any == 0, "%s: nothing is written", names[i]);
        bed_close(&b);
    }
}

Test(backend, too_much_memory_is_an_error_with_the_bytes)
{
    struct bed b;
    struct capture c;
    void *p = &b;

    capture_start(&c);
    bed_open(&b, 1);
    cr_expect(eq(int, b.d->ops->alloc(b.d, (size_t)1 << 63, &p), -ENOMEM));
    cr_expect(strstr(c.last, "9223372036854775808") != NULL, "%s", c.last);
    cr_expect(eq(int, b.d->ops->alloc(b.d, SIZE_MAX, &p), -ENOMEM));
    cr_expect(p == &b);
    bed_close(&b);
}

Test(backend, a_queue_keeps_its_first_error_and_ignores_what_follows)
{
    struct bed b;
    struct capture c;
    float x = 1, y = 2;

    capture_start(&c);
    bed_open(&b, 1);
    queue_fail(b.q, -EBADMSG, "first %d", 1);
    queue_fail(b.q, -EINVAL, "second");
    cr_expect(eq(int, c.lines, 1));
    cr_expect(strstr(c.last, "first 1") != NULL, "%s", c.last);
    b.op->add(b.q, &(struct add_args){ .x = &x, .y = &y, .rows = 1, .cols = 1 });
    b.d->ops->put(b.q, &y, &x, sizeof(y));
    cr_expect(eq(flt, y, 2));
    cr_expect(eq(int, bed_wait(&b), -EBADMSG));
    cr_expect(eq(int, bed_wait(&b), 0));
    b.op->add(b.q, &(struct add_args){ .x = &x, .y = &y, .rows = 1, .cols = 1 });
    cr_expect(eq(flt, y, 3));
    bed_close(&b);
}

/* ---- bytes that come late ---- */

struct late {
    int64_t flag, will_be;
    int calls;
};

static void late_fetch(void *arg)
{
    struct late *l = arg;

    l->calls++;
    l->flag = l->will_be;
}

Test(backend, what_a_queue_waits_for_is_fetched_or_its_error)
{
    static const struct {
        int before; /* the queue's error */
        int64_t flag;
        int calls, err;
        float y;
    } cases[] = {
        { 0, 1, 1, 0, 7 },
        { 0, -EIO, 1, -EIO, 3 },
        { -EBADMSG, 1, 0, -EBADMSG, 3 },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct late l = { .will_be = cases[i].flag };
        float src = 7, y = 3;
        struct capture c;
        struct bed b;

        capture_start(&c);
        bed_open(&b, 1);
        if (cases[i].before)
            queue_fail(b.q, cases[i].before, "before");
        b.op->bring(b.q, &(struct bring_args){ .y = &y,
                                               .src = &src,
                                               .bytes = sizeof(y),
                                               .flag = &l.flag,
                                               .fetch = late_fetch,
                                               .arg = &l,
                                               .limit_ns = -1 });
        cr_expect(eq(int, l.calls, cases[i].calls), "case %zu", i);
        cr_expect(eq(flt, y, cases[i].y), "case %zu", i);
        cr_expect(eq(int, bed_wait(&b), cases[i].err), "case %zu", i);
        bed_close(&b);
    }
}

Test(backend, auto_is_the_last_that_opens_and_other_names_are_refused)
{
    static const char *const built[] = { "ref", "cpu", "cuda" };
    const struct backend_ops *ops = NULL, *last = NULL;
    struct capture c;
    char why[160];

    capture_start(&c);
    for (size_t i = 0; i < COUNT(built); i++) {
        cr_assert(eq(int, backend_find(built[i], &ops), 0));
        last = ops->probe(0, why, sizeof(why)) == 0 ? ops : last;
    }
    cr_expect(eq(int, backend_find("auto", &ops), 0));
    cr_expect(ops == last, "%s", ops->name);
    ops = NULL;
    cr_expect(eq(int, backend_find("abacus", &ops), -ENODEV));
    cr_expect(ops == NULL);
    cr_expect(strstr(c.last, "abacus") && strstr(c.last, ": ref, cpu, cuda"), "%s", c.last);
}
