/* bpe.c owns the merge table and the merging of words; the vocabulary is its lender's. */
#include "src/model/bpe.h"

struct merge {
    int32_t left, right, result; /* result -1: the slot is free */
    uint32_t rank;
};

struct bpe {
    const struct vocab *vocab;
    struct merge *merges; /* open addressing by (left, right) */
    uint32_t mask;
    struct letter {
        char s[4];
        int bytes;
    } letter[256];        /* the byte alphabet */
    int32_t byte_id[256]; /* -1: the byte does not occur in UTF-8 and has no token */
    bool whole_words;
};

/* A piece of the word: symbols form a list in word order, indexed by their first byte. */
struct bpe_symbol {
    int32_t id; /* -1: joined to the symbol before */
    int32_t before, after;
};

/* A pair that can be joined, seen when it became neighbours; it may have ceased to exist since. */
struct bpe_pair {
    uint64_t order; /* rank, then place */
    const struct merge *merge;
};

int ids_add(struct ids *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        int32_t *p = (int32_t *)realloc(l->id, cap * sizeof(*p));

        if (!p)
            return fail(-ENOMEM, "no memory for %zu token ids", cap);
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return 0;
}

static uint32_t pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(h >> 32 ^ h >> 12);
}

static struct merge *merge_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t i = pair_hash(left, right) & b->mask;

    while (b->merges[i].result >= 0 && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & b->mask;
    return &b->merges[i];
}

static const struct merge *merge_find(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge *m = merge_slot(b, left, right);

    return m->result >= 0 ? m : NULL;
}

/* The two halves of a merge: "a b" in one string, or an array of two strings. */
static int read_pair(const struct json *m, const char *half[2], size_t bytes[2])
{
    const char *space, *text;
    char path[160];
    int r;

    if (json_is(m, JSON_IS_ARRAY)) {
        if (json_count(m) != 2)
            return fail(-EINVAL, "%s: want 2 tokens, got %zu", json_path(m, path, sizeof(path)),
                        json_count(m));
        for (int i = 0; i < 2; i++) {
            r = json_as_str(json_at(m, (size_t)i), &half[i]);
            if (r < 0)
                return r;
            bytes[i] = strlen(half[i]);
        }
        return 0;
    }
    r = json_as_str(m, &text);
    if (r < 0)
        return r;
    space = strchr(text, ' ');
    if (!space || strchr(space + 1, ' '))
        return fail(-EINVAL, "%s: want 2 tokens and a space, got `%s`",
                    json_path(m, path, sizeof(path)), text);
    half[0] = text;
    bytes[0] = (size_t)(space - text);
    half[1] = space + 1;
    bytes[1] = strlen(space + 1);
    return 0;
}

static int find_token(const struct bpe *b, const struct json *m, const char *raw, size_t bytes)
{
    int id = vocab_find(b->vocab, raw, bytes);
    char path[160];

    if (id < 0)
        return fail(-EINVAL, "%s: `%.*s` is no token of the vocabulary",
                    json_path(m, path, sizeof(path)), bytes > 200 ? 200 : (int)bytes, raw);
    return id;
}

static int read_merge(struct bpe *b, const struct json *m, uint32_t rank, struct text *joined)
{
    const char *half[2];
    size_t bytes[2];
    struct merge *slot;
    int id[3];
    int r = read_pair(m, half, bytes);

    joined->bytes = 0;
    for (int i = 0; r >= 0 && i < 2; i++) {
        r = id[i] = find_token(b, m, half[i], bytes[i]);
        if (r >= 0)
            r = text_add(joined, half[i], bytes[i]);
    }
    if (r < 0)
        return r;
    r = id[2] = find_token(b, m, joined->s, joined->bytes);
    if (r < 0)
        return r;
    if (b->vocab->tokens[id[2]].flags & TOKEN_MARKER)
        return 0; /* no text that a user types may become one */
    slot = merge_slot(b, id[0], id[1]);
    *slot = (struct merge){ .left = id[0], .right = id[1], .result = id[2], .rank = rank };
    return 0;
}

static int read_merges(struct bpe *b, const struct json *merges)
{
    size_t n = json_count(merges), size = 16;
    struct text joined = { 0 };
    int r = 0;

    while (size < 2 * n)
        size *= 2;
    b->merges = (struct merge *)malloc(size * sizeof(*b->merges));
    if (!b->merges)
        return fail(-ENOMEM, "no memory for %zu merges", n);
    b->mask = (uint32_t)(size - 1);
    for (size_t i = 0; i < size; i++)
        b->merges[i].result = -1;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = read_merge(b, json_at(merges, i), (uint32_t)i, &joined);
    text_free(&joined);
    return r;
}

static int read_bytes(struct bpe *b, const struct json *merges)
{
    char path[160];

    for (int c = 0; c < 256; c++) {
        struct letter *l = &b->letter[c];

        l->bytes = byte_letter((unsigned char)c, l->s);
        b->byte_id[c] = vocab_find(b->vocab, l->s, (size_t)l->bytes);
        if (b->byte_id[c] < 0 && c != 0xc0 && c != 0xc1 && c < 0xf5)
            return fail(
                -EINVAL,
                "%s: the vocabulary has no token `%.*s` for byte 0x%02x: not byte-level BPE, "
                "which alone is supported",
                json_path(merges, path, sizeof(path)), l->bytes, l->s, (unsigned)c);
    }
    return 0;
}

