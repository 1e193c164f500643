/* accept - windows with made-up logits, by one rank and by two and four of them on the loop
 * link. */
#include "src/verify/accept.h"

#include "kernels/backend.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/rng.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/transport/comm.h"
#include "src/verify/sampler.h"
#include "tests/transport/wires.h"
#include "tests/verify/accept_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

static int device_pos(struct bench *b, int slot)
{
    struct slot_head h;

    b->x.q->ops->get(b->x.q, &h, &b->pool->head[slot], sizeof(h));
    return b->x.q->ops->wait(b->x.q) == 0 ? h.pos : -1;
}

static int device_next(struct bench *b, int slot)
{
    struct slot_head h;

    b->x.q->ops->get(b->x.q, &h, &b->pool->head[slot], sizeof(h));
    return b->x.q->ops->wait(b->x.q) == 0 ? h.next : -1;
}

/* ---- the rule -------------------------------------------------------------------------------- */

#define SMALL 11

/* Row i of the window holds tok[i] and its largest logit is want[i]. */
struct prefix_case {
    const char *name;
    int len, tok[WINDOW_MAX], want[WINDOW_MAX], flags;
    int n_ok, next;
};

static const struct prefix_case prefix_cases[] = {
    { "nothing drafted", 1, { 5 }, { 7 }, 0, 1, 7 },
    { "draft wrong", 2, { 5, 6 }, { 7, 9 }, 0, 1, 7 },
    { "draft right", 2, { 5, 7 }, { 7, 4 }, 0, 2, 4 },
    { "first of three right", 4, { 5, 7, 1, 2 }, { 7, 0, 3, 3 }, 0, 2, 0 },
    { "a right draft behind a wrong one", 4, { 5, 1, 8, 9 }, { 7, 8, 9, 10 }, 0, 1, 7 },
    { "all of fifteen right",
      16,
      { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4 },
      { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5 },
      0,
      16,
      5 },
    { "the last of fifteen wrong",
      16,
      { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4 },
      { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 9, 5 },
      0,
      15,
      9 },
    { "known text is kept whatever was chosen",
      4,
      { 5, 6, 7, 8 },
      { 0, 0, 0, 0 },
      SEG_KNOWN,
      4,
      -1 },
};

#define PREFIX_CASES ((int)(sizeof(prefix_cases) / sizeof(prefix_cases[0])))

struct prefix_got {
    int r, n_ok, next, pos, head_next;
};

static struct prefix_got prefix_got[RANKS_MAX][PREFIX_CASES + 4];

static void fill_case(struct bench *b, const struct prefix_case *c, int first)
{
    for (int i = 0; i < c->len; i++) {
        float whole[SMALL] = { 0 };

        whole[c->want[i]] = 1;
        put_row(b, first + i, whole);
    }
}

static void note_case(struct bench *b, int i, int seg, int slot, int before, int r)
{
    prefix_got[b->m.rank][i] = (struct prefix_got){ .r = r,
                                                    .n_ok = b->w->n_ok[seg],
                                                    .next = b->w->next[seg],
                                                    .pos = device_pos(b, slot) - before,
                                                    .head_next = device_next(b, slot) };
}

static void prefix_alone(struct bench *b)
{
    for (int i = 0; i < PREFIX_CASES; i++) {
        const struct prefix_case *c = &prefix_cases[i];
        int slot = i % SLOTS_MAX, before = b->pool->pos[slot], r;

        window_clear(b->w);
        bench_must(b, window_add(b->w, slot, c->tok, c->len, c->flags), "add");
        b->w->head = !(c->flags & SEG_KNOWN);
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        if (b->w->head)
            fill_case(b, c, 0);
        r = decide(b);
        note_case(b, i, 0, slot, before, r);
    }
}

static void expect_case(const struct prefix_got *g, const struct prefix_case *c, int ranks,
                        int rank)
{
    cr_expect(eq(int, g->r, 0), "%s, rank %d of %d", c->name, rank, ranks);
    cr_expect(eq(int, g->n_ok, c->n_ok), "%s, rank %d of %d", c->name, rank, ranks);
    cr_expect(eq(int, g->next, c->next), "%s, rank %d of %d", c->name, rank, ranks);
    cr_expect(eq(int, g->pos, c->n_ok), "%s, rank %d of %d", c->name, rank, ranks);
    cr_expect(eq(int, g->head_next, c->next), "%s, rank %d of %d", c->name, rank, ranks);
}

static const int rank_counts[] = { 1, 2, 4 };

#define RANK_COUNTS 3

