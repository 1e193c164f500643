/* plan_box - frames of the plan over links: flow control and every check that needs no knowledge of
 * the ops.
 *
 * The credit is what makes one-way traffic safe: an exchange proves by its own answer that a slot
 * was read, a plan frame does not.
 */
#include "src/rank/plan_box.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little endian in memory");

enum { BOX_WORLD_MAX = 8, BOX_CHANNEL = 2, BOX_REREAD_MS = 1, BOX_CREDIT_SLOT = 0 };

struct plan_box {
    int rank, world;
    struct plan_box_settings set;
    struct link *link[BOX_WORLD_MAX]; /* the leader's followers, or the leader at 0 */
    struct link_mem mem[BOX_WORLD_MAX];
    struct plan_frame *outbox;      /* [PLAN_RING]; a follower only sends tags */
    uint64_t seq;                   /* last frame sent, or taken */
    uint64_t credit[BOX_WORLD_MAX]; /* leader: last frame that a follower has copied */
    uint64_t flag[PLAN_RING];       /* follower: last tag of each slot */
    uint64_t *msg;                  /* follower: payload being put together */
    int64_t came_ns;                /* follower: when the last frame was there */
    struct plan_box_stats stats;
};

static uint64_t head_of(int op, unsigned flags, size_t n, uint32_t round)
{
    return (uint64_t)op | (uint64_t)flags << 8 | (uint64_t)n << 16 | (uint64_t)round << 32;
}

static int link_failed(int r, int peer)
{
    if (r == -ECONNRESET)
        return fail(r, "plan: rank %d is gone", peer);
    return r; /* -ECANCELED was logged by whoever aborted, -EPROTO by the link */
}

static struct link_wait wait_of(struct plan_box *b, int limit_ms)
{
    return (struct link_wait){
        .links = b->link, .n = b->world, .spin_us = b->set.spin_us, .limit_ms = limit_ms
    };
}

/* Wait until follower p has copied the frame whose place frame seq takes. */
static int have_credit(struct plan_box *b, int p, uint64_t seq)
{
    struct link_wait w = wait_of(b, b->set.wait_limit_ms);
    int stalled = 0;

    while (seq - b->credit[p] > PLAN_RING) {
        uint64_t now;
        int r = 0;

        if (!stalled) {
            /* credits that have arrived wait in the link until somebody looks */
            r = b->link[p]->ops->poll(b->link[p]);
            now =
                atomic_load_explicit(link_flag(&b->mem[p], BOX_CREDIT_SLOT), memory_order_acquire);
            stalled = r == 0 && seq - now > PLAN_RING;
            b->stats.stalls += (uint64_t)stalled;
        }
        if (r == 0)
            r = link_wait_flag(&w, b->link[p], &b->mem[p], BOX_CREDIT_SLOT, b->credit[p], &now);
        if (r == -ETIMEDOUT)
            return fail(r, "plan: rank %d has not read frame %llu in %d ms", p,
                        (unsigned long long)(seq - PLAN_RING), b->set.wait_limit_ms);
        if (r < 0)
            return link_failed(r, p);
        if (now <= b->credit[p] || now > b->seq)
            return fail(-EPROTO, "plan: credit %llu of rank %d after %llu, sent %llu",
                        (unsigned long long)now, p, (unsigned long long)b->credit[p],
                        (unsigned long long)b->seq);
        b->credit[p] = now;
    }
    return 0;
}

static int send_frame(struct plan_box *b, uint64_t head, const uint64_t *word, size_t n)
{
    uint64_t seq = b->seq + 1;
    size_t slot = seq % PLAN_RING;
    struct plan_frame *f = &b->outbox[slot];
    int r;

    for (int p = 1; p < b->world; p++) {
        r = have_credit(b, p, seq);
        if (r < 0)
            return r;
    }
    f->word[0] = seq;
    f->word[1] = head;
    memset(f->word + 2, 0, PLAN_PAYLOAD * sizeof(uint64_t));
    if (n > 0)
        memcpy(f->word + 2, word, n * sizeof(uint64_t));
    f->word[PLAN_WORDS - 1] = seq;
    for (int p = 1; p < b->world; p++) {
        r = b->link[p]->ops->send(b->link[p], &b->mem[p], slot * sizeof(*f), sizeof(*f), seq);
        if (r < 0)
            return link_failed(r, p);
    }
    b->seq = seq;
    b->stats.frames++;
    return 0;
}

