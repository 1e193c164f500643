/* plan.c owns the layouts of all orders; plan_box.c carries the words, round.c obeys them. */
#include "src/rank/plan.h"

#include "src/base/log.h"

#include <errno.h>
#include <string.h>

#define ADMIT_WORDS 10
#define ROUND_WORDS 2

static const char *const op_names[PLAN_OPS] = {
    [PLAN_ADMIT] = "ADMIT",         [PLAN_FILL] = "FILL",       [PLAN_DRAFT] = "DRAFT",
    [PLAN_ROUND] = "ROUND",         [PLAN_KEEP] = "KEEP",       [PLAN_SCORE] = "SCORE",
    [PLAN_CALIBRATE] = "CALIBRATE", [PLAN_RELEASE] = "RELEASE", [PLAN_CLOCK] = "CLOCK",
    [PLAN_STOP] = "STOP",
};

const char *plan_op_name(int op)
{
    return op > 0 && op < PLAN_OPS ? op_names[op] : NULL;
}

static size_t id_words(int n)
{
    return ((size_t)n + 1) / 2;
}

size_t plan_words(const struct plan_bounds *b)
{
    size_t admit = ADMIT_WORDS + id_words(SAMPLER_ENDS) + LOGIT_BIASES_MAX + id_words(b->context);
    size_t frame = PLAN_PAYLOAD;

    return admit > frame ? admit : frame;
}

/* ---- encoding -------------------------------------------------------------------------------- */

static uint64_t at(uint64_t value, int bit)
{
    return value << bit;
}

static uint64_t bits_of(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static size_t put_ids(const int32_t *id, int n, uint64_t *word)
{
    for (int i = 0; i < n; i += 2)
        word[i / 2] = (uint32_t)id[i] | at(i + 1 < n ? (uint32_t)id[i + 1] : 0, 32);
    return id_words(n);
}

static uint64_t put_commit(const struct plan_commit *c)
{
    return (uint64_t)c->slot | at((uint64_t)c->keep, 8) | at(c->flags, 16) |
           at((uint32_t)c->next, 32);
}

static uint64_t put_ask(const struct plan_ask *a)
{
    return (uint64_t)a->slot | at((uint64_t)a->most, 8) | at((uint32_t)a->start, 32);
}

static uint64_t put_bias(const struct logit_bias *b)
{
    uint32_t bits;

    memcpy(&bits, &b->add, sizeof(bits));
    return (uint32_t)b->id | at(bits, 32);
}

size_t plan_put_admit(const struct plan_admit *p, uint64_t *word)
{
    const struct sampler *s = &p->sampler;
    const double real[] = { s->temperature, s->top_p,     s->min_p,
                            s->repetition,  s->frequency, s->presence };
    size_t n = 4;

    word[0] =
        (uint64_t)p->slot | at(p->flags, 8) | at((uint32_t)s->biases, 16) | at((uint32_t)p->n, 32);
    word[1] = (uint32_t)p->budget | at((uint32_t)s->top_k, 32);
    word[2] = s->seed;
    word[3] = (uint32_t)s->min_tokens | at((uint32_t)s->logprobs, 32) | at((uint32_t)s->ends, 40);
    for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++)
        word[n++] = bits_of(real[i]);
    n += put_ids(s->end, s->ends, word + n);
    for (int i = 0; i < s->biases; i++)
        word[n++] = put_bias(&p->bias[i]);
    return n + put_ids(p->ids, p->n, word + n);
}

size_t plan_put_span(const struct plan_span *p, uint64_t *word)
{
    word[0] = (uint64_t)p->slot;
    word[1] = (uint32_t)p->start | at((uint32_t)p->end, 32);
    return 2;
}

size_t plan_put_draft(const struct plan_draft *p, uint64_t *word)
{
    for (int i = 0; i < p->asks; i++)
        word[i] = put_ask(&p->ask[i]);
    return (size_t)p->asks;
}

