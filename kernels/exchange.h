/* exchange - the arithmetic of a sum over ranks: round to the wire type, add in rank order.
 *
 * Two steps around the transport: every rank stages its rounded partial into the slot that leaves,
 * then adds the slots of all ranks, its own rounded one included, so that all ranks form the same
 * bits.
 */
#ifndef TANDEM_KERNELS_EXCHANGE_H
#define TANDEM_KERNELS_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exchange_wire { EXCHANGE_BF16, EXCHANGE_F32 };

/* exchange_wire_bytes - bytes of one element on the wire */
static inline size_t exchange_wire_bytes(enum exchange_wire w)
{
    return w == EXCHANGE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* exchange_stage - slot[i] = round_wire(x[i]): bf16 to nearest even, a NaN stays a NaN (quiet); f32
 * as it is
 *
 * shapes   x [n] f32; slot [n] of the wire type, aligned to it
 */
void exchange_stage(enum exchange_wire w, void *slot, const float *x, size_t n);

/* exchange_add - y[i] = f32(part[0][i]) + f32(part[1][i]) + ... , from the left, plain f32 adds
 *
 * shapes   part [world][n] of the wire type; y [n] f32
 */
void exchange_add(enum exchange_wire w, const void *const *part, int world, float *y, size_t n);

/* ---- in the memory of a device, in queue order; may be captured ------------------------------ */

struct device;
struct queue;

/* exchange_round - x[i] = f32(round_wire(x[i])): the sum over one rank */
void exchange_round(struct queue *q, enum exchange_wire w, float *x, size_t n);

/* exchange_copy - bytes from device memory to device memory */
void exchange_copy(struct queue *q, void *dst, const void *src, size_t bytes);

/* exchange_put, exchange_sum - exchange_stage and exchange_add in device memory; parts [world] lie
 * `stride` bytes apart, aligned to 4. A queue in which a kernel has found a fault stages NaN. */
void exchange_put(struct queue *q, enum exchange_wire w, void *slot, const float *x, size_t n);
void exchange_sum(struct queue *q, enum exchange_wire w, const void *parts, size_t stride,
                  int world, float *y, size_t n);

/* exchange_stream - what a library for this device calls the queue */
void *exchange_stream(struct queue *q);

/* peer - one rank of a group whose devices write into each other's memory, or through the host's.
 *
 *   direct   write rounded values into the inboxes of all ranks, each with the number of the
 *            exchange beside it
 *            ->  wait for the same values of the others  ->  add, or copy out, in rank order
 *            (cuda/direct.cuh)
 *   relayed  stage into a slot of the outbox, which host and device see  ->  ring the bell; a
 *            thread of the host (the proxy) sends the slot to all peers  ->  wait for each peer's
 *            flag of the slot in host memory  ->  add, or copy out, from the peers' inboxes
 *
 * Two slots by parity suffice: a peer stages exchange k + 2 only after it has every rank's k + 1,
 * which was sent after k had been read. Sequence, site and size travel too, so ranks that run
 * different programs find out at once. The sequence counts on the device: a captured exchange needs
 * nothing from the host. A wait that fails poisons the peer: every later exchange returns at once,
 * with garbage that nobody commits. So does a queue in which a kernel has found a fault: what it
 * has computed would become another rank's text.
 */
#define PEER_WORLD_MAX 8

struct peer;

struct peer_spec {
    int rank, world;
    size_t slot_bytes; /* of one exchange, a multiple of 16; longer calls go in pieces */
    uint32_t first_seq;
    int64_t limit_ns; /* of one wait; < 0: none */
    bool relayed;
};

/* What ended an exchange. */
struct peer_record {
    int32_t code; /* 0, or -ETIMEDOUT, -EPROTO, -ECANCELED */
    int32_t peer;
    uint64_t want, got; /* tags: sequence, site << 32, units of 16 bytes << 44 */
    /* of all exchanges up to the last peer_note, as their first block saw them */
    uint64_t exchanges, bytes, wait_ns, wait_max_ns, move_ns;
};

/* peer_open - inbox, flags and record of one rank.
 * errors   -ENOMEM; -ENOTSUP the device has no memory that others write */
int peer_open(struct device *d, const struct peer_spec *s, struct peer **out);

/* What host and device share of a relayed peer. The bell of parity p is bell[p * PEER_BELL_STRIDE]:
 * the tag of the slot that is to be sent. At most two are pending. */
#define PEER_BELL_STRIDE 16
struct peer_relay {
    uint8_t *outbox; /* [2][slot_bytes] */
    const uint64_t *bell;
};
void peer_relay(const struct peer *p, struct peer_relay *out);

/* peer_device - what no other device of any machine has.   errors   -EIO of the driver
 * peer_apart - relayed: whether no other rank is on this device. Then kernels behind an exchange
 * may come in while it waits; until it is said they do not. */
#define PEER_DEVICE_BYTES 16
int peer_device(const struct peer *p, uint8_t out[PEER_DEVICE_BYTES]);
void peer_apart(struct peer *p, bool apart);

/* peer_attach - where the slots of another rank arrive: inbox [2][slot_bytes] behind its flags, a
 * flag every flag_stride bytes from area on; both are made visible to the device and stay so until
 * peer_close. Where one flag does not say that all has come, the proxy raises others: *raised, as
 * far apart.
 * errors   -EIO, -ENOMEM of the driver */
int peer_attach(struct peer *p, int rank, uint8_t *area, uint8_t *inbox, size_t flag_stride,
                bool raised_by_proxy, uint64_t **raised);

/* peer_count_to - the exchange before the next one has this number; none is under way.
 * errors   -EIO of the driver */
int peer_count_to(struct peer *p, uint32_t seq);

/* peer_join - tell a peer where all of them are, [world] by rank; all are open and stay so while
 * one exchanges.
 * errors   -ENOTSUP devices that cannot write into each other's memory */
int peer_join(struct peer *p, struct peer *const *all);

/* peer_show - what another process needs to write into this rank's inbox.
 * errors   -EIO the driver shows this memory to no other process */
#define PEER_CARD_BYTES 128
int peer_show(struct peer *p, uint8_t card[PEER_CARD_BYTES]);

/* peer_meet - peer_join for ranks that are processes of one machine: the cards of all, [world] by
 * rank.
 * errors   -ENOTSUP a device that this process does not see, or cannot write; -EIO */
int peer_meet(struct peer *p, const uint8_t (*card)[PEER_CARD_BYTES]);

/* peer_sum, peer_gather - as in comm.h; every rank makes the same calls in the same order */
void peer_sum(struct peer *p, struct queue *q, int site, enum exchange_wire w, float *x, size_t n);
void peer_gather(struct peer *p, struct queue *q, int site, const void *in, void *out,
                 size_t bytes);

/* peer_note - queue a look at what the exchanges so far took: there after the queue's wait */
void peer_note(struct peer *p, struct queue *q);

/* peer_check - after the queue's wait: 0, or the code and record of the exchange that failed */
int peer_check(const struct peer *p, struct peer_record *out);

/* peer_abort - ends every wait of this rank with this code; the first call counts; any thread */
void peer_abort(struct peer *p, int code);

/* peer_close - after the last exchange of this rank has run; NULL is fine. parted: no other rank
 * writes to its inbox or has it mapped any more; else the inbox stays until the process ends. */
void peer_close(struct peer *p, bool parted);

#endif
