/* held.c - tandem, with a rank that does something at a place that a test names. Not a test itself.
 *
 *   tandem_held WHAT@PLACE[:N] COMMAND ...    at the Nth time that this process comes by, 1 if not
 *                                             said
 *
 *   hold     says "held at PLACE" on stderr and stays there, while everything else of the rank goes
 *            on
 *   differ   the outcome of a window is another one than it was
 *   nan      a logit of this rank's share becomes a NaN
 *   lost     n-gram rows of a window cannot be read
 *   stray    drafts and their chances are others than the ones proposed
 *   short    the machine has a MiB of memory
 *   noplan   the plan's links cannot be made
 *   wall     reading the time of day ends the process: it may jump
 *
 *   load       nothing is there yet, the group opens
 *   memory, clock, drafts, links   whenever they are asked for
 *   start      the group is open, weights and states are not
 *   idle       rank 0 has no request yet
 *   prefill    in a prompt chunk, between two exchanges
 *   verify     drafts are there, their window has not begun
 *   window     in a round's window, between two exchanges
 *   shutdown   the last order is given, the ranks have not said goodbye
 *
 * Setting a variable of the environment while there is a second thread ends the process, whatever
 * WHAT is.
 *
 * The linker hands calls between this program's files to the functions here first (--wrap); model
 * and comm get tables of their own.
 */
#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/row_store.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/rank/control.h"
#include "src/rank/lead.h"
#include "src/rank/memory_plan.h"
#include "src/rank/plan_box.h"
#include "src/rank/rank.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HOLD_S 60
#define SUMS_BEFORE 3 /* exchanges of a window that have run when it is held */

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);
int __real_rank_load(struct rank *k);
int __wrap_rank_load(struct rank *k);
int __real_lead_add(struct lead *l, const struct request *q, struct reply *out);
int __wrap_lead_add(struct lead *l, const struct request *q, struct reply *out);
int __real_plan_box_open(struct link *const *links, int rank, int world,
                         const struct plan_box_settings *s, struct plan_box **out);
int __wrap_plan_box_open(struct link *const *links, int rank, int world,
                         const struct plan_box_settings *s, struct plan_box **out);
int __real_group_barrier(struct group *g, int timeout_ms);
int __wrap_group_barrier(struct group *g, int timeout_ms);
uint64_t __real_memory_available(void);
uint64_t __wrap_memory_available(void);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __real_setenv(const char *name, const char *value, int overwrite);
int __wrap_setenv(const char *name, const char *value, int overwrite);
void __real_slot_sync(struct slot_pool *p, const struct window *w);
void __wrap_slot_sync(struct slot_pool *p, const struct window *w);

static struct {
    const char *what, *place;
    int times; /* that the place still has to come by */
    struct rank *rank;
    const struct family_ops *family;
    const struct comm_ops *comm;
    struct family_ops held_family;
    struct comm_ops held_comm;
    struct row_store *store;
    const struct drafter_ops *drafter;
    struct drafter_ops held_drafter;
    const char *in; /* place of the window that runs */
    int sums;
    int barriers;
} held;

static bool due(const char *what, const char *place)
{
    return strcmp(held.what, what) == 0 && strcmp(held.place, place) == 0 && --held.times == 0;
}

static void at(const char *place)
{
    if (!due("hold", place))
        return;
    dprintf(STDERR_FILENO, "held at %s\n", place);
    clock_sleep(HOLD_S * NS_PER_S);
}

/* ---- the model and its sums ------------------------------------------------------------------ */

static void held_sum(struct comm *c, struct queue *q, int site, float *x, size_t n)
{
    if (held.in && held.sums++ == SUMS_BEFORE)
        at(held.in);
    held.comm->sum(c, q, site, x, n);
}

static int held_ready(struct model *m, struct device *d, const struct pack *p)
{
    held.comm = held.rank->comm->ops;
    held.held_comm = *held.comm;
    held.held_comm.sum = held_sum;
    held.rank->comm->ops = &held.held_comm;
    at("start");
    return held.family->ready(m, d, p);
}

static int lost_ask(struct row_store *s, const struct row_table *t, int ticket,
                    const int32_t *column, const int64_t *row_in_column, int n)
{
    return held.store->ops->ask(held.store, t, ticket, column, row_in_column, n);
}

static int lost_take(struct row_store *s, int ticket, float *out)
{
    int r = held.store->ops->take(held.store, ticket, out);

    return r < 0 ? r : fail(-EIO, "row store: held: the rows of ticket %d are lost", ticket);
}

