/* test_plan.c - orders as words and back, and every number that must be refused. */
#include "src/rank/plan.h"

#include "src/base/log.h"
#include "src/base/rng.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEED 20
#define WORDS 2048

static const struct plan_bounds bounds = {
    .slots = 4, .vocab = 4096, .context = 600, .window_max = 16, .prefill_chunk = 64
};

static char last_line[1024];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    snprintf(last_line, sizeof(last_line), "%s", line);
}

static uint32_t draw(uint64_t *n)
{
    return philox4x32((uint32_t)(*n)++, 0, 0, 0, SEED).w[0];
}

static int below(uint64_t *n, int end)
{
    return (int)(draw(n) % (uint32_t)end);
}

static struct plan_msg message(int op, const uint64_t *word, size_t n)
{
    return (struct plan_msg){ .op = op, .round = 7, .n = n, .word = word };
}

/* ---- there and back -------------------------------------------------------------------------- */

static struct plan_round some_round(uint64_t *n)
{
    struct plan_round p = { .digest = (uint64_t)draw(n) << 32 | draw(n),
                            .windows = 1 + below(n, 4) };

    p.commits = below(n, 5);
    p.asks = below(n, p.windows + 1);
    p.arm = p.asks ? ARM_BEHIND : 0;
    p.row_bucket = below(n, 65);
    for (int i = 0; i < p.commits; i++)
        p.commit[i] =
            (struct plan_commit){ 3 - i, 1 + below(n, 16), (unsigned)below(n, 4), below(n, 4096) };
    for (int i = 0; i < p.windows; i++) {
        int rows = 1 + below(n, 16);

        p.window[i] = (struct plan_window){ i, rows, below(n, 600 - rows + 1),
                                            (enum plan_source)below(n, SOURCES) };
        for (int j = 0; j < rows; j++)
            p.tok[p.rows++] = below(n, 4096);
    }
    for (int i = 0; i < p.asks; i++)
        p.ask[i] = (struct plan_ask){ i, below(n, 600), below(n, WINDOW_MAX + 1) };
    p.start_ns = (int64_t)draw(n) << 30 | draw(n);
    return p;
}

Test(plan, rounds_come_back_as_they_were)
{
    uint64_t word[WORDS], n = 0;

    for (int i = 0; i < 2000; i++) {
        struct plan_round p = some_round(&n), q;
        size_t words = plan_put_round(&p, word);
        struct plan_msg m = message(PLAN_ROUND, word, words);

        cr_assert(le(sz, words, (size_t)PLAN_PAYLOAD), "seed %d case %d", SEED, i);
        cr_assert(eq(int, plan_get_round(&m, &bounds, &q), 0), "seed %d case %d", SEED, i);
        cr_expect(memcmp(&p, &q, sizeof(p)) == 0, "seed %d case %d", SEED, i);
    }
}

Test(plan, the_largest_round_is_one_frame)
{
    struct plan_round p = { .commits = 4, .windows = 4, .asks = 4, .arm = ARM_BEHIND, .rows = 64 };
    uint64_t word[WORDS];

    for (int i = 0; i < 4; i++) {
        p.commit[i] = (struct plan_commit){ i, 16, COMMIT_MATCHED, 4095 };
        p.window[i] = (struct plan_window){ i, 16, 584, SOURCE_DRAFTER };
        p.ask[i] = (struct plan_ask){ i, 599 };
    }
    cr_expect(eq(sz, plan_put_round(&p, word), (size_t)47));
}

