/* log.c owns the process's log level, rank and sink. */
#include "src/base/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024
#define ABOUT_MOST 512

static int process_rank = -1;
static _Thread_local int thread_rank = -1;
static _Thread_local const char *about;
static _Thread_local bool thread_holds;
static _Thread_local char last_failure[LINE_MAX_BYTES];
static enum log_level most_verbose = LOG_INFO;
static void (*sink)(void *arg, enum log_level level, const char *line);
static void *sink_arg;

void log_open(int rank, enum log_level most)
{
    process_rank = rank;
    most_verbose = most;
}

void log_rank(int rank)
{
    thread_rank = rank;
}

void log_about(const char *subject)
{
    about = subject;
}

void log_sink(void (*fn)(void *arg, enum log_level level, const char *line), void *arg)
{
    sink = fn;
    sink_arg = arg;
}

static void put(enum log_level level, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES];
    int rank = thread_rank >= 0 ? thread_rank : process_rank;
    int n = 0;

    if (rank >= 0)
        n = snprintf(line, sizeof(line), "r%d ", rank);
    if (level == LOG_ERR || level == LOG_WARN)
        n += snprintf(line + n, sizeof(line) - (size_t)n,
                      "%s: ", level == LOG_ERR ? "error" : "warning");
    if (about)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "%.*s: ", ABOUT_MOST, about);
    n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    if (n > (int)sizeof(line) - 2)
        n = (int)sizeof(line) - 2;
    if (sink) {
        sink(sink_arg, level, line);
        return;
    }
    line[n] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n + 1) < 0)
        return; /* nowhere left to say it */
}

void log_line(enum log_level level, const char *fmt, ...)
{
    va_list ap;

    if (level > most_verbose)
        return;
    va_start(ap, fmt);
    put(level, fmt, ap);
    va_end(ap);
}

int fail(int r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(last_failure, sizeof(last_failure), fmt, ap);
    va_end(ap);
    if (!thread_holds)
        log_line(LOG_ERR, "%s", last_failure);
    return r;
}

void fail_hold(bool on)
{
    thread_holds = on;
}

const char *fail_text(void)
{
    return last_failure;
}
