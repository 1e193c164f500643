/* hash - digests, keyed digests and random bytes; the one home of libcrypto and xxhash.
 *
 * SHA-256 and HMAC-SHA256 say that two ranks mean the same thing and know the same secret, XXH3-128
 * says that a tensor's bytes are whole, FNV-1a-64 runs over every outcome of every round.
 */
#ifndef TANDEM_BASE_HASH_H
#define TANDEM_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32
#define XXH3_BYTES 16
#define HEX_CAP(bytes) (2 * (bytes) + 1) /* room for hex_format of so many bytes */

/* sha256_of - SHA-256 of bytes at data.
 * errors   -ENOMEM or -EIO when libcrypto fails; logged
 */
int sha256_of(const void *data, size_t bytes, uint8_t out[SHA256_BYTES]);

/* struct sha256 - the same over data that comes in pieces: open, add ..., end, close.
 *
 * errors   open: -ENOMEM. A failure of add is kept and returned by end, once for all pieces
 * owns     open allocates, close frees; after end the object starts again, empty
 */
struct sha256;

int sha256_open(struct sha256 **out);
void sha256_add(struct sha256 *s, const void *data, size_t bytes);
void sha256_add_u64(struct sha256 *s, uint64_t v); /* its bytes as they lie in memory */
int sha256_end(struct sha256 *s, uint8_t out[SHA256_BYTES]);
void sha256_close(struct sha256 *s);

/* hmac_sha256 - HMAC-SHA256 (RFC 2104) of bytes at data under a key of any length, 0 included.
 * errors   -EINVAL for a key above 2^31 - 1 bytes, -EIO when libcrypto fails
 */
int hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                uint8_t out[SHA256_BYTES]);

/* bytes_equal - memcmp() == 0 in a time that does not depend on the contents; for proofs and
 * secrets.
 */
bool bytes_equal(const void *a, const void *b, size_t bytes);

/* hex_format - lowercase hex and a NUL; out has room for HEX_CAP(bytes). Returns out. */
char *hex_format(const void *data, size_t bytes, char *out);

/* random_bytes - fill with getrandom(2): nonces, default seeds.
 * errors   the errno of getrandom
 */
int random_bytes(void *out, size_t bytes);

/* xxh3_of - XXH3-128 (seed 0) in its canonical byte order, high word first, big endian: what
 * xxh128sum prints.
 */
void xxh3_of(const void *data, size_t bytes, uint8_t out[XXH3_BYTES]);

/* struct xxh3 - the same over data that comes in pieces; pieces do not change the digest.
 * errors   open: -ENOMEM; nothing else can fail
 * owns     open allocates, close frees; after end the object starts again, empty
 */
struct xxh3;

int xxh3_open(struct xxh3 **out);
void xxh3_add(struct xxh3 *s, const void *data, size_t bytes);
void xxh3_end(struct xxh3 *s, uint8_t out[XXH3_BYTES]);
void xxh3_close(struct xxh3 *s);

#define FNV1A64_INIT UINT64_C(0xcbf29ce484222325)

/* fnv1a64 - continue the FNV-1a-64 digest h (at first FNV1A64_INIT) over bytes at data. */
static inline uint64_t fnv1a64(uint64_t h, const void *data, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)data;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* fnv1a64_u32 - the same over v in 32-bit little endian, whatever the machine's byte order. */
static inline uint64_t fnv1a64_u32(uint64_t h, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        h = (h ^ (v >> (8 * i) & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

#endif
