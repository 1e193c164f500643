/* roof_fit.c owns the sums of least squares, and which kind of op a measured line is. */
#include "src/rank/roof_fit.h"

#include "src/base/json.h"
#include "src/base/log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)1 << 20)
#define NESTING 64
#define LINES 1024
#define UNKNOWNS 3

/* Points of one kind of op: us = x . coefficients, each as often as it is called. */
struct squares {
    double a[UNKNOWNS][UNKNOWNS], b[UNKNOWNS];
};

static void squares_add(struct squares *s, const double *x, double y, double weight)
{
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int j = 0; j < UNKNOWNS; j++)
            s->a[i][j] += weight * x[i] * x[j];
        s->b[i] += weight * x[i] * y;
    }
}

/* Coefficients; one that the points do not tell is 0. Columns are scaled by their own length before
 * pivots are compared. */
static void squares_solve(const struct squares *from, double *out)
{
    struct squares s = *from;
    double scale[UNKNOWNS];

    for (int i = 0; i < UNKNOWNS; i++)
        scale[i] = s.a[i][i] > 0 ? 1 / sqrt(s.a[i][i]) : 0;
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int j = 0; j < UNKNOWNS; j++)
            s.a[i][j] *= scale[i] * scale[j];
        s.b[i] *= scale[i];
    }
    for (int i = 0; i < UNKNOWNS; i++) {
        if (s.a[i][i] < 1e-9) { /* said by those before it */
            for (int j = 0; j < UNKNOWNS; j++)
                s.a[i][j] = s.a[j][i] = 0;
            s.a[i][i] = 1;
            s.b[i] = 0;
            continue;
        }
        for (int j = i + 1; j < UNKNOWNS; j++) {
            double by = s.a[j][i] / s.a[i][i];

            for (int k = i; k < UNKNOWNS; k++)
                s.a[j][k] -= by * s.a[i][k];
            s.b[j] -= by * s.b[i];
        }
    }
    for (int i = UNKNOWNS - 1; i >= 0; i--) {
        for (int j = i + 1; j < UNKNOWNS; j++)
            s.b[i] -= s.a[i][j] * s.b[j];
        s.b[i] /= s.a[i][i];
    }
    for (int i = 0; i < UNKNOWNS; i++)
        out[i] = s.b[i] * scale[i];
}

/* ---- measured lines -------------------------------------------------------------------------- */

struct measured {
    const char *op, *what;
    int rows, calls;
    double us, bytes, weights;
};

static int read_line(const struct json *o, struct measured *m)
{
    int r = json_str(o, "op", &m->op);

    if (r == 0)
        r = json_str(o, "what", &m->what);
    if (r == 0)
        r = json_int(o, "rows", 1, 64, &m->rows);
    if (r == 0)
        r = json_int(o, "calls", 1, 1 << 16, &m->calls);
    if (r == 0)
        r = json_f64(o, "us", &m->us);
    if (r == 0)
        r = json_f64(o, "bytes", &m->bytes);
    return r == 0 ? json_f64(o, "weights", &m->weights) : r;
}

/* By what the forward pass calls: matmuls is the op of small products, several of one input in one
 * call. */
static enum roof_op kind_of(const struct measured *m)
{
    static const struct {
        const char *op;
        enum roof_op kind;
    } kinds[] = { { "matmul", ROOF_PRODUCT }, { "matmuls", ROOF_LIST }, { "moe", ROOF_EXPERTS },
                  { "hc_site", ROOF_SITE },   { "route", ROOF_ROUTE },  { "attend", ROOF_ATTEND },
                  { "row_keeps", ROOF_KEEP }, { "rmsnorm", ROOF_NORM }, { "select", ROOF_SELECT } };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(m->op, kinds[i].op) == 0)
            return kinds[i].kind;
    return ROOF_REST;
}

static int joined(const char *what)
{
    int n = 0;

    for (; *what; what++)
        n += *what == '+';
    return n;
}

/* us that the decoding of a call's weights takes. */
static double work_us(const struct roof_device *d, const struct roof_kernels *k, double issue,
                      const struct measured *m)
{
    return fmax(m->weights / roof_decode_rate(d, k, issue), m->bytes / d->read_gbps) / 1e3;
}

/* The rates first: of products by step, rows and weights; of experts by step and weights, which
 * rows bring. */
static void fit_rates(const struct roof_device *d, const struct measured *m, int n,
                      struct roof_kernels *k)
{
    struct squares s[2] = { 0 };
    double c[UNKNOWNS], *const share[2] = { &k->issue, &k->experts_issue };

    for (int i = 0; i < n; i++) {
        enum roof_op kind = kind_of(&m[i]);
        bool experts = kind == ROOF_EXPERTS;

        if (m[i].weights <= 0 || (kind != ROOF_PRODUCT && !experts))
            continue;
        squares_add(&s[experts],
                    (const double[]){ 1, m[i].weights / 1e3, experts ? 0 : m[i].rows - 1 }, m[i].us,
                    m[i].calls);
    }
    for (int i = 0; i < 2; i++) {
        squares_solve(&s[i], c);
        if (c[1] > 0)
            *share[i] = 1 / (c[1] * roof_decode_rate(d, k, 1));
    }
}

