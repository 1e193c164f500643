/* lead.c owns the streams and everything about them that is decided; order.h tells the ranks. */
#include "src/rank/lead.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/tokenizer.h"
#include "src/rank/landing.h"
#include "src/verify/accept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*            lead_add            prompt done            finished
 *   IDLE ------------> PROMPT ---------------> DECODE ------------> IDLE
 */
enum stream_state { STREAM_IDLE, STREAM_PROMPT, STREAM_DECODE };

struct stream {
    enum stream_state state;
    struct request q;
    struct reply *out;
    struct landing landing;
    int filled; /* prompt tokens that have run */
    int pos;    /* of the pending token */
    int32_t pending;
    uint64_t served; /* number of the step that ran a chunk of its prompt last, or that added it */
    int32_t end[SAMPLER_ENDS];
    bool kept; /* the last round's commit is known to all */
    struct plan_commit commit;
};

struct lead {
    struct rounds *r;
    struct stream stream[SLOTS_MAX];
    struct offers offers;
    uint64_t steps;
    bool turns;      /* a chunk counts as a round does, whatever they take */
    int64_t owed_ns; /* to streams that decode, before a prompt goes on: what prompts had more */
    struct plan_round plan;
    ends_fn *ends;
    void *ends_arg;
};

void reply_free(struct reply *r)
{
    free(r->ids);
    free(r->logprobs);
    text_free(&r->text);
    *r = (struct reply){ 0 };
}

int lead_open(struct rounds *r, struct lead **out)
{
    struct lead *l = calloc(1, sizeof(*l));

    if (!l)
        return fail(-ENOMEM, "lead: out of memory");
    l->r = r;
    offers_open(&l->offers, r);
    *out = l;
    return 0;
}

void lead_close(struct lead *l)
{
    if (!l)
        return;
    for (int s = 0; s < SLOTS_MAX; s++)
        landing_free(&l->stream[s].landing);
    free(l);
}

void lead_costs(struct lead *l, const struct cost_table *t)
{
    offers_costs(&l->offers, t);
}

void lead_depths(struct lead *l, depth_fn *fn, void *arg)
{
    l->offers.depth = fn;
    l->offers.arg = arg;
}

void lead_turns(struct lead *l)
{
    l->turns = true;
}

void lead_ends(struct lead *l, ends_fn *fn, void *arg)
{
    l->ends = fn;
    l->ends_arg = arg;
}

int lead_slot(const struct lead *l, const struct reply *out)
{
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        if (l->stream[slot].state != STREAM_IDLE && l->stream[slot].out == out)
            return slot;
    return -1;
}

struct rounds *lead_round(struct lead *l)
{
    return l->r;
}

bool lead_leaving(const struct lead *l)
{
    const struct rank *k = l->r->k;

    return atomic_load(&k->drain->asked) || (k->group && group_stopping(k->group));
}

/* ---- requests -------------------------------------------------------------------------------- */

int request_check(const struct request *q, int vocab)
{
    int r = sampler_check(&q->sampler);

    if (r == 0)
        r = sampler_check_biases(q->bias, q->sampler.biases, vocab);
    if (r == 0 && q->max_tokens < 0)
        r = fail(-EINVAL, "request: max_tokens %d, want 0 or more", q->max_tokens);
    if (r == 0 && q->stop_ids > STOP_IDS_MAX)
        r = fail(-EINVAL, "request: %d stop tokens, want at most %d", q->stop_ids, STOP_IDS_MAX);
    for (int i = 0; i < q->stop_ids && r == 0; i++)
        if (q->stop_id[i] < 0 || q->stop_id[i] >= vocab)
            r = fail(-EINVAL, "request: stop token %d, the vocabulary has %d", q->stop_id[i],
                     vocab);
    return r;
}

static void done(struct lead *l, int slot, enum finish f)
{
    struct stream *s = &l->stream[slot];

    s->out->finish = f;
    s->out->end_ns = clock_ns();
    landing_free(&s->landing);
    offer_end(&l->offers, slot);
    s->state = STREAM_IDLE;
}

static int admit(struct lead *l, int slot)
{
    struct stream *s = &l->stream[slot];
    struct plan_admit p = { .slot = slot,
                            .n = s->q.n,
                            .budget = s->landing.left,
                            .flags = (s->q.draft ? ADMIT_DRAFT : 0) |
                                     (s->q.ignore_end ? ADMIT_IGNORE_END : 0),
                            .sampler = s->q.sampler,
                            .ids = s->q.ids,
                            .bias = s->q.bias };
    int err = order_admit(l->r, &p);

    if (err < 0)
        return err;
    offer_begin(&l->offers, slot, s->q.draft, &s->q.sampler);
    s->state = s->q.n > 1 ? STREAM_PROMPT : STREAM_DECODE;
    s->served = l->steps;
    s->filled = 0;
    s->pos = s->q.n - 1;
    s->pending = s->q.ids[s->q.n - 1];
    s->kept = true;
    return 0;
}

