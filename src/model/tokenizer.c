/* tokenizer.c owns the way from text to ids; tokenizer_read.c makes the tokenizer, detok.c goes
 * back. */
#include "src/model/tokenizer.h"
#include "src/base/clock.h"
#include "src/base/utf8.h"
#include "src/model/detok.h"
#include "src/model/tokenizer_parts.h"

#define JSON_DEPTH 64

/* Processor time that all patterns of one encode may take together; a text of words takes 1 % of
 * it. */
#define BUDGET_NS (2 * NS_PER_S)
#define BUDGET_BYTE_NS 5000

struct span {
    uint32_t start, end;
    bool remove;
};

struct spans {
    struct span *span;
    size_t n, cap;
};

/* One call of tokenizer_encode. */
struct encoding {
    const struct tokenizer *t;
    bool markers;
    struct pattern_run run;
    struct bpe_scratch scratch;
    struct text normalized, room, prefixed;
    struct spans pieces, found, next;
    struct ids ids;
};

int tokenizer_open(const char *json, size_t bytes, const char *name, struct tokenizer **out)
{
    struct json *root;
    struct tokenizer *t;
    int r;

    if (bytes > TOKENIZER_JSON_MAX)
        return fail(-EFBIG, "%s: %zu bytes, want at most %zu", name, bytes, TOKENIZER_JSON_MAX);
    r = json_parse(json, bytes, name, JSON_DEPTH, &root);
    if (r < 0)
        return r;
    t = (struct tokenizer *)calloc(1, sizeof(*t));
    if (!t) {
        r = fail(-ENOMEM, "%s: no memory for a tokenizer", name);
        goto close_root;
    }
    r = tokenizer_read(t, root);
    if (r < 0) {
        tokenizer_close(t);
        goto close_root;
    }
    *out = t;

close_root:
    json_close(root);
    return r < 0 ? r : 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->normals; i++) {
        pattern_close(t->normal[i].pattern);
        free(t->normal[i].text);
    }
    for (int i = 0; i < t->splits; i++)
        pattern_close(t->split[i].pattern);
    pattern_close(t->word.pattern);
    bpe_close(t->bpe);
    added_free(&t->raw);
    added_free(&t->normalized);
    vocab_free(&t->vocab);
    free(t);
}

/* Normalizers */

static int replace(const struct normal *step, struct pattern_run *run, const struct text *in,
                   struct text *out)
{
    struct pattern_match m = { .text = in->s, .bytes = in->bytes };
    size_t done = 0;
    int r;

    while ((r = pattern_next(step->pattern, run, &m)) == 0) {
        r = text_add(out, in->s + done, m.start - done);
        if (r >= 0)
            r = text_add(out, step->text, strlen(step->text));
        if (r >= 0 && out->bytes > TOKENIZER_TEXT_MAX)
            r = fail(-EFBIG, "normalized text is larger than %zu bytes", TOKENIZER_TEXT_MAX);
        if (r < 0)
            return r;
        done = m.end;
    }
    return r < 0 ? r : text_add(out, in->s + done, in->bytes - done);
}

int tokenizer_normalize(const struct tokenizer *t, struct pattern_run *run, const char *s,
                        size_t bytes, struct text *out, struct text *room)
{
    int r;

    out->bytes = 0;
    r = text_add(out, s, bytes);
    for (int i = 0; r >= 0 && out->bytes > 0 && i < t->normals; i++) {
        const struct normal *step = &t->normal[i];
        struct text swap = *out;

        *out = *room;
        *room = swap;
        out->bytes = 0;
        switch (step->kind) {
        case NORMAL_FORM:
            r = unicode_normalize(step->form, room->s, room->bytes, out);
            break;
        case NORMAL_PREPEND:
            r = text_add(out, step->text, strlen(step->text));
            r = r < 0 ? r : text_add(out, room->s, room->bytes);
            break;
        case NORMAL_REPLACE:
            r = replace(step, run, room, out);
            break;
        }
        if (r >= 0 && out->bytes > TOKENIZER_TEXT_MAX)
            r = fail(-EFBIG, "normalized text is larger than %zu bytes", TOKENIZER_TEXT_MAX);
    }
    return r;
}

/* Pre-tokenizers */

static int spans_add(struct spans *l, size_t start, size_t end, bool remove)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct span *p = (struct span *)realloc(l->span, cap * sizeof(*p));

        if (!p)
            return fail(-ENOMEM, "no memory for %zu pieces of text", cap);
        l->span = p;
        l->cap = cap;
    }
    l->span[l->n++] = (struct span){ (uint32_t)start, (uint32_t)end, remove };
    return 0;
}

