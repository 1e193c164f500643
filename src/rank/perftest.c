/* perftest.c owns the processes that measure, and what can be read of their tables. */
#include "src/rank/perftest.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/clock.h"

enum {
    LIMIT_MS = 15000,
    TRIES = 20, /* of a client whose server does not listen yet */
    AGAIN_MS = 200,
    TEXT_BYTES = 16384,
    ITERATIONS = 200,
    LATENCY_FIELD = 4, /* of a line of ib_write_lat: bytes, iterations, min, max, typical */
    AVERAGE_FIELD = 3  /* of ib_write_bw: bytes, iterations, peak, average */
};

#define LATENCY "/usr/bin/ib_write_lat"
#define BANDWIDTH "/usr/bin/ib_write_bw"

bool perftest_there(void)
{
    return access(LATENCY, X_OK) == 0 && access(BANDWIDTH, X_OK) == 0;
}

static int start(const struct perftest *p, int out, pid_t *pid)
{
    static char *none[] = { NULL };
    char port[16], gid[16], bytes[24], times[16];
    const char *word[] = { p->bandwidth ? BANDWIDTH : LATENCY,
                           "-F",
                           "-d",
                           p->device,
                           "-x",
                           gid,
                           "-p",
                           port,
                           "-s",
                           bytes,
                           "-n",
                           times,
                           p->bandwidth ? "--report_gbits" : "-F",
                           p->rank == 1 ? p->leader : NULL,
                           NULL };
    posix_spawn_file_actions_t a;
    int r;

    snprintf(port, sizeof(port), "%d", p->port);
    snprintf(gid, sizeof(gid), "%d", p->gid_index);
    snprintf(bytes, sizeof(bytes), "%zu", p->bytes);
    snprintf(times, sizeof(times), "%d", ITERATIONS);
    if (posix_spawn_file_actions_init(&a) != 0)
        return -ENOMEM;
    posix_spawn_file_actions_addopen(&a, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&a, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&a, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    r = posix_spawn(pid, word[0], &a, NULL, (char *const *)word, none);
    posix_spawn_file_actions_destroy(&a);
    return -r;
}

/* All that the process says until it ends; it is ended when the time is over. */
static int run(const struct perftest *p, int64_t until, char text[TEXT_BYTES])
{
    int fd[2], status = 0, r;
    size_t n = 0;
    pid_t pid;
    ssize_t got = 1;

    if (pipe2(fd, O_CLOEXEC) < 0)
        return -errno;
    r = start(p, fd[1], &pid);
    close(fd[1]);
    while (r == 0 && got > 0 && n < TEXT_BYTES - 1) {
        int left = (int)((until - clock_ns()) / NS_PER_MS);

        if (left <= 0 || poll(&(struct pollfd){ .fd = fd[0], .events = POLLIN }, 1, left) <= 0)
            break;
        got = read(fd[0], text + n, TEXT_BYTES - 1 - n);
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = 0;
    close(fd[0]);
    if (r < 0)
        return r;
    if (got != 0)
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return got != 0 ? -ETIMEDOUT : -EIO;
    return 0;
}

/* The field of the line that begins with the number of bytes. */
static int field_of(const char *text, size_t bytes, int field, double *out)
{
    for (const char *line = text; *line;) {
        const char *end = line + strcspn(line, "\n"), *at = line;
        char *next;
        double v = strtod(at, &next);

        if (next != at && next <= end && v == (double)bytes) {
            for (int i = 0; i < field && next != at && next <= end; i++) {
                at = next;
                v = strtod(at, &next);
            }
            if (next != at && next <= end && isfinite(v)) {
                *out = v;
                return 0;
            }
        }
        line = *end ? end + 1 : end;
    }
    return -EIO;
}

int perftest_run(const struct perftest *p, double *out)
{
    int64_t until = clock_ns() + LIMIT_MS * NS_PER_MS;
    char *text = malloc(TEXT_BYTES);
    int r = text ? run(p, until, text) : -ENOMEM;

    for (int i = 1; p->rank == 1 && r == -EIO && i < TRIES; i++) {
        clock_sleep(AGAIN_MS * NS_PER_MS);
        r = run(p, until, text);
    }
    if (r == 0 && p->rank == 1)
        r = field_of(text, p->bytes, p->bandwidth ? AVERAGE_FIELD : LATENCY_FIELD, out);
    if (r == 0 && p->rank == 1 && p->bandwidth)
        *out /= 8; /* of Gb/s */
    free(text);
    return r;
}
