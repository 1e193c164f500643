/* Frames of the plan over every link: order, credits, continuation, and what must be refused. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/plan_box.h"
#include "tests/transport/fault.h"
#include "tests/transport/wires.h"

enum { MAX_WORDS = 5000, MESSAGES = 600, FEW = 12 };

struct box_world {
    struct wires w;
    const char *kind;
    int ranks, wait_limit_ms, messages;
    enum fault fault; /* of rank 0's link to rank 1 */
    int fault_at;
    int64_t nap_ns; /* of the last follower before its first message */
    struct fault_link wrapped, peer;
    int result[WIRES_MAX], got[WIRES_MAX], wrong[WIRES_MAX];
    struct plan_box_stats stats[WIRES_MAX];
    atomic_int quiet; /* the follower, or the leader, has waited in vain */
};

static struct plan_box *box_open(struct box_world *t, int rank)
{
    struct plan_box_settings s = { .spin_us = 20,
                                   .wait_limit_ms = t->wait_limit_ms,
                                   .max_words = MAX_WORDS };
    struct plan_box *b;

    if (plan_box_open(t->w.link[rank], rank, t->ranks, &s, &b) < 0)
        abort();
    return b;
}

static void world_open(struct box_world *t, const char *kind)
{
    t->kind = kind;
    if (!t->ranks)
        t->ranks = 2;
    if (!t->wait_limit_ms)
        t->wait_limit_ms = 5000;
    if (!t->messages)
        t->messages = MESSAGES;
    wires_open(&t->w, kind, t->ranks, 2);
    if (t->fault) {
        fault_wrap(&t->wrapped, t->w.link[0][1], t->fault, t->fault_at);
        t->w.link[0][1] = &t->wrapped.base;
        fault_peer(&t->peer, t->w.link[1][0], &t->wrapped);
        t->w.link[1][0] = &t->peer.base;
    }
}

/* Message k of a run, known to both sides. */
static size_t words_of(int k)
{
    static const size_t n[] = { 0, 1, 3, 60, 61, 62, 122, 123, 700, MAX_WORDS };

    return k % 50 == 49 ? MAX_WORDS : n[k % 9];
}

static uint64_t word_of(int k, size_t i)
{
    return (uint64_t)k * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static void lead(struct box_world *t, struct plan_box *b)
{
    static uint64_t word[MAX_WORDS];

    for (int k = 0; k < t->messages && t->result[0] == 0; k++) {
        for (size_t i = 0; i < words_of(k); i++)
            word[i] = word_of(k, i);
        t->result[0] = plan_box_send(b, k % 256, (uint32_t)k * 7919, (unsigned)k % PLAN_MORE, word,
                                     words_of(k));
        t->got[0] += t->result[0] == 0;
    }
}

static void follow(struct box_world *t, int rank, struct plan_box *b)
{
    for (int k = 0; k < t->messages; k++) {
        struct plan_msg m;

        t->result[rank] = plan_box_recv(b, t->wait_limit_ms, &m);
        if (t->result[rank] != 0)
            return;
        t->got[rank]++;
        t->wrong[rank] += m.op != k % 256 || m.round != (uint32_t)k * 7919 || m.n != words_of(k) ||
                          m.flags != (unsigned)k % PLAN_MORE;
        for (size_t i = 0; i < m.n; i++)
            t->wrong[rank] += m.word[i] != word_of(k, i);
    }
}

static void run_rank(int rank, void *arg)
{
    struct box_world *t = arg;
    struct plan_box *b = box_open(t, rank);

    if (rank == t->ranks - 1)
        clock_sleep(t->nap_ns);
    if (rank == 0)
        lead(t, b);
    else
        follow(t, rank, b);
    t->stats[rank] = plan_box_stats(b);
    plan_box_close(b);
    if (t->result[rank] < 0)
        for (int p = 0; p < t->ranks; p++)
            if (t->w.link[rank][p])
                t->w.link[rank][p]->ops->abort(t->w.link[rank][p]);
}

Test(plan_box, messages_of_any_length_arrive_in_order, .timeout = 60)
{
    static const int worlds[] = { 2, 4 };

    for (int k = 0; wires_kinds[k]; k++) {
        for (int i = 0; i < 2; i++) {
            struct box_world t = { .ranks = worlds[i], .nap_ns = 20 * NS_PER_MS };

            world_open(&t, wires_kinds[k]);
            wires_run(t.ranks, run_rank, &t);
            wires_close(&t.w);
            for (int r = 0; r < t.ranks; r++) {
                cr_expect(eq(int, t.result[r], 0), "%s, %d ranks, rank %d", t.kind, t.ranks, r);
                cr_expect(eq(int, t.got[r], MESSAGES), "%s, %d ranks, rank %d", t.kind, t.ranks, r);
                cr_expect(eq(int, t.wrong[r], 0), "%s, %d ranks, rank %d", t.kind, t.ranks, r);
                cr_expect(eq(u64, t.stats[r].frames, t.stats[0].frames));
                cr_expect(eq(u64, t.stats[r].rereads, 0), "%s: flags before payload", t.kind);
            }
            cr_expect(t.stats[0].stalls > 0, "%s: a follower that sleeps stalls the leader",
                      t.kind);
        }
    }
}

Test(plan_box, faults_of_the_link)
{
    static const struct {
        const char *name;
        enum fault fault;
        int at, result[2], got; /* messages that the follower has taken */
        uint64_t rereads;
    } cases[] = {
        { "late", FAULT_DELAY, 0, { 0, 0 }, MESSAGES, 0 },
        { "sent twice", FAULT_DUPLICATE, 0, { 0, 0 }, MESSAGES, 0 },
        { "half of a frame late", FAULT_TEAR, 3, { 0, 0 }, FEW, 1 },
        { "half of a frame lost", FAULT_HALF, 3, { -ECONNRESET, -EPROTO }, 3, 1 },
        { "leader dies", FAULT_DIE, 3, { -ECONNRESET, -ECONNRESET }, 3, 0 },
    };

    for (int k = 0; wires_kinds[k]; k++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct box_world t;
            int tries = 0;

            /* a busy machine may keep the follower for as long as it allows a half to be late */
            do {
                memset(&t, 0, sizeof(t));
                t.fault = cases[i].fault;
                t.fault_at = cases[i].at;
                t.messages = cases[i].fault == FAULT_TEAR ? FEW : MESSAGES;
                world_open(&t, wires_kinds[k]);
                wires_run(2, run_rank, &t);
                wires_close(&t.w);
            } while (cases[i].fault == FAULT_TEAR &&
                     (t.result[1] != 0 || t.stats[1].rereads != 1) && ++tries < 20);
            for (int r = 0; r < 2; r++)
                cr_expect(eq(int, t.result[r], cases[i].result[r]), "%s, %s, rank %d", t.kind,
                          cases[i].name, r);
            cr_expect(eq(int, t.got[1], cases[i].got), "%s, %s", t.kind, cases[i].name);
            cr_expect(eq(int, t.wrong[1], 0), "%s, %s", t.kind, cases[i].name);
            cr_expect(eq(u64, t.stats[1].rereads, cases[i].rereads), "%s, %s", t.kind,
                      cases[i].name);
        }
    }
}

