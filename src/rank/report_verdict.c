/* report_verdict.c owns what is said about a run in words, and from where on it is worth saying. */
#include "src/rank/report_view.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIFFERENT 0.01      /* of a round: one rank waits this much longer than another, */
#define DIFFERENT_WAIT 0.15 /* and this much of what it waits */
#define WIRE_HEAVY 0.15     /* of a round: even the slowest rank waits this much */
#define LAG_HEAVY 0.02      /* of a round: a follower starts this much later */
#define REST_HEAVY 0.10     /* of a round: in no step */
#define GAPS_HEAVY 0.01     /* of the run: with nothing to do */
#define SPIKES 3.0          /* the slowest hundredth against the median */
#define USELESS 0.02        /* of the verified drafts are accepted */
#define CHANCES_OFF 0.10    /* between chances and what came true */
#define FEW 100             /* rounds or windows from which on a share means something */

__attribute__((format(printf, 3, 4))) static void say(struct report_view *v, enum verdict_kind kind,
                                                      const char *fmt, ...)
{
    va_list ap;

    if (v->verdicts == VIEW_VERDICT)
        return;
    v->verdict[v->verdicts].kind = kind;
    va_start(ap, fmt);
    vsnprintf(v->verdict[v->verdicts++].text, VIEW_SENTENCE, fmt, ap);
    va_end(ap);
}

static double percent(double part, double whole)
{
    return 100 * per(part, whole);
}

static void speed(struct report_view *v)
{
    const struct report_log *l = v->of[0].log;
    const struct tally *t = &l->sums;
    const struct speed *s = &l->speed;
    char alone[96] = "";

    if (s->streams > 1)
        snprintf(alone, sizeof(alone),
                 " with up to %d streams together, %.1f tok/s for one of them", s->streams,
                 speed_median(s));
    say(v, VERDICT_PLAIN,
        "%llu round%s gave %llu tokens: %.2f tokens a round, %.1f tok/s%s. A round takes %.2f ms.",
        (unsigned long long)t->rounds, t->rounds == 1 ? "" : "s", (unsigned long long)t->landed,
        per((double)t->landed, (double)t->rounds), view_tok_s(l), alone, view_round_ms(l));
}

/* The three largest parts of the first log's rounds. */
static void parts(struct report_view *v)
{
    const struct view_log *w = &v->of[0];
    double whole = view_round_ms(w->log);
    bool said[PARTS] = { false };
    char text[VIEW_SENTENCE] = "";
    size_t at = 0;

    for (int i = 0; i < 3; i++) {
        double ms;
        int best = -1;

        for (int p = 0; p < PARTS; p++)
            if (!said[p] && (best < 0 || w->log->part_ns[p] > w->log->part_ns[best]))
                best = p;
        said[best] = true;
        ms = view_part_ms(w->log, (enum part)best);
        if (i > 0 && percent(ms, whole) < 1)
            break;
        if (i == 0)
            at = (size_t)snprintf(text, sizeof(text), "%s of a round on %s is %s%s: ",
                                  percent(ms, whole) > 50 ? "Most" : "The largest part", w->label,
                                  best == PART_WAIT ? "" : "the ",
                                  best == PART_WAIT ? "waiting in exchanges"
                                                    : part_name((enum part)best));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s%s%.0f%% (%.2f ms)",
                               i == 0   ? ""
                               : i == 1 ? "; then "
                                        : ", ",
                               i == 0 ? "" : part_name((enum part)best), i == 0 ? "" : " ",
                               percent(ms, whole), ms);
    }
    say(v, VERDICT_PLAIN, "%s.", text);
}

/* "Rank 0", at the start of a sentence. */
static const char *subject(const struct view_log *w, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s", w->label);
    buf[0] = (char)toupper((unsigned char)buf[0]);
    return buf;
}

/* What even the slowest rank waits is nobody's lateness. */
static void wire(struct report_view *v, const struct view_log *slow)
{
    double whole = view_round_ms(slow->log);
    char name[sizeof(slow->label)];

    if (view_wait_ms(slow) <= WIRE_HEAVY * whole)
        return;
    say(v, VERDICT_WARN,
        "%s waits least, and yet %.2f ms a round, %.0f%% of it: %.0f exchanges of %.0f us each. "
        "Nobody is late then: it is the link, or a machine with fewer free cores than threads.",
        subject(slow, name, sizeof(name)), view_wait_ms(slow), percent(view_wait_ms(slow), whole),
        view_exchanges(slow), view_wait_us(slow));
}