int plan_box_send(struct plan_box *b, int op, uint32_t round, unsigned flags, const uint64_t *word,
                  size_t n)
{
    struct link_wait w = wait_of(b, b->set.wait_limit_ms);
    int r, late;

    if (b->rank != 0 || op < 0 || op > 0xff || flags >= PLAN_MORE || n > b->set.max_words)
        return fail(-EINVAL, "plan: rank %d sends op %d flags %#x with %zu words, at most %zu",
                    b->rank, op, flags, n, b->set.max_words);
    while (n > PLAN_PAYLOAD) {
        r = send_frame(b, head_of(op, flags | PLAN_MORE, PLAN_PAYLOAD, round), word, PLAN_PAYLOAD);
        if (r < 0)
            return r;
        word += PLAN_PAYLOAD;
        n -= PLAN_PAYLOAD;
    }
    r = send_frame(b, head_of(op, flags, n, round), word, n);
    if (r < 0)
        return r;
    r = link_wait_sent(&w, &late);
    if (r == -ETIMEDOUT)
        return fail(r, "plan: frame %llu has not left for rank %d in %d ms",
                    (unsigned long long)b->seq, late, b->set.wait_limit_ms);
    return r < 0 ? link_failed(r, late) : 0;
}

int plan_box_settle(struct plan_box *b, int64_t *read_ns)
{
    uint64_t stalls = b->stats.stalls; /* this wait is meant */
    int r = 0;

    for (int p = 1; p < b->world && r == 0; p++) {
        r = have_credit(b, p, b->seq + PLAN_RING);
        if (read_ns)
            read_ns[p] = clock_ns();
    }
    b->stats.stalls = stalls;
    return r;
}

static int frame_wrong(const struct plan_frame *f, uint64_t seq, const char *what)
{
    for (int i = 0; i < PLAN_WORDS; i += 4)
        log_line(LOG_ERR, "plan: word %2d: %016llx %016llx %016llx %016llx", i,
                 (unsigned long long)f->word[i], (unsigned long long)f->word[i + 1],
                 (unsigned long long)f->word[i + 2], (unsigned long long)f->word[i + 3]);
    return fail(-EPROTO, "plan: frame %llu: %s", (unsigned long long)seq, what);
}

/* Copy the frame of seq out of the inbox. Its flag is up, so both guards have to be there; if they
 * are not, the link has broken its order, which is counted, waited out for a moment, and fatal if
 * it lasts. */
static int copy_frame(struct plan_box *b, uint64_t seq, struct plan_frame *out)
{
    const uint8_t *at = b->mem[0].inbox + seq % PLAN_RING * sizeof(*out);
    int64_t until = 0;

    for (;;) {
        int r;

        memcpy(out, at, sizeof(*out));
        if (out->word[0] == seq && out->word[PLAN_WORDS - 1] == seq) {
            if (until == 0)
                return 0;
            /* the guards came while this copy was being made: what lies between them may be
             * older */
            atomic_thread_fence(memory_order_acquire);
            memcpy(out, at, sizeof(*out));
            return 0;
        }
        if (until == 0) {
            until = clock_ns() + BOX_REREAD_MS * NS_PER_MS;
            b->stats.rereads++;
        } else if (clock_ns() > until) {
            return frame_wrong(out, seq, "guard words differ from the flag");
        }
        r = b->link[0]->ops->poll(b->link[0]);
        if (r < 0 && r != -ECONNRESET)
            return r;
        atomic_thread_fence(memory_order_acquire);
    }
}