Test(accept, keeps_the_matching_prefix)
{
    for (int n = 0; n < RANK_COUNTS; n++) {
        worlds_run(rank_counts[n], SMALL, 1, prefix_alone, NULL);
        for (int r = 0; r < rank_counts[n]; r++)
            for (int i = 0; i < PREFIX_CASES; i++)
                expect_case(&prefix_got[r][i], &prefix_cases[i], rank_counts[n], r);
    }
}

/* Four slots in one window, the known one in the middle, from each case on. */
static void prefix_shared(struct bench *b)
{
    int from = *(const int *)b->arg, r;
    int before[SLOTS_MAX];

    window_clear(b->w);
    for (int s = 0; s < SLOTS_MAX; s++) {
        const struct prefix_case *c = &prefix_cases[(from + 3 * s) % PREFIX_CASES];

        before[s] = b->pool->pos[s];
        bench_must(b, window_add(b->w, s, c->tok, c->len, c->flags), "add");
    }
    b->w->head = true;
    bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
    for (int s = 0; s < SLOTS_MAX; s++)
        fill_case(b, &prefix_cases[(from + 3 * s) % PREFIX_CASES], b->w->seg[s].first);
    r = decide(b);
    for (int s = 0; s < SLOTS_MAX; s++)
        note_case(b, s, s, s, before[s], r);
}

Test(accept, slots_of_a_window_do_not_meet)
{
    for (int n = 0; n < RANK_COUNTS; n++)
        for (int from = 0; from < PREFIX_CASES; from++) {
            worlds_run(rank_counts[n], SMALL, 1, prefix_shared, &from);
            for (int r = 0; r < rank_counts[n]; r++)
                for (int s = 0; s < SLOTS_MAX; s++)
                    expect_case(&prefix_got[r][s], &prefix_cases[(from + 3 * s) % PREFIX_CASES],
                                rank_counts[n], r);
        }
}

/* ---- drafted == serial ----------------------------------------------------------------------- */

#define REPLY 160
#define VOCAB 37

/* A language without a memory: the logits behind a token at a position. */
static void language(int pos, int tok, int vocab, float *whole)
{
    for (int v = 0; v < vocab; v++)
        whole[v] = 2 * synth_normal(99, ((uint64_t)pos * 64 + (uint64_t)tok) * 64 + (uint64_t)v);
    whole[(tok * 7 + 3) % vocab] += 4; /* some successor is likely */
    if (tok % 3 == 0)
        whole[(tok + 5) % vocab] = whole[(tok + 6) % vocab]; /* and ties occur */
}

static const struct sampler voices[] = {
    { .temperature = 0, .top_p = 1 },
    { .temperature = .8, .top_p = 1, .seed = 3 },
    { .temperature = 1, .top_p = .9, .seed = 4 },
    { .temperature = .7, .top_p = 1, .top_k = 5, .seed = 5 },
    { .temperature = 1.3, .top_p = .95, .top_k = 20, .min_p = .05, .seed = UINT64_MAX },
    { .temperature = 1, .top_p = 1, .min_p = .1, .seed = 0 },
};

#define VOICES ((int)(sizeof(voices) / sizeof(voices[0])))

struct talk {
    int serial[RANKS_MAX][VOICES][REPLY + WINDOW_MAX + 1];
    int drafted[RANKS_MAX][VOICES][REPLY + WINDOW_MAX + 1];
    int rounds[VOICES], full[VOICES], partial[VOICES], empty[VOICES];
};

static void speak(struct bench *b)
{
    float whole[VOCAB];

    for (int s = 0; s < b->w->segs; s++)
        for (int i = 0; i < b->w->seg[s].len; i++) {
            int row = b->w->seg[s].first + i;

            language(b->pool->pos[b->w->seg[s].slot] + i, b->w->tok[row], VOCAB, whole);
            put_row(b, row, whole);
        }
}

static void fresh(struct bench *b, int slot, int voice)
{
    slot_drop(b->pool, slot);
    bench_must(b, slot_take(b->pool, b->x.q, slot, &slot), "slot");
    b->sampler[slot] = voices[voice];
    accept_admit(b->a, &b->x, slot, &b->sampler[slot], NULL);
}

static void talk_serial(struct bench *b, struct talk *t, int voice)
{
    int32_t tok = 1;
    int *out = t->serial[b->m.rank][voice], slot = voice % SLOTS_MAX;

    fresh(b, slot, voice);
    for (int n = 0; n < REPLY + WINDOW_MAX; n++) {
        window_clear(b->w);
        bench_must(b, window_add(b->w, slot, &tok, 1, 0), "add");
        b->w->head = true;
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        speak(b);
        bench_must(b, decide(b), "decide");
        out[n] = tok = b->w->next[0];
    }
}

