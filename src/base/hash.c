/* hash.c owns the objects of libcrypto and xxhash; nothing else includes their headers. */
#include "src/base/hash.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include "src/base/log.h"

struct sha256 {
    EVP_MD_CTX *ctx;
    bool broken;
};

static int crypto_fail(const char *what)
{
    char text[256];

    ERR_error_string_n(ERR_get_error(), text, sizeof(text));
    return fail(-EIO, "%s: %s", what, text);
}

int sha256_of(const void *data, size_t bytes, uint8_t out[SHA256_BYTES])
{
    uint8_t digest[SHA256_BYTES];

    if (EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL) != 1)
        return crypto_fail("sha256");
    memcpy(out, digest, sizeof(digest));
    return 0;
}

int sha256_open(struct sha256 **out)
{
    struct sha256 *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(-ENOMEM, "sha256: no memory");
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx) {
        free(s);
        return fail(-ENOMEM, "sha256: no memory");
    }
    if (EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        sha256_close(s);
        return crypto_fail("sha256");
    }
    *out = s;
    return 0;
}

void sha256_add(struct sha256 *s, const void *data, size_t bytes)
{
    if (bytes > 0 && EVP_DigestUpdate(s->ctx, data, bytes) != 1)
        s->broken = true;
}

void sha256_add_u64(struct sha256 *s, uint64_t v)
{
    sha256_add(s, &v, sizeof(v));
}

int sha256_end(struct sha256 *s, uint8_t out[SHA256_BYTES])
{
    uint8_t digest[SHA256_BYTES];
    bool ok = !s->broken && EVP_DigestFinal_ex(s->ctx, digest, NULL) == 1;

    s->broken = EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1;
    if (!ok)
        return crypto_fail("sha256");
    memcpy(out, digest, sizeof(digest));
    return 0;
}

void sha256_close(struct sha256 *s)
{
    if (!s)
        return;
    EVP_MD_CTX_free(s->ctx);
    free(s);
}

int hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                uint8_t out[SHA256_BYTES])
{
    uint8_t digest[SHA256_BYTES];

    if (key_bytes > INT_MAX)
        return fail(-EINVAL, "hmac: key of %zu bytes", key_bytes);
    /* A NULL key means "the key of the last call" to libcrypto, an empty one does not. */
    if (!HMAC(EVP_sha256(), key_bytes > 0 ? key : "", (int)key_bytes, data, bytes, digest, NULL))
        return crypto_fail("hmac");
    memcpy(out, digest, sizeof(digest));
    return 0;
}

bool bytes_equal(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

char *hex_format(const void *data, size_t bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * bytes] = 0;
    return out;
}

int random_bytes(void *out, size_t bytes)
{
    uint8_t *p = out;

    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(-errno, "getrandom: %s", strerror(errno));
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

struct xxh3 {
    XXH3_state_t *state;
};

static void xxh3_put(XXH128_hash_t h, uint8_t out[XXH3_BYTES])
{
    XXH128_canonical_t c;

    XXH128_canonicalFromHash(&c, h);
    memcpy(out, c.digest, XXH3_BYTES);
}

void xxh3_of(const void *data, size_t bytes, uint8_t out[XXH3_BYTES])
{
    xxh3_put(XXH3_128bits(data, bytes), out);
}

int xxh3_open(struct xxh3 **out)
{
    struct xxh3 *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(-ENOMEM, "xxh3: no memory");
    s->state = XXH3_createState(); /* the state wants an alignment that malloc does not promise */
    if (!s->state) {
        free(s);
        return fail(-ENOMEM, "xxh3: no memory");
    }
    XXH3_128bits_reset(s->state);
    *out = s;
    return 0;
}

void xxh3_add(struct xxh3 *s, const void *data, size_t bytes)
{
    if (bytes > 0)
        XXH3_128bits_update(s->state, data, bytes);
}

void xxh3_end(struct xxh3 *s, uint8_t out[XXH3_BYTES])
{
    xxh3_put(XXH3_128bits_digest(s->state), out);
    XXH3_128bits_reset(s->state);
}

void xxh3_close(struct xxh3 *s)
{
    if (!s)
        return;
    XXH3_freeState(s->state);
    free(s);
}
