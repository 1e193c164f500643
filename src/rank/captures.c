/* captures.c owns which graphs there are; what is in them is the caller's. */
#include "src/rank/captures.h"

#include "kernels/backend.h"
#include "src/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct capture {
    struct capture_key key;
    struct captured graphs; /* none: they could not be made */
    uint64_t used;          /* round of the last use; 0: free */
};

struct captures {
    struct queue *q;
    int max;
    bool full; /* the device has no memory for another */
    struct captured *making;
    uint64_t round;
    struct capture_counts counts;
    struct capture kept[];
};

int captures_open(struct queue *q, int max, struct captures **out)
{
    struct captures *c = calloc(1, sizeof(*c) + (size_t)max * sizeof(c->kept[0]));

    if (!c)
        return fail(-ENOMEM, "graphs: no memory for a list of %d", max);
    c->q = q;
    c->max = max;
    *out = c;
    return 0;
}

void captures_close(struct captures *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->max; i++)
        captured_close(c->q, &c->kept[i].graphs);
    free(c);
}

bool captures_on(const struct captures *c)
{
    return c->max > 0;
}

int captures_bucket(int rows)
{
    static const int buckets[] = { 12, 16, 24, 32, 48, 64 };

    if (rows <= 8)
        return rows;
    for (size_t i = 0; i < sizeof(buckets) / sizeof(buckets[0]); i++)
        if (rows <= buckets[i])
            return buckets[i];
    return rows;
}

void captures_next(struct captures *c)
{
    c->round++;
}

static bool same(const struct capture_key *a, const struct capture_key *b)
{
    return a->part == b->part && a->rows == b->rows && a->segs == b->segs && a->class == b->class;
}

/* A free place, or that of the graph whose last use is longest ago; NULL if this round uses all. */
static struct capture *place(struct captures *c)
{
    struct capture *oldest = NULL;

    for (int i = 0; i < c->max; i++) {
        struct capture *e = &c->kept[i];

        if (e->used == 0)
            return e;
        if (e->used < c->round && (!oldest || e->used < oldest->used))
            oldest = e;
    }
    if (!oldest)
        return NULL;
    if (oldest->graphs.n > 0) {
        captured_close(c->q, &oldest->graphs);
        c->counts.dropped++;
        c->counts.held--;
    }
    *oldest = (struct capture){ 0 };
    return oldest;
}

static int piece_end(struct queue *q, struct captured *c)
{
    int r = q->ops->graph_end(q, &c->piece[c->n]);

    if (r == 0)
        c->n++;
    return r;
}

int capture(struct queue *q, void (*fn)(void *arg), void *arg, struct captured *out)
{
    int r;

    *out = (struct captured){ .n = 0 };
    fail_hold(true);
    r = q->ops->graph_begin(q);
    if (r == 0) {
        fn(arg);
        r = out->err;
        if (r < 0)
            q->err = 0;
        else
            r = piece_end(q, out);
    }
    fail_hold(false);
    if (r < 0)
        captured_close(q, out);
    if (r < 0 && r != -ENOMEM)
        log_line(LOG_ERR, "%s", fail_text());
    return r;
}

bool capture_piece_ends(int layer, int layers, int pieces)
{
    return layer + 1 < layers && (layer + 1) * pieces / layers != layer * pieces / layers;
}

void captured_launch(struct queue *q, const struct captured *c)
{
    for (int i = 0; i < c->n; i++)
        q->ops->graph_launch(q, c->piece[i]);
}

void captured_close(struct queue *q, struct captured *c)
{
    for (int i = 0; i < c->n; i++)
        q->ops->graph_close(c->piece[i]);
    c->n = 0;
}

void captures_cut(struct captures *c)
{
    struct captured *out = c->making;
    struct queue *q = c->q;

    if (!out || q->err || out->n == GRAPH_PIECES_MAX - 1)
        return;
    out->err = piece_end(q, out);
    if (out->err == 0)
        out->err = q->ops->graph_begin(q);
    q->err = out->err; /* nothing is captured then, and nothing that follows may run */
}

static int make(struct captures *c, void (*fn)(void *arg), void *arg, struct captured *out)
{
    int r;

    c->making = out;
    r = capture(c->q, fn, arg, out);
    c->making = NULL;
    if (r == -ENOMEM) {
        log_warn("graphs: no memory for another beside %d: what is new runs eagerly from now on",
                 c->counts.held);
        c->full = true;
        return 0;
    }
    if (r == 0) {
        c->counts.made++;
        c->counts.held++;
    }
    return r;
}

int captures_take(struct captures *c, const struct capture_key *key, void (*fn)(void *arg),
                  void *arg, const struct captured **out)
{
    struct capture *e = NULL;
    int r = 0;

    *out = NULL;
    for (int i = 0; i < c->max && !e; i++)
        if (c->kept[i].used && same(&c->kept[i].key, key))
            e = &c->kept[i];
    if (!e) {
        e = place(c);
        if (e) {
            r = c->full ? 0 : make(c, fn, arg, &e->graphs);
            if (r < 0)
                return r;
            e->key = *key;
            r = 1;
        }
    }
    if (e) {
        e->used = c->round;
        *out = e->graphs.n > 0 ? &e->graphs : NULL;
    }
    if (*out)
        c->counts.replayed++;
    else
        c->counts.eager++;
    return r;
}

struct capture_counts captures_counts(const struct captures *c)
{
    return c->counts;
}