/* Who waits for whom: the rank that waits least is the one the others wait for. Of `ran` logs with
 * a round. */
static void balance(struct report_view *v, int ran)
{
    const struct view_log *slow = &v->of[0], *quick = &v->of[0];
    double more, whole = view_round_ms(v->of[0].log);
    char name[sizeof(slow->label)];

    if (ran == 1) {
        if (slow->log->sums.wait_ns > 0)
            say(v, VERDICT_PLAIN,
                "%s waits %.2f ms a round for other ranks. Give the logs of all ranks to see which "
                "one is slower.",
                subject(slow, name, sizeof(name)), view_wait_ms(slow));
        return;
    }
    for (int i = 1; i < ran; i++) {
        if (view_wait_ms(&v->of[i]) < view_wait_ms(slow))
            slow = &v->of[i];
        if (view_wait_ms(&v->of[i]) > view_wait_ms(quick))
            quick = &v->of[i];
    }
    wire(v, slow);
    more = view_wait_ms(quick) - view_wait_ms(slow);
    if (more > DIFFERENT * whole && more > DIFFERENT_WAIT * view_wait_ms(quick))
        say(v, VERDICT_WARN,
            "%s is the slower rank: %s waits %.2f ms a round for it, %.2f ms more than the other "
            "way round.",
            subject(slow, name, sizeof(name)), quick->label, view_wait_ms(quick), more);
    else
        say(v, VERDICT_PLAIN,
            "No rank is slower than another: each waits %.2f to %.2f ms a round in exchanges.",
            view_wait_ms(slow), view_wait_ms(quick));
}

static void drafts(struct report_view *v)
{
    const struct tally *t = &v->of[0].log->sums;
    uint64_t right = t->skipped[SKIPPED_RIGHT], wrong = t->skipped[SKIPPED_WRONG];
    double none = (double)(right + wrong + t->skipped[SKIPPED_UNKNOWN]);
    char skipped[160] = "", sources[64] = "";

    if (t->drafted == 0) {
        say(v, VERDICT_PLAIN, "No drafts were verified: every round gives one token a stream.");
        return;
    }
    if (per((double)t->accepted, (double)t->drafted) < USELESS && t->rounds >= 2 * FEW) {
        say(v, VERDICT_WARN,
            "The drafter is of no use here: %.1f%% of the verified drafts are accepted.",
            percent((double)t->accepted, (double)t->drafted));
        return;
    }
    if (right + wrong > 0)
        snprintf(skipped, sizeof(skipped),
                 " In %.0f%% of the windows with drafts none was worth its price; the first one "
                 "would have been right in %.0f%% of them.",
                 percent(none, (double)t->offered),
                 percent((double)right, (double)(right + wrong)));
    if (t->drafted_of[SOURCE_DRAFTER] > 0 && t->drafted_of[SOURCE_COPY] > 0)
        snprintf(
            sources, sizeof(sources), " (the drafter's %.0f%%, copies %.0f%%)",
            percent((double)t->accepted_of[SOURCE_DRAFTER], (double)t->drafted_of[SOURCE_DRAFTER]),
            percent((double)t->accepted_of[SOURCE_COPY], (double)t->drafted_of[SOURCE_COPY]));
    say(v, VERDICT_PLAIN,
        "Of the verified drafts %.0f%% are accepted%s, of the first ones %.0f%%.%s",
        percent((double)t->accepted, (double)t->drafted), sources,
        percent((double)t->hits[0], (double)t->tries[0]), skipped);
    if (t->windows >= FEW && (double)t->offered < 0.9 * (double)t->windows)
        say(v, VERDICT_PLAIN, "%.0f%% of the windows had no drafts to choose from.",
            percent((double)(t->windows - t->offered), (double)t->windows));
}

/* How far chances and frequencies are apart, weighted by how often. */
static void chances(struct report_view *v)
{
    const struct tally *t = &v->of[0].log->sums;
    double off = 0, n = 0;

    for (int i = 0; i < 10; i++) {
        const struct tenth *d = &t->tenth[i];

        off += fabs((double)d->hits - (double)d->q_ppm / 1e6);
        n += (double)d->n;
    }
    if (n >= FEW && off / n > CHANCES_OFF)
        say(v, VERDICT_WARN,
            "The chances that price the drafts are off by %.0f points on average: see the "
            "reliability plot.",
            100 * off / n);
}