/* Several voices at once, each with drafts that are right up to a place that the dice choose. */
static void talk_drafted(struct bench *b, struct talk *t, const int *voice, int n)
{
    int said[SLOTS_MAX] = { 0 };
    int32_t pending[SLOTS_MAX];
    uint64_t dice = 17; /* the same on every rank */

    for (int i = 0; i < n; i++) {
        fresh(b, i, voice[i]);
        pending[i] = 1;
    }
    for (int live = n; live > 0;) {
        int of[SLOTS_MAX];

        window_clear(b->w);
        for (int i = 0; i < n; i++) {
            int32_t tok[WINDOW_MAX] = { pending[i] };
            int len = 1 + (int)(wires_random(&dice) % WINDOW_MAX);
            int right = (int)(wires_random(&dice) % 10);

            if (said[i] >= REPLY)
                continue;
            for (int j = 1; j < len; j++) {
                tok[j] = t->serial[b->m.rank][voice[i]][said[i] + j - 1];
                if (j > right)
                    tok[j] = (tok[j] + 1) % VOCAB;
            }
            of[b->w->segs] = i;
            bench_must(b, window_add(b->w, i, tok, len, 0), "add");
        }
        b->w->head = true;
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        speak(b);
        bench_must(b, decide(b), "decide");
        live = 0;
        for (int s = 0; s < b->w->segs && !b->failed; s++) {
            int i = of[s], v = voice[i], len = b->w->seg[s].len, ok = b->w->n_ok[s];

            for (int j = 0; j < ok && said[i] < REPLY + WINDOW_MAX; j++)
                t->drafted[b->m.rank][v][said[i]++] = b->w->choice[b->w->seg[s].first + j];
            pending[i] = b->w->next[s];
            live += said[i] < REPLY;
            if (b->m.rank == 0) {
                t->rounds[v]++;
                t->full[v] += len > 1 && ok == len;
                t->empty[v] += len > 1 && ok == 1;
                t->partial[v] += ok > 1 && ok < len;
            }
        }
    }
}

static void talk(struct bench *b)
{
    const int first[] = { 0, 1, 2, 3 }, second[] = { 4, 5 };

    for (int v = 0; v < VOICES; v++)
        talk_serial(b, b->arg, v);
    talk_drafted(b, b->arg, first, 4);
    talk_drafted(b, b->arg, second, 2);
}

Test(accept, drafted_windows_say_what_single_rows_say, .timeout = 60)
{
    static struct talk one, t;

    worlds_run(1, VOCAB, 1, talk, &one);
    for (int v = 0; v < VOICES; v++) {
        cr_expect(eq(int, memcmp(one.serial[0][v], one.drafted[0][v], sizeof(int) * REPLY), 0),
                  "voice %d", v);
        cr_expect(one.full[v] > 0 && one.partial[v] > 0 && one.empty[v] > 0 &&
                      one.rounds[v] < REPLY,
                  "voice %d: %d rounds, %d full, %d partial, %d empty", v, one.rounds[v],
                  one.full[v], one.partial[v], one.empty[v]);
        for (int u = 0; u < v; u++)
            cr_expect(ne(int, memcmp(one.serial[0][v], one.serial[0][u], sizeof(int) * REPLY), 0),
                      "voices %d and %d say the same", v, u);
    }
    for (int n = 1; n < RANK_COUNTS; n++) {
        memset(&t, 0, sizeof(t));
        worlds_run(rank_counts[n], VOCAB, n, talk, &t);
        for (int r = 0; r < rank_counts[n]; r++)
            for (int v = 0; v < VOICES; v++) {
                cr_expect(eq(int, memcmp(t.serial[r][v], one.serial[0][v], sizeof(int) * REPLY), 0),
                          "voice %d, rank %d of %d", v, r, rank_counts[n]);
                cr_expect(
                    eq(int, memcmp(t.drafted[r][v], one.serial[0][v], sizeof(int) * REPLY), 0),
                    "voice %d drafted, rank %d of %d", v, r, rank_counts[n]);
            }
    }
}

