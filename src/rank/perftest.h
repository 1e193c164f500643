/* perftest - what ib_write_lat and ib_write_bw measure on the link between rank 0 and rank 1,
 * beside figures of our own.
 *
 * The programs are a package of their own (perftest) and are run as they are: rank 0 serves, rank 1
 * asks.
 */
#ifndef TANDEM_RANK_PERFTEST_H
#define TANDEM_RANK_PERFTEST_H

#include <stdbool.h>
#include <stddef.h>

struct perftest {
    int rank;           /* 0 or 1 */
    const char *leader; /* address of rank 0 */
    int port;           /* that rank 0 may listen at */
    const char *device;
    int gid_index;
    bool bandwidth; /* ib_write_bw, else ib_write_lat */
    size_t bytes;
};

/* perftest_there - whether this machine has both programs */
bool perftest_there(void);

/* perftest_run - both ranks at about the same time; at most half a minute.
 *
 * result   on rank 1 in *out: us that a write takes one way (typical), or GB/s (average)
 * errors   -EIO the program said no, or nothing that can be read; -ETIMEDOUT; both unlogged */
int perftest_run(const struct perftest *p, double *out);

#endif