/* Special tokens have no text. */
static const char *bytes_of(const void *arg, int32_t tok, size_t *bytes)
{
    const struct tokenizer *t = (const struct tokenizer *)arg;

    return tokenizer_flags(t, tok) & TOKEN_SPECIAL ? NULL : tokenizer_bytes(t, tok, bytes);
}

static int free_slot(const struct lead *l)
{
    for (int slot = 0; slot < l->r->k->bounds.slots; slot++)
        if (l->stream[slot].state == STREAM_IDLE)
            return slot;
    return -1;
}

/* The tokens that end this reply: the model's, unless they are ignored, and the request's. */
static int set_ends(struct stream *s, const struct rank *k)
{
    int n = 0;

    for (int i = 0; i < k->ends && !s->q.ignore_end; i++)
        s->end[n++] = k->end[i];
    for (int i = 0; i < s->q.stop_ids; i++)
        s->end[n++] = s->q.stop_id[i];
    s->q.sampler.ends = n;
    memcpy(s->q.sampler.end, s->end, (size_t)n * sizeof(*s->end));
    return n;
}

static int reply_room(const struct stream *s)
{
    size_t n = (size_t)s->landing.left;
    struct reply *out = s->out;

    out->ids = malloc(n * sizeof(int32_t));
    if (s->q.sampler.logprobs > 0)
        out->logprobs = malloc(n * sizeof(*out->logprobs));
    if (!out->ids || (s->q.sampler.logprobs > 0 && !out->logprobs))
        return fail(-ENOMEM, "no memory for a reply of %zu tokens", n);
    return 0;
}