size_t plan_put_round(const struct plan_round *p, uint64_t *word)
{
    size_t n = ROUND_WORDS;

    word[0] = p->digest;
    word[1] = (uint64_t)p->commits | at((uint64_t)p->windows, 8) | at((uint64_t)p->asks, 16) |
              at(p->arm, 24) | at((uint64_t)p->row_bucket, 32);
    for (int i = 0; i < p->commits; i++)
        word[n++] = put_commit(&p->commit[i]);
    for (int i = 0; i < p->windows; i++) {
        const struct plan_window *w = &p->window[i];

        word[n++] = (uint64_t)w->slot | at((uint64_t)w->rows, 8) | at(w->source, 16) |
                    at((uint32_t)w->pos, 32);
    }
    for (int i = 0; i < p->asks; i++)
        word[n++] = put_ask(&p->ask[i]);
    n += put_ids(p->tok, p->rows, word + n);
    word[n++] = (uint64_t)p->start_ns;
    return n;
}

size_t plan_put_keep(const struct plan_keep *p, uint64_t *word)
{
    word[0] = p->digest;
    for (int i = 0; i < p->commits; i++)
        word[1 + i] = put_commit(&p->commit[i]);
    word[1 + p->commits] = (uint64_t)p->start_ns;
    return 2 + (size_t)p->commits;
}

size_t plan_put_calibrate(const struct plan_calibrate *p, uint64_t *word)
{
    word[0] = (uint64_t)p->slots | at((uint64_t)p->rows, 8) | at(p->flags, 16);
    return 1;
}

size_t plan_put_slot(int slot, uint64_t *word)
{
    word[0] = (uint64_t)slot;
    return 1;
}

size_t plan_put_clock(const struct plan_clock *p, uint64_t *word)
{
    word[0] = (uint64_t)p->sent_ns;
    for (int i = 0; i < p->ranks; i++)
        word[1 + i] = (uint64_t)p->read_ns[i];
    return 1 + (size_t)p->ranks;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Takes words one after the other and keeps the first thing that was wrong with them. */
struct taker {
    const struct plan_msg *m;
    const struct plan_bounds *b;
    size_t at;
    unsigned slots; /* bit by slot: seen in this list */
    int r;
};

static void refuse(struct taker *t, const char *field, uint64_t got)
{
    if (t->r == 0)
        t->r = fail(-EPROTO, "plan: %s after round %u: %s cannot be %llu", plan_op_name(t->m->op),
                    t->m->round, field, (unsigned long long)got);
}

static uint64_t take_word(struct taker *t)
{
    if (t->at >= t->m->n) {
        refuse(t, "words", t->m->n);
        return 0;
    }
    return t->m->word[t->at++];
}

/* Bits of a word as a number in lo .. hi, hi < 2^31; lo if it is not. */
static int take_bits(struct taker *t, uint64_t word, int bit, int bits, int lo, int hi,
                     const char *field)
{
    uint64_t v = word >> bit & ((UINT64_C(1) << bits) - 1);

    if ((int64_t)v < lo || (int64_t)v > hi) {
        refuse(t, field, v);
        return lo;
    }
    return (int)v;
}

static int take_slot(struct taker *t, uint64_t word)
{
    int slot = take_bits(t, word, 0, 8, 0, t->b->slots - 1, "slot");

    if (t->slots >> slot & 1)
        refuse(t, "slot again", (uint64_t)slot);
    t->slots |= 1u << slot;
    return slot;
}

static void take_zero(struct taker *t, uint64_t word, int bit, int bits)
{
    take_bits(t, word, bit, bits, 0, 0, "a reserved field");
}

static void take_ids(struct taker *t, int32_t *id, int n)
{
    for (int i = 0; i < n && t->r == 0; i += 2) {
        uint64_t word = take_word(t);

        id[i] = take_bits(t, word, 0, 32, 0, t->b->vocab - 1, "id");
        if (i + 1 < n)
            id[i + 1] = take_bits(t, word, 32, 32, 0, t->b->vocab - 1, "id");
        else
            take_zero(t, word, 32, 32);
    }
}

static void take_commits(struct taker *t, struct plan_commit *c, int n)
{
    t->slots = 0;
    for (int i = 0; i < n; i++) {
        uint64_t word = take_word(t);

        c[i].slot = take_slot(t, word);
        c[i].keep = take_bits(t, word, 8, 8, 1, t->b->window_max, "keep");
        c[i].flags =
            (unsigned)take_bits(t, word, 16, 8, 0, COMMIT_MATCHED | COMMIT_STOPPED, "flags");
        take_zero(t, word, 24, 8);
        c[i].next = take_bits(t, word, 32, 32, 0, t->b->vocab - 1, "next");
    }
}

static void take_asks(struct taker *t, struct plan_ask *a, int n)
{
    t->slots = 0;
    for (int i = 0; i < n; i++) {
        uint64_t word = take_word(t);

        a[i].slot = take_slot(t, word);
        a[i].most = take_bits(t, word, 8, 8, 0, WINDOW_MAX, "drafts of a pass");
        take_zero(t, word, 16, 16);
        a[i].start = take_bits(t, word, 32, 32, 0, t->b->context - 1, "start");
    }
}

static int64_t take_time(struct taker *t)
{
    uint64_t word = take_word(t);

    if (word > INT64_MAX)
        refuse(t, "time", word);
    return (int64_t)(word & INT64_MAX);
}

static int take_end(struct taker *t)
{
    if (t->r == 0 && t->at != t->m->n)
        refuse(t, "words", t->m->n);
    return t->r;
}

static void take_biases(struct taker *t, struct logit_bias *bias, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t word = take_word(t);
        uint32_t bits = (uint32_t)(word >> 32);

        bias[i].id = take_bits(t, word, 0, 32, 0, t->b->vocab - 1, "biased token");
        memcpy(&bias[i].add, &bits, sizeof(bits));
    }
}

