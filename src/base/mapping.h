/* mapping - files mapped for reading, and a page of one that is not there any more.
 *
 * Who reads a page behind the end of a file that was truncated, or that the disk does not give,
 * gets SIGBUS. In a mapping of this file that is an error with a name:
 *
 *   somebody watches (watch.h)   the reading thread stops for ever; the watcher asks mapping_lost,
 *                                says it and ends the process in its own way
 *   nobody does                  the line goes to stderr and the process leaves with the guard's
 *                                code
 *
 * A SIGBUS anywhere else is a fault of our own and kills as ever.
 */
#ifndef TANDEM_BASE_MAPPING_H
#define TANDEM_BASE_MAPPING_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* mapping_guard - claim SIGBUS; code is what the process leaves with where nobody watches. */
void mapping_guard(int code);

/* mapping_open - the first `bytes` of a file; name, for messages, is borrowed until close.
 * errors   the errno of mmap, unlogged; -EMFILE above 64 mappings */
int mapping_open(int fd, size_t bytes, const char *name, const void **out);
void mapping_close(const void *at, size_t bytes);

/* mapping_scattered - single places of these bytes are read, and not what lies around them: nothing
 * is read ahead, but by mapping_need, which begins to read bytes that somebody will soon want.
 * Hints. */
void mapping_scattered(const void *at, size_t bytes);
void mapping_need(const void *at, size_t bytes);

/* mapping_block - block all other signals but SIGUSR2 (stacks.h) in the calling thread and those
 * that it starts: SIGBUS in a thread that has it blocked kills. *old is for pthread_sigmask. */
void mapping_block(sigset_t *old);

/* mapping_watch - one watcher more, or one less. */
void mapping_watch(bool begin);

/* mapping_lost - a page was missing since guard: true once, for one watcher, with the line. Any
 * thread. */
bool mapping_lost(char *out, size_t cap);

#endif
