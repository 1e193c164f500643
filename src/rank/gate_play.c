/* gate_play.c owns how requests are decoded for gates, and what makes two replies the same one. */
#include "src/rank/gate.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/rng.h"
#include "src/draft/draft_oracle.h"
#include "src/model/slot.h"
#include "src/model/tokenizer.h"
#include "src/model/window.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rank *rank_of(const struct gate *g)
{
    return lead_round(g->l)->k;
}

/* ---- what is said about differences --------------------------------------------------------- */

void gate_fail(struct gate *g, const char *fmt, ...)
{
    struct gate_sum *s = &g->sum[g->now];
    va_list ap;
    int n;

    if (s->failed)
        return;
    s->failed = true;
    n = snprintf(s->why, sizeof(s->why), "%s%s%s: ", g->world_name, g->kind ? ", " : "",
                 g->kind ? g->kind->name : "");
    va_start(ap, fmt);
    vsnprintf(s->why + n, sizeof(s->why) - (size_t)n, fmt, ap);
    va_end(ap);
}

bool gate_failed(const struct gate *g)
{
    return g->sum[g->now].failed;
}

/* The text of a token for a line of the report: what is not printable is a dot. */
static const char *spell(const struct gate *g, int32_t tok, char out[24])
{
    size_t bytes = 0;
    const char *b = tokenizer_bytes(rank_of(g)->tok, tok, &bytes);
    int n = 0;

    for (size_t i = 0; b && i < bytes && n < 23; i++)
        out[n++] = b[i] >= ' ' && b[i] <= '~' ? b[i] : '.';
    out[n] = 0;
    return out;
}

/* ---- one play ------------------------------------------------------------------------------- */

static void on_text(void *arg, const char *text, size_t bytes)
{
    struct gate_play *p = (struct gate_play *)arg;

    /* Without memory the text is short, which is a difference. */
    if (text_add(&p->said, text, bytes) < 0)
        p->said.bytes = 0;
}

static int depth_of(void *arg, int slot, int offered)
{
    struct gate *g = (struct gate *)arg;
    const struct gate_play *p = g->in_slot[slot];
    const struct gate_ask *a = &p->ask;
    uint32_t pos = (uint32_t)rank_of(g)->pool->pos[slot];

    if (p->depth >= 0)
        return p->depth < offered ? p->depth : offered;
    if (g->depth == GATE_DEPTH_FULL)
        return offered;
    /* A function of the request and the position, so that two runs make the same windows. */
    return (int)(philox4x32(pos, (uint32_t)a->mode, (uint32_t)a->prompt->n, g->salt, a->seed).w[0] %
                 (uint32_t)(offered + 1));
}

static int at_end(void *arg, int slot, const struct reply *out)
{
    struct gate *g = (struct gate *)arg;
    struct rank *k = rank_of(g);
    struct gate_play *p = g->in_slot[slot];

    if (!p || &p->reply != out)
        return 0;
    p->over = true;
    return slot_digest(k->pool, k->q, slot, k->model_states, &p->states);
}

static bool same_ask(const struct gate_ask *a, const struct gate_ask *b)
{
    return a->prompt == b->prompt && a->mode == b->mode && a->max_tokens == b->max_tokens &&
           a->seed == b->seed && a->ignore_end == b->ignore_end && a->stop_id == b->stop_id &&
           a->end_at == b->end_at && strcmp(a->stop, b->stop) == 0;
}

static const struct gate_play *find_serial(const struct gate *g, const struct gate_ask *a)
{
    for (int i = 0; i < g->serials; i++)
        if (same_ask(&g->serial[i]->ask, a))
            return g->serial[i];
    return NULL;
}

