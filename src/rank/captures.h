/* captures - graphs of what rounds queue, kept by what the calls depend on besides device memory.
 *
 * One bound for all of them; beyond it the one that was not used for longest goes. Every rank takes
 * the same keys in the same order, so all ranks make and drop the same graphs in the same rounds. A
 * graph that cannot be made for lack of memory is one that runs eagerly: that is said once, and
 * none is tried afterwards.
 */
#ifndef TANDEM_RANK_CAPTURES_H
#define TANDEM_RANK_CAPTURES_H

#include "src/base/config.h"

#include <stdbool.h>
#include <stdint.h>

struct captures;
struct graph;
struct queue;

struct capture_key {
    int part, rows, segs; /* rows padded to a bucket */
    unsigned class;       /* what else tells two queues of work apart */
};

/* One part of a round: graphs that are launched one behind the other. */
struct captured {
    struct graph *piece[GRAPH_PIECES_MAX];
    int n;
    int err; /* why there is no further piece */
};

struct capture_counts {
    uint64_t made, dropped, replayed, eager;
    int held;
};

/* capture - a graph of what fn queues; more where captures_cut cuts it.
 * errors   -ENOMEM, of which no line is written: what becomes of it the caller says; what fn's ops
 *          report */
int capture(struct queue *q, void (*fn)(void *arg), void *arg, struct captured *out);

/* capture_piece_ends - whether a piece ends behind this layer, where layers are shared out
 * evenly. */
bool capture_piece_ends(int layer, int layers, int pieces);

/* captured_launch - all pieces, one behind the other; the queue waits for nothing. */
void captured_launch(struct queue *q, const struct captured *c);

/* captured_close - after a wait. */
void captured_close(struct queue *q, struct captured *c);

/* captures_open - at most `max` graphs; 0: everything is eager.   errors   -ENOMEM */
int captures_open(struct queue *q, int max, struct captures **out);

/* captures_close - after a wait; NULL is fine. */
void captures_close(struct captures *c);

/* captures_on - graphs are wanted: rows are worth padding. */
bool captures_on(const struct captures *c);

/* captures_bucket - rows of the graph that serves so many: 1 .. 8, 12, 16, 24, 32, 48, 64. */
int captures_bucket(int rows);

/* captures_next - a round begins, after a wait: what is taken from now on stays until the next
 * one. */
void captures_next(struct captures *c);

/* captures_cut - by fn of captures_take: what it queues from now on is another piece. One cut more
 * than there is room for is none, and so is one where nothing is captured for it. */
void captures_cut(struct captures *c);

/* captures_take - the graphs of a key; if there are none they are made of what fn queues.
 * out      NULL: run it eagerly
 * errors   1 it was made, or tried, just now: all ranks meet before anything of the round is
 *          launched, because making a graph can wait for a device on which another rank's exchange
 *          spins already; what fn's ops report */
int captures_take(struct captures *c, const struct capture_key *key, void (*fn)(void *arg),
                  void *arg, const struct captured **out);

struct capture_counts captures_counts(const struct captures *c);

#endif
