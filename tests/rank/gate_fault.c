/* gate_fault.c - tandem, with a fault that one of its gates is there to catch. Not a test itself.
 *
 *   tandem_gate_fault FAULT gate ...
 *
 *   rows:N      a row behind the first of a window of N rows has other logits than alone; 0: any N
 *   blind       a wrong first draft is accepted
 *   rollback    a window that rejects drafts spoils a row that was committed before
 *   company     in a shared window the second slot is sampled as the first
 *   ahead       what a pass behind a window proposes is not what a pass after it would
 *   differ      rank 1 computes another outcome
 *   lever       with one thread the logits are others
 *   seam        a prompt chunk behind the first one reads another token
 *   late        one token more lands than the reply has
 *   seed        the slot is part of the seed
 *   shares      rank 1 offers the wrong id of its best candidate
 *   leak        every reply leaves some memory behind
 *
 * The linker hands calls between this program's files to the functions here first (--wrap); models
 * and ops get tables of their own. Host backends: device memory is read and written here.
 */
#include "kernels/backend.h"
#include "kernels/ops.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/rank/landing.h"
#include "src/rank/rank.h"
#include "src/rank/round.h"
#include "src/verify/accept.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAK_BYTES 8192

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);
int __real_rank_join(struct rank *k);
int __wrap_rank_join(struct rank *k);
void __real_accept_stage(struct accept *a, struct exec *x, const struct slot_pool *pool,
                         const struct window *w, const struct sampler *per_slot);
void __wrap_accept_stage(struct accept *a, struct exec *x, const struct slot_pool *pool,
                         const struct window *w, const struct sampler *per_slot);
int __real_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);
int __wrap_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);
void __real_slot_sync(struct slot_pool *p, const struct window *w);
void __wrap_slot_sync(struct slot_pool *p, const struct window *w);
int __real_landing_take(struct landing *l, const int32_t *tok, int n, enum finish *f);
int __wrap_landing_take(struct landing *l, const int32_t *tok, int n, enum finish *f);
void __real_landing_free(struct landing *l);
void __wrap_landing_free(struct landing *l);

static struct {
    const char *fault;
    int rows;
    /* by rank: its tables, and what they stand for */
    struct rank *rank[RANKS_MAX];
    const struct family_ops *family[RANKS_MAX];
    const struct op_table *op[RANKS_MAX];
    struct family_ops other_family[RANKS_MAX];
    struct op_table other_op[RANKS_MAX];
    void *volatile leak;
} test;

static bool is(const char *fault)
{
    return strcmp(test.fault, fault) == 0;
}

static bool chooses(const struct segment *s)
{
    return !(s->flags & SEG_KNOWN);
}

/* ---- the model ------------------------------------------------------------------------------ */

static float *row_of(const struct model *m, const struct window *w, int row)
{
    return w->logits + (size_t)row * (size_t)m->vocab_share;
}

static void faulty_forward(struct model *m, struct exec *x, const struct slot_pool *p,
                           struct window *w)
{
    const struct rank *k = test.rank[m->rank];

    test.family[m->rank]->forward(m, x, p, w);
    if (x->q != k->q || x->op != k->x.op || !w->head)
        return; /* a dry run, or rows without logits */
    for (int i = 0; i < w->segs; i++) {
        const struct segment *s = &w->seg[i];

        if (is("rows") && chooses(s) && s->len > 1 && (test.rows == 0 || s->len == test.rows))
            for (int r = 1; r < s->len; r++)
                row_of(m, w, s->first + r)[9] += 40;
        if (is("lever") && k->cfg.threads == 1)
            row_of(m, w, s->first)[9] += 1e-3f;
    }
}

static int faulty_stage(struct model *m, const struct slot_pool *p, struct row_store *s,
                        struct window *w)
{
    if (is("seam") && !w->head && p->pos[w->seg[0].slot] > 0)
        w->tok[0] ^= 1;
    return test.family[m->rank]->stage(m, p, s, w);
}

/* ---- ops ------------------------------------------------------------------------------------ */

