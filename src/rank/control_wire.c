/* control_wire - proofs, tokens and frames of one control connection. */
#include "src/rank/control_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "layouts are little endian in memory");

int control_proof(const struct control_secret *s, char who, const struct control_hello *first,
                  const struct control_hello *second, uint8_t out[SHA256_BYTES])
{
    struct {
        uint8_t who[8]; /* its first byte, so that nothing is padding */
        struct control_hello first, second;
    } text = { .who = { (uint8_t)who }, .first = *first, .second = *second };

    return hmac_sha256(s->bytes, s->n, &text, sizeof(text), out);
}

int control_token(const struct control_secret *s, const uint8_t nonce[CONTROL_NONCE_BYTES],
                  int from, int to, int channel, int answer, uint8_t out[SHA256_BYTES])
{
    struct {
        uint8_t who[8];
        uint8_t nonce[CONTROL_NONCE_BYTES];
        uint32_t from, to, channel, answer;
    } text = { .who = { 'd' },
               .from = (uint32_t)from,
               .to = (uint32_t)to,
               .channel = (uint32_t)channel,
               .answer = (uint32_t)answer };

    memcpy(text.nonce, nonce, CONTROL_NONCE_BYTES);
    return hmac_sha256(s->bytes, s->n, &text, sizeof(text), out);
}