Test(accept, a_draw_is_keyed_by_the_position_it_fills)
{
    static struct talk one;

    worlds_run(1, VOCAB, 1, talk, &one);
    for (int n = 0, tok = 1; n < REPLY; n++) {
        float whole[VOCAB];
        double best = -INFINITY;
        int id = -1;

        language(n, tok, VOCAB, whole);
        for (int v = 0; v < VOCAB; v++) {
            double x = (double)whole[v] / voices[1].temperature +
                       draw_gumbel(voices[1].seed, (uint64_t)n + 1, (uint32_t)v, DRAW_TOKEN);

            if (x > best) {
                best = x;
                id = v;
            }
        }
        cr_expect(eq(int, one.serial[0][1][n], id), "token %d", n);
        tok = id;
    }
}

/* ---- what crosses the wire ------------------------------------------------------------------- */

struct traffic {
    uint64_t bytes[3]; /* greedy, mixed with a draw, known text with a sampler */
};

static void count_traffic(struct bench *b)
{
    struct traffic *t = (struct traffic *)b->arg + b->m.rank;
    const int32_t tok[] = { 1, 2, 3 };

    for (int k = 0; k < 3; k++) {
        b->sampler[1].temperature = k ? 1 : 0;
        window_clear(b->w);
        bench_must(b, window_add(b->w, 0, tok, 3, 0), "add");
        bench_must(b, window_add(b->w, 1, tok, 3, k == 2 ? SEG_KNOWN : 0), "add");
        b->w->head = true;
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        speak(b);
        comm_stats_take(b->x.comm);
        bench_must(b, decide(b), "decide");
        t->bytes[k] = comm_stats_take(b->x.comm).bytes;
    }
}

Test(accept, gathers_eight_bytes_a_row)
{
    for (int n = 1; n < RANK_COUNTS; n++) {
        struct traffic t[RANKS_MAX];

        worlds_run(rank_counts[n], VOCAB, 1, count_traffic, t);
        for (int r = 0; r < rank_counts[n]; r++)
            for (int k = 0; k < 3; k++)
                cr_expect(eq(u64, t[r].bytes[k], 6 * 8), "rank %d, window %d", r, k);
    }
}

static void fetch_row(struct bench *b)
{
    const int32_t tok[] = { 4, 9, 2 };

    window_clear(b->w);
    bench_must(b, window_add(b->w, 2, tok, 3, SEG_KNOWN), "add");
    b->w->head = true;
    bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
    speak(b);
    for (int i = 0; i < 3; i++)
        bench_must(
            b, accept_logits(b->a, &b->x, b->w, i, (float *)b->arg + (b->m.rank * 3 + i) * VOCAB),
            "logits");
}

Test(accept, any_row_of_logits_can_be_had_whole)
{
    const int32_t tok[] = { 4, 9, 2 };

    for (int n = 0; n < RANK_COUNTS; n++) {
        float got[RANKS_MAX][3][VOCAB], want[VOCAB];

        worlds_run(rank_counts[n], VOCAB, 1, fetch_row, got);
        for (int r = 0; r < rank_counts[n]; r++)
            for (int i = 0; i < 3; i++) {
                language(i, tok[i], VOCAB, want);
                cr_expect(eq(int, memcmp(got[r][i], want, sizeof(want)), 0),
                          "row %d, rank %d of %d", i, r, rank_counts[n]);
            }
    }
}

/* Four ranks share three tokens: the last has none. */
static void narrow(struct bench *b)
{
    const float rows[2][3] = { { 0, 0, 1 }, { .5f, .25f, -1 } };
    const int32_t tok[] = { 0, 2 };
    int *got = (int *)b->arg + 2 * b->m.rank;

    for (int s = 0; s < 2; s++)
        b->sampler[s] = voices[s];
    window_clear(b->w);
    bench_must(b, window_add(b->w, 0, tok, 1, 0), "add");
    bench_must(b, window_add(b->w, 1, tok + 1, 1, 0), "add");
    b->w->head = true;
    bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
    put_row(b, 0, rows[0]);
    put_row(b, 1, rows[1]);
    bench_must(b, decide(b), "decide");
    got[0] = b->w->next[0];
    got[1] = b->w->next[1];
}

Test(accept, a_rank_may_have_no_share_of_the_vocabulary)
{
    int one[2], got[RANKS_MAX][2];

    worlds_run(1, 3, 1, narrow, one);
    cr_expect(eq(int, one[0], 2));
    worlds_run(4, 3, 1, narrow, got);
    for (int r = 0; r < 4; r++) {
        cr_expect(eq(int, got[r][0], one[0]), "rank %d", r);
        cr_expect(eq(int, got[r][1], one[1]), "rank %d", r);
    }
}

