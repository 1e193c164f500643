#include "tests/device/lab.h"

#include <pthread.h>
#include <stdarg.h>

#include "src/base/clock.h"
#include "src/base/cores.h"
#include "tests/device/parts.h"

#define FEW 2
#define FIRST 40
#define POISON 0xff /* every f32 of it is a NaN, every int -1 */

int lab_open(struct lab *l)
{
    const struct backend_ops *ref, *cuda;
    char why[160];
    int threads;

    *l = (struct lab){ .seed = 20 };
    if (backend_find("ref", &ref) < 0 || backend_find("cuda", &cuda) < 0)
        return 1;
    if (cuda->probe(0, why, sizeof(why)) < 0) {
        printf("skipped: cuda: %s\n", why);
        return 77;
    }
    if (cuda->open(0, 1, &l->dev) < 0)
        return 1;
    threads = cores_count(); /* no more than have room in the scratch of a trial */
    if (ref->open(0, threads < l->dev->workers ? threads : l->dev->workers, &l->ref_dev) < 0)
        return 1;
    if (ref->queue_open(l->ref_dev, &l->ref_q) < 0 || cuda->queue_open(l->dev, &l->q) < 0)
        return 1;
    return 0;
}

void lab_close(struct lab *l)
{
    l->ref_dev->ops->queue_close(l->ref_q);
    l->dev->ops->queue_close(l->q);
    l->ref_dev->ops->close(l->ref_dev);
    l->dev->ops->close(l->dev);
}

void lab_begin(struct lab *l, const char *op)
{
    l->op = op;
    l->cases = l->left_out = 0;
    l->worst = 0;
}

void lab_end(struct lab *l)
{
    printf("%-12s %4d cases, largest difference %.3g of its tolerance", l->op, l->cases, l->worst);
    if (l->left_out)
        printf("; %d of more than %zu bytes left out", l->left_out, l->most);
    printf("\n");
    fflush(stdout);
}

void lab_fail(struct lab *l, const char *fmt, ...)
{
    va_list ap;

    if (++l->failures > 40)
        return;
    printf("FAILED %s: ", l->op);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
}

float lab_uniform(struct lab *l)
{
    return synth_uniform(7, l->seed++);
}

int lab_below(struct lab *l, int n)
{
    return (int)(philox4x32((uint32_t)l->seed++, 1, 2, 3, 4).w[0] % (uint32_t)n);
}

/* ---- cases ----------------------------------------------------------------------------------- */

void trial_begin(struct trial *t, struct lab *l, trial_fn *run, const void *shape, int rows,
                 const char *fmt, ...)
{
    va_list ap;

    *t = (struct trial){ .lab = l, .run = run, .shape = shape, .rows = rows, .alone = true };
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof(t->name), fmt, ap);
    va_end(ap);
}

void *trial_buf(struct trial *t, enum buf_kind kind, enum buf_type type, size_t bytes,
                size_t row_bytes, double tol)
{
    struct buf *b = &t->buf[t->bufs++];

    *b = (struct buf){
        .bytes = bytes, .kind = kind, .type = type, .row_bytes = row_bytes, .tol = tol
    };
    b->host = calloc(1, bytes + 64);
    if (!b->host || t->bufs > LAB_BUFS)
        abort();
    return b->host;
}

float *trial_in(struct trial *t, size_t n, float by)
{
    float *x = trial_buf(t, BUF_IN, BUF_F32, n * sizeof(float), 0, 0);

    for (size_t i = 0; i < n; i++)
        x[i] = lab_uniform(t->lab) * by;
    return x;
}

float *trial_out(struct trial *t, size_t row, double tol)
{
    return trial_buf(t, BUF_OUT, BUF_F32, row * (size_t)t->rows * sizeof(float),
                     row * sizeof(float), tol);
}

float *trial_inout(struct trial *t, size_t row, float by, double tol)
{
    float *x = trial_in(t, row * (size_t)t->rows, by);
    struct buf *b = &t->buf[t->bufs - 1];

    b->kind = BUF_INOUT;
    b->row_bytes = row * sizeof(float);
    b->tol = tol;
    return x;
}

void *trial_scratch(struct trial *t, size_t bytes)
{
    return trial_buf(t, BUF_SCRATCH, BUF_BYTES, bytes, 0, 0);
}

/* Rows belong to slots in turn; pos NULL: random. */
struct row_info *trial_info(struct trial *t, const int *pos, int slots)
{
    struct row_info *info = trial_buf(t, BUF_IN, BUF_BYTES, sizeof(*info) * (size_t)t->rows, 0, 0);

    for (int r = 0; r < t->rows; r++)
        info[r] = (struct row_info){ .slot = r % slots,
                                     .pos = pos ? pos[r] : lab_below(t->lab, 100000),
                                     .first = 0 };
    return info;
}

