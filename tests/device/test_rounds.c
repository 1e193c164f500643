/* Whole rounds of whole ranks on the CUDA backend: replies are those of eager rounds, whatever is
 * captured, kept, dropped or refused; and what is wrong ends the round with its place named.
 *
 *   rounds [name]...      all cases, or some
 */
#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/row_store.h"
#include "tests/device/parts.h"
#include "tests/device/rounds.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a device that has no memory for graphs -------------------------------------------------- */

static int graphs_left = -1; /* -1: as many as there is room for */

int __real_cuda_graph_end(struct queue *q, struct graph **out);
int __wrap_cuda_graph_end(struct queue *q, struct graph **out);

int __wrap_cuda_graph_end(struct queue *q, struct graph **out)
{
    struct graph *g = NULL;
    int r = __real_cuda_graph_end(q, &g);

    if (r < 0)
        return r;
    if (graphs_left < 0 || graphs_left-- > 0) {
        *out = g;
        return 0;
    }
    graphs_left = 0;
    q->ops->graph_close(g);
    return fail(-ENOMEM, "a device without memory for graphs");
}

/* ---- n-gram rows that come late, or not at all ----------------------------------------------- */

static struct {
    bool on;
    int64_t delay_ns; /* of every take */
    int lose;         /* the take that fails, from 1; 0: none */
    atomic_int takes;
} late;

static _Thread_local int launches, early; /* of a round: graphs launched, takes before the first */

struct late_store {
    struct row_store base;
    struct row_store *real;
};

static struct row_store *real_store(struct row_store *s)
{
    return ((struct late_store *)s)->real;
}

static int late_ask(struct row_store *s, const struct row_table *t, int ticket,
                    const int32_t *column, const int64_t *row_in_column, int n)
{
    return real_store(s)->ops->ask(real_store(s), t, ticket, column, row_in_column, n);
}

static int late_warm(struct row_store *s, const struct row_table *t, const int32_t *column,
                     const int64_t *row_in_column, int n)
{
    return real_store(s)->ops->warm(real_store(s), t, column, row_in_column, n);
}

static int late_take(struct row_store *s, int ticket, float *out)
{
    int r = real_store(s)->ops->take(real_store(s), ticket, out);

    early += launches == 0;
    clock_sleep(late.delay_ns);
    if (atomic_fetch_add(&late.takes, 1) + 1 == late.lose)
        return fail(-EIO, "row store: a test has lost the rows of ticket %d", ticket);
    return r;
}

static void late_stats(struct row_store *s, struct row_store_stats *out)
{
    real_store(s)->ops->stats(real_store(s), out);
}

static void late_close(struct row_store *s)
{
    real_store(s)->ops->close(real_store(s));
    free(s);
}

static const struct row_store_ops late_ops = { .name = "late",
                                               .ask = late_ask,
                                               .warm = late_warm,
                                               .take = late_take,
                                               .stats = late_stats,
                                               .close = late_close };

int __real_row_store_open(const struct row_store_settings *s, struct row_store **out);
int __wrap_row_store_open(const struct row_store_settings *s, struct row_store **out);

int __wrap_row_store_open(const struct row_store_settings *s, struct row_store **out)
{
    struct late_store *l;
    int r = __real_row_store_open(s, out);

    if (r < 0 || !late.on)
        return r;
    l = calloc(1, sizeof(*l));
    l->base.ops = &late_ops;
    l->real = *out;
    *out = &l->base;
    return 0;
}

void __real_cuda_graph_launch(struct queue *q, struct graph *g);
void __wrap_cuda_graph_launch(struct queue *q, struct graph *g);

void __wrap_cuda_graph_launch(struct queue *q, struct graph *g)
{
    __real_cuda_graph_launch(q, g);
    launches++;
}

/* ---- what a round asks of the driver --------------------------------------------------------- */

/* Calls that wait for the device, and calls that allocate on it or move bytes past the kernels: by
 * whoever makes them. */
#define WAITS(F)                                                                                   \
    F(cudaStreamSynchronize, (cudaStream_t s), (s))                                                \
    F(cudaEventSynchronize, (cudaEvent_t e), (e))                                                  \
    F(cudaDeviceSynchronize, (void), ())
