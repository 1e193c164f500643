/* stop.c owns the search for stop strings; which tokens are special and what bytes they have is the
 * tokenizer's. */
#include "src/rank/stop.h"

#include "src/base/utf8.h"

int stop_check(const char *stop)
{
    size_t bytes = strlen(stop), whole;

    if (bytes == 0)
        return fail(-EINVAL, "stop string is empty");
    if (bytes > STOP_BYTES_MAX)
        return fail(-EINVAL, "stop string has %zu bytes, at most %d", bytes, STOP_BYTES_MAX);
    if (utf8_scan(stop, bytes, &whole) != UTF8_NONE)
        return fail(-EINVAL, "stop string is not UTF-8 at byte %zu", whole);
    return 0;
}

void stop_init(struct stop_scan *s, const char *const *stop, int n)
{
    *s = (struct stop_scan){ .stop = stop, .n = n };
}

void stop_free(struct stop_scan *s)
{
    text_free(&s->held);
}

/* Where the longest stop begins that ends just before `end`; end itself if none does. */
static size_t stop_before(const struct stop_scan *s, size_t end)
{
    size_t from = end;

    for (int i = 0; i < s->n; i++) {
        size_t bytes = strlen(s->stop[i]);

        if (bytes <= end && end - bytes < from &&
            memcmp(s->held.s + end - bytes, s->stop[i], bytes) == 0)
            from = end - bytes;
    }
    return from;
}

/* Where the longest tail begins that is the beginning of a stop. */
static size_t undecided(const struct stop_scan *s)
{
    size_t all = s->held.bytes, from = all;

    for (int i = 0; i < s->n; i++) {
        size_t most = strlen(s->stop[i]) - 1;

        for (size_t n = most < all ? most : all; n > all - from; n--)
            if (memcmp(s->held.s + all - n, s->stop[i], n) == 0) {
                from = all - n;
                break;
            }
    }
    return from;
}

/* Let the first n held bytes through, except half a character at their end unless `last`. */
static int let_through(struct stop_scan *s, size_t n, bool last, struct text *out)
{
    size_t used = 0;
    int r = text_room(out, 3 * n);

    if (r < 0)
        return r;
    if (n > 0)
        out->bytes += utf8_repair(s->held.s, n, last, out->s + out->bytes, &used);
    s->held.bytes -= used;
    memmove(s->held.s, s->held.s + used, s->held.bytes);
    return 0;
}

int stop_add(struct stop_scan *s, const char *bytes, size_t n, struct text *out)
{
    size_t old = s->held.bytes;
    int r;

    if (s->done || n == 0)
        return s->done;
    r = text_add(&s->held, bytes, n);
    if (r < 0)
        return r;
    for (size_t end = old + 1; end <= s->held.bytes; end++) {
        size_t from = stop_before(s, end);

        if (from == end)
            continue;
        s->done = true;
        r = let_through(s, from, true, out);
        s->held.bytes = 0;
        return r < 0 ? r : 1;
    }
    return let_through(s, undecided(s), false, out);
}

int stop_end(struct stop_scan *s, struct text *out)
{
    if (s->done || s->held.bytes == 0)
        return 0;
    s->done = true;
    return let_through(s, s->held.bytes, true, out);
}
