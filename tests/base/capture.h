/* capture - keeps the last log lines of a test, so that the text of an error can be checked. */
#ifndef TANDEM_TESTS_BASE_CAPTURE_H
#define TANDEM_TESTS_BASE_CAPTURE_H

#include <stdio.h>
#include <string.h>

#include "src/base/log.h"

struct capture {
    char last[1024];
    int lines;
};

static inline void capture_line(void *arg, enum log_level level, const char *line)
{
    struct capture *c = arg;

    (void)level;
    snprintf(c->last, sizeof(c->last), "%s", line);
    c->lines++;
}

static inline void capture_start(struct capture *c)
{
    memset(c, 0, sizeof(*c));
    log_sink(capture_line, c);
}

#endif