#define OTHERS(F)                                                                                  \
    F(cudaMalloc, (void **p, size_t n), (p, n))                                                    \
    F(cudaFree, (void *p), (p))                                                                    \
    F(cudaHostAlloc, (void **p, size_t n, unsigned f), (p, n, f))                                  \
    F(cudaFreeHost, (void *p), (p))                                                                \
    F(cudaMemsetAsync, (void *p, int v, size_t n, cudaStream_t s), (p, v, n, s))                   \
    F(cudaMemcpyAsync, (void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t q),  \
      (d, s, n, k, q))

static struct {
    atomic_int waits, others;
    int rounds, one, replays; /* rounds seen; with one wait and nothing else; replayed */
} driver;

#define COUNT_AS(field, name, args, call)                                                          \
    cudaError_t __real_##name args;                                                                \
    cudaError_t __wrap_##name args;                                                                \
    cudaError_t __wrap_##name args                                                                 \
    {                                                                                              \
        atomic_fetch_add(&driver.field, 1);                                                        \
        return __real_##name call;                                                                 \
    }
#define COUNT_WAIT(name, args, call) COUNT_AS(waits, name, args, call)
#define COUNT_OTHER(name, args, call) COUNT_AS(others, name, args, call)
WAITS(COUNT_WAIT)
OTHERS(COUNT_OTHER)

int __real_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);
int __wrap_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);

