/* meter - how far long work is: one line on stderr that is written over as the work goes on.
 *
 * Only where stderr is a terminal; elsewhere nothing is written. Not for several threads at a time.
 */
#ifndef TANDEM_BASE_METER_H
#define TANDEM_BASE_METER_H

#include <stdbool.h>
#include <stdint.h>

enum meter_unit { METER_BYTES, METER_ITEMS };

struct meter {
    const char *what; /* borrowed */
    enum meter_unit unit;
    uint64_t done, total;
    int64_t start_ns, shown_ns; /* shown_ns 0: no line is there */
    bool terminal;
};

/* meter_begin - of `total` units none are done. */
void meter_begin(struct meter *p, const char *what, enum meter_unit unit, uint64_t total);

/* meter_add - n more are done; the line is at most renewed a few times a second. */
void meter_add(struct meter *p, uint64_t n);

/* meter_end - the line is gone. */
void meter_end(struct meter *p);

#endif