/* A sampler that no request of rank 0's can have. */
static void check_sampler(struct taker *t, const struct sampler *s, const struct logit_bias *bias)
{
    if (t->r == 0 && sampler_check(s) < 0)
        refuse(t, "sampler of slot", t->m->word[0] & 0xff);
    if (t->r == 0 && sampler_check_biases(bias, s->biases, t->b->vocab) < 0)
        refuse(t, "biases of slot", t->m->word[0] & 0xff);
}

int plan_get_admit(const struct plan_msg *m, const struct plan_bounds *b, int32_t *ids,
                   struct logit_bias *bias, struct plan_admit *out)
{
    struct taker t = { .m = m, .b = b };
    struct plan_admit p = { .ids = ids, .bias = bias };
    struct sampler *s = &p.sampler;
    double *const real[] = { &s->temperature, &s->top_p,     &s->min_p,
                             &s->repetition,  &s->frequency, &s->presence };
    uint64_t word = take_word(&t);

    p.slot = take_slot(&t, word);
    p.flags = (unsigned)take_bits(&t, word, 8, 8, 0, ADMIT_DRAFT | ADMIT_IGNORE_END, "flags");
    s->biases = take_bits(&t, word, 16, 16, 0, LOGIT_BIASES_MAX, "biases");
    p.n = take_bits(&t, word, 32, 32, 1, b->context, "prompt");
    word = take_word(&t);
    p.budget = take_bits(&t, word, 0, 32, 0, b->context - p.n, "budget");
    s->top_k = take_bits(&t, word, 32, 32, 0, INT32_MAX, "top_k");
    s->seed = take_word(&t);
    word = take_word(&t);
    s->min_tokens = take_bits(&t, word, 0, 32, 0, INT32_MAX, "min_tokens");
    s->logprobs = take_bits(&t, word, 32, 8, 0, LOGPROBS_MAX + 1, "logprobs");
    s->ends = take_bits(&t, word, 40, 8, 0, SAMPLER_ENDS, "end tokens");
    take_zero(&t, word, 48, 16);
    for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++) {
        word = take_word(&t);
        memcpy(real[i], &word, sizeof(word));
    }
    take_ids(&t, s->end, s->ends);
    take_biases(&t, bias, s->biases);
    take_ids(&t, ids, p.n);
    check_sampler(&t, s, bias);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

