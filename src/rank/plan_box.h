/* plan_box - rank 0's messages to all followers, in fixed frames over the plan channel.
 *
 *   word 0       sequence of the frame: 1, 2, 3 ...
 *   word 1       op (bits 0-7) | flags (8-15) | payload words of this frame (16-31) | round (32-63)
 *   words 2..62  payload
 *   word 63      the sequence again
 *
 * A follower's inbox is a ring of PLAN_RING frames, frame i = sequence mod PLAN_RING, with a flag
 * each. It answers every frame that it has copied with a credit, the frame's sequence, so that the
 * leader never overwrites an unread one. A payload of more than PLAN_PAYLOAD words sets PLAN_MORE
 * in all frames but the last; a follower consumes while the leader still sends.
 *
 * What the ops mean belongs to plan.c. Little endian.
 */
#ifndef TANDEM_RANK_PLAN_BOX_H
#define TANDEM_RANK_PLAN_BOX_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct link;
struct plan_box;

enum {
    PLAN_WORDS = 64,
    PLAN_PAYLOAD = 61,
    PLAN_RING = 8,
    PLAN_MORE = 0x80, /* flag bit of the box; the other seven are the caller's */
    PLAN_QUIET = 1    /* outcome of recv: nothing came in time */
};

struct plan_frame {
    uint64_t word[PLAN_WORDS];
};
static_assert(sizeof(struct plan_frame) == 512, "frames are 512 bytes on the wire");

struct plan_msg {
    int op;
    unsigned flags; /* without PLAN_MORE */
    uint32_t round;
    size_t n;             /* payload words */
    const uint64_t *word; /* the box's, until the next recv */
    int64_t came_ns;      /* clock_ns() when its last frame was there, before it was credited */
};

/* plan_box_stats - since open */
struct plan_box_stats {
    uint64_t frames;
    uint64_t rereads; /* guard words that were not there yet when the flag was: has to stay 0 */
    uint64_t stalls;  /* sends that had to wait for a credit */
};

struct plan_box_settings {
    int spin_us;
    int wait_limit_ms; /* of a send that has no credit and of the rest of a message; -1: none */
    size_t max_words;  /* longest payload; memory of it is taken at open */
};

/* plan_box_open - every rank opens its end; registers, so all do so at the same time.
 *
 * in       links [world] of channel 2: rank 0's to each follower, a follower's to rank 0; others
 *          are not used
 * errors   -EINVAL, -ENOMEM, those of link reg
 */
int plan_box_open(struct link *const *links, int rank, int world, const struct plan_box_settings *s,
                  struct plan_box **out);

/* plan_box_send - rank 0, to all followers. Returns when the frames have left; n up to max_words.
 *
 * errors   -EINVAL op, flags or n out of range; -ETIMEDOUT no credit; -EPROTO a credit that cannot
 *          be; -ECONNRESET, -ECANCELED
 */
int plan_box_send(struct plan_box *b, int op, uint32_t round, unsigned flags, const uint64_t *word,
                  size_t n);

/* plan_box_settle - rank 0, until every follower has read what was sent; read_ns [world], or NULL,
 * is when that was seen of each. Errors as of send. */
int plan_box_settle(struct plan_box *b, int64_t *read_ns);

/* plan_box_recv - a follower's next message; timeout_ms -1 waits for ever.
 *
 * result   0, or PLAN_QUIET
 * errors   -EPROTO sequence, guard words, length or continuation wrong: the frame is dumped to the
 *          log; -ETIMEDOUT a message that began does not go on; -ECONNRESET, -ECANCELED
 */
int plan_box_recv(struct plan_box *b, int timeout_ms, struct plan_msg *out);

struct plan_box_stats plan_box_stats(const struct plan_box *b);

/* plan_box_close - NULL is fine */
void plan_box_close(struct plan_box *b);

#endif
