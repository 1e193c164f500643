/* token_map.c owns the keys while a map is made; nothing outlives the call but the map. */
#include "src/model/token_map.h"
#include "src/base/hash.h"
#include "src/base/utf8.h"
#include "src/model/text.h"
#include "src/model/unicode.h"

#define REPLACEMENT 0xfffd
#define ONE_SPACE "\ue000" /* what the reference has in the place of a text of one space */

/* All distinct keys: their bytes, and a table from key to compressed id. */
struct keys {
    struct text arena;
    size_t *start; /* [n + 1] */
    int32_t *slot; /* open addressing, id + 1; 0 is free */
    uint32_t mask;
    int n;
};

static int keys_init(struct keys *k, int most)
{
    uint32_t size = 16;

    while (size < 2 * (uint32_t)most)
        size *= 2;
    *k = (struct keys){ .mask = size - 1 };
    k->start = (size_t *)calloc((size_t)most + 1, sizeof(*k->start));
    k->slot = (int32_t *)calloc(size, sizeof(*k->slot));
    return k->start && k->slot ? 0 : fail(-ENOMEM, "no memory for a token map of %d", most);
}

static void keys_free(struct keys *k)
{
    text_free(&k->arena);
    free(k->start);
    free(k->slot);
}

/* The id of a key, a new one if it was not seen before. */
static int keys_put(struct keys *k, const char *s, size_t bytes)
{
    uint64_t h = fnv1a64(FNV1A64_INIT, s, bytes);
    uint32_t i = (uint32_t)(h ^ h >> 32) & k->mask;
    int r;

    for (; k->slot[i]; i = (i + 1) & k->mask) {
        int id = k->slot[i] - 1;

        if (k->start[id + 1] - k->start[id] == bytes &&
            (bytes == 0 || memcmp(k->arena.s + k->start[id], s, bytes) == 0))
            return id;
    }
    r = text_add(&k->arena, s, bytes);
    if (r < 0)
        return r;
    k->slot[i] = ++k->n;
    k->start[k->n] = k->arena.bytes;
    return k->n - 1;
}

static bool has_replacement(const char *s, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        unsigned code;

        i += (size_t)unicode_next(s + i, bytes - i, &code);
        if (code == REPLACEMENT)
            return true;
    }
    return false;
}

/* Marks go, letters are lowered, runs of the four spaces become one. */
static int strip_and_lower(const struct text *in, struct text *out)
{
    bool in_run = false;
    int r;

    out->bytes = 0;
    r = text_room(out, 4 * in->bytes);
    for (size_t i = 0; r >= 0 && i < in->bytes;) {
        unsigned code;
        bool space;

        i += (size_t)unicode_next(in->s + i, in->bytes - i, &code);
        if (unicode_is_mark(code))
            continue;
        space = code == ' ' || code == '\t' || code == '\r' || code == '\n';
        if (space && in_run)
            continue;
        in_run = space;
        out->bytes += (size_t)utf8_encode(space ? ' ' : unicode_lower(code), out->s + out->bytes);
    }
    return r;
}

/* Cut White_Space from both ends, unless the text is exactly one space. */
static void cut_ends(const char **s, size_t *bytes)
{
    unsigned code;
    int n;

    if (*bytes == 1 && **s == ' ')
        return;
    while (*bytes > 0) {
        n = unicode_next(*s, *bytes, &code);
        if (!unicode_is_space(code))
            break;
        *s += n;
        *bytes -= (size_t)n;
    }
    while (*bytes > 0) {
        n = unicode_last(*s, *bytes, &code);
        if (!unicode_is_space(code))
            break;
        *bytes -= (size_t)n;
    }
}

/* The reference takes it back everywhere, as a space, once the ends are cut. */
static void take_back(char *s, size_t *bytes)
{
    size_t n = 0, step = strlen(ONE_SPACE);

    for (size_t i = 0; i < *bytes; n++) {
        bool is = *bytes - i >= step && memcmp(s + i, ONE_SPACE, step) == 0;

        s[n] = is ? ' ' : s[i];
        i += is ? step : 1;
    }
    *bytes = n;
}

struct folding {
    struct keys keys;
    struct text a, b;
};

/* The compressed id of one token. */
static int fold_token(struct folding *f, const struct tokenizer *t, int id)
{
    size_t bytes, whole, n;
    const char *text = tokenizer_bytes(t, id, &bytes);
    const char *key;
    int r;

    if (utf8_scan(text, bytes, &whole) != UTF8_NONE || has_replacement(text, bytes)) {
        text = tokenizer_spelling(t, id, &bytes);
        return keys_put(&f->keys, text, bytes);
    }
    f->a.bytes = f->b.bytes = 0;
    r = unicode_normalize(UNICODE_NFKC, text, bytes, &f->a);
    if (r >= 0)
        r = unicode_normalize(UNICODE_NFD, f->a.s, f->a.bytes, &f->b);
    if (r >= 0)
        r = strip_and_lower(&f->b, &f->a);
    if (r < 0)
        return r;
    key = f->a.s;
    n = f->a.bytes;
    cut_ends(&key, &n);
    take_back(f->a.s + (key - f->a.s), &n);
    return n > 0 ? keys_put(&f->keys, key, n) : keys_put(&f->keys, text, bytes);
}

int token_map_build(const struct tokenizer *t, int vocab, int want, int32_t **map)
{
    struct folding f = { 0 };
    int32_t *m;
    int r;

    if (vocab < 1 || tokenizer_vocab(t) > vocab)
        return fail(-EINVAL, "token map: the tokenizer has ids up to %d, the model %d rows",
                    tokenizer_vocab(t) - 1, vocab);
    m = (int32_t *)calloc((size_t)vocab, sizeof(*m));
    if (!m)
        return fail(-ENOMEM, "no memory for a token map of %d", vocab);
    r = keys_init(&f.keys, vocab);
    for (int id = 0; r >= 0 && id < vocab; id++)
        if (tokenizer_flags(t, id))
            r = m[id] = fold_token(&f, t, id);
    if (r >= 0 && f.keys.n != want)
        r = fail(-EINVAL, "token map: %d distinct compressed ids, the model was made with %d",
                 f.keys.n, want);
    if (r < 0)
        free(m);
    else
        *map = m;
    keys_free(&f.keys);
    text_free(&f.a);
    text_free(&f.b);
    return r < 0 ? r : 0;
}
