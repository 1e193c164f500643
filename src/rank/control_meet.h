/* control_meet - how a rank and rank 0 come to know each other: HELLO and PROOF, from both ends. */
#ifndef TANDEM_RANK_CONTROL_MEET_H
#define TANDEM_RANK_CONTROL_MEET_H

#include "src/rank/control_door.h"
#include "src/rank/control_wire.h"

struct group_settings;

/* secret_load - the secret of these settings.
 * errors   -EINVAL none given, shorter than 32 bytes, or no_secret beyond loopback; -EACCES others
 *          may read it; -ENOENT */
int secret_load(const struct group_settings *s, struct control_secret *out);

/* control_host - host of a rank in these settings */
const char *control_host(const struct group_settings *s, int rank);

/* meet_guest - rank 0 takes the bytes that door_wait has returned for a guest one step further.
 *
 * result   1 and *out with *theirs, once the peer has proved the secret; the guest's place is free.
 *          Its numbers have not been compared with ours yet. 0 not there yet, or dismissed
 * errors   of the own machine only
 */
int meet_guest(const struct group_settings *s, const struct control_secret *secret, struct door *d,
               struct door_guest *g, struct control_hello *theirs, struct wire **out);

/* meet_leader - connect to rank 0 and prove; tries again until connect_timeout_ms.
 *
 * errors   -EACCES the secrets differ, -ETIMEDOUT nobody answered, -EHOSTUNREACH, -ECANCELED,
 *          -EMFILE
 */
int meet_leader(const struct group_settings *s, const struct control_secret *secret,
                struct control_hello *theirs, struct wire **out);

/* meet_compare - protocol and world of an authentic HELLO against ours; -EINVAL naming both. The
 * line is kept in why, for the peer. */
int meet_compare(const struct group_settings *s, const struct control_hello *theirs, char *why,
                 size_t cap);

/* control_connect - a connected socket that does not block.
 * errors   the errno of connect; -ETIMEDOUT after wait_ms; -ECANCELED once *cancel (or NULL) says
 *          so; unlogged */
int control_connect(const struct door_address *to, int wait_ms, const atomic_int *cancel, int *fd);

/* control_exactly - n bytes from a socket until `until_ns`, or until *cancel (or NULL).
 * errors   -ECONNRESET, -ETIMEDOUT, -ECANCELED, unlogged */
int control_exactly(int fd, void *out, size_t n, int64_t until_ns, const atomic_int *cancel);

#endif