static void fit_steps(const struct roof_device *d, const struct measured *m, int n,
                      struct roof_kernels *k)
{
    struct squares s[ROOF_OPS] = { 0 };
    double c[UNKNOWNS];

    for (int i = 0; i < n; i++) {
        enum roof_op kind = kind_of(&m[i]);
        double issue = kind == ROOF_EXPERTS ? k->experts_issue : k->issue;

        squares_add(&s[kind],
                    (const double[]){ 1, kind == ROOF_EXPERTS ? 0 : m[i].rows - 1,
                                      kind == ROOF_LIST ? joined(m[i].what) : 0 },
                    m[i].us - work_us(d, k, issue, &m[i]), m[i].calls);
    }
    for (int op = 0; op < ROOF_OPS; op++) {
        if (op == ROOF_JOINED || op == ROOF_CHAIN)
            continue;
        squares_solve(&s[op], c);
        k->step_us[op] = fmax(c[0], 0);
        k->row_us[op] = fmax(c[1], 0);
        if (op == ROOF_LIST) {
            k->step_us[ROOF_JOINED] = fmax(c[2], 0);
            k->row_us[ROOF_JOINED] = 0;
        }
    }
}

/* ---- windows --------------------------------------------------------------------------------- */

static void scale(double *us, double by)
{
    for (int op = 0; op < ROOF_OPS; op++)
        us[op] *= by;
}

/* The share of steps that a window of one row shows, then that of what rows add which the others
 * show. *off is what is left: the mean square of their errors. */
static int fit_shares(const struct pack *p, const struct roof_device *d, struct roof_kernels *k,
                      double *off)
{
    struct roof_kernels without = *k;
    struct roof_window w, least;
    double up = 0, down = 0, square = 0, share;
    int r, n = 0;

    scale(without.step_us, 0);
    r = roof_window(p, d, k, 1, false, &w);
    if (r == 0)
        r = roof_window(p, d, &without, 1, false, &least);
    if (r < 0)
        return r;
    if (w.us > least.us)
        scale(k->step_us, fmax(d->window_ms[1] * 1e3 - least.us, 0) / (w.us - least.us));
    without = *k;
    scale(without.row_us, 0);
    for (int rows = 2; rows <= ROOF_ROWS && r == 0; rows++) {
        double us = d->window_ms[rows] * 1e3, more, rest;

        if (us <= 0)
            continue;
        r = roof_window(p, d, k, rows, false, &w);
        if (r == 0)
            r = roof_window(p, d, &without, rows, false, &least);
        more = (w.us - least.us) / us;
        rest = (us - least.us) / us;
        up += more * rest;
        down += more * more;
        square += rest * rest;
        n++;
    }
    share = down > 0 ? fmin(fmax(up / down, 0), 1) : 1;
    scale(k->row_us, share);
    *off = n > 0 ? (square - 2 * share * up + share * share * down) / n : 0;
    return r;
}

/* Experts decode faster behind each other than alone and cold: of the rates around the fitted one,
 * that whose windows are closest; itself where windows of one row say nothing of it. */
static int fit_overlap(const struct pack *p, const struct roof_device *d, struct roof_kernels *k)
{
    const struct roof_kernels alone = *k;
    double off, best = INFINITY;
    int r = 0;

    if (d->window_ms[1] <= 0)
        return fail(-EINVAL, "roofline: no window of one row was measured");
    for (int percent = 80; percent <= 160 && r == 0; percent++) {
        struct roof_kernels t = alone;

        t.experts_issue *= percent / 100.0;
        r = fit_shares(p, d, &t, &off);
        if (r == 0 && (off < best || (off <= best && percent == 100))) {
            best = off;
            *k = t;
        }
    }
    return r;
}

/* What a pass has beyond what its weights stand for. */
static int fit_chain(const struct pack *p, const struct roof_device *d, struct roof_kernels *k)
{
    struct roof_window w;
    int r;

    k->step_us[ROOF_CHAIN] = k->row_us[ROOF_CHAIN] = 0;
    if (d->pass_ms <= 0)
        return 0;
    r = roof_window(p, d, k, 1, true, &w);
    if (r == 0)
        k->step_us[ROOF_CHAIN] = fmax(d->pass_ms * 1e3 - w.us, 0);
    return r;
}

int roof_fit(const char *path, const struct pack *p, const struct roof_device *d,
             struct roof_kernels *k)
{
    struct measured *m;
    const struct json *lines;
    struct json *root;
    int n = 0, r = json_read(path, FILE_BYTES, NESTING, &root);

    if (r < 0)
        return r;
    m = malloc(LINES * sizeof(*m));
    if (!m) {
        json_close(root);
        return fail(-ENOMEM, "roofline: no memory");
    }
    k->clock_ghz = d->clock_ghz;
    r = json_get_array(root, "kernels", &lines);
    for (size_t i = 0; r == 0 && i < json_count(lines) && n < LINES; i++)
        r = read_line(json_at(lines, i), &m[n++]);
    if (r == 0) {
        fit_rates(d, m, n, k);
        fit_steps(d, m, n, k);
        r = fit_overlap(p, d, k);
        if (r == 0)
            r = fit_chain(p, d, k);
    }
    free(m);
    json_close(root);
    return r;
}
