/* vocab.c owns the table of tokens and the byte alphabet. */
#include "src/model/vocab.h"
#include "src/base/hash.h"
#include "src/base/utf8.h"
#include "src/model/unicode.h"

/* Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onward in
 * order. */
static bool stands_for_itself(unsigned c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

int byte_letter(unsigned char byte, char out[4])
{
    unsigned code = 256;

    if (stands_for_itself(byte))
        return utf8_encode(byte, out);
    for (unsigned b = 0; b < byte; b++)
        code += !stands_for_itself(b);
    return utf8_encode(code, out);
}

/* The inverse; -1 for a character outside the alphabet. */
static int letter_byte(unsigned code)
{
    unsigned nth = 256;

    if (code < 256)
        return stands_for_itself(code) ? (int)code : -1;
    if (code >= 256 + 68)
        return -1;
    for (unsigned b = 0; b < 256; b++)
        if (!stands_for_itself(b) && nth++ == code)
            return (int)b;
    return -1;
}

static int put_bytes(struct text *arena, const char *raw, size_t n)
{
    size_t start = arena->bytes;
    int r = text_room(arena, n);

    if (r < 0)
        return r;
    for (size_t i = 0; i < n;) {
        unsigned code;
        int byte;

        i += (size_t)unicode_next(raw + i, n - i, &code);
        byte = letter_byte(code);
        if (byte < 0) {
            arena->bytes = start;
            return text_add(arena, raw, n);
        }
        arena->s[arena->bytes++] = (char)byte;
    }
    return 0;
}

static uint32_t spelling_hash(const char *raw, size_t n)
{
    uint64_t h = fnv1a64(FNV1A64_INIT, raw, n);

    return (uint32_t)(h ^ h >> 32);
}

static void slot_put(struct vocab *v, int id)
{
    const struct token *t = &v->tokens[id];
    uint32_t i = spelling_hash(v->arena.s + t->raw, t->n_raw) & v->mask;

    while (v->slots[i])
        i = (i + 1) & v->mask;
    v->slots[i] = id + 1;
}

static int grow_slots(struct vocab *v)
{
    uint32_t size = v->slots ? 2 * (v->mask + 1) : 1024;
    int32_t *slots = (int32_t *)calloc(size, sizeof(*slots));

    if (!slots)
        return fail(-ENOMEM, "no memory for a vocabulary of %u", size);
    free(v->slots);
    v->slots = slots;
    v->mask = size - 1;
    for (int i = 0; i < v->n; i++)
        if (v->tokens[i].flags)
            slot_put(v, i);
    return 0;
}

static int grow_tokens(struct vocab *v, int n)
{
    int cap = v->cap ? v->cap : 1024;
    struct token *tokens;

    while (cap < n)
        cap *= 2;
    if (cap > v->cap) {
        tokens = (struct token *)realloc(v->tokens, (size_t)cap * sizeof(*tokens));
        if (!tokens)
            return fail(-ENOMEM, "no memory for a vocabulary of %d", cap);
        v->tokens = tokens;
        v->cap = cap;
    }
    if (n > v->n) {
        memset(v->tokens + v->n, 0, (size_t)(n - v->n) * sizeof(*v->tokens));
        v->n = n;
    }
    return 0;
}

static int put_new(struct vocab *v, const char *raw, size_t n, int id, unsigned flags)
{
    struct token t = { .flags = flags | TOKEN_KNOWN, .n_raw = (uint16_t)n };
    int r = 0;

    if (!v->slots || 2 * (uint32_t)(v->count + 1) > v->mask)
        r = grow_slots(v);
    if (r >= 0)
        r = grow_tokens(v, id + 1);
    if (r < 0)
        return r;
    t.raw = (uint32_t)v->arena.bytes;
    r = text_add(&v->arena, raw, n);
    if (r < 0)
        return r;
    t.bytes = (uint32_t)v->arena.bytes;
    r = flags & TOKEN_ADDED ? text_add(&v->arena, raw, n) : put_bytes(&v->arena, raw, n);
    if (r < 0)
        return r;
    t.n_bytes = (uint16_t)(v->arena.bytes - t.bytes);
    v->tokens[id] = t;
    v->count++;
    v->longest_raw = (int)n > v->longest_raw ? (int)n : v->longest_raw;
    v->longest_bytes = t.n_bytes > v->longest_bytes ? t.n_bytes : v->longest_bytes;
    slot_put(v, id);
    return 0;
}

int vocab_put(struct vocab *v, const char *raw, int64_t id, unsigned flags, const char *name)
{
    size_t n = strlen(raw);
    const struct token *old = vocab_token(v, id);
    int same;

    if (n == 0 || n > VOCAB_TOKEN_BYTES)
        return fail(-EINVAL, "%s: token %lld has %zu bytes, want 1 .. %d", name, (long long)id, n,
                    VOCAB_TOKEN_BYTES);
    if (id < 0 || id >= VOCAB_MAX)
        return fail(-EINVAL, "%s: token `%s` has id %lld, want 0 .. %d", name, raw, (long long)id,
                    VOCAB_MAX - 1);
    if (v->arena.bytes + 2 * n > UINT32_MAX)
        return fail(-EINVAL, "%s: the vocabulary is larger than 4 GiB", name);
    same = vocab_find(v, raw, n);
    if (same < 0 && !old)
        return put_new(v, raw, n, (int)id, flags);
    if (same < 0)
        return fail(-EINVAL, "%s: id %lld of token `%s` belongs to `%.*s`", name, (long long)id,
                    raw, old->n_raw, v->arena.s + old->raw);
    if (same != id || !(flags & TOKEN_ADDED) || v->tokens[same].flags & TOKEN_ADDED)
        return fail(-EINVAL, "%s: token `%s` twice, with ids %d and %lld", name, raw, same,
                    (long long)id);
    /* From here on the text of the token is its spelling. */
    v->tokens[same].flags |= flags;
    v->tokens[same].bytes = v->tokens[same].raw;
    v->tokens[same].n_bytes = v->tokens[same].n_raw;
    v->longest_bytes = (int)n > v->longest_bytes ? (int)n : v->longest_bytes;
    return 0;
}

int vocab_find(const struct vocab *v, const char *raw, size_t bytes)
{
    if (!v->slots)
        return -1;
    for (uint32_t i = spelling_hash(raw, bytes) & v->mask; v->slots[i]; i = (i + 1) & v->mask) {
        const struct token *t = &v->tokens[v->slots[i] - 1];

        if (t->n_raw == bytes && memcmp(v->arena.s + t->raw, raw, bytes) == 0)
            return v->slots[i] - 1;
    }
    return -1;
}

const struct token *vocab_token(const struct vocab *v, int64_t id)
{
    return id >= 0 && id < v->n && v->tokens[id].flags ? &v->tokens[id] : NULL;
}

void vocab_free(struct vocab *v)
{
    free(v->tokens);
    free(v->slots);
    text_free(&v->arena);
    *v = (struct vocab){ 0 };
}
