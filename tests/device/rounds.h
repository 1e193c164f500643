/* rounds - requests that a test runs with settings of its own, by whole ranks on the CUDA
 * backend. */
#ifndef TANDEM_TESTS_DEVICE_ROUNDS_H
#define TANDEM_TESTS_DEVICE_ROUNDS_H

#include <stdint.h>
#include <stdio.h>

#include "src/rank/job.h"
#include "src/rank/parts.h"

#define ASKED 14
#define REPLY 40

extern int rounds_failures;

#define CHECK(c, ...)                                                                              \
    do {                                                                                           \
        if (!(c) && __atomic_add_fetch(&rounds_failures, 1, __ATOMIC_RELAXED) < 40) {              \
            printf("FAILED %s:%d: %s: ", __FILE__, __LINE__, #c);                                  \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
            fflush(stdout);                                                                        \
        }                                                                                          \
    } while (0)

struct said {
    int n;
    int32_t ids[REPLY];
};

enum harm { NO_HARM, BAD_STATE };

struct run {
    struct job job;
    int from, to; /* requests of the list */
    bool draft;
    int together; /* streams at once */
    int passes;   /* over the list */
    enum harm harm;
    struct said text[ASKED];
    uint64_t allocations[4]; /* after each pass */
    size_t room[4];
    struct capture_counts graphs;
    struct tally tally;
    char said[256]; /* the sentence that ended it */
};

/* What every reply has to be: eager, undrafted, alone. */
extern struct run rounds_serial;

#define SET(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* rounds_run - r's requests with settings as words; the result is the exit code. */
int rounds_run(struct run *r, const char *const *set);

/* rounds_same - got's requests have want's replies */
void rounds_same(const struct run *want, const struct run *got, const char *what);

/* rounds_print - a line of what a round took */
void rounds_print(const char *what, const struct run *r);

/* cases of test_rounds.c: what is off unless it is asked for, on one rank and on two */
void rounds_levers(void);
void rounds_two_ranks(void);

#endif
