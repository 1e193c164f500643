/* stacks - where every thread of this process is, for the log of one that hangs. */
#ifndef TANDEM_BASE_STACKS_H
#define TANDEM_BASE_STACKS_H

/* stacks_open - claim SIGUSR2 for it; before any thread may hang. May be called again. */
void stacks_open(void);

/* stacks_print - the frames of every other thread on stderr, each with its thread's id. A thread
 * that does not answer within 50 ms is left out: it sleeps in the kernel. One caller at a time. */
void stacks_print(void);

#endif
