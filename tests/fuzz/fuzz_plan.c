/* fuzz_plan.c - any words as any order: refused or decoded, and what was decoded encodes to the
 * same words. */
#include "tests/fuzz/fuzz.h"

#include "src/base/log.h"
#include "src/rank/plan.h"

#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 400
#define CONTEXT 600

static const struct plan_bounds bounds = { .slots = SLOTS_MAX,
                                           .vocab = 4096,
                                           .context = CONTEXT,
                                           .window_max = WINDOW_MAX,
                                           .prefill_chunk = 64 };

static void quiet(void *arg, enum log_level level, const char *line)
{
}

static size_t round_trip(const struct plan_msg *m, uint64_t *word)
{
    int32_t ids[CONTEXT];
    struct logit_bias bias[LOGIT_BIASES_MAX];
    union plan_body p;

    switch (m->op) {
    case PLAN_ADMIT:
        return plan_get_admit(m, &bounds, ids, bias, &p.admit) < 0 ? 0
                                                                   : plan_put_admit(&p.admit, word);
    case PLAN_FILL:
    case PLAN_SCORE:
        return plan_get_span(m, &bounds, &p.span) < 0 ? 0 : plan_put_span(&p.span, word);
    case PLAN_DRAFT:
        return plan_get_draft(m, &bounds, &p.draft) < 0 ? 0 : plan_put_draft(&p.draft, word);
    case PLAN_ROUND:
        return plan_get_round(m, &bounds, &p.round) < 0 ? 0 : plan_put_round(&p.round, word);
    case PLAN_KEEP:
        return plan_get_keep(m, &bounds, &p.keep) < 0 ? 0 : plan_put_keep(&p.keep, word);
    case PLAN_CALIBRATE:
        return plan_get_calibrate(m, &bounds, &p.calibrate) < 0
                   ? 0
                   : plan_put_calibrate(&p.calibrate, word);
    default:
        return plan_get_slot(m, &bounds, &p.slot) < 0 ? 0 : plan_put_slot(p.slot, word);
    }
}

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    static const int32_t ids[] = { 5, 6, 7, 8, 9 };
    struct plan_admit admit = { .slot = 1,
                                .n = 5,
                                .budget = 40,
                                .flags = ADMIT_DRAFT,
                                .ids = ids,
                                .sampler = { .temperature = 0.7, .top_p = 0.9, .seed = 11 } };
    struct plan_span span = { .slot = 1, .start = 0, .end = 4 };
    struct plan_draft draft = { .asks = 2,
                                .ask = { { .slot = 0, .start = 9 }, { .slot = 2, .start = 4 } } };
    struct plan_round round = {
        .digest = 77,
        .commits = 1,
        .windows = 2,
        .asks = 1,
        .rows = 4,
        .arm = ARM_BEHIND,
        .commit = { { .slot = 0, .keep = 2, .flags = COMMIT_MATCHED, .next = 8 } },
        .window = { { .slot = 0, .rows = 3, .pos = 12, .source = SOURCE_DRAFTER },
                    { .slot = 1, .rows = 1, .pos = 4 } },
        .ask = { { .slot = 0, .start = 12 } },
        .tok = { 8, 9, 10, 11 },
        .start_ns = 1000
    };
    struct plan_keep keep = { .digest = 5,
                              .commits = 1,
                              .commit = {
                                  { .slot = 3, .keep = 1, .flags = COMMIT_STOPPED, .next = 2 } } };
    struct plan_calibrate calibrate = { .slots = 2, .rows = 3 };
    uint64_t word[WORDS_MAX];
    size_t n;

    out[0] = (uint8_t)(i + 1);
    switch (i + 1) {
    case PLAN_ADMIT:
        n = plan_put_admit(&admit, word);
        break;
    case PLAN_FILL:
    case PLAN_SCORE:
        n = plan_put_span(&span, word);
        break;
    case PLAN_DRAFT:
        n = plan_put_draft(&draft, word);
        break;
    case PLAN_ROUND:
        n = plan_put_round(&round, word);
        break;
    case PLAN_KEEP:
        n = plan_put_keep(&keep, word);
        break;
    case PLAN_CALIBRATE:
        n = plan_put_calibrate(&calibrate, word);
        break;
    case PLAN_RELEASE:
    case PLAN_CLOCK:
    case PLAN_STOP:
        n = plan_put_slot(2, word);
        break;
    default:
        return 0;
    }
    memcpy(out + 1, word, n * sizeof(word[0]));
    return 1 + n * sizeof(word[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t in[WORDS_MAX], out[WORDS_MAX] = { 0 };
    struct plan_msg m = { .word = in };
    size_t n;

    if (size < 1)
        return 0;
    log_sink(quiet, NULL);
    m.op = data[0] % PLAN_OPS;
    m.n = (size - 1) / sizeof(in[0]);
    if (m.op == 0 || m.n > WORDS_MAX)
        return 0;
    memcpy(in, data + 1, m.n * sizeof(in[0]));
    n = round_trip(&m, out);
    if (n != 0 && (n != m.n || memcmp(in, out, n * sizeof(in[0])) != 0))
        abort();
    return 0;
}
