/* roofline - what a window should take on a device that is described by a few numbers.
 *
 *   product    max(bytes / read rate, decoded weights / decoding rate) + its step
 *   other op   its bytes / read rate + its step
 *   step       launch, latency, what lies behind each other: us at the clock it was measured at,
 *              and what a further row adds; on another device in the ratio of the clocks
 *
 * Experts that R rows of k out of n choose, where they were not counted: the first row has k, and
 * each further one draws (1 - again) k of n independently, which may be there already.
 *
 * A device is a file of configs/devices; figures of the kernels (steps, instructions a decoded
 * weight) are in another file, fitted to what `tandem bench` measured (roof_fit.h).
 */
#ifndef TANDEM_RANK_ROOFLINE_H
#define TANDEM_RANK_ROOFLINE_H

#include <stdbool.h>

struct json_writer;
struct pack;

enum roof_op {
    ROOF_PRODUCT,
    ROOF_LIST,   /* a small product, the first of a call */
    ROOF_JOINED, /* a further one in that call */
    ROOF_EXPERTS,
    ROOF_SITE,
    ROOF_ROUTE,
    ROOF_ATTEND,
    ROOF_KEEP,
    ROOF_NORM,
    ROOF_SELECT,
    ROOF_REST,
    ROOF_CHAIN, /* of a pass: candidates, the chain over them, and the way to the host and back */
    ROOF_OPS
};

#define ROOF_ROWS 16 /* of a window, at most */

struct roof_device {
    char name[32];
    int sms;
    double clock_ghz, read_gbps; /* of reads from memory */
    double exchange_us;          /* of 5,120 values between two ranks */
    /* by rows, 0: not known; measured or published, and different experts that a layer's go to */
    double window_ms[ROOF_ROWS + 1], experts[ROOF_ROWS + 1];
    double pass_ms;
};

struct roof_kernels {
    double clock_ghz;            /* of the device that was measured */
    double instructions;         /* a decoded weight */
    double issue, experts_issue; /* share of issue slots that products use at best */
    double again;                /* share of a row's experts that rows before it are sure to have */
    double step_us[ROOF_OPS], row_us[ROOF_OPS];
};

/* One part of a window. */
struct roof_part {
    const char *title;
    int calls;
    double bytes, weights, us;
};

#define ROOF_PARTS 12

struct roof_window {
    int rows;
    struct roof_part part[ROOF_PARTS];
    int parts;
    double us, bytes;
};

/* roof_read_device, roof_read_kernels - from a file.
 * roof_read_measured - windows, experts and draft pass that `tandem bench --window --json` printed,
 * instead of the device's.
 * errors   -EINVAL naming the key, those of json_read */
int roof_read_device(const char *path, struct roof_device *out);
int roof_read_kernels(const char *path, struct roof_kernels *out);
int roof_read_measured(const char *path, struct roof_device *d);

/* roof_put_kernels - what roof_read_kernels reads. */
void roof_put_kernels(struct json_writer *w, const struct roof_kernels *k);

/* roof_decode_rate - weights a ns that the device decodes with that share of its issue slots. */
double roof_decode_rate(const struct roof_device *d, const struct roof_kernels *k, double issue);

/* roof_window - a window of so many rows, or with `pass` the drafter's pass of its block. */
int roof_window(const struct pack *p, const struct roof_device *d, const struct roof_kernels *k,
                int rows, bool pass, struct roof_window *out);

/* roof_exchanges - sums over ranks in a window. */
int roof_exchanges(const struct pack *p);

#endif
