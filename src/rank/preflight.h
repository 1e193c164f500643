/* preflight - whether the machines of a config fit it and each other, before anything is loaded.
 *
 *   on each machine   facts_gather, facts_write      key = value lines
 *   on all at once    facts_meet, facts_write        more of them: what goes over the link
 *   on one of them    facts_read of all, judge       a table, a verdict, the line that must change
 *
 * What one machine can judge alone it does while gathering; a value that starts with "bad: " or
 * "warn: " is such a verdict. Everything else is compared.
 */
#ifndef TANDEM_RANK_PREFLIGHT_H
#define TANDEM_RANK_PREFLIGHT_H

#include <stdio.h>

#include "src/base/config.h"

enum { FACT_KEY_BYTES = 40, FACT_VALUE_BYTES = 200, FACTS_MAX = 160, PREFLIGHT_RANKS_MAX = 8 };

struct fact {
    char key[FACT_KEY_BYTES], value[FACT_VALUE_BYTES];
};

struct facts {
    int n;
    struct fact fact[FACTS_MAX];
};

/* facts_gather - of this machine, as the rank of the config. Nothing is loaded, packed or
 * written. */
void facts_gather(const struct config *c, struct facts *out);

/* facts_meet - with the other ranks of the config, which do so at the same time: the largest
 * message that ranks send, there and back, and the times of day. One that does not come through is
 * a fact that begins with "bad: ". */
void facts_meet(const struct config *c, struct facts *f);

/* facts_put - add one; what does not fit is cut */
__attribute__((format(printf, 3, 4))) void facts_put(struct facts *f, const char *key,
                                                     const char *fmt, ...);

/* facts_find - its value, NULL if there is none */
const char *facts_find(const struct facts *f, const char *key);

void facts_write(const struct facts *f, FILE *to);

/* facts_read - what facts_write has written; other lines are left out.
 * errors   those of file_read; -EINVAL none in it */
int facts_read(const char *path, struct facts *out);

/* facts_judge - the table of all ranks on `to`, and the verdict.
 * result   how many facts make a start impossible */
int facts_judge(const struct facts *of, int ranks, FILE *to);

#endif
