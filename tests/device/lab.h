/* lab - where ops of the CUDA backend are held to the reference: the same buffers on both sides.
 *
 * A case lists its buffers and has one function that calls the op on buffers of either side.
 * lab_run does the rest:
 *   the reference and the device compute all rows, and each output is compared within its
 *   tolerance; every row alone, and the first R rows for R = 1 .. ROWS, have the bits of all rows
 *   together.
 * Device outputs are poisoned before each call, so a value that nobody wrote is a difference.
 */
#ifndef TANDEM_TESTS_DEVICE_LAB_H
#define TANDEM_TESTS_DEVICE_LAB_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/numfmt.h"
#include "kernels/ops.h"
#include "src/base/rng.h"

#define LAB_ROWS 16
#define LAB_BUFS 24
#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

struct lab {
    struct device *ref_dev, *dev;
    struct queue *ref_q, *q;
    const char *op; /* being tested */
    int cases, failures;
    bool quick; /* the device alone and each case once, for tools that make a program slow */
    bool few;   /* of quick: a few cases for every kernel */
    /* cases of more bytes are left out, and of the others most runs of fewer rows; 0: none */
    size_t most;
    int left_out;
    double worst; /* of this op, as a share of its tolerance */
    uint64_t seed;
};

enum buf_kind {
    BUF_IN,
    BUF_OUT, /* poisoned on the device */
    BUF_INOUT,
    BUF_SPENT, /* what the op leaves in it does not matter */
    BUF_MATS,  /* struct mat [n] whose blobs lie in buffer `blob` */
    BUF_SCRATCH
};

enum buf_type { BUF_F32, BUF_BYTES };

struct buf {
    void *host;
    size_t bytes;
    enum buf_kind kind;
    enum buf_type type;
    size_t row_bytes; /* of an output: what belongs to a row; 0: not by row */
    double tol;       /* F32 outputs: largest |difference| / max(1, |ref|); 0: bit for bit */
    int blob;
};

struct trial;
typedef void trial_fn(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows);

struct trial {
    struct lab *lab;
    char name[96];
    trial_fn *run; /* the op for rows row .. row + rows - 1 */
    const void *shape;
    int rows;
    bool alone; /* rows may be run alone; not where an op reads its row's neighbours */
    struct buf buf[LAB_BUFS];
    int bufs;
};

int lab_open(struct lab *l); /* 77 if there is no device: the reason was printed */
void lab_close(struct lab *l);

/* lab_begin - the op whose cases follow; lab_end prints one line about them. */
void lab_begin(struct lab *l, const char *op);
void lab_end(struct lab *l);

__attribute__((format(printf, 2, 3))) void lab_fail(struct lab *l, const char *fmt, ...);

/* trial_* - fill in a case; the returned host memory is the trial's and freed by lab_run. */
__attribute__((format(printf, 6, 7))) void trial_begin(struct trial *t, struct lab *l,
                                                       trial_fn *run, const void *shape, int rows,
                                                       const char *fmt, ...);
void *trial_buf(struct trial *t, enum buf_kind kind, enum buf_type type, size_t bytes,
                size_t row_bytes, double tol);
float *trial_in(struct trial *t, size_t n, float by);      /* random in -by .. by */
float *trial_out(struct trial *t, size_t row, double tol); /* row values a row */
float *trial_inout(struct trial *t, size_t row, float by, double tol);
void *trial_scratch(struct trial *t, size_t bytes);
struct row_info *trial_info(struct trial *t, const int *pos, int slots);
/* one matrix, in a buffer of its own */
struct mat trial_mat(struct trial *t, int rows, int cols, enum dtype type, float by);

void lab_run(struct trial *t);

/* lab_refuse - all rows, on the device alone: the wait says `want`. */
void lab_refuse(struct trial *t, int want);

/* lab_beside - two cases at once, `times` times with random pauses, each on a queue of its own:
 * both leave the bits that they leave alone. */
void lab_beside(struct trial *t, struct trial *other, int times);

/* random values */
float lab_uniform(struct lab *l);
int lab_below(struct lab *l, int n);

void ops_dense(struct lab *l);
void ops_hyper(struct lab *l);
void ops_state(struct lab *l);
void ops_attend(struct lab *l);
void ops_experts(struct lab *l);
void ops_pick(struct lab *l);
void ops_quant(struct lab *l);
void ops_offer(struct lab *l);
void ops_window(struct lab *l);

#endif