static int held_stage(struct model *m, const struct slot_pool *p, struct row_store *s,
                      struct window *w)
{
    static const struct row_store_ops lost = { .name = "lost", .ask = lost_ask, .take = lost_take };
    static struct row_store store = { .ops = &lost };
    bool known = w->seg[0].flags & SEG_KNOWN;

    if (w->rows > 1 && !known)
        at("verify");
    if (due("lost", known ? "prefill" : "window")) {
        held.store = s;
        s = &store;
    }
    return held.family->stage(m, p, s, w);
}

static void held_forward(struct model *m, struct exec *x, const struct slot_pool *p,
                         struct window *w)
{
    /* no order runs while windows are measured, or captured ahead */
    bool ahead = x->op != held.rank->x.op || atomic_load(&held.rank->progress.since_ns) == 0;

    held.in = ahead ? NULL : w->seg[0].flags & SEG_KNOWN ? "prefill" : "window";
    held.sums = 0;
    held.family->forward(m, x, p, w);
    if (held.in && strcmp(held.in, "window") == 0 && due("nan", "window"))
        w->logits[0] = NAN;
    held.in = NULL;
}

/* ---- the drafter ----------------------------------------------------------------------------- */

static void held_collect(struct drafter *d, struct proposal *p)
{
    held.drafter->collect(d, p);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->len[i]; j++) {
            p->draft[i][j] ^= 1;
            p->conf[i][j] *= 0.9f;
        }
}

/* ---- calls of other files -------------------------------------------------------------------- */

int __wrap_rank_load(struct rank *k)
{
    int code;

    at("load");
    code = __real_rank_load(k);
    if (code != 0)
        return code;
    held.rank = k;
    held.family = k->model->ops;
    held.held_family = *held.family;
    held.held_family.ready = held_ready;
    held.held_family.stage = held_stage;
    held.held_family.forward = held_forward;
    k->model->ops = &held.held_family;
    if (strcmp(held.what, "stray") == 0) {
        held.drafter = k->drafter->ops;
        held.held_drafter = *held.drafter;
        held.held_drafter.collect = held_collect;
        k->drafter->ops = &held.held_drafter;
    }
    return 0;
}

int __wrap_lead_add(struct lead *l, const struct request *q, struct reply *out)
{
    at("idle");
    return __real_lead_add(l, q, out);
}

uint64_t __wrap_memory_available(void)
{
    return strcmp(held.what, "short") == 0 ? (uint64_t)1 << 20 : __real_memory_available();
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (held.what && strcmp(held.what, "wall") == 0 && clock != CLOCK_MONOTONIC)
        abort();
    return __real_clock_gettime(clock, out);
}

/* Another thread may be reading the environment, as libibverbs does: whoever changes it comes
 * first. */
int __wrap_setenv(const char *name, const char *value, int overwrite)
{
    char line[64];
    int threads = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof(line), f) && sscanf(line, "Threads: %d", &threads) != 1)
        ;
    if (f)
        fclose(f);
    if (threads != 1) {
        fprintf(stderr, "held: %s is set while there are %d threads\n", name, threads);
        abort();
    }
    return __real_setenv(name, value, overwrite);
}

int __wrap_plan_box_open(struct link *const *links, int rank, int world,
                         const struct plan_box_settings *s, struct plan_box **out)
{
    struct link *l = links[rank == 0];

    if (!due("noplan", "links"))
        return __real_plan_box_open(links, rank, world, s, out);
    l->ops->abort(l);
    return fail(-ENOMEM, "held: no queue pair for the plan");
}

int __wrap_group_barrier(struct group *g, int timeout_ms)
{
    if (++held.barriers == 2) /* the first one ends the start */
        at("shutdown");
    return __real_group_barrier(g, timeout_ms);
}

void __wrap_slot_sync(struct slot_pool *p, const struct window *w)
{
    __real_slot_sync(p, w);
    if (!(w->seg[0].flags & SEG_KNOWN) && due("differ", "window"))
        ((struct window *)w)->next[0] ^= 1;
}

int __wrap_main(int argc, char **argv)
{
    char *place, *times;

    if (argc < 2 || !(place = strchr(argv[1], '@'))) {
        fprintf(stderr, "usage: tandem_held WHAT@PLACE[:N] COMMAND ...\n");
        return 64;
    }
    *place++ = 0;
    times = strchr(place, ':');
    if (times)
        *times++ = 0;
    held.what = argv[1];
    held.place = place;
    held.times = times ? atoi(times) : 1;
    argv[1] = argv[0];
    return __real_main(argc - 1, argv + 1);
}