struct mat trial_mat(struct trial *t, int rows, int cols, enum dtype type, float by)
{
    struct mat m = { .dtype = type, .rows = rows, .cols = cols };
    size_t bytes = mat_bytes(rows, cols, type);
    void *data = trial_buf(t, BUF_IN, BUF_BYTES, bytes, 0, 0);

    for (int n = 0; n < rows; n++)
        for (int k = 0; k < cols; k++) {
            size_t at = (size_t)(n / MAT_TILE) * MAT_TILE * (size_t)cols + (size_t)k * MAT_TILE +
                        (size_t)(n % MAT_TILE);
            float v = lab_uniform(t->lab) * by;

            if (type == DTYPE_F32)
                ((float *)data)[at] = v;
            else
                ((uint16_t *)data)[at] = type == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        }
    m.data = data;
    return m;
}

/* ---- running --------------------------------------------------------------------------------- */

struct side {
    void *b[LAB_BUFS];   /* addresses of this side */
    void *out[LAB_BUFS]; /* host copies of outputs afterwards */
};

static void run_ref(const struct trial *t, struct side *s)
{
    struct lab *l = t->lab;

    for (int i = 0; i < t->bufs; i++) {
        s->b[i] = malloc(t->buf[i].bytes + 64);
        memcpy(s->b[i], t->buf[i].host, t->buf[i].bytes);
        s->out[i] = s->b[i];
    }
    t->run(t, l->ref_dev->ops->op, l->ref_q, s->b, 0, t->rows);
    if (l->ref_dev->ops->wait(l->ref_q) != 0)
        lab_fail(l, "%s: the reference failed", t->name);
}

static void open_device(const struct trial *t, struct side *s)
{
    for (int i = 0; i < t->bufs; i++) {
        if (t->lab->dev->ops->alloc(t->lab->dev, t->buf[i].bytes, &s->b[i]) < 0)
            abort();
        s->out[i] = malloc(t->buf[i].bytes + 64);
    }
}

static void close_side(const struct trial *t, struct side *s, bool device)
{
    for (int i = 0; i < t->bufs; i++) {
        if (device)
            t->lab->dev->ops->free(t->lab->dev, s->b[i]);
        free(s->out[i]);
    }
}

static void upload(const struct trial *t, struct side *s, int i)
{
    const struct buf *b = &t->buf[i];
    struct queue *q = t->lab->q;
    void *copy = malloc(b->bytes + 64);

    memcpy(copy, b->host, b->bytes);
    if (b->kind == BUF_OUT || b->kind == BUF_SCRATCH)
        memset(copy, POISON, b->bytes);
    for (size_t m = 0; b->kind == BUF_MATS && m < b->bytes / sizeof(struct mat); m++) {
        struct mat *mat = (struct mat *)copy + m;

        mat_place(mat, (char *)s->b[b->blob] +
                           ((const char *)mat->data - (const char *)t->buf[b->blob].host));
    }
    q->ops->put(q, s->b[i], copy, b->bytes);
    free(copy);
}

/* The op on the device for some rows; false if the queue failed. */
static bool run_device(const struct trial *t, struct side *s, int row, int rows, bool fresh)
{
    struct lab *l = t->lab;
    struct queue *q = l->q;
    int r;

    for (int i = 0; i < t->bufs && fresh; i++)
        if (t->buf[i].kind == BUF_IN)
            upload(t, s, i);
    /* some are weights, which an op may read before those in front have ended */
    if (fresh && q->ops->wait(q) != 0)
        lab_fail(l, "%s: inputs do not arrive", t->name);
    for (int i = 0; i < t->bufs; i++)
        if ((fresh && t->buf[i].kind != BUF_IN) || t->buf[i].kind == BUF_OUT ||
            t->buf[i].kind == BUF_INOUT || t->buf[i].kind == BUF_SPENT)
            upload(t, s, i);
    t->run(t, l->dev->ops->op, q, s->b, row, rows);
    for (int i = 0; i < t->bufs; i++)
        if (t->buf[i].kind == BUF_OUT || t->buf[i].kind == BUF_INOUT)
            q->ops->get(q, s->out[i], s->b[i], t->buf[i].bytes);
    r = q->ops->wait(q);
    if (r != 0)
        lab_fail(l, "%s: %d rows from %d: the queue says %d", t->name, rows, row, r);
    return r == 0;
}

static void close_trial(const struct trial *t, struct side *dev)
{
    close_side(t, dev, true);
    for (int i = 0; i < t->bufs; i++)
        free(t->buf[i].host);
}