/* The next frame in order, copied and credited. */
static int take_frame(struct plan_box *b, int timeout_ms, struct plan_frame *out)
{
    struct link_wait w = wait_of(b, timeout_ms);
    uint64_t seq = b->seq + 1, now;
    int slot = (int)(seq % PLAN_RING), r;

    r = link_wait_flag(&w, b->link[0], &b->mem[0], slot, b->flag[slot], &now);
    if (r == -ETIMEDOUT)
        return r;
    if (r < 0)
        return link_failed(r, 0);
    if (now != seq)
        return fail(-EPROTO, "plan: frame %llu where %llu is due", (unsigned long long)now,
                    (unsigned long long)seq);
    b->came_ns = clock_ns();
    r = copy_frame(b, seq, out);
    if (r < 0)
        return r;
    b->flag[slot] = seq;
    b->seq = seq;
    b->stats.frames++;
    r = b->link[0]->ops->send(b->link[0], &b->mem[0], BOX_CREDIT_SLOT, 0, seq);
    /* a leader that sent its last frame may be gone before it is credited: the next wait says so */
    return r == -ECONNRESET ? 0 : r;
}

int plan_box_recv(struct plan_box *b, int timeout_ms, struct plan_msg *out)
{
    struct plan_frame f;
    uint64_t first = 0;
    size_t have = 0;

    assert(b->rank != 0);
    for (;;) {
        int r = take_frame(b, have ? b->set.wait_limit_ms : timeout_ms, &f);
        uint64_t head = f.word[1];
        unsigned flags = (unsigned)(head >> 8 & 0xff);
        size_t n = (size_t)(head >> 16 & 0xffff);

        if (r == -ETIMEDOUT && have == 0)
            return PLAN_QUIET;
        if (r == -ETIMEDOUT)
            return fail(r, "plan: message stops after frame %llu", (unsigned long long)b->seq);
        if (r < 0)
            return r;
        if (n > PLAN_PAYLOAD || ((flags & PLAN_MORE) && n != PLAN_PAYLOAD))
            return frame_wrong(&f, b->seq, "payload words out of range");
        /* of a continuation everything but the length and the mark is repeated */
        head &= ~((uint64_t)PLAN_MORE << 8 | UINT64_C(0xffff) << 16);
        if (have && head != first)
            return frame_wrong(&f, b->seq, "continues another message");
        if (n > b->set.max_words - have)
            return frame_wrong(&f, b->seq, "message too long");
        first = head;
        memcpy(b->msg + have, f.word + 2, n * sizeof(uint64_t));
        have += n;
        if (flags & PLAN_MORE)
            continue;
        *out = (struct plan_msg){ .op = (int)(head & 0xff),
                                  .flags = flags,
                                  .round = (uint32_t)(head >> 32),
                                  .n = have,
                                  .word = b->msg,
                                  .came_ns = b->came_ns };
        return 0;
    }
}

struct plan_box_stats plan_box_stats(const struct plan_box *b)
{
    return b->stats;
}

void plan_box_close(struct plan_box *b)
{
    if (!b)
        return;
    for (int p = b->world - 1; p >= 0; p--)
        if (b->link[p])
            b->link[p]->ops->unreg(b->link[p], &b->mem[p]);
    free(b->msg);
    free(b->outbox);
    free(b);
}

int plan_box_open(struct link *const *links, int rank, int world, const struct plan_box_settings *s,
                  struct plan_box **out)
{
    struct plan_box *b;
    int r;

    if (world < 2 || world > BOX_WORLD_MAX || rank < 0 || rank >= world || s->max_words == 0)
        return fail(-EINVAL, "plan: rank %d of %d, %zu words", rank, world, s->max_words);
    b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "plan: no memory");
    b->rank = rank;
    b->world = world;
    b->set = *s;
    b->outbox = aligned_alloc(64, PLAN_RING * sizeof(*b->outbox));
    b->msg = calloc(s->max_words, sizeof(*b->msg));
    if (!b->outbox || !b->msg) {
        r = fail(-ENOMEM, "plan: no memory for %zu words", s->max_words);
        goto close_box;
    }
    memset(b->outbox, 0, PLAN_RING * sizeof(*b->outbox));
    for (int p = rank == 0; p < (rank == 0 ? world : 1); p++) {
        b->mem[p] = (struct link_mem){ .channel = BOX_CHANNEL,
                                       .slots = PLAN_RING,
                                       .slot_bytes = sizeof(struct plan_frame),
                                       .outbox = (uint8_t *)b->outbox };
        r = links[p]->ops->reg(links[p], &b->mem[p]);
        if (r < 0)
            goto close_box;
        b->link[p] = links[p];
    }
    *out = b;
    return 0;

close_box:
    plan_box_close(b);
    return r;
}