/* A leader of the wrong kind: raw frames on a raw link. */
static const struct raw {
    const char *name;
    uint64_t seq_0, seq_63, tag, op, flags, n;
    int result;
    const char *line;
} raws[] = {
    { "right", 1, 1, 1, 5, 0, 61, 0, "" },
    { "sequence ahead", 2, 2, 2, 5, 0, 1, -EPROTO, "frame 2 where 1 is due" },
    { "first guard", 7, 1, 1, 5, 0, 1, -EPROTO, "guard words" },
    { "last guard", 1, 7, 1, 5, 0, 1, -EPROTO, "guard words" },
    { "too many words", 1, 1, 1, 5, 0, 62, -EPROTO, "payload words out of range" },
    { "all ones", 1, 1, 1, 0xff, 0xff, 0xffff, -EPROTO, "payload words out of range" },
    { "short frame that goes on", 1, 1, 1, 5, PLAN_MORE, 60, -EPROTO,
      "payload words out of range" },
};

struct raw_world {
    struct box_world b;
    const struct raw *raw;
    int second; /* -1, or the index in seconds[] that follows a frame with PLAN_MORE */
    char line[256];
};

static const struct {
    const char *name;
    uint64_t op, flags, round;
    const char *line;
} seconds[] = {
    { "another op", 6, 3, 9, "continues another message" },
    { "other flags", 5, 4, 9, "continues another message" },
    { "another round", 5, 3, 10, "continues another message" },
    { "message stops", 0, 0, 0, "message stops after frame 1" },
    { "message without end", 5, 3 | PLAN_MORE, 9, "message too long" },
};

static void keep_last(void *arg, enum log_level level, const char *line)
{
    struct raw_world *t = arg;

    if (level == LOG_ERR && strncmp(line, "r1", 2) == 0)
        snprintf(t->line, sizeof(t->line), "%s", line);
}

static void raw_put(struct link *l, struct link_mem *m, uint64_t seq, uint64_t head)
{
    uint64_t *w = (uint64_t *)(void *)(m->outbox + seq % PLAN_RING * 512);

    w[0] = w[63] = seq;
    w[1] = head;
    l->ops->send(l, m, seq % PLAN_RING * 512, 512, seq);
}

