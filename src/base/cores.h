/* cores - the processors that this process may use, and threads that stay on some of them.
 *
 * hwloc (cores_hwloc.c) knows which processors are fast, which share a core and which are near a
 * device; without it (cores_none.c) they are all alike.
 */
#ifndef TANDEM_BASE_CORES_H
#define TANDEM_BASE_CORES_H

#include <pthread.h>

enum { CORES_MAX = 1024 };

/* What is known of a processor; 0 where nothing is. */
struct core {
    int number;  /* as the kernel counts */
    int sibling; /* its place among the processors of one core */
    int speed;   /* higher is faster */
    int near;    /* 1: on the same side of the machine as the device */
};

/* cores_count - how many processors the calling thread may use; of a thread that stays somewhere,
 * could use before */
int cores_count(void);

/* cores_list - these processors, best first: of different cores before two of one, then
 * fast ones, then near ones; at last the lower number, but number 0, which takes most interrupts,
 * behind its equals.
 *
 * in       device: name of an RDMA device that they should be near, "" for none
 * result   how many, at most max; 0 if the kernel does not say */
int cores_list(const char *device, int *out, int max);

/* cores_sort - what cores_list does with what is known */
void cores_sort(struct core *c, int n);

/* cores_look - fill in what is known of n processors: implemented with hwloc, or not at all */
void cores_look(const char *device, struct core *c, int n);

/* cores_stay - the calling thread runs on these processors alone until cores_leave, and remembers
 * where it was before the first call.
 * errors   the errno of the kernel, unlogged: -EINVAL none of them may be used */
int cores_stay(const int *core, int n);
void cores_leave(void);

/* cores_thread - pthread_create, of a thread that does not stay where its maker does. Result as
 * there. */
int cores_thread(pthread_t *t, void *(*fn)(void *arg), void *arg);

#endif