static void followers(struct report_view *v)
{
    if (v->of[0].log->rank > 0)
        return; /* a lag is behind rank 0, of which there is no round */
    for (int i = 1; i < v->n; i++) {
        const struct tally *t = &v->of[i].log->sums;
        char name[sizeof(v->of[i].label)];
        double lag = per((double)t->lag_ns / 1e6, (double)t->lags);

        if (t->lags > 0 && lag > LAG_HEAVY * view_round_ms(v->of[0].log))
            say(v, VERDICT_WARN, "%s starts its windows %.2f ms after %s: the plan comes late.",
                subject(&v->of[i], name, sizeof(name)), lag, v->of[0].label);
    }
}

static enum part largest(const struct log_round *r)
{
    int best = 0;

    for (int p = 1; p < PARTS; p++)
        if (r->us[p] > r->us[best])
            best = p;
    return (enum part)best;
}

static void spikes(struct report_view *v)
{
    const struct view_log *w = &v->of[0];
    const struct report_log *l = w->log;
    const struct log_round *slow = &l->round[0];

    if (l->rounds < FEW || w->p99_us < SPIKES * w->median_us)
        return;
    for (size_t i = 1; i < l->rounds; i++)
        if (log_round_us(&l->round[i]) > log_round_us(slow))
            slow = &l->round[i];
    say(v, VERDICT_WARN,
        "One round in a hundred takes more than %.1f ms, the median %.1f ms. The slowest is round "
        "%u: "
        "%.0f ms, most of it %s.",
        w->p99_us / 1e3, w->median_us / 1e3, slow->round, w->max_us / 1e3,
        part_name(largest(slow)));
}

static void host(struct report_view *v)
{
    const struct report_log *l = v->of[0].log;
    double whole = view_round_ms(l), rest = view_part_ms(l, PART_REST);

    say(v, VERDICT_PLAIN, "Host work of a round (plan, staging, commit) takes %.0f us on %s.",
        1e3 * (view_part_ms(l, PART_PLAN) + view_part_ms(l, PART_STAGE) +
               view_part_ms(l, PART_COMMIT)),
        v->of[0].label);
    if ((double)l->sums.gap_ns > GAPS_HEAVY * (double)l->sums.wall_ns)
        say(v, VERDICT_PLAIN,
            "Between rounds nobody had work for %.1f s: gaps of 50 ms and more, counted nowhere "
            "else.",
            (double)l->sums.gap_ns / 1e9);
    if (rest > REST_HEAVY * whole)
        say(v, VERDICT_WARN, "%.0f%% of a round (%.2f ms) is in none of its steps.",
            percent(rest, whole), rest);
}

static void broken(struct report_view *v)
{
    for (int i = 0; i < v->n; i++) {
        const struct report_log *l = v->of[i].log;

        if (l->bad > 0)
            say(v, VERDICT_WARN, "%lu of %lu lines in %s%.200s are broken and left out%s.", l->bad,
                l->lines, l->rank < 0 ? "" : "the log of ", l->rank < 0 ? l->path : v->of[i].label,
                l->cut ? "; the last one is cut off" : "");
    }
}

/* How many logs have a round; they stand in front of the others, which are named. */
static int count_ran(struct report_view *v)
{
    int ran = 0;

    for (int i = 0; i < v->n; i++) {
        const struct report_log *l = v->of[i].log;

        ran += l->rounds > 0;
        if (l->rounds == 0 && l->rank < 0)
            say(v, VERDICT_WARN, "There is no round in %.200s.", l->path);
        else if (l->rounds == 0)
            say(v, VERDICT_WARN, "There is no round in the log of %s, %.200s.", v->of[i].label,
                l->path);
    }
    return ran;
}

void view_judge(struct report_view *v)
{
    int ran = count_ran(v);

    if (ran == 0) {
        broken(v);
        return;
    }
    speed(v);
    parts(v);
    balance(v, ran);
    drafts(v);
    broken(v);
    followers(v);
    spikes(v);
    chances(v);
    host(v);
}