/* What the oracle reads: the prompt and what comes behind it. */
static int set_record(struct gate *g, const struct gate_play *p, int slot)
{
    const struct gate_prompt *prompt = p->ask.prompt;
    const struct gate_play *serial = find_serial(g, &p->ask);
    const int32_t *behind = p->record ? p->record : serial ? serial->reply.ids : NULL;
    int n = p->record ? p->record_n : serial ? serial->reply.n : 0, r;
    int32_t *ids = malloc((size_t)(prompt->n + n) * sizeof(*ids));

    if (!ids)
        return fail(-ENOMEM, "gate: no memory for a record");
    memcpy(ids, prompt->ids, (size_t)prompt->n * sizeof(*ids));
    if (n > 0)
        memcpy(ids + prompt->n, behind, (size_t)n * sizeof(*ids));
    r = draft_oracle_set(rank_of(g)->drafter, slot, ids, prompt->n + n);
    free(ids);
    return r;
}

/* The end token at a place: it is banned before, and nothing else comes there. */
static int set_edits(const struct gate *g, struct gate_play *p, struct sampler *s)
{
    const struct rank *k = rank_of(g);
    int n = 0;

    if (p->ask.end_at >= 0) {
        s->min_tokens = p->ask.end_at;
        p->bias[n++] = (struct logit_bias){ k->end[0], 1000 };
        return n;
    }
    if (g->mode[p->ask.mode].edits) {
        p->bias[n++] = (struct logit_bias){ k->bounds.vocab / 3, -INFINITY };
        p->bias[n++] = (struct logit_bias){ k->bounds.vocab / 5, 2 };
    }
    return n;
}

/* errors   1 no slot is free */
static int add(struct gate *g, struct gate_play *p)
{
    const struct gate_ask *a = &p->ask;
    struct request q = { .ids = a->prompt->ids,
                         .n = a->prompt->n,
                         .max_tokens = a->max_tokens,
                         .sampler = g->mode[a->mode].s,
                         .bias = p->bias,
                         .ignore_end = a->ignore_end,
                         .draft = p->draft,
                         .stop = p->stop,
                         .stops = a->stop[0] ? 1 : 0,
                         .stop_id = &a->stop_id,
                         .stop_ids = a->stop_id >= 0 ? 1 : 0,
                         .on_text = on_text,
                         .arg = p };
    int r, slot;

    p->stop[0] = a->stop;
    q.sampler.seed = a->seed;
    q.sampler.biases = set_edits(g, p, &q.sampler);
    r = request_check(&q, rank_of(g)->bounds.vocab);
    if (r == 0)
        r = lead_add(g->l, &q, &p->reply);
    if (r != 0)
        return r;
    p->added = true;
    slot = lead_slot(g->l, &p->reply);
    g->in_slot[slot] = p;
    if (p->draft && strcmp(rank_of(g)->drafter->ops->name, "oracle") == 0)
        r = set_record(g, p, slot);
    return r;
}

static int join(struct gate *g)
{
    int r = 0;

    for (int i = 0; i < g->plays && r == 0; i++)
        if (!g->play[i].added && !g->play[i].over && g->play[i].join <= g->step)
            r = add(g, &g->play[i]);
    return r < 0 ? r : 0;
}

static int leave(struct gate *g)
{
    int r = 0;

    for (int i = 0; i < g->plays && r == 0; i++) {
        struct gate_play *p = &g->play[i];

        if (p->added && !p->over && p->cancel > 0 && p->reply.n >= p->cancel)
            r = lead_cancel(g->l, &p->reply);
    }
    return r;
}

static int settle(struct gate *g)
{
    int r = 0;

    for (int i = 0; i < g->plays && r == 0 && g->over; i++)
        if (g->play[i].added && g->play[i].over)
            r = g->over(g, &g->play[i]);
    return r;
}

static bool waiting(const struct gate *g)
{
    for (int i = 0; i < g->plays; i++)
        if (!g->play[i].over)
            return true;
    return false;
}

static void count(struct gate *g, const struct round_record *rec)
{
    g->replays += rec->mode == MODE_REPLAY;
    for (int i = 0; i < rec->windows; i++) {
        const struct round_slot *s = &rec->slot[i];

        g->drafted += s->k;
        if (s->k == 0)
            continue;
        g->whole += s->a == s->k;
        g->none += s->a == 0;
        if (s->a < s->k)
            g->part[s->a]++;
    }
}

