/* accept_rig.c owns the ranks that tests of accept run. */
#include "tests/verify/accept_rig.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/transport/comm.h"
#include "tests/transport/wires.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT 512
#define ROWS WINDOW_ROWS_SHARED

void bench_must(struct bench *b, int r, const char *what)
{
    if (r == 0)
        return;
    fprintf(stderr, "rank %d: %s: %d\n", b->m.rank, what, r);
    b->failed = 1;
}

struct world {
    struct wires wires;
    int ranks, vocab, threads;
    void (*fn)(struct bench *b);
    void *arg;
    int failed[RANKS_MAX];
};

static void run_rank(int rank, void *arg)
{
    struct world *world = arg;
    struct comm_settings cs = {
        .partials = COMM_F32, .slot_bytes = 1 << 16, .spin_us = 20, .wait_limit_ms = 20000
    };
    struct bench b = { .arg = world->arg };
    struct state_list none = { .n = 0 };
    const struct backend_ops *backend;
    int64_t first, count;

    log_rank(rank);
    share_of(world->vocab, rank, world->ranks, &first, &count);
    b.m = (struct model){ .rank = rank,
                          .ranks = world->ranks,
                          .vocab = world->vocab,
                          .vocab_first = (int)first,
                          .vocab_share = (int)count };
    bench_must(&b, backend_find("ref", &backend), "backend");
    bench_must(&b, backend->open(0, world->threads, &b.dev), "device");
    bench_must(&b, backend->queue_open(b.dev, &b.x.q), "queue");
    b.x.op = backend->op;
    b.x.tmp = &b.arena;
    b.x.workers = b.dev->workers;
    bench_must(&b, slot_pool_open(b.dev, &none, SLOTS_MAX, CONTEXT, ROWS, &b.pool), "slots");
    bench_must(&b, window_open(b.dev, &b.m, ROWS, &b.w), "window");
    bench_must(&b, accept_open(b.dev, &b.m, 7, &b.a), "accept");
    if (world->ranks == 1)
        bench_must(&b, comm_self_open(&cs, &b.x.comm), "comm");
    else
        bench_must(&b, comm_link_open(world->wires.link[rank], rank, world->ranks, &cs, &b.x.comm),
                   "comm");
    for (int s = 0; s < SLOTS_MAX; s++) {
        int slot;

        sampler_default(&b.sampler[s]);
        bench_must(&b, slot_take(b.pool, b.x.q, s, &slot), "slot");
    }
    world->fn(&b);
    comm_close(b.x.comm);
    accept_close(b.a);
    window_close(b.w);
    slot_pool_close(b.pool);
    backend->queue_close(b.x.q);
    backend->close(b.dev);
    world->failed[rank] = b.failed;
}

/* Checks are made afterwards, on the thread that Criterion knows. */
void worlds_run(int ranks, int vocab, int threads, void (*fn)(struct bench *b), void *arg)
{
    struct world world = {
        .ranks = ranks, .vocab = vocab, .threads = threads, .fn = fn, .arg = arg
    };

    if (ranks > 1)
        wires_open(&world.wires, "loop", ranks, 0);
    wires_run(ranks, run_rank, &world);
    if (ranks > 1)
        wires_close(&world.wires);
    for (int r = 0; r < ranks; r++)
        cr_assert(eq(int, world.failed[r], 0), "rank %d of %d", r, ranks);
}

void put_row(struct bench *b, int row, const float *whole)
{
    b->x.q->ops->put(b->x.q, b->w->logits + (size_t)row * (size_t)b->m.vocab_share,
                     whole + b->m.vocab_first, sizeof(float) * (size_t)b->m.vocab_share);
}

static int wait(struct bench *b)
{
    int r;

    window_fetch(&b->x, b->w);
    r = b->x.q->ops->wait(b->x.q);
    return r ? r : comm_check(b->x.comm);
}

int decide(struct bench *b)
{
    int r;

    accept_stage(b->a, &b->x, b->pool, b->w, b->sampler);
    accept_window(b->a, &b->x, b->w);
    slot_commit(&b->x, b->pool, b->w);
    r = wait(b);
    if (r == 0 && accept_undecided(b->w)) {
        b->resolved++;
        accept_resolve(b->a, &b->x, b->pool, b->w);
        r = wait(b);
    }
    if (r == 0)
        slot_sync(b->pool, b->w);
    return r;
}

/* ---- replies --------------------------------------------------------------------------------- */

static void speak(struct bench *b, language_fn *fn)
{
    float *whole = malloc((size_t)b->m.vocab * sizeof(*whole));

    for (int s = 0; s < b->w->segs; s++)
        for (int i = 0; i < b->w->seg[s].len && b->w->head; i++) {
            int row = b->w->seg[s].first + i;

            fn(b->pool->pos[b->w->seg[s].slot] + i, b->w->tok[row], b->m.vocab, whole);
            put_row(b, row, whole);
        }
    free(whole);
}

