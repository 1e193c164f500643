/* report_speed.c owns which rounds belong to a request and which requests to a group. */
#include "src/rank/report_speed.h"

#include "src/base/log.h"
#include "src/base/sort.h"

#include <errno.h>
#include <stdlib.h>

static int keep_request(struct speed *s, const struct speed_request *q)
{
    if (s->requests == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct speed_request *more = realloc(s->request, cap * sizeof(*more));

        if (!more)
            return fail(-ENOMEM, "report: no memory for %zu requests", cap);
        s->request = more;
        s->cap = cap;
    }
    s->request[s->requests++] = *q;
    return 0;
}

static int leave(struct speed *s, int slot)
{
    s->lives[slot] = false;
    return keep_request(s, &s->live[slot]);
}

static int living(const struct speed *s)
{
    int n = 0;

    for (int i = 0; i < SLOTS_MAX; i++)
        n += s->lives[i];
    return n;
}

static void end_group(struct speed *s)
{
    if (s->last_ns > s->first_ns) {
        s->group.tokens += s->tokens;
        s->group.ns += s->last_ns - s->first_ns;
        s->steady.tokens += s->by_streams[s->widest].tokens;
        s->steady.ns += s->by_streams[s->widest].ns;
    }
    s->tokens = 0;
    s->widest = s->last_n = 0;
    for (int n = 0; n <= SLOTS_MAX; n++)
        s->by_streams[n] = (struct speed_sum){ 0 };
}

static int note_window(struct speed *s, const struct round_slot *w, int64_t end_ns)
{
    struct speed_request *q = &s->live[w->slot];
    int err = 0;

    if (s->lives[w->slot] && w->pos != s->next[w->slot])
        err = leave(s, w->slot);
    if (err < 0)
        return err;
    if (!s->lives[w->slot])
        *q = (struct speed_request){ .slot = w->slot, .start = w->pos, .first_ns = end_ns };
    s->lives[w->slot] = true;
    s->next[w->slot] = w->pos + w->landed;
    q->last_ns = end_ns;
    q->tokens += (uint64_t)w->landed;
    q->rounds++;
    q->drafted += (uint64_t)w->k;
    q->accepted += (uint64_t)w->a;
    q->finish = w->finish;
    return 0;
}

int speed_note(struct speed *s, const struct round_record *r, int64_t end_ns)
{
    bool first = living(s) == 0;
    uint64_t landed = 0;
    int err = 0;

    for (int i = 0; i < r->windows && err == 0; i++) {
        err = note_window(s, &r->slot[i], end_ns);
        landed += (uint64_t)r->slot[i].landed;
    }
    if (err < 0)
        return err;
    if (first)
        s->first_ns = end_ns;
    /* A round's time is steady only if the round before had as many streams. */
    if (!first && s->last_n == r->windows) {
        s->by_streams[r->windows].tokens += landed;
        s->by_streams[r->windows].ns += end_ns - s->last_ns;
    }
    s->last_ns = end_ns;
    s->last_n = r->windows;
    s->tokens += landed;
    if (r->windows > s->widest)
        s->widest = r->windows;
    if (r->windows > s->streams)
        s->streams = r->windows;
    for (int i = 0; i < r->windows && err == 0; i++)
        if (r->slot[i].finish != FINISH_NONE)
            err = leave(s, r->slot[i].slot);
    if (living(s) == 0)
        end_group(s);
    return err;
}

int speed_end(struct speed *s)
{
    int err = 0;

    if (living(s) > 0)
        end_group(s);
    for (int i = 0; i < SLOTS_MAX && err == 0; i++)
        if (s->lives[i])
            err = leave(s, i);
    return err;
}

void speed_free(struct speed *s)
{
    free(s->request);
    *s = (struct speed){ 0 };
}

double speed_of(const struct speed_request *q)
{
    if (q->last_ns <= q->first_ns || q->tokens < 2)
        return 0;
    return (double)(q->tokens - 1) * 1e9 / (double)(q->last_ns - q->first_ns);
}

double speed_median(const struct speed *s)
{
    double *v = malloc((s->requests ? s->requests : 1) * sizeof(*v)), median = 0;
    size_t n = 0;

    for (size_t i = 0; v && i < s->requests; i++)
        if (speed_of(&s->request[i]) > 0)
            v[n++] = speed_of(&s->request[i]);
    if (n > 0) {
        sort_f64(v, n);
        median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    }
    free(v);
    return median;
}
