/* backend.c owns the list of backends and the error a queue keeps. */
#include "kernels/backend.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend_table.h"
#include "kernels/ops.h"
#include "kernels/ref/ref.h"
#include "src/base/log.h"

/* Slowest first: auto takes the last one that finds a device. */
static const struct backend_ops *const backends[] = { &backend_ref, &backend_cpu, &backend_cuda };

#define BACKENDS ((int)(sizeof(backends) / sizeof(backends[0])))

static int backend_serves(const struct backend_ops *b)
{
    char why[160];

    if (b->probe(0, why, sizeof(why)) == 0)
        return 1;
    log_debug("backend %s is left out: %s", b->name, why);
    return 0;
}

int backend_find(const char *name, const struct backend_ops **out)
{
    char built[128] = "";
    int is_auto = strcmp(name, "auto") == 0;

    for (int i = BACKENDS - 1; i >= 0; i--) {
        if (is_auto ? backend_serves(backends[i]) : strcmp(name, backends[i]->name) == 0) {
            *out = backends[i];
            return 0;
        }
    }
    for (int i = 0; i < BACKENDS; i++) {
        strncat(built, i ? ", " : "", sizeof(built) - strlen(built) - 1);
        strncat(built, backends[i]->name, sizeof(built) - strlen(built) - 1);
    }
    return fail(-ENODEV, "backend %s is not built, there is: %s", name, built);
}

bool queue_fetch(struct queue *q, const struct bring_args *a)
{
    int64_t flag;

    if (q->err)
        return false;
    a->fetch(a->arg);
    flag = __atomic_load_n(a->flag, __ATOMIC_ACQUIRE);
    assert(flag != 0);
    if (flag < 0)
        q->err = (int)flag;
    return flag > 0;
}

void queue_fail(struct queue *q, int r, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    if (q->err)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    q->err = fail(r, "%s", text);
}
