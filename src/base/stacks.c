/* stacks.c owns SIGUSR2. A thread writes its own frames, in a handler: nobody else can walk them
 * while it runs. */
#include "src/base/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"

enum { FRAMES = 48, ANSWER_MS = 50 };

static atomic_int answered; /* the id of the thread that has written last */

static void write_frames(int signal)
{
    int saved = errno, n;
    void *frame[FRAMES];

    n = backtrace(frame, FRAMES);
    /* the first two are this function and the kernel's way into it */
    if (n > 2)
        backtrace_symbols_fd(frame + 2, n - 2, STDERR_FILENO);
    atomic_store(&answered, (int)syscall(SYS_gettid));
    errno = saved;
}

void stacks_open(void)
{
    struct sigaction act = { .sa_handler = write_frames, .sa_flags = SA_RESTART };
    void *frame[2];

    backtrace(frame, 2); /* loads what it needs, which a handler must not */
    sigfillset(&act.sa_mask);
    sigaction(SIGUSR2, &act, NULL);
}

static void name_of(int tid, char *out, size_t cap)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
    f = fopen(path, "re");
    if (!f || !fgets(out, (int)cap, f))
        snprintf(out, cap, "?");
    if (f)
        fclose(f);
    out[strcspn(out, "\n")] = 0;
}

void stacks_print(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int me = (int)syscall(SYS_gettid), pid = getpid();
    struct dirent *e;

    while (tasks && (e = readdir(tasks))) {
        int tid = atoi(e->d_name);
        int64_t until = clock_ns() + ANSWER_MS * NS_PER_MS;
        char name[32];

        if (tid <= 0 || tid == me)
            continue;
        name_of(tid, name, sizeof(name));
        log_line(LOG_ERR, "stack of thread %d (%s)", tid, name);
        atomic_store(&answered, 0);
        if (syscall(SYS_tgkill, pid, tid, SIGUSR2) < 0)
            continue;
        while (atomic_load(&answered) != tid && clock_ns() < until)
            clock_sleep(NS_PER_MS / 4);
    }
    if (tasks)
        closedir(tasks);
}
