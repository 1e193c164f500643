/* watch - the thread that ends a rank when its round's thread cannot.
 *
 *   an order runs longer than limit_ms    where it is and the stacks of all threads go to the log;
 *                                         expired() makes it the group's failure
 *   a page of a mapped file is missing    lost() makes it the group's failure (mapping.h)
 *   watch_end                             the process leaves with the code after grace_ms, whatever
 *                                         the other threads do; requests that nobody has answered
 *                                         by then are answered first, for a second at most
 *
 * It is started before anything can fail: ending takes no memory and no new thread.
 */
#ifndef TANDEM_RANK_WATCH_H
#define TANDEM_RANK_WATCH_H

#include "src/rank/progress.h"

struct watch;

struct watch_settings {
    const struct progress *progress;
    int rank, limit_ms, grace_ms;
    /* expired - the order that `what` describes has taken too long; on the watch's thread, once */
    void (*expired)(void *arg, const char *what);
    /* lost - a thread of this process waits for ever for what `what` says; on the watch's thread,
     * once */
    void (*lost)(void *arg, const char *what);
    void *arg;
};

/* watch_open - errors   -EAGAIN, -ENOMEM, logged */
int watch_open(const struct watch_settings *s, struct watch **out);

/* watch_answers - fn(arg, why) answers what is in flight if the process is ended; NULL: nothing is,
 * or the caller answers. When the watch is answering already this does not return. */
void watch_answers(struct watch *w, void (*fn)(void *arg, const char *why), void *arg);

/* watch_end - leave with code after the grace time; the first call counts. Any thread. */
void watch_end(struct watch *w, int code, const char *why);

/* watch_quiet - neither expired nor lost runs any more when this has returned: what they use may be
 * closed. Not from them. What watch_end has begun goes on. NULL is fine. */
void watch_quiet(struct watch *w);

/* watch_close - quiet first; after watch_end the thread stays until the process has left. NULL is
 * fine. */
void watch_close(struct watch *w);

#endif