Test(plan, the_other_orders_come_back_as_they_were)
{
    uint64_t word[WORDS];
    static const struct logit_bias bias[3] = { { 5, -1.5f }, { 4095, -INFINITY }, { 0, 100 } };
    struct logit_bias bias_back[LOGIT_BIASES_MAX];
    int32_t ids[600], back[600];
    struct plan_msg m;

    for (int i = 0; i < 600; i++)
        ids[i] = i * 7 % 4096;
    for (int n = 1; n <= 600; n += n < 5 ? 1 : 119) {
        struct plan_admit p = { .slot = 2,
                                .n = n,
                                .budget = 600 - n,
                                .flags = ADMIT_DRAFT,
                                .ids = ids,
                                .bias = bias },
                          q;

        p.sampler = (struct sampler){ .temperature = 0.8,
                                      .top_p = 0.95,
                                      .min_p = 0.05,
                                      .seed = UINT64_MAX - 3,
                                      .repetition = 1.1,
                                      .frequency = -0.5,
                                      .presence = 2,
                                      .top_k = 40,
                                      .min_tokens = 17,
                                      .logprobs = LOGPROBS_MAX + 1,
                                      .biases = n % 4,
                                      .ends = n % 17 };
        for (int i = 0; i < p.sampler.ends; i++)
            p.sampler.end[i] = 4095 - i;
        m = message(PLAN_ADMIT, word, plan_put_admit(&p, word));
        cr_assert(le(sz, m.n, plan_words(&bounds)));
        cr_assert(eq(int, plan_get_admit(&m, &bounds, back, bias_back, &q), 0));
        cr_expect(q.slot == 2 && q.n == n && q.budget == 600 - n && q.flags == ADMIT_DRAFT);
        cr_expect(memcmp(&p.sampler, &q.sampler, sizeof(p.sampler)) == 0);
        cr_expect(memcmp(ids, back, (size_t)n * sizeof(ids[0])) == 0);
        cr_expect(memcmp(bias, bias_back, (size_t)(n % 4) * sizeof(bias[0])) == 0);
    }

    struct plan_span span = { 3, 64, 128 }, span2;
    m = message(PLAN_FILL, word, plan_put_span(&span, word));
    cr_assert(eq(int, plan_get_span(&m, &bounds, &span2), 0));
    cr_expect(memcmp(&span, &span2, sizeof(span)) == 0);

    struct plan_draft draft = { 2, { { 1, 5 }, { 0, 599 } } }, draft2;
    m = message(PLAN_DRAFT, word, plan_put_draft(&draft, word));
    cr_assert(eq(int, plan_get_draft(&m, &bounds, &draft2), 0));
    cr_expect(memcmp(&draft, &draft2, sizeof(draft)) == 0);

    struct plan_keep keep = { 77,
                              2,
                              { { 1, 3, COMMIT_STOPPED, 8 }, { 0, 1, COMMIT_MATCHED, 9 } },
                              INT64_MAX },
                     keep2;
    m = message(PLAN_KEEP, word, plan_put_keep(&keep, word));
    cr_assert(eq(int, plan_get_keep(&m, &bounds, &keep2), 0));
    cr_expect(memcmp(&keep, &keep2, sizeof(keep)) == 0);

    struct plan_calibrate cal = { .slots = 4, .rows = 5 }, cal2;
    m = message(PLAN_CALIBRATE, word, plan_put_calibrate(&cal, word));
    cr_assert(eq(int, plan_get_calibrate(&m, &bounds, &cal2), 0));
    cr_expect(memcmp(&cal, &cal2, sizeof(cal)) == 0);

    struct plan_clock clock = { 5, 4, { 0, 7, INT64_MAX, 1 } }, clock2;
    m = message(PLAN_CLOCK, word, plan_put_clock(&clock, word));
    cr_assert(eq(int, plan_get_clock(&m, &clock2), 0));
    cr_expect(memcmp(&clock, &clock2, sizeof(clock)) == 0);

    int slot = -1;
    m = message(PLAN_RELEASE, word, plan_put_slot(3, word));
    cr_assert(eq(int, plan_get_slot(&m, &bounds, &slot), 0));
    cr_expect(eq(int, slot, 3));
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* A good message, one word of which is replaced. */
struct bad_case {
    const char *name;
    int op, at;
    uint64_t word;
    const char *field; /* that the message names */
};

#define NAN_BITS UINT64_C(0x7ff8000000000000)

static const struct bad_case bad[] = {
    { "slot", PLAN_ADMIT, 0, UINT64_C(4) | UINT64_C(3) << 32, "slot" },
    { "flags", PLAN_ADMIT, 0, UINT64_C(4) << 8 | UINT64_C(3) << 32, "flags" },
    { "biases", PLAN_ADMIT, 0, UINT64_C(1025) << 16 | UINT64_C(3) << 32, "biases" },
    { "a bias that is not there", PLAN_ADMIT, 0, UINT64_C(1) << 16 | UINT64_C(3) << 32, "words" },
    { "no prompt", PLAN_ADMIT, 0, 0, "prompt" },
    { "prompt over the context", PLAN_ADMIT, 0, UINT64_C(601) << 32, "prompt" },
    { "budget over the context", PLAN_ADMIT, 1, 598, "budget" },
    { "top_k", PLAN_ADMIT, 1, UINT64_C(0xffffffff) << 32, "top_k" },
    { "min_tokens", PLAN_ADMIT, 3, 0xffffffff, "min_tokens" },
    { "more logprobs than there are", PLAN_ADMIT, 3, UINT64_C(22) << 32, "logprobs" },
    { "more end tokens than fit", PLAN_ADMIT, 3, UINT64_C(17) << 40, "end tokens" },
    { "reserved bits", PLAN_ADMIT, 3, UINT64_C(1) << 48, "reserved" },
    { "temperature not a number", PLAN_ADMIT, 4, NAN_BITS, "sampler" },
    { "top_p below 0", PLAN_ADMIT, 5, UINT64_C(0xbff0000000000000), "sampler" },
    { "penalty not a number", PLAN_ADMIT, 9, NAN_BITS, "sampler" },
    { "id over the vocabulary", PLAN_ADMIT, 10, 4096, "id" },
    { "id in the upper half", PLAN_ADMIT, 10, UINT64_C(4096) << 32, "id" },
    { "something behind the last id", PLAN_ADMIT, 11, UINT64_C(1) << 32, "reserved" },
    { "end before start", PLAN_FILL, 1, UINT64_C(3) << 32 | 4, "end" },
    { "end over the context", PLAN_FILL, 1, UINT64_C(601) << 32 | 590, "end" },
    { "more rows than a chunk", PLAN_FILL, 1, UINT64_C(65) << 32, "rows" },
    { "no windows", PLAN_ROUND, 1, 0, "windows" },
    { "too many windows", PLAN_ROUND, 1, 5 << 8, "windows" },
    { "too many commits", PLAN_ROUND, 1, 5 | 1 << 8, "commits" },
    { "too many asks", PLAN_ROUND, 1, 1 << 8 | 5 << 16, "asks" },
    { "asks that are not armed", PLAN_ROUND, 1, 1 | 1 << 8 | 1 << 16, "arm" },
    { "armed without asks", PLAN_ROUND, 1, 1 | 1 << 8 | UINT64_C(1) << 24, "arm" },
    { "row bucket", PLAN_ROUND, 1, 1 | 1 << 8 | 1 << 16 | 1 << 24 | UINT64_C(65) << 32,
      "row bucket" },
    { "keep nothing", PLAN_ROUND, 2, 0, "keep" },
    { "keep too much", PLAN_ROUND, 2, 17 << 8, "keep" },
    { "commit flags", PLAN_ROUND, 2, 1 << 8 | 4 << 16, "flags" },
    { "next over the vocabulary", PLAN_ROUND, 2, 1 << 8 | UINT64_C(4096) << 32, "next" },
    { "no rows", PLAN_ROUND, 3, 0, "rows" },
    { "too many rows", PLAN_ROUND, 3, 17 << 8, "rows" },
    { "source", PLAN_ROUND, 3, 3 << 8 | SOURCES << 16, "source" },
    { "position over the context", PLAN_ROUND, 3, 3 << 8 | UINT64_C(600) << 32, "position" },
    { "rows over the context", PLAN_ROUND, 3, 3 << 8 | UINT64_C(598) << 32, "rows at the end" },
    { "ask slot", PLAN_ROUND, 4, 9, "slot" },
    { "drafts of a pass", PLAN_ROUND, 4, 17 << 8, "drafts" },
    { "ask start", PLAN_ROUND, 4, UINT64_C(600) << 32, "start" },
    { "other rows than ids", PLAN_ROUND, 3, 5 << 8, "words" },
    { "keep flags", PLAN_KEEP, 1, 1 << 8 | 8 << 16, "flags" },
    { "the same slot twice", PLAN_KEEP, 2, 1 << 8, "slot again" },
    { "a time before any", PLAN_KEEP, 3, UINT64_MAX, "time" },
    { "a clock before any", PLAN_CLOCK, 0, UINT64_MAX, "time" },
    { "rows of a pass", PLAN_CALIBRATE, 0, 1 | 3 << 8 | CALIBRATE_PASS << 16, "rows" },
    { "a window of no slot", PLAN_CALIBRATE, 0, 1 << 8, "slots" },
    { "more slots than there are", PLAN_CALIBRATE, 0, 5 | 1 << 8, "slots" },
    { "release of no slot", PLAN_RELEASE, 0, 4, "slot" },
    { "reserved bits of a span", PLAN_FILL, 0, 1 << 8, "reserved" },
    { "reserved bits of a round", PLAN_ROUND, 1, 1 | 1 << 8 | 1 << 16 | 1 << 24 | UINT64_C(1) << 48,
      "reserved" },
    { "reserved bits of a commit", PLAN_ROUND, 2, 1 << 8 | 1 << 24, "reserved" },
    { "reserved bits of a window", PLAN_ROUND, 3, 3 << 8 | 1 << 24, "reserved" },
    { "reserved bits of an ask", PLAN_ROUND, 4, 1 << 16, "reserved" },
    { "reserved bits of a calibration", PLAN_CALIBRATE, 0, 1 | 1 << 8 | 1 << 24, "reserved" },
    { "release with more", PLAN_RELEASE, 0, 1 << 8, "reserved" },
};

static size_t good_words(int op, uint64_t *word)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    struct plan_round round = {
        .commits = 1, .windows = 1, .asks = 1, .arm = ARM_BEHIND, .rows = 3
    };

    round.commit[0] = (struct plan_commit){ 0, 2, COMMIT_MATCHED, 5 };
    round.window[0] = (struct plan_window){ 0, 3, 10, SOURCE_DRAFTER };
    round.ask[0] = (struct plan_ask){ 0, 10 };
    switch (op) {
    case PLAN_ADMIT:
        return plan_put_admit(&(struct plan_admit){ .n = 3, .budget = 9, .ids = ids }, word);
    case PLAN_FILL:
        return plan_put_span(&(struct plan_span){ 0, 0, 8 }, word);
    case PLAN_ROUND:
        return plan_put_round(&round, word);
    case PLAN_KEEP:
        return plan_put_keep(&(struct plan_keep){ 1, 2, { { 0, 1, 0, 5 }, { 1, 1, 0, 6 } } }, word);
    case PLAN_CALIBRATE:
        return plan_put_calibrate(&(struct plan_calibrate){ .slots = 1, .rows = 1 }, word);
    case PLAN_CLOCK:
        return plan_put_clock(&(struct plan_clock){ .sent_ns = 9, .ranks = 2 }, word);
    default:
        return plan_put_slot(1, word);
    }
}

