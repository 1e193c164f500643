/* watch.c owns the counts behind verdicts about drafters and slots. */
#include "src/draft/watch.h"

#include <stdio.h>

#define LOW 0.6 /* code drafts better than this, prose about as well (docs/DECODE.md "pricing") */

void watch_note(struct draft_watch *w, bool sampled, int proposed, int k, int a)
{
    w->rounds++;
    w->proposed += proposed;
    for (int i = 0; i < k && i <= a; i++) {
        w->tried[sampled][i]++;
        w->kept[sampled][i] += i < a;
    }
}

enum watch_verdict watch_verdict(struct draft_watch *w, const char *drafter, char *out, size_t cap)
{
    int at = 0;

    if (w->said || w->rounds < WATCH_ROUNDS)
        return WATCH_QUIET;
    w->said = true;
    if (w->proposed == 0) {
        snprintf(out, cap, "draft %s: %d rounds and not one draft proposed", drafter, w->rounds);
        return WATCH_SILENT;
    }
    at = snprintf(out, cap, "draft %s: acceptance by position", drafter);
    for (int i = 0; i < WINDOW_MAX && at > 0 && (size_t)at < cap; i++) {
        int tried = w->tried[0][i] + w->tried[1][i];

        if (tried == 0)
            break;
        at += snprintf(out + at, cap - (size_t)at, " %.2f",
                       (double)(w->kept[0][i] + w->kept[1][i]) / tried);
    }
    if (at > 0 && (size_t)at < cap)
        at += snprintf(out + at, cap - (size_t)at, " over %d rounds", w->rounds);
    if (w->tried[0][0] == 0 || w->kept[0][0] >= LOW * w->tried[0][0])
        return WATCH_FINE;
    if (at > 0 && (size_t)at < cap)
        snprintf(out + at, cap - (size_t)at, "; greedy position 1 has %.2f, below %.2f",
                 (double)w->kept[0][0] / w->tried[0][0], LOW);
    return WATCH_LOW;
}

static bool normal(const struct slot_alarm *alarm)
{
    return alarm->judged && !alarm->raised && alarm->last >= ALARM_NORMAL;
}

int alarm_note(struct slot_alarm *alarm, int slot, int k, int a, bool bad)
{
    struct slot_alarm *s = &alarm[slot];

    if (s->raised)
        return 0;
    if (bad) {
        s->raised = true;
        return 1;
    }
    if (k == 0)
        return 0;
    s->rounds++;
    s->tried += k;
    s->kept += a;
    if (s->rounds < WATCH_ROUNDS)
        return 0;
    s->last = (double)s->kept / s->tried;
    s->judged = true;
    s->rounds = s->tried = s->kept = 0;
    for (int i = 0; i < SLOTS_MAX && s->last < ALARM_POOR; i++)
        if (i != slot && normal(&alarm[i])) {
            s->raised = true;
            return 1;
        }
    return 0;
}
