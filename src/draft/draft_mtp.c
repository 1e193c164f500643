/* draft_mtp.c owns the next-token head of V3-style checkpoints: a chain of cells through one layer
 * of the model's own kind.
 *
 *   cell of position j:  x = eh_proj [ enorm(embed(t_j)) ; hnorm(h_j-1) ],  y = layer(x at j)
 *                        the token behind j comes from head(norm(y))
 *
 *   observe   taps -> ring of h -> keys of the cells of the window's rows, with the model's own h
 *   propose   cell of the pending token, then of each draft with the y before it as its h
 *
 * A cell lies at the position of its token, one more than its h: rotations only see differences. So
 * the cells of a window are those of its own rows. Cells that a chain made from its own y are
 * overwritten when their positions are observed. Position 0 has no h before it and is below every
 * floor.
 *
 * source   DeepSeek-V3, multi-token prediction; docs/DECODE.md "mtp"
 */
#include "kernels/backend.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/draft_table.h"
#include "src/model/buffers.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 3       /* drafts of a chain: behind them h has little to do with the model's */
#define CANDIDATES 64 /* of a row and rank */
#define CHANCE 0.7f   /* of a head without confidences: depth.h keeps the real ones */

struct mtp {
    struct drafter base;
    struct device *dev; /* NULL until ready */
    struct model *m;
    struct mat eh_proj;
    const float *enorm, *hnorm, *norm;
    int hidden; /* state: h by position */

    /* device */
    struct segment *seg;   /* [SLOTS_MAX] */
    int32_t *pending;      /* [SLOTS_MAX] of -1 */
    struct row_info *info; /* [SLOTS_MAX] */
    struct sampler *sampler;
    int32_t *draft; /* [BLOCK][SLOTS_MAX] */
    float *conf;

    /* host, where a captured pass finds them */
    int32_t h_draft[BLOCK * SLOTS_MAX];
    struct segment h_seg[SLOTS_MAX];
    struct sampler h_sampler[SLOTS_MAX];
    unsigned slots; /* of the last pass */
    int cells;      /* of its chain */
};

/* ---- opening --------------------------------------------------------------------------------- */

/* A checkpoint with such a head whose family gives it no layer is named, so that nobody wonders. */
static int mtp_open(const struct json *config, struct model *m, struct drafter **out)
{
    int heads = 0, r = 0;
    struct mtp *d;

    if (!m->mtp) {
        if (config)
            r = json_opt_int(config, "num_nextn_predict_layers", 0, 64, &heads);
        if (r == 0 && heads > 0 && m->tap_cols == 0)
            log_warn(
                "draft mtp: num_nextn_predict_layers is %d, but the family %s has no layer for it",
                heads, m->ops->name);
        return r < 0 ? r : 1;
    }
    d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "draft mtp: out of memory");
    d->base.ops = &draft_mtp;
    d->base.block = BLOCK;
    d->base.sites = m->mtp->sites + 1; /* the layer's, then the candidates */
    d->m = m;
    *out = &d->base;
    return 0;
}

static void mtp_states(struct drafter *base, struct state_list *l)
{
    struct mtp *d = (struct mtp *)base;

    d->m->mtp->states(d->m, l);
    d->hidden = state_add(l, STATE_RING, 2, CODEC_F32, d->m->dim);
}

static void mtp_weights(void *object, struct walk *w)
{
    struct mtp *d = object;
    int dim = d->m->dim;
    char at[64];

    d->m->mtp->prefix(d->m, at, sizeof(at));
    walk_vec(w, &d->enorm, dim, SHARD_NONE, 1, "%senorm.weight", at);
    walk_vec(w, &d->hnorm, dim, SHARD_NONE, 1, "%shnorm.weight", at);
    walk_mat(w, &d->eh_proj, dim, 2 * dim, SHARD_NONE, 1, "%seh_proj.weight", at);
    d->m->mtp->weights(d->m, w);
    walk_vec(w, &d->norm, dim, SHARD_NONE, 1, "%sshared_head.norm.weight", at);
}

static int buffers(struct mtp *d, buffers_fn *fn)
{
    const struct buffer b[] = {
        { &d->seg, sizeof(struct segment) * SLOTS_MAX },
        { &d->pending, sizeof(int32_t) * SLOTS_MAX },
        { &d->info, sizeof(struct row_info) * SLOTS_MAX },
        { &d->sampler, sizeof(struct sampler) * SLOTS_MAX },
        { &d->draft, sizeof(int32_t) * BLOCK * SLOTS_MAX },
        { &d->conf, sizeof(float) * SLOTS_MAX },
    };

    return fn(d->dev, b, sizeof(b) / sizeof(b[0]));
}

