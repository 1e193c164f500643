/* tally.c owns what is added up over rounds; who fills a record is in round.c and lead.c. */
#include "src/rank/tally.h"

#include <assert.h>

#define BOTH(field) offsetof(struct round_record, field), offsetof(struct tally, field)

const struct record_field record_fields[] = {
    { "plan_us", UNIT_US, BOTH(plan_ns) },
    { "stage_us", UNIT_US, BOTH(stage_ns) },
    { "launch_us", UNIT_US, BOTH(launch_ns) },
    { "engram_ms", UNIT_MS, BOTH(engram_ns) },
    { "window_ms", UNIT_MS, BOTH(window_ns) },
    { "choose_ms", UNIT_MS, BOTH(choose_ns) },
    { "draft_ms", UNIT_MS, BOTH(draft_ns) },
    { "draft_wait_ms", UNIT_MS, BOTH(draft_wait_ns) },
    { "ingest_ms", UNIT_MS, BOTH(ingest_ns) },
    { "commit_us", UNIT_US, BOTH(commit_ns) },
    { "ahead_us", UNIT_US, BOTH(ahead_ns) },
    { "bring_us", UNIT_US, BOTH(bring_ns) },
    { "idle_ms", UNIT_MS, BOTH(idle_ns) },
    { "wall_ms", UNIT_MS, BOTH(wall_ns) },
    { "xn", UNIT_COUNT, BOTH(exchanges) },
    { "xwait_us", UNIT_US, BOTH(wait_ns) },
    { "xwait_window_us", UNIT_US, BOTH(window_wait_ns) },
    { "xwait_choose_us", UNIT_US, BOTH(choose_wait_ns) },
    { "xmove_us", UNIT_US, BOTH(move_ns) },
    { "engram_rows", UNIT_COUNT, BOTH(engram_rows) },
    { "engram_hits", UNIT_COUNT, BOTH(engram_hits) },
    { "engram_reads", UNIT_COUNT, BOTH(engram_reads) },
    { "engram_waits", UNIT_COUNT, BOTH(engram_waits) },
    { "proposed", UNIT_COUNT, BOTH(proposed) },
    { "prompt_rows", UNIT_COUNT, BOTH(prompt_rows) },
    { "prompt_ms", UNIT_MS, BOTH(prompt_ns) },
    { NULL, UNIT_COUNT, 0, 0 },
};

static_assert(sizeof(struct tally) % sizeof(uint64_t) == 0 && _Alignof(struct tally) == 8,
              "tally_minus subtracts words");

const char *mode_name(enum round_mode m)
{
    static const char *const names[MODES] = { "eager", "capture", "replay" };

    return names[m];
}

const char *finish_name(enum finish f)
{
    static const char *const names[FINISHES] = { "",       "end",         "stop",
                                                 "length", "interrupted", "cancelled",
                                                 "error" };

    return names[f];
}

const char *finish_reason(enum finish f)
{
    return f == FINISH_END ? "stop" : finish_name(f);
}

/* The first draft's chance against its fate, which is known if it was verified or if it was skipped
 * for the token that its pass meant. */
static void add_first(struct tally *t, const struct round_slot *s)
{
    bool known = s->k > 0 || s->skipped != SKIPPED_UNKNOWN;
    struct tenth *d;

    if (s->offered == 0)
        return;
    t->offered++;
    if (s->k == 0)
        t->skipped[s->skipped]++;
    if (!known || !(s->q[0] >= 0 && s->q[0] <= 1))
        return;
    d = &t->tenth[s->q[0] < 0.9f ? (int)(s->q[0] * 10) : 9];
    d->n++;
    d->q_ppm += (uint64_t)((double)s->q[0] * 1e6 + 0.5);
    d->hits += s->k > 0 ? s->a > 0 : s->skipped == SKIPPED_RIGHT;
}

int64_t record_busy_ns(const struct round_record *r)
{
    return r->plan_ns + r->stage_ns + r->engram_ns + r->window_ns + r->choose_ns + r->draft_ns +
           r->draft_wait_ns + r->ingest_ns + r->ahead_ns + r->commit_ns;
}

void tally_add(struct tally *t, const struct round_record *r)
{
    int64_t rest = r->wall_ns - record_busy_ns(r);

    t->rounds++;
    t->windows += (uint64_t)r->windows;
    t->rows += (uint64_t)r->rows;
    t->mode[r->mode]++;
    t->spec[r->spec]++;
    for (int i = 0; i < r->windows; i++) {
        const struct round_slot *s = &r->slot[i];

        t->landed += (uint64_t)s->landed;
        t->drafted += (uint64_t)s->k;
        t->accepted += (uint64_t)s->a;
        t->depth[s->k]++;
        t->source[s->source]++;
        t->drafted_of[s->source] += (uint64_t)s->k;
        t->accepted_of[s->source] += (uint64_t)s->a;
        for (int j = 0; j < s->k && j <= s->a; j++) {
            t->tries[j]++;
            t->hits[j] += j < s->a;
        }
        add_first(t, s);
    }
    if (rest >= TALLY_GAP_NS)
        t->gap_ns += rest;
    else if (rest > 0)
        t->rest_ns += rest;
    if (r->lag_known) {
        t->lags++;
        t->lag_ns += r->lag_ns;
    }
    for (const struct record_field *f = record_fields; f->key; f++)
        *(int64_t *)(void *)((char *)t + f->in_tally) += record_number(r, f);
}

struct tally tally_minus(const struct tally *t, const struct tally *before)
{
    struct tally d = *t;
    uint64_t *word = (uint64_t *)&d;
    const uint64_t *less = (const uint64_t *)before;

    for (size_t i = 0; i < sizeof(d) / sizeof(*word); i++)
        word[i] -= less[i];
    return d;
}

int tally_depth(const struct tally *t)
{
    int n = 0;

    while (n < WINDOW_MAX && t->tries[n] > 0)
        n++;
    return n;
}

uint64_t tally_reach(const struct tally *t, int j)
{
    uint64_t n = 0;

    for (int k = j; k < WINDOW_MAX; k++)
        n += t->depth[k];
    return n;
}