/* Matches and what lies between them, in order and without a gap; `remove` says which is a
 * match. */
static int find_spans(const struct split *s, struct pattern_run *run, const char *text,
                      size_t bytes, struct spans *out)
{
    struct pattern_match m = { .text = text, .bytes = bytes };
    size_t done = 0;
    int r;

    out->n = 0;
    while ((r = pattern_next(s->pattern, run, &m)) == 0) {
        if (done < m.start)
            r = spans_add(out, done, m.start, s->invert);
        if (r >= 0)
            r = spans_add(out, m.start, m.end, !s->invert);
        if (r < 0)
            return r;
        done = m.end;
    }
    if (r >= 0 && done < bytes)
        r = spans_add(out, done, bytes, s->invert);
    return r < 0 ? r : 0;
}

/* Join the spans as the behavior says. In place: a joined span lies where its first or last one
 * lay. */
static void join_spans(enum split_behavior behavior, struct spans *l)
{
    bool was_match = false;
    size_t n = 0;

    if (behavior == SPLIT_REMOVED)
        return;
    if (behavior == SPLIT_MERGED_WITH_NEXT) {
        n = l->n;
        for (size_t i = l->n; i-- > 0;) {
            struct span s = l->span[i];

            if (s.remove && !was_match && n < l->n)
                l->span[n].start = s.start;
            else
                l->span[--n] = s;
            was_match = s.remove;
        }
        memmove(l->span, l->span + n, (l->n - n) * sizeof(*l->span));
        l->n -= n;
    } else {
        for (size_t i = 0; i < l->n; i++) {
            struct span s = l->span[i];
            bool join = behavior == SPLIT_CONTIGUOUS             ? s.remove == was_match
                        : behavior == SPLIT_MERGED_WITH_PREVIOUS ? s.remove && !was_match
                                                                 : false;

            if (join && n > 0)
                l->span[n - 1].end = s.end;
            else
                l->span[n++] = s;
            was_match = s.remove;
        }
        l->n = n;
    }
    for (size_t i = 0; i < l->n; i++)
        l->span[i].remove = false;
}

/* Cut every piece by one pre-tokenizer. */
static int cut_pieces(struct encoding *e, const struct split *s, const char *text)
{
    struct spans swap;
    int r = 0;

    e->next.n = 0;
    for (size_t i = 0; r >= 0 && i < e->pieces.n; i++) {
        struct span p = e->pieces.span[i];

        r = find_spans(s, &e->run, text + p.start, p.end - p.start, &e->found);
        if (r < 0)
            return r;
        join_spans(s->behavior, &e->found);
        for (size_t k = 0; r >= 0 && k < e->found.n; k++) {
            struct span f = e->found.span[k];

            if (!f.remove && f.start < f.end)
                r = spans_add(&e->next, p.start + f.start, p.start + f.end, false);
        }
    }
    swap = e->pieces;
    e->pieces = e->next;
    e->next = swap;
    return r;
}

static int encode_words(struct encoding *e, const char *s, size_t bytes)
{
    int r;

    if (!e->t->word.pattern)
        return bpe_word(e->t->bpe, &e->scratch, s, bytes, &e->ids);
    r = find_spans(&e->t->word, &e->run, s, bytes, &e->found);
    for (size_t i = 0; r >= 0 && i < e->found.n; i++) {
        struct span w = e->found.span[i];

        r = bpe_word(e->t->bpe, &e->scratch, s + w.start, w.end - w.start, &e->ids);
    }
    return r;
}

static int encode_piece(struct encoding *e, const char *s, size_t bytes)
{
    int r;

    if (!e->t->prefix_space || *s == ' ')
        return encode_words(e, s, bytes);
    e->prefixed.bytes = 0;
    r = text_add(&e->prefixed, " ", 1);
    if (r >= 0)
        r = text_add(&e->prefixed, s, bytes);
    return r < 0 ? r : encode_words(e, e->prefixed.s, e->prefixed.bytes);
}

/* Normalized text without added tokens. */
static int encode_plain(struct encoding *e, const char *s, size_t bytes)
{
    int r;

    e->pieces.n = 0;
    r = spans_add(&e->pieces, 0, bytes, false);
    for (int i = 0; r >= 0 && i < e->t->splits; i++)
        r = cut_pieces(e, &e->t->split[i], s);
    for (size_t i = 0; r >= 0 && i < e->pieces.n; i++) {
        struct span p = e->pieces.span[i];

        r = encode_piece(e, s + p.start, p.end - p.start);
    }
    return r;
}

