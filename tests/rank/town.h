/* town - the ranks of a test as groups: their settings, one secret, what each of them logs; and
 * strangers who knock. */
#ifndef TANDEM_TESTS_RANK_TOWN_H
#define TANDEM_TESTS_RANK_TOWN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "src/rank/control.h"
#include "src/rank/control_wire.h"
#include "tests/transport/wires.h"

extern const char agree_text[];

/* Everything that the ranks of a test share. */
struct town {
    struct group_settings set[WIRES_MAX];
    struct group_hub *hub;
    char secret[64];
    int holder; /* bound to the port and never listening: nobody else gets it meanwhile */
    struct group *group[WIRES_MAX];
    int result[WIRES_MAX];
    int64_t ns[WIRES_MAX];
    char log[WIRES_MAX][4096]; /* lines of a rank */
    atomic_int fails[WIRES_MAX];
    atomic_int go;
};

/* town_open - settings of `world` ranks over a link, which a test may change before it opens
 * them. */
void town_open(struct town *t, const char *link, int world);
void town_close(struct town *t);

/* open_rank - group_open of one rank, for wires_run; its time is kept. */
void open_rank(int rank, void *town);

/* write_secret - a new file of this text; its path has room for 64 bytes. */
void write_secret(char *path, const char *text, mode_t mode);

/* wait_failed - the group's failure, 0 if there is none within ms. */
int wait_failed(struct group *g, int ms);

/* bound - a socket on a port of the loopback, 0 for any, that may be another one's as long as
 * nobody listens there. */
int bound(int port);

/* knock - a connection to a port of the loopback as soon as somebody listens there. */
int knock(int port);

/* hung_up - the other end closes, sooner or later. */
int hung_up(int fd);

/* prove - a control connection to rank 0 that knows the secret, with a HELLO of one's own. */
struct wire *prove(struct town *t, struct control_hello *mine);

/* as_far_as_the_table - a follower made of parts, before or after it has heard the table; its
 * control connection. */
struct wire *as_far_as_the_table(struct town *t, int rank, bool table);

/* put_raw - a frame's header, and zeros for its MAC. */
void put_raw(struct wire *w, uint32_t length, uint32_t kind, uint64_t counter);

#endif
