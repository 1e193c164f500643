#include "src/base/hash.h"

#include <errno.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/base/capture.h"

struct digest_case {
    const char *key, *text, *hex;
};

/* FIPS 180-2 and the empty text. */
static const struct digest_case sha_cases[] = {
    { .text = "", .hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
    { .text = "abc", .hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
    { .text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
      .hex = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
};

/* RFC 4231, cases 2 and 1, and the empty key. */
static const struct digest_case hmac_cases[] = {
    { .key = "Jefe",
      .text = "what do ya want for nothing?",
      .hex = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
    { .key = "\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b",
      .text = "Hi There",
      .hex = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
    { .key = "",
      .text = "",
      .hex = "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad" },
};

static char *hex32(const uint8_t *d)
{
    static char text[HEX_CAP(SHA256_BYTES)];

    return hex_format(d, SHA256_BYTES, text);
}

Test(hash, sha256_known_answers_whole_and_in_pieces)
{
    struct sha256 *s;
    uint8_t d[SHA256_BYTES];

    cr_assert(eq(int, sha256_open(&s), 0));
    for (size_t i = 0; i < sizeof(sha_cases) / sizeof(sha_cases[0]); i++) {
        const char *text = sha_cases[i].text;
        size_t n = strlen(text);

        cr_expect(eq(int, sha256_of(text, n, d), 0));
        cr_expect(eq(str, hex32(d), (char *)sha_cases[i].hex));
        for (size_t cut = 0; cut <= n; cut++) {
            sha256_add(s, text, cut);
            sha256_add(s, text + cut, n - cut);
            cr_expect(eq(int, sha256_end(s, d), 0));
            cr_expect(eq(str, hex32(d), (char *)sha_cases[i].hex));
        }
    }
    for (int i = 0; i < 1000; i++)
        sha256_add(s, memset((char[1000]){ 0 }, 'a', 1000), 1000);
    cr_expect(eq(int, sha256_end(s, d), 0));
    cr_expect(eq(str, hex32(d),
                 (char *)"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    sha256_close(s);
    sha256_close(NULL);
}

Test(hash, hmac_known_answers)
{
    uint8_t d[SHA256_BYTES];

    for (size_t i = 0; i < sizeof(hmac_cases) / sizeof(hmac_cases[0]); i++) {
        const struct digest_case *c = &hmac_cases[i];

        cr_expect(eq(int, hmac_sha256(c->key, strlen(c->key), c->text, strlen(c->text), d), 0));
        cr_expect(eq(str, hex32(d), (char *)c->hex));
    }
    /* An empty key without an address is still the empty key. */
    cr_expect(eq(int, hmac_sha256(NULL, 0, "", 0, d), 0));
    cr_expect(eq(str, hex32(d), (char *)hmac_cases[2].hex));
}

Test(hash, hmac_refuses_an_absurd_key)
{
    struct capture log;
    uint8_t d[SHA256_BYTES];

    capture_start(&log);
    cr_expect(eq(int, hmac_sha256("", (size_t)1 << 31, "", 0, d), -EINVAL));
    cr_expect(eq(int, log.lines, 1));
}

Test(hash, xxh3_pieces_do_not_change_the_digest)
{
    static uint8_t data[5000];
    uint8_t whole[XXH3_BYTES], parts[XXH3_BYTES];
    char text[HEX_CAP(XXH3_BYTES)];
    struct xxh3 *s;

    xxh3_of("", 0, whole);
    cr_expect(eq(str, hex_format(whole, sizeof(whole), text),
                 (char *)"99aa06d3014798d86001c324468d497f"));
    xxh3_of("a", 1, whole);
    cr_expect(eq(str, hex_format(whole, sizeof(whole), text),
                 (char *)"a96faf705af16834e6c632b61e964e1f"));
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * i >> 3);
    xxh3_of(data, sizeof(data), whole);
    cr_assert(eq(int, xxh3_open(&s), 0));
    for (size_t piece = 1; piece <= sizeof(data); piece = piece * 3 + 1) {
        for (size_t at = 0; at < sizeof(data); at += piece)
            xxh3_add(s, data + at, at + piece < sizeof(data) ? piece : sizeof(data) - at);
        xxh3_end(s, parts);
        cr_expect(memcmp(whole, parts, sizeof(whole)) == 0, "pieces of %zu", piece);
    }
    data[4999] ^= 1;
    xxh3_of(data, sizeof(data), parts);
    cr_expect(memcmp(whole, parts, sizeof(whole)) != 0);
    xxh3_close(s);
    xxh3_close(NULL);
}

Test(hash, fnv1a64_known_answers)
{
    uint64_t h = fnv1a64(FNV1A64_INIT, "foo", 3);
    uint8_t little[4] = { 0x78, 0x56, 0x34, 0x12 };

    cr_expect(eq(u64, fnv1a64(FNV1A64_INIT, "", 0), UINT64_C(0xcbf29ce484222325)));
    cr_expect(eq(u64, fnv1a64(FNV1A64_INIT, "a", 1), UINT64_C(0xaf63dc4c8601ec8c)));
    cr_expect(eq(u64, fnv1a64(h, "bar", 3), UINT64_C(0x85944171f73967e8)));
    cr_expect(eq(u64, fnv1a64_u32(h, 0x12345678), fnv1a64(h, little, 4)));
}

Test(hash, hex_is_lowercase)
{
    const uint8_t data[] = { 0x00, 0x7f, 0x80, 0xff };
    char text[HEX_CAP(4)];

    cr_expect(eq(str, hex_format(data, 4, text), (char *)"007f80ff"));
}

Test(hash, random_bytes_and_comparison)
{
    uint8_t a[64] = { 0 }, b[64] = { 0 };

    cr_expect(bytes_equal(a, b, 64));
    b[63] = 1;
    cr_expect(not(bytes_equal(a, b, 64)));
    cr_expect(bytes_equal(a, b, 0));
    cr_expect(eq(int, random_bytes(a, 64), 0));
    cr_expect(eq(int, random_bytes(b, 64), 0));
    cr_expect(not(bytes_equal(a, b, 64)));
    cr_expect(eq(int, random_bytes(a, 0), 0));
}
