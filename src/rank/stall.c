/* stall.c owns the judgement over ranks that do not get on. */
#include "src/rank/stall.h"

#include "src/base/clock.h"

#include <stdio.h>

void stall_note(struct stall *s, int rank, const struct progress_view *at, int64_t now)
{
    if (s->rank[rank].moved_ns == 0 || !progress_same(&s->rank[rank].at, at))
        s->rank[rank].moved_ns = now;
    s->rank[rank].at = *at;
}

void stall_excuse(struct stall *s, int64_t now)
{
    for (int r = 0; r < STALL_RANKS; r++)
        if (s->rank[r].moved_ns != 0)
            s->rank[r].moved_ns = now;
}

static bool busy(const struct progress_view *v)
{
    return v->begun > v->ended;
}

int stall_find(const struct stall *s, bool whole, int limit_ms, int64_t now, char *text, size_t cap)
{
    int waits = -1, moves = 0;
    uint64_t newest = 0;
    char at[160];

    for (int r = 0; r < STALL_RANKS; r++) {
        const struct progress_view *v = &s->rank[r].at;

        if (s->rank[r].moved_ns == 0)
            continue;
        if (now - s->rank[r].moved_ns < limit_ms * NS_PER_MS) {
            moves++;
            continue;
        }
        if (v->begun > newest)
            newest = v->begun;
        if (!busy(v))
            continue;
        if (!progress_waits(v)) {
            progress_text(v, at, sizeof(at));
            snprintf(text, cap, "rank %d has not got on for %d ms: %s", r, limit_ms, at);
            return 0;
        }
        waits = r;
    }
    if (waits < 0 || moves > 0 || !whole)
        return 1;
    progress_text(&s->rank[waits].at, at, sizeof(at));
    for (int r = 0; r < STALL_RANKS; r++)
        if (s->rank[r].moved_ns != 0 && !busy(&s->rank[r].at) && s->rank[r].at.begun < newest) {
            snprintf(text, cap, "rank %d has not got order %llu in %d ms; rank %d: %s", r,
                     (unsigned long long)newest, limit_ms, waits, at);
            return 0;
        }
    snprintf(text, cap, "ranks wait for each other for %d ms; rank %d: %s", limit_ms, waits, at);
    return 0;
}