int lead_add(struct lead *l, const struct request *q, struct reply *out)
{
    const struct rank *k = l->r->k;
    int room = k->bounds.context - q->n, slot = free_slot(l), r;
    struct stream *s = &l->stream[slot < 0 ? 0 : slot];

    if (room < 0)
        return fail(-EINVAL, "prompt has %d tokens, the context holds %d; set context", q->n,
                    k->bounds.context);
    if (slot < 0)
        return 1;
    *s = (struct stream){ .q = *q, .out = out };
    s->q.draft = q->draft && offer_drafts(&l->offers);
    s->landing = (struct landing){ .left = q->max_tokens < room ? q->max_tokens : room,
                                   .end = s->end,
                                   .ends = set_ends(s, k),
                                   .bytes = bytes_of,
                                   .arg = k->tok,
                                   .text = &out->text };
    stop_init(&s->landing.scan, q->stop, q->stops);
    out->prompt_tokens = q->n;
    out->begin_ns = clock_ns();
    if (s->landing.left == 0) {
        done(l, slot, FINISH_LENGTH);
        return 0;
    }
    r = reply_room(s);
    if (r < 0)
        return r;
    s->landing.ids = out->ids;
    return admit(l, slot);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static int prompt_step(struct lead *l, int slot)
{
    struct stream *s = &l->stream[slot];
    int end = s->filled + l->r->k->bounds.prefill_chunk;
    struct plan_span p = { .slot = slot, .start = s->filled };
    int err;

    p.end = end < s->q.n - 1 ? end : s->q.n - 1;
    err = order_fill(l->r, &p);
    if (err < 0)
        return err;
    s->served = l->steps;
    s->filled = p.end;
    if (s->filled == s->q.n - 1)
        s->state = STREAM_DECODE;
    return 0;
}

/* ---- what lands ------------------------------------------------------------------------------ */

static void say(struct stream *s, size_t before)
{
    if (s->q.on_text && s->out->text.bytes > before)
        s->q.on_text(s->q.arg, s->out->text.s + before, s->out->text.bytes - before);
}

/* Of rows that verify what landed; row is the window's first. */
static void keep_logprobs(const struct lead *l, struct stream *s, int row, int landed)
{
    for (int i = 0; i < landed; i++)
        s->out->logprobs[s->landing.n - landed + i] = *accept_logprobs(l->r->k->acc, row + i);
}

/* What the device accepted becomes text, up to the first token that ends the reply. */
static int land_window(struct lead *l, const struct plan_window *w, int row, bool alone,
                       struct round_slot *rec)
{
    struct stream *s = &l->stream[w->slot];
    const struct seat *seat = &l->r->seat[w->slot];
    size_t before = s->out->text.bytes;
    enum finish f;
    int landed = landing_take(&s->landing, seat->choice, seat->n_ok, &f);

    if (landed < 0)
        return rank_broken(l->r->k, landed, "round %u: text", l->r->number - 1);
    s->out->last_ns = clock_ns();
    if (s->out->first_ns == 0)
        s->out->first_ns = s->out->last_ns;
    if (s->out->logprobs)
        keep_logprobs(l, s, row, landed);
    say(s, before);
    s->pos += landed;
    s->pending = seat->choice[landed - 1];
    s->kept = false;
    s->commit = (struct plan_commit){ .slot = w->slot,
                                      .keep = landed,
                                      .flags = (landed == seat->n_ok ? COMMIT_MATCHED : 0) |
                                               (f != FINISH_NONE ? COMMIT_STOPPED : 0),
                                      .next = s->pending };
    rec->landed = landed;
    rec->finish = f;
    offer_landed(&l->offers, w->slot, alone, landed, rec);
    s->out->n = s->landing.n;
    s->out->rounds++;
    tally_add(&s->out->sums,
              &(struct round_record){ .windows = 1, .rows = w->rows, .slot = { *rec } });
    return 0;
}

/* The slot of a reply that is over: the ranks learn what landed, then it is free. */
static int leave(struct lead *l, int slot, enum finish f)
{
    struct stream *s = &l->stream[slot];
    int err = 0;

    if (!s->kept)
        err = order_keep(l->r, &s->commit);
    if (err == 0 && l->ends)
        err = l->ends(l->ends_arg, slot, s->out);
    if (err == 0)
        err = order_release(l->r, slot);
    if (err == 0)
        done(l, slot, f);
    return err;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static int decoding(const struct lead *l)
{
    int n = 0;

    for (int s = 0; s < SLOTS_MAX; s++)
        n += l->stream[s].state == STREAM_DECODE;
    return n;
}

static struct offer_at offer_of(const struct lead *l, int slot, bool alone)
{
    const struct stream *s = &l->stream[slot];

    return (struct offer_at){ .slot = slot,
                              .pos = s->pos,
                              .pending = s->pending,
                              .left = s->landing.left,
                              .alone = alone,
                              .landing = &s->landing };
}

static struct plan_ask ask_of(const struct lead *l, const struct offer_at *at)
{
    return (struct plan_ask){ .slot = at->slot,
                              .start = at->pos,
                              .most = offer_most(&l->offers, at->slot, at->alone) };
}

/* Draft passes that the round before has not made. */
static int draft_now(struct lead *l, const struct offer_at *at, int n)
{
    struct plan_draft p = { 0 };

    for (int i = 0; i < n; i++)
        if (offer_need(&l->offers, &at[i]))
            p.ask[p.asks++] = ask_of(l, &at[i]);
    return p.asks ? order_draft(l->r, &p) : 0;
}

static void set_windows(struct lead *l, struct plan_round *p, const int *slot, int n)
{
    p->windows = n;
    p->rows = 0;
    for (int i = 0; i < n; i++) {
        const struct stream *s = &l->stream[slot[i]];
        const struct offer *o = &l->offers.slot[slot[i]];

        p->window[i] = (struct plan_window){ .slot = slot[i],
                                             .rows = o->k + 1,
                                             .pos = s->pos,
                                             .source = o->k ? o->source : SOURCE_NONE };
        p->tok[p->rows++] = s->pending;
        memcpy(p->tok + p->rows, o->draft, (size_t)o->k * sizeof(int32_t));
        p->rows += o->k;
    }
}

/* The windows as every slot chose for itself, then what the padding of the whole has room for. */
static void build_windows(struct lead *l, struct plan_round *p, const int *slot, int n)
{
    int bucket;

    set_windows(l, p, slot, n);
    bucket = round_bucket(l->r, p);
    if (bucket > p->rows && n > 1) {
        offer_fill(&l->offers, slot, n, bucket);
        set_windows(l, p, slot, n);
    }
}

static int plan_windows(struct lead *l, struct plan_round *p)
{
    struct offer_at at[SLOTS_MAX];
    bool alone = decoding(l) == 1;
    int slot[SLOTS_MAX];
    unsigned asks;
    int n = 0, err;

    *p = (struct plan_round){ 0 };
    for (int i = 0; i < SLOTS_MAX; i++)
        if (l->stream[i].state == STREAM_DECODE)
            at[n++] = offer_of(l, i, alone);
    err = draft_now(l, at, n);
    if (err < 0)
        return err;
    for (int i = 0; i < n; i++) {
        struct stream *s = &l->stream[at[i].slot];

        offer_choose(&l->offers, &at[i]);
        slot[i] = at[i].slot;
        if (!s->kept)
            p->commit[p->commits++] = s->commit;
        s->kept = true;
    }
    build_windows(l, p, slot, n);
    asks = offer_ask(&l->offers, at, n);
    for (int i = 0; i < n; i++)
        if (asks >> at[i].slot & 1u)
            p->ask[p->asks++] = ask_of(l, &at[i]);
    p->arm = p->asks ? ARM_BEHIND : 0;
    return 0;
}

static void note_spec(struct round_record *rec, enum spec_end e)
{
    if (e != SPEC_OFF && (rec->spec == SPEC_OFF || rec->spec == SPEC_USED))
        rec->spec = e;
}

static int land_all(struct lead *l)
{
    struct plan_round *p = &l->plan;
    struct rounds *r = l->r;
    int row = 0, slot[SLOTS_MAX];

    for (int i = 0; i < p->windows; i++)
        slot[i] = p->window[i].slot;
    offer_ran(&l->offers, slot, p->windows);
    for (int i = 0; i < p->windows; i++) {
        int err = land_window(l, &p->window[i], row, p->windows == 1, &r->rec.slot[i]);

        if (err < 0)
            return err;
        note_spec(&r->rec, l->offers.slot[slot[i]].spec);
        row += p->window[i].rows;
    }
    return 0;
}

static int decode_step(struct lead *l)
{
    struct rounds *r = l->r;
    struct plan_round *p = &l->plan;
    int64_t begin;
    int err = plan_windows(l, p);

    if (err == 0)
        err = order_round(r, p);
    if (err < 0)
        return err;
    begin = clock_ns();
    err = land_all(l);
    if (err < 0)
        return err;
    r->rec.commit_ns = clock_ns() - begin;
    round_record_done(r);
    for (int i = 0; i < p->windows && err == 0; i++)
        if (r->rec.slot[i].finish != FINISH_NONE)
            err = leave(l, p->window[i].slot, r->rec.slot[i].finish);
    return err;
}

/* The reply ends where it is. */
static int cut_short(struct lead *l, int slot, enum finish f)
{
    struct stream *s = &l->stream[slot];
    size_t before = s->out->text.bytes;
    int err = landing_cut(&s->landing);

    say(s, before);
    return err < 0 ? rank_broken(l->r->k, err, "round %u: text", l->r->number) : leave(l, slot, f);
}

int lead_cancel(struct lead *l, const struct reply *out)
{
    int slot = lead_slot(l, out);

    return slot < 0 ? 0 : cut_short(l, slot, FINISH_CANCELLED);
}

static int interrupt(struct lead *l)
{
    int err = 0;

    for (int slot = 0; slot < SLOTS_MAX && err == 0; slot++)
        if (l->stream[slot].state != STREAM_IDLE)
            err = cut_short(l, slot, FINISH_INTERRUPTED);
    return err < 0 ? err : 1;
}

/* The prompt that has waited longest, -1 if none waits. */
static int next_prompt(const struct lead *l)
{
    int next = -1;

    for (int slot = 0; slot < SLOTS_MAX; slot++)
        if (l->stream[slot].state == STREAM_PROMPT &&
            (next < 0 || l->stream[slot].served < l->stream[next].served))
            next = slot;
    return next;
}

/* What a step has taken of the time that prompts and rounds share. */
static int64_t time_of(const struct lead *l, int64_t begin_ns)
{
    return l->turns ? 1 : clock_ns() - begin_ns;
}

int lead_step(struct lead *l)
{
    int prompt = next_prompt(l), err;
    bool decodes = decoding(l) > 0;
    int64_t begin = clock_ns();

    if (lead_leaving(l))
        return interrupt(l);
    l->steps++;
    if (prompt < 0 || !decodes)
        l->owed_ns = 0;
    if (prompt >= 0 && l->owed_ns <= 0) {
        err = prompt_step(l, prompt);
        l->owed_ns += time_of(l, begin);
        return err;
    }
    if (!decodes)
        return 1;
    err = decode_step(l);
    if (prompt >= 0)
        l->owed_ns -= time_of(l, begin);
    return err;
}

int lead_run(struct lead *l)
{
    int err = 0;

    while (err == 0)
        err = lead_step(l);
    return err < 0 ? err : 0;
}