/* The slot with all of the prompt but its last token, which is pending. */
static void admit(struct bench *b, int slot, const struct voice *v, const int32_t *prompt, int n)
{
    slot_drop(b->pool, slot);
    bench_must(b, slot_take(b->pool, b->x.q, slot, &slot), "slot");
    b->sampler[slot] = v->s;
    b->sampler[slot].prompt = n;
    accept_admit(b->a, &b->x, slot, &b->sampler[slot], v->bias);
    for (int at = 0; at < n - 1;) {
        int len = n - 1 - at < 20 ? n - 1 - at : 20;

        window_clear(b->w);
        bench_must(b, window_add(b->w, slot, prompt + at, len, SEG_KNOWN), "add");
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        bench_must(b, decide(b), "prompt");
        at += len;
    }
    slot_set_next(b->pool, b->x.q, slot, prompt[n - 1]);
}

static void run(struct bench *b, language_fn *fn)
{
    b->w->head = true;
    bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
    speak(b, fn);
    bench_must(b, decide(b), "decide");
}

static void keep(struct bench *b, struct speech *out, int row)
{
    if (out->n == SPEECH + WINDOW_MAX)
        return;
    out->lp[out->n] = *accept_logprobs(b->a, row);
    out->id[out->n++] = b->w->choice[row];
}

void speech_serial(struct bench *b, language_fn *fn, int slot, const struct voice *v,
                   const int32_t *prompt, int n_prompt, struct speech *out)
{
    int32_t tok = prompt[n_prompt - 1];

    memset(out, 0, sizeof(*out));
    admit(b, slot, v, prompt, n_prompt);
    while (out->n < SPEECH + WINDOW_MAX && !b->failed) {
        window_clear(b->w);
        bench_must(b, window_add(b->w, slot, &tok, 1, 0), "add");
        run(b, fn);
        keep(b, out, 0);
        tok = b->w->next[0];
    }
}

static int draft(int32_t *tok, const struct speech *serial, int said, int depth, int vocab,
                 uint64_t *dice)
{
    int len = 1 + (depth ? (int)(wires_random(dice) % (uint64_t)(depth + 1)) : 0);
    int right = (int)(wires_random(dice) % 10);

    for (int j = 1; j < len; j++) {
        tok[j] = serial->id[said + j - 1];
        if (j > right)
            tok[j] = (tok[j] + 1) % vocab;
    }
    return len;
}

void speech_drafted(struct bench *b, language_fn *fn, const struct voice *v, int n, int depth,
                    bool cut, const int32_t *prompt, int n_prompt,
                    const struct speech *const *serial, struct speech *out)
{
    int32_t pending[SLOTS_MAX];
    uint64_t dice = 17 + (uint64_t)depth; /* the same on every rank */

    for (int i = 0; i < n; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        admit(b, i, &v[i], prompt, n_prompt);
        pending[i] = prompt[n_prompt - 1];
    }
    for (;;) {
        int of[SLOTS_MAX], before[SLOTS_MAX];

        window_clear(b->w);
        for (int i = 0; i < n; i++) {
            int32_t tok[WINDOW_MAX] = { pending[i] };

            if (out[i].n >= SPEECH)
                continue;
            of[b->w->segs] = i;
            before[b->w->segs] = b->pool->pos[i];
            bench_must(b,
                       window_add(b->w, i, tok,
                                  draft(tok, serial[i], out[i].n, depth, b->m.vocab, &dice), 0),
                       "add");
        }
        if (b->w->segs == 0 || b->failed)
            return;
        run(b, fn);
        for (int s = 0; s < b->w->segs && !b->failed; s++) {
            struct speech *o = &out[of[s]];
            int first = b->w->seg[s].first, len = b->w->seg[s].len, ok = b->w->n_ok[s];
            int land = cut && wires_random(&dice) % 3 == 0
                           ? 1 + (int)(wires_random(&dice) % (uint64_t)ok)
                           : ok;

            for (int j = 0; j < land; j++)
                keep(b, o, first + j);
            pending[of[s]] = b->w->choice[first + land - 1];
            if (land < ok) {
                slot_set(b->pool, b->x.q, of[s], before[s] + land);
                slot_set_next(b->pool, b->x.q, of[s], pending[of[s]]);
            }
            o->rounds++;
            o->full += len > 1 && ok == len;
            o->empty += len > 1 && ok == 1;
            o->partial += ok > 1 && ok < len;
        }
    }
}