/* A NaN is a NaN: which one an operation makes is the machine's business. */
static bool both_nan(const struct buf *b, const void *x, const void *y, size_t at)
{
    return b->type == BUF_F32 && isnan(((const float *)x)[at / 4]) &&
           isnan(((const float *)y)[at / 4]);
}

static void compare_ref(const struct trial *t, const struct side *want, const struct side *got)
{
    for (int i = 0; i < t->bufs; i++) {
        const struct buf *b = &t->buf[i];
        size_t n = b->bytes / sizeof(float);
        double worst = 0;
        size_t at = 0;

        if (b->kind != BUF_OUT && b->kind != BUF_INOUT)
            continue;
        if (b->tol == 0) {
            const unsigned char *x = want->out[i], *y = got->out[i];

            for (at = 0; at < b->bytes && (x[at] == y[at] || both_nan(b, x, y, at)); at++)
                ;
            if (at < b->bytes)
                lab_fail(t->lab,
                         "%s: buffer %d differs from byte %zu of %zu on (word %08x, want %08x)",
                         t->name, i, at, b->bytes, ((const uint32_t *)y)[at / 4],
                         ((const uint32_t *)x)[at / 4]);
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            double x = ((const float *)want->out[i])[k], y = ((const float *)got->out[i])[k];
            double e = fabs(x - y) / fmax(1, fabs(x));

            if (isnan(x) && isnan(y))
                e = 0;
            if (x == y)
                e = 0;
            if (e > worst || isnan(e)) {
                worst = isnan(e) ? INFINITY : e;
                at = k;
            }
        }
        if (worst / b->tol > t->lab->worst)
            t->lab->worst = worst / b->tol;
        if (worst > b->tol)
            lab_fail(t->lab, "%s: buffer %d value %zu is %.9g, want %.9g", t->name, i, at,
                     (double)((const float *)got->out[i])[at],
                     (double)((const float *)want->out[i])[at]);
    }
}

static bool same_rows(const struct buf *b, const char *x, const char *y, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && (x[at] == y[at] || both_nan(b, x, y, at)))
        at++;
    return at == bytes;
}

/* Rows row .. row + rows - 1 of every output by row have the bits they have in `all`. */
static void compare_rows(const struct trial *t, const struct side *all, const struct side *got,
                         int row, int rows)
{
    for (int i = 0; i < t->bufs; i++) {
        const struct buf *b = &t->buf[i];
        size_t at = (size_t)row * b->row_bytes;

        if ((b->kind != BUF_OUT && b->kind != BUF_INOUT) || b->row_bytes == 0)
            continue;
        if (!same_rows(b, (char *)all->out[i] + at, (char *)got->out[i] + at,
                       (size_t)rows * b->row_bytes))
            lab_fail(t->lab, "%s: buffer %d: %d rows from %d have other bits than %d rows", t->name,
                     i, rows, row, t->rows);
    }
}

/* Whether the op for so many rows launches a kernel that was launched in less than FEW cases: it is
 * captured to see that. */
static bool has_rare_kernel(const struct trial *t, struct side *s, int rows)
{
    const struct backend_ops *b = t->lab->dev->ops;
    struct queue *q = t->lab->q;
    struct graph *g = NULL;

    (void)kernels_least();
    if (b->graph_begin(q) != 0)
        return true;
    t->run(t, b->op, q, s->b, 0, rows);
    if (b->graph_end(q, &g) != 0)
        return true;
    b->graph_close(g);
    return kernels_least() < 2 * FEW; /* each is captured and run */
}

/* All rows, and one to four where those have kernels of their own: the first cases of an op show
 * that. */
static void run_quick(struct trial *t, struct side *dev)
{
    if (!t->lab->few || has_rare_kernel(t, dev, t->rows))
        run_device(t, dev, 0, t->rows, true);
    for (int n = 1; t->alone && t->lab->cases <= FIRST && n <= 4 && n < t->rows; n *= 2)
        if (has_rare_kernel(t, dev, n))
            run_device(t, dev, 0, n, true);
}

/* Whether the case is one of those that are too large to be run. */
static bool too_large(struct trial *t)
{
    size_t bytes = 0;

    for (int i = 0; i < t->bufs; i++)
        bytes += t->buf[i].kind == BUF_SCRATCH ? 0 : t->buf[i].bytes;
    if (t->lab->most == 0 || bytes <= t->lab->most)
        return false;
    for (int i = 0; i < t->bufs; i++)
        free(t->buf[i].host);
    t->lab->left_out++;
    return true;
}

/* Of runs of fewer rows, those that most is not against: on both sides of where other kernels
 * begin. */
static bool is_wanted(const struct lab *l, int rows)
{
    return l->most == 0 || rows == 1 || rows == 3 || rows == 8 || rows == 9 || rows == LAB_ROWS;
}