int __wrap_round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns)
{
    int waits = atomic_load(&driver.waits), others = atomic_load(&driver.others), err;

    launches = early = 0;
    err = __real_round_run(r, p, t_ns, plan_ns);
    CHECK(!late.on || r->rec.mode != MODE_REPLAY || early == 0,
          "a replayed window has waited for %d tables of rows before it was launched", early);
    driver.rounds++;
    driver.replays += r->rec.mode == MODE_REPLAY;
    driver.one += r->rec.mode == MODE_REPLAY && atomic_load(&driver.waits) - waits == 1 &&
                  atomic_load(&driver.others) == others;
    return err;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void make_serial(void)
{
    rounds_serial = (struct run){ 0 };
    CHECK(rounds_run(&rounds_serial, SET("graphs=off", "draft=none")) == 0, "serial");
    rounds_print("serial, eager", &rounds_serial);
}

/* F-05, F-06, F-08, F-19 and the law of capture: replies do not depend on drafts, depth, company,
 * the slot's last request, or on what is captured. */
static void replies(const char *ranks)
{
    static const char *const depths[] = { "depth=0", "depth=1", "depth=2",   "depth=3",
                                          "depth=4", "depth=5", "depth=auto" };

    for (int i = 0; i < 7; i++)
        for (int together = 1; together <= 4; together += i == 4 ? 1 : 3) {
            struct run eager = { .draft = true, .together = together };
            struct run captured = { .draft = true, .together = together };
            char name[64];

            snprintf(name, sizeof(name), "%s %s together=%d", ranks, depths[i], together);
            CHECK(rounds_run(&eager, SET(ranks, depths[i], "graphs=off", "costs=auto")) == 0, "%s",
                  name);
            rounds_same(&rounds_serial, &eager, name);
            CHECK(rounds_run(&captured, SET(ranks, depths[i], "graphs=on")) == 0, "%s", name);
            rounds_same(&rounds_serial, &captured, name);
            rounds_print(name, &captured);
            CHECK(captured.graphs.replayed > captured.graphs.eager, "%s", name);
            CHECK(captured.graphs.held <= 48, "%s", name);
        }
}

static void one_rank(void)
{
    replies("ranks=1");
}

/* F-19: a request behind others, in a slot that held longer prompts, is the one of a process that
 * has nothing else to do. */
static void fresh(void)
{
    for (int i = 0; i < ASKED; i++) {
        struct run r = { .from = i, .to = i + 1, .draft = true };

        CHECK(rounds_run(&r, SET("depth=4", "graphs=on", "slots=1")) == 0, "request %d", i);
        rounds_same(&rounds_serial, &r, "alone in a process");
    }
}

/* F-18: the bound is global and graphs that go are made again with the same bits. */
static void bound(void)
{
    static const char *const most[] = { "graph_max=1", "graph_max=3", "graph_max=6" };

    for (int i = 0; i < 3; i++) {
        struct run r = { .draft = true, .together = 3 };

        CHECK(rounds_run(&r, SET(most[i], "depth=4", "graphs=on")) == 0, "%s", most[i]);
        rounds_same(&rounds_serial, &r, most[i]);
        rounds_print(most[i], &r);
        CHECK(r.graphs.held <= atoi(most[i] + strlen("graph_max=")), "%s: %d", most[i],
              r.graphs.held);
        CHECK(r.graphs.dropped > 0, "%s", most[i]);
    }
}

/* F-17, F-18: a second pass over the same requests, the longest included, makes nothing on the
 * device. */
static void no_allocation(void)
{
    struct run r = { .draft = true, .together = 2, .passes = 3 };

    CHECK(rounds_run(&r, SET("depth=4", "graphs=on", "graph_max=128")) == 0, "passes");
    rounds_same(&rounds_serial, &r, "third pass");
    rounds_print("second and third pass", &r);
    CHECK(r.allocations[0] > 0 && r.allocations[1] == r.allocations[0] &&
              r.allocations[2] == r.allocations[0],
          "%llu, %llu, %llu allocations", (unsigned long long)r.allocations[0],
          (unsigned long long)r.allocations[1], (unsigned long long)r.allocations[2]);
    CHECK(r.room[1] == r.room[0] && r.room[2] == r.room[0], "%zu, %zu, %zu bytes left", r.room[0],
          r.room[1], r.room[2]);
    CHECK(r.graphs.dropped == 0, "%llu graphs dropped", (unsigned long long)r.graphs.dropped);
}

/* F-17: a round waits for its device once, at its end, and asks nothing of the driver that
 * might. */
static void one_wait(void)
{
    struct run r = {
        .from = 12, .to = 13, .draft = true, .passes = 2
    }; /* greedy: candidates always decide */

    driver.rounds = driver.one = driver.replays = 0;
    CHECK(rounds_run(&r, SET("depth=4", "graphs=on", "slots=1")) == 0, "one wait");
    CHECK(driver.replays > 10 && driver.one == driver.replays,
          "%d of %d replayed rounds waited once and did nothing else", driver.one, driver.replays);
    printf("%d rounds, %d replayed, each with one wait and no allocation, copy or memset of the "
           "driver's\n",
           driver.rounds, driver.one);
}

/* n-gram rows that come while their window runs already: the same replies; rows that are lost or
 * never come end it. */
static void late_rows(void)
{
    static const char *const ranks[] = { "ranks=1", "ranks=2" }, *const graphs[] = { "graphs=on",
                                                                                     "graphs=off" };
    struct run gone = { .from = 0, .to = 1 };

    for (int i = 0; i < 2; i++) {
        struct run want = { .from = 11, .to = 13, .draft = true };

        late.on = false;
        CHECK(rounds_run(&want,
                         SET(ranks[i], "device=0", "depth=4", "graphs=off", "partials=fp32")) == 0,
              "%s", ranks[i]);
        late.on = true;
        for (int j = 0; j < 2; j++) {
            struct run slow = want, lost = want;
            int64_t begin;

            late.delay_ns = 20 * NS_PER_MS;
            late.lose = 0;
            CHECK(rounds_run(&slow,
                             SET(ranks[i], "device=0", "depth=4", graphs[j], "partials=fp32")) == 0,
                  "%s %s", ranks[i], graphs[j]);
            rounds_same(&want, &slow, "late rows");
            rounds_print("late rows", &slow);

            if (i > 0) /* a group that fails ends its process: processes.sh */
                continue;
            late.delay_ns = 0;
            late.lose = atomic_load(&late.takes) + 21;
            begin = clock_ns();
            CHECK(rounds_run(&lost, SET(ranks[i], "device=0", "depth=4", graphs[j],
                                        "log_level=err")) == 70,
                  "lost rows, %s %s", ranks[i], graphs[j]);
            CHECK(strstr(lost.said, "row store: a test has lost the rows"), "\"%s\"", lost.said);
            printf("%s %s: over after %.1f s: %s\n", ranks[i], graphs[j],
                   (double)(clock_ns() - begin) / NS_PER_S, lost.said);
        }
    }
    /* a host that is away for longer than the device waits */
    late.lose = 0;
    late.delay_ns = 500 * NS_PER_MS;
    CHECK(rounds_run(&gone, SET("wait_limit_ms=100", "graphs=on", "draft=none", "log_level=err")) ==
              70,
          "a limit");
    CHECK(strstr(gone.said, "bring: the host has brought nothing in 200 ms"), "\"%s\"", gone.said);
    late.on = false;
}

static char warned[4096];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    if (level <= LOG_WARN && strlen(warned) + strlen(line) + 2 < sizeof(warned))
        strcat(strcat(warned, line), "\n");
}