static const struct op_table *op_of(const struct queue *q)
{
    for (int r = 0; r < RANKS_MAX; r++)
        if (test.rank[r] && test.rank[r]->q == q)
            return test.op[r];
    abort();
}

static void blind_accept(struct queue *q, const struct accept_args *a)
{
    op_of(q)->accept(q, a);
    for (int i = 0; i < a->segs; i++)
        if (chooses(&a->seg[i]) && a->seg[i].len > 1 && a->n_ok[i] == 1) {
            a->n_ok[i] = 2;
            a->next[i] = a->choice[a->seg[i].first + 1];
        }
}

static void wrong_best(struct queue *q, const struct best_args *a)
{
    op_of(q)->best(q, a);
    if (test.rank[1] && test.rank[1]->q == q)
        for (int r = 0; r < a->rows; r++)
            a->cand[r * a->k].id ^= 1;
}

/* ---- calls of other files ------------------------------------------------------------------- */

int __wrap_rank_join(struct rank *k)
{
    int me = k->cfg.rank, code;

    test.rank[me] = k;
    test.family[me] = k->model->ops;
    test.other_family[me] = *test.family[me];
    test.other_family[me].forward = faulty_forward;
    test.other_family[me].stage = faulty_stage;
    k->model->ops = &test.other_family[me];
    code = __real_rank_join(k);
    if (code != 0)
        return code;
    test.op[me] = k->x.op;
    test.other_op[me] = *test.op[me];
    if (is("blind"))
        test.other_op[me].accept = blind_accept;
    if (is("shares"))
        test.other_op[me].best = wrong_best;
    k->x.op = &test.other_op[me];
    return 0;
}

void __wrap_accept_stage(struct accept *a, struct exec *x, const struct slot_pool *pool,
                         const struct window *w, const struct sampler *per_slot)
{
    struct sampler s[SLOTS_MAX];

    memcpy(s, per_slot, sizeof(s));
    if (is("company") && w->segs > 1)
        s[w->seg[1].slot].seed = s[w->seg[0].slot].seed;
    for (int i = 0; i < SLOTS_MAX && is("seed"); i++)
        s[i].seed += (uint64_t)i;
    __real_accept_stage(a, x, pool, w, s);
}

int __wrap_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns)
{
    int err = __real_round_run(r, p, t_ns, plan_ns);

    for (int i = 0; i < p->asks && err == 0 && is("ahead"); i++)
        r->seat[p->ask[i].slot].draft[0] ^= 1;
    return err;
}

void __wrap_slot_sync(struct slot_pool *p, const struct window *w)
{
    __real_slot_sync(p, w);
    if (is("differ") && test.rank[1] && test.rank[1]->pool == p && chooses(&w->seg[0]))
        ((struct window *)w)->next[0] ^= 1;
    for (int i = 0; i < w->segs && is("rollback"); i++) {
        const struct segment *s = &w->seg[i];
        const struct state_view *v = &p->view[0];

        if (chooses(s) && w->n_ok[i] < s->len)
            v->base[(size_t)s->slot * v->slot_stride +
                    (size_t)((p->pos[s->slot] - 1) % v->cap) * v->row_bytes] ^= 1;
    }
}

int __wrap_landing_take(struct landing *l, const int32_t *tok, int n, enum finish *f)
{
    int landed = __real_landing_take(l, tok, n, f);

    if (is("late") && landed > 0 && landed < n && l->left > 0) {
        l->ids[l->n++] = tok[landed++];
        l->left--;
    }
    return landed;
}

void __wrap_landing_free(struct landing *l)
{
    __real_landing_free(l);
    if (is("leak"))
        test.leak = malloc(LEAK_BYTES);
}

int __wrap_main(int argc, char **argv)
{
    char *rows;

    if (argc < 3) {
        fprintf(stderr, "usage: tandem_gate_fault FAULT gate ...\n");
        return 64;
    }
    rows = strchr(argv[1], ':');
    if (rows) {
        *rows = 0;
        test.rows = atoi(rows + 1);
    }
    test.fault = argv[1];
    argv[1] = argv[0];
    return __real_main(argc - 1, argv + 1);
}
