/* rig - one rank of a model, opened for a test: pack, device, states, window. Failing to open ends
 * the test.
 *
 * rigs_run makes a world of ranks, each on a thread of its own with links between them, and runs fn
 * on all.
 */
#ifndef TANDEM_TESTS_RIG_RIG_H
#define TANDEM_TESTS_RIG_RIG_H

#include "kernels/backend.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/row_store.h"
#include "src/transport/comm.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A call of a rig that cannot go on without it ends the test. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ != 0) {                                                                          \
            fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, must_);                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct json;
struct resident;

struct rig_settings {
    const char *model; /* checkpoint folder; NULL is the pocket model */
    /* a format of scheme.h: weights are made up in it; NULL: they are the folder's */
    const char *made_up;
    const char *backend; /* NULL is ref, or what rig_backend said */
    int ranks;
    bool fp32, released;          /* numerics */
    bool no_quant;                /* cache_quant = off */
    bool bf16_wire;               /* partials */
    int slots, context, rows_max; /* 0: 1, 2048, 512 */
    int threads;                  /* of a rank; 0 is 1 */
    /* a drafter's part, so that this rig need not know drafters; NULL if none */
    struct walk_part (*part)(void *arg, const struct json *config, struct model *m,
                             struct state_list *l);
    void *part_arg;
};

struct rig {
    const struct rig_settings *set;
    struct json *config;
    struct pack *pack;
    const struct backend_ops *backend;
    struct device *dev;
    struct queue *q;
    struct resident *resident;
    struct model *m;
    struct slot_pool *pool;
    struct window *w;
    struct row_store *rows;
    struct comm *comm;
    struct arena arena;
    struct exec x;
    int rank;
    void (*tapped)(void *arg,
                   struct exec *x); /* of rig_forward's windows; NULL unless a test sets it */
    void *tapped_arg;
};

/* rig_backend - what settings that name no backend mean from now on, so that a test made for one
 * runs on another; the name is kept. Ranks on devices meet in a comm_peer. */
void rig_backend(const char *name);

/* rigs_run - fn(rig, arg) on every rank; returns when all have. */
void rigs_run(const struct rig_settings *s, void (*fn)(struct rig *g, void *arg), void *arg);

/* rig_quantised - the pocket model in FP8 blocks with its experts in MXFP4, made once a process in
 * a folder that goes when the process ends: a `model` of settings. */
const char *rig_quantised(void);

/* rig_forward - run tok[0 .. n-1] as one window of the slot: stage, upload, forward; nothing is
 * committed. With head the logits are there after the wait; head windows have at most
 * WINDOW_ROWS_SHARED rows. */
void rig_forward(struct rig *g, int slot, const int32_t *tok, int n, bool head);

/* rig_keep - commit the first n rows of the slot's last window. */
void rig_keep(struct rig *g, int slot, int n);

/* rig_logits - all ranks: the whole vocabulary's logits of the window's rows, gathered;
 * [rows][vocab]. */
void rig_logits(struct rig *g, float *out);

#endif
