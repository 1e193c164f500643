/* gate - equalities that every run must hold, tried on the real round: requests that are decoded in
 * two ways, and what the two replies differ in.
 *
 *   world   numerics and ranks: replies are compared within one
 *   job     a world with some settings more, opened once (job.h); gates run in jobs that suit them
 *   play    a request in a job: with drafts or without, alone or in company
 *   serial  the play without drafts and alone, kept for all jobs of the world: what others must be
 *
 * A difference fails the gate that found it; the first one is named and the others go on. What the
 * law tests hold below the round, bit for bit (tests/law), is held here through it.
 */
#ifndef TANDEM_RANK_GATE_H
#define TANDEM_RANK_GATE_H

#include "src/base/meter.h"
#include "src/rank/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options;
struct tokenizer;

enum gate_id {
    GATE_G1,
    GATE_G2,
    GATE_G3,
    GATE_G4,
    GATE_G5,
    GATE_G6,
    GATE_G7,
    GATE_G8,
    GATE_G9,
    GATE_G10,
    GATE_G11,
    GATE_G12,
    GATE_G13,
    GATE_SOAK,
    GATES
};

enum { GATE_PROMPTS_MAX = 8, GATE_MODES = 22, GATE_CASES_MAX = GATE_PROMPTS_MAX * GATE_MODES };

/* Somebody asked to leave: of the calls below, beside 0 and errors of round.h. */
#define GATE_LEFT 1

/* ---- what is asked for ---------------------------------------------------------------------- */

struct gate_prompt {
    char name[64];
    int32_t *ids;
    int n;
};

/* A way to sample; those with edits have penalties, biases and a least length. */
struct gate_mode {
    char name[48];
    struct sampler s;
    bool edits;
};

struct gate_ask {
    const struct gate_prompt *prompt;
    int mode, max_tokens;
    uint64_t seed;
    bool ignore_end;
    char stop[32];   /* "": none */
    int32_t stop_id; /* -1: none */
    int end_at; /* the model's end token is made to be this token of the reply; -1: it is not */
};

struct gate_play {
    struct gate_ask ask;
    bool draft;
    int join;              /* step of the play before which it is added */
    int cancel;            /* landed tokens after which nobody wants it; 0: never */
    int depth;             /* of its windows, at most; -1: as the gate has it */
    const int32_t *record; /* [record_n] what the oracle reads behind the prompt; NULL: serial */
    int record_n;
    /* what the request borrows */
    const char *stop[1];
    struct logit_bias bias[3];
    /* what came of it */
    bool added, over;
    struct reply reply;
    struct text said;
    uint64_t states; /* digest of the model's states when it was over */
};

/* ---- what runs ------------------------------------------------------------------------------ */

/* How deep windows are where a play does not say. */
enum gate_depth { GATE_DEPTH_FULL, GATE_DEPTH_RANDOM };

struct gate_job {
    const char *name;
    const char *settings[4]; /* NULL behind the last */
    unsigned gates;          /* bits by enum gate_id */
    unsigned worlds;         /* bits by place in the list: of the quick size */
    bool own;                /* for checkpoints with a drafter, which it uses */
    bool host;               /* a lever of host backends */
    bool graphs;             /* for backends with graphs */
};

struct gate_sum {
    int cases;
    int64_t tokens, rounds, ns;
    bool failed;
    char why[640];
    char note[400]; /* what was met on the way */
    char skipped[96];
};

/* A window of a play, for comparisons of two runs. */
struct gate_window {
    int play, pos, k;
    int32_t tok[WINDOW_MAX];
};

/* Hash of the logits of a prompt's last rows. */
struct gate_logits {
    bool known;
    uint64_t hash;
};

struct gate {
    struct job job;
    const struct options *o;
    bool full;
    struct rank_keep keep; /* of the jobs of a world, where it is the only one */
    unsigned wanted;       /* bits by enum gate_id */
    struct gate_prompt prompt[GATE_PROMPTS_MAX];
    int prompts; /* the last one is the document */
    struct gate_mode mode[GATE_MODES];
    struct gate_sum sum[GATES];
    bool left;
    struct meter meter; /* in jobs */
    int64_t agreed;     /* rounds that several ranks have compared, in all gates */

    /* of the world */
    int world;
    char world_name[48];
    struct gate_play **serial;
    int serials;
    struct gate_window *trace; /* of the company, with passes behind windows */
    int written, read, trace_room;
    struct gate_logits last[GATE_PROMPTS_MAX], tail[GATE_PROMPTS_MAX];
    int64_t replays; /* windows that graphs ran */