static void raw_lead(struct raw_world *t)
{
    static uint64_t box[PLAN_RING * PLAN_WORDS];
    struct link *l = t->b.w.link[0][1];
    struct link_mem m = {
        .channel = 2, .slots = PLAN_RING, .slot_bytes = 512, .outbox = (uint8_t *)box
    };

    if (l->ops->reg(l, &m) < 0)
        abort();
    if (t->second < 0) {
        size_t at = t->raw->tag % PLAN_RING * PLAN_WORDS;

        box[at] = t->raw->seq_0;
        box[at + 63] = t->raw->seq_63;
        box[at + 1] = t->raw->op | t->raw->flags << 8 | t->raw->n << 16;
        /* the follower looks at the slot that is due: a frame ahead comes there too */
        memcpy(box + PLAN_WORDS, box + at, 512);
        l->ops->send(l, &m, 512, 512, t->raw->tag);
    } else {
        const int go_on = (seconds[t->second].flags & PLAN_MORE) != 0;
        uint64_t first =
            5 | (uint64_t)(3 | PLAN_MORE) << 8 | UINT64_C(61) << 16 | UINT64_C(9) << 32;
        uint64_t head = seconds[t->second].op | seconds[t->second].flags << 8 | UINT64_C(61) << 16 |
                        seconds[t->second].round << 32;

        raw_put(l, &m, 1, first);
        for (uint64_t seq = 2; seconds[t->second].op && seq < (go_on ? MAX_WORDS / 61 + 3 : 3);
             seq++) {
            int64_t until = clock_ns() + 300 * NS_PER_MS;

            /* a follower that has had enough gives no more credit */
            while (seq - atomic_load(link_flag(&m, 0)) > PLAN_RING && clock_ns() < until)
                clock_sleep(50 * NS_PER_US);
            if (clock_ns() >= until)
                break;
            raw_put(l, &m, seq, head);
        }
    }
    l->ops->unreg(l, &m);
}

static void raw_rank(int rank, void *arg)
{
    struct raw_world *t = arg;
    struct plan_box *b;
    struct plan_msg m;

    if (rank == 0) {
        raw_lead(t);
        return;
    }
    b = box_open(&t->b, 1);
    /* what has begun has the box's limit, however long its begin may be waited for */
    t->b.result[1] = plan_box_recv(b, t->second < 0 ? 1000 : -1, &m);
    plan_box_close(b);
}

Test(plan_box, a_follower_believes_no_frame, .timeout = 60)
{
    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++) {
        struct raw_world t = { .raw = &raws[i], .second = -1 };

        world_open(&t.b, "loop");
        log_sink(keep_last, &t);
        wires_run(2, raw_rank, &t);
        log_sink(NULL, NULL);
        wires_close(&t.b.w);
        cr_expect(eq(int, t.b.result[1], raws[i].result), "%s", raws[i].name);
        cr_expect(strstr(t.line, raws[i].line) != NULL, "%s: '%s'", raws[i].name, t.line);
    }
    for (int i = 0; i < (int)(sizeof(seconds) / sizeof(seconds[0])); i++) {
        struct raw_world t = { .second = i, .b.wait_limit_ms = 200 };

        world_open(&t.b, "loop");
        log_sink(keep_last, &t);
        wires_run(2, raw_rank, &t);
        log_sink(NULL, NULL);
        wires_close(&t.b.w);
        cr_expect(t.b.result[1] < 0, "%s", seconds[i].name);
        cr_expect(strstr(t.line, seconds[i].line) != NULL, "%s: '%s'", seconds[i].name, t.line);
    }
}

static void idle(int rank, void *arg)
{
    struct box_world *t = arg;
    struct plan_box *b = box_open(t, rank);
    struct plan_msg m;

    if (rank == 1) {
        t->result[1] = plan_box_recv(b, 30, &m);
        atomic_store(&t->quiet, 1);
        t->got[1] = plan_box_recv(b, -1, &m); /* until the leader leaves */
    } else {
        uint64_t word = 1;

        while (!atomic_load(&t->quiet))
            clock_sleep(NS_PER_MS);
        t->wrong[0] += plan_box_send(b, 256, 0, 0, &word, 1) != -EINVAL;
        t->wrong[0] += plan_box_send(b, -1, 0, 0, &word, 1) != -EINVAL;
        t->wrong[0] += plan_box_send(b, 1, 0, PLAN_MORE, &word, 1) != -EINVAL;
        t->wrong[0] += plan_box_send(b, 1, 0, 0, &word, MAX_WORDS + 1) != -EINVAL;
        t->w.link[0][1]->ops->abort(t->w.link[0][1]);
    }
    plan_box_close(b);
}

