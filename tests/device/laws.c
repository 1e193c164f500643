/* laws runs the tests that are linked with it on the CUDA backend: the laws and goldens of the
 * model and of its drafter, which were written for any backend.
 *
 *   laws [-n name]... [name]...     -n leaves a test out; names choose tests or suites
 */
#include "kernels/backend.h"
#include "src/base/clock.h"
#include "tests/device/criterion/criterion.h"
#include "tests/device/parts.h"
#include "tests/rig/rig.h"

#define FAILURES_SHOWN 20

static struct shim_test *first;
static int failures;

void shim_add(struct shim_test *t)
{
    struct shim_test **at = &first;

    while (*at)
        at = &(*at)->next;
    *at = t;
}

void shim_failed(const char *file, int line, const char *what, bool fatal)
{
    if (__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED) <= FAILURES_SHOWN || fatal)
        printf("FAILED %s:%d: %s\n", file, line, what);
    fflush(stdout);
    if (fatal)
        _Exit(1);
}

static bool names(const struct shim_test *t, const char *arg)
{
    return strcmp(arg, t->name) == 0 || strcmp(arg, t->suite) == 0;
}

static bool known(const char *arg)
{
    for (struct shim_test *t = first; t; t = t->next)
        if (names(t, arg))
            return true;
    return strcmp(arg, "-n") == 0;
}

static bool wanted(const struct shim_test *t, int argc, char **argv)
{
    bool some = false, yes = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            if (names(t, argv[++i]))
                return false;
            continue;
        }
        some = true;
        yes |= names(t, argv[i]);
    }
    return yes || !some;
}

int laws_main(int argc, char **argv)
{
    const struct backend_ops *b;
    char why[160];
    int n = 0;

    for (int i = 1; i < argc; i++)
        if (!known(argv[i])) {
            fprintf(stderr, "laws: no suite or test is called %s\n", argv[i]);
            return 64;
        }
    if (backend_find("cuda", &b) < 0)
        return 1;
    if (b->probe(0, why, sizeof(why)) < 0) {
        printf("skipped: cuda: %s\n", why);
        return 77;
    }
    rig_backend("cuda");
    for (struct shim_test *t = first; t; t = t->next) {
        int64_t start = clock_ns();
        int before = failures;

        if (!wanted(t, argc, argv))
            continue;
        t->run();
        n++;
        printf("%-7s %s/%s %.2f s\n", failures > before ? "FAILED" : "passed", t->suite, t->name,
               (double)(clock_ns() - start) / NS_PER_S);
        fflush(stdout);
    }
    printf("laws: %d tests, %d failures\n", n, failures);
    return failures != 0;
}