int plan_get_span(const struct plan_msg *m, const struct plan_bounds *b, struct plan_span *out)
{
    struct taker t = { .m = m, .b = b };
    int most = m->op == PLAN_SCORE ? SLOTS_MAX * WINDOW_MAX : b->prefill_chunk;
    struct plan_span p;
    uint64_t word = take_word(&t);

    p.slot = take_slot(&t, word);
    take_zero(&t, word, 8, 56);
    word = take_word(&t);
    p.start = take_bits(&t, word, 0, 32, 0, b->context - 1, "start");
    p.end = take_bits(&t, word, 32, 32, p.start + 1, b->context, "end");
    if (p.end - p.start > most)
        refuse(&t, "rows", (uint64_t)(p.end - p.start));
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

int plan_get_draft(const struct plan_msg *m, const struct plan_bounds *b, struct plan_draft *out)
{
    struct taker t = { .m = m, .b = b };
    struct plan_draft p = { 0 };

    if (m->n < 1 || m->n > (size_t)b->slots)
        refuse(&t, "words", m->n);
    else
        p.asks = (int)m->n;
    take_asks(&t, p.ask, p.asks);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

static void take_windows(struct taker *t, struct plan_round *p)
{
    t->slots = 0;
    for (int i = 0; i < p->windows; i++) {
        struct plan_window *w = &p->window[i];
        uint64_t word = take_word(t);

        w->slot = take_slot(t, word);
        w->rows = take_bits(t, word, 8, 8, 1, t->b->window_max, "rows");
        w->source = (enum plan_source)take_bits(t, word, 16, 8, 0, SOURCES - 1, "source");
        take_zero(t, word, 24, 8);
        w->pos = take_bits(t, word, 32, 32, 0, t->b->context - 1, "position");
        if (w->rows > t->b->context - w->pos)
            refuse(t, "rows at the end", (uint64_t)w->rows);
        p->rows += w->rows;
    }
}

int plan_get_round(const struct plan_msg *m, const struct plan_bounds *b, struct plan_round *out)
{
    struct taker t = { .m = m, .b = b };
    struct plan_round p = { .digest = take_word(&t) };
    uint64_t word = take_word(&t);

    p.commits = take_bits(&t, word, 0, 8, 0, b->slots, "commits");
    p.windows = take_bits(&t, word, 8, 8, 1, b->slots, "windows");
    p.asks = take_bits(&t, word, 16, 8, 0, b->slots, "asks");
    p.arm = p.asks ? ARM_BEHIND : 0; /* the only form there is */
    take_bits(&t, word, 24, 8, (int)p.arm, (int)p.arm, "arm flags");
    p.row_bucket = take_bits(&t, word, 32, 16, 0, SLOTS_MAX * WINDOW_MAX, "row bucket");
    take_zero(&t, word, 48, 16);
    take_commits(&t, p.commit, p.commits);
    take_windows(&t, &p);
    take_asks(&t, p.ask, p.asks);
    take_ids(&t, p.tok, p.rows);
    p.start_ns = take_time(&t);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

int plan_get_keep(const struct plan_msg *m, const struct plan_bounds *b, struct plan_keep *out)
{
    struct taker t = { .m = m, .b = b };
    struct plan_keep p = { .digest = take_word(&t) };

    if (m->n < 3 || m->n > 2 + (size_t)b->slots)
        refuse(&t, "words", m->n);
    else
        p.commits = (int)m->n - 2;
    take_commits(&t, p.commit, p.commits);
    p.start_ns = take_time(&t);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

int plan_get_calibrate(const struct plan_msg *m, const struct plan_bounds *b,
                       struct plan_calibrate *out)
{
    struct taker t = { .m = m, .b = b };
    struct plan_calibrate p = { 0 };
    uint64_t word = take_word(&t);

    p.slots = take_bits(&t, word, 0, 8, 1, b->slots, "slots");
    p.flags = (unsigned)take_bits(&t, word, 16, 8, 0, CALIBRATE_PASS, "flags");
    p.rows = p.flags & CALIBRATE_PASS ? take_bits(&t, word, 8, 8, 0, 0, "rows")
                                      : take_bits(&t, word, 8, 8, 1, b->window_max, "rows");
    take_zero(&t, word, 24, 40);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}

int plan_get_slot(const struct plan_msg *m, const struct plan_bounds *b, int *slot)
{
    struct taker t = { .m = m, .b = b };
    uint64_t word = take_word(&t);
    int s = take_slot(&t, word);

    take_zero(&t, word, 8, 56);
    if (take_end(&t) < 0)
        return t.r;
    *slot = s;
    return 0;
}

int plan_get_clock(const struct plan_msg *m, struct plan_clock *out)
{
    struct taker t = { .m = m };
    struct plan_clock p = { .sent_ns = take_time(&t) };

    if (m->n < 3 || m->n > 1 + RANKS_MAX)
        refuse(&t, "words", m->n);
    else
        p.ranks = (int)m->n - 1;
    for (int i = 0; i < p.ranks; i++)
        p.read_ns[i] = take_time(&t);
    if (take_end(&t) < 0)
        return t.r;
    *out = p;
    return 0;
}
