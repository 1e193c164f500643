/* test_lead.c - how streams share a rank: a long prompt and a stream that decodes have half of the
 * time each. */
#include "src/rank/lead.h"

#include "src/base/log.h"
#include "src/model/slot.h"
#include "src/verify/sampler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define PROMPT 1500
#define CHUNK "300" /* takes many times as long as a round */
#define CHUNKS 5
#define CONTEXT "4096"

static struct request request_of(const int32_t *ids, int n, int max_tokens)
{
    struct request q = { .ids = ids, .n = n, .max_tokens = max_tokens, .ignore_end = true };

    sampler_default(&q.sampler);
    return q;
}

/* Rounds that run while the long prompt is taken beside a stream that decodes. */
static int share(struct lead *l)
{
    struct rounds *r = lead_round(l);
    int32_t ids[PROMPT];
    struct request decodes = request_of(ids, 1, 4000), waits = request_of(ids, PROMPT, 1);
    struct reply reply[2] = { 0 };
    int rounds = 0;

    for (int i = 0; i < PROMPT; i++)
        ids[i] = 10 + i * 7 % 1000;
    cr_assert(eq(int, lead_add(l, &decodes, &reply[0]), 0));
    for (int i = 0; i < 8; i++)
        cr_assert(eq(int, lead_step(l), 0));
    cr_assert(eq(int, lead_add(l, &waits, &reply[1]), 0));
    while (reply[1].n == 0) {
        uint32_t number = r->number;

        cr_assert(eq(int, lead_step(l), 0));
        rounds += (int)(r->number - number);
    }
    cr_assert(eq(int, lead_cancel(l, &reply[0]), 0));
    cr_assert(eq(int, lead_step(l), 1));
    reply_free(&reply[0]);
    reply_free(&reply[1]);
    return rounds;
}

/* How many of the next steps run no round. */
static int chunks(struct lead *l, int steps)
{
    uint32_t before = lead_round(l)->number;

    for (int i = 0; i < steps; i++)
        cr_assert(eq(int, lead_step(l), 0));
    return steps - (int)(lead_round(l)->number - before);
}

/* By turns: what is owed is owed as long as both are there, and prompts share their half. */
static void turns(struct lead *l)
{
    const struct slot_pool *pool = lead_round(l)->k->pool;
    int32_t ids[PROMPT] = { 0 };
    struct request decodes = request_of(ids, 1, 4000), waits = request_of(ids, 601, 4000);
    struct reply reply[3] = { 0 };

    /* alone, a prompt waits for nobody: two chunks, then its rounds */
    cr_assert(eq(int, lead_add(l, &waits, &reply[0]), 0));
    cr_expect(eq(int, chunks(l, 4), 2));
    /* beside it another: chunk, round, chunk; the next one that comes owes nothing for that */
    cr_assert(eq(int, lead_add(l, &waits, &reply[1]), 0));
    cr_expect(eq(int, chunks(l, 3), 2));
    cr_expect(eq(int, chunks(l, 2), 0));
    cr_assert(eq(int, lead_cancel(l, &reply[1]), 0));
    reply_free(&reply[1]);
    cr_assert(eq(int, lead_add(l, &waits, &reply[1]), 0));
    cr_expect(eq(int, chunks(l, 1), 1));
    /* whoever was owed a round has left */
    cr_assert(eq(int, lead_cancel(l, &reply[0]), 0));
    cr_expect(eq(int, chunks(l, 1), 1));
    cr_assert(eq(int, lead_cancel(l, &reply[1]), 0));
    for (int i = 0; i < 3; i++) {
        reply_free(&reply[i]);
        cr_assert(eq(int, lead_add(l, i == 0 ? &decodes : &waits, &reply[i]), 0));
    }
    for (int i = 0; i < 4; i++) {
        int a = pool->pos[lead_slot(l, &reply[1])], b = pool->pos[lead_slot(l, &reply[2])];

        cr_expect(eq(int, a, (i + 1) / 2 * 300), "chunk %d", i);
        cr_expect(eq(int, b, i / 2 * 300), "chunk %d", i);
        cr_expect(eq(int, chunks(l, 2), 1));
    }
    /* who comes now waits behind who is here */
    for (int i = 1; i < 3; i++) {
        cr_assert(eq(int, lead_cancel(l, &reply[i]), 0));
        reply_free(&reply[i]);
    }
    cr_assert(eq(int, lead_add(l, &waits, &reply[1]), 0));
    cr_expect(eq(int, chunks(l, 3), 1));
    cr_assert(eq(int, lead_cancel(l, &reply[0]), 0));
    reply_free(&reply[0]);
    cr_assert(eq(int, lead_add(l, &waits, &reply[0]), 0));
    cr_expect(eq(int, chunks(l, 1), 1));
    cr_expect(eq(int, pool->pos[lead_slot(l, &reply[0])], 0));
    for (int i = 0; i < 2; i++) {
        cr_assert(eq(int, lead_cancel(l, &reply[i]), 0));
        reply_free(&reply[i]);
    }
    cr_assert(eq(int, lead_step(l), 1));
}

Test(lead, a_prompt_has_half_of_the_time_while_others_decode, .timeout = 110)
{
    static const char *const settings[] = {
        "model=" POCKET,        "cache=" CACHE, "context=" CONTEXT, "slots=3",
        "prefill_chunk=" CHUNK, "draft=none",   "threads=1"
    };
    enum exit_step step = STEP_DEVICE;
    struct drain drain = { 0 };
    struct rounds *r = NULL;
    struct config cfg;
    struct lead *l;
    struct rank k;

    log_open(-1, LOG_ERR);
    cr_assert(eq(int, config_init(&cfg), 0));
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        cr_assert(eq(int, config_set(&cfg, settings[i]), 0));
    cr_assert(eq(int, rank_open(&cfg, &drain, NULL, false, &k), 0));
    cr_assert(eq(int, rank_load(&k), 0));
    cr_assert(eq(int, rank_join(&k), 0));
    cr_assert(eq(int, round_open(&k, &step, &r), 0));
    cr_assert(eq(int, lead_open(r, &l), 0));
    /* Turns would be a round a chunk. A step may stand still on a busy machine, not each. */
    cr_expect(gt(int, share(l), 2 * CHUNKS));
    lead_turns(l);
    cr_expect(eq(int, share(l), CHUNKS));
    turns(l);
    lead_close(l);
    round_close(r);
    rank_close(&k);
    config_free(&cfg);
}
