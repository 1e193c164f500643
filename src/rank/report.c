/* report.c owns how sums look to people; definitions are in docs/DECODE.md "round log". */
#include "src/rank/report.h"

#include "src/base/log.h"
#include "src/rank/lead.h"

#include <string.h>

static double tok_s(const struct tally *t)
{
    return per((double)t->landed * 1e9, (double)t->wall_ns);
}

static double ms_round(int64_t ns, const struct tally *t)
{
    return per((double)ns / 1e6, (double)t->rounds);
}

/* " 0.94 0.90 ..." */
static const char *rates(const struct tally *t, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = 0;
    for (int i = 0; i < tally_depth(t) && at + 8 < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, " %.2f",
                               per((double)t->hits[i], (double)t->tries[i]));
    return buf;
}

void report_reply(const struct reply *r)
{
    double seconds = (double)(r->last_ns - r->first_ns) / 1e9;

    log_info("reply: %d tokens after a prompt of %d, finish %s, %d rounds, %.2f tokens a round, "
             "%.1f tok/s",
             r->n, r->prompt_tokens, finish_name(r->finish), r->rounds, per(r->n, r->rounds),
             r->n > 1 ? per(r->n - 1, seconds) : 0);
}

static void drafts(const struct tally *t)
{
    uint64_t known = t->skipped[SKIPPED_RIGHT] + t->skipped[SKIPPED_WRONG];
    char buf[WINDOW_MAX * 8], skipped[64] = "";

    if (known > 0)
        snprintf(skipped, sizeof(skipped), " (the skipped draft was right in %.0f%%)",
                 100 * per((double)t->skipped[SKIPPED_RIGHT], (double)known));
    if (tally_depth(t) > 0)
        log_info("drafts: %llu verified, %.0f%% accepted; by position:%s; windows without any "
                 "%.0f%%%s",
                 (unsigned long long)t->drafted, 100 * per((double)t->accepted, (double)t->drafted),
                 rates(t, buf, sizeof(buf)), 100 * per((double)t->depth[0], (double)t->windows),
                 skipped);
}

void report_sums(const struct tally *t)
{
    if (t->rounds == 0)
        return;
    log_info("rounds: %llu, %.2f tokens a round, %.1f tok/s; prompts: %lld rows in %.2f s",
             (unsigned long long)t->rounds, per((double)t->landed, (double)t->rounds), tok_s(t),
             (long long)t->prompt_rows, (double)t->prompt_ns / 1e9);
    drafts(t);
    log_info("ms a round: %.2f: window %.2f, choices %.2f, draft %.2f, ingest %.2f, plan %.3f, "
             "staging %.3f, commit %.3f; in %.0f exchanges: waiting %.2f, moving %.2f",
             ms_round(t->wall_ns, t), ms_round(t->window_ns, t), ms_round(t->choose_ns, t),
             ms_round(t->draft_ns + t->draft_wait_ns, t), ms_round(t->ingest_ns, t),
             ms_round(t->plan_ns, t), ms_round(t->stage_ns + t->engram_ns, t),
             ms_round(t->commit_ns, t), per((double)t->exchanges, (double)t->rounds),
             ms_round(t->wait_ns, t), ms_round(t->move_ns, t));
    if (t->lags > 0)
        log_info("windows start %.3f ms after rank 0's", (double)t->lag_ns / 1e6 / (double)t->lags);
}

void report_table(const struct report_row *row, int n, FILE *f)
{
    char buf[WINDOW_MAX * 8];

    fprintf(f, "%-12s %8s %8s %8s %12s  %s\n", "prompt", "tok/s", "serial", "speed-up",
            "tokens/round", "acceptance by draft position");
    for (int i = 0; i < n; i++) {
        const struct tally *d = &row[i].drafted, *s = &row[i].serial;

        fprintf(f, "%-12s %8.1f %8.1f %7.2fx %12.2f %s\n", row[i].name, tok_s(d), tok_s(s),
                per(tok_s(d), tok_s(s)), per((double)d->landed, (double)d->rounds),
                rates(d, buf, sizeof(buf)));
    }
    fprintf(f, "\n%-12s %8s %8s %8s %8s %8s %8s   %s\n", "ms a round", "window", "choices", "draft",
            "ingest", "host", "idle", "in exchanges: waiting, moving");
    for (int i = 0; i < n; i++) {
        const struct tally *d = &row[i].drafted;

        fprintf(f, "%-12s %8.2f %8.2f %8.2f %8.2f %8.3f %8.2f   %.2f, %.2f (%.0f exchanges)\n",
                row[i].name, ms_round(d->window_ns, d), ms_round(d->choose_ns, d),
                ms_round(d->draft_ns, d), ms_round(d->ingest_ns, d),
                ms_round(d->plan_ns + d->commit_ns, d), ms_round(d->idle_ns, d),
                ms_round(d->wait_ns, d), ms_round(d->move_ns, d),
                per((double)d->exchanges, (double)d->rounds));
    }
}