void gate_count_begin(struct gate *g)
{
    g->drafted = g->whole = g->none = 0;
    memset(g->part, 0, sizeof(g->part));
}

int gate_run(struct gate *g, struct gate_play *p, int n)
{
    struct rounds *r = lead_round(g->l);
    int err = 0;

    g->play = p;
    g->plays = n;
    memset(g->in_slot, 0, sizeof(g->in_slot));
    lead_depths(g->l, depth_of, g);
    lead_ends(g->l, at_end, g);
    for (g->step = 0; err == 0 && waiting(g) && !lead_leaving(g->l); g->step++) {
        uint32_t before = r->number;

        err = join(g);
        if (err == 0)
            err = lead_step(g->l);
        if (err >= 0 && r->number != before) {
            count(g, &r->rec);
            if (g->seen)
                g->seen(g, &r->rec);
        }
        /* Nobody decodes, and somebody joins later. */
        if (err == 1)
            err = 0;
        if (err == 0)
            err = leave(g);
        if (err == 0)
            err = settle(g);
    }
    lead_depths(g->l, NULL, NULL);
    lead_ends(g->l, NULL, NULL);
    return err < 0 ? err : lead_leaving(g->l) ? GATE_LEFT : 0;
}

void gate_plays_free(struct gate_play *p, int n)
{
    for (int i = 0; i < n; i++) {
        reply_free(&p[i].reply);
        text_free(&p[i].said);
    }
}

/* ---- serial plays --------------------------------------------------------------------------- */

int gate_serial_of(struct gate *g, const struct gate_ask *a, const struct gate_play **out)
{
    const struct gate_play *known = find_serial(g, a);
    struct gate_play *p, **more;
    int r;

    if (known) {
        *out = known;
        return 0;
    }
    more = realloc(g->serial, (size_t)(g->serials + 1) * sizeof(struct gate_play *));
    if (!more)
        return fail(-ENOMEM, "gate: no memory for a reply");
    g->serial = more;
    p = calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "gate: no memory for a reply");
    p->ask = *a;
    p->depth = -1;
    r = gate_run(g, p, 1);
    if (r != 0) {
        gate_plays_free(p, 1);
        free(p);
        return r;
    }
    g->serial[g->serials++] = p;
    *out = p;
    return 0;
}

void gate_serials_free(struct gate *g)
{
    for (int i = 0; i < g->serials; i++) {
        gate_plays_free(g->serial[i], 1);
        free(g->serial[i]);
    }
    free(g->serial);
    g->serial = NULL;
    g->serials = 0;
}

/* ---- judgement ------------------------------------------------------------------------------ */

/* gate_fail with the case in front. */
__attribute__((format(printf, 3, 4))) static void differs(struct gate *g, const struct gate_play *p,
                                                          const char *fmt, ...)
{
    char what[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    gate_fail(g, "%s, %s, seed %llu: %s", p->ask.prompt->name, g->mode[p->ask.mode].name,
              (unsigned long long)p->ask.seed, what);
}

static bool same_ids(struct gate *g, const struct gate_play *got, const struct gate_play *want,
                     int n)
{
    char a[24], b[24];

    for (int i = 0; i < n; i++)
        if (got->reply.ids[i] != want->reply.ids[i]) {
            differs(g, got, "position %d: serial %d \"%s\", here %d \"%s\"", got->ask.prompt->n + i,
                    want->reply.ids[i], spell(g, want->reply.ids[i], a), got->reply.ids[i],
                    spell(g, got->reply.ids[i], b));
            return false;
        }
    return true;
}

static bool same_logprobs(struct gate *g, const struct gate_play *got, const struct gate_play *want,
                          int n)
{
    if (!want->reply.logprobs)
        return true;
    for (int i = 0; i < n; i++) {
        const struct logprobs *a = &want->reply.logprobs[i], *b = &got->reply.logprobs[i];
        size_t top = (size_t)a->n;

        if (a->n != b->n || memcmp(&a->chosen, &b->chosen, sizeof(a->chosen)) != 0 ||
            memcmp(a->top, b->top, top * sizeof(*a->top)) != 0 ||
            memcmp(a->id, b->id, top * sizeof(*a->id)) != 0) {
            differs(g, got,
                    "position %d: logprob of %d is %.17g serially, %.17g here, or one of the "
                    "%d best differs",
                    got->ask.prompt->n + i, got->reply.ids[i], a->chosen, b->chosen, a->n);
            return false;
        }
    }
    return true;
}

static bool same_text(const struct text *a, const struct text *b)
{
    return a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->s, b->s, a->bytes) == 0);
}