static int upload(struct mtp *d)
{
    int32_t pending[SLOTS_MAX];

    for (int i = 0; i < SLOTS_MAX; i++)
        pending[i] = -1;
    return buffer_put(d->dev, d->pending, pending, sizeof(pending));
}

static int mtp_ready(struct drafter *base, struct device *dev, const struct slot_pool *p)
{
    struct mtp *d = (struct mtp *)base;
    int r;

    d->dev = dev;
    r = buffers(d, buffers_alloc);
    if (r == 0)
        r = upload(d);
    if (r == 0)
        log_info("draft mtp: one layer, chains of %d", BLOCK);
    return r;
}

static void mtp_close(struct drafter *base)
{
    struct mtp *d = (struct mtp *)base;

    if (!d)
        return;
    if (d->dev)
        buffers(d, buffers_free);
    free(d);
}

/* ---- cells ----------------------------------------------------------------------------------- */

static void norm(const struct mtp *d, struct exec *x, const float *in, const float *w, float *y,
                 int rows)
{
    x->op->rmsnorm(x->q, &(struct rmsnorm_args){ .x = in,
                                                 .w = w,
                                                 .y = y,
                                                 .rows = rows,
                                                 .cols = d->m->dim,
                                                 .eps = d->m->eps,
                                                 .round = x->round });
}

/* One half of the rows that eh_proj reads. */
static void lay(const struct mtp *d, struct exec *x, const float *from, float *to, int rows)
{
    x->op->hc_mean(x->q, &(struct hc_mean_args){ .x = from,
                                                 .y = to,
                                                 .rows = rows,
                                                 .hc = 1,
                                                 .dim = d->m->dim,
                                                 .ldy = 2 * d->m->dim,
                                                 .round = ROUND_NONE });
}

/* y = the inputs of cells from tokens and the h before them; h is spoiled. */
static void fuse(const struct mtp *d, struct exec *x, const struct row_info *info, int rows,
                 float *h, float *y)
{
    size_t mark = arena_mark(x->tmp), n = (size_t)rows, dim = (size_t)d->m->dim;
    float *e = arena_f32(x->tmp, n * dim), *both = arena_f32(x->tmp, 2 * n * dim);

    x->op->embed(x->q, &(struct embed_args){
                           .table = d->m->embed, .info = info, .y = e, .rows = rows, .copies = 1 });
    norm(d, x, e, d->enorm, e, rows);
    norm(d, x, h, d->hnorm, h, rows);
    lay(d, x, e, both, rows);
    lay(d, x, h, both + dim, rows);
    x->op->matmul(x->q, &(struct matmul_args){
                            .w = &d->eh_proj, .x = both, .y = y, .rows = rows, .round = x->round });
    arena_reset(x->tmp, mark);
}

/* The model's h before each row. */
static void hidden_before(const struct mtp *d, struct exec *x, const struct slot_pool *p,
                          const struct row_info *info, int rows, float *h)
{
    x->op->row_get(
        x->q, &(struct row_get_args){
                  .view = p->view[d->hidden], .info = info, .y = h, .rows = rows, .offset = -1 });
}

/* ---- observe --------------------------------------------------------------------------------- */

static void mtp_reset(struct drafter *base, struct exec *x, struct slot_pool *p, int slot,
                      int first)
{
    slot_set_floor(p, x->q, slot, first + 1);
}

static void mtp_observe(struct drafter *base, struct exec *x, const struct slot_pool *p,
                        struct window *w)
{
    const struct mtp *d = (const struct mtp *)base;
    size_t mark = arena_mark(x->tmp), n = (size_t)w->rows * (size_t)d->m->dim;
    float *h = arena_f32(x->tmp, n), *y = arena_f32(x->tmp, n);

    x->op->row_put(
        x->q, &(struct row_put_args){
                  .x = w->taps, .view = p->view[d->hidden], .info = w->info, .rows = w->rows });
    hidden_before(d, x, p, w->info, w->rows, h);
    fuse(d, x, w->info, w->rows, h, y);
    d->m->mtp->keys(d->m, x, p, w->info, w->rows, y);
    arena_reset(x->tmp, mark);
}

/* ---- propose --------------------------------------------------------------------------------- */