/* Rows beyond those of small windows: the last one alone, and all others as windows that are none
 * of the small ones. */
static void run_chunks(struct trial *t, const struct side *all, struct side *dev)
{
    int last = t->rows - 1, cut = LAB_ROWS + 1 + (t->rows - LAB_ROWS) / 2;

    if (run_device(t, dev, last, 1, false))
        compare_rows(t, all, dev, last, 1);
    if (cut < last && run_device(t, dev, 0, cut, false))
        compare_rows(t, all, dev, 0, cut);
    if (cut < last && run_device(t, dev, cut, last - cut, false))
        compare_rows(t, all, dev, cut, last - cut);
}

void lab_run(struct trial *t)
{
    struct side ref, dev, all;

    if (too_large(t))
        return;
    t->lab->cases++;
    open_device(t, &dev);
    if (t->lab->quick) {
        run_quick(t, &dev);
        close_trial(t, &dev);
        return;
    }
    run_ref(t, &ref);
    if (run_device(t, &dev, 0, t->rows, true)) {
        compare_ref(t, &ref, &dev);
        all = dev;
        for (int i = 0; i < t->bufs; i++) {
            dev.out[i] = malloc(t->buf[i].bytes + 64);
        }
        for (int r = 0; t->alone && r < t->rows && r < LAB_ROWS; r += t->lab->most ? 7 : 1)
            if (run_device(t, &dev, r, 1, false))
                compare_rows(t, &all, &dev, r, 1);
        for (int n = 1; t->alone && n <= t->rows && n <= LAB_ROWS; n++)
            if (is_wanted(t->lab, n) && run_device(t, &dev, 0, n, false))
                compare_rows(t, &all, &dev, 0, n);
        if (t->alone && t->rows > LAB_ROWS)
            run_chunks(t, &all, &dev);
        for (int i = 0; i < t->bufs; i++)
            free(all.out[i]);
    }
    close_side(t, &ref, false);
    close_trial(t, &dev);
}

void lab_refuse(struct trial *t, int want)
{
    struct lab *l = t->lab;
    struct side dev;
    int r;

    if (too_large(t))
        return;
    l->cases++;
    open_device(t, &dev);
    for (int i = 0; i < t->bufs; i++)
        upload(t, &dev, i);
    t->run(t, l->dev->ops->op, l->q, dev.b, 0, t->rows);
    r = l->q->ops->wait(l->q);
    if (r != want)
        lab_fail(l, "%s: the queue says %d, want %d", t->name, r, want);
    close_trial(t, &dev);
}

/* ---- two queues of a device ------------------------------------------------------------------ */

struct beside {
    struct trial *t;
    struct lab lab; /* with a queue of its own */
    struct side want, got;
    int times;
    pthread_t thread;
};

static void *run_beside(void *arg)
{
    struct beside *b = arg;
    struct device *d = b->lab.dev;

    /* a queue belongs to the thread that opens it */
    if (d->ops->queue_open(d, &b->lab.q) < 0)
        abort();
    for (int i = 0; i < b->times; i++) {
        clock_sleep((int64_t)lab_below(&b->lab, 200) * NS_PER_US);
        if (!run_device(b->t, &b->got, 0, b->t->rows, i == 0))
            break;
        compare_rows(b->t, &b->want, &b->got, 0, b->t->rows);
    }
    d->ops->queue_close(b->lab.q);
    return NULL;
}

void lab_beside(struct trial *t, struct trial *other, int times)
{
    int most = t->lab->most && times > 2 ? 2 : times;
    struct beside b[2] = { { .t = t, .times = most }, { .t = other, .times = most } };
    struct lab *l = t->lab;

    l->cases++;
    for (int i = 0; i < 2; i++) {
        open_device(b[i].t, &b[i].want);
        b[i].got = b[i].want;
        for (int k = 0; k < b[i].t->bufs; k++)
            b[i].got.out[k] = malloc(b[i].t->buf[k].bytes + 64);
        run_device(b[i].t, &b[i].want, 0, b[i].t->rows, true);
        b[i].lab = *l;
        b[i].lab.seed += (uint64_t)i << 20;
        b[i].lab.failures = 0;
        b[i].t->lab = &b[i].lab;
    }
    for (int i = 0; i < 2; i++)
        if (pthread_create(&b[i].thread, NULL, run_beside, &b[i]) != 0)
            abort();
    for (int i = 0; i < 2; i++) {
        pthread_join(b[i].thread, NULL);
        l->failures += b[i].lab.failures;
        b[i].t->lab = l;
        close_side(b[i].t, &b[i].want, true);
        for (int k = 0; k < b[i].t->bufs; k++) {
            free(b[i].got.out[k]);
            free(b[i].t->buf[k].host);
        }
    }
}