/* Added tokens become ids, what lies between them goes to rest. */
static int encode_around(struct encoding *e, const struct added_set *set, const char *s,
                         size_t bytes, int (*rest)(struct encoding *e, const char *s, size_t bytes))
{
    struct added_match m = { 0 };
    size_t done = 0;
    int r = 0;

    while (r >= 0 && added_next(set, s, bytes, e->markers, &m)) {
        if (done < m.start)
            r = rest(e, s + done, m.start - done);
        if (r >= 0)
            r = ids_add(&e->ids, m.id);
        done = m.end;
    }
    return r >= 0 && done < bytes ? rest(e, s + done, bytes - done) : r;
}

/* Text as it came, between the added tokens that are looked for before normalizing. */
static int encode_raw(struct encoding *e, const char *s, size_t bytes)
{
    int r;

    if (e->t->normals == 0)
        return encode_around(e, &e->t->normalized, s, bytes, encode_plain);
    r = tokenizer_normalize(e->t, &e->run, s, bytes, &e->normalized, &e->room);
    return r < 0 ? r
                 : encode_around(e, &e->t->normalized, e->normalized.s, e->normalized.bytes,
                                 encode_plain);
}

static void encoding_free(struct encoding *e)
{
    pattern_run_close(&e->run);
    bpe_scratch_free(&e->scratch);
    text_free(&e->normalized);
    text_free(&e->room);
    text_free(&e->prefixed);
    free(e->pieces.span);
    free(e->found.span);
    free(e->next.span);
    free(e->ids.id);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                     int32_t **ids, int *n)
{
    struct encoding e = { .t = t, .markers = flags & ENCODE_MARKERS };
    size_t whole;
    int r;

    if (bytes > TOKENIZER_TEXT_MAX)
        return fail(-EFBIG, "prompt has %zu bytes, want at most %zu", bytes, TOKENIZER_TEXT_MAX);
    if (utf8_scan(text, bytes, &whole) != UTF8_NONE)
        return fail(-EILSEQ, "prompt byte %zu is not UTF-8", whole);
    r = pattern_run_open(&e.run);
    if (r < 0)
        return r;
    pattern_run_budget(&e.run, BUDGET_NS + (int64_t)bytes * BUDGET_BYTE_NS);
    for (int i = 0; r >= 0 && flags & ENCODE_BOS && i < t->n_bos; i++)
        r = ids_add(&e.ids, t->bos[i]);
    if (r >= 0)
        r = encode_around(&e, &t->raw, text, bytes, encode_raw);
    if (r >= 0) {
        *ids = e.ids.id;
        *n = (int)e.ids.n;
        e.ids.id = NULL;
    }
    encoding_free(&e);
    return r < 0 ? r : 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int n, bool skip_special,
                     char **text, size_t *bytes)
{
    struct text all = { 0 };
    struct detok *d;
    const char *delta;
    size_t got;
    int r = detok_open(t, skip_special, &d);

    if (r < 0)
        return r;
    for (int i = 0; r >= 0 && i < n; i++) {
        got = detok_put(d, ids[i], &delta);
        r = text_add(&all, delta, got);
    }
    got = detok_finish(d, &delta);
    if (r >= 0)
        r = text_add(&all, delta, got);
    if (r >= 0)
        r = text_add(&all, "", 1);
    detok_close(d);
    if (r < 0) {
        text_free(&all);
        return r;
    }
    *text = all.s;
    *bytes = all.bytes - 1;
    return 0;
}

int tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab.n;
}

int tokenizer_id(const struct tokenizer *t, const char *spelling)
{
    return vocab_find(&t->vocab, spelling, strlen(spelling));
}

unsigned tokenizer_flags(const struct tokenizer *t, int id)
{
    const struct token *k = vocab_token(&t->vocab, id);

    return k ? k->flags : 0;
}

const char *tokenizer_bytes(const struct tokenizer *t, int id, size_t *bytes)
{
    const struct token *k = vocab_token(&t->vocab, id);

    *bytes = k ? k->n_bytes : 0;
    return k ? t->vocab.arena.s + k->bytes : NULL;
}

const char *tokenizer_spelling(const struct tokenizer *t, int id, size_t *bytes)
{
    const struct token *k = vocab_token(&t->vocab, id);

    *bytes = k ? k->n_raw : 0;
    return k ? t->vocab.arena.s + k->raw : NULL;
}

size_t tokenizer_longest(const struct tokenizer *t)
{
    return (size_t)t->vocab.longest_bytes;
}