/* Drafts behind the rows y, one a slot. */
static void pick(struct mtp *d, struct exec *x, const float *y, int rows, int32_t *draft)
{
    const struct model *m = d->m;
    size_t mark = arena_mark(x->tmp), n = (size_t)rows;
    float *h = arena_f32(x->tmp, n * (size_t)m->dim);
    float *logits = arena_f32(x->tmp, n * (size_t)m->vocab_share);
    struct candidate *mine = arena_take(x->tmp, sizeof(*mine) * n * CANDIDATES);
    struct candidate *all = arena_take(x->tmp, sizeof(*all) * n * CANDIDATES * (size_t)m->ranks);

    norm(d, x, y, d->norm, h, rows);
    x->op->matmul(x->q, &(struct matmul_args){ .w = m->head, .x = h, .y = logits, .rows = rows });
    x->op->best(x->q, &(struct best_args){ .logits = logits,
                                           .cand = mine,
                                           .rows = rows,
                                           .cols = m->vocab_share,
                                           .k = CANDIDATES,
                                           .id0 = m->vocab_first });
    comm_gather(x->comm, x->q, m->sites + m->mtp->sites, mine, all, sizeof(*mine) * n * CANDIDATES);
    x->op->markov(x->q, &(struct markov_args){ .cand = all,
                                               .sampler = d->sampler,
                                               .info = d->info,
                                               .draft = draft,
                                               .conf = d->conf,
                                               .rows = rows,
                                               .block = 1,
                                               .ranks = m->ranks,
                                               .k = CANDIDATES });
    arena_reset(x->tmp, mark);
}

static void mtp_stage(struct drafter *base, const struct proposal *p, const struct sampler *sampler)
{
    struct mtp *d = (struct mtp *)base;
    int n = 0;

    d->slots = 0;
    for (int i = 0; i < p->n; i++)
        d->slots |= 1u << p->slot[i];
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        if (d->slots >> slot & 1u) {
            d->h_seg[n] = (struct segment){ .slot = slot, .first = n, .len = 1 };
            n++;
        }
    memcpy(d->h_sampler, sampler, sizeof(d->h_sampler));
    d->cells = p->most > 0 && p->most < BLOCK ? p->most : BLOCK;
}

static void mtp_propose(struct drafter *base, struct exec *x, const struct slot_pool *pool,
                        struct proposal *p, const struct sampler *sampler)
{
    struct mtp *d = (struct mtp *)base;
    size_t mark = arena_mark(x->tmp), n = (size_t)p->n * (size_t)d->m->dim;
    float *h = arena_f32(x->tmp, n), *y = arena_f32(x->tmp, n), *swap;

    mtp_stage(base, p, sampler);
    x->q->ops->put(x->q, d->sampler, d->h_sampler, sizeof(d->h_sampler));
    x->q->ops->put(x->q, d->seg, d->h_seg, sizeof(d->h_seg));
    for (int i = 0; i < d->cells; i++) {
        x->op->stage(x->q,
                     &(struct stage_args){ .seg = d->seg,
                                           .head = pool->head,
                                           .tok = i ? d->draft + (i - 1) * SLOTS_MAX : d->pending,
                                           .info = d->info,
                                           .segs = p->n,
                                           .ahead = i });
        if (i == 0)
            hidden_before(d, x, pool, d->info, p->n, h);
        fuse(d, x, d->info, p->n, h, y);
        d->m->mtp->layer(d->m, x, pool, d->info, p->n, d->m->sites, y);
        pick(d, x, y, p->n, d->draft + i * SLOTS_MAX);
        swap = h;
        h = y;
        y = swap;
    }
    x->q->ops->get(x->q, d->h_draft, d->draft, sizeof(d->h_draft));
    arena_reset(x->tmp, mark);
}

/* A chain ends before the first row that had no finite candidate. */
static void mtp_collect(struct drafter *base, struct proposal *p)
{
    const struct mtp *d = (const struct mtp *)base;

    for (int i = 0; i < p->n; i++) {
        int at = __builtin_popcount(d->slots & ((1u << p->slot[i]) - 1)), len = 0;

        while (len < d->cells && d->h_draft[len * SLOTS_MAX + at] >= 0) {
            p->draft[i][len] = d->h_draft[len * SLOTS_MAX + at];
            p->conf[i][len++] = CHANCE;
        }
        p->len[i] = len;
        p->bad[i] = len < d->cells;
    }
}

const struct drafter_ops draft_mtp = {
    .name = "mtp",
    .caps = DRAFTER_DEVICE | DRAFTER_CHAIN,
    .open = mtp_open,
    .states = mtp_states,
    .weights = mtp_weights,
    .ready = mtp_ready,
    .reset = mtp_reset,
    .observe = mtp_observe,
    .stage = mtp_stage,
    .propose = mtp_propose,
    .collect = mtp_collect,
    .close = mtp_close,
};
