/* accept_rig - ranks without a model, with everything that accept stands on: whoever runs them
 * writes the logits. */
#ifndef TANDEM_TESTS_VERIFY_ACCEPT_RIG_H
#define TANDEM_TESTS_VERIFY_ACCEPT_RIG_H

#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/verify/accept.h"

struct device;

struct bench {
    struct model m;
    struct device *dev;
    struct exec x;
    struct arena arena;
    struct slot_pool *pool;
    struct window *w;
    struct accept *a;
    struct sampler sampler[SLOTS_MAX]; /* greedy unless set */
    void *arg;
    int resolved; /* windows that had undecided slots */
    int failed;   /* of bench_must */
};

/* bench_must - what has to be 0; noted, for ranks are threads that Criterion does not know. */
void bench_must(struct bench *b, int r, const char *what);

/* worlds_run - fn on every rank; fails the test if a rank's bench_must did. */
void worlds_run(int ranks, int vocab, int threads, void (*fn)(struct bench *b), void *arg);

/* put_row - a row of logits as this rank has it, from the row of the whole vocabulary. */
void put_row(struct bench *b, int row, const float *whole);

/* decide - what follows the forward in a round, undecided slots included. */
int decide(struct bench *b);

/* ---- replies --------------------------------------------------------------------------------- */

#define SPEECH 100 /* tokens of a reply */

/* The logits behind a token at a position. */
typedef void language_fn(int pos, int tok, int vocab, float *whole);

struct voice {
    struct sampler s;
    const struct logit_bias *bias; /* [s.biases] */
};

struct speech {
    int32_t id[SPEECH + WINDOW_MAX];
    struct logprobs lp[SPEECH + WINDOW_MAX];
    int n, rounds, full, partial, empty;
};

/* speech_serial - a reply to the prompt, one row a window, with a few tokens more than SPEECH. */
void speech_serial(struct bench *b, language_fn *fn, int slot, const struct voice *v,
                   const int32_t *prompt, int n_prompt, struct speech *out);

/* speech_drafted - replies of n slots at once to the same prompt, with up to `depth` drafts that
 * are right up to a place that the dice choose. cut: the dice also land fewer than was accepted. */
void speech_drafted(struct bench *b, language_fn *fn, const struct voice *v, int n, int depth,
                    bool cut, const int32_t *prompt, int n_prompt,
                    const struct speech *const *serial, struct speech *out);

#endif
