#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/log.h"
#include "tests/base/capture.h"

enum { LINE_BYTES = 1023 }; /* the longest, with its newline */

static struct capture log_lines;

static void start(void)
{
    capture_start(&log_lines);
}

TestSuite(log, .init = start);

struct line_case {
    const char *name;
    int rank, thread; /* log_open, log_rank */
    const char *about;
    enum log_level level;
    const char *line;
};

static const struct line_case cases[] = {
    { "nobody's", -1, -1, NULL, LOG_INFO, "x 7" },
    { "a rank's", 3, -1, NULL, LOG_INFO, "r3 x 7" },
    { "a warning", 0, -1, NULL, LOG_WARN, "r0 warning: x 7" },
    { "an error", -1, -1, NULL, LOG_ERR, "error: x 7" },
    { "a thread that speaks for another rank", 0, 2, NULL, LOG_INFO, "r2 x 7" },
    { "about something", 1, -1, "jobs a line 3", LOG_ERR, "r1 error: jobs a line 3: x 7" },
};

Test(log, a_line_says_who_and_how_bad)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct line_case *c = &cases[i];

        log_open(c->rank, LOG_INFO);
        log_rank(c->thread);
        log_about(c->about);
        log_line(c->level, "x %d", 7);
        cr_expect(eq(str, log_lines.last, (char *)c->line), "%s", c->name);
        log_line(LOG_DEBUG, "too much");
        cr_expect(eq(str, log_lines.last, (char *)c->line), "%s", c->name);
    }
    log_open(-1, LOG_ERR);
    log_line(LOG_WARN, "too much");
    cr_expect(eq(int, log_lines.lines, (int)(sizeof(cases) / sizeof(cases[0]))));
}

static void *fails_elsewhere(void *arg)
{
    cr_expect(eq(str, (char *)fail_text(), (char *)""), "of this thread alone");
    fail(-EIO, "elsewhere");
    return arg;
}

Test(log, a_failure_is_said_once_and_kept_for_its_thread)
{
    pthread_t t;

    cr_expect(eq(str, (char *)fail_text(), (char *)""));
    cr_expect(eq(int, fail(-ENOENT, "no %s", "file"), -ENOENT));
    cr_expect(eq(str, log_lines.last, (char *)"error: no file"));
    fail_hold(true);
    cr_expect(eq(int, fail(-EINVAL, "held"), -EINVAL));
    cr_expect(eq(int, log_lines.lines, 1));
    cr_expect(eq(str, (char *)fail_text(), (char *)"held"));
    fail_hold(false);
    cr_assert(eq(int, pthread_create(&t, NULL, fails_elsewhere, NULL), 0));
    pthread_join(t, NULL);
    cr_expect(eq(int, log_lines.lines, 2));
    cr_expect(eq(str, (char *)fail_text(), (char *)"held"));
    fail(-EINVAL, "%% is %s", "no format");
    cr_expect(eq(str, log_lines.last, (char *)"error: % is no format"));
}

/* What the first write to stderr has of a message of n bytes that is about something of `about`
 * bytes: a socket of packets keeps writes apart. */
static size_t written(size_t n, size_t about, char *out, size_t cap)
{
    static char text[5000], subject[5000];
    int fd[2], old = dup(STDERR_FILENO);
    ssize_t got;

    memset(text, 'x', n);
    text[n] = 0;
    memset(subject, 'y', about);
    subject[about] = 0;
    cr_assert(old >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd) == 0 &&
              dup2(fd[1], STDERR_FILENO) >= 0);
    log_about(about ? subject : NULL);
    log_line(LOG_INFO, "%s", text);
    log_about(NULL);
    dup2(old, STDERR_FILENO);
    close(fd[1]);
    got = read(fd[0], out, cap);
    close(fd[0]);
    close(old);
    return got < 0 ? 0 : (size_t)got;
}

Test(log, a_line_is_one_write_however_long_it_is)
{
    static const struct {
        size_t text, about, line;
    } lengths[] = {
        { 0, 0, 4 },
        { LINE_BYTES - 5, 0, LINE_BYTES - 1 },
        { LINE_BYTES - 4, 0, LINE_BYTES },
        { LINE_BYTES - 3, 0, LINE_BYTES },
        { LINE_BYTES + 9, 0, LINE_BYTES },
        { 4000, 0, LINE_BYTES },
        { 1, 512, 4 + 512 + 2 + 1 },
        { 1, 4000, 4 + 512 + 2 + 1 }, /* what it is about leaves room for what it says */
        { 4000, 4000, LINE_BYTES },
    };
    char line[8192];

    log_sink(NULL, NULL);
    log_open(5, LOG_INFO);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t n = written(lengths[i].text, lengths[i].about, line, sizeof(line));

        cr_assert(eq(sz, n, lengths[i].line), "case %zu", i);
        cr_expect(line[n - 1] == '\n' && memchr(line, '\n', n) == line + n - 1, "case %zu", i);
        cr_expect(memchr(line, 0, n) == NULL && memcmp(line, "r5 ", 3) == 0, "case %zu", i);
    }
}
