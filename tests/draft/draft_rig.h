/* draft_rig - a rig with a drafter, fed with known text and asked for drafts. Failing to open ends
 * the test. */
#ifndef TANDEM_TESTS_DRAFT_DRAFT_RIG_H
#define TANDEM_TESTS_DRAFT_DRAFT_RIG_H

#include "src/draft/drafter.h"
#include "tests/rig/rig.h"

/* One a test; every rank finds its drafter by its number. */
struct draft_rig {
    const char *name;                   /* of the drafter */
    void (*prepare)(struct drafter *d); /* before ready, or NULL */
    struct drafter *d[RANKS_MAX];
    struct sampler sampler[RANKS_MAX][SLOTS_MAX]; /* greedy unless set */
    void (*fn)(struct draft_rig *b, struct rig *g);
    void *arg;
};

/* draft_rigs_run - rigs_run with b's drafter ready; b->fn runs on every rank. */
void draft_rigs_run(struct rig_settings s, struct draft_rig *b);

/* draft_slot - a taken slot, reset for a request whose first observed position is `first`. */
int draft_slot(struct draft_rig *b, struct rig *g, int want, int first);

/* draft_feed - known text behind what the slot holds, in windows of up to `chunk` rows, each
 * observed. */
void draft_feed(struct draft_rig *b, struct rig *g, int slot, const int32_t *tok, int n, int chunk);

/* draft_ask - the anchor becomes pending, then one pass for these slots. */
void draft_anchor(struct rig *g, int slot, int32_t tok);
void draft_ask(struct draft_rig *b, struct rig *g, const int *slots, int n, struct proposal *p);

#endif
