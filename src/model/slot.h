/* slot - the state of sequences: declared by families and drafters, owned here, never copied.
 *
 * STATE_ROWS holds one row per `span` tokens (the ratio), for ever. STATE_RING holds the last
 * `span` tokens, the current one included, in span + rows - 1 rows, `rows` being the largest window
 * of one slot. STATE_FOLD is rewritten by every token and kept in two lanes. Commit is pos += n;
 * what lies beyond pos never happened.
 *
 *   free --slot_take--> taken --windows, slot_commit, slot_set--> taken --slot_drop--> free
 *
 * The pool also keeps, on the host, the token ids of every slot by position: what n-gram hashes,
 * drafters and reports read. Addresses of states never move while the pool is open.
 */
#ifndef TANDEM_MODEL_SLOT_H
#define TANDEM_MODEL_SLOT_H

#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

struct device;
struct exec;
struct queue;
struct window;

enum state_kind { STATE_ROWS, STATE_RING, STATE_FOLD };

#define STATES_MAX 512

struct state_spec {
    enum state_kind kind;
    int span; /* ROWS: tokens a row stands for; RING: tokens kept, the current one included */
    enum codec codec;
    int cols;
};

struct state_list {
    struct state_spec spec[STATES_MAX];
    int n;
};

/* state_add - declare a state; the result is its index in the list and in the pool's views. */
int state_add(struct state_list *l, enum state_kind kind, int span, enum codec codec, int cols);

struct slot_pool {
    struct device *dev;
    struct state_list states;
    struct state_view view[STATES_MAX];
    struct slot_head *head; /* device, [slots] */
    int slots, context, rows_max;
    int pos[SLOTS_MAX];      /* committed tokens, the host's copy */
    int32_t *ids[SLOTS_MAX]; /* token by position, [context + rows_max], host */
    unsigned taken;          /* bit by slot */
    void *memory;
    size_t bytes;
};

/* slot_pool_open - allocate every state of every slot.
 * units    context: positions a slot can hold; rows_max: largest window of one slot, prompt chunks
 *          included
 * errors   -ENOMEM naming the bytes */
int slot_pool_open(struct device *d, const struct state_list *l, int slots, int context,
                   int rows_max, struct slot_pool **out);
void slot_pool_close(struct slot_pool *p);

/* slot_pool_bytes - device bytes that slot_pool_open would take. */
size_t slot_pool_bytes(const struct state_list *l, int slots, int context, int rows_max);

/* slot_take - an empty slot at position 0, or a given one (want >= 0; followers do as told).
 * errors   1 if none is free or the wanted one is taken */
int slot_take(struct slot_pool *p, struct queue *q, int want, int *slot);
void slot_drop(struct slot_pool *p, int slot);

/* slot_set - the number of committed tokens becomes pos: fewer than the device accepted (a stop, a
 * limit).
 * order    before the slot's next window is staged */
void slot_set(struct slot_pool *p, struct queue *q, int slot, int pos);

/* slot_set_next - the pending token of a slot whose last window chose none (a prompt's last
 * token). */
void slot_set_next(struct slot_pool *p, struct queue *q, int slot, int tok);

/* slot_set_floor - rows before `floor` belong to another request (drafter rings). */
void slot_set_floor(struct slot_pool *p, struct queue *q, int slot, int floor);

/* slot_commit - queue pos += n_ok for the window's slots. */
void slot_commit(struct exec *x, struct slot_pool *p, struct window *w);

/* slot_commit_part - the same for n segments from the first on: those that had no outcome
 * before. */
void slot_commit_part(struct exec *x, struct slot_pool *p, struct window *w, int first, int n);

/* slot_sync - after the wait: the host's positions follow what the window committed. */
void slot_sync(struct slot_pool *p, const struct window *w);

/* slot_digest - FNV-1a-64 over every committed byte of the slot's first n states (p->states.n: of
 * all): what rolled back == never happened compares. Waits for the queue. Ring rows that no later
 * row can read are left out.
 * errors   of queue_wait */
int slot_digest(struct slot_pool *p, struct queue *q, int slot, int n, uint64_t *out);

#endif
