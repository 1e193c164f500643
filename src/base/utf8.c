/* utf8.c owns the table of well-formed UTF-8 (Unicode, table 3-7). */
#include "src/base/utf8.h"

#include <string.h>

/* How a sequence goes on behind its first byte: its length and the bounds of the second byte, which
 * alone keep out overlong forms, surrogates and what lies above U+10FFFF. Length 0: no first byte.
 */
struct lead {
    int bytes;
    unsigned char low, high;
};

static struct lead lead_of(unsigned char c)
{
    if (c < 0x80)
        return (struct lead){ 1, 0, 0 };
    if (c >= 0xc2 && c <= 0xdf)
        return (struct lead){ 2, 0x80, 0xbf };
    if (c >= 0xe0 && c <= 0xef)
        return (struct lead){ 3, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf };
    if (c >= 0xf0 && c <= 0xf4)
        return (struct lead){ 4, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf };
    return (struct lead){ 0, 0, 0 };
}

/* How many bytes at s, at least 1, belong together, and whether they are whole, may become so, or
 * never will.
 */
static enum utf8_rest take(const char *s, size_t bytes, size_t *n)
{
    const unsigned char *p = (const unsigned char *)s;
    struct lead l = lead_of(p[0]);

    *n = 1;
    if (l.bytes == 0)
        return UTF8_BAD;
    while (*n < (size_t)l.bytes) {
        unsigned char low = *n == 1 ? l.low : 0x80, high = *n == 1 ? l.high : 0xbf;

        if (*n == bytes)
            return UTF8_PART;
        if (p[*n] < low || p[*n] > high)
            return UTF8_BAD;
        ++*n;
    }
    return UTF8_NONE;
}

enum utf8_rest utf8_scan(const char *s, size_t bytes, size_t *whole)
{
    size_t at = 0, n;
    enum utf8_rest rest = UTF8_NONE;

    while (at < bytes) {
        rest = take(s + at, bytes - at, &n);
        if (rest != UTF8_NONE)
            break;
        at += n;
    }
    *whole = at;
    return rest;
}

size_t utf8_repair(const char *s, size_t bytes, bool last, char *out, size_t *used)
{
    size_t at = 0, put = 0, n;

    while (at < bytes) {
        enum utf8_rest rest = take(s + at, bytes - at, &n);

        if (rest == UTF8_PART && !last)
            break;
        if (rest == UTF8_NONE) {
            memcpy(out + put, s + at, n);
            put += n;
        } else {
            memcpy(out + put, "\xef\xbf\xbd", 3);
            put += 3;
        }
        at += n;
    }
    *used = at;
    return put;
}

int utf8_encode(unsigned code, char out[4])
{
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        code = 0xfffd;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}
