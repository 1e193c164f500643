/* control_body - protobuf-c messages of the control channel. */
#include "src/rank/control_body.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.pb-c.h"
#include "src/base/log.h"

static int pack(const ProtobufCMessage *m, struct control_body *out)
{
    size_t n = protobuf_c_message_get_packed_size(m);

    if (n > sizeof(out->bytes))
        return fail(-E2BIG, "control: %s of %zu bytes, at most %zu", m->descriptor->short_name, n,
                    sizeof(out->bytes));
    out->n = protobuf_c_message_pack(m, out->bytes);
    return 0;
}

static void *unpack(const ProtobufCMessageDescriptor *d, const uint8_t *p, size_t n)
{
    void *m = protobuf_c_message_unpack(d, NULL, n, p);

    if (!m)
        fail(-EPROTO, "control: %zu bytes are no %s", n, d->short_name);
    return m;
}

static int bad(const char *what)
{
    return fail(-EPROTO, "control: %s", what);
}

void control_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

int body_agree_pack(const struct body_agree *a, struct control_body *out)
{
    Control__Agree m = CONTROL__AGREE__INIT;

    m.version = (char *)a->version;
    m.text_sha256 = (ProtobufCBinaryData){ GROUP_DIGEST_BYTES, (uint8_t *)a->text_sha256 };
    m.text = (char *)a->text;
    return pack(&m.base, out);
}

int body_agree_unpack(const uint8_t *p, size_t n, struct body_agree *out)
{
    Control__Agree *m = unpack(&control__agree__descriptor, p, n);
    char *text;
    int r = 0;

    if (!m)
        return -EPROTO;
    text = strdup(m->text);
    if (!text) {
        r = fail(-ENOMEM, "control: no memory for the config of a peer");
    } else if (m->text_sha256.len != GROUP_DIGEST_BYTES) {
        r = bad("digest of a wrong length");
        free(text);
    } else {
        snprintf(out->version, sizeof(out->version), "%s", m->version);
        control_printable(out->version);
        memcpy(out->text_sha256, m->text_sha256.data, GROUP_DIGEST_BYTES);
        out->text = text;
    }
    control__agree__free_unpacked(m, NULL);
    return r;
}

int body_listen_pack(uint16_t port, struct control_body *out)
{
    Control__Listen m = CONTROL__LISTEN__INIT;

    m.port = port;
    return pack(&m.base, out);
}

int body_listen_unpack(const uint8_t *p, size_t n, uint16_t *out)
{
    Control__Listen *m = unpack(&control__listen__descriptor, p, n);
    int r = 0;

    if (!m)
        return -EPROTO;
    if (m->port == 0 || m->port > UINT16_MAX)
        r = bad("port out of range");
    else
        *out = (uint16_t)m->port;
    control__listen__free_unpacked(m, NULL);
    return r;
}

int body_table_pack(const struct body_table *t, struct control_body *out)
{
    Control__Table m = CONTROL__TABLE__INIT;
    uint32_t port[GROUP_WORLD_MAX];

    for (int i = 0; i < t->world; i++)
        port[i] = t->port[i];
    m.nonce = (ProtobufCBinaryData){ CONTROL_NONCE_BYTES, (uint8_t *)t->nonce };
    m.n_port = (size_t)t->world;
    m.port = port;
    return pack(&m.base, out);
}

int body_table_unpack(const uint8_t *p, size_t n, struct body_table *out)
{
    Control__Table *m = unpack(&control__table__descriptor, p, n);
    int r = 0;

    if (!m)
        return -EPROTO;
    if (m->nonce.len != CONTROL_NONCE_BYTES || m->n_port > GROUP_WORLD_MAX)
        r = bad("table out of range");
    for (size_t i = 0; r == 0 && i < m->n_port; i++) {
        if (m->port[i] == 0 || m->port[i] > UINT16_MAX)
            r = bad("port out of range");
        out->port[i] = (uint16_t)m->port[i];
    }
    if (r == 0) {
        out->world = (int)m->n_port;
        memcpy(out->nonce, m->nonce.data, CONTROL_NONCE_BYTES);
    }
    control__table__free_unpacked(m, NULL);
    return r;
}

int body_beat_pack(const struct body_beat *b, struct control_body *out)
{
    Control__Beat m = CONTROL__BEAT__INIT;

    m.state = b->state;
    m.uptime_ms = b->uptime_ms;
    m.free_bytes = b->free_bytes;
    m.phase = b->at.phase;
    m.order = b->at.order;
    m.round = b->at.round;
    m.begun = b->at.begun;
    m.ended = b->at.ended;
    m.posted = b->at.posted;
    m.done = b->at.done;
    return pack(&m.base, out);
}

int body_beat_unpack(const uint8_t *p, size_t n, struct body_beat *out)
{
    Control__Beat *m = unpack(&control__beat__descriptor, p, n);

    if (!m)
        return -EPROTO;
    *out = (struct body_beat){ .state = m->state,
                               .uptime_ms = m->uptime_ms,
                               .free_bytes = m->free_bytes,
                               .at = { .phase = m->phase,
                                       .order = m->order,
                                       .round = m->round,
                                       .begun = m->begun,
                                       .ended = m->ended,
                                       .posted = m->posted,
                                       .done = m->done } };
    control__beat__free_unpacked(m, NULL);
    return 0;
}

int body_reason_pack(const struct body_reason *b, struct control_body *out)
{
    Control__Reason m = CONTROL__REASON__INIT;

    m.rank = (uint32_t)b->rank;
    m.text = (char *)b->text;
    m.error = (uint32_t)-b->error;
    return pack(&m.base, out);
}

int body_reason_unpack(const uint8_t *p, size_t n, struct body_reason *out)
{
    Control__Reason *m = unpack(&control__reason__descriptor, p, n);
    int r = 0;

    if (!m)
        return -EPROTO;
    if (m->rank >= GROUP_WORLD_MAX) {
        r = bad("rank out of range");
    } else {
        out->rank = (int)m->rank;
        /* an errno, or the one for faults of a peer */
        out->error = m->error > 0 && m->error < 4096 ? -(int)m->error : -EREMOTEIO;
        snprintf(out->text, sizeof(out->text), "%s", m->text);
        control_printable(out->text);
    }
    control__reason__free_unpacked(m, NULL);
    return r;
}

int body_barrier_pack(const struct body_barrier *b, struct control_body *out)
{
    Control__Barrier m = CONTROL__BARRIER__INIT;

    m.number = b->number;
    if (b->marked)
        m.mark = (ProtobufCBinaryData){ GROUP_DIGEST_BYTES, (uint8_t *)b->mark };
    return pack(&m.base, out);
}

int body_barrier_unpack(const uint8_t *p, size_t n, struct body_barrier *out)
{
    Control__Barrier *m = unpack(&control__barrier__descriptor, p, n);
    int r = 0;

    if (!m)
        return -EPROTO;
    if (m->mark.len != 0 && m->mark.len != GROUP_DIGEST_BYTES) {
        r = bad("mark of a wrong length");
    } else {
        *out = (struct body_barrier){ .number = m->number, .marked = m->mark.len > 0 };
        if (out->marked)
            memcpy(out->mark, m->mark.data, GROUP_DIGEST_BYTES);
    }
    control__barrier__free_unpacked(m, NULL);
    return r;
}