    /* of the job */
    const struct gate_job *kind;
    struct lead *l;
    enum gate_id now;
    enum gate_depth depth;

    /* of the play */
    struct gate_play *play;
    int plays;
    struct gate_play *in_slot[SLOTS_MAX];
    int step;
    uint32_t salt; /* of random depths: what else they depend on */
    void (*seen)(struct gate *g, const struct round_record *rec); /* each round; or NULL */
    /* over - a play is over: another may take its place, else `added` is taken back; or NULL */
    int (*over)(struct gate *g, struct gate_play *p);
    void *arg;
    /* of the rounds since gate_count_begin: windows by what became of their k > 0 drafts */
    int64_t drafted, whole, none, part[WINDOW_MAX];
};

/* ---- gate_case.c ---------------------------------------------------------------------------- */

#define GATE_TOKENS_FULL 384     /* longest reply with --full */
#define GATE_DOCUMENT_FULL 20000 /* tokens of the long document */
#define GATE_DOCUMENT_QUICK 280

/* gate_texts - read the folder's prompts, one a file *.txt, and compose the document of `tokens`
 * tokens.
 * result   an exit code */
int gate_texts(struct gate *g, const char *folder, const struct tokenizer *t, int tokens);
void gate_texts_free(struct gate *g);

/* gate_modes - fill g->mode. */
void gate_modes(struct gate *g);

/* gate_ask - a prompt in a mode; the seed is made from both. */
struct gate_ask gate_ask(const struct gate *g, int prompt, int mode, int max_tokens);

/* gate_cases - what this world decodes: all prompts in all modes, or in the quick size one mode a
 * prompt and all modes over the worlds.   out   how many */
int gate_cases(const struct gate *g, struct gate_ask ask[GATE_CASES_MAX]);

/* gate_stop_in - a stop string that the serial reply has in its middle; none if there is no such
 * text. */
void gate_stop_in(struct gate_ask *a, const struct gate_play *serial);

/* gate_company - streams that join and leave each other; one is cancelled, one stops at a string,
 * one does not draft.
 * errors   as gate_run */
#define GATE_COMPANY 10
int gate_company(struct gate *g, struct gate_play p[GATE_COMPANY]);

/* ---- gate_play.c ---------------------------------------------------------------------------- */

/* gate_run - these plays together until all are over.
 * errors   GATE_LEFT; of round.h
 * owns     replies: gate_plays_free, in any case */
int gate_run(struct gate *g, struct gate_play *p, int n);
void gate_plays_free(struct gate_play *p, int n);

/* gate_serial_of - the play alone and without drafts; the world keeps it. */
int gate_serial_of(struct gate *g, const struct gate_ask *a, const struct gate_play **out);
void gate_serials_free(struct gate *g);

/* gate_judge - count a case: same ids, end, text, log-probabilities, usage and states as the serial
 * one; of a cancelled play the tokens it got. */
bool gate_judge(struct gate *g, const struct gate_play *got, const struct gate_play *serial);

/* gate_try - the ask with drafts and alone, judged. */
int gate_try(struct gate *g, const struct gate_ask *a, int depth);

/* gate_fail - the running gate found a difference; the first one is kept. */
__attribute__((format(printf, 2, 3))) void gate_fail(struct gate *g, const char *fmt, ...);

/* gate_failed - of the running gate. */
bool gate_failed(const struct gate *g);

/* gate_count_begin - from here on: g->drafted and what follows it. */
void gate_count_begin(struct gate *g);

/* gate_logits_of - run a prompt by hand: hash of the logits of its last `rows` rows, bytes in
 * order. */
int gate_logits_of(struct gate *g, const struct gate_prompt *p, int rows, uint64_t *hash);

/* ---- the gates ------------------------------------------------------------------------------ */

/* Each: 0, GATE_LEFT, or an error of round.h. */
typedef int gate_fn(struct gate *g);
gate_fn gate_drafted, gate_oracle, gate_random, gate_spec, gate_policy; /* gate_draft.c */
gate_fn gate_windows, gate_batched, gate_agree, gate_seeds;             /* gate_slots.c */
gate_fn gate_levers, gate_graphs, gate_seams, gate_stops;               /* gate_text.c */
gate_fn gate_soak;                                                      /* gate_soak.c */

#endif
