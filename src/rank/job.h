/* job - a command that needs ranks: opens those of this process, lets rank 0 lead and the others
 * follow.
 *
 * Ranks are this process alone, or with `link = loop` threads of it. Rank 0 checks what was asked
 * before it meets anybody, so a wrong prompt ends in an error at once.
 */
#ifndef TANDEM_RANK_JOB_H
#define TANDEM_RANK_JOB_H

#include "src/rank/lead.h"

struct job {
    /* prepare - rank 0, when model and tokenizer are known.   result   an exit code */
    int (*prepare)(struct job *j, struct rank *k);
    /* lead - rank 0, when all ranks are ready.   result   an exit code */
    int (*lead)(struct job *j, struct lead *l);
    /* answer - or NULL: the ranks have failed, or are being ended while their rounds' thread
     * computes, and whoever asked is to hear it. Any thread; once or twice, and lead may be
     * running */
    void (*answer)(void *job, const char *why);
    struct drain *drain; /* NULL: job_run opens one. Jobs behind each other share one */
    /* rank 0 of the config's, without the others: what it computes is of no use, but takes its
     * time */
    bool alone;
    /* or NULL: weights that stay for the next job, of the rank that is this process */
    struct rank_keep *keep;
};

/* job_run - result: the exit code of the process. */
int job_run(struct job *j, const struct config *cfg);

/* job_code - the exit code for the result of a call of lead.h or order.h. */
int job_code(struct lead *l, int err);

#endif
