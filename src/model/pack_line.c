/* pack_line.c owns the workers and whose turn it is.
 *
 *   take weight i -> find, read, lay out, hash -> hold back until i is due -> sink -> i + 1 is due
 *
 * Who is not due holds bytes back up to a bound and then waits. Who is due never waits for another
 * worker, so the line moves.
 */
#include "src/model/pack_line.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/base/meter.h"
#include "src/base/pool.h"
#include "src/model/source.h"

#define WORKERS 3
#define HELD_BYTES ((size_t)16 << 20) /* of a worker that is not due */

struct pack_line {
    const char *path;
    struct source *src;
    struct pack_toc *toc;
    struct pack_part *part;
    struct pack_sink *sink;

    pthread_mutex_t taking; /* next; and a source finds for one caller at a time */
    size_t next;

    pthread_mutex_t lock;
    pthread_cond_t change;
    size_t due; /* the weight whose bytes go to the sink */
    int err;    /* of the first weight that failed: those before it go on */
    size_t failed;
    char why[1024];

    struct meter meter; /* of the worker that is due */
};

/* ---- turns ----------------------------------------------------------------------------------- */

static bool is_due(struct pack_out *o)
{
    struct pack_line *l = o->line;

    if (!o->due) {
        pthread_mutex_lock(&l->lock);
        o->due = l->due == o->weight;
        pthread_mutex_unlock(&l->lock);
    }
    return o->due;
}

/* Until the weight is due, or one before it has failed. */
static int wait_due(struct pack_out *o)
{
    struct pack_line *l = o->line;
    int r;

    pthread_mutex_lock(&l->lock);
    while (l->due != o->weight && !(l->err < 0 && l->failed < o->weight))
        pthread_cond_wait(&l->change, &l->lock);
    r = l->due == o->weight ? 0 : l->err;
    pthread_mutex_unlock(&l->lock);
    o->due = r == 0;
    return r;
}

static int put_held(struct pack_out *o)
{
    int r = o->n_held > 0 ? pack_sink_put(o->line->sink, o->held_at, o->held, o->n_held) : 0;

    meter_add(&o->line->meter, o->n_held);
    o->n_held = 0;
    return r;
}

int pack_put(struct pack_out *o, const void *data, size_t bytes)
{
    struct pack_line *l = o->line;
    uint64_t at = o->at;
    int r;

    xxh3_add(o->hash, data, bytes);
    o->at += bytes;
    if (bytes <= HELD_BYTES - o->n_held) {
        if (o->n_held == 0)
            o->held_at = at;
        if (data != o->held + o->n_held)
            memcpy(o->held + o->n_held, data, bytes);
        o->n_held += bytes;
        return o->n_held >= PACK_PUT && is_due(o) ? put_held(o) : 0;
    }
    r = wait_due(o);
    if (r == 0)
        r = put_held(o);
    if (r == 0)
        r = pack_sink_put(l->sink, at, data, bytes);
    if (r == 0)
        meter_add(&l->meter, bytes);
    return r;
}

void *pack_room(struct pack_out *o, size_t bytes)
{
    return bytes <= HELD_BYTES - o->n_held ? o->held + o->n_held : o->out;
}

/* The weight is whole: what is held goes out, and the next one is due. */
static int pass_on(struct pack_out *o)
{
    struct pack_line *l = o->line;
    int r = wait_due(o);

    if (r == 0)
        r = put_held(o);
    if (r == 0)
        r = pack_part_note(l->part, l->toc, o->weight + 1, o->at, l->sink);
    if (r < 0)
        return r;
    pthread_mutex_lock(&l->lock);
    l->due = o->weight + 1;
    pthread_cond_broadcast(&l->change);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

/* ---- workers --------------------------------------------------------------------------------- */

static bool has_failed(struct pack_line *l)
{
    bool yes;

    pthread_mutex_lock(&l->lock);
    yes = l->err < 0;
    pthread_mutex_unlock(&l->lock);
    return yes;
}

/* 1: there is nothing to do any more. */
static int take(struct pack_line *l, struct pack_out *o, struct stored *stored)
{
    int r = 1;

    pthread_mutex_lock(&l->taking);
    if (l->next < l->toc->n && !has_failed(l)) {
        o->weight = l->next++;
        o->at = l->toc->weight[o->weight].offset;
        o->due = false;
        r = pack_find_stored(l->src, &l->toc->weight[o->weight], stored);
    }
    pthread_mutex_unlock(&l->taking);
    return r;
}

static int work(struct pack_line *l, struct pack_out *o)
{
    struct stored stored;
    struct pack_feed feed = { .src = l->src, .stored = &stored };
    int r;

    for (;;) {
        r = take(l, o, &stored);
        if (r != 0)
            return r < 0 ? r : 0;
        r = pack_stream(o, &feed, &l->toc->weight[o->weight]);
        if (r == 0)
            r = pass_on(o);
        if (r < 0)
            return r;
    }
}

static void note_failure(struct pack_line *l, size_t weight, int r)
{
    pthread_mutex_lock(&l->lock);
    if (l->err == 0 || weight < l->failed) {
        l->err = r;
        l->failed = weight;
        snprintf(l->why, sizeof(l->why), "%s", fail_text());
    }
    pthread_cond_broadcast(&l->change);
    pthread_mutex_unlock(&l->lock);
}

static void work_task(void *arg, int task, int worker)
{
    struct pack_line *l = arg;
    struct pack_out o = { .line = l, .path = l->path };
    int r;

    fail_hold(true);
    r = xxh3_open(&o.hash);
    o.in = malloc(PACK_BLOCK);
    o.out = malloc(PACK_BLOCK);
    o.panel = pack_buffer(PACK_PANEL + READ_ALIGN);
    o.held = pack_buffer(HELD_BYTES);
    if (r == 0 && !(o.in && o.out && o.panel && o.held))
        r = fail(-ENOMEM, "%s: no memory", l->path);
    if (r == 0)
        r = work(l, &o);
    if (r < 0)
        note_failure(l, o.weight, r);
    free(o.held);
    free(o.panel);
    free(o.out);
    free(o.in);
    xxh3_close(o.hash);
    fail_hold(false);
}

int pack_line_run(const char *path, struct source *src, struct pack_toc *t, struct pack_part *p,
                  struct pack_sink *sink, uint64_t total)
{
    struct pack_line l = { .path = path,
                           .src = src,
                           .toc = t,
                           .part = p,
                           .sink = sink,
                           .next = p->noted,
                           .due = p->noted,
                           .taking = PTHREAD_MUTEX_INITIALIZER,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .change = PTHREAD_COND_INITIALIZER };
    struct pool *pool;
    int r = pool_open(WORKERS, &pool);

    if (r < 0)
        return r;
    for (size_t i = 0; i < p->noted; i++)
        total -= t->weight[i].bytes;
    meter_begin(&l.meter, path, METER_BYTES, total);
    pool_run(pool, WORKERS, work_task, &l);
    pool_close(pool);
    meter_end(&l.meter);
    return l.err < 0 ? fail(l.err, "%s", l.why) : 0;
}