Test(plan_box, silence_is_an_outcome_and_an_end_an_error)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct box_world t = { .ranks = 2 };

        world_open(&t, wires_kinds[k]);
        wires_run(2, idle, &t);
        wires_close(&t.w);
        cr_expect(eq(int, t.result[1], PLAN_QUIET), "%s", t.kind);
        cr_expect(eq(int, t.got[1], -ECONNRESET), "%s", t.kind);
        cr_expect(eq(int, t.wrong[0], 0), "%s", t.kind);
    }
}

/* A follower that reads nothing: the leader fills the ring and then gives up. */
static void starve(int rank, void *arg)
{
    struct box_world *t = arg;
    struct plan_box *b = box_open(t, rank);
    uint64_t word = 0;

    if (rank == 0) {
        while ((t->result[0] = plan_box_send(b, 1, 0, 0, &word, 1)) == 0)
            t->got[0]++;
        atomic_store(&t->quiet, 1);
    }
    while (!atomic_load(&t->quiet)) /* a follower that closes would be one that is gone */
        clock_sleep(NS_PER_MS);
    plan_box_close(b);
}

Test(plan_box, an_unread_frame_is_never_overwritten)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct box_world t = { .wait_limit_ms = 50 };

        world_open(&t, wires_kinds[k]);
        wires_run(2, starve, &t);
        wires_close(&t.w);
        cr_expect(eq(int, t.result[0], -ETIMEDOUT), "%s", t.kind);
        cr_expect(eq(int, t.got[0], PLAN_RING), "%s", t.kind);
    }
}

/* A follower of the wrong kind: it credits what it cannot have read. */
static const struct credits {
    const char *name;
    struct {
        uint64_t behind, says; /* this frame has come, then this credit */
    } of[2];
    int frames; /* that the leader sends at most */
    const char *line;
} credits[] = {
    { "ahead", { { PLAN_RING, PLAN_RING + 1 } }, 100, "credit 9 of rank 1 after 0, sent 8" },
    { "far ahead", { { 1, UINT64_MAX } }, 100, "credit 18446744073709551615 of rank 1 after 0" },
    { "back", { { PLAN_RING, 4 }, { 12, 3 } }, 100, "credit 3 of rank 1 after 4, sent 12" },
    { "ahead of an end", { { 2, 3 } }, 2, "credit 3 of rank 1 after 0, sent 2" },
};

struct credit_world {
    struct box_world b;
    const struct credits *bad;
    char line[256];
};

static void keep_credit(void *arg, enum log_level level, const char *line)
{
    struct credit_world *t = arg;

    if (level == LOG_ERR && strstr(line, "credit"))
        snprintf(t->line, sizeof(t->line), "%s", line);
}

static void credit_wrongly(struct credit_world *t)
{
    static _Alignas(64) uint8_t none[PLAN_RING * 512];
    struct link *l = t->b.w.link[1][0];
    struct link_mem m = { .channel = 2, .slots = PLAN_RING, .slot_bytes = 512, .outbox = none };

    if (l->ops->reg(l, &m) < 0)
        abort();
    for (int i = 0; i < 2 && t->bad->of[i].behind; i++) {
        uint64_t behind = t->bad->of[i].behind;

        while (atomic_load(link_flag(&m, (int)(behind % PLAN_RING))) != behind &&
               !atomic_load(&t->b.quiet))
            clock_sleep(50 * NS_PER_US);
        l->ops->send(l, &m, 0, 0, t->bad->of[i].says);
    }
    while (!atomic_load(&t->b.quiet))
        clock_sleep(NS_PER_MS);
    l->ops->unreg(l, &m);
}

static void credit_rank(int rank, void *arg)
{
    struct credit_world *t = arg;
    struct plan_box *b;
    uint64_t word = 0;

    if (rank == 1) {
        credit_wrongly(t);
        return;
    }
    b = box_open(&t->b, 0);
    for (int i = 0; i < t->bad->frames && t->b.result[0] == 0; i++)
        t->b.result[0] = plan_box_send(b, 1, 0, 0, &word, 1);
    if (t->b.result[0] == 0)
        t->b.result[0] = plan_box_settle(b, NULL);
    atomic_store(&t->b.quiet, 1);
    plan_box_close(b);
}

Test(plan_box, a_leader_believes_no_credit)
{
    for (size_t i = 0; i < sizeof(credits) / sizeof(credits[0]); i++) {
        struct credit_world t = { .bad = &credits[i], .b.wait_limit_ms = 1000 };

        world_open(&t.b, "loop");
        log_sink(keep_credit, &t);
        wires_run(2, credit_rank, &t);
        log_sink(NULL, NULL);
        wires_close(&t.b.w);
        cr_expect(eq(int, t.b.result[0], -EPROTO), "%s", credits[i].name);
        cr_expect(strstr(t.line, credits[i].line) != NULL, "%s: '%s'", credits[i].name, t.line);
    }
}
