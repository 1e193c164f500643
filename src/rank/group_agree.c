/* group_agree - the sentence that says in what two ranks differ. */
#include "src/rank/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/rank/control_body.h"

enum { AGREE_KEYS_SHOWN = 3, AGREE_KEY_MAX = 64, AGREE_VALUE_MAX = 64, AGREE_LINE_MAX = 640 };

/* One `key = value` line of a sorted text. */
struct agree_line {
    const char *key, *value;
    int key_n, value_n;
};

/* Split the line at *text off and step behind it; 0 at the end. */
static int next_line(const char **text, struct agree_line *out)
{
    const char *p = *text, *end, *eq;

    if (*p == 0)
        return 0;
    end = strchrnul(p, '\n');
    eq = memmem(p, (size_t)(end - p), " = ", 3);
    out->key = p;
    out->key_n = (int)((eq ? eq : end) - p);
    out->value = eq ? eq + 3 : end;
    out->value_n = (int)(end - out->value);
    *text = *end ? end + 1 : end;
    return 1;
}

static int line_order(const struct agree_line *a, const struct agree_line *b)
{
    int n = a->key_n < b->key_n ? a->key_n : b->key_n, d = memcmp(a->key, b->key, (size_t)n);

    return d ? d : a->key_n - b->key_n;
}

static int clip(int n, int most)
{
    return n < most ? n : most;
}

/* Append what differs; a line that is missing on one side is NULL. */
static size_t say(char *at, size_t cap, const struct agree_line *mine,
                  const struct agree_line *theirs, int peer)
{
    const struct agree_line *l = mine ? mine : theirs;
    int n = snprintf(at, cap, "%.*s is ", clip(l->key_n, AGREE_KEY_MAX), l->key);

    if (mine)
        n += snprintf(at + n, cap - (size_t)n, "%.*s here, ", clip(mine->value_n, AGREE_VALUE_MAX),
                      mine->value);
    else
        n += snprintf(at + n, cap - (size_t)n, "not known here, ");
    if (theirs)
        n += snprintf(at + n, cap - (size_t)n, "%.*s on rank %d",
                      clip(theirs->value_n, AGREE_VALUE_MAX), theirs->value, peer);
    else
        n += snprintf(at + n, cap - (size_t)n, "not known on rank %d", peer);
    return (size_t)n;
}

static int agree_text(const char *mine, const char *theirs, int peer)
{
    char line[AGREE_LINE_MAX];
    struct agree_line a, b;
    size_t n = 0;
    int has_a = next_line(&mine, &a), has_b = next_line(&theirs, &b), differ = 0;

    line[0] = 0;
    while (has_a || has_b) {
        int d = !has_b ? -1 : !has_a ? 1 : line_order(&a, &b);
        int same =
            d == 0 && a.value_n == b.value_n && memcmp(a.value, b.value, (size_t)a.value_n) == 0;

        if (!same && ++differ <= AGREE_KEYS_SHOWN) {
            n += (size_t)snprintf(line + n, sizeof(line) - n, "%s", n ? "; " : "");
            n += say(line + n, sizeof(line) - n, d <= 0 ? &a : NULL, d >= 0 ? &b : NULL, peer);
        }
        if (d <= 0)
            has_a = next_line(&mine, &a);
        if (d >= 0)
            has_b = next_line(&theirs, &b);
    }
    if (differ == 0)
        return 0;
    control_printable(line);
    if (differ > AGREE_KEYS_SHOWN)
        return fail(-EINVAL, "config differs: %s; and %d more", line, differ - AGREE_KEYS_SHOWN);
    return fail(-EINVAL, "config differs: %s", line);
}

int group_agree(const struct body_agree *mine, const struct body_agree *theirs, int peer)
{
    int r;

    if (strcmp(mine->version, theirs->version) != 0)
        return fail(-EINVAL, "rank %d runs version %s, this is %s; install the same build on both",
                    peer, theirs->version, mine->version);
    r = agree_text(mine->text, theirs->text, peer);
    if (r < 0)
        return r;
    if (memcmp(mine->text_sha256, theirs->text_sha256, GROUP_DIGEST_BYTES) != 0)
        return fail(-EINVAL, "config of rank %d has another digest than its text", peer);
    return 0;
}

void group_differ(const char *const *what, const uint8_t *mine, const uint8_t *theirs, int peer,
                  char *out, size_t cap)
{
    char a[HEX_CAP(4)], b[HEX_CAP(4)];
    int i = 0;

    while (i < GROUP_MARK_PARTS - 1 && memcmp(mine + 4 * i, theirs + 4 * i, 4) == 0)
        i++;
    snprintf(out, cap, "packs differ: %s %s... here, %s... on rank %d; pack the same model again",
             what[i], hex_format(mine + 4 * i, 4, a), hex_format(theirs + 4 * i, 4, b), peer);
}