int bpe_open(const struct json *merges, const struct vocab *v, bool whole_words, struct bpe **out)
{
    struct bpe *b = (struct bpe *)calloc(1, sizeof(*b));
    int r;

    if (!b)
        return fail(-ENOMEM, "no memory for a tokenizer");
    b->vocab = v;
    b->whole_words = whole_words;
    r = read_bytes(b, merges);
    if (r >= 0)
        r = read_merges(b, merges);
    if (r < 0) {
        bpe_close(b);
        return r;
    }
    *out = b;
    return 0;
}

void bpe_close(struct bpe *b)
{
    if (!b)
        return;
    free(b->merges);
    free(b);
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    text_free(&s->spelling);
    *s = (struct bpe_scratch){ 0 };
}

static int scratch_room(struct bpe_scratch *s, size_t bytes)
{
    size_t cap = s->cap ? s->cap : 256;

    if (bytes <= s->cap)
        return 0;
    while (cap < bytes)
        cap *= 2;
    free(s->symbols);
    free(s->heap);
    /* At most one pair a byte at first, and each of the at most bytes - 1 joins replaces one by
     * two. */
    s->symbols = (struct bpe_symbol *)malloc(cap * sizeof(*s->symbols));
    s->heap = (struct bpe_pair *)malloc(2 * cap * sizeof(*s->heap));
    s->cap = s->symbols && s->heap ? cap : 0;
    return s->cap ? 0 : fail(-ENOMEM, "no memory for a word of %zu bytes", bytes);
}

static void heap_sink(struct bpe_pair *h, size_t n, size_t i)
{
    struct bpe_pair p = h[i];

    for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && h[c + 1].order < h[c].order)
            c++;
        if (h[c].order >= p.order)
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = p;
}

static void heap_push(struct bpe_pair *h, size_t *n, struct bpe_pair p)
{
    size_t i = (*n)++;

    while (i > 0 && h[(i - 1) / 2].order > p.order) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = p;
}

/* The pair of the symbols at and after place `at`, if the table joins them. */
static bool pair_at(const struct bpe *b, const struct bpe_symbol *sym, int32_t at,
                    struct bpe_pair *p)
{
    const struct merge *m;

    if (at < 0 || sym[at].after < 0)
        return false;
    m = merge_find(b, sym[at].id, sym[sym[at].after].id);
    if (m)
        *p = (struct bpe_pair){ .order = (uint64_t)m->rank << 32 | (uint32_t)at, .merge = m };
    return m != NULL;
}

static void merge_all(const struct bpe *b, struct bpe_symbol *sym, struct bpe_pair *heap, int32_t n)
{
    struct bpe_pair p;
    size_t pairs = 0;

    for (int32_t i = 0; i + 1 < n; i++)
        if (pair_at(b, sym, i, &p))
            heap[pairs++] = p;
    for (size_t i = pairs / 2; i-- > 0;)
        heap_sink(heap, pairs, i);
    while (pairs > 0) {
        const struct merge *m = heap[0].merge;
        int32_t at = (int32_t)(uint32_t)heap[0].order;
        int32_t after = sym[at].after;

        heap[0] = heap[--pairs];
        heap_sink(heap, pairs, 0);
        if (sym[at].id != m->left || after < 0 || sym[after].id != m->right)
            continue; /* one of the two was joined to another neighbour first */
        sym[at].id = m->result;
        sym[at].after = sym[after].after;
        sym[after].id = -1;
        if (sym[at].after >= 0)
            sym[sym[at].after].before = at;
        if (pair_at(b, sym, sym[at].before, &p))
            heap_push(heap, &pairs, p);
        if (pair_at(b, sym, at, &p))
            heap_push(heap, &pairs, p);
    }
}

/* *id = the word as one token; -1 if it is none, or a marker. */
static int whole_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t bytes,
                      int *id)
{
    int r;

    *id = -1;
    s->spelling.bytes = 0;
    if (!b->whole_words || bytes > (size_t)b->vocab->longest_bytes)
        return 0;
    r = text_room(&s->spelling, 2 * bytes);
    if (r < 0)
        return r;
    for (size_t i = 0; i < bytes; i++) {
        const struct letter *l = &b->letter[(unsigned char)word[i]];

        memcpy(s->spelling.s + s->spelling.bytes, l->s, (size_t)l->bytes);
        s->spelling.bytes += (size_t)l->bytes;
    }
    *id = vocab_find(b->vocab, s->spelling.s, s->spelling.bytes);
    if (*id >= 0 && b->vocab->tokens[*id].flags & TOKEN_MARKER)
        *id = -1;
    return 0;
}

int bpe_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t bytes,
             struct ids *out)
{
    int id, r = whole_word(b, s, word, bytes, &id);

    if (r >= 0 && id >= 0)
        return ids_add(out, id);
    if (r >= 0)
        r = scratch_room(s, bytes);
    if (r < 0)
        return r;
    for (size_t i = 0; i < bytes; i++)
        s->symbols[i] = (struct bpe_symbol){ .id = b->byte_id[(unsigned char)word[i]],
                                             .before = (int32_t)i - 1,
                                             .after = i + 1 < bytes ? (int32_t)i + 1 : -1 };
    merge_all(b, s->symbols, s->heap, (int32_t)bytes);
    for (size_t i = 0; r >= 0 && i < bytes; i++)
        if (s->symbols[i].id >= 0)
            r = ids_add(out, s->symbols[i].id);
    return r;
}