static int decode(const struct plan_msg *m)
{
    static struct logit_bias bias[LOGIT_BIASES_MAX];
    static int32_t ids[600];
    union plan_body p;

    switch (m->op) {
    case PLAN_ADMIT:
        return plan_get_admit(m, &bounds, ids, bias, &p.admit);
    case PLAN_FILL:
    case PLAN_SCORE:
        return plan_get_span(m, &bounds, &p.span);
    case PLAN_DRAFT:
        return plan_get_draft(m, &bounds, &p.draft);
    case PLAN_ROUND:
        return plan_get_round(m, &bounds, &p.round);
    case PLAN_KEEP:
        return plan_get_keep(m, &bounds, &p.keep);
    case PLAN_CALIBRATE:
        return plan_get_calibrate(m, &bounds, &p.calibrate);
    case PLAN_CLOCK:
        return plan_get_clock(m, &p.clock);
    default:
        return plan_get_slot(m, &bounds, &p.slot);
    }
}

Test(plan, refuses_numbers_out_of_range_by_name)
{
    log_sink(keep_line, NULL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t word[WORDS];
        struct plan_msg m = message(bad[i].op, word, good_words(bad[i].op, word));

        cr_assert(eq(int, decode(&m), 0), "%s: the good message", bad[i].name);
        word[bad[i].at] = bad[i].word;
        cr_expect(eq(int, decode(&m), -EPROTO), "%s", bad[i].name);
        cr_expect(strstr(last_line, bad[i].field) != NULL, "%s: \"%s\"", bad[i].name, last_line);
        cr_expect(strstr(last_line, plan_op_name(bad[i].op)) != NULL, "%s: \"%s\"", bad[i].name,
                  last_line);
    }
}

Test(plan, refuses_every_length_but_the_right_one)
{
    static const int ops[] = { PLAN_ADMIT, PLAN_FILL, PLAN_ROUND, PLAN_CALIBRATE, PLAN_RELEASE };

    log_sink(keep_line, NULL);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        uint64_t word[WORDS] = { 0 };
        size_t right = good_words(ops[i], word);

        for (size_t n = 0; n < right + 3; n++) {
            struct plan_msg m = message(ops[i], word, n);

            cr_expect(eq(int, decode(&m), n == right ? 0 : -EPROTO), "%s of %zu words",
                      plan_op_name(ops[i]), n);
        }
    }
}

Test(plan, names_every_order)
{
    for (int op = 1; op < PLAN_OPS; op++)
        cr_expect(plan_op_name(op) != NULL);
    cr_expect(plan_op_name(0) == NULL && plan_op_name(PLAN_OPS) == NULL &&
              plan_op_name(-1) == NULL);
}
