/* fuzz_frames - plan frames with any words: refused, or a message that is what was sent. The flag
 * and the first word are right, or the frame would not be looked at.
 *
 * Input: frames of 512 bytes one after the other, the last one filled up with zeros.
 */
#include "tests/fuzz/fuzz.h"

#include "src/base/log.h"
#include "src/rank/plan.h"
#include "src/rank/plan_box.h"
#include "src/transport/link.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FRAMES = 4, MAX_WORDS = 400, CHANNEL = 2 };

/* Rank 0 is this file: it writes frames that a plan box would not send, where a link would have put
 * them. */
static struct {
    _Alignas(4096) struct plan_frame inbox[PLAN_RING];
    _Alignas(LINK_FLAG_STRIDE) uint8_t flags[PLAN_RING * LINK_FLAG_STRIDE];
    struct plan_box *box;
    uint64_t seq;
} t;

static void ignore(void *arg, enum log_level level, const char *line)
{
}

static void must(int holds)
{
    if (!holds)
        abort();
}

static int memory_reg(struct link *l, struct link_mem *m)
{
    must(m->slots == PLAN_RING && m->slot_bytes == sizeof(struct plan_frame));
    m->inbox = (uint8_t *)t.inbox;
    m->flags = t.flags;
    return 0;
}

static void memory_unreg(struct link *l, struct link_mem *m)
{
    m->inbox = NULL;
    m->flags = NULL;
}

static int memory_send(struct link *l, const struct link_mem *m, size_t off, size_t len,
                       uint64_t tag)
{
    return 0; /* a credit, which nobody waits for */
}

static int memory_poll(struct link *l)
{
    return 0;
}

static void memory_end(struct link *l)
{
}

static const struct link_ops memory_ops = { .name = "memory",
                                            .reg = memory_reg,
                                            .unreg = memory_unreg,
                                            .send = memory_send,
                                            .poll = memory_poll,
                                            .abort = memory_end,
                                            .close = memory_end };

static void open_box(void)
{
    static const struct plan_box_settings set = { .wait_limit_ms = 0, .max_words = MAX_WORDS };
    static struct link wire = {
        .ops = &memory_ops, .rank = 1, .peer = 0, .channel = CHANNEL, .fd = -1
    };
    struct link *links[2] = { &wire, NULL };

    t.seq = 0;
    memset(t.inbox, 0, sizeof(t.inbox));
    memset(t.flags, 0, sizeof(t.flags));
    must(plan_box_open(links, 1, 2, &set, &t.box) == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    open_box();
    return 0;
}

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    struct plan_frame f[3] = { 0 };
    int n = i == 0 ? 1 : 3;

    if (i > 1)
        return 0;
    for (int k = 0; k < n; k++) { /* a short message, and one of three frames */
        bool more = k + 1 < n;
        uint64_t words = more ? PLAN_PAYLOAD : 5;

        f[k].word[1] =
            PLAN_ROUND | (more ? (uint64_t)PLAN_MORE << 8 : 0) | words << 16 | (uint64_t)77 << 32;
        for (uint64_t j = 0; j < words; j++)
            f[k].word[2 + j] = (uint64_t)k << 32 | j;
    }
    memcpy(out, f, (size_t)n * sizeof(f[0]));
    return (size_t)n * sizeof(f[0]);
}

/* One frame of the input, with the guards that its own words choose: right, or what the input
 * says. */
static void send_frame(const uint8_t *data, size_t n)
{
    uint64_t seq = t.seq + 1;
    size_t slot = seq % PLAN_RING;
    struct plan_frame *f = &t.inbox[slot];
    bool torn;

    memset(f, 0, sizeof(*f));
    memcpy(f, data, n < sizeof(*f) ? n : sizeof(*f));
    torn = f->word[0] % 16 == 15;
    f->word[0] = seq;
    if (!torn)
        f->word[PLAN_WORDS - 1] = seq;
    atomic_store((_Atomic uint64_t *)(void *)(t.flags + slot * LINK_FLAG_STRIDE), seq);
    t.seq = seq;
}

static void check(const struct plan_msg *m, uint64_t first)
{
    size_t at = 0;

    must(m->n <= MAX_WORDS && m->op >= 0 && m->op < 256 && m->flags < PLAN_MORE);
    for (uint64_t seq = first; seq <= t.seq; seq++) {
        const struct plan_frame *f = &t.inbox[seq % PLAN_RING];
        size_t n = f->word[1] >> 16 & 0xffff;

        must((int)(f->word[1] & 0xff) == m->op && (uint32_t)(f->word[1] >> 32) == m->round);
        must(at + n <= m->n && memcmp(m->word + at, f->word + 2, n * sizeof(uint64_t)) == 0);
        at += n;
    }
    must(at == m->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t first = t.seq + 1;

    for (int k = 0; k < FRAMES && (k == 0 || size > 0); k++) {
        size_t n = size < sizeof(struct plan_frame) ? size : sizeof(struct plan_frame);
        struct plan_msg m;
        int r;

        send_frame(data, n);
        data += n;
        size -= n;
        if (t.inbox[t.seq % PLAN_RING].word[1] >> 8 & PLAN_MORE && size > 0 && k + 1 < FRAMES)
            continue; /* its rest follows before anybody looks */
        r = plan_box_recv(t.box, 0, &m);
        if (r == 0) {
            check(&m, first);
            first = t.seq + 1;
            continue;
        }
        must(r == -EPROTO || r == -ETIMEDOUT); /* refused, or the rest is missing */
        plan_box_close(t.box);
        open_box();
        return 0;
    }
    return 0;
}
