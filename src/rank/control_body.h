/* control_body - bodies of control frames to bytes and back; the home of protobuf-c in the control
 * channel.
 *
 * Packing writes at most CONTROL_BODY_MAX bytes. Unpacking checks every length: what comes out fits
 * its struct. Errors: -EPROTO for bytes that are no such message, -E2BIG for a text that does not
 * fit, -ENOMEM.
 */
#ifndef TANDEM_RANK_CONTROL_BODY_H
#define TANDEM_RANK_CONTROL_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/rank/control.h"
#include "src/rank/progress.h"

enum { CONTROL_BODY_MAX = 65536, CONTROL_VERSION_BYTES = 64, CONTROL_NONCE_BYTES = 32 };

struct body_agree {
    char version[CONTROL_VERSION_BYTES];
    uint8_t text_sha256[GROUP_DIGEST_BYTES];
    const char *text; /* unpack: allocated, the caller frees it */
};

struct body_table {
    uint8_t nonce[CONTROL_NONCE_BYTES];
    int world;
    uint16_t port[GROUP_WORLD_MAX];
};

struct body_beat {
    unsigned state;
    uint64_t uptime_ms, free_bytes;
    struct progress_view at; /* without since_ns */
};

struct body_reason {
    int rank, error;               /* error: a negative errno */
    char text[GROUP_REASON_BYTES]; /* printable */
};

struct body_barrier {
    uint64_t number;
    bool marked;
    uint8_t mark[GROUP_DIGEST_BYTES];
};

struct control_body {
    size_t n;
    uint8_t bytes[CONTROL_BODY_MAX];
};

int body_agree_pack(const struct body_agree *a, struct control_body *out);
int body_agree_unpack(const uint8_t *p, size_t n, struct body_agree *out);
int body_listen_pack(uint16_t port, struct control_body *out);
int body_listen_unpack(const uint8_t *p, size_t n, uint16_t *out);
int body_table_pack(const struct body_table *t, struct control_body *out);
int body_table_unpack(const uint8_t *p, size_t n, struct body_table *out);
int body_beat_pack(const struct body_beat *b, struct control_body *out);
int body_beat_unpack(const uint8_t *p, size_t n, struct body_beat *out);
int body_reason_pack(const struct body_reason *b, struct control_body *out);
int body_reason_unpack(const uint8_t *p, size_t n, struct body_reason *out);
int body_barrier_pack(const struct body_barrier *b, struct control_body *out);
int body_barrier_unpack(const uint8_t *p, size_t n, struct body_barrier *out);

/* control_printable - what came from a peer, fit for a log line: other bytes become '?' */
void control_printable(char *text);

#endif