int wire_open(int fd, int me, int peer, const struct control_secret *s,
              const uint8_t nonce_0[CONTROL_NONCE_BYTES],
              const uint8_t nonce_k[CONTROL_NONCE_BYTES], struct wire **out)
{
    struct {
        uint8_t who[8];
        uint8_t nonce_0[CONTROL_NONCE_BYTES], nonce_k[CONTROL_NONCE_BYTES];
    } text = { .who = { 's' } };
    struct wire *w = calloc(1, sizeof(*w));
    int r;

    if (!w)
        return fail(-ENOMEM, "control: no memory");
    memcpy(text.nonce_0, nonce_0, CONTROL_NONCE_BYTES);
    memcpy(text.nonce_k, nonce_k, CONTROL_NONCE_BYTES);
    r = hmac_sha256(s->bytes, s->n, &text, sizeof(text), w->key);
    if (r < 0) {
        free(w);
        return r;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->fd = fd;
    w->me = me;
    w->peer = peer;
    *out = w;
    return 0;
}

void wire_close(struct wire *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* MAC of a frame that `sender` sent: over its rank, the header and the body. */
static int frame_mac(const struct wire *w, int sender, const struct control_frame_head *h,
                     const uint8_t *body, uint8_t mac[SHA256_BYTES])
{
    uint8_t text[8 + sizeof(*h) + CONTROL_BODY_MAX] = { (uint8_t)sender };

    memcpy(text + 8, h, sizeof(*h));
    if (h->length > 0)
        memcpy(text + 8 + sizeof(*h), body, h->length);
    return hmac_sha256(w->key, sizeof(w->key), text, 8 + sizeof(*h) + h->length, mac);
}

static int send_all(int fd, const uint8_t *p, size_t n, int wait_ms)
{
    int64_t until = clock_ns() + wait_ms * NS_PER_MS;

    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (k >= 0) {
            p += k;
            n -= (size_t)k;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return -ECONNRESET;
        if (clock_ns() >= until)
            return -ETIMEDOUT;
        poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, 10);
    }
    return 0;
}

int wire_send(struct wire *w, enum control_kind kind, const struct control_body *body, int wait_ms)
{
    uint8_t out[sizeof(struct control_frame_head) + CONTROL_BODY_MAX + CONTROL_MAC_BYTES];
    struct control_frame_head h = { .length = body ? (uint32_t)body->n : 0, .kind = kind };
    uint8_t mac[SHA256_BYTES];
    int r;

    pthread_mutex_lock(&w->lock);
    h.counter = w->sent;
    r = frame_mac(w, w->me, &h, body ? body->bytes : NULL, mac);
    if (r == 0) {
        memcpy(out, &h, sizeof(h));
        if (h.length > 0)
            memcpy(out + sizeof(h), body->bytes, h.length);
        memcpy(out + sizeof(h) + h.length, mac, CONTROL_MAC_BYTES);
        w->sent++;
        r = send_all(w->fd, out, sizeof(h) + h.length + CONTROL_MAC_BYTES, wait_ms);
    }
    pthread_mutex_unlock(&w->lock);
    return r;
}

/* The frame at the start of rx: 1 whole and right, 0 not all here yet. */
static int check_frame(struct wire *w, struct wire_frame *out)
{
    struct control_frame_head h;
    uint8_t mac[SHA256_BYTES];
    const uint8_t *body = w->rx + sizeof(h);
    int r;

    if (w->have < sizeof(h))
        return 0;
    memcpy(&h, w->rx, sizeof(h));
    if (h.length > CONTROL_BODY_MAX)
        return fail(-EPROTO, "control: frame of %u bytes from rank %d, at most %d", h.length,
                    w->peer, CONTROL_BODY_MAX);
    if (h.counter != w->taken)
        return fail(-EPROTO, "control: frame %llu from rank %d where %llu is due",
                    (unsigned long long)h.counter, w->peer, (unsigned long long)w->taken);
    if (w->have < sizeof(h) + h.length + CONTROL_MAC_BYTES)
        return 0;
    r = frame_mac(w, w->peer, &h, body, mac);
    if (r < 0)
        return r;
    if (!bytes_equal(mac, body + h.length, CONTROL_MAC_BYTES))
        return fail(-EPROTO, "control: frame %llu from rank %d is not authentic",
                    (unsigned long long)h.counter, w->peer);
    if (h.kind == 0 || h.kind >= CONTROL_KINDS)
        return fail(-EPROTO, "control: frame of kind %u from rank %d", h.kind, w->peer);
    w->taken++;
    w->frame = sizeof(h) + h.length + CONTROL_MAC_BYTES;
    *out = (struct wire_frame){ .kind = h.kind, .body = body, .n = h.length };
    return 1;
}

int wire_take(struct wire *w, struct wire_frame *out)
{
    /* the frame handed out last has been used by now */
    w->have -= w->frame;
    memmove(w->rx, w->rx + w->frame, w->have);
    w->frame = 0;
    for (;;) {
        ssize_t n;
        int r = check_frame(w, out);

        if (r != 0)
            return r;
        n = recv(w->fd, w->rx + w->have, sizeof(w->rx) - w->have, MSG_DONTWAIT);
        if (n > 0) {
            w->have += (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        return -ECONNRESET;
    }
}

int control_cancelled(const atomic_int *cancel, const char *who)
{
    int how = cancel ? atomic_load(cancel) : CANCEL_NOT;

    if (how == CANCEL_ASKED)
        log_info("interrupted while waiting for rank %s", who);
    return how != CANCEL_NOT;
}

/* What a rank that is silent has not said. */
static const char *due(enum control_kind kind)
{
    switch (kind) {
    case CONTROL_AGREE:
        return "what its settings are";
    case CONTROL_LISTEN:
        return "where its data port is";
    case CONTROL_TABLE:
        return "that all ranks are there";
    default:
        return "that it is ready";
    }
}

int wire_expect(struct wire *w, enum control_kind kind, int64_t until_ns, const atomic_int *cancel,
                struct wire_frame *out)
{
    for (;;) {
        struct body_reason why;
        char who[16];
        int r = wire_take(w, out);

        if (r == -ECONNRESET)
            return fail(r, "control: rank %d is gone: connection closed", w->peer);
        if (r < 0)
            return r;
        if (r == 1 && out->kind == kind)
            return 0;
        if (r == 1 && out->kind == CONTROL_REFUSE) {
            r = body_reason_unpack(out->body, out->n, &why);
            return r < 0 ? r : fail(-EINVAL, "control: refused by rank %d: %s", w->peer, why.text);
        }
        if (r == 1)
            return fail(-EPROTO, "control: frame of kind %d from rank %d, want %d", out->kind,
                        w->peer, kind);
        snprintf(who, sizeof(who), "%d", w->peer);
        if (control_cancelled(cancel, who))
            return -ECANCELED;
        if (clock_ns() >= until_ns)
            return fail(-ETIMEDOUT, "control: rank %d has not said in time %s", w->peer, due(kind));
        poll(&(struct pollfd){ .fd = w->fd, .events = POLLIN }, 1, 20);
    }
}

int wire_lost(struct wire *w)
{
    char byte;
    ssize_t n = recv(w->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}
