/* fuzz_plan.c - any words as any order: refused or decoded, and what was decoded encodes to the
 * same words. */
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
    union {
        struct plan_admit admit;
        struct plan_span span;
        struct plan_draft draft;
        struct plan_round round;
        struct plan_keep keep;
        struct plan_calibrate calibrate;
        int slot;
    } p;

    switch (m->op) {
    case PLAN_ADMIT:
        return plan_get_admit(m, &bounds, ids, &p.admit) < 0 ? 0 : plan_put_admit(&p.admit, word);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