static int count_of(const char *text, const char *what)
{
    int n = 0;

    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

/* No memory for a graph: said once, and the replies are the same. The first graph only checks
 * limits. */
static void out_of_memory(void)
{
    static const int rooms[] = { 0, 1, 8 };

    for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
        struct run r = { .draft = true, .together = 3 };
        int room = rooms[i];

        graphs_left = room;
        warned[0] = 0;
        log_sink(keep_line, NULL);
        CHECK(rounds_run(&r, SET("depth=4", "graphs=on")) == 0, "room %d", room);
        log_sink(NULL, NULL);
        graphs_left = -1;
        rounds_same(&rounds_serial, &r, "no memory for graphs");
        CHECK(r.graphs.made == (room ? (uint64_t)room - 1 : 0), "%llu graphs",
              (unsigned long long)r.graphs.made);
        CHECK(count_of(warned, "graphs: no memory") == 1, "warnings: %s", warned);
        CHECK(count_of(warned, "error:") == 0, "errors: %s", warned);
    }
}

/* F-16: bad logits end the round, by slot and row; with trace_numerics by layer. They never become
 * text. */
static void bad_numbers(void)
{
    static const struct {
        const char *set, *want;
    } cases[] = { { "trace_numerics=off", "choose: no finite logits in slot 0 row 0 position" },
                  { "trace_numerics=on", "layer 2: no finite number in slot 0 row 0 position" } };

    for (int i = 0; i < 2; i++)
        for (int graphs = 0; graphs < 2; graphs++) {
            struct run r = { .to = 2, .harm = BAD_STATE };
            int code = rounds_run(
                &r, SET(cases[i].set, graphs ? "graphs=on" : "graphs=off", "log_level=err"));

            CHECK(code == 70, "%s: exit code %d", cases[i].set, code);
            CHECK(strstr(r.said, cases[i].want), "%s: \"%s\"", cases[i].set, r.said);
        }
}

/* The pocket model with a window of `span` rows; the exit code. What it says is in `warned`. */
static int with_window(int span)
{
    static const char *const files[] = { "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json", "generation_config.json" };
    static const char key[] = "\"sliding_window\": ";
    char folder[] = "/tmp/tandem-limits-XXXXXX", path[256], set[256], *text, *at;
    struct run r = { .to = 1 };
    size_t bytes;
    FILE *f;
    int code;

    CHECK(mkdtemp(folder), "folder");
    for (int i = 0; i < 4; i++) {
        char from[256];

        snprintf(from, sizeof(from), "%s/%s", POCKET, files[i]);
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        CHECK(file_read(from, (size_t)1 << 30, &text, &bytes) == 0, "%s", from);
        f = fopen(path, "w");
        CHECK(f && fwrite(text, 1, bytes, f) == bytes, "%s", path);
        fclose(f);
        free(text);
    }
    CHECK(file_read(POCKET "/config.json", 1 << 20, &text, &bytes) == 0, "config.json");
    at = strstr(text, key);
    CHECK(at, "no %s", key);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    f = fopen(path, "w");
    CHECK(f, "%s", path);
    fprintf(f, "%.*s%s%d%s", (int)(at - text), text, key, span,
            at + strlen(key) + strspn(at + strlen(key), "0123456789"));
    fclose(f);
    free(text);
    snprintf(set, sizeof(set), "model=%s", folder);
    warned[0] = 0;
    log_sink(keep_line, NULL);
    code = rounds_run(&r, SET(set, "log_level=warn"));
    log_sink(NULL, NULL);
    return code;
}

