/* control_wire - one control connection: its fixed layouts, proofs, and frames under a session key.
 *
 *   rank k -> 0   HELLO            rank 0 -> k   HELLO
 *   rank k -> 0   PROOF            rank 0 -> k   PROOF, or zeros: refused
 *   then frames   {length, kind, counter} body {MAC}, each direction with its own counter from 0
 *
 * HELLO and PROOF keep their layout for ever, so that builds of different protocol versions can
 * still prove the secret to each other and then say that they differ. The MAC covers the sender's
 * rank: a frame that is sent back to its sender is no frame.
 */
#ifndef TANDEM_RANK_CONTROL_WIRE_H
#define TANDEM_RANK_CONTROL_WIRE_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/hash.h"
#include "src/rank/control_body.h"

#define CONTROL_MAGIC UINT32_C(0x4d444e54) /* "TNDM" */

enum { CONTROL_PROTOCOL = 1, CONTROL_SECRET_MAX = 4096, CONTROL_MAC_BYTES = 16 };

enum control_role { CONTROL_ROLE_RANK = 0, CONTROL_ROLE_DATA = 1 };

struct control_hello {
    uint32_t magic, protocol, world, rank, role;
    uint32_t channel;                   /* data sockets; else 0 */
    uint8_t nonce[CONTROL_NONCE_BYTES]; /* data sockets: the token */
    uint8_t zero[72];
};
static_assert(sizeof(struct control_hello) == 128, "HELLO is 128 bytes on the wire");

struct control_frame_head {
    uint32_t length, kind; /* length of the body */
    uint64_t counter;
};
static_assert(sizeof(struct control_frame_head) == 16, "frame header on the wire");

enum control_kind {
    CONTROL_AGREE = 1,
    CONTROL_LISTEN,
    CONTROL_TABLE,
    CONTROL_READY,
    CONTROL_BEAT,
    CONTROL_FAIL,
    CONTROL_STOP,
    CONTROL_REFUSE,
    CONTROL_BARRIER,
    CONTROL_KINDS
};

struct control_secret {
    size_t n;
    uint8_t bytes[CONTROL_SECRET_MAX];
};

/* control_proof - HMAC(secret, who | first | second), who being 'k' or '0' */
int control_proof(const struct control_secret *s, char who, const struct control_hello *first,
                  const struct control_hello *second, uint8_t out[SHA256_BYTES]);

/* control_token - the one-time token of a data socket from rank `from` to rank `to`, or of its
 * answer */
int control_token(const struct control_secret *s, const uint8_t nonce[CONTROL_NONCE_BYTES],
                  int from, int to, int channel, int answer, uint8_t out[SHA256_BYTES]);

/* wire - a socket that does not block, after both proofs. Sends come from several threads, receives
 * from one. */
struct wire {
    int fd; /* -1: closed */
    int me, peer;
    uint8_t key[SHA256_BYTES];
    pthread_mutex_t lock; /* of the sending side */
    uint64_t sent, taken; /* counters */
    size_t have, frame;   /* bytes in rx; length of the frame handed out last */
    uint8_t rx[sizeof(struct control_frame_head) + CONTROL_BODY_MAX + CONTROL_MAC_BYTES];
};

struct wire_frame {
    enum control_kind kind;
    const uint8_t *body; /* in the wire, until the next wire_take */
    size_t n;
};

/* wire_open - session key of the two nonces; takes the socket. errors: -ENOMEM, -EIO */
int wire_open(int fd, int me, int peer, const struct control_secret *s,
              const uint8_t nonce_0[CONTROL_NONCE_BYTES],
              const uint8_t nonce_k[CONTROL_NONCE_BYTES], struct wire **out);
void wire_close(struct wire *w);

/* wire_send - a whole frame; wait_ms is how long a full socket may take, 0 for heartbeats and
 * notices.
 * errors   -ECONNRESET the peer is gone, -ETIMEDOUT the socket stayed full: the wire is broken
 *          then; unlogged */
int wire_send(struct wire *w, enum control_kind kind, const struct control_body *body, int wait_ms);

/* wire_take - the next frame if one has arrived, without blocking.
 * result   1 and *out, or 0
 * errors   -ECONNRESET the peer is gone (unlogged); -EPROTO length, counter, kind or MAC wrong
 *          (logged) */
int wire_take(struct wire *w, struct wire_frame *out);

/* wire_expect - wait until `until_ns`, or until *cancel, for a frame of this kind. A REFUSE is
 * logged with its reason.
 * errors   as wire_take, -ECONNRESET logged; -ETIMEDOUT logged; -EINVAL refused; -EPROTO another
 *          kind; -ECANCELED */
int wire_expect(struct wire *w, enum control_kind kind, int64_t until_ns, const atomic_int *cancel,
                struct wire_frame *out);

/* control_cancelled - whether *cancel (or NULL) says so; logs for which rank this one had waited */
int control_cancelled(const atomic_int *cancel, const char *who);

/* wire_lost - the peer has closed its side and nothing is left to read */
int wire_lost(struct wire *w);

#endif
