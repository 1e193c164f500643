/* criterion - as much of Criterion as the laws and goldens use, so that they run on a machine that
 * has a device and no Criterion. Tests run one after the other in one process; a failed cr_assert
 * ends the process, because a rank that stops would leave the others waiting.
 */
#ifndef TANDEM_TESTS_DEVICE_CRITERION_H
#define TANDEM_TESTS_DEVICE_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shim_test {
    const char *suite, *name;
    void (*run)(void);
    struct shim_test *next;
};

struct shim_options {
    double timeout;
    int exit_code, signal;
};

void shim_add(struct shim_test *t);
void shim_failed(const char *file, int line, const char *what, bool fatal);

#define Test(s, n, ...)                                                                            \
    static void shim_run_##s##_##n(void);                                                          \
    static struct shim_test shim_##s##_##n = { #s, #n, shim_run_##s##_##n, NULL };                 \
    __attribute__((constructor)) static void shim_add_##s##_##n(void)                              \
    {                                                                                              \
        (void)(struct shim_options){ __VA_ARGS__ };                                                \
        shim_add(&shim_##s##_##n);                                                                 \
    }                                                                                              \
    static void shim_run_##s##_##n(void)

/* The first argument is the condition, what follows a message and its values. */
#define SHIM_FIRST(c, ...) (c)
#define SHIM_CHECK(fatal, ...)                                                                     \
    do {                                                                                           \
        if (!(SHIM_FIRST(__VA_ARGS__, 0)))                                                         \
            shim_failed(__FILE__, __LINE__, #__VA_ARGS__, fatal);                                  \
    } while (0)
#define cr_expect(...) SHIM_CHECK(false, __VA_ARGS__)
#define cr_assert(...) SHIM_CHECK(true, __VA_ARGS__)
#define cr_log_info(...) (printf(__VA_ARGS__), printf("\n"))
#define cr_log_error(...) (printf(__VA_ARGS__), printf("\n"))

#endif
