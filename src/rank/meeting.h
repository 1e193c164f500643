/* meeting - a group that opens on a thread of its own while its rank loads.
 *
 *   open    rank 0 takes its port, so that one that is taken is known before anything is packed;
 *           then all ranks look for each other, and whoever is found first has heartbeats from then
 *           on
 *   wait    the rank has loaded: take the group
 *   refuse  the rank will never load: whoever is there, or comes within a second, hears why and
 *           ends too
 *
 * What ends the opening of a group (other settings, another secret) ends a rank that still loads.
 */
#ifndef TANDEM_RANK_MEETING_H
#define TANDEM_RANK_MEETING_H

#include "src/rank/control.h"

struct meeting;

/* meeting_open - s without listener and cancel; its strings are borrowed until close.
 *
 * in       failed(arg, error) on the meeting's thread, if the group does not open; not after
 *          -ECANCELED
 * errors   those of group_listen; -EAGAIN, -ENOMEM */
int meeting_open(const struct group_settings *s, void (*failed)(void *arg, int r), void *arg,
                 struct meeting **out);

/* meeting_wait - until the group is open or *asked is not 0. errors   those of group_open */
int meeting_wait(struct meeting *m, const atomic_int *asked, struct group **out);

/* meeting_refuse - this rank cannot start, and has logged why: r and the text for the others. *out
 * as above, for group_close; NULL if nobody came. */
void meeting_refuse(struct meeting *m, int r, const char *why, struct group **out);

/* meeting_close - a group that nobody took is closed. NULL is fine. */
void meeting_close(struct meeting *m);

#endif