/* ---- rows that say nothing ------------------------------------------------------------------- */

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[4096];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    pthread_mutex_lock(&said_lock);
    strncat(said, line, sizeof(said) - strlen(said) - 2);
    strcat(said, "\n");
    pthread_mutex_unlock(&said_lock);
}

struct broken_case {
    const char *name;
    bool sampled;
    int col; /* -1: every column */
    float value;
};

static const struct broken_case broken_cases[] = {
    { "a NaN, greedy", false, 3, NAN },
    { "a NaN, sampled", true, 30, NAN },
    { "an infinity, greedy", false, 36, INFINITY },
    { "no finite logit, greedy", false, -1, -INFINITY },
    { "no finite logit, sampled", true, -1, -INFINITY },
};

struct broken_got {
    int r, again, pos[2];
};

static struct broken_got broken_got[RANKS_MAX];
static const struct broken_case *broken;

static void break_row(struct bench *b)
{
    struct broken_got *g = &broken_got[b->m.rank];
    const int32_t tok[] = { 1, 2, 3 };
    float whole[VOCAB];

    b->sampler[2].temperature = broken->sampled ? 1 : 0;
    for (int turn = 0; turn < 2; turn++) {
        window_clear(b->w);
        bench_must(b, window_add(b->w, 0, tok, 3, 0), "add");
        bench_must(b, window_add(b->w, 2, tok, 3, 0), "add");
        b->w->head = true;
        bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
        speak(b);
        if (turn == 0) {
            language(1, 2, VOCAB, whole);
            for (int v = 0; v < VOCAB; v++)
                if (broken->col < 0 || v == broken->col)
                    whole[v] = broken->value;
            put_row(b, 4, whole);
            g->r = decide(b);
            g->pos[0] = device_pos(b, 0);
            g->pos[1] = device_pos(b, 2);
        } else {
            g->again = decide(b);
        }
    }
}

Test(accept, a_row_without_a_finite_logit_commits_nothing)
{
    log_sink(keep_line, NULL);
    for (size_t i = 0; i < sizeof(broken_cases) / sizeof(broken_cases[0]); i++) {
        broken = &broken_cases[i];
        for (int n = 0; n < RANK_COUNTS; n++) {
            said[0] = '\0';
            worlds_run(rank_counts[n], VOCAB, 1, break_row, NULL);
            for (int r = 0; r < rank_counts[n]; r++) {
                const struct broken_got *g = &broken_got[r];

                cr_expect(eq(int, g->r, -EBADMSG), "%s, rank %d of %d", broken->name, r,
                          rank_counts[n]);
                cr_expect(eq(int, g->pos[0], 0), "%s, rank %d", broken->name, r);
                cr_expect(eq(int, g->pos[1], 0), "%s, rank %d", broken->name, r);
                cr_expect(eq(int, g->again, 0), "%s: the next window, rank %d", broken->name, r);
            }
            cr_expect(strstr(said, "slot 2") && strstr(said, "row 4"), "%s says %s", broken->name,
                      said);
        }
    }
}

/* ---- opening and the digest ------------------------------------------------------------------ */

static int allocs_left;
static const struct backend_ops *real;

static int short_alloc(struct device *d, size_t bytes, void **out)
{
    if (allocs_left-- == 0)
        return -ENOMEM;
    return real->alloc(d, bytes, out);
}

Test(accept, gives_back_what_it_took_when_memory_is_short)
{
    struct model m = {
        .ranks = 2, .vocab = VOCAB, .vocab_share = 18, .vocab_first = 19, .rank = 1
    };
    struct backend_ops shorted;
    struct device *d;
    struct accept *a = NULL;
    int n = 0, r;

    cr_assert(eq(int, backend_find("ref", &real), 0));
    cr_assert(eq(int, real->open(0, 1, &d), 0));
    shorted = *real;
    shorted.alloc = short_alloc;
    d->ops = &shorted;
    do {
        allocs_left = n++;
        r = accept_open(d, &m, 1, &a);
        cr_expect(r == 0 || (r == -ENOMEM && !a));
    } while (r < 0 && n < 100);
    cr_expect(eq(int, n - 1, 13), "as many allocations as there are buffers");
    accept_close(a);
    accept_close(NULL);
    real->close(d);
}

Test(accept, digest_runs_over_every_outcome)
{
    uint64_t h = digest_note(FNV1A64_INIT, 812, 3, 5, 4095);

    cr_expect(eq(u64, h, UINT64_C(0xe5f1cb9afd24d564)));
    cr_expect(eq(u64, digest_note(h, 813, 0, 0, -1), UINT64_C(0x2cf36200057e6034)));
}
