/* log - one line per event on stderr, and the way an error is born.
 *
 * Lines are lowercase, values follow their noun, and start with the rank: `r0 error: link tcp peer
 * gone`. A rank logs from any thread; a line is written by one write(2) and never torn.
 *
 * Errors: 0 is success, a negative errno is fatal for the caller and is forwarded unchanged, a
 * positive value is an outcome that the header of the function documents. The place where an error
 * is born logs it once with its exact cause through fail(); callers forward silently.
 */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>

enum log_level { LOG_ERR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* log_open - set the rank that lines begin with (-1: none) and the most verbose level that is
 * written. */
void log_open(int rank, enum log_level most);

/* log_rank - the calling thread speaks for this rank from now on; for ranks that are threads. */
void log_rank(int rank);

/* log_about - every line of the calling thread begins with what it is about ("jobs a.jsonl line
 * 3"), until NULL: for callers that know where a value came from, above callees that know what is
 * wrong with it. Borrowed. */
void log_about(const char *subject);

/* log_sink - send lines to fn instead of stderr; NULL restores stderr. For tests. */
void log_sink(void (*fn)(void *arg, enum log_level level, const char *line), void *arg);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *fmt, ...);

#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

/* fail - log the cause at level err and return r, a negative errno:
 *     return fail(-EINVAL, "config: unknown key %s", key);
 */
__attribute__((format(printf, 2, 3))) int fail(int r, const char *fmt, ...);

/* fail_text - the last sentence that fail logged on this thread, "" if none: the cause of an error
 * that has come up to a caller who has to tell somebody else. */
const char *fail_text(void);

/* fail_hold - from now on the calling thread's fail writes no line: of several threads at one work,
 * who waits for them tells one failure. */
void fail_hold(bool on);

#endif