/* A model beyond a kernel's limit is refused at the start, by the kernel and with its numbers; one
 * that is beyond that of a faster kernel alone runs, and that is said once. */
static void limits(void)
{
    CHECK(with_window(1 << 16) != 0, "a window of 65536 rows");
    CHECK(strstr(warned, "attend: heads of") && strstr(warned, "bytes of shared memory"), "%s",
          warned);
    CHECK(with_window(1100) == 0, "a window of 1100 rows: %s", warned);
    CHECK(count_of(warned, "a slower kernel runs") == 1, "%s", warned);
}

/* One line that says what there is and what is wanted, and the exit code for it. */
static void refused(const char *set, int code, const char *want)
{
    struct run r = { .to = 1 };
    int got;

    warned[0] = 0;
    log_sink(keep_line, NULL);
    got = rounds_run(&r, SET(set, "log_level=err"));
    log_sink(NULL, NULL);
    CHECK(got == code && strstr(warned, want), "%s: exit code %d: %s", set, got, warned);
    CHECK(count_of(warned, "\n") == 1, "%s: lines: %s", set, warned);
}

static void no_such_device(void)
{
    refused("device=63", 69, "cuda: no device 63, there are ");
    pretend.too_old = true;
    refused("device=0", 69, "cuda: device 0 has compute capability 8.0, this build needs 9.0");
    pretend.too_old = false;
}

/* F-20: somebody else has the device's memory but for 64 MiB. */
static void short_memory(void)
{
    const struct backend_ops *b;
    struct device *d;
    size_t room, left = (size_t)64 << 20;
    void *most = NULL;

    CHECK(backend_find("cuda", &b) == 0 && b->open(0, 1, &d) == 0, "device");
    room = b->room(d);
    while (!most && room > left && b->alloc(d, room - left, &most) < 0)
        room -= left;
    refused("slots=4", 71, "free");
    b->free(d, most);
    b->close(d);
}

/* What one stream's round costs the host. */
static void host_time(void)
{
    struct run r = { .draft = true, .passes = 3 };

    CHECK(rounds_run(&r, SET("depth=4", "graphs=on", "slots=1")) == 0, "host time");
    rounds_print("one slot, graphs", &r);
    r = (struct run){ .draft = true, .passes = 3 };
    CHECK(rounds_run(&r, SET("depth=4", "graphs=off", "slots=1")) == 0, "host time");
    rounds_print("one slot, eager", &r);
}

int rounds_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = { { "one_rank", one_rank },
                  { "fresh", fresh },
                  { "two_ranks", rounds_two_ranks },
                  { "levers", rounds_levers },
                  { "bound", bound },
                  { "late_rows", late_rows },
                  { "no_allocation", no_allocation },
                  { "out_of_memory", out_of_memory },
                  { "bad_numbers", bad_numbers },
                  { "limits", limits },
                  { "one_wait", one_wait },
                  { "no_such_device", no_such_device },
                  { "short_memory", short_memory },
                  { "host_time", host_time } };
    const struct backend_ops *b;
    char why[160];

    for (int j = 1; j < argc; j++) {
        size_t i = 0;

        while (i < sizeof(cases) / sizeof(cases[0]) && strcmp(argv[j], cases[i].name) != 0)
            i++;
        if (i == sizeof(cases) / sizeof(cases[0])) {
            fprintf(stderr, "rounds: no case is called %s\n", argv[j]);
            return 64;
        }
    }
    if (backend_find("cuda", &b) < 0)
        return 1;
    if (b->probe(0, why, sizeof(why)) < 0) {
        printf("skipped: cuda: %s\n", why);
        return 77;
    }
    make_serial();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool wanted = argc < 2;
        int before = rounds_failures;
        int64_t start = clock_ns();

        for (int j = 1; j < argc; j++)
            wanted |= strcmp(argv[j], cases[i].name) == 0;
        if (!wanted)
            continue;
        cases[i].run();
        printf("%-7s rounds/%s %.2f s\n", rounds_failures > before ? "FAILED" : "passed",
               cases[i].name, (double)(clock_ns() - start) / NS_PER_S);
        fflush(stdout);
    }
    printf("rounds: %d failures\n", rounds_failures);
    return rounds_failures != 0;
}