static bool same_end(struct gate *g, const struct gate_play *got, const struct gate_play *want)
{
    const struct reply *a = &want->reply, *b = &got->reply;

    if (a->n != b->n || a->finish != b->finish || a->prompt_tokens != b->prompt_tokens)
        differs(g, got, "%d tokens and %s serially, %d tokens and %s here", a->n,
                finish_name(a->finish), b->n, finish_name(b->finish));
    else if (!same_text(&a->text, &b->text))
        differs(g, got, "the text is \"%.*s\" serially, \"%.*s\" here",
                (int)(a->text.bytes < 120 ? a->text.bytes : 120), a->text.s ? a->text.s : "",
                (int)(b->text.bytes < 120 ? b->text.bytes : 120), b->text.s ? b->text.s : "");
    else if (!same_text(&b->text, &got->said))
        differs(g, got, "the text came in pieces that are not it");
    else if (want->states != got->states)
        differs(g, got, "the states at the end digest to %016llx serially, %016llx here",
                (unsigned long long)want->states, (unsigned long long)got->states);
    else
        return true;
    return false;
}

bool gate_judge(struct gate *g, const struct gate_play *got, const struct gate_play *want)
{
    struct gate_sum *s = &g->sum[g->now];
    int a = want->reply.n, b = got->reply.n, n = a < b ? a : b;
    bool cut = got->reply.finish == FINISH_CANCELLED;

    s->cases++;
    if (!same_ids(g, got, want, n) || !same_logprobs(g, got, want, n))
        return false;
    if (cut && b > a) {
        differs(g, got, "%d tokens when it was cancelled, %d serially", b, a);
        return false;
    }
    if (!cut && !same_end(g, got, want))
        return false;
    s->tokens += n;
    return true;
}

int gate_try(struct gate *g, const struct gate_ask *a, int depth)
{
    struct gate_play p = { .ask = *a, .draft = true, .depth = depth };
    const struct gate_play *serial;
    int r = gate_serial_of(g, a, &serial);

    if (r == 0)
        r = gate_run(g, &p, 1);
    if (r == 0)
        gate_judge(g, &p, serial);
    gate_plays_free(&p, 1);
    return r;
}

/* ---- logits --------------------------------------------------------------------------------- */

struct hashed {
    uint64_t hash;
    size_t bytes;
};

static void add_logits(void *arg, int pos, const float *logits)
{
    struct hashed *h = (struct hashed *)arg;

    h->hash = fnv1a64(h->hash, logits, h->bytes);
}

int gate_logits_of(struct gate *g, const struct gate_prompt *p, int rows, uint64_t *hash)
{
    struct rounds *r = lead_round(g->l);
    struct rank *k = r->k;
    struct plan_admit a = { .n = p->n, .budget = 1, .ids = p->ids };
    struct hashed h = { FNV1A64_INIT, (size_t)k->bounds.vocab * sizeof(float) };
    struct plan_span s = { 0 };
    int err;

    sampler_default(&a.sampler);
    err = order_admit(r, &a);
    for (; err == 0 && s.start < p->n - rows; s.start = s.end) {
        s.end = s.start + k->bounds.prefill_chunk;
        s.end = s.end < p->n - rows ? s.end : p->n - rows;
        err = order_fill(r, &s);
    }
    s.end = p->n;
    if (err == 0)
        err = order_score(r, &s, add_logits, &h);
    if (err == 0)
        err = order_release(r, 0);
    *hash = h.hash;
    return err;
}
